"""Which steps are forward, backward and update, and which parameters are weights, states of an optimizer, and inputs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from crossflow.evidence.jax.names import is_backward, is_differentiated
from crossflow.evidence.jax.steps import HloStep, TracedText, steps_in
from crossflow.evidence.jax.text import HloModule, HloTensor

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
STEP = "step"  # of a text without names, which does not say what is what
WEIGHTS, OPTIMIZER, INPUTS, CACHE = "weights", "optimizer", "inputs", "cache"


@dataclass(frozen=True, kw_only=True)
class HloParameters:
    """What the parameters of a text are.

    Attributes
    ----------
    kinds : of each.
    updated : outputs, by their place, that take the memory of parameters.
    trains : whether the text updates weights.
    """

    kinds: Sequence[str]
    updated: frozenset[int]
    trains: bool


def parameters_of(text: TracedText, module: HloModule) -> HloParameters:
    """What the parameters are, by how their values are used.

    Training returns weights and states in their own shapes and types. Of what it returns so, weights are what reaches a product or a
    look-up, in whatever way; moments only reach their own new values. Without training, tensors of numbers are weights, but for those
    that have a name of their own where others share one, as ``x`` beside ``params['w']``, and for what is returned anew, a cache
    or an input; whole numbers are inputs.
    """
    updated = _updated(text, module)
    floats = [i for i, (_, one) in enumerate(text.arguments) if one.floats and one.shape]
    size = sum(text.arguments[i][1].nbytes for i in floats)
    scopes = {step.scope for step in steps_in(text.items)} - {""}
    given_back = sum(text.arguments[i][1].nbytes for i in floats if i in updated)
    trains = bool(given_back) and (any(map(is_backward, scopes)) if scopes else 2.0 * given_back > size)
    reached = _reaching(text) if trains else frozenset(range(len(text.arguments)))
    if trains and not any(i in reached and i in updated for i in floats):  # no product with anything that is returned
        trains, reached = False, frozenset(range(len(text.arguments)))
    alone = _alone(module.names, floats)
    donors = module.donors | frozenset(module.donated.values())
    kinds = []
    for i, (_, one) in enumerate(text.arguments):
        state = i in updated if trains else i in floats and i not in alone
        if state and not trains and i in updated:  # keys and values, which a step of decoding takes and returns, or what it works on
            kinds.append(CACHE if i < len(module.names) and re.search(r"[\[.]", module.names[i]) else INPUTS)
            continue
        kinds.append((WEIGHTS if i in reached and one.floats and one.shape else OPTIMIZER) if state else INPUTS)
    return HloParameters(kinds=kinds, updated=frozenset(out for i, out in updated.items() if i in donors), trains=trains)


def _updated(text: TracedText, module: HloModule) -> dict[int, int]:
    """Outputs that are new values of parameters: those that share their memory, else those of their shapes and types, in order."""
    if module.donated:
        return {given: out for out, given in module.donated.items() if out < len(text.outputs) and given < len(text.arguments)}
    left: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for i, (_, one) in enumerate(text.outputs):
        left.setdefault((one.shape, one.dtype), []).append(i)
    found = {}
    for i, (_, one) in enumerate(text.arguments):
        if same := left.get((one.shape, one.dtype)):
            found[i] = same.pop(0)
    return found


def _alone(names: Sequence[str], floats: Sequence[int]) -> frozenset[int]:
    """Parameters whose name stands for them alone, where those of others begin alike."""
    roots = {i: re.split(r"[\[.]", names[i], maxsplit=1)[0] for i in floats if i < len(names) and names[i]}
    often = Counter(roots.values())
    if max(often.values(), default=0) < 2:
        return frozenset()
    return frozenset(i for i, root in roots.items() if often[root] == 1 and root == names[i])


def _reaching(text: TracedText) -> frozenset[int]:
    """Parameters whose values reach a product or a look-up, directly or through others."""
    of = {key: 1 << i for i, (key, _) in enumerate(text.arguments)}
    found = 0
    for _ in range(2):  # what a loop hands on is read by its next trip
        for step in steps_in(text.items):
            mask = 0
            for key in step.reads:
                mask |= of.get(key, 0)
            if step.matrix:
                found |= mask
                mask = 0  # what comes out of a product is no weight any more
            for key in (*step.writes, *step.carries.values()):
                of[key] = of.get(key, 0) | mask
    return frozenset(i for i in range(len(text.arguments)) if found >> i & 1)


def set_phases(text: TracedText, *, trains: bool) -> None:
    """Write the phase of each step, in place."""
    steps = list(steps_in(text.items))
    named = any(is_differentiated(step.scope) for step in steps)
    after, last = set[int](), FORWARD
    for step in steps:
        step.phase = last = _phase(step, last, after, named) if trains else FORWARD
        if step.phase != FORWARD:
            after |= step.writes.keys()


def _phase(step: HloStep, last: str, after: set[int], named: bool) -> str:
    if not named:
        return STEP
    if is_backward(step.scope):
        return BACKWARD
    if is_differentiated(step.scope):
        return FORWARD
    if not step.scope:  # what a compiler put in belongs to what stands before it
        return last
    return UPDATE if not after.isdisjoint(step.reads) else FORWARD


def samples_of(text: TracedText, parameters: HloParameters) -> tuple[int | None, int]:
    """Samples of a step over all devices, and tokens of a sample, from the inputs; None where these do not agree. [1]"""
    given = [one for (_, one), kind in zip(text.arguments, parameters.kinds, strict=True) if kind == INPUTS and not _is_seed(one)]
    leads = {one.whole[0] for one in given if one.shape}
    tokens = {one.whole[1] for one in given if len(one.shape) == 2 and not one.floats and one.dtype != "pred"}
    return (leads.pop() if len(leads) == 1 else None), (tokens.pop() if len(tokens) == 1 else 0)


def _is_seed(one: HloTensor) -> bool:
    return one.dtype == "u32" and one.shape in ((2,), (4,))
