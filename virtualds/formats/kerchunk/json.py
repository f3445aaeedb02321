"""kerchunk references in JSON: read versions 0 and 1, write version 1.

kerchunk documentation, "References specification". A reference set is a Zarr v2 hierarchy as one
JSON object: keys of the store to text, ``base64:`` text, JSON values, ``[url]`` or
``[url, offset, length]``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.errors import FormatError, VirtualdsError
from virtualds.formats.kerchunk.encode_json import DocumentForm, encode_set
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
from virtualds.formats.zarr.v3_arrays import ManifestPart, Manifests
from virtualds.formats.zarr.v3_groups import NodesReader
from virtualds.importing import pause_garbage_collection
from virtualds.json_values import parse_json
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import ANYWHERE, AccessPolicy
from virtualds.stores.fence import outrun_error
from virtualds.stores.store import ChangedError

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
    return _build_tree(parse_document(raw, source.url), source, how)


def parse_document(raw: bytes, url: str) -> Any:
    """Return the JSON document in a file, with our notes as an object."""
    document = parse_json(decompress(raw, url), url)
    if isinstance(document, dict) and "version" in document:
        noted = document.get(NOTES)
        if isinstance(noted, str):
            document[NOTES] = parse_json(noted, f"{url}, its notes")
    return document


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
            return _make_v3_reader(entries, source.url, notes, how.skip).read_group(how.group)
        known = (source, entries.metadata, notes, entries.build_manifest)
        return HierarchyReader(*known, how.skip).read_tree(how.group)


def _make_v3_reader(
    entries: Entries, url: str, notes: Mapping[str, Any], skip: frozenset[str]
) -> NodesReader:
    """Return the reader of a hierarchy with Zarr v3 metadata."""

    def parts_of(path: str, node: Mapping[str, Any]) -> Manifests:
        def parts(grids: list[tuple[int, ...]], numbered: int) -> list[ManifestPart]:
            return [ManifestPart(0, (0,) * len(grids[0]), entries.build_manifest(path, grids[0]))]

        return parts

    return NodesReader(url, entries.nodes, notes, parts_of, skip)


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
            f"{url}: references of version {document['version']!r} with keys {sorted(document)}; "
            f"write them anew in version 1, with 'refs'"
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
    relative_paths: bool = False,
    zarr_format: int = 2,
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
    templates, relative_paths, zarr_format
        As in `DocumentForm`.

    Raises
    ------
    UnsupportedError
        Metadata of that version of Zarr cannot describe some variables; all of them are named.
    FileExistsError
        The file exists and may not be replaced.
    """
    form = DocumentForm(templates, relative_paths, zarr_format)
    data = compress_for(encode_set(group, url, form), url)
    find_store(url).write_all(url, data, options, replace=replace)


def to_dict(
    group: ManifestGroup,
    *,
    templates: bool = False,
    relative_paths: bool = False,
    zarr_format: int = 2,
) -> dict[str, Any]:
    """Return a reference set as a dict, as it would be written; other errors are those of `write`.

    Raises
    ------
    ValueError
        ``relative_paths`` is given, and a dict lies in no folder.
    """
    if relative_paths:
        raise ValueError("relative_paths: a dict lies in no folder that urls could start from")
    form = DocumentForm(templates, zarr_format=zarr_format)
    found: dict[str, Any] = json.loads(encode_set(group, "a dict of references", form))
    return found


def update(
    url: str,
    change: Callable[[ManifestGroup], ManifestGroup],
    options: StorageOptions | None = None,
    allow: AccessPolicy = ANYWHERE,
    *,
    templates: bool | None = None,
    relative_paths: bool | None = None,
    zarr_format: int | None = None,
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
    templates, relative_paths, zarr_format : optional
        As in `DocumentForm`; by default as before.

    Raises
    ------
    FileNotFoundError
        There is no set.
    ConflictError
        Another writer was faster; nothing has changed.
    UnsupportedError
        The metadata cannot describe the new set, or the store has no conditional writes.
    """
    store = find_store(url)
    raw, version = store.read_version(url, options)
    document = parse_document(raw, url)
    before = _build_tree(document, SourceFile(url, options=options), ReadOptions(allow=allow))
    if (after := change(before)) is before:
        return
    form = DocumentForm.like(document).but(templates, relative_paths, zarr_format)
    data = compress_like(raw, encode_set(after, url, form))
    try:
        store.write_version(url, data, options, version)
    except ChangedError as error:
        raise outrun_error(url) from error
