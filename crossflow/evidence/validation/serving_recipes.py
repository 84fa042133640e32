"""Recipes of runs with workers for prompts: which engines a row's run had, and how many requests these took at once.

Rows of such runs name plans of both sides; how many engines there were, and how many requests a writer takes, stand in the files that the
runs were started with (`recipes.csv`). A request that comes while all writers are full waits for its first token: the engine that writes
sends it.
"""

from __future__ import annotations

import functools
from dataclasses import astuple, dataclass

from crossflow.evidence.validation.tables import TableRow, read_rows, shipped

COLUMNS = (
    "engine", "device", "precision", "isl", "osl", "guesses", "concurrency", "prefill_workers", "prefill_gpus", "prefill_dp", "prefill_ep",
    "room", "decode_workers", "decode_gpus", "decode_dp", "decode_ep", "slots",
)  # fmt: skip
SAME = ("engine", "precision", "isl", "osl", "concurrency")  # columns in which a row and its recipe are alike


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Engines of a run: those that read prompts, and those that write.

    ranks : of an engine, those that have requests of their own; devices of each share its tensors. [1]
    experts : ranks over which experts are shared out, each of which otherwise has a part of every expert; 0: as a row says. [1]
    room : prompts that a rank reads in a step. [1]
    slots : requests that a rank writes for at most. [1]
    """

    readers: int
    reader_devices: int
    reader_ranks: int
    reader_experts: int
    room: int
    writers: int
    writer_devices: int
    writer_ranks: int
    writer_experts: int
    slots: int


def recipe_of(row: TableRow, guesses: bool | None) -> Recipe | None:
    """The recipe of a row's run, of which it may be known whether it guessed tokens; None where none is known, or several fit and a row
    does not tell which it was.
    """
    found = {astuple(recipe): recipe for recipe, guessed in _fitting(row) if None in (guesses, guessed) or guesses == guessed}
    return next(iter(found.values())) if len(found) == 1 else None


def recipe_guesses(row: TableRow) -> bool | None:
    """Whether all recipes that fit a row guess tokens, or none does; None where some do, or there are none."""
    found = {guesses for _, guesses in _fitting(row)}
    return next(iter(found)) if len(found) == 1 else None


def _fitting(row: TableRow) -> list[tuple[Recipe, bool | None]]:
    """Recipes that a row may have run, and whether they guess tokens; None of those that ran with and without."""
    if row["mode"] != "disagg" or not row["source"].startswith("inferencex") or "DeepSeek-R1" not in _known_as(row):
        return []
    asked = {name: row.get(name) or "" for name in SAME}
    devices = [_devices(row, role) for role in ("prefill", "decode")]
    workers = [row.get(f"{role}_num_workers") or "" for role in ("prefill", "decode")]
    return [
        (recipe, {"yes": True, "no": False}.get(given["guesses"]))
        for given, recipe in _recipes()
        if all(given[name] == value for name, value in asked.items())
        and row["device"].startswith(given["device"])
        and [recipe.reader_devices, recipe.writer_devices] == devices
        and all(not count or int(count) == own for count, own in zip(workers, (recipe.readers, recipe.writers), strict=True))
        and (workers == ["", ""] or (recipe.writer_ranks > 1) == (int(row["decode_attention_dp"] or 1) > 1))
    ]


def _known_as(row: TableRow) -> str:
    """The model of a row as InferenceX calls it; one dump has it under the name of the model that it was trained from."""
    return "DeepSeek-R1" if row["model"].endswith("DeepSeek-V3") else row["model"]


def _devices(row: TableRow, role: str) -> int:
    """Devices of an engine of one side. [1]"""
    return int(row.get(f"{role}_tp") or 1) * int(row.get(f"{role}_attention_dp") or 1)


@functools.cache
def _recipes() -> tuple[tuple[TableRow, Recipe], ...]:
    """All recipes with their rows."""
    return tuple(
        (row, Recipe(
            readers=int(row["prefill_workers"]), reader_devices=int(row["prefill_gpus"]), reader_ranks=_ranks(row, "prefill"),
            reader_experts=int(row["prefill_ep"] or 0),
            room=int(row["room"]), writers=int(row["decode_workers"]), writer_devices=int(row["decode_gpus"]),
            writer_ranks=_ranks(row, "decode"), writer_experts=int(row["decode_ep"] or 0), slots=int(row["slots"]),
        ))
        for row in read_rows(shipped() / "recipes.csv", COLUMNS)
    )  # fmt: skip


def _ranks(row: TableRow, role: str) -> int:
    """Ranks of an engine that have requests of their own. [1]"""
    return int(row[f"{role}_gpus"]) if row[f"{role}_dp"] == "yes" else 1
