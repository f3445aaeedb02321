"""What users say about variables that a format cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from virtualds.datasets.rewrite.plan import VariablePlan
from virtualds.errors import UnsupportedError, list_details
from virtualds.progress import ProgressOption

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
