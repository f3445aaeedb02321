"""Copies hold the unchanged bytes of their sources, each once, and do not need the sources."""

import json
import os
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from programs import run_code

import virtualds
from virtualds.codecs import CODECS
from virtualds.codecs.codec import Codec
from virtualds.errors import ReadError, UnsupportedError
from virtualds.formats.zarr import CHUNKS
from virtualds.stores.fsspec import FsspecStore
from virtualds.stores.local import LocalStore
from virtualds.stores.store import RequestLimits
from virtualds.writing import materialize

STORAGE: dict[str, dict[str, Any]] = {
    "raw": {},
    "raw chunks": {"chunksizes": (1, 6, 8)},
    "zlib": {"zlib": True, "chunksizes": (1, 6, 8)},
    "shuffle and zlib": {"zlib": True, "shuffle": True, "chunksizes": (1, 4, 5)},
    "fletcher32": {"zlib": True, "shuffle": False, "fletcher32": True, "chunksizes": (2, 6, 8)},
    "packed": {
        "zlib": True,
        "chunksizes": (1, 6, 8),
        "dtype": "i2",
        "scale_factor": 0.01,
        "add_offset": 273.15,
        "_FillValue": -32768,
    },
}


def year_of(year: int) -> xr.Dataset:
    values = 280 + np.random.default_rng(year).normal(size=(12, 6, 8))
    values[3, 2] = np.nan
    times = np.arange(f"{year}-01", f"{year + 1}-01", dtype="datetime64[M]")
    return xr.Dataset(
        {"t": (("time", "lat", "lon"), values, {"units": "K"}), "name": "thing", "n": 3},
        coords={"time": times.astype("datetime64[ns]"), "lat": np.linspace(-75, 75, 6)},
        attrs={"title": "a year"},
    )


def archive(folder: Path, storage: dict[str, Any], years: tuple[int, ...] = (2001, 2002)) -> Any:
    """Write files, and return them opened virtually."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{year}.nc" for year in years]
    for path, year in zip(paths, years, strict=True):
        time = {"units": "days since 2001-01-01", "dtype": "i4"}
        year_of(year).to_netcdf(
            path, engine="netcdf4", encoding={"t": storage, "time": time}, unlimited_dims=["time"]
        )
    return virtualds.open_virtual_mfdataset(
        [str(path) for path in paths], combine="nested", concat_dim="time"
    )


def read_natively(folder: Path) -> xr.Dataset:
    """What xarray reads of the files of an archive."""
    how: Any = {"combine": "nested", "concat_dim": "time", "data_vars": "minimal"}
    how |= {"coords": "minimal", "compat": "override", "combine_attrs": "override", "join": "exact"}
    with xr.open_mfdataset(sorted(folder.glob("*.nc")), engine="netcdf4", **how) as found:
        return found.load()


def copies_in(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / CHUNKS).rglob("*") if path.is_file())


def assert_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    xr.testing.assert_identical(found.virtual.load(), expected)


@pytest.fixture
def no_codec(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes every codec refuse to run until it is called."""

    def refuse(self: Codec, *args: Any) -> Any:
        raise AssertionError(f"{self} ran")

    for codec in CODECS:
        monkeypatch.setattr(codec, "decode", refuse)
    return monkeypatch.undo


# ---------------------------------------------------------------------- by content


@pytest.mark.product
@pytest.mark.parametrize("name", STORAGE)
@pytest.mark.parametrize("layout", ["content", "chunks"])
def test_a_copy_is_read_without_its_source(tmp_path: Path, name: str, layout: str) -> None:
    virtual = archive(tmp_path / "sources", STORAGE[name])
    native = read_natively(tmp_path / "sources")
    if name == "shuffle and zlib" and layout == "chunks":
        virtual = virtual.isel(lat=slice(0, 4))
        native = native.isel(lat=slice(0, 4))
    copy = virtual.virtual.materialize(tmp_path / "copy.zarr", layout=layout)
    shutil.rmtree(tmp_path / "sources")
    assert_same(copy, native)
    assert all(url.startswith(f"file://{tmp_path}/copy.zarr/") for url in copy.virtual.sources.url)
    # a set is found by its folder, wherever that is
    shutil.move(tmp_path / "copy.zarr", tmp_path / "elsewhere.zarr")
    assert_same(virtualds.open_virtual_dataset(tmp_path / "elsewhere.zarr"), native)


