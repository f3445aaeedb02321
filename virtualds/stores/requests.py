"""Retries of requests after temporary failures, and explanations of permanent failures.

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
# Notes on interrupts (Ctrl-C), and whether threads that wait for servers should stop.


INTERRUPTED = threading.Event()
"""Set when the user interrupts an operation whose threads may still wait for servers."""


@contextmanager
def explain_interrupt(describe: Callable[[], str]) -> Iterator[None]:
    """Add the note that ``describe`` returns to a `KeyboardInterrupt` in the block."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        INTERRUPTED.set()
        interrupt.add_note(describe())
        raise


def is_exiting() -> bool:
    """Return whether the interpreter is exiting and waits for this thread."""
    # Python has no public equivalent of this attribute
    return bool(getattr(futures, "_shutdown", False))


def is_abandoned() -> bool:
    """Return whether the interpreter is exiting because the user has interrupted it."""
    return INTERRUPTED.is_set() and is_exiting()


# ---------------------------------------------------------------------- retries


T = TypeVar("T")

FIRST_WAIT, MAX_WAIT = 0.2, 10.0
"""Maximum seconds to wait before the second attempt, and before any later one."""
MAX_RETRY_AFTER = 60.0
"""Maximum seconds to wait if the server sends the header Retry-After."""
POLL_INTERVAL = 0.2
"""Seconds between checks of waiting threads whether the process is exiting."""

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
"""Names of classes of temporary errors (names, since the libraries are optional)."""
PERMANENT_ERRORS = frozenset(
    {"SSLError", "ClientSSLError", "ClientConnectorCertificateError", "ClientConnectorDNSError"}
    | {"InvalidURL", "TooManyRedirects"}
)
"""Names of classes of permanent errors whose base classes are in `TEMPORARY_ERRORS`."""

_MAX_CAUSES = 5
_STATUS_NAMES = ("status", "status_code", "code")


class IncompleteResponse(OSError):
    """Raised if a response is truncated, or does not match its headers."""


class RetriesExhausted(Exception):
    """Raised if all ``attempts`` have failed; its cause is the last error."""

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
    """Call ``send``, retrying after temporary failures, and return its result.

    ``request`` describes the request in the log. If the last attempt fails, raises
    `RetriesExhausted` from its error.
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
            if is_exiting():
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
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]

        next_step = "it is not tried again" if wait is None else f"tried again in {wait:.1f} s"
        log(INFO, f"{request}: {reason}; {next_step}")


def pause(seconds: float) -> None:
    """Sleep for a number of seconds, or until the process exits."""
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0 and not is_exiting():
        time.sleep(min(remaining, POLL_INTERVAL))


def is_temporary(error: BaseException) -> bool:
    """Return whether a failure is temporary, so that another attempt may succeed."""
    for cause in iterate_causes(error):
        status, code = get_status(cause), get_error_code(cause)
        if status is not None or code is not None:
            return status in TEMPORARY_STATUSES or code in TEMPORARY_CODES
        if is_connection_error(cause):
            # botocore chains the reason for a failed connection as the cause
            return not any(
                list_class_names(inner) & PERMANENT_ERRORS for inner in iterate_causes(cause)
            )
    return False


def is_stale_redirect(error: BaseException) -> bool:
    """Return whether a redirected request was rejected, perhaps since its signed url has expired.

    The next attempt starts from the original url, and is redirected to a new signed url.
    """
    return any(
        get_status(cause) in (400, 403) and getattr(cause, "history", ())
        for cause in iterate_causes(error)
    )


def is_connection_error(error: BaseException) -> bool:
    """Return whether an error comes from the connection, not from the file."""
    return bool(list_class_names(error) & (TEMPORARY_ERRORS | PERMANENT_ERRORS))


def list_class_names(error: BaseException) -> set[str]:
    """Return the names of the class of an error, and of its base classes."""
    return {cls.__name__ for cls in type(error).__mro__}


def choose_wait(attempt: int, error: BaseException) -> float:
    """Return the seconds to wait before an attempt; attempts are numbered from 0."""
    max_wait = min(MAX_WAIT, FIRST_WAIT * 2.0 ** (attempt - 1))
    retry_after = max((_get_retry_after(cause) for cause in iterate_causes(error)), default=0.0)
    return max(random.uniform(0, max_wait), min(retry_after, MAX_RETRY_AFTER))


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of its cause, and so on."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def get_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of a client library, or None."""
    # lazily, since aiohttp warns when ``code`` is accessed
    values = (getattr(error, name, None) for name in _STATUS_NAMES)
    return next((value for value in values if isinstance(value, int) and value), None)


