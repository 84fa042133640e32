"""A fleet as one shell script: a server for every engine, placed on nodes, and the router that shares out requests.

References
----------
.. [1] vllm-project/router, docs/load_balancing, and sgl-project/sglang, sgl-router, 2025-26: `--worker-urls`, and `--policy` round_robin,
   power_of_two (of two workers drawn at random the one with fewer requests) or cache_aware (the longest prefix unless loads differ much).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario
from crossflow.base.errors import CrossflowError
from crossflow.edges.launch.dynamo import ROUTER
from crossflow.edges.launch.launch import write
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.spec import TransformerSpec

PLAIN = "round_robin"
STARTS = {"vllm": "vllm-router", "sglang": "python3 -m sglang_router.launch_router"}
# Policies of both routers [1]_; for the fewest requests of all engines they have none, and two drawn ones come nearest.
POLICIES = {"round_robin": "round_robin", "two_choices": "power_of_two", "prefix": "cache_aware", "least_loaded": "power_of_two"}
NEAREST = "# The router has no policy for the engine with the fewest requests of all; power_of_two, of two that are drawn, comes nearest."
ELSEWHERE = "export to dynamo, which can say it"


def write_fleet(scenario: Scenario, kind: str) -> str:
    """The launch file of a service with requests: that of its plan, or, where several engines of vLLM or SGLang need a router, a script.

    Raises
    ------
    CrossflowError
        For a fleet that the framework and its router cannot express, with what can.
    """
    plan, workload = scenario.strategy, scenario.workload
    if kind not in STARTS or not isinstance(plan, Plan) or not isinstance(workload, TransformerSpec) or plan.dp == 1:
        return write(_unrouted(scenario) if isinstance(plan, Plan) and plan.dp == 1 else scenario, kind)
    if problem := _problem(scenario, plan, workload):
        raise CrossflowError(f"{kind} cannot express this fleet: {problem}; {ELSEWHERE}")
    one = variant(_unrouted(scenario), {"strategy": replace(plan, dp=1).text(), "system.devices": plan.devices // plan.dp})
    return _script(write(one, kind), kind, plan, scenario.hosts[0], workload.serving.router)


def _unrouted(scenario: Scenario) -> Scenario:
    """A service whose router says nothing, as that of a single engine."""
    serving = getattr(scenario.workload, "serving", None)
    return scenario if serving is None or serving.router == PLAIN else variant(scenario, {ROUTER: PLAIN})


def _problem(scenario: Scenario, plan: Plan, workload: TransformerSpec) -> str:
    """What a script of servers and a router cannot say, in words; empty where it says all."""
    if plan.replicas_meet:
        return f"replicas that share experts ({scenario.strategy_text}) are no servers of their own"
    if workload.serving.prefill is not None:
        return "engines that only read prompts hand their caches over by a connector, which a script of servers does not set up"
    if plan.devices // plan.dp > scenario.hosts[0]:
        return f"an engine has {plan.devices // plan.dp} devices, more than the {scenario.hosts[0]} of a node"
    if workload.serving.router not in POLICIES:
        return f"its router has no policy for serving.router: {workload.serving.router}"
    return ""


def _script(text: str, kind: str, plan: Plan, node: int, router: str) -> str:
    """The script of one server as that of all, with the router on the first node."""
    lines = text.splitlines()
    head = [line for line in lines if line.startswith("#")]
    command = [line for line in lines if line and not line.startswith("#")]
    each = plan.devices // plan.dp
    return "\n".join([
        *head,
        f"# {plan.dp} engines of {each} devices behind a router on port 8000. Run this on every node, with the names of all of them:",
        '#   HOSTS="node0 node1" NODE_RANK=0 bash FILE',
        *([NEAREST] if router == "least_loaded" else []),
        *_placed(command, plan.dp, each, node),
        *_routed(kind, router),
        "wait",
        "",
    ])  # fmt: skip


def _placed(command: Sequence[str], engines: int, each: int, node: int) -> list[str]:
    """Lines that start the engines of a node, each on devices of its own."""
    server = [f"    {line}" for line in command]
    return [
        'read -r -a hosts <<< "${HOSTS:-localhost}"',
        f"rank=${{NODE_RANK:-0}} engines={engines} each={each} on_node={node // each}",
        "for ((i = 0; i < on_node && rank * on_node + i < engines; i++)); do",
        "  CUDA_VISIBLE_DEVICES=$(seq -s, $((i * each)) $((i * each + each - 1))) \\",
        *server[:-1],
        f"{server[-1]} \\",
        "      --host 0.0.0.0 --port $((8001 + i)) &",
        "done",
    ]


def _routed(kind: str, router: str) -> list[str]:
    """Lines that start the router beside the first engines."""
    return [
        "if ((rank == 0)); then",
        "  urls=()",
        "  for ((n = 0; n < engines; n++)); do",
        '    urls+=("http://${hosts[n / on_node]:?HOSTS names too few nodes}:$((8001 + n % on_node))")',
        "  done",
        f'  {STARTS[kind]} --worker-urls "${{urls[@]}}" --policy {POLICIES[router]} --host 0.0.0.0 --port 8000 &',
        "fi",
    ]
