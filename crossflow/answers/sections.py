"""Sections of a scenario, each read by itself: library, workload, schedule, events, software, what interrupts its run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossflow.answers.scenario_top import ScenarioTop
from crossflow.base import contents, files
from crossflow.base.errors import CrossflowError, SpecError, StrategyError, among, did_you_mean, known_name
from crossflow.base.files import Document
from crossflow.base.limits import shown
from crossflow.base.paths import with_quantity
from crossflow.cost.profile import Profile, profile_at, read_profile, system_profile
from crossflow.hardware.architecture.software import SoftwareStack, load_stack, maker
from crossflow.hardware.architecture.system import template_name
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.hardware.technology.library import TechLibrary, load_library
from crossflow.parallel.strategy.mesh import ORDER
from crossflow.parallel.strategy.schedules import hold_order
from crossflow.workload.kinds import MODELS, Workload
from crossflow.workload.model_names import published_as
from crossflow.workload.released import CONFIG, SERVED, as_released
from crossflow.workload.spec import GemmSpec, LstmSpec, ProgramSpec, TransformerSpec

if TYPE_CHECKING:
    from crossflow.answers.scenario import Scenario
    from crossflow.engine.lasting.spec import Reliability
    from crossflow.workload.serving_spec import BesideSpec

# What runs a layered model where a scenario does not say: of its time for training, a serving engine for the rest.
DEFAULT_STACK = {"training": "megatron-core", "forward": "vllm", "prefill": "vllm", "decode": "vllm", "serving": "vllm"}
ON_ALL = {**DEFAULT_STACK, "training": "pytorch-fsdp"}  # those that run on devices of every maker
# By the maker of devices that these do not run on: on those of AWS nothing runs that its compiler has not made.
OF_VENDORS = {
    "google": {"training": "maxtext"},
    "intel": {"training": "optimum-habana"},
    "aws": dict.fromkeys(DEFAULT_STACK, "neuron"),
}
DLRM_STACK = "torchrec"
TRAINS_NOT = "{name} serves models, and workload.task is training; give task: decode or serving, or software that trains, such as {other}"


def presets() -> Mapping[str, Path]:
    """Shipped model presets by name."""
    return files.catalogue("templates", "models")


@functools.cache
def shipped_devices() -> tuple[Mapping[str, Any], ...]:
    """Files of all devices of the package."""
    return tuple(files.read_yaml(path).data for path in files.catalogue("templates", "devices").values())


def model_name(name: str) -> str | None:
    """The kind of model, or the preset, that a name stands for: in any letter case, or as the model's maker publishes it; None where there
    is none.
    """
    if (known := preset_name(name)) is not None or _is_file(name) or config_of(name, None) != name:
        return known
    return published_as(name, presets())


def preset_name(name: str) -> str | None:
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


def library_of(changes: Mapping[str, Any], name: str, document: Document, base: Path | None, like: Scenario | None) -> TechLibrary:
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
        own = "; system.techlib names a library, which begins with another one by `extends`" if path[-1] == "like" else ""
        raise CrossflowError(f"no quantity of the technology library stands here{own}")
    changed: TechLibrary = with_quantity(library, path, quantity.read(value))
    return changed


def workload_of(document: Document, base: Path | None, rates: Collection[str]) -> Workload:
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
        preset = preset_of(str(model), document, base, rates)
        model = preset.data.get("model")
        if not isinstance(model, str) or model not in MODELS:
            raise preset.error(("model",), f"expected one of {', '.join(MODELS)}, got {shown(model)}{did_you_mean(str(model), MODELS)}")
        document = files.merge(preset, _with_tower(document.without("model"), preset.file))
    spec: Workload = files.validate(MODELS[str(model)], document)
    if isinstance(spec, ProgramSpec):
        spec = spec if base is None or found else spec.model_copy(update={"file": str(base / spec.file)})
        if not contents.is_file(Path(spec.file)):
            raise document.error(("file",), f"there is no file {spec.file}")
    return with_others(spec, document, base, rates)


def _with_tower(document: Document, file: str) -> Document:
    """A service whose prompts hold images for the tower that the file of its model describes, with what the file says of it."""
    images = files.held(document.data, ("serving", "images"))
    if not isinstance(images, Mapping) or "model" in images or not file.endswith((".json", ".json.gz")):
        return document
    from crossflow.workload.huggingface import tower_of

    given, known = images.get("tower", {}), tower_of(file)
    if not known and not (isinstance(given, Mapping) and "layers" in given):
        told = f"{Path(file).name} describes no model of images; name one, such as model: vit-l"
        raise document.error(("serving", "images"), told)
    if known and "gated" not in known and isinstance(given, Mapping) and not {"gated", "ffn"} & set(given):
        told = f"{Path(file).name} has a tower of a kind that is not known; say whether its MLP multiplies two branches, true or false"
        raise document.error(("serving", "images", "tower", "gated"), told)
    if isinstance(given, Mapping) and given.get("window", ...) is None:  # all layers see the whole image
        known.pop("pattern", None)
    tower = {**known, **given} if isinstance(given, Mapping) else given
    return files.replaced(document, {("serving", "images"): {**images, "tower": tower}})


def with_others(spec: Workload, document: Document, base: Path | None, rates: Collection[str]) -> Workload:
    """A service with the models beside its own: one that guesses its tokens, for requests of the same lengths, and one of images."""
    if not isinstance(spec, TransformerSpec) or spec.task != "serving":
        return spec
    guesses, images = spec.serving.speculation, spec.serving.images
    if guesses is not None and guesses.draft is not None:
        draft = guesses.draft
        asked = {
            "task": "serving", "dtype": draft.dtype or spec.dtype, "kv_dtype": spec.kv_dtype, "prompt": spec.prompt,
            "output": spec.output, "global_batch": spec.global_batch,
        }  # fmt: skip
        found = _other(draft, asked, ("serving", "speculation", "draft"), document, base, rates)
        if not found.writes:
            raise document.error(("serving", "speculation", "draft", "model"), f"expected a model that writes tokens, got {draft.model}")
    if images is not None:
        tower = {} if images.tower is None else images.tower.workload
        asked = {"task": "forward", "dtype": images.dtype, "global_batch": 1, **tower}
        found = _other(images, asked, ("serving", "images"), document, base, rates)
        if found.image is None or found.diffusion is not None:
            raise document.error(("serving", "images", "model"), f"expected a model that reads images, such as vit-l, got {images.model}")
    return spec


def _other(
    other: BesideSpec, asked: Mapping[str, Any], place: tuple[str, ...], document: Document, base: Path | None, rates: Collection[str]
) -> TransformerSpec:
    """The transformer that the name of another model of a service stands for, which keeps it."""
    own = Document(file=document.file, data={"model": other.model, **{key: value for key, value in asked.items() if value is not None}})
    try:
        found = workload_of(own, base, rates)
    except SpecError as error:
        raise SpecError([document.problem((*place, "model"), problem.message) for problem in error.problems]) from None
    if not isinstance(found, TransformerSpec):
        raise document.error((*place, "model"), f"expected a transformer, got {other.model}")
    other.found(found)
    return found


def config_of(name: str, base: Path | None) -> str:
    """The path of the file that describes a model in a folder of Hugging Face; all other names as they stand."""
    if _is_file(name):
        return name
    folders = [Path(name)] if base is None else [base / name, Path(name)]
    return next((f"{name.rstrip('/')}/{CONFIG}" for folder in folders if contents.is_file(folder / CONFIG)), name)


def _is_file(name: str) -> bool:
    """Whether a name of a model is that of a file, by its ending."""
    return Path(name).suffix in (*files.YAML, ".gz")


def preset_of(name: str, document: Document, base: Path | None, rates: Collection[str]) -> Document:
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
    name = config_of(name, base) if name not in known else name
    if name.endswith((".json", ".json.gz")):
        path = Path(name) if base is None or contents.is_file(Path(name)) else base / name
        if not contents.is_file(path):
            raise document.error(("model",), f"there is no file {name}")
        from crossflow.program.file import is_program

        if is_program(path):
            return Document(file=document.file, data={"model": "program", "file": str(path)})
        service = document.data.get("task", "training") != "training"
        from crossflow.workload.huggingface import huggingface_document

        return huggingface_document(path, service=service, given=_keys(document.data))[0]
    try:
        path = known[name] if name in known else files.find("templates", name, base, "models")
    except CrossflowError as error:
        if files.shipped_name("templates", name) is not None:  # of another kind, which the error says
            raise document.error(("model",), str(error)) from None
        names = [*MODELS, *known]
        there = f"models: {', '.join(MODELS)}; presets: {among(known, '`crossflow list models`')}"
        message = f"unknown model '{name}'{did_you_mean(name, names)}; {there} (or give the path of its config.json, as makers publish it)"
        raise document.error(("model",), message) from None
    return files.read_yaml(path)


def with_schedule(given: str | Mapping[str, Any] | None, base: Path | None) -> str | Mapping[str, Any] | None:
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


def events_of(named: str | None, system: SystemSpec, system_document: Document, base: Path | None, document: Document) -> Profile | None:
    """Measured events of a scenario's devices, over those that its system names; a path is relative to the file that it stands in."""
    try:
        below = system_profile(system, system_document, base)
    except SpecError as error:
        raise SpecError(problem.below("system") for problem in error.problems) from None
    if named is None:
        return below
    own = read_profile(profile_at(named, base, document), system.name)
    return own if below is None else own.over(below)


