"""What frameworks import at their start and a machine without an accelerator lacks, as modules whose names can be taken and not run."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from unittest.mock import MagicMock


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules below some names, from which anything can be imported."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self.roots = roots

    def has(self, name: str) -> bool:
        """Whether a module is one of them."""
        return any(name == root or name.startswith(f"{root}.") for root in self.roots)

    def find_spec(self, fullname, path=None, target=None):
        """The specification of a module that stands in, None for others."""
        del path, target
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if self.has(fullname) else None

    def create_module(self, spec):
        """A module with every name."""
        made = MagicMock(name=spec.name)
        made.__path__ = []
        made.__version__ = "3.0.0"
        return made

    def exec_module(self, module):
        """Nothing is run."""


@contextlib.contextmanager
def present(*roots: str) -> Iterator[None]:
    """Packages that pass as installed while a framework is imported, where they are not.

    Parts of torch that would use them are imported before, so that they find none.
    """
    import torch._dynamo.backends.debugging
    import torch._inductor.compile_fx  # noqa: F401

    finder = StandIns(tuple(root for root in roots if importlib.util.find_spec(root) is None))
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.has(name)]:
            del sys.modules[name]


NODE = 8
# Of vLLM: kernels, and Ray, which is 70 MB and of which nothing is asked.
ABSENT = ("vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C", "vllm.vllm_flash_attn", "ray")


def pass_as_hopper():
    """Let vLLM find a node of H100, which asks no driver, and kernels whose names can be taken."""
    sys.meta_path.insert(0, StandIns(ABSENT))
    import vllm.platforms
    from vllm.platforms import cuda, interface

    class Hopper(cuda.NonNvmlCudaPlatform):
        @classmethod
        def get_device_capability(cls, device_id=0):
            del device_id
            return interface.DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, device_id=0):
            del device_id
            return "NVIDIA H100"

        @classmethod
        def get_device_total_memory(cls, device_id=0):
            del device_id
            return 80 * 2**30

        @classmethod
        def device_count(cls):
            return NODE

        @classmethod
        def is_fully_connected(cls, *_):
            return True

    vllm.platforms._current_platform = Hopper()
