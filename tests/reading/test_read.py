"""Reading gives what numpy gives, from as few bytes as it can, or says what is wrong."""

import json
import os
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from memory import peak
from products import looped
from programs import run_code
from range_server import range_server
from virtual_arrays import (
    PLAIN,
    SHUFFLED,
    ZLIB,
    counted_reads,
    exactly,
    no_reads,
    path_of,
    positions,
    slices,
    stored_arrays,
    virtual,
)

from virtualds import (
    ChunkAxis,
    ChunkManifest,
    CodecPipeline,
    Fragment,
    ManifestArray,
    ReadError,
    UnsupportedError,
    open_virtual_dataset,
    reading,
)
from virtualds import set_options as set_virtualds_options
from virtualds.arrays.concatenate import concatenate
from virtualds.chunks.axes import make_regular_axes
from virtualds.chunks.columns import INLINE, ReferenceTable
from virtualds.codecs.cf import Packing
from virtualds.reading import join_ranges
from virtualds.reading import threads as pool
from virtualds.reading.plan import plan_points, plan_selection
from virtualds.reading.threads import _ClosableIterator
from virtualds.source_file import CHECKSUM_FLAG, SourceFile, compute_checksum
from virtualds.stores.local import LocalStore
from virtualds.stores.store import Range

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chunks")


# ---------------------------------------------------------------------- numpy's answer


@st.composite
def orthogonal_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(draw(st.integers(-n, n - 1) | slices(n) | slices(n) | positions(n)) for n in shape)


def indexed(values: np.ndarray[Any, Any], key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """Each entry selects along its own axis; an integer removes it."""
    for axis in reversed(range(values.ndim)):
        values = values[(*(slice(None),) * axis, key[axis], ...)]
    return values


@given(data=st.data())
def test_every_orthogonal_selection_is_numpys(folder: Path, data: st.DataObject) -> None:
    values, array = data.draw(stored_arrays(folder))
    for _ in range(3):
        key = data.draw(orthogonal_keys(values.shape))
        exactly(array.read(key), indexed(values, key))


@given(data=st.data())
def test_every_pointwise_selection_is_numpys(folder: Path, data: st.DataObject) -> None:
    """The axes of the points come first, then those of the slices."""
    values, array = data.draw(stored_arrays(folder).filter(lambda drawn: drawn[0].ndim > 0))
    together = sorted(data.draw(st.sets(st.integers(0, values.ndim - 1), min_size=1)))
    shape = data.draw(st.sampled_from([(), (0,), (1,), (5,), (2, 3)]))
    key: list[Any] = [data.draw(slices(n)) for n in values.shape]
    for axis in together:
        n = values.shape[axis]
        count = int(np.prod(shape, dtype=int))
        drawn = data.draw(st.lists(st.integers(-n, n - 1), min_size=count, max_size=count))
        key[axis] = np.array(drawn, np.int64).reshape(shape)
    others = [i for i in range(values.ndim) if i not in together]
    moved = values.transpose(*together, *others)
    points = moved[(*(key[i] for i in together), ...)]
    lead = (slice(None),) * (points.ndim - len(others))
    expected = points[(*lead, *(key[i] for i in others), ...)]
    exactly(array.read_points(tuple(key)), expected)


@given(data=st.data())
def test_a_crop_reads_like_a_slice(folder: Path, data: st.DataObject) -> None:
    values, array = data.draw(stored_arrays(folder))
    for axis in range(values.ndim):
        start = data.draw(st.integers(0, array.shape[axis]))
        stop = data.draw(st.integers(start, array.shape[axis]))
        array = array.crop(axis, start, stop)
        values = values[(slice(None),) * axis + (slice(start, stop),)]
    exactly(array.read(), values)


@contextmanager
def read_in_place_whatever_the_size() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MIN_DIRECT_BYTES", 0)
        patch.setattr(reading, "MIN_DIRECT_ROW_BYTES", 0)
        yield


@given(data=st.data())
def test_chunks_read_into_the_result_are_numpys(folder: Path, data: st.DataObject) -> None:
    values, array = data.draw(stored_arrays(folder))
    key = data.draw(orthogonal_keys(values.shape))
    with read_in_place_whatever_the_size():
        exactly(array.read(), values)
        exactly(array.read(key), indexed(values, key))


SHARING: dict[str, Any] = {
    "broadcast": lambda a: np.broadcast_to(a[None, :, None], (50, 6, 3, 8)),
    "every second": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1, ::-1],
    "the same again": lambda a: np.concatenate([a, a[1:], a], axis=0),
    "on top of itself": lambda a: np.stack([a] * 20, axis=1),
    "in two orders": lambda a: np.concatenate([a[:, ::-1], a[:, 3:], a[:, :3]], axis=1)[[3, 0, 3]],
    "turned": lambda a: np.broadcast_to(a[:, None], (6, 9, 8)).transpose(2, 0, 1)[1:],
}


@looped("codecs", [PLAIN, ZLIB, SHUFFLED])
@looped("view", SHARING)
def test_a_chunk_that_is_shown_often_is_fetched_once(folder: Path, view: str, codecs: Any) -> None:
    values = np.random.default_rng(0).integers(0, 99, (6, 8))
    array = virtual(values, folder, chunks=(2, 5), codecs=codecs, missing=[5], inline=[0])
    values[4:, 5:] = 0
    seen = SHARING[view](array)
    assert isinstance(seen, ManifestArray)
    with counted_reads() as store:
        exactly(seen, SHARING[view](values))
    if codecs != PLAIN:  # of chunks without codecs only what is wanted is read
        assert len(store.ranges) == len(set(store.ranges)) <= 4


@pytest.mark.full
def test_a_field_shown_at_many_times_is_decoded_once(folder: Path) -> None:
    """However many chunks it has: they are planned chunk by chunk, not time by time."""
    field = ManifestArray.from_arrays(
        shape=(100, 100), chunks=(1, 1), dtype="f4", path="s3://b/a.nc",
        offsets=np.arange(10_000).reshape(100, 100) * 4, lengths=9, codecs=ZLIB,
    )  # fmt: skip
    shown = np.broadcast_to(field, (10, 100, 100))
    batches = list(plan_selection(shown, (slice(None),) * 3).batches)
    assert sum(len(batch.tasks) for batch in batches) == 10_000
    assert all(len(list(task.pairs)) == 10 for batch in batches for task in batch.tasks)


