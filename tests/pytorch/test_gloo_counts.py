"""Collectives of imported models against real ranks over gloo that run the same functions: how many, and how many bytes."""

import functools
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from divided import MICROBATCHES, TOKENS
from models import WIDTH
from test_import import sent

from crossflow.evidence.torch import record

HERE = Path(__file__).parent
TWO = (
    "replicated", "replicated_with_buffers", "in_many_buckets", "replicated_and_tied", "replicated_in_part", "sharded", "sharded_once",
    "sharded_and_tied", "sharded_in_part", "over_tensor_ranks", "over_sequences", "in_stages", "biased_one_by_one", "biased_together",
    "biased_in_one_kernel", "biased_by_sgd", "replicated_in_half_the_bits",
)  # fmt: skip
FOUR = ("sharded_and_replicated", "with_shards", "shared_and_replicated")
KINDS = ("llama", "qwen3_moe", "gpt_oss")  # models of transformers, in BF16
LIBRARY = tuple(f"{kind}{how}" for kind in KINDS for how in ("_replicated", "_sharded", "_over_tensor_ranks", " ddp", " fsdp2", " tp=2"))


@functools.cache
def real(ranks, names):
    """What rank 0 of real ranks sends in a step, by function and kind."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")} | {"PYTHONWARNINGS": "ignore"}
    words = [sys.executable, str(HERE / "gloo_ranks.py"), str(ranks), *names]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, env=environment)
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert set(found) == set(names), done.stderr[-2000:]
    return found


def imported(program):
    """The same of a program, as gloo sends it: parts of gathers, and reductions that scatter as whole ones."""
    found = {}

    def add(kind, count, size):
        before = found.get(kind, [0, 0])
        found[kind] = [before[0] + count, before[1] + size]

    for (collective, axes), (count, size) in sent(program).items():
        members = dict(program.axes)[axes[0]]
        assert len(axes) == 1
        add({"all_gather": "gathered", "broadcast": "broadcast"}.get(collective, "reduced"), count,
            size / members if collective == "all_gather" else size)  # fmt: skip
        if collective == "reduce_scatter":
            add("scattered", count, 0)
    return found


@pytest.mark.parametrize(("name", "ranks"), [*((name, 2) for name in TWO if name != "in_stages"), *((name, 4) for name in FOUR)])
def test_programs_send_what_real_ranks_send(name, ranks):
    program = record(f"{HERE / 'divided.py'}:{name}", world_size=ranks)
    assert imported(program) == real(ranks, TWO if ranks == 2 else FOUR)[name]


@pytest.fixture(scope="module")
def library():
    """Functions that make models of transformers."""
    pytest.importorskip("transformers")
    return importlib.import_module("divided_transformers")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["replicated", "sharded", "over_tensor_ranks"])
def test_programs_of_models_of_transformers_send_what_real_ranks_send(kind, how, library):
    name = f"{kind}_{how}"
    assert imported(record(library.MADE[name], world_size=2)) == real(2, LIBRARY)[name]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", ["ddp", "fsdp2", "tp=2"])
def test_words_for_models_of_transformers_send_what_real_ranks_send(kind, words, library):
    program = record(functools.partial(library.whole, kind), world_size=2, parallel=words, gradients="weights")
    assert imported(program) == real(2, LIBRARY)[f"{kind} {words}"]


def test_words_for_replicas_send_what_real_ranks_send():
    program = record(f"{HERE / 'models.py'}:gpt", world_size=2, parallel="ddp", batch=2, sequence=TOKENS)
    assert sent(program) == {("all_reduce", ("dp",)): tuple(real(2, TWO)["replicated"]["reduced"])}


def test_stages_hand_over_what_real_ones_do():
    """Rank 0 sends the results of each microbatch on, and receives their gradients."""
    program = record(
        f"{HERE / 'models.py'}:deep", world_size=2, parallel="pp=2", microbatches=MICROBATCHES, batch=MICROBATCHES, sequence=TOKENS
    )
    for phase, kind in (("forward", "sent"), ("backward", "received")):
        ((_, (count, size)),) = sent(program, phase).items()
        assert [count, size] == real(2, TWO)["in_stages"][kind] == [MICROBATCHES, MICROBATCHES * TOKENS * WIDTH * 4]
