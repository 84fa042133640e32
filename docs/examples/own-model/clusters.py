"""One model on three clusters, and the best way to divide it: `python clusters.py`. Needs torch, but no GPU."""

import tempfile
from pathlib import Path

import crossflow
from crossflow.evidence.torch import record
from crossflow.program import write_program

MODEL = str(Path(__file__).with_name("model.py")) + ":build"
NODES = 8


def recorded(parallel, batch):
    """A step of 64 GPUs with `batch` samples of each replica."""
    return record(MODEL, world_size=8 * NODES, parallel=parallel, batch=batch, sequence=2048, dtype="bf16")


def predicted(program, system, folder):
    """The step on a cluster."""
    file = write_program(program, Path(folder) / "model.program.json.gz")
    scenario = {"system": {"template": system, "nodes": NODES}, "workload": str(file), "software": "pytorch"}
    return crossflow.predict(crossflow.from_dict(scenario))


with tempfile.TemporaryDirectory() as folder:
    # 256 samples a step, whatever divides the model.
    batches = {"fsdp": 4, "ddp": 4, "hsdp=8": 4, "tp=2,fsdp": 8, "pp=4,ddp": 16}
    programs = {parallel: recorded(parallel, batch) for parallel, batch in batches.items()}
    for system in ("dgx-a100", "dgx-h100", "dgx-b200"):
        print(f"{system:<10} fsdp      {predicted(programs['fsdp'], system, folder).step_time * 1e3:8.1f} ms")

    found = {parallel: predicted(program, "dgx-h100", folder) for parallel, program in programs.items()}
    for parallel, one in found.items():
        print(f"dgx-h100   {parallel:<9} {one.step_time * 1e3:8.1f} ms{'' if one.feasible else ', and does not fit'}")
    print("best:", min((one.step_time, parallel) for parallel, one in found.items() if one.feasible)[1])
