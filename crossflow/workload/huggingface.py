"""Reading a model's ``config.json``, as Hugging Face keeps it, into the keys of a transformer's file; offline.

What a family of models calls its dimensions, and what holds for all of it, is data: one `Family` each. A file whose
family is not known, or that sets a switch that is not modelled, is an error that says what was read; every field of a
file that is read comes back with what became of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crossflow import files
from crossflow.errors import Problem, SpecError, with_article
from crossflow.files import Document, Place
from crossflow.workload.spec import TransformerSpec

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FieldUse:
    """One field of a file, and what it became: our keys with their values, or why it is not used."""

    key: str
    value: Any
    became: str


@dataclass(frozen=True, kw_only=True)
class Family:
    """How the files of one `model_type` are read; what stands later here wins over what stands earlier.

    Attributes
    ----------
    fixed : our keys that are the same for the family, or that hold where its files say nothing.
    names : our key -> fields that may hold it, of which the first in the file counts.
    products : our key -> numbers, keys of ours and fields whose product it is where the file does not name it.
    shifts : our key -> the key of ours that it is read from, and what is added.
    rules : fields with their values -> our keys that follow from all of them together.
    assumed : values of fields in `products` and `rules` that a file leaves out.
    demanded : field -> the values that are modelled.
    equal : field -> the field that it must equal.
    listed : field that lists layers -> our key; the list must be each of so many layers as the key says.
    last : field that says which of so many layers as our key says is another; it must be the last of them.
    window : field that holds the size of a window of attention; `local` are our keys that hold where there is one.
    mixers : fields that say what mixes the tokens of each layer, attention or a state space, of which the first in the file counts.
    heads : endings of architectures that are modelled, the usual one first.
    nested : fields that are mappings and whose own fields are named ``outer.inner`` above.
    """

    fixed: Values = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    products: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    shifts: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    rules: tuple[tuple[Values, Values], ...] = ()
    assumed: Values = field(default_factory=dict)
    demanded: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    equal: Mapping[str, str] = field(default_factory=dict)
    listed: Mapping[str, str] = field(default_factory=dict)
    last: Mapping[str, str] = field(default_factory=dict)
    window: str = ""
    local: Values = field(default_factory=dict)
    mixers: tuple[str, ...] = ()
    heads: tuple[str, ...] = ("ForCausalLM", "LMHeadModel", "Model")
    nested: tuple[str, ...] = ()

    def but(self, **changes: Any) -> Family:
        """The family with some of its mappings and tuples extended; a name given as () is dropped."""
        extended: dict[str, Any] = {}
        for key, value in changes.items():
            old = getattr(self, key)
            extended[key] = (
                {**old, **value} if isinstance(value, dict) else value if key in ("heads", "window", "mixers") else (*old, *value)
            )
        names = {key: aliases for key, aliases in extended.get("names", self.names).items() if aliases}
        return replace(self, **{**extended, "names": names})


# ---------------------------------------------------------------------------------------------- the families

NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff"),
    "vocabulary": ("vocab_size",),
    "sequence": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "tied_embeddings": ("tie_word_embeddings",),
    "title": ("_name_or_path",),
}
# Our keys that a file may leave out: what its family fixes, or what a transformer's file leaves out, then holds.
OPTIONAL = frozenset({
    "kv_heads", "head_dim", "tied_embeddings", "title", "biases", "qkv_bias", "mlp_bias", "head_bias", "token_types", "relative_buckets",
    "mtp_layers", "latent.query_rank", "ssm.head_dim", "ssm.groups", "ssm.chunk", "ssm.conv", "ssm.conv_bias", "ssm.bias", "ssm.norm",
    "ssm.step_rank", "experts.shared", "experts.dense_layers", "experts.every", "image.channels", "image.classes",
})  # fmt: skip
BOOLEAN = frozenset({"tied_embeddings", "biases", "qkv_bias", "mlp_bias", "head_bias", "ssm.conv_bias", "ssm.bias", "ssm.norm"})
FROM_ZERO = frozenset({"token_types", "mtp_layers", "experts.count", "experts.shared", "experts.dense_layers"})

DTYPES: tuple[tuple[Values, Values], ...] = tuple(
    ({name: theirs}, {"dtype": ours})
    for name in ("torch_dtype", "dtype")
    for theirs, ours in (("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32"))
)
DROPOUT = frozenset({
    "activation_dropout", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "dropout", "dropout_rate", "embd_pdrop",
    "embedding_dropout", "hidden_dropout", "hidden_dropout_prob", "resid_pdrop", "residual_dropout",
})  # fmt: skip

_BASE = Family(
    names=NAMES,
    fixed={"positions": "rotary", "tied_embeddings": False, "biases": False, "gated": True, "norm": "rmsnorm"},
)
_LLAMA = _BASE.but(names={"biases": ("attention_bias",), "mlp_bias": ("mlp_bias",)}, fixed={"mlp_bias": False})
_PLAIN = _BASE.but(fixed={"gated": False, "norm": "layernorm"})  # an MLP of two matrices and layer norms
_LEARNED = _PLAIN.but(fixed={"positions": "learned", "biases": True, "tied_embeddings": True}, shifts={"max_positions": ("sequence", 0)})
_SLIDING = {"window": "sliding_window"}
_QWEN_SLIDING: dict[str, Any] = {**_SLIDING, "assumed": {"use_sliding_window": False, "max_window_layers": 28}}
_QWEN2 = _BASE.but(fixed={"qkv_bias": True}, **_QWEN_SLIDING)
_GLM = _BASE.but(names={"qkv_bias": ("attention_bias",)})
_QWEN3 = _LLAMA.but(fixed={"qk_norm": "shared"}, **_QWEN_SLIDING)
_EXPERTS = {"experts.active": ("num_experts_per_tok",), "experts.ffn": ("moe_intermediate_size",)}
_LOCAL_EXPERTS = {"experts.count": ("num_local_experts",), "experts.active": ("num_experts_per_tok",)}
_QWEN_EXPERTS: dict[str, Any] = {
    "names": {**_EXPERTS, "experts.count": ("num_experts",), "experts.every": ("decoder_sparse_step",)},
    "demanded": {"mlp_only_layers": ([],)},
}
_DEEPSEEK = _BASE.but(
    names={
        **_EXPERTS,
        "experts.count": ("n_routed_experts",),
        "experts.dense_layers": ("first_k_dense_replace",),
        "latent.query_rank": ("q_lora_rank",),
        "latent.kv_rank": ("kv_lora_rank",),
        "latent.nope": ("qk_nope_head_dim",),
        "latent.rope": ("qk_rope_head_dim",),
        "latent.value": ("v_head_dim",),
        "kv_heads": (),
        "head_dim": (),
    },
    products={"experts.shared": ("n_shared_experts", "experts.ffn")},
    demanded={"attention_bias": (False,), "moe_layer_freq": (1,)},
)
_MTP = {"mtp_layers": ("num_nextn_predict_layers",)}
_DEEPSEEK_V3 = _DEEPSEEK.but(fixed={"experts.router_bias": True}, names=_MTP)
_SEES = ("ForConditionalGeneration", "ForCausalLM", "Model")  # heads of models that take images: their language part is read
_BERT = _LEARNED.but(
    names={"token_types": ("type_vocab_size",), "kv_heads": (), "head_dim": ()},
    fixed={"causal": False, "final_norm": False, "embedding_norm": True},
    demanded={"position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False,)},
    heads=("ForMaskedLM", "ForPreTraining", "Model"),
)

_UNATTENDED = dict.fromkeys(("heads", "kv_heads", "head_dim", "ffn"), ())  # what a model of state spaces alone does not have
_STATES = {
    "ssm.heads": ("mamba_n_heads",), "ssm.head_dim": ("mamba_d_head",), "ssm.groups": ("mamba_n_groups",), "ssm.state": ("mamba_d_state",),
    "ssm.chunk": ("mamba_chunk_size",), "ssm.conv": ("mamba_d_conv",), "ssm.conv_bias": ("mamba_conv_bias",),
    "ssm.bias": ("mamba_proj_bias",),
}  # fmt: skip
# The fused convolution of a mixer (causal_conv1d, https://github.com/Dao-AILab/causal-conv1d) takes no other activation.
_SILU = {"hidden_act": ("silu", "swish")}
_HYBRID = _LLAMA.but(names=_STATES, fixed={"ssm.kind": "mamba2"}, demanded=_SILU)
_MAMBA = _BASE.but(
    demanded=_SILU,
    fixed={"positions": "none", "ssm.kind": "mamba1", "ssm.mlp": False, "ssm.norm": False, "sequence": 2048},
    names={
        **_UNATTENDED,
        "ssm.heads": ("intermediate_size",),
        "ssm.state": ("state_size",),
        "ssm.step_rank": ("time_step_rank",),
        "ssm.conv": ("conv_kernel",),
        "ssm.conv_bias": ("use_conv_bias",),
        "ssm.bias": ("use_bias",),
    },
    products={"ssm.heads": ("expand", "hidden")},
    assumed={"expand": 2},
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": _BASE.but(**_SLIDING, assumed={"sliding_window": 4096}),
    "mixtral": _BASE.but(**_SLIDING, names=_LOCAL_EXPERTS),
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2.but(**_QWEN_EXPERTS, fixed={"experts.shared_gate": True}).but(
        names={"experts.shared": ("shared_expert_intermediate_size",), "qkv_bias": ("qkv_bias",)}
    ),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3.but(**_QWEN_EXPERTS),
    "gpt2": _LEARNED.but(products={"ffn": (4, "hidden")}, demanded={"add_cross_attention": (False,)}),
    "gpt_neox": _PLAIN.but(
        fixed={"biases": True, "mlp_bias": True, "parallel": True},
        names={"biases": ("attention_bias",)},
        rules=(({"use_parallel_residual": True}, {"parallel": True}), ({"use_parallel_residual": False}, {"parallel": False})),
    ),
    "gptj": _PLAIN.but(fixed={"mlp_bias": True, "head_bias": True, "parallel": True, "norms": 1}, products={"ffn": (4, "hidden")}),
    "opt": _LEARNED.but(
        shifts={"max_positions": ("sequence", 2)},  # the first two rows stand for nothing
        rules=(({"enable_bias": False}, {"biases": False}), ({"layer_norm_elementwise_affine": False}, {"norm_vectors": 0})),
        demanded={"do_layer_norm_before": (True,), "_remove_final_layer_norm": (False,)},
        equal={"word_embed_proj_dim": "hidden_size"},
    ),
    "bloom": _PLAIN.but(
        fixed={"positions": "alibi", "biases": True, "tied_embeddings": True, "embedding_norm": True, "sequence": 2048},
        products={"ffn": (4, "hidden")},
        names={"kv_heads": (), "head_dim": ()},
    ),
    "mpt": _PLAIN.but(
        fixed={"tied_embeddings": True},
        names={"kv_heads": ("attn_config.kv_n_heads",), "ffn": ("ffn_config.ffn_hidden_size",)},
        products={"ffn": ("expansion_ratio", "hidden")},
        shifts={"max_positions": ("sequence", 0)},
        rules=(
            ({"no_bias": True}, {"biases": False, "norm_vectors": 1}),
            ({"no_bias": False}, {"biases": True}),
            ({"learned_pos_emb": True}, {"positions": "learned"}),
            ({"learned_pos_emb": False}, {"positions": "none"}),
            ({"attn_config.alibi": True}, {"positions": "alibi"}),
            ({"attn_config.rope": True}, {"positions": "rotary"}),
            ({"attn_config.attn_type": "multiquery_attention"}, {"kv_heads": 1}),
            ({"ffn_config.ffn_type": "mptglu"}, {"gated": True}),
        ),
        assumed={"expansion_ratio": 4, "no_bias": False, "learned_pos_emb": True},
        demanded={"attn_config.qk_ln": (False,), "ffn_config.ffn_type": ("mptmlp", "mptglu"), "attn_config.prefix_lm": (False,)},
        nested=("attn_config", "ffn_config"),
    ),
    "falcon": _PLAIN.but(
        fixed={"tied_embeddings": True, "sequence": 2048},
        products={"ffn": (4, "hidden")},
        names={"biases": ("bias",)},
        rules=(
            ({"parallel_attn": True}, {"parallel": True, "norms": 1}),
            ({"parallel_attn": False}, {"parallel": False}),
            ({"new_decoder_architecture": True}, {"parallel": True, "norms": 2}),
            ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, {"norms": 1}),
            ({"new_decoder_architecture": False, "multi_query": True}, {"kv_heads": 1}),
            ({"alibi": True}, {"positions": "alibi"}),
            ({"alibi": False}, {"positions": "rotary"}),
        ),
        assumed={"parallel_attn": True, "new_decoder_architecture": False, "multi_query": True},
    ),
    "phi": _PLAIN.but(fixed={"biases": True, "head_bias": True, "parallel": True, "norms": 1}, demanded={"qk_layernorm": (False,)}),
    "phi3": _BASE.but(**_SLIDING, demanded={"attention_bias": (False,)}),
    "gemma": _LLAMA.but(fixed={"tied_embeddings": True}),
    "gemma2": _LLAMA.but(
        **_SLIDING, fixed={"tied_embeddings": True, "norms": 4}, assumed={"sliding_window": 4096, "sliding_window_pattern": 2}
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK_V3,
    "bert": _BERT,
    "roberta": _BERT.but(
        names={"max_positions": ("max_position_embeddings",), "sequence": ()},
        shifts={"max_positions": ("max_positions", 0), "sequence": ("max_positions", -2)},  # two rows stand for nothing
    ),
    "t5": _BASE.but(
        fixed={"positions": "relative", "gated": False, "tied_embeddings": True, "sequence": 512, "encoder.sequence": 512},
        names={
            "layers": ("num_decoder_layers", "num_layers"),
            "encoder.layers": ("num_layers",),
            "encoder.sequence": ("n_positions",),
            "head_dim": ("d_kv",),
            "kv_heads": (),
            "relative_buckets": ("relative_attention_num_buckets",),
        },
        rules=tuple(({"feed_forward_proj": f"gated-{kind}"}, {"gated": True}) for kind in ("gelu", "silu")),
        demanded={"feed_forward_proj": ("relu", "gelu", "gated-gelu", "gated-silu")},
        heads=("ForConditionalGeneration", "LMHeadModel"),
    ),
    "vit": _PLAIN.but(
        fixed={"positions": "learned", "biases": True, "causal": False},
        names={
            "image.size": ("image_size",),
            "image.patch": ("patch_size",),
            "image.channels": ("num_channels",),
            "image.classes": ("id2label", "num_labels"),
            "qkv_bias": ("qkv_bias",),
            **dict.fromkeys(("vocabulary", "sequence", "kv_heads", "head_dim", "tied_embeddings"), ()),
        },
        heads=("ForImageClassification", "Model"),
    ),
    "cohere": _PLAIN.but(
        fixed={"gated": True, "tied_embeddings": True, "norm_vectors": 1, "parallel": True, "norms": 1, "mlp_bias": False},
        names={"biases": ("attention_bias",)},
        rules=(({"use_qk_norm": True}, {"qk_norm": "per-head"}), ({"use_qk_norm": False}, {})),
    ),
    "ernie4_5": _BASE.but(fixed={"tied_embeddings": True}, names={"biases": ("use_bias",)}),
    "glm": _GLM,
    "glm4": _GLM.but(fixed={"norms": 4}),
    "glm4_moe": _GLM.but(
        fixed={"experts.router_bias": True},
        names={**_EXPERTS, **_MTP, "experts.count": ("n_routed_experts",), "experts.dense_layers": ("first_k_dense_replace",)},
        products={"experts.shared": ("n_shared_experts", "experts.ffn")},
        rules=(({"use_qk_norm": True}, {"qk_norm": "shared"}), ({"use_qk_norm": False}, {})),
    ),
    "granite": _LLAMA,
    "granitemoe": _LLAMA.but(names=_LOCAL_EXPERTS),
    "internlm2": _BASE.but(fixed={"mlp_bias": False}, names={"biases": ("bias",)}),
    "internlm3": _BASE.but(names={"biases": ("bias",), "qkv_bias": ("qkv_bias",)}),
    "kimi_k2": _DEEPSEEK_V3,
    "olmo2": _LLAMA.but(fixed={"qk_norm": "per-head"}),  # a norm over all heads has as many parameters as one of each
    "phimoe": _PLAIN.but(
        fixed={"gated": True, "mlp_bias": False},
        names={**_LOCAL_EXPERTS, "biases": ("attention_bias",), "head_bias": ("lm_head_bias",)},
    ),
    "qwen2_vl": _QWEN2.but(heads=_SEES),
    "qwen2_5_vl": _QWEN2.but(heads=_SEES),
    "qwen3_vl": _QWEN3.but(heads=_SEES),
    "qwen3_vl_moe": _QWEN3.but(**_QWEN_EXPERTS, heads=_SEES),
    "seed_oss": _LLAMA.but(fixed={"qkv_bias": True}, names={"qkv_bias": ("attention_bias",), "biases": ("attention_out_bias",)}),
    "stablelm": _PLAIN.but(
        fixed={"gated": True},
        names={"qkv_bias": ("use_qkv_bias",)},
        demanded={"qk_layernorm": (False,), "use_parallel_residual": (False,)},
    ),
    "olmo": _LLAMA.but(fixed={"norm": "layernorm", "norm_vectors": 0}),
    "starcoder2": _PLAIN.but(
        **_SLIDING,
        fixed={"biases": True, "tied_embeddings": True},
        names={"biases": ("use_bias",)},
        demanded={"mlp_type": ("default",), "norm_type": ("layer_norm",)},
    ),
    "gemma3_text": _LLAMA.but(
        **_SLIDING,
        fixed={
            "tied_embeddings": True,
            "norms": 4,
            "qk_norm": "shared",
            "heads": 8,
            "kv_heads": 4,
            "head_dim": 256,
            "vocabulary": 262208,
            "sequence": 131072,
        },
        assumed={"sliding_window": 4096, "sliding_window_pattern": 6},
        demanded={"use_bidirectional_attention": (False,)},
    ),
    "gpt_oss": _BASE.but(
        **_SLIDING,
        fixed={"biases": True, "mlp_bias": True, "experts.router_bias": True, "attention_sinks": True},
        names={
            "biases": ("attention_bias",),
            "experts.count": ("num_local_experts",),
            "experts.active": ("num_experts_per_tok", "experts_per_token"),
        },
        assumed={"sliding_window": 128, "sliding_window_pattern": 2},
    ),
    "llama4_text": _LLAMA.but(
        window="attention_chunk_size",
        local={"window.chunked": True, "window.global_rotary": False},
        names={
            "ffn": ("intermediate_size_mlp",),
            "experts.ffn": ("intermediate_size",),
            "experts.count": ("num_local_experts",),
            "experts.active": ("num_experts_per_tok",),
            "experts.every": ("interleave_moe_layer_step",),
        },
        shifts={"experts.shared": ("experts.ffn", 0)},
        assumed={"attention_chunk_size": 8192, "no_rope_layer_interval": 4},
        listed={"moe_layers": "experts.every"},
    ),
    "mamba": _MAMBA.but(fixed={"tied_embeddings": True}),
    "falcon_mamba": _MAMBA,
    "mamba2": _BASE.but(
        demanded=_SILU,
        fixed={"positions": "none", "ssm.kind": "mamba2", "ssm.mlp": False, "sequence": 2048},
        names={
            **_UNATTENDED,
            "ssm.heads": ("num_heads",),
            "ssm.head_dim": ("head_dim",),
            "ssm.groups": ("n_groups",),
            "ssm.state": ("state_size",),
            "ssm.chunk": ("chunk_size",),
            "ssm.conv": ("conv_kernel",),
            "ssm.conv_bias": ("use_conv_bias",),
            "ssm.bias": ("use_bias",),
        },
    ),
    "bamba": _HYBRID.but(mixers=("attn_layer_indices",)),
    "granitemoehybrid": _HYBRID.but(
        mixers=("layer_types", "layers_block_type"),
        fixed={"positions": "none"},
        names={**_LOCAL_EXPERTS, "experts.shared": ("shared_intermediate_size",)},
        rules=(({"position_embedding_type": "rope"}, {"positions": "rotary"}),),
    ),
    "falcon_h1": _HYBRID.but(
        fixed={"ssm.pattern": ["both"], "ssm.norm": False}, names={"ssm.norm": ("mamba_rms_norm",)}, demanded={"projectors_bias": (False,)}
    ),
    "nemotron_h": _BASE.but(
        mixers=("hybrid_override_pattern", "layers_block_type", "layer_types"),
        fixed={"positions": "none", "gated": False, "mlp_bias": False, "ssm.kind": "mamba2", "ssm.mlp": False, "experts.router_bias": True},
        names={
            **_EXPERTS,
            "head_dim": ("attention_head_dim", "head_dim"),
            "biases": ("attention_bias",),
            "mlp_bias": ("mlp_bias",),
            "experts.count": ("n_routed_experts",),
            "experts.shared": ("moe_shared_expert_intermediate_size",),
            "ssm.heads": ("mamba_num_heads",),
            "ssm.head_dim": ("mamba_head_dim",),
            "ssm.groups": ("n_groups",),
            "ssm.state": ("ssm_state_size",),
            "ssm.chunk": ("chunk_size",),
            "ssm.conv": ("conv_kernel",),
            "ssm.conv_bias": ("use_conv_bias",),
            "ssm.bias": ("use_bias",),
        },
        rules=(({"mamba_ssm_cache_dtype": "float32"}, {"ssm.state_dtype": "fp32"}),),
        demanded={
            "sliding_window": (None,),
            "moe_latent_size": (None,),
            "mamba_proj_bias": (False,),
            "mamba_hidden_act": _SILU["hidden_act"],
        },
    ),
    "jamba": _BASE.but(
        mixers=("attn_layer_period",),
        fixed={"positions": "none", "ssm.kind": "mamba1", "experts.every": 2},
        names={
            "experts.count": ("num_experts",),
            "experts.active": ("num_experts_per_tok",),
            "experts.every": ("expert_layer_period",),
            "ssm.state": ("mamba_d_state",),
            "ssm.step_rank": ("mamba_dt_rank",),
            "ssm.conv": ("mamba_d_conv",),
            "ssm.conv_bias": ("mamba_conv_bias",),
            "ssm.bias": ("mamba_proj_bias",),
        },
        products={"ssm.heads": ("mamba_expand", "hidden")},
        assumed={"mamba_expand": 2, "attn_layer_period": 8, "attn_layer_offset": 4},
        demanded={**_SILU, "sliding_window": (None,)},
        last={"expert_layer_offset": "experts.every"},
    ),
    "qwen3_next": _LLAMA.but(
        mixers=("layer_types", "full_attention_interval"),
        fixed={
            "qk_norm": "shared", "attention_gate": True, "experts.shared_gate": True, "ssm.kind": "gated_delta", "ssm.conv_bias": False,
        },
        names={
            **_EXPERTS,
            "experts.count": ("num_experts",),
            "experts.every": ("decoder_sparse_step",),
            "experts.shared": ("shared_expert_intermediate_size",),
            "ssm.heads": ("linear_num_value_heads",),
            "ssm.head_dim": ("linear_value_head_dim",),
            "ssm.groups": ("linear_num_key_heads",),
            "ssm.state": ("linear_key_head_dim",),
            "ssm.conv": ("linear_conv_kernel_dim",),
        },
        assumed={"full_attention_interval": 4},
        demanded={**_SILU, "mlp_only_layers": ([],)},
    ),
}  # fmt: skip

# Families that are not modelled, each with why and what to do.
_SHARED_BLOCKS = "several of its layers share one block of attention, each with adapters of its own, which is not modelled"
REFUSED: Mapping[str, str] = {
    "zamba": _SHARED_BLOCKS,
    "zamba2": _SHARED_BLOCKS,
    "deepseek_v32": "its sparse attention is not modelled; model_type deepseek_v3 counts full attention in its place, which takes longer",
}

# The ending of an architecture's name -> the head that it puts on the model.
HEADS: Mapping[str, Values] = {
    "ForCausalLM": {"head": "language"},
    "LMHeadModel": {"head": "language"},
    "ForConditionalGeneration": {"head": "language"},
    "ForMaskedLM": {"head": "masked"},
    "ForPreTraining": {"head": "masked", "pooler": True},
    "ForImageClassification": {"head": "classifier"},
    "Model": {"head": "none"},
}
# Parts of a model that are not modelled, by the field that describes them.
TOWERS: Mapping[str, str] = {"vision_config": "vision tower", "audio_config": "audio tower"}
MTP_NOTE = "multi-token prediction layers run in training only; speculative decoding is not modelled"
# What files call layers that see a window and layers that see all tokens; in `no_rope_layers` 1 is a layer with rotary positions.
LAYER_KINDS: Mapping[str, Mapping[Any, str]] = {
    "layer_types": {"sliding_attention": "local", "chunked_attention": "local", "full_attention": "global"},
    "no_rope_layers": {1: "local", 0: "global"},
}
# What hybrid models call layers, each with what mixes their tokens; layers of one part may have an MLP or experts alone.
MIXERS: Mapping[Any, str] = {
    "M": "ssm", "*": "attention", "-": "mlp", "E": "experts", "mamba": "ssm", "linear_attention": "ssm", "attention": "attention",
    "full_attention": "attention", "mlp": "mlp", "moe": "experts",
}  # fmt: skip
PERIODS = ("sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval")  # each so-many-th layer is global
POOLED = frozenset({"bert", "roberta", "vit"})  # families whose bare model ends with a pooler

# Fields that change what a model computes, but not how long it takes or how much it holds.
NO_COST = frozenset({
    "_attn_implementation_autoset", "activation_function", "add_bias_linear", "apply_residual_connection_post_layernorm",
    "attention_softmax_in_fp32", "attn_config.alibi_bias_max", "attn_config.attn_impl", "attn_config.attn_pdrop",
    "attn_config.attn_uses_sequence_id", "attn_config.clip_qkv", "attn_config.softmax_scale", "attn_logit_softcapping", "attn_scale",
    "attn_temperature_tuning", "auto_map", "aux_loss_alpha", "begin_suppress_tokens", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward", "classifier_dropout", "clip_qkv", "cls_token_id", "decoder_start_token_id", "dense_act_fn",
    "emb_pdrop", "embedding_fraction", "encoder_stride", "eos_token_id", "ep_size", "final_logit_softcapping", "finetuning_task",
    "floor_scale", "for_llm_compressor", "hidden_act", "hidden_activation", "id2label", "init_config", "init_device", "init_std",
    "initial_context_length", "initializer_factor", "initializer_range", "is_encoder_decoder", "is_gated_act", "label2id",
    "layer_norm_eps", "layer_norm_epsilon", "layerdrop", "logit_scale", "masked_softmax_fusion", "max_window_layers",
    "model_max_length", "n_group", "norm_eps", "norm_epsilon", "norm_topk_prob", "norm_type", "num_labels", "offset_alibi",
    "original_max_position_embeddings", "output_attentions", "output_hidden_states", "output_past", "output_router_logits",
    "pad_token_id", "partial_rotary_factor", "position_embedding_type", "prefix", "pretraining_tp", "problem_type", "pruned_heads",
    "query_pre_attn_scalar", "relative_attention_max_distance", "reorder_and_upcast_attn", "return_dict", "rms_norm_eps",
    "attention_multiplier", "embedding_multiplier", "image_token_id", "input_jitter_noise", "logits_scaling", "residual_multiplier",
    "rope_interleave", "rope_local_base_freq", "rope_parameters", "rope_scaling", "rope_theta", "rotary", "rotary_dim",
    "rotary_emb_base", "rotary_pct", "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise",
    "scale_attention_softmax_in_fp32", "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "scoring_func", "sep_token_id",
    "seq_aux", "skip_bias_add", "slow_but_exact", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "swiglu_limit", "task_specific_params", "tie_encoder_decoder", "tokenizer_class",
    "tokenizer_name", "topk_group", "topk_method", "torchscript", "transformers_version", "unk_index", "use_bfloat16", "use_cache",
    "use_fused_cross_entropy", "use_fused_mlp", "use_fused_rope", "use_qk_norm", "use_sliding_window", "verbose", "video_token_id",
    "A_initializer_range", "attention_in_multiplier", "attention_out_multiplier", "attn_rotary_emb", "is_hybrid", "key_multiplier",
    "lm_head_multiplier", "mamba_act_fn", "mamba_dt_init_floor", "mamba_dt_limit", "mamba_dt_max", "mamba_dt_min", "mamba_hidden_act",
    "mamba_norm_before_gate", "mixer_rms_eps", "mlp_hidden_act", "mlp_multipliers", "moe_shared_expert_overlap", "num_logits_to_keep",
    "norm_before_gate", "normalization_function", "rescale_prenorm_residual", "rms_norm",
    "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier",
    "time_step_floor", "time_step_init_scheme", "time_step_rank", "time_step_limit", "time_step_max", "time_step_min", "time_step_scale",
    "use_falcon_mambapy", "use_mamba_kernels", "use_mambapy", "z_loss_coefficient",
    "vision_end_token_id", "vision_start_token_id", "vision_token_id",
})  # fmt: skip
# Fields that would change the cost, and what is counted instead.
NOT_COUNTED: Mapping[str, str] = {
    "sliding_window": "attention is counted over the whole sequence",
    "layer_types": "attention is counted over the whole sequence",
    "num_nextn_predict_layers": "the modules that predict further tokens are left out",
    **dict.fromkeys(TOWERS, "only the language model is described"),
    "torch_dtype": "the workload's dtype is that of all numbers",
    "dtype": "the workload's dtype is that of all numbers",
    "gradient_checkpointing": "the strategy says what is recomputed",
    "_attn_implementation": "the software stack of the scenario decides",
    "attn_implementation": "the software stack of the scenario decides",
    "residual_in_fp32": "the sums of layers are counted in the type of the activations",
    "qk_head_dim": "the sum of two other fields",
    "n_shared_experts": "their width is that of all together",
    **dict.fromkeys(("expand", "mamba_expand"), "heads have as many elements"),
    "mamba_d_ssm": "heads have as many elements",
    "num_key_value_heads": "the attention of this family has none of its own",
    "head_dim": "the attention of this family has none of its own",
}
# Of a file with a `text_config`, what the outer level says for the inner one too.
SHARED = ("tie_word_embeddings", "torch_dtype", "dtype", "_name_or_path", "quantization_config")
# Types of quantised weights: by the method and what it says of itself, and by bits and kind of numbers where methods leave them open.
QUANTISED: Mapping[tuple[Any, ...], str] = {
    ("fp8", None): "fp8", ("mxfp4", None): "mxfp4", ("modelopt", "FP8"): "fp8", ("modelopt", "NVFP4"): "nvfp4",
    ("awq", 4): "int4", ("gptq", 4): "int4", ("gptq", 8): "int8", ("int", 4): "int4", ("int", 8): "int8", ("float", 8): "fp8",
    ("float", 4, 16): "nvfp4", ("float", 4, 32): "mxfp4",
}  # fmt: skip


# ---------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """A key of ours, its value, and the fields that it comes from; `own` where the value is what a field says, not a rule."""

    key: str
    value: Any
    fields: tuple[str, ...] = ()
    own: bool = False


def huggingface_document(path: str | Path, *, service: bool = False) -> tuple[Document, list[FieldUse]]:
    """Read a ``config.json`` into the keys of a transformer's file.

    Parameters
    ----------
    path : the file.
    service : whether the model is served, in the type that the file keeps its weights in; training has its own.

    Returns
    -------
    document : keys of `TransformerSpec`, for one sample of the longest sequence that the file allows; a scenario lays its
        own batch, sequence and task over it.
    uses : every field of the file, in its order, with what it became.

    Raises
    ------
    SpecError
        If the file is not whole, of an unknown family or architecture, lacks dimensions, or sets what is not modelled.
    """
    file = str(path)
    text = _text(file)
    config = _parsed(text, file)
    inner = config.get("text_config")
    own = {**{key: config[key] for key in SHARED if key in config}, **inner} if isinstance(inner, Mapping) else config
    lines = _lines(text)

    def problem(name: str, told: str) -> Problem:
        outer = "text_config." if name and isinstance(inner, Mapping) and name.partition(".")[0] in inner else ""
        return Problem(file=file, line=lines.get(name.rpartition(".")[2]), path=outer + name, message=told)

    kind = str(own.get("model_type"))
    kind = kind if kind in FAMILIES else kind.removesuffix("_text")  # as newer files name the text part
    if kind not in FAMILIES:
        raise SpecError([problem("model_type", _unknown(own))])
    family = FAMILIES[kind]
    fields = _flat(own, family.nested)
    found = _settings(fields, family, kind, f"{kind} of {Path(file).name}")
    for key in () if service else ("weight_dtype", "ssm.state_dtype"):
        found.pop(key, None)
    wrong = [problem(name, told) for name, told in dict.fromkeys(_wrong(fields, family, kind, found))]
    if wrong:
        raise SpecError(wrong)
    towers = [name for field_, name in TOWERS.items() if isinstance(config.get(field_), Mapping)]
    if towers:
        text = f"Only the language model of {Path(file).name} is described, not its {' and '.join(towers)}."
        found["notes"] = _Setting(key="notes", value=text)
    return _document(file, found, lines), list(_uses(config, family, found))


def file_notes(spec: TransformerSpec, given: Values) -> Iterator[str]:
    """Sentences on what a workload takes from a ``config.json`` where it gives nothing itself.

    Parameters
    ----------
    spec : the workload as it was read.
    given : its own keys, ``model`` among them; other models than a ``config.json`` have no notes.
    """
    name = Path(str(given["model"])).name
    if not name.endswith(".json"):
        return
    prompted = spec.task in ("prefill", "decode") and spec.prompt  # which counts in the place of the sequence
    if "sequence" not in given and spec.image is None and not prompted:
        yield f"sequence = {spec.sequence} is the longest that {name} allows; give workload.sequence to change it"
    if "global_batch" not in given:
        yield f"global_batch = {spec.global_batch} because {name} gives none; give workload.global_batch to change it"
    if spec.notes and "notes" not in given:
        yield spec.notes


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecError([Problem(file=file, message=f"cannot be read: {reason}")]) from None


def _parsed(text: str, file: str) -> dict[str, Any]:
    """The object that a file holds."""
    try:
        config = files.from_json(text)
    except json.JSONDecodeError as error:
        early = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        reason = "it ends before it is complete; was it copied whole?" if early else f"{error.msg[0].lower()}{error.msg[1:]}"
        raise SpecError([Problem(file=file, line=error.lineno, message=f"not valid JSON: {reason}")]) from None
    except ValueError as error:
        raise SpecError([Problem(file=file, message=f"not valid JSON: {error}")]) from None
    if not isinstance(config, dict):
        raise SpecError([Problem(file=file, message=f"expected the fields of a model, got {with_article(type(config).__name__)}")])
    return config


def _lines(text: str) -> dict[str, int]:
    """Lines of the fields whose name stands in the file once, so that it is sure which is meant."""
    lines: dict[str, list[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(r'"([^"\\]+)"\s*:', line):
            lines.setdefault(name, []).append(number)
    return {name: found[0] for name, found in lines.items() if len(found) == 1}


def _unknown(config: Values) -> str:
    """What to say of a file whose family is not known: what was read of it, and what is known."""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in REFUSED:
        return f"model_type {json.dumps(kind)} is refused: {REFUSED[kind]}"
    names = ("architectures", *(name for key, aliases in NAMES.items() if key != "title" for name in aliases))
    read = ", ".join(f"{name} = {json.dumps(config[name])}" for name in names if config.get(name) is not None)
    what = "the key 'model_type' is missing" if kind is None else f"unknown model_type {json.dumps(kind)}"
    return f"{what}; read: {read or 'no dimensions'}; known: {', '.join(FAMILIES)}"


def _flat(config: Values, nested: Iterable[str]) -> dict[str, Any]:
    """Fields by name, those of some mappings as ``outer.inner``."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = value.items() if name in nested and isinstance(value, Mapping) else ()
        flat.update({f"{name}.{key}": below for key, below in inner} or {name: value})
    return flat


