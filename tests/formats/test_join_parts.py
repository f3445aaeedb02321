"""Small additions leave few tables, and do not write large ones again."""

from __future__ import annotations

import random
from itertools import accumulate

from virtualds.chunks.manifest import ChunkManifest
from virtualds.formats.zarr.v3_arrays import ManifestPart
from virtualds.formats.zarr_manifests.join_parts import MOST_JSON, MOST_SMALL, join_small_parts


class Tables:
    """The tables of an array along one axis: their sizes, and how many rows were written."""

    def __init__(self, size: int) -> None:
        self.sizes, self.written = [size], size

    def put(self, sizes: list[int], stored: list[bool]) -> None:
        begins = accumulate(sizes, initial=0)
        parts = [
            ManifestPart(0, (begin,), ChunkManifest.missing((size,)))
            for begin, size in zip(begins, sizes, strict=False)
        ]
        known = {id(part.manifest) for part, there in zip(parts, stored, strict=True) if there}
        found = join_small_parts(parts, lambda _: False, lambda part: id(part.manifest) in known)
        assert sum(part.manifest.size for part in found) == sum(sizes)
        self.written += sum(p.manifest.size for p in found if id(p.manifest) not in known)
        self.sizes = [part.manifest.size for part in found]

    def append(self, count: int) -> None:
        self.put([*self.sizes, count], [True] * len(self.sizes) + [False])

    def insert(self, place: int) -> None:
        sizes: list[int] = []
        stored: list[bool] = []
        for size in self.sizes:
            cut = [place, 1, size - place] if 0 <= place < size else [size]
            sizes += [n for n in cut if n]
            stored += [len(cut) == 1 or n != 1 for n, k in zip(cut, range(3), strict=False) if n]
            place -= size
        self.put(sizes, stored)


def test_a_large_table_is_not_written_again_for_one_reference() -> None:
    tables = Tables(50_000)
    tables.append(1)
    assert tables.sizes == [50_000, 1]
    assert tables.written == 50_001


def test_many_small_additions_leave_few_tables_and_write_each_reference_a_few_times() -> None:
    tables = Tables(1)
    for _ in range(2000):
        tables.append(1)
    assert len(tables.sizes) < 8
    assert tables.written < 2000 * 12


def test_additions_between_others_leave_few_tables() -> None:
    chance, tables = random.Random(0), Tables(50_000)
    for _ in range(100):
        tables.insert(chance.randrange(sum(tables.sizes)))
        # two large neighbours are left apart, too
        assert len(tables.sizes) <= MOST_SMALL + 50_000 // MOST_JSON
    assert tables.written < 100 * 50_000 / 4


def test_what_has_to_be_written_anyway_is_written_as_one_table() -> None:
    tables = Tables(50_000)
    tables.put([50_000, 1, 3, 2], [False] * 4)
    assert tables.sizes == [50_006]
