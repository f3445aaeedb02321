"""The table of codecs by name, built from the names that the codecs give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from virtualds.codecs.codec import OURS, Codec, Kind, Make

Named = tuple[type[Codec], Make]
"""A codec, and the function that makes it."""


@dataclass(frozen=True)
class Registry:
    """Codecs by their names in Zarr, HDF5 and TIFF.

    Parameters
    ----------
    codecs : sequence of Codec classes

    Examples
    --------
    >>> from virtualds.codecs.zlib import Gzip, Zlib
    >>> Registry((Zlib, Gzip)).list_names("zarr_v3")
    ['gzip', 'numcodecs.gzip', 'numcodecs.zlib']
    """

    codecs: Sequence[type[Codec]]

    @cached_property
    def _found(self) -> dict[tuple[Kind, str | int], Named]:
        """The codecs that were looked for, and found."""
        return {}

    def _find(self, kind: Kind, name: str | int) -> Named | None:
        """Ask the codecs in turn, so that those behind the one found are not imported."""
        if (known := self._found.get((kind, name))) is not None:
            return known
        for codec in self.codecs:
            for named in codec.names():
                if (named.kind, named.name) == (kind, name):
                    return self._found.setdefault((kind, name), (codec, named.make))
        return None

    def find_maker(self, kind: Kind, name: str | int) -> Make | None:
        """Return the function that makes the codec of a name, None if there is none; see `Name`."""
        if (known := self._find(kind, name)) is not None:
            return known[1]
        brought = (codec.brought(kind, name) for codec in self.codecs)
        return next((make for make in brought if make is not None), None)

    def is_array_serialiser(self, name: str) -> bool:
        """Say whether a Zarr v3 name is that of an array-to-bytes codec.

        Names that only virtualds knows are not: they stand in pipelines, where each codec turns
        bytes into bytes.
        """
        known = None if name.startswith(OURS) else self._find("zarr_v3", name)
        return known is not None and known[0].serialises

    def list_names(self, kind: Kind) -> list[str | int]:
        """Return all names of one kind, sorted, without those of plugins.

        Raises
        ------
        ValueError
            Two codecs have one name.
        """
        found = dict[str | int, type[Codec]]()
        for codec in self.codecs:
            for name in (named.name for named in codec.names() if named.kind == kind):
                if (other := found.setdefault(name, codec)) is not codec:
                    raise ValueError(
                        f"{kind} name {name!r}: {codec.__name__} has it, and so has "
                        f"{other.__name__}; give one of them another"
                    )
        return sorted(found, key=_order)


def _order(name: str | int) -> tuple[int, str]:
    """Return a sort key: numbers by size, texts by letters."""
    return (name, "") if isinstance(name, int) else (0, name)
