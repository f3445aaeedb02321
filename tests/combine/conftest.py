"""Fixtures of the tests of combining."""

import threading
from functools import cache
from pathlib import Path

import pytest
from days import CASES, FilesOf, write

from virtualds.combine import workers


@pytest.fixture
def _processes_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give files to processes at once, however long these take to start."""
    there = threading.Event()
    there.set()
    monkeypatch.setattr(workers, "_IMPORTED", there)


@pytest.fixture(scope="module")
def files_of(tmp_path_factory: pytest.TempPathFactory) -> FilesOf:
    """The files of every case of `days`, which are written once; do not write to them."""
    folder = tmp_path_factory.mktemp("cases")

    @cache
    def written(case: str) -> list[Path]:
        path = folder / str(list(CASES).index(case))
        path.mkdir()
        return write(path, CASES[case])

    return written
