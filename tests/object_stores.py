"""The object stores on loopback that keep conditions, each under one name."""

import uuid
from typing import Any

import pytest
from other_s3_servers import S3_SERVERS, bucket_at

OBJECT_STORES = (*S3_SERVERS, "google", "azure_server")
"""The fixtures of their servers."""

_SHARED: dict[str, tuple[str, dict[str, Any]]] = {}
"""A bucket of each store, and its options."""


def make_folder(store: str, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Return the url of a folder that nobody else uses, and the storage options for it.

    All lie in one bucket, for which it is tried once whether the server keeps conditions.
    """
    if store not in _SHARED:
        _SHARED[store] = make_bucket(store, request)
    bucket, options = _SHARED[store]
    return f"{bucket}/{uuid.uuid4().hex}", options


def make_bucket(store: str, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Return the url of a bucket that nobody else uses, and the storage options for it."""
    server = request.getfixturevalue(store)
    if store in S3_SERVERS:
        return bucket_at(server), server
    return (server.make_bucket() if store == "google" else server.make_box()), server.options
