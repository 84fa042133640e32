"""Rules of MaxText's keys that several settings decide: the mesh over slices and chips, batches, stages, types and what is computed again.

A degree lies on an axis of the mesh twice: its part within a slice (``ici_``) and its part over slices (``dcn_``). Data-parallel ranks that
share out the weights are the axis fsdp, those that hold copies the axis data; experts lie on an axis of their own, whose ranks are
data-parallel for all else and share out its weights [1]_. A compiled step runs the pipeline forward, and then backward.

References
----------
.. [1] AI-Hypercomputer/maxtext, src/MaxText/configs/base.yml, commit 003b41698f6e, 2025: mesh_axes, logical_axis_rules, remat_policy and
   the comments of each key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from crossflow.base.errors import Problem
from crossflow.edges.launch.meaning import Flags, Meaning, MeantFields, data_degree
from crossflow.edges.launch.models import by_maxtext, names_of, preset_of, preset_settings
from crossflow.edges.launch.settings import FlatSettings, of_model
from crossflow.edges.launch.table import Found, Remark
from crossflow.parallel.strategy.plan import Plan

BASE = "base.yml"  # which holds every key with its default
AXES = ("data", "pipeline", "fsdp", "context", "tensor", "tensor_sequence", "expert")
LEVELS = ("dcn", "ici")  # over slices, within one
# What policies compute again of a layer, beside the norms and activations that all do; `full` computes all of it again.
POLICIES: Mapping[str, frozenset[str]] = {
    "minimal_with_context": frozenset(), "minimal": frozenset({"attention"}), "save_qkv_proj": frozenset({"attention", "output", "mlp"}),
}  # fmt: skip
ALWAYS = frozenset({"norm", "activation"})
# Tensors of a custom policy, by what is computed again where they are not kept.
TENSORS: Mapping[str, tuple[str, ...]] = {
    "attention": ("context",), "output": ("out_proj",), "mlp": ("mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo"),
}  # fmt: skip
WHOLE_MLP = ({"mlpwi", "mlpwo"}, {"mlpwi_0", "mlpwi_1", "mlpwo"})  # of an MLP whose first products are one, or two
QUERIES = ("query_proj", "key_proj", "value_proj")
# Modules of a strategy by what a stack calls them.
MODULES = {"layernorm": "norm", "moe_act": "activation", "core_attn": "attention", "mlp": "mlp"}


# ---------------------------------------------------------------------------------------------- reading


def meaning(found: Found, devices: int | None) -> Meaning:
    """Settings that the keys of a file mean, on so many devices where they are known."""
    fields: dict[str, Any] = dict(found.fields)
    problems: list[Problem] = []
    remarks: list[Remark] = []
    missing: dict[str, str] = {}
    name = found.values.get("model_name", "default")
    preset = by_maxtext(name)
    if preset is None:
        missing["workload.model"] = f"no preset has the dimensions of MaxText's {name}"
    else:
        fields["workload.model"] = preset
    axes = _axes(found, devices, problems)
    if axes is not None:
        fields |= dict(_ranks(found, axes))
        fields |= dict(_batches(found, axes, fields, problems))
        if preset is not None:
            fields |= dict(_stages(found, axes, preset_settings(preset)["workload.layers"], problems))
    if not str(found.values.get("base_config", BASE)).endswith(BASE):
        remarks.append(
            found.remark("base_config", f"values of this file are not read, only those that stand here; others are those of {BASE}")
        )
    fields |= dict(_types(found))
    fields |= dict(_again(found, remarks))
    fields |= dict(_dropped(found, preset, remarks))
    return Meaning(fields=fields, unmodelled=tuple(remarks), problems=tuple(problems), missing=missing)


def _axes(found: Found, devices: int | None, problems: list[Problem]) -> dict[str, int] | None:
    """Sizes of the axes over all devices; None where an axis takes the rest of the devices, and they are not known."""
    sizes = {
        f"{level}_{axis}": found.values.get(f"{level}_{axis}_parallelism", -1 if (level, axis) in (("dcn", "data"), ("ici", "fsdp")) else 1)
        for level in LEVELS
        for axis in AXES
    }
    if none := [name for name, size in sizes.items() if size == 0]:
        problems.append(found.problem(f"{none[0]}_parallelism", "expected a whole number from 1, or -1 for the rest, got 0"))
        return None
    slices = max(found.values.get("num_slices", -1), 1)
    for level in LEVELS:
        open_ = [name for name, size in sizes.items() if name.startswith(level) and size < 1]
        cut = math.prod(size for name, size in sizes.items() if name.startswith(level) and size > 0)
        if len(open_) > 1:
            problems.append(found.problem(f"{open_[1]}_parallelism", f"only one axis of {level} can take the rest (-1)"))
            return None
        if open_ and level == "dcn":
            sizes[open_[0]] = max(slices // cut, 1)
        elif open_:
            if devices is None:
                return None
            over = math.prod(size for name, size in sizes.items() if name.startswith("dcn"))
            rest, wrong = data_degree(found, devices, {"slices": over, "other axes": cut}, f"{open_[0]}_parallelism")
            if wrong:
                problems += wrong
                return None
            sizes[open_[0]] = rest
    whole = {axis: math.prod(sizes[f"{level}_{axis}"] for level in LEVELS) for axis in AXES}
    made = math.prod(whole.values())
    if devices is not None and made != devices:
        problems.append(found.problem("ici_fsdp_parallelism", f"the axes make {made} devices, and there are {devices}"))
    if whole["tensor"] > 1 and whole["tensor_sequence"] > 1:
        problems.append(found.problem("ici_tensor_sequence_parallelism", "tensor and tensor_sequence together are not modelled; give one"))
    return whole


def _ranks(found: Found, axes: Mapping[str, int]) -> MeantFields:
    """Degrees, and over how many ranks weights are sharded."""
    tensor = max(axes["tensor"], axes["tensor_sequence"])
    yield from (("strategy.tp", tensor), ("strategy.cp", axes["context"]), ("strategy.pp", axes["pipeline"]))
    yield "strategy.sequence_parallel", axes["tensor_sequence"] > 1
    yield "strategy.dp", axes["data"] * axes["fsdp"] * axes["expert"]
    if axes["expert"] > 1:
        yield "strategy.ep", axes["expert"]
    sharing = axes["fsdp"] * axes["expert"] * axes["context"]
    if sharing > 1:
        yield "strategy.zero", 3
        if axes["data"] > 1:
            yield "strategy.shard_group", sharing
    elif found.values.get("shard_optimizer_over_data"):
        yield "strategy.zero", 1
    kept = [what for what, key in (("optimizer", "optimizer"), ("weights", "parameter")) if found.values.get(f"{key}_memory_host_offload")]
    if found.values.get("remat_policy") == "custom" and found.values.get("decoder_layer_input") == "offload":
        kept.append("activations")
    if kept:
        yield "strategy.offload", tuple(kept)


def _batches(found: Found, axes: Mapping[str, int], fields: FlatSettings, problems: list[Problem]) -> MeantFields:
    """Samples of a microbatch, and of a step."""
    devices, each = math.prod(axes.values()), found.values.get("per_device_batch_size", 12.0)
    steps, dp, pp = found.values.get("gradient_accumulation_steps", 1), fields["strategy.dp"], fields["strategy.pp"]
    if each <= 0:
        problems.append(found.problem("per_device_batch_size", f"expected more than 0, got {each:g}"))
        return
    at_once = round(each * devices)
    if abs(at_once - each * devices) > 1e-6 * devices or at_once % dp or not at_once:
        told = f"{each:g} samples of each of {devices} devices are not divisible by {dp} data-parallel ranks"
        problems.append(found.problem("per_device_batch_size", told))
        return
    yield "workload.global_batch", at_once * steps
    if pp == 1:
        yield "strategy.micro_batch", at_once // dp
        return
    many = found.values.get("num_pipeline_microbatches", -1)
    many = pp if many < 1 else many
    if steps > 1:
        problems.append(
            found.problem("gradient_accumulation_steps", "a pipeline that is filled several times a step is not modelled; give 1")
        )
    elif at_once % (dp * many):
        problems.append(found.problem("num_pipeline_microbatches", f"{at_once // dp} samples of a replica make no {many} microbatches"))
    else:
        yield "strategy.micro_batch", at_once // (dp * many)


def _stages(found: Found, axes: Mapping[str, int], layers: int, problems: list[Problem]) -> MeantFields:
    """Stages and how often they are passed."""
    pp = axes["pipeline"]
    if pp == 1:
        return
    each, repeats = found.values.get("num_layers_per_pipeline_stage", 1), found.values.get("num_pipeline_repeats", -1)
    times = layers // (pp * each)
    if layers % (pp * each) or repeats not in (-1, times):
        told = f"{layers} layers are not {pp} stages of {each} layers{'' if repeats < 1 else f', passed {repeats} times'}"
        problems.append(found.problem("num_layers_per_pipeline_stage", told))
        return
    yield "strategy.schedule", "gpipe"
    yield "strategy.virtual_stages", times


def _types(found: Found) -> MeantFields:
    """The type that products compute in."""
    half = {"bfloat16": "bf16", "float32": "fp32"}[found.values.get("dtype", "bfloat16")]
    narrow = {"int8": "int8"}.get(found.values.get("quantization", ""), "fp8" if found.values.get("quantization") else "")
    yield "workload.dtype", narrow or half


def _again(found: Found, remarks: list[Remark]) -> MeantFields:
    """What the backward pass computes again: all of a layer, or what a policy does not keep."""
    policy = found.values.get("remat_policy", "full")
    kept = {what: all(found.values.get(name) == "device" for name in names[-1:]) for what, names in TENSORS.items()}
    queries = [found.values.get(name) == "device" for name in QUERIES]
    if policy == "full" or (policy == "custom" and not any((*kept.values(), *queries))):
        yield "strategy.recompute", "full"
        return
    again = POLICIES[policy] if policy != "custom" else frozenset(what for what, here in kept.items() if not here)
    if policy == "custom" and not all(queries):
        remarks.append(found.remark("query_proj", "queries, keys and values are predicted as kept"))
    products = [name for name in TENSORS["mlp"] if found.values.get(name) == "device"]
    if policy == "custom" and products and not any(all_ <= set(products) for all_ in WHOLE_MLP):
        so = "kept" if kept["mlp"] else "computed again"
        remarks.append(found.remark(products[0], f"the MLP is predicted as kept or computed again as a whole: here {so}"))
    yield "software.recomputed", tuple(sorted(ALWAYS | again, key=("norm", "activation", "attention", "output", "mlp").index))


def _dropped(found: Found, preset: str | None, remarks: list[Remark]) -> MeantFields:
    """Tokens beyond the capacity of an expert, which only products of padded experts leave out (`sparse_matmul: false`)."""
    capacity, sparse = found.values.get("capacity_factor", -1.0), found.values.get("sparse_matmul", True)
    if capacity > 0 and not sparse:
        yield "workload.experts.capacity", capacity
    elif capacity > 0:
        remarks.append(found.remark("capacity_factor", "not used by MaxText where sparse_matmul is true: no token is left out"))
    elif not sparse and preset is not None and any(path.startswith("workload.experts.") for path in preset_settings(preset)):
        why = "without a capacity_factor each expert there computes all tokens; predicted with those that are sent to it"
        remarks.append(found.remark("sparse_matmul", why))


# ---------------------------------------------------------------------------------------------- writing


def flags(settings: FlatSettings, plan: Plan, named: Any, nodes: tuple[int, int]) -> Flags:
    """Keys that say a plan, a batch and a model, where one setting alone does not decide them.

    named : the scenario's own model.
    nodes : devices of a slice, and slices.
    """
    unsaid: list[str] = []
    values: dict[str, Any] = {"base_config": BASE, "hardware": "tpu"}
    values |= _say_model(settings, named, unsaid)
    values |= _say_axes(settings, plan, nodes, unsaid)
    values |= _say_batches(settings, plan)
    values |= _say_stages(settings, plan, unsaid)
    values |= _say_types(settings, unsaid)
    values |= _say_again(settings, plan, unsaid)
    for what, key in (("optimizer", "optimizer"), ("weights", "parameter")):
        if what in plan.offload:
            values[f"{key}_memory_host_offload"] = True
    if capacity := settings.get("workload.experts.capacity"):
        values |= {"capacity_factor": float(capacity), "sparse_matmul": False, "megablox": False}
    if settings["strategy.placement"] != Plan().placement:
        unsaid.append(f"placement: {', '.join(plan.placement)}: MaxText lays tensor ranks nearest, and stages farthest apart")
    said = {
        "strategy.tp", "strategy.cp", "strategy.dp", "strategy.pp", "strategy.zero", "strategy.shard_group", "strategy.ep", "strategy.etp",
        "strategy.sequence_parallel", "strategy.placement", "strategy.offload", "strategy.micro_batch", "strategy.recompute",
        "strategy.recompute_modules", "strategy.schedule", "strategy.virtual_stages", "strategy.stage_layers", "strategy.first_stage",
        "strategy.last_stage", "workload.global_batch", "workload.dtype", "workload.experts.capacity", "software.recomputed",
        "software.overlap.tensor", "software.overlap.data", "software.fused", "software.gradient",
        *(path for path in settings if of_model(path)),
    }  # fmt: skip
    return Flags(values=values, said=frozenset(said), unsaid=tuple(unsaid))


def _say_model(settings: FlatSettings, named: Any, unsaid: list[str]) -> dict[str, Any]:
    preset = preset_of({**settings, "workload.mtp_layers": _layers_of_prediction(settings, named)}, named)
    names = names_of(preset).maxtext if preset else ()
    if not names:
        unsaid.append(f"workload: {preset or 'a model of these dimensions'}: MaxText has no model_name of it that crossflow knows")
        return {}
    return {"model_name": names[0], "mtp_num_layers": settings["workload.mtp_layers"] or None}


def _layers_of_prediction(settings: FlatSettings, named: Any) -> Any:
    """Layers of multi-token prediction that the preset has; how many are trained is a key of its own."""
    own = preset_settings(named) if isinstance(named, str) and not named.endswith(".json") else {}
    return own.get("workload.mtp_layers", settings["workload.mtp_layers"])


def _say_axes(settings: FlatSettings, plan: Plan, nodes: tuple[int, int], unsaid: list[str]) -> dict[str, Any]:
    """The mesh: degrees from the nearest ranks to those farthest apart, those of a slice first."""
    zero, group, etp = settings["strategy.zero"], settings["strategy.shard_group"], settings["strategy.etp"]
    shared = zero == 3 or plan.ep > 1 or plan.cp > 1
    if zero == 2:
        unsaid.append("zero: 2: MaxText shards optimizer states alone (zero: 1), weights too (zero: 3), or nothing")
    if shared and zero != 3:
        what = "ep" if plan.ep > 1 else "cp"
        unsaid.append(f"{what} with zero: {zero}: MaxText shares out weights over its {what} ranks; set zero: 3")
    if plan.ep > 1 and etp not in (0, plan.tp):
        unsaid.append(f"etp: {etp}: MaxText cuts experts over all tensor ranks; set etp: {plan.tp}, or tp: {etp}")
    sharing = (group or plan.dp * plan.cp) // plan.cp if zero == 3 else 1
    if plan.dp % plan.ep or (group and (group % plan.cp or sharing % plan.ep)):
        unsaid.append(f"ep: {plan.ep}: MaxText's expert ranks are data-parallel ranks of one shard group; give an ep that divides them")
        return {}
    tensor = "tensor_sequence" if plan.sequence_parallel else "tensor"
    fsdp = max(sharing // plan.ep, 1) if zero == 3 else 1
    degrees = {
        tensor: plan.tp, "context": plan.cp, "expert": plan.ep, "fsdp": fsdp, "data": plan.dp // (fsdp * plan.ep), "pipeline": plan.pp,
    }  # fmt: skip
    room, inside = nodes[0], {}
    for axis, degree in degrees.items():
        inside[axis] = math.gcd(degree, room)
        room //= inside[axis]
    if room > 1:
        unsaid.append(f"the degrees fill no slices of {nodes[0]} chips; give degrees whose product within a slice is {nodes[0]}")
    values: dict[str, Any] = {"dcn_data_parallelism": 1, "ici_fsdp_parallelism": 1}  # which take the rest where they are not given
    for axis, degree in degrees.items():
        for level, size in (("ici", inside[axis]), ("dcn", degree // inside[axis])):
            if size > 1:
                values[f"{level}_{axis}_parallelism"] = size
    return values | ({"shard_optimizer_over_data": True} if zero == 1 else {})


def _say_batches(settings: FlatSettings, plan: Plan) -> dict[str, Any]:
    devices, batch = plan.devices, settings["workload.global_batch"]
    steps = batch // (plan.dp * plan.micro_batch)
    if plan.pp > 1:
        return {"per_device_batch_size": batch / devices, "num_pipeline_microbatches": steps}
    return {"per_device_batch_size": plan.dp * plan.micro_batch / devices, "gradient_accumulation_steps": steps if steps > 1 else None}


def _say_stages(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> dict[str, Any]:
    if plan.pp == 1:
        return {}
    if plan.schedule != "gpipe":
        unsaid.append(f"schedule: {plan.schedule}: MaxText runs all forward passes, and then all backward passes; write schedule: gpipe")
    layers, chunks = settings["workload.layers"], plan.pp * plan.virtual_stages
    if (many := settings["workload.global_batch"] // (plan.dp * plan.micro_batch)) % plan.pp:
        unsaid.append(f"micro_batch: {plan.micro_batch}: MaxText's {many} microbatches must be a multiple of pp = {plan.pp}")
    if len(set(plan.division.layers(layers, chunks))) > 1:
        unsaid.append(f"pp: {plan.pp}: {layers} layers in {chunks} chunks are uneven, and MaxText's stages have as many layers each")
    return {"num_layers_per_pipeline_stage": layers // chunks, "num_pipeline_repeats": plan.virtual_stages}


def _say_types(settings: FlatSettings, unsaid: list[str]) -> dict[str, Any]:
    dtype = settings["workload.dtype"]
    kinds: dict[str, dict[str, Any]] = {
        "bf16": {}, "fp32": {"dtype": "float32"}, "fp8": {"quantization": "fp8_full"},
    }  # fmt: skip
    if dtype not in kinds:
        unsaid.append(f"workload.dtype: {dtype}: MaxText trains in {', '.join(kinds)}")
    return kinds.get(dtype, {})


def _say_again(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> dict[str, Any]:
    """The policy of what is computed again, and tensors of a custom one."""
    away = "activations" in plan.offload
    if plan.recompute_layers:
        unsaid.append(f"recompute_layers: {plan.recompute_layers}: MaxText has one policy for all layers")
    if plan.recompute == "full":
        return {"remat_policy": "custom", "decoder_layer_input": "offload"} if away else {"remat_policy": "full"}
    if away:
        unsaid.append(
            "offload: activations: MaxText is written to offload the inputs of layers that it computes again; set recompute: full"
        )
    if odd := [module for module in plan.repeated if module not in MODULES]:
        unsaid.append(f"recompute_modules: {', '.join(odd)}: no policy of MaxText that crossflow writes computes it again by itself")
        return {}
    again = frozenset(settings.get("software.recomputed") or ()) | {MODULES[module] for module in plan.repeated}
    if not again >= ALWAYS - ({"activation"} if "mlp" in again else set()):
        unsaid.append(
            f"recompute: {plan.recompute}: MaxText computes norms and activations again in any case; write recompute: full, or"
            " --set 'software={like: maxtext, recomputed: [norm, activation]}'"
        )
        return {}
    own = again - ALWAYS
    if own - set(TENSORS):
        unsaid.append(f"software.recomputed: {', '.join(sorted(own - set(TENSORS)))}: no policy of MaxText that crossflow writes says it")
        return {}
    named = next((policy for policy, computed in POLICIES.items() if computed == own), None)
    if named is not None:
        return {"remat_policy": named}
    kept = [name for what, names in TENSORS.items() if what not in own for name in names]
    return {"remat_policy": "custom", **dict.fromkeys((*kept, *QUERIES), "device")}


def document(flags_: Mapping[str, Any], head: list[str]) -> str:
    """A YAML file with the keys, and the line that starts it as a comment."""
    import json

    line = "# python3 -m MaxText.train FILE run_name=RUN base_output_directory=gs://BUCKET dataset_type=synthetic"
    return "\n".join([*head, line, *(f"{name}: {json.dumps(value)}" for name, value in flags_.items()), ""])
