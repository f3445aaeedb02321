"""Change reference sets: drop variables, groups and sources, and change names, attributes and urls.

`compact`, `expire_snapshots` and `clean_up` maintain sets.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, find_dim_sizes
from virtualds.arrays.sources import PrefixChange, move_file, move_group
from virtualds.codecs.cf import PACKING_ATTRIBUTES, UNITS_OF_DATES
from virtualds.datasets.decoding import make_independent_of_left_out
from virtualds.datasets.location import Location, find_existing_format
from virtualds.errors import CombineError, ReadError, UnsupportedError, without_secrets
from virtualds.formats import GRACE, Expiry, Format, Removal
from virtualds.formats.zarr.write_plan import suggest_instead
from virtualds.options import check_arguments, format_suggestion, to_names
from virtualds.source_file import SourceFile, local_path, normalise_url, scheme_of
from virtualds.stores import find_store
from virtualds.stores.access_rules import Allow
from virtualds.stores.local import list_leftovers, remove_paths
from virtualds.stores.store import explain_write_errors
from virtualds.writing import (
    Destination,
    WriteOptions,
    explain_missing_set,
    find_group,
    list_inherited,
    name_group_in_errors,
    normalise_path,
    put_group,
    retry_on_conflict,
)
from virtualds.writing.append import remove_sources
from virtualds.writing.set_change import SetChange


def load_own_values(group: ManifestGroup, root: str) -> ManifestGroup:
    """Return a group with variables loaded whose values are stored in the set below ``root``."""

    def read(path: str, variable: ManifestVariable) -> ManifestVariable:
        data = variable.data
        urls = [f.url for f in data.listed_sources] if isinstance(data, ManifestArray) else []
        is_own = bool(urls) and all(u.startswith(root) and f"{root}__" not in u for u in urls)
        return replace(variable, data=variable.read()) if is_own else variable

    return group.map_variables(read)


# ---------------------------------------------------------------------- changes of groups

NAMING_ATTRIBUTES = (
    "coordinates",
    "bounds",
    "climatology",
    "grid_mapping",
    "ancillary_variables",
    "cell_measures",
    "formula_terms",
)
"""Attributes that contain names of variables (CF conventions 1.11, appendix A)."""

TIME_UNITS = (
    *("days", "hours", "minutes", "seconds"),
    *("milliseconds", "microseconds", "nanoseconds"),
)
"""Units of numbers that xarray decodes to durations."""

Attributes = Mapping[str, Any]
RenameVariable = Callable[[str], str | None]
"""Takes the name of a variable, and returns its new name, or None if it was removed."""


def leave_out_variables(group: ManifestGroup, names: Iterable[str]) -> ManifestGroup:
    """Return a group without some variables; raise `ValueError` if one does not exist."""
    dropped = set(names)
    for name in sorted(dropped - group.variables.keys()):
        raise _make_unknown_name_error("drop_variables", name, group.variables)
    remaining = make_independent_of_left_out(group.leave_out(dropped))
    return _rename_in_attributes(
        remaining, lambda name: None if name in dropped else name, ("coordinates",)
    )


def leave_out_groups(root: ManifestGroup, paths: Iterable[str]) -> ManifestGroup:
    """Return a set without some groups; raise `ValueError` if one does not exist."""
    for path in paths:
        parent_path, _, name = path.rpartition("/")
        parent = find_group(root, parent_path)
        if not name or parent is None or name not in parent.groups:
            raise _make_unknown_name_error("drop_groups", path, [p for p, _ in root.walk() if p])
        siblings = {n: child for n, child in parent.groups.items() if n != name}
        root = put_group(root, parent_path, replace(parent, groups=siblings))
    return root


def rename_all(group: ManifestGroup, names: Mapping[str, str]) -> ManifestGroup:
    """Return a group with renamed variables and dimensions.

    A dimension is also renamed in the groups below, which share it, and names of variables in
    attributes are changed. Raises `ValueError` for an unknown name, or if a new name exists.
    """
    dims = find_dim_sizes(group)
    for name in sorted(names.keys() - group.variables.keys() - dims.keys()):
        raise _make_unknown_name_error("rename", name, {**group.variables, **dims})
    renamed = _rename_in_group(group, names)
    shared = {old: new for old, new in names.items() if old in dims}
    return _rename_below(renamed, shared) if shared else renamed


def change_attributes(group: ManifestGroup, changes: Attributes) -> ManifestGroup:
    """Return a group with changed attributes, by ``"name"`` or ``"variable:name"``.

    None removes an attribute. Raises `ValueError` for an unknown variable, or for an attribute that
    determines how stored numbers are decoded.
    """
    for key, value in changes.items():
        variable_name, _, name = key.rpartition(":")
        if variable_name and variable_name not in group.variables:
            raise _make_unknown_name_error("attributes", variable_name, group.variables)
        owner = group.variables[variable_name] if variable_name else group
        if isinstance(owner, ManifestVariable):
            units = [str(text) for text in (value, owner.attributes.get("units"))]
            is_time = any(" since " in text or text in TIME_UNITS for text in units)
            if name in PACKING_ATTRIBUTES or (is_time and name in UNITS_OF_DATES):
                # readers would decode stored values differently
                raise ValueError(
                    f"attributes {key!r}: it says how the stored numbers are decoded, and another "
                    f"value would change them; write the variable again (mode='r+')"
                )
        new_attributes = {
            n: v for n, v in {**owner.attributes, name: value}.items() if v is not None
        }
        changed = replace(owner, attributes=new_attributes)
        if isinstance(changed, ManifestVariable):
            changed = replace(group, variables={**group.variables, variable_name: changed})
        group = changed
    return group


def _make_unknown_name_error(argument: str, name: str, names: Iterable[str]) -> ValueError:
    """Return the error for a name that the set lacks."""
    names = sorted(names)
    return ValueError(
        f"{argument} {name!r}: the set has no such name; existing: {', '.join(names) or 'none'}"
        f"{format_suggestion(name, names)}"
    )


# ---------------------------------------------------------------------- names


def _rename_in_group(group: ManifestGroup, names: Mapping[str, str]) -> ManifestGroup:
    """Return a group with renamed variables and dimensions, without renaming in subgroups."""
    for kind, existing in (("variable", group.variables), ("dimension", find_dim_sizes(group))):
        counts = Counter(names.get(name, name) for name in existing)
        if repeated := [name for name, count in counts.items() if count > 1]:
            raise ValueError(
                f"rename: two {kind}s would be called {repeated[0]!r}; choose other names"
            )
    variables = {
        names.get(name, name): replace(v, dims=tuple(names.get(dim, dim) for dim in v.dims))
        for name, v in group.variables.items()
    }
    dims = {dim for v in variables.values() for dim in v.dims}
    if scalars := [name for name, v in variables.items() if name in dims and not v.dims]:
        raise ValueError(
            f"rename: {scalars[0]!r} would be a scalar and a dimension, which xarray cannot hold; "
            f"choose another name"
        )
    unlimited = {names.get(dim, dim) for dim in group.encoding.get("unlimited_dims", ())}
    encoding = {**group.encoding, "unlimited_dims": unlimited}
    renamed = replace(group, variables=variables, encoding=encoding)
    return _rename_in_attributes(renamed, lambda name: names.get(name, name), NAMING_ATTRIBUTES)


def _rename_below(group: ManifestGroup, dims: Mapping[str, str]) -> ManifestGroup:
    """Return a group with dimensions renamed in its subgroups."""
    subgroups = {}
    for name, child in group.groups.items():
        with name_group_in_errors(name):
            subgroups[name] = _rename_below(_rename_in_group(child, dims), dims)
    return replace(group, groups=subgroups)


def _rename_in_attributes(
    group: ManifestGroup, change: RenameVariable, attributes: Collection[str]
) -> ManifestGroup:
    """Return a group with variables renamed in the values of its attributes."""
    variables = {
        name: replace(v, attributes=_rename_in_values(v.attributes, change, attributes))
        for name, v in group.variables.items()
    }
    renamed = _rename_in_values(group.attributes, change, ("coordinates",))
    return replace(group, variables=variables, attributes=renamed)


def _rename_in_values(
    attributes: Attributes, change: RenameVariable, names: Collection[str]
) -> dict[str, Any]:
    """Return attributes with variables renamed in the values of those in ``names``."""
    renamed = dict(attributes)
    for name in (name for name in names if isinstance(renamed.get(name), str)):
        words: list[str | None] = []
        for word in renamed[name].split():
            # a word with a colon is a key, but in grid_mapping it is a name of a variable
            is_key, is_name = word.endswith(":"), name == "grid_mapping"
            changed = word if is_key and not is_name else change(word.removesuffix(":"))
            words.append(f"{changed}:" if is_key and is_name else changed)
        if words != renamed[name].split():
            renamed[name] = " ".join(word for word in words if word is not None)
            if not renamed[name]:
                del renamed[name]
    return renamed


# ---------------------------------------------------------------------- edit

MAX_OWN_CHUNKS = 64
"""Maximum number of chunks of a variable that is checked for values stored in the set."""


@check_arguments()
def edit(
    url: str | os.PathLike[str],
    *,
    rename: Mapping[str, str] | None = None,
    drop_variables: str | Iterable[str] | None = None,
    drop_groups: str | Iterable[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    group: str | None = None,
    format: str | None = None,
    dry_run: bool = False,
    conflict: str = "raise",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SetChange:
    """Change names and attributes in a reference set, and leave out variables and groups.

    No source is opened, and no references are read. Everything is changed in one step, in this
    order: groups and variables are dropped, what is left is renamed, and attributes are changed.

    Parameters
    ----------
    url : str or path
        The set.
    rename : dict, optional
        Old names of variables and dimensions to new ones, as in `xarray.Dataset.rename`. A
        dimension is also renamed in the groups below. Attributes that name variables
        (``coordinates``, ``bounds``, ``grid_mapping`` and so on) get the new names.
    drop_variables : str or iterable of str, optional
        Variables to leave out.
    drop_groups : str or iterable of str, optional
        Paths of groups to leave out, with the groups below them.
    attributes : dict, optional
        New values, by ``"title"`` for an attribute of the group, or by ``"t:long_name"`` for one of
        a variable. None removes an attribute. Attributes that determine how numbers are decoded
        (``scale_factor``, ``_FillValue``, units of time) cannot be changed.
    group : str, optional
        Path of the group to change, by default the root.
    format : str, optional
        The name of the format, needed if neither the suffix nor the content of the set shows it.
    dry_run : bool, default False
        Whether to write nothing, and only report what would be changed. Errors are those of the
        change, apart from conflicts and missing permissions.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    allow : str, path, or iterable of them, optional
        Folders in which the files of the set must lie, as in `open_virtual_dataset`.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    SetChange
        What was dropped and changed, and which variables stay.

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
    >>> changes = {"rename": {"t": "temperature"}, "attributes": {"temperature:units": "K"}}
    >>> print(str(edit("refs.json", **changes, dry_run=True)).partition(": ")[2].splitlines()[0])
    1 name changed, 1 attribute changed, 4 variables kept; a dry run, which wrote nothing
    >>> edit("refs.json", **changes).renamed
    {'t': 'temperature'}
    >>> xr.open_dataset("refs.json", engine="virtual")["temperature"].units
    'K'
    """
    location = Location.of(url, storage_options)
    names, path = dict(rename or {}), normalise_path(group)
    variables = to_names("drop_variables", drop_variables)
    groups = tuple(map(normalise_path, to_names("drop_groups", drop_groups)))
    if not (names or variables or groups or attributes):
        raise ValueError(
            "edit: nothing to change; give rename, drop_variables, drop_groups or attributes"
        )

    def change(old: ManifestGroup) -> ManifestGroup:
        root = leave_out_groups(old, groups)
        edited_group = find_group(root, path)
        if edited_group is None:
            raise ValueError(
                f"group {path!r}: the set has {sorted(p for p, _ in root.walk() if p)}"
            )
        if inherited := list_inherited(root, path, names):
            raise ValueError(
                f"rename {min(inherited)!r}: group /{path} has this coordinate from a group "
                f"above it; rename it there, and it is renamed here as well"
            )
        with name_group_in_errors(path):
            edited_group = leave_out_variables(edited_group, variables)
            renamed = {
                name: v
                for name, v in edited_group.variables.items()
                # listing the files of arrays with many chunks would take long
                if name in names and getattr(v.data, "nchunks", 0) <= MAX_OWN_CHUNKS
            }
            # write values that are stored in the set under the new name, for readers of plain Zarr
            only_renamed = replace(edited_group, variables=renamed, groups={})
            loaded = load_own_values(only_renamed, f"{location.url.rstrip('/')}/").variables
            edited_group = replace(edited_group, variables={**edited_group.variables, **loaded})
            edited_group = change_attributes(rename_all(edited_group, names), attributes or {})
        return put_group(root, path, edited_group)

    options = WriteOptions(format, "r+", conflict=conflict, allow=allow)
    destination = replace(Destination.of(location, options), dry_run=dry_run)
    dropped = tuple(f"/{path}/{name}".replace("//", "/") for name in variables)
    return SetChange.of(
        destination,
        destination.change(change),
        variables=dropped,
        renamed=names,
        attributes=dict(attributes or {}),
    )


# ---------------------------------------------------------------------- dropping sources


GAP_REMEDY = (
    "convert the set to zarr-v3, which holds gaps (virtualds.convert), and drop the source there, "
    "or write the set again without this source"
)
"""The remedy for a set whose format cannot store gaps."""


@check_arguments()
def drop_sources(
    url: str | os.PathLike[str],
    sources: str | Iterable[str],
    *,
    dim: str | None = None,
    format: str | None = None,
    dry_run: bool = False,
    conflict: str = "raise",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SetChange:
    """Remove the data that come from some sources from a reference set.

    Positions along the dimension are removed if no other source has data there. If another source
    has data there, as in a grid of files, the chunks become missing, and read as missing values.
    Coordinates remain there, and so do variables without the dimension, or without another
    dimension of the grid: if they come from one of these sources, reading them still needs that
    file.

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
    dry_run : bool, default False
        Whether to write nothing, and only report what would be changed. Errors are those of the
        change, apart from conflicts and missing permissions.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    allow : str, path, or iterable of them, optional
        Folders in which the files of the set must lie, as in `open_virtual_dataset`.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    SetChange
        What was dropped and changed, and which variables stay.

    Raises
    ------
    CombineError
        The set has no such source, or no other sources; or a gap would be left in a variable that
        has no missing value, such as one of integers.
    ConflictError
        Another writer was faster; this call has changed nothing.
    UnsupportedError
        A set of this format cannot be changed, or cannot store the gap; or the store has no
        conditional writes.
    FileNotFoundError
        There is no set.

    Examples
    --------
    >>> import virtualds, xarray as xr
    >>> vds = virtualds.open_virtual_mfdataset("200[12].nc", combine="nested", concat_dim="time")
    >>> vds.virtual.to_manifest("both.json")
    >>> drop_sources("both.json", "2001.nc", dry_run=True).sizes
    (SizeChange(dim='/time', before=24, after=12),)
    >>> drop_sources("both.json", "2001.nc").dry_run
    False
    >>> vds.sizes["time"], xr.open_dataset("both.json", engine="virtual").sizes["time"]
    (24, 12)
    """
    options = WriteOptions(format, "replace-source", conflict=conflict, allow=allow)
    destination = Destination.of(Location.of(url, storage_options), options)
    destination = replace(destination, dry_run=dry_run)
    urls = [normalise_url(source) for source in to_names("sources", sources)]

    def change(old: ManifestGroup) -> ManifestGroup:
        remaining = remove_sources(old, urls, dim, destination.location.url)
        if remaining is old:
            raise CombineError(
                f"{urls[0]}: all that is left of it in the set also belongs to other sources: "
                f"coordinates, or variables without a dimension of the grid; write the set again "
                f"without this source"
            )
        return remaining.without_notes()

    with suggest_instead(GAP_REMEDY):
        return SetChange.of(destination, destination.change(change), sources=tuple(urls))


# ---------------------------------------------------------------------- maintenance


Result = TypeVar("Result")
SAMPLE_SIZE = 20
"""Number of moved files that are checked before a set is changed."""


@check_arguments()
def compact(
    url: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> bool:
    """Join the small files that many appends have left in a reference set, in one commit.

    Source files are not opened. Before the commit, the joined references are compared with those of
    the set, one by one.

    Parameters
    ----------
    url : str or path
        The set. kerchunk-parquet: small records are joined to large ones, on local disk only;
        readers of the old records get a `ReadError` that asks them to open the set again. zarr-v3:
        the tables of an array are joined, except for one that is much larger than the others;
        earlier snapshots keep theirs until they expire. icechunk: the library rewrites the
        manifests of the branch ``main``. kerchunk-json is a single file already.
    dry_run : bool, default False
        Whether to write nothing, and only return whether the set would be changed.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    bool
        Whether the set was changed, or would be.

    Raises
    ------
    FileNotFoundError
        There is no reference set.
    ConflictError
        Another writer was faster; the set is unchanged.
    UnsupportedError
        The store cannot replace the files of such a set in one step.

    Examples
    --------
    >>> import virtualds
    >>> vds = virtualds.open_virtual_dataset("2001.nc")
    >>> vds.virtual.to_manifest("small.parquet", record_size=1)
    >>> compact("small.parquet")
    True
    >>> compact("small.parquet")
    False
    """
    location = Location.of_url(url, storage_options)
    form: Any = _find_format(location)

    def join_files() -> bool:
        if form.compact is None:
            return False
        base = form.read_version(location.url, location.options)
        # the options with which the format stores the same references in fewer files
        choices = form.compact(base)
        if choices is not None and not dry_run:
            form.write(base.group, location.url, location.options, base=base, **choices)
        return choices is not None

    return _retry_conflicts(location, conflict, join_files)


@check_arguments()
def rename_paths(
    url: str | os.PathLike[str],
    change: Mapping[str, str] | Callable[[str], str],
    *,
    sample: int | None = SAMPLE_SIZE,
    dry_run: bool = False,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Change the urls of the sources of a reference set, in place and in one commit.

    Use it when the archive was moved or copied: only the urls change, not the offsets and lengths.
    A zarr-v3 set gets a new table of files; the other formats have a url in each reference, and
    write the references that differ.

    Parameters
    ----------
    url : str or path
        The set.
    change : dict or callable
        Old prefix of urls to new prefix, or a function of a url.
    sample : int or None, default 20
        How many of the moved files to check before the commit, spread over all of them; None is
        all, 0 none. Each must exist, and have the size and the etag that are recorded in the set.
    dry_run : bool, default False
        Whether to write nothing, and only check the sample and return how many files would be
        moved.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    storage_options : dict, optional
        Access options of the set, for fsspec.

    Returns
    -------
    int
        The number of files whose url has changed, or would change.

    Raises
    ------
    ValueError
        No source has the old prefix.
    ReadError
        A moved file of the sample is not the one that the set refers to; the set is unchanged.
    FileNotFoundError
        There is no reference set.
    ConflictError
        Another writer was faster; the set is unchanged.
    UnsupportedError
        The store cannot replace the files of such a set in one step, or a new url contains a
        secret.

    Examples
    --------
    >>> import os, shutil, virtualds
    >>> virtualds.open_virtual_dataset("2001.nc").virtual.to_manifest("moved.json")
    >>> os.makedirs("elsewhere")
    >>> shutil.copy("2001.nc", "elsewhere")
    'elsewhere/2001.nc'
    >>> rename_paths("moved.json", {"2001.nc": "elsewhere/2001.nc"})
    1
    """
    location = Location.of_url(url, storage_options)
    rename = change if callable(change) else PrefixChange.from_user(change)
    count = 0

    def move(group: ManifestGroup) -> ManifestGroup:
        nonlocal count
        url, urls, moved_files = location.url, set[str](), dict[SourceFile, None]()

        def change_file(file: SourceFile) -> SourceFile:
            if file.url.startswith(f"{url.rstrip('/')}/"):
                # files in the set itself are moved with it
                return file
            urls.add(file.url)
            other = move_file(file, rename)
            if other.url != file.url:
                moved_files[other] = None
            return other

        after = move_group(group, change_file).without_notes()
        if isinstance(rename, PrefixChange):
            rename.check_used(urls)
        if not moved_files:
            raise ValueError(f"{url}: rename_paths would change the url of no source")
        for file in moved_files:
            if (public := without_secrets(file.url)) != file.url:
                raise UnsupportedError(
                    f"{url}: {public} would have a password, or a signature or token in its query; "
                    f"give plain urls, and storage_options to read them"
                )
        moved, count = list(moved_files), len(moved_files)
        checked_count = count if sample is None else min(sample, count)
        # check evenly spaced files, including the first and the last
        for index in np.unique(np.linspace(0, count - 1, checked_count).astype(int)).tolist():
            _check_present(moved[index], url)
        return after

    options = WriteOptions(mode="r+", conflict=conflict)
    Destination(location, _find_format(location), options, dry_run=dry_run).change(move)
    return count


