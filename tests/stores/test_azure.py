"""Azure's blobs: every kind of url and of credentials, each format, far folders, few requests."""

from __future__ import annotations

import base64
import gzip
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from azure.storage.blob import BlobServiceClient, ContentSettings
from azure_server import ACCOUNT, KEY, AzureServer, azure_server, filesystem_of
from counting_server import counting_proxy
from effort import others_soaked
from programs import run_code, run_module

import virtualds
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import conditional, find_store
from virtualds.stores.listing import fetch_state, find_matching_files, list_states
from virtualds.stores.store import StoreError

SETS = ["refs.json", "refs.parquet", "refs.zarr"]
DATA = bytes(range(256)) * 16

URLS: dict[str, Callable[[str], str]] = {
    "az": lambda box: f"az://{box}",
    "abfs": lambda box: f"abfs://{box}",
    "abfss": lambda box: f"abfss://{box}",
    "abfs with account": lambda box: f"abfs://{box}@{ACCOUNT}.dfs.core.windows.net",
    "abfss with account": lambda box: f"abfss://{box}@{ACCOUNT}.dfs.core.windows.net",
}


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("days")
    paths = [folder / f"{number}.nc" for number in range(4)]
    for number, path in enumerate(paths):
        day(number).to_netcdf(path, encoding={"t": {"zlib": True}})
    return paths


def day(number: int) -> xr.Dataset:
    values = np.random.default_rng(number).normal(size=(2, 50))
    return xr.Dataset({"t": (("time", "x"), values)}, {"time": 2 * number + np.arange(2)})


@pytest.fixture
def box(azure_server: AzureServer, days: list[Path]) -> str:
    """The name of a container that holds the files of the days."""
    files = {f"data/{path.name}": path.read_bytes() for path in days}
    return azure_server.make_box(files).removeprefix("az://")


def opened(url: str, options: dict[str, Any], **how: Any) -> xr.Dataset:
    return xr.open_dataset(url, engine="virtual", storage_options=options, **how).load()


def joined(*numbers: int) -> xr.Dataset:
    return xr.concat([day(number) for number in numbers], "time")


# ---------------------------------------------------------------------- sets


# each kind of url, with the formats in turn: what a url means is not up to the format
PAIRS = [(kind, SETS[n % len(SETS)]) for n, kind in enumerate(URLS)]


@pytest.mark.parametrize(("kind", "name"), others_soaked(product(URLS, SETS), PAIRS))
def test_every_kind_of_url_is_scanned_written_appended_to_and_read(
    kind: str, name: str, azure_server: AzureServer, box: str
) -> None:
    root, how = URLS[kind](box), {"storage_options": azure_server.options}
    virtual = virtualds.open_virtual_mfdataset(
        f"{root}/data/[01].nc", combine="nested", concat_dim="time", **how
    )
    assert virtual.virtual.sources["url"].tolist() == [f"{root}/data/{n}.nc" for n in (0, 1)]
    url = f"{root}/sets/{name}"
    virtual.virtual.to_manifest(url, relative_paths=True, **how)
    new = virtualds.open_virtual_dataset(f"{root}/data/2.nc", **how)
    new.virtual.to_manifest(url, append_dim="time", **how)
    xr.testing.assert_equal(opened(url, azure_server.options), joined(0, 1, 2))
    with pytest.raises(FileExistsError):
        new.virtual.to_manifest(url, **how)
    # relative paths lead to the same files from any kind of url
    again = URLS["az"](box)
    xr.testing.assert_equal(opened(f"{again}/sets/{name}", azure_server.options), joined(0, 1, 2))


def test_a_set_may_be_all_of_a_container(azure_server: AzureServer) -> None:
    url, how = azure_server.make_box(), {"storage_options": azure_server.options}
    day(0).virtual.to_manifest(url, format="zarr-v3", **how)
    xr.testing.assert_equal(opened(url, azure_server.options), day(0))