def _settings(fields: Values, family: Family, kind: str, title: str) -> dict[str, _Setting]:
    """Settings by our key; what comes later in a family's description replaces what comes earlier."""
    plain = {"model": "transformer", "global_batch": 1, "title": title, **family.fixed}
    found = {key: _Setting(key=key, value=value) for key, value in plain.items()}
    found |= {setting.key: setting for setting in _named(fields, family)}
    found |= {setting.key: setting for setting in _products(fields, family, found)}
    found |= {setting.key: setting for setting in _shifted(family, found)}
    found |= {setting.key: setting for setting in _windowed(fields, family, found)}
    found |= {setting.key: setting for setting in (*_mixed(fields, family, found), *_automatic(fields, found))}
    found |= {
        setting.key: setting
        for setting in (*_ruled(fields, family), *_dropout(fields), *_quantised(fields), *_headed(fields, family, kind))
    }
    return _without_experts(found)


def _named(fields: Values, family: Family) -> Iterator[_Setting]:
    for key, aliases in family.names.items():
        name = next((alias for alias in aliases if fields.get(alias) is not None), None)
        if name is not None:
            # The labels of classes stand in for their number.
            value = len(fields[name]) if key == "image.classes" and isinstance(fields[name], Mapping) else fields[name]
            yield _Setting(key=key, value=value, fields=(name,), own=True)


