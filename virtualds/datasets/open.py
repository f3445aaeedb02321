"""Opening a file or a reference set as a virtual dataset or tree."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import xarray as xr

from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.parser import Parser
from virtualds.arrays.sources import resolve_archive_members
from virtualds.datasets.decoding import DecodingPlan
from virtualds.datasets.keywords import format_suggestion, make_strict
from virtualds.datasets.location import Found, Location, demand_data, reader_of
from virtualds.datasets.open_options import (
    OPEN_DEFAULTS,
    Loadable,
    OpenOptions,
    demand_variables,
    fetch_coordinates,
)
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.datasets.tree import to_virtual_tree
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError, without_secrets
from virtualds.formats import Format, ReadOptions
from virtualds.formats.undecodable import apply_on_error, decode_group
from virtualds.log import INFO, tell, tells
from virtualds.reading.fetch import chunk_cache
from virtualds.source_file import SourceFile
from virtualds.stores.access_rules import AccessPolicy, Allow
from virtualds.stores.listing import names_files
from virtualds.stores.store import explain_open_errors


@make_strict()
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
        A path, or a url with scheme. The first bytes of a file show its format; a set that is a
        folder is known by its metadata file. Or bytes, an open binary file, a dict of kerchunk
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
        remedy. Or ``snapshot`` is given, and the format keeps no snapshots.
    ValueError
        ``on_error`` or ``parser`` is unknown, ``allow`` names no folder, or there is no variable of
        a name in ``loadable_variables``; the message names those that there are.

    Examples
    --------
    >>> vds = open_virtual_dataset("2001.nc")  # doctest: +SKIP
    >>> vds["t"].isel(time=0).plot()  # doctest: +SKIP
    """
    opening = OpenOptions(
        *(group, drop_variables, parser, on_error, allow, snapshot, loadable_variables, decode_cf),
        parser_options=parser_options,
    )
    location = Location.of(url, storage_options)
    with location.hold_scan():
        found = open_group(location, opening)
        demand_loadable([found], opening, location.url)
        return dataset_of(location, found, opening)


@make_strict()
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
        As in `open_virtual_dataset`, for every group; one of them must have a variable for a name.
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
    opening = OpenOptions(
        group,
        drop_variables,
        parser,
        on_error,
        allow,
        snapshot,
        loadable_variables,
        decode_cf,
        below=True,
        parser_options=parser_options,
    )
    location = Location.of(url, storage_options)
    with location.hold_scan():
        found = open_group(location, opening)
        demand_loadable([part for _, part in found.walk()], opening, location.url)
        return datatree_of(location, found, opening)


def demand_loadable(groups: Sequence[ManifestGroup], opening: OpenOptions, url: str) -> None:
    """Refuse names in ``loadable_variables`` that no group has.

    Raises
    ------
    ValueError
        There is no such variable.
    """
    if opening.loadable_variables is None:
        return
    known = {name for part in groups for name in part.variables}
    # ``on_error="skip"`` has left these out, with a warning
    problems = {name for part in groups for name in part.problems}
    dropped = problems.union(opening.skip)
    demand_variables(opening.loadable_variables, known, dropped, without_secrets(url))


def open_dataset_or_tree(
    file: Any, opening: OpenOptions, storage_options: Mapping[str, Any] | None = None
) -> Any:
    """Open a file as a tree with ``opening.below``, else as a dataset.

    Errors are those of `open_virtual_dataset` and `open_virtual_datatree`.
    """
    location = Location.of(file, storage_options)
    with location.hold_scan():
        return make_dataset_or_tree(location, open_group(location, opening), opening)


def make_dataset_or_tree(location: Location, group: ManifestGroup, opening: OpenOptions) -> Any:
    """Return a group of a file as a tree with ``opening.below``, else as a dataset."""
    return (datatree_of if opening.below else dataset_of)(location, group, opening)


def dataset_of(
    location: Location,
    group: ManifestGroup,
    opening: OpenOptions,
    plan: DecodingPlan | None = None,
) -> xr.Dataset:
    """Return a group of a file as a dataset that knows its source.

    Raises
    ------
    VirtualdsError, ValueError
        As `to_virtual_dataset`; its notes name the file.
    """
    if plan is None:
        fetch_coordinates(location.url, [group], opening)
    with _naming_file(location):
        dataset = decode_group(
            group,
            opening.on_error,
            lambda part: to_virtual_dataset(part, opening, plan),
            location.url,
        )
    dataset.encoding["source"] = location.given
    return dataset


