"""Activations of a transformer's parts: what one microbatch leaves for its backward pass, and what that adds while it runs [1]_.

References
----------
.. [1] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, arXiv:2205.05198, Eq. 1-6 and Sec. 4-5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.blocks import ENDS, LOG_SUM, MASK, type_of
from crossflow.parallel.repeated import makes_heads, repeats, shares_again, whole_again
from crossflow.parallel.strategy.layout import Layout
from crossflow.program.scans import SINGLE
from crossflow.workload.job import Job
from crossflow.workload.statespace import StateSpace
from crossflow.workload.transformer import AttentionGeometry, Layer, Part

SOFTMAX = 4.0  # what a loss keeps of a logit for its backward pass is fp32 [B]
ROUTING = 8.0  # logits and probabilities of a router are fp32 [B]


def activations(job: Job, layout: Layout, stack: SoftwareStack) -> tuple[dict[str, Array], dict[str, Array]]:
    """Bytes of one microbatch, by unit: those kept for the backward pass, and those that it adds while it runs. [B]

    What is kept is every input of a matrix product, norm and activation, attention's queries, keys, values and its
    log-sum-exp (fused) or its probabilities, and dropout's masks. Of a decoder with dropout and unfused attention that is
    s b h (10 + 24 / t + 5 a s / (h t)) per layer, and s b h (34 + 5 a s / h) / t with sequence parallelism [1]_ (Eq. 2 and 4).
    Selective recomputation leaves out the probabilities and what follows them (Eq. 6) or what modules write, full recomputation all
    but the layer's input (Sec. 5); what is left out is there again while its layer's backward pass runs.
    """
    kept, working, ends = {}, {}, {"embedding": job.model.embedding, "head": job.model.head}
    for i, layer in enumerate(job.model.kinds):
        parts = {f"{i}.{j}.{part.type}": part for j, part in enumerate(layer.parts)}
        tokens = layout.micro_batch * job.tokens(layer.tokens) / layout.cp
        ends |= {name: part for name, part in parts.items() if part.type in ENDS}
        before = dict(zip(list(parts)[1:], layer.parts, strict=False))  # the part that gives another its input
        made = {name: np.asarray(_given_again(before.get(name), layout, stack)) for name in parts}
        found = {name: _Kept.of(part, tokens, job, layout, stack, made[name]) for name, part in parts.items() if name not in ends}
        whole = sum(one.plain + one.scores for one in found.values())
        entry, repeated = _entry(layer, tokens, job, layout), layout.recomputed(job.model.depth)
        for j, (name, one) in enumerate(found.items()):
            left = np.where(layout.selective, one.plain, one.plain + one.scores)
            more = np.where(layout.selective, one.scores, 0.0)
            all_ = whole_again(parts[name], layout, stack) > 0  # then its input before and after the norm
            inputs = entry * (2.0 - repeats("norm", layout, stack) - made[name])
            left, more = np.where(all_, inputs, left), np.where(all_, one.plain + one.scores - one.spared - inputs, more)
            kept[name] = repeated * (entry if j == 0 else 0.0) + (1.0 - repeated) * left
            again = np.where(repeated > 0, whole - one.spared, more)
            working[name] = one.passing + again if job.training else one.plain + one.scores
    tokens = layout.micro_batch * job.tokens(job.model.tokens) / layout.cp
    for name, part in ends.items():
        kept[name] = _end(part, tokens, job, layout)
        working[name] = _logits(job, layout, stack, tokens) if part.type == "head" else np.zeros(len(layout))
    if not job.training:
        kept = {name: np.zeros(len(layout)) for name in kept}
    return kept, working


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Activations of one part: kept ones, those of them that follow attention's scores, those that are never there where they are
    computed again, gradients that pass back. [B]
    """

    plain: Array
    scores: Array
    spared: Array
    passing: Array

    @classmethod
    def of(cls, part: Part, tokens: Array, job: Job, layout: Layout, stack: SoftwareStack, given: Array) -> _Kept:
        """Of a part whose input is computed again where `given` is 1."""
        e, p = job.element, job.element if part.wide else job.operand
        own = tokens / np.where(layout.sequence_parallel, layout.tp, 1.0)
        rows = (
            0.0
            if part.routing is None
            else layout.placed(part.routing, balanced=stack.engine.balances and not job.training).rows(layout.ep)
        )
        routed = tokens * layout.tensor_share("experts") * rows
        tokens = tokens * layout.tensor_share(type_of(part))
        inputs, again, outputs, spared = _products(part, tokens, own, routed, job, layout, stack)
        plain = own * part.width * (e * (1.0 - given) + (MASK if job.dropout else 0.0)) + inputs * p  # the norm's input, and the products'
        passing = e * ((2.0 + given) * own * part.width + outputs) + again * p
        scores = np.zeros(len(layout))
        if part.adaptive:  # what is scaled, where it is written, and what the gate weighs
            plain = plain + e * own * part.width * (1.0 if stack.fuses("norm", e) else 2.0)
        if np.any(part.shifted):  # what tokens are mixed of
            plain = plain + e * own * part.width
        if part.attention is not None:
            vectors, sums, scores = _attention(part.attention, tokens, job, layout, stack)
            gate = job.element * _given(part.attention, tokens, layout)
            made = _vectors_again(part, vectors - gate, layout, stack)
            sums = sums * (1.0 - repeats("attention", layout, stack))
            plain, passing = plain + sums + vectors - made, passing + made
        if part.ssm is not None:
            plain = plain + _state_space(part.ssm, tokens, job, layout)
        if part.routing is not None or np.any(part.inner):
            inside = p if stack.memory.narrow_activation else e
            own_inner, shared_inner = (inside * inner for inner in _activation(job, part, tokens, routed, layout, stack))
            made = _branches_again(part, layout, stack) * 2.0 * inside * tokens * part.inner / layout.tensor_of("mlp")
            made = made + repeats("shared", layout, stack) * shared_inner
            plain, passing = plain + own_inner + shared_inner - made, passing + made
        if part.routing is not None:  # what experts give back, to be weighed, and the weights
            returned = own * part.routing.active * part.routing.kept * (stack.weighing == "returned")
            plain = plain + e * returned * part.routed_width + ROUTING * own * part.routing.experts
        return cls(plain=plain, scores=scores, spared=spared * p, passing=passing + scores)


