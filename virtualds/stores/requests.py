"""Requests: retries temporary failures, and explains all others.

The maximum wait grows exponentially with each attempt, and the wait is drawn at random between zero
and the maximum (full jitter). So clients that failed together do not retry together. A server's
Retry-After is respected.
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
# Interrupts (Ctrl-C): their message, and whether threads that wait for servers should end.


INTERRUPTED = threading.Event()
"""Set when a user interrupts long work: its threads may still wait for servers."""


@contextmanager
def explain_interrupt(describe: Callable[[], str]) -> Iterator[None]:
    """Add a note to an interrupt that leaves the block; only then is ``describe`` called."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        INTERRUPTED.set()
        interrupt.add_note(describe())
        raise


def process_ends() -> bool:
    """Return whether the interpreter is ending and waits for this thread."""
    # Python has no public name for this; if the private one is missing, requests continue
    return bool(getattr(futures, "_shutdown", False))


def is_abandoned() -> bool:
    """Return whether the interpreter is ending because its user has interrupted it.

    At the normal end of a program, Python waits for its threads.
    """
    return INTERRUPTED.is_set() and process_ends()


# ---------------------------------------------------------------------- retries


T = TypeVar("T")

FIRST_WAIT, MAX_WAIT = 0.2, 10.0
"""The longest wait in seconds before the second attempt, and before any later one."""
MAX_RETRY_AFTER = 60.0
"""The longest wait in seconds that a server can request."""
NAP = 0.2
"""The length of one sleep in seconds, after which waiting threads check if the process ends."""

CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 30.0
"""Seconds until a connection must be open, and until the next bytes of a response must arrive.

A whole response has no such limit: how long it takes depends on the network.
"""

PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of temporary failures (RFC 9110, section 15; RFC 8470; RFC 6585)."""
PASSING_CODES = frozenset(
    {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"}
    | {"Throttling", "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded"}
)
"""Codes of S3, and of servers with its protocol, for temporary failures."""
PASSING_ERRORS = frozenset(
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
"""Names of temporary errors or their base classes, since their libraries are optional."""
LASTING_ERRORS = frozenset(
    {"SSLError", "ClientSSLError", "ClientConnectorCertificateError", "ClientConnectorDNSError"}
    | {"InvalidURL", "TooManyRedirects"}
)
"""Names of permanent errors whose base classes are in `PASSING_ERRORS`."""

_CAUSES = 5
_STATUS_NAMES = ("status", "status_code", "code")


class IncompleteResponse(OSError):
    """A response was truncated, or differs from its headers."""


class RetriesExhausted(Exception):
    """All ``attempts`` have failed; the cause is the error of the last one."""

    def __init__(self, attempts: int) -> None:
        super().__init__(attempts)
        self.attempts = attempts


class Request(NamedTuple):
    """A request as it appears in the log: ``GET``, ``HEAD`` or ``LIST`` of a url.

    If ``length`` is None, no range of bytes is requested. A request without a method is one of
    several that are logged together, by their purpose; the log mentions it only if it fails.
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
    """Return the result of ``send``; call it again as long as its failures are temporary.

    ``request`` is what the log calls the request. If the last attempt fails, `RetriesExhausted` is
    raised, whose cause is the error of that attempt.
    """
    for attempt in count():
        if is_abandoned():
            raise RetriesExhausted(attempt + 1) from IncompleteResponse(
                "the program was interrupted"
            )
        begun = time.monotonic()
        try:
            answer = send()
        except list_store_errors() as error:
            again = is_temporary(error) or (attempt == 0 and is_stale_redirect(error))
            if attempt >= get_options().retries or not again:
                log_failure(request, error)
                raise RetriesExhausted(attempt + 1) from error
            wait = choose_wait(attempt + 1, error)
            log_failure(request, error, wait)
            pause(wait)
            if process_ends():
                raise RetriesExhausted(attempt + 1) from error
        else:
            if request.method and is_logged(DEBUG):
                seconds = time.monotonic() - begun
                data: object = getattr(answer, "data", answer)
                if isinstance(data, bytes | bytearray | memoryview):
                    log(DEBUG, f"{request}: {len(data):,} bytes in {seconds:.3f} s")
                else:
                    log(DEBUG, f"{request}: {seconds:.3f} s")
            return answer
    raise RetriesExhausted(0)


