"""Scanning over a network: few requests, few bytes, many files at once, nothing masked."""

import gc
import json
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from cases import Archive
from counting_server import (
    CountingHandler,
    DeafHandler,
    SparseHandler,
    counting_proxy,
    counting_server,
)

import virtualds
from virtualds.errors import AccessError, FormatError, UnsupportedError
from virtualds.reading.threads import fetch_many, run_all
from virtualds.source_file import SourceFile
from virtualds.stores import STORES, find_store
from virtualds.stores.block_cache import (
    CACHED_PAGES,
    MAX_PAGES,
    MIN_PAGES,
    PAGE_SIZE,
    BlockFile,
    Blocks,
    FetchError,
)
from virtualds.stores.scan_cache import (
    MAX_OTHER_FILES,
    cache_scan,
    open_blocks,
    prefetch_ranges,
)
from virtualds.stores.store import Range, RequestLimits, StoreError

MIB = 2**20


def write_typical(path: Path, number: int = 0, size: int = 60) -> Path:
    """A file as models write them: record by record, deflated, coordinates, a group."""
    rng = np.random.default_rng(number)
    with netCDF4.Dataset(path, "w") as file:
        file.title = "typical"
        for name, length in {"time": None, "lat": size, "lon": 2 * size}.items():
            file.createDimension(name, length)
        for name in ("lat", "lon"):
            variable = file.createVariable(name, "f8", (name,))
            variable.units, variable.standard_name = "degrees", name
            variable[:] = np.linspace(-90, 90, len(file.dimensions[name]))
        time = file.createVariable("time", "f8", ("time",))
        time.units = "days since 2000-01-01"
        fields = []
        for name in ("t2m", "u10", "v10", "sp", "tp"):
            field = file.createVariable(
                name, "i2", ("time", "lat", "lon"), zlib=True, shuffle=True, fill_value=-32767,
                chunksizes=(1, size, 2 * size),
            )  # fmt: skip
            field.setncatts({"scale_factor": 0.01, "add_offset": 1.0, "long_name": name * 20})
            field.set_auto_maskandscale(False)
            fields.append(field)
        flag = file.createGroup("quality").createVariable("flag", "i1", ("time",))
        for step in range(12):
            time[step] = 12 * number + step
            for field in fields:
                field[step] = rng.integers(0, 30000, (size, 2 * size), dtype="i2")
        flag[:] = 1
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``typical.nc`` of some MB, whose last coordinate lies behind the data."""
    folder = tmp_path_factory.mktemp("typical")
    write_typical(folder / "typical.nc", size=200)
    write_typical(folder / "small.nc", size=10)
    assert (folder / "typical.nc").stat().st_size > 2 * MIB
    return folder


def alike(remote: xr.Dataset, local: xr.Dataset) -> None:
    """Both scans found the same, bit for bit: values, dtypes, attributes and references."""
    assert list(remote.variables) == list(local.variables)
    assert (remote.attrs, dict(remote.sizes)) == (local.attrs, dict(local.sizes))
    for name, found in remote.variables.items():
        expected = local.variables[name]
        assert (found.dims, found.dtype) == (expected.dims, expected.dtype)
        assert str(found.attrs) == str(expected.attrs)
        one, other = references(found), references(expected)
        assert one == other
        if one is None:
            assert found.to_numpy().tobytes() == expected.to_numpy().tobytes()


def references(variable: xr.Variable) -> Any:
    data = variable._data
    if not isinstance(data, virtualds.ManifestArray):
        return None
    return [
        (f.start, m.file.tolist(), m.offset.tolist(), m.length.tolist())
        for f in data.fragments
        for m in [f.manifest]
    ]


# ---------------------------------------------------------------------- requests and bytes


@pytest.mark.parametrize(("name", "most"), [("typical.nc", 2), ("small.nc", 1)])
@pytest.mark.parametrize("group", [None, "quality"])
def test_a_file_on_a_web_server_takes_few_requests(
    name: str, most: int, group: str | None, folder: Path
) -> None:
    with counting_server(folder) as (url, counts):
        found = virtualds.open_virtual_dataset(f"{url}/{name}", group=group)
        assert len(counts.requests) <= most
        assert counts.sent < MIB // 2
        alike(found, virtualds.open_virtual_dataset(folder / name, group=group))


@pytest.mark.parametrize(("name", "most"), [("typical.nc", 2), ("small.nc", 1)])
def test_a_file_in_s3_takes_few_requests(
    name: str, most: int, folder: Path, s3_bucket: str, s3_server: dict[str, Any]
) -> None:
    there = f"{s3_bucket}/{name}"
    fsspec.filesystem("s3", **s3_server).pipe_file(there, (folder / name).read_bytes())
    with counting_proxy(s3_server["client_kwargs"]["endpoint_url"]) as (url, counts):
        client = {**s3_server["client_kwargs"], "endpoint_url": url}
        options = {**s3_server, "client_kwargs": client}
        found = virtualds.open_virtual_dataset(there, storage_options=options)
        assert len(counts.requests) <= most
        assert counts.sent < MIB // 2
        alike(found, virtualds.open_virtual_dataset(folder / name))
        [source] = found["t2m"]._variable._data.sources
    known = find_store(there).describe(there, source.options)
    assert source.fingerprint == known.fingerprint
    assert source.etag
    assert source.size == (folder / name).stat().st_size


@pytest.mark.parametrize("parser", [None, "hdf5"])
def test_naming_the_parser_costs_no_more(parser: str | None, folder: Path) -> None:
    with counting_server(folder) as (url, counts):
        virtualds.open_virtual_dataset(f"{url}/typical.nc", parser=parser)
        assert len(counts.requests) <= 2


def test_a_reference_set_is_fetched_once(folder: Path, tmp_path: Path) -> None:
    set_ = {"version": 1, "refs": {".zgroup": '{"zarr_format": 2}', ".zattrs": '{"a": 1}'}}
    (tmp_path / "a.json").write_text(json.dumps(set_))
    with counting_server(tmp_path) as (url, counts):
        assert virtualds.open_virtual_dataset(f"{url}/a.json").attrs == {"a": 1}
        assert counts.of("a.json") == 1


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of 4 GB, sparse, with metadata at the end; one with its index between its chunks."""
    folder = tmp_path_factory.mktemp("large")
    with h5py.File(folder / "at_the_end.h5", "w") as file:
        file.create_dataset("huge", (2**29,), "f8")[-1] = 1
        for number in range(20):
            file[f"v{number}"] = np.arange(1000.0) + number
            file[f"v{number}"].attrs["units"] = "m"
    with h5py.File(folder / "scattered.h5", "w") as file:
        shape, chunks = (3000, 10_000), (1, 10_000)
        ways = [file.create_dataset(name, shape, "i1", chunks=chunks) for name in ("v", "w")]
        for step in range(3000):
            for way in ways:
                way.id.write_direct_chunk((step, 0), bytes(10_000))
    return folder


