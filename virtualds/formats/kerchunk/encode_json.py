"""Encode a group as a kerchunk JSON document, or edit a document to describe another group.

kerchunk documentation, "References specification", version 1. With Zarr v3 metadata the keys are
the keys of a Zarr v3 store, as in VirtualiZarr: ``t/zarr.json``, and ``t/c/0/0`` for a chunk.

A new set is an edit of an empty document. Parts that a group shares with the previous group of a
document stay unchanged: keys, their order, templates, and entries that other tools have added.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, count, groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import INLINE, MISSING, Ints
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.formats.kerchunk.records import find_same_rows
from virtualds.formats.kerchunk.templates import Templates
from virtualds.formats.referenced_files import collect_fingerprints
from virtualds.formats.zarr import (
    DOTTED_KEYS,
    MARKER,
    NOTES,
    ChunkKeys,
    SeparatedKeys,
    consolidate,
    parse_chunk_keys,
)
from virtualds.formats.zarr.write_plan import (
    RELATIVE,
    Hierarchy,
    PlannedArray,
    plan_writing,
    suggest_zarr_v3,
)
from virtualds.progress import count_array_chunks
from virtualds.source_file import make_relative

CONSOLIDATED = ".zmetadata"
"""The key of the copy of all metadata that `kerchunk.utils.consolidate` and zarr-python write."""
COMPACT_JSON: dict[str, Any] = {"separators": (",", ":"), "allow_nan": False}
FORM = "kerchunk-json"
GRIDS = ("regular",)
"""Chunk grids of Zarr v3 that readers of references support."""
EXTENSIBLE_KEYS = {"shape", "attributes"}
"""Metadata keys of an array that do not affect how its chunks are stored and named."""
Metadata = Mapping[str, Any]


@dataclass(frozen=True)
class DocumentOptions:
    """Options for writing a document.

    With ``templates``, folders of sources are written once, and referred to by name. The file is
    smaller, and only the template must be changed when an archive moves. With ``relative_paths``,
    urls of sources are relative to the folder of the set. ``zarr_format`` is the version of the
    metadata, 2 or 3.
    """

    templates: bool = False
    relative_paths: bool = False
    zarr_format: int = 2

    def __post_init__(self) -> None:
        if self.zarr_format not in (2, 3) or isinstance(self.zarr_format, bool):
            raise ValueError(f"zarr_format={self.zarr_format!r}: give 2 or 3")

    @classmethod
    def like(cls, document: Metadata) -> DocumentOptions:
        """Return the options with which an existing document was written."""
        relative = bool((document.get(NOTES) or {}).get(RELATIVE))
        zarr_format = 3 if MARKER in document.get("refs", {}) else 2
        return cls(bool(document.get("templates")), relative, zarr_format)

    def with_given(self, **values: Any) -> DocumentOptions:
        """Return the options with the given values that are not None."""
        return replace(self, **{name: v for name, v in values.items() if v is not None})


# ---------------------------------------------------------------------- content of a document


class ArrayReferences(NamedTuple):
    """The chunks of an array: ``parts`` are pairs of origin and manifest, ``key`` names chunks."""

    parts: Sequence[tuple[tuple[int, ...], ChunkManifest]]
    key: ChunkKeys


@dataclass(frozen=True)
class DocumentContent:
    """The content of a document for one group: metadata by key, arrays by path, and notes.

    ``name`` returns the url to write for the url of a file.
    """

    metadata: Metadata = field(default_factory=dict)
    arrays: Mapping[str, ArrayReferences] = field(default_factory=dict)
    notes: Metadata = field(default_factory=dict)
    name: Callable[[str], str] = str

    def get_attribute_notes(self, path: str) -> Any:
        """Return the recorded types of the attributes of an array."""
        return self.notes.get("arrays", {}).get(path, {}).get("attributes")


def describe(group: ManifestGroup, url: str, document_options: DocumentOptions) -> DocumentContent:
    """Return the content of the document at ``url`` for a group.

    If metadata of the Zarr version cannot describe some variables, the error names all of them.
    """
    with suggest_zarr_v3(group, url):
        if document_options.zarr_format == 3:
            return _describe_v3(group, url, document_options.relative_paths)
        hierarchy = Hierarchy.of(group, url, FORM, relative=document_options.relative_paths)
    arrays = {
        path: ArrayReferences([((0,) * len(manifest.shape), manifest)], DOTTED_KEYS)
        for path, manifest in hierarchy.manifests.items()
    }
    return DocumentContent(hierarchy.metadata, arrays, hierarchy.get_notes(), hierarchy.name_file)


def _describe_v3(group: ManifestGroup, url: str, relative: bool) -> DocumentContent:
    """Return the content of a document with Zarr v3 metadata."""
    planned = plan_writing(group, url, format_name=FORM, grids=GRIDS)
    arrays = planned.arrays
    all_nodes: dict[str, Any] = planned.nodes | {
        path: node.metadata for path, node in arrays.items()
    }
    nodes = {
        path: {name: value for name, value in node.items() if name != "storage_transformers"}
        for path, node in all_nodes.items()
    }
    nodes_below = {path: node for path, node in nodes.items() if path}
    root = {"": nodes[""] | consolidate(nodes_below)}
    metadata = {f"{path}/{MARKER}".lstrip("/"): node for path, node in (root | nodes_below).items()}

    def make_path(source_url: str) -> str:
        return make_relative(source_url, url) if relative else source_url

    manifests = [part.manifest for node in arrays.values() for part in node.parts]
    files = collect_fingerprints(manifests, make_path, include_unknown=True)
    notes = {"files": files} | {kind: part for kind, part in planned.notes.items() if part}
    notes |= {RELATIVE: True} if relative else {}
    references = {
        path: ArrayReferences(
            [(part.origin, part.manifest) for part in node.parts] or _values_to_parts(node),
            parse_chunk_keys(node.metadata),
        )
        for path, node in arrays.items()
    }
    return DocumentContent(metadata, references, notes, make_path)


def _values_to_parts(node: PlannedArray) -> list[tuple[tuple[int, ...], ChunkManifest]]:
    """Return the chunks of values in memory, each as a part of one chunk."""
    chunks = node.values.chunks if node.values is not None else ()
    return [
        (
            origin,
            ChunkManifest.build(
                (1,) * len(origin), file=INLINE, length=len(data), inline=(bytes(data),)
            ),
        )
        for origin, data in chunks
    ]


# ---------------------------------------------------------------------- documents


@dataclass(frozen=True)
class ReferenceDocument:
    """A document that was read, or an empty one.

    ``content`` is of version 1, with the notes of virtualds as an object. ``refs`` are its
    references with rendered templates, including references from generators, whose keys are
    ``generated``. ``metadata`` are the Zarr metadata by key; ``resolve`` returns the absolute url
    for the url in a reference.
    """

    content: dict[str, Any] = field(default_factory=lambda: {"version": 1, "refs": {}})
    refs: Mapping[str, Any] = field(default_factory=dict)
    generated: frozenset[str] = frozenset()
    metadata: Metadata = field(default_factory=dict)
    resolve: Callable[[str], str] = str

    @property
    def templates(self) -> dict[str, str]:
        """The templates by name."""
        return self.content.get("templates") or {}

    def render(self) -> ReferenceDocument:
        """Return an equivalent document without templates and generators."""
        other_entries = {k: v for k, v in self.content.items() if k not in ("templates", "gen")}
        return replace(self, content=other_entries | {"refs": self.refs}, generated=frozenset())

    def without_references(self) -> ReferenceDocument:
        """Return the document without references, with all its other entries."""
        dropped = ("templates", "gen", NOTES)
        other_entries = {k: v for k, v in self.content.items() if k not in dropped}
        return ReferenceDocument(other_entries | {"refs": {}})


def edit_document(
    document: ReferenceDocument,
    before: DocumentContent | None,
    after: DocumentContent,
    document_options: DocumentOptions,
) -> bytes:
    """Return the bytes of a document that describes the group ``after``.

    ``before`` is the group that the document describes; without it all references are rewritten.
    """
    if before is None:
        document, before = document.without_references(), DocumentContent()
    changes = _DocumentChanges.between(document, before, after)
    # in a document with templates, readers render braces in urls
    templates = document_options.templates and not any(
        "{{" in name for name in changes.find_written_urls(after)
    )
    # generated references override written ones
    is_hidden = bool(document.generated) and (
        bool(changes.moves) or not document.generated.isdisjoint(changes.iterate_keys(document))
    )
    if is_hidden or (document.templates and not templates):
        document = document.render()
    return changes.apply(document, after, templates)


class _WrittenReferences(NamedTuple):
    """References to write for the array at ``path``; ``make_keys`` returns their keys below it.

    Keys are created only when they are used, since they take several times the memory of the
    references.
    """

    path: str
    make_keys: Callable[[], list[str]]
    rows: ChunkManifest

    def iterate_keys(self) -> Iterator[str]:
        """Yield the keys in the document."""
        return (f"{self.path}/{key}" for key in self.make_keys())


@dataclass(frozen=True)
class _DocumentChanges:
    """The changes from the group that a document describes to another group.

    ``metadata`` are the new or changed metadata by key, None for removed keys. All references of
    arrays at the paths ``rewritten`` are removed, because the array is removed, or stored in
    another way. ``removed`` are the keys of other references to remove, and ``written`` the
    references to write. ``moves`` maps moved files to their new urls: in references to them, only
    the url changes.
    """

    metadata: dict[str, Any]
    rewritten: set[str]
    removed: list[str]
    written: list[_WrittenReferences]
    moves: dict[str, str]

    @classmethod
    def between(
        cls, document: ReferenceDocument, before: DocumentContent, after: DocumentContent
    ) -> _DocumentChanges:
        """Return the changes from the group that a document describes to another group."""
        moves = _find_moves(before, after)
        rewritten = {*before.arrays, *after.arrays}
        removed, written = list[str](), list[_WrittenReferences]()
        for path, references in after.arrays.items():
            if _has_same_storage(before, after, path):
                chunk_keys, old_references = _find_key_encoding(document, path), before.arrays[path]
                removed_keys, replaced_keys, changed = _compare_chunks(
                    path, old_references, references, chunk_keys, moves
                )
                if document.refs.keys() >= {*removed_keys, *replaced_keys}:
                    rewritten.remove(path)
                    removed += removed_keys
                    written += changed
                    continue
                # the chunk keys of the document differ from those that its metadata declares
            for origin, manifest in references.parts:
                for ids, rows in iterate_references(manifest):
                    make_keys = partial(references.key.list_keys, ids, manifest.shape, origin)
                    written.append(_WrittenReferences(path, make_keys, rows))
        metadata = _edit_metadata(document, before, after, rewritten)
        return cls(metadata, rewritten, removed, written, moves)

    def find_written_urls(self, after: DocumentContent) -> set[str]:
        """Return the urls of files in new references, as they are written."""
        return {after.name(file.url) for written in self.written for file in written.rows.files}

    def iterate_keys(self, document: ReferenceDocument) -> Iterator[str]:
        """Yield the keys to remove or write, and generated keys of rewritten arrays."""
        yield from self.removed
        for written in self.written:
            yield from written.iterate_keys()
        yield from _iterate_keys_below(document.generated, self.rewritten)

    def apply(
        self, document: ReferenceDocument, after: DocumentContent, use_templates: bool
    ) -> bytes:
        """Apply the changes to a document, and return its bytes."""
        content, templates_by_name = dict(document.content), dict(document.templates)
        refs = self._remove_references(content.get("refs") or {})
        if self.moves:
            templates_by_name = self._move_files(document, refs, templates_by_name, after.name)
        for key, value in self.metadata.items():
            if value is None:
                refs.pop(key, None)
            else:
                # older readers expect metadata as a string that contains JSON
                refs[key] = json.dumps(value, **COMPACT_JSON)
        refs = _consolidate(refs, {**document.metadata, **self.metadata}, bool(self.metadata))
        folders = {folder: name for name, folder in templates_by_name.items() if "{{" not in folder}
        if use_templates:
            folders |= self._name_new_folders(after, templates_by_name, folders)
        added, replaced = list[bytes](), dict[str, str]()
        for path, blocks in groupby(self.written, lambda written: written.path):
            with count_array_chunks(
                sum(part.size for _, part in after.arrays[path].parts)
            ) as advance:
                for written in blocks:
                    urls = [_shorten_url(after.name(f.url), folders) for f in written.rows.files]
                    encoded = _encode_rows(written, urls)
                    if path in self.rewritten or refs.keys().isdisjoint(written.iterate_keys()):
                        added.append(",\n".join(encoded).encode())
                    else:
                        replaced.update(zip(written.iterate_keys(), encoded, strict=True))
                    advance(written.rows.size)
        templates_by_name |= {name: folder for folder, name in folders.items()}
        if templates_by_name:
            # put templates before the references, for people who read the file
            content = {
                "version": 1,
                "templates": templates_by_name,
                **content,
                **{"templates": templates_by_name},
            }
        # notes are a string, since GDAL takes the members of any object besides ``refs`` as
        # references, and fails on some of them
        content |= {"version": 1, NOTES: json.dumps(after.notes, **COMPACT_JSON)}
        members = [*_encode_members(refs, replaced), *replaced.values()]
        return _encode_document(content, [",\n".join(members).encode(), *added])

    def _remove_references(self, refs: Metadata) -> dict[str, Any]:
        """Return references without those to remove."""
        remaining = dict(refs)
        for key in self.removed:
            remaining.pop(key, None)
        if self.rewritten:
            for key in _iterate_keys_below([*remaining], self.rewritten):
                del remaining[key]
        return remaining

    def _move_files(
        self,
        document: ReferenceDocument,
        refs: dict[str, Any],
        templates: dict[str, str],
        name: Callable[[str], str],
    ) -> dict[str, str]:
        """Replace the urls of moved files in references, and return the templates."""
        old_templates = Templates(templates)
        texts = {value[0] for value in refs.values() if _has_url(value)}
        new_urls = {}
        for text in texts:
            rendered = old_templates.render_text(text) if templates and "{{" in text else text
            url = document.resolve(rendered)
            new_urls[text] = name(self.moves[url]) if url in self.moves else rendered
        moved = {n: _move_template(n, text, new_urls) for n, text in templates.items()}
        new_templates = Templates(moved)
        replacements = {
            text: target
            for text, target in new_urls.items()
            if (new_templates.render_text(text) if templates and "{{" in text else text) != target
        }
        for key, value in refs.items():
            if _has_url(value) and value[0] in replacements:
                refs[key] = [replacements[value[0]], *value[1:]]
        return moved

    def _name_new_folders(
        self, after: DocumentContent, taken_names: Metadata, named_folders: Mapping[str, str]
    ) -> dict[str, str]:
        """Return a name for each new folder of files."""
        used = self.find_written_urls(after)
        # readers that use str.format fail on braces outside of templates
        names = (n for n in after.notes["files"] if n in used and not {"{", "}"} & set(n))
        folders = dict.fromkeys(name.rpartition("/")[0] for name in names)
        free_names = (name for number in count() if (name := f"u{number}") not in taken_names)
        return {f: next(free_names) for f in folders if f and f not in named_folders}


def _find_key_encoding(document: ReferenceDocument, path: str) -> ChunkKeys:
    """Return the chunk key encoding of an array in a document."""
    node = document.metadata.get(f"{path}/{MARKER}")
    if node is not None:
        return parse_chunk_keys(node)
    zarray = document.metadata[f"{path}/.zarray"]
    return SeparatedKeys("v2", zarray.get("dimension_separator") or ".")


def _has_same_storage(before: DocumentContent, after: DocumentContent, path: str) -> bool:
    """Return whether an array stores chunks as before, so that only some of them change."""
    if path not in before.arrays:
        return False
    key = f"{path}/.zarray" if f"{path}/.zarray" in after.metadata else f"{path}/{MARKER}"
    nodes = [
        {k: v for k, v in content.metadata[key].items() if k not in EXTENSIBLE_KEYS}
        for content in (before, after)
    ]
    parts = [content.arrays[path].parts for content in (before, after)]
    return (
        nodes[0] == nodes[1]
        and [len(p) for p in parts] == [1, 1]
        and parts[0][0][0] == parts[1][0][0]
    )


# ---------------------------------------------------------------------- changed references


def _compare_chunks(
    path: str,
    old: ArrayReferences,
    new: ArrayReferences,
    chunk_keys: ChunkKeys,
    moves: Mapping[str, str],
) -> tuple[list[str], list[str], list[_WrittenReferences]]:
    """Compare the chunks of an array, position by position.

    Returns the keys of chunks to remove and of chunks to replace in the document, and the
    references to write.
    """
    (origin, before), (_, after) = old.parts[0], new.parts[0]
    if moves:
        before = before.with_files(lambda file: file._replace(url=moves.get(file.url, file.url)))
    removed, replaced, written = list[str](), list[str](), list[_WrittenReferences]()
    for ids, _ in iterate_references(before):
        is_common, other_ids = _find_common_chunks(ids, before.shape, after.shape)
        is_kept = is_common & (after.at(other_ids).file != MISSING) if after.size else is_common
        removed += chunk_keys.list_keys(ids[~is_kept], before.shape, origin)
    for ids, rows in iterate_references(after):
        is_common, other_ids = _find_common_chunks(ids, after.shape, before.shape)
        others = before.at(other_ids) if before.size else rows
        changed = np.flatnonzero(~(find_same_rows(others, rows) & is_common))
        if changed.size:
            keys = chunk_keys.list_keys(ids[changed], after.shape, origin)
            written.append(_WrittenReferences(path, keys.copy, rows.at(changed).prune()))
            replaced += compress(keys, (is_common & (others.file != MISSING))[changed])
    prefix = f"{path}/"
    return [prefix + name for name in removed], [prefix + name for name in replaced], written


def _find_common_chunks(
    ids: Ints, grid: tuple[int, ...], other: tuple[int, ...]
) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Return a mask of the chunks that another grid has, too, and their flat indices there."""
    if grid[1:] == other[1:]:
        is_common = ids < prod(other)
        return is_common, np.where(is_common, ids, 0)
    positions = np.unravel_index(ids, grid)
    is_common = np.logical_and.reduce([p < n for p, n in zip(positions, other, strict=True)])
    other_positions = tuple(
        np.where(is_common, positions_along_axis, 0) for positions_along_axis in positions
    )
    return is_common, np.ravel_multi_index(other_positions, other) if prod(
        other
    ) else other_positions[0]


