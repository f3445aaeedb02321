"""Zarr v3 ``scale_offset``: numbers less an offset, times a scale.

Registered in zarr-extensions; where zarr-python leaves out ``offset`` and ``scale``, they are 0 and
1. For floats Zarr v2 has ``fixedscaleoffset``, which decodes alike as long as it has one dtype. For
integers, which numcodecs would compute as floats, the Zarr v2 id is ``virtualds_scaled_values``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from virtualds.bounds import Buffer
from virtualds.codecs.codec import CodecError, OfOneType, Order, check_length
from virtualds.json_values import to_scalar

PARAMETERS = {"offset": 0, "scale": 1}
"""Keys of the configuration, with defaults."""


@dataclass(frozen=True)
class ScaledValues(OfOneType):
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
        Offset or scale is no number of that dtype, or the scale is zero.
    """

    dtype: str
    offset: Any
    scale: Any

    zarr_v2_id: ClassVar[str] = "virtualds_scaled_values"
    registered_name: ClassVar[str | None] = "scale_offset"
    only_virtualds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "iuf":
            raise ValueError(f"scale_offset: {self.dtype} is neither integer nor float")
        if self._numbers[1] == 0:
            raise ValueError("scale_offset: a scale of 0 leaves nothing of a number")

    @classmethod
    def from_zarr_v2(cls, config: Mapping[str, Any]) -> Self:
        return cls(str(config["dtype"]), config["offset"], config["scale"])

    @classmethod
    def from_registry(
        cls, config: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> Self:
        """Build the codec from the configuration of ``scale_offset``."""
        if unknown := config.keys() - PARAMETERS.keys():
            raise ValueError(f"{min(unknown)!r} is not known")
        return cls(dtype.str, **{**PARAMETERS, **config})

    def to_zarr_v2(self) -> dict[str, Any]:
        offset, scale = (float(one) for one in self._numbers)
        if np.dtype(self.dtype).kind == "f" and np.isfinite([offset, scale]).all():
            types = {"dtype": self.dtype, "astype": self.dtype}
            return {"id": "fixedscaleoffset", "offset": offset, "scale": scale, **types}
        return {"id": self.zarr_v2_id, **self._parameters}

    def to_zarr_v3(self, itemsize: int) -> dict[str, Any]:
        return {"name": self.prefixed_name(), "configuration": self._parameters}

    def in_chain(self, itemsize: int) -> dict[str, Any]:
        said = {"offset": self.offset, "scale": self.scale}
        return {"name": self.registered_name, "configuration": said}

    @property
    def _parameters(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "offset": self.offset, "scale": self.scale}

    @cached_property
    def _numbers(self) -> tuple[Any, Any]:
        """Offset and scale as scalars of the type."""
        dtype = np.dtype(self.dtype)
        return to_scalar(self.offset, dtype), to_scalar(self.scale, dtype)

    @property
    def maps_arrays(self) -> bool:
        return True

    def in_order(self, order: Order) -> Self:
        return replace(self, dtype=np.dtype(self.dtype).newbyteorder(order).str)

    def encoded_size(self, nbytes: int) -> int | None:
        return nbytes

    def decode(self, data: Buffer, nbytes: int | None) -> Buffer:
        check_length(self, len(data), nbytes)
        dtype = np.dtype(self.dtype)
        if len(data) % dtype.itemsize:
            raise CodecError(f"scale_offset: {len(data)} bytes are not a whole number of {dtype}")
        stored = np.frombuffer(data, dtype)
        native = stored.astype(dtype.newbyteorder("="), copy=False)
        found = (_unscale_floats if dtype.kind == "f" else _unscale_integers)(
            native, *self._numbers
        )
        return found.astype(dtype, copy=False).view(np.uint8).data


def _unscale_floats(stored: npt.NDArray[Any], offset: Any, scale: Any) -> npt.NDArray[Any]:
    # infinities and NaN are values
    with np.errstate(all="ignore"):
        found: npt.NDArray[Any] = stored / scale + offset
    return found


def _unscale_integers(stored: npt.NDArray[Any], offset: Any, scale: Any) -> npt.NDArray[Any]:
    """Divide without remainder and add the offset, within the limits of the dtype."""
    if not stored.size:
        return stored
    with np.errstate(over="ignore"):
        quotients = stored // scale
        if (quotients * scale != stored).any():
            raise CodecError(
                f"scale_offset: a stored number is not a multiple of the scale {scale}"
            )
        limits = np.iinfo(stored.dtype)
        ends = [int(n) // int(scale) + int(offset) for n in (stored.min(), stored.max())]
        if min(ends) < limits.min or max(ends) > limits.max:
            raise CodecError(
                f"scale_offset: {min(ends)} to {max(ends)} go beyond the limits of {stored.dtype}"
            )
        # quotients may have wrapped, and wrap back
        found: npt.NDArray[Any] = quotients + offset
    return found
