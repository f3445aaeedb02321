"""References take what their columns take, while they are built, joined and written.

A reference takes 4 bytes for its file, 8 for its offset and 8 for its length; 8 for a checksum and
2 for a pipeline where there are any. Whoever works on them may take a buffer of a size that does
not depend on how many there are. Two sets cannot do so: a kerchunk JSON set is one document, which
is in memory as a whole while it is written and read, and Icechunk's library takes all references of
an array at once, with a text for each url.
"""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import virtualds
from virtualds import (
    ChunkAxis,
    ChunkManifest,
    CodecPipeline,
    Fragment,
    ManifestArray,
    SourceFile,
)
from virtualds.chunks.manifest import iterate_references
from virtualds.chunks.tables import StridedReferences
from virtualds.formats.zarr_manifests.write_snapshot import SnapshotWriter
from virtualds.source_file import CHECKSUM_FLAG

FILES, ROWS, COLUMNS = 20, 100, 100
"""Chunks along the axes of a part: one along the first axis for each file, times their number."""

DENSE = 20
"""Bytes of a reference without checksum and pipeline."""

WORK = 16 * 2**20
"""Bytes of the buffer of who builds or joins references."""

SUFFIXES = {"zarr-v3": ".zarr", "kerchunk-parquet": ".parquet"}

OPENED = 128 * 2**20
"""Bytes of the records that two opened sets keep."""


def over(work: Callable[[], Any]) -> tuple[int, int]:
    """Return the bytes that are held of what work makes, and the most it takes besides."""
    tracemalloc.start()
    try:
        found = work()
        held, peak = tracemalloc.get_traced_memory()
        del found
        return held, peak - held
    finally:
        tracemalloc.stop()


def columns_of(steps: int, seed: int = 0) -> dict[str, Any]:
    """The columns of a part of ``FILES`` files with so many steps each."""
    grid = (FILES * steps, ROWS, COLUMNS)
    length = np.random.default_rng(seed).integers(500, 1500, grid)
    names = [f"s3://bucket/product_{seed}_{number:06d}.nc" for number in range(FILES)]
    return {
        "files": [SourceFile(name, size=2**50) for name in names],
        "file": np.repeat(np.arange(FILES, dtype=np.int32), steps * ROWS * COLUMNS).reshape(grid),
        "offset": np.cumsum(length).reshape(grid) - length,
        "length": length,
    }


def part(steps: int, seed: int = 0) -> xr.Dataset:
    """A part of an archive, of which only the references exist."""
    columns = columns_of(steps, seed)
    grid = columns["file"].shape
    return dataset(ChunkManifest.build(grid, **columns), grid)


def dataset(manifest: ChunkManifest, grid: tuple[int, ...]) -> xr.Dataset:
    axes = tuple(ChunkAxis.regular(n * 2, 2) for n in grid)
    pipeline = CodecPipeline(np.dtype("f4"), layout=(0, 1, 2))
    array = ManifestArray.from_fragment(Fragment.whole(axes, manifest), pipeline)
    return xr.Dataset({"v": (("time", "y", "x"), array)})


def join_to(parts: list[xr.Dataset], target: Path) -> Callable[[], None]:
    """Return the work of joining parts and writing them."""
    return lambda: xr.concat(parts, "time").virtual.to_manifest(target)


@pytest.mark.parametrize("beside", ["", "checksum", "pipeline", "missing"])
def test_building_takes_no_second_set_of_columns(beside: str) -> None:
    columns = columns_of(10)
    grid = columns["file"].shape
    if beside == "checksum":
        columns["checksum"] = CHECKSUM_FLAG + columns["length"].astype(np.uint64)
    if beside == "pipeline":
        columns["pipeline"] = (columns["length"] % 2).astype(np.uint16)
    if beside == "missing":
        columns["file"][::2] = -1
    held, most = over(lambda: ChunkManifest.build(grid, **columns))
    assert held < 2**20 and most < WORK < DENSE * np.prod(grid) / 2


@pytest.mark.parametrize("axis", ["time", "x"])
def test_joining_takes_the_columns_of_the_result(axis: str) -> None:
    parts = [part(2, seed) for seed in range(5)]
    count = sum(one.virtual.nchunks for one in parts)
    held, most = over(lambda: xr.concat(parts, axis))
    assert held < DENSE * count + 2**20
    assert most < WORK < DENSE * count / 2


def test_parts_are_put_in_order_with_the_columns_of_the_result() -> None:
    whole = xr.concat([part(2, seed) for seed in range(5)], "time")
    order = np.arange(whole.sizes["time"]).reshape(-1, 2)[::-1].ravel()
    held, most = over(lambda: whole.isel(time=order))
    assert held < DENSE * whole.virtual.nchunks + 2**20
    # the rows are taken, and then their files are numbered in turn
    assert most < DENSE * whole.virtual.nchunks + WORK


@pytest.mark.parametrize("name", SUFFIXES)
def test_writing_takes_a_buffer(name: str, tmp_path: Path) -> None:
    taken = []
    for steps in (5, 20):
        whole, target = part(steps), tmp_path / f"{steps}{SUFFIXES[name]}"
        held, most = over(lambda made=whole, to=target: made.virtual.to_manifest(to))
        taken.append(held + most)
    # 3,000,000 more references, which take 60 MB
    assert taken[1] - taken[0] < 3_000_000


