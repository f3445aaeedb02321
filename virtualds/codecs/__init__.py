"""The codecs and their registry.

Each family of codecs has a file; each codec has its own names (`virtualds.codecs.codec.Codec`).
A new codec is a class in the file of its family, and a line in `CODECS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import numpy as np

from virtualds.codecs.codec import VIRTUALDS_PREFIX, Codec, MakeCodec, Namespace, SingleTypeCodec
from virtualds.errors import UnsupportedError, VirtualdsError, make_damage_error
from virtualds.importing import LazyTable

CODECS = LazyTable[type[Codec]](
    "virtualds.codecs.zlib:Zlib",
    "virtualds.codecs.zlib:Gzip",
    "virtualds.codecs.hdf:Shuffle",
    "virtualds.codecs.checksums:Fletcher32",
    "virtualds.codecs.checksums:Crc32c",
    "virtualds.codecs.numcodecs:Numcodecs",
    "virtualds.codecs.hdf:Szip",
    "virtualds.codecs.hdf:Nbit",
    "virtualds.codecs.hdf:ScaleOffset",
    "virtualds.codecs.hdf:Lzf",
    "virtualds.codecs.blosc:Lz4Blocks",
    "virtualds.codecs.blosc:Bitshuffle",
    "virtualds.codecs.blosc:BitshuffleBlocks",
    "virtualds.codecs.blosc:Blosc2Frame",
    "virtualds.codecs.zfp:Zfp",
    "virtualds.codecs.zfp:ZfpChunk",
    "virtualds.codecs.zfp:Zfpy",
    "virtualds.codecs.numcodecs:Pcodec",
    "virtualds.codecs.images:JpegLs",
    "virtualds.codecs.tiff:Differences",
    "virtualds.codecs.tiff:FloatDifferences",
    "virtualds.codecs.tiff:Lzw",
    "virtualds.codecs.tiff:PackBits",
    "virtualds.codecs.tiff:PackedIntegers",
    "virtualds.codecs.tiff:ReversedBits",
    "virtualds.codecs.tiff:Fax",
    "virtualds.codecs.images:Webp",
    "virtualds.codecs.images:Png",
    "virtualds.codecs.images:Jpeg2000",
    "virtualds.codecs.images:JpegXl",
    "virtualds.codecs.images:Lerc",
    "virtualds.codecs.images:Jpeg",
    "virtualds.codecs.images:JpegChunk",
    "virtualds.codecs.images:JpegXlChunk",
    "virtualds.codecs.fits:SignFlip",
    "virtualds.codecs.grib:GribMessage",
    "virtualds.codecs.zarr_extensions:ScaledValues",
    "virtualds.codecs.zarr_extensions:CastValues",
    "virtualds.codecs.zarr_extensions:BitFields",
    "virtualds.codecs.fits:RiceTile",
    "virtualds.codecs.fits:PlioTile",
    "virtualds.codecs.fits:FitsImage",
    "virtualds.codecs.hdf:RunLength",
    "virtualds.codecs.hdf:SkippingHuffman",
    "virtualds.codecs.hdf:BitField",
    "virtualds.codecs.fits:ColumnBytes",
    "virtualds.codecs.fits:Logicals",
    "virtualds.codecs.fits:RowBits",
    "virtualds.codecs.fits:PaddedText",
    "virtualds.codecs.fits:TextNumbers",
    "virtualds.codecs.zlib:ZipMember",
)
"""All codec classes, common ones first."""

UNSUPPORTED_HDF5_FILTERS = {305: "LZO", 32017: "SZ", 32024: "SZ3", 32028: "SPERR", 32033: "HTJ2K"}
"""Names of registered filters that no Python package decodes as HDF5 does.

