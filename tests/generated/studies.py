"""Small studies of every kind that crossflow should accept: sweeps, searches by every searcher, draws, members, and every plot."""

import json
import shutil

import numpy as np
from hypothesis import strategies as st

import crossflow
from tests.generated.inputs import pick, sometimes

GENERATED = {"template": "reference-training", "devices": 8}
SCENARIOS = {
    "generated": {"system": GENERATED, "workload": {"model": "gpt2-345m", "global_batch": 16}, "strategy": "tp2-dp4"},
    "chip": {"system": {"template": "pathfinder", "devices": 1}, "workload": {"model": "gemm", "m": 512, "n": 512, "k": 4096}},
    "datasheet": {
        "system": {"template": "dgx-h100", "nodes": 1}, "workload": {"model": "gpt2-345m", "global_batch": 16}, "strategy": "dp8",
    },
    "service": {
        "system": {"template": "dgx-a100", "nodes": 1}, "strategy": "tp1-dp8",
        "workload": {"model": "mpt-1b", "task": "serving", "prompt": 128, "output": 16, "global_batch": 16},
    },
}  # fmt: skip
POWER, LOGIC, MEMORY, AREA = "system.budgets.power", "system.technology.logic", "system.technology.memory", "system.budgets.chip_area"
BATCH, PLAN, WIRE = "workload.global_batch", "strategy", "system.network.inter.bandwidth"
CHOICES = {  # values of paths that are swept or searched, as lists
    "generated": {
        LOGIC: ["N7", "N3"], MEMORY: ["HBM2e", "HBM3"],  # each pair divides its chip anew, which takes seconds
        POWER: ["300 W", "700 W"], BATCH: [16, 32], PLAN: ["tp2-dp4", "dp8", "tp4-pp2"],
    },
    "chip": {LOGIC: ["N12", "N7"], MEMORY: ["HBM2", "HBM3"], "workload.k": [64, 1024], "system.dataflow": ["best", "weight"]},
    "datasheet": {
        BATCH: [8, 16, 64], PLAN: ["dp8", "tp2-dp4", "tp8"], "system.template": ["dgx-h100", "dgx-a100"],
        "software": ["megatron-core", "nemo"],
    },
    "service": {
        "workload.output": [4, 16], BATCH: [8, 32], PLAN: ["tp1-dp8", "tp2-dp4"],
        "system.levels.memory.bandwidth": ["1 TB/s", "2 TB/s"],
    },
}  # fmt: skip
RANGES = {  # of what searches may change as numbers
    "generated": {POWER: {"from": "200 W", "to": "900 W"}, "system.budgets.power_shares": "shares", "system.budgets.area": "shares"},
    "chip": {POWER: {"from": "100 W", "to": "400 W", "scale": "log"}, "system.budgets.area": "shares"},
    "datasheet": {"system.levels.memory.bandwidth": {"from": "1 TB/s", "to": "4 TB/s"}},
    "service": {"system.levels.memory.bandwidth": {"from": "1 TB/s", "to": "4 TB/s"}},
}
OBJECTIVES = {
    "generated": ["step_time_s", "cost_usd", "energy_j"],
    "chip": ["step_time_s", "energy_j"],
    "datasheet": ["step_time_s", "energy_j"],
    "service": ["e2el_s", "ttft_s"],
}
SEARCHERS = ("exhaustive", "random", "evolution", "gradient", "slsqp", "trust-constr", "tpe", "cma-es", "nsga2", "given")


def _search(draw, searcher):
    found = {"searcher": searcher}
    if searcher in ("random", "evolution", "tpe", "cma-es", "nsga2"):
        found["evaluations"] = draw(pick([1, 5, 12]))
    if searcher in ("gradient", "slsqp", "trust-constr"):
        found |= {"starts": draw(pick([1, 2])), "steps": draw(pick([1, 3])), "evaluations": 200}
    if searcher in ("cma-es", "nsga2", "evolution") and sometimes(draw, 2):
        found["population"] = 4
    if sometimes(draw):
        found["seed"] = draw(st.integers(0, 3))
    return found


