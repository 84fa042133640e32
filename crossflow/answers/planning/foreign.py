"""What does here what options of other tools do, on a command line beside what else was typed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from crossflow.answers.planning.keywords import CALLED, OF_FILE, OF_STRATEGY, OF_WORKLOAD, SAME, own_degrees, settled
from crossflow.answers.planning.opening import data_of
from crossflow.answers.planning.question import COMMAND, INSTEAD, system_of
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document
from crossflow.base.units import in_dollars
from crossflow.parallel.strategy.notation import DEGREES
from crossflow.parallel.strategy.transformers import plan_of

# Options that trainers and engines have, as keys of a strategy; those with a value of their own are switches.
_KEYS: Mapping[str, str] = {
    "recompute_granularity": "recompute", "zero_optimization_stage": "zero", "virtual_pipeline_model_parallel_size": "virtual_stages",
    "vpp": "virtual_stages", "expert_tensor_parallel_size": "etp",
}  # fmt: skip
_SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "sequence_parallel": {"sequence_parallel": True}, "use_distributed_optimizer": {"zero": 1}, "fsdp": {"zero": 3}, "fsdp2": {"zero": 3},
    "use_fsdp": {"zero": 3}, "use_torch_fsdp2": {"zero": 3}, "fully_shard": {"zero": 3}, "full_shard": {"zero": 3},
    "gradient_checkpointing": {"recompute": "full"}, "activation_checkpointing": {"recompute": "full"},
    "recompute_activations": {"recompute": "selective"},
}  # fmt: skip
_SHARED_OUT = ("enable_expert_parallel", "enable_ep")  # experts over all devices of an engine
_RATES, _TARGETS = ("rate", "qps", "request_rate"), ("ttft", "tpot")  # of requests that arrive, and times that each should keep
_OF_SERVICES = ("prompt", "output", "kv_dtype", "weight_dtype")  # which a step of training does not have


def instead_of(flags: Sequence[tuple[str, str]], options: Collection[str], beside: Mapping[str, Any]) -> str:
    """What stands on a command line in the place of options of other tools, with their values; empty where none of them is known.

    Parameters
    ----------
    options : those that the command has.
    beside : what else was given: a scenario, or a model, a system and their counts, a strategy, settings.

    >>> question = {"model": "mixtral-8x7b", "on": "dgx-h100", "nodes": 2}
    >>> instead_of([("ep", "8"), ("sequence_parallel", ""), ("tp", "2")], ["--strategy", "--set"], question)
    '--strategy tp2-ep8-dp8-sp'
    >>> instead_of([("seq_len", "8192")], ["--on", "--set"], {}), instead_of([("gpus", "16")], ["--devices", "--set"], {"nodes": None})
    ('--set workload.sequence=8192', '--devices 16')
    >>> instead_of([("modle", "")], ["--model", "--set"], {})
    ''
    """
    degrees: dict[str, Any] = {}
    asked, flags = _requests(flags) if "scenario" in beside else ("", flags)
    told: list[str] = [asked] if asked else []
    for word, value in flags:
        if word in _SHARED_OUT:
            degrees.setdefault("ep", None)
        elif found := _of_strategy(word, value):
            degrees |= found
        elif text := _one(word, value, options, beside):
            told.append(text)
    service = any(text.startswith(f"--set workload.{key}=") for key in _OF_SERVICES for text in told)
    if service and "--task" in options and beside.get("scenario") is None and beside.get("task") is None:
        told.insert(0, "--task decode")
    if asked and "--task" in options and beside.get("scenario") is None and beside.get("task") is None:
        told.insert(0, "--task serving")
    counted = [text.removeprefix("--set ") for text in told if text.startswith(("--set system.nodes=", "--set system.devices="))]
    if counted and beside.get("scenario") is not None:  # other devices, over which a file's strategy is to be spread
        beside = {**beside, "settings": (*(beside.get("settings") or ()), *counted)}
        degrees = degrees or {"tp": own_degrees(_given(beside)[1]).get("tp", 1)}
    divided = _divided(degrees, options, beside) if degrees and ("--strategy" in options or "scenario" in beside) else ""
    return " ".join(filter(None, [divided, *told]))


def _requests(flags: Sequence[tuple[str, str]]) -> tuple[str, list[tuple[str, str]]]:
    """Requests that options of a benchmark ask for, with their lengths and the times that they should keep; and the other options.

    A bare number is milliseconds, as those tools have it.

    >>> _requests([("qps", "2"), ("isl", "4000"), ("tp", "8")])
    ("--set 'requests={arrivals: {law: poisson, rate: 2 1/s}, count: 200, prompt: 4000, output: 100}'", [('tp', '8')])
    >>> _requests([("isl", "4000")])
    ('', [('isl', '4000')])
    """
    named = {SAME.get(word, CALLED.get(word, word)) if word not in (*_RATES, *_TARGETS) else word: value for word, value in flags}
    rate = next((named[word] or "5" for word in _RATES if word in named), None)
    targets = [f"{word}: {f'{named[word]} ms' if named[word].isdecimal() else named[word] or '1 s'}" for word in _TARGETS if word in named]
    if rate is None and not targets:
        return "", list(flags)
    kept = f", targets: {{{', '.join(targets)}}}" if targets else ""
    lengths = f"count: 200, prompt: {named.get('prompt') or 500}, output: {named.get('output') or 100}"
    asked = f"--set 'requests={{arrivals: {{law: poisson, rate: {rate or 5} 1/s}}, {lengths}{kept}}}'"
    taken = (*_RATES, *_TARGETS, "prompt", "output")
    return asked, [(word, value) for word, value in flags if SAME.get(word, CALLED.get(word, word)) not in taken and word not in taken]


def _of_strategy(word: str, value: str) -> dict[str, Any]:
    """Keys of a strategy that an option means; empty where it means none."""
    if word in _SWITCHES and value.lower() in ("", "true", "1", "on"):
        return dict(_SWITCHES[word])
    key = _KEYS.get(word, SAME.get(word, CALLED.get(word, word)))
    if key not in OF_STRATEGY:
        return {}
    return {key: int(value) if value.isdecimal() else value or True}


def _divided(degrees: Mapping[str, Any], options: Collection[str], beside: Mapping[str, Any]) -> str:
    """The whole strategy that degrees and options mean beside what else is given, as an option; empty where they mean none."""
    section, own = _given(beside)
    given = {key: value for key, value in degrees.items() if value is not None}
    if own in (None, "auto") and not set(given) & set(DEGREES):  # options alone, which need degrees
        system = system_of(section) if "sequence_parallel" in given else None
        given["tp"] = 1 if system is None else math.gcd(8, int(system.devices_per_node))
    try:
        found = settled("", given, section, own)
        if "strategy" not in found and beside.get("strategy") is None:
            return " ".join(f"--set {path}={str(value).lower() if isinstance(value, bool) else value}" for path, value in found.items())
        plan = plan_of(found.get("strategy", {**own_degrees(own), **given}))
    except CrossflowError:
        return ""
    if "ep" in degrees and degrees["ep"] is None:
        plan = replace(plan, ep=plan.tp * plan.dp)
    if plan.tp > 1 and plan.dp % plan.ep and (plan.tp * plan.dp) % plan.ep == 0:  # experts lie across the tensor group too
        plan = replace(plan, etp=1, sequence_parallel=True)
    return f"--strategy {plan}" if "--strategy" in options and beside.get("scenario") is None else f"--set strategy={plan}"


def _given(beside: Mapping[str, Any]) -> tuple[Any, Any]:
    """The system and the strategy that a command has by itself, None where nothing says them or they are wrong."""
    settings = tuple(beside.get("settings") or ())
    try:
        if beside.get("scenario") is not None:
            data = data_of(beside["scenario"], settings)
            return data.get("system"), data.get("strategy")
        if beside.get("on") is None:
            return None, beside.get("strategy")
        counts = {key: beside[key] for key in ("nodes", "devices") if beside.get(key) is not None}
        data = files.override(Document(file=COMMAND, data={"system": {"template": beside["on"], **counts}}), [
            one for one in settings if one.startswith("system.")
        ]).data  # fmt: skip
        return data["system"], beside.get("strategy")
    except CrossflowError:
        return None, None


def _one(word: str, value: str, options: Collection[str], beside: Mapping[str, Any]) -> str:
    """What stands in the place of an option that is no part of a strategy; empty for unknown words."""
    name = "on" if word == "system" else SAME.get(word, CALLED.get(word, word))
    if (
        name == "devices"
        and beside.get("scenario") is not None
        and isinstance(section := _given(beside)[0], Mapping)
        and "nodes" in section
    ):
        return _nodes(value, section).replace("--nodes ", "--set system.nodes=")
    if name in INSTEAD and beside.get("scenario") is not None:
        return f"--set {INSTEAD[name]}={value or 'VALUE'}"
    if name == "devices" and beside.get("nodes") is not None and "--nodes" in options:
        return _nodes(value, {"template": beside.get("on")})
    if name == "nodes" and "--nodes" not in options and "--devices" in options:  # compare has devices of several systems
        return _devices(value, beside.get("on"))
    if name != word and name != "output" and f"--{name}" in options:  # --output names a file
        return f"--{name} {value}".strip()
    if word in ("lora", "lora_rank", "lora_r"):
        return f"--set workload.adapters.rank={value or 16}"
    if word in ("bf16", "fp16", "fp8", "nvfp4", "mxfp4"):
        return f"--set workload.dtype={word}"
    if name == "price":
        return f"--set 'system.operation.price={in_dollars(value or '2', 'USD/s') or value}'"
    if name in INSTEAD or (name in OF_WORKLOAD and name != "top") or name in OF_FILE:  # a recommendation model has a `top`
        return f"--set {INSTEAD.get(name) or (name if name in OF_FILE else f'workload.{name}')}={value or 'VALUE'}"
    return ""


def _devices(nodes: str, systems: Any) -> str:
    """As many devices as so many nodes of systems have, where all have the same number in each."""
    names = ",".join([systems] if isinstance(systems, str) else systems or ()).split(",")
    known = [system_of({"template": name}) for name in names]
    each = {int(one.devices_per_node) for one in known if one is not None}
    return f"--devices {int(nodes) * each.pop()}" if nodes.isdecimal() and len(each) == 1 else ""


def _nodes(devices: str, section: Mapping[str, Any]) -> str:
    """As many nodes as hold so many devices, in the place of those that were given."""
    system = system_of(section)
    node = 1 if system is None else int(system.devices_per_node)
    return f"--nodes {max(1, -(-int(devices) // node))}" if devices.isdecimal() else ""
