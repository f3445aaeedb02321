"""Google Cloud Storage: one version of an object, however it is asked for, and few requests."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from google_servers import GoogleServer, ignorant_google_server
from products import few_quick
from range_server import running

import virtualds
from virtualds import AccessError, ConflictError, ReadError, UnsupportedError
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import conditional, find_store, fsspec
from virtualds.stores.fsspec import find_filesystem
from virtualds.stores.listing import fetch_state, list_folder_names, list_states
from virtualds.stores.store import ChangedError
from virtualds_cli.program import main

pytest.importorskip("gcsfs")
from gcsfs.retry import HttpError

from virtualds.stores.google_files import GoogleFiles

SETS = ["refs.json", "refs.parquet", "refs.zarr"]
SCHEMES = ["gs", "gcs"]


@pytest.fixture
def options(google: GoogleServer) -> dict[str, Any]:
    return google.options


@pytest.fixture
def bucket(google: GoogleServer) -> str:
    return google.make_bucket()


def put(url: str, data: bytes, options: dict[str, Any]) -> None:
    find_store(url).write_file(url, data, StorageOptions(options))


def dataset(begin: int, end: int) -> xr.Dataset:
    return xr.Dataset({"v": ("time", np.arange(begin, end))}, {"time": np.arange(begin, end)})


# ---------------------------------------------------------------------- requests and versions


def test_a_scan_of_one_file_takes_one_request(
    google: GoogleServer, bucket: str, options: dict[str, Any], archive_files: list[Path]
) -> None:
    put(f"{bucket}/2001.nc", archive_files[0].read_bytes(), options)
    before = len(google.requests())
    opened = virtualds.open_virtual_dataset(f"{bucket}/2001.nc", storage_options=options)
    assert len(google.requests()) - before == 1
    xr.testing.assert_identical(opened.load(), xr.load_dataset(archive_files[0]))


def test_a_range_takes_one_request_and_comes_with_the_version(
    google: GoogleServer, bucket: str, options: dict[str, Any]
) -> None:
    url = f"{bucket}/a b/ü#1.bin"
    put(url, bytes(range(200)), options)
    file = find_store(url).describe(url, StorageOptions(options))
    assert (file.size, file.etag) == (200, fetch_state(url, StorageOptions(options)).etag)
    before = len(google.requests())
    [found] = find_store(url).get_ranges(file, [(10, 20)])
    assert found == bytes(range(10, 30))
    [asked] = google.requests()[before:]
    assert asked.startswith("GET /download/")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_ways_of_asking_call_a_version_the_same(
    google: GoogleServer, bucket: str, scheme: str
) -> None:
    """Google has an etag for each of its two protocols, and one generation."""
    url = f"{scheme}{bucket[2:]}/a.bin"
    put(url, b"0123", google.options)
    given = StorageOptions(google.options)
    store = find_store(url)
    [listed] = store.list_files(url.rpartition("/")[0], given)
    [state] = list_states(f"{url[:-5]}*.bin", given).etags
    head, _ = store.read_head(url, given, 2)
    found = {listed.file.etag, state, head.etag, fetch_state(url, given).etag}
    found |= {store.describe(url, given).etag, store.find_version(url, given)}
    found.add(store.read_with_version(url, given)[1])
    assert store.get_ranges(head, [(1, 2)]) == [b"12"]
    assert len(found) == 1
    assert int(found.pop())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_file_that_was_replaced_is_noticed_in_the_same_request(
    google: GoogleServer, bucket: str, options: dict[str, Any], scheme: str
) -> None:
    url = f"{scheme}{bucket[2:]}/a.bin"
    put(url, b"0123", options)
    file = find_store(url).describe(url, StorageOptions(options))
    put(url, b"0123", options)
    before = len(google.requests())
    with pytest.raises(OSError, match="modified after it was scanned"):
        find_store(url).get_ranges(file, [(0, 2)])
    assert len(google.requests()) - before == 1
    with virtualds.set_options(check_sources=False):
        assert find_store(url).get_ranges(file, [(0, 2)]) == [b"01"]


def test_an_empty_file_and_a_missing_one_are_told_apart(
    bucket: str, options: dict[str, Any]
) -> None:
    put(f"{bucket}/empty", b"", options)
    file, head = find_store(bucket).read_head(f"{bucket}/empty", StorageOptions(options), 100)
    assert (file.size, head) == (0, b"")
    for url in (f"{bucket}/none", "gs://no-such-bucket/none"):
        with pytest.raises(FileNotFoundError, match="none"):
            find_store(url).read_head(url, StorageOptions(options), 100)
        with pytest.raises(FileNotFoundError, match="none"):
            find_store(url).describe(url, StorageOptions(options))


def test_bytes_that_gcsfs_would_cut_are_written_whole(bucket: str, options: dict[str, Any]) -> None:
    """gcsfs puts the same characters between the parts of every upload."""
    data = b"before\r\n--==0==--\r\nafter\n--==0==\n"
    put(f"{bucket}/x", data, options)
    assert find_store(bucket).read_all(f"{bucket}/x", StorageOptions(options)) == data


def test_an_emulator_that_the_environment_names_is_asked(
    google: GoogleServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(f"{bucket}/x", b"0123", google.options)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", google.options["endpoint_url"])
    GoogleFiles.clear_instance_cache()
    fsspec._make_filesystem.cache_clear()
    file = SourceFile(f"{bucket}/x", 4, options=StorageOptions(token="anon"))
    assert find_store(file.url).get_ranges(file, [(0, 2)]) == [b"01"]


# ---------------------------------------------------------------------- sets


@pytest.mark.product
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", SETS)
def test_a_set_is_built_read_grown_and_filled(
    bucket: str, options: dict[str, Any], archive_files: list[Path], name: str, scheme: str
) -> None:
    there = f"{scheme}{bucket[2:]}"
    for path in archive_files:
        put(f"{there}/data/{path.name}", path.read_bytes(), options)
    expected = xr.concat([xr.load_dataset(path) for path in archive_files], "time",
                         data_vars="minimal")  # fmt: skip
    first = virtualds.open_virtual_mfdataset(
        f"{there}/data/*1.nc", combine="nested", concat_dim="time", storage_options=options
    )
    second = virtualds.open_virtual_dataset(f"{there}/data/2002.nc", storage_options=options)
    url = f"{there}/of/{name}"
    first.virtual.to_manifest(url, storage_options=options)
    second.virtual.to_manifest(url, storage_options=options, append_dim="time")
    opened = xr.open_dataset(url, engine="virtual", storage_options=options)
    xr.testing.assert_identical(opened.load(), expected)
    with pytest.raises(FileExistsError):
        first.virtual.to_manifest(url, storage_options=options, mode="w-")
    # the same files are named the same by a pattern, so there is nothing to do
    how: Any = {"concat_dim": "time", "storage_options": options, "settle": 0}
    how |= {"target_options": options}
    assert virtualds.sync(f"{there}/data/*.nc", url, **how).unchanged == 2
    put(f"{there}/data/2002.nc", archive_files[1].read_bytes(), options)
    with pytest.raises(ReadError, match="modified after it was scanned"):
        xr.open_dataset(url, engine="virtual", storage_options=options).load()
    if name == "refs.parquet":
        # object stores replace no folder in one step
        with pytest.raises(UnsupportedError, match="zarr-v3"):
            virtualds.sync(f"{there}/data/*.nc", url, **how)
        return
    assert len(virtualds.sync(f"{there}/data/*.nc", url, **how).replaced) == 1
    opened = xr.open_dataset(url, engine="virtual", storage_options=options)
    xr.testing.assert_identical(opened.load(), expected)


@pytest.mark.parametrize("name", few_quick(SETS, SETS[2:]))
def test_a_conflict_of_two_writers_is_told(
    google: GoogleServer, bucket: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, how = f"{bucket}/{name}", {"storage_options": google.options, "append_dim": "time"}
    dataset(0, 3).virtual.to_manifest(url, storage_options=google.options)
    write, others = conditional.ObjectVersioning.write, [dataset(3, 5)]

    def write_second(self: Any, filesystem: Any, path: str, *given: Any) -> str:
        if others and path.rpartition("/")[2] in (name, ".zmetadata", "zarr.json"):
            others.pop().virtual.to_manifest(url, **how)
        return write(self, filesystem, path, *given)

    monkeypatch.setattr(conditional.ObjectVersioning, "write", write_second)
    with pytest.raises(ConflictError):
        dataset(5, 6).virtual.to_manifest(url, conflict="raise", **how)
    assert not others
    found = xr.open_dataset(url, engine="virtual", storage_options=google.options)
    xr.testing.assert_equal(found.load(), dataset(0, 5))


def test_regions_and_snapshots_and_upkeep(google: GoogleServer, bucket: str) -> None:
    url, options = f"{bucket}/refs.zarr", google.options
    dataset(0, 4).virtual.to_manifest(url, storage_options=options)
    region = {"time": slice(1, 3)}
    filled = (dataset(1, 3) * 10).drop_vars("time")
    filled.virtual.to_manifest(url, storage_options=options, mode="r+", region=region,
                                on_duplicate="replace")  # fmt: skip
    dataset(4, 6).virtual.to_manifest(url, storage_options=options, append_dim="time")
    found = xr.open_dataset(url, engine="virtual", storage_options=options)
    assert found["v"].values.tolist() == [0, 10, 20, 3, 4, 5]
    kept = virtualds.snapshots(url, storage_options=options)
    assert len(kept) >= 3
    virtualds.compact(url, storage_options=options)
    virtualds.expire_snapshots(url, keep=1, older_than=timedelta(0), storage_options=options)
    assert len(virtualds.snapshots(url, storage_options=options)) < len(kept)
    found = xr.open_dataset(url, engine="virtual", storage_options=options)
    assert found["v"].values.tolist() == [0, 10, 20, 3, 4, 5]


def test_trees_are_written_and_grown(google: GoogleServer, bucket: str) -> None:
    url, options = f"{bucket}/tree.zarr", google.options
    tree = xr.DataTree.from_dict({"/a": dataset(0, 3), "/b/c": dataset(5, 9)})
    tree.virtual.to_manifest(url, storage_options=options)
    found = xr.open_datatree(url, engine="virtual", storage_options=options)
    xr.testing.assert_equal(found.load(), tree)


def test_the_command_line_takes_the_options(
    google: GoogleServer, bucket: str, archive_files: list[Path]
) -> None:
    for path in archive_files:
        put(f"{bucket}/{path.name}", path.read_bytes(), google.options)
    given = json.dumps(google.options)
    options = ["--storage-options", given, "--target-options", given]
    asked = ["scan", f"{bucket}/20*.nc", "-o", f"{bucket}/refs.zarr", "--concat-dim", "time"]
    done = CliRunner().invoke(main, [*asked, *options])
    assert done.exit_code == 0, done.output
    found = xr.open_dataset(f"{bucket}/refs.zarr", engine="virtual", storage_options=google.options)
    assert found.sizes["time"] == 24


@pytest.mark.parametrize("busy", ["removing", "racing"])
def test_a_busy_server_is_no_unsafe_one(
    google: GoogleServer, bucket: str, monkeypatch: pytest.MonkeyPatch, busy: str
) -> None:
    """The errors of gcsfs are no OSError."""
    url, options = f"{bucket}/of/x.json", StorageOptions(google.options)
    turns, once, ask = (
        defaultdict[str, Lock](Lock),
        GoogleFiles.upload_object,
        GoogleFiles._request_once,
    )

    def upload_alone(self: Any, path: str, *given: Any) -> str:
        if not turns[path].acquire(blocking=False):
            raise HttpError({"code": 429, "message": "busy"})
        try:
            return str(once(self, path, *given))
        finally:
            turns[path].release()

    async def remove_nothing(self: Any, method: str, *given: Any, **how: Any) -> Any:
        if method == "DELETE":
            raise HttpError({"code": 503, "message": "busy"})
        return await ask(self, method, *given, **how)

    if busy == "removing":
        monkeypatch.setattr(GoogleFiles, "_request_once", remove_nothing)
    else:
        monkeypatch.setattr(GoogleFiles, "upload_object", upload_alone)
    with virtualds.set_options(retries=0):
        version = find_store(url).write_version(url, b"data", options, None)
    assert find_store(url).read_with_version(url, options) == (b"data", version)


# ---------------------------------------------------------------------- a server that ignores them


@pytest.fixture(scope="module")
def ignorant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleServer]:
    with ignorant_google_server(tmp_path_factory.mktemp("ignorant")) as server:
        yield server


@pytest.mark.parametrize("name", SETS)
def test_a_server_that_ignores_conditions_is_refused_by_name(
    ignorant: GoogleServer, name: str
) -> None:
    bucket = ignorant.make_bucket()
    with pytest.raises(UnsupportedError, match="only_writer=True") as caught:
        dataset(0, 3).virtual.to_manifest(f"{bucket}/{name}", storage_options=ignorant.options)
    assert ignorant.options["endpoint_url"] in str(caught.value)
    assert "ifGenerationMatch=0" in str(caught.value)
    assert ignorant.names(bucket) == []


@pytest.mark.parametrize("name", SETS)
def test_the_only_writer_may_use_such_a_server(ignorant: GoogleServer, name: str) -> None:
    url, how = f"{ignorant.make_bucket()}/{name}", {"storage_options": ignorant.options}
    with virtualds.set_options(only_writer=True):
        dataset(0, 3).virtual.to_manifest(url, **how)
        with pytest.raises(FileExistsError):
            dataset(0, 3).virtual.to_manifest(url, **how)
        dataset(3, 5).virtual.to_manifest(url, append_dim="time", **how)
    found = xr.open_dataset(url, engine="virtual", **how)
    xr.testing.assert_equal(found.load(), dataset(0, 5))


# ---------------------------------------------------------------------- options and errors


class Teller(BaseHTTPRequestHandler):
    """Sends three bytes, or an error as Google words it, and notes what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append((self.path, dict(self.headers)))
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, body = server.first.pop(0) if server.first else server.answers
        self.send_response(status)
        for name, value in {"Content-Range": "bytes 0-2/3", "X-Goog-Generation": "7",
                            "ETag": '"e"', "Last-Modified": "Mon, 23 Nov 2026 13:00:00 GMT",
                            "Content-Length": str(len(body))}.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def teller() -> Iterator[Any]:
    with running(Teller, asked=[], first=[], answers=(206, b"abc")) as server:
        yield server


