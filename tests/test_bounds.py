"""A small file that says it is huge is refused before memory is taken for it."""

import json
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from memory import peak
from products import looped

import virtualds
from virtualds import (
    ChunkAxis,
    ChunkManifest,
    CodecPipeline,
    FormatError,
    Fragment,
    ManifestArray,
    ReadError,
    UnsupportedError,
    VirtualdsError,
    bounds,
)
from virtualds.source_file import SourceFile

MOST = 2**26
"""Bytes that a refusal may take."""
OPTIONS: dict[str, Any] = {"dtype": "<f8", "fill_value": 0.0, "compressor": None, "filters": None}


def kerchunk(folder: Path, name: str = "v", *, keys: int = 1, **array: Any) -> Path:
    metadata = {"zarr_format": 2, "order": "C", **OPTIONS, **array}
    (folder / "a.bin").write_bytes(bytes(64))
    refs = {
        ".zgroup": {"zarr_format": 2},
        f"{name}/.zarray": metadata,
        f"{name}/.zattrs": {"_ARRAY_DIMENSIONS": ["x", *map(str, range(1, len(array["shape"])))]},
        **{f"{name}/{n}": ["a.bin", 0, 8] for n in range(keys)},
    }
    path = folder / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": refs}))
    return path


def hdf5(folder: Path) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        made = file.create_dataset("v", shape=(2 * 10**8,), dtype="i1", chunks=(1,))
        made[5] = 1
    return folder / "a.h5"


def zarr_store(folder: Path) -> Path:
    array = zarr.open_group(folder / "a.zarr", mode="w", zarr_format=2).create_array(
        "v", shape=(2 * 10**8,), chunks=(1,), dtype="i1"
    )
    array[5] = 1
    return folder / "a.zarr"


SPARSE: dict[str, Callable[[Path], Path]] = {
    "HDF5": hdf5,
    "zarr": zarr_store,
}


@pytest.mark.parametrize("kind", SPARSE)
def test_a_grid_far_larger_than_its_references_is_refused(kind: str, tmp_path: Path) -> None:
    path = SPARSE[kind](tmp_path)

    def refused() -> None:
        with pytest.raises(VirtualdsError, match="references"):
            virtualds.open_virtual_dataset(path)

    assert peak(refused) < MOST


def test_on_error_decides_about_refused_grids_too(tmp_path: Path) -> None:
    path = hdf5(tmp_path)
    with h5py.File(path, "a") as file:
        file["sound"] = np.arange(3)
    with pytest.warns(UserWarning, match="dataset 'v': a grid of"):
        kept = virtualds.open_virtual_mfdataset([path], on_error="keep")
    np.testing.assert_array_equal(kept["sound"].to_numpy(), np.arange(3))
    with pytest.raises(VirtualdsError, match="references"):
        kept["v"][:3].to_numpy()


def test_a_grid_without_any_reference_takes_no_memory(tmp_path: Path) -> None:
    path = kerchunk(tmp_path, shape=[10**9], chunks=[1], keys=0)
    assert peak(lambda: virtualds.open_virtual_dataset(path)) < MOST


def test_a_grid_that_is_full_enough_is_opened(tmp_path: Path) -> None:
    path = kerchunk(tmp_path, shape=[10**6], chunks=[1])
    assert virtualds.open_virtual_dataset(path)["v"].sizes == {"x": 10**6}


def lazy_set(folder: Path) -> Path:
    """A set of kerchunk Parquet that has one reference, and thousands of millions of chunks."""
    array = {"zarr_format": 2, "order": "C", "shape": [10**9], "chunks": [1], **OPTIONS}
    metadata = {".zgroup": {"zarr_format": 2}, "v/.zarray": array}
    metadata["v/.zattrs"] = {"_ARRAY_DIMENSIONS": ["x"]}
    refs = folder / "lazy.parquet"
    (refs / "v").mkdir(parents=True)
    document = {"metadata": metadata, "record_size": 2**20}
    (refs / ".zmetadata").write_text(json.dumps(document))
    (folder / "a.bin").write_bytes(np.full(1, 7.0).tobytes())
    table = pa.table({"path": [str(folder / "a.bin")], "offset": [0], "size": [8]})
    pq.write_table(table, refs / "v" / "refs.0.parq")
    return refs


