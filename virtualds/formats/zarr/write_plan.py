"""Plan how to write a group as Zarr: its nodes, and the references of its chunks.

`plan_writing` returns the plan for Zarr v3. `Hierarchy` is the form of a group in Zarr v2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray, is_same_scalar
from virtualds.arrays.concatenate import unify_fill
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.subchunks import to_regular_chunks
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.codecs.codec import NO_FILTERS
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import (
    LOAD_OR_LEAVE_OUT,
    UnsupportedError,
    VirtualdsError,
    make_unsupported_error,
)
from virtualds.formats.referenced_files import NumberedFiles
from virtualds.formats.zarr import (
    DIMENSIONS,
    INVALID_NAMES,
    Document,
    describe_group,
    is_node_path,
    join_node_path,
    list_value_chunks,
)
from virtualds.formats.zarr.data_types import (
    TEXT,
    dtype_from_zarr_v2,
    encode_strings,
    fill_to_attribute,
    fill_to_zarr_v2,
    is_exact,
    pack_members,
    to_string_objects,
)
from virtualds.formats.zarr.v2_arrays import (
    CHARACTER,
    ZarrArray,
    build_zarr_v2,
    describe_storage,
    list_unsupported_reasons,
    read_chunk_grid,
    to_zarr_v2,
)
from virtualds.formats.zarr.v3_arrays import (
    COMPRESSED_FROM,
    ManifestPart,
    NativeArray,
    array_to_v3,
    axes_from_v3,
    values_to_v3,
)
from virtualds.json_values import to_json
from virtualds.source_file import SourceFile, make_relative

ZARR_V3 = (
    "write it as zarr-v3, which holds all of it (format='zarr-v3', or a name that ends in .zarr)"
)
"""The remedy for a dataset that another format cannot store."""
REMEDY = f"pass on_unsupported='rewrite' to encode these chunks anew, {LOAD_OR_LEAVE_OUT}"
"""The remedy for variables that a hierarchy cannot store."""
RELATIVE = "relative_paths"
"""The note of a set with relative urls, for later writers."""
MAX_INLINE = 2**20
"""The maximum size in bytes of missing chunks of one array that are written out inline."""
CHUNK_ENCODING = ("contiguous", "chunksizes")
"""Names of encoding entries about the chunks of a variable."""
SET_ENCODING = ("zstd", "blosc", "complevel", *CHUNK_ENCODING)
"""Names of encoding entries that a set determines for values that it stores as Zarr v3."""
ListSources = Callable[[ChunkManifest], Iterable[SourceFile]]


@dataclass(frozen=True)
class PlannedArray:
    """An array to write: its metadata, and its chunks or references.

    If ``has_known_values``, the set already has the values, and only the metadata are written.
    """

    metadata: dict[str, Any]
    parts: list[ManifestPart]
    values: NativeArray | None
    has_known_values: bool = False


class WritePlan(NamedTuple):
    """The nodes to write, and their notes.

    ``nodes`` maps paths to arrays, and to the metadata of groups; ``notes`` are facts that Zarr
    cannot express, as in `Document`.
    """

    nodes: dict[str, dict[str, Any] | PlannedArray]
    notes: dict[str, dict[str, Any]]

    @property
    def arrays(self) -> dict[str, PlannedArray]:
        """The arrays by path."""
        return {path: node for path, node in self.nodes.items() if isinstance(node, PlannedArray)}


def plan_writing(
    group: ManifestGroup,
    root: str,
    before: Document | None = None,
    format_name: str = "zarr-v3",
    grids: tuple[str, ...] = (),
) -> WritePlan:
    """Return the plan for writing a group to a folder; errors name all unsupported variables.

    ``before`` is the snapshot of an existing set. ``grids`` are the chunk grids of a format that
    stores only plain Zarr.
    """
    planner = _Planner(root, before, grids)
    nodes, problems = _plan_nodes(group, planner.plan_group, planner.plan_variable)
    if problems:
        raise make_unsupported_error(root, format_name, problems, LOAD_OR_LEAVE_OUT)
    return WritePlan(nodes, planner.notes)


def collect_references(
    group: ManifestGroup, root: str, before: Document | None = None
) -> dict[str, list[ManifestPart]]:
    """Return the parts of the manifests of all virtual arrays, by path."""
    arrays = plan_writing(group, root, before).arrays
    return {path: node.parts for path, node in arrays.items() if node.values is None}


@contextmanager
def suggest_zarr_v3(group: ManifestGroup, url: str) -> Iterator[None]:
    """Suggest zarr-v3 in errors of a block about a group that another format cannot store."""
    try:
        yield
    except UnsupportedError as error:
        try:
            plan_writing(group, url)
        except VirtualdsError:
            raise error from None
        message, *details = f"{error}".split("\n")
        reason, _, other = message.partition("; ")
        remedy = f"{ZARR_V3}, or {other}" if other else ZARR_V3
        raise UnsupportedError("\n".join([f"{reason}; {remedy}", *details])) from None


@contextmanager
def suggest_instead(remedy: str, zarr_v3: str = "") -> Iterator[None]:
    """Replace the remedy for unsupported variables in errors of a block without a dataset.

    ``zarr_v3`` is put before it if zarr-v3 can store the variables.
    """
    try:
        yield
    except UnsupportedError as error:
        message, *details = f"{error}".split("\n")
        reason, _, other = message.partition("; ")
        if not other.endswith(LOAD_OR_LEAVE_OUT):
            raise
        first = zarr_v3 if other.startswith(ZARR_V3) else ""
        raise UnsupportedError("\n".join([f"{reason}; {first}{remedy}", *details])) from None


def _plan_nodes(
    group: ManifestGroup,
    plan_group: Callable[[str, ManifestGroup], Any],
    plan_variable: Callable[[str, ManifestVariable], Any],
) -> tuple[dict[str, Any], list[str]]:
    """Return the plans of all nodes by path, and all problems.

    The functions take the path of a node and the node, and raise errors with one problem per line.
    """
    planned: dict[str, Any] = {}
    problems: list[str] = []

    def plan(path: str, node: Any, function: Callable[[str, Any], Any]) -> None:
        try:
            planned[path] = function(path, node)
        except UnsupportedError as error:
            name = path or "the dataset"
            problems.extend(f"{name}: {problem}" for problem in f"{error}".split("\n"))

    for path, part in group.walk():
        plan(path, part, plan_group)
        for name, variable in part.variables.items():
            plan(join_node_path(path, name), variable, plan_variable)
    return planned, problems


def _encode_group(path: str, group: ManifestGroup, notes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a group as JSON, and add to ``notes`` what JSON cannot express."""
    attributes, types = to_json(group.attributes)
    group_notes: dict[str, Any] = {"attributes": types} if types else {}
    if unlimited := sorted(group.encoding.get("unlimited_dims", ())):
        group_notes["unlimited_dims"] = unlimited
    if group.notes:
        group_notes["sync"] = dict(group.notes)
    if group_notes:
        notes[path] = group_notes
    return attributes


