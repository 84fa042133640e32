"""Tests of what needs torch; they are collected where it is installed.

Their folder is not called torch: the folder of tests is on Python's path, and what is in it would pass for the package.
"""

import importlib.util

import pytest

collect_ignore = ["scripts"]  # which are run, not imported
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture
def one_thread():
    """Threads that spin would take the time of those that are measured."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def rank_server():
    """Forks the ranks of an emulation, which start an interpreter and import torch each without it."""
    from ranks import RankServer

    server = RankServer()
    yield server
    server.close()
