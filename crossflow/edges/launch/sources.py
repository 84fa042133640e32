"""Launch files of every form as flags: shell scripts, TOML and JSON, with the line of each flag and the number of devices."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossflow.base import files
from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.edges.launch.shell import Script, Word, read_script
from crossflow.edges.launch.table import FlagTable, GivenFlag, Remark, same, table
from crossflow.edges.launch.workers import WorkerLine, backend_of, deployment, is_deployment, started

KINDS = ("megatron", "torchtitan", "deepspeed", "maxtext", "vllm", "sglang", "tensorrt-llm", "dynamo")
# Arguments of launchers that count devices, by what they count.
COUNTS: Mapping[str, tuple[str, ...]] = {
    "nodes": ("nnodes", "nodes", "N", "num-nodes", "num-machines"),
    "node": ("nproc-per-node", "ntasks-per-node", "gpus-per-node", "num-gpus", "tasks-per-node"),
    "all": ("ntasks", "n", "np", "num-processes"),
}
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "nodes": ("NNODES", "NUM_NODES", "N_NODES"), "node": ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS", "NGPU"), "all": ("WORLD_SIZE",),
}  # fmt: skip
COMMENT = re.compile(r"^\s*#\s*crossflow:\s*([a-z0-9_.]+)\s*:[^\S\n]*(.*?)[^\S\n]*$", re.MULTILINE)
# Keys of MaxText that stand alone at the start of a line of a YAML file.
MAXTEXT = re.compile(r"^(base_config|per_device_batch_size|ici_\w+_parallelism|remat_policy)\s*:", re.MULTILINE)
LAUNCHERS = ("torchrun", "torch.distributed.launch", "torch.distributed.run", "deepspeed")  # which start one node where nothing names more
MODULES = {
    "torchtitan.train": "torchtitan", "vllm.entrypoints.openai.api_server": "vllm", "sglang.launch_server": "sglang",
    "MaxText.train": "maxtext", "maxtext.trainers.pre_train.train": "maxtext",
}  # fmt: skip
SERVERS = {"vllm": "vllm", "sglang": "sglang"}  # programs whose word `serve` starts a server
BENCHMARKS = ("bench", "sglang.bench_serving", "benchmark_serving.py", "tensorrt_llm.serve.scripts.benchmark_serving")
POSITIONAL = {"vllm": ("model", "model-tag"), "tensorrt-llm": ("model", "model-path")}  # flags of a model that may stand without one
DYNAMIC = "--trtllm."  # before a key of TensorRT-LLM's YAML file, as a flag of Dynamo's worker
OVERRIDING = ("tensorrt-llm",)  # whose structured file counts where flags say the same
# Flags that name a structured file.
CONFIGS = {
    "deepspeed": ("deepspeed-config", "deepspeed"), "torchtitan": ("job.config-file",), "sglang": ("config",),
    "tensorrt-llm": ("extra-llm-api-options", "config", "extra-engine-args"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GivenWorker:
    """A worker of Dynamo: what starts it, with its flags."""

    line: WorkerLine
    given: tuple[GivenFlag, ...]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A launch file taken apart.

    Attributes
    ----------
    kind : the framework.
    given : its flags in order, those of a structured file before those of the command.
    devices, nodes : in use, None where the file does not say.
    said : what crossflow's own comments say, by path: text and line.
    notes : what was not read, and why.
    workers : of Dynamo, whose flags these have.
    variables : of a script, by name, as they are where it ends.
    """

    kind: str
    file: str
    given: tuple[GivenFlag, ...]
    devices: int | None
    nodes: int | None
    said: Mapping[str, Word]
    notes: tuple[Remark, ...]
    workers: tuple[GivenWorker, ...] = ()
    variables: Mapping[str, Word] = field(default_factory=dict)