def _encode_attributes(
    variable: ManifestVariable,
    dtype: np.dtype[Any],
    stored: ManifestArray | None,
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return attributes as JSON, notes on facts that JSON and references lack, and a fill value.

    The fill value is the attribute ``_FillValue`` if it has the dtype of the array, else None. The
    attribute is encoded as xarray does in Zarr v3.
    """
    attributes = dict(variable.attributes)
    fill = attributes.get("_FillValue")
    fill = fill if fill is not None and is_exact(fill, dtype) else None
    if fill is not None:
        attributes["_FillValue"] = fill_to_attribute(fill, dtype)
    encoded, types = to_json(attributes)
    if fill is not None:
        types.pop("_FillValue", None)
    notes = _list_encoding_notes(variable, stored)
    return encoded, notes | ({"attributes": types} if types else {}), fill


# ---------------------------------------------------------------------- encodings


def _list_encoding_notes(
    variable: ManifestVariable, stored: ManifestArray | None = None
) -> dict[str, Any]:
    """Return notes on the encoding entries that cannot be derived from the metadata.

    ``stored`` is the array that readers of the set will find, or None for values that the set
    stores natively.
    """
    notes: dict[str, Any] = {}
    encoding = variable.encoding
    is_text = variable.data.dtype.kind in "OUT"
    nbytes = prod(variable.data.shape) * variable.data.dtype.itemsize
    if NO_FILTERS.keys() <= encoding.keys() and not is_text:
        notes = _list_storage_notes(variable, stored)
    elif stored is None and not is_text and nbytes >= COMPRESSED_FROM:
        # the compressor of the set is not that of the source, and xarray cannot write netCDF with
        # the encoding of Blosc
        notes = {"encoding": {n: NO_FILTERS[n] for n in SET_ENCODING if n in NO_FILTERS}}
    if encoding.get("dtype") == CHARACTER and is_text:
        notes["characters"] = _describe_characters(variable)
    enum = getattr(encoding.get("dtype"), "metadata", None)
    if enum and "enum" in enum:
        members = {name: int(value) for name, value in enum["enum"].items()}
        notes["enum"] = {"enum": members, "enum_name": enum.get("enum_name")}
    if "least_significant_digit" in encoding:
        notes["least_significant_digit"] = int(encoding["least_significant_digit"])
    return notes


def _describe_characters(variable: ManifestVariable) -> dict[str, Any]:
    """Return notes on the characters of the source that became strings."""
    encoding = variable.encoding
    notes: dict[str, Any] = {
        name: str(encoding[name]) for name in ("char_dim_name", "_Encoding") if name in encoding
    }
    shape = encoding.get("original_shape", ())
    if len(shape) == variable.data.ndim + 1:
        notes["length"] = int(shape[-1])
    return notes


def _list_storage_notes(variable: ManifestVariable, stored: ManifestArray | None) -> dict[str, Any]:
    """Return notes on the storage in the source that cannot be derived from the references."""
    encoding = variable.encoding
    if stored is None:
        derived, names = dict(NO_FILTERS), [*NO_FILTERS]
        for name in SET_ENCODING:
            derived.pop(name, None)
    else:
        # the encoding may name an HDF5 filter that was skipped in all chunks
        derived = describe_storage(stored, variable.dims)
        names = [*NO_FILTERS]
    # entries about chunks describe a source only if the array has all of it
    if stored is None and encoding.get("original_shape") == variable.data.shape:
        names += CHUNK_ENCODING
    elif stored is not None and stored.nchunks <= 1:
        # values are inline if the source stored them with its metadata
        has_inline = any(fragment.manifest.inline for fragment in stored.fragments)
        is_inline = has_inline and encoding.get("original_shape") == stored.shape
        names += CHUNK_ENCODING if is_inline else CHUNK_ENCODING[:1]
    missing = object()
    differing = {
        n: encoding[n] for n in names if n in encoding and encoding[n] != derived.get(n, missing)
    }
    if (chunks := differing.pop("chunksizes", None)) is not None:
        # contiguous data have no chunks
        differing["chunksizes"] = [int(n) for n in chunks]
    return {"encoding": differing} if differing else {}


# ---------------------------------------------------------------------- Zarr v3


@dataclass(frozen=True)
class _Planner:
    """Plans nodes one by one, and collects notes."""

    root: str
    before: Document | None
    grids: tuple[str, ...] = ()
    notes: dict[str, dict[str, Any]] = field(default_factory=lambda: {"groups": {}, "arrays": {}})

    def plan_group(self, path: str, group: ManifestGroup) -> dict[str, Any]:
        """Return the metadata of a group."""
        if path:
            _check_name(path)
        return describe_group(_encode_group(path, group, self.notes["groups"]))

    def plan_variable(self, path: str, variable: ManifestVariable) -> PlannedArray:
        """Return the plan of an array."""
        _check_name(path)
        data = variable.data if isinstance(variable.data, ManifestArray) else None
        values, parts = None, list[ManifestPart]()
        if data is None:
            loaded = variable.read()
            values = values_to_v3(loaded, self._find_existing_lengths(path))
            if values is None and loaded.dtype.hasobject:
                raise _make_objects_error(loaded.dtype)
            if values is None:
                data = ManifestArray.from_values(loaded)
        has_known_values = data is not None and self._has_known_values(path, data)
        if values is not None:
            metadata = values.metadata
        elif has_known_values and self.before is not None:
            metadata = self.before.nodes[path]
        elif data is not None:
            # leave out files without references, which may have changed
            metadata, parts = describe_on_grids(data.prune(), self.grids, variable.dims)
        dtype = data.dtype if data is not None else variable.data.dtype
        is_in_set = values is not None or has_known_values
        attributes, notes, _ = _encode_attributes(variable, dtype, None if is_in_set else data)
        if notes:
            self.notes["arrays"][path] = notes
        metadata = metadata | {
            "attributes": attributes,
            "dimension_names": list(variable.dims),
            "storage_transformers": metadata.get("storage_transformers", []),
        }
        return PlannedArray(metadata, parts, values, bool(has_known_values))

    def _find_existing_lengths(self, path: str) -> tuple[int, ...]:
        """Return the lengths, along the first axis, of the chunks of values in the set."""
        node = self.before.nodes.get(path) if self.before else None
        if node is None or not node["shape"] or path not in self.before.notes.get("values", {}):  # type: ignore[union-attr]
            return ()
        return tuple(axes_from_v3(node["shape"], node["chunk_grid"])[0].lengths.tolist())

    def _has_known_values(self, path: str, array: ManifestArray) -> bool:
        """Return whether the set already has the values of an array at its path."""
        entry = self.before.notes.get("values", {}).get(path) if self.before else None
        if entry is None or self.before is None or len(array.fragments) != 1:
            return False
        is_same_shape = list(array.shape) == self.before.nodes[path]["shape"]
        manifest = array.manifest.loaded()
        urls = [manifest.files[n].url for n in manifest.file.ravel().tolist() if n >= 0]
        return is_same_shape and urls == [
            f"{self.root}/{c.get_path(path)}" for c in list_value_chunks(entry)
        ]


def describe_on_grids(
    array: ManifestArray, grids: tuple[str, ...], dims: Sequence[str] = ()
) -> tuple[dict[str, Any], list[ManifestPart]]:
    """Return the Zarr v3 form of an array on one of ``grids``, or on any grid if there are none.

    Uncompressed chunks are split if necessary. Errors name axes by ``dims``.
    """
    metadata, parts = array_to_v3(array, packed=not grids)
    if not grids or metadata["chunk_grid"]["name"] in grids:
        return metadata, parts
    regular, regular_parts = array_to_v3(to_regular_chunks(array, permuted=True))
    if regular["chunk_grid"]["name"] in grids:
        return regular, regular_parts
    reasons = list_unsupported_reasons(array, dims) or [
        "plain Zarr cannot represent how it is stored"
    ]
    hint = ""
    if metadata["chunk_grid"]["name"] == "rectilinear":
        hint = " (rectilinear=True writes it for readers that support this grid)"
    raise UnsupportedError(f"{', '.join(reasons)}{hint}")


def _list_obstacles(variable: ManifestVariable, grids: tuple[str, ...] | None) -> list[str]:
    """Return the reasons why Zarr v3 with ``grids``, or Zarr v2, cannot describe a variable."""
    try:
        if grids is None:
            _describe_array(variable)
        else:
            describe_on_grids(variable.data, grids, variable.dims)  # type: ignore[arg-type]
    except UnsupportedError as error:
        return f"{error}".split("\n")
    return []


def choose_grids(rectilinear: bool | None) -> tuple[str, ...]:
    """Return the chunk grids to write; ``rectilinear`` is experimental in zarr-python."""
    return ("regular", "rectilinear")[: 1 + bool(rectilinear)]


def list_obstacles_of_icechunk(
    variable: ManifestVariable, *, rectilinear: bool | None = None, **choices: Any
) -> list[str]:
    """Return the reasons why Icechunk cannot store a virtual variable; it need not be installed."""
    return _list_obstacles(variable, choose_grids(rectilinear))


def list_obstacles_of_kerchunk(
    variable: ManifestVariable, *, zarr_format: int | None = None, **choices: Any
) -> list[str]:
    """Return the reasons why kerchunk references of a Zarr version cannot store a variable."""
    return _list_obstacles(variable, choose_grids(False) if zarr_format == 3 else None)


def _check_name(path: str) -> None:
    """Raise an error for a path that Zarr v3 reserves."""
    if not is_node_path(path):
        raise UnsupportedError(
            "Zarr v3 reserves its name; rename it with ds.rename (in preprocess= where files are "
            "joined), or leave it out with drop_variables"
        )


@dataclass
class Hierarchy:
    """A group and its subgroups as a Zarr v2 hierarchy.

    ``metadata`` are by key, such as ``.zgroup`` and ``a/v/.zarray``, and ``manifests`` by path of
    the array; an array in memory is one inline chunk. ``notes`` are facts that the metadata cannot
    express: ``files`` (url to size, mtime, etag), ``groups`` and ``arrays`` by path. ``base`` is
    the url of the set if urls are written relative to its parent folder.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    manifests: dict[str, ChunkManifest] = field(default_factory=dict)
    notes: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"files": {}, "groups": {}, "arrays": {}}
    )
    base: str | None = None

    @classmethod
    def of(
        cls,
        group: ManifestGroup,
        url: str,
        format: str,
        sources: ListSources = lambda manifest: manifest.prune().sources,
        relative: bool = False,
    ) -> Hierarchy:
        """Return the hierarchy of a group.

        ``url`` is the url of the set, and ``format`` is for errors; ``sources`` returns the files
        of an array whose fingerprints are recorded. With ``relative``, urls are written relative to
        the set.
        """
        hierarchy = cls(base=url if relative else None)
        files = NumberedFiles(hierarchy.name_file)

        def add_variable(path: str, variable: ManifestVariable) -> None:
            files.number_all(tuple(sources(hierarchy._add_variable(path, variable))))

        if problems := _plan_nodes(group, hierarchy._add_group, add_variable)[1]:
            raise make_unsupported_error(url, format, problems, REMEDY)
        hierarchy.notes["files"] = {
            name: list(fingerprint) for name, fingerprint in files.iterate_rows()
        }
        return hierarchy

    def _add_group(self, path: str, group: ManifestGroup) -> None:
        """Add the metadata and notes of a group."""
        prefix = f"{path}/" if path else ""
        self.metadata[f"{prefix}.zgroup"] = {"zarr_format": 2}
        self.metadata[f"{prefix}.zattrs"] = _encode_group(path, group, self.notes["groups"])
        for name in INVALID_NAMES & {*group.variables, *group.groups}:
            raise UnsupportedError(
                f"{prefix}{name}: no variable or group of a set may be called {name!r}; rename it "
                f"with ds.rename"
            )

    def _add_variable(self, path: str, variable: ManifestVariable) -> ChunkManifest:
        """Add the metadata, chunks and notes of a variable, and return its chunks."""
        variable, metadata, manifest = describe_for_v2(variable)
        # strings in memory do not become a virtual array
        stored = variable.data if isinstance(variable.data, ManifestArray) else None
        described = complete_for_v2(variable, metadata, stored)
        self.metadata[f"{path}/.zarray"] = described.metadata
        self.metadata[f"{path}/.zattrs"] = described.attributes
        notes = described.notes
        self.manifests[path] = manifest
        if notes:
            self.notes["arrays"][path] = notes
        return manifest

    def name_file(self, url: str) -> str:
        """Return the url to write for the url of a file."""
        return url if self.base is None else make_relative(url, self.base)

    def get_notes(self) -> dict[str, Any]:
        """Return the notes to write, without empty ones."""
        filled = {name: part for name, part in self.notes.items() if part}
        return {"files": {}} | filled | ({} if self.base is None else {RELATIVE: True})


