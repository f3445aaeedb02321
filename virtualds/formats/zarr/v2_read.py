"""Read Zarr v2 hierarchies as groups of variables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from virtualds.arrays.group import (
    ManifestGroup,
    ManifestVariable,
    describe_left_out,
    name_axes,
    normalise_group_path,
)
from virtualds.chunks.manifest import ChunkManifest
from virtualds.errors import FormatError, VirtualdsError
from virtualds.formats.referenced_files import MALFORMED_ERRORS, malformed_error
from virtualds.formats.undecodable import read_variable_or_problem
from virtualds.formats.zarr.encoding_notes import restore_encoding, restore_text_encoding
from virtualds.formats.zarr.strings import varying_from_zarr_v2
from virtualds.formats.zarr.v2_metadata import array_from_zarr_v2, check_zarr_v2, read_chunk_grid
from virtualds.formats.zarr.v2_types import dtype_from_zarr_v2, fill_from_zarr_v2
from virtualds.json_values import from_json
from virtualds.source_file import SourceFile

NOTES = "virtualds"
"""The top-level key of the notes of a format."""
DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute of a Zarr v2 array with its dimensions, as xarray reads it."""
NOT_NAMES = frozenset({"", ".", ".."})
"""What no member of a group may be called."""
Chunks = Callable[[str, tuple[int, ...]], ChunkManifest]
"""Takes the path of an array and its chunk grid, and returns the manifest of its chunks."""


class MemberNames(NamedTuple):
    """The names of the members of a group, in order."""

    arrays: dict[str, None]
    groups: dict[str, None]


