"""Numbers that were cast to another type, with defined rounding and limits.

Zarr v3 ``cast_value``, registered in zarr-extensions. numpy does the casts that keep every value;
cast-value-rs, which zarr-python uses, does the others. In Zarr v2 the former are ``astype``, the
latter ``virtualds_cast_values``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from virtualds.bounds import Buffer
from virtualds.codecs.codec import Codec, CodecError, Order, check_length
from virtualds.errors import UnsupportedError
from virtualds.extras import import_package
from virtualds.json_values import to_scalar

TYPES = {
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

OUT_OF_RANGE = ("error", "clamp", "wrap")

DIRECTIONS = ("encode", "decode")

DEFAULTS = {"rounding": ROUNDINGS[0], "out_of_range": OUT_OF_RANGE[0], "scalar_map": {}}
"""Defaults of the configuration; ``data_type`` has none."""


@dataclass(frozen=True)
class CastValues(Codec):
    """Integers or floats that were cast to others.

    Parameters
    ----------
    decoded, encoded : str
        Types of the values and of the stored numbers, byte order included.
    rounding, out_of_range : str
        How to cast values that the other type does not have.
    scalar_map : str
        Values that stand for others, by direction, as JSON.

    Raises
    ------
    ValueError
        A type is not numeric, a word is unknown, or a value is not of its type.
    """

    decoded: str
    encoded: str
    rounding: str = "nearest-even"
    out_of_range: str = "error"
    scalar_map: str = "{}"

    zarr_v2_id: ClassVar[str] = "virtualds_cast_values"
    registered_name: ClassVar[str | None] = "cast_value"
    only_virtualds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in (self.decoded, self.encoded):
            if np.dtype(name).kind not in "iuf":
                raise ValueError(f"cast_value: {name} is neither integer nor float")
        if self.rounding not in ROUNDINGS or self.out_of_range not in OUT_OF_RANGE:
            raise ValueError(
                f"cast_value: rounding {self.rounding!r}, out_of_range {self.out_of_range!r}; give "
                f"one of {ROUNDINGS} and one of {OUT_OF_RANGE}"
            )
        if self.out_of_range == "wrap" and np.dtype(self.encoded).kind == "f":
            raise ValueError(f"cast_value: floats ({self.encoded}) do not wrap")
        said = json.loads(self.scalar_map)
        if not isinstance(said, dict) or said.keys() - set(DIRECTIONS):
            raise ValueError(f"cast_value: scalar_map {said} has other keys than {DIRECTIONS}")
        for direction in DIRECTIONS:
            self._build_map(direction)

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        kept = ("decoded", "encoded", "rounding", "out_of_range")
        mapped = json.dumps(config["scalar_map"], sort_keys=True)
        return cls(**{name: str(config[name]) for name in kept}, scalar_map=mapped)

    @classmethod
    def from_registry(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build the codec from the configuration of ``cast_value``."""
        if unknown := config.keys() - {"data_type", *DEFAULTS}:
            raise ValueError(f"{min(unknown)!r} is not known")
        said = {"decoded": dtype.str, "encoded": _type_of(config["data_type"])}
        ways = {name: config.get(name) or way for name, way in DEFAULTS.items()}
        return cls.from_zarr_v2({**said, **ways})

    def to_zarr_v2(self) -> dict[str, Any]:
        if self._keeps_values:
            types = {"encode_dtype": self.encoded, "decode_dtype": self.decoded}
            return {"id": "astype", **types}
        return {"id": self.zarr_v2_id, **self._parameters}

    def to_zarr_v3(self, itemsize: int) -> dict[str, Any]:
        return {"name": self.prefixed_name(), "configuration": self._parameters}

    def in_chain(self, itemsize: int) -> dict[str, Any]:
        said = {name: self._parameters[name] for name in DEFAULTS}
        told = {name: way for name, way in said.items() if way != DEFAULTS[name]}
        # numpy and Zarr v3 have the same names
        kind = np.dtype(self.encoded).name
        return {"name": self.registered_name, "configuration": {"data_type": kind, **told}}

    @property
    def _parameters(self) -> dict[str, Any]:
        return {
            "decoded": self.decoded,
            "encoded": self.encoded,
            "rounding": self.rounding,
            "out_of_range": self.out_of_range,
            "scalar_map": json.loads(self.scalar_map),
        }

    def _build_map(self, direction: str) -> dict[Any, Any]:
        """Return the scalar map of one direction as Python numbers."""
        pairs = json.loads(self.scalar_map).get(direction) or []
        types = (np.dtype(self.decoded), np.dtype(self.encoded))
        key, value = types if direction == "encode" else types[::-1]
        return {to_scalar(k, key).item(): to_scalar(v, value).item() for k, v in pairs}

    @cached_property
    def _keeps_values(self) -> bool:
        """Whether the decoded type holds every stored number."""
        stored, shown = (np.dtype(n).newbyteorder("=") for n in (self.encoded, self.decoded))
        wider = np.can_cast(stored, shown) and stored.itemsize < shown.itemsize
        return (stored == shown or wider) and not self._build_map("decode")

    @property
    def maps_arrays(self) -> bool:
        return True

    @property
    def heeds_memory(self) -> bool:
        return False

    def filtered(self, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        return np.dtype(self.encoded) if dtype == np.dtype(self.decoded) else None

    def in_order(self, order: Order) -> Self:
        turned = (np.dtype(n).newbyteorder(order).str for n in (self.decoded, self.encoded))
        return replace(self, **dict(zip(("decoded", "encoded"), turned, strict=True)))

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes // np.dtype(self.decoded).itemsize * np.dtype(self.encoded).itemsize

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        stored, shown = np.dtype(self.encoded), np.dtype(self.decoded)
        if len(data) % stored.itemsize:
            raise CodecError(f"cast_value: {len(data)} bytes are not a whole number of {stored}")
        count = len(data) // stored.itemsize
        check_length(self, count * shown.itemsize, nbytes)
        numbers = np.frombuffer(data, stored)
        found = numbers if self._keeps_values else self._cast(numbers)
        return found.astype(shown, copy=False).view(np.uint8).data

    def _cast(self, numbers: Any) -> Any:
        """Cast as zarr-python does, in the byte order of the machine."""
        library = import_package("cast_value_rs", "cast_value that rounds, wraps, clamps or maps")
        try:
            return library.cast_array(
                numbers.astype(numbers.dtype.newbyteorder("="), copy=False),
                target_dtype=np.dtype(self.decoded).name,
                rounding_mode=self.rounding,
                out_of_range_mode=None if self.out_of_range == "error" else self.out_of_range,
                scalar_map_entries=self._build_map("decode"),
            )
        except ValueError as error:
            raise CodecError(f"cast_value: {error}") from error


def _type_of(said: Any) -> str:
    """Return the numpy name of a Zarr v3 data type."""
    name = said["name"] if isinstance(said, Mapping) else said
    if name not in TYPES:
        raise UnsupportedError(
            f"codec 'cast_value': data_type {said!r} is not one of {list(TYPES)}; open the data "
            f"with zarr-python"
        )
    return np.dtype(TYPES[name]).str
