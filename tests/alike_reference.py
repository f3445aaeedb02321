"""What reading files together is to give: each is opened by itself, and compared with the first.

Any parser can be given this; `reading_together` does so for a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.parser import ListedFiles, MustBeEqual, Parser
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store

OF_EACH_FILE = ("source", "original_shape", "preferred_chunks")
"""Encoding that files of one structure need not share."""


@dataclass
class ReadEach:
    """A `ReadTogether` that reads each file, and counts requests and results."""

    parser: Parser
    asked: list[list[str]] = field(default_factory=list)
    found: list[list[int]] = field(default_factory=list)
    """The numbers of the files of each structure."""

    @contextmanager
    def __call__(
        self,
        urls: Sequence[str],
        options: StorageOptions | None,
        group: str | None,
        skip: Iterable[str],
        must_be_equal: MustBeEqual,
        below: bool = False,
    ) -> Iterator[Sequence[ListedFiles]]:
        self.asked.append(list(urls))
        opened = [self._read(url, options, group, tuple(skip), below) for url in urls]
        kinds: list[list[int]] = []
        for number, read in enumerate(opened):
            alike = [kind for kind in kinds if _are_alike(opened[kind[0]], read, must_be_equal)]
            if alike:
                alike[0].append(number)
            elif read is not None:
                kinds.append([number])
        self.found += kinds
        yield [
            ListedFiles([opened[n] for n in kind], kind)  # type: ignore[misc]
            for kind in kinds
        ]

    def _read(
        self, url: str, options: Any, group: str | None, skip: tuple[str, ...], below: bool
    ) -> ManifestGroup | None:
        try:
            source = find_store(url).describe(url, options)
            more = {"below": True} if below else {}
            found = self.parser.read(source, group, skip, **more)
        except (OSError, ValueError, NotImplementedError):
            return None
        held = all(isinstance(v.data, ManifestArray) for v in found.variables.values())
        return found if held and not found.problems else None


def _are_alike(first: Any, other: Any, must_be_equal: MustBeEqual) -> bool:
    if first is None or other is None:
        return False
    one, two = first, other
    return (
        list(one.variables) == list(two.variables)
        and _heeded(one.attributes, must_be_equal) == _heeded(two.attributes, must_be_equal)
        and repr(one.encoding) == repr(two.encoding)
        and all(
            _describe(v, must_be_equal) == _describe(two.variables[n], must_be_equal)
            for n, v in one.variables.items()
        )
    )


def _describe(variable: ManifestVariable, must_be_equal: MustBeEqual) -> Any:
    data: Any = variable.data
    encoding = {n: v for n, v in variable.encoding.items() if n not in OF_EACH_FILE}
    attributes = _heeded(variable.attributes, must_be_equal)
    return (
        variable.dims,
        data.dtype,
        repr(data.pipelines),
        data.has_gaps,
        attributes,
        repr(encoding),
    )


def _heeded(attributes: Mapping[str, Any], must_be_equal: MustBeEqual) -> str:
    return repr({n: v for n, v in attributes.items() if must_be_equal(n, v)})


@contextmanager
def reading_together(parser: Parser) -> Iterator[ReadEach]:
    """Let a parser read files together until the end of the block."""
    before, each = parser.read_together, ReadEach(parser)
    object.__setattr__(parser, "read_together", each)
    try:
        yield each
    finally:
        object.__setattr__(parser, "read_together", before)
