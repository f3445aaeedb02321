"""Blobs of Azure as they are read, with etag and size, through the client that adlfs has connected.

adlfs's own methods return bytes alone, and its client repeats requests for minutes, which would
multiply the repetitions of `stores.retry`.
"""

from __future__ import annotations

from typing import Any

from virtualds.stores.responses import Answer
from virtualds.stores.retry import CONNECT_TIMEOUT, READ_TIMEOUT, limit_time

TIMEOUTS = ("timeout", "connection_timeout", "read_timeout")
"""The options of adlfs that say how long one request may take."""

FOLDER_MARKS = frozenset({"hdi_isfolder", "is_directory"})
"""Metadata of the empty blobs that stand for folders in accounts with a hierarchical namespace."""


def find_blob(filesystem: Any, path: str) -> Any:
    """Return the client of a blob, which makes a request for each method.

    Raises
    ------
    IsADirectoryError
        The path is that of a container.
    """
    container, key, version = filesystem.split_path(path)
    if not key:
        raise IsADirectoryError(f"{path}: this is a container")
    return filesystem.service_client.get_blob_client(container, key, version_id=version)


def fetch_range(filesystem: Any, path: str, offset: int, length: int) -> Answer:
    """Return a range of a blob, with the etag and size that the blob has now."""
    stream, data = _download(filesystem, path, offset, length)
    properties = stream.properties
    # the client writes it even where a response has none
    size = int(properties.content_range.rpartition("/")[2])
    return Answer(data, properties.etag, size)


def fetch_whole(filesystem: Any, path: str) -> bytes:
    """Return all bytes of a blob."""
    data: bytes = _download(filesystem, path, None, None)[1]
    return data


def describe(filesystem: Any, path: str) -> dict[str, Any]:
    """Return what fsspec's ``info`` says of a blob; of a blob that is there, by one request."""
    from fsspec.asyn import sync

    found: dict[str, Any] = sync(filesystem.loop, _describe, filesystem, path)
    return found


def _download(
    filesystem: Any, path: str, offset: int | None, length: int | None
) -> tuple[Any, bytes]:
    from fsspec.asyn import sync

    async def download() -> tuple[Any, bytes]:
        # the client hands over the bytes when all have come
        async with limit_time(length or 0):
            stream = await find_blob(filesystem, path).download_blob(
                offset, length, decompress=False, **_settings_of(filesystem)
            )
            return stream, await stream.readall()

    found: tuple[Any, bytes] = sync(filesystem.loop, download)
    return found


async def _describe(filesystem: Any, path: str) -> dict[str, Any]:
    from azure.core.exceptions import ResourceNotFoundError

    blob, folder = find_blob(filesystem, path), {"name": path, "size": None, "type": "directory"}
    async with limit_time():
        try:
            found = await blob.get_blob_properties(**_settings_of(filesystem))
        except ResourceNotFoundError:
            if await _has_blobs_below(filesystem, path):
                return folder
            raise
    marks = {name for name, value in found.metadata.items() if value.lower() == "true"}
    if FOLDER_MARKS & {name.lower() for name in marks}:
        return folder
    state = {"etag": found.etag, "last_modified": found.last_modified}
    return {"name": path, "size": found.size, "type": "file", **state}


async def _has_blobs_below(filesystem: Any, path: str) -> bool:
    container, key, _ = filesystem.split_path(path)
    blobs = filesystem.service_client.get_container_client(container).list_blobs(
        name_starts_with=f"{key.rstrip('/')}/", results_per_page=1, **_settings_of(filesystem)
    )
    async for _ in blobs:
        return True
    return False


def _settings_of(filesystem: Any) -> dict[str, Any]:
    """Return the settings of one request: no repetitions, and the timeouts that the user gave."""
    given = {name: filesystem.storage_options.get(name) for name in TIMEOUTS}
    ours = {"connection_timeout": CONNECT_TIMEOUT, "read_timeout": READ_TIMEOUT, "retry_total": 0}
    return ours | {name: value for name, value in given.items() if value is not None}
