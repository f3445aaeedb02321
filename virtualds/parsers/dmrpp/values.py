"""The values of one variable, as a DMR++ sidecar has them: chunks in files, or values in itself.

OPeNDAP, "DMR++" (docs.opendap.org/index.php/DMR++): elements ``compact`` and ``missingdata``;
``vlsa``: BES, ``dmrpp_module/vlsa_util.cc``.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import Data
from virtualds.bounds import decode_stream, demand_values
from virtualds.codecs.codec import NO_FILTERS
from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.dmrpp.chunks import (
    DMRPP,
    REMEDY,
    Storage,
    lists_chunks,
    parse_number,
    read_chunks,
)
from virtualds.parsers.hdf5.data_types import TEXT_DTYPE


def read_values(stored: Storage) -> tuple[Data, dict[str, Any]]:
    """Return the values of a variable, and the encoding that `xarray` knows them by.

    Raises
    ------
    FormatError
        What the sidecar says makes no sense.
    UnsupportedError
        The sidecar does not say all that is needed, or says what references cannot express.
    """
    places = [child for child in stored.element if child.tag.startswith(DMRPP)]
    kinds = {child.tag.removeprefix(DMRPP) for child in places}
    reader = next((read for kind, read in READERS.items() if kind in kinds), None)
    if reader not in (read_chunks, None) and any(map(lists_chunks, places)):
        raise FormatError(
            f"the sidecar holds its values, and says that they lie in chunks; {REMEDY}"
        )
    if stored.dtype.hasobject and reader not in (_read_texts, _read_compact):
        raise UnsupportedError(
            f"its strings have varying lengths, and the sidecar does not hold them; {REMEDY}"
        )
    if stored.dtype.names and reader not in (read_chunks, None):
        raise UnsupportedError(f"the sidecar holds its structures, and not their form; {REMEDY}")
    if reader is None:
        said = f"only {', '.join(sorted(kinds))}" if kinds else "nothing"
        raise UnsupportedError(
            f"the sidecar does not say where its values lie ({said}); {REMEDY}, or make the "
            f"sidecar again with a newer build_dmrpp"
        )
    data, encoding = reader(stored)
    return (_cut_texts(stored, data) if stored.dtype.kind == "S" else data), encoding


@dataclass(frozen=True)
class CutTexts:
    """Strings of fixed length, cut as HDF5 cuts them while it reads.

    Parameters
    ----------
    array : ManifestArray
        The strings as stored.
    pad : str
        A key of `CUTS`.
    """

    array: ManifestArray
    pad: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.array.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the strings, which have the stored length at most."""
        return self.array.dtype

    def read(self, key: Sequence[Any]) -> npt.NDArray[Any]:
        """Read a selection: per axis an int, a slice, or a 1-D array of positions."""
        stored = np.asarray(self.array.read(tuple(key)))
        # numpy leaves out zeros at the end, behind which HDF5 removes no spaces
        whole = (text.ljust(self.dtype.itemsize, b"\0") for text in stored.ravel().tolist())
        return np.array([*map(CUTS[self.pad], whole)], self.dtype).reshape(stored.shape)


CUTS: Mapping[str, Callable[[bytes], bytes]] = {
    "null_term": lambda text: text.partition(b"\0")[0],
    "space_pad": lambda text: text.rstrip(b" "),
    "space": lambda text: text.rstrip(b" "),
}
"""What HDF5 leaves of a string of fixed length, by the padding (HDF5, ``H5T__conv_s_s``)."""
PADDED = ("null_pad", "null", "zero")
"""Paddings of strings that numpy removes as HDF5 does."""
UNKNOWN = ("not_set", None)


def _cut_texts(stored: Storage, data: ManifestArray) -> ManifestArray | CutTexts:
    fixed = stored.element.find(f"{DMRPP}FixedLengthStringArray")
    pad = None if fixed is None else fixed.get("pad")
    if pad in PADDED or (stored.dtype.itemsize == 1 and pad in ("null_term", *UNKNOWN)):
        return data
    if pad is None or pad not in CUTS:
        raise UnsupportedError(f"the sidecar does not say how its strings end ({pad!r}); {REMEDY}")
    return CutTexts(data, pad)


