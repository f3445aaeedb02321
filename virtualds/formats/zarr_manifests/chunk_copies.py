"""Which chunks of native arrays the root of a set repeats, so that opening needs no other file.

Opening a set loads its small coordinates. Far away each of them would cost a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualds.formats.zarr.document import COPIES, Document, copy_chunk, list_value_chunks

MOST_OF_COORDINATE = 2**16
"""Bytes of a chunk of a coordinate or scalar that is repeated: every commit writes it again."""
MOST_OF_OTHER = 2**14
"""Bytes of a chunk of any other array that is repeated."""
MOST_IN_ALL = 2**20
"""Bytes of all chunks that a root repeats; the shortest come first."""


class ChunkCopies:
    """The chunks of the native arrays of one snapshot, as far as they are small.

    Parameters
    ----------
    before : Document or None
        The snapshot that it follows, whose copies are kept.
    """

    def __init__(self, before: Document | None) -> None:
        self._known: Mapping[str, str] = before.notes.get(COPIES, {}) if before else {}
        self._found: dict[str, dict[str, str]] = {}

    def add(self, path: str, digest: str, data: bytes) -> None:
        """Add a chunk of an array."""
        if len(data) <= MOST_OF_COORDINATE:
            self._found.setdefault(path, {})[digest] = copy_chunk(data)

    def keep(self, path: str, noted: Mapping[str, Any]) -> None:
        """Keep the copies of an array whose chunks are those of the snapshot before."""
        digests = (chunk.digest for chunk in list_value_chunks(noted))
        self._found[path] = {d: self._known[d] for d in digests if d in self._known}

    def choose(self, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Return the copies that the root gets, by hash; equal chunks of many groups once."""
        wanted = {
            digest: text
            for path, copies in self._found.items()
            for digest, text in copies.items()
            if is_loaded_first(path, nodes[path]) or _count_bytes(text) <= MOST_OF_OTHER
        }
        chosen, left = dict[str, str](), MOST_IN_ALL
        for digest, text in sorted(wanted.items(), key=lambda item: len(item[1])):
            left -= _count_bytes(text)
            if left < 0:
                break
            chosen[digest] = text
        return chosen


def _count_bytes(text: str) -> int:
    """Return how many bytes a text of base64 stands for.

    >>> _count_bytes("AAAA"), _count_bytes("AAA="), _count_bytes("AA==")
    (3, 2, 1)
    """
    return len(text) // 4 * 3 - text[-2:].count("=")


def is_loaded_first(path: str, node: Mapping[str, Any]) -> bool:
    """Say whether an array is a coordinate that bears the name of its dimension, or a scalar."""
    return node.get("dimension_names", []) in ([], [path.rpartition("/")[2]])
