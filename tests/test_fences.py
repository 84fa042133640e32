"""Every YAML fence of the documentation is a file that works as it is copied; what is none has another language."""

import gzip
import re
import shutil
from pathlib import Path

import pytest
import yaml

import crossflow
from crossflow.answers.study.reading import read_study
from crossflow.base import files
from crossflow.engine.runs.uneven import load_uneven
from crossflow.evidence.emulation.delays import delays_of
from crossflow.hardware.architecture.system import resolve

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCES = {
    f"{page.relative_to(ROOT)}:{text[: found.start()].count(chr(10)) + 1}": found[1]
    for page in PAGES
    for text in [page.read_text(encoding="utf-8")]
    for found in re.finditer(r"^ *```ya?ml[^\n]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
}
QUICK = ["README.md", "docs/how-to/emulation.md", "docs/how-to/serving.md", "docs/how-to/uncertainty.md"]  # pages


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The examples, and under the names that fences use what a user has: a model's config.json, an imported program, a measured system."""
    shutil.copytree(ROOT / "docs" / "examples", tmp_path, dirs_exist_ok=True)
    config = tmp_path / "tutorial" / "config.json"
    (tmp_path / "path" / "to").mkdir(parents=True)
    for place in ("path/to/config.json", "config.json"):
        shutil.copy(config, tmp_path / place)
    program = (tmp_path / "mlp.program.json").read_bytes()
    (tmp_path / "step.program.json").write_bytes(program)
    (tmp_path / "decoder.program.json.gz").write_bytes(gzip.compress(program))
    (tmp_path / "mine.program.json.gz").write_bytes(gzip.compress(program.replace(b'"tp": 8', b'"dp": 8, "tp": 8')))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "machine.yaml").write_text("kind: system\nname: mine\ndevice: h100-sxm\nnetwork: {host: {bandwidth: 64 GB/s}}\n")
    for name, page in (("cluster.yaml", "docs/tutorial.md"), ("mine.yaml", "docs/how-to/pytorch-model.md")):
        (tmp_path / name).write_text(
            next(text for place, text in FENCES.items() if place.startswith(page) and ("kind: system" in text or name in text))
        )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def works(path):
    """Read a file as what it says it is; whatever is wrong with it is an error."""
    data = yaml.safe_load(path.read_text())
    kind = data.get("kind")
    if kind == "delays":
        return delays_of(2, file=str(path))
    if kind == "uneven":
        return load_uneven(path)
    if kind in ("system", "datasheet", "generated"):
        return resolve(files.read_yaml(path), path.parent)
    if "extends" in data:
        return crossflow.predict(
            crossflow.from_dict({"system": {"template": "reference", "techlib": str(path)}, "workload": "llama3-8b", "strategy": "tp8"})
        )
    if "jobs" in data:
        return crossflow.schedule(path)
    if "requests" in data:
        return crossflow.load(path).requests
    if {"trace", "arrivals", "users", "batch"} & set(data):
        return crossflow.requests(path)
    return crossflow.predict(crossflow.load(path)) if "workload" in data else read_study(path)


@pytest.mark.parametrize(
    "place", [place if place.rpartition(":")[0] in QUICK else pytest.param(place, marks=pytest.mark.slow) for place in FENCES]
)
def test_a_fence_is_a_file(place, folder):
    path = folder / "as-copied.yaml"
    path.write_text(FENCES[place])
    assert works(path) is not None


def test_there_are_fences():
    assert len(FENCES) > 25
    assert all(any(place.startswith(page) for place in FENCES) for page in QUICK)
