"""Options of fsspec mean to obstore what they say, or are refused; credentials are looked up."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from azure_server import ACCOUNT, KEY, AzureServer
from other_s3_servers import bucket_at
from programs import run_code
from range_server import running

import virtualds
from virtualds import AccessError, ReadError, UnsupportedError, set_options
from virtualds.parsers.hdf5.objects import list_in_working_directory
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store, object_access
from virtualds.stores import fsspec as filesystems
from virtualds.stores.fsspec import find_filesystem
from virtualds.stores.object_access import _AwsSession, find_bucket_region, translate_options
from virtualds.stores.requests import Response, check_whole_response
from virtualds.stores.scan_cache import FetchCache
from virtualds.stores.store import StoreError

obstore = pytest.importorskip("obstore")

DATA = bytes(range(256))
HERE = {"endpoint_url": "http://x"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings and no credentials but those of a test."""
    for name in [n for n in os.environ if n.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


# ---------------------------------------------------------------------- words

KEYS = {"access_key_id": "k", "secret_access_key": "s", "token": None}
TOLD: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        "s3://bucket",
        {"anon": True, "client_kwargs": {"region_name": "eu-west-1"}, "block_size": 5},
        {"skip_signature": True, "region": "eu-west-1"},
        {},
    ),
    (
        "s3://bucket",
        {"key": "k", "secret": "s", "token": "t", "endpoint_url": "x:9", "use_ssl": False},
        {"skip_signature": False, "endpoint": "http://x:9"},
        KEYS | {"token": "t"},
    ),
    (
        "s3a://bucket",
        {"username": "k", "password": "s", "requester_pays": True, "client_kwargs": HERE},
        {"endpoint": "http://x", "request_payer": True},
        KEYS,
    ),
    (
        "s3://bucket",
        {"config_kwargs": {"s3": {"addressing_style": "virtual"}, "max_pool_connections": 5}},
        {"virtual_hosted_style_request": True},
        {},
    ),
    (
        "s3://bucket",
        {"s3_additional_kwargs": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "id"}},
        {"server_side_encryption": "aws:kms", "sse_kms_key_id": "id"},
        {},
    ),
    (
        "az://box",
        {"account_name": "a", "account_key": "k"},
        {"account_name": "a", "endpoint": "https://a.blob.core.windows.net"},
        {"access_key": "k"},
    ),
    (
        "abfs://box",
        {"account_name": "a", "sas_token": "?sv=1"},
        {"account_name": "a"},
        {"sas_token": "sv=1"},
    ),
    ("abfs://box", {"account_name": "a", "anon": True}, {"skip_signature": True}, {}),
    (
        "abfss://box@acc.dfs.core.windows.net",
        {"account_key": "k", "account_host": "blobs.example.org"},
        {"account_name": "acc", "endpoint": "https://blobs.example.org"},
        {"access_key": "k"},
    ),
    (
        "az://box",
        {"connection_string": "AccountName=a;AccountKey=k==;EndpointSuffix=core.example.org"},
        {"account_name": "a", "endpoint": "https://a.blob.core.example.org"},
        {"access_key": "k=="},
    ),
    (
        "az://box",
        {"connection_string": "BlobEndpoint=http://x/a/;AccountName=a;", "account_key": "other"},
        {"account_name": "a", "skip_signature": True, "endpoint": "http://x/a"},
        {},
    ),
    (
        "az://box",
        {"connection_string": "UseDevelopmentStorage=true"},
        {"account_name": ACCOUNT, "endpoint": f"http://127.0.0.1:10000/{ACCOUNT}"},
        {"access_key": KEY},
    ),
]
UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    ("s3://bucket", {"session": object()}, "session"),
    ("s3://bucket", {"version_aware": True}, "version_aware"),
    ("s3://bucket", {"client_kwargs": {"api_version": "1"}}, "client_kwargs.api_version"),
    ("s3://bucket", {"config_kwargs": {"client_cert": "x"}}, "config_kwargs.client_cert"),
    ("s3://bucket", {"s3_additional_kwargs": {"ACL": "private"}}, "s3_additional_kwargs.ACL"),
    ("az://box", {"account_name": "a", "location_mode": "secondary"}, "location_mode"),
    ("az://box", {"account_name": "a", "request_session": object()}, "request_session"),
]
CONTRADICTING: list[tuple[str, dict[str, Any]]] = [
    ("s3://bucket", {**HERE, "client_kwargs": {"endpoint_url": "http://y"}}),
    ("s3://bucket", {"key": "k", "username": "other"}),
    ("s3://bucket", {"key": "k"}),
    ("az://box", {"account_key": "k"}),
    ("az://box", {"connection_string": "c"}),
    ("az://box@acc.dfs.core.windows.net", {"account_name": "other", "account_key": "k"}),
]


