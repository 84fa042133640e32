"""Laws that every accepted scenario obeys. Each takes a `Case` and says by an assertion what does not hold.

`TOLD` says in which ways a question may be asked without another answer, `MOVED` what a larger model or more failures may do; better
parts are in `physics`. What a law leaves out stands where it does so, with the reason.
"""

import contextlib
import copy
import functools
import io
import itertools
import json
import pickle
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import crossflow
from crossflow.__main__ import main
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.timelines import simulate
from crossflow.answers.explanation.parameters import Parameter, parameters
from crossflow.answers.prediction import Prediction
from crossflow.answers.scenario import Scenario
from crossflow.base.errors import CrossflowError

EXACT = 1e-9  # relative; sums in another order


@dataclass(frozen=True, kw_only=True)
class Case:
    """A scenario that is accepted, with its data, its prediction, and a folder for files."""

    kind: str
    document: dict[str, Any]
    scenario: Scenario
    found: Prediction
    folder: Path

    @property
    def replayed(self) -> bool:
        """Whether its requests come one by one, so that no step has parts."""
        return self.scenario.requests is not None

    @functools.cached_property
    def told(self) -> dict[str, Any]:
        """The prediction as plain data, without what depends on how it was asked."""
        return answered(self.found)

    @functools.cached_property
    def figures(self) -> dict[str, Any]:
        """The same without notes."""
        return figures_of(self.found)


def accepted(kind: str, document: dict[str, Any], folder: Path, refused: Counter[str] | None = None) -> Case | None:
    """The case of a document; None where it is refused in a sentence, which is counted."""
    document = written(document, folder)
    try:
        scenario = crossflow.from_dict(copy.deepcopy(document))
        found = crossflow.predict(scenario)
    except CrossflowError as error:
        if refused is not None:
            refused[re.sub(r"[0-9.]+", "N", str(error).splitlines()[0])] += 1
        return None
    return Case(kind=kind, document=document, scenario=scenario, found=found, folder=folder)


