"""Words that every command takes: how much it says; completion of shells, and schemas for editors."""

import json
import shutil
import subprocess

import pytest

from crossflow.__main__ import main
from crossflow.answers.study.schema import schema
from crossflow.base.errors import StrategyError, meant
from crossflow.edges.cli import completion, page
from crossflow.parallel.strategy.notation import TRANSFORMER, parse

SCENARIO = "system: pathfinder\nworkload: lstm-16k\nstrategy: d8\n"
STUDY = f"name: s\nscenario:\n  {SCENARIO.strip().replace(chr(10), chr(10) + '  ')}\nsweep: {{system.technology.logic: [N7]}}\n"


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return str(tmp_path / "s.yaml")


@pytest.fixture
def study(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    return str(tmp_path / "study.yaml")


def test_verbose_tells_files_and_time_on_stderr_and_changes_no_data(scenario, capsys):
    assert main(["predict", scenario, "--json"]) == 0
    plain = capsys.readouterr()
    assert main(["predict", scenario, "--json", "-v"]) == 0
    said = capsys.readouterr()
    assert said.out == plain.out
    assert plain.err == ""
    lines = said.err.splitlines()
    assert lines[0] == f"crossflow: read {scenario}"
    assert any(line.endswith("deepflow-2024.yaml") for line in lines)
    assert "s of the processor" in lines[-1]
    assert len(set(lines)) == len(lines)


def test_verbose_shows_where_an_error_arises(scenario, capsys):
    assert main(["predict", scenario, "--set", "system.devices=x", "-v"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.splitlines()[-1].startswith("--set system.devices=x: system.devices: expected a whole number")
    assert main(["predict", scenario, "--set", "system.devices=x"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_quiet_says_errors_alone(study, tmp_path, capsys):
    assert main(["study", study, "--out", str(tmp_path / "o"), "-q"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["study", study, "--out", str(tmp_path / "o")]) == 0
    assert f"wrote {tmp_path / 'o' / 'points.csv'}" in capsys.readouterr().err
    assert main(["study", str(tmp_path / "none.yaml"), "-q"]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_every_command_is_loud_or_quiet_but_not_both(capsys):
    for name, words in completion._commands():
        assert {"-v", "--verbose", "-q", "--quiet"} <= set(words.options), name
    with pytest.raises(SystemExit):
        main(["list", "-v", "-q"])
    assert "not allowed with" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ completion


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["pre"], {"predict"}),
        (["show", "llama3-8"], {"llama3-8b"}),
        (["calibrate", "--system", "dgx-h1"], {"dgx-h100"}),
        (["list", "tech"], {"techlibs"}),
        (["predict", "--verb"], {"--verbose"}),
        (["study", "technology-sc"], {"technology-scaling"}),
    ],
)
def test_bash_completes_commands_options_and_names(tmp_path, capsys, words, found):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "c.bash").write_text(capsys.readouterr().out)
    typed = " ".join(words)
    script = f'. ./c.bash; COMP_WORDS=(crossflow {typed}); COMP_CWORD={len(words)}; _crossflow; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found <= set(done.stdout.split())
    assert all(word.startswith(words[-1]) for word in done.stdout.split())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_hold_commands_and_names(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("predict", "llama3-70b", "dgx-h100", "technology-scaling"))


# ------------------------------------------------------------------------------------------ schemas


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scenario", "study", "cluster"])
def test_a_schema_refers_to_what_it_defines(kind, capsys):
    assert main(["schema", kind]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    named = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert named <= set(found["$defs"])
    assert found == json.loads(json.dumps(schema(kind)))


@pytest.mark.slow
def test_a_schema_knows_the_keys_that_files_take():
    found = schema("scenario")
    system = found["properties"]["system"]["anyOf"][0]
    assert {"template", "nodes", "technology", "budgets", "network"} <= set(system["properties"])
    assert system["additionalProperties"] is False
    assert "required" not in system
    assert {"model", "global_batch", "hidden"} <= set(found["properties"]["workload"]["anyOf"][0]["properties"])


# ------------------------------------------------------------------------------------------ narrow pages


def test_names_break_at_their_dots_and_the_last_columns_are_left_out_first(monkeypatch, capsys):
    rows = [["system.budgets.power_shares.on_chip.l2", "0.125", "+2.7 %", "a long source that nobody needs"]]
    header = ("parameter", "value", "gain", "source")
    monkeypatch.setenv("COLUMNS", "46")
    page.emit(page.grid(rows, (1, 2), header=header, wraps=0))
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 46 for line in lines)
    assert [line.split()[0] for line in lines[1:3]] == ["system.budgets.power_shares", ".on_chip.l2"]
    assert lines[-1] == "left out, because the page is narrow: source"
    monkeypatch.setenv("COLUMNS", "140")
    page.emit(page.grid(rows, (1, 2), header=header, wraps=0))
    assert "nobody needs" in capsys.readouterr().out


def test_a_table_for_a_terminal_keeps_its_first_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "30")
    page.emit(*page.columns_of(["logic", "time", "reason"], [["N7", "1 s", "x" * 40]]), unbroken=True)
    assert capsys.readouterr().out.splitlines() == ["logic  time", "N7      1 s", "", "left out, because the page is narrow: reason"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("predct s.yaml", "crossflow: unknown command 'predct'; did you mean 'predict'? (see crossflow --help)"),
        (
            "predict s.yaml --modle",
            "crossflow predict: unrecognized arguments: --modle; did you mean '--model'? (see crossflow predict --help)",
        ),
        ("plan s.yaml -x", "crossflow plan: unrecognized arguments: -x (see crossflow plan --help)"),
    ],
)
def test_words_that_are_not_taken_name_the_right_one(words, sentence, capsys):
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert (end.value.code, capsys.readouterr().err.strip()) == (2, sentence)


@pytest.mark.parametrize(
    ("words", "what", "lacking", "asked"),
    [
        ("explain llama3-8b", "llama3-8b is a model", "what it runs on", "--model llama3-8b --on dgx-h100"),
        ("predict dgx-b200", "dgx-b200 is a system", "what runs on it", "--model llama3-8b --on dgx-b200"),
    ],
)
def test_a_name_in_the_place_of_a_scenario_is_told_what_to_type(words, what, lacking, asked, capsys):
    assert main(words.split()) == 2
    assert f"{what}, and a scenario also says {lacking}: crossflow predict {asked}; in Python" in capsys.readouterr().err


@pytest.mark.cases(1)
@pytest.mark.parametrize("option", ["-o", "--out", "--output"])
def test_a_study_takes_the_folder_by_the_option_of_other_commands(option, study, tmp_path):
    assert main(["study", study, option, str(tmp_path / "there")]) == 0
    assert (tmp_path / "there" / "points.csv").is_file()


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("fp4", ["fp64", "mxfp4", "nvfp4"], ["nvfp4", "mxfp4"]), ("float16", ["fp16", "bf16"], ["fp16"]),
        ("tensor_parallel", ["tp", "sequence_parallel"], ["tp"]), ("train", ["training", "decode"], ["training"]),
        ("meta-llama/Meta-Llama-3-8B", ["llama3-8b", "llama3-70b"], ["llama3-8b"]),
    ],
)  # fmt: skip
def test_what_the_field_calls_otherwise_is_understood(word, known, found):
    assert meant(word, known) == found


