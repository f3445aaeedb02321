"""Answers to requests: checks against the scanned file, and errors of failed requests."""

from __future__ import annotations

from typing import NamedTuple

from virtualds.errors import without_secrets
from virtualds.options import get_options
from virtualds.source_file import SourceFile
from virtualds.stores.retry import (
    GaveUp,
    error_names_of,
    is_connection_error,
    list_causes,
    status_of,
)
from virtualds.stores.store import RequestError, StoreError

REMEDIES: dict[type[OSError] | None, str] = {
    PermissionError: "give credentials that may do this, or anon=True for a public bucket, in "
    "storage_options",
}
"""What to do, by kind of failure; what to do about missing files is known to whoever needs them."""

UNREACHABLE = "see whether the host, or endpoint_url in storage_options, is right and up"
"""What to do where no server answers."""

NO_CREDENTIALS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}
    | {"TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError", "ProfileNotFound"}
    | {"DefaultCredentialsError", "RefreshError", "CredentialUnavailableError"}
)
"""Names of errors of botocore, google-auth and azure-identity, which need not be installed."""

KINDS: dict[int, type[OSError]] = {
    401: PermissionError,
    403: PermissionError,
    404: FileNotFoundError,
    410: FileNotFoundError,
}
"""Kinds of failure by status."""

KEPT_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Kinds of failure that callers tell apart."""


class Answer(NamedTuple):
    """Bytes of a file, and what came with them: its etag and its size now, where they are told."""

    data: bytes
    etag: str | None = None
    size: int | None = None


def demand_whole_answer(answer: Answer, file: SourceFile, length: int) -> bytes:
    """Return the bytes of an answer, if they are those that were asked for.

    Raises
    ------
    StoreError
        They are of another file than the one that was scanned, or too few.
    """
    if get_options().check_sources:
        _check(answer, file)
    if len(answer.data) != length:
        end = "" if answer.size is None else f", for the file has {answer.size} bytes"
        raise StoreError(f"the store sent {len(answer.data)} of {length} bytes{end}")
    return answer.data


def _check(answer: Answer, file: SourceFile) -> None:
    sizes, etags = (
        (answer.size, file.size),
        (normalise_etag(answer.etag), normalise_etag(file.etag)),
    )
    if None not in sizes and answer.size != file.size:
        raise StoreError(f"the file has {answer.size} bytes, it had {file.size} when scanned")
    if "" not in etags and etags[0] != etags[1]:
        raise StoreError(
            f"the file was modified after it was scanned: its etag is {answer.etag}, it was "
            f"{file.etag} (virtualds.set_options(check_sources=False) reads it all the same)"
        )


def normalise_etag(etag: str | None) -> str:
    """Return an etag without what libraries add or leave out: quotes, and the W of weak ones."""
    return (etag or "").strip().removeprefix("W/").strip('"')


def to_os_error(failed: GaveUp, url: str = "") -> OSError:
    """Return the error to raise for bytes that cannot be had, of a kind that callers tell apart.

    With a url it is named, else the error is a `StoreError`, which whoever asked completes.
    """
    error = failed.__cause__ or failed
    tries = f" (tried {failed.attempts} times)" if failed.attempts > 1 else ""
    if isinstance(error, StoreError):
        return StoreError((f"{url}: " if url else "") + str(error) + tries)
    kind = _kind_of(error)
    said = _message_of(error)
    text = f"{(kind or type(error)).__name__}: {'there is no such file' if said == url else said}"
    remedy = f" ({REMEDIES[kind]})" if kind in REMEDIES else ""
    if kind is None and any(map(is_connection_error, list_causes(error))):
        remedy = f" ({UNREACHABLE})"
    if not url:
        return RequestError(text + remedy + tries)
    # servers that list no folders refuse them: a folder is looked into all the same
    kind = FileNotFoundError if isinstance(error, FileNotFoundError) and kind else kind
    return (kind or RequestError)(without_secrets(f"{url}: {text}{remedy}{tries}"))


def cause_of(failed: GaveUp) -> BaseException | None:
    """Return what a failure is to be raised from: nothing that shows a secret of a url."""
    found = failed.__cause__
    shown = [str(cause) for cause in list_causes(found)] if found else []
    return None if any(without_secrets(text) != text for text in shown) else found


def _kind_of(error: BaseException) -> type[OSError] | None:
    """Return which of the kinds that callers tell apart a failure is, None if it is another."""
    for cause in list_causes(error):
        if (status := status_of(cause)) is not None:
            return KINDS.get(status)
        if not NO_CREDENTIALS.isdisjoint(error_names_of(cause)):
            return PermissionError
        if is_connection_error(cause):
            return None
    return next((kind for kind in KEPT_ERRORS if isinstance(error, kind)), None)


def _message_of(error: BaseException) -> str:
    """Return what was said of a failure, by whoever knows: others only repeat the url."""
    told = (c for c in list_causes(error) if status_of(c) is not None or is_connection_error(c))
    return str(next(told, error)) or str(error)