def runs_on(vendor: str, workload: Workload) -> str:
    """A software stack that runs a workload on the devices of a maker."""
    return _usual(vendor, workload, ON_ALL)


def _usual(vendor: str, workload: Workload | None, stacks: Mapping[str, str]) -> str:
    """The stack of a workload on the devices of a maker: of `stacks` by task where neither of the two has its own."""
    if workload is not None and workload.model == "dlrm":
        return DLRM_STACK
    task = workload.task if isinstance(workload, TransformerSpec) else "training"
    return OF_VENDORS.get(vendor, {}).get(task, stacks[task])


def of_other_makers(scenario: Scenario) -> Iterator[str]:
    """Software that does not run on the devices, and software of a maker's devices that a scenario does not name, as sentences."""
    vendor, stack = getattr(scenario.system, "vendor", ""), scenario.stack
    if stack is None or not vendor:
        return
    if not stack.runs_on(vendor):
        theirs, own = " and ".join(map(maker, stack.vendors)), f"{scenario.system.name} of {maker(vendor)}"
        cure = f"give software={runs_on(vendor, scenario.workload)} for one that runs there"
        yield f"software: {stack.name} runs on devices of {theirs} only, not on {own}; this is what it would do there; {cure}"
    elif vendor in OF_VENDORS and "software" not in scenario.document.data:
        yield f"software: {stack.name} is assumed on devices of {maker(vendor)}; `software: NAME` names another"