def datatree_of(location: Location, group: ManifestGroup, opening: OpenOptions) -> xr.DataTree:
    """Return a group of a file, with all groups below it, as a tree, like `dataset_of`."""
    fetch_coordinates(location.url, [part for _, part in group.walk()], opening)
    with _naming_file(location):
        tree = to_virtual_tree(group, opening)
    tree.encoding["source"] = location.given
    return tree


def open_group(
    location: Location, opening: OpenOptions = OPEN_DEFAULTS, found: Found | None = None
) -> ManifestGroup:
    """Read the structure of a group of any file with a known format.

    With ``opening.below``, groups below are read, too, and their problems reported. ``found`` is
    the reader, if the caller already knows it.

    Raises
    ------
    ValueError
        ``parser`` is unknown, or ``allow`` names no folder.
    FileNotFoundError, AccessError, FormatError, UnsupportedError
        As `open_virtual_dataset`.
    """
    prefixes = AccessPolicy.of(opening.allow).prefixes
    allow = replace(location.policy, prefixes=prefixes)
    how = ReadOptions(opening.group, frozenset(opening.skip), allow, opening.snapshot)
    chunk_cache().open()
    reader: Parser | Format
    with (
        _naming_calls_for_patterns(location.url),
        explain_open_errors(location.url),
        location.hold_scan(),
    ):
        begun = time.perf_counter()
        if (form := location.format) is not None and form.read_object is not None:
            reader = form
            read = form.read_object(location.opened, how, location.options)
        else:
            reader, source = found or reader_of(location, opening.parser)
            with _explaining_no_data(location, reader, bool(opening.parser)):
                read = _read_source(reader, source, how, opening)
            read = resolve_archive_members(read) if isinstance(reader, Parser) else read
        if tells(INFO):
            way, seconds = read.way or "read", time.perf_counter() - begun
            tell(INFO, f"{location.url}: {reader.name}, {way}, {seconds:.3f} s")
    problems = read.all_problems(opening.below)
    if opening.omits_damaged:
        problems = {name: found for name, found in problems.items() if name not in read.damaged}
    else:
        read = replace(read, damaged={})
    if problems:
        read = apply_on_error(read, problems, opening.on_error, location.url, depth=4)
    return read


@contextmanager
def _naming_calls_for_patterns(url: str) -> Iterator[None]:
    """Name the calls that open many files where a pattern is no file."""
    try:
        yield
    except FileNotFoundError:
        if not names_files(url):
            raise
        raise FileNotFoundError(
            f"{without_secrets(url)}: there is no file of this name; to open the files that match "
            f"a pattern, call virtualds.open_virtual_mfdataset, or open_virtual_mfdatatree"
        ) from None


@contextmanager
def _naming_file(location: Location) -> Iterator[None]:
    """Name the file in errors of decoding."""
    try:
        yield
    except VirtualdsError as error:
        error.locate_file(location.url)
        raise
    except ValueError as error:
        url = without_secrets(location.url)
        if url not in str(error):
            error.add_note(f"file {url}")
        raise


@contextmanager
def _explaining_no_data(
    location: Location, reader: Parser | Format, is_named: bool
) -> Iterator[None]:
    """Explain a failure of a parser that the user named, if the file holds no data at all."""
    try:
        yield
    except (FormatError, UnsupportedError, FileNotFoundError, NotADirectoryError):
        if is_named:
            demand_data(location, reader)
        raise


def _read_source(
    reader: Parser | Format, source: SourceFile, how: ReadOptions, opening: OpenOptions
) -> ManifestGroup:
    """Read a group of a file, with the groups below it if wanted, or of a reference set."""
    if how.snapshot is not None and (isinstance(reader, Parser) or reader.history is None):
        raise UnsupportedError(
            f"{source.url}: snapshot={how.snapshot!r}, but {reader.name} keeps no snapshots; "
            f"zarr-v3 does"
        )
    options = opening.parser_options or {}
    _demand_options(reader, options)
    if isinstance(reader, Parser):
        taken = {name: getattr(opening, name) for name in reader.takes}
        return reader.read(source, how.group, how.skip, **taken, **options)
    return reader.read(source, how)


def _demand_options(reader: Parser | Format, given: Mapping[str, Any]) -> None:
    """Refuse options that the format of a file does not have.

    Raises
    ------
    TypeError
    """
    known = reader.options if isinstance(reader, Parser) else ()
    if unknown := sorted(map(str, given.keys() - set(known))):
        listed = f"; it has {', '.join(known)}" if known else "; leave it out"
        remedy = format_suggestion(unknown[0], known) or listed
        raise TypeError(f"parser_options: {reader.name} has no option {unknown[0]!r}{remedy}")
