"""Measured training runs: each row's model, plan, machine and software, and its predicted step time, memory and fate.

A row of ``training_runs.csv`` says what was trained and how it was divided; ``sources.csv`` says, for the source of a row,
which software it ran on which network. Shipped stacks are found by what tables call them, devices by their template.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from crossflow.answers.bands import scale_of, type_of
from crossflow.base import files
from crossflow.base.arrays import Array, Mask
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.files import Document
from crossflow.base.units import parse
from crossflow.cost.fabrics import fabric_of
from crossflow.cost.machine import Machine
from crossflow.engine.runs.memory import memory
from crossflow.engine.runs.transformer import transformer_step
from crossflow.evidence.validation.report import Table, errors
from crossflow.evidence.validation.tables import TableRow, collective_times, measurements, number, positive, read_rows, template_of, wrong
from crossflow.hardware.architecture.network import FabricKind
from crossflow.hardware.architecture.software import SoftwareStack, load_stack
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.legality import plan_problem
from crossflow.parallel.strategy.mesh import RECOMPUTE, Recompute
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.collectives import ring_volume
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec

COLUMNS = (
    "source", "model", "device", "gpus", "layers", "hidden", "heads", "ffn", "gated_ffn", "vocab", "seq", "global_batch", "micro_batch",
    "tp", "pp", "dp", "dtype", "iter_time_s",
)  # fmt: skip
# Whole numbers; of the later ones an empty cell stands for one, or none.
WHOLE = ("gpus", "layers", "hidden", "heads", "ffn", "vocab", "seq", "global_batch", "micro_batch")
DEGREES = ("tp", "pp", "dp", "cp", "ep", "virtual_stages", "zero_stage", "kv_heads", "gpus_per_node")
COUNTS_FROM_ZERO = ("zero_stage", "fsdp")
MODEL = ("layers", "hidden", "heads", "kv_heads", "ffn", "gated_ffn", "vocab", "tied_embeddings", "seq", "dtype")
SOURCE = ("source", "software", "intra_fabric", "inter_network", "inter_gbit_s_per_node")
# Networks as sources call them, where that is not the name of a kind of fabric.
NETWORKS = {"omni-path": "infiniband", "roce or infiniband": "roce", "": "none"}
SIZE = ("source", "model", "device", "layers", "hidden", "gpus", "global_batch", "seq")
LAYOUT = ("tp", "cp", "ep", "pp", "dp", "micro_batch", "virtual_stages", "zero_stage", "sequence_parallel", "recompute", "heads", "dtype")
DENSE = "training of dense language models"
LONG = 2.0**30  # message whose bandwidth tells the state of a cluster [B]
LAYOUTS = 3  # layouts of one model and size from which on their order is compared


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Rows that share model, machine and software, with their plans."""

    rows: tuple[int, ...]
    job: Job
    machine: Machine
    layout: Layout


@dataclass(frozen=True, kw_only=True)
class TrainingTable(Table):
    """Predictions of training runs; rows that ran out of memory have no measured time."""

    peak: Array  # memory that tensors took at most on the fullest device, NaN where it was not measured. [B]
    needed: Array  # the same as predicted. [B]
    ran: Mask  # whether a run did not end for lack of memory
    fits: Mask  # whether it was predicted to fit
    sizes: Sequence[str]  # model and size of every row
    layouts: Sequence[str]  # which of their layouts it is; runs of one layout repeat it

    def statistics(self, mine: Mask) -> dict[str, float | int | None]:
        """Errors of step times, order of layouts, error of memory, and how often what fits was told."""
        timed = mine & np.isfinite(self.measured)
        known = mine & np.isfinite(self.peak)
        found = errors(self.measured[timed], self.predicted[timed])
        space = errors(self.peak[known], self.needed[known])
        return {
            **found,
            "rank_correlation": rank_correlation(
                self.measured[timed], self.predicted[timed], np.array(self.sizes)[timed], np.array(self.layouts)[timed]
            ),
            "memory_n": space["n"],
            "memory_median_abs_error": space["median_abs_error"],
            "memory_bias": space["bias"],
            "oom_n": int((mine & ~self.ran).sum()),
            "oom_accuracy": float((self.fits == self.ran)[mine].mean()) if mine.any() else None,
            "oom_recall": float((~self.fits)[mine & ~self.ran].mean()) if (mine & ~self.ran).any() else None,
        }


