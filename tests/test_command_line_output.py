"""What the program prints: one JSON document with ``--json``, lines of the log with ``-v``."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

import virtualds
from virtualds_cli.program import COMMANDS, EXIT_CODES, main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, archive_files: list[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own that holds ``2001.nc``, ``2002.nc`` and ``refs.zarr`` of both."""
    for path in archive_files:
        shutil.copy2(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    for year in ("2001.nc", "2002.nc"):
        vds = virtualds.open_virtual_dataset(year)
        vds.attrs["missing"] = float("nan")
        vds.virtual.to_manifest("refs.zarr", append_dim="time")
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def read_strictly(text: str) -> Any:
    """Return a document; NaN and infinities are no JSON (RFC 8259, section 6)."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


CALLS: dict[str, tuple[str, ...]] = {
    "scan": ("2001.nc", "2002.nc", "--concat-dim", "time", "-o", "new.json"),
    "append": ("refs.zarr", "2002.nc", "--dim", "time", "--on-duplicate", "skip"),
    "sync": ("20*.nc", "new.zarr", "--concat-dim", "time", "--settle", "0"),
    "info": ("refs.zarr",),
    "catalog": ("refs.zarr", "--esm", "catalog.json", "--stac", "stac"),
    "verify": ("refs.zarr", "--against", "native"),
    "diagnose": ("2001.nc", "2002.nc"),
    "convert": ("refs.zarr", "new.parquet"),
    "drop-sources": ("refs.zarr", "2002.nc"),
    "edit": ("refs.zarr", "--rename", "t=air"),
    "snapshots": ("refs.zarr",),
    "expire-snapshots": ("refs.zarr", "--keep", "1"),
    "compact": ("refs.zarr",),
    "clean-up": ("refs.zarr", "--dry-run"),
    "rename-paths": ("refs.zarr", "file:///", "s3://bucket/", "--sample", "0"),
    "serve": ("refs.zarr", "--check"),
    "view": ("refs.zarr", "--check"),
    "demo": ("--folder", "demo"),
    "completion": ("bash",),
}
"""A call of each command that succeeds."""


def test_every_command_is_called() -> None:
    assert set(CALLS) == {command.name for command in COMMANDS}


@pytest.mark.parametrize("name", CALLS)
def test_every_command_prints_one_strict_document(name: str) -> None:
    call = (name, *CALLS[name])
    result = run(*call, "--json")
    assert result.exit_code == 0, result.output
    assert isinstance(read_strictly(result.stdout), dict)
    # and text without it
    assert not run(*call).stdout.startswith("{")


@pytest.mark.parametrize("name", [name for name in CALLS if name != "demo"])
def test_the_option_may_stand_before_every_command(name: str) -> None:
    """The demo takes a second, and gets its options as all commands do."""
    result = run("--json", name, *CALLS[name])
    assert result.exit_code == 0, result.output
    assert isinstance(read_strictly(result.stdout), dict)


FAILURES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "a file that is missing": (("info", "missing.nc"), 1, "FileNotFoundError"),
    "a value that is refused": (("compact", "2001.nc"), 1, ""),
    "an unknown option": (("info", "refs.zarr", "--nope"), 2, "NoSuchOption"),
    "an unknown option before": (("--nope", "info", "refs.zarr"), 2, "NoSuchOption"),
    "an unknown command": (("nope",), 2, ""),
    "a bad choice": (("verify", "refs.zarr", "--against", "nope"), 2, "BadParameter"),
    "a missing argument": (("info",), 2, "MissingParameter"),
    "no file": (("scan", "-o", "new.json"), 2, "UsageError"),
    "no command": ((), 2, ""),
}


@pytest.mark.parametrize("which", FAILURES)
def test_every_error_is_one_strict_document_with_its_exit_code(which: str) -> None:
    call, code, kind = FAILURES[which]
    result = run(*call, "--json")
    assert result.exit_code == code
    found = read_strictly(result.stdout)["error"]
    assert set(found) == {"type", "message", "notes", "exit_code"}
    assert found["exit_code"] == code
    assert found["message"]
    assert code in EXIT_CODES
    assert kind in ("", found["type"])
    assert result.stderr
    # also with the option in front
    assert run("--json", *call).stdout == result.stdout
    # without it, standard output stays empty
    assert run(*call).stdout == ""


@pytest.mark.parametrize("name", CALLS)
def test_every_command_fails_with_one_strict_document(name: str) -> None:
    result = run(name, "--json", "--nope")
    assert result.exit_code == 2
    assert read_strictly(result.stdout)["error"]["type"] == "NoSuchOption"


def test_a_file_may_be_called_like_the_option() -> None:
    result = run("info", "--", "--json")
    assert (result.exit_code, result.stdout) == (1, "")


# ---------------------------------------------------------------------- -v

LINE = r" *\d+\.\d{3} "
TOLD = "2001.nc: hdf5, read by virtualds"


@pytest.mark.parametrize("call", [("-v", "info", "2001.nc"), ("info", "2001.nc", "-v")])
def test_verbose_tells_how_files_were_read_on_standard_error(call: tuple[str, ...]) -> None:
    result = run(*call)
    assert re.search(f"^{LINE}file://.*{TOLD}", result.stderr, re.MULTILINE)
    assert result.stdout == run("info", "2001.nc").stdout
    assert read_strictly(run(*call, "--json").stdout)["format"] == "hdf5"


def test_verbose_tells_each_thing_once_and_only_until_the_program_ends() -> None:
    logger = logging.getLogger("virtualds")
    before = logger.level, list(logger.handlers)
    result = run("-v", "info", "2001.nc", "-v")
    assert result.stderr.count(TOLD) == 1
    assert (logger.level, logger.handlers) == before
    assert TOLD not in run("info", "2001.nc").stderr


def test_more_verbose_tells_of_requests(folder: Path) -> None:
    import fsspec

    with fsspec.open("memory://verbose/2001.nc", "wb") as file:
        file.write((folder / "2001.nc").read_bytes())
    url = "memory://verbose/2001.nc"
    assert "GET" not in run("info", url, "-v").stderr
    for flags in (("-vv",), ("-v", "-v")):
        assert re.search(f"{LINE}GET memory:.*2001.nc bytes", run("info", url, *flags).stderr)
    assert re.search(f"{LINE}GET", run("-v", "info", url, "-v").stderr)


@pytest.mark.parametrize("name", CALLS)
def test_every_command_may_be_verbose(name: str) -> None:
    result = run(name, "-v", *CALLS[name])
    assert result.exit_code == 0, result.output
