"""The logger ``virtualds`` explains a slow open, shows no secret, and costs nothing unheard."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from range_server import Fault, Served, faulty_server
from unknown_form import UNKNOWN, write_unknown

import virtualds

MANY: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
SECONDS = r"\d+\.\d{3} s"

Heard = Callable[[], list[str]]


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[Heard]:
    """What was told since the last question, at all levels."""

    def listen() -> list[str]:
        told = [record.getMessage() for record in caplog.records if record.name == "virtualds"]
        caplog.clear()
        return told

    with caplog.at_level(logging.DEBUG, logger="virtualds"):
        yield listen


@pytest.fixture
def months(tmp_path: Path, archive_files: list[Path]) -> list[Path]:
    """Twelve files of one structure."""
    found = [tmp_path / f"{month:02d}.nc" for month in range(12)]
    with xr.open_dataset(archive_files[0]) as year:
        for month, path in enumerate(found):
            year.isel(time=[month]).to_netcdf(path)
    return found


def matching(told: list[str], pattern: str) -> list[str]:
    return [line for line in told if re.search(pattern, line)]


# ---------------------------------------------------------------------- files and sets

OPENED: dict[str, tuple[dict[str, Any], str]] = {
    "by our reader": ({}, "hdf5, read by virtualds"),
    "by the library": (
        {"hdf5": "library"},
        r"hdf5, read by the HDF5 library, since set_options\(hdf5='library'\)",
    ),
}


@pytest.mark.parametrize("which", OPENED)
def test_a_file_is_told_with_its_format_and_how_it_was_read(
    which: str, heard: Heard, archive_files: list[Path]
) -> None:
    settings, expected = OPENED[which]
    with virtualds.set_options(**settings):
        virtualds.open_virtual_dataset(archive_files[0])
    [line] = heard()
    assert re.fullmatch(rf"file://{archive_files[0]}: {expected}, {SECONDS}", line)


def test_it_is_told_why_a_library_was_needed(heard: Heard, tmp_path: Path) -> None:
    write_unknown(tmp_path / "a.nc", 0)
    virtualds.open_virtual_dataset(tmp_path / "a.nc")
    assert matching(heard(), f"read by the HDF5 library, since .*{UNKNOWN}")


@pytest.mark.parametrize("target", ["refs.json", "refs.parquet", "refs.zarr"])
def test_sets_are_told_with_their_formats(
    target: str, heard: Heard, archive_files: list[Path], tmp_path: Path
) -> None:
    vds = virtualds.open_virtual_dataset(archive_files[0])
    heard()
    vds.virtual.to_manifest(tmp_path / target)
    form = {"json": "kerchunk-json", "parquet": "kerchunk-parquet", "zarr": "zarr-v3"}
    name = form[target.partition(".")[2]]
    assert matching(heard(), rf"{target}: {name}, written, {SECONDS}")
    xr.open_dataset(tmp_path / target, engine="virtual")
    assert matching(heard(), rf"{target}: {name}, read, {SECONDS}")


def test_many_files_are_told_together_and_those_of_the_cache(
    heard: Heard, months: list[Path], tmp_path: Path
) -> None:
    virtualds.open_virtual_mfdataset(months, **MANY)
    told = heard()
    assert matching(told, f"^12 files: read together .*, {SECONDS}")
    assert matching(told, f"^12 files: 12 opened, 0 from the cache, 0 left out, {SECONDS}")
    assert matching(told, f"^12 files: combined, {SECONDS}")
    for from_cache in (False, True):
        heard()
        virtualds.open_virtual_mfdataset(months, cache=tmp_path / "cache", **MANY)
        told = heard()
        assert len(matching(told, "^12 files: from the cache$")) == from_cache
        assert len(matching(told, "^12 files: read together")) == (not from_cache)


def test_what_other_processes_have_opened_is_told_by_the_one_that_combines(
    heard: Heard, tmp_path: Path
) -> None:
    for number in range(4):
        write_unknown(tmp_path / f"{number}.nc", number)
    virtualds.open_virtual_mfdataset(sorted(tmp_path.glob("*.nc")), parallel=2, **MANY)
    told = heard()
    assert matching(told, "^4 files: 4 opened")
    assert matching(told, f"4 through the HDF5 library\n  files +why .*\n  4 +{UNKNOWN}")


def test_a_sync_tells_what_it_has_found(heard: Heard, months: list[Path], tmp_path: Path) -> None:
    how: dict[str, Any] = {"concat_dim": "time", "settle": 0}
    virtualds.sync(months[:3], tmp_path / "refs.zarr", **how)
    heard()
    virtualds.sync(months[:4], tmp_path / "refs.zarr", **how)
    expected = "refs.zarr: files listed: 1 new, 0 changed, 0 removed, 0 waiting, 3 unchanged"
    assert matching(heard(), expected)


# ---------------------------------------------------------------------- requests and caches


def test_every_request_is_told_with_its_range_and_size(
    heard: Heard, archive_files: list[Path], tmp_path: Path
) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "served").mkdir()
    shutil.copy(archive_files[0], tmp_path / "served" / "a.nc")
    size = archive_files[0].stat().st_size
    with counting_server(tmp_path / "served") as (url, counts):
        virtualds.open_virtual_dataset(f"{url}/a.nc").load()
        told = matching(heard(), "^(GET|HEAD) ")
    assert len(told) == len(counts.requests)
    first = rf"GET {url}/a.nc bytes 0-\d+: ({size:,}|262,144) bytes in {SECONDS}"
    assert re.fullmatch(first, told[0])


def test_patterns_and_folders_are_told(heard: Heard, months: list[Path]) -> None:
    folder = months[0].parent
    with fsspec.open("memory://log-listing/a.txt", "wb") as file:
        file.write(b"1")
    for pattern, count in ((f"{folder}/*.nc", 12), ("memory://log-listing/*.txt", 1)):
        with suppress(OSError, ValueError):
            virtualds.open_virtual_mfdataset(pattern, **MANY)
        assert matching(heard(), rf"{re.escape(pattern)}: {count} files match, {SECONDS}")
    pattern, target = "memory://log-listing/*.txt", folder / "refs.zarr"
    with suppress(OSError, ValueError):
        virtualds.sync(pattern, target, concat_dim="time", settle=0)
    assert matching(heard(), rf"LIST memory:/+log-listing: {SECONDS}")


@pytest.fixture
def served(tmp_path: Path, archive_files: list[Path]) -> Iterator[Served]:
    (tmp_path / "served").mkdir()
    shutil.copy(archive_files[0], tmp_path / "served" / "a.nc")
    with faulty_server(tmp_path / "served") as server:
        yield server


def test_a_retry_is_told_with_its_reason_and_its_wait(heard: Heard, served: Served) -> None:
    pytest.importorskip("aiohttp")
    served.faults.append(Fault("status", 503, {"Retry-After": "0"}))
    virtualds.open_virtual_dataset(f"{served.url}/a.nc")
    [line] = matching(heard(), "tried again")
    assert re.search(r"GET http.*/a.nc bytes 0-\d+: .*503.*; tried again in \d+\.\d s", line)


def test_a_last_failure_is_told(heard: Heard, served: Served) -> None:
    pytest.importorskip("aiohttp")
    served.always = Fault("status", 503, {"Retry-After": "0"})
    with virtualds.set_options(retries=0), pytest.raises(OSError):
        virtualds.open_virtual_dataset(f"{served.url}/a.nc")
    assert matching(heard(), "503.*; it is not tried again")


def test_hits_of_caches_are_told(heard: Heard, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "served").mkdir()
    values = np.arange(2 * 100 * 100.0).reshape(2, 100, 100)
    chunks = {"v": {"chunksizes": (1, 100, 100), "zlib": True}}
    xr.Dataset({"v": (("t", "y", "x"), values)}).to_netcdf(
        tmp_path / "served" / "a.nc", encoding=chunks
    )
    with counting_server(tmp_path / "served") as (url, _):
        vds = virtualds.open_virtual_dataset(f"{url}/a.nc")
        assert matching(heard(), r"a.nc: [\d,]+ reads from held blocks")
        vds["v"][0, :50].values  # noqa: B018 - reading fills the cache
        assert not matching(heard(), "chunk cache")
        vds["v"][0, 50:].values  # noqa: B018 - reading asks the cache
        assert matching(heard(), "a.nc: 1 of 1 chunks from the chunk cache")


# ---------------------------------------------------------------------- secrets, and silence

SIGNED = {
    "AWS": "X-Amz-Signature=hunter2&X-Amz-Security-Token=hunter2&X-Amz-Credential=hunter2",
    "Azure": "sv=2024&sig=hunter2",
    "Google": "GoogleAccessId=me&X-Goog-Signature=hunter2",
    "a token": "token=hunter2",
    "a key": "api_key=hunter2",
}


@pytest.mark.parametrize("which", SIGNED)
@pytest.mark.parametrize("status", [0, 403, 503])
def test_no_secret_is_ever_told(which: str, status: int, heard: Heard, served: Served) -> None:
    pytest.importorskip("aiohttp")
    if status:
        served.always = Fault("status", status, {"Retry-After": "0"})
    url = f"{served.url}/a.nc?{SIGNED[which]}"
    access = {"headers": {"Authorization": "Bearer hunter2"}}
    for options in (None, access):
        with virtualds.set_options(retries=1), suppress(OSError):
            virtualds.open_virtual_dataset(url, storage_options=options).load()
        with virtualds.set_options(retries=1), suppress(OSError, ValueError):
            virtualds.open_virtual_mfdataset([url, url], storage_options=options, **MANY)
    told = heard()
    assert matching(told, "^GET ")
    assert not matching(told, "hunter2")


def test_no_password_of_a_url_is_told(heard: Heard, served: Served) -> None:
    pytest.importorskip("aiohttp")
    with suppress(OSError):
        virtualds.open_virtual_dataset(f"{served.url.replace('://', '://me:hunter2@')}/a.nc")
    told = heard()
    assert matching(told, "^GET ")
    assert not matching(told, "hunter2")


def test_nothing_is_printed_unless_somebody_listens(
    archive_files: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    virtualds.open_virtual_dataset(archive_files[0]).load()
    assert capfd.readouterr() == ("", "")
    [handler] = [
        h for h in logging.getLogger("virtualds").handlers if type(h).__module__ == "logging"
    ]
    assert isinstance(handler, logging.NullHandler)


def test_no_record_is_made_unless_somebody_listens(months: list[Path]) -> None:
    made: list[str] = []
    factory = logging.getLogRecordFactory()

    def count(name: str, *given: Any, **more: Any) -> logging.LogRecord:
        made.append(name)
        return factory(name, *given, **more)

    logging.setLogRecordFactory(count)
    try:
        virtualds.open_virtual_mfdataset(months, **MANY).load()
    finally:
        logging.setLogRecordFactory(factory)
    assert "virtualds" not in made
