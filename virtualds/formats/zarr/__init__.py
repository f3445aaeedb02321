"""What formats share of Zarr versions 2 and 3: the root ``zarr.json``, and the keys of chunks.

Chunk key encodings ``default`` and ``v2``: Zarr core specification version 3.0, "Chunk key
encoding". ``prefix``, ``suffix`` and ``fanout`` are registered in zarr-extensions. `MANIFEST_KEYS`
is used only in reference sets (``docs/reference/formats/zarr-v3.md``, "Chunk key encoding
`virtualds.manifest`").
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from virtualds.chunks.columns import Ints
from virtualds.errors import FormatError, UnsupportedError, make_damage_error
from virtualds.json_values import parse_json

DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute of a Zarr v2 array with the names of its dimensions, as xarray reads it."""
INVALID_NAMES = frozenset({"", ".", ".."})
"""Names that no member of a group may have."""
MARKER = "zarr.json"
"""The file that marks a folder as a Zarr v3 store, and as a set of the format zarr-v3."""
ZMETADATA, ZGROUP, ZARRAY = ".zmetadata", ".zgroup", ".zarray"
"""Files that mark a Zarr v2 store; the first also marks a set of the format kerchunk-parquet."""
STORE_MARKERS = (MARKER, ZMETADATA, ZGROUP, ZARRAY)
"""Files that mark a folder as a Zarr store, in the order of search."""
NOTES = "virtualds"
"""The key of the notes of virtualds in documents, markers, metadata of nodes, and attributes."""
FOLDER = "__virtualds__"
"""The folder of snapshots and tables of sources; no Zarr node may have this name."""
CHUNKS = f"{FOLDER}/chunks"
"""The folder of copied chunks, named by their hash; no snapshot has this name."""
TURN = f"{FOLDER}/turn"
"""The file of the writer whose turn it is to change a set."""
VERSION = 1
"""The version of the layout."""
CONSOLIDATED = "consolidated_metadata"
"""The key in the root group of the metadata of all other nodes."""
COPIES = "copies"
"""The note with the content of small chunks of native arrays, by their hash."""
HISTORY = "history"
"""The note with the earlier snapshots."""
NOTE_MAPPINGS = ("arrays", "groups", "sources", "values", COPIES)
"""Notes that are mappings: ``copies`` by hash, all others by the path of a node or table."""


@dataclass(frozen=True)
class Document:
    """The content of the root ``zarr.json``: metadata of nodes by path, and notes.

    The notes are ``snapshot``, the id of the snapshot; ``history``, the earlier snapshots, oldest
    first, as pairs of an id and a time, and files of such pairs
    (`virtualds.formats.zarr_manifests.snapshots`); ``arrays`` and ``groups``, by path; ``values``,
    the chunks of native arrays; ``copies``, the content of small chunks of native arrays;
    ``sources``, the first and last paths of the records of tables of files, by folder.

    Examples
    --------
    >>> document = Document({"": {"attributes": {}}}, {"snapshot": "a"})
    >>> Document.parse(document.to_bytes(), "x").snapshot
    'a'
    """

    nodes: dict[str, dict[str, Any]]
    notes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes, url: str) -> Document:
        """Parse a document."""
        root = parse_json(data, url)
        if not isinstance(root, Mapping) or root.get("node_type") != "group":
            raise make_damage_error(f"{url}: it is not a group of Zarr v3", "set")
        attributes = dict(_get_mapping(root, "attributes", url))
        notes = _get_mapping(attributes, NOTES, url)
        attributes.pop(NOTES, None)
        if notes.get("version", VERSION) != VERSION:
            raise FormatError(
                f"{url}: its layout is version {notes['version']}; only {VERSION} is supported, "
                f"update virtualds"
            )
        for kind in NOTE_MAPPINGS:
            _get_mapping(notes, kind, url)
        nodes = _get_mapping(_get_mapping(root, CONSOLIDATED, url), "metadata", url)
        for path, node in nodes.items():
            check_node(path, node, url)
        return cls({"": {**root, "attributes": attributes}, **nodes}, dict(notes))

    @property
    def is_consolidated(self) -> bool:
        """Whether the document has the metadata of the nodes below the root."""
        return self.nodes[""].get(CONSOLIDATED) is not None or len(self.nodes) > 1

    @property
    def snapshot(self) -> str | None:
        """The id of the snapshot."""
        return self.notes.get("snapshot")

    @property
    def is_relative(self) -> bool:
        """Whether paths of sources are written relative to the set."""
        return bool(self.notes.get("relative_paths", False))

    def to_snapshot_bytes(self) -> bytes:
        """Return the content of the file that archives this snapshot.

        It lacks the history, and copies of chunks, which the set also has as files.
        """
        notes = {n: note for n, note in self.notes.items() if n not in (COPIES, HISTORY)}
        return gzip.compress(replace(self, notes=notes).to_bytes(), mtime=0)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        attributes = self.nodes[""]["attributes"] | {NOTES: {"version": VERSION, **self.notes}}
        members = {path: node for path, node in self.nodes.items() if path}
        root = describe_group(attributes) | consolidate(members)
        return json.dumps(root, allow_nan=False, separators=(",", ":")).encode()


