"""Escaped HTML and SVG: elements, pages, strips, grids of chunks, textures, labels and styles.

All CSS rules are limited to the class ``vds``, so that they do not affect the page around it. Text
and lines have the colour of that page. Only the shades depend on whether it is light or dark: by
the attributes of Jupyter, VS Code, Sphinx themes and xarray, else by the setting of the browser.

The colours are those of Okabe and Ito (2008), which colour-blind people can distinguish. Neighbours
also differ in lightness, and each colour has its own texture.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from virtualds.errors import without_secrets


class Shade(NamedTuple):
    """A colour with its texture.

    Parameters
    ----------
    name : str
        Name in HTML and SVG.
    light, dark : str
        Colours on a light and on a dark page.
    texture : str
        Path of the lines of the texture on a square of `TILE` units; empty for none.
    ink : str
        Colour of these lines.
    hatch : str
        Similar hatch of matplotlib.
    """

    name: str
    light: str
    dark: str
    texture: str = ""
    ink: str = "#000"
    hatch: str = ""


TILE = 6
"""Side length of the square that a texture repeats."""

SLASHES = f"M-1 1l2 -2M0 {TILE}L{TILE} 0M{TILE - 1} {TILE + 1}l2 -2"
BACKSLASHES = f"M-1 {TILE - 1}l2 2M0 0L{TILE} {TILE}M{TILE - 1} -1l2 2"

SERIES = (
    Shade("blue", "#0072b2", "#2389c9"),
    Shade(
        "orange", "#e69f00", "#e69f00", "M1.5 1.5h1.2v1.2h-1.2zM4.5 4.5h1.2v1.2h-1.2z", "#000", ".."
    ),
    Shade("green", "#009e73", "#16ad83", "M3 0v6", "#fff", "||"),
    Shade("yellow", "#e8d92c", "#f0e442", "M0 3h6", "#000", "--"),
    Shade("purple", "#cc79a7", "#cc79a7", BACKSLASHES, "#fff", "\\\\"),
    Shade("sky", "#56b4e9", "#56b4e9", "M3 0v6M0 3h6", "#000", "++"),
    Shade("vermilion", "#d55e00", "#e06c12", BACKSLASHES + SLASHES, "#fff", "xx"),
)
"""The shades of unordered categories, such as encodings and eras."""

GAP = Shade("gap", "#777", "#999", SLASHES, "currentColor", "//")
"""The shade of missing data: a texture without a colour."""

NEXT = Shade("next", "#7fbfe6", "#0b4f78")
"""The shade that alternates with the first of `SERIES` to separate neighbours."""

UNKNOWN = Shade("unknown", "#9a9a9a", "#8a8a8a")
"""The shade of items that have not been checked."""

OK, CHANGED, MISSING = SERIES[2]._replace(texture="", hatch=""), SERIES[1], SERIES[6]
"""The shades of items that are unchanged, changed and missing."""

SHADES = (*SERIES, GAP, NEXT, UNKNOWN)


def get_shade(number: int) -> Shade:
    """Return the shade of a category by its index. The last shade is for all further categories.

    Examples
    --------
    >>> get_shade(0).name, get_shade(99).name
    ('blue', 'vermilion')
    """
    return SERIES[min(number, len(SERIES) - 1)]


# ---------------------------------------------------------------------- style


def name_shade(shade: Shade) -> str:
    """Return the CSS colour of a shade, with a fallback for pages without the style sheet."""
    return f"var(--vds-{shade.name},{shade.light})"


def _format_theme_selectors(theme: str, is_light: str) -> str:
    """Return the CSS selectors of pages with a light or dark theme."""
    pages = (
        f'html[theme="{theme}"]',
        f'html[data-theme="{theme}"]',
        f'body[data-theme="{theme}"]',
        f'body[data-jp-theme-light="{is_light}"]',
        f"body.vscode-{theme}",
    )
    return ",".join(f"{page} .vds" for page in pages)


def _format_colours(colours: dict[str, str]) -> str:
    return "{" + ";".join(f"--vds-{name}:{colour}" for name, colour in colours.items()) + "}"


_LIGHT = {shade.name: shade.light for shade in SHADES}
_DARK = {shade.name: shade.dark for shade in SHADES if shade.dark != shade.light}
_LIGHT_OVERRIDES = {name: _LIGHT[name] for name in _DARK}
"""Colours for a light page in a browser whose setting is dark."""

_RULES = """
.vds{font-size:13px;line-height:1.45;max-width:1000px;text-align:left}
.vds *{box-sizing:border-box}
.vds .vds-title{margin:2px 0 6px}
.vds .vds-note{opacity:.7;margin-left:.5em}
.vds div.vds-note{margin:2px 0}
.vds code,.vds .vds-code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.92em;\
background:none;padding:0;color:inherit}
.vds .vds-side{display:flex;flex-wrap:wrap;gap:8px 24px;align-items:flex-start}
.vds .vds-side>*{min-width:0;max-width:100%}
.vds .vds-side>table{max-width:min(100%,420px)}
.vds .vds-side>div{flex:1 1 260px}
.vds .vds-scroll{overflow-x:auto;max-width:100%}
.vds table{border-collapse:collapse;border:0;margin:0;table-layout:auto;font-size:1em;color:inherit}
.vds table tr:nth-child(n){background:none}
.vds table th,.vds table td{padding:2px 12px 2px 0;text-align:left;vertical-align:top;border:0;\
max-width:none;white-space:normal}
.vds .vds-facts th{font-weight:normal;opacity:.7;white-space:nowrap}
.vds .vds-facts td{overflow-wrap:anywhere}
.vds .vds-table th{font-weight:normal;opacity:.7;vertical-align:bottom;white-space:nowrap}
.vds .vds-table td{border-top:1px solid rgba(128,128,128,.3)}
.vds .vds-table .vds-number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.vds .vds-section{margin:4px 0}
.vds .vds-section>summary{cursor:pointer;display:list-item;padding:2px 0}
.vds .vds-section>summary~*{margin-left:16px}
.vds svg{display:block;max-width:100%;height:auto;overflow:visible}
.vds svg text{fill:currentColor;font-size:11px;font-family:inherit}
.vds svg.vds-strip{width:100%;height:var(--vds-height,14px)}
.vds .vds-key{display:flex;flex-wrap:wrap;gap:2px 14px;margin:4px 0}
.vds .vds-key>span{display:inline-flex;align-items:center;gap:6px;overflow-wrap:anywhere}
.vds .vds-key svg{flex:none}
.vds .vds-card{border:1px solid rgba(128,128,128,.35);border-left-width:4px;border-radius:4px;\
padding:6px 12px;margin:8px 0}
"""

STYLE = "".join(
    (
        f".vds{_format_colours(_LIGHT)}",
        f"@media(prefers-color-scheme:dark){{.vds{_format_colours(_DARK)}}}",
        _format_theme_selectors("light", "true") + _format_colours(_LIGHT_OVERRIDES),
        _format_theme_selectors("dark", "false") + _format_colours(_DARK),
        _RULES.replace("\n", ""),
    )
)
"""The style sheet for notebooks."""

PAGE_STYLE = (
    "html{color-scheme:light dark;background:Canvas;color:CanvasText}"
    "body{margin:0}"
    ".vds-page{font-family:system-ui,sans-serif;margin:0 auto;padding:16px}"
    ".vds-page h1{font-size:20px;margin:0 0 12px}"
    ".vds-page h2{font-size:16px;margin:20px 0 6px}"
)
"""The additional style sheet of HTML pages."""


# ---------------------------------------------------------------------- HTML

UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML 1.0 (section 2.2) or UTF-8 cannot contain, or that are invisible."""