def test_chunks_that_are_alike_by_half_are_not_shared(folder: Path) -> None:
    """Repeated offsets of other files, and rows of which one chunk differs."""
    one, two = (virtual(np.full((2, 4), k), folder, chunks=(1, 2), codecs=ZLIB) for k in (1, 2))
    joined = np.concatenate([one, two, one])
    assert sum(len(b.tasks) for b in plan_selection(joined, (slice(None),) * 2).batches) == 8
    mixed = np.concatenate([one, np.concatenate([one[:, :2], two[:, 2:]], axis=1)])
    exactly(mixed, [[1, 1, 1, 1]] * 2 + [[1, 1, 2, 2]] * 2)
    assert sum(len(b.tasks) for b in plan_selection(mixed, (slice(None),) * 2).batches) == 8


@pytest.mark.parametrize("position", [5, -6, np.array([0, 5]), np.array([-6])], ids=str)
def test_a_position_outside_is_an_index_error(folder: Path, position: Any) -> None:
    array = virtual(np.arange(5), folder)
    with pytest.raises(IndexError, match="5 elements"):
        array.read((position,))
    with pytest.raises(IndexError, match="5 elements"):
        array.read_points((np.asarray(position),))


def test_a_mask_of_another_length_is_an_index_error(folder: Path) -> None:
    with pytest.raises(IndexError, match="mask of 4"):
        virtual(np.arange(5), folder).read((np.ones(4, bool),))


def test_a_position_that_is_no_integer_is_an_index_error(folder: Path) -> None:
    with pytest.raises(IndexError, match="float64"):
        virtual(np.arange(5), folder).read((np.array([1.0]),))


@looped("dtype", ["S5", "U3", "M8[ms]", "m8[ns]", "c8", "?", "f2", ">i8", "V6"])
@looped("codecs", [PLAIN, SHUFFLED])
def test_every_dtype_of_fixed_size_is_read(folder: Path, dtype: str, codecs: Any) -> None:
    raw = np.random.default_rng(0).integers(1, 100, 12 * np.dtype(dtype).itemsize, "u1")
    values = np.ones(12, "?") if dtype == "?" else np.frombuffer(raw, "u1")
    values = (values if dtype == "?" else raw * (dtype[0] != "U")).view(dtype).reshape(3, 4)
    array = virtual(values, folder, chunks=(2, 3), codecs=codecs, padding=values[0, 0])
    exactly(array.read(), values)
    exactly(array.read((slice(1, 3), 2)), values[1:3, 2])


@pytest.mark.parametrize("codecs", [PLAIN, ZLIB, SHUFFLED], ids=["plain", "zlib", "shuffled"])
@pytest.mark.parametrize("packing", [None, Packing(np.dtype("f4"), scale_factor=np.float32(2))])
def test_an_array_without_axes_is_read(folder: Path, codecs: Any, packing: Any) -> None:
    for stored in (np.array(7, "<i4"), np.array(-9, ">i4")):
        array = virtual(stored, folder, codecs=codecs)
        expected = stored
        if packing:
            expected = packing.decode(stored)
            [pipeline] = array.pipelines
            unpacked = CodecPipeline(pipeline.dtype, pipeline.codecs, packing=packing)
            array = ManifestArray((), packing.dtype, 0, (unpacked,), array.fragments)
        exactly(array.read(), expected)


def test_missing_chunks_are_the_fill_value_through_the_packing(folder: Path) -> None:
    packing = Packing(np.dtype("f8"), scale_factor=0.5, add_offset=100.0)
    pipeline = CodecPipeline(
        np.dtype("<i2"), fill=np.int16(8).tobytes(), layout=(0,), packing=packing
    )
    fragment = Fragment((1,), (ChunkAxis.regular(3, 2),), ChunkManifest.missing((2,)))
    array = ManifestArray((5,), np.dtype("f8"), np.nan, (pipeline,), (fragment,))
    exactly(array.read(), np.array([np.nan, 104, 104, 104, np.nan]))
    exactly(array.read((np.array([4, 2, 2, 0]),)), np.array([np.nan, 104, 104, np.nan]))
    exactly(array.read_points((np.array([[0], [3]]),)), np.array([[np.nan], [104]]))


def test_an_empty_selection_reads_nothing(folder: Path) -> None:
    array = virtual(np.arange(60).reshape(3, 4, 5), folder, chunks=(1, 2, 5), codecs=ZLIB)
    with no_reads():
        assert array.read((slice(0, 0), slice(None), slice(None))).shape == (0, 4, 5)
        assert array.read((0, np.zeros(4, bool), slice(None))).shape == (0, 5)
        empty = np.zeros((0, 2), int)
        assert array.read_points((empty, slice(None), empty)).shape == (0, 2, 4)
        assert array.crop(1, 2, 2).read().shape == (3, 0, 5)


# ---------------------------------------------------------------------- bytes and memory


def test_an_empty_unreadable_array_raises_its_error() -> None:
    array = ManifestArray.unreadable((5, 0), "V4", "its chunks lie outside")
    with pytest.raises(UnsupportedError, match="lie outside"):
        array.read()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("key", [(slice(None),), (slice(1, 3),), (np.array([2, 1]),)])
def test_text_of_characters_that_there_are_not_is_damage(order: str, key: Any) -> None:
    letters = np.array([65, 66, sys.maxunicode + 1, 67], f"{order}u4")
    array = ManifestArray.from_values(letters)
    dtype = np.dtype(f"{order}U1")
    pipeline = replace(array.pipelines[0], dtype=dtype, fill=None)
    text = replace(array, dtype=dtype, fill_value="", pipelines=(pipeline,))
    with pytest.raises(ReadError, match="0x110000"):
        text.read(key)
    assert text.read((slice(2),)).tolist() == ["A", "B"]


def test_a_result_larger_than_any_array_is_refused() -> None:
    # of no elements, and yet beyond what numpy counts
    array = ManifestArray((2**61, 0, 6), np.dtype("f8"), 0.0, (), ())
    with pytest.raises(UnsupportedError, match="select a part"):
        array.read()


