"""Errors of stores say what is the matter, name the set or the host, and say what to do."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from products import few_quick
from programs import run_code

import virtualds
from virtualds import AccessError, FormatError, ReadError, UnsupportedError
from virtualds.stores import fsspec
from virtualds.stores.local import remove_leftovers
from virtualds.stores.store import make_temporary_name

SETS = ["refs.json", "refs.parquet", "refs.zarr"]
UNREACHABLE = {
    "key": "a",
    "secret": "b",
    "endpoint_url": "http://127.0.0.1:9",
    "config_kwargs": {"retries": {"max_attempts": 0}},
}


def dataset() -> xr.Dataset:
    return xr.Dataset({"v": ("time", np.arange(3))})


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    fsspec._make_filesystem.cache_clear()


def opened(url: str, **options: Any) -> Any:
    return virtualds.open_virtual_dataset(url, storage_options=options)


def written(url: str, **options: Any) -> None:
    dataset().virtual.to_manifest(url, storage_options=options)


@pytest.mark.parametrize("use", [opened, written])
@pytest.mark.parametrize("name", SETS)
def test_missing_credentials_are_named(
    use: Callable[..., Any], name: str, no_credentials: None, s3_server: dict[str, Any]
) -> None:
    options = {"client_kwargs": s3_server["client_kwargs"]}
    with pytest.raises(AccessError, match="storage_options") as caught:
        use(f"s3://bucket/{name}", **options)
    assert f"s3://bucket/{name}" in str(caught.value)
    assert "redentials" in str(caught.value)


def test_it_is_said_which_options_are_for_the_files_and_which_for_the_set(
    no_credentials: None, s3_server: dict[str, Any], tmp_path: Path
) -> None:
    file, server = tmp_path / "a.nc", {"client_kwargs": s3_server["client_kwargs"]}
    dataset().to_netcdf(file)
    far, near = "s3://bucket/refs.zarr", tmp_path / "refs.zarr"
    along: dict[str, Any] = {"concat_dim": "time"}
    build: dict[str, Any] = {**along, "combine": "nested", "on_error": "raise"}
    both = [{"storage_options": server}, {"target_options": server}]
    calls: list[Callable[[], Any]] = [
        lambda: virtualds.sync([file], far, **along, **both[1]),
        lambda: virtualds.sync(["s3://bucket/a.nc"], near, **along, **both[0]),
        lambda: virtualds.convert(file, far, **both[1]),
        lambda: virtualds.convert("s3://bucket/a.nc", near, **both[0]),
        lambda: virtualds.open_virtual_mfdataset([file], to=far, **build, **both[1]),
        lambda: virtualds.open_virtual_mfdataset(["s3://bucket/a.nc"], to=near, **build, **both[0]),
    ]
    for call in calls:
        # listing raises the wider class
        with pytest.raises(PermissionError, match="redentials") as caught:
            call()
        assert "target_options for the set" in caught.value.__notes__[-1]
    with pytest.raises(AccessError) as alone:
        opened(far, **server)
    assert not any("target_options" in note for note in getattr(alone.value, "__notes__", ()))
    with pytest.raises(TypeError, match="'target_options'; did you mean 'storage_options'"):
        dataset().virtual.to_manifest(near, target_options=server)


@pytest.mark.parametrize("use", [opened, written])
@pytest.mark.parametrize("name", SETS)
def test_a_host_that_does_not_answer_is_named(use: Callable[..., Any], name: str) -> None:
    with virtualds.set_options(retries=0), pytest.raises(ReadError) as caught:
        use(f"s3://bucket/{name}", **UNREACHABLE)
    assert not isinstance(caught.value, FormatError)
    assert f"s3://bucket/{name}" in str(caught.value)
    assert "127.0.0.1:9" in str(caught.value) and "endpoint_url" in str(caught.value)


def test_a_web_server_that_does_not_answer_is_named() -> None:
    with virtualds.set_options(retries=0), pytest.raises(ReadError, match=r"127\.0\.0\.1:9"):
        opened("http://127.0.0.1:9/refs.json")


LIBRARIES = {
    **dict.fromkeys(("http", "https"), ("aiohttp", "aiohttp")),
    **dict.fromkeys(("s3", "s3a"), ("obstore", "botocore obstore")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "aiohttp gcsfs")),
    **dict.fromkeys(("az", "abfs", "abfss"), ("obstore", "azure-identity obstore")),
}
"""The library that speaks with servers, and what to install, by scheme."""


WITHOUT_LIBRARIES = """
import sys
from virtualds.stores.fsspec import find_filesystem

