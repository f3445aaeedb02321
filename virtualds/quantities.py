"""Numbers of bytes and of things, and names, in words: the same on pages and in texts."""

from __future__ import annotations

from collections.abc import Iterable

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
"""Powers of a thousand, as xarray counts bytes."""


def format_bytes(count: float) -> str:
    """Return a number of bytes with a unit.

    Examples
    --------
    >>> format_bytes(1), format_bytes(999), format_bytes(263_512), format_bytes(999_999)
    ('1 byte', '999 bytes', '263.5 kB', '1.0 MB')
    """
    if count < 1000:
        return "1 byte" if count == 1 else f"{count:,.0f} bytes"
    value, power = float(count), 0
    # what rounds to a thousand has the next unit
    while round(value, 1) >= 1000 and power < len(UNITS) - 1:
        value, power = value / 1000, power + 1
    return f"{value:,.1f} {UNITS[power]}"


def format_count(count: int, thing: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> format_count(1, "file"), format_count(12000, "file")
    ('1 file', '12,000 files')
    """
    return f"{count:,} {thing}{'s' * (count != 1)}"


def name_some(names: Iterable[str], most: int, rest: str = "more") -> str:
    """Return the first names, and the number of the others.

    Examples
    --------
    >>> name_some(["t", "u"], 2), name_some(["t", "u", "v", "w"], 2)
    ('t, u', 't, u and 2 more')
    """
    known = list(names)
    left = len(known) - most
    return ", ".join(known[:most]) + (f" and {left:,} {rest}" if left > 0 else "")