def _find_moves(before: DocumentContent, after: DocumentContent) -> dict[str, str]:
    """Return the new urls of files if only the urls of files seem to have changed.

    References are compared after the move, so a wrong guess only makes the document larger.
    """
    new_urls: dict[str, set[str]] = {}
    for path in before.arrays.keys() | after.arrays.keys():
        tables = [
            [(m.shape, m.listed_files) for _, m in one.arrays[path].parts]
            if path in one.arrays
            else []
            for one in (before, after)
        ]
        sizes = [[(shape, len(files)) for shape, files in one] for one in tables]
        if sizes[0] != sizes[1]:
            return {}
        for (_, files), (_, moved) in zip(*tables, strict=True):
            for file, other in zip(files, moved, strict=True):
                new_urls.setdefault(file.url, set()).add(other.url)
    return {url: new for url, (new, *others) in new_urls.items() if not others and new != url}


def _move_template(name: str, text: str, new_urls: Mapping[str, str]) -> str:
    """Return the new text of a template if all urls that use it share one new prefix."""
    placeholder = f"{{{{{name}}}}}"
    users = {given: target for given, target in new_urls.items() if "{{" in given and name in given}
    suffixes = {given: given.removeprefix(placeholder) for given in users}
    is_simple = all(
        given.startswith(placeholder) and "{{" not in end for given, end in suffixes.items()
    )
    if (
        "{{" in text
        or not is_simple
        or not all(target.endswith(suffixes[g]) for g, target in users.items())
    ):
        return text
    prefixes = {target[: len(target) - len(suffixes[given])] for given, target in users.items()}
    return prefixes.pop() if len(prefixes) == 1 else text


