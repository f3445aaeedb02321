"""Servers get no more than is meant for them, and take no more time and memory than they may."""

import gzip
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from typing import Any

import fsspec
import pytest
from products import few_quick
from range_server import running

from virtualds import set_options
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import requests
from virtualds.stores.fsspec import FsspecStore
from virtualds.stores.store import StoreError

pytest.importorskip("obstore")
aiohttp = pytest.importorskip("aiohttp")

pytestmark = pytest.mark.filterwarnings("ignore:The 'auth' parameter:DeprecationWarning")

STORE = FsspecStore()
DATA = bytes(range(256)) * 8


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting costs nothing here."""
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.002)


class Handler(BaseHTTPRequestHandler):
    """One file of `DATA`, whole or in part; what is special about it is in the server."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append((self.path, dict(self.headers)))
        server.answer(self)

    do_HEAD = do_GET

    def begin(self, body: bytes, **headers: str) -> bytes:
        """Send the headers of an answer; return the body that belongs to it."""
        wanted = self.headers.get("Range", "")
        if wanted:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            self.send_response(206)
            last = min(last, len(body) - 1)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
            body = body[first : last + 1]
        else:
            self.send_response(200)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return b"" if self.command == "HEAD" else body

    def log_message(self, format: str, *args: Any) -> None:
        pass


def plain(handler: Handler) -> None:
    handler.wfile.write(handler.begin(DATA))


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[Handler], None]], Any]]:
    """Start servers that answer as they are told, and note what they were asked."""
    with ExitStack() as stack:
        yield lambda answer: stack.enter_context(running(Handler, asked=[], answer=answer))


