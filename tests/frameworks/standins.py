"""What frameworks import at their start and a machine without an accelerator lacks, as modules whose names can be taken and not run."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from unittest.mock import MagicMock


def module(name: str) -> MagicMock:
    """A module from which any name can be imported."""
    made = MagicMock(name=name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    made.__path__ = []
    made.__version__ = "3.0.0"
    return made


@contextlib.contextmanager
def present(*names: str) -> Iterator[None]:
    """Modules that pass as installed while a framework is imported, where they are not.

    Parts of torch that would use them are imported before, so that they find none.
    """
    import torch._dynamo.backends.debugging
    import torch._inductor.compile_fx  # noqa: F401

    added = [name for name in names if name.split(".")[0] not in sys.modules and importlib.util.find_spec(name.split(".")[0]) is None]
    sys.modules.update({name: module(name) for name in added})
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]
