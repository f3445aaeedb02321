"""Dimensions that one file calls by other names than the rest, and the code that renames them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence


def find_renamed(
    usual: Sequence[str], other: Sequence[str], taken: Collection[str] = ()
) -> dict[str, str]:
    """Return how to rename the dimensions of a variable to make them the usual ones.

    Parameters
    ----------
    usual, other : sequence of str
        The dimensions of one variable, in order.
    taken : collection of str
        Variables beside the other one, whose names its dimensions cannot get.

    Returns
    -------
    dict of str to str
        The usual names by the other ones; empty if the dimensions differ in more than names.

    Examples
    --------
    >>> find_renamed(("time", "lat", "lon"), ("time", "latitude", "lon"))
    {'latitude': 'lat'}
    >>> find_renamed(("time", "lat"), ("lat", "time"))
    {}
    """
    if len(usual) != len(other):
        return {}
    found = {new: old for old, new in zip(usual, other, strict=True) if old != new}
    free = found.keys().isdisjoint(usual) and set(found.values()).isdisjoint({*other, *taken})
    return found if free else {}


def write_rename(names: Mapping[str, str]) -> str:
    """Return the function, as code, that renames dimensions in the files that have them.

    Examples
    --------
    >>> write_rename({"latitude": "lat"})
    'lambda ds: ds.rename({"latitude": "lat"} if "latitude" in ds.dims else {})'
    """
    text = {json.dumps(new): json.dumps(old) for new, old in names.items()}
    found = "{" + ", ".join(f"{new}: {old}" for new, old in text.items()) + "}"
    if len(text) == 1:
        return f"lambda ds: ds.rename({found} if {next(iter(text))} in ds.dims else {{}})"
    return f"lambda ds: ds.rename({{n: m for n, m in {found}.items() if n in ds.dims}})"
