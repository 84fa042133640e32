"""Tests of what needs torch; they are collected where it is installed.

Their folder is not called torch: the folder of tests is on Python's path, and what is in it would pass for the package.
"""

import importlib.util

collect_ignore = ["scripts"]  # which are run, not imported
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