def get_error_code(error: BaseException) -> str | None:
    """Return the error code of a server in an error of a client library, or None."""
    code = getattr(error, "error_code", None)
    # azure uses an enumeration of strings
    return str(getattr(code, "value", code)) if isinstance(code, str) else None


def _get_retry_after(error: BaseException) -> float:
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
# The time limit of a request is extended while bytes arrive at a minimum rate. A read timeout alone
# would not limit a server that sends single bytes.


MAX_SECONDS = 366 * 86400.0
"""Maximum time limit in seconds, since some libraries do not support infinity."""


class TooSlowError(IncompleteResponse):
    """Raised if a response is slower than `set_options` allows."""

    def __init__(self, received: int) -> None:
        options = get_options()
        super().__init__(
            f"only {received} bytes arrived in {options.request_timeout} s plus 1 s for every "
            f"{options.least_rate} bytes; virtualds.set_options has request_timeout and least_rate"
        )


def compute_time_limit(nbytes: int) -> float:
    """Return the time limit in seconds of a request for ``nbytes`` bytes."""
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


class Deadline:
    """The deadline of a request, which is extended as bytes arrive.

    Requests of an interrupted process that is exiting are cancelled as well.
    """

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout, self._loop = timeout, asyncio.get_running_loop()
        self._start, self.received = self._loop.time(), 0
        self._next: asyncio.TimerHandle | None = None
        self.check()

    def check(self) -> None:
        """Cancel the request if it is too slow; otherwise schedule the next check."""
        now = self._loop.time()
        remaining = self._start + compute_time_limit(self.received) - now
        if remaining <= 0 or is_abandoned():
            self._timeout.reschedule(now)
        else:
            self._next = self._loop.call_later(min(remaining, POLL_INTERVAL), self.check)

    def stop(self) -> None:
        """Cancel the scheduled check."""
        if self._next is not None:
            self._next.cancel()

    async def gather(self, parts: AsyncIterator[bytes], max_bytes: int | None) -> bytes:
        """Return the bytes of a response, at most the first ``max_bytes`` of them."""
        gathered: list[bytes] = []
        async for part in parts:
            gathered.append(part)
            self.received += len(part)
            if max_bytes is not None and self.received >= max_bytes:
                break
        return b"".join(gathered)[:max_bytes]


@asynccontextmanager
async def limit_time() -> AsyncIterator[Deadline]:
    """Yield the `Deadline` of a request; raise `TooSlowError` if the block exceeds it."""
    try:
        async with asyncio.timeout(None) as timeout:
            deadline = Deadline(timeout)
            try:
                yield deadline
            finally:
                deadline.stop()
    except TimeoutError as error:
        # a timeout of the client library keeps its message
        if timeout.expired():
            raise TooSlowError(deadline.received) from error
        raise


# ---------------------------------------------------------------------- rejected requests
# Meanings and remedies of failures, by error code, by HTTP status, or by the name of an error class
# of a client library (names, since the libraries are optional).


class FailureDescription(NamedTuple):
    """Meaning and remedy of a failure, and the error class to raise (None: the default)."""

    error_class: type[OSError] | None
    meaning: str
    remedy: str


OPTIONS = "storage_options"

