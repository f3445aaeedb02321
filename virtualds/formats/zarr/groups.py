"""Reads the metadata of a Zarr hierarchy, of version 2 or 3, as groups of variables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import (
    ManifestGroup,
    ManifestVariable,
    describe_left_out,
    name_axes,
    normalise_group_path,
)
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.codec import NO_FILTERS
from virtualds.errors import FormatError, VirtualdsError
from virtualds.formats.undecodable import explain_malformed, read_variable_or_problem
from virtualds.formats.zarr.data_types import (
    data_type_from_v3,
    dtype_from_zarr_v2,
    fill_from_attribute,
    fill_from_zarr_v2,
)
from virtualds.formats.zarr.document import CONSOLIDATED, DIMENSIONS, INVALID_NAMES
from virtualds.formats.zarr.shards import expand_shards
from virtualds.formats.zarr.strings import (
    VariableLengthArray,
    is_variable_length,
    varying_from_v3,
    varying_from_zarr_v2,
)
from virtualds.formats.zarr.v2_arrays import (
    CHARACTER,
    array_from_zarr_v2,
    check_zarr_v2,
    describe_storage,
    read_chunk_grid,
)
from virtualds.formats.zarr.v3_arrays import (
    ManifestPart,
    Manifests,
    array_from_v3,
    check_extras,
    check_zarr_v3,
)
from virtualds.json_values import from_json

Node = Mapping[str, Any]
"""The metadata of a group or array: the content of ``zarr.json``, or as from `merge_zarr_v2`."""
FindParts = Callable[[str, Node], Manifests]
"""A function of the path and metadata of an array that returns its `Manifests`."""


class ZarrVersion(NamedTuple):
    """The functions that read the metadata of one version of Zarr.

    ``check`` raises an error for invalid metadata of an array; ``names`` returns the names of its
    dimensions, or None if there are none, and in Zarr v2 removes them from its attributes;
    ``dtype`` returns its dtype; ``read`` takes metadata, `Manifests`, attributes and recorded types
    of attributes, and returns the array and its attribute ``_FillValue``, if it has one. Groups
    have no keys other than ``group_keys``.
    """

    number: int
    check: Callable[[Any], None]
    names: Callable[[Node, dict[str, Any]], Any]
    dtype: Callable[[Any], np.dtype[Any]]
    read: Callable[..., tuple[ManifestArray | VariableLengthArray, Any]]
    group_keys: Collection[str] = ("zarr_format", "node_type", "attributes", CONSOLIDATED)


def _read_v2(
    node: Node, manifests: Manifests, attributes: Mapping[str, Any], types: Mapping[str, Any]
) -> tuple[ManifestArray | VariableLengthArray, Any]:
    manifest = manifests([read_chunk_grid(node)], 0)[0].manifest
    known = attributes.get("_FillValue")
    if node["dtype"] == "|O":
        values, fill = varying_from_zarr_v2(node, manifest)
        return values, known if fill is None else fill
    array = array_from_zarr_v2(node, manifest)
    fill = fill_from_zarr_v2(node.get("fill_value"), array.dtype)
    # as in xarray: the fill value of Zarr v2 replaces the netCDF attribute; raw bytes and compound
    # types are not masked by such an attribute
    return array, known if fill is None or array.dtype.kind == "V" else fill


def _read_v3(
    node: Node, manifests: Manifests, attributes: Mapping[str, Any], types: Mapping[str, Any]
) -> tuple[ManifestArray | VariableLengthArray, Any]:
    node, manifests = expand_shards(node, manifests)
    known = attributes.get("_FillValue")
    if is_variable_length(node):
        return varying_from_v3(node, manifests), known
    array = array_from_v3(node, manifests)
    if known is not None and "_FillValue" not in types:
        known = fill_from_attribute(known, array.dtype)
    return array, known


V2 = ZarrVersion(
    2,
    check_zarr_v2,
    lambda node, attributes: attributes.pop(DIMENSIONS, None),
    lambda node: dtype_from_zarr_v2(node["dtype"]),
    _read_v2,
)
V3 = ZarrVersion(
    3,
    check_zarr_v3,
    lambda node, attributes: node.get("dimension_names"),
    lambda node: data_type_from_v3(node["data_type"]),
    _read_v3,
)


def merge_zarr_v2(metadata: Mapping[str, Any]) -> dict[str, Node]:
    """Return the nodes of a Zarr v2 hierarchy by path, given its metadata by key.

    Attributes are added to their node, and everything below an array is left out.

    Examples
    --------
    >>> keys = {".zgroup": {"zarr_format": 2}, "t/.zarray": {"shape": []}, "t/.zattrs": {"a": 1}}
    >>> merge_zarr_v2(keys)["t"]
    {'shape': [], 'zarr_format': 2, 'node_type': 'array', 'attributes': {'a': 1}}
    """
    arrays = {key.removesuffix("/.zarray") for key in metadata if key.endswith("/.zarray")}
    found: dict[str, Node] = {}
    known: dict[str, bool] = {}

    def lies_in_array(folder: str) -> bool:
        # A loop, since sets of other tools may be nested deeper than Python's recursion limit.
        walked = [folder]
        while folder and folder not in known and folder not in arrays:
            folder = folder.rpartition("/")[0]
            walked.append(folder)
        known.update(dict.fromkeys(walked, known.get(folder, folder in arrays)))
        return known[folder]

    for key in metadata:
        path = key.rpartition("/")[0]
        if not INVALID_NAMES.isdisjoint(key.split("/")):
            # not a key, and so not a path
            found[key] = {}
        if path in found or lies_in_array(path.rpartition("/")[0]):
            continue
        zarray = metadata[f"{path}/.zarray"] if path in arrays else {}
        found[path] = {
            **(zarray if isinstance(zarray, Mapping) else {}),
            "zarr_format": 2,
            "node_type": "array" if path in arrays else "group",
            "attributes": metadata.get(f"{path}/.zattrs" if path else ".zattrs", {}),
        }
    return found


def make_single_manifest_finder(
    chunks: Callable[[str, tuple[int, ...]], ChunkManifest],
) -> FindParts:
    """Return a function that finds the chunks of arrays with one manifest each.

    ``chunks`` returns that manifest, given the path of an array and its chunk grid.
    """

    def parts_of(path: str, node: Node) -> Manifests:
        return lambda grids, numbered: [
            ManifestPart(0, (0,) * len(grids[0]), chunks(path, grids[0]))
        ]

    return parts_of


class MemberNames(NamedTuple):
    """The names of the members of a group, in order."""

    arrays: dict[str, None]
    groups: dict[str, None]


@dataclass(frozen=True)
class GroupBuilder:
    """Builds groups from the metadata of all nodes, by path.

    ``root`` is the url of the set, for errors. ``notes`` are facts that plain Zarr cannot express:
    ``arrays`` and ``groups``, by path; sets of other tools have none. ``skip`` are names of
    variables to leave out.
    """

    root: str
    nodes: Mapping[str, Node]
    notes: Mapping[str, Any]
    parts_of: FindParts
    skip: frozenset[str] = frozenset()
    version: ZarrVersion = V3

    def read_group(self, path: str | None = None) -> ManifestGroup:
        """Return the group at a path, including all groups below it."""
        with explain_malformed(self.root):
            if odd := [path for path in self.nodes if path and INVALID_NAMES & {*path.split("/")}]:
                raise FormatError(
                    f"{self.root}: the path {odd[0]!r} has a part that is not a name; the metadata "
                    f"is damaged"
                )
            return self._read_group(normalise_group_path(path, lambda p: self._members[p].groups))

    @cached_property
    def _members(self) -> Mapping[str, MemberNames]:
        """The members of every group, by path; collected in one pass over all nodes."""
        found: dict[str, MemberNames] = defaultdict(lambda: MemberNames({}, {}))
        for path, node in self.nodes.items():
            names = path.split("/") if path else []
            for depth, name in enumerate(names, 1):
                holder = found["/".join(names[: depth - 1])]
                is_group = depth < len(names) or node.get("node_type") == "group"
                (holder.groups if is_group else holder.arrays)[name] = None
        return found

    def _read_group(self, path: str) -> ManifestGroup:
        prefix = f"{path}/" if path else ""
        here, notes = self._members[path], self._get_notes("groups", path)
        problems: dict[str, VirtualdsError] = {}
        variables, left_out = dict[str, ManifestVariable](), dict[str, ManifestVariable]()
        for name in here.arrays:
            if name in self.skip:
                left_out[name] = self._read_named(self._describe_left_out, prefix + name, {})
            else:
                variables[name] = self._read_named(self._read_variable, prefix + name, problems)
        groups = {name: self._read_group(prefix + name) for name in here.groups}
        encoding = {"unlimited_dims": set(notes.get("unlimited_dims", ()))}
        node = self.nodes.get(path, {"zarr_format": self.version.number})
        try:
            if (found := node.get("zarr_format")) != self.version.number:
                raise FormatError(f"its zarr_format is {found!r}, not {self.version.number}")
            check_extras(node, self.version.group_keys)
            attributes = self._read_attributes(node, notes)
            return ManifestGroup(
                variables,
                attributes,
                groups,
                encoding,
                problems,
                left_out=left_out,
                notes=notes.get("sync", {}),
            )
        except VirtualdsError as error:
            error.locate(f"group /{path}", self.root)
            raise

    def _get_notes(self, kind: str, path: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.notes.get(kind, {}).get(path, {})
        return found

    def _read_attributes(self, node: Node, notes: Mapping[str, Any]) -> dict[str, Any]:
        types = notes.get("attributes", {})
        found = node.get("attributes")
        found = {} if found is None else found
        return {name: from_json(value, types.get(name)) for name, value in found.items()}

    def _read_named(
        self,
        read: Callable[[str, Node], ManifestVariable],
        path: str,
        problems: dict[str, VirtualdsError],
    ) -> ManifestVariable:
        node = self.nodes[path]

        def read_checked() -> ManifestVariable:
            self.version.check(node)
            return read(path, node)

        attributes = node.get("attributes")
        names = self.version.names(node, dict(attributes) if isinstance(attributes, dict) else {})
        shape = node.get("shape")
        return read_variable_or_problem(read_checked, path, self.root, shape, names, problems)

    def _read_dims(self, node: Node, attributes: dict[str, Any]) -> tuple[str, ...]:
        """Return the dimensions of an array, and remove them from its attributes."""
        names, shape = self.version.names(node, attributes), node["shape"]
        names = [None] * len(shape) if names is None else names
        if len(names) != len(shape):
            raise FormatError(f"dimensions {tuple(names)} for an array of shape {list(shape)}")
        named = None not in names
        return tuple(names) if named else name_axes(shape, names)

    def _describe_left_out(self, path: str, node: Node) -> ManifestVariable:
        attributes = self._read_attributes(node, self._get_notes("arrays", path))
        dims = self._read_dims(node, attributes)
        return describe_left_out(dims, self.version.dtype(node), attributes)

    def _read_variable(self, path: str, node: Node) -> ManifestVariable:
        notes = self._get_notes("arrays", path)
        attributes = self._read_attributes(node, notes)
        dims = self._read_dims(node, attributes)
        parts, types = self.parts_of(path, node), notes.get("attributes", {})
        array, fill = self.version.read(node, parts, attributes, types)
        if fill is not None:
            attributes["_FillValue"] = fill
        if isinstance(array, ManifestArray):
            encoding = _restore_encoding(array, dims, notes, self.root)
            return ManifestVariable(dims, array, attributes, encoding)
        data, encoding = array.load_if_small()
        return ManifestVariable(dims, data, attributes, _restore_text_encoding(encoding, notes))


# ---------------------------------------------------------------------- encodings


def _restore_encoding(
    array: ManifestArray, dims: tuple[str, ...], notes: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Return the encoding of a variable of the set at ``source``, completed from its notes."""
    found = describe_storage(array, dims)
    found |= (noted := notes.get("encoding", {}))
    for name, value in noted.items():
        # Python's json writes and reads names for them, which are not JSON
        if isinstance(value, float) and not isfinite(value):
            raise FormatError(
                f"{source}: the set notes {value} as {name!r} of a variable; the set is damaged, "
                f"restore it or write it anew"
            )
    if found["chunksizes"] is not None:
        found["chunksizes"] = tuple(found["chunksizes"])
    if any(found[name] for name in NO_FILTERS):
        # chunks of several shapes are still chunks; HDF5 filters nothing else
        found["contiguous"] = False
    if found["contiguous"]:
        found["chunksizes"] = None
        found.pop("preferred_chunks", None)
    found["dtype"] = array.dtype
    if "enum" in notes:
        found["dtype"] = np.dtype(array.dtype, metadata=dict(notes["enum"]))
    if "least_significant_digit" in notes:
        found["least_significant_digit"] = notes["least_significant_digit"]
    return found | {"source": source, "original_shape": array.shape}


def _restore_text_encoding(encoding: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the encoding of strings, with the character axis of the source if notes have it."""
    if "characters" not in notes:
        return dict(encoding)
    known = dict(notes["characters"])
    found = {**encoding, "dtype": CHARACTER}
    # xarray takes the last length for that of the character axis
    shape, length = found.pop("original_shape"), known.pop("length", None)
    if length is not None:
        found["original_shape"] = (*shape, length)
    return found | known
