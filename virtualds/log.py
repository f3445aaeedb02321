"""The logger ``virtualds``, which tells why something takes long.

Level INFO tells of files and sets, level DEBUG of requests and of what caches answer. Texts are
made only if somebody listens: ask `tells` first. Every text passes `tell`, which leaves out
secrets.
"""

from __future__ import annotations

import logging

from virtualds.errors import without_secrets

LOGGER = logging.getLogger("virtualds")
LOGGER.addHandler(logging.NullHandler())

INFO, DEBUG = logging.INFO, logging.DEBUG

tells = LOGGER.isEnabledFor
"""Say whether somebody listens at a level."""


def tell(level: int, text: str) -> None:
    """Tell whoever listens; the signatures, tokens and passwords of urls are left out."""
    LOGGER.log(level, "%s", without_secrets(text), stacklevel=2)
