"""Families of devices without the numbers that were fitted to their own rows: those of the generation before stand in their place.

What is no fit stays: figures of datasheets and guides, and what the code of a library says (tiles, rows of a block, which calls it serves).
A library whose like the generation before had takes the numbers of that one; a new one those of the library that the same engine ran then,
and where it ran none the median of all libraries that do the same. What no library before had does nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base import files
from crossflow.base.files import Path_
from crossflow.base.formats import DTYPE_BYTES
from crossflow.base.units import parse
from crossflow.evidence.validation.dropping import changed, droppable, fitted, fitted_number, neutral, plain_of, text_of
from crossflow.evidence.validation.tables import device_spec

# Families by the one whose numbers a device had before rows of its own generation were there: the fit that its datasheet is told by.
BEFORE = {"nvidia-ada": "nvidia-ampere", "nvidia-hopper": "nvidia-ampere", "nvidia-blackwell": "nvidia-hopper"}
PHASES = ("prefill", "decode")
OWN_DEVICES = "devices"  # key of conditions that are of a source's own devices, by template
# A number of a kernel by the one that stands for it where no kernel before has it, and numbers that are one where they do nothing.
LIKE, WHOLE = {"narrow": "matrix"}, ("rate",)

KernelNumbers = Mapping[Any, Any]  # keys of some are numbers
Tiers = Sequence[Sequence[KernelNumbers]]  # kernels that may give their numbers, the likest first


def earlier_families() -> dict[Path, str]:
    """Contents of every family that has one before it, with the fitted numbers of that one, and of the conditions of measurements without
    what was fitted to a source's own devices.
    """
    known = files.catalogue("templates", "families")
    own = changed((place for held in droppable().values() for place in held if OWN_DEVICES in place[1]), neutral)
    return own | {
        known[name]: text_of(without_fits(plain_of(known[name]), plain_of(known[before])))
        for name, before in BEFORE.items()
        if name in known
    }


def has_earlier(device: str) -> bool:
    """Whether a device is of a family that has one before it."""
    return bool(device) and getattr(device_spec(device), "family", "") in BEFORE


def without_fits(own: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Data of a family with the numbers of another one in the place of those that were fitted to its rows."""
    sources, old = own.get("sources", {}), files.held(before, ("execution", "libraries")) or {}
    libraries = own.get("execution", {}).pop("libraries", {})
    for keys in list(fitted(own)):
        _put(own, keys, _plain(files.held(before, keys)))
    new = {
        "products": _named(libraries.get("products", {}), old.get("products", {}), sources),
        "attention": _attention(libraries.get("attention", {}), old.get("attention", {}), sources),
        "experts": _experts(libraries.get("experts", {}), old.get("experts", {}), sources),
        "exchange": {
            name: _given(library, [[old["exchange"][name]]], sources)
            for name, library in libraries.get("exchange", {}).items()
            if name in old.get("exchange", {})
        },
        "widening": {
            name: _given(library, _tiers(name, old.get("widening", {}), "widening"), sources)
            for name, library in libraries.get("widening", {}).items()
        },
    }
    if "execution" in own:
        own["execution"]["libraries"] = new
    return own


def _named(own: KernelNumbers, before: KernelNumbers, sources: Mapping[str, str]) -> dict[str, Any]:
    """Libraries of matrix products; none where the generation before has none."""
    if not before:
        return {}
    return {name: _given(library, [*_tiers(name, before, "products"), list(before.values())], sources) for name, library in own.items()}