def test_only_the_chunks_of_a_selection_are_read_and_each_once(folder: Path) -> None:
    values = np.arange(4000).reshape(40, 100)
    array = virtual(values, folder, chunks=(4, 10), codecs=ZLIB)
    cases: list[tuple[tuple[Any, ...], int]] = [
        ((0, 0), 1),
        ((slice(3, 5), slice(0, 10)), 2),
        ((slice(None), 5), 10),
        ((slice(None, None, 20), slice(None)), 20),
        ((np.array([39, 0, 0, 1]), np.array([99, 98])), 2),
        ((slice(None), slice(None)), 100),
    ]
    for key, count in cases:
        ranges = [r for work in plan_selection(array, key).batches for r in work.ranges]
        assert len(ranges) == len(set(ranges)) == count
        with counted_reads() as store:
            exactly(array.read(key), indexed(values, key))
        check_once(store.ranges)
    points = np.array([0, 1, 39, 0]), np.array([0, 9, 99, 5])
    assert sum(len(work.ranges) for work in plan_points(array, points).batches) == 2
    with counted_reads() as store:
        array.read_points(points)
    check_once(store.ranges)


def check_once(ranges: Sequence[Range]) -> None:
    """No byte is read twice."""
    ends = sorted((offset, offset + length) for offset, length in ranges)
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))


@given(
    ranges=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40))),
    gap=st.integers(0, 30),
    most=st.integers(1, 100),
)
def test_ranges_near_each_other_are_one_request(ranges: list[Range], gap: int, most: int) -> None:
    runs = join_ranges(ranges, gap, most)
    assert sorted(number for run in runs for number in run.members) == list(range(len(ranges)))
    for run in runs:
        held = [ranges[number] for number in run.members]
        assert run.offset == min(offset for offset, _ in held)
        assert run.offset + run.length == max(offset + length for offset, length in held)
        assert (
            run.length <= most
            or len({offset for offset, _ in held}) == 1
            or any(length > most for _, length in held)
        )
        ends = np.maximum.accumulate([offset + length for offset, length in held])
        assert all(b[0] - a <= gap for a, b in zip(ends[:-1], held[1:], strict=True))
    for left, right in pairwise(runs):
        apart = right.offset - (left.offset + left.length)
        first = ranges[right.members[0]]
        assert apart > gap or first[0] + first[1] - left.offset > most


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> ManifestArray:
    """8 GB that take no room: of ``(1000, 1000, 1000)``, element [10 i, 0, 0] is ``10 i``."""
    path = tmp_path_factory.mktemp("sparse") / "big.bin"
    with path.open("wb") as out:
        for i in range(0, 1000, 10):
            out.seek(i * 8_000_000)
            out.write(np.float64(i).tobytes())
        out.truncate(8 * 10**9)
    return ManifestArray.from_arrays(
        shape=(1000, 1000, 1000),
        chunks=(1000, 1000, 1000),
        dtype="f8",
        path=str(path),
        offsets=0,
        lengths=8 * 10**9,
    )


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ((slice(10, 11), slice(None), slice(None)), 8_000_000),
        ((10, 0, slice(None)), 8_000),
        ((slice(0, 100, 10), 0, slice(0, 10)), 10 * 8_000),
        ((slice(10, 20), slice(0, 3), slice(0, 1000)), 10 * 3 * 8_000),
        ((np.array([990, 10]), slice(0, 2), 0), 2 * 2 * 8_000),
        ((slice(500, 503), slice(None), slice(None)), 24_000_000),
    ],
    ids=str,
)
def test_a_part_of_a_contiguous_array_reads_little_more_than_its_bytes(
    sparse: ManifestArray, key: tuple[Any, ...], most: int
) -> None:
    with counted_reads() as store:
        found = sparse.read(key)
    assert store.nbytes <= most
    first = np.where(np.arange(1000) % 10, 0.0, np.arange(1000.0))[key[0]]
    exactly(found[(..., *(0,) * (found.ndim - np.ndim(first)))], first)
    assert found.sum() == np.sum(first)


def test_single_points_of_a_contiguous_array_read_little(sparse: ManifestArray) -> None:
    with counted_reads() as store:
        found = sparse.read_points((np.array([990, 10, 10]), np.zeros(3, int), np.zeros(3, int)))
    exactly(found, np.array([990.0, 10.0, 10.0]))
    assert store.nbytes <= 2**20


