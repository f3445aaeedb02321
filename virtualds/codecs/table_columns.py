"""The columns of tables in files that store rows: FITS tables, binary and in text.

`RowBytes` takes the bytes of one column out of rows. The others make numpy's values of logical
values, bits, text, and numbers in text (FITS Standard 4.0, sections 7.2.5 and 7.3.3).
Zarr has no names for them; they begin with ``virtualds_`` in Zarr v2, with ``virtualds.`` in v3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualds.bounds import Buffer
from virtualds.codecs.codec import Codec


@dataclass(frozen=True)
class RowBytes(Codec):
    """The bytes of one column, of rows that hold others too.

    A chunk begins and ends with the column. The last chunk of a table has fewer rows; it decodes to
    a whole chunk that ends with zeros, which no array shows.

    Parameters
    ----------
    row : int
        Bytes from one row to the next.
    width : int
        Bytes of the column in a row.
    """

    row: int
    width: int

    zarr_v2_id = "virtualds_row_bytes"

    def __post_init__(self) -> None:
        if not 1 <= self.width <= self.row:
            raise ValueError(f"row_bytes: {self.width} bytes of rows of {self.row}")

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        before, rest = divmod(len(data) - self.width, self.row)
        whole = before + 1 if nbytes is None else nbytes // self.width
        if rest or not 0 <= before < whole:
            raise ValueError(f"{len(data)} bytes are not up to {whole} rows")
        out = np.zeros((whole, self.width), np.uint8)
        stored = np.frombuffer(data, np.uint8)
        out[:before] = stored[: before * self.row].reshape(before, self.row)[:, : self.width]
        out[before] = stored[before * self.row :]
        return out.reshape(-1).data


@dataclass(frozen=True)
class Logicals(Codec):
    """Logical values: ``T`` is true; ``F``, and zero for "undefined", are false.

    Parameters
    ----------
    has_ones : bool
        Whether the byte 1 is true, as old versions of astropy write arrays of varying length.
    """

    has_ones: bool = False

    zarr_v2_id = "virtualds_logicals"

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, **({"has_ones": True} if self.has_ones else {})}

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        stored = np.frombuffer(data, np.uint8)
        found = stored == ord("T")
        if self.has_ones:
            found |= stored == 1
        out: memoryview = found.view(np.uint8).data
        return out


@dataclass(frozen=True)
class RowBits(Codec):
    """Bits as booleans, the highest bit first; the bits of each row begin with a byte.

    Parameters
    ----------
    bits : int
        Bits of a row.
    """

    bits: int

    zarr_v2_id = "virtualds_row_bits"

    def __post_init__(self) -> None:
        if self.bits < 1:
            raise ValueError(f"row_bits: rows of {self.bits} bits")

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes // self.bits * -(-self.bits // 8)

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        packed = np.frombuffer(data, np.uint8)
        row = -(-self.bits // 8)
        if packed.size % row:
            raise ValueError(f"{packed.size} bytes are not rows of {row}")
        return np.unpackbits(packed.reshape(-1, row), axis=1, count=self.bits).reshape(-1).data


@dataclass(frozen=True)
class PaddedText(Codec):
    """ASCII text that ends with the first zero, or is padded with blanks.

    It decodes to numpy's text of the same length, little-endian, without trailing blanks.

    Parameters
    ----------
    width : int
        Characters of a text.
    """

    width: int

    zarr_v2_id = "virtualds_padded_text"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"padded_text: texts of {self.width} characters")

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes // 4

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        found = np.frombuffer(data, np.uint8)
        if found.size % self.width:
            raise ValueError(f"{found.size} bytes are not texts of {self.width}")
        texts = found.reshape(-1, self.width)
        if (texts > 127).any():
            raise ValueError("there are characters that are not ASCII")
        # section 7.3.3.1: characters behind a zero are undefined
        texts = texts * np.logical_and.accumulate(texts != 0, axis=1)
        blank = np.logical_and.accumulate(((texts == 32) | (texts == 0))[:, ::-1], axis=1)
        return np.where(blank[:, ::-1], 0, texts).astype("<u4").reshape(-1).view(np.uint8).data


@dataclass(frozen=True)
class TextNumbers(Codec):
    """Numbers in text, as Fortran writes them.

    Parameters
    ----------
    width : int
        Characters of a number.
    dtype : str
        Dtype of the numbers: integers or floats.
    null : str
        Text that means "no value": NaN in floats, the least number in integers. Blanks mean that
        too, and zero where this is empty and there are integers.
    """

    width: int
    dtype: str
    null: str = ""

    zarr_v2_id = "virtualds_text_numbers"
    damage = (ValueError, OverflowError)

    def __post_init__(self) -> None:
        if self.width < 1 or np.dtype(self.dtype).kind not in "if":
            raise ValueError(f"text_numbers: {self.dtype} of {self.width} characters")

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes // np.dtype(self.dtype).itemsize * self.width

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        if len(data) % self.width:
            raise ValueError(f"{len(data)} bytes are not texts of {self.width}")
        if not data:
            return data
        # zeros stand for rows behind the last one, which no array shows
        texts = np.char.strip(np.frombuffer(data, f"S{self.width}"))
        texts = np.char.replace(np.char.replace(texts, b"D", b"E"), b"d", b"e")
        dtype = np.dtype(self.dtype)
        is_null = (texts == b"") | (texts == self.null.strip().encode("ascii", "replace"))
        out = np.where(is_null, b"0", texts).astype(dtype)
        out[is_null] = self.absent
        return out.view(np.uint8).data

    @property
    def absent(self) -> Any:
        """What stands for "no value"."""
        dtype = np.dtype(self.dtype)
        if dtype.kind == "f":
            return np.nan
        return np.iinfo(dtype).min if self.null.strip() else 0
