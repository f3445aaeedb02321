"""Programs in processes of their own, which need not import what takes longest.

A new process of Python takes a second for xarray, dask and what these need. So one process imports
them, and each program is a fork of it: virtualds itself, and what is optional, it imports afresh.
What a test says of a start, of a terminal or of memory needs ``subprocess``.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import types
from functools import cache
from pathlib import Path
from typing import Any

LARGE = ("xarray", "dask.array", "h5py", "pandas", "pyarrow", "fsspec")


def run_code(code: str, *arguments: Any, **how: Any) -> subprocess.CompletedProcess[str]:
    """Do what ``python -c code`` does with some arguments; return what it says."""
    return _run(code, "", ["-c", *map(str, arguments)], **how)


def run_module(name: str, *arguments: Any, **how: Any) -> subprocess.CompletedProcess[str]:
    """Do what ``python -m name`` does with some arguments; return what it says."""
    return _run("", name, [name, *map(str, arguments)], **how)


def _run(
    code: str,
    module: str,
    arguments: list[str],
    env: dict[str, str] | None = None,
    timeout: float = 300,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) if env is None else env
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        server = _start_server()
        assert server.stdin is not None and server.stdout is not None
        job = (code, module, arguments, environment, sys.path, os.getcwd(), str(out), str(err))
        pickle.dump(job, server.stdin)
        server.stdin.flush()
        if not select.select([server.stdout], [], [], timeout)[0]:
            _end_server(server)
            _start_server.cache_clear()
            raise subprocess.TimeoutExpired(arguments, timeout)
        status = int(server.stdout.readline())
        done = subprocess.CompletedProcess(arguments, status, out.read_text(), err.read_text())
    if check:
        done.check_returncode()
    return done


@cache
def _start_server() -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    # a group of its own, which ends with what it has started
    server = subprocess.Popen(
        [sys.executable, "-P", __file__], stdin=pipe, stdout=pipe, process_group=0
    )
    atexit.register(_end_server, server)
    return server


def _end_server(server: subprocess.Popen[bytes]) -> None:
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def serve() -> None:
    """Fork for each job that comes, and tell how it ended; in the fork, return from its job."""
    for name in LARGE:
        importlib.import_module(name)
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        child = os.fork()
        if not child:
            return _be(*job)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _be(
    code: str,
    module: str,
    arguments: list[str],
    environment: dict[str, str],
    path: list[str],
    folder: str,
    *said: str,
) -> None:
    """Be a program."""
    for number, name in enumerate((os.devnull, *said)):
        opened = os.open(name, os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:], sys.argv[:] = path, arguments
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        exec(compile(code, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    serve()
