"""Open a file, a reference set or a flat binary file as a virtual dataset or tree."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.group import (
    ManifestGroup,
    build_flat_array,
    build_variable,
    number_axes,
    prevent_joining_bytes,
)
from virtualds.arrays.parser import Parser, ReadTogether
from virtualds.arrays.sources import resolve_archive_members
from virtualds.datasets.aggregation import (
    FragmentOpener,
    build_aggregations,
    find_aggregations,
)
from virtualds.datasets.aggregation.plan import AggregationFile
from virtualds.datasets.conversion import make_dataset_or_tree, to_virtual_dataset
from virtualds.datasets.location import (
    DetectedReader,
    Location,
    check_content,
    find_set_above,
    reader_of,
)
from virtualds.datasets.open_options import (
    OPEN_DEFAULTS,
    Loadable,
    OpenOptions,
    check_variables,
)
from virtualds.errors import FormatError, UnsupportedError, without_secrets
from virtualds.formats import READ_ALL, Format, ReadOptions, apply_on_error, decode_group
from virtualds.formats.referenced_files import ReferencedFiles
from virtualds.options import check_arguments, format_suggestion, select_fields
from virtualds.progress import INFO, is_logged, log
from virtualds.reading import get_chunk_cache
from virtualds.source_file import SourceFile, StorageOptions, normalise_url
from virtualds.stores import find_store
from virtualds.stores.access_rules import DEFAULT_POLICY, AccessPolicy, Allow
from virtualds.stores.listing import is_pattern
from virtualds.stores.store import explain_open_errors


@check_arguments()
def open_virtual_dataset(
    url: Any,
    *,
    group: str | None = None,
    drop_variables: str | Iterable[str] | None = None,
    loadable_variables: Loadable = None,
    storage_options: Mapping[str, Any] | None = None,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    decode_cf: bool = True,
    on_error: str = "raise",
    allow: Allow = None,
    snapshot: str | None = None,
) -> xr.Dataset:
    """Open a source file or a reference set as a dataset of virtual arrays.

    The dataset has the variables, dtypes, attributes and encoding of `xarray.open_dataset`. Values
    are read on access; until then xarray combines the arrays by their references.

    Parameters
    ----------
    url : str or path, or an object
        A path, or a url with scheme. The format of a file is detected by its first bytes, that of a
        set in a folder by its metadata file. A path into a set names a group:
        ``refs.zarr/model/daily``. Or bytes, an open binary file, a dict of kerchunk
        references, a file, mapper or ``ReferenceFileSystem`` of fsspec, a ``reference://`` url with
        its ``storage_options``, or a ``Repository``, ``Session`` or ``IcechunkStore`` of Icechunk.
    group : str, optional
        Path of the group to open.
    drop_variables : str or iterable of str, optional
        Variables to leave out; as in `xarray.open_dataset`, there need be none of that name.
    loadable_variables : names, glob patterns, predicate, or [], optional
        Variables to load immediately; by default dimension coordinates, scalars, other coordinates
        of at most ``set_options(small_variable=...)`` bytes, and variables that cannot stay virtual
        (characters that become strings, dates as objects). A predicate takes a name and a variable.
        There must be a variable for each name, but not for each pattern.
    storage_options : dict, optional
        Access options, for fsspec. The arrays keep them. With a dict of references: those of the
        files that it refers to.
    parser : str, optional
        Name of the format, if the first bytes of the file do not show it.
    parser_options : dict, optional
        Options that formats of source files have of their own, such as ``filter_by_keys`` of GRIB.
        The page of the format describes them.
    decode_cf : bool, default True
        Whether to decode CF conventions.
    on_error : {"raise", "skip", "keep"}
        What to do with a variable or attribute that cannot be read: raise; leave it out, with one
        warning that names all of them; or keep the variable, which raises when it is read.
    allow : str, path, or iterable of them, optional
        Folders, as paths or urls, in which every file of a reference set must lie. By default a
        local set may refer to any file, a remote set only to remote files.
    snapshot : str, optional
        Id of an earlier snapshot of a reference set, as `virtualds.snapshots` lists them.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    FileNotFoundError
        There is no such file or group.
    AccessError
        The file must not be read, or a set refers to files outside of ``allow``.
    FormatError
        The format is unknown, or the file is damaged.
    UnsupportedError
        Byte ranges cannot express a variable of the file; the error names the variable and the
        remedy. Or ``snapshot`` is given, and the format has no snapshots.
    ValueError
        ``on_error`` or ``parser`` is unknown, ``allow`` names no folder, or a name in
        ``loadable_variables`` matches no variable; the message lists those that exist.

    Examples
    --------
    >>> vds = open_virtual_dataset("2001.nc")  # doctest: +SKIP
    >>> vds["t"].isel(time=0).plot()  # doctest: +SKIP
    """
    opening = select_fields(OpenOptions, locals())
    dataset: xr.Dataset = open_dataset_or_tree(url, opening, storage_options)
    return dataset


@check_arguments()
def open_virtual_datatree(
    url: Any,
    *,
    group: str | None = None,
    drop_variables: str | Iterable[str] | None = None,
    loadable_variables: Loadable = None,
    storage_options: Mapping[str, Any] | None = None,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    decode_cf: bool = True,
    on_error: str = "raise",
    allow: Allow = None,
    snapshot: str | None = None,
) -> xr.DataTree:
    """Open a source file or a reference set with all its groups, as a tree of virtual arrays.

    The tree is that of `xarray.open_datatree`, and the file is opened once. As in every tree of
    xarray, a group inherits indexed coordinates from the groups above it.

    Parameters
    ----------
    url : str or path, or an object
        As in `open_virtual_dataset`.
    group : str, optional
        Path of the group that becomes the root of the tree.
    drop_variables : str or iterable of str, optional
        Variables to leave out of every group that has them.
    loadable_variables : names, glob patterns, predicate, or [], optional
        As in `open_virtual_dataset`, for every group; each name must match a variable in at least
        one.
    storage_options, parser, parser_options, decode_cf, allow, snapshot
        As in `open_virtual_dataset`.
    on_error : {"raise", "skip", "keep"}
        What to do with what cannot be read, as in `open_virtual_dataset`. An unreadable group is
        left out by both ``"skip"`` and ``"keep"``, with a warning that names it.

    Returns
    -------
    xarray.DataTree

    Raises
    ------
    ValueError
        A group does not share the dimensions of the groups above it, so xarray has no tree for it;
        or as `open_virtual_dataset`.
    FileNotFoundError, AccessError, FormatError, UnsupportedError
        As `open_virtual_dataset`.

    Examples
    --------
    >>> tree = open_virtual_datatree("2001.h5")  # doctest: +SKIP
    >>> tree["model/surface"]["t"].isel(time=0).plot()  # doctest: +SKIP
    """
    opening = select_fields(OpenOptions, locals() | {"below": True})
    tree: xr.DataTree = open_dataset_or_tree(url, opening, storage_options)
    return tree


def open_dataset_or_tree(
    file: Any, opening: OpenOptions, storage_options: Mapping[str, Any] | None = None
) -> Any:
    """Open a file as a tree with ``opening.below``, else as a dataset."""
    location = Location.of(file, storage_options)
    with location.cache_scan():
        group = open_group(location, opening)
        check_loadable(group, opening, location.url)
        return make_dataset_or_tree(location, group, opening)


def check_loadable(group: ManifestGroup, opening: OpenOptions, url: str) -> None:
    """Raise an error for names in ``loadable_variables`` that match no variable of any group."""
    if opening.loadable_variables is None:
        return
    groups = [part for _, part in group.walk()] if opening.below else [group]
    known = {name for part in groups for name in part.variables}
    # ``on_error="skip"`` has left these out and warned
    problems = {name for part in groups for name in part.problems}
    dropped = problems.union(opening.skip)
    check_variables(opening.loadable_variables, known, dropped, without_secrets(url))


def enter_set(location: Location, opening: OpenOptions) -> tuple[Location, OpenOptions]:
    """Return the set and the group in it if a path leads into a set, else what was given."""
    if opening.parser is not None:
        return location, opening
    location, inner_path = find_set_above(location)
    if not inner_path:
        return location, opening
    return location, replace(opening, group=f"{inner_path}/{opening.group or ''}".rstrip("/"))


def open_group(
    location: Location,
    opening: OpenOptions = OPEN_DEFAULTS,
    detected: DetectedReader | None = None,
    above: frozenset[str] = frozenset(),
) -> ManifestGroup:
    """Read the structure of a group of a file or set in any format.

    With ``opening.below``, the groups below it are read as well, and their problems reported.
    ``detected`` is the reader, if the caller has already detected it. ``above`` are the urls of
    aggregation files of which the file is a fragment.
    """
    if detected is None:
        location, opening = enter_set(location, opening)
    prefixes = AccessPolicy.from_argument(opening.allow).prefixes
    allow = replace(location.policy, prefixes=prefixes)
    read_options = ReadOptions(opening.group, frozenset(opening.skip), allow, opening.snapshot)
    get_chunk_cache().count_opening()
    try:
        with explain_open_errors(location.url), location.cache_scan():
            read = read_file(location, read_options, opening, detected, above)
    except FileNotFoundError:
        if not is_pattern(location.url):
            raise
        raise FileNotFoundError(
            f"{without_secrets(location.url)}: there is no file of this name; to open the files "
            f"that match a pattern, call virtualds.open_virtual_mfdataset, or "
            f"open_virtual_mfdatatree"
        ) from None
    problems = read.all_problems(opening.below)
    if opening.omits_damaged:
        problems = {name: error for name, error in problems.items() if name not in read.damaged}
    else:
        read = replace(read, damaged={})
    # a fragment with problems raises an error only if it is needed
    if problems and not above:
        read = apply_on_error(read, problems, opening.on_error, location.url)
    return read


def read_file(
    location: Location,
    read_options: ReadOptions,
    opening: OpenOptions,
    detected: DetectedReader | None,
    above: frozenset[str] = frozenset(),
) -> ManifestGroup:
    """Read a file, set or object with its reader, which is detected unless it is given."""
    started = time.perf_counter()
    reader: Parser | Format
    if (format_ := location.format) is not None and format_.read_object is not None:
        reader = format_
        read = format_.read_object(location.opened, read_options, location.options)
    else:
        reader, source = detected or reader_of(location, opening.parser)
        try:
            read = read_source(reader, source, read_options, opening)
        except (FormatError, UnsupportedError, FileNotFoundError, NotADirectoryError):
            if opening.parser:
                # the user named a parser, but the file may not contain any data
                check_content(location, reader)
            raise
        if isinstance(reader, Parser):
            read = resolve_archive_members(read)
            if find_aggregations(read, left_out=True):
                read_all_options = replace(read_options, group=None, skip=frozenset())
                deep = replace(opening, below=True)
                get_file = ReferencedFiles(source, {}, read_options.allow).get_file
                read_all = partial(read_source, reader, source, read_all_options, deep)
                file = AggregationFile(source, get_file, above, read_all)
                opener = make_fragment_opener(read_options.allow, opening.allow)
                read = build_aggregations(read, file, read_options.group or "", opener)
    if is_logged(INFO):
        path_taken, seconds = read.way or "read", time.perf_counter() - started
        log(INFO, f"{location.url}: {reader.name}, {path_taken}, {seconds:.3f} s")
    return read


NETCDF = ("hdf5", "netcdf3")
"""The parsers of netCDF files, which may be aggregation files or fragment files."""


def is_aggregation_file(reader: Parser | Format, source: SourceFile) -> bool:
    """Return whether a file has aggregation variables."""
    return read_aggregation_file(reader, source) is not None


def read_aggregation_file(reader: Parser | Format, source: SourceFile) -> ManifestGroup | None:
    """Return the stored groups of an aggregation file, or None for other files."""
    if not isinstance(reader, Parser) or reader.name not in NETCDF:
        return None
    stored = read_source(reader, source, READ_ALL, OpenOptions(below=True))
    return stored if find_aggregations(stored, left_out=True) else None


def make_fragment_opener(
    policy: AccessPolicy = DEFAULT_POLICY, allow: Allow = None, parsers: Collection[str] = ()
) -> FragmentOpener:
    """Return an opener of fragment files.

    If ``parsers`` are given, files that none of them reads are refused.
    """
    open_fragment = partial(_open_fragment, policy=policy, allow=allow, parsers=parsers)
    return FragmentOpener(open_fragment, _find_read_together)


def _open_fragment(
    file: SourceFile,
    below: bool,
    above: frozenset[str],
    policy: AccessPolicy,
    allow: Allow,
    parsers: Collection[str],
) -> ManifestGroup:
    """Open a file that holds a fragment of a variable of another file."""
    location = Location(file.url, file.options, policy=policy)
    with location.cache_scan():
        opening = OpenOptions(allow=allow, below=below, on_error="keep")
        if parsers and (name := reader_of(location)[0].name) not in parsers:
            raise UnsupportedError(f"{without_secrets(file.url)}: its format is {name}")
        return open_group(location, opening, above=above)


def _find_read_together(file: SourceFile) -> ReadTogether | None:
    """Return the function that reads files like this one together, or None if there is none."""
    reader, _ = reader_of(Location(file.url, file.options))
    return reader.read_together if isinstance(reader, Parser) else None


def read_source(
    reader: Parser | Format, source: SourceFile, read_options: ReadOptions, opening: OpenOptions
) -> ManifestGroup:
    """Read a group of a file, with the groups below it if requested, or of a reference set."""
    if read_options.snapshot is not None and (isinstance(reader, Parser) or reader.history is None):
        raise UnsupportedError(
            f"{source.url}: snapshot={read_options.snapshot!r}, but {reader.name} has no "
            f"snapshots; zarr-v3 has them"
        )
    options = opening.parser_options or {}
    known_options = reader.options if isinstance(reader, Parser) else ()
    if unknown := sorted(map(str, options.keys() - set(known_options))):
        alternatives = f"; it has {', '.join(known_options)}" if known_options else "; leave it out"
        remedy = format_suggestion(unknown[0], known_options) or alternatives
        raise TypeError(f"parser_options: {reader.name} has no option {unknown[0]!r}{remedy}")
    if isinstance(reader, Parser):
        passed_options = {name: getattr(opening, name) for name in reader.takes}
        return reader.read(
            source, read_options.group, read_options.skip, **passed_options, **options
        )
    return reader.read(source, read_options)


# ---------------------------------------------------------------------- flat files
# Flat binary files, which have no metadata of their own.


@check_arguments()
def open_flat(
    url: str | os.PathLike[str],
    *,
    dtype: npt.DTypeLike,
    shape: int | Sequence[int],
    offset: int = 0,
    order: str = "C",
    dims: str | Sequence[str] | None = None,
    name: str = "array",
    storage_options: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Open a flat binary file as a dataset of one virtual array.

    Only the size of the file is read. Several files are combined like any datasets, with
    `xarray.concat` or `xarray.merge`.

    Parameters
    ----------
    url : str or path
        A path, or a url with scheme.
    dtype : dtype
        Dtype of the stored values, including byte order: ``">f4"``.
    shape : int or sequence of int
        Elements per axis. One of them may be -1, and is inferred from the file size.
    offset : int, default 0
        Where the values begin, in bytes. Bytes after the last value are ignored.
    order : {"C", "F"}
        Whether the last axis varies fastest, or the first (Fortran).
    dims : str or sequence of str, optional
        Names of the axes, ``dim_0`` and so on by default.
    name : str, default "array"
        Name of the variable.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    FileNotFoundError
        There is no such file.
    AccessError
        The file must not be read.
    FormatError
        The file is too short, or its size gives no whole number of elements for the -1.
    UnsupportedError
        The dtype is of Python objects.
    ValueError
        The order is neither ``"C"`` nor ``"F"``, or shape and dims do not fit each other.

    Examples
    --------
    >>> import numpy as np
    >>> np.arange(12, dtype=">i2").reshape(3, 4).tofile("levels.bin")
    >>> ds = open_flat("levels.bin", dtype=">i2", shape=(-1, 4), dims=("y", "x"), name="level")
    >>> ds.level.sel(y=2).values.tolist()
    [8, 9, 10, 11]
    """
    value_type = np.dtype(dtype)
    given_shape = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
    if dims is None:
        dims = number_axes("", len(given_shape))
    axes = (dims,) if isinstance(dims, str) else tuple(dims)
    if order not in ("C", "F"):
        raise ValueError(f"order={order!r}: give 'C' or 'F'")
    if len(axes) != len(given_shape) or len(set(axes)) < len(axes):
        raise ValueError(
            f"dims {axes} for the shape {given_shape}; give every axis a name of its own"
        )
    if offset < 0 or any(n < -1 for n in given_shape) or given_shape.count(-1) > 1:
        raise ValueError(
            f"shape {given_shape} at offset {offset}: lengths are at least 0, one of them may be -1"
        )
    absolute = normalise_url(url)
    with explain_open_errors(absolute):
        options = StorageOptions.of(storage_options)
        source = find_store(absolute).describe(absolute, options)
        try:
            data = build_flat_array(
                source,
                offset,
                value_type,
                _infer_shape(given_shape, value_type, offset, source),
                order=order,
            )
        except FormatError as error:
            raise FormatError(f"{absolute}: {error}") from error
        variable = build_variable(data, axes, source)
        group = ManifestGroup({name: variable}, left_out=prevent_joining_bytes([variable]))
        group = resolve_archive_members(group)
        if (problem := group.problems.get(name)) is not None:
            raise problem
    opening = OpenOptions(loadable_variables=[])
    dataset = decode_group(group, "raise", lambda part: to_virtual_dataset(part, opening))
    dataset.encoding["source"] = os.fspath(url)
    return dataset


def _infer_shape(
    shape: tuple[int, ...], dtype: np.dtype[Any], offset: int, source: SourceFile
) -> tuple[int, ...]:
    """Return a shape in which -1 is replaced by the size inferred from the file size."""
    if -1 not in shape:
        return shape
    unit_nbytes = dtype.itemsize * prod(n for n in shape if n != -1)
    available = (source.size or 0) - offset
    if source.size is None or not unit_nbytes or available < 0 or available % unit_nbytes:
        raise FormatError(
            f"the file has {source.size} bytes, {available} after byte {offset}, which is not a "
            f"whole number of {unit_nbytes} for the -1 of {shape}; check dtype, shape and offset"
        )
    return tuple(available // unit_nbytes if n == -1 else n for n in shape)
