"""JPEG-LS: the lossless images of Meteosat Third Generation, with the HDF5 filter FCIDECOMP.

HDF5 filter 32018, registered with The HDF Group by EUMETSAT; client data: bytes per element,
components, lines, samples, bits per element, then parameters that the stream repeats. In Zarr it
has the name that imagecodecs gives it, ``imagecodecs_jpegls``, in Zarr v3 behind ``numcodecs.``,
since the bare name is that of a codec of arrays there. The stream is laid down by ITU-T
T.87; its frame header (C.2.2) says how large the image is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from virtualds.codec import Buffer, Codec, CodecError, check_length, needed_package
from virtualds.errors import UnsupportedError

END = b"\xff\xd9"
"""Marker behind an image (annex C); a bit that is stuffed behind 0xff keeps it out of the data."""
START_OF_FRAME = b"\xff\xf7"
"""Marker before the frame header."""
MOST = 2**20
"""More than JPEG-LS makes of a byte: a bit is a run of 32768 elements at most."""


@dataclass(frozen=True)
class JpegLs(Codec):
    """One JPEG-LS image of one component."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_jpegls"
    hdf5_filter: ClassVar[int | None] = 32018

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls()

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        if len(values) < 2 or values[1] != 1:
            raise UnsupportedError(
                f"HDF5 filter 32018 (FCIDECOMP) with client data {tuple(values)}: only images of "
                f"one component are decoded; leave the variable out with drop_variables"
            )
        return cls()

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id}

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = needed_package("imagecodecs", "jpegls")
        # a damaged header would have memory allotted for another image
        check_length(self, _image_size(memoryview(data)), nbytes)
        if END not in bytes(data):
            # CharLS would look for the end of a number beyond them
            raise CodecError("jpegls: the image has no end")
        try:
            out: bytes = imagecodecs.jpegls_decode(bytes(data)).tobytes()
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CodecError(f"jpegls: {error}") from error
        check_length(self, len(out), nbytes)
        return out


def _image_size(data: memoryview) -> int:
    """Return how many bytes the image has, according to its frame header."""
    place = 2
    while place + 10 <= len(data):
        if data[place : place + 2] == START_OF_FRAME:
            bits, components = data[place + 4], data[place + 9]
            lines, samples = (
                int.from_bytes(data[place + i : place + i + 2], "big") for i in (5, 7)
            )
            size = lines * samples * components * (1 if bits <= 8 else 2)
            if size > MOST * len(data):
                raise CodecError(f"jpegls: {size} bytes of an image out of {len(data)}")
            return size
        # other segments say how long they are, the two bytes that say it included
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    raise CodecError(f"jpegls: {len(data)} bytes hold no frame header")
