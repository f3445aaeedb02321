"""Checks of archives and sets. This module describes them by their metadata and coordinates."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

from virtualds.arrays.array import map_manifests
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import SourceSummary
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import load_compactly
from virtualds.datasets.conversion import to_virtual_tree
from virtualds.datasets.lazy import get_virtual_array, replace_variables
from virtualds.datasets.location import Location, set_reader_of
from virtualds.datasets.open import check_loadable, enter_set, open_group
from virtualds.datasets.open_options import Loadable, OpenOptions
from virtualds.errors import format_bytes, format_count, without_secrets
from virtualds.formats import Format
from virtualds.json_values import to_records
from virtualds.pictures import Block, Report
from virtualds.source_file import SourceFile
from virtualds.stores.access_rules import Allow
from virtualds.stores.store import explain_open_errors

MAX_REFERENCES = 2**21
"""Maximum number of references that are searched if a set does not list its source files."""


class Sources(NamedTuple):
    """Number, total size in bytes (None if a size is unknown) and first url of source files."""

    number: int
    nbytes: int | None
    first: str | None


@dataclass(frozen=True, repr=False)
class Description(Report):
    """A description of a reference set or a source file.

    Parameters
    ----------
    url : str
    format : str
        Name of the format, or of the parser.
    tree : xarray.DataTree
        The contents as virtual arrays.
    references : int
        Chunks of all variables, including missing chunks.
    sources : Sources, optional
        The source files of the references, without files of the set itself. None if the set does
        not list its files and has too many references to search.
    snapshots : pandas.DataFrame, optional
        As listed by `virtualds.snapshots`, or None if the format has no snapshots.
    """

    url: str
    format: str
    tree: xr.DataTree
    references: int
    sources: Sources | None
    snapshots: pd.DataFrame | None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        groups = {node.path: node.to_dataset(inherit=False) for node in self.tree.subtree}
        return {
            "url": self.url,
            "format": self.format,
            "groups": {path: group.to_dict(data=False) for path, group in groups.items()},
            "references": self.references,
            "sources": self.sources
            and dict(zip(("count", "bytes", "first"), self.sources, strict=True)),
            "snapshots": None if self.snapshots is None else to_records(self.snapshots),
        }

    def _iterate_blocks(self) -> Iterator[Block]:
        sources = first = snapshots = None
        if self.sources is not None:
            files, nbytes, first = self.sources
            size = "" if nbytes is None else f", {format_bytes(nbytes)}"
            sources = f"{format_count(files, 'file')}{size}"
        if self.snapshots is not None and len(self.snapshots):
            newest = self.snapshots.iloc[-1]
            count = format_count(len(self.snapshots), "snapshot")
            snapshots = f"{count}, the newest is {newest['snapshot']} of {newest['time']} UTC"
        yield {
            "url": self.url,
            "format": self.format,
            "references": f"{self.references:,}",
            "sources": sources or "not listed by the set",
            "first source": first or None,
            "snapshots": snapshots,
        }


def describe(
    url: str | os.PathLike[str],
    *,
    group: str | None = None,
    loadable_variables: Loadable = None,
    storage_options: Mapping[str, Any] | None = None,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    allow: Allow = None,
    snapshot: str | None = None,
) -> Description:
    """Describe a reference set or a source file.

    Parameters
    ----------
    url, group, loadable_variables, storage_options, parser, parser_options, allow, snapshot
        As in `virtualds.open_virtual_datatree`.

    Raises
    ------
    FileNotFoundError, AccessError, FormatError, UnsupportedError
        As `virtualds.open_virtual_datatree`.
    ReadError
        The values of a coordinate cannot be read; ``loadable_variables=[]`` loads none.

    Examples
    --------
    >>> description = describe("2001.nc")
    >>> description.format, description.references, description.sources.number
    ('hdf5', 15, 1)
    """
    options = OpenOptions(
        *(group, None, parser, "keep", allow, snapshot, loadable_variables),
        below=True,
        parser_options=parser_options,
    )
    location, options = enter_set(Location.of_url(url, storage_options), options)
    with explain_open_errors(location.url), location.cache_scan():
        reader, source = set_reader_of(location, parser)
        root = open_group(location, options, (reader, source))
        check_loadable(root, options, location.url)
        tree = to_virtual_tree(root, options)
    manifests = list(_iterate_manifests(root))
    is_set, snapshots = isinstance(reader, Format), None
    if isinstance(reader, Format) and reader.history is not None:
        snapshots = reader.list_snapshots(source.url, location.options)
    return Description(
        location.url,
        reader.name,
        tree,
        sum(manifest.size for manifest in manifests),
        find_sources(manifests, f"{location.url.rstrip('/')}/" if is_set else None),
        snapshots,
    )


def load_references(description: Description) -> xr.DataTree:
    """Return the tree of a description, with references in memory unless there are too many.

    Examples
    --------
    >>> tree = load_references(describe("2001.nc"))
    >>> tree["t"].variable.data.manifest.is_loaded
    True
    """
    if description.references > MAX_REFERENCES:
        return description.tree
    datasets = {}
    for node in description.tree.subtree:
        dataset, variables = node.to_dataset(inherit=False), {}
        for name, variable in dataset.variables.items():
            array = get_virtual_array(variable)
            if array is not None:
                data: Any = map_manifests(array, load_compactly).prune()
                variables[name] = variable.copy(data=data)
        datasets[node.path] = replace_variables(dataset, variables)
    return xr.DataTree.from_dict(datasets, name=description.tree.name)


def _iterate_manifests(group: ManifestGroup) -> Iterable[ChunkManifest]:
    return (fragment.manifest for array in group.list_arrays() for fragment in array.fragments)


def find_sources(manifests: Iterable[ChunkManifest], set_folder: str | None) -> Sources | None:
    """Return the source files of manifests, without those in ``set_folder``.

    Return None if the set does not list them and has too many references to search.
    """
    summaries: dict[Hashable, tuple[SourceSummary, ChunkManifest]] = {}
    files: dict[SourceFile, None] = {}
    for manifest in manifests:
        summary = manifest.source_summary
        if summary is not None:
            known, _ = summaries.setdefault(summary.name, (summary, manifest))
            if known.number < summary.number:
                summaries[summary.name] = summary, manifest
        elif manifest.is_in_set and manifest.size > MAX_REFERENCES:
            return None
        else:
            for file in manifest.listed_files:
                if not set_folder or not file.url.startswith(set_folder):
                    files[file] = None
    if len(summaries) == 1 and not files:
        [(summary, _)] = summaries.values()
        return Sources(summary.number, summary.nbytes, summary.first)
    # lists of different names may have the same file
    for _, manifest in summaries.values():
        files |= dict.fromkeys(manifest.listed_files)
    sizes = [file.size for file in files if file.size is not None]
    nbytes = sum(sizes) if len(sizes) == len(files) else None
    return Sources(len(files), nbytes, next((without_secrets(file.url) for file in files), None))
