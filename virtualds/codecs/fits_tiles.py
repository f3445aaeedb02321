"""The compressions of FITS images that no other format has: Rice and PLIO.

FITS Standard 4.0, sections 10.4.1 (RICE_1) and 10.4.3 (PLIO_1). imagecodecs decodes Rice. Zarr has
no names for them as FITS stores them; they begin with ``virtualds_`` in Zarr v2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from virtualds.bounds import Buffer
from virtualds.codecs.codec import CodecError, OfOneType
from virtualds.extras import import_package

HEADER = 3
"""Words of the header of a line list where it has the old form."""


@dataclass(frozen=True)
class RiceTile(OfOneType):
    """Integers compressed by Rice's algorithm.

    Parameters
    ----------
    dtype : str
        Dtype of the pixels.
    block : int
        Pixels that are coded together.
    word : int
        Bytes of a number as the algorithm takes it.
    """

    dtype: str
    block: int
    word: int

    zarr_v2_id: ClassVar[str] = "virtualds_fits_rice"
    only_virtualds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "iu" or self.word not in (1, 2, 4) or self.block < 1:
            raise ValueError(
                f"fits_rice: {self.dtype} in blocks of {self.block}, {self.word} bytes"
            )

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "rcomp")
        dtype = np.dtype(self.dtype)
        count = _count_pixels(self, nbytes, dtype)
        # single bytes are unsigned (section 10.4.1)
        word = np.dtype("u1" if self.word == 1 else f"i{self.word}")
        try:
            found = imagecodecs.rcomp_decode(bytes(data), (count,), word, nblock=self.block)
        except (RuntimeError, ValueError, MemoryError, OverflowError) as error:
            raise CodecError(f"fits_rice: {error}") from error
        return _to_bytes(found, dtype)


@dataclass(frozen=True)
class PlioTile(OfOneType):
    """Integers of a mask, as IRAF's pixel lists hold them.

    Parameters
    ----------
    dtype : str
        Dtype of the pixels.
    """

    dtype: str

    zarr_v2_id: ClassVar[str] = "virtualds_fits_plio"
    only_virtualds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "iu":
            raise ValueError(f"fits_plio: {self.dtype} is no integer")

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        dtype = np.dtype(self.dtype)
        count = _count_pixels(self, nbytes, dtype)
        if len(data) % 2:
            raise CodecError(f"fits_plio: {len(data)} bytes are not words of 2")
        return _to_bytes(_draw_runs(np.frombuffer(data, ">i2").tolist(), count), dtype)


def _count_pixels(codec: OfOneType, nbytes: int | None, dtype: np.dtype[Any]) -> int:
    if nbytes is None or nbytes % dtype.itemsize:
        raise CodecError(f"{codec.zarr_v2_id}: {nbytes} bytes are no number of {dtype}")
    return nbytes // dtype.itemsize


def _to_bytes(found: npt.NDArray[Any], dtype: np.dtype[Any]) -> Buffer:
    out: memoryview = found.astype(dtype).reshape(-1).view(np.uint8).data
    return out


def _draw_runs(words: list[int], count: int) -> npt.NDArray[np.int32]:
    """Return the pixels of a line list: runs of one value among zeros."""
    out = np.zeros(count, np.int32)
    place, stop = _find_words(words)
    x, value = 0, 1
    while place < stop:
        code, number = divmod(words[place], 4096)
        place += 1
        if code == 1:
            # a value in two words, the low bits first
            if place >= stop:
                raise CodecError("fits_plio: a list ends within a value")
            value = (words[place] << 12) + number
            place += 1
        elif code in (2, 3, 6, 7):
            value += number if code in (2, 6) else -number
            out[x : x + (code > 3)] = value
            x += code > 3
        elif code in (0, 4, 5):
            # zeros, a run of the value, or zeros that end with the value
            begin = {0: x + number, 4: x, 5: max(x + number - 1, x)}[code]
            x += number
            out[begin:x] = value
        else:
            raise CodecError(f"fits_plio: {code} is no instruction")
        if x > count:
            raise CodecError(f"fits_plio: a list goes beyond its {count} pixels")
    return out


def _find_words(words: list[int]) -> tuple[int, int]:
    """Return where the instructions of a line list begin and stop."""
    if len(words) > HEADER - 1 and words[2] > 0:
        place, stop = HEADER, words[2]
    elif len(words) > 4:
        place, stop = words[1], (words[4] << 15) + words[3]
    else:
        place, stop = 0, -1
    if not 0 <= place <= stop <= len(words):
        raise CodecError(f"fits_plio: {len(words)} words have no header of a list")
    return place, stop
