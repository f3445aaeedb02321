"""What HTML, SVG and tables of Markdown hold, as a reader finds it."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


class Tags(HTMLParser):
    """The tags, the names of attributes and the text of HTML."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(markup: str) -> ElementTree.Element:
    """Parse markup that is well formed; else raise an error."""
    return ElementTree.fromstring(markup.removeprefix("<!doctype html>\n"))


def text_of(markup: str) -> str:
    """Return the words that a reader sees, with single spaces."""
    root = parse(markup)
    for style in root.iter("style"):
        style.text = ""
    return " ".join(" ".join(root.itertext()).split())


def pictures_of(markup: str) -> list[ElementTree.Element]:
    """Return the pictures of chunk grids."""
    return [p for p in parse(markup).iter(f"{SVG}svg") if p.get("class") == "vds-grid"]


def rectangles_of(picture: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Yield the rectangles that are drawn, without those of textures and of light."""
    for group in picture.findall(f"{SVG}g"):
        yield from group.findall(f"{SVG}rect")


def shades_of(picture: ElementTree.Element) -> set[str]:
    """Return the names of the shades of a picture, with or without a texture."""
    fills = (rectangle.get("fill", "") for rectangle in rectangles_of(picture))
    return {fill.partition("vds-")[2].split(",")[0].split("-")[0] for fill in fills}


def table_between(page: Path, name: str) -> dict[str, dict[str, str]]:
    """Return the cells of the table between two comments of a page, by row and column."""
    text = page.read_text(encoding="utf-8")
    [found] = re.findall(f"<!-- {name} -->\n(.*?)<!-- {name} ends -->", text, re.DOTALL)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found.splitlines()]
    head, _, *rows = lines
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}
