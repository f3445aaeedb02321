"""The stores: one file per way to get bytes, and here the table of who answers for which url."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from virtualds.store import Store
from virtualds.stores.fsspec_store import FsspecStore
from virtualds.stores.local import LocalStore
from virtualds.urls import scheme_of

STORES: dict[str, Store] = {"file": LocalStore()}
"""Stores by scheme; any other scheme is fsspec's."""

_ANY_OTHER = FsspecStore()

_IN_FRONT: dict[str, tuple[Store, ...]] = {}
"""Stores of single urls, the last one in front."""

_LOCK = threading.Lock()


def store_for(url: str) -> Store:
    """Return the store that answers for a url."""
    if (front := _IN_FRONT.get(url)) is not None:
        return front[-1]
    return STORES.get(scheme_of(url), _ANY_OTHER)


@contextmanager
def in_front(url: str, store: Store) -> Iterator[None]:
    """Let a store answer for one url, whoever asks, until the end of the block."""
    with _LOCK:
        _IN_FRONT[url] = (*_IN_FRONT.get(url, ()), store)
    try:
        yield
    finally:
        with _LOCK:
            rest = tuple(other for other in _IN_FRONT[url] if other is not store)
            if rest:
                _IN_FRONT[url] = rest
            else:
                del _IN_FRONT[url]


__all__ = ["STORES", "FsspecStore", "LocalStore", "in_front", "store_for"]
