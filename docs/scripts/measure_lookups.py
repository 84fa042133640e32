"""Time embedding bags on this machine's CPU over reuse factors, table sizes, widths and pooling: the rows of `tests/data/embedding_bags.csv`.

Needs PyTorch and takes about twenty minutes on one core: ``python docs/scripts/measure_lookups.py FILE.csv``. Each row is the median CPU time
of the process over several batches, with caches emptied before each: the table of a recommendation model is touched once a step, and
everything else of the step passes through the caches between. Runs that were interrupted go on where they stopped.
"""

import csv
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

if "MALLOC_MMAP_THRESHOLD_" not in os.environ:  # freed memory stays with the process, so that no call pays for fresh pages
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(2**33), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
    os.execv(sys.executable, [sys.executable, *sys.argv])

import numpy as np
import torch
import yaml
from torch.nn.functional import embedding_bag as bag

import crossflow
from crossflow.program.embedding.generators import indices
from crossflow.program.embedding.reuse import BINS, index_factors, normalised

POINTS, REPEATS, SEED = 260, 9, 17
LARGEST = 768 * 2**20  # bytes of a table
EMPTYING = torch.zeros(2**27, dtype=torch.float32)  # 512 MiB, more than the last cache, that are written between two measurements
BINS_NAMES = tuple(f"reuse_{i}" for i in range(BINS))
COLUMNS = ("point", "reuse", "rows", "width", "samples", "pooling", "lookups", "distinct", "forward_s", "backward_s", *BINS_NAMES)


def shapes(rng):
    """Random points: reuse of a file of the data set, or of rows that are all hit about equally often; table sizes, widths, pooling."""
    known = yaml.safe_load((Path(crossflow.__file__).parent / "program" / "embedding" / "reuse.yaml").read_text())["datasets"]
    names = [name for name in known if name != "2022"]  # a mean of others
    for point in range(POINTS):
        name = names[rng.integers(len(names))] if rng.random() < 0.7 else f"even-{rng.integers(0, 8)}"
        factors = known[name]["factors"] if name in known else np.eye(BINS)[int(name[5:])]
        width = int(2 ** rng.integers(3, 9))
        pooling = int(np.round(2 ** rng.uniform(0, 7)))
        lookups = int(2 ** rng.uniform(14, 18.5))
        most = LARGEST // (4 * width)
        rows = int(2 ** rng.uniform(10, np.log2(most)))
        yield point, name, normalised(factors), rows, width, max(lookups // pooling, 1), pooling


def batch(factors, rows, lookups, rng):
    """Indices of a batch; a table that is too small for its reuse factors gets as many rows as they hit."""
    while True:
        try:
            return rows, indices(factors, lookups=lookups, rows=rows, rng=rng)
        except ValueError:
            rows *= 2


def timed(call, *given, **named):
    EMPTYING.add_(1.0)
    start = time.process_time()
    result = call(*given, **named)
    return time.process_time() - start, result


def measured(factors, rows, width, samples, pooling, rng):
    """One row of the table."""
    lookups = samples * pooling
    offsets = torch.arange(0, lookups, pooling)
    rows, _ = batch(factors, rows, lookups, rng)
    weight, gradient = torch.randn(rows, width, requires_grad=True), torch.randn(samples, width)
    forward, backward = [], []
    for i in range(REPEATS + 1):
        found = batch(factors, rows, lookups, rng)[1]
        index = torch.from_numpy(found)
        look, pooled = timed(bag, index, weight, offsets, mode="sum")
        back, _ = timed(torch.autograd.grad, pooled, weight, gradient)
        if i:  # the first warms up
            forward.append(look)
            backward.append(back)
    kept = dict(zip(BINS_NAMES, index_factors(found).round(5).tolist(), strict=True))
    return {
        "rows": rows,
        "width": width,
        "samples": samples,
        "pooling": pooling,
        "lookups": lookups,
        "distinct": len(np.unique(found)),
        "forward_s": f"{statistics.median(forward):.6g}",
        "backward_s": f"{statistics.median(backward):.6g}",
        **kept,
    }


def provenance():
    """What was measured where, in lines of a comment."""
    cpu = subprocess.run(["lscpu"], capture_output=True, text=True, check=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stdout
    told = [" ".join(line.split()) for line in cpu.splitlines() if line.startswith(("Model name", "L1d", "L2", "L3", "CPU(s)"))]
    return [
        "# Source: measured by docs/scripts/measure_lookups.py: torch.nn.functional.embedding_bag (sum, fp32) and its gradient,",
        f"# PyTorch {torch.__version__}, one thread, {platform.system()}; median CPU time of {REPEATS} batches, caches emptied before each. Seed {SEED}.",
        f"# {'; '.join(told)}; a virtual machine that others share.",
        "# reuse_i: share of the look-ups that go to rows which are hit (2^(i-1), 2^i] times in the batch (reuse_0: once).",
    ]


def main():
    target = Path(sys.argv[1])
    torch.set_num_threads(1)
    if not target.exists():
        target.write_text("\n".join([*provenance(), ",".join(COLUMNS)]) + "\n")
    done = {row["point"] for row in csv.DictReader(line for line in target.open() if not line.startswith("#"))}
    for point, name, *shape in shapes(np.random.default_rng(SEED)):
        if str(point) in done:
            continue
        row = measured(*shape, np.random.default_rng((SEED, point)))
        with target.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow({"point": point, "reuse": name, **row})
        if sys.stderr.isatty():
            print(f"\r{point + 1} of {POINTS}", end="", file=sys.stderr)


if __name__ == "__main__":
    main()
