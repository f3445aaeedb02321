"""The plan of writing a group as Zarr v3: nodes, and where chunks lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.subchunks import to_regular_chunks
from virtualds.errors import LOAD_OR_LEAVE_OUT, UnsupportedError, VirtualdsError, cannot_hold
from virtualds.formats.zarr.document import Document, is_node_path, list_value_chunks
from virtualds.formats.zarr.encoding_notes import list_declared
from virtualds.formats.zarr.v2_obstacles import unsupported_reasons
from virtualds.formats.zarr.v2_types import fill_to_attribute, is_exact
from virtualds.formats.zarr.v3_arrays import ManifestPart, array_to_v3
from virtualds.formats.zarr.v3_metadata import axes_from_v3
from virtualds.formats.zarr.values import NativeArray, values_to_v3
from virtualds.json_values import to_json

ZARR_V3 = (
    "write it as zarr-v3, which holds all of it (format='zarr-v3', or a name that ends in .zarr)"
)
"""What to do about a dataset that another format cannot hold."""


@dataclass(frozen=True)
class PlannedArray:
    """An array to write: its metadata, and its chunks or references.

    If it is ``known``, the set already holds everything but its metadata.
    """

    metadata: dict[str, Any]
    parts: list[ManifestPart]
    values: NativeArray | None
    known: bool = False


class WritePlan(NamedTuple):
    """The nodes to write, and their notes.

    ``nodes`` are groups, as their metadata, and arrays, by path; ``notes`` are facts that Zarr
    cannot express, as in `Document`.
    """

    nodes: dict[str, dict[str, Any] | PlannedArray]
    notes: dict[str, dict[str, Any]]


def plan_writing(
    group: ManifestGroup,
    root: str,
    before: Document | None = None,
    form: str = "zarr-v3",
    grids: tuple[str, ...] = (),
) -> WritePlan:
    """Return the plan of writing a group.

    Parameters
    ----------
    group : ManifestGroup
    root : str
        Url of the folder to write.
    before : Document, optional
        The snapshot of an existing set.
    form : str
        Name of the format, for errors.
    grids : tuple of str
        For a format that holds plain Zarr only: the chunk grids that it allows.

    Raises
    ------
    UnsupportedError
        Zarr v3 has no form for some variables; all of them are named.
    """
    planner = _Planner(root, before, grids)
    planned = list(planner.plan(group))
    if problems := [problem for _, _, found in planned for problem in found]:
        raise cannot_hold(root, form, problems, LOAD_OR_LEAVE_OUT)
    return WritePlan({path: node for path, node, _ in planned}, planner.notes)


def list_references(
    group: ManifestGroup, root: str, before: Document | None = None
) -> dict[str, list[ManifestPart]]:
    """Return the parts of the manifests of all arrays that a set does not hold itself."""
    planned = plan_writing(group, root, before).nodes
    arrays = {path: node for path, node in planned.items() if isinstance(node, PlannedArray)}
    return {path: node.parts for path, node in arrays.items() if node.values is None}


@contextmanager
def suggest_zarr_v3(group: ManifestGroup, url: str) -> Iterator[None]:
    """Suggest zarr-v3 in errors about a group that another format cannot hold."""
    try:
        yield
    except UnsupportedError as error:
        try:
            plan_writing(group, url)
        except VirtualdsError:
            raise error from None
        message, *details = f"{error}".split("\n")
        said, _, other = message.partition("; ")
        remedy = f"{ZARR_V3}, or {other}" if other else ZARR_V3
        raise UnsupportedError("\n".join([f"{said}; {remedy}", *details])) from None


@contextmanager
def suggest_instead(remedy: str, zarr_v3: str = "") -> Iterator[None]:
    """Replace the remedy for what a format cannot hold, in a call that takes no dataset.

    ``zarr_v3`` is said before it where zarr-v3 holds what the format cannot.
    """
    try:
        yield
    except UnsupportedError as error:
        message, *details = f"{error}".split("\n")
        said, _, other = message.partition("; ")
        if not other.endswith(LOAD_OR_LEAVE_OUT):
            raise
        first = zarr_v3 if other.startswith(ZARR_V3) else ""
        raise UnsupportedError("\n".join([f"{said}; {first}{remedy}", *details])) from None


@dataclass(frozen=True)
class _Planner:
    """Plans nodes one by one, and takes notes."""

    root: str
    before: Document | None
    grids: tuple[str, ...] = ()
    notes: dict[str, dict[str, Any]] = field(default_factory=lambda: {"groups": {}, "arrays": {}})

    def plan(self, group: ManifestGroup) -> Iterator[tuple[str, Any, list[str]]]:
        """Yield every node: its path, its plan, and its problems."""
        for path, part in group.walk():
            prefix = f"{path}/" if path else ""
            try:
                yield path, self._plan_group(path, part), []
            except UnsupportedError as error:
                yield path, None, [f"{path or 'the dataset'}: {error}"]
            for name, variable in part.variables.items():
                try:
                    yield prefix + name, self._plan_variable(prefix + name, variable), []
                except UnsupportedError as error:
                    yield prefix + name, None, [f"{prefix}{name}: {error}"]

    def _plan_group(self, path: str, group: ManifestGroup) -> dict[str, Any]:
        if path:
            _check_name(path)
        attributes, types = to_json(group.attributes)
        notes: dict[str, Any] = {"attributes": types} if types else {}
        if unlimited := sorted(group.encoding.get("unlimited_dims", ())):
            notes["unlimited_dims"] = unlimited
        if notes:
            self.notes["groups"][path] = notes
        return {"zarr_format": 3, "node_type": "group", "attributes": attributes}

    def _plan_variable(self, path: str, variable: ManifestVariable) -> PlannedArray:
        _check_name(path)
        data = variable.data if isinstance(variable.data, ManifestArray) else None
        values, parts = None, list[ManifestPart]()
        if data is None:
            read = variable.read()
            values = values_to_v3(read, self._find_lengths(path))
            if values is None and read.dtype.hasobject:
                raise UnsupportedError(
                    f"its members {read.dtype} hold strings or arrays of varying length, for which "
                    f"Zarr has no form; leave the variable out with ds.drop_vars"
                )
            if values is None:
                data = ManifestArray.from_values(read)
        known = data is not None and self._has_known_values(path, data)
        if values is not None:
            metadata = values.metadata
        elif known and self.before is not None:
            metadata = self.before.nodes[path]
        elif data is not None:
            # files without references may have changed
            metadata, parts = describe_on_grids(data.pruned(), self.grids)
        is_held = values is not None or known
        attributes, notes = self._encode_attributes(variable, data, is_held=is_held)
        if notes:
            self.notes["arrays"][path] = notes
        metadata = metadata | {
            "attributes": attributes,
            "dimension_names": list(variable.dims),
            "storage_transformers": metadata.get("storage_transformers", []),
        }
        return PlannedArray(metadata, parts, values, bool(known))

    def _find_lengths(self, path: str) -> tuple[int, ...]:
        """Return the lengths of the chunks, along the first axis, of values that the set has."""
        node = self.before.nodes.get(path) if self.before else None
        if node is None or not node["shape"] or path not in self.before.notes.get("values", {}):  # type: ignore[union-attr]
            return ()
        return tuple(axes_from_v3(node["shape"], node["chunk_grid"])[0].lengths.tolist())

    def _has_known_values(self, path: str, array: ManifestArray) -> bool:
        """Say whether an array consists of the values that the set already has at its path."""
        noted = self.before.notes.get("values", {}).get(path) if self.before else None
        if noted is None or self.before is None or len(array.fragments) != 1:
            return False
        same = list(array.shape) == self.before.nodes[path]["shape"]
        manifest = array.manifest.loaded()
        urls = [manifest.files[n].url for n in manifest.file.ravel().tolist() if n >= 0]
        return same and urls == [
            f"{self.root}/{c.get_path(path)}" for c in list_value_chunks(noted)
        ]

    def _encode_attributes(
        self, variable: ManifestVariable, data: ManifestArray | None, *, is_held: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return attributes as JSON, and notes on what JSON and references do not show."""
        attributes = dict(variable.attributes)
        dtype = data.dtype if data is not None else variable.data.dtype
        fill = attributes.get("_FillValue")
        exact = fill is not None and is_exact(fill, dtype)
        if exact:
            # as xarray spells it in Zarr v3
            attributes["_FillValue"] = fill_to_attribute(fill, dtype)
        plain, types = to_json(attributes)
        if exact:
            types.pop("_FillValue", None)
        notes = list_declared(variable, None if is_held else data)
        return plain, notes | ({"attributes": types} if types else {})


