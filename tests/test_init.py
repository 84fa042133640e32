"""Files to begin with: each works as it is written, and speaks of all that may stand in it."""

import json
import re

import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.answers.scenario_file import ScenarioFile
from crossflow.answers.study.reading import read_study
from crossflow.answers.study.spec import StudyFile
from crossflow.base import files
from crossflow.edges.cli.init import FOLDER, KINDS, template
from crossflow.hardware.architecture.template import DatasheetSystem, GeneratedSystem, SystemFields
from crossflow.hardware.technology.components import OffChip
from crossflow.hardware.technology.library import TechLibrary, load_library
from crossflow.workload.dlrm_spec import DlrmSpec, TablesSpec
from crossflow.workload.serving_spec import ServingSpec
from crossflow.workload.spec import TransformerSpec

# What each file annotates; a model of fields in all of them says `docs/files.md` too.
ANNOTATED = {
    "training": (ScenarioFile, TransformerSpec), "serving": (ScenarioFile, TransformerSpec, ServingSpec),
    "recommendation": (ScenarioFile, DlrmSpec, TablesSpec), "design": (ScenarioFile, GeneratedSystem), "device": (DatasheetSystem,),
    "cluster": (SystemFields,), "library": (TechLibrary, OffChip), "study": (StudyFile,),
}  # fmt: skip


def test_every_kind_has_a_file():
    assert {path.stem for path in FOLDER.iterdir()} == set(KINDS) == set(ANNOTATED)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training", "serving", "recommendation", "design"])
def test_scenarios_are_predicted_as_they_are_written(kind):
    found = crossflow.predict(crossflow.load(FOLDER / f"{kind}.yaml"))
    assert found.feasible
    assert not [note for note in found.notes if "changes nothing" in note]  # nothing in a file to begin with is idle


@pytest.mark.parametrize(("kind", "task"), [("device", "prefill"), ("cluster", "training")])
def test_templates_are_systems_of_scenarios(kind, task):
    system = {"template": str(FOLDER / f"{kind}.yaml"), **({"devices": 1} if kind == "device" else {})}
    workload = {"model": "llama3-8b", "global_batch": 32, "sequence": 2048, "task": task}
    data = {"system": system, "workload": workload, "strategy": "dp1" if kind == "device" else "dp32-z2"}
    assert crossflow.predict(crossflow.from_dict(data)).feasible


def test_the_library_has_a_memory_that_a_generated_device_takes(tmp_path, capsys, monkeypatch):
    """As the command says that `init` tells to type."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "library"]) == 0
    words = capsys.readouterr().err.strip().partition("next: crossflow ")[2].split()
    assert main([*words, "--strategy", "tp8-mb64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["feasible"]
    assert any("redivide: {} in a study finds its own" in note for note in found["notes"])


@pytest.mark.thorough
@pytest.mark.slow
def test_the_study_runs(tmp_path):
    assert main(["study", str(FOLDER / "study.yaml"), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "network.png").is_file()


@pytest.mark.parametrize("kind", ANNOTATED)
def test_comments_speak_of_every_field(kind):
    text = template(kind)
    missing = {name for model in ANNOTATED[kind] for name in model.model_fields if not re.search(rf"\b{name}\b", text)}
    assert missing == {"served"} & {name for model in ANNOTATED[kind] for name in model.model_fields}  # only files of models have it
    assert "docs/files.md" in text


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_a_section_has_a_comment_at_it_or_above(kind):
    lines = template(kind).splitlines()
    bare = [line for line in lines if re.match(r"^ {0,4}[a-z_]+: \S", line) and "#" not in line and "{" not in line]
    assert len(bare) <= 6, bare


@pytest.mark.parametrize(
    "setting",
    [
        ("training", "system.operation={price: 2.5 USD/hour, pue: 1.2, carbon_intensity: 400 g/kWh}"), ("training", "workload.frozen=[embedding, layers:0-15]"), ("training", "workload.adapters={rank: 16, targets: [attention], joined: true, base: fp8}"),
        ("training", "strategy={tp: 8, cp: 1, dp: 4, pp: 2, ep: 1, zero: 1, micro_batch: 1, sequence_parallel: true, recompute: none, schedule: 1f1b}"),
        ("serving", "workload.serving.arrival_rate=2.5 1/s"), ("serving", "workload.weight_dtype=int4"),
        ("serving", "workload.serving.speculation={tokens: 2, acceptance: 0.7, cost: 0.02}"), ("serving", "workload.serving.guided={token: 40 us, share: 0.3, overlapped: true}"), ("serving", "workload.serving={prefill: {strategy: tp4, workers: 2}}"),
        ("recommendation", "workload.sharding=auto"), ("recommendation", "workload.experts={count: 16, active: 2}"),
        ("recommendation", "workload.exchange={forward: fp16, backward: fp16}"), ("recommendation", "run={samples: 1e11}"),
        ("design", "system.budgets.node_area=2500 mm2"), ("design", "techlib={memory: {HBM4: {access_latency: 80 ns}}}"),
    ],
)  # fmt: skip
def test_keys_in_comments_can_be_given(setting):
    kind, text = setting
    settings = [
        text,
        *(["strategy={dense: ddp, embedding: mp}"] if "sharding" in text else []),
        *(["strategy=tp8-dp8-z3-sp"] if kind == "training" and not text.startswith("strategy") else []),
    ]
    assert crossflow.load(FOLDER / f"{kind}.yaml", settings)


# Alternatives that need each other, and settings that others need: a search is in the place of a sweep, and so on.
TOGETHER = (("topology", "group", "oversubscription"), ("space", "objectives", "constraints", "searches", "portfolio"))
NEEDED = {
    ("training", "frozen"): ["strategy=tp8-dp8-z3-sp"],
    ("training", "adapters"): ["strategy=tp8-dp8-z3-sp"],
    ("serving", "prefill"): ["workload.serving.chunk=null"],
    ("serving", "experts"): ["workload.serving.chunk=null", "workload.serving.prefill={strategy: tp4, workers: 2}"],
    ("recommendation", "sharding"): ["strategy={dense: ddp, embedding: mp}"],
    ("study", "searches"): ["sweep={}", "plots=[]"],
    ("study", "redivide"): [
        "scenario.system={template: reference-training, devices: 16}",
        "sweep={system.technology.logic: [N5, N3]}",
        "plots=[]",
    ],
}
ALTERNATIVE = re.compile(r"(?m)^( *)# ([a-z_]+)(: (?:\{.*\}|\[.*\]|[^\s;,]+(?: [^\s;,]+)?)(?: +#.*)?)$")


def alternatives(kind):
    """Keys of a file's comments that could stand there as they are written."""
    return [found[2] for found in ALTERNATIVE.finditer(template(kind))]


