# ruff: noqa: E501  (exact sentences)
"""Every field of a scenario changes its prediction, is refused, or is named in a note; nothing is ignored in silence."""

import functools
import json
import typing
from dataclasses import fields
from typing import NamedTuple

import pytest
from pydantic import BaseModel
from sampled import every

import crossflow
from crossflow.answers.idle import KNOWN
from crossflow.answers.scenario_file import ScenarioFile
from crossflow.answers.scenario_top import OF_FAILURES
from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.hardware.architecture.template import Host, OperationSpec
from crossflow.parallel.strategy.hierarchy import Hierarchy
from crossflow.parallel.strategy.notation import GRAPH
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import every_strategy
from crossflow.workload.dlrm_spec import DlrmSpec
from crossflow.workload.spec import GemmSpec, LstmSpec, TransformerSpec


class When(NamedTuple):
    """A value of a field, and what makes it matter beside the base of its kind of workload."""

    value: typing.Any
    context: dict


# They say what something is, which model a file is read as, or what a launch file names and costs alike.
LABELS = {
    "served.weight_dtype",
    "served.weight_dtypes",
    "served.state_dtype",
    "served.wide_layers",
    "name",
    "title",
    "notes",
    "sources",
    "known_as",
    "vendors",
    "trains",
    "model",
    "kind",
    "experts.score",
    "experts.scaling",
}
SECTIONS = {"system", "workload", "strategy", "software", "techlib"}  # whose own fields are below
MOE = {"workload.experts": {"count": 8, "active": 2}}
LATENT = {"workload.latent": {"kv_rank": 256, "nope": 64, "rope": 32, "value": 64}}
SPARSE = {**LATENT, "workload.sparse": {"top_k": 256, "heads": 8, "head_dim": 32}}
ENTRIES = {
    "workload.query_rank": 256,
    "workload.compressed": {
        "output_groups": 4, "output_rank": 128, "window": 64, "ratios": [0, 4, 16, 4], "top_k": 128, "heads": 8, "head_dim": 32,
    },
}  # fmt: skip
ENCODER = {"workload.encoder": {"layers": 4, "sequence": 256}}
WINDOW = {"workload.window": {"size": 128, "pattern": ["local", "global"]}}
VARIED = {"workload.variants": [{"layers": [1], "ffn": 2048}]}
STATE = {"workload.ssm": {"heads": 32, "head_dim": 64, "state": 64, "pattern": ["ssm", "attention"]}}
SHARED = {
    "workload.ssm": {"heads": 32, "head_dim": 64, "state": 64, "pattern": ["ssm", "shared"], "mlp": False},
    "workload.shared_block": {"blocks": 1},
}
PARTS = {"workload.ssm": {"heads": 32, "head_dim": 64, "state": 64, "pattern": ["ssm", "mlp"], "mlp": False}, "workload.heads": None}
CHANNELS = {
    "workload.ssm": {
        "kind": "kda",
        "heads": 16,
        "groups": 16,
        "head_dim": 64,
        "state": 64,
        "step_rank": 64,
        "pattern": ["ssm", "attention"],
    }
}
SELECTIVE = {"workload.ssm": {"kind": "mamba1", "heads": 2048, "state": 16, "step_rank": 64, "pattern": ["ssm", "attention"]}}
IMAGE = {
    **dict.fromkeys(("workload.vocabulary", "workload.sequence")), "workload.image": {"size": 224, "patch": 16, "classes": 1000},
    "workload.head": "classifier", "workload.causal": False,
}  # fmt: skip
VIDEO = {
    **IMAGE, "workload.head": "latents", "workload.norm": "layernorm", "workload.norm_vectors": 0,
    "workload.image": {"size": 256, "compression": 8, "patch": 2, "channels": 4, "class_token": False, "frames": 9, "frame_compression": 4},
    "workload.diffusion": {"text": "none"},
}  # fmt: skip
STREAMS = {**VIDEO, "workload.diffusion": {"text": "streams", "text_tokens": 64, "text_width": 512}}
JOINED = {**VIDEO, "workload.diffusion": {"text": "joined", "text_tokens": 64, "text_width": 512}}
REFINED = {**VIDEO, "workload.diffusion": {"text": "joined", "text_tokens": 64, "text_width": 512, "text_layers": 2}}
CROSS = {**VIDEO, "workload.diffusion": {"text": "cross", "text_tokens": 64, "text_width": 512}}
EAGLE = {"heads": 16, "head_dim": 64, "groups": 16, "state": 64, "conv": 0, "pattern": ["ssm", "attention"]}
FINCH = {"workload.ssm": {**EAGLE, "kind": "rwkv6", "step_rank": 64, "mix_rank": 32}, "workload.gated": False}
GOOSE = {
    "workload.ssm": {**EAGLE, "kind": "rwkv7", "step_rank": 64, "gate_rank": 64, "rate_rank": 64, "value_rank": 32}, "workload.gated": False,
}  # fmt: skip
PLAN = {"tp": 2, "dp": 8, "micro_batch": 2}
PIPE, PIECES = {"strategy.dp": 4, "strategy.pp": 2}, {"strategy.sequence_parallel": True}
ZERO = {"strategy.zero": 3}
SYSTEM = {"template": "dgx-a100", "nodes": 2}
SOFTWARE = {"like": "megatron-core"}
MODEL = {
    "model": "transformer", "layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000, "sequence": 1024, "global_batch": 64,
}  # fmt: skip
TABLES = {
    "model": "dlrm", "tables": [{"count": 32, "rows": 1000000, "width": 64, "pooling": 10}], "bottom": {"widths": [512, 64]},
    "top": {"widths": [1024, 512, 1]}, "dense_features": 13, "interaction": {"kind": "dot"}, "global_batch": 8192,
}  # fmt: skip
GENERATED = {"template": "mcm", "devices_per_node": 4, "nodes": 16}
BASES = {
    "lstm": {"system": GENERATED, "workload": {"model": "lstm-16k"}, "strategy": {"kernel": "RC", "kp1": 4, "kp2": 2, "dp": 4, "pp": 2}},
    "gemm": {"system": {**GENERATED, "nodes": 2}, "workload": {"model": "gemm", "m": 4096, "n": 4096, "k": 4096, "task": "training"},
             "strategy": {"kernel": "RC", "kp1": 4, "kp2": 2}},
    "dlrm": {"system": SYSTEM, "workload": TABLES, "strategy": {"dense": "ddp", "embedding": "mp"}, "software": SOFTWARE},
    "transformer": {"system": SYSTEM, "workload": MODEL, "strategy": PLAN, "software": SOFTWARE},
}  # fmt: skip
TASKS = {"lstm": ["forward"], "gemm": ["forward"], "dlrm": ["forward"], "transformer": ["forward", "prefill", "decode"]}

