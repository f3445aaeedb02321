"""Where temporary files of a run lie: in memory, since tests would wait for the disk.

They write, sync and remove tens of thousands of small files.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30
"""Free bytes that memory has to have; the tests use a tenth of it."""


def write_into_memory() -> None:
    """Let this process and those that it starts write temporary files into memory.

    Whoever sets TMPDIR decides it; a worker has that of the process that started it. What lies
    there ends with this process. Of tests that failed, pytest keeps the folders of three runs.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    if shutil.disk_usage(MEMORY).free < ROOM:
        return
    root = MEMORY / f"virtualds-tests-{os.getuid()}"
    with suppress(FileExistsError):
        root.mkdir(0o700)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        return
    for left in root.glob("run-*"):
        # runs that were killed
        if not Path(f"/proc/{left.name.removeprefix('run-')}").exists():
            shutil.rmtree(left, ignore_errors=True)
    mine = root / f"run-{os.getpid()}"
    mine.mkdir(0o700, exist_ok=True)
    atexit.register(_remove, mine, os.getpid())
    os.environ |= {"TMPDIR": str(mine), "PYTEST_DEBUG_TEMPROOT": str(root)}
    tempfile.tempdir = str(mine)


def _remove(folder: Path, process: int) -> None:
    # a child that a test has forked ends before this process
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
