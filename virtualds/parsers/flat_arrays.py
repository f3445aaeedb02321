"""Parsers of plain arrays: ``.npy`` and ``.npz`` files of numpy, and safetensors files.

An ``.npz`` file is a zip archive of ``.npy`` files, each of which is a variable. A safetensors file
has a header in JSON, followed by the tensors (huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

import ast
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any, NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import (
    ManifestGroup,
    build_flat_array,
    build_variable,
    number_axes,
    prevent_joining_bytes,
)
from virtualds.arrays.parser import NativeReader, Parser, ReadNative, make_stored_reader
from virtualds.arrays.sources import MAX_VERIFIED_BYTES
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError, make_damage_error
from virtualds.json_values import parse_json
from virtualds.source_file import SourceFile, compute_tail_checksum
from virtualds.stores import find_members, find_store, read_heads
from virtualds.stores.archive import LOCAL_HEADER_SIZE, LOCAL_MAGIC
from virtualds.stores.block_cache import FIRST_PAGES, PAGE_SIZE
from virtualds.stores.scan_cache import prefetch_ranges
from virtualds.stores.store import StoreError

NAME = "array"
"""Name of the variable of an ``.npy`` file."""
SUFFIX = ".npy"
MAGIC = b"\x93NUMPY"
LENGTH_WIDTHS = {1: 2, 2: 4, 3: 4}
"""Size in bytes of the length of the header, by major version."""
HEADER_KEYS = {"descr", "fortran_order", "shape"}
MAX_HEADER = 10_000
"""Maximum number of characters of a header, as in numpy; more can crash Python's parser."""
TYPICAL_HEADER_BYTES = 256
"""Number of bytes to read for a header; most headers are shorter."""
TYPICAL_EXTRA_BYTES = 256
"""Number of bytes to read for the name and extra field of a member; most are shorter."""
MEMBER_BATCH = 256
"""Number of members whose headers are fetched together."""


class NumpyHeader(NamedTuple):
    """The header of an ``.npy`` file; ``offset`` is the offset of its values."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: str
    offset: int


def detect(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is an ``.npy`` file."""
    return head.startswith(MAGIC)


