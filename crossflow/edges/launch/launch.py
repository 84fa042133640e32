"""Launch files read into scenarios, and written from them.

``read`` says what a file means: a strategy, the settings of a workload, the software and the number of devices, with what became of every
flag. ``write`` says a scenario's plan in a framework's flags; what the framework cannot express is an error that names it. Reading what
was written gives the same plan and workload.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from crossflow.answers.planning.question import of_template
from crossflow.answers.scenario import Scenario, check_strategy, from_document, requests_of
from crossflow.base import files
from crossflow.base.errors import CrossflowError, Problem, SpecError, StrategyError, did_you_mean, with_article
from crossflow.base.files import Document, Place
from crossflow.edges.launch import deepspeed, dynamo, maxtext, megatron, sglang, tensorrt_llm, torchtitan, vllm
from crossflow.edges.launch.constants import constants_of, megatron_flags, remarks
from crossflow.edges.launch.meaning import Flags, Meaning
from crossflow.edges.launch.models import by_huggingface, model_settings, names_of, preset_of, preset_settings
from crossflow.edges.launch.settings import FlatSettings, defaults, differing, nested, plan_settings, section, workload_settings
from crossflow.edges.launch.sources import KINDS, Source, comment_value, taken_apart
from crossflow.edges.launch.table import FlagTable, Found, GivenFlag, Remark, read_flags, said_by, shell_words, table, written_flags
from crossflow.hardware.architecture.software import UNSCHEDULED, SoftwareStack, load_stack, maker
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.spec import TransformerSpec

LENGTHS = ("max-model-len", "context-length", "--max_seq_len")  # of the longest request, by engine
_EXAMPLES: Mapping[str, Any] = {  # of what files do not say
    "workload.prompt": 2000, "workload.output": 200, "workload.dtype": "bf16", "workload.global_batch": 64, "strategy.micro_batch": 1,
    "workload.serving.speculation.acceptance": 0.7, "workload.serving.adapters.count": 8,
    "software.host.schedule": "1ms",
}  # fmt: skip
IMAGES = "workload.serving.images."  # of requests, not of an engine
HOST = "software.host"  # times of the host, which no flag says
OF_REQUESTS = ("workload.prompt", "workload.output")  # which requests say themselves
TRAINING = ("megatron", "torchtitan", "deepspeed", "maxtext")
CHECKPOINTED = ("workload.dtype", "workload.weight_dtype")  # which a checkpoint says where no flag does, in its own way
PLAIN = ("torchtitan", "deepspeed", "maxtext", "tensorrt-llm")  # whose keys of structured files have no hyphens before them
TEXT, STDIN = "<text>", "<stdin>"  # the names of what is no file


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a launch file means.

    Attributes
    ----------
    kind : the framework, one of `KINDS`.
    file : its name, for messages.
    strategy : degrees and options; without `dp` where the file does not say how many devices there are.
    workload : the settings of the model and of its run, as the section of a scenario.
    software : the software stack that runs it, with what the flags change.
    devices, nodes : in use, None where the file does not say.
    system : the system that crossflow's own comment names, empty where there is none.
    ignored : flags without meaning for a prediction, each with the reason.
    unmodelled : flags that matter and that the prediction leaves out, each with what is predicted in their place.
    notes : what else readers should know, unknown flags among it.
    missing : settings that a prediction needs and the file does not say, each with the reason, by path.
    lines : where settings are written, by path.
    parts : the file taken apart, and `asked` the number of devices in the place of what it says.
    """

    kind: str
    file: str
    strategy: Mapping[str, Any]
    workload: Mapping[str, Any]
    software: str | Mapping[str, Any]
    devices: int | None
    nodes: int | None
    system: str
    ignored: tuple[Remark, ...]
    unmodelled: tuple[Remark, ...]
    notes: tuple[Remark, ...]
    missing: Mapping[str, str]
    lines: Mapping[str, int | None] = field(default_factory=dict)
    parts: Source | None = field(default=None, repr=False, compare=False)
    asked: int | None = field(default=None, repr=False, compare=False)

    def document(
        self, system: str | Mapping[str, Any] | None = None, settings: Sequence[str] = (), requests: Mapping[str, Any] | None = None
    ) -> Document:
        """The scenario that the file means, as a scenario file would have it, with the lines of its settings.

        Parameters
        ----------
        system : template of the system, or its section; that of crossflow's own comment where it is None.
        settings : overrides such as ``workload.prompt=1000``, which also give what is missing.
        requests : what the service is asked, as the section of a scenario; `settings` may give it too.

        Raises
        ------
        CrossflowError
            Where the system, the number of devices or another setting is missing.
        """
        named, written = system or self.system, {of_template(one): one for one in settings}
        if not named and not any(one.startswith(("system=", "system.template=")) for one in written):
            raise CrossflowError(f"{self.file}: the file names no system; give one, such as h100-ib-cluster (--on h100-ib-cluster)")
        given: dict[str, Any] = dict(named) if isinstance(named, Mapping) else {"template": named} if named else {}
        if self.devices is not None and "nodes" not in given:
            given["devices"] = self.devices
        named_by = {} if self.file in (TEXT, STDIN) else {"name": Path(self.file).stem}
        data = {**named_by, "system": given, "workload": self.workload, "strategy": self.strategy, "software": self.software}
        lines: dict[tuple[str | int, ...], Place] = {
            tuple(path.split(".")): (self.file, line) for path, line in self.lines.items() if path.startswith(("workload.", "strategy."))
        }
        lines |= {(key,): (self.file, None) for key in ("workload", "strategy")}  # not the place of what --set changes in them
        data |= {} if requests is None else {"requests": requests}
        document = files.override(Document(file=self.file, data=data, lines=lines), written, written=written)
        asked = "requests" in document.data and self.workload.get("task") == "serving"
        if asked:
            replayed = Document(file=self.file, data={**data, **self._replayed()}, lines=lines)
            document = files.override(replayed, written, written=written)
        missing = {path: why for path, why in self.missing.items() if not (asked and path in OF_REQUESTS)}
        lacking = {path: why for path, why in missing.items() if _lacks(document.data, path)}
        if lacking:
            told = [f"{path}: {why}; give it, {_example(path)}" for path, why in lacking.items() if path != "devices"]
            told += [f"devices: {lacking['devices']}; give the number of nodes (--nodes N)"] if "devices" in lacking else []
            raise SpecError(Problem(file=self.file, message=sentence) for sentence in told)
        return document

    def _replayed(self) -> dict[str, Any]:
        """Sections of a service whose requests are given: how many run at once is the limit of an engine, not a number of requests."""
        most = self.workload.get("global_batch")
        workload = {key: value for key, value in self.workload.items() if key != "global_batch"}
        named = self.software if isinstance(self.software, str) else str(self.software["like"])
        own = {} if isinstance(self.software, str) else dict(self.software)
        each = None if most is None else max(int(most) // int(self.strategy.get("dp", 1)), 1)
        if each is None or each == load_stack(named)[0].engine.requests:
            return {"workload": workload}
        return {"workload": workload, "software": {**own, "like": named, "engine": {**own.get("engine", {}), "requests": each}}}

    def scenario(self, system: str | Mapping[str, Any] | None = None, settings: Sequence[str] = ()) -> Scenario:
        """The scenario that the file means, on a system; see `document`."""
        document = self.document(system, settings)
        unnamed = self.file in (TEXT, STDIN)
        base = None if unnamed else Path(self.file).parent
        try:
            return from_document(document, base, name=self.kind if unnamed else Path(self.file).stem)
        except StrategyError as error:
            raise document.error(("strategy",), str(error).removeprefix("strategy: ")) from None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        remarks = {key: [vars(remark) for remark in getattr(self, key)] for key in ("ignored", "unmodelled", "notes")}
        held = {key: getattr(self, key) for key in ("kind", "file", "strategy", "workload", "software", "devices", "nodes", "system")}
        return {**held, **remarks, "missing": dict(self.missing)}


def _example(path: str) -> str:
    """How what a file lacks is given, in words that can be typed.

    >>> _example("workload.prompt"), _example("workload.model")
    ('such as --set workload.prompt=2000', 'as a name or its config.json: --model llama3-8b')
    """
    if path == "workload.model":
        return "as a name or its config.json: --model llama3-8b"
    return f"such as --set {path}={_EXAMPLES.get(path, 'VALUE')}"


def _lacks(data: Any, path: str) -> bool:
    """Whether a scenario does not say a setting; a transformer without layers is no model yet."""
    held = files.held(data, path.split("."))
    return held is None or (path == "workload.model" and held == "transformer" and "layers" not in data["workload"])


# ---------------------------------------------------------------------------------------------- reading


def read(source: str | Path, kind: str | None = None, devices: int | None = None, *, stdin: bool = False) -> Launch:
    """What a launch file means.

    Parameters
    ----------
    source : path of a file, or its text where it has several lines.
    kind : the framework, one of `KINDS`; recognised by the file where it is None.
    devices : number of devices, in the place of what the file says.
    stdin : whether `source` is a text that came from standard input; files that it names are looked for in the current folder.

    Raises
    ------
    SpecError
        With every value that the framework or crossflow would refuse, each with its line.
    """
    _check_kind(kind)
    text, file, folder = (_lines(str(source)), STDIN, Path()) if stdin else _text(source)
    return read_parts(taken_apart(text, file, kind, folder), devices)


def _unscheduled(fields: FlatSettings, stack: str) -> dict[str, str]:
    """What the host does between two steps, where a file says that none of it runs beside a step and nobody measured it."""
    prepared = load_stack(stack)[0]
    alone = fields.get("software.engine.asynchronous") is False and prepared.engine.asynchronous
    return {f"{HOST}.schedule": UNSCHEDULED.format(prepared.name)} if alone and not prepared.schedules else {}


def read_parts(parts: Source, devices: int | None = None) -> Launch:
    """What a launch file means that is taken apart; see `read`."""
    known = dynamo.table_of(parts.workers[0].line.backend) if parts.workers else table(parts.kind)
    count = parts.devices if devices is None else devices
    found, meaning = _meant(parts, known, count)
    said, problems = _commented(parts, found, known)
    problems = [*found.problems, *meaning.problems, *problems]
    if problems:
        raise SpecError(dict.fromkeys(problems))
    fields = {path: value for path, value in {**meaning.fields, **said}.items() if value is not None}
    stack = str(said.get("software") or meaning.software or known.software)
    missing = {path: why for path, why in {**meaning.missing, **_unscheduled(fields, stack)}.items() if fields.get(path) is None}
    if parts.kind in TRAINING and "strategy.dp" not in fields:
        missing["devices"] = "the file does not say how many devices there are"
    elif count is None:
        count = _product(fields)
    return Launch(
        kind=parts.kind, file=parts.file, parts=parts, asked=devices,
        strategy=section(_strategy(fields), "strategy"), workload=_workload(fields),
        software=_software(fields, stack),
        devices=count, nodes=parts.nodes if devices is None else None, system=str(said.get("system", "")),
        ignored=(*found.ignored, *meaning.ignored), unmodelled=(*found.unmodelled, *meaning.unmodelled),
        notes=(*parts.notes, *found.notes, *meaning.notes),
        missing=missing, lines={known.flags[name].field: line for name, line in found.lines.items() if known.flags[name].field},
    )  # fmt: skip


def _check_kind(kind: str | None) -> None:
    if kind is not None and kind not in KINDS:
        raise CrossflowError(f"unknown kind of launch file '{kind}'{did_you_mean(kind, KINDS)}; known: {', '.join(KINDS)}")


def _text(source: str | Path) -> tuple[str, str, Path | None]:
    """Text of a launch file, its name, and its folder."""
    if isinstance(source, str) and ("\n" in source or source.lstrip()[:1] == "{"):
        return _lines(source), TEXT, None
    path = Path(source)
    return files.read_text(path), str(path), path.parent


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n")


def _meant(parts: Source, known: FlagTable, devices: int | None) -> tuple[Found, Meaning]:
    """What the flags of a file mean by the table and the rules of its framework."""
    if parts.kind == "deepspeed":
        return _deepspeed(parts, known, devices)
    told = parts.said.get("workload.model")  # of a checkpoint whose name is not known
    if parts.kind == "dynamo":
        return dynamo.meaning(parts.workers, parts.file, told.text if told else None)
    found = read_flags(known, parts.given, parts.file, prefix="" if parts.kind in PLAIN else "--")
    if parts.kind == "megatron":
        return found, megatron.meaning(found, devices)
    if parts.kind == "torchtitan":
        return found, torchtitan.meaning(found, devices)
    if parts.kind == "maxtext":
        return found, maxtext.meaning(found, devices)
    return found, _served(parts.kind, found, devices, told.text if told else None)


def _served(kind: str, found: Found, devices: int | None, told: str | None) -> Meaning:
    """What the flags of an engine mean; limits that they do not say are those of its software stack."""
    engine = load_stack(table(kind).software)[0].engine
    if kind == "vllm":
        return vllm.meaning(found, devices, engine.requests, told)
    rules = {"sglang": sglang.meaning, "tensorrt-llm": tensorrt_llm.meaning}
    return rules[kind](found, devices, engine, told)


def _deepspeed(parts: Source, known: FlagTable, devices: int | None) -> tuple[Found, Meaning]:
    """The same of DeepSpeed, whose trainer may be one of Megatron's scripts, with Megatron's flags."""
    theirs = table("megatron")
    mixed = any(theirs.found(one.flag) in ("num-layers", "tensor-model-parallel-size") for one in parts.given)

    def is_theirs(one: GivenFlag) -> bool:
        if not mixed or known.found(one.flag) is not None:
            return False
        listed = any(known.listed(one.flag, lists) for lists in (known.ignored, known.unmodelled))
        return theirs.found(one.flag) is not None or (
            not listed and any(theirs.listed(one.flag, x) for x in (theirs.ignored, theirs.unmodelled))
        )

    found = read_flags(known, [one for one in parts.given if not is_theirs(one)], parts.file, prefix="")
    if not mixed:
        return found, deepspeed.meaning(found, devices, None)
    other = read_flags(theirs, [one for one in parts.given if is_theirs(one)], parts.file)
    own = megatron.meaning(other, devices)
    meaning = deepspeed.meaning(found, devices, own)
    merged = Found(
        file=found.file, prefix=found.prefix, values=found.values, fields=found.fields, given=found.given | other.given, lines=found.lines,
        ignored=(*found.ignored, *other.ignored), unmodelled=(*found.unmodelled, *other.unmodelled),
        notes=(*found.notes, *other.notes), problems=(*found.problems, *other.problems),
    )  # fmt: skip
    return merged, meaning


def _commented(parts: Source, found: Found, known: FlagTable) -> tuple[dict[str, Any], list[Problem]]:
    """What crossflow's own comments say, and what is wrong with them: a setting that a flag says too, or one that none may say."""
    said: dict[str, Any] = {}
    problems = []
    for path, word in parts.said.items():
        named = ("system", "software") if parts.kind in TRAINING else ("system", "software", "workload.model")  # of a folder of weights
        allowed = path in named or any(path == name or _below(path, name) for name in known.comments)
        if not allowed:
            near = did_you_mean(path, known.comments)
            problems.append(
                Problem(file=parts.file, line=word.line, path=path, message=f"a comment of crossflow cannot say this here{near}")
            )
        elif path in found.given:
            problems.append(Problem(file=parts.file, line=word.line, path=path, message="a flag says it too; remove the comment"))
        elif not word.text:
            problems.append(Problem(file=parts.file, line=word.line, path=path, message="the comment says nothing; give a value"))
        else:
            value = comment_value(word, parts.file, path)
            said[path] = tuple(value) if isinstance(value, list) else value
    return said, problems


def _below(path: str, name: str) -> bool:
    return name.endswith(".*") and path.startswith(name[:-1])


def _product(fields: FlatSettings) -> int:
    """Devices that degrees make."""
    count = 1
    for key in ("tp", "cp", "dp", "pp"):
        count *= int(fields.get(f"strategy.{key}", 1))
    return count


def _strategy(fields: FlatSettings) -> dict[str, Any]:
    """FlatSettings of the strategy that are not at their defaults; lists of layers that are even are none."""
    own = {path: value for path, value in fields.items() if path.startswith("strategy.")}
    sizes = own.get("strategy.stage_layers", ())
    if sizes and Plan().division.layers(sum(sizes), len(sizes)) == sizes:
        own["strategy.stage_layers"] = ()
    kept = {path: value for path, value in differing(own).items() if value != ()}
    kept |= {path: own[path] for path in ("strategy.tp", "strategy.dp", "strategy.pp") if path in own}
    return {path: list(value) if isinstance(value, tuple) else value for path, value in kept.items()}


def _workload(fields: FlatSettings) -> dict[str, Any]:
    """The workload's section: changes to a preset, or a model's dimensions."""
    own = {path: value for path, value in fields.items() if path.startswith("workload.")}
    if own.get("workload.max_positions") == own.get("workload.sequence"):
        own.pop("workload.max_positions", None)
    model = own.get("workload.model")
    if model is None or model == "transformer":
        own = {"workload.model": "transformer", **differing(own)}
    else:
        base = preset_settings(str(model)) if not str(model).endswith(".json") else {}
        plain = {**defaults(), **base}
        own = {path: value for path, value in own.items() if path not in plain or plain[path] != value or path == "workload.global_batch"}
        own = {"workload.model": model, **own}
    return section({path: list(value) if isinstance(value, tuple) else value for path, value in own.items()}, "workload")


def _software(fields: FlatSettings, named: str) -> str | dict[str, Any]:
    """The software stack, with what flags change in it."""
    stack = load_stack(named)[0]
    own = {path.removeprefix("software."): value for path, value in fields.items() if path.startswith("software.")}
    changed = {path: value for path, value in own.items() if not _equal(_stack_value(stack, path), value)}
    if not changed:
        return named
    return {"like": named, **nested({path: list(value) if isinstance(value, tuple) else value for path, value in changed.items()})}


def _stack_value(stack: SoftwareStack, path: str) -> Any:
    value: Any = stack
    for part in path.split("."):
        value = getattr(value, part)
    return float(value[0]) if hasattr(value, "shape") else value


def _equal(mine: Any, other: Any) -> bool:
    return bool(abs(mine - other) < 1e-9) if isinstance(other, float) else bool(mine == other)


# ---------------------------------------------------------------------------------------------- writing


def write(scenario: Scenario, kind: str) -> str:
    """The plan of a scenario as a launch file.

    Parameters
    ----------
    scenario : a transformer that trains (megatron, torchtitan, deepspeed, maxtext) or is served (the others).
    kind : the framework.

    Returns
    -------
    Text of a shell script, of a TOML file for torchtitan, of a YAML file for maxtext, or of a DynamoGraphDeployment for dynamo. What no
    flag says and does not change the plan stands in comments.

    Raises
    ------
    CrossflowError
        With every part of the plan, the model or the task that the framework cannot express.
    """
    _check_kind(kind)
    spec, plan = scenario.workload, scenario.strategy
    if not isinstance(spec, TransformerSpec) or not isinstance(plan, Plan):
        raise CrossflowError(f"{kind} runs transformers; {scenario.name} is {with_article(spec.model)}, which no launch file describes")
    if spec.serves != (kind not in TRAINING) or (not spec.serves and spec.task != "training"):
        other = ", ".join(one for one in KINDS if (one not in TRAINING) == spec.serves)
        runs = "trains" if kind in TRAINING else "serves"
        raise CrossflowError(f"{kind} {runs} models, and task is {spec.task}{f'; export to {other}' if spec.task != 'forward' else ''}")
    check_strategy(scenario)
    found = flags_of(scenario, kind)
    if found.unsaid:
        raise CrossflowError(f"{kind} cannot express this plan:\n" + "\n".join(f"- {sentence}" for sentence in found.unsaid))
    values, head = dict(found.values), partial(_head, scenario, found.known, found.comments)
    if kind == "dynamo":
        return _deployed(scenario, found, head(found.remarks))
    if kind not in TRAINING:  # engines read the model's own file
        return _text_of(scenario, kind, values, head(found.remarks))
    constants = constants_of(scenario)
    values |= megatron_flags(constants) if kind == "megatron" else {}
    flavour = next((values[key] for key in ("model.flavor", "--model_name_or_path", "model_name") if key in values), None)
    return _text_of(scenario, kind, values, head([*found.remarks, *remarks(constants, kind, flavour)]))


@dataclass(frozen=True, kw_only=True)
class SaidScenario:
    """The flags that say a scenario, and what no flag says.

    Attributes
    ----------
    values : by the name of the flag's row, in the framework's words.
    comments : settings that stand in comments.
    remarks : what readers should know.
    unsaid : what the framework cannot express, each as a sentence.
    """

    known: FlagTable
    settings: FlatSettings
    values: Mapping[str, Any]
    comments: Mapping[str, Any]
    remarks: tuple[str, ...]
    unsaid: tuple[str, ...]


def flags_of(scenario: Scenario, kind: str) -> SaidScenario:
    """The flags of a framework that say a transformer's scenario, also where they do not say all of it."""
    spec, plan = scenario.workload, scenario.strategy
    assert isinstance(spec, TransformerSpec)
    assert isinstance(plan, Plan)
    if scenario.system.kinds:
        raise CrossflowError(f"{scenario.name}: a launch file is for devices of one kind; leave out the pools of system.pools")
    known = dynamo.table_of(_backend(scenario)) if kind == "dynamo" else table(kind)
    settings = _settings(scenario, spec, plan, known)
    named = scenario.document.data["workload"].get("model")
    rules = _ruled(scenario, kind, settings, plan, named)
    values = _reaching(scenario, dict(written_flags(known, settings, rules.values, rules.said)))
    said = rules.said | {
        row.field for row in known.flags.values() if row.field in settings and said_by(known, row.field, settings[row.field])
    }
    if kind == "megatron":
        said |= {"strategy.dp"}  # what the devices leave
    comments, unsaid = _left(settings, said, known, kind, named)
    comments = {**_host_times(scenario, known), **comments}
    told = (*rules.remarks, *_foreign(scenario, values), *_lengths(scenario, values))
    unsaid = [*_made_for(scenario, known, kind), *unsaid]
    if kind not in TRAINING and (preset := preset_of(settings, named)) and not _is_named(values, preset):
        comments = {"workload.model": preset, **comments}
    return SaidScenario(
        known=known, settings=settings, values=values, comments=comments, remarks=told, unsaid=(*rules.unsaid, *unsaid)
    )  # fmt: skip


def _host_times(scenario: Scenario, known: FlagTable) -> dict[str, Any]:
    """What the scenario says of the time that the host takes between steps, which no flag says, by path."""
    own = files.held(scenario.document.data, ("software", "host"))
    times = {f"{HOST}.{key}": value for key, value in own.items()} if isinstance(own, Mapping) else {}
    return {path: value for path, value in times.items() if path in known.comments}


def _vendor(scenario: Scenario) -> str:
    """Who makes the devices; of generated designs nobody does, and they are taken for those of NVIDIA."""
    return getattr(scenario.system, "vendor", "") or "nvidia"


def _made_for(scenario: Scenario, known: FlagTable, kind: str) -> list[str]:
    """A sentence where a framework does not run on the devices, with those of the same task that do."""
    if not known.vendors or (vendor := _vendor(scenario)) in known.vendors:
        return []
    able = [one for one in KINDS if (one in TRAINING) == (kind in TRAINING) and (not table(one).vendors or vendor in table(one).vendors)]
    cure = f"; export to {', '.join(able)}" if able else ""
    *most, last = map(maker, known.vendors)
    theirs = f"{', '.join(most)} and {last}" if most else last
    return [f"system: {scenario.system.name}: {kind} does not run on devices of {maker(vendor)}, only on those of {theirs}{cure}"]


def _foreign(scenario: Scenario, values: Mapping[str, Any]) -> list[str]:
    """What readers should know of flags that only devices of NVIDIA have."""
    if _vendor(scenario) == "nvidia" or not any(str(value).startswith("deepep") for value in values.values()):
        return []
    return [
        "DeepEP, which exchanges tokens of experts, runs on GPUs of NVIDIA; name what your devices have in its place, such as mori on AMD"
    ]


def _is_named(values: Mapping[str, Any], preset: str) -> bool:
    """Whether the name of a checkpoint among the flags of an engine tells the preset."""
    return any(by_huggingface(str(values[flag])) == preset for flag in ("model", "model-path", "--model") if flag in values)


def _settings(scenario: Scenario, spec: TransformerSpec, plan: Plan, known: FlagTable) -> dict[str, Any]:
    """Everything that a scenario says of plan, workload and those parts of the software that flags say."""
    stack = _predicting(scenario, known)
    paths = {row.field for row in known.flags.values() if row.field.startswith("software.")}
    paths |= {f"software.{key}" for key in ("gradient", "fused", "recomputed", "overlap.tensor", "overlap.data", "ring.gathered")}
    if known.framework not in TRAINING:
        paths |= {f"software.{key}" for key in ("kernels.gathers", "engine.balances", "engine.chunk")}
    software = {path: _stack_value(stack, path.removeprefix("software.")) for path in paths}
    shipped = _shipped(scenario, known)
    for row in known.flags.values():  # without a default a flag is not given for what the engine decides by itself
        path = row.field.removeprefix("software.")
        if (
            row.field in software
            and row.default is None
            and row.type != "switch"
            and _equal(_stack_value(shipped, path), software[row.field])
        ):
            del software[row.field]
    workload = workload_settings(spec)
    if scenario.requests is not None and spec.serving.arrival_rate is not None:  # of which each engine takes as many as it may
        workload = {**workload, "workload.global_batch": stack.engine.requests * plan.dp}
    return {**plan_settings(plan, spec.transformer().depth), **workload, **software}


def _reaching(scenario: Scenario, values: Mapping[str, Any]) -> dict[str, Any]:
    """Flags with room for the longest request of a scenario that has some, where they would have it for the mean one."""
    if scenario.requests is None:
        return dict(values)
    trace = requests_of(scenario)
    longest = int((trace.prompt + trace.output).max())
    return {name: max(value, longest) if name in LENGTHS else value for name, value in values.items()}


def _lengths(scenario: Scenario, values: Mapping[str, Any]) -> Iterator[str]:
    """What the checkpoint must take where requests say how long they are: its own limit is not known of a preset."""
    if scenario.requests is not None and (length := next((values[name] for name in LENGTHS if name in values), None)):
        yield f"requests reach {int(length):,} tokens with what is written; the checkpoint must take as many (max_position_embeddings)"


def _predicting(scenario: Scenario, known: FlagTable) -> SoftwareStack:
    """The stack whose settings flags say: the scenario's, or that of an engine where the scenario names none."""
    stack = scenario.stack
    assert stack is not None  # a transformer's
    if scenario.document.data.get("software") is None and known.framework not in TRAINING:
        return load_stack(known.software)[0]
    return stack


def _shipped(scenario: Scenario, known: FlagTable) -> SoftwareStack:
    """The same without the changes that the scenario makes to it."""
    own = scenario.document.data.get("software")
    named = str(own.get("like")) if isinstance(own, Mapping) else ""
    return load_stack(named)[0] if named in files.catalogue("templates", "software") else _predicting(scenario, known)


def stacks(kind: str) -> tuple[str, ...]:
    """Software stacks that predict what a framework runs, that of a file that names none first."""
    own = table(kind).software
    return (own, *(table(one).software for one in dynamo.IMAGES if table(one).software != own)) if kind == "dynamo" else (own,)


def _backend(scenario: Scenario) -> str:
    """The engine that Dynamo starts: that of the scenario's software stack, or vLLM."""
    stack = scenario.stack
    assert stack is not None  # a transformer's
    return next((kind for kind in dynamo.IMAGES if table(kind).software == stack.name), "vllm")


def pools_of(scenario: Scenario, found: SaidScenario) -> list[dynamo.Pool]:
    """The workers that Dynamo starts for a scenario, those that write answers first."""
    plan, named = scenario.strategy, scenario.document.data["workload"].get("model")
    assert isinstance(plan, Plan)  # a transformer's
    pools = dynamo.pools(found.settings, plan, found.values, named, _backend(scenario), scenario.hosts[0])
    return [replace(pool, values=_reaching(scenario, pool.values)) for pool in pools]


def _deployed(scenario: Scenario, found: SaidScenario, head: list[str]) -> str:
    router = found.settings.get(dynamo.ROUTER) or "round_robin"
    return dynamo.document(pools_of(scenario, found), _backend(scenario), scenario.hosts[0], scenario.name, head, router)


def _ruled(scenario: Scenario, kind: str, settings: FlatSettings, plan: Plan, named: Any) -> Flags:
    if kind == "megatron":
        return megatron.flags(settings, plan)
    if kind == "maxtext":
        return maxtext.flags(settings, plan, named, scenario.nodes)
    if kind == "vllm":
        return vllm.flags(settings, plan, named, scenario.hosts[0])
    if kind == "sglang":
        return sglang.flags(settings, plan, named, scenario.hosts[1], scenario.nodes[1])
    if kind == "dynamo":
        return dynamo.flags(settings, plan, named, _backend(scenario), scenario.hosts[0])
    rules = {"torchtitan": torchtitan.flags, "deepspeed": deepspeed.flags, "tensorrt-llm": tensorrt_llm.flags}
    return rules[kind](settings, plan, named)


def _left(
    settings: FlatSettings, said: frozenset[str] | set[str], known: FlagTable, kind: str, named: Any
) -> tuple[dict[str, Any], list[str]]:
    """FlatSettings that no flag says: those that comments may say, and sentences about the others."""
    preset = None if kind == "megatron" else preset_of(settings, named)
    base = preset_settings(preset) if preset else _of_config(named) if kind not in TRAINING else {}
    plain = differing(settings)
    left = {
        path: value for path, value in settings.items()
        if path not in said and not path.startswith("software.") and not (value is None and path.startswith(IMAGES))
        and ((kind not in TRAINING and path in CHECKPOINTED) or (path in plain and not (path in base and base[path] == value)))
    }  # fmt: skip
    if preset is not None:
        left.pop("workload.model", None)
    if kind not in TRAINING:
        left = {path: value for path, value in left.items() if (path, value) != ("workload.task", "serving")}
    comments = {path: value for path, value in left.items() if any(path == name or _below(path, name) for name in known.comments)}
    if kind == "deepspeed" and preset is not None and not names_of(preset).huggingface:
        comments = {"workload.model": preset, **comments}
    unsaid = [
        f"{path.removeprefix('strategy.')}: {_shown(value)}: {kind} has no flag for it"
        for path, value in left.items()
        if path not in comments
    ]
    return comments, unsaid


def _of_config(named: Any) -> FlatSettings:
    """What the config.json that an engine reads says of guessed tokens, whose layers it leaves alone unless it is told to guess."""
    held = model_settings(named) if isinstance(named, str) and named.endswith(".json") else {}
    return {path: value for path, value in held.items() if path == "workload.mtp_layers"}


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)


