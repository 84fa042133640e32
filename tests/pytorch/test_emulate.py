"""The command that emulates: what scripts see, how they end, and what is left behind."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked import forked

from crossflow.evidence.emulation.launch import emulated
from crossflow.evidence.emulation.processes import RunSettings

SCRIPTS = Path(__file__).parent / "scripts"
BEGIN = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"


def command(*words):
    return [sys.executable, "-m", "crossflow", "emulate", *words]


@pytest.fixture(scope="module")
def run(rank_server):
    """Run the command, whose ranks are forks of a process that has imported torch."""
    return functools.partial(forked, "emulate", server=rank_server)


@pytest.fixture
def script(tmp_path, run):
    """Write a script that has joined its group, and run it on some ranks of a world of 8."""

    def write(text, *options, ranks="0", run=run):
        path = tmp_path / "script.py"
        path.write_text(BEGIN + text, encoding="utf-8")
        return run("--world-size", "8", "--system", "dgx-h100", "--ranks", ranks, *options, "--", str(path), "a", "--set", "x=1", "y=2")

    return write


@pytest.mark.cases(1)
@pytest.mark.parametrize("ranks", [8, 1024])
def test_everything_that_torch_distributed_offers(tmp_path, ranks, run):
    target = tmp_path / "summary.json"
    done = run("--world-size", str(ranks), "--system", "dgx-h100", "--json", str(target), "--", str(SCRIPTS / "api.py"))
    assert (done.stdout, done.returncode) == (f"37 calls on rank 0 of {ranks}, backend gloo\n", 0)
    summary = json.loads(target.read_text())
    assert summary["world_size"] == ranks
    assert {"all_reduce", "all_gather", "send", "recv", "barrier"} <= {row["op"] for row in summary["ranks"][0]["collectives"]}


def test_a_script_sees_its_own_words_rank_and_backend(script):
    done = script(
        "import os, sys\nprint(sys.argv[1:], dist.get_rank(), dist.get_world_size(), dist.get_backend(), os.environ['LOCAL_WORLD_SIZE'], "
        "__name__, 'OMP_NUM_THREADS' in os.environ)\ndist.barrier()\n",
        run=functools.partial(forked, "emulate"),  # whose rank is started as that of a user is
    )
    assert done.stdout == "['a', '--set', 'x=1', 'y=2'] 0 8 gloo 8 __main__ False\n"
    assert done.stderr.startswith("rank 0 of 8, delays of dgx-h100\n  0 iterations\n  1 x barrier among 8, 0 B: 15.33 us")


def test_a_script_keeps_its_exit_status_and_its_traceback(script):
    assert script("import sys; sys.exit(3)").returncode == 3
    raised = script("def f():\n    raise RuntimeError('mine')\nf()\n")
    assert raised.returncode == 1
    assert "RuntimeError: mine" in raised.stderr
    assert "crossflow" not in raised.stderr.partition("RuntimeError: mine")[0]


@pytest.mark.parametrize(
    ("words", "text", "status", "told"),
    [
        (["-m", "nomodule"], "", 1, f"{sys.executable}: No module named nomodule\n"),
        (["folder"], "", 2, "crossflow: folder is a folder without __main__.py; give a script\n"),
        (["script.py"], "import sys; sys.exit('mine')\n", 1, "mine\n"),
        (["script.py"], "def f(:\n", 1, '  File "script.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'),
        (
            ["script.py"],
            "raise KeyError('mine')\n",
            1,
            "Traceback (most recent call last):\n  File \"script.py\", line 1, in <module>\n    raise KeyError('mine')\nKeyError: 'mine'\n",
        ),
        (
            ["-m", "script"],
            "raise KeyError('mine')\n",
            1,
            'Traceback (most recent call last):\n  File "{folder}/script.py", line 1, in <module>\n'
            "    raise KeyError('mine')\nKeyError: 'mine'\n",
        ),
    ],
)
def test_a_script_that_fails_says_what_python_says(tmp_path, words, text, status, told, run):
    (tmp_path / "folder").mkdir()
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    done = run("--world-size", "8", "--system", "dgx-h100", "--json", str(tmp_path / "summary.json"), "--", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", told.replace("{folder}", str(tmp_path)))


def test_a_folder_with_a_main_file_is_a_script(tmp_path, run):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text("import sys, beside; print(sys.argv, __name__)\n", encoding="utf-8")
    (tmp_path / "folder" / "beside.py").write_text("", encoding="utf-8")
    done = run("--world-size", "8", "--system", "dgx-h100", "--", "folder", "a", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "['folder', 'a'] __main__\n")


def test_workers_that_a_script_forks_do_no_harm(script):
    done = script(
        "loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=2, num_workers=2)\n"
        "for batch in loader:\n    dist.all_reduce(batch)\nprint('done')\n"
    )
    assert (done.stdout, done.returncode) == ("done\n", 0)
    assert "4 x all_reduce among 8" in done.stderr


def test_objects_of_emulated_ranks_leave_the_own_ones_as_they_are(script):
    done = script(
        "mine, theirs, part = ['a'], ['b'], [None]\ndist.broadcast_object_list(mine, src=0)\ndist.broadcast_object_list(theirs, 3)\n"
        "dist.scatter_object_list(part, list(range(8)))\nprint(mine, theirs, part)\n"
    )
    assert (done.stdout, done.returncode) == ("['a'] ['b'] [0]\n", 0)


def test_objects_of_any_size_are_delivered_between_real_ranks(script):
    done = script(
        "rank = dist.get_rank()\nboth, one = [None] * 8, [None] * 8 if rank == 7 else None\n"
        "dist.all_gather_object(both, 'a' * (1 + 50 * rank))\ndist.gather_object(list(range(rank)), one, 7)\n"
        "print([len(text) for text in both], one and [one[0], one[7]])\n",
        ranks="0,7",
    )
    sizes = "[rank 0] [1, 1, 1, 1, 1, 1, 1, 351] None", "[rank 7] [1, 351, 351, 351, 351, 351, 351, 351] [[], [0, 1, 2, 3, 4, 5, 6]]"
    assert (tuple(sorted(done.stdout.splitlines())), done.returncode) == (sizes, 0), done.stderr


def test_other_objects_of_real_ranks_are_delivered_and_those_of_emulated_ones_are_not(script):
    done = script(
        "rank = dist.get_rank()\nmine, part = [rank], [None]\ndist.broadcast_object_list(mine, 0)\ndist.broadcast_object_list(mine, 3)\n"
        "dist.broadcast_object_list(mine, src=7)\ndist.scatter_object_list(part, list('abcdefgh') if rank == 0 else None, src=0)\n"
        "dist.recv_object_list(mine, 0) if rank else dist.send_object_list(['abc'], 7)\nprint(mine, part)\n",
        ranks="0,7",
    )
    assert (sorted(done.stdout.splitlines()), done.returncode) == (["[rank 0] [0] ['a']", "[rank 7] ['abc'] ['h']"], 0), done.stderr


def test_a_message_from_any_rank_comes_from_the_first_emulated_one(script):
    done = script("group = dist.new_group([0, 3, 5])\nprint(dist.recv(torch.ones(4)), dist.recv(torch.ones(4), group=group))\n")
    assert (done.stdout, done.returncode) == ("1 3\n", 0), done.stderr


def test_a_call_that_is_not_emulated_is_refused_by_name(script):
    done = script("dist.group.WORLD.merge_remote_group(None, None, 8)\n")
    assert "crossflow emulate does not support ProcessGroup.merge_remote_group" in done.stderr
    assert done.returncode == 1


def test_a_script_with_another_world_is_refused(script, tmp_path, run):
    path = tmp_path / "other.py"
    path.write_text("import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=2)\n", encoding="utf-8")
    done = run("--world-size", "8", "--system", "dgx-h100", "--", str(path))
    assert "the script calls init_process_group with world_size = 2, but crossflow emulate was told 8" in done.stderr


def test_a_script_without_collectives_is_told_so(tmp_path, run):
    path = tmp_path / "plain.py"
    path.write_text("print('hello')\n", encoding="utf-8")
    done = run("--nodes", "2", "--system", "dgx-h100", "--", str(path))
    assert done.stdout == "hello\n"
    assert "rank 0 of 16, delays of dgx-h100\n  no collective was called in this process, so nothing was emulated\n" in done.stderr


def test_a_call_without_a_delay_is_refused(script, tmp_path, run):
    delays = tmp_path / "delays.yaml"
    delays.write_text("kind: delays\ntables: [{op: all_reduce, ranks: 2, points: [[1 B, 1 ms]]}]\n", encoding="utf-8")
    path = tmp_path / "script.py"
    path.write_text(BEGIN + "dist.barrier()\n", encoding="utf-8")
    done = run("--world-size", "2", "--delays", str(delays), "--", str(path))
    sentence = "no delay is known of barrier among 2 ranks; the delays have all_reduce of 2; give --system for the rest"
    assert (done.stderr, done.returncode) == (f"crossflow: {sentence}\n", 2)


@pytest.mark.parametrize(
    ("text", "ranks", "sentence"),
    [
        (
            "def delay(op, size, ranks): return -1",
            "0,1",
            "the delay function returned -1 for all_reduce of 16 B; expected seconds, or seconds and",
        ),
        ("def delay(op, size, ranks): raise ValueError('mine')", "0", "model.py: delay failed for all_reduce of 16 B: ValueError: mine"),
    ],
)
def test_a_delay_function_that_fails_is_told_in_one_line(script, tmp_path, text, ranks, sentence, run):
    (tmp_path / "model.py").write_text(text + "\n", encoding="utf-8")
    delays = tmp_path / "delays.yaml"
    delays.write_text("kind: delays\ndelay: model.py:delay\n", encoding="utf-8")
    path = tmp_path / "script.py"
    path.write_text(BEGIN + "dist.all_reduce(torch.ones(4))\n", encoding="utf-8")
    done = run("--world-size", "2", "--ranks", ranks, "--delays", str(delays), "--", str(path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert sentence in done.stderr


SPAWNS = """import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def main(rank, world):
    dist.init_process_group("gloo", init_method="tcp://localhost:1", rank=rank, world_size=world)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"name{rank}", f"node {rank}")
    print(rank, store.get(f"name{(rank + 1) % world}"), store.add("here", 1))
    store.wait(["name5"])
    dist.TCPStore("localhost", 1, world, rank == 0).wait(sys.argv[1:])
