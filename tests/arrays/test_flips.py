"""Flipped axes: they stay virtual, chunks are decoded once, and sets say it or refuse it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from independent_reader import Set
from memory import peak
from products import looped
from programs import run_code
from virtual_arrays import PLAIN, ZLIB, counted_reads, exactly, no_reads, virtual

import virtualds
from virtualds import ChunkAxis, FormatError, ManifestArray, UnsupportedError
from virtualds.arrays.subchunks import split_chunks, to_regular_chunks
from virtualds.reading.tasks import Decoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flips")


STORED: dict[str, dict[str, Any]] = {
    "padded": {"chunksizes": (3, 20, 8), "zlib": True},
    "one chunk a day": {"chunksizes": (1, 50, 9), "zlib": True, "shuffle": True},
    "contiguous": {"contiguous": True},
    "packed": {"chunksizes": (2, 16, 9), "dtype": "i2", "scale_factor": 0.01, "_FillValue": -1},
}
"""How files store ``t(time, lat, lon)`` of 7, 50 and 9 elements."""

FLIPS: dict[str, Callable[[Any], Any]] = {
    "isel": lambda ds: ds.isel(lat=slice(None, None, -1)),
    "sortby": lambda ds: ds.sortby("lat", ascending=False),
    "two axes": lambda ds: ds.isel(lat=slice(None, None, -1), time=slice(None, None, -1)),
    "a part backwards": lambda ds: ds.isel(lat=slice(41, 3, -1)),
    "a slice of what is flipped": lambda ds: FLIPS["isel"](ds).isel(lat=slice(3, 31)),
    "an element of what is flipped": lambda ds: FLIPS["isel"](ds).isel(lat=7),
    "flipped and transposed": lambda ds: FLIPS["isel"](ds).transpose("lat", "lon", "time"),
    "a day of what is flipped": lambda ds: FLIPS["isel"](ds).isel(time=3),
    "rolled and flipped": lambda ds: ds.isel(lat=np.r_[19:-1:-1, 49:19:-1]),
    "mirrored": lambda ds: ds.isel(lat=np.r_[0:50, 48:-1:-1]),
    "with itself": lambda ds: xr.concat([ds, FLIPS["isel"](ds)], "copy", join="override"),
}


def field(seed: int = 0, days: int = 7) -> xr.Dataset:
    values = np.random.default_rng(seed).random((days, 50, 9)).astype("f4")
    coords = {"time": np.arange(days) + seed * days, "lat": np.arange(50.0)}
    return xr.Dataset({"t": (("time", "lat", "lon"), values)}, coords)


def opened(path: Path, **options: Any) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path, **options)


def in_set(path: Path) -> Any:
    return xr.open_dataset(path, engine="virtual")


@contextmanager
def counted_decodes() -> Iterator[list[int]]:
    """Note the lengths of the bytes that are decoded within the block."""
    found: list[int] = []
    undo = Decoder._undo_codecs

    def noted(self: Decoder, data: Any) -> Any:
        found.append(len(data))
        return undo(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "_undo_codecs", noted)
        yield found


@looped("stored", STORED, quick=2)
@looped("flip", FLIPS, quick=4)
def test_what_is_flipped_stays_virtual_also_in_a_set(
    stored: str, flip: str, tmp_path: Path
) -> None:
    field().to_netcdf(tmp_path / "a.nc", encoding={"t": STORED[stored]})
    with xr.open_dataset(tmp_path / "a.nc") as native:
        expected = FLIPS[flip](native.load())
    with warnings.catch_warnings():
        warnings.simplefilter("error", virtualds.CopyWarning)
        found = FLIPS[flip](opened(tmp_path / "a.nc"))
        assert isinstance(found["t"].variable._data, ManifestArray)
        found.virtual.to_manifest(tmp_path / "refs.zarr", mode="w")
    exactly(found["t"].values, expected["t"].values)
    xr.testing.assert_identical(in_set(tmp_path / "refs.zarr").load(), expected)
    if stored != "packed":
        # a reader of the page of the format, which leaves CF packing of plain arrays packed
        exactly(Set(tmp_path / "refs.zarr").read("t"), expected["t"].values)


def test_every_chunk_is_decoded_once(folder: Path) -> None:
    values = np.random.default_rng(0).random((6, 500, 70))
    array = virtual(values, folder, chunks=(2, 300, 70), codecs=ZLIB)
    with virtualds.set_options(chunk_cache=0):
        for axes in (1, (0, 1), (0, 1, 2)):
            with counted_decodes() as alone:
                np.asarray(array)
            with counted_decodes() as flipped:
                exactly(np.flip(array, axes), np.flip(values, axes))
            assert sorted(flipped) == sorted(alone) and len(alone) == array.nchunks == 6


def test_a_flip_takes_the_memory_of_references_alone(folder: Path) -> None:
    array = virtual(np.zeros((40, 500, 500)), folder, chunks=(1, 250, 500), codecs=ZLIB)
    # threads that other tests have left may allocate meanwhile
    least = min(peak(lambda: np.flip(array, (0, 1, 2))) for _ in range(3))
    assert least < 200_000 < array.nbytes
    # one slab of a flipped array: its two chunks, and the values
    flipped = np.flip(array, 1)
    with virtualds.set_options(chunk_cache=0):
        most = peak(lambda: flipped[:1].read())
    assert most < 3 * array.nbytes // 40


def test_little_is_read_of_files_that_lie_in_both_directions(folder: Path) -> None:
    """Of plain chunks, some of them flipped, as much is read as of chunks in one direction."""
    values = np.random.default_rng(0).random((20, 300, 400))
    up, down = virtual(values[:10], folder), virtual(values[10:, ::-1], folder)
    with no_reads():
        array = np.concatenate([up, np.flip(down, 1)])
    whole = virtual(values, folder)
    for key in ((15, 5, 7), (slice(None), 7, slice(None)), (slice(8, 12), slice(290, 295), 3)):
        with counted_reads() as one:
            exactly(whole.read(key), values[key])
        with counted_reads() as store:
            exactly(array.read(key), values[key])
        assert store.nbytes == one.nbytes < 200_000
    # also where a row has been taken before
    row = array[:, 5]
    assert isinstance(row, ManifestArray)
    with counted_reads() as store:
        exactly(row.read((slice(3, 17), 9)), values[3:17, 5, 9])
    assert store.nbytes < 100_000


@looped("codecs", (PLAIN, ZLIB))
def test_chunks_that_are_missing_inline_or_of_text_are_flipped(codecs: Any, folder: Path) -> None:
    for kind in ("<f4", "<U3", "S5"):
        values = np.arange(7 * 10).reshape(7, 10).astype(kind)
        values[:3, 4:8] = values[3:6, :4] = np.zeros((), kind)
        how: dict[str, Any] = {"chunks": (3, 4), "missing": (1, 3), "inline": (0, 5)}
        array = virtual(values, folder, codecs=codecs, **how)
        for axes in (0, 1, (0, 1)):
            exactly(np.flip(array, axes), np.flip(values, axes))


def test_blocks_of_dask_end_where_chunks_do(tmp_path: Path) -> None:
    field().to_netcdf(tmp_path / "a.nc", encoding={"t": STORED["padded"]})
    found = FLIPS["two axes"](opened(tmp_path / "a.nc")).virtual.to_lazy(chunks={})
    assert found["t"].chunks == ((1, 3, 3), (10, 20, 20), (1, 8)[::-1])
    with virtualds.set_options(chunk_cache=0), counted_decodes() as decoded:
        exactly(found["t"].values, FLIPS["two axes"](field())["t"].values)
    assert len(decoded) == 3 * 3 * 2


# ---------------------------------------------------------------------- sets


def test_a_set_is_flipped_in_another_process_too(tmp_path: Path) -> None:
    field().to_netcdf(tmp_path / "a.nc", encoding={"t": STORED["padded"]})
    FLIPS["isel"](opened(tmp_path / "a.nc")).virtual.to_manifest(tmp_path / "refs.zarr")
    code = (
        "import sys, xarray as xr; ds = xr.open_dataset(sys.argv[1], engine='virtual')\n"
        "print(ds['t'].values.tobytes().hex())"
    )
    found = run_code(code, tmp_path / "refs.zarr", check=True).stdout
    assert found.strip() == FLIPS["isel"](field())["t"].values.tobytes().hex()


def test_flipping_what_a_set_has_flipped_gives_the_source(tmp_path: Path) -> None:
    field().to_netcdf(tmp_path / "a.nc", encoding={"t": STORED["padded"]})
    source = opened(tmp_path / "a.nc")
    FLIPS["isel"](source).virtual.to_manifest(tmp_path / "refs.zarr", manifest="parquet")
    back = FLIPS["isel"](opened(tmp_path / "refs.zarr"))["t"].variable._data
    assert back.has_same_references(source["t"].variable._data)
    assert "flipped" not in str(opened(tmp_path / "a.nc").virtual.to_manifest(None))


def both_directions(folder: Path) -> tuple[list[Path], xr.Dataset]:
    """Files of which every other one begins in the north, and what they hold, all from there."""
    days = [field(n, 2) for n in range(6)]
    paths = [folder / f"{n}.nc" for n in range(6)]
    for number, (path, day) in enumerate(zip(paths, days, strict=True)):
        stored = FLIPS["isel"](day) if number % 2 else day
        stored.to_netcdf(path, encoding={"t": {"chunksizes": (1, 20, 9), "zlib": True}})
    return paths, xr.concat(map(FLIPS["sortby"], days), "time")


def test_a_set_of_files_in_both_directions_grows_and_is_verified(tmp_path: Path) -> None:
    paths, expected = both_directions(tmp_path)
    how: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
    found = virtualds.open_virtual_mfdataset(paths[:4], preprocess=FLIPS["sortby"], **how)
    refs = tmp_path / "refs.zarr"
    found.virtual.to_manifest(refs)
    xr.testing.assert_identical(in_set(refs).load(), expected.isel(time=slice(8)))
    for path in paths[4:]:
        FLIPS["sortby"](opened(path)).virtual.to_manifest(refs, mode="a", append_dim="time")
    xr.testing.assert_identical(in_set(refs).load(), expected)
    assert opened(refs).virtual.verify(sample=None, against="native").ok
    with pytest.raises(ValueError, match="chunk key encoding"):
        xr.open_zarr(refs)
    with xr.open_zarr(virtualds.zarr_store(str(refs))) as served:
        xr.testing.assert_identical(served.load(), expected)


def test_a_set_of_files_in_both_directions_follows_them(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    paths, expected = both_directions(tmp_path / "files")
    late = [path.rename(tmp_path / path.name) for path in paths[2:4]]
    refs, files = tmp_path / "refs.zarr", f"{tmp_path}/files/*.nc"
    how: dict[str, Any] = {"concat_dim": "time", "preprocess": FLIPS["sortby"], "settle": 0}
    virtualds.sync(files, refs, **how)
    xr.testing.assert_identical(in_set(refs).load(), expected.isel(time=np.r_[:4, 8:12]))
    for path in late:
        path.rename(tmp_path / "files" / path.name)
    virtualds.sync(files, refs, **how)
    xr.testing.assert_identical(in_set(refs).load(), expected)


@looped("name", ("refs.json", "refs.parq"))
def test_other_formats_refuse_a_flip_by_name_and_encode_anew(name: str, tmp_path: Path) -> None:
    field().to_netcdf(tmp_path / "a.nc", encoding={"t": {"chunksizes": (1, 25, 9), "zlib": True}})
    found = FLIPS["isel"](opened(tmp_path / "a.nc"))
    with pytest.raises(UnsupportedError, match=r"(?s)zarr-v3.*t: .*flipped along 'lat'"):
        found.virtual.to_manifest(tmp_path / name)
    found.virtual.to_manifest(tmp_path / name, on_unsupported="rewrite", mode="w")
    xr.testing.assert_identical(in_set(tmp_path / name).load(), FLIPS["isel"](field()))
    # other chunks stay references
    both = xr.concat([found, opened(tmp_path / "a.nc").assign_coords(lat=found["lat"])], "time")
    both.virtual.to_manifest(tmp_path / name, on_unsupported="rewrite", mode="w")
    exactly(in_set(tmp_path / name)["t"].values, both["t"].values)
    assert len(opened(tmp_path / name)["t"].variable._data.sources) == 2
    # the order of chunks of one element is no flip
    days = opened(tmp_path / "a.nc").isel(time=slice(None, None, -1))
    days.virtual.to_manifest(tmp_path / name, mode="w")
    expected = field().isel(time=slice(None, None, -1))
    xr.testing.assert_identical(in_set(tmp_path / name).load(), expected)


def test_flipped_chunks_are_encoded_anew_as_they_were_packed(tmp_path: Path) -> None:
    field().to_netcdf(tmp_path / "a.nc", encoding={"t": STORED["packed"]})
    found = FLIPS["isel"](opened(tmp_path / "a.nc"))
    found.virtual.to_manifest(tmp_path / "refs.json", on_unsupported="rewrite")
    written = in_set(tmp_path / "refs.json")
    assert written["t"].encoding["dtype"] == "i2"
    exactly(written["t"].values, found["t"].values)
    # also where the set could say that they are flipped
    wanted = {"t": {"chunks": {"time": 3}}}
    found.virtual.to_manifest(
        tmp_path / "refs.zarr", on_unsupported="rewrite", main_encoding=wanted
    )
    exactly(in_set(tmp_path / "refs.zarr")["t"].values, found["t"].values)


def test_copies_are_flipped_and_plain_ones_refused(tmp_path: Path) -> None:
    field().to_netcdf(tmp_path / "a.nc", encoding={"t": STORED["padded"]})
    found = FLIPS["isel"](opened(tmp_path / "a.nc"))
    found.virtual.materialize(tmp_path / "copy.zarr")
    (tmp_path / "a.nc").unlink()
    xr.testing.assert_identical(in_set(tmp_path / "copy.zarr").load(), FLIPS["isel"](field()))
    with pytest.raises(UnsupportedError, match="t: its chunks are flipped along"):
        found.virtual.materialize(tmp_path / "plain.zarr", layout="chunks")


def test_plain_chunks_become_rows_where_a_format_has_no_flip(folder: Path, tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((3, 8, 100))
    for array in (
        np.flip(virtual(values[:, ::-1], folder), 1),
        np.concatenate(
            [virtual(values[:2], folder), np.flip(virtual(values[2:, ::-1], folder), 1)]
        ),
    ):
        rows = to_regular_chunks(array)
        assert rows.nchunks == 24 and not any(p.flipped for p in rows.pipelines)
        exactly(rows, values)
        xr.Dataset({"v": (("a", "b", "c"), array)}).virtual.to_manifest(
            tmp_path / "refs.json", mode="w"
        )
        exactly(in_set(tmp_path / "refs.json")["v"].values, values)


def test_chunks_that_are_cut_stay_flipped(folder: Path) -> None:
    values = np.random.default_rng(0).random((5, 8, 10))
    array = np.flip(virtual(values, folder, chunks=(4, 8, 10), inline=(1,)), (0, 1))
    for lengths in ({0: 3}, {0: 1, 1: 3}):
        cut = split_chunks(array, lengths)
        assert cut.nchunks > array.nchunks
        exactly(cut, np.flip(values, (0, 1)))
    both = np.concatenate([array, np.flip(array, 1)])
    with pytest.raises(UnsupportedError, match="in several orders"):
        split_chunks(both, {0: 1, 1: 3})


@looped(
    "axis", ((10, 4, 0, 4), (10, 4, 0, 2), (10, 4, 1, 4), (3, 10, 0, 3), (8, 4, 0, 4), (0, 4, 0, 4))
)
def test_an_axis_that_is_flipped_twice_is_the_same(axis: tuple[int, ...]) -> None:
    size, chunk, inset, last = axis
    one = ChunkAxis.regular(size, chunk, inset=inset, last=last)
    flipped = one.flip()
    assert flipped.flip() == one
    assert flipped.lengths.tolist() == one.lengths.tolist()[::-1]
    (_, shown, hidden), (_, before, behind) = flipped.slabs(), one.slabs()
    assert shown.tolist() == before.tolist()[::-1]
    assert hidden.tolist() == (before - behind - one.lengths).tolist()[::-1]


@looped("flipped", ([5], [-1], ["0"], [1.5], 7))
def test_a_flip_that_cannot_be_is_refused(flipped: Any, tmp_path: Path) -> None:
    field().to_netcdf(tmp_path / "a.nc", encoding={"t": STORED["padded"]})
    FLIPS["isel"](opened(tmp_path / "a.nc")).virtual.to_manifest(tmp_path / "refs.zarr")
    root = tmp_path / "refs.zarr" / "zarr.json"
    text = root.read_text()
    assert text.count('"flipped":[1]') == 1
    root.write_text(text.replace('"flipped":[1]', f'"flipped":{json.dumps(flipped)}'))
    with pytest.raises(FormatError, match="damaged"):
        in_set(tmp_path / "refs.zarr").load()
