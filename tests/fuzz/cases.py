# ruff: noqa: E501  (tables of cases)
"""What is mutated, and the commands that read it."""

import gzip
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from crossflow.base import files
from tests.fuzz import mutations

ROOT = Path(__file__).parents[2]
EXAMPLES, DATA = ROOT / "docs" / "examples", ROOT / "tests" / "data"
GEMM = "{model: gemm, m: 256, n: 256, k: 256}"
MODEL = "{model: llama2-7b, global_batch: 8, dtype: fp16}"
STUDIES = (
    "name: s\nscenario: {system: h100-sxm, workload: {model: gemm, m: 4096, n: 4096, k: 4096}}\nsweep:\n  workload.m: [128, 256]\n"
    "  system.levels.memory.bandwidth: {from: 1 TB/s, to: 4 TB/s, count: 4, scale: log}\nplots:\n  - {kind: lines, name: a, x: workload.m, y: step_time_s}\n",
    "name: s\nscenario: {system: pathfinder, workload: {model: lstm, hidden: 512, vocabulary: 1000, sequence: 4, global_batch: 64}, strategy: d1}\n"
    "space:\n  system.budgets.power: {from: 200 W, to: 400 W}\nsearches:\n  r: {searcher: random, evaluations: 20, seed: 3}\n  g: {searcher: gradient, starts: 2, steps: 3}\n"
    "objectives: [step_time_s]\nconstraints: {energy_j: <= 900 J}\n",
    "name: s\nscenario: {system: pathfinder, workload: {model: gemm, m: 512, n: 512, k: 512}}\nsweep: {system.technology.memory: [HBM2, HBM3]}\n"
    "uncertainty: {samples: 8, seed: 1, interval: 0.8}\ncolumns: [step_time_s, energy_j]\nplots:\n  - {kind: intervals, name: i, x: system.technology.memory, y: step_time_s}\n",
    "name: s\nscenario: {system: {template: dgx-h100, nodes: 2}, workload: {model: llama2-7b, global_batch: 16}}\nspace: {strategy: legal}\n"
    "searches: {all: {searcher: exhaustive}}\nobjectives: [step_time_s]\n",
)  # fmt: skip
UNEVEN = "kind: uneven\nranks: {0: 0.8}\nstages: {1: 0.9}\njitter: 0.1\nseed: 3\n"
DELAYS = "kind: delays\ntables:\n  - {op: all_reduce, ranks: 2, points: [[1 KiB, 9 us, 5 us], [1 MiB, 90 us, 5 us]]}\n"
TABLE = "collective,ranks,ranks_per_node,size_bytes,time_us\n" + "".join(
    f"all_reduce,8,8,{2**i},{20 + 2**i / 4e5}\n" for i in range(10, 28)
)


