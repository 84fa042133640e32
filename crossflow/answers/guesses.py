"""What a path of a scenario may be meant by one that no scenario has, such as ``system.memory.bandwidth``."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from crossflow.base.errors import SYNONYMS, folded

# What people write before the last part of a path, for the section or the part that it stands in.
SECTIONS: Mapping[str, str] = {
    **dict.fromkeys(("device", "gpu", "gpus", "cluster", "hardware", "hw", "chip", "node", "accelerator", "machine"), "system"),
    **dict.fromkeys(("model", "arch", "config", "training", "train", "data", "inference", "llm", "transformer"), "workload"),
    **dict.fromkeys(("parallel", "parallelism", "mesh", "plan", "distributed"), "strategy"),
    **dict.fromkeys(("nvlink", "nvswitch", "xgmi", "scale-up", "scaleup"), "intra"),
    **dict.fromkeys(("infiniband", "ib", "nic", "ethernet", "roce", "scale-out", "scaleout"), "inter"),
    **dict.fromkeys(("interconnect", "fabric", "link", "links"), "network"),
    **dict.fromkeys(("hbm", "dram", "vram", "mem"), "memory"),
}  # fmt: skip
# Sections meant by those who name them alone, and figures that say nothing without theirs.
ASIDE = (
    "energy", "perimeter", "power_shares", "sharding", "speculation", "checkpoint", "second_memory", "components", "encoder", "per_layer",
)  # fmt: skip
OF_A_PART = ("capacity", "bandwidth", "latency", "frequency")
ROOMS = ("system", "workload", "strategy")
CLOSE = 0.85  # likeness of a word and of one that it was meant to be
DEGREES = ("tp", "pp", "dp", "cp", "ep")


@dataclass(frozen=True, kw_only=True)
class Described:
    """What a scenario describes, as far as it says: the kinds of its system and its workload, and whether a planner finds its strategy."""

    system: str | None = None  # "generated" or "datasheet"; None where it is not known
    workload: str | None = None  # a key of `MODELS`; None where it is not known
    automatic: bool = False


def guessed(path: str, known: Sequence[str], unknown: str = "", *, slips: bool = True) -> list[str]:
    """Paths among those known that a path may stand for, the likeliest first.

    unknown : the begin of it that nobody knows.
    slips : whether its last part may be one with a letter or two that differ.

    >>> guessed("device.hbm.bandwidth", ["system.levels.memory.bandwidth", "system.host.bandwidth"])
    ['system.levels.memory.bandwidth']
    """
    parts = path.split(".")
    if found := _ending(parts, known, slips):
        return found
    part = unknown != path and len(parts) > 1 and section(parts[-2]) not in ROOMS  # a figure that the part has not: the part itself
    return (_ending(parts[:-1], known, slips) if part else []) or _beside(parts, known)


def _beside(parts: Sequence[str], known: Sequence[str]) -> list[str]:
    """Paths beside the section that was named, whose last part is meant.

    >>> _beside(["workload", "serving", "prompt"], ["workload.prompt", "workload.serving.chunk"])
    ['workload.prompt']
    """
    here = ".".join(parts[:-2])
    near = {path.rpartition(".")[2]: path for path in known if here and path.rpartition(".")[0] == here}
    return [near[name] for name in sorted(_wanted(parts[-1], near, False))]


def _ending(parts: Sequence[str], known: Sequence[str], slips: bool) -> list[str]:
    """Paths that end as the last part says, of these the ones that share most of the others with it."""
    *above, last = parts
    sections = {path.rpartition(".")[0] for path in known}
    wanted = _wanted(last, {part for path in known for part in path.split(".")[1:]}, slips)
    found = [path for path in known if path.rpartition(".")[2].lower() in wanted and path not in sections]
    found += [path for path in known if path.count(".") > 1 and path.split(".")[-2].lower() in wanted and path not in found]
    named = {section(part) for part in above} - set(ROOMS)
    told = named & {part for one in sections for part in one.split(".")}  # others say nothing of the place
    shared = {path: len(told & set(path.split("."))) for path in found}
    if (told and not any(shared.values())) or (named and not told and wanted & set(OF_A_PART)):
        return []
    found = [path for path in found if shared[path] == max(shared.values()) and not set(ASIDE) & (set(path.split(".")) - told - wanted)]
    found = _of_section({section(part) for part in above}, found)
    found = [path for path in found if not path.startswith("job.")] or found  # which repeats keys of others, and few scenarios have
    return [path for path in found if path.count(".") <= min(one.count(".") for one in found) + 1]


def _of_section(told: Collection[str], found: list[str]) -> list[str]:
    """Those in the section that was named, where any is and none elsewhere stands two parts higher.

    >>> _of_section({"workload"}, ["strategy.tp", "workload.serving.images.tp"])
    ['strategy.tp', 'workload.serving.images.tp']
    """
    here = [path for path in found if path.partition(".")[0] in told]
    near = min((path.count(".") for path in here), default=0) <= min((path.count(".") for path in found), default=0) + 1
    return here if here and near else found


def section(word: str) -> str:
    """The section, or the part of one, that a word before the last part of a path stands for."""
    return SECTIONS.get(folded(word), word.lower().replace("-", "_"))


def _wanted(word: str, known: Collection[str], slips: bool) -> set[str]:
    """Last parts that a word may stand for: itself, else what the field means by it, else one that differs in a letter."""
    asked = word.lower().replace("-", "_")
    if asked in known:
        return {asked}
    called = {*SYNONYMS.get(folded(word), ()), SECTIONS.get(folded(word), "")} & set(known)
    return called if called or not slips else set(difflib.get_close_matches(asked, known, n=1, cutoff=CLOSE))
