"""Rules of DeepSpeed's configuration that several settings decide: batches, types, what is shared out, and what the trainer says.

References
----------
.. [1] https://www.deepspeed.ai/docs/config-json/, DeepSpeed 0.18, 2026; what is written is taken by 0.19.8, which has no MiCS.
.. [2] https://www.deepspeed.ai/tutorials/autotp-training, 2026: tensor parallelism in training, with ZeRO 0 to 2.
.. [3] https://huggingface.co/docs/transformers/deepspeed, 2026: arguments of the trainer must match the values of the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crossflow.base.errors import Problem
from crossflow.base.limits import shown
from crossflow.edges.launch.meaning import Flags, Meaning, MeantFields, data_degree
from crossflow.edges.launch.models import by_huggingface, like_preset, names_of, preset_of
from crossflow.edges.launch.settings import FlatSettings, nested
from crossflow.edges.launch.table import Found, Remark
from crossflow.parallel.strategy.plan import Plan

Z = "zero_optimization."
CONFIG = "ds_config.json"
AUTO = "auto"  # what the trainer's arguments say


# ---------------------------------------------------------------------------------------------- reading


def meaning(found: Found, devices: int | None, trained: Meaning | None) -> Meaning:
    """FlatSettings that a configuration means with its trainer's arguments; `trained`: those of Megatron's flags, if any."""
    fields: dict[str, Any] = {**(trained.fields if trained else {}), **found.fields}
    problems: list[Problem] = list(trained.problems if trained else ())
    remarks: list[Remark] = list(trained.unmodelled if trained else ())
    missing: dict[str, str] = dict(trained.missing if trained else {})
    tp = found.values.get("tensor_parallel.autotp_size", fields.get("strategy.tp", 1))
    fields["strategy.tp"] = tp
    if devices is not None:
        parts = {"tp": tp, "cp": fields.get("strategy.cp", 1), "pp": fields.get("strategy.pp", 1)}
        fields["strategy.dp"], wrong = data_degree(found, devices, parts, "tensor_parallel.autotp_size")
        problems += wrong
    name = found.values.get("--model_name_or_path")
    if preset := by_huggingface(name) if name else None:
        fields["workload.model"] = preset
    elif trained is None:
        missing["workload.model"] = (
            f"no preset is known as {shown(name)}{like_preset(name)}" if name else "DeepSpeed's configuration does not describe the model"
        )
    fields |= dict(_batches(found, fields, problems, missing))
    if trained is None and name is None and AUTO in (found.values.get("bf16.enabled"), found.values.get("fp16.enabled")):
        missing["workload.dtype"] = "the configuration leaves the type to the trainer, whose arguments are not here"
    fields |= dict(_types(found, trained, left="workload.dtype" in missing))
    fields |= dict(_shared(found, fields, remarks))
    fields |= dict(_recomputed(found, fields))
    return Meaning(
        fields=fields, unmodelled=tuple(remarks), problems=tuple(problems), missing=missing,
        software="megatron-deepspeed-2023" if trained else "",
    )  # fmt: skip


def _number(found: Found, key: str, problems: list[Problem]) -> int | None:
    """A number of the configuration, None where it is absent or left to the trainer."""
    text = found.values.get(key, AUTO)
    if text == AUTO:
        return None
    if not text.isdecimal() or len(text) > 12 or int(text) < 1:
        problems.append(found.problem(key, f"expected a positive whole number or auto, got {shown(text)}"))
        return None
    return int(text)


def _batches(found: Found, fields: FlatSettings, problems: list[Problem], missing: dict[str, str]) -> MeantFields:
    """Samples of a microbatch and of a step: train_batch_size = micro batch x accumulation x data-parallel ranks [1]_."""
    whole, micro, times = (
        _number(found, key, problems) for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    micro = micro or found.values.get("--per_device_train_batch_size") or fields.get("strategy.micro_batch")
    dp = fields.get("strategy.dp")
    if whole is None:
        whole = fields.get("workload.global_batch")
    if dp is not None and micro is None and whole is not None:
        micro = max(whole // (dp * (times or 1)), 1)
    if dp is not None and whole is None and micro is not None:
        whole = micro * (times or 1) * dp
    if None not in (whole, micro, times, dp) and whole != (micro or 1) * (times or 1) * (dp or 1):
        message = (
            f"{whole} is not micro batch x accumulation x ranks = {micro} x {times} x {dp} = {(micro or 1) * (times or 1) * (dp or 1)}"
        )
        problems.append(found.problem("train_batch_size", message))
    if micro is not None:
        yield "strategy.micro_batch", micro
        missing.pop("strategy.micro_batch", None)
    else:
        missing["strategy.micro_batch"] = "neither the configuration nor the trainer's arguments say a number of samples"
    if whole is not None:
        yield "workload.global_batch", whole
    elif dp is not None:
        missing["workload.global_batch"] = "neither the configuration nor the trainer's arguments say a number of samples"


def _is(found: Found, key: str, argument: str) -> bool:
    """Whether a switch is on, by the configuration or, where it leaves that to the trainer, by an argument."""
    text = found.values.get(key, "false").lower()
    given = found.values.get(argument, "false").lower()
    return text == "true" or (text == AUTO and given in ("true", "1", ""))


def _types(found: Found, trained: Meaning | None, *, left: bool) -> MeantFields:
    """Type of products, unless it is `left` to a trainer that is not known, and the optimizer."""
    half = "bf16" if _is(found, "bf16.enabled", "--bf16") else "fp16" if _is(found, "fp16.enabled", "--fp16") else None
    if half is None and trained is not None:
        return
    if half is not None or not left:
        yield "workload.dtype", half or "fp32"
    named = found.values.get("optimizer.type", "adamw").lower()
    yield "workload.optimizer", "sgd" if named == "sgd" else "momentum" if named in ("lion", "muon", "onebitlion") else "adam"


def _shared(found: Found, fields: FlatSettings, remarks: list[Remark]) -> MeantFields:
    """What data-parallel ranks share out, and what the host keeps."""
    zero = fields["strategy.zero"]
    overlapped = found.values.get(f"{Z}overlap_comm", "true" if zero == 3 else "false").lower() != "false"
    yield "software.overlap.data", overlapped
    group = found.values.get(f"{Z}mics_shard_size", -1)
    if group > 0 and zero == 3:
        yield "strategy.shard_group", group
    if found.values.get(f"{Z}zero_hpz_partition_size", 1) > 1:
        why = "weights are predicted as gathered from all ranks in the backward pass too, not from copies inside the node"
        remarks.append(found.remark(f"{Z}zero_hpz_partition_size", why))
    kept = []
    for part, ours in (("optimizer", "optimizer"), ("param", "weights")):
        key = f"{Z}offload_{part}.device"
        where = found.values.get(key, "none")
        if where == "nvme":
            remarks.append(found.remark(key, "predicted as kept in the host's memory, not on its disks"))
        kept += [ours] if where != "none" else []
    if found.values.get(f"{Z}cpu_offload") and "optimizer" not in kept:
        kept.append("optimizer")
    if found.values.get("activation_checkpointing.cpu_checkpointing"):
        kept.append("activations")
    if kept:
        yield "strategy.offload", tuple(kept)


def _recomputed(found: Found, fields: FlatSettings) -> MeantFields:
    """Whole layers are computed again where the trainer checkpoints activations, or the configuration says how."""
    argument = found.values.get("--gradient_checkpointing")
    asked = argument is not None and argument.lower() in ("true", "1", "")
    section = any(found.values.get(f"activation_checkpointing.{key}") for key in ("partition_activations", "cpu_checkpointing"))
    number = found.values.get("activation_checkpointing.number_checkpoints", "null")
    if asked or section or number.isdecimal():
        yield "strategy.recompute", "full"
    elif "strategy.recompute" not in fields:
        yield "strategy.recompute", "none"


# ---------------------------------------------------------------------------------------------- writing


def flags(settings: FlatSettings, plan: Plan, named: Any) -> Flags:
    """Keys and arguments that say a plan, where one setting alone does not decide them; `named` is the scenario's own model."""
    unsaid: list[str] = []
    zero, group = settings["strategy.zero"], settings["strategy.shard_group"]
    said = {
        "strategy.dp", "strategy.micro_batch", "strategy.tp", "strategy.shard_group", "strategy.offload", "strategy.recompute",
        "strategy.recompute_modules",
        "strategy.placement", "workload.global_batch", "workload.dtype", "workload.optimizer", "software.overlap.data",
    }  # fmt: skip
    batch = settings["workload.global_batch"]
    values: dict[str, Any] = {
        "train_batch_size": batch, "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": batch // (plan.dp * plan.micro_batch),
        f"{Z}overlap_comm": settings.get("software.overlap.data", True),
    }  # fmt: skip
    if plan.tp > 1:
        values["tensor_parallel.autotp_size"] = plan.tp
        if zero == 3:
            unsaid.append(f"tp: {plan.tp} with zero: 3: DeepSpeed's automatic tensor parallelism goes with ZeRO 0 to 2")
        if plan.sequence_parallel:
            unsaid.append("sequence_parallel: true: DeepSpeed's automatic tensor parallelism does not divide the sequence")
    if group:
        unsaid.append(f"shard_group: {group}: DeepSpeed shares out over all replicas since it removed MiCS; leave shard_group out")
    if plan.pp > 1:
        unsaid.append(f"pp: {plan.pp}: the stages of DeepSpeed's pipelines are made in the training script; export to megatron")
    for part, ours in (("optimizer", "optimizer"), ("param", "weights")):
        if ours in plan.offload:
            values[f"{Z}offload_{part}.device"] = "cpu"
    if "activations" in plan.offload:
        values["activation_checkpointing.cpu_checkpointing"] = True
        if plan.recompute != "full":
            unsaid.append(f"offload: activations with recompute: {plan.recompute}: DeepSpeed moves only the inputs of checkpointed layers")
    if plan.recompute == "full":
        values |= {"--gradient_checkpointing": "true"}
    elif plan.recompute != "none":
        what = f"recompute_modules: {', '.join(plan.recompute_modules)}" if plan.recompute_modules else f"recompute: {plan.recompute}"
        unsaid.append(f"{what}: the trainer computes whole layers again, or nothing")
    values |= _say_types(settings, unsaid)
    if (preset := preset_of(settings, named)) and (names := names_of(preset).huggingface):
        values["--model_name_or_path"] = names[0]
    return Flags(values=values, said=frozenset(said), unsaid=tuple(unsaid))


