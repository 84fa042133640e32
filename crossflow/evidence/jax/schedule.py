"""What compilers for GPUs and TPUs do to a text after it was partitioned: sums that are then divided, and the order of messages.

A compiled text has both behind it and is left as it is.

References
----------
.. [1] OpenXLA, `reduce_scatter_creator.cc`: an all-reduce of which each device reads its part alone is a reduce-scatter.
.. [2] OpenXLA, `latency_hiding_scheduler.cc`: collectives start as soon as they can, one at a time, and what waits for one runs after what
   does not.
"""

from __future__ import annotations

import heapq

from crossflow.evidence.jax.steps import HloLoop, HloStep, Items, TracedText, segments, steps_in

NEAR = 0.01  # share by which what is read of a sum may differ from a device's part


def divide_sums(text: TracedText) -> None:
    """Make an all-reduce of which each device reads no more than its part a reduce-scatter [1]_, in place."""
    most: dict[int, float] = {}
    for step in steps_in(text.items):
        for key, size in step.reads.items():
            most[key] = max(most.get(key, 0.0), size)
    for step in steps_in(text.items):
        if step.collective != "all_reduce" or not text.kept.isdisjoint(step.writes):
            continue
        parts = {key: size / len(step.ranks) for key, size in step.writes.items()}
        if all(abs(most.get(key, 0.0) - part) <= NEAR * part for key, part in parts.items()):
            step.collective, step.name, step.writes = "reduce_scatter", "reduce_scatter", parts
            for key, part in parts.items():
                text.sizes[key] = part


def reorder(text: TracedText) -> None:
    """Let what waits for a message run behind what does not [2]_, in place."""
    for items in segments(text.items):
        if any(isinstance(item, HloStep) and item.collective is not None for item in items):
            items[:] = _reordered(items)


def _reordered(items: Items) -> Items:
    """Items in an order that keeps what each waits for; one message at a time is under way, and none beside a loop."""
    before, after = _edges(items)
    left = [len(one) for one in before]
    messages, others, held, found = list[int](), list[int](), list[int](), Items()
    under_way = -1

    def ready(place: int) -> None:
        item = items[place]
        if isinstance(item, HloStep) and item.collective is not None:
            heapq.heappush(messages, place)
        elif under_way >= 0 and (isinstance(item, HloLoop) or under_way in before[place]):
            held.append(place)
        else:
            heapq.heappush(others, place)

    def run(place: int) -> None:
        found.append(items[place])
        for follower in after[place]:
            left[follower] -= 1
            if not left[follower]:
                ready(follower)

    for place, count in enumerate(left):
        if not count:
            ready(place)
    while messages or others or held:
        if under_way < 0 and messages:
            under_way = heapq.heappop(messages)
            loops = [place for place in others if isinstance(items[place], HloLoop)]
            others[:] = [place for place in others if place not in loops]
            heapq.heapify(others)
            held += loops
            run(under_way)
        elif others:
            run(heapq.heappop(others))
        else:  # nothing is left to run beside the message
            under_way, waiting = -1, held[:]
            held.clear()
            for place in waiting:
                heapq.heappush(others, place)
            if loops := [place for place in others if isinstance(items[place], HloLoop)]:
                others.remove(min(loops))
                heapq.heapify(others)
                run(min(loops))
    return found


def _edges(items: Items) -> tuple[list[set[int]], list[list[int]]]:
    """What each item waits for: what wrote what it reads, and what read or wrote what it writes; and who waits for it."""
    before, after = [set[int]() for _ in items], [list[int]() for _ in items]
    writer, readers = dict[int, int](), dict[int, list[int]]()
    for place, item in enumerate(items):
        steps = list(steps_in([item]))
        reads = {key for step in steps for key in step.reads}
        writes = {key for step in steps for key in (*step.writes, *step.carries.values())}
        mine = {writer[key] for key in reads | writes if key in writer} | {one for key in writes for one in readers.get(key, ())}
        before[place] = mine - {place}
        for one in before[place]:
            after[one].append(place)
        for key in reads:
            readers.setdefault(key, []).append(place)
        for key in writes:
            writer[key], readers[key] = place, []
    return before, after
