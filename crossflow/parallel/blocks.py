"""What one device computes and sends for each part of a transformer, for one microbatch, at every design point.

Every size is an array over design points, so that thousands of plans are one set of kernels. Matrix products are cut by
their `Matrix.cut`; what lies between them passes over memory once a kernel, in as many kernels as the software stack
leaves unfused. Comments such as "r2 w1" read: two elements read and one written per unit.

Context ranks attend as Ring Attention [1]_ does, which Transformer Engine implements [2]_ (`AttnFuncWithCPAndKVP2P`): keys and values
pass from rank to rank, and every rank attends to those of one rank at a time.

Context ranks of a state-space layer exchange instead: each has some of the heads, for all tokens of the sample, between two all-to-alls, as
in Megatron-Core [3]_.

References
----------
.. [1] Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023, arXiv:2310.01889.
.. [2] NVIDIA, Transformer Engine, transformer_engine/pytorch/attention (context parallelism, `cp_comm_type` p2p).
.. [3] NVIDIA, Megatron-Core, megatron/core/ssm/mamba_context_parallel.py.
.. [4] PyTorch, tools/autograd/derivatives.yaml (`mul.Tensor`, `silu`, `gelu`, `add.Tensor`).
.. [5] PyTorch, torch/distributed/tensor/experimental/_attention.py (`_templated_ring_attention`, its backward pass, `_SDPAMerger`,
   `_AllGatherRotater`; torchtitan's default), 2025.
.. [6] PyTorch, torch/_inductor/fx_passes/micro_pipeline_tp.py (`fuse_all_gather_matmul`, `fuse_matmul_reduce_scatter`) and
   torch/distributed/_symmetric_memory (`_fused_matmul_reduce_scatter_impl`), 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, once
from crossflow.base.formats import FORMATS, HALF
from crossflow.hardware.architecture.software import Fusion, SoftwareStack
from crossflow.parallel.repeated import Repeat, repeats, shares_again, whole_again
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.mesh import Type
from crossflow.program.builder import ProgramBuilder
from crossflow.program.collectives import Collective
from crossflow.program.groups import ExpertGroup, Group
from crossflow.program.kernels import BACKWARD, KEYS, ONCE, QUERIES, Attention, Experts, Kernel, Number, Pass, Product, Scan
from crossflow.program.program import Hiding, Program
from crossflow.program.scans import SINGLE
from crossflow.workload.job import Chunk, Job
from crossflow.workload.statespace import GATED, SELECTIVE, UPDATE, StateSpace
from crossflow.workload.transformer import FEED_FORWARD, AttentionGeometry, Cut, Matrix, Part, Routing, Selection, Transformer

FEWEST_GROUPS = 1e-6  # adapters that stand for none, of which no product can be priced. [1]
MASK = 1.0  # a dropout mask is a byte an element [B]
STATIC = ("fp8", "nvfp4")  # types whose tensors have a scale that a checkpoint knows before
ENDS = ("embedding", "head")  # parts before the first and after the last layer; multi-token prediction layers have them too
LOG_SUM = 4.0  # attention's log-sum-exp is fp32 [B]


# Forward; what the forward pass computes that only the next layer needs; the input's gradient, with all that goes with it;
# the weight's gradient alone, beside which a collective may run; again: what selective recomputation computes once more.
BlockPhase = Literal["forward", "end", "input", "weight", "again"]
PHASES: tuple[BlockPhase, ...] = get_args(BlockPhase)


FIRST = ("patches", "frames", "text", "time", "guidance", "pooled")  # products of what needs no gradient of its own
WIDE = ("router", "streams")  # products that stay in 16 bits at least, whatever those of their part compute in


def block_program(job: Job, layout: Layout, stack: SoftwareStack) -> Program:
    """Kernels and collectives of one layer of every kind, of the embedding and of the head, for one microbatch on one device.

    The layer of an operation is the name of its part (`units`), its phase one of `PHASES`.
    """
    builder = _BlockBuilder(job=job, layout=layout, stack=stack)
    for i, layer in enumerate(job.model.kinds):
        tokens = layout.micro_batch * job.tokens(layer.tokens) / layout.cp + job.read_beside
        last = [part for part in layer.parts if part.type not in ENDS][-1]
        for j, part in enumerate(layer.parts):
            builder.part(f"{i}.{j}.{part.type}", part, tokens, last=part is last)
    ends = layout.micro_batch * job.tokens(job.model.tokens) / layout.cp + job.read_beside
    builder.embedding("embedding", job.model.embedding, ends)
    # A service needs the probabilities of the next token alone, or of those that are guessed. Engines compute them for the last token of
    # every piece of a prompt too (vLLM, `logits_indices` of its model runner).
    pieces = 0.0 if job.chunk is None else job.chunk.pieces
    served = {"prefill": layout.micro_batch, "decode": layout.micro_batch * job.written + pieces}
    builder.head("head", job.model.head, served.get(job.task, ends))
    return builder.program.build(training=job.training)


@dataclass(kw_only=True)
class _BlockBuilder:
    """Collects the kernels of a transformer's parts, one after the other."""

    job: Job
    layout: Layout
    stack: SoftwareStack
    divided: dict[tuple[str, Cut, BlockPhase], tuple[int, ...]] = field(default_factory=dict)  # products of a unit, by how they are cut

    def __post_init__(self) -> None:
        self.program = ProgramBuilder(name=self.job.model.name, dtype=self.job.dtype, shared=False)
        self.model, self.element, self.dropout = self.job.model, self.job.element, self.job.dropout
        self.training = self.job.training
        # Whether keys and values lie in the cache and one token more is written, or whole samples pass.
        self.cached = self.job.task == "decode"
        # Autocast reads a weight in one precision and writes it in another before its product, and its gradient after it. [B]
        kept = self.stack.weight_size(self.job.weight)
        self.cast = float(kept + self.element) if kept > self.element else 0.0
        self.narrow, self.wide = self.job.operand < self.element, wide_units(self.model)
        # Of weights that only adapters train beside, what the kernel reads and writes that widens one before its product. [B]
        self.widening = self.job.base_size(wide=False) + self.element if self.job.widens_base else 0.0
        self.stored = {} if self.training else {name: part.stored for name, part in units(self.model) if part.stored}
        # Attention of a token that is written reads the cache as it lies there; a prompt's reads what its products have made.
        # Kernels of a library write the cache, cast what they write, and read it from there.
        self.writes = bool(self.stack.kernels.attention.prefill or self.stack.kernels.attention.decode)
        of_cache = self.cached or (self.writes and self.job.task == "prefill")
        self.seen_type = self.job.kv_dtype or "" if of_cache and self.job.cache != self.element else ""

    @property
    def once_more(self) -> Array:
        """Share of layers whose modules are computed again by themselves: of all but those that are computed again as a whole. [1]"""
        return 1.0 - self.layout.recomputed(self.model.depth)

    def again(self, what: Repeat, part: Part) -> Array:
        """Share of layers that compute a module of a part again by itself, which none does where the whole part is. [1]"""
        return repeats(what, self.layout, self.stack) * self.once_more * (1.0 - whole_again(part, self.layout, self.stack))

    def fused(self, what: Fusion) -> bool:
        """Whether the stack fuses a group of pointwise operations at the element size of the job."""
        return self.stack.fuses(what, self.element)

    @property
    def _norm_backward(self) -> float:
        """Elements that the backward pass of a norm reads and writes for each of its input. [1]"""
        return 3.0 if self.fused("norm") else 9.0

    # ---------------------------------------------------------------------------------- parts

    def part(self, unit: str, part: Part, tokens: Array, *, last: bool) -> None:
        """Add one part of a layer, the last one before a head or not, on `tokens` tokens of a microbatch. [1]"""
        if part.side == "experts" and part.type not in FEED_FORWARD:  # nothing of it lies there
            return
        if part.type in ENDS:
            (self.embedding if part.type == "embedding" else self.head)(unit, part, tokens)
            return
        self._copied(unit, part)
        mine = self._own(tokens, type_of(part))
        if part.attention is not None:
            self._attention(unit, part, part.attention, mine)
        elif part.ssm is not None:
            self._state_space(unit, part, part.ssm, mine, last=last)
        elif part.side == "attention":
            for matrix in part.matrices:
                self._product(unit, matrix, mine, "mlp")
        elif part.routing is not None:
            self._experts(unit, part, tokens, mine)
        else:
            self._mlp(unit, part, mine, last=last)
        if part.side != "experts":
            self._around(unit, part, tokens, last=last)
        if part.side != "attention" or part.type not in FEED_FORWARD:
            self._summed(unit, part, tokens, mine)

    def _attention(self, unit: str, part: Part, attention: AttentionGeometry, tokens: Array) -> None:
        layout, e = self.layout, self.element
        for matrix in part.matrices:
            again, branches = shares_again(part, matrix, layout, self.stack), self._branches(part, matrix)
            self._product(unit, matrix, tokens, "attention", again=again, branches=branches)
        ranks = layout.tensor_of("attention")
        heads, kv = attention.heads / ranks, attention.kv_heads_on(ranks)
        samples = layout.micro_batch * layout.tensor_share("attention")
        length = self.job.written * np.ones_like(samples) if self.cached else tokens / samples
        seen = self.job.seen(attention, length * layout.cp)
        keys = seen if attention.cross or self.cached else length * layout.cp  # that are read, whatever the mask leaves to one query
        moved, read, groups = tokens * heads * attention.query, attention, kv
        kept = kv * attention.pair
        written = self._cast_to_cache(attention, samples * seen if attention.cross else tokens, kept)
        if attention.rotary:  # r1 w1; in eager code several kernels, r2 w2 in halves; where keys are rotated, the cache is written
            each, launches = (2.0, 1) if self.fused("rotary") else (8.0, 8)
            rotated = each * (moved + attention.makes * tokens * kv * attention.query) * e
            self._pass(unit, "forward", rotated + written, launches=launches)
            self._pass(unit, "input", rotated, launches=launches)
            if attention.shares_latent and (more := self.again("latent", part)).any():
                self._pass(unit, "input", rotated * more, launches=launches * more)
        elif written.any():
            self._pass(unit, "forward", written)
        if (form := attention.form) is not None:
            given = tokens * heads * attention.value
            self._pass(unit, "forward", form.moved[0] * e * given, flops=form.operations[0] * given)
            self._pass(unit, "input", form.moved[1] * e * given, flops=form.operations[1] * given)
        if attention.selection is not None:
            self._entries(unit, part, attention.selection, tokens)
            self._index(unit, attention.selection, samples, length, self.job.seen(attention.whole, length * layout.cp))
        attention, groups, kept = self._absorbed(attention, length * layout.cp, groups, kept)
        if self.stack.attention.kernel == "flash":
            if self.stack.attention.repeated and np.any(groups < heads):
                groups, kept = self._repeated(unit, attention, samples * (keys if attention.cross else length), heads, kept)
            self._flash(unit, attention, samples, heads, groups, kept, length, keys, seen)
            if self.job.chunk is not None and not attention.cross:
                self._read_beside(unit, read, self.job.chunk, heads, kv)
        else:
            rows = heads if self.cached and attention.shares_latent else 1.0  # of all heads that share what they attend to
            self._unfused(unit, attention, samples * heads / rows, rows * length, keys)
            if self.job.chunk is not None:
                self._unfused_beside(unit, read, self.job.chunk, heads)
        if layout.cp.max() > 1 and not self._rings(attention):
            # A softmax through memory waits for all keys and values; within a window Transformer Engine gathers them too (#1060).
            chosen = attention.selection
            size = samples * keys * (kept + (chosen.width * chosen.indexed if chosen is not None else 0.0)) * e
            self._send(unit, "forward", "all_gather", size, layout.context)
            self._send(unit, "input", "all_gather", size, layout.context)
            self._send(unit, "input", "reduce_scatter", size, layout.context)

    def _repeated(self, unit: str, attention: AttentionGeometry, tokens: Array, heads: Array, kept: Array) -> tuple[Array, Array]:
        """Copies of keys and values for all heads of queries, r1 w1 of the copies, backward their sum; heads that have them, and what these
        have for a token.
        """
        made = heads * attention.pair
        copied = made > kept  # where every head of queries has its own there is nothing to do
        moved, launches = self.element * tokens * np.where(copied, kept + made, 0.0), np.where(copied, 2.0, 0.0)
        self._pass(unit, "forward", moved, launches=launches)
        self._pass(unit, "input", moved, launches=launches)
        return heads, made

    def _read_beside(self, unit: str, attention: AttentionGeometry, chunk: Chunk, heads: Array, kv: Array) -> None:
        """Attention of the pieces of prompts that a decode step reads: their queries see what lies in the cache and what precedes them."""
        samples, last = chunk.pieces * self.layout.tensor_share("attention"), chunk.before + chunk.length
        seen = attention.seen(chunk.before, last)
        keys = np.minimum(chunk.before, attention.reach) + chunk.length
        kept = kv * attention.pair
        if attention.selection is not None:
            self._index(unit, attention.selection, samples, chunk.length, attention.whole.seen(chunk.before, last), keys)
            attention, kv, kept = self._absorbed(attention, last, kv, kept, written=False)
        self._compute(unit, "forward", self._attend(attention, samples, heads, kv, kept, chunk.length, keys, seen))

    def _unfused_beside(self, unit: str, attention: AttentionGeometry, chunk: Chunk, heads: Array) -> None:
        """The same through memory."""
        pieces = chunk.pieces * self.layout.tensor_share("attention")
        self._unfused(unit, attention, pieces * heads, chunk.length, chunk.before + chunk.length)

    def _absorbed(
        self, attention: AttentionGeometry, tokens: Array, groups: Array, kept: Array, *, written: bool | None = None
    ) -> tuple[AttentionGeometry, Array, Array]:
        """Attention to latents as they lie in the cache, with its heads of keys and what these have for a token.

        Queries are taken into the latent instead of keys out of it, and values come out after the sum: all heads attend to the cache as
        it is, with as many operations in the matrices as one token's keys and values take (DeepSeek-V2, Sec. 2.1.2). So do tokens that
        are `written`, as in a decode step, and queries that choose among more `tokens` than they attend to (DeepSeek-V3.2, Sec. 2.1).
        """
        if not attention.shares_latent:
            return attention, groups, kept
        chosen = np.inf if attention.selection is None else attention.selection.chosen * attention.selection.ratio
        where = np.asarray(tokens > chosen) | (self.cached if written is None else written)
        if where.all():
            return (
                replace(attention, query=attention.cached, value=attention.latent),
                np.ones_like(groups),
                np.asarray(1.0 * attention.cached),
            )
        if not where.any():
            return attention, groups, kept
        sizes: Any = {
            "query": np.where(where, attention.cached, attention.query),
            "value": np.where(where, attention.latent, attention.value),
        }
        return replace(attention, **sizes), np.where(where, 1.0, groups), np.where(where, attention.cached, kept)

    def _index(self, unit: str, chosen: Selection, samples: Array, length: Array, before: Array, keys: Array | None = None) -> None:
        """Scores of the indexer of sparse attention, of which a query has `before` in the mean, and the choice of the best.

        A head whose queries have d elements and give one score a key computes and reads as much as one of attention with d/2 elements for
        queries and values. The scores of all heads together are written in fp32 and read twice, to find the least that is chosen.
        """
        if not chosen.indexed:
            return
        one, half = np.ones_like(samples), cast(Any, chosen.width / 2.0)
        entries = before / chosen.ratio
        seen = entries if self.cached and keys is None else (length * self.layout.cp if keys is None else keys) / chosen.ratio
        scores = AttentionGeometry(heads=chosen.heads, kv_heads=1, query=half, value=half, cached=chosen.width)
        kernel = self._attend(
            scores, samples, chosen.heads * one, one, chosen.width * one, length, seen, entries, along_keys=self.cached and keys is None
        )
        self._fused_attention(unit, kernel)
        self._pass(unit, "forward", 3.0 * SINGLE * samples * length * entries, launches=2)

    def _entries(self, unit: str, part: Part, chosen: Selection, tokens: Array) -> None:
        """What makes entries of the vectors of several tokens and their weights: softmax and sum in one, r1, backward r2 w1."""
        vectors = sum(matrix.n for matrix in part.matrices if matrix.name in ("entries", "index_key"))
        if np.all(np.equal(chosen.ratio, 1)):
            return
        moved = self.element * tokens * vectors / np.where(self.layout.sequence_parallel, self.layout.tp, 1.0)
        self._pass(unit, "forward", (1.0 + 0.5 / chosen.ratio) * moved, flops=3.0 * moved / self.element)
        self._pass(unit, "input", (2.0 + 0.5 / chosen.ratio) * moved, flops=6.0 * moved / self.element)

    def _rings(self, attention: AttentionGeometry) -> bool:
        """Whether context ranks attend in a ring, a step for the keys and values of each rank."""
        return self.stack.attention.kernel == "flash" and not attention.windowed and attention.selection is None

    def _cast_to_cache(self, attention: AttentionGeometry, tokens: Array, kept: Array) -> Array:
        """Bytes that casting keys and values of new tokens to the type of the cache moves, r1 w1; of a latent each rank has all. [B]

        A cache in the type of the activations is where the products write. An encoder keeps nothing.
        """
        job, encodes = self.job, not (attention.causal or attention.cross)
        there = self.writes or encodes or not attention.makes or (attention.cross and self.cached)
        if there or not job.kv_dtype or job.cache == self.element:
            return np.zeros(1)
        return np.asarray(tokens * (attention.cached if attention.shares_latent else kept) * (self.element + job.cache))

    def _flash(
        self, unit: str, attention: AttentionGeometry, samples: Array, heads: Array, groups: Array, kept: Array, length: Array, keys: Array,
        seen: Array,
    ) -> None:  # fmt: skip
        """Fused attention of the step's own tokens. Context ranks in a ring begin with their own keys."""
        ring = self.layout.cp if self._rings(attention) else 1.0
        keys = keys / ring
        own = self._attend(attention, samples, heads, groups, kept, length, keys, seen / ring, along_keys=self.cached)
        first = self._fused_attention(unit, own)
        if self.layout.cp.max() > 1 and self._rings(attention):
            self._ring(unit, own, first, attention, samples * kept * keys)

    def _attend(
        self, attention: AttentionGeometry, samples: Array, heads: Array, groups: Array, kept: Array, length: Array | float, keys: Array,
        seen: Array, *, along_keys: bool = False,
    ) -> Attention:  # fmt: skip
        """A kernel of fused attention: two products forward and five backward, of the scores that mask and window leave.

        `groups` are the heads of keys and values and `kept` is what these have for a token, on one rank; `keys` are read, a query sees
        `seen` of them. A single query is divided `along_keys`, so that every unit has work.
        """
        flops = 2.0 * samples * heads * length * seen * (attention.query + attention.value)
        stored = self.seen_type if (self.cached or attention.causal or attention.cross) and not self._expanded(attention) else ""
        held = self.job.cache if stored else self.element
        # Queries and outputs; keys and values, of which heads that share a value read it each for itself.
        read = kept + groups * (1.0 - 1.0 / attention.together) * attention.value
        ends = samples * (heads * length * (attention.query + attention.value) * self.element + read * keys * held)
        blocks = samples * groups * np.ceil(keys / KEYS) if along_keys else samples * heads * np.ceil(length / QUERIES)
        window = 0 if along_keys and not self.writes else attention.window  # what a written token sees is the number of keys
        return Attention(
            samples=samples, heads=heads, kv_heads=groups, length=length, seen=keys, width=attention.query, work=(flops, ends, blocks),
            stored=stored, window=window, chunked=attention.chunked, chosen=attention.selection is not None,
        )  # fmt: skip

    def _expanded(self, attention: AttentionGeometry) -> bool:
        """Whether queries attend to keys and values of all heads as products have made them out of latents, and not to what is cached."""
        absorbed = np.all(np.equal(attention.query, attention.cached))
        return attention.shares_latent and not absorbed and self.stack.kernels.attention.expanded == "products"

    def _ring(self, unit: str, own: Attention, first: int, attention: AttentionGeometry, pairs: Array) -> None:
        """Steps of ring attention after the `first`, each with the keys and values of another rank (`pairs` elements) in a kernel.

        Under a causal mask a rank has two of 2 cp chunks of a sample, one from either end. Of another rank's tokens it then needs half
        of its queries and all keys, or all of its queries and half of the keys, without a mask: as much work as its own. Half of the
        queries make the fewest blocks; the ranks that have them set the pace. Bytes are those of both cases in the mean.
        """
        assert own.work is not None
        queries, share = (0.5, 0.75) if attention.causal else (1.0, 1.0)
        e, steps, length, (flops, moved, _) = self.element, self.layout.cp - 1.0, queries * own.length, own.work
        heads = own.samples * own.heads
        work = flops, share * moved, heads * np.ceil(length / QUERIES)
        later = self._fused_attention(unit, replace(own, work=work, length=length), count=steps)
        rows = np.asarray(heads * own.length)
        if self.stack.ring.merges == "eager":
            self._merge_eagerly(unit, attention, rows, pairs, steps)
        else:  # by their log-sum-exp: output r2 w1, log-sum-exp r2 w1; gradients of queries, keys and values: r2 w1
            self._pass(unit, "forward", 3.0 * steps * share * rows * (e * attention.value + LOG_SUM), launches=2.0 * steps)
            self._pass(unit, "input", 3.0 * steps * e * share * (rows * attention.query + pairs), launches=2.0 * steps)
        for phase, collective, size, number, beside in self._legs(pairs, steps, first, later):
            hidden: dict[str, Any] = {} if beside is None else {"hiding": "kernels", "beside": (beside,)}
            self._send(unit, phase, collective, size, self.layout.context, count=number, **hidden)

    def _legs(
        self, pairs: Array, steps: Array, first: int, later: int
    ) -> tuple[tuple[BlockPhase, Collective, Array, Array, int | None], ...]:
        """Messages of a ring, each with its size, how many there are, and the kernel beside which it travels. [B]

        Backward the first step sends keys and values, the last one their gradients, those between both in one transfer. Where keys and
        values are gathered at once, gradients alone are passed on; the last step's come home beside nothing.
        """
        e, once, between = self.element, np.minimum(steps, 1.0), np.maximum(steps - 1.0, 0.0)
        grown = e if self.stack.ring.merges == "fused" else SINGLE
        if self.stack.ring.gathered:
            whole = (steps + 1.0) * pairs * e
            return (
                ("forward", "all_gather", whole, once, first), ("input", "all_gather", whole, once, first + 1),
                ("input", "send_recv", pairs * grown, steps, later + 1), ("input", "send_recv", pairs * grown, once, None),
            )  # fmt: skip
        return (
            ("forward", "send_recv", pairs * e, once, first), ("forward", "send_recv", pairs * e, between, later),
            ("input", "send_recv", pairs * e, once, first + 1), ("input", "send_recv", pairs * (e + grown), between, later + 1),
            ("input", "send_recv", pairs * grown, once, later + 1),
        )  # fmt: skip

    def _merge_eagerly(self, unit: str, attention: AttentionGeometry, rows: Array, pairs: Array, steps: Array) -> None:
        """What PyTorch's own ring does around its kernels [5]_, of the rank whose queries all take part in every step.

        Forward, a step: keys and values into one buffer, r1 w1; output to fp32; its difference to that before, that times a weight, and the
        sum, r2 w1, r1 w1 and r2 w1 in fp32; five passes over sums of a row. The first output is made fp32 too, and the last one narrowed.
        Backward, a step: the buffer; gradients of queries added in fp32, r2 w1; those of keys and values added, under a causal mask to one
        half, which is then joined to the other, r1 w1, and both put into a buffer, r1 w1. Sums begin with zeros, and are narrowed at last.
        """
        e, single, queries, several = self.element, SINGLE, rows * attention.query, np.minimum(steps, 1.0)
        merged = rows * (attention.value * (e + 9.0 * single) + 13.0 * LOG_SUM)
        ends = 2.0 * rows * attention.value * (e + single)
        self._pass(unit, "forward", steps * (2.0 * e * pairs + merged) + several * ends, launches=11.0 * steps + 2.0 * several)
        added = e + 2.0 * single
        halves = added / 2.0 + 2.0 * single if attention.causal else added
        each = pairs * (2.0 * e + halves + 2.0 * single) + queries * added
        ends = (pairs + queries) * (single + added + e + single) + 2.0 * single * pairs
        self._pass(unit, "input", steps * each + several * ends, launches=(8.0 if attention.causal else 5.0) * steps + 10.0 * several)

    def _fused_attention(self, unit: str, forward: Attention, *, count: Number = ONCE) -> int:
        """Add a kernel with its backward one, which follows it; the row of the first."""
        assert forward.work is not None
        flops, moved, blocks = forward.work
        backward = replace(forward, work=(BACKWARD * flops, 2.0 * moved, blocks), backward=True, stored="")
        first = self._compute(unit, "forward", forward, count=count)
        self._compute(unit, "input", backward, count=count)
        if self.training and np.any(again := repeats("attention", self.layout, self.stack)):
            self._compute(unit, "input", forward, count=self.once_more * again * count)
        return first

    def _unfused(self, unit: str, attention: AttentionGeometry, batch: Array, length: Array, keys: Array) -> None:
        """Attention through memory: scores, softmax, values, each a kernel; neither mask nor window saves anything."""
        e, d, v = self.element, np.asarray(attention.query, dtype=float), np.asarray(attention.value, dtype=float)
        # forward; gradients of probabilities, values, queries and keys; what selective recomputation repeats
        shapes: tuple[tuple[BlockPhase, Array, Array, Array], ...] = (
            ("forward", length, keys, d), ("forward", length, v, keys), ("input", length, keys, v), ("input", keys, v, length),
            ("input", length, d, keys), ("input", keys, d, length), ("again", length, keys, d), ("again", length, v, keys),
        )  # fmt: skip
        for phase, m, n, k in shapes:
            self._compute(unit, phase, Product(m=m, n=n, k=k, batch=batch, wide=True, stored=self.seen_type))
        scores, tokens = batch * length * keys, batch * length * d
        forward, backward, kernels = self._softmax()
        drop = (2.0 * e + MASK) * scores if self.dropout else 0.0 * scores
        transposes = 8.0 * e * tokens  # q, k, v and the result change places: r4 w4
        launches = kernels + (1 if self.dropout else 0) + 4
        self._pass(unit, "forward", forward * e * scores + drop + transposes, launches=launches)
        self._pass(unit, "again", forward * e * scores + drop, launches=launches - 4)
        self._pass(unit, "input", backward * e * scores + drop + transposes, launches=launches)

    def _softmax(self) -> tuple[float, float, int]:
        """Passes of a softmax over the scores, forward and backward, and its kernels.

        Softmax alone r1 w1, backward r2 w1; unfused also scale r1 w1 and mask r1 w1, either way; of 16-bit scores also the
        conversions to and from fp32, r3 w3 in their own size.
        """
        if self.fused("softmax"):
            return 2.0, 3.0, 1
        return (6.0, 7.0, 3) if self.element > HALF else (12.0, 13.0, 5)

    # ---------------------------------------------------------------------------------- state spaces

    def _state_space(self, unit: str, part: Part, ssm: StateSpace, tokens: Array, *, last: bool) -> None:
        """Projections, convolution, recurrence and norm of a state-space mixer, as mamba_ssm and flash-linear-attention run them.

        Convolution, scan and norm are kernels of these libraries, which no stack of ours leaves unfused.
        """
        layout, e, products = self.layout, self.element, [matrix for matrix in part.matrices if not matrix.depthwise]
        for matrix in products:
            self._product(unit, matrix, tokens, "attention", end=last and matrix is products[-1])
        tensor = layout.tensor_of("attention")
        ranks, rows = tensor * layout.cp, tokens * layout.cp  # of context ranks each has all tokens of a share of the heads
        samples = layout.micro_batch * layout.tensor_share("attention")
        inner, mixed = ssm.heads / ranks * ssm.width, ssm.convolved(ranks)
        if self.cached:
            self._update_state(unit, ssm, samples, ranks, inner, mixed)
            if self.job.chunk is not None:  # pieces of prompts, of which all but the first find a state
                pieces = self.job.chunk.pieces * layout.tensor_share("attention")
                self._scanned(unit, ssm, pieces, pieces * self.job.chunk.length, ranks)
                self._pass(unit, "forward", pieces * (SINGLE * inner * ssm.state + 2.0 * ssm.held(ranks, e)))
        else:
            self._scanned(unit, ssm, samples, rows, ranks)
            if np.any(self.job.cached):  # states that a prompt leaves, r1 in fp32 w1, and the last inputs of the convolution
                self._pass(unit, "forward", samples * (SINGLE * inner * ssm.state + ssm.held(ranks, e)))
        if ssm.kind != "mamba1":  # gate and norm in one r2 w1, backward r3 w2 and its output once more w1
            self._pass(unit, "forward", 3.0 * e * rows * inner, flops=12.0 * rows * inner)
            self._pass(unit, "input", 6.0 * e * rows * inner, flops=30.0 * rows * inner)
        self._around_recurrence(unit, ssm, tokens, rows, tensor, mixed, inner)

    def _scanned(self, unit: str, ssm: StateSpace, samples: Array, rows: Array, ranks: Array) -> None:
        """Convolution and recurrence of so many samples or pieces of them, `rows` tokens in all, of a share of the heads."""
        e, mixed = self.element, ssm.convolved(ranks) * np.minimum(ssm.convolution, 1)
        # convolution and silu r1 w1, backward once more r1 w1, then r2 w1; a multiplication and an addition a weight
        taps = 2.0 * ssm.convolution * rows * mixed
        self._pass(unit, "forward", 2.0 * e * rows * mixed, flops=taps + 4.0 * rows * mixed)
        self._pass(unit, "input", 5.0 * e * rows * mixed, flops=3.0 * taps + 8.0 * rows * mixed, launches=2)
        self._recurrence(unit, ssm, samples, rows, ssm.heads / ranks, ssm.groups_on(ranks))

    def _recurrence(self, unit: str, ssm: StateSpace, samples: Array, rows: Array, heads: Array, groups: Array) -> None:
        """The recurrence of whole samples, forward and backward."""
        e, element = self.element, rows * heads * ssm.width
        if ssm.kind == "mamba1":  # x, dt, z and two outputs; backward also the output's gradient and those of x, dt, z; B and C
            work, selected = element * ssm.state, rows * groups * ssm.state
            self._pass(unit, "forward", e * (5.0 * element + 2.0 * selected), flops=SELECTIVE["forward"] * work)
            self._pass(unit, "input", e * (9.0 * element + 4.0 * selected), flops=SELECTIVE["input"] * work)
            return
        if ssm.kind == "rglru":  # x and two gates r3 w1; backward once more with the result and its gradient, r5 w3
            self._pass(unit, "forward", 4.0 * e * element, flops=GATED["forward"] * element)
            self._pass(unit, "input", 8.0 * e * element, flops=GATED["input"] * element)
            return
        if ssm.kind == "conv":  # the first gate r2 w1, backward r3 w2
            self._pass(unit, "forward", 3.0 * e * element, flops=element)
            self._pass(unit, "input", 5.0 * e * element, flops=2.0 * element)
            return
        delta, each = ssm.delta, 2.0 * self.element * rows * groups * ssm.state
        if delta:  # norms of queries and keys r1 w1, backward r2 w1; decays and steps from their gates
            gates = rows * heads * ssm.gates * (e + SINGLE)
            self._pass(unit, "forward", 2.0 * each + gates, launches=3)
            self._pass(unit, "input", 3.0 * each + 2.0 * gates, launches=3)
        if np.any(ssm.decays):
            # Decays of each element of a key, cumulated: r1 w1, then r1 by kernels of pairs, of states and of outputs; backward by those
            # that compute W and U again, of states, of dQ, dK, dW and within chunks, the last two r1 w1 for their gradient, and its sum.
            cumulated = SINGLE * rows * heads * ssm.decays
            self._pass(unit, "forward", 5.0 * cumulated, launches=0)
            self._pass(unit, "input", 9.0 * cumulated, launches=1)
        scan = Scan(
            samples=samples, heads=heads, groups=groups, length=rows / samples, width=1.0 * ssm.width, state=1.0 * ssm.state,
            chunk=1.0 * ssm.chunk, delta=delta,
        )  # fmt: skip
        self._scan(unit, scan)

    def _update_state(self, unit: str, ssm: StateSpace, samples: Array, ranks: Array, inner: Array, mixed: Array) -> None:
        """Tokens that a step writes for each request: the convolution's inputs and the state are read, whatever came before, and written
        after every token, as any that was guessed may be the last that is right.
        """
        written = samples * self.job.written
        held = (samples + written) * ssm.held(ranks, self.element)
        self._pass(unit, "forward", held, flops=UPDATE[ssm.kind] * written * inner * ssm.state, launches=2)
        ends = written * (2.0 * mixed + 2.0 * inner) * self.element  # convolved r1 w1, output w1, gate r1
        self._pass(unit, "forward", ends, flops=(2.0 * ssm.convolution + 4.0) * written * mixed, launches=0)

    def _around_recurrence(self, unit: str, ssm: StateSpace, tokens: Array, rows: Array, tensor: Array, mixed: Array, inner: Array) -> None:
        """Sums over a tensor group that a recurrence needs, and exchanges of heads for tokens among context ranks."""
        group = self.layout.sharing("attention")
        both: tuple[BlockPhase, ...] = ("forward", "input")
        size = np.zeros(1)
        if ssm.kind == "mamba1":  # B, C and the latent of the time steps come from channels of all ranks, and go to all
            size = tokens * (ssm.step_rank + 2.0 * ssm.state) * self.element
        elif np.any(ssm.normed):  # a norm over several ranks' elements sums their squares
            size = np.where(ssm.heads * ssm.width / tensor < ssm.normed, SINGLE * tokens, 0.0)
        for phase in both if size.any() else ():
            self._send(unit, phase, "all_reduce", size, group)
        if self.layout.cp.max() > 1:
            there = rows * (inner + mixed + ssm.gates * ssm.heads / (tensor * self.layout.cp)) * self.element
            back = rows * (1.0 + (ssm.normed > 0)) * inner * self.element  # the norm takes the gate with it
            for phase in both:
                self._send(unit, phase, "all_to_all", there, self.layout.context)
                self._send(unit, phase, "all_to_all", back, self.layout.context)

    # ---------------------------------------------------------------------------------- feed-forward parts

    def _mlp(self, unit: str, part: Part, tokens: Array, *, last: bool) -> None:
        for matrix in part.matrices:
            again = shares_again(part, matrix, self.layout, self.stack)
            written = matrix.name == "down_b" if np.any(matrix.adapters) else matrix.cut == "row"  # what the part gives to the next layer
            self._product(unit, matrix, tokens, "mlp", end=last and written, again=again, branches=self._branches(part, matrix))
        biased = any(matrix.bias for matrix in part.matrices if matrix.cut == "column")
        elements = tokens * part.inner / self.layout.tensor_of("mlp")
        self._activation(unit, part, elements, self.again("activation", part) * elements, biased=biased)

    def _activation(self, unit: str, part: Part, elements: Array, again: Array, *, biased: bool) -> None:
        """GELU: r1 w1, backward r2 w1; gated: r2 w1, backward r3 w2. A bias of all branches: its gradient r1 for each of them.

        Unfused, as eager PyTorch runs `silu(gate) * up` [4]_ (torchtitan's `FeedForward`): silu r1 w1 apart from the product; backward
        r2 w1 for the gradient of either factor and of silu; the bias r1 w1 for each branch. Where one product makes both branches, autograd
        joins their gradients in a further kernel, which is left out. Of the `elements` some are computed `again` before the gradients.

        Branches that are clamped outside of that kernel: r1 w1 each, backward r2 w1; a fused kernel takes both as one tensor, which is
        joined for it, r2 w2, as its gradient is (`weighted_bias_quick_geglu_impl` of Megatron-Core). [1]
        """
        e, fused, branches = self.element, self.fused("activation"), 1.0 + part.gated
        forward, backward, launches, back = (3.0, 5.0, 1, 1) if part.gated else (2.0, 3.0, 1, 1)
        if not fused and part.gated:
            forward, backward, launches, back = 5.0, 9.0, 2, 3
        if not fused and biased:
            forward, launches = forward + 2.0 * branches, launches + 1
        if biased:
            backward, back = backward + branches, back + 1
        if part.limited and not self.fused("limit"):
            joined = 2.0 * branches if fused else 0.0
            forward, launches = forward + 2.0 * branches + joined, launches + 2 + fused
            backward, back = backward + 3.0 * branches + joined, back + 2 + fused
        self._pass(unit, "forward", forward * e * elements, flops=8.0 * elements, launches=launches)
        self._pass(unit, "input", backward * e * elements, flops=16.0 * elements, launches=back)
        if np.any(again):
            often = np.where(again > 0, self.once_more, 0.0)
            self._pass(unit, "input", forward * e * again, flops=8.0 * again, launches=launches * often)

    def _experts(self, unit: str, part: Part, tokens: Array, mine: Array) -> None:
        """Router and shared expert, of `mine` tokens, and routed experts; tokens travel to the ranks that hold their experts and back."""
        layout, e = self.layout, self.element
        assert part.routing is not None
        routing = self._routing(part.routing)
        own, ranks = self._own(tokens, "experts"), layout.tensor_of("experts")
        routed, everyone = own * routing.rows(layout.ep), own * layout.ep * routing.fed
        # Experts of a rank that any token of the group is sent to: a few tokens leave most of them, and their weights, alone.
        reached = 1.0 - (1.0 - routing.active / routing.slots) ** everyone
        touched = routing.slots / layout.ep * reached
        fused = self._runs_fused_experts(unit, part)
        between: list[int] = []  # rows of the kernels that wait for tokens of other ranks
        for matrix in part.matrices:
            first = self.program.last_kernel + 1
            if not matrix.routed:
                self._product(unit, matrix, mine, "mlp", again=shares_again(part, matrix, layout, self.stack))
            elif not fused:
                self._product(unit, matrix, routed / touched, "experts", batch=touched)
                between += range(first, self.program.last_kernel + 1)
        apart = part.side == "experts"  # tokens come from other devices, to the ranks of their experts alone
        gathered = gathers(layout, self.stack) & (not (self.training or apart))
        if fused:
            layer = Experts(
                tokens=everyone, hidden=part.routed_width, inner=part.inner / ranks, branches=2.0 if part.gated else 1.0,
                active=routing.active, experts=routing.experts, ranks=layout.ep, load=routing.load(layout.ep), skew=routing.skew,
                variation=routing.variation, reached=touched, slots=routing.balanced_slots,
            )  # fmt: skip
            exchanged = (layout.ep > 1) & ~gathered
            for kernel, where in ((layer, ~exchanged), (replace(layer, given=own * routing.fed * routing.active), exchanged)):
                if where.any():
                    between.append(self._compute(unit, "forward", kernel, count=ONCE if where.all() else where.astype(float)))
        inside = fused or (self.training and self.stack.expert_products == "fused")
        common, own_rows = mine * part.shared / layout.tensor_of("mlp"), 0.0 if inside else routed * part.inner / ranks
        if np.any(common + own_rows):
            again = common * np.maximum(self.again("activation", part), self.again("shared", part)) + own_rows * self.again("routed", part)
            self._activation(unit, part, common + own_rows, again, biased=False)
        moved = routed * part.routed_width
        if self.training and self.stack.expert_products == "each" and any(matrix.routed and matrix.bias for matrix in part.matrices):
            # Biases of what experts give are no part of their products: for each expert bias times weight w1 and sum r2 w1, then one copy
            # r1 w1; gradients of the bias r1 w1 and r1, of the weight the same, and of what was joined r1 w1.
            self._pass(unit, "forward", 6.0 * moved * e, launches=1.0 + 2.0 * touched)
            self._pass(unit, "input", 8.0 * moved * e, launches=1.0 + 4.0 * touched)
        self._biases_by_row(unit, part, routed)
        # permutation r1 w1, its return with weights r1 w1; router's softmax and top-k are small
        both: tuple[BlockPhase, ...] = ("forward", "input")
        row_passes = (4.0 + self._row_passes(routing)) / self.stack.permutation
        for phase in both:
            if not fused:
                self._pass(unit, phase, (row_passes * moved + 6.0 * mine * routing.experts) * e, launches=8)
            # A rank that has tokens sends all of their rows, however many others have any.
            size = moved / routing.fed * e / np.where(layout.sequence_parallel, ranks, 1.0)
            narrow = self.job.operand / e if self.stack.narrow_dispatch and self.narrow and unit not in self.wide else 1.0
            for back in () if apart else (False, True):
                self._exchange(unit, part, phase, np.where(gathered, 0.0, size if back else size * narrow), tuple(between), back=back)
        # Where they are gathered, all tokens come to every rank, and a sum for each of them goes back to where it came from.
        whole = everyone * part.routed_width * e * (gathered & ~layout.whole) / np.where(layout.sequence_parallel, ranks, 1.0)
        self._send(unit, "forward", "all_gather", whole, layout.expert)
        self._send(unit, "forward", "reduce_scatter", whole, layout.expert)

    def _biases_by_row(self, unit: str, part: Part, routed: Array) -> None:
        """Biases of experts that are gathered for every row of tokens: r1 w1; backward r1, and the sum r1 w1 that each row adds to."""
        ranks = self.layout.tensor_of("experts")
        biases = sum(matrix.columns(ranks) for matrix in part.matrices if matrix.routed and matrix.bias)
        if self.training and self.stack.expert_biases == "rows" and np.any(biases):
            moved = routed * biases * self.element / self.stack.permutation
            self._pass(unit, "forward", 2.0 * moved, launches=3.0)
            self._pass(unit, "input", 3.0 * moved, launches=3.0)

    def _routing(self, routing: Routing) -> Routing:
        """How experts are routed as the plans and the stack place them."""
        return self.layout.placed(routing, balanced=self.stack.engine.balances and not self.training)

    def _row_passes(self, routing: Routing) -> Array:
        """Elements read and written for each that is routed, beside permutation and return: there and back r1 w1 for each pass. [1]"""
        several = routing.slots / self.layout.ep > 1.0
        made = ("sorted" in self.stack.routed_rows) * several * (self.layout.ep > 1) + ("padded" in self.stack.routed_rows) * self.narrow
        return np.asarray(4.0 * self.training * made)

    def _expert_group(self, part: Part, routing: Routing, *, back: bool) -> ExpertGroup:
        """Ranks that exchange tokens of a layer; these travel to their experts in the type of the products, and back in full width."""
        ranks, one = self.layout.expert, np.ones_like(self.layout.ep)
        element = self.element if back or not self.narrow else self.job.operand
        return ExpertGroup(
            size=ranks.size, per_node=ranks.per_node, stride=ranks.stride, devices=ranks.devices, extent=ranks.extent, part=ranks.part,
            libraries=self.stack.kernels.exchange, back=back, fast=self.job.task == "decode" and self.job.chunk is None,
            active=routing.active * one, experts=routing.slots * one,
            row=part.routed_width * self.element * one, token=part.routed_width * element * one,
        )  # fmt: skip

    def _runs_fused_experts(self, unit: str, part: Part) -> bool:
        """Whether a library of the stack runs a layer of experts as one: in a service, where products read weights as they are."""
        assert part.routing is not None
        widened = self.job.widened_of(part.stored)
        plain = not (self.training or widened or self.cast or unit in self.wide or part.routing.capacity is not None)
        return plain and bool(self.stack.kernels.experts.get(self.job.dtype))

    def _exchange(self, unit: str, part: Part, phase: BlockPhase, size: Array, between: tuple[int, ...], *, back: bool) -> None:
        """Rows to the ranks that hold their experts, or back: every copy by itself, or one to each node and from there on.

        In a service by the kernels of a library where the stack names any. `between` are the rows of the experts' own kernels.
        """
        assert part.routing is not None
        routing = self._routing(part.routing)
        way: Hiding = "results" if back else "experts"
        beside: dict[str, Any] = {"hiding": way, "beside": between} if self.stack.overlap.experts else {}
        if self.stack.kernels.exchange and not self.training:
            self._send(unit, phase, "all_to_all", size, self._expert_group(part, routing, back=back), **beside)
            return
        if self.stack.dispatch == "copies":
            self._send(unit, phase, "all_to_all", size, self.layout.expert, **beside)
            return
        for group, reached in ((self.layout.expert_across, self.layout.expert_across.size), (self.layout.expert_inside, self.layout.ep)):
            once = size * np.minimum(routing.reached(reached * np.ones(1)) / routing.active, 1.0)
            self._send(unit, phase, "all_to_all", once, group, **beside)

    def _around(self, unit: str, part: Part, tokens: Array, *, last: bool) -> None:
        """Norm, residual and dropout around a part."""
        layout, e = self.layout, self.element
        own = tokens * part.width / np.where(layout.sequence_parallel, layout.tp, 1.0)
        biased = any(matrix.bias for matrix in part.matrices[-1 if part.ssm else 0 :])
        if np.any(part.sources):  # their norms, scores and weighed sum in one kernel, r w1; backward r2 and their gradients r1 w1
            self._pass(unit, "forward", own * (part.sources + 1.0) * e, flops=8.0 * own * part.sources)
            self._pass(unit, "input", own * (4.0 * part.sources + 1.0) * e, flops=20.0 * own * part.sources, launches=2)
        self._streams(unit, part, own)
        if part.adaptive:
            self._adapted(unit, own)
        if np.any(part.shifted):
            self._shifted(unit, part, own)
        norm = 2.0 if self.fused("norm") else 6.0  # r1 w1; eager code of RMS norm squares, averages, scales
        drop = MASK if self.dropout else 0.0
        if self.fused("residual"):  # bias, dropout and sum in one: r2 w1
            forward, launches = 3.0 * e + drop, 1
        else:
            forward = (3.0 + (2.0 if biased else 0.0) + (2.0 if self.dropout else 0.0)) * e + drop
            launches = 1 + biased + self.dropout
        self._pass(unit, "forward", own * norm * e, flops=8.0 * own, launches=1 if self.fused("norm") else 4)
        self._pass(unit, "end" if last else "forward", own * forward, flops=2.0 * own, launches=launches)
        # norm r2 w1, with the sums for its weights [1]; eager also r2 for these; sum of both gradients r2 w1; dropout r1 w1; bias r1
        # [1] Transformer Engine, rmsnorm_bwd_tuned_kernel; torch.compile joins the sum of both gradients with it and reads r2 for weights.
        backward = (self._norm_backward + 3.0 + (2.0 if self.dropout else 0.0) + (1.0 if biased else 0.0)) * e + drop
        self._pass(unit, "input", own * backward, flops=20.0 * own, launches=2 + launches + (0 if self.fused("norm") else 4))
        if (more := self.again("norm", part)).any():
            self._pass(unit, "input", own * more * norm * e, flops=8.0 * own * more, launches=(1 if self.fused("norm") else 4) * more)

    def _summed(self, unit: str, part: Part, tokens: Array, mine: Array) -> None:
        """Collectives of the ranks that share a part, which have `mine` of a group's tokens."""
        layout, e, size = self.layout, self.element, mine * part.width * self.element
        if part.routing is None:
            again = size * (self.again("norm", part) if self.stack.gathered_inputs == "kept" else 1.0)
            self._gathered(unit, size, again, layout.sharing(type_of(part)), dense=True)
            return
        # Rows that were exchanged are gathered over the ranks that share an expert, and stay; without an exchange, tokens are. Of a
        # shared expert tokens are gathered over the ranks that share a layer, and once more for the weight gradient.
        apart = layout.tensor_of("experts") != layout.tp
        sent = (layout.ep > 1) & (self.training | (part.side == "experts") | ~gathers(layout, self.stack))
        # Of ranks whose tokens are gathered because each has a part of every expert, those without any bring none.
        alike = np.where(layout.tensor_of("experts") > layout.tp, part.routing.fed, 1.0)
        rows = self._own(tokens, "experts") * part.routed_width * e * np.where(sent, self._routing(part.routing).rows(layout.ep), alike)
        common, alone = size * float(np.any(part.shared)), layout.tensor_of("mlp") < layout.tp
        beside = common * ((layout.ep > 1) | apart) * ~alone
        sums = np.where(layout.sequence_parallel, beside + np.where(apart, 0.0, rows), size)
        self._gathered(unit, sums, common * ~alone, layout.tensor)
        if alone.any():
            self._gathered(unit, common * alone, common * alone, layout.sharing("mlp"))
        if (more := self.again("shared", part)).any():
            self._shared_again(unit, common * more, alone)
        if apart.any():
            several = apart & (layout.tensor_of("experts") > 1) & ~layout.whole
            self._gathered(unit, np.where(several, rows, 0.0), np.zeros(1), layout.sharing("experts"))

    def _streams(self, unit: str, part: Part, own: Array) -> None:
        """Hyper-connections of `own` elements on a rank.

        Forward squares of n streams r n, their sum r n w 1, and with the part's output r n + 1 w n in the place of a residual's r2 w1;
        backward each once more, with the gradients of the streams. The few numbers of a token that mix them are small beside it.
        """
        if not np.any(part.streams):
            return
        moved, work = own * self.element, own * part.streams * (2.0 * part.streams + 6.0)
        self._pass(unit, "forward", (4.0 * part.streams - 1.0) * moved, flops=work, launches=3)
        self._pass(unit, "input", (8.0 * part.streams - 2.0) * moved, flops=2.0 * work, launches=3)

    def _shared_again(self, unit: str, size: Array, alone: Mask) -> None:
        """Collectives around a shared expert that is computed again: its sum, or both halves; `alone` over fewer ranks than others."""
        scattered = self.layout.sequence_parallel
        for group, mine in ((self.layout.tensor, ~alone), (self.layout.sharing("mlp"), alone)):
            self._send(unit, "input", "all_gather", size * (mine & scattered), group)
            self._send(unit, "input", "reduce_scatter", size * (mine & scattered), group)
            self._send(unit, "input", "all_reduce", size * (mine & ~scattered), group)

    def _adapted(self, unit: str, own: Array) -> None:
        """Adaptive norm of `own` elements on a rank: scale and shift of what the norm gives, and the gate of what is added.

        Fused, scale and shift are r1 w1, and the gate goes with the residual; in eager code each is r1 w1. Backward the gradients of what
        they take r1 w1, and those of scale and gate r1 more; in eager code sums of the three by themselves, r2, r1 and r2.
        """
        norm, gate = self.fused("norm"), self.fused("residual")
        forward, backward = (2.0 if norm else 4.0) + (0.0 if gate else 2.0), (3.0 if norm else 5.0) + (3.0 if gate else 4.0)
        launches = (1 if norm else 2) + (0 if gate else 1)
        self._pass(unit, "forward", forward * self.element * own, flops=3.0 * own, launches=launches)
        self._pass(unit, "input", backward * self.element * own, flops=8.0 * own, launches=(1 if norm else 3) + (1 if gate else 2))

    def _shifted(self, unit: str, part: Part, own: Array) -> None:
        """Mixtures of each token with the one before it: their difference r2 w1, then r2 and w1 for each mixture, in one kernel.

        Mixtures that tokens make themselves (rwkv6) are read, r1 each. Backward gradients are read, r1 each, and summed, w1, with those of
        the vectors that mix. Channel mixing before rwkv7 ends with a sigmoid and a product, r2 w1, backward r3 w2.
        """
        moved, many = own * self.element, float(part.shifted)
        made = many if part.ssm is not None and np.any(part.ssm.mix_rank) else 0.0
        self._pass(unit, "forward", (5.0 + many + made) * moved, flops=(1.0 + 2.0 * many) * own, launches=2)
        self._pass(unit, "input", (5.0 + many + 2.0 * made) * moved, flops=(1.0 + 4.0 * many) * own, launches=2)
        if any(matrix.name == "receptance" for matrix in part.matrices):
            self._pass(unit, "forward", 3.0 * moved, flops=5.0 * own)
            self._pass(unit, "input", 5.0 * moved, flops=8.0 * own)

    def _own(self, tokens: Array, kind: Type) -> Array:
        """Tokens of the ranks that share a layer of some type: of a tensor group, of a part of one, at least one, or of several. [1]"""
        own, tp = self.layout.own_tensor.get(kind), self.layout.tp
        if own is None:
            return tokens
        part = tokens * own / tp
        return np.where(own != tp, np.where(self.layout.whole, part, np.ceil(part)), tokens)

    def _gathered(self, unit: str, size: Array, again: Array, group: Group, *, dense: bool = False) -> None:
        """Collectives around a part that a group of ranks shares: its sum, or with sequence parallelism both halves of it.

        `again` is what was kept divided and must be whole once more for the weight gradient. [B] Around `dense` parts halves may go along
        with the products that take what is gathered (cut by columns; backward by rows), and make what is scattered. PyTorch's compiler
        [6]_ does so backward, too, where a single product makes the gradient that is scattered, and adds up the parts that then lie there.
        """
        scattered = self.layout.sequence_parallel
        whole, split = np.where(scattered, 0.0, size), np.where(scattered, size, 0.0)
        pieces = dense and self.stack.overlap.tensor in ("pipelined", "compiled")
        compiled = pieces and self.stack.overlap.tensor == "compiled"
        hides: Hiding = "weights" if self.stack.overlap.tensor in ("backward", "pipelined") else ""

        def along(phase: BlockPhase, cut: Cut) -> dict[str, Any]:
            rows = self.divided.get((unit, cut, phase), ()) if pieces else ()
            return {"hiding": "pieces", "beside": rows} if rows else {}

        alone = compiled and len(self.divided.get((unit, "column", "input"), ())) == 1
        back: dict[str, Any] = along("input", "column") if alone else {"hiding": hides}

        narrow = dense and self.narrow and self.stack.narrow_gathers and unit not in self.wide
        sent = self.job.operand / self.element if narrow else 1.0
        self._send(unit, "forward", "all_reduce", whole, group)
        self._send(unit, "forward", "all_gather", sent * split, group, **along("forward", "column"))
        self._send(unit, "forward", "reduce_scatter", split, group, **along("forward", "row"))
        self._send(unit, "input", "all_reduce", whole, group, hiding=hides)
        self._send(unit, "input", "all_gather", sent * split, group, **along("input", "row"))
        self._send(unit, "input", "reduce_scatter", split, group, **back)
        self._send(unit, "input", "all_gather", sent * np.where(scattered, again, 0.0), group, hiding=hides)
        if compiled:
            added = np.where(group.size > 1, split * (1.0 + 1.0 / group.size), 0.0)
            launches = np.where(added > 0, 1.0, 0.0)  # none where nothing is scattered
            self._pass(unit, "forward", added, launches=launches)
            if alone:
                self._pass(unit, "input", added, launches=launches)

    # ---------------------------------------------------------------------------------- ends

    def embedding(self, unit: str, part: Part, tokens: Array) -> None:
        """Lookup of rows, or projection of patches; its gradient is a scatter into a table."""
        if part.side == "experts":
            return
        self._copied(unit, part)
        layout, e, h = self.layout, self.element, part.width
        own = tokens * h / np.where(layout.sequence_parallel, layout.tp, 1.0)
        tokens, group = self._own(tokens, "embedding"), layout.sharing("embedding")
        for matrix in part.matrices:  # patches need no gradient of their own
            self._product(unit, matrix, tokens, "embedding", first=matrix.name in FIRST)
            if matrix.name == "projection":
                self._projection(unit, own, tokens * h * e, group)
        rows = tokens * h * e
        if np.any(part.further):  # vectors of the layers' own: r1 w1, sum with what the product gives r2 w1; backward as much
            beside = tokens * part.further * e / np.where(layout.sequence_parallel, layout.tensor_of("embedding"), 1.0)
            self._pass(unit, "forward", 5.0 * beside, launches=2)
            self._pass(unit, "input", 5.0 * beside, launches=2)
        self._pass(unit, "forward", 2.0 * rows + 3.0 * rows + (2.0 * rows if self.dropout else 0.0), launches=4)
        # the table's gradient in zeros w1, and rows r1 and their sums r1 w1; where products add to a sum in another type, it is added there
        sums = e + 2.0 * self.stack.gradient_size(e) if self.fused("accumulation") else 0.0
        self._pass(unit, "input", 3.0 * rows + (e + sums) * part.table / layout.tensor_of("embedding"), launches=3)
        if np.any(part.table):
            scattered = layout.sequence_parallel
            self._send(unit, "forward", "all_reduce", np.where(scattered, 0.0, rows), group)
            self._send(unit, "forward", "reduce_scatter", np.where(scattered, rows, 0.0), group)
            self._send(unit, "input", "all_gather", np.where(scattered, rows, 0.0), group)

    def _projection(self, unit: str, own: Array, size: Array, group: Group) -> None:
        """What surrounds the projection of a multi-token prediction layer: two norms, one vector of both, and collectives.

        `own` elements of each input are on a rank; `size` is that of one input or output of all ranks that share the matrix. [B]
        """
        e, fused, scattered = self.element, self.fused("norm"), self.layout.sequence_parallel
        norm = 2.0 if fused else 6.0
        self._pass(unit, "forward", (2.0 * norm + 4.0) * own * e, flops=16.0 * own, launches=3 if fused else 9)  # r2 w2 for one vector
        self._pass(unit, "input", (2.0 * self._norm_backward + 4.0) * own * e, flops=32.0 * own, launches=5 if fused else 11)
        split, whole = np.where(scattered, size, 0.0), np.where(scattered, 0.0, size)
        sends: tuple[tuple[BlockPhase, Collective, Array], ...] = (
            ("forward", "all_gather", 2.0 * split), ("forward", "all_gather", size), ("input", "all_gather", split),
            ("input", "all_gather", 2.0 * split), ("input", "reduce_scatter", 2.0 * split), ("input", "all_reduce", 2.0 * whole),
        )  # fmt: skip
        for phase, collective, sent in sends:
            self._send(unit, phase, collective, sent, group)

    def head(self, unit: str, part: Part, tokens: Array) -> None:
        """Last norm, product with the vocabulary, softmax and loss."""
        if part.side == "experts":
            return
        self._copied(unit, part)
        layout, e = self.layout, self.element
        ranks, group = layout.tensor_of("embedding"), layout.sharing("embedding")
        own = tokens * part.width / np.where(layout.sequence_parallel, layout.tp, 1.0)
        self._pass(unit, "forward", 2.0 * own * e, launches=1)
        self._pass(unit, "input", (3.0 if self.fused("norm") else 5.0) * own * e, launches=2)
        tokens = self._own(tokens, "embedding")
        self._streams(unit, part, own)
        for matrix in part.matrices:
            self._product(unit, matrix, tokens, "embedding")
            logits = tokens * matrix.n / ranks
            if self.training and matrix.name == "vocabulary":
                # in fp32: conversion r1 w2, maximum r2, difference r2 w2, exponential and sum r2 w2, quotient r2 w2
                forward, backward, launches = (2.0, 2.0, (1, 1)) if self.fused("loss") else (15.0, 7.0, (6, 3))
                self._pass(unit, "forward", forward * e * logits, flops=5.0 * logits, launches=launches[0])
                self._pass(unit, "input", backward * e * logits, launches=launches[1])
        size = tokens * part.width * e
        scattered = layout.sequence_parallel
        self._send(unit, "forward", "all_gather", np.where(scattered, size, 0.0), group)
        self._send(unit, "input", "reduce_scatter", np.where(scattered, size, 0.0), group)
        self._send(unit, "input", "all_reduce", np.where(scattered, 0.0, size), group)
        if self.training:
            self._send(unit, "forward", "all_reduce", 12.0 * tokens, group)

    # ---------------------------------------------------------------------------------- weights

    def _copied(self, unit: str, part: Part) -> None:
        """Copies between weights and the buffers of their messages: shards in r1 w1 and whole weights out r1 w1, gradients in r1 w1.

        FSDP2 copies both for every microbatch, which recomputation does not repeat; DistributedDataParallel copies gradients with every
        update (Zhao et al., "PyTorch FSDP", VLDB 2023, Sec. 4; torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
        """
        if not (self.stack.sharing.copies and self.training):
            return
        layout, weight = self.layout, self.stack.weight_size(self.element)
        gradient, kept = weight + self.stack.gradient_size(self.element), self.job.base_size(wide=unit in self.wide) or weight
        trained = self._own_parameters(part) if not self.model.adapted else adapter_parameters(part, layout)
        for kind, amount, trains in zip((type_of(part), "experts"), self._own_parameters(part), trained, strict=True):
            spread = layout.spread(kind)
            sharded = amount * ((spread.zero >= 3) & (spread.shards.size > 1))
            again = 2.0 * kept * sharded * (1.0 + 1.0 / spread.shards.size)
            several = trains * (spread.data.size > 1)
            summed = np.where(
                spread.zero >= 3,
                trains * ((spread.zero >= 3) & (spread.shards.size > 1)),
                several / np.where(spread.zero == 2, 1.0, layout.microbatches),
            )
            for phase, moved in (("forward", again), ("input", again * self.once_more), ("weight", gradient * summed)):
                if np.any(moved):
                    self._pass(unit, cast(BlockPhase, phase), moved, launches=np.where(np.asarray(moved) > 0, 1.0, 0.0))  # none for others

    def _own_parameters(self, part: Part) -> tuple[Array, Array]:
        """Parameters of a part on one device as in `parameters`; a table that the embedding holds too is not the head's. [1]"""
        dense, expert = parameters(part, self.layout)
        if part is self.model.head and self.model.tied:
            dense = dense - np.where(self.layout.pp == 1, part.width * self.model.vocabulary / self.layout.tensor_of("embedding"), 0.0)
        return dense, expert

    # ---------------------------------------------------------------------------------- kernels

    def _product(
        self, unit: str, matrix: Matrix, tokens: Array, kind: Type, *, batch: Array | float = 1.0, first: bool = False, end: bool = False,
        again: Array | float = 0.0, branches: Sequence[Array] = (),
    ) -> None:  # fmt: skip
        """A matrix product, forward and both gradients (no input's for the `first`), cut over the ranks that share layers of its type.

        Of tokens, of the encoder's tokens, or of one token a sample, as the matrix says; a share of it `again` before the gradients. Where
        it stands for several `branches`, shares of its columns, each is a product, and their gradients of what all take are added.
        """
        layout = self.layout
        tp = layout.tensor_of(kind)
        if matrix.over == "memory" and self.cached:
            return  # they lie in the cache
        if matrix.over == "sample":
            tokens = layout.micro_batch * layout.tensor_share(kind)
        elif matrix.over != "tokens":
            memory = layout.micro_batch * layout.tensor_share(kind) * self.model.memory_tokens / layout.cp
            tokens = memory if matrix.over == "memory" else tokens - memory
        n, whole = matrix.columns(tp), tokens
        k = matrix.k / tp if matrix.cut == "row" else np.asarray(matrix.k, dtype=float)
        if matrix.cut == "none":  # every rank would do the same; with sequence parallelism each does its own tokens
            tokens = tokens / np.where(self.layout.sequence_parallel, tp, 1.0)
        copies, joined, often = np.asarray(batch), bool(np.any(matrix.adapters)), ONCE
        if joined:
            often, n = float(matrix.adapters), n / matrix.adapters
            if self.job.adapters is not None:
                return self._served_adapter(unit, matrix, Product(m=tokens, n=n, k=k, batch=copies, wide=True), often)
        forward: BlockPhase = "end" if end else "forward"
        wide = unit in self.wide or matrix.name in WIDE or joined
        stored = "" if wide else self.job.widened_of(self.stored.get(unit, ""))
        product = Product(m=tokens, n=n, k=k, batch=copies, wide=wide, stored=stored)
        trains = not self.model.adapted or joined
        widths = [n * share for share in branches] or [n]
        self._products(unit, matrix, product, widths, again, forward, often, first=first, trains=trains)
        if self.widening and not wide:
            phases: tuple[BlockPhase, ...] = (forward, "input")
            for phase in phases:
                self._pass(unit, phase, n * k * copies * self.widening)
        if self.narrow and not wide:
            inside = matrix.routed and self.training and self.stack.expert_products == "fused"
            made = inside and matrix.cut == "row", inside and matrix.cut == "column"  # by the product before it, forward and backward
            self._narrow(unit, forward, tokens * copies, n, k, copies, made)
        if self.cast and not (self.job.base and not wide):
            self._pass(unit, forward, n * k * copies * often * self.cast)
            if trains:
                self._pass(unit, "weight", n * k * copies * often * self.cast)
        if joined:
            self._adapter(unit, matrix, whole * copies, tokens * copies, kind, forward)

    def _products(
        self, unit: str, matrix: Matrix, whole: Product, widths: Sequence[Array], again: Array | float, forward: BlockPhase,
        often: Number, *, first: bool, trains: bool,
    ) -> None:  # fmt: skip
        """Products of a matrix that a stack multiplies one by one, of these `widths`, each so `often`, with their gradients; others as of
        `_product`.
        """
        for width in widths:
            self._divided(unit, matrix, "forward", self._compute(unit, forward, replace(whole, n=width), count=often))
        for width in () if first else widths:
            back = replace(whole, n=whole.k, k=width, stored="")
            self._divided(unit, matrix, "input", self._compute(unit, "input", back, count=often))
        if (more := len(widths) - 1) and not first:  # r1 for each and w1 where one kernel adds them, else r2 w1 for each after the first
            added, launches = (more + 2.0, 1) if self.fused("residual") else (3.0 * more, more)
            summed = np.asarray(whole.m * whole.k)
            self._pass(unit, "input", added * self.element * summed, flops=more * summed, launches=launches)
        if np.any(again):
            share = np.where(np.asarray(again) > 0, again, 1.0)  # and no product at all where none is done again
            self._compute(unit, "input", replace(whole, n=whole.n * share, stored=""), count=self.once_more * (again > 0) * often)
        if not trains:
            return
        sums = self.fused("accumulation")
        result = 2.0 * self.stack.gradient_size(self.element) if sums else None  # of an element of the sum, read and written
        for width in widths:
            gradient = replace(whole, m=whole.k, n=width, k=whole.m, adds=sums, result=result, stored="")
            self._compute(unit, "weight", gradient, count=often)

    def _branches(self, part: Part, matrix: Matrix) -> Sequence[Array]:
        """Shares of a matrix's columns on one rank that a stack multiplies one by one; none where all are one product. [1]"""
        if self.stack.joined or matrix.cut != "column" or np.any(matrix.adapters):
            return ()
        if matrix.name == "up" and part.gated:
            return (np.array([0.5]), np.array([0.5]))
        attention, ranks = part.attention, self.layout.tensor_of(type_of(part))
        if matrix.name != "query_key_value" or attention is None or not attention.makes:
            return ()
        kv, n = attention.kv_heads_on(ranks), matrix.columns(ranks)
        keys, values = kv * attention.query / n, kv * (attention.pair - attention.query) / n
        return (1.0 - keys - values, keys, values)

    def _served_adapter(self, unit: str, matrix: Matrix, product: Product, often: float) -> None:
        """A factor of the adapters of a service: rows of each adapter's requests by its own, in one kernel (SGMV, Punica, Sec. 4).

        The second factor's product is added to what the weights give, which lies there. As in vLLM, ranks that share a matrix cut by rows
        multiply their parts by the whole second factor, and the layer's own reduction adds them: no messages are needed.
        """
        mix = self.job.adapters
        assert mix is not None  # who asks has looked
        pieces = 0.0 if self.job.chunk is None else self.job.chunk.pieces
        requests = self.layout.micro_batch + pieces
        rows = product.m * mix.share
        groups = np.minimum(np.maximum(mix.distinct(requests * np.ones(len(self.layout))), FEWEST_GROUPS), np.maximum(rows, FEWEST_GROUPS))
        grouped = replace(product, m=rows / groups, batch=product.batch * groups * often, adds=matrix.name.endswith("_b"))
        self._compute(unit, "forward", grouped)

    def _adapter(self, unit: str, matrix: Matrix, whole: Array, tokens: Array, kind: Type, forward: BlockPhase) -> None:
        """What goes with a factor of adapters: its part of the sums, and collectives of what lies between both factors.

        What the second gives is scaled, r1 w1, and added to what the weights give, r2 w1; backward its gradient is scaled, r1 w1. Each
        gradient of the input of a first factor is added to that of the weights, r2 w1. So do Hugging Face's PEFT and NeMo in eager code.
        Ranks that share a matrix cut by columns have the first factor's result of all tokens, and parts of its gradient; of one cut by
        rows they have parts of the result. With sequence parallelism each has these of its own tokens.
        """
        ranks, e, pieces = self.layout.tensor_of(kind), self.element, float(matrix.adapters)
        scattered, group = self.layout.sequence_parallel, self.layout.sharing(kind)
        if matrix.name.endswith("_a"):
            inputs = tokens * matrix.k / (ranks if matrix.cut == "row" else 1.0)
            self._pass(unit, "input", 3.0 * e * inputs * pieces, flops=inputs * pieces, launches=pieces)
            size = whole * matrix.n * e * (ranks > 1) * (matrix.cut == "row")
            self._send(unit, "forward", "reduce_scatter", np.where(scattered, size, 0.0), group)
            self._send(unit, "forward", "all_reduce", np.where(scattered, 0.0, size), group)
            self._send(unit, "input", "all_gather", np.where(scattered, size, 0.0), group)
            return
        outputs = tokens * matrix.columns(ranks)
        self._pass(unit, forward, 5.0 * e * outputs, flops=2.0 * outputs, launches=2.0 * pieces)
        self._pass(unit, "input", 2.0 * e * outputs, flops=outputs, launches=pieces)
        size = whole * matrix.k * pieces * e * (ranks > 1) * (matrix.cut == "column")
        self._send(unit, "forward", "all_gather", np.where(scattered, size, 0.0), group)
        self._send(unit, "input", "reduce_scatter", np.where(scattered, size, 0.0), group)
        self._send(unit, "input", "all_reduce", np.where(scattered, 0.0, size), group)

    def _divided(self, unit: str, matrix: Matrix, phase: BlockPhase, row: int) -> None:
        """Note that a product is one of a unit's that a tensor group divides."""
        if matrix.over in ("tokens", "picture") and not np.any(matrix.adapters):
            key = (unit, matrix.cut, phase)
            self.divided[key] = (*self.divided.get(key, ()), row)

    def _narrow(
        self, unit: str, forward: BlockPhase, rows: Array, n: Array, k: Array, copies: Array, made: tuple[bool, bool] = (False, False)
    ) -> None:
        """Operands scaled to a narrower type: r1 at full width, w1 narrow, and once more transposed for the other products.

        A service has its weights narrow from the start, and the scales of its tensors; where the stack fuses `scaling`, the kernels before
        write what they know the scale of in the narrow type. In training the largest value of a tensor, which sets its scale, is found in
        the pass that writes it, of the step before (delayed scaling), or in a pass that reads the tensor once more (current scaling).
        Blocks have scales of their own, which the cast finds. A type with both needs such a pass too (arXiv:2509.25149, App. B).
        """
        full, narrow = float(self.element), float(self.job.operand)
        if not self.training:
            if not (self.fused("scaling") and self.job.dtype in STATIC):
                self._pass(unit, forward, rows * k * (full + narrow), narrows=True)
            return
        weights = copies * n * k / self.layout.microbatches * (not self.job.base)  # once a step; the copies are kept
        kind = FORMATS[self.job.dtype]
        reads = 2 if kind.two_level or (self.stack.scales == "current" and not kind.block) else 1
        there, back = (0.0 if inside else 1.0 for inside in made)
        self._pass(unit, forward, (there * rows * k + weights) * (reads * full + 2.0 * narrow), launches=(1.0 + there) * reads)
        self._pass(unit, "input", back * rows * n * (reads * full + 2.0 * narrow), launches=back * reads)

    def _pass(
        self, unit: str, phase: BlockPhase, moved: Array, *, flops: Array | float = 0.0, launches: Array | float = 1, narrows: bool = False
    ) -> None:
        self._compute(unit, phase, Pass(moved=moved, flops=flops, launches=launches, narrows=narrows))

    def _compute(self, unit: str, phase: BlockPhase, kernel: Kernel, *, count: Number = ONCE) -> int:
        """Add a kernel of a part; its row."""
        self.program.compute(unit, kernel, layer=unit, phase=phase, count=count)
        return self.program.last_kernel

    def _send(self, unit: str, phase: BlockPhase, collective: Collective, size: Array, group: Group, **hidden: Any) -> None:
        """Add a collective of a part, where any point sends it."""
        if not np.any(size):
            return
        self.program.send(collective, size, group, layer=unit, phase=phase, **hidden)

    def _scan(self, unit: str, forward: Scan) -> None:
        """A chunked scan, forward and backward."""
        self._compute(unit, "forward", forward)
        self._compute(unit, "input", replace(forward, backward=True))