@pytest.mark.parametrize("layout", ["content", "chunks"])
def test_nothing_is_decoded(tmp_path: Path, layout: str, no_codec: Callable[[], None]) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["shuffle and zlib"])
    virtual[["t"]].drop_vars(["time", "lat"]).virtual.materialize(
        tmp_path / "copy.zarr", layout=layout
    )
    no_codec()
    copy = virtualds.open_virtual_dataset(tmp_path / "copy.zarr")
    np.testing.assert_array_equal(copy.t, virtual.t)


def test_equal_chunks_are_copied_once(tmp_path: Path) -> None:
    values = np.repeat(np.arange(3.0), 4).reshape(6, 2)
    xr.Dataset({"a": (("y", "x"), values), "b": (("y", "x"), values)}).to_netcdf(
        tmp_path / "a.nc", encoding={n: {"chunksizes": (1, 2), "_FillValue": None} for n in "ab"}
    )
    opened = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    opened = xr.concat([opened, opened], "y", data_vars="all")
    copy = opened.virtual.materialize(tmp_path / "copy.zarr")
    assert len(copies_in(tmp_path / "copy.zarr")) == 3
    np.testing.assert_array_equal(copy.b, np.concatenate([values, values]))


def test_arrays_that_plain_zarr_cannot_describe_are_copied_by_content(tmp_path: Path) -> None:
    """Chunks of several lengths, codecs and packings, and a crop that hides parts of chunks."""
    one = archive(tmp_path / "one", STORAGE["packed"], (2001,))
    two = archive(tmp_path / "two", STORAGE["fletcher32"] | {"chunksizes": (5, 6, 8)}, (2002,))
    how: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    virtual = xr.concat([one, two], "time", **how).isel(time=slice(2, 19), lat=slice(1, 5))
    first, second = (read_natively(tmp_path / folder) for folder in ("one", "two"))
    native = xr.concat([first, second], "time", **how).isel(time=slice(2, 19), lat=slice(1, 5))
    with pytest.raises(UnsupportedError, match=r"(?s)layout='content'.* t: ") as caught:
        virtual.virtual.materialize(tmp_path / "plain.zarr", layout="chunks")
    assert "use 2 encodings" in str(caught.value)
    assert not (tmp_path / "plain.zarr").exists()
    copy = virtual.virtual.materialize(tmp_path / "copy.zarr")
    for folder in ("one", "two"):
        shutil.rmtree(tmp_path / folder)
    xr.testing.assert_equal(copy.virtual.load(), native)


def test_missing_chunks_stay_missing(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "s/a", shape=(6,), chunks=(2,), dtype="i4", fill_value=4)
    empty = zarr.create_array(tmp_path / "s/b", shape=(6,), chunks=(2,), dtype="i4", fill_value=5)
    zarr.open_group(tmp_path / "s", mode="a")
    array[2:4] = [1, 2]
    opened = virtualds.open_virtual_dataset(tmp_path / "s")
    for layout in ("content", "chunks"):
        copy = opened.virtual.materialize(tmp_path / f"{layout}.zarr", layout=layout)
        assert copy.a.values.tolist() == [4, 4, 1, 2, 4, 4]
        assert copy.b.values.tolist() == empty[:].tolist()
    assert len(copies_in(tmp_path / "content.zarr")) == 1
    assert [p.name for p in (tmp_path / "chunks.zarr").rglob("c/*")] == ["1"]


