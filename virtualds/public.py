"""What the public classes have in common: they are named by the package."""

from __future__ import annotations

from typing import TypeVar

Named = TypeVar("Named", bound=type)


def public(kind: Named) -> Named:
    """Name a class by the package, in pickles, reprs and messages, whichever module holds it.

    Examples
    --------
    >>> @public
    ... class Grid: ...
    >>> Grid
    <class 'virtualds.Grid'>
    """
    kind.__module__ = "virtualds"
    return kind
