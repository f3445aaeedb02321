"""What a codec is: it takes the bytes of one chunk one step back towards its values."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, Self

import numpy as np

from virtualds.bounds import Buffer
from virtualds.codecs.libraries import Bytes
from virtualds.errors import UnsupportedError

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


Order = Literal["<", ">", "="]
"""Of the bytes of a number."""


ONLY_VIRTUALDS = "virtualds_"
"""What ids begin with that no other reader of Zarr v2 knows."""


NUMCODECS, OURS = "numcodecs.", "virtualds."
"""What names in Zarr v3 begin with that come from Zarr v2, and those that only virtualds knows."""


Kind = Literal["zarr_v2", "zarr_v3", "hdf5", "tiff", "tiff_predictor"]
"""Who names codecs."""


Make = Callable[..., "Codec"]
"""Makes a codec of what stands beside its name; `Name` says what it takes."""


class Name(NamedTuple):
    """What one kind of format calls a codec.

    Parameters
    ----------
    kind : str
        Who calls it so.
    name : str or int
        The id or name in Zarr; the number of the HDF5 filter, the TIFF compression or predictor.
    make : callable
        Makes the codec of what stands beside the name:

        - ``zarr_v2``: the configuration;
        - ``zarr_v3``: the configuration, the data type of what is encoded, and the shape of chunks,
          None where they have several;
        - ``hdf5``: the client data, and the bytes per element;
        - ``tiff``: the page, as tifffile tells it;
        - ``tiff_predictor``: the rows, pixels and samples of a chunk, and their data type.
    """

    kind: Kind
    name: str | int
    make: Make


class CodecError(Exception):
    """Bytes that do not decode; the reader adds which chunk of which file they are."""


class Codec(ABC):
    """One step of a codec pipeline, with the parameters that decoding needs.

    Parameters that only matter when writing (a compression level) are kept, so that metadata can
    be written again, and are left out of comparisons.

    A codec says itself what others call it: the class variables are its names, and beside each
    name is a method that takes the configuration which stands there.
    """

    __slots__ = ()

    zarr_v2_id: ClassVar[str]
    zarr_v3_name: ClassVar[str | None] = None
    """Its name in Zarr v3, where that is not the one of Zarr v2 behind a prefix."""
    registered_name: ClassVar[str | None] = None
    """Its name in Zarr v3 with a configuration of its own there, which `from_registry` takes."""
    only_virtualds: ClassVar[bool] = False
    """Whether ``zarr_v2_id`` is a name that no other reader of Zarr knows."""
    hdf5_filter: ClassVar[int | None] = None
    """Its HDF5 filter identification value."""
    tiff_compressions: ClassVar[tuple[int, ...]] = ()
    """Its numbers in the TIFF tag Compression."""
    is_filter: ClassVar[bool] = False
    """Whether Zarr v2 lists it among the filters even where it comes last."""
    serialises: ClassVar[bool] = False
    """Whether Zarr v3 counts it among the codecs that make bytes of an array."""

    @classmethod
    def names(cls) -> Iterator[Name]:
        """Yield what others call it, and what makes it of the configuration that they write."""
        yield Name("zarr_v2", cls.zarr_v2_id, cls.from_zarr_v2)
        yield Name("zarr_v3", cls.prefixed_name(), cls.from_zarr_v3)
        if cls.zarr_v3_name is not None:
            yield Name("zarr_v3", cls.zarr_v3_name, cls.from_zarr_v3)
        if cls.registered_name is not None:
            yield Name("zarr_v3", cls.registered_name, cls.from_registry)
        if cls.hdf5_filter is not None:
            yield Name("hdf5", cls.hdf5_filter, cls.from_hdf5)
        yield from (Name("tiff", number, cls.from_tiff) for number in cls.tiff_compressions)

    @classmethod
    def brought(cls, kind: Kind, name: str | int) -> Make | None:
        """Return what makes it under a name that another package brings, None if none does."""
        return None

    @classmethod
    def prefixed_name(cls) -> str:
        """Return its name in Zarr v3 that is made of the one in Zarr v2.

        What Zarr v2 calls by a name of numcodecs has that name behind ``numcodecs.`` in Zarr v3,
        and what only virtualds decodes stands behind ``virtualds.``, which no other reader takes
        for something else.
        """
        if cls.only_virtualds:
            return OURS + cls.zarr_v2_id.removeprefix(ONLY_VIRTUALDS)
        return NUMCODECS + cls.zarr_v2_id

    @classmethod
    @abstractmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        """Build the codec from its Zarr v2 configuration."""

    @abstractmethod
    def to_zarr_v2(self) -> dict[str, Any]:
        """Return the Zarr v2 configuration, ``id`` included."""

    @classmethod
    def from_zarr_v3(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build the codec from its Zarr v3 configuration; what it encodes is of ``dtype``."""
        return cls.from_zarr_v2({**config, "id": cls.zarr_v2_id})

    @classmethod
    def from_registry(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build the codec from the configuration that stands beside its ``registered_name``."""
        raise NotImplementedError(f"{cls.__name__} has a registered name and no from_registry")

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Codec:
        """Build the codec from the client data of its HDF5 filter, by default of none."""
        return cls.from_zarr_v2({"id": cls.zarr_v2_id})

    @classmethod
    def from_tiff(cls, page: Any) -> Codec:
        """Build the codec from a page of tifffile, by default of nothing that the page says."""
        return cls.from_zarr_v2({"id": cls.zarr_v2_id})

    def to_zarr_v3(self, itemsize: int) -> dict[str, Any]:
        """Return a Zarr v3 name and configuration; elements have ``itemsize`` bytes."""
        config = self.to_zarr_v2()
        del config["id"]
        return {"name": self.zarr_v3_name or self.prefixed_name(), "configuration": config}

    def in_chain(self, itemsize: int) -> dict[str, Any]:
        """Return its entry in a chain of Zarr v3, where data type and byte order are known."""
        return self.in_order("<").to_zarr_v3(itemsize)

    @property
    def maps_arrays(self) -> bool:
        """Whether Zarr v3 counts it among the codecs that make arrays of arrays."""
        return False

    @property
    def heeds_memory(self) -> bool:
        """Whether those who know it take elements in the order of memory, not in that of axes."""
        return self.maps_arrays or self.serialises

    def filtered(self, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        """Return the type of what it makes of an array; None if it takes that for another type."""
        return dtype

    def in_order(self, order: Order) -> Self:
        """Return the codec that takes and makes numbers of one byte order."""
        return self

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

    @property
    def fills(self) -> bool:
        """Whether `decode_into` makes no memory of its own."""
        return False

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        """Write the decoded bytes into contiguous memory that they fill.

        Raises
        ------
        CodecError
            The bytes are damaged, or decode to another length.
        """
        found = self.decode(data, out.size)
        check_length(self, len(found), out.size)
        out[:] = np.frombuffer(found, np.uint8)


@dataclass(frozen=True)
class SelfDescribing(Codec):
    """A codec whose streams say all that decoding needs to know.

    Parameters
    ----------
    config : str
        The whole configuration, as JSON; only encoding needs it.
    """

    config: str = field(compare=False)

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        """Keep the configuration for those who encode."""
        return cls(json.dumps(dict(config), sort_keys=True))

    def to_zarr_v2(self) -> dict[str, Any]:
        """Return the configuration that was kept."""
        return dict(json.loads(self.config))


class OfOneType(Codec):
    """A codec of numbers of one type, which takes them in the order of the axes."""

    dtype: str

    @property
    def heeds_memory(self) -> bool:
        """It takes elements in the order of the axes."""
        return False

    def filtered(self, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        """Return its own type, the only one that it takes."""
        return dtype if dtype == np.dtype(self.dtype) else None


@dataclass(frozen=True)
class Shaped(OfOneType):
    """A codec of arrays that Zarr v3 registers, and whose streams have the shape of the chunk.

    Where a chunk has other axes than the array shows, its name in the registry does not say what
    it decodes to. There, and in Zarr v2, it has a name of its own, with shape and type.

    Parameters
    ----------
    shape : tuple of int
        Of a chunk as it is encoded, in C order.
    dtype : str
        Of its numbers.
    config : str
        Its configuration in the registry, as JSON.

    Raises
    ------
    ValueError
        It does not encode such chunks.
    """

    shape: tuple[int, ...]
    dtype: str
    config: str = field(compare=False)

    only_virtualds: ClassVar[bool] = True
    serialises: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if any(n < 1 for n in self.shape):
            raise ValueError(f"{self.registered_name}: chunks of {self.shape} have no elements")

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        """Build it for chunks of the shape and type that stand beside its configuration."""
        shape = tuple(map(int, config["shape"]))
        return cls.from_registry(config["configuration"], np.dtype(config["dtype"]), shape)

    @classmethod
    def from_registry(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build it from its configuration in the registry, for chunks of a type and shape."""
        if shape is None:
            raise UnsupportedError(
                f"codec {cls.registered_name!r}: it needs chunks of one shape, on a regular grid; "
                f"open the data with a library that knows it"
            )
        return cls(shape, dtype.newbyteorder("<").str, json.dumps(dict(config), sort_keys=True))

    def to_zarr_v2(self) -> dict[str, Any]:
        """Return shape and type too."""
        what = {"shape": list(self.shape), "dtype": self.dtype}
        return {"id": self.zarr_v2_id, **what, "configuration": self.parameters}

    def in_chain(self, itemsize: int) -> dict[str, Any]:
        """Return its entry as the registry has it, of chunks of its shape."""
        return {"name": self.registered_name, "configuration": self.parameters}

    @property
    def parameters(self) -> dict[str, Any]:
        """Its configuration in the registry."""
        return dict(json.loads(self.config))


def check_length(codec: Codec, found: int, expected: int | None) -> None:
    """Refuse a result of another length than expected."""
    if expected is not None and found != expected:
        raise CodecError(f"{codec.zarr_v2_id}: decoded to {found} bytes where {expected} belong")


def import_package(name: str, what: str, extra: str = "filters", use: str = "decoding it") -> Any:
    """Return a package that an extra brings.

    Raises
    ------
    UnsupportedError
        It is not installed; ``what`` says in the message which codec or file needs it, and ``use``
        what for.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"{what}: {use} needs {name}; pip install 'virtualds[{extra}]'"
        ) from error


@dataclass(frozen=True)
class Unreadable(Codec):
    """A step that cannot be taken back.

    Parameters
    ----------
    reason : str
        Why, and what to do.
    """

    reason: str

    zarr_v2_id: ClassVar[str] = "unreadable"

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls(str(config["reason"]))

    def to_zarr_v2(self) -> NoReturn:
        raise UnsupportedError(self.reason)

    def decode(self, data: Buffer, nbytes: int | None) -> NoReturn:
        raise UnsupportedError(self.reason)
