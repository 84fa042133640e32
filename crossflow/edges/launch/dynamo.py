"""Rules of Dynamo: workers of an engine behind one frontend, those that read prompts apart where a service has them.

A plan's ranks that share experts, or a layer of attention, are one worker; more of them are its replicas. Workers take the flags of their
engine, whose rules say a plan in them [1]_.

References
----------
.. [1] ai-dynamo 1.6.1, dynamo/vllm/args.py, dynamo/sglang/args.py, dynamo/trtllm/backend_args.py, 2026.
.. [2] The same, dynamo/profiler/templates/dgd: a DynamoGraphDeployment of each engine, and the image that runs it.
.. [3] ai-dynamo/dynamo, examples/backends/*/launch/disagg.sh and engine_configs, 2026: how workers that read prompts hand over the cache.
.. [4] ai-dynamo, router guide of 1.5 and 1.6, 2026: modes of `--router-mode`, and `--no-router-kv-events`.
.. [5] vllm-project/vllm, docs/serving/expert_parallel_deployment, 2026: DeepEP's methods for prefill and for decode.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import yaml

from crossflow.base.errors import Problem
from crossflow.edges.launch import sglang, tensorrt_llm, vllm
from crossflow.edges.launch.meaning import Flags, Meaning
from crossflow.edges.launch.servers import ServerRanks, ranks_of
from crossflow.edges.launch.settings import FlatSettings, plan_settings, section, several
from crossflow.edges.launch.sources import GivenWorker
from crossflow.edges.launch.table import FlagTable, Found, Remark, read_flags, table, written_flags
from crossflow.edges.launch.workers import BACKENDS
from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.transformers import plan_of

VERSION = "1.6.1"
IMAGES = {kind: f"nvcr.io/nvidia/ai-dynamo/{name}-runtime:{VERSION}" for kind, name in (
    ("vllm", "vllm"), ("sglang", "sglang"), ("tensorrt-llm", "tensorrtllm"),
)}  # fmt: skip
MODULES = {kind: f"dynamo.{module}" for module, kind in BACKENDS.items()}
NAMES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM"}
ROUTER = "workload.serving.router"  # an option of the frontend, and a comment that is read back
# Modes of the frontend's router, by those of a replay; blocks are those that it has sent, so that workers need not tell theirs [4]_.
MODES = {
    "round_robin": [], "least_loaded": ["--router-mode", "least-loaded"], "two_choices": ["--router-mode", "power-of-two"],
    "prefix": ["--router-mode", "kv", "--no-router-kv-events"],
}  # fmt: skip
CHUNK = "workload.serving.chunk"  # which workers that read prompts have not: they read whole ones
CHUNKS = {"vllm": "max-num-batched-tokens", "sglang": "chunked-prefill-size", "tensorrt-llm": "--max_num_tokens"}
LIMITS = {"vllm": "max-num-seqs", "sglang": "max-running-requests", "tensorrt-llm": "--max_batch_size"}  # of requests, by engine
NEEDED = ("disable_overlap_scheduler",)  # of TensorRT-LLM's workers that read prompts, which have no steps to prepare for [3]_
EXCHANGE = ("all2all-backend", "deepep_high_throughput")  # of vLLM's workers that read prompts; the other method is for few tokens [5]_
APART = ("tp", "pp", "dp")  # how ranks of replicas lie, the nearest first
# Options of TensorRT-LLM's worker, by those of trtllm-serve; all else is a key of `override-engine-args`.
OPTIONS = {
    "--model": "--model-path", "--tp_size": "--tensor-parallel-size", "--pp_size": "--pipeline-parallel-size",
    "--ep_size": "--expert-parallel-size", "--max_batch_size": "--max-batch-size", "--max_num_tokens": "--max-num-tokens",
    "--max_seq_len": "--max-seq-len", "--kv_cache_free_gpu_memory_fraction": "--free-gpu-memory-fraction",
    "enable_attention_dp": "--enable-attention-dp",
}  # fmt: skip


@functools.cache
def table_of(backend: str) -> FlagTable:
    """The table of a worker: the flags of its engine and those of Dynamo, which count where both have one."""
    own, engine = table("dynamo"), table(backend)
    return FlagTable(
        kind="launch", framework="dynamo", title=own.title, sources={**engine.sources, **own.sources}, software=engine.software,
        vendors=own.vendors, comments=(*engine.comments, ROUTER),
        flags={**engine.flags, **own.flags}, ignored={**own.ignored, **engine.ignored},
        unmodelled={**engine.unmodelled, **own.unmodelled}, switches=(*own.switches, *engine.switches),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, kw_only=True)
class MeantWorker:
    """What the flags of a worker mean."""

    given: GivenWorker
    found: Found
    meaning: Meaning

    @property
    def reads(self) -> bool:
        """Whether it reads prompts alone."""
        return _reads(self.given, self.found)


def meaning(workers: Sequence[GivenWorker], file: str, told: str | None = None) -> tuple[Found, Meaning]:
    """What a deployment means: the plan of its workers and their number, and the workers that read prompts.

    `told` is the preset that crossflow's comment names, for a checkpoint whose name is not known.
    """
    meant = [_meant(worker, file, told) for worker in workers]
    problems: list[Problem] = []
    notes: list[Remark] = []
    writing = _same([one for one in meant if not one.reads], notes)
    reading = _same([one for one in meant if one.reads], notes)
    main = writing or reading
    if not writing:
        problems.append(Problem(file=file, message="expected workers that write answers; all of them only read prompts (prefill)"))
    fields = _replicated(main)
    if writing and reading:
        fields |= _read(reading, fields, notes)
        fields.pop(CHUNK, None)
    every = [main[0], *reading[: bool(writing)]]
    found, first = [one.found for one in every], every[0].meaning
    merged = replace(
        found[0], problems=tuple([problem for one in found for problem in one.problems] + problems),
        ignored=_once(one.ignored for one in found), unmodelled=_once(one.unmodelled for one in found),
        notes=(*_once(one.notes for one in found), *notes),
    )  # fmt: skip
    own = replace(
        first, fields=fields, software=table_of(main[0].given.line.backend).software,
        unmodelled=_once(one.meaning.unmodelled for one in every),
        problems=tuple(dict.fromkeys(problem for one in every for problem in one.meaning.problems)),
    )  # fmt: skip
    return merged, own


def _once(lists: Iterable[tuple[Remark, ...]]) -> tuple[Remark, ...]:
    return tuple(dict.fromkeys(remark for some in lists for remark in some))


def _reads(worker: GivenWorker, found: Found) -> bool:
    """Whether a worker with these flags reads prompts alone."""
    mode = found.values.get("disaggregation-mode")
    return mode == "prefill" or (mode is None and (worker.line.reads or "is-prefill-worker" in found.values))


def _meant(worker: GivenWorker, file: str, told: str | None) -> MeantWorker:
    """What a worker's flags mean by the table and the rules of its engine, to which its part in the service means nothing."""
    backend = worker.line.backend
    known = table_of(backend)
    prefix = "" if backend == "tensorrt-llm" else "--"
    found = read_flags(known, worker.given, file, prefix=prefix)
    if _reads(worker, found):
        found = read_flags(known, [one for one in worker.given if one.flag not in NEEDED], file, prefix=prefix)
    plain = replace(found, values={flag: value for flag, value in found.values.items() if flag != "disaggregation-mode"})
    engine = load_stack(known.software)[0].engine
    if backend == "vllm":
        own = vllm.meaning(plain, worker.line.devices, engine.requests, told)
    else:
        own = (sglang if backend == "sglang" else tensorrt_llm).meaning(plain, worker.line.devices, engine, told)
    return MeantWorker(given=worker, found=found, meaning=own)