def test_a_damaged_copy_is_found(tmp_path: Path) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["raw chunks"])
    copy = virtual.virtual.materialize(tmp_path / "copy.zarr")
    path = copies_in(tmp_path / "copy.zarr")[5]
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    with pytest.raises(ReadError, match="CRC-32"):
        _ = copy.t.values
    bare = virtual.virtual.materialize(tmp_path / "bare.zarr", checksums=False)
    document = (tmp_path / "bare.zarr/zarr.json").read_text()
    assert "crc32:" not in document
    assert bare.t.shape == (24, 6, 8)


def test_a_source_that_is_damaged_or_has_changed_is_not_copied(tmp_path: Path) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["zlib"])
    virtual.virtual.materialize(tmp_path / "copy.zarr")
    copy = virtualds.open_virtual_dataset(tmp_path / "copy.zarr")
    path = copies_in(tmp_path / "copy.zarr")[5]
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(ReadError, match="CRC-32") as caught:
        copy.virtual.materialize(tmp_path / "again.zarr")
    assert "variable t" in str(caught.value.__notes__)
    assert not (tmp_path / "again.zarr/zarr.json").exists()
    with open(tmp_path / "sources/2002.nc", "ab") as file:
        file.write(b"more")
    for layout in ("content", "chunks"):
        with pytest.raises(ReadError, match="when scanned"):
            virtual.virtual.materialize(tmp_path / "third.zarr", layout=layout, mode="w")
        assert not (tmp_path / "third.zarr/zarr.json").exists()
        shutil.rmtree(tmp_path / "third.zarr", ignore_errors=True)


KILLED = """
import os, signal, sys
import virtualds
from virtualds.stores.local import LocalStore

write, count = LocalStore.write_file, 0

def dying(self, url, data, options):
    global count
    count += "/chunks/" in url
    if count > 7:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, url, data, options)

LocalStore.write_file = dying
opened = virtualds.open_virtual_dataset(sys.argv[1])
opened.virtual.materialize(sys.argv[2])
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_killed_copy_resumes_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["zlib"], (2001,))
    native = virtual.virtual.load()
    source, target = str(tmp_path / "sources/2001.nc"), tmp_path / "copy.zarr"
    done = run_code(KILLED, source, target)
    assert done.returncode == -signal.SIGKILL
    before = {path: path.stat().st_mtime_ns for path in copies_in(target)}
    assert len([path for path in before if not path.name.startswith(".")]) == 7
    written: list[str] = []
    write = LocalStore.write_file

    def noted(self: LocalStore, url: str, data: bytes, options: Any) -> None:
        written.append(url)
        write(self, url, data, options)

    monkeypatch.setattr(LocalStore, "write_file", noted)
    copy = virtualds.open_virtual_dataset(source).virtual.materialize(target)
    assert len([url for url in written if "/chunks/" in url]) == 12 - 7
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    shutil.rmtree(tmp_path / "sources")
    assert_same(copy, native)


def test_a_half_written_copy_is_written_again(tmp_path: Path) -> None:
    """As a store leaves it that shows files while they are being written."""
    virtual = archive(tmp_path / "sources", STORAGE["zlib"])
    virtual.virtual.materialize(tmp_path / "copy.zarr")
    path = copies_in(tmp_path / "copy.zarr")[3]
    path.write_bytes(path.read_bytes()[:10])
    copy = virtual.virtual.materialize(tmp_path / "copy.zarr", mode="w")
    np.testing.assert_array_equal(copy.t, virtual.t)


def test_a_set_that_grows_copies_only_new_chunks(tmp_path: Path) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["zlib"])
    virtual.isel(time=slice(12)).virtual.materialize(tmp_path / "copy.zarr")
    assert len(copies_in(tmp_path / "copy.zarr")) == 12
    before = {path: path.stat().st_mtime_ns for path in copies_in(tmp_path / "copy.zarr")}
    copy = virtual.virtual.materialize(tmp_path / "copy.zarr", mode="w")
    after = {path: path.stat().st_mtime_ns for path in copies_in(tmp_path / "copy.zarr")}
    assert len(after) == 24
    assert before.items() <= after.items()
    np.testing.assert_array_equal(copy.t, virtual.t)


def test_chunks_that_no_snapshot_needs_go_when_they_are_old(tmp_path: Path) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["zlib"])
    target = tmp_path / "copy.zarr"
    virtual.virtual.materialize(target)
    copy = virtual.isel(time=slice(6)).virtual.materialize(target, mode="w")
    virtualds.expire_snapshots(target)
    assert len(copies_in(target)) == 24
    for path in copies_in(target):
        os.utime(path, (0, 0))
    # they may go any time now, so they are not what a new copy can count on
    virtual.isel(time=slice(12)).virtual.materialize(tmp_path / "copy.zarr", mode="w")
    assert sum(path.stat().st_mtime > 0 for path in copies_in(target)) == 6
    virtualds.expire_snapshots(target)
    assert len(copies_in(target)) == 12
    np.testing.assert_array_equal(copy.t, virtual.t[:6])


def test_a_copy_may_be_written_over_itself(tmp_path: Path) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["zlib"])
    copy = virtual.virtual.materialize(tmp_path / "copy.zarr")
    before = copies_in(tmp_path / "copy.zarr")
    again = copy.virtual.materialize(tmp_path / "copy.zarr", mode="w")
    assert copies_in(tmp_path / "copy.zarr") == before
    np.testing.assert_array_equal(again.t, virtual.t)


@pytest.fixture
def batch_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that each batch asks for; one holds at most 20,000."""
    monkeypatch.setattr("virtualds.reading.BATCH_BYTES", 40_000)
    monkeypatch.setattr("virtualds.reading.count_cores", lambda: 2)
    sizes: list[int] = []
    get = LocalStore.get_ranges

    def noted(self: LocalStore, file: Any, ranges: Any) -> Any:
        sizes.append(sum(length for _, length in ranges))
        return get(self, file, ranges)

    monkeypatch.setattr(LocalStore, "get_ranges", noted)
    return sizes