def _plots(draw, kind, sweep, space, objectives):
    """Plots that suit what varies."""
    made, varied = [], [*sweep, *space]
    y = objectives[0]
    if sweep:
        lines = dict(zip(("x", "series", "panels"), sweep, strict=False))
        made += [
            {
                "kind": "lines",
                "y": y,
                **lines,
                **draw(pick([{}, {"scale": "log"}, {"speedup": "line"}, {"speedup": "first"}, {"speedup": "series"}])),
            }
        ]
        made += [{"kind": "breakdown", "x": next(iter(sweep)), **draw(pick([{}, {"group": "bound_share"}]))}]
    options = [path for path in varied if not isinstance({**sweep, **space}[path], str | dict)]
    if options:
        made += [{"kind": "boxes", "x": options[0], "y": y}]
    if len(options) > 1:
        made += [{"kind": "heatmap", "x": options[0], "y": options[1], "value": y}]
    made += [{"kind": "pareto", "x": y, "y": objectives[-1], **draw(pick([{}, {"colour": varied[0]} if varied else {}]))}]
    if space:
        made += [{"kind": "convergence", **draw(pick([{}, {"over": "seconds"}, {"scale": "linear"}]))}, {"kind": "parallel", "best": 5}]
    chosen = draw(st.lists(pick(range(len(made))), max_size=2, unique=True))
    return [{"name": f"p{i}", **made[i]} for i in chosen]


@st.composite
def studies(draw):
    """A study of a scenario."""
    kind = draw(pick(sorted(SCENARIOS)))
    paths = draw(st.lists(pick(sorted(CHOICES[kind])), min_size=1, max_size=3, unique=True))
    objectives = draw(st.lists(pick(OBJECTIVES[kind]), min_size=1, max_size=2, unique=True))
    study = {"name": "s", "scenario": SCENARIOS[kind]}
    sweep, space = {}, {}
    if sometimes(draw, 2):
        cut = draw(st.integers(0, len(paths) - 1))
        sweep, space = {path: CHOICES[kind][path] for path in paths[:cut]}, {path: CHOICES[kind][path] for path in paths[cut:]}
        if sometimes(draw, 2):
            path = draw(pick(sorted(RANGES[kind])))
            space.pop(path, None)
            sweep.pop(path, None)
            space[path] = RANGES[kind][path]
        searchers = draw(st.lists(pick(SEARCHERS), min_size=1, max_size=2, unique=True))
        study |= {"space": space, "objectives": objectives, "searches": {f"r{i}": _search(draw, one) for i, one in enumerate(searchers)}}
        if sometimes(draw):
            study["constraints"] = {draw(pick(OBJECTIVES[kind])): draw(pick(["<= 1", ">= 0", "<= 1e-9"]))}
        if sometimes(draw, 4) and kind in ("generated", "datasheet"):
            study["portfolio"] = {
                "members": {"a": {}, "b": {"workload.global_batch": 64, "weight": 2}},
                "mean": draw(pick(["geometric", "arithmetic", "worst"])),
                "member_evaluations": 10,
            }
    else:
        sweep = {path: CHOICES[kind][path] for path in paths}
        if kind == "generated" and sometimes(draw, 4):
            study["redivide"] = {"evaluations": 20, **draw(pick([{}, {"shares": ["power"]}]))}
    if kind in ("generated", "chip") and sometimes(draw, 3):
        study["uncertainty"] = {"samples": draw(pick([2, 5])), **draw(pick([{}, {"numbers": "independent"}, {"distribution": "uniform"}]))}
        if space:
            study["uncertainty"] |= {"measure": draw(pick(["mean", "quantile", "worst", "regret"])), "draw_evaluations": 10}
    if sweep:
        study["sweep"] = sweep
    if sometimes(draw, 2):
        study["columns"] = draw(
            st.lists(pick(["step_time_s", "energy_j", "mfu", "feasible", "bound_by", "devices"]), unique=True, max_size=3)
        )
    if sometimes(draw, 4):
        study["record"] = "all"
    if sometimes(draw, 2):
        study["plots"] = _plots(draw, kind, sweep, space, objectives)
    return study


def resumed_alike(study, folder):
    """Half of its rows lost, a study ends with the bytes of a whole one; its points are predictions."""
    path = folder / "s.json"
    path.write_text(json.dumps(study))
    made = crossflow.run_study(path, out=folder / "whole")
    json.loads("".join(made.to_json()))
    points = "points.jsonl", "points.csv"
    whole = [(made.out / name).read_bytes() for name in points]
    shutil.copytree(made.out, folder / "cut")
    lines = whole[0].splitlines(keepends=True)
    (folder / "cut" / points[0]).write_bytes(b"".join(lines[: len(lines) // 2]))
    again = crossflow.run_study(path, out=folder / "cut", resume=True)
    assert [(again.out / name).read_bytes() for name in points] == whole
    if not {"searches", "uncertainty", "redivide"} & set(study):
        for row in made.rows[:: max(len(made) // 2, 1)]:
            found = crossflow.predict(study["scenario"], {name: row[name] for name in study["sweep"]})
            assert found.feasible == row["feasible"]
            assert np.isclose(found.step_time, row["step_time_s"], rtol=1e-9), (found.step_time, row["step_time_s"])
