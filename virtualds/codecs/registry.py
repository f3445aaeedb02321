"""Which codec has which name: one table, made of what the codecs say of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from virtualds.codecs.codec import OURS, Codec, Kind, Make


@dataclass(frozen=True)
class Registry:
    """Codecs by what others call them.

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
    >>> Registry((Zlib, Gzip)).names("zarr_v3")
    ['gzip', 'numcodecs.gzip', 'numcodecs.zlib']
    """

    codecs: tuple[type[Codec], ...]

    def __post_init__(self) -> None:
        # a name that two codecs have is a mistake of theirs, which shows on import
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

    def maker(self, kind: Kind, name: str | int) -> Make | None:
        """Return what makes the codec of a name, None if none has it; `Name` says what it takes."""
        if (known := self._by_name.get((kind, name))) is not None:
            return known[1]
        brought = (codec.brought(kind, name) for codec in self.codecs)
        return next((make for make in brought if make is not None), None)

    def names(self, kind: Kind) -> list[str | int]:
        """Return all names of one kind, in order, without those that other packages bring."""
        return sorted((name for known, name in self._by_name if known == kind), key=_order)

    @cached_property
    def array_serialisers(self) -> frozenset[str]:
        """The names in Zarr v3 of codecs that make bytes of an array.

        Names that only virtualds knows are not among them: these stand in pipelines, where every
        codec takes bytes and gives bytes.
        """
        entries = (
            (str(n), codec) for (kind, n), (codec, _) in self._by_name.items() if kind == "zarr_v3"
        )
        return frozenset(n for n, codec in entries if codec.serialises and not n.startswith(OURS))


def _order(name: str | int) -> tuple[int, str]:
    """Numbers by size, texts by letters."""
    return (name, "") if isinstance(name, int) else (0, name)