SPECIAL = re.compile(f"[&<>\"']|{UNPRINTABLE.pattern}")
"""Characters that must be escaped in text."""

VOID_ELEMENTS = frozenset(
    {"br", "hr", "img", "input", "link", "meta", "circle", "line", "path", "rect"}
)
"""Elements without an end tag if they have no children."""


class Markup(str):
    """HTML or SVG, which is not escaped again."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Escape a value for HTML and SVG, and remove its secrets.

    Examples
    --------
    >>> escape("a<b & c")
    'a&lt;b &amp; c'
    """
    if isinstance(value, Markup):
        return value
    text = without_secrets(str(value))
    if SPECIAL.search(text) is None:
        return Markup(text)
    return Markup(html.escape(UNPRINTABLE.sub("\ufffd", text)))


def join(*children: object) -> Markup:
    """Concatenate children, without None; children that are not markup are escaped.

    Examples
    --------
    >>> join("1 < 2", None, Markup("<br/>"))
    '1 &lt; 2<br/>'
    """
    return Markup("".join(escape(child) for child in children if child is not None))


def element(tag: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element of HTML or SVG.

    Parameters
    ----------
    tag : str
    children : object
        As for `join`.
    attributes : object
        Attributes by name, with underscores for hyphens, and ``class_`` for ``class``. Those with
        None and False are omitted; True means an empty value.

    Examples
    --------
    >>> element("p", "<script>", class_="vds-note")
    '<p class="vds-note">&lt;script&gt;</p>'
    """
    attribute_text = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape("" if value is True else str(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in VOID_ELEMENTS and not children:
        return Markup(f"<{tag}{attribute_text}/>")
    return Markup(f"<{tag}{attribute_text}>{join(*children)}</{tag}>")


def to_notebook_html(*children: object) -> Markup:
    """Return the HTML repr of an object in a notebook, with the style sheet."""
    return element("div", element("style", Markup(STYLE)), *children, class_="vds")


def to_page(title: str, *body: object) -> Markup:
    """Return a self-contained HTML page.

    Examples
    --------
    >>> to_page("Report", element("p", "all is well"))[:15]
    '<!doctype html>'
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(PAGE_STYLE + STYLE)),
    )
    container = element("div", element("h1", title), *body, class_="vds vds-page")
    return Markup(
        f"<!doctype html>\n{element('html', head, element('body', container), lang='en')}\n"
    )


