"""All kinds of drawn files, all laws, and which laws one file is held against."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from crossflow.base.errors import CrossflowError
from tests.generated.clusters import CLUSTER_LAWS, clusters, told
from tests.generated.drawn_laws import LAWS as ASKED
from tests.generated.drawn_laws import accepted
from tests.generated.further import FURTHER
from tests.generated.inputs import SCENARIOS as FIRST
from tests.generated.others import OTHERS
from tests.generated.physics import PHYSICS
from tests.generated.studies import resumed_alike, studies

LAWS = {**ASKED, **{law.__name__: law for law in PHYSICS}}
SCENARIOS = {**FIRST, **FURTHER, **OTHERS}
DRAWN = {**SCENARIOS, "study": studies(), "cluster": clusters()}
ALWAYS, HEAVY = ("adds_up",), ("explained", "explored")  # laws of every file, and those that take seconds
QUICK = tuple(name for name in LAWS if name not in HEAVY)
SELDOM = 100  # of how many files one is held against a heavy law


def checks(
    kind: str, document: dict[str, Any], folder: Path, laws: tuple[str, ...] = tuple(LAWS), each: int | None = None,
    refused: Counter[str] | None = None,
) -> Iterator[tuple[str, Callable[[], Any]]]:  # fmt: skip
    """What a drawn file is held against, by name: all laws, or `each` of them, others for other files. None where it is refused.

    A scenario that is refused is told so by `accepted`; a study or a cluster by the first of its laws.
    """
    if kind == "study":
        yield "resumed_alike", lambda: _or_refused(lambda: resumed_alike(document, folder), refused)
    elif kind == "cluster":
        if _or_refused(lambda: told(document), refused) is not None:
            for law in CLUSTER_LAWS:
                yield law.__name__, lambda law=law: law(document)
    elif (case := accepted(kind, document, folder, refused)) is not None:
        yield from ((name, lambda name=name: LAWS[name](case)) for name in chosen(document, laws, each))


def _or_refused(call: Callable[[], Any], refused: Counter[str] | None) -> Any:
    try:
        return call()
    except CrossflowError as error:
        if refused is not None:
            refused[str(error).splitlines()[0]] += 1
        return None


def chosen(document: dict[str, Any], laws: tuple[str, ...], each: int | None) -> list[str]:
    """Laws that a file is held against; which ones follows from what it says."""
    lot = random.Random(json.dumps(document, sort_keys=True))
    rest = [name for name in laws if name not in (*ALWAYS, *HEAVY)]
    some = rest if each is None else lot.sample(rest, min(each, len(rest)))
    seldom = [name for name in laws if name in HEAVY and lot.randrange(SELDOM) == 0]
    return [*(name for name in ALWAYS if name in laws), *some, *seldom]
