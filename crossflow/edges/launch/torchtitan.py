"""Rules of torchtitan's keys that several settings decide: replicas and shards, batches, stages, types and the model's flavour.

References
----------
.. [1] pytorch/torchtitan, torchtitan/config/job_config.py, commit 000204a4a8bf, 2025; of release 0.2.2, 2026, the last one with such files.
.. [2] pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py, 2025: how layers are divided over stages.
.. [3] pytorch/torchtitan 0.2.2, models/llama3/infra/parallelize.py and maybe_enable_amp of distributed/utils.py, 2026.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from crossflow.base.errors import Problem
from crossflow.edges.launch.meaning import Flags, Meaning, MeantFields, data_degree
from crossflow.edges.launch.models import by_flavour, names_of, preset_of, preset_settings
from crossflow.edges.launch.settings import FlatSettings, of_model
from crossflow.edges.launch.table import Found, Remark
from crossflow.parallel.strategy.plan import Plan

P = "parallelism."
# Schedules of PyTorch, each with ours and whether a rank has several stages.
SCHEDULES: Mapping[str, tuple[str, bool]] = {
    "1F1B": ("1f1b", False), "GPipe": ("gpipe", False), "Interleaved1F1B": ("1f1b", True), "LoopedBFS": ("gpipe", True),
    "InterleavedZeroBubble": ("zb-h1", True), "ZBVZeroBubble": ("zb-v", True), "DualPipeV": ("dualpipev", True),
}  # fmt: skip
MAX_STAGES = 4000
WITHOUT_PIPELINE = ("qwen3", "gpt_oss")  # models that torchtitan 0.2.2 does not divide into stages
WITHOUT_CONTEXT = ("deepseek_v3", "gpt_oss")  # and those whose attention it does not divide over context ranks
FILTERED = "quantize.linear.float8.filter_fqns"  # products that stay in 16 bits
ROTATED = f"{P}context_parallel_rotate_method"
SELECTIVE = ("norm", "activation", "product")  # modules that its selective checkpoints of operations compute again


# ---------------------------------------------------------------------------------------------- reading


def meaning(found: Found, devices: int | None) -> Meaning:
    """FlatSettings that the keys of a file mean, on so many devices where they are known."""
    fields: dict[str, Any] = dict(found.fields)
    problems: list[Problem] = []
    remarks: list[Remark] = []
    missing: dict[str, str] = {}
    name, flavour = (found.values.get(key, default) for key, default in (("model.name", "llama3"), ("model.flavor", "debugmodel")))
    preset = by_flavour(name, flavour)
    if preset is None:
        missing["workload.model"] = f"no preset has the dimensions of torchtitan's {name} {flavour}"
    else:
        fields["workload.model"] = preset
        if preset_settings(preset).get("workload.mtp_layers"):
            fields["workload.mtp_layers"] = 0
    fields |= dict(_replicas(found, fields, devices, problems, remarks))
    fields |= dict(_batches(found, fields, problems, remarks))
    if preset is not None:
        fields |= dict(_stages(found, fields, preset_settings(preset)["workload.layers"], problems))
        fields |= dict(_experts(found, fields, preset, problems))
    fields |= dict(_types(found, fields, remarks))
    if fields["strategy.tp"] > 1:
        fields["strategy.sequence_parallel"] = found.values.get(f"{P}enable_sequence_parallel", True)
    fields |= dict(_checkpoints(found, remarks))
    compiled = found.values.get("training.compile") or found.values.get("compile.enable")
    software = "torchtitan" if compiled else "torchtitan-eager"
    return Meaning(fields=fields, unmodelled=tuple(remarks), problems=tuple(problems), missing=missing, software=software)


def _checkpoints(found: Found, remarks: list[Remark]) -> MeantFields:
    """What a backward pass computes again: whole layers, or selected operations of them."""
    mode = found.values.get("activation_checkpoint.mode", "selective")
    option = found.values.get("activation_checkpoint.selective_ac_option", "op")
    each = mode == "selective" and option == "1"  # whole layers, of every layer
    yield "strategy.recompute", "full" if mode == "full" or each else "none"
    if mode == "memory_budget" or (mode == "selective" and option not in ("1", "op")):
        key = "mode" if mode == "memory_budget" else "selective_ac_option"
        remarks.append(found.remark(f"activation_checkpoint.{key}", "predicted as selective_ac_option: op, every second product"))
    if mode in ("selective", "memory_budget") and not each:
        yield "software.recomputed", SELECTIVE


def _replicas(found: Found, fields: FlatSettings, devices: int | None, problems: list[Problem], remarks: list[Remark]) -> MeantFields:
    """Data-parallel ranks, and over how many of them weights are sharded."""
    given = found.values
    copies, shard = given.get(f"{P}data_parallel_replicate_degree", 1), given.get(f"{P}data_parallel_shard_degree", -1)
    tp, cp, pp = (fields[f"strategy.{key}"] for key in ("tp", "cp", "pp"))
    key = f"{P}data_parallel_shard_degree"
    if shard == 0:
        problems.append(found.problem(key, "expected -1 or a positive number, got 0"))
        shard = -1
    if shard == -1:
        if devices is None:
            return
        shard, wrong = data_degree(found, devices, {"replicas": copies, "tp": tp, "cp": cp, "pp": pp}, key)
        problems += wrong
    elif devices is not None and devices != copies * shard * tp * cp * pp:
        degrees = f"{copies} x {shard} x {tp} x {cp} x {pp} = {copies * shard * tp * cp * pp}"
        problems.append(found.problem(key, f"replicas x shards x tp x cp x pp = {degrees}, and there are {devices} devices"))
    yield "strategy.dp", copies * shard
    if shard * cp == 1:
        if tp * pp > 1:
            why = "torchtitan trains in fp32 where it shards no weights beside tensor ranks or stages; predicted in the named type"
            remarks.append(found.remark(key, why))
        return
    policy = given.get(f"{P}fsdp_reshard_after_forward", "default")
    zero = 3 if policy == "always" or (policy == "default" and pp == 1) else 2
    yield "strategy.zero", zero
    if copies > 1 and zero == 3:
        yield "strategy.shard_group", shard * cp
    elif copies > 1:
        remarks.append(
            found.remark(f"{P}data_parallel_replicate_degree", "states are predicted as shared out over all data-parallel ranks")
        )
    if given.get("training.enable_cpu_offload"):
        if zero == 3:
            yield "strategy.offload", ("optimizer", "weights")
        else:
            yield "strategy.offload", ("optimizer",)
            remarks.append(found.remark("training.enable_cpu_offload", "the host is predicted to keep only the optimizer's states"))


def _batches(found: Found, fields: Mapping[str, Any], problems: list[Problem], remarks: list[Remark]) -> MeantFields:
    """Samples of a microbatch, and of a step."""
    local, whole = found.values.get("training.local_batch_size", 8), found.values.get("training.global_batch_size", -1)
    dp, piped = fields.get("strategy.dp"), fields["strategy.pp"] > 1
    micro = found.values.get(f"{P}pipeline_parallel_microbatch_size", 1) if piped else local
    yield "strategy.micro_batch", micro
    if local % micro:
        message = f"local_batch_size = {local} is not divisible by pipeline_parallel_microbatch_size = {micro}"
        problems.append(found.problem("training.local_batch_size", message))
    if whole > 0:
        yield "workload.global_batch", whole
    elif dp is not None:
        yield "workload.global_batch", local * dp
    if piped and whole > 0 and dp is not None and whole > local * dp:
        why = (
            f"the pipeline is predicted as filled once a step; with local_batch_size = {local} it is filled {whole / (local * dp):g} times"
        )
        remarks.append(found.remark("training.local_batch_size", why))


def _stages(found: Found, fields: FlatSettings, layers: int, problems: list[Problem]) -> MeantFields:
    """The schedule, and the layers of every chunk."""
    pp = fields["strategy.pp"]
    if pp == 1:
        return
    named = found.values.get(f"{P}pipeline_parallel_schedule", "1F1B")
    known = next((theirs for theirs in SCHEDULES if theirs.lower() == named.lower()), None)
    key = f"{P}pipeline_parallel_schedule"
    if known is None:
        problems.append(found.problem(key, f"expected one of {', '.join(SCHEDULES)}, got '{named}'"))
        return
    ours, several = SCHEDULES[known]
    yield "strategy.schedule", ours
    sizes = _sizes(found, layers, pp, several=several)
    if sizes is None or len(sizes) % pp or sum(sizes) != layers or min(sizes) < 0:
        stages = "more" if sizes is None else len(sizes)
        problems.append(
            found.problem(f"{P}pipeline_parallel_degree", f"{layers} layers in {stages} stages do not make {pp} ranks of as many stages")
        )
        return
    yield "strategy.virtual_stages", len(sizes) // pp
    yield "strategy.stage_layers", sizes


def _sizes(found: Found, layers: int, pp: int, *, several: bool) -> tuple[int, ...] | None:
    """Layers of every stage [2]_: by names of modules, by points of division, or evenly with ends that count as further layers."""
    given = found.values
    if parts := given.get(f"{P}module_fqns_per_model_part"):
        return (
            tuple(sum(str(module).startswith("layers.") for module in part) for part in parts) if isinstance(parts, (list, tuple)) else None
        )
    if points := given.get(f"{P}pipeline_parallel_split_points"):
        numbers = [point.strip().removeprefix("layers.") for text in points for point in text.split(",")]
        if not all(number.isdecimal() and len(number) < 6 for number in numbers):
            return None
        bounds = [0, *map(int, numbers), layers]
        return tuple(after - before for before, after in itertools.pairwise(bounds))
    first, last = (given.get(f"{P}pipeline_parallel_{end}_stage_less_layers", 1) for end in ("first", "last"))
    each = given.get(f"{P}pipeline_parallel_layers_per_stage")
    stages = math.ceil((layers + first + last) / each) if each else pp * (2 if several else 1)
    return divided(layers, stages, first, last) if stages <= MAX_STAGES else None


def divided(layers: int, stages: int, first: int, last: int) -> tuple[int, ...]:
    """Layers of so many stages where the ends have so many fewer [2]_.

    >>> divided(32, 4, 1, 1), divided(32, 4, 0, 0)
    ((8, 9, 8, 7), (8, 8, 8, 8))
    """
    least, over = divmod(layers + first + last, stages)
    sizes = [least + (i < over) for i in range(stages)]
    sizes[0] -= first
    sizes[-1] -= last
    return tuple(sizes)


def _experts(found: Found, fields: FlatSettings, preset: str, problems: list[Problem]) -> MeantFields:
    """How experts are cut and shared out; models without experts have no use for the keys."""
    degree, tensor = (found.values.get(f"{P}expert_{kind}_degree", 1) for kind in ("parallel", "tensor_parallel"))
    if "workload.experts.count" not in preset_settings(preset) or degree == 1:
        return
    yield "strategy.ep", degree
    tp = fields["strategy.tp"]
    if tensor not in (1, tp):
        problems.append(found.problem(f"{P}expert_tensor_parallel_degree", f"expected 1 or tensor_parallel_degree = {tp}, got {tensor}"))
    if tensor != tp:
        yield "strategy.etp", tensor


def _types(found: Found, fields: FlatSettings, remarks: list[Remark]) -> MeantFields:
    """Data types, and what is compiled."""
    del fields
    given = found.values
    words = [word.strip() for text in given.get("model.converters", ()) for word in text.split(",")]
    narrow = "mxfp8" if any(word.endswith("mx") for word in words) else "fp8" if any(word.endswith("float8") for word in words) else None
    half = {"bfloat16": "bf16", "float32": "fp32"}[given.get("training.mixed_precision_param", "bfloat16")]
    yield "workload.dtype", narrow or half
    if others := [word for word in words if word and not word.endswith(("mx", "float8"))]:
        remarks.append(found.remark("model.converters", f"{', '.join(others)}: predicted without"))
    narrowed = [flag for flag in (*found.values, *(one.flag for one in found.unmodelled)) if "float8." in flag]
    if narrowed and narrow is None:
        remarks.append(found.remark(narrowed[0], "model.converters names no quantize.linear.float8, so that torchtitan narrows nothing"))
    if wide := [name for name in found.values.get(FILTERED, ()) if name != "output"]:
        remarks.append(found.remark(FILTERED, f"{', '.join(wide)}: predicted in {narrow or half}, as all products but those of the head"))
    if given.get(f"{P}enable_async_tensor_parallel"):
        yield "software.overlap.tensor", "compiled"
    if found.values.get(ROTATED) == "alltoall":
        yield "software.ring.gathered", False


# ---------------------------------------------------------------------------------------------- writing


def flags(settings: FlatSettings, plan: Plan, named: Any) -> Flags:
    """Keys that say a plan, a batch and a model, where one setting alone does not decide them; `named` is the scenario's own model."""
    unsaid: list[str] = []
    values: dict[str, Any] = {}
    values |= _say_model(settings, plan, named, unsaid)
    values |= _say_shards(settings, plan, unsaid)
    values |= _say_stages(settings, plan, unsaid)
    values |= _say_types(settings, plan, unsaid)
    unsaid += _unsharded(settings, plan)
    if plan.tp > 1 and not plan.sequence_parallel:
        unsaid.append("sequence_parallel: false: torchtitan's tensor parallelism always divides the sequence; add sequence_parallel: true")
    if settings["workload.mtp_layers"]:
        unsaid.append(
            f"workload.mtp_layers: {settings['workload.mtp_layers']}: torchtitan has no multi-token prediction; set mtp_layers to 0"
        )
    if settings["strategy.placement"] != Plan().placement:
        unsaid.append(f"placement: {', '.join(plan.placement)}: torchtitan lays ranks out as tp, dp, pp")
    if settings["strategy.offload"] == ("optimizer", "weights"):
        values["training.enable_cpu_offload"] = True
    elif plan.offload:
        unsaid.append(
            f"offload: {', '.join(plan.offload)}: torchtitan's enable_cpu_offload moves weights and optimizer together, with zero: 3"
        )
    said = {
        "strategy.dp", "strategy.zero", "strategy.shard_group", "strategy.ep", "strategy.etp", "strategy.sequence_parallel",
        "strategy.placement", "strategy.offload", "strategy.micro_batch", "workload.global_batch", "workload.dtype",
        "workload.mtp_layers", "strategy.recompute", "strategy.recompute_modules",
        "strategy.schedule", "strategy.virtual_stages", "strategy.stage_layers", "strategy.first_stage", "strategy.last_stage",
        "software.overlap.tensor", "software.ring.gathered", "software.recomputed", "software.fused",
        *(path for path in settings if of_model(path)),
    }  # fmt: skip
    return Flags(values=values, said=frozenset(said), unsaid=tuple(unsaid))


