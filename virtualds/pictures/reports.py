"""What reports are made of: a heading with its verdict, and cards with remedies to copy."""

from __future__ import annotations

from collections.abc import Iterable

from virtualds.pictures.html import Markup, element
from virtualds.pictures.palette import Shade
from virtualds.pictures.style import name_shade

LONGEST_LABEL = 22
"""Letters of a label below a strip."""
BESIDE = "display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));gap:0 8px"
CODE = (
    "margin:4px 0 0;padding:4px 8px;border:1px solid rgba(128,128,128,.35);border-radius:3px;"
    "overflow-x:auto;user-select:all;white-space:pre-wrap;overflow-wrap:anywhere"
)
"""The style of a line of code: one click selects all of it."""


def draw_heading(title: object, *below: object, shade: Shade) -> Markup:
    """Return a verdict in one line, and what it is based on below.

    Examples
    --------
    >>> from virtualds.pictures.palette import OK
    >>> "<b>all is well</b>" in draw_heading("all is well", shade=OK)
    True
    """
    return element(
        "div",
        element("div", element("b", title), class_="vds-title"),
        *below,
        style=f"border-left:4px solid {name_shade(shade)};padding-left:12px;margin:4px 0 12px",
    )


def draw_card(
    title: object,
    *body: object,
    note: object,
    shade: Shade,
    remedy: str = "",
    code: str = "",
) -> Markup:
    """Return a card; ``note`` stands beside its title, ``remedy`` and ``code`` at its end.

    Examples
    --------
    >>> from virtualds.pictures.palette import MISSING
    >>> "<code>x = 1</code>" in draw_card("x", note="lacks", shade=MISSING, code="x = 1")
    True
    """
    line = element("code", code)
    return element(
        "div",
        element("div", element("b", title), element("span", note, class_="vds-note")),
        *(element("div", part) for part in body),
        element("div", element("b", "Do: "), remedy) if remedy else None,
        element("pre", line, class_="vds-code", style=CODE, title="click to select all")
        if code
        else None,
        class_="vds-card",
        style=f"border-left-color:{name_shade(shade)};overflow-wrap:anywhere",
    )


def lay_out(cards: Iterable[Markup]) -> Markup:
    """Return cards side by side where there is room."""
    return element("div", *cards, style=BESIDE)


def draw_labels(marks: Iterable[tuple[float, str]]) -> Markup:
    """Return labels below a strip, each at its place from 0 to 1.

    Examples
    --------
    >>> "right:0" in draw_labels([(0.0, "2001-01-01"), (1.0, "2001-12-31")])
    True
    """
    labels = [
        element("span", _cut_label(words), style=f"position:absolute;{_place(place)}")
        for place, words in marks
    ]
    style = "position:relative;height:1.5em;font-size:11px;white-space:nowrap"
    return element("div", *labels, style=style)


def _place(part: float) -> str:
    return "right:0" if part >= 1 else f"left:{part * 100:.1f}%"


def _cut_label(words: str) -> str:
    """Return a date, or the end of the name of a file, in which it differs from others."""
    return words if len(words) <= LONGEST_LABEL else f"…{words[1 - LONGEST_LABEL :]}"
