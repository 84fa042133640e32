"""A file that could not be written is refused before anything is read or computed for it."""

import os

import pytest

from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError
from crossflow.base.files import check_writable, write_text

NOWHERE = "none.yaml"  # a scenario that is not there: what is told is told before it is read
COMMANDS = {
    "plan": ["plan", NOWHERE, "--export", "megatron", "-o"],
    "init": ["init", "training", "-o"],
    "explain": ["explain", NOWHERE, "--plot"],
    "timeline": ["timeline", NOWHERE, "-o"],
    "timeline --compare": ["timeline", NOWHERE, "--compare", NOWHERE, "-o"],
    "events": ["events", NOWHERE, "-o"],
    "schedule": ["schedule", NOWHERE, "-o"],
    "explore": ["explore", NOWHERE, "--export"],
    "calibrate": ["calibrate", NOWHERE, "--system", "dgx-h100", "-o"],
    "calibrate --learn": ["calibrate", NOWHERE, "--system", "dgx-h100", "--learn", "--events", NOWHERE, "-o"],
    "import": ["import", NOWHERE, "-o"],
    "trace": ["trace", NOWHERE, "-o"],
    "trace --write-overheads": ["trace", NOWHERE, "--write-overheads"],
}
ENDINGS = {
    "plan": "x.sh",
    "explain": "x.png",
    "timeline": "x.json",
    "schedule": "x.csv",
    "timeline --compare": "x.png",
    "import": "x.program.json",
    "trace": "x.json",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_place_that_takes_no_file_is_refused_first(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    words, ending = COMMANDS[name], ENDINGS.get(name, "x.yaml")
    assert main([*words, f"file/deeper/{ending}"]) == 2
    told = capsys.readouterr()
    assert told.err == f"crossflow: cannot write file/deeper/{ending}: Not a directory; choose another folder with {words[-1]}\n"
    (tmp_path / ending).mkdir()
    assert main([*words, ending]) == 2
    assert capsys.readouterr().err == f"crossflow: {ending} is a folder; name a file in it with {words[-1]}\n"


@pytest.mark.parametrize("name", ["plan", "init", "calibrate", "calibrate --learn"])
def test_a_file_that_is_there_is_refused_first(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ENDINGS.get(name, "x.yaml")
    file.write_text("mine")
    assert main([*COMMANDS[name], file.name]) == 2
    assert capsys.readouterr().err == f"crossflow: {file.name} exists; give --force to replace it, or another name with -o\n"
    assert file.read_text() == "mine"


def test_folders_that_are_missing_are_made_later_and_nothing_is_left(tmp_path):
    check_writable(tmp_path / "a" / "b" / "x.yaml", "-o")
    check_writable(tmp_path / "a" / "b", "-o", folder=True)
    assert not list(tmp_path.iterdir())


def test_what_is_no_regular_file_is_not_replaced(tmp_path, exactly):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CrossflowError, match=exactly(f"{tmp_path / 'pipe'} is no regular file; name a file with -o")):
        check_writable(tmp_path / "pipe", "-o")
    with pytest.raises(CrossflowError, match="it is a device or a pipe, not a file"):  # as a device would be, for everyone
        write_text(tmp_path / "pipe", "text")
    assert main(["predict", "--model", "llama3-8b", "--on", "dgx-h100", "-o", str(tmp_path / "pipe")]) == 2
    assert (tmp_path / "pipe").is_fifo()
