"""What a native reader finds in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Found(NamedTuple):
    """A variable as the native reader has it; only these attributes are compared.

    Without a name it is the group itself: attributes alone.
    """

    group: str
    name: str
    values: Any = None
    attributes: Mapping[str, Any] = {}


def in_native_order(values: Any) -> Any:
    """Return values in the byte order of the machine."""
    return np.asarray(values).astype(values.dtype.newbyteorder("="), copy=False)
