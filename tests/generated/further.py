"""Further files that crossflow should accept: changed technology and templates, wirings, fine-tuning, jobs, fleets, long runs, traces."""

from hypothesis import strategies as st

from tests.generated.inputs import (
    _degrees,
    _put,
    asked_requests,
    datasheet_systems,
    generated_systems,
    graphs,
    pick,
    quantities,
    recommendations,
    replays,
    runs,
    sometimes,
    suited,
    systems,
    transformer_scenarios,
    transformers,
)

# Entries of the standard library with figures that may be other ones, each with its own value.
TECHNOLOGY = {
    "memory.HBM3.dynamic_energy_per_bit": (2, 8, "pJ/bit"),
    "memory.HBM3.access_latency": (20, 400, "ns"),
    "memory.HBM2.dynamic_energy_per_bit": (2, 8, "pJ/bit"),
    "link.NVLink4.latency": (0.1, 9, "us"),
    "link.NVLink4.nominal_energy_per_bit": (1, 12, "pJ/bit"),
    "link.NVLink2.latency": (0.1, 9, "us"),
}
GENERATED_FIELDS = {
    "memory_utilisation": st.floats(0.3, 1.0).map(lambda x: round(x, 3)),
    "memory_static_share": st.floats(0.01, 0.4).map(lambda x: round(x, 3)),
    "bundles": st.integers(8, 300),
    "harvest": pick([0, 0.05, "10 %"]),
    "dataflow": pick(["weight", "activation", "output", "best"]),
    "budgets.power": quantities(50, 2000, "W"),
    "budgets.node_area": quantities(900, 5000, "mm2"),
    "budgets.chiplets": pick([1, 2, 4, 8]),
    "execution.vector_utilisation": st.floats(0.1, 1.0).map(lambda x: round(x, 3)),
    "matrix_unit.height": pick([4, 16, 64, 256]),
    "matrix_unit.width": pick([4, 16, 64]),
}
DATASHEET_FIELDS = {
    "levels.memory.bandwidth": quantities(100, 20_000, "GB/s"),
    "levels.memory.capacity": quantities(16, 500, "GiB"),
    "memory_utilisation": st.floats(0.3, 1.0).map(lambda x: round(x, 3)),
    "power.tdp": quantities(60, 2000, "W"),
    "clock": quantities(0.5, 3, "GHz"),
    "units": st.integers(10, 400),
    "execution.vector_utilisation": st.floats(0.1, 1.0).map(lambda x: round(x, 3)),
}
WIRINGS = {  # of the network between nodes
    "rail-only": lambda n: {},
    "mesh3d": lambda n: {},
    "torus2d": lambda n: {"shape": [n // 2, 2]} if n % 2 == 0 else {},
    "mesh2d": lambda n: {"shape": [2, n // 2]} if n % 2 == 0 else {},
    "ring": lambda n: {"ports": 2} if n > 2 else {},
    "fully-connected": lambda n: {},
    "fat-tree": lambda n: {"group": max(n // 2, 1), "oversubscription": 2},
    "dragonfly": lambda n: {"group": max(n // 2, 1)},
    "crossbar": lambda n: {},
    "switch": lambda n: {},
}


@st.composite
def changed_systems(draw):
    """A system with other fields of its template, another wiring, and other technology."""
    system, devices = draw(st.one_of(generated_systems(nodes=(2, 4, 8)), datasheet_systems(nodes=(2, 4, 8))))
    fields = GENERATED_FIELDS if "technology" in system or system["template"] in GENERATED_NAMES else DATASHEET_FIELDS
    for path in draw(st.lists(pick(sorted(fields)), max_size=3, unique=True)):
        _put(system, path, draw(fields[path]))
    if sometimes(draw, 2):
        topology = draw(pick(sorted(WIRINGS)))
        system["network"] = {
            "inter": {"topology": topology, "fabric": draw(pick(["ideal", "infiniband", "roce"])), **WIRINGS[topology](system["nodes"])}
        }
    if fields is GENERATED_FIELDS and sometimes(draw, 3):
        system.get("network", {}).pop("inter", None)
        _put(system, "technology.inter_switch", draw(pick(["Tomahawk4", "Tomahawk5", "Quantum-2"])))
    return system, devices


GENERATED_NAMES = (
    "pathfinder",
    "mcm",
    "waferscale",
    "reference-training",
    "reference-serving",
    "chip-h100",
    "chip-mi300x",
    "chip-tpu-v4",
    "v100",
)


@st.composite
def technologies(draw):
    """A scenario of any workload on a changed system, with changed entries of the technology library."""
    document = draw(st.one_of(transformer_scenarios(), graphs(), recommendations()))
    system, devices = draw(changed_systems())
    document["system"] = system
    strategy = document["strategy"]
    if "dense" not in strategy:
        document["strategy"] = (
            {"dp": devices} if sometimes(draw, 2) else _degrees(draw, devices, ["tp", "dp"] if _layered(document) else ["dp"])
        )
    if system["template"] in GENERATED_NAMES and sometimes(draw, 2):
        for path in draw(st.lists(pick(sorted(TECHNOLOGY)), min_size=1, max_size=2, unique=True)):
            _put(document, f"techlib.{path}", draw(quantities(*TECHNOLOGY[path])))
    return suited(document)


def _layered(document):
    return document["workload"]["model"] not in ("gemm", "lstm", "dlrm")


@st.composite
def tuned(draw):
    """A training step that fine-tunes: adapters, frozen layers, dropout, guesses of several tokens."""
    system, devices = draw(systems(nodes=(1, 2)))
    model = (
        draw(transformers())
        if sometimes(draw, 2)
        else {"model": draw(pick(["llama2-7b", "mixtral-8x7b", "qwen2.5-7b"])), "global_batch": 64}
    )
    if sometimes(draw, 4):
        layers = model.get("layers", 32)
        model["frozen"] = draw(pick([["embedding"], ["attention"], [f"layers:0-{layers // 2}"], ["mlp", "embedding"]]))
    else:
        adapters = {"rank": draw(pick([1, 8, 64]))}
        if sometimes(draw, 2):
            adapters["targets"] = draw(pick([["all"], ["attention"], ["query", "value"], ["mlp"], "output", ["experts"]]))
        if sometimes(draw):
            adapters["joined"] = True
        if sometimes(draw):
            adapters |= {"base": "nf4", **draw(pick([{}, {"double": False}]))}
        model["adapters"] = adapters
    if sometimes(draw, 4):
        model["dropout"] = True
    plan = _degrees(draw, devices, ["tp", "pp", "dp"] if sometimes(draw, 2) else ["tp", "dp"])
    plan |= draw(pick([{}, {"zero": 1}, {"micro_batch": 2}, {"recompute": "full"}]))
    document = {"system": system, "workload": model, "strategy": plan}
    if sometimes(draw):
        document["software"] = draw(pick(["megatron-core", "pytorch-fsdp", "nemo", "ideal"]))
    return suited(document)


LENGTH = st.one_of(
    st.integers(4, 200),
    st.fixed_dictionaries({"law": st.just("lognormal"), "mean": st.integers(10, 90), "cv": st.just(0.8), "most": st.just(400)}),
    st.fixed_dictionaries({"law": st.just("uniform"), "low": st.integers(1, 50), "high": st.integers(50, 200)}),
)


@st.composite
def jobs(draw):
    """An iteration of post-training."""
    system = {"template": draw(pick(["dgx-h100", "dgx-a100", "mi300x-node"])), "devices": 8}
    _put(system, "nodes", None)
    model = {
        "model": draw(pick(["llama2-7b", "qwen3-8b", "mpt-1b"])),
        "sequence": draw(pick([256, 512])),
        "global_batch": draw(pick([16, 64])),
    }
    plan = {"tp": draw(pick([1, 2, 4])), "zero": draw(pick([0, 1, 3]))}
    plan["dp"] = 8 // plan["tp"]
    kind = draw(pick(["dpo", "distill", "grpo", "ppo"]))
    job = {"kind": kind}
    further = st.fixed_dictionaries({}, optional={"model": pick(["llama2-7b", "mpt-1b"]), "strategy": pick(["tp2-dp4", "dp8"])})
    if kind == "distill":
        job["teacher"] = {"model": draw(pick(["llama2-13b", "mpt-7b"])), **draw(pick([{}, {"strategy": "tp4-dp2"}]))}
    elif sometimes(draw, 2):
        job["reference"] = draw(pick(["none", {"strategy": "tp2-dp4"}])) if kind != "dpo" else draw(further)
    if sometimes(draw):
        job["offload"] = True
    if kind in ("grpo", "ppo"):
        rollout = {"prompts": draw(pick([1, 4, 16])), "answers": draw(pick([1, 4])), "prompt": draw(LENGTH), "answer": draw(LENGTH)}
        rollout["strategy"] = draw(pick(["tp1", "tp2", "tp4"]))
        if sometimes(draw, 2):
            rollout |= {"devices": draw(pick([4, 8, 16])), **draw(pick([{}, {"staleness": 1}, {"staleness": 2}]))}
        if sometimes(draw):
            rollout["seed"] = draw(st.integers(0, 5))
        job["rollout"] = rollout
        if sometimes(draw):
            job["epochs"] = draw(pick([1, 2]))
        if sometimes(draw):
            job["old_policy"] = draw(st.booleans())
        if sometimes(draw):
            job["reward"] = draw(further)
        if kind == "ppo" and sometimes(draw):
            job["critic"] = draw(further)
    document = {"system": system, "workload": model, "strategy": plan, "job": job}
    if sometimes(draw, 4):
        document["run"] = {"steps": draw(pick([10, 1000]))}
        _put(document, "system.operation", {"price": "2 USD/hour"})
    return document


@st.composite
def fleets(draw):
    """A replayed service with tiers of caches, guided or guessed tokens, failures, or replicas that follow the load."""
    document = draw(replays())
    serving = document["workload"].setdefault("serving", {})
    if sometimes(draw, 2):
        serving["host_cache"] = draw(
            pick(
                [
                    {"capacity": "8 GiB", "bandwidth": "20 GB/s"},
                    [{"capacity": "1 GiB", "bandwidth": "20 GB/s"}, {"capacity": "1 TB", "bandwidth": "2 GB/s"}],
                ]
            )
        )
    if sometimes(draw):
        serving["guided"] = {"token": draw(quantities(1, 5000, "us")), **draw(pick([{}, {"share": 0.5}, {"overlapped": False}]))}
    if sometimes(draw):
        serving["failures"] = {
            "mean_time": draw(quantities(1, 500, "s")),
            "repair": draw(quantities(0.1, 30, "s")),
            **draw(pick([{}, {"keeps_output": False}])),
        }
    if sometimes(draw):
        serving["autoscale"] = {
            "least": 1,
            "start": "1 s",
            "up": draw(pick([2, 8])),
            "down": 1,
            **draw(pick([{}, {"signal": "waiting"}, {"interval": "1 s"}])),
        }
    if sometimes(draw):
        serving["cache_tokens"] = draw(pick([512, 4096, 100_000]))
    if sometimes(draw):
        serving["prefill"] = {"strategy": draw(pick(["tp1", "tp2"])), "workers": draw(pick([1, 2]))}
    if sometimes(draw):
        serving["pools"] = {"big": {"strategy": draw(pick(["tp1", "tp2"])), "workers": 1}}
    if not serving:
        document["workload"].pop("serving")
    if sometimes(draw):
        asked = draw(asked_requests())
        asked["classes"] = [
            {"name": "a", "weight": 3, **draw(pick([{}, {"priority": 1}, {"prompt": 9}]))},
            {"name": "b", **draw(pick([{}, {"output": 7}, {"targets": {"ttft": "1 s"}}]))},
        ]
        document["requests"] = asked
    return document


@st.composite
def months(draw):
    """A run that fails, with checkpoints of all kinds, planned stops and spares."""
    document = draw(runs())
    run = document["run"]
    kind = draw(pick(["behind", "synchronous"]))
    checkpoint = {"kind": kind, "layout": draw(pick(["sharded", "consolidated"]))}
    checkpoint |= draw(pick([{"to": "neighbours"}, {"bandwidth": "2 GB/s"}, {"bandwidth": "2 GB/s", "storage_bandwidth": "10 GB/s"}, {}]))
    checkpoint |= draw(pick([{}, {"interval": "5 min"}, {"steps": 50}, {"interval": "auto"}]))
    run["checkpoint"] = checkpoint
    if sometimes(draw, 2):
        run["maintenance"] = {"every": draw(quantities(1, 60, "days")), "length": draw(quantities(0.1, 48, "hours"))}
    if sometimes(draw):
        run["failures"] = {"like": "llama3-h100", "own": {"rate": "0.2 1/year", "per": "node", "detection": "2 min"}}
    if sometimes(draw):
        run["restart"] = draw(pick([{"load": "3 min"}, {"warm_up": "90 s", "schedule": "10 s"}, {}]))
    return document


FURTHER = {"technology": technologies(), "tuned": tuned(), "job": jobs(), "fleet": fleets(), "months": months()}
