"""Templates, and the regions of a set that are filled: in any order, by many writers.

The keywords are those of `xarray.Dataset.to_zarr`. This module writes nothing; a format compares
the result with the set, and writes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray, default_fill
from virtualds.arrays.concatenate import count_references, crop_box, put_region
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.alignment import find_regular_chunks
from virtualds.chunks.fragment import Fragment, make_regular_axes
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.datasets.append import list_misfits, load_alike, to_stored
from virtualds.datasets.from_dataset import check_loading
from virtualds.datasets.keywords import format_suggestion, make_strict
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.reference_changes import replace_variables, restore_references
from virtualds.datasets.reference_systems import check_systems_of_set, list_systems
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.errors import CombineError, UnsupportedError, list_details, locating
from virtualds.formats.undecodable import decode_group

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
            with locating(f"variable {name!r}"):
                made[name] = _empty_variable(variable, lengths)
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


# ---------------------------------------------------------------------- regions

AUTO = "auto"
Region = Mapping[Any, Any] | str
"""For each dimension a slice, or ``"auto"``; ``"auto"`` for all dimensions of the dataset."""
Slices = dict[Hashable, slice]


def fill_region(
    old: ManifestGroup,
    new: xr.Dataset,
    region: Region,
    on_duplicate: str = "raise",
    root: str = "",
) -> ManifestGroup:
    """Return a group with a dataset in a region of it; itself if it has all of it already.

    ``region`` and ``on_duplicate`` are those of ``ds.virtual.to_manifest``; ``root`` is the url of
    the set, which holds the chunks of values that were in memory when it was written. What does not
    fit the region, or is there already, is a `CombineError`.
    """
    new = restore_references(new)
    present = decode_group(old, "raise", to_virtual_dataset)
    present = load_alike(present, new, root, only_own=True)
    check_systems_of_set(list_systems(present), new)
    slices = _find_slices(present, new, region)
    new = _drop_indexes(present, new, slices)
    if others := [str(n) for n, v in new.variables.items() if not slices.keys() & set(v.dims)]:
        raise ValueError(
            f"region {_format(slices)}: the variables {others} have none of its dimensions; leave "
            f"them out: ds.drop_vars({others})"
        )
    if problems := [p for n in new.variables for p in _find_problems(present, new, n, slices)]:
        said = (
            f"region {_format(slices)}: the new dataset does not fit the set, and nothing has been "
            f"written; leave variables out with ds.drop_vars, or convert them"
        )
        raise CombineError(list_details(said, problems))
    changed = {}
    for name, variable in new.variables.items():
        if get_virtual_array(variable) is None:
            check_loading(str(name), variable)
        found = _fill_variable(name, present.variables[name], variable, slices, on_duplicate)
        if found is not None:
            changed[name] = found
    whole = replace_variables(present, changed)
    return to_stored(old, whole, changed) if changed else old


# ---------------------------------------------------------------------- where


def _find_slices(present: xr.Dataset, new: xr.Dataset, region: Region) -> Slices:
    """Return the slice of the set for each dimension of a region."""
    if isinstance(region, str):
        _demand_auto(region, region)
        region = dict.fromkeys(new.dims, AUTO)
    found: Slices = {}
    for dim, wanted in region.items():
        for what, dataset in (("the set", present), ("the new dataset", new)):
            if dim not in dataset.dims:
                raise ValueError(
                    f"region: {what} has no dimension {dim!r}; it has {list(dataset.dims)}"
                )
        size, count = present.sizes[dim], new.sizes[dim]
        if isinstance(wanted, slice):
            found[dim] = _check_slice(dim, wanted, size, count)
        else:
            _demand_auto(wanted, {dim: wanted})
            found[dim] = _find_by_index(present, new, dim)
    return found


def _demand_auto(wanted: Any, region: Any) -> None:
    if wanted != AUTO:
        raise ValueError(
            f"region={region!r}: it is 'auto', or a dict of dimensions to slices or 'auto'"
        )


def _check_slice(dim: Hashable, wanted: slice, size: int, count: int) -> slice:
    """Return a slice with start and stop inside of a dimension."""
    if wanted.step not in (None, 1):
        raise ValueError(f"region: {wanted} along {dim!r} has a step; give a slice without one")
    if wanted.stop is not None and wanted.stop > size:
        raise ValueError(
            f"region: {wanted} along {dim!r} stops beyond the {size} elements of the set; append "
            f"what is new (append_dim={dim!r}), or make a longer template"
        )
    start, stop, _ = wanted.indices(size)
    if stop - start != count:
        raise ValueError(
            f"region: {wanted} along {dim!r} is {max(stop - start, 0)} of the {size} elements of "
            f"the set, and the new dataset has {count}"
        )
    return slice(start, stop)


def _find_by_index(present: xr.Dataset, new: xr.Dataset, dim: Hashable) -> slice:
    """Return where the set has the values of a coordinate.

    Without a coordinate on either side it is the whole dimension, as for xarray.
    """
    if dim not in present.variables and dim not in new.variables:
        return _check_slice(dim, slice(None), present.sizes[dim], new.sizes[dim])
    for what, dataset in (("the set", present), ("the new dataset", new)):
        if dim not in dataset.indexes:
            raise ValueError(
                f"region: {what} has no index coordinate {dim!r}, by which 'auto' finds the place; "
                f"give a slice, or load the coordinate (loadable_variables)"
            )
    index, values = present.indexes[dim], new.indexes[dim]
    if not index.is_unique:
        raise ValueError(f"region: the coordinate {dim!r} of the set repeats values; give a slice")
    places = index.get_indexer(values)
    if (places < 0).any():
        absent = values[int(np.flatnonzero(places < 0)[0])]
        raise CombineError(
            f"region: the coordinate {dim!r} of the set has no {absent}; append it "
            f"(append_dim={dim!r}), or make a template that has it"
        )
    if not places.size or (np.diff(places) != 1).any():
        raise CombineError(
            f"region: the values of {dim!r} are at {places[:4].tolist()} of the set, which is "
            f"not a "
            f"contiguous stretch; write them one after the other"
        )
    return slice(int(places[0]), int(places[-1]) + 1)


def _drop_indexes(present: xr.Dataset, new: xr.Dataset, slices: Slices) -> xr.Dataset:
    """Return a dataset without the index coordinates, which must be those of the set there."""
    for dim in new.dims:
        if dim not in new.indexes or dim not in present.indexes:
            continue
        there = present.indexes[dim][slices.get(dim, slice(None))]
        if not there.equals(new.indexes[dim]):
            raise CombineError(
                f"region {_format(slices)}: the coordinate {dim!r} of the set has other values "
                f"there, from {there[0]} on, than the new dataset, from {new.indexes[dim][0]} on; "
                f"pass region={{{dim!r}: 'auto'}} to find them"
            )
    return new.drop_vars([d for d in new.dims if d in new.indexes and d in present.variables])


def _format(slices: Slices) -> str:
    shown = (f"{dim!r}: {part.start}:{part.stop}" for dim, part in slices.items())
    return "{" + ", ".join(shown) + "}"


# ---------------------------------------------------------------------- what


def _find_problems(
    present: xr.Dataset, new: xr.Dataset, name: Hashable, slices: Slices
) -> Iterator[str]:
    """Yield why a variable cannot go into the region."""
    if name not in present.variables:
        yield f"{name}: the set has no such variable"
        return
    old, variable = present.variables[name], new.variables[name]
    yield from (f"{name}: {reason}" for reason in list_misfits(old, variable, slices))
    if np.result_type(old.dtype, variable.dtype) != old.dtype:
        yield f"{name}: its dtype is {old.dtype} in the set and {variable.dtype} in the new dataset"
    if get_virtual_array(old) is not None and get_virtual_array(variable) is None:
        yield (
            f"{name}: it is in memory, and virtual in the set; leave it out, or open it virtually "
            f"(loadable_variables=[])"
        )


def _fill_variable(
    name: Hashable, old: xr.Variable, new: xr.Variable, slices: Slices, on_duplicate: str
) -> xr.Variable | None:
    """Return a variable of the set with new data in a region, None if it has them already."""
    key = tuple(slices.get(dim, slice(0, old.sizes[dim])) for dim in old.dims)
    array, added = get_virtual_array(old), get_virtual_array(new)
    try:
        if array is None or added is None:
            return _fill_values(old, new, key, on_duplicate)
        found = _fill_array(array, added, key, on_duplicate)
    except CombineError as error:
        raise CombineError(f"region {_format(slices)}: {name!r}: {error}") from error
    return None if found is None else old.copy(data=found)  # type: ignore[arg-type]


def _fill_array(
    array: ManifestArray, added: ManifestArray, key: tuple[slice, ...], on_duplicate: str
) -> ManifestArray | None:
    box = tuple((part.start, part.stop) for part in key)
    known = crop_box(array, box)
    there = count_references(known)
    if there and on_duplicate == "raise":
        of = ", of " + ", ".join(s.url for s in known.sources[:2]) if known.sources else ""
        raise CombineError(
            f"{there} chunks of the region have references already{of}; pass on_duplicate='skip' "
            f"to leave them, or 'replace'"
        )
    if there and on_duplicate == "skip" and there == known.nchunks and not known.has_gaps:
        return None
    start = [part.start for part in key]
    return put_region(array, start, added, replaces=on_duplicate == "replace")


def _fill_values(
    old: xr.Variable, new: xr.Variable, key: tuple[slice, ...], on_duplicate: str
) -> xr.Variable | None:
    """Return values in memory with new ones in a region."""
    values, added = np.array(old.values), np.asarray(new.values).astype(old.dtype)
    known = ~np.asarray(xr.Variable(old.dims, values[key]).isnull())
    same = np.asarray((values[key] == added) | ~known)
    if not same.all() and on_duplicate == "raise":
        raise CombineError(
            f"the region has {np.count_nonzero(~same)} other values already; pass "
            f"on_duplicate='skip' to leave them, or 'replace'"
        )
    wanted = added if on_duplicate == "replace" else np.where(known, values[key], added)
    if xr.Variable(old.dims, wanted).equals(xr.Variable(old.dims, values[key])):  # type: ignore[no-untyped-call]
        return None
    values[key] = wanted
    return old.copy(data=values)
