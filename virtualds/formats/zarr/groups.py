"""Read the metadata of a Zarr hierarchy, of version 2 or 3, as groups of variables."""

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
from virtualds.formats import explain_malformed, read_variable_or_problem
from virtualds.formats.zarr import CONSOLIDATED, DIMENSIONS, INVALID_NAMES
from virtualds.formats.zarr.data_types import (
    data_type_from_v3,
    dtype_from_zarr_v2,
    fill_from_attribute,
    fill_from_zarr_v2,
)
from virtualds.formats.zarr.shards import expand_shards
from virtualds.formats.zarr.strings import (
    VariableLengthArray,
    is_variable_length,
    strings_from_v3,
    strings_from_zarr_v2,
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
    check_keys,
    check_zarr_v3,
)
from virtualds.json_values import from_json

Node = Mapping[str, Any]
"""The metadata of a group or array: the content of ``zarr.json``, or as from `merge_zarr_v2`."""
FindParts = Callable[[str, Node], Manifests]
"""A function of the path and metadata of an array that returns its `Manifests`."""


class ZarrVersion(NamedTuple):
    """The functions that read the metadata of one version of Zarr.

    ``check`` raises an error for invalid metadata of an array. ``pop_dimension_names`` returns the
    names of its dimensions, or None if there are none; in Zarr v2, it removes them from the
    attributes. ``read_dtype`` returns its dtype. ``read_array`` takes metadata, `Manifests`,
    attributes and recorded types of attributes, and returns the array and its attribute
    ``_FillValue``, or None if it has none. Groups have only the keys ``group_keys``.
    """

    number: int
    check: Callable[[Any], None]
    pop_dimension_names: Callable[[Node, dict[str, Any]], Any]
    read_dtype: Callable[[Any], np.dtype[Any]]
    read_array: Callable[..., tuple[ManifestArray | VariableLengthArray, Any]]
    group_keys: Collection[str] = ("zarr_format", "node_type", "attributes", CONSOLIDATED)


def _read_v2_array(
    node: Node, manifests: Manifests, attributes: Mapping[str, Any], types: Mapping[str, Any]
) -> tuple[ManifestArray | VariableLengthArray, Any]:
    """Return an array of Zarr v2, and its attribute ``_FillValue`` or None."""
    manifest = manifests([read_chunk_grid(node)], 0)[0].manifest
    attribute = attributes.get("_FillValue")
    if node["dtype"] == "|O":
        values, fill = strings_from_zarr_v2(node, manifest)
        return values, attribute if fill is None else fill
    array = array_from_zarr_v2(node, manifest)
    fill = fill_from_zarr_v2(node.get("fill_value"), array.dtype)
    # as in xarray, the fill value of Zarr v2 replaces the netCDF attribute, except for raw bytes
    # and
    # compound types, which are not masked
    return array, attribute if fill is None or array.dtype.kind == "V" else fill


def _read_v3_array(
    node: Node, manifests: Manifests, attributes: Mapping[str, Any], types: Mapping[str, Any]
) -> tuple[ManifestArray | VariableLengthArray, Any]:
    """Return an array of Zarr v3, and its attribute ``_FillValue`` or None."""
    node, manifests = expand_shards(node, manifests)
    attribute = attributes.get("_FillValue")
    if is_variable_length(node):
        return strings_from_v3(node, manifests), attribute
    array = array_from_v3(node, manifests)
    if attribute is not None and "_FillValue" not in types:
        attribute = fill_from_attribute(attribute, array.dtype)
    return array, attribute


