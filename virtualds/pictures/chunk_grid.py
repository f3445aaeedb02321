"""The chunk grid of an array: a line, a rectangle or a box of cells, each with a shade.

A box shows three faces: the front one, and those at the top and at the left, along which the first
axis runs backwards. Adjacent cells of equal shade are one rectangle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from virtualds.pictures.html import (
    GAP,
    Markup,
    Shade,
    Textures,
    element,
    number,
    picture,
    rectangle,
    text,
)

LONGEST, SHORTEST = 150, 26
"""Lengths of the sides of a face."""

DEEPEST, FLATTEST = 110, 48
"""Lengths of the first axis of a box, which is drawn in perspective."""

MIN_CELL_WIDTH = 2.5
"""Minimum average width of cells between which lines are drawn."""

SLANT = 0.64
"""Distance to the right and down for each unit along the first axis of a box."""

LINE, LETTER = 16, 6.2
"""Height of a line of text, and approximate width of a character."""

MAX_LETTERS = 24


class Side(NamedTuple):
    """An axis of the grid: its label, and the boundaries of its cells."""

    label: str
    edges: Sequence[float]


class Cell(NamedTuple):
    """A cell: its shade, or None for a gap, and whether a part of it is a gap."""

    shade: Shade | None
    has_gaps: bool = False


Face = Sequence[Sequence[Cell]]
"""Rows of cells."""


class Line(NamedTuple):
    """An axis in the picture: its length, and the boundaries of its cells."""

    length: float
    edges: tuple[float, ...]

    @property
    def inner(self) -> tuple[float, ...]:
        """The boundaries to draw between cells, or none if the lines would hide the cells."""
        inner = self.edges[1:-1]
        return inner if self.length >= MIN_CELL_WIDTH * (len(inner) + 1) else ()


def draw_line(side: Side, cells: Sequence[Cell], title: str) -> Markup:
    """Draw a grid of one axis."""
    return draw_rectangle(None, side, [cells], title)


def draw_rectangle(down: Side | None, across: Side, face: Face, title: str) -> Markup:
    """Draw a grid of two axes."""
    sides = [across] if down is None else [down, across]
    *rows, columns = _scale_sides(sides, SHORTEST, LONGEST if down else 2 * LONGEST)
    row = rows[0] if rows else Line(SHORTEST, (0, SHORTEST))
    textures = Textures()
    drawn_face = _draw_face(face, row, columns, textures, "translate(1 1)")
    labels = [_label_below(across, 1, row.length, columns.length)]
    if down is not None:
        labels.append(_label_right(down, columns.length, row.length / 2))
    width = 2 + max(
        columns.length + (_estimate_width(down.label) if down else 0), _estimate_width(across.label)
    )
    return _make_picture(width, row.length + LINE + 4, [drawn_face, *labels], textures, title)


class Box(NamedTuple):
    """The visible faces of a box.

    ``top`` has rows of the first axis and columns of the last, ``left`` rows of the second and
    columns of the first, ``front`` rows of the second and columns of the last.
    """

    top: Face
    left: Face
    front: Face


def draw_box(back: Side, down: Side, across: Side, box: Box, title: str) -> Markup:
    """Draw a grid of three axes, the first of which leads from the back to the front."""
    row, column = _scale_sides([down, across], SHORTEST, LONGEST)
    deep = _scale_side(back, FLATTEST, DEEPEST, _compute_share(back, [back, down, across]))
    shift, textures = deep.length * SLANT, Textures()
    indent = max(1, _estimate_width(back.label) - shift / 2)
    slanted = f"{SLANT} {SLANT}"
    moved = f"translate({number(indent)} 1)"
    faces = [
        _draw_face(box.top, deep, column, textures, f"{moved} matrix(1 0 {slanted} 0 0)", "#fff"),
        _draw_face(box.left, row, deep, textures, f"{moved} matrix({slanted} 0 1 0 0)", "#000"),
        _draw_face(
            box.front, row, column, textures, f"{moved} translate({number(shift)} {number(shift)})"
        ),
    ]
    right, bottom = indent + shift + column.length, shift + row.length
    labels = [
        _label_below(across, indent + shift, bottom, column.length),
        _label_right(down, right, shift + row.length / 2),
        text(indent + shift / 2 - 6, row.length + shift / 2 + 10, _shorten(back.label), "end"),
    ]
    width = (
        right + max(_estimate_width(down.label), _estimate_width(across.label) - column.length) + 2
    )
    return _make_picture(width, bottom + LINE + 4, [*faces, *labels], textures, title)


def _make_picture(
    width: float, height: float, children: Sequence[Markup], textures: Textures, title: str
) -> Markup:
    return picture(width, height, textures.define(), *children, title=title, class_="vds-grid")


def _draw_face(
    face: Face,
    rows: Line,
    columns: Line,
    textures: Textures,
    moved: str,
    light: str | None = None,
) -> Markup:
    """Draw the cells of a face, the lines between them, and its shading."""
    bands = _draw_bands(face, rows, columns, textures)
    lit = rectangle(0, 0, columns.length, rows.length, light) if light else None
    lines = "".join(f"M0 {number(y)}h{number(columns.length)}" for y in rows.inner)
    lines += "".join(f"M{number(x)} 0v{number(rows.length)}" for x in columns.inner)
    edge = f"M0 0h{number(columns.length)}v{number(rows.length)}H0z"
    return element(
        "g",
        *bands,
        element("g", lit, fill_opacity=0.14) if lit else None,
        element("path", d=lines, stroke="currentColor", stroke_opacity=0.4, stroke_width=0.6)
        if lines
        else None,
        element("path", d=edge, stroke="currentColor", stroke_opacity=0.8, fill="none"),
        transform=moved,
    )


def _draw_bands(face: Face, rows: Line, columns: Line, textures: Textures) -> Iterator[Markup]:
    """Draw the cells of a face; adjacent equal cells are one rectangle."""
    n = 0
    for row, same in groupby(map(tuple, face)):
        top, bottom = rows.edges[n], rows.edges[n := n + len(list(same))]
        for cell, start, stop in _join_cells(row, columns):
            for shade in _list_shades(cell):
                fill = textures.fill(shade)
                yield rectangle(start, top, stop - start, bottom - top, fill)


def _join_cells(row: Iterable[Cell], columns: Line) -> Iterator[tuple[Cell, float, float]]:
    n = 0
    for cell, same in groupby(row):
        start = columns.edges[n]
        n += len(list(same))
        yield cell, start, columns.edges[n]


def _list_shades(cell: Cell) -> list[Shade]:
    """Return the shades of a cell, from the bottom to the top."""
    ground = [cell.shade] if cell.shade else []
    return [*ground, GAP] if cell.has_gaps or not ground else ground


# ---------------------------------------------------------------------- lengths


def _scale_sides(sides: Sequence[Side], shortest: float, longest: float) -> list[Line]:
    return [_scale_side(side, shortest, longest, _compute_share(side, sides)) for side in sides]


def _compute_share(side: Side, sides: Sequence[Side]) -> float:
    """Return the drawn length of a side relative to the longest.

    The scale is a power of the length, so that short sides stay visible.
    """
    most = max(s.edges[-1] for s in sides) or 1
    return float((side.edges[-1] / most) ** 0.4)


def _scale_side(side: Side, shortest: float, longest: float, share: float) -> Line:
    length = max(shortest, longest * share)
    size = side.edges[-1] or 1
    return Line(length, tuple(length * edge / size for edge in side.edges))


# ---------------------------------------------------------------------- labels


def _shorten(label: str) -> str:
    return label if len(label) <= MAX_LETTERS else f"{label[: MAX_LETTERS - 1]}…"


def _estimate_width(label: str) -> float:
    return len(_shorten(label)) * LETTER + 10


def _label_below(side: Side, x: float, y: float, length: float) -> Markup:
    wide = _estimate_width(side.label) > length
    return text(
        x if wide else x + length / 2, y + LINE, _shorten(side.label), "start" if wide else "middle"
    )


def _label_right(side: Side, x: float, y: float) -> Markup:
    return text(x + 8, y + 4, _shorten(side.label))