def _given_again(before: Part | None, layout: Layout, stack: SoftwareStack) -> Array | float:
    """Whether a backward pass computes again what the part before another has given it: attention, by its last product. [1]"""
    return repeats("output", layout, stack) if before is not None and before.attention is not None else 0.0


def _vectors_again(part: Part, vectors: Array, layout: Layout, stack: SoftwareStack) -> Array:
    """Of queries, keys and values those that a backward pass computes again: all that are made of latents, or keys. [B]"""
    latent = [matrix for matrix in part.matrices if makes_heads(part, matrix)]
    first = next(matrix for matrix in (*latent, *part.matrices) if matrix.name != "output")
    return np.asarray(vectors * shares_again(part, first, layout, stack))


def _branches_again(part: Part, layout: Layout, stack: SoftwareStack) -> Array | float:
    """Share of the branches of a gated MLP that a backward pass computes again. [1]"""
    return sum(shares_again(part, matrix, layout, stack) for matrix in part.matrices if part.gated and matrix.name == "up")


def _products(
    part: Part, tokens: Array, own: Array, routed: Array | float, job: Job, layout: Layout, stack: SoftwareStack
) -> tuple[Array, Array, Array, Array]:
    """Elements of a part's inputs of matrix products, each once: those that are kept and those that are computed again, which norms
    and activations have written, of the inputs and outputs that lie inside the part, and of those kept ones that are never there where
    they are computed again. [1]

    Of the tokens of the ranks that share it, a rank's `own` of them, and the rows `routed` to all experts of a rank, evenly used.
    """
    samples = layout.micro_batch * layout.tensor_share(type_of(part))
    memory = samples * job.model.memory_tokens / layout.cp
    rows = {"tokens": tokens, "sample": samples, "memory": memory, "picture": tokens - memory}
    inputs, again, inside, spared, shared = *np.zeros((4, len(layout))), False
    norms, activated = repeats("norm", layout, stack), _activated(part, layout, stack)
    for matrix in part.matrices:
        if matrix.depthwise or (matrix.name.endswith("_b") and np.any(matrix.adapters)):
            continue
        many = routed if matrix.routed else rows[matrix.over]
        ranks = layout.tensor_of("experts" if matrix.routed else type_of(part))
        if np.any(matrix.adapters):  # what lies between both factors of an adapter
            inputs = inputs + many * matrix.n
            continue
        # Weights that do not train need no input for a gradient; attention's backward pass needs its output.
        needed = matrix.adapted or not job.model.adapted or matrix.name in ("output", "query_up", "key_value_up")
        if not needed:
            inside = inside + (many * matrix.k / ranks if matrix.cut == "row" else many * matrix.columns(ranks))
            continue
        if matrix.cut == "row":
            mine = many * matrix.k / ranks
            made = activated.get(matrix.name, 0.0)
            if stack.memory.fused_activation and matrix.name in ("down", "shared_down"):
                inputs, spared = inputs + mine * (1.0 - made), spared + mine * (1.0 - made)
                continue
            inputs, again, inside = inputs + mine * (1.0 - made), again + mine * made, inside + mine
            continue
        inside = inside + many * matrix.columns(ranks)
        if np.any(matrix.inputs):
            inputs = inputs + (own * matrix.inputs if matrix.cut == "none" or np.any(part.shifted) else many * matrix.inputs / ranks)
        elif matrix.routed:
            inputs = inputs + many * matrix.k  # copies of tokens, whole on every rank that shares the expert
        elif matrix.name in ("query_up", "key_value_up"):
            inputs = inputs + 2.0 * many * matrix.k * own / tokens  # a latent, before and after its norm
        elif matrix.name == "latent_up":
            inputs = inputs + own * matrix.k  # what experts give of a token, weighed
        elif matrix.over == "sample":
            inputs = inputs + many * matrix.k
        elif matrix.over != "memory":  # the encoder's output is kept by the encoder; text and picture are normed as one
            mine = np.asarray(many if stack.gathered_inputs == "kept" else own) * matrix.k * (not shared)
            inputs, again, shared = inputs + mine * (1.0 - norms), again + mine * norms, True
    return inputs, again, inside, spared