def test_bytes_are_fetched_in_batches_of_bounded_size(
    tmp_path: Path, batch_sizes: list[int]
) -> None:
    values = np.random.default_rng(0).normal(size=(64, 1000))
    xr.Dataset({"a": (("y", "x"), values)}).to_netcdf(
        tmp_path / "a.nc", encoding={"a": {"chunksizes": (1, 1000)}}
    )
    opened = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    batch_sizes.clear()
    opened.virtual.materialize(tmp_path / "copy.zarr")
    assert max(batch_sizes) <= 20_000
    assert sum(batch_sizes) == values.nbytes
    assert len(batch_sizes) == 32


def test_what_lies_between_chunks_counts_as_bytes_of_a_batch(
    tmp_path: Path, batch_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, count, apart = tmp_path / "a.bin", 64, 5_000
    values = np.arange(count, dtype="<f8")
    path.write_bytes(b"".join(value.tobytes().ljust(apart, b"-") for value in values))
    array = virtualds.ManifestArray.from_arrays(
        shape=(count,), chunks=(1,), dtype="<f8", path=path.as_uri(),
        offsets=np.arange(count) * apart, lengths=8,
    )  # fmt: skip
    monkeypatch.setattr(
        LocalStore,
        "request_limits",
        RequestLimits(max_gap=2 * apart, max_bytes=2**20, max_requests=0),
    )
    xr.Dataset({"v": ("x", array)}).virtual.materialize(tmp_path / "copy.zarr")
    assert max(batch_sizes) <= 20_000
    assert len(batch_sizes) == 16
    monkeypatch.undo()
    copy = xr.open_dataset(tmp_path / "copy.zarr", engine="virtual")
    np.testing.assert_array_equal(copy["v"], values)


# ---------------------------------------------------------------------- plain Zarr


@pytest.mark.parametrize("name", ["raw", "raw chunks", "zlib", "fletcher32", "packed"])
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
def test_others_read_plain_chunks(tmp_path: Path, name: str) -> None:
    virtual = archive(tmp_path / "sources", STORAGE[name])
    native = read_natively(tmp_path / "sources")
    virtual.virtual.materialize(tmp_path / "plain.zarr", layout="chunks")
    shutil.rmtree(tmp_path / "sources")
    with xr.open_zarr(tmp_path / "plain.zarr") as found:
        xr.testing.assert_identical(found.load(), native)
    with xr.open_zarr(tmp_path / "plain.zarr", consolidated=False) as found:
        xr.testing.assert_identical(found.load(), native)
    group = zarr.open_group(tmp_path / "plain.zarr", mode="r")
    assert group["t"].metadata.storage_transformers == ()
    text = (tmp_path / "plain.zarr/zarr.json").read_text()
    assert "virtualds" not in text
    assert json.loads(text)["node_type"] == "group"


def test_the_layout_chunks_refuses_shuffled_checksums(tmp_path: Path) -> None:
    """numcodecs shuffles whole elements; HDF5 leaves the bytes behind the last one as they are."""
    storage = {"zlib": True, "shuffle": True, "fletcher32": True, "chunksizes": (1, 6, 8)}
    virtual = archive(tmp_path / "sources", storage)
    with pytest.raises(UnsupportedError, match="shuffle"):
        virtual.virtual.materialize(tmp_path / "plain.zarr", layout="chunks")
    copy = virtual.virtual.materialize(tmp_path / "copy.zarr")
    np.testing.assert_array_equal(copy.t, virtual.t)


def test_plain_chunks_are_the_bytes_of_the_source(tmp_path: Path) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["zlib"], (2001,))
    virtual.virtual.materialize(tmp_path / "plain.zarr", layout="chunks")
    source = (tmp_path / "sources/2001.nc").read_bytes()
    manifest = (
        virtual.t.variable._data.manifest if hasattr(virtual.t.variable._data, "manifest") else None
    )
    assert manifest is not None
    for month in range(12):
        row = manifest.lookup((month, 0, 0))
        data = (tmp_path / f"plain.zarr/t/c/{month}/0/0").read_bytes()
        assert data == source[row.offset : row.offset + row.length]