@pytest.mark.parametrize(("place", "options", "config", "secrets"), TOLD)
def test_options_translate(
    place: str, options: dict[str, Any], config: dict[str, Any], secrets: dict[str, Any]
) -> None:
    before = dict(options)
    found = translate_options(place, options)
    assert found.config.items() >= config.items()
    assert found.secrets == secrets
    assert options == before
    assert "secrets" not in repr(found) and "login" not in repr(found)


@pytest.mark.parametrize(("place", "options", "name"), UNKNOWN)
def test_an_option_without_a_meaning_is_refused_by_name(
    place: str, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(UnsupportedError, match=rf"'{re.escape(name)}'(.|\n)*'filesystem'"):
        translate_options(place, options)
    with pytest.raises(UnsupportedError, match=re.escape(name)):
        virtualds.open_virtual_dataset(f"{place}/a.nc", storage_options=options)


@pytest.mark.parametrize(("place", "options"), CONTRADICTING)
def test_options_that_contradict_each_other_are_refused(
    place: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"give|no meaning"):
        translate_options(place, options)


@pytest.mark.parametrize(
    "url", ["s3://bucket//a", "s3://bucket/a/./b", "s3://arn:aws:s3:eu:1:accesspoint/x/a"]
)
def test_names_that_obstore_does_not_reach_are_refused(url: str) -> None:
    with pytest.raises(UnsupportedError, match="filesystem"):
        find_store(url).read_all(url, StorageOptions(anon=True, endpoint_url="http://127.0.0.1:9"))


def test_versions_of_objects_are_refused_and_their_absence_is_not() -> None:
    assert translate_options("s3://b", {"version_aware": False}) == translate_options("s3://b", {})
    with pytest.raises(UnsupportedError, match="version_aware"):
        translate_options("s3://b", {"version_aware": True})


def test_a_bucket_may_be_a_part_of_the_host() -> None:
    options = {"key": "k", "secret": "s", "endpoint_url": "https://host:9"}
    options |= {"config_kwargs": {"s3": {"addressing_style": "virtual"}}}
    config, _ = object_access.complete_access(translate_options("s3://bucket", options))
    assert config["endpoint"] == "https://bucket.host:9"


# ---------------------------------------------------------------------- logins


def read(url: str, **options: Any) -> bytes:
    filesystems._make_filesystem.cache_clear()
    return find_store(url).read_all(url, StorageOptions(options))


@pytest.fixture
def guarded(
    s3_server: dict[str, Any], s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """The url of an object, and an endpoint that passes on only requests that a key signed."""
    fsspec.filesystem("s3", **s3_server).pipe_file(f"{s3_bucket}/x", DATA)

    class Guard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            signed = self.headers.get("Authorization", "")
            self.server.asked.append(signed)  # type: ignore[attr-defined]
            allowed = "Credential=me/" in signed
            self.send_response(200 if allowed else 403)
            self.send_header("Content-Length", str(len(DATA) if allowed else 0))
            self.send_header("Last-Modified", "Mon, 23 Nov 2026 13:00:00 GMT")
            self.end_headers()
            if allowed:
                self.wfile.write(DATA)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with running(Guard, asked=[]) as server:
        yield f"{s3_bucket}/x", server.url


PROFILE = """
[profile mine]
region = eu-west-1
credential_process = {python} -c "print('{{\\"Version\\": 1, \\"AccessKeyId\\": \\"me\\", \
\\"SecretAccessKey\\": \\"s\\"}}')"
"""


def test_a_profile_signs_requests(guarded: tuple[str, str]) -> None:
    url, endpoint = guarded
    config = Path(os.environ["AWS_CONFIG_FILE"])
    config.write_text(PROFILE.format(python=sys.executable))
    assert read(url, profile="mine", endpoint_url=endpoint) == DATA


def test_the_environment_signs_requests(
    guarded: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, endpoint = guarded
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert read(url) == DATA
    with pytest.raises(PermissionError):
        read(url, key="other", secret="s")


def test_an_endpoint_of_the_settings_file_is_asked(guarded: tuple[str, str]) -> None:
    url, endpoint = guarded
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(f"[default]\nendpoint_url = {endpoint}\n")
    assert read(url, key="me", secret="s") == DATA


def test_a_token_of_the_environment_does_not_stand_beside_a_key(
    guarded: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, endpoint = guarded
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hunter2")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert read(url, key="me", secret="s", endpoint_url=endpoint) == DATA


def test_credentials_are_renewed_without_a_word_of_the_user(
    guarded: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore is asked again, and knows when what it has ends."""
    url, endpoint = guarded
    names: list[str] = []

    class Session:
        def __init__(self, profile: str | None) -> None:
            pass

        def get_config_variable(self, name: str) -> None:
            return None

        def get_credentials(self) -> Any:
            return self

        def get_frozen_credentials(self) -> Any:
            names.append("me")
            return SimpleNamespace(access_key="me", secret_key="s", token=None)

    monkeypatch.setattr("botocore.session.Session", Session)
    monkeypatch.setattr(object_access, "REFRESH_INTERVAL", timedelta(0))
    for _ in range(2):
        assert read(url, endpoint_url=endpoint) == DATA
    found, path = find_filesystem(url, StorageOptions(endpoint_url=endpoint))
    before = len(names)
    assert found.cat_file(path) == found.cat_file(path) == DATA
    assert len(names) == before + 2


def test_credentials_that_cannot_be_had_are_an_access_error(guarded: tuple[str, str]) -> None:
    url, endpoint = guarded
    for options in ({}, {"profile": "nobody"}):
        with pytest.raises(AccessError, match=r"no credentials(.|\n)*anon=True"):
            virtualds.open_virtual_dataset(
                url, storage_options=options | {"endpoint_url": endpoint}
            )


class Knower(BaseHTTPRequestHandler):
    """Says where a bucket is, as S3 does to anybody."""

    def do_HEAD(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))  # type: ignore[attr-defined]
        self.send_response(301 if "elsewhere" in self.path else 404)
        if "elsewhere" in self.path:
            self.send_header("x-amz-bucket-region", "eu-west-1")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_the_region_of_a_bucket_is_asked_for_once_without_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find_bucket_region.cache_clear()
    with running(Knower, asked=[]) as server:
        monkeypatch.setattr(object_access, "REGION_ENDPOINT", server.url)
        for _ in range(2):
            access = translate_options("s3://elsewhere", {"key": "k", "secret": "hunter2"})
            config, _ = object_access.complete_access(access)
            assert config["region"] == "eu-west-1"
        monkeypatch.setenv("AWS_REGION", "us-west-2")
        config, _ = object_access.complete_access(translate_options("s3://unknown", {"anon": True}))
        assert config["region"] == "us-west-2"
        named = {"anon": True, "client_kwargs": {"region_name": "ca-west-1"}}
        config, _ = object_access.complete_access(translate_options("s3://elsewhere", named))
        assert config["region"] == "ca-west-1"
    assert [path for path, _ in server.asked] == ["/elsewhere", "/unknown"]
    assert not any("Authorization" in headers for _, headers in server.asked)
    find_bucket_region.cache_clear()


class Redirector(BaseHTTPRequestHandler):
    """Sends every reader to another server, or says that there is no such file."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(f"{self.path} {self.headers}")
        self.send_response(307 if server.to else 404)
        if server.to:
            self.send_header("Location", f"{server.to}/x")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    "url, given",
    {
        "s3://bucket/x": {"key": "k", "secret": "s", "token": "t", "endpoint_url": "{}"},
        "az://box/x": {
            "connection_string": "AccountName=acc;SharedAccessSignature=sig=s;BlobEndpoint={}"
        },
    }.items(),
)
def test_nothing_is_sent_to_another_host_that_an_endpoint_redirects_to(
    url: str, given: dict[str, str]
) -> None:
    """obstore would send session tokens of S3, and signatures of Azure within `Referer`."""
    with (
        running(Redirector, asked=[], to="") as other,
        running(Redirector, asked=[], to="") as first,
    ):
        first.to = other.url.replace("127.0.0.1", "localhost")
        options = {name: text.format(first.url) for name, text in given.items()}
        told = rf"(?s){url}: the endpoint redirects to another host.*name that host as endpoint"
        with pytest.raises(OSError, match=told):
            read(url, **options)
        with pytest.raises(OSError, match="redirects to another host"):
            find_store(url).list_files(url, StorageOptions(options))
        with pytest.raises(OSError):
            find_store(url).remove([url], StorageOptions(options))
        assert len(first.asked) == 3 and not other.asked


def test_who_sends_no_credentials_is_redirected_to_another_host() -> None:
    with (
        running(Redirector, asked=[], to="") as other,
        running(Redirector, asked=[], to="") as first,
    ):
        first.to = other.url.replace("127.0.0.1", "localhost")
        with pytest.raises(FileNotFoundError):
            read("s3://bucket/x", anon=True, endpoint_url=first.url)
        assert len(other.asked) == 1


def test_an_endpoint_behind_a_proxy_is_asked_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Redirector, asked=[], to="") as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        with pytest.raises(FileNotFoundError):
            read("s3://bucket/x", key="me", secret="hunter2", endpoint_url="http://s3.test")
        assert len(proxy.asked) == 1
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with pytest.raises(FileNotFoundError):
            read("s3://bucket/y", key="me", secret="hunter2", endpoint_url=proxy.url)
        assert proxy.asked[1].startswith("/bucket/y ")


# ---------------------------------------------------------------------- objects that serve urls


def day(number: int) -> xr.Dataset:
    return xr.Dataset({"v": ("time", np.arange(3) + number)}, {"time": np.arange(3) + 3 * number})


def test_a_filesystem_of_the_user_reads(s3_server: dict[str, Any], s3_bucket: str) -> None:
    filesystem = fsspec.filesystem("s3", **s3_server)
    options = {"filesystem": filesystem}
    day(0).virtual.to_manifest(f"{s3_bucket}/refs.zarr", storage_options=s3_server)
    found = xr.open_dataset(f"{s3_bucket}/refs.zarr", engine="virtual", storage_options=options)
    xr.testing.assert_equal(found.load(), day(0))
    with pytest.raises(UnsupportedError, match="conditional writes are supported on"):
        day(1).virtual.to_manifest(f"{s3_bucket}/new.zarr", storage_options=options)
    with pytest.raises(UnsupportedError, match="'anon' beside it"):
        find_store(s3_bucket).read_all(f"{s3_bucket}/x", StorageOptions(options | {"anon": True}))


def test_a_mapper_of_a_filesystem_with_other_options_is_opened(
    s3_server: dict[str, Any], s3_bucket: str
) -> None:
    day(0).virtual.to_manifest(f"{s3_bucket}/refs.zarr", storage_options=s3_server)
    for more in ({}, {"version_aware": True}):
        filesystem = fsspec.filesystem("s3", **s3_server, **more)
        mapper = filesystem.get_mapper(f"{s3_bucket}/refs.zarr")
        xr.testing.assert_equal(virtualds.open_virtual_dataset(mapper).load(), day(0))


def test_a_store_of_obstore_reads_and_writes(s3_server: dict[str, Any], s3_bucket: str) -> None:
    store = obstore.store.S3Store(
        s3_bucket[5:],
        access_key_id=s3_server["key"],
        secret_access_key=s3_server["secret"],
        endpoint=s3_server["client_kwargs"]["endpoint_url"],
        client_options={"allow_http": True},
    )
    how, url = {"storage_options": {"store": store}}, f"{s3_bucket}/refs.zarr"
    day(0).virtual.to_manifest(url, **how)
    day(1).virtual.to_manifest(url, append_dim="time", **how)
    found = xr.open_dataset(url, engine="virtual", **how)
    xr.testing.assert_equal(found.load(), xr.concat([day(0), day(1)], "time"))


# ---------------------------------------------------------------------- Azure


def test_a_signature_of_one_container_writes_and_removes(azure_server: AzureServer) -> None:
    """It allows no batches, by which obstore removes."""
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    url = azure_server.make_box()
    signature = generate_container_sas(
        ACCOUNT,
        url.removeprefix("az://"),
        KEY,
        permission=ContainerSasPermissions.from_string("rwdl"),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    text = f"AccountName={ACCOUNT};BlobEndpoint={azure_server.endpoint};"
    options = StorageOptions(connection_string=f"{text}SharedAccessSignature={signature}")
    store = find_store(url)
    names = ["a/x y#1", "a/ü", "b"]
    for name in names:
        store.write_version(f"{url}/{name}", b"data", options, None)
    assert [listed.path for listed in store.list_files(url, options)] == sorted(names)
    store.remove([f"{url}/{name}" for name in (*names, "never")], options)
    assert store.list_files(url, options) == []


LATE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from virtualds import SourceFile
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
options = StorageOptions(eval(sys.argv[2]))
file = SourceFile(sys.argv[1], options=options)
store = find_store(file.url)
store.get_ranges(file, [(0, 9)])
children = []
for _ in range(3):
    if not (child := os.fork()):
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda n: store.get_ranges(file, [(n, 9)])[0], range(40)))
        store.write_file(f"{file.url}-{os.getpid()}", b"new", options)
        os._exit(found != [bytes(range(n, n + 9)) for n in range(40)])
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children) > 0)
"""
"""A process reads, and so do three children, each in several threads; they write as well."""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="children are not forked there")
def test_forked_children_read_and_write_in_threads(
    s3_server: dict[str, Any], s3_bucket: str
) -> None:
    fsspec.filesystem("s3", **s3_server).pipe_file(f"{s3_bucket}/x", DATA)
    assert run_code(LATE, f"{s3_bucket}/x", repr(s3_server)).returncode == 0
    assert len(find_store(s3_bucket).list_files(s3_bucket, StorageOptions(s3_server))) == 4


def test_a_file_without_credentials_names_the_remedy_in_each_range(s3_bucket: str) -> None:
    options = StorageOptions(endpoint_url="http://127.0.0.1:9")
    file = SourceFile(f"{s3_bucket}/x", options=options)
    with pytest.raises(OSError, match="anon=True") as caught:
        find_store(file.url).get_ranges(file, [(0, 3)])
    assert not isinstance(caught.value, ReadError)


def test_credentials_of_aws_are_asked_for_again_later_and_not_at_once() -> None:
    frozen = SimpleNamespace(access_key="a", secret_key="b", token=None)
    held = SimpleNamespace(get_frozen_credentials=lambda: frozen)
    session = object.__new__(_AwsSession)
    session._session = SimpleNamespace(get_credentials=lambda: held)
    assert session.make_provider()()["expires_at"] > datetime.now(UTC)


def test_an_answer_that_ends_early_says_how_long_the_file_is_if_that_is_known() -> None:
    file = SourceFile("https://host/a", size=9)
    for size, end in ((9, "of 5 bytes, because the file has 9 bytes"), (None, "of 5 bytes")):
        with pytest.raises(StoreError, match=f"{end}$"):
            check_whole_response(Response(b"abc", size=size), file, 5)


def test_a_file_that_was_fetched_before_stays_as_it_was() -> None:
    fetched = FetchCache()
    fetched.put_file("https://host/a", None, b"first")
    fetched.put_file("https://host/a", None, b"second")
    assert fetched.files == {("https://host/a", None): b"first"}


def test_the_working_directory_holds_nothing_of_remote_files() -> None:
    assert list_in_working_directory("a.nc", SourceFile("https://host/b.nc")) == []


def test_an_endpoint_that_is_set_later_counts(
    moto: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when somebody corrects an address in a notebook, after an error."""
    url = bucket_at(moto)
    fsspec.filesystem("s3", **moto).pipe_file(f"{url}/a", DATA)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto["secret"])
    # nobody listens there
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with set_options(request_timeout=2), pytest.raises(OSError):
        find_store(f"{url}/a").read_all(f"{url}/a", None)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto["client_kwargs"]["endpoint_url"])
    assert find_store(f"{url}/a").read_all(f"{url}/a", None) == DATA


def test_credentials_that_come_later_are_found(
    moto: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when somebody logs in after an error, in the same session."""
    url = bucket_at(moto)
    fsspec.filesystem("s3", **moto).pipe_file(f"{url}/a", DATA)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto["client_kwargs"]["endpoint_url"])
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with pytest.raises(PermissionError, match="no credentials"):
        find_store(f"{url}/a").read_all(f"{url}/a", None)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto["secret"])
    assert find_store(f"{url}/a").read_all(f"{url}/a", None) == DATA
