"""Options and keys that other tools have and crossflow does not: the answer is what to write in their place."""

import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError

ASKED = ["predict", "--model", "llama3-8b", "--on", "dgx-h100"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seq", "8192"], "write --set workload.sequence=8192"),
        (["--sequence=8192"], "write --set workload.sequence=8192"),
        (["--prompt", "4000"], "write --task decode --set workload.prompt=4000"),
        (["--precision", "fp8"], "write --set workload.dtype=fp8"),
        (["--fp8"], "write --set workload.dtype=fp8"),
        (["--lora", "16"], "write --set workload.adapters.rank=16"),
        (["--tp", "8"], "write --strategy tp8"),
        (["--gpus", "16"], "write --devices 16"),
        (["--system", "dgx-h100"], "write --on dgx-h100"),
        (["--engine", "vllm"], "that is --set software=vllm, which does not work here: software: vllm serves models"),
        (["--price", "2"], "write --set 'system.operation.price=2 USD/hour'"),
        (["--micro-batch-size", "2"], "write --strategy dp8-mb2"),
        (["--rate", "5"], "write --task serving --set 'requests={arrivals: {law: poisson, rate: 5 1/s}"),
        (["--modle", "x"], "did you mean '--model'?"),
    ],
)
def test_options_of_other_tools_are_answered_by_what_does_the_same(words, said, capsys):
    with pytest.raises(SystemExit):
        main([*ASKED, *words])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "keys", "said"),
    [
        ("system", {"gpus": 16}, "system.gpus: unknown key 'gpus'; did you mean 'devices'?"),
        ("system", {"num_nodes": 2}, "unknown key 'num_nodes'; did you mean 'nodes'?"),
        ("workload", {"lora": 16}, "unknown key 'lora'; did you mean 'adapters'?"),
        ("workload", {"micro_batch_size": 2}, "unknown key 'micro_batch_size'; did you mean 'strategy.micro_batch'?"),
        ("strategy", {"interleave": 3}, "unknown key 'interleave'; did you mean 'virtual_stages'?"),
        ("strategy", {"tensor": 4}, "unknown key 'tensor'; did you mean 'tp'?"),
        (None, {"jobs": []}, "unknown key 'jobs'; did you mean 'job'?"),
        ("workload", {"sequence": "4k"}, "expected a whole number, got '4k'; write it in full: 4000, or 4096 for binary thousands"),
        ("workload", {"global_batch": "1.5M"}, "write it in full: 1500000, or 1572864 for binary millions"),
    ],
)
def test_keys_of_other_tools_are_answered_by_those_that_do_the_same(section, keys, said):
    data = {"system": {"template": "dgx-h100"}, "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": {"tp": 8}}
    data = {**data, section: {**data[section], **keys}} if section else {**data, **keys}
    with pytest.raises(CrossflowError) as raised:
        crossflow.from_dict(data)
    assert said in str(raised.value)