def start(): mp.get_context("spawn").Process(target=main, args=(0, 8)).start()
def agent():
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    elastic_launch(LaunchConfig(1, 1, 8, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="1"), main)(0, 8)
if __name__ == "__main__":
    exec(sys.argv.pop(1))
"""


@pytest.mark.parametrize(
    ("words", "said", "refused"),
    [
        (["mp.spawn(main, (8,), 8)"], "3 b'node 3' 8\n", ""),
        (["mp.start_processes(main, (8,), 8, join=False).join()", "other"], "3 b'node 3' 8\n", "the script waits for the key 'other' of a"),
        (
            ["mp.spawn(main, (2,), 2)"],
            "",
            "the script spawns 2 processes, which are neither the 8 ranks of the emulated world nor",
        ),
        (["agent()"], "", "the script starts its ranks by an elastic agent; give crossflow emulate the script that the agent starts"),
        (["start()"], "", "the script starts a process for main, which calls init_process_group; start ranks with torch.multiprocessing"),
    ],
)
def test_processes_for_ranks_are_emulated_or_refused_before_they_run(tmp_path, words, said, refused, run):
    path = tmp_path / "script.py"
    path.write_text(SPAWNS, encoding="utf-8")
    done = run("--world-size", "8", "--ranks", "3", "--system", "dgx-h100", "--", str(path), *words)
    assert (done.returncode, done.stdout) == (2 if refused else 0, said), done.stderr
    assert f"crossflow: {refused}" in done.stderr or not refused


def test_a_stage_that_asks_an_emulated_one_for_shapes_is_refused(script):
    done = script(
        "from torch.distributed.pipelining import PipelineStage, ScheduleGPipe\n"
        "stage = PipelineStage(torch.nn.Linear(8, 8), 3, 8, torch.device('cpu'))\nScheduleGPipe(stage, n_microbatches=2).step()\n",
        ranks="3",
    )
    assert done.returncode == 2, done.stderr
    assert "crossflow: a pipeline stage asks an emulated rank for shapes, which are not known; give PipelineStage input_args" in done.stderr


def test_the_first_stage_knows_the_shapes_of_what_comes_back(script):
    """The gradients of what it gives; its weights move by what the emulated next stage sends."""
    done = script(
        "from torch.distributed.pipelining import PipelineStage, Schedule1F1B\n"
        "model = torch.nn.Linear(8, 6)\nstage = PipelineStage(model, 0, 8, torch.device('cpu'))\n"
        "schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=torch.nn.functional.mse_loss)\n"
        "for _ in range(2): schedule.step(torch.ones(16, 8))\nprint(model.weight.grad.shape)\n",
        ranks="0",
    )
    assert (done.returncode, done.stdout) == (0, "torch.Size([6, 8])\n"), done.stderr


def test_states_that_emulated_ranks_have_are_not_consolidated(script):
    """Torch read an empty pickle."""
    done = script(
        "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
        "optimizer = ZeroRedundancyOptimizer(torch.nn.Linear(8, 8).parameters(), torch.optim.Adam, lr=0.1)\n"
        "optimizer.consolidate_state_dict(0)\n",
        ranks="0",
    )
    assert done.returncode == 2, done.stderr
    assert "crossflow: the script consolidates the state of a ZeroRedundancyOptimizer, of which emulated ranks" in done.stderr


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_a_stage_that_knows_its_shapes_runs_between_emulated_ones(script, rank):
    """Stages vote on whether all know theirs; the zeros of an emulated one were a no."""
    done = script(
        "from torch.distributed.pipelining import PipelineStage, Schedule1F1B\n"
        f"known = [torch.ones(2, 8, requires_grad=one) for one in ({rank} > 0, True)]\n"
        f"stage = PipelineStage(torch.nn.Linear(8, 8), {rank}, 8, torch.device('cpu'), input_args=known[0], output_args=known[1])\n"
        f"given = (([torch.ones(16, 8)] if {rank} == 0 else []), ({{'target': torch.ones(16, 8)}} if {rank} == 7 else {{}}))\n"
        "Schedule1F1B(stage, n_microbatches=8, loss_fn=torch.nn.functional.mse_loss).step(*given[0], **given[1])\n"
        "print(stage.submod.weight.grad is not None)\n",
        ranks=str(rank),
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_model_that_is_sharded_learns_and_finds_its_checkpoint(script, tmp_path):
    """The emulated rank is not the first, its layers are uneven, and one has no data when it is divided."""
    done = script(
        f"""
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.GELU(), torch.nn.Linear(33, 10, device="meta"), torch.nn.Linear(10, 10))
for layer in (model[0], model[2], model):
    fully_shard(layer)
