"""The codecs: one file per family, and here the table of what they are called elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from virtualds.codec import Buffer, Codec, CodecError
from virtualds.codecs.fletcher32 import Fletcher32
from virtualds.codecs.numcodecs_family import NUMCODECS_IDS, Numcodecs
from virtualds.codecs.shuffle import Shuffle
from virtualds.codecs.zlib import Gzip, Zlib
from virtualds.errors import UnsupportedError

CODECS: tuple[type[Codec], ...] = (Zlib, Gzip, Shuffle, Fletcher32)
"""Every codec with code of its own; `NUMCODECS_IDS` are decoded by numcodecs."""

BY_ZARR_V2_ID = {codec.zarr_v2_id: codec for codec in CODECS}
BY_HDF5_FILTER = {codec.hdf5_filter: codec for codec in CODECS if codec.hdf5_filter is not None}


def codec_from_zarr_v2(config: Mapping[str, Any]) -> Codec:
    """Return the codec of one entry of ``filters`` or ``compressor`` of a Zarr v2 array.

    Raises
    ------
    UnsupportedError
        No codec of that ``id`` is known.

    References
    ----------
    Zarr storage specification version 2, "Arrays", keys ``compressor`` and ``filters``.
    """
    name = config.get("id")
    if name in BY_ZARR_V2_ID:
        return BY_ZARR_V2_ID[name].from_zarr_v2(config)
    if name in NUMCODECS_IDS:
        return Numcodecs.from_zarr_v2(config)
    known = sorted([*BY_ZARR_V2_ID, *NUMCODECS_IDS])
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
    """
    if number not in BY_HDF5_FILTER:
        raise UnsupportedError(
            f"HDF5 filter {number}: it is none of {sorted(BY_HDF5_FILTER)}; load the variable "
            f"through h5py, or leave it out with drop_variables"
        )
    return BY_HDF5_FILTER[number].from_hdf5(values, itemsize)


__all__ = [
    "Buffer",
    "Codec",
    "CodecError",
    "Fletcher32",
    "Gzip",
    "Numcodecs",
    "Shuffle",
    "Zlib",
    "codec_from_hdf5",
    "codec_from_zarr_v2",
]
