"""Values of HDF4 that lie in several pieces which no references can express; read when needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.bounds import demand_chunk
from virtualds.codecs.codec import CodecError
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import ReadError
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.store import Range, StoreError


@dataclass(frozen=True)
class Pieces:
    """An array whose bytes are joined, and decoded as a whole, whenever it is read.

    Parameters
    ----------
    source : SourceFile
    pieces : tuple of ranges
        In their order.
    nbytes : int
        Bytes of the decoded values.
    shape : tuple of int
    pipeline : CodecPipeline
    """

    source: SourceFile
    pieces: tuple[Range, ...]
    nbytes: int
    shape: tuple[int, ...]
    pipeline: CodecPipeline

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.pipeline.decoded_dtype

    def read(self, key: Sequence[Any]) -> npt.NDArray[Any]:
        """Read a selection: per axis an int, a slice, or a 1-D array of positions.

        Raises
        ------
        ReadError
            The file is gone, has changed, or is damaged.
        """
        taken = _select(np.broadcast_to(np.zeros((), self.dtype), self.shape), key)
        demand_chunk(self.nbytes, taken.nbytes, self.source.url)
        try:
            data: Any = b"".join(find_store(self.source.url).get_ranges(self.source, self.pieces))
            for codec in reversed(self.pipeline.codecs):
                data = codec.decode(data, self.nbytes)
        except (StoreError, CodecError) as error:
            raise ReadError(f"{self.source.url}: {error}; fetch the file again") from error
        values = np.frombuffer(data, self.pipeline.dtype, prod(self.shape)).reshape(self.shape)
        return _select(values, key).astype(self.dtype)


def _select(values: npt.NDArray[Any], key: Sequence[Any]) -> npt.NDArray[Any]:
    """Return a selection whose axes are independent of each other."""
    for axis in range(len(key) - 1, -1, -1):
        values = values[(slice(None),) * axis + (key[axis],)]
    return values
