"""Chips to predict from what was public before they were announced: files of dated facts (``templates/hindcasts``), and what follows.

A file names the predecessor, whose generated template is the start, dated facts, and apart from them the answers, which nothing reads
but the comparison (`hindcasts`). The rule that makes a design of these is one for all (`hindcast_search`).
"""

from __future__ import annotations

import csv
import datetime
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import BeforeValidator, Field, model_validator

from crossflow.answers.evaluation.likeness import TOKENS
from crossflow.base import files
from crossflow.base.files import Document, FileModel
from crossflow.base.limits import Finite, Flag, PositiveInt, Whole
from crossflow.base.units import parse
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.network import FABRIC_TOPOLOGY, FabricKind
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.hardware.architecture.template import GeneratedSystem
from crossflow.hardware.technology.library import TechLibrary, load_library

FOLDER, DESIGNS, TRIED = "hindcasts", "designs.csv", "tried.csv"
DENSE = "training of dense language models"
TRAINED: Mapping[str, Any] = {"global_batch": 32, "sequence": 4096, "dtype": "bf16"}
WRITTEN: Mapping[str, Any] = {"task": "decode", "global_batch": 32, "prompt": 2048, "output": 256, "dtype": "bf16"}
SEVEN, SEVENTY = "llama2-7b", "llama2-70b"
# Generated chips by the day of their announcement.
ANNOUNCED: Mapping[str, str] = {
    "chip-v100": "2017-05-10",
    "chip-a100": "2020-05-14",
    "chip-tpu-v4": "2021-05-18",
    "chip-mi210": "2021-11-08",
    "chip-h100": "2022-03-22",
    "chip-mi300x": "2023-06-13",
    "chip-h200": "2023-11-13",
    "chip-b200": "2024-03-18",
}


class ComparedFigure(NamedTuple):
    """What is compared of a chip: its unit, how far off it may be, the kind of run that it is of, and the run if eight devices make it."""

    unit: str
    gate: float | None = None
    kind: str = ""
    run: tuple[Mapping[str, Any], str] | None = None


FIGURES: Mapping[str, ComparedFigure] = {
    "product": ComparedFigure("flop/s", 0.15, "matrix products"),
    "memory bandwidth": ComparedFigure("B/s", 0.10),
    "l2 bandwidth": ComparedFigure("B/s", 0.30),
    "training, 7B": ComparedFigure("1/s", 0.15, DENSE, ({"model": SEVEN, **TRAINED}, "dp8-z1-selective")),
    "training, 70B": ComparedFigure("1/s", 0.15, DENSE, ({"model": SEVENTY, **TRAINED}, "tp8-sp-selective")),
    "decoding, 7B": ComparedFigure("1/s", 0.15, TOKENS, ({"model": SEVEN, **WRITTEN}, "dp8")),
    "decoding, 70B": ComparedFigure("1/s", 0.15, TOKENS, ({"model": SEVENTY, **WRITTEN}, "tp8")),
    "peak": ComparedFigure("flop/s"),
    "l2 capacity": ComparedFigure("B"),
    "units": ComparedFigure("1"),
}
MEAN_GATE = ("product", 0.12)  # mean size of the logarithm of the ratio over all hindcasts


def _dated(given: Any) -> Any:
    """A date as YAML or plain text has it."""
    return datetime.date.fromisoformat(given) if isinstance(given, str) else given


Day = Annotated[datetime.date, BeforeValidator(_dated)]
Status = Literal["read", "second-hand", "recalled", "derived", "kept"]


class Fact(FileModel):
    """Something that was public, and since when."""

    value: str | Whole | Finite = Field(description="a quantity, a number, or a name of the technology library")
    date: Day = Field(description="since when it was public")
    source: str = Field(description="one of the file's sources")
    status: Status = Field(description="how it was read; `derived` is arithmetic on others, `kept` the predecessor's figure")
    note: str = Field(default="", description="what else is to be known")


