"""Which devices, models and engines predictions were compared with measurements on: the page ``docs/support.md``, and a short form of it.

Every cell is what `crossflow predict` says of such a run (`crossflow.answers.bands.trust_of`): the best word over the sizes, data types, loads and
placements of experts for which there are rows. Nothing is written here by hand but the names of columns.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from crossflow.answers.bands import EXPERTS, HIGHEST, LARGEST, LOADS, NO_STACK, SCALES, Likeness, trust_of
from crossflow.answers.evaluation.likeness import PROMPTS, TOKENS, generation_apart, seen
from crossflow.base import files
from crossflow.base.files import Document
from crossflow.hardware.architecture.system import resolve
from crossflow.hardware.architecture.template import SystemSpec

WORDS: Mapping[str, str] = {"measured": "measured", "interpolated": "interpolated", "extrapolated": "extrapolated", "unknown": "none"}
RUNS: Mapping[str, tuple[str, bool]] = {  # names of columns -> kind of run, and whether it is of a mixture whose experts are shared out
    "training, dense": ("training of dense language models", False),
    "training, mixture of experts": ("training of mixtures of experts", False),
    "serving, prompts": (PROMPTS, False),
    "serving, tokens": (TOKENS, False),
    "serving, shared-out experts": (TOKENS, True),
    "training, state-space layers": ("training of models with state-space layers", False),
    "serving, state-space layers": ("serving of models with state-space layers", False),
    "training, recommendation": ("training of recommendation models", False),
}
ENGINES: Mapping[str, Sequence[str]] = {
    "training": (
        "megatron-core",
        "torchtitan",
        "nemo",
        "pytorch-fsdp",
        "megatron-deepspeed-2023",
        "nanotron",
        "maxtext",
        "optimum-habana",
        "neuron",
    ),
    "serving": ("vllm", "sglang", "tensorrt-llm", "optimum-habana", "neuron"),
    "training, recommendation": ("torchrec",),
}
KERNELS: Mapping[str, str] = {
    "matrix products": "matrix products", "attention": "attention kernels", "layers of experts": "expert kernels",
    "exchange of experts": "exchanges of experts",
}  # fmt: skip
TYPES = ("16 bits", "8 bits", "4 bits")


def level(device: str, kind: str, stack: str = "", shared: bool = False) -> str:
    """The best word that a run of a kind gets on a device, over sizes, types, loads and placements of shared-out experts."""
    service = kind in (PROMPTS, TOKENS)
    scales = ("",) if service else (*(name for _, name in SCALES), LARGEST)
    loads = (*(name for _, name in LOADS), HIGHEST) if service else ("",)
    runs = (
        Likeness(kind=kind, device=device, stack=stack, type=type_, experts=experts, load=load, scale=scale, seen=_known(device, kind))
        for type_, experts, load, scale in itertools.product(TYPES, EXPERTS if shared else ("",), loads, scales)
    )
    apart = generation_apart(_system(device), kind)
    return min((trust_of(run, apart).level for run in runs), key=_place)


@functools.cache
def _known(device: str, kind: str) -> str:
    return seen(_system(device), kind)


@functools.cache
def _system(device: str) -> SystemSpec:
    return resolve(Document(file=device, data={"template": device}), None)[0]


def compact() -> str:
    """Devices by kinds of runs, over all engines: a table for a first page."""
    return _table(RUNS, lambda device, name: min((level(device, *one) for one in _asked(name)), key=_place))


def _asked(name: str) -> Iterator[tuple[str, str, bool]]:
    """What is asked of each column of the table over all engines: kind, engine, whether experts are shared out."""
    kind, shared = RUNS[name]
    yield from ((kind, stack, shared) for stack in _engines(name))


def _engines(name: str) -> Sequence[str]:
    return ENGINES.get(name) or ENGINES[name.partition(",")[0]]


def page(head: str) -> str:
    """The whole matrix: for every kind of run devices by engines, then the kernels."""
    text = f"{head}\n# What was measured\n\n{INTRO}\n\n## In short\n\n{compact()}"
    for name, (kind, shared) in RUNS.items():
        text += f"\n## {name[:1].upper()}{name[1:]}\n\n"
        text += _table(_engines(name), lambda device, stack, kind=kind, shared=shared: level(device, kind, stack, shared), "`{}`")
    return text + "\n## Kernels by themselves\n\n" + _table(KERNELS, lambda device, name: level(device, KERNELS[name], NO_STACK))


def _table(columns: Iterable[str], cell: Callable[[str, str], str], heading: str = "{}") -> str:
    """Devices by columns, those of which most was measured first, devices with equal rows in one."""
    columns = list(columns)
    rows = dict[tuple[str, ...], list[str]]()
    for device in sorted(files.catalogue("templates", "devices")):
        rows.setdefault(tuple(cell(device, column) for column in columns), []).append(f"`{device}`")
    if len(rows) == 1 and len({word for words in rows for word in words}) == 1:
        return f"On all devices: {WORDS[next(iter(rows))[0]]}.\n"
    ordered = sorted(rows.items(), key=lambda row: sum(map(_place, row[0])))
    listed = ((", ".join(devices), *(WORDS[word] for word in words)) for words, devices in ordered)
    header = ("device", *(heading.format(column) for column in columns))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---"] * len(header), *listed))


def _place(word: str) -> int:
    return list(WORDS).index(word)


INTRO = """This page shows how far predictions can be trusted, for each device, kind of run and engine:

- **measured**: similar runs were measured on this device, and predictions were compared with them;
- **interpolated**: the prediction lies between measured runs, on this device or on others of its generation; or its kernels were measured on this device;
- **extrapolated**: it lies beyond them, so the error of the nearest runs may not apply;
- **none**: nothing of this kind was ever compared with a measurement.

A cell shows the best level over all sizes, data types, loads and placements of experts. For your run, see the line `trust` of
`crossflow predict`, with its error. [Can I trust the number?](how-to/trust.md) explains it, and [Accuracy](validation.md) has all errors.
Queues and their tails were compared with two measured runs only. For generated chips, the only comparison is with chips predicted before their announcement."""