@pytest.mark.parametrize("name", ["refs.json", "refs.zarr"])  # Parquet's only on local disk
def test_regions_of_a_set_are_filled(name: str, azure_server: AzureServer, box: str) -> None:
    how = {"storage_options": azure_server.options}
    parts = [virtualds.open_virtual_dataset(f"az://{box}/data/{n}.nc", **how) for n in range(3)]
    url = f"az://{box}/{name}"
    times = np.arange(6)
    virtualds.template(parts[0], {"time": times}).virtual.to_manifest(url, **how)
    for number in (2, 0, 1):
        parts[number].virtual.to_manifest(url, region={"time": "auto"}, **how)
    xr.testing.assert_equal(opened(url, azure_server.options), joined(0, 1, 2))


def test_snapshots_are_read_compacted_and_expired(azure_server: AzureServer) -> None:
    numbers = np.arange(15_000, dtype="<i4")
    root, options = azure_server.make_box({"n.bin": numbers.tobytes()}), azure_server.options
    url, how = f"{root}/refs.zarr", {"storage_options": options}
    for begin in range(0, 15_000, 5_000):
        array = virtualds.ManifestArray.from_arrays(
            shape=(5_000,), chunks=(1,), dtype="<i4", path=f"{root}/n.bin",
            offsets=4 * numbers[begin:begin + 5_000], lengths=4,
        )  # fmt: skip
        new = xr.Dataset({"v": ("time", array)})
        new.virtual.to_manifest(url, append_dim="time", **how)
    earlier = list(virtualds.snapshots(url, **how)["snapshot"])
    assert virtualds.compact(url, **how)
    for count, snapshot in enumerate(earlier, 1):
        found = xr.open_dataset(url, engine="virtual", snapshot=snapshot, **how)["v"]
        assert found.size == 5_000 * count
        np.testing.assert_array_equal(found[-5:], numbers[: found.size][-5:])
    assert len(virtualds.expire_snapshots(url, keep=1, **how).snapshots) == 3
    np.testing.assert_array_equal(opened(url, options)["v"], numbers)


@pytest.mark.parametrize("name", ["refs.json", "refs.zarr"])
def test_trees_are_written_and_read(name: str, azure_server: AzureServer, box: str) -> None:
    tree = xr.DataTree.from_dict({"/a": day(0), "/a/b": day(0) + 1, "/c": day(1)})
    url, how = f"az://{box}/{name}", {"storage_options": azure_server.options}
    tree.virtual.to_manifest(url, **how)
    found = xr.open_datatree(url, engine="virtual", **how).load()
    xr.testing.assert_equal(found, tree)


def test_a_set_follows_its_files(azure_server: AzureServer, box: str, days: list[Path]) -> None:
    options, pattern, target = azure_server.options, f"az://{box}/data/*.nc", f"az://{box}/r.zarr"
    how: Any = {"concat_dim": "time", "settle": 0}
    how |= {"storage_options": options, "target_options": options}
    assert len(virtualds.sync(pattern, target, **how).added) == 4
    assert virtualds.sync(pattern, target, **how).unchanged == 4
    filesystem = filesystem_of(azure_server)
    # as long as before, so that the etag alone tells
    changed = day(1) + 0.0
    changed["t"] = -changed["t"]
    local = days[0].parent / "changed"
    changed.to_netcdf(local, encoding={"t": {"zlib": True}})
    filesystem.put_file(str(local), f"{box}/data/1.nc")
    report = virtualds.sync(pattern, target, **how)
    assert (report.unchanged, report.replaced) == (3, (f"az://{box}/data/1.nc",))
    found = opened(target, options)
    xr.testing.assert_equal(found.isel(time=slice(2, 4)), changed)


# ---------------------------------------------------------------------- requests


def test_a_scan_takes_one_request(azure_server: AzureServer, box: str, days: list[Path]) -> None:
    url = f"az://{box}/data/0.nc"
    with counting_proxy(azure_server.endpoint) as (proxy, counts):
        options = azure_server.options_by(f"{proxy}/{ACCOUNT}")
        virtual = virtualds.open_virtual_dataset(url, storage_options=options)
        assert [method for method, _, _ in counts.requests] == ["GET"]
        [source] = virtual["t"]._variable._data.sources
    known = find_store(url).describe(url, source.options)
    assert source.fingerprint == known.fingerprint
    assert (source.size, bool(source.etag)) == (days[0].stat().st_size, True)


