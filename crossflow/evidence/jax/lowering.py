"""A function of JAX as a program: JAX lowers and divides it, and the text is read. Needs the extra `jax`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from crossflow.base.files import read_text
from crossflow.evidence.jax.importer import ImportedText, imported
from crossflow.evidence.jax.partition import PASS, after_pass, require_jax


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
        found = after_pass(folder)
        return read_text(found) if found is not None else str(compiled.as_text())
