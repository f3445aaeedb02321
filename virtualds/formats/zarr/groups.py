"""Read the metadata of a Zarr hierarchy, of version 2 or 3, as groups of variables.

Arrays of variable-length strings are read and decoded on demand. numpy represents such strings as
objects, so chunks cannot be decoded directly into the result. Therefore these arrays are not
virtual arrays.
"""

from __future__ import annotations

import base64
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import isfinite, prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import (
    ManifestGroup,
    ManifestVariable,
    count_selected,
    describe_left_out,
    name_axes,
    normalise_group_path,
    resolve_index,
)
from virtualds.bounds import check_selection
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import INLINE, MISSING, Ints
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_zarr_v2, codec_from_zarr_v3
from virtualds.codecs.codec import NO_FILTERS, Codec, CodecError
from virtualds.errors import (
    FormatError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
    make_damage_error,
)
from virtualds.formats import explain_malformed, read_variable_or_problem
from virtualds.formats.referenced_files import fetch_chunk
from virtualds.formats.zarr import CONSOLIDATED, DIMENSIONS, INVALID_NAMES
from virtualds.formats.zarr.codecs import parse_order
from virtualds.formats.zarr.data_types import (
    BYTES,
    DTYPES,
    SERIALISERS,
    TEXT,
    data_type_from_v3,
    decode_strings,
    dtype_from_zarr_v2,
    fill_from_attribute,
    fill_from_zarr_v2,
    parse_extension,
)
from virtualds.formats.zarr.shards import expand_shards
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
    axes_from_v3,
    build_part_fragment,
    check_keys,
    check_zarr_v3,
)
from virtualds.json_values import from_json
from virtualds.options import get_options
from virtualds.reading.threads import HostSlot, Prefetcher, run_all
from virtualds.streams import Buffer

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
    # and compound types, which are not masked
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

    def is_below_array(folder: str) -> bool:
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
        if path in nodes or is_below_array(path.rpartition("/")[0]):
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
                raise make_damage_error(
                    f"{self.root}: the path {invalid[0]!r} has a part that is not a name",
                    "metadata",
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
        """Return the variable at a path, or an unreadable one whose error is added to problems."""
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


# ---------------------------------------------------------------------- strings of varying length

Objects = npt.NDArray[Any]
ChunkIndex = tuple[int, ...]

STRING_ERRORS = (CodecError, ValueError, RuntimeError, OSError, EOFError, MemoryError, zlib.error)
"""Errors of decoding damaged bytes."""


@dataclass(frozen=True, eq=False)
class VariableLengthArray:
    """A chunked array of strings or bytes; ``serialiser`` is `TEXT` or `BYTES`.

    ``codecs`` are in the order in which they encode a chunk. ``layout`` is the axis of the array
    for each stored axis, and ``fill`` the value of missing chunks.
    """

    shape: tuple[int, ...]
    serialiser: str
    codecs: tuple[Codec, ...]
    layout: tuple[int, ...]
    fill: str | bytes
    fragments: tuple[Fragment, ...]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values: objects."""
        return DTYPES[self.serialiser]

    def load_if_small(self) -> tuple[Objects | VariableLengthArray, dict[str, Any]]:
        """Return the values if the array is small, else the array, and the encoding of a variable.

        xarray immediately converts strings with the dtype ``str`` in the encoding, like those of
        netCDF. Strings of a large array have the dtype of objects, so that they are not read.
        """
        is_large = prod(self.shape) * self.dtype.itemsize > get_options().small_variable
        kind = self.dtype if is_large or self.serialiser != TEXT else str
        encoding = {"dtype": kind, "original_shape": self.shape}
        return (self if is_large else self.read((slice(None),) * self.ndim)), encoding

    def read(self, key: Sequence[Any]) -> Objects:
        """Return a selection; the key has an int, a slice, or a 1-D array of positions per axis."""
        counts = list(map(count_selected, key, self.shape))
        check_selection(max(prod(counts), *counts, 0) * self.dtype.itemsize)
        positions = list(map(resolve_index, key, self.shape))
        out = np.full(
            [positions_along_axis.size for positions_along_axis in positions], self.fill, self.dtype
        )
        for fragment in self.fragments:
            self._read_fragment(fragment, positions, out)
        dropped = tuple(i for i, k in enumerate(key) if not isinstance(k, slice) and not np.ndim(k))
        return out.squeeze(dropped)

    def _read_fragment(self, fragment: Fragment, positions: Sequence[Ints], out: Objects) -> None:
        """Read the selected elements of a fragment into ``out``."""
        columns = zip(fragment.axes, fragment.start, positions, strict=True)
        selected = [
            _find_selected_chunks(axis, elements - start) for axis, start, elements in columns
        ]
        if not all(selected):
            return
        manifest, first = fragment.manifest, [min(chunks) for chunks in selected]
        for axis, chunks in enumerate(selected):
            manifest = manifest.take(axis, slice(min(chunks), max(chunks) + 1))
        manifest = manifest.loaded()
        chunk_ids = (
            tuple(p - f for p, f in zip(at, first, strict=True)) for at in product(*selected)
        )
        existing = (chunk_id for chunk_id in chunk_ids if manifest.file[chunk_id] != MISSING)

        def find_slot(chunk_id: ChunkIndex) -> HostSlot | None:
            row = manifest.lookup(chunk_id)
            url = None if row.file == INLINE else manifest.files[row.file].url
            return None if url is None else HostSlot.from_url(url, row.length)

        def fetch(chunk_id: ChunkIndex) -> bytes:
            return fetch_chunk(manifest, chunk_id)

        def finish(item: tuple[ChunkIndex, bytes | None]) -> None:
            chunk_id, data = item
            number = tuple(p + f for p, f in zip(chunk_id, first, strict=True))
            selections = [chunks[n] for chunks, n in zip(selected, number, strict=True)]
            data = fetch(chunk_id) if data is None else data
            try:
                values = self.decode(data, [selection.encoded for selection in selections])
            except STRING_ERRORS as error:
                row = manifest.lookup(chunk_id)
                is_inline = row.file == INLINE
                url = "bytes held inline" if is_inline else manifest.files[row.file].url
                problem = ReadError(
                    f"{url}: the strings of a chunk do not decode ({error}); restore the file"
                )
                problem.add_note(f"chunk {number}")
                raise problem from error
            outer, inner = ([s[i] for s in selections] for i in (1, 0))
            out[np.ix_(*outer)] = values[np.ix_(*inner)]

        run_all(Prefetcher(existing, find_slot, fetch), finish)

    def decode(self, data: Buffer, encoded: Sequence[int]) -> Objects:
        """Return the strings of a chunk with the stored shape ``encoded``, in axes of the array."""
        for codec in self.codecs[::-1]:
            data = codec.decode(data, None)
        shape = [encoded[axis] for axis in self.layout]
        # check the count first, since damaged bytes could request any amount of memory
        if (count := int.from_bytes(data[:4], "little")) != prod(shape):
            raise ValueError(f"{count} strings, not {prod(shape)}")
        values = decode_strings(bytes(data), self.serialiser).reshape(shape)
        return values.transpose(np.argsort(self.layout))


# ---------------------------------------------------------------------- strings of Zarr v2


def strings_from_zarr_v2(
    metadata: Mapping[str, Any], manifest: ChunkManifest
) -> tuple[VariableLengthArray, str | bytes | None]:
    """Return the array of a ``.zarray`` with dtype ``|O``, and its fill value or None.

    Without a fill value, missing chunks read as empty strings.
    """
    first, *rest = metadata.get("filters") or [{"id": None}]
    serialiser = first.get("id")
    if serialiser not in DTYPES:
        raise UnsupportedError(
            f"objects encoded by filter {serialiser!r}: only those encoded by {sorted(DTYPES)} are "
            f"read, since others may contain code; write the array again"
        )
    steps = [*rest, metadata.get("compressor")]
    codecs = tuple(codec_from_zarr_v2(step) for step in steps if step is not None)
    shape, chunks = tuple(metadata["shape"]), metadata["chunks"]
    axes = tuple(ChunkAxis.regular(n, max(c, 1)) for n, c in zip(shape, chunks, strict=True))
    layout = tuple(range(len(shape)))
    layout = layout if metadata.get("order") != "F" else layout[::-1]
    value = metadata.get("fill_value")
    # for bytes, 0 means no fill value
    is_none = value is None or (serialiser == BYTES and value == 0)
    fill = None if is_none else _decode_fill(str(value), serialiser)
    fragments = (Fragment.whole(axes, manifest),)
    empty = fill if fill is not None else "" if serialiser == TEXT else b""
    return VariableLengthArray(shape, serialiser, codecs, layout, empty, fragments), fill


# ---------------------------------------------------------------------- selected chunks of strings


class _AxisSelection(NamedTuple):
    """A selection along an axis of a chunk: positions in it and in the result, and its length."""

    inner: Ints
    outer: Ints
    encoded: int


def _find_selected_chunks(axis: ChunkAxis, positions: Ints) -> dict[int, _AxisSelection]:
    """Return the selection within each chunk along an axis, by the index of the chunk."""
    outer = np.flatnonzero((positions >= 0) & (positions < axis.size))
    inside = positions[outer]
    chunk = axis.locate(inside)
    selections = {}
    for number in np.unique(chunk).tolist():
        edges, encoded, inset = axis.slabs(number, number + 1)
        member = chunk == number
        inner = inside[member] - edges[0] + inset[0]
        selections[number] = _AxisSelection(inner, outer[member], int(encoded[0]))
    return selections


# ---------------------------------------------------------------------- strings of Zarr v3


def is_variable_length(metadata: Mapping[str, Any]) -> bool:
    """Return whether the elements of an array are variable-length strings."""
    return parse_extension(metadata["data_type"], "data_type")[0] in SERIALISERS


def strings_from_v3(metadata: Mapping[str, Any], manifests: Manifests) -> VariableLengthArray:
    """Return the array of strings that a ``zarr.json`` describes."""
    shape = tuple(metadata["shape"])
    serialiser = SERIALISERS[parse_extension(metadata["data_type"], "data_type")[0]]
    layout, codecs = tuple(range(len(shape))), []
    chain = [parse_extension(entry, "codec") for entry in metadata["codecs"]]
    names = [name for name, _ in chain]
    if names.count(serialiser) != 1:
        raise UnsupportedError(
            f"codecs {names}: variable-length strings are read only if {serialiser!r} encodes "
            f"them; open the data with zarr-python"
        )
    position = names.index(serialiser)
    for name, config in chain[:position]:
        if name != "transpose":
            raise UnsupportedError(
                f"codec {name!r} before {serialiser!r}: variable-length strings are only "
                f"transposed; open the data with zarr-python"
            )
        layout = tuple(layout[i] for i in parse_order(config, len(shape)))
    for name, config in chain[position + 1 :]:
        codecs.append(codec_from_zarr_v3(name, config, np.dtype("u1")))
    axes = axes_from_v3(shape, metadata["chunk_grid"])
    grid = tuple(axis.nchunks for axis in axes)
    parts = manifests([grid], 0) if prod(grid) else []
    fragments = tuple(build_part_fragment(part, axes) for part in parts)
    fill = _decode_fill(metadata["fill_value"], serialiser)
    return VariableLengthArray(shape, serialiser, tuple(codecs), layout, fill, fragments)


def _decode_fill(value: Any, serialiser: str) -> str | bytes:
    """Return a fill value; that of bytes is base64 or a list of numbers."""
    try:
        if serialiser == BYTES:
            is_string = isinstance(value, str)
            return base64.b64decode(value, validate=True) if is_string else bytes(list(value))
    except (TypeError, ValueError) as error:
        raise FormatError(
            f"fill_value {value!r}: it is neither base64 nor a list of bytes ({error})"
        ) from error
    if not isinstance(value, str):
        raise make_damage_error(f"fill_value {value!r}: it is not a string", "metadata")
    return value
