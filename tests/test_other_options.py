"""Options that other tools have and a command does not: the answer is what to write in their place."""

import pytest

from crossflow.__main__ import main

ASKED = ["predict", "--model", "llama3-8b", "--on", "dgx-h100"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seq", "8192"], "write --set workload.sequence=8192"),
        (["--sequence=8192"], "write --set workload.sequence=8192"),
        (["--prompt", "4000"], "write --set workload.prompt=4000"),
        (["--precision", "fp8"], "write --set workload.dtype=fp8"),
        (["--fp8"], "write --set workload.dtype=fp8"),
        (["--lora", "16"], "write --set workload.adapters.rank=16"),
        (["--tp", "8"], "write --strategy tp8"),
        (["--gpus", "16"], "write --devices 16"),
        (["--system", "dgx-h100"], "write --on dgx-h100"),
        (["--engine", "vllm"], "write --set software=vllm"),
        (["--price", "2"], "write --set 'system.operation.price=2 USD/hour'"),
        (["--micro-batch-size", "2"], "write --set strategy.micro_batch=2"),
        (["--modle", "x"], "did you mean '--model'?"),
    ],
)
def test_options_of_other_tools_are_answered_by_what_does_the_same(words, said, capsys):
    with pytest.raises(SystemExit):
        main([*ASKED, *words])
    assert said in capsys.readouterr().err
