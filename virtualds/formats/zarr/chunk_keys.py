"""Keys of chunks below the folder of an array.

``default`` and ``v2``: Zarr core specification version 3.0, "Chunk key encoding". ``prefix``,
``suffix`` and ``fanout`` are registered in zarr-extensions. `MANIFEST_KEYS` is our own, and stands
in reference sets alone (``docs/reference/formats/zarr-v3.md``, "Chunk key encoding
`virtualds.manifest`").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from virtualds.errors import FormatError, UnsupportedError

ChunkIndex = tuple[int, ...]
SEPARATORS = {"default": "/", "v2": "."}
"""Default separators of indices."""
NOT_IN_KEYS = ("..", "\\", "\0", "//", "zarr.json")
"""What a prefix or suffix of keys must not hold."""
MOST_CHILDREN = 1001
"""Default number of entries of a folder of ``fanout``."""
MANIFEST_KEYS = "virtualds.manifest"
"""The encoding of an array whose chunks have no keys of their own: a manifest says where they lie.

Readers may ignore storage transformers, and take such an array for one without chunks. No reader
may ignore the name of an encoding.
"""


class ChunkKeys(ABC):
    """Keys of chunks in one encoding; equal ones give equal keys."""

    @abstractmethod
    def __call__(self, place: ChunkIndex) -> str:
        """Return the key of a chunk."""

    @abstractmethod
    def read(self, key: str, ndim: int) -> ChunkIndex | None:
        """Return the chunk of a key of this encoding; other keys may give anything."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the ``chunk_key_encoding``."""

    def parse_key(self, key: str, ndim: int) -> ChunkIndex | None:
        """Return which chunk has a key, None if it is not the key of a chunk."""
        found = self.read(key, ndim)
        # a chunk has one key only, without leading zeros
        return found if found is not None and self(found) == key else None


@dataclass(frozen=True)
class SeparatedKeys(ChunkKeys):
    """Indices with a separator between them; ``default`` has a ``c`` before them."""

    name: str
    separator: str

    def __call__(self, place: ChunkIndex) -> str:
        """Return the key of a chunk."""
        indices = self.separator.join(map(str, place))
        if self.name == "v2":
            return indices or "0"
        return f"c{self.separator}{indices}" if place else "c"

    def read(self, key: str, ndim: int) -> ChunkIndex | None:
        """Return the chunk that a key is of, if it is one."""
        if not ndim:
            return ()
        before = "" if self.name == "v2" else f"c{self.separator}"
        return _parse_indices(key.removeprefix(before).split(self.separator), ndim)

    def to_json(self) -> dict[str, Any]:
        """Return the ``chunk_key_encoding``."""
        return {"name": self.name, "configuration": {"separator": self.separator}}


@dataclass(frozen=True)
class AffixedKeys(ChunkKeys):
    """Keys of another encoding with text before or behind them."""

    name: str
    text: str
    base: ChunkKeys

    def __call__(self, place: ChunkIndex) -> str:
        """Return the key of a chunk."""
        key = self.base(place)
        return f"{self.text}{key}" if self.name == "prefix" else f"{key}{self.text}"

    def read(self, key: str, ndim: int) -> ChunkIndex | None:
        """Return the chunk that a key is of, if it is one."""
        cut = key.removeprefix if self.name == "prefix" else key.removesuffix
        return self.base.read(cut(self.text), ndim)

    def to_json(self) -> dict[str, Any]:
        """Return the ``chunk_key_encoding``."""
        said = {self.name: self.text, "base_encoding": self.base.to_json()}
        return {"name": self.name, "configuration": said}


@dataclass(frozen=True)
class FanoutKeys(ChunkKeys):
    """Digits of indices as folders, so that no folder has more than ``most`` entries."""

    most: int

    def __call__(self, place: ChunkIndex) -> str:
        """Return the key of a chunk."""
        axes = (
            f"d{axis}/{'/'.join(self._split_digits(index))}/" for axis, index in enumerate(place)
        )
        return "".join(axes) + "c"

    def _split_digits(self, index: int) -> list[str]:
        digits = [str(index % (self.most - 1))]
        while index := index // (self.most - 1):
            digits.append(str(index % (self.most - 1)))
        return digits[::-1]

    def read(self, key: str, ndim: int) -> ChunkIndex | None:
        """Return the chunk that a key is of, if it is one."""
        found: list[int] = []
        for part in key.split("/")[:-1]:
            if part == f"d{len(found)}":
                found.append(0)
            elif found and part.isdecimal() and part.isascii():
                found[-1] = found[-1] * (self.most - 1) + int(part)
            else:
                return None
        return tuple(found) if len(found) == ndim else None

    def to_json(self) -> dict[str, Any]:
        """Return the ``chunk_key_encoding``."""
        return {"name": "fanout", "configuration": {"max_children": self.most}}


