"""Far bytes are asked for together: by the run, many at a time, and no more than is borne."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gauge import Gauge
from range_server import range_server
from virtual_arrays import PLAIN, SHUFFLED, ZLIB, exactly, path_of, virtual

from virtualds import ManifestArray, ReadError, set_options
from virtualds.reading import join_ranges, tasks, threads
from virtualds.reading.plan import plan_selection
from virtualds.reading.tasks import Batch
from virtualds.reading.threads import HostSlot, Prefetcher, run_all
from virtualds.source_file import SourceFile
from virtualds.stores import STORES
from virtualds.stores.store import RequestLimits


def served(array: ManifestArray, url: str) -> ManifestArray:
    """The array whose files a server sends."""

    def moved(file: SourceFile) -> SourceFile:
        return SourceFile(f"{url}/{file.url.rpartition('/')[2]}", file.size)

    fragments = (replace(f, manifest=f.manifest.with_files(moved)) for f in array.fragments)
    return replace(array, fragments=tuple(fragments))


@pytest.mark.product
@pytest.mark.parametrize("codecs", [PLAIN, ZLIB, SHUFFLED], ids=["plain", "zlib", "shuffled"])
@pytest.mark.parametrize(("chunk", "side"), [(4, 132), (100, 200)])
def test_neighbours_in_a_file_are_one_request(
    tmp_path: Path, codecs: Any, chunk: int, side: int
) -> None:
    """Of small chunks, a file has a thousand: four times as many as are decoded together."""
    values = np.random.default_rng(0).integers(0, 9, (20, side, side))
    parts = [
        virtual(values[i : i + 1], tmp_path, chunks=(1, chunk, chunk), codecs=codecs)
        for i in range(20)
    ]
    with range_server(tmp_path) as (url, ranges):
        array = served(np.concatenate(parts), url)
        exactly(array.read(), values)
        assert len(ranges) == 20


def test_chunks_at_the_edge_come_with_their_neighbours(tmp_path: Path) -> None:
    values = np.random.default_rng(4).integers(0, 9, (900, 900))
    array = virtual(values, tmp_path, chunks=(96, 96), codecs=ZLIB)
    with range_server(tmp_path) as (url, ranges):
        exactly(served(array, url).read(), values)
        assert len(ranges) == 1


def test_files_that_take_turns_are_asked_once_each(tmp_path: Path) -> None:
    """The chunks of a mosaic lie in one file and the other by turns."""
    values = np.random.default_rng(1).normal(size=(30, 40, 60))
    left, right = (
        virtual(half, tmp_path, chunks=(1, 40, 30), codecs=ZLIB)
        for half in np.split(values, 2, axis=2)
    )
    with range_server(tmp_path) as (url, ranges):
        array = served(np.concatenate([left, right], axis=2), url)
        exactly(array.read(), values)
        assert len(ranges) == 2
        points = np.array([3, 9]), np.array([1, 2]), slice(None)
        exactly(array.read_points(points), values[points])
        assert len(ranges) == 4


def test_points_of_one_chunk_are_one_request(tmp_path: Path) -> None:
    values = np.arange(40 * 50).reshape(40, 50)
    array = virtual(values, tmp_path, chunks=(20, 25), codecs=ZLIB)
    shown = np.concatenate([array, array[:20]])
    with range_server(tmp_path) as (url, ranges), set_options(chunk_cache=0):
        points = np.array([0, 41, 3, 45]), np.array([1, 1, 2, 3])
        expected = np.concatenate([values, values[:20]])[points]
        exactly(served(shown, url).read_points(points), expected)
        assert len(ranges) == 1


def test_far_apart_ranges_are_requests_of_their_own(tmp_path: Path) -> None:
    """More is not fetched than a request is worth."""
    values = np.random.default_rng(2).integers(0, 2**62, (8, 2**17))
    array = virtual(values, tmp_path, chunks=(1, 2**17), codecs=ZLIB)
    with range_server(tmp_path) as (url, ranges):
        exactly(served(array, url).read((slice(0, 8, 4), slice(None))), values[::4])
        assert len(ranges) == 2
        assert sum(n for _, n in ranges) == array.manifest.length[::4].sum()


def test_tasks_that_begin_in_front_of_others_are_no_part_of_their_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a turned array, every block of tasks lies all over the file."""
    chunk = 5000
    values = np.random.default_rng(4).integers(0, 2**62, (8, 4 * chunk))
    array = np.transpose(virtual(values, tmp_path, chunks=(1, chunk), codecs=ZLIB))
    monkeypatch.setattr(tasks, "BLOCK_TASKS", 8)
    longest = RequestLimits(max_gap=0, max_bytes=8 * chunk, max_requests=1)

    near = STORES["file"]

    class FarStore:
        request_limits = longest

        def __getattr__(self, name: str) -> Any:
            return getattr(near, name)

    monkeypatch.setitem(STORES, "file", FarStore())
    batches = plan_selection(array, (slice(None),) * 2).batches
    found = [batch for batch in batches if isinstance(batch, Batch)]
    assert sum(len(batch.tasks) for batch in found) == 32
    assert all(
        len(join_ranges(batch.ranges, longest.max_gap, longest.max_bytes)) == 1 for batch in found
    )
    exactly(array.read(), values.T)


