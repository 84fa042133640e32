"""The base of rotary positions and the epsilon of norms: flags where the model's file says them, else a line that asks to check them."""

from pathlib import Path

import pytest

import crossflow
from crossflow.edges.launch.launch import read, write

FILES = Path(__file__).parent / "data" / "huggingface"
SYSTEM = {"template": "h100-ib-cluster", "nodes": 16}


def text_of(model, kind, **more):
    workload = {"model": model, "global_batch": 128, "sequence": 1024}
    if model.endswith(".json"):
        workload["model"] = str(FILES / model)
    strategy = {"tp": 1, "dp": 128, "zero": {"megatron": 1}.get(kind, 3), "micro_batch": 1, **more}
    return write(crossflow.load({"system": SYSTEM, "workload": workload, "strategy": strategy}), kind)


def comments(text):
    return [line for line in text.splitlines() if line.startswith("# ") and not line.startswith("# crossflow: ")]


def test_a_file_of_the_model_gives_megatron_its_flags():
    text = text_of("mixtral-8x7b.json", "megatron")
    assert "--rotary-base 1000000" in text
    assert "--norm-epsilon 1e-05" in text
    assert not [line for line in comments(text) if "check" in line]
    assert read(text).scenario("h100-ib-cluster").strategy.dp == 128


@pytest.mark.slow
def test_what_the_file_does_not_say_is_asked_for():
    text = text_of("llama-2-7b.json", "megatron")
    assert "--norm-epsilon 1e-05" in text
    assert "--rotary-base 1" not in text
    assert "# The model's rotary base is not known to crossflow: check --rotary-base (else 10000)." in text
    text = text_of("llama3-8b", "megatron")
    both = "check --rotary-base (else 10000) and --norm-epsilon (else 1e-05)"
    assert f"# The model's rotary base and norm epsilon are not known to crossflow: {both}." in text
    assert sum("check" in line for line in comments(text)) == 1


def test_learned_positions_have_no_base():
    text = text_of("gpt2.json", "megatron")
    assert "--norm-epsilon 1e-05" in text
    assert "rotary" not in text


def test_scaled_positions_are_told():
    text = text_of("llama-3.1-405b.json", "megatron")
    assert "--rotary-base 500000" in text
    assert "# The model's file has rope_scaling, which no flag here says: add it." in text


@pytest.mark.parametrize(
    ("model", "kind", "sentence"),
    [
        ("llama3-8b", "torchtitan", "# Rotary base and norm epsilon are those of flavour 8B: check them against your model's."),
        (
            "mixtral-8x7b.json",
            "deepspeed",
            "# The model's file has rotary base 1e+06 and norm epsilon 1e-05: check that mistralai/Mixtral-8x7B",
        ),
        ("olmo2-7b.json", "deepspeed", "# The trainer's model must have rotary base 500000 and norm epsilon 1e-06."),
    ],
)
def test_other_frameworks_take_them_from_a_model_of_their_own(model, kind, sentence):
    assert sentence in text_of(model, kind)


def test_a_model_of_the_hub_brings_its_own():
    assert "check" not in text_of("llama3-8b", "deepspeed")
