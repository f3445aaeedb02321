"""The stores: one file per way to get bytes, and here the table of who answers for which url."""

from __future__ import annotations

from virtualds.store import Store
from virtualds.stores.fsspec_store import FsspecStore
from virtualds.stores.local import LocalStore
from virtualds.urls import scheme_of

STORES: dict[str, Store] = {"file": LocalStore()}
"""Stores by scheme; any other scheme is fsspec's."""

_ANY_OTHER = FsspecStore()


def store_for(url: str) -> Store:
    """Return the store that answers for a url."""
    return STORES.get(scheme_of(url), _ANY_OTHER)


__all__ = ["STORES", "FsspecStore", "LocalStore", "store_for"]