def _unsharded(settings: FlatSettings, plan: Plan) -> list[str]:
    """What torchtitan lacks beside tensor ranks or stages where no weights are sharded: replicas, and narrow types [3]_."""
    divided = [f"{key}: {degree}" for key, degree in (("tp", plan.tp), ("pp", plan.pp)) if degree > 1]
    if settings["strategy.zero"] or plan.cp > 1 or not divided:
        return []
    beside = f"zero: 0 with {' and '.join(divided)}"
    if plan.dp > 1:
        return [f"{beside}: torchtitan trains unsharded replicas only where neither tp nor pp divides them; set zero: 2 or 3"]
    if settings["workload.dtype"] == "fp32":
        return []
    return [f"{beside}: torchtitan trains in fp32 where it shards no weights; use dp of 2 or more with zero: 2 or 3, or megatron"]


def _say_model(settings: FlatSettings, plan: Plan, named: Any, unsaid: list[str]) -> dict[str, Any]:
    preset = preset_of(settings, named)
    names = names_of(preset).torchtitan if preset else ()
    if names and plan.pp > 1 and names[0] in WITHOUT_PIPELINE:
        unsaid.append(f"pp: {plan.pp}: torchtitan has no pipelines for its models of {names[0]}")
    if names and plan.cp > 1 and names[0] in WITHOUT_CONTEXT:
        unsaid.append(f"cp: {plan.cp}: torchtitan does not divide the attention of its models of {names[0]} over context ranks")
    if not names:
        what = preset or "a model of these dimensions"
        unsaid.append(
            f"workload: {what}: torchtitan has no flavour of it that crossflow knows; export to megatron, whose flags say dimensions"
        )
        return {}
    return {"model.name": names[0], "model.flavor": names[1]}