class Facts(FileModel):
    """What was public of a chip, or of what it could be made of, before it was announced."""

    logic: Fact = Field(description="node of its dies, of the technology library")
    area: Fact = Field(description="of all its compute dies")
    dies: Fact | None = Field(default=None, description="compute dies; one where absent")
    power: Fact = Field(description="class of its power")
    memory: Fact = Field(description="generation of its memory, of the technology library")
    stacks: Fact = Field(description="memory devices of which there was room")
    capacity: Fact = Field(description="of a memory device")
    pin_rate: Fact | None = Field(
        default=None,
        description="rate of this generation in products that were on sale; where absent that of the standard, times the share of it at "
        "which the pins of the predecessor, or of the chip whose place it takes, run",
    )
    link: Fact = Field(description="links between devices, of the technology library")
    fabric: Fact | None = Field(
        default=None,
        description="what joins the devices of a node, and with it what its collectives take beside their bytes, as"
        " `system.network.intra.fabric` names it; a switch that takes nothing where absent",
    )
    substrate: Fact | None = Field(default=None, description="of its package; the predecessor's where absent")
    training_sensitivity: Fact | None = Field(
        default=None,
        description="how much more of their time products lose inside a training step than on A100, as measured on the predecessor; 1 where"
        " nothing was",
    )
    matrix_unit: Fact = Field(
        description="multiply-accumulates of a matrix unit of the predecessor in a cycle; its template has an array of that size, where its"
        " published figures fit its die with one"
    )
    speed: Fact = Field(
        description="factor of the clock that its node gains at equal power, as the foundry claims; for a rule that was tried"
    )


class LaterFigure(FileModel):
    """A figure that was published or measured later; nothing of it is an input."""

    value: str | Whole | Finite = Field(description="a quantity, or a number of units")
    source: str = Field(description="one of the file's sources")
    status: Status = Field(description="how it was read")
    kind: Literal["measured", "published", "announced"] = Field(description="`announced` is no answer yet, and keeps or misses no gate")
    unthrottled: Flag = Field(
        default=False, description="whether it was measured before power slowed the chip; of a product, which is then predicted so too"
    )
    note: str = Field(default="", description="what else is to be known")


class DatedWorkload(FileModel):
    """The workload of its day, for which the chip is divided."""

    workload: Mapping[str, Any] = Field(description="as in a scenario")
    strategy: str = Field(description="as in a scenario")
    devices: PositiveInt = Field(default=8, description="that it runs on, in one node")
    date: Day = Field(description="since when it was public")
    source: str = Field(description="one of the file's sources")


