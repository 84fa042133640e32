"""What the rows of a table are like: kind of run, device, software, type, scale, and whether the device was fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from crossflow.answers.bands import GENERATED, TRAITS, Likeness
from crossflow.answers.evaluation.likeness import WATTS, seen
from crossflow.evidence.validation.report import Table
from crossflow.evidence.validation.serving_runs import stack_of
from crossflow.evidence.validation.tables import device_spec, template_of

# Kinds of runs of tables whose rows do not say their own.
KINDS: Mapping[str, str] = {
    "gemm": "matrix products",
    "gemm_graph": "matrix products",
    "collectives": "collectives",
    "expert_exchange": "exchanges of experts",
    "attention": "attention kernels",
    "moe": "expert kernels",
    "simumax_kernels": "kernels of training",
    "kernel_power": WATTS,
}
GENERATED_TABLE = "generated_gemm"  # without a kind: chips whose division is given say nothing of those that are designed
# What the parameters of a row's device were fitted to, in words.
FITTED = {"device": "device fitted to", "family": "family fitted to", "none": "never seen", GENERATED: "never seen", "": "no device named"}


def likenesses(table: Table) -> list[Likeness]:
    """What every row is like; without a kind where none is known."""
    told = {**table.groups, **table.alike}
    return [_like(table.name, {name: members[i] for name, members in told.items()}) for i in range(len(table.measured))]


def _like(table: str, groups: Mapping[str, str]) -> Likeness:
    """What a row is like by its groups; a group may say more after a comma, as in ``h100-80gb, decode``."""
    engine = groups.get("engine and figure", "").partition(",")[0].lower()
    kind = groups.get("kind") or KINDS.get(table, "")
    told = {trait: groups.get(trait, "") for trait in TRAITS}
    told["stack"] = told["stack"] or (stack_of(engine) if engine else "")
    template = template_of(groups["device"].partition(",")[0]) if "device" in groups else None
    if table == GENERATED_TABLE or groups.get("seen") == GENERATED:
        return Likeness(kind=kind, seen=GENERATED)
    if template is None:
        return Likeness(kind=kind, **told)
    spec = device_spec(template)
    known = seen(spec, kind)
    return Likeness(kind=kind, device=template, seen=known, memory=getattr(spec, "memory_kind", "") if known == "none" else "", **told)


def with_fitted(table: Table) -> Table:
    """A table whose rows are grouped by whether their device was fitted to as well; as it is where no row names a device."""
    if "device" not in table.groups:
        return table
    return replace(table, groups={**table.groups, "fitted": [FITTED[like.seen] for like in likenesses(table)]})