def _activated(part: Part, layout: Layout, stack: SoftwareStack) -> Mapping[str, Array]:
    """Whether what an activation, or attention, has written is computed again, of the products that take it, by their names. [1]"""
    every, routed, shared = (repeats(what, layout, stack) for what in ("activation", "routed", "shared"))
    if part.attention is not None:
        return {"output": repeats("attention", layout, stack)}
    return {"down": every, "shared_down": np.maximum(every, shared), "expert_down": routed} if part.type in ("mlp", "experts") else {}


def _attention(attention: AttentionGeometry, tokens: Array, job: Job, layout: Layout, stack: SoftwareStack) -> tuple[Array, Array, Array]:
    """Queries, keys and values; the log-sum-exp of fused attention; and all that follows scores that go through memory. [B]"""
    ranks, samples = layout.tensor_of("attention"), layout.micro_batch * layout.tensor_share("attention")
    heads, kv = attention.heads / ranks, attention.kv_heads_on(ranks)
    memory_tokens = samples * job.model.memory_tokens / layout.cp
    if stack.attention.repeated and stack.attention.kernel == "flash":  # copies for all heads, unless a backward pass makes them again
        kv = np.where(repeats("norm", layout, stack) > 0, kv, np.maximum(heads, kv))
    made = attention.makes * kv * attention.pair  # those of another layer are kept there
    vectors = tokens * heads * attention.query + (memory_tokens if attention.cross else tokens) * made
    vectors = vectors + _given(attention, tokens, layout)
    if stack.attention.kernel == "flash":
        return job.element * vectors, LOG_SUM * tokens * heads, np.zeros(len(layout))
    seen = job.model.memory_tokens if attention.cross else tokens / samples * layout.cp
    each = job.element + ((MASK + job.element) if job.dropout else 0.0)  # softmax; mask and what dropout leaves
    return job.element * vectors, np.zeros(len(layout)), each * tokens * heads * seen


