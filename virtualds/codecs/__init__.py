"""The codecs: one file per family, and here the table of what they are called elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from virtualds.codec import ONLY_VIRTUALDS, Buffer, Bytes, Codec, CodecError, Shaped
from virtualds.codecs.bit_fields import BitFields
from virtualds.codecs.blosc2 import Blosc2Frame
from virtualds.codecs.cast_values import CastValues
from virtualds.codecs.compressed_blocks import (
    Bitshuffle,
    BitshuffleBlocks,
    Lz4Blocks,
    bitshuffle_from_hdf5,
)
from virtualds.codecs.crc32c import Crc32c
from virtualds.codecs.fletcher32 import Fletcher32
from virtualds.codecs.grib import GribMessage
from virtualds.codecs.jpeg import Jpeg, JpegChunk
from virtualds.codecs.jpegls import JpegLs
from virtualds.codecs.jpegxl import JpegXlChunk
from virtualds.codecs.lzf import Lzf
from virtualds.codecs.numcodecs_family import (
    NUMCODECS_IDS,
    Numcodecs,
    bitround_from_zarr_v3,
    blosc_from_hdf5,
    blosc_from_zarr_v3,
    bzip2_from_hdf5,
    is_brought,
    numcodecs_from_zarr_v3,
    zstd_from_hdf5,
    zstd_from_zarr_v3,
)
from virtualds.codecs.packed_bits import Nbit, ScaleOffset
from virtualds.codecs.pcodec import Pcodec
from virtualds.codecs.scaled_values import ScaledValues
from virtualds.codecs.shuffle import Shuffle
from virtualds.codecs.sign_flip import SignFlip
from virtualds.codecs.szip import Szip
from virtualds.codecs.tiff import Differences, FloatDifferences, Lzw, PackBits
from virtualds.codecs.unreadable import Unreadable
from virtualds.codecs.zfp import Zfp, ZfpChunk, Zfpy
from virtualds.codecs.zlib import Gzip, Zlib
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError

CODECS: tuple[type[Codec], ...] = (
    Zlib,
    Gzip,
    Shuffle,
    Fletcher32,
    Crc32c,
    Szip,
    Nbit,
    ScaleOffset,
    Lzf,
    Lz4Blocks,
    Bitshuffle,
    BitshuffleBlocks,
    Blosc2Frame,
    Zfp,
    ZfpChunk,
    Zfpy,
    Pcodec,
    JpegLs,
    Differences,
    FloatDifferences,
    Lzw,
    PackBits,
    Jpeg,
    JpegChunk,
    JpegXlChunk,
    SignFlip,
    GribMessage,
    ScaledValues,
    CastValues,
    BitFields,
)
"""Every codec with code of its own.

`NUMCODECS_IDS` are decoded by numcodecs, and so are those that other packages bring to it.
"""

BY_ZARR_V2_ID = {codec.zarr_v2_id: codec for codec in CODECS}
FromZarrV3 = Callable[[Mapping[str, Any], np.dtype[Any]], Codec]
BY_ZARR_V3_NAME: dict[str, FromZarrV3] = {
    **{c.zarr_v3_name: c.from_zarr_v3 for c in CODECS if c.zarr_v3_name is not None},
    **{f"numcodecs.{c.zarr_v2_id}": c.from_zarr_v3 for c in CODECS if not c.only_virtualds},
    **{
        f"virtualds.{c.zarr_v2_id.removeprefix(ONLY_VIRTUALDS)}": c.from_zarr_v3
        for c in CODECS
        if c.only_virtualds
    },
    "bitround": bitround_from_zarr_v3,
    "blosc": blosc_from_zarr_v3,
    "cast_value": CastValues.from_registry,
    "packbits": BitFields.from_registry,
    "scale_offset": ScaledValues.from_registry,
    "zstd": zstd_from_zarr_v3,
}
"""Codecs by their names in Zarr v3; those of numcodecs have others besides."""
BY_CHUNK: dict[str, type[Shaped]] = {c.registered_name: c for c in CODECS if issubclass(c, Shaped)}
"""Codecs of the registry that have to know the shape of the chunks they encode."""
HDF5_FILTERS: dict[int, Callable[[Sequence[int], int], Codec]] = {
    1: Zlib.from_hdf5,
    2: Shuffle.from_hdf5,
    3: Fletcher32.from_hdf5,
    4: Szip.from_hdf5,
    5: Nbit.from_hdf5,
    6: ScaleOffset.from_hdf5,
    307: bzip2_from_hdf5,
    32000: Lzf.from_hdf5,
    32001: blosc_from_hdf5,
    32004: Lz4Blocks.from_hdf5,
    32008: bitshuffle_from_hdf5,
    32013: Zfp.from_hdf5,
    32015: zstd_from_hdf5,
    32018: JpegLs.from_hdf5,
    32026: Blosc2Frame.from_hdf5,
}
"""Codecs by HDF5 filter identification value."""
REFUSED = {305: "LZO", 32017: "SZ", 32024: "SZ3", 32028: "SPERR", 32029: "HTJ2K"}
"""Registered filters whose chunks no Python package decodes as HDF5 does, by their names.