def describe_group(attributes: Any) -> dict[str, Any]:
    """Return the metadata of a Zarr v3 group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def join_node_path(path: str, name: str) -> str:
    """Return the path of a member of a node; the path of the root is empty."""
    return f"{path}/{name}" if path else name


def consolidate(nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of all nodes below a group, consolidated as by zarr-python."""
    # zarr-python builds a tree only if the members of every group are contiguous
    ordered = {path: nodes[path] for path in sorted(nodes, key=lambda p: p.rpartition("/")[0])}
    return {CONSOLIDATED: {"kind": "inline", "must_understand": False, "metadata": ordered}}


def is_node_path(path: str) -> bool:
    """Return whether a path below the root is valid for a node, and for a folder in any store.

    Examples
    --------
    >>> is_node_path("ocean/t"), is_node_path("ocean/../t"), is_node_path("__t")
    (True, False, False)
    """
    return not {"\\", "\0"} & set(path) and not any(
        set(part) <= {"."} or part.startswith("__") or part == MARKER for part in path.split("/")
    )


def check_node(path: str, node: Any, url: str) -> None:
    """Raise an error for an invalid Zarr v3 node, or a path that leaves the folder of the set."""
    if not is_node_path(path):
        raise make_damage_error(f"{url}: {path!r} is not the path of a node", "set")
    if not isinstance(node, Mapping):
        raise make_damage_error(f"{url}: node {path!r} is {node!r:.60}", "set")


def _get_mapping(parent: Mapping[str, Any], key: str, url: str) -> Mapping[str, Any]:
    """Return the object under a key, or an empty one if there is none."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise make_damage_error(f"{url}: {key!r} is {value!r:.60}, which is not an object", "set")
    return value


class ValueChunk(NamedTuple):
    """A chunk of a native array: its key, size and SHA-256, and its folder below the array.

    The folder is ``""`` for a chunk at the path that plain Zarr expects.
    """

    key: str
    nbytes: int
    digest: str
    folder: str

    def get_path(self, array: str) -> str:
        """Return the path in the set of the chunk of an array."""
        return "/".join(part for part in (array, self.folder, self.key) if part)


def list_value_chunks(entry: Mapping[str, Any] | None) -> list[ValueChunk]:
    """Return the chunks of a native array from its entry in the note ``values``.

    Chunks from before the last append have a folder of their own in the entry.
    """
    rows = entry["chunks"] if entry else ()
    return [ValueChunk(*(*row, entry["folder"])[:4]) for row in rows]  # type: ignore[index]


def build_value_note(chunks: Sequence[ValueChunk]) -> dict[str, Any]:
    """Return the entry in the note ``values`` for the chunks of a native array."""
    folder = max((chunk.folder for chunk in chunks), default="")
    return {"folder": folder, "chunks": [[*c[: 3 + (c.folder != folder)]] for c in chunks]}


def build_value_entries(path: str, entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the chunks of a native array as entries of a manifest."""
    return {
        ".".join(chunk.key.split("/")[1:]) or "0": {
            "path": f"./{chunk.get_path(path)}",
            "offset": 0,
            "length": chunk.nbytes,
        }
        for chunk in list_value_chunks(entry)
    }