model[2].to_empty(device="cpu").reset_parameters()
optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
x, y = torch.randn(32, 16), torch.randint(0, 10, (32,))
for _ in range(20):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)), step=torch.tensor(7))
dcp.save(state, checkpoint_id="{tmp_path}/saved")
kept = [one.to_local().clone() for one in state["model"].values()]
for one in state["model"].values():
    one.to_local().zero_()
state["step"].zero_()
dcp.load(state, checkpoint_id="{tmp_path}/saved")
print(losses[-1] < 0.9 * losses[0], all(map(torch.equal, kept, [one.to_local() for one in state["model"].values()])), state["step"].item())
""",
        ranks="2",
    )
    assert (done.stdout, done.returncode) == ("True True 7\n", 0), done.stderr


# -------------------------------------------------------------------------------------------- several real ranks


def test_real_ranks_meet_and_say_who_they_are(script, tmp_path):
    """Rank 7 comes 2 s late, for which rank 0 waits; a busy machine may let it leave the barrier late, but not by as much."""
    target = tmp_path / "summary.json"
    text = "import time; dist.barrier(); time.sleep(2 * (dist.get_rank() == 7)); dist.all_reduce(torch.ones(4))\n"
    text += "print('rank', dist.get_rank())\n"
    done = script(text, "--json", str(target), ranks="0,7")
    assert sorted(done.stdout.splitlines()) == ["[rank 0] rank 0", "[rank 7] rank 7"]
    waited = [{row["op"]: row["exposed_s"] for row in one["collectives"]}["all_reduce"] for one in json.loads(target.read_text())["ranks"]]
    assert waited[0] > max(1.0, waited[1])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "dist.all_reduce(torch.ones(4 + dist.get_rank()))",
            ("rank 0 calls all_reduce of 16 B float32", "rank 7 calls all_reduce of 44 B"),
        ),
        (
            "(dist.barrier if dist.get_rank() else lambda: dist.all_reduce(torch.ones(1)))()",
            ("rank 7 calls barrier", "rank 0 calls all_reduce"),
        ),
        (
            "dist.broadcast(torch.ones(1), dist.get_rank())",
            ("rank 0 calls broadcast of 4 B float32 from rank 0", "rank 7 calls broadcast of 4 B float32 from rank 7"),
        ),
        (
            "dist.reduce(torch.ones(1), 3, dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)",
            ("rank 0 calls reduce of 4 B float32 with SUM to rank 3", "rank 7 calls reduce of 4 B float32 with MAX to rank 3"),
        ),
        (
            "dist.get_rank() or dist.recv(torch.ones(4), 7)",
            ("rank 0 waits in operation 1 of group '0', recv from rank 7", "rank 7 has ended"),
        ),
    ],
)
def test_real_ranks_that_disagree_are_ended(script, text, sentence):
    done = script(text + "\n", ranks="0,7")
    assert done.returncode == 2
    assert all(part in done.stderr for part in sentence)


def test_the_first_rank_that_fails_ends_all(script):
    done = script("import sys, time\nif dist.get_rank() == 7: sys.exit(5)\ntime.sleep(100)\n", ranks="0,7")
    assert done.returncode == 5
    assert "crossflow: rank 0 was ended because rank 7 failed\n" in done.stderr
    assert "left no account" not in done.stderr


def test_a_rank_that_ends_on_its_own_without_an_account_is_named(script):
    done = script("import os, time\nif dist.get_rank() == 7: os._exit(5)\ntime.sleep(100)\n", ranks="0,7")
    assert done.returncode == 5
    assert "crossflow: rank 0 was ended because rank 7 failed\n" in done.stderr
    assert "crossflow: rank 7 left no account of its collectives; it was ended by a signal or by os._exit\n" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "dist.recv(part, 7 - rank)",
            ("operation 1 of group '0', recv from rank 7 of 16 B float32", "operation 1 of group '0', recv from rank 0 of 16 B float32"),
        ),
        (
            "dist.barrier() if rank else dist.send(part, 7)",
            ("operation 1 of group '0', send to rank 7 of 16 B float32", "operation 1 of group '0', barrier of 0 B"),
        ),
        (
            "dist.broadcast(part, 0, group=dist.new_group([0, 3, 7] if rank else [0, 7]))",
            (
                "operation 1 of group '1', broadcast of 16 B float32 from rank 0",
                "operation 1 of group '1', broadcast of 16 B float32 from rank 0",
            ),
        ),
        (  # torch waits for buckets of gradients in C++
            "group = dist.new_group([0, 7]); model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4)); "
            "dist.barrier(group) if rank else model(torch.ones(2, 4)).sum().backward()",
            ("operation 4 of group '0', all_reduce of 80 B float32 with SUM", "operation 1 of group '1', barrier of 0 B"),
        ),
    ],
)
def test_real_ranks_that_wait_for_each_other_are_told_at_once(script, tmp_path, text, said):
    done = script(f"rank, part = dist.get_rank(), torch.ones(4)\n{text}\n", ranks="0,7")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    for rank, one in zip((0, 7), said, strict=True):
        assert f"rank {rank} waits in {one} at {tmp_path / 'script.py'}:4," in done.stderr
    assert done.stderr.startswith("crossflow: the real ranks wait for each other, and none can go on: rank 0 waits in operation")
    assert done.stderr.endswith(", for rank 0\n")


def test_a_rank_that_computes_or_has_a_thread_that_does_is_waited_for(script):
    """Rank 0 waits for the main thread of rank 7, then for a thread that sleeps and for a timer, each for many looks."""
    done = script(
        "import threading, time\nrank, part = dist.get_rank(), torch.ones(4)\n"
        "def late():\n    time.sleep(1)\n    dist.send(part, 0)\n"
        "if rank == 0:\n    dist.recv(part, 7); dist.recv(part, 7); dist.recv(part, 7); dist.send(part, 7)\n"
        "else:\n    late(); threading.Thread(target=late).start(); threading.Timer(2, late).start(); dist.recv(part, 0)\nprint('done')\n",
        ranks="0,7",
    )
    assert (sorted(done.stdout.splitlines()), done.returncode) == (["[rank 0] done", "[rank 7] done"], 0), done.stderr


def test_groups_and_tags_have_an_order_each(script):
    """What is called in another order on the two real ranks, but in groups or with tags of its own, meets."""
    done = script(
        "rank, groups = dist.get_rank(), [dist.new_group([0, 7]) for _ in range(2)]\nbuffers = torch.ones(4), torch.ones(8)\n"
        "order = (1, 0) if rank else (0, 1)\nworks = [dist.all_reduce(buffers[i], group=groups[i], async_op=True) for i in order]\n"
        "works += [(dist.irecv if rank else dist.isend)(buffers[i], 7 - rank, tag=i) for i in order]\n"
        "[work.wait() for work in works]\nprint('done')\n",
        ranks="0,7",
    )
    assert (sorted(done.stdout.splitlines()), done.returncode) == (["[rank 0] done", "[rank 7] done"], 0), done.stderr


def test_an_all_to_all_of_unequal_parts_meets(script):
    done = script(
        "rank = dist.get_rank()\nsend, receive = ([8] * 7 + [2], [8] * 8) if rank == 0 else ([8] * 8, [2] + [8] * 7)\n"
        "dist.all_to_all_single(torch.empty(sum(receive)), torch.ones(sum(send)), receive, send)\n"
        "dist.all_to_all_single(torch.empty(64), torch.ones(57 + rank), [8] * 8, [8] * 7 + [1 + rank])\n",
        ranks="0,7",
    )
    assert done.returncode == 2
    assert "the real ranks disagree in operation 2 of group '0': rank 0 sends 4 B to rank 7 in all_to_all of 256 B" in done.stderr
    assert "which expects 32 B in all_to_all of 256 B float32" in done.stderr


@pytest.mark.parametrize("end", ["dist.recv(torch.ones(4), 7 - rank)", "raise KeyError(rank)"])
def test_ranks_that_fail_leave_no_process_behind(script, tmp_path, end):
    done = script(
        "import os, subprocess, sys\nrank = dist.get_rank()\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "workers = iter(torch.utils.data.DataLoader(torch.arange(1000), num_workers=1))\nnext(workers)\n"
        f"open(f'{tmp_path}/{{rank}}', 'w').write(f'{{os.getpid()}} {{other.pid}} {{workers._workers[0].pid}}')\n"
        f"dist.barrier()\n{end}\n",
        ranks="0,7",
    )
    assert done.returncode == (1 if "raise" in end else 2), done.stderr
    started = [int(word) for rank in "07" for word in (tmp_path / rank).read_text().split()]
    assert len(started) == 6
    wait_for(lambda: not any(alive(one) for one in started), 30)


def test_what_follows_a_collective_may_wait_for_others(script):
    """Comm hooks of gradients do so; it runs beside the link, which takes the next call meanwhile."""
    done = script(
        "def more(future):\n    dist.all_reduce(future.value()[0])\n    return dist.all_reduce(future.value()[0], async_op=True)"
        ".get_future().wait()\n"
        "print(dist.all_reduce(torch.ones(4), async_op=True).get_future().then(more).wait())\n",
        "--what-if",
        "all_reduce+50ms",
    )
    assert (done.stdout, done.returncode) == ("[tensor([512., 512., 512., 512.])]\n", 0), done.stderr


@pytest.mark.cases(1)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_ends_ranks_that_wait_without_a_traceback_and_leaves_no_process(tmp_path, number, status):
    """What was called until an interrupt is reported; a rank that is terminated says nothing more."""
    path, record = tmp_path / "script.py", tmp_path / "record.json"
    path.write_text(
        BEGIN + "import os, subprocess, sys, time\nrank = dist.get_rank()\ndist.barrier()\n"
        "other = subprocess.Popen(['sleep', '100'])\n"  # which says nothing of its own when it is interrupted
        f"open(f'{tmp_path}/{{rank}}', 'w').write(f'{{os.getpid()}} {{other.pid}}')\n"
        "time.sleep(100) if rank else dist.recv(torch.ones(4), 7)\n",
        encoding="utf-8",
    )
    files = [tmp_path / "0", tmp_path / "7"]
    words = command("--world-size", "8", "--system", "dgx-h100", "--ranks", "0,7", "--record", str(record), "--", str(path))
    with open(tmp_path / "out", "w+") as out, open(tmp_path / "told", "w+") as log:  # which the sleeping processes hold open too
        process = subprocess.Popen(words, stdout=out, stderr=log)
        wait_for(lambda: all(one.is_file() and len(one.read_text().split()) == 2 for one in files), 60)
        process.send_signal(number)
        assert process.wait(60) == status
        told = (tmp_path / "told").read_text()
        assert ((tmp_path / "out").read_text(), "Traceback" in told) == ("", False)
    assert record.is_file() == ("1 x barrier among 8" in told) == (number == signal.SIGINT)
    started = [int(word) for one in files for word in one.read_text().split()]
    wait_for(lambda: not any(alive(one) for one in started), 30)


def wait_for(holds, seconds):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(process):
    """Whether a process runs; what has ended and nobody has collected does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.thorough