PEAK = """
import resource, sys
import numpy as np
import virtualds
from virtualds import ManifestArray

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

def array(count):
    return ManifestArray.from_arrays(
        shape=(count, 2**17), chunks=(1, 2**17), dtype="f8", path=sys.argv[1],
        offsets=0, lengths=int(sys.argv[2]),
        codecs=[{"id": "shuffle", "elementsize": 8}, {"id": "zlib"}],
    )

array(2).read()  # the code, and the threads, are there
before = peak()
values = array(200).read()
assert values[199, 5] == 5.0
print(peak() - before - values.nbytes)
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="the peak is asked of Unix")
def test_a_big_read_needs_little_more_than_its_result(folder: Path) -> None:
    """200 chunks of 1 MiB, compressed: the result and at most 64 MB."""
    chunk = virtual(np.arange(2.0**17), folder, codecs=SHUFFLED)
    length = int(chunk.manifest.length[0])
    # the file holds six bytes before the chunk
    alone = folder / "chunk.bin"
    alone.write_bytes(path_of(chunk).read_bytes()[6:])
    out = subprocess.run(
        [sys.executable, "-c", PEAK, str(alone), str(length)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert int(out.stdout) < 64 * 10**6


BOXES: dict[str, Any] = {"chunks": (3, 60, 400)}

# How an array of float32, of 6 x 120 x 1200 elements, is stored and shown, and whether any of it
# lies in its file as it does in the result.
PLACES: dict[str, tuple[dict[str, Any], Callable[[Any], Any], bool]] = {
    "boxes of the result": (BOXES, lambda a: a, True),
    "stretches of the result": ({"chunks": (3, 120, 1200)}, lambda a: a, True),
    "longer than the array in front": ({"chunks": (4, 120, 1200)}, lambda a: a, True),
    "with a new axis": (BOXES, lambda a: np.expand_dims(a, 1), True),
    "a box of it": (BOXES, lambda a: a[1:5, :, 400:], True),
    "beside what is missing": ({**BOXES, "missing": (0, 5)}, lambda a: a, True),
    "beside what is held": ({**BOXES, "inline": (0, 5)}, lambda a: a, True),
    "longer than the array within": ({"chunks": (4, 120, 1300)}, lambda a: a, False),
    "rows too short to be worth it": ({"chunks": (3, 120, 200)}, lambda a: a, False),
    "chunks too short to be worth it": ({"chunks": (1, 40, 300)}, lambda a: a, False),
    "every other row": (BOXES, lambda a: a[:, ::2], False),
    "transposed": (BOXES, lambda a: np.transpose(a, (0, 2, 1)), False),
    "shown twice": (BOXES, lambda a: np.broadcast_to(a[None], (2, 6, 120, 1200)), False),
    "compressed": ({**BOXES, "codecs": ZLIB}, lambda a: a, False),
    "shuffled": ({**BOXES, "codecs": SHUFFLED[:1]}, lambda a: a, False),
    "one step of those in a chunk": (
        {"chunks": (3, 120, 1200), "codecs": ZLIB},
        lambda a: a[1],
        False,
    ),
    "of another layout": ({**BOXES, "reverse_layout": True}, lambda a: a, False),
    "verified before they are placed": ({**BOXES, "checksums": True}, lambda a: a, False),
}


@looped("stored, show, in_place", PLACES.values())
def test_plain_chunks_are_read_into_the_result(
    folder: Path, stored: dict[str, Any], show: Callable[[Any], Any], in_place: bool
) -> None:
    values = np.arange(6 * 120 * 1200, dtype="f4").reshape(6, 120, 1200)
    array = virtual(values, folder, **stored)
    for number in stored.get("missing", ()):
        (k, j, i), (c, b, a) = np.unravel_index(number, array.manifest.shape), stored["chunks"]
        values[k * c : (k + 1) * c, j * b : (j + 1) * b, i * a : (i + 1) * a] = 0
    # without the cache, which would have chunks elsewhere
    with counted_reads() as store, set_virtualds_options(chunk_cache=0):
        found = np.asarray(show(array))
    exactly(found, show(values))
    assert any(np.shares_memory(found, target) for target in store.targets) == in_place


# What is done to numbers before they are values, where nothing else has to be done to a chunk.
CONVERTED: dict[str, tuple[str, str, Any]] = {
    "of the byte order of the array": (">f4", ">f4", None),
    "of two byte orders": ("<f4", ">f4", None),
    "packed, in the type of the values": ("f8", "f8", Packing(np.dtype("f8"), scale_factor=2.0)),
}


@pytest.mark.parametrize(("one", "other", "packing"), CONVERTED.values(), ids=CONVERTED)
def test_plain_chunks_are_converted(folder: Path, one: str, other: str, packing: Any) -> None:
    values = np.arange(6 * 120 * 1200.0).reshape(6, 120, 1200)
    parts = [virtual(values.astype(dtype), folder, **BOXES) for dtype in (one, other)]
    if packing is not None:
        parts = [replace(p, pipelines=(replace(p.pipelines[0], packing=packing),)) for p in parts]
    found = np.concatenate(parts).read()
    np.testing.assert_array_equal(found, np.concatenate([values] * 2) * (1 if not packing else 2))


@pytest.mark.parametrize("off", [-4, -1, 1, 4])
def test_a_plain_chunk_of_another_length_is_not_read_into_the_result(
    folder: Path, off: int
) -> None:
    """Neither are its neighbour's bytes read, nor some of its own left out."""
    path = folder / "neighbours.bin"
    path.write_bytes(bytes(4 * 2**18))
    lengths = [[2**18], [2**18 + off], [2**18], [2**18]]
    array = ManifestArray.from_arrays(
        shape=(4, 2**16), chunks=(1, 2**16), dtype="f4", path=str(path),
        offsets=np.arange(4).reshape(4, 1) * 2**18, lengths=lengths,
    )  # fmt: skip
    with pytest.raises(ReadError, match="do not decode") as caught:
        array.read()
    assert "chunk (1, 0)" in caught.value.__notes__[0]


def test_chunks_of_python_objects_are_refused() -> None:
    """Their bytes would be taken for addresses."""
    with pytest.raises(ValueError, match="Python objects, not bytes"):
        CodecPipeline(np.dtype([("a", "i4"), ("b", object)]))


