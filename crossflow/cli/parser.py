"""The words of the command line. Nothing heavy is imported here: `crossflow --help` must come at once."""

from __future__ import annotations

import argparse
import importlib
import keyword
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

KINDS = ("techlibs", "templates", "models", "studies")
_ABOUT = "Predict, explain and search designs of distributed AI systems, from technology to training step."
_EPILOG = "Names resolve to files shipped with crossflow, then to paths. Data goes to stdout, the log to stderr."


class Parser(argparse.ArgumentParser):
    """Parser whose complaint is one line that says where to read on."""

    def error(self, message: str) -> NoReturn:
        """Complain and exit with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the words of a command.

    >>> parse(["predict", "s.yaml", "--set", "system.devices=8", "strategy=d8"]).settings
    ['system.devices=8', 'strategy=d8']
    """
    return build().parse_args(spread(argv))


def handler(arguments: argparse.Namespace) -> Callable[[argparse.Namespace], None]:
    """The function that carries out a command, from the module of its name."""
    module = f"{arguments.command}_" if keyword.iskeyword(arguments.command) else arguments.command
    run: Callable[[argparse.Namespace], None] = importlib.import_module(f"crossflow.cli.{module}").run
    return run


def spread(argv: Sequence[str]) -> list[str]:
    """Write ``--set a=1 b=2`` as ``--set a=1 --set b=2``, so that a file name after them is not taken for a setting.

    >>> spread(["predict", "--set", "a=1", "b=2", "s.yaml"])
    ['predict', '--set', 'a=1', '--set', 'b=2', 's.yaml']
    """
    words: list[str] = []
    for word in argv:
        follows = len(words) > 1 and words[-2] == "--set" and "=" in words[-1]
        words += ["--set", word] if follows and "=" in word and not word.startswith("-") else [word]
    return words


def build() -> Parser:
    """The parser of all commands."""
    from crossflow import __version__

    parser = Parser(prog="crossflow", description=_ABOUT, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"crossflow {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (about, add_arguments) in _COMMANDS.items():
        command = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        add_arguments(command)
        command.add_argument("--json", action="store_true", help="write JSON instead of a page for people")
    return parser


def _list(parser: Parser) -> None:
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only names of this kind")


def _show(parser: Parser) -> None:
    about = "a name that `list` gives, a component such as standard/memory/HBM3, or a file"
    parser.add_argument("name", metavar="NAME", help=about)


def _predict(parser: Parser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO.yaml", type=Path, help="scenario file")
    _settings(parser)


def _explain(parser: Parser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO.yaml", type=Path, help="scenario file")
    about = "what to improve, a column of a score such as step_time_s, energy_j, cost_usd or mfu"
    parser.add_argument("--objective", default="step_time_s", metavar="NAME", help=about)
    parser.add_argument("--top", type=_positive, default=15, metavar="N", help="parameters to show, 15 where not given")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw a tornado plot, as FILE.png and FILE.svg")
    _settings(parser)


def _timeline(parser: Parser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO.yaml", type=Path, help="scenario file")
    about = "trace (.json, .json.gz), picture (.png, .svg) or, without ending, folder of a trace a rank; may be given several times"
    parser.add_argument("-o", "--output", type=Path, action="append", default=[], metavar="FILE", help=about)
    parser.add_argument("--text", action="store_true", help="show it in the terminal too, where a file is written")
    parser.add_argument("--ranks", metavar="LIST", help="ranks of a trace, such as 0,8,16 or all; one of every class where not given")
    parser.add_argument("--compare", type=Path, metavar="OTHER.yaml", help="another scenario, whose step is set beside")
    parser.add_argument("--uneven", type=Path, metavar="UNEVEN.yaml", help="what makes devices, links and passes differ")
    _settings(parser)


def _events(parser: Parser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO.yaml", type=Path, help="scenario file")
    about = "write all events as a profile with the predicted times, to be filled with measured ones"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.csv", help=about)
    _settings(parser)


def _study(parser: Parser) -> None:
    parser.add_argument("study", metavar="STUDY.yaml", help="study file, or the name of a shipped one")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for tables, plots and the run record")
    parser.add_argument("--jobs", type=_positive, default=1, metavar="N", help="processes to use, 1 where not given")
    parser.add_argument("--dask", metavar="ADDRESS", help="scheduler of a Dask cluster to use, such as tcp://10.0.0.1:8786")
    parser.add_argument("--resume", action="store_true", help="keep the points that an earlier run finished")
    _settings(parser)


def _validate(parser: Parser) -> None:
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of measured tables")


def _bench(parser: Parser) -> None:
    """The command takes nothing of its own."""


def _import(parser: Parser) -> None:
    about = "script.py:function or module:function, which returns the model or runs a step; or a config.json of Hugging Face, or its folder"
    parser.add_argument("source", metavar="SOURCE", help=about)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", required=True, help="program to write, FILE.program.json or .json.gz")
    parser.add_argument("--world-size", type=_positive, default=1, metavar="N", help="ranks, 1 where not given")
    about = "what divides the model: ddp, fsdp2, hsdp=K, tp=K, or tp=K with one of the others; nothing where the function does so itself"
    parser.add_argument("--parallel", default="", metavar="WORDS", help=about)
    parser.add_argument("--batch", type=_positive, default=1, metavar="N", help="samples of one rank where the function gives no inputs")
    parser.add_argument("--sequence", type=_positive, metavar="N", help="tokens of a sample where the function gives no inputs")
    parser.add_argument(
        "--dtype", default="", metavar="TYPE", help="type of the weights: bf16, fp16 or fp32; that of the model where not given"
    )
    about = "adamw with fp32 copies of narrower weights, sgd or none, where the function gives none"
    parser.add_argument("--optimizer", default="adamw", metavar="NAME", help=about)
    about = "type in which --parallel reduces gradients: fp32, or weights for that of the weights"
    parser.add_argument("--gradients", default="fp32", metavar="TYPE", help=about)
    parser.add_argument("--task", default="training", metavar="TASK", help="training, or inference, which is the forward pass alone")
    about = "fused joins pointwise operations as compilers and frameworks do; eager leaves each to itself"
    parser.add_argument("--kernels", default="fused", metavar="WAY", help=about)
    about = "samples of a step over all ranks, where they are not those of a rank times the ranks that share no layers"
    parser.add_argument("--samples", type=_positive, metavar="N", help=about)
    parser.add_argument("--name", default="", metavar="NAME", help="name of the program")


def _settings(parser: Parser) -> None:
    about = "override a field, such as system.devices=512"
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="PATH=VALUE", help=about)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got '{text}'")
    return int(text)


_COMMANDS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "list": ("name the technology libraries, templates, models and studies at hand", _list),
    "show": ("show one of them resolved, with units and the source of every number", _show),
    "predict": ("predict a scenario: step time, what bounds it, memory, energy", _predict),
    "explain": ("explain what limits a scenario: elasticities, what-ifs, the next bottleneck", _explain),
    "timeline": ("show what every device does when: a trace for Perfetto, a picture, the terminal", _timeline),
    "events": ("list the different events of a step: what would have to be measured to know all of it", _events),
    "study": ("run a study: a sweep or a search, with its tables and plots", _study),
    "import": ("record a PyTorch model as a program, at any world size and without running it", _import),
    "validate": ("compare predictions with measured data", _validate),
    "bench": ("measure the speed of crossflow itself", _bench),
}