# ---------------------------------------------------------------------- changed metadata


def _edit_metadata(
    document: ReferenceDocument,
    before: DocumentContent,
    after: DocumentContent,
    rewritten: set[str],
) -> dict[str, Any]:
    """Return the new metadata by key, and None for removed keys."""
    changes: dict[str, Any] = {key: None for key in before.metadata if key not in after.metadata}
    for key, value in after.metadata.items():
        existing, path = document.metadata.get(key), key.rpartition("/")[0]
        is_same_notes = before.get_attribute_notes(path) == after.get_attribute_notes(path)
        is_new = path in rewritten or not is_same_notes or key not in before.metadata
        edited = value if is_new else _edit_node(before.metadata[key], value, existing)
        if edited != existing:
            changes[key] = edited
    return changes


def _edit_node(before: Any, after: Any, existing: Any) -> Any:
    """Return the metadata in a document with the changes between two versions applied."""
    if before == after:
        return existing
    if not all(isinstance(node, dict) for node in (before, after, existing)):
        return after
    if "chunks" in after or "chunk_grid" in after:
        # all other metadata of an array together determine how its chunks are stored
        nodes = [
            {k: v for k, v in node.items() if k not in EXTENSIBLE_KEYS} for node in (before, after)
        ]
        if nodes[0] != nodes[1]:
            return after
    edited = {key: value for key, value in existing.items() if key in after or key not in before}
    for key, value in after.items():
        if key not in before or before[key] != value:
            edited[key] = _edit_node(before.get(key), value, existing.get(key))
    return edited


