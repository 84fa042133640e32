# ruff: noqa: E501
"""Published speeds of chips without main memory, and of weights read over a link: reproduced with nothing fitted.

The limits are loose. Chips of SRAM are bound by what lies between their kernels, of which makers publish nothing: what stands for
it are a crossing of the wafer, and a stream through the chip.
"""

from pathlib import Path

import pytest

import crossflow
from crossflow.answers.evaluation import evaluate

DATA = Path(__file__).parent / "data" / "tiers"


def per_user(chip, devices, strategy, model, *, batch=1, prompt=1000, **workload):
    """Tokens per second of one request."""
    given = {
        "system": {"template": str(DATA / f"{chip}.yaml"), "devices": devices}, "strategy": strategy, "software": "ideal",
        "workload": {"model": model, "dtype": "fp16", "task": "decode", "global_batch": batch, "prompt": prompt, "output": 100, **workload},
    }  # fmt: skip
    score = evaluate(crossflow.from_dict(given))
    assert score.feasible[0], score.why()
    return 1.0 / score.step_time[0]


def test_a_wafer_writes_llama_3_8b():
    """Cerebras, Aug. 2024: 1,800 tokens/s a user on one WSE-3, in 16 bits."""
    assert per_user("wse-3", 1, "tp1", "llama3-8b") == pytest.approx(1800, rel=0.2)


def test_four_wafers_write_llama_3_70b():
    """Cerebras: 450 tokens/s a user in Aug. 2024, 2,100 from Oct. 2024 with guessed tokens, which are not modelled here."""
    assert 450 < per_user("wse-3", 4, "pp4-mb1", "llama3-70b") < 2100


def test_without_what_lies_between_kernels_wafers_would_be_hundreds_of_times_faster():
    """Weights alone take 16 GB / 21 PB/s, less than a microsecond: the bandwidth of SRAM says nothing of its speed for one user."""
    found = per_user("wse-3", 1, "tp1", "llama3-8b")
    assert 500 * found < 21e15 / 16e9


@pytest.mark.parametrize("requests", [1, 16])
def test_576_chips_of_sram_write_llama_2_70b(requests):
    """Groq, early 2024: 300 tokens/s a user; the model is up to two and a half times as fast, with no time for what is scheduled between."""
    plan = "tp8-pp72-mb1-layers:1x32+2x8+1x32"
    found = per_user("lpu", 576, plan, "llama2-70b", batch=requests, weight_dtype="int8", kv_dtype="int8")
    assert 300 < found < 900


def test_fewer_chips_of_sram_do_not_hold_it():
    """69 GB in 8 bits do not fit in 288 chips of 230 MB."""
    given = {
        "system": {"template": str(DATA / "lpu.yaml"), "devices": 288}, "strategy": "tp8-pp36-layers:2x14+3x8+2x14", "software": "ideal",
        "workload": {"model": "llama2-70b", "dtype": "fp16", "weight_dtype": "int8", "kv_dtype": "int8", "task": "decode", "global_batch": 36, "prompt": 1000, "output": 100},
    }  # fmt: skip
    assert not evaluate(crossflow.from_dict(given)).feasible[0]


def test_weights_over_the_link_of_gh200():
    """450 GB/s each way (NVIDIA, 2022): 141 GB of weights beside 96 GB of HBM3 take at least 314 ms a token, whatever is computed."""
    second = {"capacity": "480 GB", "bandwidth": "450 GB/s", "energy": "7 pJ/bit"}
    memory = {"levels": {"memory": {"capacity": "96 GB", "bandwidth": "4 TB/s"}}}
    given = {
        "system": {"template": "h100-sxm", "devices": 1, "second_memory": second, **memory}, "strategy": "tp1-far:weights",
        "workload": {"model": "llama3-70b", "task": "decode", "global_batch": 1, "prompt": 1000, "output": 100}, "software": "ideal",
    }  # fmt: skip
    score = evaluate(crossflow.from_dict(given))
    read = 70.55e9 * 2 - 128256 * 8192 * 2  # but for the embedding's table
    assert score.feasible[0]
    assert score.step_time[0] == pytest.approx(read / 450e9, rel=0.03)
