"""Tables of predictions that are kept between runs of the scripts."""

import os
import subprocess
import sys

import numpy as np
import pytest

from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.kept import KeptTables
from crossflow.evidence.validation.report import Table

GEMM = "source,device,dtype,m,n,k,time_us\nvidur-2024,a100-80gb,fp16,4096,4096,4096,600\n"


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "gemm.csv").write_text(GEMM)
    return folder


def a_table(value):
    return Table(name="t", measured=np.ones(1), predicted=np.full(1, value), groups={}, skipped={})


def refused():
    raise AssertionError("the table is kept")


def test_a_table_is_predicted_once(tmp_path, data):
    kept = KeptTables.of(tmp_path / "kept", data)
    assert kept.table("t", lambda: a_table(2.0)).predicted[0] == 2.0
    assert KeptTables.of(tmp_path / "kept", data).table("t", refused).predicted[0] == 2.0
    assert not list((tmp_path / "kept").glob("*.part"))


def test_other_data_and_other_contents_of_files_make_other_tables(tmp_path, data):
    kept = KeptTables.of(tmp_path / "kept", data)
    other = kept.instead({data / "family.yaml": "kind: family"})
    assert len({kept.state, other.state, kept.instead({data / "family.yaml": "kind: other"}).state}) == 3
    assert kept.instead({data / "family.yaml": "kind: family"}) == other
    (data / "gemm.csv").write_text(GEMM.replace("600", "500"))
    assert KeptTables.of(tmp_path / "kept", data).state != kept.state


def test_validate_takes_kept_tables_for_its_own(tmp_path, data):
    kept = KeptTables.of(tmp_path / "kept", data)
    first = validate(data, kept=kept)
    assert {file.name.rpartition("-")[0] for file in (tmp_path / "kept").iterdir()} >= {"gemm", "watts"}
    again = validate(data, kept=kept)
    assert again.to_dict() == first.to_dict() == validate(data).to_dict()


def test_another_process_finds_what_one_has_kept(tmp_path):
    """Whatever order its sets have."""
    module, found = KeptTables.__module__, f"KeptTables.of(Path({str(tmp_path)!r}), Path('.')).state"
    code = f"from pathlib import Path; from {module} import KeptTables; print({found})"

    def state(seed):
        own = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=own).stdout

    assert len({state(seed) for seed in "012"}) == 1
