"""Help texts in a terminal of 80 columns, and what the program says of itself."""

from __future__ import annotations

import re

import pytest
import typer

from holdfast import __version__
from holdfast.cli.main import app, main

COLUMNS = 80


def docs() -> dict[str, str]:
    """The help text of every command."""
    found: dict[str, str] = {}

    def look(one: typer.Typer, path: str) -> None:
        for command in one.registered_commands:
            assert command.callback is not None
            found[f"{path}{command.name}"] = command.callback.__doc__ or ""
        for group in one.registered_groups:
            assert group.typer_instance is not None
            callback = group.typer_instance.registered_callback
            if callback is not None and callback.callback is not None:
                found[f"{path}{group.name}"] = callback.callback.__doc__ or ""
            look(group.typer_instance, f"{path}{group.name} ")

    look(app, "")
    return found


DOCS = docs()


@pytest.mark.parametrize("command", DOCS)
def test_an_example_is_one_line_on_a_terminal(command):
    """Half a command on the next line is not a command."""
    examples = DOCS[command].partition("Examples:")[2]
    lines = ["Examples:  " + examples.splitlines()[0].strip(), *map(str.strip, examples.splitlines()[1:])]
    assert [line for line in lines if len(line) > COLUMNS - 2] == []


def test_the_check_itself_finds_commands_and_examples():
    assert {"run", "checkpoint list", "savepoint", "peace calibrate"} <= set(DOCS)
    assert sum("Examples:" in text for text in DOCS.values()) > 20


def test_the_program_says_its_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert re.fullmatch(rf"holdfast {re.escape(__version__)}\n", capsys.readouterr().out)


def test_a_scenario_that_is_not_there_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["sim", "--scenario", str(tmp_path / "nope.toml")])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert f"scenario {tmp_path}/nope.toml cannot be read: it does not exist" in told
    assert "Errno" not in told


@pytest.mark.parametrize("words", [("list",), ("verify",), ("show", "u0")])
def test_a_folder_that_does_not_exist_is_no_empty_store(words, tmp_path, capsys):
    url = f"file://{tmp_path}/misspelled"
    with pytest.raises(SystemExit) as end:
        main(["checkpoint", words[0], url, *words[1:]])
    assert end.value.code == 2
    assert f"there is no folder {tmp_path}/misspelled" in capsys.readouterr().err
    assert not (tmp_path / "misspelled").exists()


@pytest.mark.parametrize(
    ("setting", "hint"),
    [('hartbeat = "50 ms"', "Did you mean heartbeat?"), ("zzzz = 1", "docs/configuration.md has all settings.")],
)
def test_a_setting_that_there_is_not_comes_with_the_one_that_was_meant(setting, hint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    with pytest.raises(SystemExit) as end:
        main(["run", "x.py", "--set", setting])
    assert end.value.code == 2
    assert hint in capsys.readouterr().err