# ---------------------------------------------------------------------- SVG

STRIP_WIDTH, STRIP_HEIGHT = 600, 14


class Textures:
    """The textures of a picture.

    Ids of SVG patterns are global in a page, and patterns of a hidden picture are not drawn. So
    each picture defines its own patterns with unique ids.
    """

    def __init__(self) -> None:
        self._key = os.urandom(4).hex()
        self._used: dict[str, Shade] = {}

    def get_fill(self, shade: Shade) -> str:
        """Return the ``fill`` attribute of a shade: its colour, or a reference to its texture."""
        if not shade.texture:
            return name_shade(shade)
        self._used[shade.name] = shade
        return f"url(#vds-{shade.name}-{self._key})"

    def define(self) -> Markup | None:
        """Return the patterns of the textures that are used, or None if there are none."""
        patterns = []
        for shade in self._used.values():
            ink = {"stroke": shade.ink, "stroke_opacity": 0.4}
            pattern = element(
                "pattern",
                None if shade is GAP else draw_rect(0, 0, TILE, TILE, name_shade(shade)),
                element("path", d=shade.texture, **ink, fill="none"),
                id=f"vds-{shade.name}-{self._key}",
                width=TILE,
                height=TILE,
                patternUnits="userSpaceOnUse",
            )
            patterns.append(pattern)
        return element("defs", *patterns) if patterns else None


def format_length(value: float) -> str:
    """Format a length in SVG with at most one decimal.

    Examples
    --------
    >>> format_length(12.04), format_length(0.25)
    ('12', '0.2')
    """
    return f"{value:.1f}".removesuffix(".0")


def draw_rect(
    x: float, y: float, width: float, height: float, fill: str, tooltip: object = None
) -> Markup:
    """Return a rectangle with an optional tooltip."""
    title = () if tooltip is None else (element("title", tooltip),)
    sides = {"x": x, "y": y, "width": width, "height": height}
    return element("rect", *title, **{n: format_length(v) for n, v in sides.items()}, fill=fill)


