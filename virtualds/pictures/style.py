"""The style sheet of all pictures. Every rule begins with a class of ours, so that none leaks.

Text and lines take the colour of the page around them. Only the shades differ between light and
dark: the page says which by the attributes of Jupyter, VS Code, Sphinx themes and xarray, else the
browser does.

The colours and textures of all pictures.

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


# ---------------------------------------------------------------------- style


def name_shade(shade: Shade) -> str:
    """Return the colour of a shade as CSS, for pages with our style sheet and without it."""
    return f"var(--vds-{shade.name},{shade.light})"


def _list_themes(theme: str, is_light: str) -> str:
    """Return the selectors of pages that say that they are light or dark."""
    pages = (
        f'html[theme="{theme}"]',
        f'html[data-theme="{theme}"]',
        f'body[data-theme="{theme}"]',
        f'body[data-jp-theme-light="{is_light}"]',
        f"body.vscode-{theme}",
    )
    return ",".join(f"{page} .vds" for page in pages)


def _set_colours(colours: dict[str, str]) -> str:
    return "{" + ";".join(f"--vds-{name}:{colour}" for name, colour in colours.items()) + "}"


_LIGHT = {shade.name: shade.light for shade in SHADES}
_DARK = {shade.name: shade.dark for shade in SHADES if shade.dark != shade.light}
_LIGHT_AGAIN = {name: _LIGHT[name] for name in _DARK}

_RULES = """
.vds{font-size:13px;line-height:1.45;max-width:1000px;text-align:left}
.vds *{box-sizing:border-box}
.vds .vds-title{margin:2px 0 6px}
.vds .vds-note{opacity:.7;margin-left:.5em}
.vds div.vds-note{margin:2px 0}
.vds code,.vds .vds-code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.92em;\
background:none;padding:0;color:inherit}
.vds .vds-side{display:flex;flex-wrap:wrap;gap:8px 24px;align-items:flex-start}
.vds .vds-side>*{min-width:0;max-width:100%}
.vds .vds-side>table{max-width:min(100%,420px)}
.vds .vds-side>div{flex:1 1 260px}
.vds .vds-scroll{overflow-x:auto;max-width:100%}
.vds table{border-collapse:collapse;border:0;margin:0;table-layout:auto;font-size:1em;color:inherit}
.vds table tr:nth-child(n){background:none}
.vds table th,.vds table td{padding:2px 12px 2px 0;text-align:left;vertical-align:top;border:0;\
max-width:none;white-space:normal}
.vds .vds-facts th{font-weight:normal;opacity:.7;white-space:nowrap}
.vds .vds-facts td{overflow-wrap:anywhere}
.vds .vds-table th{font-weight:normal;opacity:.7;vertical-align:bottom;white-space:nowrap}
.vds .vds-table td{border-top:1px solid rgba(128,128,128,.3)}
.vds .vds-table .vds-number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.vds .vds-section{margin:4px 0}
.vds .vds-section>summary{cursor:pointer;display:list-item;padding:2px 0}
.vds .vds-section>summary~*{margin-left:16px}
.vds svg{display:block;max-width:100%;height:auto;overflow:visible}
.vds svg text{fill:currentColor;font-size:11px;font-family:inherit}
.vds svg.vds-strip{width:100%;height:var(--vds-height,14px)}
.vds .vds-key{display:flex;flex-wrap:wrap;gap:2px 14px;margin:4px 0}
.vds .vds-key>span{display:inline-flex;align-items:center;gap:6px;overflow-wrap:anywhere}
.vds .vds-key svg{flex:none}
.vds .vds-card{border:1px solid rgba(128,128,128,.35);border-left-width:4px;border-radius:4px;\
padding:6px 12px;margin:8px 0}
"""

STYLE = "".join(
    (
        f".vds{_set_colours(_LIGHT)}",
        f"@media(prefers-color-scheme:dark){{.vds{_set_colours(_DARK)}}}",
        _list_themes("light", "true") + _set_colours(_LIGHT_AGAIN),
        _list_themes("dark", "false") + _set_colours(_DARK),
        _RULES.replace("\n", ""),
    )
)
"""The style sheet of what notebooks show."""

STYLE_OF_PAGES = (
    "html{color-scheme:light dark;background:Canvas;color:CanvasText}"
    "body{margin:0}"
    ".vds-page{font-family:system-ui,sans-serif;margin:0 auto;padding:16px}"
    ".vds-page h1{font-size:20px;margin:0 0 12px}"
    ".vds-page h2{font-size:16px;margin:20px 0 6px}"
)
"""What pages of our own have besides: here we are the page."""