def test_alternatives_are_found():
    assert {"topology", "group", "operation"} <= {*alternatives("cluster")}
    assert {"space", "searches", "redivide", "uncertainty"} <= {*alternatives("study")}
    assert {"record", "parameters", "node_load"} & {name for kind in KINDS for name in alternatives(kind)} == set()


@pytest.mark.cases(20)
@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind in KINDS for key in alternatives(kind)])
def test_a_commented_alternative_is_accepted_where_it_is_uncommented(kind, key, tmp_path, monkeypatch):
    keys = next((keys for keys in TOGETHER if key in keys), (key,))
    text = ALTERNATIVE.sub(lambda found: f"{found[1]}{found[2]}{found[3]}" if found[2] in keys else found[0], template(kind))
    assert text != template(kind)
    path = tmp_path / f"{kind}.yaml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "measured.csv").write_text("op,shape,dtype,time\ngemm,2048x1024x1024,bf16,20 us\n", encoding="utf-8")
    settings = [setting for one in keys for setting in NEEDED.get((kind, one), ())]
    if kind == "study":
        assert read_study(path, settings)
    elif kind == "library":
        assert load_library(str(path)).component("memory", "MyHBM")
    elif kind in {"device", "cluster"}:
        size = {"devices": 1} if kind == "device" else {}
        system = {"system": {"template": str(path), **size}, "workload": {"model": "llama3-8b", "task": "decode"}}
        assert crossflow.load(system, ["strategy=dp1" if kind == "device" else "strategy=tp8-dp4", *settings])
    else:
        assert crossflow.load(path, settings)


def test_a_file_is_not_replaced_without_force(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "training"]) == 0
    assert capsys.readouterr() == ("", "crossflow: wrote training.yaml; next: crossflow predict training.yaml\n")
    assert main(["init", "training"]) == 2
    assert "exists; give --force" in capsys.readouterr().err
    assert main(["init", "training", "--force"]) == 0
    assert files.read_yaml(tmp_path / "training.yaml").data["name"] == "my-training"


def test_kinds_are_listed_and_printed(capsys):
    assert main(["init"]) == 0
    out = capsys.readouterr().out
    assert all(kind in out and about in out for kind, (about, _) in KINDS.items())
    assert main(["init", "study", "-o", "-"]) == 0
    assert capsys.readouterr().out == template("study")
    assert main(["init", "trainig"]) == 2
    assert "did you mean 'training'?" in capsys.readouterr().err
