"""The XML of a DMR++ sidecar, and the files that it describes.

Whoever puts a sidecar on a server chooses what it names: the rules of reference sets hold for it
(`virtualds.stores.access_rules`).

The values of one variable, as a DMR++ sidecar has them: chunks in files, or values in itself.

OPeNDAP, "DMR++" (docs.opendap.org/index.php/DMR++): elements ``compact`` and ``missingdata``;
``vlsa``: BES, ``dmrpp_module/vlsa_util.cc``.
"""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NoReturn
from urllib.parse import unquote
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import Data
from virtualds.bounds import decode_stream, demand_values
from virtualds.codecs.codec import NO_FILTERS
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.dmrpp.chunks import (
    DMRPP,
    NAMESPACE,
    REMEDY,
    Storage,
    lists_chunks,
    parse_number,
    read_chunks,
)
from virtualds.parsers.hdf5.data_types import TEXT_DTYPE
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.access_rules import ANYWHERE, is_same_host, resolve_url
from virtualds.urls import join_url, name_of, scheme_of

DAP = "{http://xml.opendap.org/ns/DAP/4.0#}"
"""Prefix of the elements of DAP4."""
SECURE, PLAIN = "https://xml.opendap.org/", "http://xml.opendap.org/"
"""How namespaces begin in some sidecars, and in all others."""
SUFFIX = ".dmrpp"
LONGEST = 2**28
"""Bytes of the longest sidecar."""
MOST_NODES = 2**22
"""Elements and attributes of the largest sidecar, which take about 500 MB: a million chunks."""
DEEPEST = 64
"""Groups within each other, and containers of attributes within each other."""
PLACEHOLDER = "OPeNDAP_DMRpp_DATA_ACCESS_URL"
"""What stands for the url of the file until a server knows it."""


class _Builder(ET.TreeBuilder):
    """Builds a tree of bounded size, and refuses documents that could define entities.

    Namespaces with ``https`` become those with ``http``: they are names, not addresses.
    """

    def __init__(self) -> None:
        super().__init__()
        self._nodes = 0

    def start(self, tag: str, attributes: dict[str, str], /) -> Element:
        self._nodes += 1 + len(attributes)
        if self._nodes > MOST_NODES:
            raise UnsupportedError(
                f"more than {MOST_NODES} elements and attributes, where a sidecar of a million "
                f"chunks has fewer; open the file that it describes"
            )
        if SECURE in tag or any(SECURE in name for name in attributes):
            tag = tag.replace(SECURE, PLAIN)
            attributes = {name.replace(SECURE, PLAIN): v for name, v in attributes.items()}
        return super().start(tag, attributes)

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
    if not is_described(data):
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


def is_described(data: bytes) -> bool:
    """Say whether bytes of a sidecar have the namespace of DMR++."""
    return _has_namespace(data, NAMESPACE)


def names_dap(data: bytes) -> bool:
    """Say whether bytes of a document have the namespace of DAP4."""
    return _has_namespace(data, DAP[1:-1])


def _has_namespace(data: bytes, namespace: str) -> bool:
    return any(form.encode() in data for form in (namespace, namespace.replace(PLAIN, SECURE)))


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
    except VirtualdsError as error:
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
        FormatError
            It names none.
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
        options = self.source.options if is_near else None
        beside = self._find_beside(told)
        if beside is not None and not _is_there(url, options):
            # the folders are those of the machine that made the sidecar
            url = beside if _is_there(beside, options) else url
        if url == base:
            raise FormatError(
                f"the sidecar does not say which file it describes; give it the name of the file "
                f"and {SUFFIX!r} behind it"
            )
        return SourceFile(url, options=options)

    def _find_beside(self, told: str) -> str | None:
        """Return where a file lies that a path with folders names as the sidecar itself is named.

        None for another file.
        """
        if "/" not in told or told.startswith("/") or "://" in told:
            return None
        base, name, neighbour = self.source.url, name_of(told), self._find_neighbour()
        is_encoded = scheme_of(base) in ("http", "https")
        if name in (neighbour, unquote(neighbour) if is_encoded else neighbour):
            return join_url(base, neighbour)
        return resolve_url(name, base) if name == self._name_in_root else None

    @property
    def _name_in_root(self) -> str:
        return name_of_element(self.root).rpartition("/")[2]

    def _find_neighbour(self) -> str:
        """Return the name of the file beside the sidecar that it describes."""
        name = name_of(self.source.url)
        if scheme_of(self.source.url) in ("http", "https"):
            name = name.partition("?")[0]
        if name.lower().endswith(SUFFIX):
            return name[: -len(SUFFIX)]
        return self._name_in_root or name


