"""Summaries of the chunks of an array, as text, HTML and pictures.

All of them are made from references, without reading values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np
import numpy.typing as npt

from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import MISSING, Ints, compact
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest, iterate_references
from virtualds.codecs.pipeline import CodecPipeline, name_pipelines
from virtualds.errors import format_bytes, format_count, without_secrets
from virtualds.pictures import html
from virtualds.pictures.blocks import Section, Table, draw
from virtualds.pictures.chunk_grid import Box, Cell, Face, Side, draw_box, draw_line, draw_rectangle
from virtualds.pictures.html import Markup, Shade, cell, element, legend
from virtualds.source_file import SourceFile

if TYPE_CHECKING:
    from virtualds.arrays.array import ManifestArray


CACHED_COUNTS = 4
"""The number of cached counts of files, which live as long as the manifests; the variables of a
dataset share their tables of files."""


class LoadedColumns(NamedTuple):
    """Columns of a manifest that are in memory, of length 1 along axes on which they do not vary.

    ``chunk_ids`` are the flat indexes of the chunks if a manifest has rows for only some chunks,
    and None if the columns cover the whole grid.
    """

    file: npt.NDArray[np.integer]
    length: npt.NDArray[np.integer]
    pipeline: npt.NDArray[np.integer]
    chunk_ids: Ints | None = None


def find_loaded_columns(manifest: ChunkManifest) -> LoadedColumns | None:
    """Return the columns of a manifest, or None if they are in a set or a source file."""
    found = manifest.get_if_loaded()
    if found is None:
        return None
    chunk_ids, rows = found
    columns = (rows.file, rows.length, rows.pipeline)
    # rows at positions have a value in every column
    file, length, pipeline = map(compact, columns) if chunk_ids is None else columns
    return LoadedColumns(file, length, pipeline, chunk_ids)


@dataclass(frozen=True)
class ChunkStatistics:
    """Statistics of the chunks of an array.

    ``chunks`` counts all chunks, ``missing`` those without a reference, and ``unread`` those whose
    references are in a set or a source file, and have not been read. ``stored`` is the size of all
    other chunks in bytes, and ``decoded`` the size of their values.
    """

    chunks: int = 0
    missing: int = 0
    stored: int = 0
    decoded: int = 0
    unread: int = 0

    @property
    def ratio(self) -> float | None:
        """The ratio of decoded to stored size, or None if it is unknown."""
        return self.decoded / self.stored if self.stored else None

    def __add__(self, other: ChunkStatistics) -> ChunkStatistics:
        return ChunkStatistics(*map(add, vars(self).values(), vars(other).values()))


def compute_statistics(array: ManifestArray, *, read: bool = False) -> ChunkStatistics:
    """Return the statistics of the chunks of an array.

    References in a set or a source file are read only if ``read`` is true.
    """
    found = (_survey_fragment(f, array.dtype.itemsize, read) for f in array.fragments)
    return sum(found, ChunkStatistics())


def _survey_fragment(fragment: Fragment, itemsize: int, read: bool) -> ChunkStatistics:
    size, known = fragment.manifest.size, find_loaded_columns(fragment.manifest)
    if known is None and not read:
        return ChunkStatistics(size, unread=size)
    if known is None:
        parts = iterate_references(fragment.manifest)
        return _survey_rows(fragment, itemsize, ((ids, rows.length) for ids, rows in parts))
    there = known.file != MISSING
    if known.chunk_ids is not None:
        return _survey_rows(fragment, itemsize, [(known.chunk_ids[there], known.length[there])])
    everything = bool(there.all())
    elements = prod(fragment.shape) if everything else _count_elements(fragment.axes, there)
    missing = 0 if everything else size - int(there.sum()) * (size // max(there.size, 1))
    # if a column does not vary along an axis, one element represents all
    length = known.length if everything else np.where(there, known.length, 0)
    stored = int(length.sum()) * (size // max(length.size, 1))
    return ChunkStatistics(size, missing, stored, elements * itemsize)


def _survey_rows(
    fragment: Fragment, itemsize: int, parts: Iterable[tuple[Ints, npt.NDArray[np.integer]]]
) -> ChunkStatistics:
    """Return the statistics of a fragment, whose existing chunks are given in parts."""
    size = fragment.manifest.size
    found = ChunkStatistics(size, missing=size)
    for chunk_ids, length in parts:
        shown = np.ones(chunk_ids.size, np.int64)
        # numpy cannot unravel indices of a grid without axes
        numbers = np.unravel_index(chunk_ids, fragment.manifest.shape) if fragment.axes else ()
        for axis, number in zip(fragment.axes, numbers, strict=True):
            shown *= axis.edges_at(number + 1) - axis.edges_at(number)
        found += ChunkStatistics(0, -chunk_ids.size, int(length.sum()), int(shown.sum()) * itemsize)
    return found


def _count_elements(axes: Sequence[ChunkAxis], exists: npt.NDArray[np.bool_]) -> int:
    """Return the number of elements in existing chunks."""
    counted: Any = exists.astype(np.int64)
    for axis in reversed(axes):
        along = counted.shape[-1]
        lengths = np.array([axis.size]) if along == 1 else axis.lengths
        counted = counted @ lengths
    return int(counted)


# ---------------------------------------------------------------------- files


def count_files(arrays: Sequence[ManifestArray]) -> int:
    """Return the number of files of arrays, or 0 if the references of a set are not in memory."""
    if any(f.manifest.is_in_set for array in arrays for f in array.fragments):
        return 0
    manifests = [f.manifest for array in arrays for f in array.fragments]
    pairs = ((manifest, manifest.files) for manifest in manifests)
    found = list({id(table): (manifest, table) for manifest, table in pairs}.values())
    for known, count in tuple(_counted):
        # a manifest that was garbage-collected has no table
        if len(known) == len(found) and all(
            (manifest := living()) is not None and manifest.files is table
            for living, (_, table) in zip(known, found, strict=True)
        ):
            return count
    count = len(set().union(*(table for _, table in found)))
    _counted.append(([ref(manifest) for manifest, _ in found], count))
    return count


_counted: deque[tuple[list[ref[ChunkManifest]], int]] = deque(maxlen=CACHED_COUNTS)


class UsedFiles(NamedTuple):
    """The first files of arrays with their numbers of chunks, and the number of all files."""

    first: list[tuple[SourceFile, int]]
    total: int


def find_used_files(arrays: Sequence[ManifestArray], limit: int) -> UsedFiles:
    """Return the files that contain chunks, for arrays whose references are in memory."""
    counts: dict[int, Ints] = {}
    tables: dict[int, tuple[SourceFile, ...]] = {}
    for files, used in _count_by_table(arrays):
        tables[id(files)] = files
        before = counts.get(id(files))
        counts[id(files)] = used if before is None else before + used
    if len(tables) == 1:
        [(number, files)] = tables.items()
        met = np.flatnonzero(counts[number])
        return UsedFiles(
            [(files[n], int(counts[number][n])) for n in met[:limit].tolist()], met.size
        )
    found: dict[SourceFile, int] = {}
    for number, files in tables.items():
        for file, count in zip(files, counts[number].tolist(), strict=True):
            if count:
                found[file] = found.get(file, 0) + count
    return UsedFiles(list(found.items())[:limit], len(found))


def _count_by_table(
    arrays: Sequence[ManifestArray],
) -> Iterator[tuple[tuple[SourceFile, ...], Ints]]:
    for array in arrays:
        for fragment in array.fragments:
            manifest = fragment.manifest
            known = find_loaded_columns(manifest)
            if known is None:
                continue
            repeats = 1 if known.chunk_ids is not None else manifest.size // max(known.file.size, 1)
            file = known.file[known.file >= 0]
            yield manifest.files, np.bincount(file, minlength=len(manifest.files)) * repeats


# ---------------------------------------------------------------------- bins
# The chunks of an array, counted in few enough bins to be drawn.
#
# Up to three axes are drawn. Along each, the array is divided into bins at chunk boundaries. If
# there are more chunks than bins, a bin contains several.


MAX_BINS = ((), (200,), (24, 30), (24, 12, 16))
"""Maximum number of bins along each axis, for pictures of zero to three axes."""

SAMPLED_EDGES = 1000
"""Maximum number of chunk boundaries of a fragment that divide an axis into bins."""

MAX_KINDS = 6
"""Maximum number of kinds of chunks that are distinguished; the last one stands for all others."""

GAP, UNREAD, FIRST_KIND = 0, 1, 2
"""Rows of `ChunkBins.counts`: missing chunks, chunks with unread references, the first kind."""


@dataclass(frozen=True)
class ChunkBins:
    """The number of chunks per bin and kind.

    ``edges`` are the boundaries of the bins along the drawn ``axes``. ``encodings`` are the
    pipelines of the chunks, if kinds are encodings. ``counts`` are the chunks of each kind in each
    bin: missing ones, those with unread references, then one kind for each encoding, or two that
    alternate between files, or one. ``is_assumed`` is true if references are not in memory, and
    their chunks are assumed to exist.
    """

    axes: tuple[int, ...]
    edges: tuple[Ints, ...]
    encodings: tuple[int, ...]
    counts: Ints
    is_assumed: bool

    @property
    def alternates(self) -> bool:
        """Whether the kind alternates between files."""
        return not self.encodings and self.counts.shape[0] > FIRST_KIND + 1


def bin_chunks(array: ManifestArray) -> ChunkBins:
    """Count the chunks of a `ManifestArray` in bins, without reading or requesting anything."""
    # draw the axes with several chunks first, then the last ones
    divided = [i for i in range(array.ndim) if any(f.axes[i].nchunks > 1 for f in array.fragments)]
    whole = [i for i in reversed(range(array.ndim)) if i not in divided]
    axes = tuple(sorted([*divided, *whole][:3]))
    edges = [_divide_axis(array, a, n) for a, n in zip(axes, MAX_BINS[len(axes)], strict=True)]
    bins = [e.size - 1 for e in edges]
    first: dict[CodecPipeline, int] = {}
    same = [first.setdefault(p, n) for n, p in enumerate(array.pipelines)]
    # missing chunks have number 0, even if no chunk has a pipeline
    numbers = np.array(same or [0], np.int64)
    found = [
        known and known._replace(pipeline=numbers[known.pipeline])
        for known in (find_loaded_columns(f.manifest) for f in array.fragments)
    ]
    files = [len(f.manifest.files) if c else 0 for f, c in zip(array.fragments, found, strict=True)]
    columns = [c or _assume_columns(f, array) for f, c in zip(array.fragments, found, strict=True)]
    encodings = _find_encodings(array, columns)
    alternates = not encodings and 1 < sum(files) <= max(bins, default=0)
    kinds = min(len(encodings), MAX_KINDS) or 1 + alternates
    counts = np.zeros((FIRST_KIND + kinds, *bins), np.int64)
    covered, before = np.zeros(bins, np.int64), 0
    for fragment, known, number in zip(array.fragments, columns, files, strict=True):
        edges_by_axis = dict(zip(axes, edges, strict=True))
        overlaps = [
            _find_overlap(fragment, axis, edges_by_axis.get(axis)) for axis in range(array.ndim)
        ]
        covered += _multiply([o.elements for o in overlaps]).reshape(bins)
        kind = known and _number_kinds(known, encodings, before if alternates else None)
        _add_chunks(counts, fragment, overlaps, known, kind)
        before += number
    hidden = prod(n for axis, n in enumerate(array.shape) if axis not in axes)
    counts[GAP] += covered < _multiply([np.diff(e) for e in edges]) * hidden
    return ChunkBins(axes, tuple(edges), encodings, counts, None in found)


def _assume_columns(fragment: Fragment, array: ManifestArray) -> LoadedColumns | None:
    """Return columns for chunks whose references are not in memory, if all have one encoding."""
    used = fragment.manifest.used_pipelines(len(array.pipelines))
    if used.size != 1:
        return None
    nothing = np.zeros((1,) * array.ndim, np.int64)
    return LoadedColumns(nothing, nothing, nothing + used[0])


def _divide_axis(array: ManifestArray, axis: int, limit: int) -> Ints:
    """Return at most ``limit`` bins along an axis, which begin and end at chunk boundaries."""
    found = [np.array([0, array.shape[axis]], np.int64)]
    for chunk_axis, start in {(f.axes[axis], f.start[axis]) for f in array.fragments}:
        if chunk_axis.nchunks > 1 or chunk_axis.size < array.shape[axis]:
            count = min(chunk_axis.nchunks, SAMPLED_EDGES)
            numbers = np.arange(count + 1) * chunk_axis.nchunks // max(count, 1)
            found.append(chunk_axis.edges_at(numbers) + start)
    edges = np.sort(np.concatenate(found))
    edges = edges[np.append(edges[1:] != edges[:-1], True)]
    # an axis without elements is one bin
    edges = np.append(edges[:1], edges[-1:]) if edges.size < 2 else edges
    if edges.size - 1 <= limit:
        return edges
    step = -(-(edges.size - 1) // limit)
    return np.append(edges[:-1:step], edges[-1])


class Overlap(NamedTuple):
    """The part of a fragment in each bin along an axis: its chunks, and its number of elements."""

    first: Ints
    stop: Ints
    elements: Ints


def _find_overlap(fragment: Fragment, axis: int, edges: Ints | None) -> Overlap:
    """Return the part of a fragment in each bin along an axis; without edges, in one bin."""
    chunk_axis = fragment.axes[axis]
    if edges is None:
        return Overlap(np.array([0]), np.array([chunk_axis.nchunks]), np.array([chunk_axis.size]))
    inside = np.clip(edges - fragment.start[axis], 0, chunk_axis.size)
    elements = np.diff(inside)
    # a bin without elements has no chunks
    first = chunk_axis.locate(np.minimum(inside[:-1], max(chunk_axis.size - 1, 0)))
    stop = np.where(elements, chunk_axis.locate(np.maximum(inside[1:] - 1, 0)) + 1, first)
    return Overlap(first, stop, elements)


def _multiply(columns: Sequence[Ints]) -> Ints:
    """Return the outer product of columns."""
    return reduce(np.multiply.outer, columns, np.ones((), np.int64))


# ---------------------------------------------------------------------- kinds


def _find_encodings(
    array: ManifestArray, columns: Sequence[LoadedColumns | None]
) -> tuple[int, ...]:
    """Return the pipelines of the existing chunks, or none if there is only one."""
    if len(array.pipelines) < 2:
        return ()
    used: set[int] = set()
    for known in filter(None, columns):
        pipeline, there = np.broadcast_arrays(known.pipeline, known.file != MISSING)
        used |= set(np.unique(pipeline[there]).tolist())
    return tuple(sorted(used)) if len(used) > 1 else ()


def _number_kinds(known: LoadedColumns, encodings: tuple[int, ...], before: int | None) -> Ints:
    """Return the kind of each chunk, -1 for missing ones.

    ``before`` is the number of files in earlier fragments.
    """
    kind: Any = np.zeros((), np.int64)
    if encodings:
        kind = np.minimum(np.searchsorted(encodings, known.pipeline), MAX_KINDS - 1)
    elif before is not None:
        kind = (known.file + before) % 2
    found: Ints = np.where(known.file == MISSING, -1, kind)
    return found


# ---------------------------------------------------------------------- counting


def _add_chunks(
    counts: Ints,
    fragment: Fragment,
    overlaps: Sequence[Overlap],
    known: LoadedColumns | None,
    kind: Ints | None,
) -> None:
    """Add the chunks of a fragment to the counts."""
    bins = counts.shape[1:]
    everything = _multiply([o.stop - o.first for o in overlaps]).reshape(bins)
    if known is None or kind is None:
        counts[UNREAD] += everything
        return
    if known.chunk_ids is not None:
        bin_ids = _find_bins(fragment, overlaps, known.chunk_ids)
    for row in range(FIRST_KIND, counts.shape[0]):
        same = kind == row - FIRST_KIND
        if known.chunk_ids is not None:
            found = np.bincount(bin_ids[same], minlength=prod(bins))
        else:
            found = _count_in_bins(same, overlaps)
        counts[row] += found.reshape(bins)
        everything = everything - found.reshape(bins)
    counts[GAP] += np.maximum(everything, 0)


def _count_in_bins(same: npt.NDArray[np.bool_], overlaps: Sequence[Overlap]) -> Ints:
    """Return the number of chunks in each bin for which ``same`` is true."""
    if same.size == 1:
        return _multiply([o.stop - o.first for o in overlaps]) * int(same.flat[0])
    found: Any = same
    for axis, overlap in enumerate(overlaps):
        if found.shape[axis] == 1:
            along = [1] * found.ndim
            along[axis] = -1
            found = found * (overlap.stop - overlap.first).reshape(along)
        else:
            sums = np.cumsum(found, axis, dtype=np.int64)
            before = [1 if i == axis else n for i, n in enumerate(found.shape)]
            sums = np.concatenate([np.zeros(before, np.int64), sums], axis)
            found = sums.take(overlap.stop, axis) - sums.take(overlap.first, axis)
    counted: Ints = found
    return counted


def _find_bins(fragment: Fragment, overlaps: Sequence[Overlap], chunk_ids: Ints) -> Ints:
    """Return the index of the bin in which each of these chunks begins."""
    numbers = np.unravel_index(chunk_ids, fragment.manifest.shape)
    found = [
        np.searchsorted(overlap.first, number, "right") - 1
        for overlap, number in zip(overlaps, numbers, strict=True)
    ]
    flat = np.ravel_multi_index(found, [o.first.size for o in overlaps])
    return np.asarray(flat, np.int64)


# ---------------------------------------------------------------------- pictures


def draw_chunks(array: ManifestArray, dims: Sequence[str] | None = None) -> Markup:
    """Return the picture of the chunks of a `ManifestArray`, with a legend.

    It reads and requests nothing: references that are not in memory are drawn as unread.
    """
    found = bin_chunks(array)
    faces = _list_faces(found)
    shades = [html.get_shade(n) for n in range(found.counts.shape[0] - FIRST_KIND)]
    if found.alternates:
        shades = [html.SERIES[0], html.NEXT]
    drawn = _draw_grid(array, found, [_make_face(face, shades) for face in faces], dims)
    meanings = _list_meanings(array, found, faces, shades)
    return element("div", drawn, legend(meanings), _describe_omissions(array, found, faces, dims))


def _list_faces(found: ChunkBins) -> list[Ints]:
    """Return the counts of the cells to draw, in rows and columns.

    For three axes there are three faces, each a projection of the whole array: a gap inside is
    visible on all of them.
    """
    counts = found.counts
    if len(found.axes) == 3:
        return [counts.sum(2), counts.sum(3).swapaxes(1, 2), counts.sum(1)]
    return [counts if len(found.axes) == 2 else counts.reshape(counts.shape[0], 1, -1)]


def _draw_grid(
    array: ManifestArray, found: ChunkBins, faces: Sequence[Face], dims: Sequence[str] | None
) -> Markup:
    names = [f"{dims[axis]} " if dims else "" for axis in found.axes]
    lengths = [array.shape[axis] for axis in found.axes]
    sides = [
        Side(f"{name}{length:,}", edges.tolist())
        for name, length, edges in zip(names, lengths, found.edges, strict=True)
    ]
    title = f"The chunk grid of an array of shape {array.shape}: {array.nchunks:,} chunks"
    if len(sides) == 3:
        back, down, across = sides
        return draw_box(back, down, across, Box(*faces), title)
    [face] = faces
    if len(sides) == 2:
        down, across = sides
        return draw_rectangle(down, across, face, title)
    [side] = sides or [Side("one value", (0, 1))]
    return draw_line(side, face[0], title)


def _make_face(counts: Ints, shades: Sequence[Shade]) -> Face:
    """Return the cells of bins in rows and columns, each with the shade of most of its chunks."""
    kinds = counts[FIRST_KIND:]
    most, there = kinds.argmax(0), kinds.any(0)
    # the last shades are those of chunks with unread references, and of no chunks
    number = np.where(there, most, np.where(counts[UNREAD] > 0, len(shades), len(shades) + 1))
    gaps = (counts[GAP] > 0) & (number <= len(shades))
    cells = [
        [Cell(shade, has_gaps) for has_gaps in (False, True)]
        for shade in (*shades, html.UNKNOWN, None)
    ]
    pairs = zip(number.tolist(), gaps.tolist(), strict=True)
    return [[cells[n][gap] for n, gap in zip(*row, strict=True)] for row in pairs]


# ---------------------------------------------------------------------- words


def _list_meanings(
    array: ManifestArray, found: ChunkBins, faces: Sequence[Ints], shades: Sequence[Shade]
) -> list[tuple[Shade, object]]:
    """Return the legend of shades that the picture does not explain by itself."""
    meanings: list[tuple[Shade, object]] = []
    if found.encodings:
        names = list_encodings([array.pipelines[number] for number in found.encodings])
        meanings += zip(shades, names, strict=True)
    if found.alternates:
        meanings.append((html.NEXT, "shades alternate by file"))
    if found.counts[UNREAD].any():
        meanings.append((html.UNKNOWN, "one of several encodings"))
    if found.counts[GAP].any():
        apart = all(not (face[GAP] > 0)[(face > 0).sum(0) > 1].any() for face in faces)
        meanings.append((html.GAP, "missing" if apart else "missing, in whole or in part"))
    return meanings


def list_encodings(pipelines: Sequence[CodecPipeline]) -> list[str]:
    """Return as many names of encodings as pictures distinguish; the last may stand for the rest.

    >>> list_encodings([CodecPipeline(np.dtype("u1"), fill=bytes([n])) for n in range(9)])[4:]
    ['uint8, uncompressed, missing chunks 4', '4 more encodings']
    """
    if len(pipelines) <= MAX_KINDS:
        return name_pipelines(pipelines)
    named = name_pipelines(pipelines[: MAX_KINDS - 1])
    return [*named, f"{len(pipelines) - len(named):,} more encodings"]


def _describe_omissions(
    array: ManifestArray, found: ChunkBins, faces: Sequence[Ints], dims: Sequence[str] | None
) -> Markup | None:
    """Return a note on what the picture leaves out."""
    parts = []
    if found.is_assumed:
        parts.append(
            "References are not loaded, so missing chunks are not seen: "
            "ds.virtual.plot.chunks(name) loads and draws those of a variable, "
            "virtualds info SET --html PAGE those of a set."
        )
    if any((face.sum(0) > 1).any() for face in faces):
        through = "Each face looks through the whole array: cells" if len(faces) > 1 else "Cells"
        parts.append(f"{through} hold several chunks.")
    hidden = [axis for axis in range(array.ndim) if axis not in found.axes]
    if hidden:
        names = ", ".join(dims[axis] if dims else f"axis {axis}" for axis in hidden)
        parts.append(f"Not drawn: {names}.")
    return element("div", " ".join(parts), class_="vds-note") if parts else None


# ---------------------------------------------------------------------- display

SHOWN_FILES = 10
"""Maximum number of files that an array lists."""
SHOWN_ENCODINGS = 3
"""Maximum number of encodings that are listed for several arrays."""


def format_summary(array: ManifestArray) -> str:
    """Format the numbers of chunks, files and fragments of a virtual array as text."""
    files, chunks = count_files([array]), array.nchunks
    parts = f" in {len(array.fragments)} fragments" if len(array.fragments) > 1 else ""
    of = f" of {format_count(files, 'file')}" if files else ""
    return f"{format_count(chunks, 'chunk')}{of}{parts}"


def format_page(array: ManifestArray) -> str:
    """Return the HTML of a virtual array for notebooks."""
    found = compute_statistics(array)
    return cell(describe_arrays([array], found), draw(describe_files([array], SHOWN_FILES)))


def describe_arrays(
    arrays: Sequence[ManifestArray], found: ChunkStatistics, dims: Sequence[str] | None = None
) -> Markup:
    """Return a table next to a picture of arrays that have the same chunk grid.

    ``found`` has the statistics of all of them, and ``dims`` the names of their axes.
    """
    return element(
        "div", _describe_in_table(arrays, found), draw_chunks(arrays[0], dims), class_="vds-side"
    )


def _describe_in_table(arrays: Sequence[ManifestArray], found: ChunkStatistics) -> Markup:
    """Return a table like that of dask, with the sizes and shapes of arrays and of their chunks."""
    array, count = arrays[0], found.chunks - found.missing - found.unread
    shape = list_chunk_lengths(array)
    rows: list[tuple[str, object, object]] = [
        ("Shape", str(tuple(array.shape)), f"({', '.join(shape)}{',' * (len(shape) == 1)})"),
        (
            "Values",
            format_bytes(sum(a.nbytes for a in arrays)),
            _format_mean_size(found.decoded, count),
        ),
        ("Stored", format_stored(found), _format_mean_size(found.stored, count)),
    ]
    head = element("tr", element("td"), element("th", "Array"), element("th", "Chunk"))
    pairs = (
        element("tr", element("th", name, scope="row"), element("td", whole), element("td", part))
        for name, whole, part in rows
    )
    wide = {
        "Chunks": _format_chunks(arrays, found),
        "Data type": ", ".join(dict.fromkeys(str(a.dtype) for a in arrays)),
        "Encoding": _format_encodings(arrays),
        "References": f"{format_bytes(sum(a.nbytes_virtual for a in arrays))} of memory",
    }
    lines = (
        element("tr", element("th", name, scope="row"), element("td", value, colspan=2))
        for name, value in wide.items()
    )
    return element("table", element("tbody", head, *pairs, *lines), class_="vds-facts")


def list_chunk_lengths(array: ManifestArray) -> list[str]:
    """Return the length of chunks along every axis, or the minimum and the maximum if it varies."""
    found = []
    for axis in range(array.ndim):
        chunk_axes = {f.axes[axis] for f in array.fragments}
        lengths = {
            n
            for chunk_axis in chunk_axes
            for n in (chunk_axis.stored_lengths() if chunk_axis.size else ())
        }
        low, high = min(lengths, default=0), max(lengths, default=0)
        # a shorter chunk at the end of a regular axis does not count as another length
        regular = {chunk_axis.chunk for chunk_axis in chunk_axes}
        found.append(f"{high}" if low == high or regular == {high} else f"{low} to {high}")
    return found


def _format_mean_size(nbytes: int, chunks: int) -> str:
    """Format the mean size of a chunk."""
    return format_bytes(round(nbytes / chunks)) if nbytes and chunks else ""


def format_stored(found: ChunkStatistics) -> str:
    """Format the size of chunks, and how many times smaller they are than their values."""
    if not found.stored:
        return "not known" if found.unread else "nothing"
    if found.unread:
        return f"at least {format_bytes(found.stored)}"
    if found.ratio is None or found.ratio < 1.05:
        return format_bytes(found.stored)
    ratio = f"{found.ratio:,.{0 if found.ratio >= 100 else 1}f}"
    return f"{format_bytes(found.stored)}, {ratio}× smaller"


def _format_chunks(arrays: Sequence[ManifestArray], found: ChunkStatistics) -> str:
    files = count_files(arrays)
    parts = [f"{found.chunks:,}{f' in {files:,} file' if files else ''}{'s' * (files > 1)}"]
    parts += [f"{found.missing:,} missing"] if found.missing else []
    parts += [f"{found.unread:,} with references not loaded"] if found.unread else []
    count = len(arrays[0].fragments)
    parts += [f"{count:,} grids"] if count > 1 else []
    return "; ".join(parts)


def _format_encodings(arrays: Sequence[ManifestArray]) -> str:
    """Format the encodings of arrays with one each, or the number of those of the first array."""
    pipelines = list(dict.fromkeys(p for array in arrays for p in array.pipelines))
    if len(arrays[0].pipelines) > 1:
        return f"{len(arrays[0].pipelines):,} encodings"
    names = list(dict.fromkeys(name_pipelines(pipelines)))
    more = [f"{len(names) - SHOWN_ENCODINGS:,} more"] if len(names) > SHOWN_ENCODINGS else []
    return "; ".join([*names[:SHOWN_ENCODINGS], *more]) or "no chunks"


def describe_files(arrays: Sequence[ManifestArray], limit: int) -> Section:
    """Return a collapsed section with a table of the first files, empty if none is known."""
    used = find_used_files(arrays, limit)
    rows = [
        (
            without_secrets(file.url),
            f"{count:,}",
            "" if file.size is None else format_bytes(file.size),
        )
        for file, count in used.first
    ]
    shown = Table(("url", "chunks", "size"), rows, (1, 2), limit, used.total)
    # sets that are not loaded list files themselves
    lazy = any(f.manifest.is_in_set for array in arrays for f in array.fragments)
    return Section("Files", [shown], f"{'at least ' * lazy}{used.total:,}", is_open=False)
