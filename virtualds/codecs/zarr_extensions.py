"""Arithmetic codecs registered in zarr-extensions: casts, scales, and bit fields.

- ``cast_value``: numbers that were cast to another type, with defined rounding and limits. numpy
  does the casts that keep every value; cast-value-rs, which zarr-python uses, does the others. In
  Zarr v2 the former are ``astype``, the latter ``virtualds_cast_values``.
- ``scale_offset``: numbers less an offset, times a scale, which are 0 and 1 by default: zarr-python
  leaves them out then. For floats Zarr v2 has ``fixedscaleoffset``, which is equivalent if it has a
  single dtype. For integers, which numcodecs would compute as floats, the Zarr v2 id is
  ``virtualds_scaled_values``.
- ``packbits``: a few bits of each number, least significant bit first. Zarr v2 ``packbits`` is
  another codec, of numcodecs, which begins with the most significant bit; there this one is
  ``virtualds_bit_fields``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from virtualds.codecs.codec import Codec, Json, Order, SingleTypeCodec, check_length
from virtualds.errors import UnsupportedError
from virtualds.importing import import_package
from virtualds.json_values import to_scalar
from virtualds.streams import Buffer, Bytes

NUMPY_TYPES = {
    **{f"{kind}int{8 * n}": f"{kind or 'i'}{n}" for kind in ("", "u") for n in (1, 2, 4, 8)},
    **{f"float{8 * n}": f"f{n}" for n in (2, 4, 8)},
}
"""numpy types by their Zarr v3 names."""

ROUNDINGS = (
    "nearest-even",
    "towards-zero",
    "towards-positive",
    "towards-negative",
    "nearest-away",
)

OUT_OF_RANGE_MODES = ("error", "clamp", "wrap")

DIRECTIONS = ("encode", "decode")

CAST_DEFAULTS = {"rounding": ROUNDINGS[0], "out_of_range": OUT_OF_RANGE_MODES[0], "scalar_map": {}}
"""Defaults of the configuration; ``data_type`` has none."""


@dataclass(frozen=True)
class CastValues(Codec):
    """Integers or floats that were cast to another type.

    Parameters
    ----------
    decoded, encoded : str
        Types of the values and of the stored numbers, byte order included.
    rounding, out_of_range : str
        How to cast values that the other type cannot represent.
    scalar_map : str
        Values that are replaced by others, by direction, as JSON.

    Raises
    ------
    ValueError
        A type is not numeric, a name is unknown, or a value is not of its type.
    """

    decoded: str
    encoded: str
    rounding: str
    out_of_range: str
    scalar_map: Json

    zarr_v2_id = "virtualds_cast_values"
    registered_name = "cast_value"
    is_array_to_array = True
    uses_memory_order = False

    def __post_init__(self) -> None:
        for name in (self.decoded, self.encoded):
            if np.dtype(name).kind not in "iuf":
                raise ValueError(f"cast_value: {name} is neither integer nor float")
        if self.rounding not in ROUNDINGS or self.out_of_range not in OUT_OF_RANGE_MODES:
            raise ValueError(
                f"cast_value: rounding {self.rounding!r}, out_of_range {self.out_of_range!r}; give "
                f"one of {ROUNDINGS} and one of {OUT_OF_RANGE_MODES}"
            )
        if self.out_of_range == "wrap" and np.dtype(self.encoded).kind == "f":
            raise ValueError(f"cast_value: floats ({self.encoded}) do not wrap")
        maps = json.loads(self.scalar_map)
        if not isinstance(maps, dict) or maps.keys() - set(DIRECTIONS):
            raise ValueError(f"cast_value: scalar_map {maps} has keys other than {DIRECTIONS}")
        for direction in DIRECTIONS:
            self._build_map(direction)

    @classmethod
    def from_registry(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build the codec from the configuration of ``cast_value``."""
        if unknown := config.keys() - {"data_type", *CAST_DEFAULTS}:
            raise ValueError(f"{min(unknown)!r} is not known")
        data_type = config["data_type"]
        type_name = data_type["name"] if isinstance(data_type, Mapping) else data_type
        if type_name not in NUMPY_TYPES:
            raise UnsupportedError(
                f"codec 'cast_value': data_type {data_type!r} is not one of {list(NUMPY_TYPES)}; "
                f"open the data with zarr-python"
            )
        types = {"decoded": dtype.str, "encoded": np.dtype(NUMPY_TYPES[type_name]).str}
        modes = {name: config.get(name) or mode for name, mode in CAST_DEFAULTS.items()}
        return cls.from_zarr_v2({**types, **modes})

    def to_zarr_v2(self) -> dict[str, Any]:
        if self._keeps_values:
            types = {"encode_dtype": self.encoded, "decode_dtype": self.decoded}
            return {"id": "astype", **types}
        return super().to_zarr_v2()

    @property
    def configuration(self) -> dict[str, Any]:
        entries = super().to_zarr_v2()
        del entries["id"]
        return entries

    def to_chain_entry(self, itemsize: int) -> dict[str, Any]:
        modes = {name: self.configuration[name] for name in CAST_DEFAULTS}
        others = {name: mode for name, mode in modes.items() if mode != CAST_DEFAULTS[name]}
        # NumPy's and Zarr v3's type names are the same
        data_type = np.dtype(self.encoded).name
        return {"name": self.registered_name, "configuration": {"data_type": data_type, **others}}

    def _build_map(self, direction: str) -> dict[Any, Any]:
        """Return the scalar map of one direction as Python numbers."""
        pairs = json.loads(self.scalar_map).get(direction) or []
        types = (np.dtype(self.decoded), np.dtype(self.encoded))
        key, value = types if direction == "encode" else types[::-1]
        return {to_scalar(k, key).item(): to_scalar(v, value).item() for k, v in pairs}

    @cached_property
    def _keeps_values(self) -> bool:
        """Whether the decoded type can represent every stored number."""
        stored, decoded = (np.dtype(n).newbyteorder("=") for n in (self.encoded, self.decoded))
        is_wider = np.can_cast(stored, decoded) and stored.itemsize < decoded.itemsize
        return (stored == decoded or is_wider) and not self._build_map("decode")

    def get_encoded_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        return np.dtype(self.encoded) if dtype == np.dtype(self.decoded) else None

    def with_byte_order(self, order: Order) -> Self:
        dtypes = (np.dtype(n).newbyteorder(order).str for n in (self.decoded, self.encoded))
        return replace(self, **dict(zip(("decoded", "encoded"), dtypes, strict=True)))

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes // np.dtype(self.decoded).itemsize * np.dtype(self.encoded).itemsize

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        stored, decoded = np.dtype(self.encoded), np.dtype(self.decoded)
        if len(data) % stored.itemsize:
            raise ValueError(f"{len(data)} bytes are not a whole number of {stored}")
        count = len(data) // stored.itemsize
        check_length(self, count * decoded.itemsize, nbytes)
        numbers = np.frombuffer(data, stored)
        values: npt.NDArray[Any] = numbers
        if not self._keeps_values:
            # cast as zarr-python does, in the byte order of the machine
            use = "cast_value that rounds, wraps, clamps or maps"
            values = import_package("cast_value_rs", use).cast_array(
                numbers.astype(stored.newbyteorder("="), copy=False),
                target_dtype=decoded.name,
                rounding_mode=self.rounding,
                out_of_range_mode=None if self.out_of_range == "error" else self.out_of_range,
                scalar_map_entries=self._build_map("decode"),
            )
        return values.astype(decoded, copy=False).view(np.uint8).data


