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

from tests.generated.drawn_laws import strictly
from tests.generated.everything import DRAWN, LAWS, checks


def main(words: Sequence[str] | None = None) -> int:
    """Status 1 where a law failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.generated", description=__doc__)
    parser.add_argument("--examples", type=_positive, default=100, metavar="N", help="files of each kind (100)")
    parser.add_argument("--total", type=_positive, metavar="N", help="files of all kinds together")
    parser.add_argument("--each", type=_positive, metavar="N", help="laws that one file is held against, others for other files (all)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each kind at most")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--kinds", nargs="+", choices=DRAWN, default=list(DRAWN))
    parser.add_argument("--laws", nargs="+", choices=LAWS, default=list(LAWS))
    parser.add_argument("--refused", action="store_true", help="print why files were refused")
    asked = parser.parse_args(words)
    if asked.total:
        asked.examples = -(-asked.total // len(asked.kinds))
    failed, counted = collections.Counter[str](), collections.Counter[str]()
    for kind in asked.kinds:
        _of_kind(kind, asked, failed, counted)
    print(
        f"{counted['accepted']} of {counted['drawn']} accepted, {counted['laws']} laws asked, {time.process_time():.0f} s of the processor"
    )
    for words_, count in failed.most_common():
        print(f"{count:5} x {words_}")
    return int(bool(failed))


def _positive(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got '{word}'")
    return int(word)


def _of_kind(kind: str, asked: argparse.Namespace, failed: collections.Counter, counted: collections.Counter) -> None:
    began, processed, before = time.monotonic(), time.process_time(), counted.copy()

    @hypothesis.seed(asked.seed)
    @hypothesis.settings(
        max_examples=asked.examples, derandomize=False, database=None, deadline=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(document=DRAWN[kind])
    def each(document):
        if time.monotonic() - began > asked.seconds:
            return
        counted["drawn"] += 1
        before_it = refused.total()
        with tempfile.TemporaryDirectory() as folder:
            held = _tried(
                kind,
                "accepted",
                lambda: list(checks(kind, document, Path(folder), tuple(asked.laws), asked.each, refused)),
                document,
                failed,
            )
            for law, check in held or ():
                counted["laws"] += 1
                _tried(kind, law, check, document, failed)
        counted["accepted"] += bool(held) and refused.total() == before_it

    refused = collections.Counter[str]()
    each()
    if asked.refused:
        for sentence, count in refused.most_common(20):
            print(f"    {count} x {sentence[:200]}")
    accepted, drawn = (counted[name] - before[name] for name in ("accepted", "drawn"))
    print(f"{kind}: {accepted} of {drawn} accepted, {time.process_time() - processed:.0f} s of the processor", flush=True)


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
