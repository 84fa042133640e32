"""Families of devices without the numbers that were fitted to their own rows: those of the generation before stand in their place.

What is no fit stays: figures of datasheets and guides, and what the code of a library says (tiles, rows of a block, which calls it serves).
A library whose like the generation before had takes the numbers of that one; a new one those of the library that its maker's engine ran
then, of the one that the same engine ran, and where it ran none the median of all libraries that do the same. Shares of a rate belong to
code, so that the same library in another data type goes before another one in the same. What no library before had does nothing, but
that a further kernel takes at least the gap between two kernels of a captured graph; an exchange of tokens that is new takes what it can
from plain exchanges. Times of kernels are counted in clocks: another clock shortens them (`at_clock`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base import files
from crossflow.base.files import Path_
from crossflow.base.formats import DTYPE_BYTES
from crossflow.base.units import parse
from crossflow.evidence.validation.dropping import TIMES, changed, droppable, fitted, fitted_number, neutral, plain_of, text_of
from crossflow.evidence.validation.tables import device_architecture, device_spec

# Families by the one whose numbers a device had before rows of its own generation were there: the fit that its datasheet is told by.
BEFORE = {"nvidia-ada": "nvidia-ampere", "nvidia-hopper": "nvidia-ampere", "nvidia-blackwell": "nvidia-hopper"}
FITTED_ON = {"nvidia-ampere": "a100-80gb", "nvidia-ada": "l40s", "nvidia-hopper": "h100-sxm", "nvidia-blackwell": "b200"}
# Sections of `execution` whose times are of kernels on one device, and the gap between two of a captured graph.
TIMED = ("tiles", "products", "attention", "experts", "graph_launch")
PHASES = ("prefill", "decode")
# Libraries that engines call by FlashInfer, by the engine whose makers wrote them. TensorRT-LLM's own dispatcher runs trtllm-gen where it
# runs XQA on earlier devices (cpp/tensorrt_llm/kernels/xqaDispatcher.cpp: `mUseTllmGen`, compute capability 10.0), and FlashInfer's fused
# experts of CUTLASS are its code (csrc/nv_internal/tensorrt_llm/kernels/cutlass_kernels there).
MAKERS = dict.fromkeys(("trtllm-gen", "trtllm-gen-sglang", "trtllm-flashinfer", "cutlass-flashinfer"), "tensorrt-llm")
ADDED = ("start", "quantise")  # what an engine adds to attention of others, as docs/scripts/fit_attention.py has it
FURTHER = ("quantise", "write")  # kernels beside attention with little work: where none before tells of one, it takes the gap before it
OWN_DEVICES = "devices"  # key of conditions that are of a source's own devices, by template
# A number of a kernel by the one that stands for it where no kernel before has it, and numbers that are one where they do nothing.
LIKE, WHOLE = {"narrow": "matrix"}, ("rate",)
# An exchange of tokens by the numbers of a plain one, by name of a fabric's, and what of it no plain one tells. A channel copies at the
# rate that NCCL reckons one of a Hopper with, 36.7 GB/s (`perChMaxRingLL128Bws` of its src/graph/tuning.cc). In DeepEP's normal kernels it
# is two units, one that sends and one that receives (`num_channels = num_sms / 2` of csrc/kernels/intranode.cu and internode.cu). Around
# these kernels nodes wait for each other twice (`nvshmem_sync` in notify_dispatch and cached_notify of internode.cu), each time for the
# steps to other nodes of a dissemination barrier, of which there are log2 of the nodes (NVSHMEM_BARRIER_DISSEM_KVAL is 2). Each of these
# kernels comes after another one, a barrier of all ranks that resets the queues (cached_notify_dispatch and cached_notify_combine, which
# csrc/deep_ep.cpp calls before dispatch and combine), where plain exchanges are one kernel.
PLAIN_EXCHANGE = {
    "start": "launch", "notify": "launch", "fill": "exchange_fill", "link": "switch_efficiency", "network": "rdma_efficiency",
}  # fmt: skip
UNKNOWN_EXCHANGE = {
    "copies": {"start": "0 s", "rate": "18.35 GB/s"}, "expert": "0 s", "node_step": "0 s", "first_token": "1 EB/s",
}  # fmt: skip
NORMAL = ("dispatch", "combine")  # kernels of many tokens
BARRIERS, KERNELS = 2.0, 2.0  # how often nodes wait for each other around one of them, and kernels that are launched for it

KernelNumbers = Mapping[Any, Any]  # keys of some are numbers
Tiers = Sequence[Sequence[KernelNumbers]]  # kernels that may give their numbers, the likest first


def earlier_families() -> dict[Path, str]:
    """Contents of every family that has one before it, with the fitted numbers of that one, and of the conditions of measurements without
    what was fitted to a source's own devices.
    """
    known = files.catalogue("templates", "families")
    own = changed((place for held in droppable().values() for place in held if OWN_DEVICES in place[1]), neutral)
    return own | {
        known[name]: text_of(without_fits(plain_of(known[name]), at_clock(plain_of(known[before]), _slower(before, name))))
        for name, before in BEFORE.items()
        if name in known
    }


def has_earlier(device: str) -> bool:
    """Whether a device is of a family that has one before it."""
    return bool(device) and getattr(device_spec(device), "family", "") in BEFORE


def _slower(before: str, own: str) -> float:
    """Clock of the device that a family was fitted to, over that of another family's."""
    first, then = (device_architecture(FITTED_ON[name]) for name in (before, own))
    assert first is not None  # the package has templates of both
    assert then is not None
    return float((first.frequency / then.frequency).item())


