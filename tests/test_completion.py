"""Shells complete command lines of the program, at once."""

from __future__ import annotations

import os
import pty
import resource
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import virtualds
from virtualds.datasets.location import FORMATS, PARSERS
from virtualds_cli import options
from virtualds_cli.parameter_types import list_names, list_nodes
from virtualds_cli.program import SHELLS

PROGRAM = [sys.executable, "-m", "virtualds_cli"]
SETS = ("refs.zarr", "refs.json", "refs.parquet")

SHIM = """#!/bin/sh
if [ -n "$_VIRTUALDS_COMPLETE" ] || [ "$1" = completion ]; then
    exec {python} -m virtualds_cli "$@"
fi
printf '%s\\n' "$@" > called
"""
"""The program: it completes, and otherwise notes what it was called with."""

BEGIN = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(virtualds completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -Uz compinit && compinit -u -D; eval "$(virtualds completion zsh)"',
    ),
}
"""How an interactive shell starts, and what its user adds to the file that it reads then."""

CASES = {
    "a command": ("virtualds sc", ["scan"]),
    "an option": ("virtualds scan --storage-o", ["scan", "--storage-options"]),
    "a choice": ("virtualds scan --overlap las", ["scan", "--overlap", "last"]),
    "a format": (
        "virtualds scan --format kerchunk-p",
        ["scan", "--format", "kerchunk-parquet"],
    ),
    "a parser": ("virtualds info --parser safe", ["info", "--parser", "safetensors"]),
    "a file": ("virtualds info refs.j", ["info", "refs.json"]),
    "a shell": ("virtualds completion f", None),
    "a variable of a set": (
        "virtualds info refs.zarr --loadable-variables ti",
        ["info", "refs.zarr", "--loadable-variables", "time"],
    ),
    "a dimension of a set": (
        "virtualds append refs.json --dim ti",
        ["append", "refs.json", "--dim", "time"],
    ),
    "a group of a set": (
        "virtualds info tree.zarr --group mo",
        ["info", "tree.zarr", "--group", "model"],
    ),
}
"""What a user types before the key TAB, and the words of the line after it."""
TYPED = [name for name, (_, expected) in CASES.items() if expected]


@pytest.fixture
def folder(tmp_path: Path, archive_files: list[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with sets, and with the program on the path."""
    import xarray as xr

    vds = virtualds.open_virtual_dataset(archive_files[0])
    for name in SETS:
        vds.virtual.to_manifest(tmp_path / name)
    tree = xr.DataTree.from_dict({"/": vds, "/model": vds[["t"]]})
    tree.virtual.to_manifest(tmp_path / "tree.zarr")
    program = tmp_path / "bin" / "virtualds"
    program.parent.mkdir()
    program.write_text(SHIM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def type_in(shell: str, lines: list[str]) -> str:
    """Type lines into an interactive shell on a terminal; return what the terminal shows."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(BEGIN[shell][0][0], BEGIN[shell][0])
    shown = b""
    for line in [BEGIN[shell][1], *lines, "exit"]:
        os.write(terminal, line.encode() + b"\n")
    until = time.monotonic() + 300
    while time.monotonic() < until:
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                more = os.read(terminal, 2**16)
            except OSError:  # the shell has ended
                break
            if not more:
                break
            shown += more
    os.close(terminal)
    os.waitpid(child, 0)
    return shown.decode(errors="replace")


@pytest.mark.parametrize("shell", BEGIN)
def test_a_shell_completes_what_is_typed(shell: str, folder: Path) -> None:
    """Each completion starts the program, so this takes some seconds."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    called = [f"{CASES[which][0]}\t; mv called 'called {which}'" for which in TYPED]
    shown = type_in(shell, called)
    for which in TYPED:
        assert (folder / f"called {which}").exists(), shown
        assert (folder / f"called {which}").read_text().split() == CASES[which][1], shown


@pytest.mark.parametrize("which", CASES)
def test_fish_completes_what_is_typed(which: str, folder: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    typed, expected = CASES[which]
    script = f"virtualds completion fish | source; complete -C '{typed}'"
    done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True)
    words = {line.partition("\t")[0].rstrip("/") for line in done.stdout.splitlines()}
    assert (expected or ["fish"])[-1] in words, done


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed(shell: str) -> None:
    out = subprocess.run([*PROGRAM, "completion", shell], capture_output=True, text=True)
    assert f"_VIRTUALDS_COMPLETE={shell}_complete" in out.stdout


@pytest.mark.parametrize("words", ["virtualds sc", "virtualds info refs.zarr --drop-variables "])
def test_completion_takes_at_most_three_tenths_of_a_second(words: str, folder: Path) -> None:
    asked = {"_VIRTUALDS_COMPLETE": "bash_complete", "COMP_WORDS": words}
    environment = {**os.environ, **asked, "COMP_CWORD": str(words.count(" "))}
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        out = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert out.stdout
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # seconds of a processor: others may use the machine
    assert min(spent) <= 0.3


@pytest.mark.parametrize("name", SETS)
def test_the_names_in_a_set_are_those_that_python_shows(name: str, folder: Path) -> None:
    import xarray as xr

    ds = xr.open_dataset(name, engine="virtual")
    for url in (name, str(folder / name), f"file://{folder / name}"):
        assert set(list_names(url, "variable")) == set(ds.variables)
        assert set(list_names(url, "dimension")) == set(ds.dims)
    assert list_names("tree.zarr", "group") == ["model"]


STRANGE = {
    "nothing": None,
    "an empty file": b"",
    "other bytes": b"\x89HDF\r\n\x1a\n" + bytes(range(256)),
    "a list": b"[1, 2]",
    "other JSON": b'{"metadata": 5, "refs": {"a/.zarray": 1, "a/.zattrs": "no"}}',
    "a strange group": b'{"consolidated_metadata": {"metadata": {"t": 5}}}',
    "much": b"[" + b"1," * 2**22 + b"1]",
}


@pytest.mark.parametrize("which", STRANGE)
def test_what_is_no_set_has_no_names(which: str, tmp_path: Path) -> None:
    if (data := STRANGE[which]) is not None:
        (tmp_path / "strange").write_bytes(data)
    assert list_nodes(str(tmp_path / "strange")) == []
    assert list_nodes("s3://bucket/refs.zarr") == []


def test_all_parsers_are_completed() -> None:
    assert {reader.name for reader in (*PARSERS, *FORMATS)} == set(options.PARSERS)
