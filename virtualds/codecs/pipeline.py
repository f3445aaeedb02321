"""Codec pipelines, which decode the bytes of one chunk to values in the axis order of the array.

Also formats descriptions of pipelines and of their differences for reports and pictures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from virtualds.bounds import MAX_ELEMENT_SIZE, check_element
from virtualds.codecs.cf import UNITS_OF_DATES, Decoding
from virtualds.codecs.codec import Codec, Unreadable
from virtualds.errors import public


@dataclass(frozen=True)
class FixedAxis:
    """A stored axis that the array does not have; only index ``index`` of ``length`` is used."""

    length: int
    index: int


Layout = tuple[int | FixedAxis, ...]


@public
@dataclass(frozen=True)
class CodecPipeline:
    """The decoding of the bytes of a chunk to values.

    Two pipelines with the same decoding are equal: compression levels are not compared.

    Parameters
    ----------
    dtype : numpy dtype
        Dtype of the stored numbers, byte order included.
    codecs : tuple of Codec
        The codecs in the order of encoding; decoding applies them in reverse.
    fill : bytes or None
        The stored element that fills missing chunks, or None for zero.
    layout : tuple of int or FixedAxis
        The array axis of every stored axis, in C order; an array axis that is not
        listed has one element per chunk. ``(0, 1, 2)`` is C order, ``(2, 1, 0)`` is F order.
    packing : Packing, TimePacking or None
        CF packing of the file that the chunk came from.
    flipped : tuple of int
        The array axes along which the stored elements of a chunk are reversed.

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
    flipped: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype.itemsize > MAX_ELEMENT_SIZE:
            check_element(self.dtype.itemsize, f"type {self.dtype.kind}{self.dtype.itemsize}")
        if self.dtype.hasobject:
            # the bytes of such elements are pointers
            raise ValueError(f"CodecPipeline: {self.dtype} elements are Python objects, not bytes")
        if self.fill is not None and len(self.fill) != self.dtype.itemsize:
            raise ValueError(
                f"CodecPipeline: a fill of {len(self.fill)} bytes is not one {self.dtype} element"
            )
        if self.fill is not None and not any(self.fill):
            # normalise zero to None, so that pipelines with the same decoding are equal
            object.__setattr__(self, "fill", None)
        if self.flipped:
            # chunks without the axis have a single element along it, so flipping has no effect
            stored = sorted(set(self.flipped).intersection(self.layout))
            object.__setattr__(self, "flipped", tuple(stored))

    def __str__(self) -> str:
        """Return a short description of the encoding of chunks."""
        packing = str(self.packing) if self.packing else ""
        numbers = f"{self._dtype_name} {packing}" if packing else self._dtype_name
        return f"{numbers}, {self._codec_names}"

    @property
    def storage(self) -> str:
        """The description of the pipeline without the packing."""
        return f"{self._dtype_name}, {self._codec_names}"

    @property
    def _dtype_name(self) -> str:
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
        """The fill value of missing chunks as a stored number."""
        if self.fill is None:
            return np.zeros((), self.dtype)[()]
        return np.frombuffer(self.fill, self.dtype)[0]

    @cached_property
    def missing_value(self) -> Any:
        """The fill value of missing chunks after decoding."""
        stored = np.full((1,), self.fill_value, self.dtype.newbyteorder("="))
        return (self.packing.decode(stored) if self.packing else stored)[0]

    @cached_property
    def hidden_size(self) -> int:
        """Number of stored elements of a chunk for each element of the array."""
        return prod(e.length for e in self.layout if isinstance(e, FixedAxis))

    def stored_shape(self, encoded: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a stored chunk with these lengths along the array's axes."""
        return tuple(encoded[e] if isinstance(e, int) else e.length for e in self.layout)

    def encoded_sizes(self, nbytes: int) -> list[int | None]:
        """Return the number of bytes that each codec encodes for a chunk of ``nbytes``."""
        sizes: list[int | None] = [nbytes]
        for codec in self.codecs[:-1]:
            last = sizes[-1]
            sizes.append(None if last is None else codec.encoded_size(last))
        return sizes

    def transpose(self, axes: Sequence[int]) -> CodecPipeline:
        """Return the pipeline of the array whose axis ``i`` was ``axes[i]``."""
        position = {old: new for new, old in enumerate(axes)}
        return self._relabel(lambda axis: position[axis])

    def insert_axis(self, axis: int) -> CodecPipeline:
        """Return the pipeline of the array with a new axis of one element per chunk.

        C order stays C order, so that the pipeline equals the one of a set written in this shape.
        """
        moved = self._relabel(lambda old: old + (old >= axis))
        if any(isinstance(e, FixedAxis) for e in moved.layout):
            return moved
        array_axes = [e for e in moved.layout if isinstance(e, int)]
        if array_axes != sorted(array_axes):
            return moved
        return replace(moved, layout=tuple(sorted([*array_axes, axis])))

    def drop_axis(self, axis: int, encoded: int, inset: int) -> CodecPipeline:
        """Return the pipeline of the array without ``axis``, at index ``inset`` of each chunk."""
        index = encoded - 1 - inset if axis in self.flipped else inset
        fixed = () if encoded == 1 else (FixedAxis(encoded, index),)
        position = self.layout.index(axis) if axis in self.layout else len(self.layout)
        layout = (*self.layout[:position], *fixed, *self.layout[position + 1 :])
        return replace(self, layout=layout)._relabel(lambda old: old - (old > axis))

    def flip(self, axis: int) -> CodecPipeline:
        """Return the pipeline of the array reversed along an axis."""
        return replace(self, flipped=tuple({axis}.symmetric_difference(self.flipped)))

    def _relabel(self, change: Any) -> CodecPipeline:
        layout = tuple(change(e) if isinstance(e, int) else e for e in self.layout)
        return replace(self, layout=layout, flipped=tuple(map(change, self.flipped)))


# ---------------------------------------------------------------------- descriptions

SCALE_ATTRIBUTES = ("scale_factor", "add_offset", "_Unsigned")
FILL_ATTRIBUTES = ("_FillValue", "missing_value")
"""CF attributes for scale and offset, and for missing values."""

TYPE_PARAMETERS = ("itemsize", "elementsize")
"""Parameters of codecs that follow from the data type."""


def name_pipelines(pipelines: Sequence[CodecPipeline]) -> list[str]:
    """Return a short name for each pipeline; only equal pipelines have the same name.

    The name is the description of the pipeline. If descriptions are equal, the differences follow.

    Examples
    --------
    >>> some, others = (CodecPipeline(np.dtype("u1"), fill=fill) for fill in (None, b"7"))
    >>> name_pipelines([some, others, some])[:2]
    ['uint8, uncompressed, missing chunks 0', 'uint8, uncompressed, missing chunks 55']
    """
    pipelines_by_text: dict[str, list[CodecPipeline]] = {}
    for pipeline in dict.fromkeys(pipelines):
        pipelines_by_text.setdefault(str(pipeline), []).append(pipeline)
    names = {
        pipeline: name
        for text, group in pipelines_by_text.items()
        for pipeline, name in zip(group, _name_differences(text, group), strict=True)
    }
    return [names[pipeline] for pipeline in pipelines]


def _name_differences(text: str, group: Sequence[CodecPipeline]) -> list[str]:
    """Return distinct names of pipelines that have the same description."""
    if len(group) == 1:
        return [text]
    descriptions = zip(*map(_iterate_descriptions, group), strict=True)
    differing = [texts for texts in descriptions if len(set(texts)) > 1]
    names = [", ".join([text, *texts]) for texts in zip(*differing, strict=True)]
    names = names or [text] * len(group)
    count = Counter(names)
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        seen[name] += 1
        # pipelines without a describable difference get a number
        names[index] = name if count[name] == 1 else f"{name} ({seen[name]})"
    return names


def _iterate_descriptions(pipeline: CodecPipeline) -> Iterator[str]:
    """Yield descriptions of the properties in which pipelines with the same text may differ."""
    attributes = pipeline.packing.attributes if pipeline.packing else {}
    yield format_attributes(attributes, SCALE_ATTRIBUTES, "no scale and offset")
    yield format_attributes(attributes, FILL_ATTRIBUTES, "no fill value")
    yield format_attributes(attributes, UNITS_OF_DATES, "no units")
    yield f"decoded to {pipeline.decoded_dtype}"
    yield format_codecs(pipeline.codecs)
    fill = pipeline.fill_value
    is_float = isinstance(fill, np.floating) and bool(fill)
    yield f"missing chunks {f'{fill:.6g}' if is_float else fill}"
    axes = (str(a) if isinstance(a, int) else f"{a.index} of {a.length}" for a in pipeline.layout)
    yield f"axes stored as {', '.join(axes) or 'none'}"
    yield f"flipped along {', '.join(map(str, pipeline.flipped)) or 'none'}"


def format_attributes(
    attributes: Mapping[str, Any], names: Sequence[str], nothing: str = "none"
) -> str:
    """Format the packing attributes with these names, or return ``nothing`` if there are none.

    Examples
    --------
    >>> format_attributes({"scale_factor": np.float32(0.5), "_FillValue": 7}, SCALE_ATTRIBUTES)
    'scale_factor=0.5 (float32)'
    """
    items = []
    for name in names:
        if name in attributes:
            array = np.asarray(attributes[name])
            # the type of an attribute determines the type of the values
            kind = f" ({array.dtype})" if array.dtype.kind in "fiu" else ""
            items.append(f"{name}={array.item() if array.size == 1 else array.tolist()}{kind}")
    return ", ".join(items) or nothing


def format_codecs(codecs: Sequence[Codec]) -> str:
    """Format codecs with the parameters that affect decoding.

    Examples
    --------
    >>> from virtualds.codecs.zlib import Zlib
    >>> format_codecs([Zlib(4)]), format_codecs([])
    ('zlib', 'uncompressed')
    """
    return ", ".join(map(_format_codec, codecs)) or "uncompressed"


def _format_codec(codec: Codec) -> str:
    compared = (f.name for f in fields(codec) if f.compare)  # type: ignore[arg-type]
    parameters_by_name = {
        name: getattr(codec, name) for name in compared if name not in TYPE_PARAMETERS
    }
    # an `Unreadable` codec has no Zarr configuration
    name = codec.zarr_v2_id if isinstance(codec, Unreadable) else codec.to_zarr_v2()["id"]
    parameters = ", ".join(
        f"{n}={value}" for n, value in parameters_by_name.items() if value not in (name, "", ())
    )
    return f"{name}({parameters})" if parameters else name