imagecodecs decodes another version of SZ3's format; HDF5's version crashes it.
"""
HDF5PLUGIN_FILTERS = frozenset({32017, 32024, 32028, 32033})
"""Unsupported filters that the package hdf5plugin adds to the HDF5 library."""


# ---------------------------------------------------------------------- names

CodecAndMake = tuple[type[Codec], MakeCodec]
"""A codec class, and the constructor for one of its names."""


@lru_cache(1024)
def _look_up(
    codecs: Sequence[type[Codec]], namespace: Namespace, name: str | int
) -> CodecAndMake | None:
    """Return the codec with a name, or None; modules after the match are not imported."""
    for codec in codecs:
        for named in codec.names():
            if (named.namespace, named.name) == (namespace, name):
                return codec, named.make
    return None


def find_maker(namespace: Namespace, name: Any) -> MakeCodec:
    """Return the constructor for a codec name; `CodecName` gives its arguments.

    Raises `UnsupportedError` if no codec of that name is known.
    """
    if isinstance(name, str | int):
        if (match := _look_up(CODECS, namespace, name)) is not None:
            return match[1]
        for codec in CODECS:
            if (make := codec.find_plugin(namespace, name)) is not None:
                return make
    if namespace == "hdf5":
        raise make_no_filter_error(name)
    label, remedy = f"codec {name!r}", "open the data with zarr-python"
    if namespace.startswith("tiff"):
        label, remedy = f"{namespace} {name}", "read the file with tifffile's asarray()"
    raise UnsupportedError(f"{label}: virtualds has no decoder for it; {remedy}")


def is_array_to_bytes_name(name: str) -> bool:
    """Return whether a Zarr v3 name belongs to an array-to-bytes codec.

    The names of virtualds do not: they appear in pipelines, where each codec converts bytes to
    bytes.
    """
    match = None if name.startswith(VIRTUALDS_PREFIX) else _look_up(CODECS, "zarr_v3", name)
    return match is not None and match[0].is_array_to_bytes


def list_codec_names(namespace: Namespace) -> list[str | int]:
    """Return all names of one namespace, sorted, without the names of plugins.

    Raises `ValueError` if two codecs have the same name.

    Examples
    --------
    >>> list_codec_names("tiff_predictor")
    [2, 3]
    """
    owners = dict[str | int, type[Codec]]()
    for codec in CODECS:
        for name in (named.name for named in codec.names() if named.namespace == namespace):
            if (other := owners.setdefault(name, codec)) is not codec:
                raise ValueError(
                    f"{namespace} name {name!r}: {codec.__name__} has it, and so has "
                    f"{other.__name__}; rename one of them"
                )
    # numbers by value, strings alphabetically
    return sorted(owners, key=lambda n: (n, "") if isinstance(n, int) else (0, n))


# ---------------------------------------------------------------------- codecs


def codec_from_zarr_v2(config: Mapping[str, Any]) -> Codec:
    """Build a codec from an entry of ``filters`` or ``compressor`` of a Zarr v2 array.

    Raises `UnsupportedError` if no codec of that ``id`` is known, and `FormatError` if its
    configuration is invalid.

    References
    ----------
    Zarr storage specification version 2, "Arrays", keys ``compressor`` and ``filters``.
    """
    name = config.get("id")
    make = find_maker("zarr_v2", name)
    with _convert_errors(f"codec {name!r}: its configuration {dict(config)}", "metadata"):
        return make(config)


def codec_from_zarr_v3(
    name: str,
    config: Mapping[str, Any],
    dtype: np.dtype[Any],
    shape: tuple[int, ...] | None = None,
) -> Codec:
    """Build a codec from an entry of ``codecs`` of a Zarr v3 array.

    Raises `UnsupportedError` if no codec of that name is known, or it needs the shape, and
    `FormatError` if its configuration is invalid.

    Parameters
    ----------
    name : str
        The codec's name.
    config : mapping
        Its configuration.
    dtype : dtype
        Data type of the array whose elements, or bytes, it encodes.
    shape : tuple of int, optional
        Shape of the chunks that it encodes, if it is the same for all.

    References
    ----------
    Zarr core specification version 3, "Chunk encoding", and the registry zarr-extensions.
    """
    make = find_maker("zarr_v3", name)
    with _convert_errors(
        f"codec {name!r} of {dtype}: its configuration {dict(config)}", "metadata"
    ):
        return make(config, dtype, shape)


@contextmanager
def _convert_errors(subject: str, location: str) -> Iterator[None]:
    """Convert errors of a codec's constructor to a `FormatError`."""
    try:
        yield
    except VirtualdsError:
        raise
    except (IndexError, KeyError, OverflowError, SyntaxError, TypeError, ValueError) as error:
        raise make_damage_error(f"{subject} is invalid ({error})", location) from error


def codec_from_hdf5(number: int, values: Sequence[int], itemsize: int) -> Codec:
    """Build a codec from a filter of an HDF5 dataset.

    Raises `UnsupportedError` if the filter is not known, and `FormatError` if its client data are
    invalid.

    Parameters
    ----------
    number : int
        Filter identification value (HDF5 file format, IV.A.2.l).
    values : sequence of int
        The filter's client data.
    itemsize : int
        Bytes per element of the dataset.
    """
    make = find_maker("hdf5", number)
    with _convert_errors(f"HDF5 filter {number}: its client data {tuple(values)}", "file"):
        return make(values, itemsize)


def make_no_filter_error(number: int) -> UnsupportedError:
    """Return the error for an HDF5 filter without a codec."""
    name = UNSUPPORTED_HDF5_FILTERS.get(number, "")
    with_name = f"{number} ({name})" if name else f"{number}"
    remedy = (
        "install hdf5plugin" if number in HDF5PLUGIN_FILTERS else "install an HDF5 plugin for it"
    )
    return UnsupportedError(
        f"HDF5 filter {with_name}: virtualds has no decoder for it; {remedy}, with which h5py "
        f"reads the variable, or leave it out with drop_variables or on_error='skip'"
    )


def codec_from_tiff(number: int, page: Any) -> Codec:
    """Build the codec of a TIFF page.

    Raises `UnsupportedError` if the number is not known, or the codec decodes other pages only.

    Parameters
    ----------
    number : int
        Value of the tag Compression (TIFF 6.0, section 8).
    page : TiffPage
        The page, from tifffile.
    """
    return find_maker("tiff", number)(page)


def predictor_from_tiff(
    number: int, shape: tuple[int, int, int], dtype: np.dtype[Any]
) -> SingleTypeCodec:
    """Build the codec of a TIFF predictor; its ``dtype`` is the dtype of the encoded samples.

    Raises `UnsupportedError` if the number is not known.

    Parameters
    ----------
    number : int
        Value of the tag Predictor (TIFF 6.0, section 14).
    shape : tuple of int
        Rows, pixels and samples of a chunk.
    dtype : dtype
        Data type of the samples, in the byte order of the file.
    """
    return cast(SingleTypeCodec, find_maker("tiff_predictor", number)(shape, dtype))