def read_copies(
    path: str, entry: Mapping[str, Any] | None, copies: Mapping[str, str]
) -> Iterator[tuple[str, bytes]]:
    """Yield the path in the set and the bytes of each copy of a chunk in the document.

    A copy whose content does not match its hash is left out.
    """
    if not entry or not copies:
        return
    for chunk in list_value_chunks(entry):
        with suppress(TypeError, ValueError):
            data = base64.b64decode(copies.get(chunk.digest, ""))
            if hashlib.sha256(data).hexdigest() == chunk.digest:
                yield chunk.get_path(path), data


def make_snapshot_id() -> tuple[str, str]:
    """Return a unique snapshot id that sorts by time, and the time."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%S%f}-{secrets.token_hex(4)}", f"{now:%Y-%m-%dT%H:%M:%S.%fZ}"


def join_snapshot_path(name: str) -> str:
    """Return the path of a snapshot in the set."""
    return f"{FOLDER}/{name}/{MARKER}.gz"


# ---------------------------------------------------------------------- chunk keys

ChunkIndex = tuple[int, ...]
SEPARATORS = {"default": "/", "v2": "."}
"""Default separators of indices."""
FORBIDDEN_IN_KEYS = ("..", "\\", "\0", "//", "zarr.json")
"""Strings that a prefix or suffix of keys must not contain."""
MAX_CHILDREN = 1001
"""The default number of entries in a folder of ``fanout``."""
MANIFEST_KEYS = "virtualds.manifest"
"""The encoding of arrays whose references are in a manifest, so that their chunks have no keys.

Readers may ignore storage transformers, and would then take such an array for one without chunks.
No reader may ignore an unknown encoding.
"""


def unravel_in_grid(ids: Ints, grid: tuple[int, ...], origin: Sequence[int] = ()) -> Ints:
    """Return the positions of chunks, as rows, from flat indices in a grid at ``origin``."""
    if not grid:
        return np.zeros((ids.size, 0), np.int64)
    positions = np.stack(np.unravel_index(ids, grid), 1)
    return positions + np.asarray(origin, np.int64) if any(origin) else positions


def number_in_grid(positions: Ints, grid: tuple[int, ...]) -> Ints:
    """Return the flat indices in a grid of positions of chunks, given as rows."""
    numbers = np.ravel_multi_index(tuple(positions.T), grid) if grid else np.zeros(len(positions))
    return np.asarray(numbers, np.int64)


class ChunkKeys(ABC):
    """An encoding of chunk keys; equal objects give equal keys."""

    @abstractmethod
    def __call__(self, chunk_id: ChunkIndex) -> str:
        """Return the key of a chunk."""

    def list_keys(self, ids: Ints, grid: tuple[int, ...], origin: Sequence[int] = ()) -> list[str]:
        """Return the keys of chunks from their flat indices in a grid at ``origin``."""
        return [self(tuple(chunk_id)) for chunk_id in unravel_in_grid(ids, grid, origin).tolist()]

    @abstractmethod
    def _decode(self, key: str, ndim: int) -> ChunkIndex | None:
        """Return the chunk of a key in this encoding; for other keys, the result is undefined."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the encoding as ``chunk_key_encoding``."""

    def parse_key(self, key: str, ndim: int) -> ChunkIndex | None:
        """Return the chunk that a key denotes, or None if it is not the key of a chunk."""
        chunk_id = self._decode(key, ndim)
        # every chunk has exactly one key, without leading zeros
        return chunk_id if chunk_id is not None and self(chunk_id) == key else None


