"""Which files cover which positions, as a walk over all chunks finds it."""

from __future__ import annotations

import numpy as np
import pytest

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.sources import INLINE_URL, find_coverage, mask_covered
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.source_file import SourceFile

BYTES = np.dtype("u1")
FILES = [SourceFile(f"file:///{name}.nc", 10**6) for name in "abcd"]


def make_array(random: np.random.Generator, files: list[SourceFile]) -> ManifestArray:
    """An array along two axes, of chunks in files, in the set, and missing ones."""
    grid, chunk = (int(random.integers(1, 9)), 3), int(random.integers(1, 4))
    file = random.choice([*range(len(files)), INLINE, MISSING], grid).astype(np.int32)
    length = np.where(file == MISSING, 0, chunk * 2)
    manifest = ChunkManifest.build(
        grid, files=files, inline=(bytes(chunk * 2),), file=file, length=length
    )
    axes = ChunkAxis.regular(grid[0] * chunk, chunk), ChunkAxis.regular(6, 2)
    shape = grid[0] * chunk, 6
    return ManifestArray(
        shape, BYTES, 0, (CodecPipeline(BYTES),), (Fragment.whole(axes, manifest),)
    )


@pytest.mark.parametrize("seed", range(8))
def test_positions_and_stretches_are_those_of_the_chunks(seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays = [make_array(random, some) for some in (FILES[:2], FILES[1:])]
    size = max(array.shape[0] for array in arrays)
    covered: dict[str, set[int]] = {}
    for array in arrays:
        [fragment] = array.fragments
        for (row, _), code in np.ndenumerate(fragment.manifest.file):
            if code != MISSING:
                files = fragment.manifest.files
                url = INLINE_URL if code == INLINE else files[int(code)].url
                begin, stop = fragment.edges(0)[row : row + 2].tolist()
                covered.setdefault(url, set()).update(range(begin, stop))
    pairs = [(array, 0) for array in arrays]
    for urls in (None, {FILES[1].url, INLINE_URL}, {FILES[3].url}, set[str]()):
        found = find_coverage(size, pairs, urls)
        kept = {url: met for url, met in covered.items() if urls is None or url in urls}
        if urls is not None and not urls & {file.url for file in FILES}:
            kept = {}
        stretches = found.collect_ranges()
        assert {
            u: {n for run in runs for n in range(*run)} for u, runs in stretches.items()
        } == kept
    for chosen in (*covered, "no file"):
        marked = mask_covered(size, pairs, chosen.__eq__)
        assert set(np.flatnonzero(marked).tolist()) == covered.get(chosen, set())
    everywhere = mask_covered(size, pairs, lambda url: True)
    nowhere = mask_covered(size, pairs, lambda url: False)
    assert set(np.flatnonzero(everywhere).tolist()) == set().union(*covered.values())
    assert not nowhere.any()


def test_one_file_of_all_chunks_covers_all_positions() -> None:
    manifest = ChunkManifest.build((3, 2), files=FILES[:1], length=4)
    axes = ChunkAxis.regular(6, 2), ChunkAxis.regular(4, 2)
    pipelines, fragments = (CodecPipeline(BYTES),), (Fragment.whole(axes, manifest),)
    array = ManifestArray((6, 4), BYTES, 0, pipelines, fragments)
    found = find_coverage(6, [(array, 0)], None).collect_ranges()
    assert {url: [tuple(run) for run in runs] for url, runs in found.items()} == {
        FILES[0].url: [(0, 6)]
    }
