"""Bytes and open files of this process, as files with urls of their own.

The access options of such a file hold the object: it lives as long as references to it do, and a
reference set that names such a url, which somebody else may have written, reaches nothing.
"""

from __future__ import annotations

import io
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from virtualds.errors import UnsupportedError
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores.store import ListedFile, Range, RequestLimits, Store, StoreError
from virtualds.urls import HELD

OBJECT = "held"
"""The access option that holds the object of a file."""

REMEDY = (
    "write the bytes to a file and open that, point the references at a copy with "
    "ds.virtual.rename_paths, or load the values (ds.virtual.load())"
)


class HeldBytes:
    """A copy of bytes in memory; ``what`` the user gave is the end of their url."""

    def __init__(self, data: bytes | bytearray | memoryview, what: str = "bytes") -> None:
        self._data = bytes(data)
        self.name, self.size = _make_url(what), len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeldBytes) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __dask_tokenize__(self) -> str:
        return self.name


class HeldFile:
    """An open binary file of Python, which one thread at a time reads, and which nobody closes."""

    def __init__(self, file: Any) -> None:
        self._file, self._lock = file, threading.Lock()
        self.name = _make_url(type(file).__name__)
        place = file.tell()
        self.size = int(file.seek(0, io.SEEK_END))
        file.seek(place)

    def read(self, offset: int, length: int) -> bytes:
        """Return a range, shorter where the file ends."""
        with self._lock:
            try:
                self._file.seek(offset)
                parts = []
                # a raw file may give fewer bytes than asked for
                while length > 0 and (part := self._file.read(length)):
                    parts.append(bytes(part))
                    length -= len(part)
            except ValueError as error:
                raise StoreError(
                    f"the open file cannot be read any more ({error}); keep it open as long as "
                    f"the dataset is used, or open the file by its path"
                ) from error
        return b"".join(parts)

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            f"{self.name}: an open file cannot be sent to another process; open it by its path "
            f"or url, or give its bytes"
        )

    def __dask_tokenize__(self) -> str:
        return self.name


HeldObject = HeldBytes | HeldFile
"""The bytes behind a url of this process: their name and size, and ranges of them."""


def _make_url(what: str) -> str:
    return f"{HELD}://{secrets.token_hex(6)}/{what}"


def make_options(held: HeldObject) -> StorageOptions:
    """Return the access options with which the url of an object is opened."""
    return StorageOptions({OBJECT: held})


class HeldStore(Store):
    """The objects of this process, each reached through its own access options."""

    refusal = "virtualds does not write into objects; give a path or url"

    reach = RequestLimits(gap=0, run=2**23, at_once=0)

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        try:
            held = _find_object(file.url, file.options)
        except FileNotFoundError as error:
            raise StoreError(str(error)) from error
        found = []
        for item, (offset, length) in enumerate(ranges):
            data = held.read(offset, length)
            if len(data) != length:
                raise StoreError(f"it has {held.size} bytes, not {offset + length}", item)
            found.append(data)
        return found

    def describe(self, url: str, options: StorageOptions | None) -> SourceFile:
        return SourceFile(url, _find_object(url, options).size, None, None, options)

    def read_head(
        self, url: str, options: StorageOptions | None, length: int
    ) -> tuple[SourceFile, bytes]:
        return self.describe(url, options), _find_object(url, options).read(0, length)

    def list_files(self, url: str, options: StorageOptions | None) -> list[ListedFile]:
        # an object is no folder
        return []


def _find_object(url: str, options: Mapping[str, Any] | None) -> HeldObject:
    """Return the object of a url, which its access options hold."""
    held: HeldObject | None = (options or {}).get(OBJECT)
    if held is None or held.name != url:
        raise FileNotFoundError(
            f"{url}: this url means an object of the process that opened it, and leads nowhere "
            f"else; {REMEDY}"
        )
    return held


def demand_lasting(files: Iterable[SourceFile], target: str) -> None:
    """Refuse references to bytes that exist in this process alone."""
    for file in files:
        if HELD in file.url and file.url.rpartition("::")[2].startswith(f"{HELD}://"):
            raise UnsupportedError(
                f"{target}: it would refer to {file.url}, bytes that exist only in the memory of "
                f"this process, so nobody could read the set later; {REMEDY}"
            )
