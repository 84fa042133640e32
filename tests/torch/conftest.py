"""Tests of what needs torch; they are collected where it is installed."""

import importlib.util

# Without torch, its name is that of this folder, which has no origin.
found = importlib.util.find_spec("torch")
collect_ignore_glob = [] if found is not None and found.origin is not None else ["test_*.py"]
