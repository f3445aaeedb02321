"""Arguments of `open_virtual_mfdataset`, checked, and made into one build."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import xarray as xr

from virtualds.combine.build import Build
from virtualds.combine.build_options import BuildOptions
from virtualds.combine.files import Files
from virtualds.combine.open_file import PrepareStep, make_job
from virtualds.combine.stored_file import decode_opened
from virtualds.combine.workers import choose_workers
from virtualds.datasets.open import open_dataset_or_tree
from virtualds.datasets.open_options import OpenOptions

OF_XARRAY = ("fill_value",)
"""What is passed on to xarray as it is, besides what is named."""


def make_build(
    files: Files,
    opening: OpenOptions,
    building: BuildOptions,
    steps: tuple[PrepareStep[Any], ...],
    read: Callable[..., Any] = open_dataset_or_tree,
) -> Build[Any]:
    """Return how files are opened, whatever they are opened as."""
    job = make_job(opening, building, steps, files.options, read)
    return Build(files, job, choose_workers(building.parallel, files), building)


def demand_file_number(attrs_file: str | os.PathLike[str] | None, build: Build[Any]) -> int | None:
    """Return the number of the file whose attributes are wanted, None if none is."""
    return None if attrs_file is None else build.files.find_file(attrs_file, "attrs_file")


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
