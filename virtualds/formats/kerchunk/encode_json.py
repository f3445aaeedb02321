"""Encode a group as one document of kerchunk's JSON, with metadata of Zarr v2 or v3.

kerchunk documentation, "References specification", version 1. With Zarr v3 metadata the keys are
those of a Zarr v3 store, as VirtualiZarr writes them: ``t/zarr.json``, and ``t/c/0/0`` for a chunk.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints
from virtualds.chunks.reference_table import iterate_references
from virtualds.formats.referenced_files import UNKNOWN
from virtualds.formats.zarr import v2_write
from virtualds.formats.zarr.chunk_keys import ChunkKeys, parse_chunk_keys
from virtualds.formats.zarr.document import MARKER, consolidate
from virtualds.formats.zarr.v2_read import NOTES
from virtualds.formats.zarr.v2_write import RELATIVE, Hierarchy
from virtualds.formats.zarr.write_plan import (
    PlannedArray,
    list_obstacles_on,
    plan_writing,
    suggest_zarr_v3,
)
from virtualds.formats.zarr_manifests.manifest_files import list_fingerprints
from virtualds.progress import count_array
from virtualds.urls import make_relative

CONSOLIDATED = ".zmetadata"
"""The key of the copy of all metadata that `kerchunk.utils.consolidate` and zarr-python write."""
COMPACT_JSON: dict[str, Any] = {"separators": (",", ":"), "allow_nan": False}
FORM = "kerchunk-json"
GRIDS = ("regular",)
"""Chunk grids of Zarr v3 that readers of references know."""


@dataclass(frozen=True)
class DocumentForm:
    """How a document is written.

    Parameters
    ----------
    templates : bool
        Whether folders of sources are written once, as templates, and referred to by name: a
        smaller file, and one place to change when an archive moves.
    relative_paths : bool
        Whether urls of sources are written relative to the folder that the set lies in.
    zarr_format : {2, 3}
        The version of the metadata.

    Raises
    ------
    ValueError
        There is no such version.
    """

    templates: bool = False
    relative_paths: bool = False
    zarr_format: int = 2

    def __post_init__(self) -> None:
        if self.zarr_format not in (2, 3) or isinstance(self.zarr_format, bool):
            raise ValueError(f"zarr_format={self.zarr_format!r}: give 2 or 3")

    @classmethod
    def like(cls, document: Mapping[str, Any]) -> DocumentForm:
        """Return the form of an existing document."""
        if "version" not in document:
            return cls(zarr_format=3 if MARKER in document else 2)
        relative = bool((document.get(NOTES) or {}).get(RELATIVE))
        format = 3 if MARKER in document.get("refs", {}) else 2
        return cls(bool(document.get("templates")), relative, format)

    def but(
        self, templates: bool | None, relative_paths: bool | None, zarr_format: int | None
    ) -> DocumentForm:
        """Return the form with what is not None changed."""
        given = {
            "templates": templates,
            "relative_paths": relative_paths,
            "zarr_format": zarr_format,
        }
        return replace(self, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]


def list_obstacles(
    variable: ManifestVariable, *, zarr_format: int | None = None, **choices: Any
) -> list[str]:
    """Return why references with metadata of a version of Zarr cannot hold a virtual variable."""
    if zarr_format == 3:
        return list_obstacles_on(variable, GRIDS)
    return v2_write.list_obstacles(variable)


def encode_set(group: ManifestGroup, url: str, form: DocumentForm) -> bytes:
    """Return a group as the content of the file at ``url``.

    Raises
    ------
    UnsupportedError
        Metadata of that version cannot describe some variables; all of them are named.
    """
    with suggest_zarr_v3(group, url):
        encode = _describe_v3 if form.zarr_format == 3 else _describe_v2
        found = encode(group, url, form.relative_paths)
    return found.encode(form.templates).encode()


# ---------------------------------------------------------------------- what is written


@dataclass(frozen=True)
class _Chunks:
    """Chunks of an array, and how they are named."""

    path: str
    manifest: ChunkManifest
    key: Callable[[tuple[int, ...]], str]
    origin: tuple[int, ...]


@dataclass(frozen=True)
class _Document:
    """A document before it is text.

    Parameters
    ----------
    metadata : mapping
        By key.
    chunks : list of _Chunks
    held : iterable of key and bytes
        Chunks of values in memory.
    notes : mapping
    name : callable
        Takes the url of a file, and returns it as it is written.
    """

    metadata: Mapping[str, Any]
    chunks: list[_Chunks]
    held: Iterable[tuple[str, bytes]]
    notes: Mapping[str, Any]
    name: Callable[[str], str]

    def encode(self, templates: bool) -> str:
        """Return a whole set as strict JSON."""
        folders = _name_folders(self.notes.get("files", ())) if templates else {}
        # older readers expect metadata as JSON text inside the JSON
        members = [
            f"{json.dumps(key)}:{json.dumps(json.dumps(value, **COMPACT_JSON))}"
            for key, value in self.metadata.items()
        ]
        members += [f'{json.dumps(key)}:"{_encode_base64(data)}"' for key, data in self.held]
        for chunks in self.chunks:
            members += _encode_references(chunks, self.name, folders)
        body = ",\n".join(members)
        texts = {name: folder for folder, name in folders.items()}
        named = f'"templates":{json.dumps(texts, **COMPACT_JSON)},' if texts else ""
        noted = json.dumps(encode_notes(self.notes))
        return f'{{"version":1,{named}"refs":{{\n{body}\n}},"{NOTES}":{noted}}}\n'


def encode_notes(notes: Mapping[str, Any]) -> str:
    """Return our notes as they stand in a document: as text.

    GDAL takes the members of an object beside ``refs`` for references, and refuses some of them.
    """
    return json.dumps(notes, **COMPACT_JSON)


def _describe_v2(group: ManifestGroup, url: str, relative: bool) -> _Document:
    """Return a group with Zarr v2 metadata."""
    found = Hierarchy.of(group, url, FORM, relative=relative)
    chunks = [
        _Chunks(path, manifest, _name_chunk, (0,) * len(manifest.shape))
        for path, manifest in found.manifests.items()
    ]
    metadata = _consolidate(found.metadata)
    return _Document(metadata, chunks, (), found.get_notes(), found.name_file)


def _name_chunk(place: tuple[int, ...]) -> str:
    return ".".join(map(str, place)) or "0"


def _describe_v3(group: ManifestGroup, url: str, relative: bool) -> _Document:
    """Return a group with Zarr v3 metadata."""
    planned = plan_writing(group, url, form=FORM, grids=GRIDS)
    nodes = {path: _to_node(node) for path, node in planned.nodes.items()}
    below = {path: node for path, node in nodes.items() if path}
    root = {"": nodes[""] | consolidate(below)}
    metadata = {f"{path}/{MARKER}".lstrip("/"): node for path, node in (root | below).items()}
    arrays = {p: node for p, node in planned.nodes.items() if isinstance(node, PlannedArray)}
    keys = {path: parse_chunk_keys(node.metadata) for path, node in arrays.items()}
    chunks = [
        _Chunks(path, part.manifest, keys[path], part.origin)
        for path, node in arrays.items()
        for part in node.parts
    ]

    def name(source: str) -> str:
        return make_relative(source, url) if relative else source

    parts = [part for node in arrays.values() for part in node.parts]
    names = {name(file.url): UNKNOWN for part in parts for file in part.manifest.sources}
    files = names | list_fingerprints(parts, name)
    notes = {"files": files} | {kind: part for kind, part in planned.notes.items() if part}
    notes |= {RELATIVE: True} if relative else {}
    return _Document(metadata, chunks, _list_values(arrays, keys), notes, name)


def _to_node(node: Mapping[str, Any] | PlannedArray) -> dict[str, Any]:
    """Return the metadata of a node without what only manifests need."""
    found = node.metadata if isinstance(node, PlannedArray) else node
    return {name: value for name, value in found.items() if name != "storage_transformers"}


def _list_values(
    arrays: Mapping[str, PlannedArray], keys: Mapping[str, ChunkKeys]
) -> Iterator[tuple[str, bytes]]:
    for path, node in arrays.items():
        for place, data in node.values.chunks if node.values is not None else ():
            yield f"{path}/{keys[path](place)}", data


def _consolidate(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata with a copy of all in one place, if there are groups below the root.

    Without the copy zarr-python lists the set, and finds the root alone.
    """
    if not any(key.endswith("/.zgroup") for key in metadata):
        return metadata
    return {CONSOLIDATED: {"zarr_consolidated_format": 1, "metadata": metadata}, **metadata}


