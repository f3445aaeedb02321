"""JSON as others may have written it: in bounds, and every key of an object once."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from virtualds.errors import FormatError


def parsed(text: str | bytes, where: str) -> Any:
    """Return what a JSON text holds.

    Parameters
    ----------
    text : str or bytes
    where : str
        What errors begin with.

    Raises
    ------
    FormatError
        It is no JSON, nested too deeply, or a key stands twice in an object: readers differ in
        which of them they take.
    """
    try:
        with uncollected():
            return json.loads(text, object_pairs_hook=_distinct)
    except RecursionError as error:
        raise FormatError(f"{where}: its JSON is nested too deeply; write it anew") from error
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from error
    except ValueError as error:
        raise FormatError(f"{where}: it is no JSON ({error}); a reference set has JSON") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (key, count), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise FormatError(f"the key {key!r} stands {count} times in one object; write it anew")
    return found


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage meanwhile: there is none, and looking takes as long as the work."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