@dataclass(frozen=True)
class SeparatedKeys(ChunkKeys):
    """Encodes indices joined by a separator; ``default`` also has a leading ``c``."""

    name: str
    separator: str

    def list_keys(self, ids: Ints, grid: tuple[int, ...], origin: Sequence[int] = ()) -> list[str]:
        if not grid:
            return [self(())] * ids.size
        # join columns at once, since one call per chunk takes most of the time of writing
        prefix = "" if self.name == "v2" else f"c{self.separator}"
        columns = unravel_in_grid(ids, grid, origin).T.tolist()
        texts = zip(*(map(str, column) for column in columns), strict=True)
        return [prefix + text for text in map(self.separator.join, texts)]

    def __call__(self, chunk_id: ChunkIndex) -> str:
        indices = self.separator.join(map(str, chunk_id))
        if self.name == "v2":
            return indices or "0"
        return f"c{self.separator}{indices}" if chunk_id else "c"

    def _decode(self, key: str, ndim: int) -> ChunkIndex | None:
        if not ndim:
            return ()
        prefix = "" if self.name == "v2" else f"c{self.separator}"
        parts = key.removeprefix(prefix).split(self.separator)
        is_valid = len(parts) == ndim and all(part.isdecimal() and part.isascii() for part in parts)
        return tuple(map(int, parts)) if is_valid else None

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "configuration": {"separator": self.separator}}


PLAIN_KEYS = SeparatedKeys("default", "/")
"""The chunk keys of Zarr v3 arrays that virtualds writes."""
DOTTED_KEYS = SeparatedKeys("v2", ".")
"""The chunk keys of JSON manifests, and of Zarr v2 sets that virtualds writes."""


@dataclass(frozen=True)
class AffixedKeys(ChunkKeys):
    """Adds text before or after the keys of another encoding."""

    name: str
    text: str
    base: ChunkKeys

    def __call__(self, chunk_id: ChunkIndex) -> str:
        key = self.base(chunk_id)
        return f"{self.text}{key}" if self.name == "prefix" else f"{key}{self.text}"

    def _decode(self, key: str, ndim: int) -> ChunkIndex | None:
        cut = key.removeprefix if self.name == "prefix" else key.removesuffix
        return self.base._decode(cut(self.text), ndim)

    def to_json(self) -> dict[str, Any]:
        configuration = {self.name: self.text, "base_encoding": self.base.to_json()}
        return {"name": self.name, "configuration": configuration}


@dataclass(frozen=True)
class FanoutKeys(ChunkKeys):
    """Encodes digits of indices as folders, so that no folder has more than ``max_children``."""

    max_children: int

    def __call__(self, chunk_id: ChunkIndex) -> str:
        axes = (
            f"d{axis}/{'/'.join(self._split_digits(index))}/" for axis, index in enumerate(chunk_id)
        )
        return "".join(axes) + "c"

    def _split_digits(self, index: int) -> list[str]:
        """Return the digits of an index to the base ``max_children - 1``."""
        digits = [str(index % (self.max_children - 1))]
        while index := index // (self.max_children - 1):
            digits.append(str(index % (self.max_children - 1)))
        return digits[::-1]

    def _decode(self, key: str, ndim: int) -> ChunkIndex | None:
        indices: list[int] = []
        for part in key.split("/")[:-1]:
            if part == f"d{len(indices)}":
                indices.append(0)
            elif indices and part.isdecimal() and part.isascii():
                indices[-1] = indices[-1] * (self.max_children - 1) + int(part)
            else:
                return None
        return tuple(indices) if len(indices) == ndim else None

    def to_json(self) -> dict[str, Any]:
        return {"name": "fanout", "configuration": {"max_children": self.max_children}}


def parse_chunk_keys(metadata: Mapping[str, Any]) -> ChunkKeys:
    """Return the chunk keys of an array from its metadata.

    Examples
    --------
    >>> config = {"suffix": ".tiff", "base_encoding": "default"}
    >>> node = {"chunk_key_encoding": {"name": "suffix", "configuration": config}}
    >>> parse_chunk_keys(node)((1, 2)), parse_chunk_keys(node).parse_key("c/1/2.tiff", 2)
    ('c/1/2.tiff', (1, 2))
    """
    return _parse_encoding(metadata.get("chunk_key_encoding", "default"))


