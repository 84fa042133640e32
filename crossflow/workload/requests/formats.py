"""Formats of traces that are recognised by the names of their columns.

Names are compared in small letters, with what stands between words as `_`. Sources: the files or writers of each, as of late 2026.

- Azure: AzurePublicDataset, LLM inference traces of 2023 and 2024 (dates; no hashes).
- BurstGPT: the trace's README and files; `Session ID` and `Elapsed time` are in its later files.
- Mooncake: FAST 2025 traces; NVIDIA Dynamo and `timed_trace` of vLLM's benchmark read the same names. Times in ms, blocks of 512 tokens.
  Lines without `hash_ids` may be of anyone: the unit of their times is asked for.
- ServeGen: `timestamp` in s with tokens of input and output; its offline traces have no times, and blocks of 16 tokens.
- OpenAI usage: logs of gateways, with the names of the `usage` of an answer and the time of a request in seconds (Unix or not).
- LLMServingSim: measured requests of its bench, and its workload files, whose times are in ns.
- Vidur and SplitwiseSim: their traces of arrivals and lengths.
- vLLM and SGLang: detailed results of their serving benchmarks, one list a figure.
- guidellm: reports of benchmarks, whose requests have figures of their own.
- crossflow: what `crossflow requests -o` writes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

ROLES = ("arrival", "prompt", "output", "kind", "session", "elapsed", "blocks", "follows", "pause", "history", "block")
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class TraceFormat:
    """A format: the columns that tell it, others that it may have, and what its numbers mean."""

    name: str
    needs: Mapping[str, str]  # names of columns by what they say; all are there
    may: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = "s"  # of its times, None where writers differ
    block: int = 0  # tokens of its blocks, 0 where it has none. [1]
    ordered: bool = True  # whether its requests stand in order of arrival; results of benchmarks stand in that of their ends


FORMATS = (
    TraceFormat(
        name="crossflow",
        needs={"arrival": "arrival_s", "prompt": "prompt", "output": "output"},
        may={
            "kind": "class", "session": "session", "follows": "follows", "pause": "pause_s", "history": "history", "blocks": "hash_ids",
            "block": "block",
        },
    ),
    TraceFormat(name="Azure", needs={"arrival": "timestamp", "prompt": "contexttokens", "output": "generatedtokens"}),
    TraceFormat(
        name="BurstGPT",
        needs={"arrival": "timestamp", "prompt": "request_tokens", "output": "response_tokens"},
        may={"kind": "log_type", "session": "session_id", "elapsed": "elapsed_time"},
    ),
    TraceFormat(
        name="Mooncake",
        needs={"arrival": "timestamp", "prompt": "input_length", "output": "output_length", "blocks": "hash_ids"},
        unit="ms",
        block=512,
    ),
    # The same names without Mooncake's blocks are written in seconds as well as in milliseconds: who reads them says which.
    TraceFormat(name="", needs={"arrival": "timestamp", "prompt": "input_length", "output": "output_length"}, unit=None),
    TraceFormat(name="ServeGen", needs={"arrival": "timestamp", "prompt": "input_tokens", "output": "output_tokens"}),
    TraceFormat(
        name="ServeGen, offline",
        needs={"prompt": "input_length", "output": "output_length"}, may={"blocks": "hash_ids", "kind": "type"},
        block=16,
    ),
    TraceFormat(name="OpenAI usage", needs={"arrival": "timestamp", "prompt": "prompt_tokens", "output": "completion_tokens"}),
    TraceFormat(name="OpenAI usage", needs={"arrival": "created", "prompt": "prompt_tokens", "output": "completion_tokens"}),
    TraceFormat(name="LLMServingSim", needs={"arrival": "arrival_time", "prompt": "input_toks", "output": "output_toks"}),
    TraceFormat(name="LLMServingSim", needs={"arrival": "arrival_time_ns", "prompt": "input_toks", "output": "output_toks"}, unit="ns"),
    TraceFormat(name="Vidur", needs={"arrival": "arrived_at", "prompt": "num_prefill_tokens", "output": "num_decode_tokens"}),
    TraceFormat(name="SplitwiseSim", needs={"arrival": "arrival_timestamp", "prompt": "prompt_size", "output": "token_size"}),
    TraceFormat(
        name="vLLM and SGLang, results", needs={"arrival": "start_times", "prompt": "input_lens", "output": "output_lens"}, ordered=False
    ),
    TraceFormat(name="vLLM and SGLang, results without times", needs={"prompt": "input_lens", "output": "output_lens"}, ordered=False),
    TraceFormat(
        name="guidellm", needs={"arrival": "request_start_time", "prompt": "prompt_tokens", "output": "output_tokens"}, ordered=False
    ),
)  # fmt: skip
OWN = FORMATS[0]


def plain(name: str) -> str:
    """A name of a column as names are compared.

    >>> plain("Request tokens"), plain("ContextTokens")
    ('request_tokens', 'contexttokens')
    """
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_")


def recognised(names: Collection[str], formats: Sequence[TraceFormat] = FORMATS) -> TraceFormat | None:
    """The format of a file with these columns, of several the one that needs most of them; None where no format is like it.

    formats : those that it may have, by default those of requests.

    >>> recognised(["TIMESTAMP", "ContextTokens", "GeneratedTokens"]).name
    'Azure'
    """
    there = {plain(name) for name in names}
    found = [one for one in formats if there.issuperset(one.needs.values())]
    return max(found, key=lambda one: len(one.needs), default=None)


def unit_in(name: str) -> str | None:
    """The unit that the name of a column says.

    >>> unit_in("arrival_ms"), unit_in("arrival time [s]"), unit_in("arrival")
    ('ms', 's', None)
    """
    last = plain(name).rpartition("_")[2]
    return {"seconds": "s", "milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns", "hours": "h"}.get(
        last, last if last in UNITS else None
    )