def test_refused_arrays_are_all_named_and_nothing_is_written(tmp_path: Path) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["zlib"])
    cropped = virtual.isel(lat=slice(1, 5))
    cropped["u"] = cropped.t
    with pytest.raises(UnsupportedError, match=r"(?s)ds.virtual.load.* t: .* u: ") as caught:
        cropped.virtual.materialize(tmp_path / "plain.zarr", layout="chunks")
    assert "2 properties" in str(caught.value)
    assert not (tmp_path / "plain.zarr").exists()
    # loaded, it is written as values are
    loaded = cropped.virtual.load()
    copy = loaded.virtual.materialize(tmp_path / "plain.zarr", layout="chunks", mode="w")
    np.testing.assert_array_equal(copy.t, loaded.t)


@pytest.mark.parametrize("layout", ["content", "chunks"])
def test_a_folder_with_files_is_left_alone(tmp_path: Path, layout: str) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["zlib"], (2001,))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    with pytest.raises(FileExistsError, match="mine"):
        virtual.virtual.materialize(tmp_path / "mine", layout=layout)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    (tmp_path / "empty").mkdir()
    assert virtual.virtual.materialize(tmp_path / "empty", layout=layout).t.shape == (12, 6, 8)
    with pytest.raises(ValueError, match="'content', 'chunks'"):
        virtual.virtual.materialize(tmp_path / "other", layout="heaps")


