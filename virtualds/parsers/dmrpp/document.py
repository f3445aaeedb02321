"""The XML of a DMR++ sidecar: its files, and the values and chunks of its variables.

The author of a sidecar chooses the files to which it refers, so the access rules for reference sets
apply (`virtualds.stores.access_rules`).

OPeNDAP, "DMR++" (docs.opendap.org/index.php/DMR++): elements ``chunks``, ``compact`` and
``missingdata``; how the server Hyrax reads ``chunks``: BES, ``dmrpp_module/DMZ.cc``; ``vlsa``:
BES, ``dmrpp_module/vlsa_util.cc``.
"""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from typing import Any, Literal, NoReturn
from urllib.parse import unquote
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import Data
from virtualds.bounds import check_table, check_values
from virtualds.chunks.axes import make_regular_axes
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_hdf5
from virtualds.codecs.codec import NO_FILTERS, Codec
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError, make_damage_error
from virtualds.parsers.hdf5.data_types import TEXT_DTYPE
from virtualds.parsers.hdf5.netcdf_rules import NETCDF_FILLS
from virtualds.parsers.hdf5.storage import scatter_chunks, skip_filters
from virtualds.source_file import SourceFile, StorageOptions, join_url, name_of, scheme_of
from virtualds.stores import find_store
from virtualds.stores.access_rules import DEFAULT_POLICY, is_same_host, resolve_url
from virtualds.streams import decode_stream

NAMESPACE = "http://xml.opendap.org/dap/dmrpp/1.0.0#"
DMRPP = f"{{{NAMESPACE}}}"
"""Prefix of the elements of DMR++."""
CHUNK_ELEMENTS = ("chunk", "block")
"""Names of the elements with the offset and length of bytes."""

FILTERS: dict[str, tuple[int, Callable[[int, int], tuple[int, ...]]]] = {
    "shuffle": (2, lambda itemsize, level: (itemsize,)),
    "deflate": (1, lambda itemsize, level: (level,)),
    "fletcher32": (3, lambda itemsize, level: ()),
}
"""HDF5 filters by their names in DMR++: the number, and a function that returns the client data."""
DEFAULT_LEVEL = 6
"""Compression level if a sidecar has none: the default of zlib; decoding does not need it."""
BYTE_ORDERS: dict[str | None, Literal["<", ">"]] = {"LE": "<", "BE": ">", None: "<"}
"""Byte orders by name; sidecars from before 2021 have none, and are read as little-endian."""
ROUNDED_DIGITS = 6
"""Number of significant digits of fill values of floats in a sidecar (``std::ostream``)."""

REMEDY = "open the file itself, or leave the variable out with drop_variables"

FindFile = Callable[[str | None], SourceFile]
"""A function that returns the file to which an ``href`` refers, or the described file for None."""


def make_sidecar_error(problem: str) -> FormatError:
    """Return the error for a damaged sidecar."""
    return make_damage_error(problem, "sidecar")


@dataclass(frozen=True)
class StoredVariable:
    """A variable of a sidecar: its element, dtype, shape, and the attribute ``_FillValue``.

    ``dtype`` has native byte order; the byte order of the file is in the element ``chunks``.
    """

    element: Element
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fill: Any
    find_file: FindFile

    @property
    def nbytes(self) -> int:
        """The size in bytes of all values."""
        return self.dtype.itemsize * prod(self.shape)