class DocumentsV2(NamedTuple):
    """An array in Zarr v2: ``.zarray``, ``.zattrs``, and notes on facts that both lack."""

    metadata: dict[str, Any]
    attributes: dict[str, Any]
    notes: dict[str, Any]


def describe_for_v2(
    variable: ManifestVariable,
) -> tuple[ManifestVariable, dict[str, Any], ChunkManifest]:
    """Return a variable as in Zarr v2, its ``.zarray`` without a fill value, and its chunks.

    Raises `UnsupportedError` for an array that Zarr v2 cannot describe.
    """
    if isinstance(variable.data, ManifestArray):
        metadata, manifest, array = _describe_array(variable)
        return replace(variable, data=array), metadata, manifest
    values = variable.read()
    if values.dtype.kind in "OUT":
        return variable, *_describe_strings(values)
    if values.dtype.hasobject:
        raise _make_objects_error(values.dtype)
    array = ManifestArray.from_values(pack_members(values))
    if reasons := list_unsupported_reasons(array):
        raise UnsupportedError(f"{'; '.join(reasons)}; leave the variable out with ds.drop_vars")
    zarr_array = to_zarr_v2(array)
    return replace(variable, data=array), zarr_array.metadata, zarr_array.manifest


def complete_for_v2(
    variable: ManifestVariable, metadata: dict[str, Any], stored: ManifestArray | None = None
) -> DocumentsV2:
    """Return the documents of an array, given its ``.zarray`` without a fill value."""
    dtype = dtype_from_zarr_v2(metadata["dtype"])
    # xarray uses the fill value of Zarr v2, but readers that convert to v3 use the attribute
    attributes, notes, fill = _encode_attributes(variable, dtype, stored)
    if fill is not None:
        metadata = metadata | {"fill_value": fill_to_zarr_v2(fill, dtype)}
    return DocumentsV2(metadata, attributes | {DIMENSIONS: list(variable.dims)}, notes)