def _consolidate(refs: dict[str, Any], metadata: Metadata, changed: bool) -> dict[str, Any]:
    """Return references with consolidated metadata if there are groups below the root.

    Without consolidated metadata, zarr-python would list the set and find only the root.
    """
    existing = {key: value for key, value in metadata.items() if value is not None}
    if MARKER in existing or not changed:
        return refs
    if CONSOLIDATED not in refs and not any(key.endswith("/.zgroup") for key in existing):
        return refs
    copy = {"zarr_consolidated_format": 1, "metadata": existing}
    text = json.dumps(copy, **COMPACT_JSON)
    return refs | {CONSOLIDATED: text} if CONSOLIDATED in refs else {CONSOLIDATED: text} | refs


# ---------------------------------------------------------------------- text


def _iterate_keys_below(keys: Iterable[str], paths: set[str]) -> Iterator[str]:
    """Yield the keys of chunks below the paths of arrays; chunk keys may contain slashes."""
    is_below_by_folder: dict[str, bool] = {}
    for key in keys:
        folder = key.rpartition("/")[0]
        if (is_below := is_below_by_folder.get(folder)) is None:
            parts = folder.split("/")
            is_below = any("/".join(parts[:n]) in paths for n in range(1, len(parts) + 1))
            is_below_by_folder[folder] = is_below
        name = key[len(folder) + 1 :] if folder else key
        if is_below and not (name.startswith(".z") or name == MARKER):
            yield key


