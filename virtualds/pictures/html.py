"""HTML elements that escape what is put into them, tables, sections and pages.

What reports are made of: a heading with its verdict, and cards with remedies to copy.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence

from virtualds.pictures.style import STYLE, STYLE_OF_PAGES, Shade, name_shade

UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML 1.0 (section 2.2) or UTF-8 cannot hold, or that nobody sees."""

SPECIAL = re.compile(f"[&<>\"']|{UNPRINTABLE.pattern}")
"""Characters that text cannot hold as they are."""

EMPTY = frozenset({"br", "hr", "img", "input", "link", "meta", "circle", "line", "path", "rect"})
"""Elements without content. All others get an end tag, which HTML demands."""

SHOWN_ROWS = 20
"""Most rows of a table that a reader is shown unasked."""


class Markup(str):
    """Text that is HTML or SVG already, and is not escaped again."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Return a value as text that HTML, SVG and attributes of both can hold.

    Examples
    --------
    >>> escape("a<b & c")
    'a&lt;b &amp; c'
    """
    if isinstance(value, Markup):
        return value
    text = str(value)
    if SPECIAL.search(text) is None:
        return Markup(text)
    return Markup(html.escape(UNPRINTABLE.sub("\ufffd", text)))


def join(*children: object) -> Markup:
    """Return children one after the other; None is nothing, and what is no markup is escaped.

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


def section(title: object, *children: object, note: object = None, is_open: bool = False) -> Markup:
    """Return a section that a click opens and closes; ``note`` stands beside its title."""
    beside = element("span", note, class_="vds-note") if note is not None else None
    summary = element("summary", element("b", title), beside)
    return element("details", summary, *children, class_="vds-section", open=is_open)


def facts(rows: Mapping[str, object]) -> Markup:
    """Return a table of names and values, one pair to a line."""
    lines = (
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in rows.items()
        if value is not None
    )
    return element("table", element("tbody", *lines), class_="vds-facts")


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    most: int = SHOWN_ROWS,
    total: int | None = None,
    numbers: Iterable[int] = (),
) -> Markup:
    """Return a table, and a line that says how many rows it leaves out.

    Parameters
    ----------
    head : sequence
        Names of the columns.
    rows : iterable of sequences
        Cells: markup, or anything else as text.
    most : int
        Most rows that are shown.
    total : int, optional
        Number of all rows, if ``rows`` does not have all of them.
    numbers : iterable of int
        Columns that are numbers, which stand at the right of their columns.
    """
    listed = list(rows)
    right = frozenset(numbers)
    kinds = ["vds-number" if column in right else None for column in range(len(head))]
    body = (
        element("tr", *(element("td", c, class_=k) for c, k in zip(row, kinds, strict=True)))
        for row in listed[:most]
    )
    names = (element("th", n, class_=k, scope="col") for n, k in zip(head, kinds, strict=True))
    shown = element(
        "table",
        element("thead", element("tr", *names)),
        element("tbody", *body),
        class_="vds-table",
    )
    more = max(total or 0, len(listed)) - min(most, len(listed))
    rest = element("div", f"and {more:,} more", class_="vds-note") if more else None
    return element("div", shown, rest, class_="vds-scroll")


def cell(*children: object) -> Markup:
    """Return what a notebook shows for an object: its style sheet lies in it and ends with it."""
    return element("div", element("style", Markup(STYLE)), *children, class_="vds")


def page(title: str, *body: object) -> Markup:
    """Return a whole page that needs no other file.

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
    shown = element("div", element("h1", title), *body, class_="vds vds-page")
    return Markup(f"<!doctype html>\n{element('html', head, element('body', shown), lang='en')}\n")


# ---------------------------------------------------------------------- reports

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
    >>> from virtualds.pictures.style import OK
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
    >>> from virtualds.pictures.style import MISSING
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
