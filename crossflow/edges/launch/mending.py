"""What to change in the launch file of a run so that its step is mended, as the advice on its trace says.

Only flags whose value does not depend on the run are here: switches, and words of which one is right. All others (microbatches, sizes of
captured graphs, backends) stay with the advice in words.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.edges.launch.difference import FlagChange, edited
from crossflow.edges.launch.sources import Source, taken_apart
from crossflow.edges.launch.table import GivenFlag, same
from crossflow.evidence.replay.report import TraceReport

OFF = ("false", "False", "0")  # values of a switch that is not set


@dataclass(frozen=True, kw_only=True)
class MendingFlag:
    """A flag that mends an ill.

    Attributes
    ----------
    flag : its name in the framework's table.
    value : what it is to be, "" for a switch; None where it has to go.
    needs : flags without which the framework refuses it, or it does nothing: by name, as NAME=PATTERN or as NAME>NUMBER.
    without : flags beside which the framework refuses it, likewise.
    """

    flag: str
    value: str | None = ""
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


_GRADIENTS = MendingFlag(flag="overlap-grad-reduce")
_TENSOR = MendingFlag(flag="tp-comm-overlap", needs=("tensor-model-parallel-size>1", "sequence-parallel"))
_GATHERS = MendingFlag(flag="overlap-param-gather", needs=("overlap-grad-reduce", "use-distributed-optimizer"))
_EAGER, _OWN_SUM = MendingFlag(flag="enforce-eager", value=None), MendingFlag(flag="disable-custom-all-reduce", value=None)
_AHEAD, _OVERLAPPED = MendingFlag(flag="async-scheduling"), MendingFlag(flag="disable-overlap-schedule", value=None)
_COMPILED = MendingFlag(flag="compile.enable", value="true")
_ASYNC_TENSOR = MendingFlag(
    flag="parallelism.enable_async_tensor_parallel", value="true", needs=("parallelism.tensor_parallel_degree>1", "compile.enable=true"),
)  # fmt: skip
_ZERO = MendingFlag(flag="zero_optimization.overlap_comm", value="true", needs=("zero_optimization.stage=[12]",))  # of stage 3 it is on
# By framework and kind of ill. Megatron-LM's arguments.py says what its flags need; of vLLM "Engine Arguments" (docs.vllm.ai), of SGLang
# "Server Arguments" (docs.sglang.io), of torchtitan config/job_config.py, of DeepSpeed "DeepSpeed Configuration JSON" (deepspeed.ai).
MENDS: Mapping[str, Mapping[str, tuple[MendingFlag, ...]]] = {
    "megatron": {
        "exposed_all_reduce": (_GRADIENTS, _TENSOR),
        "exposed_reduce_scatter": (_GRADIENTS, _TENSOR),
        "exposed_all_gather": (_GATHERS, _TENSOR),
        "exposed_all_to_all": (
            MendingFlag(
                flag="overlap-moe-expert-parallel-comm",
                needs=("num-experts>1", "expert-model-parallel-size>1"),
                without=("recompute-granularity=full",),
            ),
        ),
    },
    "torchtitan": {
        "unfused_passes": (_COMPILED,),
        "exposed_all_reduce": (_ASYNC_TENSOR,),
        "exposed_reduce_scatter": (_ASYNC_TENSOR,),
        "exposed_all_gather": (_ASYNC_TENSOR, MendingFlag(flag="parallelism.fsdp_reshard_after_forward", value="never")),
    },
    "deepspeed": dict.fromkeys(("exposed_all_reduce", "exposed_reduce_scatter", "exposed_all_gather"), (_ZERO,)),
    "vllm": {
        "unfused_passes": (_EAGER,),
        "launches": (_EAGER,),
        "exposed_all_reduce": (_OWN_SUM,),
        "exposed_all_to_all": (MendingFlag(flag="enable-dbo", needs=("all2all-backend=deepep*",)),),
        **dict.fromkeys(("between_steps", "busy_host", "synchronisation"), (_AHEAD,)),
    },
    "sglang": {
        "unfused_passes": (MendingFlag(flag="enable-torch-compile"),),
        "launches": (MendingFlag(flag="disable-cuda-graph", value=None),),
        "exposed_all_reduce": (_OWN_SUM,),
        "exposed_all_to_all": (MendingFlag(flag="enable-two-batch-overlap", needs=("moe-a2a-backend=deepep*",)),),
        **dict.fromkeys(("between_steps", "busy_host", "synchronisation"), (_OVERLAPPED,)),
    },
}
ENGINES = {"vLLM": "vllm", "SGLang": "sglang"}  # frameworks by the engine whose steps a trace has


@dataclass(frozen=True, kw_only=True)
class MendedFlag:
    """A change of a launch file, with the ill that it mends.

    Attributes
    ----------
    change : of the flag.
    title : of the ill, in words.
    gain : what a replay gains in which the ill is wholly mended, the most that the flag can bring. [s]
    """

    change: FlagChange
    title: str
    gain: float


@dataclass(frozen=True, kw_only=True)
class MendedLaunch:
    """A launch file beside the advice on a trace of its run.

    Attributes
    ----------
    file, kind : the file and its framework.
    flags : changes, the largest gain first.
    left : what stands against further ones, or why an ill has none, in sentences.
    text, difference : the changed file, and its lines against those of the file; None and none where it is no script, or lines of it
        cannot be changed one by one.
    """

    file: str
    kind: str
    flags: tuple[MendedFlag, ...]
    left: tuple[str, ...]
    text: str | None
    difference: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, times in s."""
        changes = [{**one.change.to_dict(), "mends": one.title, "gain_at_most_s": one.gain} for one in self.flags]
        return {"file": self.file, "kind": self.kind, "changes": changes, "left": list(self.left), "diff": list(self.difference) or None}


