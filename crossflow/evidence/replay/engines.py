"""Steps of inference engines in traces of the PyTorch profiler: what their annotations say of prompts, tokens and requests.

Workers of vLLM annotate every step as ``execute_context_2(512)_generation_30(30)``: two requests that read 512 tokens of their prompts,
and 30 that write one token each [1]_; older ones as ``execute_new_2_cached_30``, and those of ROCm with lengths behind ``sq``. SGLang
writes ``step[DECODE bs=30]``, ``step[EXTEND bs=2 toks=512]`` or ``step[MIXED ...]`` [2]_. Graphs of CUDA are captured at some sizes of a
batch, and a batch between two of them is padded to the larger one.

References
----------
.. [1] vLLM, `annotate_profile` of vllm/v1/worker/gpu_worker.py; scopes such as ``gpu_model_runner: forward`` are of
   vllm/v1/worker/gpu_model_runner.py; capture sizes of vllm/config: 1, 2, 4, every eighth to 256, then every sixteenth.
.. [2] SGLang, python/sglang/srt/model_executor; capture sizes of server_args.py: 1, 2, 4, 8, 12, every eighth to 256 from 16, every
   sixteenth to 512, then every thirty-second.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

EnginePhase = Literal["decode", "prefill", "mixed"]
VLLM, SGLANG = "vLLM", "SGLang"
_CONTEXT = re.compile(r"^execute_(?:\d+_)?context_(\d+)\((?:sq)?(\d+)[^)]*\)_generation_(\d+)\((?:sq)?(\d+)[^)]*\)$")
_NEW = re.compile(r"^execute_new_(\d+)_cached_(\d+)$")
_STEP = re.compile(r"^step\[(\w+) bs=(\d+)(?: toks=(\d+))?[^\]]*\]$")
_PHASES: Mapping[str, EnginePhase] = {
    "DECODE": "decode", "TARGET_VERIFY": "decode", "DRAFT_EXTEND": "decode", "EXTEND": "prefill", "PREFILL": "prefill", "MIXED": "mixed",
}  # fmt: skip
SCOPES = ("gpu_model_runner: ", "schedule: ", "scheduler.", "llm_engine step: ", "EngineCore.")  # how names of parts of a step begin
CAPTURED: Mapping[str, Sequence[int]] = {
    VLLM: (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)),
    SGLANG: (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16), *range(544, 1025, 32)),
}


@dataclass(frozen=True, kw_only=True)
class EngineStep:
    """What an engine says of one of its steps.

    Attributes
    ----------
    engine : `VLLM` or `SGLANG`.
    phase : whether it writes tokens, reads prompts, or does both.
    requests : of the step. [1]
    rows : tokens that run through its layers, 0 where the annotation does not say. [1]
    """

    engine: str
    phase: EnginePhase
    requests: int
    rows: int

    @property
    def padded(self) -> int:
        """The size of the graph that a batch of so many rows runs in, by default; its own where it is larger than all. [1]"""
        sizes = CAPTURED[self.engine]
        place = bisect.bisect_left(sizes, self.rows)
        return sizes[place] if place < len(sizes) else self.rows


def engine_step(name: str) -> EngineStep | None:
    """What the annotation of a step says, None for one that is none.

    >>> engine_step("execute_context_0(0)_generation_30(30)")
    EngineStep(engine='vLLM', phase='decode', requests=30, rows=30)
    >>> engine_step("step[EXTEND bs=2 toks=107]").phase
    'prefill'
    """
    if (found := _CONTEXT.match(name)) is not None:
        reading, read, writing, written = map(int, found.groups())
        return EngineStep(engine=VLLM, phase=_phase(reading, writing), requests=reading + writing, rows=read + written)
    if (found := _NEW.match(name)) is not None:
        new, cached = map(int, found.groups())
        return EngineStep(engine=VLLM, phase=_phase(new, cached), requests=new + cached, rows=0 if new else cached)
    if (found := _STEP.match(name)) is not None and found[1] in _PHASES:
        phase, requests = _PHASES[found[1]], int(found[2])
        return EngineStep(engine=SGLANG, phase=phase, requests=requests, rows=int(found[3] or (requests if phase == "decode" else 0)))
    return None


def _phase(reading: int, writing: int) -> EnginePhase:
    return "mixed" if reading and writing else "prefill" if reading else "decode"