def _is_there(url: str, options: StorageOptions | None) -> bool:
    try:
        find_store(url).describe(url, options)
    except (FileNotFoundError, PermissionError):
        # to those who may not list a bucket, S3 refuses a file that is not there
        return False
    except OSError:
        # reading it raises a better error
        return True
    return True


# ---------------------------------------------------------------------- values


def read_values(stored: Storage) -> tuple[Data, dict[str, Any]]:
    """Return the values of a variable, and the encoding that `xarray` knows them by.

    Raises
    ------
    FormatError
        What the sidecar says makes no sense.
    UnsupportedError
        The sidecar does not say all that is needed, or says what references cannot express.
    """
    places = [child for child in stored.element if child.tag.startswith(DMRPP)]
    kinds = {child.tag.removeprefix(DMRPP) for child in places}
    reader = next((read for kind, read in READERS.items() if kind in kinds), None)
    if reader not in (read_chunks, None) and any(map(lists_chunks, places)):
        raise FormatError(
            f"the sidecar holds its values, and says that they lie in chunks; {REMEDY}"
        )
    if stored.dtype.hasobject and reader not in (_read_texts, _read_compact):
        raise UnsupportedError(
            f"its strings have varying lengths, and the sidecar does not hold them; {REMEDY}"
        )
    if stored.dtype.names and reader not in (read_chunks, None):
        raise UnsupportedError(f"the sidecar holds its structures, and not their form; {REMEDY}")
    if reader is None:
        said = f"only {', '.join(sorted(kinds))}" if kinds else "nothing"
        raise UnsupportedError(
            f"the sidecar does not say where its values lie ({said}); {REMEDY}, or make the "
            f"sidecar again with a newer build_dmrpp"
        )
    data, encoding = reader(stored)
    return (_cut_texts(stored, data) if stored.dtype.kind == "S" else data), encoding


