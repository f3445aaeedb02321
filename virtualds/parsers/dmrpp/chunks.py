"""The chunks of one variable, as a DMR++ sidecar lists them: places in files, filters, fill value.

OPeNDAP, "DMR++" (docs.opendap.org/index.php/DMR++), element ``chunks``; what the server Hyrax makes
of it: BES, ``dmrpp_module/DMZ.cc``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any, Literal
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.bounds import demand_table
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import Fragment, make_regular_axes
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_hdf5
from virtualds.codecs.codec import NO_FILTERS, Codec
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.hdf5.netcdf_rules import NETCDF_FILLS
from virtualds.parsers.hdf5.storage import skip_filters
from virtualds.source_file import SourceFile

NAMESPACE = "http://xml.opendap.org/dap/dmrpp/1.0.0#"
DMRPP = f"{{{NAMESPACE}}}"
"""Prefix of the elements of DMR++."""
KINDS = ("chunk", "block")
"""Elements that say where bytes lie."""

FILTERS: dict[str, tuple[int, Callable[[int, int], tuple[int, ...]]]] = {
    "shuffle": (2, lambda itemsize, level: (itemsize,)),
    "deflate": (1, lambda itemsize, level: (level,)),
    "fletcher32": (3, lambda itemsize, level: ()),
}
"""Filters by the names of DMR++: the number in HDF5, and the client data there."""
LEVEL = 6
"""zlib's own level of compression, where a sidecar says none; decoding does not need it."""
ORDERS: dict[str | None, Literal["<", ">"]] = {"LE": "<", "BE": ">", None: "<"}
"""Byte orders. A sidecar of before 2021 says none, and the server reads it as little-endian."""
DIGITS = 6
"""Digits to which a sidecar rounds the fill value of floating-point numbers (``std::ostream``)."""

REMEDY = "open the file itself, or leave the variable out with drop_variables"

FindFile = Callable[[str | None], SourceFile]
"""Returns the file that an ``href`` names; the file that the sidecar describes for None."""


@dataclass(frozen=True)
class Storage:
    """What a variable of a sidecar is: its element, type, shape, and the attribute ``_FillValue``.

    ``dtype`` has the byte order of the machine: `chunks` says that of the file.
    """

    element: Element
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fill: Any
    find_file: FindFile

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.dtype.itemsize * prod(self.shape)


def read_chunks(stored: Storage) -> tuple[ManifestArray, dict[str, Any]]:
    """Return a variable whose chunks lie in files, and its encoding.

    Raises
    ------
    FormatError
        What the sidecar says of the chunks makes no sense.
    UnsupportedError
        It does not say all that is needed, or says what references cannot express.
    """
    found = stored.element.find(f"{DMRPP}chunks")
    # a variable may hold its only chunk itself
    chunks = stored.element if found is None else found
    if chunks.find(f"{DMRPP}block") is not None or "LBChunk" in chunks.attrib:
        raise UnsupportedError(f"its bytes lie in linked blocks of HDF4; {REMEDY}")
    order = chunks.get("byteOrder")
    if order not in ORDERS:
        raise FormatError(f"its byte order is {order!r}, neither LE nor BE; {REMEDY}")
    dtype = stored.dtype.newbyteorder(ORDERS[order])
    sizes, is_cut = _read_sizes(chunks, stored.shape)
    codecs = _read_codecs(chunks, dtype.itemsize)
    axes = make_regular_axes(stored.shape, sizes)
    table = _Table.of(chunks.findall(f"{DMRPP}chunk"), sizes, tuple(a.nchunks for a in axes))
    fill = _read_fill(chunks.get("fillValue"), dtype, stored.fill, table.is_whole)
    pipeline = CodecPipeline(dtype, codecs, fill, tuple(range(len(sizes))))
    manifest, pipelines = table.build(stored.find_file, pipeline, prod(sizes) * dtype.itemsize)
    array = ManifestArray.of_fragment(Fragment.whole(axes, manifest), pipeline)
    encoding: dict[str, Any] = NO_FILTERS | {
        "contiguous": not is_cut,
        "chunksizes": sizes if is_cut else None,
    }
    for codec in codecs:
        encoding |= codec.encoding
    return replace(array, pipelines=pipelines), encoding


