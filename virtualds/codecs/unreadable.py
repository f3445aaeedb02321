"""What stands where values would be that nobody can read: it says why when somebody asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Self

from virtualds.codec import Buffer, Codec
from virtualds.errors import UnsupportedError


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
