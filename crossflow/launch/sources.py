"""Launch files of every form as flags: shell scripts, TOML and JSON, with the line of each flag and the number of devices."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow import files
from crossflow.errors import CrossflowError, Problem, SpecError
from crossflow.launch.shell import Script, Word, read_script
from crossflow.launch.table import FlagTable, GivenFlag, Remark, same, table

KINDS = ("megatron", "torchtitan", "deepspeed", "vllm")
# Arguments of launchers that count devices, by what they count.
COUNTS: Mapping[str, tuple[str, ...]] = {
    "nodes": ("nnodes", "nodes", "N", "num-nodes", "num-machines"),
    "node": ("nproc-per-node", "ntasks-per-node", "gpus-per-node", "num-gpus", "tasks-per-node"),
    "all": ("ntasks", "n", "np", "num-processes"),
}
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "nodes": ("NNODES", "NUM_NODES", "N_NODES"), "node": ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS", "NGPU"), "all": ("WORLD_SIZE",),
}  # fmt: skip
COMMENT = re.compile(r"^\s*#\s*crossflow:\s*([a-z0-9_.]+)\s*:\s*(.*?)\s*$", re.MULTILINE)
LAUNCHERS = ("torchrun", "torch.distributed.launch", "torch.distributed.run", "deepspeed")  # which start one node where nothing names more
MODULES = {"torchtitan.train": "torchtitan", "vllm.entrypoints.openai.api_server": "vllm"}
CONFIGS = {"deepspeed": ("deepspeed-config", "deepspeed"), "torchtitan": ("job.config-file",)}  # flags that name a structured file


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
    """

    kind: str
    file: str
    given: tuple[GivenFlag, ...]
    devices: int | None
    nodes: int | None
    said: Mapping[str, Word]
    notes: tuple[Remark, ...]


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


def _of_json(text: str, file: str, begin: int) -> Iterator[GivenFlag]:
    """Keys of a JSON file, those of inner objects behind dots."""
    try:
        document = files.parse_yaml(text.replace("\t", " "), file)
    except SpecError as error:
        raise SpecError(_moved(problem, begin) for problem in error.problems) from None
    if not isinstance(document.data, Mapping):
        raise SpecError([Problem(file=file, message="expected an object in JSON")])
    for path, value in _leaves(document.data):
        line = document.lines.get(path, (file, None))[1]
        written = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
        yield GivenFlag(flag=".".join(path), values=(_plain(written),), line=None if line is None else line + begin)


def _moved(problem: Problem, begin: int) -> Problem:
    line = None if problem.line is None else problem.line + begin
    return Problem(file=problem.file, line=line, path=problem.path, message=problem.message.replace("YAML", "JSON"))


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
    launcher, words = _parted(command, framework)
    notes = [
        Remark(flag="condition", line=line, why="conditions and loops are not evaluated; their lines are read in order")
        for line in script.conditions[:1]
    ]
    others = [other for _, other in known if other is not command]
    if others:
        notes.append(Remark(flag=others[0][0].text, line=others[0][0].line, why="another command of the framework, not read"))
    given, left = _flags(words, framework)
    if framework == "vllm":
        given += _benchmarked(script)
    notes += [Remark(flag=word.text, line=word.line, why="not set in the file; flags in it are not read") for word in left if word.unknown]
    notes += [Remark(flag=word.text, line=word.line, why="belongs to no flag; not read") for word in left if not word.unknown]
    structured, more = _structured(given, script, framework, file, folder)
    devices, nodes = _counted(launcher, script.variables, script.comments)
    return Source(
        kind=framework, file=file, given=(*structured, *given), devices=devices, nodes=nodes, said=own, notes=(*notes, *more)
    )  # fmt: skip


def _benchmarked(script: Script) -> list[GivenFlag]:
    """Lengths of prompts and answers of a benchmark in the same script."""
    found = []
    for command in script.commands:
        texts = [word.text for word in command]
        if "bench" in texts and "serve" in texts:
            own = _flags(command[texts.index("serve") + 1 :], "vllm")[0]
            found += [one for one in own if same(one.flag) in ("random-input-len", "random-output-len")]
    return found


def _refuse(found: Sequence[str], kind: str | None, file: str) -> None:
    if kind is not None and found:
        _check(kind, found[0], file)
    what = f"a command of {kind}" if kind else "a launch file"
    tells = "pretrain_gpt.py, torchtitan.train or a TOML file, deepspeed or ds_config.json, vllm serve"
    raise SpecError([Problem(file=file, message=f"expected {what}: {tells}; nothing of these is in it")])


def _kind_of(command: Sequence[Word]) -> str | None:
    """The framework that a command starts, None for others."""
    texts = [word.text for word in command]
    if any(text in ("echo", "printf", "[", "[[", "test") for text in texts[:3]):  # after `if`, `then` or `!` too
        return None  # names a script without starting it
    for i, text in enumerate(texts):
        name = Path(text).name
        if name == "vllm" and texts[i + 1 : i + 2] == ["serve"]:
            return "vllm"
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
        if kind == "vllm" and word.text == "serve":
            return list(command[:i]), list(command[i + 1 :])
        if word.text in MODULES or (word.text.endswith(".py") and not word.text.startswith("-")):
            return list(command[:i]), list(command[i + 1 :])
        if word.text == "-m" and i and i + 1 < len(command) and not command[i + 1].text.startswith("torch.distributed"):
            return list(command[:i]), list(command[i + 2 :])
    return list(command), list(command[1:])


def _is_flag(text: str) -> bool:
    return re.match(r"--?[A-Za-z]", text) is not None


def _flags(words: Sequence[Word], kind: str) -> tuple[list[GivenFlag], list[Word]]:
    """Flags with their values, ``--flag=value`` or ``--flag value``, and words that belong to none."""
    tables = [table(kind), *([table("megatron")] if kind == "deepspeed" else [])]
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
    if kind == "vllm" and not any(same(one.flag) in ("model", "model-tag") for one in given):
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
    given: Sequence[GivenFlag], script: Script, kind: str, file: str, folder: Path | None
) -> tuple[list[GivenFlag], list[Remark]]:
    """Flags of the structured file that a command names: one that the script writes, or one beside it."""
    if kind not in CONFIGS:
        return [], []
    named = next((one for one in given if same(one.flag) in CONFIGS[kind] and one.values and str(one.values[0]).strip()), None)
    if named is None:
        return [], []
    name = str(named.values[0])
    if name in script.documents:
        document = script.documents[name]
        return list(_of_json(document.text, file, document.line - 1)), []
    path = None if folder is None or "$" in name else next((p for p in (folder / name, folder / Path(name).name) if p.is_file()), None)
    if path is None:
        return [], [Remark(flag=named.flag, line=named.line, why=f"{name} is not beside the script, so that its settings are not read")]
    text = files.read_text(path)
    return list(_of_json(text, str(path), 0) if kind == "deepspeed" else _of_toml(text, str(path))), []


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
