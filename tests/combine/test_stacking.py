"""Files that lack the joined dimension are stacked along it, as xarray stacks them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from pools import quick_processes

import virtualds
from virtualds import CombineError

pytestmark = pytest.mark.usefixtures("_processes_take_part")

FILES = 4


def field(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, 1000, shape).astype("f4")


def plain(n: int) -> xr.Dataset:
    return xr.Dataset({"t": (("y", "x"), field(n, 3, 4))}, {"x": np.arange(4.0)}, {"file": n})


def with_scalar(value: Callable[[int], Any]) -> Callable[[int], xr.Dataset]:
    return lambda n: plain(n).assign_coords(member=value(n))


def several_variables(n: int) -> xr.Dataset:
    more = {"mask": (("y", "x"), np.ones((3, 4), "i1")), "u": ("x", field(n, 4)), "n": ((), n)}
    return plain(n).assign(more)


def other_scalar_coordinates(n: int) -> xr.Dataset:
    return plain(n).assign_coords(member=n, run=10 * n, height=2.0)


def fields_as_coordinates(n: int) -> xr.Dataset:
    lat = ("y", "x"), field(7, 3, 4)
    return plain(n).assign_coords(lat=lat, area=(("y", "x"), field(n, 3, 4)))


def other_lengths(n: int) -> xr.Dataset:
    days = pd.date_range("2001-01-30", periods=3 + n)
    return xr.Dataset({"t": (("time", "x"), field(n, 3 + n, 2))}, {"time": days})


def a_variable_of_the_name(n: int) -> xr.Dataset:
    return plain(n).assign(member=n)


def some_lack_a_variable(n: int) -> xr.Dataset:
    return several_variables(n) if n % 2 else several_variables(n).drop_vars("u")


def only_coordinates(n: int) -> xr.Dataset:
    return xr.Dataset(coords={"x": np.arange(4.0), "run": n})


def no_dimensions(n: int) -> xr.Dataset:
    return xr.Dataset({"t": ((), float(n)), "height": ((), 2.0)})


def some_have_it(n: int) -> xr.Dataset:
    return plain(n).assign_coords(member=n).expand_dims("member" if n > 1 else ())


CASES: dict[str, Callable[[int], xr.Dataset]] = {
    "no coordinate": plain,
    "a number": with_scalar(int),
    "a date": with_scalar(lambda n: np.datetime64("2001-01-01", "ns") + np.timedelta64(n, "D")),
    "a word": with_scalar("abcd".__getitem__),
    "several variables": several_variables,
    "other scalar coordinates": other_scalar_coordinates,
    "fields as coordinates": fields_as_coordinates,
    "other lengths": other_lengths,
    "a variable of the name": a_variable_of_the_name,
    "some lack a variable": some_lack_a_variable,
    "only coordinates": only_coordinates,
    "no dimensions": no_dimensions,
    "some have it": some_have_it,
}
WAYS: dict[str, dict[str, Any]] = {
    "one by one": {},
    "processes": {"parallel": "processes"},
    "one by one, into a set": {"to": "stacked.zarr"},
    "processes, into a set": {"parallel": "processes", "to": "stacked.zarr"},
    "nothing loaded": {"loadable_variables": []},
    "prepared before": {"preprocess": xr.Dataset.copy},
}


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Two processes, started once, since that takes seconds."""
    with quick_processes(2) as pool:
        # they start in the working folder of the moment, and those of tests are removed
        list(pool.map(time.sleep, [0.5, 0.5]))
        yield pool