def rank_correlation(measured: Array, predicted: Array, sizes: Any, layouts: Any) -> float | None:
    """Spearman's correlation over the layouts of one model and size, in the mean of all sizes, weighed by their layouts.

    Runs that repeat a layout are one, their median: they differ by what no model of a layout can know.
    """
    from scipy.stats import spearmanr

    weighed = []
    for size in np.unique(sizes):
        here = np.unique(layouts[sizes == size])
        pairs = [(np.median(measured[mine]), np.median(predicted[mine])) for mine in ((sizes == size) & (layouts == name) for name in here)]
        if len(pairs) >= LAYOUTS and all(len(set(times)) > 1 for times in zip(*pairs, strict=True)):
            weighed.append((float(spearmanr(*zip(*pairs, strict=True)).statistic), len(pairs)))
    return float(np.average([rank for rank, _ in weighed], weights=[n for _, n in weighed])) if weighed else None


def training_table(folder: Path) -> Table:
    """Measured training runs of ``training_runs.csv``, with the software and the networks of ``sources.csv``."""
    file = folder / "training_runs.csv"
    rows = read_rows(file, COLUMNS)
    check_whole(file, rows, WHOLE, DEGREES)
    found, reasons = runs(folder, rows)
    predicted, needed, fits = (np.full(len(rows), np.nan) for _ in range(3))
    for group in found:
        at = list(group.rows)
        predicted[at] = transformer_step(group.job, group.layout, group.machine).total
        held = memory(group.job, group.layout, group.machine)
        moment = measurements().get(rows[at[0]]["source"], {}).get("memory_moment")
        needed[at], fits[at] = held.update if moment == "update" else held.allocated, held.fits
    stacks = {rows[group.rows[0]]["source"]: group.machine.stack.name for group in found}
    measured, ran = _seconds(file, rows), np.array([row.get("status") != "oom" for row in rows], dtype=bool)
    kept = np.isfinite(predicted) & (np.isfinite(measured) | ~ran)
    untimed = int((np.isfinite(predicted) & ~kept).sum())
    reasons += ["no time was measured and the run did not end for lack of memory"] * untimed
    chosen = [row for row, keep in zip(rows, kept, strict=True) if keep]
    return TrainingTable(
        name="training_runs",
        measured=measured[kept],
        predicted=predicted[kept],
        groups={
            "source": [row["source"] for row in chosen],
            "device": [row["device"] for row in chosen],
            "source and model": [f"{row['source']}, {row['model']}" for row in chosen],
            "kind": [DENSE] * len(chosen),
            "type": [type_of(row["dtype"]) for row in chosen],
            "stack": [stacks[row["source"]] for row in chosen],
            "scale": [scale_of(int(row["gpus"])) for row in chosen],
        },
        skipped=Counter(reasons),
        peak=np.array([_peak(file, row) for row in chosen]),
        needed=needed[kept],
        ran=ran[kept],
        fits=fits[kept] > 0,
        items=[", ".join(row.get(column) or "" for column in SIZE) for row in chosen],
        sizes=[", ".join(row.get(column) or "" for column in SIZE) for row in chosen],
        layouts=[", ".join(row.get(column) or "" for column in LAYOUT) for row in chosen],
    )


def _seconds(file: Path, rows: Sequence[TableRow]) -> Array:
    """Measured step times; NaN where a cell is empty. [s]"""
    measured = [i for i, row in enumerate(rows) if row["iter_time_s"]]
    result = np.full(len(rows), np.nan)
    result[measured] = positive(file, [rows[i] for i in measured], "iter_time_s")
    return result


def check_whole(file: Path, rows: Sequence[TableRow], needed: Sequence[str], optional: Sequence[str]) -> None:
    """SpecError with every cell that is to hold a whole number and holds something else; `optional` ones may be empty."""
    problems = [
        wrong(file, row, column, "a positive whole number")
        for row in rows
        for column in (*needed, *optional)
        if not (text := row.get(column) or ("" if column in needed else "1")).isdecimal()
        or (column not in COUNTS_FROM_ZERO and int(text) == 0)
    ]
    if problems:
        raise SpecError(problems)


def _peak(file: Path, row: TableRow) -> float:
    """Measured peak memory of a run that ended. [B]"""
    if not row.get("peak_memory_gib") or row.get("status") == "oom":
        return float("nan")
    return number(file, row, "peak_memory_gib") * 2.0**30


# -------------------------------------------------------------------------------------------- rows


