"""Names of the axes of FITS arrays: equal ones are shared, others name their array."""

from __future__ import annotations


class AxisNames:
    """Names of axes; an axis with another length than in earlier arrays gets its own.

    Parameters
    ----------
    prefix : str
        What names begin with; the number of the axis follows, 1 for the last one.

    Examples
    --------
    >>> names = AxisNames("naxis")
    >>> names.name("SCI", (20, 30)), names.name("WIDE", (20, 40))
    (('naxis2', 'naxis1'), ('naxis2', 'naxis1_WIDE'))
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._lengths: dict[str, int] = {}

    def name(self, array: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Return the names of the axes of an array."""
        found = []
        for number, length in zip(range(len(shape), 0, -1), shape, strict=True):
            dim = f"{self.prefix}{number}"
            if self._lengths.setdefault(dim, length) != length:
                dim = f"{dim}_{array}"
            found.append(dim)
        return tuple(found)