PROFILE = "op,shape,dtype,device,ranks,scope,time,spread,count\ngemm,2048x12288x6144,bf16,dgx-h100,1,,0.0015,0,2\nall_gather,50331648 B,,dgx-h100,8,intra,0.00028,0,8\n"
RECORD = (
    '{"kind":"collectives","version":1,"world_size":8,"what_if":"","ranks":[{"rank":0,"groups":[{"name":"0","ranks":[0,1]}],"rows":['
    '{"act":"call","at":0.0,"op":"all_reduce","size":1000,"dtype":"float32","group":0,"link":"intra","time":0.004,"latency":0.001},'
    '{"act":"wait","at":0.02,"until":0.024,"of":[0]},{"act":"step","at":0.024,"of":"optimizer"},'
    '{"act":"call","at":0.03,"op":"all_reduce","size":1000,"dtype":"float32","group":0,"link":"intra","time":0.004,"latency":0.001},'
    '{"act":"wait","at":0.04,"until":0.044,"of":[1]},{"act":"step","at":0.05,"of":"optimizer"}]}]}'
)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of input: its seeds by name, and the command, which may write further files beside the mutated one."""

    seeds: Callable[[], list[tuple[str, bytes]]]
    command: Callable[[Path, random.Random], list[str]]


def _files(*patterns: str) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def _beside(text: str) -> Callable[[Path, random.Random], list[str]]:
    """A scenario beside the mutated file, whose name stands for FILE."""

    def command(path: Path, rng: random.Random) -> list[str]:
        beside = path.with_name("scenario.yaml")
        beside.write_text(text.replace("FILE", path.name))
        return ["predict", beside.name, "--json"]

    return command


def _written(path: Path, text: str) -> str:
    """The name of a further file beside the mutated one."""
    path.with_name("record.json").write_text(text)
    return "record.json"


def _texts(name: str, *texts: str) -> Callable[[], list[tuple[str, bytes]]]:
    return lambda: [(name, text.encode()) for text in texts]


def _traces() -> list[tuple[str, bytes]]:
    return [
        (path.name.removesuffix(".gz"), gzip.decompress(path.read_bytes())) for path in sorted((DATA / "traces").glob("*kineto.json.gz"))
    ]


def _predict(path: Path, rng: random.Random) -> list[str]:
    return [rng.choice(("predict", "predict", "predict", "explain", "timeline", "events")), path.name, "--json"]


def _shares(path: Path, rng: random.Random) -> list[str]:
    template = (ROOT / "templates/generated/reference-training.yaml").read_text()
    path.with_name("own.yaml").write_text(template.replace("reference-training.csv", path.name))
    path.with_name("scenario.yaml").write_text(f"system: {{template: own.yaml, devices: 1}}\nworkload: {GEMM}\n")
    return ["predict", "scenario.yaml", "--json"]


def _settings(path: Path, rng: random.Random) -> list[str]:
    data = files.read_yaml(path).data
    known = [".".join(map(str, place)) for place, _ in files.walk(data) if place]
    return ["predict", path.name, "--json", "--set", *(mutations.words(rng.choice(known), rng) for _ in range(rng.choice((1, 1, 2))))]


def _strategies(path: Path, rng: random.Random) -> list[str]:
    texts = (
        "tp8-pp8-dp12-z1-full",
        "RC-4-2-d8-p2",
        "CR-8-d64",
        "tp2-dp4",
        "{tp: 8, pp: 8, dp: 2, zero: 1}",
        "tp8-pp4-v2-m2-1f1b",
        "{dense: [tp, ddp], embedding: [mp]}",
        "ep8-tp2-cp2",
        "d512",
    )
    return ["predict", path.name, "--json", "--set", f"strategy={mutations.strategy(rng.choice(texts), rng)}"]


SCENARIOS = tuple(f"docs/examples/{name}.yaml" for name in ("case-study", "gpt3", "serving", "sharded", "pipeline", "lstm-on-h100", "gemm-h100", "zero-bubble", "too-large"))  # fmt: skip
KINDS = {
    "scenario": Kind(seeds=lambda: _files(*SCENARIOS), command=_predict),
    "study": Kind(seeds=_texts("study.yaml", *STUDIES), command=lambda path, rng: ["study", path.name, "--out", "out", "--json"]),
    "device": Kind(seeds=lambda: _files("templates/devices/*.yaml"), command=_beside(f"system: {{template: FILE}}\nworkload: {GEMM}\n")),
    "system": Kind(seeds=lambda: _files("templates/systems/*.yaml"), command=_beside(f"system: {{template: FILE, devices: 16}}\nworkload: {MODEL}\nstrategy: tp2-dp8\n")),
    "generated": Kind(seeds=lambda: _files("templates/generated/[!r]*.yaml", "templates/generated/reference.yaml"), command=_beside(f"system: {{template: FILE, devices: 1}}\nworkload: {GEMM}\n")),
    "techlib": Kind(seeds=lambda: _files("techlibs/*.yaml"), command=_beside(f"system: {{template: pathfinder, techlib: FILE, devices: 1}}\nworkload: {GEMM}\n")),
    "software": Kind(seeds=lambda: _files("templates/software/*.yaml"), command=_beside(f"system: {{template: dgx-h100, devices: 8}}\nworkload: {MODEL}\nsoftware: FILE\nstrategy: tp2-dp4\n")),
    "model": Kind(seeds=lambda: _files("templates/models/*.yaml"), command=_beside("system: {template: dgx-h100, devices: 8}\nworkload: {model: FILE, global_batch: 64}\nstrategy: dp8\n")),
    "huggingface": Kind(seeds=lambda: _files("tests/data/huggingface/*.json"), command=_beside("system: {template: dgx-h100, devices: 8}\nworkload: {model: FILE, global_batch: 8}\nstrategy: dp8\n")),
    "program": Kind(seeds=lambda: _files("docs/examples/*.program.json"), command=_beside("system: {template: dgx-h100, devices: 8}\nworkload: FILE\n")),
    "set": Kind(seeds=lambda: _files(*SCENARIOS), command=_settings),
    "strategy": Kind(seeds=lambda: _files(*SCENARIOS[:6]), command=_strategies),
    "xla": Kind(seeds=lambda: _files("tests/data/jax/*.hlo", "tests/data/jax/*.mlir"), command=lambda path, rng: ["import", path.name, "-o", "out.program.json", "--json"]),
    "uneven": Kind(seeds=_texts("uneven.yaml", UNEVEN), command=lambda path, rng: ["timeline", str(EXAMPLES / "pipeline.yaml"), "--uneven", path.name, "--text"]),
    "log": Kind(seeds=lambda: _files("docs/examples/*.log"), command=lambda path, rng: ["calibrate", path.name, "--system", "dgx-a100", "--json"]),
    "table": Kind(seeds=_texts("collectives.csv", TABLE), command=lambda path, rng: ["calibrate", path.name, "--system", "dgx-h100", "--json"]),
    "requests": Kind(seeds=lambda: _files("docs/examples/conversation.yaml"), command=lambda path, rng: ["requests", path.name, "--json"]),
    "asked": Kind(seeds=lambda: _files("tests/data/requests/*"), command=lambda path, rng: ["requests", path.name, "--json"]),
    "trace": Kind(seeds=_traces, command=lambda path, rng: ["trace", path.name, "--json"]),
}  # fmt: skip
for _kind, _seeds, _command in (
    ("profile", _texts("profile.csv", PROFILE), _beside("system: {template: dgx-h100, devices: 8}\nworkload: {model: llama2-7b, global_batch: 8}\nstrategy: tp2-dp4\nprofile: FILE\n")),
    ("schedule", lambda: _files("docs/examples/own-order.yaml"), _beside("system: {template: dgx-a100, devices: 8, nodes: null}\nworkload: {model: gpt2-345m, global_batch: 16}\nstrategy: {pp: 2, dp: 4, schedule: FILE}\n")),
    ("shares", lambda: [("shares.csv", (ROOT / "templates/generated/reference-training.csv").read_bytes())], _shares),
    ("record", _texts("record.json", RECORD), lambda path, rng: ["emulate", "--replay", path.name, "--what-if", rng.choice(("", "all_reduce+2ms", "bandwidth*0.5", "rank[1]*1.5"))]),
    ("delays", _texts("delays.yaml", DELAYS), lambda path, rng: ["emulate", "--replay", _written(path, RECORD), "--delays", path.name]),
    ("execution", lambda: [("et.json", gzip.decompress((DATA / "traces/dlrm_rank0_et.json.gz").read_bytes()))], lambda path, rng: ["trace", str(DATA / "traces/dlrm_rank0_kineto.json.gz"), "--execution", path.name, "--json"]),
    ("what-if", _traces, lambda path, rng: ["trace", path.name, "--json", "--what-if", mutations.strategy(rng.choice(("compute*0.5,all_reduce+2ms", "kernel[*gemm*]*0.8", "op[aten::gelu]*0,rank[3]+1ms,batch*2")), rng)]),
):  # fmt: skip
    KINDS[_kind] = Kind(seeds=_seeds, command=_command)
UNCHANGED = ("what-if", "set", "strategy")  # kinds whose file stays as it is: the words are mutated
JSON = ("huggingface", "program", "trace", "record", "execution")


def cases(kinds: list[str], seed: int, folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Without end: kind, name of the mutated file, which lies in the folder, and the command."""
    rng = random.Random(seed)
    seeds = {kind: KINDS[kind].seeds() for kind in kinds}
    others = [content for kind in kinds for _, content in seeds[kind] if len(content) < 100_000]
    while True:
        kind = rng.choice(kinds)
        name, content = rng.choice(seeds[kind])
        if kind not in UNCHANGED:
            content = mutations.mutate(content, rng, others, is_json=kind in JSON)
        (folder / name).write_bytes(content)
        yield kind, name, KINDS[kind].command(folder / name, rng)
