"""What all pictures of matplotlib share: axes, rectangles with textures, names, and a legend."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.coverage import IN_THE_SET
from virtualds.datasets.axis_cells import OF_NUMPY, AxisCells
from virtualds.errors import without_secrets
from virtualds.importing import import_package
from virtualds.pictures.html import GAP, Shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

WIDTH = 9.0
"""Inches of a new figure."""
LONG_NAME = 24
"""Letters of a name that takes too much room beside an axis."""
LONGEST_NAME = 40
"""Letters of a name that is shown beside an axis."""
LEGEND_WIDTH = 64
"""Letters of a line of a legend."""
BELOW = 42
"""Points from an axis to below its ticks and its label."""

EMPTY = Shade("empty", "none", "none")
"""The ground of the axes: what the coordinate leaves out."""

HELD = "(in the set)"
"""The name of the row of chunks that lie in no file."""

Floats = npt.NDArray[np.float64]


def make_axes(what: str, ax: Axes | None, height: float) -> Axes:
    """Return the given axes, or those of a new figure of some inches of height."""
    pyplot = import_package("matplotlib.pyplot", what, "drawing")
    if ax is not None:
        return ax
    made: Axes = pyplot.subplots(figsize=(WIDTH, height), layout="constrained")[1]
    return made


def ink_of(ax: Axes) -> Any:
    """Return the colour of lines on some axes: that of their own frame."""
    return ax.spines["left"].get_edgecolor()


def colour_of(ax: Axes, shade: Shade) -> str:
    """Return the colour of a shade on light or dark axes; a gap has none."""
    from matplotlib.colors import to_hex, to_rgb

    if shade is GAP:
        return "none"
    if shade is EMPTY:
        return to_hex(ax.get_facecolor())
    return shade.light if sum(to_rgb(ax.get_facecolor())) > 1.5 else shade.dark


def add_rectangles(
    ax: Axes,
    sides: npt.ArrayLike,
    shade: Shade,
    *,
    line: float = 0.0,
    over_all: bool = False,
    **more: Any,
) -> PolyCollection:
    """Add rectangles of one shade, with its texture.

    ``sides`` are left, right, bottom and top of each. ``line`` is the width of the outline in
    points, which makes the narrowest rectangle visible. With ``over_all``, bottom and top are parts
    of the height of the axes, from 0 to 1. ``more`` are other properties of the collection.
    """
    from matplotlib.collections import PolyCollection

    left, right, bottom, top = np.asarray(sides, np.float64).reshape(-1, 4).T
    corners: Any = np.stack([left, bottom, left, top, right, top, right, bottom], axis=1)
    made = PolyCollection(
        corners.reshape(-1, 4, 2),
        facecolors=colour_of(ax, shade),
        edgecolors=ink_of(ax) if shade.hatch else colour_of(ax, shade),
        linewidths=line,
        hatch=shade.hatch or None,
        transform=ax.get_xaxis_transform() if over_all else ax.transData,
        **more,
    )
    ax.add_collection(made, autolim=False)
    return made


def make_key(ax: Axes, shade: Shade, words: str) -> Patch:
    """Return the entry of a legend."""
    from matplotlib.patches import Patch

    colours = {"facecolor": colour_of(ax, shade), "edgecolor": ink_of(ax)}
    return Patch(**colours, hatch=shade.hatch * 2, label=words, lw=0.5)


def add_legend(ax: Axes, keys: Sequence[Patch], **where: Any) -> None:
    """Add a legend; its words are shown as they are, whatever they hold."""
    if keys:
        words = [str(key.get_label()) for key in keys]
        # in at most two lines
        cut = (wrap(one, LEGEND_WIDTH, max_lines=2, placeholder=" …") for one in words)
        labels = ["\n".join(lines) or one for lines, one in zip(cut, words, strict=True)]
        # words that begin with an underscore would be left out
        found = ax.legend(keys, ["-"] * len(keys), fontsize="small", **where)
        for text, label in zip(found.get_texts(), labels, strict=True):
            text.set(text=label, parse_math=False)


def add_legend_below(ax: Axes, keys: Sequence[Patch]) -> None:
    """Add a legend below the label of the horizontal axis, where it covers nothing."""
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.figure
    down = ScaledTranslation(0, -BELOW / 72, figure.dpi_scale_trans)
    where: Any = {"bbox_to_anchor": (0, 0), "bbox_transform": ax.transAxes + down}
    add_legend(ax, keys, loc="upper left", borderaxespad=0, **where)


def set_title(ax: Axes, words: str) -> None:
    """Set the title as it is, unless the axes have one: that of the user stays."""
    if not any(ax.get_title(loc=loc) for loc in ("left", "center", "right")):
        ax.set_title(words, parse_math=False, fontsize="medium")


def set_names(ax: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """Name places of the vertical axis, as they are."""
    ax.set_yticks(places, names, parse_math=False)
    ax.tick_params("y", length=0)


def show_cells(ax: Axes, cells: AxisCells, label: str, side: str = "x") -> None:
    """Set the limits, the label and the ticks of an axis: dates where its cells are dates."""
    axis = ax.xaxis if side == "x" else ax.yaxis
    axis.set_label_text(label, parse_math=False)
    if cells.low.size:
        ends = float(cells.low.min()), float(cells.high.max())
        ax.set(**{f"{side}lim": ends[::-1] if side == "y" and cells.kind == "positions" else ends})
    if cells.kind == "positions":
        from matplotlib.ticker import MaxNLocator

        axis.set_major_locator(MaxNLocator(integer=True))
    elif cells.kind == "dates":
        _show_dates(axis, cells)


def _show_dates(axis: Any, cells: AxisCells) -> None:
    """Label an axis of days since 1970 with dates."""
    from matplotlib import dates
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    known: Any = dates
    if cells.calendar == OF_NUMPY and np.datetime64(known.get_epoch()) == np.datetime64(0, "D"):
        # with fewer than three times as many ticks it finds no interval for, say, four years
        found = known.AutoDateLocator(minticks=3, maxticks=7)
        axis.set_major_locator(found)
        axis.set_major_formatter(known.ConciseDateFormatter(found))
        return
    # matplotlib knows one calendar, and one epoch at a time
    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda number, _: cells.text_at(round(number))))


def shorten_urls(urls: Sequence[str]) -> tuple[str, list[str]]:
    """Return what all urls begin with, up to a slash, and what follows it in each.

    Where names are long, what they all begin with goes further, up to another sign.

    >>> shorten_urls(["s3://bucket/2001/a.nc", "s3://bucket/2002/a.nc"])
    ('s3://bucket/', ['2001/a.nc', '2002/a.nc'])
    >>> shorten_urls([f"/a_long_name_of_an_experiment_{n}.nc" for n in (1, 2)])
    ('/a_long_name_of_an_experiment_', ['…1.nc', '…2.nc'])
    """
    shown = [without_secrets(url) for url in urls]
    files = [url for url in shown if url != IN_THE_SET] or [""]
    # what the first and the last of sorted names share, all names share
    pairs = enumerate(zip(min(files), max(files), strict=False))
    shared = next((n for n, (one, other) in pairs if one != other), len(min(files)))
    folder = files[0].rfind("/", 0, shared) + 1
    common = re.search(r".*[^0-9A-Za-z]", files[0][:shared])
    is_long = max(map(len, files)) - folder > LONG_NAME and len(files) > 1 and common is not None
    end, mark = (common.end(), "…") if is_long and common else (folder, "")
    return files[0][:end], [mark + url[end:] if url != IN_THE_SET else HELD for url in shown]


def cut_name(name: str) -> str:
    """Return a name in one line, without its middle if it is long."""
    line = " ".join(name.split())
    if len(line) <= LONGEST_NAME:
        return line
    return f"{line[: LONGEST_NAME // 2 - 2]}…{line[1 - LONGEST_NAME // 2 :]}"
