"""The base class of codecs: one step of decoding a chunk."""

from __future__ import annotations

import json
import lzma
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, Self

import numpy as np

from virtualds.errors import UnsupportedError, VirtualdsError
from virtualds.streams import Buffer, Bytes

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
"""The encoding of a variable without filters in xarray's netCDF4 backend."""

Order = Literal["<", ">", "="]
"""Byte order of a number."""

PRIVATE_PREFIX = "virtualds_"
"""Prefix of Zarr v2 ids that only virtualds uses."""

NUMCODECS_PREFIX, VIRTUALDS_PREFIX = "numcodecs.", "virtualds."
"""Prefixes of Zarr v3 names: for ids of Zarr v2, and for codecs that only virtualds uses."""

CONFIG_KEY = "key"
"""Key in the metadata of a dataclass field for its name in the configuration."""

Json = str
"""A JSON value as a string, so that codecs are hashable."""


def to_json(value: Any) -> Json:
    """Convert a value to a JSON string; equal values have equal strings."""
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, sort_keys=True)


READERS: dict[str, Callable[[Any], Any]] = {
    "Any": lambda value: value,
    "Json": to_json,
    "bool": bool,
    "int": int,
    "int | None": lambda value: None if value is None else int(value),
    "str": str,
    "tuple[int, ...]": lambda value: tuple(map(int, value)),
}
"""Functions that convert configuration values to field values, by the type of the field."""

WRITERS: dict[str, Callable[[Any], Any]] = {
    "Json": json.loads,
    **dict.fromkeys(("tuple[int, ...]", "tuple[int, int, int]"), list),
}
"""Functions that convert field values to JSON values, by the type of the field."""

Namespace = Literal["zarr_v2", "zarr_v3", "hdf5", "tiff", "tiff_predictor"]
"""Namespaces of codec names."""

MakeCodec = Callable[..., "Codec"]
"""A function that makes a codec from its configuration; `CodecName` describes its arguments."""


class CodecName(NamedTuple):
    """The name of a codec in one namespace.

    Parameters
    ----------
    namespace : str
        The namespace.
    name : str or int
        The id or name in Zarr; the number of the HDF5 filter, the TIFF compression or predictor.
    make : callable
        Makes the codec; its arguments are:

        - ``zarr_v2``: the configuration;
        - ``zarr_v3``: the configuration, the data type of the array, and the shape of chunks, None
          where they have several;
        - ``hdf5``: the client data, and the bytes per element;
        - ``tiff``: the page, from tifffile;
        - ``tiff_predictor``: the rows, pixels and samples of a chunk, and their data type.
    """

    namespace: Namespace
    name: str | int
    make: MakeCodec


DECODE_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    OSError,
    EOFError,
    MemoryError,
    lzma.LZMAError,
)
"""Errors of libraries for damaged bytes; a damaged length may exceed the available memory."""


class CodecError(Exception):
    """The bytes of a chunk cannot be decoded; the reader adds the file and the chunk index."""


# ---------------------------------------------------------------------- the base class


