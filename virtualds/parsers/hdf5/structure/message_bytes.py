"""The bytes of one message, read without passing their end.

Parsers of messages are functions of bytes: they know no file, so callers name it (`blame_file`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from virtualds.parsers.hdf5.structure.file_bytes import FileBytes

PADDING = 7
"""Most bytes behind a message: headers of version 1 fill messages up to 8 bytes (IV.A.1.a)."""


Options = ParamSpec("Options")
Parsed = TypeVar("Parsed")


class MessageError(ValueError):
    """A message contradicts itself, or is cut short."""


class UnknownFormError(ValueError):
    """A message has a form that virtualds does not know."""


def read_bytes(data: bytes, place: int, length: int) -> bytes:
    """Return exactly the bytes from a place on.

    Raises
    ------
    MessageError
        The message ends before.
    """
    if place + length > len(data):
        raise MessageError(f"a message of {len(data)} bytes needs {place + length}")
    return data[place : place + length]


def read_uint(data: bytes, place: int, size: int) -> int:
    """Return the little-endian unsigned integer at a place."""
    return int.from_bytes(read_bytes(data, place, size), "little")


def read_uints(data: bytes, place: int, size: int, count: int) -> tuple[int, ...]:
    """Return the unsigned integers that follow each other from a place on."""
    raw = read_bytes(data, place, size * count)
    return tuple(
        int.from_bytes(raw[at : at + size], "little") for at in range(0, size * count, size)
    )


def read_address(data: bytes, place: int, size: int) -> int | None:
    """Return the address at a place; all bits set mean that it is undefined (II.A)."""
    address = read_uint(data, place, size)
    return None if address == (1 << 8 * size) - 1 else address


def demand_end(data: bytes, stop: int) -> None:
    """Refuse a message with more bytes than its form explains.

    Raises
    ------
    MessageError
        It is cut short.
    UnknownFormError
        More than padding follows.
    """
    if stop > len(data):
        raise MessageError(f"a message of {len(data)} bytes needs {stop}")
    if stop + PADDING < len(data):
        raise UnknownFormError(f"a message with {len(data) - stop} bytes more than it needs")


def cache_by_bytes(
    most: int,
) -> Callable[
    [Callable[Concatenate[bytes, Options], Parsed]], Callable[Concatenate[bytes, Options], Parsed]
]:
    """Return a decorator of parsers: files repeat each other's messages, so results are kept.

    Nothing is kept of the file: bytes that know where they lie are taken for plain ones.
    """

    def decorate(
        parse: Callable[Concatenate[bytes, Options], Parsed],
    ) -> Callable[Concatenate[bytes, Options], Parsed]:
        known = lru_cache(most)(parse)

        @wraps(parse)
        def find(data: bytes, /, *args: Options.args, **kwargs: Options.kwargs) -> Parsed:
            return known(bytes(data), *args, **kwargs)  # type: ignore[arg-type]

        return find

    return decorate


class blame_file:
    """Say in which file a message is damaged, or of an unknown form.

    Raises
    ------
    FormatError
        A message is damaged.
    UnsupportedError
        A message has an unknown form.
    """

    # a class, since generators cost several times as much, and each dataset enters many blocks
    def __init__(self, file: FileBytes) -> None:
        self.file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, MessageError):
            self.file.refuse(str(error))
        if isinstance(error, UnknownFormError):
            self.file.decline(str(error))
