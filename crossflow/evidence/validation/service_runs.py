"""Files of measured services -> runs: the requests as they were asked, their times, and how the engine was set.

``NAME.requests.jsonl`` has a line for each request. Of ``NAME.json`` three kinds are read: the result of ``vllm bench serve`` with
``--save-result --save-detailed`` [1]_, the report of ``guidellm benchmark`` [2]_, of which every benchmark is a run, and the requests of
inference-perf [3]_.
The settings of the engine are in ``NAME.meta.json``, or in ``meta.json`` for all files of the folder; what a result says of itself
(``--metadata KEY=VALUE`` of vLLM) counts as such, where neither says it.

References
----------
.. [1] vLLM, vllm/benchmarks/serve.py: `ttfts` and `itls` in seconds, `request_rate` with `burstiness` (shape of gamma gaps), and
   `max_concurrency` requests at once at most, of which the next is sent when one has ended.
.. [2] guidellm, docs/guides/metrics and its schemas: `request_start_time` and `request_latency` in seconds, `time_to_first_token_ms`.
.. [3] kubernetes-sigs/inference-perf, per_request_lifecycle_metrics.json: `start_time`, `end_time` and `output_token_times` in seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base import files
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.workload.requests.record import RequestTrace, request_times

REQUESTS, SETTINGS, RESULT = ".requests.jsonl", ".meta.json", ".json"
KEYS = ("queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks")
DETAILED = ("input_lens", "output_lens", "ttfts", "itls")
REPORTED = ("request_start_time", "time_to_first_token_ms", "request_latency", "prompt_tokens", "output_tokens")
DRAWN = "arrivals are drawn by the rate of the benchmark, for its result has no start_times"


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredRun:
    """A run as it was measured."""

    name: str
    trace: RequestTrace
    times: Mapping[str, Array]  # `ttft`, `tpot`, `e2e` of requests, `itl` between any two tokens where it was written, and `makespan`. [s]
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Answers:
    """Requests that were answered, in the order in which they were sent; arrays of shape (n,)."""

    sent: Array | None  # None where a file has no times of its requests. [s]
    prompt: Array  # [1]
    output: Array  # [1]
    first: Array  # [s]
    whole: Array  # [s]
    gaps: Array | None = None  # between tokens, of all requests together. [s]


def measured_runs(folder: Path) -> Iterator[MeasuredRun]:
    """All runs in a folder, by name."""
    for path in sorted([*folder.glob(f"*{REQUESTS}"), *folder.glob(f"*{RESULT}")]):
        if path.name.endswith(REQUESTS):
            yield _of_lines(path)
        elif not path.name.endswith(SETTINGS) and path.name != SETTINGS[1:]:
            yield from _of_result(path)


def has_runs(folder: Path) -> bool:
    """Whether a folder has a file of a measured service."""
    return any(folder.glob(f"*{REQUESTS}")) or any(_kind(_read(path)) for path in folder.glob(f"*{RESULT}"))


def _of_lines(path: Path) -> MeasuredRun:
    """A run with a line for each request."""
    rows = [_row(path, i, line) for i, line in enumerate(files.read_text(path).splitlines(), 1) if line.strip()]
    if not rows:
        raise CrossflowError(f"{path}: it holds no requests")
    queued, first, last, prompt, output = np.array(sorted(rows), dtype=float).T
    name = path.name.removesuffix(REQUESTS)
    answers = _Answers(sent=queued, prompt=prompt, output=output, first=first - queued, whole=last - queued)
    return _run(name, answers, _settings(path, name), None)


def _of_result(path: Path) -> Iterator[MeasuredRun]:
    """The runs in a result of vLLM's benchmark or a report of guidellm; none in other files."""
    data = _read(path)
    kind, name = _kind(data), path.name.removesuffix(RESULT)
    if kind == "vllm":
        settings = {**_said(data), **_settings(path, name)}
        yield _run(name, _detailed(path, data), settings, data)
    elif kind == "guidellm":
        settings = _settings(path, name)
        for i, benchmark in enumerate(data["benchmarks"], 1):
            yield _run(f"{name}, benchmark {i}", _reported(path, i, benchmark), settings, _asked(benchmark))
    elif kind == "inference-perf":
        yield _run(name, _lived(path, data), _settings(path, name), None)