class Codec(ABC):
    """One step of a codec pipeline, with the parameters that decoding needs.

    Parameters that only affect encoding, such as a compression level, are stored so that metadata
    can be written again, and are ignored in comparisons.

    A codec is a class with class variables for its names, fields for the entries of its
    configuration in Zarr v2, and `_decode`. If its configuration has another form, it overrides a
    conversion.
    """

    __slots__ = ()

    zarr_v2_id: ClassVar[str]
    zarr_v3_name: ClassVar[str | None] = None
    """Name in Zarr v3 besides the prefixed Zarr v2 id."""
    registered_name: ClassVar[str | None] = None
    """Name in the Zarr v3 registry, whose configuration `from_registry` takes."""
    hdf5_filter: ClassVar[int | None] = None
    """HDF5 filter identification value."""
    tiff_compressions: ClassVar[tuple[int, ...]] = ()
    """Numbers in the TIFF tag Compression."""
    is_filter: ClassVar[bool] = False
    """Whether Zarr v2 metadata lists the codec as a filter even if it is the last codec."""
    is_array_to_bytes: ClassVar[bool] = False
    """Whether it is an array-to-bytes codec in Zarr v3."""
    added_bytes: ClassVar[int | None] = None
    """Number of bytes that encoding adds, or None if that depends on the data."""
    decode_errors: ClassVar[tuple[type[Exception], ...]] = (ValueError,)
    """Errors that `_decode` raises for damaged bytes."""

    @classmethod
    def names(cls) -> Iterator[CodecName]:
        """Yield the names of the codec, with their constructors."""
        yield CodecName("zarr_v2", cls.zarr_v2_id, cls.from_zarr_v2)
        yield CodecName("zarr_v3", cls.prefixed_name(), cls.from_zarr_v3)
        if cls.zarr_v3_name is not None:
            yield CodecName("zarr_v3", cls.zarr_v3_name, cls.from_zarr_v3)
        if cls.registered_name is not None:
            yield CodecName("zarr_v3", cls.registered_name, cls.from_registry)
        if cls.hdf5_filter is not None:
            yield CodecName("hdf5", cls.hdf5_filter, cls.from_hdf5)
        yield from (CodecName("tiff", number, cls.from_tiff) for number in cls.tiff_compressions)

    @classmethod
    def find_plugin(cls, namespace: Namespace, name: str | int) -> MakeCodec | None:
        """Return the constructor for the name of a plugin codec, or None if there is none."""
        return None

    @classmethod
    def prefixed_name(cls) -> str:
        """Return the Zarr v3 name made from the Zarr v2 id.

        The prefix is ``numcodecs.`` for ids of numcodecs, and ``virtualds.`` for ids that only
        virtualds uses, so that no other reader confuses them.
        """
        name = cls.zarr_v2_id.removeprefix(PRIVATE_PREFIX)
        return (NUMCODECS_PREFIX if name == cls.zarr_v2_id else VIRTUALDS_PREFIX) + name

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        """Build the codec from its Zarr v2 configuration, whose keys are the fields by default."""
        return cls(
            **{
                config_field.name: READERS[config_field.type](config[key])  # type: ignore[index]
                for key, config_field in _map_fields_by_key(cls).items()
                if key in config or config_field.default is MISSING
            }
        )

    def to_zarr_v2(self) -> dict[str, Any]:
        """Return the Zarr v2 configuration, ``id`` included."""
        entries = {"id": self.zarr_v2_id}
        for key, config_field in _map_fields_by_key(type(self)).items():
            value = getattr(self, config_field.name)
            write = WRITERS.get(config_field.type)  # type: ignore[arg-type]
            entries[key] = write(value) if write else value
        return entries

    @classmethod
    def from_zarr_v3(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build the codec from its Zarr v3 configuration; it encodes data of ``dtype``."""
        return cls.from_zarr_v2({**config, "id": cls.zarr_v2_id})

    @classmethod
    def from_registry(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build the codec from the configuration of its ``registered_name``."""
        raise NotImplementedError(f"{cls.__name__} has a registered name and no from_registry")

    @classmethod
    def from_hdf5(cls, values: Sequence[int], itemsize: int) -> Codec:
        """Build the codec from the client data of its HDF5 filter; the default ignores them."""
        return cls.from_zarr_v2({"id": cls.zarr_v2_id})

    @classmethod
    def from_tiff(cls, page: Any) -> Codec:
        """Build the codec from a page of tifffile; the default ignores the page."""
        return cls.from_zarr_v2({"id": cls.zarr_v2_id})

    def to_zarr_v3(self, itemsize: int) -> dict[str, Any]:
        """Return the Zarr v3 name and configuration for elements of ``itemsize`` bytes."""
        return {
            "name": self.zarr_v3_name or self.prefixed_name(),
            "configuration": self.configuration,
        }

    @property
    def configuration(self) -> dict[str, Any]:
        """The Zarr v2 configuration without ``id``."""
        return {key: value for key, value in self.to_zarr_v2().items() if key != "id"}

    def to_chain_entry(self, itemsize: int) -> dict[str, Any]:
        """Return the entry in the codec chain of a Zarr v3 array."""
        return self.with_byte_order("<").to_zarr_v3(itemsize)

    @property
    def is_array_to_array(self) -> bool:
        """Whether it is an array-to-array codec in Zarr v3."""
        return False

    @property
    def uses_memory_order(self) -> bool:
        """Whether other readers apply the codec in memory order rather than in axis order."""
        return self.is_array_to_array or self.is_array_to_bytes

    def get_encoded_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        """Return the dtype of an encoded array of ``dtype``, or None if that is not supported."""
        return dtype

    def with_byte_order(self, order: Order) -> Self:
        """Return the codec for numbers of a given byte order."""
        return self

    @property
    def label(self) -> str:
        """The name for error messages."""
        return self.zarr_v2_id

    @property
    def encoding(self) -> dict[str, Any]:
        """The entries that xarray's netCDF backends add to ``Variable.encoding`` for the codec."""
        return {}

    def encoded_size(self, nbytes: int) -> int | None:
        """Return the encoded size of ``nbytes`` bytes, or None if it depends on the data."""
        return None if self.added_bytes is None else nbytes + self.added_bytes

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        """Return the decoded bytes, and check their length if ``nbytes`` is given.

        Raises `CodecError` if the bytes are damaged, or decode to another length.
        """
        try:
            decoded = self._decode(data, nbytes)
        except VirtualdsError:
            raise
        except self.decode_errors as error:
            raise CodecError(f"{self.label}: {error}") from error
        check_length(self, len(decoded), nbytes)
        return decoded

    @abstractmethod
    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        """Return the decoded bytes; `decode` checks their length, and converts `decode_errors`.

        Implementations check a length that the bytes state before they allocate memory for it.
        """

    @property
    def fills_output(self) -> bool:
        """Whether `decode_into` allocates no memory for the result."""
        return False

    def decode_into(self, data: Buffer, out: Bytes) -> None:
        """Write the decoded bytes into a contiguous buffer of their exact length.

        Raises `CodecError` if the bytes are damaged, or decode to another length.
        """
        out[:] = np.frombuffer(self.decode(data, out.size), np.uint8)


@cache
def _map_fields_by_key(kind: type[Codec]) -> dict[str, Field[Any]]:
    """Return the dataclass fields of a codec by their keys in the configuration."""
    return {
        config_field.metadata.get(CONFIG_KEY, config_field.name): config_field
        for config_field in fields(kind)  # type: ignore[arg-type]
    }


@dataclass(frozen=True)
class SelfDescribingCodec(Codec):
    """A codec whose encoded bytes suffice for decoding.

    Parameters
    ----------
    config : str
        The whole configuration, as JSON; only used for encoding.
    """

    config: str = field(compare=False)

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls(to_json(config))

    def to_zarr_v2(self) -> dict[str, Any]:
        return dict(json.loads(self.config))


class SingleTypeCodec(Codec):
    """A codec for arrays of a single dtype, which encodes elements in axis order."""

    dtype: str

    uses_memory_order = False

    def get_encoded_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        """Return ``dtype`` if it is the supported one, else None."""
        return dtype if dtype == np.dtype(self.dtype) else None


@dataclass(frozen=True)
class ShapedCodec(SingleTypeCodec):
    """A registered Zarr v3 array codec whose streams contain the shape of the chunk.

    If the axes of a chunk differ from those of the array, the registered name does not determine
    the decoded shape. Then, and in Zarr v2, our own name includes shape and dtype.

    Parameters
    ----------
    shape : tuple of int
        Shape of an encoded chunk, in C order.
    dtype : str
        Dtype of its numbers.
    config : str
        The configuration in the registry, as JSON.

    Raises
    ------
    ValueError
        The codec cannot encode such chunks.
    """

    shape: tuple[int, ...]
    dtype: str
    config: Json = field(compare=False, metadata={CONFIG_KEY: "configuration"})

    is_array_to_bytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if any(n < 1 for n in self.shape):
            raise ValueError(f"{self.registered_name}: chunks of {self.shape} have no elements")

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        """Build the codec from its configuration and the shape and dtype next to it."""
        shape = tuple(map(int, config["shape"]))
        return cls.from_registry(config["configuration"], np.dtype(config["dtype"]), shape)

    @classmethod
    def from_registry(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build the codec for chunks of a dtype and shape, from its registered configuration."""
        if shape is None:
            raise UnsupportedError(
                f"codec {cls.registered_name!r}: it needs chunks of one shape, on a regular grid; "
                f"open the data with the library that wrote them"
            )
        return cls(shape, dtype.newbyteorder("<").str, to_json(config))

    def to_chain_entry(self, itemsize: int) -> dict[str, Any]:
        """Return the entry with the registered name and configuration."""
        return {"name": self.registered_name, "configuration": self.parameters}

    @property
    def parameters(self) -> dict[str, Any]:
        """The configuration in the registry."""
        return dict(json.loads(self.config))


def check_length(codec: Codec, actual: int, expected: int | None) -> None:
    """Raise a `CodecError` if decoded bytes have an unexpected length."""
    if expected is not None and actual != expected:
        raise CodecError(f"{codec.label}: decoded to {actual} bytes, not {expected}")


@dataclass(frozen=True)
class Unreadable(Codec):
    """A placeholder for a codec that virtualds lacks; decoding raises an error.

    Parameters
    ----------
    reason : str
        The message of the error: why, and what to do.
    """

    reason: str

    zarr_v2_id: ClassVar[str] = "unreadable"

    def to_zarr_v2(self) -> NoReturn:
        raise UnsupportedError(self.reason)

    def _decode(self, data: Buffer, nbytes: int | None) -> NoReturn:
        raise UnsupportedError(self.reason)
