"""Transformers as the `workload` section describes them: its layers, their parts and weight matrices."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from crossflow.workload.attended import form_of
from crossflow.workload.diffusion import refiner
from crossflow.workload.frozen import listed_layers
from crossflow.workload.statespace import SHIFTS
from crossflow.workload.transformer import (
    Layer,
    Matrix,
    Over,
    Part,
    Routing,
    Transformer,
    experts,
    joined,
    latent_attention,
    mlp,
    prediction_layers,
    self_attention,
    state_space,
    with_streams,
)

if TYPE_CHECKING:
    from crossflow.workload.spec import LayerKind, TransformerSpec


@functools.lru_cache(maxsize=256)
def described(spec: TransformerSpec) -> Transformer:
    """The model of a `workload` section as layers of weight matrices."""
    encoder = spec.encoder
    first = encoder.layers if encoder else 0
    layers = _stack(spec, "decoder" if encoder else "layers", range(first, first + spec.layers), spec.tokens, causal=spec.causal)
    before = _stack(spec, "encoder", range(first), encoder.sequence, causal=False) if encoder else ()
    embedding, head = _embedding(spec), _head(spec)
    further = prediction_layers(
        count=spec.mtp_layers if spec.task == "training" else 0, tokens=spec.tokens, embedding=embedding, inner=_predicting(spec, layers),
        head=head, tied=spec.tied_embeddings, norm_vectors=_norm(spec), shared=spec.mtp_shared,
    )  # fmt: skip
    model = Transformer(
        name=spec.title or spec.model,
        embedding=embedding,
        layers=(*before, *layers, *further),
        head=head,
        tied=spec.tied_embeddings,
        vocabulary=spec.vocabulary or 0,
        memory_tokens=_memory_tokens(spec),
    )
    own = spec.adapters if spec.task == "training" or (spec.task == "serving" and spec.serving.adapters) else None
    from crossflow.workload.adapters import Adapters, with_adapters

    return with_adapters(model, Adapters(rank=own.rank, targets=own.targets, joined=own.joined)) if own else model


def _predicting(spec: TransformerSpec, layers: tuple[Layer, ...]) -> tuple[Part, ...]:
    """What a layer that predicts a further token is made of: the parts of the last layer.

    Where mixers and MLPs are layers of their own, it has those of the last layer of attention and of the last one that mixes no tokens
    (`mtp_hybrid_override_pattern` of Nemotron 3).
    """
    parts = layers[-1].parts
    if spec.ssm is not None and not spec.ssm.mlp:
        kinds = tuple(layer.parts for layer in layers)
        parts = tuple(part for mixes in (True, False) for part in next((own for own in kinds[::-1] if _mixes(own) is mixes), ()))
    return tuple(replace(part, wide=True) for part in parts) if spec.mtp_wide else parts


def _mixes(parts: tuple[Part, ...]) -> bool | None:
    """Whether a layer attends, or mixes no tokens; None of one with a state space."""
    return None if any(part.ssm is not None for part in parts) else any(part.attention is not None for part in parts)


def _memory_tokens(spec: TransformerSpec) -> int:
    """Tokens of an encoder, a text or an image, of which layers take keys and values."""
    text = spec.diffusion.text_tokens if spec.diffusion else spec.cross_tokens
    return spec.encoder.sequence if spec.encoder else text or 0


def _norm(spec: TransformerSpec) -> int:
    """Vectors that one norm learns."""
    return spec.norm_vectors if spec.norm_vectors is not None else {"layernorm": 2, "rmsnorm": 1}[spec.norm]


def _embedding(spec: TransformerSpec) -> Part:
    """Table of words or product of patches, and all that is added to a token before the first layer."""
    rows = spec.token_types + (_norm(spec) if spec.embedding_norm else 0)
    if spec.positions == "learned":
        rows += spec.max_positions or spec.sequence
    # The first layer of each stack keeps the relative positions of all its layers; they stand here so that layers stay alike.
    stacks = 2 if spec.encoder else 1
    relative = stacks * spec.relative_buckets * spec.heads if spec.positions == "relative" else 0
    image, own, diffusion = spec.image, spec.per_layer, spec.diffusion
    further = spec.layers * own.width if own else 0  # elements that the layers look up for a token beside its vector
    over: Over = "picture" if diffusion and diffusion.joint else "tokens"
    patches = (Matrix(name="patches", k=image.values(image.channels), n=spec.hidden, bias=True, over=over),) if image else ()
    around = diffusion.embeddings(spec.hidden, _refiner(spec)) if diffusion else ()
    return Part(
        type="embedding",
        width=spec.hidden,
        matrices=(*patches, *around, *_frames(spec), *((Matrix(name="per_layer", k=spec.hidden, n=further),) if own else ())),
        table=(spec.vocabulary or 0) * spec.hidden + ((own.vocabulary or spec.vocabulary or 0) * further if own else 0),
        vectors=(rows + (1 if image and image.class_token else 0)) * spec.hidden
        + relative
        + (own.width if own else 0)
        + (spec.encoder.vectors * spec.hidden if spec.encoder else 0)
        + (diffusion.vectors(spec.hidden) if diffusion else 0),
        further=further,
    )


def _refiner(spec: TransformerSpec) -> tuple[Matrix, ...]:
    return refiner((_attention(spec, causal=False), _feed_forward(spec, routed=False)))


def _frames(spec: TransformerSpec) -> Iterator[Matrix]:
    """Convolutions that make an encoder's tokens of frames; the first sees two frames for each token, of which one is counted."""
    if spec.encoder and spec.encoder.frame:
        for k in (3 * spec.encoder.frame, 3 * spec.hidden):
            yield Matrix(name="frames", k=k, n=spec.hidden, bias=True, over="memory")


