"""The words of the command line. Nothing heavy is imported here: `crossflow --help` must come at once."""

from __future__ import annotations

import argparse
import functools
import importlib
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from crossflow.base.errors import did_you_mean, other_task
from crossflow.base.names import visible

Argument = tuple[tuple[str, ...], dict[str, Any]]  # names and options, as argparse takes them
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "maxtext", "vllm", "sglang", "tensorrt-llm", "dynamo")
KINDS = ("techlibs", "templates", "models", "studies")
ASKED = ("families",)  # what `list` names only where it is asked for
_ABOUT = "Predict, explain and search designs of distributed AI systems, from technology to training step."
_EPILOG = "Names resolve to files shipped with crossflow, in any letter case, then to paths. Data goes to stdout, the log to stderr."


_NO_CHOICE = re.compile(r"argument (?:.*): invalid choice: '(.*?)' \(choose from (.*)\)")
FEW = 2  # commands that are named for an option which is theirs
_NO_COMMAND = re.compile(r"argument COMMAND: invalid choice: '(.*?)' ")


# What other tools call a command, and what does the same here.
_SWEEP = "crossflow sweep does that, such as: crossflow sweep --model llama3-8b --on dgx-h100 --vary system.nodes=1,2"
_ELSEWHERE: Mapping[str, str] = {"grid": _SWEEP, "scan": _SWEEP}


# What a newcomer types first, in the help of a command, before its options.
FIRST: Mapping[str, tuple[str, ...]] = {
    "predict": (
        "crossflow predict --model llama3-8b --on dgx-h100 --nodes 4",
        "crossflow predict --model config.json --on dgx-h200 --task decode --batch 64",
        "crossflow init training && crossflow predict training.yaml",
    ),
    "plan": (
        "crossflow plan --model llama3-8b --on dgx-h100 --nodes 4",
        "crossflow plan --model llama3-8b --on dgx-h100 --nodes 4 --export megatron",
        "crossflow plan --from train.sh --on dgx-h100 --diff",
    ),
}


class Parser(argparse.ArgumentParser):
    """Parser whose complaint is one line that says where to read on, and whose help begins with examples."""

    def format_help(self) -> str:
        """The help, with the commands to begin with before the list of arguments."""
        text, first = super().format_help(), FIRST.get(self.prog.rpartition(" ")[2], ())
        if not first:
            return text
        examples = "".join(f"  {line}\n" for line in first)
        return text.replace("positional arguments:", f"to begin with:\n{examples}\npositional arguments:", 1)

    def error(self, message: str) -> NoReturn:
        """Complain and exit with status 2."""
        if found := _NO_COMMAND.match(message):
            meant = f": {_ELSEWHERE[found[1]]}" if found[1] in _ELSEWHERE else did_you_mean(found[1], _COMMANDS)
            message = f"unknown command '{found[1]}'{meant}"
        elif found := _NO_CHOICE.match(message):
            message += did_you_mean(found[1], re.findall(r"[\w-]+", found[2]))
        self.exit(2, f"{self.prog}: {visible(message)} (see {self.prog} --help)\n")

    def refuse(self, found: argparse.Namespace, words: Sequence[str], argv: Sequence[str]) -> NoReturn:
        """Complain of those words of a command line that a command does not take, with what to write in their place."""
        from crossflow.edges.cli.cures import cure  # reads models and systems: only where something is wrong

        known: Mapping[str, Parser] = next(action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction))
        options = [name for name in known[found.command]._option_string_actions if name.startswith("--")]
        meant, others = cure(words, argv, found, options, self.parse_known_args), _of_another(words, known)
        if not meant or (others and "=VALUE" in meant):  # a file, which a setting may not take as that option does
            meant = others
        known[found.command].error(f"unrecognized arguments: {' '.join(words)}{meant}")


