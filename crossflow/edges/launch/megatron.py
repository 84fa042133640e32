"""Rules of Megatron-LM's flags that several settings decide: stages, sharding, types, recomputation, and the widths that it derives.

References
----------
.. [1] NVIDIA/Megatron-LM, megatron/training/arguments.py, commit 000c4ac24f61, 2025; of Megatron-Core 0.19.2, 2026.
.. [2] https://docs.nvidia.com/megatron-core/developer-guide/latest/user-guide/features/pipeline_parallel_layout.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from crossflow.base.errors import Problem
from crossflow.base.limits import LAYERS, shown
from crossflow.edges.launch.meaning import Flags, Meaning, MeantFields, data_degree, pattern, runs
from crossflow.edges.launch.models import vocabulary_of
from crossflow.edges.launch.settings import FlatSettings, several
from crossflow.edges.launch.table import Found, Remark
from crossflow.parallel.strategy.mesh import REPEATED
from crossflow.parallel.strategy.plan import Plan

# Modules of --recompute-modules, as software stacks name what they always compute again.
CHUNKS = ("num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage")  # flags that say the chunks of a stage
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
STACK_MODULES = {"layernorm": "norm", "mla_up_proj": "latent", "moe_act": "activation", "mlp": "mlp", "moe": "experts"}
BY_PIPELINE = ("tp", "pp", "dp")  # order of ranks with --use-tp-pp-dp-mapping
LONGEST_LAYOUT = 20_000


# ---------------------------------------------------------------------------------------------- reading


def meaning(found: Found, devices: int | None) -> Meaning:
    """FlatSettings that the flags of a Megatron script mean, on so many devices where they are known."""
    fields: dict[str, Any] = dict(found.fields)
    problems: list[Problem] = []
    remarks: list[Remark] = []
    if devices is not None:
        parts = {key: fields[f"strategy.{key}"] for key in ("tp", "cp", "pp")}
        fields["strategy.dp"], wrong = data_degree(found, devices, parts, "tensor-model-parallel-size")
        problems += wrong
        if "workload.global_batch" not in fields and "strategy.micro_batch" in fields:
            fields["workload.global_batch"] = fields["strategy.micro_batch"] * fields["strategy.dp"]
    fields |= dict(_dimensions(found, fields))
    fields |= dict(_types(found, fields))
    fields |= dict(_mixture(found, fields, problems, remarks))
    fields |= dict(_stages(found, fields, problems))
    fields |= dict(_sharding(found, fields, remarks))
    fields |= dict(_recomputed(found, fields, remarks))
    fields |= dict(_windowed(found, problems))
    if "use-tp-pp-dp-mapping" in found.values:
        fields["strategy.placement"] = BY_PIPELINE
        if (fields.get("strategy.cp") or 1) * (fields.get("strategy.ep") or 1) > 1:
            remarks.append(
                found.remark("use-tp-pp-dp-mapping", "context and expert ranks are predicted outside of the pipeline, not inside")
            )
    return Meaning(fields=fields, unmodelled=tuple(remarks), problems=tuple(problems), missing=dict(_missing(fields)))


def _dimensions(found: Found, fields: FlatSettings) -> MeantFields:
    """Widths that Megatron derives of others, and what says that the model has them."""
    hidden, gated = fields.get("workload.hidden"), fields.get("workload.gated") or "quick-geglu" in found.values
    if "quick-geglu" in found.values:
        yield "workload.gated", True
    if "ffn-hidden-size" in found.values:
        yield "workload.ffn", found.values["ffn-hidden-size"]
    elif hidden:
        yield "workload.ffn", int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    if "group-query-attention" in found.values:
        yield "workload.kv_heads", found.values.get("num-query-groups", 1)
    if "multi-latent-attention" not in found.values:
        yield from ((path, None) for path in fields if path.startswith("workload.latent."))
        yield "workload.qk_norm", "shared" if "qk-layernorm" in found.values else None
    if "use-rotary-position-embeddings" in found.values and "position-embedding-type" not in found.values:
        yield "workload.positions", "rotary"
    positions = found.values.get("max-position-embeddings")
    if fields.get("workload.positions") == "learned" and positions and "use-rotary-position-embeddings" not in found.values:
        yield "workload.max_positions", positions
    if fields.get("workload.positions") != "relative":
        yield "workload.relative_buckets", None
    if fields.get("workload.biases"):
        yield "workload.qkv_bias", None
    yield "workload.dropout", max(found.values.get("attention-dropout", 0.1), found.values.get("hidden-dropout", 0.1)) > 0
    if "workload.vocabulary" not in fields and (known := vocabulary_of(found.values.get("tokenizer-type"))):
        yield "workload.vocabulary", known


def _types(found: Found, fields: FlatSettings) -> MeantFields:
    """Data types, precision of gradients and states of the optimizer."""
    given = found.values
    half = "bf16" if "bf16" in given else "fp16" if "fp16" in given else "fp32"
    narrow = {"delayed": "fp8", "tensorwise": "fp8", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
    dtype = "nvfp4" if "fp4-format" in given else narrow[given.get("fp8-recipe", "delayed")] if "fp8-format" in given else half
    yield "workload.dtype", dtype
    summed = "accumulate-allreduce-grads-in-fp32" in given or (half == "bf16" and "grad-reduce-in-bf16" not in given)
    yield "software.gradient", "fp32" if summed or half == "fp32" else "weight"
    if dtype != half and "first-last-layers-bf16" in given and (layers := fields.get("workload.layers")):
        start, end = given.get("num-layers-at-start-in-bf16", 1), given.get("num-layers-at-end-in-bf16", 1)
        ranges = [(0, start - 1)] * (start > 0) + [(layers - end, layers - 1)] * (end > 0)
        yield "workload.wide_layers", tuple(f"layers:{first}-{last}" if last > first else f"layers:{first}" for first, last in ranges)
    optimizer = {"sgd": "momentum", "muon": "momentum", "dist_muon": "momentum"}.get(given.get("optimizer", "adam"), "adam")
    yield "workload.optimizer", "sgd" if given.get("optimizer") == "sgd" and given.get("sgd-momentum", 0.9) == 0 else optimizer


def _mixture(found: Found, fields: FlatSettings, problems: list[Problem], remarks: list[Remark]) -> MeantFields:
    """Experts, in which layers they are, and how they are cut."""
    if "num-experts" not in found.values:
        yield from ((path, None) for path in fields if path.startswith("workload.experts.") or path == "strategy.ep")
        return
    if fields["strategy.ep"] > 1 and found.values.get("moe-token-dispatcher-type", "allgather") == "allgather":
        why = "allgather, also where it is not given: predicted as an exchange of only the tokens that an expert takes (alltoall)"
        remarks.append(found.remark("moe-token-dispatcher-type", why))
    if found.values["num-experts"] > fields["strategy.ep"] and not found.values.get("moe-grouped-gemm"):
        remarks.append(found.remark("moe-grouped-gemm", "not given: predicted as given, with the experts of a rank in one grouped product"))
    yield "workload.experts.router_bias", not found.values.get("disable-bias-linear", False)  # as every linear layer
    tensor = found.values.get("expert-tensor-parallel-size", 0)
    yield "strategy.etp", 0 if tensor == fields["strategy.tp"] else tensor
    layers, text = fields.get("workload.layers"), found.values.get("moe-layer-freq", "1")
    if text == "1" and "workload.experts.ffn" in fields:  # of all layers
        yield "workload.ffn", fields["workload.experts.ffn"]
        yield "workload.experts.ffn", None
    if layers is None or text == "1":
        return
    every = int(text) if text.isdecimal() and len(text) < 5 and int(text) else None
    marks = tuple(int(i % every == 0) for i in range(layers)) if every else pattern(text, layers)
    if not marks or not any(marks):
        problems.append(
            found.problem("moe-layer-freq", f"expected a whole number, or a list of {layers} marks such as [0]*3+[1]*{layers - 3}")
        )
        return
    dense, each, same = _every(marks)
    yield "workload.experts.dense_layers", dense
    yield "workload.experts.every", each
    if not same:
        remarks.append(
            found.remark("moe-layer-freq", f"experts are predicted in every {each}. layer after {dense} without, as many or nearly so")
        )


def _every(marks: tuple[int, ...]) -> tuple[int, int, bool]:
    """First layers without experts, each which one after them has some, and whether that is just what the marks say."""
    first = marks.index(1)
    for dense in (0, first):
        for each in range(1, len(marks) + 1):
            if marks == tuple(int(i >= dense and (i + 1) % each == 0) for i in range(len(marks))):
                return dense, each, True
    return 0, max(round(len(marks) / sum(marks)), 1), False


def _stages(found: Found, fields: FlatSettings, problems: list[Problem]) -> MeantFields:
    """Chunks of stages, and the layers of each."""
    given, pp, layers = found.values, fields["strategy.pp"], fields.get("workload.layers")
    if layers is None:
        return
    if "pipeline-model-parallel-layout" in given:
        sizes = layout_layers(given["pipeline-model-parallel-layout"])
        if sizes is None or len(sizes) % pp or sum(sizes) != layers:
            what = "is not understood" if sizes is None else f"has {len(sizes)} stages and {sum(sizes)} layers"
            problems.append(
                found.problem("pipeline-model-parallel-layout", f"the layout {what}; expected a multiple of {pp} stages, {layers} layers")
            )
            return
        yield "strategy.virtual_stages", len(sizes) // pp
        yield "strategy.stage_layers", sizes
        return
    chunks = given.get("num-virtual-stages-per-pipeline-rank", 1)
    if each := given.get("num-layers-per-virtual-pipeline-stage"):
        if layers % (pp * each):
            problems.append(
                found.problem("num-layers-per-virtual-pipeline-stage", f"{layers} layers are not divisible by pp x {each} = {pp * each}")
            )
            return
        chunks = layers // (pp * each)
    if pp == 1:
        problems += _of_one_stage(found, layers)
        return
    yield "strategy.virtual_stages", chunks
    sizes = _uneven(found, layers, pp, chunks)
    if sizes is None or sum(sizes) != layers or min(sizes) < 0:
        message = f"{layers} layers do not divide over pp x chunks = {pp} x {chunks}; give --pipeline-model-parallel-layout"
        problems.append(found.problem("pipeline-model-parallel-size", message))
        return
    yield "strategy.stage_layers", sizes


def _of_one_stage(found: Found, layers: int) -> Iterator[Problem]:
    """What Megatron does not take where there is one stage.

    Chunks of it: `validate_args` asks for more stages "when interleaved schedule is used". And layers of the first or the last stage,
    of which it builds these and no more.
    """
    for flag in CHUNKS:
        if flag in found.values:
            yield found.problem(flag, "there is one stage, and Megatron interleaves two or more; leave it out")
    for end in ("first", "last"):
        flag = f"decoder-{end}-pipeline-num-layers"
        if found.values.get(flag, layers) != layers:
            built = f"Megatron would build {found.values[flag]} of {layers} layers"
            yield found.problem(flag, f"there is one stage, of which {built}; leave it out")


def _uneven(found: Found, layers: int, pp: int, chunks: int) -> tuple[int, ...] | None:
    """Layers of every chunk where ends differ by flags; None where the rest does not divide."""
    given = found.values
    first, last = given.get("decoder-first-pipeline-num-layers"), given.get("decoder-last-pipeline-num-layers")
    if first or last:
        middle = pp - (first is not None) - (last is not None)
        rest = layers - (first or 0) - (last or 0)
        if rest % max(middle, 1) or (not middle and rest):
            return None
        stages = [first] * (first is not None) + [rest // max(middle, 1)] * middle + [last] * (last is not None)
        if any(stage % chunks for stage in stages if stage is not None):
            return None
        return tuple(stage // chunks for stage in stages if stage is not None) * chunks
    ends = "account-for-embedding-in-pipeline-split" in given, "account-for-loss-in-pipeline-split" in given
    each, over = divmod(layers + sum(ends), pp * chunks)
    if over:
        return None
    sizes = [each] * (pp * chunks)
    sizes[0] -= ends[0]
    sizes[-1] -= ends[1]
    return tuple(sizes)


def layout_layers(text: str) -> tuple[int, ...] | None:
    """Decoder layers of every stage of a layout [2]_, in the order of the model; None for what is none.

    >>> layout_layers("Et*3|(tt|)*3,m|L"), layout_layers("E||t|L"), layout_layers("Ex|L")
    ((3, 2, 2, 2, 0, 0), (0, 0, 1, 0), None)
    """
    plain = re.sub(r"[,\s]", "", text)
    for form in (r"\(([EtmL|]*)\)\*(\d{1,4})", r"([EtmL|])\*(\d{1,4})"):
        size = sum(len(part) * int(times) for part, times in re.findall(form, plain))
        if size > LONGEST_LAYOUT:
            return None
        plain = re.sub(form, lambda match: match[1] * int(match[2]), plain)
    return tuple(stage.count("t") for stage in plain.split("|")) if re.fullmatch(r"[EtmL|]{1,20000}", plain) else None


def _sharding(found: Found, fields: FlatSettings, remarks: list[Remark]) -> MeantFields:
    """What data-parallel ranks share out."""
    given, dp = found.values, fields.get("strategy.dp")
    zero = 1 if "use-distributed-optimizer" in given else 0
    if "use-megatron-fsdp" in given:
        zero = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}[
            given.get("data-parallel-sharding-strategy", "no_shard")
        ]
    if "use-torch-fsdp2" in given:
        zero = 2 if "torch-fsdp2-no-reshard-after-forward" in given else 3
    yield "strategy.zero", zero
    copies = given.get("num-distributed-optimizer-instances", 1)
    if copies > 1 and zero == 3 and dp:
        yield "strategy.shard_group", dp * fields["strategy.cp"] // copies
    elif copies > 1:
        remarks.append(
            found.remark("num-distributed-optimizer-instances", "states are predicted as shared out over all data-parallel ranks")
        )
    if "optimizer-cpu-offload" in given:
        yield "strategy.offload", ("optimizer",)
        if given.get("optimizer-offload-fraction", 1.0) < 1:
            remarks.append(found.remark("optimizer-offload-fraction", "the host is predicted to keep all states of the optimizer"))


def _recomputed(found: Found, fields: FlatSettings, remarks: list[Remark]) -> MeantFields:
    """What the backward pass computes again."""
    given = found.values
    granularity = given.get("recompute-granularity", "selective" if "recompute-activations" in given else None)
    modules = given.get("recompute-modules", ("core_attn",))
    if granularity is None:
        return
    if granularity == "full":
        yield "strategy.recompute", "full"
        count, chunks = given.get("recompute-num-layers", 1), fields.get("strategy.virtual_stages", 1)
        if given.get("recompute-method") == "block":
            yield "strategy.recompute_layers", count * chunks
        elif given.get("recompute-method") == "uniform" and count > 1:
            remarks.append(found.remark("recompute-num-layers", f"the input of every layer is predicted as kept, not of every {count}."))
        return
    if others := [name for name in modules if name not in REPEATED]:
        remarks.append(found.remark("recompute-modules", f"{', '.join(others)}: predicted as kept"))
    there = tuple(name for name in REPEATED if name in modules and name not in _lacking(fields))
    if idle := [name for name in REPEATED if name in modules and name not in there]:
        remarks.append(found.remark("recompute-modules", f"{', '.join(idle)}: nothing of the model is that"))
    if there:
        yield "strategy.recompute", "selective"
        yield "strategy.recompute_modules", () if there == REPEATED[:1] else there


def _lacking(fields: FlatSettings) -> set[str]:
    """Modules that a model does not have: Megatron passes over some of them."""
    experts, shared = fields.get("workload.experts.count"), fields.get("workload.experts.shared")
    dense = not experts or fields.get("workload.experts.dense_layers") or (fields.get("workload.experts.every") or 1) > 1
    there = {
        "mla_up_proj": fields.get("workload.latent.kv_rank"),
        "moe_act": experts,
        "moe": experts,
        "shared_experts": shared,
        "mlp": dense,
    }
    return {name for name, has in there.items() if not has}


def _windowed(found: Found, problems: list[Problem]) -> MeantFields:
    """Windows of attention, and which layers have them."""
    if "window-size" not in found.values:
        return
    sizes = re.fullmatch(r"\(?\s*(\d{1,9})\s*,\s*-?\d+\s*\)?", found.values["window-size"])
    if sizes is None:
        problems.append(found.problem("window-size", f"expected two numbers such as 4095,0, got {shown(found.values['window-size'])}"))
        return
    yield "workload.window.size", int(sizes[1]) + 1
    skip = found.values.get("window-attn-skip-freq")
    if skip is None:
        return
    if not skip.isdecimal() or not 2 <= int(skip[:5]) <= LAYERS:
        problems.append(found.problem("window-attn-skip-freq", f"expected a whole number from 2, got {shown(skip)}; lists are not read"))
        return
    yield "workload.window.pattern", ("local",) * (int(skip) - 1) + ("global",)


def _missing(fields: FlatSettings) -> Iterator[tuple[str, str]]:
    """What a prediction needs and the script does not say."""
    flags = {
        "layers": "--num-layers", "hidden": "--hidden-size", "heads": "--num-attention-heads", "sequence": "--seq-length",
        "vocabulary": "--vocab-size",
    }  # fmt: skip
    for key, flag in flags.items():
        if f"workload.{key}" not in fields:
            yield f"workload.{key}", f"the file has no {flag}"
    if "strategy.micro_batch" not in fields:
        yield "strategy.micro_batch", "the file has no --micro-batch-size"


# ---------------------------------------------------------------------------------------------- writing


def flags(settings: FlatSettings, plan: Plan) -> Flags:
    """Flags that say a plan and a model, where one setting alone does not decide them."""
    unsaid: list[str] = []
    remarks: list[str] = []
    values: dict[str, Any] = {}
    said: set[str] = set()
    for rule in (_say_stages, _say_sharding, _say_recomputed, _say_dimensions, _say_mixture, _say_types, _say_window):
        own, names = rule(settings, plan, unsaid)
        values |= own
        said |= names
    if plan.schedule != "1f1b":
        unsaid.append(f"schedule: {plan.schedule}: Megatron-Core has only 1f1b, with or without virtual_stages")
    order = several(plan)
    if settings["strategy.placement"] == Plan().placement:
        pass
    elif order == [block for block in BY_PIPELINE if block in order] and plan.cp * plan.ep == 1:
        values["use-tp-pp-dp-mapping"] = True
    else:
        unsaid.append(f"placement: {', '.join(plan.placement)}: Megatron lays ranks out as tp, dp, pp, or without cp and ep as tp, pp, dp")
    said |= {"strategy.schedule", "strategy.placement"}
    return Flags(values=values, said=frozenset(said), remarks=tuple(remarks), unsaid=tuple(unsaid))


SaidFlags = tuple[dict[str, Any], set[str]]


def _say_stages(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> SaidFlags:
    """Chunks and layers of stages: evenly by numbers, ends by numbers of their own, all else as a layout."""
    del unsaid
    said = {"strategy.virtual_stages", "strategy.stage_layers", "strategy.first_stage", "strategy.last_stage"}
    chunks, layers = plan.pp * plan.virtual_stages, settings["workload.layers"]
    sizes = plan.division.layers(layers, chunks)
    if plan.pp == 1:
        return {}, said
    if len(set(sizes)) == 1:
        return {"num-virtual-stages-per-pipeline-rank": plan.virtual_stages if plan.virtual_stages > 1 else None}, said
    if plan.virtual_stages == 1 and len(set(sizes[1:-1])) == 1 and min(sizes) > 0:
        first, last = (end if end != sizes[1] else None for end in (sizes[0], sizes[-1]))
        return {"decoder-first-pipeline-num-layers": first, "decoder-last-pipeline-num-layers": last}, said
    return {"pipeline-model-parallel-layout": _layout(sizes, settings["workload.mtp_layers"])}, said


def _layout(sizes: tuple[int, ...], further: int) -> str:
    """A layout of so many layers a stage [2]_, with layers of multi-token prediction on the last."""
    stages = ["t" * size if size < 4 else f"t*{size}" for size in sizes]
    return "E" + "|".join(stages) + "m" * further + "L"


def _say_sharding(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> SaidFlags:
    zero, group = settings["strategy.zero"], settings["strategy.shard_group"]
    said = {"strategy.zero", "strategy.shard_group", "strategy.offload"}
    values: dict[str, Any] = {"use-distributed-optimizer": True if zero else None}
    if zero > 1:
        values |= {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": {2: "optim_grads", 3: "optim_grads_params"}[zero]}
        values |= {"no-gradient-accumulation-fusion": True, "ckpt-format": "fsdp_dtensor"}
    if group:
        values["num-distributed-optimizer-instances"] = plan.dp * plan.cp // group
    if other := [what for what in plan.offload if what != "optimizer"]:
        unsaid.append(f"offload: {', '.join(other)}: Megatron's flags send only the optimizer's states to the host")
    elif plan.offload and not zero:
        unsaid.append("offload: optimizer with zero: 0: Megatron's host keeps only the states of its distributed optimizer (zero: 1)")
    elif plan.offload:
        values |= {"optimizer-cpu-offload": True, "use-precision-aware-optimizer": True}
    return values, said


def _say_recomputed(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> SaidFlags:
    modules = _repeated(settings, plan)
    lacking = _lacking(settings)
    known = [module for name, module in STACK_MODULES.items() if name not in lacking]
    if strange := [name for name in settings.get("software.recomputed") or () if name not in known and plan.recompute != "full"]:
        there = [name for name in REPEATED if name not in lacking]
        unsaid.append(f"software.recomputed: {', '.join(strange)}: of this model Megatron computes {', '.join(there)} again")
    values: dict[str, Any] = {}
    if plan.recompute == "full":
        values = {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
        if plan.recompute_layers:  # Megatron counts those of a chunk
            each = -(-plan.recompute_layers // plan.virtual_stages)
            values |= {"recompute-method": "block", "recompute-num-layers": each}
            if each * plan.virtual_stages != plan.recompute_layers:
                unsaid.append(f"recompute_layers: {plan.recompute_layers}: Megatron computes as many layers of every chunk again, {each}")
    elif modules:
        values = {"recompute-granularity": "selective"}
        if modules != REPEATED[:1]:
            values["recompute-modules"] = modules
    return values, {"strategy.recompute", "strategy.recompute_layers", "strategy.recompute_modules", "software.recomputed"}


def _repeated(settings: FlatSettings, plan: Plan) -> tuple[str, ...]:
    """Modules that a plan or its stack computes again, in Megatron's words and order."""
    always = settings.get("software.recomputed") or ()
    return tuple(name for name in REPEATED if name in plan.repeated or STACK_MODULES.get(name) in always)


