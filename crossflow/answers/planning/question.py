"""A scenario from the name of a model and that of a system, with stated defaults for what is not given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from crossflow.answers.scenario import overridden
from crossflow.answers.sections import model_name
from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.files import Document
from crossflow.hardware.architecture.connected import systems_of, unconnected
from crossflow.hardware.architecture.system import PLAIN, asked_system, resolve
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.parallel.strategy.reading import AUTO
from crossflow.workload.kinds import MODELS
from crossflow.workload.released import CONFIG
from crossflow.workload.spec import ImageSpec

TOKENS = 4 * 2**20  # of a training step, where a model says nothing of its batch: usual for large language models
LONGEST = 8192  # tokens of a training sample, where the model's file only gives the longest sequence that it allows
PROMPT, OUTPUT = 2048, 256  # tokens of a request
REQUESTS = {"prefill": 1, "decode": 8, "serving": 8}  # at once for each device
COMMAND = "command line"  # stands for the file in messages
INSTEAD: Mapping[str, str] = {  # what a question gives in place of a file, and the settings of a file that it stands for
    "model": "workload.model", "on": "system.template", "nodes": "system.nodes", "devices": "system.devices",
    "strategy": "strategy", "batch": "workload.global_batch", "task": "workload.task",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Question:
    """A model on a system, as the command line asks for it; None for what is not given."""

    model: str
    system: str
    nodes: int | None = None
    devices: int | None = None
    strategy: str | Mapping[str, Any] | None = None
    batch: int | None = None
    task: str | None = None
    requests: Mapping[str, Any] | None = None  # section of a scenario
    asker: str = COMMAND  # who asks, for messages

    def scenario(self, settings: Sequence[str] = ()) -> tuple[Document, tuple[str, ...]]:
        """The scenario's own data, and a sentence for each number that was assumed; none for those that `settings` give."""
        if self.requests is not None and (self.batch is not None or self.task not in (None, "serving")):
            raise CrossflowError(
                f"--{'batch' if self.batch is not None else 'task'} goes without --requests, which say how many requests of a service come"
            )
        if self.nodes is not None and self.devices is not None:
            named = "--nodes or --devices" if self.asker == COMMAND else "nodes or devices"
            raise CrossflowError(f"give {named}, not both: a system has a fixed number of devices in a node")
        if "," in self.system:
            raise CrossflowError(f"--on {self.system}: this takes one system; crossflow compare sets several side by side")
        if asked_system(self.model) is not None and model_name(self.system) is not None:
            raise CrossflowError(f"{self.model} is a system and {self.system} a model: give --model {self.system} --on {self.model}")
        model, named = model_name(self.model) or self.model, asked_system(self.system) or self.system
        counts = {key: value for key in ("nodes", "devices") if (value := getattr(self, key)) is not None}
        system = {"template": named, **counts}
        path, task = _config(self.model), "serving" if self.requests is not None else self.task
        workload: dict[str, Any] = {"model": model if path is None else str(path)}
        workload |= {key: value for key, value in (("global_batch", self.batch), ("task", task)) if value is not None}
        title = path.resolve().parent.name or "model" if path is not None and path.name == CONFIG else _title(model)
        data = {
            "name": f"{title} on {Path(named).stem}",
            "system": system,
            "workload": workload,
            **({} if self.requests is None else {"requests": self.requests}),
            **({} if self.strategy is None and names_program(model) else {"strategy": AUTO if self.strategy is None else self.strategy}),
        }
        said = overridden(Document(file=self.asker, data=data), settings).data
        joined: list[tuple[str, int | None, str]] = []
        if self.system.lower() in PLAIN:
            joined.append(("template", None, f"{self.system} is read as {named}; --on takes other forms of it"))
        if counts and (usual := _usual_system(said["system"], named)) is not None:
            joined += [("template", None, f"{named}: connected as in {usual}; --on takes other systems")]
            data = {**data, "system": {**system, "template": usual}}
            said = overridden(Document(file=self.asker, data=data), settings).data
        if not all(isinstance(said[section], Mapping) for section in ("system", "workload")):
            return Document(file=self.asker, data=data), ()  # a setting made a section something else, which its reader refuses
        if said["workload"].get("task", "training") == "training":
            _check_network(named, said["system"])
        assumed = [*joined, *_assumed(said["system"], said["workload"], path)]
        if "requests" in said:  # which say all other numbers
            assumed = [one for one in assumed if one[0] in ("nodes", "template")]
        values = {key: value for key, value, _ in assumed if value is not None}
        return Document(file=self.asker, data={**data, "workload": {**workload, **values}}), tuple(text for *_, text in assumed)