def taken_apart(text: str, file: str, kind: str | None, folder: Path | None) -> Source:
    """A launch file as flags; SpecError where it is none, or none of a kind.

    Parameters
    ----------
    text, file : the file's text, and its name for messages.
    kind : the framework, recognised by the file where it is None.
    folder : where files that a script names are looked for; None for nowhere.
    """
    own = {found[1]: Word(text=found[2], line=text.count("\n", 0, found.start(1)) + 1) for found in COMMENT.finditer(text)}
    if text.lstrip()[:1] == "{":
        _check(kind, "deepspeed", file)
        given = tuple(_of_json(text, file, 0))
        return Source(kind="deepspeed", file=file, given=given, devices=None, nodes=None, said=own, notes=())
    if is_deployment(text):
        _check(kind, "dynamo", file)
        found = deployment(text, file)
        return _of_workers(found.workers, found.documents, (), file, folder, own)
    if MAXTEXT.search(text) and not text.startswith("#!"):
        _check(kind, "maxtext", file)
        given = tuple(_of_json(text, file, 0, "YAML"))
        return Source(kind="maxtext", file=file, given=given, devices=None, nodes=None, said=own, notes=())
    if re.search(r"^\s*\[[\w.]+\]\s*(#.*)?$", text, re.MULTILINE) and not text.startswith("#!"):
        _check(kind, "torchtitan", file)
        devices, nodes = _of_comment(text)
        return Source(kind="torchtitan", file=file, given=tuple(_of_toml(text, file)), devices=devices, nodes=nodes, said=own, notes=())
    return _of_script(read_script(text, file), file, kind, folder, own)


def _check(asked: str | None, found: str, file: str) -> None:
    if asked is not None and asked != found:
        raise SpecError([Problem(file=file, message=f"expected a launch file of {asked}, this is one of {found}")])


def _of_comment(text: str) -> tuple[int | None, int | None]:
    """Devices and nodes of a command in a comment."""
    found = re.search(r"^#\s*(torchrun\s.*)$", text, re.MULTILINE)
    if found is None:
        return None, None
    words = [Word(text=word, line=1) for word in found[1].split()]
    return _counted(words, {}, ())


# ---------------------------------------------------------------------------------------------- structured files


def _of_json(text: str, file: str, begin: int, form: str = "JSON") -> Iterator[GivenFlag]:
    """Keys of a file in JSON or YAML, those of inner objects behind dots."""
    try:
        document = files.parse_yaml(text.replace("\t", " "), file)
    except SpecError as error:
        raise SpecError(_moved(problem, begin, form) for problem in error.problems) from None
    if not isinstance(document.data, Mapping):
        raise SpecError([Problem(file=file, message=f"expected an object in {form}")])
    for path, value in _leaves(document.data):
        line = document.lines.get(path, (file, None))[1]
        written = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
        yield GivenFlag(flag=".".join(path), values=(_plain(written),), line=None if line is None else line + begin)


def _moved(problem: Problem, begin: int, form: str) -> Problem:
    line = None if problem.line is None else problem.line + begin
    return Problem(file=problem.file, line=line, path=problem.path, message=problem.message.replace("YAML", form))


def _plain(value: Any) -> Any:
    """A number as text, whole ones without a fraction; lists stay."""
    return (
        str(int(value))
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15
        else str(value)
        if isinstance(value, (int, float))
        else value
    )


def _leaves(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, str(key)))
        else:
            yield (*path, str(key)), value