def _products(fields: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    given = {name: _Setting(key="", value=value, fields=(name,)) for name, value in fields.items() if value is not None}
    assumed = {name: _Setting(key="", value=value) for name, value in family.assumed.items()}
    known = {**assumed, **given, **found}
    for key, parts in family.products.items():
        factors = [_Setting(key="", value=part) if isinstance(part, int) else known.get(part) for part in parts]
        numbers = [factor for factor in factors if factor is not None and type(factor.value) is int]
        if key not in found and len(numbers) == len(parts):
            value = math.prod(factor.value for factor in numbers)
            yield _Setting(key=key, value=value, fields=tuple(name for factor in numbers for name in factor.fields), own=True)


def _shifted(family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    for key, (source, added) in family.shifts.items():
        if source in found and type(found[source].value) is int:
            yield replace(found[source], key=key, value=found[source].value + added)


def _ruled(fields: Values, family: Family) -> Iterator[_Setting]:
    known = {**family.assumed, **{name: value for name, value in fields.items() if value is not None}}
    for conditions, results in (*DTYPES, *family.rules):
        if all(name in known and known[name] == value for name, value in conditions.items()):
            given = tuple(name for name in conditions if name in fields)
            yield from (_Setting(key=key, value=value, fields=given) for key, value in results.items())


def _windowed(fields: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    """The window of attention and the layers that have it; nothing where no layer has one."""
    known = {name: value for name, value in {**family.assumed, **fields}.items() if value is not None}
    kinds, name = _layer_kinds(known, _layers(found))
    if family.window not in known or not known.get("use_sliding_window", True) or "local" not in kinds:
        return
    given = tuple(field for field in (family.window, "use_sliding_window") if field in fields)
    yield _Setting(key="window.size", value=known[family.window], fields=given, own=bool(given))
    yield _Setting(key="window.pattern", value=kinds, fields=(name,) if name in fields else ())
    yield from (_Setting(key=key, value=value) for key, value in family.local.items())


def _layer_kinds(known: Values, layers: int) -> tuple[list[str], str]:
    """Kinds of successive layers as the shortest list that repeats, and the field that says them."""
    for name in LAYER_KINDS:
        if isinstance(known.get(name), list) and known[name]:
            return _repeating([_kind(name, entry) for entry in known[name]]), name
    for name in PERIODS:
        if every := _count(known.get(name)):
            return ["local"] * (every - 1) + ["global"], name
    if first := _count(known.get("max_window_layers")):
        return ["global"] * min(first, layers) + ["local"] * (layers - first), "max_window_layers"
    return ["local"], ""


def _repeating(kinds: list[str]) -> list[str]:
    """The shortest list that repeats to a longer one."""
    period = next(n for n in range(1, len(kinds) + 1) if all(kind == kinds[i % n] for i, kind in enumerate(kinds)))
    return kinds[:period]


def _mixed(fields: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    """What mixes the tokens of successive layers of a hybrid model."""
    if not family.mixers:
        return
    known = {name: value for name, value in {**family.assumed, **fields}.items() if value is not None}
    name = next((name for name in family.mixers if name in known), "")
    value, layers = known.get(name, []), range(_layers(found))
    if name == "attn_layer_indices" or not name:
        kinds = ["attention" if i in value else "ssm" for i in layers]
    elif every := _count(value):  # a period, and the one of its layers that attends
        place = known.get("attn_layer_offset", every - 1) if name == "attn_layer_period" else every - 1
        kinds = ["attention" if i % every == place else "ssm" for i in layers]
    else:
        kinds = [MIXERS.get(entry, "") for entry in (value if isinstance(value, list | str) else ())]
    if kinds and all(kinds):
        given = tuple(one for one in (name, "attn_layer_offset" if name == "attn_layer_period" else name) if one in fields)
        yield _Setting(key="ssm.pattern", value=_repeating(kinds), fields=tuple(dict.fromkeys(given)))


def _automatic(fields: Values, found: Mapping[str, _Setting]) -> Iterator[_Setting]:
    """Dimensions that a file leaves to others with the word auto, or does not give."""
    sizes = {key: _count(found[key].value) if key in found else 0 for key in ("hidden", "ssm.heads")}
    expand, rank = next((fields[name] for name in ("mamba_expand", "expand") if _count(fields.get(name))), 2), found.get("ssm.step_rank")
    head = found.get("ssm.head_dim")
    if head is not None and head.value == "auto" and all(sizes.values()):
        inner = _count(fields.get("mamba_d_ssm")) or expand * sizes["hidden"]
        yield replace(head, value=inner // sizes["ssm.heads"])
    if rank is not None and rank.value == "auto" and sizes["hidden"]:
        yield replace(rank, value=-(-sizes["hidden"] // 16))


def _without_experts(found: dict[str, _Setting]) -> dict[str, _Setting]:
    """Settings of a model whose file names the sizes of experts that no layer has; what all tokens pass is then its MLP."""
    pattern, count = found.get("ssm.pattern"), found.get("experts.count")
    single = "ssm.mlp" in found and pattern is not None and "experts" not in pattern.value
    if not single and (count is None or count.value not in (0, 1)):
        return found
    shared = found.get("experts.shared")
    kept = {key: setting for key, setting in found.items() if not key.startswith("experts.")}
    return kept if single or shared is None else {**kept, "ffn": replace(shared, key="ffn")}


def _kind(name: str, entry: Any) -> str:
    """Kind of a layer by its entry in a list, empty where it is not known."""
    return LAYER_KINDS[name].get(entry, "") if isinstance(entry, str | int) else ""


def _count(value: Any) -> int:
    """A whole number of at least 1, or 0 for all else."""
    return value if type(value) is int and value > 0 else 0


def _layers(found: Mapping[str, _Setting]) -> int:
    """Layers of the model, 0 where the file does not say."""
    return _count(found["layers"].value) if "layers" in found else 0


def _dropout(fields: Values) -> Iterator[_Setting]:
    rates = tuple(name for name in fields if name in DROPOUT and isinstance(fields[name], float) and fields[name] > 0)
    if rates:
        yield _Setting(key="dropout", value=True, fields=rates)


def _quantised(fields: Values) -> Iterator[_Setting]:
    """Type of the weights that a service keeps, of methods that are known."""
    stored = _stored(fields.get("quantization_config"))
    if stored:
        yield _Setting(key="weight_dtype", value=stored, fields=("quantization_config",))


def _stored(config: Any) -> str | None:
    """Type of weights that a ``quantization_config`` describes, None where its method is not known."""
    if not isinstance(config, Mapping):
        return None
    found, groups = config, config.get("config_groups")
    if isinstance(groups, Mapping) and len(groups) == 1:  # compressed-tensors
        found = (next(iter(groups.values())) or {}).get("weights") or {}
        numbers = (found.get("type"), found.get("num_bits"))
        return QUANTISED.get((*numbers, found.get("group_size")) if numbers == ("float", 4) else numbers)
    return QUANTISED.get((found.get("quant_method"), found.get("bits", found.get("quant_algo"))))


def _headed(fields: Values, family: Family, kind: str) -> Iterator[_Setting]:
    """What the architecture that a file names puts after the last layer."""
    ending, given = _ending(fields, family), ("architectures",) if fields.get("architectures") else ()
    pooled = {"pooler": True} if ending == "Model" and kind in POOLED else {}
    for key, value in {**HEADS.get(ending, {}), **pooled}.items():
        yield _Setting(key=key, value=value, fields=given)


def _ending(fields: Values, family: Family) -> str:
    """The ending of the architecture's name that tells its head, empty where none is known."""
    architectures = fields.get("architectures")
    if not architectures:
        return family.heads[0]
    name = str(architectures[0]) if isinstance(architectures, list) else str(architectures)
    return next((ending for ending in HEADS if name.endswith(ending)), "")


# ---------------------------------------------------------------------------------------------- what is wrong


def _wrong(fields: Values, family: Family, kind: str, found: Mapping[str, _Setting]) -> Iterator[tuple[str, str]]:
    """Fields, with sentences on what is wrong with them."""
    if _ending(fields, family) not in family.heads:
        known = ", ".join(f"...{ending}" for ending in family.heads)
        yield "architectures", f"{json.dumps(fields['architectures'])} is not modelled for model_type '{kind}'; known: {known}"
    yield from _missing(family, kind, found)
    for setting in found.values():
        if setting.own:
            yield from _mistyped(setting)
    for name, values in family.demanded.items():
        if fields.get(name) is not None and fields[name] not in values:
            yield name, f"{json.dumps(fields[name])} is not modelled; known: {', '.join(json.dumps(value) for value in values)}"
    for name, other in family.equal.items():
        if fields.get(name) not in (None, fields.get(other)):
            yield name, f"{json.dumps(fields[name])} is not modelled where {other} = {json.dumps(fields.get(other))}"
    for name, key in family.listed.items():
        every = (_count(found[key].value) if key in found else 0) or 1
        if fields.get(name) and fields[name] != list(range(every - 1, _layers(found), every)):
            yield name, f"{json.dumps(fields[name])} is not modelled where {key} = {every}"
    for name, key in family.last.items():
        every = (_count(found[key].value) if key in found else 0) or 1
        if fields.get(name) not in (None, every - 1):
            yield name, f"{json.dumps(fields[name])} is not modelled where {key} = {every}; known: {every - 1}"
    yield from _unruly(fields, family)
    if family.mixers:
        yield from _unmixed(fields, family, _layers(found))
    if {"ssm.heads", "ssm.head_dim"} <= set(found):
        yield from _unexpanded(fields, found)
    if family.window:
        yield from _unlike(fields, _layers(found))


def _unmixed(fields: Values, family: Family, layers: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the field that says what mixes the tokens of layers."""
    name = next((name for name in family.mixers if fields.get(name) is not None), "")
    value = fields.get(name)
    if name == "attn_layer_indices":
        if not isinstance(value, list) or not all(type(place) is int and 0 <= place < layers for place in value):
            yield name, f"expected numbers of layers from 0 to {layers - 1}, got {json.dumps(value)}"
    elif isinstance(value, list | str):
        other = [entry for entry in value if not (isinstance(entry, str) and entry in MIXERS)]
        if other:
            yield name, f"{json.dumps(other[0])} is not modelled; known: {', '.join(map(json.dumps, MIXERS))}"
        elif len(value) != layers:
            yield name, f"expected an entry for each of {layers} layers, got {len(value)}"
    elif name and not _count(value):
        yield name, f"expected a whole number of at least 1, got {json.dumps(value)}"


def _unexpanded(fields: Values, found: Mapping[str, _Setting]) -> Iterator[tuple[str, str]]:
    """Widths of a state space that its heads do not make up."""
    heads, width, hidden = (_count(found[key].value) if key in found else 0 for key in ("ssm.heads", "ssm.head_dim", "hidden"))
    inner, name = fields.get("mamba_d_ssm"), "mamba_d_ssm"
    if inner is None and fields.get("model_type") != "nemotron_h":  # whose heads alone count
        name = next((one for one in ("mamba_expand", "expand") if _count(fields.get(one))), "")
        inner = fields[name] * hidden if name else heads * width
    if inner is not None and heads and width and inner != heads * width:
        yield name, f"{inner} elements are not those of {heads} heads of {width}"


def _unlike(fields: Values, layers: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the fields that say which layers see a window."""
    for name in PERIODS:
        if fields.get(name) is not None and not _count(fields[name]):
            yield name, f"expected a whole number of at least 1, got {json.dumps(fields[name])}"
    lists = {name: fields[name] if isinstance(fields[name], list) else [fields[name]] for name in LAYER_KINDS if fields.get(name)}
    for name, entries in lists.items():
        other = [entry for entry in entries if not _kind(name, entry)]
        if other:
            yield name, f"{json.dumps(other[0])} is not modelled; known: {', '.join(map(json.dumps, LAYER_KINDS[name]))}"
        elif len(entries) != layers:
            yield name, f"expected an entry for each of {layers} layers, got {len(entries)}"
    if len({tuple(_kind(name, entry) for entry in entries) for name, entries in lists.items()}) > 1:
        yield "no_rope_layers", "is not modelled where layer_types makes other layers local"


def _missing(family: Family, kind: str, found: Mapping[str, _Setting]) -> Iterator[tuple[str, str]]:
    """All dimensions that are not there, in one sentence; a product is missing only with one of its factors."""
    routed = not family.mixers or ("ssm.pattern" in found and any(key.startswith("experts.") for key in found))
    optional = {*OPTIONAL, *family.products, *(key for key in family.names if not routed and key.startswith("experts."))}
    needed = [aliases for key, aliases in family.names.items() if key not in found and key not in optional]
    names = list(dict.fromkeys(f"'{aliases[0]}'" + (f" (or '{aliases[1]}')" if len(aliases) > 1 else "") for aliases in needed))
    if names:
        many = f"keys {', '.join(names)} are" if len(names) > 1 else f"key {names[0]} is"
        yield "", f"the {many} missing; a file of model_type '{kind}' needs {'them' if len(names) > 1 else 'it'}"


def _mistyped(setting: _Setting) -> Iterator[tuple[str, str]]:
    """A value that is not of its key's type."""
    value, least = setting.value, 0 if setting.key in FROM_ZERO else 1
    if setting.key == "title":
        expected, right = "text", isinstance(value, str)
    elif setting.key in BOOLEAN:
        expected, right = "true or false", isinstance(value, bool)
    else:
        expected, right = f"a whole number of at least {least}", type(value) is int and value >= least
    if not right:
        yield setting.fields[0], f"expected {expected}, got {json.dumps(value)}"


def _unruly(fields: Values, family: Family) -> Iterator[tuple[str, str]]:
    """Switches whose value is of another type than those that the rules know."""
    known = {name: value for conditions, _ in family.rules for name, value in conditions.items()}
    for name, example in known.items():
        value = fields.get(name)
        if value is not None and type(value) is not type(example):
            expected = {bool: "true or false", str: "text"}.get(type(example), "a whole number")
            yield name, f"expected {expected}, got {json.dumps(value)}"


# ---------------------------------------------------------------------------------------------- what comes out


def _document(file: str, found: Mapping[str, _Setting], lines: Mapping[str, int]) -> Document:
    data: Any = {}
    places: dict[files.Path_, Place] = {(): (file, None)}
    for setting in found.values():
        path = tuple(setting.key.split("."))
        data = files.replace(data, path, setting.value, file)
        places[path] = (file, next((lines[name] for name in setting.fields if name in lines), None))
    return Document(file=file, data=data, lines=places)


def _uses(config: Values, family: Family, found: Mapping[str, _Setting]) -> Iterator[FieldUse]:
    """Every field of a file in its order; of a nested file, the outer level's with why they are passed over."""
    became: dict[str, list[str]] = {}
    for setting in found.values():
        for name in setting.fields:
            became.setdefault(name, []).append(f"{setting.key} = {json.dumps(setting.value)}")
    inner = config.get("text_config")
    for name, value in config.items():
        within = name == "text_config" and isinstance(value, Mapping)
        if isinstance(inner, Mapping) and not within and (name not in SHARED or name in inner):
            yield FieldUse(key=name, value=value, became="not used: only text_config is read")
            continue
        for below, held in _flat(value if within else {name: value}, family.nested).items():
            yield FieldUse(key=f"{name}.{below}" if within else below, value=held, became=_fate(below, held, family, became))


def _fate(name: str, value: Any, family: Family, became: Mapping[str, list[str]]) -> str:
    """What became of a field."""
    if name == "model_type":
        return "chose how the file is read"
    if name in became:
        return ", ".join(became[name])
    if value is None:
        return "not used: null"
    if name == "quantization_config":
        stored = _stored(value)
        return (
            f"not used in training: a service keeps weights in {stored}"
            if stored
            else "not used: not known to crossflow; give weight_dtype"
        )
    if name in (*family.demanded, *family.equal, *family.listed, *family.last):
        return "checked: as it is modelled"
    windows = (*LAYER_KINDS, *PERIODS) if family.window else ()
    if any(name in group for group in (windows, family.mixers, *family.names.values(), *(conditions for conditions, _ in family.rules))):
        return "not used: other fields decide"
    if name in NOT_COUNTED:
        return f"not used: {NOT_COUNTED[name]}"
    known = name in NO_COST or name in DROPOUT
    return "not used: does not change the cost" if known else "not used: not known to crossflow"