def runs(folder: Path, rows: Sequence[TableRow]) -> tuple[list[Runs], list[str]]:
    """Rows that can be predicted, in batches of one model, machine and software, and why the others cannot."""
    sources = {row["source"]: row for row in read_rows(folder / "sources.csv", SOURCE)} if (folder / "sources.csv").is_file() else {}
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, row in enumerate(rows):
        key = tuple((column, row.get(column) or "") for column in MODEL)
        groups.setdefault((row["source"], row["device"], row.get("gpus_per_node") or "8", key), []).append(i)
    found, reasons = [], []
    for (source, device, node, key), members in groups.items():
        try:
            found_here, problems = _batch(rows, members, sources, source, device, int(node), key)
        except (CrossflowError, ValueError) as error:
            reasons += [str(error)] * len(members)
            continue
        found += found_here
        reasons += problems
    return found, reasons


def _batch(
    rows: Sequence[TableRow],
    members: Sequence[int],
    sources: Mapping[str, TableRow],
    source: str,
    device: str,
    node: int,
    key: tuple[Any, ...],
) -> tuple[list[Runs], list[str]]:
    """Runs of one model on one machine, and why some of them cannot be."""
    if source not in sources:
        raise CrossflowError(f"source '{source}' is not in sources.csv")
    stack = stack_of(sources, source)
    spec = _model(key)
    model = spec.transformer()
    good, reasons = [], []
    for i in members:
        try:
            plan = plan_of(rows[i])
        except CrossflowError as error:
            reasons.append(str(error))
            continue
        balanced, elements = stack.stages == "balanced", stack.residual == "elements"
        problem = plan_problem(plan, model, int(rows[i]["global_batch"]), balanced=balanced, elements=elements)
        if plan.devices != int(rows[i]["gpus"]):
            problem = f"tp x cp x dp x pp = {plan.devices}, but gpus = {rows[i]['gpus']}"
        if problem is None:
            good.append((i, plan))
        else:
            reasons.append(f"cannot be divided: {problem}")
    if not good:
        return [], reasons
    machine, known = machine_of(device, sources[source], node, stack), measurements().get(source, {})
    states = [(_degraded(rows[i], machine, known), int(rows[i]["gpus"]) > node) for i, _ in good]
    found = []
    for degraded, apart in sorted(set(states)):
        mine = [run for run, own in zip(good, states, strict=True) if own == (degraded, apart)]
        conditions = measurements()[known["degraded"]["as"]] if degraded else known
        batch = np.array([float(rows[i]["global_batch"]) for i, _ in mine])
        found.append(
            Runs(
                rows=tuple(i for i, _ in mine),
                job=Job(model=model, dtype=spec.dtype, dropout=bool(conditions.get("dropout", False))),
                machine=replace(machine, stack=_hosted(stack, conditions, apart=apart)),
                layout=Layout.of([plan for _, plan in mine], batch, node),
            )
        )
    return found, reasons


def _degraded(row: TableRow, machine: Machine, conditions: Mapping[str, Any]) -> bool:
    """Whether a job of a source that tells them apart ran on a degraded cluster: by its own all-reduce over all its GPUs.

    A job is degraded whose all-reduce reached less than a share of the bandwidth that is predicted for it. Both are those of a ring's
    traffic over the time of a long message, as nccl-tests counts them (`busbw`).
    """
    if "degraded" not in conditions or not row.get("all_reduce_gb_s"):
        return False
    ranks, size = int(row["gpus"]), np.full((1, 1), LONG)
    fabric = fabric_of(machine.network, machine.architecture, machine.node)
    time = collective_times(fabric, "all_reduce", ranks, min(ranks, machine.node), size)
    assert not isinstance(time, str)  # an all-reduce among whole nodes is known everywhere
    expected = ring_volume("all_reduce", ranks) * LONG / float(time[0, 0])
    return bool(float(row["all_reduce_gb_s"]) * 1e9 < float(conditions["degraded"]["all_reduce"]) * expected)


def _hosted(stack: SoftwareStack, conditions: Mapping[str, Any], *, apart: bool) -> SoftwareStack:
    """A stack with the host times that are a condition of the source of its runs, of some sources of those on several nodes `apart`."""
    if conditions.get("host_apart") and not apart:
        return stack
    times = {name: np.array([parse(text, "s")]) for name, text in conditions.get("host", {}).items()}
    return stack.model_copy(update={"host": stack.host.model_copy(update=times)})


def whole(row: TableRow, column: str, default: int = 1) -> int:
    """A whole number of a row, or what it is where the table does not say."""
    return int(row[column]) if row.get(column) else default