FAULTS = """
import json, resource, sys
import numpy as np
import virtualds
virtualds.set_options(chunk_cache=0)
for path, length, codecs in json.loads(sys.argv[1]):
    parts = virtualds.ManifestArray.from_arrays(
        shape=(80, 2**17), chunks=(1, 2**17), dtype="f8", path=path,
        offsets=np.arange(80).reshape(80, 1) * length, lengths=length, codecs=codecs,
    )
    parts[:16, 5].read()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert (parts[16:, 5].read() == 5.0).all()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
KEEPS_MEMORY = {
    "shuffle, zlib": [{"id": "shuffle", "elementsize": 8}, {"id": "zlib", "level": 1}],
    "gzip": [{"id": "gzip", "level": 1}],
    "zlib, checksum": [{"id": "zlib", "level": 1}, {"id": "fletcher32"}],
    "shuffle, zstd": [{"id": "shuffle", "elementsize": 8}, {"id": "zstd", "level": 1}],
    "lz4": [{"id": "lz4", "acceleration": 1}],
    "blosc": [{"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 1, "blocksize": 0}],
}


def repeat_rows(folder: Path, codecs: list[dict[str, Any]]) -> tuple[Path, int]:
    """Write 80 chunks of a megabyte, all the same; return their file, and the length of each."""
    chunk = virtual(np.arange(2.0**17), folder, codecs=codecs)
    repeated = path_of(chunk).with_suffix(".rows")
    # the file holds six bytes before the chunk
    repeated.write_bytes(80 * path_of(chunk).read_bytes()[6:])
    return repeated, int(chunk.manifest.length[0])


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="page faults are asked of Unix")
def test_chunk_after_chunk_is_decoded_in_the_same_memory(folder: Path) -> None:
    """An allocator set as dask sets it for its workers gives all freed memory back at once."""
    given = [(*repeat_rows(folder, codecs), codecs) for codecs in KEEPS_MEMORY.values()]
    command = [sys.executable, "-c", FAULTS, json.dumps(given, default=str)]
    # huge pages, which numpy asks for, would hide most faults for as long as the system has some
    allocator = {"MALLOC_TRIM_THRESHOLD_": "65536", "NUMPY_MADVISE_HUGEPAGE": "0"}
    env = {**os.environ, **allocator, "PYTHONPATH": str(TESTS.parent)}
    out = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert not out.returncode, out.stderr
    found = dict(zip(KEEPS_MEMORY, map(int, out.stdout.split()), strict=True))
    # fresh memory is had by pages of 4 KiB: 256 of them for every chunk
    assert max(found.values()) < 64 * 64, found


def test_of_many_chunks_of_which_little_is_shown_few_are_in_memory(folder: Path) -> None:
    """An axis that an index hides is decoded all the same: these are not tiny chunks."""
    path, length = repeat_rows(folder, KEEPS_MEMORY["gzip"])
    parts = ManifestArray.from_arrays(
        shape=(80, 2**17), chunks=(1, 2**17), dtype="f8", path=str(path),
        offsets=np.arange(80).reshape(80, 1) * length, lengths=length, codecs=KEEPS_MEMORY["gzip"],
    )  # fmt: skip
    with set_virtualds_options(chunk_cache=0):
        assert (parts[:2, 5].read() == 5.0).all()
        assert peak(parts[:, 5].read) < 10 * 2**20


# ---------------------------------------------------------------------- what is wrong


def damaged(folder: Path, codecs: Any = SHUFFLED) -> tuple[ManifestArray, Path]:
    values = np.random.default_rng(0).normal(size=(4, 3, 100))
    array = virtual(values, folder, chunks=(1, 3, 50), codecs=codecs, name="temperature")
    return array, path_of(array)


def check_report(array: ManifestArray, chunk: tuple[int, ...], *reasons: str) -> None:
    """Demand an error that names url, bytes, variable and chunk, and gives a reason."""
    row = array.manifest.lookup(chunk)
    for read in (array.read, lambda: np.asarray(array), lambda: array[chunk[0]].read()):
        with pytest.raises(ReadError) as caught:
            read()
        text = "\n".join([str(caught.value), *caught.value.__notes__])
        assert array.manifest.files[row.file].url in text
        assert f"bytes {row.offset} to {row.offset + row.length}" in text
        assert "temperature" in text
        assert all(reason in text for reason in reasons), text
        if read == array.read:
            assert f"chunk {chunk}" in text


def test_a_missing_file_is_an_error(folder: Path) -> None:
    array, path = damaged(folder)
    path.unlink()
    check_report(array, (0, 0, 0), "No such file")


def test_a_directory_in_place_of_a_file_is_an_error(folder: Path) -> None:
    array, path = damaged(folder)
    path.unlink()
    path.mkdir()
    with set_virtualds_options(check_sources=False):
        check_report(array, (0, 0, 0), "directory")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_file_that_may_not_be_read_is_an_error(folder: Path) -> None:
    array, path = damaged(folder)
    path.chmod(0)
    check_report(array, (0, 0, 0), "Permission denied")


def test_a_truncated_file_is_an_error(folder: Path) -> None:
    array, path = damaged(folder)
    size = path.stat().st_size
    os.truncate(path, size - 10)
    check_report(array, (0, 0, 0), f"{size - 10} bytes", f"{size} when scanned")
    with set_virtualds_options(check_sources=False), pytest.raises(ReadError) as caught:
        array.read()
    assert "ends 10 bytes before the chunk does" in str(caught.value)
    assert "chunk (3, 0, 1)" in caught.value.__notes__[0]


class Counted(ReferenceTable):
    """A table of a set that notes which rows are loaded."""

    def __init__(self, rows: ChunkManifest) -> None:
        self.rows, self.seen = rows, set[int]()

    def load(self, ids: Any) -> ChunkManifest:
        self.seen.update(ids.ravel().tolist())
        return self.rows.at(ids)

    def list_sources(self) -> tuple[SourceFile, ...]:
        return self.rows.files


def test_a_chunk_is_named_without_references_of_others(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(36))
    file, axes = SourceFile(str(tmp_path / "a.bin")), make_regular_axes((10,), (1,))
    tables = [
        Counted(ChunkManifest.build((10,), files=[file], offset=n + np.arange(10) * 4, length=4))
        for n in (0, 40)
    ]
    parts = tuple(
        Fragment((start,), axes, ChunkManifest.from_table(table, (10,)))
        for start, table in zip((0, 10), tables, strict=True)
    )
    pipeline = CodecPipeline(np.dtype("f4"), layout=(0,))
    array = ManifestArray((20,), np.dtype("f4"), 0.0, (pipeline,), parts)
    with set_virtualds_options(check_sources=False), pytest.raises(ReadError) as caught:
        array.read((slice(12, 13),))
    assert "chunk (2,)" in caught.value.__notes__
    assert [table.seen for table in tables] == [set(), {2}]


@pytest.mark.parametrize("number", [(0, 0, 0), (2, 0, 1), (3, 0, 1)], ids=str)
def test_a_corrupt_chunk_is_an_error(folder: Path, number: tuple[int, ...]) -> None:
    array, path = damaged(folder)
    row = array.manifest.lookup(number)
    stat = path.stat()
    with path.open("r+b") as handle:
        handle.seek(row.offset + row.length // 2)
        handle.write(b"corrupted")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    check_report(array, number, "do not decode", "zlib")
    # the other chunks are as good as before
    assert np.isfinite(array.read((1, slice(None), slice(0, 50)))).all()


def test_a_file_changed_after_scanning_is_an_error(folder: Path) -> None:
    array, path = damaged(folder)
    before = array.read()
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    check_report(array, (0, 0, 0), "modified after it was scanned", "check_sources=False")
    with pytest.raises(ReadError, match=r"same size, other time\ncopy it again .*cp -p, rsync -t"):
        array.read()
    with set_virtualds_options(check_sources=False):
        exactly(array.read(), before)


def test_a_chunk_of_another_length_is_an_error(folder: Path) -> None:
    """Of an uncompressed chunk nothing but its length says that it is sound."""
    path = folder / "short.bin"
    path.write_bytes(bytes(range(64)))
    for codecs, length in ((PLAIN, 15), (PLAIN, 17), (({"id": "shuffle", "elementsize": 4},), 12)):
        array = ManifestArray.from_arrays(
            shape=(4,), chunks=(4,), dtype="i4", path=str(path), offsets=8, lengths=length,
            codecs=codecs,
        )  # fmt: skip
        for key in ((slice(None),), (slice(0, 2),), (1,)):
            with pytest.raises(ReadError, match=r"short\.bin, bytes 8 to"):
                array.read(key)


# How chunks lie in a file, where it ends, and which are gone with the rest of it.
ENDED: dict[str, tuple[tuple[int, ...], int, set[tuple[int, ...]]]] = {
    "read in pieces": ((1, 400, 1000), 1_100_000, {(2, 0, 0)}),
    # two threads read, and either may be the first at what is gone
    "read in boxes": ((1, 200, 500), 1_050_000, {(2, j, i) for j in (0, 1) for i in (0, 1)}),
}


@pytest.mark.parametrize(("chunks", "there", "gone"), ENDED.values(), ids=ENDED)
def test_an_error_of_uncompressed_chunks_names_one(
    folder: Path, chunks: tuple[int, ...], there: int, gone: set[tuple[int, ...]]
) -> None:
    """However it is read, what is named is the chunk of the file."""
    values = np.arange(3 * 400_000.0).reshape(3, 400, 1000)
    array = virtual(values, folder, chunks=chunks, name="plain")
    os.truncate(path_of(array), 6 + 8 * there)
    with set_virtualds_options(check_sources=False), pytest.raises(ReadError) as caught:
        array.read()
    assert "before the chunk does\nrestore the file" in str(caught.value)
    assert caught.value.__notes__[0] in {f"chunk {chunk}" for chunk in gone}
    assert str(caught.value).startswith("variable 'plain' of file://")


# ---------------------------------------------------------------------- checksums


def flipped(
    folder: Path, codecs: Any = PLAIN, checksums: bool = True
) -> tuple[ManifestArray, np.ndarray[Any, Any]]:
    """An array of which the last bit of chunk (2, 0, 1) is flipped, and its values before."""
    values = np.random.default_rng(0).normal(size=(4, 3, 2000))
    array = virtual(
        values, folder, chunks=(1, 3, 1000), codecs=codecs, name="salt", checksums=checksums
    )
    row, path = array.manifest.lookup((2, 0, 1)), path_of(array)
    stat, data = path.stat(), bytearray(path.read_bytes())
    data[row.offset + row.length - 1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return array, values


def check_mismatch(array: ManifestArray, read: Callable[[ManifestArray], Any]) -> str:
    """Demand an error that names the bytes, both checksums and what to do."""
    with pytest.raises(ReadError) as caught:
        read(array)
    text = "\n".join([str(caught.value), *caught.value.__notes__])
    row = array.manifest.lookup((2, 0, 1))
    data = path_of(array).read_bytes()[row.offset : row.offset + row.length]
    assert f"{path_of(array).name}, bytes {row.offset} to {row.offset + row.length}: " in text
    assert f"CRC-32 is {zlib.crc32(data):#010x}, " in text
    assert (
        f"says {row.checksum - CHECKSUM_FLAG:#010x}\nrestore the file, take its new state" in text
    )
    assert text.startswith("variable 'salt' of file://")
    assert "\nchunk (" in text
    return text


MISMATCHES: dict[str, Callable[[ManifestArray], Any]] = {
    "all": lambda a: a.read(),
    "a row": lambda a: a.read((2, slice(None), slice(None))),
    "far from the damage": lambda a: a.read((2, 0, slice(1000, 1001))),
    "every other element": lambda a: a.read((slice(None), 1, slice(None, None, 2))),
    "a point": lambda a: a.read_points((np.array([2]), np.array([0]), np.array([1500]))),
    "points along a row": lambda a: a.read_points((np.array([0, 2]), 1, slice(None))),
    "a crop": lambda a: a.crop(2, 1990, 2000).crop(0, 2, 3).read(),
    "a transposed view": lambda a: a.transpose(2, 0, 1).read(),
    "an axis dropped": lambda a: a[2, :, 1200:1300].read(),
    "a repeated chunk": lambda a: a[[2, 2, 2]].read(),
    "joined without": lambda a: concatenate([without_checksums(a[:2]), a]).read(),
    "shown without first": lambda a: concatenate([without_checksums(a), a]).read(),
    "joined after": lambda a: concatenate([without_checksums(a), a]).read((6, 0, 1000)),
}


def without_checksums(array: ManifestArray) -> ManifestArray:
    [fragment] = array.fragments
    bare = replace(fragment.manifest, checksum=np.zeros(fragment.manifest.shape, np.uint64))
    return replace(array, fragments=(replace(fragment, manifest=bare),))


@looped("how", MISMATCHES)
@looped("codecs", [PLAIN, ({"id": "shuffle", "elementsize": 8},)])
def test_a_flipped_bit_is_found_by_its_checksum(folder: Path, how: str, codecs: Any) -> None:
    array, _ = flipped(folder, codecs)
    text = check_mismatch(array, MISMATCHES[how])
    if how == "all":
        assert "\nchunk (2, 0, 1)" in text


def test_without_a_checksum_a_flipped_bit_is_a_value(folder: Path) -> None:
    array, values = flipped(folder, checksums=False)
    assert (array.read() != values).sum() == 1


def test_chunks_beside_the_damaged_one_are_read(folder: Path) -> None:
    array, values = flipped(folder)
    exactly(array.read((slice(None), slice(None), slice(0, 1000))), values[..., :1000])
    exactly(array.crop(0, 3, 4).read(), values[3:])
    exactly(concatenate([array[:2], without_checksums(array[3:])]).read(), values[[0, 1, 3]])


def test_a_flipped_bit_is_found_on_its_way_over_http(folder: Path) -> None:
    array, values = flipped(folder)
    with range_server(folder) as (url, _):
        [fragment] = array.fragments
        manifest = fragment.manifest.with_files(
            lambda f: SourceFile(f"{url}/{path_of(array).name}", f.size)
        )
        remote = replace(array, fragments=(replace(fragment, manifest=manifest),))
        exactly(remote.read((slice(0, 2), slice(None), slice(None))), values[:2])
        with pytest.raises(ReadError, match=r"http://.*CRC-32 is .*, the reference says"):
            remote.read((2, 0, slice(1000, 1003)))


def test_a_chunk_with_a_checksum_is_read_whole_and_others_in_pieces(folder: Path) -> None:
    values = np.arange(2 * 2000 * 100.0).reshape(2, 2000, 100)
    array = virtual(values, folder, chunks=(1, 2000, 100), checksums=True)
    with counted_reads() as store:
        exactly(array.read((1, 7, slice(None))), values[1, 7])
    assert store.nbytes == values[1].nbytes
    half = concatenate([without_checksums(array.crop(0, 0, 1)), array.crop(0, 1, 2)])
    with counted_reads() as store:
        exactly(half.read((0, 7, slice(None))), values[0, 7])
    assert store.nbytes < 10_000


def test_inline_chunks_have_checksums_too() -> None:
    for data, sound in ((b"abcd", True), (b"abce", False)):
        manifest = ChunkManifest.build(
            (1,), file=INLINE, length=4, inline=[data], checksum=compute_checksum(b"abcd")
        )
        fragment = Fragment((0,), (ChunkAxis.regular(4, 4),), manifest)
        array = ManifestArray.from_fragment(
            fragment, CodecPipeline(np.dtype("u1"), layout=(0,)), "v"
        )
        if sound:
            assert array.read().tobytes() == data
        else:
            with pytest.raises(ReadError, match=r"inline.*CRC-32"):
                array.read()


def test_a_missing_chunk_is_fill_whatever_its_checksum() -> None:
    array = ManifestArray.from_arrays(
        shape=(4,), chunks=(2,), dtype="i4", path=["", ""], offsets=0, lengths=8, checksums=[1, 2]
    )
    assert array.read().tolist() == [0, 0, 0, 0]


def test_arrays_built_by_hand_take_crc32_values(folder: Path) -> None:
    path = folder / "hand.bin"
    path.write_bytes(bytes(range(16)))
    sums = [zlib.crc32(bytes(range(n, n + 8))) for n in (0, 8)]

    def build(checksums: Any) -> ManifestArray:
        return ManifestArray.from_arrays(
            shape=(16,), chunks=(8,), dtype="u1", path=str(path), offsets=[0, 8], lengths=8,
            checksums=checksums,
        )  # fmt: skip

    for right in (None, sums, np.array(sums, np.uint32), [None, sums[1]], [None, None]):
        assert build(right).read().tolist() == list(range(16))
    assert build([None, sums[1]]).manifest.checksum.tolist() == [0, CHECKSUM_FLAG + sums[1]]
    assert build(None).manifest.nbytes == build([None, None]).manifest.nbytes
    for wrong in (sums[0], sums[::-1], [None, 0]):
        with pytest.raises(ReadError, match=r"hand\.bin, bytes .* CRC-32 is"):
            build(wrong).read()
    for none in (-1, 2**32, [0, 2**40], 1.5, ["a", None]):
        with pytest.raises(ValueError, match="checksums: "):
            build(none)


def test_a_damaged_inline_chunk_is_an_error() -> None:
    inline = [b"abcd", b"abc"]
    manifest = ChunkManifest.build((2,), file=INLINE, offset=[0, 1], length=[4, 3], inline=inline)
    fragment = Fragment((0,), (ChunkAxis.regular(8, 4),), manifest)
    array = ManifestArray.from_fragment(fragment, CodecPipeline(np.dtype("u1"), layout=(0,)), "v")
    with pytest.raises(ReadError, match="inline") as caught:
        array.read()
    assert str(caught.value).startswith("variable 'v': ")
    assert "chunk (1,)" in caught.value.__notes__


def test_what_no_fragment_covers_is_the_fill_value() -> None:
    """Memory of the system is zero, so the value is another one."""
    pipeline = CodecPipeline(np.dtype("u1"), layout=(0,))
    manifest = ChunkManifest.build((1,), file=INLINE, length=4, inline=[b"abcd"])
    parts = tuple(Fragment((start,), (ChunkAxis.regular(4, 4),), manifest) for start in (0, 2**20))
    array = ManifestArray((2**21,), np.dtype("u1"), np.uint8(7), (pipeline,), parts)
    found = array.read()
    assert bytes(found[:6]) == b"abcd\7\7" and (found == 7).sum() == 2**21 - 8


def test_an_error_leaves_later_reads_alone(folder: Path) -> None:
    array, path = damaged(folder)
    moved = path.with_suffix(".moved")
    path.rename(moved)
    for _ in range(3):
        with pytest.raises(ReadError):
            array.read()
    moved.rename(path)
    assert np.isfinite(array.read()).all()


# ---------------------------------------------------------------------- the pool


def test_every_item_is_worked_on_once() -> None:
    for count in (0, 1, 2, 1000):
        done: list[int] = []
        pool.run_all(iter(range(count)), done.append)
        assert sorted(done) == list(range(count))


def test_the_first_error_ends_the_work_and_is_raised_once() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        done.append(item)
        if item >= 10:
            raise ReadError(f"item {item}")

    with pytest.raises(ReadError) as caught:
        pool.run_all(iter(range(10_000)), work)
    assert len(done) <= 10 + 2 * pool.count_cores() + 1
    assert caught.value.__context__ is None


def test_an_error_of_the_plan_is_raised_too() -> None:
    def items() -> Any:
        yield from range(5)
        raise IndexError("planning failed")

    with pytest.raises(IndexError, match="planning failed"):
        pool.run_all(items(), lambda item: None)


def test_work_may_read_itself(folder: Path) -> None:
    """Reading within a read cannot wait for a thread that waits for it."""
    array = virtual(np.arange(5000.0), folder, chunks=(10,), codecs=ZLIB)
    found: list[float] = []
    pool.run_all(iter(range(20)), lambda item: found.append(float(array.read().sum())))
    assert found == [float(np.arange(5000.0).sum())] * 20


def test_many_threads_read_at_once(folder: Path) -> None:
    values = np.random.default_rng(1).normal(size=(300, 200))
    array = virtual(values, folder, chunks=(7, 11), codecs=SHUFFLED)
    barrier = threading.Barrier(16)

    def job(seed: int) -> bool:
        barrier.wait(300)
        rng = np.random.default_rng(seed)
        rows, columns = rng.integers(0, 300, 40), rng.integers(0, 200, 40)
        return bool(
            (array.read((rows, columns)) == values[np.ix_(rows, columns)]).all()
            and (array.read_points((rows, columns)) == values[rows, columns]).all()
            and (array.read() == values).all()
        )

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(job, range(16)))


FORK = """
import multiprocessing, sys, threading
sys.path.insert(0, sys.argv[2])
import numpy as np
from pathlib import Path
from virtual_arrays import ZLIB, virtual