def test_a_lazy_manifest_is_refused_when_it_becomes_columns(tmp_path: Path) -> None:
    """As long as its references stay where they are, it is opened, and read in parts."""
    opened = virtualds.open_virtual_dataset(lazy_set(tmp_path))
    assert np.isnan(opened["v"][1:3].to_numpy()).all()
    assert opened["v"][0] == 7
    assert opened.virtual.nchunks == 10**9
    assert "10" in repr(opened) + repr(opened["v"].variable._data) + opened._repr_html_()

    def refused() -> None:
        with pytest.raises(UnsupportedError, match="references"):
            opened["v"].variable._data.fragments[0].manifest.loaded()

    assert peak(refused) < 2**29


WORK: dict[str, Callable[[Any, Path, Path], Any]] = {
    "sources": lambda opened, path, target: opened.virtual.sources,
    "other paths": lambda opened, path, target: opened.virtual.rename_paths({"/a": "/b"}),
    "kerchunk JSON": lambda opened, path, target: opened.virtual.to_manifest(f"{target}.json"),
    "Parquet": lambda opened, path, target: opened.virtual.to_manifest(f"{target}.parquet"),
    "zarr-v3": lambda opened, path, target: opened.virtual.to_manifest(f"{target}.zarr"),
    "converting": lambda opened, path, target: virtualds.convert(path, f"{target}.zarr"),
    "a copy": lambda opened, path, target: opened.virtual.materialize(f"{target}.zarr"),
}


@pytest.mark.parametrize("work", WORK)
def test_an_almost_empty_set_is_not_read_as_a_whole(work: str, tmp_path: Path) -> None:
    path = lazy_set(tmp_path)
    opened = virtualds.open_virtual_dataset(path)
    there = set(tmp_path.iterdir())

    def refused() -> None:
        with pytest.raises(UnsupportedError, match="first chunks of a grid"):
            WORK[work](opened, path, tmp_path / "other")

    assert peak(refused) < 2**29
    assert set(tmp_path.iterdir()) == there


@pytest.mark.parametrize("target", ["refs2.json", "refs.parquet", "refs.zarr"])
def test_few_references_on_a_huge_grid_take_what_they_need(target: str, tmp_path: Path) -> None:
    for shape, keys in (([10**9], 0), ([10**8], 1), ([2**31], 1), ([10**9], 1)):
        path = kerchunk(tmp_path, shape=shape, chunks=[1], keys=keys)

        def work(path: Path = path) -> None:
            opened = virtualds.open_virtual_dataset(path)
            opened.virtual.to_manifest(tmp_path / target, mode="w")

        assert peak(work) < MOST
        found = virtualds.open_virtual_dataset(tmp_path / target)["v"]
        assert found.shape == tuple(shape)
        assert len(found.to_dataset().virtual.sources) == keys


def test_fragments_far_apart_on_one_grid_are_held_by_position(tmp_path: Path) -> None:
    def part(start: int) -> Fragment:
        manifest = ChunkManifest.build((1,), files=[SourceFile("file:///a.bin")], length=8, file=0)
        return Fragment((start,), (ChunkAxis.regular(1, 1),), manifest)

    pipeline = CodecPipeline(np.dtype("<f8"), (), np.float64(0).tobytes(), (0,))
    shape, ends = (2 * 10**8,), (part(0), part(2 * 10**8 - 1))
    array = ManifestArray(shape, np.dtype("<f8"), 0.0, (pipeline,), ends)
    dataset = xr.Dataset({"v": ("x", array)})

    assert peak(lambda: dataset.virtual.to_manifest(tmp_path / "refs.json")) < MOST
    found = virtualds.open_virtual_dataset(tmp_path / "refs.json")["v"]
    assert found.variable._data.manifest.find_existing().tolist() == [0, 2 * 10**8 - 1]