def _say_types(settings: FlatSettings, unsaid: list[str]) -> dict[str, Any]:
    dtype, optimizer = settings["workload.dtype"], settings["workload.optimizer"]
    if dtype not in ("bf16", "fp16", "fp32"):
        unsaid.append(f"workload.dtype: {dtype}: DeepSpeed trains in bf16, fp16 or fp32")
    values: dict[str, Any] = {f"{dtype}.enabled": True} if dtype in ("bf16", "fp16") else {}
    if optimizer == "momentum":
        unsaid.append("workload.optimizer: momentum: DeepSpeed's configuration has sgd without states, and adam")
    return values | ({"optimizer.type": "SGD"} if optimizer == "sgd" else {})


def script(values: Mapping[str, Any], words: list[str], nodes: tuple[int, int], head: list[str]) -> str:
    """A shell script that writes the configuration and starts the trainer.

    The trainer of Hugging Face stops where its own arguments, or their defaults, say other batches or types than the configuration [3]_.
    """
    config = json.dumps(nested(values), indent=2)
    repeated = [
        f"--per_device_train_batch_size {values['train_micro_batch_size_per_gpu']}",
        f"--gradient_accumulation_steps {values['gradient_accumulation_steps']}",
    ]
    repeated += [f"--{half} true" for half in ("bf16", "fp16") if values.get(f"{half}.enabled")]
    launcher = f'deepspeed --num_nodes {nodes[1]} --num_gpus {nodes[0]} "${{TRAINER:-train.py}}" --deepspeed {CONFIG}'
    lines = " \\\n  ".join([launcher, *repeated, *words])
    return "\n".join(["#!/usr/bin/env bash", *head, f"cat > {CONFIG} <<'JSON'", config, "JSON", lines, ""])