def _given(attention: AttentionGeometry, tokens: Array, layout: Layout) -> Array:
    """What treats the outputs of heads, and these before it. [1]"""
    kept = 0.0 if attention.form is None else attention.form.kept
    return np.asarray(kept * tokens * attention.heads / layout.tensor_of("attention") * attention.value)


def _state_space(ssm: StateSpace, tokens: Array, job: Job, layout: Layout) -> Array:
    """What a state-space mixer keeps beside the inputs of its products. [B]

    Outputs of the first projection and of the recurrence; convolutions and states are computed again (mamba_ssm). The delta rule also
    keeps what the convolution gives, queries and keys with their norm, and the inverse of every chunk's triangle (flash-linear-attention);
    mamba1 the time steps of every channel.
    """
    ranks = layout.tensor_of("attention")
    inner, heads, mixed = ssm.heads * ssm.width / ranks, ssm.heads / ranks, ssm.convolved(ranks)
    own = 2.0 * inner + mixed + ssm.gates * heads  # gate and output; what is convolved; time steps or gates
    if ssm.delta:
        own = own + mixed + (mixed - inner) + heads * ssm.chunk + SINGLE / job.element * heads
    elif ssm.kind == "mamba1":
        own = own + inner
    return np.asarray(job.element * tokens * own)


def _activation(job: Job, part: Part, tokens: Array, routed: Array | float, layout: Layout, stack: SoftwareStack) -> tuple[Array, Array]:
    """Inputs of the activation between the products of an MLP or of experts, and of shared experts; unfused and gated also its output
    before the gate; clamped outside of its kernel also what is clamped, where it is not computed again. [1]
    """
    each: Array | float = 1.0 + part.gated + (part.gated and not stack.fuses("activation", job.element))
    if part.limited and not stack.fuses("limit", job.element):
        each = each + 2.0 * (1.0 - repeats("activation", layout, stack))
    ranks = layout.tensor_of("mlp")
    if part.routing is None:
        return np.asarray(each * tokens * part.inner / ranks), np.zeros(1)
    return np.asarray(each * routed * part.inner / layout.tensor_of("experts")), np.asarray(each * tokens * part.shared / ranks)


def _entry(layer: Layer, tokens: Array, job: Job, layout: Layout) -> Array:
    """A layer's input. [B]"""
    return np.asarray(job.element * tokens * layer.carried / np.where(layout.sequence_parallel, layout.tp, 1.0))


def _end(part: Part, tokens: Array, job: Job, layout: Layout) -> Array:
    """Embedding: a dropout mask, and patches, or what is projected before and after its norms; head: inputs of its norm and products
    ([1]_, Sec. 4.3, without the logits). [B]
    """
    own = tokens / np.where(layout.sequence_parallel, layout.tp, 1.0)
    if part.type == "embedding":
        samples = layout.micro_batch * layout.tensor_share("embedding")
        memory, all_ = samples * job.model.memory_tokens / layout.cp, tokens * layout.tensor_share("embedding")
        rows = {"tokens": all_, "memory": memory, "picture": all_ - memory, "sample": samples}
        special = {"projection": 2.0 * own, "per_layer": own}
        inputs = sum(matrix.k * special.get(matrix.name, rows[matrix.over]) for matrix in part.matrices) * job.element
        return np.asarray(own * part.width * (MASK if job.dropout else 0.0) + inputs)
    products = sum(matrix.k for matrix in part.matrices if matrix.over in ("tokens", "picture"))
    return np.asarray(job.element * own * (part.width + products))


def _logits(job: Job, layout: Layout, stack: SoftwareStack, tokens: Array) -> Array:
    """Logits while the loss is computed, in all their copies; without a loss those that the product gives. [B]

    The losses of further tokens are computed in the same forward pass: their softmaxes wait for the backward pass too.
    """
    words = sum(matrix.n for matrix in job.model.head.matrices if matrix.name == "vocabulary")
    if job.task in ("prefill", "decode"):
        tokens = layout.micro_batch
    tokens = tokens * layout.tensor_share("embedding")
    further = sum(layer.count for layer in job.model.layers if layer.predicts)
    each = stack.memory.logit + SOFTMAX * further if job.training else job.element
    return np.asarray(tokens * words / layout.tensor_of("embedding") * each)
