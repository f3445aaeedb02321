"""What reading files together is to give: each is opened by itself, and compared with the first.

Any parser can be given this; `reading_together` does so for a block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from virtualds.arrays.alike_files import AlikeRun
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.parser import Parser
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store

OF_EACH_FILE = ("source", "original_shape", "preferred_chunks")
"""Encoding that files of one structure need not share."""


@dataclass(frozen=True)
class GroupsTogether:
    """Groups that were read one by one."""

    groups: Sequence[ManifestGroup]
    sources: Sequence[SourceFile]

    @property
    def group(self) -> ManifestGroup:
        return self.groups[0]

    @property
    def lengths(self) -> Mapping[str, Any]:
        sizes = [_sizes(group) for group in self.groups]
        return {dim: np.array([size[dim] for size in sizes], np.int64) for dim in sizes[0]}

    def _arrays(self, name: str) -> list[Any]:
        return [group.variables[name].data for group in self.groups]

    def join(self, name: str, dim: str) -> ManifestArray:
        axis = self.group.variables[name].dims.index(dim)
        joined: Any = np.concatenate(self._arrays(name), axis=axis)
        return joined

    def get_values(self, name: str) -> None:
        """Have all values read."""

    def stack(self, name: str) -> ManifestArray:
        stacked: Any = np.concatenate([array.insert_axis(0) for array in self._arrays(name)])
        return stacked


@dataclass
class ReadEach:
    """A `ReadAlike` that reads each file; it counts what it was asked for, and what came of it."""

    parser: Parser
    asked: list[list[str]] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)

    def __call__(
        self,
        urls: Sequence[str],
        options: StorageOptions | None,
        group: str | None,
        skip: Iterable[str],
        heeded: Collection[str] | None,
    ) -> Sequence[AlikeRun]:
        self.asked.append(list(urls))
        opened = [self._read(url, options, group, tuple(skip)) for url in urls]
        found, start = list[AlikeRun](), 0
        while start < len(urls):
            stop, first = start + 1, opened[start]
            while stop < len(urls) and _are_alike(first, opened[stop], heeded):
                stop += 1
            members = [pair for pair in opened[start:stop] if pair is not None]
            if members:
                sources, groups = zip(*members, strict=True)
                found.append(AlikeRun(start, GroupsTogether(groups, sources)))
                self.runs.append((start, stop))
            start = stop
        return found

    def _read(
        self, url: str, options: Any, group: str | None, skip: tuple[str, ...]
    ) -> tuple[SourceFile, ManifestGroup] | None:
        try:
            source = find_store(url).describe(url, options)
            found = self.parser.read(source, group, skip)
        except (OSError, ValueError, NotImplementedError):
            return None
        held = all(isinstance(v.data, ManifestArray) for v in found.variables.values())
        return (source, found) if held and not found.problems else None


def _sizes(group: ManifestGroup) -> dict[str, int]:
    variables = group.variables.values()
    return {d: n for v in variables for d, n in zip(v.dims, v.data.shape, strict=True)}


def _are_alike(first: Any, other: Any, heeded: Collection[str] | None) -> bool:
    if first is None or other is None:
        return False
    one, two = first[1], other[1]
    return (
        list(one.variables) == list(two.variables)
        and _heeded(one.attributes, heeded) == _heeded(two.attributes, heeded)
        and repr(one.encoding) == repr(two.encoding)
        and all(
            _describe(v, heeded) == _describe(two.variables[n], heeded)
            for n, v in one.variables.items()
        )
    )


def _describe(variable: ManifestVariable, heeded: Collection[str] | None) -> Any:
    data: Any = variable.data
    encoding = {n: v for n, v in variable.encoding.items() if n not in OF_EACH_FILE}
    attributes = _heeded(variable.attributes, heeded)
    return (
        variable.dims,
        data.dtype,
        repr(data.pipelines),
        data.has_gaps,
        attributes,
        repr(encoding),
    )


def _heeded(attributes: Mapping[str, Any], heeded: Collection[str] | None) -> str:
    return repr({n: v for n, v in attributes.items() if heeded is None or n in heeded})


@contextmanager
def reading_together(parser: Parser) -> Iterator[ReadEach]:
    """Let a parser read files together until the end of the block."""
    before, each = parser.read_alike, ReadEach(parser)
    object.__setattr__(parser, "read_alike", each)
    try:
        yield each
    finally:
        object.__setattr__(parser, "read_alike", before)