def of_template(setting: str) -> str:
    """A setting that only names the system as one of its template, beside which the devices stay that are asked for in another way.

    >>> of_template("system=dgx-h100"), of_template("system={template: dgx-h100, nodes: 2}"), of_template("run.steps=9")
    ('system.template=dgx-h100', 'system={template: dgx-h100, nodes: 2}', 'run.steps=9')
    """
    path, _, name = setting.partition("=")
    return f"system.template={name}" if path == "system" and name.lstrip()[:1] not in ("", "{", "[") else setting


def names_program(model: str) -> bool:
    """Whether a model is the file of a program, which says by itself how it is divided."""
    if not model.endswith((".json", ".json.gz")) or Path(model).name == CONFIG or not Path(model).is_file():
        return False
    from crossflow.program.file import is_program

    return is_program(model)


def _title(model: str) -> str:
    """A model as a name: of a file what stands before its ending; dots of a preset's name stay."""
    name = Path(model).name
    for ending in (".gz", ".json", ".program", ".yaml", ".yml"):
        name = name.removesuffix(ending)
    return name


def _usual_system(section: Any, named: str) -> str | None:
    """The system that several devices of a kind most often are part of, where nothing connects those that are asked for; else None."""
    if not isinstance(section, Mapping) or section.get("template") != named:
        return None
    system = system_of(section)
    if system is None or unconnected(system, system.device_count) is None:
        return None
    return next(iter(systems_of(system.name)), None)


def _check_network(named: str, section: Any) -> None:
    """Several devices train together only where something connects them, which nothing does in the file of a device by itself."""
    system = system_of(section)
    if system is not None and (why := unconnected(system, system.device_count)):
        raise CrossflowError(f"{named} is a device, and {why}")


def _config(model: str) -> Path | None:
    """The file of Hugging Face that describes a model, by its path, whatever its name, or by its folder; None for all other models."""
    path = Path(model)
    if path.name == CONFIG or (path.suffix == ".json" and path.is_file() and not names_program(model)):
        return path
    if path.is_dir():
        if not (path / CONFIG).is_file():
            raise CrossflowError(f"--model {model}: the folder holds no {CONFIG}")
        return path / CONFIG
    return None


def _assumed(section: Any, workload: Any, config: Path | None) -> Iterator[tuple[str, int | None, str]]:
    """Numbers of the workload that nobody gave, with their keys and what to say of them."""
    system, model = system_of(section), _model(workload, config)
    if model is None:
        return  # reading the scenario says why
    devices = 1 if system is None else system.device_count  # of a system that is wrong, which reading it says
    if system is not None and not {"nodes", "devices"} & set(section) and devices > 1:
        yield "nodes", None, f"{devices:,} devices, all that {system.name} has by default; --nodes or --devices changes that"
    if model.get("model") != "transformer":
        if "global_batch" in model and "global_batch" not in workload:
            yield "global_batch", None, f"global_batch {model['global_batch']:,}, the model's own; --batch changes it"
        return
    task = workload.get("task", "training")
    if task in REQUESTS:
        yield from _of_requests(task, workload, model, devices)
    else:
        yield from _of_samples(workload, model, devices, longest=config is not None)


