"""A group of variables to and from the keys of a Zarr v2 hierarchy.

Zarr storage specification version 2, "Hierarchies" and "Attributes". The formats that hold such a
hierarchy differ only in how they hold its metadata and where the bytes of each chunk lie.

What Zarr metadata cannot say of netCDF data (the types of numbers in attributes, how the source
stores values, fingerprints of source files) goes into notes beside them, which a format writes
under the key `NOTES`, and other readers pass over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib import recfunctions

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import with_one_fill
from virtualds.arrays.fill import same_scalar
from virtualds.arrays.group import ManifestGroup, ManifestVariable, group_path, named_axes
from virtualds.bounds import Buffer
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.codecs.vlen_text import checked_text, encoded_text
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError, cannot_hold
from virtualds.json_values import from_json, to_json
from virtualds.referenced_files import MALFORMED, malformed
from virtualds.source_file import SourceFile
from virtualds.storage_notes import declared, restored_encoding
from virtualds.undecodable import variable_or_problem
from virtualds.varying_array import TEXT, varying_from_zarr_v2
from virtualds.zarr_metadata import (
    ZarrArray,
    array_from_zarr_v2,
    check_zarr_v2,
    chunk_grid,
    dtype_from_zarr_v2,
    dtype_to_zarr_v2,
    fill_from_zarr_v2,
    fill_to_attribute,
    fill_to_zarr_v2,
    is_exact,
    obstacles,
    to_zarr_v2,
)

NOTES = "virtualds"
"""The top-level key that a format writes the notes under."""
DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute of a Zarr v2 array that xarray reads its dimensions from."""
REMEDY = (
    "load these variables before writing (ds.virtual.load()), leave them out (ds.drop_vars), or "
    "write the files that differ to sets of their own; a pickle of the dataset holds it as it is"
)
"""What to do about what a hierarchy cannot hold."""
MOST_INLINE = 2**20
"""Bytes that missing chunks of one array may take when they have to be written out."""

Chunks = Callable[[str, tuple[int, ...]], ChunkManifest]
"""Takes the path of an array and its chunk grid, and says where the chunks lie."""


# ---------------------------------------------------------------------- reading


class Members(NamedTuple):
    """The names of what a group holds, in order."""

    arrays: dict[str, None]
    groups: dict[str, None]