def _stack(spec: TransformerSpec, name: str, places: range, tokens: int, *, causal: bool) -> tuple[Layer, ...]:
    """Layers of an encoder or decoder, at their `places` in the model; those alike that follow each other are one group."""
    crossed = name == "decoder" or (spec.diffusion is not None and spec.diffusion.text == "cross")
    cross = (_attention(spec, causal=False, cross=True),) if crossed else ()
    listed = listed_layers(spec.wide_layers)
    groups = _groups(name, places, listed.layers, spec.kinds(len(places)))

    def parts(kind: LayerKind, wide: bool) -> tuple[Part, ...]:
        own = spec.varied(kind.variants)
        beside = (_feed_forward(own, kind.beside == "experts"),) if kind.beside else ()
        further = (_per_layer(spec),) if spec.per_layer else ()
        mixing = tuple(_mixers(own, kind, causal=causal))
        found = (*_shared(own, kind), mixing[0]) if kind.block != "none" else (*mixing, *cross, *beside, *further)
        if spec.diffusion:
            found = tuple(spec.diffusion.adapted(kind.chosen, part) for part in found)
        if spec.residual_block:  # of the blocks before it a layer has half in the mean, and its own; a query and a norm choose among them
            sources = -(-spec.layers // spec.residual_block) / 2.0 + 1.0
            found = tuple(replace(part, sources=sources, vectors=part.vectors + 2 * spec.hidden) for part in found)
        if spec.residual_streams:
            found = tuple(with_streams(part, spec.residual_streams) for part in found)
        own_types = spec.weight_dtypes  # parts without a type of their own stay the ones that other models share
        found = tuple(replace(part, stored=own_types[part.type]) if part.type in own_types else part for part in found)
        return tuple(replace(part, wide=True) if wide or part.type in listed.types else part for part in found)

    made = {kind: parts(*kind) for kind in {kind for _, _, kind in groups}}  # layers alike share their parts
    encodes = name == "encoder"
    return tuple(Layer(name=own, count=count, tokens=tokens, parts=made[kind], encodes=encodes) for own, count, kind in groups)


@functools.lru_cache(maxsize=256)
def _groups(
    name: str, places: range, wide: frozenset[int], kinds: tuple[LayerKind, ...]
) -> tuple[tuple[str, int, tuple[LayerKind, bool]], ...]:
    """Layers alike that follow each other: a name and a number, of which kind they are, and whether they stay wide."""
    each = [(kind, place in wide) for kind, place in zip(kinds, places, strict=True)]
    there = [i for i, (kind, _) in enumerate(each) if kind.mixers or kind.beside]  # others are no layers
    groups = [list(same) for _, same in itertools.groupby(there, key=each.__getitem__)]
    return tuple((name if len(groups) == 1 else _numbered(name, group), len(group), each[group[0]]) for group in groups)


def _numbered(name: str, group: Sequence[int]) -> str:
    return f"{name} {group[0]}" if len(group) == 1 else f"{name} {group[0]}-{group[-1]}"


def _mixers(spec: TransformerSpec, kind: LayerKind, *, causal: bool) -> Iterator[Part]:
    """What mixes the tokens of a layer; two side by side share a norm, the first one's."""
    if spec.ssm is not None and "ssm" in kind.mixers:
        ssm = spec.ssm
        norms = _norm(spec) * -(-spec.norms // 2)
        from crossflow.workload.rwkv import time_mixing

        mixing = time_mixing(width=spec.hidden, ssm=ssm.mixer(), bias=ssm.bias, norm_vectors=norms) if ssm.kind in SHIFTS else None
        yield mixing or state_space(width=spec.hidden, ssm=ssm.mixer(), bias=ssm.bias, conv_bias=ssm.conv_bias, norm_vectors=norms)
    if "attention" in kind.mixers:
        mixing = _attention(spec, causal=causal and not spec.cross, cross=spec.cross, chosen=kind.chosen)
        part = _seeing(spec, mixing) if spec.cross else _windowed(spec, mixing, kind.local)
        yield replace(part, vectors=part.vectors - _norm(spec) * spec.hidden) if len(kind.mixers) > 1 else part


def _shared(spec: TransformerSpec, kind: LayerKind) -> tuple[Part, ...]:
    """A layer's use of a block that others share."""
    from crossflow.workload.shared_block import shared_block

    assert spec.shared_block is not None
    return shared_block(
        width=spec.hidden, heads=spec.heads, kv_heads=spec.kv_heads, head=spec.head_dim or 2 * spec.hidden // spec.heads, inner=spec.ffn,
        gated=spec.gated, rotary=spec.positions == "rotary", norm_vectors=_norm(spec), mlp_rank=spec.shared_block.mlp_rank or 0,
        attention_rank=spec.shared_block.attention_rank or 0, holds=kind.block == "holds",
    )  # fmt: skip


def _attention(spec: TransformerSpec, *, causal: bool, cross: bool = False, chosen: str = "") -> Part:
    norms = _norm(spec) * -(-spec.norms // 2)
    sparse = spec.sparse or spec.compressed
    selection = sparse.selection(chosen) if sparse else None
    if spec.latent:
        return latent_attention(
            width=spec.hidden, heads=spec.heads, norm_vectors=norms, rotary=spec.positions == "rotary", form=form_of(spec),
            selection=selection, **spec.latent.model_dump(),
        )  # fmt: skip
    if spec.compressed and spec.query_rank:
        from crossflow.workload.compressed import compressed_attention

        part = compressed_attention(
            width=spec.hidden, heads=spec.heads, head=spec.head_dim or spec.hidden // spec.heads, query_rank=spec.query_rank,
            groups=spec.compressed.output_groups, rank=spec.compressed.output_rank, window=spec.compressed.window, selection=selection,
            norm_vectors=norms, rotary=spec.positions == "rotary",
        )  # fmt: skip
        return replace(part, vectors=part.vectors + spec.heads) if spec.attention_sinks else part
    part = self_attention(
        width=spec.hidden,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head=spec.head_dim,
        causal=causal,
        cross=cross,
        rotary=spec.positions == "rotary",
        bias=spec.biases,
        qkv_bias=spec.qkv_bias,
        norm_vectors=norms,
        form=form_of(spec),
        value=spec.value_dim,
        keys_as_values=spec.keys_as_values,
        shared_cache=spec.shared_cache,
        query_rank=spec.query_rank,
        selection=selection,
    )
    further = _qk_norm(spec, part) + (spec.heads if spec.attention_sinks else 0)
    return replace(part, vectors=part.vectors + further) if further else part


def _seeing(spec: TransformerSpec, part: Part) -> Part:
    """Attention to an image alone: queries and keys are normed and not rotated; a number weighs its output, and one that of the MLP."""
    assert part.attention is not None
    norms = 0 if spec.qk_norm else 2 * part.attention.query
    return replace(part, vectors=part.vectors + norms + 2, attention=replace(part.attention, rotary=False))


def _windowed(spec: TransformerSpec, part: Part, local: bool) -> Part:
    """The attention of a local or global layer."""
    window, attention = spec.window, part.attention
    if window is None or attention is None:
        return part
    if local:
        return replace(part, attention=replace(attention, window=window.size, chunked=window.chunked))
    return replace(part, attention=replace(attention, rotary=attention.rotary and window.global_rotary))


def _qk_norm(spec: TransformerSpec, part: Part) -> int:
    """Parameters of the norms of queries and keys."""
    attention = part.attention
    if spec.qk_norm is None or attention is None:
        return 0
    keys = 0 if spec.shared_cache else 1  # keys of another layer have their norm there
    heads = 1 + keys if spec.qk_norm == "shared" else attention.heads + keys * attention.kv_heads
    return heads * attention.query


def _per_layer(spec: TransformerSpec) -> Part:
    """What adds a token's own vector of a layer to its output: product, activation and product by the vector, product, norm."""
    assert spec.per_layer is not None
    part = mlp(width=spec.hidden, inner=spec.per_layer.width, gated=False, bias=False, norm_vectors=_norm(spec))
    return replace(part, gated=True)  # by a vector that is there


def _feed_forward(spec: TransformerSpec, routed: bool) -> Part:
    bias = spec.biases if spec.mlp_bias is None else spec.mlp_bias
    norms, limited = _norm(spec) * (spec.norms // 2), spec.gate_limit is not None
    if spec.ssm and spec.ssm.kind in SHIFTS:
        from crossflow.workload.rwkv import channel_mixing

        return channel_mixing(width=spec.hidden, inner=spec.ffn, kind=spec.ssm.kind, norm_vectors=norms)
    if not routed or spec.experts is None:
        return mlp(width=spec.hidden, inner=spec.ffn, gated=spec.gated, limited=limited, bias=bias, norm_vectors=norms)
    mixture = spec.experts
    part = experts(
        width=spec.hidden,
        inner=mixture.ffn or spec.ffn,
        gated=spec.gated,
        limited=limited,
        routing=Routing(
            experts=mixture.count,
            active=mixture.active,
            capacity=mixture.capacity,
            uneven=mixture.uneven,
            skew=mixture.skew,
            variation=mixture.variation,
            groups=mixture.groups,
            active_groups=mixture.active_groups or mixture.groups,
        ),
        shared=mixture.shared,
        latent=mixture.latent or 0,
        router_bias=mixture.router_bias,
        balance_bias=mixture.balance_bias,
        bias=bias,
        norm_vectors=norms,
    )
    return replace(part, vectors=part.vectors + (spec.hidden if mixture.shared_gate else 0))


def _head(spec: TransformerSpec) -> Part:
    """Final norms, and the products that make tokens, classes or latents of the last layer's outputs."""
    if spec.diffusion and spec.image:
        return spec.diffusion.head(spec.hidden, spec.image.values(spec.diffusion.outputs or spec.image.channels))
    masked = spec.head == "masked"
    norms = (2 if spec.encoder else 1) if spec.final_norm else 0
    vectors = (norms + masked) * _norm(spec) * spec.hidden
    head = Part(type="head", width=spec.hidden, matrices=tuple(_head_matrices(spec)), vectors=vectors)
    return joined(head, spec.residual_streams) if spec.residual_streams else head


def _head_matrices(spec: TransformerSpec) -> Iterator[Matrix]:
    width, masked = spec.hidden, spec.head == "masked"
    if spec.pooler:
        yield Matrix(name="pooler", k=width, n=width, bias=True, over="sample")
    if spec.pooler and masked:
        yield Matrix(name="next_sentence", k=width, n=2, bias=True, over="sample")
    if masked:
        yield Matrix(name="transform", k=width, n=width, bias=True)
    if spec.vocabulary and spec.head in ("language", "masked"):
        bias = masked if spec.head_bias is None else spec.head_bias
        yield Matrix(name="vocabulary", k=width, n=spec.vocabulary, cut="column", bias=bias)
    if spec.image and spec.image.classes and spec.head == "classifier":
        yield Matrix(name="classes", k=width, n=spec.image.classes, bias=True, over="sample")
