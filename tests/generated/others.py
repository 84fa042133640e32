"""Models and files that `inputs` and `further` leave out: programs, diffusion, encoders, released models, pools, own files of every kind.

A document may carry `files`, their contents by name, which are written before it is read; `{folder}` in its text is where they are.
"""

from pathlib import Path

from hypothesis import strategies as st

from crossflow.program.builder import ProgramBuilder
from crossflow.program.file import document_of
from crossflow.program.kernels import Pass, Product
from tests.generated.inputs import _degrees, datasheet_systems, generated_systems, pick, quantities, services, sometimes, suited, systems

CONFIGS = Path(__file__).resolve().parents[1] / "data" / "huggingface"
HERE = "{folder}"


@st.composite
def programs(draw):
    """A program that is written operation by operation, in its file: layers that repeat, messages, what devices hold."""
    system, devices = draw(systems(nodes=(1, 2)))
    axes = _degrees(draw, devices, ["tp", "dp"])
    made = ProgramBuilder(name="drawn", axes=axes, dtype=draw(pick(["fp16", "bf16"])) if system["template"] in BF16 else "fp16")
    rows, width = draw(pick([64, 1000, 4096])), draw(pick([256, 1024, 5000]))
    last, training = None, draw(st.booleans())

    def block(phase, last):
        for _ in range(draw(st.integers(1, 3))):
            kernels = [Product(m=rows, n=width, k=draw(pick([64, 512, 4096])))]
            if sometimes(draw, 2):
                kernels.append(Pass(moved=float(draw(pick([1e3, 1e6, 1e8]))), flops=1e6))
            last = made.compute("work", *kernels, after=[] if last is None else [last], phase=phase)
            if sometimes(draw, 2):
                collective = draw(pick(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]))
                last = made.send(collective, float(draw(pick([1e3, 1e6, 1e8]))), [draw(pick(sorted(axes)))], after=[last])
        return last

    with made.repeat(draw(pick([1, 2, 40]))):
        last = block("forward", last)
    if training:
        with made.repeat(draw(pick([1, 2, 40]))):
            last = block("backward", last)
    if sometimes(draw, 2):
        made.hold("weights", float(draw(pick([1e6, 1e9]))))
    built = made.build(samples=draw(pick([1, 16])), tokens=draw(pick([0, 4096])), parameters=float(draw(pick([0, 1e9]))))
    document = {"system": system, "workload": f"{HERE}/drawn.program.json", "files": {"drawn.program.json": document_of(built)}}
    if sometimes(draw, 4):
        document["software"] = draw(pick(["megatron-core", "ideal"]))
    return document


BF16 = ("dgx-h100", "dgx-a100", "dgx-b200", "gb200-nvl72", "h100-ib-cluster", "mi300x-node")
TEXTS = (
    {},
    {"text": "cross", "text_tokens": 77, "text_width": 768},
    {"text": "joined", "text_tokens": 226, "text_width": 4096},
    {"text": "streams", "text_tokens": 154, "text_width": 4096, "pooled": 768},
    {"text": "streams", "text_tokens": 256, "text_width": 2048, "single_layers": 2},
)


@st.composite
def pictures(draw):
    """A diffusion transformer, or a vision transformer."""
    system, devices = draw(systems(nodes=(1, 2)))
    heads = draw(pick([8, 16]))
    model = {
        "model": "transformer", "layers": draw(pick([4, 8])), "hidden": heads * 64, "heads": heads, "ffn": heads * 256, "gated": False,
        "biases": True, "norm": "layernorm", "positions": "none", "causal": False, "global_batch": draw(pick([16, 64, 144])),
    }  # fmt: skip
    image = {"size": draw(pick([256, 512])), "patch": 2, "compression": 8, "channels": draw(pick([4, 16])), "class_token": False}
    if sometimes(draw, 4):
        image = {"size": 224, "patch": draw(pick([14, 16])), "classes": 1000}
        model["head"] = "classifier"
    else:
        model |= {"norm_vectors": 0, "head": "latents", "diffusion": dict(draw(pick(TEXTS)))}
        if sometimes(draw):
            image |= {"height": 256, **draw(pick([{}, {"frames": 9, "frame_compression": 4}]))}
        if model["diffusion"].get("text") != "streams" and sometimes(draw):
            model["diffusion"]["modulation"] = "shared"
    if sometimes(draw, 2):
        model["task"] = "forward"
    plan = _degrees(draw, devices, ["tp", "dp"])
    if "task" not in model and sometimes(draw, 2):
        plan["zero"] = draw(pick([1, 2, 3]))
    return suited({"system": system, "workload": {**model, "image": image}, "strategy": plan})


