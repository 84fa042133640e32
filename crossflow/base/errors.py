"""The errors that a user can cause, each told with its place and its cure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

WORD, LONGEST = 200, 3000  # characters of a word and of a message, the most that are shown
NEAREST, LISTED = 5, 40  # names of a longer list that a message shows, and names that it lists in full
HELD, CERTAIN = 2, 0.8  # letters of a word that others may hold, and likeness of two words that are one with a slip
# What the field calls things that have another name here.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "trt": ("tensorrt-llm",), "trt-llm": ("tensorrt-llm",), "fp6": ("mxfp6",),
    "fp4": ("nvfp4", "mxfp4"), "float4": ("nvfp4", "mxfp4"), "float8": ("fp8",), "float16": ("fp16",), "half": ("fp16",),
    "bfloat16": ("bf16",),
    "float32": ("fp32",), "float": ("fp32",), "float64": ("fp64",), "double": ("fp64",), "train": ("training",),
    "inference": ("decode", "serving", "forward"),
    "generate": ("decode",), "tensor-parallel": ("tp",), "tensor-parallel-size": ("tp",), "pipeline-parallel": ("pp",),
    "pipeline-parallel-size": ("pp",), "data-parallel": ("dp",), "data-parallel-size": ("dp",), "context-parallel": ("cp",),
    "expert-parallel": ("ep",), "batch-size": ("global_batch",), "seq-length": ("sequence",), "seq-len": ("sequence",),
    "techlib": ("library",),
    "draws": ("samples",), "imbalance": ("uneven", "skew"), "load-imbalance": ("uneven", "skew"), "load-balance": ("uneven",),
    "steps": ("count",), "num": ("count",), "points": ("count",), "start": ("from",), "min": ("from",), "stop": ("to",), "end": ("to",),
    "max": ("to",), "gpus": ("devices", "templates"), "num-gpus": ("devices",), "ngpus": ("devices",), "world-size": ("devices",),
    "num-nodes": ("nodes",), "nnodes": ("nodes",), "gpus-per-node": ("devices_per_node",), "nproc-per-node": ("devices_per_node",),
    "lora": ("adapters",), "lora-rank": ("adapters",), "lora-r": ("adapters",), "peft": ("adapters",), "policy": ("scheduler",),
    "jobs": ("job", "jobs"), "tensor": ("tp",), "pipeline": ("pp",), "data": ("dp",), "expert": ("ep",), "context": ("cp",),
    "tp-size": ("tp",), "pp-size": ("pp",), "dp-size": ("dp",), "ep-size": ("ep",), "cp-size": ("cp",), "interleave": ("virtual_stages",),
    "virtual-pipeline": ("virtual_stages",), "vpp": ("virtual_stages",), "micro-batch-size": ("micro_batch", "strategy.micro_batch"),
    "mbs": ("micro_batch", "strategy.micro_batch"), "gbs": ("global_batch",), "torch-dtype": ("dtype",),
    "throughput": ("tokens_per_second",),
    "cost": ("cost_usd",), "latency": ("step_time_s", "e2el_s"), "num-layers": ("layers",), "num-hidden-layers": ("layers",),
    "hidden-size": ("hidden",), "num-attention-heads": ("heads",), "trtllm": ("tensorrt-llm",),
    "megatron-lm": ("megatron", "megatron-core"),
    "systems": ("templates",), "hardware": ("templates",), "gpus-per-server": ("devices_per_node",), "run": ("predict",),
    "simulate": ("predict", "timeline"), "tune": ("plan",), "search": ("plan", "study"), "optimize": ("plan", "study"),
    "estimate": ("predict",),
    "batch": ("global_batch",), "bs": ("global_batch",), "train-batch-size": ("global_batch",), "precision": ("dtype",),
    "data-type": ("dtype",), "sequence-length": ("sequence",), "seqlen": ("sequence",), "seq": ("sequence",), "max-seq-len": ("sequence",),
    "context-length": ("sequence",), "input-len": ("prompt",), "input-tokens": ("prompt",), "isl": ("prompt",), "prompt-len": ("prompt",),
    "output-len": ("output",), "output-tokens": ("output",), "osl": ("output",), "max-tokens": ("output",), "engine": ("software",),
    "framework": ("software",), "backend": ("software",), "activation-checkpointing": ("recompute",),
    "gradient-checkpointing": ("recompute",), "checkpointing": ("recompute",), "zero-stage": ("zero",), "bw": ("bandwidth",),
    "flops": ("throughput", "bf16", "fp8"), "tflops": ("throughput", "bf16", "fp8"), "gpu": ("devices",), "accelerators": ("devices",),
    "power-limit": ("tdp", "power"), "tdp": ("power",), "vocab": ("vocabulary",), "vocab-size": ("vocabulary",), "d-model": ("hidden",),
    "n-layers": ("layers",),
    "n-heads": ("heads",), "num-kv-heads": ("kv_heads",), "num-key-value-heads": ("kv_heads",), "intermediate-size": ("ffn",),
    **dict.fromkeys(("qps", "rps", "request-rate", "arrivals", "requests-per-s", "requests-per-second"), ("arrival_rate",)),
    **dict.fromkeys(("concurrency", "max-concurrency", "max-num-seqs", "users"), ("global_batch",)),
    **dict.fromkeys(("top-k", "topk", "num-experts-per-tok", "experts-per-token", "moe-router-topk"), ("active",)),
    **dict.fromkeys(("num-experts", "n-routed-experts", "num-local-experts"), ("count",)), "n-shared-experts": ("shared",),
    "moe-intermediate-size": ("ffn",), "bfloat": ("bf16",), "fleets": ("plan",), "fleet": ("plan",), "replay": ("serve",),
    "genetic": ("evolution", "nsga2"), "bayesian": ("tpe",), "grid": ("exhaustive",), "speed": ("tokens_per_second", "step_time_s"),
    "p5.48xlarge": ("aws-p5",), "p4d.24xlarge": ("aws-p4d",), "p4de.24xlarge": ("aws-p4de",),
}  # fmt: skip
# What others call a task and a file says otherwise, by the words of a cure.
OTHER_TASKS = {
    **{name: f"a job of several phases; give job: {{kind: {name}}}" for name in ("grpo", "ppo", "dpo", "distill")},
    "distillation": "a job of several phases; give job: {kind: distill}",
    **dict.fromkeys(("lora", "peft"), "training of adapters; give workload.adapters: {rank: 16}"),
    "qlora": "training of adapters; give workload.adapters: {rank: 16, base: nf4}",
    **dict.fromkeys(("finetune", "finetuning", "fine-tuning", "sft"), "a training step; give workload.task: training"),
}
LIKE, FAMILY = 3, 4  # names of one generation that are told, and letters of a name that say a family
SAME_MODEL = 6  # letters and digits that the name of a model in a hub has in common with ours, at least
_GENERATION = re.compile(r"(?<![a-z0-9])[a-z]{1,9}\d+[a-z]?(?![a-z0-9])")  # a device or a line of models, such as h200, mi300x, qwen3
_NANOMETRES = re.compile(r"(\d+)\s*nm")  # a node of logic as the press writes it
_LONG_WORD = re.compile(rf"(\S{{{WORD}}})\S+")


def other_task(word: object) -> str:
    """What to give where a word is no task here but elsewhere, as a sentence; "" for any other word.

    >>> other_task("qlora")
    'qlora is training of adapters; give workload.adapters: {rank: 16, base: nf4}'
    """
    found = OTHER_TASKS.get(str(word).lower().replace("_", "-"))
    return f"{word} is {found}" if found else ""


class CrossflowError(Exception):
    """Base of every error that is the user's to mend; the command line turns it into exit status 2."""

    @property
    def said(self) -> str:
        """What is wrong, without its place in a file."""
        return str(self)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a file: where it stands and what was expected there."""

    file: str
    message: str
    line: int | None = None
    path: str = ""

    def below(self, section: str) -> Problem:
        """The same of a file that holds what was read as its section."""
        return Problem(file=self.file, line=self.line, path=f"{section}.{self.path}" if self.path else section, message=self.message)

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", shortened(self.message))
        object.__setattr__(self, "path", shortened(self.path))

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


class SpecError(CrossflowError):
    """A file or an override that does not say what it must; carries all problems found, not the first alone."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @property
    def said(self) -> str:
        """What is wrong, each with its path, without its place in a file."""
        return "; ".join(": ".join(part for part in (problem.path, problem.message) if part) for problem in self.problems)


