"""Users of a service whose prompts are read by workers of their own (`crossflow.evidence.validation.loop_apart`); recipes of such runs."""

from dataclasses import replace

import numpy as np
import pytest

from crossflow.evidence.validation.loop_apart import ApartRun, first_tokens_apart
from crossflow.evidence.validation.serving_recipes import recipe_guesses, recipe_of

RUN = ApartRun(users=1, output=101, requests=10, writing=0.01, alone=0.2, full=0.1, sent=0.03, front=0.02)
ROW = {
    "mode": "disagg", "source": "inferencex-2026-04-27", "engine": "trtllm", "device": "b200", "model": "deepseek-ai/DeepSeek-R1",
    "precision": "fp8", "isl": "8192", "osl": "1024", "concurrency": "640", "prefill_tp": "8", "prefill_attention_dp": "1",
    "decode_tp": "8", "decode_attention_dp": "1", "prefill_num_workers": "", "decode_num_workers": "",
}  # fmt: skip


def test_a_user_alone_waits_for_its_prompt_and_its_way():
    assert first_tokens_apart(RUN) == pytest.approx(0.02 + 0.2 + 0.03)


def test_full_slots_leave_users_the_rest_of_littles_law():
    """Of 12 users 8 are written, for 1 s each: 8 requests a second, so that each takes 1.5 s from one to the next."""
    run = replace(RUN, users=12, slots=8, alone=1e-6, full=1e-6, sent=0.0, front=0.0, requests=np.inf, spread=0.2)
    assert first_tokens_apart(run) == pytest.approx(0.5, rel=0.05)


def test_workers_that_read_slower_than_is_written_hold_the_queue():
    """A prompt takes 0.1 s and an answer 1 s: of 40 users each has 4 s from one to the next, and 3 s of these before its first token."""
    run = replace(RUN, users=40, alone=0.1, full=0.1, sent=0.0, front=0.0, requests=np.inf)
    assert first_tokens_apart(run) == pytest.approx(3.0, rel=0.05)
    assert first_tokens_apart(replace(run, workers=2)) == pytest.approx(1.0, rel=0.1)


def test_all_ask_at_once_at_first():
    """Ten prompts one after the other, once: 0.1 to 1 s, and half a step for all but the first."""
    run = replace(RUN, users=10, alone=0.1, full=0.1, sent=0.0, front=0.0, requests=1)
    assert first_tokens_apart(run) == pytest.approx(0.55 + 0.9 * 0.005)
    together = replace(run, alone=0.1, full=0.02, ranks=5, room=2)  # the first alone, then nine in one step
    assert first_tokens_apart(together) == pytest.approx((0.1 + 9 * (0.1 + 2 * 0.02)) / 10 + 0.9 * 0.005)


@pytest.mark.parametrize(("prompts", "time"), [(1, 0.2), (2, 0.3), (3, 0.4), (4, 0.8), (7, 1.2)])
def test_steps_that_read_grow_with_the_ranks_that_have_prompts(prompts, time):
    assert replace(RUN, alone=0.2, full=0.4, ranks=3, room=3).step(prompts) == pytest.approx(time)


def test_a_recipe_says_engines_slots_and_guesses():
    found = recipe_of(ROW, None)
    assert (found.readers, found.reader_ranks, found.writers, found.writer_ranks, found.slots) == (2, 8, 1, 8, 80)
    assert (found.reader_experts, found.writer_experts) == (1, 0)  # a part of every expert; as the row says
    assert recipe_of({**ROW, "concurrency": "96", "decode_attention_dp": ""}, None).writer_experts == 1
    assert recipe_guesses(ROW) is False
    assert recipe_guesses({**ROW, "concurrency": "1088"}) is True


def test_rows_that_several_recipes_fit_have_none_unless_they_say_more():
    several = {**ROW, "concurrency": "128"}
    assert recipe_of(several, False) is None
    named = {**several, "prefill_num_workers": "1", "decode_num_workers": "2", "decode_tp": "1", "decode_attention_dp": "8"}
    assert recipe_of(named, None).slots == 8
    with_guesses = {**ROW, "isl": "1024", "precision": "fp4", "concurrency": "6", "prefill_tp": "4"}
    assert recipe_guesses(with_guesses) is None
    assert recipe_of(with_guesses, None).slots == 1  # both lists have the same engines
    assert recipe_of({**ROW, "source": "elsewhere"}, None) is None
    assert recipe_of({**ROW, "model": "Qwen/Qwen3-32B"}, None) is None
