"""Joining the datasets of files, and naming the file that does not join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from virtualds.building.arrangement import by_rows
from virtualds.errors import VirtualdsError
from virtualds.structure import first_difference

Combine = Callable[[list[Any]], Any]
"""Takes datasets, nested as it wants them, and returns one."""
WRONG = (ValueError, TypeError, VirtualdsError)
"""What combining raises about datasets that do not belong together."""


@dataclass(frozen=True)
class Combination:
    """How datasets become one.

    Parameters
    ----------
    combine : {"by_coords", "nested"}
    concat_dim : str, or list of str or None
    options : dict
        What xarray is told besides.

    Raises
    ------
    ValueError
        There is no such way, or it takes no dimension.
    """

    combine: str
    concat_dim: Any
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.combine not in ("by_coords", "nested"):
            raise ValueError(f"combine {self.combine!r}: there are 'by_coords' and 'nested'")
        if self.combine == "by_coords" and self.concat_dim is not None:
            raise ValueError(
                "concat_dim is for combine='nested'; by_coords finds it by coordinates"
            )

    def __call__(self, datasets: list[Any]) -> Any:
        """Return datasets, or trees, nested as the combination wants them, as one."""
        if self.combine == "nested":
            return xr.combine_nested(datasets, concat_dim=self.concat_dim, **self.options)
        return xr.combine_by_coords(datasets, **self.options)

    @property
    def dims(self) -> tuple[Any, ...]:
        """The dimensions to join along, the outermost first; none if coordinates tell them."""
        if self.combine == "by_coords":
            return ()
        several = isinstance(self.concat_dim, list | tuple)
        return tuple(self.concat_dim) if several else (self.concat_dim,)

    def by_rows(self, datasets: list[Any]) -> Any:
        """Return datasets of rows that may lack cells as one; outer joins leave them missing."""
        return by_rows(datasets, self.dims, self._along)

    def _along(self, datasets: list[Any], dim: Any) -> Any:
        return xr.combine_nested(datasets, concat_dim=dim, **self.options)


def named(
    combine: Combine,
    dims: Sequence[Any] | None,
    datasets: list[Any],
    files: Sequence[Any],
    opened: Sequence[Any],
) -> Any:
    """Combine datasets; an error names the files, and the first that does not join those before.

    Parameters
    ----------
    combine : callable
    dims : sequence of str or None, optional
        The dimensions that the datasets are joined along, where it is known.
    datasets : list
        Nested as ``combine`` wants them.
    files : sequence
        Those that the datasets are of, in order.
    opened : sequence
        The datasets in this order.
    """
    try:
        return combine(datasets)
    except WRONG as error:
        error.add_note(f"while combining {len(files)} files, {files[0]} to {files[-1]}")
        if (number := _first_that_fails(combine, datasets)) is not None:
            before = f"the {number} before it" if number > 1 else str(files[0])
            error.add_note(f"{files[number]} is the first that does not combine with {before}")
        if (difference := first_difference(files, opened, dims)) is not None:
            error.add_note(difference)
        raise


def _first_that_fails(combine: Callable[[list[Any]], Any], datasets: list[Any]) -> int | None:
    """Return which of some datasets is the first that does not join all those before it.

    It costs little more than to combine those up to there. Grids of files have no such order.
    """
    if any(isinstance(item, list) for item in datasets):
        return None
    works, fails = 1, 2
    while fails < len(datasets) and _combine(combine, datasets[:fails]):
        works, fails = fails, min(2 * fails, len(datasets))
    while fails - works > 1:
        middle = (works + fails) // 2
        if _combine(combine, datasets[:middle]):
            works = middle
        else:
            fails = middle
    return works if len(datasets) > 1 else None


def _combine(combine: Callable[[list[Any]], Any], datasets: list[Any]) -> bool:
    try:
        combine(datasets)
    except WRONG:
        return False
    return True