def test_a_tiff_of_many_tiles_that_describes_one_is_refused(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.ones((16, 16), "u1"), tile=(16, 16))
    with tifffile.TiffFile(path, mode="r+b") as file:
        for name in ("ImageWidth", "ImageLength"):
            file.pages.first.tags[name].overwrite(2**18, dtype=4)

    def refused() -> None:
        with pytest.raises(VirtualdsError, match="1 references"):
            virtualds.open_virtual_dataset(path)

    assert peak(refused) < MOST


@pytest.mark.full
def test_messages_of_grib_on_a_diagonal_are_refused(tmp_path: Path) -> None:
    """Each has a time, a step and a level that no other has."""
    eccodes = pytest.importorskip("eccodes")
    handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
    with (tmp_path / "a.grib").open("wb") as file:
        for number in range(220):
            day = np.datetime64("2001-01-01") + number
            eccodes.codes_set(handle, "dataDate", int(str(day).replace("-", "")))
            eccodes.codes_set(handle, "step", number)
            eccodes.codes_set(handle, "level", number + 1)
            file.write(eccodes.codes_get_message(handle))
    eccodes.codes_release(handle)

    def refused() -> None:
        with pytest.raises(VirtualdsError, match="220 references"):
            virtualds.open_virtual_dataset(tmp_path / "a.grib")

    assert peak(refused) < MOST


def test_a_coordinate_of_nothing_is_not_loaded(tmp_path: Path) -> None:
    path = kerchunk(tmp_path, "x", shape=[2**33], chunks=[2**33], keys=0)

    def refused() -> None:
        with pytest.raises(UnsupportedError, match="coordinate has"):
            virtualds.open_virtual_dataset(path)

    assert peak(refused) < MOST


def strings(folder: Path, kind: str, name: str) -> Path:
    """2**33 strings of varying length, none of them written."""
    if kind == "zarr":
        path = folder / "a.zarr"
        zarr.create_array(
            path, name=name, shape=(2**33,), chunks=(2**20,), dtype="string", dimension_names=["x"]
        )
        return path
    with h5py.File(folder / "a.h5", "w") as file:
        made = file.create_dataset(name, (2**33,), h5py.string_dtype(), chunks=(2**20,))
        made.make_scale("x") if name == "x" else made.attrs.update(long_name="names")
    return folder / "a.h5"


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("kind", ["hdf5", "zarr"])
def test_strings_that_nobody_wrote_are_not_read_on_opening(kind: str, tmp_path: Path) -> None:
    path = strings(tmp_path, kind, "v")

    def read() -> None:
        for found in (
            virtualds.open_virtual_dataset(path),
            xr.open_dataset(path, engine="virtual"),
        ):
            assert found["v"].shape == (2**33,)
            assert found["v"][[0, 5]].values.tolist() == ["", ""]
            assert found["v"][-1].item() == ""

    assert peak(read) < MOST
    index = strings(tmp_path, kind, "x")

    def refused() -> None:
        for read in (virtualds.open_virtual_dataset, partial(xr.open_dataset, engine="virtual")):
            with pytest.raises(UnsupportedError, match="variable 'x': this coordinate has 6871"):
                read(index)

    assert peak(refused) < MOST


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("kind", ["hdf5", "zarr"])
def test_strings_that_nobody_wrote_are_refused_before_they_are_loaded(
    kind: str, tmp_path: Path
) -> None:
    path = strings(tmp_path, kind, "v")
    joined: Any = {"combine": "nested", "concat_dim": "t", "cache": tmp_path / "cache"}
    opened = virtualds.open_virtual_dataset(path)

    def sync() -> None:
        virtualds.sync([path], tmp_path / "b.zarr", concat_dim="t", settle=0)

    works: dict[str, Callable[[], object]] = {
        "joined": lambda: virtualds.open_virtual_mfdataset([path], **joined),
        "loaded": lambda: virtualds.open_virtual_dataset(path, loadable_variables=["v"]),
        "zarr": lambda: virtualds.convert(path, tmp_path / "c.zarr"),
        "rewritten": lambda: virtualds.convert(
            path, tmp_path / "c.zarr", on_unsupported="rewrite", mode="w"
        ),
        "kerchunk": lambda: virtualds.convert(path, tmp_path / "c.json"),
        "compared": lambda: opened.equals(virtualds.open_virtual_dataset(path)),
        "reversed": lambda: opened["v"][::-1].values,
        "of the engine": lambda: xr.open_dataset(path, engine="virtual").load(),
    }
    if kind == "hdf5":
        # a set follows files; h5py reads a box
        works |= {"synced": sync, "ends": lambda: opened["v"][[0, -1]].values}
    for name, work in works.items():

        def refused(work: Callable[[], object] = work) -> None:
            said = r"(?s)v.*68,719,476,736 bytes|load_limit.*v: this would load"
            with pytest.raises(UnsupportedError, match=said) as caught:
                work()
            # loading them would take the same memory
            assert "virtual.load" not in str(caught.value)

        assert peak(refused) < MOST, name
    assert virtualds.open_virtual_mfdataset([path]).sizes == opened.sizes


