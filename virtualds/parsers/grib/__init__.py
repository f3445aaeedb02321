"""GRIB files: messages as chunks, decoded by ecCodes.

Messages of one parameter make one variable, with the coordinates that cfgrib gives it: number,
time, step and level, where there are several. Messages that differ in type of level, grid or kind
of interval are in different groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.parser import CannotError, NativeReader, NativeRegion, Parser, ReadNative
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.extras import import_eccodes
from virtualds.parsers.grib.messages import scan_messages
from virtualds.parsers.grib.sections import find_message
from virtualds.parsers.grib.variables import FoundFields
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.archive import is_tar, is_zip
from virtualds.stores.block_cache import PAGE
from virtualds.stores.scan_cache import describe_damage, fetch_ahead, open_source
from virtualds.urls import scheme_of

HEADER = PAGE
"""Bytes that are fetched from the beginning of each message: one page."""
HEADERS_AT_ONCE = 256
"""Headers that are fetched together."""


def detect(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` is GRIB, edition 1 or 2.

    Headings of bulletins, and what else archives put there, may lie before the first message.
    """
    if head[:4] == b"GRIB":
        return head[7:8] in (b"\1", b"\2")
    return find_message(head) > 0 and not (is_zip(head) or is_tar(head))


def read(
    source: SourceFile,
    group: str | None = None,
    skip: Iterable[str] = (),
    *,
    below: bool = False,
    filter_by_keys: Mapping[str, Any] | None = None,
) -> ManifestGroup:
    """Read the structure of a file, or of one group of its messages.

    Parameters
    ----------
    source : SourceFile
        The file with its fingerprint.
    group : str, optional
        The group to read, where messages are of several kinds.
    skip : iterable of str
        Names of variables to leave out.
    below : bool
        Whether messages of all kinds are read, each kind as a group, unless there is only one.
    filter_by_keys : dict, optional
        Values of ecCodes' keys that messages must have, as in cfgrib; or lists of values.

    Raises
    ------
    UnsupportedError
        ecCodes is not installed, or ``group`` is missing where there are several.
    FormatError
        The file is damaged or truncated.
    FileNotFoundError
        There is no such group.
    ValueError
        No message has these keys.
    """
    found = scan(source).select(filter_by_keys)
    return (found.read_tree if below else found.read)(group, skip)


def scan(source: SourceFile) -> FoundFields:
    """Return the fields of a file, and what is damaged.

    Raises
    ------
    UnsupportedError
        ecCodes is not installed, or the size of the file is unknown.
    FormatError
        No message is sound.
    """
    eccodes = import_eccodes(source.url, "reading a GRIB file")
    if source.size is None:
        raise UnsupportedError(f"{source.url}: the server does not send its size; copy it")
    _fetch_headers(source)
    damaged: dict[str, VirtualdsError] = {}
    with (
        describe_damage(source, "GRIB", (eccodes.CodesInternalError,)),
        open_source(source) as file,
    ):
        found = list(scan_messages(file, source.size, eccodes, damaged))
    for error in damaged.values():
        error.locate_file(source.url)
    if not found:
        raise next(iter(damaged.values()), _empty_error(source.url))
    return FoundFields(source, found, eccodes, damaged)


def _empty_error(url: str) -> FormatError:
    return FormatError(f"{url}: it holds no GRIB message; the file is damaged, fetch it again")


def _fetch_headers(source: SourceFile) -> None:
    """Fetch the headers of a remote file together, if an inventory says where they are.

    An inventory of wgrib2 lies beside the file: a line for each message, with its offset after the
    first colon. A wrong inventory costs bytes, nothing else.
    """
    if scheme_of(source.url) == "file":
        return
    text = ""
    with suppress(FileNotFoundError, PermissionError):
        text = _fetch_inventory(f"{source.url}.idx", source.options)
    fields = (line.split(":", 2) for line in text.splitlines())
    offsets = sorted({int(f[1]) for f in fields if len(f) == 3 and f[1].isdigit()})
    size = source.size or 0
    ranges = [(offset, min(HEADER, size - offset)) for offset in offsets if offset < size]
    for first in range(0, len(ranges), HEADERS_AT_ONCE):
        fetch_ahead({source: ranges[first : first + HEADERS_AT_ONCE]})


def _fetch_inventory(url: str, options: StorageOptions | None) -> str:
    return find_store(url).read_all(url, options).decode("ascii", "replace")


def _open_cfgrib(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    """Open the datasets that cfgrib makes of the messages of a file."""
    import cfgrib  # type: ignore[import-untyped]

    made = cfgrib.open_datasets(target(), backend_kwargs={"indexpath": "", "errors": "raise"})
    datasets = [closing.enter_context(dataset) for dataset in made]

    def read_variable(wanted: NativeRegion) -> Any:
        # the codec undoes a message's packing, so stored values are decoded values
        named = (dataset.variables.get(wanted.variable) for dataset in datasets)
        # open_datasets, unlike cfgrib's engine for xarray, drops axes of length 1
        short = [axis for axis, length in enumerate(wanted.shape) if length == 1]
        shape = tuple(length for length in wanted.shape if length != 1)
        found = [v for v in named if v is not None and v.shape == shape]
        if len(found) != 1:
            raise CannotError(
                f"it makes {len(found)} variables {wanted.variable!r} of shape {wanted.shape} of "
                f"the file"
            )
        region = (part for axis, part in enumerate(wanted.region) if axis not in short)
        return np.expand_dims(found[0][tuple(region)].values, short)

    return read_variable


PARSER = Parser(
    "grib",
    (".grib", ".grib1", ".grib2", ".grb", ".grb2"),
    detect,
    read,
    takes=("below",),
    options=("filter_by_keys",),
    natives=(NativeReader("cfgrib", _open_cfgrib),),
)
