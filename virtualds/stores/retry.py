"""Retries: which failures are temporary, how long to wait, and how often to try again.

The longest wait grows exponentially, and each wait is drawn at random between zero and it (full
jitter). So clients that failed together do not return together. A server's Retry-After is obeyed.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import chain, count
from typing import Any, NamedTuple, TypeVar

from virtualds.log import DEBUG, INFO, tell, tells
from virtualds.options import get_options
from virtualds.stores.interruption import is_abandoned, process_ends

T = TypeVar("T")

FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0
"""Seconds: the longest wait before the second attempt, and before any later one."""
LONGEST_RETRY_AFTER = 60.0
"""Seconds: the longest wait that a server can ask for."""
NAP = 0.2
"""Seconds of one sleep: threads that wait notice within this time that the process ends."""

CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 30.0
"""Seconds until a connection must be open, and until the next bytes of an answer must arrive.

A whole answer has no such limit: how long it takes depends on the network.
"""

PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of HTTP for temporary failures (RFC 9110, section 15; RFC 8470; RFC 6585)."""
PASSING_CODES = frozenset(
    {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"}
    | {"Throttling", "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded"}
)
"""Codes of S3, and of servers with its protocol, for temporary failures."""
PASSING_ERRORS = frozenset(
    {"TimeoutError", "ConnectionError", "BrokenAnswer", "IncompleteRead", "ResponseParserError"}
    | {"ClientPayloadError", "ClientConnectionError", "HTTPClientError"}
    | {"ServiceRequestError", "ServiceResponseError", "IncompleteReadError"}
    # botocore compares bytes with the checksum of the server
    | {"FlexibleChecksumError"}
)
"""Names of temporary errors, or of their base classes: their libraries are optional."""
LASTING_ERRORS = frozenset(
    {"SSLError", "ClientSSLError", "ClientConnectorCertificateError", "ClientConnectorDNSError"}
    | {"InvalidURL", "TooManyRedirects"}
)
"""Names of lasting errors whose base classes are in `PASSING_ERRORS`."""

CLIENT_ERRORS = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("gcsfs.retry", "HttpError"),
    ("gcsfs.retry", "NonRetryableError"),
    ("google.auth.exceptions", "GoogleAuthError"),
)
"""Errors of the libraries below fsspec that are no OSError: module and name."""

_CAUSES = 5
_STATUS_NAMES = ("status", "status_code", "code")


class BrokenAnswer(OSError):
    """An answer ended too early, or is not what was announced."""


class GaveUp(Exception):
    """The last of ``attempts`` failed; the cause is the error of that attempt."""

    def __init__(self, attempts: int) -> None:
        super().__init__(attempts)
        self.attempts = attempts


class Request(NamedTuple):
    """What a server is asked for, in the words of the log: ``GET``, ``HEAD`` or ``LIST`` of a url.

    If ``length`` is None, everything is asked for.
    """

    method: str
    url: str
    offset: int = 0
    length: int | None = None

    def __str__(self) -> str:
        last = None if self.length is None else self.offset + self.length - 1
        part = "" if last is None else f" bytes {self.offset}-{last}"
        return f"{self.method} {self.url}{part}"


def list_store_errors() -> tuple[type[BaseException], ...]:
    """Return the errors that a request may raise; only imported libraries can raise theirs."""
    loaded = ((sys.modules.get(module), name) for module, name in CLIENT_ERRORS)
    # a module that is not imported, or of an older version, has none of this name
    return OSError, *(getattr(module, name) for module, name in loaded if hasattr(module, name))


def retry_request(request: Callable[[int], T], asked: Request) -> T:
    """Return the result of a request; repeat the request while its failures are temporary.

    Parameters
    ----------
    request : callable
        Takes the number of the attempt, from 0.
    asked : Request
        What the log calls it.

    Raises
    ------
    GaveUp
        The last attempt failed; its error is the cause.
    """
    for attempt in count():
        if is_abandoned():
            raise GaveUp(attempt + 1) from BrokenAnswer("the program was interrupted")
        begun = time.monotonic()
        try:
            answer = request(attempt)
        except list_store_errors() as error:
            again = may_pass(error) or (attempt == 0 and is_stale_redirect(error))
            if attempt >= get_options().retries or not again:
                tell_failure(asked, error)
                raise GaveUp(attempt + 1) from error
            wait = choose_wait(attempt + 1, error)
            tell_failure(asked, error, wait)
            pause(wait)
            if process_ends():
                raise GaveUp(attempt + 1) from error
        else:
            if tells(DEBUG):
                seconds = time.monotonic() - begun
                tell(DEBUG, f"{asked}: {_format_size(answer)}{seconds:.3f} s")
            return answer
    raise GaveUp(0)