V2 = ZarrVersion(
    2,
    check_zarr_v2,
    lambda node, attributes: attributes.pop(DIMENSIONS, None),
    lambda node: dtype_from_zarr_v2(node["dtype"]),
    _read_v2_array,
)
V3 = ZarrVersion(
    3,
    check_zarr_v3,
    lambda node, attributes: node.get("dimension_names"),
    lambda node: data_type_from_v3(node["data_type"]),
    _read_v3_array,
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
    nodes: dict[str, Node] = {}
    is_in_array: dict[str, bool] = {}

    def check_in_array(folder: str) -> bool:
        # a loop, since sets of other tools may be nested deeper than Python's recursion limit
        ancestors = [folder]
        while folder and folder not in is_in_array and folder not in arrays:
            folder = folder.rpartition("/")[0]
            ancestors.append(folder)
        is_in_array.update(dict.fromkeys(ancestors, is_in_array.get(folder, folder in arrays)))
        return is_in_array[folder]

    for key in metadata:
        path = key.rpartition("/")[0]
        if not INVALID_NAMES.isdisjoint(key.split("/")):
            # keep the invalid key as a path, which reading groups rejects
            nodes[key] = {}
        if path in nodes or check_in_array(path.rpartition("/")[0]):
            continue
        zarray = metadata[f"{path}/.zarray"] if path in arrays else {}
        nodes[path] = {
            **(zarray if isinstance(zarray, Mapping) else {}),
            "zarr_format": 2,
            "node_type": "array" if path in arrays else "group",
            "attributes": metadata.get(f"{path}/.zattrs" if path else ".zattrs", {}),
        }
    return nodes


def make_single_manifest_finder(
    find_manifest: Callable[[str, tuple[int, ...]], ChunkManifest],
) -> FindParts:
    """Return a function that finds the parts of arrays with one manifest each.

    ``find_manifest`` returns that manifest, given the path of an array and its chunk grid.
    """

    def find_parts(path: str, node: Node) -> Manifests:
        return lambda grids, numbered: [
            ManifestPart(0, (0,) * len(grids[0]), find_manifest(path, grids[0]))
        ]

    return find_parts


class MemberNames(NamedTuple):
    """The names of the members of a group, in order."""

    arrays: dict[str, None]
    groups: dict[str, None]


@dataclass(frozen=True)
class GroupBuilder:
    """Builds groups from the metadata of all nodes, by path.

    ``root`` is the url of the set, for errors. ``notes`` are facts that plain Zarr cannot express,
    ``arrays`` and ``groups`` by path; sets of other tools have none. ``find_parts`` returns the
    references of an array. ``skip`` are names of variables to leave out.
    """

    root: str
    nodes: Mapping[str, Node]
    notes: Mapping[str, Any]
    find_parts: FindParts
    skip: frozenset[str] = frozenset()
    version: ZarrVersion = V3

    def read_group(self, path: str | None = None) -> ManifestGroup:
        """Return the group at a path, with its subgroups."""
        with explain_malformed(self.root):
            if invalid := [
                path for path in self.nodes if path and INVALID_NAMES & {*path.split("/")}
            ]:
                raise FormatError(
                    f"{self.root}: the path {invalid[0]!r} has a part that is not a name; the "
                    f"metadata is damaged"
                )
            return self._read_group(normalise_group_path(path, lambda p: self._members[p].groups))

    @cached_property
    def _members(self) -> Mapping[str, MemberNames]:
        """The members of every group by path, collected in one pass over all nodes."""
        members: dict[str, MemberNames] = defaultdict(lambda: MemberNames({}, {}))
        for path, node in self.nodes.items():
            names = path.split("/") if path else []
            for depth, name in enumerate(names, 1):
                parent = members["/".join(names[: depth - 1])]
                is_group = depth < len(names) or node.get("node_type") == "group"
                (parent.groups if is_group else parent.arrays)[name] = None
        return members

    def _read_group(self, path: str) -> ManifestGroup:
        """Return the group at a valid path."""
        prefix = f"{path}/" if path else ""
        members, notes = self._members[path], self._get_notes("groups", path)
        problems: dict[str, VirtualdsError] = {}
        variables, left_out = dict[str, ManifestVariable](), dict[str, ManifestVariable]()
        for name in members.arrays:
            if name in self.skip:
                left_out[name] = self._read_or_add_problem(
                    self._describe_left_out, prefix + name, {}
                )
            else:
                variables[name] = self._read_or_add_problem(
                    self._read_variable, prefix + name, problems
                )
        groups = {name: self._read_group(prefix + name) for name in members.groups}
        encoding = {"unlimited_dims": set(notes.get("unlimited_dims", ()))}
        node = self.nodes.get(path, {"zarr_format": self.version.number})
        try:
            if (zarr_format := node.get("zarr_format")) != self.version.number:
                raise FormatError(f"its zarr_format is {zarr_format!r}, not {self.version.number}")
            check_keys(node, self.version.group_keys)
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
        """Return the notes on the array or group at a path."""
        notes: Mapping[str, Any] = self.notes.get(kind, {}).get(path, {})
        return notes

    def _read_attributes(self, node: Node, notes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of a node, with the types in its notes."""
        types = notes.get("attributes", {})
        attributes = node.get("attributes")
        attributes = {} if attributes is None else attributes
        return {name: from_json(value, types.get(name)) for name, value in attributes.items()}

    def _read_or_add_problem(
        self,
        read: Callable[[str, Node], ManifestVariable],
        path: str,
        problems: dict[str, VirtualdsError],
    ) -> ManifestVariable:
        """Return the variable at a path, or an unreadable one that is added to the problems."""
        node = self.nodes[path]

        def read_checked() -> ManifestVariable:
            self.version.check(node)
            return read(path, node)

        attributes = node.get("attributes")
        attributes = dict(attributes) if isinstance(attributes, dict) else {}
        names = self.version.pop_dimension_names(node, attributes)
        shape = node.get("shape")
        return read_variable_or_problem(read_checked, path, self.root, shape, names, problems)

    def _read_dims(self, node: Node, attributes: dict[str, Any]) -> tuple[str, ...]:
        """Return the dimensions of an array, and remove them from its attributes."""
        names, shape = self.version.pop_dimension_names(node, attributes), node["shape"]
        names = [None] * len(shape) if names is None else names
        if len(names) != len(shape):
            raise FormatError(f"dimensions {tuple(names)} for an array of shape {list(shape)}")
        are_named = None not in names
        return tuple(names) if are_named else name_axes(shape, names)

    def _describe_left_out(self, path: str, node: Node) -> ManifestVariable:
        """Return the dimensions, dtype and attributes of a variable that is left out."""
        attributes = self._read_attributes(node, self._get_notes("arrays", path))
        dims = self._read_dims(node, attributes)
        return describe_left_out(dims, self.version.read_dtype(node), attributes)

    def _read_variable(self, path: str, node: Node) -> ManifestVariable:
        """Return the variable at a path."""
        notes = self._get_notes("arrays", path)
        attributes = self._read_attributes(node, notes)
        dims = self._read_dims(node, attributes)
        parts, types = self.find_parts(path, node), notes.get("attributes", {})
        array, fill = self.version.read_array(node, parts, attributes, types)
        if fill is not None:
            attributes["_FillValue"] = fill
        if isinstance(array, ManifestArray):
            encoding = _restore_encoding(array, dims, notes, self.root)
            return ManifestVariable(dims, array, attributes, encoding)
        data, encoding = array.load_if_small()
        return ManifestVariable(dims, data, attributes, _restore_string_encoding(encoding, notes))


# ---------------------------------------------------------------------- encodings


def _restore_encoding(
    array: ManifestArray, dims: tuple[str, ...], notes: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Return the encoding of a variable of the set at ``source``, with entries of its notes."""
    encoding = describe_storage(array, dims)
    encoding |= (recorded := notes.get("encoding", {}))
    for name, value in recorded.items():
        # Python's json accepts NaN and Infinity, which are not JSON
        if isinstance(value, float) and not isfinite(value):
            raise FormatError(
                f"{source}: the set notes {value} as {name!r} of a variable; the set is damaged, "
                f"restore it or write it again"
            )
    if encoding["chunksizes"] is not None:
        encoding["chunksizes"] = tuple(encoding["chunksizes"])
    if any(encoding[name] for name in NO_FILTERS):
        # filtered data are chunked, even if chunks differ in shape
        encoding["contiguous"] = False
    if encoding["contiguous"]:
        encoding["chunksizes"] = None
        encoding.pop("preferred_chunks", None)
    encoding["dtype"] = array.dtype
    if "enum" in notes:
        encoding["dtype"] = np.dtype(array.dtype, metadata=dict(notes["enum"]))
    if "least_significant_digit" in notes:
        encoding["least_significant_digit"] = notes["least_significant_digit"]
    return encoding | {"source": source, "original_shape": array.shape}


def _restore_string_encoding(
    encoding: Mapping[str, Any], notes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the encoding of strings, with the character axis of the source if notes have it."""
    if "characters" not in notes:
        return dict(encoding)
    characters = dict(notes["characters"])
    restored = {**encoding, "dtype": CHARACTER}
    # xarray takes the last entry of original_shape for the length of the character axis
    shape, length = restored.pop("original_shape"), characters.pop("length", None)
    if length is not None:
        restored["original_shape"] = (*shape, length)
    return restored | characters