def test_near_and_far_files_and_none_are_read_together(tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=(3, 30))
    far, near, held = (
        virtual(values[i : i + 1], tmp_path, chunks=(1, 10), codecs=ZLIB, inline=inline)
        for i, inline in enumerate([(), (), (0, 1, 2)])
    )
    with range_server(tmp_path) as (url, _):
        exactly(np.concatenate([served(far, url), near, held]).read(), values)


def test_a_failed_request_ends_the_read(tmp_path: Path) -> None:
    parts = [virtual(np.full((1, 9), i), tmp_path, codecs=ZLIB) for i in range(30)]
    path_of(parts[17]).unlink()
    with range_server(tmp_path) as (url, _), pytest.raises(ReadError) as caught:
        served(np.concatenate(parts), url).read()
    assert path_of(parts[17]).name in str(caught.value)
    assert "chunk (17, 0)" in "".join(caught.value.__notes__)


# ---------------------------------------------------------------------- the window


FAR = HostSlot("http://h", 4, 1)


def test_as_many_requests_are_under_way_as_the_limit_of_the_host() -> None:
    """Nobody is done before four are under way; a fifth would be counted."""
    gauge, four = Gauge(), threading.Barrier(4)

    def fetch(item: int) -> int:
        with gauge.inside():
            four.wait(300)
        return item * 2

    found = dict(Prefetcher(range(48), lambda item: FAR, fetch))
    assert found == {i: 2 * i for i in range(48)}
    assert gauge.most == 4


def test_prefetched_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes anything after the first: no more is looked at than what fits, and one item."""
    monkeypatch.setattr(threads, "MAX_PENDING_BYTES", 1000)
    items = iter(range(100))
    rows = Prefetcher(items, lambda item: HostSlot("http://many", 64, 300), lambda item: item)
    next(rows)
    assert next(items) <= 4
    assert len(list(rows)) == 98


def test_near_items_are_handed_on_unfetched() -> None:
    def fetch(item: int) -> int:
        assert item % 2
        return item

    rows = list(Prefetcher(range(10), lambda item: FAR if item % 2 else None, fetch))
    assert sorted(rows) == [(i, i if i % 2 else None) for i in range(10)]


def test_a_read_that_stops_early_cancels_its_requests() -> None:
    """Two threads have items 1 and 2; item 3 waits, and what is asked for later waits behind it."""
    way = HostSlot("http://stop", 2, 1)
    begun: list[int] = []
    gate = threading.Event()

    def fetch(item: int) -> int:
        begun.append(item)
        if item:
            gate.wait(300)
        return item

    rows = Prefetcher(range(8), lambda item: way, fetch)
    assert next(rows) == (0, 0)
    rows.close()
    gate.set()
    assert list(Prefetcher([100], lambda item: way, fetch)) == [(100, 100)]
    assert set(begun) <= {0, 1, 2, 100}


def test_an_error_of_a_request_comes_where_its_answer_would() -> None:
    def fetch(item: int) -> int:
        if item == 3:
            raise ReadError("no answer")
        return item

    with pytest.raises(ReadError, match="no answer"):
        list(Prefetcher(range(10), lambda item: FAR, fetch))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ReadError])
@pytest.mark.parametrize("where", ["caller", "helper"])
def test_an_error_does_not_wait_for_a_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], where: str
) -> None:
    """One thread waits for an answer, as the owner of the queue, while the other one fails."""
    monkeypatch.setattr(threads, "count_cores", lambda: 2)
    answer, met = threading.Event(), threading.Barrier(2)
    too_late = threading.Timer(300, answer.set)
    too_late.start()

    def fetch(item: int) -> int:
        if item > 1:
            answer.wait()
        return item

    def work(item: tuple[int, int | None]) -> None:
        met.wait(300)
        is_caller = threading.current_thread() is threading.main_thread()
        if is_caller == (where == "caller"):
            time.sleep(0.1)
            raise error("enough")

    with pytest.raises(error, match="enough"):
        run_all(Prefetcher(range(6), lambda item: HostSlot("http://deaf", 4, 1), fetch), work)
    assert not answer.is_set()
    too_late.cancel()
    answer.set()