def _has_url(value: Any) -> bool:
    """Return whether the value of a reference has a url."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def _shorten_url(url: str, folders: Mapping[str, str]) -> str:
    """Return a url with the template of its folder, if the folder has one."""
    folder, _, name = url.rpartition("/")
    is_unchanged = folder not in folders or {"{", "}"} & set(url)
    return url if is_unchanged else f"{{{{{folders[folder]}}}}}/{name}"


def _encode_rows(written: _WrittenReferences, urls: Sequence[str]) -> Iterator[str]:
    """Yield references as members of a JSON object."""
    prefix, rows = json.dumps(f"{written.path}/")[:-1], written.rows
    heads = [f"[{json.dumps(url)}," for url in urls]
    columns = (column.tolist() for column in (rows.file, rows.offset, rows.length))
    for key, file, offset, length in zip(written.make_keys(), *columns, strict=True):
        if file == INLINE:
            data = base64.b64encode(rows.inline[offset]).decode()
            yield f'{prefix}{key}":"base64:{data}"'
        else:
            yield f'{prefix}{key}":{heads[file]}{offset},{length}]'


def _encode_document(content: Metadata, blocks: Sequence[bytes]) -> bytes:
    """Return the bytes of a document with one reference per line, from blocks of lines."""
    texts = [f"{_encode(k)}:{'' if k == 'refs' else _encode(v)}" for k, v in content.items()]
    index = [*content].index("refs") + 1
    before, after = ",".join(texts[:index]), "".join(f",{text}" for text in texts[index:])
    lines = [part for block in filter(None, blocks) for part in (b",\n", block)][1:]
    return b"".join([f"{{{before}{{\n".encode(), *lines, f"\n}}{after}}}\n".encode()])


def _encode_members(refs: Metadata, replaced: dict[str, str]) -> Iterator[str]:
    """Yield the members of an object, almost all of which are references to byte ranges.

    Members in ``replaced`` are already encoded, and are removed from it.
    """
    heads: dict[str, str] = {}
    # JSON strings contain no line breaks, so every line break separates two keys
    texts = json.dumps([*refs], separators=(",\n", ":"))[1:-1].split(",\n")
    for text, (key, value) in zip(texts, refs.items(), strict=False):
        if replaced and (member := replaced.pop(key, None)) is not None:
            yield member
            continue
        if type(value) is list and len(value) == 3:
            url, offset, length = value
            if type(url) is str and type(offset) is int and type(length) is int:
                if (head := heads.get(url)) is None:
                    head = heads[url] = _encode(url)
                yield f"{text}:[{head},{offset},{length}]"
                continue
        yield f"{text}:{_encode(value)}"


_encode = json.JSONEncoder(separators=(",", ":")).encode
"""Encodes JSON values; unlike `COMPACT_JSON`, it accepts NaN, which other tools may write."""