@st.composite
def encoders(draw):
    """An encoder before a decoder, or a bidirectional encoder alone."""
    system, devices = draw(systems(nodes=(1, 2)))
    model = draw(pick([{"model": "t5-large"}, {"model": "bert-base"}, {"model": "vit-l"}]))
    model = {**model, "global_batch": draw(pick([64, 144]))}
    if sometimes(draw, 2):
        heads = draw(pick([8, 16]))
        model |= {
            "model": "transformer", "layers": draw(pick([2, 6])), "hidden": heads * 64, "heads": heads, "ffn": 2048, "vocabulary": 32000,
            "sequence": draw(pick([128, 512])), "encoder": {"layers": draw(pick([2, 6])), "sequence": draw(pick([100, 512]))},
        }  # fmt: skip
    tasks = ["training", "forward"] + (["prefill"] if model["model"] in ("t5-large", "transformer") else [])
    model["task"] = draw(pick(tasks))
    plan = _degrees(draw, devices, ["tp", "dp"])
    if model["task"] == "training":
        plan["zero"] = draw(pick([0, 1, 2, 3]))
    return suited({"system": system, "workload": model, "strategy": plan})


@st.composite
def released(draw):
    """A `config.json` as its makers publish it: all families, with towers beside the language model."""
    system, devices = draw(datasheet_systems(nodes=(2, 8)))
    system["template"] = draw(pick(["dgx-h100", "dgx-b200", "h100-ib-cluster"]))
    system.pop("devices_per_node", None)
    devices = 8 * system["nodes"]
    model = {"model": str(draw(pick(sorted(CONFIGS.glob("*.json"))))), "global_batch": draw(pick([16, 128]))}
    task = draw(pick(["training", "prefill", "decode", "serving"]))
    if task != "training":
        model |= {"task": task}
    if task in ("decode", "serving"):
        model |= {"prompt": draw(pick([100, 2000])), "output": 64}
    return {"system": system, "workload": model, "strategy": _degrees(draw, devices, ["tp", "dp"])}


@st.composite
def pools(draw):
    """A pipeline over devices of two kinds, or a mixture whose experts have devices of their own."""
    own, pool = ({"template": draw(pick(["dgx-h100", "dgx-a100", "dgx-b200"])), "nodes": 1} for _ in range(2))
    if sometimes(draw):
        own["operation"] = {"price": "2 USD/hour", "pue": 1.2}
        if sometimes(draw, 2):
            pool["operation"] = {"price": "1 USD/hour", "carbon_intensity": "300 g/kWh"}
    if sometimes(draw, 2):
        serving = {"experts": {"strategy": draw(pick(["dp8-ep8", "tp2-dp4-ep4", "tp8"])), "micro_batches": draw(pick([1, 2, 3]))}}
        model = {"model": draw(pick(["mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b"])), "task": draw(pick(["decode", "decode", "serving"]))}
        model |= {"prompt": draw(pick([100, 2000])), "output": draw(pick([2, 100])), "global_batch": draw(pick([64, 512]))}
        if model["task"] == "serving":
            serving["prefill"] = {"strategy": "dp8-ep8" if "a3b" in model["model"] else "tp8", "workers": 1}
        pool.pop("nodes")  # follow from the experts' strategy
        document = {"system": {**own, "pools": {"experts": pool}}, "workload": {**model, "serving": serving}}
        return {**document, "strategy": draw(pick(["dp8", "tp2-dp4"])), "software": draw(pick(["sglang", "vllm"]))}
    model = {"model": draw(pick(["gpt2-345m", "llama2-7b", "mixtral-8x7b"])), "global_batch": draw(pick([32, 64])), "sequence": 1024}
    plan = draw(pick([{"tp": 4, "dp": 2, "pp": 2}, {"tp": 2, "dp": 2, "pp": 4}, {"tp": 8, "pp": 2}, {"dp": 4, "pp": 4}]))
    more = draw(pick([{}, {"zero": 1}, {"micro_batch": 2}, {"recompute": "full"}, {"schedule": "gpipe"}, {"schedule": "zb-h1"}]))
    return {"system": {**own, "pools": {"other": pool}}, "workload": model, "strategy": {**plan, **more}}


