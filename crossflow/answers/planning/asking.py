"""What the Python interface offers by name: each takes a scenario, the path of its file, its data, or a model and a system; and settings.

>>> import crossflow
>>> crossflow.predict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "auto"}, workload__global_batch=64).feasible
True
>>> crossflow.predict(model="llama3-8b", on="dgx-h100", tp=8, batch=64).strategy
'tp8'
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossflow.answers import prediction
from crossflow.answers.evaluation.timelines import simulate
from crossflow.answers.explanation import sensitivity
from crossflow.answers.explanation.answers import Explanation
from crossflow.answers.planning import opening
from crossflow.answers.planning.keywords import (
    CALLED,
    OF_STRATEGY,
    Arguments,
    Returned,
    named_so,
    paths,
    plain_names,
    settled,
    short_paths,
    with_other_names,
)
from crossflow.answers.planning.opening import Overrides, ScenarioSource, as_settings, data_of, unplanned
from crossflow.answers.planning.question import INSTEAD, Question
from crossflow.answers.prediction import Prediction
from crossflow.answers.scenario import Scenario, requests_of
from crossflow.answers.service.served import STREAMED, ServedRequests, served, streamed
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.files import YAML, Document
from crossflow.base.limits import shown
from crossflow.base.results import later
from crossflow.engine.runs.uneven import EVEN, Uneven
from crossflow.engine.timeline.record import Timeline
from crossflow.hardware.architecture.system import asked_system
from crossflow.parallel.strategy.reading import every_strategy
from crossflow.workload.released import CONFIG
from crossflow.workload.requests.record import RequestTrace

if TYPE_CHECKING:
    from crossflow.answers.explanation.phased import RunExplanation
else:
    RunExplanation = later("crossflow.answers.explanation.phased", "RunExplanation")


@named_so
def predict(scenario: ScenarioSource | None = None, settings: Overrides = (), **named: Any) -> Prediction:
    """Predict one scenario: its step time, what bounds it, whether it fits.

    Parameters
    ----------
    scenario : a scenario, the path of its file, or its data as a mapping; left out where `model` and `on` say it.
    settings : what overrides its fields: one ``path=value``, several of them, or values by path.
    named : further settings: options of the command (``model``, ``on``, ``nodes``, ``devices``, ``strategy``, ``batch``, ``task``),
        fields of the workload (``sequence``, ``prompt``, ``dtype``), degrees of the strategy (``tp``, ``dp``), or any path with
        two underscores for a dot: ``system__network__inter__bandwidth="50 GB/s"``.

    Examples
    --------
    >>> import crossflow
    >>> crossflow.predict(model="llama3-8b", on="dgx-h100", nodes=2, strategy="tp8-dp2", batch=64).assumptions
    ()
    """
    source, texts, assumed = asked("predict", scenario, settings, named)
    found = prediction.predict(opening.load(source, texts))
    return replace(found, assumptions=assumed) if assumed else found


@named_so
def load(scenario: ScenarioSource | None = None, settings: Overrides = (), **named: Any) -> Scenario:
    """Read a scenario, and choose its strategy where it says ``strategy: auto``; see `predict` for how it is given.

    Raises
    ------
    SpecError
        With every problem of the file, each with its line.
        A strategy that does not fit the system or the workload is one of them.

    Examples
    --------
    >>> import crossflow
    >>> crossflow.load(crossflow.example("llama"), nodes=8, strategy="tp8-dp8").devices
    64
    """
    return opening.load(*asked("load", scenario, settings, named)[:2])


@named_so
@with_other_names
def explain(
    scenario: ScenarioSource | None = None, objective: str | None = None, settings: Overrides = (), **named: Any
) -> Explanation | RunExplanation:
    """What limits a scenario; see `crossflow.answers.explanation.sensitivity.explain`, and `predict` for how the scenario is given.

    Of a run of several phases it is a `RunExplanation`; see `crossflow.answers.explanation.phased.explain_run`.
    """
    if objective is not None and "on" not in named and scenario is not None and _is_model(scenario) and asked_system(objective):
        objective, named = None, {"on": objective, **named}  # explain("llama3-8b", "dgx-h100")
    found = opening.load(*asked("explain", scenario, settings, named)[:2])
    if found.phased:
        from crossflow.answers.explanation.phased import explain_run  # which few runs need

        return explain_run(found, objective)
    return sensitivity.explain(found, objective)


@named_so
def legal(scenario: ScenarioSource | None = None, settings: Overrides = (), **named: Any) -> tuple[str, ...]:
    """Every strategy that divides a scenario's workload over its devices, as text; see `predict` for how the scenario is given."""
    found, _ = unplanned(*asked("legal", scenario, settings, named)[:2])
    return every_strategy(found.workload, found.nodes, fused=found.fused_attention, kinds=found.system.kinds)