class StrategyError(CrossflowError, ValueError):
    """A strategy that the workload or the system cannot carry; the sentence holds the numbers that clash.

    Attributes
    ----------
    clash : the sentence without `resize`.
    resize : the cure by a system of other devices, such as ``system.nodes=2 makes it 16``, which ends the sentence; "" where there is none.
    devices : of that system; 0 where there is none. [1]
    """

    def __init__(self, clash: str, resize: str = "", devices: int = 0) -> None:
        self.clash, self.resize, self.devices = clash, resize, devices
        super().__init__(f"{clash}; {resize}" if resize else clash)


def shortened(message: str) -> str:
    """A message whose words and lists are cut to what a person reads.

    >>> len(shortened("a" * 10_000)), shortened("a word")
    (203, 'a word')
    """
    words = _LONG_WORD.sub(r"\1...", message)
    return words if len(words) <= LONGEST else f"{words[: LONGEST * 2 // 3]} ... {words[-LONGEST // 4 :]}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for what a word may stand for, or an empty string.

    That is the same in other letters, the closest known word, or those that hold the word.

    >>> did_you_mean("memroy", ["memory", "logic"]), did_you_mean("n3", ["N3", "N5"])
    ("; did you mean 'memory'?", "; did you mean 'N3'?")
    >>> did_you_mean("3nm", ["N3", "N5"])
    "; did you mean 'N3'?"
    >>> did_you_mean("H100", ["v100", "h100-sxm", "dgx-h100"])
    "; did you mean 'h100-sxm' or 'dgx-h100'?"
    """
    found = [f"'{name}'" for name in meant(word, known)]
    return f"; did you mean {either(found)}?" if found else ""


def folded(name: str) -> str:
    """A name without what people write differently: letter case, and `_` for `-`.

    >>> folded("DGX_H100")
    'dgx-h100'
    """
    return name.lower().replace("_", "-")


def known_name(name: str, known: Collection[str]) -> str | None:
    """The known name that a name stands for: itself, or the only one that differs from it in letter case and `_` for `-` alone.

    None where there is none; CrossflowError where there are several.

    >>> known_name("hbm3E", ["HBM3", "HBM3E"]), known_name("hbm", ["HBM3", "HBM3E"])
    ('HBM3E', None)
    """
    if name in known:
        return name
    asked = folded(name)
    found = [other for other in known if folded(other) == asked]
    if len(found) > 1:
        listed = either([f"'{other}'" for other in found])
        raise CrossflowError(f"'{name}' may mean {listed}; write it as one of them, letter by letter")
    return found[0] if found else None


def either(names: Sequence[str]) -> str:
    """Names as alternatives.

    >>> either(["a"]), either(["a", "b", "c"])
    ('a', 'a, b or c')
    """
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def meant(word: str, known: Iterable[str]) -> list[str]:
    """Known words that a word may stand for, the likeliest first; of those that hold it at most `NEAREST`."""
    names = list(dict.fromkeys(map(str, known)))
    asked = str(word)[:WORD].lower()
    if called := [name for name in SYNONYMS.get(folded(asked), ()) if name in names]:
        return called
    if (node := _NANOMETRES.fullmatch(asked)) and (logic := [name for name in names if name.lower() == f"n{node[1]}"]):
        return logic
    if ("/" in asked or "llama-3." in asked) and (of_hub := _of_hub(asked, names)):
        return of_hub
    same = [name for name in names if name.lower() == asked]
    if not same and (alike := _of_generation(asked, names)):
        return alike
    close = [name for name in difflib.get_close_matches(str(word)[:WORD], names, n=1) if not _of_another_family(asked, name)]
    holding = [name for name in names if asked in name.lower()] if len(asked) >= HELD else []
    if same or (close and (not holding or _likeness(str(word), close[0]) >= CERTAIN)):
        return same[:1] or close
    return sorted(holding, key=lambda name: (not name.lower().startswith(asked), len(name)))[:NEAREST]


def _of_generation(asked: str, names: Iterable[str]) -> list[str]:
    """Names that have a whole part with digits in common with a word, such as dgx-h200 with h200-node; those that share most first."""
    own = set(_GENERATION.findall(asked))
    shared = {name: len(own & set(_GENERATION.findall(name.lower()))) for name in names} if own else {}
    found = [name for name, count in shared.items() if count and count == max(shared.values())]
    return sorted(found, key=lambda name: (-_likeness(asked, name.lower()), not name.lower().startswith(asked)))[:LIKE]


def _of_another_family(asked: str, name: str) -> bool:
    """Whether a name begins with another word than one that is asked for, as megatron-18b does for falcon-180b."""
    one, other = (re.match("[a-z]*", text)[0] for text in (asked, name.lower()))  # type: ignore[index]
    return any(map(str.isdigit, asked)) and min(len(one), len(other)) >= FAMILY and _likeness(one, other) < CERTAIN


def _of_hub(asked: str, names: Iterable[str]) -> list[str]:
    """The name that a name of a hub of models holds, such as llama3-8b that of meta-llama/Meta-Llama-3-8B; the longest of several."""
    here = _bare(asked.rpartition("/")[2])
    same = {here, re.sub("llama3[123](?=8b|70b)", "llama3", here)}  # releases of these sizes differ in their training alone
    held = [name for name in names if len(_bare(name)) >= SAME_MODEL and any(_bare(name) in one for one in same)]
    return sorted(held, key=lambda name: -len(_bare(name)))[:1]


def _bare(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def among(known: Iterable[str], rest: str = "") -> str:
    """Known names as a list, only the first of many; `rest` says where all of them are.

    >>> among(["a", "b"]), among([f"n{i}" for i in range(50)], "`crossflow list`")
    ('a, b', 'n0, n1, n2, n3, n4 and 45 more (`crossflow list`)')
    """
    names = list(map(str, known))
    if len(names) <= LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:NEAREST])} and {len(names) - NEAREST} more{f' ({rest})' if rest else ''}"


def with_article(word: str) -> str:
    """A word after its indefinite article; one without vowels is spelled out, letter by letter.

    >>> with_article("gemm"), with_article("encoder"), with_article("lstm"), with_article("dlrm")
    ('a gemm', 'an encoder', 'an lstm', 'a dlrm')
    """
    spelled = not set("aeiou") & set(word.lower())
    return f"{'an' if word[:1].lower() in ('aefhilmnorsx' if spelled else 'aeiou') else 'a'} {word}"
