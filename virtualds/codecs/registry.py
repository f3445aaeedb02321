"""The table of codecs by name, built from the names that the codecs give."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from virtualds.codecs.codec import OURS, Codec, Kind, Make


@dataclass(frozen=True)
class Registry:
    """Codecs by their names in Zarr, HDF5 and TIFF.

    Parameters
    ----------
    codecs : tuple of Codec classes

    Raises
    ------
    ValueError
        Two codecs have one name.

    Examples
    --------
    >>> from virtualds.codecs.zlib import Gzip, Zlib
    >>> Registry((Zlib, Gzip)).list_names("zarr_v3")
    ['gzip', 'numcodecs.gzip', 'numcodecs.zlib']
    """

    codecs: tuple[type[Codec], ...]

    def __post_init__(self) -> None:
        # two codecs with one name are a programming error, found on import
        _ = self._by_name

    @cached_property
    def _by_name(self) -> dict[tuple[Kind, str | int], tuple[type[Codec], Make]]:
        found: dict[tuple[Kind, str | int], tuple[type[Codec], Make]] = {}
        for codec in self.codecs:
            for kind, name, make in codec.names():
                other, _ = found.setdefault((kind, name), (codec, make))
                if other is not codec:
                    raise ValueError(
                        f"{kind} name {name!r}: {codec.__name__} has it, and so has "
                        f"{other.__name__}; give one of them another"
                    )
        return found

    def find_maker(self, kind: Kind, name: str | int) -> Make | None:
        """Return the function that makes the codec of a name, None if there is none; see `Name`."""
        if (known := self._by_name.get((kind, name))) is not None:
            return known[1]
        brought = (codec.brought(kind, name) for codec in self.codecs)
        return next((make for make in brought if make is not None), None)

    def list_names(self, kind: Kind) -> list[str | int]:
        """Return all names of one kind, sorted, without those of plugins."""
        return sorted((name for known, name in self._by_name if known == kind), key=_order)

    @cached_property
    def array_serialisers(self) -> frozenset[str]:
        """The Zarr v3 names of the array-to-bytes codecs.

        Names that only virtualds knows are not among them: they stand in pipelines, where each
        codec turns bytes into bytes.
        """
        entries = (
            (str(n), codec) for (kind, n), (codec, _) in self._by_name.items() if kind == "zarr_v3"
        )
        return frozenset(n for n, codec in entries if codec.serialises and not n.startswith(OURS))


def _order(name: str | int) -> tuple[int, str]:
    """Return a sort key: numbers by size, texts by letters."""
    return (name, "") if isinstance(name, int) else (0, name)