@named_so
def timeline(scenario: ScenarioSource | None = None, settings: Overrides = (), *, uneven: Uneven = EVEN, **named: Any) -> Timeline:
    """What every device does and when in one step; see `simulate`, and `predict` for how the scenario is given.

    Examples
    --------
    >>> import crossflow
    >>> step = crossflow.timeline(model="llama3-8b", on="dgx-h100", tp=4, pp=2, batch=16)
    >>> step.table()["device"]
    ['stage 0', 'stage 1']
    >>> step.to_perfetto("step.json.gz")  # doctest: +SKIP
    """
    return simulate(opening.load(*asked("timeline", scenario, settings, named)[:2]), uneven)


def second_is_system(call: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """A function whose second word is the system where the first one is a model: ``serve("llama3-8b", "dgx-h100", requests=...)``."""

    @functools.wraps(call)
    def asked_so(*given: Arguments.args, **named: Arguments.kwargs) -> Returned:
        words = len(given) > 1 and "on" not in named and isinstance(given[0], str | Path) and isinstance(given[1], str)
        if words and _is_model(given[0]) and asked_system(str(given[1])):  # type: ignore[arg-type]
            named["on"], given = given[1], (given[0], *given[2:])  # type: ignore[assignment]
        return call(*given, **named)

    return asked_so


@second_is_system
def serve(
    scenario: ScenarioSource | None = None,
    requests: RequestTrace | str | Path | Mapping[str, Any] | None = None,
    settings: Overrides = (),
    *,
    stream: bool | None = None,
    **named: Any,
) -> ServedRequests:
    """Replay requests through a service, event by event; see `predict` for how the scenario is given.

    Parameters
    ----------
    requests : the requests, a file of them, or the section of a scenario that draws them, in the place of those that the scenario's key
        ``requests`` reads or draws.
    stream : whether to keep running statistics and nothing of each request; where absent that is done of more than a million.

    Returns
    -------
    Times of every request, targets that were met, throughput, use of the cache, energy and money, with series over time.

    Examples
    --------
    >>> import crossflow
    >>> asked = {"arrivals": {"law": "poisson", "rate": "2 1/s"}, "count": 50, "prompt": 500, "output": 20}
    >>> workload = {"model": "llama3-8b", "task": "serving"}
    >>> scenario = {"system": "dgx-h100", "workload": workload, "strategy": "tp1-dp8", "requests": asked}
    >>> served = crossflow.serve(scenario)
    >>> len(served.trace), served.preemptions
    (50, 0)
    """
    if isinstance(requests, Path) or (isinstance(requests, str) and ("=" not in requests or Path(requests).is_file())):
        named, requests = {**named, "requests": str(requests)}, None
    if isinstance(requests, Mapping):
        named, requests = {**named, "requests": requests}, None
    if not (requests is None or isinstance(requests, RequestTrace)):
        raise CrossflowError(
            f"serve: expected requests as a RequestTrace or a file, got {shown(requests)}; settings go by their name, settings=..."
        )
    source, texts, _ = asked("serve", scenario, settings, named)
    found = opening.load(source, texts)
    trace = requests_of(found) if requests is None else requests
    if stream or (stream is None and len(trace) > STREAMED):
        return streamed(found, trace)
    return served(found, trace)


def asked(
    function: str, scenario: ScenarioSource | None, settings: Overrides, named: Mapping[str, Any]
) -> tuple[ScenarioSource, tuple[str, ...], tuple[str, ...]]:
    """What describes a scenario, all settings, and sentences on what was assumed."""
    if isinstance(settings, str) and "=" not in settings and "on" not in named and isinstance(scenario, str | Path) and _is_model(scenario):
        settings, named = (), {"on": settings, **named}  # predict("llama3-8b", "dgx-h100")
    if isinstance(settings, Mapping):
        settings = short_paths(function, settings)
    named = plain_names(function, named)
    degrees = {key: named[key] for key in named if key in OF_STRATEGY}
    if degrees and "strategy" in named:
        given = ", ".join(f"{key}={value!r}" for key, value in degrees.items())
        raise TypeError(f"{function}() was given strategy={named['strategy']!r} and {given}: degrees are a strategy")
    named = _spelled(named)
    options = {key: value for key, value in named.items() if key in INSTEAD}
    system = options.pop("on", None) or (named.get("system") if isinstance(named.get("system"), str) else None)
    if scenario is None or (system is not None and _is_model(scenario)):
        if isinstance(named.get("requests"), Mapping):
            options["requests"] = named["requests"]
        rest = {key: value for key, value in named.items() if key not in (*INSTEAD, *degrees, *options, "system")}
        model = options.pop("model", None) if scenario is None else str(scenario)
        if model is None or system is None:
            raise _lacks(function, "model" if model is None else "on", named)
        texts = (*as_settings(settings), *as_settings(paths(function, rest)))
        document, assumed = Question(model=str(model), system=str(system), asker=function, **options).scenario(texts)
        if degrees:
            section = files.override(document, texts).data["system"]
            document = files.override(document, as_settings(settled(function, degrees, section, options.get("strategy"))))
        return document, texts, tuple(map(_in_python, assumed))
    texts = (*as_settings(settings), *as_settings(paths(function, {key: value for key, value in named.items() if key not in degrees})))
    if degrees:
        data = data_of(scenario, texts)
        texts = (*texts, *as_settings(settled(function, degrees, data.get("system"), data.get("strategy"))))
    return scenario, texts, ()


def _spelled(named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keywords with a model and a system that are written out: ``model={"layers": 16, ...}``, ``on={"template": "h200", "devices": 2}``."""
    system = named.get("on")
    if isinstance(system, Mapping) and isinstance(system.get("template"), str):
        counts = {key: value for key, value in system.items() if key in ("nodes", "devices")}
        fields = {f"system__{key}": value for key, value in system.items() if key not in ("template", *counts)}
        named = {**counts, **fields, **named, "on": system["template"]}
    model = named.get("model")
    if not isinstance(model, Mapping):
        return named
    fields = {f"workload__{key}": value for key, value in model.items() if key != "model"}
    return {**named, "model": model.get("model", "transformer"), **fields}


def _lacks(function: str, lacking: str, named: Mapping[str, Any]) -> Exception:
    """What to raise where neither a scenario nor both a model and a system are given."""
    if meant := next((key for key in named if CALLED.get(key) == lacking), None):
        return TypeError(f"{function}() takes no '{meant}'; did you mean '{lacking}'?")
    return CrossflowError(
        f"{function}: give a scenario, or a model and a system, such as model='llama3-70b', on='dgx-h100'; '{lacking}' is missing"
    )


def of_question(function: str, scenario: ScenarioSource | None, named: Mapping[str, Any]) -> tuple[ScenarioSource, dict[str, Any]]:
    """What points start from, and the keywords that are left to vary: a model and a system stand for a scenario where there is none.

    >>> source, varied = of_question("sweep", None, {"model": "llama3-8b", "on": ["dgx-h100", "dgx-a100"], "batch": 64, "nodes": [1, 2]})
    >>> source.data["system"], varied
    ({'template': 'dgx-h100'}, {'on': ['dgx-h100', 'dgx-a100'], 'nodes': [1, 2]})
    """
    named = plain_names(function, named)
    if scenario is not None and "on" in named and _is_model(scenario):  # sweep("llama3-8b", on="dgx-h100", nodes=[1, 2])
        scenario, named = None, {"model": str(scenario), **named}
    if scenario is not None:
        return scenario, dict(named)
    lists = {key: value for key, value in named.items() if isinstance(value, Iterable) and not isinstance(value, str | Mapping)}
    first = {key: next(iter(value), None) for key, value in lists.items() if key in ("model", "on")}
    source, _, _ = asked(function, None, (), {key: value for key, value in {**named, **first}.items() if key in first or key not in lists})
    if not isinstance(source, Document):
        raise CrossflowError(f"{function}: give a scenario, or a model and a system, such as model='llama3-70b', on='dgx-h100'")
    rest = {key: value for key, value in named.items() if key not in (*INSTEAD, *OF_STRATEGY, "system") and key not in lists}
    return files.override(source, as_settings(paths(function, rest))), lists


def _is_model(scenario: ScenarioSource) -> bool:
    """Whether a text is a model's name or file rather than a scenario's."""
    if not isinstance(scenario, str | Path):
        return False
    path = Path(scenario)
    if path.suffix == ".json" and path.name != CONFIG and path.is_file():  # of Hugging Face under another name, or a scenario
        data = files.read_yaml(path).data
        return isinstance(data, Mapping) and "workload" not in data
    return path.suffix not in YAML or path.name == CONFIG


def _in_python(sentence: str) -> str:
    """A sentence on an assumption with keywords in place of options.

    >>> _in_python("global_batch 1,024: the model's own; --batch changes it")
    "global_batch 1,024: the model's own; batch= changes it"
    """
    return re.sub(r"--set workload\.(\w+)=N", r"\1=", re.sub(r"--(nodes|devices|batch)\b", r"\1=", sentence))
