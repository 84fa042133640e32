"""Rules of vLLM's flags that several settings decide: the model, experts over all ranks, requests, types and speculation.

References
----------
.. [1] https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/: experts are cut over dp x tp ranks, or shared out over them with
   --enable-expert-parallel.
.. [2] vllm/distributed/parallel_state.py, vLLM 0.10 to 0.26: ranks lie as tp, pp, dp, the nearest first.
.. [3] vllm/config/parallel.py, `use_sequence_parallel_moe`: tokens are divided over tensor ranks where there are data ranks too; else
   each rank runs its own experts on all of them, and their results are added up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossflow.answers.sections import presets
from crossflow.base.errors import Problem, SpecError
from crossflow.base.limits import shown
from crossflow.edges.launch.meaning import Flags, Meaning, MeantFields
from crossflow.edges.launch.models import by_huggingface, like_preset, model_settings, names_of, preset_of, preset_settings, types_of
from crossflow.edges.launch.residents import VLLM, meant_adapters, meant_encoders, meant_swap, said_adapters, said_swap
from crossflow.edges.launch.settings import FlatSettings, of_model, several
from crossflow.edges.launch.table import Found, Remark
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.released import CONFIG

ORDER = ("tp", "pp", "dp")  # of ranks [2]_
# Types of products, or of weights, that --quantization stands for.
QUANTIZED: Mapping[str, tuple[str, str]] = {
    "fp8": ("dtype", "fp8"), "fbgemm_fp8": ("dtype", "fp8"), "ptpc_fp8": ("dtype", "fp8"), "modelopt": ("dtype", "fp8"),
    "modelopt_fp4": ("dtype", "nvfp4"), "nvfp4": ("dtype", "nvfp4"), "mxfp4": ("weight_dtype", "mxfp4"), "awq": ("weight_dtype", "int4"),
    "awq_marlin": ("weight_dtype", "int4"), "gptq": ("weight_dtype", "int4"), "gptq_marlin": ("weight_dtype", "int4"),
    "auto-round": ("weight_dtype", "int4"), "moe_wna16": ("weight_dtype", "int4"), "bitsandbytes": ("weight_dtype", "int4"),
}  # fmt: skip
BY_CHECKPOINT = ("compressed-tensors", "quark", "torchao", "gguf")  # whose types only the checkpoint tells
SAID = {("dtype", "fp8"): "fp8", ("dtype", "nvfp4"): "modelopt_fp4", ("weight_dtype", "int4"): "awq"}
HALF = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
THOUSANDS = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20}  # behind a length, as vLLM reads them


# ---------------------------------------------------------------------------------------------- reading


def meaning(found: Found, devices: int | None, requests: int, told: str | None = None) -> Meaning:
    """FlatSettings that the flags of a server mean.

    Parameters
    ----------
    requests : those that the engine works on at most where no flag says.
    told : the preset that crossflow's comment names, for a checkpoint whose name is not known.
    """
    fields: dict[str, Any] = dict(found.fields)
    problems: list[Problem] = []
    remarks: list[Remark] = []
    missing: dict[str, str] = {}
    preset = meant_model(found, "model", fields, missing, told)
    fields["workload.task"] = "serving"
    tp, pp, dp = (fields[f"strategy.{key}"] for key in ("tp", "pp", "dp"))
    if devices is not None and devices != tp * pp * dp:
        message = f"tp x pp x dp = {tp} x {pp} x {dp} = {tp * pp * dp}, and there are {devices} devices"
        more = f", or write --data-parallel-size {devices // (tp * pp)} for replicas on all" if devices % (tp * pp) == 0 else ""
        message += f"; count {tp * pp * dp} (--devices {tp * pp * dp}){more}"
        problems.append(found.problem("tensor-parallel-size", message))
    if pp > 1 and dp > 1:
        fields["strategy.placement"] = ORDER
    if preset is not None:
        fields |= dict(_experts(found, fields, preset, remarks))
    fields |= dict(_requests(found, dp, requests, problems, missing))
    fields |= dict(meant_types(found, preset, problems, remarks))
    meant_encoders(found, problems, remarks)
    idle: list[Remark] = []
    fields |= dict(meant_adapters(found, VLLM, idle, missing)) | dict(meant_swap(found, problems, idle))
    missing |= lengths_missing(fields, "vllm serve")
    return Meaning(fields=fields, ignored=tuple(idle), unmodelled=tuple(remarks), problems=tuple(problems), missing=missing)


def meant_model(found: Found, flag: str, fields: dict[str, Any], missing: dict[str, str], told: str | None = None) -> str | None:
    """The preset of a server's model; the file of another, or why none is known, goes to the fields or to what is missing.

    `told` is the preset that crossflow's comment names, for a checkpoint whose name is not known.
    """
    name = found.values.get(flag)
    known = by_huggingface(name) if name else None
    if told and known and told != known:
        raise SpecError([found.problem(flag, f"{shown(name)} is {known}, and the comment workload.model says {told}; remove one of both")])
    preset = told if told in presets() else known
    if preset is not None:
        fields["workload.model"] = preset
    elif name and (Path(name) / CONFIG).is_file():
        fields["workload.model"] = str(Path(name) / CONFIG)
    else:
        missing["workload.model"] = f"no preset is known as {shown(name)}{like_preset(name)}" if name else "the command names no model"
    return preset


def lengths_missing(fields: FlatSettings, command: str) -> dict[str, str]:
    """What a server's flags do not say of its requests."""
    long = {"prompt": "prompts are", "output": "answers are"}
    said = {f"workload.{key}": f"flags of {command} do not say how long {what}" for key, what in long.items()}
    return {path: why for path, why in said.items() if path not in fields}