def _of_toml(text: str, file: str) -> Iterator[GivenFlag]:
    """Keys of a TOML file with their sections."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        line = re.search(r"line (\d+)", str(error))
        raise SpecError([Problem(file=file, line=int(line[1]) if line else None, message=f"not valid TOML: {error}")]) from None
    lines = _toml_lines(text)
    for path, value in _leaves(data):
        yield GivenFlag(flag=".".join(path), values=(value,), line=lines.get(".".join(path)))


def _toml_lines(text: str) -> dict[str, int]:
    """Lines of keys by their path."""
    section = ""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            section = re.sub(r"[\s\"']", "", header[1]) + "."
        elif key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            found.setdefault(section + key[1].strip("\"'"), number)
    return found


# ---------------------------------------------------------------------------------------------- scripts


def _of_script(script: Script, file: str, kind: str | None, folder: Path | None, own: Mapping[str, Word]) -> Source:
    found = [(_kind_of(command), command) for command in script.commands]
    known = [(its, command) for its, command in found if its is not None and (kind is None or its == kind)]
    if not known:
        _refuse([its for its, _ in found if its], kind, file)
    main = [(its, command) for its, command in known if not any(same(word.text) == "headless" for word in command)] or known
    framework, command = max(main, key=lambda pair: sum(word.text.startswith("-") for word in pair[1]))
    framework = kind or framework
    if framework == "dynamo":
        workers = [worker for its, command in known if its == "dynamo" and (worker := started(command)) is not None]
        return _of_workers(workers, script.documents, script.conditions, file, folder, own)
    launcher, words = _parted(command, framework)
    if framework == "maxtext":
        words = [_assigned(word) for word in words]
    notes = _conditions(script.conditions)
    others = [other for _, other in known if other is not command]
    if others:
        notes.append(Remark(flag=others[0][0].text, line=others[0][0].line, why="another command of the framework, not read"))
    given, left = _flags(words, framework)
    given += _benchmarked(script, framework)
    notes += [Remark(flag=word.text, line=word.line, why="not set in the file; flags in it are not read") for word in left if word.unknown]
    notes += [Remark(flag=word.text, line=word.line, why="belongs to no flag; not read") for word in left if not word.unknown]
    structured, more = _structured(given, script.documents, framework, file, folder)
    if framework == "tensorrt-llm" and not any(Path(word.text).name == "trtllm-llmapi-launch" for word in launcher):
        launcher = []  # the server starts its ranks itself
    devices, nodes = _counted(launcher, script.variables, script.comments if launcher or framework != "tensorrt-llm" else ())
    both = (*given, *structured) if framework in OVERRIDING else (*structured, *given)
    return Source(
        kind=framework, file=file, given=both, devices=devices, nodes=nodes, said=own, notes=(*notes, *more), variables=script.variables
    )


def _assigned(word: Word) -> Word:
    """A word KEY=VALUE of MaxText's command line as a flag, and the file of values that stands before them."""
    if re.match(r"[A-Za-z]\w*=", word.text):
        return Word(text=f"--{word.text}", line=word.line)
    return Word(text=f"--base_config={word.text}", line=word.line) if word.text.endswith((".yml", ".yaml")) else word


def _conditions(lines: Sequence[int]) -> list[Remark]:
    why = "conditions and loops are not evaluated; their lines are read in order"
    return [Remark(flag="condition", line=line, why=why) for line in lines[:1]]


def _of_workers(
    workers: Sequence[WorkerLine], documents: Mapping[str, Word], conditions: Sequence[int], file: str, folder: Path | None,
    own: Mapping[str, Word],
) -> Source:  # fmt: skip
    """Workers of Dynamo with their flags, those of a worker's YAML file before those that override it."""
    notes, read = _conditions(conditions), []
    for worker in workers:
        given, left = _flags(worker.words, worker.backend, "dynamo")
        notes += [Remark(flag=word.text, line=word.line, why="belongs to no flag; not read") for word in left]
        structured, more = _structured(given, documents, worker.backend, file, folder)
        over = [one for flag in given for one in _overriding(flag, file)]
        given = [one for one in given if not one.flag.startswith(DYNAMIC)]
        read.append(GivenWorker(line=worker, given=(*given, *structured, *over)))
        notes += more
    if not read:
        raise SpecError([Problem(file=file, message="the deployment starts no workers of vLLM, SGLang or TensorRT-LLM")])
    return Source(kind="dynamo", file=file, given=(), devices=None, nodes=None, said=own, notes=tuple(notes), workers=tuple(read))


def _overriding(flag: GivenFlag, file: str) -> Iterator[GivenFlag]:
    """Keys of TensorRT-LLM that a flag of Dynamo's worker gives, as JSON or by ``--trtllm.KEY``."""
    if flag.flag.startswith(DYNAMIC):
        yield GivenFlag(flag=flag.flag.removeprefix(DYNAMIC), values=flag.values, line=flag.line)
    elif same(flag.flag) == "override-engine-args" and flag.values:
        for one in _of_json(str(flag.values[0]), file, (flag.line or 1) - 1):
            yield GivenFlag(flag=one.flag, values=one.values, line=flag.line)


