"""Hypothesis strategies of files that crossflow should accept: scenarios of every kind, settings and points of them, studies.

What must agree (a plan with the devices, heads with degrees) is drawn together, so that most of what is drawn is accepted; the rest is
refused in a sentence and counted. Values of single fields, with what makes them matter, are those of `tests/test_switches.py`.
"""

import copy

from hypothesis import strategies as st
from test_switches import TABLE, changed

pick = st.sampled_from
DATASHEETS = (
    "dgx-h100",
    "dgx-a100",
    "dgx-b200",
    "gb200-nvl72",
    "h100-ib-cluster",
    "mi300x-node",
    "gaudi2-node",
    "tpu-v4-pod",
    "v100-ib-cluster",
    "dgx-1",
    "rtx-pro-6000-node",
    "aws-p4d",
    "zionex",
    "a10-node",
    "h20-cluster",
)
GENERATED = (
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
SWITCHED = {"intra": ("nvswitch", "nvl72", "pcie"), "inter": ("infiniband", "roce")}
KINDS = ("lstm", "gemm", "dlrm", "transformer", "service", "replay", "run")


@st.composite
def quantities(draw, low, high, unit):
    """Text of a quantity, even on a logarithmic scale, of three digits."""
    exponent = draw(st.floats(0.0, 1.0, allow_nan=False))
    return f"{low * (high / low) ** exponent:.3g} {unit}"


def sometimes(draw, chance=3):
    """One time in `chance`."""
    return draw(st.integers(1, chance)) == chance


def _put(document, path, value):
    """A value at a path of nested mappings, which are made."""
    *above, last = path.split(".")
    for key in above:
        document = document.setdefault(key, {})
    document[last] = value


def _operation(draw, system, generated):
    figures = {
        "price": quantities(0.1, 20, "USD/hour"),
        "host_power": quantities(10, 9000, "W"),
        "pue": st.floats(1.0, 2.0).map(lambda x: round(x, 3)),
        "carbon_intensity": quantities(1, 900, "g/kWh"),
        "device_power": quantities(50, 2000, "W"),
    }
    if generated:
        figures["lifetime"] = quantities(1, 10, "years")
    chosen = draw(st.lists(pick(sorted(figures)), unique=True, max_size=4))
    if chosen:
        system["operation"] = {name: draw(figures[name]) for name in chosen}


def _network(draw, system, nodes, *, generated):
    """Changes of the network between nodes and inside them; what a topology needs comes with it."""
    if sometimes(draw) and not generated:
        _put(system, "network.inter.bandwidth", draw(quantities(1, 400, "GB/s")))
    if sometimes(draw) and not generated:
        _put(system, "network.inter.latency", draw(quantities(0.1, 50, "us")))
    if sometimes(draw, 4) and not generated:
        _put(system, "network.intra.bandwidth", draw(quantities(5, 2000, "GB/s")))
    topology = draw(
        pick([None, None, "ring", "mesh2d", "torus2d", "torus3d", "switch", "crossbar", "fat-tree", "dragonfly", "fully-connected"])
    )
    if topology is not None:
        _put(system, "network.inter.topology", topology)
        _put(system, "network.inter.fabric", draw(pick(["infiniband", "roce", "ideal"])))
    if topology in ("fat-tree", "dragonfly"):
        _put(system, "network.inter.group", draw(pick([n for n in (1, 2, 4, 8) if n <= nodes])))
        if sometimes(draw, 2):
            _put(system, "network.inter.oversubscription", draw(pick([1, 2, 3.5])))
        if sometimes(draw, 2):
            jobs = [
                {
                    "devices": nodes * draw(pick([1, 8])),
                    "traffic": draw(pick(["ring", "all-to-all", "tree"])),
                    "duty": draw(pick([0.1, 0.5, 1.0])),
                }
            ]
            found = {"placement": draw(pick(["packed", "spread", "by-rail"])), "routing": draw(pick(["ecmp", "adaptive"])), "draws": 8}
            _put(system, "network.inter.congestion", {**found, **({"jobs": jobs} if sometimes(draw, 2) else {})})


@st.composite
def datasheet_systems(draw, *, nodes=(1, 2, 4)):
    """A shipped system of datasheet devices, with other nodes, network, host, power and price; and how many devices it has."""
    system = {"template": draw(pick(DATASHEETS)), "nodes": draw(pick(nodes))}
    each = {"gb200-nvl72": 72, "tpu-v4-pod": 4}.get(system["template"], 8)
    if system["template"] in ("zionex", "a10-node", "h20-cluster") or sometimes(draw, 2):
        each = draw(pick([1, 2, 4, 8]))
        system["devices_per_node"] = each
    if sometimes(draw, 2):
        _network(draw, system, system["nodes"], generated=False)
    _operation(draw, system, generated=False)
    if sometimes(draw, 4):
        _put(system, "execution.kernel_launch", draw(quantities(0.1, 50, "us")))
    if sometimes(draw, 4):
        system["host"] = {
            "capacity": draw(quantities(100, 4000, "GiB")),
            "bandwidth": draw(quantities(20, 900, "GB/s")),
            "utilisation": 0.5,
        }
    if sometimes(draw, 5):
        far = {"capacity": draw(quantities(100, 2000, "GB")), "bandwidth": draw(quantities(20, 900, "GB/s")), "energy": "8 pJ/bit"}
        system["second_memory"] = {**far, "way": draw(pick(["direct", "staged"]))}
    return system, system["nodes"] * each


@st.composite
def generated_systems(draw, *, nodes=(1, 2, 4, 16)):
    """A generated device with other technology, budgets, microarchitecture and network; and how many devices it has."""
    system = {"template": draw(pick(GENERATED)), "nodes": draw(pick(nodes)), "devices_per_node": draw(pick([1, 2, 4]))}
    if sometimes(draw, 2):
        _put(system, "technology.logic", draw(pick(["N12", "N7", "N5", "N3"])))
    if sometimes(draw, 2):
        _put(system, "technology.memory", draw(pick(["HBM2", "HBM2e", "HBM3", "HBM4"])))
    if sometimes(draw, 2):
        _put(system, "budgets.power", draw(quantities(100, 1500, "W")))
    if sometimes(draw, 3):
        _put(system, "budgets.chip_area", draw(quantities(200, 850, "mm2")))
    if sometimes(draw, 4):
        _put(system, "budgets.chiplets", draw(pick([1, 2, 4])))
    if sometimes(draw, 4):
        system["dataflow"] = draw(pick(["weight", "activation", "output", "best"]))
    if sometimes(draw, 4):
        system["shared_power"] = draw(st.booleans())
    if sometimes(draw, 5):
        system["harvest"] = draw(pick([0, 0.05, 0.2]))
    if sometimes(draw, 5):
        _put(system, "budgets.power_shares.compute", draw(pick([0.05, 0.1, "10 %"])))
    if sometimes(draw, 4):
        _network(draw, system, system["nodes"], generated=True)
    _operation(draw, system, generated=True)
    return system, system["nodes"] * system["devices_per_node"]


NARROW = ("dgx-1", "v100-ib-cluster", "v100")  # without bf16


def suited(document):
    """The document with a data type that its devices have, and software that does its task."""
    model = document["workload"]
    if document["system"]["template"] in NARROW and model["model"] not in ("lstm", "gemm", "dlrm"):
        model["dtype"] = "fp16"
    elif model.get("dtype") == "fp32" and document["system"]["template"] not in ("dgx-a100", "dgx-h100", "dgx-b200"):
        model.pop("dtype")
    if document["system"]["template"] in ("pathfinder", "v100") and document["system"].get("devices_per_node", 1) > 1:
        document["system"].setdefault("network", {})["intra"] = {"topology": "switch"}
    trains = model.get("task", "training") == "training"
    if (document.get("software") in SERVES) == trains:
        document.pop("software", None)
    return document


SERVES = ("vllm", "sglang", "tensorrt-llm-2024")


def systems(**limits):
    return st.one_of(datasheet_systems(**limits), generated_systems(**limits))


def _degrees(draw, devices, names):
    """Degrees whose product is the number of devices, each a divisor of what the others leave; the last takes the rest."""
    found, left = {}, devices
    for name in names[:-1]:
        found[name] = draw(pick([n for n in (1, 2, 4, 8, 3, 9) if left % n == 0]))
        left //= found[name]
    return {**found, names[-1]: left}


@st.composite
def transformers(draw):
    """A small transformer of own dimensions."""
    heads = draw(pick([8, 16, 32]))
    model = {
        "model": "transformer",
        "layers": draw(pick([2, 4, 8, 12])),
        "hidden": heads * draw(pick([32, 64, 128])),
        "heads": heads,
        "ffn": draw(pick([1024, 2048, 4096])),
        "vocabulary": draw(pick([32000, 50304])),
        "sequence": draw(pick([128, 512, 1024, 2048])),
        "global_batch": draw(pick([16, 64, 128, 256])),
    }
    if sometimes(draw):
        model["kv_heads"] = draw(pick([1, heads // 4, heads // 2, heads]))
    if sometimes(draw, 4):
        model["experts"] = {
            "count": draw(pick([8, 16])),
            "active": draw(pick([1, 2])),
            **draw(pick([{}, {"shared": 512}, {"ffn": 512}, {"skew": 0.8}])),
        }
    if sometimes(draw, 5):
        model["window"] = {"size": draw(pick([64, 256])), "pattern": draw(pick([["local"], ["local", "global"]]))}
    if sometimes(draw, 5):
        model |= draw(
            pick(
                [
                    {"norm": "layernorm", "biases": True},
                    {"gated": False},
                    {"tied_embeddings": True},
                    {"positions": "alibi"},
                    {"qk_norm": "shared"},
                ]
            )
        )
    if sometimes(draw, 6):
        model["latent"] = {"kv_rank": 128, "nope": 64, "rope": 32, "value": 64, **draw(pick([{}, {"query_rank": 256}]))}
        model.pop("kv_heads", None)
    if sometimes(draw, 6):
        model["dtype"] = draw(pick(["fp16", "fp32"]))
    return model


def _plan(draw, devices, model, *, training):
    plan = _degrees(draw, devices, ["tp", "pp", "dp"] if sometimes(draw, 2) else ["tp", "dp"])
    if "experts" in model and sometimes(draw, 2):
        plan["ep"] = draw(pick([n for n in (1, 2, 4, 8) if plan["dp"] % n == 0]))
    if not training:
        return plan
    if sometimes(draw, 2):
        plan["micro_batch"] = draw(pick([1, 2, 4]))
    if sometimes(draw, 2):
        plan["zero"] = draw(pick([0, 1, 2, 3] if plan.get("pp", 1) == 1 else [0, 1]))
    if sometimes(draw):
        plan["recompute"] = draw(pick(["none", "selective", "full"]))
    if plan.get("pp", 1) > 1 and sometimes(draw, 2):
        plan["schedule"] = draw(pick(["gpipe", "1f1b", "zb-h1"]))
    if plan.get("tp", 1) > 1 and sometimes(draw, 2):
        plan["sequence_parallel"] = True
    return plan


@st.composite
def transformer_scenarios(draw):
    system, devices = draw(systems())
    model = (
        draw(transformers())
        if sometimes(draw, 2)
        else {
            "model": draw(pick(["gpt2-345m", "llama2-7b", "mixtral-8x7b", "bert-large", "mamba2-2.7b", "mpt-1b"])),
            "global_batch": draw(pick([64, 128])),
        }
    )
    task = draw(pick(["training", "training", "forward", "prefill", "decode"]))
    if task != "training":
        model["task"] = task
    if task == "decode":
        model["output"] = draw(pick([1, 64, 128]))
    document = {"system": system, "workload": model, "strategy": _plan(draw, devices, model, training=task == "training")}
    if sometimes(draw):
        document["software"] = draw(pick(["megatron-core", "pytorch-fsdp", "nemo", "ideal", "vllm", "sglang", "tensorrt-llm-2024"]))
    return suited(document)


@st.composite
def services(draw):
    """A service in steady state."""
    system, devices = draw(systems(nodes=(1, 2)))
    model = draw(transformers()) if sometimes(draw, 2) else {"model": draw(pick(["llama2-7b", "mixtral-8x7b", "qwen3-8b"]))}
    model |= {
        "task": "serving",
        "prompt": draw(pick([16, 256, 1000])),
        "output": draw(pick([2, 32, 200])),
        "global_batch": draw(pick([16, 64, 128])),
    }
    serving = {}
    if sometimes(draw):
        serving["prefix_hits"] = draw(pick([0, 0.25, 0.9]))
    if sometimes(draw):
        serving["chunk"] = draw(pick([64, 512, 2048]))
    if sometimes(draw):
        serving["speculation"] = {"tokens": draw(pick([1, 3])), "acceptance": draw(pick([0.1, 0.7]))}
    if sometimes(draw, 4):
        serving["arrival_rate"] = draw(quantities(0.01, 5, "1/s"))
    if serving:
        model["serving"] = serving
    document = {"system": system, "workload": model, "strategy": _plan(draw, devices, model, training=False)}
    if sometimes(draw):
        document["software"] = draw(pick(SERVES))
    return suited(document)


LENGTHS = st.one_of(
    st.integers(1, 300),
    st.fixed_dictionaries({"law": st.just("uniform"), "low": st.integers(1, 50), "high": st.integers(50, 200)}),
    st.fixed_dictionaries({"law": st.just("lognormal"), "mean": st.integers(10, 90), "cv": st.floats(0.1, 2).map(lambda x: round(x, 2))}),
    st.fixed_dictionaries({"law": st.just("empirical"), "values": st.lists(st.integers(1, 99), min_size=1, max_size=4)}),
)


@st.composite
def asked_requests(draw):
    """Requests of a service, a few dozen."""
    rate = draw(quantities(0.2, 50, "1/s"))
    arrivals = draw(
        pick([{"law": "poisson"}, {"law": "deterministic"}, {"law": "gamma", "cv": 2}, {"law": "bursts", "on": "5 s", "off": "5 s"}])
    )
    found = {"count": draw(st.integers(1, 40)), "prompt": draw(LENGTHS), "output": draw(LENGTHS), "seed": draw(st.integers(0, 9))}
    way = draw(pick(["rate", "rate", "batch", "users", "sessions"]))
    if way == "batch":
        found["batch"] = found.pop("count")
    elif way == "users":
        found["users"] = {"number": draw(pick([1, 4])), "think": "2 s"}
    else:
        found["arrivals"] = {**arrivals, "rate": rate}
    if way == "sessions":
        found["sessions"] = {"turns": draw(pick([1, 3])), "think": "1 s"}
    if sometimes(draw):
        found["targets"] = {"ttft": draw(quantities(0.01, 5, "s")), "tpot": draw(quantities(1, 200, "ms"))}
    if sometimes(draw, 4):
        found["shared_prefix"] = {"tokens": draw(pick([16, 64]))}
    return found


@st.composite
def replays(draw):
    """A service with requests, which are replayed."""
    document = draw(services())
    document["strategy"]["dp"] *= document["strategy"].pop("pp", 1)
    for key in ("prompt", "output", "global_batch"):
        document["workload"].pop(key, None)
    document["workload"].setdefault("serving", {}).pop("arrival_rate", None)
    document["workload"]["serving"].pop("prefix_hits", None)
    if sometimes(draw):
        document["workload"]["serving"]["router"] = draw(pick(["round_robin", "least_loaded", "two_choices", "prefix", "length"]))
    if not document["workload"]["serving"]:
        document["workload"].pop("serving")
    return {**document, "requests": draw(asked_requests())}


@st.composite
def runs(draw):
    """A training run of months that fails."""
    document = draw(transformer_scenarios().filter(lambda d: d["workload"].get("task", "training") == "training"))
    run = {draw(pick(["tokens", "samples", "steps"])): draw(pick([1e4, 1e6, 1e9]))}
    causes = {
        "gpu": {
            "rate": draw(quantities(0.001, 9, "1/year")),
            "detection": draw(quantities(0.1, 60, "min")),
            **draw(pick([{"per": "device"}, {"per": "node"}, {"per": "job"}, {"per": "domain", "nodes": 3}])),
        }
    }
    if sometimes(draw, 2):
        causes["gpu"]["repair"] = draw(quantities(0.1, 48, "hours"))
    if sometimes(draw):
        causes["gpu"] |= {"low": "0.0001 1/year", "high": "20 1/year"}
    if sometimes(draw):
        causes["memory"] = {"rate": draw(quantities(0.001, 1, "1/year")), "per": "device", "detection": "1 hour", "silent": True}
    run["failures"] = draw(pick([causes, causes, "llama3-h100", "rsc-1-a100"]))
    if sometimes(draw, 2):
        run["checkpoint"] = {"bandwidth": draw(quantities(0.1, 50, "GB/s"))} | draw(pick([{}, {"interval": "20 min"}]))
    if sometimes(draw):
        run["spares"] = draw(pick([0, 1, 4, "auto"]))
    if sometimes(draw):
        run["elastic"] = draw(st.booleans())
    if sometimes(draw):
        run["restart"] = {"schedule": draw(quantities(0.1, 30, "min"))}
    if sometimes(draw):
        run["jitter"] = {"spread": draw(pick([0.01, 0.2])), "per": draw(pick(["device", "node"]))}
    return {**document, "run": run}


@st.composite
def graphs(draw):
    """An LSTM or a matrix product."""
    system, devices = draw(systems())
    if sometimes(draw, 2):
        model = {
            "model": "gemm",
            **{side: 2 ** draw(st.integers(6, 13)) + draw(pick([0, 0, 64])) for side in "mnk"},
            "task": draw(pick(["forward", "training"])),
        }
        names = ["kp1", "kp2", "dp"]
    else:
        model = {
            "model": "lstm",
            "hidden": draw(pick([256, 1024, 4096])),
            "vocabulary": draw(pick([1024, 65536])),
            "sequence": draw(pick([2, 9, 20])),
            "layers": draw(pick([2, 4])),
            "global_batch": draw(pick([128, 512])),
            "task": draw(pick(["forward", "training"])),
        }
        names = ["pp", "kp1", "kp2", "dp"]
    if sometimes(draw):
        model["dtype"] = draw(pick(["fp32", "fp16"]))
    degrees = _degrees(draw, devices, names)
    if sometimes(draw, 2):
        degrees = {"dp": devices}
    else:
        degrees["kernel"] = draw(pick(["RC", "CR"]))
        if degrees["kernel"] == "CR":
            degrees["kp1"] *= degrees.pop("kp2")
    document = {"system": system, "workload": model, "strategy": degrees}
    if sometimes(draw, 6):
        document["kernels_per_device"] = 2
    return document


@st.composite
def recommendations(draw):
    """A recommendation model."""
    system, _ = draw(systems())
    tables = [
        {
            "count": draw(pick([4, 16, 40])),
            "rows": draw(pick([1000, 100_000, 1_000_000])),
            "width": draw(pick([32, 64, 128])),
            "pooling": draw(pick([1, 10])),
        }
        for _ in range(draw(st.integers(1, 2)))
    ]
    model = {
        "model": "dlrm",
        "tables": tables,
        "bottom": {"widths": [256, tables[0]["width"]]},
        "top": {"widths": [512, 1]},
        "dense_features": 13,
        "interaction": draw(pick([{"kind": "concatenation"}, {"kind": "dot"}, {"kind": "cross", "layers": 2, "rank": 16}])),
        "global_batch": draw(pick([9216, 18432])),  # which racks of 72 divide too
        "task": draw(pick(["training", "forward"])),
    }
    if system["template"] not in ("dgx-a100", "dgx-h100", "zionex", "aws-p4d"):  # others lack tf32, its usual type
        model["dtype"] = "fp16"
    if model["interaction"]["kind"] == "dot":
        for table in tables:
            table["width"] = tables[0]["width"]
    if sometimes(draw):
        model["sharding"] = {"by": draw(pick(["naive", "size", "lookup", "size-lookup", "cost", "auto"]))}
    if tables[0]["rows"] == 1_000_000 and tables[0]["pooling"] == 1 and sometimes(draw, 2):
        tables[0]["reuse"] = {"like": "2021"}
    roles = {
        "dense": draw(pick(["ddp", "fsdp", "tp", ["tp", "ddp"]])),
        "embedding": "mp" if "sharding" in model else draw(pick(["mp", "mp-rows"])),
    }
    return {"system": system, "workload": model, "strategy": roles}


@st.composite
def switched(draw):
    """A base of `tests/test_switches.py` with several of its fields changed at once."""
    kind = draw(pick(["transformer", "transformer", "lstm", "gemm", "dlrm"]))
    from test_switches import BASES

    document = copy.deepcopy(BASES[kind])
    entries = TABLE[kind]
    for path in draw(st.lists(pick(sorted(entries)), min_size=1, max_size=3, unique=True)):
        for where, value in {**entries[path].context, path: entries[path].value}.items():
            try:
                document = changed(document, where, copy.deepcopy(value))
            except (KeyError, TypeError, IndexError, Exception):
                continue
    return document


SCENARIOS = {
    "transformer": transformer_scenarios(),
    "service": services(),
    "replay": replays(),
    "run": runs(),
    "graph": graphs(),
    "dlrm": recommendations(),
    "switched": switched(),
}


def scenarios(*kinds):
    """A scenario of one of the kinds, all where none is given."""
    return st.one_of(*(SCENARIOS[kind] for kind in kinds or SCENARIOS))
