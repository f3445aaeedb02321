"""Which group of a reference set is read, and how."""

from __future__ import annotations

from dataclasses import dataclass

from virtualds.stores.access_rules import ANYWHERE, AccessPolicy


@dataclass(frozen=True)
class ReadOptions:
    """Which group of a reference set is read, and how.

    Parameters
    ----------
    group : str, optional
        Path of a group; the root group by default.
    skip : set of str
        Names of variables to leave out.
    allow : AccessPolicy
        Where the files that the set refers to may lie.
    snapshot : str, optional
        An earlier snapshot, of a format that keeps snapshots; by default the newest. Formats say
        how they name snapshots.
    """

    group: str | None = None
    skip: frozenset[str] = frozenset()
    allow: AccessPolicy = ANYWHERE
    snapshot: str | None = None


READ_ALL = ReadOptions()
"""How all of the newest snapshot is read."""