@dataclass(frozen=True)
class CutTexts:
    """Strings of fixed length, cut as HDF5 cuts them while it reads.

    Parameters
    ----------
    array : ManifestArray
        The strings as stored.
    pad : str
        A key of `CUTS`.
    """

    array: ManifestArray
    pad: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.array.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the strings, which have the stored length at most."""
        return self.array.dtype

    def read(self, key: Sequence[Any]) -> npt.NDArray[Any]:
        """Read a selection: per axis an int, a slice, or a 1-D array of positions."""
        stored = np.asarray(self.array.read(tuple(key)))
        # numpy leaves out zeros at the end, behind which HDF5 removes no spaces
        whole = (text.ljust(self.dtype.itemsize, b"\0") for text in stored.ravel().tolist())
        return np.array([*map(CUTS[self.pad], whole)], self.dtype).reshape(stored.shape)


CUTS: Mapping[str, Callable[[bytes], bytes]] = {
    "null_term": lambda text: text.partition(b"\0")[0],
    "space_pad": lambda text: text.rstrip(b" "),
    "space": lambda text: text.rstrip(b" "),
}
"""What HDF5 leaves of a string of fixed length, by the padding (HDF5, ``H5T__conv_s_s``)."""
PADDED = ("null_pad", "null", "zero")
"""Paddings of strings that numpy removes as HDF5 does."""
UNKNOWN = ("not_set", None)


def _cut_texts(stored: Storage, data: ManifestArray) -> ManifestArray | CutTexts:
    fixed = stored.element.find(f"{DMRPP}FixedLengthStringArray")
    pad = None if fixed is None else fixed.get("pad")
    if pad in PADDED or (stored.dtype.itemsize == 1 and pad in ("null_term", *UNKNOWN)):
        return data
    if pad is None or pad not in CUTS:
        raise UnsupportedError(f"the sidecar does not say how its strings end ({pad!r}); {REMEDY}")
    return CutTexts(data, pad)


def _read_compact(stored: Storage) -> tuple[ManifestArray | npt.NDArray[Any], dict[str, Any]]:
    data = _decode_text(stored, "compact")
    if stored.dtype.hasobject:
        if stored.shape:
            raise UnsupportedError(f"its strings have varying lengths; {REMEDY}")
        return _build_texts([data.rstrip(b"\0").decode("utf-8", "replace")], ()), {}
    return _hold(stored, data)


def _read_missing(stored: Storage) -> tuple[ManifestArray, dict[str, Any]]:
    """Return values that the file does not hold, and that Hyrax computed: deflated in base 64."""
    data = _decode_text(stored, "missingdata")
    if prod(stored.shape) > 1:
        demand_values(stored.nbytes, "its values")
        data = _inflate(data, stored.nbytes)
    return _hold(stored, data)


def _hold(stored: Storage, data: bytes) -> tuple[ManifestArray, dict[str, Any]]:
    """Return values in little-endian bytes as an array of one chunk, which it holds."""
    nbytes = stored.nbytes
    if len(data) != nbytes:
        raise FormatError(
            f"the sidecar holds {len(data)} bytes of it, and its values take {nbytes}; the sidecar "
            f"is damaged, fetch it again"
        )
    array = ManifestArray.of_bytes(stored.shape, stored.dtype.newbyteorder("<"), data)
    return array, NO_FILTERS | {"contiguous": True, "chunksizes": None}


def _read_texts(stored: Storage) -> tuple[npt.NDArray[Any], dict[str, Any]]:
    """Return strings of varying length: one element each, or for ``c`` equal ones."""
    found = stored.element.find(f"{DMRPP}vlsa")
    texts: list[str] = []
    most = prod(stored.shape)
    values = [] if found is None else list(found)
    sizes = [parse_number(value.get("s", "0"), "s") for value in values]
    demand_values(8 * most + sum(sizes), "its strings")
    for value, size in zip(values, sizes, strict=True):
        text = value.text or ""
        if "s" in value.attrib:
            # invalid UTF-8 is replaced, as in netCDF4 files
            text = _inflate(_from_base64(text), size).decode("utf-8", "replace")
        count = parse_number(value.get("c", "1"), "c")
        texts += [text] * min(count, most + 1 - len(texts))
    if len(texts) != most:
        raise FormatError(
            f"the sidecar does not hold {most} strings of it, as its shape {stored.shape} says; "
            f"the sidecar is damaged, fetch it again"
        )
    return _build_texts(texts, stored.shape), {}


def _build_texts(texts: list[str], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    found = np.empty(len(texts), TEXT_DTYPE)
    found[:] = texts
    return found.reshape(shape)


def _decode_text(stored: Storage, name: str) -> bytes:
    return _from_base64(stored.element.findtext(f"{DMRPP}{name}") or "")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise FormatError(
            f"its values are no text of base 64 ({error}); the sidecar is damaged, fetch it again"
        ) from error


def _inflate(data: bytes, nbytes: int) -> bytes:
    try:
        return decode_stream(zlib.decompressobj(), data, nbytes)
    except (zlib.error, ValueError, EOFError) as error:
        raise FormatError(
            f"its values cannot be decompressed ({error}); the sidecar is damaged, fetch it again"
        ) from error


READERS: Mapping[str, Callable[[Storage], tuple[Any, dict[str, Any]]]] = {
    "compact": _read_compact,
    "missingdata": _read_missing,
    "vlsa": _read_texts,
    "chunks": read_chunks,
    "chunk": read_chunks,
}
"""What reads the values of a variable, by the element that says where they are.

Beside values that a sidecar holds, ``chunks`` may say a fill value, and lists no chunk.
"""
