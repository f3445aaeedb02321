"""Removes sources from a reference set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.append import remove_sources
from virtualds.datasets.keywords import make_strict, names_of
from virtualds.datasets.location import Location
from virtualds.datasets.write import Destination
from virtualds.datasets.write_options import WriteOptions
from virtualds.errors import CombineError
from virtualds.formats.zarr.write_plan import suggest_instead
from virtualds.stores.access_rules import Allow
from virtualds.urls import normalise_url

REMEDY = (
    "convert the set to zarr-v3, which holds gaps (virtualds.convert), and drop the source there, "
    "or write the set anew without this source"
)
"""What to do about a set whose format cannot hold what is left."""


@make_strict()
def drop_sources(
    url: str | os.PathLike[str],
    sources: str | Iterable[str],
    *,
    dim: str | None = None,
    format: str | None = None,
    conflict: str = "raise",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Remove the data that come from some sources out of a reference set.

    Positions along the dimension go where no other source has data. Where one has, as in a grid of
    files, the chunks are missing then, and read as missing values. Coordinates stay there, and so
    do variables without the dimension, or without another one of the grid: if they come from one of
    these sources, reading them still needs that file.

    Parameters
    ----------
    url : str or path
        The set.
    sources : str or iterable of str
        Paths or urls, as ``ds.virtual.sources`` lists them.
    dim : str, optional
        The dimension along which sources follow each other, by default the only such dimension.
    format : str, optional
        The name of the format, needed if neither the suffix nor the content of the set shows it.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    allow : str, path, or iterable of them, optional
        Where the files that the set refers to may lie, as in `open_virtual_dataset`.
    storage_options : dict, optional
        Access options, for fsspec.

    Raises
    ------
    CombineError
        The set has no such source, or no other sources; or a gap would be left in a variable that
        has no missing value, such as one of integers.
    ConflictError
        Another writer was faster; this call has changed nothing.
    UnsupportedError
        A set of this format cannot be changed, or cannot hold the gap; or the store has no
        conditional writes.
    FileNotFoundError
        There is no set.

    Examples
    --------
    >>> import virtualds, xarray as xr
    >>> vds = virtualds.open_virtual_mfdataset("200[12].nc", combine="nested", concat_dim="time")
    >>> vds.virtual.to_manifest("refs.json")
    >>> drop_sources("refs.json", "2001.nc")
    >>> vds.sizes["time"], xr.open_dataset("refs.json", engine="virtual").sizes["time"]
    (24, 12)
    """
    options = WriteOptions(format, "replace-source", conflict=conflict, allow=allow)
    destination = Destination.of(Location.of(url, storage_options), options)
    urls = [normalise_url(source) for source in names_of("sources", sources)]

    def change(old: ManifestGroup) -> ManifestGroup:
        found = remove_sources(old, urls, dim, destination.location.url)
        if found is old:
            raise CombineError(
                f"{urls[0]}: all that is left of it in the set is of other sources, too: "
                f"coordinates, or variables without a dimension of the grid; write the set anew "
                f"without this source"
            )
        return found

    with suggest_instead(REMEDY):
        destination.change(change)