def at_clock(data: dict[str, Any], slower: float) -> dict[str, Any]:
    """Data of a family with the fitted times of its kernels on a device whose clock is so much faster.

    Times outside of a kernel's loop are of as many clocks: instructions, barriers and fills of pipelines between units of one clock domain.
    """
    for keys in fitted(data):
        number = files.held(data, keys)
        if keys[0] == "execution" and {*keys[1:3]} & {*TIMED} and str(number["value"]).rpartition(" ")[-1] in TIMES:
            number["value"] = f"{parse(number['value'], 's') * slower:.6g} s"
    return data


def without_fits(own: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Data of a family with the numbers of another one in the place of those that were fitted to its rows."""
    sources, old = own.get("sources", {}), files.held(before, ("execution", "libraries")) or {}
    libraries = own.get("execution", {}).pop("libraries", {})
    for keys in list(fitted(own)):
        _put(own, keys, _plain(files.held(before, keys)))
    gap = _plain(files.held(before, ("execution", "graph_launch")))
    further = {} if gap is None else dict.fromkeys(FURTHER, gap)
    new = {
        "products": _named(libraries.get("products", {}), old.get("products", {}), sources),
        "attention": _attention(libraries.get("attention", {}), old.get("attention", {}), sources, further),
        "experts": _experts(libraries.get("experts", {}), old.get("experts", {}), sources),
        "exchange": {
            name: _given(library, [[old["exchange"][name] if name in old.get("exchange", {}) else _plain_exchange(before)]], sources)
            for name, library in libraries.get("exchange", {}).items()
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


def _attention(own: KernelNumbers, before: KernelNumbers, sources: Mapping[str, str], further: KernelNumbers) -> dict[str, Any]:
    """Libraries by phase: what an engine adds to a kernel of another one's makers is what it added before."""
    found: dict[str, Any] = {}
    for name, library in own.items():
        found[name] = {key: value for key, value in library.items() if key not in PHASES}
        for phase in PHASES:
            held = {other: kernels[phase] for other, kernels in before.items() if phase in kernels}
            if phase in library and held:
                tiers = [*_added(name, held, phase), *_tiers(name, held, "attention", phase), list(held.values()), [further]]
                found[name][phase] = _given(library[phase], tiers, sources)
    return found


def _added(name: str, held: KernelNumbers, phase: str) -> list[list[KernelNumbers]]:
    """Of a kernel of another one's makers what the engine that calls it added to the one before, apart."""
    before = _called(name, held, "attention", phase)[:1] if name in MAKERS else []
    return [[{key: held[other][key] for key in ADDED if key in held[other]}] for other in before]


def _experts(own: KernelNumbers, before: KernelNumbers, sources: Mapping[str, str]) -> dict[str, Any]:
    """Libraries by data type: numbers of the nearest type of the likest library go first."""
    found: dict[str, Any] = {}
    every = [kernel for held in before.values() for kernel in held.values()]
    for name, types in own.items() if before else ():
        for dtype, library in types.items():
            near = [before[other] for other in _likest(name, before, "experts", dtype=dtype)]
            tiers = [[held[other]] for held in near for other in nearest_types(held, dtype)]
            found.setdefault(name, {})[dtype] = _given(library, [*tiers, every], sources)
    return found


def nearest_types(types: Iterable[str], dtype: str) -> list[str]:
    """Data types in order of how near they are to one in width, after that one itself.

    >>> nearest_types(("bf16", "fp8", "fp8_block"), "fp8_block"), nearest_types(("bf16", "fp8"), "nvfp4")
    (['fp8_block', 'fp8', 'bf16'], ['fp8', 'bf16'])
    """
    return sorted(types, key=lambda other: (other != dtype, abs(np.log2(DTYPE_BYTES[other] / DTYPE_BYTES[dtype]))))


def _plain_exchange(before: Mapping[str, Any]) -> KernelNumbers:
    """Numbers of exchanges of tokens where no library made for them was known: those of plain ones over the same fabric and network."""
    common = plain_of(files.catalogue("templates", "families")["fabrics"])
    known = {**common["network"]["parameters"], **(files.held(before, ("network", "parameters")) or {})}
    hop, launch = (parse(_plain(known[name]), "s") for name in ("rdma_hop", PLAIN_EXCHANGE["start"]))
    many = {"node_step": f"{BARRIERS * hop:.6g} s", "start": f"{KERNELS * launch:.6g} s"}
    return {**UNKNOWN_EXCHANGE, **{key: _plain(known[name]) for key, name in PLAIN_EXCHANGE.items()}, **dict.fromkeys(NORMAL, many)}


def _tiers(name: str, before: KernelNumbers, *section: str) -> list[list[KernelNumbers]]:
    return [[before[other]] for other in _likest(name, before, *section)]


def _likest(name: str, before: KernelNumbers, *section: str, dtype: str = "") -> list[str]:
    """Libraries known before: that of the same name, what its maker's engine prefers, then what engines that call it do, in their order."""
    choices = [files.held(stack, ("kernels", *section)) for stack in _stacks() if stack["name"] == MAKERS.get(name)]
    made = [names for choice in choices for names in _preferred(choice, dtype)]
    return _known(before, [name], *made, _called(name, before, *section, dtype=dtype))


def _called(name: str, before: KernelNumbers, *section: str, dtype: str = "") -> list[str]:
    """Libraries known before that engines which call a library prefer, in their order."""
    return _known(before, *(names for stack in _stacks() for names in _lists(files.held(stack, ("kernels", *section)), name, dtype)))


def _known(before: KernelNumbers, *lists: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(other for names in lists for other in names if other in before))


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
        yield from _preferred(choice, mine)


def _preferred(choice: Any, dtype: str) -> Iterator[list[str]]:
    """Libraries that an engine prefers for a data type, then for others, where they go by type."""
    yield from ([choice[other] for other in nearest_types(choice, dtype)] if isinstance(choice, Mapping) else [choice])


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
