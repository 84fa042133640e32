"""Texts of XLA, which JAX writes, as programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from crossflow.base import packages
from crossflow.base.errors import CrossflowError, Problem, SpecError, did_you_mean
from crossflow.base.files import read_text
from crossflow.base.units import parse
from crossflow.evidence.jax import phases
from crossflow.evidence.jax.build import dtype_of, groups_in, program_of_text
from crossflow.evidence.jax.fusion import fuse, whole
from crossflow.evidence.jax.hlo import read_hlo
from crossflow.evidence.jax.partition import divided
from crossflow.evidence.jax.schedule import divide_sums, reorder
from crossflow.evidence.jax.stablehlo import read_stablehlo
from crossflow.evidence.jax.steps import TracedText, steps_in
from crossflow.evidence.jax.text import HloModule, TextError
from crossflow.evidence.jax.trace import Costs, trace
from crossflow.program.mesh import mesh_of
from crossflow.program.program import Program

SUFFIXES = (".mlir", ".stablehlo", ".hlo")
KERNELS = ("fused", "eager")
PASS = "pass"  # a cost: what is read and written, once
NOTED = 0.02  # share of the operations in another type that is told of


@dataclass(frozen=True, kw_only=True)
class ImportedText:
    """A text of XLA as a program, with sentences on what was taken for granted."""

    program: Program
    notes: tuple[str, ...]


def is_xla_text(path: Path) -> bool:
    """Whether a file is meant for a text of XLA, by its name or by its first word."""
    if path.name.endswith(SUFFIXES):
        return True
    if path.suffix != ".txt":
        return False
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(64).lstrip().startswith(("HloModule", "module @", "module {", "#loc"))
    except OSError:
        return False


def import_text(
    path: str | Path, *, name: str = "", samples: int | None = None, kernels: str = "fused", trips: int | None = None,
    costs: Iterable[str] = (),
) -> ImportedText:  # fmt: skip
    """The program of a file with HLO or StableHLO text.

    Parameters
    ----------
    path : of the file; JAX and what it needs are not read.
    name : of the program; that of the file where empty.
    samples : samples of a step over all devices, where the inputs do not say it. [1]
    kernels : fused joins passes as XLA does; eager leaves each operation to itself.
    trips : of loops whose trips the text does not say. [1]
    costs : of calls that are not known, each ``name=operations,bytes`` or ``name=pass``.

    Raises
    ------
    SpecError
        With the line of what is wrong with the text, and the cure.
    """
    check_options(kernels, costs)
    source = Path(path)
    text = read_text(source)
    try:
        found = imported(text, name=name or source.name.partition(".")[0], samples=samples, kernels=kernels, trips=trips, costs=costs)
    except TextError as error:
        raise SpecError([Problem(file=str(path), line=error.line, message=error.message)]) from None
    except CrossflowError as error:
        raise SpecError([Problem(file=str(path), message=str(error))]) from None
    return found


def check_options(kernels: str, costs: Iterable[str]) -> None:
    """CrossflowError for words that mean nothing."""
    if kernels not in KERNELS:
        raise CrossflowError(f"kernels: expected one of {', '.join(KERNELS)}, got '{kernels}'{did_you_mean(kernels, KERNELS)}")
    costs_of(costs)


def imported(
    text: str, *, name: str, samples: int | None = None, kernels: str = "fused", trips: int | None = None, costs: Iterable[str] = ()
) -> ImportedText:
    """The same of the text itself; TextError where it is none."""
    check_options(kernels, costs)
    module, notes = module_of(text), list[str]()
    if module.undivided is not None:
        module, notes = _divided(text, module)
    traced = trace(module, costs_of(costs), trips)
    given = phases.parameters_of(traced, module)
    phases.set_phases(traced, trains=given.trains)
    if kernels == "fused":
        if not module.ordered:
            divide_sums(traced)
        fuse(traced)
        if not module.ordered:
            reorder(traced)
    else:
        whole(traced)
    dtype, others = dtype_of(traced)
    mesh = mesh_of(groups_in(traced), module.devices, module.axes)
    known, tokens = phases.samples_of(traced, given)
    every = samples or known
    if every is None:
        why = "their first dimensions differ" if phases.INPUTS in given.kinds else "none of its parameters is known to be one"
        raise CrossflowError(f"the inputs of the text do not say how many samples a step has, for {why}; give --samples N")
    program = program_of_text(traced, given, mesh, name=name, dtype=dtype, samples=every, tokens=tokens)
    return ImportedText(program=program, notes=(*notes, *traced.notes, *_notes(traced, module, dtype, others)))


def module_of(text: str) -> HloModule:
    """A text in either language."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    if first.startswith("HloModule"):
        return read_hlo(text)
    if first.lstrip().startswith(("module", "#loc")):
        return read_stablehlo(text)
    raise TextError(1, "expected HLO, which begins with 'HloModule', or StableHLO, which begins with 'module'; " + WRITE)


def _divided(text: str, module: HloModule) -> tuple[HloModule, list[str]]:
    """The text of one device, from a text with the sizes of all; TextError with the cure where JAX is not there to divide it."""
    devices = module.devices
    if not packages.there("jax"):
        raise TextError(
            module.undivided or 1,
            f"the text has the sizes of all {devices} devices together, before the compiler divides them; install JAX, and the import "
            "divides it (pip install 'crossflow[jax]'), or write the text after it: `lowered.compile().as_text()`, on a machine of one "
            f"processor with XLA_FLAGS=--xla_force_host_platform_device_count={devices} in the environment",
        )
    made = read_hlo(divided(text, devices))
    note = f"the text had the sizes of all {devices} devices together; JAX's compiler divided it as its shardings say"
    return replace(made, axes=module.axes or made.axes), [note]


WRITE = "write it with `lowered.compile().as_text()` or `lowered.as_text()`"


def costs_of(given: Iterable[str]) -> Costs:
    """Costs by name."""
    found: dict[str, tuple[float, float] | None] = {}
    for one in given:
        name, _, cost = one.rpartition("=")
        if name in found:
            raise CrossflowError(f"--cost {name}: is given twice; leave one of them out")
        parts = [part.strip() for part in cost.split(",")]
        try:
            found[name] = None if parts == [PASS] else (_amount(parts[0], "flop"), _amount(parts[1], "B"))
        except (ValueError, IndexError):
            name = ""
        if not name or len(parts) > 2:
            raise CrossflowError(f"--cost: expected name=FLOPS,BYTES, such as 'attention=12 Gflop,3 MB', or name={PASS}, got '{one}'")
    return found


def _amount(text: str, unit: str) -> float:
    value = float(text) if text.replace(".", "", 1).replace("e", "", 1).replace("+", "", 1).isdecimal() else parse(text, unit)
    if value < 0:
        raise ValueError(text)
    return value


def _notes(text: TracedText, module: HloModule, dtype: str, others: float) -> list[str]:
    """What the reader of the program should know of it."""
    found = []
    if others > NOTED:
        found.append(f"{others:.0%} of the operations of products are in another type than {dtype}, in which all are priced")
    widened = sum(step.promoted for step in steps_in(text.items)) if module.ordered else 0
    if widened:
        found.append(
            f"{widened} messages carry fp32 that a compiler for CPUs made of fewer bits; the text after partitioning has their own types: "
            "compile with compiler_options={'xla_dump_to': FOLDER, 'xla_dump_hlo_pass_re': 'spmd-partitioning'}"
        )
    if module.partitions > 1 and not any(one.shards for _, one in text.arguments):
        found.append("the text does not say how its parameters are divided; they are counted as those of one device")
    return found
