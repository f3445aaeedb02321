"""FITS files: the primary image, image extensions, and tables.

FITS Standard 4.0. Scaling becomes CF packing, so that the values are those of astropy. What cannot
be referenced is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from math import prod
from typing import Any, BinaryIO

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.parser import (
    CannotError,
    NativeReader,
    NativeRegion,
    Parser,
    ReadNative,
    region_of,
)
from virtualds.bounds import demand_axes
from virtualds.chunks.fragment import Fragment
from virtualds.codecs.codec import Codec
from virtualds.codecs.fits import SignFlip
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.fits.header import NO_NAME, AxisNames, HeaderDataUnit, read_units
from virtualds.parsers.fits.tables import read_table
from virtualds.parsers.fits.tiles import find_tiles, show_image
from virtualds.source_file import SourceFile
from virtualds.stores.scan_cache import describe_damage, open_source
from virtualds.urls import path_or_url

SIGNATURE = b"SIMPLE  ="
DTYPES = {8: ">u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}
"""Stored types by BITPIX (section 4.4.1.1)."""
UNSIGNED = {(8, -128): "i1", (16, 2**15): ">u2", (32, 2**31): ">u4", (64, 2**63): ">u8"}
"""Types of integers that BZERO shifts, by BITPIX and BZERO (table 11)."""
TABLES = ("BINTABLE", "A3DTABLE", "TABLE")
"""Kinds of extensions that are tables; the second is an old name of the first."""
STRUCTURE = {"SIMPLE", "XTENSION", "BITPIX", "NAXIS", "PCOUNT", "GCOUNT", "EXTEND", "GROUPS"}
"""Keywords that say how data are stored, and nothing else."""
PIECE = 4 * 2**20
"""Bytes of a chunk that a codec decodes; readers cut plain values as they need them."""


def detect(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` is FITS."""
    return head[:9] == SIGNATURE


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the structure of all images and tables of a file.

    Parameters
    ----------
    source : SourceFile
        The file with its fingerprint.
    group : str, optional
        Tables are groups; image extensions without data are groups that hold attributes alone.
    skip : iterable of str
        Names of variables to leave out.

    Raises
    ------
    FormatError
        The file is damaged or truncated.
    FileNotFoundError
        There is no such group.
    """
    skipped = frozenset(skip)
    reader = _Reader(source, skipped)
    with describe_damage(source, "FITS", (ValueError,)), open_source(source) as file:
        found = list(read_units(file, source))
        for name, part in _name_units(found).items():
            if name not in skipped:
                reader.take(name, part, file)
    attributes = _select_attributes(found[0].cards)
    encoding = {"unlimited_dims": set[str]()}
    groups, problems = reader.groups, reader.problems
    return ManifestGroup(reader.variables, attributes, groups, encoding, problems).group(group)


def _name_units(found: Iterable[HeaderDataUnit]) -> dict[str, HeaderDataUnit]:
    """Return the parts by unique names, made of EXTNAME, EXTVER and number, as astropy has them."""
    named: dict[str, HeaderDataUnit] = {}
    for part in found:
        name = str(part.cards.get("EXTNAME", "")).strip().replace("/", "_")
        name = name or (NO_NAME if part.is_compressed else "")
        name = name or (f"HDU{part.number}" if part.number else "PRIMARY")
        if (version := part.cards.get("EXTVER", 1)) != 1:
            name = f"{name}_{version}"
        named[name if name not in named else f"{name}_HDU{part.number}"] = part
    return named


class _Reader:
    """The variables of a file, with the dimensions that they share."""

    def __init__(self, source: SourceFile, skipped: frozenset[str]) -> None:
        self.source = source
        self._skipped = skipped
        self.variables: dict[str, ManifestVariable] = {}
        self.groups: dict[str, ManifestGroup] = {}
        self.problems: dict[str, VirtualdsError] = {}
        self._axes = AxisNames("naxis")

    def take(self, name: str, part: HeaderDataUnit, file: BinaryIO) -> None:
        """Add a part of the file: a variable, a group or a problem."""
        if part.kind in TABLES and not part.is_compressed:
            origin = {"source": self._origin}
            self.groups[name] = read_table(part, file, self.source, origin, self._skipped)
            return
        try:
            _demand_image(part)
            if part.shape:
                self.variables[name] = self._read_image(name, part, file)
            elif part.number:
                self.groups[name] = ManifestGroup({}, _select_attributes(part.cards))
        except UnsupportedError as error:
            error.locate(f"part {name!r}", self.source.url)
            self.problems[name] = error
            self.variables[name] = ManifestVariable(
                (), ManifestArray.unreadable((), "V1", f"{error}"), {}
            )

    @property
    def _origin(self) -> str:
        return path_or_url(self.source.url)

    def _read_image(self, name: str, part: HeaderDataUnit, file: BinaryIO) -> ManifestVariable:
        self._demand_whole(name, part)
        image = show_image(part) if part.is_compressed else part
        demand_axes(len(image.shape), "it")
        meant = _find_unsigned_dtype(image.cards)
        stored = np.dtype(DTYPES[image.bitpix])
        dtype = stored if meant is None else np.dtype(meant)
        codecs = () if meant is None else (SignFlip(dtype.itemsize),)
        if part.is_compressed:
            tiles = find_tiles(part, image.shape, stored, file, self.source)
            fragment = Fragment.whole(tiles.axes, tiles.manifest)
            layout = tuple(range(len(image.shape)))
            pipeline = CodecPipeline(dtype, (*codecs, *tiles.codecs), layout=layout)
            array = ManifestArray.of_fragment(fragment, pipeline)
        else:
            array = self._refer_plain(part, dtype, codecs)
        encoding = {"source": self._origin, "original_shape": image.shape, "dtype": dtype}
        attributes = _find_packing(image.cards, dtype, meant) | _select_attributes(image.cards)
        return ManifestVariable(self._axes.name(name, image.shape), array, attributes, encoding)

    def _demand_whole(self, name: str, part: HeaderDataUnit) -> None:
        end = part.offset + part.nbytes
        if self.source.size is not None and end > self.source.size:
            raise FormatError(
                f"{self.source.url}: the data of {name!r} would end at byte {end} of "
                f"{self.source.size}; the file is truncated, fetch it again"
            )

    def _refer_plain(
        self, part: HeaderDataUnit, dtype: np.dtype[Any], codecs: tuple[Codec, ...]
    ) -> ManifestArray:
        chunks = _cut_pieces(part.shape, dtype.itemsize) if codecs else part.shape
        grid = tuple(n // c if c else 0 for n, c in zip(part.shape, chunks, strict=True))
        size = prod(chunks) * dtype.itemsize
        return ManifestArray.from_arrays(
            shape=part.shape,
            chunks=tuple(max(c, 1) for c in chunks),
            dtype=dtype,
            path=self.source,
            offsets=part.offset + size * np.arange(prod(grid), dtype=np.int64).reshape(grid),
            lengths=size if prod(grid) else 0,
            codecs=codecs,
        )


def _demand_image(part: HeaderDataUnit) -> None:
    if part.is_compressed:
        return
    if part.kind == "IMAGE" and part.cards.get("GROUPS") is not True:
        return
    what = "random groups" if part.kind == "IMAGE" else f"a {part.kind} extension"
    raise UnsupportedError(
        f"FITS part {part.number}: it is {what}, and only images and tables can be referenced; "
        f"read it with astropy, or leave it out with drop_variables or on_error='skip'"
    )


def _find_unsigned_dtype(cards: Mapping[str, Any]) -> str | None:
    """Return the type of integers stored with the highest bit flipped, None for others."""
    if cards.get("BSCALE", 1) != 1:
        return None
    return UNSIGNED.get((cards["BITPIX"], cards.get("BZERO", 0)))


def _cut_pieces(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return chunks of whole rows that divide an image evenly."""
    chunks = list(shape)
    for axis in range(len(shape)):
        while prod(chunks) * itemsize > PIECE and chunks[axis] > 1:
            chunks[axis] = next(
                (n for n in range(chunks[axis] // 2, 1, -1) if chunks[axis] % n == 0), 1
            )
    return tuple(chunks)


def _find_packing(
    cards: Mapping[str, Any], dtype: np.dtype[Any], meant: str | None
) -> dict[str, Any]:
    """Return scale, zero point and blanks as CF has them, in the precision astropy computes in."""
    if meant is not None:
        # the standard does not say what BLANK means for shifted integers
        return {"BLANK": cards["BLANK"]} if "BLANK" in cards else {}
    found: dict[str, Any] = {}
    # section 5.3: few bits need single precision only
    precise = np.float64 if dtype.kind == "f" and dtype.itemsize == 8 else np.float32
    precise = np.float64 if dtype.kind == "i" and dtype.itemsize > 2 else precise
    scale, zero = cards.get("BSCALE", 1), cards.get("BZERO", 0)
    if (scale, zero) != (1, 0):
        found = {"scale_factor": precise(scale), "add_offset": precise(zero)}
    blank = cards.get("BLANK")
    if type(blank) is int and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if limits.min <= blank <= limits.max:
            found["_FillValue"] = dtype.newbyteorder("=").type(blank)
    return found


def _select_attributes(cards: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cards that do not say how the data are stored."""
    packing = {"BSCALE", "BZERO", "BLANK"}
    return {
        name: int(value) if isinstance(value, bool) else value
        for name, value in cards.items()
        if name not in STRUCTURE | packing and not (name[:5] == "NAXIS" and name[5:].isdigit())
    }


def _open_astropy(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    """Open a file with astropy, as it is stored and as it is scaled."""
    from astropy.io import fits  # type: ignore[import-untyped]

    stored, scaled = (
        closing.enter_context(fits.open(target(), memmap=False, do_not_scale_image_data=is_raw))
        for is_raw in (True, False)
    )

    def read_part(wanted: NativeRegion) -> Any:
        # astropy shows unsigned integers only when it scales
        for unit in scaled if wanted.decoded or wanted.has_codecs else stored:
            where = unit.fileinfo()
            # images in tables are decoded with their headers
            if where["hdrLoc"] <= wanted.offset < where["datLoc"] + where["datSpan"]:
                if isinstance(unit, fits.BinTableHDU | fits.TableHDU):
                    return _read_column(unit, wanted)
                return np.asarray(unit.section[wanted.region] if wanted.region else unit.data)
        raise CannotError("it knows no image or table there")

    return read_part


def _read_column(unit: Any, wanted: NativeRegion) -> Any:
    """Return a region of a column as astropy decodes it."""
    columns = {column.name: column for column in unit.columns}
    column = columns.get(wanted.variable)
    if column is None:
        raise CannotError("it knows no column of that name")
    values = np.asarray(unit.data[column.name])
    is_varying = values.dtype.kind == "O"
    if is_varying:
        values = np.concatenate([np.zeros(0, "?"), *(np.ravel(array) for array in values)])
    has_scale = {column.bscale, column.bzero} - {None, "", 0, 1}
    # integers whose sign is flipped have no other values when they are not scaled
    is_scaled = has_scale and values.dtype.kind == "f" and not wanted.decoded
    # and arrays of varying length keep their type, which cannot hold scaled values
    if column.null is not None or is_scaled or (has_scale and is_varying):
        raise CannotError("it shows other numbers for undefined values, or scales them")
    # texts of astropy keep the blanks that follow them, until one of them is asked for
    values = np.char.rstrip(_end_texts(values)) if values.dtype.kind == "U" else values
    return region_of(values, wanted)


def _end_texts(texts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return texts up to their first zero; what follows is undefined (section 7.3.3.1)."""
    letters = np.ascontiguousarray(texts)[..., None].view(np.uint32)
    kept = letters * np.logical_and.accumulate(letters != 0, axis=-1)
    ended: np.ndarray[Any, Any] = kept.astype(np.uint32).view(texts.dtype)[..., 0]
    return ended


PARSER = Parser(
    "fits",
    (".fits", ".fit", ".fts"),
    detect,
    read,
    natives=(NativeReader("astropy", _open_astropy, remote=True),),
)
