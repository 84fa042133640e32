"""Steps of a service with a draft model and with the work of its host, worked out by hand."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_step_anchors import job_of, layout_of, machine_of

from crossflow.engine.runs import drafting
from crossflow.engine.runs.drafting import HostWork, asynchronous, drafted, hosted, service_step, with_draft
from crossflow.engine.runs.memory import CACHE, WEIGHTS, memory
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.job import Chunk, Draft

STAGES = layout_of(Plan(micro_batch=2), Plan(pp=2, micro_batch=2))  # four microbatches each, of which two stages prepare two
NONE = np.zeros(1)


@dataclass(frozen=True)
class Step:
    """What the host changes of a step."""

    total: np.ndarray
    breakdown: dict
    bound: dict


def step(total=5.0):
    return Step(
        total=np.array([total]), breakdown={"other": np.array([1.0]), "kernels": np.array([4.0])}, bound={"memory": np.array([total])}
    )


def stack(*synchronous_with, runs_ahead=True):
    host = SimpleNamespace(schedule=np.array([2.0]), request=np.array([0.5]))
    engine = SimpleNamespace(asynchronous=runs_ahead, synchronous_with=synchronous_with, selecting=np.array([0.001]))
    return SimpleNamespace(host=host, engine=engine)


def job(written=1, mask=0.0, masks_beside=True, draft=None, likeliest=False):
    words = SimpleNamespace(vocabulary=100)
    return SimpleNamespace(written=written, mask=mask, masks_beside=masks_beside, draft=draft, likeliest=likeliest, model=words, chunk=None)


@pytest.mark.parametrize(
    ("what", "own", "found"),
    [
        ("stages", job(), [True, False]),
        ("speculation", job(written=2), [False, False]),
        ("speculation", job(), [True, True]),
        ("draft", job(draft=object()), [False, False]),
        ("draft", job(written=2, mask=1.0), [True, True]),
        ("guided", job(mask=0.1), [False, False]),
        ("guided", job(draft=object()), [True, True]),
    ],
)
def test_engines_prepare_steps_ahead_but_for_what_they_name(what, own, found):
    assert asynchronous(own, STAGES, stack(what)).tolist() == found
    assert asynchronous(own, STAGES, stack(what, runs_ahead=False)).tolist() == [False, False]
    assert asynchronous(own, STAGES, stack()).tolist() == [True, True]


def test_work_of_the_host_before_and_beside_a_step():
    """Each stage's microbatch is prepared in 2 s, each request in 0.5 s; three tokens of a request have masks of 0.1 s each."""
    work = HostWork.of(job(written=3, mask=0.1), STAGES, stack("stages"))
    assert [np.broadcast_to(time, 2).tolist() for time in (*work.before, *work.beside)] == [
        [0.0, 4.0], [0.0, 0.5], [2.0, 0.0], pytest.approx([0.8, 0.3]),
    ]  # fmt: skip
    work = HostWork.of(job(written=3, mask=0.1, masks_beside=False), STAGES, stack("stages"))
    assert [np.broadcast_to(time, 2).tolist() for time in (work.before[1], work.beside[1])] == [pytest.approx([0.3, 0.8]), [0.5, 0.0]]


@pytest.mark.parametrize(
    ("before", "beside", "more"),
    [((0.0, 0.0), (2.0, 0.25), 0.0), ((0.0, 0.0), (2.0, 0.5), 1.0), ((1.0, 0.1), (2.0, 0.25), 1.8), ((1.0, 0.1), (2.0, 0.5), 2.8)],
)
def test_a_step_waits_for_its_host(before, beside, more):
    """Eight requests, of a step of 5 s: what is beside it counts beyond it, what is before it counts whole."""
    work = HostWork(before=tuple(map(np.array, before)), beside=tuple(map(np.array, beside)))
    found = hosted(step(), work, np.array([8.0]))
    assert found.total[0] == pytest.approx(5 + more)
    assert (found.breakdown["other"][0], found.breakdown["kernels"][0]) == (pytest.approx(1 + more), 4.0)
    assert (found.bound["host"][0], found.bound["memory"][0]) == (pytest.approx(more), 5.0)
    held = hosted(replace(step(), bound={"host": np.array([2.0])}), work, np.array([8.0]))
    assert held.bound["host"][0] == pytest.approx(2 + more)


def test_a_host_without_work_changes_nothing():
    own = step()
    assert hosted(own, HostWork(before=(NONE, NONE), beside=(NONE, NONE)), np.array([8.0])) is own


def test_a_draft_model_steps_once_for_each_token_that_it_guesses(monkeypatch):
    """Four tokens are checked, of which it guessed three; the first of its steps reads the pieces of prompts of all microbatches too."""
    monkeypatch.setattr(drafting, "added", lambda step, more, often: step + often * more)
    monkeypatch.setattr(drafting, "encoded", lambda step_of, step, *_: step)
    small = job_of(layers=1)
    asked = []

    def step_of(own, layout, machine, held):
        if own.draft is not None:
            return 100.0
        asked.append(
            (own.chunk and own.chunk.pieces.tolist(), layout.tp.tolist(), layout.micro_batch.tolist(), layout.microbatches.tolist(), held)
        )
        return 3.0 if own.chunk is None else 5.0

    chunk = Chunk(pieces=np.array([2.0]), length=np.array([10.0]), before=np.array([0.0]))
    large = replace(job_of(task="decode"), written=4, draft=Draft(job=small), chunk=chunk)
    on = layout_of(Plan(tp=2, micro_batch=2))  # four microbatches
    assert drafted(step_of, large, on, None, "held") == 100 + 5 + 2 * 3
    assert asked == [(None, [2], [8], [1], None), ([8.0], [2], [8], [1], None)]
    assert drafted(step_of, replace(large, chunk=None), on, None, "held") == 100 + 3 * 3
    asked.clear()
    assert drafted(step_of, replace(large, chunk=None, draft=Draft(job=small, tp=1)), on, None, "held") == 109
    assert asked == [(None, [1], [8], [1], None)]


def test_a_draft_model_keeps_its_own_weights_and_cache():
    machine, on = machine_of("vllm"), layout_of(Plan(tp=2))
    large, small = (replace(job_of(task="decode", layers=layers), context=100, cached=120) for layers in (4, 1))
    alone, held = (
        memory(large, on, machine),
        memory(small, replace(on, micro_batch=on.micro_batch * on.microbatches, microbatches=np.ones(1)), machine),
    )
    both = with_draft(alone, replace(large, draft=Draft(job=small)), on, machine)
    for kind in range(len(alone.stages)):
        assert (both.stages[kind] - alone.stages[kind]).sum() == pytest.approx(held.stages[kind].sum() if kind in (WEIGHTS, CACHE) else 0.0)
    assert with_draft(alone, large, on, machine) is alone


def test_a_step_of_a_service_is_that_of_its_models_and_of_its_host():
    """Half a second for each request of all four microbatches of two, and two for what is prepared once: 6 s, of which 1 s is after 5 s."""
    found = service_step(lambda *_: step(), job(), layout_of(Plan(micro_batch=2)), SimpleNamespace(stack=stack()), None)
    assert found.total[0] == pytest.approx(6.0)
