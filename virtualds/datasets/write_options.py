"""How a set is written: what ``to_manifest``, ``convert`` and ``to=`` have users choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from virtualds.datasets.conflicts import check_conflict
from virtualds.datasets.keywords import check_types, format_suggestion, list_arguments
from virtualds.datasets.rewrite.options import Rewriting
from virtualds.formats import Format
from virtualds.formats.admission import KEEP_QUERY
from virtualds.stores.access_rules import AccessPolicy, Allow

MODES = ("w-", "w", "a", "replace-source")
CREATING = ("w-", "w")
REWRITING = tuple(one.name for one in fields(Rewriting))
OF_ALL = (KEEP_QUERY, *REWRITING)
"""Choices of every format."""


@dataclass(frozen=True)
class WriteOptions:
    """How a set is written. The options agree with each other.

    Parameters
    ----------
    format, mode, append_dim, position, on_duplicate, conflict, allow
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

    def __post_init__(self) -> None:
        if self.mode is None:
            object.__setattr__(self, "mode", "w-" if self.append_dim is None else "a")
        mode, dim = self.mode, self.append_dim
        if mode not in MODES:
            raise ValueError(
                f"mode {mode!r}: there are 'w-' (create), 'w' (create or replace), 'a' (append "
                f"along append_dim), and 'replace-source'"
            )
        if (mode == "a" and dim is None) or (mode in CREATING and dim is not None):
            raise ValueError(
                f"mode {mode!r} with append_dim={dim!r}: name the dimension to append along, and "
                f"nothing else to create a set"
            )
        if mode != "a" and (self.position, self.on_duplicate) != ("end", "raise"):
            raise ValueError(
                f"mode {mode!r} with position={self.position!r}, "
                f"on_duplicate={self.on_duplicate!r}: these are for appending; name the dimension "
                f"with append_dim, or leave them out"
            )
        check_conflict(self.conflict)
        AccessPolicy.of(self.allow)
        _ = self.rewriting

    @property
    def rewriting(self) -> Rewriting:
        """What to do about chunks that the format cannot hold."""
        return Rewriting(**{n: v for n, v in self.choices.items() if n in REWRITING})

    @property
    def keep_query(self) -> bool:
        """Whether urls are written that hold a secret."""
        return bool(self.choices.get(KEEP_QUERY, False))

    @property
    def of_format(self) -> dict[str, Any]:
        """The choices that the format alone knows."""
        return {name: value for name, value in self.choices.items() if name not in OF_ALL}

    def check_choices(self, target: Format, call: Callable[..., Any] | None) -> None:
        """Refuse choices that a format does not have; ``call`` is what a user has called."""
        known = [*target.choices, *OF_ALL]
        others = list_arguments(WriteOptions if call is None else call)
        for name in sorted(self.choices.keys() - set(known)):
            raise TypeError(
                f"{name!r} is no option of {target.name}, which has {known}"
                f"{format_suggestion(name, {*known, *others} - {name})}"
            )
        check_types(self.choices)
