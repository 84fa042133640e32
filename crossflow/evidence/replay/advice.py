"""Why a traced step is slow, and what mending it brings: every ill with its gain by a replay, the largest first, and all of them together.

A gain is the time of a step in a replay without changes less that in a replay in which the ill is mended, so that what something else
hides counts as nothing. Gains do not add up where ills share time, as a kernel that waits for its launch beside a late rank does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossflow.evidence.replay.engines import SGLANG, VLLM
from crossflow.evidence.replay.graph import StepGraph
from crossflow.evidence.replay.ills import Ill, IllProof, TracedSteps
from crossflow.evidence.replay.ills_device import DEVICE_ILLS
from crossflow.evidence.replay.ills_engine import ENGINE_ILLS, engine_of
from crossflow.evidence.replay.ills_host import HOST_ILLS
from crossflow.evidence.replay.reach import KernelModel

WORTH = 1e-3  # share of a step that a gain must have to be told
PROOFS = 5  # that plain data hold of a finding


@dataclass(frozen=True, kw_only=True)
class Cure:
    """What to do about a kind of ill, in words, and the switches of frameworks that do it."""

    text: str
    switches: tuple[str, ...]


_OVERLAP = "start it earlier, beside computing that does not need it, or send fewer bytes"
CURES: Mapping[str, Cure] = {
    "slow_kernel": Cure(
        text="look at its layout, alignment and type, or take another implementation; the model may also leave out what this kernel does",
        switches=("torch.backends.cuda.matmul.allow_tf32", "torch.autocast", "channels_last", "torch.compile(mode='max-autotune')"),
    ),
    "unfused_passes": Cure(text="let a compiler join them", switches=("torch.compile",)),
    "unfused_optimizer": Cure(
        text="take the fused form of the optimizer, which updates all parameters in one kernel", switches=("fused=True", "foreach=True")
    ),
    "exposed_all_reduce": Cure(
        text=f"{_OVERLAP}; of gradients, smaller buckets start earlier; of tensor parallelism, split the products around it",
        switches=("DDP(bucket_cap_mb=...)", "DDP(gradient_as_bucket_view=True)", "--overlap-grad-reduce", "--tp-comm-overlap"),
    ),
    "exposed_all_gather": Cure(
        text=f"{_OVERLAP}; of sharded weights, gather the next layer's ahead",
        switches=("set_modules_to_forward_prefetch", "reshard_after_forward=False", "--overlap-param-gather", "--tp-comm-overlap"),
    ),
    "exposed_reduce_scatter": Cure(
        text=f"{_OVERLAP}; of sharded gradients, reduce each layer's while the next one computes",
        switches=("BackwardPrefetch.BACKWARD_PRE", "set_modules_to_backward_prefetch", "--overlap-grad-reduce"),
    ),
    "exposed_all_to_all": Cure(
        text=f"{_OVERLAP}; of experts, exchange one half of the tokens while the other half computes; of tables, those of the next batch",
        switches=("--overlap-moe-expert-parallel-comm", "TrainPipelineSparseDist", "dist.all_to_all_single(async_op=True)"),
    ),
    "exposed": Cure(text=_OVERLAP, switches=("async_op=True",)),
    "late_rank": Cure(
        text="see what this rank does that the others do not: uneven data, a slower device or host, work of one rank only (logs, saves)",
        switches=("drop_last=True", "numactl --cpunodebind", "nvidia-smi -q -d CLOCK,PERFORMANCE"),
    ),
    "apart": Cure(
        text="the step before ended at different times: see what only one rank does at its end, and whether the clocks of the hosts agree",
        switches=("drop_last=True", "DistributedSampler", "chronyc tracking"),
    ),
    "launches": Cure(
        text="launch all kernels between two waits as one graph, or fuse them, or give each more to do (a larger batch)",
        switches=("torch.compile(mode='reduce-overhead')", "torch.cuda.CUDAGraph", "--cuda-graph-impl", "fused=True"),
    ),
    "loading": Cure(
        text="load the next batch in other processes while this one computes",
        switches=("DataLoader(num_workers=...)", "prefetch_factor", "pin_memory=True", "persistent_workers=True"),
    ),
    "allocations": Cure(
        text="keep memory in the allocator's cache: sizes that repeat, or segments that grow; leave out torch.cuda.empty_cache()",
        switches=("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",),
    ),
    "busy_host": Cure(
        text="move it out of the step or to another thread: logging, garbage collection, Python code, loading of kernels at first use",
        switches=("py-spy dump", "gc.disable()", "gc.freeze()", "CUDA_MODULE_LOADING=EAGER"),
    ),
    "synchronisation": Cure(
        text="leave values on the device, and read them every few steps; the host may then run ahead",
        switches=("loss.detach()", "torch.cuda.set_sync_debug_mode('warn')", "capturable=True"),
    ),
    "copies": Cure(
        text="pin the memory of the host, and copy the next batch on a stream of its own",
        switches=("pin_memory=True", "tensor.to(device, non_blocking=True)"),
    ),
    "copies_pinned": Cure(
        text="the memory is pinned already: copy the next batch on a stream of its own, before it is needed",
        switches=("tensor.to(device, non_blocking=True)", "torch.cuda.Stream"),
    ),
    "between_steps": Cure(text="schedule the next step while the device runs this one", switches=("async scheduling of the engine",)),
    "padding": Cure(text="capture graphs at the sizes of the batches that are there", switches=("sizes of captured graphs",)),
    "bubble": Cure(
        text="more microbatches, or more stages on each rank: a bubble of p - 1 of m microbatches halves with twice as many",
        switches=("--micro-batch-size", "--num-layers-per-virtual-pipeline-stage", "ScheduleInterleaved1F1B", "ScheduleZBVZeroBubble"),
    ),
}  # fmt: skip


# Of steps of an inference engine, its own switches: of vLLM from "Engine Arguments" (docs.vllm.ai), of SGLang from "Server Arguments"
# (docs.sglang.io). "leave out" stands before those that slow it down.
_REDUCED = "let the engine's own kernel sum in the links or with the normalisation behind it, or use fewer ranks of tensor parallelism"
_EXCHANGED = "exchange one half of the batch while the other half computes, with kernels made for few tokens"
_GRAPHED = "replay captured graphs, up to the largest batch that decodes"
_AHEAD = "schedule the next step while the device runs this one; hand out tokens less often; leave the engine more cores of the host"
_FASTER = "take another backend or type"
_SIZES = "capture graphs at the sizes of the batches that are there; more graphs take memory and time at the start"
ENGINE_CURES: Mapping[str, Mapping[str, Cure]] = {
    VLLM: {
        "slow_kernel": Cure(text=_FASTER, switches=("--attention-backend", "--quantization fp8", "--kv-cache-dtype")),
        "unfused_passes": Cure(text="let the engine's compiler join them", switches=("leave out --enforce-eager", "-O 2")),
        "exposed_all_reduce": Cure(
            text=_REDUCED, switches=("--compilation-config (pass_config: fuse_allreduce_rms)", "leave out --disable-custom-all-reduce")
        ),
        "exposed_all_to_all": Cure(text=_EXCHANGED, switches=("--enable-dbo", "--all2all-backend deepep_low_latency")),
        "launches": Cure(
            text=_GRAPHED, switches=("leave out --enforce-eager", "--max-cudagraph-capture-size", "--compilation-config (cudagraph_mode)")
        ),
        "between_steps": Cure(text=_AHEAD, switches=("--async-scheduling", "--stream-interval", "--api-server-count")),
        "busy_host": Cure(text=_AHEAD, switches=("--async-scheduling", "--stream-interval", "py-spy dump")),
        "synchronisation": Cure(text=_AHEAD, switches=("--async-scheduling",)),
        "padding": Cure(text=_SIZES, switches=("--cudagraph-capture-sizes",)),
    },
    SGLANG: {
        "slow_kernel": Cure(text=_FASTER, switches=("--attention-backend", "--quantization fp8", "--kv-cache-dtype")),
        "unfused_passes": Cure(text="let a compiler join them", switches=("--enable-torch-compile", "--torch-compile-max-bs")),
        "exposed_all_reduce": Cure(
            text=_REDUCED,
            switches=("--enable-flashinfer-allreduce-fusion", "--enable-mscclpp", "leave out --disable-custom-all-reduce"),
        ),
        "exposed_all_to_all": Cure(text=_EXCHANGED, switches=("--enable-two-batch-overlap", "--moe-a2a-backend deepep")),
        "launches": Cure(text=_GRAPHED, switches=("leave out --disable-cuda-graph", "--cuda-graph-max-bs")),
        "between_steps": Cure(text=_AHEAD, switches=("leave out --disable-overlap-schedule", "--stream-interval")),
        "busy_host": Cure(text=_AHEAD, switches=("leave out --disable-overlap-schedule", "--stream-interval", "py-spy dump")),
        "synchronisation": Cure(text=_AHEAD, switches=("leave out --disable-overlap-schedule",)),
        "padding": Cure(text=_SIZES, switches=("--cuda-graph-bs",)),
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TraceFinding:
    """Something that makes a traced step slow, and what mending it brings.

    Attributes
    ----------
    kind : in `CURES`, or ``exposed_`` and a collective.
    title : what it is, in words.
    time : what it takes of a step now, of the mean rank. [s]
    step_time : of a step in a replay in which it is mended. [s]
    gain : what that brings. [s]
    trust : measured where all times of the replay are of the trace, interpolated where some lie between those of other steps, unknown
        where kernels take what the model says.
    proofs : what shows it, the longest first.
    engine : whose steps these are, as `crossflow.evidence.replay.engines` names it, "" for none.
    """

    kind: str
    title: str
    time: float
    step_time: float
    gain: float
    trust: str
    proofs: tuple[IllProof, ...]
    engine: str = ""

    @property
    def cure(self) -> Cure:
        """What to do about it."""
        own = ENGINE_CURES.get(self.engine, {})
        return own.get(self.kind) or CURES.get(self.kind, CURES["exposed"])


@dataclass(frozen=True, kw_only=True)
class StepAdvice:
    """What a traced step could do without.

    Attributes
    ----------
    step_time : of a step of the slowest rank, in a replay without changes until host and device have done what it launched. [s]
    findings : those that bring something, the largest gain first.
    together : time of a step in a replay in which all of them are mended. [s]
    """

    step_time: float
    findings: tuple[TraceFinding, ...]
    together: float

    @property
    def gain(self) -> float:
        """What all of them bring together. [s]"""
        return self.step_time - self.together

    @property
    def summed(self) -> float:
        """Sum of the gains one by one, which counts what they share more than once, or not at all. [s]"""
        return sum(one.gain for one in self.findings)

    @property
    def sentence(self) -> str:
        """What all together bring, in words."""
        if not self.findings:
            return f"nothing was found that brings more than {WORTH:.1%} of a step"
        if len(self.findings) == 1:
            return f"mended, a step takes {1e3 * self.together:.4g} ms, {self.gain / self.step_time:.1%} less"
        together = f"all together bring {1e3 * self.gain:.4g} ms ({self.gain / self.step_time:.1%}): {1e3 * self.together:.4g} ms a step"
        apart = f"one by one they add up to {1e3 * self.summed:.4g} ms"
        return f"{together}; {apart}: gains do not add up where ills share time, or hide one another"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, times in s."""
        return {
            "step_time_s": self.step_time,
            "together": {"step_time_s": self.together, "gain_s": self.gain, "gain_share": self.gain / self.step_time},
            "sum_of_gains_s": self.summed,
            "sentence": self.sentence,
            "findings": [_plain(one, self.step_time) for one in self.findings],
        }