class HindcastFile(FileModel):
    """A chip to predict from what was public before its announcement."""

    kind: Literal["hindcast"]
    name: str = Field(description="of its row")
    title: str = Field(description="the chip, its predecessor, and as of when it is predicted")
    predecessor: str = Field(description="generated template of the chip before it")
    in_place_of: str | None = Field(
        default=None,
        description="generated template of the chip whose place it takes, where that is another one: its memory then runs at the share"
        " of its rate at which that chip's does, and its last cache keeps that chip's bandwidth over the memory's",
    )
    announced: Day = Field(description="day of its announcement; of a forecast the day on which it is made")
    sources: Mapping[str, str] = Field(description="of facts and answers, by key")
    facts: Facts = Field(description="the only inputs beside the predecessor's template, each older than the announcement")
    rests_on: str = Field(default="", description="what of the technology library was measured on the chip itself, or after it")
    divided_for: DatedWorkload = Field(description="what its design makes fast")
    datasheet: str | None = Field(default=None, description="system whose predicted steps are the answers where none was measured")
    answers: Mapping[str, LaterFigure] = Field(default={}, description="what was known later, by the name of the figure")

    @model_validator(mode="after")
    def _blind(self) -> HindcastFile:
        """Nothing that was known only later is an input, and every figure has a source."""
        facts: dict[str, Fact | DatedWorkload] = {name: fact for name, fact in self.facts if fact is not None}
        facts["divided_for"] = self.divided_for
        if late := [name for name, fact in facts.items() if fact.date >= self.announced]:
            raise ValueError(f"facts: {late[0]} was public on {facts[late[0]].date} only, and the chip was announced on {self.announced}")
        if self.facts.fabric is not None and self.facts.fabric.value not in FABRIC_TOPOLOGY:
            raise ValueError(f"facts: fabric: expected one of {', '.join(FABRIC_TOPOLOGY)}, got {self.facts.fabric.value}")
        for place, given in (("facts", facts), ("answers", self.answers)):
            if lost := [name for name, one in given.items() if one.source not in self.sources]:
                raise ValueError(f"{place}: {lost[0]}: there is no source '{given[lost[0]].source}'")
        if brief := [name for name, answer in self.answers.items() if answer.unthrottled and name != "product"]:
            raise ValueError(f"answers: {brief[0]}: only a product is predicted without the limit of power; leave out unthrottled")
        if strange := [name for name in self.answers if name not in FIGURES]:
            raise ValueError(f"answers: '{strange[0]}' is not compared; known: {', '.join(FIGURES)}")
        return self

    @property
    def forecast(self) -> bool:
        """Whether nothing was measured or published yet, but announced at most."""
        return self.datasheet is None and all(answer.kind == "announced" for answer in self.answers.values())


@functools.cache
def hindcasts() -> Mapping[str, HindcastFile]:
    """Every file by its name, in the order of announcements."""
    found = [files.validate(HindcastFile, files.read_yaml(path)) for path in files.catalogue("templates", FOLDER).values()]
    return {one.name: one for one in sorted(found, key=lambda one: (one.forecast, one.announced, one.name))}


@functools.cache
def designs() -> Mapping[str, Mapping[str, float]]:
    """The designs that the search found, by chip: values by path."""
    text = files.read_text(folder() / DESIGNS)
    found: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        found.setdefault(row["chip"], {})[row["path"]] = float(row["value"])
    return found


# ------------------------------------------------------------------------------------------ the chip


def designed(file: HindcastFile) -> dict[str, Any]:
    """The system of a chip with the design that the search found."""
    return with_design(system_of(file), designs()[file.name])


def with_design(system: Mapping[str, Any], design: Mapping[str, float]) -> dict[str, Any]:
    """A system with values by path, which begins with `system`."""
    data: Any = {"system": dict(system)}
    for path, value in design.items():
        data = files.replace(data, tuple(path.split(".")), value, "design")
    return dict(data["system"])


def system_of(file: HindcastFile) -> dict[str, Any]:
    """The system that a search starts from: the predecessor's template, changed by the facts alone.

    All components together may draw no more at their peaks than those of a known chip (`peaks`), over the power of its class, to which
    a chip at work keeps (`Throttle`).
    """
    facts, area = file.facts, parse(file.facts.area.value, "mm2")
    power, memory = parse(facts.power.value, "W"), library_of(file).component("memory", str(facts.memory.value))
    chosen = {"logic": facts.logic, "memory": facts.memory, "intra_link": facts.link, "substrate": facts.substrate}
    return {
        "template": file.predecessor,
        **alone(8, file),
        "devices_per_package": 1,
        "technology": {role: fact.value for role, fact in chosen.items() if fact is not None},
        "components": {"memory": {"nominal_frequency": f"{pin_rate(file):.6g} Hz", "device_capacity": facts.capacity.value}},
        **({} if facts.training_sensitivity is None else {"execution": {"training_sensitivity": facts.training_sensitivity.value}}),
        "budgets": {
            "chip_area": f"{area:g} mm2",
            "node_area": f"{area + 1e6 * float(memory.device_area[0]) * int(facts.stacks.value) + 1:g} mm2",
            "chiplets": 1 if facts.dies is None else int(facts.dies.value),
            "power": f"{power:g} W",
            "peak_power": f"{peaks(file) * power:g} W",
        },
    }


