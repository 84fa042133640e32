"""Names of what is shipped are read in any letter case, with `_` for `-`, and are told as they are shipped."""

import json

import pytest
import yaml

import crossflow
from crossflow.__main__ import main
from crossflow.answers.catalogue.sheets import look_up
from crossflow.answers.explanation.parameters import parameters
from crossflow.answers.study.reading import read_study
from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError, folded, known_name
from crossflow.hardware.technology.library import KINDS, load_library
from crossflow.program import Product, ProgramBuilder
from crossflow.program.file import write_program

STEP = {"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8", "software": "megatron-core"}
DESIGN = {"system": "reference-training", "workload": "lstm-16k", "strategy": "d8"}


def test_no_two_shipped_names_of_a_kind_differ_in_letter_case_alone():
    for kind in files.KINDS:
        names = files.catalogue(kind)
        assert len({folded(name) for name in names}) == len(names)


def test_a_name_that_may_mean_two_lists_both():
    assert known_name("hbm3", ["HBM3", "hbm3"]) == "hbm3"
    with pytest.raises(CrossflowError, match=r"^'Hbm3' may mean 'HBM3' or 'hbm3'; write it as one of them, letter by letter$"):
        known_name("Hbm3", ["HBM3", "hbm3"])


def test_a_scenario_resolves_to_the_names_that_are_shipped():
    written = {"system": "DGX_H100", "workload": {"model": "LLaMA3-8B"}, "strategy": "tp8", "software": {"like": "Megatron_Core"}}
    assert crossflow.load(written).to_dict() == crossflow.load(STEP).to_dict()
    assert crossflow.predict(written).to_dict()["provenance"] == crossflow.predict(STEP).to_dict()["provenance"]
    settings = {"system.template": "H100-IB-Cluster", "system.nodes": 1, "software": "PyTorch"}
    assert crossflow.load(STEP, settings).to_dict()["system"]["template"] == "h100-ib-cluster"
    assert crossflow.load(STEP, settings).to_dict()["software"] in ("pytorch", {"like": "pytorch"})


def test_technology_is_named_as_its_library_names_it():
    other = {"system.technology.logic": "n5", "system.technology.memory": "hbm3", "system.techlib": "STANDARD"}
    same = {"system.technology.logic": "N5", "system.technology.memory": "HBM3", "system.techlib": "standard"}
    found, known = crossflow.load(DESIGN, other), crossflow.load(DESIGN, same)
    assert found.to_dict() == known.to_dict()
    assert found.system.technology == known.system.technology
    assert found.system.budgets.area == known.system.budgets.area  # of the division for that node and memory
    assert [one.path for one in parameters(found)] == [one.path for one in parameters(known)]
    changed = crossflow.load(DESIGN, {"techlib.memory.hbm3.access_latency": "80 ns"})
    assert changed.to_dict()["techlib"] == {"memory": {"HBM3": {"access_latency": "80 ns"}}}
    assert changed.library.memory["HBM3"].access_latency == pytest.approx(80e-9)


def test_an_entry_named_twice_is_refused_at_its_place(tmp_path):
    file = tmp_path / "s.yaml"
    own = {"memory": {"HBM3": {"access_latency": "80 ns"}, "hbm3": {"access_latency": "90 ns"}}}
    file.write_text(yaml.safe_dump({**DESIGN, "techlib": own}))
    with pytest.raises(SpecError, match=r"s\.yaml:\d+: techlib\.memory\.hbm3: 'HBM3' stands beside it and means the same"):
        crossflow.load(file)


def test_points_and_studies_take_names_in_any_case():
    nodes = {"system.technology.logic": ["n5", "N7"], "system.technology.memory": ["hbm3", "hbm4"]}
    score = crossflow.evaluate(crossflow.load(DESIGN), nodes)
    assert dict(score.points) == {"system.technology.logic": ("N5", "N7"), "system.technology.memory": ("HBM3", "HBM4")}
    score = crossflow.sweep(STEP, {"workload.model": ["Llama2-7B", "LLAMA3-8B"]})
    assert score.points["workload.model"] == ("llama2-7b", "llama3-8b")
    sweep = {"system.technology.memory": ["hbm3", "HBM4"], "techlib.memory.hbm3.access_latency": ["80 ns", "90 ns"]}
    values = read_study({"name": "s", "scenario": DESIGN, "sweep": sweep}).values
    assert values["system.technology.memory"] == ["HBM3", "HBM4"]
    assert "techlib.memory.HBM3.access_latency" in values


def test_a_component_of_a_library_is_shown_as_that_library_has_it():
    """One of every kind of every shipped library, by its whole name; several libraries have components of one name."""
    shown = 0
    for library in files.catalogue("techlibs"):
        for kind in KINDS:
            for name in load_library(library).names(kind)[:1]:
                sheet = look_up(f"{library}/{kind}/{name}")
                assert (sheet.name, sheet.kind) == (name, f"{kind.replace('_', '-')} of technology library {library}")
                shown += 1
    assert shown > 20


def test_a_file_is_shown_as_what_it_is(tmp_path):
    """A model of Hugging Face, a program, or what else stands in it."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
              "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}  # fmt: skip
    (tmp_path / "model.json").write_text(json.dumps(config))
    built = ProgramBuilder(name="steps")
    built.compute("up", Product(m=64, n=64, k=64))
    write_program(built.build(), tmp_path / "step.program.json.gz")
    (tmp_path / "notes.yaml").write_text(yaml.safe_dump({"name": "mine"}))
    kinds = {name: look_up(str(tmp_path / name)).kind for name in ("model.json", "step.program.json.gz", "notes.yaml")}
    assert kinds == {"model.json": "Hugging Face model", "step.program.json.gz": "program", "notes.yaml": "file"}


def test_show_finds_units_of_lists_in_any_case():
    for written, name in {
        "DGX-H100": "dgx-h100", "Llama3-70B": "llama3-70b", "Transformer": "transformer", "Megatron_Core": "megatron-core",
        "hbm3": "HBM3", "Standard/Memory/hbm3": "HBM3", "STANDARD": "standard",
    }.items():  # fmt: skip
        assert look_up(written).name == look_up(name).name == name


@pytest.mark.thorough
@pytest.mark.slow
def test_the_command_line_takes_any_case(capsys):
    assert main(["predict", "--model", "LLAMA3-70B", "--on", "H100-IB-Cluster", "--nodes", "2", "--json"]) == 0
    other = capsys.readouterr().out
    assert main(["predict", "--model", "llama3-70b", "--on", "h100-ib-cluster", "--nodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(other)
    assert main(["init", "Training", "-o", "-"]) == 0
    assert "workload:" in capsys.readouterr().out


def test_names_of_own_files_stay_as_they_are(tmp_path):
    (tmp_path / "Mine.yaml").write_text("template: DGX-H100\n")
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**STEP, "system": "Mine.yaml"}))
    assert crossflow.load(tmp_path / "s.yaml").to_dict()["system"] == {"template": "Mine.yaml"}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**STEP, "system": "mine.yaml"}))
    with pytest.raises(SpecError, match=r"system\.template: unknown template 'mine\.yaml'"):
        crossflow.load(tmp_path / "s.yaml")


def test_components_of_a_library_name_nodes_in_any_case(tmp_path):
    standard = yaml.safe_load(files.find("techlibs", "standard").read_text())
    library = {
        "name": "mine", "extends": "standard",
        "sources": standard["sources"], "compute": {"slow": {**standard["compute"]["volta-tensor-core"], "node": "n12"}},
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(library))
    assert load_library(str(tmp_path / "mine.yaml")).compute["slow"].node == "N12"
