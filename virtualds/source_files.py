"""The files that virtual arrays refer to: a table of them, and other places for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from virtualds.array import ManifestArray
from virtualds.source_file import SourceFile
from virtualds.urls import normalise_url


def table_of_sources(arrays: Iterable[ManifestArray]) -> pd.DataFrame:
    """Return the source files of arrays, a row each."""
    counts: dict[SourceFile, int] = {}
    for array in arrays:
        for fragment in array.fragments:
            manifest = fragment.manifest.loaded()
            used = np.bincount(
                manifest.file[manifest.file >= 0].ravel(), minlength=len(manifest.files)
            )
            for file, count in zip(manifest.files, used.tolist(), strict=True):
                counts[file] = counts.get(file, 0) + count
    rows = [(f.url, n, f.size, f.mtime, f.etag) for f, n in counts.items()]
    table = pd.DataFrame(rows, columns=["url", "chunks", "size", "modified", "etag"])
    return table.astype({"modified": "datetime64[ns]"})


def move_sources(array: ManifestArray, change: Callable[[str], str]) -> ManifestArray:
    """Return an array whose files lie at the urls that ``change`` makes of theirs."""

    def moved(file: SourceFile) -> SourceFile:
        url = normalise_url(change(file.url))
        # the copy has another modification time, and the same content
        return file if url == file.url else file._replace(url=url, mtime=None)

    fragments = (replace(f, manifest=f.manifest.with_files(moved)) for f in array.fragments)
    return replace(array, fragments=tuple(fragments))


def prefix_changer(
    prefixes: Mapping[str, str], arrays: Iterable[ManifestArray]
) -> Callable[[str], str]:
    """Return what changes the prefixes of urls.

    Raises
    ------
    TypeError
        They are no dict.
    ValueError
        No url of the arrays begins with one of them.
    """
    if not isinstance(prefixes, Mapping):
        raise TypeError(
            f"rename_paths {prefixes!r}: it is a dict of old to new prefixes of urls, or a "
            f"function of a url"
        )
    absolute = {_prefix(old): _prefix(new) for old, new in prefixes.items()}
    urls = {file.url for array in arrays for file in array.sources}
    for old in absolute:
        if not any(_begins(url, old) for url in urls):
            raise ValueError(
                f"rename_paths: no source begins with {old!r}; the first is "
                f"{min(urls, default=None)!r}"
            )

    def change(url: str) -> str:
        for old in sorted(absolute, key=len, reverse=True):
            if _begins(url, old):
                return absolute[old] + url[len(old) :]
        return url

    return change


def _prefix(path: str) -> str:
    return normalise_url(path).rstrip("/")


def _begins(url: str, prefix: str) -> bool:
    """Say whether a url is a file or lies in a folder: names that only begin alike do not."""
    return url == prefix or url.startswith(f"{prefix}/")
