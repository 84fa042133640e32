"""Real ranks that are recorded: what they call, what they take, and that nothing else changes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist
from forked import forked
from machine import assert_measured

import crossflow
from crossflow.evidence.emulation.buffers import described
from crossflow.evidence.emulation.launch import observed
from crossflow.evidence.emulation.process_group import EmulatedGroup
from crossflow.evidence.emulation.processes import RunSettings
from crossflow.evidence.emulation.program import recorded_program
from crossflow.evidence.emulation.real_group import NOTED, NotedGroup, meaning
from crossflow.evidence.emulation.record import read_record, step_figures
from crossflow.evidence.emulation.replay import replay
from crossflow.program.file import write_program

SCRIPTS = Path(__file__).parent / "scripts"
SLEEPING = Path(__file__).parents[2] / "docs" / "examples" / "emulation" / "sleeping.py"
LAYERS, FORWARD, BACKWARD = 4, 10e-3, 20e-3
SLEEPS = (str(SLEEPING), "--layers", str(LAYERS), "--forward", "10", "--backward", "20", "--bucket", "0.5", "--steps", "8")
WITHIN = 0.02
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")} | {"PYTHONWARNINGS": "ignore"}


ABORTED = 128 + signal.SIGABRT


def run(*words, module=(), server=None):
    """Status, output and errors; started again where gloo aborts a process that ends, as it now and then does without crossflow too."""
    for _ in range(3):
        if module:
            every = [sys.executable, *module, *words]
            done = subprocess.run(every, capture_output=True, text=True, timeout=120, check=False, env=ENVIRONMENT)
        else:
            done = forked("emulate", *words, env=ENVIRONMENT, server=server)
        if done.returncode not in (ABORTED, -signal.SIGABRT):
            break
    return done.returncode, done.stdout, done.stderr


def called(record):
    """What each rank calls, in order."""
    rows = [(one, row) for one in record.ranks for row in one.rows if row.act == "call"]
    return [(one.rank, row.op, row.size, row.dtype, one.groups[row.group], row.ranks) for one, row in rows]


@pytest.fixture(scope="module", params=["ddp", "fsdp2"])
def sleeping(request, tmp_path_factory):
    """The record of two real ranks whose layers sleep, and the step that the script itself has measured. [s]"""
    path = tmp_path_factory.mktemp(request.param) / "run.json.gz"
    status, out, error = run("--real", "--world-size", "2", "--record", str(path), "--", *SLEEPS, "--mode", request.param)
    assert status == 0, error
    return request.param, read_record(path), json.loads(out.removeprefix("[rank 0] "))["step_ms"] * 1e-3


@pytest.mark.cases(1)
@pytest.mark.alone
def test_real_ranks_call_what_emulated_ones_do(sleeping, tmp_path):
    mode, record, _ = sleeping
    path = tmp_path / "emulated.json"
    words = ("--world-size", "2", "--ranks", "0,1", "--system", "dgx-h100", "--record", str(path), "--", *SLEEPS, "--mode", mode)
    assert run(*words)[0] == 0
    assert called(record) == called(read_record(path))
    assert len(called(record)) > 2 * 8 * LAYERS
    assert record.real
    assert {one.host for one in record.ranks} == {os.uname().nodename}


@pytest.mark.cases(1)
@pytest.mark.alone
def test_a_replay_takes_what_the_run_took(sleeping):
    """Step for step as the record has it; the script's own clock, which runs from the forward pass on, says the same."""
    _, record, step = sleeping
    found = replay(record)[0]
    ends = [row.at for row in record.ranks[0].rows if row.act == "step" and row.of == "optimizer"]
    assert found.marks["optimizer"] == pytest.approx(ends, rel=WITHIN)
    assert found.step_time == pytest.approx(step_figures({"optimizer": ends})["step_time_s"], rel=WITHIN)
    assert_measured(found.step_time, step, WITHIN)


