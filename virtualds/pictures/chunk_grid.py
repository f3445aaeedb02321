"""Draw the chunk grid of an array as a line, a rectangle or a box of shaded cells.

A box has three visible faces: the front, the top and the left, along which the first axis leads to
the back. Adjacent cells of equal shade are drawn as one rectangle.
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
    draw_rect,
    draw_svg,
    draw_text,
    element,
    format_length,
)

MAX_LENGTH, MIN_LENGTH = 150, 26
"""Limits of the lengths of the sides of a face."""

MAX_DEPTH, MIN_DEPTH = 110, 48
"""Limits of the length of the first axis of a box, which is drawn in perspective."""

MIN_CELL_WIDTH = 2.5
"""Minimum average width of cells between which lines are drawn."""

SLANT = 0.64
"""Distance to the right and down for each unit along the first axis of a box."""

LINE_HEIGHT, CHARACTER_WIDTH = 16, 6.2
"""Height of a line of text, and approximate width of a character."""

MAX_LABEL_LENGTH = 24


class Side(NamedTuple):
    """An axis of the grid: its label, and the boundaries of its cells in elements."""

    label: str
    edges: Sequence[float]


class Cell(NamedTuple):
    """A cell: its shade, or None for a gap, and whether it contains gaps."""

    shade: Shade | None
    has_gaps: bool = False


Face = Sequence[Sequence[Cell]]
"""Rows of cells."""


class DrawnSide(NamedTuple):
    """A side in the picture: its length, and the boundaries of its cells."""

    length: float
    edges: tuple[float, ...]

    @property
    def inner(self) -> tuple[float, ...]:
        """The boundaries between cells; none if they are so close that lines would hide cells."""
        inner = self.edges[1:-1]
        return inner if self.length >= MIN_CELL_WIDTH * (len(inner) + 1) else ()


def draw_line(side: Side, cells: Sequence[Cell], title: str) -> Markup:
    """Draw a grid of one axis."""
    return draw_rectangle(None, side, [cells], title)


def draw_rectangle(down: Side | None, across: Side, face: Face, title: str) -> Markup:
    """Draw a grid of two axes."""
    sides = [across] if down is None else [down, across]
    *rows, columns = _scale_sides(sides, MAX_LENGTH if down else 2 * MAX_LENGTH)
    row = rows[0] if rows else DrawnSide(MIN_LENGTH, (0, MIN_LENGTH))
    textures = Textures()
    drawn_face = _draw_face(face, row, columns, textures, "translate(1 1)")
    labels = [_label_below(across, 1, row.length, columns.length)]
    if down is not None:
        labels.append(_label_right(down, columns.length, row.length / 2))
    width = 2 + max(
        columns.length + (_estimate_width(down.label) if down else 0), _estimate_width(across.label)
    )
    return _make_picture(
        width, row.length + LINE_HEIGHT + 4, [drawn_face, *labels], textures, title
    )


class Box(NamedTuple):
    """The visible faces of a box, with the axes of their rows and columns.

    ``top``: first and last axis. ``left``: second and first axis. ``front``: second and last axis.
    """

    top: Face
    left: Face
    front: Face


def draw_box(back: Side, down: Side, across: Side, box: Box, title: str) -> Markup:
    """Draw a grid of three axes, whose first axis leads from the back to the front."""
    row, column = _scale_sides([down, across], MAX_LENGTH)
    depth = _scale_side(back, MIN_DEPTH, MAX_DEPTH, _compute_ratio(back, [back, down, across]))
    shift, textures = depth.length * SLANT, Textures()
    indent = max(1, _estimate_width(back.label) - shift / 2)
    move = f"translate({format_length(indent)} 1)"
    slant_top = f"{move} matrix(1 0 {SLANT} {SLANT} 0 0)"
    slant_left = f"{move} matrix({SLANT} {SLANT} 0 1 0 0)"
    move_front = f"{move} translate({format_length(shift)} {format_length(shift)})"
    faces = [
        _draw_face(box.top, depth, column, textures, slant_top, "#fff"),
        _draw_face(box.left, row, depth, textures, slant_left, "#000"),
        _draw_face(box.front, row, column, textures, move_front),
    ]
    right, bottom = indent + shift + column.length, shift + row.length
    labels = [
        _label_below(across, indent + shift, bottom, column.length),
        _label_right(down, right, shift + row.length / 2),
        draw_text(indent + shift / 2 - 6, row.length + shift / 2 + 10, _shorten(back.label), "end"),
    ]
    width = (
        right + max(_estimate_width(down.label), _estimate_width(across.label) - column.length) + 2
    )
    return _make_picture(width, bottom + LINE_HEIGHT + 4, [*faces, *labels], textures, title)


def _make_picture(
    width: float, height: float, children: Sequence[Markup], textures: Textures, title: str
) -> Markup:
    return draw_svg(width, height, textures.define(), *children, title=title, class_="vds-grid")


def _draw_face(
    face: Face,
    rows: DrawnSide,
    columns: DrawnSide,
    textures: Textures,
    transform: str,
    tint: str | None = None,
) -> Markup:
    """Draw the cells of a face, the lines between them, and a tint over all.

    Adjacent equal cells are one rectangle.
    """
    cells: list[Markup] = []
    n = 0
    for row, equal_rows in groupby(map(tuple, face)):
        top, bottom = rows.edges[n], rows.edges[n := n + len(list(equal_rows))]
        for cell, start, stop in _join_cells(row, columns):
            shades = [cell.shade] if cell.shade else []
            if cell.has_gaps or not shades:
                shades.append(GAP)
            cells += [
                draw_rect(start, top, stop - start, bottom - top, textures.get_fill(shade))
                for shade in shades
            ]
    tinted = draw_rect(0, 0, columns.length, rows.length, tint) if tint else None
    lines = "".join(f"M0 {format_length(y)}h{format_length(columns.length)}" for y in rows.inner)
    lines += "".join(f"M{format_length(x)} 0v{format_length(rows.length)}" for x in columns.inner)
    edge = f"M0 0h{format_length(columns.length)}v{format_length(rows.length)}H0z"
    return element(
        "g",
        *cells,
        element("g", tinted, fill_opacity=0.14) if tinted else None,
        element("path", d=lines, stroke="currentColor", stroke_opacity=0.4, stroke_width=0.6)
        if lines
        else None,
        element("path", d=edge, stroke="currentColor", stroke_opacity=0.8, fill="none"),
        transform=transform,
    )


def _join_cells(row: Iterable[Cell], columns: DrawnSide) -> Iterator[tuple[Cell, float, float]]:
    """Yield adjacent equal cells of a row as one, with its start and stop."""
    n = 0
    for cell, equal_cells in groupby(row):
        start = columns.edges[n]
        n += len(list(equal_cells))
        yield cell, start, columns.edges[n]


# ---------------------------------------------------------------------- lengths


def _scale_sides(sides: Sequence[Side], maximum: float) -> list[DrawnSide]:
    return [_scale_side(side, MIN_LENGTH, maximum, _compute_ratio(side, sides)) for side in sides]


def _compute_ratio(side: Side, sides: Sequence[Side]) -> float:
    """Return the drawn length of a side relative to that of the longest side.

    It is a power of the ratio of sizes, so that short sides remain visible.
    """
    largest = max(s.edges[-1] for s in sides) or 1
    return float((side.edges[-1] / largest) ** 0.4)


def _scale_side(side: Side, minimum: float, maximum: float, ratio: float) -> DrawnSide:
    length = max(minimum, maximum * ratio)
    size = side.edges[-1] or 1
    return DrawnSide(length, tuple(length * edge / size for edge in side.edges))


# ---------------------------------------------------------------------- labels


def _shorten(label: str) -> str:
    return label if len(label) <= MAX_LABEL_LENGTH else f"{label[: MAX_LABEL_LENGTH - 1]}…"


def _estimate_width(label: str) -> float:
    return len(_shorten(label)) * CHARACTER_WIDTH + 10


def _label_below(side: Side, x: float, y: float, length: float) -> Markup:
    label = _shorten(side.label)
    if _estimate_width(side.label) > length:
        return draw_text(x, y + LINE_HEIGHT, label, "start")
    return draw_text(x + length / 2, y + LINE_HEIGHT, label, "middle")


def _label_right(side: Side, x: float, y: float) -> Markup:
    return draw_text(x + 8, y + 4, _shorten(side.label))
