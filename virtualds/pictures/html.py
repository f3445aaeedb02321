"""The elements of reports and pictures: HTML and SVG, safely escaped, and their style.

Elements form pages, strips, textures, labels and their legend.

Every rule of the style sheet begins with a class of ours, so that none leaks. Text and lines take
the colour of the page around them. Only the shades differ between light and dark: the page says
which by the attributes of Jupyter, VS Code, Sphinx themes and xarray, else the browser does.

The colours are those of Okabe and Ito (2008), which colour-blind people can distinguish, in an
order in which neighbours differ in lightness too. Each has its own texture: no picture relies on
colour alone.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from virtualds.errors import without_secrets


class Shade(NamedTuple):
    """A colour with its texture.

    Parameters
    ----------
    name : str
        The name of the shade in HTML and SVG.
    light, dark : str
        The colour on a light and on a dark page.
    texture : str
        The lines on top of it, as a path on a square of `TILE` units; empty for none.
    ink : str
        The colour of these lines.
    hatch : str
        The name of a similar texture in matplotlib.
    """

    name: str
    light: str
    dark: str
    texture: str = ""
    ink: str = "#000"
    hatch: str = ""


TILE = 6
"""Width and height of the square that is repeated in a texture."""

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
"""The shade that alternates with the first shade of the series, to separate neighbours."""

UNKNOWN = Shade("unknown", "#9a9a9a", "#8a8a8a")
"""The shade of items that have not been examined."""

OK, CHANGED, MISSING = SERIES[2]._replace(texture="", hatch=""), SERIES[1], SERIES[6]
"""The shades of items that are unchanged, changed and missing."""

SHADES = (*SERIES, GAP, NEXT, UNKNOWN)


def get_shade(number: int) -> Shade:
    """Return the shade of a category by its index; categories beyond the series share the last.

    Examples
    --------
    >>> get_shade(0).name, get_shade(99).name
    ('blue', 'vermilion')
    """
    return SERIES[min(number, len(SERIES) - 1)]


# ---------------------------------------------------------------------- style


def name_shade(shade: Shade) -> str:
    """Return the colour of a shade in CSS, with a fallback for pages without our style sheet."""
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


def _set_colours(colours: dict[str, str]) -> str:
    return "{" + ";".join(f"--vds-{name}:{colour}" for name, colour in colours.items()) + "}"


_LIGHT = {shade.name: shade.light for shade in SHADES}
_DARK = {shade.name: shade.dark for shade in SHADES if shade.dark != shade.light}
_LIGHT_AGAIN = {name: _LIGHT[name] for name in _DARK}

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
        f".vds{_set_colours(_LIGHT)}",
        f"@media(prefers-color-scheme:dark){{.vds{_set_colours(_DARK)}}}",
        _format_theme_selectors("light", "true") + _set_colours(_LIGHT_AGAIN),
        _format_theme_selectors("dark", "false") + _set_colours(_DARK),
        _RULES.replace("\n", ""),
    )
)
"""The style sheet for notebooks."""

STYLE_OF_PAGES = (
    "html{color-scheme:light dark;background:Canvas;color:CanvasText}"
    "body{margin:0}"
    ".vds-page{font-family:system-ui,sans-serif;margin:0 auto;padding:16px}"
    ".vds-page h1{font-size:20px;margin:0 0 12px}"
    ".vds-page h2{font-size:16px;margin:20px 0 6px}"
)
"""The additional style sheet of our own pages."""


# ---------------------------------------------------------------------- html

UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML 1.0 (section 2.2) or UTF-8 cannot contain, or that are invisible."""

SPECIAL = re.compile(f"[&<>\"']|{UNPRINTABLE.pattern}")
"""Characters that must be escaped in text."""

EMPTY = frozenset({"br", "hr", "img", "input", "link", "meta", "circle", "line", "path", "rect"})
"""Void elements; all others get an end tag, as HTML requires."""


class Markup(str):
    """HTML or SVG text, which is not escaped again."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Escape a value for HTML, SVG and attributes of both.

    Examples
    --------
    >>> escape("a<b & c")
    'a&lt;b &amp; c'
    """
    if isinstance(value, Markup):
        return value
    # no page contains a secret
    text = without_secrets(str(value))
    if SPECIAL.search(text) is None:
        return Markup(text)
    return Markup(html.escape(UNPRINTABLE.sub("\ufffd", text)))


def join(*children: object) -> Markup:
    """Concatenate children; None is skipped, and anything that is not markup is escaped.

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
        By name, with underscores for hyphens, and ``class_`` for ``class``. None and False leave an
        attribute out; True is an attribute without a value.

    Examples
    --------
    >>> element("p", "<script>", class_="vds-note")
    '<p class="vds-note">&lt;script&gt;</p>'
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape("" if value is True else str(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in EMPTY and not children:
        return Markup(f"<{tag}{named}/>")
    return Markup(f"<{tag}{named}>{join(*children)}</{tag}>")


def cell(*children: object) -> Markup:
    """Return the HTML representation of an object in a notebook, with a scoped style sheet."""
    return element("div", element("style", Markup(STYLE)), *children, class_="vds")


def page(title: str, *body: object) -> Markup:
    """Return a self-contained HTML page.

    Examples
    --------
    >>> page("Report", element("p", "all is well"))[:15]
    '<!doctype html>'
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(STYLE_OF_PAGES + STYLE)),
    )
    container = element("div", element("h1", title), *body, class_="vds vds-page")
    return Markup(
        f"<!doctype html>\n{element('html', head, element('body', container), lang='en')}\n"
    )