@pytest.mark.parametrize(("given", "meaning"), [
    ("TP8", "tp8"), ("tp=8", "tp8"), ("dp8-fsdp", "z3"), ("tp8-Z1", "z1"), ("tp2-pp4-vpp2", "v2"), ("tp8,pp2", "tp8-pp2"),
    ("TP8 DP4", "tp8-dp4"), ("tp8_pp2", "tp8-pp2"),
])  # fmt: skip
def test_a_strategy_in_other_letters_is_understood(given, meaning):
    with pytest.raises(StrategyError, match=f"is not understood; did you mean '{meaning}'[?]$"):
        parse(given, TRANSFORMER)


def test_an_option_alone_is_told_with_the_degrees_that_it_needs():
    with pytest.raises(StrategyError, match=r"did you mean 'z3' beside degrees, as in 'dp8-z3'[?]$"):
        parse("fsdp", TRANSFORMER)


def test_a_strategy_on_the_command_line_may_be_a_mapping(capsys):
    words = ["predict", "--model", "llama3-8b", "--on", "dgx-h100", "--strategy"]
    assert main([*words, "{tp: 4, dp: 2, recompute: full}"]) == 0
    assert "strategy tp4-dp2-full" in capsys.readouterr().out
    assert main([*words, "{tp: 4, dp: 2, recompute: ful}"]) == 2
    assert "strategy: recompute must be one of none, selective, full, got 'ful'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x.env", "y.yaml", "z.json", "w.csv"])