def test_torchrun_starts_a_rank_each(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        BEGIN + "import os; dist.barrier(); os.write(1, f'rank {dist.get_rank()} of {dist.get_world_size()}\\n'.encode())\n",
        encoding="utf-8",
    )
    words = ["--nproc-per-node", "2", "--master-port", "0", "-m", "crossflow", "emulate", "--world-size", "64", "--ranks", "0,7"]
    words += ["--system", "dgx-h100", "--json", str(tmp_path / "summary.json"), "--", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words], capture_output=True, text=True, timeout=120, check=False, env=os.environ
    )
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 64", "rank 7 of 64"], done.stderr
    assert {one.name for one in tmp_path.glob("*.json")} == {"summary.rank0.json", "summary.rank7.json"}


def test_a_recorded_run_can_be_replayed(script, tmp_path, run):
    record, target = tmp_path / "record.json.gz", tmp_path / "replayed.json"
    script("for _ in range(3):\n    dist.all_reduce(torch.ones(4))\n", "--record", str(record))
    done = run("--replay", str(record), "--what-if", "all_reduce+100ms", "--json", str(target))
    assert (done.returncode, done.stdout) == (0, "")
    (rank,) = json.loads(target.read_text())["ranks"]
    assert 0.1 < rank["exposed_s"] < 0.31  # less what passed between a call and the wait for it


