"""A group as the keys and values of a Zarr v3 hierarchy, which any reader of Zarr reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.formats.zarr.document import MARKER, consolidate
from virtualds.formats.zarr_export.arrays import (
    WHOLE_CHUNK,
    ChunkIndex,
    Objection,
    ServedArray,
    UnsupportedArray,
    serve_array,
)
from virtualds.json_values import to_json

CHUNKS = "c"
"""The beginning of chunk keys, below the path of their array."""


@dataclass(frozen=True)
class ZarrView:
    r"""The hierarchy below a group: metadata documents, and chunks.

    Parameters
    ----------
    groups : dict of str to dict
        Attributes of every group by path; the root is under ``""``.
    arrays : dict of str to StoredArray, DecodedArray or UnsupportedArray

    Examples
    --------
    >>> import numpy as np
    >>> from virtualds.arrays.group import ManifestVariable
    >>> group = ManifestGroup({"x": ManifestVariable(("x",), np.arange(3, dtype="u1"))})
    >>> view = ZarrView.of(group, lambda metadata: None)
    >>> list(view.list_keys()), view.get("x/c/0")
    (['zarr.json', 'x/zarr.json', 'x/c/0'], b'\x00\x01\x02')
    """

    groups: Mapping[str, dict[str, Any]]
    arrays: Mapping[str, ServedArray | UnsupportedArray]

    @classmethod
    def of(cls, group: ManifestGroup, objection: Objection) -> ZarrView:
        """Return the hierarchy of a group; ``objection`` says what the reader cannot read.

        Raises
        ------
        UnsupportedError
            An attribute of a group has no form in JSON.
        """
        groups, arrays = {}, {}
        for path, part in group.walk():
            groups[path] = to_json(part.attributes)[0]
            for name, variable in part.variables.items():
                below = f"{path}/{name}" if path else name
                arrays[below] = serve_array(below, variable, objection)
        return cls(groups, arrays)

    # ------------------------------------------------------------------ values

    def get(self, key: str, wanted: slice = WHOLE_CHUNK) -> bytes | None:
        """Return the bytes of a key, None if there is no such key.

        Raises
        ------
        ReadError
            The bytes of a chunk cannot be read, have changed, or do not decode.
        UnsupportedError
            Zarr cannot hold the array of this key.
        """
        if (path := self._find_documented_node(key)) is not None:
            return self._build_document(path)[wanted]
        if (found := self._find_chunk(key)) is not None:
            array, place = found
            return array.read_chunk(place, wanted)
        return None

    def get_size(self, key: str) -> int | None:
        """Return the number of bytes of a key, None if there is no such key."""
        if (path := self._find_documented_node(key)) is not None:
            return len(self._build_document(path))
        found = self._find_chunk(key)
        return None if found is None else found[0].get_nbytes(found[1])

    def _find_documented_node(self, key: str) -> str | None:
        """Return the path of the node whose metadata have this key."""
        path, _, name = key.rpartition("/")
        known = name == MARKER and (path in self.groups or path in self.arrays)
        return path if known else None

    def _build_document(self, path: str) -> bytes:
        if path in self.arrays:
            found = self.arrays[path].metadata
        else:
            found = self._describe_group(path) | self._consolidate(path)
        return json.dumps(found, allow_nan=False, separators=(",", ":")).encode()

    def _describe_group(self, path: str) -> dict[str, Any]:
        return {"zarr_format": 3, "node_type": "group", "attributes": self.groups[path]}

    def _consolidate(self, path: str) -> dict[str, Any]:
        """Return the metadata of all nodes below a group, unless one of its arrays is refused.

        In that case readers look for each array, and get the error of that array alone.
        """
        prefix = f"{path}/" if path else ""
        below = {key: array for key, array in self.arrays.items() if key.startswith(prefix)}
        if any(isinstance(array, UnsupportedArray) for array in below.values()):
            return {}
        nodes = {
            key: self._describe_group(key) for key in self.groups if key and key.startswith(prefix)
        }
        nodes |= {key: array.metadata for key, array in below.items()}
        said = {key.removeprefix(prefix): node for key, node in nodes.items()}
        return consolidate(said)

    def _find_chunk(self, key: str) -> tuple[ServedArray, ChunkIndex] | None:
        """Return the array and the index of a chunk from its key."""
        parts = key.split("/")
        for at in (i for i, part in enumerate(parts) if part == CHUNKS):
            array = self.arrays.get("/".join(parts[:at]))
            place = _parse_index(parts[at + 1 :])
            if array is None or place is None or isinstance(array, UnsupportedArray):
                continue
            if len(place) == len(array.metadata["shape"]):
                return array, place
        return None

    # ------------------------------------------------------------------ keys

    def exists(self, key: str) -> bool:
        """Say whether there is a key; the chunks of decoded arrays are all there."""
        if self._find_documented_node(key) is not None:
            return True
        found = self._find_chunk(key)
        return found is not None and found[0].has(found[1])

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """Yield all keys that begin with a prefix; chunks that are missing have none."""
        for path in (*self.groups, *self.arrays):
            key = _join_path(path, MARKER)
            if key.startswith(prefix):
                yield key
        for path, array in self.arrays.items():
            begin = _join_path(path, CHUNKS)
            if isinstance(array, UnsupportedArray) or not _is_nested(begin, prefix):
                continue
            for place in array.list_chunks():
                key = "/".join((begin, *map(str, place)))
                if key.startswith(prefix):
                    yield key

    def list_names(self, folder: str) -> Iterator[str]:
        """Yield the names directly below a folder, each once."""
        path = folder.strip("/")
        prefix = f"{path}/" if path else ""
        if path in self.groups:
            nodes = [key for key in (*self.groups, *self.arrays) if key]
            below = [key.removeprefix(prefix) for key in nodes if key.startswith(prefix)]
            yield from dict.fromkeys([MARKER, *(key.partition("/")[0] for key in below)])
        elif path in self.arrays:
            yield from (MARKER, CHUNKS)
        else:
            found = (key.removeprefix(prefix) for key in self.list_keys(prefix))
            yield from dict.fromkeys(key.partition("/")[0] for key in found)


def _join_path(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _is_nested(one: str, other: str) -> bool:
    """Say whether one is the beginning of the other."""
    return one.startswith(other) or other.startswith(one)


def _parse_index(parts: list[str]) -> ChunkIndex | None:
    """Return the chunk index in the rest of a key, None if there is none."""
    if all(part.isdecimal() and str(int(part)) == part for part in parts):
        return tuple(map(int, parts))
    return None