@dataclass(frozen=True)
class HierarchyReader:
    """What a format knows of a hierarchy, to make groups of it.

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

    def tree(self, path: str | None = None) -> ManifestGroup:
        """Return the group at a path with everything below it.

        Raises
        ------
        FileNotFoundError
            There is no such group.
        FormatError
            Metadata or references make no sense.
        UnsupportedError
            A codec or dtype is not known.
        """
        try:
            if odd := [key for key in self.metadata if {"", ".", ".."} & set(key.split("/"))]:
                raise FormatError(
                    f"{self.source.url}: the key {odd[0]!r} has a part that is no name; the "
                    f"metadata is damaged"
                )
            return self._group(group_path(path, lambda p: self._members[p].groups))
        except MALFORMED as error:
            if isinstance(error, VirtualdsError):
                raise
            raise malformed(self.source.url, error) from error

    @cached_property
    def _members(self) -> Mapping[str, Members]:
        """What every group holds, by path: a look at all keys for each would take its time."""
        found: dict[str, Members] = defaultdict(lambda: Members({}, {}))
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

    def _group(self, path: str) -> ManifestGroup:
        prefix = f"{path}/" if path else ""
        here = self._members[path]
        problems: dict[str, VirtualdsError] = {}
        variables = {
            name: self._named_variable(prefix + name, problems)
            for name in here.arrays
            if name not in self.skip
        }
        notes = self._noted("groups", path)
        groups = {name: self._group(prefix + name) for name in here.groups}
        encoding = {"unlimited_dims": set(notes.get("unlimited_dims", ()))}
        try:
            attributes = self._attributes(path, notes)
            return ManifestGroup(variables, attributes, groups, encoding, problems)
        except FormatError as error:
            error.add_note(f"group /{path} of {self.source.url}")
            raise

    def _noted(self, kind: str, path: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.notes.get(kind, {}).get(path, {})
        return found

    def _attributes(self, path: str, notes: Mapping[str, Any]) -> dict[str, Any]:
        found = self.metadata.get(f"{path}/.zattrs" if path else ".zattrs", {})
        types = notes.get("attributes", {})
        return {name: from_json(value, types.get(name)) for name, value in found.items()}

    def _named_variable(self, path: str, problems: dict[str, VirtualdsError]) -> ManifestVariable:
        shape = member_of(self.metadata[f"{path}/.zarray"], "shape")
        names = member_of(self.metadata.get(f"{path}/.zattrs"), DIMENSIONS)
        read = partial(self._variable, path)
        return variable_or_problem(read, path, self.source.url, shape, names, problems)

    def _variable(self, path: str) -> ManifestVariable:
        metadata = self.metadata[f"{path}/.zarray"]
        check_zarr_v2(metadata)
        notes = self._noted("arrays", path)
        attributes = self._attributes(path, notes)
        dims = _dims(metadata["shape"], attributes.pop(DIMENSIONS, None))
        manifest = self.chunks(path, chunk_grid(metadata))
        if metadata["dtype"] == "|O":
            values, fill = varying_from_zarr_v2(metadata, manifest)
            if fill is not None:
                attributes["_FillValue"] = fill
            data, encoding = values.settled()
            return ManifestVariable(dims, data, attributes, encoding)
        array = array_from_zarr_v2(metadata, manifest)
        fill = fill_from_zarr_v2(metadata.get("fill_value"), array.dtype)
        if fill is not None:
            # as xarray reads Zarr v2: its fill value is the netCDF attribute, whatever that says
            attributes["_FillValue"] = fill
        encoding = restored_encoding(array, dims, notes, self.source.url)
        return ManifestVariable(dims, array, attributes, encoding)


def member_of(document: object, key: str) -> object:
    """Return what a JSON object has under a key, None of anything else."""
    return document.get(key) if isinstance(document, Mapping) else None


def _dims(shape: Sequence[int], names: Sequence[str] | None) -> tuple[str, ...]:
    dims = named_axes(shape, [None] * len(shape)) if names is None else tuple(names)
    if len(dims) != len(shape):
        raise FormatError(f"dimensions {dims} for an array of shape {shape}")
    return dims


# ---------------------------------------------------------------------- writing


def files_with_chunks(manifest: ChunkManifest) -> Iterable[SourceFile]:
    """Return the files that chunks lie in, not those that are only known."""
    return manifest.pruned().sources


@dataclass
class Hierarchy:
    """A group and all below it as a Zarr v2 hierarchy.

    Parameters
    ----------
    metadata : dict of str to JSON values
        By key: ``.zgroup``, ``a/.zattrs``, ``a/v/.zarray`` and so on.
    manifests : dict of str to ChunkManifest
        By path of the array. A value in memory is one inline chunk.
    notes : dict
        What the metadata cannot say: ``files`` (url to size, mtime, etag), ``groups`` and
        ``arrays`` by path.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    manifests: dict[str, ChunkManifest] = field(default_factory=dict)
    notes: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"files": {}, "groups": {}, "arrays": {}}
    )

    @classmethod
    def of(
        cls,
        group: ManifestGroup,
        url: str,
        format: str,
        sources: Callable[[ChunkManifest], Iterable[SourceFile]] = files_with_chunks,
    ) -> Hierarchy:
        """Return the hierarchy that holds a group.

        ``url`` and ``format`` say in errors what was to be written; ``sources`` says in which files
        the chunks of an array lie that are to be noted.

        Raises
        ------
        UnsupportedError
            Variables that Zarr v2 metadata cannot describe; all of them are named.
        """
        found = cls()
        problems = [p for path, part in group.walk() for p in found._add_group(path, part, sources)]
        if problems:
            raise cannot_hold(url, format, problems, REMEDY)
        return found

    def _add_group(
        self,
        path: str,
        group: ManifestGroup,
        sources: Callable[[ChunkManifest], Iterable[SourceFile]],
    ) -> Iterable[str]:
        """Add a group, and yield what does not fit."""
        prefix = f"{path}/" if path else ""
        self.metadata[f"{prefix}.zgroup"] = {"zarr_format": 2}
        try:
            attributes, types = to_json(group.attributes)
        except UnsupportedError as error:
            yield f"{path or 'the dataset'}: {error}"
            return
        self.metadata[f"{prefix}.zattrs"] = attributes
        notes: dict[str, Any] = {"attributes": types} if types else {}
        if unlimited := sorted(group.encoding.get("unlimited_dims", ())):
            notes["unlimited_dims"] = unlimited
        if notes:
            self.notes["groups"][path] = notes
        for name, variable in group.variables.items():
            found = []
            if isinstance(variable.data, ManifestArray):
                array = with_one_fill(variable.data)
                variable, found = replace(variable, data=array), obstacles(array)
            try:
                if not found:
                    self._add_variable(prefix + name, variable, sources)
            except UnsupportedError as error:
                found = [str(error)]
            yield from (f"{prefix}{name}: {reason}" for reason in found)

    def _add_variable(
        self,
        path: str,
        variable: ManifestVariable,
        sources: Callable[[ChunkManifest], Iterable[SourceFile]],
    ) -> None:
        attributes = dict(variable.attributes)
        if isinstance(variable.data, ManifestArray):
            metadata, manifest = _array(variable.data, attributes)
        else:
            metadata, manifest = _values(variable.read())
        for file in sources(manifest):
            self.note(file)
        fill = attributes.get("_FillValue")
        dtype = dtype_from_zarr_v2(metadata["dtype"])
        settled = fill is not None and metadata["fill_value"] is None and is_exact(fill, dtype)
        if settled:
            metadata["fill_value"] = fill_to_zarr_v2(fill, dtype)
            # xarray takes the fill value of Zarr v2 for it; who turns v2 into v3 looks here
            attributes["_FillValue"] = fill_to_attribute(fill, dtype)
        plain, types = to_json(attributes)
        if settled:
            types.pop("_FillValue", None)
        self.metadata[f"{path}/.zarray"] = metadata
        self.metadata[f"{path}/.zattrs"] = plain | {DIMENSIONS: list(variable.dims)}
        self.manifests[path] = manifest
        notes = declared(variable, _as_stored(variable)) | ({"attributes": types} if types else {})
        if notes:
            self.notes["arrays"][path] = notes

    def note(self, file: SourceFile) -> None:
        """Note the fingerprint of a file.

        Raises
        ------
        UnsupportedError
            Another fingerprint of it is noted already.
        """
        found = list(file.fingerprint)
        noted = self.notes["files"].setdefault(file.url, found)
        if noted != found:
            raise UnsupportedError(
                f"{file.url}: it was scanned twice and had changed in between (size, time, etag "
                f"{noted} and {found}); scan it again"
            )

    def noted(self) -> dict[str, Any]:
        """Return the notes as they are written: what is empty is left out."""
        filled = {name: part for name, part in self.notes.items() if part}
        return {"files": {}} | filled