# Of every field a value that its base does not have; None in a context takes a key out.
TOP = {
    "run.samples": 1e6, "run.tokens": 1e9, "run.steps": 1e3,
    "profile": "none.csv", "placement": ["lp", "dp", "kp2", "kp1"], "kernels_per_device": 4,
}  # fmt: skip
SYSTEMS = {
    "operation.price": "5 USD/hour", "operation.carbon_intensity": "300 g/kWh", "operation.lifetime": "5 years", "operation.device_power": When("100 W", {"run": {"steps": 10}, "system.operation.host_power": "2 kW"}),
    "operation.host_power": When("9 kW", {"run": {"steps": 10}}), "operation.pue": When(1.4, {"run": {"steps": 10}}),
    "host.capacity": "3 TB", "host.bandwidth": When("1 GB/s", {"strategy.offload": "optimizer"}),
    "host.utilisation": When(0.01, {"strategy.offload": "optimizer"}),
}  # fmt: skip
FULL, SHORT = {"strategy.recompute": "full"}, {"workload.hidden": 128, "workload.ffn": 256}
HEAVY = {"workload.hidden": 4096, "workload.ffn": 16384, "workload.sequence": 64, "strategy.micro_batch": 1, "strategy.zero": 1}
UNFUSED = {"software.overlap.context": False, "software.attention.kernel": "unfused"}
STEADY = {"workload.task": "serving", "workload.prompt": 512, "workload.output": 64}
HELD = {**STEADY, "workload.serving.host_cache": {"capacity": "64 GiB", "bandwidth": "50 GB/s"}}
FAILING = {**STEADY, "workload.serving.failures": {"mean_time": "60 s", "repair": "5 s"}}
SCALING = {**STEADY, "workload.serving.autoscale": {"least": 1, "start": "5 s", "up": 8, "down": 1}}
TIERS = {**STEADY, "workload.serving.host_cache": [{"capacity": "64 GiB", "bandwidth": "50 GB/s"}]}
CROWDED = {**STEADY, "workload.output": 30000, "workload.global_batch": 2048}
LORA = {**STEADY, "workload.adapters": {"rank": 16}, "workload.serving": {"adapters": {"count": 4}}}
GUESSING = {**STEADY, "workload.serving": {"speculation": {"tokens": 2, "acceptance": 0.5}}}
DRAFTED = {
    **STEADY,
    "system.template": "dgx-h100",
    "workload.serving": {"speculation": {"tokens": 2, "acceptance": 0.5, "draft": {"model": "mpt-1b"}}},
}
PICTURES = {**STEADY, "system.template": "dgx-h100", "workload.serving": {"images": {"model": "vit-l", "count": 1.0, "tokens": 196}}}
TOWER = {"size": 448, "patch": 14, "merge": 2, "layers": 4, "hidden": 256, "heads": 4, "ffn": 1024}
PAINTED = {**PICTURES, "workload.serving": {"images": {"tower": TOWER}}}
WINDOWED = {**PICTURES, "workload.serving": {"images": {"tower": {**TOWER, "window": 64}}}}
GUIDED = {**STEADY, "workload.serving": {"guided": {"token": "5 ms", "overlapped": False}}}
APART = {"workload.task": "decode", "workload.output": 64, "workload.serving": {"experts": {"strategy": "tp2"}}, "strategy.micro_batch": 8}
READERS = {**STEADY, "workload.serving": {"prefill": {"strategy": "tp1", "workers": 1}}}
EXCHANGED = {**MOE, "strategy.ep": 4}
GROUPS = {
    "software.dispatch": "nodes", "strategy.ep": 16, "strategy.tp": 1, "strategy.dp": 16, "strategy.micro_batch": 1,
    "workload.experts": {"count": 64, "active": 8, "groups": 8, "active_groups": 2},
}  # fmt: skip
NARROW = {"system.template": "dgx-h100", "workload.dtype": "fp8"}
SLOW = {"software.host.kernel": "5 ms"}
CONTEXT = {"strategy.cp": 2, "strategy.dp": 4}
PACED = {
    "software.host.kernel": "10 us", "software.host.layer": "0 us", "software.expert_products": "each", "workload.sequence": 4096,
    "workload.experts": {"count": 32, "active": 2, "ffn": 64}, "workload.ffn": 64,
}  # fmt: skip
STACK = {
    "attention.kernel": When("unfused", {"software.overlap.context": False}), "attention.forward_utilisation": 0.2,
    "attention.backward_utilisation": 0.2, "attention.native": When(False, {"system.template": "dgx-h100"}), "fused": ["loss"],
    "fused_half": When(["softmax"], {**UNFUSED, "software.fused": []}),
    "weight": "fp32", "gradient": "weight", "stages": When("balanced", PIPE),
    "dispatch": When("nodes", {**MOE, "strategy.ep": 8, "workload.experts": {"count": 64, "active": 8}}), "product_slowdown": 0.5,
    "overlap.experts": When(True, EXCHANGED), "overlap.exchange_units": When(0.9, {**EXCHANGED, "software.overlap.experts": True}),
    "expert_products": When("fused", {**MOE, **SLOW}), "token_counts": When("device", PACED),
    "routed_rows": When(["padded"], EXCHANGED), "permutation": When(0.9, MOE), "expert_biases": When("rows", {**MOE, "workload.biases": True}), "graphs": When(["attention"], SLOW),
    "host.graph": When("50 ms", {"software.graphs": ["attention"]}), "host.reading": When("5 ms", {"workload.task": "prefill"}),
    "host.experts": When("call", {**MOE, "workload.task": "prefill", "software.host.reading": "5 ms", "software.kernels.experts": {"bf16": ["triton-vllm"]}}),
    "host.pieces": When(True, {**STEADY, "software.host.reading": "5 ms"}),
    "host.latent_pieces": When(4096, {**STEADY, **LATENT, "software.host.reading": "5 ms", "software.host.pieces": True}),
    "memory.narrow_weights": When(["fp8"], {"system.template": "dgx-h100", "workload.dtype": "fp8"}),
    "kernels.exchange": When(["deepep"], {**MOE, "workload.task": "prefill", "strategy.ep": 4, "system.template": "dgx-h100"}),
    "kernels.experts": When({"bf16": ["triton-vllm"]}, {**MOE, "workload.task": "prefill"}),
    "engine.balances": When(True, {"workload.experts": {"count": 16, "active": 2, "skew": 1.2}, "workload.task": "prefill", "strategy.ep": 4}),
    "kernels.gathers": When("node", {**MOE, "workload.task": "prefill", "strategy.ep": 4}),
    "kernels.exchanged": When(
        {"bf16": ["cutlass-trtllm"]},
        {**MOE, "workload.task": "prefill", "strategy.ep": 4, "system.template": "dgx-h100", "software.kernels.experts": {"bf16": ["triton-vllm"]}},
    ),
    "attention.repeated": When(True, {"workload.kv_heads": 4}), "ring.gathered": When(True, CONTEXT), "ring.merges": When("eager", CONTEXT),
    "joined": When(False, {"workload.gated": True}), "scales": When("current", NARROW), "narrow_gathers": When(False, {**PIECES, **NARROW}),
    "gathered_inputs": When("kept", PIECES),
    "early_stop": When(True, FULL), "recomputed": ["activation"], "overlap.tensor": "none", "overlap.data": False, "overlap.gather": When(False, ZERO),
    "overlap.pipeline": When(False, {**PIPE, "strategy.tp": 1, "strategy.dp": 8}), "overlap.context": When(False, CONTEXT),
    "overlap.optimizer": When(True, {"strategy.zero": 1}), "host.kernel": "5 ms", "host.rank": When("5 ms", {**PIECES, **SHORT}),
    "host.layer": "50 ms", "host.stall": When("5 ms", FULL), "host.microbatch": "50 ms", "host.step": "1 s",
    "memory.context": "9 GiB", "memory.fragmentation": 0.2, "memory.library": "1 GiB", "memory.logit": "12 B",
    "memory.workspaces": 2, "memory.buckets": True, "memory.late_gradients": When(True, HEAVY),
    "memory.narrow_frozen": When(True, {"system.template": "dgx-h100", "workload.dtype": "fp8", "workload.frozen": ["attention"]}),
    "memory.gathered_copy": When(True, HEAVY), "sharing.unit": When("layer", ZERO), "sharing.copies": When(True, ZERO),
    "kernels.launch": "graph", "kernels.products": {dtype: ["cublas"] for dtype in ("bf16", "fp16", "tf32", "fp32")},
    "engine.chunk": When(64, STEADY), "engine.requests": When(2, STEADY), "engine.memory": When(0.001, STEADY),
    "engine.cache": When(0.01, CROWDED), "engine.admits": When("whole", CROWDED),
    "engine.scheduler": When("sglang", STEADY), "engine.block": When(64, STEADY), "engine.chunked": When(False, STEADY),
    "engine.queue": When("priority", STEADY), "host.schedule": When("5 ms", STEADY), "host.request": When("5 ms", STEADY),
    "engine.asynchronous": When(True, {**STEADY, "software.host.schedule": "5 ms"}),
    "engine.synchronous_with": When(["guided"], {**GUIDED, "software.host.schedule": "5 ms", "software.engine.asynchronous": True}),
    "engine.gathers": When(True, {**STEADY, **MOE, "strategy.ep": 4}),
    "engine.prefixes": When(False, STEADY), "engine.counted": When("1 GiB", {**CROWDED, "software.engine": {"memory": 0.5}}), "engine.sampling": When("30 B", STEADY),
    "engine.selecting": When("1 ns", {**STEADY, "workload.serving": {"likeliest": True}}),
    "kernels.attention.prefill": When(["flash-attention-2"], {"workload.task": "prefill"}),
    "kernels.attention.decode": When(["flash-attention-2"], {"workload.task": "decode"}),
    "kernels.attention.latent": When(["flash-mla"], {"workload.task": "decode", "system.template": "dgx-h100", "workload.latent": {**LATENT["workload.latent"], "kv_rank": 512}}),
    "kernels.attention.expanded": When(
        "cache",
        {**LATENT, "workload.task": "prefill", "workload.kv_dtype": "fp8", "system.template": "dgx-h100", "software.kernels.attention.prefill": ["flash-attention-3"]},
    ),
    "kernels.widening": When({"int4": ["triton-kernels"]}, {"workload.task": "prefill", "workload.weight_dtype": "int4", "system.template": "dgx-h100"}),
    "sharing.bucket": "1 MiB", "sharing.first_bucket": When("300 MiB", {"software.sharing": {"bucket": "2 MiB"}}),
    "residual": When("elements", {**PIECES, "workload.sequence": 1023}), "weighing": When("returned", MOE), "narrow_dispatch": When(True, {**EXCHANGED, **NARROW}),
    "memory.moments": "bf16", "memory.master": False, "memory.fused_activation": When(True, {**FULL, "software.memory.logit": "0.1 B"}), "memory.remainders": True, "memory.narrow_activation": When(True, NARROW), "memory.transposed_weights": When(False, NARROW),
    "peer_all_reduce.limit": When("64 MiB", SHORT),
    "peer_all_reduce.direct": When(["cdna3"], {**SHORT, "system.template": "mi300x-node", "software.peer_all_reduce": {"limit": "64 MiB"}}),
    "peer_all_reduce.start": When("1 us", {**SHORT, "software.peer_all_reduce": {"limit": "64 MiB"}}),
}  # fmt: skip
LSTM = {
    "hidden": 8192, "vocabulary": 400000, "sequence": 10, "layers": 4, "projection": 1024,
    "global_batch": 8192, "dtype": "fp32", "optimizer": "adam", "task": "forward",
}  # fmt: skip
GEMM = {"m": 2048, "n": 2048, "k": 2048, "dtype": "fp32", "task": "forward"}
ENCODED = {"workload.interaction": {"kind": "transformer", "layers": 2, "heads": 4, "width": 64, "ffn": 256, "sequence": 8}}
COUNTED = {"workload.tables.0.reuse": {"factors": [0.2] * 5 + [0.0] * 12, "samples": 65536}}
TIGHT = {"workload.sharding": {"by": "cost", "memory": 0.001}}
DLRM = {
    "tables.0.count": 16, "tables.0.rows": 2000000, "tables.0.width": 128, "tables.0.pooling": 20,
    "tables.0.distinct": 0.3, "tables.0.reuse.like": "2021", "tables.0.reuse.factors": When([0.0] * 7 + [1.0] + [0.0] * 9, COUNTED),
    "tables.0.reuse.samples": When(131072, COUNTED),
    "sharding.by": "size", "sharding.split": When("rows", TIGHT), "sharding.memory": When(0.5, TIGHT), "sharding.seed": When(3, {"workload.sharding": {"by": "random"}}),
    "dense_features": 26, "bottom.widths": [256, 64],
    **{f"{mlp}.{key}": When(3, {f"workload.{mlp}": {"layers": 2, "width": 64}, "workload.dense_features": None}) for mlp in ("bottom", "top") for key in ("layers", "width")},
    "top.widths": [512, 1], "interaction.kind": "concatenation",
    **{f"interaction.{key}": When(value, ENCODED) for key, value in {"layers": 3, "width": 128, "ffn": 512, "sequence": 16}.items()},
    "interaction.heads": When(2, {**ENCODED, **UNFUSED}),
    "interaction.rank": When(64, {"workload.interaction": {"kind": "cross", "layers": 2, "rank": 32}}),
    "experts.count": When(16, {"workload.experts": {"count": 8, "active": 2}}), "experts.active": When(4, {"workload.experts": {"count": 8, "active": 2}}),
    "global_batch": 4096, "dtype": "fp16", "table_dtype": "fp32", "optimizer": "adam",
    "table_optimizer": "adagrad", "uneven": 1.5, "exchange.forward": "fp16", "exchange.backward": "fp16",
    "exchange.indices": "int32", "exchange.ahead": False, "exchange.bucket": "1 MiB", "task": "forward",
    "frozen": "embedding",
}  # fmt: skip
TIERED = {"system.second_memory": {"capacity": "480 GB", "bandwidth": "450 GB/s", "energy": "8 pJ/bit"}}
ADAPTED = {"workload.adapters": {"rank": 16}}
SERVED, WRITTEN = {"workload.task": "prefill"}, {"workload.task": "decode", "workload.output": 64}
TRANSFORMER = {
    "layers": 4, "hidden": 2048, "heads": 8, "kv_heads": 4, "head_dim": 128, "ffn": 2048, "gated": False, "gate_limit": 7,
    "vocabulary": 64000, "tied_embeddings": True, "sequence": 2048, "positions": "alibi",
    "max_positions": When(4096, {"workload.positions": "learned"}), "relative_buckets": When(64, {"workload.positions": "relative"}),
    "norm": "layernorm", "norm_vectors": 0, "norms": 4, "qk_norm": "shared", "biases": True, "qkv_bias": True,
    "mlp_bias": True, "head_bias": True, "causal": False, "window.size": When(256, WINDOW), "window.pattern": When("local", WINDOW),
    "window.chunked": When(True, WINDOW), "window.global_rotary": When(False, WINDOW), "attention_sinks": True, "attention_gate": True, "final_norm": False,
    "ssm.kind": When("gated_delta", STATE), "ssm.pattern": When(["ssm", "mlp", "mlp"], PARTS),
    "ssm.mlp": When(False, {**STATE, "workload.ffn": None}), "ssm.heads": When(64, STATE), "ssm.head_dim": When(128, STATE), "ssm.groups": When(8, STATE),
    "shared_block.blocks": When(2, SHARED), "shared_block.mlp_rank": When(64, SHARED), "shared_block.attention_rank": When(64, SHARED),
    "ssm.state": When(128, STATE), "ssm.chunk": When(64, STATE), "ssm.conv": When(8, STATE), "ssm.conv_bias": When(False, STATE),
    "ssm.bias": When(True, STATE), "ssm.norm": When(False, STATE), "ssm.step_rank": When(128, SELECTIVE),
    "ssm.gate_rank": When(64, CHANNELS), "ssm.mix_rank": When(64, FINCH), "ssm.rate_rank": When(128, GOOSE), "ssm.value_rank": When(64, GOOSE),
    "image.height": When(128, VIDEO), "image.frames": When(17, VIDEO), "image.frame_patch": When(3, VIDEO), "image.compression": When(16, VIDEO),
    "image.frame_compression": When(8, VIDEO), "diffusion.text": When("joined", CROSS), "diffusion.text_tokens": When(128, CROSS),
    "diffusion.text_width": When(1024, CROSS), "diffusion.text_mlp": When(True, CROSS), "diffusion.text_layers": When(2, CROSS),
    "diffusion.cross_norm": When(True, CROSS), "diffusion.gives_text": When(False, STREAMS), "diffusion.single_layers": When(4, STREAMS),
    "diffusion.modulation": When("shared", VIDEO), "diffusion.modulation_width": When(256, VIDEO), "diffusion.pooled": When(256, VIDEO),
    "diffusion.picture_layers": When(1, JOINED), "diffusion.split_norms": When(False, JOINED), "diffusion.text_gates": When(False, REFINED),
    "diffusion.shifts": When(False, VIDEO), "diffusion.frequencies": When(512, VIDEO), "diffusion.guidance": When(True, VIDEO), "diffusion.classes": When(1001, VIDEO), "diffusion.outputs": When(8, VIDEO), "residual_block": 2,
    "ssm.state_dtype": When("fp32", {**STATE, "workload.task": "decode", "workload.output": 64}),
    "value_dim": 128, "keys_as_values": True, "shared_cache": True, "head_gate": True, "differential": True, "per_layer.width": When(256, {"workload.per_layer": {"width": 64}}),
    "per_layer.vocabulary": When(64000, {"workload.per_layer": {"width": 64}}),
    **{f"variants.0.{key}": When(value, VARIED) for key, value in {
        "layers": "0-3", "heads": 32, "kv_heads": 2, "head_dim": 128, "value_dim": 128, "ffn": 1024, "attention": False, "mlp": False,
        "keys_as_values": True, "shared_cache": True, "attention_sinks": True}.items()},
    "variants.0.cross": When(True, {**VARIED, "workload.cross_tokens": 256}),
    "cross_tokens": When(512, {"workload.variants": [{"layers": [1], "cross": True}], "workload.cross_tokens": 256}), "cross": True,
    "variants.0.experts": When(False, {**MOE, **VARIED}),
    "embedding_norm": True, "latent.query_rank": When(512, LATENT), "latent.kv_rank": When(128, LATENT), "latent.nope": When(32, LATENT),
    "latent.rope": When(64, LATENT), "latent.value": When(128, LATENT), "sparse.top_k": When(512, SPARSE), "sparse.heads": When(16, SPARSE),
    "sparse.head_dim": When(64, SPARSE), "sparse.pattern": When("full,shared", SPARSE), "sparse.weighed": When(False, SPARSE),
    "query_rank": 256, "residual_streams": 2,
    **{f"compressed.{key}": When(value, ENTRIES) for key, value in {
        "output_groups": 8, "output_rank": 64, "window": 128, "ratios": [4, 16], "indexed": 16, "top_k": 32, "heads": 16, "head_dim": 64}.items()},
    "weight_dtypes": When({"mlp": "int8"}, SERVED), "encoder.vectors": When(256, ENCODER), "encoder.frame": When(80, ENCODER), "experts.count": When(16, MOE), "experts.active": When(4, MOE),
    "experts.ffn": When(1024, {"workload.experts": {"count": 8, "active": 2, "dense_layers": 1}}), "experts.shared": When(1024, MOE), "experts.shared_gate": When(True, MOE), "experts.latent": When(512, MOE), "experts.dense_layers": When(1, MOE),
    "experts.every": When(2, MOE), "experts.capacity": When(1.25, MOE), "experts.uneven": When(1.5, {**MOE, "strategy.ep": 4}), "experts.skew": When(1.2, {**MOE, "strategy.ep": 4}), "experts.variation": When(1.28, {**MOE, "strategy.ep": 4}),
    "experts.groups": When(4, GROUPS), "experts.active_groups": When(1, GROUPS), "experts.router_bias": When(True, MOE), "experts.balance_bias": When(True, MOE), "encoder.layers": When(2, ENCODER), "encoder.sequence": When(512, ENCODER), "mtp_layers": 1, "mtp_shared": When(True, {"workload.mtp_layers": 2}), "mtp_wide": When(True, {**NARROW, "workload.mtp_layers": 2}),
    "image.size": When(448, IMAGE), "image.patch": When(14, IMAGE), "image.channels": When(1, IMAGE), "image.classes": When(10, IMAGE),
    "image.class_token": When(False, IMAGE), "head": "masked", "pooler": True, "token_types": 2, "parallel": True,
    "dropout": True, "global_batch": 128, "dtype": "fp32", "weight_dtype": When("int8", SERVED), "kv_dtype": When("int8", SERVED), "weight_sparsity": When("2:4", SERVED),
    "wide_layers": When("mlp", {**SERVED, "workload.weight_dtype": "int8"}), "optimizer": "sgd", "task": "forward",
    "adapters.rank": When(64, ADAPTED), "adapters.targets": When("query", ADAPTED), "adapters.joined": When(True, ADAPTED), "adapters.base": When("fp8", ADAPTED),
    "adapters.double": When(False, {"workload.adapters": {"rank": 16, "base": "nf4"}}),
    "frozen": "mlp", "prompt": When(512, SERVED), "output": When(256, WRITTEN),
    "serving.arrival_rate": When("3 1/s", {**STEADY, "strategy": {"tp": 2, "dp": 8}}), "serving.chunk": When(64, STEADY), "serving.together": When(True, STEADY), "serving.likeliest": When(True, {**STEADY, "software.engine": {"selecting": "1 ns"}}), "serving.prefix_hits": When(0.5, STEADY),
    "serving.speculation.tokens": When(5, GUESSING), "serving.speculation.acceptance": When(0.9, GUESSING),
    "serving.speculation.cost": When(0.1, GUESSING), "serving.speculation.draft.model": When("mpt-125m", DRAFTED),
    "serving.speculation.draft.tp": When(1, DRAFTED), "serving.speculation.draft.dtype": When("fp8", DRAFTED), "serving.prefill.strategy": When("tp2", READERS),
    **{f"serving.images.{key}": When(value, PICTURES) for key, value in {
        "model": "vit-h", "count": 0.5, "tokens": 1, "tp": 1, "dtype": "fp32", "encode.strategy": "tp1", "encode.workers": 2}.items()},
    **{f"serving.images.tower.{key}": When(value, PAINTED) for key, value in {
        "size": 224, "patch": 16, "merge": 4, "layers": 8, "hidden": 512, "heads": 8, "ffn": 4096, "gated": True, "biases": False, "window": 16}.items()},
    "serving.images.tower.head_dim": When(128, PAINTED),
    "serving.images.tower.pattern": When("local,global", WINDOWED),
    **{f"serving.guided.{key}": When(value, GUIDED) for key, value in {"token": "9 ms", "share": 0.2, "overlapped": True}.items()},
    "serving.prefill.workers": When(3, READERS), "serving.experts.strategy": When("tp4", APART), "serving.experts.micro_batches": When(1, APART),
    **{f"serving.adapters.{key}": When(value, LORA) for key, value in {"count": 9, "share": 0.5, "skew": 1.0, "slots": 2}.items()},
    "serving.router": When("prefix", STEADY), "serving.cache_tokens": When(5000, STEADY), "serving.preemption_mode": When("swap", STEADY),
    "serving.swap_space": When("4 GiB", {**STEADY, "workload.serving": {"preemption_mode": "swap"}}),
    "serving.host_cache.capacity": When("256 GiB", HELD), "serving.host_cache.bandwidth": When("5 GB/s", HELD),
    **{f"serving.failures.{key}": When(value, FAILING) for key, value in {
        "mean_time": "9 s", "repair": "2 s", "keeps_output": False, "seed": 1}.items()},
    **{f"serving.autoscale.{key}": When(value, SCALING) for key, value in {
        "least": 2, "start": "9 s", "signal": "waiting", "up": 9, "down": 2, "interval": "3 s", "cooldown": "4 s"}.items()},
    **{f"serving.pools.{key}": When(value, STEADY) for key, value in {"strategy": "tp1", "workers": 2, "classes": ["a"]}.items()},
    "serving.host_cache.0.capacity": When("256 GiB", TIERS), "serving.host_cache.0.bandwidth": When("5 GB/s", TIERS),
}  # fmt: skip
PLANS = {
    "tp": When(4, {"strategy.dp": 4}), "cp": When(2, {"strategy.dp": 4}), "ep": When(2, MOE), "etp": When(1, {**MOE, **PIECES}), "redundant_experts": When(4, {**MOE, **SERVED, "strategy.ep": 4}), "attention_tp": When(1, PIECES),
    "mlp_tp": When(1, PIECES), "embedding_tp": When(1, PIECES), "dp": When(4, {"strategy.tp": 4}), "pp": When(2, {"strategy.dp": 4}), "zero": 2,
    "shard_group": When(4, ZERO), "attention_shard_group": When(4, ZERO), "mlp_shard_group": When(4, ZERO), "embedding_shard_group": When(4, ZERO),
    "experts_shard_group": When(4, {**MOE, **ZERO}), "apart": When(True, {**ZERO, "strategy.shard_group": 4}), "unsharded": When("embedding", ZERO),
    "distant": When("mlp", {"strategy.tp": 16, "strategy.dp": 1, "strategy.mlp_tp": 8, "strategy.sequence_parallel": True}),
    "sequence_parallel": True, "virtual_stages": When(2, PIPE), "micro_batch": 4, "recompute": "full", "schedule": When("gpipe", PIPE),
    "first_stage": When(3, PIPE), "last_stage": When(3, PIPE), "stage_layers": When([3, 5], PIPE),
    "offload": "optimizer", "recompute_layers": When(1, {"strategy.recompute": "full"}), "recompute_modules": ["layernorm", "mlp"], "offload_layers": When(1, {"strategy.offload": "activations"}), "placement": When(["pp", "tp", "dp"], PIPE),
    "far": When("optimizer", TIERED), "far_experts": When(50, {**MOE, **TIERED, "strategy.far": "experts"}),
    "far_cache": When(50, {**TIERED, **WRITTEN, "strategy.far": "cache"}),
}  # fmt: skip
ROLES = {"dense": "tp", "embedding": "mp-rows", "transformer": When(["ddp", "fsdp"], ENCODED),
         "experts": When("ep", {"workload.experts": {"count": 16, "active": 2}})}  # fmt: skip
