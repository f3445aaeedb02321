"""Generators of kerchunk references: loops over dimensions, evaluated by columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from virtualds.errors import FormatError
from virtualds.formats.kerchunk.templates import (
    LIMIT,
    MOST_DIMENSIONS,
    MOST_REFERENCES,
    Templates,
    Value,
    Variables,
)


def generate_references(items: Any, templates: Templates) -> dict[str, list[Any]]:
    """Return the references that the generators of a document make.

    Raises
    ------
    FormatError
        A generator is invalid, or makes too many references.
    """
    found: dict[str, list[Any]] = {}
    left = MOST_REFERENCES
    for item in items:
        dimensions = [_parse_dimension(name, v) for name, v in item["dimensions"].items()]
        sizes = tuple(len(values) for _, values in dimensions)
        left -= prod(sizes)
        if left < 0 or len(sizes) > MOST_DIMENSIONS:
            raise FormatError(
                f"gen {item['key']!r}: dimensions of {sizes} values; at most {MOST_DIMENSIONS} "
                f"dimensions and {MOST_REFERENCES} references are generated, write the others out"
            )
        if prod(sizes):
            found.update(_generate(item, dict(_spread_along_axes(dimensions)), sizes, templates))
    return found


def _generate(
    item: Mapping[str, str], variables: Variables, shape: tuple[int, ...], templates: Templates
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the references of one generator in C order."""
    if shadowed := variables.keys() & templates.texts.keys():
        raise FormatError(f"gen {item['key']!r}: {min(shadowed)!r} is a dimension and a template")
    ranges = [name for name in ("offset", "length") if name in item]
    if len(ranges) == 1:
        raise FormatError(f"gen {item['key']!r}: offset and length go together")
    keys = templates.render_texts(item["key"], variables)
    columns = [templates.render_texts(item["url"], variables)]
    columns += [templates.compute_integers(item[name], variables) for name in ranges]
    rows = zip(*(np.broadcast_to(c, shape).ravel().tolist() for c in columns), strict=True)
    return zip(np.broadcast_to(keys, shape).ravel().tolist(), map(list, rows), strict=True)


def _parse_dimension(name: str, given: Any) -> tuple[str, range | list[Any]]:
    """Return the values of a dimension, as a range or a list."""
    if isinstance(given, list):
        if not all(type(v) is int and abs(v) < LIMIT for v in given) and not all(
            type(v) is str for v in given
        ):
            raise FormatError(f"dimension {name!r}: a list of integers, or of texts, is expected")
        return name, given
    start, stop, step = given.get("start", 0), given["stop"], given.get("step", 1)
    if any(type(v) is not int or abs(v) >= LIMIT // 4 for v in (start, stop, step)) or not step:
        raise FormatError(
            f"dimension {name!r}: from {start!r} to {stop!r} in steps of {step!r} is not a range"
        )
    return name, range(start, stop, step)


def _spread_along_axes(dimensions: list[tuple[str, Any]]) -> Iterator[tuple[str, Value]]:
    """Yield every variable as an array along an axis of its own."""
    for axis, (name, values) in enumerate(dimensions):
        kind = object if isinstance(values[0], str) else np.int64
        shape = [1] * len(dimensions)
        shape[axis] = -1
        yield name, np.array(values, kind).reshape(shape)
