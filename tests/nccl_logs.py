"""Logs of nccl-tests, written as its programs print them."""

import csv
from collections import defaultdict
from pathlib import Path

from crossflow.program.collectives import ring_volume

ROWS = Path(__file__).parent / "data" / "nccl_tests.csv"
NAMES = {"all_to_all": "alltoall"}


def measured():
    """Rows of the excerpt by system: of each collective, ranks and ranks of a node the sizes and times. [B], [us]"""
    found = defaultdict(lambda: defaultdict(list))
    with ROWS.open() as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            key = row["collective"], int(row["ranks"]), int(row["ranks_per_node"])
            found[row["system"]][key].append((float(row["size_bytes"]), float(row["time_us"])))
    return found


def log(collective, ranks, per_node, rows, *, version="2.13", wrong="0", device="NVIDIA A100-SXM4-80GB"):
    """The log of one test.

    Versions: 2.0 has neither groups nor roots, and a column `error`; 2.13 is the commonest; 2.17 names the test and its own version.
    """
    name, threads = NAMES.get(collective, collective), f"# nThread 1 nGpus {1 if ranks > per_node else ranks}"
    lines = []
    if version == "2.17":
        lines += ["# nccl-tests version 2.17.6 nccl-headers=22707 nccl-library=22707", f"# Collective test starting: {name}_perf"]
    lines += [f"{threads} minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0", "#"]
    lines.append("# Using devices")
    for rank in range(ranks):
        group = "" if version == "2.0" else " Group  0"
        host, place = f"node{rank // per_node:02d}", rank % per_node
        lines.append(f"#  Rank {rank:2d}{group} Pid {4000 + rank} on {host:>10s} device {place:2d} [0x{place:02x}] {device}")
    old = version == "2.0"
    lines += ["#", "#                                                       out-of-place                       in-place          "]
    columns = "size count type redop" + ("" if old else " root") + (" time algbw busbw " + ("error" if old else "#wrong")) * 2
    lines += ["#  " + "  ".join(f"{word:>10s}" for word in columns.split()), "#          (B)  (elements)     (us)  (GB/s)  (GB/s)"]
    reduces = "reduce" in collective
    for size, time in rows:
        cells = [f"{size:.0f}", f"{size / 4:.0f}", "float", *(["sum"] if reduces else [] if old else ["none"]), *([] if old else ["-1"])]
        for scale, checked in ((1.0, wrong), (1.01, "N/A")):
            rate = size / time / scale / 1e3
            cells += [f"{scale * time:.2f}", f"{rate:.2f}", f"{rate * ring_volume(collective, ranks):.2f}", "0e+00" if old else checked]
        lines.append("  " + "  ".join(f"{cell:>10s}" for cell in cells))
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 41.7 ", "#", ""])


def logs(folder, cases, **options):
    """Write a log for every case into a folder."""
    paths = []
    for (collective, ranks, per_node), rows in cases.items():
        paths.append(folder / f"{NAMES.get(collective, collective)}_perf_{ranks}x{per_node}.log")
        paths[-1].write_text(log(collective, ranks, per_node, rows, **options))
    return paths