def gathers(layout: Layout, stack: SoftwareStack) -> Mask:
    """Points of a service whose ranks that share experts out all have the tokens of each, gathered or as ranks of one tensor group do,
    shape (n,).

    Libraries of exchanges bring a token to a rank, and not to several that share an expert.
    """
    group, choice = layout.expert, stack.kernels
    near = group.per_node >= group.size if choice.gathers == "node" else np.full(len(layout), choice.gathers == "always")
    return np.asarray((near | (bool(choice.exchange) & (layout.tensor_of("experts") > 1)) | layout.whole) & (layout.ep > 1))


def type_of(part: Part) -> Type:
    """Layer type whose tensor degree a part has, its routed experts apart; state spaces mix tokens, as attention does."""
    return "attention" if part.attention is not None or part.ssm is not None else "embedding" if part.type in ENDS else "mlp"


def parameters(part: Part, layout: Layout) -> tuple[Array, Array]:
    """Parameters of a part on one device before data ranks share them out: those that all tokens pass, those of experts. [1]"""
    ranks = layout.tensor_of(type_of(part))
    copied = 1.0 if part.routing is None else 1.0 + layout.redundant / part.routing.experts
    expert = sum(matrix.parameters for matrix in part.matrices if matrix.routed and not np.any(matrix.adapters)) * copied
    table = part.table * np.where(part.holder == "apart", layout.pp > 1, part.holder == "all")
    dense = sum((matrix.parameters * matrix.share(ranks) for matrix in part.matrices if not matrix.routed), table / ranks)
    return dense + part.vectors, expert / (layout.tensor_of("experts") * layout.ep) + adapter_parameters(part, layout)[1]