def log_failure(request: object, error: BaseException, wait: float | None = None) -> None:
    """Log a failure, and after how many seconds the request is retried, if so."""
    if is_logged(INFO):
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        then = "it is not tried again" if wait is None else f"tried again in {wait:.1f} s"
        log(INFO, f"{request}: {why}; {then}")


def pause(seconds: float) -> None:
    """Wait for some seconds, or until the process ends."""
    until = time.monotonic() + seconds
    while (rest := until - time.monotonic()) > 0 and not process_ends():
        time.sleep(min(rest, NAP))


def is_temporary(error: BaseException) -> bool:
    """Return whether a failure is worth another attempt."""
    for cause in iterate_causes(error):
        status, code = status_of(cause), code_of(cause)
        if status is not None or code is not None:
            return status in PASSING_STATUSES or code in PASSING_CODES
        if is_connection_error(cause):
            # botocore puts the reason for a failed connection into the cause of its error
            return not any(
                error_names_of(below) & LASTING_ERRORS for below in iterate_causes(cause)
            )
    return False


def is_stale_redirect(error: BaseException) -> bool:
    """Return whether another server rejected a redirected request, whose signature may be old.

    The next attempt begins at the first url, and is redirected to a new one.
    """
    return any(
        status_of(cause) in (400, 403) and getattr(cause, "history", ())
        for cause in iterate_causes(error)
    )


def is_connection_error(error: BaseException) -> bool:
    """Return whether the connection failed, which says nothing about the file."""
    return bool(error_names_of(error) & (PASSING_ERRORS | LASTING_ERRORS))


def error_names_of(error: BaseException) -> set[str]:
    """Return the names of the class of an error and of its base classes."""
    return {kind.__name__ for kind in type(error).__mro__}


def choose_wait(attempt: int, error: BaseException) -> float:
    """Return the number of seconds to wait before an attempt; attempts are counted from 0."""
    most = min(MAX_WAIT, FIRST_WAIT * 2.0 ** (attempt - 1))
    asked = max((_retry_after(cause) for cause in iterate_causes(error)), default=0.0)
    return max(random.uniform(0, most), min(asked, MAX_RETRY_AFTER))


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of its cause, and so on."""
    found: BaseException | None = error
    for _ in range(_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a library's error, if it has one."""
    # lazily, one after the other: aiohttp warns when its ``code`` is read
    given = (getattr(error, name, None) for name in _STATUS_NAMES)
    return next((value for value in given if isinstance(value, int) and value), None)


def code_of(error: BaseException) -> str | None:
    """Return the code that a server sent with an error, if there is one."""
    given = getattr(error, "error_code", None)
    # azure's is an enumeration of strings
    return str(getattr(given, "value", given)) if isinstance(given, str) else None


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


# ---------------------------------------------------------------------- the time of a request
# The time limit of a request: a fixed time, and more while bytes arrive at a minimum rate.
#
# A timeout between two reads does not limit a server that sends a byte now and then.


MAX_SECONDS = 366 * 86400.0
"""The number of seconds that stands for infinity, which clocks of other libraries do not
support."""


class TooSlowError(IncompleteResponse):
    """A response was slower than `set_options` allows."""

    def __init__(self, received: int) -> None:
        options = get_options()
        super().__init__(
            f"{received} bytes came within {options.request_timeout} s and one more for every "
            f"{options.least_rate} bytes; virtualds.set_options has request_timeout and least_rate"
        )


def compute_time_limit(nbytes: int) -> float:
    """Return the number of seconds that a request for ``nbytes`` bytes may take."""
    options = get_options()
    return min(options.request_timeout + nbytes / options.least_rate, MAX_SECONDS)


def join_parts(parts: Iterable[bytes], begun: float) -> bytes:
    """Join the parts of a response to a request that was sent at ``begun``, a monotonic time."""
    found: list[bytes] = []
    received = 0
    for part in parts:
        found.append(part)
        received += len(part)
        if time.monotonic() - begun > compute_time_limit(received):
            raise TooSlowError(received)
    return b"".join(found)


