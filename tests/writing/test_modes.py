"""Variables and groups are added to sets and replaced in them, as the modes of xarray say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from daily_files import SUFFIXES, append, content, days, native, opened, rival, virtual, written
from large_sets import METADATA, archive, counted
from transforms import assert_identical

import virtualds
from virtualds import CombineError, ConflictError


@pytest.fixture(params=SUFFIXES, ids=list(SUFFIXES))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"refs{SUFFIXES[request.param]}"


@pytest.fixture(scope="module")
def written_once(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("days")
    return [written(folder, f"{n}", days(4 * n)) for n in range(3)]


@pytest.fixture
def files(written_once: list[Path], tmp_path: Path) -> list[Path]:
    return [Path(shutil.copy(path, tmp_path)) for path in written_once]


def named(path: Path, **names: str) -> xr.Dataset:
    """Some variables of a file under other names."""
    return virtual(path)[list(names)].rename(names)


def group_of(target: Path, group: str) -> xr.Dataset:
    return xr.open_dataset(target, engine="virtual", group=group)


# ---------------------------------------------------------------------- variables


def test_variables_are_added_beside_the_others(files: list[Path], target: Path) -> None:
    append(files[0], target)
    named(files[0], t="u", height="depth").virtual.to_manifest(target, mode="a")
    found = native(files[:1])
    expected = found.assign(u=found.t, depth=found.height)
    assert_identical(opened(target), expected)
    assert (
        virtual(target).virtual.arrays["u"].nchunks == virtual(files[0]).virtual.arrays["t"].nchunks
    )


def test_a_set_that_does_not_exist_is_created(files: list[Path], target: Path) -> None:
    virtual(files[0]).virtual.to_manifest(target, mode="a")
    assert_identical(opened(target), native(files[:1]))


def test_new_dimensions_and_coordinates_come_along(files: list[Path], target: Path) -> None:
    append(files[0], target)
    profile = xr.Dataset(
        {"profile": (("depth", "time"), np.arange(12.0).reshape(3, 4))},
        {"depth": [1.0, 2.0, 5.0], "label": ("depth", [7, 8, 9]), "mark": 3.0},
    )
    more = profile.assign_coords(time=native(files[:1]).time)
    more.virtual.to_manifest(target, mode="a")
    found = opened(target).load()
    assert {"depth", "label", "mark"} <= set(found.coords)
    xr.testing.assert_equal(found, native(files[:1]).merge(more))


def test_coordinates_alone_are_added_as_coordinates(files: list[Path], target: Path) -> None:
    append(files[0], target)
    area = xr.Dataset(coords={"area": (("lat", "lon"), np.ones((4, 6)))})
    area.virtual.to_manifest(target, mode="a")
    assert "area" in opened(target).coords


DUPLICATES = {"replace": 1.0, "skip": 0.0}


@pytest.mark.parametrize("how", DUPLICATES)
def test_variables_of_the_same_name_are_replaced_only_if_asked(
    how: str, files: list[Path], target: Path
) -> None:
    append(files[0], target)
    other = native(files[:1])[["height", "t"]] + 1
    before = content(target)
    with pytest.raises(CombineError, match=r"(?s)'height', 't': the set has variables.*'replace'"):
        other.virtual.to_manifest(target, mode="a")
    assert content(target) == before
    other.virtual.to_manifest(target, mode="a", on_duplicate=how)
    expected = native(files[:1])
    added = DUPLICATES[how]
    xr.testing.assert_equal(
        opened(target).load(), expected.assign(t=expected.t + added, height=expected.height + added)
    )


def test_what_is_there_already_is_not_written_again(files: list[Path], target: Path) -> None:
    append(files[0], target)
    before = content(target)
    virtual(files[0]).virtual.to_manifest(target, mode="a", on_duplicate="skip")
    virtual(files[0])[["time", "lat"]].virtual.to_manifest(target, mode="r+")
    assert content(target) == before


UNFIT: dict[str, tuple[Callable[[xr.Dataset], xr.Dataset], str]] = {
    "another length": (
        lambda ds: ds.isel(lat=slice(3)),
        "dimension 'lat': it has 4 elements in the set, and 3 in the new dataset",
    ),
    "other values of a coordinate": (
        lambda ds: ds.assign_coords(lat=ds.lat + 0.5 * (ds.lat == 2)),
        "dimension 'lat': its coordinate is 2.0 in the set and 2.5 in the new dataset, at pos",
    ),
    "other times": (
        lambda ds: ds.assign_coords(time=ds.time + np.timedelta64(1, "D")),
        "dimension 'time': its coordinate is 2000-01-01T00:00:00.0* in the set and 2000-01-02",
    ),
}


@pytest.mark.parametrize("replacing", [False, True])
@pytest.mark.parametrize("what", UNFIT)
def test_dimensions_have_the_length_and_coordinate_of_the_set(
    what: str, replacing: bool, files: list[Path], target: Path
) -> None:
    append(files[0], target)
    change, message = UNFIT[what]
    before = content(target)
    how = {"on_duplicate": "replace"} if replacing else {}
    with pytest.raises(CombineError, match=message):
        change(named(files[0], t="u")).virtual.to_manifest(target, mode="a", **how)
    assert content(target) == before


def test_equal_times_in_other_units_are_the_same_times(
    files: list[Path], target: Path, tmp_path: Path
) -> None:
    append(files[0], target)
    other = written(tmp_path, "other", days(0), time={"units": "hours since 1990-01-01"})
    named(other, t="u").virtual.to_manifest(target, mode="a")
    assert_identical(opened(target)[["t"]], native(files[:1])[["t"]])
    xr.testing.assert_equal(opened(target).u.load(), native([other]).t.rename("u"))


def test_values_of_whole_variables_are_replaced(files: list[Path], target: Path) -> None:
    append(files[0], target)
    changed = native(files[:1])
    changed["n"].values[:] = 7
    changed["time"] = changed.time + np.timedelta64(1, "D")
    changed[["n", "time"]].virtual.to_manifest(target, mode="r+")
    xr.testing.assert_equal(opened(target).load(), changed)
    again = named(files[1], t="t").drop_vars("time")
    again.virtual.to_manifest(target, mode="r+")
    np.testing.assert_array_equal(opened(target).t.values, native(files[1:2]).t.values)


def test_only_what_is_there_is_replaced(files: list[Path], target: Path) -> None:
    append(files[0], target)
    before = content(target)
    odd = virtual(files[0]).isel(lat=slice(2)).assign(u=virtual(files[0]).t[0, 0, 0])
    with pytest.raises(CombineError) as caught:
        odd.virtual.to_manifest(target, mode="r+")
    assert "u: the set has no such variable" in str(caught.value)
    assert "t: its dimensions ('time', 'lat', 'lon') have lengths (4, 4, 6)" in str(caught.value)
    assert content(target) == before
    with pytest.raises(FileNotFoundError, match="there is no reference set"):
        virtual(files[0]).virtual.to_manifest(target.with_stem("other"), mode="r+")


def test_a_set_with_added_variables_grows(files: list[Path], target: Path) -> None:
    append(files[0], target)
    named(files[0], t="u").virtual.to_manifest(target, mode="a")
    for path in files[1:]:
        more = virtual(path)
        more.assign(u=more.t).virtual.to_manifest(target, append_dim="time")
    whole = native(files)
    xr.testing.assert_equal(opened(target).load(), whole.assign(u=whole.t))


# ---------------------------------------------------------------------- groups


def test_groups_are_added_and_the_rest_stays(files: list[Path], target: Path) -> None:
    for number, group in enumerate((None, "/a/b", "a/c/")):
        virtual(files[number]).virtual.to_manifest(target, group=group)
    assert_identical(opened(target), native(files[:1]))
    assert_identical(group_of(target, "a/b"), native(files[1:2]))
    assert_identical(group_of(target, "a/c"), native(files[2:]))


def test_the_first_group_of_a_set_creates_it(files: list[Path], target: Path) -> None:
    virtual(files[0]).virtual.to_manifest(target, group="a", append_dim="time")
    virtual(files[1]).virtual.to_manifest(target, group="a", append_dim="time")
    virtual(files[2]).virtual.to_manifest(target, group="b", append_dim="time")
    assert_identical(group_of(target, "a"), native(files[:2]))
    assert_identical(group_of(target, "b"), native(files[2:]))
    assert not opened(target).variables


def test_a_group_is_replaced_only_if_asked(files: list[Path], target: Path) -> None:
    append(files[0], target)
    virtual(files[1]).virtual.to_manifest(target, group="a/b")
    before = content(target)
    with pytest.raises(FileExistsError, match="group /a/b exists already; mode='w' replaces it"):
        virtual(files[2]).virtual.to_manifest(target, group="a/b")
    assert content(target) == before
    virtual(files[2]).virtual.to_manifest(target, group="a/b", mode="w")
    assert_identical(group_of(target, "a/b"), native(files[2:]))
    assert_identical(opened(target), native(files[:1]))


def test_attributes_alone_take_no_variables_away(tmp_path: Path) -> None:
    target = tmp_path / "refs.json"
    held = xr.Dataset({"t": ("x", [1.0, 2.0])})
    xr.DataTree(held).virtual.to_manifest(target, group="g")
    below = xr.DataTree.from_dict({"/below": held})
    below.attrs["title"] = "new"
    with pytest.raises(FileExistsError, match="group /g exists already"):
        below.virtual.to_manifest(target, group="g")
    found = xr.open_dataset(target, engine="virtual", group="g")
    assert found["t"].values.tolist() == [1, 2]


def test_a_group_is_changed_by_every_mode(files: list[Path], target: Path) -> None:
    append(files[0], target)
    virtual(files[1]).virtual.to_manifest(target, group="a")
    named(files[1], t="u").virtual.to_manifest(target, group="a", mode="a")
    changed = native(files[1:2])[["n"]] + 3
    changed.virtual.to_manifest(target, group="a", mode="r+")
    expected = native(files[1:2])
    xr.testing.assert_equal(
        group_of(target, "a").load(), expected.assign(u=expected.t, n=changed.n)
    )
    for mode in ("r+", "replace-source"):
        with pytest.raises(CombineError, match="no such group") as caught:
            virtual(files[1]).virtual.to_manifest(target, group="x", mode=mode)
        assert str(caught.value).startswith("group /x: ")
    assert_identical(opened(target), native(files[:1]))


def test_sources_of_a_group_are_replaced(files: list[Path], target: Path, tmp_path: Path) -> None:
    for path in files[:2]:
        virtual(path).virtual.to_manifest(target, group="a", append_dim="time")
    again = written(tmp_path, "1", days(4, seed=99))
    virtual(again).virtual.to_manifest(target, group="a", mode="replace-source")
    assert_identical(group_of(target, "a"), native(files[:2]))


def test_a_name_is_of_a_variable_or_of_a_group(files: list[Path], target: Path) -> None:
    append(files[0], target)
    virtual(files[0]).virtual.to_manifest(target, group="a")
    before = content(target)
    with pytest.raises(CombineError, match="'t' would be a variable and a group"):
        virtual(files[0]).virtual.to_manifest(target, group="t/b")
    with pytest.raises(CombineError, match="'a' would be a variable and a group"):
        named(files[0], t="a").virtual.to_manifest(target, mode="a")
    assert content(target) == before


def test_a_group_does_not_outgrow_the_coordinate_that_it_inherits(
    files: list[Path], target: Path
) -> None:
    below = virtual(files[0])[["t"]].drop_vars("time")
    xr.DataTree.from_dict({"/": virtual(files[0]), "/a": below}).virtual.to_manifest(target)
    before = content(target)
    for group, message in (
        ("a", "group /a would have 8 elements along 'time'"),
        (None, "group /a"),
    ):
        with pytest.raises(CombineError, match=message):
            virtual(files[1])[["t"] if group else ["t", "n"]].virtual.to_manifest(
                target, append_dim="time", group=group
            )
    assert content(target) == before


# ---------------------------------------------------------------------- other writers

CHANGES: dict[str, Callable[[list[Path], Path, dict[str, Any]], None]] = {
    "a": lambda files, target, how: named(files[0], t="u").virtual.to_manifest(
        target, mode="a", **how
    ),
    "r+": lambda files, target, how: (virtual(files[0])[["n"]].load() + 1).virtual.to_manifest(
        target, mode="r+", **how
    ),
    "group": lambda files, target, how: virtual(files[1]).virtual.to_manifest(
        target, group="g", **how
    ),
    "group w": lambda files, target, how: virtual(files[1]).virtual.to_manifest(
        target, group="g", mode="w", **how
    ),
    "group a": lambda files, target, how: virtual(files[1]).virtual.to_manifest(
        target, group="g", mode="a", **how
    ),
    "edit": lambda files, target, how: virtualds.edit(target, rename={"n": "m"}, **how),
}


def seen(target: Path) -> dict[str, xr.Dataset]:
    return {path: ds.load() for path, ds in xr.open_groups(target, engine="virtual").items()}


# who writes to a repository of Icechunk on local disk holds it until the end
SHARED = {name: suffix for name, suffix in SUFFIXES.items() if name != "icechunk"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("suffix", SHARED.values(), ids=list(SHARED))
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_meets_other_writers_as_appends_do(
    what: str, suffix: str, files: list[Path], tmp_path: Path
) -> None:
    target, alone = tmp_path / f"refs{suffix}", tmp_path / f"alone{suffix}"

    def other(at: Path) -> None:
        virtual(files[2]).virtual.to_manifest(at, group="other")

    for at in (target, alone):
        append(files[0], at)
    with rival(lambda: other(target)), pytest.raises(ConflictError):
        CHANGES[what](files, target, {})
    assert_identical(opened(target), native(files[:1]))
    virtualds.edit(target, drop_groups="other")
    with rival(lambda: other(target)):
        CHANGES[what](files, target, {"conflict": "retry"})
    other(alone)
    CHANGES[what](files, alone, {})
    found, expected = seen(target), seen(alone)
    assert found.keys() == expected.keys()
    for path, dataset in expected.items():
        xr.testing.assert_identical(found[path], dataset)


@pytest.mark.parametrize("suffix", SHARED.values(), ids=list(SHARED))
@pytest.mark.parametrize("mode", ["w-", "w", "a"])
def test_two_writers_of_the_first_group_keep_both(
    mode: str, suffix: str, files: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / f"refs{suffix}"
    with rival(lambda: virtual(files[0]).virtual.to_manifest(target, group="a", mode=mode)):
        virtual(files[1]).virtual.to_manifest(target, group="b", mode=mode, conflict="retry")
    assert_identical(group_of(target, "a"), native(files[:1]))
    assert_identical(group_of(target, "b"), native(files[1:2]))


# ---------------------------------------------------------------------- costs

CHEAP: dict[str, Callable[[Path, xr.Dataset], None]] = {
    "a variable": lambda target, new: new.virtual.to_manifest(target, mode="a"),
    "a group": lambda target, new: new.virtual.to_manifest(target, group="g"),
    "names": lambda target, new: virtualds.edit(target, rename={"v": "w", "time": "t"}),
    "attributes": lambda target, new: virtualds.edit(target, attributes={"v:units": "K"}),
}


@pytest.mark.parametrize("what", CHEAP)
def test_references_that_stay_are_neither_read_nor_written(what: str, tmp_path: Path) -> None:
    target = tmp_path / "refs.zarr"
    archive(range(2)).virtual.to_manifest(target)
    new = xr.Dataset({"more": ("time", np.arange(200.0))})
    with counted(target) as traffic:
        CHEAP[what](target, new)
    assert not [name for name in traffic.read if name.endswith(".parquet")]
    assert traffic.nbytes_written < 3 * METADATA