sys.modules |= dict.fromkeys(("aiohttp", "gcsfs", "obstore"))
for scheme in sys.argv[1:]:
    try:
        find_filesystem(f"{scheme}://bucket/x", None)
    except OSError as error:
        print(error)
"""
"""A fresh Python in which these libraries cannot be imported."""


def test_a_library_that_is_missing_is_named_with_what_installs_it() -> None:
    told = run_code(WITHOUT_LIBRARIES, *LIBRARIES, check=True).stdout
    for line, (library, packages) in zip(told.splitlines(), LIBRARIES.values(), strict=True):
        assert re.search(rf"{library}.*; pip install {packages}$", line)


# ---------------------------------------------------------------------- local targets


@pytest.mark.parametrize("name", ["refs.json", "refs.parquet"])
def test_an_error_of_a_missing_folder_names_the_set(name: str, tmp_path: Path) -> None:
    target = tmp_path / "none" / name
    with pytest.raises(FileNotFoundError, match="make its folder") as caught:
        written(str(target))
    assert str(target) in str(caught.value)
    assert not re.search(r"\.[0-9a-f]{16}", str(caught.value))


FILL = """
import resource, signal, sys
import numpy as np, xarray as xr
import virtualds

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ds = xr.Dataset({"v": ("time", np.random.default_rng(0).random(100_000))})
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    ds.virtual.to_manifest(sys.argv[1])
except OSError as error:
    print(error.errno, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits are of Unix")
@pytest.mark.parametrize("name", few_quick(SETS, SETS[:1]))
def test_an_error_of_a_file_size_limit_names_the_set(name: str, tmp_path: Path) -> None:
    target = tmp_path / name
    done = run_code(FILL, target, check=True)
    code, _, message = done.stdout.partition(" ")
    assert int(code) == errno.EFBIG
    assert f"file://{target}: cannot be written" in message
    assert "__virtualds__" not in message and not re.search(r"\.[0-9a-f]{16}", message)
    assert not target.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A disk of 64 KiB."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root mounts disks")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], check=False
    )
    if mounted.returncode:
        pytest.skip("this root mounts no disks")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("name", SETS)
def test_an_error_of_a_full_disk_names_the_set(name: str, small_disk: Path) -> None:
    large = xr.Dataset({"v": ("time", np.random.default_rng(0).random(100_000))})
    with pytest.raises(OSError, match="make room") as caught:
        large.virtual.to_manifest(small_disk / name)
    assert caught.value.errno == errno.ENOSPC
    assert f"file://{small_disk / name}: cannot be written" in str(caught.value)
    assert os.listdir(small_disk) == []


@pytest.mark.parametrize("name", SETS)
def test_an_error_of_a_read_only_disk_names_the_set(name: str, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match="write elsewhere") as caught:
        written(str(small_disk / name))
    assert caught.value.errno == errno.EROFS
    assert f"file://{small_disk / name}: cannot be written" in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
