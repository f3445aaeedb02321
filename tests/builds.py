"""What tells builds apart: datasets to the last attribute, and sets by where every chunk lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import virtualds


def assert_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    """The same to the bit, in the same order, and described and stored alike."""
    assert list(found.variables) == list(expected.variables)
    assert list(found.coords) == list(expected.coords)
    assert repr(found.attrs) == repr(expected.attrs)
    assert list(found.xindexes) == list(expected.xindexes)
    assert repr(found.encoding) == repr(expected.encoding)
    for name, variable in expected.variables.items():
        other = found.variables[name]
        assert repr(other.attrs) == repr(variable.attrs), name
        assert repr(other.encoding) == repr(variable.encoding), name
        assert type(other._data) is type(variable._data), name
        if isinstance(variable._data, virtualds.ManifestArray):
            assert other._data.has_same_references(variable._data), name
    assert found.identical(expected)


def parts_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("__virtualds__/*/parts/*/*/*.parquet"))


def chunks(dataset: xr.Dataset, name: str) -> dict[tuple[int, ...], Any]:
    """Where every chunk of an array lies, by the element that it begins with, and its pipeline."""
    array = dataset[name].variable._data
    assert isinstance(array, virtualds.ManifestArray)
    found = {}
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        edges = [axis.slabs() for axis in fragment.axes]
        for place in np.ndindex(manifest.shape):
            row = manifest.lookup(place)
            lies = tuple(
                (s + int(e.edges[p]), int(e.edges[p + 1] - e.edges[p]), *e[1:])[:2]
                for s, e, p in zip(fragment.start, edges, place, strict=True)
            )
            assert lies not in found
            file = manifest.files[row.file]
            found[lies] = (file, row.offset, row.length, array.pipelines[row.pipeline])
    return found


def assert_same_set(found: xr.Dataset, expected: xr.Dataset) -> None:
    """The same values, and the same references chunk by chunk, whatever tables they lie in."""
    xr.testing.assert_identical(found, expected)
    for name, variable in expected.variables.items():
        other = found.variables[name]
        assert repr(other.attrs) == repr(variable.attrs)
        ours, theirs = ({**v.encoding, "source": ""} for v in (other, variable))
        assert repr(ours) == repr(theirs)
        assert type(other._data) is type(variable._data)
        if isinstance(variable._data, virtualds.ManifestArray):
            assert chunks(found, str(name)) == chunks(expected, str(name))
