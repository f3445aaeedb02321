"""Templates: datasets of coordinates and sizes, whose arrays have no references yet."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray, default_fill
from virtualds.chunks.alignment import find_regular_chunks
from virtualds.chunks.fragment import Fragment, make_regular_axes
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.datasets.keywords import format_suggestion, make_strict
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.references_behind import restore_references
from virtualds.errors import UnsupportedError, VirtualdsError

CASTABLE = set("biufcmM")
"""Kinds of dtypes of coordinates that are held as the cell holds them."""


@make_strict()
def template(
    like: xr.Dataset,
    coords: Mapping[Any, Any] | None = None,
    *,
    sizes: Mapping[Any, int] | None = None,
) -> xr.Dataset:
    """Return a dataset of all coordinates of an archive, whose arrays have no references yet.

    Write it once with ``ds.virtual.to_manifest``, then fill it region by region, with
    ``to_manifest(url, region="auto")``. It takes the memory of its coordinates, however large it
    is. Elements without references read as the fill value: NaN for floating-point numbers.

    Parameters
    ----------
    like : xarray.Dataset
        One cell of the archive, opened virtually: it has all variables and dimensions. Its arrays
        say how all others are cut into chunks and stored. Variables without a dimension of
        ``coords`` and ``sizes`` stay as they are.
    coords : mapping, optional
        Whole coordinates, as for `xarray.Dataset.assign_coords`.
    sizes : mapping of dimension to int, optional
        Lengths of dimensions without a coordinate.

    Raises
    ------
    ValueError
        A dimension is unknown, or has two lengths.
    UnsupportedError
        The chunks of an array differ in length or encoding; or a variable in memory has to be
        given, because its dtype has no missing value.

    Examples
    --------
    >>> import numpy as np
    >>> import virtualds
    >>> day = virtualds.open_virtual_dataset("2001.nc").expand_dims(member=[0])
    >>> whole = template(day, {"member": np.arange(50)})
    >>> whole.sizes["member"], whole.virtual.nchunks, len(whole.virtual.sources)
    (50, 600, 0)
    """
    like = restore_references(like)
    given = xr.Dataset(coords=coords or {})
    lengths = _find_lengths(like, given, sizes or {})
    made: dict[Hashable, xr.Variable] = {}
    for name, variable in like.variables.items():
        if name in given.variables:
            made[name] = _copy_attributes(given.variables[name], variable)
        elif lengths.keys() & set(variable.dims):
            try:
                made[name] = _empty_variable(variable, lengths)
            except VirtualdsError as error:
                error.locate(f"variable {name!r}")
                raise
    made |= {n: v for n, v in given.variables.items() if n not in like.variables}
    rest = {n: v for n, v in like.variables.items() if n not in made}
    whole = xr.Dataset({**rest, **made}, attrs=like.attrs).set_coords([*like.coords, *given.coords])
    whole.encoding = dict(like.encoding)
    return whole[list(like.data_vars)]


def _find_lengths(
    like: xr.Dataset, given: xr.Dataset, sizes: Mapping[Any, int]
) -> dict[Hashable, int]:
    """Return the lengths of the dimensions that coordinates and sizes name."""
    for dim, size in sizes.items():
        if given.sizes.get(dim, size) != size:
            raise ValueError(
                f"template: {dim!r} has {given.sizes[dim]} values in coords and {size} in sizes"
            )
    lengths: dict[Hashable, int] = {**given.sizes, **{d: int(n) for d, n in sizes.items()}}
    if unknown := [dim for dim in lengths if dim not in like.dims]:
        raise ValueError(
            f"template: dimension {unknown[0]!r} is not one of the dataset's {list(like.dims)}; "
            f"give "
            f"the cell all dimensions first: ds.expand_dims({unknown[0]!r})"
            f"{format_suggestion(str(unknown[0]), map(str, like.dims))}"
        )
    return lengths


def _copy_attributes(variable: xr.Variable, like: xr.Variable) -> xr.Variable:
    """Return a coordinate that is described and stored as another one is."""
    found = variable.to_base_variable()
    cast = found.astype(like.dtype) if {found.dtype.kind, like.dtype.kind} <= CASTABLE else found
    # a cell whose coordinate has another precision must still be found
    found = cast if bool((cast == found).all()) else found
    found.attrs = dict(like.attrs) | found.attrs
    found.encoding = {k: v for k, v in like.encoding.items() if k in ("units", "calendar", "dtype")}
    return found


def _empty_variable(variable: xr.Variable, lengths: Mapping[Hashable, int]) -> xr.Variable:
    """Return a variable of other lengths without values."""
    shape = tuple(lengths.get(d, n) for d, n in zip(variable.dims, variable.shape, strict=True))
    if (array := get_virtual_array(variable)) is None:
        if variable.dtype.kind not in "fcmM":
            raise UnsupportedError(
                f"its values of dtype {variable.dtype} are in memory, and no value stands for one "
                f"that is not there yet; give all of them in coords, or leave it out (ds.drop_vars)"
            )
        values = np.full(shape, default_fill(variable.dtype))
        return xr.Variable(variable.dims, values, variable.attrs, variable.encoding)
    found = _empty_array(array, shape)
    encoding = dict(variable.encoding)
    if found.dtype.kind in "fc" and found.pipelines[0].packing is None:
        # so that readers who know only this attribute fill alike
        encoding.setdefault("_FillValue", found.pipelines[0].missing_value)
    return xr.Variable(variable.dims, found, variable.attrs, encoding)


def _empty_array(array: ManifestArray, shape: tuple[int, ...]) -> ManifestArray:
    """Return an array without references that is cut and stored as another one."""
    chunks = find_regular_chunks(array.shape, array.fragments)
    if chunks is None or len(array.pipelines) != 1 or not array.fragments:
        raise UnsupportedError(
            f"{array.label}: it has {len(array.fragments)} grids of chunks and "
            f"{len(array.pipelines)} encodings, and a template has one; give one cell of the "
            f"archive"
        )
    pipeline = _fill_with_missing(array.pipelines[0], array.dtype)
    axes = make_regular_axes(shape, chunks)
    manifest = ChunkManifest.missing(tuple(axis.nchunks for axis in axes))
    fragment = Fragment.whole(axes, manifest)
    return replace(array, shape=shape, pipelines=(pipeline,), fragments=(fragment,))


def _fill_with_missing(pipeline: CodecPipeline, dtype: np.dtype[Any]) -> CodecPipeline:
    """Return a pipeline whose missing chunks read as NaN or NaT, where a stored number says so."""
    if pipeline.packing is None:
        if dtype.kind not in "fc" or pipeline.dtype.kind not in "fc":
            return pipeline
        known: Any = np.nan
    else:
        attributes = pipeline.packing.attributes
        known = attributes.get("_FillValue", attributes.get("missing_value"))
    if known is None or np.ndim(known) or np.asarray(known).dtype.kind not in "iufc":
        return pipeline
    stored = np.asarray(known).astype(pipeline.dtype).tobytes()
    return replace(pipeline, fill=stored)