values = np.arange(5000.0)
array = virtual(values, Path(sys.argv[1]), chunks=(10,), codecs=ZLIB)

def child(n):
    return float(array.read().sum()) == values.sum()

assert child(0)  # the parent's threads exist before the children do
stop = threading.Event()
def busy():
    while not stop.is_set():
        array.read()
thread = threading.Thread(target=busy)
thread.start()
with multiprocessing.get_context("fork").Pool(3) as pool:
    found = pool.map_async(child, range(12)).get(60)
stop.set()
thread.join()
assert all(found), found
print("all read")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_reads_while_its_parent_does(folder: Path) -> None:
    out = run_code(FORK, folder, TESTS)
    assert out.stdout.strip() == "all read", out.stderr


def test_a_store_reads_no_more_than_its_ranges(folder: Path) -> None:
    """The last byte of a file may be the last of a chunk; one further is an error."""
    path = folder / "exact.bin"
    path.write_bytes(b"0123456789")
    source = LocalStore().describe(f"file://{path}", None)
    assert list(LocalStore().get_ranges(source, [(0, 10), (9, 1), (3, 2)])) == [
        b"0123456789",
        b"9",
        b"34",
    ]


def test_an_error_ends_what_gives_the_work_at_once() -> None:
    """A generator may have requests under way, and the error refers to it."""
    closed: list[str] = []

    def items() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append("closed")

    def fail(item: int) -> None:
        raise ValueError(f"{item}")

    given = items()
    with pytest.raises(ValueError, match=r"\d"):
        pool.run_all(given, fail)
    assert closed == ["closed"]