# Each of many references becomes a text: 2 s.
@pytest.mark.full
def test_a_json_document_is_written_in_little_more_than_twice_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "virtualds.formats.kerchunk.encode_json"
    monkeypatch.setattr(
        f"{module}.iterate_references", partial(iterate_references, block_size=2**14)
    )
    whole, target = part(1), tmp_path / "refs.json"
    _, most = over(lambda: whole.virtual.to_manifest(target))
    # its blocks, the whole, and the texts of one block of references
    assert most < 2 * target.stat().st_size + WORK


@pytest.mark.full
@pytest.mark.parametrize("name", SUFFIXES)
def test_sets_are_joined_and_written_record_by_record(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # records that are kept, of which these sets would fill the room
    monkeypatch.setattr("virtualds.formats.kerchunk.records.MAX_CACHED_ROWS", 2**18)
    monkeypatch.setattr("virtualds.formats.zarr_manifests.set_files.CACHED_RECORDS", 4)
    taken = []
    for steps in (5, 10):
        target = tmp_path / f"{steps}{SUFFIXES[name]}"
        part(steps).virtual.to_manifest(target)
        opened = [virtualds.open_virtual_dataset(target) for _ in range(2)]
        # a set of another kind, so that all references are written anew
        other = ".parquet" if name == "zarr-v3" else ".zarr"
        taken.append(sum(over(join_to(opened, tmp_path / f"joined-{steps}{other}"))))
    # 2,000,000 more references, which take 40 MB
    assert taken[1] - taken[0] < 6_000_000


def formula(count: int) -> xr.Dataset:
    """Records of a classic netCDF file: three numbers say where they lie."""
    grid = (count // 10_000, 100, 100)
    file = SourceFile(f"file:///{count}.nc", size=2**50)
    return dataset(ChunkManifest.from_table(StridedReferences(file, 96, 24, 16, count), grid), grid)


def test_a_thousand_million_references_of_a_formula_are_joined_and_cut() -> None:
    parts = [formula(10**9), formula(10**9)]
    _, most = over(lambda: xr.concat(parts, "time"))
    assert most < 2**20
    whole = xr.concat(parts, "time")
    assert whole.virtual.nchunks == 2 * 10**9
    first, second = (f.manifest for f in whole["v"].data.fragments)
    assert first.lookup((0, 0, 1)).offset == second.lookup((0, 0, 1)).offset == 96 + 24
    cut = whole.isel(time=slice(2 * 10**5 - 2, 2 * 10**5 + 2))
    assert [f.manifest.shape for f in cut["v"].data.fragments] == [(1, 100, 100)] * 2


@pytest.mark.parametrize("name", SUFFIXES)
def test_references_of_a_formula_are_written_without_all_columns(name: str, tmp_path: Path) -> None:
    taken = []
    for count in (10**6, 4 * 10**6):
        whole = xr.concat([formula(count // 2)] * 2, "time")
        target = tmp_path / f"{count}{SUFFIXES[name]}"
        taken.append(sum(over(lambda made=whole, to=target: made.virtual.to_manifest(to))))
        opened = virtualds.open_virtual_dataset(target)["v"].data[:1].manifest.loaded()
        assert opened.offset.ravel()[:2].tolist() == [96, 120]
    assert taken[1] - taken[0] < 3_000_000


# 20 s each: what grows is seen of fewer above, too
@pytest.mark.soak
@pytest.mark.parametrize("name", SUFFIXES)
def test_ten_million_references_take_their_columns_in_every_step(name: str, tmp_path: Path) -> None:
    parts = [part(10, seed) for seed in range(5)]
    count = sum(one.virtual.nchunks for one in parts)
    assert count == 10**7
    held, most = over(lambda: xr.concat(parts, "time"))
    assert held < DENSE * count + 2**20 and most < WORK
    whole, target = xr.concat(parts, "time"), tmp_path / f"refs{SUFFIXES[name]}"
    assert sum(over(lambda: whole.virtual.to_manifest(target))) < 2 * WORK
    opened = [virtualds.open_virtual_dataset(target) for _ in range(2)]
    again = tmp_path / f"again{SUFFIXES[name]}"
    assert sum(over(join_to(opened, again))) < OPENED + 2 * WORK


@pytest.mark.full
def test_a_writer_is_in_no_circle_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build opens its set again, when all files would wait for the garbage collector."""
    writers = list[weakref.ref[SnapshotWriter]]()
    write = SnapshotWriter.write

    def write_and_note(self: SnapshotWriter, group: Any) -> Any:
        writers.append(weakref.ref(self))
        return write(self, group)

    monkeypatch.setattr(SnapshotWriter, "write", write_and_note)
    whole = part(1)
    gc.disable()
    try:
        whole.virtual.to_manifest(tmp_path / "refs.zarr")
        assert [writer() for writer in writers] == [None]
    finally:
        gc.enable()
