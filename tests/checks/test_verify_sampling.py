"""A sample has the requested size, is spread over all chunks, and is the same every time."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import dataclass, replace
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from large_sets import archive

from virtualds import ChunkManifest, CombineError, ManifestArray, SourceFile
from virtualds.checks.diagnose import _sample_files
from virtualds.checks.diagnose.trials import SIDE_BY_SIDE, _find_lossless_remedy
from virtualds.checks.verify import chunks
from virtualds.checks.verify.chunks import (
    SampledFragment,
    _draw_chunks,
    _OpenSource,
    check_sample,
    sample_chunks,
)
from virtualds.checks.verify.sources import (
    _record_state,
    find_box,
    split_blocks,
    survey_references,
)
from virtualds.chunks.columns import ReferenceTable


def array(chunks: int, present: Any = True) -> ManifestArray:
    """An array of chunks of which some do not exist."""
    here = np.broadcast_to(present, (chunks,))
    return ManifestArray.from_arrays(
        shape=(chunks,),
        chunks=(1,),
        dtype="u1",
        path=np.where(here, "s3://bucket/a.nc", ""),
        offsets=np.arange(chunks),
        lengths=1,
    )


SAMPLES: list[tuple[Any, int]] = [(1, 1), (7, 7), (100, 100), (5000, 1110), (None, 1110)]
SAMPLES += [(0.1, 111), (1.0, 1110), (0.0001, 1)]


@pytest.mark.parametrize(("sample", "count"), SAMPLES)
def test_a_sample_has_as_many_chunks_as_were_asked_for(sample: Any, count: int) -> None:
    arrays = {"a": array(1000), "b": array(100), "c": array(10)}
    found = list(sample_chunks(arrays, sample, 0))
    assert len(found) == len({(c.variable, c.chunk_id) for c in found}) == count
    assert found == list(sample_chunks(arrays, sample, 0))
    assert count in (1, 1110) or found != list(sample_chunks(arrays, sample, 1))


def test_every_variable_has_its_share() -> None:
    arrays = {"a": array(1000), "b": array(100), "c": array(10)}
    found = Counter(c.variable for c in sample_chunks(arrays, 30, 0))
    assert found["a"] > found["b"] >= found["c"] >= 1


def test_a_sample_is_spread_over_the_variable() -> None:
    numbers = [c.chunk_id[0] for c in sample_chunks({"a": array(1000)}, 10, 0)]
    assert [n // 100 for n in sorted(numbers)] == list(range(10))


def test_missing_chunks_leave_their_share_to_others() -> None:
    present = np.random.default_rng(5).random(1000) < 0.5
    found = list(sample_chunks({"a": array(1000, present)}, 20, 0))
    assert len(found) == 20
    assert all(present[c.chunk_id] for c in found)
    assert list(sample_chunks({"a": array(50, False)}, 20, 0)) == []


@pytest.mark.parametrize("wrong", [0, -1, 0.0, 1.5, True, "all", float("nan")])
def test_an_impossible_sample_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="sample="):
        check_sample(wrong)


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_consecutive_elements_are_a_box_or_none(shape: list[int], data: Any) -> None:
    size = prod(shape)
    start = data.draw(st.integers(0, size - 1))
    count = data.draw(st.integers(1, size - start))
    flat = np.arange(size).reshape(shape)
    wanted = np.arange(start, start + count)
    box = find_box(shape, start, count)
    if box is not None:
        found = flat[tuple(slice(a, b) for a, b in box)].ravel()
        np.testing.assert_array_equal(found, wanted)
    else:
        places = np.stack(np.unravel_index(wanted, shape))
        # they do not fill the smallest box that holds them
        assert prod(int(n) for n in np.ptp(places, axis=1) + 1) != count


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.integers(1, 20), st.data())
def test_pieces_of_a_manifest_are_all_of_it_once(shape: list[int], most: int, data: Any) -> None:
    size = prod(shape)
    order = data.draw(st.permutations(range(len(shape))))
    offsets = np.arange(size).reshape(shape)
    whole = ChunkManifest.build(
        tuple(shape), files=[SourceFile("s3://b/a")], offset=offsets, length=1
    )
    table = whole.transpose(order)
    seen = np.zeros(table.shape, int)
    for first, part in split_blocks(table, max_chunks=most):
        assert part.size <= most
        box = tuple(slice(a, a + n) for a, n in zip(first, part.shape, strict=True))
        np.testing.assert_array_equal(part.offset, table.offset[box])
        seen[box] += 1
    assert (seen == 1).all()


def test_references_are_surveyed_in_bounded_memory() -> None:
    whole = archive(range(30))["v"].data
    [fragment] = whole.fragments

    class Counting(ReferenceTable):
        loaded = 0

        def load(self, ids: Any) -> ChunkManifest:
            self.loaded += ids.size
            return fragment.manifest.at(ids)

        def list_sources(self) -> tuple[SourceFile, ...]:
            return fragment.manifest.files

    table = Counting()
    lazy = ChunkManifest.from_table(table, fragment.manifest.shape)
    array = replace(whole, fragments=(replace(fragment, manifest=lazy),))
    tracemalloc.start()
    found = survey_references({"v": array})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.references, len(found.ends), table.loaded) == (3_000_000, 30, 3_000_000)
    assert peak < 2**20 * 200


def test_a_sample_is_a_number_a_fraction_or_everything() -> None:
    assert [check_sample(given) for given in (5, np.int64(3), 0.5, None)] == [5, 3, 0.5, None]


def test_missing_chunks_are_drawn_again() -> None:
    half = array(200, np.arange(200) % 2 == 1)
    part = SampledFragment("v", half, half.fragments[0])
    drawn = list(_draw_chunks(part, 100, np.random.default_rng(0)))
    # half of what is drawn first is missing
    assert len(drawn) > 75


def test_files_are_sampled_from_the_first_to_the_last() -> None:
    assert list(_sample_files(range(9), 1)) == [0, 4, 8]


@pytest.mark.parametrize(
    "error, says", [(OSError(5, "odd"), "odd"), (ValueError("strange"), "strange")]
)
def test_the_problem_of_a_file_says_what_the_error_says(error: Exception, says: str) -> None:
    found: Any = SimpleNamespace(problems=[])
    state: Any = error
    assert not _record_state(found, SourceFile("file:///a"), state)
    assert [problem.message for problem in found.problems] == [says]


def test_the_remedy_is_the_first_that_combines_the_files() -> None:
    *_, (last, wanted) = SIDE_BY_SIDE.items()

    @dataclass(frozen=True)
    class Trial:
        options: dict[str, Any]

        def combine(self, files: Any, alone: Any) -> None:
            if wanted.items() - self.options.items():
                raise CombineError("other values")

    trial: Any = Trial({})
    assert _find_lossless_remedy([], trial) == last


def test_a_manifest_without_chunks_is_one_piece() -> None:
    assert len(list(split_blocks(ChunkManifest.missing((1000,)), max_chunks=10))) == 1


def test_values_of_another_shape_differ_from_those_of_the_file() -> None:
    def locate(values: Any) -> Any:
        raise ValueError("cannot reshape")

    dtype = np.dtype("i4")
    place: Any = SimpleNamespace(
        locate_values=locate, box=((0, 2),), pipeline=SimpleNamespace(dtype=dtype)
    )
    chunk: Any = None
    kind, text = _OpenSource(chunk).compare(chunk, place, np.zeros(3))
    assert kind == "differs" and text.startswith("3 elements of float64 were decoded")


def test_a_library_that_cannot_open_a_file_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> Any:
        raise OSError(5, "odd")

    monkeypatch.setattr(chunks, "open_native", fail)
    scanned: Any = SimpleNamespace(source=SourceFile("file:///a"), parser=None)
    native: Any = SimpleNamespace(name="numpy", remote=False)
    assert "odd" in str(_OpenSource(scanned)._open(native))
