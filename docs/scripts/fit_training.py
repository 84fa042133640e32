"""Fit what the software stacks and device families say of training to measured runs: host times, slowdown of products, attention.

    python docs/scripts/fit_training.py --data DIR [NAME ...]

DIR holds ``training_runs.csv`` and ``sources.csv``. Each fit frees a few physical parameters of one stack (in
templates/software) or family (in templates/families) and leaves all others as the files have them; the script prints what
it finds beside what stands there, the errors on the rows of the fit with both, and the errors with the parameters found on
a half of the models alone and tried on the other half. It writes nothing.

The model is the package's own (`crossflow.engine.runs.transformer`). The loss is the mean absolute logarithm of predicted over
measured time, each row's bounded so that single bad runs do not decide, searched by Nelder-Mead over the logarithms of the
parameters. Nothing is random.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.base.files import Document
from crossflow.cost.machine import Machine
from crossflow.engine.runs.transformer import transformer_step
from crossflow.evidence.validation import training
from crossflow.evidence.validation.report import errors
from crossflow.evidence.validation.tables import TableRow, read_rows
from crossflow.hardware.architecture.system import architecture, resolve

BOUND, EVALUATIONS, STEP = 0.5, 300, 0.3
ZERO = 1e-6  # where a parameter that stands at zero starts from


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Parameters of one file and the sources of runs that decide them; `execution` says whether the file is a family.

    Runs with a condition of their own decide that, and not what the stack says.
    """

    name: str
    sources: tuple[str, ...]
    devices: tuple[str, ...]
    free: tuple[str, ...]
    execution: bool = False
    condition: bool = False  # whether what is fitted is a condition of the sources, which measurements.yaml has, instead of the stack


FITS = (
    Fit(
        name="megatron-*", sources=("vtrain-2024", "bigscience-2022", "bigscience-2022-early", "megatron-sc21", "korthikanti-2022"),
        devices=("a100-80gb",), free=("product_slowdown",),
    ),
    Fit(
        name="pytorch-fsdp", sources=("llm-foundry",), devices=("a100-80gb", "a100-40gb"),
        free=("product_slowdown", "attention.forward_utilisation", "attention.backward_utilisation", "host.layer"),
    ),
    Fit(
        name="nvidia-hopper", sources=("llm-foundry",), devices=("h100-80gb",), free=("training_sensitivity", "earlier_instructions"),
        execution=True,
    ),
    Fit(name="nvidia-blackwell", sources=("simumax-b200-2026",), devices=("b200",), free=("training_sensitivity",), execution=True),
    Fit(
        name="nanotron", sources=("hf-ultrascale-2025-early",), devices=("h100-80gb",),
        free=("host.rank", "host.step"),
    ),
    Fit(name="hf-ultrascale-2025", sources=("hf-ultrascale-2025",), devices=("h100-80gb",), free=("host.rank",), condition=True),
    Fit(name="megatron-deepspeed-2022", sources=("bigscience-2022", "bigscience-2022-early"), devices=("a100-80gb",), free=("host.stall",)),
    Fit(name="megatron-deepspeed-2023", sources=("vtrain-2024",), devices=("a100-80gb",), free=("host.stall",)),
    Fit(
        name="megatron-core", sources=("simumax-b200-2026",), devices=("b200",),
        free=("attention.forward_utilisation", "attention.backward_utilisation", "host.kernel", "host.microbatch", "host.step"),
    ),
)  # fmt: skip


def main() -> None:
    """Run the fits that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    for fit in FITS:
        if not arguments.names or fit.name in arguments.names:
            show(fit, Runs.of(arguments.data, fit))


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Batches of runs of one fit, with their measured times and the model of each row."""

    batches: Sequence[training.Runs]
    measured: Array
    model: Sequence[str]

    @classmethod
    def of(cls, folder: Path, fit: Fit) -> Runs:
        """Rows of a fit that can be predicted and have a time."""
        rows = read_rows(folder / "training_runs.csv", training.COLUMNS)
        batches, _ = training.runs(folder, rows)
        first = [rows[batch.rows[0]] for batch in batches]
        about = {row["source"]: row for row in read_rows(folder / "sources.csv", training.SOURCE)}
        chosen = [
            batch
            for batch, row in zip(batches, first, strict=True)
            if row["source"] in fit.sources and row["device"] in fit.devices and fit.condition == has_condition(about, row["source"], batch)
        ]
        order = [i for batch in chosen for i in batch.rows]
        return cls(
            batches=chosen,
            measured=np.array([float(rows[i]["iter_time_s"] or "nan") for i in order]),
            model=[rows[i]["model"] for i in order],
        )


