"""The study of Table IV of Lin et al. [1]_: which sharder is fastest, predicted and in a simulation with noise; writes docs/sharding.md.

    python docs/scripts/sharding_study.py [--seed N]

Twenty tasks, ten of each year of the data set, half of them of heavy tables alone, on four GPUs of each of two kinds. The predicted
step on all ranks chooses among the sharders. The simulation runs each of them thirty times with noise that the choice has not seen: a
factor for every kernel and message that stays (the model's error), and one that is drawn in every run.

What the data set does not publish as text is drawn: average pooling L with the shares of Fig. 3 that the text states and the data set's
mean, rows of a table, widths of rows.

References
----------
.. [1] Lin et al., "Towards Universal Performance Modeling for ML Training on Multi-GPU Platforms", TPDS 2024, Sec. III-D, V-A, Table IV.
"""

from __future__ import annotations

import argparse
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from make_docs import DOCS, FIGURES, markdown

from crossflow import from_dict
from crossflow.answers.steps import own_batch
from crossflow.answers.steps.recommendation import RecommendationStep
from crossflow.cost.price import Prices
from crossflow.engine.runs.dlrm_sharded import ShardedSteps, candidates, step_time
from crossflow.engine.runs.programs import launches, table
from crossflow.engine.schedule import schedule
from crossflow.program.embedding.datasets import datasets
from crossflow.program.program import Program

GPUS, RUNS, CLOSE = 4, 30, 0.10  # CLOSE: a choice is a success within so much of the fastest
LASTING, PASSING = 0.10, 0.05  # standard deviation of the logarithm of both kinds of noise
SYSTEMS = {"4 x V100": "dgx-1", "4 x A100": "gcp-a2-highgpu-8g"}
HEAVY = {"2021": 103 / 856, "2022": 166 / 788}  # share of tables with L of 20 or more: Sec. III-A
MEAN = {"2021": 887_017_990 / (856 * 65536), "2022": 1_405_446_070 / (788 * 131072)}  # L of a table in the mean: the data set
LIGHT = ((0.05, 1.0, 0.5), (1.0, 20.0, 0.5))  # L of other tables, evenly in the logarithm, and our reading of the figure's shares
BATCH, SAMPLES = 4096, {"2021": 65536, "2022": 131072}


def heaviest(year: str) -> float:
    """Largest L, so that heavy tables, evenly in the logarithm from 20 on, give all tables the data set's mean."""
    light = sum(share * (high - low) / np.log(high / low) for low, high, share in LIGHT)
    wanted = (MEAN[year] - (1.0 - HEAVY[year]) * light) / HEAVY[year]
    tops = np.geomspace(21.0, 5000.0, 2000)
    return float(tops[np.abs((tops - 20.0) / np.log(tops / 20.0) - wanted).argmin()])


