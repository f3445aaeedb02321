"""Small additions leave few tables, and do not write large ones again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import accumulate

import pytest

from virtualds.chunks.manifest import ChunkManifest
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.formats.zarr_manifests.join_parts import (
    MAX_INLINE,
    MAX_JSON,
    MAX_SMALL,
    TABLES_PER_TIER,
    join_small_parts,
)
from virtualds.source_file import SourceFile

FILES = [SourceFile("file:///a.nc")]


class Tables:
    """The tables of an array along one axis: their sizes, and how many rows were written.

    ``names`` are those of the tables; parts that stand in the metadata have none.
    """

    def __init__(self, size: int) -> None:
        self.sizes, self.written, self.names = [size], size, [self._name(size)]

    def _name(self, size: int) -> int | None:
        self.count = getattr(self, "count", 0) + 1
        return self.count if size > MAX_INLINE else None

    def put(self, sizes: list[int], names: list[int | None]) -> None:
        begins = accumulate(sizes, initial=0)
        parts = [
            ManifestPart(0, (begin,), ChunkManifest.build((size,), files=FILES, length=1))
            for begin, size in zip(begins, sizes, strict=False)
        ]
        known = {id(part.manifest): name for part, name in zip(parts, names, strict=True)}
        found = join_small_parts(parts, lambda _: False, lambda part: known.get(id(part.manifest)))
        assert sum(part.manifest.size for part in found) == sum(sizes)
        self.sizes = [part.manifest.size for part in found]
        kept = [known.get(id(part.manifest)) for part in found]
        self.written += sum(
            size for size, name in zip(self.sizes, kept, strict=True) if name is None
        )
        self.names = [
            self._name(size) if name is None else name
            for size, name in zip(self.sizes, kept, strict=True)
        ]

    def append(self, count: int) -> None:
        self.put([*self.sizes, count], [*self.names, None])

    def prepend(self, count: int) -> None:
        self.put([count, *self.sizes], [None, *self.names])

    def insert(self, place: int) -> None:
        sizes: list[int] = []
        names: list[int | None] = []
        for size, name in zip(self.sizes, self.names, strict=True):
            cut = [place, 1, size - place] if 0 <= place < size else [size]
            found = [name, None, name] if len(cut) == 3 else [name]
            sizes += [n for n in cut if n]
            names += [one for n, one in zip(cut, found, strict=True) if n]
            place -= size
        self.put(sizes, names)


def test_a_large_table_is_not_written_again_for_one_reference() -> None:
    tables = Tables(50_000)
    tables.append(1)
    assert tables.sizes == [50_000, 1]
    assert tables.written == 50_001


@pytest.mark.parametrize("add", [Tables.append, Tables.prepend])
@pytest.mark.parametrize(("size", "rewritten"), [(1, 12), (24, 5), (500, 5)])
def test_many_additions_leave_few_tables_and_write_each_reference_a_few_times(
    add: Callable[[Tables, int], None], size: int, rewritten: int
) -> None:
    tables = Tables(size)
    for _ in range(2000):
        add(tables, size)
        # of each tier of sizes fewer than make one of the next, and one part in the metadata
        tiers = math.log(sum(tables.sizes) / min(size, MAX_INLINE) + 1, TABLES_PER_TIER) + 1
        assert len(tables.sizes) <= (TABLES_PER_TIER - 1) * tiers + 1
    # what stands in the metadata is written with each of them
    assert tables.written < 2000 * size * rewritten


def test_small_and_large_additions_in_turn_leave_few_tables() -> None:
    tables = Tables(1000)
    for _ in range(300):
        tables.append(20)
        tables.append(1000)
    assert len(tables.sizes) < 20
    assert tables.written < 300 * 1020 * 8


def test_additions_between_others_leave_few_tables() -> None:
    chance, tables = random.Random(0), Tables(50_000)
    for _ in range(100):
        tables.insert(chance.randrange(sum(tables.sizes)))
        # two large neighbours are left apart, too
        assert len(tables.sizes) <= MAX_SMALL + 50_000 // MAX_JSON
    assert tables.written < 100 * 50_000 / 4


def test_what_has_to_be_written_anyway_is_written_as_one_table() -> None:
    tables = Tables(50_000)
    tables.put([50_000, 1, 3, 2], [None] * 4)
    assert tables.sizes == [50_006]


def test_tables_may_stay_as_they_are() -> None:
    parts = [
        ManifestPart(0, (100 * n,), ChunkManifest.build((100,), files=FILES, length=1))
        for n in range(2 * TABLES_PER_TIER)
    ]
    tables = {id(part.manifest): number for number, part in enumerate(parts)}
    arguments = parts, lambda _: False, lambda part: tables.get(id(part.manifest))
    assert join_small_parts(*arguments, merges=False) == parts
    assert len(join_small_parts(*arguments)) < len(parts)
