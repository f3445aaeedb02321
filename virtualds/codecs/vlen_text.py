"""Zarr's strings of variable length (``vlen-utf8``, ``vlen-bytes``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.errors import UnsupportedError


def to_text_objects(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return strings as objects.

    Raises
    ------
    UnsupportedError
        An element is no string.
    """
    texts = values.astype(object)
    if bad := [t for t in texts.ravel().tolist() if not isinstance(t, str)]:
        raise UnsupportedError(
            f"it holds {bad[0]!r} where only strings can be written; fill in what is missing "
            f"(fillna), convert bytes with astype('S') and the rest with astype(str), or leave the "
            f"variable out with ds.drop_vars"
        )
    return texts


def encode_text(texts: npt.NDArray[Any]) -> bytes:
    """Return strings, in C order, as the bytes of a chunk."""
    import numcodecs

    return bytes(numcodecs.VLenUTF8().encode(texts.ravel()))


def decode_text(data: bytes) -> npt.NDArray[Any]:
    """Return the strings of a chunk, along one axis.

    Raises
    ------
    ValueError, RuntimeError
        The bytes are damaged.
    """
    import numcodecs

    return np.asarray(numcodecs.VLenUTF8().decode(data), object)


def decode_bytes(data: bytes) -> npt.NDArray[Any]:
    """Return the byte strings of a chunk, along one axis.

    Raises
    ------
    ValueError, RuntimeError
        The bytes are damaged.
    """
    import numcodecs

    return np.asarray(numcodecs.VLenBytes().decode(data), object)
