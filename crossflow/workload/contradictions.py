"""Keys of a transformer's `workload` section that do not go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crossflow.base.formats import FORMATS
from crossflow.workload.attended import FORMS, form_of
from crossflow.workload.statespace import SHIFTS

if TYPE_CHECKING:
    from crossflow.workload.spec import StateSpaceSpec, TransformerSpec


def contradictions(spec: TransformerSpec) -> Iterator[str]:
    """Sentences about keys that do not go together, each beginning with the key to mend."""
    kv_heads = spec.kv_heads or spec.heads or 1
    yield from _contradictions_of_parts(spec)
    if spec.heads and spec.head_dim is None and spec.latent is None and spec.hidden % spec.heads:
        yield f"heads: hidden = {spec.hidden} is not a multiple of heads = {spec.heads}; give head_dim"
    if spec.heads % kv_heads:
        yield f"kv_heads: heads = {spec.heads} is not a multiple of kv_heads = {kv_heads}"
    yield from _contradictions_of_sparse(spec)
    if spec.residual_block and (spec.encoder or spec.image):
        yield "residual_block: attention residuals are modelled for decoders of words only; leave it out"
    if spec.shared_cache:
        yield "shared_cache: some layers must make the keys and values that others share; give it in variants"
    if spec.latent and (spec.value_dim or spec.keys_as_values):
        yield "latent: latent attention has values of its own; leave out value_dim and keys_as_values"
    yield from _contradictions_of_outputs(spec)
    if spec.per_layer and (spec.encoder or spec.image):
        yield "per_layer: embeddings of each layer's own are modelled for decoders of words only; leave them out"
    yield from _contradictions_of_variants(spec)
    yield from _contradictions_of_cross(spec)
    if spec.latent and spec.attention_sinks:
        yield "attention_sinks: sinks are modelled without latent attention"
    if spec.latent and spec.encoder:
        yield "latent: latent attention is modelled without an encoder"
    if spec.experts and not (spec.ssm and not spec.ssm.mlp) and not spec.has("experts"):
        yield f"experts: dense_layers = {spec.experts.dense_layers} and every = {spec.experts.every} leave no layer with experts"
    apart = spec.ssm is not None and not spec.ssm.mlp
    yield from _contradictions_of_blocks(spec)
    if spec.mtp_layers and apart and not (spec.has("attention") and (spec.has("mlp") or spec.has("experts"))):
        yield "mtp_layers: a layer that predicts has attention and an MLP, and this model has not both; set mtp_layers to 0"
    for key in ("mtp_shared", "mtp_wide"):
        if getattr(spec, key) and not spec.mtp_layers:
            yield f"{key}: the model has no layers that predict further tokens; set mtp_layers, or give false"
    if spec.mtp_layers and (spec.encoder or spec.head != "language" or not spec.causal):
        yield "mtp_layers: multi-token prediction is modelled for causal decoders with a language head only; set mtp_layers to 0"
    if spec.task == "serving":
        yield from _unserved(spec)
    if spec.serving.experts is not None and spec.step == "decode":
        yield from _unpooled(spec)
    yield from _contradictions_of_adapters(spec)
    if spec.task == "training" and spec.dtype == "int8":
        yield "dtype: training in integers is not modelled; train in fp8, bf16 or fp16, or give a service's task"
    yield from _contradictions_of_types(spec)
    yield from _contradictions_of_window(spec)
    yield from _contradictions_of_diffusion(spec)
    yield from _contradictions_of_ends(spec)
    yield from _contradictions_of_length(spec)


def _contradictions_of_blocks(spec: TransformerSpec) -> Iterator[str]:
    """What a block that several layers share does not go with."""
    uses = sum(kind.block != "none" for kind in spec.kinds(spec.layers))
    if spec.shared_block is None:
        if uses:
            yield "shared_block: ssm.pattern has layers of kind shared; give it, such as {blocks: 1}"
        return
    if not uses:
        yield "shared_block: no layer uses it; name layers shared in ssm.pattern, or leave it out"
    elif spec.shared_block.blocks > uses:
        yield f"shared_block.blocks: {uses} layers do not use {spec.shared_block.blocks} blocks; lower it"
    given = [key for key in ("qk_norm", "window", "value_dim", "query_rank") if getattr(spec, key) is not None]
    given += [key for key in (*FORMS, "latent", "sparse", "variants", "biases", "encoder", "experts", "mtp_layers") if getattr(spec, key)]
    given += ["norms"] if spec.norms != 2 else []
    if given:
        yield f"{given[0]}: a shared block is modelled without it; leave it out"


def _contradictions_of_adapters(spec: TransformerSpec) -> Iterator[str]:
    """What low-rank adapters do not go with."""
    own, served = spec.adapters, spec.serving.adapters
    if served and own is None:
        yield "serving.adapters: adapters says what one of them is; give workload.adapters: {rank: 16}, or leave out serving.adapters"
    if own is None:
        return
    if served and own.base:
        yield "adapters.base: a service keeps weights in weight_dtype; leave out adapters.base"
    if served and (served.slots or 0) > served.count:
        yield f"serving.adapters.slots: there are {served.count} adapters, and slots for {served.slots}; lower it, or leave it out"
    if served and served.skew and served.count == 1:
        yield "serving.adapters.skew: there is one adapter, which all use alike; leave it out"
    if spec.frozen:
        yield "frozen: adapters leave all other weights as they are; leave it out"
    if own.base == "nf4" and FORMATS[spec.dtype].bits < 16:
        yield f"adapters.base: products of weights in nf4 are in 16 bits, and dtype is {spec.dtype}; give dtype: bf16, or base: fp8"
    if not own.double and own.base != "nf4":
        yield "adapters.double: only nf4 has scales that can be quantised once more; leave it out, or give base: nf4"
    if own.base and spec.wide_layers:
        yield "wide_layers: a base in a narrow type is modelled for all layers; leave out wide_layers or adapters.base"
    if own.joined and {"query", "key", "value"} & set(own.targets):
        yield "adapters.joined: queries, keys and values have one adapter together; give attention as target, or leave out joined"
    if len(own.targets) > 1 and "all" in own.targets:
        yield "adapters.targets: all names every matrix that takes one; leave out the others"


def _contradictions_of_sparse(spec: TransformerSpec) -> Iterator[str]:
    """Sparse and compressed attention, queries of a latent, and streams, where they are not modelled."""
    found, none = ("sparse" if spec.sparse else "compressed" if spec.compressed else ""), "leave it out"
    if spec.sparse and spec.compressed:
        yield "sparse: compressed attention has an indexer of its own; leave out sparse, or compressed"
    if found and (spec.encoder or spec.image or not spec.causal):
        yield f"{found}: an indexer is modelled for causal decoders of words only; {none}"
    if found and spec.window:
        yield f"window: {found} attention says itself what a query sees; {none}"
    if spec.compressed:
        if not spec.query_rank:
            yield "query_rank: queries of compressed attention pass a latent; give its width"
        if spec.heads % spec.compressed.output_groups:
            yield f"compressed.output_groups: {spec.heads} heads do not make {spec.compressed.output_groups} groups"
        if spec.latent:
            yield f"latent: compressed attention has a vector of its own in its place; {none}"
        own = [key for key in ("value_dim", "qk_norm", "qkv_bias") if getattr(spec, key) is not None]
        own += [key for key in (*FORMS, "keys_as_values", "variants", "biases") if getattr(spec, key)]
        if own:
            yield f"{own[0]}: compressed attention is modelled without it; {none}"
        if spec.kv_heads not in (None, 1):
            yield f"kv_heads: one vector of compressed attention is key and value of all heads, got {spec.kv_heads}; {none}"
    elif spec.query_rank and (spec.latent or spec.encoder):
        yield f"query_rank: give latent.query_rank; {none}" if spec.latent else f"query_rank: modelled without an encoder; {none}"
    if spec.residual_streams and (spec.encoder or spec.image or spec.residual_block):
        yield f"residual_streams: hyper-connections are modelled for decoders of words with a plain residual only; {none}"
    if spec.residual_streams == 1:
        yield f"residual_streams: one is a plain residual; {none}"


def _contradictions_of_outputs(spec: TransformerSpec) -> Iterator[str]:
    """Ways to treat the outputs of heads that do not go together, or with other keys."""
    form, several = form_of(spec), [key for key in FORMS if getattr(spec, key)]
    if form is None:
        return
    if len(several) > 1:
        yield f"{several[1]}: outputs of heads are treated in one way; leave out {several[1]} or {several[0]}"
    yield from (f"{form.key}: modelled without {key}; leave out one of both" for key in form.without if getattr(spec, key))
    for kind in dict.fromkeys(spec.kinds(spec.layers)):
        here = spec.varied(kind.variants)
        odd = [n for n in (here.heads, here.kv_heads or here.heads) if n % form.together]
        if "attention" in kind.mixers and odd:
            yield f"{form.key}: heads and kv_heads come in groups of {form.together}, got {odd[0]}"


def _contradictions_of_variants(spec: TransformerSpec) -> Iterator[str]:
    """Layers with dimensions of their own that are not there, or whose dimensions do not fit."""
    if not spec.variants:
        return
    if spec.encoder or spec.image:
        yield "variants: layers of their own dimensions are modelled for decoders of words only; leave them out"
    kinds = spec.kinds(spec.layers)
    for i, variant in enumerate(spec.variants):
        numbers = variant.cuts[0]
        if numbers and max(numbers) >= spec.layers:
            yield f"variants.{i}.layers: layer {max(numbers)} is not one of the model's layers 0-{spec.layers - 1}"
        elif not any(i in kind.variants for kind in kinds):
            yield f"variants.{i}.layers: the model has no layer that is {' or '.join(variant.layers)}"
        if not variant.experts and (spec.experts is None or not spec.ffn):
            yield f"variants.{i}.experts: without `experts` and an `ffn` of the model no layer keeps an MLP in their place; leave it out"
        own = sorted(set(variant.own) - {"ffn"})
        if spec.latent and own:
            yield f"variants.{i}: layers of latent attention have dimensions alike; leave out {', '.join(own)}"
    for kind in dict.fromkeys(kinds):
        here = spec.varied(kind.variants)
        heads = here.kv_heads or here.heads or 1
        if "attention" in kind.mixers and here.heads % heads:
            yield f"variants: heads = {here.heads} is not a multiple of kv_heads = {heads}"
    if spec.mtp_layers and kinds[-1].mixers == ():
        yield "mtp_layers: the last layer, which further tokens are predicted as, mixes no tokens; set mtp_layers to 0"


def _contradictions_of_cross(spec: TransformerSpec) -> Iterator[str]:
    """Layers that attend to an image alone: what they need, and where they are not modelled."""
    crossing = any(variant.cross for variant in spec.variants)
    if spec.cross:
        yield "cross: other layers must read the words; give it in variants"
    if crossing != (spec.cross_tokens is not None):
        yield "cross_tokens: layers with cross attend to them; give it" if crossing else "cross_tokens: no layer has cross; leave it out"
    if not crossing:
        return
    none = [key for key in ("latent", "sparse", "compressed", "window", "ssm", "query_rank") if getattr(spec, key)]
    none += [key for key in (*FORMS, "keys_as_values", "attention_sinks", "mtp_layers") if getattr(spec, key)]
    yield from (f"{key}: layers with cross are modelled without it; leave it out" for key in none)
    if spec.task == "serving":
        yield "task: serving is modelled without layers with cross; predict this model with task: prefill and task: decode"


def _unserved(spec: TransformerSpec) -> Iterator[str]:
    """What a service in steady state lacks, or cannot have."""
    if (spec.output or 0) <= 1:
        yield "output: a service in steady state writes at least 2 tokens for a request; give output, or task: prefill"
    if spec.encoder:
        yield "task: serving is supported for decoders without an encoder only; predict this model with task: prefill and task: decode"
    images = spec.serving.images
    if images is not None and images.count * images.each > spec.tokens:
        asked = f"count x tokens = {images.count:g} x {images.each} are more than the {spec.tokens} tokens of a prompt, which counts them"
        yield f"serving.images: {asked}; give a longer prompt, or fewer images"
    if spec.serving.prefill and spec.serving.chunk:
        yield "serving.chunk: workers of their own read whole prompts; leave out chunk, or prefill"


def _unpooled(spec: TransformerSpec) -> Iterator[str]:
    """Why the experts of a model that writes tokens cannot lie on devices of their own."""
    place = "serving.experts"
    if spec.task == "serving" and spec.serving.prefill is None:
        yield f"{place}: attention and experts that lie apart write tokens only; give serving.prefill, whose workers read the prompts"
    if spec.serving.speculation is not None and spec.serving.speculation.draft is not None:
        yield f"{place}: a draft model guesses on devices that hold all of a model; leave speculation.draft out, or give its cost"
    if spec.encoder or any(variant.cross for variant in spec.variants):
        yield f"{place}: experts lie apart in decoders of words only; leave it out"
    if spec.adapters is not None:
        yield f"{place}: adapters work beside matrices on the same devices; leave one of both out"


def _lacking(spec: TransformerSpec, key: str) -> str:
    return f"{key}: expected at least 1, got 0" if key in spec.model_fields_set else f"the key '{key}' is missing"


def _contradictions_of_parts(spec: TransformerSpec) -> Iterator[str]:
    """Parts without dimensions, dimensions without parts, and state spaces where they are not modelled."""
    if spec.has("attention") and not spec.heads:
        yield f"{_lacking(spec, 'heads')}; only a model without attention has none"
    if not spec.ffn and (spec.has("mlp") or (spec.experts and not spec.experts.ffn)):
        yield f"{_lacking(spec, 'ffn')}; only a model without MLPs has none"
    ssm = spec.ssm
    if ssm is None:
        return
    if spec.heads and not spec.has("attention"):
        yield "heads: no layer has attention; leave it out"
    if spec.ffn and not (spec.has("mlp") or spec.has("experts")):
        yield "ffn: no layer has an MLP; leave it out"
    if spec.encoder or spec.image or not spec.causal:
        yield "ssm: state-space layers are modelled for causal decoders of words without an encoder only; leave it out"
    if ssm.state_dtype and not spec.serves:
        yield f"ssm.state_dtype: only a service keeps states, task is {spec.task}; leave it out, or give task: prefill or decode"
    if not ssm.mlp:
        yield from _contradictions_of_single_parts(spec, ssm)
    if ssm.kind in SHIFTS:
        if spec.experts or spec.gated or spec.biases or spec.mlp_bias:
            key = next(key for key in ("experts", "gated", "biases", "mlp_bias") if getattr(spec, key))
            yield f"{key}: channel mixing of {ssm.kind} has none; {'give gated: false' if key == 'gated' else 'leave it out'}"
        if ssm.heads * ssm.head_dim != spec.hidden:
            yield f"ssm.heads: {ssm.heads} heads of {ssm.head_dim} do not make the {spec.hidden} elements of a token, as in {ssm.kind}"


def _contradictions_of_single_parts(spec: TransformerSpec, ssm: StateSpaceSpec) -> Iterator[str]:
    """What does not go together where a layer has one part, so that the pattern says which has experts."""
    if spec.has("experts") and spec.experts is None:
        yield "ssm.pattern: some layers are experts; give `experts`"
    if spec.experts and not spec.has("experts"):
        yield "experts: ssm.pattern makes no layer one of experts; leave it out"
    if spec.experts and (spec.experts.dense_layers, spec.experts.every) != (0, 1):
        yield "experts: where ssm.mlp is false the pattern says which layers have experts; leave out dense_layers and every"
    if "both" in ssm.pattern:
        yield "ssm.pattern: a layer with both mixers is modelled with an MLP only; set ssm.mlp to true"


def _contradictions_of_types(spec: TransformerSpec) -> Iterator[str]:
    weight, bits = spec.weight_dtype, FORMATS[spec.dtype].bits
    if weight and spec.task == "training":
        yield "weight_dtype: training keeps weights as its software does; leave it out, or give a service's task"
    elif spec.weight_dtypes:
        yield from _contradictions_of_stored(spec)
    if spec.task != "training" and weight and weight != spec.dtype and FORMATS[weight].bits >= bits:
        yield f"weight_dtype: products in {spec.dtype} read weights in {spec.dtype} or in a type of fewer bits, got {weight}"
    if spec.weight_sparsity:
        yield from _contradictions_of_sparsity(spec)
    if spec.kv_dtype and not spec.serves:
        yield f"kv_dtype: only a service keeps keys and values, task is {spec.task}; leave it out, or give task: prefill or decode"
    elif spec.kv_dtype and not spec.has("attention"):
        yield "kv_dtype: no layer has attention, which keeps keys and values; leave it out"
    elif spec.kv_dtype and not spec.writes:
        yield "kv_dtype: only a causal decoder with a language head keeps keys and values; leave it out"
    if spec.wide_layers and min(bits, FORMATS[weight or spec.dtype].bits) >= 16:
        yield f"wide_layers: no layer is narrower than 16 bits where dtype is {spec.dtype}; leave it out"
    ends = [entry for entry in spec.wide_layers if entry in ("embedding", "head")]
    if ends:
        yield f"wide_layers: {ends[0]} always stays in 16 bits; leave it out"


def _contradictions_of_sparsity(spec: TransformerSpec) -> Iterator[str]:
    """2:4 sparsity of weights where nothing is known of it."""
    if spec.task == "training":
        yield "weight_sparsity: training with 2:4 sparsity is not modelled; leave it out, or give another task"
    if spec.experts is not None:
        yield "weight_sparsity: no library multiplies experts whose weights have 2:4 sparsity; leave it out, or experts"


def _contradictions_of_stored(spec: TransformerSpec) -> Iterator[str]:
    """Types of weights of layer types that are not there, or that products cannot read."""
    if spec.task in ("training", "forward"):
        yield f"weight_dtypes: only a service keeps weights in types of their own, task is {spec.task}; leave it out"
    for kind, stored in spec.weight_dtypes.items():
        if kind in ("embedding", "head") or not spec.has(kind):
            why = "they stay in 16 bits" if kind in ("embedding", "head") else f"no layer is of type {kind}"
            yield f"weight_dtypes: {why}; leave out {kind}"
        elif kind in spec.wide_layers:
            yield f"weight_dtypes: {kind} stays in 16 bits by wide_layers; leave it out of one of them"
        elif stored != spec.dtype and FORMATS[stored].bits > FORMATS[spec.dtype].bits:
            yield f"weight_dtypes: products in {spec.dtype} read weights in {spec.dtype} or in a type of fewer bits, got {stored} of {kind}"


def _contradictions_of_window(spec: TransformerSpec) -> Iterator[str]:
    window = spec.window
    if window is None:
        return
    if spec.encoder:
        yield "window: windows are supported for models without an encoder before the layers only; leave it out"
    if window.chunked and not spec.causal:
        yield "window.chunked: chunks are modelled for causal decoders only; leave it out"
    if not any(kind.local for kind in spec.kinds(spec.layers)):
        yield f"window: the pattern makes none of {spec.layers} layers local; leave it out"
    if not window.global_rotary and spec.positions != "rotary":
        yield f"window: global_rotary = false needs positions: rotary, got {spec.positions}"


def _contradictions_of_diffusion(spec: TransformerSpec) -> Iterator[str]:
    """What a diffusion transformer needs, and where it is not modelled."""
    own = spec.diffusion
    if (spec.head == "latents") != (own is not None):
        yield "head: a diffusion transformer gives latents; give head: latents" if own else "head: latents are given with `diffusion` only"
    if own is None:
        return
    if spec.image is None:
        yield "diffusion: it takes patches of a picture; give image"
    if spec.causal:
        yield "causal: every patch sees all others; give causal: false"
    if spec.serves:
        yield f"task: a diffusion transformer has no requests, got {spec.task}; give task: forward, a denoising step of the batch"
    none = [key for key in ("experts", "latent", "window", "encoder", "query_rank") if getattr(spec, key)]
    none += [key for key in (*FORMS, "keys_as_values", "parallel", "embedding_norm") if getattr(spec, key)]
    yield from (f"{key}: diffusion transformers are modelled without it; leave it out" for key in none)
    if spec.norms not in (2, 4):
        yield f"norms: parts of a diffusion transformer have a norm each, or one before and one behind, got {spec.norms}; give 2 or 4"
    if not spec.final_norm:
        yield "final_norm: a norm with shift and scale follows the last layer; leave it out"
    if own.picture_layers >= spec.layers:
        yield f"diffusion.picture_layers: {own.picture_layers} of {spec.layers} layers leave none that see the text; give fewer"
    if own.single_layers >= spec.layers:
        yield f"diffusion.single_layers: {own.single_layers} of {spec.layers} layers leave none with streams; give fewer"
    if spec.image and spec.image.class_token:
        yield "image.class_token: a diffusion transformer has none; give false"
    if spec.image and spec.image.classes:
        yield "image.classes: a diffusion transformer takes classes; give diffusion.classes"


def _contradictions_of_ends(spec: TransformerSpec) -> Iterator[str]:
    if spec.image and spec.vocabulary:
        yield f"vocabulary: a model of images has none, got {spec.vocabulary}"
    if spec.image and spec.encoder:
        yield "image: images are modelled without an encoder before the layers"
    if not spec.image and not spec.vocabulary:
        yield "the key 'vocabulary' is missing; only a model with `image` has none"
    if spec.image and spec.head in ("language", "masked"):
        yield f"head: a {spec.head} head needs a vocabulary; a model of images has the head classifier or none"
    if spec.head == "classifier" and not (spec.image and spec.image.classes):
        yield "head: a classifier needs `image` with its `classes`"
    if spec.pooler and spec.diffusion:
        yield "pooler: a diffusion transformer has none; leave it out"
    if spec.step == "decode" and not spec.writes:
        kind = "a model of images" if spec.image else "a model without a causal decoder and a language head"
        yield f"task: {kind} writes no tokens; {spec.task} needs one that does; `prefill` is its forward pass"


def _contradictions_of_length(spec: TransformerSpec) -> Iterator[str]:
    if spec.image and spec.sequence != spec.image.tokens:
        yield f"sequence: an image has {spec.image.tokens} tokens, got sequence = {spec.sequence}; leave it out"
    rows = spec.max_positions or spec.sequence
    longest = max(spec.sequence, (spec.prompt or 0) + (spec.output or 0))
    if spec.positions == "learned" and longest > rows:
        yield f"max_positions: {longest} tokens need as many learned positions, there are {rows}"