def test_what_no_chunk_covers_is_the_fill_value(folder: Path) -> None:
    array = virtual(np.arange(6.0), folder, chunks=(3,))
    gap = ManifestArray.full((100_000,), 7.5, "f8")
    joined = concatenate([array, gap, array])
    assert (joined[4:].read()[:2] == [4, 5]).all()
    assert (joined[4:].read()[2:-6] == 7.5).all()


def test_chunks_that_fill_their_place_are_decoded_there(folder: Path) -> None:
    """Without other memory for a chunk."""
    array = virtual(np.zeros((4, 2**20)), folder, chunks=(1, 2**20), codecs=ZLIB)
    with set_virtualds_options(chunk_cache=0):
        tracemalloc.start()
        values = array.read()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert values.nbytes <= peak < values.nbytes + 2**22


@pytest.mark.parametrize("codecs", [PLAIN, ZLIB])
def test_chunks_of_another_layout_and_parts_of_joined_files_are_read(
    codecs: Any, tmp_path: Path
) -> None:
    values = np.arange(12.0).reshape(4, 3)
    turned = virtual(values, tmp_path, codecs=codecs, reverse_layout=True)
    np.testing.assert_array_equal(turned.read((slice(None), slice(None))), values)
    other = virtual(values + 100, tmp_path, chunks=(3, 2), codecs=codecs)
    joined: Any = np.concatenate([turned, other])
    np.testing.assert_array_equal(joined.read((slice(5, 7), slice(None))), values[1:3] + 100)