def _head(scenario: Scenario, known: FlagTable, comments: Mapping[str, Any], remarks: Sequence[str]) -> list[str]:
    """Comments at the head: what was written, what crossflow reads back, and what readers should know."""
    from crossflow import __version__

    stack, system = scenario.stack, scenario.document.data["system"]
    assert stack is not None  # a transformer's
    lines = [
        f"# Written by crossflow {__version__}: {scenario.name}, {scenario.strategy_text} on {scenario.system.in_words(scenario.devices)}."
    ]
    lines += ["# crossflow reads the lines below back: what no flag says."]
    if set(system) <= {"template", "devices", "nodes"} and system["template"] in files.catalogue("templates"):
        lines.append(f"# crossflow: system: {system['template']}")
    else:
        lines.append("# The system has settings of its own, which flags do not say: give it again with --on.")
    own = scenario.document.data.get("software")
    named = own if isinstance(own, str) else own.get("like") if own else None
    if named is None and stack.name != known.software:
        lines.append(
            f"# The scenario names no software and was predicted with {stack.name}; crossflow reads this file with {known.software}."
        )
    elif named and named != known.software and named in files.catalogue("templates", "software"):
        lines.append(f"# crossflow: software: {named}")
    if own and isinstance(own, Mapping) and set(own) - {"like"}:
        lines.append(f"# The software's own settings are said as far as flags say them: {', '.join(sorted(set(own) - {'like'}))}.")
    lines += [f"# crossflow: {path}: {_written(value)}" for path, value in comments.items()]
    if scenario.run is not None:
        lines.append("# The length of the run is not written; give it to the framework.")
    if scenario.profile is not None:
        lines.append("# Measured times of events, which the scenario names, are not a part of launch files.")
    return [*lines, *(f"# {remark[0].upper()}{remark[1:]}." for remark in remarks)]


def _written(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, (bool, tuple, list, dict)) else str(value)


def _text_of(scenario: Scenario, kind: str, values: Mapping[str, Any], head: list[str]) -> str:
    nodes = scenario.hosts
    if kind == "torchtitan":
        return torchtitan.document(values, nodes, head)
    if kind == "maxtext":
        return maxtext.document(values, head)
    if kind in ("deepspeed", "tensorrt-llm"):
        config = {name: value for name, value in values.items() if not name.startswith("--")}
        words = [shell_words(name, value) for name, value in values.items() if name.startswith("--")]
        return {"deepspeed": deepspeed.script, "tensorrt-llm": tensorrt_llm.script}[kind](config, words, nodes, head)
    words = [shell_words(f"--{name}", value) for name, value in values.items()]
    if kind == "megatron":
        return megatron.script(words, nodes, head)
    return sglang.script(words, head, nodes[1]) if kind == "sglang" else vllm.script(words, head)