def read_three(teller: Any, **options: Any) -> dict[str, str]:
    """Read a file, and return the headers and the query of the request."""
    teller.asked.clear()
    given = StorageOptions({"endpoint_url": teller.url, **options})
    file = SourceFile("gs://bucket/a.bin", 3, None, "7", given)
    assert find_store(file.url).get_ranges(file, [(0, 3)]) == [b"abc"]
    [(path, headers)] = teller.asked
    return {"path": path, **{name.lower(): value for name, value in headers.items()}}


@pytest.mark.parametrize("given", [{"token": "anon"}, {"anon": True}], ids=str)
def test_who_needs_no_credentials_sends_none(teller: Any, given: Any) -> None:
    asked = read_three(teller, **given)
    assert "authorization" not in asked
    assert asked["path"].startswith("/download/")


def test_the_project_that_pays_is_sent_along(teller: Any) -> None:
    for payer in ({"requester_pays": True, "project": "payer"}, {"requester_pays": "payer"}):
        asked = read_three(teller, token="anon", **payer)
        assert "userProject=payer" in asked["path"]


def test_credentials_of_google_auth_are_sent(teller: Any) -> None:
    from google.oauth2.credentials import Credentials

    asked = read_three(teller, token=Credentials("hunter2"))
    assert asked["authorization"] == "Bearer hunter2"


