"""How a set is written: what ``to_manifest``, ``convert`` and ``to=`` have users choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from virtualds.datasets.changed_groups import normalise_path
from virtualds.datasets.conflicts import check_conflict
from virtualds.datasets.keywords import (
    check_choice,
    check_types,
    format_suggestion,
    list_arguments,
)
from virtualds.datasets.reference_changes import ReferenceChanges
from virtualds.datasets.registry import CHANGES
from virtualds.datasets.rewrite.options import Rewriting
from virtualds.formats import Format
from virtualds.formats.admission import KEEP_QUERY
from virtualds.stores.access_rules import AccessPolicy, Allow

MODES = ("w-", "w", "a", "r+", "replace-source")
CREATING = ("w-", "w")
NEW_VARIABLES = ("error", "fill", "drop")
MISSING_VARIABLES = ("error", "fill")
REWRITING = tuple(one.name for one in fields(Rewriting))
OF_ALL = (KEEP_QUERY, *REWRITING)
"""Choices of every format."""


@dataclass(frozen=True)
class WriteOptions:
    """How a set is written. The options agree with each other.

    Parameters
    ----------
    format, mode, append_dim, position, on_duplicate, conflict, allow, region
        As for ``ds.virtual.to_manifest``.
    group, new_variables, missing_variables
        As for ``ds.virtual.to_manifest``.
    choices : mapping
        What the format lets one choose, and what every format has: ``keep_query``, and the
        fields of `Rewriting`.

    Raises
    ------
    ValueError
        There is no such mode or way to settle conflicts, or options exclude each other.
    """

    format: str | None = None
    mode: str | None = None
    append_dim: str | None = None
    position: str = "end"
    on_duplicate: str = "raise"
    conflict: str = "raise"
    allow: Allow = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    new_variables: str = "error"
    missing_variables: str = "error"
    region: Any = None

    @classmethod
    def of_call(cls, given: Mapping[str, Any]) -> WriteOptions:
        """Pick the options out of the arguments of a call."""
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given})

    def __post_init__(self) -> None:
        if self.mode is None:
            default = "w-" if self.append_dim is None else "a"
            object.__setattr__(self, "mode", default if self.region is None else "r+")
        self._check_mode()
        check_choice("new_variables", self.new_variables, NEW_VARIABLES)
        check_choice("missing_variables", self.missing_variables, MISSING_VARIABLES)
        check_conflict(self.conflict)
        self._check_appending()
        AccessPolicy.of(self.allow)
        normalise_path(self.group)
        _ = self.rewriting

    def _check_mode(self) -> None:
        """Refuse an unknown mode, and a region or a dimension that it does not take."""
        mode, dim = self.mode, self.append_dim
        if mode not in MODES:
            raise ValueError(
                f"mode={mode!r}: give one of 'w-' (create), 'w' (create or replace), 'a' (add "
                f"variables, or append along append_dim), 'r+' (fill a region, or replace "
                f"variables), or 'replace-source'"
            )
        if self.region is not None and (mode != "r+" or dim is not None):
            raise ValueError(
                f"mode={mode!r} with region={self.region!r} and append_dim={dim!r}: mode 'r+' "
                f"fills a region of a set, and nothing else does"
            )
        if dim is not None and mode not in ("a", "replace-source"):
            raise ValueError(
                f"mode={mode!r} with append_dim={dim!r}: name the dimension to append along, and "
                f"nothing else to create a set"
            )

    def _check_appending(self) -> None:
        """Refuse options of appends where nothing is appended."""
        given = {
            "position": (self.position, "end"),
            "on_duplicate": (self.on_duplicate, "raise"),
            "new_variables": (self.new_variables, "error"),
            "missing_variables": (self.missing_variables, "error"),
        }
        others = {name: value for name, (value, default) in given.items() if value != default}
        if self.region is not None or (self.mode == "a" and self.append_dim is None):
            check_choice("on_duplicate", self.on_duplicate, ("raise", "skip", "replace"))
            others.pop("on_duplicate", None)
        elif self.is_append:
            return
        if others:
            listed = ", ".join(f"{name}={value!r}" for name, value in others.items())
            raise ValueError(
                f"mode={self.mode!r} with {listed}: these are for appending; name the dimension "
                f"with append_dim, or leave them out"
            )

    @property
    def is_append(self) -> bool:
        """Whether the data are appended along a dimension."""
        return self.mode == "a" and self.append_dim is not None

    @property
    def path(self) -> str:
        """The path of the group that is written, ``""`` for the root."""
        return normalise_path(self.group)

    @property
    def creates_set(self) -> bool:
        """Whether the data become the whole set."""
        return self.mode in CREATING and not self.path

    @property
    def replaces_set(self) -> bool:
        """Whether the data may replace another set."""
        return self.mode == "w" and not self.path

    @property
    def rewriting(self) -> Rewriting:
        """What to do about chunks that the format cannot hold."""
        return Rewriting(**{n: v for n, v in self.choices.items() if n in REWRITING})

    @property
    def keep_query(self) -> bool:
        """Whether urls are written that hold a secret."""
        return bool(self.choices.get(KEEP_QUERY, False))

    @property
    def changes(self) -> ReferenceChanges:
        """How chunks are cut and held before the format gets them."""
        return ReferenceChanges.of(self.choices)

    @property
    def of_format(self) -> dict[str, Any]:
        """The choices that the format alone knows."""
        shared = (*OF_ALL, *CHANGES)
        return {name: value for name, value in self.choices.items() if name not in shared}

    def check_choices(self, target: Format, call: Callable[..., Any] | None) -> None:
        """Refuse choices that a format does not have; ``call`` is what a user has called."""
        known = [*target.choices, *OF_ALL]
        others = list_arguments(WriteOptions if call is None else call)
        listed = ", ".join(known)
        for name in sorted(self.choices.keys() - set(known)):
            remedy = format_suggestion(name, {*known, *others} - {name})
            if name in {one.name for one in fields(self)}:
                remedy = "; ds.virtual.to_manifest has it, and this call does not"
            raise TypeError(f"{target.name} has no option {name!r}{remedy or f'; it has {listed}'}")
        check_types(self.choices)
        ReferenceChanges.of(self.choices)
