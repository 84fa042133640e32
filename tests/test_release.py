"""What a release holds: addresses, a description that works elsewhere, examples, notes, and an installation without heavy packages."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import crossflow
from crossflow.__main__ import main
from crossflow.answers.catalogue.examples import about, command_of, example, examples, needed
from crossflow.answers.study.reading import read_study
from crossflow.base import packages
from crossflow.base.errors import CrossflowError

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = PROJECT["urls"]["Source"]
LEFT_OUT = ("scipy", "networkx", "optuna", "cmaes", "matplotlib", "pandas", "pyarrow")


def module_at(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def described(monkeypatch):
    name = "hatchling.metadata.plugin.interface"  # which builds have, and this environment need not
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[name].MetadataHookInterface = object
    return module_at(ROOT / "hatch_build.py").absolute


LOCKED = [line for line in (ROOT / ".ci" / "locked.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
PINNED = re.compile(r"([\w.-]+)==([\w.]+)(?: ; (.+))?")
OPTIONAL = ("jax",)  # not installed by .ci/run


def locked(python, system="Linux"):
    """Versions that are locked for a Python on a system."""
    words = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": system.lower(), "platform_system": system}
    found = {}
    for line in LOCKED:
        name, version, marker = PINNED.fullmatch(line).groups()
        if marker is None or Marker(marker).evaluate(words):
            assert name not in found, name
            found[name] = Version(version)
    return found


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_all_that_is_asked_for_is_locked(python):
    versions = locked(python)
    extras = [one for name, listed in PROJECT["optional-dependencies"].items() if name not in OPTIONAL for one in listed]
    for text in [*PROJECT["dependencies"], *extras]:
        asked = Requirement(text)
        if asked.name != "crossflow":
            assert asked.specifier.contains(versions[canonicalize_name(asked.name)]), (text, versions.get(asked.name))
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]


def test_what_builds_a_release_is_locked_with_its_digests():
    lines = (ROOT / ".ci" / "build.txt").read_text(encoding="utf-8")
    names = re.findall(r"^([\w.-]+)==\S+(?: ; .*)? \\$", lines, re.MULTILINE)
    assert {"build", "hatchling", "cyclonedx-bom"} <= {*names}
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", lines)) >= len(names)
    assert "--require-hashes -r .ci/build.txt" in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


def test_links_of_a_description_are_addresses(described):
    page = "[a](docs/a.md#b) ![p](p.png) [out](https://x.org) [here](#b) [`c`](c.py)\n```sh\n[k](k.md)\n```\n"
    page += '<img src="q.png"> [![p](p.png)](d.md)'
    blob, raw = f"{SOURCE}/blob/v1", f"{SOURCE.replace('github.com', 'raw.githubusercontent.com')}/v1"
    assert described(page, SOURCE, "1").split("\n") == [
        f"[a]({blob}/docs/a.md#b) ![p]({raw}/p.png) [out](https://x.org) [here](#b) [`c`]({blob}/c.py)",
        "```sh", "[k](k.md)", "```", f'<img src="{raw}/q.png"> [![p]({raw}/p.png)]({blob}/d.md)',
    ]  # fmt: skip


def test_every_link_of_the_description_leads_to_a_file(described):
    text = described((ROOT / "README.md").read_text(encoding="utf-8"), SOURCE, "1")
    found = re.findall(rf"{SOURCE.replace('github.com', '(?:github|raw.githubusercontent).com')}/(?:blob/)?v1/([^)#\s\"]+)", text)
    assert len(found) > 20
    assert [path for path in found if not (ROOT / path).exists()] == []
    assert re.findall(r"\]\((?!https://|#)[^)]+\)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)) == []


def test_the_address_stands_in_one_place():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["repository-code"] == SOURCE
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= {*PROJECT["urls"]}


def test_notes_of_a_release_are_its_section_of_the_changelog():
    notes = module_at(ROOT / ".ci" / "notes.py").notes
    assert notes("0.17.0").startswith("**Training**\n- NEW schedule `dualpipe`")
    assert "0.16.0" not in notes("0.17.0")
    with pytest.raises(KeyError):
        notes("9.9.9")


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.stem)
def test_forms_and_workflows_can_be_read(path):
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert data.keys() & {"jobs", "body", "blank_issues_enabled"}
    scripts = [step["run"] for job in data.get("jobs", {}).values() for step in job["steps"] if "run" in step]
    assert all((ROOT / name).exists() for script in scripts for name in re.findall(r"\.ci/[\w.]+", script))


# ------------------------------------------------------------------------------------------ examples


@pytest.mark.cases(24)
@pytest.mark.slow
@pytest.mark.parametrize("name", examples())
def test_every_example_is_written_with_what_it_names(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "example", name]) == 0
    path = Path("tutorial/run.yaml" if name == "tutorial" else f"{name}.yaml")
    if command_of(path) == "study":
        assert read_study(path).spec.name
    elif command_of(path) == "schedule":
        assert crossflow.schedule(path).to_dict()["jobs"]
    elif name != "broken":
        assert crossflow.predict(path).score.buildable[0]
    assert about(path)


def test_an_example_brings_the_files_that_its_files_name():
    assert [path.name for path in needed(example("my-run"))] == ["my-run.yaml", "my-cluster.yaml", "my-accelerator.yaml"]


def test_examples_are_copied_once_unless_forced(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "example", "llama"]) == main(["init", "example", "llama"]) == 0  # the same bytes
    Path("llama.yaml").write_text("mine\n", encoding="utf-8")
    assert main(["init", "example", "llama"]) == 2
    assert Path("llama.yaml").read_text(encoding="utf-8") == "mine\n"
    assert main(["init", "example", "lama"]) == 2
    assert "did you mean 'llama'?" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ a light install

LIGHT = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {LEFT_OUT}:
            raise ModuleNotFoundError(f"No module named {{name}}", name=name)
sys.meta_path.insert(0, Absent())
import importlib.util
find, importlib.util.find_spec = importlib.util.find_spec, lambda name: None if name in {LEFT_OUT} else find(name)
import json, os
import crossflow
from crossflow.edges.cli import explain, explore, plan, predict, study, timeline  # which have nearly all modules
crossflow.predict("docs/examples/llama.yaml").to_dict()  # what is read and worked out once, the forks share
from crossflow.answers.explanation import alternatives
alternatives.SEARCHED, alternatives.REFINED = 300, 40  # a short search has the same modules
from tests.forks import command
for line in sys.stdin:
    words, log = json.loads(line)
    if not (child := os.fork()):
        os._exit(command(words, os.getcwd(), *(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(2))))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def light():
    """A process without the heavy packages, which reads commands and runs each in a fork."""
    with subprocess.Popen([sys.executable, "-c", LIGHT], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def lightly(light, tmp_path_factory):
    """Exit status of a command, and what it wrote."""

    def run(words):
        log = tmp_path_factory.mktemp("light") / "log"
        light.stdin.write(json.dumps(([word.replace("~", " ") for word in words.split()], str(log))) + "\n")
        light.stdin.flush()
        return int(light.stdout.readline()), log.read_text(encoding="utf-8")

    return run


@pytest.mark.cases(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["predict docs/examples/llama.yaml", "predict docs/examples/serving.yaml", "plan docs/examples/llama.yaml",
     "explain docs/examples/case-study.yaml", "timeline docs/examples/llama.yaml --text", "list", "show h100-sxm",
     "explore docs/examples/gemm-h100.yaml --export {out}/page.html",
     "study docs/examples/plans.yaml --set plots=[] --set scenario.system.nodes=4 scenario.workload.model=gpt2-345m --out {out}/study"],
)  # fmt: skip
def test_commands_run_without_heavy_packages(lightly, words, tmp_path):
    status, said = lightly(words.format(out=tmp_path))
    assert status == 0, said


PICTURES = "pictures need matplotlib, which is not installed; run: pip install 'matplotlib'"
SEARCHERS = "the searchers tpe, cma-es and nsga2 need optuna, which is not installed; run: pip install 'optuna'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [("study technology-scaling --out {out}/new", PICTURES), ("timeline docs/examples/llama.yaml -o {out}/new.png", PICTURES),
     ("study docs/examples/divide.yaml --set plots=[] --set searches.tpe={{searcher:~tpe}} --out {out}/new", SEARCHERS)],
)  # fmt: skip
def test_what_is_missing_is_named_before_anything_is_written(lightly, words, sentence, tmp_path):
    status, said = lightly(words.format(out=tmp_path))
    assert (status, said.splitlines()[-1]) == (2, f"crossflow: {sentence}")
    assert not list(tmp_path.iterdir())


def test_the_light_install_is_that_of_the_package():
    names = {re.match(r"[\w-]+", one)[0] for one in PROJECT["dependencies"]}
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    line = re.search(r"<!-- light -->\n```sh\npip install (.*?) &&", page)[1]
    assert {*line.split()} == names - {*LEFT_OUT}
    assert {*packages.NEEDS} == {*LEFT_OUT}


def test_another_missing_module_is_not_explained_away():
    assert packages.lacking(ModuleNotFoundError("no", name="crossflow.nothing")) is None
    with pytest.raises(ModuleNotFoundError):
        packages.needed("no_such_module_at_all")
    with pytest.raises(CrossflowError, match="not installed"):
        raise CrossflowError(packages.lacking(ModuleNotFoundError("no", name="matplotlib.figure")))
