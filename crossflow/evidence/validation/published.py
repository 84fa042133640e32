"""Training rates that submitters and makers publish, such as ``mlperf_training.csv``, each row as `predict` has it.

A row says the model, the system and most of the layout; ``published.yaml`` says how scenarios call them, and what recipes of the
maker turn on: modules that are computed again, how tokens travel to experts, graphs, and tensors on the host. Where no recipe is known it
is supposed that a run did nothing of that, and a run that is predicted not to fit is counted as such. LoRA freezes all weights but
adapters, which are no part of the model here: the first layer is trained in their place, so that gradients pass all layers and no other
weight has one.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.bands import scale_of, type_of
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.likeness import kind_of
from crossflow.answers.scenario import check_strategy, from_dict
from crossflow.base import files
from crossflow.base.errors import CrossflowError, StrategyError
from crossflow.evidence.validation.report import Table
from crossflow.evidence.validation.tables import TableRow, above_zero, by_maker, read_rows, shipped
from crossflow.evidence.validation.training import TrainingTable, check_whole, whole

LAYOUT = ("tp", "cp", "ep", "pp", "dp", "mbs", "micro_batch", "vp", "etp", "fsdp", "precision", "mode", "checkpoint", "release", "round")
DEGREES = ("gpus", "gbs", "mbs", "global_batch", "micro_batch", "seq", "tp", "pp", "cp", "vp", "ep", "etp", "dp", "fsdp", "gpus_per_node")
MLPERF = (
    "id", "round", "submitter", "accelerator", "gpus", "gpus_per_node", "benchmark", "global_batch", "micro_batch", "seq", "tp", "pp", "cp",
    "vp", "ep", "dp", "precision", "lora", "step_time_s",
)  # fmt: skip
PUBLISHED = (
    "id",
    "release",
    "task",
    "model",
    "system",
    "gpus",
    "precision",
    "gbs",
    "mbs",
    "seq",
    "tp",
    "pp",
    "cp",
    "vp",
    "ep",
    "etp",
    "fsdp",
    "tokens_per_s_gpu",
)


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """What a row says, in the words of a scenario."""

    source: str  # of the row, in the report
    model: str  # as the table calls it
    device: str
    size: str  # model and machine, of which layouts are ranked
    time: float  # of a step. [s]
    data: Mapping[str, Any]  # the scenario

    @property
    def stack(self) -> str:
        """Software, without what the recipe changes of it."""
        software = self.data["software"]
        return software if isinstance(software, str) else str(software["like"])


def mlperf_table(folder: Path) -> Table:
    """MLPerf training: measured seconds of a step."""
    return _table(folder / "mlperf_training.csv", MLPERF, mlperf_run)


def accelerators_table(folder: Path) -> Table:
    """Training on chips of other makers than NVIDIA: measured seconds of a step, in the columns of MLPerf."""
    return by_maker(_table(folder / "accelerators_training.csv", MLPERF, mlperf_run))


def published_table(folder: Path) -> Table:
    """Training rates of Megatron-Bridge."""
    return _table(folder / "published_training.csv", PUBLISHED, published_run)


def torchtitan_table(folder: Path) -> Table:
    """Training rates of torchtitan."""
    return _table(folder / "torchtitan_training.csv", (*PUBLISHED, "mode", "checkpoint"), torchtitan_run)


def maxtext_table(folder: Path) -> Table:
    """Training rates of MaxText on TPUs."""
    return _table(folder / "maxtext_training.csv", (*PUBLISHED, "checkpoint"), maxtext_run)


def _table(file: Path, columns: Sequence[str], read: Callable[[Path, TableRow], PublishedRun]) -> Table:
    """Every row as `predict` has it, or the reason why it is not."""
    rows = read_rows(file, columns)
    check_whole(file, rows, (), [column for column in DEGREES if column in columns])
    kept, reasons = [], []
    for row in rows:
        try:
            run = read(file, row)
            kept.append((row, run, *predicted(json.dumps(run.data, sort_keys=True))))
        except CrossflowError as error:
            reasons.append(str(error))
    runs = [run for _, run, *_ in kept]
    return TrainingTable(
        name=file.stem,
        measured=np.array([run.time for run in runs]),
        predicted=np.array([time for _, _, time, *_ in kept], dtype=float),
        groups={
            "source": [run.source for run in runs],
            "device": [run.device for run in runs],
            "model": [run.model for run in runs],
            "kind": [kind for *_, kind in kept],
            "type": [type_of(run.data["workload"]["dtype"]) for run in runs],
            "stack": [run.stack for run in runs],
            "scale": [scale_of(int(row["gpus"])) for row, *_ in kept],
        },
        skipped=Counter(reasons),
        peak=np.full(len(runs), np.nan),
        needed=np.full(len(runs), np.nan),
        ran=np.ones(len(runs), dtype=bool),
        fits=np.array([fits for *_, fits, _ in kept], dtype=bool),
        items=[run.size for run in runs],
        sizes=[run.size for run in runs],
        layouts=[", ".join(row.get(column) or "" for column in LAYOUT) for row, *_ in kept],
    )


@functools.lru_cache(maxsize=4096)
def predicted(text: str) -> tuple[float, bool, str]:
    """Time of a step of a scenario written as JSON, whether it fits, and what kind of run it is. [s]

    CrossflowError where the layout cannot be.
    """
    scenario = from_dict(json.loads(text))
    try:
        check_strategy(scenario)
    except StrategyError as error:
        raise CrossflowError(f"cannot be divided: {error}") from None
    score = evaluate(scenario)
    return float(score.step_time[0]), bool(score.feasible[0]), kind_of(scenario.workload)


@functools.cache
def words() -> Mapping[str, Any]:
    """How scenarios call what the tables name."""
    return dict(files.read_yaml(shipped() / "published.yaml").data)


def _known(section: str, name: str, what: str) -> Any:
    """What a scenario calls something; CrossflowError where nothing is known of it."""
    if name not in words()[section]:
        raise CrossflowError(f"no {what} for '{name}'")
    return words()[section][name]


def mlperf_run(file: Path, row: TableRow) -> PublishedRun:
    """A run of MLPerf, or of another source that has its columns."""
    recommends = row["benchmark"] in words()["recommendation"]
    data = _recommendation(row) if recommends else _scenario(
        row, model=row["benchmark"], system=row["accelerator"], batch="global_batch", micro="micro_batch", release=("mlperf", row["round"]),
        lora=row["lora"] == "1",
    )  # fmt: skip
    return PublishedRun(
        source=row.get("source") or f"MLPerf {row['round']}", model=row["benchmark"], device=row["accelerator"],
        time=above_zero(file, row, "step_time_s"),
        size=", ".join((row["benchmark"], row["accelerator"], row["gpus"], row["global_batch"])), data=data,
    )  # fmt: skip


def published_run(file: Path, row: TableRow) -> PublishedRun:
    """A run of Megatron-Bridge."""
    return _rated(file, row, "bridge", "Megatron Bridge")


def torchtitan_run(file: Path, row: TableRow) -> PublishedRun:
    """A run of torchtitan."""
    return _rated(file, row, "torchtitan", "torchtitan")


def maxtext_run(file: Path, row: TableRow) -> PublishedRun:
    """A run of MaxText."""
    return _rated(file, row, "maxtext", "MaxText")


def _rated(file: Path, row: TableRow, maker: str, title: str) -> PublishedRun:
    """A run of which a table has tokens a second and GPU."""
    data = _scenario(
        row, model=row["model"], system=row["system"], batch="gbs", micro="mbs", release=(maker, row["release"]),
        lora=row["task"].startswith("LoRA"),
    )  # fmt: skip
    tokens = data["workload"]["global_batch"] * data["workload"]["sequence"]
    return PublishedRun(
        source=f"{title} {row['release']}", model=row["model"], device=_device(row["system"]),
        time=tokens / (int(row["gpus"]) * above_zero(file, row, "tokens_per_s_gpu")),
        size=", ".join((row["model"], row["task"], row["system"], row["gpus"], row["gbs"], row["seq"])), data=data,
    )  # fmt: skip


def _scenario(row: TableRow, *, model: str, system: str, batch: str, micro: str, release: tuple[str, str], lora: bool) -> dict[str, Any]:
    """The scenario of a row: its layout on its system, with the software of its release."""
    about, machine = dict(_known("models", model, "model")), _machine(row, system)
    gpus, chunks = whole(row, "gpus"), about.pop("chunks", {})
    about_row = {
        "models": model, "systems": system, "precisions": row["precision"], "sharded": row.get("fsdp") or "0",
        "tasks": (row.get("task") or "").partition(" ")[0],
    }  # fmt: skip
    recipe = _recipe(*release, {**about_row, "modes": row.get("mode") or "", "checkpoints": row.get("checkpoint") or ""})
    stack = recipe["stack"] or _stack(*release)
    workload = {
        **about, "global_batch": whole(row, batch), "sequence": whole(row, "seq"),
        "dtype": _known("precisions", row["precision"], "number format"), **recipe["workload"],
    }  # fmt: skip
    if lora:
        workload["frozen"] = ["embedding", "head", f"layers:1-{_depth(about['model']) - 1}"]
    return {
        "system": machine,
        "workload": workload,
        "strategy": {
            **_plan(row, gpus, whole(row, micro)),
            **chunks.get(str(whole(row, "pp") * whole(row, "vp")), {}),
            **recipe["strategy"],
        },
        "software": {"like": stack, **recipe["software"]} if recipe["software"] else stack,
    }


def _device(system: str) -> str:
    """The device of a system, which tables call by its own name or by that of a slice of a pod."""
    return str(_known("systems", system, "system").get("device", system))


def _machine(row: TableRow, system: str) -> dict[str, Any]:
    """The system of a row, in nodes of the GPUs that NVLink joins."""
    machine, gpus = dict(_known("systems", system, "system")), whole(row, "gpus")
    machine.pop("device", None)
    node = _node(gpus, machine.pop("domain", None) or whole(row, "gpus_per_node", min(8, gpus)))
    return {**machine, "devices_per_node": node, "nodes": gpus // node}


def _recommendation(row: TableRow) -> dict[str, Any]:
    """The scenario of a row of a recommendation model, of whose layout and number formats no column speaks."""
    about, machine = words()["recommendation"][row["benchmark"]], _machine(row, row["accelerator"])
    if told := [name for name in ("precision", "tp", "pp", "cp", "ep", "micro_batch") if row.get(name)]:
        raise CrossflowError(f"{', '.join(told)} of a recommendation model: its layout and number formats are those of published.yaml")
    workload = {**about["workload"], "global_batch": whole(row, "global_batch")}
    strategy = about["strategies"]["one node" if machine["nodes"] == 1 else "several nodes"]
    return {"system": machine, "workload": workload, "strategy": strategy, "software": about["software"]}


def _recipe(maker: str, release: str, about: Mapping[str, str]) -> dict[str, Any]:
    """What recipes of a release change in software, strategy and workload, and another stack where they have one; later entries count.

    Parameters
    ----------
    about : what a row is, by the key with which entries ask for it.
    """
    found: dict[str, Any] = {"stack": "", "software": {}, "strategy": {}, "workload": {}}
    for entry in words()["recipes"]:
        asked = {"makers": maker, **about}
        if any(value not in entry.get(key, (value,)) for key, value in asked.items()):
            continue
        if _dated(release) < _dated(entry.get("from", "0")) or ("before" in entry and _dated(release) >= _dated(entry["before"])):
            continue
        found["stack"] = entry.get("stack", found["stack"])
        for part in ("software", "strategy", "workload"):
            found[part] = {**found[part], **entry.get(part, {})}
    return found


def _plan(row: TableRow, gpus: int, micro: int) -> dict[str, Any]:
    """How a row divides its model; data ranks are those that tensor, context and pipeline ranks leave."""
    tensor, rest = whole(row, "tp"), whole(row, "cp") * whole(row, "pp")
    if gpus % (tensor * rest):
        raise CrossflowError(f"tp x cp x pp = {tensor * rest} does not divide gpus = {gpus}")
    experts = {"ep": whole(row, "ep"), "etp": whole(row, "etp")} if whole(row, "ep") > 1 else {}
    data, sharing = gpus // (tensor * rest), whole(row, "fsdp", 0)
    replicas = {"shard_group": sharing} if 1 < sharing < data else {}
    return {
        "tp": tensor, "cp": whole(row, "cp"), "pp": whole(row, "pp"), "dp": data, **experts, **replicas, "micro_batch": micro,
        "virtual_stages": whole(row, "vp"), "zero": 3 if sharing else 1, "sequence_parallel": tensor > 1,
    }  # fmt: skip


def _node(gpus: int, domain: int) -> int:
    """GPUs that NVLink joins: the most of a domain of which a job has whole ones."""
    return max(size for size in range(1, min(domain, gpus) + 1) if gpus % size == 0)


@functools.cache
def _depth(preset: str) -> int:
    """Layers of a shipped model."""
    return int(files.read_yaml(files.find("templates", preset, None, "models")).data["layers"])


def _stack(maker: str, release: str) -> str:
    """Software of a release: of the newest entry that is not newer."""
    known = words()["software"][maker]
    before = [name for name in known if _dated(name) <= _dated(release)]
    if not before:
        raise CrossflowError(f"no release '{release}' is known")
    return str(known[max(before, key=_dated)])


def _dated(release: str) -> tuple[int, ...]:
    """A release as numbers.

    >>> _dated("26.02.01") > _dated("26.02") > _dated("4.1")
    True
    """
    return tuple(int(part) for part in re.findall(r"\d+", release))
