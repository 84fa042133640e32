"""Families without the numbers that were fitted to their own rows."""

import copy

import pytest
import yaml

from crossflow.base import files
from crossflow.evidence.validation.dropping import fitted, instead
from crossflow.evidence.validation.earlier import BEFORE, at_clock, earlier_families, has_earlier, without_fits
from crossflow.evidence.validation.tables import device_architecture

FIT = {"mine": "Fit to rows of this chip", "code": "what the code says"}


def fit(value):
    return {"value": value, "source": "mine"}


def family(own, before, section="attention"):
    """A family of some libraries, after another one."""
    ours, theirs = ({"sources": FIT, "execution": {"libraries": {section: libraries}}} for libraries in (own, before))
    return without_fits(ours, theirs)["execution"]["libraries"][section]


def test_a_fitted_number_is_that_of_the_generation_before_and_a_fact_stays():
    own = {"flash-attention-3": {"decode": {"tile": 64, "start": fit("9 us"), "split": {"value": "1 us", "source": "code"}}}}
    before = {"flash-attention-3": {"decode": {"tile": 32, "start": fit("5 us"), "split": fit("7 us")}}}
    assert family(own, before) == {"flash-attention-3": {"decode": {"tile": 64, "start": "5 us", "split": "1 us"}}}


def test_a_new_library_has_the_numbers_of_what_its_engine_ran_before():
    """SGLang prefers FlashAttention-3 to Triton; TensorRT-LLM ran none of these, so that its kernel has their median."""
    own = {name: {"decode": {"start": fit("9 us")}} for name in ("trtllm-gen-sglang", "trtllm-xqa")}
    before = {
        "triton": {"decode": {"start": fit("3 us")}}, "flash-attention-3": {"decode": {"start": fit("5 us")}},
        "flash-attention-2": {"decode": {"start": fit("4 us")}},
    }  # fmt: skip
    assert family(own, before) == {
        "trtllm-gen-sglang": {"decode": {"start": "5 us"}}, "trtllm-xqa": {"decode": {"start": "4e-06 s"}},
    }  # fmt: skip


def test_what_no_library_before_had_does_nothing():
    """Products in 8 bits by the share of those in 16, a time as none, a factor of some widths as one for all."""
    own = {"flash-attention-3": {"prefill": {"narrow": fit(0.4), "quantise": fit("2 us"), "by_width": {64: fit(0.9)}}}}
    before = {"flash-attention-3": {"prefill": {"matrix": fit(0.6)}}}
    assert family(own, before) == {"flash-attention-3": {"prefill": {"narrow": 0.6}}}


def test_a_further_kernel_that_is_new_takes_the_gap_between_two_of_a_graph():
    """Casts to an 8-bit cache, and the write to it, of a library that had none before; one that was told of keeps its time."""
    own = {"flash-attention-3": {"prefill": {"quantise": fit("9 us"), "write": fit("9 us"), "start": fit("9 us")}}}
    gap = {
        "execution": {"graph_launch": fit("2 us"), "libraries": {"attention": {"flash-attention-3": {"prefill": {"start": fit("5 us")}}}}}
    }
    ours = {"sources": FIT, "execution": {"libraries": {"attention": own}}}
    (found,) = without_fits(copy.deepcopy(ours), gap)["execution"]["libraries"]["attention"].values()
    assert found == {"prefill": {"quantise": "2 us", "write": "2 us", "start": "5 us"}}
    gap["execution"]["libraries"]["attention"]["flash-attention-3"]["prefill"]["write"] = fit("3 us")
    (found,) = without_fits(ours, gap)["execution"]["libraries"]["attention"].values()
    assert found == {"prefill": {"quantise": "2 us", "write": "3 us", "start": "5 us"}}


def test_numbers_of_the_nearest_data_type_go_before_others():
    """Of products in 4 bits those of 8; they are scaled after the same gap, and at the full rate."""
    own = {"fp4-vllm": {"start": fit("9 us"), "quantise": {"start": fit("8 us"), "rate": fit(0.5)}}}
    before = {"cublas": {"start": fit("1 us")}, "cutlass-vllm": {"start": fit("2 us")}}
    assert family(own, before, "products") == {"fp4-vllm": {"start": "2 us", "quantise": {"start": "2 us", "rate": 1}}}


def test_kernels_that_scale_operands_are_counted_and_each_takes_the_gap_of_the_generation_before():
    """One kernel of a new library after the gap of another one that had three of them."""
    own = {"fp4-vllm": {"start": fit("9 us"), "quantise": {"kernels": 1, "start": fit("8 us")}}}
    before = {"cutlass-vllm": {"start": fit("2 us"), "quantise": {"kernels": 3, "start": fit("3 us")}}}
    assert family(own, before, "products") == {"fp4-vllm": {"start": "2 us", "quantise": {"kernels": 1, "start": "3 us"}}}


def test_layers_of_experts_have_numbers_of_their_own_library_first():
    """Code that multiplies in one type reaches the same share of the rate in another; of its types the nearest one counts."""
    own = {"triton-vllm": {"nvfp4": {"start": fit("9 us")}, "bf16": {"start": fit("9 us")}}}
    triton = {"bf16": {"start": fit("3 us")}, "fp8": {"start": fit("5 us")}}
    before = {"triton-vllm": triton, "cutlass-flashinfer": {"nvfp4": {"start": fit("4 us")}}}
    assert family(own, before, "experts") == {"triton-vllm": {"nvfp4": {"start": "5 us"}, "bf16": {"start": "3 us"}}}
    assert family(own, {}, "experts") == {}


