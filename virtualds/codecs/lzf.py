"""LZF, the compressor that h5py brings.

HDF5 filter 32000, registered with The HDF Group by h5py; client data: revision of the filter,
version of LibLZF, bytes of a chunk. In Zarr it is imagecodecs' ``imagecodecs_lzf``, without
imagecodecs' header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from virtualds.bounds import Buffer
from virtualds.codecs.codec import Codec, CodecError, check_length
from virtualds.errors import UnsupportedError
from virtualds.extras import import_package

MOST = 140
"""Times its length that a stream can decode to: three bytes may stand for 264."""


@dataclass(frozen=True)
class Lzf(Codec):
    """An LZF stream, which does not hold its decoded length."""

    zarr_v2_id: ClassVar[str] = "imagecodecs_lzf"
    zarr_v3_name: ClassVar[str | None] = "imagecodecs_lzf"
    hdf5_filter: ClassVar[int | None] = 32000

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        if config.get("header", True):
            raise UnsupportedError(
                "imagecodecs_lzf: streams with the header of imagecodecs (header: true) are not "
                "decoded; open the data with zarr-python"
            )
        return cls()

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls()

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, "header": False}

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        imagecodecs = import_package("imagecodecs", "lzf")
        if not len(data):
            # the decoder reads the first byte before it checks the length
            raise CodecError("lzf: there are no bytes")
        room = MOST * len(data) if nbytes is None else nbytes
        try:
            out = imagecodecs.lzf_decode(data, header=False, out=room)
        except (RuntimeError, ValueError) as error:
            raise CodecError(f"lzf: {error}") from error
        check_length(self, len(out), nbytes)
        return bytes(out)
