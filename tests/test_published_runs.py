"""Training rates that NVIDIA publishes, beside predictions to which nothing was fitted."""

import csv
from pathlib import Path

import numpy as np
import pytest

from crossflow import from_dict, predict

FILE = Path(__file__).parent / "data" / "nvidia_runs.csv"


def rows():
    with FILE.open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def scenario(row, **workload):
    gpus, domain = int(row["gpus"]), int(row["domain"])
    return from_dict(
        {
            "system": {"template": row["system"], "devices_per_node": domain, "nodes": gpus // domain},
            "workload": {
                "model": row["model"], "global_batch": int(row["global_batch"]), "sequence": int(row["sequence"]), "dtype": row["dtype"],
                **workload,
            },
            "strategy": row["strategy"],
            "software": "nemo",
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def errors():
    """Relative errors of the rate of every row, by kind of model."""
    found = {"dense": [], "experts": []}
    for row in rows():
        rate = float(predict(scenario(row)).score.tokens_per_second[0]) / int(row["gpus"])
        found[row["kind"]].append(rate / float(row["tokens_per_second_per_gpu"]) - 1.0)
    return {kind: np.array(values) for kind, values in found.items()}


@pytest.mark.thorough
@pytest.mark.slow
def test_rates_of_dense_models_in_eight_and_four_bits(errors):
    assert len(errors["dense"]) == 22
    assert np.median(np.abs(errors["dense"])) < 0.07
    assert abs(errors["dense"].mean()) < 0.04
    assert np.abs(errors["dense"]).max() < 0.2


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_rates_of_mixtures_of_experts(errors):
    assert len(errors["experts"]) == 8
    assert np.median(np.abs(errors["experts"])) < 0.2
    assert np.abs(errors["experts"]).max() < 0.45


@pytest.mark.slow
def test_operations_of_a_token_are_those_that_nvidia_counts():
    """The teraflops that are printed beside the rates of NeMo 24.07, to their last digit: the models are the same.

    NeMo counts scores that the causal mask hides.
    """
    printed = [770, 755, 802, 895, 767, 760, 763, 643, 559, 691, 688, 746]
    for row, teraflops in zip(rows(), printed, strict=False):
        model = scenario(row, causal=False).job().model
        needed = 3.0 * model.forward_flops() / int(row["sequence"]) * float(row["tokens_per_second_per_gpu"])
        assert needed / 1e12 == pytest.approx(teraflops, abs=0.8)


def palm(**strategy):
    """PaLM 540B on two pods of 3,072 TPU v4 each, of 12 x 16 x 16, with its whole layout.

    Chowdhery et al., arXiv:2204.02311, Sec. 4 and Table 3: 12-way model and 256-way fully sharded data parallelism in a pod, two pods
    as replicas, one activation a layer kept and the rest rematerialised. The network between pods is that of its 1,536 hosts, which
    burst at 81 Tb/s together: 1.65 GB/s for each of the four chips of a host.
    """
    return from_dict(
        {
            "system": {
                "template": "tpu-v4-pod", "devices_per_node": 3072, "nodes": 2,
                "network": {
                    "intra": {"shape": [12, 16, 16]}, "inter": {"fabric": "ethernet", "topology": "switch", "bandwidth": "1.65 GB/s"},
                },
            },
            "workload": {"model": "palm-540b", "global_batch": 2048},
            "strategy": {
                "tp": 12, "dp": 512, "zero": 3, "shard_group": 256, "micro_batch": 4, "recompute": "full", "sequence_parallel": True,
                **strategy,
            },
            "software": "t5x",
        }
    )  # fmt: skip


def test_palm_on_two_pods_of_tpu_v4():
    """238.3 thousand tokens a second, 46.2 % of the peak rate for the model, 57.8 % with what is computed again (Table 3, Sec. 4.1)."""
    found = predict(palm()).to_dict()
    assert found["feasible"]
    assert found["throughput"]["tokens_per_s"] == pytest.approx(238.3e3, rel=0.1)
    assert found["mfu"] == pytest.approx(0.462, rel=0.1)
    assert found["hfu"] == pytest.approx(0.578, rel=0.1)


def test_palm_fits_because_tensor_ranks_divide_what_a_layer_keeps():
    """Four samples of 2,048 tokens are 302 MB a layer, 36 GB for 118; a twelfth of it is 3 GB."""
    whole, divided = (predict(palm(sequence_parallel=value)).to_dict() for value in (False, True))
    assert (whole["feasible"], divided["feasible"]) == (False, True)
    kept = 118 * 4 * 2048 * 18432 * 2
    assert whole["memory"]["activations_bytes"] - divided["memory"]["activations_bytes"] > kept * 10 / 12


def deepseek(**strategy):
    """DeepSeek-V3 on 2,048 H800, as its report says (arXiv:2412.19437, Sec. 3): 16 stages of DualPipe, experts over 64 GPUs, ZeRO 1.

    H800 are H100 whose NVLink has 400 GB/s, 200 each way. The report does not say how its 61 layers are divided: as even as can be.
    """
    return from_dict(
        {
            "system": {"template": "h100-ib-cluster", "nodes": 256, "network": {"intra": {"bandwidth": "200 GB/s"}}},
            "workload": {"model": "deepseek-v3", "global_batch": 15360, "dtype": "fp8"},
            "strategy": {"pp": 16, "dp": 128, "ep": 64, "zero": 1, "schedule": "dualpipe", **strategy},
            "software": "hai-llm",
        }
    )  # fmt: skip


@pytest.mark.cases(1)
@pytest.mark.parametrize("strategy", [{}, {"stage_layers": "4x15+1"}])
def test_deepseek_v3_on_2048_h800(strategy):
    """180 thousand hours of a GPU for 10^12 tokens (Sec. 1, Table 1), and it fits."""
    found = predict(deepseek(**strategy))
    hours = 2048 / 3600 * 1e12 / float(found.score.tokens_per_second[0])
    assert found.to_dict()["feasible"]
    assert hours == pytest.approx(180e3, rel=0.15)
