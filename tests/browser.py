"""A real browser without a window: Chromium, by playwright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from other_s3_servers import needed, stop_without


@contextmanager
def browsing() -> Iterator[Any]:
    """Give playwright's browser; skip the test if there is none, which the gate does not allow."""
    program = needed("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        stop_without("playwright")
    # containers and root have no sandbox, and containers little shared memory
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=flags)
        try:
            yield browser
        finally:
            browser.close()
