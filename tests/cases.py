"""The datasets that the commuting square is tested with: one function writes one file.

A new case is one function. Its name is the name of the case; whatever `xr.open_dataset` makes of
its file is what virtualds has to make of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import netCDF4
import numcodecs
import numpy as np
import xarray as xr
import zarr
from scipy.io import netcdf_file

# netCDF4 has HDF5 load plugins of its own, some of which belong to another HDF5 than h5py's
hdf5plugin.register(force=True)

Writer = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """A kind of file, and how xarray itself opens it.

    Parameters
    ----------
    write : callable
        Makes the file with a native library.
    group : str, optional
        The group of the file that the case is about.
    engine : str
        xarray's engine for it; ``h5netcdf`` where the netCDF library refuses the file.
    options : dict
        Of `xr.open_dataset`, for that engine.
    source : str
        The parser that reads it.
    read : callable, optional
        What the file's own library makes of it, before CF conventions are decoded, where xarray has
        no engine for it.
    """

    write: Writer
    group: str | None = None
    engine: str = "netcdf4"
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = "hdf5"
    read: Callable[[Path], xr.Dataset] | None = None

    def native(self, path: Path, **options: Any) -> xr.Dataset:
        """What xarray itself makes of the file, in memory."""
        if self.read is not None:
            return xr.decode_cf(self.read(path), **options).load()
        options = {**self.options, "group": self.group, **options}
        with xr.open_dataset(path, engine=self.engine, **options) as dataset:  # type: ignore[arg-type]
            return dataset.load()


CASES: dict[str, Case] = {}


def case(**how: Any) -> Callable[[Writer], Writer]:
    def enter(write: Writer) -> Writer:
        CASES[write.__name__] = Case(write, **how)
        return write

    return enter


H5NETCDF: dict[str, Any] = {"engine": "h5netcdf", "options": {"phony_dims": "sort"}}


def numbers(*shape: int, dtype: Any = "f4", seed: int = 0) -> Any:
    """Reproducible values: floats of both signs, or integers over the whole range of a dtype."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        native = kind.newbyteorder("=")
        return rng.integers(limits.min, limits.max, shape, native, endpoint=True).astype(kind)
    return rng.normal(size=shape).astype(kind)


def netcdf(path: Path, **dims: int | None) -> netCDF4.Dataset:
    """A new netCDF4 file with dimensions; None is unlimited."""
    file = netCDF4.Dataset(path, "w")
    for name, size in dims.items():
        file.createDimension(name, size)
    return file


# ---------------------------------------------------------------------- layout


@case()
def contiguous(path: Path) -> None:
    with netcdf(path, y=5, x=7) as file:
        file.createVariable("v", "f4", ("y", "x"), contiguous=True)[:] = numbers(5, 7)
        file.createVariable("w", "f8", ("x",), contiguous=True)[:] = numbers(7, dtype="f8")


@case()
def chunked_and_filtered(path: Path) -> None:
    with netcdf(path, y=6, x=8) as file:
        for name, filters in {
            "plain": {},
            "deflated": {"zlib": True, "complevel": 1, "shuffle": False},
            "shuffled": {"zlib": True, "complevel": 4, "shuffle": True},
            "summed": {"fletcher32": True},
            "all_three": {"zlib": True, "shuffle": True, "fletcher32": True, "complevel": 9},
        }.items():
            v = file.createVariable(name, "f4", ("y", "x"), chunksizes=(3, 4), **filters)
            v[:] = numbers(6, 8)


@case()
def padded_chunks(path: Path) -> None:
    with netcdf(path, t=7, y=5, x=9) as file:
        v = file.createVariable("v", "i4", ("t", "y", "x"), chunksizes=(3, 2, 4), zlib=True)
        v[:] = numbers(7, 5, 9, dtype="i4")
        # netCDF refuses chunks longer than a fixed dimension; along an unlimited one it pads
        file.createVariable("w", "i2", ("x",), chunksizes=(5,))[:] = np.arange(9)


@case()
def unlimited(path: Path) -> None:
    with netcdf(path, time=None, x=4) as file:
        v = file.createVariable("v", "f4", ("time", "x"), chunksizes=(2, 4), zlib=True)
        v[:] = numbers(5, 4)
        file.createVariable("time", "f8", ("time",))[:] = np.arange(5.0)


@case()
def unlimited_chunk_longer_than_data(path: Path) -> None:
    with netcdf(path, time=None, x=3) as file:
        v = file.createVariable("v", "f4", ("time", "x"), chunksizes=(1024, 3), zlib=True)
        v[:] = numbers(30, 3)


@case()
def unlimited_of_different_lengths(path: Path) -> None:
    # the shorter variable reads as fill up to the length of the dimension
    with netcdf(path, time=None, x=3) as file:
        file.createVariable("long", "f4", ("time", "x"))[:6] = numbers(6, 3)
        file.createVariable("short", "f4", ("time", "x"), chunksizes=(2, 3))[:3] = numbers(3, 3)
        file.createVariable("filled", "i2", ("time",), fill_value=-7)[:2] = [1, 2]


@case()
def shorter_without_any_fill(path: Path) -> None:
    # the netCDF library reads its own default past the end
    with netcdf(path, time=None, x=2) as file:
        file.createVariable("full", "f4", ("time", "x"))[:3] = numbers(3, 2)
        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"):
            short = file.createVariable(f"{kind}_short", kind, ("time", "x"), fill_value=False)
            short[:1] = np.ones((1, 2))
            file.createVariable(f"{kind}_never", kind, ("time", "x"), fill_value=False)


@case()
def several_unlimited(path: Path) -> None:
    with netcdf(path, a=None, b=None) as file:
        file.createVariable("v", "f4", ("a", "b"), chunksizes=(2, 2))[:4, :3] = numbers(4, 3)


@case()
def unlimited_and_empty(path: Path) -> None:
    with netcdf(path, time=None, x=3) as file:
        file.createVariable("v", "f4", ("time", "x"))
        file.createVariable("w", "i4", ("x",))[:] = [1, 2, 3]


@case()
def zero_length(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["none"] = np.zeros((0, 3), "f4")
        file.create_dataset("chunked", (0, 3), "i2", chunks=(2, 3), maxshape=(None, 3))
        file["some"] = numbers(3)


@case()
def compact(path: Path) -> None:
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3, 4))
        dataset = h5py.h5d.create(file.id, b"v", h5py.h5t.NATIVE_FLOAT, space, plist)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, numbers(3, 4))