def lists_chunks(place: Element) -> bool:
    """Say whether an element is a chunk or a block, or has one in it."""
    return any(place.find(f".//{DMRPP}{kind}") is not None for kind in KINDS) or (
        place.tag.removeprefix(DMRPP) in KINDS
    )


def lacks_byte_order(variable: Element, dtype: np.dtype[Any]) -> bool:
    """Say whether a sidecar leaves open which byte of the stored numbers comes first."""
    chunks = variable.find(f"{DMRPP}chunks")
    place = variable if chunks is None else chunks
    is_open = dtype.newbyteorder("<") != dtype.newbyteorder(">") and "byteOrder" not in place.attrib
    return is_open and lists_chunks(place)


def _read_sizes(chunks: Element, shape: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """Return the elements of a chunk along each axis, and whether the sidecar says them."""
    text = chunks.findtext(f"{DMRPP}chunkDimensionSizes")
    if text is None:
        return tuple(max(n, 1) for n in shape), False
    sizes = tuple(parse_number(word, "a length of its chunks") for word in text.split())
    if len(sizes) != len(shape) or not all(sizes):
        raise FormatError(
            f"its chunks have the lengths {sizes}, its axes {shape}; the sidecar is damaged, "
            f"fetch it again"
        )
    return sizes, True


def _read_codecs(chunks: Element, itemsize: int) -> tuple[Codec, ...]:
    names = chunks.get("compressionType", "").split()
    levels = [parse_number(n, "deflateLevel") for n in chunks.get("deflateLevel", "").split()]
    found = []
    for name in names:
        if name not in FILTERS:
            raise UnsupportedError(
                f"its chunks have the filter {name!r}, of which a sidecar does not say enough "
                f"(it knows {', '.join(FILTERS)}); {REMEDY}"
            )
        number, say_client_data = FILTERS[name]
        level = levels.pop(0) if name == "deflate" and levels else LEVEL
        found.append(codec_from_hdf5(number, say_client_data(itemsize, level), itemsize))
    return tuple(found)


@dataclass(frozen=True)
class _Table:
    """The chunks that a sidecar lists, one entry of every column for each; ``grid`` counts all."""

    grid: tuple[int, ...]
    place: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    mask: npt.NDArray[np.int64]
    hrefs: tuple[str | None, ...]

    @classmethod
    def of(cls, rows: list[Element], sizes: tuple[int, ...], grid: tuple[int, ...]) -> _Table:
        """Read the elements of chunks, checking their places.

        Raises
        ------
        FormatError
            A place is outside of the grid, or that of two chunks.
        """
        if any("LinkedBlockIndex" in row.attrib for row in rows):
            raise UnsupportedError(f"its bytes lie in linked blocks of HDF4; {REMEDY}")
        demand_table(grid, len(rows), "the sidecar")
        place = _read_places(rows, sizes, grid)
        if np.unique(place).size != place.size:
            raise FormatError(
                "two of its chunks have one place; the sidecar is damaged, fetch it again"
            )
        hrefs = tuple(row.get("href", row.get(f"{DMRPP}href")) for row in rows)
        offset, length = _read_column(rows, "offset"), _read_column(rows, "nBytes")
        return cls(grid, place, offset, length, _read_column(rows, "fm", "0"), hrefs)

    @property
    def is_whole(self) -> bool:
        """Whether no chunk is missing."""
        return self.place.size == prod(self.grid)

    def build(
        self, find_file: FindFile, pipeline: CodecPipeline, nbytes: int
    ) -> tuple[ChunkManifest, tuple[CodecPipeline, ...]]:
        """Return the references; ``nbytes`` are those of a chunk without filters."""
        if not self.place.size:
            return ChunkManifest.missing(self.grid), (pipeline,)
        masks, kind = np.unique(self.mask, return_inverse=True)
        pipelines = tuple(skip_filters(pipeline, int(mask)) for mask in masks)
        plain = np.array([not one.codecs for one in pipelines])[kind.ravel()]
        if (odd := self.length[plain & (self.length != nbytes)]).size:
            raise FormatError(
                f"a chunk without filters has {odd[0]} bytes, and its values take {nbytes}; the "
                f"sidecar is damaged, fetch it again"
            )
        distinct = {href: number for number, href in enumerate(dict.fromkeys(self.hrefs))}
        number = np.array([distinct[href] for href in self.hrefs], np.int32)
        manifest = ChunkManifest.build(
            self.grid,
            files=[find_file(href) for href in distinct],
            file=self._spread(number, MISSING),
            offset=self._spread(self.offset, 0),
            length=self._spread(self.length, 0),
            pipeline=self._spread(kind.ravel(), 0),
        )
        return manifest, pipelines

    def _spread(self, values: npt.NDArray[Any], rest: int) -> npt.NDArray[Any]:
        """Return a column over the grid with ``rest`` where no chunk is."""
        column = np.full(prod(self.grid), rest, values.dtype)
        column[self.place] = values
        return column.reshape(self.grid)


def _read_column(rows: list[Element], name: str, default: str = "") -> npt.NDArray[np.int64]:
    return np.array([parse_number(row.get(name, default), name) for row in rows], np.int64)


def _read_places(
    rows: list[Element], sizes: tuple[int, ...], grid: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """Return the number of every chunk in the grid, in C order."""
    if not all(grid) and rows:
        raise FormatError("it has chunks, and no elements; the sidecar is damaged, fetch it again")
    texts = [row.get("chunkPositionInArray", "") for row in rows]
    if not rows or (texts == [""] and prod(grid) == 1):
        return np.zeros(len(rows), np.int64)
    try:
        split = [[int(word) for word in text.strip("[] ").split(",")] for text in texts]
        begins = np.array(split, np.int64).reshape(len(rows), len(grid))
    except (OverflowError, ValueError) as error:
        raise _place_error(texts) from error
    numbers = begins // np.array(sizes, np.int64)
    if (begins % sizes).any() or (begins < 0).any() or (numbers >= grid).any():
        raise _place_error(texts)
    return np.asarray(np.ravel_multi_index(tuple(numbers.T), grid), np.int64).reshape(-1)


def _place_error(texts: list[str]) -> FormatError:
    return FormatError(
        f"its chunks lie at {', '.join(texts[:3])[:80]} ..., where no chunks begin; the "
        f"sidecar is damaged, fetch it again"
    )


def parse_number(text: str, what: str) -> int:
    """Return a number that a sidecar writes in decimal digits.

    Raises
    ------
    FormatError
        It is no number from 0 to 2**63 - 1.
    """
    if not text.strip().isdecimal() or len(text) > 30 or not int(text) < 2**63:
        raise FormatError(
            f"{what} is {text[:40]!r}, no number; the sidecar is damaged, fetch it again"
        )
    return int(text)


# ---------------------------------------------------------------------- fill values


def _read_fill(
    text: str | None, dtype: np.dtype[Any], attribute: Any, is_whole: bool
) -> bytes | None:
    """Return the storage fill value, None for zero or where no chunk needs it.

    Raises
    ------
    UnsupportedError
        Chunks are missing, and the sidecar does not say exactly what is in their place.
    """
    if is_whole:
        return None
    found = None if text is None else _parse_fill(text, dtype, attribute)
    if found is None:
        raise UnsupportedError(
            f"chunks of it are missing, and the sidecar says no exact fill value ({text!r:.60}); "
            f"{REMEDY}"
        )
    return found.tobytes()


def _parse_fill(text: str, dtype: np.dtype[Any], attribute: Any) -> npt.NDArray[Any] | None:
    """Return a fill value; None where the text may be another one, or one of no number."""
    if dtype.names:
        return None
    if dtype.kind == "S":
        return None if text.strip("\0 ") else np.zeros((), dtype)
    try:
        if dtype.kind in "iu":
            return np.array(int(text), dtype)
        number = float(text)
        if not isfinite(number) or _count_digits(text) < DIGITS:
            return np.array(number, dtype)
        # rounded as it is, the text may stand for many numbers
        known = (attribute, NETCDF_FILLS[dtype.str[1:]])
        floats = [np.array(n, dtype) for n in known if isinstance(n, float | np.floating)]
        exact = [n for n in floats if f"{float(n):.{DIGITS}g}" == f"{number:.{DIGITS}g}"]
    except (OverflowError, ValueError):
        return None
    return exact[0] if exact else None


def _count_digits(text: str) -> int:
    return len(text.lower().partition("e")[0].strip("+-").replace(".", "").strip("0"))