def _array(
    array: ManifestArray, attributes: Mapping[str, Any]
) -> tuple[dict[str, Any], ChunkManifest]:
    """Return the metadata and the chunks of a virtual array."""
    found = to_zarr_v2(array)
    # an attribute of another dtype stays an attribute: it fills nothing
    known = attributes.get("_FillValue")
    known = known if is_exact(known, found.pipeline.dtype) else None
    if _reads_as(found.pipeline.fill_value, known):
        return found.metadata, found.manifest
    return found.metadata, _missing_written_out(found)


def _missing_written_out(array: ZarrArray) -> ChunkManifest:
    """Hold missing chunks inline where readers of Zarr v2 would fill them with another value.

    They take ``fill_value`` for the attribute ``_FillValue``; the fill value of HDF5 is none.
    """
    manifest = array.manifest.loaded()
    missing = manifest.file == MISSING
    count = np.count_nonzero(missing)
    if not count:
        return manifest
    chunk = np.full(array.metadata["chunks"], array.pipeline.fill_value, array.pipeline.dtype)
    data = _encoded(chunk, array.pipeline)
    if count * len(data) > MOST_INLINE:
        raise UnsupportedError(
            f"{count} chunks are missing and read as {array.pipeline.fill_value}, which "
            f"is not its _FillValue; this format has no place for such a fill value"
        )
    return ChunkManifest.build(
        manifest.shape,
        files=manifest.files,
        file=np.where(missing, INLINE, manifest.file),
        offset=np.where(missing, len(manifest.inline), manifest.offset),
        length=np.where(missing, len(data), manifest.length),
        checksum=np.where(missing, np.uint64(0), manifest.checksum),
        inline=(*manifest.inline, data),
    )


