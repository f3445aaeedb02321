"""Of a server that speaks S3 it is proved that conditional writes hold, before one is relied on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from other_s3_servers import IGNORANT, bucket_at, ignorant_server, names_at
from products import few_quick
from s3_server import BUSY, requests_to, s3_server

import virtualds
from virtualds import UnsupportedError
from virtualds.source_file import StorageOptions
from virtualds.stores import conditional, find_store
from virtualds.stores.conditional import find_versioning
from virtualds.stores.fsspec import find_filesystem

SETS = ["refs.json", "refs.parquet", "refs.zarr"]


def dataset(begin: int, end: int) -> xr.Dataset:
    return xr.Dataset({"v": ("time", np.arange(begin, end))}, {"time": np.arange(begin, end)})


@pytest.fixture(scope="module", params=IGNORANT)
def ignorant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """A server that writes where a condition does not hold: the options that lead to it.

    To start one takes more than a second.
    """
    with ignorant_server(request.param, tmp_path_factory.mktemp("server")) as options:
        yield options


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SETS)
def test_a_server_that_ignores_conditions_is_refused_by_name(
    ignorant: dict[str, Any], name: str
) -> None:
    bucket = bucket_at(ignorant)
    endpoint = ignorant["client_kwargs"]["endpoint_url"]
    with pytest.raises(UnsupportedError, match="only_writer=True") as caught:
        dataset(0, 3).virtual.to_manifest(f"{bucket}/of/{name}", storage_options=ignorant)
    assert endpoint in str(caught.value)
    assert "If-None-Match" in str(caught.value) or "If-Match" in str(caught.value)
    assert names_at(bucket, ignorant) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SETS)
def test_the_only_writer_may_use_such_a_server(ignorant: dict[str, Any], name: str) -> None:
    url = f"{bucket_at(ignorant)}/{name}"
    with virtualds.set_options(only_writer=True):
        dataset(0, 3).virtual.to_manifest(url, storage_options=ignorant)
        with pytest.raises(FileExistsError):
            dataset(0, 3).virtual.to_manifest(url, storage_options=ignorant)
        dataset(3, 5).virtual.to_manifest(url, storage_options=ignorant, append_dim="time")
    found = xr.open_dataset(url, engine="virtual", storage_options=ignorant)
    xr.testing.assert_equal(found.load(), dataset(0, 5))


# ---------------------------------------------------------------------- a server that knows them


def test_servers_that_keep_conditions_pass_the_trial_each_time(
    s3_server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket_at(s3_server)}/of/x.json"
    filesystem, path = find_filesystem(url, StorageOptions(s3_server))
    for _ in range(5):
        monkeypatch.setattr(conditional, "_UNSAFE_REASONS", {})
        assert find_versioning(filesystem).find_unsafe_reason(filesystem, path) == ""


def test_a_server_that_takes_one_write_of_an_object_at_a_time_passes_too() -> None:
    """Object stores limit how often an object may be replaced."""
    with s3_server(BUSY) as options:
        bucket = bucket_at(options)
        dataset(0, 3).virtual.to_manifest(f"{bucket}/refs.json", storage_options=options)
        assert names_at(bucket, options) == ["refs.json"]


def test_conditions_are_proved_once_for_an_endpoint_and_a_bucket(moto: dict[str, Any]) -> None:
    first, second = bucket_at(moto), bucket_at(moto)
    before = len(requests_to(moto))
    for url in (f"{first}/a/x.json", f"{first}/b/y.json", f"{first}/b/c/z.json"):
        find_store(url).write_version(url, b"data", StorageOptions(moto), None)
    asked = requests_to(moto)[before:]
    tried = [request for request in asked if conditional.TEST_PREFIX in request]
    # one creates, two are refused, of some at a time one wins, and one comes late; those that
    # are refused look whose the object is
    writes = 1 + 2 + 2 * conditional.CONCURRENT_WRITES + 1
    assert Counter(r.split()[0] for r in tried) == {"PUT": writes, "HEAD": writes - 3}
    assert all(f"/a/{conditional.TEST_PREFIX}" in request for request in tried)
    assert len({request.split()[1] for request in tried}) == 2
    # and a look for those that were left, and their removal
    assert len(asked) == len(tried) + 2 + 3
    url = f"{second}/x.json"
    find_store(url).write_version(url, b"data", StorageOptions(moto), None)
    assert any(f"{second[5:]}/{conditional.TEST_PREFIX}" in r for r in requests_to(moto))
    assert names_at(first, moto) == ["a/x.json", "b/c/z.json", "b/y.json"]


@pytest.mark.parametrize("name", few_quick(SETS, SETS[:1]))
def test_trial_objects_lie_beside_the_set(moto: dict[str, Any], name: str) -> None:
    bucket, before = bucket_at(moto), len(requests_to(moto))
    dataset(0, 3).virtual.to_manifest(f"{bucket}/of/it/{name}", storage_options=moto)
    tried = [
        request for request in requests_to(moto)[before:] if conditional.TEST_PREFIX in request
    ]
    assert tried and all(f"/of/it/{conditional.TEST_PREFIX}" in request for request in tried)
    assert not [found for found in names_at(bucket, moto) if conditional.TEST_PREFIX in found]


def test_a_set_may_be_all_of_a_bucket(moto: dict[str, Any]) -> None:
    bucket = bucket_at(moto)
    dataset(0, 3).virtual.to_manifest(bucket, format="zarr-v3", storage_options=moto)
    found = xr.open_dataset(bucket, engine="virtual", storage_options=moto)
    xr.testing.assert_equal(found.load(), dataset(0, 3))


def test_trial_objects_of_killed_processes_are_not_listed_and_are_removed(
    moto: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = bucket_at(moto)
    filesystem, path = fsspec.core.url_to_fs(bucket, **moto)
    left = f"{conditional.TEST_PREFIX}0123"
    filesystem.call_s3("put_object", Bucket=path, Key=left, Body=b"")
    assert find_store(bucket).list_files(bucket, StorageOptions(moto)) == []
    url = f"{bucket}/x.json"
    find_store(url).write_version(url, b"1", StorageOptions(moto), None)
    # another process may be at it just now
    assert names_at(bucket, moto) == [left, "x.json"]
    monkeypatch.setattr(conditional, "LEFTOVER_AGE", -60.0)
    conditional._UNSAFE_REASONS.clear()
    find_store(url).write_version(f"{bucket}/y.json", b"1", StorageOptions(moto), None)
    assert names_at(bucket, moto) == ["x.json", "y.json"]
