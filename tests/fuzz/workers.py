"""Processes that may be killed: each does one job after the other until one ends it.

A worker is forked, so that it has what its parent has imported. It tells how much memory a job
took; the parent ends it when a job takes too long or too much, and says which of them.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MEGABYTE = 2**20
STEP = 0.05
"""Seconds between two looks at the memory of a worker."""
MODULES = "modules"
"""The job that every worker does: to say which modules it has imported."""
CASES = 400
"""Jobs after which a worker is replaced, since libraries leak."""


class Answer(NamedTuple):
    """What became of a job.

    ``end`` is "" if it was done; else "signal 6", "exit 1", "hang" or "memory", and ``value`` is
    what the worker said before, its stacks among it.
    """

    end: str
    value: Any
    megabytes: float = 0.0


class Worker:
    """A process that does jobs.

    Parameters
    ----------
    work : callable
        Does a job: what it takes and returns pickles.
    log : path
        Where what it prints goes.
    seconds : float
        For a job.
    megabytes : int
        More than it has when it starts.
    """

    def __init__(
        self, work: Callable[[Any], Any], log: Path, seconds: float = 10, megabytes: int = 1024
    ) -> None:
        self._work, self._log = work, log
        self.seconds, self._megabytes = seconds, megabytes
        self._pid, self._jobs = 0, 0

    def ask(self, job: Any) -> Answer:
        """Have a job done."""
        self.begin(job)
        return self.finish()

    def begin(self, job: Any) -> None:
        """Hand over a job; `finish` waits for it."""
        if self._pid and self._jobs >= CASES:
            self.stop()
        if not self._pid:
            self._start()
        self._jobs += 1
        _send(self._to, job)

    def finish(self) -> Answer:
        """Return what became of the job that was begun."""
        began = time.monotonic()
        while not select.select([self._from], [], [], STEP)[0]:
            if self._grown() > self._megabytes:
                return self._killed("memory")
            if time.monotonic() - began > self.seconds:
                return self._killed("hang")
        try:
            value, megabytes = _receive(self._from)
        except EOFError:
            return self._dead()
        return Answer("memory" if megabytes > self._megabytes else "", value, megabytes)

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._reap()

    def _start(self) -> None:
        ours, theirs = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid, self._jobs = os.fork(), 0
        if not self._pid:
            os.close(ours[1])
            os.close(theirs[0])
            _serve(self._work, ours[0], theirs[1], self._log, self._megabytes)
        os.close(ours[0])
        os.close(theirs[1])
        self._to, self._from = ours[1], theirs[0]
        self._before = _resident(self._pid)

    def _grown(self) -> float:
        return _resident(self._pid) - self._before

    def _killed(self, end: str) -> Answer:
        grown = self._grown()
        os.kill(self._pid, signal.SIGUSR1)
        time.sleep(0.3)
        os.kill(self._pid, signal.SIGKILL)
        self._reap()
        return Answer(end, self._said(), grown)

    def _dead(self) -> Answer:
        status = self._reap()
        end = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {status >> 8}"
        return Answer(end, self._said())

    def _reap(self) -> int:
        _, status = os.waitpid(self._pid, 0)
        os.close(self._to)
        os.close(self._from)
        self._pid = 0
        return status

    def _said(self) -> str:
        return self._log.read_text("utf-8", "replace")[-6000:] if self._log.exists() else ""


def _serve(
    work: Callable[[Any], Any], read: int, write: int, log: Path, megabytes: int
) -> None:  # pragma: no cover
    """Do jobs until the parent goes; never return."""
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        while True:
            try:
                job = _receive(read)
            except EOFError:
                os._exit(0)
            os.ftruncate(out, 0)
            _limit(megabytes)
            Path("/proc/self/clear_refs").write_text("5")
            before = _status("VmRSS")
            value = sorted(sys.modules) if job == MODULES else work(job)
            _send(write, (value, _status("VmHWM") - before))
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(3)


def _limit(megabytes: int) -> None:
    """Let addresses run out at half as much again as memory may grow by."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + megabytes * MEGABYTE * 3 // 2
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (room, hard))


def _status(name: str) -> float:
    """Return what this process has now (VmRSS), or had at most since refs were cleared (VmHWM)."""
    [line] = [n for n in Path("/proc/self/status").read_text().splitlines() if name in n]
    return int(line.split()[1]) / 1024


def _resident(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / MEGABYTE


def _send(fd: int, value: Any) -> None:
    data = pickle.dumps(value)
    data = struct.pack("<Q", len(data)) + data
    while data:
        data = data[os.write(fd, data) :]


def _receive(fd: int) -> Any:
    (size,) = struct.unpack("<Q", _exactly(fd, 8))
    return pickle.loads(_exactly(fd, size))


def _exactly(fd: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