def redirect_to(url: str, status: int = 302, header: str = "Location") -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        handler.send_response(status)
        handler.send_header(header, url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


# ---------------------------------------------------------------------- secrets stay with a host

with warnings.catch_warnings():
    # newer versions have another way to say it
    warnings.simplefilter("ignore", DeprecationWarning)
    BASIC = aiohttp.BasicAuth("me", "hunter2")
SECRETS: dict[str, dict[str, Any]] = {
    "an authorization": {"headers": {"Authorization": "hunter2"}},
    "a cookie": {"headers": {"cookie": "name=hunter2"}},
    "a header": {"headers": {"X-Secret": "hunter2"}},
    "a header of the session": {"client_kwargs": {"headers": {"X-API-Key": "hunter2"}}},
    "cookies of the session": {"client_kwargs": {"cookies": {"name": "hunter2"}}},
    "cookies": {"cookies": {"name": "hunter2"}},
    "credentials of the session": {"client_kwargs": {"auth": BASIC}},
    "credentials": {"auth": BASIC},
}
ASKS: dict[str, Callable[[str, StorageOptions], object]] = {
    "ranges": lambda url, o: STORE.get_ranges(SourceFile(url, options=o), [(5, 9), (50, 7)]),
    "head": lambda url, o: STORE.read_head(url, o, 16),
    "describe": lambda url, o: STORE.describe(url, o),
    "read_all": lambda url, o: STORE.read_all(url, o),
    "read_with_version": lambda url, o: STORE.read_with_version(url, o),
}


def told(headers: dict[str, str]) -> bool:
    """Whether a request holds the secret, as it is or as basic credentials."""
    return any("hunter2" in value or "bWU6aHVudGVyMg" in value for value in headers.values())


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_do_not_follow_a_redirect_to_another_host(
    secret: str, ask: str, serve: Any
) -> None:
    options = StorageOptions(SECRETS[secret])
    other = serve(plain)
    elsewhere = other.url.replace("127.0.0.1", "localhost")
    for target in (f"{other.url}/a.bin", f"{elsewhere}/a.bin"):
        first = serve(redirect_to(target))
        other.asked.clear()
        ASKS[ask](f"{first.url}/a.bin", options)
        assert first.asked and all(told(headers) for _, headers in first.asked)
        assert other.asked and not any(told(headers) for _, headers in other.asked)


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("secret", ["a header", "a header of the session"])
def test_secrets_of_the_configuration_of_fsspec_do_not_follow_a_redirect(
    secret: str, ask: str, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "http", SECRETS[secret])
    # filesystems that were made without the configuration are kept for the same options
    fsspec.get_filesystem_class("http").clear_instance_cache()
    other = serve(plain)
    first = serve(redirect_to(f"{other.url}/a.bin"))
    ASKS[ask](f"{first.url}/a.bin", StorageOptions())
    assert first.asked and any(told(headers) for _, headers in first.asked)
    assert other.asked and not any(told(headers) for _, headers in other.asked)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_secrets_do_not_follow_two_redirects(status: int, serve: Any) -> None:
    options = StorageOptions(SECRETS["a header"])
    last = serve(plain)
    middle = serve(redirect_to(f"{last.url}/a.bin", status))
    first = serve(redirect_to(f"{middle.url}/a.bin", status))
    got = STORE.get_ranges(SourceFile(f"{first.url}/a.bin", options=options), [(5, 9)])
    assert list(got) == [DATA[5:14]]
    assert not any(told(headers) for _, headers in middle.asked + last.asked)


def test_secrets_do_not_follow_a_redirect_of_an_old_server(serve: Any) -> None:
    """aiohttp follows the header ``URI`` too, which was there before ``Location``."""
    other = serve(plain)
    first = serve(redirect_to(f"{other.url}/a.bin", header="URI"))
    file = SourceFile(f"{first.url}/a.bin", options=StorageOptions(SECRETS["a header"]))
    assert list(STORE.get_ranges(file, [(5, 9)])) == [DATA[5:14]]
    assert other.asked and not any(told(headers) for _, headers in other.asked)


@pytest.mark.product
@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_follow_a_redirect_within_one_host(secret: str, ask: str, serve: Any) -> None:
    def answer(handler: Handler) -> None:
        (plain if handler.path == "/b.bin" else redirect_to("/b.bin"))(handler)

    server = serve(answer)
    ASKS[ask](f"{server.url}/a.bin", StorageOptions(SECRETS[secret]))
    assert {path for path, _ in server.asked} == {"/a.bin", "/b.bin"}
    assert all(told(headers) for _, headers in server.asked)


# ---------------------------------------------------------------------- servers that drip

WAYS: dict[str, Callable[[str], tuple[str, StorageOptions | None]]] = {
    "http": lambda server: (f"{server}/a.bin", None),
    "s3": lambda server: ("s3://bucket/a.bin", StorageOptions(anon=True, endpoint_url=server)),
}
"""The url and the options with which a server is asked."""
HASTE = {"request_timeout": 0.3, "least_rate": 1e8, "retries": 0}
DRIPS: dict[str, Callable[[str, StorageOptions | None], object]] = {
    "ranges": lambda url, o: STORE.get_ranges(SourceFile(url, options=o), [(0, 2000)]),
    "head": lambda url, o: STORE.read_head(url, o, 2000),
    "read_all": lambda url, o: STORE.read_all(url, o),
}


def drip(handler: Handler, data: bytes) -> None:
    for byte in data:
        try:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
        except OSError:
            break
        time.sleep(0.02)
    handler.close_connection = True


def dripping_body(handler: Handler) -> None:
    drip(handler, handler.begin(DATA))


def dripping_headers(handler: Handler) -> None:
    drip(handler, b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 2000)


@pytest.mark.product
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ask", DRIPS)
@pytest.mark.parametrize("answer", [dripping_body, dripping_headers])
def test_a_server_that_drips_is_given_up(answer: Any, ask: str, way: str, serve: Any) -> None:
    """All of the answer would take 40 seconds, and no wait for a byte is long."""
    server = serve(answer)
    with set_options(**HASTE), pytest.raises(StoreError, match="least_rate"):
        DRIPS[ask](*WAYS[way](server.url))


@pytest.mark.parametrize("way", WAYS)
def test_a_drip_is_given_up_long_before_a_large_answer_would_be(way: str, serve: Any) -> None:
    """At this rate a range of 8 MiB might take a quarter of an hour."""
    server = serve(dripping_body)
    rates = {"request_timeout": 0.3, "least_rate": 1e4, "retries": 0}
    with set_options(**rates), pytest.raises(StoreError, match="least_rate"):
        DRIPS["ranges"](*WAYS[way](server.url))


def test_a_drip_is_given_up_while_a_file_is_described(serve: Any) -> None:
    server = serve(dripping_headers)
    with set_options(**HASTE), pytest.raises(OSError, match="least_rate"):
        STORE.describe(f"{server.url}/a.bin", None)


@pytest.mark.full
@pytest.mark.parametrize("way", few_quick(WAYS, list(WAYS)[:1]))
def test_an_answer_may_take_any_time_while_bytes_come(way: str, serve: Any) -> None:
    def slow(handler: Handler) -> None:
        body = handler.begin(DATA)
        for start in range(0, len(body), 256):
            handler.wfile.write(body[start : start + 256])
            handler.wfile.flush()
            time.sleep(0.3)

    server = serve(slow)
    # together the pauses are longer than the timeout; one may be so much longer on a busy machine
    with set_options(request_timeout=2.0, least_rate=100, retries=0):
        url, options = WAYS[way](server.url)
        file = SourceFile(url, options=options)
        assert list(STORE.get_ranges(file, [(0, len(DATA))])) == [DATA]


@pytest.mark.parametrize("name", ["request_timeout", "least_rate"])
def test_settings_of_zero_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        set_options(**{name: 0})


# ---------------------------------------------------------------------- compressed on the way


def encoded(body: bytes, encoding: str) -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        handler.wfile.write(handler.begin(body, Content_Encoding=encoding))

    return answer


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_a_part_that_is_compressed_on_the_way_is_refused(encoding: str, serve: Any) -> None:
    """What is announced is a range of something else than the file."""
    server = serve(
        lambda handler: handler.wfile.write(handler.begin(DATA, Content_Encoding=encoding))
    )
    url, options = f"{server.url}/a.bin", None
    with pytest.raises(StoreError, match="compressed"):
        STORE.get_ranges(SourceFile(url, options=options), [(5, 9)])
    with pytest.raises(OSError, match="compressed"):
        STORE.read_head(url, options, 16)
    named = [{k.lower(): v for k, v in headers.items()} for _, headers in server.asked]
    assert {headers.get("accept-encoding") for headers in named} == {"identity"}


def test_a_whole_file_that_the_server_compresses_is_expanded(serve: Any) -> None:
    body = gzip.compress(b"{}" * 1000)
    server = serve(
        lambda handler: handler.wfile.write(handler.begin(body, Content_Encoding="gzip"))
    )
    assert STORE.read_all(f"{server.url}/a.json", None) == b"{}" * 1000


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip"])
def test_a_body_that_does_not_expand_is_an_error(encoding: str, serve: Any) -> None:
    server = serve(
        lambda handler: handler.wfile.write(handler.begin(DATA, Content_Encoding=encoding))
    )
    with pytest.raises(OSError, match=r"compressed|gzip"):
        STORE.read_all(f"{server.url}/a.json", None)
