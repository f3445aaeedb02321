"""Retries: which failures may pass, how long to wait, and how often.

Waits grow exponentially and are drawn at random from zero up (full jitter), so that clients that
failed together do not come back together. Retry-After of a server is respected.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import thread as futures
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import chain, count
from typing import Any, TypeVar

from virtualds.options import get_options

T = TypeVar("T")

FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0
"""Seconds: the most that is waited before the second attempt, and before any."""
LONGEST_RETRY_AFTER = 60.0
"""Seconds; a server that asks for more is asked again after these."""
NAP = 0.5
"""Seconds that are slept at a time, so that a process that ends is not kept by those who wait."""

CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 30.0
"""Seconds until a connection must stand, and until the next bytes of an answer must come.

There is none for a whole answer: how long it may take depends on the network.
"""

PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Of HTTP (RFC 9110, section 15; RFC 8470; RFC 6585)."""
PASSING_CODES = frozenset(
    {"SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError", "ServiceUnavailable"}
    | {"Throttling", "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded"}
)
"""Of S3 and those that speak like it."""
PASSING_ERRORS = frozenset(
    {"TimeoutError", "ConnectionError", "BrokenAnswer", "IncompleteRead", "ResponseParserError"}
    | {"ClientPayloadError", "ClientConnectionError", "HTTPClientError"}
    | {"ServiceRequestError", "ServiceResponseError", "IncompleteReadError"}
)
"""Names of errors, or of what they are derived from: the libraries that raise them are optional."""
LASTING_ERRORS = frozenset(
    {"SSLError", "ClientSSLError", "ClientConnectorCertificateError", "ClientConnectorDNSError"}
    | {"InvalidURL", "TooManyRedirects"}
)
"""Names of errors that are derived from passing ones, and are none."""

CLIENT_ERRORS = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("gcsfs.retry", "HttpError"),
)
"""What the libraries below fsspec raise that is no OSError."""

_CAUSES = 5
_STATUS_NAMES = ("status", "status_code", "code")


class BrokenAnswer(OSError):
    """An answer that ended before it was whole."""


class GaveUp(Exception):
    """The last of ``attempts`` failed for the error that this was raised from."""

    def __init__(self, attempts: int) -> None:
        super().__init__(attempts)
        self.attempts = attempts


def list_store_errors() -> tuple[type[BaseException], ...]:
    """Return what asking a store may raise; libraries that nobody imported raise nothing."""
    loaded = ((sys.modules.get(module), name) for module, name in CLIENT_ERRORS)
    return OSError, *(getattr(module, name) for module, name in loaded if module is not None)


def retry_request(request: Callable[[int], T]) -> T:
    """Return the result of a request, repeated while it fails in a way that may pass.

    Parameters
    ----------
    request : callable
        It is given the number of the attempt, from 0.

    Raises
    ------
    GaveUp
        From the last failure.
    """
    for attempt in count():
        try:
            return request(attempt)
        except list_store_errors() as error:
            if attempt >= get_options().retries or not may_pass(error):
                raise GaveUp(attempt + 1) from error
            pause(choose_wait(attempt + 1, error))
            if _process_ends():
                raise GaveUp(attempt + 1) from error
    raise GaveUp(0)


def _process_ends() -> bool:
    """Say whether the interpreter is ending and waits for this thread."""
    # there is no public name for it; without the private one, requests go on
    return bool(getattr(futures, "_shutdown", False))


def pause(seconds: float) -> None:
    """Wait, but not longer than until the process ends."""
    until = time.monotonic() + seconds
    while (rest := until - time.monotonic()) > 0 and not _process_ends():
        time.sleep(min(rest, NAP))


def may_pass(error: BaseException) -> bool:
    """Say whether a failure is worth another attempt."""
    for cause in list_causes(error):
        status, code = status_of(cause), _code_of(cause)
        if status is not None or code is not None:
            return status in PASSING_STATUSES or code in PASSING_CODES
        if is_connection_error(cause):
            return not error_names_of(cause) & LASTING_ERRORS
    return False


def is_connection_error(error: BaseException) -> bool:
    """Say whether it is the connection that failed, so that the server told nothing of the file."""
    return bool(error_names_of(error) & (PASSING_ERRORS | LASTING_ERRORS))


def error_names_of(error: BaseException) -> set[str]:
    """Return the names of the type of an error and of all that it is derived from."""
    return {kind.__name__ for kind in type(error).__mro__}


def choose_wait(attempt: int, error: BaseException) -> float:
    """Return how many seconds to wait before an attempt, counted from 0, after a failure."""
    most = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (attempt - 1))
    asked = max((_retry_after(cause) for cause in list_causes(error)), default=0.0)
    return max(random.uniform(0, most), min(asked, LONGEST_RETRY_AFTER))


def list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from."""
    found: BaseException | None = error
    for _ in range(_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error of aiohttp, azure, gcsfs or botocore, if it has one."""
    answer = _answer_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    # one after the other, for aiohttp warns whoever looks at its ``code``
    given = chain([answer], (getattr(error, name, None) for name in _STATUS_NAMES))
    return next((value for value in given if isinstance(value, int) and value), None)


def _code_of(error: BaseException) -> str | None:
    code = _answer_of(error).get("Error", {}).get("Code")
    return code if isinstance(code, str) else None


def _answer_of(error: BaseException) -> Mapping[str, Any]:
    answer = getattr(error, "response", None)
    return answer if isinstance(answer, Mapping) else {}


def _retry_after(error: BaseException) -> float:
    """Return the seconds of a Retry-After, 0 for none (RFC 9110, section 10.2.3)."""
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