def test_a_wrong_file_is_not_echoed(name, tmp_path, capsys):
    """What stands in it may be a secret: an error names the line, and keys, no values of other lines."""
    path = tmp_path / name
    path.write_text(
        '{"a": "hunter2"}' if name == "z.json" else 'PASSWORD=hunter2\na: "hunter2\n' if name == "y.yaml" else "PASSWORD=hunter2\n"
    )
    for words in (
        ["predict"],
        ["study"],
        ["explore"],
        ["trace"],
        ["predict", "--on", "dgx-h100", "--from"],
        ["calibrate", "--system", "dgx-h100"],
    ):
        assert main([*words, str(path)]) == 2
    assert "hunter2" not in capsys.readouterr().err


def test_a_prediction_goes_into_a_file(tmp_path, capsys):
    words = ["predict", "--model", "llama3-8b", "--on", "dgx-h100", "--strategy", "tp8"]
    for name in ("p.json", "p.txt"):
        assert main([*words, "-o", str(tmp_path / name)]) == 0
    assert json.loads((tmp_path / "p.json").read_text())["feasible"]
    assert "verdict     feasible" in (tmp_path / "p.txt").read_text()
    assert capsys.readouterr().out == ""


def test_a_step_that_writes_where_prompts_do_not_fit_counts_tokens_and_says_what_reads_them(capsys):
    given = ["--model", "llama3-8b", "--on", "dgx-h100", "--devices", "8", "--strategy", "tp8", "--task", "decode", "--batch", "128"]
    assert main(["predict", *given, "--set", "workload.prompt=16384", "--set", "workload.output=256"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "tokens/s while all requests write" in said
    assert "samples/s" not in said
    assert "prompts cannot be read at once: needs" in said
    assert "workload.task=serving" in said


def test_systems_that_are_compared_may_stand_apart(capsys):
    words = ["compare", "--model", "llama3-8b", "--devices", "8", "--batch", "16", "--set", "workload.sequence=2048", "--on"]
    assert main([*words, "dgx-h100", "dgx-a100"]) == 0
    apart = capsys.readouterr().out
    assert main([*words, "dgx-h100,dgx-a100"]) == 0
    assert capsys.readouterr().out == apart


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "strategy.tp=4"], "strategy: auto chooses all of a strategy, and no key of it can be set; give one, such as tp4-dp2"),
        (["--strategy", "tp4"], "but the system has 8; dp2 beside it takes all of them"),
        (["--strategy", ""], "strategy '': '' is not understood; write degrees and options"),
    ],
)
def test_parts_of_a_strategy_are_told_how_to_be_whole(words, sentence, capsys):
    assert main(["predict", "--model", "llama3-8b", "--on", "dgx-h100", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_one_key_of_a_strategy_is_set_beside_it(capsys):
    assert main(["predict", "--model", "llama3-8b", "--on", "dgx-h100", "--strategy", "tp8", "--set", "strategy.micro_batch=2"]) == 0
    assert "strategy tp8-mb2" in capsys.readouterr().out


@pytest.mark.parametrize("figure", ["21 %", "80 GiB", "3.35 TB/s", "2 USD/hour", "300 ms", "4.2 pJ/bit", "700 W"])
def test_no_line_breaks_between_a_number_and_its_unit(figure, monkeypatch, capsys):
    """Wherever a page ends: the words before the figure fill its lines one letter at a time."""
    for columns in range(40, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        words = f"note: nine of ten of the runs were within {figure}, and one was not"
        for part in (words, page.Text(words)):
            page.emit(page.Group(page.indented(part)))
            assert figure in capsys.readouterr().out, columns


def test_what_a_run_takes_is_told_by_words_that_say_what_it_is(capsys):
    """`devices` and `whole nodes` stood before kilowatt-hours, and `in A100s` before device-hours."""
    asked = ["predict", "--model", "llama3-8b", "--on", "dgx-h100", "--batch", "64", "--strategy", "tp8", "--set", "run.tokens=1e9"]
    assert not main(asked)
    run = capsys.readouterr().out.partition("The whole run\n")[2].partition("\n\n")[0].splitlines()
    labels = [line.strip().split("  ")[0] for line in run]
    assert labels == ["time", "device-hours", "A100-hours", "energy of devices", "energy from the grid"]
