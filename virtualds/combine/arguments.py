"""Arguments of `open_virtual_mfdataset`, checked, and made into one build."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import xarray as xr

from virtualds.combine.build import Build
from virtualds.combine.files import Files
from virtualds.combine.open_file import Opened, PrepareStep, make_job
from virtualds.combine.progress import ProgressOption
from virtualds.combine.stored_file import decode_opened
from virtualds.combine.workers import choose_workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import distributed

Parallel: TypeAlias = "int | Executor | Literal['dask'] | distributed.Client | None"


RETRIES = 2
"""How often a file is opened again by default."""


OF_XARRAY = ("fill_value",)
"""What is passed on to xarray as it is, besides what is named."""


def build_dataset(
    opener: Callable[..., Opened],
    files: Files,
    choices: Mapping[str, Any],
    steps: tuple[PrepareStep[Opened], ...],
    *,
    parallel: Parallel,
    storage_options: Mapping[str, Any] | None,
    on_error: str,
    progress: ProgressOption,
    **working: Any,
) -> Build[Opened]:
    """Return how files are opened, whatever they are opened as."""
    job = make_job(
        opener, choices, steps=steps, storage_options=storage_options, on_error=on_error, **working
    )
    return Build(files, job, choose_workers(parallel, files), on_error, progress)


def demand_file_number(attrs_file: str | os.PathLike[str] | None, build: Build[Any]) -> int | None:
    """Return the number of the file whose attributes are wanted, None if none is."""
    return None if attrs_file is None else build.files.place(attrs_file, "attrs_file")


def find_dataset_of_file(number: int, build: Build[Any], found: Mapping[int, Any]) -> Any:
    """Return the dataset, or tree, of one file, which is opened again if it was joined already."""
    file = build.files.flat[number]
    if number not in found:
        raise ValueError(
            f"attrs_file {file}: it is left out, since it cannot be opened; give another"
        )
    return decode_opened(found[number])


def take_attributes(combined: xr.Dataset | xr.DataTree, file: Any) -> None:
    """Give a dataset, or the groups of a tree, the attributes that a file has."""
    if isinstance(combined, xr.DataTree):
        for path, node in combined.subtree_with_keys:
            node.attrs = file[path].attrs
    else:
        combined.attrs = file.attrs