@pytest.mark.cases(1)
@pytest.mark.alone
def test_measured_times_are_those_of_the_network(sleeping):
    """A call takes as long on one rank as on the other, once waiting for the other is told apart; added times follow one another."""
    _, record, _ = sleeping
    first, last = (sum(one.time for one in found.sums.values()) for found in replay(record))
    assert_measured(first, last, 0.5)
    (slower, _) = replay(record, "all+100ms")
    assert slower.step_time > LAYERS * (FORWARD + 0.1) + BACKWARD


@pytest.mark.cases(1)
@pytest.mark.alone
def test_a_real_run_becomes_a_program(sleeping, tmp_path):
    """On a fast network, what remains is what the script does itself."""
    mode, record, step = sleeping
    path = write_program(recorded_program(record, rank=0), tmp_path / "run.program.json")
    found = crossflow.predict(crossflow.from_dict({"system": {"template": "dgx-h100", "devices": 2}, "workload": str(path)}))
    assert LAYERS * (FORWARD + BACKWARD) < found.step_time < 1.1 * step
    op = "all_reduce" if mode == "ddp" else "reduce_scatter"
    assert sum(one.message is not None and one.name == op for one in recorded_program(record, rank=0).ops) == LAYERS


def test_results_pass_through_and_every_kind_of_call_is_noted(tmp_path, rank_server):
    path = tmp_path / "run.json"
    words = ("--real", "--world-size", "3", "--record", str(path), "--", str(SCRIPTS / "real.py"))
    status, out, error = run(*words, server=rank_server)
    assert (status, sorted(out.splitlines())) == (0, [f"[rank {i}] rank {i} is done" for i in range(3)]), error
    record = read_record(path)
    mine = [one[1:] for one in called(record) if one[0] == 0]
    pair = [(op, size, group.ranks) for op, size, _, group, _ in mine if len(group.ranks) == 2]
    assert pair == [("broadcast", 16, (0, 2))] * 2
    assert [(op, ranks) for op, *_, ranks in mine if ranks] == [("send", (0, 1)), ("recv", (2, 0)), ("recv", (2, 0))] * 2
    assert [op for op, *_ in mine].count("barrier") == 4
    assert {("all_to_all", 36), ("gather", 48), ("scatter", 48)} <= {(op, size) for op, size, *_ in mine}
    assert len(replay(record, "")) == 3


def launched(*words):
    """A run under torchrun; another one where it fails, as gloo now and then does when ranks end at different moments."""
    for _ in range(3):
        found = run(*words, module=("-m", "torch.distributed.run"))
        if found[0] == 0:
            break
    return found


@pytest.mark.thorough
def test_training_under_torchrun_gives_what_it_gives_unrecorded(tmp_path):
    """To the last digit; each rank leaves its part of the record, and the parts are read as one."""
    path, script = tmp_path / "run.json", str(SCRIPTS / "trained.py")
    launcher, recorded = ("--standalone", "--nproc-per-node", "2"), ("-m", "crossflow", "emulate", "--real", "--record", str(path), "--")
    plain, noted = (launched(*launcher, *words, script) for words in ((), recorded))
    assert (plain[0], noted[0]) == (0, 0), noted[2]
    assert sorted(plain[1].splitlines()) == sorted(noted[1].splitlines()) != []
    assert [one.rank for one in read_record(path).ranks] == [0, 1]
    assert {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "recv"} <= {op for _, op, *_ in called(read_record(path))}
    assert not path.exists()


def test_a_real_rank_that_fails_ends_the_others(tmp_path):
    """Its status and its words are passed on, and what the ranks called until then is kept."""
    script, path = tmp_path / "script.py", tmp_path / "run.json"
    script.write_text(
        "import sys, time, torch, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.all_reduce(torch.ones(1))\n"
        "if dist.get_rank():\n    dist.destroy_process_group()\n    sys.exit('mine')\ntime.sleep(100)\n",
        encoding="utf-8",
    )
    begin = time.monotonic()
    status, out, error = run("--real", "--world-size", "2", "--record", str(path), "--", str(script))
    assert (status, out, time.monotonic() - begin < 60) == (1, "", True)
    assert error.startswith("[rank 1] mine\ncrossflow: rank 0 was ended because rank 1 failed\n")
    assert [one.rank for one in read_record(path).ranks] == [1]
    commands = (one.read_bytes() for one in Path("/proc").glob("[0-9]*/cmdline") if one.exists())
    assert not any(str(script).encode() in one for one in commands)