def test_of_a_huge_file_only_the_metadata_are_fetched(large: Path) -> None:
    with counting_server(large, SparseHandler) as (url, counts):
        found = virtualds.open_virtual_dataset(f"{url}/at_the_end.h5")
        assert counts.sent < 2 * MIB
        assert len(counts.requests) <= 3
        alike(found, virtualds.open_virtual_dataset(large / "at_the_end.h5"))


def test_an_index_that_lies_all_over_a_file_costs_what_it_is(large: Path) -> None:
    with counting_server(large, SparseHandler) as (url, counts):
        found = virtualds.open_virtual_dataset(f"{url}/scattered.h5")
        size = (large / "scattered.h5").stat().st_size
        assert size > 50 * MIB
        assert counts.sent < 6 * MIB
        alike(found, virtualds.open_virtual_dataset(large / "scattered.h5"))


def test_no_byte_is_fetched_twice(large: Path, archive: Archive) -> None:
    paths = [large / "scattered.h5", large / "at_the_end.h5", archive.path("virtual_datasets")]
    for path in paths:
        with counting_server(path.parent, SparseHandler) as (url, counts):
            virtualds.open_virtual_dataset(f"{url}/{path.name}", loadable_variables=[])
        pieces: dict[str, list[tuple[int, int]]] = {}
        for method, name, wanted in counts.requests:
            if method == "GET" and wanted is not None:
                first, last = map(int, wanted.removeprefix("bytes=").split("-"))
                pieces.setdefault(name, []).append((first, last))
        for ordered in map(sorted, pieces.values()):
            assert all(a[1] < b[0] for a, b in pairwise(ordered))


# ---------------------------------------------------------------------- many files


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_many(tmp_path_factory.mktemp("many"), range(40))


@pytest.fixture(scope="module")
def hundred(forty: list[Path]) -> list[Path]:
    return forty + write_many(forty[0].parent, range(40, 100))