def _describe_array(
    variable: ManifestVariable,
) -> tuple[dict[str, Any], ChunkManifest, ManifestArray]:
    """Return metadata and chunks of a virtual array, and the array split into regular chunks."""
    array = to_regular_chunks(unify_fill(variable.data))  # type: ignore[arg-type]
    if reasons := list_unsupported_reasons(array, variable.dims):
        raise UnsupportedError("\n".join(reasons))
    zarr_array = to_zarr_v2(array)
    # an attribute of another dtype cannot be the fill value
    attribute = variable.attributes.get("_FillValue")
    attribute = attribute if is_exact(attribute, zarr_array.pipeline.dtype) else None
    is_same = _reads_same(zarr_array.pipeline.fill_value, attribute)
    return (
        zarr_array.metadata,
        zarr_array.manifest if is_same else _fill_missing_chunks(zarr_array),
        array,
    )


def _fill_missing_chunks(array: ZarrArray) -> ChunkManifest:
    """Return a manifest with missing chunks as inline chunks of the fill value.

    Readers of Zarr v2 take ``fill_value`` for the attribute ``_FillValue``, unlike the fill value
    of HDF5, so it cannot be written for missing chunks.
    """
    manifest = array.manifest
    count = manifest.size - sum(ids.size for ids, _ in iterate_references(manifest))
    if not count:
        return manifest
    chunk = np.full(array.metadata["chunks"], array.pipeline.fill_value, array.pipeline.dtype)
    data = _encode_chunk(chunk, array.pipeline)
    if count * len(data) > MAX_INLINE:
        raise UnsupportedError(
            f"{count} chunks are missing and read as {array.pipeline.fill_value}, which "
            f"is not its _FillValue; this format cannot store such a fill value"
        )
    manifest = manifest.loaded()
    missing = manifest.file == MISSING
    return ChunkManifest.build(
        manifest.shape,
        files=manifest.files,
        file=np.where(missing, INLINE, manifest.file),
        offset=np.where(missing, len(manifest.inline), manifest.offset),
        length=np.where(missing, len(data), manifest.length),
        checksum=np.where(missing, np.uint64(0), manifest.checksum),
        inline=(*manifest.inline, data),
    )


