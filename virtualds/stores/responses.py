"""Answers to requests: why one is refused, whether the file is the scanned one, and the errors."""

from __future__ import annotations

import re
from typing import NamedTuple

from virtualds.errors import AccessError, without_secrets
from virtualds.options import get_options
from virtualds.source_file import SourceFile
from virtualds.stores.retry import (
    GaveUp,
    code_of,
    error_names_of,
    is_connection_error,
    list_causes,
    status_of,
)
from virtualds.stores.store import RequestError, StoreError

# ---------------------------------------------------------------------- refusals
# Why a server, or what lies before it, refuses a request: what that means, and what to do.
#
# A refusal is found by the code that the server gives, by the status of HTTP, or by the name of the
# error that a library raises. The libraries are optional, so their errors are known by name.


class Refusal(NamedTuple):
    """What a failure means, what the user can do, and its kind, None if callers do not ask."""

    kind: type[OSError] | None
    meaning: str
    remedy: str


OPTIONS = "storage_options"

REFUSED = Refusal(
    PermissionError,
    "the server refuses access",
    f"give credentials that may do this in {OPTIONS}, or anon=True for a public bucket, or "
    f"requester_pays=True for one whose readers pay",
)
BEARER = "{'headers': {'Authorization': 'Bearer ...'}}"
WEB_REFUSED = Refusal(
    PermissionError,
    "the server refuses access",
    f"give credentials that may do this in {OPTIONS}, such as {BEARER}",
)
REDIRECT_REFUSED = Refusal(
    PermissionError,
    "the server refuses access after a redirect",
    f"give credentials that may do this in {OPTIONS}, such as {BEARER}, and if they are meant for "
    f"that host too, its name: {{'trusted_hosts': ['...']}}",
)
OLD_SIGNATURE = Refusal(
    PermissionError,
    "the server refuses access by the signature or token of the url",
    "these end after some time, so get a new url; or give the plain url and credentials",
)
UNKNOWN_USER = Refusal(
    PermissionError,
    "no credentials, or none that can be used",
    f"log in, or give credentials in {OPTIONS}; a public bucket needs anon=True there",
)
NOT_FOUND = Refusal(FileNotFoundError, "there is no such file", "check the url")
NO_BUCKET = Refusal(
    FileNotFoundError,
    "there is no such bucket",
    f"check the url, and the account or endpoint_url in {OPTIONS}",
)
EXPIRED = Refusal(
    PermissionError,
    "the server refuses access, for the credentials have expired",
    f"give new ones in {OPTIONS}, or a function that gets them: {{'credentials': function}}",
)
WRONG_KEY = Refusal(
    PermissionError,
    "the server refuses access, for it does not know these credentials",
    f"check key, secret and token in {OPTIONS} (keys that expire need a token), and endpoint_url",
)
OTHER_REGION = Refusal(
    None,
    "the bucket is in another region",
    f"name its region in {OPTIONS}: {{'client_kwargs': {{'region_name': '...'}}}}",
)
STRAYED = Refusal(
    None,
    "the endpoint redirects to another host, which gets no credentials",
    f"name that host as endpoint in {OPTIONS}, or set anon=True there, if it needs none",
)
CLOCK = Refusal(
    PermissionError,
    "the server refuses access, for the clock of this machine differs from its own",
    "set the clock of this machine",
)
NOT_SAID = Refusal(
    PermissionError,
    "the server refuses access, and does not say why",
    f"see whether the credentials in {OPTIONS} have expired, and whether region_name is right",
)
NOT_PUBLIC = Refusal(
    PermissionError,
    "the server refuses access, for the account is not open to the public",
    f"give credentials in {OPTIONS}",
)
PROXY = Refusal(
    PermissionError,
    "the proxy refuses access",
    "give its user and password within the url of HTTP_PROXY or HTTPS_PROXY of the environment",
)
NO_PROXY = Refusal(
    None,
    "the proxy does not answer",
    "see whether HTTP_PROXY and HTTPS_PROXY of the environment are right",
)
NO_NAME = Refusal(
    None,
    "the name of the host is not known",
    f"check the url, endpoint_url in {OPTIONS}, and the network",
)
UNSAFE = Refusal(
    None,
    "no secure connection comes about",
    "see whether the url begins as it should (http or https), and whether the certificate of the "
    "server is known here",
)
NO_ANSWER = Refusal(
    None,
    "no server answers",
    f"see whether the host, or endpoint_url in {OPTIONS}, is right and up",
)
BUSY = Refusal(
    None,
    "the server is busy",
    "try again later, or with fewer requests at a time: virtualds.set_options(max_requests=8)",
)
OTHER_HOST = "OtherHost"
"""Our own code for a redirect that is not followed."""

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
    # S3 answers HEAD without a body, and so without a code: botocore gives the status instead
    "400": NOT_SAID,
    # https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
    "AuthenticationFailed": WRONG_KEY,
    "NoAuthenticationInformation": UNKNOWN_USER,
    "PublicAccessNotPermitted": NOT_PUBLIC,
    "ContainerNotFound": NO_BUCKET,
}
"""Refusals by the code of S3 and of Azure."""

