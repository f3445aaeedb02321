"""Answers to requests: checks against the scanned file, and the errors of failed requests."""

from __future__ import annotations

import re
from typing import NamedTuple

from virtualds.errors import AccessError, without_secrets
from virtualds.options import get_options
from virtualds.source_file import SourceFile
from virtualds.stores.refusals import find_refusal
from virtualds.stores.retry import GaveUp, is_connection_error, list_causes, status_of
from virtualds.stores.store import RequestError, StoreError

URL_AT_END = re.compile(r", url='[^']*'$")
"""The end of messages of aiohttp; an error names its url once."""

KEPT_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Kinds of failure that callers distinguish."""


class Answer(NamedTuple):
    """Bytes of a file, with its current etag and size if the server sent them."""

    data: bytes
    etag: str | None = None
    size: int | None = None


def demand_whole_answer(answer: Answer, file: SourceFile, length: int) -> bytes:
    """Return the bytes of an answer, if it is complete and the file has not changed.

    Raises
    ------
    StoreError
        The file has changed since it was scanned, or the answer has too few bytes.
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
            f"{file.etag} (if its bytes are the same, "
            f"virtualds.set_options(check_sources=False) reads it)"
        )


def normalise_etag(etag: str | None) -> str:
    """Return an etag without quotes and the W of weak etags: some libraries leave these out."""
    return (etag or "").strip().removeprefix("W/").strip('"')


def to_os_error(failed: GaveUp, url: str = "") -> OSError:
    """Return the error to raise for a request that failed; its class is the kind of failure.

    The error names the url, if one is given. If not, it is a `StoreError`, and the caller adds the
    name of the file.
    """
    error = failed.__cause__ or failed
    tries = f" (tried {failed.attempts} times)" if failed.attempts > 1 else ""
    if isinstance(error, StoreError):
        return StoreError((f"{url}: " if url else "") + str(error) + tries)
    if isinstance(error, AccessError):
        # its message is complete
        return error
    refusal, kind = find_refusal(error), _kind_of(error)
    text = _describe(kind, error, url)
    remedy = None if refusal is None else refusal.remedy
    if not url:
        return RequestError(text + tries, remedy=remedy or "")
    # a server without listings may refuse a folder; callers that look into one expect "not found"
    kind = FileNotFoundError if isinstance(error, FileNotFoundError) and kind else kind
    told = f"{url}: {text}{tries}" + (f"; {remedy}" if remedy else "")
    return (kind or RequestError)(without_secrets(told))


def _describe(kind: type[OSError] | None, error: BaseException, url: str) -> str:
    """Return what a failure means, and what the server or its library says about it."""
    cause = _find_knowing_cause(error)
    # Azure's client tells the whole answer in further lines
    line = (str(cause) or str(error)).partition("\n")[0]
    said = URL_AT_END.sub("", line) + _name_last_host(cause)
    if (refusal := find_refusal(error)) is None:
        return f"{(kind or type(cause)).__name__}: {said}"
    return refusal.meaning if said in ("", url) else f"{refusal.meaning} ({said})"


def _name_last_host(error: BaseException) -> str:
    """Return which host answered, if it is not the one that was asked (errors of aiohttp)."""
    if not getattr(error, "history", ()):
        return ""
    host = getattr(getattr(error, "request_info", None), "real_url", None)
    return f", host={getattr(host, 'host', None)!r}"


def cause_of(failed: GaveUp) -> BaseException | None:
    """Return the cause of a failure to show.

    None if the error says all that the cause says, or if its text contains a secret of a url.
    """
    found = failed.__cause__
    if found is not None and (refusal := find_refusal(found)) is not None and refusal.kind:
        return None
    shown = [str(cause) for cause in list_causes(found)] if found else []
    return None if any(without_secrets(text) != text for text in shown) else found


def _kind_of(error: BaseException) -> type[OSError] | None:
    """Return the kind of a failure, None if callers do not distinguish it."""
    if (refusal := find_refusal(error)) is not None:
        return refusal.kind
    if any(status_of(cause) is not None for cause in list_causes(error)):
        return None
    return next((kind for kind in KEPT_ERRORS if isinstance(error, kind)), None)


def _find_knowing_cause(error: BaseException) -> BaseException:
    """Return the cause that knows most: others only repeat the url."""
    known = (c for c in list_causes(error) if status_of(c) is not None or is_connection_error(c))
    return next(known, error)
