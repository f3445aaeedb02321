"""The page of source kinds lists every parser: what it reads, what it refuses, and why."""

from __future__ import annotations

import re
from pathlib import Path

from products import looped

from virtualds.datasets.location import PARSERS

PAGES = Path(__file__).parents[2] / "docs/reference/sources"
ROW = re.compile(r"^\| \[`([\w-]+)`\]\(([\w.-]+)\) \|(.*)\|$", re.MULTILINE)
ROWS = {row[1]: row for row in ROW.finditer((PAGES / "index.md").read_text(encoding="utf-8"))}


def test_every_parser_has_a_row_and_every_row_a_parser() -> None:
    assert ROWS.keys() == {parser.name for parser in PARSERS}


@looped("name", ROWS)
def test_a_row_says_what_is_read_and_refused_and_why_and_leads_to_a_page(name: str) -> None:
    _, page, rest = ROWS[name].groups()
    files, read, refused, why = (cell.strip() for cell in rest.split("|"))
    assert files
    assert read
    assert refused
    assert why
    assert (PAGES / page).is_file()


def test_every_page_of_the_folder_can_be_found_from_the_table() -> None:
    text = (PAGES / "index.md").read_text(encoding="utf-8")
    below = text.partition("```\n")[0]
    pages = {path.name for path in PAGES.glob("*.md")} - {"index.md"}
    assert {page for page in pages if f"({page})" not in below} == set()