def _values(values: npt.NDArray[Any]) -> tuple[dict[str, Any], ChunkManifest]:
    """Return the metadata of values in memory, and the one chunk that holds them inline."""
    if values.dtype.names:
        values = _without_gaps(values)
    metadata: dict[str, Any] = {
        "zarr_format": 2,
        "shape": list(values.shape),
        "chunks": [max(n, 1) for n in values.shape],
        "dtype": dtype_to_zarr_v2(values.dtype),
        "compressor": None,
        "filters": None,
        "fill_value": None,
        "order": "C",
        "dimension_separator": ".",
    }
    data = values.tobytes()
    if values.dtype.kind in "OUT":
        metadata |= {"dtype": "|O", "filters": [{"id": TEXT}]}
        data = encoded_text(checked_text(values))
    grid = chunk_grid(metadata)
    return metadata, ChunkManifest.build(grid, file=INLINE, length=len(data), inline=(data,))


def _without_gaps(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values of a compound type without bytes between its members."""
    if values.dtype.hasobject:
        raise UnsupportedError(
            f"its members {values.dtype} hold strings or arrays of varying length, for which "
            f"Zarr v2 has no form; leave the variable out with ds.drop_vars"
        )
    return recfunctions.repack_fields(values, recurse=True)


def _as_stored(variable: ManifestVariable) -> ManifestArray | None:
    """Return the array that readers will find."""
    data = variable.data
    if isinstance(data, ManifestArray):
        return data
    return (
        None
        if data.dtype.hasobject
        else ManifestArray.from_values(np.empty(data.shape, data.dtype))
    )


def _reads_as(fill: Any, attribute: Any) -> bool:
    """Say whether missing chunks read alike for a reader that knows only the attribute."""
    if attribute is None:
        kind = np.asarray(fill).dtype
        # a negative zero is another number
        return bool(np.isnat(fill)) if kind.kind in "mM" else same_scalar(fill, np.zeros((), kind))
    return same_scalar(fill, attribute)


def _encoded(chunk: npt.NDArray[Any], pipeline: CodecPipeline) -> bytes:
    """Encode one chunk; filters of arrays need to know what it is one of."""
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
    found = data.tobytes() if isinstance(data, np.ndarray) else bytes(data)
    if _decoded(found, pipeline) != chunk.tobytes():
        raise UnsupportedError(
            f"its missing chunks read as {pipeline.fill_value}, which "
            f"{[codec.to_zarr_v2()['id'] for codec in pipeline.codecs]} would round to another "
            f"value; load the variable first"
        )
    return found


def _decoded(data: Buffer, pipeline: CodecPipeline) -> bytes:
    for codec in reversed(pipeline.codecs):
        data = codec.decode(data, None)
    return bytes(data)