DEGREES = {"kernel": When("CR", {"strategy.kp1": 8, "strategy.kp2": None}), "kp1": When(2, {"strategy.kp2": 4}), "kp2": When(4, {"strategy.kp1": 2}),
           "dp": When(8, {"strategy.kp1": 2}), "pp": When(1, {"strategy.dp": 8}), "lp": When(4, {"strategy.pp": None, "strategy.dp": 2}),
           "tp": When(4, {"strategy.kp2": None, "strategy.kp1": 2}), "cp": When(2, {"strategy.kp1": None, "strategy.kp2": 4}),
           "placement": ["pp", "dp", "tp"]}  # fmt: skip
SINGLE = {
    "dp": When(2, {"strategy.kp1": 2}),
    "pp": When(2, {"strategy.kp1": 2}),
    "lp": When(2, {"strategy.kp1": 2}),
    "placement": When(["tp", "dp", "pp"], {"strategy.kp1": 2, "strategy.dp": 2}),
}  # a product is one layer
REPLAYED = (  # what tests of replays vary
    "router", "cache_tokens", "preemption_mode", "swap_space", *(f"host_cache.{key}" for key in ("capacity", "bandwidth", "0.capacity", "0.bandwidth")),
    *(f"failures.{key}" for key in ("mean_time", "repair", "keeps_output", "seed")),
    *(f"autoscale.{key}" for key in ("least", "start", "signal", "up", "down", "interval", "cooldown")),
)  # fmt: skip
OTHERWISE = {  # what a field does where it changes nothing even in its context: not modelled, no file of the name, a single layer
    ("transformer", "workload.parallel"): "noted: workload.parallel: attention and MLP side by side are priced one after the other",
    ("transformer", "system.operation.lifetime"): "refused: the carbon of making a datasheet device is not known; leave it out",
    ("transformer", "workload.shared_cache"): "refused: some layers must make the keys and values that others share; give it in variants",
    ("dlrm", "workload.tables.0.width"): "refused: a dot product multiplies vectors of one width",
    ("dlrm", "workload.bottom.width"): "refused: a dot product multiplies vectors of one width",
    ("transformer", "workload.cross"): "refused: other layers must read the words; give it in variants",
    ("transformer", "profile"): "refused: there is no file none.csv",
    **{(kind, f"software.engine.{key}"): "noted: software.engine" for key in ("scheduler", "queue", "block", "chunked", "prefixes") for kind in ("transformer", "dlrm")},
    **{("transformer", f"workload.serving.{key}"): f"noted: workload.serving.{key.partition('.')[0]}" for key in REPLAYED},
    **{("transformer", f"workload.serving.pools.{key}"): "refused: " for key in ("strategy", "workers", "classes")},  # a pool has a name
    **{("transformer", f"workload.serving.images.encode.{key}"): "refused: " for key in ("strategy", "workers")},  # of a replay
    ("gemm", "strategy.pp"): "refused: p = 2 stages, but the model has 1 layers", ("gemm", "strategy.lp"): "refused: p = 2 stages, but the model has 1 layers",
}  # fmt: skip


