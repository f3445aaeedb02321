"""Options of a build: the workers that open files, the retries, and the treatment of failures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from virtualds.datasets.keywords import check_choice
from virtualds.options import FILE_RETRIES
from virtualds.progress import ProgressOption

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import distributed

Parallel: TypeAlias = "int | Executor | Literal['dask'] | distributed.Client | None"

ON_ERROR = {"raise": "raise", "skip": "raise", "collect": "raise", "keep": "keep"}
"""How failing variables of a file are treated, by how the build treats failing files.

If a variable of a file cannot be read, the build leaves out the whole file. Otherwise the gap in
the joined variable would look like missing values.
"""


@dataclass(frozen=True)
class BuildOptions:
    """How many files are opened.

    Parameters
    ----------
    parallel, on_error, retries, progress, cache
        As in `virtualds.open_virtual_mfdataset`.

    Raises
    ------
    ValueError
        ``on_error`` is none that there is, or ``retries`` is negative.
    """

    parallel: Parallel = None
    on_error: str = "raise"
    retries: int = FILE_RETRIES
    progress: ProgressOption = None
    cache: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ON_ERROR)
        if not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError(f"retries={self.retries!r}: give a number, at least 0")

    @property
    def on_variable_error(self) -> str:
        """What is done about variables of a file that cannot be read."""
        return ON_ERROR[self.on_error]

    @property
    def stops(self) -> bool:
        """Whether the first file that cannot be opened ends the build."""
        return self.on_error in ("raise", "keep")
