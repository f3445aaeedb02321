"""Blosc2: each chunk is one contiguous frame, a super-chunk or a b2nd array.

HDF5 filter 32026, registered with The HDF Group; client data: revision, version, type size, chunk
size, level, shuffle, compressor, and the chunk's shape where it is a b2nd array. The frame holds
all that decoding needs (``README_CFRAME_FORMAT.rst`` and ``README_B2ND_METALAYER.rst`` of
c-blosc2). Zarr has no name for frames; here they are ``virtualds_blosc2_frame`` in Zarr v2 and
``virtualds.blosc2_frame`` in Zarr v3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from virtualds.bounds import Buffer
from virtualds.codecs.codec import Codec, CodecError, check_length
from virtualds.extras import import_package

BLOSC2_ERRORS = (
    RuntimeError,
    ValueError,
    SyntaxError,
    TypeError,
    MemoryError,
    OverflowError,
    SystemError,
)
"""Errors of blosc2 for damaged frames: dtypes are parsed as Python, sizes may be negative."""


@dataclass(frozen=True)
class Blosc2Frame(Codec):
    """A contiguous frame of Blosc2."""

    level: int = field(default=5, compare=False)

    zarr_v2_id: ClassVar[str] = "virtualds_blosc2_frame"
    only_virtualds: ClassVar[bool] = True
    hdf5_filter: ClassVar[int | None] = 32026

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Self:
        return cls(values[4] if len(values) > 4 else 5)

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        blosc2 = import_package("blosc2", "blosc2")
        frame = bytes(data)
        try:
            # without a copy: the chunk keeps the frame alive
            chunk = blosc2.schunk_from_cframe(frame, copy=False)
            if chunk.nchunks != 1:
                raise CodecError(f"blosc2: {chunk.nchunks} chunks in the frame of one")
            if "b2nd" in chunk.meta:
                return self._decode_array(blosc2.ndarray_from_cframe(frame, copy=False), nbytes)
            return self._decode_single(chunk, nbytes)
        except BLOSC2_ERRORS as error:
            raise CodecError(f"blosc2: {error}") from error

    def _decode_array(self, array: Any, nbytes: int | None) -> Buffer:
        """Decode a b2nd array, whose blocks are not in C order and may be padded."""
        if array.nbytes > array.schunk.nbytes:
            raise CodecError(f"blosc2: {array.nbytes} bytes of {array.schunk.nbytes} in the frame")
        check_length(self, int(array.nbytes), nbytes)
        out: bytes = array[...].tobytes()
        check_length(self, len(out), nbytes)
        return out

    def _decode_single(self, chunk: Any, nbytes: int | None) -> Buffer:
        check_length(self, int(chunk.nbytes), nbytes)
        out: bytes = chunk.decompress_chunk(0)
        check_length(self, len(out), nbytes)
        return out