# ---------------------------------------------------------------------- scale offset

SCALE_OFFSET_DEFAULTS = {"offset": 0, "scale": 1}
"""Keys of the configuration, with defaults."""


@dataclass(frozen=True)
class ScaledValues(SingleTypeCodec):
    """Integers or floats that were scaled: ``(x - offset) * scale``.

    Parameters
    ----------
    dtype : str
        Dtype of the numbers, byte order included.
    offset, scale : int, float or str
        The JSON values.

    Raises
    ------
    ValueError
        Offset or scale is not a number of that dtype, or the scale is zero.
    """

    dtype: str
    offset: Any
    scale: Any

    zarr_v2_id = "virtualds_scaled_values"
    registered_name = "scale_offset"
    is_array_to_array = True
    added_bytes = 0

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "iuf":
            raise ValueError(f"scale_offset: {self.dtype} is neither integer nor float")
        if self._numbers[1] == 0:
            raise ValueError("scale_offset: a scale of 0 leaves nothing of a number")

    @classmethod
    def from_registry(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build the codec from the configuration of ``scale_offset``."""
        if unknown := config.keys() - SCALE_OFFSET_DEFAULTS.keys():
            raise ValueError(f"{min(unknown)!r} is not known")
        return cls(dtype.str, **{**SCALE_OFFSET_DEFAULTS, **config})

    def to_zarr_v2(self) -> dict[str, Any]:
        offset, scale = (float(number) for number in self._numbers)
        if np.dtype(self.dtype).kind == "f" and np.isfinite([offset, scale]).all():
            types = {"dtype": self.dtype, "astype": self.dtype}
            return {"id": "fixedscaleoffset", "offset": offset, "scale": scale, **types}
        return super().to_zarr_v2()

    @property
    def configuration(self) -> dict[str, Any]:
        return asdict(self)

    def to_chain_entry(self, itemsize: int) -> dict[str, Any]:
        entries = {"offset": self.offset, "scale": self.scale}
        return {"name": self.registered_name, "configuration": entries}

    @cached_property
    def _numbers(self) -> tuple[Any, Any]:
        """Offset and scale as scalars of the type."""
        dtype = np.dtype(self.dtype)
        return to_scalar(self.offset, dtype), to_scalar(self.scale, dtype)

    def with_byte_order(self, order: Order) -> Self:
        return replace(self, dtype=np.dtype(self.dtype).newbyteorder(order).str)

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        dtype = np.dtype(self.dtype)
        if len(data) % dtype.itemsize:
            raise ValueError(f"{len(data)} bytes are not a whole number of {dtype}")
        stored = np.frombuffer(data, dtype)
        native = stored.astype(dtype.newbyteorder("="), copy=False)
        values = (_unscale_floats if dtype.kind == "f" else _unscale_integers)(
            native, *self._numbers
        )
        return values.astype(dtype, copy=False).view(np.uint8).data


def _unscale_floats(stored: npt.NDArray[Any], offset: Any, scale: Any) -> npt.NDArray[Any]:
    # infinities and NaN are valid results
    with np.errstate(all="ignore"):
        values: npt.NDArray[Any] = stored / scale + offset
    return values


def _unscale_integers(stored: npt.NDArray[Any], offset: Any, scale: Any) -> npt.NDArray[Any]:
    """Divide and add the offset, or raise an error if a remainder or an overflow occurs."""
    if not stored.size:
        return stored
    with np.errstate(over="ignore"):
        quotients = stored // scale
        if (quotients * scale != stored).any():
            raise ValueError(f"a stored number is not a multiple of the scale {scale}")
        limits = np.iinfo(stored.dtype)
        ends = [int(n) // int(scale) + int(offset) for n in (stored.min(), stored.max())]
        if min(ends) < limits.min or max(ends) > limits.max:
            raise ValueError(f"{min(ends)} to {max(ends)} go beyond the limits of {stored.dtype}")
        # quotients that wrapped around wrap back when the offset is added
        values: npt.NDArray[Any] = quotients + offset
    return values


# ---------------------------------------------------------------------- packbits

PADDING_BYTE = {"none": (0, 0), "first_byte": (1, 0), "last_byte": (0, 1)}
"""Bytes before and after the bits, for the number of padding bits in their last byte."""

PACKBITS_KEYS = {"padding_encoding", "first_bit", "last_bit"}
"""Keys of the configuration of ``packbits``."""

NUMBERS_PER_BATCH = 2**16
"""Numbers to unpack at a time: a multiple of eight, so that each batch starts at a byte."""


@dataclass(frozen=True)
class BitFields(SingleTypeCodec):
    """Some of the bits of booleans, integers, floats or parts of complex numbers.

    Decoding yields little-endian numbers. Bits below the stored ones are zero; bits above are zero,
    or, for signed integers, equal to the highest stored one.

    Parameters
    ----------
    dtype : str
        Dtype of the numbers.
    first_bit, last_bit : int
        The lowest and the highest bit that is stored.
    padding : str
        Where the number of padding bits is stored: a key of `PADDING_BYTE`.

    Raises
    ------
    ValueError
        The dtype, the bits or the padding are invalid.
    """

    dtype: str
    first_bit: int
    last_bit: int
    padding: str = "none"

    zarr_v2_id = "virtualds_bit_fields"
    registered_name = "packbits"
    is_array_to_bytes = True

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "biufc":
            raise ValueError(f"packbits: {self.dtype} is not a number")
        if not 0 <= self.first_bit <= self.last_bit < self._all_bits:
            raise ValueError(
                f"packbits: bits {self.first_bit} to {self.last_bit} are outside {self._all_bits}"
            )
        if self.padding not in PADDING_BYTE:
            raise ValueError(
                f"packbits: padding {self.padding!r} is not one of {list(PADDING_BYTE)}"
            )

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        bits = [config[name] for name in ("first_bit", "last_bit")]
        if invalid := [bit for bit in bits if type(bit) is not int]:
            raise ValueError(f"packbits: {invalid[0]!r} is not a number of bits")
        first, last = bits
        return cls(str(config["dtype"]), first, last, str(config["padding_encoding"]))

    @classmethod
    def from_registry(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build the codec from the configuration of ``packbits``."""
        if unknown := config.keys() - PACKBITS_KEYS:
            raise ValueError(f"{min(unknown)!r} is not known")
        first, last = config.get("first_bit"), config.get("last_bit")
        entries = {
            "dtype": dtype.newbyteorder("<").str,
            "first_bit": 0 if first is None else first,
            "last_bit": _count_bits(dtype) - 1 if last is None else last,
            "padding_encoding": config.get("padding_encoding", "none"),
        }
        return cls.from_zarr_v2(entries)

    def to_zarr_v2(self) -> dict[str, Any]:
        return {"id": self.zarr_v2_id, "dtype": self.dtype, **self._parameters}

    def to_chain_entry(self, itemsize: int) -> dict[str, Any]:
        return {"name": self.registered_name, "configuration": self._parameters}

    @property
    def _parameters(self) -> dict[str, Any]:
        bits = {"first_bit": self.first_bit, "last_bit": self.last_bit}
        return {"padding_encoding": self.padding, **bits}

    @property
    def _all_bits(self) -> int:
        """Number of bits of a number, or of each part of a complex number."""
        return _count_bits(np.dtype(self.dtype))

    @property
    def _parts(self) -> int:
        return 2 if np.dtype(self.dtype).kind == "c" else 1

    def encoded_size(self, nbytes: int) -> int | None:
        numbers = nbytes // np.dtype(self.dtype).itemsize * self._parts
        return -(-numbers * self._width // 8) + sum(PADDING_BYTE[self.padding])

    @property
    def _width(self) -> int:
        """Number of stored bits of a number, or of each part of a complex number."""
        return self.last_bit - self.first_bit + 1

    def _decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        packed, padding = self._split_header(np.frombuffer(data, np.uint8))
        itemsize = np.dtype(self.dtype).itemsize // self._parts
        if nbytes is None:
            count = (8 * packed.size - (padding or 0)) // self._width
        else:
            count = nbytes // itemsize
        padding_bits = 8 * packed.size - count * self._width
        if count < 0 or not 0 <= padding_bits < 8 or padding not in (None, padding_bits):
            raise ValueError(
                f"{packed.size} bytes with {padding} padding bits do not hold {count} "
                f"numbers of {self._width} bits"
            )
        return self._unpack(packed, count, itemsize).data

    def _split_header(self, data: Bytes) -> tuple[Bytes, int | None]:
        """Return the packed bytes, and the number of padding bits if it is stored."""
        before, after = PADDING_BYTE[self.padding]
        if data.size < before + after:
            raise ValueError("there is no byte with the number of padding bits")
        packed = data[before : data.size - after]
        return packed, int(data[0 if before else -1]) if before or after else None

    def _unpack(self, packed: Bytes, count: int, itemsize: int) -> Bytes:
        """Return the bytes of ``count`` numbers of ``itemsize`` bytes."""
        width, all_bits = self._width, self._all_bits
        if all_bits == 1:
            return np.unpackbits(packed, count=count, bitorder="little")
        if width == all_bits:
            return packed
        signed = np.dtype(self.dtype).kind == "i"
        out = np.empty((count, itemsize), np.uint8)
        for start in range(0, count, NUMBERS_PER_BATCH):
            batch = out[start : start + NUMBERS_PER_BATCH]
            part = packed[start // 8 * width :]
            bits = np.unpackbits(part, count=len(batch) * width, bitorder="little")
            fields = bits.reshape(len(batch), width)
            spread = np.zeros((len(batch), all_bits), np.uint8)
            spread[:, self.first_bit : self.last_bit + 1] = fields
            if signed:
                spread[:, self.last_bit + 1 :] = fields[:, -1:]
            batch[:] = np.packbits(spread, axis=1, bitorder="little")
        return out.reshape(-1)


def _count_bits(dtype: np.dtype[Any]) -> int:
    if dtype.kind == "b":
        return 1
    return 8 * dtype.itemsize // (2 if dtype.kind == "c" else 1)
