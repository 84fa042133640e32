"""What a scenario is like among measured runs, and the band of error of each of its points."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow import files
from crossflow.architecture.template import DatasheetSystem, SystemSpec
from crossflow.arrays import Array, Mask
from crossflow.bands import FIGURES_OF_A_BAND, LARGEST, SCALES, Likeness, band_of, scale_of, type_of
from crossflow.errors import CrossflowError
from crossflow.evaluation.members import Members
from crossflow.scenario import Scenario
from crossflow.strategy.reading import Workload
from crossflow.workload.spec import DlrmSpec, GemmSpec, TransformerSpec

# Of a scenario's system, what leaves the device itself as it is in its template.
AROUND = {
    "template", "name", "title", "notes", "devices", "nodes", "devices_per_node", "max_nodes", "network", "host", "operation",
    "node_power", "node_load",
}  # fmt: skip
OF_A_FILE = {"kind", "device", "sources"}  # and of the file of a system
# Kinds of runs, and what `measured` of a device's template calls the measurements that predictions of the kind rest on.
MEASURED = {
    "matrix products": "gemm",
    "training of dense language models": "training",
    "training of mixtures of experts": "training",
    "training of other transformers": "training",
    "training of recommendation models": "recommendation",
    "serving, reading prompts": "gemm",
    "serving, writing tokens": "gemm",
    "attention kernels": "gemm",
    "expert kernels": "gemm",
    "kernels of training": "gemm",
}


def kind_of(workload: Workload) -> str:
    """Kind of a workload; nothing for one of which no kind of run was ever measured."""
    if isinstance(workload, GemmSpec):
        return "matrix products" if workload.task == "forward" else ""
    if isinstance(workload, DlrmSpec):
        return "training of recommendation models"
    if not isinstance(workload, TransformerSpec):
        return ""
    if workload.task != "training":
        return "serving, writing tokens" if workload.step == "decode" else "serving, reading prompts"
    decodes = workload.head == "language" and workload.causal and workload.encoder is None and workload.ssm is None
    if not decodes:
        return "training of other transformers"
    return "training of dense language models" if workload.experts is None else "training of mixtures of experts"


def likeness(scenario: Scenario, *, changed: bool = False) -> Likeness:
    """What a scenario is like; with `changed` its device is another one than its template's."""
    kind, system = kind_of(scenario.workload), scenario.system
    same = not changed and not set(scenario.document.data["system"]) - AROUND
    device = device_of(scenario.document.data["system"], scenario.base) if same else ""
    stack = scenario.stack.name if scenario.stack is not None and _unchanged(scenario.document.data.get("software")) else ""
    return Likeness(
        kind=kind,
        device=device,
        stack=stack,
        type=type_of(scenario.workload.dtype),
        scale=scale_of(scenario.devices),
        seen=seen(system, MEASURED.get(kind, kind)) if device else "none",
    )


def _unchanged(software: Any) -> bool:
    return software is None or isinstance(software, str) or set(software) == {"like"}


def seen(system: SystemSpec, what: str) -> str:
    """Whether parameters of a system's device were fitted to measurements of a kind on it (device), or on others of its family."""
    if not isinstance(system, DatasheetSystem):
        return "none"
    if what in system.measured:
        return "device"
    return "family" if what in _fitted().get(system.family, ()) else "none"


@functools.cache
def _fitted() -> Mapping[str, frozenset[str]]:
    """Kinds of measurement on devices of each family."""
    found: dict[str, frozenset[str]] = {}
    for path in files.catalogue("templates", "devices").values():
        text = Path(path).read_text(encoding="utf-8")
        family, measured = (re.search(pattern, text, re.MULTILINE) for pattern in (r"^family: (\S+)", r"^measured: \[(.*)\]"))
        if family and measured:
            found[family[1]] = found.get(family[1], frozenset()) | set(re.split(r",\s*", measured[1]))
    return found


def device_of(system: Mapping[str, Any] | str, base: Path | None = None) -> str:
    """Template of the device of a system section; nothing where it is written out."""
    named = system if isinstance(system, str) else system.get("template")
    return _device(named, base) if isinstance(named, str) else ""


@functools.lru_cache(maxsize=256)
def _device(named: str, base: Path | None) -> str:
    try:
        path = files.find("templates", named, base, "systems", "devices", "generated")
    except CrossflowError:
        return ""
    data = files.read_yaml(path).data
    if not isinstance(data, Mapping) or (path not in files.catalogue("templates").values() and set(data) - AROUND - OF_A_FILE):
        return ""
    if data.get("kind") == "datasheet":
        return str(data.get("name", ""))
    return device_of({"template": data.get("device", data.get("template"))}, path.parent)


def band_text(scenario: Scenario) -> str:
    """The band of error of a scenario in words, with what it is drawn from, or why there is none."""
    run = likeness(scenario)
    if (found := band_of(run)) is not None:
        return f"runs of this kind: {found[0].text} ({found[1].text})"
    return f"not known: nothing was measured of {run.kind or f'workloads such as this one ({scenario.workload.model})'}"


def told_band(scenario: Scenario) -> dict[str, Any]:
    """The same as plain data, under `error_band`, with `error_band_reason` where there is none."""
    run, text = likeness(scenario), band_text(scenario)
    if (found := band_of(run)) is None:
        return {"error_band": None, "error_band_reason": text}
    band, shared = found
    more = {"text": text, "drawn_from": shared.text, "tables": band.tables.split(), "device_seen": run.seen == "device"}
    return {"error_band": {**band.figures, **more}}


def bands(scenario: Scenario, devices: Array, members: Members | None, changed: Mask) -> dict[str, Array]:
    """Figures of the band of error of every point, by name; none where nothing of the kind was measured.

    devices : of every point, shape (n,). [1]
    changed : whether the device of a point is another one than its template's, shape (n,).
    """
    if not kind_of(scenario.workload):
        return {}
    names = [*(name for _, name in SCALES), LARGEST]
    workloads = (scenario.workload,) if members is None else members.workloads
    which = np.zeros(len(devices), dtype=int) if members is None else members.which
    codes = 2 * (which * len(names) + np.searchsorted([most for most, _ in SCALES], devices)) + changed
    columns = np.full((len(FIGURES_OF_A_BAND), len(devices)), np.nan)
    for code in np.unique(codes):
        (at, scale), other = divmod(int(code) // 2, len(names)), bool(code % 2)
        workload, run = workloads[at], likeness(scenario, changed=other)
        found = band_of(replace(run, kind=kind_of(workload), type=type_of(workload.dtype), scale=names[scale]))
        if found is not None:
            columns[:, codes == code] = np.array(list(found[0].figures.values()))[:, None]
    return {} if np.isnan(columns).all() else dict(zip(FIGURES_OF_A_BAND, columns, strict=True))