def below(prefix, table):
    return {f"{prefix}.{key}" if prefix else key: entry if isinstance(entry, When) else When(entry, {}) for key, entry in table.items()}


TABLE = {
    "lstm": {**below("", TOP), **below("workload", LSTM), **below("strategy", DEGREES), **below("system", SYSTEMS)},
    "gemm": {**below("", TOP), **below("workload", GEMM), **below("strategy", {**DEGREES, **SINGLE}), **below("system", SYSTEMS)},
    "dlrm": {
        **below("", TOP),
        **below("workload", DLRM),
        **below("strategy", ROLES),
        **below("system", SYSTEMS),
        **below("software", STACK),
    },
    "transformer": {
        **below("", TOP),
        **below("workload", TRANSFORMER),
        **below("strategy", PLANS),
        **below("system", SYSTEMS),
        **below("software", STACK),
    },
}


def models(annotation):
    """Models of a file inside an annotation, and whether they are in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(annotation, False)]
    listed = typing.get_origin(annotation) is tuple
    return [(model, listed or inner) for part in typing.get_args(annotation) for model, inner in models(part)]


def leaves(model, prefix=""):
    """Paths of all fields of a model and of the models in it, without those that only name or describe."""
    found = set()
    for name, info in model.model_fields.items():
        inner = models(info.annotation)
        path = prefix + name
        if inner:
            found |= {leaf for one, listed in inner for leaf in leaves(one, f"{path}.0." if listed else f"{path}.")}
        elif path not in LABELS | SECTIONS:
            found.add(path)
    return found


def changed(document, path, value):
    """A document with a value at a path, None for a path that is taken out."""
    made = files.replace(document, tuple(int(part) if part.isdigit() else part for part in path.split(".")), value, "test")
    head, _, key = path.rpartition(".")
    return made if value is not None else {**made, head: {name: held for name, held in made[head].items() if name != key}}


def scenario(kind, task=None, extra=()):
    document = BASES[kind] if task is None else changed(BASES[kind], "workload.task", task)
    for path, value in dict(extra).items():
        document = changed(document, path, value)
    return document


def told(document):
    """All figures of a prediction, and its notes."""
    return whole(crossflow.predict(crossflow.from_dict(document)))


def columns(prediction):
    """Its figures that are columns, which cost no search for notes."""
    return {name: str(values[0]) for name, values in prediction.score.columns().items() if name.split(".")[0] not in KNOWN}


def whole(prediction):
    found = prediction.to_dict()
    return {key: value for key, value in found.items() if key not in UNTOLD and not key.startswith(KNOWN)}, found.get("notes", [])


UNTOLD = ("provenance", "name", "system", "remedies", "notes", "extrapolated")  # with what says how well figures are known


@functools.lru_cache(maxsize=64)
def before(text):
    try:
        found = crossflow.predict(crossflow.from_dict(json.loads(text)))
        return columns(found), whole(found)[0]
    except CrossflowError:
        return None


def answer(document, path, value, plain=None):
    """What a field does: it changes a figure, is refused with a sentence, or has a note that names it; else nothing.

    Where a document is none without the field, a `plain` one is what it is compared with.
    """
    start = before(json.dumps(document)) or before(json.dumps(plain or document))
    try:
        found = crossflow.predict(crossflow.from_dict(changed(document, path, value)))
        if start is None or start[0] != columns(found):
            return "changed"
        after, notes = whole(found)
    except SpecError as error:
        return f"refused: {'; '.join(problem.message for problem in error.problems)}"
    except CrossflowError as error:
        return f"refused: {error}"
    if start[1] != after:
        return "changed"
    named = (note for note in notes if CALLED.get(path, path) in note)
    return next((f"noted: {note}" for note in named), "")


CALLED = {"workload.mtp_layers": "multi-token prediction"} | {  # what notes call a field
    f"workload.serving.{key}": f"workload.serving.{key.partition('.')[0]}" for key in REPLAYED if "." in key
}
OWN = {"lstm": LstmSpec, "gemm": GemmSpec, "dlrm": DlrmSpec, "transformer": TransformerSpec}


@pytest.mark.parametrize("kind", TABLE)
def test_no_field_is_forgotten(kind):
    """A new field of a scenario needs a line in the tables above: a value, and what makes it matter."""
    strategy = {"dlrm": Hierarchy, "transformer": Plan}.get(kind)
    keys = {field.name for field in fields(strategy)} if strategy else set(GRAPH.keys)
    stack = {f"software.{leaf}" for leaf in leaves(SoftwareStack)} if strategy else set()
    system = {f"system.operation.{leaf}" for leaf in leaves(OperationSpec)} | {f"system.host.{leaf}" for leaf in leaves(Host)}
    own = {f"workload.{leaf}" for leaf in leaves(OWN[kind])} | {f"strategy.{key}" for key in keys}
    # In test_requests_fields.py, test_post_training.py and test_lasting_runs.py.
    elsewhere = ("requests.", "job.", *(f"run.{key}" for key in ("phases", "failures", "jitter", *OF_FAILURES)))
    asked = {leaf for leaf in leaves(ScenarioFile) if not leaf.startswith(elsewhere)}
    assert set(TABLE[kind]) == asked | own | stack | system


# Heads share out the width of a token: fused attention has as much to do with few as with many, but for what training keeps of each.
SAME = {"workload.heads"}
SHARED = {**dict.fromkeys(("run", "system", "software", "profile"), "transformer"), "placement": "lstm", "kernels_per_device": "lstm"}
MATTER = [(kind, path) for kind, table in TABLE.items() for path in table if SHARED.get(path.split(".")[0], kind) == kind]


@pytest.mark.cases(18)
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "path"), MATTER)
def test_every_field_matters_somewhere(kind, path):
    value, context = TABLE[kind][path]
    found = answer(scenario(kind, extra=context), path, value, plain=scenario(kind))
    assert found.startswith(OTHERWISE.get((kind, path), "changed"))


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "task"), [(kind, task) for kind, tasks in TASKS.items() for task in (None, *tasks)])
def test_no_field_is_ignored_in_silence(kind, task):
    """By itself, for every workload, at one of its tasks in turn; a value that a field has already says nothing."""
    document, tasks = scenario(kind, task), [None, *TASKS[kind]]
    asked = every(len(tasks), list(TABLE[kind].items()), tasks.index(task))
    table = {path: value for path, (value, _) in asked if files.held(document, path.split(".")) != value}
    assert {path for path, value in table.items() if not answer(document, path, value)} <= SAME


ENGINES, SERVICES = ("vllm", "sglang", "tensorrt-llm"), ("serving", "decode", "prefill")
SERVICE = {**SYSTEM, "template": "dgx-h100"}, {**MODEL, "prompt": 512, "output": 64}, {"tp": 2, "dp": 8}


def served(engine, task):
    system, workload, strategy = SERVICE
    return {"system": system, "workload": {**workload, "task": task}, "strategy": strategy, "software": {"like": engine}}


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("task", SERVICES)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_key_of_a_service_s_stack_is_ignored_in_silence(engine, task):
    """A stack with a setting of its own is like other measured runs; how well its figures are known is no effect of the setting.

    A ninth of the keys is asked about with each engine and for each task, so that each is asked about once.
    """
    document = served(engine, task)
    stack = crossflow.from_dict(document).stack.model_dump(mode="json")
    table = {path: value for path, (value, _) in below("software", STACK).items()}
    asked = every(9, list(table), 3 * ENGINES.index(engine) + SERVICES.index(task))
    other = {path: table[path] for path in asked if files.held({"software": stack}, path.split(".")) != table[path]}
    assert len(other) > len(asked) / 2
    assert {path for path, value in other.items() if not answer(document, path, value)} == set()


def test_a_key_of_training_is_noted_in_a_service():
    path = "software.sharing.copies"
    assert answer(served("vllm", "serving"), path, True).startswith(f"noted: {path} changes nothing here")


NOTED = [
    ("training", "strategy.recompute", "selective", "fused attention keeps no scores that could be computed again"),
    ("prefill", "strategy.recompute", "full", "it repeats work for the backward pass, which only training has"),
    ("training", "strategy.placement", ["tp", "pp", "dp"], "the ranks that communicate are as far apart in the default order"),
    ("forward", "workload.dropout", True, "only training drops activations, and task is forward"),
    ("training", "workload.prompt", 512, "only a service has requests, and task is training"),
    ("training", "software.dispatch", "nodes", "what it describes does not take place, or hides behind longer work"),
    ("training", "kernels_per_device", 4, "every kernel of a device waits for the one before it"),
    ("training", "system.operation.pue", 1.4, "powers enter the energy of a whole run only; give a run: section"),
    ("decode", "techlib.memory.HBM4.access_latency", "50 ns", "the devices are not made of it, or have a published figure in its place"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "path", "value", "why"), NOTED)
def test_what_depends_on_the_rest_is_noted(task, path, value, why):
    assert f"{path} changes nothing here: {why}" in told(changed(scenario("transformer", task), path, value))[1]


REFUSED = [
    ("transformer", {**PARTS}, "workload.positions", "alibi", "no layer has attention; leave it out"),
    ("transformer", {**PARTS, "workload.ssm": {"heads": 32, "state": 64, "mlp": False}, "workload.ffn": None}, "workload.gated", False,
     "no layer has an MLP; leave it out"),
    ("transformer", {"workload.gated": False}, "workload.gate_limit", 7, "gated is false, and only two branches have a limit; leave it out"),
    ("dlrm", {}, "run.tokens", 1e9, "a dlrm has no tokens; give samples or steps"),
    ("dlrm", {}, "strategy.experts", "ep", "experts ep, but the model has no layers of type experts; leave it out"),
    ("dlrm", {"workload.dense_features": None, "workload.bottom": {"layers": 2, "width": 64}}, "workload.dense_features", 26,
     "square layers of the bottom MLP take 64 numbers in; list its widths, or leave it out"),
    ("transformer", {}, "workload.max_positions", 2048, "only learned positions have rows, positions is rotary; leave it out"),
    ("transformer", {}, "workload.relative_buckets", 64, "only relative positions have buckets, positions is rotary; leave it out"),
    ("transformer", LATENT, "workload.kv_heads", 4, "latent attention has dimensions of its own; leave it out, or leave out latent"),
    ("transformer", LATENT, "workload.positions", "alibi", "latent attention rotates latent.rope elements of a head, or none; leave it out"),
    ("transformer", {"workload.window": {"size": 128}}, "workload.window.global_rotary", False, "the pattern has no global layers; leave it out"),
    ("transformer", {"workload.head": "none"}, "workload.head_bias", True, "there is no product with the vocabulary where head is none; leave it out"),
    ("transformer", {"workload.experts": {"count": 8, "active": 2, "ffn": 4096}}, "workload.ffn", 1024,
     "every layer has experts in the place of its MLP, with experts.ffn = 4096; give the same here"),
    ("transformer", IMAGE, "workload.tied_embeddings", True, "a model of images has no table of words that its head could share; leave it out"),
    ("transformer", {**IMAGE, "workload.task": "prefill"}, "workload.prompt", 9, "a model of images reads the patches of `image`; leave it out"),
    ("transformer", {"workload.causal": False, "workload.task": "prefill"}, "workload.output", 9,
     "only a causal decoder with a language head writes tokens; leave it out"),
    ("transformer", {**IMAGE, "workload.head": "none", "workload.image": {"size": 224, "patch": 16}}, "workload.image.classes", 9,
     "only head: classifier has classes, head is none; leave it out"),
    ("transformer", {**STEADY, "workload.task": "decode"}, "workload.serving", {"chunk": 64}, "only task: serving has it, and task is decode; leave it out"),
    ("transformer", {**STEADY, "workload.serving": {"arrival_rate": "3 1/s"}}, "strategy.micro_batch", 4,
     "micro_batch: a step takes the requests that have arrived (serving.arrival_rate); leave it out"),
    ("lstm", {"strategy": {"dp": 64}}, "strategy.kernel", "CR",
     "kernel: CR cuts one dimension into kp1 parts; give kp1, or leave kernel out"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "context", "path", "value", "sentence"), REFUSED)
def test_what_has_no_meaning_is_refused(kind, context, path, value, sentence):
    assert answer(scenario(kind, extra=context), path, value).endswith(sentence)


@pytest.mark.slow
def test_a_setting_that_a_scenario_cannot_do_without_matters():
    """Balanced stages may be empty where even ones may not; tensors need a host to lie on."""
    host = {
        "system": {"template": "a100-ib-cluster", "nodes": 2, "host": {"capacity": "2 TB", "bandwidth": "400 GB/s", "utilisation": 0.45}}
    }
    deep = {"strategy": {"tp": 2, "pp": 8}, "workload.layers": 4, "software.stages": "balanced"}
    for context in (deep, {**host, "strategy.offload": "optimizer"}):
        assert told(scenario("transformer", extra=context))[1] == []


def test_keys_of_a_model_file_are_not_the_scenarios():
    """It describes a model for all tasks; what the scenario itself writes as it stands there is said to it."""
    served = {"system": SYSTEM, "workload": {"model": "megatron-1.7b", "task": "prefill", "global_batch": 16}, "strategy": "dp16"}
    assert told(served)[1] == []
    assert len(told(changed(served, "workload.dropout", True))[1]) == 1


def test_dropout_costs_training_alone():
    for task in ("forward", "prefill", "decode"):
        assert told(scenario("transformer", task))[0] == told(scenario("transformer", task, {"workload.dropout": True}))[0]


@pytest.mark.slow
def test_strategies_that_equal_another_are_not_listed():
    made, unfused = (crossflow.from_dict(scenario("transformer", extra=extra)) for extra in ({}, UNFUSED))
    listed = [every_strategy(one.workload, one.nodes, fused=one.fused_attention) for one in (made, unfused)]
    assert [any("selective" in text for text in texts) for texts in listed] == [False, True]
    assert not any("selective" in other.strategy for other in crossflow.explain(made).strategies)


def test_a_search_has_a_row_for_what_is_refused(tmp_path):
    searched = {
        "space": {"workload.relative_buckets": [32, 64]},
        "searches": {"all": {"searcher": "exhaustive", "prune": False}},
        "objectives": "step_time_s",
    }
    (tmp_path / "s.yaml").write_text(json.dumps({"name": "s", "scenario": scenario("transformer"), **searched}))
    one, other = crossflow.run_study(tmp_path / "s.yaml", out=tmp_path).rows
    assert (one["feasible"], other["feasible"]) == (True, False)
    assert other["reason"].endswith("only relative positions have buckets, positions is rotary; leave it out")


def test_technologies_of_a_datasheets_device_that_change_only_energy_are_noted():
    """Its rates and bandwidths are published ones, which no choice of a link or a memory moves."""
    system = {"template": "dgx-h100", "nodes": 2, "technology": {"link": "XDR"}}
    data = {"system": system, "workload": {"model": "llama3-8b", "global_batch": 16}, "strategy": "tp8-dp2"}
    found = crossflow.predict(crossflow.from_dict(data))
    plain = crossflow.predict(crossflow.from_dict({**data, "system": {**system, "technology": {}}}))
    assert found.step_time == plain.step_time
    assert found.score.energy[0] != plain.score.energy[0]
    assert any(note.startswith("system.technology.link changes nothing but energy here") for note in found.notes)