# -------------------------------------------------------------------------------------------- in process


def test_torch_is_as_before(tmp_path):
    before = {name: getattr(dist.distributed_c10d, name) for name in ("init_process_group", "rendezvous", "_new_process_group_helper")}
    kept = dist.TCPStore, torch.autograd._engine_run_backward, list(dist.Backend.backend_list), dict(dist.Backend._plugins)

    def fail():
        with emulated(RunSettings(world_size=8, system="dgx-h100")):
            dist.init_process_group("gloo")
            raise RuntimeError(f"mine of {dist.get_world_size()}")

    with pytest.raises(RuntimeError, match="mine of 8"):
        fail()
    assert not dist.is_initialized()
    assert before == {name: getattr(dist.distributed_c10d, name) for name in before}
    assert kept == (dist.TCPStore, torch.autograd._engine_run_backward, list(dist.Backend.backend_list), dict(dist.Backend._plugins))
    assert not hasattr(dist.Backend, "CROSSFLOW")


# The names since torch 2.13, and before.
GATHER_WHOLE = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SCATTER_WHOLE = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
WRONG_BUFFERS = [
    (lambda: dist.all_gather([torch.empty(4)] * 7, torch.ones(4)), "all_gather: invalid output tensor list (expected length 8, got 7)"),
    (
        lambda: dist.all_gather([*[torch.empty(4)] * 7, torch.empty(5)], torch.ones(4)),
        "all_gather: invalid tensor size at index 7 (expected (4), got (5))",
    ),
    (
        lambda: GATHER_WHOLE(torch.empty(31), torch.ones(4)),
        "all_gather: invalid tensor sizes ((4) on each of 8 ranks and (31) on all of them: 32 elements vs. 31)",
    ),
    (
        lambda: GATHER_WHOLE(torch.empty(32, dtype=torch.float64), torch.ones(4)),
        "all_gather: invalid tensor type (expected torch.float32, got torch.float64)",
    ),
    (
        lambda: SCATTER_WHOLE(torch.empty(4), torch.ones(30)),
        "reduce_scatter: invalid tensor sizes ((4) on each of 8 ranks and (30) on all of them: 32 elements vs. 30)",
    ),
    (
        lambda: dist.reduce_scatter(torch.empty(4), [torch.ones(4)] * 9),
        "reduce_scatter: invalid input tensor list (expected length 8, got 9)",
    ),
    (
        lambda: dist.all_to_all_single(torch.empty(16), torch.ones(16), [2] * 8, [2] * 7 + [1]),
        "all_to_all: Split sizes doesn't match total dim 0 size (15 vs. 16)",
    ),
    (
        lambda: dist.all_to_all_single(torch.empty(16), torch.ones(16), [16]),
        "all_to_all: Number of tensor splits not equal to group size (1 vs. 8)",
    ),
    (
        lambda: dist.all_to_all_single(torch.empty(15), torch.ones(15)),
        "all_to_all: Tensor's dim 0 does not divide equally across group size (15 vs. 8)",
    ),
    (
        lambda: dist.all_to_all([torch.empty(5)] * 8, [torch.ones(4)] * 8),
        "all_to_all: input and output tensors must have the same size for the rank itself (16 B vs. 20 B)",
    ),
    (lambda: dist.gather(torch.ones(4), [torch.empty(4)] * 3), "gather: invalid output tensor list (expected length 8, got 3)"),
    (lambda: dist.gather(torch.ones(4), [torch.empty(3)] * 8), "gather: invalid tensor size at index 0 (expected (4), got (3))"),
    (lambda: dist.scatter(torch.ones(4), [torch.ones(4)] * 3), "scatter: invalid input tensor list (expected length 8, got 3)"),
    (lambda: dist.broadcast(torch.ones(4), 8), "broadcast: invalid rank 8 in a group of 8"),
    (lambda: dist.send(torch.ones(4), 8), "send: invalid rank 8 in a group of 8"),
    (lambda: dist.recv(torch.ones(4, 2).t(), 1), "input tensor has to be contiguous"),
    (lambda: dist.all_reduce(torch.ones(4), dist.ReduceOp.BAND), "Cannot use ReduceOp.BAND with non-integral dtype"),
]


