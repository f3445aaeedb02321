"""Files in Google Cloud Storage, through gcsfs.

Only the JSON API is used (https://docs.cloud.google.com/storage/docs/json_api). The class that
gcsfs registers first requests the type of the bucket by gRPC, which takes another request, and a
minute to fail where gRPC is not available (emulators, proxies).
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from io import BytesIO
from itertools import count
from typing import Any

from aiohttp import ClientResponseError, ClientTimeout
from fsspec.asyn import sync_wrapper
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError
from google.auth.exceptions import GoogleAuthError
from yarl import URL

from virtualds.options import get_options
from virtualds.stores.conditional import (
    WRITER_KEY,
    ConditionFailedError,
    FileVersion,
    UnsupportedConditionError,
)
from virtualds.stores.object_access import convert_anon_option
from virtualds.stores.requests import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    choose_wait,
    get_status,
    is_temporary,
)
from virtualds.stores.store import list_store_errors

GENERATION = "X-Goog-Generation"
"""Header with the version of an object."""

MAX_CONCURRENT_DELETES = 32
"""Number of concurrent requests that each delete an object."""

OBJECT_PATH = "b/{}/o/{}"
"""Path of an object below the url of the JSON API, in which gcsfs quotes bucket and name."""

UNSPECIFIC_ERRORS: tuple[type[BaseException], ...] = (ValueError,)
"""Errors of gcsfs with the reason for a rejected request only in their message."""

_LIMITS = ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=READ_TIMEOUT)


class GoogleFiles(GCSFileSystem):  # type: ignore[misc]
    """Files in Google Cloud Storage.

    It has `set_session`, `encode_url` and `kwargs` of fsspec's HTTP filesystem, so that ranges are
    read with the same time limits, and with the headers of the response. Without ``retries``,
    callers retry failed requests.
    """

    version_header = GENERATION
    conditions = ("ifGenerationMatch=0", "ifGenerationMatch")

    def __init__(self, *, retries: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self._retries = retries

    async def set_session(self) -> Any:
        return await self._set_session()

    def encode_url(self, path: str) -> URL:
        return URL(self.url(path), encoded=True).update_query(self._get_params({}))

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments of requests for bytes: credentials, limits, and the handling of errors."""
        return {
            "headers": self._get_headers(None),
            "timeout": self.requests_timeout or _LIMITS,
            "raise_for_status": _raise_for_status,
        }

    @property
    def server(self) -> str:
        """The url of the server, without a trailing slash."""
        return str(self.base).removesuffix("/storage/v1/")

    async def _upload_object(
        self, path: str, data: bytes, metadata: dict[str, str], condition: dict[str, str]
    ) -> str:
        """Write an object with its metadata in one request, and return its generation.

        See https://docs.cloud.google.com/storage/docs/uploading-objects for the request.
        """
        bucket, name, _ = self.split_path(path)
        # JSON and bytes are two parts of one body (RFC 2387), separated by a random boundary, which
        # does not occur in the data
        boundary, metadata_json = secrets.token_hex(16), {"name": name, "metadata": metadata}
        content_types = ("application/json; charset=UTF-8", "application/octet-stream")
        first, second = (
            f"--{boundary}\r\nContent-Type: {k}\r\n\r\n".encode() for k in content_types
        )
        parts = (first, json.dumps(metadata_json).encode(), b"\r\n", second, data)
        body = _UnclosedBody(b"".join((*parts, f"\r\n--{boundary}--\r\n".encode())))
        created = await self._call(
            "POST",
            f"{self.server}/upload/storage/v1/b/{{}}/o",
            bucket,
            headers={"Content-Type": f'multipart/related; boundary="{boundary}"'},
            data=body,
            json_out=True,
            uploadType="multipart",
            **condition,
        )
        return str(created["generation"])

    upload_object = sync_wrapper(_upload_object)

    # ------------------------------------------------------------------ versions

    def read_with_version(self, path: str) -> tuple[bytes, str]:
        headers, data = self.call("GET", self.url(path))
        if (generation := headers.get(GENERATION)) is not None:
            writer = headers.get(f"x-goog-meta-{WRITER_KEY}")
            return bytes(data), FileVersion.from_writer(str(generation), writer)
        # Some servers do not send the header. If another writer replaces the object between the two
        # requests, the version is older than the bytes, and a later write is rejected.
        _, version = self.find_writer(path)
        return bytes(self.call("GET", self.url(path))[1]), version

    def find_writer(self, path: str) -> tuple[str | None, str]:
        """Return the `WRITER_KEY` and the generation of an object, bypassing all caches."""
        metadata = self.call("GET", OBJECT_PATH, *self.split_path(path)[:2], json_out=True)
        return metadata.get("metadata", {}).get(WRITER_KEY), str(metadata["generation"])

    def find_bucket(self, path: str) -> tuple[str, str]:
        return self.server, self.split_path(path)[0]

    def put_conditionally(self, path: str, data: bytes, expected: str | None, writer: str) -> str:
        """Write an object with ``ifGenerationMatch``; generation 0 means no object.

        See https://docs.cloud.google.com/storage/docs/request-preconditions.
        """
        condition = {"ifGenerationMatch": expected or "0"}
        try:
            return str(self.upload_object(path, data, {WRITER_KEY: writer}, condition))
        except (FileExistsError, HttpError) as error:
            # gcsfs raises FileExistsError for status 412; versions before 2025 raised HttpError
            status = 412 if isinstance(error, FileExistsError) else get_status(error)
            if status == 412:
                url = self.unstrip_protocol(path)
                raise ConditionFailedError(f"{url}: was changed by another writer") from error
            if status == 501:
                raise UnsupportedConditionError(str(error)) from error
            raise

    def put_object(self, path: str, data: bytes) -> str:
        return str(self.upload_object(path, data, {}, {}))

    def list_times(self, prefix: str) -> dict[str, float]:
        """Return the modification times of the first 1000 objects, with one request."""
        bucket, name_prefix, _ = self.split_path(prefix)
        parameters = {"prefix": name_prefix, "maxResults": 1000}
        listing = self.call("GET", "b/{}/o", bucket, json_out=True, **parameters)
        return {
            f"{bucket}/{item['name']}": datetime.fromisoformat(item["updated"]).timestamp()
            for item in listing.get("items", [])
        }

    def list_names(self, path: str) -> set[str]:
        """Return the names in a folder, a thousand per request; none if there is no folder."""
        bucket, key, _ = self.split_path(path.rstrip("/"))
        folder = f"{key}/" if key else ""
        parameters: dict[str, Any] = {"prefix": folder, "delimiter": "/", "maxResults": 1000}
        names: set[str] = set()
        while parameters:
            listing = self.call("GET", "b/{}/o", bucket, json_out=True, **parameters)
            names.update(listing.get("prefixes", []), (o["name"] for o in listing.get("items", [])))
            token = listing.get("nextPageToken")
            parameters = {**parameters, "pageToken": token} if token else {}
        return {name.removeprefix(folder).rstrip("/") for name in names} - {""}

    def remove(self, paths: Sequence[str]) -> None:
        """Delete objects, with several concurrent requests."""

        def remove_one(path: str) -> None:
            with suppress(FileNotFoundError):
                self.call("DELETE", OBJECT_PATH, *self.split_path(path)[:2])

        with ThreadPoolExecutor(MAX_CONCURRENT_DELETES) as pool:
            list(pool.map(remove_one, paths))

    # ------------------------------------------------------------------ requests

    async def _pipe_file(self, path: str, data: bytes, **kwargs: Any) -> None:
        # gcsfs separates the parts of an upload by a fixed boundary, which may occur in the data
        await self._upload_object(path, data, {}, {})
        self.invalidate_cache(path)

    async def _info(self, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        # gcsfs always sends two requests: for an object, and for a folder
        path = self._strip_protocol(path).rstrip("/")
        bucket, name, _ = self.split_path(path)
        if not name or args or kwargs:
            return dict(await super()._info(path, *args, **kwargs))
        try:
            return dict(await self._get_object(path))
        except FileNotFoundError:
            parameters = {"prefix": f"{name}/", "maxResults": 1}
            if "items" not in await self._call(
                "GET", "b/{}/o", bucket, json_out=True, **parameters
            ):
                raise
        return {"name": path, "size": 0, "type": "directory"}

    async def _request(self, *args: Any, **kwargs: Any) -> Any:
        for attempt in count():
            try:
                return await self._request_once(*args, **kwargs)
            except UNSPECIFIC_ERRORS + list_store_errors() as error:
                plain = _to_plain_error(error)
                if attempt >= (get_options().retries if self._retries else 0) or not is_temporary(
                    plain
                ):
                    # without a cause, whose status would be less specific than the converted error
                    raise plain from (error.__cause__ if plain is error else None)
                await asyncio.sleep(choose_wait(attempt + 1, plain))

    async def _request_once(self, *args: Any, **kwargs: Any) -> Any:
        # without gcsfs's own retries, which take half a minute to reject wrong credentials
        decorated = GCSFileSystem._request
        return await getattr(decorated, "__wrapped__", decorated)(self, *args, **kwargs)


def make_google_files(url: str, options: dict[str, Any], *, retries: bool) -> GoogleFiles:
    """Create the filesystem of a url.

    ``retries`` is whether it retries failed requests.
    """
    settings = {**GoogleFiles._get_kwargs_from_urls(url), **convert_anon_option(options)}
    try:
        return GoogleFiles(**settings, retries=retries)
    except GoogleAuthError as error:
        raise PermissionError(
            f"{url}: gcsfs found no credentials that it can use ({error}); log in with gcloud, or "
            f"give a token, or anon=True for a public bucket, in storage_options"
        ) from error


class _UnclosedBody(BytesIO):
    """A request body that ignores `close`, since aiohttp closes a body before sending it again."""

    def close(self) -> None:
        """Do nothing."""


async def _raise_for_status(response: Any) -> None:
    """Raise an error with the message in a response of Google.

    See https://docs.cloud.google.com/storage/docs/json_api/v1/status-codes.
    """
    if response.status >= 400:
        request, headers, status = response.request_info, response.headers, response.status
        message = response.reason
        with suppress(ValueError, TypeError, KeyError):
            problem = json.loads(await response.read())["error"]
            message = (
                str(problem["message"] if isinstance(problem, Mapping) else problem) or message
            )
        error = ClientResponseError(
            request, response.history, status=status, message=message, headers=headers
        )
        raise _find_payment_error(message) or error


def _to_plain_error(error: BaseException) -> BaseException:
    """Convert an error of gcsfs to a built-in error or `HttpError`, by its message if necessary."""
    if isinstance(error, FileNotFoundError | FileExistsError):
        return error
    if isinstance(error, OSError):
        # gcsfs raises OSError("Forbidden...") for status 403; the reason is in the second line
        message = str(error).replace("\n", ": ")
        return PermissionError(message) if message.startswith("Forbidden") else error
    if (payment := _find_payment_error(str(error))) is not None:
        return payment
    plain: BaseException = HttpError({"code": 400, "message": str(error)})
    return plain if isinstance(error, ValueError) else error


def _find_payment_error(message: str) -> PermissionError | None:
    """Return the error for a requester-pays bucket, or None for other errors."""
    if "requester pays" not in message.lower():
        return None
    return PermissionError(
        "readers of this bucket pay for requests; set requester_pays=True, and project to the "
        "project that pays, in storage_options"
    )