# ---------------------------------------------------------------------- references


def _name_folders(urls: Iterable[str]) -> dict[str, str]:
    """Return a name for every folder that files lie in."""
    urls = list(urls)
    if any("{{" in url for url in urls):
        return {}  # in a set with templates, braces have a meaning
    # readers that use str.format fail on braces beside templates
    folders = dict.fromkeys(u.rpartition("/")[0] for u in urls if not {"{", "}"} & set(u))
    return {folder: f"u{number}" for number, folder in enumerate(filter(None, folders))}


def _encode_references(
    chunks: _Chunks, name: Callable[[str], str], folders: Mapping[str, str]
) -> Iterator[str]:
    """Yield every existing chunk as a JSON member."""
    with count_array(chunks.manifest.size) as advance:
        for ids, rows in iterate_references(chunks.manifest):
            yield from _encode_rows(chunks, ids, rows, name, folders)
            advance(ids.size)


def _encode_rows(
    chunks: _Chunks,
    ids: Ints,
    rows: ChunkManifest,
    name: Callable[[str], str],
    folders: Mapping[str, str],
) -> Iterator[str]:
    prefix = json.dumps(chunks.path)[:-1] + "/"
    heads = [f"[{json.dumps(_shorten_url(name(file.url), folders))}," for file in rows.files]
    places = _list_places(ids, chunks.manifest.shape, chunks.origin)
    columns = (column.tolist() for column in (rows.file, rows.offset, rows.length))
    for key, file, offset, length in zip(map(chunks.key, places), *columns, strict=True):
        if file == INLINE:
            yield f'{prefix}{key}":"{_encode_base64(rows.inline[offset])}"'
        else:
            yield f'{prefix}{key}":{heads[file]}{offset},{length}]'


def _list_places(
    ids: Ints, grid: tuple[int, ...], origin: tuple[int, ...]
) -> Iterable[tuple[int, ...]]:
    """Return the places of chunks by their numbers."""
    if not grid:
        return [()] * ids.size
    places = zip(np.unravel_index(ids, grid), origin, strict=True)
    return zip(*((place + first).tolist() for place, first in places), strict=True)


def _shorten_url(url: str, folders: Mapping[str, str]) -> str:
    """Return a url with a template for its folder, if the folder has one."""
    folder, _, name = url.rpartition("/")
    plain = folder not in folders or {"{", "}"} & set(url)
    return url if plain else f"{{{{{folders[folder]}}}}}/{name}"


def _encode_base64(data: bytes) -> str:
    return "base64:" + base64.b64encode(data).decode()
