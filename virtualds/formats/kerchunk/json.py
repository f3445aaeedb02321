"""Read kerchunk references in JSON, versions 0 and 1, and write version 1.

kerchunk documentation, "References specification". A reference set is a Zarr v2 hierarchy as one
JSON object, which maps keys of the store to text, ``base64:`` text, JSON values, ``[url]`` or
``[url, offset, length]``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import isnan, prod
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import INLINE, MISSING, find_distinct
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.tables import build_sparse, is_sparse
from virtualds.errors import AccessError, FormatError, UnsupportedError
from virtualds.formats import READ_ALL, ReadOptions, explain_malformed
from virtualds.formats.kerchunk.encode_json import (
    DocumentOptions,
    ReferenceDocument,
    describe,
    edit_document,
)
from virtualds.formats.kerchunk.templates import Templates, generate_references
from virtualds.formats.referenced_files import ReferencedFiles
from virtualds.formats.zarr import MARKER, NOTES, number_in_grid
from virtualds.formats.zarr.groups import (
    V2,
    V3,
    GroupBuilder,
    make_single_manifest_finder,
    merge_zarr_v2,
)
from virtualds.importing import pause_garbage_collection
from virtualds.json_values import parse_json
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import DEFAULT_POLICY, AccessPolicy
from virtualds.stores.fence import make_conflict_error
from virtualds.stores.store import ChangedError
from virtualds.streams import limit_decoded_size

ROOT_ARRAY_NAME = "array"
"""The name of the array in a set without a group."""
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of a compressed file (RFC 1952, 2.3.1; RFC 8878, 3.1.1)."""
SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
IN_DOCUMENT = object()
"""Placeholder for the url of an inline chunk."""
READ_BYTES = 2**24
"""The number of bytes that are decompressed at a time."""