def mended(found: TraceReport, file: Path) -> MendedLaunch:
    """What to change in a launch file so that the ills of a trace's step are mended.

    Raises
    ------
    CrossflowError
        Where the file cannot be read, starts several servers, or is of another framework than the trace.
    """
    text = files.read_text(file)
    parts = taken_apart(text, str(file), None, file.parent)
    _check(parts, found)
    flags, left = _mends(parts, found)
    changes = [one.change for one in flags]
    new = _written_back(text, parts, changes)
    lines = difflib.unified_diff(text.splitlines(), (new or text).splitlines(), str(file), f"{file}, mended", lineterm="", n=1)
    return MendedLaunch(file=str(file), kind=parts.kind, flags=tuple(flags), left=tuple(left), text=new, difference=tuple(lines))


def _check(parts: Source, found: TraceReport) -> None:
    """CrossflowError where a file's flags are not those of the trace's run."""
    if parts.workers or parts.kind not in MENDS:
        known = ", ".join(MENDS)
        raise CrossflowError(f"{parts.file}: flags of {parts.kind} are not mended; name a file that starts one run or server of {known}")
    if any("another command of the framework" in note.why for note in parts.notes):
        raise CrossflowError(f"{parts.file}: starts several commands of {parts.kind}; name a file that starts the one which was traced")
    engine = next((one.engine for one in found.advice.findings if one.engine), "")
    if found.advice.findings and (engine or parts.kind in ENGINES.values()) and ENGINES.get(engine) != parts.kind:
        steps = f"steps of {engine}" if engine else "no steps of an engine"
        raise CrossflowError(f"{parts.file} starts {parts.kind}, and the trace has {steps}; name the file of the run that was traced")


def _mends(parts: Source, found: TraceReport) -> tuple[list[MendedFlag], list[str]]:
    """Changes for the ills of a step, each flag once with the ill that gains most, and what stands against others."""
    given = {same(one.flag): one for one in parts.given}
    mends, flags, left = MENDS[parts.kind], dict[str, MendedFlag](), dict[str, str]()
    pairs = [(one, mend) for one in found.advice.findings for mend in mends.get(one.kind, ())]
    for one, mend in [*pairs, *pairs]:  # twice, for what one of them needs may come with a later one
        if mend.flag in flags or _is_so(mend, given):
            continue
        lacking = [name for name in mend.needs if not _holds(name, given, flags)]
        against = [name for name in mend.without if _holds(name, given, {})]
        if lacking or against:
            why = [f"needs {' and '.join(map(_written, lacking))}"] * bool(lacking)
            why += [f"does not go with {' and '.join(map(_written, against))}"] * bool(against)
            left[mend.flag] = f"{_written(mend.flag)} {', and '.join(why)} (for: {one.title})"
            continue
        flags[mend.flag] = MendedFlag(change=_change(mend, given), title=one.title, gain=one.gain)
    rest = sum(one.kind not in mends for one in found.advice.findings)
    more = [f"{rest} of the findings above {'has' if rest == 1 else 'have'} no flag that mends {'it' if rest == 1 else 'them'} alone"]
    listed = sorted(flags.values(), key=lambda one: -one.gain)
    return listed, [*(sentence for flag, sentence in left.items() if flag not in flags), *(more if rest else [])]