def alone(devices: int, file: HindcastFile | None = None) -> dict[str, Any]:
    """The settings of so many devices in one node, joined as the facts of a chip say."""
    wired: dict[str, Any] = {"topology": "switch" if devices > 1 else "single"}
    if devices > 1 and file is not None and file.facts.fabric is not None:
        fabric = cast("FabricKind", file.facts.fabric.value)
        wired = {"fabric": fabric, "topology": FABRIC_TOPOLOGY[fabric]}
    return {"devices": devices, "devices_per_node": devices, "network": {"intra": wired}}


def pin_rate(file: HindcastFile) -> float:
    """Rate of a pin of its memory: that of products on sale, or of the standard at the share of it at which those before it run. [Hz]"""
    if file.facts.pin_rate is not None:
        return parse(file.facts.pin_rate.value, "Hz")
    library, before = library_of(file), template_of(replaced(file))
    changed, standard = before.components.memory, library.component("memory", before.technology.memory).nominal_frequency
    ran = standard if changed is None or changed.nominal_frequency is None else changed.nominal_frequency
    return float((library.component("memory", str(file.facts.memory.value)).nominal_frequency * ran / standard)[0])


def known(file: HindcastFile) -> list[GeneratedSystem]:
    """Generated templates of the chips that were announced before it."""
    return [template_of(name) for name, day in ANNOUNCED.items() if day < file.announced.isoformat()]


def peaks(file: HindcastFile) -> float:
    """Most power that all components of a known chip draw together at their peaks, over the power of that chip. [1]"""
    return max(float((spec.budgets.peak_power / spec.budgets.power)[0]) for spec in known(file) if spec.budgets.peak_power is not None)


def clock_limit(file: HindcastFile) -> float:
    """Its fastest clock: that of the predecessor times what the foundry claims of the node at equal power. [Hz]"""
    return float(predecessor(file).frequency[0]) * parse(file.facts.speed.value, "1")


def denser_cells(file: HindcastFile) -> float:
    """How many times as many bits of on-chip memory its node has on an area as that of the predecessor. [1]"""
    names = (template_of(file.predecessor).technology.logic, str(file.facts.logic.value))
    before, now = (library_of(file).component("logic", name) for name in names)
    return float((before.sram_area / now.sram_area)[0])


def memory_rate(file: HindcastFile) -> float:
    """Bandwidth of its memory devices together. [B/s]"""
    pins = float(library_of(file).component("memory", str(file.facts.memory.value)).links_per_device[0])
    return int(file.facts.stacks.value) * pins * pin_rate(file) / 8.0


def predecessor(file: HindcastFile) -> Architecture:
    """The chip before it."""
    return _built(file.predecessor)


def replaced(file: HindcastFile) -> str:
    """Generated template of the chip whose place it takes: cards of little power have other memories than the large chips of their day."""
    return file.in_place_of or file.predecessor


def balance(file: HindcastFile) -> float:
    """Bandwidth of the last cache over that of the memory, of the chip whose place it takes. [1]"""
    before = _built(replaced(file))
    return float(before.levels[-2].bandwidth[0] / before.memory.bandwidth[0])


def library_of(file: HindcastFile) -> TechLibrary:
    """Technology library of the predecessor's template."""
    return load_library(template_of(file.predecessor).techlib)


@functools.cache
def template_of(name: str) -> GeneratedSystem:
    """A generated template."""
    spec, _ = resolve(Document(file=name, data={"template": name}))
    if not isinstance(spec, GeneratedSystem):
        raise TypeError(f"{name} is no generated template")
    return spec


@functools.cache
def _built(name: str) -> Architecture:
    return architecture(template_of(name))


def folder() -> Path:
    """Where the files are."""
    return files.data_folder("templates") / FOLDER
