"""The names of axes are those of their first scales, wherever these lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import virtualds
from virtualds import FormatError


def scale(file: h5py.File, path: str) -> h5py.Dataset:
    file[path] = np.arange(3.0)
    file[path].make_scale(path.rpartition("/")[2])
    return file[path]


def measured(file: h5py.File, *scales: h5py.Dataset, shape: tuple[int, ...] = (3,)) -> None:
    file["v"] = np.zeros(shape)
    for one in scales:
        file["v"].dims[0].attach_scale(one)


def of_two_names(file: h5py.File) -> None:
    measured(file, scale(file, "x"))
    file["also"] = file["x"]


def in_another_group(file: h5py.File) -> None:
    measured(file, scale(file, "below/x"))


def of_another_group_by_a_link(file: h5py.File) -> None:
    measured(file, scale(file, "below/z"))
    file["x"] = h5py.SoftLink("/below/z")


def two_on_one_axis(file: h5py.File) -> None:
    measured(file, scale(file, "x"), scale(file, "a"))


def on_one_of_two_axes(file: h5py.File) -> None:
    measured(file, scale(file, "x"), shape=(3, 4))


def of_arrays(file: h5py.File) -> None:
    file.create_dataset("v", (3,), np.dtype(("f4", (2,))))
    file["v"].dims[0].attach_scale(scale(file, "x"))


def in_another_file(file: h5py.File) -> None:
    with h5py.File(Path(file.filename).with_name("other.h5"), "w") as other:
        measured(other, scale(other, "x"))
    file["v"] = h5py.ExternalLink("other.h5", "/v")
    # of the same path, and none of its scales
    scale(file, "x")
    file.move("x", "y")
    file["x"] = np.zeros(1)


def none(file: h5py.File) -> None:
    measured(file)
    scale(file, "x")
    file["v"].dims[0].attach_scale(file["x"])
    file["v"].dims[0].detach_scale(file["x"])


NAMES: dict[Callable[[h5py.File], None], tuple[str, ...]] = {
    of_two_names: ("x",),
    in_another_group: ("x",),
    of_another_group_by_a_link: ("x",),
    two_on_one_axis: ("x",),
    on_one_of_two_axes: ("x", "phony_dim_1"),
    of_arrays: ("x", "phony_dim_1"),
    in_another_file: ("x",),
    none: ("x",),
}


@pytest.mark.parametrize("make", NAMES, ids=lambda make: make.__name__)
def test_an_axis_has_the_name_of_its_first_scale(tmp_path: Path, make: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    assert virtualds.open_virtual_dataset(tmp_path / "a.h5")["v"].dims == NAMES[make]


def removed(file: h5py.File) -> None:
    measured(file, scale(file, "x"))
    del file["x"]


def of_nothing(file: h5py.File) -> None:
    measured(file)
    references, lists = np.empty(1, h5py.ref_dtype), np.empty(1, object)
    references[0] = h5py.Reference()
    lists[0] = references
    file["v"].attrs.create("DIMENSION_LIST", lists, dtype=h5py.vlen_dtype(h5py.ref_dtype))


def listed_as_text(file: h5py.File) -> None:
    measured(file)
    file["v"].attrs["DIMENSION_LIST"] = "x"


def of_more_axes(file: h5py.File) -> None:
    measured(file, scale(file, "x"), shape=(3, 3))
    file["w"] = np.zeros(3)
    file["w"].attrs.create(
        "DIMENSION_LIST", file["v"].attrs["DIMENSION_LIST"], dtype=h5py.vlen_dtype(h5py.ref_dtype)
    )


WRONG: dict[Callable[[h5py.File], None], str] = {
    removed: "HDF5 cannot read it",
    of_nothing: "HDF5 cannot read it",
    listed_as_text: "'v' is no list of scales for each of 1 axes",
    of_more_axes: "'w' is no list of scales for each of 1 axes",
}


@pytest.mark.parametrize("make", WRONG, ids=lambda make: make.__name__)
def test_a_list_of_scales_that_leads_nowhere_is_an_error(tmp_path: Path, make: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    with pytest.raises(FormatError, match=WRONG[make]):
        virtualds.open_virtual_dataset(tmp_path / "a.h5")
