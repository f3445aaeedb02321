"""Whatever refuses a request, the error has the right class, and says what to do about it.

Each row is a failure; each is met by a scan, by a pattern and by opening a set. A store adds rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from range_server import Fault, faulty_server, running

import virtualds
from virtualds import AccessError, ReadError
from virtualds.stores.requests import find_failure

pytest.importorskip("obstore")

KEYS = {"key": "a", "secret": "b"}
NOBODY = "http://127.0.0.1:9"
NO_NAME = "nowhere.invalid"


class Refusing(BaseHTTPRequestHandler):
    """The same answer to every request, as S3 writes it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, code = self.server.answer  # type: ignore[attr-defined]
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(status)
        # as Amazon does; without it aiobotocore asks for the region for ever
        self.send_header("x-amz-bucket-region", "eu-west-1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Row(NamedTuple):
    """A failure: what the server answers, where and how it is asked, and the error of it."""

    answer: tuple[int, str]
    place: str
    options: Callable[[str], dict[str, Any]]
    kind: type[Exception]
    meaning: str
    remedy: str


def s3(endpoint: str) -> dict[str, Any]:
    return KEYS | {"client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}


def anonymous(endpoint: str) -> dict[str, Any]:
    return {"anon": True, "client_kwargs": {"endpoint_url": endpoint}}


def s3_row(status: int, code: str, kind: type[Exception], meaning: str, remedy: str) -> Row:
    return Row((status, code), "s3://bucket", s3, kind, meaning, remedy)


def web_row(status: int, kind: type[Exception], meaning: str, remedy: str) -> Row:
    return Row((status, ""), "{server}", lambda _: {}, kind, meaning, remedy)


def gone(options: Callable[[str], dict[str, Any]], endpoint: str, meaning: str, to_do: str) -> Row:
    return Row((200, ""), "s3://bucket", lambda _: options(endpoint), ReadError, meaning, to_do)


REFUSES = "the server refuses access"
ROWS = {
    "S3: AccessDenied": s3_row(403, "AccessDenied", AccessError, REFUSES, "requester_pays=True"),
    "S3: a private bucket": Row(
        (403, "AccessDenied"), "s3://bucket", anonymous, AccessError, REFUSES, "give credentials"
    ),
    "S3: unknown key": s3_row(
        403, "InvalidAccessKeyId", AccessError, "does not know these", "check key"
    ),
    "S3: wrong secret": s3_row(
        403, "SignatureDoesNotMatch", AccessError, "does not know these", "secret"
    ),
    "S3: expired token": s3_row(
        400, "ExpiredToken", AccessError, "have expired", "{'credentials': function}"
    ),
    "S3: broken token": s3_row(400, "InvalidToken", AccessError, "does not know these", "token"),
    "S3: clock": s3_row(403, "RequestTimeTooSkewed", AccessError, "clock", "set the clock"),
    "S3: region": s3_row(
        400, "AuthorizationHeaderMalformed", ReadError, "another region", "region_name"
    ),
    "S3: redirect": s3_row(301, "PermanentRedirect", ReadError, "another region", "region_name"),
    "S3: busy": s3_row(503, "SlowDown", ReadError, "busy", "max_requests"),
    "S3: connection refused": gone(anonymous, NOBODY, "no server answers", "endpoint_url"),
    "S3: no such name": gone(anonymous, f"http://s3.{NO_NAME}", "name of the host", "endpoint_url"),
    "S3: no such profile": Row(
        (200, ""),
        "s3://bucket",
        lambda url: {"profile": "nobody", "client_kwargs": {"endpoint_url": url}},
        AccessError,
        "no credentials",
        "anon=True",
    ),
    "HTTP: 401": web_row(401, AccessError, REFUSES, "Authorization"),
    "HTTP: 403": web_row(403, AccessError, REFUSES, "Authorization"),
    "HTTP: 407": web_row(407, AccessError, "the proxy refuses access", "HTTPS_PROXY"),
    "HTTP: 429": web_row(429, ReadError, "busy", "max_requests"),
    "HTTP: 503": web_row(503, ReadError, "busy", "max_requests"),
    "HTTP: connection refused": Row(
        (200, ""), NOBODY, lambda _: {}, ReadError, "no server answers", "is right and up"
    ),
    "HTTP: no such name": Row(
        (200, ""), f"http://{NO_NAME}", lambda _: {}, ReadError, "name of the host", "check the url"
    ),
    "HTTP: no TLS": Row(
        (200, ""), "{secure}", lambda _: {}, ReadError, "no secure connection", "http or https"
    ),
}
USES = {"scan": "a.nc", "pattern": "*.nc", "set": "refs.zarr"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No credentials but those given, and no waiting."""
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def refuse() -> Iterator[Callable[[tuple[int, str]], str]]:
    """Start servers that refuse, and return their urls."""
    with ExitStack() as stack, virtualds.set_options(retries=0):
        yield lambda answer: stack.enter_context(running(Refusing, answer=answer)).url


def use(name: str, place: str, options: dict[str, Any]) -> None:
    url = f"{place}/{USES[name]}"
    if name == "pattern":
        virtualds.open_virtual_mfdataset(
            url, combine="nested", concat_dim="time", storage_options=options
        )
    virtualds.open_virtual_dataset(url, storage_options=options)


@pytest.mark.parametrize("way", USES)
@pytest.mark.parametrize("name", ROWS)
def test_a_refusal_says_what_it_means_and_what_to_do(
    name: str, way: str, refuse: Callable[[tuple[int, str]], str]
) -> None:
    row = ROWS[name]
    server = refuse(row.answer)
    place = row.place.format(server=server, secure=server.replace("http", "https"))
    with pytest.raises(row.kind) as caught:
        use(way, place, row.options(server))
    told, to_do = str(caught.value).split("\n")[:2]
    # of a set, the file that says what it is may be asked for first
    assert told.startswith((f"{place}/{USES[way]}: ", f"{place}/{USES[way]}/zarr.json: "))
    assert row.meaning in told
    assert row.remedy in to_do


def test_a_chunk_that_is_refused_says_what_to_set(
    archive_files: list[Path], tmp_path: Path
) -> None:
    with faulty_server(archive_files[0].parent) as served, virtualds.set_options(retries=0):
        scanned = virtualds.open_virtual_dataset(f"{served.url}/2001.nc")
        served.always = Fault("status", 403)
        with pytest.raises(ReadError, match=r"variable 't' of .*refuses access") as caught:
            np.asarray(scanned.t)
    to_do = str(caught.value).split("\n")[1]
    assert "storage_options" in to_do and "restore" not in to_do


def test_a_signed_url_that_is_refused_needs_a_new_one(
    refuse: Callable[[tuple[int, str]], str],
) -> None:
    url = f"{refuse((403, ''))}/a.nc?X-Amz-Signature=hunter2"
    with pytest.raises(
        AccessError, match=r"signature or token of the url.*\n.*a new url"
    ) as caught:
        virtualds.open_virtual_dataset(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", [f"http://{NO_NAME}/a.nc", "s3://bucket/a.nc"])
def test_a_name_that_does_not_resolve_is_asked_for_once(url: str) -> None:
    options = anonymous(f"http://s3.{NO_NAME}") if url.startswith("s3") else {}
    with pytest.raises(ReadError, match="the name of the host is not known") as caught:
        virtualds.open_virtual_dataset(url, storage_options=options)
    assert "tried" not in str(caught.value)


def azure_error(status: int, code: str) -> Exception:
    from azure.core.exceptions import HttpResponseError

    error = HttpResponseError(message="no")
    error.status_code, error.error_code = status, code
    return error


def google_error(status: int, _: str) -> Exception:
    from gcsfs.retry import HttpError

    return HttpError({"code": status, "message": "no"})


LIBRARIES: dict[str, tuple[Callable[[int, str], Exception], int, str, Any, str]] = {
    "Azure: wrong key": (azure_error, 403, "AuthenticationFailed", PermissionError, "secret"),
    "Azure: private": (azure_error, 409, "PublicAccessNotPermitted", PermissionError, "give cred"),
    "Azure: none": (azure_error, 401, "NoAuthenticationInformation", PermissionError, "anon=True"),
    "Azure: no container": (azure_error, 404, "ContainerNotFound", FileNotFoundError, "check"),
    "Azure: busy": (azure_error, 503, "ServerBusy", None, "max_requests"),
    "Google: 401": (google_error, 401, "", PermissionError, "give credentials"),
    "Google: 403": (google_error, 403, "", PermissionError, "anon=True"),
    "Google: 404": (google_error, 404, "", FileNotFoundError, "check the url"),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_errors_of_other_libraries_are_known(name: str) -> None:
    make, status, code, kind, remedy = LIBRARIES[name]
    pytest.importorskip("azure.core" if name.startswith("Azure") else "gcsfs")
    found = find_failure(make(status, code))
    assert found is not None and found.error_class is kind and remedy in found.remedy
