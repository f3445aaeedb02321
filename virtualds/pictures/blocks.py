"""The blocks of reports, which `format_text` shows as text, and `draw` as HTML.

Besides the classes here, a block is a line of words, or lines that are not wrapped; a mapping of
names to facts, without those that are None; a picture, which is markup and omitted in text; or
another report. A block without content shows nothing.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, TypeAlias

from virtualds.errors import without_secrets
from virtualds.pictures.html import (
    UNPRINTABLE,
    Markup,
    Shade,
    cell,
    element,
    join,
    name_shade,
    page,
)

SHOWN_ROWS = 20
"""Maximum number of rows of a table that are shown by default."""


class Code(str):
    """A value or identifier, set in a monospaced font in HTML."""

    __slots__ = ()


Words: TypeAlias = str | tuple[str, ...]
"""A line of text, or its parts if some are `Code`."""


@dataclass(frozen=True)
class Heading:
    """A verdict on one line, and its basis below; ``sign`` precedes the verdict in HTML."""

    title: str
    below: Sequence[Block] = ()
    shade: Shade | None = None
    sign: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of a table; if there are many, a report shows only the first few.

    Columns whose cells are all empty are left out. Those with ``numbers`` are right-aligned in
    HTML. ``total`` is the number of rows if not all are given, and ``rest`` says where all are.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    numbers: Sequence[int] = ()
    most: int = SHOWN_ROWS
    total: int = 0
    rest: str = ""

    @property
    def more(self) -> str:
        """A note with the number of rows that are not shown, or "" if all are."""
        return format_remainder(max(self.total, len(self.rows)) - self.most, self.rest)

    def select_columns(self) -> list[int]:
        """Return the columns that are not empty."""
        return [n for n in range(len(self.head)) if any(row[n] != "" for row in self.rows)]


@dataclass(frozen=True)
class Card:
    """A finding: ``note`` is beside its title, ``remedy`` and ``code`` at its end."""

    title: Words
    body: Sequence[Block] = ()
    note: str = ""
    shade: Shade | None = None
    sign: str = ""
    remedy: str = ""
    code: str = ""


@dataclass(frozen=True)
class Section:
    """Blocks with a title, collapsible in HTML; cards are drawn side by side."""

    title: str
    body: Iterable[Block]
    note: str = ""
    is_open: bool = True


class Report:
    """A report that can be text, HTML in a notebook, a page or a dictionary."""

    _title: ClassVar[str] = "Report"
    """The title of its page."""

    def _iterate_blocks(self) -> Iterable[Block]:
        raise NotImplementedError

    def __str__(self) -> str:
        return format_text([self])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return cell(draw(self))

    def to_html(self) -> str:
        """Return the report as a complete HTML page.

        Examples
        --------
        >>> from virtualds import Verification
        >>> page = Verification("fingerprint", files=2, fingerprinted=2).to_html()
        >>> page.splitlines()[0], "verified against fingerprint: ok" in page
        ('<!doctype html>', True)
        """
        return page(self._title, draw(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON.

        Examples
        --------
        >>> from virtualds import BuildReport
        >>> BuildReport(3, opened=3).to_dict()["opened"]
        3
        """
        report: dict[str, Any] = _to_plain(self)
        return report


def _to_plain(value: Any) -> Any:
    """Convert dataclasses and tuples to dictionaries and lists."""
    if is_dataclass(value):
        return {field.name: _to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping) or hasattr(value, "_asdict"):
        named = value if isinstance(value, Mapping) else value._asdict()
        return {name: _to_plain(item) for name, item in named.items()}
    return [_to_plain(item) for item in value] if isinstance(value, tuple | list) else value


Block: TypeAlias = Words | Mapping[str, Any] | Heading | Table | Card | Section | Report


def format_remainder(count: int, rest: str = "") -> str:
    """Return a note with the number of omitted items, or "" if there are none.

    Examples
    --------
    >>> format_remainder(1200, "to_dataframe() has all"), format_remainder(0)
    ('... and 1,200 more; to_dataframe() has all', '')
    """
    return f"... and {count:,} more{f'; {rest}' if rest else ''}" if count > 0 else ""


