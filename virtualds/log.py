"""The logger ``virtualds``, which explains why something takes long.

Level INFO is about files and sets, level DEBUG about requests and what caches answer. A text is
made only if its level is logged: ask `is_logged` first. Every text passes `log`, which leaves out
secrets.
"""

from __future__ import annotations

import logging

from virtualds.errors import without_secrets

LOGGER = logging.getLogger("virtualds")
LOGGER.addHandler(logging.NullHandler())

INFO, DEBUG = logging.INFO, logging.DEBUG

is_logged = LOGGER.isEnabledFor
"""Say whether a level is logged."""


def log(level: int, text: str) -> None:
    """Log a text without the signatures, tokens and passwords of its urls."""
    LOGGER.log(level, "%s", without_secrets(text), stacklevel=2)