def test_a_range_takes_one_request_and_tells_whether_the_blob_changed(
    azure_server: AzureServer,
) -> None:
    url = f"{azure_server.make_box({'x/a.bin': DATA})}/x/a.bin"
    store = find_store(url)
    known = store.describe(url, StorageOptions(azure_server.options))
    with counting_proxy(azure_server.endpoint) as (proxy, counts):
        options = StorageOptions(azure_server.options_by(f"{proxy}/{ACCOUNT}"))
        file = known._replace(options=options)
        assert store.get_ranges(file, [(10, 20)]) == [DATA[10:30]]
        assert len(counts.requests) == 1
        path = url.removeprefix("az://")
        filesystem_of(azure_server).pipe_file(path, DATA[::-1])
        with pytest.raises(StoreError, match="modified after it was scanned"):
            store.get_ranges(file, [(10, 20)])
        filesystem_of(azure_server).pipe_file(path, DATA[:30])
        with pytest.raises(StoreError, match="30 bytes, it had 4096"):
            store.get_ranges(file, [(10, 20)])
        with virtualds.set_options(check_sources=False), pytest.raises(StoreError, match="20 of"):
            store.get_ranges(file, [(10, 30)])


def test_conditions_are_proved_once_for_an_account_and_a_container(
    azure_server: AzureServer,
) -> None:
    box = azure_server.make_box()
    with counting_proxy(azure_server.endpoint) as (proxy, counts):
        options = StorageOptions(azure_server.options_by(f"{proxy}/{ACCOUNT}"))
        for url in (f"{box}/a/x.json", f"{box}/b/y.json"):
            find_store(url).write_version(url, b"data", options, None)
        proof = [method for method, path, _ in counts.requests if conditional.TEST_PREFIX in path]
        # one creates, two are refused, of some at a time one wins, and one comes late; those that
        # are refused look whose the blob is
        writes = 1 + 2 + 2 * conditional.CONCURRENT_WRITES + 1
        wanted = {"GET": 1, "PUT": writes, "HEAD": writes - 3}
        assert Counter(proof) == wanted
        # and one that removes both, and those that write the two files
        assert len(counts.requests) == sum(wanted.values()) + 1 + 2


# ---------------------------------------------------------------------- reading


@pytest.mark.product
@pytest.mark.parametrize("key", ["x/a.bin", "a b.bin", "a#b%20c.bin", "ü.bin", "T00:00.bin"])
@pytest.mark.parametrize("signed", ["key", "signature", "anonymous"])
def test_a_blob_of_any_name_is_read_with_any_credentials(
    signed: str, key: str, azure_server: AzureServer
) -> None:
    url = f"{azure_server.make_box({key: DATA}, public_access='blob')}/{key}"
    secrets = {"key": f"AccountKey={KEY};", "anonymous": ""}
    secrets["signature"] = f"SharedAccessSignature={azure_server.sign()};"
    text = f"AccountName={ACCOUNT};{secrets[signed]}BlobEndpoint={azure_server.endpoint};"
    options = StorageOptions({"connection_string": text})
    file = find_store(url).describe(url, options)
    assert (file.size, bool(file.etag)) == (len(DATA), True)
    assert find_store(url).get_ranges(file, [(10, 20), (0, 3)]) == [DATA[10:30], DATA[:3]]
    with pytest.raises(StoreError, match=r"416|range"):
        find_store(url).get_ranges(file, [(len(DATA) + 5, 3)])


def test_a_blob_that_is_stored_compressed_is_read_as_it_is_stored(
    azure_server: AzureServer,
) -> None:
    url, data = f"{azure_server.make_box()}/a.json", gzip.compress(DATA)
    with BlobServiceClient(azure_server.endpoint, KEY) as client:
        client.get_blob_client(url.split("/")[2], "a.json").upload_blob(
            data, content_settings=ContentSettings(content_encoding="gzip")
        )
    options = StorageOptions(azure_server.options)
    file, head = find_store(url).read_head(url, options, 10)
    assert (file.size, head) == (len(data), data[:10])
    assert find_store(url).get_ranges(file, [(5, 9)]) == [data[5:14]]
    assert find_store(url).read_all(url, options) == data