@functools.lru_cache(maxsize=256)
def _model(key: tuple[tuple[str, str], ...]) -> TransformerSpec:
    """Model of a run: gated MLPs as in Llama, others as in GPT."""
    row = dict(key)
    gated = row["gated_ffn"] == "1"
    values = {
        "model": "transformer", "layers": int(row["layers"]), "hidden": int(row["hidden"]), "heads": int(row["heads"]),
        "kv_heads": int(row["kv_heads"] or row["heads"]), "ffn": int(row["ffn"]), "gated": gated, "vocabulary": int(row["vocab"]),
        "tied_embeddings": row["tied_embeddings"] != "0", "sequence": int(row["seq"]), "positions": "rotary" if gated else "learned",
        "norm": "rmsnorm" if gated else "layernorm", "biases": not gated, "global_batch": 1, "dtype": row["dtype"],
    }  # fmt: skip
    return TransformerSpec.model_validate(values)


def plan_of(row: TableRow) -> Plan:
    """How a run was divided."""
    return Plan(
        tp=whole(row, "tp"), cp=whole(row, "cp"), ep=whole(row, "ep"), dp=whole(row, "dp"), pp=whole(row, "pp"),
        zero=whole(row, "zero_stage", 0), sequence_parallel=row.get("sequence_parallel") == "1", micro_batch=int(row["micro_batch"]),
        virtual_stages=whole(row, "virtual_stages"), recompute=recompute_of(row.get("recompute") or "none"),
    )  # fmt: skip


def recompute_of(text: str) -> Recompute:
    """What a run recomputed; CrossflowError for a word that is none of ours."""
    for known in RECOMPUTE:
        if text == known:
            return known
    raise CrossflowError(f"recompute must be one of {', '.join(RECOMPUTE)}, got '{text}'")


# -------------------------------------------------------------------------------------------- software and machine


@functools.cache
def known_stacks() -> Mapping[str, str]:
    """Shipped stacks by what tables call them, in small letters."""
    return {alias.lower(): name for name in files.catalogue("templates", "software") for alias in (name, *load_stack(name)[0].known_as)}


def stack_of(sources: Mapping[str, TableRow], source: str) -> SoftwareStack:
    """Software of a source: by its exact name, as that of another source, or the stack with which it shares most words.

    Raises
    ------
    CrossflowError
        When no stack shares the first word, the name of the framework.
    """
    text = sources[source]["software"].strip().lower()
    other = text.removeprefix("as ")
    if other in sources and other != source:
        return stack_of(sources, other)
    known = known_stacks()
    if text in known:
        return load_stack(known[text])[0]
    words = _words(text)
    likeness = {
        alias: len(words & _words(alias)) for alias in known if any(word.isalpha() or "-" in word for word in words & _words(alias))
    }
    if not likeness:
        raise CrossflowError(f"no software stack is known as '{sources[source]['software']}'")
    return load_stack(known[max(likeness, key=lambda alias: likeness[alias])])[0]


def _words(text: str) -> frozenset[str]:
    """Words of a framework's name and date that tell it from others."""
    return frozenset(re.findall(r"[a-z0-9][a-z0-9.-]*", text)) - {"and", "pytorch", "composer"} | (
        frozenset({"fsdp"}) if "fsdp" in text else frozenset()
    )


def machine_of(device: str, source: TableRow, node: int, stack: SoftwareStack) -> Machine:
    """Machine of a source's runs: the device's template, with the fabric and the network of the source's row."""
    name = template_of(device)
    if name is None:
        raise CrossflowError(f"no template for device '{device}'")
    network = source["inter_network"].strip().lower()
    inter: dict[str, Any] = {"fabric": NETWORKS.get(network, network.split()[0] if network else "none")}
    intra = source["intra_fabric"].strip().lower() or "none"
    for kind in (intra, inter["fabric"]):
        if kind not in get_args(FabricKind):
            raise CrossflowError(f"unknown fabric '{kind}' of source '{source['source']}'")
    if source["inter_gbit_s_per_node"].strip():
        inter["bandwidth"] = f"{_gigabits(source['inter_gbit_s_per_node'], device) / 8 / node} GB/s"
    data = {"template": name, "devices_per_node": node, "network": {"intra": {"fabric": intra}, "inter": inter}}
    spec, _ = resolve(Document(file=device, data=data))
    return Machine(architecture=architecture(spec), network=spec.network, node=node, stack=stack)


def _gigabits(text: str, device: str) -> float:
    """Network of a node, by device where the table tells them apart: ``1600 for A100 and 3200 for H100``. [Gbit/s]"""
    by_device = re.findall(r"([\d.]+) for ([\w-]+)", text)
    for amount, name in by_device:
        if device.lower().startswith(name.lower()):
            return float(amount)
    found = re.search(r"[\d.]+", text)
    if found is None or by_device:
        raise CrossflowError(f"no network of {device} in '{text}'")
    return float(found.group())
