"""Drawing how many bytes variables take, as stored and as decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from virtualds.accessors.plots.canvas import (
    add_legend,
    add_rectangles,
    cut_name,
    make_axes,
    make_key,
    set_names,
    set_title,
)
from virtualds.arrays.survey import Survey
from virtualds.pictures.palette import GAP, SERIES
from virtualds.quantities import UNITS, format_bytes, format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 24
"""Variables that each have bars; of more variables, the smallest ones share bars."""
STORED, DECODED = SERIES[0], GAP


class VariableSize(NamedTuple):
    """The bytes of the chunks of a variable: as they are stored, and of their values."""

    name: str
    stored: int
    decoded: int

    @classmethod
    def of(cls, name: str, found: Survey) -> VariableSize:
        """Return the bytes of a variable whose chunks are counted."""
        return cls(name, found.stored, found.decoded)

    def __str__(self) -> str:
        ratio = f", ratio {self.decoded / self.stored:,.1f}" if self.stored else ""
        return f"{format_bytes(self.stored)} of {format_bytes(self.decoded)}{ratio}"


def draw_sizes(sizes: Sequence[VariableSize], ax: Axes | None) -> Axes:
    """Draw two bars for each variable, the largest first."""
    bars = _join_small(sorted(sizes, key=lambda size: -max(size.stored, size.decoded)))
    ax = make_axes("ds.virtual.plot.sizes", ax, 1.5 + 0.34 * len(bars))
    rows = np.arange(len(bars))
    for shade, half, column in ((DECODED, 0.36, 2), (STORED, 0.22, 1)):
        right = np.array([bar[column] for bar in bars], float)
        sides = np.stack([np.zeros(len(bars)), right, rows - half, rows + half], axis=1)
        add_rectangles(ax, sides, shade, line=0.6, gid="decoded" if column == 2 else "stored")
    for row, bar in enumerate(bars):
        place = (max(bar.stored, bar.decoded), row)
        beside: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(str(bar), place, **beside, fontsize="small")
    ax.set_ylim(len(bars) - 0.5, -0.5)
    ax.spines[["top", "right"]].set_visible(False)
    _show_bytes(ax, max(max(bar.stored, bar.decoded) for bar in bars))
    set_names(ax, rows.tolist(), [cut_name(bar.name) for bar in bars])
    keys = [make_key(ax, STORED, "stored"), make_key(ax, DECODED, "decoded")]
    add_legend(ax, keys, loc="lower right")
    total = VariableSize("", sum(s.stored for s in sizes), sum(s.decoded for s in sizes))
    count = format_count(len(sizes), "virtual variable")
    set_title(ax, f"{count}: {total}")
    return ax


def _show_bytes(ax: Axes, longest: int) -> None:
    """Set limits that leave room for numbers behind the bars, and ticks at round numbers."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    power = min((len(str(longest)) - 1) // 3, len(UNITS) - 1)
    unit, name = 1000**power, UNITS[power]
    ticks = MaxNLocator(5, integer=not power).tick_values(0, longest / unit)
    ax.set_xlim(0, longest * 1.55 or 1)
    ax.xaxis.set_major_locator(FixedLocator(ticks * unit))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g} {name}")


def _join_small(sizes: Sequence[VariableSize]) -> list[VariableSize]:
    """Return the largest, and the others as one."""
    if len(sizes) <= MOST_BARS:
        return list(sizes)
    rest = sizes[MOST_BARS - 1 :]
    others = VariableSize(
        f"{len(rest):,} others", sum(s.stored for s in rest), sum(s.decoded for s in rest)
    )
    return [*sizes[: MOST_BARS - 1], others]
