"""Edits the metadata of a reference set: names, attributes, and what is left out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.datasets import edited_groups
from virtualds.datasets.append import remove_sources
from virtualds.datasets.changed_groups import (
    find_group,
    list_inherited,
    naming_group,
    normalise_path,
    put_group,
)
from virtualds.datasets.keywords import make_strict, names_of
from virtualds.datasets.location import Location
from virtualds.datasets.own_values import load_own_values
from virtualds.datasets.write import Destination
from virtualds.datasets.write_options import WriteOptions
from virtualds.errors import CombineError
from virtualds.formats.zarr.write_plan import suggest_instead
from virtualds.stores.access_rules import Allow
from virtualds.urls import normalise_url

MOST_OWN_CHUNKS = 64
"""Values that a set holds itself have few chunks: large ones, or one."""


@dataclass(frozen=True)
class Edits:
    """What to change in a set; as for `edit`. Something changes."""

    rename: Mapping[str, str]
    drop_variables: tuple[str, ...]
    drop_groups: tuple[str, ...]
    attributes: Mapping[str, Any]
    path: str
    own: str

    def __post_init__(self) -> None:
        if not (self.rename or self.drop_variables or self.drop_groups or self.attributes):
            raise ValueError(
                "edit: nothing to change; give rename, drop_variables, drop_groups or attributes"
            )

    def apply(self, old: ManifestGroup) -> ManifestGroup:
        """Return the set with all changes."""
        root = edited_groups.drop_groups(old, self.drop_groups)
        group = find_group(root, self.path)
        if group is None:
            raise ValueError(
                f"group {self.path!r}: the set has {sorted(p for p, _ in root.walk() if p)}"
            )
        if inherited := list_inherited(root, self.path, self.rename):
            raise ValueError(
                f"rename {min(inherited)!r}: group /{self.path} has this coordinate from a group "
                f"above it; rename it there, and it is renamed here as well"
            )
        with naming_group(self.path):
            group = edited_groups.drop_variables(group, self.drop_variables)
            group = edited_groups.rename(self._load_renamed(group), self.rename)
            group = edited_groups.change_attributes(group, self.attributes)
        return put_group(root, self.path, group)

    def _load_renamed(self, group: ManifestGroup) -> ManifestGroup:
        """Load values that the set holds: they are written under the new name, for plain Zarr."""
        renamed = {
            name: v
            for name, v in group.variables.items()
            # of other arrays, the files would have to be listed
            if name in self.rename and getattr(v.data, "nchunks", 0) <= MOST_OWN_CHUNKS
        }
        loaded = load_own_values(replace(group, variables=renamed, groups={}), self.own).variables
        return replace(group, variables={**group.variables, **loaded})


@make_strict()
def edit(
    url: str | os.PathLike[str],
    *,
    rename: Mapping[str, str] | None = None,
    drop_variables: str | Iterable[str] | None = None,
    drop_groups: str | Iterable[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    group: str | None = None,
    format: str | None = None,
    conflict: str = "raise",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Change names and attributes in a reference set, and leave out variables and groups.

    No source is opened, and no references are read. Everything is changed in one step, in this
    order: groups and variables are dropped, what is left is renamed, and attributes are changed.

    Parameters
    ----------
    url : str or path
        The set.
    rename : dict, optional
        Old names of variables and dimensions to new ones, as in `xarray.Dataset.rename`. A
        dimension is renamed in the groups below, too. Attributes that name variables
        (``coordinates``, ``bounds``, ``grid_mapping`` and so on) get the new names.
    drop_variables : str or iterable of str, optional
        Variables to leave out.
    drop_groups : str or iterable of str, optional
        Paths of groups to leave out, with the groups below them.
    attributes : dict, optional
        New values, by ``"title"`` for an attribute of the group, or by ``"t:long_name"`` for one
        of a variable. None removes an attribute. Attributes that say how numbers are decoded
        (``scale_factor``, ``_FillValue``, units of time) cannot be changed.
    group : str, optional
        Path of the group to change, by default the root.
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
    ValueError
        The set has no such variable, dimension or group; or a new name is taken.
    ConflictError
        Another writer was faster; this call has changed nothing.
    UnsupportedError
        A set of this format cannot be changed, or the store has no conditional writes.
    FileNotFoundError
        There is no set.

    Examples
    --------
    >>> import virtualds, xarray as xr
    >>> virtualds.open_virtual_dataset("2001.nc").virtual.to_manifest("refs.json")
    >>> edit("refs.json", rename={"t": "temperature"}, attributes={"temperature:units": "K"})
    >>> xr.open_dataset("refs.json", engine="virtual")["temperature"].units
    'K'
    """
    location = Location.of(url, storage_options)
    edits = Edits(
        rename=dict(rename or {}),
        drop_variables=names_of("drop_variables", drop_variables),
        drop_groups=tuple(map(normalise_path, names_of("drop_groups", drop_groups))),
        attributes=dict(attributes or {}),
        path=normalise_path(group),
        own=f"{location.url.rstrip('/')}/",
    )
    options = WriteOptions(format, "r+", conflict=conflict, allow=allow)
    Destination.of(location, options).change(edits.apply)


# ---------------------------------------------------------------------- dropping sources


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
    >>> vds.virtual.to_manifest("both.json")
    >>> drop_sources("both.json", "2001.nc")
    >>> vds.sizes["time"], xr.open_dataset("both.json", engine="virtual").sizes["time"]
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