def _benchmarked(script: Script, kind: str) -> list[GivenFlag]:
    """Lengths of prompts and answers of a benchmark of a server in the same script."""
    read = [name for name, row in table(kind).flags.items() if not row.written]
    found = []
    for command in script.commands if read else ():
        at = next((i for i, word in enumerate(command) if word.text in BENCHMARKS or Path(word.text).name in BENCHMARKS), None)
        if at is not None:
            found += [one for one in _flags(command[at + 1 :], kind)[0] if table(kind).found(one.flag) in read]
    return found


def _refuse(found: Sequence[str], kind: str | None, file: str) -> None:
    if kind is not None and found:
        _check(kind, found[0], file)
    what = f"a command of {kind}" if kind else "a launch file"
    tells = (
        "pretrain_gpt.py, torchtitan.train or a TOML file, deepspeed or ds_config.json, MaxText.train or its YAML, vllm serve, "
        "sglang.launch_server, trtllm-serve, workers of dynamo or a DynamoGraphDeployment"
    )
    raise SpecError([Problem(file=file, message=f"expected {what}: {tells}; nothing of these is in it")])


def _kind_of(command: Sequence[Word]) -> str | None:
    """The framework that a command starts, None for others."""
    texts = [word.text for word in command]
    if any(text in ("echo", "printf", "[", "[[", "test") for text in texts[:3]):  # after `if`, `then` or `!` too
        return None  # names a script without starting it
    if backend_of(command) is not None:
        return "dynamo"
    for i, text in enumerate(texts):
        name = Path(text).name
        if name in SERVERS and texts[i + 1 : i + 2] == ["serve"]:
            return SERVERS[name]
        if name == "trtllm-serve" and texts[i + 1 : i + 2] not in (["disaggregated"], ["mm_embedding_serve"]):
            return "tensorrt-llm"
        if name == "train.py" and "maxtext" in text.lower():
            return "maxtext"
        if text in MODULES or (name in ("train.py", "run_train.sh") and "torchtitan" in text):
            return MODULES.get(text, "torchtitan")
    if any(text.startswith("--parallelism.") or text.startswith("--job.config") for text in texts):
        return "torchtitan"
    if any(Path(text).name == "deepspeed" or same(text.split("=")[0]) in ("deepspeed", "deepspeed-config") for text in texts if text):
        return "deepspeed"
    if any(re.fullmatch(r"pretrain_\w+\.py", Path(text).name) for text in texts):
        return "megatron"
    flags = [same(text.split("=")[0]) for text in texts if text.startswith("--")]
    return "megatron" if "tensor-model-parallel-size" in flags or {"num-layers", "hidden-size"} <= set(flags) else None


def _parted(command: Sequence[Word], kind: str) -> tuple[list[Word], list[Word]]:
    """Words of the launcher, and those of what it launches."""
    for i, word in enumerate(command):
        if kind in SERVERS.values() and word.text == "serve":
            return list(command[:i]), list(command[i + 1 :])
        if Path(word.text).name == "trtllm-serve":
            named = int(i + 1 < len(command) and command[i + 1].text == "serve")
            return list(command[:i]), list(command[i + 1 + named :])
        if word.text in MODULES or (word.text.endswith(".py") and not word.text.startswith("-")):
            return list(command[:i]), list(command[i + 1 :])
        if word.text == "-m" and i and i + 1 < len(command) and not command[i + 1].text.startswith("torch.distributed"):
            return list(command[:i]), list(command[i + 2 :])
    return list(command), list(command[1:])


def _is_flag(text: str) -> bool:
    return re.match(r"--?[A-Za-z]", text) is not None


def _flags(words: Sequence[Word], kind: str, beside: str = "") -> tuple[list[GivenFlag], list[Word]]:
    """Flags with their values, ``--flag=value`` or ``--flag value``, and words that belong to none; `beside`: whose flags there are too."""
    beside = "megatron" if kind == "deepspeed" else beside
    tables = [table(kind), *([table(beside)] if beside else [])]
    given: list[GivenFlag] = []
    left: list[Word] = []
    rest = [word for word in words if not word.text.startswith(">")]
    while rest:
        word = rest.pop(0)
        if not _is_flag(word.text):
            left.append(word)
            continue
        flag, separator, value = word.text.partition("=")
        values = [value] if separator else []
        while not separator and rest and not _is_flag(rest[0].text) and _takes(tables, flag, len(values)):
            values.append(rest.pop(0).text)
        given.append(GivenFlag(flag=flag, values=tuple(values), line=word.line))
    if kind in POSITIONAL and not any(same(one.flag) in POSITIONAL[kind] for one in given):
        named = next((word for word in left if not word.unknown), None)
        if named is not None:
            left.remove(named)
            given.insert(0, GivenFlag(flag="--model", values=(named.text,), line=named.line))
    return given, left