@pytest.mark.parametrize("missing", ["blob", "container"])
def test_a_missing_blob_and_a_missing_container_are_told_apart(
    missing: str, azure_server: AzureServer
) -> None:
    box = azure_server.make_box() if missing == "blob" else "az://no-such-box"
    with pytest.raises(FileNotFoundError) as caught:
        virtualds.open_virtual_dataset(f"{box}/a.nc", storage_options=azure_server.options)
    what = "file" if missing == "blob" else "bucket"
    told = f"{box}/a.nc: there is no such {what} (The specified {missing} does not exist.)"
    assert str(caught.value).startswith(told)


def test_a_wrong_key_is_an_access_error(azure_server: AzureServer, box: str) -> None:
    wrong = base64.b64encode(b"wrong" * 12).decode()
    text = azure_server.options["connection_string"].replace(KEY, wrong)
    with pytest.raises(virtualds.AccessError, match="credentials"):
        virtualds.open_virtual_dataset(
            f"az://{box}/data/0.nc", storage_options={"connection_string": text}
        )


def test_a_server_that_is_down_is_an_error_within_seconds() -> None:
    text = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint=http://127.0.0.1:9/{ACCOUNT};"
    options = StorageOptions({"connection_string": text})
    file = SourceFile("az://box/a.nc", options=options)
    begun = time.monotonic()
    with virtualds.set_options(retries=1):
        for use in (
            lambda: find_store(file.url).read_head(file.url, options, 10),
            lambda: find_store(file.url).describe(file.url, options),
            lambda: find_store(file.url).get_ranges(file, [(0, 3)]),
        ):
            with pytest.raises(StoreError, match="is right and up"):
                use()
    assert time.monotonic() - begun < 10


# ---------------------------------------------------------------------- folders and patterns


@pytest.mark.parametrize("kind", URLS)
def test_patterns_find_the_urls_that_a_user_would_write(
    kind: str, azure_server: AzureServer, box: str
) -> None:
    root = URLS[kind](box)
    for pattern in ("data/[02].nc", "d*/[02].nc", "**/[02].nc"):
        wanted = [f"{root}/data/{number}.nc" for number in (0, 2)]
        assert find_matching_files([f"{root}/{pattern}"], azure_server.options) == wanted
        options = StorageOptions(azure_server.options)
        found = list_states(f"{root}/{pattern}", options)
        assert found.urls.tolist() == wanted
        assert found.etags.tolist() == [fetch_state(url, options).etag for url in wanted]
    with pytest.raises(FileNotFoundError, match="no file matches"):
        find_matching_files([f"{root}/none*.nc"], azure_server.options)


def test_a_folder_is_no_file(azure_server: AzureServer, box: str) -> None:
    options = StorageOptions(azure_server.options)
    for url in (f"az://{box}", f"az://{box}/data", f"az://{box}/data/"):
        with pytest.raises(IsADirectoryError):
            find_store(url).describe(url, options)
    with pytest.raises(virtualds.FormatError, match="this folder is neither"):
        virtualds.open_virtual_dataset(f"az://{box}", storage_options=azure_server.options)


def test_an_empty_blob_may_stand_for_a_folder(azure_server: AzureServer) -> None:
    """As in accounts with a hierarchical namespace, where each folder is such a blob."""
    url, how = f"{azure_server.make_box()}/of/refs.zarr", {"storage_options": azure_server.options}
    day(0).virtual.to_manifest(url, **how)
    with BlobServiceClient(azure_server.endpoint, KEY) as client:
        for folder in ("of", "of/refs.zarr"):
            client.get_blob_client(url.split("/")[2], folder).upload_blob(
                b"", metadata={"hdi_isfolder": "true"}
            )
    xr.testing.assert_equal(opened(url, azure_server.options), day(0))
    day(1).virtual.to_manifest(url, append_dim="time", **how)
    xr.testing.assert_equal(opened(url, azure_server.options), joined(0, 1))
    with pytest.raises(IsADirectoryError):
        find_store(url).describe(url, StorageOptions(azure_server.options))


def test_an_empty_blob_is_an_empty_file(azure_server: AzureServer) -> None:
    url = f"{azure_server.make_box({'a.nc': b''})}/a.nc"
    file, head = find_store(url).read_head(url, StorageOptions(azure_server.options), 10)
    assert (file.size, bool(file.etag), head) == (0, True, b"")
    with pytest.raises(virtualds.FormatError, match="the file is empty"):
        virtualds.open_virtual_dataset(url, storage_options=azure_server.options)