def _experts(found: Found, fields: FlatSettings, preset: str, remarks: list[Remark]) -> MeantFields:
    """Experts lie over all ranks of a stage [1]_: shared out, or each cut over all of them."""
    if "workload.experts.count" not in preset_settings(preset):
        return
    tp, dp = fields["strategy.tp"], fields["strategy.dp"]
    shared = "enable-expert-parallel" in found.values
    if tp > 1 and dp > 1:  # of one replica every rank has all tokens [3]_
        yield "strategy.sequence_parallel", True
    if shared and tp * dp > 1:
        yield "strategy.ep", tp * dp
        if tp > 1:
            yield "strategy.etp", 1
        backend = found.values.get("all2all-backend", "allgather_reducescatter")
        if dp == 1 and "all2all-backend" in found.values:
            remarks.append(found.remark("all2all-backend", "with one replica every rank has all tokens, and the flag does nothing"))
        if dp > 1 and not backend.startswith("deepep"):
            remarks.append(found.remark("all2all-backend", f"{backend} is predicted as the software stack's exchange of tokens, DeepEP"))
    elif dp > 1:
        yield "strategy.etp", tp * dp


def _requests(found: Found, dp: int, requests: int, problems: list[Problem], missing: dict[str, str]) -> MeantFields:
    """Requests at once, and tokens that are guessed."""
    yield "workload.global_batch", found.values.get("max-num-seqs", requests) * dp
    if "max-model-len" in found.values:
        text = found.values["max-model-len"]
        if text not in ("auto", "-1") and not re.fullmatch(r"\d{1,9}[kKmM]?", text):
            problems.append(found.problem("max-model-len", f"expected a number of tokens such as 8192 or 8K, got {shown(text)}"))
    guessed = found.values.get("speculative-config")
    if guessed is None:
        return
    tokens = guessed.get("num_speculative_tokens") if isinstance(guessed, Mapping) else None
    if type(tokens) is not int or not 1 <= tokens <= 64:
        message = f"expected JSON with num_speculative_tokens from 1 to 64, got {shown(guessed)}"
        problems.append(found.problem("speculative-config", message))
        return
    yield "workload.serving.speculation.tokens", tokens
    missing["workload.serving.speculation.acceptance"] = "flags do not say how often a guess is right"


def meant_types(
    found: Found, preset: str | None, problems: list[Problem], remarks: list[Remark], kinds: Mapping[str, tuple[str, str]] = QUANTIZED,
    left: tuple[str, ...] = BY_CHECKPOINT, flag: str = "quantization",
) -> MeantFields:  # fmt: skip
    """Types of products and weights by `dtype` and a method that a flag names; of the methods `left` only the checkpoint tells them."""
    method: str | None = found.values.get(flag)
    half = {"auto": None, "half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}[
        found.values.get("dtype", "auto")
    ]
    released = preset is not None and method is None and half is None and bool(types_of(preset))
    yield "workload.dtype", None if released else half or "bf16"
    if method is not None and method in kinds:
        key, value = kinds[method]
        yield f"workload.{key}", value
    elif method in left:
        remarks.append(found.remark(flag, f"{method}: the checkpoint says the types; give workload.dtype or workload.weight_dtype"))
    elif method is not None and method != "None":
        problems.append(found.problem(flag, f"expected one of {', '.join((*kinds, *left))}, got {shown(method)}"))


