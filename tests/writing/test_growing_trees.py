"""Trees are written, appended and added group by group, in one step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from daily_files import EPOCH, SUFFIXES, content, rival

import virtualds
from virtualds import CombineError, ConflictError, ManifestGroup
from virtualds.writing import find_group

DAY = np.timedelta64(1, "D")


@pytest.fixture(params=SUFFIXES, ids=list(SUFFIXES))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"refs{SUFFIXES[request.param]}"


class Looked(dict[str, Any]):
    """Groups that are looked up by name, and never gone through."""

    def _refuse(self, *_: Any) -> Any:
        raise AssertionError("all groups are gone through")

    __iter__ = keys = values = items = _refuse  # type: ignore[assignment]


def test_a_group_is_found_without_going_through_its_neighbours() -> None:
    here = ManifestGroup()
    root = ManifestGroup(groups=Looked(a=ManifestGroup(groups=Looked(b=here))))
    assert find_group(root, "a/b") is here
    assert find_group(root, "") is root
    assert find_group(root, "a/c") is find_group(root, "c/b") is None


def made(number: int) -> xr.DataTree:
    """Four days of a swath: times at the root, a grid that stays, tracks of another length."""
    random = np.random.default_rng(number)
    time = np.datetime64("2000-01-01", "ns") + np.arange(4 * number, 4 * number + 4) * DAY
    steps = np.arange(6.0) + 6 * number
    nodes = {
        "/": xr.Dataset({"q": ("time", random.integers(0, 4, 4))}, {"time": time}),
        "/grid": xr.Dataset({"area": ("x", [1.0, 2.0, 4.0])}, {"x": [0, 1, 2]}),
        "/product": xr.Dataset({"no2": (("time", "x"), random.normal(size=(4, 3)))}),
        "/product/more": xr.Dataset({"flag": ("time", random.normal(size=4))}),
        "/track": xr.Dataset({"h": ("step", random.normal(size=6))}, {"step": steps}),
    }
    return xr.DataTree.from_dict(nodes)


def file_of(folder: Path, number: int, change: Callable[[xr.DataTree], Any] = lambda t: t) -> Path:
    path = folder / f"{number}.nc"
    encoding = {
        "/": {"time": {"units": EPOCH, "dtype": "i8"}, "q": {"chunksizes": (2,)}},
        "/product": {"no2": {"chunksizes": (2, 3), "zlib": True}},
        "/product/more": {"flag": {"chunksizes": (2,)}},
        "/track": {"h": {"chunksizes": (3,)}},
    }
    tree = change(made(number))
    kept = {p: e for p, e in encoding.items() if p == "/" or p in tree.groups}
    tree.to_netcdf(path, engine="netcdf4", encoding=kept)
    return path


def virtual(path: Path) -> xr.DataTree:
    return virtualds.open_virtual_datatree(path)


def opened(target: Path) -> xr.DataTree:
    return xr.open_datatree(target, engine="virtual").load()


def append(path: Path, target: Path, **how: Any) -> None:
    virtual(path).virtual.to_manifest(target, append_dim="time", **how)


def together(*numbers: int, order: Callable[[int], xr.DataTree] = made) -> xr.DataTree:
    """What the trees are, joined along time and along the steps of tracks."""
    parts = [order(number) for number in numbers]
    joined = {}
    for path in parts[0].groups:
        nodes = [part[path].to_dataset(inherit=False) for part in parts]
        grows = "time" in nodes[0].dims
        joined[path] = xr.concat(nodes, "time", data_vars="minimal") if grows else nodes[0]
    return xr.DataTree.from_dict(joined)


def no_track(tree: xr.DataTree) -> xr.DataTree:
    del tree["track"]
    return tree


def same(found: xr.DataTree, expected: xr.DataTree) -> None:
    xr.testing.assert_equal(found, expected)


# ---------------------------------------------------------------------- appending


def test_trees_are_appended_group_by_group(target: Path, tmp_path: Path) -> None:
    for count in range(1, 4):
        append(file_of(tmp_path, count - 1, no_track), target)
        same(opened(target), no_track(together(*range(count))))


def test_appending_a_tree_is_one_change(tmp_path: Path) -> None:
    for number in range(3):
        append(file_of(tmp_path, number, no_track), tmp_path / "refs.zarr")
    assert len(virtualds.snapshots(tmp_path / "refs.zarr")) == 3


def test_groups_below_store_no_coordinate_that_they_inherit(target: Path, tmp_path: Path) -> None:
    for number in range(2):
        append(file_of(tmp_path, number, no_track), target)
    assert set(xr.open_dataset(target, engine="virtual", group="product").variables) == {"no2"}


def test_groups_without_the_dimension_are_equal(target: Path, tmp_path: Path) -> None:
    append(file_of(tmp_path, 0), target)
    before = content(target)
    with pytest.raises(CombineError, match="step: it has no dimension 'time', and other") as caught:
        append(file_of(tmp_path, 1), target)
    assert "group /track: " in str(caught.value)
    assert content(target) == before


def test_late_trees_find_their_place_in_every_group(target: Path, tmp_path: Path) -> None:
    for number in (1, 2, 0):
        append(file_of(tmp_path, number, no_track), target, position="coordinate")
    same(opened(target), no_track(together(0, 1, 2)))


def test_trees_are_not_appended_twice(target: Path, tmp_path: Path) -> None:
    paths = [file_of(tmp_path, number, no_track) for number in range(2)]
    for path in paths:
        append(path, target)
    before = content(target)
    with pytest.raises(CombineError, match="4 of 4 positions are in the set already"):
        append(paths[1], target)
    append(paths[1], target, on_duplicate="skip")
    assert content(target) == before
    if target.suffix == ".nca":
        # it has no halves of variables
        return
    # some positions are new, and in every group the same ones
    half = virtual(paths[1]).isel(time=slice(2, None))
    other = target.with_stem("other")
    append(paths[0], other)
    half.virtual.to_manifest(other, append_dim="time")
    append(paths[1], other, on_duplicate="skip", position="coordinate")
    same(opened(other), no_track(together(0, 1)))


def test_groups_with_their_own_coordinate_grow_as_well(target: Path, tmp_path: Path) -> None:
    def own(tree: xr.DataTree) -> xr.DataTree:
        tracks = {
            f"/gt{n}": xr.Dataset(
                {"h": ("time", tree["track"].h.values + n)}, {"time": tree["track"].step.values}
            ).isel(time=slice(n, None))
            for n in (0, 2)
        }
        return xr.DataTree.from_dict(tracks)

    for number in range(2):
        path = tmp_path / f"{number}.nc"
        own(made(number)).to_netcdf(path, engine="netcdf4")
        append(path, target)
    same(opened(target), together(0, 1, order=lambda n: own(made(n))))


def without_more(tree: xr.DataTree) -> xr.DataTree:
    del tree["product"]["more"]
    return no_track(tree)


def test_a_group_more_is_refused_dropped_or_filled(target: Path, tmp_path: Path) -> None:
    append(file_of(tmp_path, 0, without_more), target)
    path = file_of(tmp_path, 1, no_track)
    before = content(target)
    with pytest.raises(CombineError, match=r"no such group\nnew_variables='fill'") as caught:
        append(path, target)
    assert "group /product/more: " in str(caught.value)
    assert content(target) == before
    other = target.with_stem("other")
    append(tmp_path / "0.nc", other)
    append(path, other, new_variables="drop")
    same(opened(other), without_more(together(0, 1)))
    append(path, target, new_variables="fill")
    flags = opened(target)["product/more/flag"]
    assert flags.isnull().values.tolist() == [True] * 4 + [False] * 4
    np.testing.assert_array_equal(flags[4:], made(1)["product/more/flag"])


def test_a_group_fewer_is_refused_or_filled(target: Path, tmp_path: Path) -> None:
    append(file_of(tmp_path, 0, no_track), target)
    path = file_of(tmp_path, 1, without_more)
    before = content(target)
    with pytest.raises(CombineError, match="group /product/more: the new tree has no such group"):
        append(path, target)
    assert content(target) == before
    append(path, target, missing_variables="fill")
    assert opened(target)["product/more/flag"].isnull().values.tolist() == [False] * 4 + [True] * 4


def test_trees_are_appended_below_a_group(target: Path, tmp_path: Path) -> None:
    for number in range(2):
        append(file_of(tmp_path, number, no_track), target, group="/in/here")
    found = xr.open_datatree(target, engine="virtual", group="in/here").load()
    same(found, no_track(together(0, 1)))


# ---------------------------------------------------------------------- adding


def test_groups_of_a_tree_are_added(target: Path, tmp_path: Path) -> None:
    path = file_of(tmp_path, 0)
    virtual(path)[""].to_dataset().virtual.to_manifest(target)
    tree = virtual(path)
    for name in ("grid", "product"):
        part = xr.DataTree.from_dict({f"/{name}": tree[name].to_dataset(inherit=False)})
        part.virtual.to_manifest(target, mode="a")
    before = content(target)
    with pytest.raises(CombineError, match="'no2': the set has variables") as caught:
        tree["product"].virtual.to_manifest(target, group="product", mode="a")
    assert str(caught.value).startswith("group /product: ")
    assert content(target) == before
    tree.virtual.to_manifest(target, mode="a", on_duplicate="skip")
    same(opened(target), made(0))


def test_variables_of_a_tree_are_replaced(target: Path, tmp_path: Path) -> None:
    virtual(file_of(tmp_path, 0)).virtual.to_manifest(target)
    changed = made(0)
    changed["product"]["no2"] = changed["product/no2"] + 1
    xr.DataTree.from_dict({"/product": changed["product"].to_dataset()}).virtual.to_manifest(
        target, mode="r+"
    )
    same(opened(target), changed)


def test_a_coordinate_is_replaced_where_it_is_stored(target: Path, tmp_path: Path) -> None:
    virtual(file_of(tmp_path, 0)).virtual.to_manifest(target)
    later = made(0)["product"].to_dataset()
    later["time"] = later["time"] + DAY
    before = content(target)
    with pytest.raises(CombineError, match="time: group /product has this coordinate from a"):
        later.virtual.to_manifest(target, group="product", mode="r+")
    with pytest.raises(CombineError, match="its coordinate is 2000-01-01"):
        later.rename(no2="o3").virtual.to_manifest(target, group="product", mode="a")
    assert content(target) == before


# ---------------------------------------------------------------------- other writers


@pytest.mark.parametrize("suffix", [s for n, s in SUFFIXES.items() if n != "icechunk"])
def test_an_append_of_a_tree_meets_other_writers_as_one_of_a_dataset(
    suffix: str, tmp_path: Path
) -> None:
    target = tmp_path / f"refs{suffix}"
    paths = [file_of(tmp_path, number, no_track) for number in range(4)]
    append(paths[0], target)
    with rival(lambda: append(paths[1], target)), pytest.raises(ConflictError):
        append(paths[2], target)
    same(opened(target), no_track(together(0, 1)))
    with rival(lambda: append(paths[2], target)):
        append(paths[3], target, conflict="retry", on_duplicate="skip")
    same(opened(target), no_track(together(0, 1, 2, 3)))
