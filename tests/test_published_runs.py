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


@pytest.mark.slow
def test_rates_of_dense_models_in_eight_and_four_bits(errors):
    assert len(errors["dense"]) == 22
    assert np.median(np.abs(errors["dense"])) < 0.07
    assert abs(errors["dense"].mean()) < 0.04
    assert np.abs(errors["dense"]).max() < 0.2


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
