"""Published goodput of runs against the closed form: gates, and what each row's inputs are."""

from pathlib import Path

import numpy as np
import pytest

from crossflow.base.errors import SpecError
from crossflow.evidence.validation.goodput import ASSUMED, goodput_table
from crossflow.evidence.validation.tables import shipped

HEAD = "run,gpus,gpus_per_node,days,unexpected,planned,goodput,source\n"


def test_published_runs_are_within_three_points():
    table = goodput_table(shipped())
    off = dict(zip(table.items, table.predicted - table.measured, strict=True))
    assert set(off) == {"llama3-405b", "opt-175b", "rsc-1", "byterobust-9600"}
    assert max(map(abs, off.values())) < 0.03
    assert table.groups["inputs"].count(ASSUMED) == 3


def test_rsc_1_is_a_formula_to_first_order():
    """1 - nodes x rate x (restart + interval / 2) of the time between saves, to first order; saves of no time leave 5 points too much."""
    table = goodput_table(shipped())
    found = table.predicted[list(table.items).index("rsc-1")]
    failing = 1536 * 0.0065 / 86400
    assert found == pytest.approx((1 - failing * (300 + 310 / 2)) * 300 / 310, abs=0.003)
    assert 1 - failing * 450 == pytest.approx(0.948, abs=0.001)


def test_rows_that_say_little_have_what_is_assumed_of_all(tmp_path):
    (tmp_path / "goodput.csv").write_text(HEAD + "a,8192,8,30,60,,0.95,mine\nb,8192,8,30,60,,,mine\nc,8192,8,,,,0.9,mine\n")
    table = goodput_table(tmp_path)
    assert table.items == ["a", "c"]
    assert table.skipped == {"no goodput was published": 1}
    assert table.predicted[1] < table.predicted[0] < 1  # 6.5 failures of 1,000 node-days are 200 in 30 days


def test_a_missing_column_is_a_sentence(tmp_path: Path):
    (tmp_path / "goodput.csv").write_text("run,gpus\na,8\n")
    with pytest.raises(SpecError, match="column gpus_per_node is missing"):
        goodput_table(tmp_path)
    (tmp_path / "goodput.csv").write_text(HEAD + "a,many,8,30,60,,0.95,mine\n")
    with pytest.raises(SpecError, match="could not convert string to float"):
        goodput_table(tmp_path)
    assert np.isfinite(goodput_table(shipped()).predicted).all()