@pytest.fixture
def how(way: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of a way."""
    options = dict(WAYS[way])
    if "parallel" in options:
        options["parallel"] = request.getfixturevalue(options["parallel"])
    return options


def written(folder: Path, parts: Sequence[xr.Dataset]) -> list[Path]:
    paths = [folder / f"{n}.nc" for n in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        part.to_netcdf(path, encoding={name: {"zlib": True} for name in part if part[name].ndim})
    return paths


def natively(paths: Any, dim: Any) -> xr.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with xr.open_mfdataset(paths, combine="nested", concat_dim=dim) as found:
            return found.load()


# without its index, what has one is not aligned
TAKES_AN_INDEX = {("other lengths", "nothing loaded"), ("some have it", "nothing loaded")}


@pytest.mark.sampled(3)
@pytest.mark.product(times=2)
@pytest.mark.filterwarnings("ignore:No index created for dimension")
@pytest.mark.parametrize(
    ("case", "way"), [pair for pair in product(CASES, WAYS) if pair not in TAKES_AN_INDEX]
)
def test_files_are_stacked_as_xarray_stacks_them(
    case: str, how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = written(tmp_path, [CASES[case](n) for n in range(FILES)])
    found = virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim="member", **how)
    xr.testing.assert_identical(found.virtual.load(), natively(paths, "member"))


@pytest.mark.product
@pytest.mark.parametrize("count", [1, 2, 33])
@pytest.mark.parametrize("to", [None, "stacked.zarr"])
def test_any_number_of_files_is_stacked(
    count: int, to: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = written(tmp_path, [other_scalar_coordinates(n) for n in range(count)])
    found = virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim="member", to=to)
    assert isinstance(found["t"].variable._data, virtualds.ManifestArray)
    xr.testing.assert_identical(found.virtual.load(), natively(paths, "member"))


@pytest.mark.filterwarnings("ignore::virtualds.CombineWarning")
@pytest.mark.parametrize("dims", [["member", "time"], ["time", "member"], ["member", "run"]])
def test_nested_lists_are_stacked_along_what_they_lack(dims: list[str], tmp_path: Path) -> None:
    parts = [
        xr.Dataset({"t": (("time", "x"), field(n, 2, 3))}, {"time": [2 * (n % 2), 2 * (n % 2) + 1]})
        for n in ([0, 1, 2, 3] if dims[0] == "member" else [0, 2, 1, 3])
    ]
    one, two, three, four = written(tmp_path, parts)
    nested = [[one, two], [three, four]]
    found = virtualds.open_virtual_mfdataset(nested, combine="nested", concat_dim=dims)
    xr.testing.assert_identical(found.virtual.load(), natively(nested, dims))


def test_trees_are_stacked_group_by_group(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.nc" for n in range(3)]
    for n, path in enumerate(paths):
        groups = {"/": with_scalar(int)(n), "/a": plain(n + 10), "/a/b": several_variables(n)}
        xr.DataTree.from_dict(groups).to_netcdf(path)
    found = virtualds.open_virtual_mfdatatree(paths, concat_dim="member")
    trees = []
    for path in paths:
        with xr.open_datatree(path) as tree:
            trees.append(tree.load())
    expected = xr.combine_nested(
        trees,
        concat_dim="member",
        data_vars="all",
        coords="different",
        compat="no_conflicts",
        join="outer",
        combine_attrs="override",
    )
    xr.testing.assert_identical(found.virtual.load(), expected)


def test_options_about_variables_are_followed(tmp_path: Path) -> None:
    paths = written(tmp_path, [several_variables(n) for n in range(3)])
    how: dict[str, Any] = {"combine": "nested", "concat_dim": "member", "coords": "different"}
    found = virtualds.open_virtual_mfdataset(paths, data_vars=["t", "u", "n"], **how)
    assert (found["t"].dims, found["mask"].dims) == (("member", "y", "x"), ("y", "x"))
    first = virtualds.open_virtual_mfdataset(
        written(tmp_path, [other_scalar_coordinates(n) for n in range(3)]),
        combine="nested",
        concat_dim="ensemble",
        compat="override",
    )
    assert first["t"].dims[0] == "ensemble"
    assert first["run"] == 0


# ---------------------------------------------------------------------- scalars are coordinates


def test_files_go_in_the_order_of_the_scalar_that_they_are_stacked_by(tmp_path: Path) -> None:
    paths = written(tmp_path, [with_scalar(int)(n) for n in (3, 1, 2)])
    how: dict[str, Any] = {"combine": "nested", "concat_dim": "member"}
    sorted_ones = virtualds.open_virtual_mfdataset(paths, **how)
    assert sorted_ones["member"].values.tolist() == [1, 2, 3]
    given = virtualds.open_virtual_mfdataset(paths, sort=False, **how)
    xr.testing.assert_identical(given.virtual.load(), natively(paths, "member"))


@pytest.mark.parametrize(("policy", "file"), [("first", 0), ("last", 2)])
def test_files_of_one_scalar_overlap(policy: Any, file: int, tmp_path: Path) -> None:
    paths = written(tmp_path, [plain(n).assign_coords(member=n % 2) for n in range(3)])
    how: dict[str, Any] = {"combine": "nested", "concat_dim": "member"}
    with pytest.raises(CombineError, match="overlap along 'member'"):
        virtualds.open_virtual_mfdataset(paths, **how)
    found = virtualds.open_virtual_mfdataset(paths, overlap=policy, **how).virtual.load()
    assert found["member"].values.tolist() == [0, 1]
    assert (found["t"][0].values == plain(file)["t"].values).all()
    other = written(tmp_path, [plain(0).assign_coords(member=0), several_variables(1)])
    more = xr.load_dataset(other[1]).assign_coords(member=0)
    more.to_netcdf(other[1])
    with pytest.raises(CombineError, match="data would be lost"):
        virtualds.open_virtual_mfdataset(other, overlap=policy, **how)


# ---------------------------------------------------------------------- slips of names

SLIPS = [("tme", "time"), ("times", "time"), ("Time", "time")]


@pytest.mark.product
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("slip", "name"), SLIPS)
def test_a_misspelt_dimension_is_reported_with_the_existing_ones(
    slip: str, name: str, how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = written(tmp_path, [other_lengths(n) for n in range(3)])
    with pytest.raises(CombineError) as caught:
        virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim=slip, **how)
    said = str(caught.value)
    assert f"(existing: ['time', 'x'])\ndid you mean {name!r}?" in said
    assert not getattr(caught.value, "__notes__", [])
    assert not list(tmp_path.glob("*.zarr/zarr.json"))


@pytest.mark.parametrize(("slip", "name"), SLIPS)
def test_trees_and_diagnoses_report_a_misspelt_dimension_too(
    slip: str, name: str, tmp_path: Path
) -> None:
    paths = written(tmp_path, [other_lengths(n) for n in range(3)])
    with pytest.raises(CombineError, match=f"did you mean {name!r}"):
        virtualds.open_virtual_mfdatatree(paths, concat_dim=slip)
    with pytest.raises(CombineError, match=f"did you mean {name!r}"):
        virtualds.diagnose(paths, concat_dim=slip)


def test_a_new_dimension_and_a_coordinate_are_not_reported_as_misspelt(tmp_path: Path) -> None:
    paths = written(tmp_path, [plain(n).assign_coords(xx=n) for n in range(3)])
    how: dict[str, Any] = {"combine": "nested", "coords": "minimal"}
    assert virtualds.open_virtual_mfdataset(paths, concat_dim="xx", **how).sizes["xx"] == 3
    found = virtualds.open_virtual_mfdataset(
        paths, concat_dim="yy", preprocess=lambda ds: ds.drop_vars("xx").expand_dims("yy"), **how
    )
    assert found.sizes["yy"] == 3


def test_an_error_of_stacking_says_that_no_file_has_the_dimension(tmp_path: Path) -> None:
    parts = [plain(n).drop_vars("x").isel(x=slice(n + 1)) for n in range(3)]
    with pytest.raises(ValueError, match="'x'") as caught:
        virtualds.open_virtual_mfdataset(
            written(tmp_path, parts), combine="nested", concat_dim="member"
        )
    notes = "\n".join(caught.value.__notes__)
    assert "no file has the dimension 'member', so the files are stacked along it" in notes


def test_trees_take_the_arguments_of_datasets_that_are_joined_along_a_dimension(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / f"{n}.nc" for n in range(2)]
    for n, path in enumerate(paths):
        part = xr.Dataset({"t": ("time", [float(n)])}, {"time": [n]})
        xr.DataTree.from_dict({"/a": part}).to_netcdf(path)
    how: dict[str, Any] = {"concat_dim": "time", "combine": "nested"}
    assert virtualds.open_virtual_mfdatatree(paths, **how)["a/t"].values.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"joined along concat_dim.*group="):
        virtualds.open_virtual_mfdatatree(paths, **{**how, "combine": "by_coords"})
