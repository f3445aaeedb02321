"""The names of axes are those of their last scales, wherever these lie, as netCDF4 has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
from cases import netcdf
from fuzz.mutations import repaired
from products import looped

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


def three_on_one_axis(file: h5py.File) -> None:
    measured(file, scale(file, "m"), scale(file, "z"), scale(file, "a"))


def two_on_the_second_axis(file: h5py.File) -> None:
    file["v"] = np.zeros((3, 3))
    for axis, name in ((0, "x"), (1, "z"), (1, "y")):
        file["v"].dims[axis].attach_scale(scale(file, name))


def of_a_later_name(file: h5py.File) -> None:
    measured(file, scale(file, "x"))
    file["z"] = file["x"]


def of_an_earlier_name(file: h5py.File) -> None:
    scale(file, "z")
    file["a"] = file["z"]
    measured(file, file["z"])


def of_a_name_by_a_soft_link(file: h5py.File) -> None:
    measured(file, scale(file, "x"))
    file["s"] = h5py.SoftLink("/x")


def of_a_name_in_another_group(file: h5py.File) -> None:
    measured(file, scale(file, "x"))
    file.create_group("below")["y"] = file["x"]


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


# in files that do not keep the order of creation, and in those that do
NAMES: dict[Callable[[h5py.File], None], tuple[tuple[str, ...], tuple[str, ...]]] = {
    of_two_names: (("also",), ("x",)),
    of_a_later_name: (("x",), ("x",)),
    of_an_earlier_name: (("a",), ("z",)),
    of_a_name_by_a_soft_link: (("s",), ("x",)),
    of_a_name_in_another_group: (("x",), ("x",)),
    in_another_group: (("x",), ("x",)),
    of_another_group_by_a_link: (("x",), ("x",)),
    two_on_one_axis: (("a",), ("a",)),
    three_on_one_axis: (("a",), ("a",)),
    two_on_the_second_axis: (("x", "y"), ("x", "y")),
    on_one_of_two_axes: (("x", "phony_dim_1"), ("x", "phony_dim_1")),
    of_arrays: (("x", "phony_dim_1"), ("x", "phony_dim_1")),
    in_another_file: (("x",), ("x",)),
    none: (("x",), ("x",)),
}
# of these netCDF4 reads no dimensions
NOT_OF_NETCDF = {in_another_group, of_another_group_by_a_link, of_arrays, in_another_file}
NOT_OF_NETCDF |= {on_one_of_two_axes}


@looped("track_order", [False, True])
@looped("make", NAMES)
def test_an_axis_has_the_name_of_its_last_scale(
    tmp_path: Path, make: Any, track_order: bool
) -> None:
    with h5py.File(tmp_path / "a.h5", "w", track_order=track_order) as file:
        make(file)
    dims = virtualds.open_virtual_dataset(tmp_path / "a.h5")["v"].dims
    assert dims == NAMES[make][track_order]
    if make not in NOT_OF_NETCDF:
        with netCDF4.Dataset(tmp_path / "a.h5") as native:
            assert dims == native["v"].dimensions


@pytest.mark.parametrize("is_soft", [False, True])
def test_links_to_a_dimension_of_netcdf_are_no_other_dimensions(
    tmp_path: Path, is_soft: bool
) -> None:
    for link in ("a", "z"):
        path = tmp_path / f"{link}.nc"
        with netcdf(path, x=3, y=3) as file:
            file.createVariable("v", "f4", ("x", "y"))[:] = np.zeros((3, 3))
            for name in ("x", "y"):
                file.createVariable(name, "f8", (name,))[:] = np.arange(3)
        with h5py.File(path, "r+") as stored:
            stored[link] = h5py.SoftLink("/x") if is_soft else stored["x"]
            stored["bare"] = np.zeros((3, 3, 3))
        found = virtualds.open_virtual_dataset(path)
        assert found.sizes == {"x": 3, "y": 3, "phony_dim_2": 3}
        assert found["v"].dims == ("x", "y")
        assert found[link].dims == found["x"].dims == ("x",)
        with netCDF4.Dataset(path) as native:
            assert len(native.dimensions) == 3
            assert native[link].dimensions == native["x"].dimensions == native["v"].dimensions[:1]


@pytest.mark.parametrize("make", [of_two_names, of_an_earlier_name, of_a_name_by_a_soft_link])
@pytest.mark.parametrize("track_order", [False, True])
def test_links_to_another_scale_are_dimensions_as_in_netcdf(
    tmp_path: Path, make: Any, track_order: bool
) -> None:
    with h5py.File(tmp_path / "a.h5", "w", track_order=track_order) as file:
        make(file)
    found = virtualds.open_virtual_dataset(tmp_path / "a.h5")
    with netCDF4.Dataset(tmp_path / "a.h5") as native:
        for name, variable in native.variables.items():
            assert found[name].dims == variable.dimensions


@pytest.mark.parametrize("track_order", [False, True])
def test_a_scale_has_the_name_of_its_link_in_the_group(tmp_path: Path, track_order: bool) -> None:
    with h5py.File(tmp_path / "a.h5", "w", track_order=track_order) as file:
        one = scale(file, "x")
        file.create_group("g")["y"] = one
        file["g/v"] = np.zeros(3)
        file["g/v"].dims[0].attach_scale(one)
    with netCDF4.Dataset(tmp_path / "a.h5") as native:
        assert native["g"]["v"].dimensions == ("y",)
    assert virtualds.open_virtual_dataset(tmp_path / "a.h5", group="g")["v"].dims == ("y",)


@pytest.mark.parametrize("attributes", [0, 20])
def test_scales_of_variables_with_many_attributes_are_found(
    tmp_path: Path, attributes: int
) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="v110") as file:
        measured(file, scale(file, "x"), scale(file, "a"))
        for number in range(attributes):
            file["v"].attrs[f"a{number}"] = number
    assert virtualds.open_virtual_dataset(tmp_path / "a.h5")["v"].dims == ("a",)


SCALES: dict[str, tuple[bytes, int, tuple[int, ...], bool]] = {
    "as HDF5 writes it": (b"DIMENSION_SCALE", 16, (), True),
    "in an array of one": (b"DIMENSION_SCALE", 16, (1,), True),
    "longer": (b"DIMENSION_SCALE", 30, (), True),
    "another word": (b"dimension_scale", 16, (), False),
    # where HDF5's own function ends the process
    "twice": (b"DIMENSION_SCALE", 16, (2,), False),
    "cut short": (b"DIMENSION_SCAL", 16, (), False),
    "in an array of thousand": (b"DIMENSION_SCALE", 16, (1000,), False),
}


@pytest.mark.parametrize("which", SCALES)
def test_a_scale_is_known_by_its_class(tmp_path: Path, which: str) -> None:
    text, size, shape, expected = SCALES[which]
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(size)
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros(3)
        made = h5py.h5a.create(file["x"].id, b"CLASS", kind, space)
        made.write(np.full(shape, text, f"S{size}"))
    dims = virtualds.open_virtual_dataset(tmp_path / "a.h5")["x"].dims
    assert dims == (("x",) if expected else ("phony_dim_0",))


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
    removed: "axis 0 of 'v' has a scale that is not there",
    of_nothing: "axis 0 of 'v' has a scale that is not there",
    listed_as_text: "'v' is not a list of scales for each of 1 axes",
    of_more_axes: "'w' is not a list of scales for each of 1 axes",
}


@pytest.mark.parametrize("make", WRONG, ids=lambda make: make.__name__)
def test_a_list_of_scales_that_leads_nowhere_is_an_error(tmp_path: Path, make: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    with pytest.raises(FormatError, match=WRONG[make]):
        virtualds.open_virtual_dataset(tmp_path / "a.h5")


def test_a_damaged_scale_of_a_variable_with_many_attributes_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="v110") as file:
        measured(file, scale(file, "below/x"))
        for number in range(20):
            file["v"].attrs[f"a{number}"] = number
        address = h5py.h5o.get_info(file["below/x"].id).addr
    raw = bytearray(path.read_bytes())
    raw[address + 20] ^= 1
    path.write_bytes(raw)
    with pytest.raises(FormatError):
        virtualds.open_virtual_dataset(path)


def test_a_list_of_scales_in_another_group_that_hdf5_cannot_read_is_an_error(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="v110") as file:
        measured(file, scale(file, "below/x"))
    raw = path.read_bytes()
    # the dataspace of the list: version 2, one axis, and now scalar all the same (IV.A.2.b)
    place = raw.index(b"\2\1\1\1", raw.index(b"DIMENSION_LIST"))
    path.write_bytes(repaired(raw, raw[: place + 3] + b"\0" + raw[place + 4 :]))
    with pytest.raises(FormatError):
        virtualds.open_virtual_dataset(path)
