"""SVG by elements: pictures, rectangles, strips, textures and the key to them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from virtualds.pictures.html import Markup, element, join
from virtualds.pictures.style import GAP, TILE, Shade, name_shade

STRIP_WIDTH, STRIP_HEIGHT = 600, 14


class Textures:
    """The textures of one picture.

    The names of patterns count in the whole page, and a pattern of a hidden picture is not drawn.
    So each picture has its own, with names that no other picture has.
    """

    def __init__(self) -> None:
        self._key = os.urandom(4).hex()
        self._used: dict[str, Shade] = {}

    def fill(self, shade: Shade) -> str:
        """Return what fills a shape with a shade: its colour, or its texture over it."""
        if not shade.texture:
            return name_shade(shade)
        self._used[shade.name] = shade
        return f"url(#vds-{shade.name}-{self._key})"

    def define(self) -> Markup | None:
        """Return the definitions of the textures that were used, None if there are none."""
        found = [self._define_one(shade) for shade in self._used.values()]
        return element("defs", *found) if found else None

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
    """Return a length in a picture: tenths are fine enough.

    Examples
    --------
    >>> number(12.04), number(0.25)
    ('12', '0.2')
    """
    return f"{value:.1f}".removesuffix(".0")


def rectangle(
    x: float, y: float, width: float, height: float, fill: str, tooltip: object = None
) -> Markup:
    """Return a rectangle; ``tooltip`` is shown when the pointer rests on it."""
    told = () if tooltip is None else (element("title", tooltip),)
    places = {"x": x, "y": y, "width": width, "height": height}
    return element("rect", *told, **{n: number(v) for n, v in places.items()}, fill=fill)


def text(x: float, y: float, words: object, anchor: str = "start") -> Markup:
    """Return a line of text; ``anchor`` says which end of it lies at ``x``."""
    return element("text", words, x=number(x), y=number(y), text_anchor=anchor)


def picture(
    width: float, height: float, *children: object, title: object, class_: str | None = None
) -> Markup:
    """Return a picture; ``title`` says to those who cannot see it what it shows."""
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
    """A stretch of a strip, in units of the strip."""

    start: float
    stop: float
    shade: Shade
    tooltip: object = None


def strip(spans: Iterable[Span], total: float, *, title: object) -> Markup:
    """Return a strip of spans, as wide as its place; it says by ``title`` what it shows."""
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


def key(entries: Sequence[tuple[Shade, object]]) -> Markup:
    """Return what the shades of a picture stand for."""
    return element("div", *(_show_entry(*entry) for entry in entries), class_="vds-key")


def _show_entry(shade: Shade, words: object) -> Markup:
    textures = Textures()
    square = rectangle(0, 0, 14, 14, textures.fill(shade))
    swatch = picture(14, 14, textures.define(), square, frame(0, 0, 14, 14), title=shade.name)
    return element("span", swatch, join(words))