def _of_requests(task: str, workload: Mapping[str, Any], model: Mapping[str, Any], devices: int) -> Iterator[tuple[str, int | None, str]]:
    """Lengths of a service's requests, and how many are served at once."""
    if "prompt" not in workload and isinstance(model.get("sequence"), int):
        longest, written = model["sequence"], 0 if task == "prefill" else workload.get("output", OUTPUT)
        room = longest - written if isinstance(written, int) else longest  # so that the answer fits behind it
        prompt = max(min(PROMPT, room), min(PROMPT, longest) // 2, 1)
        yield "prompt", prompt, f"prompts of {prompt:,} tokens; --set workload.prompt=N changes that"
    if "output" not in workload and task != "prefill":
        yield "output", OUTPUT, f"{OUTPUT} tokens written for each request; --set workload.output=N changes that"
    if "global_batch" not in workload and files.held(workload, ("serving", "arrival_rate")) is None:  # those are in flight that arrive
        batch = REQUESTS[task] * devices
        each = f"{REQUESTS[task]} request{'s' if REQUESTS[task] > 1 else ''}"
        yield "global_batch", batch, f"global_batch {batch:,}: {each} at once for each device; --batch changes it"


def _of_samples(
    workload: Mapping[str, Any], model: Mapping[str, Any], devices: int, *, longest: bool
) -> Iterator[tuple[str, int | None, str]]:
    """Length of samples that only has a limit, and the samples of a step, which all numbers of replicas divide."""
    sequence = workload.get("sequence", model.get("sequence"))
    if longest and "sequence" not in workload and isinstance(sequence, int) and sequence > LONGEST:
        sequence = LONGEST
        yield "sequence", sequence, f"sequence {sequence:,}, less than the model allows; --set workload.sequence=N changes it"
    if "global_batch" in workload:
        return
    if (tokens := _of_picture(workload, model)) is not None:
        sequence = tokens
    if model.get("diffusion") and workload.get("task") == "forward":
        yield "global_batch", devices, f"global_batch {devices:,}: one sample for each device; --batch changes it"
        return
    own = model.get("global_batch") if not longest else None
    target = own if isinstance(own, int) else max(1, TOKENS // (sequence if isinstance(sequence, int) and sequence > 0 else 1))
    batch = target if target <= devices and own else -(-target // devices) * devices
    source = "the model's own" if own else "about 4 million tokens"
    rounded = f", rounded up to a multiple of {devices:,} devices" if batch != target and target > devices else ""
    each = f" of {sequence:,} tokens each" if own and "sequence" not in workload and isinstance(sequence, int) else ""
    yield "global_batch", batch, f"global_batch {batch:,}{each}: {source}{rounded}; --batch changes it"


def _of_picture(workload: Mapping[str, Any], model: Mapping[str, Any]) -> int | None:
    """Tokens of a picture or video of a model of images; None for other models, and where it is wrong."""
    parts = [part for one in (model, workload) if isinstance(part := one.get("image"), Mapping)]
    try:
        return ImageSpec.model_validate({key: value for part in parts for key, value in part.items()}).tokens if parts else None
    except ValidationError:
        return None  # reading the scenario says why


def system_of(section: Any) -> SystemSpec | None:
    """The system, None where it is wrong."""
    try:
        found: SystemSpec = resolve(Document(file=COMMAND, data=section), None)[0]
    except SpecError:
        return None
    return found


def _model(workload: Any, config: Path | None) -> Mapping[str, Any] | None:
    """Data of a preset, of a model's own file, or of one of Hugging Face; None where there is none."""
    if config is not None:
        given = frozenset(".".join(map(str, path)) for path, _ in files.walk(workload))
        service = workload.get("task", "training") != "training"
        from crossflow.workload.huggingface import huggingface_document

        return {"model": "transformer", **huggingface_document(config, service=service, given=given)[0].data}
    name = workload.get("model")
    if not isinstance(name, str) or name in MODELS:
        return None
    try:
        data = files.read_yaml(files.find("templates", name, None, "models")).data
    except CrossflowError:
        return None
    return data if isinstance(data, Mapping) else None