def _read_compact(stored: Storage) -> tuple[ManifestArray | npt.NDArray[Any], dict[str, Any]]:
    data = _decode_text(stored, "compact")
    if stored.dtype.hasobject:
        if stored.shape:
            raise UnsupportedError(f"its strings have varying lengths; {REMEDY}")
        return _build_texts([data.rstrip(b"\0").decode("utf-8", "replace")], ()), {}
    return _hold(stored, data)


def _read_missing(stored: Storage) -> tuple[ManifestArray, dict[str, Any]]:
    """Return values that the file does not hold, and that Hyrax computed: deflated in base 64."""
    data = _decode_text(stored, "missingdata")
    if prod(stored.shape) > 1:
        demand_values(stored.nbytes, "its values")
        data = _inflate(data, stored.nbytes)
    return _hold(stored, data)


def _hold(stored: Storage, data: bytes) -> tuple[ManifestArray, dict[str, Any]]:
    """Return values in little-endian bytes as an array of one chunk, which it holds."""
    nbytes = stored.nbytes
    if len(data) != nbytes:
        raise FormatError(
            f"the sidecar holds {len(data)} bytes of it, and its values take {nbytes}; the sidecar "
            f"is damaged, fetch it again"
        )
    array = ManifestArray.of_bytes(stored.shape, stored.dtype.newbyteorder("<"), data)
    return array, NO_FILTERS | {"contiguous": True, "chunksizes": None}


def _read_texts(stored: Storage) -> tuple[npt.NDArray[Any], dict[str, Any]]:
    """Return strings of varying length: one element each, or for ``c`` equal ones."""
    found = stored.element.find(f"{DMRPP}vlsa")
    texts: list[str] = []
    most = prod(stored.shape)
    values = [] if found is None else list(found)
    sizes = [parse_number(value.get("s", "0"), "s") for value in values]
    demand_values(8 * most + sum(sizes), "its strings")
    for value, size in zip(values, sizes, strict=True):
        text = value.text or ""
        if "s" in value.attrib:
            # invalid UTF-8 is replaced, as in netCDF4 files
            text = _inflate(_from_base64(text), size).decode("utf-8", "replace")
        count = parse_number(value.get("c", "1"), "c")
        texts += [text] * min(count, most + 1 - len(texts))
    if len(texts) != most:
        raise FormatError(
            f"the sidecar does not hold {most} strings of it, as its shape {stored.shape} says; "
            f"the sidecar is damaged, fetch it again"
        )
    return _build_texts(texts, stored.shape), {}


def _build_texts(texts: list[str], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    found = np.empty(len(texts), TEXT_DTYPE)
    found[:] = texts
    return found.reshape(shape)


def _decode_text(stored: Storage, name: str) -> bytes:
    return _from_base64(stored.element.findtext(f"{DMRPP}{name}") or "")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise FormatError(
            f"its values are no text of base 64 ({error}); the sidecar is damaged, fetch it again"
        ) from error


def _inflate(data: bytes, nbytes: int) -> bytes:
    try:
        return decode_stream(zlib.decompressobj(), data, nbytes)
    except (zlib.error, ValueError, EOFError) as error:
        raise FormatError(
            f"its values cannot be decompressed ({error}); the sidecar is damaged, fetch it again"
        ) from error


READERS: Mapping[str, Callable[[Storage], tuple[Any, dict[str, Any]]]] = {
    "compact": _read_compact,
    "missingdata": _read_missing,
    "vlsa": _read_texts,
    "chunks": read_chunks,
    "chunk": read_chunks,
}
"""What reads the values of a variable, by the element that says where they are.

Beside values that a sidecar holds, ``chunks`` may say a fill value, and lists no chunk.
"""
