"""The codecs: how bytes become values.

Each family of codecs has a file; each codec knows its own names (`virtualds.codecs.codec.Codec`).
A new codec is a file and a line in `CODECS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from virtualds.bounds import Buffer
from virtualds.codecs.bitshuffle_lz4 import Bitshuffle, BitshuffleBlocks, Lz4Blocks
from virtualds.codecs.blosc2 import Blosc2Frame
from virtualds.codecs.cast_value import CastValues
from virtualds.codecs.checksums import Crc32c, Fletcher32
from virtualds.codecs.codec import Codec, CodecError, Kind, Make, OfOneType, Shaped, Unreadable
from virtualds.codecs.grib import GribMessage
from virtualds.codecs.hdf5_nbit import Nbit, ScaleOffset
from virtualds.codecs.jpeg import Jpeg, JpegChunk, JpegLs
from virtualds.codecs.jpegxl import JpegXlChunk
from virtualds.codecs.libraries import Bytes
from virtualds.codecs.lzf import Lzf
from virtualds.codecs.numcodecs import Numcodecs
from virtualds.codecs.packbits import BitFields
from virtualds.codecs.pcodec import Pcodec
from virtualds.codecs.registry import Registry
from virtualds.codecs.scale_offset import ScaledValues
from virtualds.codecs.shuffle import Shuffle
from virtualds.codecs.szip import Szip
from virtualds.codecs.tiff import Differences, FloatDifferences, Lzw, PackBits
from virtualds.codecs.unsigned import SignFlip
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
"""Every codec with its own class; `Numcodecs` stands for those of numcodecs and its plugins."""

REGISTRY = Registry((*CODECS, Numcodecs))
"""The codecs by name."""

UNSUPPORTED_HDF5_FILTERS = {305: "LZO", 32017: "SZ", 32024: "SZ3", 32028: "SPERR", 32029: "HTJ2K"}
"""Names of registered filters whose chunks no Python package decodes as HDF5 does.

imagecodecs decodes another version of SZ3's format; given HDF5's version, it ends the process.
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
    make = REGISTRY.find_maker("zarr_v2", name) if isinstance(name, str) else None
    if make is None:
        raise _unknown_error(name)
    with _explain_bad_parameters(f"codec {name!r}: its configuration {dict(config)}", "metadata"):
        return make(config)


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
        The codec's name.
    config : mapping
        Its configuration.
    dtype : dtype
        Data type of the array whose elements, or bytes, it encodes.
    shape : tuple of int, optional
        Shape of the chunks that it encodes, where all have the same.

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
    make = find_zarr_v3_maker(name)
    with _explain_bad_parameters(
        f"codec {name!r} of {dtype}: its configuration {dict(config)}", "metadata"
    ):
        return make(config, dtype, shape)


def find_zarr_v3_maker(name: str) -> Make:
    """Return the function that makes the codec of a Zarr v3 name.

    Raises
    ------
    UnsupportedError
        No codec of that name is known.
    """
    make = REGISTRY.find_maker("zarr_v3", name)
    if make is None:
        raise _unknown_error(name)
    return make


def _unknown_error(name: object) -> UnsupportedError:
    return UnsupportedError(
        f"codec {name!r}: virtualds has no decoder for it; open the data with zarr-python"
    )


@contextmanager
def _explain_bad_parameters(what: str, where: str) -> Iterator[None]:
    """Turn the errors of a codec's constructor into a `FormatError`."""
    try:
        yield
    except VirtualdsError:
        raise
    except (IndexError, KeyError, OverflowError, SyntaxError, TypeError, ValueError) as error:
        raise FormatError(f"{what} is invalid ({error}); the {where} is damaged") from error


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
    make = REGISTRY.find_maker("hdf5", number)
    if make is None:
        name = (
            f" ({UNSUPPORTED_HDF5_FILTERS[number]})" if number in UNSUPPORTED_HDF5_FILTERS else ""
        )
        raise UnsupportedError(
            f"HDF5 filter {number}{name}: virtualds has no decoder for it; load the variable with "
            f"h5py, or leave it out with drop_variables"
        )
    with _explain_bad_parameters(f"HDF5 filter {number}: its client data {tuple(values)}", "file"):
        return make(values, itemsize)


def codec_from_tiff(number: int, page: Any) -> Codec:
    """Return the codec of a TIFF page.

    Parameters
    ----------
    number : int
        Value of the tag Compression (TIFF 6.0, section 8).
    page : TiffPage
        The page, from tifffile.

    Raises
    ------
    UnsupportedError
        The number is not known, or the codec decodes other pages only.
    """
    return _tiff_maker("tiff", number)(page)


def predictor_from_tiff(
    number: int, shape: tuple[int, int, int], dtype: np.dtype[Any]
) -> OfOneType:
    """Return the codec of a TIFF predictor; its ``dtype`` is that of its encoded samples.

    Parameters
    ----------
    number : int
        Value of the tag Predictor (TIFF 6.0, section 14).
    shape : tuple of int
        Rows, pixels and samples of a chunk.
    dtype : dtype
        Data type of the samples, in the byte order of the file.

    Raises
    ------
    UnsupportedError
        The number is not known.
    """
    return cast(OfOneType, _tiff_maker("tiff_predictor", number)(shape, dtype))


def _tiff_maker(kind: Kind, number: int) -> Make:
    make = REGISTRY.find_maker(kind, number)
    if make is None:
        raise UnsupportedError(
            f"{kind} {number}: virtualds has no decoder for it; read the file with tifffile's "
            f"asarray()"
        )
    return make


def known_names(kind: Kind) -> list[str | int]:
    """Return the sorted names of all codecs in one kind of format."""
    return REGISTRY.list_names(kind)


def array_serialisers() -> frozenset[str]:
    """Return the Zarr v3 names of the array-to-bytes codecs."""
    return REGISTRY.array_serialisers


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
    "array_serialisers",
    "codec_from_hdf5",
    "codec_from_tiff",
    "codec_from_zarr_v2",
    "codec_from_zarr_v3",
    "find_zarr_v3_maker",
    "known_names",
    "predictor_from_tiff",
]
