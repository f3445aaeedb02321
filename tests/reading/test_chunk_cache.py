"""Chunks that were used in part are kept for the next selection, and never too long."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numcodecs
import numpy as np
import pytest
from memory import peak
from virtual_arrays import PLAIN, SHUFFLED, ZLIB, counted_reads, exactly, path_of, virtual

from virtualds import ManifestArray, ReadError, open_virtual_dataset, set_options
from virtualds.chunks.tables import RecordCache
from virtualds.options import Options, find_memory_limits, find_usable_memory
from virtualds.reading import MAX_CACHED_RATIO, ChunkCache, ChunkKey, get_chunk_cache
from virtualds.source_file import SourceFile

VALUES = np.random.default_rng(5).normal(size=(24, 100, 100)).round(1)


@pytest.fixture
def array(tmp_path: Path) -> ManifestArray:
    return virtual(VALUES, tmp_path, chunks=(12, 50, 50), codecs=SHUFFLED)


def test_walking_along_an_axis_reads_every_chunk_once(array: ManifestArray) -> None:
    with counted_reads() as store:
        for step in range(24):
            exactly(array.read((step, slice(None), slice(None))), VALUES[step])
    assert store.nbytes == array.manifest.length.sum()


VIEWS: dict[str, Any] = {
    "one step": lambda a: a[5],
    "a slice": lambda a: a[3:9, 20:60],
    "turned": lambda a: np.transpose(a, (2, 0, 1))[:40, :12],
    "a step of a step": lambda a: a[5][7],
    "rows chosen": lambda a: a[2][[40, 3, 3]],
}


@pytest.mark.parametrize("view", VIEWS)
def test_other_views_of_a_chunk_find_it(array: ManifestArray, view: str) -> None:
    array.read((0, 0, slice(None)))
    array.read((0, 99, slice(None)))
    with counted_reads() as store:
        exactly(VIEWS[view](array), VIEWS[view](VALUES))
    assert store.ranges == []


def test_points_find_chunks_and_leave_them(array: ManifestArray) -> None:
    points = np.array([1, 20]), np.array([3, 80]), np.array([4, 5])
    exactly(array.read_points(points), VALUES[points])
    with counted_reads() as store:
        exactly(
            array.read_points(tuple(p + 1 for p in points)), VALUES[tuple(p + 1 for p in points)]
        )
        exactly(array.read((0, slice(0, 10), 0)), VALUES[0, :10, 0])
    assert store.ranges == []


def test_an_equal_array_opened_again_finds_kept_chunks(array: ManifestArray) -> None:
    array.read((0, slice(None), slice(None)))
    with counted_reads() as store:
        exactly(pickle.loads(pickle.dumps(array)).read((1, 7, slice(None))), VALUES[1, 7])
    assert store.ranges == []


@pytest.mark.parametrize("codecs", [ZLIB, SHUFFLED])
def test_a_job_that_is_repeated_reads_every_chunk_once(tmp_path: Path, codecs: Any) -> None:
    array = virtual(VALUES, tmp_path, chunks=(12, 50, 50), codecs=codecs)
    exactly(array.read(), VALUES)
    with counted_reads() as store:
        exactly(array.read(), VALUES)
        exactly(array.read((slice(12, 24), slice(None), slice(50, 100))), VALUES[12:, :, 50:])
        exactly(array.read((5, slice(None), slice(20, 70))), VALUES[5, :, 20:70])
    assert store.ranges == []


def test_a_pass_over_more_than_the_cache_leaves_it_alone(tmp_path: Path) -> None:
    """Block by block as dask reads, and as a whole; its memory is what it is without a cache."""
    small = virtual(VALUES[:6], tmp_path, chunks=(6, 50, 50), codecs=ZLIB)
    large = virtual(VALUES, tmp_path, chunks=(6, 50, 50), codecs=ZLIB)

    def read_blocks() -> None:
        for step in range(0, 24, 6):
            exactly(
                large.read((slice(step, step + 6), slice(None), slice(None))),
                VALUES[step : step + 6],
            )

    with set_options(chunk_cache=VALUES.nbytes - 1):
        exactly(small.read(), VALUES[:6])
        kept = list(get_chunk_cache()._records)
        read_blocks()
        used = peak(read_blocks)
        exactly(large.read(), VALUES)
        assert list(get_chunk_cache()._records) == kept
    with set_options(chunk_cache=0):
        assert used < 1.2 * peak(read_blocks) + 2**16


def test_arrays_push_out_those_that_were_used_before_them(tmp_path: Path) -> None:
    first, second, third = (
        virtual(VALUES + n, tmp_path, chunks=(12, 50, 50), codecs=ZLIB) for n in range(3)
    )
    with set_options(chunk_cache=2 * VALUES.nbytes):
        for array, number in ((first, 0), (second, 1), (first, 0), (third, 2)):
            exactly(array.read(), VALUES + number)
        assert get_chunk_cache().weight == 2 * VALUES.nbytes
        with counted_reads() as store:
            exactly(first.read(), VALUES + 0)
            exactly(third.read(), VALUES + 2)
            assert store.ranges == []
            exactly(second.read(), VALUES + 1)
            assert store.ranges


def test_the_cache_has_an_eighth_of_the_memory_and_at_most_a_gibibyte() -> None:
    assert Options().chunk_cache == min(2**30, find_usable_memory() // 8)
    assert find_usable_memory() > 2**28


V2, V1 = "memory.max", "memory.limit_in_bytes"
GROUPS: dict[str, tuple[str, dict[str, str], list[int]]] = {
    "a container": ("0::/\n", {V2: "536870912\n"}, [2**29]),
    "no limit": ("0::/\n", {V2: "max\n"}, []),
    "a machine": ("0::/user.slice\n", {f"user.slice/{V2}": "max\n"}, []),
    "a job": ("0::/jobs/7\n", {f"jobs/7/{V2}": "max\n", f"jobs/{V2}": "4096\n"}, [4096]),
    "a name from outside": ("0::/docker/ab\n", {V2: "4096\n"}, [4096]),
    "version 1": ("9:pids:/a\n4:cpu,memory:/a\n0::/\n", {f"memory/a/{V1}": "4096\n"}, [4096]),
    "version 1 in a container": ("4:memory:/docker/ab\n", {f"memory/{V1}": "4096\n"}, [4096]),
    "no such file": ("", {V2: "4096\n"}, []),
}
"""What Linux says of the groups of a process, the limits, and those that hold for it."""


@pytest.mark.parametrize("case", GROUPS)
def test_the_memory_of_a_container_or_job_is_its_limit(case: str, tmp_path: Path) -> None:
    said, limits, expected = GROUPS[case]
    files = {"proc/self/cgroup": said, **{f"sys/fs/cgroup/{p}": t for p, t in limits.items()}}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(find_memory_limits(str(tmp_path))) == expected


def test_a_limit_makes_the_memory_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtualds.options.find_memory_limits", lambda: iter([2**20, 2**62]))
    assert find_usable_memory() == 2**20


def test_plain_chunks_are_not_kept_but_read_in_part(tmp_path: Path) -> None:
    array = virtual(VALUES, tmp_path, chunks=(12, 50, 50), codecs=PLAIN)
    before = get_chunk_cache().weight
    exactly(array.read((3, slice(None), slice(None))), VALUES[3])
    assert get_chunk_cache().weight == before


def test_a_kept_chunk_keeps_nothing_else_alive(tmp_path: Path) -> None:
    """A checksum is taken off without a copy, from bytes that were read with those of others."""
    codecs = ({"id": "fletcher32"},)
    array = virtual(VALUES, tmp_path, chunks=(1, 100, 100), codecs=codecs)
    exactly(array.read((slice(None), slice(0, 50), 0)), VALUES[:, :50, 0])
    kept: Any = next(reversed(get_chunk_cache()._records.values()))
    assert kept.nbytes == 100 * 100 * 8
    while (behind := getattr(kept, "base", getattr(kept, "obj", None))) is not None:
        kept = behind
    assert len(kept) == 100 * 100 * 8


def test_chunks_larger_than_the_cache_are_not_kept(array: ManifestArray) -> None:
    """It would push out the rest, and itself before it is asked for again."""
    before = get_chunk_cache().weight
    with set_options(chunk_cache=VALUES.nbytes - 1):
        exactly(array.read((slice(0, 20), slice(None), 7)), VALUES[:20, :, 7])
        assert get_chunk_cache().weight <= before
        with counted_reads() as store:
            array.read((0, 0, 7))
    assert store.ranges


def test_the_cache_is_never_larger_than_the_option(tmp_path: Path) -> None:
    chunk = 12 * 50 * 50 * 8
    with set_options(chunk_cache=3 * chunk):
        for _ in range(3):
            array = virtual(VALUES, tmp_path, chunks=(12, 50, 50), codecs=ZLIB)
            for row in (0, 60):
                exactly(array.read((0, row, 0)), VALUES[0, row, 0])
            assert get_chunk_cache().weight <= 3 * chunk


def test_the_option_turns_the_cache_off(array: ManifestArray) -> None:
    with set_options(chunk_cache=0), counted_reads() as store:
        for _ in range(2):
            exactly(array.read((0, 0, 0)), VALUES[0, 0, 0])
    assert len(store.ranges) == 2


def test_turning_the_cache_off_frees_its_memory_at_the_next_read(array: ManifestArray) -> None:
    array.read((0, 0, slice(None)))
    assert get_chunk_cache().weight
    with set_options(chunk_cache=0):
        array.read((slice(None), 0, 0))
        assert not get_chunk_cache().weight


@pytest.mark.parametrize("used", [0, slice(0, 12)])
@pytest.mark.parametrize("how", ["modified", "gone"])
def test_a_kept_chunk_of_a_file_that_has_changed_is_an_error(
    array: ManifestArray, how: str, used: Any
) -> None:
    exactly(array.read((used, slice(None), slice(None))), VALUES[used])
    path = path_of(array)
    if how == "gone":
        path.unlink()
    else:
        os.utime(path, ns=(1, 1))
    with pytest.raises(ReadError, match=r"modified after|No such file"):
        array.read((used, slice(None), slice(None)))


def _without_fingerprint(path: Path, references: Path) -> None:
    """Write references as others do, which say nothing of the file but where its chunk lies."""
    row = open_virtual_dataset(path)["v"].data.manifest
    layout = {"shape": [4, 5000], "chunks": [4, 5000], "dtype": "<i8", "order": "C"}
    codecs = {"compressor": None, "filters": [{"id": "fletcher32"}], "fill_value": None}
    refs = {
        ".zgroup": json.dumps({"zarr_format": 2}),
        "v/.zarray": json.dumps({"zarr_format": 2, **layout, **codecs}),
        "v/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["x", "y"]}),
        "v/0.0": [str(path), int(row.offset.item()), int(row.length.item())],
    }
    references.write_text(json.dumps({"version": 1, "refs": refs}))


@pytest.mark.parametrize("where", ["memory", "references"])
def test_a_file_opened_again_gives_its_current_values(tmp_path: Path, where: str) -> None:
    """Nothing tells the files apart: size and name stay, and neither time nor etag is known."""
    path, references = tmp_path / "a.h5", tmp_path / "a.json"
    for value in (3, 4):
        with h5py.File(path, "w") as file:
            chunk = {"chunks": (4, 5000), "fletcher32": True}
            file.create_dataset("v", data=np.full((4, 5000), value), **chunk)
        _without_fingerprint(path, references)
        fsspec.filesystem("memory").pipe_file("/chunk-cache/a.h5", path.read_bytes())
        url = "memory://chunk-cache/a.h5" if where == "memory" else references
        found = open_virtual_dataset(url)
        assert found["v"].data.sources[0].fingerprint[1:] == (None, None)
        assert found["v"][0, :3].values.tolist() == [value] * 3


@pytest.mark.parametrize("steps", [slice(0, 11), slice(0, 12), slice(None)])
def test_changing_returned_values_does_not_change_a_kept_chunk(
    array: ManifestArray, steps: slice
) -> None:
    for _ in range(3):
        found = array.read((steps, slice(None), slice(None)))
        exactly(found, VALUES[steps])
        found[...] = 0


def key(number: int) -> ChunkKey:
    return ChunkKey(SourceFile("s3://b/a.nc"), number, 9, np.dtype("i4"), (), (100,))


def test_the_chunk_used_last_is_kept_longest() -> None:
    cache = ChunkCache()
    with set_options(chunk_cache=800):
        for number in range(2):
            cache.put(key(number), np.zeros(100, "i4"))
        cache.find(key(0))
        cache.put(key(2), np.zeros(100, "i4"))
    assert [cache.find(key(number)) is not None for number in range(3)] == [True, False, True]


def test_a_chunk_that_two_threads_have_decoded_counts_once() -> None:
    cache = ChunkCache()
    for _ in range(2):
        cache.put(key(0), np.zeros(100, "i4"))
    assert cache.weight == 400


def test_tiny_chunks_are_decoded_again(tmp_path: Path) -> None:
    array = virtual(VALUES, tmp_path, chunks=(1, 40, 40), codecs=ZLIB)
    array.read((0, 0, 0))
    with counted_reads() as store:
        array.read((0, 0, 1))
    assert len(store.ranges) == 1


BLOSC = ({"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 1, "blocksize": 0},)
STEPS = np.repeat(np.arange(2.0**9), 2**8)


@pytest.mark.parametrize(
    ("codecs", "is_kept"),
    [(BLOSC, False), (({"id": "zstd"},), False), (SHUFFLED, True), (({"id": "bz2"},), True)],
    ids=str,
)
def test_whole_chunks_that_decode_like_a_copy_are_not_kept(
    tmp_path: Path, codecs: Any, is_kept: bool
) -> None:
    array = virtual(STEPS, tmp_path, chunks=(2**16,), codecs=codecs)
    assert (MAX_CACHED_RATIO * array.manifest.length < 2**19).all()
    before = get_chunk_cache().weight
    exactly(array.read((slice(None),)), STEPS)
    assert get_chunk_cache().weight - before == is_kept * STEPS.nbytes


def test_a_chunk_of_which_a_part_was_used_is_kept_however_small_it_is(tmp_path: Path) -> None:
    array = virtual(STEPS, tmp_path, chunks=(2**16,), codecs=BLOSC)
    exactly(array.read((slice(7, 9),)), STEPS[7:9])
    with counted_reads() as store:
        exactly(array.read((slice(9, 300),)), STEPS[9:300])
    assert store.ranges == []


def test_a_chunk_that_would_be_fetched_again_is_kept_however_small_it_is() -> None:
    metadata = {"zarr_format": 2, "shape": [2**17], "chunks": [2**17], "dtype": "<f8"}
    metadata |= {"compressor": {"id": "zstd"}, "filters": None, "fill_value": None, "order": "C"}
    files = {".zgroup": b'{"zarr_format": 2}', "v/.zarray": json.dumps(metadata).encode()}
    files["v/0"] = numcodecs.Zstd().encode(STEPS)
    for name, data in files.items():
        fsspec.filesystem("memory").pipe_file(f"/small/steps.zarr/{name}", data)
    array = open_virtual_dataset("memory://small/steps.zarr", loadable_variables=[])["v"].data
    before = get_chunk_cache().weight
    exactly(array.read((slice(None),)), STEPS)
    assert get_chunk_cache().weight - before == STEPS.nbytes


def test_an_empty_cache_is_not_asked(array: ManifestArray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(RecordCache, "find")
    with set_options(chunk_cache=0):
        exactly(array.read((0, slice(None), 3)), VALUES[0, :, 3])
