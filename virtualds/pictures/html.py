"""HTML elements that escape what is put into them, tables, sections and pages."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence

from virtualds.pictures.style import STYLE, STYLE_OF_PAGES

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