# ---------------------------------------------------------------------- svg

STRIP_WIDTH, STRIP_HEIGHT = 600, 14


class Textures:
    """The textures of one picture.

    The names of patterns are global in a page, and a pattern of a hidden picture is not drawn. So
    each picture has its own, with unique names.
    """

    def __init__(self) -> None:
        self._key = os.urandom(4).hex()
        self._used: dict[str, Shade] = {}

    def fill(self, shade: Shade) -> str:
        """Return the ``fill`` of a shape: the colour of a shade, or a reference to its texture."""
        if not shade.texture:
            return name_shade(shade)
        self._used[shade.name] = shade
        return f"url(#vds-{shade.name}-{self._key})"

    def define(self) -> Markup | None:
        """Return the definitions of the textures that were used, or None if there are none."""
        patterns = [self._define_one(shade) for shade in self._used.values()]
        return element("defs", *patterns) if patterns else None

    def _define_one(self, shade: Shade) -> Markup:
        ground = None if shade is GAP else rectangle(0, 0, TILE, TILE, name_shade(shade))
        lines = element("path", d=shade.texture, stroke=shade.ink, stroke_opacity=0.4, fill="none")
        return element(
            "pattern",
            ground,
            lines,
            id=f"vds-{shade.name}-{self._key}",
            width=TILE,
            height=TILE,
            patternUnits="userSpaceOnUse",
        )


def number(value: float) -> str:
    """Format a length of SVG with at most one decimal.

    Examples
    --------
    >>> number(12.04), number(0.25)
    ('12', '0.2')
    """
    return f"{value:.1f}".removesuffix(".0")


def rectangle(
    x: float, y: float, width: float, height: float, fill: str, tooltip: object = None
) -> Markup:
    """Return a rectangle; ``tooltip`` is shown while the pointer is over it."""
    title = () if tooltip is None else (element("title", tooltip),)
    sides = {"x": x, "y": y, "width": width, "height": height}
    return element("rect", *title, **{n: number(v) for n, v in sides.items()}, fill=fill)


def text(x: float, y: float, words: object, anchor: str = "start") -> Markup:
    """Return a line of text; ``anchor`` is the end of it at ``x`` (SVG's ``text-anchor``)."""
    return element("text", words, x=number(x), y=number(y), text_anchor=anchor)


def picture(
    width: float, height: float, *children: object, title: object, class_: str | None = None
) -> Markup:
    """Return a picture; ``title`` describes it for those who cannot see it."""
    return element(
        "svg",
        *children,
        width=number(width),
        height=number(height),
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=title,
        class_=class_,
        xmlns="http://www.w3.org/2000/svg",
    )


class Span(NamedTuple):
    """A range of a strip, in units of the strip."""

    start: float
    stop: float
    shade: Shade
    tooltip: object = None


def strip(spans: Iterable[Span], total: float, *, title: object) -> Markup:
    """Return a strip of spans, as wide as its container; ``title`` describes what it shows."""
    textures, scale = Textures(), STRIP_WIDTH / (total or 1)
    drawn = [
        rectangle(
            span.start * scale,
            0,
            max((span.stop - span.start) * scale, 0.5),
            STRIP_HEIGHT,
            textures.fill(span.shade),
            span.tooltip,
        )
        for span in spans
    ]
    return element(
        "svg",
        textures.define(),
        *drawn,
        frame(0, 0, STRIP_WIDTH, STRIP_HEIGHT),
        width=STRIP_WIDTH,
        height=STRIP_HEIGHT,
        viewBox=f"0 0 {STRIP_WIDTH} {STRIP_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=title,
        class_="vds-strip",
        xmlns="http://www.w3.org/2000/svg",
    )


def frame(x: float, y: float, width: float, height: float) -> Markup:
    """Return the outline of a rectangle."""
    return element(
        "path",
        d=f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z",
        fill="none",
        stroke="currentColor",
        stroke_opacity=0.5,
        vector_effect="non-scaling-stroke",
    )


def legend(entries: Sequence[tuple[Shade, object]]) -> Markup:
    """Return the legend of the shades of a picture."""
    return element("div", *(_draw_legend_entry(*entry) for entry in entries), class_="vds-key")


def _draw_legend_entry(shade: Shade, label: object) -> Markup:
    textures = Textures()
    square = rectangle(0, 0, 14, 14, textures.fill(shade))
    swatch = picture(14, 14, textures.define(), square, frame(0, 0, 14, 14), title=shade.name)
    return element("span", swatch, join(label))


MAX_LABEL = 22
"""Maximum number of characters of a label below a strip."""


def draw_labels(marks: Iterable[tuple[float, str]]) -> Markup:
    """Return labels below a strip, each at its position from 0 to 1.

    Examples
    --------
    >>> "right:0" in draw_labels([(0.0, "2001-01-01"), (1.0, "2001-12-31")])
    True
    """
    labels = [
        element(
            "span", _shorten_label(label), style=f"position:absolute;{_position_style(position)}"
        )
        for position, label in marks
    ]
    style = "position:relative;height:1.5em;font-size:11px;white-space:nowrap"
    return element("div", *labels, style=style)


def _position_style(part: float) -> str:
    return "right:0" if part >= 1 else f"left:{part * 100:.1f}%"


def _shorten_label(label: str) -> str:
    """Shorten a label to its end, in which file names usually differ."""
    return label if len(label) <= MAX_LABEL else f"…{label[1 - MAX_LABEL :]}"
