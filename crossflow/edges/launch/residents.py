"""What flags of vLLM and SGLang say of the adapters that an engine serves, and of the room and the fate of its cache.

References
----------
.. [1] vllm/config/lora.py and vllm/engine/arg_utils.py, vLLM 0.10: --max-loras adapters of --max-lora-rank are on the devices at once.
.. [2] vllm/config/cache.py and vllm/core/scheduler.py of vLLM before its V1 engine: --swap-space in GiB a device, --preemption-mode.
.. [3] sglang 0.5.23, sglang/srt/server_args.py: --max-loras-per-batch, --max-lora-rank, --lora-paths, --max-total-tokens.
.. [4] vLLM, docs/features/disagg_encoder: `ec_role` of --ec-transfer-config; SGLang, advanced_features/epd_disaggregation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crossflow.base.errors import Problem
from crossflow.edges.launch.meaning import MeantFields
from crossflow.edges.launch.settings import FlatSettings
from crossflow.edges.launch.table import Found, Remark

ADAPTERS, SERVING = "workload.serving.adapters", "workload.serving"
RANK = "workload.adapters.rank"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has kernels for [1]_
ALONE = "a server that only encodes images reads and writes no text, and towers are not predicted; leave this server out"
BESIDE = "predicted from the tokens of a prompt on: the time in which other servers encode its images, and send them, is not counted"
BLOCK = 16  # tokens of vLLM's blocks where no flag says
SWAP = 4.0  # GiB of the host a device where no flag says [2]_


@dataclass(frozen=True, kw_only=True)
class LoraFlags:
    """How an engine calls its flags of adapters: the largest rank, those on devices at once, the list of all; None for no default."""

    slots: str
    listed: str
    rank: int | None
    places: int


VLLM = LoraFlags(slots="max-loras", listed="lora-modules", rank=16, places=1)  # [1]_
SGLANG = LoraFlags(slots="max-loras-per-batch", listed="lora-paths", rank=None, places=8)  # [3]_


def meant_adapters(found: Found, named: LoraFlags, idle: list[Remark], missing: dict[str, str]) -> MeantFields:
    """Adapters that requests choose between; how many there are only the list of them says, and how they are used no flag."""
    every = [name for name in (named.slots, "max-lora-rank", named.listed) if name in found.values]
    if "enable-lora" not in found.values and not (named is SGLANG and named.listed in found.values):
        idle.extend(found.remark(name, "does nothing without --enable-lora") for name in every)
        return
    rank = found.values.get("max-lora-rank", named.rank)
    if rank is None:
        missing[RANK] = "flags do not say which rank adapters have (--max-lora-rank)"
    else:
        yield RANK, rank
    count, slots = len(found.values.get(named.listed, ())), found.values.get(named.slots, named.places)
    if count:
        yield f"{ADAPTERS}.count", count
    else:
        missing[f"{ADAPTERS}.count"] = f"flags do not say how many adapters there are (--{named.listed} lists them)"
    if not 0 < count <= slots:
        yield f"{ADAPTERS}.slots", slots


def meant_swap(found: Found, problems: list[Problem], idle: list[Remark]) -> MeantFields:
    """What becomes of requests that lose their room in vLLM's cache, and how much room there is, in blocks [2]_."""
    space = found.values.get("swap-space", SWAP)
    if found.values.get("preemption-mode") != "swap":
        if "swap-space" in found.values:
            idle.append(found.remark("swap-space", "does nothing without --preemption-mode swap"))
    elif space <= 0:
        problems.append(found.problem("swap-space", "--preemption-mode swap needs room on the host; give more than 0 GiB"))
    else:
        yield f"{SERVING}.preemption_mode", "swap"
        yield f"{SERVING}.swap_space", f"{space:.15g} GiB"
    blocks = found.values.get("num-gpu-blocks-override")
    if blocks is not None:
        yield f"{SERVING}.cache_tokens", blocks * found.values.get("block-size", BLOCK)
    elif "block-size" in found.values:
        idle.append(found.remark("block-size", "the size of blocks changes nothing where --num-gpu-blocks-override does not count them"))


def said_adapters(settings: FlatSettings, named: LoraFlags, said: set[str], unsaid: list[str]) -> dict[str, Any]:
    """Flags of the adapters of a service; none where they are merged into the weights, or there are none."""
    count, rank = settings.get(f"{ADAPTERS}.count"), settings.get(RANK)
    if count is None or rank is None:
        return {}
    said.add(RANK)
    if named is VLLM and rank not in RANKS:
        unsaid.append(f"workload.adapters.rank: {rank}: vLLM has kernels for ranks {', '.join(map(str, RANKS))}")
    slots = settings.get(f"{ADAPTERS}.slots")
    if slots is not None:
        said.add(f"{ADAPTERS}.slots")
    return {"enable-lora": True, named.slots: slots or count, "max-lora-rank": rank}


def said_swap(settings: FlatSettings, said: set[str], remarks: list[str], unsaid: list[str]) -> dict[str, Any]:
    """Flags of vLLM that say the room of its cache, and that it is copied to the host where it is short."""
    values: dict[str, Any] = {}
    tokens, space = settings.get(f"{SERVING}.cache_tokens"), settings.get(f"{SERVING}.swap_space")
    if tokens is not None and tokens % BLOCK:
        said.add(f"{SERVING}.cache_tokens")
        unsaid.append(f"workload.serving.cache_tokens: {tokens}: vLLM's cache has whole blocks of {BLOCK} tokens")
    elif tokens is not None:
        said.add(f"{SERVING}.cache_tokens")
        values["num-gpu-blocks-override"] = tokens // BLOCK
    if settings.get(f"{SERVING}.preemption_mode") == "swap" and space is not None:
        said |= {f"{SERVING}.preemption_mode", f"{SERVING}.swap_space"}
        values |= {"preemption-mode": "swap", "swap-space": float(space) / 2**30}
        remarks.append("only vLLM before its V1 engine copies caches to the host (--preemption-mode swap)")
    return values


def meant_encoders(found: Found, problems: list[Problem], remarks: list[Remark]) -> None:
    """Servers that only encode images are refused, and those that are sent what others encoded are told what is left out [4]_."""
    problems.extend(found.problem(flag, ALONE) for flag in ("mm-encoder-only", "encoder-only") if flag in found.values)
    sent = found.values.get("ec-transfer-config")
    if isinstance(sent, dict) and sent.get("ec_role") == "ec_producer":
        problems.append(found.problem("ec-transfer-config", ALONE))
    elif sent is not None:
        remarks.append(found.remark("ec-transfer-config", BESIDE))
