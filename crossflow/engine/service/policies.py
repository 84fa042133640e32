"""What the schedulers of serving engines do differently, as data.

References
----------
.. [1] vLLM, docs/usage/v1_guide and vllm/v1/core/sched/scheduler.py: requests that run come first, then those that wait, all within one
   budget of tokens (`max_num_batched_tokens`); a prompt is read in pieces, and begun where all of it has room
   (`scheduler_reserve_full_isl`, on by default in 0.19); a request for which no block is left preempts the one that was admitted last,
   which is computed anew from the head of the queue. With priorities (`--scheduling-policy priority`) that is the request of the lowest
   one, of equal ones the one that came last. Full blocks of what is written have hashes as those of prompts do, and stay until their
   room is wanted (docs/design/prefix_caching). Of a connector that loads keys asynchronously, as from the host, a request waits aside
   with its pages until they have come (`WAITING_FOR_REMOTE_KVS`), and others go on.
   CUDA graphs are captured for 1, 2 and 4 requests, multiples of 8 up to 256 and of
   16 up to 512 (`cudagraph_capture_sizes`); fewer requests are padded to the next of them.
.. [2] SGLang, python/sglang/srt/managers/scheduler.py and schedule_policy.py: a batch of prompts goes before writing, and is a step of its
   own (`enable_mixed_chunk` is off); a request is admitted where there is room for its prompt and a share of what all will write, which
   falls with every step (`schedule_conservativeness`); one that was refused is asked again when the batch has become smaller. Of those
   that write, the one with the fewest tokens written and then the longest prompt is retracted, to the end of the queue, whatever its
   priority (`enable_priority_scheduling` sorts the queue). What is written enters the radix tree when a request ends
   (`cache_finished_req`); of one that is retracted only the prompt stays. HiCache loads blocks from the host while the layers before
   theirs compute (docs/advanced_features/hicache_design), so that a step takes the longer of both.
.. [3] TensorRT-LLM, docs/source/features/paged-attention-ifb-scheduler: requests that write come first, then whole prompts that fit in the
   rest of `max_num_tokens`; GUARANTEED_NO_EVICT admits a request where there is room for all that will be written, MAX_UTILIZATION where
   there is room now, and pauses the one that was admitted last. Active requests are kept in order of their priorities, so that with
   these it is one of the lowest. Blocks of a second tier are copied back before the step that reads on
   (docs/source/features/kvcache, "offloading").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from crossflow.hardware.architecture.software import QueueOrder


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Order of work of an engine."""

    mixed: bool  # whether a step that reads prompts also writes
    chunked: bool  # whether a prompt is read in pieces
    # For what a request must find room: its next piece, its prompt, that and a share of what all will write, all that it will ever take.
    room: Literal["now", "prompt", "share", "whole"]
    leaves: Literal["newest", "shortest"]  # which request gives up its room where it is short
    returns: Literal["head", "tail"]  # of the queue
    # Blocks that come back from further tiers: their requests wait aside until these have come; they come along with the step that reads
    # on, layer by layer; that step waits for them before it begins.
    loads: Literal["aside", "along", "before"] = "aside"
    # Whether full blocks of what was written stay with the cache when a request is evicted, as they do when it ends.
    remembers: bool = False
    order: QueueOrder = "arrival"  # of those that wait
    graphs: tuple[int, ...] = ()  # requests for which steps that only write are captured, where kernels are launched by graphs


POLICIES: Mapping[str, Policy] = {
    "vllm": Policy(
        mixed=True, chunked=True, room="prompt", leaves="newest", returns="head", remembers=True,
        graphs=(1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)),
    ),  # [1]
    "sglang": Policy(mixed=False, chunked=True, room="share", leaves="shortest", returns="tail", loads="along"),  # [2]
    "tensorrt-llm": Policy(mixed=True, chunked=False, room="now", leaves="newest", returns="head", loads="before"),  # [3]
}  # fmt: skip

# Share of what all will still write for which SGLang keeps room: at first, at least, how much less with a step, and the most that it
# counts of one request; after a retraction so many steps must have room [2].
SHARE, LEAST_SHARE, FALLS, CLIP, AFTER = 0.7, 0.098, (0.7 - 0.098) / 600.0, 4096, 20


def policy_of(scheduler: str, admits: str, queue: QueueOrder = "arrival", chunked: bool | None = None) -> Policy:
    """Order of work of an engine, which may keep room for the whole of each request, have priorities, and read prompts whole or in pieces.

    >>> policy_of("tensorrt-llm", "whole").room, policy_of("vllm", "written").room
    ('whole', 'prompt')
    """
    known = replace(POLICIES[scheduler], order=queue)
    policy = known if chunked is None else replace(known, chunked=chunked)
    return replace(policy, room="whole") if admits == "whole" else policy