def describe_on_grids(
    array: ManifestArray, grids: tuple[str, ...]
) -> tuple[dict[str, Any], list[ManifestPart]]:
    """Describe an array in Zarr v3 on one of some chunk grids; on any grid if there are none.

    Uncompressed chunks are cut if that makes such a grid.

    Raises
    ------
    UnsupportedError
        The array lies on another chunk grid.
    """
    metadata, parts = array_to_v3(array)
    if not grids or metadata["chunk_grid"]["name"] in grids:
        return metadata, parts
    cut, moved = array_to_v3(to_regular_chunks(array, permuted=True))
    if cut["chunk_grid"]["name"] in grids:
        return cut, moved
    found = unsupported_reasons(array) or ["Zarr has no plain form for how it is stored"]
    hint = ""
    if metadata["chunk_grid"]["name"] == "rectilinear":
        hint = " (rectilinear=True writes it for those who have that grid)"
    raise UnsupportedError(f"{', '.join(found)}{hint}")


def list_obstacles_on(variable: ManifestVariable, grids: tuple[str, ...]) -> list[str]:
    """Return why Zarr v3 on some chunk grids cannot describe a virtual variable."""
    try:
        describe_on_grids(variable.data, grids)  # type: ignore[arg-type]
    except UnsupportedError as error:
        return [f"{error}"]
    return []


def _check_name(path: str) -> None:
    if not is_node_path(path):
        raise UnsupportedError(
            "Zarr v3 reserves its name; rename it with ds.rename (in preprocess= where files are "
            "joined), or leave it out with drop_variables"
        )
