"""Report what was dropped, renamed and changed in a set, and what was kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from virtualds.arrays.group import find_dim_sizes
from virtualds.errors import format_count, format_names, public, without_secrets
from virtualds.pictures import SHOWN_ROWS, Block, Heading, Report
from virtualds.writing import EMPTY, CommitResult, Destination


class SizeChange(NamedTuple):
    """A dimension whose length has changed, with the path of its group."""

    dim: str
    before: int
    after: int


@public
@dataclass(frozen=True, repr=False)
class SetChange(Report):
    """The changes that `virtualds.edit` or `virtualds.drop_sources` made to a set.

    Parameters
    ----------
    target : str
        The set.
    sources : tuple of str
        Urls of dropped source files.
    groups, variables : tuple of str
        Paths of dropped groups and variables, with those below and in dropped groups.
    sizes : tuple of SizeChange
        The dimensions that became shorter.
    renamed : dict
        Old names to new ones, of variables and dimensions.
    attributes : dict
        The new values; None for attributes that were removed.
    kept : tuple of str
        Paths of the variables that the set has now.
    dry_run : bool
        Whether nothing was written, and the report says what would have been done.

    Examples
    --------
    >>> print(SetChange("file:///refs.zarr", variables=("/t",), kept=("/lat", "/lon")))
    file:///refs.zarr: 1 variable dropped, 2 variables kept
      variables dropped  /t
      kept               /lat, /lon
    """

    target: str
    sources: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    sizes: tuple[SizeChange, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    dry_run: bool = False

    _title = "Change of a set"

    @classmethod
    def of(
        cls,
        destination: Destination,
        result: CommitResult,
        *,
        variables: tuple[str, ...] = (),
        **facts: Any,
    ) -> SetChange:
        """Return the report on a set before and after a change.

        ``variables`` are the variables that were dropped from remaining groups, and ``facts`` other
        fields that a comparison of both versions cannot show.
        """
        before, after = result.before or EMPTY, result.after
        remaining_groups = dict(after.walk())
        dropped_groups = {
            path: group for path, group in before.walk() if path not in remaining_groups
        }
        sizes = [
            SizeChange(_join(path, dim), size, now[dim])
            for path, group in before.walk()
            for now in [find_dim_sizes(remaining_groups.get(path, EMPTY))]
            for dim, size in find_dim_sizes(group).items()
            if now.get(dim, size) != size
        ]
        in_dropped_groups = [
            _join(path, name) for path, group in dropped_groups.items() for name in group.variables
        ]
        return cls(
            without_secrets(destination.location.url),
            groups=tuple(_join(path) for path in dropped_groups),
            variables=(*variables, *in_dropped_groups),
            sizes=tuple(sizes),
            kept=tuple(_join(path) for path, _ in after.walk_variables()),
            dry_run=destination.dry_run,
            **facts,
        )

    def _iterate_blocks(self) -> Iterator[Block]:
        counts = {"source": self.sources, "group": self.groups, "variable": self.variables}
        words = [f"{format_count(len(x), noun)} dropped" for noun, x in counts.items() if x]
        words += [f"{dim} {before:,} to {after:,}" for dim, before, after in self.sizes]
        changed = {"name": self.renamed, "attribute": self.attributes}
        words += [f"{format_count(len(x), noun)} changed" for noun, x in changed.items() if x]
        words += [f"{format_count(len(self.kept), 'variable')} kept"]
        end = "; a dry run, which wrote nothing" if self.dry_run else ""
        lists = {
            "sources dropped": format_names(map(without_secrets, self.sources), SHOWN_ROWS),
            "groups dropped": format_names(self.groups, SHOWN_ROWS),
            "variables dropped": format_names(self.variables, SHOWN_ROWS),
            "renamed": ", ".join(f"{old} to {new}" for old, new in self.renamed.items()),
            "attributes": ", ".join(self.attributes),
            "kept": format_names(self.kept, SHOWN_ROWS),
        }
        facts = {name: text or None for name, text in lists.items()}
        yield Heading(f"{self.target}: {', '.join(words)}{end}", [facts])


def _join(path: str, name: str = "") -> str:
    """Return the absolute path of a group, or of a name in it."""
    return "/" + "/".join(part for part in (path, name) if part)
