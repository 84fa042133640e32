"""A function of JAX as a program: JAX lowers and divides it, and the text is read. Needs the extra `jax`."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crossflow.base.errors import CrossflowError
from crossflow.base.files import read_text
from crossflow.evidence.jax.importer import ImportedText, imported

PASS = "spmd-partitioning"  # of the compiler, after which every tensor has the size of one device


def require_jax(use: str) -> None:
    """CrossflowError where JAX is not installed; `use` is what needs it."""
    try:
        importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        raise CrossflowError(f"{use} needs jax, which is not installed; run: pip install 'crossflow[jax]'") from None


def record(function: Callable[..., Any], *args: Any, **settings: Any) -> ImportedText:
    """The program of a function of JAX, with sentences on what was taken for granted.

    Parameters
    ----------
    function : to lower, with shardings if it was given any by ``jax.jit``; anything else is jitted.
    args : its arguments, arrays or ``jax.ShapeDtypeStruct``. Nothing is computed.
    settings : of `crossflow.evidence.jax.importer.imported`.
    """
    settings = {"name": getattr(function, "__name__", "step"), **settings}
    return imported(text_of(function, *args), **settings)


def text_of(function: Callable[..., Any], *args: Any) -> str:
    """HLO of a function: as JAX lowers it for one device, and after it was divided over several, in its own types."""
    require_jax("lowering a function")
    import jax

    lowered = (function if hasattr(function, "lower") else jax.jit(function)).lower(*args)
    if "mhlo.num_partitions = 1 :" in lowered.as_text():
        return str(lowered.as_text(debug_info=True))
    with tempfile.TemporaryDirectory() as folder:
        options: Mapping[str, Any] = {"xla_dump_to": folder, "xla_dump_hlo_pass_re": PASS}
        compiled = lowered.compile(compiler_options=dict(options))
        found = sorted(Path(folder).glob(f"*after_{PASS}*.txt"))
        return read_text(found[-1]) if found else str(compiled.as_text())