def _same(workers: list[MeantWorker], notes: list[Remark]) -> list[MeantWorker]:
    """The workers that are like the first; the others are told."""
    like = [
        one
        for one in workers
        if one.given.line.backend == workers[0].given.line.backend and one.meaning.fields == workers[0].meaning.fields
    ]
    for one in workers:
        if one not in like:
            line = one.given.line.words[0].line if one.given.line.words else None
            notes.append(Remark(flag=MODULES[one.given.line.backend], line=line, why="a worker unlike the first of its kind, not read"))
    return like


def _replicated(workers: Sequence[MeantWorker]) -> dict[str, Any]:
    """What one worker means, for all of them."""
    fields, count = dict(workers[0].meaning.fields), sum(one.given.line.replicas for one in workers)
    if count > 1 and fields.get("strategy.pp", 1) > 1 and fields.get("strategy.dp", 1) == 1:
        fields["strategy.placement"] = APART
    for path in ("strategy.dp", "workload.global_batch"):
        fields[path] = fields.get(path, 1) * count
    return fields


def _read(workers: Sequence[MeantWorker], main: FlatSettings, notes: list[Remark]) -> dict[str, Any]:
    """Workers that read prompts, as a service has them: a plan whose replicas share out experts, and how many there are."""
    fields = workers[0].meaning.fields
    own = {path: value for path, value in fields.items() if path.startswith("strategy.")}
    tp, dp = own.get("strategy.tp", 1), own.get("strategy.dp", 1)
    span = own.get("strategy.ep", 1) * own.get("strategy.etp", tp)
    groups = max(span // tp, 1)  # that share experts, and have prompts of their own
    kept = {path: value for path, value in {**own, "strategy.dp": groups}.items() if path != "strategy.placement"}
    notes += _unlike(workers[0], main)
    return {
        "workload.serving.prefill.strategy": plan_of(section(kept, "strategy")).text(),
        "workload.serving.prefill.workers": max(dp * tp // max(span, tp), 1) * sum(one.given.line.replicas for one in workers),
    }


def _unlike(reading: MeantWorker, main: FlatSettings) -> list[Remark]:
    """What workers that read prompts have otherwise than those that write, which the model has not."""
    fields, backend = reading.meaning.fields, reading.given.line.backend
    paths = [
        path for path in {**fields, **main} if path.startswith(("workload.", "software.")) and path not in ("workload.global_batch", CHUNK)
    ]
    why = "predicted for workers that read prompts as for those that write"
    notes = [
        Remark(flag=path, line=None, why=why) for path in sorted(paths) if fields.get(path) != main.get(path) and "speculation" not in path
    ]
    if CHUNKS[backend] in reading.found.values or CHUNK in main:
        notes.append(reading.found.remark(CHUNKS[backend], "workers that read prompts are predicted to read whole ones"))
    return notes


# ---------------------------------------------------------------------------------------------- writing


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Workers of one kind: `name` in the deployment, what they do, their flags, how many there are, and devices of each."""

    name: str
    role: str  # worker, decode or prefill
    values: Mapping[str, Any]
    replicas: int
    devices: int


def flags(settings: FlatSettings, plan: Plan, named: Any, backend: str, node: int) -> Flags:
    """Flags that say a plan to one of its workers, on nodes of so many devices."""
    ranks = ranks_of(settings, plan, NAMES[backend], [])
    own, inner = _of_one(settings, plan, ranks)
    rules = _engine(own, inner, named, backend, ranks, node)
    unsaid = list(rules.unsaid)
    if ranks.replicas > 1 and plan.pp > 1 and several(plan) != [block for block in APART if block in several(plan)]:
        unsaid.append(f"placement: {', '.join(plan.placement)}: replicas of a worker lie apart, as {', '.join(APART)}")
    if (router := settings.get(ROUTER) or "round_robin") not in MODES:
        unsaid.append(f"router: {router}: the frontend of dynamo has no such mode")
    if reads_apart(settings):
        unsaid += _reading(settings, named, backend, node).rules.unsaid
    said = rules.said | {"strategy.dp", "workload.serving.prefill.strategy", "workload.serving.prefill.workers"}
    return replace(rules, said=said, unsaid=tuple(dict.fromkeys(unsaid)))


def _of_one(settings: FlatSettings, plan: Plan, ranks: ServerRanks) -> tuple[FlatSettings, Plan]:
    """Settings and plan of one of the workers of a plan."""
    inner, batch = replace(plan, dp=ranks.groups), settings["workload.global_batch"]
    return {**settings, "strategy.dp": inner.dp, "workload.global_batch": max(batch // ranks.replicas, 1)}, inner


def reads_apart(settings: FlatSettings) -> bool:
    """Whether a service has workers that read prompts alone."""
    return settings.get("workload.serving.prefill.strategy") is not None


def _engine(settings: FlatSettings, plan: Plan, named: Any, backend: str, ranks: ServerRanks, node: int) -> Flags:
    """Flags of a worker by the rules of its engine, without those that place it on nodes, which Dynamo gives."""
    devices = ranks.width * plan.pp
    if backend == "sglang":
        rules = sglang.flags(settings, plan, named, -(-devices // node))
        rules = replace(rules, values={**rules.values, "nnodes": None})
    else:
        rules = tensorrt_llm.flags(settings, plan, named) if backend != "vllm" else vllm.flags(settings, plan, named, plan.dp * devices)
        if backend == "vllm" and plan.dp > 1:  # of one worker, whose row would say that of all
            rules = replace(rules, values={**rules.values, "data-parallel-size": plan.dp})
    if devices > node and devices % node:
        rules = replace(rules, unsaid=(*rules.unsaid, f"a worker has {devices} devices, which do not fill nodes of {node}"))
    return rules


class _Reading(NamedTuple):
    """A worker that reads prompts."""

    settings: FlatSettings
    plan: Plan
    ranks: ServerRanks
    rules: Flags


def _reading(settings: FlatSettings, named: Any, backend: str, node: int) -> _Reading:
    """Settings and flags of a worker whose ranks with prompts of their own read one at a time each."""
    plan = plan_of(settings["workload.serving.prefill.strategy"])
    every = {**settings, **plan_settings(plan, settings["workload.layers"]), "workload.global_batch": plan.dp}
    ranks = ranks_of(every, plan, NAMES[backend], [])
    own, inner = _of_one(every, plan, ranks)
    rules = _engine(own, inner, named, backend, ranks, node)
    values = {**rules.values, LIMITS[backend]: None}
    if values.get(EXCHANGE[0]):
        values[EXCHANGE[0]] = EXCHANGE[1]
    return _Reading(own, inner, ranks, replace(rules, values=values))


def pools(settings: FlatSettings, plan: Plan, values: Mapping[str, Any], named: Any, backend: str, node: int) -> list[Pool]:
    """The workers of a plan whose flags are `values`, and those that read prompts."""
    ranks = ranks_of(settings, plan, NAMES[backend], [])
    apart = reads_apart(settings)
    role = "decode" if apart else "worker"
    found = [Pool(name=role, role=role, values=values, replicas=ranks.replicas, devices=ranks.width * plan.pp)]
    if apart:
        read = _reading(settings, named, backend, node)
        told = dict(written_flags(table_of(backend), read.settings, read.rules.values, read.rules.said))
        count = settings["workload.serving.prefill.workers"]
        found.append(Pool(name="prefill", role="prefill", values=told, replicas=count, devices=read.ranks.width * read.plan.pp))
    return found


def words(pool: Pool, backend: str) -> list[str]:
    """Arguments of a worker, as a container has them."""
    values = dict(pool.values)
    beside: dict[str, Any] = {} if pool.role == "worker" else {"--disaggregation-mode": pool.role}
    if backend == "tensorrt-llm":
        named = {option: values.pop(name) for name, option in OPTIONS.items() if name in values}
        if beside:
            values["cache_transceiver_config.backend"] = "DEFAULT"
        if pool.role == "prefill":
            values |= dict.fromkeys(NEEDED, True)
        over = tensorrt_llm.config_of(values)
        return _listed({**named, **({"--override-engine-args": over} if over else {}), **beside})
    if backend == "vllm" and beside:
        beside["--kv-transfer-config"] = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    elif beside:
        beside |= {"--disaggregation-transfer-backend": "nixl", "--disaggregation-bootstrap-port": 12345, "--host": "0.0.0.0"}
    return _listed({**{f"--{name}": value for name, value in values.items()}, **beside})


def _listed(values: Mapping[str, Any]) -> list[str]:
    found = []
    for name, value in values.items():
        text = json.dumps(value) if isinstance(value, (dict, list)) else f"{value:g}" if isinstance(value, float) else str(value)
        found += [name] if value is True else [name, text]
    return found


def document(found: Sequence[Pool], backend: str, node: int, name: str, head: list[str], router: str = "round_robin") -> str:
    """A DynamoGraphDeployment with a frontend, whose router shares out requests, and the workers [2]_."""
    front = {"name": "Frontend", "type": "frontend", "replicas": 1} | _pod(backend, ["python3", "-m", "dynamo.frontend"], MODES[router], 0)
    components = [front, *(_component(pool, backend, node) for pool in found)]
    data = {
        "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": {"name": _name(name)},
        "spec": {"backendFramework": BY_KIND[backend], "components": components},
    }  # fmt: skip
    return "\n".join([*head, yaml.safe_dump(data, sort_keys=False, width=1000)])


BY_KIND = {kind: module for module, kind in BACKENDS.items()}


def _component(pool: Pool, backend: str, node: int) -> dict[str, Any]:
    nodes = -(-pool.devices // node)
    placed = {"multinode": {"nodeCount": nodes}} if nodes > 1 else {}
    command = ["python3", "-m", MODULES[backend]]
    return {"name": pool.name, "type": pool.role, "replicas": pool.replicas, **placed} | _pod(
        backend, command, words(pool, backend), min(pool.devices, node)
    )


def _pod(backend: str, command: list[str], arguments: list[str], devices: int) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": IMAGES[backend], "command": command}
    container |= {"args": arguments} if arguments else {}
    container["envFrom"] = [{"secretRef": {"name": "hf-token-secret"}}]
    container |= {"resources": {"limits": {"nvidia.com/gpu": str(devices)}}} if devices else {}
    return {"podTemplate": {"spec": {"containers": [container]}}}


def _name(text: str) -> str:
    """A name as Kubernetes takes it.

    >>> _name("My run_2.yaml")
    'my-run-2-yaml'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-") or "crossflow"
