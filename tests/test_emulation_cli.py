"""`crossflow emulate` where there is nothing to run."""

import importlib.util
import os

import pytest

from crossflow.edges.cli.parser import parse
from crossflow.evidence.emulation.processes import RunSettings

SYSTEM = ("--world-size", "8", "--system", "dgx-h100")
NOT_REAL = "--real: all ranks run, on the network that they have, and nothing is emulated"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n", encoding="utf-8")
    return str(path)


def test_words_of_a_script_stay_as_they_are():
    words = parse(["emulate", "--world-size", "8", "--", "train.py", "--set", "a=1", "b=2", "--world-size", "3"]).words
    assert words[-6:] == ["train.py", "--set", "a=1", "b=2", "--world-size", "3"][-6:]
    assert parse(["emulate", "--world-size", "8", "train.py", "--json"]).words == ["train.py", "--json"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_without_torch_the_command_says_what_to_install(refused, script):
    assert refused("emulate", *SYSTEM, "--", script) == (
        "crossflow: crossflow emulate needs torch, which is not installed; run: pip install 'crossflow[torch]'\n"
    )


@pytest.mark.cases(20)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (SYSTEM, "which script? write it after the options: crossflow emulate --world-size 1024 --system dgx-h100 -- train.py"),
        ((*SYSTEM, "--", "nowhere.py"), "there is no script nowhere.py"),
        (("--system", "dgx-h100", "--", "SCRIPT"), "how many ranks? give --world-size N, or --nodes N of the system"),
        (("--nodes", "2", "--", "SCRIPT"), "--nodes: nodes of which system? give --system NAME, or --world-size N"),
        (("--world-size", "8", "--", "SCRIPT"), "nothing says how long collectives take; give --system NAME, or --delays FILE with"),
        ((*SYSTEM, "--ranks", "8", "--", "SCRIPT"), "--ranks: there is no rank 8 in a world of 8"),
        ((*SYSTEM, "--ranks", "0,0", "--", "SCRIPT"), "--ranks: rank 0 is given twice in '0,0'"),
        ((*SYSTEM, "--nodes", "2", "--", "SCRIPT"), "--world-size and --nodes both say how many ranks there are; one of them is enough"),
        ((*SYSTEM, "--record", "a.txt", "--", "SCRIPT"), "--record: expected a file that ends in .json or .json.gz, got a.txt"),
        ((*SYSTEM, "--json", "a.json.gz", "--", "SCRIPT"), "--json: expected a file that ends in .json, got a.json.gz"),
        ((*SYSTEM, "--json", "nowhere/a.json", "--", "SCRIPT"), "--json: there is no folder nowhere"),
        ((*SYSTEM, "--record", ".", "--", "SCRIPT"), "--record: . is a folder; give a file"),
        ((*SYSTEM, "--ranks", "a", "--", "SCRIPT"), "--ranks: expected ranks such as 0,7 or 0-3, got 'a'"),
        ((*SYSTEM, "--what-if", "al*2", "--", "SCRIPT"), "what-if 'al*2': unknown word 'al'; did you mean 'all'?"),
        ((*SYSTEM, "--what-if", "rank[0]*2", "--", "SCRIPT"), "what-if rank[0]*2: rank 0 runs for real; only an emulated rank"),
        (("--world-size", "12", "--system", "dgx-h100", "--", "SCRIPT"), "12 devices do not fill nodes of 8"),
        (("--world-size", "8", "--system", "dgx", "--", "SCRIPT"), "unknown template 'dgx'"),
        ((*SYSTEM, "--delays", "nowhere.yaml", "--", "SCRIPT"), "nowhere.yaml: cannot be read: No such file or directory"),
        (("--replay", "nowhere.json"), "nowhere.json: cannot be read: No such file or directory"),
        (("--replay", "nowhere.json", "--", "SCRIPT"), "--replay replays a record, which says the rest; leave out a script"),
        (("--replay", "nowhere.json", "--world-size", "2"), "--replay replays a record, which says the rest; leave out --world-size"),
        (("--replay", "nowhere.json", "--real"), "--replay replays a record, which says the rest; leave out --real"),
        (("--real", "--", "SCRIPT"), "--real: how many ranks? give --world-size N to run them on this machine, or start it with torchrun"),
        (("--real", "--world-size", "2", "--", "nowhere.py"), "there is no script nowhere.py"),
        *(
            (("--real", option, value, "--", "SCRIPT"), f"{NOT_REAL}; leave out {option}")
            for option, value in (
                ("--system", "dgx-h100"),
                ("--delays", "d.yaml"),
                ("--what-if", "all*2"),
                ("--link", "group"),
                ("--nodes", "2"),
                ("--ranks", "1"),
            )
        ),
    ],
)
def test_what_cannot_be_emulated_is_refused(refused, script, words, complaint):
    assert complaint in refused("emulate", *(script if word == "SCRIPT" else word for word in words))


def test_a_launcher_says_how_many_ranks_run_for_real(monkeypatch, refused, script, tmp_path):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    sentence = "crossflow: --real: the launcher has started 4 ranks (WORLD_SIZE); leave out --world-size\n"
    assert refused("emulate", "--real", "--world-size", "4", "--", script) == sentence
    whole = tmp_path / "run.json"
    whole.touch()
    sentence = f"crossflow: --record: {whole} would be read in place of the parts that launched ranks write; remove it\n"
    assert refused("emulate", "--real", "--record", str(whole), "--", script) == sentence


def test_settings_survive_the_environment():
    import json
    from dataclasses import asdict

    settings = RunSettings(world_size=8, rank=7, real=(0, 7), system="dgx-h100", what_if="all*2", link="group")
    assert RunSettings.read(json.dumps(asdict(settings))) == settings


def test_an_emulated_script_keeps_the_number_of_threads(monkeypatch, refused):
    """Crossflow uses one thread itself; a script has what the user gave it."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    refused("emulate")
    assert "OMP_NUM_THREADS" not in os.environ