def test_a_closed_queue_has_no_more_tasks() -> None:
    queue: Any = _ClosableIterator(iter([1, 2, 3]), None)  # type: ignore[arg-type]
    assert next(queue) == 1
    queue.close()
    assert list(queue) == []


def dates_in(path: Path, numbers: np.ndarray[Any, Any], chunk: int) -> ManifestArray:
    """The dates of numbers in a new file, compressed."""
    with h5py.File(path, "w") as file:
        stored = {"chunks": (chunk,), "compression": "gzip", "compression_opts": 1}
        time = file.create_dataset("time", data=numbers, **stored)
        time.attrs["units"] = "minutes since 2000-01-01"
        time.make_scale("time")
    dates = open_virtual_dataset(path, loadable_variables=[])["time"].data
    assert isinstance(dates, ManifestArray)
    return dates


@pytest.mark.parametrize(
    ("dtype", "fraction"),
    [("<f8", 0), (">f8", 0), ("<i8", 0), (">i8", 0), ("<i4", 0), ("<f8", 0.25)],
)
def test_dates_are_those_of_xarray(tmp_path: Path, dtype: str, fraction: float) -> None:
    """Numbers as long as dates become dates where they lie; a fraction is left to xarray."""
    numbers = (np.arange(200_000) + fraction).astype(dtype)
    dates = dates_in(tmp_path / "dates.nc", numbers, 70_000)
    with xr.open_dataset(tmp_path / "dates.nc", engine="h5netcdf") as opened:
        expected = opened["time"].values
    for part in (slice(None), slice(69_990, 140_001), slice(3, None, 7)):
        exactly(dates.read((part,)), expected[part])


def test_dates_take_no_memory_but_their_own(tmp_path: Path) -> None:
    # no scratch memory that a thread has kept is as long
    chunk = 2**20 + 1
    dates = dates_in(tmp_path / "dates.nc", np.arange(2.0 * chunk), chunk)
    with set_virtualds_options(chunk_cache=0):
        assert peak(lambda: dates.read((slice(None),))) < 1.2 * dates.nbytes
