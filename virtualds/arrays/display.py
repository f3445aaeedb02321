"""Text, HTML and pictures of the chunks of an array, from references, without reading values."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
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
from virtualds.pictures import Section, Table, draw, html
from virtualds.pictures.html import (
    Box,
    Cell,
    Face,
    Markup,
    Shade,
    Side,
    draw_box,
    draw_legend,
    draw_line,
    draw_rectangle,
    element,
    to_notebook_html,
)
from virtualds.source_file import SourceFile

if TYPE_CHECKING:
    from virtualds.arrays.array import ManifestArray


MAX_CACHED_COUNTS = 4
"""Maximum number of cached file counts, which are valid as long as their manifests exist; the
variables of a dataset share their tables of files."""


class LoadedColumns(NamedTuple):
    """Columns of a manifest that are in memory, of length 1 along axes on which they do not vary.

    ``chunk_ids`` are the flat chunk ids if the manifest is sparse, and None if the columns cover
    the whole grid.
    """

    file: npt.NDArray[np.integer]
    length: npt.NDArray[np.integer]
    pipeline: npt.NDArray[np.integer]
    chunk_ids: Ints | None = None


def get_loaded_columns(manifest: ChunkManifest) -> LoadedColumns | None:
    """Return the columns of a manifest, or None if its references are not in memory."""
    loaded = manifest.get_if_loaded()
    if loaded is None:
        return None
    chunk_ids, rows = loaded
    columns = (rows.file, rows.length, rows.pipeline)
    # columns of sparse manifests always have one value per chunk
    file, length, pipeline = map(compact, columns) if chunk_ids is None else columns
    return LoadedColumns(file, length, pipeline, chunk_ids)


@dataclass(frozen=True)
class ChunkStatistics:
    """Statistics of the chunks of an array.

    ``chunks`` counts all chunks, ``missing`` those without a reference, and ``unread`` those whose
    references have not been read from a set or a source file. ``stored`` is the size of all other
    chunks in bytes, and ``decoded`` the size of their values in bytes.
    """

    chunks: int = 0
    missing: int = 0
    stored: int = 0
    decoded: int = 0
    unread: int = 0

    @property
    def ratio(self) -> float | None:
        """The compression ratio (decoded to stored size), or None if it is unknown."""
        return self.decoded / self.stored if self.stored else None

    def __add__(self, other: ChunkStatistics) -> ChunkStatistics:
        return ChunkStatistics(*map(add, vars(self).values(), vars(other).values()))


def compute_statistics(array: ManifestArray, *, read: bool = False) -> ChunkStatistics:
    """Return the statistics of the chunks of an array.

    References in a set or a source file are read only if ``read`` is true.
    """
    statistics = (
        _compute_fragment_statistics(f, array.dtype.itemsize, read) for f in array.fragments
    )
    return sum(statistics, ChunkStatistics())


def _compute_fragment_statistics(fragment: Fragment, itemsize: int, read: bool) -> ChunkStatistics:
    size, columns = fragment.manifest.size, get_loaded_columns(fragment.manifest)
    if columns is None and not read:
        return ChunkStatistics(size, unread=size)
    if columns is None:
        parts = iterate_references(fragment.manifest)
        return _sum_existing_chunks(fragment, itemsize, ((ids, rows.length) for ids, rows in parts))
    exists = columns.file != MISSING
    if columns.chunk_ids is not None:
        return _sum_existing_chunks(
            fragment, itemsize, [(columns.chunk_ids[exists], columns.length[exists])]
        )
    all_exist = bool(exists.all())
    elements = prod(fragment.shape) if all_exist else _count_elements(fragment.axes, exists)
    missing = 0 if all_exist else size - int(exists.sum()) * (size // max(exists.size, 1))
    # a column of length 1 along an axis stands for all chunks along it
    length = columns.length if all_exist else np.where(exists, columns.length, 0)
    stored = int(length.sum()) * (size // max(length.size, 1))
    return ChunkStatistics(size, missing, stored, elements * itemsize)


def _sum_existing_chunks(
    fragment: Fragment, itemsize: int, blocks: Iterable[tuple[Ints, npt.NDArray[np.integer]]]
) -> ChunkStatistics:
    """Return the statistics of a fragment from blocks of flat chunk ids and stored lengths."""
    size = fragment.manifest.size
    total = ChunkStatistics(size, missing=size)
    for chunk_ids, length in blocks:
        elements = np.ones(chunk_ids.size, np.int64)
        # np.unravel_index does not accept a grid without axes
        chunk_index = np.unravel_index(chunk_ids, fragment.manifest.shape) if fragment.axes else ()
        for axis, number in zip(fragment.axes, chunk_index, strict=True):
            elements *= axis.edges_at(number + 1) - axis.edges_at(number)
        total += ChunkStatistics(
            0, -chunk_ids.size, int(length.sum()), int(elements.sum()) * itemsize
        )
    return total


def _count_elements(axes: Sequence[ChunkAxis], exists: npt.NDArray[np.bool_]) -> int:
    """Return the number of elements in existing chunks."""
    counts: Any = exists.astype(np.int64)
    for axis in reversed(axes):
        along = counts.shape[-1]
        lengths = np.array([axis.size]) if along == 1 else axis.lengths
        counts = counts @ lengths
    return int(counts)


# ---------------------------------------------------------------------- files


def count_files(arrays: Sequence[ManifestArray]) -> int:
    """Return the number of source files of arrays, or 0 if it would have to be read from a set."""
    if any(f.manifest.is_in_set for array in arrays for f in array.fragments):
        return 0
    manifests = [f.manifest for array in arrays for f in array.fragments]
    pairs = ((manifest, manifest.files) for manifest in manifests)
    distinct = list({id(table): (manifest, table) for manifest, table in pairs}.values())
    for cached, count in tuple(_count_cache):
        # a manifest may have been garbage-collected
        if len(cached) == len(distinct) and all(
            (manifest := reference()) is not None and manifest.files is table
            for reference, (_, table) in zip(cached, distinct, strict=True)
        ):
            return count
    count = len(set().union(*(table for _, table in distinct)))
    _count_cache.append(([ref(manifest) for manifest, _ in distinct], count))
    return count


_count_cache: deque[tuple[list[ref[ChunkManifest]], int]] = deque(maxlen=MAX_CACHED_COUNTS)


class UsedFiles(NamedTuple):
    """The first source files of arrays with their chunk counts, and the total number of files."""

    first: list[tuple[SourceFile, int]]
    total: int


def find_used_files(arrays: Sequence[ManifestArray], limit: int) -> UsedFiles:
    """Return the first ``limit`` files that contain chunks, as far as references are in memory."""
    counts: dict[int, Ints] = {}
    tables: dict[int, tuple[SourceFile, ...]] = {}
    manifests = (fragment.manifest for array in arrays for fragment in array.fragments)
    for manifest in manifests:
        columns = get_loaded_columns(manifest)
        if columns is None:
            continue
        files = manifest.files
        repeats = 1 if columns.chunk_ids is not None else manifest.size // max(columns.file.size, 1)
        used = np.bincount(columns.file[columns.file >= 0], minlength=len(files)) * repeats
        tables[id(files)] = files
        previous = counts.get(id(files))
        counts[id(files)] = used if previous is None else previous + used
    if len(tables) == 1:
        [(table_id, files)] = tables.items()
        used_files = np.flatnonzero(counts[table_id])
        return UsedFiles(
            [(files[n], int(counts[table_id][n])) for n in used_files[:limit].tolist()],
            used_files.size,
        )
    total_counts: dict[SourceFile, int] = {}
    for table_id, files in tables.items():
        for file, count in zip(files, counts[table_id].tolist(), strict=True):
            if count:
                total_counts[file] = total_counts.get(file, 0) + count
    return UsedFiles(list(total_counts.items())[:limit], len(total_counts))


# ---------------------------------------------------------------------- bins
# Counts of the chunks of an array in bins, few enough to be drawn.
#
# Up to three axes are drawn. Along each, the array is divided into bins at chunk boundaries. If
# there are more chunks than bins, a bin contains several.


MAX_BINS = ((), (200,), (24, 30), (24, 12, 16))
"""Maximum number of bins along each axis, for pictures of zero to three axes."""

MAX_SAMPLED_EDGES = 1000
"""Maximum number of chunk boundaries of a fragment that divide an axis into bins."""

MAX_KINDS = 6
"""Maximum number of kinds of chunks that are distinguished; the last one stands for all others."""

GAP, UNREAD, FIRST_KIND = 0, 1, 2
"""Indexes along the first axis of `ChunkBins.counts`, of gaps, unread references and first kind."""


@dataclass(frozen=True)
class ChunkBins:
    """The number of chunks per bin and kind.

    ``edges`` are the boundaries of the bins along the drawn ``axes``. ``encodings`` are the indexes
    of the pipelines if each kind is an encoding. ``counts`` has the number of chunks of each kind
    in each bin: missing chunks, chunks with unread references, then one kind per encoding, or two
    kinds that alternate from file to file, or one kind. ``is_assumed`` is true if some references
    are not in memory and their chunks are assumed to exist.
    """

    axes: tuple[int, ...]
    edges: tuple[Ints, ...]
    encodings: tuple[int, ...]
    counts: Ints
    is_assumed: bool

    @property
    def alternates_by_file(self) -> bool:
        """Whether the two kinds alternate from file to file."""
        return not self.encodings and self.counts.shape[0] > FIRST_KIND + 1


def bin_chunks(array: ManifestArray) -> ChunkBins:
    """Count the chunks of a `ManifestArray` in bins, without reading or requesting anything."""
    # draw the axes with several chunks first, then the last ones
    divided = [i for i in range(array.ndim) if any(f.axes[i].nchunks > 1 for f in array.fragments)]
    undivided = [i for i in reversed(range(array.ndim)) if i not in divided]
    axes = tuple(sorted([*divided, *undivided][:3]))
    edges = [_divide_axis(array, a, n) for a, n in zip(axes, MAX_BINS[len(axes)], strict=True)]
    bins = [e.size - 1 for e in edges]
    first_index: dict[CodecPipeline, int] = {}
    canonical = [first_index.setdefault(p, n) for n, p in enumerate(array.pipelines)]
    # missing chunks have pipeline 0, even if the array has no pipelines
    numbers = np.array(canonical or [0], np.int64)
    loaded = [
        fragment_columns and fragment_columns._replace(pipeline=numbers[fragment_columns.pipeline])
        for fragment_columns in (get_loaded_columns(f.manifest) for f in array.fragments)
    ]
    files = [
        len(f.manifest.files) if c else 0 for f, c in zip(array.fragments, loaded, strict=True)
    ]
    columns = [c or _assume_columns(f, array) for f, c in zip(array.fragments, loaded, strict=True)]
    encodings = _find_encodings(array, columns)
    alternates_by_file = not encodings and 1 < sum(files) <= max(bins, default=0)
    kinds = min(len(encodings), MAX_KINDS) or 1 + alternates_by_file
    counts = np.zeros((FIRST_KIND + kinds, *bins), np.int64)
    covered, files_before = np.zeros(bins, np.int64), 0
    for fragment, fragment_columns, file_count in zip(array.fragments, columns, files, strict=True):
        edges_by_axis = dict(zip(axes, edges, strict=True))
        overlaps = [
            _find_overlap(fragment, axis, edges_by_axis.get(axis)) for axis in range(array.ndim)
        ]
        covered += _multiply([o.elements for o in overlaps]).reshape(bins)
        kind = fragment_columns and _classify_chunks(
            fragment_columns, encodings, files_before if alternates_by_file else None
        )
        _add_chunks(counts, fragment, overlaps, fragment_columns, kind)
        files_before += file_count
    hidden = prod(n for axis, n in enumerate(array.shape) if axis not in axes)
    counts[GAP] += covered < _multiply([np.diff(e) for e in edges]) * hidden
    return ChunkBins(axes, tuple(edges), encodings, counts, None in loaded)


def _assume_columns(fragment: Fragment, array: ManifestArray) -> LoadedColumns | None:
    """Return columns for chunks whose references are not in memory, if all share one pipeline."""
    used = fragment.manifest.used_pipelines(len(array.pipelines))
    if used.size != 1:
        return None
    zeros = np.zeros((1,) * array.ndim, np.int64)
    return LoadedColumns(zeros, zeros, zeros + used[0])


def _divide_axis(array: ManifestArray, axis: int, limit: int) -> Ints:
    """Return the edges of at most ``limit`` bins along an axis, all at chunk boundaries."""
    all_edges = [np.array([0, array.shape[axis]], np.int64)]
    for chunk_axis, start in {(f.axes[axis], f.start[axis]) for f in array.fragments}:
        if chunk_axis.nchunks > 1 or chunk_axis.size < array.shape[axis]:
            count = min(chunk_axis.nchunks, MAX_SAMPLED_EDGES)
            numbers = np.arange(count + 1) * chunk_axis.nchunks // max(count, 1)
            all_edges.append(chunk_axis.edges_at(numbers) + start)
    edges = np.sort(np.concatenate(all_edges))
    edges = edges[np.append(edges[1:] != edges[:-1], True)]
    # an axis of length 0 is one bin
    edges = np.append(edges[:1], edges[-1:]) if edges.size < 2 else edges
    if edges.size - 1 <= limit:
        return edges
    step = -(-(edges.size - 1) // limit)
    return np.append(edges[:-1:step], edges[-1])


class Overlap(NamedTuple):
    """The chunks of a fragment in each bin along an axis, and their number of elements there."""

    first: Ints
    stop: Ints
    elements: Ints


def _find_overlap(fragment: Fragment, axis: int, edges: Ints | None) -> Overlap:
    """Return the overlap of a fragment with each bin along an axis; without edges, one bin."""
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
    """Return the outer product of 1-D arrays."""
    return reduce(np.multiply.outer, columns, np.ones((), np.int64))


# ---------------------------------------------------------------------- kinds


def _find_encodings(
    array: ManifestArray, columns: Sequence[LoadedColumns | None]
) -> tuple[int, ...]:
    """Return the indexes of the pipelines of existing chunks, or () if there is only one."""
    if len(array.pipelines) < 2:
        return ()
    used: set[int] = set()
    for loaded in filter(None, columns):
        pipeline, exists = np.broadcast_arrays(loaded.pipeline, loaded.file != MISSING)
        used |= set(np.unique(pipeline[exists]).tolist())
    return tuple(sorted(used)) if len(used) > 1 else ()


def _classify_chunks(
    columns: LoadedColumns, encodings: tuple[int, ...], files_before: int | None
) -> Ints:
    """Return the kind of each chunk, -1 for missing chunks.

    ``files_before`` is the number of files in earlier fragments if kinds alternate, else None.
    """
    kind: Any = np.zeros((), np.int64)
    if encodings:
        kind = np.minimum(np.searchsorted(encodings, columns.pipeline), MAX_KINDS - 1)
    elif files_before is not None:
        kind = (columns.file + files_before) % 2
    kinds: Ints = np.where(columns.file == MISSING, -1, kind)
    return kinds


# ---------------------------------------------------------------------- counting


def _add_chunks(
    counts: Ints,
    fragment: Fragment,
    overlaps: Sequence[Overlap],
    columns: LoadedColumns | None,
    kind: Ints | None,
) -> None:
    """Add the chunks of a fragment to the counts."""
    bins = counts.shape[1:]
    total = _multiply([o.stop - o.first for o in overlaps]).reshape(bins)
    if columns is None or kind is None:
        counts[UNREAD] += total
        return
    if columns.chunk_ids is not None:
        bin_ids = _find_bins(fragment, overlaps, columns.chunk_ids)
    for row in range(FIRST_KIND, counts.shape[0]):
        same = kind == row - FIRST_KIND
        if columns.chunk_ids is not None:
            count = np.bincount(bin_ids[same], minlength=prod(bins))
        else:
            count = _count_in_bins(same, overlaps)
        counts[row] += count.reshape(bins)
        total = total - count.reshape(bins)
    counts[GAP] += np.maximum(total, 0)


def _count_in_bins(mask: npt.NDArray[np.bool_], overlaps: Sequence[Overlap]) -> Ints:
    """Return the number of chunks in each bin for which ``mask`` is true."""
    if mask.size == 1:
        return _multiply([o.stop - o.first for o in overlaps]) * int(mask.flat[0])
    counts: Any = mask
    for axis, overlap in enumerate(overlaps):
        if counts.shape[axis] == 1:
            along = [1] * counts.ndim
            along[axis] = -1
            counts = counts * (overlap.stop - overlap.first).reshape(along)
        else:
            sums = np.cumsum(counts, axis, dtype=np.int64)
            before = [1 if i == axis else n for i, n in enumerate(counts.shape)]
            sums = np.concatenate([np.zeros(before, np.int64), sums], axis)
            counts = sums.take(overlap.stop, axis) - sums.take(overlap.first, axis)
    counted: Ints = counts
    return counted


def _find_bins(fragment: Fragment, overlaps: Sequence[Overlap], chunk_ids: Ints) -> Ints:
    """Return the flat index of the bin in which each chunk starts."""
    chunk_index = np.unravel_index(chunk_ids, fragment.manifest.shape)
    bin_index = [
        np.searchsorted(overlap.first, number, "right") - 1
        for overlap, number in zip(overlaps, chunk_index, strict=True)
    ]
    flat = np.ravel_multi_index(bin_index, [o.first.size for o in overlaps])
    return np.asarray(flat, np.int64)


# ---------------------------------------------------------------------- pictures


def draw_chunks(array: ManifestArray, dims: Sequence[str] | None = None) -> Markup:
    """Draw the chunks of a `ManifestArray` with a legend, as HTML.

    Nothing is read: references that are not in memory are drawn as unread.
    """
    bins = bin_chunks(array)
    faces = _project_counts(bins)
    shades = [html.get_shade(n) for n in range(bins.counts.shape[0] - FIRST_KIND)]
    if bins.alternates_by_file:
        shades = [html.SERIES[0], html.NEXT]
    picture = _draw_grid(array, bins, [_make_face(face, shades) for face in faces], dims)
    entries = _list_legend_entries(array, bins, faces, shades)
    return element(
        "div", picture, draw_legend(entries), _describe_omissions(array, bins, faces, dims)
    )


def _project_counts(bins: ChunkBins) -> list[Ints]:
    """Return the counts of each face to draw, with the axes (kind, row, column).

    For three axes there are three faces, each the projection of the whole array, so that a gap
    inside is visible on all of them.
    """
    counts = bins.counts
    if len(bins.axes) == 3:
        return [counts.sum(2), counts.sum(3).swapaxes(1, 2), counts.sum(1)]
    return [counts if len(bins.axes) == 2 else counts.reshape(counts.shape[0], 1, -1)]


def _draw_grid(
    array: ManifestArray, bins: ChunkBins, faces: Sequence[Face], dims: Sequence[str] | None
) -> Markup:
    names = [f"{dims[axis]} " if dims else "" for axis in bins.axes]
    lengths = [array.shape[axis] for axis in bins.axes]
    sides = [
        Side(f"{name}{length:,}", edges.tolist())
        for name, length, edges in zip(names, lengths, bins.edges, strict=True)
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
    """Return the cells of a face, each with the shade of the kind of most of its chunks."""
    kinds = counts[FIRST_KIND:]
    main_kind, has_chunks = kinds.argmax(0), kinds.any(0)
    # after the kinds come the shades of unread references and of no chunks
    number = np.where(
        has_chunks, main_kind, np.where(counts[UNREAD] > 0, len(shades), len(shades) + 1)
    )
    gaps = (counts[GAP] > 0) & (number <= len(shades))
    cells = [
        [Cell(shade, has_gaps) for has_gaps in (False, True)]
        for shade in (*shades, html.UNKNOWN, None)
    ]
    pairs = zip(number.tolist(), gaps.tolist(), strict=True)
    return [[cells[n][gap] for n, gap in zip(*row, strict=True)] for row in pairs]


# ---------------------------------------------------------------------- captions


def _list_legend_entries(
    array: ManifestArray, bins: ChunkBins, faces: Sequence[Ints], shades: Sequence[Shade]
) -> list[tuple[Shade, object]]:
    """Return shades and their labels, for the shades that need a legend."""
    entries: list[tuple[Shade, object]] = []
    if bins.encodings:
        names = list_encodings([array.pipelines[number] for number in bins.encodings])
        entries += zip(shades, names, strict=True)
    if bins.alternates_by_file:
        entries.append((html.NEXT, "shades alternate by file"))
    if bins.counts[UNREAD].any():
        entries.append((html.UNKNOWN, "one of several encodings"))
    if bins.counts[GAP].any():
        are_pure = all(not (face[GAP] > 0)[(face > 0).sum(0) > 1].any() for face in faces)
        entries.append((html.GAP, "missing" if are_pure else "missing, in whole or in part"))
    return entries


def list_encodings(pipelines: Sequence[CodecPipeline]) -> list[str]:
    """Return the names of the encodings that pictures distinguish; the last may stand for several.

    >>> list_encodings([CodecPipeline(np.dtype("u1"), fill=bytes([n])) for n in range(9)])[4:]
    ['uint8, uncompressed, missing chunks 4', '4 more encodings']
    """
    if len(pipelines) <= MAX_KINDS:
        return name_pipelines(pipelines)
    named = name_pipelines(pipelines[: MAX_KINDS - 1])
    return [*named, f"{len(pipelines) - len(named):,} more encodings"]


def _describe_omissions(
    array: ManifestArray, bins: ChunkBins, faces: Sequence[Ints], dims: Sequence[str] | None
) -> Markup | None:
    """Return a note on the axes and references that the picture omits."""
    sentences = []
    if bins.is_assumed:
        sentences.append(
            "References are not loaded, so missing chunks are not seen: "
            "ds.virtual.plot.chunks(name) loads and draws those of a variable, "
            "virtualds info SET --html PAGE those of a set."
        )
    if any((face.sum(0) > 1).any() for face in faces):
        through = "Each face looks through the whole array: cells" if len(faces) > 1 else "Cells"
        sentences.append(f"{through} hold several chunks.")
    hidden = [axis for axis in range(array.ndim) if axis not in bins.axes]
    if hidden:
        names = ", ".join(dims[axis] if dims else f"axis {axis}" for axis in hidden)
        sentences.append(f"Not drawn: {names}.")
    return element("div", " ".join(sentences), class_="vds-note") if sentences else None


# ---------------------------------------------------------------------- display

MAX_SHOWN_FILES = 10
"""Maximum number of files that an array lists."""
MAX_SHOWN_ENCODINGS = 3
"""Maximum number of encodings that several arrays list."""


def format_summary(array: ManifestArray) -> str:
    """Format the numbers of chunks, files and fragments of a virtual array as one line."""
    files, chunks = count_files([array]), array.nchunks
    parts = f" in {len(array.fragments)} fragments" if len(array.fragments) > 1 else ""
    of = f" of {format_count(files, 'file')}" if files else ""
    return f"{format_count(chunks, 'chunk')}{of}{parts}"


def format_html(array: ManifestArray) -> str:
    """Format a virtual array as HTML for notebooks."""
    statistics = compute_statistics(array)
    return to_notebook_html(
        describe_arrays([array], statistics), draw(build_files_section([array], MAX_SHOWN_FILES))
    )


def describe_arrays(
    arrays: Sequence[ManifestArray], statistics: ChunkStatistics, dims: Sequence[str] | None = None
) -> Markup:
    """Return HTML of a table next to a picture, for arrays with the same chunk grid.

    ``statistics`` are the sums over all arrays, ``dims`` the names of their axes.
    """
    return element(
        "div",
        _build_facts_table(arrays, statistics),
        draw_chunks(arrays[0], dims),
        class_="vds-side",
    )


def _build_facts_table(arrays: Sequence[ManifestArray], statistics: ChunkStatistics) -> Markup:
    """Return a table like that of dask: sizes and shapes of the arrays and of their chunks."""
    array, existing = arrays[0], statistics.chunks - statistics.missing - statistics.unread
    shape = format_chunk_lengths(array)
    rows: list[tuple[str, object, object]] = [
        ("Shape", str(tuple(array.shape)), f"({', '.join(shape)}{',' * (len(shape) == 1)})"),
        (
            "Values",
            format_bytes(sum(a.nbytes for a in arrays)),
            _format_mean_size(statistics.decoded, existing),
        ),
        ("Stored", format_stored(statistics), _format_mean_size(statistics.stored, existing)),
    ]
    head = element("tr", element("td"), element("th", "Array"), element("th", "Chunk"))
    pairs = (
        element("tr", element("th", name, scope="row"), element("td", whole), element("td", part))
        for name, whole, part in rows
    )
    wide_rows = {
        "Chunks": _format_chunks(arrays, statistics),
        "Data type": ", ".join(dict.fromkeys(str(a.dtype) for a in arrays)),
        "Encoding": _format_encodings(arrays),
        "References": f"{format_bytes(sum(a.nbytes_virtual for a in arrays))} of memory",
    }
    lines = (
        element("tr", element("th", name, scope="row"), element("td", value, colspan=2))
        for name, value in wide_rows.items()
    )
    return element("table", element("tbody", head, *pairs, *lines), class_="vds-facts")


def format_chunk_lengths(array: ManifestArray) -> list[str]:
    """Format the chunk length along each axis, as "minimum to maximum" if it varies."""
    texts = []
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
        texts.append(f"{high}" if low == high or regular == {high} else f"{low} to {high}")
    return texts


def _format_mean_size(nbytes: int, chunks: int) -> str:
    """Format the mean size of a chunk."""
    return format_bytes(round(nbytes / chunks)) if nbytes and chunks else ""


def format_stored(statistics: ChunkStatistics) -> str:
    """Format the stored size, and how many times smaller it is than the decoded size."""
    if not statistics.stored:
        return "not known" if statistics.unread else "nothing"
    if statistics.unread:
        return f"at least {format_bytes(statistics.stored)}"
    if statistics.ratio is None or statistics.ratio < 1.05:
        return format_bytes(statistics.stored)
    ratio = f"{statistics.ratio:,.{0 if statistics.ratio >= 100 else 1}f}"
    return f"{format_bytes(statistics.stored)}, {ratio}× smaller"


def _format_chunks(arrays: Sequence[ManifestArray], statistics: ChunkStatistics) -> str:
    files = count_files(arrays)
    parts = [f"{statistics.chunks:,}{f' in {files:,} file' if files else ''}{'s' * (files > 1)}"]
    parts += [f"{statistics.missing:,} missing"] if statistics.missing else []
    parts += [f"{statistics.unread:,} with references not loaded"] if statistics.unread else []
    count = len(arrays[0].fragments)
    parts += [f"{count:,} grids"] if count > 1 else []
    return "; ".join(parts)


def _format_encodings(arrays: Sequence[ManifestArray]) -> str:
    """Format the names of the encodings of arrays, or their number if an array has several."""
    pipelines = list(dict.fromkeys(p for array in arrays for p in array.pipelines))
    if len(arrays[0].pipelines) > 1:
        return f"{len(arrays[0].pipelines):,} encodings"
    names = list(dict.fromkeys(name_pipelines(pipelines)))
    more = (
        [f"{len(names) - MAX_SHOWN_ENCODINGS:,} more"] if len(names) > MAX_SHOWN_ENCODINGS else []
    )
    return "; ".join([*names[:MAX_SHOWN_ENCODINGS], *more]) or "no chunks"


def build_files_section(arrays: Sequence[ManifestArray], limit: int) -> Section:
    """Return a collapsed section with a table of the first ``limit`` files."""
    used = find_used_files(arrays, limit)
    rows = [
        (
            without_secrets(file.url),
            f"{count:,}",
            "" if file.size is None else format_bytes(file.size),
        )
        for file, count in used.first
    ]
    table = Table(("url", "chunks", "size"), rows, (1, 2), limit, used.total)
    # an unloaded set may use files that are not counted here
    is_incomplete = any(f.manifest.is_in_set for array in arrays for f in array.fragments)
    return Section("Files", [table], f"{'at least ' * is_incomplete}{used.total:,}", is_open=False)
