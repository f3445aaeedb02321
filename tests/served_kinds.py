"""Kinds of sets that a server shows: each is a dataset, or a tree, of virtual arrays."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numcodecs
import numpy as np
import tifffile
import xarray as xr
from archives import KINDS, Archives
from grib_messages import CASES
from range_server import range_server
from trees import parts_of_a_model

import virtualds

Tree = Mapping[str, xr.Dataset]


def ragged(folder: Path) -> xr.Dataset:
    """Months of 28 to 31 days, a chunk each."""
    return _combine(folder, "months_of_28_to_31_days")


def two_encodings(folder: Path) -> xr.Dataset:
    """Files with other filters than those before."""
    return _combine(folder, "codecs_that_differ")


def _combine(folder: Path, name: str) -> xr.Dataset:
    files = Archives(folder).files(name)
    return KINDS[name].combine([virtualds.open_virtual_dataset(one) for one in files])


def grib(folder: Path) -> Tree:
    """Messages of both editions, in second-order and simple packing, one with missing values."""
    cases = ("levels and steps", "levels and steps of edition 1", "missing values")
    found = {}
    for number, case in enumerate(cases):
        path = CASES[case].write(folder / f"{number}.grib")
        found[f"file{number}"] = virtualds.open_virtual_dataset(path)
    return found


def tiff(folder: Path) -> Tree:
    """Tiles with a predictor, and strips of a big-endian file."""
    values = np.cumsum(np.arange(50 * 70, dtype="f4").reshape(50, 70) % 11, axis=1)
    how = {"software": False, "metadata": None}
    tiles, strips = folder / "tiles.tif", folder / "strips.tif"
    tifffile.imwrite(tiles, values, tile=(16, 32), compression="deflate", predictor=True, **how)
    big = {"byteorder": ">", "bigtiff": True, "compression": "lzw"}
    tifffile.imwrite(strips, values.astype("u2"), rowsperstrip=10, **big, **how)
    return {path.stem: virtualds.open_virtual_dataset(path) for path in (tiles, strips)}


def strings(folder: Path) -> xr.Dataset:
    """Text of any length and of a fixed one, with missing chunks."""
    with h5py.File(folder / "a.h5", "w") as file:
        file["any"] = np.array(["a", "", "ö" * 9, "日本"], h5py.string_dtype())
        file["one"] = "hello"
        short = file.create_dataset("short", (5,), "S5", chunks=(2,), compression=4, shuffle=True)
        short[:3] = np.array([b"ab", b"abcde", b""], "S5")
        filled = file.create_dataset("filled", (4,), "S3", chunks=(2,), fillvalue=b"xy")
        filled[:2] = np.array([b"a", b"b"])
    found = virtualds.open_virtual_dataset(folder / "a.h5", loadable_variables=["any", "one"])
    letters = np.array(["ö", "日本", "c", "d"], "<U2")
    (folder / "letters").write_bytes(letters.tobytes())
    found["letters"] = (
        "letter",
        virtualds.ManifestArray.from_arrays(
            shape=(6,),
            chunks=(2,),
            dtype="<U2",
            path=[str(folder / "letters"), str(folder / "letters"), ""],
            offsets=[0, 16, 0],
            lengths=16,
        ),
    )
    return found


def groups(folder: Path) -> Tree:
    """Groups in groups, with packed values."""
    parts_of_a_model(folder / "a.nc")
    tree = virtualds.open_virtual_datatree(folder / "a.nc")
    return {node.path: node.to_dataset(inherit=False) for node in tree.subtree}


SIDE, DISTINCT, WIDTH = 1000, 997, 8
"""Chunks along two axes of a set of a million, how many of them differ, and values of each."""


def million_chunks(folder: Path) -> xr.Dataset:
    """A million references to 997 chunks, each shuffled and compressed."""
    values = np.arange(DISTINCT * WIDTH, dtype="<i4").reshape(DISTINCT, WIDTH)
    stored = [zlib.compress(numcodecs.Shuffle(4).encode(row.copy())) for row in values]
    (folder / "chunks").write_bytes(b"".join(stored))
    lengths = np.array([len(one) for one in stored])
    which = np.arange(SIDE * SIDE).reshape(SIDE, SIDE, 1) % DISTINCT
    array = virtualds.ManifestArray.from_arrays(
        shape=(SIDE, SIDE, WIDTH),
        chunks=(1, 1, WIDTH),
        dtype="<i4",
        path=str(folder / "chunks"),
        offsets=(np.cumsum(lengths) - lengths)[which],
        lengths=lengths[which],
        codecs=[{"id": "shuffle", "elementsize": 4}, {"id": "zlib", "level": 6}],
    )
    return xr.Dataset({"v": (("y", "x", "z"), array)})


BOXES = {
    "million_chunks": (
        (slice(0, 2), slice(0, 3), slice(0, WIDTH)),
        (slice(997, 1000), slice(995, 1000), slice(2, 7)),
    )
}
"""What is read of kinds that nobody reads as a whole."""


def write_source(folder: Path) -> None:
    """Write a file for a web server, from which the server of the set reads ranges."""
    with h5py.File(folder / "a.h5", "w") as file:
        values = np.arange(60 * 40).reshape(60, 40)
        file.create_dataset("t", data=values, chunks=(20, 15), compression=4, shuffle=True)
        file["contiguous"] = values.astype("f4")


NUMBERS = ("b1", "i1", "u1", "i2", ">i2", "i4", "u4", "i8", "u8", ">u8")
NUMBERS += ("f2", "f4", ">f4", "f8", "c8", "c16")


def types(folder: Path) -> xr.Dataset:
    """Numbers of each type, with missing chunks and fill values; turned axes; times."""
    with h5py.File(folder / "a.h5", "w") as file:
        for dtype in NUMBERS:
            name = dtype.replace(">", "be_")
            values = np.arange(12).reshape(3, 4).astype(dtype)
            file.create_dataset(f"whole_{name}", data=values, chunks=(2, 3))
            file.create_dataset(f"gaps_{name}", (6,), dtype, chunks=(2,))[:2] = [1, 0]
        for name, (dtype, fill) in FILLS.items():
            file.create_dataset(f"fill_{name}", (4,), dtype, chunks=(2,), fillvalue=fill)[:2] = 1
        file["scalar"] = np.int64(2**60 + 1)
        file["real_scalar"] = -0.0
        file["with spaces"] = np.arange(1, 6)
        cube = np.arange(24, dtype="i2").reshape(2, 3, 4)
        file.create_dataset("cube", data=cube, chunks=(2, 2, 3), compression=4)
    found = virtualds.open_virtual_dataset(folder / "a.h5", loadable_variables=[])
    (folder / "flags").write_bytes(b"\1\0\1")
    found["flags"] = (
        "flag",
        virtualds.ManifestArray.from_arrays(
            shape=(6,),
            chunks=(3,),
            dtype="?",
            path=[str(folder / "flags"), ""],
            offsets=0,
            lengths=3,
            fill_value=True,
        ),
    )
    a, b, c = found["cube"].dims
    for number, order in enumerate(((b, c, a), (c, a, b), (c, b, a), (b, a, c))):
        found[f"cube{number}"] = found["cube"].variable.transpose(*order)
    times = _combine(folder, "units_of_time_that_differ").reset_coords()
    durations = _combine(folder, "durations_whose_units_differ")
    parts = {"seen": times["seen"], "started": times["started"], "lag": durations["lag"]}
    for name, part in parts.items():
        found[name] = ((f"{name}_0", f"{name}_1"), part.variable._data)
    return found


ENCODINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "zlib": {"compression": 4},
    "zlib_and_shuffle": {"compression": 4, "shuffle": True},
    "checksums": {"fletcher32": True},
    "lzf": {"compression": "lzf"},
    "scale_and_offset": {"scaleoffset": 0},
}
"""Filters of HDF5."""


def filters_of_hdf5(folder: Path) -> xr.Dataset:
    """Chunks with each filter, of which the last row is missing."""
    with h5py.File(folder / "a.h5", "w") as file:
        for dtype in ("<i2", ">f4", "<f8", "u1"):
            for encoding, how in ENCODINGS.items():
                if encoding == "scale_and_offset" and np.dtype(dtype).kind == "f":
                    continue  # it rounds floats
                name = f"{encoding}_{np.dtype(dtype).name}"
                made = file.create_dataset(name, (7, 5), dtype, chunks=(3, 2), fillvalue=9, **how)
                made[:6] = np.arange(30).reshape(6, 5)
    return virtualds.open_virtual_dataset(folder / "a.h5", loadable_variables=[])


FILLS = {
    "large": ("i8", 2**60 + 1),
    "negative": ("i8", -(2**63) + 2),
    "unsigned": ("u8", 2**64 - 2),
    "nan": ("f4", np.nan),
    "odd_nan": ("f4", np.frombuffer(b"\1\0\xc0\x7f", "<f4")[0]),
    "infinite": ("f8", -np.inf),
    "third": ("f8", 1 / 3),
    "short": ("f4", np.float32(0.1)),
    "half": ("f2", 7),
    "minus_zero": ("f4", -0.0),
}
"""Types and their fill values."""

MADE: Mapping[str, Callable[[Path], xr.Dataset | Tree]] = {
    make.__name__: make
    for make in (
        *(ragged, two_encodings, grib, tiff, strings),
        *(groups, million_chunks, types, filters_of_hdf5),
    )
}
SERVED = (*MADE, "remote_source")
"""The kinds of sets."""


@contextmanager
def one_set_of_all(folder: Path, archives: Iterable[str] = ()) -> Iterator[Path]:
    """Write one set with a group for each kind, and for some archives of `archives`; give its path.

    Within the block, the web server runs that one of them refers to.
    """
    nodes = {"": xr.Dataset(attrs={"limit": np.inf})}
    for name, make in MADE.items():
        (folder / name).mkdir()
        made = make(folder / name)
        parts = {"": made} if isinstance(made, xr.Dataset) else made
        nodes |= {f"{name}/{path.strip('/')}".rstrip("/"): part for path, part in parts.items()}
    nodes |= {name: _combine(folder, name) for name in archives}
    (folder / "remote_source").mkdir()
    write_source(folder / "remote_source")
    with range_server(folder / "remote_source") as (url, asked):
        found = virtualds.open_virtual_dataset(f"{url}/a.h5", loadable_variables=[])
        nodes["remote_source"] = found
        xr.DataTree.from_dict(nodes).virtual.to_manifest(folder / "kinds.zarr")
        asked.clear()
        yield folder / "kinds.zarr"
        assert asked, "nobody read the remote source"