def _describe_strings(values: npt.NDArray[Any]) -> tuple[dict[str, Any], ChunkManifest]:
    """Return the metadata of strings in memory, and a manifest with one inline chunk."""
    chunks = [max(n, 1) for n in values.shape]
    metadata = build_zarr_v2(values.shape, chunks, "|O", [{"id": TEXT}])
    data = encode_strings(to_string_objects(values))
    grid = read_chunk_grid(metadata)
    return metadata, ChunkManifest.build(grid, file=INLINE, length=len(data), inline=(data,))


def _make_objects_error(dtype: np.dtype[Any]) -> UnsupportedError:
    """Return the error for a compound type with members of variable length."""
    return UnsupportedError(
        f"its members {dtype} hold variable-length strings or arrays, which Zarr cannot "
        f"represent; leave the variable out with ds.drop_vars"
    )


def _reads_same(fill: Any, attribute: Any) -> bool:
    """Return whether missing chunks read the same for a reader that uses only the attribute."""
    if attribute is None:
        kind = np.asarray(fill).dtype
        # negative zero is a different number
        return (
            bool(np.isnat(fill)) if kind.kind in "mM" else is_same_scalar(fill, np.zeros((), kind))
        )
    return is_same_scalar(fill, attribute)


def _encode_chunk(chunk: npt.NDArray[Any], pipeline: CodecPipeline) -> bytes:
    """Return the bytes of a chunk, which is given as an array, since filters need its dtype."""
    import numcodecs

    data: Any = chunk
    for codec in pipeline.codecs:
        try:
            data = numcodecs.get_codec(codec.to_zarr_v2()).encode(data)
        except (KeyError, TypeError, ValueError) as error:
            raise UnsupportedError(
                f"its missing chunks have a fill value that would have to be encoded, which cannot "
                f"be done with {codec.zarr_v2_id}; load the variable first"
            ) from error
    decoded = encoded = data.tobytes() if isinstance(data, np.ndarray) else bytes(data)
    for codec in reversed(pipeline.codecs):
        decoded = bytes(codec.decode(decoded, None))
    if decoded != chunk.tobytes():
        raise UnsupportedError(
            f"its missing chunks read as {pipeline.fill_value}, which "
            f"{[codec.to_zarr_v2()['id'] for codec in pipeline.codecs]} would round to another "
            f"value; load the variable first"
        )
    return encoded