def stack_of(
    named: str | Mapping[str, Any] | None, workload: Workload | None, system: SystemSpec | None, document: Document, base: Path | None,
    like: Scenario | None,
) -> SoftwareStack | None:  # fmt: skip
    """Software of a workload, that of `like` where it names no other, and neither its task nor its devices are others."""
    kept = None if like is None else like.document.data.get("software")
    if like is not None and kept == named and _runs(workload, system) == _runs(like.workload, like.system):
        return like.stack
    found = _stack(named, workload, _vendor(system), document, base)
    if found is not None and found.peer_all_reduce is not None and named not in (None, *files.catalogue("templates", "software")):
        _check_generations(found.peer_all_reduce.direct, system, document)
    return found


def _check_generations(named: Sequence[str], system: SystemSpec | None, document: Document) -> None:
    """SpecError for a generation of devices that neither a shipped device nor the system has, so that nothing would come of its name."""
    if not named:
        return
    theirs = {str(device.get("generation", "")) for device in shipped_devices()} | {str(getattr(system, "generation", ""))}
    known = sorted(theirs - {""})
    for word in named:
        if word not in known:
            told = f"expected generations of devices ({', '.join(known)}), got '{word}'{did_you_mean(word, known)}"
            if isinstance(document.data["software"], str):
                raise CrossflowError(f"peer_all_reduce.direct: {told}")
            raise document.under("software").error(("peer_all_reduce", "direct"), told)


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
    usual = _usual(vendor, workload, DEFAULT_STACK)
    if named is None:
        return load_stack(usual, base)[0]
    found = load_stack(named if isinstance(named, str) else document.under("software"), base)[0]
    if isinstance(workload, TransformerSpec) and workload.task == "training" and not found.trains:
        raise CrossflowError(TRAINS_NOT.format(name=found.name, other=usual))
    return found


def reliability_of(top: ScenarioTop, document: Document, base: Path | None, like: Scenario | None) -> Reliability | None:
    """What interrupts a run, that of `like` where it names the same."""
    if top.run is None:
        return None
    from crossflow.engine.lasting.record import JITTER, PLANNED
    from crossflow.engine.lasting.spec import UNBROKEN, load_reliability

    if top.run.failures is None:
        return None if top.run.jitter is None else UNBROKEN
    if like is not None and files.held(like.document.data, ("run", "failures")) == top.run.failures and like.reliability is not None:
        found = like.reliability
    else:
        section = document.under("run", "failures")
        try:
            found = load_reliability(top.run.failures, section, base)
        except SpecError as error:
            here = {document.file, section.file, *(file for file, _ in section.lines.values())}
            raise SpecError(problem.below("run.failures") if problem.file in here else problem for problem in error.problems) from None
    for name in (JITTER, PLANNED):
        if getattr(top.run, name) is not None and name in found.causes:
            what = f"run.{name} has this name in what is shown; give the cause another, or leave one of them out"
            raise document.error(("run", "failures", name), what)
    return found
