"""What rewriting costs: per variable the main encoding, the chunks to rewrite, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.manifest import ChunkManifest
from virtualds.datasets.rewrite.cells import Cells, Mask, divide_cells, grid_of
from virtualds.datasets.rewrite.choose import (
    FREE,
    Obstacles,
    Wanted,
    as_stored,
    choose_encoding,
)
from virtualds.datasets.rewrite.cost_table import COLUMNS, CostTable
from virtualds.datasets.rewrite.encodings import MainEncoding
from virtualds.errors import UnsupportedError, cannot_hold
from virtualds.source_file import SourceFile

PLACEHOLDER = SourceFile("file:///rewritten")
"""The file of chunks that are still to be written, to ask a format about the result."""


@dataclass(frozen=True)
class VariablePlan:
    """How one variable is written.

    Parameters
    ----------
    path : str
        Of the variable.
    variable : ManifestVariable
        As the format cannot hold it.
    main : MainEncoding
    cells : Cells
    filled : array of bool
        Missing chunks that must be written, since the format has no place for their value.
    reasons : tuple of str
        Why the format cannot hold the variable.
    """

    path: str
    variable: ManifestVariable
    main: MainEncoding
    cells: Cells
    filled: Mask
    reasons: tuple[str, ...]

    @classmethod
    def of(
        cls, path: str, variable: ManifestVariable, obstacles: Obstacles, wanted: Wanted = FREE
    ) -> VariablePlan | None:
        """Return the plan of a variable, None if it can be written as it is."""
        if not isinstance(variable.data, ManifestArray) or not variable.data.size:
            return None
        reasons = obstacles(variable)
        if not reasons and wanted is FREE:
            return None
        main = choose_encoding(variable, obstacles, wanted)
        cells = divide_cells(variable.data, main)
        none = np.zeros_like(cells.gaps)
        plan = cls(path, variable, main, cells, none, tuple(reasons))
        if cells.missing.any() and obstacles(plan.finish(plan._assume_written())):
            plan = replace(plan, filled=cells.missing)
        return plan

    @property
    def array(self) -> ManifestArray:
        """The array as it is."""
        found: ManifestArray = self.variable.data  # type: ignore[assignment]
        return found

    @property
    def to_write(self) -> Mask:
        """Cells that become chunks of the set."""
        return self.cells.rewritten | self.cells.gaps | self.filled

    @property
    def nchunks(self) -> int:
        """Number of chunks to write; equal ones are written once, and counted each."""
        return int(np.count_nonzero(self.to_write))

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks to write, before codecs."""
        return self.nchunks * self.main.nbytes

    def finish(self, manifest: ChunkManifest) -> ManifestVariable:
        """Return the variable with its chunks in the main encoding."""
        return as_stored(self.variable, self.main, manifest, self.array.shape)

    def _assume_written(self) -> ChunkManifest:
        """Return the references as if all chunks were written."""
        kept, written = self.cells.kept, self.to_write
        return ChunkManifest.build(
            kept.shape,
            files=(*kept.files, PLACEHOLDER),
            file=np.where(written, len(kept.files), kept.file),
            offset=np.where(written, 0, kept.offset),
            length=np.where(written, 1, kept.length),
            inline=kept.inline,
        )


def plan_rewriting(
    group: ManifestGroup, obstacles: Obstacles, main_encoding: Mapping[str, Any], target: str
) -> dict[str, VariablePlan]:
    """Return the plans of all variables that have to be rewritten, by path.

    Raises
    ------
    UnsupportedError
        Some cannot be rewritten; all of them are named.
    ValueError
        An encoding is wanted of a variable that does not exist.
    """
    variables = dict(_list_variables(group))
    if unknown := set(main_encoding) - variables.keys():
        raise ValueError(f"main_encoding of {sorted(unknown)}: give names of {sorted(variables)}")
    plans, problems = {}, []
    for path, variable in variables.items():
        wanted = Wanted.of(main_encoding[path], path) if path in main_encoding else FREE
        try:
            plan = VariablePlan.of(path, variable, obstacles, wanted)
        except UnsupportedError as error:
            problems.append(f"{path}: {error}")
            continue
        if plan is not None:
            plans[path] = plan
    if problems:
        remedy = "load these variables before (ds.virtual.load()), or leave them out (ds.drop_vars)"
        raise cannot_hold(target, "the format", problems, remedy)
    return plans


def build_cost_table(group: ManifestGroup, plans: Mapping[str, VariablePlan]) -> CostTable:
    """Return a row for each virtual variable: what rewriting it costs, and why."""
    rows = [_describe(path, v, plans.get(path)) for path, v in _list_variables(group)
            if isinstance(v.data, ManifestArray)]  # fmt: skip
    return CostTable(rows, columns=COLUMNS)


def _describe(path: str, variable: ManifestVariable, plan: VariablePlan | None) -> tuple[Any, ...]:
    array: ManifestArray = variable.data  # type: ignore[assignment]
    if plan is None:
        return path, array.nchunks, 0, 0, "", ""
    chunks = int(np.prod(grid_of(array.shape, plan.main.chunks)))
    reason = "; ".join(plan.reasons) or "main_encoding says so"
    return path, chunks, plan.nchunks, plan.nbytes, plan.main.describe(), reason


def _list_variables(group: ManifestGroup) -> Iterable[tuple[str, ManifestVariable]]:
    for path, part in group.walk():
        prefix = f"{path}/" if path else ""
        yield from ((prefix + name, variable) for name, variable in part.variables.items())