def read_chunks(stored: StoredVariable) -> tuple[ManifestArray, dict[str, Any]]:
    """Return a variable as references to chunks, and its encoding.

    Raises `FormatError` if the description of the chunks is invalid, and `UnsupportedError` if the
    description is incomplete, or cannot be expressed by references.
    """
    chunks_element = stored.element.find(f"{DMRPP}chunks")
    # the element of a variable may contain its only chunk
    chunks = stored.element if chunks_element is None else chunks_element
    if chunks.find(f"{DMRPP}block") is not None or "LBChunk" in chunks.attrib:
        raise UnsupportedError(f"its bytes lie in linked blocks of HDF4; {REMEDY}")
    order = chunks.get("byteOrder")
    if order not in BYTE_ORDERS:
        raise FormatError(f"its byte order is {order!r}, neither LE nor BE; {REMEDY}")
    dtype = stored.dtype.newbyteorder(BYTE_ORDERS[order])
    sizes, is_chunked = _read_sizes(chunks, stored.shape)
    codecs = _read_codecs(chunks, dtype.itemsize)
    axes = make_regular_axes(stored.shape, sizes)
    grid = tuple(axis.nchunks for axis in axes)
    rows = chunks.findall(f"{DMRPP}chunk")
    chunk_ids = _read_chunk_ids(rows, sizes, grid)
    is_complete = chunk_ids.size == prod(grid)
    fill = _read_fill(chunks.get("fillValue"), dtype, stored.fill, is_complete)
    pipeline = CodecPipeline(dtype, codecs, fill, tuple(range(len(sizes))))
    manifest, pipelines = _build_manifest(
        rows, chunk_ids, grid, stored.find_file, pipeline, prod(sizes) * dtype.itemsize
    )
    array = ManifestArray.from_fragment(Fragment.whole(axes, manifest), pipeline)
    encoding: dict[str, Any] = NO_FILTERS | {
        "contiguous": not is_chunked,
        "chunksizes": sizes if is_chunked else None,
    }
    for codec in codecs:
        encoding |= codec.encoding
    return replace(array, pipelines=pipelines), encoding


def contains_chunks(element: Element) -> bool:
    """Return whether an element is a chunk or a block, or contains one."""
    return any(element.find(f".//{DMRPP}{kind}") is not None for kind in CHUNK_ELEMENTS) or (
        element.tag.removeprefix(DMRPP) in CHUNK_ELEMENTS
    )


def is_byte_order_unknown(variable: Element, dtype: np.dtype[Any]) -> bool:
    """Return whether a sidecar does not state the byte order of the stored numbers."""
    chunks = variable.find(f"{DMRPP}chunks")
    element = variable if chunks is None else chunks
    has_no_order = (
        dtype.newbyteorder("<") != dtype.newbyteorder(">") and "byteOrder" not in element.attrib
    )
    return has_no_order and contains_chunks(element)