@pytest.mark.parametrize("on_error", ["raise", "keep"])
def test_a_coordinate_of_nothing_gets_no_index(on_error: str, tmp_path: Path) -> None:
    path = kerchunk(tmp_path, "x", shape=[2**33], chunks=[2**33], keys=1)

    def refused() -> None:
        with (
            warnings.catch_warnings(action="ignore"),
            pytest.raises(UnsupportedError, match="of which 8 are in files"),
        ):
            xr.open_dataset(path, engine="virtual", on_error=on_error)

    assert peak(refused) < MOST


def test_a_large_coordinate_that_lies_in_a_file_gets_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ALWAYS_ALLOWED", 100)
    xr.Dataset(coords={"x": np.arange(1000.0)}).to_netcdf(tmp_path / "a.nc")
    with virtualds.set_options(load_limit=100):
        opened = xr.open_dataset(tmp_path / "a.nc", engine="virtual")
    assert opened.indexes["x"].tolist() == list(range(1000))


def test_chunks_longer_than_any_axis_are_refused(tmp_path: Path) -> None:
    for chunk in (2**63, 10**30):
        path = kerchunk(tmp_path, shape=[7], chunks=[chunk])
        with pytest.raises(FormatError, match="is too long"):
            virtualds.open_virtual_dataset(path)


def test_places_of_more_points_than_may_be_loaded_are_refused(tmp_path: Path) -> None:
    eccodes = pytest.importorskip("eccodes")
    handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
    message = bytearray(eccodes.codes_get_message(handle))
    eccodes.codes_release(handle)
    # the grid definition follows the identification (section 3 after section 1)
    grid = 16 + int.from_bytes(message[16:20], "big")
    assert message[grid + 4] == 3
    message[grid + 6 : grid + 10] = (2**31 - 16).to_bytes(4, "big")
    message[grid + 30 : grid + 34] = (2**15).to_bytes(4, "big")
    message[grid + 34 : grid + 38] = (2**16 - 1).to_bytes(4, "big")
    (tmp_path / "a.grib").write_bytes(message)

    def refused() -> None:
        with pytest.raises(VirtualdsError):
            virtualds.open_virtual_dataset(tmp_path / "a.grib")

    assert peak(refused) < MOST


def test_a_message_longer_than_its_file_takes_no_memory(tmp_path: Path) -> None:
    start = b"GRIB" + bytes([0, 0, 0, 2]) + (2**40).to_bytes(8, "big")
    (tmp_path / "a.grib").write_bytes(start + (2**31).to_bytes(4, "big") + b"\1" + bytes(99))

    def refused() -> None:
        with pytest.raises(FormatError, match="the file ends at"):
            virtualds.open_virtual_dataset(tmp_path / "a.grib")

    assert peak(refused) < MOST


