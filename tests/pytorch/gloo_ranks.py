"""Real ranks over gloo that run steps of models which divide themselves: what rank 0 sends, as torch's profiler sees it.

``python gloo_ranks.py RANKS NAME ...`` prints one line of JSON for each function of `divided` or of `divided_transformers`.
"""

import importlib
import json
import math
import os
import socket
import sys
import traceback
from collections import defaultdict

import divided
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

WIDTHS = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8}  # of what is sent, by its type. [B]
KINDS = {"all_reduce": "reduced", "all_gather": "gathered", "broadcast": "broadcast", "send": "sent", "recv": "received"}
SCATTERS = ("c10d::_reduce_scatter_base_", "_c10d_functional::reduce_scatter_tensor")  # which gloo runs as reductions


def seen(events):
    """Collectives and transfers by kind: how many, and the bytes that this rank puts in; of the reductions those that scatter."""
    found = defaultdict(lambda: [0, 0])
    for event in events:
        if event.name().startswith("gloo:") and (kind := KINDS.get(event.name()[5:])):
            found[kind][0] += 1
            found[kind][1] += sum(
                WIDTHS[one] * math.prod(shape) for one, shape in zip(event.dtypes(), event.shapes(), strict=True) if shape
            )
        elif event.name() in SCATTERS:
            found["scattered"][0] += 1
    return found


def step_of(given):
    """A step of what a function of `divided` returns."""
    if callable(given):
        return given
    model, inputs = (given["model"], given["inputs"]) if isinstance(given, dict) else given
    call = (lambda: model(**inputs).loss) if isinstance(inputs, dict) else lambda: model(inputs).sum()
    weights = [one for one in model.parameters() if one.requires_grad]
    kinds = [[one for one in weights if isinstance(one, DTensor) == divided] for divided in (False, True)]
    # Fused, it reads each gradient once, as the importer's own does; a group may not mix weights that are divided with others.
    own = given.get("optimizer") if isinstance(given, dict) else None
    optimizer = own or torch.optim.AdamW([{"params": kind} for kind in kinds if kind], fused=True)

    def step():
        call().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def made(name):
    """The function of a name; transformers is imported where it is needed."""
    own = getattr(divided, name, None)
    if own is not None:
        return own
    library = importlib.import_module("divided_transformers")
    return (library.MADE | library.WORDS)[name]


def rank(number, ranks, port, names):
    os.environ.update(RANK=str(number), WORLD_SIZE=str(ranks), MASTER_ADDR="localhost", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        torch.manual_seed(0)
        step = step_of(made(name)())
        for _ in range(2):  # after the first, buckets of gradients are made anew
            step()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
            step()
        if not number:
            sys.stdout.write(json.dumps([name, seen(found.profiler.kineto_results.events())]) + "\n")
            sys.stdout.flush()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def main(ranks, names):
    """Fork the ranks, and wait for them; the worst of their statuses."""
    port, children = free_port(), []
    for number in range(ranks):
        if not (child := os.fork()):
            status = 70
            try:
                rank(number, ranks, port, names)
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
