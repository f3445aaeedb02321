"""The picture of the chunk grid of a virtual array, with the key to its shades."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from virtualds.arrays.chunk_bins import (
    FIRST_KIND,
    GAP,
    MOST_KINDS,
    UNREAD,
    ChunkBins,
    bin_chunks,
)
from virtualds.chunks.projection import Ints
from virtualds.codecs.encoding_words import name_pipelines
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.pictures import palette
from virtualds.pictures.chunk_grid import (
    Box,
    Cell,
    Face,
    Side,
    draw_box,
    draw_line,
    draw_rectangle,
)
from virtualds.pictures.html import Markup, element
from virtualds.pictures.palette import Shade
from virtualds.pictures.svg import key

if TYPE_CHECKING:
    from virtualds.arrays.array import ManifestArray


def draw_chunks(array: ManifestArray, dims: Sequence[str] | None = None) -> Markup:
    """Return the picture of the chunks of a `ManifestArray`, and below it what its shades mean.

    It reads and requests nothing: references that lie elsewhere are drawn as unread.

    Parameters
    ----------
    array : ManifestArray
    dims : sequence of str, optional
        Names of its axes.
    """
    found = bin_chunks(array)
    faces, shades = _list_faces(found), _choose_shades(found)
    drawn = _draw_grid(array, found, [_make_face(face, shades) for face in faces], dims)
    meanings = _list_meanings(array, found, faces, shades)
    return element("div", drawn, key(meanings), _note(array, found, faces, dims))


def _list_faces(found: ChunkBins) -> list[Ints]:
    """Return the counts of the cells that are drawn, in rows and columns.

    Of three axes there are three faces, each of which looks through the whole array: a gap inside
    shows on all of them.
    """
    counts = found.counts
    if len(found.axes) == 3:
        return [counts.sum(2), counts.sum(3).swapaxes(1, 2), counts.sum(1)]
    return [counts if len(found.axes) == 2 else counts.reshape(counts.shape[0], 1, -1)]


def _choose_shades(found: ChunkBins) -> list[Shade]:
    """Return the shade of each kind."""
    if found.alternates:
        return [palette.SERIES[0], palette.NEXT]
    return [palette.shade_of(n) for n in range(found.counts.shape[0] - FIRST_KIND)]


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
    """Return the cells of bins in rows and columns: each has the shade of most of its chunks."""
    kinds = counts[FIRST_KIND:]
    most, there = kinds.argmax(0), kinds.any(0)
    # the last shades are those of chunks that nobody looked at, and of none
    number = np.where(there, most, np.where(counts[UNREAD] > 0, len(shades), len(shades) + 1))
    gaps = (counts[GAP] > 0) & (number <= len(shades))
    cells = [
        [Cell(shade, has_gaps) for has_gaps in (False, True)]
        for shade in (*shades, palette.UNKNOWN, None)
    ]
    pairs = zip(number.tolist(), gaps.tolist(), strict=True)
    return [[cells[n][gap] for n, gap in zip(*row, strict=True)] for row in pairs]


# ---------------------------------------------------------------------- words


def _list_meanings(
    array: ManifestArray, found: ChunkBins, faces: Sequence[Ints], shades: Sequence[Shade]
) -> list[tuple[Shade, object]]:
    """Return what each shade stands for, where the picture does not say it by itself."""
    meanings: list[tuple[Shade, object]] = []
    if found.encodings:
        names = list_encodings([array.pipelines[number] for number in found.encodings])
        meanings += zip(shades, names, strict=True)
    if found.alternates:
        meanings.append((palette.NEXT, "shades alternate by file"))
    if found.counts[UNREAD].any():
        meanings.append((palette.UNKNOWN, "one of several encodings"))
    if found.counts[GAP].any():
        apart = all(not (face[GAP] > 0)[(face > 0).sum(0) > 1].any() for face in faces)
        meanings.append((palette.GAP, "missing" if apart else "missing, in whole or in part"))
    return meanings


def list_encodings(pipelines: Sequence[CodecPipeline]) -> list[str]:
    """Return the names of so many encodings as pictures tell apart; the last may be of all others.

    >>> list_encodings([CodecPipeline(np.dtype("u1"), fill=bytes([n])) for n in range(9)])[4:]
    ['uint8, uncompressed, missing chunks 4', '4 more encodings']
    """
    if len(pipelines) <= MOST_KINDS:
        return name_pipelines(pipelines)
    named = name_pipelines(pipelines[: MOST_KINDS - 1])
    return [*named, f"{len(pipelines) - len(named):,} more encodings"]


def _note(
    array: ManifestArray, found: ChunkBins, faces: Sequence[Ints], dims: Sequence[str] | None
) -> Markup | None:
    """Return what the picture leaves out."""
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
