"""The importer where torch is missing."""

import importlib.metadata


def test_a_missing_torch_is_one_sentence(monkeypatch, tmp_path, refused):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    said = refused("import", "model.py:build", "-o", str(tmp_path / "model.program.json"))
    assert said == "crossflow: crossflow import needs torch, which is not installed; run: pip install 'crossflow[torch]'\n"
    assert not list(tmp_path.iterdir())


def test_the_file_has_a_name_of_programs(refused):
    assert refused("import", "model.py:build", "-o", "model.yaml") == (
        "model.yaml: a program is JSON; give its file a name that ends in .program.json.gz or .program.json\n"
    )
