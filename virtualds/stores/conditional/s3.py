"""Conditional writes of objects in S3, through s3fs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from virtualds.stores.conditional.objects import (
    WRITER,
    InObjectStore,
    RefusedError,
    UnknownConditionError,
)
from virtualds.stores.store import StoreError

DELETED_AT_ONCE = 1000
"""How many objects one request to S3 can remove."""

REFUSED_CODES = {
    "PreconditionFailed",
    "412",
    "ConditionalRequestConflict",
    "OperationAborted",
    "409",
}
"""Codes with which S3 refuses a write whose condition is false."""
UNSUPPORTED_CODES = {"NotImplemented", "501", "InvalidArgument", "InvalidRequest", "400"}
"""Codes with which servers answer that do not support conditional writes."""


class InS3(InObjectStore):
    """Versions of objects in S3: their etags."""

    needs = "call_s3"

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        """Return the bytes of an object and its etag."""
        from fsspec.asyn import sync

        with _turn_errors():
            answer = filesystem.call_s3("get_object", **_object_of(filesystem, path))
            body = answer["Body"]
            try:
                return sync(filesystem.loop, body.read), answer["ETag"]
            finally:
                body.close()

    def find_version(self, filesystem: Any, path: str) -> str:
        """Return the etag of an object."""
        with _turn_errors():
            answer = filesystem.call_s3("head_object", **_object_of(filesystem, path))
        return str(answer["ETag"])

    def find_missing_support(self, filesystem: Any) -> str:
        """Return what to install if botocore cannot send conditions."""
        if len(_list_known_conditions()) == 2:
            return ""
        # s3fs silently leaves out arguments that botocore does not know
        return "the installed botocore cannot send conditional writes; install botocore>=1.36"

    def find_bucket(self, filesystem: Any, path: str) -> tuple[str, str]:
        """Return the url of the server, and the bucket."""
        return filesystem.s3.meta.endpoint_url, _object_of(filesystem, path)["Bucket"]

    def put_if(
        self, filesystem: Any, path: str, data: bytes, expected: str | None, writer: str
    ) -> str:
        """Write an object with ``If-None-Match`` or ``If-Match``."""
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        metadata = {**filesystem.s3_additional_kwargs.get("Metadata", {}), WRITER: writer}
        asked = {**_object_of(filesystem, path), "Body": data, "Metadata": metadata, **condition}
        try:
            with _turn_errors():
                return str(filesystem.call_s3("put_object", **asked)["ETag"])
        except OSError as error:
            if _has_failed_condition(error, expected):
                raise RefusedError(f"s3://{path}: was changed by another writer") from error
            if _find_code(error) in UNSUPPORTED_CODES:
                raise UnknownConditionError(str(error)) from error
            raise

    def put(self, filesystem: Any, path: str, data: bytes) -> str:
        """Write an object, and return its etag."""
        with _turn_errors():
            answer = filesystem.call_s3("put_object", **_object_of(filesystem, path), Body=data)
        return str(answer["ETag"])

    def find_writer(self, filesystem: Any, path: str) -> tuple[str | None, str]:
        """Return the writer and the etag of an object."""
        with _turn_errors():
            found = filesystem.call_s3("head_object", **_object_of(filesystem, path))
        return found.get("Metadata", {}).get(WRITER), str(found["ETag"])

    def list_times(self, filesystem: Any, prefix: str) -> dict[str, float]:
        """Return the first objects, at most 1000, by one request."""
        named = _object_of(filesystem, prefix)
        with _turn_errors():
            answer = filesystem.call_s3(
                "list_objects_v2", Bucket=named["Bucket"], Prefix=named["Key"]
            )
        return {
            f"{named['Bucket']}/{found['Key']}": found["LastModified"].timestamp()
            for found in answer.get("Contents", [])
        }

    def remove(self, filesystem: Any, paths: Sequence[str]) -> None:
        """Remove objects, many with one request."""
        buckets: dict[str, list[dict[str, str]]] = {}
        for path in paths:
            named = _object_of(filesystem, path)
            buckets.setdefault(named["Bucket"], []).append({"Key": named["Key"]})
        try:
            for bucket, keys in buckets.items():
                for start in range(0, len(keys), DELETED_AT_ONCE):
                    _delete(filesystem, bucket, keys[start : start + DELETED_AT_ONCE])
        finally:
            filesystem.invalidate_cache()


def _object_of(filesystem: Any, path: str) -> dict[str, str]:
    bucket, key, _ = filesystem.split_path(path)
    return {"Bucket": bucket, "Key": key}


def _delete(filesystem: Any, bucket: str, keys: list[dict[str, str]]) -> None:
    with _turn_errors():
        answer = filesystem.call_s3(
            "delete_objects", Bucket=bucket, Delete={"Objects": keys, "Quiet": True}
        )
    for failed in answer.get("Errors", []):
        raise StoreError(f"s3://{bucket}/{failed.get('Key')}: {failed.get('Message')}")


def _has_failed_condition(error: OSError, expected: str | None) -> bool:
    """Say whether S3 refused a write because its condition was false."""
    code = _find_code(error)
    return code in REFUSED_CODES or (expected is not None and code in ("NoSuchKey", "404"))


def _find_code(error: OSError) -> Any:
    """Return the code in the answer of S3 that caused an error."""
    answer = getattr(error.__cause__, "response", None) or {}
    return answer.get("Error", {}).get("Code")


@contextmanager
def _turn_errors() -> Iterator[None]:
    """Turn errors of the libraries below s3fs into a `StoreError`."""
    from aiohttp import ClientError
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise StoreError(f"{type(error).__name__}: {error}") from error


@cache
def _list_known_conditions() -> frozenset[str]:
    """Return the conditions that the installed botocore can send with a write."""
    from botocore.session import get_session

    put = get_session().get_service_model("s3").operation_model("PutObject")
    return frozenset(put.input_shape.members) & {"IfMatch", "IfNoneMatch"}
