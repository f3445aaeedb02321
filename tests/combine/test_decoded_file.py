"""Datasets joined as files, in pieces, equal those joined by xarray, or are left to xarray."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray as xr
from archives import DEFAULTS, JOINED, KINDS, Archives
from builds import assert_same
from products import few_quick, looped

import virtualds
from virtualds.combine.concat_stored import SUPPORTED_OPTIONS, Concatenator
from virtualds.combine.file_batch import FileBatch, NeedsFullCombineError, as_batch
from virtualds.combine.xarray_combine import Combination

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

NESTED = Combination("nested", "time", DEFAULTS)
BY_COORDS = Combination("by_coords", None, DEFAULTS)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return Archives(tmp_path_factory.mktemp("archives"))


def in_pieces(datasets: Sequence[xr.Dataset], combination: Combination, size: int) -> xr.Dataset:
    """What datasets are joined to as files, of which so many are joined first.

    Raises
    ------
    NeedsFullCombineError
        They are not.
    """
    alike = Concatenator(combination, needs_order=combination.combine == "by_coords")
    batches = [as_batch(f"{number}.nc", dataset) for number, dataset in enumerate(datasets)]
    if not all(isinstance(batch, FileBatch) for batch in batches):
        raise NeedsFullCombineError("one of them is more than a file")
    files: list[Any] = [replace(b, numbers=(n,)) for n, b in enumerate(batches) if b is not None]
    found: list[Any] = []
    for start in range(0, len(files), size):
        found += pickle.loads(pickle.dumps(alike.join_by_structure(files[start : start + size])))
    return alike.join(found)


@pytest.mark.parametrize("size", few_quick([1, 2, 3], [2]))
def test_datasets_are_joined_as_xarray_joins_them(size: int, archives: Archives) -> None:
    joined = set()
    for name in KINDS:
        datasets = [virtualds.open_virtual_dataset(path) for path in archives.files(name)]
        try:
            found = in_pieces(datasets, NESTED, size)
        except NeedsFullCombineError:
            continue
        joined.add(name)
        assert_same(found, NESTED(datasets))
    assert joined == JOINED


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


Make = Callable[[int], xr.Dataset]
OPTIONS: dict[str, tuple[dict[str, Any], Make]] = {
    "as they are": ({}, day),
    "override": ({"compat": "override"}, lambda n: day(n, s=("x", np.arange(3) * n))),
    "an overriding join": ({"join": "override"}, reindexed),
    "no attributes": ({"combine_attrs": "drop"}, day),
    "attributes without conflicts": (
        {"combine_attrs": "no_conflicts"},
        lambda n: day(n).assign_attrs({"number": 0}),
    ),
    "months of different lengths": ({}, lambda n: day(n).isel(time=slice(0, 1 + n % 2))),
    "dates": ({}, lambda n: day(n).assign_coords(time=days[2 * n : 2 * n + 2])),
    "names along time": ({}, lambda n: day(n).assign_coords(name=("time", ["a", f"b{n}"]))),
    "objects along time": (
        {},
        lambda n: day(n).assign_coords(name=("time", np.array(["a", "b" * n], object))),
    ),
    "another calendar": (
        {},
        lambda n: day(n).assign_coords(
            time=xr.date_range(f"2000-01-{n + 1:02}", periods=2, freq="12h", calendar="360_day")
        ),
    ),
    "an index that comes late": (
        {},
        lambda n: day(n).drop_vars("x").assign_coords(x=[1, 2, 3], w=("time", [1.0, n])),
    ),
}
days = np.datetime64("2000-01-01", "ns") + np.arange(20) * np.timedelta64(1, "D")


@looped("size", [1, 2, 3, 7], quick=2)
@looped("which", OPTIONS)
def test_options_mean_what_they_mean_to_xarray(which: str, size: int) -> None:
    options, made = OPTIONS[which]
    combination = Combination("nested", "time", DEFAULTS | options)
    datasets = [made(number) for number in range(7)]
    assert_same(in_pieces(datasets, combination, size), combination(datasets))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_coordinates_tell_the_dimension(size: int) -> None:
    datasets = [day(number) for number in range(7)]
    assert_same(in_pieces(datasets, BY_COORDS, size), BY_COORDS(datasets))


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("numbers", [(1, 0, 3, 2), (3, 2, 1, 0)], ids=str)
def test_datasets_out_of_order_are_put_in_order(numbers: tuple[int, ...], size: int) -> None:
    datasets = [day(number) for number in numbers]
    assert_same(in_pieces(datasets, BY_COORDS, size), BY_COORDS(datasets))


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("numbers", [(0, 0, 1), (1, 0, 1)], ids=str)
def test_xarray_combines_files_whose_coordinates_overlap(
    numbers: tuple[int, ...], size: int
) -> None:
    with pytest.raises(NeedsFullCombineError):
        in_pieces([day(number) for number in numbers], BY_COORDS, size)


NOT_CERTAIN: dict[str, tuple[dict[str, Any], Make]] = {
    "attributes that only some have": (
        {"combine_attrs": "no_conflicts"},
        lambda n: day(n).assign_attrs({"number": 0, f"only {n}": n}),
    ),
    "an outer join of other elements": ({}, reindexed),
    "a new dimension": ({}, lambda n: day(n).isel(time=0)),
    "dask arrays": ({}, lambda n: day(n, w=("time", dask.array.zeros(2)))),
    "an index of several levels": ({}, lambda n: day(n).drop_vars("t").stack(both=("x",))),
    "names that are no text": ({}, lambda n: day(n).assign({5: ("time", [1.0, 2.0])})),
}


@looped("size", [1, 2, 7], quick=1)
@looped("which", NOT_CERTAIN)
def test_xarray_combines_files_under_uncertain_options(which: str, size: int) -> None:
    options, made = NOT_CERTAIN[which]
    combination = Combination("nested", "time", DEFAULTS | options)
    with pytest.raises(NeedsFullCombineError):
        in_pieces([made(number) for number in range(7)], combination, size)


REFUSED: dict[str, tuple[Any, ...]] = {
    "data_vars": ("different", "all", ["t"]),
    "coords": ("different", "all"),
    "compat": ("identical", "no_conflicts", "broadcast_equals"),
    "join": ("left", "right", "inner"),
    "combine_attrs": ("drop_conflicts", lambda attributes, context: {}),
}


@pytest.mark.parametrize("option", SUPPORTED_OPTIONS)
def test_other_options_are_refused(option: str) -> None:
    for value in REFUSED[option]:
        with pytest.raises(NeedsFullCombineError, match=option):
            Concatenator(
                Combination("nested", "time", {**DEFAULTS, option: value}), needs_order=False
            )


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
    with pytest.raises(NeedsFullCombineError):
        Concatenator(combination, needs_order=False)


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


@looped("size", [1, 2, 5], quick=1)
@looped("which", DIFFERENT)
def test_a_dataset_that_is_not_alike_is_found(which: str, size: int) -> None:
    datasets = [day(0), day(1), day(2), DIFFERENT[which], day(4)]
    with pytest.raises(NeedsFullCombineError):
        in_pieces(datasets, NESTED, size)