def _takes(tables: Sequence[FlagTable], flag: str, already: int) -> bool:
    """Whether a flag takes one more value."""
    for known in tables:
        if name := known.found(flag):
            form = known.flags[name].type
            return form == "texts" or (form != "switch" and already == 0)
    if any(not known.has_value(flag) for known in tables):
        return False
    return already == 0 or all(known.listed(flag, known.ignored) is not None for known in tables[:1])


def _structured(
    given: Sequence[GivenFlag], documents: Mapping[str, Word], kind: str, file: str, folder: Path | None
) -> tuple[list[GivenFlag], list[Remark]]:
    """Flags of the structured file that a command names: one that the script writes, or one beside it."""
    if kind not in CONFIGS:
        return [], []
    named = next((one for one in given if same(one.flag) in CONFIGS[kind] and one.values and str(one.values[0]).strip()), None)
    if named is None:
        return [], []
    name = str(named.values[0])
    if document := documents.get(name) or documents.get(Path(name).name):
        return list(_of_json(document.text, file, document.line - 1, _form(kind))), []
    path = None if folder is None or "$" in name else next((p for p in (folder / name, folder / Path(name).name) if p.is_file()), None)
    if path is None:
        return [], [Remark(flag=named.flag, line=named.line, why=f"{name} is not beside the script, so that its settings are not read")]
    text = files.read_text(path)
    return list(_of_toml(text, str(path)) if kind == "torchtitan" else _of_json(text, str(path), 0, _form(kind))), []


def _form(kind: str) -> str:
    return "JSON" if kind == "deepspeed" else "YAML"


def _counted(launcher: Sequence[Word], variables: Mapping[str, Word], comments: Sequence[Word]) -> tuple[int | None, int | None]:
    """Devices and nodes that a launcher starts: by its arguments, by options of a batch system, or by usual variables."""
    found: dict[str, int] = {}
    batch = [Word(text=text, line=word.line) for word in comments if word.text.startswith("#SBATCH") for text in word.text.split()[1:]]
    for words in (list(launcher), batch):
        for i, word in enumerate(words):
            flag, separator, value = word.text.partition("=")
            value = value if separator else words[i + 1].text if i + 1 < len(words) else ""
            what = next((what for what, names in COUNTS.items() if word.text.startswith("-") and same(flag) in names), None)
            if what and what not in found and value.isdecimal() and len(value) < 9:
                found[what] = int(value)
    for what, names in VARIABLES.items():
        for name in names:
            if name in variables and what not in found and variables[name].text.isdecimal() and len(variables[name].text) < 9:
                found[what] = int(variables[name].text)
    if "node" in found and "nodes" not in found and _on_one_node(launcher):
        found["nodes"] = 1
    if "nodes" in found and "node" in found:
        return found["nodes"] * found["node"], found["nodes"]
    return found.get("all"), found.get("nodes")


def _on_one_node(launcher: Sequence[Word]) -> bool:
    """Whether a launcher starts one node because nothing names more: no number of nodes, no list of hosts."""
    if not any(Path(word.text).name in LAUNCHERS for word in launcher):
        return False
    flags = {same(word.text.split("=")[0]) for word in launcher if word.text.startswith("-")}
    return not flags & {*COUNTS["nodes"], "hostfile", "H"}


def comment_value(word: Word, file: str, path: str) -> Any:
    """What a comment of crossflow says."""
    try:
        return files.parse_yaml(word.text, file).data if word.text[:1] in ("{", "[") else files.scalar(word.text)
    except CrossflowError:
        raise SpecError([Problem(file=file, line=word.line, path=path, message=f"expected a value, got '{word.text}'")]) from None
