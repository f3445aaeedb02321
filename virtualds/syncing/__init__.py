"""Keeping a set up to date with the files that it was made of."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.combine import open_virtual_mfdataset
from virtualds.datasets.from_dataset import as_read, group_from_dataset
from virtualds.datasets.keywords import check_choice, check_types, list_arguments
from virtualds.datasets.location import Location, explain_both_options
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import (
    UnsupportedError,
    format_count,
    lay_out,
    warn_user,
    without_secrets,
)
from virtualds.options import SETTLE
from virtualds.progress import INFO, is_logged, log
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import Allow
from virtualds.stores.requests import explain_interrupt
from virtualds.syncing.files import Changes, FileOpener, SetFiles, Urls, list_files
from virtualds.syncing.update import SyncReport, Update, check_dimension
from virtualds.urls import scheme_of
from virtualds.writing.write import Destination, WriteOptions

ON_REMOVED = ("error", "keep", "drop")
OPEN_ARGUMENTS = frozenset(list_arguments(open_virtual_mfdataset)) - {
    *("paths", "to", "mode", "target_options", "snapshot", "decode_cf", "keep_query"),
}
"""The arguments of `virtualds.open_virtual_mfdataset` that `sync` takes."""


def sync(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: Any,
    *,
    concat_dim: str,
    on_removed: str = "error",
    settle: float = SETTLE,
    format: str | None = None,
    conflict: str = "retry",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    **how: Any,
) -> SyncReport:
    """Update a reference set to the present state of its files; create it if there is none.

    Only files that are new or have changed are opened. New ones are inserted where their coordinate
    belongs, or appended to a set without a monotonic coordinate. Changed ones replace what the set
    has of them. All this is one commit, which readers see completely or not at all. If nothing has
    changed, nothing is written.

    Parameters
    ----------
    paths : str, or sequence of str or paths
        A glob pattern for local or remote files, or the files themselves, without globbing. It
        names all files of the set, not only new ones.
    target : str or path, or an object of Icechunk
        The set, as for ``ds.virtual.to_manifest``.
    concat_dim : str
        The dimension along which files follow each other.
    on_removed : {"error", "keep", "drop"}
        What to do about files of the set that are not listed: raise; keep their references; or
        remove their data. The default protects the set from a disk that is not mounted and from an
        expired token.
    settle : float, default 60
        New and changed files that were modified less than so many seconds ago may still be written,
        and are left for the next run.
    format : str, optional
        Name of the format, if the suffix of ``target`` does not give it.
    conflict : {"retry", "raise"}
        What to do if another writer is faster: compare with the new state of the set and continue,
        or raise `ConflictError`.
    allow : str, path, or iterable of them, optional
        Folders in which all files must lie, as in `open_virtual_dataset`. A remote set may refer
        to local files only if they are allowed here.
    storage_options, target_options : dict, optional
        Access options of the files and of the set, for fsspec.
    **how
        Arguments of `open_virtual_mfdataset`, such as ``preprocess``, ``coordinates``, ``overlap``,
        ``parallel``, ``cache`` and ``on_error``; and options of the format, as for
        ``ds.virtual.to_manifest``. With ``overlap="first"``, positions that the set already has are
        left out of new files; with ``"last"``, also if the set has them from files whose urls sort
        after the new ones. ``on_unsupported="rewrite"`` only works for formats that can store every
        encoding: rewritten chunks refer to no file whose changes could be followed. With
        ``on_error="skip"`` or ``"collect"`` files that cannot be opened are reported; the set keeps
        what it has of them.

    Returns
    -------
    SyncReport

    Raises
    ------
    FileNotFoundError
        No file is listed; or files of the set are not listed, and ``on_removed`` is ``"error"``.
    FileExistsError
        ``target`` exists, and is not a reference set.
    OSError
        A folder cannot be listed.
    CombineError
        A file does not fit the set.
    ConflictError
        Another writer was faster; the set is as that writer left it.
    UnsupportedError
        The format cannot store the files, or the format or store cannot be changed in this way; or
        ``concat_dim`` is several dimensions.
    TypeError, ValueError
        There is no such argument, or it cannot have this value.

    Warns
    -----
    UserWarning
        There is no set yet, since all files may still be written or cannot be opened.

    Notes
    -----
    A file has changed if its size, or its modification time (local files) or etag (remote files),
    differs from what the set recorded. Sets of other tools record none of these, so only new and
    removed files are detected in them.

    Examples
    --------
    >>> sync("200[12].nc", "refs.zarr", concat_dim="time", settle=0).added  # doctest: +ELLIPSIS
    ('file:///...2001.nc', 'file:///...2002.nc')
    >>> sync("200[12].nc", "refs.zarr", concat_dim="time").unchanged
    2
    """
    given = dict(locals())
    done = _bring_up_to_date(**given.pop("how"), **given)
    if not done.exists:
        warn_user(_explain_lack(done))
    return done


def _bring_up_to_date(
    paths: Any,
    target: Any,
    *,
    concat_dim: str,
    on_removed: str = "error",
    settle: float = SETTLE,
    format: str | None = None,
    conflict: str = "retry",
    allow: Allow = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    **how: Any,
) -> SyncReport:
    begun = time.monotonic()
    _check_one_dimension(concat_dim)
    check_choice("on_removed", on_removed, ON_REMOVED)
    if not isinstance(settle, int | float) or not settle >= 0:
        raise ValueError(f"settle={settle!r}: give a number of seconds, at least 0")
    opening = {name: value for name, value in how.items() if name in OPEN_ARGUMENTS}
    check_types(opening)
    both = OPEN_ARGUMENTS - {"progress"}
    choices = {name: value for name, value in how.items() if name not in both}
    writing = WriteOptions(
        format, append_dim=concat_dim, conflict=conflict, allow=allow, choices=choices
    )
    # a local set has no options of its own, so those of the files are used for comparing with them
    near = isinstance(target, str | os.PathLike) and scheme_of(os.fspath(target)) == "file"
    access = target_options or (storage_options if near else None)
    with explain_both_options(target):
        destination = Destination.of(Location.of(target, access), writing, sync)
        if destination.rewrite.is_needed:
            # a set does not record from which files copies were made
            raise UnsupportedError(
                f"{destination.location.target}: sync follows the files that a set refers to, and "
                f"rewritten chunks refer to none; keep a zarr-v3 set up to date, which holds every "
                f"encoding, and make the other set of it with virtualds.convert(..., "
                f"on_unsupported='rewrite')"
            )
        update = Update(
            dim=concat_dim,
            known=SetFiles(concat_dim, destination.location.url),
            opener=FileOpener(
                concat_dim, opening | {"storage_options": storage_options, "allow": allow}
            ),
            drops=on_removed == "drop",
            sorts=opening.get("sort", True),
            overlap=opening.get("overlap", "error"),
            options=StorageOptions.of(storage_options),
        )
        shown = without_secrets(destination.location.url)
        left = f"{shown}: a set changes all at once; run sync again to go on"
        with explain_interrupt(lambda: left):
            how_to_read = OpenOptions(
                parser=destination.format.name,
                allow=allow,
                snapshot=destination.options.format_choices.get("branch"),
            )
            before: ManifestGroup | None = None
            # the set need not exist
            with suppress(FileNotFoundError):
                before = open_group(destination.location, how_to_read)
            if before is not None:
                check_dimension(before, update.known, concat_dim)
            known = update.known.tabulate(before)
            # listed after reading the set, so that what others add meanwhile is not considered
            # removed
            listed = list_files(paths, update.options, known)
            # these may derive values from names, so that two names of one file are different data
            named = any(opening.get(name) for name in ("preprocess", "coordinates"))
            changes = Changes.between(known, listed, settle, time.time(), every_name=named)
            if is_logged(INFO):
                log(
                    INFO, f"{destination.location.url}: {changes}, {time.monotonic() - begun:.3f} s"
                )
            if on_removed == "error" and changes.removed:
                raise _removed_error(changes.removed, len(known), destination.location)
            done = update.commit(destination, changes, known if before is not None else None)
    return replace(done, settle=settle, seconds=time.monotonic() - begun)


def _explain_lack(done: SyncReport) -> str:
    """Say why there is no set yet."""
    waiting, failed = (format_count(len(some), "file") for some in (done.waiting, done.failed))
    were = "was" if len(done.waiting) == 1 else "were"
    return (
        f"{done.target}: there is no set yet, since {waiting} {were} modified less than "
        f"{done.settle:g} seconds ago and {failed} cannot be opened; wait, or pass a smaller "
        f"settle="
    )


def _check_one_dimension(concat_dim: Any) -> None:
    """Raise an error for grids of files: it is undecided what to do where a set lacks a cell."""
    if isinstance(concat_dim, str):
        return
    if isinstance(concat_dim, Iterable) and all(isinstance(dim, str) for dim in concat_dim):
        raise UnsupportedError(
            f"concat_dim={concat_dim!r}: sync follows files along one dimension, given as a str; "
            f"write a set of a grid anew with virtualds.open_virtual_mfdataset(..., "
            f"concat_dim={concat_dim!r}, cache=...), which opens only new files, or fill the cells "
            f"of a virtualds.template with to_manifest(..., region='auto')"
        )
    raise TypeError(f"concat_dim={concat_dim!r}: give the name of a dimension, a str")


def _removed_error(removed: Urls, number: int, location: Location) -> FileNotFoundError:
    more = f" and {len(removed) - 1:,} more" if len(removed) > 1 else ""
    return FileNotFoundError(
        lay_out(
            f"{without_secrets(removed[0])}{more}: not listed any more, out of {number:,} files of "
            f"the set {location.url}, which has not been changed; if the files should be there, "
            f"check the pattern, the disk and the credentials; if not, pass on_removed='keep' to "
            f"keep their references, or on_removed='drop' to remove them"
        )
    )


# ---------------------------------------------------------------------- many files in place of one


FILE_ARGUMENTS = frozenset(list_arguments(open_virtual_mfdataset)) - {"target_options", "snapshot"}
"""Arguments of opening and combining files, except for ``cache``, which xarray has itself."""


def read_archive(files: Any, given: Mapping[str, Any]) -> ManifestGroup:
    """Return the group of many files as a set of them would be read."""
    options = _list_options(given) | {"snapshot": given["snapshot"]}
    return as_read(group_from_dataset(open_virtual_mfdataset(_list_files(files), **options)))


def update_references(files: Any, given: Mapping[str, Any]) -> None:
    """Update the set ``references`` to the present state of the files, without removing any.

    Raises `TypeError` without ``concat_dim``, and `FileNotFoundError` if no set was created because
    all files may still be written.
    """
    options = {name: value for name, value in _list_options(given).items() if name != "concat_dim"}
    if given["concat_dim"] is None:
        raise TypeError(
            f"references={os.fspath(given['references'])!r}: name the dimension along which the "
            f"files follow each other with concat_dim="
        )
    done = _bring_up_to_date(
        _list_files(files),
        given["references"],
        concat_dim=given["concat_dim"],
        on_removed="keep",
        settle=given["settle"],
        target_options=given["target_options"],
        **options,
    )
    if not done.exists:
        raise FileNotFoundError(f"{_explain_lack(done)}, or leave out references=")


def _list_files(files: Any) -> Any:
    return [files] if isinstance(files, os.PathLike) else files


def _list_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for `open_virtual_mfdataset`."""
    found = {name: value for name, value in given.items() if name in FILE_ARGUMENTS}
    if found["combine"] is None:
        found["combine"] = "by_coords" if found["concat_dim"] is None else "nested"
    return found
