"""The XML of a DMR++ sidecar, and the files that it describes.

Whoever puts a sidecar on a server chooses what it names: the rules of reference sets hold for it
(`virtualds.stores.access_rules`).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.etree.ElementTree import Element

from virtualds.errors import FormatError, UnsupportedError
from virtualds.parsers.dmrpp.chunks import DMRPP, NAMESPACE
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.access_rules import ANYWHERE, is_same_host, resolve_url
from virtualds.urls import join_url, name_of, scheme_of

DAP = "{http://xml.opendap.org/ns/DAP/4.0#}"
"""Prefix of the elements of DAP4."""
SUFFIX = ".dmrpp"
LONGEST = 2**28
"""Bytes of the longest sidecar: ten million chunks take about as many."""
DEEPEST = 64
"""Groups within each other, and containers of attributes within each other."""
PLACEHOLDER = "OPeNDAP_DMRpp_DATA_ACCESS_URL"
"""What stands for the url of the file until a server knows it."""


class _Builder(ET.TreeBuilder):
    """Builds a tree, and refuses documents that could define entities."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:
        raise FormatError(
            "it declares a type of documents, which no sidecar does; check the path, or fetch the "
            "sidecar again"
        )


def parse_sidecar(source: SourceFile) -> Element:
    """Return the root of the XML of a sidecar.

    Raises
    ------
    FormatError
        It is no sound XML, or none of DAP4, or without addresses, or declares a type of documents,
        which may define entities.
    UnsupportedError
        It is too long.
    """
    data = _read(source)
    root = _parse_xml(data, source.url)
    if root.tag != f"{DAP}Dataset":
        raise FormatError(
            f"{source.url}: its root is {root.tag[:80]!r}, no Dataset of DAP4; check the path"
        )
    if NAMESPACE.encode() not in data:
        raise FormatError(
            f"{source.url}: the file is a DMR of OPeNDAP, which says what a file holds, and not "
            f"where; open the file itself, or its sidecar ({SUFFIX})"
        )
    if any(depth > DEEPEST for depth in _measure_depths(root)):
        raise FormatError(
            f"{source.url}: more than {DEEPEST} elements within each other; the sidecar is "
            f"damaged, fetch it again"
        )
    return root


def _read(source: SourceFile) -> bytes:
    url, size = source.url, source.size
    if size is not None and size > LONGEST:
        raise UnsupportedError(
            f"{url}: a sidecar of {size} bytes, where at most {LONGEST} are read; open the file "
            f"that it describes"
        )
    store = find_store(url)
    if size is None:
        return store.read_all(url, source.options)
    return bytes(store.get_ranges(source, [(0, size)])[0])


def _parse_xml(data: bytes, url: str) -> Element:
    try:
        return ET.fromstring(data, ET.XMLParser(target=_Builder()))
    except FormatError as error:
        error.locate_file(url)
        raise
    except (ET.ParseError, LookupError, ValueError) as error:
        raise FormatError(
            f"{url}: it is no sound XML ({error}); the sidecar is damaged or truncated, fetch it "
            f"again"
        ) from error


def _measure_depths(root: Element) -> Iterator[int]:
    """Yield the depth of every element that has others in it."""
    level, depth = [root], 0
    while level:
        yield depth
        level = [child for one in level for child in one if len(child)]
        depth += 1


def name_of_element(element: Element) -> str:
    """Return the attribute ``name``, empty without one."""
    return element.get("name", "")


@dataclass
class DescribedFiles:
    """The files that a sidecar names, each found once."""

    source: SourceFile
    root: Element
    _found: dict[str | None, SourceFile] = field(default_factory=dict)

    def find(self, href: str | None) -> SourceFile:
        """Return the file that an ``href`` names; that of the sidecar for None.

        Raises
        ------
        AccessError
            The sidecar may not name it.
        """
        if href not in self._found:
            self._found[href] = self._make(href)
        return self._found[href]

    def _make(self, href: str | None) -> SourceFile:
        base, told = self.source.url, href or self.root.get(f"{DMRPP}href") or PLACEHOLDER
        # a path of the machine that made a sidecar is none of the machine that serves it
        is_foreign = scheme_of(base) != "file" and told.startswith("file:")
        if told == PLACEHOLDER or is_foreign:
            url = join_url(base, self._find_neighbour())
        elif told.startswith("/") and scheme_of(base) in ("http", "https"):
            url = "/".join([*base.split("/")[:3], told.lstrip("/")])
        else:
            url = resolve_url(told, base)
        ANYWHERE.check(url, base)
        is_near = scheme_of(base) == "file" or is_same_host(url, base)
        return SourceFile(url, options=self.source.options if is_near else None)

    def _find_neighbour(self) -> str:
        """Return the name of the file beside the sidecar that it describes."""
        name = name_of(self.source.url)
        if name.endswith(SUFFIX):
            return name.removesuffix(SUFFIX)
        return name_of_element(self.root).rpartition("/")[2] or name
