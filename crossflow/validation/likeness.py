"""What the rows of a table are like: kind of run, device, software, type, scale, and whether the device was fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from crossflow.bands import Likeness
from crossflow.evaluation.likeness import MEASURED, seen
from crossflow.validation.report import Table
from crossflow.validation.tables import device_spec, template_of

# Kinds of runs of tables whose rows do not say their own.
KINDS: Mapping[str, str] = {
    "gemm": "matrix products",
    "gemm_graph": "matrix products",
    "collectives": "collectives",
    "expert_exchange": "exchanges of experts",
    "attention": "attention kernels",
    "moe": "expert kernels",
    "serving": "serving, writing tokens",
    "serving_latency": "serving, writing tokens",
}
# What the parameters of a row's device were fitted to, in words.
FITTED = {"device": "device fitted to", "family": "family fitted to", "none": "never seen", "": "no device named"}


def likenesses(table: Table) -> list[Likeness]:
    """What every row is like; without a kind where none is known."""
    kinds = table.groups.get("kind", [KINDS.get(table.name, "")] * len(table.measured))
    rows = [{name: members[i] for name, members in table.groups.items()} for i in range(len(kinds))]
    return [_like(kind, row) for kind, row in zip(kinds, rows, strict=True)]


def _like(kind: str, groups: Mapping[str, str]) -> Likeness:
    told = {name: groups.get(name, "") for name in ("stack", "type", "scale")}
    template = template_of(groups["device"]) if "device" in groups else None
    if template is None:
        return Likeness(kind=kind, **told)
    return Likeness(kind=kind, device=template, seen=seen(device_spec(template), MEASURED.get(kind, kind)), **told)


def with_fitted(table: Table) -> Table:
    """A table whose rows are grouped by whether their device was fitted to as well; as it is where no row names a device."""
    if "device" not in table.groups:
        return table
    return replace(table, groups={**table.groups, "fitted": [FITTED[like.seen] for like in likenesses(table)]})
