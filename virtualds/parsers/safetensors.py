"""Safetensors files: a header in JSON, and one tensor after the other.

Written after the format's description (huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, build_flat_array, build_flat_variable, number_axes
from virtualds.arrays.parser import NativeReader, Parser, ReadNative, stored_values
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.json_values import parse_json
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.block_cache import FIRST_PAGES, PAGE

WIDTH = 8
"""Bytes of the length of the header."""
LONGEST = 100_000_000
"""Bytes of the longest header: the limit of the format's own library."""
METADATA = "__metadata__"
TYPES = {
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
"""Types that numpy has."""


def detect(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` is a safetensors file."""
    length = int.from_bytes(head[:WIDTH], "little")
    begins = head[WIDTH : WIDTH + 2]
    return 2 <= length <= LONGEST and begins in (b'{"', b"{}")


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the header of a file: every tensor is a variable, or one of the `problems`.

    Raises
    ------
    FormatError
        The header is damaged or truncated.
    UnsupportedError
        The server sends no parts of the file.
    """
    header, begin = _read_header(source)
    attributes = header.pop(METADATA, {})
    if not isinstance(attributes, Mapping):
        raise FormatError(
            f"{source.url}: {METADATA} is {attributes!r:.100}; the file is damaged, fetch it again"
        )
    skipped = frozenset(skip)
    shared = _find_sharing(header)
    variables, problems = {}, dict[str, VirtualdsError]()
    for name, tensor in header.items():
        if name in skipped:
            continue
        try:
            if name in shared:
                raise FormatError(
                    f"its bytes are those of tensor {shared[name]!r} too; the file is damaged, "
                    f"fetch it again"
                )
            data = _build_array(tensor, begin, source)
        except VirtualdsError as error:
            error.locate(f"variable {name!r}", source.url)
            problems[name] = error
            data = ManifestArray.unreadable((), "V1", f"{error}")
        variables[name] = build_flat_variable(data, number_axes(name, data.ndim), source)
    return ManifestGroup(variables, dict(attributes), problems=problems).group(group)


def _read_header(source: SourceFile) -> tuple[dict[str, Any], int]:
    """Return the header of a file, and where its tensors begin."""
    url, size = source.url, source.size
    if size is None:
        raise UnsupportedError(f"{url}: the server sends no parts of it; copy it to local disk")
    store = find_store(url)
    [head] = store.get_ranges(source, [(0, min(size, FIRST_PAGES * PAGE))])
    begin = WIDTH + int.from_bytes(head[:WIDTH], "little")
    if begin > size or begin > WIDTH + LONGEST:
        raise FormatError(
            f"{url}: it has {size} bytes, and a header of {begin}; it is truncated or damaged, "
            f"fetch it again"
        )
    if begin > len(head):
        head += store.get_ranges(source, [(len(head), begin - len(head))])[0]
    found = parse_json(bytes(head[WIDTH:begin]), url)
    if not isinstance(found, dict):
        raise FormatError(
            f"{url}: its header is not a JSON object; the file is damaged, fetch it again"
        )
    return found, begin


def _find_sharing(header: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of tensors that share bytes, each with the name of the other one.

    The format forbids it (README of safetensors, "Format"): the offsets of one are wrong.
    """
    spans = []
    for name, tensor in header.items():
        offsets = tensor.get("data_offsets") if isinstance(tensor, Mapping) else None
        if isinstance(offsets, list) and [type(n) for n in offsets] == [int, int]:
            spans.append((*offsets, name))
    found: dict[str, str] = {}
    last = (0, 0, "")
    for start, stop, name in sorted(span for span in spans if span[0] < span[1]):
        if start < last[1]:
            found[name], found[last[2]] = last[2], name
        last = max(last, (start, stop, name), key=lambda span: span[1])
    return found


def _build_array(tensor: Any, begin: int, source: SourceFile) -> ManifestArray:
    try:
        kind, shape, (start, stop) = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
        is_sound = isinstance(kind, str) and isinstance(shape, list) and 0 <= start <= stop
    except (KeyError, TypeError, ValueError):
        is_sound = False
    if not is_sound or type(start) is not int or type(stop) is not int:
        raise FormatError(
            f"it is described as {tensor!r:.200}; the file is damaged, fetch it again"
        )
    if kind not in TYPES:
        raise UnsupportedError(
            f"numpy has no type for {kind}; leave the tensor out with drop_variables, or "
            f"open its bytes with virtualds.open_flat(url, offset={begin + start}, ...) as integers"
        )
    data = build_flat_array(source, begin + start, np.dtype(TYPES[kind]), shape)
    if data.nbytes != stop - start:
        raise FormatError(
            f"it has {stop - start} bytes, and {kind} of {shape} takes {data.nbytes}; the file is "
            f"damaged, fetch it again"
        )
    return data


def _open_safetensors(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    from safetensors import safe_open

    file = closing.enter_context(safe_open(target(), "np"))
    return stored_values(lambda wanted: file.get_tensor(wanted.path))


PARSER = Parser(
    "safetensors",
    (".safetensors",),
    detect,
    read,
    natives=(NativeReader("safetensors", _open_safetensors),),
)
