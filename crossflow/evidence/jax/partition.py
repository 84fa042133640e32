"""A lowered text divided over its devices by the compiler's own partitioner, in a process of its own. Needs the extra `jax`.

A text of `lowered.as_text()` has the sizes of all devices together, and says how some tensors lie on them. How all others lie, and what is
sent, follows by the compiler's propagation [1]_, which is asked for it: as JAX asks it, with one process that has as many devices.

References
----------
.. [1] Shardy, https://openxla.org/shardy, and the pass `spmd-partitioning` of XLA.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base import packages
from crossflow.base.errors import CrossflowError
from crossflow.base.files import read_text
from crossflow.evidence.jax.text import TextError

PASS = "spmd-partitioning"  # of the compiler, after which every tensor has the size of one device
GIVEN, FAILED = "lowered.mlir", "failed.txt"  # the text, and why it could not be divided
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_MAIN = re.compile(r"func\.func (?:public )?@main\((.*)")


def require_jax(use: str) -> None:
    """CrossflowError where JAX is not installed; `use` is what needs it."""
    if not packages.there("jax"):
        raise CrossflowError(f"{use} needs jax, which is not installed; run: pip install 'crossflow[jax]'")


def after_pass(folder: str | Path) -> Path | None:
    """What the compiler wrote after its partitioner, in the folder of its dumps."""
    return next(iter(sorted(Path(folder).glob(f"*after_{PASS}*.txt"), reverse=True)), None)


def divided(text: str, devices: int) -> str:
    """HLO of one of `devices` devices, from StableHLO with the sizes of all.

    Raises
    ------
    TextError
        With what the compiler says where it does not divide the text.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, GIVEN).write_text(text, encoding="utf-8", newline="\n")
        told = {
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip(),
            "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }  # fmt: skip
        asked = [sys.executable, "-m", __name__, folder, str(devices)]
        ended = subprocess.run(asked, env=os.environ | told, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        found = after_pass(folder)
        failed = Path(folder, FAILED)
        if ended.returncode or found is None or failed.exists():
            said = read_text(failed) if failed.exists() else f"it ended with status {ended.returncode}"
            raise TextError(1, f"the compiler does not divide the text over its {devices} devices: {said}")
        return read_text(found)


def annotated(text: str) -> tuple[list[bool], list[bool]]:
    """Which parameters and which results of a text say how they lie on the devices."""
    head = next((found[1] for line in text.split("\n") if (found := _MAIN.match(line.strip()))), "")
    given, _, made = _QUOTED.sub('""', head).partition(") -> ")
    return (
        ["sharding = " in one for one in re.split(r"%\w+: ", given)[1:]],
        ["sharding = " in one for one in re.split(r"tensor<|!stablehlo\.token", made)[1:]],
    )


def _divide(folder: str, devices: int) -> None:
    """Compile a text, and have what its partitioner made written to the folder; what follows is left out as far as the compiler allows."""
    import jax
    from jaxlib import xla_client

    text, own = read_text(Path(folder, GIVEN)), jax.devices("cpu")[:devices]
    given, made = annotated(text)
    options: Any = xla_client.CompileOptions()
    build = options.executable_build_options
    for one in (options, build):
        one.num_replicas, one.num_partitions = 1, devices
    build.use_spmd_partitioning, build.use_shardy_partitioner = True, "sdy." in text
    build.device_assignment = xla_client.DeviceAssignment.create(np.arange(devices).reshape(1, devices))
    build.allow_spmd_sharding_propagation_to_parameters = [not one for one in given]
    build.allow_spmd_sharding_propagation_to_output = [not one for one in made]
    options.env_option_overrides = [
        ("xla_dump_to", folder), ("xla_dump_hlo_pass_re", PASS), ("xla_backend_optimization_level", "0"),
    ]  # fmt: skip
    own[0].client.compile_and_load(text, own, options)


def main(words: Sequence[str]) -> None:
    """Divide the text of a folder; a sentence lies in it where that fails."""
    folder, devices = words
    try:
        _divide(folder, int(devices))
    except Exception as error:  # whatever the compiler raises
        said = " ".join(str(error).split()) or type(error).__name__
        Path(folder, FAILED).write_text(said[:300], encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
