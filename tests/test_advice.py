"""The command line advises its options where the library advises arguments of Python."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from daily_files import days, written
from products import looped

from virtualds_cli.output import to_command_line
from virtualds_cli.program import main

ADVICE = {
    ("sync", "pass overlap='first' to leave out"): "pass --overlap first to leave out",
    ("sync", "give them a coordinate (coordinates=)"): "give them a coordinate (--coordinates)",
    ("sync", "pass group='/a b'; or sort=False"): "pass --group '/a b'; or --no-sort",
    ("sync", "drop_variables= or preprocess="): "--drop-variables or preprocess=",
    ("sync", "settle=0 takes it"): "--settle 0 takes it",
    ("scan", "concat_dim=['time', 'x']"): "--concat-dim time --concat-dim x",
    ("append", "(append_dim='time')"): "(--dim time)",
    ("append", "ds.drop_vars leaves it out"): "--drop-variables leaves it out",
    ("info", "ds.drop_vars leaves it out"): "ds.drop_vars leaves it out",
    ("sync", "make it with virtualds.convert(a, b=f(1)); so"): "make it with virtualds convert; so",
    # names of files and values of queries are no arguments
    ("sync", "/data/group=1/overlap=2.nc?group=3&sort=True"): (
        "/data/group=1/overlap=2.nc?group=3&sort=True"
    ),
    ("sync", "units='K', not units='C'"): "units='K', not units='C'",
}


@looped("command, text", ADVICE)
def test_an_option_stands_in_place_of_an_argument(command: str, text: str) -> None:
    with click.Context(main) as root, click.Context(main.commands[command], parent=root):
        assert to_command_line(text) == ADVICE[command, text]
    assert to_command_line(text) == text


def test_errors_of_sync_advise_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for number in range(2):
        written(Path("data"), f"{number}", days(4 * number))

    def sync(*given: str) -> str:
        return CliRunner().invoke(main, ["sync", *given, "--settle", "0"]).stderr

    assert not sync("data/*.nc", "refs.zarr", "--concat-dim", "time")
    assert "pass --concat-dim time" in sync("data/*.nc", "refs.zarr", "--concat-dim", "lat")
    written(Path("data"), "2", days(4))
    assert "pass --overlap first" in sync("data/*.nc", "refs.zarr", "--concat-dim", "time")
    said = CliRunner().invoke(
        main, ["sync", "data/*.nc", "refs.zarr", "--concat-dim", "x", "--json"]
    )
    assert json.loads(said.stdout)["error"]["type"] == "CombineError"
    nothing = sync("refs.zarr", "--concat-dim", "time")
    assert "virtualds sync 'data/*.nc' refs.zarr --concat-dim time" in nothing
    assert "--files-from" in nothing
