"""Fits a group to a format: rewrites what the format cannot hold, if the user wants that."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.datasets.location import Location, format_for
from virtualds.datasets.reference_changes import ReferenceChanges
from virtualds.datasets.registry import SUBCHUNK
from virtualds.datasets.rewrite.plan import (
    Obstacles,
    VariablePlan,
    build_cost_table,
    plan_rewriting,
)
from virtualds.datasets.rewrite.run import choose_waiting_room, name_folder, rewrite_group
from virtualds.errors import UnsupportedError, list_details
from virtualds.formats import Format
from virtualds.formats.admission import know_nothing
from virtualds.progress import ProgressOption, count_progress
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.urls import scheme_of

ON_UNSUPPORTED = ("error", "rewrite")


@dataclass(frozen=True)
class Rewriting:
    """Whether to rewrite chunks that a format cannot hold, and how.

    Parameters
    ----------
    on_unsupported : {"error", "rewrite"}
    main_encoding : mapping
        By variable, what its main encoding is to have.
    rewrite_limit : int, optional
        Most bytes to rewrite, before codecs.
    progress : bool or callable, optional
        Whether to show bars, or a function of the `Progress` of rewriting and writing.

    Raises
    ------
    ValueError
        There is no such choice, or the limit is no number of bytes.
    """

    on_unsupported: str = "error"
    main_encoding: Mapping[str, Any] = field(default_factory=dict)
    rewrite_limit: int | None = None
    progress: ProgressOption = None

    def __post_init__(self) -> None:
        if self.on_unsupported not in ON_UNSUPPORTED:
            raise ValueError(
                f"on_unsupported={self.on_unsupported!r}: give 'error', or 'rewrite', which "
                f"encodes chunks anew that the format cannot hold"
            )
        limit = self.rewrite_limit
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ValueError(f"rewrite_limit={limit!r}: give a number of bytes, or None")
        if not self.rewrites and (limit is not None or self.main_encoding):
            raise ValueError(
                "rewrite_limit and main_encoding are for rewriting; pass on_unsupported='rewrite', "
                "or leave them out"
            )

    @property
    def rewrites(self) -> bool:
        """Whether chunks may be rewritten."""
        return self.on_unsupported == "rewrite"

    def demand_within_limit(self, plans: Mapping[str, VariablePlan], target: str) -> None:
        """Refuse to rewrite more than the user allows.

        Raises
        ------
        UnsupportedError
            There is more to rewrite; the message lists the variables.
        """
        total = sum(plan.nbytes for plan in plans.values())
        if self.rewrite_limit is None or total <= self.rewrite_limit:
            return
        details = [
            f"{path}: {plan.nchunks:,} chunks, {plan.nbytes:,} bytes: {'; '.join(plan.reasons)}"
            for path, plan in plans.items()
        ]
        said = (
            f"{target}: {total:,} bytes would have to be rewritten, more than rewrite_limit="
            f"{self.rewrite_limit:,}; raise the limit, leave these variables out (ds.drop_vars), "
            f"or choose another format: ds.virtual.cost(format) shows what each costs"
        )
        raise UnsupportedError(list_details(said, details))


# ---------------------------------------------------------------------- the target of rewriting


@dataclass(frozen=True)
class RewriteTarget:
    """Where rewritten chunks go, and which ones a format needs.

    Parameters
    ----------
    location : Location
        Of the set.
    format : Format
    rewriting : Rewriting
    choices : mapping
        Of the format.
    """

    location: Location
    format: Format
    rewriting: Rewriting
    choices: Mapping[str, Any]

    @property
    def is_needed(self) -> bool:
        """Whether chunks may have to be rewritten: for the format, or since the user wants it."""
        is_limited = self.format.obstacles is not None
        return self.rewriting.rewrites and (is_limited or bool(self.rewriting.main_encoding))

    @property
    def root(self) -> str:
        """Url of the folder of rewritten chunks."""
        if self.format.takes_in:
            return choose_waiting_room(self.location.target)
        return name_folder(self.location.url)

    @property
    def options(self) -> StorageOptions | None:
        """Access options of the folder."""
        same = scheme_of(self.root) == scheme_of(self.location.url)
        return self.location.options if same else None

    @property
    def for_writer(self) -> dict[str, Any]:
        """What the writer of the format has to know: the folder whose chunks it takes in."""
        return {"takes_in": self.root} if self.is_needed and self.format.takes_in else {}

    def fit(self, group: ManifestGroup) -> ManifestGroup:
        """Return a group that the format can hold; chunks that it needs have been written.

        Raises
        ------
        UnsupportedError
            A variable cannot be rewritten, or there is more to rewrite than the user allows.
            Nothing has been written.
        """
        if not self.is_needed:
            return group
        name, rewriting = str(self.location.url), self.rewriting
        plans = plan_rewriting(group, self._obstacles, rewriting.main_encoding, name)
        if not plans:
            return group
        rewriting.demand_within_limit(plans, name)
        total = sum(plan.nbytes for plan in plans.values())
        with count_progress(rewriting.progress, "rewriting", total, "B") as tell:
            keep = not self.format.takes_in
            return rewrite_group(group, plans, self.root, self.options, tell, keep=keep)

    def clear(self, group: ManifestGroup) -> None:
        """Remove chunks that the format has taken into the set."""
        if not self.for_writer:
            return
        waiting = [
            file.url
            for array in group.list_arrays()
            for file in array.sources
            if file.url.startswith(f"{self.root}/")
        ]
        if waiting:
            # folders that become empty go too, below the folder that holds all names
            beside = f"{self.root}.{secrets.token_hex(8)}"
            find_store(self.root).remove([*waiting, beside], self.options)

    @property
    def _obstacles(self) -> Obstacles:
        return bind_obstacles(self.format, self.choices)


def bind_obstacles(form: Format, choices: Mapping[str, Any]) -> Obstacles:
    """Return the function that says why a format, with some choices, cannot hold a variable."""
    if form.obstacles is None:
        return hold_everything
    return partial(form.obstacles, **choices)


def hold_everything(variable: ManifestVariable) -> list[str]:
    """Return no obstacle: the format holds every array."""
    return []


def estimate_cost(
    group: ManifestGroup,
    format: str,
    main_encoding: Mapping[str, Any] | None = None,
    **choices: Any,
) -> pd.DataFrame:
    """Return the table of what ``on_unsupported="rewrite"`` costs; see ``ds.virtual.cost``."""
    form = format_for(Location(""), format)
    if unknown := sorted(choices.keys() - set(form.choices)):
        known = ", ".join(["main_encoding", *form.choices])
        raise TypeError(f"cost: {form.name} has no option {unknown[0]!r}; give one of {known}")
    # rewriting begins after chunks are cut; which ones a set holds itself costs nothing
    group = ReferenceChanges(choices.get(SUBCHUNK)).apply(group, know_nothing)
    obstacles = bind_obstacles(form, choices)
    plans = plan_rewriting(group, obstacles, main_encoding or {}, form.name)
    return build_cost_table(group, plans)
