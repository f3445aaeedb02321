"""Retries of temporary failures of requests, and explanations of all other failures.

Retries use exponential backoff with full jitter, and respect the header Retry-After.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import thread as futures
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import NamedTuple, TypeVar

from virtualds.errors import AccessError, without_secrets
from virtualds.options import get_options
from virtualds.progress import DEBUG, INFO, is_logged, log
from virtualds.source_file import SourceFile
from virtualds.stores.store import RequestError, StoreError, list_store_errors

# ---------------------------------------------------------------------- interrupts
# Notes of interrupts (Ctrl-C), and whether threads that wait for servers should end.


INTERRUPTED = threading.Event()
"""Set when a user interrupts long work, whose threads may still wait for servers."""


@contextmanager
def explain_interrupt(describe: Callable[[], str]) -> Iterator[None]:
    """Add the note that ``describe`` returns to a `KeyboardInterrupt` in the block."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        INTERRUPTED.set()
        interrupt.add_note(describe())
        raise


def process_ends() -> bool:
    """Return whether the interpreter is exiting and waits for this thread."""
    # a private name of Python, for which there is no public one
    return bool(getattr(futures, "_shutdown", False))


def is_abandoned() -> bool:
    """Return whether the interpreter is exiting because the user has interrupted it."""
    return INTERRUPTED.is_set() and process_ends()


# ---------------------------------------------------------------------- retries


T = TypeVar("T")

FIRST_WAIT, MAX_WAIT = 0.2, 10.0
"""Maximum seconds to wait before the second attempt, and before any later one."""
MAX_RETRY_AFTER = 60.0
"""Maximum seconds to wait that a server can request."""
NAP = 0.2
"""Seconds of one sleep, after which waiting threads check whether the process is exiting."""

CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 30.0
"""Seconds until a connection must be open, and until the next bytes of a response must arrive.

The total time of a response has another limit, see `compute_time_limit`.
"""