def _plain(one: TraceFinding, step_time: float) -> dict[str, Any]:
    return {
        "kind": one.kind, "title": one.title, "time_s": one.time, "gain_s": one.gain, "gain_share": one.gain / step_time,
        "step_time_s": one.step_time, "trust": one.trust, "cure": one.cure.text, "switches": list(one.cure.switches),
        "evidence": [
            {"name": proof.name, "count": proof.count, "time_s": proof.time, "longest_on_rank": proof.rank, "longest_at_s": proof.at,
             "note": proof.said or None}
            for proof in one.proofs[:PROOFS]
        ],
    }  # fmt: skip


def advise(graph: StepGraph, model: KernelModel | None) -> StepAdvice:
    """What makes the steps of a graph slow.

    Parameters
    ----------
    model : of its kernels; without one slow kernels and passes that could be one are not sought.
    """
    steps = TracedSteps(graph=graph, model=model)
    whole = steps.step_time
    engine, kept = engine_of(graph), list[tuple[TraceFinding, Ill]]()
    for ill in ills_of(steps):
        mended = steps.replayed(ill.mend)
        if whole - mended > WORTH * whole:
            found = TraceFinding(
                kind=ill.kind,
                title=ill.title,
                time=ill.time,
                step_time=mended,
                gain=whole - mended,
                trust=ill.trust,
                proofs=ill.proofs,
                engine=engine,
            )
            kept.append((found, ill))
    together = steps.replayed(*(ill.mend for _, ill in kept)) if kept else whole
    findings = tuple(found for found, _ in sorted(kept, key=lambda pair: -pair[0].gain))
    return StepAdvice(step_time=whole, findings=findings, together=together)


def ills_of(steps: TracedSteps) -> tuple[Ill, ...]:
    """All that may be wrong with some steps, in the order in which it is mended."""
    return tuple(ill for find in (*DEVICE_ILLS, *ENGINE_ILLS, *HOST_ILLS) for ill in find(steps))