def _of_another(words: Sequence[str], known: Mapping[str, argparse.ArgumentParser]) -> str:
    """Which commands have an option that this one does not take, as the end of a sentence; empty where none has it, or many have."""
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        others = [name for name, parser in known.items() if option in parser._option_string_actions]
        if 0 < len(others) <= FEW:
            return f"; {option} is an option of {' and '.join(f'`crossflow {name}`' for name in others)}"
    return ""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the words of a command.

    >>> parse(["predict", "s.yaml", "--set", "system.devices=8", "strategy=d8"]).settings
    ['system.devices=8', 'strategy=d8']
    """
    parser = build()
    found, left = parser.parse_known_args(spread(argv))
    if left:
        parser.refuse(found, left, argv)
    return found


def handler(arguments: argparse.Namespace) -> Callable[[argparse.Namespace], None]:
    """The function that carries out a command, from the module of its name."""
    module = f"{arguments.command}_" if keyword.iskeyword(arguments.command) else arguments.command
    run: Callable[[argparse.Namespace], None] = importlib.import_module(f"crossflow.edges.cli.{module}").run
    return run


def spread(argv: Sequence[str]) -> list[str]:
    """Write ``--set a=1 b=2`` as ``--set a=1 --set b=2``, so that a file name after them is not taken for a setting.

    >>> spread(["predict", "--set", "a=1", "b=2", "s.yaml"])
    ['predict', '--set', 'a=1', '--set', 'b=2', 's.yaml']
    """
    if argv[:1] == ["emulate"]:  # whose words are a script's own
        return list(argv)
    words: list[str] = []
    for word in argv:
        follows = len(words) > 1 and words[-2] == "--set" and "=" in words[-1]
        words += ["--set", word] if follows and "=" in word and not word.startswith("-") else [word]
    return words


@functools.cache
def build() -> Parser:
    """The parser of all commands."""
    from crossflow import __version__

    parser = Parser(prog="crossflow", description=_ABOUT, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"crossflow {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (about, arguments) in _COMMANDS.items():
        command = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.", usage=_USAGES.get(name))
        for names, options in arguments:
            command.add_argument(*names, **options)
        command.add_argument("--profile", type=Path, metavar="FILE", help=_PROFILE)
        loud = command.add_mutually_exclusive_group()
        loud.add_argument("-v", "--verbose", action="store_true", help=_VERBOSE)
        loud.add_argument("-q", "--quiet", action="store_true", help="say nothing on stderr but errors: no progress, no log")
        if name != "emulate":  # whose stdout is the script's
            command.add_argument("--json", action="store_true", help="write JSON instead of a page for people")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got '{text}'")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got '{text}'")
    return int(text)


def _paths(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for part in text.split(",") if (path := part.strip())))


def _answer(text: str) -> Path:
    """A file to write; a bare number means the tokens of an answer, which other tools call output."""
    if text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"this names a file, and {text} is a number; for answers of so many tokens write --set workload.output={text}"
        )
    return Path(text)


def _rank(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a rank such as 0, got '{text}'")
    return int(text)


def _times(text: str) -> float:
    number = float(text) if text.replace(".", "", 1).isdecimal() else 0.0
    if number <= 0.0:
        raise argparse.ArgumentTypeError(f"expected a positive number of times, such as 1.3, got '{text}'")
    return number


def _argument(*names: str, **options: Any) -> Argument:
    return names, options


def _share(text: str) -> float:
    number = text.removesuffix("%").strip()
    share = float(number) / (100.0 if text.endswith("%") else 1.0) if number.replace(".", "", 1).isdecimal() else -1.0
    if not 0.0 <= share < 1.0:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to below 1, such as 0.05 or 5%, got '{text}'")
    return share


def _attained(text: str) -> float:
    number = text.removesuffix("%").strip()
    share = float(number) / (100.0 if text.endswith("%") else 1.0) if number.replace(".", "", 1).isdecimal() else 0.0
    if not 0.0 < share <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a share of requests above 0 and up to 1, such as 0.99 or 99%, got '{text}'")
    return share


def _task(text: str) -> str:
    if told := other_task(text):
        raise argparse.ArgumentTypeError(told)
    return text


_TASKS = ("training", "forward", "prefill", "decode", "serving")
_VERBOSE = "say on stderr which files are read, what each stage and the command take, and where an error arises"
_PROFILE = "write what crossflow itself does, stage by stage, as a trace for ui.perfetto.dev (.json, .json.gz)"
_SETTINGS = _argument(
    "--set", dest="settings", action="append", default=[], metavar="PATH=VALUE", help="override a field, such as system.devices=512"
)
_LAUNCH = (
    "instead of a file: flags of Megatron-LM, torchtitan, DeepSpeed, MaxText, vLLM, SGLang, TensorRT-LLM or Dynamo, as a script, TOML, "
    "JSON, YAML or a deployment; - for standard input"
)
_EXPORT = "write the flags of the best plan that a framework can express, to stdout or with -o into a file"
_DIFF = "with --from: the flags of that file to add, remove and change for the best plan, and what it gains; with -o the changed script"
_ASKED = "with --model and --on, or with --from: what a service is asked, a trace, or a scenario or file with the section requests"
_ON_TARGET = "of requests: share of them that must meet all of their targets, 0.99 where not given"
_VARY = "of requests: values that fleets may have, such as strategy=tp4,tp8 for layouts of an engine; may be given several times"
_PLAN_WRITTEN = "with --export or --diff: the file to write; of requests a picture (.png, .svg) of the fleets without --export"
_INIT = "what to begin with; the kinds are listed where none is given"
# What a command is about: a file, or a model and a system by name.
_ABOUT_WHAT: tuple[Argument, ...] = (
    _argument("scenario", metavar="SCENARIO.yaml", nargs="?", type=Path, help="scenario file, or - for standard input"),
    _argument("--from", dest="launch", type=Path, metavar="FILE", help=_LAUNCH),
    _argument("--model", metavar="NAME", help="instead of a file: a model that `list` gives, a config.json of Hugging Face, or its folder"),
    _argument("--on", metavar="SYSTEM", help="with --model or --from: the system, a name that `list` gives or a file"),
    _argument("--nodes", type=_positive, metavar="N", help="with --model or --from: nodes of the system"),
    _argument("--devices", type=_positive, metavar="N", help="with --model or --from: devices, instead of --nodes"),
    _argument("--strategy", metavar="S", help="with --model: how the model is divided, auto where not given: the fastest that fits"),
    _argument("--batch", type=_positive, metavar="B", help="with --model: samples of a step, or requests of a service at once"),
    _argument("--task", type=_task, choices=_TASKS, help="with --model: training where not given"),
    _SETTINGS,
)


def _listed(argument: Argument) -> Argument:
    """An option that may have several values with commas between, which its command reads."""
    names, options = argument
    if not names[0].startswith("--") or names[0] == "--set":
        return argument
    told = {key: value for key, value in options.items() if key not in ("type", "choices")}
    return names, {**told, "help": f"{options['help'].removeprefix('instead of a file: ')}; or several, with commas between"}


_EXPLORED = (
    "scenario file or - for standard input; a study, or the folder of its results; a program, with --on; or traces, one of each rank"
)
_MOVED = (
    "with --export: what can be moved on the page, such as system.nodes,strategy,system.network.inter.bandwidth "
    "(default: the number of nodes, the best strategies, and the network)"
)
_OBJECTIVE = (
    "what to improve, a column of a score such as step_time_s, energy_j, cost_usd or mfu; the step time where not given, of a service the"
    " time of a whole request"
)
_VARIED = (
    "values of a path, with commas between: names, strategies, quantities with units; or 1..8, 2^0..2^5, or FROM:TO:COUNT for evenly "
    "spaced values; semicolons divide values that have commas; may be given several times, for every combination"
)
_TOGETHER = "paths of --vary that change together, first with first and second with second, in place of every combination"
_MENDED = (
    "with --advise: the launch file of the run, whose flags are compared with the advice; -o FILE with the same ending writes the file with"
    " them changed"
)
_SWEPT = "the table with all columns (.csv) or a picture (.png, .svg); may be given several times"
_MARGIN = "share of memory that should be left, 0.1 where not given: plans that leave less are marked as tight, and not chosen"
_WRITTEN = "trace (.json, .json.gz), picture (.png, .svg) or, without ending, folder of a trace a rank; may be given several times"
_SERVED = (
    "picture (.png, .svg), table of all requests (.csv), trace for Perfetto (.json.gz), or the answer (.json); may be given several times"
)
_SCHEDULED = (
    "picture (.png, .svg), table of all jobs (.csv), trace for Perfetto (.json.gz), or the answer (.json); may be given several times"
)
_CHANGES = "changes such as all_reduce+2ms,bandwidth*0.5,latency+5us,all*1.1,rank[7]*1.2"
_TRACES = "a trace of each rank (.json, .json.gz), an archive or a folder; or exports of Nsight Systems (.sqlite)"
_TRACE_CHANGES = (
    "changes such as compute*0.5,all_reduce+2ms,host*0.5,kernel[*gemm*]*0.8,op[aten::gelu]*0,synchronisation*0,rank[3]+1ms,batch*2"
)
_LINK = "what collectives queue for: each level of the network (wire, the default) or each process group"
_REQUESTS = "trace of requests (CSV, JSONL, JSON, Parquet, also with .gz), or a scenario or a file of its section requests (YAML)"
_REQUESTS_WRITTEN = "picture (.png, .svg), or the requests as a trace (.csv, .jsonl, also with .gz); may be given several times"
_REAL = (
    "emulate nothing: run all ranks on this machine, or under torchrun the rank that it has started, and record their calls and how long "
    "each takes"
)
_SOURCE = (
    "script.py:function or module:function, which returns the model or runs a step; a config.json of Hugging Face, or its folder; "
    "a text of XLA that JAX wrote, .hlo or .mlir; a record of emulate; or traces of the PyTorch profiler, one of each rank"
)
_COST = (
    "of a text of XLA, what a call that is not known takes: FLOPS,BYTES, such as 'kernel=12 Gflop,3 MB', or 'pass' to read and write "
    "its tensors once; may be repeated"
)
_PARALLEL = (
    "what divides the model: ddp, fsdp2, hsdp=K, tp=K, tp=K with one of these, pp=K, or pp=K with ddp, tp=K or both; not given if "
    "the function divides it"
)
_MICROBATCHES = "parts of the batch that go through the stages of pp=K one after the other, in 1F1B order (default: K)"
_OPTIMIZER = "adamw with fp32 copies of narrower weights, sgd or none, if the function gives no optimizer"
_GRADIENTS = "type in which --parallel reduces gradients: fp32, or weights for that of the weights"
_WHOLE = "ranks up to which all are read whole, 64 where not given; of more ranks some stand for those that are alike"
_RANK_OF = "of a record with several ranks, the one whose step is the program; of a function that divides the model, as which it runs"
_COLLECTIVES = "of traces: measured, the time in the trace; modelled, the time on the system's network if the bytes are known"
_EXECUTION = "execution traces of the same ranks: sizes of all tensors and collectives; joined by process, else by rank, else in order"
_REUSE = "how often rows of embedding tables are hit: shipped factors (2021, 2022, 2021-3), or a file with factors and samples"
_KERNEL_TIMES = "times of kernels in a replay: trace (the default); model of the device; both, the model scaled to the trace by kind"
_ON = "another device or system, a name that `list` gives or a file: kernels scaled by the model, collectives on its network"
_KERNELS = "fused joins pointwise operations as compilers and frameworks do; eager keeps each separate"
_SAMPLES = "samples of a step over all ranks (default: those of a rank times the ranks that share no layers)"
_MEASURED = "measured tables (as validate reads them, and profiles), logs of nccl-tests as printed, and folders, as of crossflow measure"
_ROWS = "rows of tables whose system, device or source is this; may be given several times"
_DROP = (
    "leave out a fitted number, such as execution.tiles.fill, network.parameters.launch or software.megatron-core.host.kernel, or replace "
    "it (NAME=VALUE), and show which rows move; without a name, list the numbers"
)
_FORMAT = "how to keep the points of a sweep: lines (the default), or one file of columns for millions of them; needs pyarrow"
_LEAVE_OUT = (
    "chip, source or engine: predict each row without the numbers that were fitted to rows of its own chip, source or engine, and show "
    "both errors"
)
_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv")
_BENCHMARKS = (
    "kinds of rows, such as gemm,attention: host, copies, gemm, pointwise, normalisation, softmax, reductions, attention, embedding, "
    "collectives (default: all)"
)
_COMMANDS: dict[str, tuple[str, tuple[Argument, ...]]] = {
    "init": ("write an annotated file to begin with: a scenario, a design, a device, a cluster, a library or a study", (
        _argument("kind", nargs="?", metavar="KIND", help=_INIT),
        _argument("name", nargs="?", metavar="NAME", help="of an example: crossflow init example llama"),
        _argument("-o", "--output", metavar="FILE", help="file to write, KIND.yaml where not given; - for stdout"),
        _argument("--force", action="store_true", help="replace a file that is there"),
    )),
    "list": (
        "name the technology libraries, templates, models and studies at hand",
        (_argument("kind", nargs="?", choices=(*KINDS, *ASKED), help="only names of this kind; families: of files of Hugging Face"),),
    ),
    "show": (
        "show one of them resolved, with units and the source of every number",
        (_argument("name", metavar="NAME", help="a name that `list` gives, a component such as standard/memory/HBM3, or a file"),),
    ),
    "predict": ("predict a scenario: step time, what bounds it, memory, energy", (
        *_ABOUT_WHAT,
        _argument("-o", "--output", type=_answer, metavar="FILE", help="write the answer to a file; FILE.json has JSON"),
    )),
    "plan": ("find the best strategies of a scenario, or for its requests the cheapest fleets, and why others fail", (
        *_ABOUT_WHAT,
        _argument("--top", type=_positive, default=10, metavar="N", help="plans to list, 10 where not given"),
        _argument("--objective", metavar="NAME", help=_OBJECTIVE),
        _argument("--margin", type=_share, default=0.1, metavar="SHARE", help=_MARGIN),
        _argument("--export", choices=FRAMEWORKS, metavar="FRAMEWORK", help=f"{_EXPORT}: {', '.join(FRAMEWORKS)}"),
        _argument("--diff", action="store_true", help=_DIFF),
        _argument("--requests", type=Path, metavar="FILE", help=_ASKED),
        _argument("--on-target", type=_attained, metavar="SHARE", help=_ON_TARGET),
        _argument("--vary", action="append", default=[], metavar="PATH=A,B", help=_VARY),
        _argument("--price", metavar="A=2.2,B=4.5", help="with --requests: USD of a device and hour by system, as in compare"),
        _argument("--jobs", type=_positive, metavar="N", help="of requests: processes to use, 2 where not given and kinds are many"),
        _argument("-o", "--output", type=_answer, metavar="FILE", help=_PLAN_WRITTEN),
        _argument("--force", action="store_true", help="replace a file that is there"),
    )),
    "sweep": ("evaluate every combination of some values: a table with the best marked, CSV, a picture, or the study that does it", (
        *(_listed(one) for one in _ABOUT_WHAT if one[0] != ("--from",)),
        _argument("--vary", action="append", default=[], metavar="PATH=A,B,C", help=_VARIED),
        _argument("--together", action="append", default=[], metavar="PATH,PATH", help=_TOGETHER),
        _argument("--sort", metavar="COLUMN", help="the best by this column first; in order of the values where not given"),
        _argument("--columns", nargs="+", default=[], metavar="NAME", help="columns of a score to show, such as energy_j,mfu"),
        _argument("-o", "--output", type=_answer, action="append", default=[], metavar="FILE", help=_SWEPT),
        _argument("--write", type=Path, metavar="STUDY.yaml", help="evaluate nothing: write the study file that does the same"),
    )),
    "compare": ("compare systems: the best plan of a model on each, time, price and energy, and which of them cannot be told apart", (
        _argument("--model", metavar="NAME", required=True, help="a model that `list` gives, a config.json of Hugging Face, or its folder"),
        _argument(
            "--on", metavar="A,B,C", nargs="+", required=True, help="the systems, names that `list` gives or files, with commas between"
        ),
        _argument("--devices", type=_positive, metavar="N", help="devices of each system, in whole nodes, or 64 of each node of 72"),
        _argument("--budget", metavar="500USD/hour", help="instead of --devices: rent of each system, for as many devices as it pays"),
        _argument("--price", metavar="A=2.2,B=4.5", help="USD of a device and hour by system; `h100` stands for the one that holds it"),
        _argument("--task", type=_task, choices=_TASKS, default="training", help="training where not given"),
        _argument("--batch", type=_positive, metavar="B", help="samples of a step, or requests of a service at once"),
        _argument("--page", type=Path, metavar="OUT.html", help="also write the comparison as a page for a browser"),
        _argument("--force", action="store_true", help="replace a page that is there"),
        _SETTINGS,
    )),
    "explain": ("explain what limits a scenario: elasticities, what-ifs, the next bottleneck", (
        *_ABOUT_WHAT,
        _argument("--objective", metavar="NAME", help=_OBJECTIVE),
        _argument("--top", type=_positive, default=15, metavar="N", help="parameters to show, 15 where not given"),
        _argument("--all", action="store_true", help="show constants too, which were fitted or restate the device"),
        _argument("--plot", type=Path, metavar="FILE", help="also draw a tornado plot, as FILE.png and FILE.svg"),
    )),
    "timeline": ("show what every device does when: a trace for Perfetto, a picture, the terminal", (
        *_ABOUT_WHAT,
        _argument("-o", "--output", "--out", type=Path, action="append", default=[], metavar="FILE", help=_WRITTEN),
        _argument("--text", action="store_true", help="show it in the terminal too, where a file is written"),
        _argument("--ranks", metavar="LIST", help="ranks of a trace, such as 0,8,16 or all; one of every class where not given"),
        _argument("--compare", type=Path, metavar="OTHER.yaml", help="another scenario, whose step is set beside"),
        _argument("--uneven", type=Path, metavar="UNEVEN.yaml", help="what makes devices, links and passes differ"),
        _argument("--run", action="store_true", help="the whole run in the place of a step: failures, restarts, waiting (run.failures)"),
        _argument("--seed", type=int, metavar="N", help="of the failures of --run, 0 where not given"),
    )),
    "explore": ("explore a scenario, the results of a study or a trace on a local page, where every control answers at once", (
        _argument("sources", metavar="SOURCE", nargs="*", type=Path, help=_EXPLORED),
        *_ABOUT_WHAT[1:],
        _argument("--port", type=_port, default=0, metavar="N", help="port of 127.0.0.1 to listen at, a free one where not given"),
        _argument("--no-browser", action="store_true", help="print the address and open nothing"),
        _argument("--export", type=Path, metavar="PAGE.html", help="write the page as one file that works without crossflow, and end"),
        _argument("--with", dest="moved", type=_paths, default=(), metavar="PATHS", help=_MOVED),
    )),
    "serve": ("replay requests through a service, event by event: times, tails, targets, cache, energy, cost", (
        *_ABOUT_WHAT,
        _argument("--requests", type=Path, metavar="FILE", help=_ASKED),
        _argument("-o", "--output", type=_answer, action="append", default=[], metavar="FILE", help=_SERVED),
        _argument(
            "--stream", action=argparse.BooleanOptionalAction,
            help="keep running statistics and nothing of each request, as is done by itself of more than a million",
        ),
    )),
    "schedule": ("schedule the jobs of a cluster, event by event: waiting, utilisation, energy, cost, carbon", (
        _argument("cluster", metavar="CLUSTER.yaml", type=Path, help="file with the cluster's system and its jobs"),
        _argument("-o", "--output", type=Path, action="append", default=[], metavar="FILE", help=_SCHEDULED),
        _SETTINGS,
    )),
    "events": ("list the different events of a step: those to measure to know all of it", (
        *_ABOUT_WHAT,
        _argument(
            "-o", "--output", type=Path, metavar="FILE.csv",
            help="write all events as a profile with the predicted times, to be filled with measured ones",
        ),
    )),
    "study": ("run a study: a sweep or a search, with its tables and plots", (
        _argument("study", metavar="STUDY.yaml", help="study file, or the name of a shipped one"),
        _argument("-o", "--out", "--output", dest="out", type=Path, metavar="DIR", help="folder for tables, plots and the run record"),
        _argument("--jobs", type=_positive, default=1, metavar="N", help="processes to use, 1 where not given"),
        _argument("--dask", metavar="ADDRESS", help="scheduler of a Dask cluster to use, such as tcp://10.0.0.1:8786"),
        _argument("--resume", action="store_true", help="keep the points that an earlier run finished"),
        _argument("--format", choices=("jsonl", "parquet"), help=_FORMAT),
        _argument("--hinges", action="store_true", help="then halve and double every constant of its generated devices, and tell who wins"),
        _argument("--yes", action="store_true", help="begin a study of more than 10,000,000 designs, or 1 GiB of memory, too"),
        _SETTINGS,
    )),
    "requests": ("describe requests of a service: how they arrive, how long they are, what they share; a trace, or drawn", (
        _argument("file", metavar="FILE", type=Path, help=_REQUESTS),
        _argument("-o", "--output", type=Path, action="append", default=[], metavar="FILE", help=_REQUESTS_WRITTEN),
        _SETTINGS,
    )),
    "validate": (
        "compare predictions with measured data, as fitted or with a group of rows left out, or show which rows a fitted number moves",
        (
            _argument("--data", type=Path, metavar="DIR", help="folder of measured tables"),
            _argument("--drop", nargs="?", const="", metavar="PARAMETER", help=_DROP),
            _argument("--leave-out", metavar="GROUP", help=_LEAVE_OUT),
        ),
    ),
    "calibrate": ("fit a system's parameters to measured tables and to logs of nccl-tests, with errors before and after", (
        _argument("files", metavar="FILES", nargs="+", type=Path, help=_MEASURED),
        _argument("--system", metavar="NAME", required=True, help="system to start from: a name that `list` gives, or a file"),
        _argument("-o", "--output", type=Path, metavar="FILE", help="system to write, FILE.yaml; with --learn the profile, FILE.csv"),
        _argument("--rows", action="append", default=[], metavar="NAME", help=_ROWS),
        _argument("--op", choices=_OPS, help="collective of logs that do not name it, inside or in the file's name"),
        _argument("--ranks", type=_positive, metavar="N", help="ranks of logs that do not list them"),
        _argument("--nodes", type=_positive, metavar="N", help="nodes of these ranks (default: 1)"),
        _argument("--no-curves", action="store_true", help="write parameters only, no measured curves of collectives"),
        _argument("--learn", action="store_true", help="learn the remaining error of the model for each kind instead; needs scikit-learn"),
        _argument("--events", type=Path, metavar="EVENTS.csv", help="with --learn, list of `crossflow events` to fill with learned times"),
        _argument("--force", action="store_true", help="replace existing files"),
    )),
    "measure": ("measure kernels, copies, overheads and collectives of this machine, for profiles and calibrate; needs torch", (
        _argument("-o", "--output", type=Path, metavar="FOLDER", required=True, help="folder for the rows, a profile and a template"),
        _argument("--only", default="", metavar="KINDS", help=_BENCHMARKS),
        _argument("--device", choices=("cpu", "cuda"), default="cpu", help="device to measure (default: cpu)"),
        _argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="type of the numbers (default: fp32)"),
        _argument("--threads", type=_positive, metavar="N", help="threads of torch (default: its own number)"),
        _argument("--minutes", type=float, default=5.0, metavar="T", help="budget of time (default: 5)"),
        _argument("--resume", action="store_true", help="continue with the rows of an earlier run"),
    )),
    "import": ("write a program from a PyTorch model, at any world size and without running it, from a text of XLA that JAX wrote, from "
        "traces, or from a record of emulate; a function that is named is run as you: name only code that you trust", (
        _argument("source", nargs="+", metavar="SOURCE", help=_SOURCE),
        _argument("-o", "--output", type=Path, metavar="FILE", required=True, help="program to write, FILE.program.json or .json.gz"),
        _argument("--world-size", type=_positive, default=1, metavar="N", help="ranks (default: 1)"),
        _argument("--parallel", default="", metavar="WORDS", help=_PARALLEL),
        _argument("--batch", type=_positive, default=1, metavar="N", help="samples of one rank, if the function gives no inputs"),
        _argument("--microbatches", type=_positive, metavar="N", help=_MICROBATCHES),
        _argument("--sequence", type=_positive, metavar="N", help="tokens of a sample, if the function gives no inputs"),
        _argument("--dtype", default="", metavar="TYPE", help="type of the weights: bf16, fp16 or fp32 (default: that of the model)"),
        _argument("--optimizer", default="adamw", metavar="NAME", help=_OPTIMIZER),
        _argument("--gradients", default="fp32", metavar="TYPE", help=_GRADIENTS),
        _argument("--task", default="training", metavar="TASK", help="training, or inference, which is only the forward pass"),
        _argument("--kernels", default="fused", metavar="WAY", help=_KERNELS),
        _argument("--samples", type=_positive, metavar="N", help=_SAMPLES),
        _argument("--trips", type=_positive, metavar="N", help="of a text of XLA, trips of loops whose number depends on data"),
        _argument("--cost", action="append", default=[], metavar="NAME=COST", help=_COST),
        _argument("--collectives", choices=("measured", "modelled"), help=_COLLECTIVES),
        _argument("--rank", type=_rank, metavar="N", help=_RANK_OF),
        _argument("--execution", nargs="+", default=[], metavar="ET", type=Path, help=f"of traces: {_EXECUTION}"),
        _argument("--name", default="", metavar="NAME", help="name of the program"),
    )),
    "trace": ("explain a real step from traces of the PyTorch profiler or Nsight Systems, and replay it with changes", (
        _argument("files", nargs="+", metavar="FILES", type=Path, help=_TRACES),
        _argument("--advise", action="store_true", help="say why the step is slow: what takes time, what mending it brings, and how"),
        _argument("--from", dest="launch", type=Path, metavar="FILE", help=_MENDED),
        _argument("--what-if", default="", metavar="CHANGES", help=_TRACE_CHANGES),
        _argument("--compare", type=Path, metavar="OTHER", help="another trace of the same ranks, or a scenario, to compare with"),
        _argument("-o", "--output", type=Path, action="append", default=[], metavar="FILE", help=_WRITTEN),
        _argument("--execution", nargs="+", default=[], metavar="ET", type=Path, help=_EXECUTION),
        _argument("--kernels", choices=("trace", "model", "both"), default="trace", help=_KERNEL_TIMES),
        _argument("--on", default="", metavar="NAME", help=_ON),
        _argument("--device", default="", metavar="NAME", help="template of the device of the traces, if its name is not known"),
        _argument("--reuse", metavar="NAME", help=_REUSE),
        _argument("--overheads", type=Path, metavar="FILE", help="overheads of a host, to use instead of those of the trace"),
        _argument("--write-overheads", type=Path, metavar="FILE", help="write the mean overheads of the host by operation, as .json"),
        _argument("--host", default="", metavar="NAME", help="name of the host that --write-overheads writes"),
        _argument("--no-contention", action="store_true", help="replay without kernels that delay others by filling the device"),
        _argument("--whole", type=_positive, default=64, metavar="N", help=_WHOLE),
        _argument("--jobs", type=_positive, default=2, metavar="N", help="processes that read more traces than --whole, 2 where not given"),
    )),
    "emulate": ("run a training script on one real rank of many, the others emulated by their collectives; the script is run as you: "
        "name only code that you trust", (
        _argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT.py", help="script with its arguments, or -m and a module"),
        _argument("--world-size", type=_positive, metavar="N", help="ranks of the emulated world"),
        _argument("--nodes", type=_positive, metavar="N", help="the world size as nodes of the system"),
        _argument("--ranks", default="0", metavar="LIST", help="ranks that run for real, one process each, such as 0,7 (default: 0)"),
        _argument("--system", metavar="NAME", help="system whose network gives the delays: a name that `list` gives, or a file"),
        _argument("--delays", metavar="FILE", help="file of measured delays, or of a delay function"),
        _argument("--what-if", default="", metavar="CHANGES", help=_CHANGES),
        _argument("--link", choices=("wire", "group"), help=_LINK),
        _argument("--real", action="store_true", help=_REAL),
        _argument("--record", type=Path, metavar="FILE", help="write what was called and waited for, as .json or .json.gz"),
        _argument("--replay", type=Path, metavar="FILE", help="replay such a record, without a script, with other delays or changes"),
        _argument("--json", type=Path, metavar="FILE", help="write the summary to a file as JSON, not to stderr as a page"),
    )),
    "schema": ("write the JSON schema of scenario, study or cluster files, for editors that complete and check YAML", (
        _argument("kind", choices=("scenario", "study", "cluster"), help="kind of file"),
    )),
    "completion": ("write a script that completes words in a shell, names of models, templates and studies among them", (
        _argument("shell", choices=("bash", "zsh", "fish"), help="shell that reads the script"),
    )),
    "bench": ("measure the speed of crossflow itself", (
        _argument("--against", type=Path, metavar="FILE",
                  help="refuse figures that are slower than these, which `bench --json` wrote, or that make 1.1 times as many calls"),
        _argument("--within", type=_times, metavar="TIMES", help="how many times as slow as in FILE is allowed; 1.3 where absent"),
    )),
}  # fmt: skip
_USAGES = {
    "emulate": "crossflow emulate (--world-size N | --nodes N) [options] -- SCRIPT.py [its words]\n"
    "       crossflow emulate --real [--world-size N] [--record FILE] [--json FILE] -- SCRIPT.py [its words]\n"
    "       crossflow emulate --replay FILE [options]"
}