def _attention(own: KernelNumbers, before: KernelNumbers, sources: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, library in own.items():
        found[name] = {key: value for key, value in library.items() if key not in PHASES}
        for phase in PHASES:
            held = {other: kernels[phase] for other, kernels in before.items() if phase in kernels}
            if phase in library and held:
                found[name][phase] = _given(library[phase], [*_tiers(name, held, "attention", phase), list(held.values())], sources)
    return found


def _experts(own: KernelNumbers, before: KernelNumbers, sources: Mapping[str, str]) -> dict[str, Any]:
    """Libraries by data type: numbers of the same type go before those of the same library in another one."""
    found: dict[str, Any] = {}
    every = [kernel for held in before.values() for kernel in held.values()]
    for name, types in own.items() if before else ():
        for dtype, library in types.items():
            near = [before[other] for other in _likest(name, before, "experts", dtype=dtype)]
            same = [[held[dtype]] for held in near if dtype in held]
            found.setdefault(name, {})[dtype] = _given(library, [*same, *(list(held.values()) for held in near), every], sources)
    return found


def _tiers(name: str, before: KernelNumbers, *section: str) -> list[list[KernelNumbers]]:
    return [[before[other]] for other in _likest(name, before, *section)]


def _likest(name: str, before: KernelNumbers, *section: str, dtype: str = "") -> list[str]:
    """Libraries known before: that of the same name, then what engines that run a library prefer, in their order."""
    lists = [names for stack in _stacks() for names in _lists(files.held(stack, ("kernels", *section)), name, dtype)]
    return list(dict.fromkeys(other for names in ([name], *lists) for other in names if other in before))


@functools.cache
def _stacks() -> tuple[dict[Any, Any], ...]:
    """Data of all software, read once for all libraries."""
    return tuple(plain_of(path) for path in files.catalogue("templates", "software").values())


def _lists(choice: Any, name: str, dtype: str) -> Iterator[list[str]]:
    """What an engine prefers where it runs a library; after that what it prefers for other data types, those of the nearest width first."""
    if not isinstance(choice, Mapping):
        yield from ([choice] if choice and name in choice else [])
        return
    types = [other for other, names in choice.items() if name in names and dtype in ("", other)]
    for mine in types[:1]:
        near = sorted(choice, key=lambda other: abs(np.log2(DTYPE_BYTES[other] / DTYPE_BYTES[mine])))
        yield from (choice[other] for other in near)


def _given(own: KernelNumbers, tiers: Tiers, sources: Mapping[str, str]) -> dict[str, Any]:
    """A kernel with the numbers of others where its own were fitted."""
    found: dict[str, Any] = {}
    for key, value in own.items():
        if not isinstance(value, Mapping):
            found[key] = value
        elif "value" not in value:
            below = [[kernel[key] for kernel in some if isinstance(kernel.get(key), Mapping)] for some in tiers]
            found[key] = _given(value, [*below, *tiers], sources)
        elif not fitted_number(value, sources):
            found[key] = _plain(value)
        else:
            number = _number(str(key), tiers)
            if number is not None:
                found[key] = number
            elif key in WHOLE:
                found[key] = 1
    return {key: value for key, value in found.items() if value != {}}


def _number(key: str | int, tiers: Tiers) -> Any:
    """The median of a number over the first kernels that have it; None where none has."""
    for name in (key, *([LIKE[str(key)]] if key in LIKE else [])):
        for some in tiers:
            held = [_plain(kernel[name]) for kernel in some if name in kernel]
            if held:
                return median(held)
    return None


def median(held: Sequence[Any]) -> Any:
    """The median of numbers or of times as text; one alone stays as it is.

    >>> median(["2 us", "3 us", "40 ns"]), median([0.5, 0.7]), median(["4 GB/s"])
    ('2e-06 s', 0.6, '4 GB/s')
    """
    if len(held) == 1:
        return held[0]
    if not isinstance(held[0], str):
        return float(np.median(held))
    return f"{float(np.median([parse(text, 's') for text in held])):.6g} s"


def _plain(number: Any) -> Any:
    """A number without its source."""
    return number["value"] if isinstance(number, Mapping) and "value" in number else number


def _put(data: dict[Any, Any], keys: Path_, value: Any) -> None:
    """Put a number in the place of another, or take that away."""
    *above, last = keys
    for key in above:
        data = data[key]
    if value is None:
        del data[last]
    else:
        data[last] = value