def _say_shards(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> dict[str, Any]:
    """Replicas and shards, and the batches of each."""
    zero, group = settings["strategy.zero"], settings["strategy.shard_group"]
    shard = 1 if zero == 0 else plan.dp
    if zero == 1 or (zero == 0 and plan.cp > 1):
        what = "zero: 1" if zero else "zero: 0 with cp"
        unsaid.append(
            f"{what}: torchtitan shards weights too (zero: 3), keeps them gathered (zero: 2), or shards nothing (zero: 0, without cp)"
        )
    if group:
        shard = group // plan.cp
        if group % plan.cp:
            unsaid.append(f"shard_group: {group}: torchtitan's shard groups hold all {plan.cp} context ranks")
    values: dict[str, Any] = {
        f"{P}data_parallel_replicate_degree": plan.dp // max(shard, 1), f"{P}data_parallel_shard_degree": shard,
        "training.global_batch_size": settings["workload.global_batch"],
    }  # fmt: skip
    if zero > 1:
        values[f"{P}fsdp_reshard_after_forward"] = "never" if zero == 2 else "always"
    if plan.pp > 1:
        values["training.local_batch_size"] = settings["workload.global_batch"] // plan.dp
        values[f"{P}pipeline_parallel_microbatch_size"] = plan.micro_batch
    else:
        values["training.local_batch_size"] = plan.micro_batch
    etp = settings["strategy.etp"]
    if plan.ep > 1:
        values |= {f"{P}expert_parallel_degree": plan.ep, f"{P}expert_tensor_parallel_degree": etp or plan.tp}
    if etp not in (0, 1) or (etp and plan.ep == 1):
        unsaid.append(f"etp: {etp}: torchtitan cuts experts over all tensor ranks, or with ep over none")
    return values


def _say_stages(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> dict[str, Any]:
    """The schedule, and the layers of every stage by numbers or by names of modules."""
    if plan.pp == 1:
        return {}
    theirs = {ours: name for name, ours in SCHEDULES.items()}.get((plan.schedule, plan.virtual_stages > 1))
    if theirs is None:
        unsaid.append(f"schedule: {plan.schedule}: torchtitan has {', '.join(SCHEDULES)}, none of which is the same")
    sizes = plan.division.layers(settings["workload.layers"], plan.pp * plan.virtual_stages)
    values: dict[str, Any] = {f"{P}pipeline_parallel_schedule": theirs}
    if len(set(sizes)) == 1:
        ends = {f"{P}pipeline_parallel_{end}_stage_less_layers": 0 for end in ("first", "last")}
        return values | {f"{P}pipeline_parallel_layers_per_stage": sizes[0]} | ends
    names, at = [], 0
    for size in sizes:
        names.append([f"layers.{i}" for i in range(at, at + size)])
        at += size
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "output"]
    return values | {f"{P}module_fqns_per_model_part": names}


def _say_types(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> dict[str, Any]:
    dtype = settings["workload.dtype"]
    kinds: dict[str, dict[str, Any]] = {
        "bf16": {"training.mixed_precision_param": "bfloat16"}, "fp32": {"training.mixed_precision_param": "float32"},
        "fp8": {"model.converters": ("quantize.linear.float8",), "quantize.linear.float8.recipe_name": "rowwise"},
        "mxfp8": {"model.converters": ("quantize.linear.mx",)},
    }  # fmt: skip
    if dtype not in kinds:
        unsaid.append(f"workload.dtype: {dtype}: torchtitan trains in {', '.join(kinds)}")
    if plan.recompute_modules:
        listed = ", ".join(plan.recompute_modules)
        unsaid.append(f"recompute_modules: {listed}: torchtitan checkpoints operations or whole layers; write recompute: none or full")
    elif plan.recompute == "selective":
        unsaid.append("recompute: selective: torchtitan's attention keeps no scores that could be computed again; write recompute: none")
    again, mode = settings.get("software.recomputed") or (), plan.recompute
    if set(again) == set(SELECTIVE) and mode == "none":
        mode = "selective"
    elif again and mode != "full":
        listed = ", ".join(SELECTIVE)
        unsaid.append(
            f"software.recomputed: {', '.join(again)}: torchtitan recomputes {listed} together (selective_ac_option: op), or nothing"
        )
    values = {**kinds.get(dtype, {}), "activation_checkpoint.mode": mode, "compile.enable": "norm" in settings["software.fused"]}
    if mode == "selective":
        values["activation_checkpoint.selective_ac_option"] = "op"
    if settings.get("software.overlap.tensor") == "compiled":
        values[f"{P}enable_async_tensor_parallel"] = True
    if plan.cp > 1 and not settings["software.ring.gathered"]:
        values[ROTATED] = "alltoall"
    return values


def document(flags_: Mapping[str, Any], nodes: tuple[int, int], head: list[str]) -> str:
    """A TOML file with the keys, and the line that starts it as a comment."""
    import json

    release = "# For torchtitan 0.2 (pip install torchtitan==0.2.2): later releases have no such files."
    line = f"# torchrun --nnodes {nodes[1]} --nproc-per-node {nodes[0]} -m torchtitan.train --job.config_file FILE"
    sections: dict[str, list[str]] = {}
    for name, value in flags_.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, []).append(f"{key} = {json.dumps(list(value) if isinstance(value, tuple) else value)}")
    text = [*head, release, line]
    for section, keys in sections.items():
        text += ["", f"[{section}]", *keys]
    return "\n".join([*text, ""])
