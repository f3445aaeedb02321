"""The command line: exit codes, and errors in one readable message."""

from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from virtualds import cli
from virtualds.errors import ReadError


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.main, arguments)
    return result.exit_code, result.output


def test_version() -> None:
    code, output = run("--version")
    assert code == 0
    assert version("virtualds") in output


def test_help_lists_each_command() -> None:
    code, output = run("--help")
    assert code == 0
    assert all(name in output for name in cli.main.commands)


def test_demo(tmp_path: Path) -> None:
    code, output = run("demo", "--folder", str(tmp_path / "new"))
    assert code == 0
    assert "identical" in output
    assert (tmp_path / "new" / "picture.png").exists()


def test_an_error_is_a_message_with_its_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, say: object) -> None:
        error = ReadError("2001.nc: 10 of 20 bytes came; is the file whole?")
        error.add_note("variable t")
        raise error

    monkeypatch.setattr(cli, "run_demo", fail)
    code, output = run("demo", "--folder", str(tmp_path))
    assert code == 1
    assert output == "Error: 2001.nc: 10 of 20 bytes came; is the file whole?\nvariable t\n"
