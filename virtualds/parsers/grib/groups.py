"""Groups of GRIB fields: those that a user wants, each kind of them a group.

Fields come from the messages of a file, or from the index of a file. ``filter_by_keys`` is that of
cfgrib.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from virtualds.arrays.group import ManifestGroup
from virtualds.errors import UnsupportedError, VirtualdsError
from virtualds.parsers.grib.kinds import AXES, Kind, group_kinds
from virtualds.parsers.grib.messages import LISTED_KEYS, GribField, read_key
from virtualds.parsers.grib.variables import MessageGroup
from virtualds.source_file import SourceFile

SHOWN = 12
"""Fields that an error shows."""
OWN_KEYS: dict[str, Callable[[GribField], Any]] = {**AXES, "offset": lambda field: field.offset}
"""Keys that are told as coordinates have them: ``time`` in seconds, ``step`` in hours."""


@dataclass(frozen=True)
class FoundFields:
    """The fields of a file.

    Parameters
    ----------
    source : SourceFile
        The file that holds the messages.
    fields : sequence of GribField
        At least one.
    eccodes : module
    damaged : dict
        What is wrong with the messages that have no field here, by their place.
    """

    source: SourceFile
    fields: Sequence[GribField]
    eccodes: Any
    damaged: Mapping[str, VirtualdsError]

    def select(self, wanted: Mapping[str, Any] | None) -> FoundFields:
        """Return the fields whose keys have the wanted values.

        Raises
        ------
        ValueError
            There is none.
        TypeError
            ``wanted`` is no dict.
        """
        if not isinstance(wanted, Mapping | None):
            raise TypeError(f"filter_by_keys={wanted!r}: give a dict of keys and their values")
        found = self.fields
        for name, values in (wanted or {}).items():
            several = isinstance(values, list | tuple | set | frozenset)
            told = {str(v) for v in values} if several else {str(values)}
            kept = [m for m in found if self._tell(m, name) & told]
            if not kept:
                raise self._nothing_error(name, values, found)
            found = kept
        return replace(self, fields=found)

    def _tell(self, field: GribField, name: str) -> set[str]:
        """Return the value of a key as texts that a user may give; none if the field lacks it."""
        if name in OWN_KEYS:
            value = OWN_KEYS[name](field)
        elif name in LISTED_KEYS:
            value = field.keys.get(name)
        else:
            value = read_key(field, name, self.eccodes)
        if isinstance(value, float) and value.is_integer():
            return {str(value), str(int(value))}
        return set() if value is None else {str(value)}

    def _nothing_error(self, name: str, values: Any, found: Sequence[GribField]) -> ValueError:
        there = sorted({min(self._tell(field, name), default="") for field in found} - {""})
        shown = ", ".join(there[:SHOWN]) + (", ..." if len(there) > SHOWN else "")
        return ValueError(
            f"{self.source.url}: filter_by_keys: no message has {name}={values!r}; "
            f"{f'those that are left have {shown}' if there else 'no message has this key'}"
        )

    def read(self, group: str | None, skip: Iterable[str]) -> ManifestGroup:
        """Return one group of the fields, or all if they are of one kind.

        Raises
        ------
        UnsupportedError
            ``group`` is missing where there are several.
        FileNotFoundError
            There is no such group.
        """
        kinds = group_kinds(self.fields)
        wanted = group.strip("/") if isinstance(group, str) else group
        if len(kinds) > 1 and not wanted:
            raise UnsupportedError(
                f"{self.source.url}: messages are of {len(kinds)} kinds, by type of level, grid, "
                f"times, steps and levels; open one with group=, one of {sorted(kinds)}"
            )
        if not wanted:
            (kind,) = kinds.values()
            return self._note(self._make(kind, skip))
        groups = {
            name: self._note(self._make(kind, skip)) if name == wanted else ManifestGroup()
            for name, kind in kinds.items()
        }
        return ManifestGroup(groups=groups).group(group)

    def read_tree(self, group: str | None, skip: Iterable[str]) -> ManifestGroup:
        """Return fields of all kinds, each kind as a group, unless there is only one."""
        if group is not None and (not isinstance(group, str) or group.strip("/")):
            return self.read(group, skip)
        kinds = group_kinds(self.fields)
        groups = {name: self._make(kind, skip) for name, kind in kinds.items()}
        return self._note(
            ManifestGroup(groups=groups) if len(groups) > 1 else next(iter(groups.values()))
        )

    def _make(self, kind: Kind, skip: Iterable[str]) -> ManifestGroup:
        return MessageGroup(self.source, kind, self.eccodes).read(frozenset(skip))

    def _note(self, group: ManifestGroup) -> ManifestGroup:
        """Return a group that names the damaged messages of the file."""
        return replace(group, damaged=self.damaged)