def adapter_parameters(part: Part, layout: Layout) -> tuple[Array, Array]:
    """Parameters of a part's adapters on one device before data ranks share them out, as `parameters` counts all. [1]"""
    found = [np.zeros(len(layout)), np.zeros(len(layout))]
    copied = 1.0 if part.routing is None else 1.0 + layout.redundant / part.routing.experts
    for matrix in part.matrices:
        if np.any(matrix.adapters):
            ranks = layout.tensor_of("experts" if matrix.routed else type_of(part))
            found[matrix.routed] = found[matrix.routed] + matrix.parameters * matrix.share(ranks)
    return found[0], found[1] * copied / layout.ep


def trained_parameters(part: Part, layout: Layout, model: Transformer) -> tuple[Array, Array]:
    """Parameters of a part of a model that have gradients where the part trains: those of adapters alone where there are any. [1]"""
    return adapter_parameters(part, layout) if model.adapted else parameters(part, layout)


def ends_of(names: Sequence[str]) -> Mask:
    """Which units are embeddings and heads, which no plan computes again, shape (units,)."""
    return np.array([name.split(".")[-1] in ENDS for name in names])


@once
def wide_units(model: Transformer) -> frozenset[str]:
    """Parts whose products and weights stay in 16 bits where a job has narrower ones: embedding, head, and those that are wide."""
    return frozenset(name for name, part in units(model) if part.wide or name.split(".")[-1] in ENDS)


def units(model: Transformer) -> Sequence[tuple[str, Part]]:
    """Parts of all kinds of layers with the names under which their kernels are counted, embedding first, head last."""
    inner = [(f"{i}.{j}.{part.type}", part) for i, layer in enumerate(model.kinds) for j, part in enumerate(layer.parts)]
    return [("embedding", model.embedding), *inner, ("head", model.head)]


@once
def unit_starts(model: Transformer) -> Index:
    """Place of the first part of the layer that each unit is a part of, shape (units,); embedding and head stand alone."""
    begins = 1 + np.cumsum([0, *(len(layer.parts) for layer in model.kinds)])
    sizes = [len(layer.parts) for layer in model.kinds]
    return np.array([0, *np.repeat(begins[:-1], sizes), begins[-1]], dtype=np.intp)


@once
def unit_places(model: Transformer) -> Index:
    """Place among `units` of every part of every group of layers, in the order of the model, embedding first, head last."""
    begins = 1 + np.cumsum([0, *(len(layer.parts) for layer in model.kinds)])
    inner = [begins[kind] + j for kind in model.kind_of for j in range(len(model.kinds[kind].parts))]
    return np.array([0, *inner, begins[-1]], dtype=np.intp)
