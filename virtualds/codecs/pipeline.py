"""Codec pipelines: from the bytes of one chunk to values in the order of the array's axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from virtualds.bounds import LARGEST_ELEMENT, demand_element
from virtualds.codecs.cf_packing import Decoding
from virtualds.codecs.codec import Codec
from virtualds.public import public


@dataclass(frozen=True)
class FixedAxis:
    """A stored axis that the array does not show: only element ``index`` of ``length`` is used."""

    length: int
    index: int


Layout = tuple[int | FixedAxis, ...]


@public
@dataclass(frozen=True)
class CodecPipeline:
    """How the bytes of one chunk become values.

    Two pipelines that decode alike are equal: compression levels are not compared.

    Parameters
    ----------
    dtype : numpy dtype
        Dtype of the stored numbers, byte order included.
    codecs : tuple of Codec
        The codecs in the order of encoding; decoding goes backwards.
    fill : bytes or None
        The stored element that fills missing chunks; None is zero.
    layout : tuple of int or FixedAxis
        For every stored axis, in C order, the array axis that it is; an array axis that is not
        listed has one element per chunk. ``(0, 1, 2)`` is C order, ``(2, 1, 0)`` is F order.
    packing : Packing, TimePacking or None
        CF packing of the file that the chunk came from.

    Raises
    ------
    ValueError
        ``fill`` is not exactly one element, or elements are Python objects.

    Examples
    --------
    >>> from virtualds.codecs.zlib import Zlib
    >>> fast, small = (CodecPipeline(np.dtype("<i2"), (Zlib(n),), layout=(0, 1)) for n in (1, 9))
    >>> fast == small, fast.missing_value
    (True, np.int16(0))
    """

    dtype: np.dtype[Any]
    codecs: tuple[Codec, ...] = ()
    fill: bytes | None = None
    layout: Layout = ()
    packing: Decoding | None = None

    def __post_init__(self) -> None:
        if self.dtype.itemsize > LARGEST_ELEMENT:
            demand_element(self.dtype.itemsize, f"type {self.dtype.kind}{self.dtype.itemsize}")
        if self.dtype.hasobject:
            # the bytes of such an element are an address
            raise ValueError(f"CodecPipeline: {self.dtype} elements are Python objects, not bytes")
        if self.fill is not None and len(self.fill) != self.dtype.itemsize:
            raise ValueError(
                f"CodecPipeline: a fill of {len(self.fill)} bytes is not one {self.dtype} element"
            )
        if self.fill is not None and not any(self.fill):
            # one spelling of zero, so that pipelines that decode alike are equal
            object.__setattr__(self, "fill", None)

    def __str__(self) -> str:
        """Return in a few words how chunks are encoded; ``repr`` says everything."""
        words = str(self.packing) if self.packing else ""
        numbers = f"{self._kind} {words}" if words else self._kind
        return f"{numbers}, {self._codec_names}"

    @property
    def storage(self) -> str:
        """The text of the pipeline, without what its packing says."""
        return f"{self._kind}, {self._codec_names}"

    @property
    def _kind(self) -> str:
        # a compound type may have any number of members
        return f"{len(self.dtype.names)} members" if self.dtype.names else str(self.dtype)

    @property
    def _codec_names(self) -> str:
        return ", ".join(codec.zarr_v2_id for codec in self.codecs) or "uncompressed"

    @property
    def decoded_dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.packing.dtype if self.packing else self.dtype.newbyteorder("=")

    @property
    def fill_value(self) -> Any:
        """The stored number that fills missing chunks."""
        if self.fill is None:
            return np.zeros((), self.dtype)[()]
        return np.frombuffer(self.fill, self.dtype)[0]

    @cached_property
    def missing_value(self) -> Any:
        """The value that fills missing chunks: the decoded fill value."""
        stored = np.full((1,), self.fill_value, self.dtype.newbyteorder("="))
        return (self.packing.decode(stored) if self.packing else stored)[0]

    @cached_property
    def hidden_size(self) -> int:
        """Number of elements that a chunk stores for each one that the array shows."""
        return prod(e.length for e in self.layout if isinstance(e, FixedAxis))

    def stored_shape(self, encoded: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a stored chunk with these lengths along the array's axes."""
        return tuple(encoded[e] if isinstance(e, int) else e.length for e in self.layout)

    def encoded_sizes(self, nbytes: int) -> list[int | None]:
        """Return the number of bytes that each codec encodes of a chunk of ``nbytes``."""
        sizes: list[int | None] = [nbytes]
        for codec in self.codecs[:-1]:
            last = sizes[-1]
            sizes.append(None if last is None else codec.encoded_size(last))
        return sizes

    def transpose(self, axes: Sequence[int]) -> CodecPipeline:
        """Return the pipeline of the array whose axis ``i`` was ``axes[i]``."""
        place = {old: new for new, old in enumerate(axes)}
        return self._relabel(lambda axis: place[axis])

    def insert_axis(self, axis: int) -> CodecPipeline:
        """Return the pipeline of the array with a new axis of one element per chunk.

        C order stays C order, so that the pipeline equals that of a set which was written so.
        """
        moved = self._relabel(lambda old: old + (old >= axis))
        if any(isinstance(e, FixedAxis) for e in moved.layout):
            return moved
        shown = [e for e in moved.layout if isinstance(e, int)]
        if shown != sorted(shown):
            return moved
        return replace(moved, layout=tuple(sorted([*shown, axis])))

    def drop_axis(self, axis: int, encoded: int, inset: int) -> CodecPipeline:
        """Return the pipeline of the array that shows only element ``inset`` of ``axis``."""
        fixed = () if encoded == 1 else (FixedAxis(encoded, inset),)
        place = self.layout.index(axis) if axis in self.layout else len(self.layout)
        layout = (*self.layout[:place], *fixed, *self.layout[place + 1 :])
        return replace(self, layout=layout)._relabel(lambda old: old - (old > axis))

    def _relabel(self, change: Any) -> CodecPipeline:
        layout = tuple(change(e) if isinstance(e, int) else e for e in self.layout)
        return replace(self, layout=layout)