def test_a_plain_store_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["zlib"], (2001,))
    write = LocalStore.write_version

    def failing(self: LocalStore, url: str, data: bytes, options: Any, expected: Any) -> str:
        if "/t/c/5/" in url:
            raise OSError("no space left")
        return write(self, url, data, options, expected)

    monkeypatch.setattr(LocalStore, "write_version", failing)
    with pytest.raises(OSError, match="no space"):
        virtual.virtual.materialize(tmp_path / "plain.zarr", layout="chunks")
    assert not [path for path in (tmp_path / "plain.zarr").rglob("*") if path.is_file()]


@pytest.mark.parametrize("layout", ["content", "chunks"])
def test_a_copy_is_created_unless_it_is_to_be_replaced(tmp_path: Path, layout: str) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["zlib"], (2001,))
    virtual.virtual.materialize(tmp_path / "copy.zarr", layout=layout)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match=r"copy\.zarr: exists already"):
        virtual.virtual.materialize(tmp_path / "copy.zarr", layout=layout)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ValueError, match="mode='a'"):
        virtual.virtual.materialize(tmp_path / "copy.zarr", layout=layout, mode="a")


def test_of_two_writers_of_a_plain_store_one_is_refused_and_leaves_the_files_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["zlib"], (2001,))
    target, listed = tmp_path / "plain.zarr", LocalStore.list_files

    def late(self: LocalStore, url: str, options: Any) -> Any:
        found = listed(self, url, options)
        monkeypatch.setattr(LocalStore, "list_files", listed)
        virtual.virtual.materialize(target, layout="chunks")
        return found

    monkeypatch.setattr(LocalStore, "list_files", late)
    with pytest.raises(FileExistsError, match="exists already"):
        virtual.virtual.materialize(target, layout="chunks")
    xr.testing.assert_equal(xr.open_zarr(target).load(), virtual.load())


# ---------------------------------------------------------------------- stores


@pytest.mark.product
@pytest.mark.parametrize("layout", ["content", "chunks"])
@pytest.mark.parametrize("place", ["memory", "s3"])
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
def test_copies_in_stores_of_fsspec(
    tmp_path: Path, layout: str, place: str, s3_folder: str, s3_server: dict[str, Any]
) -> None:
    virtual = archive(tmp_path / "sources", STORAGE["packed"])
    native = read_natively(tmp_path / "sources")
    root = {"memory": f"memory://{uuid.uuid4().hex}", "s3": s3_folder}[place]
    options = s3_server if place == "s3" else None
    url = f"{root}/copy.zarr"
    copy = virtual.virtual.materialize(url, layout=layout, storage_options=options)
    shutil.rmtree(tmp_path / "sources")
    assert_same(copy, native)
    # from there to here
    back = copy.virtual.materialize(tmp_path / "back.zarr", layout="chunks")
    FsspecStore().remove([f.file.url for f in FsspecStore().list_files(url, options)], options)
    assert_same(back, native)


@pytest.mark.parametrize("layout", ["chunks", "content"])
def test_progress_counts_every_byte_once(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    year_of(2001).to_netcdf(tmp_path / "2001.nc", encoding={"t": STORAGE["raw chunks"]})
    told: list[tuple[Any, ...]] = []
    counted: list[int] = []

    @contextmanager
    def count(*given: Any) -> Iterator[Callable[[int], None]]:
        told.append(given)
        yield counted.append

    monkeypatch.setattr(materialize, "count_progress", count)
    ds = virtualds.open_virtual_dataset(tmp_path / "2001.nc")
    ds.virtual.materialize(tmp_path / "copy.zarr", layout=layout, progress=print)
    assert told == [(print, "copying", 12 * 6 * 8 * 8, "B")]
    assert sum(counted) == 12 * 6 * 8 * 8


def test_a_conversion_knows_what_to_do_about_errors(tmp_path: Path) -> None:
    year_of(2001).to_netcdf(tmp_path / "2001.nc")
    with pytest.raises(ValueError, match="on_error='keep'"):
        virtualds.convert(tmp_path / "2001.nc", tmp_path / "refs.zarr", on_error="keep")