def _say_dimensions(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> SaidFlags:
    del plan
    values: dict[str, Any] = {"ffn-hidden-size": settings["workload.ffn"], "tokenizer-type": "NullTokenizer"}
    said = {"workload.ffn", "workload.kv_heads", "workload.max_positions", "workload.qk_norm", "workload.dropout", "workload.model"}
    latent = "workload.latent.kv_rank" in settings
    if settings["workload.kv_heads"] is not None and not latent:
        values |= {"group-query-attention": True, "num-query-groups": settings["workload.kv_heads"]}
    values["max-position-embeddings"] = settings["workload.max_positions"] or settings["workload.sequence"]
    if settings["workload.gate_limit"] is not None:  # x sigmoid(1.702 x) (y + 1) of clamped x and y, the only gate with a limit there
        values |= {"swiglu": None, "quick-geglu": True, "glu-linear-offset": 1.0}
    if latent:
        values["multi-latent-attention"] = True
    if settings["workload.qk_norm"] == "per-head":
        unsaid.append("workload.qk_norm: per-head: Megatron's --qk-layernorm is one norm for all heads")
    if latent or settings["workload.qk_norm"]:
        values["qk-layernorm"] = True
    values |= {} if settings["workload.dropout"] else {"attention-dropout": 0.0, "hidden-dropout": 0.0}
    return values, said


def _say_mixture(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> SaidFlags:
    said = {"strategy.etp", "workload.experts.dense_layers", "workload.experts.every", "workload.experts.router_bias"}
    if "workload.experts.count" not in settings:
        return {"moe-router-topk": None}, said
    dense, every, layers = (settings[f"workload.{key}"] for key in ("experts.dense_layers", "experts.every", "layers"))
    if settings["workload.experts.router_bias"] != settings["workload.biases"]:
        unsaid.append("workload.experts.router_bias: Megatron's router has a bias where all linear layers have one, and only there")
    if settings["workload.experts.balance_bias"] and settings["workload.experts.score"] == "softmax":
        unsaid.append("workload.experts.balance_bias: true: Megatron adds it to scores of sigmoid or sqrtsoftplus; give experts.score")
    values: dict[str, Any] = {"expert-tensor-parallel-size": settings["strategy.etp"] or None}
    values["moe-token-dispatcher-type"] = "alltoall" if plan.ep > 1 else None
    grouped = settings["workload.experts.count"] > plan.ep or "activation" in settings.get("software.recomputed", ())
    values["moe-grouped-gemm"] = True if grouped else None
    if (settings["workload.experts.active"], settings["workload.experts.score"]) == (1, "softmax"):
        values["moe-router-pre-softmax"] = True  # of one score alone a softmax has no gradient
    if settings["workload.biases"] and (settings["strategy.etp"] or plan.tp) > 1:
        unsaid.append("workload.biases: true: Megatron's experts have biases only where they are not cut; add etp: 1")
    if plan.tp > 1 and not plan.sequence_parallel:
        unsaid.append("sequence_parallel: false: Megatron trains experts with tp only together with sequence_parallel: true")
    if (dense, every) != (0, 1):
        marks = tuple(int(i >= dense and (i + 1) % every == 0) for i in range(layers))
        values["moe-layer-freq"] = "+".join(f"[{mark}]*{count}" for mark, count in runs(marks))
    return values, said


def _say_types(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> SaidFlags:
    dtype, wide = settings["workload.dtype"], settings["workload.wide_layers"]
    said = {"workload.dtype", "workload.wide_layers", "workload.optimizer", "software.gradient"}
    formats: dict[str, dict[str, Any]] = {
        "fp32": {}, "fp16": {"fp16": True}, "bf16": {"bf16": True},
        "fp8": {"bf16": True, "fp8-format": "hybrid"}, "mxfp8": {"bf16": True, "fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
        "fp8_block": {"bf16": True, "fp8-format": "e4m3", "fp8-recipe": "blockwise"}, "nvfp4": {"bf16": True, "fp4-format": "e2m1"},
    }  # fmt: skip
    if dtype not in formats:
        unsaid.append(f"workload.dtype: {dtype}: Megatron trains in {', '.join(formats)}")
    values: dict[str, Any] = dict(formats.get(dtype, {}))
    if dtype == "fp8" and (wide or {"layernorm", "moe_act"}.intersection(_repeated(settings, plan))):
        values["fp8-recipe"] = "tensorwise"  # delayed scales go with neither
    summed = settings.get("software.gradient", "fp32")
    if dtype == "fp16" and summed == "fp32":
        values["accumulate-allreduce-grads-in-fp32"] = True
    elif dtype not in ("fp16", "fp32") and summed == "weight":
        values["grad-reduce-in-bf16"] = True
    if wide:
        ends = _ends(wide, settings["workload.layers"])
        if ends is None:
            unsaid.append(f"workload.wide_layers: {', '.join(wide)}: Megatron keeps only first and last layers in 16 bits")
        else:
            names = ("num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16")
            values |= {"first-last-layers-bf16": True, **dict(zip(names, ends, strict=True))}
    if settings["workload.optimizer"] != "adam":
        values |= {"optimizer": "sgd", **({"sgd-momentum": 0.0} if settings["workload.optimizer"] == "sgd" else {})}
    return values, said


def _ends(wide: tuple[str, ...], layers: int) -> tuple[int, int] | None:
    """First and last layers that ranges of layers are; None where they are others."""
    start = end = 0
    for entry in wide:
        found = re.fullmatch(r"layers:(\d+)(?:-(\d+))?", entry)
        if found is None:
            return None
        first, last = int(found[1]), int(found[2] or found[1])
        if first == 0 and not start:
            start = last + 1
        elif last == layers - 1 and not end:
            end = layers - first
        else:
            return None
    return start, end


def _say_window(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> SaidFlags:
    del plan
    if "workload.window.size" not in settings:
        return {}, set()
    kinds: tuple[str, ...] = tuple(settings["workload.window.pattern"])
    values: dict[str, Any] = {"window-size": f"{settings['workload.window.size'] - 1},0"}
    if kinds == ("local",) * (len(kinds) - 1) + ("global",) and len(kinds) > 1:
        values["window-attn-skip-freq"] = str(len(kinds))
    elif kinds != ("local",):
        unsaid.append(f"workload.window.pattern: {', '.join(kinds)}: Megatron's integer frequency puts one global layer after local ones")
    return values, {"workload.window.size", "workload.window.pattern"}


def script(words: list[str], nodes: tuple[int, int], head: list[str]) -> str:
    """A shell script that starts the flags on nodes of so many devices."""
    launcher = [
        f"torchrun --nnodes {nodes[1]} --nproc-per-node {nodes[0]}",
        '--node-rank "${NODE_RANK:-0}" --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}"',
        "pretrain_gpt.py",
    ]
    run = ["--mock-data", "--train-iters 20", "--lr 1.0e-4"]
    lines = " \\\n  ".join([*launcher, *words, *run])
    flags = dict(word.removeprefix("--").partition(" ")[::2] for word in words)
    set_before = [f"unset {name}" if value is None else f"export {name}={value}" for name, value in environment(flags).items()]
    return "\n".join(["#!/usr/bin/env bash", *head, "set -euo pipefail", *set_before, lines, ""])


def environment(flags: Mapping[str, Any]) -> dict[str, str | None]:
    """What Megatron asks of the environment [1]_, None for a variable that must not be set: beside tensor and context ranks kernels in
    the order of their issue, not with FSDP.
    """
    if "use-megatron-fsdp" in flags:
        return {CONNECTIONS: None}
    several = any(str(flags.get(name, "1")) != "1" for name in ("tensor-model-parallel-size", "context-parallel-size"))
    return {CONNECTIONS: "1"} if several else {}
