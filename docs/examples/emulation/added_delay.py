"""Iteration time against a delay that is added to every collective, data parallel and fully sharded, as in Fig. 4 of NeuronaBox.

Each point is an emulated run of `bert.py`; beside it what a replay of the first run says. Needs torch; a run takes a few seconds.

Liu et al., "Towards a Flexible and High-Fidelity Approach to Distributed DNN Training Emulation", APSys 2024.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--world-size", default="64")
parser.add_argument("--system", default="dgx-h100")
parser.add_argument("--delays", nargs="+", type=float, default=(0, 1, 2, 3, 4, 6, 8, 10), help="[ms]")
given = parser.parse_args()

SCRIPT = Path(__file__).with_name("bert.py")
COLLECTIVES = {"ddp": "all_reduce", "fsdp": "reduce_scatter"}


def step(folder, *words):
    """Median time of a step. [ms]"""
    target = folder / "summary.json"
    command = [sys.executable, "-m", "crossflow", "emulate", "--json", str(target), *words]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"})
    return json.loads(target.read_text(encoding="utf-8"))["ranks"][0]["step_time_s"] * 1e3


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    world = ("--world-size", given.world_size, "--system", given.system)
    print("mode   added delay   emulated   replayed from the first")
    for mode, op in COLLECTIVES.items():
        record = folder / f"{mode}.json.gz"
        for delay in given.delays:
            what_if = ("--what-if", f"{op}+{delay}ms")
            kept = ("--record", str(record)) if delay == given.delays[0] else ()
            emulated = step(folder, *world, *what_if, *kept, "--", str(SCRIPT), "--mode", mode)
            replayed = step(folder, "--replay", str(record), *what_if)
            print(f"{mode:<5} {delay:>8g} ms {emulated:>11.1f} ms {replayed:>11.1f} ms", flush=True)
