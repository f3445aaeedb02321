"""Versions of files in fsspec filesystems, and conditional writes, which expect a version.

S3 and the memory of this process have conditional writes. An S3 server must first prove that it
refuses a write whose condition is false: some servers ignore conditions, and the work of another
writer would silently be lost.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from virtualds.errors import UnsupportedError
from virtualds.options import get_options
from virtualds.stores.store import ChangedError, StoreError, version_of

WITHOUT_FOLDERS = {"memory", "s3", "gs", "gcs", "abfs", "az"}
"""Filesystems that have files only: a writer makes no folders there."""

DELETED_AT_ONCE = 1000
"""How many objects one request to S3 can remove."""

WRITER = "virtualds-writer"
"""The name of the metadata that says which write made an object."""

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

PROOF = ".virtualds-proof-"
"""The prefix of the names of objects with which this module tries conditional writes."""
GRACE = 24 * 3600.0
"""Seconds after which such an object belongs to a process that was killed."""

_PROVED: dict[tuple[str, str], str] = {}
"""By endpoint and bucket: why conditional writes are unsafe there, empty if they are safe."""
_PROVING: dict[tuple[int, str, str], threading.Lock] = {}


class ByContent:
    """Versions in any filesystem: a hash of the bytes is the version."""

    needs = "cat_file"
    """The method that a filesystem must have for this class."""

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        """Return the bytes of a file and their version."""
        data = bytes(filesystem.cat_file(path))
        return data, version_of(data)

    def find_version(self, filesystem: Any, path: str) -> str:
        """Return the version of a file."""
        return self.read(filesystem, path)[1]

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return why conditional writes beside a path are unsafe, an empty text if they are not."""
        return (
            f"conditional writes are known for local disk, memory and S3, not for "
            f"{'/'.join(sorted(list_protocols(filesystem)))}"
        )

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Write a file if its version is the expected one, and return the new version."""
        demand_conditions(filesystem, path)
        return self.check_and_write(filesystem, path, data, expected)

    def check_and_write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Check the version, then write: a write of another writer in between goes unnoticed."""
        filesystem.invalidate_cache()
        found = self.find_version(filesystem, path) if filesystem.isfile(path) else None
        if found != expected:
            raise ChangedError(f"{path}: was changed by another writer")
        put(filesystem, path, data)
        return version_of(data)

    def remove(self, filesystem: Any, paths: Sequence[str]) -> None:
        """Remove files; a file that is gone already is no error."""
        for path in paths:
            with suppress(FileNotFoundError):
                filesystem.rm_file(path)
        filesystem.invalidate_cache()


class InMemory(ByContent):
    """Versions of files in the memory of this process."""

    lock = threading.Lock()

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return an empty text: a lock keeps writers apart."""
        return ""

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Write a file under the lock."""
        with self.lock:
            return self.check_and_write(filesystem, path, data, expected)


