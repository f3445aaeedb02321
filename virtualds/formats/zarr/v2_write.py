"""Turn groups of variables into Zarr v2 hierarchies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray, is_same_scalar
from virtualds.arrays.concatenate import unify_fill
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.subchunks import to_regular_chunks
from virtualds.bounds import Buffer
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.codecs.vlen_text import encode_text, to_text_objects
from virtualds.errors import LOAD_OR_LEAVE_OUT, UnsupportedError, cannot_hold
from virtualds.formats.zarr.encoding_notes import list_declared
from virtualds.formats.zarr.strings import TEXT
from virtualds.formats.zarr.v2_metadata import ZarrArray, read_chunk_grid, to_zarr_v2
from virtualds.formats.zarr.v2_obstacles import unsupported_reasons
from virtualds.formats.zarr.v2_read import DIMENSIONS, NOT_NAMES, files_with_chunks
from virtualds.formats.zarr.v2_types import (
    dtype_from_zarr_v2,
    dtype_to_zarr_v2,
    fill_to_attribute,
    fill_to_zarr_v2,
    is_exact,
    pack_members,
)
from virtualds.json_values import to_json
from virtualds.source_file import SourceFile
from virtualds.urls import make_relative

REMEDY = f"pass on_unsupported='rewrite' to encode these chunks anew, {LOAD_OR_LEAVE_OUT}"
"""What to do about variables that a hierarchy cannot hold."""
RELATIVE = "relative_paths"
"""The note of a set whose urls start from its folder, for those who change it."""
MOST_INLINE = 2**20
"""Most bytes of missing chunks of one array that are written out inline."""


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
        Facts beyond the metadata: ``files`` (url to size, mtime, etag), ``groups`` and ``arrays``
        by path.
    base : str, optional
        Url of the set, if urls are written relative to the folder that it lies in.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    manifests: dict[str, ChunkManifest] = field(default_factory=dict)
    notes: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"files": {}, "groups": {}, "arrays": {}}
    )
    base: str | None = None
    _noted: tuple[SourceFile, ...] = ()

    @classmethod
    def of(
        cls,
        group: ManifestGroup,
        url: str,
        format: str,
        sources: Callable[[ChunkManifest], Iterable[SourceFile]] = files_with_chunks,
        relative: bool = False,
    ) -> Hierarchy:
        """Return the hierarchy that holds a group.

        ``url`` is that of the set, and ``format`` is for errors; ``sources`` returns the files of
        an array whose fingerprints are noted, and ``relative`` says whether their urls are written
        relative to the set.

        Raises
        ------
        UnsupportedError
            Variables that Zarr v2 metadata cannot describe; all of them are named.
        """
        found = cls(base=url if relative else None)
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
        """Add a group, and yield its problems."""
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
        for name in NOT_NAMES & {*group.variables, *group.groups}:
            raise UnsupportedError(
                f"{prefix}{name}: no variable or group of a set may be called {name!r}; rename it "
                f"with ds.rename"
            )
        for name, variable in group.variables.items():
            found = []
            if isinstance(variable.data, ManifestArray):
                array = to_regular_chunks(unify_fill(variable.data))
                variable = replace(variable, data=array)
                found = unsupported_reasons(array, variable.dims)
            try:
                if not found:
                    self._add_variable(prefix + name, variable, sources)
            except UnsupportedError as error:
                found = [f"{error}"]
            yield from (f"{prefix}{name}: {reason}" for reason in found)

    def _add_variable(
        self,
        path: str,
        variable: ManifestVariable,
        sources: Callable[[ChunkManifest], Iterable[SourceFile]],
    ) -> None:
        attributes = dict(variable.attributes)
        if isinstance(variable.data, ManifestArray):
            metadata, manifest = _describe_array(variable.data, attributes)
        else:
            metadata, manifest = _describe_values(variable.read())
        files = tuple(sources(manifest))
        # the variables of an archive mostly lie in the same files
        if files != self._noted:
            for file in files:
                self.note(file._replace(url=self.name_file(file.url)))
            self._noted = files
        fill = attributes.get("_FillValue")
        dtype = dtype_from_zarr_v2(metadata["dtype"])
        settled = fill is not None and metadata["fill_value"] is None and is_exact(fill, dtype)
        if settled:
            metadata["fill_value"] = fill_to_zarr_v2(fill, dtype)
            # xarray reads the fill value of Zarr v2; a reader that converts to v3 reads this
            attributes["_FillValue"] = fill_to_attribute(fill, dtype)
        plain, types = to_json(attributes)
        if settled:
            types.pop("_FillValue", None)
        self.metadata[f"{path}/.zarray"] = metadata
        self.metadata[f"{path}/.zattrs"] = plain | {DIMENSIONS: list(variable.dims)}
        self.manifests[path] = manifest
        notes = list_declared(variable, _to_stored(variable)) | (
            {"attributes": types} if types else {}
        )
        if notes:
            self.notes["arrays"][path] = notes

    def name_file(self, url: str) -> str:
        """Return a url as it is written."""
        return url if self.base is None else make_relative(url, self.base)

    def note(self, file: SourceFile) -> None:
        """Note the fingerprint of a file, by its url as it is written.

        Raises
        ------
        UnsupportedError
            Another fingerprint of it is noted already.
        """
        files = self.notes["files"]
        noted = SourceFile(file.url, *files.get(file.url, file.fingerprint))
        if (joined := noted.joined_with(file)) is None:
            raise UnsupportedError(
                f"{file.url}: it was scanned twice and had changed in between (size, time, etag "
                f"{list(noted.fingerprint)} and {list(file.fingerprint)}); scan it again"
            )
        files[file.url] = list(joined.fingerprint)

    def get_notes(self) -> dict[str, Any]:
        """Return the notes to write, without empty ones."""
        filled = {name: part for name, part in self.notes.items() if part}
        return {"files": {}} | filled | ({} if self.base is None else {RELATIVE: True})


def _describe_array(
    array: ManifestArray, attributes: Mapping[str, Any]
) -> tuple[dict[str, Any], ChunkManifest]:
    """Return the metadata and the chunks of a virtual array."""
    found = to_zarr_v2(array)
    # an attribute of another dtype is no fill value
    known = attributes.get("_FillValue")
    known = known if is_exact(known, found.pipeline.dtype) else None
    if _is_read_alike(found.pipeline.fill_value, known):
        return found.metadata, found.manifest
    return found.metadata, _write_out_missing(found)


def _write_out_missing(array: ZarrArray) -> ChunkManifest:
    """Hold missing chunks inline where readers of Zarr v2 would fill them with another value.

    They take ``fill_value`` for the attribute ``_FillValue``, which HDF5's fill value is not.
    """
    manifest = array.manifest
    count = manifest.size - sum(ids.size for ids, _ in iterate_references(manifest))
    if not count:
        return manifest
    chunk = np.full(array.metadata["chunks"], array.pipeline.fill_value, array.pipeline.dtype)
    data = _encode_chunk(chunk, array.pipeline)
    if count * len(data) > MOST_INLINE:
        raise UnsupportedError(
            f"{count} chunks are missing and read as {array.pipeline.fill_value}, which "
            f"is not its _FillValue; this format has no place for such a fill value"
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


def list_obstacles(variable: ManifestVariable) -> list[str]:
    """Return why Zarr v2 metadata cannot describe a virtual variable."""
    array = to_regular_chunks(unify_fill(variable.data))  # type: ignore[arg-type]
    if found := unsupported_reasons(array, variable.dims):
        return found
    try:
        _describe_array(array, variable.attributes)
    except UnsupportedError as error:
        return [f"{error}"]
    return []


def _describe_values(values: npt.NDArray[Any]) -> tuple[dict[str, Any], ChunkManifest]:
    """Return the metadata of values in memory, and the one chunk that holds them inline."""
    if values.dtype.names:
        values = _drop_padding(values)
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
        data = encode_text(to_text_objects(values))
    grid = read_chunk_grid(metadata)
    return metadata, ChunkManifest.build(grid, file=INLINE, length=len(data), inline=(data,))


def _drop_padding(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values of a compound type without bytes between its members."""
    if values.dtype.hasobject:
        raise UnsupportedError(
            f"its members {values.dtype} hold strings or arrays of varying length, for which "
            f"Zarr v2 has no form; leave the variable out with ds.drop_vars"
        )
    return pack_members(values)