def detect_archive(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a zip archive of arrays."""
    length = int.from_bytes(head[26:28], "little")
    name = head[LOCAL_HEADER_SIZE : LOCAL_HEADER_SIZE + length]
    return head.startswith(LOCAL_MAGIC) and name.endswith(SUFFIX.encode()) and b"/" not in name


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the header of an ``.npy`` file, which has one variable, ``array``.

    Raises `FormatError` if the file is damaged or truncated, and `UnsupportedError` if its values
    are Python objects.
    """
    if NAME in set(skip):
        return ManifestGroup().group(group)
    [head] = _fetch_heads([source])
    data = _build_array(source, head)
    variable = build_variable(data, number_axes("", data.ndim), source)
    return ManifestGroup({NAME: variable}, left_out=prevent_joining_bytes([variable])).group(group)


def read_archive(
    source: SourceFile, group: str | None = None, skip: Iterable[str] = ()
) -> ManifestGroup:
    """Read the headers of all arrays of an ``.npz`` file; unreadable arrays are in `problems`.

    Raises `FormatError` if the archive is damaged, or contains something else, and
    `UnsupportedError` if its members are encrypted, or not compressed by deflate.
    """
    root = f"zip://::{source.url}"
    stored_files = find_store(root).list_files(root, source.options)
    if others := [file.path for file in stored_files if not file.path.endswith(SUFFIX)]:
        raise FormatError(
            f"{source.url}: it holds {others[0]!r} among its arrays; name one of its files as "
            f"zip://MEMBER::{source.url}"
        )
    skipped = frozenset(skip)
    names = [file.path.removesuffix(SUFFIX) for file in stored_files]
    selected = [(n, f.file) for n, f in zip(names, stored_files, strict=True) if n not in skipped]
    heads = _fetch_heads([file for _, file in selected])
    variables, problems = {}, dict[str, VirtualdsError]()
    for (name, file), head in zip(selected, heads, strict=True):
        try:
            data = _build_array(file, head)
        except VirtualdsError as error:
            error.locate(f"variable {name!r}", source.url)
            problems[name] = error
            data = ManifestArray.unreadable((), "V1", f"{error}")
        variables[name] = build_variable(data, number_axes(name, data.ndim), source)
    left_out = prevent_joining_bytes(variables.values())
    return ManifestGroup(variables, problems=problems, left_out=left_out).group(group)


def _fetch_heads(files: Sequence[SourceFile]) -> list[bytes]:
    """Fetch the first bytes of files together."""
    if any(file.size is None for file in files):
        raise UnsupportedError(
            f"{files[0].url}: the server sends no parts of it; copy it to local disk"
        )
    # one range covers the header of a member and the header of its array
    span = LOCAL_HEADER_SIZE + TYPICAL_EXTRA_BYTES + TYPICAL_HEADER_BYTES
    members = [member for member in find_members(files) if member is not None]
    for first in range(0, len(members), MEMBER_BATCH):
        batch = members[first : first + MEMBER_BATCH]
        prefetch_ranges({batch[0][0]: [(member.header, span) for _, member in batch]})
    return read_heads(files, TYPICAL_HEADER_BYTES)


def _build_array(file: SourceFile, head: bytes) -> ManifestArray:
    """Return the array of an ``.npy`` file that begins with ``head``."""
    size = min(parse_header_size(head, file.url), file.size or 0)
    if size > len(head):
        [head] = read_heads([file], size)
    header = parse_numpy_header(head, file.url)
    nbytes = header.dtype.itemsize * prod(header.shape)
    checksum = _find_checksum(file, head[: header.offset], nbytes)
    return build_flat_array(
        file, header.offset, header.dtype, header.shape, order=header.order, checksum=checksum
    )


def _find_checksum(file: SourceFile, header: bytes, nbytes: int) -> int:
    """Return the checksum of the values of an array in an archive, or 0 if there is none.

    The archive has one checksum of header and values together. If the array ends before its member,
    the member is verified immediately, since its header may be damaged.

    Raises `FormatError` if the member is damaged.
    """
    size = file.size or 0
    [member] = find_members([file])
    checksum, is_deflated = (
        (member[1].checksum, member[1].deflated_size is not None) if member else (0, False)
    )
    if not checksum or (not is_deflated and size > len(header) + MAX_VERIFIED_BYTES):
        return 0
    if nbytes and len(header) + nbytes == size:
        # the codec verifies the checksum of deflated members
        return 0 if is_deflated else compute_tail_checksum(header, checksum, nbytes)
    try:
        find_store(file.url).get_ranges(file, [(0, size)])
    except StoreError as error:
        raise FormatError(f"{file.url}: {error}; fetch the archive again") from error
    return 0


def parse_header_size(head: bytes, url: str) -> int:
    """Return the number of bytes before the values, parsed from the first 12 bytes of a file.

    Raises `FormatError` if the file is not an ``.npy`` file of a known version, or its header is
    too long.
    """
    if not head.startswith(MAGIC) or len(head) < 12 or head[6] not in LENGTH_WIDTHS:
        raise FormatError(
            f"{url}: begins with {head[:8]!r}, not as an .npy file of version 1 to 3 does"
        )
    width = LENGTH_WIDTHS[head[6]]
    length = int.from_bytes(head[8 : 8 + width], "little")
    if length > MAX_HEADER:
        raise FormatError(
            f"{url}: its header has {length} characters, more than the {MAX_HEADER} that are "
            f"read; it is damaged, or its dtype has too many fields"
        )
    return 8 + width + length


def parse_numpy_header(head: bytes, url: str) -> NumpyHeader:
    """Return the header of an ``.npy`` file that begins with ``head``.

    Raises `FormatError` if it is damaged.
    """
    size = parse_header_size(head, url)
    encoding = "utf-8" if head[6] == 3 else "latin-1"
    raw = head[8 + LENGTH_WIDTHS[head[6]] : size]
    try:
        if len(head) < size:
            raise ValueError(f"{len(head)} of {size} bytes")
        header = ast.literal_eval(raw.decode(encoding).strip(" \0\n"))
        if not isinstance(header, dict) or set(header) != HEADER_KEYS:
            raise ValueError(f"its keys are not {sorted(HEADER_KEYS)}")
        shape, order = header["shape"], header["fortran_order"]
        if not isinstance(shape, tuple) or not isinstance(order, bool):
            raise ValueError(f"shape {shape!r:.100}, fortran_order {order!r:.100}")
        dtype = np.lib.format.descr_to_dtype(header["descr"])
    except (
        ArithmeticError,
        AttributeError,
        IndexError,
        KeyError,
        MemoryError,
        RecursionError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        raise make_damage_error(f"{url}: its header {raw[:100]!r} is invalid ({error})") from error
    return NumpyHeader(dtype, shape, "F" if order else "C", size)


# ---------------------------------------------------------------------- native readers


def _open_npy(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    array = np.load(target(), mmap_mode="r")
    return make_stored_reader(lambda region: array)


def _open_npz(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    # NumPy does not close the file if the archive is damaged
    file = closing.enter_context(io.FileIO(target()))
    arrays = closing.enter_context(np.load(file))
    return make_stored_reader(lambda region: arrays[region.path])


NPY = Parser("npy", (SUFFIX,), detect, read, natives=(NativeReader("numpy", _open_npy),))
NPZ = Parser(
    "npz", (".npz",), detect_archive, read_archive, natives=(NativeReader("numpy", _open_npz),)
)


# ---------------------------------------------------------------------- safetensors

LENGTH_WIDTH = 8
"""Size in bytes of the length of the header."""
MAX_JSON_HEADER = 100_000_000
"""Maximum size in bytes of the header, as in the reference implementation."""
METADATA_KEY = "__metadata__"
DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
}
"""Dtypes by name, for the types that numpy supports."""


def detect_tensors(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a safetensors file."""
    length = int.from_bytes(head[:LENGTH_WIDTH], "little")
    json_start = head[LENGTH_WIDTH : LENGTH_WIDTH + 2]
    return 2 <= length <= MAX_JSON_HEADER and json_start in (b'{"', b"{}")


def read_tensors(
    source: SourceFile, group: str | None = None, skip: Iterable[str] = ()
) -> ManifestGroup:
    """Read the header of a safetensors file; unreadable tensors are in `problems`.

    Raises `FormatError` if the header is damaged or truncated, and `UnsupportedError` if the server
    does not support ranges.
    """
    header, begin = _read_header(source)
    attributes = header.pop(METADATA_KEY, {})
    if not isinstance(attributes, Mapping):
        raise make_damage_error(f"{source.url}: {METADATA_KEY} is {attributes!r:.100}")
    skipped = frozenset(skip)
    shared = _find_shared_bytes(header)
    variables, problems = {}, dict[str, VirtualdsError]()
    for name, tensor in header.items():
        if name in skipped:
            continue
        try:
            if name in shared:
                raise make_damage_error(f"it shares bytes with tensor {shared[name]!r}")
            data = _build_tensor(tensor, begin, source)
        except VirtualdsError as error:
            error.locate(f"variable {name!r}", source.url)
            problems[name] = error
            data = ManifestArray.unreadable((), "V1", f"{error}")
        variables[name] = build_variable(data, number_axes(name, data.ndim), source)
    return ManifestGroup(variables, dict(attributes), problems=problems).group(group)


def _read_header(source: SourceFile) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, and the offset of its tensors."""
    url, size = source.url, source.size
    if size is None:
        raise UnsupportedError(f"{url}: the server sends no parts of it; copy it to local disk")
    store = find_store(url)
    [head] = store.get_ranges(source, [(0, min(size, FIRST_PAGES * PAGE_SIZE))])
    begin = LENGTH_WIDTH + int.from_bytes(head[:LENGTH_WIDTH], "little")
    if begin > size or begin > LENGTH_WIDTH + MAX_JSON_HEADER:
        raise FormatError(
            f"{url}: it has {size} bytes, and a header of {begin}; it is truncated or damaged, "
            f"fetch it again"
        )
    if begin > len(head):
        head += store.get_ranges(source, [(len(head), begin - len(head))])[0]
    header = parse_json(bytes(head[LENGTH_WIDTH:begin]), url)
    if not isinstance(header, dict):
        raise make_damage_error(f"{url}: its header is not a JSON object")
    return header, begin


def _find_shared_bytes(header: Mapping[str, Any]) -> dict[str, str]:
    """Return the tensors that share bytes with another tensor, by name, with the name of the other.

    The format forbids this (README of safetensors, "Format"), so the offsets of one are wrong.
    """
    spans = []
    for name, tensor in header.items():
        offsets = tensor.get("data_offsets") if isinstance(tensor, Mapping) else None
        if isinstance(offsets, list) and [type(n) for n in offsets] == [int, int]:
            spans.append((*offsets, name))
    shared: dict[str, str] = {}
    last = (0, 0, "")
    for start, stop, name in sorted(span for span in spans if span[0] < span[1]):
        if start < last[1]:
            shared[name], shared[last[2]] = last[2], name
        last = max(last, (start, stop, name), key=lambda span: span[1])
    return shared


def _build_tensor(tensor: Any, begin: int, source: SourceFile) -> ManifestArray:
    try:
        type_name, shape, (start, stop) = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
        is_valid = isinstance(type_name, str) and isinstance(shape, list) and 0 <= start <= stop
    except (KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid or type(start) is not int or type(stop) is not int:
        raise make_damage_error(f"it is described as {tensor!r:.200}")
    if type_name not in DTYPES:
        raise UnsupportedError(
            f"numpy has no type for {type_name}; leave the tensor out with drop_variables, or "
            f"open its bytes with virtualds.open_flat(url, offset={begin + start}, ...) as integers"
        )
    data = build_flat_array(source, begin + start, np.dtype(DTYPES[type_name]), shape)
    if data.nbytes != stop - start:
        raise make_damage_error(
            f"it has {stop - start} bytes, and {type_name} of {shape} takes {data.nbytes}"
        )
    return data


def _open_safetensors(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    from safetensors import safe_open

    file = closing.enter_context(safe_open(target(), "np"))
    return make_stored_reader(lambda region: file.get_tensor(region.path))


SAFETENSORS = Parser(
    "safetensors",
    (".safetensors",),
    detect_tensors,
    read_tensors,
    natives=(NativeReader("safetensors", _open_safetensors),),
)
