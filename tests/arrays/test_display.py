"""What arrays look like: numbers and pictures agree with their chunks, and cost nothing."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from math import prod
from sys import getrefcount
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markup import SVG, Tags, parse, pictures_of, rectangles_of, shades_of, text_of
from memory import peak
from virtual_arrays import no_reads

from virtualds import ChunkManifest, CodecPipeline, Fragment, ManifestArray, SourceFile
from virtualds.arrays.display import (
    FIRST_KIND,
    GAP,
    MAX_BINS,
    MAX_KINDS,
    UNREAD,
    bin_chunks,
    compute_statistics,
    count_files,
    draw_chunks,
    find_used_files,
)
from virtualds.chunks.axes import ChunkAxis, make_regular_axes
from virtualds.chunks.columns import MISSING, ReferenceTable
from virtualds.chunks.tables import SparseReferences, StridedReferences
from virtualds.codecs.zlib import Zlib

FLOATS = np.dtype("f4")
FILE = SourceFile("s3://bucket/a.nc", size=2**50)

# ---------------------------------------------------------------------- arrays


def pipelines(ndim: int) -> tuple[CodecPipeline, ...]:
    layout = tuple(range(ndim))
    return (
        CodecPipeline(FLOATS, (), layout=layout),
        CodecPipeline(FLOATS, (Zlib(4),), layout=layout),
        CodecPipeline(np.dtype("f8"), (Zlib(4),), layout=layout),
    )


def regular(shape: tuple[int, ...], chunks: tuple[int, ...], **columns: Any) -> ManifestArray:
    """An array of one grid, all chunks of one file unless columns say otherwise."""
    axes = make_regular_axes(shape, chunks)
    grid = tuple(axis.nchunks for axis in axes)
    given = {"files": (FILE,), "offset": 100, "length": 10, **columns}
    return of(ChunkManifest.build(grid, **given), axes)


def of(manifest: ChunkManifest, axes: tuple[ChunkAxis, ...]) -> ManifestArray:
    shape = tuple(axis.size for axis in axes)
    fragment = Fragment((0,) * len(axes), axes, manifest)
    return ManifestArray(shape, FLOATS, 0.0, pipelines(len(axes)), (fragment,))


@st.composite
def any_arrays(draw: Any) -> ManifestArray:
    """Arrays of up to four axes and three fragments, with gaps, encodings and files."""
    ndim = draw(st.integers(0, 4))
    numbers = draw(st.randoms(use_true_random=False))
    rng = np.random.default_rng(numbers.randrange(2**32))
    whole = tuple(int(n) for n in rng.integers(1, 9, ndim))
    parts, along = [], 0
    for _ in range(draw(st.integers(1, 3)) if ndim else 1):
        shape = (int(rng.integers(1, 9)), *whole[1:]) if ndim else ()
        axes = make_regular_axes(shape, [int(rng.integers(1, n + 2)) for n in shape])
        grid = tuple(axis.nchunks for axis in axes)
        # columns that do not change along all axes, or along some
        shapes = st.sampled_from([(), grid, *[(n, *[1] * (ndim - 1)) for n in grid[:1]]])
        files = [SourceFile(f"s3://bucket/{along}-{n}.nc") for n in range(3)]
        manifest = ChunkManifest.build(
            grid,
            files=files,
            file=rng.integers(-1, 3, draw(shapes)),
            offset=7,
            length=rng.integers(1, 99, draw(shapes)),
            pipeline=rng.integers(0, draw(st.integers(1, 3)), draw(shapes)),
        )
        parts.append(Fragment((along, *[0] * (ndim - 1)) if ndim else (), axes, manifest))
        along += shape[0] + int(rng.integers(0, 2)) if ndim else 0
    shape = (along, *whole[1:]) if ndim else ()
    array = ManifestArray(shape, FLOATS, 0.0, pipelines(ndim), tuple(parts))
    return array.transpose(rng.permutation(ndim).tolist()) if ndim else array


def chunks_of(array: ManifestArray) -> Iterator[tuple[tuple[tuple[int, int], ...], Any]]:
    """Yield where each chunk lies, begin and end along every axis, and its reference."""
    for fragment in array.fragments:
        edges = [axis.slabs().edges.tolist() for axis in fragment.axes]
        for place in np.ndindex(*fragment.manifest.shape):
            box = tuple(
                (start + e[i], start + e[i + 1])
                for start, e, i in zip(fragment.start, edges, place, strict=True)
            )
            yield box, fragment.manifest.lookup(place)


# ---------------------------------------------------------------------- numbers


@given(any_arrays())
def test_the_numbers_of_an_array_are_those_of_its_chunks(array: ManifestArray) -> None:
    chunks = list(chunks_of(array))
    there = [(box, row) for box, row in chunks if row.file != MISSING]
    found = compute_statistics(array)
    assert (found.chunks, found.missing, found.unread) == (len(chunks), len(chunks) - len(there), 0)
    assert found.stored == sum(row.length for _, row in there)
    assert found.decoded == sum(prod(b - a for a, b in box) for box, _ in there) * 4


@given(any_arrays())
def test_files_are_counted_with_their_chunks(array: ManifestArray) -> None:
    table = {file.url: 0 for f in array.fragments for file in f.manifest.files}
    for fragment in array.fragments:
        for place in np.ndindex(*fragment.manifest.shape):
            if (row := fragment.manifest.lookup(place)).file >= 0:
                table[fragment.manifest.files[row.file].url] += 1
    used = {url: count for url, count in table.items() if count}
    found = find_used_files([array], 100)
    assert {file.url: count for file, count in found.first} == used
    assert found.total == len(used) and count_files([array]) == len(table)


def test_counts_of_files_keep_no_table_alive() -> None:
    files = tuple(SourceFile(f"s3://bucket/{n}.nc") for n in range(10))
    before = getrefcount(files)
    array = regular((10,), (1,), files=files, file=np.arange(10))
    assert count_files([array, array]) == count_files([array]) == 10
    del array
    gc.collect()
    after = getrefcount(files)
    assert after == before


@given(any_arrays())
def test_numbers_of_references_in_a_set_are_the_same_once_they_are_read(
    array: ManifestArray,
) -> None:
    parts = [
        replace(f, manifest=ChunkManifest.from_table(Held(f.manifest), f.manifest.shape))
        for f in array.fragments
    ]
    lazy = replace(array, fragments=tuple(parts))
    assert compute_statistics(lazy).unread == lazy.nchunks
    assert compute_statistics(lazy, read=True) == compute_statistics(array)


class Held(ReferenceTable):
    """A table of a set that has the rows of a manifest."""

    has_pipelines = True

    def __init__(self, manifest: ChunkManifest) -> None:
        self.manifest = manifest

    def load(self, ids: Any) -> ChunkManifest:
        return self.manifest.at(ids)

    def list_sources(self) -> tuple[SourceFile, ...]:
        return self.manifest.files


def spread(places: list[int], shape: tuple[int, ...]) -> ChunkManifest:
    count = len(places)
    rows = ChunkManifest.build(
        (count,), files=[FILE], offset=np.arange(count) * 100, length=np.arange(count) + 5
    )
    return ChunkManifest.from_table(SparseReferences(np.array(places), rows), shape)


@pytest.mark.parametrize(
    "manifest",
    [
        spread([0, 7, 11, 29], (5, 6)),
        spread([0, 7, 11, 29], (5, 6)).transpose((1, 0)),
        spread([3], (5, 6)).take(0, slice(1, 5)),
        ChunkManifest.from_table(StridedReferences(FILE, 96, 24, 8, 30), (5, 6)),
    ],
    ids=["sparse", "permuted", "nothing left", "strided"],
)
def test_manifests_without_columns_have_the_numbers_and_the_picture_of_their_columns(
    manifest: ChunkManifest,
) -> None:
    axes = tuple(ChunkAxis.regular(n * 3 - 1, 3) for n in manifest.shape)
    array, columns = of(manifest, axes), of(manifest.loaded(), axes)
    assert compute_statistics(array) == compute_statistics(columns)
    ours, theirs = bin_chunks(array), bin_chunks(columns)
    np.testing.assert_array_equal(ours.counts, theirs.counts)
    assert ours.is_assumed is theirs.is_assumed is False


# ---------------------------------------------------------------------- bins


@given(any_arrays())
def test_every_bin_counts_the_chunks_that_lie_in_it(array: ManifestArray) -> None:
    found = bin_chunks(array)
    kinds = {number: kind for kind, number in enumerate(found.encodings)}
    bins = [list(pairwise(e)) for e in (edges.tolist() for edges in found.edges)]
    expected = np.zeros_like(found.counts)
    covered = np.zeros(found.counts.shape[1:])
    for box, row in chunks_of(array):
        where = product(*(range(len(b)) for b in bins))
        for place in where:
            spans = zip((box[a] for a in found.axes), bins, place, strict=True)
            shared = prod(max(0, min(s[1], b[i][1]) - max(s[0], b[i][0])) for s, b, i in spans)
            if shared:
                kind = FIRST_KIND + kinds.get(row.pipeline, 0)
                expected[(GAP if row.file == MISSING else kind, *place)] += 1
                hidden = (s for a, s in enumerate(box) if a not in found.axes)
                covered[place] += shared * prod(b - a for a, b in hidden)
    if found.alternates_by_file:
        for counts in (expected, found.counts):
            counts[FIRST_KIND] = counts[FIRST_KIND:].sum(0)
            counts[FIRST_KIND + 1 :] = 0
    elsewhere = prod(n for axis, n in enumerate(array.shape) if axis not in found.axes)
    for place in np.ndindex(*covered.shape):
        widths = (b[i][1] - b[i][0] for b, i in zip(bins, place, strict=True))
        expected[(GAP, *place)] += covered[place] < prod(widths) * elsewhere
    np.testing.assert_array_equal(found.counts, expected)


@given(any_arrays())
def test_bins_are_few_and_end_where_chunks_end(array: ManifestArray) -> None:
    found = bin_chunks(array)
    assert len(found.axes) == min(array.ndim, 3)
    for axis, edges, most in zip(found.axes, found.edges, MAX_BINS[len(found.axes)], strict=True):
        ends = {end for box, _ in chunks_of(array) for end in box[axis]}
        assert set(edges.tolist()) <= ends | {0, array.shape[axis]}
        assert edges.size - 1 <= most


def test_axes_that_are_cut_are_drawn_before_others() -> None:
    assert bin_chunks(regular((4, 1, 9, 5, 6), (2, 1, 9, 5, 3))).axes == (0, 3, 4)
    assert bin_chunks(regular((4, 2, 9, 5, 6), (2, 1, 3, 1, 3))).axes == (0, 1, 2)
    assert bin_chunks(regular((4, 2), (4, 2))).axes == (0, 1)


# ---------------------------------------------------------------------- pictures


def shades(array: ManifestArray) -> set[str]:
    [picture] = pictures_of(draw_chunks(array))
    return shades_of(picture)


def test_a_missing_chunk_is_hatched_and_its_neighbours_are_not() -> None:
    file = np.zeros((4, 3), int)
    file[1, 2] = MISSING
    drawn = draw_chunks(regular((8, 9), (2, 3), file=file))
    [picture] = pictures_of(drawn)
    hatched = [r for r in rectangles_of(picture) if "gap" in r.get("fill", "")]
    plain = [r for r in rectangles_of(picture) if "blue" in r.get("fill", "")]
    assert len(hatched) == 1 and len(plain) == 3
    sides = (float(hatched[0].get(name, "")) for name in ("width", "height"))
    assert len({round(n) for n in sides}) <= 2 and "missing" in text_of(drawn)
    # the second row, the third column
    assert float(hatched[0].get("x", "")) == pytest.approx(150 * 2 / 3, abs=0.1)


def test_an_array_without_chunks_is_one_gap() -> None:
    assert shades(ManifestArray.full((3, 4), 0, "i4")) == {"gap"}


def test_parts_without_chunks_are_hatched_over_the_shade_of_the_others() -> None:
    file = np.zeros(1000, int)
    file[5] = MISSING
    drawn = draw_chunks(regular((1000,), (1,), file=file))
    [picture] = pictures_of(drawn)
    at = [(r.get("x"), "gap" in r.get("fill", "")) for r in rectangles_of(picture)]
    [hatched] = [x for x, is_gap in at if is_gap]
    assert (hatched, False) in at and "in part" in text_of(drawn)


def test_chunks_have_the_shades_of_their_encodings() -> None:
    array = regular((6, 4, 4), (1, 2, 2), pipeline=np.arange(6).reshape(6, 1, 1) // 2)
    drawn = draw_chunks(array)
    assert shades(array) == {"blue", "orange", "green"}
    assert "float32, uncompressed" in text_of(drawn) and "float64, zlib" in text_of(drawn)
    # the front looks through the array, and has the shade of most chunks
    most = regular((6, 4, 4), (1, 2, 2), pipeline=np.array([0, 1, 2, 2, 2, 1]).reshape(6, 1, 1))
    *_, front = faces(draw_chunks(most))
    assert {"green" in fill for fill in front} == {True}


def faces(drawn: str) -> list[list[str]]:
    """The fills of the cells of each face."""
    groups = pictures_of(drawn)[0].findall("{http://www.w3.org/2000/svg}g")
    return [[r.get("fill", "") for r in group if r.tag.endswith("rect")] for group in groups]


@pytest.mark.parametrize("place", [(0, 1, 1), (2, 0, 0), (1, 1, 1), (2, 2, 2)])
def test_a_gap_shows_on_all_faces_of_a_box_in_part(place: tuple[int, int, int]) -> None:
    file = np.zeros((3, 3, 3), int)
    file[place] = MISSING
    drawn = draw_chunks(regular((6, 6, 6), (2, 2, 2), file=file))
    assert [sum("gap" in fill for fill in face) for face in faces(drawn)] == [1, 1, 1]
    told = text_of(drawn)
    assert "missing, in whole or in part" in told
    assert "Each face looks through the whole array: cells hold several chunks." in told


def test_a_box_of_whole_gaps_says_so() -> None:
    file = np.zeros((3, 1, 1), int)
    file[1] = MISSING
    told = text_of(draw_chunks(regular((6, 6, 6), (2, 2, 2), file=file)))
    assert "missing, in whole or in part" in told  # the front sees present and missing chunks
    nothing = text_of(draw_chunks(regular((6, 6, 6), (2, 2, 2), file=MISSING)))
    assert "missing" in nothing and "in part" not in nothing


def test_chunks_of_many_encodings_share_the_last_shade() -> None:
    kinds = tuple(replace(pipelines(1)[0], fill=bytes([n, 0, 0, 0])) for n in range(40))
    one = regular((40,), (1,), pipeline=np.arange(40))
    array = replace(one, pipelines=kinds)
    assert len(shades(array)) == 6
    assert "35 more encodings" in text_of(draw_chunks(array))
    six = replace(one, pipelines=tuple(kinds[n % 6] for n in range(40)))
    assert len(shades(six)) == 6 and "more encodings" not in text_of(draw_chunks(six))


@pytest.mark.parametrize("count", [2, 5, 6, 7, 8, 40])
def test_every_shade_of_a_picture_is_in_its_key(count: int) -> None:
    kinds = tuple(replace(pipelines(1)[0], fill=bytes([n, 0, 0, 0])) for n in range(count))
    array = replace(regular((count,), (1,), pipeline=np.arange(count)), pipelines=kinds)
    drawn = draw_chunks(array)
    swatches = [s for s in parse(drawn).iter(f"{SVG}svg") if s.get("class") != "vds-grid"]
    named = {swatch.get("aria-label") for swatch in swatches}
    assert named == shades(array) and len(named) == min(count, MAX_KINDS)


def test_no_two_shades_have_one_name() -> None:
    kinds = [replace(pipelines(1)[0], fill=bytes([n, 0, 0, 0])) for n in (1, 2, 1)]
    array = replace(regular((9,), (1,), pipeline=np.arange(9) % 3), pipelines=tuple(kinds))
    told = text_of(draw_chunks(array))
    assert len(shades(array)) == told.count("float32, uncompressed, missing chunks") == 2


def test_shades_alternate_by_file_where_each_file_has_a_cell() -> None:
    files = [SourceFile(f"s3://bucket/{n}.nc") for n in range(10)]
    array = regular((10, 4), (1, 4), files=files, file=np.arange(10).reshape(10, 1))
    assert shades(array) == {"blue", "next"}
    assert "alternate by file" in text_of(draw_chunks(array))
    many = [SourceFile(f"s3://bucket/{n}.nc") for n in range(500)]
    assert shades(regular((500,), (1,), files=many, file=np.arange(500))) == {"blue"}


def test_dimensions_and_axes_that_are_not_drawn_are_named() -> None:
    array = regular((4, 1, 9, 6), (2, 1, 9, 3))
    told = text_of(draw_chunks(array, ["time", "member", "lat", "lon"]))
    assert all(words in told for words in ("time 4", "lat 9", "lon 6", "Not drawn: member."))
    assert "Not drawn: axis 1." in text_of(draw_chunks(array))


@pytest.mark.parametrize("shape", [(10**9,), (10**5, 10**4), (10**4, 300, 300), (99,) * 5])
def test_a_picture_of_any_array_has_few_rectangles(shape: tuple[int, ...]) -> None:
    grid_axis = np.arange(shape[0]) % 2 if shape[0] <= 10**5 else np.zeros(1, int)
    column = (grid_axis - 1).reshape(-1, *[1] * (len(shape) - 1))
    page = regular(shape, (1,) * len(shape), file=column)._repr_html_()
    [picture] = pictures_of(page)
    assert 0 < len(list(rectangles_of(picture))) <= 1000
    assert len(page) < 100_000


def test_a_chequered_box_has_at_most_a_thousand_rectangles() -> None:
    # of an odd number of cells along the axis that a face hides, one encoding has most
    even = np.indices((23, 11, 15)).sum(0) % 2
    array = regular((23, 11, 15), (1, 1, 1), pipeline=even)
    [picture] = pictures_of(draw_chunks(array))
    assert 700 < len(list(rectangles_of(picture))) <= 1000


@pytest.mark.parametrize(
    "array",
    [
        regular((), ()),
        regular((5,), (2,))[:0],
        regular((0, 4), (1, 2)),
        regular((3, 4, 5), (2, 2, 2))[:, :0],
        ManifestArray.full((), 0, "i4"),
        replace(regular((4,), (2,), file=np.full(2, MISSING)), pipelines=()),
        ManifestArray.unreadable((3,), "f4", "no codec"),
        ManifestArray.from_values(np.arange(6.0)),
    ],
    ids=range(8),
)
def test_odd_arrays_have_a_picture_too(array: ManifestArray) -> None:
    page = array._repr_html_()
    assert pictures_of(page) and "Shape" in text_of(page)


# ---------------------------------------------------------------------- tables


def test_the_table_has_what_users_of_dask_know() -> None:
    file = np.zeros((5, 2, 2), int)
    file[0] = MISSING
    length = 2**20 * np.ones((5, 2, 2), int)
    told = text_of(
        regular((10, 64, 1024), (2, 32, 512), file=file, length=length, pipeline=1)._repr_html_()
    )
    for words in (
        "Array Chunk",
        "Shape (10, 64, 1024) (2, 32, 512)",
        "Values 2.6 MB 131.1 kB",
        "Stored 16.8 MB 1.0 MB",
        "Chunks 20 in 1 file; 4 missing",
        "Data type float32",
        "Files 1",
        "s3://bucket/a.nc 16 1.1 PB",
    ):
        assert words in told, told


def test_chunks_of_several_lengths_are_told_from_least_to_most() -> None:
    axis = ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31])
    array = of(ChunkManifest.build((3,), files=[FILE], offset=1, length=1), (axis,))
    assert "(90,) (28 to 31,)" in text_of(array._repr_html_())
    assert "(100,) (30,)" in text_of(regular((100,), (30,))._repr_html_())


def test_a_ratio_is_told_where_values_are_longer() -> None:
    assert "40 bytes, 10.0× smaller" in text_of(regular((100,), (25,), length=10)._repr_html_())
    assert "smaller" not in text_of(regular((100,), (25,), length=100)._repr_html_())


def test_many_files_are_cut_after_the_first_ten() -> None:
    files = [SourceFile(f"s3://bucket/{n}.nc") for n in range(1000)]
    page = regular((1000,), (1,), files=files, file=np.arange(1000))._repr_html_()
    assert "and 990 more" in page and page.count("s3://") == 10


def test_urls_come_out_as_text_and_without_secrets() -> None:
    url = "s3://bucket/<script>alert(1)</script>\"'.nc?X-Amz-Signature=hunter2"
    page = regular((4,), (2,), files=(SourceFile(url),))._repr_html_()
    assert "script" not in Tags(page).tags
    assert "<script>alert(1)</script>" in text_of(page) and "hunter2" not in page


# ---------------------------------------------------------------------- cost


class ForbiddenTable(ReferenceTable):
    """A table of a set, whose references must not be read."""

    has_pipelines = False

    def load(self, ids: Any) -> ChunkManifest:
        raise AssertionError("rows were asked for")

    def list_sources(self) -> tuple[SourceFile, ...]:
        raise AssertionError("files were asked for")


@pytest.mark.parametrize("has_pipelines", [False, True])
def test_references_in_a_set_are_not_read_to_draw_them(has_pipelines: bool) -> None:
    table = ForbiddenTable()
    table.has_pipelines = has_pipelines
    lazy: Any = ChunkManifest.from_table(table, (10**6, 4))
    array = of(lazy, make_regular_axes((10**6, 40), (1, 10)))
    with no_reads():
        page, found = array._repr_html_(), compute_statistics(array)
    assert (found.unread, found.stored) == (4 * 10**6, 0)
    assert "4,000,000 with references not loaded" in text_of(page)
    # its only encoding is known, one of several is not
    [picture] = pictures_of(page)
    assert shades_of(picture) == ({"unknown"} if has_pipelines else {"blue"})
    assert bin_chunks(array).counts[UNREAD].any() == has_pipelines
    assert "missing chunks are not seen: ds.virtual.plot.chunks(name) loads" in text_of(page)


@pytest.mark.parametrize(
    "manifest",
    [
        ChunkManifest.build((10**6, 1000), files=[FILE], offset=10, length=8),
        ChunkManifest.from_table(StridedReferences(FILE, 96, 24, 8, 10**9), (10**6, 1000)),
        spread([5, 10**9 - 1], (10**6, 1000)),
    ],
    ids=["broadcast", "strided", "sparse"],
)
def test_looking_at_a_thousand_million_chunks_takes_no_memory(manifest: ChunkManifest) -> None:
    array = of(manifest, make_regular_axes((10**7, 10**4), (10, 10)))
    array._repr_html_()
    assert peak(lambda: (repr(array), repr(array.fragments), array._repr_html_())) < 2**20
    assert "1,000,000,000" in array._repr_html_()


def test_references_that_are_not_loaded_have_a_meaning_and_hide_no_files() -> None:
    table = ForbiddenTable()
    table.has_pipelines = True
    lazy: Any = ChunkManifest.from_table(table, (4, 4))
    hidden = of(lazy, make_regular_axes((4, 40), (1, 10)))
    known = of(
        ChunkManifest.build((4, 4), files=[FILE], length=8), make_regular_axes((4, 40), (1, 10))
    )
    assert "one of several encodings" in text_of(hidden._repr_html_())
    joined = np.concatenate([hidden, known])
    assert find_used_files([joined], 5).first == [(FILE, 16)]


def test_each_side_of_a_picture_has_its_length() -> None:
    manifest = ChunkManifest.build((4, 4), files=[FILE], length=8)
    page = of(manifest, make_regular_axes((12, 40), (3, 10)))._repr_html_()
    [picture] = pictures_of(page)
    words = ["".join(one.itertext()).strip() for one in picture.iter(f"{SVG}text")]
    assert any("12" in word for word in words) and any("40" in word for word in words)
    assert float(picture.get("width", "")) > 40
