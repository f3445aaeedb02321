"""Converting a reference set from one format to another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.decoding import settle_left_out
from virtualds.datasets.edit import load_own_values
from virtualds.datasets.keywords import check_choice, check_types
from virtualds.datasets.location import Location, name_both_options, reader_of
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.rewrite.run import estimate_cost
from virtualds.datasets.write import Destination, WriteOptions
from virtualds.formats import Format, replaces_by
from virtualds.stores.access_rules import Allow
from virtualds.stores.store import explain_open_errors


def convert(
    source: Any,
    target: str | os.PathLike[str],
    *,
    format: str | None = None,
    mode: str = "w-",
    drop_variables: str | Iterable[str] | None = None,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    on_error: str = "raise",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    **choices: Any,
) -> None:
    """Convert a source file or a reference set, with all groups, to a set of another format.

    Only values that a set itself holds are read, and references in records are read record by
    record. Nothing is decoded: coordinates that `open_virtual_datatree` would load are references,
    too.

    Parameters
    ----------
    source : str or path, or an object
        A source file, or a reference set in any format, as for `open_virtual_dataset`.
    target : str or path
        As for ``ds.virtual.to_manifest``.
    format : str, optional
        Name of the target format, if the suffix does not give it.
    mode : {"w-", "w"}
        ``"w-"`` creates the set, ``"w"`` creates or replaces it.
    drop_variables : str or iterable of str, optional
        Variables to leave out of every group that has them.
    parser, parser_options
        Name and options of the format of a source file, as in `open_virtual_datatree`.
    on_error : {"raise", "skip"}
        What to do with a variable that cannot be read, as in `open_virtual_datatree`.
    allow : str, path, or iterable of them, optional
        Folders in which the files of the set must lie, as in `open_virtual_dataset`.
    storage_options, target_options : dict, optional
        Access options of the source and of the target, for fsspec.
    **choices
        Options of the target format, and how to write what it cannot hold:
        ``on_unsupported="rewrite"``, ``main_encoding=``, ``rewrite_limit=`` and ``progress=``, as
        for ``ds.virtual.to_manifest``.

    Raises
    ------
    UnsupportedError
        The format cannot hold the set; nothing has been written.
    FormatError
        The format of the source is unknown, or the source is damaged.
    FileNotFoundError
        There is no such file or set.
    FileExistsError
        The target exists and ``mode`` is ``"w-"``.

    Examples
    --------
    >>> convert("refs.json", "refs.zarr")  # doctest: +SKIP
    """
    check_types({"target_options": target_options})
    check_choice("on_error", on_error, ("raise", "skip"))
    replaces_by(mode)
    options = WriteOptions(format, mode, choices=choices)
    opening = OpenOptions(
        *(None, drop_variables, parser, on_error, allow), below=True, parser_options=parser_options
    )
    with name_both_options(target):
        destination = Destination.of(Location.of(target, target_options), options, convert)
        destination.demand_free()
        group = _read_group(Location.of(source, storage_options), opening)
        destination.create(lambda: group)


def estimate_conversion(
    source: str | os.PathLike[str],
    format: str,
    *,
    drop_variables: str | Iterable[str] | None = None,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    on_error: str = "raise",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    main_encoding: Mapping[str, Any] | None = None,
    **choices: Any,
) -> pd.DataFrame:
    """Return what `convert` would rewrite with ``on_unsupported="rewrite"``: a row per variable.

    Parameters are those of `convert`; nothing is written.
    """
    opening = OpenOptions(
        *(None, drop_variables, parser, on_error, allow), below=True, parser_options=parser_options
    )
    group = _read_group(Location.of(source, storage_options), opening)
    return estimate_cost(group, format, main_encoding, **choices)


def _read_group(origin: Location, opening: OpenOptions) -> ManifestGroup:
    """Read a source or a set, with the values that the set holds itself."""
    with explain_open_errors(origin.url), origin.hold_scan():
        found = reader, _ = reader_of(origin, opening.parser)
        group = open_group(origin, opening, found)
    group = settle_left_out(group)
    if isinstance(reader, Format):
        group = load_own_values(group, f"{origin.url.rstrip('/')}/")
    return group