def test_a_bare_token_is_sent(teller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # gcsfs would ask Google how long it lives
    monkeypatch.setenv("FETCH_RAW_TOKEN_EXPIRY", "false")
    assert read_three(teller, token="hunter2")["authorization"] == "Bearer hunter2"


def make_service_account(url: str) -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return {
        "type": "service_account",
        "client_email": "nobody@example.org",
        "private_key": key.decode(),
        "private_key_id": "0",
        "token_uri": f"{url}/token",
    }


@pytest.mark.parametrize("form", ["mapping", "file"])
def test_a_service_account_signs_in(teller: Any, form: str, tmp_path: Path) -> None:
    account: Any = make_service_account(teller.url)
    (tmp_path / "key.json").write_text(json.dumps(account))
    token = account if form == "mapping" else str(tmp_path / "key.json")
    granted = json.dumps({"access_token": "hunter2", "expires_in": 3600}).encode()
    teller.answers = (200, granted)
    given = StorageOptions({"endpoint_url": teller.url, "token": token})
    filesystem, _ = find_filesystem("gs://bucket/a.bin", given)
    filesystem.credentials.maybe_refresh()
    teller.answers = (206, b"abc")
    found, _ = find_filesystem("gs://bucket/a.bin", given)
    assert found is filesystem
    assert found.kwargs["headers"]["authorization"] == "Bearer hunter2"


REFUSED = {
    401: ("Invalid Credentials", "Invalid Credentials"),
    403: ("nobody does not have storage.objects.get access", "storage.objects.get"),
    400: ("Bucket is a requester pays bucket but no user project provided.", "requester_pays=True"),
}
"""What Google says by status, and a part of what users are told."""


@pytest.mark.parametrize("status", REFUSED)
def test_refused_access_is_told_with_what_google_says(teller: Any, status: int) -> None:
    said, told = REFUSED[status]
    teller.answers = (status, json.dumps({"error": {"code": status, "message": said}}).encode())
    options = {"token": "anon", "endpoint_url": teller.url}
    for use in (
        lambda: virtualds.open_virtual_dataset("gs://bucket/a.nc", storage_options=options),
        lambda: dataset(0, 3).virtual.to_manifest("gs://bucket/r.zarr", storage_options=options),
    ):
        with pytest.raises(AccessError, match=told):
            use()


BUSY = (503, b"")
RESOURCE = (200, json.dumps({"name": "a.bin", "size": "3", "generation": "7"}).encode())


@pytest.mark.parametrize("name", ["describe", "write_version", "write_file", "get_ranges"])
def test_each_request_is_repeated_as_often_as_the_setting_says(
    teller: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gcsfs, which would repeat requests itself, leaves that to us."""
    monkeypatch.setattr("virtualds.stores.requests.FIRST_WAIT", 0.001)
    options = StorageOptions({"endpoint_url": teller.url, "token": "anon"})
    url = "gs://bucket/a.bin"
    monkeypatch.setattr(conditional.ObjectVersioning, "find_unsafe_reason", lambda *_: "")
    store, file = find_store(url), SourceFile(url, 3, None, "7", options)
    use = {
        "describe": lambda: store.describe(url, options),
        "write_version": lambda: store.write_version(url, b"abc", options, None),
        "write_file": lambda: store.write_file(url, b"abc", options),
        "get_ranges": lambda: store.get_ranges(file, [(0, 3)]),
    }[name]
    teller.answers = (206, b"abc") if name == "get_ranges" else RESOURCE
    with virtualds.set_options(retries=2):
        teller.first[:] = [BUSY, BUSY]
        use()
        assert len(teller.asked) == 3
        teller.asked.clear()
        teller.first[:] = [BUSY] * 3
        with pytest.raises(OSError, match="503"):
            use()
    # nothing is removed: another writer may have made an object of that name
    assert len(teller.asked) == 3


def test_a_write_that_is_sent_again_is_no_other_writer(
    google: GoogleServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer was lost: the second says that there is such an object, which is ours."""
    url, options = f"{bucket}/x", StorageOptions(google.options)
    put(f"{bucket}/other", b"", google.options)
    store, once = find_store(url), GoogleFiles.upload_object

    def twice(self: Any, *given: Any) -> str:
        once(self, *given)
        return str(once(self, *given))

    first = store.write_version(url, b"one", options, None)
    monkeypatch.setattr(GoogleFiles, "upload_object", twice)
    second = store.write_version(url, b"two", options, first)
    third = store.write_version(f"{url}y", b"three", options, None)
    assert store.read_with_version(url, options) == (b"two", second)
    assert store.read_with_version(f"{url}y", options) == (b"three", third)
    with pytest.raises(ChangedError):
        store.write_version(url, b"four", options, first)


def test_a_token_and_anon_contradict_each_other() -> None:
    with pytest.raises(OSError, match="contradict"):
        find_filesystem("gs://bucket/a", StorageOptions(anon=True, token="hunter2"))


def test_a_token_that_cannot_be_used_is_no_wrong_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(AccessError, match="storage_options"):
        virtualds.open_virtual_dataset(
            "gs://bucket/a.nc", storage_options={"token": "google_default"}
        )


def test_the_names_of_a_folder_are_listed(google: GoogleServer, bucket: str) -> None:
    names = {"a", "b", "c"}
    for name in names:
        put(f"{bucket}/x/{name}", b"", google.options)
    put(f"{bucket}/x/deep/d", b"", google.options)
    assert list_folder_names(f"{bucket}/x", StorageOptions(google.options)) == {*names, "deep"}
    assert list_folder_names(f"{bucket}/none", StorageOptions(google.options)) == set()