class Pace:
    """The deadline of one request, which is extended as bytes arrive.

    It also ends the requests of an interrupted process, which waits for its threads.
    """

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout, self._loop = timeout, asyncio.get_running_loop()
        self._begun, self.received = self._loop.time(), 0
        self._next: asyncio.TimerHandle | None = None
        self.look()

    def look(self) -> None:
        """End the request if it is late; otherwise set a timer for the next check."""
        now = self._loop.time()
        left = self._begun + compute_time_limit(self.received) - now
        if left <= 0 or is_abandoned():
            self._timeout.reschedule(now)
        else:
            self._next = self._loop.call_later(min(left, NAP), self.look)

    def stop(self) -> None:
        """Stop checking."""
        if self._next is not None:
            self._next.cancel()

    async def gather(self, parts: AsyncIterator[bytes], most: int | None) -> bytes:
        """Return the bytes of a response, or only the first ``most`` of them."""
        found: list[bytes] = []
        async for part in parts:
            found.append(part)
            self.received += len(part)
            if most is not None and self.received >= most:
                break
        return b"".join(found)[:most]


@asynccontextmanager
async def limit_time() -> AsyncIterator[Pace]:
    """Raise a `TooSlowError` in the block when it takes too long."""
    try:
        async with asyncio.timeout(None) as timeout:
            pace = Pace(timeout)
            try:
                yield pace
            finally:
                pace.stop()
    except TimeoutError as error:
        # libraries have their own timeouts, with messages of their own
        if timeout.expired():
            raise TooSlowError(pace.received) from error
        raise


# ---------------------------------------------------------------------- rejected requests
# Why a server, or a proxy, rejects a request: the meaning, and the remedy.
#
# A description is found by the server's code, by the HTTP status, or by the name of the error that
# a library raises. The libraries are optional, so their errors are identified by name.


class FailureDescription(NamedTuple):
    """The meaning of a failure, its remedy, and the error to raise, or None for a general one."""

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
"""The code that this package gives to a redirect that it does not follow."""

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
    # S3 answers HEAD without a body, and so without a code: botocore uses the status instead
    "400": NOT_SAID,
    # https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
    "AuthenticationFailed": WRONG_KEY,
    "NoAuthenticationInformation": UNKNOWN_USER,
    "PublicAccessNotPermitted": NOT_PUBLIC,
    "ContainerNotFound": NO_BUCKET,
}
"""Descriptions by the code of S3 and of Azure."""

STATUSES = {401: REFUSED, 403: REFUSED, 404: NOT_FOUND, 407: PROXY, 410: NOT_FOUND}
STATUSES |= {429: BUSY, 503: BUSY}
"""Descriptions by the HTTP status (RFC 9110, section 15; RFC 6585, section 4)."""

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
    # aiohttp and botocore; the class of an error takes precedence over its base classes
    **dict.fromkeys(("ClientProxyConnectionError", "ProxyConnectionError"), NO_PROXY),
    "ClientConnectorDNSError": NO_NAME,
    **dict.fromkeys(("ClientSSLError", "ClientConnectorCertificateError", "SSLError"), UNSAFE),
}
"""Descriptions by the name of an error or of one of its base classes."""

EXPIRY_CODES = frozenset(
    {code for code, refusal in CODES.items() if refusal is EXPIRED}
    | {"InvalidToken", "AuthenticationFailed", "400"}
)
"""Codes of responses to expired credentials, among others."""


def find_failure(error: BaseException) -> FailureDescription | None:
    """Return the reason why a request was rejected, or None if that is unknown.

    Examples
    --------
    >>> find_failure(OSError("odd")) is None
    True
    """
    causes = list(iterate_causes(error))
    for cause in causes:
        names = error_names_of(cause)
        if (status := status_of(cause)) is not None:
            found = CODES.get(code_of(cause) or "") or STATUSES.get(status)
            if found is not REFUSED or "ClientResponseError" not in names:
                return found
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


def is_about_expiry(error: BaseException) -> bool:
    """Return whether a request may have failed because its credentials have expired."""
    return any(
        status_of(cause) == 401 or code_of(cause) in EXPIRY_CODES for cause in iterate_causes(error)
    )


# ---------------------------------------------------------------------- responses


URL_AT_END = re.compile(r", url='[^']*'$")
"""The end of messages of aiohttp, removed since an error names its url once."""

