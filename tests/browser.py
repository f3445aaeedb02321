"""A real browser without a window: Chromium, by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str:
    """Return where Chromium is; skip the test if there is none, which the gate does not allow."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        missing = "playwright is not installed; it belongs to the extra 'test'"
    else:
        if found := next(filter(None, map(shutil.which, NAMES)), None):
            return found
        missing = "chromium is not installed; .ci/run installs it"
    if os.environ.get("CI"):
        raise RuntimeError(missing)
    pytest.skip(missing)


@contextmanager
def browsing() -> Iterator[Any]:
    """Give playwright's browser."""
    program = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        # containers and root have no sandbox
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