REFUSED = FailureDescription(
    PermissionError,
    "the server refuses access",
    f"give credentials that may do this in {OPTIONS}, or anon=True for a public bucket, or "
    f"requester_pays=True for one whose readers pay",
)
BEARER_EXAMPLE = "{'headers': {'Authorization': 'Bearer ...'}}"
WEB_REFUSED = FailureDescription(
    PermissionError,
    "the server refuses access",
    f"give credentials that may do this in {OPTIONS}, such as {BEARER_EXAMPLE}",
)
REDIRECT_REFUSED = FailureDescription(
    PermissionError,
    "the server refuses access after a redirect",
    f"give credentials that may do this in {OPTIONS}, such as {BEARER_EXAMPLE}, and if they are "
    "meant for "
    f"that host too, its name: {{'trusted_hosts': ['...']}}",
)
EXPIRED_SIGNATURE = FailureDescription(
    PermissionError,
    "the server refuses access by the signature or token of the url",
    "these expire, so get a new url; or give the plain url and credentials",
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
    "the server refuses access, because the credentials have expired",
    f"give new ones in {OPTIONS}, or a function that gets them: {{'credentials': function}}",
)
WRONG_KEY = FailureDescription(
    PermissionError,
    "the server refuses access, because it does not know these credentials",
    f"check key, secret and token in {OPTIONS} (keys that expire need a token), and endpoint_url",
)
OTHER_REGION = FailureDescription(
    None,
    "the bucket is in another region",
    f"name its region in {OPTIONS}: {{'client_kwargs': {{'region_name': '...'}}}}",
)
OTHER_HOST_REDIRECT = FailureDescription(
    None,
    "the endpoint redirects to another host, which gets no credentials",
    f"name that host as endpoint in {OPTIONS}, or set anon=True there, if it needs none",
)
CLOCK_SKEW = FailureDescription(
    PermissionError,
    "the server refuses access, because the clock of this machine differs from its own",
    "set the clock of this machine",
)
UNSPECIFIED = FailureDescription(
    PermissionError,
    "the server refuses access, and does not say why",
    f"see whether the credentials in {OPTIONS} have expired, and whether region_name is right",
)
NOT_PUBLIC = FailureDescription(
    PermissionError,
    "the server refuses access, because the account is not open to the public",
    f"give credentials in {OPTIONS}",
)
PROXY_REFUSED = FailureDescription(
    PermissionError,
    "the proxy refuses access",
    "give its user and password within the url of HTTP_PROXY or HTTPS_PROXY of the environment",
)
NO_PROXY = FailureDescription(
    None,
    "the proxy does not answer",
    "see whether HTTP_PROXY and HTTPS_PROXY of the environment are right",
)
UNKNOWN_HOST = FailureDescription(
    None,
    "the name of the host is not known",
    f"check the url, endpoint_url in {OPTIONS}, and the network",
)
TLS_FAILED = FailureDescription(
    None,
    "no secure connection can be established",
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
    OTHER_HOST: OTHER_HOST_REDIRECT,
    # https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"), EXPIRED),
    **dict.fromkeys(("InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"), WRONG_KEY),
    **dict.fromkeys(("AuthorizationHeaderMalformed", "PermanentRedirect"), OTHER_REGION),
    "IllegalLocationConstraintException": OTHER_REGION,
    "RequestTimeTooSkewed": CLOCK_SKEW,
    "NoSuchBucket": NO_BUCKET,
    **dict.fromkeys(("SlowDown", "ServerBusy"), BUSY),
    # a response to HEAD has no body and thus no code, so botocore uses the status instead
    "400": UNSPECIFIED,
    # https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
    "AuthenticationFailed": WRONG_KEY,
    "NoAuthenticationInformation": UNKNOWN_USER,
    "PublicAccessNotPermitted": NOT_PUBLIC,
    "ContainerNotFound": NO_BUCKET,
}
"""Descriptions by error code of S3 and Azure."""

STATUSES = {401: REFUSED, 403: REFUSED, 404: NOT_FOUND, 407: PROXY_REFUSED, 410: NOT_FOUND}
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
    "ClientConnectorDNSError": UNKNOWN_HOST,
    **dict.fromkeys(("ClientSSLError", "ClientConnectorCertificateError", "SSLError"), TLS_FAILED),
}
"""Descriptions by the name of an error class or of a base class, in this order."""