SZ3 is decoded by imagecodecs in another version of its format, and asked for this one ends the
process.
"""


def codec_from_zarr_v2(config: Mapping[str, Any]) -> Codec:
    """Return the codec of one entry of ``filters`` or ``compressor`` of a Zarr v2 array.

    Raises
    ------
    UnsupportedError
        No codec of that ``id`` is known.
    FormatError
        Its configuration makes no sense.

    References
    ----------
    Zarr storage specification version 2, "Arrays", keys ``compressor`` and ``filters``.
    """
    name = config.get("id")
    if isinstance(name, str) and name in BY_ZARR_V2_ID:
        with _sensible(f"codec {name!r}: its configuration {dict(config)}", "metadata"):
            return BY_ZARR_V2_ID[name].from_zarr_v2(config)
    if isinstance(name, str) and (name in NUMCODECS_IDS or is_brought(name)):
        return Numcodecs.from_zarr_v2(config)
    known = sorted([*BY_ZARR_V2_ID, *NUMCODECS_IDS])
    raise UnsupportedError(f"codec {name!r}: it is none of {known}; open the data with zarr-python")


def codec_from_zarr_v3(
    name: str,
    config: Mapping[str, Any],
    dtype: np.dtype[Any],
    shape: tuple[int, ...] | None = None,
) -> Codec:
    """Return the codec of one entry of ``codecs`` of a Zarr v3 array.

    Parameters
    ----------
    name : str
        What it is called there.
    config : mapping
        Its configuration.
    dtype : dtype
        Of the array that it encodes, or that has become the bytes that it encodes.
    shape : tuple of int, optional
        Of the chunks that it encodes, where all of them have the same.

    Raises
    ------
    UnsupportedError
        No codec of that name is known, or it needs the shape.
    FormatError
        Its configuration makes no sense.

    References
    ----------
    Zarr core specification version 3, "Chunk encoding", and the registry zarr-extensions.
    """
    make = from_zarr_v3(name, shape)
    with _sensible(f"codec {name!r} of {dtype}: its configuration {dict(config)}", "metadata"):
        return make(config, dtype)


@contextmanager
def _sensible(what: str, where: str) -> Iterator[None]:
    """Say of parameters of which no codec is made that they make no sense."""
    try:
        yield
    except VirtualdsError:
        raise
    except (IndexError, KeyError, OverflowError, SyntaxError, TypeError, ValueError) as error:
        raise FormatError(f"{what} makes no sense ({error}); the {where} is damaged") from error


def from_zarr_v3(name: str, shape: tuple[int, ...] | None = None) -> FromZarrV3:
    """Return what makes the codec that Zarr v3 calls by a name, of chunks of a shape.

    Raises
    ------
    UnsupportedError
        No codec of that name is known, or it needs the shape.
    """
    if name in BY_CHUNK:
        if shape is None:
            raise UnsupportedError(
                f"codec {name!r}: it needs chunks of one shape, on a regular grid; open the data "
                f"with a library that knows it"
            )
        return partial(BY_CHUNK[name].from_registry, shape=shape)
    if name in BY_ZARR_V3_NAME:
        return BY_ZARR_V3_NAME[name]
    inner = name.removeprefix("numcodecs.")
    if name != inner and (inner in NUMCODECS_IDS or is_brought(inner)):
        return partial(numcodecs_from_zarr_v3, inner)
    known = sorted([*BY_ZARR_V3_NAME, *BY_CHUNK, *(f"numcodecs.{one}" for one in NUMCODECS_IDS)])
    raise UnsupportedError(f"codec {name!r}: it is none of {known}; open the data with zarr-python")


def codec_from_hdf5(number: int, values: Sequence[int], itemsize: int) -> Codec:
    """Return the codec of one filter of an HDF5 dataset.

    Parameters
    ----------
    number : int
        Filter identification value (HDF5 file format, IV.A.2.l).
    values : sequence of int
        The filter's client data.
    itemsize : int
        Bytes per element of the dataset.

    Raises
    ------
    UnsupportedError
        The filter is not known.
    FormatError
        Its client data make no sense.
    """
    if number not in HDF5_FILTERS:
        name = f" ({REFUSED[number]})" if number in REFUSED else ""
        raise UnsupportedError(
            f"HDF5 filter {number}{name}: it is none of {sorted(HDF5_FILTERS)}; load the variable "
            f"through h5py, or leave it out with drop_variables"
        )
    with _sensible(f"HDF5 filter {number}: its client data {tuple(values)}", "file"):
        return HDF5_FILTERS[number](values, itemsize)


__all__ = [
    "BitFields",
    "Bitshuffle",
    "BitshuffleBlocks",
    "Blosc2Frame",
    "Buffer",
    "Bytes",
    "CastValues",
    "Codec",
    "CodecError",
    "Crc32c",
    "Differences",
    "Fletcher32",
    "FloatDifferences",
    "GribMessage",
    "Gzip",
    "Jpeg",
    "JpegChunk",
    "JpegLs",
    "JpegXlChunk",
    "Lz4Blocks",
    "Lzf",
    "Lzw",
    "Nbit",
    "Numcodecs",
    "PackBits",
    "Pcodec",
    "ScaleOffset",
    "ScaledValues",
    "Shaped",
    "Shuffle",
    "SignFlip",
    "Szip",
    "Unreadable",
    "Zfp",
    "ZfpChunk",
    "Zfpy",
    "Zlib",
    "codec_from_hdf5",
    "codec_from_zarr_v2",
    "codec_from_zarr_v3",
    "from_zarr_v3",
]
