"""Checks the arguments of `open_virtual_mfdataset`, and makes one build of them."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import xarray as xr

from virtualds.combine.batch_job import BatchJob
from virtualds.combine.build import Build
from virtualds.combine.build_options import BuildOptions
from virtualds.combine.file_batch import FileBatch
from virtualds.combine.files import Files
from virtualds.combine.open_file import PrepareStep, make_job
from virtualds.combine.progress import BuildReport
from virtualds.combine.workers import choose_workers
from virtualds.datasets.open_options import OpenOptions, demand_variables

OF_XARRAY = ("fill_value",)
"""Arguments without a name of their own that go to xarray as they are."""


def make_build(
    files: Files,
    opening: OpenOptions,
    building: BuildOptions,
    steps: tuple[PrepareStep[Any], ...],
) -> Build[Any]:
    """Return the build that opens files as datasets or as trees."""
    job = BatchJob(make_job(opening, building, steps, files.options))
    return Build(files, job, choose_workers(building.parallel, files), building)


def demand_file_number(attrs_file: str | os.PathLike[str] | None, build: Build[Any]) -> int | None:
    """Return the number of the file that gives the attributes, None if no file is named."""
    return None if attrs_file is None else build.files.find_file(attrs_file, "attrs_file")


def demand_loaded(opening: OpenOptions, known: Iterable[Hashable], report: BuildReport) -> None:
    """Refuse names in ``loadable_variables`` that no file has.

    Raises
    ------
    ValueError
        There is no such variable.
    """
    if not report.left_out:
        where = "any file" if report.files > 1 else "the file"
        demand_variables(opening.loadable_variables, known, opening.skip, where)


def find_dataset_of_file(number: int, build: Build[Any], found: Sequence[Any]) -> Any:
    """Return the dataset or tree of one file.

    Raises
    ------
    ValueError
        The file is left out.
    """
    for outcome in found:
        if number in outcome.numbers:
            opened = outcome.found
            if isinstance(opened, FileBatch):
                return opened.cut(outcome.numbers.index(number)).to_dataset()
            return opened
    raise ValueError(
        f"attrs_file {build.files.flat[number]}: this file is left out, since it cannot be opened; "
        f"name another"
    )


def take_attributes(combined: xr.Dataset | xr.DataTree, file: Any) -> None:
    """Set the attributes of a dataset, or of the groups of a tree, to those of a file."""
    if isinstance(combined, xr.DataTree):
        for path, node in combined.subtree_with_keys:
            node.attrs = file[path].attrs
    else:
        combined.attrs = file.attrs