@pytest.mark.parametrize("name", SETS)
def test_an_error_of_a_folder_without_permission_names_the_set(name: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(AccessError, match="may not be written") as caught:
        written(str(tmp_path / name))
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("name", SETS)
def test_a_source_that_is_gone_is_not_taken_for_the_set(name: str, tmp_path: Path) -> None:
    source = tmp_path / "source.nc"
    xr.Dataset({"v": ("x", np.arange(4.0))}).to_netcdf(source, engine="netcdf4")
    with xr.open_dataset(source, engine="netcdf4", chunks={}) as ds:
        ds.close()
        source.unlink()
        with pytest.raises(FileNotFoundError, match=r"source\.nc") as caught:
            ds.virtual.to_manifest(tmp_path / name)
    assert name not in str(caught.value)


@pytest.mark.parametrize("inside", ["chunks", "snapshots"])
def test_a_folder_of_common_names_is_no_set(inside: str, tmp_path: Path) -> None:
    (tmp_path / inside).mkdir()
    (tmp_path / inside / "notes.txt").write_text("mine")
    with pytest.raises(FileNotFoundError, match="this folder is not a complete reference set"):
        virtualds.open_virtual_dataset(tmp_path)


# ---------------------------------------------------------------------- what was left over


@pytest.mark.parametrize("name", ["refs.json", "refs.parquet"])
def test_old_files_of_killed_writers_are_removed(name: str, tmp_path: Path) -> None:
    target = tmp_path / name
    old, new = (Path(make_temporary_name(str(target))) for _ in range(2))
    others = [tmp_path / ".refs.json.notes", tmp_path / f".other.{'0' * 16}", tmp_path / "x"]
    for path in (old, new, *others):
        path.write_bytes(b"")
    folder = Path(make_temporary_name(str(target)))
    (folder / "v").mkdir(parents=True)
    (folder / "v" / "refs.0.parq").write_bytes(b"")
    # a day is enough, and less is not
    os.utime(new, (time.time() - 23 * 3600,) * 2)
    day_before_yesterday = (time.time() - 2 * 24 * 3600,) * 2
    for path in (old, *others, folder / "v" / "refs.0.parq", folder / "v", folder):
        os.utime(path, day_before_yesterday)
    written(str(target))
    assert not old.exists() and not folder.exists()
    assert new.exists() and all(path.exists() for path in others)


def test_what_cannot_be_looked_at_keeps_no_other_from_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, old = tmp_path / f".refs.json.{'a' * 16}", tmp_path / f".refs.json.{'b' * 16}"
    for path in (hidden, old):
        path.write_bytes(b"")
        os.utime(path, (1, 1))
    look = os.lstat

    def lstat(path: str, **how: Any) -> os.stat_result:
        if str(path) == str(hidden):
            raise PermissionError(13, "Permission denied", path)
        return look(path, **how)

    monkeypatch.setattr(os, "lstat", lstat)
    remove_leftovers(str(tmp_path / "refs.json"))
    assert os.listdir(tmp_path) == [hidden.name]


def test_a_folder_that_is_still_written_to_is_not_left_over(tmp_path: Path) -> None:
    folder = Path(make_temporary_name(str(tmp_path / "refs.parquet")))
    (folder / "v").mkdir(parents=True)
    (folder / "v" / "refs.0.parq").write_bytes(b"")
    for path in (folder / "v", folder):
        os.utime(path, (0, 0))
    remove_leftovers(str(tmp_path / "refs.parquet"))
    assert folder.exists()


# ---------------------------------------------------------------------- sets that begin


def test_a_folder_in_which_a_set_is_created_is_none_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from virtualds.stores.local import LocalStore

    target, seen = tmp_path / "refs.zarr", []
    for name in ("write_version", "write_file"):
        method = getattr(LocalStore, name)

        def watched(self: Any, *args: Any, method: Any = method) -> Any:
            with pytest.raises(FileNotFoundError):
                virtualds.open_virtual_dataset(target)
            seen.append(args[0])
            return method(self, *args)

        monkeypatch.setattr(LocalStore, name, watched)
        if name == "write_file":
            monkeypatch.setattr("virtualds.formats.zarr_manifests.write_nodes", lambda *args: None)
    written(str(target))
    assert len(seen) > 2
    xr.testing.assert_equal(xr.load_dataset(target, engine="virtual"), dataset())


# ---------------------------------------------------------------------- what does not fit


def test_a_refusal_names_files_that_differ_and_the_format_that_holds_them(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.nc" for n in range(4)]
    for n, path in enumerate(paths):
        ds = xr.Dataset({"v": (("time", "x"), np.arange(6.0).reshape(2, 3) + n)})
        how = {"chunksizes": (2, 3), "zlib": n == 2, "complevel": 4}
        ds.to_netcdf(path, encoding={"v": how}, engine="netcdf4")
    whole = virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim="time")
    for name in ("refs.json", "refs.parquet"):
        with pytest.raises(UnsupportedError, match=r"zarr-v3.*\.zarr") as caught:
            whole.virtual.to_manifest(tmp_path / name)
        assert "0.nc" in str(caught.value) and "2.nc" in str(caught.value)
    whole.virtual.to_manifest(tmp_path / "refs.zarr")


def test_zarr_v3_is_not_suggested_for_arrays_that_it_cannot_hold(tmp_path: Path) -> None:
    ds = dataset().assign_attrs(odd=object())
    with pytest.raises(UnsupportedError) as caught:
        ds.virtual.to_manifest(tmp_path / "refs.json")
    assert ".zarr" not in str(caught.value)
