"""Datasets of virtual arrays with xarray's own lazy arrays, or dask arrays, instead."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.alignment import preferred, snapped
from virtualds.datasets.lazy import lazily
from virtualds.datasets.references_behind import with_variables


def lazy_copy(
    dataset: xr.Dataset, arrays: Mapping[Hashable, ManifestArray], chunks: Any
) -> xr.Dataset:
    """Return a dataset with lazy variables in place of its virtual ones.

    Parameters
    ----------
    dataset : Dataset
    arrays : mapping of variable name to ManifestArray
        Its virtual variables.
    chunks : as in `xarray.open_dataset`
        None makes xarray's lazy arrays, everything else dask arrays.
    """
    variables = {
        name: xr.Variable(
            (v := dataset.variables[name]).dims,
            lazily(array, str(name), is_decoded=True),
            v.attrs,
            _encoding(v, array),
        )
        for name, array in arrays.items()
    }
    lazy = with_variables(dataset, variables)
    if chunks is None:
        return lazy
    return lazy.assign(
        {
            n: lazy[n].variable.chunk(_chunks_of(lazy[n].variable, a, chunks))
            for n, a in arrays.items()
        }
    )


def _encoding(variable: xr.Variable, array: ManifestArray) -> dict[str, Any]:
    chunks = dict(zip(variable.dims, map(preferred, array.blocks), strict=True))
    return {**variable.encoding, "preferred_chunks": chunks}


def _chunks_of(
    variable: xr.Variable, array: ManifestArray, chunks: Any
) -> dict[Hashable, tuple[int, ...]]:
    """Return the blocks that are asked for, of whole chunks where dask may choose."""
    from dask.array.core import normalize_chunks

    whole = array.blocks
    named = chunks if isinstance(chunks, Mapping) else dict.fromkeys(variable.dims, chunks)
    asked = [named.get(dim) or stored for dim, stored in zip(variable.dims, whole, strict=True)]
    found = normalize_chunks(  # type: ignore[no-untyped-call]
        tuple(asked), shape=array.shape, dtype=array.dtype, previous_chunks=whole
    )
    return {
        dim: snapped(blocks, stored) if isinstance(how, str) else blocks
        for dim, how, blocks, stored in zip(variable.dims, asked, found, whole, strict=True)
    }