def draw_text(x: float, y: float, text: object, anchor: str = "start") -> Markup:
    """Return a line of text; ``anchor`` is SVG's ``text-anchor``."""
    return element("text", text, x=format_length(x), y=format_length(y), text_anchor=anchor)


def draw_svg(
    width: float, height: float, *children: object, title: object, **attributes: object
) -> Markup:
    """Return an SVG picture; ``title`` describes it for screen readers."""
    return element(
        "svg",
        *children,
        width=format_length(width),
        height=format_length(height),
        viewBox=f"0 0 {format_length(width)} {format_length(height)}",
        role="img",
        aria_label=title,
        **attributes,
        xmlns="http://www.w3.org/2000/svg",
    )


class Span(NamedTuple):
    """A range of a strip, in its units."""

    start: float
    stop: float
    shade: Shade
    tooltip: object = None


def draw_strip(spans: Iterable[Span], total: float, *, title: object) -> Markup:
    """Return a strip of spans as wide as its container; ``title`` describes it."""
    textures, scale = Textures(), STRIP_WIDTH / (total or 1)
    rects = [
        draw_rect(
            span.start * scale,
            0,
            max((span.stop - span.start) * scale, 0.5),
            STRIP_HEIGHT,
            textures.get_fill(span.shade),
            span.tooltip,
        )
        for span in spans
    ]
    return draw_svg(
        STRIP_WIDTH,
        STRIP_HEIGHT,
        textures.define(),
        *rects,
        draw_frame(STRIP_WIDTH, STRIP_HEIGHT),
        preserveAspectRatio="none",
        title=title,
        class_="vds-strip",
    )


def draw_frame(width: float, height: float) -> Markup:
    """Return the outline of a rectangle whose corner is the origin."""
    right, down = format_length(width), format_length(height)
    return element(
        "path",
        d=f"M0 0h{right}v{down}h{format_length(-width)}z",
        fill="none",
        stroke="currentColor",
        stroke_opacity=0.5,
        vector_effect="non-scaling-stroke",
    )


def draw_legend(entries: Sequence[tuple[Shade, object]]) -> Markup:
    """Return the legend of the shades of a picture."""
    return element("div", *(_draw_legend_entry(*entry) for entry in entries), class_="vds-key")


def _draw_legend_entry(shade: Shade, label: object) -> Markup:
    textures = Textures()
    square = draw_rect(0, 0, 14, 14, textures.get_fill(shade))
    swatch = draw_svg(14, 14, textures.define(), square, draw_frame(14, 14), title=shade.name)
    return element("span", swatch, join(label))


MAX_STRIP_LABEL_LENGTH = 22
"""Maximum number of characters of a label below a strip."""


def draw_labels(marks: Iterable[tuple[float, str]]) -> Markup:
    """Return labels below a strip, at positions from 0 to 1.

    Examples
    --------
    >>> "right:0" in draw_labels([(0.0, "2001-01-01"), (1.0, "2001-12-31")])
    True
    """
    labels = []
    for position, label in marks:
        # keep the end of a long label, since file names usually differ there
        text = (
            label
            if len(label) <= MAX_STRIP_LABEL_LENGTH
            else f"…{label[1 - MAX_STRIP_LABEL_LENGTH :]}"
        )
        place = "right:0" if position >= 1 else f"left:{position * 100:.1f}%"
        labels.append(element("span", text, style=f"position:absolute;{place}"))
    style = "position:relative;height:1.5em;font-size:11px;white-space:nowrap"
    return element("div", *labels, style=style)


# ---------------------------------------------------------------------- grids of chunks
# The chunk grid of an array is a line, a rectangle or a box of shaded cells.
#
# A box has three visible faces: the front, the top and the left. The first axis leads from the back
# to the front. Adjacent cells of equal shade are drawn as one rectangle.

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


# ---------------------------------------------------------------------- lengths in a grid


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


# ---------------------------------------------------------------------- labels of a grid


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