def test_folders_of_other_filesystems_are_no_files_either() -> None:
    fsspec.filesystem("memory").pipe("/of-folders/a.nc", b"")
    with pytest.raises(IsADirectoryError):
        find_store("memory://of-folders").describe("memory://of-folders", None)


# ---------------------------------------------------------------------- credentials


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """A server with TLS, which is asked for unless a connection string says otherwise."""
    with azure_server(tmp_path_factory.mktemp("guarded"), encrypted=True) as server:
        yield server


CREDENTIALS = """
import base64, json, sys, time
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
import xarray as xr
import virtualds

account, key, signature, host, url = sys.argv[1:]


class Token:
    async def get_token(self, *scopes, **how):
        now = int(time.time())
        said = {"aud": "https://storage.azure.com", "iss": "https://sts.windows.net/tenant/"}
        said |= {"nbf": now - 60, "iat": now - 60, "exp": now + 3600}
        parts = [json.dumps(part).encode() for part in ({"alg": "RS256"}, said)] + [b"unsigned"]
        text = [base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts]
        return AccessToken(".".join(text), now + 3600)


WAYS = {
    "key": {"account_key": key},
    "signature": {"sas_token": signature},
    "named key": {"credential": AzureNamedKeyCredential(account, key)},
    "signature object": {"credential": AzureSasCredential(signature)},
    "token": {"credential": Token()},
}
for number, (name, way) in enumerate(WAYS.items()):
    how = {"storage_options": {"account_name": account, "account_host": host, **way}}
    virtual = virtualds.open_virtual_dataset(f"{url}/data/0.nc", **how)
    virtual.virtual.to_manifest(f"{url}/{number}.zarr", **how)
    new = virtualds.open_virtual_dataset(f"{url}/data/1.nc", **how)
    new.virtual.to_manifest(f"{url}/{number}.zarr", append_dim="time", **how)
    ds = xr.open_dataset(f"{url}/{number}.zarr", engine="virtual", **how).load()
    print(name, ds.sizes["time"], flush=True)
how = {"storage_options": {"account_name": account, "account_host": host, "anon": True}}
print("anonymous", virtualds.open_virtual_dataset(f"{url}/data/0.nc", **how).sizes["time"])
"""


def run(server: AzureServer, run_program: Callable[..., Any], *arguments: str) -> str:
    """Run a program that trusts the certificate of a server."""
    trusting = {**os.environ, "SSL_CERT_FILE": str(server.certificate)}
    done = run_program(*arguments, env=trusting)
    assert done.returncode == 0, done.stderr
    return done.stdout


def public_box(server: AzureServer, days: list[Path]) -> str:
    files = {f"data/{path.name}": path.read_bytes() for path in days}
    return server.make_box(files, public_access="blob")


def test_every_kind_of_credentials_reads_writes_and_appends(
    guarded: AzureServer, days: list[Path]
) -> None:
    url, host = public_box(guarded, days), f"{guarded.host}/{ACCOUNT}"
    told = run(guarded, run_code, CREDENTIALS, ACCOUNT, KEY, guarded.sign(), host, url)
    names = ("key", "signature", "named key", "signature object", "token")
    assert told.splitlines() == [*(f"{name} 4" for name in names), "anonymous 2"]


@pytest.mark.full
def test_the_command_line_takes_the_options(guarded: AzureServer, days: list[Path]) -> None:
    url, target = public_box(guarded, days), "refs.zarr"
    options = {"account_name": ACCOUNT, "account_host": f"{guarded.host}/{ACCOUNT}"}
    options |= {"account_key": KEY}
    reading = ["--storage-options", json.dumps(options)]
    writing = ["--target-options", json.dumps(options)]
    program, there = partial(run, guarded, run_module, "virtualds_cli"), f"{url}/{target}"
    scan = ["scan", f"{url}/data/[01].nc", "--concat-dim", "time", "-o", there]
    program(*scan, *reading, *writing)
    program("append", there, f"{url}/data/2.nc", "--dim", "time", *reading, *writing)
    assert "time" in program("info", there, *reading)
    verified = json.loads(program("verify", there, "--json", *reading))
    assert verified["ok"]
