"""What a command leaves when it fails by a mistake of crossflow's own: one file, without names of people, machines and private folders."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import re
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from crossflow.base.platforms import SYSTEM

ISSUES = "the issues of crossflow"
LIBRARIES = ("numpy", "pydantic", "scipy", "matplotlib", "pandas", "optuna", "torch", "jax", "dask")
PATH = re.compile(r"""(?<=['"])[^'"\n]*[/\\][^'"\n]*(?=['"])|[\w@%+=:,.~-]*(?:[/\\][\w@%+=:,.~-]+)+""")  # quoted, or without spaces
ENDINGS = r"\.(ya?ml|jsonl?|csv|gz|sh|npz|parquet|png|svg|html|toml)"
FILE = re.compile(rf"[/\\]|({ENDINGS}|\.py)$")  # by its look
NAME = re.compile(rf"[\w@%+=,~-][\w@%+=,.~-]*{ENDINGS}\b")


def report(error: BaseException, words: Sequence[str]) -> Path | None:
    """Write what a report of a mistake needs, and return its file; None where no folder takes one."""
    text = "\n".join(_lines(error, words)) + "\n"
    for folder in (tempfile.gettempdir(), os.curdir):
        try:
            handle, name = tempfile.mkstemp(prefix="crossflow-crash-", suffix=".txt", dir=folder, text=True)
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
                stream.write(text)
        except OSError:
            continue
        return Path(name)
    return None


def _lines(error: BaseException, words: Sequence[str]) -> Iterator[str]:
    from crossflow import __version__

    yield f"crossflow {__version__}, Python {sys.version.partition(' ')[0]} on {SYSTEM}"
    yield ", ".join(f"{name} {version}" for name in LIBRARIES if (version := _version(name)))
    yield f"command: crossflow {' '.join([*words[:1], *map(masked, words[1:])])}"
    yield ""
    own = sorted((word for word in words if FILE.search(word)), key=len, reverse=True)
    yield from (_private(line.rstrip("\n"), own) for line in traceback.format_exception(error))


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def masked(word: str) -> str:
    """A word of a command without the names of its files and folders.

    >>> masked("predict"), masked("tp8-dp2"), masked("/home/ada/secret/chip.yaml"), masked("workload=../ours/model.json")
    ('predict', 'tp8-dp2', 'FILE.yaml', 'workload=FILE.json')
    """
    key, equals, value = word.partition("=")
    if equals and not re.search(r"[/\\]", key):
        return f"{key}={masked(value)}"
    if _names_file(word):
        return f"FILE{''.join(Path(word.replace(chr(92), '/')).suffixes[-1:])}"
    return word


def _names_file(word: str) -> bool:
    """Whether a word of a command names a file or a folder, by its look or because there is one."""
    return bool(FILE.search(word)) or (len(word) > 1 and not word.startswith("-") and os.path.lexists(word))


def _private(text: str, own: Sequence[str]) -> str:
    """A text without private folders and names: files of packages by their place in these, all others by their ending.

    own : words of the command that look like files, the longest first.
    """

    def shown(found: re.Match[str]) -> str:
        path = found.group().replace("\\", "/")
        for root, mark in (("/site-packages/", "site-packages/"), ("/crossflow/crossflow/", "crossflow/"), (_own(), "crossflow/")):
            if root in path:
                return mark + path.rpartition(root)[2]
        inside = re.search(r"/lib/python[\d.]+/(.*)", path)
        return f"python/{inside.group(1)}" if inside else f"FILE{Path(path).suffix}"

    for word in own:
        text = text.replace(word, f"FILE{Path(word).suffix}")
    text = PATH.sub(shown, text)
    text = NAME.sub(lambda found: found.group() if found.group().startswith("FILE.") else f"FILE.{found.group(1)}", text)
    for name, mark in ((_user(), "USER"), (socket.gethostname(), "HOST")):
        if len(name) > 1:
            text = re.sub(rf"\b{re.escape(name)}\b", mark, text)
    return text


def _own() -> str:
    """The folder of the package, with a slash behind it."""
    return Path(sys.modules["crossflow"].__file__ or "").parent.as_posix() + "/"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # where the system knows no name for whoever runs this
        return ""