# ---------------------------------------------------------------------- text

GAP = "  "
"""The space between two columns, and the indentation inside a block."""
UNBOUND = 100_000
"""Line width in characters at which nothing is wrapped."""
MIN_VALUE_WIDTH = 20
"""Minimum width of a column of values in characters, even in a narrow terminal."""

Style: TypeAlias = Callable[[str], str]


def format_text(blocks: Iterable[Block], width: int = UNBOUND, bold: Style = str) -> str:
    """Return blocks as text.

    Parameters
    ----------
    blocks : iterable of blocks
    width : int
        Characters of a line at which values and sentences are wrapped, and tables become lists.
    bold : callable
        Makes titles, names of facts and heads of tables bold.

    Examples
    --------
    >>> print(format_text([{"format": "hdf5", "references": "7"}]))
    format      hdf5
    references  7
    >>> print(format_text([Section("Sizes", [Table(("variable", "bytes"), [("wind", 7)])])]))
    Sizes
      variable  bytes
      wind      7
    """
    lines = [line.rstrip() for block in blocks for line in _write(block, width, bold)]
    return "\n".join(lines).strip("\n")


def _format_value(text: object) -> str:
    """Return a string without secrets and without control characters."""
    # mask secrets before the text is wrapped, aligned or made bold, so that they are recognised
    masked = without_secrets(str(text))
    return UNPRINTABLE.sub(lambda c: c[0].encode("unicode_escape").decode(), masked)


def _format_one_line(text: object) -> str:
    """Return a string on one line, without secrets and without control characters."""
    return re.sub(r"[\r\n]+", " ", _format_value(text))


def _write(block: Block, width: int, bold: Style) -> Iterator[str]:
    match block:
        case Markup() | "":
            return
        case str() if "\n" in block:
            yield from _format_value(block).splitlines()
        case str() | tuple():
            yield from _fold("".join(block), width)
        case Mapping():
            yield from _write_facts(block, width, bold)
        case Table():
            yield from _write_table(block, width, bold)
        case Heading(title, below):
            yield bold(_format_one_line(title))
            yield from _indent(below, width, bold)
        case Section(title, body, note):
            if inside := list(_indent(body, width, bold)):
                yield ""
                yield bold(_format_one_line(title)) + f" ({_format_one_line(note)})" * bool(note)
                yield from inside
        case Card(title, body, note):
            yield bold(_format_one_line("".join(title))) + f": {_format_one_line(note)}" * bool(
                note
            )
            remedy = f"do: {block.remedy}" if block.remedy else ""
            yield from _indent([*body, remedy], width, bold)
            yield from (f"{GAP}{line}" for line in _format_value(block.code).splitlines())
        case Report():
            for part in block._iterate_blocks():
                yield from _write(part, width, bold)


def _indent(blocks: Iterable[Block], width: int, bold: Style) -> Iterator[str]:
    for block in blocks:
        yield from (f"{GAP}{line}" for line in _write(block, width - len(GAP), bold))


def _write_facts(rows: Mapping[str, Any], width: int, bold: Style) -> Iterator[str]:
    facts = {
        _format_one_line(name): str(value) for name, value in rows.items() if value is not None
    }
    wide = max(map(len, facts), default=0)
    for name, value in facts.items():
        first, *continuation = _fold(value, max(width - wide - len(GAP), MIN_VALUE_WIDTH))
        yield bold(name.ljust(wide)) + GAP + first
        yield from (" " * wide + GAP + line for line in continuation)