TEMPORARY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of temporary failures (RFC 9110, section 15; RFC 8470; RFC 6585)."""
TEMPORARY_CODES = frozenset(
    {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"}
    | {"Throttling", "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded"}
)
"""Error codes of S3 and compatible servers for temporary failures."""
TEMPORARY_ERRORS = frozenset(
    {
        "TimeoutError",
        "ConnectionError",
        "IncompleteResponse",
        "IncompleteRead",
        "ResponseParserError",
    }
    | {"ClientPayloadError", "ClientConnectionError", "HTTPClientError"}
    | {"ServiceRequestError", "ServiceResponseError", "IncompleteReadError"}
)
"""Names of classes of temporary errors, by name since the libraries are optional."""
PERMANENT_ERRORS = frozenset(
    {"SSLError", "ClientSSLError", "ClientConnectorCertificateError", "ClientConnectorDNSError"}
    | {"InvalidURL", "TooManyRedirects"}
)
"""Names of classes of permanent errors whose base classes are in `TEMPORARY_ERRORS`."""

_CAUSES = 5
_STATUS_NAMES = ("status", "status_code", "code")


class IncompleteResponse(OSError):
    """Raised if a response is truncated, or does not match its headers."""


class RetriesExhausted(Exception):
    """Raised if all ``attempts`` have failed; the cause is the error of the last one."""

    def __init__(self, attempts: int) -> None:
        super().__init__(attempts)
        self.attempts = attempts


class Request(NamedTuple):
    """The description of a request in the log: ``GET``, ``HEAD`` or ``LIST`` of a url.

    If ``length`` is None, no byte range is requested. A request without a method is logged only if
    it fails.
    """

    method: str
    url: str
    offset: int = 0
    length: int | None = None

    def __str__(self) -> str:
        last = None if self.length is None else self.offset + self.length - 1
        part = "" if last is None else f" bytes {self.offset}-{last}"
        return f"{self.method} {self.url}{part}".lstrip()


def retry_request(send: Callable[[], T], request: Request) -> T:
    """Call ``send``, again after temporary failures, and return its result.

    ``request`` is its description in the log. If the last attempt fails, raises `RetriesExhausted`
    from the error of that attempt.
    """
    for attempt in count():
        if is_abandoned():
            raise RetriesExhausted(attempt + 1) from IncompleteResponse(
                "the program was interrupted"
            )
        start = time.monotonic()
        try:
            result = send()
        except list_store_errors() as error:
            is_retryable = is_temporary(error) or (attempt == 0 and is_stale_redirect(error))
            if attempt >= get_options().retries or not is_retryable:
                log_failure(request, error)
                raise RetriesExhausted(attempt + 1) from error
            wait = choose_wait(attempt + 1, error)
            log_failure(request, error, wait)
            pause(wait)
            if process_ends():
                raise RetriesExhausted(attempt + 1) from error
        else:
            if request.method and is_logged(DEBUG):
                seconds = time.monotonic() - start
                data: object = getattr(result, "data", result)
                if isinstance(data, bytes | bytearray | memoryview):
                    log(DEBUG, f"{request}: {len(data):,} bytes in {seconds:.3f} s")
                else:
                    log(DEBUG, f"{request}: {seconds:.3f} s")
            return result
    raise RetriesExhausted(0)


def log_failure(request: object, error: BaseException, wait: float | None = None) -> None:
    """Log a failure, and the seconds until the next attempt, if there is one."""
    if is_logged(INFO):
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        then = "it is not tried again" if wait is None else f"tried again in {wait:.1f} s"
        log(INFO, f"{request}: {why}; {then}")


def pause(seconds: float) -> None:
    """Sleep for some seconds, or until the process exits."""
    until = time.monotonic() + seconds
    while (remaining := until - time.monotonic()) > 0 and not process_ends():
        time.sleep(min(remaining, NAP))


def is_temporary(error: BaseException) -> bool:
    """Return whether a failure is temporary, so that another attempt may succeed."""
    for cause in iterate_causes(error):
        status, code = status_of(cause), code_of(cause)
        if status is not None or code is not None:
            return status in TEMPORARY_STATUSES or code in TEMPORARY_CODES
        if is_connection_error(cause):
            # in botocore, the reason for a failed connection is in the cause of the error
            return not any(
                list_class_names(below) & PERMANENT_ERRORS for below in iterate_causes(cause)
            )
    return False


def is_stale_redirect(error: BaseException) -> bool:
    """Return whether a redirected request was rejected, because the signed url may have expired.

    The next attempt begins at the first url, and is redirected to a new signed url.
    """
    return any(
        status_of(cause) in (400, 403) and getattr(cause, "history", ())
        for cause in iterate_causes(error)
    )


def is_connection_error(error: BaseException) -> bool:
    """Return whether an error is one of the connection, not of the file."""
    return bool(list_class_names(error) & (TEMPORARY_ERRORS | PERMANENT_ERRORS))


def list_class_names(error: BaseException) -> set[str]:
    """Return the names of the class of an error, and of its base classes."""
    return {kind.__name__ for kind in type(error).__mro__}


def choose_wait(attempt: int, error: BaseException) -> float:
    """Return the seconds to wait before an attempt; attempts are counted from 0."""
    max_wait = min(MAX_WAIT, FIRST_WAIT * 2.0 ** (attempt - 1))
    retry_after = max((_retry_after(cause) for cause in iterate_causes(error)), default=0.0)
    return max(random.uniform(0, max_wait), min(retry_after, MAX_RETRY_AFTER))


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of its cause, and so on."""
    cause: BaseException | None = error
    for _ in range(_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error of a client library, or None."""
    # lazily, since aiohttp warns when ``code`` is accessed
    values = (getattr(error, name, None) for name in _STATUS_NAMES)
    return next((value for value in values if isinstance(value, int) and value), None)


def code_of(error: BaseException) -> str | None:
    """Return the error code of a server in an error of a client library, or None."""
    code = getattr(error, "error_code", None)
    # in azure it is an enumeration of strings
    return str(getattr(code, "value", code)) if isinstance(code, str) else None


def _retry_after(error: BaseException) -> float:
    """Return the header Retry-After in seconds, or 0 without one (RFC 9110, section 10.2.3)."""
    headers = getattr(error, "headers", None)
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


# ---------------------------------------------------------------------- time limits
# The time limit of a request is a fixed time, which is extended while bytes arrive at a minimum
# rate. A read timeout alone would not limit a server that sends single bytes.


MAX_SECONDS = 366 * 86400.0
"""Seconds that stand for infinity, which some libraries do not support."""


class TooSlowError(IncompleteResponse):
    """Raised if a response is slower than `set_options` allows."""

    def __init__(self, received: int) -> None:
        options = get_options()
        super().__init__(
            f"{received} bytes came within {options.request_timeout} s and one more for every "
            f"{options.least_rate} bytes; virtualds.set_options has request_timeout and least_rate"
        )


def compute_time_limit(nbytes: int) -> float:
    """Return the maximum seconds of a request for ``nbytes`` bytes."""
    options = get_options()
    return min(options.request_timeout + nbytes / options.least_rate, MAX_SECONDS)


def join_parts(parts: Iterable[bytes], start: float) -> bytes:
    """Join the parts of a response; ``start`` is the monotonic time when the request was sent."""
    joined: list[bytes] = []
    received = 0
    for part in parts:
        joined.append(part)
        received += len(part)
        if time.monotonic() - start > compute_time_limit(received):
            raise TooSlowError(received)
    return b"".join(joined)


class Pace:
    """The deadline of a request, which is extended as bytes arrive.

    It also ends the requests of an interrupted process that is exiting.
    """

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout, self._loop = timeout, asyncio.get_running_loop()
        self._begun, self.received = self._loop.time(), 0
        self._next: asyncio.TimerHandle | None = None
        self.look()

    def look(self) -> None:
        """Cancel the request if it is too slow; otherwise schedule the next check."""
        now = self._loop.time()
        remaining = self._begun + compute_time_limit(self.received) - now
        if remaining <= 0 or is_abandoned():
            self._timeout.reschedule(now)
        else:
            self._next = self._loop.call_later(min(remaining, NAP), self.look)

    def stop(self) -> None:
        """Cancel the scheduled check."""
        if self._next is not None:
            self._next.cancel()

    async def gather(self, parts: AsyncIterator[bytes], most: int | None) -> bytes:
        """Return the bytes of a response, or only the first ``most`` of them."""
        gathered: list[bytes] = []
        async for part in parts:
            gathered.append(part)
            self.received += len(part)
            if most is not None and self.received >= most:
                break
        return b"".join(gathered)[:most]


@asynccontextmanager
async def limit_time() -> AsyncIterator[Pace]:
    """Raise `TooSlowError` if the block takes too long; yield its `Pace`."""
    try:
        async with asyncio.timeout(None) as timeout:
            pace = Pace(timeout)
            try:
                yield pace
            finally:
                pace.stop()
    except TimeoutError as error:
        # a timeout of a library keeps its own message
        if timeout.expired():
            raise TooSlowError(pace.received) from error
        raise


# ---------------------------------------------------------------------- rejected requests
# Meaning and remedy of the failures of requests, by error code, by HTTP status, or by the name of
# an error class of a client library, since the libraries are optional.


class FailureDescription(NamedTuple):
    """Meaning and remedy of a failure, and the class of error to raise (None: the default)."""

    kind: type[OSError] | None
    meaning: str
    remedy: str


OPTIONS = "storage_options"

REFUSED = FailureDescription(
    PermissionError,
    "the server refuses access",
    f"give credentials that may do this in {OPTIONS}, or anon=True for a public bucket, or "
    f"requester_pays=True for one whose readers pay",
)
BEARER = "{'headers': {'Authorization': 'Bearer ...'}}"
WEB_REFUSED = FailureDescription(
    PermissionError,
    "the server refuses access",
    f"give credentials that may do this in {OPTIONS}, such as {BEARER}",
)
REDIRECT_REFUSED = FailureDescription(
    PermissionError,
    "the server refuses access after a redirect",
    f"give credentials that may do this in {OPTIONS}, such as {BEARER}, and if they are meant for "
    f"that host too, its name: {{'trusted_hosts': ['...']}}",
)
OLD_SIGNATURE = FailureDescription(
    PermissionError,
    "the server refuses access by the signature or token of the url",
    "these end after some time, so get a new url; or give the plain url and credentials",
)
UNKNOWN_USER = FailureDescription(
    PermissionError,
    "no credentials, or none that can be used",
    f"log in, or give credentials in {OPTIONS}; a public bucket needs anon=True there",
)
NOT_FOUND = FailureDescription(FileNotFoundError, "there is no such file", "check the url")
NO_BUCKET = FailureDescription(
    FileNotFoundError,
    "there is no such bucket",
    f"check the url, and the account or endpoint_url in {OPTIONS}",
)
EXPIRED = FailureDescription(
    PermissionError,
    "the server refuses access, for the credentials have expired",
    f"give new ones in {OPTIONS}, or a function that gets them: {{'credentials': function}}",
)
WRONG_KEY = FailureDescription(
    PermissionError,
    "the server refuses access, for it does not know these credentials",
    f"check key, secret and token in {OPTIONS} (keys that expire need a token), and endpoint_url",
)
OTHER_REGION = FailureDescription(
    None,
    "the bucket is in another region",
    f"name its region in {OPTIONS}: {{'client_kwargs': {{'region_name': '...'}}}}",
)
STRAYED = FailureDescription(
    None,
    "the endpoint redirects to another host, which gets no credentials",
    f"name that host as endpoint in {OPTIONS}, or set anon=True there, if it needs none",
)
CLOCK = FailureDescription(
    PermissionError,
    "the server refuses access, for the clock of this machine differs from its own",
    "set the clock of this machine",
)
NOT_SAID = FailureDescription(
    PermissionError,
    "the server refuses access, and does not say why",
    f"see whether the credentials in {OPTIONS} have expired, and whether region_name is right",
)
NOT_PUBLIC = FailureDescription(
    PermissionError,
    "the server refuses access, for the account is not open to the public",
    f"give credentials in {OPTIONS}",
)
PROXY = FailureDescription(
    PermissionError,
    "the proxy refuses access",
    "give its user and password within the url of HTTP_PROXY or HTTPS_PROXY of the environment",
)
NO_PROXY = FailureDescription(
    None,
    "the proxy does not answer",
    "see whether HTTP_PROXY and HTTPS_PROXY of the environment are right",
)
NO_NAME = FailureDescription(
    None,
    "the name of the host is not known",
    f"check the url, endpoint_url in {OPTIONS}, and the network",
)
UNSAFE = FailureDescription(
    None,
    "no secure connection comes about",
    "see whether the url begins as it should (http or https), and whether the certificate of the "
    "server is known here",
)
NO_ANSWER = FailureDescription(
    None,
    "no server answers",
    f"see whether the host, or endpoint_url in {OPTIONS}, is right and up",
)
BUSY = FailureDescription(
    None,
    "the server is busy",
    "try again later, or with fewer requests at a time: virtualds.set_options(max_requests=8)",
)
OTHER_HOST = "OtherHost"
"""Error code of a redirect to another host, which is not followed."""

CODES = {
    OTHER_HOST: STRAYED,
    # https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"), EXPIRED),
    **dict.fromkeys(("InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"), WRONG_KEY),
    **dict.fromkeys(("AuthorizationHeaderMalformed", "PermanentRedirect"), OTHER_REGION),
    "IllegalLocationConstraintException": OTHER_REGION,
    "RequestTimeTooSkewed": CLOCK,
    "NoSuchBucket": NO_BUCKET,
    **dict.fromkeys(("SlowDown", "ServerBusy"), BUSY),
    # a response to HEAD has no body and no code, so botocore uses the status instead
    "400": NOT_SAID,
    # https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
    "AuthenticationFailed": WRONG_KEY,
    "NoAuthenticationInformation": UNKNOWN_USER,
    "PublicAccessNotPermitted": NOT_PUBLIC,
    "ContainerNotFound": NO_BUCKET,
}
"""Descriptions by error code of S3 and Azure."""

STATUSES = {401: REFUSED, 403: REFUSED, 404: NOT_FOUND, 407: PROXY, 410: NOT_FOUND}
STATUSES |= {429: BUSY, 503: BUSY}
"""Descriptions by HTTP status (RFC 9110, section 15; RFC 6585, section 4)."""

ERRORS = {
    # botocore
    **dict.fromkeys(("NoCredentialsError", "PartialCredentialsError"), UNKNOWN_USER),
    **dict.fromkeys(("CredentialRetrievalError", "ProfileNotFound"), UNKNOWN_USER),
    **dict.fromkeys(("TokenRetrievalError", "SSOTokenLoadError"), UNKNOWN_USER),
    "UnauthorizedSSOTokenError": UNKNOWN_USER,
    # google-auth, azure-identity
    **dict.fromkeys(("DefaultCredentialsError", "RefreshError"), UNKNOWN_USER),
    "CredentialUnavailableError": UNKNOWN_USER,
    "LoginPageError": REDIRECT_REFUSED,
    # aiohttp and botocore
    **dict.fromkeys(("ClientProxyConnectionError", "ProxyConnectionError"), NO_PROXY),
    "ClientConnectorDNSError": NO_NAME,
    **dict.fromkeys(("ClientSSLError", "ClientConnectorCertificateError", "SSLError"), UNSAFE),
}
"""Descriptions by the name of an error class or of a base class, in this order."""

EXPIRY_CODES = frozenset(
    {code for code, refusal in CODES.items() if refusal is EXPIRED}
    | {"InvalidToken", "AuthenticationFailed", "400"}
)
"""Error codes that may be due to expired credentials."""


def find_failure(error: BaseException) -> FailureDescription | None:
    """Return the description of a failure, or None if it is unknown.

    Examples
    --------
    >>> find_failure(OSError("odd")) is None
    True
    """
    causes = list(iterate_causes(error))
    for cause in causes:
        names = list_class_names(cause)
        if (status := status_of(cause)) is not None:
            description = CODES.get(code_of(cause) or "") or STATUSES.get(status)
            if description is not REFUSED or "ClientResponseError" not in names:
                return description
            if getattr(cause, "history", ()):
                return REDIRECT_REFUSED
            url = str(getattr(getattr(cause, "request_info", None), "real_url", ""))
            return WEB_REFUSED if without_secrets(url) == url else OLD_SIGNATURE
        if (named := next((ERRORS[name] for name in ERRORS if name in names), None)) is not None:
            return named
    if any(map(is_connection_error, causes)):
        return NO_ANSWER
    kinds = {refusal.kind: refusal for refusal in (REFUSED, NOT_FOUND)}
    return next((r for kind, r in kinds.items() if kind and isinstance(error, kind)), None)


def may_be_expired(error: BaseException) -> bool:
    """Return whether a request may have failed because of expired credentials."""
    return any(
        status_of(cause) == 401 or code_of(cause) in EXPIRY_CODES for cause in iterate_causes(error)
    )


# ---------------------------------------------------------------------- responses


URL_AT_END = re.compile(r", url='[^']*'$")
"""Matches the url at the end of messages of aiohttp, which our errors already contain."""

UNCHANGED_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Classes of errors that callers distinguish."""


class Response(NamedTuple):
    """Bytes of a file, with its current etag, size and `WRITER`, if the server sends them."""

    data: bytes
    etag: str | None = None
    size: int | None = None
    writer: str | None = None


WHOLE = 64 * 2**20
"""Maximum size in bytes of a file that is read as a whole from a server without ranges."""


def check_small(size: int | None) -> None:
    """Raise an error if a server without ranges sends a large file as a whole."""
    if size is None or size > WHOLE:
        raise StoreError(
            f"the server knows no ranges and sends the whole file, of {size or 'unknown'} bytes; "
            f"copy the file to a server with ranges"
        )


def check_whole_response(response: Response, file: SourceFile, length: int) -> bytes:
    """Return the bytes of a response; raise if it is incomplete, or the file has changed."""
    if get_options().check_sources:
        if None not in (response.size, file.size) and response.size != file.size:
            raise StoreError(f"the file has {response.size} bytes, it had {file.size} when scanned")
        etags = normalise_etag(response.etag), normalise_etag(file.etag)
        if "" not in etags and etags[0] != etags[1]:
            raise StoreError(
                f"the file was modified after it was scanned: its etag is {response.etag}, it was "
                f"{file.etag} (if its bytes are the same, "
                f"virtualds.set_options(check_sources=False) reads it)"
            )
    if len(response.data) != length:
        end = "" if response.size is None else f", for the file has {response.size} bytes"
        raise StoreError(f"the store sent {len(response.data)} of {length} bytes{end}")
    return response.data


def normalise_etag(etag: str | None) -> str:
    """Return an etag without quotes and the W/ of weak etags, which some libraries omit."""
    return (etag or "").strip().removeprefix("W/").strip('"')


def to_os_error(failed: RetriesExhausted, url: str = "") -> OSError:
    """Convert the error of a failed request to an `OSError`, with meaning and remedy.

    Without a url, it is mostly a `StoreError`, to which the caller adds the name of the file.
    """
    error = failed.__cause__ or failed
    tries = f" (tried {failed.attempts} times)" if failed.attempts > 1 else ""
    if isinstance(error, StoreError):
        return StoreError((f"{url}: " if url else "") + str(error) + tries)
    if isinstance(error, AccessError):
        # the message is complete
        return error
    refusal, kind = find_failure(error), _kind_of(error)
    text = _describe(kind, error, url)
    remedy = None if refusal is None else refusal.remedy
    if not url:
        return RequestError(text + tries, remedy=remedy or "")
    # libraries may report a refused request as a missing file
    if kind and kind is not PermissionError and isinstance(error, FileNotFoundError):
        kind = FileNotFoundError
    message = f"{url}: {text}{tries}" + (f"; {remedy}" if remedy else "")
    return (kind or RequestError)(without_secrets(message))


def _describe(kind: type[OSError] | None, error: BaseException, url: str) -> str:
    """Format the meaning of a failure, and the message of the server or the library."""
    # messages of other errors only repeat the url
    informative_causes = (
        c for c in iterate_causes(error) if status_of(c) is not None or is_connection_error(c)
    )
    cause = next(informative_causes, error)
    # the first line, since Azure's client appends the whole response
    line = (str(cause) or str(error)).partition("\n")[0]
    message = URL_AT_END.sub("", line)
    if getattr(cause, "history", ()):
        # name the host that responded after a redirect (errors of aiohttp)
        host = getattr(getattr(cause, "request_info", None), "real_url", None)
        message += f", host={getattr(host, 'host', None)!r}"
    if (refusal := find_failure(error)) is None:
        return f"{(kind or type(cause)).__name__}: {message}"
    return refusal.meaning if message in ("", url) else f"{refusal.meaning} ({message})"


def cause_of(failed: RetriesExhausted) -> BaseException | None:
    """Return the cause to chain to an error.

    None if the error already has its message, or if the message contains a secret of a url.
    """
    root_cause = failed.__cause__
    if (
        root_cause is not None
        and (refusal := find_failure(root_cause)) is not None
        and refusal.kind
    ):
        return None
    messages = [str(cause) for cause in iterate_causes(root_cause)] if root_cause else []
    return None if any(without_secrets(text) != text for text in messages) else root_cause


def _kind_of(error: BaseException) -> type[OSError] | None:
    """Return the class of error to raise for a failure, or None for the default."""
    if (refusal := find_failure(error)) is not None:
        return refusal.kind
    if any(status_of(cause) is not None for cause in iterate_causes(error)):
        return None
    return next((kind for kind in UNCHANGED_ERRORS if isinstance(error, kind)), None)
