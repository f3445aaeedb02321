"""Regions of arrays are filled, and what no fragment covers is found."""

import random

import numpy as np
import pytest

from virtualds import ChunkAxis, ChunkManifest, CodecPipeline, Fragment, ManifestArray
from virtualds.arrays.concatenate import (
    Box,
    _find_gaps,
    assemble,
    clear_boxes,
    convert_gaps_to_chunks,
    write_region,
)
from virtualds.chunks.fragment import find_regular_chunks
from virtualds.chunks.tables import TiledReferences
from virtualds.source_file import SourceFile

PLAIN = CodecPipeline(np.dtype("f4"), layout=(0,))


def in_file(url: str, lengths: list[int]) -> ManifestArray:
    """An array of uncompressed chunks of some lengths, one behind the other in a file."""
    offsets = np.cumsum([0, *lengths[:-1]]) * 4
    axis = ChunkAxis.from_slabs(lengths, lengths)
    manifest = ChunkManifest.build(
        (len(lengths),), files=[SourceFile(url)], offset=offsets, length=np.array(lengths) * 4
    )
    return ManifestArray.from_fragment(Fragment.whole((axis,), manifest), PLAIN)


@pytest.mark.parametrize("replaces", [True, False])
def test_a_region_over_thousands_of_fragments_is_filled(replaces: bool) -> None:
    count = 1200
    old = [((3 * n,), in_file(f"file:///{n}.bin", [2])) for n in range(count)]
    array = assemble((3 * count,), np.dtype("f4"), np.float32(np.nan), old, ())
    added = in_file("file:///new.bin", [2, 1] * count)
    filled = write_region(array, (0,), added, overwrite=replaces)
    assert not filled.has_gaps
    found = {f.start[0]: f for f in filled.fragments}
    assert len(found) == 2 * count
    assert [found[3 * n].stop[0] for n in range(count)] == [3 * n + 2 for n in range(count)]
    new = "file:///new.bin"
    urls = {start: [file.url for file in f.manifest.sources] for start, f in found.items()}
    assert all(urls[3 * n + 2] == [new] for n in range(count))
    assert all(urls[3 * n] == [new if replaces else f"file:///{n}.bin"] for n in range(count))


@pytest.mark.parametrize(
    ("shape", "others", "gaps"),
    [
        ((), [], [()]),
        ((), [()], []),
        ((0, 3), [], []),
        ((9,), [((2, 4),), ((6, 7),)], [((0, 2),), ((4, 6),), ((7, 9),)]),
        ((9,), [((6, 12),), ((0, 2),)], [((2, 6),)]),
        ((3,), [((0, 3),)], []),
        (
            (6, 6),
            [((2, 4), (1, 3))],
            [((0, 2), (0, 6)), ((2, 4), (0, 1)), ((2, 4), (3, 6)), ((4, 6), (0, 6))],
        ),
        (
            (6, 6),
            [((0, 2), (0, 2)), ((2, 4), (2, 4))],
            [((0, 2), (2, 6)), ((2, 4), (0, 2)), ((2, 4), (4, 6)), ((4, 6), (0, 6))],
        ),
        ((4, 2), [((0, 4), (0, 1)), ((0, 3), (1, 2))], [((3, 4), (1, 2))]),
    ],
)
def test_gaps_are_named(shape: tuple[int, ...], others: list[Box], gaps: list[Box]) -> None:
    assert _find_gaps(tuple((0, n) for n in shape), others) == gaps


def test_gaps_and_fragments_make_up_a_box() -> None:
    draw = random.Random(0)
    for _ in range(300):
        shape = tuple(draw.randint(0, 6) for _ in range(draw.randint(1, 3)))
        covered, others = np.zeros(shape, int), []
        for _ in range(draw.randint(0, 5)):
            sides = [sorted((draw.randint(0, n), draw.randint(0, n))) for n in shape]
            where = tuple(slice(a, b) for a, b in sides)
            if not covered[where].any():
                covered[where] = 1
                others.append(tuple((a, b) for a, b in sides))
        for gap in _find_gaps(tuple((0, n) for n in shape), others):
            assert all(a < b for a, b in gap)
            covered[tuple(slice(a, b) for a, b in gap)] += 1
        assert (covered == 1).all()


def test_gaps_held_as_chunks_keep_a_regular_grid() -> None:
    pipeline = CodecPipeline(np.dtype("f4"), fill=np.float32(3).tobytes(), layout=(0, 1))
    axes = (ChunkAxis.regular(5, 5), ChunkAxis.regular(5, 5))
    parts = []
    for start in (0, 5):
        manifest = ChunkManifest.build(
            (1, 1), files=[SourceFile(f"file:///{start}.bin")], offset=0, length=100
        )
        part = ManifestArray.from_fragment(Fragment.whole(axes, manifest), pipeline)
        parts.append(((start, 0), part))
    array = assemble((10, 10), np.dtype("f4"), np.float32(3), parts, ())
    held = convert_gaps_to_chunks(array)
    assert find_regular_chunks(held.shape, held.fragments) == (5, 5)


def test_gaps_become_missing_chunks_in_the_order_of_their_place() -> None:
    parts = [((n,), in_file("file:///a.bin", [1])) for n in (1, 4)]
    array = assemble((6,), np.dtype("f4"), np.float32(3), parts, ())
    held = convert_gaps_to_chunks(array)
    assert not held.has_gaps
    boxes = [(f.start[0], f.stop[0]) for f in held.fragments]
    assert boxes == [(1, 2), (4, 5), (0, 1), (2, 4), (5, 6)]
    assert all(f.manifest.size == 1 for f in held.fragments)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_cleared_boxes_read_as_missing_and_others_stay(step: int) -> None:
    array = in_file("file:///a.nc", [2] * 40)
    gone = range(4, 30, step)
    cleared = clear_boxes(array, [((2 * n, 2 * n + 2),) for n in gone])
    there = [n for n in range(40) if n not in gone]
    assert cleared.nchunks == len(there)
    for n in there:
        assert cleared[2 * n : 2 * n + 2].has_same_references(array[2 * n : 2 * n + 2])
    # side by side they are one gap
    assert len(cleared.fragments) == (2 if step == 1 else len(gone) + 1)


def test_files_of_a_table_are_listed_once_however_often_it_was_cut_and_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, list_sources = [], TiledReferences.list_sources

    def list_counted(table: TiledReferences) -> tuple[SourceFile, ...]:
        asked.append(table)
        assert len(asked) <= 100
        return list_sources(table)

    monkeypatch.setattr(TiledReferences, "list_sources", list_counted)
    made = in_file("file:///a.nc", [1] * 4).fragments[0].manifest
    for _ in range(40):
        halves = tuple(((n,), made.take(0, slice(n, n + 2))) for n in (0, 2))
        made = ChunkManifest.from_table(TiledReferences((4,), halves), (4,))
    assert [file.url for file in made.listed_files] == ["file:///a.nc"]
