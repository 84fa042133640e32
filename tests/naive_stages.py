"""A naive simulator of an engine with pipeline stages, batch by batch and stage by stage. For tests of `engine.service`.

As vLLM V1 does (vllm/v1/engine/core.py, `step_with_batch_queue`): as many batches are in flight as stages. A batch has all requests that
are in no other one, and of prompts as many tokens as its budget has room for. Each stage takes batches in order, one at a time.
"""

import numpy as np


class Asked:
    def __init__(self, arrival, prompt, output):
        self.arrival, self.prompt, self.output = arrival, prompt, output
        self.read = self.wrote = 0
        self.first = self.last = None


def run(trace, table, *, stages, chunk):
    """Times to the first token, and times per token after it, of all requests."""
    items = [Asked(*each) for each in zip(trace.arrival, trace.prompt, trace.output, strict=True)]
    heirs = {id(items[other]): items[i] for i, other in enumerate(trace.follows) if other >= 0}  # come when another ends
    free, batches, now = [], [], 0.0
    waiting = [item for item, other in zip(items, trace.follows, strict=True) if other < 0]
    reading, ready = [], np.zeros(stages)  # prompts that were begun and are in no batch; when each stage is free
    while waiting or free or reading or batches:
        if len(batches) == stages or not (free or reading or (waiting and waiting[0].arrival <= now)):
            ends = batches[0][0] if batches else np.inf
            if len(batches) < stages and waiting and waiting[0].arrival < ends:
                now = max(now, waiting[0].arrival)
                continue
            end, written, pieces = batches.pop(0)
            now = max(now, end)
            for item in written:
                item.wrote += 1
            for item, piece in pieces:
                item.read += piece
                item.wrote += item.read >= item.prompt
                if item.wrote:
                    item.first = end
            for item in [*written, *(item for item, _ in pieces)]:
                if item.wrote >= item.output:
                    item.last = end
                    if id(item) in heirs:
                        heirs[id(item)].arrival = end
                        waiting.append(heirs[id(item)])
                else:
                    (free if item.wrote else reading).append(item)
            continue
        written, free, pieces, left = free, [], [], chunk
        left -= len(written)
        while left > 0 and (reading or (waiting and waiting[0].arrival <= now)):
            item = reading.pop(0) if reading else waiting.pop(0)
            pieces.append((item, min(item.prompt - item.read, left)))
            left -= pieces[-1][1]
        n, tokens = len(written) * stages, sum(piece for _, piece in pieces)
        time = table.line(n, np.mean([item.prompt + item.wrote for item in written]) if written else 0.0, alone=not pieces)[0]
        if pieces:
            keys = sum(piece * (item.read + piece / 2) for item, piece in pieces) / tokens
            time += table.more(n, tokens * stages, keys)
        for i in range(stages):  # each takes its share of the step
            now_there = max(ready[i], ready[i - 1] if i else now)
            ready[i] = now_there + time / stages
        batches.append((ready[-1], written, pieces))
        now = max(now, ready[0])  # the next one can begin
    first = np.array([item.first - item.arrival for item in items])
    each = np.array([(item.last - item.first) / (item.output - 1) for item in items])
    return first, each