def written(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The document with paths of its `files`, which are written to a folder."""
    for name, content in document.get("files", {}).items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text.replace("{folder}", str(folder)))
    inside = {key: value for key, value in document.items() if key != "files"}
    return json.loads(json.dumps(inside).replace("{folder}", str(folder)))


def answered(found: Prediction) -> dict[str, Any]:
    """What is predicted, without what says how it was asked."""
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    return {key: value for key, value in data.items() if key not in ("provenance", "scenario", "name")}


def figures_of(found: Prediction) -> dict[str, Any]:
    """What is predicted without its notes: those find settings without effect by predictions of their own, which take as long again."""
    plain = copy.copy(found)
    vars(plain)["notes"] = ()
    return answered(plain)


def differing(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Places where two pieces of plain data differ by more than the last digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differing(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differing(a, b, f"{path}[{i}]")
    elif isinstance(one, float) and isinstance(other, float | int) and not isinstance(other, bool):
        if not np.isclose(one, other, rtol=EXACT, atol=1e-300):
            yield f"{path}: {one!r} and {other!r}"
    elif one != other:
        yield f"{path}: {one!r} and {other!r}"


def same(one: Any, other: Any) -> None:
    """Both are the same plain data."""
    assert not (found := list(itertools.islice(differing(one, other), 5))), found


# ------------------------------------------------------------------------------------------ the same question asked in another way


def adds_up(case: Case) -> None:
    """JSON has no gaps, a text and, of every third file, notes are there, the parts of a step are the step, and none is negative."""
    assert case.figures["feasible"] is case.found.feasible
    assert str(case.found)
    if random.Random(json.dumps(case.document, sort_keys=True)).randrange(3) == 0:
        assert all(case.found.notes)
    assert case.found.feasible or case.found.reason
    if not np.isfinite(case.found.step_time):
        return
    assert case.found.step_time > 0
    if not case.replayed:
        assert np.isclose(sum(case.found.breakdown.values()), case.found.step_time, rtol=EXACT), case.found.breakdown
    assert all(value >= -1e-12 * case.found.step_time for value in case.found.breakdown.values()), case.found.breakdown
    assert all(np.isfinite(value) and value >= 0 for value in case.found.memory.values() if isinstance(value, float))


def as_file(case: Case) -> None:
    """A scenario that is written as YAML and as JSON is read as the same, and so is one that is sent to another process."""
    for ending in ("yaml", "json"):
        same(case.told, answered(crossflow.predict(case.scenario.save(case.folder / f"saved.{ending}"))))
    same(case.told, answered(crossflow.predict(pickle.loads(pickle.dumps(case.scenario)))))


def as_settings(case: Case) -> None:
    """`--set` of a value says what the file says that has it, one value at a time, and all of a section."""
    leaves = [(path, value) for path, value in _leaves(case.document) if "." in path and isinstance(value, str | int | float | bool)]
    for path, value in _some(leaves, 3, case.document):
        without = copy.deepcopy(case.document)
        *above, last = path.split(".")
        del functools.reduce(dict.__getitem__, above, without)[last]
        shown = value if isinstance(value, str) else json.dumps(value)
        same(case.figures, figures_of(crossflow.predict(without, [f"{path}={shown}"])))  # notes name fields in the order of the file


def on_the_command_line(case: Case) -> None:
    """The command prints what Python returns."""
    path = case.folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(case.document, sort_keys=False))
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        status = main(["predict", str(path), "--json"])
    assert status == 0, said.getvalue()
    data = json.loads(printed.getvalue())
    same(case.told, {key: data[key] for key in data if key in case.told})


def in_a_batch(case: Case) -> None:
    """A batch of one is the prediction, and in a batch of several no point depends on the others; of any number behind it."""
    if case.replayed or case.kind == "job":
        return
    for one in _some(_numbers(case.scenario), 3, case.document):
        values = [one.value, 1.25 * one.value]
        alone = [evaluate(case.scenario, {one.path: [value]}).step_time[0] for value in values]
        together = evaluate(case.scenario, {one.path: values}).step_time
        assert np.allclose(alone, together, rtol=EXACT, equal_nan=True), (one.path, alone, together)
        assert np.isclose(alone[0], case.found.step_time, rtol=EXACT) or not np.isfinite(alone[0]), (one.path, alone, case.found.step_time)


def swept(case: Case) -> None:
    """A study over any number behind the scenario has a row of each prediction.

    Shares of a budget that add up to more than the whole are a wrong file by themselves, and in a study a design that cannot be built.
    """
    if case.replayed or case.kind == "job" or "run" in case.document:
        return
    for one in _some(_numbers(case.scenario), 1, case.document):
        values = [
            f"{factor * one.value!r} {one.quantity.unit}" if one.quantity.unit != "1" else factor * one.value for factor in (1.0, 1.25)
        ]
        study = {"name": "swept", "scenario": case.document, "sweep": {one.path: values}}
        made = crossflow.run_study(study, out=case.folder / "swept")
        for value, row in zip(values, made.rows, strict=True):
            try:
                found = crossflow.predict(case.document, [f"{one.path}={value}"])
            except CrossflowError as told:
                if "add up to" not in str(told):
                    raise
                assert "shares add up to more than 1" in str(row["reason"]), (one.path, value)
                continue
            assert (found.feasible, bool(np.isfinite(found.step_time))) == (row["feasible"], row["step_time_s"] is not None)
            assert row["step_time_s"] is None or np.isclose(found.step_time, row["step_time_s"], rtol=EXACT), (one.path, value)


def explained(case: Case) -> None:
    """What is predicted can be explained, in text and as JSON."""
    if not _steady(case) or not case.found.feasible:
        return
    made = crossflow.explain(case.scenario)
    assert str(made)
    json.dumps(made.to_dict(), allow_nan=False)


def explored(case: Case) -> None:
    """What is predicted has a page, which says the same step time."""
    from crossflow.edges.explore.scenario import scenario_app

    if not _steady(case):
        return
    app = scenario_app(case.scenario)
    try:
        json.dumps(app.calls["evaluate"]({}), allow_nan=False)
        json.dumps(app.calls["further"]({}), allow_nan=False)
    finally:
        if app.close:
            app.close()


def drawn(case: Case) -> None:
    """A timeline lasts as long as the step, or the iteration of a job; of a pipeline that decodes it is one pass of several on the way."""
    if case.document["workload"].get("task") == "decode" and "pp" in case.document["strategy"]:
        return
    if case.replayed or case.kind == "service" or not np.isfinite(case.found.step_time):
        return
    try:
        made = simulate(case.scenario)
    except CrossflowError:  # of a task that has none
        return
    job = case.found.score.job
    lasts = float(job["iteration_time_s"][0]) if job else case.found.step_time
    assert np.isclose(made.total, lasts, rtol=1e-6), (made.total, lasts)


def _some(given: list[Any], many: int, document: dict[str, Any]) -> list[Any]:
    """A few of a list, others for other documents and the same for the same."""
    drawn = random.Random(json.dumps(document, sort_keys=True))
    return drawn.sample(given, min(many, len(given)))


def _steady(case: Case) -> bool:
    return case.scenario.requests is None


def _leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            if "." not in str(key):
                yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, data


def _numbers(scenario: Scenario) -> list[Parameter]:
    """Numbers that may grow by a quarter."""
    return [
        one for one in parameters(scenario)
        if one.value > 0 and not one.quantity.whole and (one.quantity.le is None or 1.25 * one.value <= one.quantity.le)
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------ what failures and larger models may do


def more_failures(case: Case) -> None:
    """Twice the rate of a cause, twice the time until it is noticed or mended, and slower restarts never raise the goodput."""
    run = case.document.get("run", {})
    if not case.found.feasible or not isinstance(run.get("failures"), dict):
        return
    before = case.figures["run"]["goodput"]
    for name, cause in run["failures"].items():
        for key in ("rate", "detection", "repair"):
            if isinstance(cause, dict) and key in cause and not (key == "rate" and "high" in cause):
                after = _changed(case, f"run.failures.{name}.{key}", _times(cause[key], 2.0))["run"]["goodput"]
                assert after <= before * (1 + EXACT), (name, key, before, after, after / before - 1)
    restart = _changed(case, "run.restart", {"schedule": "2 hours", "load": "2 hours", "warm_up": "2 hours"})["run"]["goodput"]
    assert restart <= before * (1 + EXACT), ("restart", before, restart)
    fast = _changed(
        case, "run.checkpoint", {**run.get("checkpoint", {}), "to": "storage", "bandwidth": "1 TB/s", "storage_bandwidth": None}
    )
    if run.get("checkpoint", {}).get("to") != "neighbours":
        assert fast["run"]["goodput"] >= before * (1 - EXACT), ("storage", before, fast["run"]["goodput"])


# Knobs of a model or a plan by which memory of a device never shrinks (1) or never grows (-1).
KNOBS = (
    ("workload.layers", lambda one: 2 * one, 1),
    ("workload.vocabulary", lambda one: 2 * one, 1),
    ("workload.ffn", lambda one: 2 * one, 1),
    ("workload.sequence", lambda one: 2 * one, 1),
    ("workload.global_batch", lambda one: 2 * one, 1),
    ("strategy.micro_batch", lambda one: 2 * one, 1),
    ("strategy.zero", lambda one: one + 1 if one < 2 else None, -1),  # the third stage gathers copies of layers beside their shards
    ("strategy.recompute", lambda one: {"none": "selective", "selective": "full"}.get(one), -1),
    ("strategy.sequence_parallel", lambda one: None if one else True, -1),
    ("workload.output", lambda one: 2 * one, 1),
    ("workload.adapters.rank", lambda one: 2 * one, 1),
)


def memory_by_knobs(case: Case) -> None:
    """Larger models and batches never take less memory of a device, finer shards and more recomputation never more."""
    before = case.figures["memory"].get("total_bytes") if case.figures.get("memory") else None
    if not before or case.replayed or case.kind == "job":
        return
    for path, moved, sign in KNOBS:
        section, *rest = path.split(".")
        held: Any = case.document.get(section)
        for key in rest:
            held = held.get(key) if isinstance(held, dict) else None
        value = None if held is None else moved(held)
        if value is None:
            continue
        try:
            after = _changed(case, path, value)["memory"]["total_bytes"]
        except CrossflowError:  # which has no such value
            continue
        assert sign * (after - before) >= -1e-9 * before, (path, value, before, after, after / before - 1)


def _changed(case: Case, path: str, value: Any) -> dict[str, Any]:
    """What is predicted of the document with another value at a path."""
    document = copy.deepcopy(case.document)
    *above, last = path.split(".")
    functools.reduce(dict.__getitem__, above, document)[last] = value
    return figures_of(crossflow.predict(document))


def _times(quantity: str, factor: float) -> str:
    number, unit = quantity.split(maxsplit=1)
    return f"{factor * float(number):.6g} {unit}"


TOLD = (adds_up, as_file, as_settings, on_the_command_line, in_a_batch, swept, explained, explored, drawn)
MOVED = (more_failures, memory_by_knobs)
LAWS: dict[str, Callable[[Case], None]] = {law.__name__: law for law in (*TOLD, *MOVED)}


@contextlib.contextmanager
def strictly() -> Iterator[None]:
    """Warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
