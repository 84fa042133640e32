"""Scenarios: a system, a workload and a strategy, read from a file and resolved to frozen objects."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from crossflow.answers.requested import filled, read_requests
from crossflow.answers.settings import pointed
from crossflow.base import contents, files, provenance
from crossflow.base.contents import Contents, Packed
from crossflow.base.errors import CrossflowError, Problem, SpecError, StrategyError, among, did_you_mean, known_name, with_article
from crossflow.base.files import Document, FileModel
from crossflow.base.limits import Flag, NonNegativeInt, PositiveFloat, PositiveInt, shown
from crossflow.base.paths import with_quantity
from crossflow.base.results import PlainData, public
from crossflow.base.stages import stage
from crossflow.cost.profile import Profile, profile_at, read_profile, system_profile
from crossflow.engine.lasting.spec import CheckpointSpec, MaintenanceSpec, Reliability, RestartSpec, load_reliability
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.network import Congestion
from crossflow.hardware.architecture.software import SoftwareStack, load_stack
from crossflow.hardware.architecture.system import architecture, resolve, template_name
from crossflow.hardware.architecture.template import FEEDING, READING, DatasheetSystem, GeneratedSystem, SystemSpec, is_none
from crossflow.hardware.mapping.congestion import refusal as congestion_refusal
from crossflow.hardware.mapping.topology import Network
from crossflow.hardware.mapping.wiring import LEVELS, topology_of, wired
from crossflow.hardware.technology.library import KINDS, TechLibrary, library_digest, library_document, load_library
from crossflow.parallel.strategy.hierarchy import Hierarchy
from crossflow.parallel.strategy.mesh import ORDER, Mesh
from crossflow.parallel.strategy.notation import opened
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import (
    AUTO,
    AnyStrategy,
    Workload,
    as_text,
    engine_devices,
    experts_plan,
    fitting,
    read_strategy,
    strategy_problem,
    worker_plan,
)
from crossflow.parallel.strategy.schedules import hold_order
from crossflow.parallel.transform import transform
from crossflow.program.file import is_program
from crossflow.program.program import Program
from crossflow.workload.graph import Graph
from crossflow.workload.huggingface import CONFIG, huggingface_document
from crossflow.workload.idle import without_meaning
from crossflow.workload.job import Job
from crossflow.workload.jobs import job_of, tokens_of
from crossflow.workload.released import SERVED, as_released
from crossflow.workload.requests.asking import requests_in
from crossflow.workload.requests.post_training import PostTrainingSpec
from crossflow.workload.requests.record import RequestTrace
from crossflow.workload.requests.spec import RequestsSpec
from crossflow.workload.spec import MODELS, DlrmSpec, GemmSpec, LstmSpec, ProgramSpec, TransformerSpec, writes

if TYPE_CHECKING:
    from crossflow.answers.explanation.answers import Explanation
    from crossflow.answers.planning.plans import Plans
    from crossflow.answers.prediction import Prediction
    from crossflow.answers.score import Score
    from crossflow.engine.timeline.record import Timeline

# What runs a layered model where a scenario does not say: of its time for training, a serving engine for the rest.
DEFAULT_STACK = {"training": "megatron-core", "forward": "vllm", "prefill": "vllm", "decode": "vllm", "serving": "vllm"}
OF_VENDORS = {"google": {"training": "t5x"}}  # by the maker of devices that these do not run on
DLRM_STACK = "torchrec"
TRAINS_NOT = "{name} serves models, and workload.task is training; leave software out, or name one that trains, such as {other}"


OF_FAILURES = ("checkpoint", "restart", "spares", "elastic", "maintenance")  # fields of a run that is interrupted
SYSTEM_KINDS = ("system", "datasheet", "generated")  # what files of systems and of single devices say of themselves


def _notation(value: Any) -> Any:
    """A strategy as a file may write it; ValueError names the notations."""
    if value is None or isinstance(value, str | Mapping):
        return value
    raise ValueError(f"expected text such as tp8-dp4 or d32, a mapping such as {{tp: 8, dp: 4}}, or auto; got {shown(value)}")


class RunLength(FileModel):
    """How much a whole run processes, one of samples, tokens and steps; what interrupts it, and how it comes back."""

    samples: PositiveFloat | None = None
    tokens: PositiveFloat | None = None
    steps: PositiveFloat | None = None
    failures: str | Mapping[str, Any] | None = Field(
        default=None, description="what interrupts it: the name or path of a reliability file, or causes by name; see below"
    )
    checkpoint: CheckpointSpec | None = None
    restart: RestartSpec | None = None
    spares: NonNegativeInt | Literal["auto"] | None = Field(
        default=None, description="nodes that stand in for broken ones; auto, as where absent: the number at which work costs least"
    )
    elastic: Flag | None = Field(
        default=None, description="whether it goes on with fewer data-parallel replicas, and the same batch, where no spare is left"
    )
    maintenance: MaintenanceSpec | None = None

    @model_validator(mode="after")
    def _one(self) -> RunLength:
        if sum(value is not None for value in (self.samples, self.tokens, self.steps)) != 1:
            raise ValueError("give one of samples, tokens and steps")
        beside = [name for name in OF_FAILURES if getattr(self, name) is not None]
        if beside and self.failures is None:
            raise ValueError(f"{beside[0]} needs failures, such as failures: llama3-h100; give it, or leave {beside[0]} out")
        return self


class ScenarioFile(FileModel):
    """Top level of a scenario file; its sections are read by the packages that they belong to."""

    name: str = ""
    title: str = ""
    notes: str = ""
    system: Any
    workload: Any
    techlib: Mapping[str, Any] = {}
    strategy: Annotated[str | Mapping[str, Any] | None, BeforeValidator(_notation)] = None
    software: str | Mapping[str, Any] | None = None
    profile: str | None = Field(default=None, description="file of measured event times, which replace the model's")
    run: RunLength | None = None
    job: PostTrainingSpec | None = Field(default=None, description="post-training job whose training step this is; see below")
    placement: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["auto"] = "auto"
    kernels_per_device: PositiveInt = 1
    requests: RequestsSpec | None = Field(
        default=None,
        description="requests of a service, which `serve`, `predict` and `study` replay: the path of a trace, or a mapping; see below",
    )


@dataclass(frozen=True, kw_only=True)
class AutoStrategy:
    """How ``strategy: auto`` was answered: how many strategies are legal, how many of them were tried, and how many of those fit."""

    legal: int
    tried: int
    fitting: int

    def __str__(self) -> str:
        if not self.fitting:
            return f"the nearest to fitting: none fits (of {self.tried:,} tried)"
        return f"the fastest of {self.fitting:,} that fit (of {self.tried:,} tried)"


class _Opened(type):
    """What makes a class take plain data, a file, or a model and a system in the place of its fields, and read them as `load` does."""

    __dataclass_fields__: Mapping[str, Any]

    def __call__(cls, *given: Any, **named: Any) -> Any:
        required = {name for name, one in cls.__dataclass_fields__.items() if one.default is MISSING}
        if not given and required <= set(named):
            return super().__call__(**named)
        return public("from_dict")(named) if not given and "workload" in named else public("load")(*given, **named)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario(PlainData, metaclass=_Opened):
    """A resolved scenario; `crossflow.load` and `crossflow.from_dict` make one, and ``Scenario(...)`` does what they do.

    Attributes
    ----------
    name : for reports.
    system, workload, strategy : what is computed on what, and how it is divided.
    stack : software that runs a transformer; None for other workloads, whose kernels are a framework's unfused ones.
    order : order in which the mesh axes are laid out; None to search all.
    kernels_per_device : kernels that one device runs at once (Sec. 6.5 of the paper).
    document : the scenario's own data, before templates and presets.
    system_document : the system section with everything that it builds on.
    library : the technology library that the system names, with the scenario's own changes.
    run : how much a whole run processes; None where only a step is asked for.
    base : folder that relative paths in the scenario start from.
    contents : what the files that the scenario names held when it was read; settings read them again from here.
    profile : measured times of events, which replace the model's; None where there are none.
    auto : how its strategy was chosen where the file says ``strategy: auto``; None where the file names one.
    reliability : what interrupts its run; None where nothing does.
    post_training : the job that its training step is part of; None where it is a step alone.
    requests : what its service is asked; None where the workload says a steady state. `requests_of` reads or draws them.
    """

    name: str
    system: SystemSpec
    workload: Workload
    strategy: AnyStrategy
    stack: SoftwareStack | None
    order: tuple[str, ...] | None
    kernels_per_device: int
    document: Document
    system_document: Document
    library: TechLibrary
    run: RunLength | None
    base: Path | None
    contents: Contents
    profile: Profile | None = None
    auto: AutoStrategy | None = None
    reliability: Reliability | None = None
    requests: RequestsSpec | None = None
    post_training: PostTrainingSpec | None = None

    @property
    def devices(self) -> int:
        """Accelerators in use."""
        return self.system.whole_count if isinstance(self.strategy, Hierarchy) else self.strategy.devices

    @property
    def readers(self) -> int:
        """Accelerators beside them: those of the workers that read the prompts of a service."""
        plan = worker_plan(self.workload) if isinstance(self.workload, TransformerSpec) else None
        return 0 if plan is None else plan.devices * self.workload.serving.prefill.workers  # type: ignore[union-attr] # it has workers

    @property
    def feeders(self) -> int:
        """Accelerators beside them that hold the experts, 0 where those that attend hold them too."""
        plan = experts_plan(self.workload) if isinstance(self.workload, TransformerSpec) else None
        return 0 if plan is None else plan.devices

    @property
    def further(self) -> Mapping[str, int]:
        """Accelerators of the pools of further engines of a service, by the pool's name."""
        return engine_devices(self.workload) if isinstance(self.workload, TransformerSpec) else {}

    @property
    def fleet(self) -> str:
        """Its devices in words, such as `8 x dgx-h100, 16 x dgx-a100 and 4 x dgx-b200 for prompts`."""
        if self.system.kinds:
            return " and ".join(f"{one.device_count:,} x {one.name}" for one in self.system.places.values())
        pooled, further = self.system.pooled, self.further
        several = self.devices > 1 or self.readers or self.feeders or further
        own = f"{self.devices:,} x {self.system.name}" if several else f"one {self.system.name}"
        parts = [own, *(f"{count:,} x {pooled.get(name, self.system).name}" for name, count in further.items())]
        if self.feeders:
            parts.append(f"{self.feeders:,} x {pooled.get(FEEDING, self.system).name} for experts")
        if self.readers:
            parts.append(f"{self.readers:,} x {pooled.get(READING, self.system).name} for prompts")
        return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)

    @property
    def nodes(self) -> tuple[int, int]:
        """Devices of one node (package, server), and number of nodes."""
        return self.system.mesh if self.system.kinds else _nodes(self.system, self.devices)

    @property
    def hosts(self) -> tuple[int, int]:
        """Devices of one operating system, on which a launcher starts their processes, and number of those systems."""
        per_node, _ = self.nodes
        per_host = min(self.system.devices_per_host or per_node, per_node)
        return per_host, -(-self.devices // per_host)

    def graph(self) -> Graph:
        """Compute graph of a workload that is a graph of kernels."""
        if isinstance(self.workload, LstmSpec | GemmSpec):
            return _graph(self.workload)
        raise TypeError(f"{with_article(self.workload.model)} is not a graph of kernels")

    def program(self, *, unrolled: bool = False) -> Program:
        """What every class of ranks computes and sends, of a workload that is a graph of kernels or a program itself.

        Time steps of a graph are blocks that repeat, or `unrolled`: written out, for what does not run in order or shows each of them.
        """
        if isinstance(self.workload, ProgramSpec):
            return self.workload.program
        assert isinstance(self.strategy, Mesh)  # a graph's is
        graph = self.graph()
        return transform(graph.unrolled if unrolled else graph, self.strategy)

    @property
    def shares_devices(self) -> bool:
        """Whether kernels may run at the same time on a device and share it: several at once, or those of several streams."""
        own = isinstance(self.workload, ProgramSpec) and self.workload.program.kernel_streams > 1
        several = self.kernels_per_device > 1 and not isinstance(self.workload, TransformerSpec)  # whose kernels wait for each other
        return own or several

    @property
    def slots(self) -> int | None:
        """Kernels of a stream that a device runs at once, which share it; None where every kernel waits for the one before."""
        return self.kernels_per_device if self.shares_devices else None

    def job(self) -> Job:
        """What a step of a transformer computes."""
        if not isinstance(self.workload, TransformerSpec):
            raise TypeError(f"{self.workload.model} is a graph of kernels; see Scenario.graph")
        return self._job

    @functools.cached_property
    def _job(self) -> Job:
        assert isinstance(self.workload, TransformerSpec)  # the caller has looked
        return job_of(self.workload)

    @functools.cached_property
    def architecture(self) -> Architecture:
        """Architecture of the system's devices, those of its pools apart."""
        return architecture(self.system, self.library)

    @functools.cached_property
    def pool_architectures(self) -> Mapping[str, Architecture]:
        """Architecture of the devices of every pool of the system."""
        return {name: architecture(pool, self.library_of(pool)) for name, pool in self.system.pooled.items()}

    def library_of(self, system: SystemSpec) -> TechLibrary:
        """The technology library that the system names, or one of its pools; the scenario's changes are of that of the system."""
        if system.techlib == self.system.techlib:
            return self.library
        with self.contents.used():
            return load_library(system.techlib, self.base)

    @property
    def workload_batch(self) -> int:
        """Samples of one step over all devices."""
        return int(self.workload.program.samples) if isinstance(self.workload, ProgramSpec) else self.workload.global_batch

    @property
    def tiered(self) -> bool:
        """Whether its devices have a second memory."""
        return self.system.tiered

    @property
    def balanced(self) -> bool:
        """Whether the software makes pipeline stages by weight, not by number of layers."""
        return self.stack is not None and self.stack.stages == "balanced"

    @property
    def elements(self) -> bool:
        """Whether sequence parallelism divides the elements of each token, not the tokens."""
        return self.stack is not None and self.stack.residual == "elements"

    @property
    def fused_attention(self) -> bool:
        """Whether the software's attention keeps no scores."""
        return self.stack is not None and self.stack.attention.kernel == "flash"

    @property
    def strategy_text(self) -> str:
        """The strategy as text that reads back as itself."""
        return as_text(self.strategy, self.workload)

    @property
    def tokens_per_sample(self) -> int:
        """Tokens that one sample counts in a step, 0 where the word has no meaning."""
        if isinstance(self.workload, TransformerSpec):
            return int(tokens_of(self.job()))
        if isinstance(self.workload, DlrmSpec):
            return 0
        if isinstance(self.workload, ProgramSpec):
            return int(self.workload.program.tokens)
        return int(self.graph().tokens_per_sample)

    def network(self) -> Network:
        """Topology of both network levels at the size in use."""
        return wired(self.system.network, *self.nodes)

    def replace(self, settings: str | Iterable[str] | Mapping[str, Any] = (), **named: Any) -> Scenario:
        """The scenario with other settings, which `crossflow.predict` describes: ``replace(nodes=8)``, ``replace({"system.nodes": 8})``."""
        return public("load")(self, settings, **named)  # type: ignore[no-any-return]

    @classmethod
    def load(cls, source: Any, settings: str | Iterable[str] | Mapping[str, Any] = (), **named: Any) -> Scenario:
        """A scenario from its file, its data, or a model and a system: `crossflow.load`."""
        return public("load")(source, settings, **named)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Scenario:
        """A scenario from plain data: `crossflow.from_dict`."""
        return public("from_dict")(data)  # type: ignore[no-any-return]

    @property
    def model(self) -> str:
        """Name of the model, as the scenario gives it."""
        return str(self.document.data["workload"]["model"])

    @property
    def batch(self) -> int:
        """Samples of a step, or requests at once."""
        return self.workload_batch

    def sweep(self, values: Mapping[str, Any] | None = None, **named: Any) -> Score:
        """Scores of every combination of values: `crossflow.sweep`."""
        return public("sweep")(self, values, **named)  # type: ignore[no-any-return]

    def export(self, kind: str = "megatron") -> str:
        """The launch file of its strategy: `crossflow.export`."""
        return public("export")(self, kind)  # type: ignore[no-any-return]

    def predict(self, **named: Any) -> Prediction:
        """What is predicted of it: `crossflow.predict`."""
        return public("predict")(self, **named)  # type: ignore[no-any-return]

    def plan(self, **named: Any) -> Plans:
        """Its best strategies: `crossflow.plan`, with its further arguments."""
        return public("plan")(self, **named)  # type: ignore[no-any-return]

    def explain(self, **named: Any) -> Explanation:
        """What limits it: `crossflow.explain`, with its further arguments."""
        return public("explain")(self, **named)  # type: ignore[no-any-return]

    def timeline(self, **named: Any) -> Timeline:
        """What every device does and when: `crossflow.engine.timeline`."""
        return public("timeline")(self, **named)  # type: ignore[no-any-return]

    def to_dict(self) -> dict[str, Any]:
        """The scenario's own data, as it would be written to a file."""
        return dict(self.document.data)

    def to_yaml(self, path: str | Path | None = None) -> str:
        """The scenario's own data as the text of a file, which is written as `save` does where a path is given."""
        if path is not None:
            self.save(path)
        return files.yaml_text(self.to_dict())

    def save(self, path: str | Path) -> Path:
        """Write the scenario as a YAML or JSON file, which names other files from its own folder."""
        written = Path(path)
        if written.suffix not in files.YAML:
            raise CrossflowError(f"{written}: a scenario is a YAML file; name it {written.with_suffix('.yaml')}")
        data = moved(self.to_dict(), self, written.parent)
        files.write_text(written, files.json_text(data) if written.suffix == ".json" else files.yaml_text(data))
        return written

    def provenance(self) -> dict[str, Any]:
        """Version of the program, and hashes of all that a result of this scenario is made of."""
        found = provenance.record(scenario=self.document.data, system=self.system_document.data)
        asked = {} if self.requests is None else {"requests": requests_of(self).digest}
        with self.contents.used():
            return {**found, "inputs": {**found["inputs"], "techlib": library_digest(self.system.techlib, self.base), **asked}}

    def library_document(self, name: str | None = None) -> Document:
        """Plain data of the technology library that the system names, or of another one."""
        with self.contents.used():
            return library_document(self.system.techlib if name is None else name, self.base)

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes get the scenario with what its files held, and make it from that once however often it is sent to them."""
        from crossflow import __version__

        return _restored, (__version__, json.dumps(self.document.data), self.base, self.name, self.contents.packed)

    def _repr_html_(self) -> str:
        from crossflow.base.drawing import html

        rows = {
            "system": self.fleet if self.system.kinds else f"{self.devices:,} x {self.system.name}",
            "workload": f"{self.workload.model}, {self.workload_batch:,} samples a step",
            "strategy": self.strategy_text,
            **({} if self.stack is None else {"software": self.stack.name}),
        }
        own = [(files.dotted(path), html.short(value)) for path, value in files.leaves(self.document.data)]
        return html.heading(self.name) + html.table(["", ""], rows.items()) + html.table(["setting", "value"], own, html.MOST)

    def __repr__(self) -> str:
        fleet = self.fleet if self.system.kinds else f"{self.devices} x {self.system.name}"
        return f"Scenario({self.name!r}: {self.workload.model} on {fleet}, strategy {self.strategy_text})"


_PROSE = ("name", "title", "notes", "note", "source")  # keys whose text names no file


def moved(data: Any, scenario: Scenario, folder: Path) -> Any:
    """Plain data of a scenario with the files that it names as they are named from another folder."""
    with scenario.contents.used():
        for path, value in list(files.walk(data)):
            if isinstance(value, str) and path[-1] not in _PROSE:
                named = _named_from(value, path, scenario.base or Path(), folder)
                data = files.replace(data, path, named, files.dotted(path)) if named != value else data
    return data


def _named_from(value: str, path: files.Path_, base: Path, folder: Path) -> str:
    """A text of a scenario, which may name a file, from another folder."""
    head, mark, named = value.partition(ORDER) if path == ("strategy",) else ("", "", value)
    suffix = f"/{CONFIG}" if path == ("workload", "model") and not Path(named).suffix else ""
    if not (Path(named).suffix or suffix) or Path(named).is_absolute():
        return value
    found = next((there for there in (base / named, Path(named)) if contents.is_file(Path(f"{there}{suffix}"))), None)
    return value if found is None else f"{head}{mark}{files.from_folder(found, folder)}"


@functools.lru_cache(maxsize=64)
def _restored(version: str, data: str, base: Path | None, name: str, packed: Packed) -> Scenario:
    """A scenario that another process sent; CrossflowError from one of another version, which may mean something else."""
    from crossflow import __version__

    if version != __version__:
        raise CrossflowError(f"{name} was sent by crossflow {version}, and this is {__version__}; install one version everywhere")
    with Contents.unpacked(packed).used():
        return from_document(Document(file=name, data=json.loads(data)), base, name)


@functools.lru_cache(maxsize=64)
def _graph(workload: LstmSpec | GemmSpec) -> Graph:
    return workload.graph()


def load(path: str | Path, settings: Iterable[str] = ()) -> Scenario:
    """Read a scenario file; `settings` are overrides such as ``system.devices=512``.

    Raises
    ------
    SpecError
        With every problem of the file, each with its line.
        A strategy that does not fit the system or the workload is one of them.
    """
    return files.with_settings(functools.partial(_loaded, path), tuple(settings))


def _loaded(path: str | Path, settings: Sequence[str]) -> Scenario:
    document = files.override(spelled_out(scenario_document(files.read_yaml(path), str(path)), settings), settings)
    return resolved(document, Path(path).parent, name=Path(path).stem)


def scenario_document(read: Document, path: str) -> Document:
    """What a file holds, if it may be a scenario; SpecError with the right command, or the place for it, for another kind of file."""
    if isinstance(read.data, Mapping) and "scenario" in read.data:
        raise read.error(("scenario",), f"this is a study; run it with: crossflow study {path}")
    if isinstance(read.data, Mapping) and read.data.get("model") in MODELS and "system" not in read.data:
        raise read.error(("model",), f"this is a model; say what it runs on: crossflow predict --model {path} --on dgx-h100")
    check_no_part(read, path)
    return read


def check_no_part(read: Document, path: str) -> None:
    """SpecError for a file that is a part of a scenario, with where a scenario names it."""
    data, name = read.data, Path(path).name
    if isinstance(data, Mapping) and "jobs" in data and "workload" not in data:
        raise read.error(("jobs",), f"this is a cluster with its jobs; schedule them with: crossflow schedule {path}")
    if not isinstance(data, Mapping) or "system" in data or "scenario" in data:
        return
    kind = data.get("kind")
    if kind == "program":
        raise read.error(("kind",), f"this is a program; name it as the workload of a scenario: {{system: dgx-h100, workload: {name}}}")
    if kind in SYSTEM_KINDS or ("template" in data and "workload" not in data):
        key = "kind" if "kind" in data else "template"
        raise read.error((key,), f"this is a system; name it in a scenario: system: {{template: {name}}}")
    if kind == "software":
        raise read.error(("kind",), f"this is a software stack; name it in a scenario: software: {name}")
    if kind == "reliability":
        raise read.error(("kind",), f"this is a reliability file; name it in a scenario: run: {{tokens: 1.0e12, failures: {name}}}")
    sections = [section for section in KINDS if isinstance(data.get(section), Mapping)]
    if sections and "workload" not in data:
        message = f"this is a technology library; name it in a scenario: system: {{template: reference-training, techlib: {name}}}"
        raise read.error((sections[0],), message)


def resolved(document: Document, base: Path | None, name: str, like: Scenario | None = None) -> Scenario:
    """Resolve a scenario as `from_document` does, and check that its strategy divides its workload; SpecError with every problem."""
    try:
        scenario = from_document(document, base, name, like)
        check_strategy(scenario)
    except StrategyError as error:
        raise SpecError([_strategy_problem(document, error)]) from None
    return scenario


def _strategy_problem(document: Document, error: StrategyError) -> Problem:
    """What is wrong with a strategy, at the part of it that the error is about; of a program, which has its own, that is the system."""
    section = "system" if str(error).startswith("system: ") else "strategy"
    message = str(error).removeprefix(f"{section}: ")
    return document.problem(document.blamed(section, message), message)


def check_strategy(scenario: Scenario) -> None:
    """Raise StrategyError when the strategy of a scenario cannot divide its workload."""
    if isinstance(scenario.strategy, Mesh):
        scenario.program()
        return
    problem = _undivided(scenario, scenario.strategy)
    if problem is not None:
        raise StrategyError(f"strategy {scenario.strategy_text}: {problem}")


def requests_of(scenario: Scenario) -> RequestTrace:
    """The requests of a scenario, in order of arrival; CrossflowError where it has none."""
    if scenario.requests is None:
        raise CrossflowError(
            f"{scenario.name}: it has no requests; give the key requests: a trace, or how they are drawn (or --requests with --model)"
        )
    return requests_in(scenario.requests, scenario.base).trace


def steady(scenario: Scenario) -> Scenario:
    """The service in steady state that a scenario's requests are in the mean: equal ones, as many at once or a second; without requests."""
    if scenario.requests is None:
        return scenario
    document = scenario.document
    with scenario.contents.used():
        mean = filled(document.under("workload"), (scenario.requests, requests_of(scenario)))
    plain = document.without("requests")
    return from_document(
        Document(file=document.file, data={**plain.data, "workload": mean.data}, lines=plain.lines), scenario.base, scenario.name, scenario
    )


def check_steady(scenario: Scenario) -> None:
    """Raise CrossflowError for a scenario with requests or with a job, which no single step answers: the one place that says so."""
    if scenario.post_training is not None:
        raise CrossflowError(
            f"{scenario.name}: an iteration of its job has phases, which predict, explain, plan, timeline and study know; "
            "leave out job for its training step"
        )
    if scenario.requests is not None:
        raise CrossflowError(
            f"{scenario.name}: its requests come one by one, and crossflow serve replays them; leave out requests for a steady state"
        )


def check_one_step(scenario: Scenario) -> None:
    """Raise CrossflowError for a service, whose steps are of two kinds in steady state."""
    check_steady(scenario)
    if isinstance(scenario.workload, TransformerSpec) and scenario.workload.task == "serving":
        raise CrossflowError(f"{scenario.name}: a service in steady state has steps of two kinds; give task: decode or prefill")
    if scenario.feeders:
        what = "a step is shown on devices that hold all of a model, and the experts have devices of their own; leave out serving.experts"
        raise CrossflowError(f"{scenario.name}: {what}")


def check_alike(scenario: Scenario, what: str) -> None:
    """Raise CrossflowError where devices are of several kinds, for which `what` is not made."""
    if scenario.system.kinds:
        pools = ", ".join(f"system.pools.{name}" for name in scenario.system.staged)
        raise CrossflowError(f"{scenario.name}: {what} shows devices of one kind only; leave {pools} out")


def strategy_of(scenario: Scenario, written: str | Mapping[str, Any]) -> AnyStrategy | None:
    """A strategy as a scenario would read it; StrategyError for what is none, SpecError for a schedule's file that is wrong."""
    with scenario.contents.used():
        return read_strategy(_found_schedule(written, scenario.base), scenario.workload, scenario.system)


def _undivided(scenario: Scenario, strategy: Plan | Hierarchy) -> str | None:
    """Why a strategy cannot divide the layered model of a scenario, None where it can."""
    return strategy_problem(
        strategy, scenario.workload, scenario.nodes, balanced=scenario.balanced, elements=scenario.elements,
        hosted=scenario.system.host is not None, tiered=scenario.tiered, kinds=scenario.system.kinds,
    )  # fmt: skip


def divides(scenario: Scenario, written: str | Mapping[str, Any]) -> bool:
    """Whether a strategy, on as many devices as the system has, divides a layered model.

    False too where only a scenario of its own can tell, and say why.
    """
    system, workload = scenario.system, scenario.workload
    counted = system.devices is not None or system.nodes is not None
    layered = isinstance(workload, (TransformerSpec, DlrmSpec))
    if not (counted and layered and isinstance(written, (str, Mapping))):
        return False
    try:
        strategy = fitting(strategy_of(scenario, written), system, workload)
        assert not isinstance(strategy, Mesh)  # which layered models have none of
        return _undivided(scenario, strategy) is None
    except CrossflowError:
        return False


@dataclass(frozen=True, kw_only=True, eq=False)
class Sized:
    """A workload of a scenario with other dimensions, on another number of devices."""

    settings: Mapping[str, Any]  # what is changed
    workload: Workload  # as the scenario would have it
    system: SystemSpec  # as the scenario would have it
    written: str | Mapping[str, Any] | None  # its strategy as it is written
    base: Path | None  # its folder
    contents: Contents  # what its files hold

    def strategy(self, written: str | Mapping[str, Any] | Plan | Hierarchy | None) -> Plan | Hierarchy:
        """A strategy as the scenario would read it; StrategyError where it does not fit the devices."""
        if isinstance(written, (Plan, Hierarchy)):
            found: AnyStrategy | None = written
        else:
            with self.contents.used():
                found = read_strategy(_found_schedule(written, self.base), self.workload, self.system)
        found = fitting(found, self.system, self.workload)
        assert not isinstance(found, Mesh)  # which layered models have none of
        return found

    @property
    def nodes(self) -> tuple[int, int]:
        """Devices of one node, and number of nodes, of the whole system."""
        return self.system.mesh if self.system.kinds else _nodes(self.system, self.system.device_count)


def _nodes(system: SystemSpec, devices: int) -> tuple[int, int]:
    """Devices of one node (package, server), and number of nodes, of so many devices."""
    per_node = min(system.devices_per_node, devices)
    return per_node, -(-devices // per_node)


COUNTS = ("system.devices", "system.nodes")  # settings of a system that change the number of devices only


def resized(scenario: Scenario, settings: Mapping[str, Any]) -> Sized:
    """A scenario's workload with other values in its section, and of `COUNTS`, read without the sections that stay.

    Raises an error where something is wrong; `from_document` tells what.
    """
    data = scenario.document.data
    for path, value in settings.items():
        data = files.replace(data, files.parts_of(path), value, f"{path}={value}")
    changed = {path.split(".")[0] for path in settings}
    if scenario.requests is not None or scenario.post_training is not None:  # which fill in the workload, or have parts of their own
        raise SpecError([])
    spec, system = scenario.workload, scenario.system
    if "workload" in changed:
        own = Document(file=scenario.document.file, data=data["workload"])
        if own.data["model"] not in MODELS:
            named = tuple((key, own.data.get(key)) for key in ("task", "dtype", "weight_dtype"))
            own = files.merge(_own_preset(scenario, own.data["model"], named), own.without("model"))
        spec = _with_draft(MODELS[own.data["model"]].model_validate(own.data), own, scenario.base, _own_types(scenario))
        if any(files.held(data["workload"], key.split(".")) is not None for key, _ in without_meaning(spec)):
            raise SpecError([])
    if "system" in changed:
        system = _counted(system, data["system"])
    if type(spec) is not type(scenario.workload):
        raise SpecError([])
    written, base, used = data.get("strategy"), scenario.base, scenario.contents
    return Sized(settings=settings, workload=spec, system=system, written=written, base=base, contents=used)


@functools.lru_cache(maxsize=64)
def _own_preset(scenario: Scenario, name: str, given: tuple[tuple[str, Any], ...]) -> Document:
    """The preset that a scenario's workload begins with where it gives some task and types; without its lines."""
    with scenario.contents.used():
        document = Document(file=scenario.document.file, data={key: value for key, value in given if value is not None})
        found = _preset(name, document, scenario.base, _own_types(scenario))
    return Document(file=found.file, data=found.data)


def _counted(system: SystemSpec, section: Mapping[str, Any]) -> SystemSpec:
    """A system with the numbers of devices, or of nodes, that its section says."""
    devices, nodes = (section.get(key) for key in ("devices", "nodes"))
    if any(count is not None and (type(count) is not int or count < 1) for count in (devices, nodes)):
        raise SpecError([])
    given = {"devices": devices, "nodes": nodes} if devices is not None or nodes is not None else {}
    found = system.model_copy(update=given)
    if devices is not None and (nodes is not None or (devices > system.devices_per_node and devices % system.devices_per_node)):
        raise SpecError([])
    for problem in _network_problems(found, _nodes(found, found.device_count), Document(file="", data={})):
        raise SpecError([problem])
    return found


SHORT = {
    "system": "template",
    "workload": "model",
    "software": "like",
    "requests": "trace",
}  # sections that a name alone may stand for, and their key of it


def spelled_out(document: Document, settings: Iterable[str] = ()) -> Document:
    """The document with sections given by a name alone as the mappings that they are short for, so that settings reach below.

    A strategy as text is one too where `settings` change a key of it.
    """
    data = document.data
    if not isinstance(data, Mapping):
        return document
    named: dict[files.Path_, Any] = {
        (section,): {key: data[section]} for section, key in SHORT.items() if isinstance(data.get(section), str)
    }
    pools = files.held(data, ("system", "pools"))
    if isinstance(pools, Mapping):
        named |= {("system", "pools", name): {"template": pool} for name, pool in pools.items() if isinstance(pool, str)}
    if any(setting.startswith("strategy.") for setting in settings):
        if data.get("strategy") == AUTO:
            raise document.error(("strategy",), "auto chooses all of a strategy, and no key of it can be set; give one, such as tp4-dp2")
        named[("strategy",)] = opened(data.get("strategy"))
    return files.replaced(document, named) if named else document


def from_dict(data: Mapping[str, Any], name: str = "scenario", base: Path | None = None) -> Scenario:
    """Read a scenario from plain data, as a study holds it."""
    return from_document(Document(file=name, data=dict(data)), base, name=name)


@stage("scenario")
def from_document(document: Document, base: Path | None, name: str, like: Scenario | None = None) -> Scenario:
    """Resolve a scenario, with the problems of all of its sections at once; sections equal to those of `like` are its own."""
    with (used := contents.in_use() if like is None else like.contents).used():
        return _resolved(_with_config(_as_shipped(spelled_out(document)), base), base, name, like, used)


def _as_shipped(document: Document) -> Document:
    """The document with the names of shipped files as these have them, whatever the letter case in which it names them."""
    names: dict[files.Path_, str] = {}
    pools = files.held(document.data, ("system", "pools"))
    paths: list[files.Path_] = [("system", "pools", name, "template") for name in (pools if isinstance(pools, Mapping) else ())]
    for path in (*SHIPPED, *paths):
        named, known = files.held(document.data, path), names_at(path)
        if isinstance(named, str) and known is not None:
            with document.telling(*path):
                found = known(named)
            if found not in (None, named):
                names[path] = str(found)
    return files.replaced(document, names) if names else document


def _with_config(document: Document, base: Path | None) -> Document:
    """The document with the file that describes its model where it names the folder of one."""
    path = ("workload", "model")
    named = files.held(document.data, path)
    if not isinstance(named, str) or model_name(named) is not None or (found := _config_of(named, base)) == named:
        return document
    return files.replaced(document, {path: found})


def _with_components(document: Document, system: SystemSpec, system_document: Document, base: Path | None) -> Document:
    """The document with the names of library entries as the library of its system has them."""
    own = document.data["system"]
    paths: list[files.Path_] = [("technology", role) for role in type(system.technology).model_fields]
    paths += [("levels", level, "component") for level in (system.levels if isinstance(system, GeneratedSystem) else ())]
    names = {
        ("system", *path): written
        for path in paths
        if isinstance(named := files.held(own, path), str) and (written := files.held(system_document.data, path)) != named
    }
    document = files.replaced(document, names) if names else document
    if not (changes := document.data.get("techlib")):
        return document
    library = load_library(system.techlib, base)
    for kind, entries in changes.items():
        for entry in entries if kind in KINDS and isinstance(entries, Mapping) else ():
            with document.telling("techlib", kind, entry):
                document = files.renamed(document, ("techlib", kind, entry), library.name_of(kind, entry))
    return document


def _resolved(document: Document, base: Path | None, name: str, like: Scenario | None, used: Contents) -> Scenario:
    problems, system_document = list[Problem](), document
    system = workload = strategy = stack = top = asked = None
    with _told(problems):
        top = files.validate(ScenarioFile, document)
    wrong = {problem.path.split(".")[0] for problem in problems}
    given = {key: value for key, value in document.data.items() if key not in wrong} if isinstance(document.data, Mapping) else {}
    with _told(problems, "system"):
        if like is not None and _with_engines(like.document.data) == _with_engines(given):
            system, system_document = like.system, like.system_document
        elif "system" in given:
            system, system_document = resolve(document.under("system"), base, _with_engines(given)[1])
    with _told(problems):
        asked = read_requests(None if top is None else top.requests, document, base)
    with _told(problems, "workload"):
        rates = () if system is None else _multiplied_by_all(system)
        same = like is not None and all(like.document.data.get(key) == given.get(key) for key in ("workload", "requests"))
        if like is not None and same and _multiplied_by_all(like.system) == rates:
            workload = like.workload
        elif "workload" in given and (asked or document.data.get("requests") is None):
            workload = _workload(filled(document.under("workload"), asked), base, rates)
    with _told(problems):
        if isinstance(workload, ProgramSpec):
            workload.program  # noqa: B018 - read here, where its problems join the others
    with _told(problems), _of_strategy(document):
        strategy = read_strategy(_found_schedule(given.get("strategy"), base), workload, system)
    try:
        with _told(problems, "software"):
            stack = _stack_of(given.get("software"), workload, system, document, base, like)
    except CrossflowError as error:
        problems.append(document.problem(document.blamed("software", str(error)), str(error)))
    if problems or top is None or system is None or workload is None:
        raise SpecError(map(pointed, problems))
    document = _with_components(document, system, system_document, base)
    _check_meaning(top, workload, system, document)
    _check_system(system, workload, stack, top, document)
    strategy = fitting(strategy, system, workload)
    scenario = Scenario(
        name=top.name or name,
        system=system,
        workload=workload,
        strategy=strategy,
        stack=stack,
        order=_order(top.placement, strategy, workload, document),
        kernels_per_device=top.kernels_per_device,
        document=document,
        system_document=system_document,
        library=_library(document.data.get("techlib", {}), system.techlib, document, base, like),
        run=top.run,
        base=base,
        contents=used,
        profile=_profile(top.profile, system, system_document, base, document),
        reliability=_reliability(top, document, base, like),
        requests=top.requests,
        post_training=top.job,
    )
    problems += [*_unwired(system, scenario.nodes, document)] or [*_uncongested(scenario)]
    if problems:
        raise SpecError(problems)
    return scenario


def _with_engines(data: Mapping[str, Any]) -> tuple[Any, Mapping[str, str]]:
    """The system section of a scenario, and pools on which a part of its service runs, each with what says how many devices it has."""
    pools, experts = (files.held(data, ("workload", "serving", name)) for name in ("pools", FEEDING))
    known = {str(name): f"the workers of serving.pools.{name} say" for name in pools} if isinstance(pools, Mapping) else {}
    return data.get("system"), known if experts is None else {**known, FEEDING: "serving.experts.strategy says"}


@contextlib.contextmanager
def _of_strategy(document: Document) -> Iterator[None]:
    """Raise what is wrong with a strategy as a problem of the document."""
    try:
        yield
    except StrategyError as error:
        raise SpecError([_strategy_problem(document, error)]) from None


@contextlib.contextmanager
def _told(problems: list[Problem], section: str = "") -> Iterator[None]:
    """Add the problems of a section to those of a file, instead of raising them."""
    try:
        yield
    except SpecError as error:
        problems += [problem.below(section) if section else problem for problem in error.problems]


def _multiplied(system: SystemSpec) -> Collection[str]:
    """Types that the devices of a system multiply in; a rate of 0 is as one that is left out."""
    return {dtype: rate for dtype, rate in system.product_rates.items() if (rate > 0).any()}.keys()


@functools.lru_cache(maxsize=64)
def _own_types(scenario: Scenario) -> Collection[str]:
    """Types that the devices of a scenario multiply in: a sweep over dimensions asks at each point."""
    return _multiplied(scenario.system)


def _multiplied_by_all(system: SystemSpec) -> Collection[str]:
    """Types that every kind of device of a system multiplies in."""
    pools = [_multiplied(pool) for pool in system.pooled.values()]
    return dict.fromkeys(dtype for dtype in _multiplied(system) if all(dtype in rates for rates in pools)).keys()


def _check_types(system: SystemSpec, workload: Workload, stack: SoftwareStack | None, document: Document) -> None:
    """SpecError for data types that the device does not compute in, or the software does not keep weights in."""
    for one in system.places.values():
        dtypes, what = _multiplied(one), "rates" if isinstance(one, GeneratedSystem) else "throughput"
        if workload.dtype not in dtypes:
            raise document.error(("workload", "dtype"), f"{one.name} has no {what} for {workload.dtype}; it has {', '.join(dtypes)}")
    if isinstance(workload, TransformerSpec) and workload.weight_dtype and stack is not None and stack.weight == "fp32":
        raise document.error(("workload", "weight_dtype"), f"{stack.name} keeps weights in fp32; leave it out, or name other software")


def _check_system(system: SystemSpec, workload: Workload, stack: SoftwareStack | None, top: ScenarioFile, document: Document) -> None:
    """SpecError for a workload that the devices of a system do not compute, or that its pools have no part in."""
    _check_types(system, workload, stack, document)
    _check_pools(system, workload, top, document)


def _check_pools(system: SystemSpec, workload: Workload, top: ScenarioFile, document: Document) -> None:
    """SpecError for pools that nothing runs on, and for what is not known of systems of several kinds of devices."""
    if not system.pools:
        return
    if top.run is not None:
        raise document.error(("run",), "a whole run is priced on devices of one kind only; leave it out, or system.pools")
    trains = isinstance(workload, TransformerSpec) and workload.task == "training"
    for name in system.pools:
        if problem := _unused(name, trains=trains, workload=workload):
            raise document.error(("system", "pools", name), problem)
    if trains and any(name != READING for name in system.pools):
        _check_staged(system, top, document)
    for place, one in system.places.items():
        _check_counted_once(place, one, document)


def _unused(name: str, *, trains: bool, workload: Workload) -> str | None:
    """Why the devices of a pool have no part in a workload, as a sentence; None where they have."""
    if name == FEEDING and isinstance(workload, TransformerSpec) and workload.serving.experts is not None:
        return None
    if name != READING and not trains:
        if (
            name == FEEDING
            and isinstance(workload, TransformerSpec)
            and workload.step == "decode"
            and FEEDING not in workload.serving.pools
        ):
            return f"no experts lie on it; give workload.serving.{FEEDING}: {{strategy: dp8-ep8}}, or leave the pool out"
        if isinstance(workload, TransformerSpec) and workload.task == "serving":
            if name in workload.serving.pools:
                return None
            return f"no engines run on it; give workload.serving.pools.{name}: {{strategy: tp8, workers: 2}}, or leave the pool out"
        return "its devices hold stages of a transformer that is trained; give such a workload, or leave the pool out"
    reads = isinstance(workload, TransformerSpec) and workload.task == "serving" and workload.serving.prefill is not None
    if name == READING and not reads:
        why = "its devices read the prompts of a service; give workload.task: serving and workload.serving.prefill, or leave it out"
        return f"{why}; further stages of a pipeline lie on a pool of any other name" if trains else why
    return None


def _check_staged(system: SystemSpec, top: ScenarioFile, document: Document) -> None:
    """SpecError for pools whose stages are not to be counted or priced."""
    for place, one in system.places.items():
        if not one.counted:
            message = "say how many devices it has, with nodes or devices: stages are shared out over all of them"
            raise document.error(tuple(place.split(".")), message)
        if isinstance(one, DatasheetSystem | GeneratedSystem) and is_none(one.technology.memory):
            raise document.error(
                tuple(place.split(".")), "chips without main memory hold no stages beside other devices; leave the pools out"
            )
    if top.profile is not None or system.profile is not None:
        raise document.error(("profile",), "measured times are of devices of one kind only; leave it out, or system.pools")


def _check_counted_once(place: str, one: SystemSpec, document: Document) -> None:
    """SpecError for what is counted for the devices of the system itself only, in it or in a pool."""
    if place != "system" and isinstance(one, GeneratedSystem) and (one.technology.intra_switch or one.technology.inter_switch):
        message = "named switches are counted for the devices of the system itself only; leave them out, or use network.topology"
        raise document.error((*place.split("."), "technology"), message)
    if one.operation is not None and one.operation.lifetime is not None:
        message = "the carbon of making devices is counted for one kind only; leave it out, or system.pools"
        raise document.error((*place.split("."), "operation", "lifetime"), message)


def _order(placement: tuple[str, ...] | str, strategy: AnyStrategy, workload: Workload, document: Document) -> tuple[str, ...] | None:
    """Order in which axes are laid out, as far as the strategy has them; None where all are tried."""
    said = strategy.order if isinstance(strategy, Mesh) else None
    if isinstance(placement, str):
        return said
    if said is not None:
        raise document.error(("placement",), f"strategy {strategy} says how its axes lie, {', '.join(said)}; leave placement out")
    if not isinstance(strategy, Mesh):
        there = "leave placement out" if isinstance(strategy, Hierarchy) else "give placement there"
        raise document.error(("placement",), f"{with_article(workload.model)} lies as its strategy says; {there}")
    _check_order(placement, strategy, document)
    return tuple(name for name in placement if name in {axis.name for axis in strategy.axes})


def _check_meaning(top: ScenarioFile, workload: Workload, system: SystemSpec, document: Document) -> None:
    """SpecError for everything that a scenario itself says and that has no meaning for its workload."""
    own, kind = document.data["workload"], with_article(workload.model)
    problems = [
        document.problem(("workload", *key.split(".")), sentence)
        for key, sentence in without_meaning(workload)
        if files.held(own, key.split(".")) is not None
    ]
    if top.run is not None and top.run.tokens is not None and not _has_tokens(workload):
        what = "a model of images" if isinstance(workload, TransformerSpec) else kind
        problems.append(document.problem(("run", "tokens"), f"{what} has no tokens; give samples or steps"))
    problems += _interrupted(top, workload, system, document)
    problems += _of_job(top, workload, system, document)
    if isinstance(workload, TransformerSpec) and workload.serving.experts is not None and workload.serving.pools:
        what = "engines of a pool hold all of a model, and those of the strategy attend alone; leave it out, or leave out the experts"
        problems.append(document.problem(("workload", "serving", "pools"), what))
    if problems:
        raise SpecError(problems)


def _interrupted(top: ScenarioFile, workload: Workload, system: SystemSpec, document: Document) -> Iterator[Problem]:
    """What stands against interruptions of a run, or against how it saves its state."""
    if top.run is None or top.run.failures is None:
        return
    task = workload.task if isinstance(workload, TransformerSpec) else ""
    if task != "training":
        what = f"this is {with_article(workload.model)}" if not task else f"workload.task is {task}"
        yield document.problem(("run", "failures"), f"a transformer that is trained is interrupted and comes back; {what}; leave it out")
    saved = top.run.checkpoint
    if saved is not None and saved.to == "neighbours" and system.mesh[1] == 1:
        yield document.problem(("run", "checkpoint", "to"), "the system has one node, which has no neighbours; use storage, or more nodes")


def _of_job(top: ScenarioFile, workload: Workload, system: SystemSpec, document: Document) -> Iterator[Problem]:
    """What stands against a post-training job."""
    job = top.job
    if job is None:
        return
    if not isinstance(workload, TransformerSpec) or workload.task != "training":
        what = (
            f"this is {with_article(workload.model)}" if not isinstance(workload, TransformerSpec) else f"workload.task is {workload.task}"
        )
        yield document.problem(("job",), f"a job trains a transformer, and {what}; leave job out, or give such a workload")
        return
    if system.pools:
        yield document.problem(("job",), "a job is priced on devices of one kind only; leave it out, or system.pools")
    if top.run is not None and top.run.failures is not None:
        what = "interruptions are known of training steps alone, and an iteration of a job has engines and other models beside them"
        yield document.problem(("run", "failures"), f"{what}; leave it out, or job")
    if job.rolls_out and not writes(workload):
        yield document.problem(("job", "kind"), f"{job.kind} trains on answers, and this model writes no tokens; use dpo or distill")
    if job.rolls_out and job.samples % workload.global_batch:
        yield document.problem(
            ("job", "rollout", "prompts"),
            f"its {job.samples:,} answers do not fill training steps of {workload.global_batch:,} samples (workload.global_batch)",
        )


def _reliability(top: ScenarioFile, document: Document, base: Path | None, like: Scenario | None) -> Reliability | None:
    """What interrupts a run, that of `like` where it names the same."""
    if top.run is None or top.run.failures is None:
        return None
    if like is not None and files.held(like.document.data, ("run", "failures")) == top.run.failures:
        return like.reliability
    section = document.under("run", "failures")
    try:
        return load_reliability(top.run.failures, section, base)
    except SpecError as error:
        raise SpecError(problem.below("run.failures") if problem.file == document.file else problem for problem in error.problems) from None


def _has_tokens(workload: Workload) -> bool:
    """Whether the samples of a workload are sequences of tokens."""
    if isinstance(workload, ProgramSpec):
        return bool(workload.program.tokens)
    return isinstance(workload, LstmSpec) or (isinstance(workload, TransformerSpec) and workload.vocabulary is not None)


def _unwired(system: SystemSpec, used: tuple[int, int], document: Document) -> Iterator[Problem]:
    """Levels of the networks that do not hold the nodes in use, of which there are so many where all devices are alike."""
    if not system.kinds:
        yield from _network_problems(system, used, document)
        return
    for place, one in system.places.items():
        yield from _network_problems(one, _nodes(one, one.device_count), document, place)


def _uncongested(scenario: Scenario) -> Iterator[Problem]:
    """Why the network is not shared as the system says."""
    for place, one in scenario.system.places.items():
        for name in LEVELS:
            congestion = getattr(one.network, name).congestion
            path = (*place.split("."), "network", name, "congestion")
            why = "" if congestion is None else _congestion_problem(scenario, congestion, name)
            if why:
                yield scenario.document.problem(path, why)


def _congestion_problem(scenario: Scenario, congestion: Congestion, level: str) -> str | None:
    """Why a level of the network is not shared so; None where it is."""
    workload = scenario.workload
    if level == "intra":
        return "jobs share the network between nodes; give it as network.inter.congestion"
    if scenario.system.pools:
        return "congestion is known of devices of one kind only; leave it out, or system.pools"
    if isinstance(workload, TransformerSpec) and workload.task == "serving":
        return "engines of a service have a network of their own; leave it out, or take task: prefill or decode"
    if scenario.profile is not None:
        return "measured times hold for a network that is not shared; leave it out, or profile"
    return congestion_refusal(congestion, scenario.network())


def _network_problems(system: SystemSpec, used: tuple[int, int], document: Document, below: str = "system") -> Iterator[Problem]:
    """Levels of the network that do not hold the nodes in use: devices of a node, and nodes; `below` is where the system stands."""
    for level, nodes in zip(LEVELS, used, strict=True):
        try:
            topology_of(system.network, level, nodes)
        except CrossflowError as error:
            place = (*below.split("."), "network", level)
            said = ((*place, key) for key in ("shape", "group", "oversubscription", "ports", "topology") if (*place, key) in document.lines)
            yield document.problem(next(said, place), str(error))


def _found_schedule(given: str | Mapping[str, Any] | None, base: Path | None) -> str | Mapping[str, Any] | None:
    """A strategy whose schedule is a file, with its path from the scenario's folder where it lies there; its order is held."""
    if isinstance(given, str):
        head, mark, named = given.partition(ORDER)
        return f"{head}{mark}{_held_schedule(named, base)}" if mark else given
    file = given.get("schedule") if isinstance(given, Mapping) else None
    return {**given, "schedule": _held_schedule(file, base)} if isinstance(given, Mapping) and isinstance(file, str) else given


def _held_schedule(named: str, base: Path | None) -> str:
    """A schedule's file from where it is found; a name as it stands where there is no such file."""
    if Path(named).suffix not in files.YAML:
        return named
    for path in (Path(named) if base is None else base / named, Path(named)):
        if contents.is_file(path):
            hold_order(path)
            return named if path == Path(named) else str(path)
    raise StrategyError(f"schedule: there is no file {named}")


def _profile(named: str | None, system: SystemSpec, system_document: Document, base: Path | None, document: Document) -> Profile | None:
    """Measured events of a scenario's devices, over those that its system names; a path is relative to the file that it stands in."""
    try:
        below = system_profile(system, system_document, base)
    except SpecError as error:
        raise SpecError(problem.below("system") for problem in error.problems) from None
    if named is None:
        return below
    own = read_profile(profile_at(named, base, document), system.name)
    return own if below is None else own.over(below)


def _stack_of(
    named: str | Mapping[str, Any] | None, workload: Workload | None, system: SystemSpec | None, document: Document, base: Path | None,
    like: Scenario | None,
) -> SoftwareStack | None:  # fmt: skip
    """The same, that of `like` where it names no other, and neither its task nor its devices are others."""
    kept = None if like is None else like.document.data.get("software")
    if like is not None and kept == named and _runs(workload, system) == _runs(like.workload, like.system):
        return like.stack
    return _stack(named, workload, _vendor(system), document, base)


def _runs(workload: Workload | None, system: SystemSpec | None) -> tuple[type, str, str]:
    """What the usual software depends on: the kind of workload, its task, and the maker of the devices."""
    return type(workload), getattr(workload, "task", ""), _vendor(system)


def _vendor(system: SystemSpec | None) -> str:
    return getattr(system, "vendor", "")


def _stack(
    named: str | Mapping[str, Any] | None, workload: Workload | None, vendor: str, document: Document, base: Path | None
) -> SoftwareStack | None:
    """Software of a layered model, and of a program that names one; graphs of kernels have none."""
    if isinstance(workload, LstmSpec | GemmSpec) and named is not None:
        raise CrossflowError(f"a software stack runs transformers, dlrm and programs; {workload.model} has none")
    if isinstance(workload, LstmSpec | GemmSpec) or (isinstance(workload, ProgramSpec) and named is None):
        return None
    task = workload.task if isinstance(workload, TransformerSpec) else "training"
    usual = OF_VENDORS.get(vendor, {}).get(task, DEFAULT_STACK[task])
    if named is None:
        return load_stack(DLRM_STACK if isinstance(workload, DlrmSpec) else usual, base)[0]
    found = load_stack(named if isinstance(named, str) else document.under("software"), base)[0]
    if isinstance(workload, TransformerSpec) and task == "training" and not found.trains:
        raise CrossflowError(TRAINS_NOT.format(name=found.name, other=usual))
    return found


def _library(changes: Mapping[str, Any], name: str, document: Document, base: Path | None, like: Scenario | None) -> TechLibrary:
    """The library that a system names, with the scenario's changes: ``{memory: {HBM3: {access_latency: 80 ns}}}``."""
    if like is not None and like.system.techlib == name and like.document.data.get("techlib", {}) == changes:
        return like.library
    library, problems = load_library(name, base), []
    for path, value in files.leaves(changes):
        try:
            library = _changed(library, tuple(map(str, path)), value)
        except (ValueError, CrossflowError) as error:
            problems.append(document.problem(("techlib", *path), str(error)))
    if problems:
        raise SpecError(problems)
    return library


def _changed(library: TechLibrary, path: tuple[str, ...], value: Any) -> TechLibrary:
    quantity = library.quantity(path)
    if quantity is None:
        raise CrossflowError("no quantity of the technology library stands here")
    changed: TechLibrary = with_quantity(library, path, quantity.read(value))
    return changed


def _check_order(order: tuple[str, ...], strategy: Mesh, document: Document) -> None:
    names = [axis.name for axis in strategy.axes if axis.size > 1]
    if sorted(set(order) & set(names)) != sorted(names) or len(set(order)) != len(order):
        raise document.error(("placement",), f"expected each of {', '.join(names)} once, or auto; got {', '.join(order)}")


def _workload(document: Document, base: Path | None, rates: Collection[str]) -> Workload:
    """Workload section: a model with its dimensions, or a preset by name with changes, on devices that multiply in some types."""
    data = document.data
    if not isinstance(data, Mapping):
        raise document.error((), f"expected a mapping with a model, got {data!r}")
    model = data.get("model")
    if model is None:
        near = next((key for key in data if isinstance(key, str) and did_you_mean(key, ["model"])), None)
        for_it = "" if near is None else f"; '{near}' looks like a misspelling of it"
        raise document.error((), f"the key 'model' is missing: one of {', '.join(MODELS)}, or a preset{for_it}")
    if not isinstance(model, str):
        raise document.error(("model",), f"expected one of {', '.join(MODELS)}, or a preset, got {model!r}")
    if SERVED in data:
        raise document.error((SERVED,), "only the file of a model says how it was released; give weight_dtype and wide_layers")
    found = model.endswith((".json", ".json.gz"))  # a program itself, whose place is known
    if model not in MODELS:
        preset = _preset(str(model), document, base, rates)
        model = preset.data.get("model")
        if not isinstance(model, str) or model not in MODELS:
            raise preset.error(("model",), f"expected one of {', '.join(MODELS)}, got {shown(model)}{did_you_mean(str(model), MODELS)}")
        document = files.merge(preset, document.without("model"))
    spec: Workload = files.validate(MODELS[str(model)], document)
    if isinstance(spec, ProgramSpec):
        spec = spec if base is None or found else spec.model_copy(update={"file": str(base / spec.file)})
        if not contents.is_file(Path(spec.file)):
            raise document.error(("file",), f"there is no file {spec.file}")
    return _with_draft(spec, document, base, rates)


def _with_draft(spec: Workload, document: Document, base: Path | None, rates: Collection[str]) -> Workload:
    """A service with the model that guesses its tokens, for requests of the same lengths."""
    guesses = spec.serving.speculation if isinstance(spec, TransformerSpec) and spec.task == "serving" else None
    if guesses is None or guesses.draft is None:
        return spec
    assert isinstance(spec, TransformerSpec)  # as only a service has guesses
    place, draft = ("serving", "speculation", "draft"), guesses.draft
    asked = {
        "model": draft.model, "task": "serving", "dtype": draft.dtype or spec.dtype, "kv_dtype": spec.kv_dtype, "prompt": spec.prompt,
        "output": spec.output, "global_batch": spec.global_batch,
    }  # fmt: skip
    own = Document(file=document.file, data={key: value for key, value in asked.items() if value is not None})
    try:
        found = _workload(own, base, rates)
    except SpecError as error:
        raise SpecError([document.problem((*place, "model"), problem.message) for problem in error.problems]) from None
    if not isinstance(found, TransformerSpec) or not writes(found):
        raise document.error((*place, "model"), f"expected a model that writes tokens, got {draft.model}")
    draft.found(found)
    return spec


def presets() -> Mapping[str, Path]:
    """Shipped model presets by name."""
    return files.catalogue("templates", "models")


def model_name(name: str) -> str | None:
    """The kind of model, or the preset, that a name stands for in any letter case; None where there is none."""
    return known_name(name, MODELS) or files.shipped_name("templates", name, "models")


def stack_name(name: str) -> str | None:
    """The shipped software stack that a name stands for in any letter case; None where there is none."""
    return files.shipped_name("templates", name, "software")


# Keys of a scenario that name what is shipped, and what each name stands for.
SHIPPED: Mapping[files.Path_, Callable[[str], str | None]] = {
    ("system", "template"): template_name,
    ("system", "template", "template"): template_name,
    ("system", "template", "device"): template_name,
    ("system", "techlib"): functools.partial(files.shipped_name, "techlibs"),
    ("workload", "model"): model_name,
    ("software", "like"): stack_name,
}


def names_at(path: files.Path_) -> Callable[[str], str | None] | None:
    """What each name of what is shipped stands for at a path of a scenario; None where none is named there."""
    in_pool = len(path) == 4 and path[:2] == ("system", "pools") and path[3] == "template"
    return template_name if in_pool else SHIPPED.get(path)


def _config_of(name: str, base: Path | None) -> str:
    """The path of the file that describes a model in a folder of Hugging Face; all other names as they stand."""
    if Path(name).suffix in (*files.YAML, ".gz"):
        return name
    folders = [Path(name)] if base is None else [base / name, Path(name)]
    return next((f"{name.rstrip('/')}/{CONFIG}" for folder in folders if contents.is_file(folder / CONFIG)), name)


def _preset(name: str, document: Document, base: Path | None, rates: Collection[str]) -> Document:
    """A model by its preset's name, or by the path of its file: ours, a program, or a ``config.json`` of Hugging Face, or its folder.

    A service has it in the types in which it was released, where the workload names no others; products are in types with `rates`.
    """
    found = _described(name, document, base)
    if SERVED not in found.data and not found.data.get("weight_dtype"):
        return found
    types = Document(file=found.file, data=as_released(found.data, document.data, rates))
    own = (SERVED, "weight_dtype", "weight_dtypes", "wide_layers")
    return files.merge(found.without(*own) if SERVED in found.data or found.file.endswith(".json") else found, types)


def _keys(data: Any) -> frozenset[str]:
    """Keys that a section gives a value, those in mappings as ``outer.inner``."""
    return frozenset(".".join(map(str, path)) for path, value in files.walk(data) if value is not None)


def _described(name: str, document: Document, base: Path | None) -> Document:
    """The file that describes a model."""
    known = presets()
    name = _config_of(name, base) if name not in known else name
    if name.endswith((".json", ".json.gz")):
        path = Path(name) if base is None or contents.is_file(Path(name)) else base / name
        if not contents.is_file(path):
            raise document.error(("model",), f"there is no file {name}")
        if is_program(path):
            return Document(file=document.file, data={"model": "program", "file": str(path)})
        service = document.data.get("task", "training") != "training"
        return huggingface_document(path, service=service, given=_keys(document.data))[0]
    try:
        path = known[name] if name in known else files.find("templates", name, base, "models")
    except CrossflowError:
        names = [*MODELS, *known]
        there = f"models: {', '.join(MODELS)}; presets: {among(known, '`crossflow list models`')}"
        message = f"unknown model '{name}'{did_you_mean(name, names)}; {there}"
        raise document.error(("model",), message) from None
    return files.read_yaml(path)
