"""Names and attributes of sets are edited in place, as xarray edits datasets."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from daily_files import (
    SUFFIXES,
    append,
    content,
    days,
    native,
    needs_parts,
    opened,
    virtual,
    written,
)
from products import named_case
from transforms import assert_identical

import virtualds


@pytest.fixture(params=SUFFIXES, ids=list(SUFFIXES))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"refs{SUFFIXES[request.param]}"


@pytest.fixture(scope="module")
def written_once(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("days")
    return [written(folder, f"{n}", days(4 * n)) for n in range(2)]


@pytest.fixture
def files(written_once: list[Path], tmp_path: Path) -> list[Path]:
    return [Path(shutil.copy(path, tmp_path)) for path in written_once]


NAMES = {
    "a variable": {"t": "temperature"},
    "a dimension with its coordinate": {"time": "valid_time"},
    "several": {"lat": "y", "lon": "x", "n": "count"},
    "two that change places": {"t": "n", "n": "t"},
}


@pytest.mark.parametrize("what", NAMES)
def test_names_change_as_in_xarray(what: str, files: list[Path], target: Path) -> None:
    append(files[0], target)
    virtualds.edit(target, rename=NAMES[what])
    assert_identical(opened(target), native(files[:1]).rename(NAMES[what]))
    # and the set goes on under the new names
    dim = NAMES[what].get("time", "time")
    virtual(files[1]).rename(NAMES[what]).virtual.to_manifest(target, append_dim=dim)
    assert_identical(opened(target), native(files).rename(NAMES[what]))


def test_a_dry_run_reports_the_change_and_writes_nothing(files: list[Path], target: Path) -> None:
    append(files[0], target)
    virtual(files[1]).virtual.to_manifest(target, group="/a/b")
    before = content(target)
    changes: dict[str, Any] = {
        "drop_variables": "n",
        "drop_groups": "/a",
        "rename": {"t": "u"},
        "attributes": {"u:units": "K"},
    }
    planned = virtualds.edit(target, **changes, dry_run=True)
    assert content(target) == before
    below = {f"/a/b/{name}" for name in virtual(files[1]).variables}
    assert set(planned.variables) == {"/n"} | below
    assert planned.groups == ("/a", "/a/b")
    assert set(planned.kept) == {"/t", "/lat", "/lon", "/time", "/height"} ^ {"/t", "/u"}
    assert (planned.renamed, planned.attributes) == ({"t": "u"}, {"u:units": "K"})
    assert "a dry run, which wrote nothing" in str(planned)
    done = virtualds.edit(target, **changes)
    assert replace(planned, dry_run=False) == done
    assert {f"/{name}" for name in opened(target).variables} == set(done.kept)
    with pytest.raises(ValueError, match="the set has no such name"):
        virtualds.edit(target, drop_variables="n", dry_run=True)


def test_a_dry_run_of_moving_sources_counts_and_checks_them(
    files: list[Path], target: Path, tmp_path: Path
) -> None:
    append(files[0], target)
    before, moved = content(target), tmp_path / "moved.nc"
    with pytest.raises(virtualds.ReadError, match=r"moved\.nc cannot be read"):
        virtualds.rename_paths(target, {str(files[0]): str(moved)}, dry_run=True)
    shutil.copy2(files[0], moved)
    assert virtualds.rename_paths(target, {str(files[0]): str(moved)}, dry_run=True) == 1
    assert content(target) == before


def test_a_dry_run_of_compacting_says_whether_there_is_anything_to_join(
    files: list[Path], target: Path
) -> None:
    choices = {".parquet": {"record_size": 1}, ".zarr": {"manifest": "parquet"}}
    virtual(files[0]).virtual.to_manifest(target, **choices.get(target.suffix, {}))
    append(files[1], target)
    before = content(target)
    planned = virtualds.compact(target, dry_run=True)
    assert content(target) == before
    assert virtualds.compact(target) is planned


_MANY: dict[str, dict[str, Any]] = {
    ".parquet": {"record_size": 1},
    ".zarr": {"manifest": "parquet"},
}
"""Choices with which a small set has many files."""


def test_variables_are_dropped(files: list[Path], target: Path) -> None:
    append(files[0], target)
    virtualds.edit(target, drop_variables=["t", "height"])
    assert_identical(opened(target), native(files[:1]).drop_vars(["t", "height"]))
    virtualds.edit(target, drop_variables="time")
    assert set(opened(target).variables) == {"n", "lat", "lon"}


def test_a_dropped_variable_may_be_added_again(files: list[Path], target: Path) -> None:
    append(files[0], target)
    virtualds.edit(target, drop_variables="t")
    virtual(files[1])[["t"]].drop_vars("time").virtual.to_manifest(target, mode="a")
    np.testing.assert_array_equal(opened(target).t.values, native(files[1:]).t.values)


def test_attributes_are_set_and_removed(files: list[Path], target: Path) -> None:
    append(files[0], target)
    virtualds.edit(
        target,
        attributes={
            "title": None,
            "version": 2,
            "levels": [1.5, 2.0],
            "t:units": "K",
            "t:valid_range": np.array([0, 400], "f4"),
            "n:missing": None,
        },
    )
    found = opened(target)
    assert "title" not in found.attrs and found.attrs["version"] == 2
    assert list(found.attrs["levels"]) == [1.5, 2.0]
    assert found.t.units == "K" and list(found.t.valid_range) == [0, 400]
    xr.testing.assert_equal(found.load(), native(files[:1]))


def test_attributes_have_the_names_after_renaming(files: list[Path], target: Path) -> None:
    append(files[0], target)
    virtualds.edit(target, rename={"t": "T"}, attributes={"T:units": "K"}, drop_variables="n")
    assert opened(target)["T"].units == "K" and "n" not in opened(target)


def test_a_coordinate_stays_one_under_its_new_name(files: list[Path], target: Path) -> None:
    ds = virtual(files[0]).set_coords("height").assign_coords(mark=3.0)
    ds.virtual.to_manifest(target)
    virtualds.edit(target, rename={"height": "z", "mark": "m"})
    assert {"z", "m"} <= set(opened(target).coords)
    virtualds.edit(target, drop_variables="m")
    found = opened(target)
    assert "z" in found.coords
    assert not any("coordinates" in v.attrs for v in found.variables.values())


def test_bounds_keep_their_units(target: Path, tmp_path: Path) -> None:
    time = xr.Variable("time", [0.5, 1.5], {"units": "days since 2000-01-01", "bounds": "edges"})
    ds = xr.Dataset({"edges": (("time", "side"), [[0.0, 1.0], [1.0, 2.0]])}, {"time": time})
    ds.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    virtual(tmp_path / "a.nc").virtual.to_manifest(target)
    expected = opened(target).load()
    virtualds.edit(target, rename={"edges": "time_bounds"})
    found = opened(target).load()
    np.testing.assert_array_equal(found.time_bounds, expected.edges)
    assert found.time_bounds.dtype.kind == "M"


def test_groups_are_dropped_and_edited(files: list[Path], target: Path) -> None:
    append(files[0], target)
    for group in ("a/b", "a/c", "d"):
        virtual(files[1]).virtual.to_manifest(target, group=group)
    virtualds.edit(target, drop_groups=["/a/b", "d"])
    virtualds.edit(target, group="a/c", rename={"t": "u"}, attributes={"title": "c"})
    groups = xr.open_groups(target, engine="virtual")
    assert set(groups) == {"/", "/a", "/a/c"}
    assert_identical(groups["/"], native(files[:1]))
    expected = native(files[1:]).rename(t="u").assign_attrs(title="c")
    assert_identical(groups["/a/c"], expected)


def test_a_dimension_has_one_name_in_the_groups_that_share_it(
    files: list[Path], target: Path
) -> None:
    below = virtual(files[0])[["t"]].drop_vars("time")
    tree = xr.DataTree.from_dict({"/": virtual(files[0])[["n"]], "/a": below})
    tree.virtual.to_manifest(target)
    before = content(target)
    with pytest.raises(ValueError, match="rename 'time': group /a has this coordinate from"):
        virtualds.edit(target, group="a", rename={"time": "valid"})
    assert content(target) == before
    virtualds.edit(target, rename={"time": "valid"})
    found = xr.open_datatree(target, engine="virtual").load()
    assert found["a/t"].dims == ("valid", "lat", "lon") and "valid" in found["a"].coords


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "nothing to change"),
    "an unknown name": ({"rename": {"temp": "t"}}, "rename 'temp': the set has no such name"),
    "an unknown variable": ({"drop_variables": "heigt"}, "did you mean 'height'"),
    "an unknown group": (
        {"drop_groups": "g/x"},
        "drop_groups 'g/x': the set has no such name; existing: g",
    ),
    "the root": ({"drop_groups": "/"}, "drop_groups ''"),
    "another group": ({"group": "h", "rename": {"t": "u"}}, r"group 'h': the set has \['g'\]"),
    "a taken name": ({"rename": {"t": "n"}}, "two variables would be called 'n'"),
    "a taken dimension": ({"rename": {"lat": "lon"}}, "would be called 'lon'"),
    "the name of a group": ({"rename": {"t": "g"}}, "'g' would be a variable and a group"),
    "a variable without attributes": ({"attributes": {"x:units": "K"}}, "attributes 'x'"),
    "packing": ({"attributes": {"t:scale_factor": 2.0}}, "how the stored numbers are decoded"),
    "units of time": ({"attributes": {"time:units": "K"}}, "'time:units': it says how"),
    "units of durations": ({"attributes": {"n:units": "days"}}, "'n:units': it says how"),
}


def test_wrong_edits_change_nothing(files: list[Path], target: Path) -> None:
    append(files[0], target)
    virtual(files[0]).virtual.to_manifest(target, group="g")
    before = content(target)
    for what, (how, message) in WRONG.items():
        with named_case(what):
            with pytest.raises(ValueError, match=message):
                virtualds.edit(target, **how)
            assert content(target) == before


def test_a_set_that_is_not_there_is_not_edited(target: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no reference set"):
        virtualds.edit(target, rename={"t": "u"})


EDITS: dict[str, Callable[[Path], None]] = {
    "rename": lambda target: virtualds.edit(target, rename={"t": "u", "time": "valid"}),
    "drop": lambda target: virtualds.edit(target, drop_variables="n"),
    "attributes": lambda target: virtualds.edit(target, attributes={"title": "x", "t:units": "K"}),
}


@pytest.mark.parametrize("what", EDITS)
def test_edits_read_no_source(what: str, files: list[Path], target: Path) -> None:
    needs_parts(target)
    for path in files:
        append(path, target)
    for path in files:
        path.unlink()
    EDITS[what](target)
    assert opened(target).sizes["lat"] == 4


def test_renamed_values_outlive_earlier_snapshots(files: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    append(files[0], target)
    virtualds.edit(target, rename={"time": "valid"})
    append(files[0], target.with_stem("other"))
    virtualds.expire_snapshots(target, older_than=timedelta(0))
    assert_identical(opened(target), native(files[:1]).rename(time="valid"))
    # what the set holds itself stays plain Zarr
    assert (target / "valid" / "c" / "0").exists()