@pytest.mark.parametrize("dtype", ["|S2147483647", "|V2000000000", "<U500000000"])
def test_a_huge_element_is_refused(dtype: str, tmp_path: Path) -> None:
    path = kerchunk(tmp_path, shape=[4], chunks=[1], dtype=dtype, fill_value=None)

    def refused() -> None:
        with pytest.raises(VirtualdsError, match="elements of"):
            virtualds.open_virtual_dataset(path)

    assert peak(refused) < MOST


def test_a_part_of_a_huge_chunk_is_refused(tmp_path: Path) -> None:
    huge = {"shape": [10**11 // 8], "chunks": [10**11 // 8]}
    path = kerchunk(tmp_path, **huge, compressor={"id": "zlib"})
    opened = virtualds.open_virtual_dataset(path)

    def refused() -> None:
        with pytest.raises(UnsupportedError, match="100000000000 bytes once decoded"):
            opened["v"][:3].to_numpy()

    assert peak(refused) < MOST


def test_all_of_a_large_chunk_is_read_where_a_part_of_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ALWAYS_ALLOWED", 8)
    values = np.arange(100.0)
    path = kerchunk(tmp_path, shape=[200], chunks=[100], compressor={"id": "zlib"}, keys=0)
    data = zlib.compress(values.tobytes())
    (tmp_path / "a.bin").write_bytes(data)
    document = json.loads(path.read_text())
    document["refs"]["v/0"] = ["a.bin", 0, len(data)]
    path.write_text(json.dumps(document))
    opened = virtualds.open_virtual_dataset(path)
    with virtualds.set_options(load_limit=40):
        with pytest.raises(UnsupportedError, match="800 bytes once decoded, of which 40 are"):
            # of one small chunk nobody would ask
            opened["v"][98:103].to_numpy()
        np.testing.assert_array_equal(opened.virtual.load()["v"][1:100], values[1:])


def test_a_part_of_a_huge_chunk_without_codecs_is_read(tmp_path: Path) -> None:
    size = 2**33
    path = kerchunk(tmp_path, shape=[size // 8], chunks=[size // 8], keys=0)
    with (tmp_path / "a.bin").open("r+b") as file:
        file.truncate(size)
    document = json.loads(path.read_text())
    document["refs"]["v/0"] = ["a.bin", 0, size]
    path.write_text(json.dumps(document))
    opened = virtualds.open_virtual_dataset(path)
    assert peak(lambda: opened["v"][:3].to_numpy()) < MOST
    with virtualds.set_options(load_limit=8):
        # the fill value is 0, as all of the file
        assert np.isnan(opened["v"][:1].to_numpy()).all()


def test_a_chunk_without_codecs_that_is_too_short_is_corrupt(tmp_path: Path) -> None:
    path = kerchunk(tmp_path, shape=[10**11 // 8], chunks=[10**11 // 8])
    opened = virtualds.open_virtual_dataset(path)

    def refused() -> None:
        with pytest.raises(ReadError):
            opened["v"][:3].to_numpy()

    assert peak(refused) < MOST


def many_axes(folder: Path, kind: str, count: int) -> Path:
    """An array of one element."""
    if kind == "kerchunk":
        return kerchunk(folder, keys=0, shape=[1] * count, chunks=[1] * count)
    if kind == "numpy":
        # numpy itself has at most 64 axes
        head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {(1,) * count}}}"
        text = head.ljust(-(-(len(head) + 11) // 64) * 64 - 11) + "\n"
        size = len(text).to_bytes(2, "little")
        (folder / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + size + text.encode() + bytes(8))
        return folder / "a.npy"
    if kind == "safetensors":
        text = json.dumps({"a": {"dtype": "F64", "shape": [1] * count, "data_offsets": [0, 8]}})
        (folder / "a.safetensors").write_bytes(
            struct.pack("<Q", len(text)) + text.encode() + bytes(8)
        )
        return folder / "a.safetensors"
    if kind.startswith("netcdf3"):
        return classic(folder, count, int(kind == "netcdf3"))
    axes = {f"NAXIS{n}": 1 for n in range(1, count + 1)}
    return fits(folder, {"SIMPLE": "T", "BITPIX": -64, "NAXIS": count, **axes})


def classic(folder: Path, count: int, first: int) -> Path:
    """A variable of one double in netCDF3; its first dimension is that of records if it is 0."""
    lengths = [first] + [1] * (count - 1)
    dims = b"".join(struct.pack(">I4sI", 4, b"%04d" % n, size) for n, size in enumerate(lengths))
    head = b"CDF\1" + struct.pack(">III", 1, 10, count) + dims + bytes(8)
    head += struct.pack(">III4sI", 11, 1, 1, b"v", count)
    head += struct.pack(f">{count}I", *range(count)) + bytes(8)
    head += struct.pack(">III", 6, 8, len(head) + 12)
    (folder / "a.nc").write_bytes(head + bytes(8))
    return folder / "a.nc"


def fits(folder: Path, *headers: dict[str, Any]) -> Path:
    """Headers of FITS, with a block of data behind the last."""
    blocks = [
        "".join(f"{name:8}= {value!s:>20}".ljust(80) for name, value in header.items()) + "END"
        for header in headers
    ]
    padded = "".join(block.ljust(-(-len(block) // 2880) * 2880) for block in blocks)
    (folder / "a.fits").write_bytes(padded.encode() + bytes(2880))
    return folder / "a.fits"


@pytest.mark.filterwarnings("ignore:.*could not be read")
@looped(
    "kind",
    ["fits", "kerchunk", "numpy", "safetensors", "netcdf3", "netcdf3 records"],
)
@looped("count", [33, 64, 65, 300])
def test_more_axes_than_any_array_has_are_refused(kind: str, count: int, tmp_path: Path) -> None:
    """Such a file is not damaged, and its other variables can be read."""
    path = many_axes(tmp_path, kind, count)
    with pytest.raises(UnsupportedError, match=f"has {count} axes, where at most 32 are read"):
        virtualds.open_virtual_dataset(path)
    if kind != "numpy":
        assert not virtualds.open_virtual_dataset(path, on_error="skip").variables


def test_an_axis_longer_than_any_is_left_out_with_its_variable(tmp_path: Path) -> None:
    path = kerchunk(tmp_path, shape=[2**62], chunks=[2**62])
    with pytest.raises(VirtualdsError, match="too long"):
        virtualds.open_virtual_dataset(path)
    with pytest.warns(UserWarning, match="could not be read"):
        assert not virtualds.open_virtual_dataset(path, on_error="skip").variables


@pytest.mark.parametrize("rows", [10**18, 2**61, 2**63, 10**30])
def test_a_part_of_fits_that_no_file_holds_is_refused(rows: int, tmp_path: Path) -> None:
    shape = {"BITPIX": 8, "NAXIS": 2, "NAXIS1": 4, "NAXIS2": rows}
    column = {
        "PCOUNT": 0,
        "GCOUNT": 1,
        "TFIELDS": 1,
        "TTYPE1": "'a       '",
        "TFORM1": "'J       '",
    }
    primary = {"SIMPLE": "T", "BITPIX": 8, "NAXIS": 0}
    for headers in (
        [{"SIMPLE": "T", **shape}],
        [primary, {"XTENSION": "'IMAGE   '", **shape}],
        [primary, {"XTENSION": "'BINTABLE'", **shape, **column}],
    ):
        with pytest.raises(FormatError, match=r"a\.fits"):
            virtualds.open_virtual_datatree(fits(tmp_path, *headers))


LONG = 2**42
"""A length for which no machine has the memory."""


def long_file(path: Path, time: int, dims: str, lev: int = 0, names: str = "v") -> Path:
    """Variables along a dimension without coordinate of which nothing is written."""
    with h5py.File(path, "w") as file:
        for name, value in (("time", time), ("lev", lev)):
            file[name] = np.array([value], "f8")
            file[name].make_scale(name)
        file.create_dataset("x", (LONG,), "i1", chunks=(2**30,))
        file["x"].make_scale("This is a netCDF dimension but not a netCDF variable.         1")
        for name in names:
            shape = tuple(file[dim].size for dim in dims.split())
            chunks = tuple(min(n, 2**30) for n in shape)
            made = file.create_dataset(name, shape, "f4", chunks=chunks)
            for axis, dim in enumerate(dims.split()):
                made.dims[axis].attach_scale(file[dim])
    return path


def long_archives(folder: Path) -> dict[str, list[Path]]:
    """Files for which xarray would make something of the length of their dimension."""
    numbers = range(3)
    along = [long_file(folder / f"along{n}.h5", 0, "x") for n in numbers]
    lacks = [
        long_file(folder / f"lacks{n}.h5", n, "time x", names="v" if n == 1 else "vw")
        for n in numbers
    ]
    other = [long_file(folder / f"other{n}.h5", n, "time lev x", lev=n) for n in numbers]
    return {"x": along, "time": lacks, "other": other}


def test_combining_along_an_axis_that_nobody_wrote_is_refused_before_memory_is_taken(
    tmp_path: Path,
) -> None:
    archives = long_archives(tmp_path)
    mfdataset = virtualds.open_virtual_mfdataset
    works: dict[str, Callable[[], object]] = {
        "one file": lambda: mfdataset(archives["x"][:1], combine="nested", concat_dim="x"),
        "coordinates": lambda: mfdataset(archives["other"]),
        "tree": lambda: virtualds.open_virtual_mfdatatree(archives["x"], concat_dim="x"),
        "sync": lambda: virtualds.sync(
            archives["x"], tmp_path / "s.zarr", concat_dim="x", settle=0
        ),
        "dask": lambda: xr.open_dataset(
            archives["x"], engine="virtual", combine="nested", concat_dim="x"
        ),
    }
    for name, files in archives.items():
        dim = "x" if name == "x" else "time"
        works[name] = partial(mfdataset, files, combine="nested", concat_dim=dim)
    said = rf"\w+\d.h5: dimension 'x' of {LONG:,} elements: .* bytes .*load_limit"
    for name, work in works.items():
        with pytest.raises(UnsupportedError) as caught:
            work()
        assert re.search(said, str(caught.value), re.DOTALL), name
    for name in ("x", "time"):
        found = virtualds.diagnose(archives[name][:2], concat_dim=name)
        [row] = [row for row in found.differences if row.verdict == "blocks"]
        assert "dimension 'x' of" in row.how and not row.remedy, name
    alike = mfdataset([long_file(tmp_path / f"{n}.h5", n, "time x") for n in range(3)])
    assert alike.sizes == {"time": 3, "x": LONG, "lev": 1}
    others = [long_file(tmp_path / f"w{n}.h5", n, "time x", names="w") for n in range(3)]
    merged = mfdataset([*(tmp_path / f"{n}.h5" for n in range(3)), *others])
    assert merged["w"].sizes == merged["v"].sizes == {"time": 3, "x": LONG}


def test_changing_a_set_along_an_axis_that_nobody_wrote_is_refused_before_memory_is_taken(
    tmp_path: Path,
) -> None:
    opened = virtualds.open_virtual_dataset(long_file(tmp_path / "a.h5", 0, "x"))
    for suffix in ("zarr", "json", "parquet"):
        target = tmp_path / f"a.{suffix}"
        opened.virtual.to_manifest(target)
        changes: dict[str, Callable[[], object]] = {
            "append": lambda target=target: opened.virtual.to_manifest(target, append_dim="x"),
            "drop": lambda target=target: virtualds.drop_sources(
                target, [tmp_path / "a.h5"], dim="x"
            ),
        }
        for name, change in changes.items():
            with pytest.raises(UnsupportedError) as caught:
                change()
            assert f"set: dimension 'x' of {LONG:,} elements" in str(caught.value), (suffix, name)
