"""Conditional writes of objects in Google Cloud Storage, through gcsfs.

The service compares the generation of an object, which grows with each write
(https://docs.cloud.google.com/storage/docs/request-preconditions). gcsfs sends the requests, since
it knows all forms of credentials; obstore knows few of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from virtualds.stores.conditional.objects import (
    WRITER,
    InObjectStore,
    RefusedError,
    UnknownConditionError,
)
from virtualds.stores.filesystems import GENERATION
from virtualds.stores.retry import status_of

REMOVED_AT_ONCE = 32
"""How many requests to remove an object run at the same time: each removes one."""

OBJECT = "b/{}/o/{}"
"""The path of an object below the url of the JSON API; gcsfs quotes bucket and name."""


class InGoogle(InObjectStore):
    """Versions of objects in Google Cloud Storage: their generations."""

    needs = "upload_object"
    conditions = ("ifGenerationMatch=0", "ifGenerationMatch")

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        """Return the bytes of an object and its generation."""
        headers, data = filesystem.call("GET", filesystem.url(path))
        if (found := headers.get(GENERATION)) is not None:
            return bytes(data), str(found)
        # Some servers do not send it. If a writer comes in between, a version that is older than
        # the bytes only lets a write be refused.
        version = self.find_version(filesystem, path)
        return bytes(filesystem.call("GET", filesystem.url(path))[1]), version

    def find_version(self, filesystem: Any, path: str) -> str:
        """Return the generation of an object."""
        return _version_of(_describe(filesystem, path))

    def find_bucket(self, filesystem: Any, path: str) -> tuple[str, str]:
        """Return the url of the server, and the bucket."""
        return filesystem.server, filesystem.split_path(path)[0]

    def put_if(
        self, filesystem: Any, path: str, data: bytes, expected: str | None, writer: str
    ) -> str:
        """Write an object with ``ifGenerationMatch``; generation 0 stands for no object."""
        condition = {"ifGenerationMatch": expected or "0"}
        with _turn_refusals(filesystem, path):
            return str(filesystem.upload_object(path, data, {WRITER: writer}, condition))

    def put(self, filesystem: Any, path: str, data: bytes) -> str:
        """Write an object, and return its generation."""
        return str(filesystem.upload_object(path, data, {}, {}))

    def find_writer(self, filesystem: Any, path: str) -> tuple[str | None, str]:
        """Return the writer and the generation of an object."""
        found = _describe(filesystem, path)
        return found.get("metadata", {}).get(WRITER), _version_of(found)

    def list_times(self, filesystem: Any, prefix: str) -> dict[str, float]:
        """Return the first objects, at most 1000, by one request."""
        bucket, beginning, _ = filesystem.split_path(prefix)
        found = filesystem.call(
            "GET", "b/{}/o", bucket, prefix=beginning, maxResults=1000, json_out=True
        )
        return {
            f"{bucket}/{item['name']}": datetime.fromisoformat(item["updated"]).timestamp()
            for item in found.get("items", [])
        }

    def remove(self, filesystem: Any, paths: Sequence[str]) -> None:
        """Remove objects, several at the same time."""

        def remove_one(path: str) -> None:
            with suppress(FileNotFoundError):
                filesystem.call("DELETE", OBJECT, *filesystem.split_path(path)[:2])

        try:
            with ThreadPoolExecutor(REMOVED_AT_ONCE) as pool:
                list(pool.map(remove_one, paths))
        finally:
            filesystem.invalidate_cache()


def _describe(filesystem: Any, path: str) -> dict[str, Any]:
    """Return what the server says about an object, past all caches."""
    found: dict[str, Any] = filesystem.call(
        "GET", OBJECT, *filesystem.split_path(path)[:2], json_out=True
    )
    return found


def _version_of(described: dict[str, Any]) -> str:
    return str(described["generation"])


@contextmanager
def _turn_refusals(filesystem: Any, path: str) -> Iterator[None]:
    """Turn the errors of refused and of unknown conditions into those of `InObjectStore`."""
    from gcsfs.retry import HttpError

    try:
        yield
    except (FileExistsError, HttpError) as error:
        # gcsfs raises the first one for 412; versions before 2025 raised the second
        status = 412 if isinstance(error, FileExistsError) else status_of(error)
        if status == 412:
            url = filesystem.unstrip_protocol(path)
            raise RefusedError(f"{url}: was changed by another writer") from error
        if status == 501:
            raise UnknownConditionError(str(error)) from error
        raise