_NEED = re.compile(r"([\w.-]+?)(?:(=|>)(.*))?")


def _holds(need: str, given: Mapping[str, GivenFlag], flags: Mapping[str, MendedFlag]) -> bool:
    """Whether a file has a flag that another one needs, or is to get it."""
    found = _NEED.fullmatch(need)
    assert found is not None  # as `MENDS` has them
    name, sign, wanted = found.groups()
    held = given.get(same(name))
    if name in flags:
        value = flags[name].change.after
    elif held is None or not _given(name, given):
        return False
    else:
        value = str(held.values[0]) if held.values else ""
    if sign is None:
        return value is not None
    if sign == "=":
        return value is not None and fnmatch.fnmatchcase(value.lower(), wanted)
    return value is not None and value.isdigit() and int(value) > int(wanted)


def _written_back(text: str, parts: Source, changes: Sequence[FlagChange]) -> str | None:
    """The file with changes, None where its lines do not take them: what is read of it again must be its flags with these changes."""
    switches = [_switch(one.flag) for one in parts.given]
    if any(switches.count(_switch(one.flag)) > 1 for one in changes):
        return None  # given twice: which one counts is the framework's affair
    try:
        changed = edited(text, parts, changes)
        again = taken_apart(changed, parts.file, parts.kind, None)
    except CrossflowError:  # no script, or one whose lines a program should not touch
        return None
    gone = {same(one.flag) for one in changes if one.before is not None}
    wanted = [(same(one.flag), one.values) for one in parts.given if same(one.flag) not in gone]
    wanted += [(same(one.flag), (one.after,) if one.after else ()) for one in changes if one.after is not None]
    words = [(same(one.flag), tuple(map(str, one.values))) for one in again.given]
    return changed if sorted(words) == sorted((flag, tuple(map(str, values))) for flag, values in wanted) else None


def _switch(flag: str) -> str:
    """A flag in one spelling, whether it says so or the opposite."""
    return same(flag).removeprefix("no-")


def _written(flag: str) -> str:
    """A flag, or what is needed of one, as people write it."""
    return flag if "." in flag else f"--{flag}"


def _given(flag: str, given: Mapping[str, GivenFlag]) -> bool:
    """Whether a file has a flag, and not as one that is off."""
    held = given.get(same(flag))
    return held is not None and not (held.values and str(held.values[0]) in OFF)


def _is_so(mend: MendingFlag, given: Mapping[str, GivenFlag]) -> bool:
    """Whether a file says what would mend an ill."""
    if mend.value is None or mend.value == "":
        return _given(mend.flag, given) == (mend.value == "")
    held = given.get(same(mend.flag))
    return held is not None and str(held.values[0] if held.values else "true").lower() == mend.value


def _change(mend: MendingFlag, given: Mapping[str, GivenFlag]) -> FlagChange:
    """The change of a file that a mend needs; what says the opposite goes, as switches of vLLM are on where nothing is said."""
    negated = given.get(same(f"no-{mend.flag}"))
    if negated is not None:
        return FlagChange(flag=negated.flag, line=negated.line, before=" ".join(map(str, negated.values)), after=None, fields=())
    held = given.get(same(mend.flag))
    before = None if held is None else " ".join(map(str, held.values))
    flag, line = (_written(mend.flag), None) if held is None else (held.flag, held.line)
    return FlagChange(flag=flag, line=line, before=before, after=mend.value, fields=())