STATUSES = {401: REFUSED, 403: REFUSED, 404: NOT_FOUND, 407: PROXY, 410: NOT_FOUND}
STATUSES |= {429: BUSY, 503: BUSY}
"""Refusals by the status of HTTP (RFC 9110, section 15; RFC 6585, section 4)."""

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
    # aiohttp and botocore; the first of a class and its base classes counts
    **dict.fromkeys(("ClientProxyConnectionError", "ProxyConnectionError"), NO_PROXY),
    "ClientConnectorDNSError": NO_NAME,
    **dict.fromkeys(("ClientSSLError", "ClientConnectorCertificateError", "SSLError"), UNSAFE),
}
"""Refusals by the name of an error or of one of its base classes."""

EXPIRY_CODES = frozenset(
    {code for code, refusal in CODES.items() if refusal is EXPIRED}
    | {"InvalidToken", "AuthenticationFailed", "400"}
)
"""Codes with which servers answer credentials that have expired, among others."""


def find_refusal(error: BaseException) -> Refusal | None:
    """Return why a request was refused, None if that is not known.

    Examples
    --------
    >>> find_refusal(OSError("odd")) is None
    True
    """
    causes = list(list_causes(error))
    for cause in causes:
        if (status := status_of(cause)) is not None:
            return CODES.get(code_of(cause) or "") or _judge_by_status(cause, status)
        if (named := _find_by_name(cause)) is not None:
            return named
    if any(map(is_connection_error, causes)):
        return NO_ANSWER
    kinds = {refusal.kind: refusal for refusal in (REFUSED, NOT_FOUND)}
    return next((r for kind, r in kinds.items() if kind and isinstance(error, kind)), None)


def _judge_by_status(error: BaseException, status: int) -> Refusal | None:
    found = STATUSES.get(status)
    if found is not REFUSED or "ClientResponseError" not in error_names_of(error):
        return found
    if getattr(error, "history", ()):
        return REDIRECT_REFUSED
    url = str(getattr(getattr(error, "request_info", None), "real_url", ""))
    return WEB_REFUSED if without_secrets(url) == url else OLD_SIGNATURE


def _find_by_name(error: BaseException) -> Refusal | None:
    names = error_names_of(error)
    return next((refusal for name, refusal in ERRORS.items() if name in names), None)


def is_about_expiry(error: BaseException) -> bool:
    """Say whether a request may have failed because its credentials have expired."""
    return any(
        status_of(cause) == 401 or code_of(cause) in EXPIRY_CODES for cause in list_causes(error)
    )


# ---------------------------------------------------------------------- responses


URL_AT_END = re.compile(r", url='[^']*'$")
"""The end of messages of aiohttp; an error names its url once."""

KEPT_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Kinds of failure that callers distinguish."""


class Answer(NamedTuple):
    """Bytes of a file, with its current etag and size, and who wrote it, if the server says so."""

    data: bytes
    etag: str | None = None
    size: int | None = None
    writer: str | None = None


WHOLE = 64 * 2**20
"""Bytes of the largest file that is read as a whole from a server without ranges."""


def demand_small(size: int | None) -> None:
    """Refuse a whole file, in answer to a request for a range, if it is large."""
    if size is None or size > WHOLE:
        raise StoreError(
            f"the server knows no ranges and sends the whole file, of {size or 'unknown'} bytes; "
            f"copy the file to a server with ranges"
        )


def demand_whole_answer(answer: Answer, file: SourceFile, length: int) -> bytes:
    """Return the bytes of an answer, if it is complete and the file has not changed."""
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