RELIABILITY = {"name": "own", "kind": "reliability", "title": "drawn", "sources": {"ours": "drawn"}}
TECHLIB = {"name": "own-library", "extends": "deepflow-2024", "sources": {"ours": "drawn"}}


def _sourced(value):
    return {"value": value, "source": "ours"}


@st.composite
def own_files(draw):
    """A scenario whose parts are files of one's own: a device, a system, a library, a model, an order of passes, failures, event times."""
    files = {}
    heads = draw(pick([8, 16]))
    files["model.yaml"] = {
        "title": "drawn", "model": "transformer", "layers": 4, "hidden": heads * 128, "heads": heads,
        "ffn": heads * 256, "vocabulary": 32000, "sequence": 512, "global_batch": 64,
    }  # fmt: skip
    if sometimes(draw, 2):
        memory = draw(pick(["1 TB/s", "4.8 TB/s"]))
        files["chip.yaml"] = {
            "kind": "datasheet", "name": "own-chip", "title": "drawn", "family": draw(pick(["nvidia-hopper", "nvidia-ampere"])),
            "sources": {"ours": "drawn"}, "technology": {"logic": draw(pick(["N7", "N3"])), "memory": "HBM3", "link": "NVLink5"},
            "units": _sourced(draw(pick([80, 160]))), "clock": _sourced("2 GHz"),
            "throughput": dict.fromkeys(("fp16", "bf16"), _sourced(draw(quantities(100, 3000, "Tflop/s")))),
            "vector_throughput": {"fp32": _sourced(draw(quantities(10, 100, "Tflop/s")))},
            "levels": {"l2": {"scope": "device", "capacity": "64 MiB", "bandwidth": "10 TB/s"},
                       "memory": {"scope": "device", "capacity": "96 GiB", "bandwidth": memory}},
            "network": {"intra": {"bandwidth": "600 GB/s"}}, "power": {"tdp": "800 W", "idle": "80 W"},
        }  # fmt: skip
        files["cluster.yaml"] = {
            "kind": "system", "name": "own-cluster", "title": "drawn", "device": "chip.yaml", "devices_per_node": 8, "nodes": 2,
            "network": {"intra": {"fabric": "nvswitch", "bandwidth": draw(quantities(50, 900, "GB/s"))}, "host": {"bandwidth": "64 GB/s"},
                        "inter": {"fabric": draw(pick(["infiniband", "roce"])), "bandwidth": "50 GB/s"}},
        }  # fmt: skip
        system, devices = {"template": f"{HERE}/cluster.yaml"}, 16
    else:
        system, devices = draw(generated_systems(nodes=(1, 2)))
        system |= {"template": "pathfinder"}
        system.get("technology", {}).pop("memory", None)
        files["library.yaml"] = {
            **TECHLIB, "memory": {"Own": {
                "title": "drawn", "links_per_device": _sourced(draw(pick([1024, 4096]))), "links_per_mm": _sourced("338 1/mm"),
                "dynamic_energy_per_bit": _sourced(draw(quantities(1, 8, "pJ/bit"))), "static_power_per_bit": _sourced("0.6 pW/bit"),
                "device_capacity": _sourced("48 GiB"), "device_area": _sourced("130 mm2"), "controller_area": _sourced("9 mm2"),
                "nominal_voltage": _sourced("0.9 V"), "threshold_voltage": _sourced("0.3 V"), "minimum_voltage": _sourced("0.75 V"),
                "maximum_voltage": _sourced("0.9 V"), "nominal_frequency": _sourced(draw(quantities(1, 8, "GHz"))),
                "access_latency": _sourced("100 ns"),
            }},
        }  # fmt: skip
        system |= {"techlib": f"{HERE}/library.yaml"}
        system.setdefault("technology", {})["memory"] = "Own"
    document = {"system": system, "workload": {"model": f"{HERE}/model.yaml"}, "strategy": _degrees(draw, devices, ["tp", "dp"])}
    if devices % 2 == 0 and sometimes(draw, 2):
        schedule, many = draw(pick(["gpipe", "1f1b"])), 64 // max(devices // 2, 1)
        files["order.yaml"] = {"kind": "schedule", "name": "own-order", "order": _order(schedule, 2, many)}
        document["strategy"] = {"pp": 2, "dp": devices // 2, "schedule": f"{HERE}/order.yaml"}
    if sometimes(draw):
        rate = _sourced(draw(quantities(0.01, 5, "1/year")))
        cause = {"rate": rate["value"], "per": "device", "detection": "5 min", "repair": "2 hours", "source": "ours"}
        files["failures.yaml"] = {**RELIABILITY, "causes": {"gpu": cause}}
        document["run"] = {"steps": 1e5, "failures": f"{HERE}/failures.yaml"}
    if sometimes(draw):
        files["times.csv"] = "op,shape,dtype,ranks,scope,time\ngemm,512x1024x1024,fp16,,,20 us\nall_reduce,1000000,,2,intra,50 us\n"
        document["profile"] = f"{HERE}/times.csv"
    return suited({**document, "files": files})


def _order(name, stages, microbatches):
    """The lines of a file that writes an order of passes, one a stage: all forward passes first, or one backward pass after each."""
    lines = []
    for stage in range(stages):
        ahead = microbatches if name == "gpipe" else min(stages - stage - 1, microbatches)
        turns = [f"F{i}" for i in range(ahead)]
        for i in range(microbatches):
            turns += ([f"F{i + ahead}"] if i + ahead < microbatches else []) + [f"B{i}"]
        lines.append(" ".join(turns))
    return lines


@st.composite
def traced(draw):
    """A service whose requests are a file: a table as CSV or JSONL, as it is or played faster."""
    document = draw(services().filter(lambda one: one["strategy"].get("pp", 1) == 1))
    for key in ("prompt", "output", "global_batch"):
        document["workload"].pop(key, None)
    for key in ("arrival_rate", "prefix_hits"):
        document["workload"].get("serving", {}).pop(key, None)
    if not document["workload"].get("serving"):
        document["workload"].pop("serving", None)
    rows = draw(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 400), st.integers(1, 40)), min_size=1, max_size=12))
    lines = [f"{round(at, 3)},{prompt},{output}" for at, prompt, output in sorted(rows)]
    document["files"] = {"asked.csv": "\n".join(["arrival_s,prompt,output", *lines]) + "\n"}
    document["requests"] = {"trace": f"{HERE}/asked.csv", **draw(pick([{}, {"limit": 5}, {"targets": {"ttft": "1 s"}}]))}
    return document


OTHERS = {
    "program": programs(), "pictures": pictures(), "encoder": encoders(), "released": released(), "pools": pools(), "files": own_files(),
    "traced": traced(),
}  # fmt: skip
