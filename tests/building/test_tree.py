"""Combining block by block gives what combining at once gives, or says that it might not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import xarray as xr
from archives import DEFAULTS, KINDS, Archives
from builds import assert_same

import virtualds
from virtualds.building.combining import Combination
from virtualds.building.tree import NEIGHBOURLY, Tree, UnlikeError

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

NESTED = Combination("nested", "time", DEFAULTS)
BY_COORDS = Combination("by_coords", None, DEFAULTS)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return Archives(tmp_path_factory.mktemp("archives"))


def by_blocks(datasets: Sequence[xr.Dataset], combination: Combination, size: int) -> xr.Dataset:
    """What a tree makes of datasets, of which it joins so many at a time."""
    tree = Tree(combination)
    blocks = [tree.block(datasets[n : n + size]) for n in range(0, len(datasets), size)]
    while len(blocks) > 1:
        step = max(size, 2)
        blocks = [tree.join(blocks[n : n + step]) for n in range(0, len(blocks), step)]
    return tree.finished(tree.join(blocks))


def outcome(work: Any) -> Any:
    try:
        return work()
    except (ValueError, TypeError, NotImplementedError) as error:
        return error


UNLIKE = {
    # they are tiles, or their coordinates differ along other dimensions too
    "a_month_that_is_missing",
    "a_mosaic_in_three_dimensions",
    "gaps_with_a_fill_value_of_the_user",
    "sparse_tiles_at_any_offset",
    "tiles_in_the_order_of_their_coordinates",
    "tiles_joined_along_x_first",
    "tiles_of_100_in_blocks_of_32",
    "tiles_of_which_one_is_missing",
    # what numpy makes of three kinds of numbers depends on who meets whom
    "dtypes_le_i4_le_f4",
    "dtypes_le_i8_le_f4",
    "dtypes_le_i8_le_u8",
    "dtypes_le_u1_le_i1_le_u2",
    "integers_next_to_packed_ones",
    "numbers_next_to_booleans",
    "unsigned_bytes_next_to_signed_ones",
    # a later block may be the first that has it
    "a_variable_that_some_files_lack",
}
"""Archives whose files are not alike, or do not combine along time at all."""


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", KINDS)
def test_a_tree_gives_what_combining_at_once_gives(
    name: str, size: int, archives: Archives
) -> None:
    datasets = [virtualds.open_virtual_dataset(path) for path in archives.files(name)]
    expected = outcome(lambda: NESTED(datasets))
    try:
        found = by_blocks(datasets, NESTED, size)
    except UnlikeError:
        assert name in UNLIKE
        return
    assert name not in UNLIKE
    assert isinstance(expected, xr.Dataset), expected
    assert_same(found, expected)


def day(number: int, **more: Any) -> xr.Dataset:
    """A dataset of two times, which lie in a file of its own."""
    t = virtualds.ManifestArray.from_arrays(
        shape=(2, 3),
        chunks=(2, 3),
        dtype="f4",
        path=f"s3://bucket/{number}.nc",
        offsets=1000,
        lengths=24,
    )
    time = np.array([2.0 * number, 2.0 * number + 1])
    coords = {"time": ("time", time, {"units": "days"}), "x": [1, 2, 3], "level": 5.0}
    dataset = xr.Dataset({"t": (("time", "x"), t), "s": ("x", np.arange(3))}, coords)
    dataset.attrs = {"title": "days", "number": number}
    return dataset.assign(more)


def reindexed(number: int) -> xr.Dataset:
    """A dataset that has other elements along x than others have."""
    return day(number).drop_vars("s").assign_coords(x=np.arange(3) + number % 2)


OPTIONS: dict[str, Any] = {
    "as they are": ({}, day),
    "all": ({"data_vars": "all", "coords": "all"}, day),
    "override": ({"compat": "override"}, lambda n: day(n, s=("x", np.arange(3) * n))),
    "an outer join": ({"join": "outer"}, reindexed),
    "an overriding join": ({"join": "override"}, reindexed),
    "no attributes": ({"combine_attrs": "drop"}, day),
    "attributes without conflicts": (
        {"combine_attrs": "no_conflicts"},
        lambda n: day(n).assign_attrs({"number": 0, f"only {n}": n}),
    ),
    "a scalar coordinate": ({}, lambda n: day(n).isel(time=0)),
}


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("which", OPTIONS)
def test_every_option_that_is_neighbourly_is(which: str, size: int) -> None:
    options, made = OPTIONS[which]
    combination = Combination("nested", "time", DEFAULTS | options)
    datasets = [made(number) for number in range(7)]
    assert_same(by_blocks(datasets, combination, size), combination(datasets))


UNSORTED = (1, 0, 3, 2, 5, 4, 6)


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("turn", [1, -1], ids=["rising", "falling"])
def test_coordinates_order_blocks(size: int, turn: int) -> None:
    datasets = [day(number).isel(time=slice(None, None, turn)) for number in UNSORTED]
    datasets = [dataset.assign(t=dataset["s"] * dataset["time"]) for dataset in datasets]
    assert_same(by_blocks(datasets, BY_COORDS, size), BY_COORDS(datasets))


def test_blocks_that_do_not_lie_apart_are_no_blocks() -> None:
    with pytest.raises(UnlikeError, match="do not lie apart"):
        by_blocks([day(number) for number in UNSORTED], BY_COORDS, 3)
    with pytest.raises(UnlikeError, match="do not lie apart"):
        by_blocks([day(0), day(0), day(1)], BY_COORDS, 3)


REFUSED = {
    "data_vars": ("different", ["t"]),
    "coords": ("different",),
    "compat": ("identical", "no_conflicts", "broadcast_equals"),
    "join": ("left", "right", "inner"),
    "combine_attrs": ("drop_conflicts", lambda attributes, context: {}),
}


@pytest.mark.parametrize("option", NEIGHBOURLY)
def test_other_options_are_refused(option: str) -> None:
    for value in REFUSED[option]:
        with pytest.raises(UnlikeError, match=option):
            Tree(Combination("nested", "time", {**DEFAULTS, option: value}))


@pytest.mark.parametrize(
    "combination",
    [
        Combination("nested", ["y", "x"], DEFAULTS),
        Combination("nested", None, DEFAULTS),
        Combination("nested", "time", {**DEFAULTS, "fill_value": 0}),
        Combination("nested", "time", {}),
    ],
    ids=["two dimensions", "merged", "a fill value", "defaults of xarray"],
)
def test_other_combinations_are_refused(combination: Combination) -> None:
    with pytest.raises(UnlikeError):
        Tree(combination)


DIFFERENT: dict[str, xr.Dataset] = {
    "another variable": day(3, u=("x", np.zeros(3))),
    "a variable less": day(3).drop_vars("s"),
    "another order": day(3)[["s", "t"]],
    "other dimensions": day(3).transpose("x", "time"),
    "another kind of numbers": day(3, s=("x", np.zeros(3))),
    "no coordinate": day(3).reset_coords("level"),
    "no index": day(3).drop_indexes("x"),
    "values in place of references": day(3, t=(("time", "x"), np.zeros((2, 3), "f4"))),
    "other values": day(3, s=("x", np.ones(3, int))),
}


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("which", DIFFERENT)
def test_a_dataset_that_is_not_alike_is_found(which: str, size: int) -> None:
    datasets = [day(0), day(1), day(2), DIFFERENT[which], day(4)]
    with pytest.raises(UnlikeError):
        by_blocks(datasets, NESTED, size)