def length(text: str) -> int | None:
    """Tokens of a length as vLLM writes them; None where it says none.

    >>> length("8192"), length("8K"), length("auto")
    (8192, 8192, None)
    """
    found = re.fullmatch(r"(\d{1,9})([kKmM]?)", text)
    return int(found[1]) * THOUSANDS[found[2]] if found else None


# ---------------------------------------------------------------------------------------------- writing


def flags(settings: FlatSettings, plan: Plan, named: Any, node: int) -> Flags:
    """Flags that say a service's plan on nodes of so many devices, where one setting alone does not decide them.

    `named` is the scenario's own model.
    """
    unsaid: list[str] = []
    remarks: list[str] = []
    said = {
        "strategy.sequence_parallel", "strategy.ep", "strategy.etp", "strategy.placement", "strategy.micro_batch", "workload.global_batch",
        *(path for path in settings if of_model(path)),
    }  # fmt: skip
    preset = preset_of(settings, named)
    types, weights = said_types(settings, preset, said)
    values = said_model(preset, weights, named, unsaid, remarks) | types
    values |= _say_experts(settings, plan, unsaid)
    values |= _say_nodes(plan, node, remarks)
    batch = settings["workload.global_batch"]
    arrives = settings.get("workload.serving.arrival_rate") is not None  # the rate decides how many requests run at once
    if not (arrives and batch == 1):  # the engine's own limit stays
        values["max-num-seqs"] = max(batch // plan.dp, 1)
    if not arrives and plan.micro_batch != plan.serving(batch).micro_batch:
        unsaid.append(
            f"micro_batch: {plan.micro_batch}: vLLM makes its batches of all requests at hand, {plan.serving(batch).micro_batch} here"
        )
    order = several(plan)
    if order != [block for block in ORDER if block in order]:
        unsaid.append(f"placement: {', '.join(plan.placement)}: vLLM lays ranks out as {', '.join(ORDER)}")
    prompt, output = settings["workload.prompt"] or settings["workload.sequence"], settings["workload.output"] or 0
    values["max-model-len"] = prompt + output
    if (tokens := settings.get("workload.serving.speculation.tokens")) is not None:
        method = "mtp" if preset and preset_settings(preset).get("workload.mtp_layers") else "ngram"
        values["speculative-config"] = {"method": method, "num_speculative_tokens": tokens}
        said.add("workload.serving.speculation.tokens")
        remarks.append(f"choose the method of speculation; {method} is written for want of a setting that says it")
    values |= said_adapters(settings, VLLM, said, unsaid) | said_swap(settings, said, remarks, unsaid)
    return Flags(values=values, said=frozenset(said), remarks=tuple(remarks), unsaid=tuple(unsaid))


def said_model(
    preset: str | None, weights: str, named: Any, unsaid: list[str], remarks: list[str], engine: str = "vLLM", flag: str = "model",
    own_code: str = "trust-remote-code",
) -> dict[str, Any]:  # fmt: skip
    """The checkpoint: the released one, or a folder for one whose weights are of other types, or that nobody released."""
    if preset is not None and not weights and (names := names_of(preset).huggingface):
        remarks.append(f"the model is named after the preset {preset}; put the name of your own checkpoint of that size in its place")
        return {flag: names[0], own_code: True if names_of(preset).own_code else None}
    if preset is not None:
        folder = f"./{preset}-{weights}" if weights else f"./{preset}"
        which = f"with weights in {weights}" if weights else "of your own, as none is known that was released"
        remarks.append(f"put a checkpoint of {preset} {which} into {folder}, or its name in the place of {folder}")
        return {flag: folder}
    if isinstance(named, str) and Path(named).name == CONFIG:
        folder, own = str(Path(named).parent), model_settings(named)
        if weights and weights not in (own.get("workload.weight_dtype"), own.get("workload.dtype")):
            remarks.append(
                f"put a checkpoint with weights in {weights} into {folder}, in which they are predicted; its config.json says others"
            )
        return {flag: folder}
    cure = "name that file, or a preset, as the model"
    if isinstance(named, str) and named.endswith(".json"):
        cure = f"give {Path(named).name} that name in a folder of its own, with the weights beside it"
    unsaid.append(f"workload: a model of these dimensions: {engine} reads a model's config.json; {cure}")
    return {}


def _say_nodes(plan: Plan, node: int, remarks: list[str]) -> dict[str, Any]:
    """How engines start on more than one node: by Ray, which one command asks for them; else vLLM looks for all devices in its own."""
    worker = plan.tp * plan.pp
    if worker * plan.dp <= node:
        return {}
    span = " with VLLM_RAY_DP_PACK_STRATEGY=span" if plan.dp > 1 and worker > node else ""
    started = "ray start --head, then ray start --address HEAD on the others"
    remarks.append(f"install Ray (pip install ray), start it on all nodes ({started}), and then this on one of them{span}")
    values: dict[str, Any] = {"distributed-executor-backend": "ray"} if worker > node else {}
    if plan.dp > 1:
        values |= {"data-parallel-backend": "ray", "data-parallel-size-local": max(node // worker, 1)}
    return values


def _say_experts(settings: FlatSettings, plan: Plan, unsaid: list[str]) -> dict[str, Any]:
    ranks, etp = plan.tp * plan.dp, settings["strategy.etp"] or plan.tp
    if "workload.experts.count" not in settings:
        if plan.sequence_parallel and plan.tp > 1:
            unsaid.append("sequence_parallel: true: vLLM divides the tokens of mixtures of experts only")
        return {}
    if ranks > 1 and (plan.ep, etp) == (ranks, 1):
        values: dict[str, Any] = {"enable-expert-parallel": True} | ({"all2all-backend": "deepep_low_latency"} if plan.dp > 1 else {})
    elif (plan.ep, etp) == (1, ranks):
        values = {}
    else:
        what = f"ep: {plan.ep}, etp: {etp}"
        unsaid.append(
            f"{what}: vLLM shares experts out over all tp x dp = {ranks} ranks (ep: {ranks}, etp: 1), or cuts each over them (etp: {ranks})"
        )
        return {}
    divided = plan.tp > 1 and plan.dp > 1
    if plan.tp > 1 and plan.sequence_parallel != divided:
        unsaid.append(f"sequence_parallel: {str(plan.sequence_parallel).lower()}: vLLM has {str(divided).lower()} here")
    return values


def said_types(
    settings: FlatSettings, preset: str | None, said: set[str], methods: Mapping[tuple[str, str], str] = SAID
) -> tuple[dict[str, Any], str]:
    """Types by flags, and the type of weights that the checkpoint must have, empty where the released one has it.

    Engines make fp8 of weights in 16 bits as they load them; those of four bits they only read.
    """
    dtype, weight = settings["workload.dtype"], settings["workload.weight_dtype"]
    own = types_of(preset) if preset else {}
    kept = own.get("weight_dtype")
    wide = tuple(own.get("wide_layers", ())) == tuple(settings["workload.wide_layers"] or ())
    if own and wide and (dtype, weight) in ((kept, None), ("bf16", kept)):  # as it was released, whatever the device multiplies in
        said |= {"workload.dtype", "workload.weight_dtype", "workload.wide_layers"}
        return {}, ""
    method = methods.get(("weight_dtype", weight) if weight else ("dtype", dtype))
    loaded = "" if method == "fp8" and not own else weight or dtype
    if method is not None:
        said |= {"workload.weight_dtype"} if weight else {"workload.dtype", "workload.weight_dtype"}
        if weight and dtype in HALF:
            said.add("workload.dtype")
            return {"dtype": HALF[dtype], "quantization": method}, loaded
        return {"quantization": method}, loaded
    if weight is None and dtype in HALF and not own:
        said |= {"workload.dtype", "workload.weight_dtype"}
        return {"dtype": HALF[dtype]}, ""
    return {}, loaded


def script(words: list[str], head: list[str]) -> str:
    """A shell script that starts the server."""
    model = next((word.split(" ", 1)[1] for word in words if word.startswith("--model ")), "MODEL")
    rest = [word for word in words if not word.startswith("--model ")]
    return "\n".join(["#!/usr/bin/env bash", *head, " \\\n  ".join([f"vllm serve {model}", *rest]), ""])
