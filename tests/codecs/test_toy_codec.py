"""A codec is one class and one line: then every source has it, and every format holds it."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import h5py
import numcodecs
import numcodecs.abc
import numpy as np
import pytest
import tifffile
import xarray as xr
import zarr

import virtualds
from virtualds import UnsupportedError, codecs
from virtualds.codecs.codec import Codec
from virtualds.codecs.zlib import Zlib
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import FORMATS
from virtualds.streams import Buffer

NUMBER, COMPRESSION = 400, 40400
"""Numbers that HDF5 keeps for tests, and TIFF for private use."""
KEY, OTHER_KEY = 0b1011010, 0b10001
SUFFIXES = {
    form.name: form.suffixes[0]
    for form in FORMATS
    if form.library is None or find_spec(form.library)
}


def masked(data: Buffer, key: int) -> bytes:
    return (np.frombuffer(data, np.uint8) ^ np.uint8(key)).tobytes()


@dataclass(frozen=True)
class Toy(Codec):
    """Bytes of which the bits of a key are flipped."""

    key: int

    zarr_v2_id = "toy"
    hdf5_filter = NUMBER
    tiff_compressions = (COMPRESSION,)
    added_bytes = 0

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(values[0])

    @classmethod
    def from_tiff(cls, page: Any) -> Self:
        return cls(page.imagewidth)

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        return masked(data, self.key)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does what a line in `virtualds.codecs.CODECS` does."""
    monkeypatch.setattr(codecs, "CODECS", (*codecs.CODECS, Toy))


# ---------------------------------------------------------------------- the same for other readers


class ToyOfNumcodecs(numcodecs.abc.Codec):  # type: ignore[misc]
    codec_id = "toy"

    def __init__(self, key: int) -> None:
        self.key = key

    def encode(self, buf: Any) -> bytes:
        return masked(np.ascontiguousarray(buf).reshape(-1).view(np.uint8).data, self.key)

    def decode(self, buf: Any, out: Any = None) -> Any:
        return numcodecs.compat.ndarray_copy(self.encode(buf), out)


@pytest.fixture(autouse=True)
def known_to_numcodecs() -> Iterator[None]:
    numcodecs.register_codec(ToyOfNumcodecs)
    yield
    del numcodecs.registry.codec_registry["toy"]


FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_void_p),
)
"""``H5Z_func_t`` of ``H5Zpublic.h``."""


class FilterClass(ctypes.Structure):
    """``H5Z_class2_t`` of ``H5Zpublic.h``."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("id", ctypes.c_int),
        ("encoder_present", ctypes.c_uint),
        ("decoder_present", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("can_apply", ctypes.c_void_p),
        ("set_local", ctypes.c_void_p),
        ("filter", FUNCTION),
    )


@FUNCTION
def _flip(flags: int, count: int, told: Any, nbytes: int, size: Any, data: Any) -> int:
    room = (ctypes.c_ubyte * nbytes).from_address(data[0])
    np.frombuffer(room, np.uint8)[:] ^= np.uint8(told[0])
    return nbytes


FILTER = FilterClass(1, NUMBER, 1, 1, b"toy", None, None, _flip)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A netCDF file whose chunks HDF5 itself has sent through the toy filter."""
    h5py.h5z.register_filter(ctypes.addressof(FILTER))
    path = tmp_path_factory.mktemp("toy") / "a.nc"
    write(path, KEY)
    return path


def write(path: Path, key: int) -> None:
    values = np.arange(42, dtype="<i4").reshape(7, 6)
    ds = xr.Dataset({"t": (("y", "x"), values, {"units": "K"})}, {"y": np.arange(7.0)})
    how = {"compression": NUMBER, "compression_opts": (key,), "chunksizes": (2, 4)}
    ds.to_netcdf(path, engine="h5netcdf", encoding={"t": how})


def codecs_of(ds: xr.Dataset, name: str = "t") -> tuple[Codec, ...]:
    array = get_virtual_array(ds[name].variable)
    assert array is not None
    (pipeline,) = array.pipelines
    return pipeline.codecs


# ---------------------------------------------------------------------- every way in, every way out


@pytest.mark.usefixtures("toy")
def test_a_scan_finds_the_codec_by_the_number_of_its_hdf5_filter(source: Path) -> None:
    with h5py.File(source) as file:
        raw = file["t"].id.read_direct_chunk((0, 0))[1]
        assert masked(raw, KEY)[:8] == np.array([0, 1], "<i4").tobytes()
    ds = virtualds.open_virtual_dataset(source)
    assert codecs_of(ds) == (Toy(KEY),)
    with xr.open_dataset(source, engine="h5netcdf") as native:
        xr.testing.assert_identical(ds.load(), native.load())


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("name", SUFFIXES)
def test_every_format_holds_the_codec(name: str, source: Path, tmp_path: Path) -> None:
    written = tmp_path / f"set{SUFFIXES[name]}"
    virtualds.open_virtual_dataset(source).virtual.to_manifest(written, format=name)
    again = virtualds.open_virtual_dataset(written)
    assert codecs_of(again) == (Toy(KEY),)
    found = again.virtual.verify(None, against="native")
    assert found.ok
    # by h5py, which has the filter from HDF5
    assert sum(found.compared.values()) == found.sampled > 7
    with xr.open_dataset(source, engine="h5netcdf") as native:
        xr.testing.assert_identical(again.load(), native.load())


