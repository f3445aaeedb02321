"""The files that a user names: a pattern, or a list."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from virtualds.errors import UnsupportedError, without_secrets
from virtualds.reading.threads import fetch_many
from virtualds.source_file import StorageOptions
from virtualds.stores.listing import FileColumns, FileState, fetch_state, list_states, names_files
from virtualds.urls import ARCHIVES, normalise_url, scheme_of


def list_files(paths: Any, options: StorageOptions | None, known: FileColumns) -> FileColumns:
    """Return the files of a pattern or a list that are there, with what is told of them.

    Parameters
    ----------
    paths : str, path, or sequence of them
        A string may be a pattern.
    options : StorageOptions, optional
    known : FileColumns
        The files of the set. One of these that is in a list and not there any more is left out.

    Raises
    ------
    FileNotFoundError
        No file is there, or a file of a list is neither there nor in the set.
    OSError
        A folder cannot be listed.
    UnsupportedError
        A file lies in an archive.
    """
    if isinstance(paths, str) and names_files(paths):
        return list_states(paths, options)
    urls = _list_urls(paths)
    states = fetch_states(urls, options)
    gone = [url for url, state in zip(urls, states, strict=True) if state is None]
    if strange := sorted(set(gone) - set(known.urls)):
        raise FileNotFoundError(f"{without_secrets(strange[0])}: there is no such file")
    found = FileColumns.of(state for state in states if state is not None)
    if not len(found):
        raise FileNotFoundError(f"none of the {len(urls)} files is there; check the path")
    return found.take(np.argsort(found.urls, kind="stable"))


def _list_urls(paths: Any) -> list[str]:
    """Return the urls of the files that a user names one by one."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(given, Iterable) or not all(isinstance(p, str | os.PathLike) for p in given):
        raise TypeError("sync takes a pattern, or a list of paths or urls, without lists in it")
    urls = list(dict.fromkeys(map(normalise_url, given)))
    if inside := [url for url in urls if scheme_of(url) in ARCHIVES]:
        raise UnsupportedError(
            f"{inside[0]}: sync keeps track of files outside of archives, which have a size and a "
            f"time of their own; append this one with ds.virtual.to_manifest(..., append_dim=...)"
        )
    if not urls:
        raise FileNotFoundError("sync: the list of files is empty; name some")
    return urls


def fetch_states(urls: Sequence[str], options: StorageOptions | None) -> Sequence[FileState | None]:
    """Return the present states of files, None for those that are not there; many at a time."""

    def fetch(url: str) -> FileState | None:
        try:
            return fetch_state(url, options)
        except FileNotFoundError:
            return None

    return fetch_many(urls, lambda url: url, fetch)
