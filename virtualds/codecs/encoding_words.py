"""The words in which reports and pictures say how chunks are encoded, and how encodings differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from virtualds.codecs.codec import Codec, Unreadable
from virtualds.codecs.pipeline import CodecPipeline, FixedAxis

SCALING = ("scale_factor", "add_offset", "_Unsigned")
FILLS = ("_FillValue", "missing_value")
"""Attributes of CF packing, by what they decide."""
TIMES = ("units", "calendar")

OF_THE_TYPE = ("itemsize", "elementsize")
"""Parameters of codecs that follow from the data type."""


def name_pipelines(pipelines: Sequence[CodecPipeline]) -> list[str]:
    """Return a short name for each pipeline; two have one name only if they decode alike.

    The name is the text of the pipeline. Where texts agree, what differs follows it.

    Examples
    --------
    >>> some, others = (CodecPipeline(np.dtype("u1"), fill=fill) for fill in (None, b"7"))
    >>> name_pipelines([some, others, some])[:2]
    ['uint8, uncompressed, missing chunks 0', 'uint8, uncompressed, missing chunks 55']
    """
    alike: dict[str, list[CodecPipeline]] = {}
    for pipeline in dict.fromkeys(pipelines):
        alike.setdefault(str(pipeline), []).append(pipeline)
    names = {
        pipeline: name
        for text, group in alike.items()
        for pipeline, name in zip(group, _tell_apart(text, group), strict=True)
    }
    return [names[pipeline] for pipeline in pipelines]


def _tell_apart(text: str, group: Sequence[CodecPipeline]) -> list[str]:
    """Return the names of different pipelines of one text."""
    if len(group) == 1:
        return [text]
    aspects = zip(*map(_list_aspects, group), strict=True)
    differing = [words for words in aspects if len(set(words)) > 1]
    names = [", ".join([text, *words]) for words in zip(*differing, strict=True)]
    names = names or [text] * len(group)
    count = Counter(names)
    seen: Counter[str] = Counter()
    for place, name in enumerate(names):
        seen[name] += 1
        # what has no words has a number
        names[place] = name if count[name] == 1 else f"{name} ({seen[name]})"
    return names


def _list_aspects(pipeline: CodecPipeline) -> Iterator[str]:
    """Yield all in which pipelines of one text may differ, in words."""
    attributes = pipeline.packing.attributes if pipeline.packing else {}
    yield format_attributes(attributes, SCALING, "no scale and offset")
    yield format_attributes(attributes, FILLS, "no fill value")
    yield format_attributes(attributes, TIMES, "no units")
    yield f"decoded to {pipeline.decoded_dtype}"
    yield format_codecs(pipeline.codecs)
    yield f"missing chunks {_format_element(pipeline.fill_value)}"
    yield f"axes stored as {', '.join(map(_format_axis, pipeline.layout)) or 'none'}"


def _format_element(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, np.floating) and value else str(value)


def _format_axis(axis: int | FixedAxis) -> str:
    return str(axis) if isinstance(axis, int) else f"{axis.index} of {axis.length}"


def format_attributes(
    attributes: Mapping[str, Any], names: Sequence[str], nothing: str = "none"
) -> str:
    """Return those attributes of packing that are there.

    Examples
    --------
    >>> format_attributes({"scale_factor": np.float32(0.5), "_FillValue": 7}, SCALING)
    'scale_factor=0.5 (float32)'
    """
    shown = (f"{name}={_format_scalar(attributes[name])}" for name in names if name in attributes)
    return ", ".join(shown) or nothing


def _format_scalar(value: Any) -> str:
    """Return a packing attribute with its type, which decides the type of the values."""
    array = np.asarray(value)
    kind = f" ({array.dtype})" if array.dtype.kind in "fiu" else ""
    return f"{array.item() if array.size == 1 else array.tolist()}{kind}"


def format_codecs(codecs: Sequence[Codec]) -> str:
    """Return codecs with the parameters that matter for decoding.

    Examples
    --------
    >>> from virtualds.codecs.zlib import Zlib
    >>> format_codecs([Zlib(4)]), format_codecs([])
    ('zlib', 'uncompressed')
    """
    return ", ".join(map(_format_codec, codecs)) or "uncompressed"


def _format_codec(codec: Codec) -> str:
    compared = (f.name for f in fields(codec) if f.compare)  # type: ignore[arg-type]
    shown = {name: getattr(codec, name) for name in compared if name not in OF_THE_TYPE}
    # no Zarr has a name for what cannot be read
    name = codec.zarr_v2_id if isinstance(codec, Unreadable) else codec.to_zarr_v2()["id"]
    parameters = ", ".join(
        f"{n}={value}" for n, value in shown.items() if value not in (name, "", ())
    )
    return f"{name}({parameters})" if parameters else name