@pytest.mark.usefixtures("toy")
def test_the_names_of_a_codec_are_those_of_its_class(source: Path, tmp_path: Path) -> None:
    ds = virtualds.open_virtual_dataset(source)
    ds.virtual.to_manifest(tmp_path / "set.json")
    refs = json.loads((tmp_path / "set.json").read_text())["refs"]
    assert json.loads(refs["t/.zarray"])["compressor"] == {"id": "toy", "key": KEY}
    ds.virtual.to_manifest(tmp_path / "set.zarr")
    metadata = json.loads((tmp_path / "set.zarr/t/zarr.json").read_text())
    assert metadata["codecs"][-1] == {"name": "numcodecs.toy", "configuration": {"key": KEY}}


@pytest.mark.usefixtures("toy")
def test_a_copy_of_the_chunks_decodes_too(source: Path, tmp_path: Path) -> None:
    ds = virtualds.open_virtual_dataset(source)
    copy = ds.virtual.materialize(tmp_path / "copy.zarr")
    assert codecs_of(copy) == (Toy(KEY),)
    xr.testing.assert_identical(copy.load(), ds.load())


@pytest.mark.usefixtures("toy")
def test_zarr_v2_stores_name_a_codec_by_its_id(tmp_path: Path) -> None:
    ds = xr.Dataset({"t": (("y", "x"), np.arange(42.0).reshape(7, 6))})
    how = {"compressors": (ToyOfNumcodecs(KEY),), "chunks": (2, 4)}
    ds.to_zarr(tmp_path / "a.zarr", zarr_format=2, encoding={"t": how}, consolidated=False)
    found = virtualds.open_virtual_dataset(tmp_path / "a.zarr")
    assert codecs_of(found) == (Toy(KEY),)
    native = xr.open_zarr(tmp_path / "a.zarr", consolidated=False, chunks=None)
    np.testing.assert_array_equal(native["t"], ds["t"])
    xr.testing.assert_identical(found.load(), native.load())


@pytest.mark.usefixtures("toy")
def test_zarr_v3_stores_name_a_codec_with_the_prefix_numcodecs(tmp_path: Path) -> None:
    values = np.arange(42, dtype="<i4").reshape(7, 6)
    array = zarr.create_array(
        tmp_path / "a.zarr/t", shape=values.shape, dtype="i4", chunks=values.shape,
        compressors=None, dimension_names=("y", "x"),
    )  # fmt: skip
    array[:] = values
    zarr.create_group(tmp_path / "a.zarr")
    # zarr-python has no such codec, so that its chunk is encoded here
    metadata, chunk = tmp_path / "a.zarr/t/zarr.json", tmp_path / "a.zarr/t/c/0/0"
    document = json.loads(metadata.read_text())
    document["codecs"].append({"name": "numcodecs.toy", "configuration": {"key": KEY}})
    metadata.write_text(json.dumps(document))
    chunk.write_bytes(masked(chunk.read_bytes(), KEY))
    found = virtualds.open_virtual_dataset(tmp_path / "a.zarr")
    assert codecs_of(found) == (Toy(KEY),)
    np.testing.assert_array_equal(found["t"], values)


@pytest.mark.usefixtures("toy")
def test_tiff_names_a_codec_by_the_number_of_its_compression(tmp_path: Path) -> None:
    path, values = tmp_path / "a.tif", np.arange(42, dtype="<u2").reshape(7, 6)
    tifffile.imwrite(path, values, rowsperstrip=7)
    with tifffile.TiffFile(path, mode="r+") as file:
        [page] = file.pages
        start, size = page.dataoffsets[0], page.databytecounts[0]
        page.tags["Compression"].overwrite(COMPRESSION)
    raw = bytearray(path.read_bytes())
    raw[start : start + size] = masked(raw[start : start + size], values.shape[1])
    path.write_bytes(raw)
    ds = virtualds.open_virtual_dataset(path)
    [name] = ds.data_vars
    assert codecs_of(ds, str(name)) == (Toy(values.shape[1]),)
    np.testing.assert_array_equal(ds[name], values)


# ---------------------------------------------------------------------- without the line


def test_without_the_line_no_codec_has_the_name(source: Path) -> None:
    beside = source.with_name("b.nc")
    write(beside, OTHER_KEY)
    # HDF5 knows the filter, so that h5py reads what no reference can say
    found = virtualds.open_virtual_dataset(beside)
    assert get_virtual_array(found["t"].variable) is None
    for kind, make in {
        "codec 'toy'": lambda: codecs.codec_from_zarr_v2({"id": "toy", "key": 1}),
        "codec 'numcodecs.toy'": lambda: codecs.codec_from_zarr_v3(
            "numcodecs.toy", {"key": 1}, np.dtype("i4")
        ),
        f"HDF5 filter {NUMBER}": lambda: codecs.codec_from_hdf5(NUMBER, (1,), 4),
        f"tiff {COMPRESSION}": lambda: codecs.codec_from_tiff(COMPRESSION, None),
    }.items():
        with pytest.raises(UnsupportedError, match=kind):
            make()


def test_two_codecs_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twin(Zlib):
        zarr_v2_id = "twin"

    monkeypatch.setattr(codecs, "CODECS", (Zlib, Twin))
    with pytest.raises(ValueError, match=r"hdf5 name 1: Twin has it, and so has Zlib"):
        codecs.list_codec_names("hdf5")