def tell_failure(asked: object, error: BaseException, wait: float | None = None) -> None:
    """Tell that something failed, and after how many seconds it is tried again, if it is."""
    if tells(INFO):
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        then = "it is not tried again" if wait is None else f"tried again in {wait:.1f} s"
        tell(INFO, f"{asked}: {why}; {then}")


def _format_size(answer: object) -> str:
    data = getattr(answer, "data", answer)
    return f"{len(data):,} bytes in " if isinstance(data, bytes | bytearray | memoryview) else ""


def pause(seconds: float) -> None:
    """Wait for some seconds, or until the process ends."""
    until = time.monotonic() + seconds
    while (rest := until - time.monotonic()) > 0 and not process_ends():
        time.sleep(min(rest, NAP))


def may_pass(error: BaseException) -> bool:
    """Say whether a failure is worth another attempt."""
    for cause in list_causes(error):
        status, code = status_of(cause), code_of(cause)
        if status is not None or code is not None:
            return status in PASSING_STATUSES or code in PASSING_CODES
        if is_connection_error(cause):
            # botocore says why there is no connection in the cause of its error
            return not any(error_names_of(below) & LASTING_ERRORS for below in list_causes(cause))
    return False


def is_stale_redirect(error: BaseException) -> bool:
    """Say whether a server redirected to a url that another refused: its signature may be too old.

    Another attempt begins at the first url, and is redirected to a new one.
    """
    return any(
        status_of(cause) in (400, 403) and getattr(cause, "history", ())
        for cause in list_causes(error)
    )


def is_connection_error(error: BaseException) -> bool:
    """Say whether the connection failed, so that the server said nothing about the file."""
    return bool(error_names_of(error) & (PASSING_ERRORS | LASTING_ERRORS))


def error_names_of(error: BaseException) -> set[str]:
    """Return the names of the class of an error and of its base classes."""
    return {kind.__name__ for kind in type(error).__mro__}


def choose_wait(attempt: int, error: BaseException) -> float:
    """Return how many seconds to wait, after a failure, before an attempt, counted from 0."""
    most = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (attempt - 1))
    asked = max((_retry_after(cause) for cause in list_causes(error)), default=0.0)
    return max(random.uniform(0, most), min(asked, LONGEST_RETRY_AFTER))


def list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on."""
    found: BaseException | None = error
    for _ in range(_CAUSES):
        if found is None:
            return
        yield found
        # errors of botocore hold their causes
        held = getattr(found, "kwargs", None)
        within = held.get("error") if isinstance(held, Mapping) else None
        found = found.__cause__ or (within if isinstance(within, BaseException) else None)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error of aiohttp, azure, gcsfs or botocore, if it has one."""
    answer = _answer_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    # lazily, one after the other: aiohttp warns when its ``code`` is read
    given = chain([answer], (getattr(error, name, None) for name in _STATUS_NAMES))
    return next((value for value in given if isinstance(value, int) and value), None)


def code_of(error: BaseException) -> str | None:
    """Return the code of an error of botocore or azure, if the server gave one."""
    given = _answer_of(error).get("Error", {}).get("Code") or getattr(error, "error_code", None)
    # that of azure is an enumeration of strings
    return str(getattr(given, "value", given)) if isinstance(given, str) else None


def _answer_of(error: BaseException) -> Mapping[str, Any]:
    answer = getattr(error, "response", None)
    return answer if isinstance(answer, Mapping) else {}


def _retry_after(error: BaseException) -> float:
    """Return the seconds of the header Retry-After, 0 without one (RFC 9110, section 10.2.3)."""
    headers = getattr(error, "headers", None)
    if headers is None:
        headers = _answer_of(error).get("ResponseMetadata", {}).get("HTTPHeaders")
    names = headers.items() if isinstance(headers, Mapping) else ()
    text = next((str(value) for name, value in names if str(name).lower() == "retry-after"), "")
    if text.strip().isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime.now(UTC)).total_seconds()
