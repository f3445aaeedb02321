"""The colours and textures of all pictures.

The colours are those of Okabe and Ito (2008), which colour-blind people can tell apart, in an order
in which neighbours differ in lightness too. Each has a texture of its own: no picture says a thing
by colour alone.
"""

from __future__ import annotations

from typing import NamedTuple


class Shade(NamedTuple):
    """A colour with its texture.

    Parameters
    ----------
    name : str
        It names the shade in HTML and SVG.
    light, dark : str
        The colour on a light and on a dark page.
    texture : str
        The lines that lie over it, as a path on a square of `TILE` units; empty for none.
    ink : str
        The colour of these lines.
    hatch : str
        What matplotlib calls a similar texture.
    """

    name: str
    light: str
    dark: str
    texture: str = ""
    ink: str = "#000"
    hatch: str = ""


TILE = 6
"""Width and height of the square that a texture repeats."""

SLASHES = f"M-1 1l2 -2M0 {TILE}L{TILE} 0M{TILE - 1} {TILE + 1}l2 -2"
BACKSLASHES = f"M-1 {TILE - 1}l2 2M0 0L{TILE} {TILE}M{TILE - 1} -1l2 2"

SERIES = (
    Shade("blue", "#0072b2", "#2389c9"),
    Shade(
        "orange", "#e69f00", "#e69f00", "M1.5 1.5h1.2v1.2h-1.2zM4.5 4.5h1.2v1.2h-1.2z", "#000", ".."
    ),
    Shade("green", "#009e73", "#16ad83", "M3 0v6", "#fff", "||"),
    Shade("yellow", "#e8d92c", "#f0e442", "M0 3h6", "#000", "--"),
    Shade("purple", "#cc79a7", "#cc79a7", BACKSLASHES, "#fff", "\\\\"),
    Shade("sky", "#56b4e9", "#56b4e9", "M3 0v6M0 3h6", "#000", "++"),
    Shade("vermilion", "#d55e00", "#e06c12", BACKSLASHES + SLASHES, "#fff", "xx"),
)
"""The shades of things that have no order, such as encodings and eras."""

GAP = Shade("gap", "#777", "#999", SLASHES, "currentColor", "//")
"""What is not there: the texture alone, without a colour below it."""

NEXT = Shade("next", "#7fbfe6", "#0b4f78")
"""It takes turns with the first shade of a series, to show where one thing ends."""

UNKNOWN = Shade("unknown", "#9a9a9a", "#8a8a8a")
"""What nobody has looked at."""

OK, CHANGED, MISSING = SERIES[2]._replace(texture="", hatch=""), SERIES[1], SERIES[6]
"""The shades of what is as it should be, of what is not, and of what is gone."""

SHADES = (*SERIES, GAP, NEXT, UNKNOWN)


def shade_of(number: int) -> Shade:
    """Return the shade of the thing of this number; the last one is that of all others.

    Examples
    --------
    >>> shade_of(0).name, shade_of(99).name
    ('blue', 'vermilion')
    """
    return SERIES[min(number, len(SERIES) - 1)]