def detect(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` may be a JSON reference set."""
    text = decompress_head(head)
    if text is None:
        # too short to be decompressed, but no other format is compressed
        return True
    text = text.lstrip()
    return text.startswith(b"{") and (
        b'"refs"' in text
        or b'".zgroup"' in text
        or b".zarray" in text
        or b'"version"' in text
        or b'"zarr.json"' in text
    )


# ---------------------------------------------------------------------- reading


def read(source: SourceFile, read_options: ReadOptions = READ_ALL) -> ManifestGroup:
    """Read the reference set in a JSON file, which may be compressed."""
    raw = find_store(source.url).read_all(source.url, source.options)
    return _build_tree(
        *_parse(parse_document(raw, source.url), source, read_options.allow), read_options
    )


def parse_document(raw: bytes, url: str) -> Any:
    """Return the JSON document in a file, with the notes of virtualds as an object."""
    document = parse_json(decompress(raw, url), url)
    if isinstance(document, dict) and "version" in document:
        notes = document.get(NOTES)
        if isinstance(notes, str):
            document[NOTES] = parse_json(notes, f"{url}, its notes")
    return document


def _parse(
    content: Any, source: SourceFile, allow: AccessPolicy
) -> tuple[ReferenceDocument, DocumentReferences]:
    """Return a document with rendered references, and its references sorted by array."""
    with pause_garbage_collection(), explain_malformed(source.url):
        content, refs, generated = _expand_document(content, source.url)
        notes = content.get(NOTES) or {}
        entries = DocumentReferences(source, refs, notes.get("files", {}), allow)

    def resolve(url: str) -> str:
        return entries.files.get_file(url).url

    return ReferenceDocument(content, refs, generated, entries.metadata, resolve), entries


def _build_tree(
    document: ReferenceDocument, entries: DocumentReferences, read_options: ReadOptions
) -> ManifestGroup:
    """Return a group of a document, with its subgroups."""
    source, notes = entries.source, document.content.get(NOTES) or {}
    with pause_garbage_collection():
        version = V3 if entries.nodes else V2
        nodes = entries.nodes or merge_zarr_v2(entries.metadata)
        find_parts = make_single_manifest_finder(entries.build_manifest)
        builder = GroupBuilder(source.url, nodes, notes, find_parts, read_options.skip, version)
        return builder.read_group(read_options.group)


def _expand_document(
    content: Any, url: str
) -> tuple[dict[str, Any], dict[str, Any], frozenset[str]]:
    """Return a document as version 1, its rendered references, and the keys of generated ones."""
    if not isinstance(content, dict):
        raise FormatError(
            f"{url}: a reference set is a JSON object, found {type(content).__name__}"
        )
    if "version" not in content:
        content = {"version": 1, "refs": content}
    refs = content.get("refs", {})
    is_complete = isinstance(refs, dict) and ("refs" in content or "gen" in content)
    if content["version"] not in (0, 1) or not is_complete:
        raise FormatError(
            f"{url}: references of version {content['version']!r} with keys {sorted(content)}; "
            f"write them again in version 1, with 'refs'"
        )
    if ".zarray" in refs and ".zgroup" not in refs:
        # the set is a single array without a group: add a root group, and name the array
        refs = {f"{ROOT_ARRAY_NAME}/{key}": value for key, value in refs.items()}
        content = content | {"refs": {".zgroup": '{"zarr_format":2}'} | refs}
        refs = content["refs"]
    generated: dict[str, list[Any]] = {}
    try:
        templates = Templates(content.get("templates") or {})
        if templates.texts:
            refs = _render(refs, templates)
        generated = generate_references(content.get("gen") or (), templates)
    except FormatError as error:
        error.add_note(f"templates and generators of {url}")
        raise
    return content, refs | generated if generated else refs, frozenset(generated)


def _render(refs: Mapping[str, Any], templates: Templates) -> dict[str, Any]:
    """Render templates in the urls of references, once for each distinct url."""
    rendered_urls: dict[str, str] = {}
    rendered = {}
    for key, value in refs.items():
        if isinstance(value, list) and "{{" in value[0]:
            if (url := rendered_urls.get(value[0])) is None:
                url = rendered_urls[value[0]] = templates.render_text(value[0])
            value = [url, *value[1:]]
        rendered[key] = value
    return rendered


# ---------------------------------------------------------------------- entries


class DocumentReferences:
    """The references of one document, sorted by array."""

    def __init__(
        self,
        source: SourceFile,
        refs: Mapping[str, Any],
        fingerprints: Mapping[str, Any],
        allow: AccessPolicy,
    ) -> None:
        self.source = source
        self.files = ReferencedFiles(source, fingerprints, allow)
        self.metadata: dict[str, Any] = {}
        self.chunks: dict[str, list[tuple[str, Any]]] = {}
        last_folder, chunks = None, list[tuple[str, Any]]()
        for key, value in refs.items():
            folder, _, name = key.rpartition("/")
            if name.startswith(".z") or name == MARKER:
                if isinstance(value, str):
                    value = parse_json(_decode_inline(value), f"{source.url}: key {key!r}")
                self.metadata[key] = value
                continue
            if folder != last_folder:
                last_folder, chunks = folder, self.chunks.setdefault(folder, [])
            chunks.append((name, value))
        consolidated = self.metadata.pop(".zmetadata", {})
        self.metadata = consolidated.get("metadata", {}) | self.metadata
        if not self.metadata:
            raise FormatError(
                f"{source.url}: it has no Zarr metadata among its keys, so it is not a reference "
                f"set; check the path"
            )
        if nodes := self.nodes:
            self._move_nested_chunks(
                {path for path, node in nodes.items() if node.get("node_type") == "array"}
            )
            for path, rows in self.chunks.items():
                encoding = nodes[path].get("chunk_key_encoding") or {}
                if encoding.get("name", "default") == "default":
                    # keys of Zarr v2 have no leading c; an array without axes has the key 0
                    self.chunks[path] = [
                        ("0" if name == "c" else name.removeprefix("c."), v) for name, v in rows
                    ]
        else:
            array_keys = (key for key in self.metadata if key.endswith("/.zarray"))
            self._move_nested_chunks({key.removesuffix("/.zarray") for key in array_keys})

    @cached_property
    def nodes(self) -> dict[str, Any]:
        """The nodes of a Zarr v3 hierarchy, by path; empty for Zarr v2."""
        found = {
            key.removesuffix(MARKER).rstrip("/"): node
            for key, node in self.metadata.items()
            if key == MARKER or key.endswith(f"/{MARKER}")
        }
        consolidated = (found.get("", {}).get("consolidated_metadata") or {}).get("metadata", {})
        return (
            {"": {"zarr_format": 3, "node_type": "group"}} | consolidated | found if found else {}
        )

    def _move_nested_chunks(self, arrays: set[str]) -> None:
        """Move chunks whose keys have slashes (``dimension_separator``) to their array."""
        for folder in [f for f in self.chunks if f not in arrays]:
            array = folder
            while array and array not in arrays:
                array = array.rpartition("/")[0]
            prefix = folder[len(array) + 1 :].replace("/", ".")
            moved = [(f"{prefix}.{name}", value) for name, value in self.chunks.pop(folder)]
            if array:
                self.chunks.setdefault(array, []).extend(moved)

    def build_manifest(self, path: str, grid: tuple[int, ...]) -> ChunkManifest:
        """Return the references of an array."""
        rows = _drop_missing(self.chunks.get(path, []))
        if not rows:
            return ChunkManifest.missing(grid)
        chunk_numbers = _parse_chunk_keys([name for name, _ in rows], grid, path)
        inline: list[bytes] = []
        located = [
            value
            if type(value) is list and len(value) == 3
            else self._locate(path, name, value, inline)
            for name, value in rows
        ]
        urls, offsets, lengths = zip(*located, strict=True)
        if not set(map(type, urls)) <= {str, object}:
            raise FormatError(f"{path}: a reference [url, offset, length] without a url")
        numbers: dict[Any, int] = {IN_DOCUMENT: INLINE}
        files: list[SourceFile] = []
        for url in dict.fromkeys(urls):
            if url is not IN_DOCUMENT:
                numbers[url] = len(files)
                files.append(self._find_file(url, rows, path))
        order, shape = None, grid
        if is_sparse(prod(grid), chunk_numbers.size):
            order, shape = np.argsort(chunk_numbers), chunk_numbers.shape
        file = [*map(numbers.__getitem__, urls)]
        manifest = ChunkManifest.build(
            shape,
            files=files,
            inline=inline,
            file=_scatter_values(file, chunk_numbers, shape, MISSING, order),
            offset=_scatter_values(offsets, chunk_numbers, shape, 0, order),
            length=_scatter_values(lengths, chunk_numbers, shape, 0, order),
        )
        return manifest if order is None else build_sparse(chunk_numbers[order], manifest, grid)

    def _locate(self, path: str, name: str, value: Any, inline: list[bytes]) -> tuple[Any, ...]:
        """Return url, offset and length of a chunk that is a whole file or inline.

        The bytes of an inline chunk are added to ``inline``; its offset is their position there.
        """
        if not isinstance(value, list):
            inline.append(_decode_inline(value))
            return IN_DOCUMENT, len(inline) - 1, len(inline[-1])
        if len(value) != 1 or not isinstance(value[0], str):
            raise FormatError(f"{path}/{name}: {value} is neither [url] nor [url, offset, length]")
        file = self._find_file(value[0], [(name, value)], path)
        return value[0], 0, self.files.get_size(file)

    def _find_file(self, url: str, rows: Sequence[tuple[str, Any]], path: str) -> SourceFile:
        """Return the file at a url to which one of the rows of an array refers."""
        try:
            return self.files.get_file(url)
        except AccessError as error:
            name = next(n for n, value in rows if isinstance(value, list) and value[0] == url)
            error.add_note(f"chunk {path}/{name}")
            raise


def _drop_missing(rows: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return rows without those of missing chunks: ``null`` or ``NaN``, or lists of these.

    Parquet tables have a row for every chunk, and tools that convert one to JSON write all rows.
    """
    values = [value for _, value in rows]
    # a fast check, since almost all references of most sets are lists with a url
    are_lists = set(map(type, values)) == {list} and all(values)
    if are_lists and set(map(type, map(itemgetter(0), values))) == {str}:
        return rows

    def is_null(value: Any) -> bool:
        return value is None or (isinstance(value, float) and isnan(value))

    def is_missing(value: Any) -> bool:
        url, *location = value if isinstance(value, list) and value else [value]
        return is_null(url) and all(is_null(n) or n == 0 for n in location)

    return [row for row in rows if not is_missing(row[1])]


def _decode_inline(value: Any) -> bytes:
    """Decode an inline value to bytes."""
    if not isinstance(value, str):
        return json.dumps(value).encode()
    if not value.startswith("base64:"):
        return value.encode()
    try:
        return base64.b64decode(value[len("base64:") :], validate=True)
    except ValueError as error:
        raise FormatError(f"inline value {value[:20]!r}: it is not base64 ({error})") from error


def _parse_chunk_keys(names: list[str], grid: tuple[int, ...], path: str) -> npt.NDArray[np.int64]:
    """Return the flat index of each chunk key, in C order."""
    rank = max(len(grid) - 1, 0)
    # VirtualiZarr uses "" for the only chunk of a scalar
    if invalid := [n for n in names if n.count(".") != rank or (not grid and n not in ("0", ""))]:
        raise FormatError(f"{path}: chunk key {invalid[0]!r} is not an index of a grid {grid}")
    if not grid:
        return np.zeros(len(names), np.int64)
    try:
        numbers = np.array(".".join(names).split("."), dtype=np.int64).reshape(-1, len(grid))
    except ValueError as error:
        raise FormatError(
            f"{path}: a chunk key is not an index of a grid {grid} ({error})"
        ) from error
    is_outside = ((numbers >= np.array(grid)) | (numbers < 0)).any(axis=1)
    if len(numbers) != len(names) or is_outside.any():
        key = names[int(is_outside.argmax())]
        raise FormatError(
            f"{path}: the chunk {path}/{key} lies outside the grid {grid}, so its place in the "
            f"array is not known; scan the files again, or leave the variable out with "
            f"drop_variables"
        )
    flat = number_in_grid(numbers, grid)
    if find_distinct(flat, prod(grid)).size != flat.size:
        raise FormatError(f"{path}: two keys denote the same chunk")
    return flat


def _scatter_values(
    values: Sequence[int],
    flat: npt.NDArray[np.int64],
    grid: tuple[int, ...],
    fill: int,
    order: npt.NDArray[np.int64] | None,
) -> npt.NDArray[np.int64]:
    """Return values at the positions ``flat`` of a grid, or sorted if ``order`` is given."""
    array = np.asarray(values)
    if array.dtype.kind != "i":
        invalid = next(v for v in values if type(v) is not int or abs(v) >= 2**63)
        raise FormatError(f"offset or length {invalid!r}: it is not an integer of 64 bits")
    if order is not None:
        return array[order]
    column = np.full(prod(grid), fill, np.int64)
    column[flat] = array
    return column.reshape(grid)


# ---------------------------------------------------------------------- writing


@dataclass(frozen=True)
class JsonVersion:
    """A set that a writer has read: its file, bytes, version and content."""

    file: SourceFile
    raw: bytes
    version: str
    document: ReferenceDocument
    group: ManifestGroup

    def is_current(self) -> bool:
        url, options = self.file.url, self.file.options
        return find_store(url).find_version(url, options) == self.version


def read_version(
    url: str, options: StorageOptions | None = None, allow: AccessPolicy = DEFAULT_POLICY
) -> JsonVersion:
    """Read a set in order to change it."""
    raw, version = find_store(url).read_with_version(url, options)
    file = SourceFile(url, options=options)
    document, entries = _parse(parse_document(raw, url), file, allow)
    return JsonVersion(file, raw, version, document, _build_tree(document, entries, ReadOptions()))


def write(
    group: ManifestGroup,
    url: str,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    base: JsonVersion | None = None,
    templates: bool | None = None,
    relative_paths: bool | None = None,
    zarr_format: int | None = None,
) -> None:
    """Write a reference set: all of it, or nothing.

    Parameters
    ----------
    group : ManifestGroup
    url : str
        The url of the JSON file; with the suffix ``.gz`` or ``.zst`` it is compressed.
    options : StorageOptions, optional
        Access options of the target.
    replace : bool
        Whether an existing file may be replaced.
    base : JsonVersion, optional
        The version to change: only entries that differ from it are edited. The file keeps its
        compression.
    templates, relative_paths, zarr_format : optional
        As in `DocumentOptions`; by default as in ``base``.

    Raises
    ------
    UnsupportedError
        Metadata of the Zarr version cannot describe some variables; the message names all of them.
        Or the store has no conditional writes.
    FileExistsError
        The file exists and may not be replaced.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    document = ReferenceDocument() if base is None else base.document
    base_options = DocumentOptions.like(document.content)
    document_options = base_options.with_given(
        templates=templates, relative_paths=relative_paths, zarr_format=zarr_format
    )
    after = describe(group, url, document_options)
    before = None
    if base is not None and document_options == base_options:
        # without a description of the base, all entries are rewritten
        with suppress(UnsupportedError):
            before = describe(base.group, url, document_options)
    with pause_garbage_collection():
        data = edit_document(document, before, after, document_options)
    store = find_store(url)
    if base is None:
        store.write_all(url, compress_for(data, url), options, replace=replace)
        return
    try:
        data = compress_with(data, find_codec(base.raw))
        store.write_version(url, data, options, base.version)
    except ChangedError as error:
        raise make_conflict_error(url) from error


def to_dict(
    group: ManifestGroup,
    *,
    templates: bool = False,
    relative_paths: bool = False,
    zarr_format: int = 2,
) -> dict[str, Any]:
    """Return a reference set as a dict, as it would be written; errors are as in `write`.

    Raises
    ------
    ValueError
        ``relative_paths`` is given, although a dict has no location.
    """
    if relative_paths:
        raise ValueError("relative_paths: a dict is in no folder to which urls could be relative")
    document_options = DocumentOptions(templates, zarr_format=zarr_format)
    data = edit_document(
        ReferenceDocument(),
        None,
        describe(group, "a dict of references", document_options),
        document_options,
    )
    document: dict[str, Any] = json.loads(data)
    return document


# ---------------------------------------------------------------------- compressed files


def decompress(data: bytes, url: str) -> bytes:
    """Return the content of a file, decompressed if necessary and if not far too large."""
    if (codec := find_codec(data)) is None:
        return data
    limit = limit_decoded_size(len(data))
    parts: list[bytes] = []
    size = 0
    try:
        stream = _open_reader(data, codec)
        while part := stream.read(READ_BYTES):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise FormatError(
                    f"{url}: its {len(data)} bytes decompress to more than {limit}; decompress it "
                    f"yourself if you trust it"
                )
    except OSError as error:
        raise FormatError(
            f"{url}: it begins like {codec}, but cannot be decompressed ({error}); fetch it again"
        ) from error
    return b"".join(parts)


def decompress_head(head: bytes) -> bytes | None:
    """Return the first bytes of the content of a file, or None if ``head`` is too short."""
    if (codec := find_codec(head)) is None:
        return head
    try:
        return bytes(_open_reader(head, codec).read(4096))
    except OSError:
        return None


def compress_for(data: bytes, url: str) -> bytes:
    """Compress data according to the suffix of a file."""
    return compress_with(data, next((c for end, c in SUFFIXES.items() if url.endswith(end)), None))


def compress_with(data: bytes, codec: str | None) -> bytes:
    """Compress data with a codec in `MAGIC`."""
    if codec is None:
        return data
    if codec == "gzip":
        import gzip

        return gzip.compress(data, 6, mtime=0)
    import pyarrow as pa

    return bytes(pa.Codec("zstd", 9).compress(data, asbytes=True))


def find_codec(data: bytes) -> str | None:
    """Return the codec of a compressed file, or None if it is not compressed."""
    return next((codec for magic, codec in MAGIC.items() if data.startswith(magic)), None)


def _open_reader(data: bytes, codec: str) -> Any:
    """Return a stream that decompresses data."""
    import pyarrow as pa

    return pa.CompressedInputStream(pa.BufferReader(data), codec)
