"""Other numbers in the package's files: a fitted number dropped, or a family's numbers in the place of another's.

The files themselves stay as they are: what is computed `instead` reads them with other contents. What was kept of earlier ones is
forgotten before and after.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from crossflow.base import files
from crossflow.base.contents import Contents, key_of
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.base.files import Document, Path_
from crossflow.evidence.validation.tables import shipped
from crossflow.hardware.architecture.software import load_stack
from crossflow.hardware.architecture.system import resolve

# What a number is where it does nothing: shares of what a device could do are 1, times and ratios are 0, all else is absent.
WHOLE = re.compile(r"utilisation|efficiency|duplex|earlier_instructions|training_sensitivity|_ratio$|_share$|operand_activity|^clock$")
ENDLESS = re.compile(r"per_clock|per_flop|chip_power|requests_a_user")  # limits, which bind nothing where they are absent
TIMES = ("s", "ms", "us", "ns")


@contextlib.contextmanager
def instead(contents: Mapping[Path, str]) -> Iterator[None]:
    """Read other contents in the place of files' own."""
    _forget()
    try:
        with Contents({key_of(path): text.encode() for path, text in contents.items()}).used():
            yield
    finally:
        _forget()


def _forget() -> None:
    """Forget what functions of the package keep of files that they have read."""
    for name, module in list(sys.modules.items()):
        if name.startswith("crossflow."):
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()


def _data(path: Path) -> dict[str, Any]:
    return dict(files.read_yaml(path).data)


def text_of(data: Mapping[str, Any]) -> str:
    """Data as the text of a file that is read instead; libyaml, where it is, takes a tenth of the time."""
    return str(yaml.dump(data, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False))


# -------------------------------------------------------------------------------------------- numbers that can be dropped


def droppable() -> dict[str, list[tuple[Path, Path_]]]:
    """Fitted numbers by name, each with its places: files and keys in them.

    Numbers of families and fabrics go by their keys, those of software by `software.NAME` and theirs, conditions of sources by
    `measurements.SOURCE` and theirs. A number is fitted whose source's text says so.
    """
    found: dict[str, list[tuple[Path, Path_]]] = {}
    for path in files.catalogue("templates", "families").values():
        for keys in fitted(_data(path)):
            found.setdefault(".".join(map(str, keys)), []).append((path, keys))
    for name, path in files.catalogue("templates", "software").items():
        for keys in fitted(_data(path)):
            found[".".join(("software", name, *map(str, keys)))] = [(path, keys)]
    path = shipped() / "measurements.yaml"
    for source, conditions in _data(path).items():
        for keys in _leaves(conditions):
            found[".".join(("measurements", source, *map(str, keys)))] = [(path, (source, *keys))]
    return found


def fitted(data: Mapping[str, Any], sources: Mapping[str, str] | None = None, above: Path_ = ()) -> Iterator[Path_]:
    """Keys of the numbers whose source says that they were fitted."""
    sources = data.get("sources", {}) if sources is None else sources
    for key, value in data.items():
        if not isinstance(value, Mapping) or key == "sources":
            continue
        if "value" not in value:
            yield from fitted(value, sources, (*above, key))
        elif fitted_number(value, sources):
            yield (*above, key)


def fitted_number(number: Mapping[str, Any], sources: Mapping[str, str]) -> bool:
    """Whether the source of a number says that it was fitted."""
    return bool(re.search(r"\bfit", sources.get(number.get("source", ""), ""), re.IGNORECASE))


def _leaves(data: Any, above: Path_ = ()) -> Iterator[Path_]:
    if isinstance(data, Mapping) and "as" not in data:
        for key, value in data.items():
            yield from _leaves(value, (*above, key))
    else:
        yield above


def dropped(parameter: str) -> dict[Path, str]:
    """Contents of the files that hold a fitted number, with its neutral value; ``name=value`` gives another one.

    Raises
    ------
    CrossflowError
        For a name that is none of a fitted number.
    """
    name, _, value = parameter.partition("=")
    known = droppable()
    if name not in known:
        raise CrossflowError(f"no fitted number is called '{name}'{did_you_mean(name, known)} (`crossflow validate --drop` lists them)")
    given = yaml.safe_load(value) if value else None
    contents = changed(known[name], lambda data, keys: neutral(data, keys, given))
    _check(name, contents)
    return contents


def changed(places: Iterable[tuple[Path, Path_]], change: Callable[[dict[Any, Any], Path_], None]) -> dict[Path, str]:
    """Contents of files after a change of the number at each of some places."""
    data: dict[Path, dict[Any, Any]] = {}
    for path, keys in places:
        if path not in data:
            data[path] = plain_of(path)
        change(data[path], keys)
    return {path: text_of(one) for path, one in data.items()}


def plain_of(path: Path) -> dict[Any, Any]:
    """Data of a file of the package, which may be changed."""
    return dict(yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _check(name: str, contents: Mapping[Path, str]) -> None:
    """CrossflowError where no system, or stack of software, can be read with other contents of files."""
    with instead(contents):
        try:
            for path in contents:
                if path.parent.name == "software":
                    load_stack(path.stem)
            for device in ("a100-80gb", "h100-sxm", "b200", "mi210"):
                resolve(Document(file="drop", data={"template": device}))
        except CrossflowError as error:
            raise CrossflowError(f"{name} cannot be left out: {error}; give a value for it, --drop {name}=VALUE") from None


def neutral(data: dict[Any, Any], keys: Path_, given: Any = None) -> None:
    """Put a value in the place of a number, its neutral one where none is given."""
    *above, last = keys
    for key in above:
        data = data[key]
    held = data[last]
    number = held["value"] if isinstance(held, Mapping) and "value" in held else held
    if given is not None:
        data[last] = given
    elif isinstance(number, str) and (unit := re.sub(r"^[-+\d.eE]+\s*", "", number)) in TIMES:
        data[last] = f"0 {unit}"
    elif isinstance(number, int | float) and not isinstance(number, bool) and not ENDLESS.search(str(last)):
        data[last] = 1 if WHOLE.search(str(last)) else 0
    else:
        del data[last]