def _write_table(table: Table, width: int, bold: Style) -> Iterator[str]:
    columns = table.select_columns()
    lines = [table.head, *table.rows[: table.most]] if table.rows else []
    cells = [[" ".join(_format_value(line[n]).split()) for n in columns] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, line in enumerate(cells):
        if sum(widths) + len(GAP) * (len(widths) - 1) <= width:
            text = GAP.join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
            yield text if number else bold(text)
        elif number:
            # a table that is wider than the terminal is written as a list
            yield from _fold(line[0], width)
            named = zip(cells[0][1:], line[1:], strict=True)
            yield from _indent([{n: c for n, c in named if c}], width, bold)
    if table.more:
        yield _format_value(table.more)


def _fold(text: str, width: int) -> list[str]:
    folded = (
        textwrap.wrap(
            line, max(width, MIN_VALUE_WIDTH), break_on_hyphens=False, break_long_words=False
        )
        for line in _format_value(text).splitlines()
    )
    return [line for lines in folded for line in lines or [""]] or [""]


# ---------------------------------------------------------------------- html

BESIDE = "display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));gap:0 8px"
CODE = (
    "margin:4px 0 0;padding:4px 8px;border:1px solid rgba(128,128,128,.35);border-radius:3px;"
    "overflow-x:auto;user-select:all;white-space:pre-wrap;overflow-wrap:anywhere"
)
"""The CSS style of code, in which one click selects everything."""


def draw(block: Block) -> Markup | None:
    """Return a block as HTML, or None if it has no content.

    Examples
    --------
    >>> draw(("from ", Code("a<b")))
    '<div>from <code>a&lt;b</code></div>'
    """
    match block:
        case Markup():
            return block
        case str() | tuple():
            return element("div", _draw_line(block)) if block else None
        case Mapping():
            rows = (
                element("tr", element("th", name, scope="row"), element("td", value))
                for name, value in block.items()
                if value is not None
            )
            return element("table", element("tbody", *rows), class_="vds-facts")
        case Table():
            return _draw_table(block)
        case Heading(title, below, shade, sign):
            colour = name_shade(shade) if shade else "currentColor"
            return element(
                "div",
                element("div", element("b", f"{sign} {title}".strip()), class_="vds-title"),
                *map(draw, below),
                style=f"border-left:4px solid {colour};padding-left:12px;margin:4px 0 12px",
            )
        case Section(title, body, note, is_open):
            blocks = list(body)
            parts = [part for part in map(draw, blocks) if part is not None]
            if not parts:
                return None
            if any(isinstance(block, Card) for block in blocks):
                parts = [element("div", *parts, style=BESIDE)]
            beside = element("span", note, class_="vds-note") if note else None
            summary = element("summary", element("b", title), beside)
            return element("details", summary, *parts, class_="vds-section", open=is_open)
        case Card():
            return _draw_card(block)
        case Report():
            return join(*map(draw, block._iterate_blocks()))


def _draw_line(words: Words) -> Markup:
    parts = words if isinstance(words, tuple) else (words,)
    return join(*(element("code", part) if isinstance(part, Code) else part for part in parts))


def _draw_table(table: Table) -> Markup | None:
    columns = {n: "vds-number" if n in table.numbers else None for n in table.select_columns()}
    if not columns:
        return None
    names = (element("th", table.head[n], class_=k, scope="col") for n, k in columns.items())
    body = (
        element("tr", *(element("td", row[n], class_=k) for n, k in columns.items()))
        for row in table.rows[: table.most]
    )
    drawn = element(
        "table",
        element("thead", element("tr", *names)),
        element("tbody", *body),
        class_="vds-table",
    )
    more = element("div", table.more, class_="vds-note") if table.more else None
    return element("div", drawn, more, class_="vds-scroll")


def _draw_card(card: Card) -> Markup:
    title = join(f"{card.sign} " if card.sign else None, _draw_line(card.title))
    line = element("code", card.code)
    colour = f"border-left-color:{name_shade(card.shade)};" if card.shade else ""
    return element(
        "div",
        element("div", element("b", title), element("span", card.note, class_="vds-note")),
        *map(draw, card.body),
        element("div", element("b", "Do: "), card.remedy) if card.remedy else None,
        element("pre", line, class_="vds-code", style=CODE, title="click to select all")
        if card.code
        else None,
        class_="vds-card",
        style=f"{colour}overflow-wrap:anywhere",
    )
