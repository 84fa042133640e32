"""Flags of a launch file beside the advice on a trace of its run: what is to be added and to go, what it needs, and the file with it."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError
from crossflow.edges.launch.mending import ENGINES, MENDS, mended
from crossflow.edges.launch.table import table
from crossflow.evidence.replay.advice import CURES, TraceFinding
from crossflow.evidence.replay.engines import SGLANG, VLLM

ROOT = Path(__file__).parents[1]
DLRM = ROOT / "docs" / "examples" / "traces" / "dlrm_8xv100.tar.gz"
MEGATRON = """#!/bin/bash
torchrun --nproc-per-node 8 pretrain_gpt.py \\
    --tensor-model-parallel-size 2 --sequence-parallel \\
    --num-layers 12 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \\
    --micro-batch-size 4 --global-batch-size 64 --bf16
"""
SERVED = "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --enforce-eager --no-async-scheduling\n"


def advised(*kinds, engine=""):
    """Advice with ills of some kinds, each of which brings a millisecond less than the one before."""
    findings = [
        TraceFinding(
            kind=kind, title=f"ill {kind}", time=1.0, step_time=1.0, gain=0.1 - 1e-3 * i, trust="measured", proofs=(), engine=engine
        )
        for i, kind in enumerate(kinds)
    ]
    return SimpleNamespace(advice=SimpleNamespace(findings=tuple(findings)))


@pytest.fixture
def file(tmp_path):
    def write(text, name="run.sh"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def words(found):
    return [f"{one.change.what} {one.change}" for one in found.flags]


def test_every_flag_is_one_of_its_framework():
    for kind, mends in MENDS.items():
        known = table(kind)
        for mend in {one for ill in mends.values() for one in ill}:
            for flag in (mend.flag, *(re.split("[=>]", need)[0] for need in (*mend.needs, *mend.without))):
                assert known.found(flag) or known.listed(flag, known.ignored) or known.listed(flag, known.unmodelled), (kind, flag)
            assert (mend.value == "") <= (not known.has_value(mend.flag)), (kind, mend.flag)
        assert set(mends) <= set(CURES), kind
    assert set(ENGINES) == {VLLM, SGLANG}


def test_flags_that_lack_are_added_with_the_most_that_they_bring(file):
    found = mended(advised("exposed_all_reduce", "exposed_reduce_scatter", "late_rank"), file(MEGATRON))
    assert words(found) == ["add --overlap-grad-reduce", "add --tp-comm-overlap"]
    assert [one.gain for one in found.flags] == [0.1, 0.1]
    assert found.left == ("1 of the findings above has no flag that mends it alone",)
    new = [line for line in found.difference if line.startswith("+ ")]
    assert len(new) == 1
    assert "--overlap-grad-reduce" in new[0]
    assert "--tp-comm-overlap" in new[0]
    assert mended(advised("exposed_all_reduce"), file(found.text, "again.sh")).flags == ()


def test_what_a_flag_needs_must_be_there_or_come_with_it(file):
    found = mended(advised("exposed_all_gather"), file(MEGATRON.replace(" --sequence-parallel", "")))
    assert words(found) == []
    assert found.left == (
        "--overlap-param-gather needs --overlap-grad-reduce and --use-distributed-optimizer (for: ill exposed_all_gather)",
        "--tp-comm-overlap needs --sequence-parallel (for: ill exposed_all_gather)",
    )
    sharded = file(MEGATRON.replace("--bf16", "--bf16 --use-distributed-optimizer"))
    both = mended(advised("exposed_all_reduce", "exposed_all_gather"), sharded)
    assert words(both) == ["add --overlap-grad-reduce", "add --tp-comm-overlap", "add --overlap-param-gather"]


def test_switches_that_slow_an_engine_go(file):
    found = mended(advised("launches", "between_steps", engine=VLLM), file(SERVED))
    assert words(found) == ["remove --enforce-eager", "remove --no-async-scheduling"]
    assert found.text.split() == ["vllm", "serve", "meta-llama/Llama-3.1-8B", "--tensor-parallel-size", "2"]


@pytest.mark.parametrize(
    "text",
    [
        'vllm serve M "--enforce-eager" --tensor-parallel-size 2\n',
        'A=("--enforce-eager" "--tensor-parallel-size" 2)\nvllm serve M "${A[@]}"\n',
        "TP=--tensor-parallel-size=2\nvllm serve M $TP\n",
        'echo "--tensor-parallel-size 2" && vllm serve M --tensor-parallel-size 2\n',
        "vllm serve M --enforce-eager \\\n  --enforce-eager --tensor-parallel-size 2\n",
    ],
)
def test_lines_that_would_come_out_otherwise_are_not_written(text, file):
    found = mended(advised("launches", "between_steps", engine=VLLM), file(text))
    assert "add --async-scheduling" in words(found)
    if found.text is not None:  # what is written says nothing else
        again = mended(advised("launches", "between_steps", engine=VLLM), file(found.text, "again.sh"))
        assert again.flags == ()
        assert '""' not in found.text
    assert not found.text or 'echo "--async' not in found.text


def test_what_needs_what_comes_with_a_later_finding_waits_for_it(file):
    sharded = file(MEGATRON.replace("--bf16", "--bf16 --use-distributed-optimizer"))
    found = mended(advised("exposed_all_gather", "exposed_all_reduce"), sharded)
    assert {*words(found)} == {"add --overlap-grad-reduce", "add --tp-comm-overlap", "add --overlap-param-gather"}
    assert found.left == ()


def test_several_servers_and_traces_of_no_engine_are_refused(file):
    two = "vllm serve A --enforce-eager &\nvllm serve B --enforce-eager --port 8001\n"
    with pytest.raises(CrossflowError, match="starts several commands of vllm; name a file that starts the one which was traced"):
        mended(advised("launches", engine=VLLM), file(two))
    with pytest.raises(CrossflowError, match="starts vllm, and the trace has no steps of an engine"):
        mended(advised("synchronisation"), file(SERVED))


def test_structured_files_are_told_by_their_keys(file):
    found = mended(advised("exposed_all_gather"), file('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}', "ds.json"))
    assert words(found) == ["add zero_optimization.overlap_comm true"]
    assert (found.text, found.difference) == (None, ())


def test_a_file_of_another_framework_is_refused(file):
    with pytest.raises(CrossflowError, match="starts megatron, and the trace has steps of vLLM; name the file of the run that was traced"):
        mended(advised("launches", engine=VLLM), file(MEGATRON))


def test_the_command_shows_and_writes(file, tmp_path, capsys):
    run, out = file(MEGATRON), tmp_path / "mended.sh"
    assert not main(["trace", str(DLRM), "--advise", "--from", str(run), "-o", str(out), "--json"])
    told = json.loads(capsys.readouterr().out)["advice"]["launch"]
    assert told["kind"] == "megatron"
    assert told["left"][-1].endswith("alone")
    assert out.read_text(encoding="utf-8").startswith("#!/bin/bash\ntorchrun")
    assert main(["trace", str(DLRM), "--from", str(run)]) == 2
    assert "--from FILE is compared with advice; give --advise with it" in capsys.readouterr().err