def write_many(folder: Path, numbers: Iterable[int]) -> list[Path]:
    return [write_typical(folder / f"{number:03}.nc", number, size=10) for number in numbers]


NESTED: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}


@pytest.mark.full
def test_a_hundred_files_are_opened_at_the_same_time(hundred: list[Path]) -> None:
    together = threading.Barrier(16)

    def meanwhile(path: str) -> None:
        # nobody but the first three, which show that files are alike, gets an answer before
        # sixteen have asked
        if path.endswith(tuple(f"0{number:02}.nc" for number in range(3, 19))):
            together.wait(timeout=60)

    with counting_server(hundred[0].parent) as (url, counts):
        counts.meanwhile = meanwhile
        urls = [f"{url}/{path.name}" for path in hundred]
        found = virtualds.open_virtual_mfdataset(urls, **NESTED)
        assert not together.broken
        assert max(counts.of(path.name) for path in hundred) <= 3
    expected = virtualds.open_virtual_mfdataset(hundred, **NESTED)
    alike(found, expected)
    assert found["t2m"].encoding["source"].endswith("000.nc")


def test_remote_files_come_in_order_and_the_first_error_is_raised(forty: list[Path]) -> None:
    seen = []

    def preprocess(ds: xr.Dataset) -> xr.Dataset:
        seen.append((Path(ds.encoding["source"]).name, threading.current_thread()))
        return ds

    with counting_server(forty[0].parent) as (url, _):
        urls = [f"{url}/{path.name}" for path in forty[:20]]
        virtualds.open_virtual_mfdataset(urls, preprocess=preprocess, **NESTED)
        assert seen == [(path.name, threading.current_thread()) for path in forty[:20]]
        urls[7], urls[3] = f"{url}/seven.nc", f"{url}/three.nc"
        with pytest.raises(FileNotFoundError, match=r"three\.nc"):
            virtualds.open_virtual_mfdataset(urls, **NESTED)


def test_an_executor_of_the_user_is_used_as_it_is(forty: list[Path]) -> None:
    names = set()

    def preprocess(ds: xr.Dataset) -> xr.Dataset:
        names.add(threading.current_thread().name.partition("_")[0])
        return ds

    with (
        counting_server(forty[0].parent) as (url, _),
        ThreadPoolExecutor(2, thread_name_prefix="mine") as pool,
    ):
        urls = [f"{url}/{path.name}" for path in forty[:5]]
        virtualds.open_virtual_mfdataset(urls, preprocess=preprocess, parallel=pool, **NESTED)
    assert names == {"mine"}


# ---------------------------------------------------------------------- what goes wrong


def test_a_missing_or_forbidden_file_raises_the_usual_error(folder: Path) -> None:
    class Forbidden(CountingHandler):
        def send_head(self) -> Any:
            return self.send_error(403)

    with counting_server(folder) as (url, _), pytest.raises(FileNotFoundError, match="none"):
        virtualds.open_virtual_dataset(f"{url}/none.nc")
    with (
        counting_server(folder, Forbidden) as (url, _),
        pytest.raises(AccessError, match=r"(?s)typical\.nc.*give credentials"),
    ):
        virtualds.open_virtual_dataset(f"{url}/typical.nc")


