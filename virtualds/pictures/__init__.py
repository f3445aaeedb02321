"""Blocks of reports, which `format_text` formats as text, and `draw` as HTML.

A block is one of the classes below, a string, a mapping of names to facts (None is omitted), markup
of a picture (omitted in text), or another report. A string with line breaks is not wrapped. A block
without content is omitted.
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
    element,
    join,
    name_shade,
    to_notebook_html,
    to_page,
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
    """A result on one line, and blocks below it; ``sign`` precedes the title in HTML."""

    title: str
    below: Sequence[Block] = ()
    shade: Shade | None = None
    sign: str = ""


@dataclass(frozen=True)
class Table:
    """A table; a report shows at most ``max_rows`` of its rows.

    Columns without content are omitted. The columns in ``numbers`` are right-aligned in HTML.
    ``total`` is the number of rows if ``rows`` does not have all, and ``rest`` describes where all
    are.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    numbers: Sequence[int] = ()
    max_rows: int = SHOWN_ROWS
    total: int = 0
    rest: str = ""

    @property
    def remainder(self) -> str:
        """A note with the number of rows that are not shown, or "" if all are shown."""
        return format_remainder(max(self.total, len(self.rows)) - self.max_rows, self.rest)

    def select_columns(self) -> list[int]:
        """Return the columns that are not empty."""
        return [n for n in range(len(self.head)) if any(row[n] != "" for row in self.rows)]


@dataclass(frozen=True)
class Card:
    """A finding, with a note after its title, and a remedy and code at its end."""

    title: Words
    body: Sequence[Block] = ()
    note: str = ""
    shade: Shade | None = None
    sign: str = ""
    remedy: str = ""
    code: str = ""


@dataclass(frozen=True)
class Section:
    """Blocks with a title, which HTML can collapse. Cards are drawn side by side."""

    title: str
    body: Iterable[Block]
    note: str = ""
    is_open: bool = True


class Report:
    """A report as text, as HTML in a notebook, as an HTML page, and as a dictionary."""

    _title: ClassVar[str] = "Report"
    """The title of the page."""

    def _iterate_blocks(self) -> Iterable[Block]:
        raise NotImplementedError

    def __str__(self) -> str:
        return format_text([self])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return to_notebook_html(draw(self))

    def to_html(self) -> str:
        """Return the report as a complete HTML page.

        Examples
        --------
        >>> from virtualds import Verification
        >>> page = Verification("fingerprint", files=2, fingerprinted=2).to_html()
        >>> page.splitlines()[0], "verified against fingerprint: ok" in page
        ('<!doctype html>', True)
        """
        return to_page(self._title, draw(self))

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
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: _to_plain(item) for name, item in value.items()}
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

INDENT = "  "
"""The space between columns, and the indentation of nested blocks."""
UNLIMITED_WIDTH = 100_000
"""Line width in characters at which nothing is wrapped."""
MIN_VALUE_WIDTH = 20
"""Minimum width of values in characters, even in a narrow terminal."""

Style: TypeAlias = Callable[[str], str]


