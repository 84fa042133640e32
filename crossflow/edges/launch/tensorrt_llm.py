"""Rules of TensorRT-LLM's options that several settings decide: ranks of attention and of experts, requests, guesses, and the YAML file.

A server has ``tp_size`` ranks in every stage. With ``enable_attention_dp`` each of them has requests of its own; experts are cut over
``tp_size / ep_size`` ranks and shared out over ``ep_size`` in both cases [1]_.

References
----------
.. [1] https://nvidia.github.io/TensorRT-LLM/advanced/expert-parallelism.html, 2026.
.. [2] NVIDIA/TensorRT-LLM, tensorrt_llm/llmapi/llm_args.py, commit 000439672005, 2026: of limits each rank with requests of its own has
   the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from crossflow.base.errors import Problem
from crossflow.edges.launch.meaning import Flags, Meaning, MeantFields
from crossflow.edges.launch.models import model_settings, preset_of, preset_settings
from crossflow.edges.launch.servers import ServerRanks, is_mixture, limit, longest, meant_ranks, own_batches, ranks_of
from crossflow.edges.launch.settings import FlatSettings, nested, of_model, several
from crossflow.edges.launch.table import Found, Remark
from crossflow.edges.launch.vllm import lengths_missing, meant_model, meant_types, said_model, said_types
from crossflow.hardware.architecture.software import EngineHabits
from crossflow.parallel.strategy.plan import Plan

CONFIG = "trtllm.yaml"
QUANTIZED: Mapping[str, tuple[str, str]] = {
    "FP8": ("dtype", "fp8"), "FP8_PER_CHANNEL_PER_TOKEN": ("dtype", "fp8"), "FP8_BLOCK_SCALES": ("dtype", "fp8_block"),
    "NVFP4": ("dtype", "nvfp4"), "W4A16_AWQ": ("weight_dtype", "int4"), "W4A16_GPTQ": ("weight_dtype", "int4"),
    "W4A16_MXFP4": ("weight_dtype", "mxfp4"), "W8A16": ("weight_dtype", "int8"),
}  # fmt: skip
BY_CHECKPOINT = ("W4A8_AWQ", "W4A8_MXFP4_FP8", "W4A8_NVFP4_FP8", "W8A8_SQ_PER_CHANNEL", "MIXED_PRECISION", "NO_QUANT")
SLOTS = "moe_config.load_balancer.num_slots"


# ---------------------------------------------------------------------------------------------- reading


def meaning(found: Found, devices: int | None, engine: EngineHabits, told: str | None = None) -> Meaning:
    """What the options of a server mean.

    Parameters
    ----------
    engine : habits of the software stack, whose limits count where no option says any.
    told : the preset that crossflow's comment names, for a checkpoint whose name is not known.
    """
    fields: dict[str, Any] = dict(found.fields)
    problems: list[Problem] = []
    remarks: list[Remark] = []
    missing: dict[str, str] = {}
    preset = meant_model(found, "--model", fields, missing, told)
    model = model_settings(fields["workload.model"]) if "workload.model" in fields else {}
    ranks = _ranks(found, model, problems, remarks)
    fields |= dict(meant_ranks(ranks, mixture=is_mixture(model) or ranks.ep > 1))
    pp = fields["strategy.pp"]
    if devices is not None and devices != ranks.width * pp:
        problems.append(found.problem("--tp_size", f"tp x pp = {ranks.width} x {pp} = {ranks.width * pp}, and there are {devices} devices"))
    fields |= dict(_balanced(found, model, problems, remarks))
    fields |= dict(_speculation(found, problems, missing))
    fields |= dict(meant_types(found, preset, problems, remarks, QUANTIZED, BY_CHECKPOINT, "quant_config.quant_algo"))
    fields["workload.task"] = "serving"
    fields["workload.global_batch"] = found.values.get("--max_batch_size", engine.requests) * fields["strategy.dp"]
    if not found.values.get("enable_chunked_prefill"):
        remarks.append(found.remark("enable_chunked_prefill", "not given; prompts are predicted in pieces beside decoding all the same"))
    missing |= lengths_missing(fields, "trtllm-serve")
    return Meaning(fields=fields, unmodelled=tuple(remarks), problems=tuple(problems), missing=missing)


def _ranks(found: Found, model: FlatSettings, problems: list[Problem], remarks: list[Remark]) -> ServerRanks:
    """The ranks that degrees of a server mean, and what is wrong with these."""
    width, ep, cut = (found.values.get(flag) for flag in ("--tp_size", "--ep_size", "moe_tensor_parallel_size"))
    width = width or 1
    groups = width if found.values.get("enable_attention_dp") else 1
    shared = ep or (width // cut if cut and width % cut == 0 else 1)
    if width % shared or (cut and cut * shared != width):
        product = f"moe_tensor_parallel_size x ep_size = {cut} x {shared}"
        told = f"{width} ranks are not {product if cut else f'divisible by {shared}'}"
        problems.append(found.problem("--ep_size" if ep else "moe_tensor_parallel_size", told))
        shared = 1
    if model and not is_mixture(model) and shared > 1:
        remarks.append(found.remark("--ep_size", "the model has no experts, and the flag does nothing"))
        shared = 1
    return ServerRanks(width=width, groups=groups, ep=shared)


def _balanced(found: Found, model: FlatSettings, problems: list[Problem], remarks: list[Remark]) -> MeantFields:
    """Slots for experts: those beyond the experts hold copies of the fullest."""
    slots = found.values.get(SLOTS)
    if "moe_config.load_balancer" in found.values:
        remarks.append(found.remark("moe_config.load_balancer", "its file is not read; give strategy.redundant_experts"))
    if slots is None:
        return
    experts = model.get("workload.experts.count")
    if experts is None:
        remarks.append(found.remark(SLOTS, "the model's experts are not known; give strategy.redundant_experts"))
    elif slots < experts:
        problems.append(found.problem(SLOTS, f"{slots} slots are fewer than the {experts} experts"))
    elif slots > experts:
        yield "strategy.redundant_experts", slots - experts
    else:
        yield "software.engine.balances", True


def _speculation(found: Found, problems: list[Problem], missing: dict[str, str]) -> MeantFields:
    """Tokens that are guessed in a step."""
    named, at = found.values.get("speculative_config.decoding_type"), "speculative_config."
    if named is None:
        return
    tokens = found.values.get(f"{at}max_draft_len", found.values.get(f"{at}num_nextn_predict_layers"))
    path = "workload.serving.speculation"
    if tokens is None:
        missing[f"{path}.tokens"] = "neither max_draft_len nor num_nextn_predict_layers says how many tokens are guessed"
    elif tokens > 64:
        problems.append(found.problem(f"{at}decoding_type", f"expected 1 to 64 tokens that are guessed, got {tokens}"))
    else:
        yield f"{path}.tokens", tokens
    missing[f"{path}.acceptance"] = "options do not say how often a guess is right"


# ---------------------------------------------------------------------------------------------- writing


def flags(settings: FlatSettings, plan: Plan, named: Any) -> Flags:
    """Options and keys that say a service's plan; `named` is the scenario's own model."""
    unsaid: list[str] = []
    remarks: list[str] = []
    said = {
        "strategy.tp", "strategy.dp", "strategy.sequence_parallel", "strategy.ep", "strategy.etp", "strategy.placement",
        "strategy.micro_batch", "strategy.redundant_experts", "workload.global_batch", *(path for path in settings if of_model(path)),
    }  # fmt: skip
    preset = preset_of(settings, named)
    types, weights = said_types(settings, preset, said, {})  # the type of a checkpoint in 16 bits; narrower ones only the checkpoint says
    values = said_model(preset, weights, named, unsaid, remarks, "TensorRT-LLM", "--model", "--trust_remote_code") | types
    ranks = _said_ranks(settings, plan, unsaid)
    unsaid += own_batches(settings, plan, "TensorRT-LLM")
    values |= {"--tp_size": ranks.width, "--max_batch_size": limit(settings, plan.dp), "--max_seq_len": longest(settings)}
    values["enable_chunked_prefill"] = True
    if ranks.ep > 1:
        values["--ep_size"] = ranks.ep
    if ranks.groups > 1:
        values["enable_attention_dp"] = True
    values |= _say_slots(settings)
    values |= _say_speculation(settings, preset, said, remarks)
    if (order := several(plan)) != [block for block in ("tp", "dp", "pp") if block in order]:
        unsaid.append(f"placement: {', '.join(plan.placement)}: TensorRT-LLM lays ranks out as tp, dp, pp")
    return Flags(values=values, said=frozenset(said), remarks=tuple(remarks), unsaid=tuple(unsaid))


def _said_ranks(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> ServerRanks:
    """Ranks of one server; of a model without experts, ranks that hold all of it have requests of their own as well."""
    ranks = ranks_of(settings, plan, "TensorRT-LLM", unsaid)
    if not is_mixture(settings) and plan.tp == 1:
        return replace(ranks, width=plan.dp, groups=plan.dp, replicas=1)
    if ranks.replicas > 1:
        unsaid.append(f"dp: {plan.dp}: trtllm-serve has no replicas of {ranks.width} ranks; export to dynamo, which starts several servers")
    if ranks.groups not in (1, ranks.width):
        unsaid.append(
            f"tp: {plan.tp} with dp: {plan.dp}: attention of TensorRT-LLM is divided over all ranks of a stage (dp: 1) or over none (tp: 1)"
        )
    return ranks


def _say_slots(settings: FlatSettings) -> dict[str, Any]:
    copies = settings["strategy.redundant_experts"]
    if not copies and not settings["software.engine.balances"]:
        return {}
    return {SLOTS: settings["workload.experts.count"] + copies, "moe_config.load_balancer.layer_updates_per_iter": 1}


def _say_speculation(settings: FlatSettings, preset: str | None, said: set[str], remarks: list[str]) -> dict[str, Any]:
    tokens = settings.get("workload.serving.speculation.tokens")
    if tokens is None:
        return {}
    said.add("workload.serving.speculation.tokens")
    at = "speculative_config."
    if preset and preset_settings(preset).get("workload.mtp_layers"):
        return {f"{at}decoding_type": "MTP", f"{at}num_nextn_predict_layers": tokens}
    remarks.append("choose the method of speculation; n-grams are written for want of a setting that says it")
    return {f"{at}decoding_type": "NGram", f"{at}max_draft_len": tokens}


def config_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The YAML file's keys among the values, nested as it has them.

    >>> config_of({"--tp_size": 8, "kv_cache_config.dtype": "fp8", "cuda_graph_config": "null"})
    {'kv_cache_config': {'dtype': 'fp8'}, 'cuda_graph_config': None}
    """
    return nested({name: None if value == "null" else value for name, value in values.items() if not name.startswith("--")})


def script(values: Mapping[str, Any], words: list[str], nodes: tuple[int, int], head: list[str]) -> str:
    """A shell script that writes the YAML file and starts the server, over several nodes by srun."""
    model = next((word.split(" ", 1)[1] for word in words if word.startswith("--model ")), "MODEL")
    rest = [word for word in words if not word.startswith("--model ")]
    starts = f"srun --nodes {nodes[1]} --ntasks-per-node {nodes[0]} --mpi pmix trtllm-llmapi-launch " if nodes[1] > 1 else ""
    lines = ["#!/usr/bin/env bash", *head]
    if config := config_of(values):
        lines += [f"cat > {CONFIG} <<'YAML'", yaml.safe_dump(config, sort_keys=False).rstrip(), "YAML"]
        rest.append(f"--extra_llm_api_options {CONFIG}")
    return "\n".join([*lines, " \\\n  ".join([f"{starts}trtllm-serve {model}", *rest]), ""])
