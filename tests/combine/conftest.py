"""Fixtures of the tests of combining."""

import threading

import pytest

from virtualds.combine import processes


@pytest.fixture
def _processes_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give files to processes at once, however long these take to start."""
    there = threading.Event()
    there.set()
    monkeypatch.setattr(processes, "_IMPORTED", there)
