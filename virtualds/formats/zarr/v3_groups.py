"""Read the metadata of a Zarr v3 hierarchy as groups of variables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from virtualds.arrays.group import (
    ManifestGroup,
    ManifestVariable,
    describe_left_out,
    name_axes,
    normalise_group_path,
)
from virtualds.errors import FormatError, VirtualdsError
from virtualds.formats.referenced_files import MALFORMED_ERRORS, malformed_error
from virtualds.formats.undecodable import read_variable_or_problem
from virtualds.formats.zarr.data_types import data_type_from_v3
from virtualds.formats.zarr.document import CONSOLIDATED
from virtualds.formats.zarr.encoding_notes import restore_encoding, restore_text_encoding
from virtualds.formats.zarr.shards import expand_shards
from virtualds.formats.zarr.strings import is_varying, varying_from_v3
from virtualds.formats.zarr.v2_types import fill_from_attribute
from virtualds.formats.zarr.v3_arrays import Manifests, array_from_v3
from virtualds.formats.zarr.v3_metadata import check_extras, check_zarr_v3
from virtualds.json_values import from_json

GROUP_KEYS = ("zarr_format", "node_type", "attributes", CONSOLIDATED)
"""Keys that the metadata of a group may have."""


class MemberNames(NamedTuple):
    """The names of the members of a group, in order."""

    arrays: dict[str, None]
    groups: dict[str, None]


@dataclass(frozen=True)
class NodesReader:
    """Makes groups of the metadata of all nodes.

    Parameters
    ----------
    root : str
        Url of the folder, for errors.
    nodes : mapping of str to mapping
        Metadata by path; that of the root is under ``""``.
    notes : mapping
        Facts beyond plain Zarr: ``arrays`` and ``groups``, by path.
    parts_of : callable
        Takes path and metadata of an array, and returns its `Manifests`.
    skip : set of str
        Names of variables to leave out.
    """

    root: str
    nodes: Mapping[str, Mapping[str, Any]]
    notes: Mapping[str, Any]
    parts_of: Callable[[str, Mapping[str, Any]], Manifests]
    skip: frozenset[str] = frozenset()

    def read_group(self, path: str | None) -> ManifestGroup:
        """Return the group at a path with everything below it.

        Raises
        ------
        FileNotFoundError
            There is no such group.
        FormatError
            The metadata are invalid.
        UnsupportedError
            They use an unknown extension.
        """
        try:
            if odd := [n for n in self.nodes if n and {"", ".", ".."} & set(n.split("/"))]:
                raise FormatError(
                    f"{self.root}: the path {odd[0]!r} has a part that is not a name; the metadata "
                    f"is damaged"
                )
            return self._read_group(normalise_group_path(path, lambda p: self._members[p].groups))
        except MALFORMED_ERRORS as error:
            if isinstance(error, VirtualdsError):
                raise
            raise malformed_error(self.root, error) from error

    @cached_property
    def _members(self) -> Mapping[str, MemberNames]:
        """The members of every group, by path; found in one pass over all nodes."""
        found: dict[str, MemberNames] = defaultdict(lambda: MemberNames({}, {}))
        for key, node in self.nodes.items():
            names = key.split("/") if key else []
            for depth, name in enumerate(names, 1):
                holder = found["/".join(names[: depth - 1])]
                if depth < len(names) or node.get("node_type") == "group":
                    holder.groups[name] = None
                else:
                    holder.arrays[name] = None
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
        attributes = self._read_group_attributes(path, notes)
        groups = {name: self._read_group(prefix + name) for name in here.groups}
        encoding = {"unlimited_dims": set(notes.get("unlimited_dims", ()))}
        try:
            return ManifestGroup(
                variables, attributes, groups, encoding, problems, left_out=left_out
            )
        except FormatError as error:
            error.locate(f"group /{path}", self.root)
            raise

    def _read_group_attributes(self, path: str, notes: Mapping[str, Any]) -> dict[str, Any]:
        node = self.nodes.get(path, {"zarr_format": 3})
        try:
            if node.get("zarr_format") != 3:
                raise FormatError(f"its zarr_format is {node.get('zarr_format')!r}, not 3")
            check_extras(node, GROUP_KEYS)
            return self._read_attributes(node, notes)
        except VirtualdsError as error:
            error.locate(f"group /{path}", self.root)
            raise

    def _get_notes(self, kind: str, path: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.notes.get(kind, {}).get(path, {})
        return found

    def _read_attributes(self, node: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
        types = notes.get("attributes", {})
        found = node.get("attributes") or {}
        return {name: from_json(value, types.get(name)) for name, value in found.items()}

    def _read_named(
        self,
        read: Callable[[str, Mapping[str, Any]], ManifestVariable],
        path: str,
        problems: dict[str, VirtualdsError],
    ) -> ManifestVariable:
        node = self.nodes[path]

        def read_checked() -> ManifestVariable:
            check_zarr_v3(node)
            return read(path, node)

        shape, names = node.get("shape"), node.get("dimension_names")
        return read_variable_or_problem(read_checked, path, self.root, shape, names, problems)

    def _describe_left_out(self, path: str, node: Mapping[str, Any]) -> ManifestVariable:
        attributes = self._read_attributes(node, self._get_notes("arrays", path))
        return describe_left_out(_dims_of(node), data_type_from_v3(node["data_type"]), attributes)

    def _read_variable(self, path: str, node: Mapping[str, Any]) -> ManifestVariable:
        notes = self._get_notes("arrays", path)
        attributes = self._read_attributes(node, notes)
        dims = _dims_of(node)
        node, parts = expand_shards(node, self.parts_of(path, node))
        if is_varying(node):
            data, encoding = varying_from_v3(node, parts).settle()
            encoding = restore_text_encoding(encoding, notes)
            return ManifestVariable(dims, data, attributes, encoding)
        array = array_from_v3(node, parts)
        if "_FillValue" in attributes and "_FillValue" not in notes.get("attributes", {}):
            attributes["_FillValue"] = fill_from_attribute(attributes["_FillValue"], array.dtype)
        encoding = restore_encoding(array, dims, notes, self.root)
        return ManifestVariable(dims, array, attributes, encoding)


def _dims_of(node: Mapping[str, Any]) -> tuple[str, ...]:
    shape = node["shape"]
    return name_axes(shape, node.get("dimension_names") or [None] * len(shape))
