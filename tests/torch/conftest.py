"""Tests of what needs torch; they are collected where it is installed."""

from importlib import metadata

# A package, and not this folder, which Python would also find by that name.
collect_ignore_glob = [] if any(one.metadata["Name"] == "torch" for one in metadata.distributions()) else ["test_*.py"]
