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
WORD = re.compile(r"[\w@%+=:,.~-]*(?:[/\\][\w@%+=:,.~-]+)+")  # that has a separator of folders in it


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
    yield f"command: crossflow {' '.join(map(masked, words))}"
    yield ""
    yield from (_private(line.rstrip("\n")) for line in traceback.format_exception(error))


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
    if re.search(r"[/\\]", word) or re.search(r"\.(ya?ml|jsonl?|csv|gz|sh|py|npz|parquet|png|svg|html|toml)$", word):
        return f"FILE{''.join(Path(word.replace(chr(92), '/')).suffixes[-1:])}"
    return word


def _private(text: str) -> str:
    """A text without private folders and names: files of packages by their place in these, all others by their ending."""

    def shown(found: re.Match[str]) -> str:
        path = found.group().replace("\\", "/")
        for root, mark in (("/site-packages/", "site-packages/"), ("/crossflow/crossflow/", "crossflow/"), (_own(), "crossflow/")):
            if root in path:
                return mark + path.rpartition(root)[2]
        inside = re.search(r"/lib/python[\d.]+/(.*)", path)
        return f"python/{inside.group(1)}" if inside else f"FILE{Path(path).suffix}"

    text = WORD.sub(shown, text)
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
