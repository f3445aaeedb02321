"""kerchunk references in JSON: read versions 0 and 1, write version 1.

kerchunk documentation, "References specification". A reference set is a Zarr v2 hierarchy as one
JSON object: keys of the store to text, ``base64:`` text, JSON values, ``[url]`` or
``[url, offset, length]``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.reference_table import iterate_references
from virtualds.errors import FormatError, VirtualdsError
from virtualds.formats.kerchunk.entries import (
    Entries,
    compress_for,
    compress_like,
    decompress,
    find_beginning,
)
from virtualds.formats.kerchunk.generators import generate_references
from virtualds.formats.kerchunk.templates import Templates
from virtualds.formats.read_options import READ_ALL, ReadOptions
from virtualds.formats.referenced_files import MALFORMED_ERRORS, malformed_error
from virtualds.formats.zarr.v2_read import NOTES, HierarchyReader
from virtualds.formats.zarr.v2_write import Hierarchy
from virtualds.formats.zarr.v3_arrays import ManifestPart, Manifests
from virtualds.formats.zarr.v3_groups import NodesReader
from virtualds.formats.zarr.write_plan import suggest_zarr_v3
from virtualds.json_values import parse_json, pause_garbage_collection
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy
from virtualds.stores.fence import outrun_error
from virtualds.stores.store import ChangedError

CONSOLIDATED = ".zmetadata"
"""The key of the copy of all metadata that `kerchunk.utils.consolidate` and zarr-python write."""
COMPACT_JSON: dict[str, Any] = {"separators": (",", ":"), "allow_nan": False}

ROOT_ARRAY_NAME = "array"
"""The name of the array in a set without a group."""


def detect(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` may be a reference set in JSON."""
    text = find_beginning(head)
    if text is None:
        return True  # no other format is compressed, and the first block is longer than this
    text = text.lstrip()
    return text.startswith(b"{") and (
        b'"refs"' in text
        or b'".zgroup"' in text
        or b".zarray" in text
        or b'"version"' in text
        or b'"zarr.json"' in text
    )


# ---------------------------------------------------------------------- reading


def read(source: SourceFile, how: ReadOptions = READ_ALL) -> ManifestGroup:
    """Read a reference set.

    Parameters
    ----------
    source : SourceFile
        The JSON file, which may be compressed.
    how : ReadOptions

    Raises
    ------
    FormatError
        It is no JSON, or no reference set, or its templates go beyond the specification.
    UnsupportedError
        It uses an unknown codec.
    AccessError
        It refers to files that it may not name.
    """
    raw = find_store(source.url).read_all(source.url, source.options)
    return _build_tree(_parse_document(raw, source.url), source, how)


def _parse_document(raw: bytes, url: str) -> Any:
    """Return the JSON document in a file."""
    return parse_json(decompress(raw, url), url)


def _build_tree(document: Any, source: SourceFile, how: ReadOptions) -> ManifestGroup:
    """Return a group of a document with everything below it."""
    with pause_garbage_collection():
        try:
            refs, notes = _unfold(document, source.url)
            refs = _prefix_root_array(refs)
            entries = Entries(source, refs, notes.get("files", {}), how.allow)
        except MALFORMED_ERRORS as error:
            if isinstance(error, VirtualdsError):
                raise
            raise malformed_error(source.url, error) from error
        if entries.nodes:
            return _make_v3_reader(entries, source.url, how.skip).read_group(how.group)
        known = (source, entries.metadata, notes, entries.build_manifest)
        return HierarchyReader(*known, how.skip).read_tree(how.group)


def _make_v3_reader(entries: Entries, url: str, skip: frozenset[str]) -> NodesReader:
    """Return the reader of a hierarchy with Zarr v3 metadata."""

    def parts_of(path: str, node: Mapping[str, Any]) -> Manifests:
        def parts(grids: list[tuple[int, ...]], numbered: int) -> list[ManifestPart]:
            return [ManifestPart(0, (0,) * len(grids[0]), entries.build_manifest(path, grids[0]))]

        return parts

    return NodesReader(url, entries.nodes, {}, parts_of, skip)