UNCHANGED_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors that callers distinguish."""


class Response(NamedTuple):
    """Bytes from a file, with its current etag, size and writer if the server sends them."""

    data: bytes
    etag: str | None = None
    size: int | None = None
    writer: str | None = None


WHOLE = 64 * 2**20
"""The size in bytes of the largest file that is read as a whole from a server without ranges."""


def check_small(size: int | None) -> None:
    """Raise an error for a large whole file in response to a request for a range."""
    if size is None or size > WHOLE:
        raise StoreError(
            f"the server knows no ranges and sends the whole file, of {size or 'unknown'} bytes; "
            f"copy the file to a server with ranges"
        )


def check_whole_response(answer: Response, file: SourceFile, length: int) -> bytes:
    """Return the bytes of a response, after checking that it is complete and the file unchanged."""
    if get_options().check_sources:
        if None not in (answer.size, file.size) and answer.size != file.size:
            raise StoreError(f"the file has {answer.size} bytes, it had {file.size} when scanned")
        etags = normalise_etag(answer.etag), normalise_etag(file.etag)
        if "" not in etags and etags[0] != etags[1]:
            raise StoreError(
                f"the file was modified after it was scanned: its etag is {answer.etag}, it was "
                f"{file.etag} (if its bytes are the same, "
                f"virtualds.set_options(check_sources=False) reads it)"
            )
    if len(answer.data) != length:
        end = "" if answer.size is None else f", for the file has {answer.size} bytes"
        raise StoreError(f"the store sent {len(answer.data)} of {length} bytes{end}")
    return answer.data


def normalise_etag(etag: str | None) -> str:
    """Return an etag without quotes and the W of weak etags, which some libraries omit."""
    return (etag or "").strip().removeprefix("W/").strip('"')


def to_os_error(failed: RetriesExhausted, url: str = "") -> OSError:
    """Convert the error of a failed request to an error of a class that callers distinguish.

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
    refusal, kind = find_failure(error), _kind_of(error)
    text = _describe(kind, error, url)
    remedy = None if refusal is None else refusal.remedy
    if not url:
        return RequestError(text + tries, remedy=remedy or "")
    # libraries may report a refusal as a missing file, and callers would believe that
    if kind and kind is not PermissionError and isinstance(error, FileNotFoundError):
        kind = FileNotFoundError
    message = f"{url}: {text}{tries}" + (f"; {remedy}" if remedy else "")
    return (kind or RequestError)(without_secrets(message))


def _describe(kind: type[OSError] | None, error: BaseException, url: str) -> str:
    """Return text with the meaning of a failure, and the message of the server or the library."""
    # others only repeat the url
    knowing = (
        c for c in iterate_causes(error) if status_of(c) is not None or is_connection_error(c)
    )
    cause = next(knowing, error)
    # Azure's client appends the whole response in further lines
    line = (str(cause) or str(error)).partition("\n")[0]
    shown = URL_AT_END.sub("", line)
    if getattr(cause, "history", ()):
        # a host responded that differs from the requested one (errors of aiohttp)
        host = getattr(getattr(cause, "request_info", None), "real_url", None)
        shown += f", host={getattr(host, 'host', None)!r}"
    if (refusal := find_failure(error)) is None:
        return f"{(kind or type(cause)).__name__}: {shown}"
    return refusal.meaning if shown in ("", url) else f"{refusal.meaning} ({shown})"


def cause_of(failed: RetriesExhausted) -> BaseException | None:
    """Return the cause of a failure that an error should show.

    None if the error repeats the cause, or if its text contains a secret of a url.
    """
    found = failed.__cause__
    if found is not None and (refusal := find_failure(found)) is not None and refusal.kind:
        return None
    shown = [str(cause) for cause in iterate_causes(found)] if found else []
    return None if any(without_secrets(text) != text for text in shown) else found


def _kind_of(error: BaseException) -> type[OSError] | None:
    """Return the class of error for a failure, or None if callers do not distinguish it."""
    if (refusal := find_failure(error)) is not None:
        return refusal.kind
    if any(status_of(cause) is not None for cause in iterate_causes(error)):
        return None
    return next((kind for kind in UNCHANGED_ERRORS if isinstance(error, kind)), None)