@case()
def user_block(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=1024) as file:
        file["contiguous"] = numbers(4, 5)
        file.create_dataset("chunked", data=numbers(4, 5), chunks=(2, 5), compression="gzip")


@case()
def filter_mask_per_chunk(path: Path) -> None:
    with h5py.File(path, "w") as file:
        v = file.create_dataset(
            "v", data=numbers(6, 4), chunks=(2, 4), compression="gzip", shuffle=True
        )
        raw = numbers(2, 4, seed=5)
        # both filters skipped for the chunk in the middle
        v.id.write_direct_chunk((2, 0), raw.tobytes(), filter_mask=0b11)


CHUNK_INDICES: dict[str, dict[str, Any]] = {
    "b_tree_v1": {"libver": "earliest", "shape": (5, 6), "chunks": (2, 4)},
    "single_chunk": {"libver": "latest", "shape": (5, 6), "chunks": (5, 6)},
    "single_chunk_filtered": {"libver": "latest", "shape": (5, 6), "chunks": (5, 6), "gzip": True},
    "implicit": {"libver": "latest", "shape": (5, 6), "chunks": (2, 4), "early": True},
    "fixed_array": {"libver": "latest", "shape": (5, 6), "chunks": (2, 4)},
    "fixed_array_filtered": {"libver": "latest", "shape": (5, 6), "chunks": (2, 4), "gzip": True},
    "extensible_array": {"libver": "latest", "shape": (5, 6), "chunks": (2, 4), "grows": (0,)},
    "extensible_array_of_1_10": {
        "libver": "v110", "shape": (5, 6), "chunks": (2, 4), "grows": (0,), "gzip": True,
    },
    "second_axis_unlimited": {
        "libver": "latest", "shape": (5, 6), "chunks": (2, 4), "grows": (1,),
    },
    "second_axis_unlimited_filtered": {
        "libver": "v110", "shape": (5, 6), "chunks": (2, 4), "grows": (1,), "gzip": True,
    },
    "second_axis_unlimited_sparse": {
        "libver": "latest", "shape": (50, 60), "chunks": (2, 4), "grows": (1,), "part": (20, 31),
    },
    "middle_axis_unlimited": {
        "libver": "latest", "shape": (5, 7, 6), "chunks": (2, 2, 4), "grows": (1,),
    },
    "last_axis_unlimited": {
        "libver": "v110", "shape": (5, 7, 6), "chunks": (2, 2, 4), "grows": (2,), "gzip": True,
    },
    "last_axis_unlimited_in_a_b_tree": {
        "libver": "earliest", "shape": (5, 7, 6), "chunks": (2, 2, 4), "grows": (2,),
    },
    "b_tree_v1_of_levels": {"libver": "earliest", "shape": (40, 60), "chunks": (1, 2)},
    "b_tree_v2": {"libver": "latest", "shape": (5, 6), "chunks": (2, 4), "grows": (0, 1)},
    "b_tree_v2_filtered": {
        "libver": "latest", "shape": (5, 6), "chunks": (2, 4), "grows": (0, 1), "gzip": True,
    },
    "first_and_last_axis_unlimited": {
        "libver": "latest", "shape": (5, 7, 6), "chunks": (2, 2, 4), "grows": (0, 2),
    },
}  # fmt: skip


def _write_chunk_index(
    path: Path,
    libver: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    gzip: bool = False,
    early: bool = False,
    grows: tuple[int, ...] = (),
    part: tuple[int, ...] = (),
) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk(chunks)
    if early:
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    if gzip:
        plist.set_deflate(4)
    most = tuple(h5py.h5s.UNLIMITED if i in grows else n for i, n in enumerate(shape))
    with h5py.File(path, "w", libver=libver) as file:
        space = h5py.h5s.create_simple(shape, most)
        dataset = h5py.h5d.create(file.id, b"v", h5py.h5t.NATIVE_INT32, space, plist)
        written = tuple(slice(n, n + 9) for n in part)
        h5py.Dataset(dataset)[written or ...] = numbers(*shape, dtype="i4")[written or ...]


def _chunk_index_case(how: dict[str, Any]) -> Case:
    return Case(lambda path: _write_chunk_index(path, **how))


CASES |= {f"chunk_index_{name}": _chunk_index_case(how) for name, how in CHUNK_INDICES.items()}

# ---------------------------------------------------------------------- chunks that are not there


@case()
def never_written(path: Path) -> None:
    with netcdf(path, y=4, x=5) as file:
        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"):
            file.createVariable(f"default_{kind}", kind, ("y", "x"))
        file.createVariable("explicit_f4", "f4", ("y", "x"), fill_value=-999.0)
        file.createVariable("explicit_i2", "i2", ("y", "x"), fill_value=-7, chunksizes=(2, 2))
        file.createVariable("nan_f8", "f8", ("y", "x"), fill_value=np.nan, chunksizes=(2, 2))


@case()
def partly_written(path: Path) -> None:
    with netcdf(path, y=6, x=6) as file:
        for name, how in {
            "default": {},
            "explicit": {"fill_value": -32768},
            "deflated": {"fill_value": -1, "zlib": True},
        }.items():
            v = file.createVariable(name, "i2", ("y", "x"), chunksizes=(2, 3), **how)
            v.set_auto_mask(False)
            v[2:4, :3] = numbers(2, 3, dtype="i2")


@case()
def missing_chunks_whose_fill_is_no_attribute(path: Path) -> None:
    with h5py.File(path, "w") as file:
        v = file.create_dataset("v", (6, 4), "i4", chunks=(2, 4), fillvalue=42)
        v[2:4] = 7
        w = file.create_dataset("w", (6, 4), "f4", chunks=(2, 4), fillvalue=1.5)
        w.attrs["_FillValue"] = np.float32(-1)
        w[:2] = 3
        file.create_dataset("scalar", (), "f8", fillvalue=2.5)


@case()
def missing_chunks_and_fill_attribute_of_another_type(path: Path) -> None:
    with h5py.File(path, "w") as file:
        v = file.create_dataset("v", (6, 4), "i2", chunks=(2, 4), fillvalue=-9)
        v.attrs["missing_value"] = np.float64(-9)
        v[2:4] = 7
        w = file.create_dataset("w", (6, 4), "f4", chunks=(2, 4), fillvalue=-9)
        w.attrs["missing_value"] = np.float32(-9)
        w.attrs["_FillValue"] = np.float64(-9)
        w[2:4] = 7


# ---------------------------------------------------------------------- types and packing


