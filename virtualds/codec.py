"""What a codec is: it takes the bytes of one chunk one step back towards its values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Self

from virtualds.errors import UnsupportedError

Buffer = bytes | bytearray | memoryview
NO_FILTERS: dict[str, Any] = {
    "zlib": False,
    "szip": False,
    "zstd": False,
    "bzip2": False,
    "blosc": False,
    "shuffle": False,
    "complevel": 0,
    "fletcher32": False,
}
"""What xarray's netCDF4 backend says of a variable without filters."""


class CodecError(Exception):
    """Bytes that do not decode; the reader adds which chunk of which file they are."""


class Codec(ABC):
    """One step of a codec pipeline, with the parameters that decoding needs.

    Parameters that only matter when writing (a compression level) are kept, so that metadata can
    be written again, and are left out of comparisons.
    """

    __slots__ = ()

    zarr_v2_id: ClassVar[str]
    only_virtualds: ClassVar[bool] = False
    """Whether ``zarr_v2_id`` is a name that no other reader of Zarr knows."""

    @classmethod
    @abstractmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        """Build the codec from its Zarr v2 configuration."""

    @abstractmethod
    def to_zarr_v2(self) -> dict[str, Any]:
        """Return the Zarr v2 configuration, ``id`` included."""

    @property
    def encoding(self) -> dict[str, Any]:
        """What xarray's netCDF backends put into ``Variable.encoding`` for it."""
        return {}

    def encoded_size(self, nbytes: int) -> int | None:
        """Return how long ``nbytes`` are once encoded, or None where that depends on the data."""
        return None

    @abstractmethod
    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        """Return the decoded bytes, ``nbytes`` of them where that is known.

        Raises
        ------
        CodecError
            The bytes are damaged, or decode to another length.
        """


def check_length(codec: Codec, found: int, expected: int | None) -> None:
    """Refuse a result of another length than expected."""
    if expected is not None and found != expected:
        raise CodecError(f"{codec.zarr_v2_id}: decoded to {found} bytes where {expected} belong")


def needed_package(name: str, what: str) -> Any:
    """Return a package that the extra ``filters`` brings.

    Raises
    ------
    UnsupportedError
        It is not installed; ``what`` says in the message which codec needs it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"{what}: decoding it needs {name}; pip install 'virtualds[filters]'"
        ) from error
