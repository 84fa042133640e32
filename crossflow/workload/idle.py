"""Keys of a workload that its other keys, or its task, leave without meaning, each with the reason and the cure.

A model file describes a model for every task, so that some of its keys may be idle. What a scenario writes itself is told: what no task
gives a meaning is refused, and so is what says how a service runs where there is none (`serving`); what else belongs to another task is
noted, so that one scenario can be predicted for several tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crossflow.workload.attended import FORMS
from crossflow.workload.spec import ProgramSpec, TransformerSpec

if TYPE_CHECKING:
    from crossflow.workload.kinds import Workload

IdleKey = Iterator[tuple[str, str]]  # path of a key in the workload section, and a sentence
# What only training does with a key, and the value with which it says nothing.
_TRAINED = {
    "optimizer": "updates weights", "table_optimizer": "updates tables", "dropout": "drops activations", "frozen": "changes weights",
    "adapters.rank": "has adapters beside weights",
    "exchange.backward": "sends gradients of embeddings", "exchange.bucket": "reduces gradients",
}  # fmt: skip

_REPLAYED = (
    "router",
    "cache_tokens",
    "host_cache",
    "failures",
    "autoscale",
    "preemption_mode",
    "swap_space",
)  # keys of `serving` that a steady state does not use
ONLY_REPLAYED = "only a replay of requests takes it (crossflow serve)"


def of_other_tasks(spec: Workload) -> IdleKey:
    """Keys that the task of a workload does not use; defaults are left out."""
    if isinstance(spec, ProgramSpec):  # whose phases are its own
        return
    if spec.task != "training":
        for path, does in _TRAINED.items():
            if _differs(spec, path.split(".")) and not (path.startswith("adapters") and _serves_adapters(spec)):
                also = ", or task: serving with serving.adapters" if path.startswith("adapters") else ""
                yield path, f"only training {does}{also}, and task is {spec.task}"
    if isinstance(spec, TransformerSpec) and spec.arrives:
        yield "global_batch", "requests arrive (serving.arrival_rate), and as many are in flight as come and go"
    if isinstance(spec, TransformerSpec) and spec.task == "serving":
        replayed = (key for key in _REPLAYED if _differs(spec, ["serving", key]))
        yield from ((f"serving.{key}", ONLY_REPLAYED) for key in replayed)
    if isinstance(spec, TransformerSpec) and spec.task in ("training", "forward"):
        yield from ((key, f"only a service has requests, and task is {spec.task}") for key in ("prompt", "output") if getattr(spec, key))


def _serves_adapters(spec: Workload) -> bool:
    return isinstance(spec, TransformerSpec) and spec.task == "serving" and spec.serving.adapters is not None


def _differs(spec: object, path: list[str]) -> bool:
    """Whether a key is there and is not at its default."""
    fields = getattr(type(spec), "model_fields", {})
    if path[0] not in fields:
        return False
    value, default = getattr(spec, path[0]), fields[path[0]].get_default(call_default_factory=True)
    return bool(value != default) if len(path) == 1 else _differs(value, path[1:])


def without_meaning(spec: Workload) -> IdleKey:
    """Keys that have no meaning beside the other keys of a workload, whatever its task; defaults are left out."""
    if isinstance(spec, TransformerSpec):
        yield from _unserved(spec)
        yield from _positions(spec)
        yield from _unattended(spec)
        yield from _latent(spec)
        yield from _ends(spec)
    elif spec.model == "dlrm" and spec.bottom.layers and spec.dense_features not in (None, spec.bottom.width):
        yield "dense_features", f"square layers of the bottom MLP take {spec.bottom.width} numbers in; list its widths, or leave it out"


def _unserved(spec: TransformerSpec) -> IdleKey:
    if spec.task != "serving":
        known = ("experts",) if spec.task == "decode" else ()
        given = (key for key in sorted(spec.serving.model_fields_set) if key not in known and _differs(spec, ["serving", key]))
        tasks = {"experts": "only task: serving and task: decode have it"}
        yield from (
            (f"serving.{key}", f"{tasks.get(key, 'only task: serving has it')}, and task is {spec.task}; leave it out") for key in given
        )
    if spec.serving.together and spec.serving.arrival_rate is not None:
        yield "serving.together", "requests that arrive one by one (serving.arrival_rate) do not begin together; leave one of the two out"
    elif spec.serving.together and spec.serving.prefill is not None:
        yield "serving.together", "workers of serving.prefill read prompts one by one; leave one of the two out"


def _positions(spec: TransformerSpec) -> IdleKey:
    if spec.max_positions is not None and spec.positions != "learned":
        yield "max_positions", f"only learned positions have rows, positions is {spec.positions}; leave it out"
    if spec.relative_buckets != 32 and spec.positions != "relative":
        yield "relative_buckets", f"only relative positions have buckets, positions is {spec.positions}; leave it out"
    if spec.window and not spec.window.global_rotary and "global" not in spec.window.pattern:
        yield "window.global_rotary", "the pattern has no global layers; leave it out"


def _unattended(spec: TransformerSpec) -> IdleKey:
    """Keys of attention and MLPs that a model with state spaces does not have."""
    fed = spec.has("mlp") or spec.has("experts")
    if fed and not spec.gated and spec.gate_limit is not None:
        yield "gate_limit", "gated is false, and only two branches have a limit; leave it out"
    for key in ("gated", "gate_limit", "mlp_bias"):
        if not fed and getattr(spec, key) != type(spec).model_fields[key].default:
            yield key, "no layer has an MLP; leave it out"
    if spec.has("attention"):
        return
    if spec.biases and not fed:
        yield "biases", "no layer has attention or an MLP; leave it out, or set ssm.bias"
    for key in ("kv_heads", "head_dim", "value_dim", "qk_norm", "qkv_bias", "latent"):
        if getattr(spec, key) is not None:
            yield key, "no layer has attention; leave it out"
    for key in (*FORMS, "attention_sinks", "keys_as_values"):
        if getattr(spec, key):
            yield key, "no layer has attention; leave it out"
    if spec.positions in ("alibi", "relative"):
        yield "positions", "no layer has attention; leave it out"


def _latent(spec: TransformerSpec) -> IdleKey:
    if spec.latent is None:
        return
    for key in ("kv_heads", "head_dim", "qk_norm", "qkv_bias"):
        if getattr(spec, key) is not None:
            yield key, "latent attention has dimensions of its own; leave it out, or leave out latent"
    if spec.positions == "alibi":
        yield "positions", "latent attention rotates latent.rope elements of a head, or none; leave it out"


def _ends(spec: TransformerSpec) -> IdleKey:
    """Keys of MLPs, requests, embedding and head that the model does not have."""
    mixture = spec.experts
    if mixture and spec.ffn and mixture.ffn not in (None, spec.ffn) and not spec.encoder and not spec.has("mlp"):
        yield "ffn", f"every layer has experts in the place of its MLP, with experts.ffn = {mixture.ffn}; give the same here"
    if spec.prompt and spec.image:
        yield "prompt", "a model of images reads the patches of `image`; leave it out"
    if spec.output and not spec.writes:
        yield "output", "only a causal decoder with a language head writes tokens; leave it out"
    if spec.head_bias is not None and spec.head not in ("language", "masked"):
        yield "head_bias", f"there is no product with the vocabulary where head is {spec.head}; leave it out"
    if spec.tied_embeddings and spec.image:
        yield "tied_embeddings", "a model of images has no table of words that its head could share; leave it out"
    if spec.image and spec.image.frame_compression > 1 and spec.image.frames == 1:
        yield "image.frame_compression", "a picture is one frame; give image.frames, or leave it out"
    if spec.image and spec.image.classes and spec.head != "classifier":
        yield "image.classes", f"only head: classifier has classes, head is {spec.head}; leave it out"
