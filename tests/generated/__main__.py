# ruff: noqa: T201  (a command)
"""Draw many scenarios, hold each against all laws, and print every kind of failure once, with the first scenario that shows it."""

import argparse
import collections
import json
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import hypothesis

from tests.generated.drawn_laws import LAWS as ASKED
from tests.generated.drawn_laws import accepted, strictly
from tests.generated.further import FURTHER
from tests.generated.inputs import SCENARIOS as FIRST
from tests.generated.others import OTHERS
from tests.generated.physics import PHYSICS

LAWS = {**ASKED, **{law.__name__: law for law in PHYSICS}}
SCENARIOS = {**FIRST, **FURTHER, **OTHERS}
HEAVY, SELDOM = ("explained", "explored"), 5  # laws that take seconds, and of how many scenarios one is held against them


def main(words: Sequence[str] | None = None) -> int:
    """Status 1 where a law failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.generated", description=__doc__)
    parser.add_argument("--examples", type=int, default=100, metavar="N", help="scenarios of each kind (100)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each kind at most")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--kinds", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--laws", nargs="+", choices=LAWS, default=list(LAWS))
    parser.add_argument("--refused", action="store_true", help="print why scenarios were refused")
    asked = parser.parse_args(words)
    failed = collections.Counter[str]()
    for kind in asked.kinds:
        _of_kind(kind, asked, failed)
    for words_, count in failed.most_common():
        print(f"{count:5} x {words_}")
    return int(bool(failed))


def _of_kind(kind: str, asked: argparse.Namespace, failed: collections.Counter) -> None:
    began, counted = time.monotonic(), collections.Counter()

    @hypothesis.seed(asked.seed)
    @hypothesis.settings(
        max_examples=asked.examples, derandomize=False, database=None, deadline=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(document=SCENARIOS[kind])
    def each(document):
        if time.monotonic() - began > asked.seconds:
            return
        counted["drawn"] += 1
        with tempfile.TemporaryDirectory() as folder:
            case = _tried(kind, "accepted", lambda: accepted(kind, document, Path(folder), refused), document, failed)
            counted["accepted"] += case is not None
            rare = HEAVY if counted["accepted"] % SELDOM else ()
            for law in asked.laws if case is not None else ():
                if law in rare:
                    continue
                _tried(kind, law, lambda law=law: LAWS[law](case), document, failed)

    refused = collections.Counter[str]()
    each()
    if asked.refused:
        for sentence, count in refused.most_common(20):
            print(f"    {count} x {sentence[:200]}")
    print(f"{kind}: {counted['accepted']} of {counted['drawn']} accepted, {time.monotonic() - began:.0f} s", flush=True)


def _tried(kind, law, call, document, failed):
    try:
        with strictly():
            return call()
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/crossflow/" in frame.filename]
        place = f"{frames[-1].filename.rpartition('/crossflow/')[2]}:{frames[-1].lineno}" if frames else ""
        told = str(error).splitlines()[0][:300] if str(error) else ""
        key = f"{law} {type(error).__name__} {place} {'' if place else told[:60]}"
        failed[key] += 1
        if failed[key] <= 3:
            print(f"{kind} {key}: {told}\n    {json.dumps(document)}", flush=True)
        return None


if __name__ == "__main__":
    raise SystemExit(main())
