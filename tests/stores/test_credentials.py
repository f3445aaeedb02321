"""Credentials that expire in the middle of a job are renewed by the function that gives them."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import dask
import fsspec
import pytest
import xarray as xr
from expiring_s3 import Tokens, expiring_s3, fetch_token, renewing_options
from other_s3_servers import bucket_at

import virtualds
from virtualds import AccessError
from virtualds.source_file import StorageOptions
from virtualds.stores import FsspecStore
from virtualds.stores import fsspec as filesystems
from virtualds.stores.fsspec import resolve_options
from virtualds.stores.listing import list_states

pytest.importorskip("s3fs")

NESTED: Any = {"combine": "nested", "concat_dim": "time"}
STORE = FsspecStore()


@pytest.fixture
def tokens(moto: dict[str, Any]) -> Iterator[Tokens]:
    with expiring_s3(moto) as running:
        yield running


@pytest.fixture
def bucket(moto: dict[str, Any], archive_files: list[Path]) -> str:
    """A bucket with two files, and with ``old``."""
    url, filesystem = bucket_at(moto), fsspec.filesystem("s3", **moto)
    for path in archive_files:
        filesystem.pipe_file(f"{url}/{path.name}", path.read_bytes())
    filesystem.pipe_file(f"{url}/old", b"old")
    return url


ASKS: dict[str, Callable[[str, StorageOptions], object]] = {
    "describe": lambda url, o: STORE.describe(f"{url}/old", o),
    "read_head": lambda url, o: STORE.read_head(f"{url}/old", o, 3),
    "read_all": lambda url, o: STORE.read_all(f"{url}/old", o),
    "get_ranges": lambda url, o: STORE.get_ranges(
        virtualds.SourceFile(f"{url}/old", options=o), [(0, 3)]
    ),
    "read_with_version": lambda url, o: STORE.read_with_version(f"{url}/old", o),
    "find_version": lambda url, o: STORE.find_version(f"{url}/old", o),
    "write_version": lambda url, o: STORE.write_version(f"{url}/new", b"new", o, None),
    "write_file": lambda url, o: STORE.write_file(f"{url}/new", b"new", o),
    "write_all": lambda url, o: STORE.write_all(f"{url}/new", b"new", o, replace=True),
    "list_files": lambda url, o: STORE.list_files(f"{url}/", o)[0],
    "list_states": lambda url, o: list_states(f"{url}/20*.nc", o).urls[0],
    "glob": lambda url, o: virtualds.open_virtual_mfdataset(
        f"{url}/20*.nc", storage_options=o, **NESTED
    ),
    "remove": lambda url, o: STORE.remove([f"{url}/old"], o),
}


@pytest.mark.parametrize("ask", ASKS)
def test_a_request_is_made_again_with_new_credentials(
    ask: str, tokens: Tokens, bucket: str
) -> None:
    options = StorageOptions(renewing_options(tokens))
    first = resolve_options(options)
    tokens.good.clear()
    ASKS[ask](bucket, options)
    assert len(tokens.given) == 2
    assert first is not None and first["token"] == tokens.given[0]


def test_a_long_job_goes_on_over_many_tokens(
    tokens: Tokens, bucket: str, archive_files: list[Path], tmp_path: Path
) -> None:
    tokens.uses = 25
    options = renewing_options(tokens)
    scanned = virtualds.open_virtual_mfdataset(
        f"{bucket}/20*.nc", storage_options=options, **NESTED
    )
    scanned.virtual.to_manifest(f"{bucket}/refs.zarr", storage_options=options)
    ds = xr.open_dataset(
        f"{bucket}/refs.zarr", engine="virtual", storage_options=options, chunks={"time": 1}
    )
    native = xr.concat([xr.load_dataset(path) for path in archive_files], "time")
    xr.testing.assert_equal(ds.t.load(), native.t)
    assert len(tokens.given) > 2


def test_requests_that_fail_together_ask_for_one_token(tokens: Tokens, bucket: str) -> None:
    file = virtualds.SourceFile(
        f"{bucket}/2001.nc", options=StorageOptions(renewing_options(tokens))
    )
    resolve_options(file.options)
    tokens.good.clear()
    with virtualds.set_options(max_requests=8):
        STORE.get_ranges(file, [(n, 10) for n in range(16)])
    assert len(tokens.given) == 2


def test_workers_in_other_processes_renew_their_own(
    tokens: Tokens, bucket: str, archive_files: list[Path], tmp_path: Path
) -> None:
    options = renewing_options(tokens)
    scanned = virtualds.open_virtual_dataset(f"{bucket}/2001.nc", storage_options=options)
    scanned.virtual.to_manifest(tmp_path / "refs.zarr")
    ds = xr.open_dataset(
        tmp_path / "refs.zarr", engine="virtual", storage_options=options, chunks={"time": 3}
    )
    tokens.good.clear()
    with dask.config.set(scheduler="processes", num_workers=2):
        found = ds.t.load()
    xr.testing.assert_equal(found, xr.load_dataset(archive_files[0]).t)
    assert tokens.good


@pytest.mark.parametrize("form", ["refs.zarr", "refs.json", "refs.parquet"])
def test_no_credentials_are_written(form: str, tokens: Tokens, bucket: str, tmp_path: Path) -> None:
    options = renewing_options(tokens)
    scanned = virtualds.open_virtual_dataset(f"{bucket}/2001.nc", storage_options=options)
    scanned.virtual.to_manifest(tmp_path / form)
    files = [p for p in (tmp_path / form, *tmp_path.rglob("*")) if p.is_file()]
    written = b"".join(path.read_bytes() for path in files)
    assert written
    for secret in (*tokens.given, "fetch_token", "nothing", "credentials"):
        assert secret.encode() not in written


def test_credentials_are_renewed_before_they_end(tokens: Tokens, bucket: str) -> None:
    tokens.life = 0.4
    options = StorageOptions(renewing_options(tokens))
    for _ in range(2):
        resolve_options(options)
    assert len(tokens.given) == 1
    time.sleep(0.3)
    resolve_options(options)
    assert len(tokens.given) == 2


def test_equal_functions_share_what_they_were_given(tokens: Tokens) -> None:
    options = StorageOptions(renewing_options(tokens))
    copies = [pickle.loads(pickle.dumps(options)) for _ in range(3)]
    assert len({resolve_options(one)["token"] for one in (options, *copies)}) == 1  # type: ignore[index]
    assert len(tokens.given) == 1


def test_wrong_credentials_are_asked_for_once_more_and_then_refused(
    tokens: Tokens, bucket: str
) -> None:
    asked: list[int] = []

    def give() -> dict[str, str]:
        asked.append(1)
        return {"key": "nobody", "secret": "nothing", "token": "never good"}

    options = renewing_options(tokens) | {"credentials": give}
    for _ in range(2):
        with pytest.raises(AccessError, match="the credentials have expired"):
            virtualds.open_virtual_dataset(f"{bucket}/2001.nc", storage_options=options)
    assert len(asked) == 2


def divide_by_zero() -> dict[str, str]:
    return {"key": str(1 / 0)}


BROKEN: dict[str, tuple[Any, type[Exception], str]] = {
    "fails": (divide_by_zero, ZeroDivisionError, "division"),
    "gives nothing": (dict, AccessError, "returned dict without options"),
    "is no function": ({"key": "a"}, AccessError, "give a function"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_function_that_gives_no_credentials_is_named(broken: str) -> None:
    function, kind, words = BROKEN[broken]
    with pytest.raises(kind, match=words) as caught:
        virtualds.open_virtual_dataset(
            "s3://bucket/2001.nc", storage_options={"credentials": function}
        )
    told = str(caught.value) + str(getattr(caught.value, "__notes__", ""))
    assert "credentials" in told and "storage_options" in told


END = datetime(2001, 1, 1, 12, tzinfo=UTC)
SPELLINGS: dict[str, tuple[dict[str, Any], Any]] = {
    "earthaccess": (
        {"accessKeyId": "a", "secretAccessKey": "b", "sessionToken": "c"},
        {"expiration": "2001-01-01 12:00:00+00:00"},
    ),
    "AWS": (
        {"AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c"},
        {"Expiration": END},
    ),
    "obstore": (
        {"access_key_id": "a", "secret_access_key": "b", "token": "c"},
        {"expires_at": END.astimezone()},
    ),
    "botocore": (
        {"access_key": "a", "secret_key": "b", "token": "c"},
        {"expiry_time": "2001-01-01T12:00:00Z"},
    ),
    "s3fs": ({"key": "a", "secret": "b", "token": "c"}, {"expiration": END.timestamp()}),
    "without a zone": ({"key": "a", "secret": "b", "token": "c"}, {"expires": "2001-01-01T12"}),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_credentials_are_known_by_the_names_of_other_libraries(
    spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, end = SPELLINGS[spelling]
    now = (END - timedelta(hours=1)).timestamp()
    monkeypatch.setattr(filesystems.time, "time", lambda: now)
    found = filesystems._call_credential_function(partial(dict, given | end))
    assert found.options == {"key": "a", "secret": "b", "token": "c"}
    assert found.until == END.timestamp() - filesystems.RENEWAL_MARGIN


def test_the_helper_of_these_tests_asks_a_server(tokens: Tokens) -> None:
    assert fetch_token(tokens.url)["sessionToken"] == tokens.given[-1]