EXPIRY_CODES = frozenset(
    {code for code, description in CODES.items() if description is EXPIRED}
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
        if (status := get_status(cause)) is not None:
            description = CODES.get(get_error_code(cause) or "") or STATUSES.get(status)
            if description is not REFUSED or "ClientResponseError" not in names:
                return description
            if getattr(cause, "history", ()):
                return REDIRECT_REFUSED
            url = str(getattr(getattr(cause, "request_info", None), "real_url", ""))
            return WEB_REFUSED if without_secrets(url) == url else EXPIRED_SIGNATURE
        if (named := next((ERRORS[name] for name in ERRORS if name in names), None)) is not None:
            return named
    if any(map(is_connection_error, causes)):
        return NO_ANSWER

    generic = {PermissionError: REFUSED, FileNotFoundError: NOT_FOUND}
    return next((generic[cls] for cls in generic if isinstance(error, cls)), None)


def may_be_expired(error: BaseException) -> bool:
    """Return whether a request may have failed because of expired credentials."""
    return any(
        get_status(cause) == 401 or get_error_code(cause) in EXPIRY_CODES
        for cause in iterate_causes(error)
    )


# ---------------------------------------------------------------------- responses


URL_AT_END = re.compile(r", url='[^']*'$")
"""Matches the url at the end of messages of aiohttp, which our messages already contain."""

UNCHANGED_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Error classes that callers distinguish."""


class Response(NamedTuple):
    """Bytes of a file, with its current etag, size and `WRITER_KEY`, if the server sends them."""

    data: bytes
    etag: str | None = None
    size: int | None = None
    writer: str | None = None


MAX_WHOLE_FILE = 64 * 2**20
"""Maximum bytes of a file that is read whole from a server without range requests."""


def check_small(size: int | None) -> None:
    """Raise an error if a server without range requests would send a large file whole."""
    if size is None or size > MAX_WHOLE_FILE:
        raise StoreError(
            f"the server does not support range requests and sends the whole file, of "
            f"{size or 'unknown'} bytes; copy the file to a server that supports them"
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
        end = "" if response.size is None else f", because the file has {response.size} bytes"
        raise StoreError(f"the store sent {len(response.data)} of {length} bytes{end}")
    return response.data


def normalise_etag(etag: str | None) -> str:
    """Return an etag without quotes and without the W/ of weak etags.

    Some libraries omit these.
    """
    return (etag or "").strip().removeprefix("W/").strip('"')


def to_os_error(failed: RetriesExhausted, url: str = "") -> OSError:
    """Convert the error of a failed request to an `OSError`, with meaning and remedy.

    Without a url, returns a `StoreError`, to which the caller adds the name of the file, or an
    `AccessError`.
    """
    error = failed.__cause__ or failed
    tries = f" (tried {failed.attempts} times)" if failed.attempts > 1 else ""
    if isinstance(error, StoreError):
        return StoreError((f"{url}: " if url else "") + str(error) + tries)
    if isinstance(error, AccessError):
        # its message is complete
        return error

    error_class: type[OSError] | None = None
    if (description := find_failure(error)) is not None:
        error_class = description.error_class
    elif all(get_status(cause) is None for cause in iterate_causes(error)):
        error_class = next((cls for cls in UNCHANGED_ERRORS if isinstance(error, cls)), None)
    text = _describe(error_class, error, url)
    remedy = None if description is None else description.remedy
    if not url:
        return RequestError(text + tries, remedy=remedy or "")
    # libraries may report a refused request as a missing file

    is_missing = isinstance(error, FileNotFoundError)
    if error_class and error_class is not PermissionError and is_missing:
        error_class = FileNotFoundError
    message = f"{url}: {text}{tries}" + (f"; {remedy}" if remedy else "")
    return (error_class or RequestError)(without_secrets(message))


def _describe(error_class: type[OSError] | None, error: BaseException, url: str) -> str:
    """Return the meaning of a failure, with the message of the server or the library."""
    # messages of other errors only repeat the url
    informative_causes = (
        c for c in iterate_causes(error) if get_status(c) is not None or is_connection_error(c)
    )
    cause = next(informative_causes, error)
    # the first line, since Azure's client appends the whole response
    line = (str(cause) or str(error)).partition("\n")[0]
    message = URL_AT_END.sub("", line)
    if getattr(cause, "history", ()):
        # name the host that responded after a redirect (errors of aiohttp)
        host = getattr(getattr(cause, "request_info", None), "real_url", None)
        message += f", host={getattr(host, 'host', None)!r}"

    if (description := find_failure(error)) is None:
        return f"{(error_class or type(cause)).__name__}: {message}"
    meaning = description.meaning
    return meaning if message in ("", url) else f"{meaning} ({message})"


def choose_cause(failed: RetriesExhausted) -> BaseException | None:
    """Return the cause to chain to an error.

    Returns None if the error already contains its message, or if the message contains a secret.
    """
    root_cause = failed.__cause__
    if (
        root_cause is not None
        and (description := find_failure(root_cause)) is not None
        and description.error_class
    ):
        return None
    messages = [str(cause) for cause in iterate_causes(root_cause)] if root_cause else []
    return None if any(without_secrets(text) != text for text in messages) else root_cause