@check_arguments()
def clean_up(
    url: str | os.PathLike[str],
    *,
    older_than: timedelta = GRACE,
    dry_run: bool = False,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Removal:
    """Remove the temporary files that killed writers have left in a set and next to it.

    In a zarr-v3 set, files that belong to no snapshot are removed as well. Snapshots are not
    removed (see `expire_snapshots`), nor are files that the set does not own.

    Parameters
    ----------
    url : str or path
        The set.
    older_than : timedelta, default 1 day
        Only files of at least this age are removed: younger ones may belong to a running writer.
    dry_run : bool, default False
        Whether to remove nothing, and only list what would be removed.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    Removal
        The urls of the removed files, and their bytes.

    Raises
    ------
    FileNotFoundError
        There is no reference set.

    Examples
    --------
    >>> import virtualds
    >>> virtualds.open_virtual_dataset("2001.nc").virtual.to_manifest("tidy.json")
    >>> clean_up("tidy.json")
    Removal of 0 snapshots and 0 files of 0 bytes
    """
    location = Location.of_url(url, storage_options)
    form, removal = _find_format(location), Removal([], [], 0)
    # optional libraries maintain the sets of their formats
    if form.expire is not None and form.library is None:
        expiry = Expiry(sys.maxsize, grace=older_than, dry_run=dry_run)
        expire = partial(form.expire, location.url, location.options, expiry)
        removal = _retry_conflicts(location, conflict, expire)
    if scheme_of(location.url) == "file":
        path = os.path.realpath(local_path(location.url))
        leftovers = list_leftovers(path, older_than.total_seconds())
        if not dry_run:
            remove_paths(leftover.path for leftover in leftovers)
        urls = [normalise_url(leftover.path) for leftover in leftovers]
        nbytes = removal.nbytes + sum(leftover.nbytes for leftover in leftovers)
        removal = Removal([], sorted({*removal.files, *urls}), nbytes)
    return removal


def _find_format(location: Location) -> Format:
    """Return the format of an existing set, or raise an error if there is none."""
    with explain_missing_set(location):
        if (format_found := find_existing_format(location)) is None:
            raise FileNotFoundError
        return format_found


def _check_present(file: SourceFile, url: str) -> None:
    """Raise an error if a file does not have the size and etag of the reference."""
    try:
        current = find_store(file.url).describe(file.url, file.options)
    except OSError as error:
        raise ReadError(
            f"{url}: {file.url} cannot be read ({error}), and nothing has changed; check the new "
            f"path, or pass sample=0 to check no file"
        ) from error
    for property_name, recorded, now in (
        ("size", file.size, current.size),
        ("etag", file.etag, current.etag),
    ):
        if None not in (recorded, now) and recorded != now:
            raise ReadError(
                f"{url}: {file.url} has the {property_name} {now!r}, and the set refers to one "
                f"with {recorded!r}, and nothing has changed; check the new path, or scan the file "
                f"again"
            )


# ---------------------------------------------------------------------- snapshots


@check_arguments()
def snapshots(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """List the snapshots of a reference set that can be opened, the newest last.

    Parameters
    ----------
    url : str or path
        A set in the format zarr-v3; other formats have no snapshots.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    pandas.DataFrame
        One row for each snapshot: ``snapshot``, its id for ``open_virtual_dataset(url,
        snapshot=...)``, and ``time``, when it was written (UTC).

    Raises
    ------
    UnsupportedError
        The format has no snapshots.

    Examples
    --------
    >>> import virtualds
    >>> virtualds.open_virtual_dataset("2001.nc").virtual.to_manifest("2001.zarr", mode="w")
    >>> snapshots("2001.zarr").columns.to_list()
    ['snapshot', 'time']
    """
    location = Location.of_url(url, storage_options)
    return _find_format_with_snapshots(location).list_snapshots(location.target, location.options)


@check_arguments()
def expire_snapshots(
    url: str | os.PathLike[str],
    *,
    keep: int = 1,
    older_than: timedelta | None = None,
    dry_run: bool = False,
    conflict: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Removal:
    """Delete earlier snapshots of a reference set, and the files that only they need.

    A reader that still has one of them open gets a `ReadError` that says so. Files left by killed
    writers are removed as well, after a day.

    Parameters
    ----------
    url : str or path
        A set in the format zarr-v3; other formats have no snapshots.
    keep : int, default 1
        How many of the newest snapshots to keep.
    older_than : timedelta, optional
        Delete only snapshots of at least this age.
    dry_run : bool, default False
        Whether to delete nothing, and only list what would be deleted.
    conflict : {"raise", "retry"}
        What to do if another writer is faster.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    Removal
        The ids of the deleted snapshots, the urls of the deleted files, and their bytes.

    Raises
    ------
    UnsupportedError
        The format has no snapshots.
    ConflictError
        Another writer was faster; the set is unchanged.
    ValueError
        ``keep`` is less than 1.

    Examples
    --------
    >>> import virtualds
    >>> for _ in range(3):
    ...     virtualds.open_virtual_dataset("2001.nc").virtual.to_manifest("2001.zarr", mode="w")
    >>> len(expire_snapshots("2001.zarr", keep=1, dry_run=True).snapshots)
    2
    >>> len(expire_snapshots("2001.zarr", keep=1).snapshots)
    2
    """
    if keep < 1:
        raise ValueError(f"keep {keep!r}: the newest snapshot is the set; keep at least 1")
    location = Location.of(url, storage_options)
    expiry = Expiry(keep, older_than, dry_run=dry_run)
    expire = partial(
        _find_format_with_snapshots(location).expire_snapshots, location.target, location.options
    )
    return _retry_conflicts(location, conflict, partial(expire, expiry))


def _find_format_with_snapshots(location: Location) -> Format:
    """Return the format of a set, or raise an error if it has no snapshots."""
    format_found = _find_format(location)
    if format_found.history is None:
        raise UnsupportedError(
            f"{location.target}: {format_found.name} has no snapshots; zarr-v3 has them "
            "(virtualds.convert)"
        )
    return format_found


def _retry_conflicts(location: Location, conflict: str, change: Callable[[], Result]) -> Result:
    """Call ``change``, and again after a conflict if ``conflict`` is "retry"."""

    def attempt(_: int) -> Result:
        with explain_write_errors(location.target), explain_missing_set(location):
            return change()

    return retry_on_conflict(attempt, conflict, location)
