"""Colormaps, and PNG pictures of values."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

LEVELS = 255
"""Number of colours of a colormap. The palette of a PNG has one more, for missing values."""

Lch = tuple[float, float, float]
"""A colour in OKLCh, the polar form of OKLab: lightness (0 to 1), chroma, and hue in degrees."""

COLORMAPS: dict[str, tuple[Lch, ...]] = {
    # lightness increases linearly, and blue and yellow differ for all kinds of colour blindness
    "blue-yellow": ((0.22, 0.08, 285), (0.45, 0.11, 245), (0.68, 0.10, 185), (0.95, 0.14, 105)),
    "fire": ((0.16, 0.04, 300), (0.42, 0.15, 370), (0.68, 0.18, 405), (0.96, 0.09, 465)),
    "ice": ((0.98, 0.02, 200), (0.80, 0.08, 215), (0.55, 0.13, 245), (0.25, 0.09, 275)),
    "green": ((0.97, 0.04, 115), (0.78, 0.13, 135), (0.52, 0.12, 150), (0.26, 0.06, 165)),
    "grey": ((0.12, 0.0, 0), (0.97, 0.0, 0)),
    # both arms have equal lightness at equal distance from the middle
    "blue-red": (
        (0.34, 0.12, 255),
        (0.62, 0.13, 245),
        (0.97, 0.005, 245),
        (0.97, 0.005, 35),
        (0.62, 0.16, 35),
        (0.34, 0.12, 22),
    ),
    # directions and phases: the ends meet
    "cyclic": (
        (0.35, 0.10, 285),
        (0.65, 0.11, 215),
        (0.90, 0.05, 160),
        (0.65, 0.13, 50),
        (0.35, 0.10, -75),
    ),
}
"""Equidistant colours of each colormap, from low values to high values."""

FROM_LAB = np.array(
    [
        [1, 0.3963377774, 0.2158037573],
        [1, -0.1055613458, -0.0638541728],
        [1, -0.0894841775, -1.291485548],
    ]
)
TO_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.707614701],
    ]
)
"""From OKLab to linear sRGB (B. Ottosson, A perceptual color space for image processing, 2020)."""


@cache
def make_palette(name: str) -> bytes:
    """Return the colours of a colormap as bytes of red, green and blue, from low to high.

    Examples
    --------
    >>> make_palette("grey")[:3].hex(), make_palette("grey")[-3:].hex()
    ('060606', 'f5f5f5')
    """
    points = np.array(COLORMAPS[name])
    positions = np.linspace(0, len(points) - 1, LEVELS)
    lightness, chroma, hue = (np.interp(positions, np.arange(len(points)), c) for c in points.T)
    angle = np.deg2rad(hue)
    lab = np.stack([lightness, chroma * np.cos(angle), chroma * np.sin(angle)])
    linear = np.clip(TO_RGB @ (FROM_LAB @ lab) ** 3, 0, 1)
    # the transfer function of sRGB (IEC 61966-2-1)
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return bytes(np.round(srgb.T * 255).astype(np.uint8))


def list_css_colours(count: int = 16) -> dict[str, list[str]]:
    """Return ``count`` colours of each colormap in the notation of CSS.

    Examples
    --------
    >>> list_css_colours(2)["grey"]
    ['#060606', '#f5f5f5']
    """
    chosen = np.linspace(0, LEVELS - 1, count).astype(int)
    return {
        name: [f"#{make_palette(name)[3 * n : 3 * n + 3].hex()}" for n in chosen]
        for name in COLORMAPS
    }


def choose_colormap(low: float, high: float) -> str:
    """Return the name of a colormap for a range: diverging if zero is roughly in the middle.

    Examples
    --------
    >>> choose_colormap(-20, 30), choose_colormap(250, 300)
    ('blue-red', 'blue-yellow')
    """
    return "blue-red" if low < 0 < high and 0.2 < -low / high < 5 else "blue-yellow"


def find_range(values: npt.NDArray[Any]) -> tuple[float, float]:
    """Return the range of values for a colormap, without the outermost 0.5 % at each end.

    Up to 1000 values, and categorical data (few distinct integers), keep their full range. For a
    diverging colormap, the range is symmetric around zero.

    Examples
    --------
    >>> find_range(np.array([1.0, 2.0, np.nan])), find_range(np.array([-1.0, 2.0]))
    ((1.0, 2.0), (-2.0, 2.0))
    """
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if finite.size > 1000 and not _is_categorical(finite):
        # np.partition is faster than np.percentile: a picture may have millions of values
        first = max(finite.size // 200, 1)
        last = finite.size - 1 - first
        ordered = np.partition(finite, [first, last])
        if ordered[first] != ordered[last]:
            low, high = float(ordered[first]), float(ordered[last])
    if choose_colormap(low, high) == "blue-red":
        high = max(-low, high)
        low = -high
    return low, high


def _is_categorical(values: npt.NDArray[Any]) -> bool:
    return float(np.ptp(values)) < LEVELS and bool((np.rint(values) == values).all())


def _normalise(values: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.float64]:
    """Scale values linearly so that ``low`` becomes 0 and ``high`` becomes 1."""
    # a power of two, so that high - low neither overflows nor underflows
    factor = 2.0**-600 if max(abs(low), abs(high)) > 1 else 2.0**600
    scaled, start, stop = (np.asarray(x, np.float64) * factor for x in (values, low, high))
    normalised: npt.NDArray[np.float64] = (scaled - start) / (stop - start)
    return normalised


def draw_png(values: npt.NDArray[Any], low: float, high: float, colormap: str) -> bytes:
    """Return a PNG picture with one pixel for each value. Missing values are transparent.

    Source: Portable Network Graphics (third edition), sections 5 and 11, indexed colour.

    Examples
    --------
    >>> draw_png(np.array([[1.0, np.nan]]), 0, 2, "grey")[1:4]
    b'PNG'
    """
    rows, columns = values.shape
    missing = np.isnan(values)
    # infinite values have the colours of the ends
    clipped = np.clip(np.where(missing, low, values), low, high)
    normalised = _normalise(clipped, low, high) if high > low else np.zeros(values.shape)
    # each line begins with the byte of its filter: 0, none
    lines = np.zeros((rows, columns + 1), np.uint8)
    lines[:, 1:] = np.where(missing, 0, np.rint(normalised * (LEVELS - 1)) + 1)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", b"\0\0\0" + make_palette(colormap)),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(lines.tobytes(), 3)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