def tables(year: str, *, heavy: bool, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Tables of a task: (0.7 to 1.3) x 4 x 13 of them."""
    files = [name for name in datasets() if name.startswith(f"{year}-")]
    found = []
    for _ in range(round(rng.uniform(0.7, 1.3) * GPUS * 13)):
        low, high = (20.0, heaviest(year)) if heavy or rng.random() < HEAVY[year] else LIGHT[int(rng.random() < LIGHT[1][2])][:2]
        pooling, reuse = float(np.exp(rng.uniform(np.log(low), np.log(high)))), files[rng.integers(len(files))]
        different = float(datasets()[reuse].distinct(float(SAMPLES[year]))[0]) * SAMPLES[year] * pooling
        rows = int(max(different, 100.0) * 10.0 ** rng.uniform(0.02, 0.5))
        found.append({"count": 1, "rows": rows, "width": int(rng.choice([32, 64, 128])), "pooling": pooling, "reuse": reuse})
    return found


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a task finds on one kind of GPU: seconds by sharder."""

    system: str
    number: int
    kind: str
    tables: int
    predicted: dict[str, float]
    simulated: dict[str, float]

    @property
    def chosen(self) -> str:
        """The sharder with the shortest predicted step."""
        return min(self.predicted, key=self.predicted.__getitem__)

    @property
    def fastest(self) -> str:
        """The one with the shortest simulated step."""
        return min(self.simulated, key=self.simulated.__getitem__)

    @property
    def behind(self) -> float:
        """How much longer the chosen one takes than the fastest."""
        return self.simulated[self.chosen] / self.simulated[self.fastest] - 1.0


def noise(of: object, seed: int) -> float:
    """The lasting factor of a kernel or message, the same under every sharder."""
    return float(np.exp(np.random.default_rng([zlib.crc32(repr(of).encode()), seed]).normal(0.0, LASTING)))


def simulated(program: Program, prices: Prices, seed: int) -> float:
    """Mean time of the step over all runs. [s]"""
    rng, lasting = np.random.default_rng(seed), [noise(one, seed) for one in (*program.kernels, *program.messages)]
    factor = np.array(lasting)[:, None] * np.exp(rng.normal(0.0, PASSING, (len(lasting), RUNS)))
    own = len(program.kernels)
    noisy = replace(
        prices, kernels=replace(prices.kernels, time=prices.kernels.time * factor[:own]),
        messages=replace(prices.messages, time=prices.messages.time * factor[own:]),
    )  # fmt: skip
    launched = launches(prices)
    return float(schedule(program, launched=launched).makespan(table(noisy, noisy.times, launched=launched)).mean())


def run(system: str, number: int, seed: int) -> tuple[Task, float]:
    """One task on one kind of GPU, and the time that the choice took. [s]"""
    year, heavy = ("2021", "2022")[number // 10], number % 10 < 5
    mine = tables(year, heavy=heavy, rng=np.random.default_rng([seed, number]))
    workload = {
        "model": "dlrm", "tables": mine, "dense_features": 13, "bottom": [512, 256, 64], "top": [1024, 1024, 512, 1],
        "interaction": "concatenation", "global_batch": BATCH, "dtype": "fp32", "table_dtype": "fp32", "optimizer": "sgd",
        "table_optimizer": "sgd", "sharding": {"by": "auto", "split": "none"},
    }  # fmt: skip
    scenario = from_dict({"system": {"template": SYSTEMS[system], "devices": GPUS}, "workload": workload, "strategy": {"dense": ["ddp"]}})
    start = time.process_time()
    step = RecommendationStep(batch=own_batch(scenario))
    inputs = step.job, step.plans, step.machine
    offered = [one for one in candidates(*inputs)[0] if not one.problem]
    programs = {one.name: ShardedSteps.of(*inputs, one, np.array([0])).at(0) for one in offered}
    predicted = {name: step_time(*found).item() for name, found in programs.items()}
    took = time.process_time() - start
    kind = f"{year}, {'heavy' if heavy else 'any'}"
    times = {name: simulated(*found, seed=1000 * seed + number) for name, found in programs.items()}
    return Task(system=system, number=number, kind=kind, tables=len(mine), predicted=predicted, simulated=times), took


def picture(found: list[Task], path: Path) -> None:
    """Simulated times of all sharders, the chosen one marked."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(SYSTEMS), 1, figsize=(10, 6), sharex=True)
    for axis, system in zip(axes, SYSTEMS, strict=True):
        for task in (one for one in found if one.system == system):
            times = np.array(list(task.simulated.values())) * 1e3
            axis.scatter([task.number] * len(times), times, s=14, color="0.6", label="other sharders" if task.number == 0 else None)
            axis.scatter(task.number, task.simulated[task.chosen] * 1e3, s=42, color="C0", label="chosen" if task.number == 0 else None)
            fastest = task.simulated[task.fastest] * 1e3
            axis.scatter(task.number, fastest, s=90, facecolors="none", edgecolors="C3", label="fastest" if task.number == 0 else None)
        axis.set(title=f"{system}, batch {BATCH:,}", ylabel="step, simulated [ms]", ylim=(0, None), xticks=range(20))
        axis.legend(loc="upper right", ncols=3, frameon=False)
    axes[-1].set_xlabel("task")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _close(task: Task, sharder: str) -> bool:
    """Whether a sharder, always taken, would have been a success."""
    return task.simulated.get(sharder, np.inf) <= (1.0 + CLOSE) * task.simulated[task.fastest]


def page(found: list[Task], took: float, seed: int) -> str:
    """The page: what was asked, the table, how often the choice was right."""
    rows = [
        [
            one.system, str(one.number), one.kind, str(one.tables), one.chosen, f"{one.predicted[one.chosen] * 1e3:.2f}",
            f"{one.simulated[one.chosen] * 1e3:.2f}", one.fastest, f"{one.simulated[one.fastest] * 1e3:.2f}", f"{one.behind:.1%}",
            f"{max(one.simulated.values()) * 1e3:.2f}",
        ]
        for one in found
    ]  # fmt: skip
    headers = [
        "GPUs",
        "task",
        "tables of",
        "tables",
        "chosen",
        "predicted [ms]",
        "simulated [ms]",
        "fastest",
        "its time [ms]",
        "behind",
        "slowest [ms]",
    ]
    told = "; ".join(
        f"{system}: {sum(one.behind <= CLOSE for one in mine)} of {len(mine)} ({sum(one.chosen == one.fastest for one in mine)} the fastest itself, "
        f"at most {max(one.behind for one in mine):.1%} behind)"
        for system in SYSTEMS if (mine := [one for one in found if one.system == system])
    )  # fmt: skip
    text = (Path(__file__).parent / "sharding.md").read_text(encoding="utf-8")
    alone = [
        f"{name} {'/'.join(str(sum(_close(one, name) for one in found if one.system == system)) for system in SYSTEMS)}"
        for name in found[0].predicted
    ]
    words = {
        "alone": ", ".join(alone),
        "told": told,
        "took": f"{took / len(SYSTEMS):.1f}",
        "lasting": f"{LASTING:.0%}",
        "passing": f"{PASSING:.0%}",
        "seed": str(seed),
    }
    for name, value in words.items():
        text = text.replace("{" + name + "}", value)
    return f"<!-- Written by docs/scripts/sharding_study.py; change the script or sharding.md beside it, not this file. -->\n\n{text}\n{markdown(headers, rows, right=[1, 3, 5, 6, 8, 9, 10])}"


def main() -> None:
    """Run all tasks and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=4, metavar="N", help="of tables and noise")
    seed = parser.parse_args().seed
    results = [run(system, number, seed) for system in SYSTEMS for number in range(20)]
    found, took = [task for task, _ in results], sum(time for _, time in results)
    text = page(found, took, seed)
    (DOCS / "sharding.md").write_text(text, encoding="utf-8")
    picture(found, FIGURES / "sharding.png")
    print(text)


if __name__ == "__main__":
    main()
