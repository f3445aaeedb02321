"""Programs in processes of their own, which need not import what takes longest.

A new process of Python takes a second for xarray, dask and what these need. So one process imports
them, and each program is a fork of it: virtualds itself, and what is optional, it imports afresh.
What a test says of a start, of an end or of memory needs ``subprocess``.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
import types
from multiprocessing import get_context
from pathlib import Path
from typing import Any

LARGE = ("xarray", "dask.array", "h5py", "pandas", "pyarrow", "fsspec")


def run_code(code: str, *arguments: Any, **how: Any) -> subprocess.CompletedProcess[str]:
    """Do what ``python -c code`` does with some arguments; return what it says."""
    return _run(["-c", *map(str, arguments)], code=code, **how)


def run_module(name: str, *arguments: Any, **how: Any) -> subprocess.CompletedProcess[str]:
    """Do what ``python -m name`` does with some arguments; return what it says."""
    return _run([name, *map(str, arguments)], module=name, **how)


def _run(
    arguments: list[str],
    code: str = "",
    module: str = "",
    env: dict[str, str] | None = None,
    timeout: float = 300,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    context = get_context("forkserver")
    context.set_forkserver_preload([*LARGE])
    environment = dict(os.environ) if env is None else env
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "out"), Path(folder, "err")
        target = (arguments, code, module, environment, os.getcwd(), *said)
        process = context.Process(target=_be, args=target)
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(arguments, timeout)
        out, err = (path.read_text() for path in said)
    done = subprocess.CompletedProcess(arguments, process.exitcode, out, err)
    if check:
        done.check_returncode()
    return done


def _be(
    arguments: list[str],
    code: str,
    module: str,
    environment: dict[str, str],
    folder: str,
    out: Path,
    err: Path,
) -> None:
    """Be a program, in a fork."""
    for number, path in ((1, out), (2, err)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:] = arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        exec(compile(code, "<string>", "exec"), main.__dict__)
