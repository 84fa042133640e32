"""Rules of SGLang's flags that several settings decide: ranks of attention and of experts, requests, pieces of prompts, speculation.

A server has ``tp-size`` ranks in every stage. With attention data parallelism, groups of them have requests of their own, and share all
experts; without it, ``dp-size`` counts whole replicas [1]_.

References
----------
.. [1] sglang 0.5.23, sglang/srt/arg_groups/parallel_hook.py and validation_hook.py, 2026.
.. [2] The same, moe_hook.py: what an exchange of tokens asks of the ranks that share experts out; models/gpt_oss.py.
.. [3] The same, speculative_hook.py.
.. [4] The same, validation_hook.py; managers/schedule_policy.py, `_sort_by_priority_and_fcfs`, `preempt_to_schedule`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossflow.base.errors import Problem
from crossflow.edges.launch.meaning import Flags, Meaning, MeantFields
from crossflow.edges.launch.models import model_settings, preset_of, preset_settings
from crossflow.edges.launch.residents import SERVING, SGLANG, meant_adapters, meant_encoders, said_adapters
from crossflow.edges.launch.servers import ServerRanks, is_mixture, limit, longest, meant_ranks, own_batches, ranks_of
from crossflow.edges.launch.settings import FlatSettings, of_model, several
from crossflow.edges.launch.table import Found, Remark
from crossflow.edges.launch.vllm import lengths_missing, meant_model, meant_types, said_model, said_types
from crossflow.hardware.architecture.software import EngineHabits
from crossflow.parallel.strategy.plan import Plan

REPLICAS = ("tp", "pp", "dp")  # order of ranks where replicas are whole, the nearest first [1]_
QUANTIZED: Mapping[str, tuple[str, str]] = {
    "fp8": ("dtype", "fp8"), "w8a8_fp8": ("dtype", "fp8"), "modelopt": ("dtype", "fp8"), "modelopt_fp8": ("dtype", "fp8"),
    "mxfp8": ("dtype", "mxfp8"), "w8a8_int8": ("dtype", "int8"), "modelopt_fp4": ("dtype", "nvfp4"), "nvfp4_online": ("dtype", "nvfp4"),
    "petit_nvfp4": ("weight_dtype", "nvfp4"), "mxfp4": ("weight_dtype", "mxfp4"), "awq": ("weight_dtype", "int4"),
    "awq_marlin": ("weight_dtype", "int4"), "gptq": ("weight_dtype", "int4"), "gptq_marlin": ("weight_dtype", "int4"),
    "moe_wna16": ("weight_dtype", "int4"), "auto-round": ("weight_dtype", "int4"), "bitsandbytes": ("weight_dtype", "int4"),
    "unquant": ("dtype", "bf16"),
}  # fmt: skip
BY_CHECKPOINT = (
    "compressed-tensors", "quark", "quark_int4fp8_moe", "quark_mxfp4", "modelopt_mixed", "modelslim", "mxfp_w4a8", "w4afp8", "gguf",
    "auto-round-int8", "humming", "mlx_q4", "mlx_q8",
)  # fmt: skip
SAID = {
    ("dtype", "fp8"): "fp8", ("dtype", "mxfp8"): "mxfp8", ("dtype", "int8"): "w8a8_int8", ("dtype", "nvfp4"): "modelopt_fp4",
    ("weight_dtype", "int4"): "awq",
}  # fmt: skip
QUEUE = "software.engine.queue"
# What flags beside `enable-priority-scheduling` change, where they are given or not, that is not predicted [4]_.
UPWARDS = "a larger `priority` of a class is first here; give classes of requests the negative of theirs"
STAYS = "requests at work stay until they lose their room in the cache, where SGLang lets them give way to one of a larger priority"
NGRAM = 12  # tokens of a guess by n-grams where no flag says, the first of which is known [3]_


# ---------------------------------------------------------------------------------------------- reading


def meaning(found: Found, devices: int | None, engine: EngineHabits, told: str | None = None) -> Meaning:
    """What the flags of a server mean.

    Parameters
    ----------
    engine : habits of the software stack, whose limits count where no flag says any.
    told : the preset that crossflow's comment names, for a checkpoint whose name is not known.
    """
    fields: dict[str, Any] = dict(found.fields)
    problems: list[Problem] = []
    remarks: list[Remark] = []
    missing: dict[str, str] = {}
    preset = meant_model(found, "model-path", fields, missing, told)
    model = model_settings(fields["workload.model"]) if "workload.model" in fields else {}
    ranks = _ranks(found, model, problems, remarks)
    pp = fields["strategy.pp"]
    fields |= dict(meant_ranks(ranks, mixture=is_mixture(model) or ranks.ep > 1))
    if devices is not None and devices != ranks.width * pp * ranks.replicas:
        count = f"tp-size x pp-size x replicas = {ranks.width} x {pp} x {ranks.replicas} = {ranks.width * pp * ranks.replicas}"
        problems.append(found.problem("tp-size", f"{count}, and there are {devices} devices; count as many (--devices)"))
    if pp > 1 and ranks.replicas > 1:
        fields["strategy.placement"] = REPLICAS
    fields |= dict(_experts(found, fields, ranks, model, remarks))
    fields |= dict(_requests(found, ranks, engine, remarks)) | dict(_order(found, problems, remarks))
    fields |= dict(_speculation(found, problems, remarks, missing))
    fields |= dict(meant_types(found, preset, problems, remarks, QUANTIZED, BY_CHECKPOINT))
    meant_encoders(found, problems, remarks)
    idle: list[Remark] = []
    fields |= dict(_residents(found, fields, idle, missing))
    missing |= lengths_missing(fields, "sglang.launch_server")
    return Meaning(fields=fields, ignored=tuple(idle), unmodelled=tuple(remarks), problems=tuple(problems), missing=missing)


def _ranks(found: Found, model: FlatSettings, problems: list[Problem], remarks: list[Remark]) -> ServerRanks:
    """The ranks that degrees of a server mean, and what is wrong with these."""
    width, dp, groups = (found.values.get(flag, 1) for flag in ("tp-size", "dp-size", "attn-dp-size"))
    if "enable-dp-attention" in found.values and groups == 1:
        groups, dp = dp, 1
    if dp > 1 and groups > 1:
        problems.append(found.problem("dp-size", f"{dp} replicas do not go with attn-dp-size = {groups}"))
    if width % groups:
        flag = "attn-dp-size" if "attn-dp-size" in found.values else "dp-size"
        problems.append(found.problem(flag, f"tp-size = {width} is not divisible by {groups}: groups of attention lie within its ranks"))
        groups = 1
    ep = width if _exchanged(found) else found.values.get("ep-size", 1)  # an exchange spans all of them [2]_
    if width % ep:
        problems.append(found.problem("ep-size", f"tp-size = {width} is not divisible by {ep}"))
        ep = 1
    if model and not is_mixture(model) and ep > 1:
        flag = "ep-size" if "ep-size" in found.values else "moe-a2a-backend"
        remarks.append(found.remark(flag, "the model has no experts, and the flag does nothing"))
        ep = 1
    return ServerRanks(width=width, groups=groups, replicas=dp, ep=ep, exchanged=_exchanged(found))


def _exchanged(found: Found) -> bool:
    """Whether tokens are exchanged, rather than gathered by all ranks."""
    named = found.values.get("moe-a2a-backend", "none")
    return "enable-deepep-moe" in found.values or named not in ("none", "ascend_tp")


def _experts(found: Found, fields: FlatSettings, ranks: ServerRanks, model: FlatSettings, remarks: list[Remark]) -> MeantFields:
    """How tokens get to experts, and where these lie."""
    groups = "attn-dp-size" if "attn-dp-size" in found.values else "enable-dp-attention"
    if not is_mixture(model) and ranks.ep == 1:
        if ranks.groups > 1:
            remarks.append(found.remark(groups, "MLPs are predicted divided like attention, not over all ranks"))
        return
    if 1 < ranks.ep == ranks.width and not _exchanged(found):
        yield "software.kernels.gathers", "always"
    copies = fields.get("strategy.redundant_experts", 0)
    if "enable-eplb" in found.values and not copies:
        yield "software.engine.balances", True
    elif copies and "enable-eplb" not in found.values:
        remarks.append(found.remark("ep-num-redundant-experts", "copies are predicted so placed that ranks are alike full (--enable-eplb)"))
    if ranks.groups > 1 and model.get("workload.experts.dense_layers") and found.values.get("moe-dense-tp-size") != 1:
        remarks.append(found.remark(groups, "dense layers are predicted divided like attention; --moe-dense-tp-size 1 has them whole"))


def _requests(found: Found, ranks: ServerRanks, engine: EngineHabits, remarks: list[Remark]) -> MeantFields:
    """Requests at once and tokens of a step: a server's limits are shared by the groups that have requests of their own [1]_."""
    most = found.values.get("max-running-requests")
    each = engine.requests if most is None else max(most // ranks.groups, 1)
    yield "workload.global_batch", each * ranks.groups * ranks.replicas
    chunk = found.values.get("chunked-prefill-size")
    if chunk is not None and chunk < 1:
        remarks.append(found.remark("chunked-prefill-size", f"prompts are predicted in pieces of {engine.chunk} tokens at most"))
    elif chunk is not None or ranks.groups > 1:
        own = max((engine.chunk if chunk is None else chunk) // ranks.groups, 1)
        if ranks.groups == 1 or own != engine.chunk:
            yield "workload.serving.chunk", own
    if found.values.get("disaggregation-mode") == "prefill":
        yield "workload.task", "prefill"
        return
    yield "workload.task", "serving"
    if found.values.get("disaggregation-mode") == "decode":
        why = "prompts are predicted on the same workers; give workload.serving.prefill for workers of their own"
        remarks.append(found.remark("disaggregation-mode", why))


def _order(found: Found, problems: list[Problem], remarks: list[Remark]) -> MeantFields:
    """Requests by priority, and of one priority by the policy, which then looks at no prefixes [4]_."""
    beside = ("schedule-low-priority-values-first", "priority-scheduling-preemption-threshold", "disable-priority-preemption")
    by_priority, policy = found.values.get("enable-priority-scheduling"), found.values.get("schedule-policy", "fcfs")
    if not by_priority:
        remarks.extend(found.remark(flag, "does nothing without --enable-priority-scheduling") for flag in beside if flag in found.values)
        return
    yield QUEUE, "priority"
    if policy not in ("fcfs", "lof"):
        problems.append(found.problem("schedule-policy", f"--enable-priority-scheduling takes fcfs or lof, got {policy}"))
    elif policy == "lof":
        remarks.append(found.remark("schedule-policy", "predicted in order of arrival within a priority"))
    if found.values.get(beside[0]):
        remarks.append(found.remark(beside[0], UPWARDS))
    if not found.values.get(beside[2]):
        remarks.append(found.remark("enable-priority-scheduling", STAYS))


def _residents(found: Found, fields: FlatSettings, idle: list[Remark], missing: dict[str, str]) -> MeantFields:
    """Adapters, and the room of the cache, of servers that write answers."""
    if fields["workload.task"] != "serving":
        named = (name for name in ("enable-lora", "max-total-tokens") if name in found.values)
        idle.extend(found.remark(name, "workers that only read prompts are predicted without it") for name in named)
        return
    yield from meant_adapters(found, SGLANG, idle, missing)
    if "max-total-tokens" in found.values:
        yield f"{SERVING}.cache_tokens", found.values["max-total-tokens"]


def _speculation(found: Found, problems: list[Problem], remarks: list[Remark], missing: dict[str, str]) -> MeantFields:
    """Tokens that are guessed in a step [3]_: one a draft step, or those of a match of n-grams."""
    named = str(found.values.get("speculative-algorithm", "")).upper()
    if not named:
        return
    drafted, steps = found.values.get("speculative-num-draft-tokens"), found.values.get("speculative-num-steps")
    tokens = (drafted or NGRAM) - 1 if named == "NGRAM" else steps if steps is not None else None if drafted is None else drafted - 1
    path = "workload.serving.speculation"
    if tokens is None:
        missing[f"{path}.tokens"] = "SGLang chooses by the model how many tokens are guessed, unless --speculative-num-steps says"
    elif not 1 <= tokens <= 64:
        problems.append(found.problem("speculative-algorithm", f"expected 1 to 64 tokens that are guessed, got {tokens}"))
    else:
        yield f"{path}.tokens", tokens
    if found.values.get("speculative-eagle-topk", 1) > 1:
        remarks.append(found.remark("speculative-eagle-topk", "a tree of guesses is predicted as a chain"))
    missing[f"{path}.acceptance"] = "flags do not say how often a guess is right"


# ---------------------------------------------------------------------------------------------- writing


def flags(settings: FlatSettings, plan: Plan, named: Any, hosts: int = 1, nodes: int | None = None) -> Flags:
    """Flags that say a service's plan on so many hosts of so many nodes, as many where None; `named` is the scenario's own model."""
    unsaid: list[str] = []
    remarks: list[str] = []
    said = {
        "strategy.tp", "strategy.dp", "strategy.sequence_parallel", "strategy.ep", "strategy.etp", "strategy.placement",
        "strategy.micro_batch", "workload.global_batch", "workload.serving.chunk", *(path for path in settings if of_model(path)),
    }  # fmt: skip
    preset = preset_of(settings, named)
    types, weights = said_types(settings, preset, said, SAID)
    values = said_model(preset, weights, named, unsaid, remarks, "SGLang", "model-path") | types
    ranks = ranks_of(settings, plan, "SGLang", unsaid)
    unsaid += own_batches(settings, plan, "SGLang")
    values |= _say_ranks(plan, ranks, hosts, unsaid) | _say_experts(settings, ranks, nodes or hosts, remarks)
    if _biased_experts(settings) and "moe-a2a-backend" in values:
        unsaid.append(
            f"ep: {plan.ep}: SGLang does not exchange tokens of experts that have biases (DeepEP); set software.kernels.gathers: always, "
            "which gathers them, or export to vllm"
        )
    values |= said_adapters(settings, SGLANG, said, unsaid)
    if (tokens := settings.get(f"{SERVING}.cache_tokens")) is not None:
        said.add(f"{SERVING}.cache_tokens")
        values["max-total-tokens"] = tokens
    if settings[QUEUE] == "priority":
        said.add(QUEUE)
        values |= {"enable-priority-scheduling": True, "disable-priority-preemption": True}
    values |= _say_requests(settings, ranks) | _say_speculation(settings, preset, ranks, said, remarks, unsaid)
    return Flags(values=values, said=frozenset(said), remarks=tuple(remarks), unsaid=tuple(unsaid))


def _say_ranks(plan: Plan, ranks: ServerRanks, hosts: int, unsaid: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {"tp-size": ranks.width}
    if ranks.groups > 1 and ranks.replicas > 1:
        unsaid.append(
            f"dp: {plan.dp}: a server of SGLang has replicas (--dp-size) or groups of attention (--enable-dp-attention), and this plan "
            f"{ranks.replicas} replicas with {ranks.groups} groups; export to dynamo, which starts several servers"
        )
    elif ranks.replicas > 1 and hosts > 1:
        unsaid.append(f"dp: {plan.dp}: replicas of a server of SGLang lie in one node; export to dynamo, which starts several servers")
    if plan.dp > 1:
        values["dp-size"] = plan.dp
    if ranks.groups > 1:
        values |= {"enable-dp-attention": True, "enable-dp-lm-head": True}
    if hosts > 1:
        values["nnodes"] = hosts
    order, theirs = several(plan), REPLICAS if ranks.replicas > 1 else ("tp", "dp", "pp")
    if order != [block for block in theirs if block in order]:
        unsaid.append(f"placement: {', '.join(plan.placement)}: SGLang lays ranks out as {', '.join(theirs)}")
    return values


def _say_experts(settings: FlatSettings, ranks: ServerRanks, nodes: int, remarks: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {"ep-size": ranks.ep} if ranks.ep > 1 else {}
    gathers = settings["software.kernels.gathers"]
    apart = ranks.groups > 1 and (gathers == "never" or (gathers == "node" and nodes > 1))
    if ranks.ep > 1 and ranks.ep == ranks.width and (apart or ranks.exchanged):
        values["moe-a2a-backend"] = "deepep"
    if settings["strategy.redundant_experts"] or settings["software.engine.balances"]:
        values["enable-eplb"] = True
    if ranks.groups > 1 and settings.get("workload.experts.dense_layers"):
        if ranks.tp == 1:
            values["moe-dense-tp-size"] = 1
        else:
            remarks.append(f"dense layers are predicted divided over {ranks.tp} ranks, as attention is; SGLang divides them over all")
    return values


def _biased_experts(settings: FlatSettings) -> bool:
    """Whether MLPs of experts have biases, as in gpt-oss: the layer of SGLang that has them stops where tokens are exchanged [2]_."""
    own = settings.get("workload.mlp_bias")
    return bool(settings["workload.biases"] if own is None else own)


def _say_requests(settings: FlatSettings, ranks: ServerRanks) -> dict[str, Any]:
    most, chunk = limit(settings, ranks.replicas), settings.get("workload.serving.chunk")
    values: dict[str, Any] = {} if most is None else {"max-running-requests": most}
    if chunk is not None or ranks.groups > 1:  # which divide it, its default too
        values["chunked-prefill-size"] = (chunk or settings["software.engine.chunk"]) * ranks.groups
    return values | {"context-length": longest(settings)}


def _say_speculation(
    settings: FlatSettings, preset: str | None, ranks: ServerRanks, said: set[str], remarks: list[str], unsaid: list[str]
) -> dict[str, Any]:
    tokens = settings.get("workload.serving.speculation.tokens")
    if tokens is None:
        return {}
    said.add("workload.serving.speculation.tokens")
    if preset and preset_settings(preset).get("workload.mtp_layers"):
        return {
            "speculative-algorithm": "EAGLE", "speculative-num-steps": tokens, "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": tokens + 1,
        }  # fmt: skip
    if ranks.groups > 1:
        unsaid.append(f"serving.speculation: {tokens} tokens: SGLang guesses by n-grams, and not with groups of attention (--dp-size)")
    remarks.append("choose the method of speculation; n-grams are written for want of a setting that says it")
    return {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": tokens + 1, "speculative-ngram-max-bfs-breadth": 1}


def script(words: list[str], head: list[str], nodes: int) -> str:
    """A shell script that starts the server, on each of its nodes."""
    rest = list(words)
    if nodes > 1:
        head = [*head, f"# Start it on all {nodes} nodes, with NODE_RANK 0 to {nodes - 1}, and the address of the first as HEAD_ADDR."]
        rest.append('--node-rank "${NODE_RANK:-0}" --dist-init-addr "${HEAD_ADDR:-localhost}:20000"')
    return "\n".join(["#!/usr/bin/env bash", *head, " \\\n  ".join(["python3 -m sglang.launch_server", *rest]), ""])