def test_a_library_that_others_call_has_the_numbers_of_what_its_makers_ran_before():
    """vLLM calls generated kernels of TensorRT-LLM, which take the place of XQA there. What vLLM adds is what it added before."""
    own = {"trtllm-gen": {"decode": {"start": fit("9 us"), "block": fit("9 us")}}}
    before = {
        "vllm-flash-attention-3": {"decode": {"start": fit("3 us"), "block": fit("3 us")}},
        "trtllm-xqa": {"decode": {"start": fit("5 us"), "block": fit("5 us")}},
    }  # fmt: skip
    assert family(own, before) == {"trtllm-gen": {"decode": {"start": "3 us", "block": "5 us"}}}
    experts = {"cutlass-trtllm": {"fp8": {"start": fit("4 us")}}, "triton-vllm": {"fp8": {"start": fit("3 us")}}}
    assert family({"trtllm-flashinfer": {"fp8": {"start": fit("9 us")}}}, experts, "experts") == {
        "trtllm-flashinfer": {"fp8": {"start": "4 us"}}
    }


def test_an_exchange_of_tokens_that_is_new_keeps_what_its_code_says():
    """DeepEP sends a token once to each node; its rates are those of plain exchanges, and what those do not tell does nothing.

    Two units are one channel at NCCL's rate. Around kernels for many tokens two barriers pass steps to other nodes, and before each of
    them another kernel is launched.
    """
    copies = {"start": fit("9 us"), "rate": fit("9 GB/s"), "forwarded": fit(9)}
    kernel = {"copies": copies, "start": fit("9 us"), "link": fit(0.9), "expert": fit("9 us"), "crowd": fit(9)}
    kernel["node_step"] = fit("9 us")
    own = {
        "deepep": {
            "units": {"value": 20, "source": "code"},
            "dispatch": kernel,
            "fast_dispatch": {"node_step": fit("9 us"), "start": fit("9 us")},
        }
    }
    plain = {"network": {"parameters": {"launch": fit("8 us")}}, "execution": {"libraries": {}}}
    found = without_fits({"sources": FIT, "execution": {"libraries": {"exchange": own}}}, plain)["execution"]["libraries"]["exchange"][
        "deepep"
    ]
    assert found["units"] == 20
    assert found["dispatch"].pop("copies") == {"start": "0 s", "rate": "18.35 GB/s"}
    assert found["dispatch"].pop("node_step") == "2.8e-05 s"
    assert found["fast_dispatch"] == {"node_step": "0 s", "start": "8 us"}
    fabric = yaml.safe_load(files.catalogue("templates", "families")["fabrics"].read_text())["network"]["parameters"]
    assert found["dispatch"] == {"start": "1.6e-05 s", "link": fabric["switch_efficiency"]["value"], "expert": "0 s"}


def test_times_of_kernels_are_counted_in_clocks():
    """Twice the clock halves what was fitted, gaps of captured graphs too; facts, and times of the host, stay."""
    data = {
        "sources": FIT,
        "execution": {
            "kernel_launch": fit("4 us"), "graph_launch": fit("3 us"),
            "tiles": {"fill": fit("1 us"), "split": {"value": "7 us", "source": "code"}},
            "libraries": {"attention": {"triton": {"decode": {"start": fit("6 us"), "matrix": fit(0.5)}}}},
        },
    }  # fmt: skip
    execution = at_clock(data, 0.5)["execution"]
    assert (execution["kernel_launch"]["value"], execution["graph_launch"]["value"]) == ("4 us", "1.5e-06 s")
    assert [number["value"] for number in execution["tiles"].values()] == ["5e-07 s", "7 us"]
    assert [number["value"] for number in execution["libraries"]["attention"]["triton"]["decode"].values()] == ["3e-06 s", 0.5]


@pytest.mark.thorough  # what it runs quicker tests run too
def test_no_number_of_its_own_rows_is_left():
    """Every family after another one can be read, and its devices have none of the numbers that were fitted to them."""
    contents = earlier_families()
    known = files.catalogue("templates", "families")
    for name in BEFORE:
        data = yaml.safe_load(contents[known[name]])
        assert not list(fitted(data))
        assert list(fitted(yaml.safe_load(known[name].read_text())))
    own = device_architecture("h100-80gb").execution.libraries
    with instead(contents):
        left, before = (device_architecture(device).execution.libraries for device in ("h100-80gb", "a100-80gb"))
    kernel, donor = (one.attention["flash-attention-3"].decode for one in (left, before))
    clock = device_architecture("a100-80gb").frequency / device_architecture("h100-80gb").frequency
    assert kernel.start / donor.start == pytest.approx(clock, rel=1e-4)
    assert kernel.matrix == donor.matrix
    assert kernel.widths == own.attention["flash-attention-3"].decode.widths != donor.widths
    assert left.exchange["deepep"].units == own.exchange["deepep"].units
    assert left.exchange["deepep"].dispatch.link != own.exchange["deepep"].dispatch.link


@pytest.mark.parametrize(("device", "late"), [("h100-sxm", True), ("a100-80gb", False), ("mi210", False), ("", False)])
def test_which_devices_have_a_generation_before(device, late):
    assert has_earlier(device) == late
