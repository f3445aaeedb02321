"""Turning virtual arrays into lazy arrays of xarray, or dask arrays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.alignment import snap_blocks, to_preferred_chunks
from virtualds.datasets.far_blocks import prefer_far_blocks
from virtualds.datasets.lazy import to_lazy
from virtualds.datasets.references_behind import replace_variables


def to_lazy_copy(
    dataset: xr.Dataset, arrays: Mapping[Hashable, ManifestArray], chunks: Any
) -> xr.Dataset:
    """Return a dataset with lazy variables in place of virtual ones.

    Parameters
    ----------
    dataset : Dataset
    arrays : mapping of variable name to ManifestArray
        Virtual variables of the dataset.
    chunks : as in `xarray.open_dataset`
        None makes lazy arrays of xarray, any other value dask arrays.
    """
    variables = {
        name: xr.Variable(
            (v := dataset.variables[name]).dims,
            to_lazy(array, str(name), is_decoded=True),
            v.attrs,
            _build_encoding(v, array),
        )
        for name, array in arrays.items()
    }
    prefer_far_blocks(variables, arrays)
    lazy = replace_variables(dataset, variables)
    if chunks is None:
        return lazy
    return lazy.assign(
        {
            n: lazy[n].variable.chunk(_chunks_of(lazy[n].variable, a, chunks))
            for n, a in arrays.items()
        }
    )


def _build_encoding(variable: xr.Variable, array: ManifestArray) -> dict[str, Any]:
    chunks = dict(zip(variable.dims, map(to_preferred_chunks, array.blocks), strict=True))
    return {**variable.encoding, "preferred_chunks": chunks}


def _chunks_of(
    variable: xr.Variable, array: ManifestArray, chunks: Any
) -> dict[Hashable, tuple[int, ...]]:
    """Return the requested blocks; where dask may choose, of whole chunks."""
    from dask.array.core import normalize_chunks

    whole, preferred = array.blocks, variable.encoding["preferred_chunks"]
    named = chunks if isinstance(chunks, Mapping) else dict.fromkeys(variable.dims, chunks)
    asked = [named.get(dim) or preferred.get(dim, size) for dim, size in variable.sizes.items()]
    found = normalize_chunks(  # type: ignore[no-untyped-call]
        tuple(asked), shape=array.shape, dtype=array.dtype, previous_chunks=whole
    )
    return {
        dim: snap_blocks(blocks, stored) if isinstance(how, str) else blocks
        for dim, how, blocks, stored in zip(variable.dims, asked, found, whole, strict=True)
    }