def test_wrong_buffers_are_refused_at_the_call():
    with emulated(RunSettings(world_size=8, system="dgx-h100")) as recorder:
        dist.init_process_group("gloo")
        for call, sentence in WRONG_BUFFERS:
            with pytest.raises(RuntimeError, match=f"^{re.escape(sentence)}$"):
                call()
        assert recorder.calls == 0


def test_buffers_that_torch_takes_are_taken():
    """A stack of parts, as NCCL does; splits in rows of several elements; a list of views; nothing at all."""
    with emulated(RunSettings(world_size=8, system="dgx-h100")) as recorder:
        dist.init_process_group("gloo")
        stack, rows = torch.zeros(8, 4), torch.ones(9, 3)
        GATHER_WHOLE(stack, torch.ones(4))
        dist.all_to_all_single(torch.empty(9, 3), rows, [1] * 7 + [2], [1] * 7 + [2])
        dist.all_gather(list(stack.unbind(1)[0].split(1)), torch.ones(1))
        GATHER_WHOLE(torch.empty(0), torch.empty(0))
        assert stack.sum() == 32
        assert recorder.calls == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="delays on a GPU's communication stream need a GPU, and here is none")
def test_a_gpu_waits_on_its_stream():
    with emulated(RunSettings(world_size=8, system="dgx-h100", what_if="all_reduce+50ms")):
        dist.init_process_group("nccl")
        torch.cuda.set_device(0)
        buffer = torch.ones(1024, device="cuda")
        dist.all_reduce(buffer)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work = dist.all_reduce(buffer, async_op=True)
        work.wait()
        issued = time.perf_counter() - begin
        torch.cuda.synchronize()
        assert issued < 0.04 < time.perf_counter() - begin < 0.07