def _parse_indices(parts: list[str], ndim: int) -> ChunkIndex | None:
    if len(parts) != ndim or not all(part.isdecimal() and part.isascii() for part in parts):
        return None
    return tuple(map(int, parts))


def parse_chunk_keys(metadata: Mapping[str, Any]) -> ChunkKeys:
    """Return the keys of an array from its metadata.

    Examples
    --------
    >>> said = {"suffix": ".tiff", "base_encoding": "default"}
    >>> keys = parse_chunk_keys({"chunk_key_encoding": {"name": "suffix", "configuration": said}})
    >>> keys((1, 2)), keys.parse_key("c/1/2.tiff", 2)
    ('c/1/2.tiff', (1, 2))
    """
    return _parse_encoding(metadata.get("chunk_key_encoding", "default"))


def add_manifest_keys(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a virtual array such that readers without manifests refuse it.

    Examples
    --------
    >>> node = {"chunk_key_encoding": {"name": "v2"}, "storage_transformers": [{"name": "x"}]}
    >>> add_manifest_keys(node)["chunk_key_encoding"]
    {'name': 'virtualds.manifest', 'configuration': {'base_encoding': {'name': 'v2'}}}
    """
    if not node.get("storage_transformers") or _has_manifest_keys(node):
        return dict(node)
    said = {"base_encoding": node.get("chunk_key_encoding", "default")}
    return {**node, "chunk_key_encoding": {"name": MANIFEST_KEYS, "configuration": said}}


def drop_manifest_keys(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a virtual array with the encoding of the keys in its manifest."""
    if not node.get("storage_transformers") or not _has_manifest_keys(node):
        return dict(node)
    said = node["chunk_key_encoding"].get("configuration", {})
    return {**node, "chunk_key_encoding": said.get("base_encoding", "default")}


def _has_manifest_keys(node: Mapping[str, Any]) -> bool:
    said = node.get("chunk_key_encoding")
    return isinstance(said, Mapping) and said.get("name") == MANIFEST_KEYS


def _parse_encoding(said: Any) -> ChunkKeys:
    encoding = said if isinstance(said, Mapping) else {"name": said}
    name, how = encoding.get("name"), encoding.get("configuration", {})
    if name == MANIFEST_KEYS:
        raise _format_error(name, "no storage transformer says where the manifest is")
    if not isinstance(name, str) or name not in ENCODINGS:
        raise UnsupportedError(
            f"chunk key encoding {name!r}: it is not one of {list(ENCODINGS)}; open the data with "
            f"zarr-python"
        )
    return ENCODINGS[name](name, how)


def _parse_separated(name: str, how: Mapping[str, Any]) -> SeparatedKeys:
    separator = how.get("separator", SEPARATORS[name])
    if separator not in ("/", "."):
        raise _format_error(name, f"separator {separator!r}, not '/' or '.'")
    return SeparatedKeys(name, separator)


def _parse_affixed(name: str, how: Mapping[str, Any]) -> AffixedKeys:
    text = how.get(name)
    if not isinstance(text, str) or text.startswith("/") or any(n in text for n in NOT_IN_KEYS):
        raise _format_error(name, f"{name} {text!r} leads elsewhere, or is not a text")
    # the registry's own example spells it with a hyphen
    base = how.get("base_encoding", how.get("base-encoding"))
    if base is None:
        raise _format_error(name, "no base_encoding")
    return AffixedKeys(name, text, _parse_encoding(base))


def _parse_fanout(name: str, how: Mapping[str, Any]) -> FanoutKeys:
    most = how.get("max_children", MOST_CHILDREN)
    if type(most) is not int or most <= 3:
        raise _format_error(name, f"max_children {most!r}, not a number above 3")
    return FanoutKeys(most)


def _format_error(name: str, what: str) -> FormatError:
    return FormatError(f"chunk key encoding {name!r}: {what}; the metadata is damaged")


ENCODINGS: dict[str, Callable[[str, Mapping[str, Any]], ChunkKeys]] = {
    "default": _parse_separated,
    "v2": _parse_separated,
    "prefix": _parse_affixed,
    "suffix": _parse_affixed,
    "fanout": _parse_fanout,
}
"""Parsers of encodings, by name."""
