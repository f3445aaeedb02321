"""kerchunk references in JSON: read versions 0 and 1, write version 1.

kerchunk documentation, "References specification". A reference set is a Zarr v2 hierarchy as one
JSON object: keys of the store to text, ``base64:`` text, JSON values, ``[url]`` or
``[url, offset, length]``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.errors import FormatError, UnsupportedError
from virtualds.formats import READ_ALL, ReadOptions
from virtualds.formats.kerchunk.encode_json import (
    Document,
    DocumentForm,
    describe,
    edit_document,
)
from virtualds.formats.kerchunk.entries import (
    Entries,
    compress_for,
    compress_like,
    decompress,
    find_beginning,
)
from virtualds.formats.kerchunk.templates import Templates, generate_references
from virtualds.formats.referenced_files import explain_malformed
from virtualds.formats.zarr.groups import NOTES, V2, V3, GroupReader, find_whole, merge_zarr_v2
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
    return _build_tree(*_parse(parse_document(raw, source.url), source, how.allow), how)


def parse_document(raw: bytes, url: str) -> Any:
    """Return the JSON document in a file, with our notes as an object."""
    document = parse_json(decompress(raw, url), url)
    if isinstance(document, dict) and "version" in document:
        noted = document.get(NOTES)
        if isinstance(noted, str):
            document[NOTES] = parse_json(noted, f"{url}, its notes")
    return document


def _parse(content: Any, source: SourceFile, allow: AccessPolicy) -> tuple[Document, Entries]:
    """Return the references of a document, sorted by array."""
    with pause_garbage_collection(), explain_malformed(source.url):
        content, refs, generated = _unfold(content, source.url)
        notes = content.get(NOTES) or {}
        entries = Entries(source, refs, notes.get("files", {}), allow)

    def resolve(url: str) -> str:
        return entries.files.get_file(url).url

    return Document(content, refs, generated, entries.metadata, resolve), entries


def _build_tree(document: Document, entries: Entries, how: ReadOptions) -> ManifestGroup:
    """Return a group of a document with everything below it."""
    source, notes = entries.source, document.content.get(NOTES) or {}
    with pause_garbage_collection():
        version = V3 if entries.nodes else V2
        nodes = entries.nodes or merge_zarr_v2(entries.metadata)
        parts_of = find_whole(entries.build_manifest)
        reader = GroupReader(source.url, nodes, notes, parts_of, how.skip, version)
        return reader.read_group(how.group)


def _unfold(content: Any, url: str) -> tuple[dict[str, Any], dict[str, Any], frozenset[str]]:
    """Return a document as one of version 1, its references, rendered, and the generated keys."""
    if not isinstance(content, dict):
        raise FormatError(
            f"{url}: a reference set is a JSON object, found {type(content).__name__}"
        )
    if "version" not in content:
        content = {"version": 1, "refs": content}
    refs = content.get("refs", {})
    whole = isinstance(refs, dict) and ("refs" in content or "gen" in content)
    if content["version"] not in (0, 1) or not whole:
        raise FormatError(
            f"{url}: references of version {content['version']!r} with keys {sorted(content)}; "
            f"write them anew in version 1, with 'refs'"
        )
    if ".zarray" in refs and ".zgroup" not in refs:
        # an array without a group gets a name, and a group
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


@dataclass(frozen=True)
class JsonVersion:
    """A set as a writer has read it.

    Parameters
    ----------
    file : SourceFile
        The JSON file.
    raw : bytes
        Its content.
    version : str
        The name of that content.
    document : Document
    group : ManifestGroup
    """

    file: SourceFile
    raw: bytes
    version: str
    document: Document
    group: ManifestGroup

    def is_current(self) -> bool:
        """Say whether the file still has this content."""
        url, options = self.file.url, self.file.options
        return find_store(url).find_version(url, options) == self.version


def read_version(
    url: str, options: StorageOptions | None = None, allow: AccessPolicy = ANYWHERE
) -> JsonVersion:
    """Read a set in order to change it.

    Raises
    ------
    FileNotFoundError
        There is no set.
    """
    raw, version = find_store(url).read_version(url, options)
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
        Of the JSON file; a suffix ``.gz`` or ``.zst`` compresses it.
    options : StorageOptions, optional
        Access options of the target.
    replace : bool
        Whether an existing file may be replaced.
    base : JsonVersion, optional
        The version to change: only entries that differ from it are edited. The file stays
        compressed as it is.
    templates, relative_paths, zarr_format : optional
        As in `DocumentForm`; by default as before.

    Raises
    ------
    UnsupportedError
        Metadata of that version of Zarr cannot describe some variables; all of them are named. Or
        the store has no conditional writes.
    FileExistsError
        The file exists and may not be replaced.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    document = Document() if base is None else base.document
    was = DocumentForm.like(document.content)
    form = was.but(templates=templates, relative_paths=relative_paths, zarr_format=zarr_format)
    after = describe(group, url, form)
    before = None
    if base is not None and form == was:
        # what cannot be described, though it could be read, is written anew
        with suppress(UnsupportedError):
            before = describe(base.group, url, form)
    with pause_garbage_collection():
        data = edit_document(document, before, after, form)
    store = find_store(url)
    if base is None:
        store.write_all(url, compress_for(data, url), options, replace=replace)
        return
    try:
        store.write_version(url, compress_like(base.raw, data), options, base.version)
    except ChangedError as error:
        raise outrun_error(url) from error


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
    data = edit_document(Document(), None, describe(group, "a dict of references", form), form)
    found: dict[str, Any] = json.loads(data)
    return found
