"""The object stores on loopback that keep conditions, each under one name."""

from typing import Any

import pytest
from other_s3_servers import S3_SERVERS, bucket_at

OBJECT_STORES = (*S3_SERVERS, "google", "azure_server")
"""The fixtures of their servers."""


def make_bucket(store: str, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Return the url of a bucket that nobody else uses, and the storage options for it."""
    server = request.getfixturevalue(store)
    if store in S3_SERVERS:
        return bucket_at(server), server
    return (server.make_bucket() if store == "google" else server.make_box()), server.options