def _read_sizes(chunks: Element, shape: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """Return the chunk shape, and whether the sidecar states it."""
    text = chunks.findtext(f"{DMRPP}chunkDimensionSizes")
    if text is None:
        return tuple(max(n, 1) for n in shape), False
    sizes = tuple(parse_number(word, "a length of its chunks") for word in text.split())
    if len(sizes) != len(shape) or not all(sizes):
        raise make_sidecar_error(f"its chunks have the lengths {sizes}, its axes {shape}")
    return sizes, True


def _read_codecs(chunks: Element, itemsize: int) -> tuple[Codec, ...]:
    names = chunks.get("compressionType", "").split()
    levels = [parse_number(n, "deflateLevel") for n in chunks.get("deflateLevel", "").split()]
    codecs = []
    for name in names:
        if name not in FILTERS:
            raise UnsupportedError(
                f"its chunks have the filter {name!r}, about which a sidecar does not say enough "
                f"(it knows {', '.join(FILTERS)}); {REMEDY}"
            )
        number, make_client_data = FILTERS[name]
        level = levels.pop(0) if name == "deflate" and levels else DEFAULT_LEVEL
        codecs.append(codec_from_hdf5(number, make_client_data(itemsize, level), itemsize))
    return tuple(codecs)


def _build_manifest(
    rows: list[Element],
    chunk_ids: npt.NDArray[np.int64],
    grid: tuple[int, ...],
    find_file: FindFile,
    pipeline: CodecPipeline,
    nbytes: int,
) -> tuple[ChunkManifest, tuple[CodecPipeline, ...]]:
    """Return the references of the elements of chunks, and their pipelines.

    ``nbytes`` is the size of a decoded chunk.
    """
    if not rows:
        return ChunkManifest.missing(grid), (pipeline,)
    offset, length = _read_column(rows, "offset"), _read_column(rows, "nBytes")
    masks, pipeline_index = np.unique(_read_column(rows, "fm", "0"), return_inverse=True)
    pipelines = tuple(skip_filters(pipeline, int(mask)) for mask in masks)
    is_unfiltered = np.array([not chunk_pipeline.codecs for chunk_pipeline in pipelines])
    if (wrong := length[is_unfiltered[pipeline_index] & (length != nbytes)]).size:
        raise make_sidecar_error(
            f"a chunk without filters has {wrong[0]} bytes, and its values take {nbytes}"
        )
    hrefs = [row.get("href", row.get(f"{DMRPP}href")) for row in rows]
    file_numbers = {href: number for number, href in enumerate(dict.fromkeys(hrefs))}
    manifest = scatter_chunks(
        grid,
        chunk_ids,
        files=[find_file(href) for href in file_numbers],
        file=np.array([file_numbers[href] for href in hrefs]),
        offset=offset,
        length=length,
        pipeline=pipeline_index,
    )
    return manifest, pipelines


def _read_column(rows: list[Element], name: str, default: str = "") -> npt.NDArray[np.int64]:
    return np.array([parse_number(row.get(name, default), name) for row in rows], np.int64)


def _read_chunk_ids(
    rows: list[Element], sizes: tuple[int, ...], grid: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """Return the flat index in the grid of each chunk, in C order.

    Raises `FormatError` if a position is outside the grid, or two chunks have the same position.
    """
    if any("LinkedBlockIndex" in row.attrib for row in rows):
        raise UnsupportedError(f"its bytes lie in linked blocks of HDF4; {REMEDY}")
    check_table(grid, len(rows), "the sidecar")
    if not all(grid) and rows:
        raise make_sidecar_error("it has chunks, but no elements")
    texts = [row.get("chunkPositionInArray", "") for row in rows]
    if not rows or (texts == [""] and prod(grid) == 1):
        return np.zeros(len(rows), np.int64)
    try:
        positions = [[int(word) for word in text.strip("[] ").split(",")] for text in texts]
        begins = np.array(positions, np.int64).reshape(len(rows), len(grid))
    except (OverflowError, ValueError) as error:
        raise _make_position_error(texts) from error
    numbers = begins // np.array(sizes, np.int64)
    if (begins % sizes).any() or (begins < 0).any() or (numbers >= grid).any():
        raise _make_position_error(texts)
    chunk_ids = np.asarray(np.ravel_multi_index(tuple(numbers.T), grid), np.int64).reshape(-1)
    if np.unique(chunk_ids).size != chunk_ids.size:
        raise make_sidecar_error("two of its chunks have the same position")
    return chunk_ids


def _make_position_error(texts: list[str]) -> FormatError:
    return make_sidecar_error(
        f"its chunks lie at {', '.join(texts[:3])[:80]} ..., where no chunks begin"
    )


def parse_number(text: str, name: str) -> int:
    """Return a decimal number of a sidecar.

    Raises `FormatError` if ``text`` is not a number from 0 to 2**63 - 1.
    """
    if not text.strip().isdecimal() or len(text) > 30 or not int(text) < 2**63:
        raise make_sidecar_error(f"{name} is {text[:40]!r}, not a valid number")
    return int(text)


# ---------------------------------------------------------------------- fill values


def _read_fill(
    text: str | None, dtype: np.dtype[Any], attribute: Any, is_complete: bool
) -> bytes | None:
    """Return the storage fill value, or None if no chunk is missing.

    Raises `UnsupportedError` if chunks are missing, and the sidecar does not state their exact fill
    value.
    """
    if is_complete:
        return None
    value = None if text is None else _parse_fill(text, dtype, attribute)
    if value is None:
        raise UnsupportedError(
            f"chunks of it are missing, and the sidecar states no exact fill value ({text!r:.60}); "
            f"{REMEDY}"
        )
    return value.tobytes()


def _parse_fill(text: str, dtype: np.dtype[Any], attribute: Any) -> npt.NDArray[Any] | None:
    """Return a fill value, or None if the text is ambiguous or invalid."""
    if dtype.names:
        return None
    if dtype.kind == "S":
        return None if text.strip("\0 ") else np.zeros((), dtype)
    try:
        if dtype.kind in "iu":
            return np.array(int(text), dtype)
        number = float(text)
        digits = text.lower().partition("e")[0].strip("+-").replace(".", "").strip("0")
        if not isfinite(number) or len(digits) < ROUNDED_DIGITS:
            return np.array(number, dtype)
        # the rounded text does not determine the value
        fill_values = (attribute, NETCDF_FILLS[dtype.str[1:]])
        floats = [np.array(n, dtype) for n in fill_values if isinstance(n, float | np.floating)]
        matches = [
            n for n in floats if f"{float(n):.{ROUNDED_DIGITS}g}" == f"{number:.{ROUNDED_DIGITS}g}"
        ]
    except (OverflowError, ValueError):
        return None
    return matches[0] if matches else None


# ---------------------------------------------------------------------- document

DAP = "{http://xml.opendap.org/ns/DAP/4.0#}"
"""Prefix of the elements of DAP4."""
HTTPS_PREFIX, HTTP_PREFIX = "https://xml.opendap.org/", "http://xml.opendap.org/"
"""Prefixes of namespaces; some sidecars have https."""
SUFFIX = ".dmrpp"
MAX_BYTES = 2**28
"""Maximum size in bytes of a sidecar."""
MAX_NODES = 2**22
"""Maximum number of elements and attributes of a sidecar: a million chunks take 500 MB."""
MAX_DEPTH = 64
"""Maximum nesting of groups and of attribute containers."""
PLACEHOLDER = "OPeNDAP_DMRpp_DATA_ACCESS_URL"
"""Placeholder for the url of the file, which a server replaces."""


class _LimitedTreeBuilder(ET.TreeBuilder):
    """Builds an XML tree of limited size, and rejects documents that could define entities.

    ``https`` in namespaces is replaced by ``http``, since they are names, not urls.
    """

    def __init__(self) -> None:
        super().__init__()
        self._nodes = 0

    def start(self, tag: str, attributes: dict[str, str], /) -> Element:
        self._nodes += 1 + len(attributes)
        if self._nodes > MAX_NODES:
            raise UnsupportedError(
                f"more than {MAX_NODES} elements and attributes, where a sidecar of a million "
                f"chunks has fewer; open the file that it describes"
            )
        if HTTPS_PREFIX in tag or any(HTTPS_PREFIX in name for name in attributes):
            tag = tag.replace(HTTPS_PREFIX, HTTP_PREFIX)
            attributes = {
                name.replace(HTTPS_PREFIX, HTTP_PREFIX): v for name, v in attributes.items()
            }
        return super().start(tag, attributes)

    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:
        raise FormatError(
            "it has a document type declaration, which no sidecar has; check the path, or fetch "
            "the sidecar again"
        )


def parse_sidecar(source: SourceFile) -> Element:
    """Return the root of the XML of a sidecar.

    Raises `FormatError` if the document is not valid XML, not DAP4, or without locations, or has a
    document type declaration, which may define entities, and `UnsupportedError` if the document is
    too long.
    """
    data = _read(source)
    try:
        root: Element = ET.fromstring(data, ET.XMLParser(target=_LimitedTreeBuilder()))
    except VirtualdsError as error:
        error.locate_file(source.url)
        raise
    except (ET.ParseError, LookupError, ValueError) as error:
        raise FormatError(
            f"{source.url}: it is not well-formed XML ({error}); the sidecar is damaged or "
            f"truncated, fetch it again"
        ) from error
    if root.tag != f"{DAP}Dataset":
        raise FormatError(
            f"{source.url}: its root is {root.tag[:80]!r}, no Dataset of DAP4; check the path"
        )
    if not is_dmrpp(data):
        raise FormatError(
            f"{source.url}: the file is a DMR of OPeNDAP, which says what a file holds, and not "
            f"where; open the file itself, or its sidecar ({SUFFIX})"
        )
    level, depth = [root], 0
    while level := [child for element in level for child in element if len(child)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise make_sidecar_error(
                f"{source.url}: elements are nested more than {MAX_DEPTH} deep"
            )
    return root


def is_dmrpp(data: bytes) -> bool:
    """Return whether the start of a document has the namespace of DMR++."""
    return _has_namespace(data, NAMESPACE)


def is_dap(data: bytes) -> bool:
    """Return whether the start of a document has the namespace of DAP4."""
    return _has_namespace(data, DAP[1:-1])


def _has_namespace(data: bytes, namespace: str) -> bool:
    return any(
        form.encode() in data for form in (namespace, namespace.replace(HTTP_PREFIX, HTTPS_PREFIX))
    )


def _read(source: SourceFile) -> bytes:
    url, size = source.url, source.size
    if size is not None and size > MAX_BYTES:
        raise UnsupportedError(
            f"{url}: a sidecar of {size} bytes, where at most {MAX_BYTES} are read; open the file "
            f"that it describes"
        )
    store = find_store(url)
    if size is None:
        return store.read_all(url, source.options)
    return bytes(store.get_ranges(source, [(0, size)])[0])


def get_name(element: Element) -> str:
    """Return the attribute ``name`` of an element, or "" without one."""
    return element.get("name", "")


@dataclass
class DescribedFiles:
    """The files to which a sidecar refers, each resolved once."""

    source: SourceFile
    root: Element
    _files: dict[str | None, SourceFile] = field(default_factory=dict)

    def find(self, href: str | None) -> SourceFile:
        """Return the file to which an ``href`` refers, or the described file for None.

        Raises `AccessError` if the sidecar may not refer to it, and `FormatError` if it does not
        refer to a file.
        """
        if href not in self._files:
            self._files[href] = self._resolve(href)
        return self._files[href]

    def _resolve(self, href: str | None) -> SourceFile:
        base, target = self.source.url, href or self.root.get(f"{DMRPP}href") or PLACEHOLDER
        # a local path is one of the machine that wrote the sidecar, not of the server
        is_foreign = scheme_of(base) != "file" and target.startswith("file:")
        if target == PLACEHOLDER or is_foreign:
            url = join_url(base, self._find_neighbour())
        elif target.startswith("/") and scheme_of(base) in ("http", "https"):
            url = "/".join([*base.split("/")[:3], target.lstrip("/")])
        else:
            url = resolve_url(target, base)
        DEFAULT_POLICY.check(url, base)
        is_same_origin = scheme_of(base) == "file" or is_same_host(url, base)
        options = self.source.options if is_same_origin else None
        neighbour = self._find_beside(target)
        if neighbour is not None and not _exists(url, options):
            # ignore the folders, which are those of the machine that wrote the sidecar
            url = neighbour if _exists(neighbour, options) else url
        if url == base:
            raise FormatError(
                f"the sidecar does not say which file it describes; give it the name of the file "
                f"followed by {SUFFIX!r}"
            )
        return SourceFile(url, options=options)

    def _find_beside(self, target: str) -> str | None:
        """Return the url of a file next to the sidecar with the name of ``target``, or None."""
        if "/" not in target or target.startswith("/") or "://" in target:
            return None
        base, name, neighbour = self.source.url, name_of(target), self._find_neighbour()
        is_encoded = scheme_of(base) in ("http", "https")
        if name in (neighbour, unquote(neighbour) if is_encoded else neighbour):
            return join_url(base, neighbour)
        return resolve_url(name, base) if name == self._name_in_root else None

    @property
    def _name_in_root(self) -> str:
        return get_name(self.root).rpartition("/")[2]

    def _find_neighbour(self) -> str:
        """Return the name of the described file next to the sidecar."""
        name = name_of(self.source.url)
        if scheme_of(self.source.url) in ("http", "https"):
            name = name.partition("?")[0]
        if name.lower().endswith(SUFFIX):
            return name[: -len(SUFFIX)]
        return self._name_in_root or name


def _exists(url: str, options: StorageOptions | None) -> bool:
    try:
        find_store(url).describe(url, options)
    except (FileNotFoundError, PermissionError):
        # S3 denies access to a missing file for users who may not list the bucket
        return False
    except OSError:
        # reading the file will raise the error
        return True
    return True


# ---------------------------------------------------------------------- values


def read_values(stored: StoredVariable) -> tuple[Data, dict[str, Any]]:
    """Return the values of a variable, and its xarray encoding.

    Raises `FormatError` if the description is invalid, and `UnsupportedError` if the description is
    incomplete, or cannot be expressed by references.
    """
    children = [child for child in stored.element if child.tag.startswith(DMRPP)]
    names = {child.tag.removeprefix(DMRPP) for child in children}
    reader = next((read for name, read in READERS.items() if name in names), None)
    if reader not in (read_chunks, None) and any(map(contains_chunks, children)):
        raise FormatError(
            f"the sidecar holds its values, and says that they lie in chunks; {REMEDY}"
        )
    if stored.dtype.hasobject and reader not in (_read_strings, _read_compact):
        raise UnsupportedError(
            f"its strings are of variable length, and the sidecar does not hold them; {REMEDY}"
        )
    if stored.dtype.names and reader not in (read_chunks, None):
        raise UnsupportedError(f"the sidecar holds its structures, and not their form; {REMEDY}")
    if reader is None:
        elements = f"only {', '.join(sorted(names))}" if names else "nothing"
        raise UnsupportedError(
            f"the sidecar does not say where its values lie ({elements}); {REMEDY}, or make the "
            f"sidecar again with a newer build_dmrpp"
        )
    data, encoding = reader(stored)
    return (_truncate_strings(stored, data) if stored.dtype.kind == "S" else data), encoding


@dataclass(frozen=True)
class TruncatedStrings:
    """Fixed-length strings, truncated as by HDF5.

    Parameters
    ----------
    array : ManifestArray
        The strings as stored.
    pad : str
        The padding, a key of `TRUNCATIONS`.
    """

    array: ManifestArray
    pad: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.array.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the strings, which have at most the stored length."""
        return self.array.dtype

    def read(self, key: Sequence[Any]) -> npt.NDArray[Any]:
        """Return a selection: per axis an int, a slice, or a 1-D array of positions."""
        stored = np.asarray(self.array.read(tuple(key)))
        # restore the trailing NULs that NumPy removes, since HDF5 keeps spaces before them
        padded = (text.ljust(self.dtype.itemsize, b"\0") for text in stored.ravel().tolist())
        return np.array([*map(TRUNCATIONS[self.pad], padded)], self.dtype).reshape(stored.shape)


TRUNCATIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "null_term": lambda text: text.partition(b"\0")[0],
    "space_pad": lambda text: text.rstrip(b" "),
    "space": lambda text: text.rstrip(b" "),
}
"""Functions that truncate a fixed-length string as HDF5 does (``H5T__conv_s_s``), by padding."""
NUMPY_PADDINGS = ("null_pad", "null", "zero")
"""Paddings of strings that numpy removes as HDF5 does."""
UNKNOWN_PADDINGS = ("not_set", None)


def _truncate_strings(
    stored: StoredVariable, data: ManifestArray
) -> ManifestArray | TruncatedStrings:
    fixed = stored.element.find(f"{DMRPP}FixedLengthStringArray")
    pad = None if fixed is None else fixed.get("pad")
    if pad in NUMPY_PADDINGS or (
        stored.dtype.itemsize == 1 and pad in ("null_term", *UNKNOWN_PADDINGS)
    ):
        return data
    if pad is None or pad not in TRUNCATIONS:
        raise UnsupportedError(f"the sidecar does not say how its strings end ({pad!r}); {REMEDY}")
    return TruncatedStrings(data, pad)


def _read_compact(
    stored: StoredVariable,
) -> tuple[ManifestArray | npt.NDArray[Any], dict[str, Any]]:
    data = _decode_text(stored, "compact")
    if stored.dtype.hasobject:
        if stored.shape:
            raise UnsupportedError(f"its strings are of variable length; {REMEDY}")
        return _build_strings([data.rstrip(b"\0").decode("utf-8", "replace")], ()), {}
    return _make_inline_array(stored, data)


def _read_missing(stored: StoredVariable) -> tuple[ManifestArray, dict[str, Any]]:
    """Return values that Hyrax computed and stored in the sidecar, deflated, in base 64."""
    data = _decode_text(stored, "missingdata")
    if prod(stored.shape) > 1:
        check_values(stored.nbytes, "its values")
        data = _inflate(data, stored.nbytes)
    return _make_inline_array(stored, data)


def _make_inline_array(stored: StoredVariable, data: bytes) -> tuple[ManifestArray, dict[str, Any]]:
    """Return values in little-endian bytes as an array with one inline chunk."""
    nbytes = stored.nbytes
    if len(data) != nbytes:
        raise make_sidecar_error(
            f"the sidecar holds {len(data)} bytes of it, and its values take {nbytes}"
        )
    array = ManifestArray.from_bytes(stored.shape, stored.dtype.newbyteorder("<"), data)
    return array, NO_FILTERS | {"contiguous": True, "chunksizes": None}


def _read_strings(stored: StoredVariable) -> tuple[npt.NDArray[Any], dict[str, Any]]:
    """Return variable-length strings; an element with ``c`` represents ``c`` equal strings."""
    vlsa_element = stored.element.find(f"{DMRPP}vlsa")
    texts: list[str] = []
    total = prod(stored.shape)
    values = [] if vlsa_element is None else list(vlsa_element)
    sizes = [parse_number(value.get("s", "0"), "s") for value in values]
    check_values(8 * total + sum(sizes), "its strings")
    for value, size in zip(values, sizes, strict=True):
        text = value.text or ""
        if "s" in value.attrib:
            # invalid UTF-8 is replaced, as in netCDF4 files
            text = _inflate(_from_base64(text), size).decode("utf-8", "replace")
        count = parse_number(value.get("c", "1"), "c")
        texts += [text] * min(count, total + 1 - len(texts))
    if len(texts) != total:
        raise make_sidecar_error(
            f"the sidecar does not hold {total} strings of it, as its shape {stored.shape} says"
        )
    return _build_strings(texts, stored.shape), {}


def _build_strings(texts: list[str], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    array = np.empty(len(texts), TEXT_DTYPE)
    array[:] = texts
    return array.reshape(shape)


def _decode_text(stored: StoredVariable, name: str) -> bytes:
    return _from_base64(stored.element.findtext(f"{DMRPP}{name}") or "")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise make_sidecar_error(f"its values are not base64 text ({error})") from error


def _inflate(data: bytes, nbytes: int) -> bytes:
    try:
        return decode_stream(zlib.decompressobj(), data, nbytes)
    except (zlib.error, ValueError, EOFError) as error:
        raise make_sidecar_error(f"its values cannot be decompressed ({error})") from error


READERS: Mapping[str, Callable[[StoredVariable], tuple[Any, dict[str, Any]]]] = {
    "compact": _read_compact,
    "missingdata": _read_missing,
    "vlsa": _read_strings,
    "chunks": read_chunks,
    "chunk": read_chunks,
}
"""Readers of the values of a variable, by the element with their position.

If a variable has values in the sidecar, ``chunks`` has no chunks, and possibly a fill value.
"""