def _to_stored(variable: ManifestVariable) -> ManifestArray | None:
    """Return the array that readers will find; None for strings."""
    data = variable.data
    if isinstance(data, ManifestArray):
        return data
    if data.dtype.hasobject:
        return None
    return ManifestArray.from_values(np.empty(data.shape, data.dtype))


def _is_read_alike(fill: Any, attribute: Any) -> bool:
    """Say whether missing chunks read alike for a reader that knows only the attribute."""
    if attribute is None:
        kind = np.asarray(fill).dtype
        # a negative zero is another number
        return (
            bool(np.isnat(fill)) if kind.kind in "mM" else is_same_scalar(fill, np.zeros((), kind))
        )
    return is_same_scalar(fill, attribute)


def _encode_chunk(chunk: npt.NDArray[Any], pipeline: CodecPipeline) -> bytes:
    """Encode one chunk, given as an array, since array filters need its dtype."""
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
    if _decode_chunk(found, pipeline) != chunk.tobytes():
        raise UnsupportedError(
            f"its missing chunks read as {pipeline.fill_value}, which "
            f"{[codec.to_zarr_v2()['id'] for codec in pipeline.codecs]} would round to another "
            f"value; load the variable first"
        )
    return found


def _decode_chunk(data: Buffer, pipeline: CodecPipeline) -> bytes:
    for codec in reversed(pipeline.codecs):
        data = codec.decode(data, None)
    return bytes(data)
