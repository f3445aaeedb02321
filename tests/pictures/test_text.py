"""Reports as text: no secret, no name of a file that moves the cursor, on any width."""

from __future__ import annotations

from functools import partial

import click

from virtualds.combine.workers import LeftOut
from virtualds.pictures import Card, Heading, Section, Table, format_text


def test_a_secret_at_the_end_of_what_is_bold_leaves_the_rest_plain() -> None:
    bold = partial(click.style, bold=True)
    shown = format_text([{"https://h/refs.json?sig=abc": "changed"}], 80, bold)
    assert "abc" not in shown
    assert shown.count("\x1b[1m") == shown.count("\x1b[0m") == 1


def test_columns_are_as_wide_as_what_is_shown() -> None:
    url = "https://h/refs.json?token=" + "a" * 40
    lines = format_text([Table(("file", "error"), [(url, "gone"), ("b.nc", "gone")])], 120)
    assert len({line.index("gone") for line in lines.splitlines()[1:]}) == 1


def test_no_name_of_a_file_moves_the_cursor_or_breaks_a_line() -> None:
    name = "from a\x1b[2J\r.nc"
    blocks = [
        Heading(name, ["one"]),
        Section(name, ["two"], name),
        Card(name, ["three"], name),
        {name: "four"},
        Table((name, "b"), [(name, "five")]),
    ]
    shown = format_text(blocks, 200)
    assert "\x1b" not in shown and "\r" not in shown
    lost = LeftOut("d/bad\x1b\n.nc", "FormatError", "it is damaged")
    assert str(lost) == "'d/bad\\x1b\\n.nc': FormatError: it is damaged"


def test_the_narrowest_terminal_has_a_text() -> None:
    for width in range(6):
        assert format_text([Section("a", [Section("b", ["some words of it"])])], width)
