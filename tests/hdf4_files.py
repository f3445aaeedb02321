"""HDF4 files of every form that a data set can have, written by the HDF4 library in pyhdf.

What pyhdf has no function for (chunks, n-bit numbers, old files) is asked of the library itself.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from contextlib import chdir
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from cases import numbers
from pyhdf import _hdfext
from pyhdf.SD import SD, SDC

from virtualds.parsers.hdf4.elements import EXTENDED, LINKED, LINKED_BLOCKS, NULL

KINDS = {
    **{"S1": SDC.CHAR, "i1": SDC.INT8, "u1": SDC.UINT8, "i2": SDC.INT16, "u2": SDC.UINT16},
    **{"i4": SDC.INT32, "u4": SDC.UINT32, "f4": SDC.FLOAT32, "f8": SDC.FLOAT64},
}
"""Number types of HDF4 by dtype."""
LITTLE = 0x4000
"""Is added to the number type of little-endian values."""
CODERS = {"rle": (1, 0), "skphuff": (3, 4), "deflate": (4, 6)}
"""Number of an encoding, and its parameter."""
CHUNKED, CHUNKED_AND_ENCODED = 1, 3
WITHOUT_VALUES = "fakeDim2"
"""A scale in the file `old` that has no values, for which the library returns bytes of others."""


class ChunkDefinition(ctypes.Structure):
    """``HDF_CHUNK_DEF``: lengths of chunks, how they are encoded, and its parameter."""

    _fields_ = [
        ("lengths", ctypes.c_int32 * 32),
        ("coder", ctypes.c_int32),
        ("model", ctypes.c_int32),
        ("parameters", ctypes.c_int32 * 6),
    ]


@cache
def library() -> Any:
    """The functions of the HDF4 library that pyhdf brings."""
    found = ctypes.CDLL(_hdfext.__file__)
    found.SDsetchunk.argtypes = [ctypes.c_int32, ChunkDefinition, ctypes.c_int32]
    places = [ctypes.POINTER(ctypes.c_int32)] * 3
    for function in (found.SDwritedata, found.SDreaddata):
        function.argtypes = [ctypes.c_int32, *places, ctypes.c_void_p]
    return found


def cut(dataset: Any, chunks: Sequence[int], coder: str = "") -> None:
    """Store a data set in chunks, encoded or not."""
    number, parameter = CODERS.get(coder, (0, 0))
    definition = ChunkDefinition((*chunks,), number, 0, (parameter,))
    flags = CHUNKED_AND_ENCODED if coder else CHUNKED
    assert library().SDsetchunk(dataset._id, definition, flags) == 0


def whole(dataset: Any, shape: Sequence[int]) -> tuple[Any, ...]:
    """The arguments of the library for a data set and all of its values."""
    starts, counts = ((ctypes.c_int32 * len(shape))(*n) for n in ([0] * len(shape), shape))
    return dataset._id, starts, None, counts


def put(dataset: Any, values: Any) -> None:
    """Write values of a type that pyhdf does not write."""
    assert library().SDwritedata(*whole(dataset, values.shape), values.ctypes.data) == 0


def get(dataset: Any, shape: Sequence[int], kind: str) -> Any:
    """Read values of a type that pyhdf does not read."""
    values = np.zeros(shape, kind)
    assert library().SDreaddata(*whole(dataset, shape), values.ctypes.data) == 0
    return values


def read(path: Path) -> dict[str, xr.Variable]:
    """Read all data sets of a file with pyhdf; scales without values are none."""
    file = SD(str(path))
    found = {}
    for number in range(file.info()[0]):
        dataset = file.select(number)
        name, _, lengths, code, _ = dataset.info()
        shape = (lengths,) if isinstance(lengths, int) else tuple(lengths)
        if dataset.iscoordvar() and (dataset.checkempty() or name == WITHOUT_VALUES):
            continue
        kind = next(kind for kind, known in KINDS.items() if known == code & ~LITTLE)
        dims = tuple(dataset.dim(axis).info()[0] for axis in range(len(shape)))
        name = name if name not in found else f"{name}_2"
        found[name] = xr.Variable(dims, get(dataset, shape, kind), dataset.attributes())
    file.end()
    return found


def keep_bits(dataset: Any, first: int, count: int, sign: bool, ones: bool) -> None:
    """Store some bits of each number alone."""
    assert library().SDsetnbitdataset(dataset._id, first, count, sign, ones) != -1


def encode(dataset: Any, coder: str) -> None:
    """Encode a data set as a whole."""
    dataset.setcompress(*CODERS[coder])


def create(file: SD, name: str, values: Any, dims: Sequence[str] = (), **how: Any) -> Any:
    """Create a data set and name its dimensions; what it is full of is written by the caller."""
    kind = KINDS[values.dtype.str[1:]] + how.get("order", 0)
    dataset = file.create(name, kind, how.get("shape", values.shape))
    for axis, dim in enumerate(dims):
        dataset.dim(axis).setname(dim)
    return dataset


def written(path: Path, fill: Callable[[SD], None]) -> None:
    """Write a file; the library writes the name that it is given into it."""
    with chdir(path.parent):
        file = SD(path.name, SDC.WRITE | SDC.CREATE | SDC.TRUNC)
        fill(file)
        file.end()


def split(path: Path, tag: int, size: int) -> None:
    """Lay the elements of a tag into linked blocks at the end of a file, out of their order."""
    data = bytearray(path.read_bytes())
    [first] = struct.unpack_from(">H", data, 4)
    places = range(10, 10 + 12 * first, 12)
    found = {place: struct.unpack_from(">HHII", data, place) for place in places}
    free = [place for place, (one, *_) in found.items() if one == NULL]
    refs = iter(range(max(ref for _, ref, *_ in found.values()) + 1, 2**16))

    def add(one: int, ref: int, content: bytes, place: int) -> None:
        struct.pack_into(">HHII", data, place, one, ref, len(data), len(content))
        data.extend(content)

    for place, (one, ref, offset, length) in found.items():
        if one != tag or length <= size or offset + length > len(data):
            continue
        blocks = [bytes(data[at : min(at + size, offset + length)])
                  for at in range(offset, offset + length, size)]  # fmt: skip
        numbers = [next(refs) for _ in blocks]
        for number, block in reversed(list(zip(numbers, blocks, strict=True))):
            add(LINKED, number, block, free.pop())
        table = next(refs)
        add(LINKED, table, struct.pack(f">{len(blocks) + 1}H", 0, *numbers), free.pop())
        header = struct.pack(">HIIIH", LINKED_BLOCKS, length, size, len(blocks), table)
        add(tag | EXTENDED, ref, header, place)
    path.write_bytes(data)


CASES: dict[str, Callable[[Path], None]] = {}


def case(fill: Callable[[SD], None]) -> Callable[[SD], None]:
    CASES[fill.__name__] = lambda path: written(path, fill)
    return fill


@case
def types(file: SD) -> None:
    for kind in KINDS:
        if kind != "S1":
            values = numbers(4, 6, dtype=kind)
            dataset = create(file, kind, values, ("y", "x"))
            dataset[:] = values
    dataset = create(file, "text", np.zeros((3, 4), "S1"), ("line", "letter"))
    dataset[:] = np.frombuffer(b"abcdefghijkl", "S1").reshape(3, 4)


@case
def little_endian(file: SD) -> None:
    for kind in ("i2", "u4", "f4", "f8"):
        values = numbers(4, 6, dtype=kind)
        put(create(file, kind, values, ("y", "x"), order=LITTLE), values)


@case
def attributes(file: SD) -> None:
    file.title = "a title"
    file.attr("counts").set(SDC.INT32, [1, 2, 3])
    file.attr("number").set(SDC.FLOAT64, 0.1)
    values = numbers(4, 6)
    dataset = create(file, "t", values, ("y", "x"))
    dataset.units = "K"
    dataset.attr("valid_range").set(SDC.FLOAT32, [0.0, 300.0])
    dataset.attr("one").set(SDC.INT8, -3)
    dataset.setfillvalue(-9.0)
    dataset[:] = values


@case
def scales(file: SD) -> None:
    values = numbers(4, 6)
    dataset = create(file, "t", values, ("y", "x"))
    dataset[:] = values
    dataset.dim(0).setscale(SDC.FLOAT64, [10.0, 20.0, 30.0, 40.0])
    dataset.dim(0).setstrs("latitude", "degrees_north", "f8")
    dataset.dim(1).setscale(SDC.INT16, [1, 2, 3, 4, 5, 6])


@case
def scale_without_values(file: SD) -> None:
    values = numbers(4, 6)
    dataset = create(file, "t", values, ("y", "x"))
    dataset[:] = values
    dataset.dim(1).setstrs("longitude", "degrees_east", "f8")


@case
def never_written(file: SD) -> None:
    for kind in KINDS:
        create(file, kind, np.zeros((4, 6), kind), ("y", "x"))
    create(file, "filled", np.zeros((4, 6), "i2"), ("y", "x")).setfillvalue(7)


@case
def encoded_and_never_written(file: SD) -> None:
    for coder in CODERS:
        dataset = create(file, coder, np.zeros((30, 41), "i2"), ("y", "x"))
        encode(dataset, coder)
        dataset = create(file, f"chunks_{coder}", np.zeros((30, 41), "i2"), ("y", "x"))
        cut(dataset, (10, 10), coder)


@case
def encoded(file: SD) -> None:
    for coder in CODERS:
        values = numbers(30, 41, dtype="i2") // 50
        dataset = create(file, coder, values, ("y", "x"))
        encode(dataset, coder)
        dataset[:] = values
    zeros = np.zeros((30, 41), "i4")
    dataset = create(file, "runs", zeros, ("y", "x"))
    encode(dataset, "rle")
    dataset[:] = zeros


@case
def bits(file: SD) -> None:
    for kind in ("u1", "i2", "u4"):
        for number, (sign, ones) in enumerate(product((False, True), repeat=2)):
            values = numbers(30, 41, dtype=kind)
            dataset = create(file, f"{kind}_{number}", values, ("y", "x"))
            keep_bits(dataset, 6 if kind == "u1" else 10, 5, sign, ones)
            dataset[:] = values


@case
def chunks(file: SD) -> None:
    for coder in ("", *CODERS):
        for kind in ("i2", "f8"):
            values = numbers(30, 41, dtype=kind)
            dataset = create(file, f"{coder}_{kind}", values, ("y", "x"))
            cut(dataset, (8, 20), coder)
            dataset[:] = values


@case
def missing_chunks(file: SD) -> None:
    for name, fill in {"plain": None, "filled": 7}.items():
        values = numbers(30, 41, dtype="i4")
        dataset = create(file, name, values, ("y", "x"))
        if fill is not None:
            dataset.setfillvalue(fill)
        cut(dataset, (10, 10), "deflate")
        dataset[10:20, 20:40] = values[10:20, 20:40]


@case
def three_axes_of_chunks(file: SD) -> None:
    values = numbers(7, 30, 41)
    dataset = create(file, "t", values, ("time", "y", "x"))
    cut(dataset, (2, 16, 41), "deflate")
    dataset[:] = values


@case
def records(file: SD) -> None:
    for name, count in {"t": 5, "short": 3}.items():
        values = numbers(count, 4, 6)
        shape = (SDC.UNLIMITED, 4, 6)
        dataset = create(file, name, values, (f"time_of_{name}", "y", "x"), shape=shape)
        for number in range(count):
            dataset[number : number + 1] = values[number : number + 1]


@case
def records_of_one_dimension(file: SD) -> None:
    for name, count in {"t": 5, "short": 3}.items():
        values = numbers(count, 4)
        dataset = create(file, name, values, ("time", "y"), shape=(SDC.UNLIMITED, 4))
        dataset[:count] = values


@case
def records_in_many_blocks(file: SD) -> None:
    """Records of two data sets take turns, so that neither is one range."""
    made = []
    for name in ("a", "b"):
        shape = (SDC.UNLIMITED, 5)
        made.append(create(file, name, np.zeros((1, 5), "i4"), (f"n_{name}", "x"), shape=shape))
    for number in range(300):
        for dataset in made:
            dataset[number : number + 1] = np.arange(5, dtype="i4")[None] + number


@case
def several_of_one_name(file: SD) -> None:
    for number in range(2):
        values = numbers(4, dtype="i2") + number
        dataset = create(file, "same", values.astype("i2"), ("x",))
        dataset[:] = values.astype("i2")


def old(path: Path) -> None:
    """Data sets as programs wrote them before HDF 3.3: described by groups, without names."""
    path.unlink(missing_ok=True)
    of = library()
    of.DFSDsetcal.argtypes = [ctypes.c_double] * 4 + [ctypes.c_int32]
    name, lengths = str(path).encode(), (ctypes.c_int32 * 2)(4, 6)
    for kind in ("f4", "i2", "f8"):
        values = numbers(4, 6, dtype=kind)
        assert of.DFSDclear() == 0
        assert of.DFSDsetdims(2, lengths) == 0
        assert of.DFSDsetNT(KINDS[kind]) == 0
        if kind != "f8":
            assert of.DFSDsetdatastrs(b"temperature", b"K", b"f8.2", b"cartesian") == 0
            assert of.DFSDsetdimstrs(2, b"longitude", b"degrees", b"") == 0
            scale = np.arange(6, dtype=kind).ctypes.data_as(ctypes.c_void_p)
            assert of.DFSDsetdimscale(2, 6, scale) == 0
            if kind == "f4":
                assert of.DFSDsetdimscale(1, 4, scale) == 0
            edges = [np.array([n], kind).ctypes.data_as(ctypes.c_void_p) for n in (300, 0)]
            assert of.DFSDsetrange(*edges) == 0
        assert of.DFSDadddata(name, 2, lengths, values.ctypes.data_as(ctypes.c_void_p)) == 0


CASES["old"] = old


# ---------------------------------------------------------------------- HDF-EOS2

SINUSOIDAL = """
        UpperLeftPointMtrs=(0.000000,5559752.598333)
        LowerRightMtrs=(1111950.519667,4447802.078667)
        Projection=GCTP_SNSOID
        ProjParams=(6371007.181000,0,0,0,0,0,0,0,0,0,0,0,0)
        SphereCode=-1
        PixelRegistration=HDFE_CENTER"""
"""Where tile h18v04 of MODIS lies."""
WORLD = """
        UpperLeftPointMtrs=(-180000000.000000,90000000.000000)
        LowerRightMtrs=(180000000.000000,-90000000.000000)
        Projection=GCTP_GEO"""


def describe_grid(number: int, name: str, shape: tuple[int, int], where: str) -> str:
    """Structural metadata of a grid, as the HDF-EOS2 library writes them."""
    rows, columns = shape
    return f"""    GROUP=GRID_{number}
        GridName="{name}"
        XDim={columns}
        YDim={rows}{where}
        GROUP=Dimension
        END_GROUP=Dimension
        GROUP=DataField
        END_GROUP=DataField
    END_GROUP=GRID_{number}
"""


def write_grids(
    path: Path,
    grids: dict[str, tuple[tuple[int, int], str]],
    size: int = 0,
    fields: Sequence[str] = ("field",),
) -> None:
    """Write a file with fields for each grid; the metadata are cut into texts of some size."""
    described = "".join(
        describe_grid(number, name, *grid) for number, (name, grid) in enumerate(grids.items(), 1)
    )
    text = (
        "GROUP=SwathStructure\nEND_GROUP=SwathStructure\nGROUP=GridStructure\n"
        f"{described}END_GROUP=GridStructure\nEND\n"
    )
    step = size or len(text)

    def fill(file: SD) -> None:
        for place in range(0, len(text), step):
            file.attr(f"StructMetadata.{place // step}").set(SDC.CHAR, text[place : place + step])
        for name, (shape, _) in grids.items():
            values = numbers(2, *shape, dtype="i2")
            dims = (f"Band:{name}", f"YDim:{name}", f"XDim:{name}")
            for field in fields:
                dataset = create(file, field, values, dims)
                cut(dataset, (1, *shape), "deflate")
                dataset[:] = values
        dataset = create(file, "other", numbers(5), ("n",))
        dataset[:] = numbers(5)

    written(path, fill)