def add_manifest_keys(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a virtual array with an encoding that other readers reject.

    Examples
    --------
    >>> node = {"chunk_key_encoding": {"name": "v2"}, "storage_transformers": [{"name": "x"}]}
    >>> add_manifest_keys(node)["chunk_key_encoding"]
    {'name': 'virtualds.manifest', 'configuration': {'base_encoding': {'name': 'v2'}}}
    """
    if not node.get("storage_transformers") or _has_manifest_keys(node):
        return dict(node)
    configuration = {"base_encoding": node.get("chunk_key_encoding", "default")}
    return {**node, "chunk_key_encoding": {"name": MANIFEST_KEYS, "configuration": configuration}}


def drop_manifest_keys(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a virtual array with its original chunk key encoding."""
    if not node.get("storage_transformers") or not _has_manifest_keys(node):
        return dict(node)
    configuration = node["chunk_key_encoding"].get("configuration", {})
    return {**node, "chunk_key_encoding": configuration.get("base_encoding", "default")}


def _has_manifest_keys(node: Mapping[str, Any]) -> bool:
    """Return whether an array has the encoding `MANIFEST_KEYS`."""
    encoding = node.get("chunk_key_encoding")
    return isinstance(encoding, Mapping) and encoding.get("name") == MANIFEST_KEYS


def _parse_encoding(value: Any) -> ChunkKeys:
    """Return the chunk keys of a ``chunk_key_encoding``, which may be a bare name."""
    encoding = value if isinstance(value, Mapping) else {"name": value}
    name, configuration = encoding.get("name"), encoding.get("configuration", {})
    if name == MANIFEST_KEYS:
        raise _make_format_error(name, "no storage transformer says where the manifest is")
    if not isinstance(name, str) or name not in ENCODINGS:
        raise UnsupportedError(
            f"chunk key encoding {name!r}: it is not one of {list(ENCODINGS)}; open the data with "
            f"zarr-python"
        )
    return ENCODINGS[name](name, configuration)


def _parse_separated(name: str, configuration: Mapping[str, Any]) -> SeparatedKeys:
    """Return the chunk keys of ``default`` or ``v2``."""
    separator = configuration.get("separator", SEPARATORS[name])
    if separator not in ("/", "."):
        raise _make_format_error(name, f"separator {separator!r}, not '/' or '.'")
    return SeparatedKeys(name, separator)


def _parse_affixed(name: str, configuration: Mapping[str, Any]) -> AffixedKeys:
    """Return the chunk keys of ``prefix`` or ``suffix``."""
    text = configuration.get(name)
    if (
        not isinstance(text, str)
        or text.startswith("/")
        or any(n in text for n in FORBIDDEN_IN_KEYS)
    ):
        raise _make_format_error(name, f"{name} {text!r} is not a string, or leads elsewhere")
    # the example in the registry has a hyphen in the name
    base = configuration.get("base_encoding", configuration.get("base-encoding"))
    if base is None:
        raise _make_format_error(name, "no base_encoding")
    return AffixedKeys(name, text, _parse_encoding(base))


def _parse_fanout(name: str, configuration: Mapping[str, Any]) -> FanoutKeys:
    """Return the chunk keys of ``fanout``."""
    max_children = configuration.get("max_children", MAX_CHILDREN)
    if type(max_children) is not int or max_children <= 3:
        raise _make_format_error(name, f"max_children {max_children!r}, not a number above 3")
    return FanoutKeys(max_children)


def _make_format_error(name: str, problem: str) -> FormatError:
    """Return the error for an invalid chunk key encoding."""
    return make_damage_error(f"chunk key encoding {name!r}: {problem}", "metadata")


ENCODINGS: dict[str, Callable[[str, Mapping[str, Any]], ChunkKeys]] = {
    "default": _parse_separated,
    "v2": _parse_separated,
    "prefix": _parse_affixed,
    "suffix": _parse_affixed,
    "fanout": _parse_fanout,
}
"""Parsers of encodings, by name."""
