"""The commuting square: transforming what we open is what xarray makes of the file, transformed.

Cases × ways to open × transforms. A new case is a function in `cases`, a new way to open or a new
transform one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from cases import CASES, Archive

import virtualds

pytestmark = [
    # xarray warns of the same files whoever reads them
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

# ---------------------------------------------------------------------- ways to open


@cache
def virtually(archive: Archive, name: str) -> xr.Dataset:
    """As virtual as can be: only dimension coordinates are loaded."""
    path, group = archive.path(name), CASES[name].group
    try:
        return virtualds.open_virtual_dataset(
            path, group=group, loadable_variables=lambda name, v: v.dims == (name,)
        )
    except virtualds.UnsupportedError:
        # what decodes only as a whole (characters, cftime) has to be loaded
        return virtualds.open_virtual_dataset(path, group=group)


@cache
def references(archive: Archive, name: str) -> Path:
    """A reference set of the file, with as few values inline as can be."""
    path, group = archive.path(name), CASES[name].group
    target = path.with_suffix(".json")
    try:
        vds = virtualds.open_virtual_dataset(path, group=group, loadable_variables=[])
        vds.virtual.to_manifest(target)
    except virtualds.UnsupportedError:
        # characters, or chunks that decode in several ways: their values go inline
        vds = virtualds.open_virtual_dataset(path, group=group)
        vds.virtual.load().virtual.to_manifest(target)
    return target


def from_the_source(archive: Archive, name: str) -> xr.Dataset:
    return xr.open_dataset(archive.path(name), engine="virtual", group=CASES[name].group)


def through_kerchunk_json(archive: Archive, name: str) -> xr.Dataset:
    return xr.open_dataset(references(archive, name), engine="virtual")


OPENERS: dict[str, Callable[[Archive, str], xr.Dataset]] = {
    "source": from_the_source,
    "virtual": virtually,
    "kerchunk-json": through_kerchunk_json,
}

# ---------------------------------------------------------------------- transforms


def long_dims(ds: xr.Dataset) -> list[Any]:
    """The dimensions along which there is something to select, longest first."""
    return sorted((d for d in ds.dims if ds.sizes[d] > 1), key=lambda d: (-ds.sizes[d], str(d)))


def indexed(ds: xr.Dataset) -> xr.Dataset:
    """Give every dimension an index."""
    return ds.assign_coords({d: np.arange(n) for d, n in ds.sizes.items() if d not in ds.indexes})


def along(ds: xr.Dataset, key: Any) -> xr.Dataset:
    return ds.isel(dict.fromkeys(long_dims(ds), key))


def pointwise(ds: xr.Dataset) -> xr.Dataset:
    dims = long_dims(ds)[:2]
    picked = {
        d: xr.DataArray([0, ds.sizes[d] - 1, ds.sizes[d] // 2, 0], dims="points") for d in dims
    }
    return ds.isel(picked)


def outer_pick(ds: xr.Dataset) -> xr.Dataset:
    return ds.isel({d: [ds.sizes[d] - 1, 0, 0, ds.sizes[d] // 2] for d in long_dims(ds)})


KEEP: dict[str, Any] = {
    "coords": "minimal",
    "compat": "override",
    "join": "override",
    "combine_attrs": "override",
}


def concat_with_itself(ds: xr.Dataset) -> xr.Dataset:
    for dim in long_dims(ds)[:2]:
        ds = xr.concat([ds, ds], dim=dim, data_vars="minimal", **KEEP)
    return ds


def split_and_concat(ds: xr.Dataset) -> xr.Dataset:
    for dim in long_dims(ds)[:1]:
        cut = (ds.sizes[dim] + 1) // 2
        parts = [ds.isel({dim: slice(cut)}), ds.isel({dim: slice(cut, None)})]
        ds = xr.concat(parts[::-1], dim=dim, data_vars="minimal", **KEEP)
    return ds


def stack_along_new(ds: xr.Dataset) -> xr.Dataset:
    return xr.concat([ds, ds], dim="new_dim", data_vars="all", **KEEP)


def reindex_beyond(ds: xr.Dataset) -> xr.Dataset:
    ds = indexed(ds)
    for dim in long_dims(ds)[:2]:
        index = ds.indexes[dim]
        if index.is_unique:
            ds = ds.reindex({dim: [index[1], index[0]]}).reindex({dim: index})
    return ds


def align_outer(ds: xr.Dataset) -> xr.Dataset:
    ds = indexed(ds)
    for dim in long_dims(ds)[:1]:
        first, second = ds.isel({dim: slice(0, 1)}), ds.isel({dim: slice(1, None)})
        if ds.indexes[dim].is_unique:
            ds = xr.align(second, first, join="outer")[0]
    return ds


def select_label(ds: xr.Dataset) -> xr.Dataset:
    ds = indexed(ds)
    for dim in long_dims(ds)[:1]:
        ds = ds.sel({dim: ds.indexes[dim][1]})
    return ds


def select_labels(ds: xr.Dataset) -> xr.Dataset:
    ds = indexed(ds)
    for dim in long_dims(ds)[:1]:
        index = ds.indexes[dim]
        if index.is_unique and index.is_monotonic_increasing:
            ds = ds.sel({dim: slice(index[0], index[-2])})
    return ds


def merge_with_itself(ds: xr.Dataset) -> xr.Dataset:
    return xr.merge([ds, ds], compat="override", join="outer", combine_attrs="override")


TRANSFORMS: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "identity": lambda ds: ds,
    "isel_first": lambda ds: along(ds, 0),
    "isel_last": lambda ds: along(ds, -1),
    "isel_slice": lambda ds: along(ds, slice(1, -1)),
    "isel_strided": lambda ds: along(ds, slice(1, None, 2)),
    "isel_backwards": lambda ds: along(ds, slice(None, None, -1)),
    "isel_backwards_strided": lambda ds: along(ds, slice(-1, 0, -2)),
    "isel_nothing": lambda ds: along(ds, slice(0)),
    "isel_positions": outer_pick,
    "isel_points": pointwise,
    "isel_twice": lambda ds: along(along(ds, slice(1, None)), slice(None, -1)),
    "transpose": lambda ds: ds.transpose(*reversed(list(ds.dims))),
    "transpose_and_slice": lambda ds: along(ds.transpose(*reversed(list(ds.dims))), slice(1, None)),
    "mean": lambda ds: ds.mean(long_dims(ds)[:1]) if ds.dims else ds,
    "concat": concat_with_itself,
    "concat_parts": split_and_concat,
    "concat_new": stack_along_new,
    "merge": merge_with_itself,
    "expand_dims": lambda ds: ds.expand_dims("new_dim"),
    "expand_and_squeeze": lambda ds: ds.expand_dims("new_dim").squeeze(),
    "reindex": reindex_beyond,
    "align_outer": align_outer,
    "sel": select_label,
    "sel_slice": select_labels,
}

XARRAY_DIFFERS = {
    # what xarray decodes lazily to nanoseconds it decodes to seconds if nothing is left of it
    ("timedelta_of_xarray", "isel_nothing"),
}

# ---------------------------------------------------------------------- the square


def assert_identical(found: xr.Dataset, expected: xr.Dataset) -> None:
    loaded = found.virtual.load().load()
    xr.testing.assert_identical(loaded, expected)
    for name, variable in expected.variables.items():
        if variable.dtype.kind not in "OUT":
            # strings that went through a set of references may be another kind of strings
            assert loaded.variables[name].dtype == variable.dtype, name


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforming_and_opening_commute(
    name: str, opener: str, transform: str, archive: Archive
) -> None:
    opened = OPENERS[opener](archive, name)
    change = TRANSFORMS[transform]
    if (name, transform) in XARRAY_DIFFERS and opener != "virtual":
        pytest.skip("xarray itself decodes this differently when it is lazy")
    assert_identical(change(opened), change(archive.native(name)))


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("name", CASES)
def test_values_are_the_same_bits(name: str, opener: str, archive: Archive) -> None:
    opened = OPENERS[opener](archive, name).virtual.load()
    for variable, expected in archive.native(name).variables.items():
        if expected.dtype.kind not in "OUT":
            assert opened.variables[variable].values.tobytes() == expected.values.tobytes()


@pytest.mark.parametrize("opener", ["source", "virtual"])
@pytest.mark.parametrize("name", CASES)
def test_variables_come_in_the_order_of_the_native_engine(
    name: str, opener: str, archive: Archive
) -> None:
    opened = OPENERS[opener](archive, name)
    expected = archive.native(name)
    assert list(opened.variables) == list(expected.variables)
    assert list(opened.attrs) == list(expected.attrs)
    for variable in expected.variables:
        assert list(opened[variable].attrs) == list(expected[variable].attrs)


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("name", CASES)
def test_attributes_have_the_types_of_the_native_engine(
    name: str, opener: str, archive: Archive
) -> None:
    opened = OPENERS[opener](archive, name)
    expected = archive.native(name)
    owners = [(opened.attrs, expected.attrs)]
    owners += [(opened[v].attrs, expected[v].attrs) for v in expected.variables]
    for found, wanted in owners:
        assert {n: _kind(v) for n, v in found.items()} == {n: _kind(v) for n, v in wanted.items()}


@pytest.mark.parametrize("opener", ["source", "virtual"])
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.engine == "netcdf4"])
def test_encoding_is_that_of_the_native_engine(name: str, opener: str, archive: Archive) -> None:
    opened = OPENERS[opener](archive, name)
    expected = archive.native(name)
    assert opened.encoding["unlimited_dims"] == expected.encoding["unlimited_dims"]
    for variable in expected.variables:
        found, wanted = opened[variable].encoding, expected[variable].encoding
        assert {n: _spelled(v) for n, v in found.items()} == {
            n: _spelled(v) for n, v in wanted.items()
        }


def _kind(value: Any) -> Any:
    return type(value), getattr(value, "dtype", None), np.shape(value)


def _spelled(value: Any) -> Any:
    """Spell an encoding so that NaN equals NaN and arrays compare, types included."""
    if isinstance(value, np.dtype) and value.metadata and "enum" in value.metadata:
        # the name of an enum type is the netCDF library's guess
        return value, value.metadata["enum"]
    return type(value), getattr(value, "dtype", None), repr(value)
