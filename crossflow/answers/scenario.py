"""Scenarios: a system, a workload and a strategy, read from a file and resolved to frozen objects."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossflow.answers.meaning import (
    check_meaning,
    check_system,
    multiplied,
    multiplied_by_all,
    network_problems,
    nodes_of,
    order_of,
    uncongested,
    unwired,
)
from crossflow.answers.requested import filled, read_requests
from crossflow.answers.scenario_top import model_of
from crossflow.answers.sections import (
    SHIPPED,
    config_of,
    events_of,
    library_of,
    names_at,
    preset_name,
    preset_of,
    reliability_of,
    stack_of,
    with_others,
    with_schedule,
    workload_of,
)
from crossflow.base import contents, files, provenance
from crossflow.base.contents import Contents, Packed
from crossflow.base.errors import CrossflowError, Problem, SpecError, StrategyError, with_article
from crossflow.base.files import Document
from crossflow.base.results import PlainData, later, public
from crossflow.base.stages import stage
from crossflow.cost.profile import Profile
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.hardware.architecture.system import architecture, kind_of_system, resolve
from crossflow.hardware.architecture.template import ENCODING, FEEDING, READING, GeneratedSystem, SystemSpec, fills
from crossflow.hardware.mapping.topology import Network
from crossflow.hardware.mapping.wiring import wired
from crossflow.hardware.technology.library import KINDS, TechLibrary, library_digest, library_document, load_library
from crossflow.parallel.strategy.hierarchy import Hierarchy
from crossflow.parallel.strategy.kinds import ANY, StrategyLimits
from crossflow.parallel.strategy.mesh import ORDER, Mesh
from crossflow.parallel.strategy.notation import opened
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.plans import encoder_plan, engine_devices, experts_plan, worker_plan
from crossflow.parallel.strategy.reading import AUTO, AnyStrategy, as_text, fitting, read_strategy, strategy_problem
from crossflow.program.program import Program
from crossflow.workload.idle import without_meaning
from crossflow.workload.job import Job
from crossflow.workload.jobs import job_of, tokens_of
from crossflow.workload.kinds import MODELS, Workload
from crossflow.workload.released import CONFIG
from crossflow.workload.spec import GemmSpec, LstmSpec, ProgramSpec, TransformerSpec
from crossflow.workload.transformer import Transformer

if TYPE_CHECKING:
    from crossflow.answers.explanation.answers import Explanation
    from crossflow.answers.guesses import Described
    from crossflow.answers.planning.plans import Plans
    from crossflow.answers.prediction import Prediction
    from crossflow.answers.scenario_file import RunLength
    from crossflow.answers.score import Score
    from crossflow.engine.lasting.spec import Reliability
    from crossflow.engine.timeline.record import Timeline
    from crossflow.workload.dlrm import Dlrm
    from crossflow.workload.graph import Graph
    from crossflow.workload.requests.post_training import PostTrainingSpec
    from crossflow.workload.requests.record import RequestTrace
    from crossflow.workload.requests.spec import RequestsSpec
else:
    Dlrm = later("crossflow.workload.dlrm", "Dlrm")
    Explanation = later("crossflow.answers.explanation.answers", "Explanation")
    Graph = later("crossflow.workload.graph", "Graph")
    Plans = later("crossflow.answers.planning.plans", "Plans")
    PostTrainingSpec = later("crossflow.workload.requests.post_training", "PostTrainingSpec")
    Prediction = later("crossflow.answers.prediction", "Prediction")
    Reliability = later("crossflow.engine.lasting.spec", "Reliability")
    RequestTrace = later("crossflow.workload.requests.record", "RequestTrace")
    RequestsSpec = later("crossflow.workload.requests.spec", "RequestsSpec")
    RunLength = later("crossflow.answers.scenario_file", "RunLength")
    Score = later("crossflow.answers.score", "Score")
    Timeline = later("crossflow.engine.timeline.record", "Timeline")


SYSTEM_KINDS = ("system", "datasheet", "generated")  # what files of systems and of single devices say of themselves


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
        plan = worker_plan(self.workload)
        return 0 if plan is None else plan.devices * self.workload.service.prefill.workers  # type: ignore[union-attr] # it has workers

    @property
    def encoders(self) -> int:
        """Accelerators beside them: those of the encoders of images."""
        plan = encoder_plan(self.workload)
        return 0 if plan is None else plan.devices * self.workload.service.images.encode.workers  # type: ignore[union-attr] # it has them

    @property
    def feeders(self) -> int:
        """Accelerators beside them that hold the experts, 0 where those that attend hold them too."""
        plan = experts_plan(self.workload)
        return 0 if plan is None else plan.devices

    @property
    def further(self) -> Mapping[str, int]:
        """Accelerators of the pools of further engines of a service, by the pool's name."""
        return engine_devices(self.workload)

    @property
    def own_fleet(self) -> str:
        """The devices of its strategy in words, without those of pools beside them."""
        if self.system.kinds:
            return " and ".join(one.in_words(one.device_count) for one in self.system.places.values())
        return self.system.in_words(self.devices)

    @property
    def fleet(self) -> str:
        """Its devices in words, such as `8 devices of dgx-h100 and 4 devices of dgx-b200 for prompts`."""
        if self.system.kinds:
            return self.own_fleet
        pooled, further = self.system.pooled, self.further
        parts = [self.own_fleet, *(pooled.get(name, self.system).in_words(count) for name, count in further.items())]
        if self.feeders:
            parts.append(f"{pooled.get(FEEDING, self.system).in_words(self.feeders)} for experts")
        if self.readers:
            parts.append(f"{pooled.get(READING, self.system).in_words(self.readers)} for prompts")
        if self.encoders:
            parts.append(f"{pooled.get(ENCODING, self.system).in_words(self.encoders)} for images")
        return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)

    @property
    def nodes(self) -> tuple[int, int]:
        """Devices of one node (package, server), and number of nodes."""
        return self.system.mesh if self.system.kinds else nodes_of(self.system, self.devices)

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

    @stage("program")
    def program(self, *, unrolled: bool = False) -> Program:
        """What every class of ranks computes and sends, of a workload that is a graph of kernels or a program itself.

        Time steps of a graph are blocks that repeat, or `unrolled`: written out, for what does not run in order or shows each of them.
        """
        if isinstance(self.workload, ProgramSpec):
            return self.workload.program
        from crossflow.parallel.transform import transform

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

    @property
    def phased(self) -> bool:
        """Whether its run has phases, each with settings of its own."""
        return self.run is not None and bool(self.run.phases)

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
        return self.workload.global_batch

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

    @functools.cached_property
    def strategy_limits(self) -> StrategyLimits:
        """What of its system and its software decides whether a layered model can be divided in a way."""
        return StrategyLimits(
            nodes=self.nodes, kinds=self.system.kinds, balanced=self.balanced, elements=self.elements,
            hosted=self.system.host is not None, tiered=self.tiered,
        )  # fmt: skip

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
        if self.workload.model == "dlrm":
            return 0
        if isinstance(self.workload, ProgramSpec):
            return int(self.workload.program.tokens)
        return int(self.graph().tokens_per_sample)

    def network(self) -> Network:
        """Topology of both network levels at the size in use, each kind of engines of a service in nodes of its own."""
        beside = [*self.further.values(), self.readers]
        if not any(beside):
            return wired(self.system.network, *self.nodes)
        per_node = self.system.devices_per_node
        return wired(self.system.network, per_node, sum(-(-many // per_node) for many in (self.devices, *beside)))

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
            "system": self.own_fleet,
            "workload": f"{self.workload.model}, {self.workload_batch:,} samples a step",
            "strategy": self.strategy_text,
            **({} if self.stack is None else {"software": self.stack.name}),
        }
        own = [(files.dotted(path), html.short(value)) for path, value in files.leaves(self.document.data)]
        return html.heading(self.name) + html.table(["", ""], rows.items()) + html.table(["setting", "value"], own, html.MOST)

    def __repr__(self) -> str:
        return f"Scenario({self.name!r}: {self.workload.model} on {self.own_fleet}, strategy {self.strategy_text})"


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
    document = overridden(scenario_document(files.read_yaml(path), str(path)), settings)
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
        cure = f"say what runs on it: crossflow predict --model llama3-8b --on {path}; a scenario names it: system: {{template: {name}}}"
        raise read.error((key,), f"this is a system; {cure}")
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


def check_strategy(
    scenario: Scenario, strategy: Plan | Hierarchy | None = None, sized: Sized | None = None, model: Transformer | Dlrm | None = None
) -> None:
    """Raise StrategyError when a strategy cannot divide the workload of a scenario.

    strategy, sized : another one than the scenario's own, and other dimensions of its workload; `model` where it is at hand.
    """
    if strategy is None and isinstance(scenario.strategy, Mesh):
        scenario.program()
        return
    chosen = scenario.strategy if strategy is None else strategy
    assert not isinstance(chosen, Mesh)  # which is a scenario's own
    problem = _undivided(scenario, chosen, sized, model)
    if problem is not None:
        raise StrategyError(f"strategy {scenario.strategy_text if strategy is None else strategy}: {problem}")


def requests_of(scenario: Scenario) -> RequestTrace:
    """The requests of a scenario, in order of arrival; CrossflowError where it has none."""
    if scenario.requests is None:
        raise CrossflowError(
            f"{scenario.name}: it has no requests; give the key requests: the file of a trace, or how they are drawn, such as"
            " {arrivals: {law: poisson, rate: 2 1/s}, count: 200, prompt: 500, output: 100} (or --requests FILE with --model)"
        )
    from crossflow.workload.requests.asking import requests_in

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


def check_one_phase(scenario: Scenario, what: str) -> None:
    """Raise CrossflowError for a run with phases, of which `what` takes one."""
    if scenario.phased:
        assert scenario.run is not None
        names = ", ".join(phase.name for phase in scenario.run.phases)
        told = f"its run has phases ({names}), and {what} takes one"
        raise CrossflowError(f"{scenario.name}: {told}: give its length as run.tokens or run.steps, and its settings with --set")


def check_one_step(scenario: Scenario) -> None:
    """Raise CrossflowError for a service, whose steps are of two kinds in steady state."""
    check_steady(scenario)
    if scenario.workload.is_service:
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
        return read_strategy(with_schedule(written, scenario.base), scenario.workload, scenario.system)


def _undivided(
    scenario: Scenario, strategy: Plan | Hierarchy, sized: Sized | None = None, model: Transformer | Dlrm | None = None
) -> str | None:
    """Why a strategy cannot divide the layered model of a scenario, which may be `sized` otherwise; None where it can."""
    limits = scenario.strategy_limits
    if sized is None:
        return strategy_problem(strategy, scenario.workload, limits, model)
    return strategy_problem(strategy, sized.workload, replace(limits, nodes=sized.nodes, kinds=sized.system.kinds), model)


def divides(scenario: Scenario, written: str | Mapping[str, Any]) -> bool:
    """Whether a strategy, on as many devices as the system has, divides a layered model.

    False too where only a scenario of its own can tell, and say why.
    """
    system, workload = scenario.system, scenario.workload
    counted = system.devices is not None or system.nodes is not None
    if not (counted and workload.layered and isinstance(written, (str, Mapping))):
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
                found = read_strategy(with_schedule(written, self.base), self.workload, self.system)
        found = fitting(found, self.system, self.workload)
        assert not isinstance(found, Mesh)  # which layered models have none of
        return found

    @property
    def nodes(self) -> tuple[int, int]:
        """Devices of one node, and number of nodes, of the whole system."""
        return self.system.mesh if self.system.kinds else nodes_of(self.system, self.system.device_count)


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
        spec = with_others(MODELS[own.data["model"]].model_validate(own.data), own, scenario.base, _own_types(scenario))
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
        found = preset_of(name, document, scenario.base, _own_types(scenario))
    return Document(file=found.file, data=found.data)


def _counted(system: SystemSpec, section: Mapping[str, Any]) -> SystemSpec:
    """A system with the numbers of devices, or of nodes, that its section says."""
    devices, nodes = (section.get(key) for key in ("devices", "nodes"))
    if any(count is not None and (type(count) is not int or count < 1) for count in (devices, nodes)):
        raise SpecError([])
    given = {"devices": devices, "nodes": nodes} if devices is not None or nodes is not None else {}
    found = system.model_copy(update=given)
    if devices is not None and (nodes is not None or not fills(devices, system.devices_per_node)):
        raise SpecError([])
    for problem in network_problems(found, nodes_of(found, found.device_count), Document(file="", data={})):
        raise SpecError([problem])
    return found


SHORT = {
    "system": "template",
    "workload": "model",
    "software": "like",
    "requests": "trace",
}  # sections that a name alone may stand for, and their key of it


FAILURES = ("run", "failures")


def spelled_out(document: Document, settings: Iterable[str] = ()) -> Document:
    """The document with sections given by a name alone as the mappings that they are short for, so that settings reach below.

    A strategy as text is one too where `settings` change a key of it, and so are failures by the name of a file.
    """
    data = document.data
    if not isinstance(data, Mapping):
        return document
    named: dict[files.Path_, Any] = {
        (section,): {key: data[section]} for section, key in SHORT.items() if isinstance(data.get(section), str)
    }
    if isinstance(section := data.get("system"), Mapping) and (left := _counted_otherwise(settings)) in section:
        named[("system",)] = {key: value for key, value in section.items() if key != left}
    pools = files.held(data, ("system", "pools"))
    if isinstance(pools, Mapping):
        named |= {("system", "pools", name): {"template": pool} for name, pool in pools.items() if isinstance(pool, str)}
    if isinstance(rates := files.held(data, FAILURES), str) and any(setting.startswith(f"{'.'.join(FAILURES)}.") for setting in settings):
        named[FAILURES] = {"like": rates}
    if any(setting.startswith("strategy.") for setting in settings):
        if whole := next((one for one in settings if one.startswith("strategy=")), ""):
            raise document.error(("strategy",), f"{whole} says all of it, and no key of it can be set beside; write the key into it too")
        if data.get("strategy") == AUTO:
            raise document.error(("strategy",), "auto chooses all of a strategy, and no key of it can be set; give one, such as tp4-dp2")
        named[("strategy",)] = opened(data.get("strategy"))
    return files.replaced(document, named) if named else document


def overridden(document: Document, settings: Sequence[str]) -> Document:
    """The document with settings over its sections spelled out, a later one over those before it.

    What names a section, such as `system=dgx-h200`, leaves what other settings change below it, whichever comes first.
    """
    ordered, written = list[str](), dict[str, str]()
    for setting in settings:
        if (whole := _as_section(setting, settings)) == setting:
            ordered.append(setting)
            continue
        section, written[whole] = setting.partition("=")[0], setting
        kept = 1 + max((i for i, one in enumerate(ordered) if one.startswith(f"{section}=")), default=-1)
        below = [one for one in ordered[kept:] if not one.startswith(f"{section}.{SHORT[section]}=")]
        ordered = [*ordered[:kept], whole, *below]
    return files.override(spelled_out(document, settings), ordered, written=written)


def _as_section(setting: str, settings: Sequence[str]) -> str:
    """A setting that names a section, as the section that it is short for where another setting reaches below it."""
    section, _, name = setting.partition("=")
    named = section in SHORT and isinstance(files.scalar(name.strip()), str) and name.lstrip()[:1] not in ("", "{", "[")
    if not named or not any(other.startswith(f"{section}.") for other in settings):
        return setting
    return f"{section}={{{SHORT[section]}: {name}}}"


def _counted_otherwise(settings: Iterable[str]) -> str:
    """Which count of a system settings replace by the other one, `nodes` by `devices` or the reverse; "" where they do not."""
    told = {setting.partition("=")[0] for setting in settings} & {"system.nodes", "system.devices"}
    return {"system.nodes": "devices", "system.devices": "nodes"}[told.pop()] if len(told) == 1 else ""


def from_dict(data: Mapping[str, Any], name: str = "scenario", base: Path | None = None) -> Scenario:
    """Read a scenario from plain data, as a study holds it."""
    return from_document(Document(file=name, data=dict(data)), base, name=name)


@stage("scenario")
def from_document(document: Document, base: Path | None, name: str, like: Scenario | None = None) -> Scenario:
    """Resolve a scenario, with the problems of all of its sections at once; sections equal to those of `like` are its own."""
    with (used := contents.in_use() if like is None else like.contents).used():
        return _resolved(_as_shipped(_with_config(spelled_out(document), base)), base, name, like, used)


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
    if not isinstance(named, str) or preset_name(named) is not None or (found := config_of(named, base)) == named:
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
        top = files.validate(model_of(document.data), document)
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
        rates = () if system is None else multiplied_by_all(system)
        same = like is not None and all(like.document.data.get(key) == given.get(key) for key in ("workload", "requests"))
        if like is not None and same and multiplied_by_all(like.system) == rates:
            workload = like.workload
        elif "workload" in given and (asked or document.data.get("requests") is None):
            workload = workload_of(filled(document.under("workload"), asked), base, rates)
    with _told(problems):
        if isinstance(workload, ProgramSpec):
            workload.program  # noqa: B018 - read here, where its problems join the others
    with _told(problems), _of_strategy(document):
        strategy = read_strategy(with_schedule(given.get("strategy"), base), workload, system)
    try:
        with _told(problems, "software"):
            stack = stack_of(given.get("software"), workload, system, document, base, like)
    except CrossflowError as error:
        problems.append(document.problem(document.blamed("software", str(error)), str(error)))
    if problems or top is None or system is None or workload is None:
        raise _refused(problems, document, base)
    document = _with_components(document, system, system_document, base)
    check_meaning(top, workload, system, document)
    check_system(system, workload, stack, top, document)
    strategy = fitting(strategy, system, workload)
    scenario = Scenario(
        name=top.name or name,
        system=system,
        workload=workload,
        strategy=strategy,
        stack=stack,
        order=order_of(top.placement, strategy, workload, document),
        kernels_per_device=top.kernels_per_device,
        document=document,
        system_document=system_document,
        library=library_of(document.data.get("techlib", {}), system.techlib, document, base, like),
        run=top.run,
        base=base,
        contents=used,
        profile=events_of(top.profile, system, system_document, base, document),
        reliability=reliability_of(top, document, base, like),
        requests=top.requests,
        post_training=top.job,
    )
    problems += [*unwired(system, scenario.nodes, document)] or [*uncongested(scenario)]
    if problems:
        raise SpecError(problems)
    return scenario


def _refused(problems: Sequence[Problem], document: Document, base: Path | None) -> SpecError:
    """Everything that is wrong with a document, with the place of keys that a scenario knows elsewhere."""
    from crossflow.answers.settings import pointed

    scenario = _what_is_described(document, base)
    return SpecError(pointed(problem, scenario=scenario) for problem in problems)


def _what_is_described(document: Document, base: Path | None) -> Described:
    """What a document describes where its sections cannot all be read."""
    kind = name = None
    with contextlib.suppress(CrossflowError):
        kind = kind_of_system(document.under("system"), base) if "system" in document.data else None
    named = files.held(document.data, ("workload", "model"))
    with contextlib.suppress(CrossflowError):
        if isinstance(named, str):
            name = named if named in MODELS else preset_of(named, Document(file=document.file, data={}), base, ()).data.get("model")
    from crossflow.answers.guesses import Described

    return Described(
        system=kind,
        workload=name if isinstance(name, str) and name in MODELS else None,
        automatic=document.data.get("strategy") in (None, ANY, AUTO),
    )


def _with_engines(data: Mapping[str, Any]) -> tuple[Any, Mapping[str, str]]:
    """The system section of a scenario, and pools on which a part of its service runs, each with what says how many devices it has."""
    pools, experts = (files.held(data, ("workload", "serving", name)) for name in ("pools", FEEDING))
    known = {str(name): f"the workers of serving.pools.{name} say" for name in pools} if isinstance(pools, Mapping) else {}
    if files.held(data, ("workload", "serving", "images", "encode")) is not None:
        known[ENCODING] = "the workers of serving.images.encode say"
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


@functools.lru_cache(maxsize=64)
def _own_types(scenario: Scenario) -> Collection[str]:
    """Types that the devices of a scenario multiply in: a sweep over dimensions asks at each point."""
    return multiplied(scenario.system)
