"""The command line: what each command prints, and how it fails."""

import io
import json
import os
import subprocess
import sys
import tracemalloc
import types
from pathlib import Path

import pytest
from rich.console import Console
from sampled import every

import crossflow
from crossflow.__main__ import main
from crossflow.answers.study.run import run_study
from crossflow.base import files
from crossflow.base.errors import Problem, SpecError
from crossflow.base.units import parse
from crossflow.base.units import show as show_number
from crossflow.edges.cli import list as listing
from crossflow.edges.cli import page, parser, show

CONTRACT = {
    "step_time_s", "feasible", "reason", "breakdown_s", "communication_s", "memory", "throughput", "mfu", "energy_j",
    "power_w", "bound_by", "architecture", "provenance",
}  # fmt: skip
HEAVY = ("numpy", "pydantic", "rich", "matplotlib", "pint", "yaml", "scipy", "networkx", "optuna")
SCENARIO = """\
system: {template: pathfinder}
workload: {model: lstm-16k}
strategy: CR-8-d64
"""
STUDY = """\
name: small
scenario: {system: {template: pathfinder, devices: 512}, workload: {model: lstm-16k}, strategy: d512}
sweep:
  system.technology.memory: [HBM2, HBM4]
columns: [step_time_s, feasible]
plots: []
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text(SCENARIO)
    return str(path)


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return str(path)


def shell(*words, **options):
    return subprocess.run([sys.executable, "-m", "crossflow", *words], capture_output=True, text=True, check=False, **options)


# ------------------------------------------------------------------------------------------ start


def test_help_imports_nothing_heavy():
    code = "import sys; from crossflow.edges.cli import parser; from crossflow.__main__ import main; parser.build()\n"
    code += f"print([name for name in {HEAVY} if name in sys.modules])\n"
    # Only quantities in other units than those that files are mostly written in need pint; predictions need no solver, drawing or tables.
    code += "main(['predict', '--model', 'llama2-7b', '--on', 'dgx-h100', '--json'])\n"
    code += f"print([name for name in {HEAVY[3:]} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert (said[0], said[-1]) == ("[]", "['yaml']")


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(f"    {command} " in text for command in ("list", "show", "predict", "explain", "study", "validate", "bench"))


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"crossflow {crossflow.__version__}\n"


def test_settings_may_follow_one_flag_or_several():
    words = ["predict", "--set", "a=1", "b=2", "s.yaml", "--set", "c=3"]
    arguments = parser.parse(words)
    assert arguments.settings == ["a=1", "b=2", "c=3"]
    assert arguments.scenario == Path("s.yaml")


# ------------------------------------------------------------------------------------------ list


def test_list_names_all_kinds(out):
    text = out("list")
    for name in (
        "techlibs",
        "deepflow-2024",
        "pathfinder",
        "h100-sxm",
        "dgx-h100",
        "lstm",
        "gemm",
        "lstm-16k",
        "studies",
    ):
        assert f"{name}" in text.split()


def test_list_json_holds_the_kind_asked_for(out):
    found = json.loads(out("list", "templates", "--json"))
    assert list(found) == ["templates"]
    by_name = {entry["name"]: entry for entry in found["templates"]}
    assert by_name["v100"]["group"] == "generated"
    assert by_name["h100-sxm"] == {
        "name": "h100-sxm", "group": "datasheet device", "title": "NVIDIA H100 SXM5 80 GB",
        "file": str(files.find("templates", "h100-sxm")),
    }  # fmt: skip


def test_list_families_names_what_files_of_hugging_face_call_themselves(out):
    """Only where it is asked for: they are many, and no names of crossflow."""
    found = json.loads(out("list", "families", "--json"))["families"]
    by_name = {entry["name"]: (entry["group"], entry["title"]) for entry in found}
    assert by_name["llama"] == ("family", "")
    assert by_name["FluxTransformer2DModel"] == ("family", "of diffusers")
    assert by_name["kimi_k25"] == ("like another", "read like kimi_k2")
    assert by_name["jetmoe"][0] == "refused"
    assert "families" not in json.loads(out("list", "--json"))


MISTAKEN = [
    ("--on=forecast-rubin", "'forecast-rubin' is a forecast of a chip, and no template; `crossflow show forecast-rubin` has what it holds"),
    ("--on=nvidia-hopper", "'nvidia-hopper' is a family of devices, and no template; `crossflow show nvidia-hopper` has what it holds"),
    ("--set=software=dgx-a100", "'dgx-a100' is a system, and no software stack; `crossflow show dgx-a100` has what it holds"),
    ("--set=workload.model=dgx-h100", "'dgx-h100' is a system, and no model; `crossflow show dgx-h100` has what it holds"),
    ("--set=workload.serving.prompt=9", "unknown key 'prompt'; did you mean 'workload.prompt'?"),
    ("--set=workload.serving.concurrency=9", "unknown key 'concurrency'; did you mean 'workload.global_batch'?"),
]


@pytest.mark.parametrize(("words", "sentence"), MISTAKEN)
def test_what_stands_elsewhere_is_told(refused, words, sentence):
    system = [] if words.startswith("--on") else ["--on=dgx-h100"]
    assert refused("predict", "--model", "llama3-8b", "--task", "serving", *system, words).endswith(f": {sentence}\n")


def test_a_scenario_in_the_place_of_a_system_is_told(refused, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("system: {template: dgx-h100}\nworkload: {model: llama3-8b}\nstrategy: tp8\n")
    told = "this is a scenario and no system; give what its section `system` holds, or the scenario by itself"
    assert refused("predict", "--model", "llama3-8b", "--on", str(path)) == f"{path}:1: system: {told}\n"


def test_list_puts_a_name_on_each_line_of_a_pipe(out):
    lines = out("list", "models").splitlines()
    assert lines[0] == "models"
    assert len(lines) == 1 + len(listing.entries("models"))


@pytest.mark.parametrize("kind", ["techlibs", "templates", "studies"])
def test_titles_are_those_of_the_files(kind):
    for entry in listing.entries(kind)[:4]:
        assert entry.title == files.read_yaml(entry.file).data.get("title", "")


# ------------------------------------------------------------------------------------------ show


@pytest.mark.parametrize("name", ["HBM3", "memory/HBM3", "standard/memory/HBM3"])
def test_show_component_by_any_of_its_names(out, name):
    sheet = json.loads(out("show", name, "--json"))
    figures = {figure["path"]: figure for figure in sheet["figures"]}
    assert figures["nominal_frequency"]["value"] == "6.4 GHz"
    assert (figures["nominal_frequency"]["si"], figures["nominal_frequency"]["unit"]) == (6.4e9, "Hz")
    assert sheet["sources"]["jesd238"].startswith("JEDEC JESD238")


def test_show_marks_projections_and_gives_their_range_and_source(out):
    text = out("show", "HBM3")
    line = next(line for line in text.splitlines() if "dynamic_energy_per_bit" in line)
    assert line.split() == ["dynamic_energy_per_bit", "~", "4.0", "pJ/bit", "3.3", "..", "5.0", "pJ/bit", "derived", "derived"]
    assert "also in deepflow-2024/memory/HBM3" in text


@pytest.mark.slow
@pytest.mark.parametrize("library", ["standard", "deepflow-2024"])
def test_show_techlib_has_a_citation_for_every_number(library):
    sheet = show.look_up(library)
    assert len(sheet.figures) > 300
    assert all(figure.source in sheet.sources and figure.unit for figure in sheet.figures)
    assert "no citation in the file" not in sheet.sources.values()


def test_show_generated_template_with_its_architecture(out):
    text = out("show", "pathfinder")
    for words in ("deepflow-code", "derived from its budgets", "link to nodes", "limited by", "Budgets", "Sources"):
        assert words in text
    found = json.loads(out("show", "pathfinder", "--json"))["architecture"]
    assert found["memory.capacity"] == 32 * 2**30
    assert {use["resource"] for use in found["budgets"]} == {"area", "power", "perimeter"}


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_show_datasheet_device_and_system(out):
    assert "3.35 TB/s" in out("show", "h100-sxm")
    text = out("show", "dgx-h100")
    assert "450 GB/s" in text
    assert "from h100-sxm.yaml" in text


def test_show_keeps_equal_keys_of_two_files_apart():
    sheet = show.look_up("h100-sxm")
    fits = [key for key in sheet.sources if key.startswith("fit")]
    assert len({sheet.sources[key] for key in fits}) == len(fits) > 1


def test_show_models_and_studies(out):
    assert "30510298368" in out("show", "lstm-16k")
    assert "adam" in out("show", "lstm")
    assert "N12, N10, N7" in out("show", "technology-scaling")


def test_show_a_file(out, scenario):
    assert "CR-8-d64" in out("show", scenario)


def test_show_reads_a_library_of_ones_own_as_predictions_do(tmp_path, out, refused):
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\nextends: standard\nsources: {me: ours}\nmemory:\n  HBM4: {device_capacity: {value: 80 GiB, source: me}}\n")
    assert "mine  technology library" in out("show", str(mine))
    mine.write_text(mine.read_text().replace("80 GiB", "80 GHz"))
    assert "expected a quantity in B, got '80 GHz'" in refused("show", str(mine))
    mine.write_text(mine.read_text().replace("HBM4: {", "HBM9: {like: HBM4, "))
    assert "memory.HBM9.like: an entry has all of its figures itself; copy those of `crossflow show memory/HBM4`" in refused(
        "show", str(mine)
    )


def test_a_library_that_is_like_another_one_is_told_to_extend_it(tmp_path, refused):
    """It was told of every key that the other library has."""
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ntitle: mine\nlike: standard\nsources: {}\nmemory: {HBM3: {}}\n")
    told = refused("predict", "--model", "llama3-8b", "--on", "reference", "--set", f"system.techlib={path}")
    assert told.startswith(f"{path}:3: system.like: a library begins with another one by `extends`: write extends: standard (with ")
    assert told.count("\n") == 1
    told = refused("predict", "--model", "llama3-8b", "--on", "reference", "--set", "techlib.like=standard")
    assert "system.techlib names a library, which begins with another one by `extends`" in told


def test_show_takes_the_folder_of_a_model(out):
    folder = Path(__file__).parents[1] / "docs" / "examples" / "tutorial"
    assert "Hugging Face model" in out("show", str(folder))


@pytest.mark.slow
def test_show_every_name_that_list_gives():
    for kind in ("techlibs", "templates", "models", "studies"):
        for entry in every(6, list(listing.entries(kind))):
            assert show.sections(show.look_up(entry.name))


@pytest.mark.parametrize(
    ("name", "guess"),
    [("HBM33", "HBM3"), ("memory/HBM33", "memory/HBM3"), ("pathfindr", "pathfinder"), ("lstm-16", "lstm-16k")],
)
def test_show_unknown_name_suggests_one(refused, name, guess):
    expected = f"crossflow: unknown name '{name}'; did you mean '{guess}'?; `crossflow list` gives all names\n"
    assert refused("show", name) == expected


# ------------------------------------------------------------------------------------------ predict


def test_predict_json_holds_the_contract(out, scenario):
    import crossflow

    found = json.loads(out("predict", scenario, "--json"))
    assert set(found) >= CONTRACT
    assert found == json.loads(json.dumps(crossflow.predict(crossflow.load(scenario)).to_dict()))
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-9)


def test_predict_page_says_what_json_says(out, scenario):
    text, found = out("predict", scenario), json.loads(out("predict", scenario, "--json"))
    for section in ("Where the step goes", "Communication", "Memory", "Architecture", "Budgets"):
        assert f"\n{section}" in text
    assert text.startswith("case  lstm on 512 devices of pathfinder, strategy CR-8-d64\n")
    for figure in (found["step_time_s"], *found["breakdown_s"].values()):
        assert f" {show_number(figure, 's')}" in text
    assert f"{show_number(found['memory']['total_bytes'], 'B')} of 32 GiB per device" in text
    assert f"bound by    {found['bound_by'][0]['resource']} " in text
    assert found["provenance"]["inputs"]["system"] in text


def test_predict_settings_change_the_result(out, scenario):
    narrow = ["predict", scenario, "--json", "--set", "system.technology.memory=HBM4", "strategy=d512"]
    assert json.loads(out(*narrow))["system"]["strategy"] == "d512"


def test_predict_infeasible_is_an_answer(out, scenario):
    words = ["predict", scenario, "--set", "strategy=d512"]
    found = json.loads(out(*words, "--json"))
    assert (found["feasible"], found["memory"]["fits"]) == (False, False)
    text = " ".join(out(*words).split())
    assert f"infeasible: {found['reason']}" in text
    assert "GiB of 32 GiB per device" in text


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of the model, not of the command
def test_predict_time_without_end(out, scenario):
    words = ["predict", scenario, "--set", "system.budgets.power_shares.inter_link=0"]
    text = out(*words)
    assert "never ends" in text
    assert not any(words in text for words in ("inf s", "Communication", "By layer type"))  # parts of nothing
    assert json.loads(out(*words, "--json"))["step_time_s"] is None


def test_predict_one_device(out, scenario):
    text = out("predict", scenario, "--set", "strategy=d1", "workload={model: gemm, m: 512, n: 512, k: 512}")
    assert text.startswith("case  gemm on one device of pathfinder, strategy d1")
    assert "Communication" not in text


@pytest.mark.slow
def test_pages_in_a_pipe_are_plain_and_fit_100_columns(scenario):
    unsaid = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = shell("predict", scenario, env={**unsaid, "FORCE_COLOR": "1", "PYTHONIOENCODING": "utf-8"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize(("said", "width"), [("70", 70), ("140", 140), ("0", 100), ("", 100), ("wide", 100)])
@pytest.mark.parametrize("terminal", [False, True])
def test_pages_are_as_wide_as_columns_says(monkeypatch, said, width, terminal):
    monkeypatch.setenv("COLUMNS", said)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    if terminal and width == 100:
        monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((width, 40)))
    assert page.columns() == width


@pytest.mark.slow
def test_pages_survive_an_ascii_terminal(scenario):
    done = shell("predict", scenario, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "####" in done.stdout
    assert "?" not in done.stdout


# ------------------------------------------------------------------------------------------ study, validate, bench


def test_study_table_on_stdout_files_in_the_log(capsys, study, tmp_path):
    assert main(["study", study, "--out", str(tmp_path / "o")]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split() == ["memory", "step_time_s", "feasible"]
    assert captured.out.splitlines()[2].split()[0] == "HBM4"
    assert f"wrote {tmp_path / 'o' / 'points.csv'}\n" in captured.err
    assert "\r" not in captured.err


def test_study_json(out, study, tmp_path):
    found = json.loads(out("study", study, "--out", str(tmp_path / "o"), "--json", "--set", "name=other"))
    assert [point["system.technology.memory"] for point in found["points"]] == ["HBM2", "HBM4"]
    made = run_study(study, out=tmp_path / "o", resume=True, settings=["name=other"])
    assert found == made.to_dict()
    assert list(found) == ["name", "summary", "points", "notes", "files"]
    assert found["points"] == [json.loads(line) for line in (tmp_path / "o" / "points.jsonl").read_text().splitlines()]


def test_study_shipped_by_name_and_by_path(monkeypatch, tmp_path):
    from crossflow.edges.cli.study import locate

    monkeypatch.chdir(tmp_path)
    assert locate("technology-scaling") == locate("studies/technology-scaling.yaml") == files.find("studies", "technology-scaling")
    (tmp_path / "technology-scaling").write_text("name: own")
    assert locate("technology-scaling") == Path("technology-scaling")


def test_study_interrupted_keeps_its_points(monkeypatch, capsys, study):
    import crossflow.edges.cli.study as command

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_study", interrupt)
    assert main(["study", study]) == 130
    kept = "crossflow: interrupted; finished points are kept, and the same command with --resume goes on from them\n"
    assert capsys.readouterr().err == kept


def test_study_progress_on_a_terminal_only(monkeypatch, capsys):
    from crossflow.edges.cli.progress import progress

    with progress("points", best=True) as report:
        report(1, 2, "5 s")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("points", best=True) as report:
        report(1, 2, "5 s")
        report(2, 2, "4 s")
    shown = capsys.readouterr().err
    assert all(part in shown for part in ("points", "2/2", "best 4 s"))


def test_a_long_table_is_cut_on_a_terminal_and_whole_in_a_pipe(out, monkeypatch, tmp_path, study):
    import crossflow.edges.cli.study as command

    monkeypatch.setattr(command.page, "SHOWN", 1)
    assert "HBM4" in out("study", study, "--out", str(tmp_path))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    cut = out("study", study, "--out", str(tmp_path))
    assert "HBM4" not in cut
    assert f"the first 1 of 2 rows; all are in {tmp_path / 'points.csv'}" in cut


@pytest.mark.parametrize("rows", [[], [["~1.5 s", "N7", "-"], ["20 ms", "日本", ""], ["-", "é", "7"]]])
def test_plain_lines_are_those_of_the_layout(monkeypatch, capsys, rows):
    monkeypatch.setattr(page, "_BLOCK", 2)
    headers = ["time", "a name", "n"]
    page.emit(*page.columns_of(headers, rows), unbroken=True)
    laid_out = capsys.readouterr().out
    page.write_rows(headers, iter(rows))
    assert capsys.readouterr().out == laid_out


@pytest.mark.slow
def test_plain_lines_hold_little_but_their_text(monkeypatch):
    monkeypatch.setattr("sys.stdout.write", len)
    peaks = []
    for rows in (10_000, 40_000):
        tracemalloc.start()
        page.write_rows(["a", "b"], ([f"{i} ms", "0.25"] for i in range(rows)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 2 * 30_000 * len("40000 ms0.25")


def test_study_into_a_folder_that_cannot_be(refused, study, tmp_path):
    (tmp_path / "file").write_text("")
    complaint = refused("study", study, "--out", str(tmp_path / "file" / "o"))
    assert complaint.startswith(f"crossflow: cannot write {tmp_path}")
    assert complaint.count("\n") == 1


REPORT = {
    "data": "d",
    "tables": {
        "gemm": {
            "n": 3, "skipped": 2, "skipped_reasons": {"no such device": 2}, "notes": [],
            "median_abs_error": 0.05, "mean_abs_error": 0.1, "p90_abs_error": None, "bias": -0.02,
            "rank_correlation": 0.9,
            "by": {"device": {"a40": {"n": 1, "median_abs_error": 0.05}}},
        }
    },
}  # fmt: skip


def test_validate_table(monkeypatch, out):
    import crossflow.edges.cli.validate as command

    monkeypatch.setattr(command, "validate", lambda data: types.SimpleNamespace(to_dict=lambda: REPORT))
    lines = out("validate", "--data", "d").splitlines()
    assert lines[0] == "gemm  relative errors of 3 rows, 2 skipped"
    assert lines[2].split() == ["all", "3", "5.0", "%", "10.0", "%", "-", "-2.0", "%", "0.900"]
    assert lines[3].split()[:3] == ["device", "a40", "1"]
    assert lines[4].strip() == "2 skipped: no such device"
    assert json.loads(out("validate", "--json")) == REPORT


def test_validate_tells_the_commonest_reasons():
    from crossflow.edges.cli.validate import skipped

    reasons = {f"reason {i}": i for i in range(1, 9)}
    assert skipped({"skipped_reasons": reasons})[0] == "8 skipped: reason 8"
    assert skipped({"skipped_reasons": reasons})[-1] == "6 skipped for 3 more reasons (--json)"
    assert skipped({}) == []


def test_validate_measured_products(out, tmp_path):
    header = "source,device,dtype,m,n,k,time_us\n"
    (tmp_path / "gemm.csv").write_text(header + "vidur-2024,a100-80gb,fp16,4096,4096,4096,600\n")
    found = json.loads(out("validate", "--data", str(tmp_path), "--json"))
    assert found["tables"]["gemm"]["n"] + found["tables"]["gemm"]["skipped"] == 1


def test_bench_table(monkeypatch, out):
    from crossflow import edges

    figures = {
        "points": {"value": 12345.6, "unit": "1/s", "meaning": "design points"},
        "warm": {"value": 0.00817, "unit": "s", "meaning": "one prediction"},
    }
    fake = types.ModuleType("crossflow.edges.bench")
    fake.run = lambda: figures
    monkeypatch.setitem(sys.modules, "crossflow.edges.bench", fake)
    monkeypatch.setattr(edges, "bench", fake, raising=False)
    monkeypatch.delitem(sys.modules, "crossflow.edges.cli.bench", raising=False)
    assert [line.split() for line in out("bench").splitlines()] == [
        ["points", "12,346", "1/s", "design", "points"],
        ["warm", "8.17", "ms", "one", "prediction"],
    ]
    assert json.loads(out("bench", "--json")) == figures
    sys.modules.pop("crossflow.edges.cli.bench")


# ------------------------------------------------------------------------------------------ failing


def test_no_command(refused):
    assert refused() == "crossflow: the following arguments are required: COMMAND (see crossflow --help)\n"


def test_wrong_words(refused):
    expected = "crossflow study: argument --jobs: expected a positive whole number, got '0' (see crossflow study --help)\n"
    assert refused("study", "s.yaml", "--jobs", "0") == expected


def test_missing_file(refused):
    assert refused("predict", "no.yaml") == "no.yaml: cannot be read: No such file or directory\n"


def test_every_problem_on_its_line_and_a_count(refused, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text("system: {template: pathfinder, devces: 8}\nworkload:\n  model: lstm-16k\n  hiden: 3\nstrategy: Q\n")
    lines = refused("predict", str(path)).splitlines()
    assert lines[-1] == "crossflow: 3 problems"
    assert lines[1] == f"{path}:4: workload.hiden: unknown key 'hiden'; did you mean 'hidden'?"
    assert len(lines) == 4


def test_clash_of_strategy_and_system(refused, scenario):
    expected = f"{scenario}:3: strategy: strategy CR-8-d64 needs 512 devices (kp1 8 x dp 64), but the system has 7"
    expected += "; system.nodes=512 makes it 512"
    assert refused("predict", scenario, "--set", "system.devices=7") == f"{expected} (with --set system.devices=7)\n"


def _raising(monkeypatch, error):
    def run(arguments):
        raise error

    monkeypatch.setattr(parser, "handler", lambda arguments: run)


def test_one_problem_has_no_count(monkeypatch, refused):
    _raising(monkeypatch, SpecError([Problem(file="a.yaml", line=3, path="x", message="bad")]))
    assert refused("list") == "a.yaml:3: x: bad\n"


def test_os_error_is_one_sentence(monkeypatch, refused):
    _raising(monkeypatch, PermissionError(13, "Permission denied", "/root/x"))
    assert refused("list") == "crossflow: /root/x: Permission denied\n"


def test_value_error_of_crossflow_is_the_users(monkeypatch, refused):
    monkeypatch.setattr(parser, "handler", lambda arguments: lambda arguments: parse("3", "B"))
    assert refused("list") == "crossflow: expected a quantity in B, got the bare number 3; write the unit\n"


@pytest.mark.parametrize("error", [ValueError("of a library"), KeyError("x"), ZeroDivisionError()])
def test_an_unexpected_exception_keeps_its_traceback(monkeypatch, error):
    _raising(monkeypatch, error)
    with pytest.raises(type(error)):
        main(["list"])


def test_interrupted_elsewhere(monkeypatch, capsys):
    _raising(monkeypatch, KeyboardInterrupt())
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "crossflow: interrupted\n"


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("words", [["show", "standard"], ["show", "standard", "--json"]])
def test_a_reader_that_leaves_is_no_error(words):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "crossflow", *words]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


# ------------------------------------------------------------------------------------------ bars


@pytest.mark.parametrize(("share", "filled"), [(0.0, ""), (0.5, "████"), (0.515625, "████▏"), (1.0, "████████"), (7.0, "████████")])
def test_bar_fills_its_share(monkeypatch, share, filled):
    monkeypatch.setattr(page, "fancy", lambda: True)
    assert page.bar(share, 8, track=True).plain == filled.ljust(8, "·")


def test_stacked_bar_is_as_wide_as_it_is_told(monkeypatch):
    monkeypatch.setattr(page, "fancy", lambda: True)
    parts = [(0.25, ("a", "")), (0.01, ("b", "")), (0.5, ("c", ""))]
    assert page.stacked(parts, 8, track=True).plain == "aabccc··"
    assert page.stacked([(0.7, ("a", "")), (0.7, ("b", ""))], 10).plain == "aaaaaaabbb"


@pytest.mark.parametrize("width", [70, 80, 100])
def test_page_fits_its_terminal(monkeypatch, scenario, width):
    import crossflow
    from crossflow.edges.cli import predict

    prediction = crossflow.predict(crossflow.load(scenario))
    monkeypatch.setattr(page, "columns", lambda: width)
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(predict.breakdown(prediction), predict.communication(prediction), predict.memory(prediction))
    for name, time in prediction.score.breakdown.items():
        assert f" {show_number(time[0], 's')} " in captured.get(), name
    assert "…" not in captured.get()


# ------------------------------------------------------------------------------------------ plans, and scenarios without a file


SMALL = "system: {template: dgx-h100}\nworkload: {model: llama3-8b, global_batch: 32}\nstrategy: auto\n"
QUESTION = ("--model", "llama3-8b", "--on", "dgx-h100", "--batch", "32")


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def printed(capsys, *words):
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_plan_prints_the_contract(capsys, small):
    told = json.loads(printed(capsys, "plan", small, "--top", "3", "--json"))
    assert [len(told["plans"]), told["tried"] >= told["fitting"] >= 3] == [3, True]
    for one in told["plans"]:
        assert {"strategy", "step_time_s", "feasible", "reason", "memory", "mfu"} <= set(one)
        assert {"total_bytes", "capacity_bytes", "fits", "margin", "tight"} <= set(one["memory"])
    times = [one["step_time_s"] for one in told["plans"]]
    assert times == sorted(times)
    made = json.loads(printed(capsys, "predict", small, "--json"))
    assert told["chosen"] == made["system"]["strategy"]
    assert made["auto"]["fitting"] == told["fitting"]


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
def test_the_page_of_plans_keeps_to_the_terminal(capsys, monkeypatch, small, width):
    monkeypatch.setenv("COLUMNS", str(width))
    page_ = printed(capsys, "plan", small, "--set", "strategy=tp8-sp")
    assert max(map(len, page_.splitlines())) <= width
    for words in ("strategies tried", "Best plans", "Why others fail", "The scenario's own strategy", "system.operation.price"):
        assert words in page_


@pytest.mark.slow
def test_the_page_of_plans_tells_money_where_a_price_is_known(capsys, small):
    page_ = printed(capsys, "plan", small, "--set", "system.operation.price=2 USD/hour")
    assert "USD/M tokens" in page_
    assert "no price is known" not in page_
    assert "no price is known; give one: --set 'system.operation.price=2 USD/hour'" in printed(capsys, "predict", small)
    assert "USD per million tokens" in printed(capsys, "predict", small, "--set", "system.operation.price=2 USD/hour")


@pytest.mark.slow
def test_the_page_says_what_would_help_where_nothing_fits(capsys):
    page_ = printed(capsys, "plan", "--model", "llama3-70b", "--on", "dgx-h100", "--batch", "32")
    assert "0 fit" in page_
    assert "Nearest to fitting" in page_
    assert "What would help" in page_


@pytest.mark.slow
def test_predict_flags_little_memory(capsys, small):
    needed = json.loads(printed(capsys, "predict", small, "--json", "--set", "strategy=dp8-full"))["memory"]["total_bytes"]
    words = ("--set", "strategy=dp8-full", f"system.levels.memory.capacity={needed / 0.97:.0f} B")
    assert "tight: less than 10.0 % left" in printed(capsys, "predict", small, *words)


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
@pytest.mark.usefixtures("short_divisions")
@pytest.mark.parametrize("command", ["predict", "plan", "explain", "timeline", "events"])
def test_standard_input_is_a_scenario_and_a_model_on_a_system_needs_no_file(capsys, monkeypatch, small, command):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(Path(small).read_bytes())))
    expected, read, asked = (json.loads(printed(capsys, command, *words, "--json")) for words in ((small,), ("-",), QUESTION))
    for key in ("step_time_s", "plans", "value", "to_profile_s"):
        assert read.get(key) == expected.get(key)
    for key in ("step_time_s", "plans", "value"):
        assert asked.get(key) == expected.get(key)


@pytest.mark.thorough
@pytest.mark.slow
def test_assumptions_are_printed(capsys):
    words = ("predict", *QUESTION[:4])
    assert "assumed: global_batch 1,024 of 8,192 tokens each: the model's own; --batch changes it" in printed(capsys, *words)
    assert len(json.loads(printed(capsys, *words, "--json"))["assumptions"]) == 2


@pytest.mark.thorough
@pytest.mark.slow
def test_a_folder_of_hugging_face_is_a_model(capsys, tmp_path):
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32000,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "llama-small.json").write_text(json.dumps(config))
    for model in (tmp_path, tmp_path / "config.json", tmp_path / "llama-small.json"):
        told = json.loads(printed(capsys, "predict", "--model", str(model), "--on", "dgx-h100", "--json"))
        assert told["feasible"]
        assert told["assumptions"][1:] == [
            "sequence 8,192, less than the model allows; --set workload.sequence=N changes it",
            "global_batch 512: about 4 million tokens; --batch changes it",
        ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            (),
            "crossflow: give a SCENARIO.yaml, a launch file (--from), "
            "or a model and a system: crossflow plan --model llama3-70b --on dgx-h100",
        ),
        (("--nodes", "2"), "crossflow: --model is missing beside --nodes 2; give it, such as --model llama3-70b, or a SCENARIO.yaml"),
        (
            ("--model", "gpt2-xl"),
            "crossflow: --on is missing beside --model gpt2-xl; give it, such as --on h100-ib-cluster, or a SCENARIO.yaml",
        ),
        (("s.yaml", "--batch", "8"), "crossflow: --batch is for questions without a file; with s.yaml write --set workload.global_batch=8"),
        (
            (*QUESTION, "--nodes", "1", "--devices", "8"),
            "crossflow: give --nodes or --devices, not both: a system has a fixed number of devices in a node",
        ),
    ],
)
def test_questions_that_are_none_are_refused(capsys, words, sentence):
    assert main(["plan", *words]) == 2
    assert capsys.readouterr().err.strip() == sentence


@pytest.mark.slow
def test_a_strategy_for_other_devices_is_refused_by_predict_and_left_out_by_plan(capsys):
    sentence = "strategy dp3 needs 3 devices (tp 1 x cp 1 x dp 3 x pp 1), but the system has 8"
    assert main(["predict", *QUESTION, "--strategy", "dp3"]) == 2
    assert capsys.readouterr().err.strip() == f"command line: strategy: {sentence}"
    told = json.loads(printed(capsys, "plan", *QUESTION, "--strategy", "dp3", "--top", "1", "--json"))
    assert told["notes"] == [f"the scenario's own strategy is not compared: {sentence}"]


@pytest.mark.parametrize("margin", ["1", "-0.1", "much", "5.5.5%"])
def test_a_margin_is_a_share(margin):
    with pytest.raises(SystemExit) as ended:
        main(["plan", "s.yaml", f"--margin={margin}"])
    assert ended.value.code == 2