@pytest.mark.parametrize("size", [0, 100, 5000, 300_000, 2_000_000])
def test_a_truncated_file_is_distinguished_from_a_failing_server(
    size: int, folder: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.nc"
    cut.write_bytes((folder / "typical.nc").read_bytes()[:size])
    with pytest.raises(FormatError) as local:
        virtualds.open_virtual_dataset(cut)
    with counting_server(tmp_path) as (url, _), pytest.raises(FormatError) as remote:
        virtualds.open_virtual_dataset(f"{url}/cut.nc")
    assert str(remote.value) == str(local.value).replace(f"file://{tmp_path}", url)


def test_damage_behind_the_first_block_is_found_alike(large: Path, tmp_path: Path) -> None:
    shutil.copy(large / "scattered.h5", tmp_path / "bad.h5")
    with (tmp_path / "bad.h5").open("r+b") as file:
        data = file.read()
        for place in [n for n in range(MIB, 40 * MIB, MIB) if b"TREE" in data[n : n + MIB]]:
            file.seek(data.index(b"TREE", place))
            file.write(b"FREE")
    expected = virtualds.open_virtual_dataset
    with pytest.raises(FormatError, match="metadata are damaged"):
        expected(tmp_path / "bad.h5")
    with counting_server(tmp_path, SparseHandler) as (url, _):
        with pytest.raises(FormatError, match="metadata are damaged"):
            virtualds.open_virtual_dataset(f"{url}/bad.h5")
        with pytest.warns(UserWarning, match="v: "):
            left = virtualds.open_virtual_dataset(f"{url}/bad.h5", on_error="skip")
        assert not left.variables


@pytest.mark.full
def test_a_server_that_fails_on_the_way_is_no_damage_of_a_variable(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virtualds.stores.requests.FIRST_WAIT", 0.002)

    class Failing(SparseHandler):
        def do_GET(self) -> None:
            if self.headers["Range"].startswith("bytes=0-"):
                super().do_GET()
            else:
                self.send_error(500)

    with counting_server(large, Failing) as (url, _), pytest.raises(FormatError) as caught:
        virtualds.open_virtual_dataset(f"{url}/scattered.h5", on_error="skip")
    assert "cannot be opened (bytes " in str(caught.value)
    assert "500" in str(caught.value)


def test_a_server_without_ranges_is_right_about_small_files_and_clear_about_others(
    folder: Path,
) -> None:
    with counting_server(folder, DeafHandler) as (url, counts):
        alike(
            virtualds.open_virtual_dataset(f"{url}/small.nc"),
            virtualds.open_virtual_dataset(folder / "small.nc"),
        )
        before = counts.sent
        for parser in (None, "hdf5"):
            with pytest.raises(UnsupportedError, match="does not support byte ranges"):
                virtualds.open_virtual_dataset(f"{url}/typical.nc", parser=parser)
    size = (folder / "typical.nc").stat().st_size
    assert counts.sent - before < 2 * size


# ---------------------------------------------------------------------- attempts


class Bytes:
    """A store of one file in memory that notes what it is asked for."""

    request_limits = RequestLimits(max_gap=0, max_bytes=MIB, max_requests=1)

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.ranges: list[Range] = []

    def read_head(self, url: str, options: Any, length: int) -> tuple[SourceFile, bytes]:
        return SourceFile(url, len(self.data)), self.data[: min(length, PAGE_SIZE)]

    def get_ranges(self, file: SourceFile, ranges: list[Range]) -> list[bytes]:
        self.ranges += ranges
        if any(offset + length > len(self.data) for offset, length in ranges):
            raise StoreError("too far")
        return [self.data[offset : offset + length] for offset, length in ranges]


@contextmanager
def served(data: bytes) -> Iterator[Bytes]:
    """Bytes are what lies at every url of the scheme `bytes`."""
    store = Bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STORES, "bytes", store)  # type: ignore[arg-type]
        yield store


def test_nothing_is_held_when_a_file_is_scanned(folder: Path) -> None:
    held: list[weakref.ref[Blocks]] = []

    class Watched(Blocks):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            held.append(weakref.ref(self))

    with pytest.MonkeyPatch.context() as patch, counting_server(folder) as (url, _):
        patch.setattr("virtualds.stores.scan_cache.Blocks", Watched)
        found = virtualds.open_virtual_dataset(f"{url}/typical.nc")
        with pytest.raises(FileNotFoundError, match="no group"):
            virtualds.open_virtual_dataset(f"{url}/typical.nc", group="no")
        store = find_store(f"{url}/typical.nc")
    gc.collect()
    assert len(held) == 2
    assert not [ref for ref in held if ref() is not None]
    assert store is find_store("http://elsewhere")
    assert found.sizes["time"] == 12


# ---------------------------------------------------------------------- who sees what is held


URL = "bytes://a"


@pytest.fixture
def data() -> bytes:
    return np.random.default_rng(5).bytes(3 * MIB + 77)


def read_beginning() -> bytes:
    """The first bytes of what is at the url now."""
    store = find_store(URL)
    file, _ = store.read_head(URL, None, PAGE_SIZE)
    return bytes(store.get_ranges(file, [(0, 9)])[0])


def test_a_scan_changes_what_a_url_means_in_its_own_thread_alone(data: bytes) -> None:
    with served(data) as store, ThreadPoolExecutor(1) as other:
        with cache_scan(URL, None):
            assert find_store(URL) is not store
            assert find_store("bytes://b") is store
            assert other.submit(find_store, URL).result() is store
            inherited = copy_context()
        assert find_store(URL) is store
        assert inherited.run(find_store, URL) is store


def test_threads_that_scan_one_url_hold_the_blocks_of_their_own_version(data: bytes) -> None:
    with served(data) as store, ThreadPoolExecutor(1) as other, cache_scan(URL, None):
        assert read_beginning() == data[:9]
        store.data = data[::-1]

        def scan_again() -> bytes:
            with cache_scan(URL, None):
                return read_beginning()

        assert other.submit(scan_again).result() == data[::-1][:9]
        asked = len(store.ranges)
        [found] = find_store(URL).get_ranges(SourceFile(URL, len(data)), [(0, 9)])
        assert found == data[:9]
        assert len(store.ranges) == asked


def test_threads_that_read_for_a_scan_read_what_it_holds(data: bytes) -> None:
    threads, places = set(), [n * PAGE_SIZE for n in range(64)]

    def read(place: int) -> bytes:
        threads.add(threading.current_thread())
        [found] = find_store(URL).get_ranges(SourceFile(URL, len(data)), [(place, 9)])
        return bytes(found)

    with served(data) as store, cache_scan(URL, None):
        prefetch_ranges({SourceFile(URL, len(data)): [(0, len(data))]})
        asked = len(store.ranges)
        # those that wait for a host, and those that decode
        assert fetch_many(places, lambda _: URL, read) == [data[n : n + 9] for n in places]
        run_all(iter(places), read)
        assert len(store.ranges) == asked
    assert threads - {threading.current_thread()}


def test_a_local_file_is_opened_without_a_scan(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise AssertionError(f"a scan of {given}")

    monkeypatch.setattr("virtualds.stores.scan_cache.ScannedStore.__init__", refuse)
    found = virtualds.open_virtual_dataset(folder / "typical.nc")
    assert found.sizes["time"] == 12


# ---------------------------------------------------------------------- blocks


def blocks_of(data: bytes, head: int = 0) -> tuple[Blocks, Bytes]:
    store = Bytes(data)
    file = SourceFile("bytes://a", len(data))
    return Blocks(store, file, data[:head]), store  # type: ignore[arg-type]


def test_a_file_is_read_like_any_other(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    blocks, _ = blocks_of(data, head=PAGE_SIZE)
    remote = BlockFile(blocks)
    rng = np.random.default_rng(1)
    with (tmp_path / "a").open("rb") as local:
        assert remote.readable()
        assert remote.seekable()
        for _ in range(300):
            whence = int(rng.integers(3))
            offset = int(rng.integers(len(data) + 100)) * (1 if whence != 2 else -1)
            if whence == 2:
                offset = max(offset, -len(data))
            length = int(rng.choice([0, 1, 7, 5000, 40_000, 2 * MIB]))
            assert remote.seek(offset, whence) == local.seek(offset, whence)
            assert remote.read(length) == local.read(length)
            assert remote.tell() == local.tell()


def test_blocks_grow_while_one_reads_on_and_stay_small_where_one_jumps(data: bytes) -> None:
    blocks, store = blocks_of(data, head=16 * PAGE_SIZE)
    for offset in range(0, len(data) - 9, 5000):
        assert blocks.read(offset, 9) == data[offset : offset + 9]
    lengths = [length for _, length in store.ranges]
    assert lengths[:2] == [32 * PAGE_SIZE, 64 * PAGE_SIZE]
    assert sum(lengths) == len(data) - 16 * PAGE_SIZE
    blocks, store = blocks_of(data)
    for offset in range(0, len(data) - 9, 5000):
        blocks.read(offset, 9)
    assert [length for _, length in store.ranges[:2]] == [16 * PAGE_SIZE, 32 * PAGE_SIZE]
    blocks, store = blocks_of(data)
    for offset in (2 * MIB, MIB, MIB // 2):
        blocks.read(offset, 9)
    assert [length for _, length in store.ranges] == [MIN_PAGES * PAGE_SIZE] * 3


def test_held_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("virtualds.stores.block_cache.CACHED_PAGES", 10)
    monkeypatch.setattr("virtualds.stores.block_cache.MIN_PAGES", 1)
    monkeypatch.setattr("virtualds.stores.block_cache.MAX_PAGES", 4)
    blocks, store = blocks_of(data)
    for offset in (*range(0, len(data), 7000), 0):
        assert blocks.read(offset, 100) == data[offset : offset + 100]
        assert len(blocks._pages) <= 10
    assert store.ranges[-1][0] == 0
    assert CACHED_PAGES >= 2 * MAX_PAGES


def test_fetched_blocks_do_not_push_out_blocks_of_the_same_read(
    monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr("virtualds.stores.block_cache.CACHED_PAGES", 10)
    monkeypatch.setattr("virtualds.stores.block_cache.MIN_PAGES", 1)
    monkeypatch.setattr("virtualds.stores.block_cache.MAX_PAGES", 4)
    blocks, _ = blocks_of(data)
    for page in (0, 20, 30, 40, 50, 60, 70):
        blocks.read(page * PAGE_SIZE, 9)
    assert len(blocks._pages) == 10
    assert blocks.read(3 * PAGE_SIZE, 4 * PAGE_SIZE) == data[3 * PAGE_SIZE : 7 * PAGE_SIZE]


def test_announced_ranges_are_fetched_together(data: bytes) -> None:
    blocks, store = blocks_of(data)
    blocks.fetch_together([(0, 10), (MIB, 10), (MIB + 50_000, 10), (2 * MIB, 3 * PAGE_SIZE)])
    assert store.ranges == [(0, PAGE_SIZE), (MIB, 4 * PAGE_SIZE), (2 * MIB, 3 * PAGE_SIZE)]
    assert blocks.get_cached(MIB, 10) == data[MIB : MIB + 10]
    assert blocks.get_cached(MIB // 2, 10) is None


def test_threads_of_a_scan_get_the_blocks_of_any_file(data: bytes) -> None:
    """More files than are held, from threads that take turns within a line."""
    files = [SourceFile(f"bytes://{n}", len(data)) for n in range(MAX_OTHER_FILES + 40)]

    def get(number: int) -> bytes:
        return open_blocks(files[number * 7 % len(files)]).read(0, 9)

    pause = sys.getswitchinterval()
    with served(data), cache_scan(URL, None), ThreadPoolExecutor(8) as threads:
        sys.setswitchinterval(1e-6)
        try:
            found = [threads.submit(copy_context().run, get, number) for number in range(4000)]
            assert {one.result() for one in found} == {data[:9]}
        finally:
            sys.setswitchinterval(pause)


def test_threads_that_want_one_file_fetch_its_beginning_once(data: bytes) -> None:
    file = SourceFile("bytes://other", len(data))
    with served(data) as store, cache_scan(URL, None), ThreadPoolExecutor(8) as threads:
        get_ranges = store.get_ranges

        def get_slowly(file: SourceFile, ranges: list[Range]) -> list[bytes]:
            time.sleep(0.05)
            return get_ranges(file, ranges)

        store.get_ranges = get_slowly  # type: ignore[method-assign]
        found = [threads.submit(copy_context().run, open_blocks, file) for _ in range(50)]
        assert len({id(one.result()) for one in found}) == 1
        assert len(store.ranges) == 1


def test_an_error_of_a_block_names_the_block(data: bytes) -> None:
    blocks, store = blocks_of(data)
    store.data = data[:MIB]
    with pytest.raises(FetchError, match=f"bytes {2 * MIB} to "):
        blocks.read(2 * MIB, 10)


def test_ahead_is_fetched_only_of_what_is_scanned(data: bytes) -> None:
    other = SourceFile("bytes://other", 10)
    with served(data) as store:
        file = SourceFile("bytes://a", len(data))
        prefetch_ranges({file: [(MIB, 5)]})
        assert not store.ranges
        with cache_scan("bytes://a", None):
            prefetch_ranges({file: [(MIB, 5)], other: [(0, 5)]})
            before = len(store.ranges)
            assert find_store("bytes://a").get_ranges(file, [(MIB, 5), (2 * MIB, 3)]) == [
                data[MIB : MIB + 5], data[2 * MIB : 2 * MIB + 3],
            ]  # fmt: skip
            assert store.ranges[before:] == [(2 * MIB, 3)]


def test_a_preprocessing_that_fails_ends_the_opening(forty: list[Path]) -> None:
    def preprocess(ds: xr.Dataset) -> xr.Dataset:
        raise KeyError("no such variable")

    # four times as many files as requests at a time are begun before the first is prepared
    with counting_server(forty[0].parent) as (url, counts), virtualds.set_options(max_requests=4):
        urls = [f"{url}/{path.name}" for path in forty]
        with pytest.raises(KeyError, match="no such"):
            virtualds.open_virtual_mfdataset(urls, preprocess=preprocess, **NESTED)
        assert 1 <= len(counts.requests) <= 20
