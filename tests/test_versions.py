"""Files that crossflow wrote earlier: read as they are, read as migrated, or refused with the cure."""

import json
import shutil
from pathlib import Path

import pytest
import schemas

import crossflow
from crossflow.answers.study.records import start
from crossflow.answers.study.schema import schema
from crossflow.base import versions
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.moved import RENAMED
from crossflow.base.versions import FILE_FORMATS, FileFormat, migrated, number, refusal
from crossflow.edges.explore.study import StudyPage
from crossflow.edges.explore.study_rows import read_record
from crossflow.program.file import document_of, read_program

# Folders of a study that the versions of their names wrote: four points of a Llama 2 7B on eight H100.
EARLIER = Path(__file__).parent / "data" / "formats"


@pytest.mark.parametrize("earlier", sorted(EARLIER.iterdir()), ids=lambda path: path.name)
def test_studies_of_earlier_versions_are_shown_with_their_age(earlier):
    record = read_record(earlier)
    assert record["schema"] == FILE_FORMATS["study"].version
    shown = StudyPage(folder=earlier, source=None)
    page = shown.start()
    assert page["rows"] == 4
    assert page["age"].startswith(f"run by crossflow {earlier.name}.0, whose predictions may differ")
    written = [json.loads(line)["step_time_s"] for line in (earlier / "points.jsonl").read_text(encoding="utf-8").splitlines()]
    assert shown.found(record).columns["step_time_s"].values.tolist() == pytest.approx(written, rel=1e-12)


def test_a_program_of_0_12_is_read_as_it_was_written():
    path = EARLIER / "0.12" / "mlp.program.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(document_of(read_program(path)))) == written


def test_a_run_of_another_version_is_not_gone_on_with(tmp_path):
    shutil.copytree(EARLIER / "0.12", tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(CrossflowError, match=r"a different version \(0\.12\.0, now 9\.9\); .* without --resume into another folder"):
        start(tmp_path / "run", {"name": "bandwidth", "study": "of another digest", "version": "9.9"}, resume=True)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_study_of_a_later_version_is_refused_with_the_cure(tmp_path):
    shutil.copytree(EARLIER / "0.17", tmp_path / "later")
    record = json.loads((tmp_path / "later" / "run.json").read_text(encoding="utf-8"))
    (tmp_path / "later" / "run.json").write_text(json.dumps({**record, "schema": 9}), encoding="utf-8")
    with pytest.raises(
        CrossflowError, match="its format is 9, of a later crossflow, and this one reads 0 to 1; install a newer crossflow, or"
    ):
        read_record(tmp_path / "later")


def test_a_program_of_a_later_version_is_refused_at_its_place(tmp_path):
    own = {"kind": "program", "version": 2, "dtype": "bf16", "kernels": [], "ops": []}
    (tmp_path / "later.json").write_text(json.dumps(own), encoding="utf-8")
    with pytest.raises(SpecError, match="version: its format is 2, of a later crossflow, and this one reads 1; install a newer"):
        read_program(tmp_path / "later.json")
    (tmp_path / "later.json").write_text(json.dumps({**own, "version": True}), encoding="utf-8")
    with pytest.raises(SpecError, match="version: the number of its format: expected 1, got True"):
        read_program(tmp_path / "later.json")


def test_migrations_run_one_after_the_other_from_the_file_s_own_version(monkeypatch):
    steps = {0: lambda data: {"a": data["b"], "schema": 1}, 1: lambda data: {**data, "a": 2 * data["a"], "schema": 2}}
    three = FileFormat(version=2, migrations=steps, again="write it again")
    monkeypatch.setattr(versions, "FILE_FORMATS", {"three": three})
    assert migrated("three", {"b": 4}, "here", found=0) == {"a": 8, "schema": 2}
    assert migrated("three", {"a": 4, "schema": 1}, "here") == {"a": 8, "schema": 2}
    assert migrated("three", {"a": 4, "schema": 2}, "here") == {"a": 4, "schema": 2}
    monkeypatch.setattr(versions, "FILE_FORMATS", {"three": FileFormat(version=2, migrations={1: steps[1]}, again="write it again")})
    with pytest.raises(CrossflowError, match="here: its format is 0, of an earlier crossflow, and this one reads 1 to 2; write it again"):
        migrated("three", {"b": 4}, "here", found=0)


def test_every_format_reads_itself_and_can_be_made_again():
    for kind, one in FILE_FORMATS.items():
        assert refusal(kind, number(kind)[one.key]) is None
        assert set(one.migrations) == set(range(one.oldest, one.version))
        assert one.again
        assert one.since


@pytest.mark.parametrize("version", schemas.held())
def test_no_key_of_a_release_is_lost_without_a_word(version):
    for kind, before in schemas.held()[version].items():
        gone = schemas.lost(before, schemas.paths(schema(kind)))
        assert {path.removesuffix(".value").rpartition(".")[2] for path in gone} <= set(RENAMED), kind
    assert not schemas.lost(before, before)
    key = next(iter(before))
    assert schemas.lost({**before, "gone": set(), key: {"1"}}, {**before, key: {"2"}}) == [f"{key} = 1", "gone"]


def test_a_key_that_was_renamed_says_its_new_name():
    tiles = {"template": "dgx-h100", "execution": {"tiles": {"cache_bytes_per_clock": 64}}}
    with pytest.raises(SpecError, match=r"unknown key 'cache_bytes_per_clock'; since 0.19 it is cache_bytes_per_flop: divide"):
        crossflow.from_dict({"system": tiles, "workload": "llama3-8b", "strategy": "tp8"})


@pytest.mark.parametrize(
    ("where", "key", "said"),
    [
        (
            ("attention", "flash", "prefill"),
            "softmax",
            "since 0.19 the device says this as exponentials, next to its units; leave it out here",
        ),
        (("experts", "triton-vllm", "bf16"), "fill", "since 0.19 layers of experts have none; leave it out"),
    ],
)
def test_a_key_that_libraries_had_says_what_became_of_it(where, key, said):
    given = {key: 1}
    for name in reversed(("execution", "libraries", *where)):
        given = {name: given}
    with pytest.raises(SpecError, match=f"unknown key '{key}'; {said}"):
        crossflow.from_dict({"system": {"template": "dgx-h100", **given}, "workload": "llama3-8b", "strategy": "tp8"})


def test_output_says_its_format():
    made = crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"})
    assert crossflow.predict(made).to_dict()["provenance"]["schema"] == FILE_FORMATS["output"].version