def has_condition(sources: Mapping[str, TableRow], source: str, batch: training.Runs) -> bool:
    """Whether runs have host times that are not those of their stack."""
    return batch.machine.stack.host.rank.item() != training.stack_of(sources, source).host.rank.item()


def show(fit: Fit, runs: Runs) -> None:
    """Print one fit."""
    start = current(fit, runs.batches[0].machine)
    everything = np.isfinite(runs.measured)
    found = search(fit, runs, start, everything)
    print(f"\n{fit.name}: {everything.sum()} runs of {', '.join(fit.sources)}")
    for name, old, new in zip(fit.free, start, found, strict=True):
        print(f"  {name:34} {old:12.5g} in the file {new:12.5g} fitted")
    print(f"  as filed   {told(runs, predict(fit, runs, start), everything)}")
    print(f"  fitted     {told(runs, predict(fit, runs, found), everything)}")
    models = sorted(set(runs.model))
    if len(models) > 1:
        first = np.array([models.index(model) % 2 == 0 for model in runs.model])
        apart = search(fit, runs, start, everything & first)
        print(f"  held out   {told(runs, predict(fit, runs, apart), everything & ~first)} (fitted on {', '.join(models[::2])})")


def told(runs: Runs, predicted: Array, mine: Mask) -> str:
    """Errors of some rows in a line."""
    found = errors(runs.measured[mine], predicted[mine])
    return "  ".join(f"{name} {100 * float(found[name] or 0):6.2f} %" for name in ("median_abs_error", "p90_abs_error", "bias"))


def search(fit: Fit, runs: Runs, start: Array, mine: Mask) -> Array:
    """Parameters with the least loss on some rows."""
    from scipy.optimize import minimize

    def loss(x: Array) -> float:
        ratio = np.log(predict(fit, runs, np.maximum(start, ZERO) * np.exp(x))[mine] / runs.measured[mine])
        return float(np.minimum(np.abs(ratio), BOUND).mean())

    simplex = np.vstack([np.zeros(len(start)), STEP * np.eye(len(start))])
    result = minimize(loss, np.zeros(len(start)), method="Nelder-Mead", options={"maxfev": EVALUATIONS, "initial_simplex": simplex})
    return np.asarray(np.maximum(start, ZERO) * np.exp(result.x))


def predict(fit: Fit, runs: Runs, values: Array) -> Array:
    """Step times of all rows with the parameters of a fit. [s]"""
    parts = [transformer_step(batch.job, batch.layout, changed(fit, batch.machine, values)).total for batch in runs.batches]
    return np.concatenate(parts)


def current(fit: Fit, machine: Machine) -> Array:
    """The parameters of a fit as the files have them."""
    holder: Any = machine.architecture.execution if fit.execution else machine.stack
    return np.array([float(np.ravel(functools.reduce(getattr, name.split("."), holder))[0]) for name in fit.free])


def changed(fit: Fit, machine: Machine, values: Array) -> Machine:
    """The machine with the parameters of a fit replaced."""
    settings = dict(zip(fit.free, values, strict=True))
    if fit.execution:
        own = machine.architecture
        spec, _ = resolve(Document(file=own.name, data={"template": own.name}))
        found = architecture(spec.model_copy(update={"execution": put(spec.execution, settings)}))
        return replace(machine, architecture=replace(found, intra=own.intra, inter=own.inter))
    return replace(machine, stack=put(machine.stack, settings))


def put(model: Any, settings: Mapping[str, float]) -> Any:
    """A file model with numbers at dotted paths replaced."""
    for path, value in settings.items():
        head, _, rest = path.partition(".")
        model = model.model_copy(update={head: put(getattr(model, head), {rest: value}) if rest else np.array([value])})
    return model


if __name__ == "__main__":
    main()