def _unfold(document: Any, url: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the references of a document of either version, rendered, and our notes."""
    if not isinstance(document, dict):
        raise FormatError(
            f"{url}: a reference set is a JSON object, found {type(document).__name__}"
        )
    if "version" not in document:
        return document, {}
    refs = document.get("refs", {})
    whole = isinstance(refs, dict) and ("refs" in document or "gen" in document)
    if document["version"] not in (0, 1) or not whole:
        raise FormatError(
            f"{url}: version {document['version']!r} with keys {sorted(document)}; versions 0 and "
            f"1 with 'refs' are known"
        )
    try:
        templates = Templates(document.get("templates") or {})
        if templates.texts:
            refs = _render(refs, templates)
        refs = refs | generate_references(document.get("gen") or (), templates)
    except FormatError as error:
        error.add_note(f"templates and generators of {url}")
        raise
    return refs, document.get(NOTES) or {}


def _prefix_root_array(refs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put a name before the references of an array without a group."""
    if ".zarray" not in refs or ".zgroup" in refs:
        return refs
    return {f"{ROOT_ARRAY_NAME}/{key}": value for key, value in refs.items()}


def _render(refs: Mapping[str, Any], templates: Templates) -> dict[str, Any]:
    """Put templates into the urls of references, once for each distinct url."""
    known: dict[str, str] = {}
    found = {}
    for key, value in refs.items():
        if isinstance(value, list) and "{{" in value[0]:
            if (url := known.get(value[0])) is None:
                url = known[value[0]] = templates.render_text(value[0])
            value = [url, *value[1:]]
        found[key] = value
    return found


# ---------------------------------------------------------------------- writing


def write(
    group: ManifestGroup,
    url: str,
    options: StorageOptions | None = None,
    *,
    replace: bool = True,
    templates: bool = False,
) -> None:
    """Write a reference set: all of it, or nothing.

    Parameters
    ----------
    group : ManifestGroup
    url : str
        Of the JSON file; a suffix ``.gz`` or ``.zst`` compresses it.
    options : StorageOptions, optional
        Access options of the target.
    replace : bool
        Whether an existing file may be replaced.
    templates : bool
        Whether folders of sources are written once, as templates, and referred to by name: a
        smaller file, and one place to change when an archive moves.

    Raises
    ------
    UnsupportedError
        Zarr v2 metadata cannot describe some variables; all of them are named.
    FileExistsError
        The file exists and may not be replaced.
    """
    data = compress_for(_encode_set(group, url, templates), url)
    find_store(url).write_all(url, data, options, replace=replace)


def update(
    url: str,
    change: Callable[[ManifestGroup], ManifestGroup],
    options: StorageOptions | None = None,
    allow: AccessPolicy = ANYWHERE,
    *,
    templates: bool | None = None,
) -> None:
    """Change a set, unless another writer was faster.

    Parameters
    ----------
    url : str
        Of the JSON file; it stays compressed as it is.
    change : callable
        Takes the whole set and returns the new one.
    options : StorageOptions, optional
        Access options of the set.
    allow : AccessPolicy
        Where the files that it refers to may lie.
    templates : bool, optional
        As in `write`; by default if there are templates in the set.

    Raises
    ------
    FileNotFoundError
        There is no set.
    ConflictError
        Another writer was faster; nothing has changed.
    UnsupportedError
        Zarr v2 metadata cannot describe the new set, or the store has no conditional writes.
    """
    store = find_store(url)
    raw, version = store.read_version(url, options)
    document = _parse_document(raw, url)
    before = _build_tree(document, SourceFile(url, options=options), ReadOptions(allow=allow))
    if (after := change(before)) is before:
        return
    if templates is None:
        templates = "version" in document and bool(document.get("templates"))
    data = compress_like(raw, _encode_set(after, url, templates))
    try:
        store.write_version(url, data, options, version)
    except ChangedError as error:
        raise outrun_error(url) from error


def _encode_set(group: ManifestGroup, url: str, templates: bool) -> bytes:
    """Return a group as the content of a file."""
    with suggest_zarr_v3(group, url):
        hierarchy = Hierarchy.of(group, url, "kerchunk-json")
    named = _name_folders(hierarchy.notes["files"]) if templates else {}
    return _encode_document(hierarchy, named).encode()


def _name_folders(urls: Iterable[str]) -> dict[str, str]:
    """Return a name for every folder that files lie in."""
    urls = list(urls)
    if any("{{" in url for url in urls):
        return {}  # in a set with templates, braces have a meaning
    # readers that use str.format fail on braces beside templates
    folders = dict.fromkeys(u.rpartition("/")[0] for u in urls if not {"{", "}"} & set(u))
    return {folder: f"u{number}" for number, folder in enumerate(filter(None, folders))}


def _encode_document(hierarchy: Hierarchy, folders: Mapping[str, str]) -> str:
    """Return a whole set as strict JSON."""
    # older readers expect metadata as JSON text inside the JSON
    members = [
        f"{json.dumps(key)}:{json.dumps(json.dumps(value, **COMPACT_JSON))}"
        for key, value in _consolidate(hierarchy.metadata).items()
    ]
    for path, manifest in hierarchy.manifests.items():
        members += _encode_references(path, manifest, folders)
    body = ",\n".join(members)
    noted = json.dumps(hierarchy.get_notes(), **COMPACT_JSON)
    texts = {name: folder for folder, name in folders.items()}
    named = f'"templates":{json.dumps(texts, **COMPACT_JSON)},' if texts else ""
    return f'{{"version":1,{named}"refs":{{\n{body}\n}},"{NOTES}":{noted}}}\n'


def _consolidate(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata with a copy of all in one place, if there are groups below the root.

    Without the copy zarr-python lists the set, and finds the root alone.
    """
    if not any(key.endswith("/.zgroup") for key in metadata):
        return metadata
    return {CONSOLIDATED: {"zarr_consolidated_format": 1, "metadata": metadata}, **metadata}


def _encode_references(
    path: str, manifest: ChunkManifest, folders: Mapping[str, str]
) -> Iterator[str]:
    """Yield every existing chunk as a JSON member."""
    prefix = json.dumps(path)[:-1] + "/"
    for ids, rows in iterate_references(manifest):
        heads = [f"[{json.dumps(_shorten_url(file.url, folders))}," for file in rows.files]
        columns = (rows.file, rows.offset, rows.length)
        members = zip(
            _name_chunks(ids, manifest.shape), *(c.tolist() for c in columns), strict=True
        )
        for key, file, offset, length in members:
            if file == INLINE:
                yield f'{prefix}{key}":"{_encode_base64(rows.inline[offset])}"'
            else:
                yield f'{prefix}{key}":{heads[file]}{offset},{length}]'


def _name_chunks(ids: Ints, grid: tuple[int, ...]) -> Iterable[str]:
    """Return the keys of chunks by their numbers."""
    if not grid:
        return ["0"] * ids.size
    places = (place.tolist() for place in np.unravel_index(ids, grid))
    return map(".".join, zip(*(map(str, place) for place in places), strict=True))


def _shorten_url(url: str, folders: Mapping[str, str]) -> str:
    """Return a url with a template for its folder, if the folder has one."""
    folder, _, name = url.rpartition("/")
    plain = folder not in folders or {"{", "}"} & set(url)
    return url if plain else f"{{{{{folders[folder]}}}}}/{name}"


def _encode_base64(data: bytes) -> str:
    return "base64:" + base64.b64encode(data).decode()