@dataclass(frozen=True)
class HierarchyReader:
    """Makes groups of a hierarchy.

    Parameters
    ----------
    source : SourceFile
        The reference set.
    metadata : mapping of str to JSON values
        By key: ``.zgroup``, ``a/.zattrs``, ``a/v/.zarray`` and so on.
    notes : mapping
        As `Hierarchy.notes`; empty for the sets of others.
    chunks : callable
        Where the chunks of an array lie.
    skip : set of str
        Names of variables to leave out.
    """

    source: SourceFile
    metadata: Mapping[str, Any]
    notes: Mapping[str, Any]
    chunks: Chunks
    skip: frozenset[str] = frozenset()

    def read_tree(self, path: str | None = None) -> ManifestGroup:
        """Return the group at a path with everything below it.

        Raises
        ------
        FileNotFoundError
            There is no such group.
        FormatError
            Metadata or references are invalid.
        UnsupportedError
            A codec or dtype is unknown.
        """
        try:
            if odd := [key for key in self.metadata if NOT_NAMES & set(key.split("/"))]:
                raise FormatError(
                    f"{self.source.url}: the key {odd[0]!r} has a part that is not a name; the "
                    f"metadata is damaged"
                )
            return self._read_group(normalise_group_path(path, lambda p: self._members[p].groups))
        except MALFORMED_ERRORS as error:
            if isinstance(error, VirtualdsError):
                raise
            raise malformed_error(self.source.url, error) from error

    @cached_property
    def _members(self) -> Mapping[str, MemberNames]:
        """The members of every group, by path; found in one pass over all keys."""
        found: dict[str, MemberNames] = defaultdict(lambda: MemberNames({}, {}))
        for key in self.metadata:
            *nodes, rest = key.split("/")
            is_array = f"{'/'.join(nodes)}/.zarray" in self.metadata
            for depth, name in enumerate(nodes, 1):
                holder = found["/".join(nodes[: depth - 1])]
                if depth < len(nodes) or not is_array:
                    holder.groups[name] = None
                elif rest == ".zarray":
                    holder.arrays[name] = None
                elif rest not in (".zattrs", ".zgroup"):
                    holder.groups[name] = None
        for here in found.values():
            for name in here.arrays:
                here.groups.pop(name, None)
        return found

    def _read_group(self, path: str) -> ManifestGroup:
        prefix = f"{path}/" if path else ""
        here = self._members[path]
        problems: dict[str, VirtualdsError] = {}
        variables, left_out = dict[str, ManifestVariable](), dict[str, ManifestVariable]()
        for name in here.arrays:
            if name in self.skip:
                left_out[name] = self._read_named(self._describe_left_out, prefix + name, {})
            else:
                variables[name] = self._read_named(self._read_variable, prefix + name, problems)
        notes = self._get_notes("groups", path)
        groups = {name: self._read_group(prefix + name) for name in here.groups}
        encoding = {"unlimited_dims": set(notes.get("unlimited_dims", ()))}
        try:
            attributes = self._read_attributes(path, notes)
            return ManifestGroup(
                variables, attributes, groups, encoding, problems, left_out=left_out
            )
        except FormatError as error:
            error.locate(f"group /{path}", self.source.url)
            raise

    def _get_notes(self, kind: str, path: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.notes.get(kind, {}).get(path, {})
        return found

    def _read_attributes(self, path: str, notes: Mapping[str, Any]) -> dict[str, Any]:
        found = self.metadata.get(f"{path}/.zattrs" if path else ".zattrs", {})
        types = notes.get("attributes", {})
        return {name: from_json(value, types.get(name)) for name, value in found.items()}

    def _read_named(
        self,
        read: Callable[[str], ManifestVariable],
        path: str,
        problems: dict[str, VirtualdsError],
    ) -> ManifestVariable:
        shape = member_of(self.metadata[f"{path}/.zarray"], "shape")
        names = member_of(self.metadata.get(f"{path}/.zattrs"), DIMENSIONS)
        url = self.source.url
        return read_variable_or_problem(partial(read, path), path, url, shape, names, problems)

    def _describe_left_out(self, path: str) -> ManifestVariable:
        metadata = self.metadata[f"{path}/.zarray"]
        attributes = self._read_attributes(path, self._get_notes("arrays", path))
        dims = _name_dims(metadata["shape"], attributes.get(DIMENSIONS))
        return describe_left_out(dims, dtype_from_zarr_v2(metadata["dtype"]), attributes)

    def _read_variable(self, path: str) -> ManifestVariable:
        metadata = self.metadata[f"{path}/.zarray"]
        check_zarr_v2(metadata)
        notes = self._get_notes("arrays", path)
        attributes = self._read_attributes(path, notes)
        dims = _name_dims(metadata["shape"], attributes.pop(DIMENSIONS, None))
        manifest = self.chunks(path, read_chunk_grid(metadata))
        if metadata["dtype"] == "|O":
            values, fill = varying_from_zarr_v2(metadata, manifest)
            if fill is not None:
                attributes["_FillValue"] = fill
            data, encoding = values.settle()
            encoding = restore_text_encoding(encoding, notes)
            return ManifestVariable(dims, data, attributes, encoding)
        array = array_from_zarr_v2(metadata, manifest)
        fill = fill_from_zarr_v2(metadata.get("fill_value"), array.dtype)
        if fill is not None and array.dtype.kind != "V":
            # as in xarray: the fill value of Zarr v2 replaces the netCDF attribute; no such
            # attribute masks raw bytes and compound types
            attributes["_FillValue"] = fill
        encoding = restore_encoding(array, dims, notes, self.source.url)
        return ManifestVariable(dims, array, attributes, encoding)


def member_of(document: object, key: str) -> object:
    """Return the value under a key of a JSON object, None for other values."""
    return document.get(key) if isinstance(document, Mapping) else None


def _name_dims(shape: Sequence[int], names: Sequence[str] | None) -> tuple[str, ...]:
    dims = name_axes(shape, [None] * len(shape)) if names is None else tuple(names)
    if len(dims) != len(shape):
        raise FormatError(f"dimensions {dims} for an array of shape {shape}")
    return dims


def files_with_chunks(manifest: ChunkManifest) -> Iterable[SourceFile]:
    """Return the files that chunks lie in, without unused ones."""
    return manifest.pruned().sources
