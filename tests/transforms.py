"""What the commuting squares do to datasets, and how they compare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from numpy.lib import recfunctions


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


def assert_identical(found: xr.Dataset, expected: xr.Dataset) -> None:
    loaded = found.virtual.load().load()
    xr.testing.assert_identical(loaded, expected)
    for name, variable in expected.variables.items():
        if variable.dtype.kind not in "OUT":
            # strings that went through a set of references may be another kind of strings
            assert packed(loaded.variables[name].dtype) == packed(variable.dtype), name


def packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A compound dtype without the bytes between its members, which mean nothing."""
    return recfunctions.repack_fields(dtype, recurse=True) if dtype.names else dtype


def without_gaps(ds: xr.Dataset) -> xr.Dataset:
    """A dataset whose compound variables have no bytes between their members."""
    compound = [name for name, v in ds.variables.items() if v.dtype.names]
    return ds.assign(
        {
            n: ds[n].copy(data=recfunctions.repack_fields(ds[n].values, recurse=True))
            for n in compound
        }
    )


def bits(values: np.ndarray[Any, Any]) -> bytes:
    """The bytes that mean something."""
    if values.dtype.names:
        values = recfunctions.repack_fields(values, recurse=True)
    return values.tobytes()
