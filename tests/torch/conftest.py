"""Tests of what needs torch; they are collected where it is installed."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