def format_text(blocks: Iterable[Block], width: int = UNLIMITED_WIDTH, bold: Style = str) -> str:
    """Return blocks as text.

    Parameters
    ----------
    blocks : iterable of blocks
    width : int
        Maximum length of lines. Longer text is wrapped, and wider tables are written as lists.
    bold : callable
        Formats titles, names of facts and heads of tables.

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
    lines = [line.rstrip() for block in blocks for line in _iterate_lines(block, width, bold)]
    return "\n".join(lines).strip("\n")


def _format_value(value: object) -> str:
    """Return a value as text without secrets and without control characters."""
    # secrets are not recognised after the text is wrapped, aligned or made bold
    text = without_secrets(str(value))
    return UNPRINTABLE.sub(lambda c: c[0].encode("unicode_escape").decode(), text)


def _format_one_line(value: object) -> str:
    """Return a value as one line of text, without secrets and without control characters."""
    return re.sub(r"[\r\n]+", " ", _format_value(value))


def _iterate_lines(block: Block, width: int, bold: Style) -> Iterator[str]:
    """Yield the lines of a block."""
    match block:
        case Markup() | "":
            return
        case str() if "\n" in block:
            yield from _format_value(block).splitlines()
        case str() | tuple():
            yield from _wrap("".join(block), width)
        case Mapping():
            yield from _iterate_fact_lines(block, width, bold)
        case Table():
            yield from _iterate_table_lines(block, width, bold)
        case Heading(title, below):
            yield bold(_format_one_line(title))
            yield from _iterate_indented_lines(below, width, bold)
        case Section(title, body, note):
            if lines := list(_iterate_indented_lines(body, width, bold)):
                yield ""
                yield bold(_format_one_line(title)) + f" ({_format_one_line(note)})" * bool(note)
                yield from lines
        case Card(title, body, note):
            suffix = f": {_format_one_line(note)}" if note else ""
            yield bold(_format_one_line("".join(title))) + suffix
            remedy = f"do: {block.remedy}" if block.remedy else ""
            yield from _iterate_indented_lines([*body, remedy], width, bold)
            yield from (f"{INDENT}{line}" for line in _format_value(block.code).splitlines())
        case Report():
            for part in block._iterate_blocks():
                yield from _iterate_lines(part, width, bold)


def _iterate_indented_lines(blocks: Iterable[Block], width: int, bold: Style) -> Iterator[str]:
    for block in blocks:
        for line in _iterate_lines(block, width - len(INDENT), bold):
            yield f"{INDENT}{line}"


def _iterate_fact_lines(facts: Mapping[str, Any], width: int, bold: Style) -> Iterator[str]:
    texts = {_format_one_line(name): str(fact) for name, fact in facts.items() if fact is not None}
    name_width = max(map(len, texts), default=0)
    value_width = max(width - name_width - len(INDENT), MIN_VALUE_WIDTH)
    for name, text in texts.items():
        first, *others = _wrap(text, value_width)
        yield bold(name.ljust(name_width)) + INDENT + first
        yield from (" " * name_width + INDENT + line for line in others)


def _iterate_table_lines(table: Table, width: int, bold: Style) -> Iterator[str]:
    columns = table.select_columns()
    rows = [table.head, *table.rows[: table.max_rows]] if table.rows else []
    cells = [[" ".join(_format_value(row[n]).split()) for n in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        if sum(widths) + len(INDENT) * (len(widths) - 1) <= width:
            line = INDENT.join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            yield line if number else bold(line)
        elif number:
            # a table that is wider than the terminal is written as a list
            yield from _wrap(row[0], width)
            facts = {name: c for name, c in zip(cells[0][1:], row[1:], strict=True) if c}
            yield from _iterate_indented_lines([facts], width, bold)
    if table.remainder:
        yield _format_value(table.remainder)


def _wrap(text: str, width: int) -> list[str]:
    """Return a text as at least one line."""
    wrapped = (
        textwrap.wrap(
            line, max(width, MIN_VALUE_WIDTH), break_on_hyphens=False, break_long_words=False
        )
        for line in _format_value(text).splitlines()
    )
    return [line for lines in wrapped for line in lines or [""]] or [""]


# ---------------------------------------------------------------------- HTML

CARD_GRID_STYLE = (
    "display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));gap:0 8px"
)
CODE_STYLE = (
    "margin:4px 0 0;padding:4px 8px;border:1px solid rgba(128,128,128,.35);border-radius:3px;"
    "overflow-x:auto;user-select:all;white-space:pre-wrap;overflow-wrap:anywhere"
)
"""The CSS style of code, which a click selects as a whole."""


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
                parts = [element("div", *parts, style=CARD_GRID_STYLE)]
            note_span = element("span", note, class_="vds-note") if note else None
            summary = element("summary", element("b", title), note_span)
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
        for row in table.rows[: table.max_rows]
    )
    html_table = element(
        "table",
        element("thead", element("tr", *names)),
        element("tbody", *body),
        class_="vds-table",
    )
    note = element("div", table.remainder, class_="vds-note") if table.remainder else None
    return element("div", html_table, note, class_="vds-scroll")


def _draw_card(card: Card) -> Markup:
    title = join(f"{card.sign} " if card.sign else None, _draw_line(card.title))
    code = element("code", card.code)
    colour = f"border-left-color:{name_shade(card.shade)};" if card.shade else ""
    return element(
        "div",
        element("div", element("b", title), element("span", card.note, class_="vds-note")),
        *map(draw, card.body),
        element("div", element("b", "Do: "), card.remedy) if card.remedy else None,
        element("pre", code, class_="vds-code", style=CODE_STYLE, title="click to select all")
        if card.code
        else None,
        class_="vds-card",
        style=f"{colour}overflow-wrap:anywhere",
    )