def test_tensors_that_are_not_on_a_processor_are_refused(tmp_path, rank_server):
    script = tmp_path / "script.py"
    text = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.all_reduce(torch.ones(1, device='meta'))\n"
    script.write_text(text, encoding="utf-8")
    there = "all_reduce has tensors on meta, whose times only its streams know"
    sentence = f"crossflow: --real records collectives on processors, and {there}; run the script on cpu, with gloo\n"
    assert run("--real", "--world-size", "1", "--", str(script), server=rank_server) == (2, "", sentence)


# -------------------------------------------------------------------------------------------- in process


@pytest.fixture
def alone(monkeypatch):
    """The environment of a world of one rank."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        monkeypatch.setenv(name, value)
    return RunSettings(world_size=1, keeps=True, emulates=False)


def test_torch_is_as_before_a_real_run(alone):
    before = dist.distributed_c10d.ProcessGroup, torch.autograd._engine_run_backward, torch.autograd.graph._engine_run_backward

    def fail():
        with observed(alone):
            assert dist.distributed_c10d.ProcessGroup is not dist.ProcessGroup
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    kept = dist.distributed_c10d.ProcessGroup, torch.autograd._engine_run_backward, torch.autograd.graph._engine_run_backward
    assert kept == before == (dist.ProcessGroup, *kept[1:])


def test_a_group_that_is_split_off_is_recorded_too(alone):
    with observed(alone) as recorder:
        dist.init_process_group("gloo")
        whole = dist.group.WORLD
        part = type(whole).around(whole.inner)
        dist.distributed_c10d._world.pg_group_ranks[part] = {0: 0}
        part.allreduce([torch.ones(2)]).wait()
        assert isinstance(part, NotedGroup)
        assert (part.group_name, part.size(), part.name()) == (whole.group_name, 1, "gloo")
        del dist.distributed_c10d._world.pg_group_ranks[part]
        dist.destroy_process_group()
    assert [row.get("op", row["act"]) for row in recorder.record()["rows"]] == ["all_reduce", "wait"]


def test_a_call_means_the_same_to_both_kinds_of_groups():
    """Collective, size and the other rank of a transfer, under every name that torch has for it."""

    class Listening(EmulatedGroup):
        def _go(self, op, tensors, *_, peer=None, **__):
            return SimpleNamespace(said=(op, described(tensors), peer))

    idle = MagicMock(local=None)  # a run in which no layer gathers its weights
    whole, part, rooted = torch.ones(4), torch.ones(2), dist.GatherOptions()
    rooted.rootRank = 0
    out_of_parts = {"all_gather": lambda a, b: (a, b), "reduce_scatter": lambda a, b: (b, a)}
    given = {"all_to_all": (whole, whole, [], []), "gather": ([[part, part]], [part], rooted), "scatter": ([part], [[part, part]], rooted)}
    given |= {"send": ([part], 1, 0), "recv": ([part], 1, 0), "barrier": (), "broadcast": ([part], rooted), "reduce": ([part], rooted)}
    lists = {"alltoall": ([part, part], [part, part]), "allgather": ([[part, part]], [part]), "reduce_scatter": ([part], [[part, part]])}
    lists |= {"allgather_coalesced": ([[part], [part]], [part])}
    for op, names in NOTED.items():
        for name in names:
            args = out_of_parts[op](*(([whole], [part]) if "coalesced" in name else (whole, part))) if op in out_of_parts else ([part],)
            args = lists.get(name, given.get(op, args))
            said = meaning(op, 2, args)
            assert (said.op, described(said.tensors), said.peer) == getattr(Listening(0, (0, 1), idle, "", 1.0), name)(*args).said, name
