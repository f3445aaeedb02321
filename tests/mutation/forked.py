"""Run pytest in a fork of a process that has imported large libraries already, but not virtualds.

The tests run in a copy of the whole project, so that every process which they start imports the
copy, too, and nothing that broken code does reaches the project itself.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]
NOT_COPIED = {".git", "mutation-state", "fuzz-state", "docs/_build", "virtualds-demo"}
MAX_MEMORY = 6 << 30
"""Bytes of memory of each process, so that code which allocates for ever fails."""
TOO_LONG = -1


LIBRARIES = (
    "dask.array",
    "dask.distributed",
    "fsspec.asyn",
    "h5py",
    "hypothesis",
    "numcodecs",
    "pandas",
    "pyarrow",
    "scipy",
    "xarray",
    "zarr",
)


def import_libraries() -> None:
    """Import what takes long and most tests need."""
    for name in LIBRARIES:
        importlib.import_module(name)
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        plugin.load()
    # the forks need not look through all of it for what is no longer needed
    gc.freeze()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder that goes, even if processes are writing into it."""
    folder = Path(tempfile.mkdtemp(prefix="virtualds-mutant-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_project(folder: Path) -> None:
    """Make a folder a copy of the project; what is compiled in it stays, so it is quick again."""

    def leave(parent: str, names: list[str]) -> list[str]:
        inside = Path(parent).relative_to(PROJECT)
        skipped = (".venv", ".mypy", ".ruff", ".pytest", ".hypothesis", "__pycache__")
        return [
            name
            for name in names
            if (inside / name).as_posix() in NOT_COPIED
            or name.startswith(skipped)
            or (folder / inside / name).is_symlink()
        ]

    options = {"symlinks": True, "dirs_exist_ok": True}
    shutil.copytree(PROJECT, folder, ignore=leave, copy_function=_copy_changed, **options)


def _copy_changed(source: str, target: str) -> None:
    """Copy a file unless that was done before."""
    if os.path.lexists(target):
        there, here = os.lstat(source), os.lstat(target)
        if (there.st_mtime_ns, there.st_size) == (here.st_mtime_ns, here.st_size):
            return
    shutil.copy2(source, target, follow_symlinks=False)


def run_pytest(
    folder: Path,
    arguments: list[str],
    make_plugin: Callable[[], Any],
    finish: Callable[[Any], None],
    limit: float,
) -> int:
    """Run pytest in a process of its own, in a copy of the project.

    Parameters
    ----------
    folder : Path
        The copy.
    arguments : list of str
        What to run.
    make_plugin, finish : callable
        Make a plugin of pytest before the run, and take notice of it afterwards; both are called in
        that process.
    limit : float
        The process ends after so many seconds.

    Returns
    -------
    int
        What pytest returns, minus the number of the signal that ended the process, or `TOO_LONG`.
    """
    child = os.fork()
    if not child:
        _run_here(folder, arguments, make_plugin, finish)
    end = time.monotonic() + limit
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return TOO_LONG
    finally:
        # the process and those that it started
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
        shutil.rmtree(folder / "temporary", ignore_errors=True)


def _run_here(
    folder: Path,
    arguments: list[str],
    make_plugin: Callable[[], Any],
    finish: Callable[[Any], None],
) -> None:
    """Run pytest and end this process."""
    status = 70
    try:
        os.setsid()
        _enter(folder)
        plugin = make_plugin()
        options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        status = int(pytest.main([*options, *arguments], plugins=[plugin]))
        finish(plugin)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        raise
    finally:
        os._exit(status)


def _enter(folder: Path) -> None:
    """Let this process and those that it starts work in a folder, and import from there."""
    os.chdir(folder)
    for number, flags in (
        (0, os.O_RDONLY),
        (1, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND),
    ):
        name = folder / "printed" if number else Path(os.devnull)
        os.dup2(os.open(name, flags, 0o666), number)
    os.dup2(1, 2)
    # compiled files are for the next break
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    os.environ |= {"PYTHONPATH": str(folder), "TMPDIR": str(temporary)}
    tempfile.tempdir = None
    here = {"", str(PROJECT), str(PROJECT / "tests")}
    sys.path[:] = [str(folder), *(path for path in sys.path if path not in here)]
    # spawned processes import what is the main module of this one
    sys.modules["__main__"] = importlib.import_module("pytest.__main__")
    assert "virtualds" not in sys.modules, "that would not be the copy"
    for name in [name for name in sys.modules if name.split(".")[0] == "mutation"]:
        del sys.modules[name]
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, most))