@case()
def every_integer(path: Path) -> None:
    with netcdf(path, x=9) as file:
        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
            v = file.createVariable(kind, kind, ("x",), chunksizes=(4,), zlib=True)
            v.set_auto_mask(False)
            v[:] = numbers(9, dtype=kind)


@case(**H5NETCDF)
def every_float(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for kind in ("f2", "f4", "f8"):
            values = numbers(9, dtype=kind)
            values[:3] = [np.nan, np.inf, -np.inf]
            file.create_dataset(kind, data=values, chunks=(4,), compression="gzip", shuffle=True)


@case()
def big_endian(path: Path) -> None:
    with netcdf(path, x=9) as file:
        for kind in ("i2", "u4", "i8", "f4", "f8"):
            v = file.createVariable(
                kind, f">{kind}", ("x",), endian="big", chunksizes=(4,), zlib=True
            )
            v[:] = numbers(9, dtype=kind)
        file.createVariable("whole", ">f4", ("x",), endian="big")[:] = numbers(9)
        packed = file.createVariable("packed", ">i2", ("x",), endian="big", fill_value=-9)
        packed.set_auto_maskandscale(False)
        packed.scale_factor, packed.add_offset = np.float32(0.1), np.float32(3)
        packed[:] = [-9, 1, 2, 3, 4, 5, 6, 7, -9]


PACKINGS: dict[str, dict[str, Any]] = {
    "f4": {"scale_factor": np.float32(0.01), "add_offset": np.float32(273.15)},
    "f8": {"scale_factor": np.float64(0.01), "add_offset": np.float64(273.15)},
    "scale_only": {"scale_factor": np.float32(0.5)},
    "offset_only": {"add_offset": np.float64(100)},
    "integer_offset": {"add_offset": np.int32(100)},
    "missing_value": {"scale_factor": np.float64(0.1), "missing_value": np.int16(-2)},
    "several_missing": {"scale_factor": np.float32(0.1), "missing_value": np.array([-2, 3], "i2")},
    "unsigned": {"_Unsigned": "true", "scale_factor": np.float32(0.1)},
    "unsigned_offset": {"_Unsigned": "true", "add_offset": np.float64(1000.5)},
    "one_element_array": {"scale_factor": np.array([0.1], "f4"), "add_offset": np.array([1], "f4")},
}


@case()
def packed_int16(path: Path) -> None:
    with netcdf(path, t=6, x=4) as file:
        for name, attributes in PACKINGS.items():
            for fill in (None, -1):
                how = {} if fill is None else {"fill_value": fill}
                suffix = "" if fill is None else "_filled"
                v = file.createVariable(
                    name + suffix, "i2", ("t", "x"), chunksizes=(2, 4), zlib=True, **how
                )
                v.set_auto_maskandscale(False)
                v.setncatts(attributes)
                v[:] = np.arange(-4, 20).reshape(6, 4)


@case()
def packed_bytes(path: Path) -> None:
    with netcdf(path, x=6) as file:
        for name, kind, attributes in (
            ("unsigned_byte", "i1", {"_Unsigned": "true"}),
            ("unsigned_byte_filled", "i1", {"_Unsigned": "true", "_FillValue": np.int8(-1)}),
            ("signed_byte", "u1", {"_Unsigned": "false"}),
            ("scaled_byte", "u1", {"scale_factor": np.float32(2)}),
            ("flags", "i1", {"flag_values": np.array([0, 1, 2], "i1"), "flag_meanings": "a b c"}),
        ):
            attributes = dict(attributes)
            fill = attributes.pop("_FillValue", None)
            v = file.createVariable(name, kind, ("x",), fill_value=fill)
            v.set_auto_maskandscale(False)
            v.setncatts(attributes)
            v[:] = np.array([0, 1, 2, 127, 128, 255], "u1").astype(kind)


@case()
def packed_int32_and_floats(path: Path) -> None:
    with netcdf(path, x=5) as file:
        for name, kind, attributes in (
            ("int32", "i4", {"scale_factor": np.float32(0.1)}),
            ("int64", "i8", {"scale_factor": np.float64(0.1)}),
            ("float32", "f4", {"scale_factor": np.float32(0.1), "add_offset": np.float32(1)}),
            ("float32_by_double", "f4", {"scale_factor": np.float64(0.1)}),
            ("float64", "f8", {"scale_factor": np.float64(0.1), "missing_value": 3.0}),
        ):
            v = file.createVariable(name, kind, ("x",))
            v.set_auto_maskandscale(False)
            v.setncatts(attributes)
            v[:] = np.arange(5)


@case()
def nan_as_fill(path: Path) -> None:
    with netcdf(path, x=6) as file:
        v = file.createVariable("v", "f4", ("x",), fill_value=np.nan, chunksizes=(4,))
        v[:] = [1, np.nan, 3, 4, 5, np.nan]
        w = file.createVariable("w", "f8", ("x",), fill_value=1e20)
        w.missing_value = np.nan
        w[:] = np.array([1, 1e20, 3, 4, np.nan, 6])


@case()
def least_significant_digit(path: Path) -> None:
    with netcdf(path, x=6) as file:
        v = file.createVariable("v", "f4", ("x",), zlib=True, least_significant_digit=2)
        v[:] = numbers(6)


@case()
def scalars(path: Path) -> None:
    with netcdf(path) as file:
        file.createVariable("f", "f8")[...] = 1.5
        file.createVariable("i", "i4")[...] = -3
        file.createVariable("unwritten", "f4", fill_value=-1)
        file.createVariable("s", str)[...] = "text"
        file.createVariable("crs", "i4").grid_mapping_name = "latitude_longitude"


@case()
def enums(path: Path) -> None:
    with netcdf(path, x=5) as file:
        cloud = file.createEnumType(np.uint8, "cloud_t", {"clear": 0, "cumulus": 2, "missing": 255})
        v = file.createVariable("v", cloud, ("x",), fill_value=255)
        v[:4] = [0, 2, 0, 2]


@case()
def booleans(path: Path) -> None:
    xr.Dataset(
        {"v": (("y", "x"), numbers(3, 4) > 0), "s": ((), True)},
    ).to_netcdf(path, engine="netcdf4")


@case()
def booleans_of_h5py(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["v"] = np.array([True, False, True])


@case(**H5NETCDF)
def complex_numbers(path: Path) -> None:
    with h5py.File(path, "w") as file:
        values = numbers(4, 3) + 1j * numbers(4, 3, seed=1)
        file["c8"] = values.astype("c8")
        file.create_dataset("c16", data=values.astype("c16"), chunks=(3, 3), compression="gzip")


# ---------------------------------------------------------------------- strings


@case()
def strings_of_varying_length(path: Path) -> None:
    with netcdf(path, x=3, y=2) as file:
        v = file.createVariable("v", str, ("x",))
        v[:] = np.array(["a", "", "Zürich 東京"], dtype=object)
        v.long_name = "names"
        w = file.createVariable("w", str, ("y", "x"))
        w[0] = np.array(["1", "22", "333"], dtype=object)


@case()
def character_arrays(path: Path) -> None:
    with netcdf(path, x=3, n=5) as file:
        file.createVariable("v", "S1", ("x", "n"))[:] = netCDF4.stringtochar(
            np.array(["abc", "", "abcde"], "S5")
        )
        named = file.createVariable("named", "S1", ("x", "n"))
        named._Encoding = "utf-8"
        named[:] = np.array(["äb", "c", ""], dtype="U5")
        file.createVariable("one", "S1", ("x",))[:] = np.array([b"a", b"b", b"c"])


@case()
def compound_types(path: Path) -> None:
    kind = np.dtype([("level", "i2"), ("value", "f8")])
    with netcdf(path, x=5) as file:
        named = file.createCompoundType(kind, "pair")
        file.createVariable("v", named, ("x",))[:] = np.array([(n, n / 3) for n in range(5)], kind)
    with h5py.File(path, "r+") as file:
        big = np.array([(n, -n) for n in range(6)], [("a", ">i4"), ("b", ">f4")])
        file.create_dataset("w", data=big, chunks=(4,), compression="gzip", shuffle=True)


@case()
def compound_types_of_big_endian(path: Path) -> None:
    with h5py.File(path, "w") as file:
        values = np.array([(n, -n) for n in range(6)], [("a", ">i4"), ("b", ">f4")])
        file.create_dataset("v", data=values, chunks=(4,), compression="gzip", shuffle=True)


@case(**H5NETCDF)
def compound_types_within_others(path: Path) -> None:
    kind = np.dtype([("a", "i4"), ("in", [("x", "f4"), ("y", "i2", (2,))]), ("s", "S3")])
    values = np.zeros(3, kind)
    values["in"]["y"] = np.arange(6).reshape(3, 2)
    values["s"] = b"abc"
    with h5py.File(path, "w") as file:
        file["v"] = values


@case(**H5NETCDF)
def opaque_types(path: Path) -> None:
    times = np.array(["2001-01-01", "NaT", "2003-03-03"], "M8[s]")
    with h5py.File(path, "w") as file:
        file["v"] = np.array([b"abc", b"d\0e", b"xyz"], "V3")
        file.create_dataset("t", data=times.astype(h5py.opaque_dtype(times.dtype)))


def low_level(file: h5py.File, name: str, kind: Any, values: Any, memory: Any = None) -> None:
    """A dataset of a type that numpy has no name for."""
    space = h5py.h5s.create_simple(np.shape(values))
    found = h5py.h5d.create(file.id, name.encode(), kind, space)
    found.write(h5py.h5s.ALL, h5py.h5s.ALL, values, memory or h5py.h5t.py_create(values.dtype))


@case(**H5NETCDF)
def bitfields(path: Path) -> None:
    values = np.array([[1, 2], [3, 65535]], "u2")
    with h5py.File(path, "w") as file:
        low_level(file, "v", h5py.h5t.STD_B16LE, values, h5py.h5t.NATIVE_B16)
        low_level(file, "w", h5py.h5t.STD_B16BE, values, h5py.h5t.NATIVE_B16)


@case()
def integers_of_odd_precision(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, base, precision, offset in (
            ("v", h5py.h5t.STD_I16LE, 12, 0),
            ("w", h5py.h5t.STD_I32BE, 20, 4),
            ("u", h5py.h5t.STD_U16LE, 10, 3),
        ):
            kind = base.copy()
            kind.set_precision(precision)
            kind.set_offset(offset)
            values = np.array([-1, 5, -500, 511] if name != "u" else [0, 5, 1023, 511])
            low_level(file, name, kind, values.astype(base.dtype.newbyteorder("=")))


@case(**H5NETCDF)
def padded_strings(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, padding in (("spaces", 2), ("terminated", 0)):
            kind = h5py.h5t.C_S1.copy()
            kind.set_size(6)
            kind.set_strpad(padding)
            text = np.array([b"ab    ", b"c\0rest"], "S6")
            low_level(file, name, kind, text, kind)
        kind = h5py.string_dtype("utf-8", 4)
        file.create_dataset("utf8", data=np.array([b"\xc3\xa9", b"b"], kind))


@case()
def links(path: Path) -> None:
    other = path.with_name("links_lead_here.h5")
    with h5py.File(other, "w") as file:
        file.create_dataset("deep/v", data=numbers(4, 6), chunks=(2, 3), compression="gzip")
        file["soft"] = h5py.SoftLink("/deep/v")
    with h5py.File(path, "w") as file:
        file["v"] = numbers(4, 6, seed=1)
        file["hard"] = file["v"]
        file["soft"] = h5py.SoftLink("/v")
        file["elsewhere"] = h5py.ExternalLink(other.name, "/deep/v")
        file["elsewhere_and_on"] = h5py.ExternalLink(other.name, "/soft")
        file["group/t"] = numbers(3)
        file["a_group"] = h5py.SoftLink("/group")


@case()
def external_files(path: Path) -> None:
    raw = [str(path.with_name(f"external_{n}.raw")) for n in range(3)]
    values = numbers(6, 4)
    for n, name in enumerate(raw):
        Path(name).write_bytes(b"head" + values[2 * n : 2 * n + 2].tobytes())
    with h5py.File(path, "w") as file:
        size = values.nbytes // 3
        in_rows = [(name, 4, size) for name in raw]
        file.create_dataset("in_rows", (6, 4), "f4", external=in_rows)
        file.create_dataset("one", (2, 4), "f4", external=[(raw[0], 4, h5py.h5f.UNLIMITED)])
        within = [(raw[0], 4, size - 4), (raw[1], 8, size)]
        file.create_dataset("within_rows", (3, 4), "f4", external=within)


def _mapped(path: Path) -> list[h5py.VirtualSource]:
    sources = []
    for n in range(3):
        part = path.with_name(f"{path.stem}_{n}.h5")
        with h5py.File(part, "w") as file:
            values = numbers(4, 6, seed=n, dtype="i2")
            options = {"chunks": (3, 4), "compression": "gzip"} if n else {}
            file.create_dataset("v", data=values, **options)
        sources.append(h5py.VirtualSource(part.name, "v", (4, 6), "i2"))
    return sources


@case()
def virtual_datasets(path: Path) -> None:
    sources = _mapped(path)
    with h5py.File(path, "w") as file:
        file["own"] = numbers(6, dtype="i2")
        layout = h5py.VirtualLayout((12, 6), "i2")
        for n, source in enumerate(sources):
            layout[4 * n : 4 * n + 4] = source
        file.create_virtual_dataset("end_to_end", layout)
        layout = h5py.VirtualLayout((3, 4, 6), "i2")
        for n, source in enumerate(sources):
            layout[n] = source
        file.create_virtual_dataset("side_by_side", layout)
        layout = h5py.VirtualLayout((9, 9), "i2")
        layout[1:4, 2:5] = sources[0][1:4, 3:6]
        layout[6:8, 0:6] = sources[1][2:4]
        layout[8, 0:6] = h5py.VirtualSource(".", "own", (6,), "i2")
        file.create_virtual_dataset("with_gaps", layout, fillvalue=-7)
        whole = h5py.VirtualLayout((2, 12, 6), "i2")
        for n in range(2):
            whole[n] = h5py.VirtualSource(".", "end_to_end", (12, 6), "i2")
        file.create_virtual_dataset("of_virtual_ones", whole)


@case()
def virtual_datasets_that_references_cannot_hold(path: Path) -> None:
    sources = _mapped(path)
    with h5py.File(path, "w") as file:
        strided = h5py.VirtualLayout((8, 6), "i2")
        strided[0:8:2], strided[1:8:2] = sources[0], sources[1]
        file.create_virtual_dataset("strided", strided)
        converted = h5py.VirtualLayout((4, 6), "f8")
        converted[:] = sources[2]
        file.create_virtual_dataset("converted", converted)
        folded = h5py.VirtualLayout((24,), "i2")
        folded[:] = sources[1]
        file.create_virtual_dataset("folded", folded)


@case(**H5NETCDF)
def strings_of_fixed_length(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["v"] = np.array([b"abc", b"", b"abcde"], "S5")
        file.create_dataset("w", data=np.array([b"ab"] * 5, "S2"), chunks=(2,), compression="gzip")


@case()
def string_coordinate(path: Path) -> None:
    with netcdf(path, station=3) as file:
        file.createVariable("station", str, ("station",))[:] = np.array(["a", "b", "c"], object)
        file.createVariable("t", "f4", ("station",))[:] = numbers(3)


# ---------------------------------------------------------------------- time


def _axis(path: Path, units: str, calendar: str | None, values: Any, kind: str = "f8") -> None:
    with netcdf(path, time=None) as file:
        v = file.createVariable("time", kind, ("time",))
        v.units = units
        if calendar:
            v.calendar = calendar
        v[:] = values
        file.createVariable("v", "f4", ("time",))[:] = numbers(len(values))


TIMES: dict[str, tuple[Any, ...]] = {
    "days": ("days since 2000-01-01", "standard", [0, 1, 59, 60], "i4"),
    "hours": ("hours since 1970-01-01 00:00:00", None, [0.0, 1.5, 24.25, 100]),
    "seconds": ("seconds since 2001-02-03T04:05:06", "proleptic_gregorian", [0, 1, 2, 3], "i8"),
    "milliseconds": ("milliseconds since 2001-01-01", "proleptic_gregorian", [0, 1, 2, 3], "i8"),
    "noleap": ("days since 2000-01-01", "noleap", [0, 58, 59, 60]),
    "360_day": ("days since 2000-01-01", "360_day", [0, 58, 59, 60]),
    "julian": ("days since 1500-01-01", "julian", [0, 58, 59, 60]),
    "long_ago": ("days since 0001-01-01", "proleptic_gregorian", [0, 100, 200, 300]),
}


def _time_case(row: tuple[Any, ...]) -> Case:
    return Case(lambda path: _axis(path, *row))


CASES |= {f"time_in_{name}": _time_case(row) for name, row in TIMES.items()}


@case()
def numbers_in_units_of_time(path: Path) -> None:
    with netcdf(path, x=4) as file:
        v = file.createVariable("lead", "i4", ("x",), fill_value=-9)
        v.units = "hours"
        v[:] = [0, 6, 12, -9]
        w = file.createVariable("x", "f8", ("x",))
        w.units = "days"
        w[:] = [0, 0.5, 1, 1.5]


@case()
def durations_finer_than_declared(path: Path) -> None:
    with netcdf(path, x=3) as file:
        for name, kind, unit, declared in (
            ("finer", "i4", "milliseconds", "s"),
            ("fine", "i8", "seconds", "ms"),
            ("parts", "f8", "milliseconds", "us"),
            ("nano", "f8", "nanoseconds", "us"),
        ):
            v = file.createVariable(name, kind, ("x",))
            v.setncatts({"units": unit, "dtype": f"timedelta64[{declared}]"})
            v[:] = np.array([0, 1, 2500], kind)


@case()
def booleans_of_which_some_are_missing(path: Path) -> None:
    with netcdf(path, x=4) as file:
        for name, fill in (("m", 255), ("n", 0)):
            v = file.createVariable(name, "u1", ("x",), fill_value=fill)
            v.set_auto_maskandscale(False)
            v.setncattr("dtype", "bool")
            v[:] = [0, 1, 255, 7]


@case()
def timedelta_of_xarray(path: Path) -> None:
    lead = np.array([1, 2, 3], "timedelta64[h]").astype("timedelta64[ns]")
    xr.Dataset({"lead": ("x", lead)}).to_netcdf(path, engine="netcdf4")


@case()
def large_time_variable(path: Path) -> None:
    with netcdf(path, y=60, x=60) as file:
        v = file.createVariable("observed", "i4", ("y", "x"), fill_value=-1, chunksizes=(25, 60))
        v.units = "minutes since 2000-01-01"
        v[:] = np.arange(3600).reshape(60, 60) - 1
        w = file.createVariable("at", "f8", ("y", "x"), chunksizes=(60, 25), zlib=True)
        w.units = "days since 1970-01-01"
        w[:] = np.arange(3600).reshape(60, 60) / 8


# ---------------------------------------------------------------------- CF


@case()
def cf_conventions(path: Path) -> None:
    with netcdf(path, time=None, lat=4, lon=6, bnds=2) as file:
        file.Conventions = "CF-1.12"
        time = file.createVariable("time", "f8", ("time",))
        time.units, time.calendar, time.bounds = "days since 2001-01-01", "standard", "time_bnds"
        time[:] = [0.5, 1.5, 2.5]
        bounds = file.createVariable("time_bnds", "f8", ("time", "bnds"))
        bounds[:] = [[0, 1], [1, 2], [2, 3]]
        for name, size in (("lat", 4), ("lon", 6)):
            v = file.createVariable(name, "f8", (name,))
            v.units = "degrees_north" if name == "lat" else "degrees_east"
            v.bounds = f"{name}_bnds"
            v[:] = np.arange(size) * 10.0
            edges = np.arange(size)[:, None] * 10.0 + [-5, 5]
            file.createVariable(f"{name}_bnds", "f8", (name, "bnds"))[:] = edges
        file.createVariable("crs", "i4").grid_mapping_name = "latitude_longitude"
        file.createVariable("cell_area", "f4", ("lat", "lon"))[:] = numbers(4, 6)
        t = file.createVariable("t", "f4", ("time", "lat", "lon"), zlib=True, chunksizes=(1, 4, 6))
        t.grid_mapping, t.cell_measures, t.cell_methods = "crs", "area: cell_area", "time: mean"
        t.units, t.standard_name = "K", "air_temperature"
        t[:] = numbers(3, 4, 6)


@case()
def two_dimensional_coordinates(path: Path) -> None:
    with netcdf(path, y=5, x=6) as file:
        for name in ("lat", "lon"):
            file.createVariable(name, "f8", ("y", "x"), chunksizes=(3, 6))[:] = numbers(5, 6)
        file.createVariable("height", "f4")[...] = 2.0
        t = file.createVariable("t", "f4", ("y", "x"))
        t.coordinates = "lat lon height"
        t[:] = numbers(5, 6)


@case()
def coordinate_named_like_no_scale_of_it(path: Path) -> None:
    # netCDF-C writes this with the prefix _nc4_non_coord_
    with netcdf(path, x=4, y=3) as file:
        file.createVariable("x", "f4", ("y",))[:] = numbers(3)
        file.createVariable("v", "f4", ("x", "y"))[:] = numbers(4, 3)


@case()
def two_dimensional_scale(path: Path) -> None:
    with netcdf(path, x=4, n=3) as file:
        file.createVariable("x", "i4", ("x", "n"))[:] = np.arange(12).reshape(4, 3)
        file.createVariable("v", "f4", ("n", "x"))[:] = numbers(3, 4)


# ---------------------------------------------------------------------- structure


def _write_groups(path: Path) -> None:
    with netcdf(path, x=4) as file:
        file.title = "root"
        file.createVariable("x", "f4", ("x",))[:] = np.arange(4)
        file.createVariable("v", "f4", ("x",))[:] = numbers(4)
        a = file.createGroup("a")
        a.createDimension("y", 3)
        a.title = "a"
        a.createVariable("v", "i4", ("y", "x"))[:] = np.arange(12).reshape(3, 4)
        b = a.createGroup("b")
        b.createDimension("x", 2)
        b.createVariable("w", "f8", ("y", "x"), zlib=True)[:] = numbers(3, 2, dtype="f8")
        file.createGroup("empty")


CASES |= {
    "groups_root": Case(_write_groups),
    "groups_child": Case(_write_groups, group="a"),
    "groups_grandchild": Case(_write_groups, group="/a/b/"),
    "groups_empty": Case(_write_groups, group="empty"),
}


@case()
def anonymous_dimensions(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["a"] = numbers(4, 5)
        file["b"] = numbers(5)
        file["c"] = numbers(3, 3)
        file["d"] = numbers(3, 4, 3)


@case()
def scales_of_h5py(path: Path) -> None:
    with h5py.File(path, "w", track_order=True) as file:
        file["v"] = numbers(3, 4)
        file["y"] = np.arange(3.0)
        file["y"].make_scale("the name that is not used")
        file["x"] = np.arange(4)
        file["x"].make_scale()
        file["v"].dims[0].attach_scale(file["y"])
        file["v"].dims[1].attach_scale(file["x"])
        file["v"].dims[1].label = "labels are not names"


@case()
def creation_order(path: Path) -> None:
    with netcdf(path, zz=2, aa=3) as file:
        file.createVariable("z", "f4", ("zz",))[:] = 1
        file.createVariable("aa", "f4", ("aa",))[:] = 1
        file.createVariable("b", "f4", ("zz", "aa"))[:] = 1
        file.createVariable("a", "f4", ("aa",))[:] = 1
        file["b"].setncatts({"z": 1, "a": 2, "m": 3})


@case()
def without_variables(path: Path) -> None:
    with netcdf(path, x=4) as file:
        file.title = "only a dimension"


@case()
def awkward_names(path: Path) -> None:
    with netcdf(path, **{"dim with space": 3, "größe": 2}) as file:
        for name in ("v.w", "a b", "größe", "x-1", "100%", "_ARRAY", "a:b#c"):
            dims = ("größe",) if name == "größe" else ("dim with space", "größe")
            shape = (2,) if name == "größe" else (3, 2)
            file.createVariable(name, "f4", dims)[:] = numbers(*shape)


# ---------------------------------------------------------------------- attributes


@case()
def attributes(path: Path) -> None:
    with netcdf(path, x=3) as file:
        v = file.createVariable("v", "f4", ("x",))
        v[:] = numbers(3)
        for owner in (file, v):
            owner.text = "hello"
            owner.unicode = "Zürich 東京 \u2603"
            owner.multiline = 'one\n"two"\t\\three'
            owner.empty = ""
            owner.blank = " "
            owner.setncattr_string("one_string", "text")
            owner.setncattr("strings", ["a", "", "ccc"])
            owner.numbers_i4 = np.arange(3, dtype="i4")
            owner.numbers_f4 = np.array([0.1, 0.2], "f4")
            owner.numbers_f8 = np.array([0.1, 0.2, np.pi])
            owner.not_finite = np.array([np.nan, np.inf, -np.inf, 1.0])
            owner.one_element = np.array([3], "i2")
            owner.python_int, owner.python_float = 3, 0.1
            owner.infinity = np.inf
            owner.minus_infinity = np.float32(-np.inf)
            owner.nan = np.float32(np.nan)
            for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"):
                top = np.finfo(kind).max if kind[0] == "f" else np.iinfo(kind).max
                owner.setncattr(f"scalar_{kind}", np.dtype(kind).type(top))
                owner.setncattr(f"array_{kind}", np.array([0, 1, top], kind))


@case()
def attributes_of_h5py(path: Path) -> None:
    with h5py.File(path, "w") as file:
        v = file.create_dataset("v", data=numbers(3))
        for owner in (file, v):
            owner.attrs["text"] = "hello"
            owner.attrs["bytes"] = np.bytes_(b"fixed")
            owner.attrs["fixed_array"] = np.array([b"a", b"bb"], "S2")
            owner.attrs["strings"] = np.array(["a", "bb"], dtype=h5py.string_dtype())
            owner.attrs["scalar"] = np.float32(0.1)
            owner.attrs["array"] = np.array([1.0, 2.0])
            owner.attrs["big_endian"] = np.array([1, 2], ">i4")


# ---------------------------------------------------------------------- of real life


@case()
def written_by_xarray(path: Path) -> None:
    time = np.arange("2000-01", "2001-01", dtype="datetime64[M]").astype("datetime64[ns]")
    dataset = xr.Dataset(
        {
            "t": (("time", "lat", "lon"), numbers(12, 3, 4, dtype="f8"), {"units": "K"}),
            "mask": (("lat", "lon"), numbers(3, 4) > 0),
            "name": ("lat", np.array(["south", "middle", "north"], object)),
        },
        coords={
            "time": time,
            "lat": [-45.0, 0.0, 45.0],
            "lon": [0, 90, 180, 270],
            "month": ("time", np.arange(12) % 12 + 1),
            "run": 7,
        },
        attrs={"title": "as xarray writes it"},
    )
    packing = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32768}
    storage = {"zlib": True, "chunksizes": (1, 3, 4)}
    dataset.to_netcdf(
        path, engine="netcdf4", encoding={"t": packing | storage}, unlimited_dims=["time"]
    )


@case()
def larger_than_small(path: Path) -> None:
    # more than the 16 KiB below which variables are loaded when a file is opened
    with netcdf(path, time=None, y=30, x=50) as file:
        time = file.createVariable("time", "i4", ("time",))
        time.units = "days since 2001-01-01"
        time[:] = np.arange(12)
        file.createVariable("y", "f8", ("y",))[:] = np.arange(30)
        file.createVariable("x", "f8", ("x",))[:] = np.arange(50)
        v = file.createVariable("v", "f4", ("time", "y", "x"), zlib=True, chunksizes=(5, 20, 20))
        v[:] = numbers(12, 30, 50)
        p = file.createVariable(
            "p", "i2", ("time", "y", "x"), zlib=True, chunksizes=(1, 30, 50), fill_value=-32768
        )
        p.scale_factor, p.add_offset = np.float32(0.01), np.float32(280)
        p[:] = np.ma.masked_less(280 + 20 * numbers(12, 30, 50, seed=1), 270)


# ---------------------------------------------------------------------- filters


def _filtered(path: Path, how: Mapping[str, Mapping[str, Any]]) -> None:
    """A file of smooth values behind one kind of filter per variable, padded at the edges."""
    with h5py.File(path, "w") as file:
        for name, options in how.items():
            dtype = name.partition("_")[0]
            smooth = np.cumsum(np.abs(numbers(7, 30, 41)), axis=0) * 10
            how = {"chunks": (3, 16, 20), **options}
            file.create_dataset(name, data=smooth.astype(dtype), **how)


@case(**H5NETCDF)
def scaleoffset(path: Path) -> None:
    _filtered(
        path,
        {
            "i2": {"scaleoffset": 0},
            "u1_bits": {"scaleoffset": 5},
            "i4_fill": {"scaleoffset": 0, "fillvalue": 11},
            "i8_whole": {"scaleoffset": 64},
            "f4": {"scaleoffset": 2},
            "f8_fill": {"scaleoffset": 0, "fillvalue": 11.0, "shuffle": True},
        },
    )


@case(**H5NETCDF)
def nbit(path: Path) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((1, 1, 1))
    plist.set_filter(h5py.h5z.FILTER_NBIT, h5py.h5z.FLAG_MANDATORY)
    _filtered(path, {"i2": {"dcpl": plist}, "f4": {"dcpl": plist}, "u1": {"dcpl": plist}})


@case(**H5NETCDF)
def filters_of_plugins(path: Path) -> None:
    _filtered(
        path,
        {
            "i4_lzf": {"compression": "lzf"},
            "f4_shuffled_lzf": {"compression": "lzf", "shuffle": True, "fletcher32": True},
            "f4_bzip2": hdf5plugin.BZip2(),
            "f4_lz4": hdf5plugin.LZ4(nbytes=1000),
            "i2_bitshuffle": hdf5plugin.Bitshuffle(cname="none"),
            "i2_bitshuffle_lz4": hdf5plugin.Bitshuffle(cname="lz4"),
            "f8_bitshuffle_zstd": hdf5plugin.Bitshuffle(cname="zstd"),
            "f4_zstd": hdf5plugin.Zstd(),
            "f4_blosc": hdf5plugin.Blosc("lz4hc", 5, hdf5plugin.Blosc.BITSHUFFLE),
            "f4_blosc2": hdf5plugin.Blosc2("zstd", 5, hdf5plugin.Blosc2.SHUFFLE),
            "f4_zfp": hdf5plugin.Zfp(accuracy=0.01),
            "u1_jpegls": {**hdf5plugin.FciDecomp(), "chunks": (1, 30, 41)},
            "i4_zfp": hdf5plugin.Zfp(reversible=True),
        },
    )


@case()
def filters_of_netcdf(path: Path) -> None:
    # Blosc takes an error for the answer to chunks that it cannot make smaller
    with netcdf(path, y=40, x=60) as file:
        for name in ("zlib", "zstd", "bzip2", "blosc_lz4", "blosc_zlib", "szip"):
            v = file.createVariable(name, "i2", ("y", "x"), chunksizes=(30, 32), compression=name)
            v[:] = np.arange(40 * 60).reshape(40, 60)


# ---------------------------------------------------------------------- Zarr stores

ZARR: dict[str, Any] = {"engine": "zarr", "options": {"consolidated": True}, "source": "zarr"}


def zarr_dataset() -> xr.Dataset:
    """What the stores hold: packed and plain numbers with gaps, times, flags and strings."""
    values = numbers(7, 6, 8, dtype="f8")
    values[2, 1] = np.nan
    times = np.arange("2001-01-01", "2001-01-08", dtype="datetime64[D]").astype("datetime64[ns]")
    return xr.Dataset(
        {
            "plain": (("time", "y", "x"), values.astype("f4"), {"units": "K"}),
            "packed": (("time", "y", "x"), 280 + values),
            "counts": (("y", "x"), numbers(6, 8, dtype="i4")),
            "names": (("y",), np.array(["a", "bcd", "", "ü", "e", "f"], object)),
        },
        coords={"time": times, "x": np.arange(8.0)},
        attrs={"title": "a store", "version": 3, "levels": [1, 2]},
    )


def zarr_store(path: Path, version: int, **how: Any) -> None:
    """Write a store; the keywords are the encoding of the variables of three dimensions."""
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
    encoding = {"plain": how, "packed": packing | how}
    with warnings.catch_warnings():
        # consolidated metadata and strings are no part of the specification
        warnings.simplefilter("ignore")
        zarr_dataset().to_zarr(path, zarr_format=version, encoding=encoding, consolidated=True)


@case(**ZARR)
def zarr_v2(path: Path) -> None:
    # the order of bytes in memory, which that of columns would be, is seen in sums
    zarr_store(path, 2, chunks=(3, 2, 4), compressors=numcodecs.Zlib(3))


@case(**ZARR)
def zarr_v3(path: Path) -> None:
    turned = zarr.codecs.TransposeCodec(order=(2, 0, 1))
    zarr_store(
        path, 3, chunks=(3, 2, 4), filters=[turned], serializer=zarr.codecs.BytesCodec(endian="big")
    )


@case(**ZARR)
def zarr_shards(path: Path) -> None:
    zarr_store(path, 3, chunks=(1, 2, 4), shards=(3, 4, 8), compressors=zarr.codecs.GzipCodec())


# ---------------------------------------------------------------------- classic netCDF

CLASSIC = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA")


def classic(path: Path, form: str = "NETCDF3_CLASSIC", **dims: int | None) -> netCDF4.Dataset:
    """A new file of a classic format; None is the record dimension."""
    file = netCDF4.Dataset(path, "w", format=form)
    for name, size in dims.items():
        file.createDimension(name, size)
    return file


def _write_classic(path: Path, form: str) -> None:
    kinds = ["i1", "i2", "i4", "f4", "f8"]
    if form == "NETCDF3_64BIT_DATA":
        kinds += ["u1", "u2", "u4", "i8", "u8"]
    with classic(path, form, time=None, y=3, x=5, n=6) as file:
        file.title, file.history, file.empty = "classic", "Zürich \u2603\nline", ""
        file.one, file.several = np.float32(0.1), np.arange(3, dtype="i2")
        time = file.createVariable("time", "f8", ("time",))
        time.units = "days since 2001-01-01"
        for kind in kinds:
            v = file.createVariable(f"{kind}_records", kind, ("time", "y", "x"))
            v.set_auto_mask(False)
            v[:4] = numbers(4, 3, 5, dtype=kind)
            w = file.createVariable(f"{kind}_fixed", kind, ("x", "y"))
            w.set_auto_mask(False)
            w[:] = numbers(5, 3, dtype=kind)
            w.setncattr("valid", np.array([1, 2], kind))
            file.createVariable(f"{kind}_alone", kind)[...] = 7
        time[:] = np.arange(4)
        # one record takes one byte and is padded to four
        odd = file.createVariable("odd", "i1", ("time",))
        odd[:] = [1, 2, 3, 4]
        names = file.createVariable("names", "S1", ("time", "n"))
        names[:] = netCDF4.stringtochar(np.array(["ab", "", "abcdef", "x"], "S6"))
        packed = file.createVariable("packed", "i2", ("time", "x"), fill_value=-9)
        packed.scale_factor, packed.add_offset = 0.5, 100.0
        packed[:] = np.ma.masked_less(100 + numbers(4, 5), 100)
        file.createVariable("never", "f4", ("time", "x"))


def _classic_case(form: str) -> Case:
    return Case(lambda path: _write_classic(path, form), source="netcdf3")


CASES |= {form.lower(): _classic_case(form) for form in CLASSIC}


@case(source="netcdf3")
def classic_with_one_record_variable(path: Path) -> None:
    # its records follow each other without padding
    with classic(path, time=None, n=3) as file:
        file.createVariable("v", "i2", ("time", "n"))[:] = numbers(5, 3, dtype="i2") // 2
        file.createVariable("n", "i1", ("n",))[:] = [1, 2, 3]


@case(source="netcdf3")
def classic_without_records(path: Path) -> None:
    with classic(path, time=None, x=3) as file:
        file.createVariable("v", "f4", ("time", "x"))
        file.createVariable("w", "f4", ("time",))
        file.createVariable("x", "f8", ("x",))[:] = [1, 2, 3]


@case(source="netcdf3")
def classic_without_anything(path: Path) -> None:
    with classic(path):
        pass


@case(source="netcdf3")
def classic_of_scipy(path: Path) -> None:
    with netcdf_file(path, "w", version=2) as file:
        file.title = b"of scipy"
        file.createDimension("t", None)
        file.createDimension("x", 3)
        for name, kind, dims in (("v", "f4", ("t", "x")), ("c", "c", ("t", "x")), ("t", "i2", "t")):
            v = file.createVariable(name, kind, tuple(dims))
            shape = (2, 3)[: len(dims)]
            v[:2] = (
                np.array(list(b"abcdef"), "u1").view("S1").reshape(2, 3)
                if name == "c"
                else (np.full(shape, 5))
            )
            v.units = b"K"


@case(source="netcdf3")
def classic_of_many_records(path: Path) -> None:
    with classic(path, time=None, x=3) as file:
        file.createVariable("time", "i4", ("time",))[:] = np.arange(2000)
        file.createVariable("v", "f4", ("time", "x"))[:] = numbers(2000, 3)


# ---------------------------------------------------------------------- files of the cases


class Archive:
    """The files of the cases, each written once when it is asked for; do not write to them."""

    def __init__(self, folder: Path, cases: Mapping[str, Case] = CASES) -> None:
        self.folder, self.cases = folder, cases
        self._native: dict[str, xr.Dataset] = {}

    def path(self, name: str) -> Path:
        """Return the file of a case."""
        path = self.folder / f"{name}.nc"
        if not path.exists():
            self.cases[name].write(path)
        return path

    def native(self, name: str) -> xr.Dataset:
        """Return what xarray itself makes of the file of a case."""
        if name not in self._native:
            self._native[name] = self.cases[name].native(self.path(name))
        return self._native[name]
