"""Schemas of files as lists of paths, and what one lacks of another.

``PYTHONPATH=tests python -m schemas VERSION`` writes those of this version to ``tests/data/schemas``, at a release.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

HELD = Path(__file__).parent / "data" / "schemas"
KINDS = ("study", "cluster")  # the former has all of a scenario
ANY = "*"


def paths(schema: dict) -> dict[str, set[str]]:
    """Every path that a schema knows, with the values that it names there; none where it takes any."""
    found: dict[str, set[str]] = {}

    def walk(node: object, path: str, seen: frozenset[str]) -> None:
        if not isinstance(node, dict):
            return
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            if name not in seen:
                walk(schema["$defs"][name], path, seen | {name})
            return
        for key, below in node.get("properties", {}).items():
            own = f"{path}.{key}".removeprefix(".")
            found.setdefault(own, set())
            walk(below, own, seen)
        for below in _inside(node):
            walk(below, path, seen)
        walk(node.get("items"), f"{path}[]", seen)
        walk(node.get("additionalProperties"), f"{path}.{ANY}", seen)
        found.setdefault(path, set()).update(json.dumps(value) for value in _values(node))

    walk(schema, "", frozenset())
    return found


def _inside(node: dict) -> Iterator[object]:
    for key in ("anyOf", "oneOf", "allOf"):
        yield from node.get(key, ())


def _values(node: dict) -> list:
    return [*node.get("enum", ()), *([node["const"]] if "const" in node else [])]


def lost(before: dict[str, set[str]], now: dict[str, set[str]]) -> list[str]:
    """Paths and named values that files could have before, and cannot now."""
    gone = [path for path in before if path not in now]
    narrowed = [f"{path} = {value}" for path, values in before.items() if now.get(path) for value in values - now[path]]
    return sorted([*gone, *narrowed])


def held() -> dict[str, dict[str, dict[str, set[str]]]]:
    """Schemas of released versions, by version and kind."""
    found: dict[str, dict[str, dict[str, set[str]]]] = {}
    for file in sorted(HELD.glob("*.json")):
        version, _, kind = file.stem.rpartition("-")
        found.setdefault(version, {})[kind] = {path: set(values) for path, values in json.loads(file.read_text(encoding="utf-8")).items()}
    return found


def write(version: str, kind: str, schema: dict) -> None:
    """Keep a schema as its paths."""
    told = {path: sorted(values) for path, values in sorted(paths(schema).items())}
    (HELD / f"{version}-{kind}.json").write_text(json.dumps(told, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    from crossflow.answers.study.schema import schema as current

    for each in KINDS:
        write(sys.argv[1], each, current(each))  # type: ignore[arg-type]