class InS3(ByContent):
    """Versions of objects in S3, through s3fs: each method is one request, past its caches."""

    needs = "call_s3"

    def read(self, filesystem: Any, path: str) -> tuple[bytes, str]:
        """Return the bytes of an object and its etag."""
        from fsspec.asyn import sync

        with _s3_errors():
            answer = filesystem.call_s3("get_object", **_object_of(filesystem, path))
            body = answer["Body"]
            try:
                return sync(filesystem.loop, body.read), answer["ETag"]
            finally:
                body.close()

    def find_version(self, filesystem: Any, path: str) -> str:
        """Return the etag of an object."""
        with _s3_errors():
            answer = filesystem.call_s3("head_object", **_object_of(filesystem, path))
        return str(answer["ETag"])

    def find_unsafe_reason(self, filesystem: Any, path: str) -> str:
        """Return why conditional writes are unsafe; a process tries each bucket once."""
        if len(_list_known_conditions()) < 2:
            # s3fs silently leaves out arguments that botocore does not know
            return "the installed botocore cannot send conditional writes; install botocore>=1.36"
        endpoint = filesystem.s3.meta.endpoint_url
        bucket = _object_of(filesystem, path)["Bucket"]
        # by process: a forked child never gets a lock that its parent held
        with _PROVING.setdefault((os.getpid(), endpoint, bucket), threading.Lock()):
            if (endpoint, bucket) not in _PROVED:
                broken = self._find_broken_condition(
                    filesystem, _parent_folder_of(filesystem, path)
                )
                reason = f"the server at {endpoint} does not keep conditional writes: {broken}"
                _PROVED[endpoint, bucket] = reason if broken else ""
        return _PROVED[endpoint, bucket]

    def _find_broken_condition(self, filesystem: Any, folder: str) -> str:
        """Try conditional writes of a new object in a folder; return what went wrong, if any."""
        _remove_old_proofs(filesystem, folder)
        path = f"{folder}{PROOF}{secrets.token_hex(16)}"
        # equal sizes, at nearly the same time: the server must not tell versions by size and time
        contents = [secrets.token_bytes(32) for _ in range(4)]
        try:
            first = self._write_if(filesystem, path, contents[0], None)
            if not self._is_refused(filesystem, path, contents[1], None):
                return "it replaced an object in spite of If-None-Match: *"
            self._write_if(filesystem, path, contents[2], first)
            if not self._is_refused(filesystem, path, contents[3], first):
                return "it replaced an object that had changed, in spite of If-Match"
        except ChangedError:
            return "it refused a write whose condition was true"
        except OSError as error:
            if _code(error) not in UNSUPPORTED_CODES:
                raise
            return f"it does not know them ({error})"
        finally:
            # the user may have the right to write, and not the right to remove
            with suppress(OSError):
                self.remove(filesystem, [path])
        return ""

    def _is_refused(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> bool:
        try:
            self._write_if(filesystem, path, data, expected)
        except ChangedError:
            return True
        return False

    def write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Write an object by one conditional request."""
        if self.find_unsafe_reason(filesystem, path):
            return super().write(filesystem, path, data, expected)
        return self._write_if(filesystem, path, data, expected)

    def _write_if(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        writer = secrets.token_hex(16)
        metadata = {**filesystem.s3_additional_kwargs.get("Metadata", {}), WRITER: writer}
        asked = {**_object_of(filesystem, path), "Body": data, "Metadata": metadata, **condition}
        try:
            with _s3_errors():
                return str(filesystem.call_s3("put_object", **asked)["ETag"])
        except OSError as error:
            if not _has_failed_condition(error, expected):
                raise
            return self._find_own_version(filesystem, path, writer, error)
        finally:
            filesystem.invalidate_cache(path)

    def _find_own_version(self, filesystem: Any, path: str, writer: str, error: OSError) -> str:
        """Return the version if this write made it: botocore repeats a request without answer."""
        with _s3_errors(), suppress(FileNotFoundError):
            found = filesystem.call_s3("head_object", **_object_of(filesystem, path))
            if found.get("Metadata", {}).get(WRITER) == writer:
                return str(found["ETag"])
        raise ChangedError(f"s3://{path}: was changed by another writer") from error

    def check_and_write(self, filesystem: Any, path: str, data: bytes, expected: str | None) -> str:
        """Check the etag, then write: a write of another writer in between goes unnoticed."""
        try:
            found = self.find_version(filesystem, path)
        except FileNotFoundError:
            found = None
        if found != expected:
            raise ChangedError(f"s3://{path}: was changed by another writer")
        with _s3_errors():
            answer = filesystem.call_s3("put_object", **_object_of(filesystem, path), Body=data)
        filesystem.invalidate_cache(path)
        return str(answer["ETag"])

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


_VERSIONING: dict[str, ByContent] = {"memory": InMemory(), "s3": InS3(), "s3a": InS3()}
"""Versioning by protocol; other filesystems have no conditional writes."""

_ANY_OTHER = ByContent()


def find_versioning(filesystem: Any) -> ByContent:
    """Return the versioning of the files of a filesystem."""
    ways = (
        _VERSIONING[protocol] for protocol in list_protocols(filesystem) if protocol in _VERSIONING
    )
    # another library than s3fs may implement the protocol of S3
    return next((way for way in ways if hasattr(filesystem, way.needs)), _ANY_OTHER)


def demand_conditions(filesystem: Any, path: str) -> None:
    """Refuse a filesystem on which writers would not notice each other.

    Raises
    ------
    UnsupportedError
        Conditional writes are unsafe, and the setting ``only_writer`` is off.
    """
    reason = find_versioning(filesystem).find_unsafe_reason(filesystem, path)
    if reason and not get_options().only_writer:
        raise UnsupportedError(
            f"{filesystem.unstrip_protocol(path)}: {reason}; write to a store whose conditional "
            f"writes keep several writers apart, or, if this is the only writer, set "
            f"virtualds.set_options(only_writer=True)"
        )


def put(filesystem: Any, path: str, data: bytes) -> None:
    """Write a file; make the folders above it, in filesystems that have folders."""
    if not list_protocols(filesystem) & WITHOUT_FOLDERS:
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, data)


def list_protocols(filesystem: Any) -> set[str]:
    """Return the protocols that a filesystem implements."""
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


# ---------------------------------------------------------------------- S3


def _object_of(filesystem: Any, path: str) -> dict[str, str]:
    bucket, key, _ = filesystem.split_path(path)
    return {"Bucket": bucket, "Key": key}


def _parent_folder_of(filesystem: Any, path: str) -> str:
    """Return the folder of a path, or the bucket, with a slash at the end."""
    named = _object_of(filesystem, path.rstrip("/"))
    above = named["Key"].rpartition("/")[0]
    return f"{named['Bucket']}/{above}/" if above else f"{named['Bucket']}/"


def _remove_old_proofs(filesystem: Any, folder: str) -> None:
    """Remove trial objects of processes that were killed."""
    named = _object_of(filesystem, folder + PROOF)
    # removing them is optional: a user who may not list or remove objects may still write
    with suppress(OSError), _s3_errors():
        answer = filesystem.call_s3("list_objects_v2", Bucket=named["Bucket"], Prefix=named["Key"])
        found = answer.get("Contents", [])
        old = [f["Key"] for f in found if f["LastModified"].timestamp() < time.time() - GRACE]
        if old:
            _delete(filesystem, named["Bucket"], [{"Key": key} for key in old])


def _delete(filesystem: Any, bucket: str, keys: list[dict[str, str]]) -> None:
    with _s3_errors():
        answer = filesystem.call_s3(
            "delete_objects", Bucket=bucket, Delete={"Objects": keys, "Quiet": True}
        )
    for failed in answer.get("Errors", []):
        raise StoreError(f"s3://{bucket}/{failed.get('Key')}: {failed.get('Message')}")


def _has_failed_condition(error: OSError, expected: str | None) -> bool:
    """Say whether S3 refused a write because its condition was false."""
    code = _code(error)
    return code in REFUSED_CODES or (expected is not None and code in ("NoSuchKey", "404"))


def _code(error: OSError) -> Any:
    """Return the code in the answer of S3 that caused an error."""
    answer = getattr(error.__cause__, "response", None) or {}
    return answer.get("Error", {}).get("Code")


@contextmanager
def _s3_errors() -> Iterator[None]:
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