def _kind(data: Any) -> str | None:
    """What wrote a file; None for other files."""
    if isinstance(data, list) and data and isinstance(data[0], dict) and {"start_time", "end_time", "info"} <= data[0].keys():
        return "inference-perf"
    if not isinstance(data, dict):
        return None
    if "ttfts" in data and "input_lens" in data:
        return "vllm"
    return "guidellm" if isinstance(data.get("benchmarks"), list) else None


def _read(path: Path) -> Any:
    try:
        return json.loads(files.read_text(path))
    except ValueError as error:
        raise CrossflowError(f"{path}: not valid JSON: {error}") from None


def _said(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a result says of the server, beside its lists and figures."""
    found = {key: value for key, value in data.items() if isinstance(value, str | int | bool)}
    return {**found, "model": found.get("model") or found.get("model_id", "")}


def _settings(path: Path, name: str) -> dict[str, Any]:
    """Settings of a run by its name, or those of the folder; empty where there are none."""
    for file in (path.with_name(name + SETTINGS), path.with_name(SETTINGS[1:])):
        if file.exists():
            found = _read(file)
            if not isinstance(found, dict):
                raise CrossflowError(f"{file}: expected a JSON object with model and engine_kwargs")
            return {**found, "folder": str(path.parent)}
    return {}


# -------------------------------------------------------------------------------------------- requests


def _row(path: Path, number: int, line: str) -> tuple[float, ...]:
    """Times and tokens of a request."""
    try:
        found = json.loads(line)
        return tuple(float(found[key]) for key in KEYS)
    except (ValueError, TypeError, KeyError) as error:
        raise CrossflowError(f"{path}:{number}: expected a JSON object with the numbers {', '.join(KEYS)}: {error}") from None


def _detailed(path: Path, data: Mapping[str, Any]) -> _Answers:
    """The requests of a detailed result; those that failed wrote nothing and are left out."""
    lists = [data.get(key) for key in DETAILED]
    counts = {len(one) if isinstance(one, list) else -1 for one in lists}
    if len(counts) != 1 or -1 in counts:
        raise CrossflowError(f"{path}: expected lists {', '.join(DETAILED)} of one length, as --save-detailed writes them")
    prompt, output, first, gaps = lists
    try:
        numbers = [np.array(values, dtype=float) for values in (prompt, output, first)]
        between = [np.array(one, dtype=float) for one in gaps or ()]
        begun = np.array(data["start_times"], dtype=float) if data.get("start_times") else None
    except (ValueError, TypeError) as error:
        raise CrossflowError(f"{path}: {', '.join(DETAILED)}: {error}") from None
    kept = np.flatnonzero(numbers[1] > 0)
    kept = kept if begun is None else kept[np.argsort(begun[kept], kind="stable")]
    if not len(kept):
        raise CrossflowError(f"{path}: no request was answered")
    whole = numbers[2] + np.array([one.sum() for one in between])
    return _Answers(
        sent=None if begun is None else begun[kept], prompt=numbers[0][kept], output=numbers[1][kept], first=numbers[2][kept],
        whole=whole[kept], gaps=np.concatenate([between[i] for i in kept]),
    )  # fmt: skip


def _reported(path: Path, number: int, benchmark: Any) -> _Answers:
    """The requests that a benchmark of guidellm answered."""
    found = benchmark.get("requests") if isinstance(benchmark, dict) else None
    rows = found.get("successful") if isinstance(found, dict) else found
    try:
        columns = np.array(sorted(tuple(float(row[key]) for key in REPORTED) for row in rows or ()), dtype=float)
    except (TypeError, KeyError, ValueError) as error:
        raise CrossflowError(f"{path}: benchmarks[{number - 1}]: expected requests with {', '.join(REPORTED)}: {error}") from None
    if not len(columns):
        raise CrossflowError(f"{path}: benchmarks[{number - 1}]: no request was answered")
    begun, first, whole, prompt, output = columns.T
    return _Answers(sent=begun, prompt=prompt, output=output, first=first * 1e-3, whole=whole)


def _lived(path: Path, rows: Sequence[Mapping[str, Any]]) -> _Answers:
    """The requests of inference-perf that were answered; tokens stand in `info`, or in its parts for requests and responses."""
    found = list[tuple[float, ...]]()
    gaps = list[Array]()
    for i, row in enumerate(rows):
        info = row.get("info") or {}
        asked = (info.get("request_metrics") or {}).get("text") or info
        answered = info.get("response_metrics") or info
        if row.get("error") or not answered.get("output_token_times"):
            continue
        try:
            moments = np.array(answered["output_token_times"], dtype=float)
            begin, tokens = float(row["start_time"]), float(answered["output_tokens"])
            found.append((begin, moments[0] - begin, moments[-1] - begin, float(asked["input_tokens"]), tokens))
        except (TypeError, KeyError, ValueError) as error:
            raise CrossflowError(f"{path}: [{i}]: expected start_time and info with input_tokens and output_tokens: {error}") from None
        gaps.append(np.diff(moments))
    if not found:
        raise CrossflowError(f"{path}: no request has output_token_times; ask for streaming answers")
    begun, first, whole, prompt, output = np.array(sorted(found), dtype=float).T
    return _Answers(sent=begun, prompt=prompt, output=np.maximum(output, 1), first=first, whole=whole, gaps=np.concatenate(gaps))


def _asked(benchmark: Mapping[str, Any]) -> Mapping[str, Any]:
    """How a benchmark of guidellm asked, in the words of vLLM's: its streams are the most requests at once."""
    strategy: Any = next((one["strategy"] for key in ("config", "args") if "strategy" in (one := benchmark.get(key) or {})), {})
    streams = strategy.get("streams") if isinstance(strategy, dict) else None
    kind = strategy.get("type_") if isinstance(strategy, dict) else None
    return {"request_rate": "inf", "max_concurrency": 1 if kind == "synchronous" else streams if kind == "concurrent" else None}


def _run(name: str, answers: _Answers, settings: Mapping[str, Any], asked: Mapping[str, Any] | None) -> MeasuredRun:
    """A run of requests, of which `asked` says how a benchmark sent them; without it they came when they came."""
    times = request_times(0.0, answers.first, answers.whole, answers.output)  # of each from its arrival
    if answers.gaps is not None:
        times["itl"] = answers.gaps
    if answers.sent is not None:
        times["makespan"] = np.array([(answers.sent + answers.whole).max() - answers.sent[0]])
    elif asked is not None and asked.get("duration"):
        times["makespan"] = np.array([float(asked["duration"])])
    arrival, follows = _arrivals(answers, asked or {})
    trace = RequestTrace.of(arrival, np.maximum(answers.prompt, 1).astype(np.intp), answers.output.astype(np.intp), follows=follows)
    return MeasuredRun(name=name, trace=trace, times=times, settings=settings, notes=() if answers.sent is not None else (DRAWN,))


def _arrivals(answers: _Answers, asked: Mapping[str, Any]) -> tuple[Array, Index]:
    """When requests arrive, and which one each waits for. [s], [1]

    In a loop of so many requests at once the next is sent when one ends: the k-th after these follows the k-th that ends, as measured,
    or in their order where nothing was. Else they come at their times, or at gaps drawn by the rate of the benchmark.
    """
    n, most = len(answers.prompt), int(asked.get("max_concurrency") or 0)
    rate, follows = _rate(asked), np.full(len(answers.prompt), -1, dtype=np.intp)
    if most > 0 and math.isinf(rate):
        ends = np.arange(n) if answers.sent is None else np.argsort(answers.sent + answers.whole, kind="stable")
        later = np.arange(most, n)
        follows[later] = np.where(ends[later - most] < later, ends[later - most], later - most)
        return np.zeros(n), follows
    if answers.sent is not None:
        return answers.sent - answers.sent[0], follows
    if math.isinf(rate):
        return np.zeros(n), follows
    shape = float(asked.get("burstiness") or 1.0)
    rng = np.random.default_rng(0)
    gaps = rng.gamma(shape, 1.0 / (rate * shape), n)
    return np.cumsum(gaps) - gaps[0], follows


def _rate(asked: Mapping[str, Any]) -> float:
    """Requests a second of a benchmark, infinite where all are sent at once. [1/s]"""
    given = asked.get("request_rate")
    return math.inf if given in (None, "inf", "Infinity") else float(given)
