"""Files in order, in grids and with overlaps combine as their values do in xarray."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from archives import numbers
from effort import times
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_arrays import no_reads, virtual

import virtualds
from virtualds import CombineError, FromAttribute, FromName
from virtualds.combine.ordering import Arrangement, FileExtent, crop_datasets
from virtualds.combine.xarray_combine import Combination

NESTED: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
COMBINED: dict[str, Any] = {
    "data_vars": "minimal",
    "coords": "minimal",
    "compat": "equals",
    "join": "outer",
    "combine_attrs": "override",
}


def write(path: Path, times: Sequence[float] | None, seed: int = 0, **attributes: Any) -> Path:
    """A field along time, if it has times, and x."""
    rng = np.random.default_rng(seed)
    shape = (3,) if times is None else (len(times), 3)
    dims = ("time", "x")[-len(shape) :]
    ds = xr.Dataset({"t": (dims, rng.integers(0, 1000, shape))}, {"x": [1.0, 2.0, 3.0]}, attributes)
    if times is not None:
        ds = ds.assign_coords(time=("time", np.asarray(times, "f8")))
    ds.to_netcdf(path, encoding={"t": {"zlib": True}})
    return path


def written(folder: Path, *files: Sequence[float]) -> list[Path]:
    """Files named by their number, with these times."""
    return [write(folder / f"{n}.nc", times, seed=n, number=n) for n, times in enumerate(files)]


def natively(paths: Sequence[Path]) -> list[xr.Dataset]:
    return [xr.load_dataset(path) for path in paths]


def joined(parts: Sequence[xr.Dataset], dim: str = "time") -> xr.Dataset:
    return xr.combine_nested(list(parts), concat_dim=dim, **COMBINED)


def same(found: Any, expected: xr.Dataset) -> None:
    assert isinstance(found["t"].variable._data, virtualds.ManifestArray)
    xr.testing.assert_identical(found.virtual.load(), expected)


# ---------------------------------------------------------------------- order


@pytest.mark.parametrize(
    ("files", "order"),
    [
        ([[5, 6], [1, 2, 3], [8]], [1, 0, 2]),
        ([[3, 2, 1], [9, 8]], [1, 0]),
        ([[3], [2], [1]], [0, 1, 2]),
        ([[3], [1], [2]], [1, 2, 0]),
    ],
)
def test_files_are_joined_in_the_order_of_their_coordinate(
    files: Any, order: list[int], tmp_path: Path
) -> None:
    paths = written(tmp_path, *files)
    native = natively(paths)
    found = virtualds.open_virtual_mfdataset(paths, **NESTED)
    same(found, joined([native[n] for n in order]))
    assert found.attrs["number"] == order[0]
    same(virtualds.open_virtual_mfdataset(paths, sort=False, **NESTED), joined(native))
    last = virtualds.open_virtual_mfdataset(paths, attrs_file=paths[0], **NESTED)
    assert last.attrs["number"] == 0


def test_files_without_a_coordinate_keep_the_given_order(tmp_path: Path) -> None:
    paths = written(tmp_path, [5, 6], [1, 2], [1, 2])
    given_ = virtualds.open_virtual_mfdataset(
        paths, preprocess=lambda ds: ds.drop_vars("time"), **NESTED
    )
    same(given_, joined([ds.drop_vars("time") for ds in natively(paths)]))


# ---------------------------------------------------------------------- overlaps

OVERLAPS: dict[str, tuple[list[list[float]], dict[str, list[tuple[int, int, int]]]]] = {
    "days of 25 hours": (
        [[0, 1, 2], [2, 3, 4], [4, 5, 6]],
        {
            "first": [(0, 0, 3), (1, 1, 3), (2, 1, 3)],
            "last": [(0, 0, 2), (1, 0, 2), (2, 0, 3)],
        },
    ),
    "forecasts": (
        [[0, 6, 12, 18], [12, 18, 24, 30], [24, 30, 36, 42]],
        {
            "first": [(0, 0, 4), (1, 2, 4), (2, 2, 4)],
            "last": [(0, 0, 2), (1, 0, 2), (2, 0, 4)],
        },
    ),
    "a rerun in the middle": (
        [[0, 1, 2, 3, 4], [2, 3]],
        {"first": [(0, 0, 5), (1, 0, 0)], "last": [(0, 0, 2), (1, 0, 2), (0, 4, 5)]},
    ),
    "the same twice": (
        [[0, 1], [0, 1]],
        {"first": [(0, 0, 2), (1, 0, 0)], "last": [(1, 0, 2), (0, 0, 0)]},
    ),
    "half steps between": (
        [[0, 1, 2], [0.5, 1, 1.5]],
        {
            "first": [(0, 0, 1), (1, 0, 1), (0, 1, 2), (1, 2, 3), (0, 2, 3)],
            "last": [(0, 0, 1), (1, 0, 3), (0, 2, 3)],
        },
    ),
    "falling": (
        [[3, 2, 1], [1, 0]],
        {"first": [(0, 0, 3), (1, 1, 2)], "last": [(0, 0, 2), (1, 0, 2)]},
    ),
}


@pytest.mark.parametrize("policy", ["first", "last"])
@pytest.mark.parametrize("case", OVERLAPS)
def test_overlaps_are_cut_as_the_policy_says(case: str, policy: Any, tmp_path: Path) -> None:
    files, pieces = OVERLAPS[case]
    paths = written(tmp_path, *files)
    native = natively(paths)
    expected = joined([native[n].isel(time=slice(a, b)) for n, a, b in pieces[policy]])
    found = virtualds.open_virtual_mfdataset(paths, overlap=policy, **NESTED)
    same(found, expected)
    assert found.indexes["time"].is_unique
    # it is the files as they are given of which one is the first
    opposite = {"first": "last", "last": "first"}[policy]
    backwards = virtualds.open_virtual_mfdataset(paths[::-1], overlap=opposite, **NESTED)
    xr.testing.assert_equal(backwards.virtual.load(), expected)
    by_coords = virtualds.open_virtual_mfdataset(paths, overlap=policy)
    xr.testing.assert_equal(by_coords.virtual.load(), expected)


def same_place(folder: Path, number: int, **variables: Any) -> Path:
    """Write a file of one place, but with its own values."""
    field = (("time", "x"), numbers(2, 3, seed=number))
    dataset = xr.Dataset({"t": field, **variables}, {"time": [0, 1], "x": [1.0, 2.0, 3.0]})
    dataset.to_netcdf(folder / f"{number}.nc")
    return folder / f"{number}.nc"


def test_of_files_at_one_place_the_policy_takes_one(tmp_path: Path) -> None:
    paths = [same_place(tmp_path, number) for number in range(3)]
    for policy, number in (("first", 0), ("last", 2)):
        found = virtualds.open_virtual_mfdataset(paths, overlap=policy)  # type: ignore[arg-type]
        xr.testing.assert_identical(found.virtual.load(), xr.load_dataset(paths[number]))
        back = virtualds.open_virtual_mfdataset(paths[::-1], overlap=policy)  # type: ignore[arg-type]
        xr.testing.assert_identical(back.virtual.load(), xr.load_dataset(paths[2 - number]))
    with pytest.raises(CombineError, match=r"(?s)'time', 'x'.*overlap='first'") as error:
        virtualds.open_virtual_mfdataset(paths)
    assert str(paths[0]) in str(error.value) and str(paths[2]) in str(error.value)


@pytest.mark.parametrize(
    ("drop", "more", "message"),
    [
        # two months without a time are not the same month
        ("time", {}, "none along 'time' to tell where they lie"),
        (["time", "x"], {}, "none along 'time', 'x' to tell"),
        ([], {"lag": ("time", [1.0, 2.0])}, "not the same variables, so that data would be lost"),
    ],
)
def test_files_are_not_taken_for_one_place_without_knowing(
    drop: Any, more: Any, message: str, tmp_path: Path
) -> None:
    paths = [same_place(tmp_path, 0), same_place(tmp_path, 1, **more)]

    def prepare(dataset: xr.Dataset) -> xr.Dataset:
        return dataset.drop_vars(drop).set_coords([name for name in more if name in dataset])

    for policy in ("first", "last"):
        with pytest.raises(CombineError, match=message) as error:
            virtualds.open_virtual_mfdataset(paths, preprocess=prepare, overlap=policy)  # type: ignore[arg-type]
        assert all(str(path) in str(error.value) for path in paths)


@pytest.mark.parametrize("how", [NESTED, {}], ids=["nested", "by_coords"])
def test_files_that_overlap_raise_an_error_by_default(how: Any, tmp_path: Path) -> None:
    paths = written(tmp_path, [0, 1, 2], [2, 3, 4], [4, 5])
    with pytest.raises(CombineError, match=r"(?s)'time'.*2\.0.*overlap='last'") as error:
        virtualds.open_virtual_mfdataset(paths, **how)
    assert str(paths[0]) in str(error.value)
    assert str(paths[1]) in str(error.value)
    both = virtualds.open_virtual_mfdataset(paths, overlap="keep", **how)
    same(both, joined(natively(paths)))


@pytest.mark.parametrize("sort", [True, False])
def test_a_rerun_counts_wherever_it_begins(sort: bool, tmp_path: Path) -> None:
    paths = written(tmp_path, [2, 3, 4], [0, 1, 2, 3])
    native = natively(paths)
    found = virtualds.open_virtual_mfdataset(paths, sort=sort, overlap="last", **NESTED)
    same(found, joined([native[1], native[0].isel(time=slice(2, 3))]))
    found = virtualds.open_virtual_mfdataset(paths, sort=sort, overlap="first", **NESTED)
    same(found, joined([native[1].isel(time=slice(0, 2)), native[0]]))


def test_text_that_is_kept_twice_stays_in_the_order_given(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}_{name}.nc", None, seed=n) for n, name in enumerate("aba")]
    how: dict[str, Any] = {"combine": "nested", "concat_dim": "run", "overlap": "keep"}
    found = virtualds.open_virtual_mfdataset(paths, coordinates={"run": FromName(r"_(\w)")}, **how)
    native = [ds.expand_dims(run=[name]) for ds, name in zip(natively(paths), "aba", strict=True)]
    same(found, joined(native, "run"))


@pytest.mark.parametrize("policy", ["error", "first", "last", "keep"])
def test_values_repeated_within_a_file_stay(policy: Any, tmp_path: Path) -> None:
    paths = written(tmp_path, [0, 1, 1], [2, 2, 3])
    found = virtualds.open_virtual_mfdataset(paths, overlap=policy, **NESTED)
    same(found, joined(natively(paths)))


@pytest.mark.parametrize("how", [NESTED, {}], ids=["nested", "by_coords"])
def test_repeats_within_a_file_hide_no_overlap(how: Any, tmp_path: Path) -> None:
    paths = written(tmp_path, [0, 1, 1, 2], [2, 3])
    with pytest.raises(CombineError, match=r"overlap along 'time'.*2\.0") as error:
        virtualds.open_virtual_mfdataset(paths, **how)
    assert all(str(path) in str(error.value) for path in paths)


def test_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="overlap='both': give one of 'error', 'first', 'last'"):
        virtualds.open_virtual_mfdataset(written(tmp_path, [0]), overlap="both")  # type: ignore[arg-type]


def test_files_with_other_variables_are_not_cut(tmp_path: Path) -> None:
    paths = written(tmp_path, [0, 1, 2], [1, 2, 3])
    with netCDF4.Dataset(paths[1], "a") as file:
        file.createVariable("extra", "f4", ("time",))[:] = 1
    for policy in ("first", "last"):
        with pytest.raises(CombineError, match="do not hold the same variables") as error:
            virtualds.open_virtual_mfdataset(paths, overlap=policy, **NESTED)  # type: ignore[arg-type]
        assert all(str(path) in str(error.value) for path in paths)


def test_by_coords_cuts_files_of_each_kind_apart(tmp_path: Path) -> None:
    """Other variables at the same times are no overlap."""
    paths = written(tmp_path, [0, 1, 2], [1, 2, 3], [0, 1, 2], [1, 2, 3])
    for path in paths[2:]:
        with netCDF4.Dataset(path, "a") as file:
            file.renameVariable("t", "u")
    native = natively(paths)
    expected = xr.merge(
        [joined([a.isel(time=slice(0, 1)), b]) for a, b in (native[:2], native[2:])],
        combine_attrs="override",
    )
    found = virtualds.open_virtual_mfdataset(paths, overlap="last")
    xr.testing.assert_identical(found.virtual.load(), expected)


@st.composite
def overlapping(draw: st.DrawFn) -> list[list[int]]:
    sign = draw(st.sampled_from([1, -1]))
    number = st.integers(0, 12)
    stretches = draw(st.lists(st.tuples(number, st.integers(1, 6)), min_size=1, max_size=6))
    steps = draw(st.lists(st.sampled_from([1, 1, 2]), min_size=6, max_size=6))
    return [
        [sign * v for v in range(start, start + size * step, step)]
        for (start, size), step in zip(stretches, steps, strict=False)
    ]


@settings(max_examples=times(16))
@given(
    files=overlapping(),
    policy=st.sampled_from(["first", "last"]),
    sort=st.booleans(),
    by_coords=st.booleans(),
)
def test_any_overlap_is_what_xarray_makes_of_values(
    files: list[list[int]],
    policy: Any,
    sort: bool,
    by_coords: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("overlap")
    values = [100.0 * n + np.arange(2 * len(times)).reshape(-1, 2) for n, times in enumerate(files)]
    native = [
        xr.Dataset({"t": (("time", "x"), each)}, {"time": times})
        for each, times in zip(values, files, strict=True)
    ]
    opened = {
        n: ds.assign(t=(("time", "x"), virtual(ds["t"].values, folder, chunks=(2, 2))))
        for n, ds in enumerate(native)
    }
    by_coords &= len({tuple(times) for times in files}) > 1
    combination = Combination(
        *(("by_coords", None) if by_coords else ("nested", "time")), dict(COMBINED)
    )
    extents = {n: FileExtent.of(f"{n}.nc", ds) for n, ds in opened.items()}
    with no_reads():
        parts = Arrangement(sort, policy).arrange_parts(list(opened), extents, combination.dims)
        found = combination(crop_datasets(parts, opened))
    sign = -1 if any(times[-1] < times[0] for times in files) else 1
    every = xr.concat(native[:: -1 if policy == "last" else 1], "time")
    expected = every.drop_duplicates("time", keep="first").sortby("time")
    if sign == -1 or found.indexes["time"].is_monotonic_decreasing:
        found = found.isel(time=slice(None, None, -1))
    xr.testing.assert_identical(found.load(), expected)


# ---------------------------------------------------------------------- dimensions from elsewhere


def test_a_time_from_names_is_a_new_dimension(tmp_path: Path) -> None:
    months = ["200102", "200112", "200101"]
    paths = [write(tmp_path / f"sst_{m}_v2.nc", None, seed=n) for n, m in enumerate(months)]
    native = [
        ds.expand_dims(time=[np.datetime64(f"{m[:4]}-{m[4:]}", "ns")])
        for ds, m in zip(natively(paths), months, strict=True)
    ]
    expected = joined([native[2], native[0], native[1]])
    sources = {"time": FromName(r"sst_(?P<year>\d{4})(?P<month>\d{2})")}
    for how in (NESTED, {}, NESTED | {"parallel": 2}):
        found = virtualds.open_virtual_mfdataset(paths, coordinates=sources, **how)
        same(found, expected)
    target = tmp_path / "refs.zarr"
    found.virtual.to_manifest(target)
    xr.testing.assert_identical(xr.open_dataset(target, engine="virtual").load(), expected)
    late = write(tmp_path / "sst_200106_v2.nc", None, seed=7)
    added = virtualds.open_virtual_mfdataset([late], coordinates=sources, **NESTED)
    added.virtual.to_manifest(target, append_dim="time", position="coordinate")
    every = virtualds.open_virtual_mfdataset([*paths, late], coordinates=sources, **NESTED)
    xr.testing.assert_equal(xr.open_dataset(target, engine="virtual").load(), every.virtual.load())


def test_coordinates_from_file_names_are_set_before_preprocessing(tmp_path: Path) -> None:
    paths = written(tmp_path, [0, 1], [0, 1])
    found = virtualds.open_virtual_mfdataset(
        paths,
        coordinates={
            "start": FromAttribute("number", format=lambda n: 10.0 * n),
            "time": lambda url, ds: ds["time"] + 10 * ds.attrs["number"],
        },
        preprocess=lambda ds: ds.isel(time=slice(1, None)),
        **NESTED,
    )
    assert found["time"].values.tolist() == [1, 11]
    assert found["start"].dims == ("time",)
    assert found["start"].values.tolist() == [0, 10]


def test_a_name_that_does_not_match_names_the_file_and_the_pattern(tmp_path: Path) -> None:
    paths = written(tmp_path, [0, 1], [2, 3])
    with pytest.raises(CombineError, match=r"'_r\(\\\\d\+\)' is not found in '0\.nc'") as error:
        virtualds.open_virtual_mfdataset(
            paths, coordinates={"member": FromName(r"_r(\d+)", int)}, **NESTED
        )
    assert str(paths[0]) in str(error.value)


# ---------------------------------------------------------------------- grids

GRID: dict[str, Any] = {"combine": "nested", "concat_dim": ["member", "time"]}
MEMBER = {"member": FromName(r"_r(\d+)_", int)}


def grid(folder: Path, lacking: Sequence[tuple[int, int]] = ()) -> dict[tuple[int, int], Path]:
    """Files of members 1, 2 and 10, each of three years."""
    return {
        (member, year): write(
            folder / f"t_r{member}_{year}.nc", [2 * year, 2 * year + 1], seed=10 * member + year
        )
        for member, year in product((1, 2, 10), (0, 1, 2))
        if (member, year) not in lacking
    }


def rows(paths: dict[tuple[int, int], Path]) -> list[list[xr.Dataset]]:
    cells = {key: xr.load_dataset(path) for key, path in paths.items()}
    return [
        [ds.expand_dims(member=[m]) for (other, _), ds in cells.items() if other == m]
        for m in (1, 2, 10)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_flat_list_is_a_grid_by_its_coordinates(seed: int, tmp_path: Path) -> None:
    paths = grid(tmp_path)
    expected = xr.combine_nested(rows(paths), concat_dim=["member", "time"], **COMBINED)
    shuffled = np.random.default_rng(seed).permutation(list(map(str, paths.values()))).tolist()
    found = virtualds.open_virtual_mfdataset(shuffled, coordinates=MEMBER, **GRID)
    same(found, expected)
    other = {"combine": "nested", "concat_dim": ["time", "member"]}
    same(virtualds.open_virtual_mfdataset(shuffled, coordinates=MEMBER, **other), expected)
    by_coords = virtualds.open_virtual_mfdataset(shuffled, coordinates=MEMBER)
    xr.testing.assert_equal(by_coords.virtual.load(), expected)


def test_cells_that_no_file_fills_are_missing_values_by_an_outer_join(tmp_path: Path) -> None:
    paths = grid(tmp_path, lacking=[(1, 1), (2, 2), (10, 0)])
    every = [joined(row) for row in rows(paths)]
    expected = joined(every, "member")
    given_ = list(paths.values())
    found = virtualds.open_virtual_mfdataset(given_, coordinates=MEMBER, **GRID)
    same(found, expected)
    assert np.isnan(found["t"].sel(member=1, time=2.0)).all()
    with pytest.raises(ValueError, match="exact"):
        virtualds.open_virtual_mfdataset(given_, coordinates=MEMBER, join="exact", **GRID)


@pytest.mark.parametrize("loadable", [None, ["ground"]], ids=["virtual", "in memory"])
def test_tiles_of_a_grid_with_gaps_share_what_has_no_time(loadable: Any, tmp_path: Path) -> None:
    # of the first time there are two tiles, of the second three, none of which is like another
    def write_tile(time: int, y: int, x: int, more: float = 0.0) -> Path:
        path = tmp_path / f"{time}_{y}_{x}.nc"
        ground = 100.0 * y + 10.0 * x + np.arange(6.0).reshape(2, 3) + more
        xr.Dataset(
            {"h": (("time", "y", "x"), ground[None] + time), "ground": (("y", "x"), ground)},
            {"time": [time], "y": np.arange(2) + 2 * y, "x": np.arange(3) + 3 * x},
        ).to_netcdf(path, encoding={"ground": {"zlib": True}})
        return path

    def open_grid(**how: Any) -> xr.Dataset:
        loaded = {} if loadable is None else {"loadable_variables": ["time", "y", "x", *loadable]}
        dims = ["time", "y", "x"]
        return virtualds.open_virtual_mfdataset(
            paths, combine="nested", concat_dim=dims, **loaded, **how
        )

    paths = [write_tile(*at) for at in [(0, 0, 1), (0, 2, 0), (1, 0, 0), (1, 1, 1), (1, 2, 0)]]
    parts = [xr.load_dataset(path) for path in paths]
    expected = parts[0]
    for part in parts[1:]:
        expected = expected.combine_first(part)
    xr.testing.assert_equal(open_grid().virtual.load(), expected)
    # the first two have a cell in common: the errors names it, and the first file has it
    write_tile(1, 2, 0, more=0.5)
    with pytest.raises(
        CombineError, match=r"ground: files with the same 'y' and 'x' have different"
    ):
        open_grid()
    ground = open_grid(compat="override")["ground"].load()
    xr.testing.assert_equal(ground, expected["ground"])


def test_rows_that_overlap_are_cut_row_by_row(tmp_path: Path) -> None:
    """Member 2 was run again from year 1 on."""
    paths = grid(tmp_path)
    paths[2, 9] = write(tmp_path / "t_r2_9.nc", [3, 4, 5], seed=99)
    cells = rows({k: p for k, p in paths.items() if k[1] != 9})
    again = xr.load_dataset(paths[2, 9]).expand_dims(member=[2])
    cells[1] = [cells[1][0], cells[1][1].isel(time=slice(0, 1)), again]
    expected = joined([joined(row) for row in cells], "member")
    how = GRID | {"coordinates": MEMBER}
    with pytest.raises(CombineError, match="overlap along 'time'"):
        virtualds.open_virtual_mfdataset(list(paths.values()), **how)
    found = virtualds.open_virtual_mfdataset(list(paths.values()), overlap="last", **how)
    same(found, expected)


def test_cutting_whole_rows_never_costs_data(tmp_path: Path) -> None:
    """Two tiles overlap along x. What one has at other times may not be lost."""
    paths = written(tmp_path, [0, 1], [2, 3])
    how: dict[str, Any] = {"combine": "nested", "concat_dim": ["x", "time"], "overlap": "first"}
    shift = {"x": lambda url, ds: ds["x"] + float(url[-4])}
    with pytest.raises(CombineError, match="do not hold the same variables and cells"):
        virtualds.open_virtual_mfdataset(paths, coordinates=shift, **how)
    paths = written(tmp_path, [0, 1], [0, 1])
    native = natively(paths)
    moved = [ds.assign_coords(x=ds["x"] + n) for n, ds in enumerate(native)]
    expected = joined([moved[0], moved[1].isel(x=slice(2, 3))], "x")
    same(virtualds.open_virtual_mfdataset(paths, coordinates=shift, **how), expected)


def test_a_grid_takes_a_coordinate_along_every_dimension(tmp_path: Path) -> None:
    paths = list(grid(tmp_path).values())
    with pytest.raises(CombineError, match=r"(?s)no coordinate 'member'.*coordinates=") as error:
        virtualds.open_virtual_mfdataset(paths, **GRID)
    assert str(paths[0]) in str(error.value)


def test_nested_lists_say_where_files_go(tmp_path: Path) -> None:
    paths = grid(tmp_path)
    lists = [[paths[m, year] for year in (2, 0, 1)] for m in (10, 1, 2)]
    native = rows(paths)
    expected = xr.combine_nested(
        [[native[r][c] for c in (2, 0, 1)] for r in (2, 0, 1)],
        concat_dim=["member", "time"],
        **COMBINED,
    )
    how = GRID | {"coordinates": MEMBER}
    same(virtualds.open_virtual_mfdataset(lists, **how), expected)
    with pytest.raises(CombineError, match=r"different lengths\ngive all files in one list"):
        virtualds.open_virtual_mfdataset([lists[0], lists[1][:2]], **how)


# ---------------------------------------------------------------------- trees


def tree(path: Path, times: Sequence[float], seed: int) -> Path:
    rng = np.random.default_rng(seed)
    field = xr.Dataset(
        {"t": (("time", "x"), rng.integers(0, 1000, (len(times), 2)))},
        {"time": np.asarray(times, "f8")},
    )
    xr.DataTree.from_dict(
        {"/": xr.Dataset(attrs={"run": seed}), "/a": field, "/b": -field}
    ).to_netcdf(path)
    return path


@pytest.mark.parametrize("lost", [(1, 2), (1,)], ids=["another in each row", "one"])
def test_no_file_takes_the_place_of_one_that_is_left_out(lost: Any, tmp_path: Path) -> None:
    paths: list[Any] = [write(tmp_path / f"{n}.nc", None, seed=n) for n in range(4)]
    how: dict[str, Any] = {"combine": "nested", "concat_dim": ["member", "part"], "coords": "all"}
    how |= {"data_vars": "all", "on_error": "collect"}
    for number in lost:
        paths[number].write_bytes(b"no file")
    with pytest.raises(CombineError, match=r"1\.nc: this file is left out.*take its place"):
        virtualds.open_virtual_mfdataset([paths[:2], paths[2:]], **how)
    # a whole row leaves no gap
    rows = [paths[3:], paths[1:2]]
    left = virtualds.open_virtual_mfdataset(rows, **how)
    assert left.sizes["member"] == 1
    xr.testing.assert_equal(left["t"][0, 0].load(), xr.load_dataset(paths[3])["t"])


def test_trees_are_sorted_and_cut_in_every_group(tmp_path: Path) -> None:
    paths = [tree(tmp_path / f"{n}.nc", t, n) for n, t in enumerate([[2, 3], [0, 1, 2]])]
    native = [xr.load_datatree(path) for path in paths]
    for policy, (first, second) in {
        "first": (native[1].isel(time=slice(0, 2)), native[0]),
        "last": (native[1], native[0].isel(time=slice(1, 2))),
    }.items():
        found = virtualds.open_virtual_mfdatatree(paths, concat_dim="time", overlap=policy)  # type: ignore[arg-type]
        for group in ("a", "b"):
            expected = joined([part[group].to_dataset() for part in (first, second)])
            xr.testing.assert_identical(found[group].to_dataset().load(), expected)
    with pytest.raises(CombineError, match="overlap along 'time'"):
        virtualds.open_virtual_mfdatatree(paths, concat_dim="time")


def test_groups_of_a_tree_have_the_coordinate_from_elsewhere(tmp_path: Path) -> None:
    paths = [tree(tmp_path / f"r{n}.nc", [0, 1], n) for n in (2, 1)]
    native = {int(path.stem[1:]): xr.load_datatree(path) for path in paths}
    for source in (FromName(r"r(\d+)", int), FromAttribute("run")):
        found = virtualds.open_virtual_mfdatatree(
            paths, concat_dim="member", coordinates={"member": source}
        )
        for group in ("a", "b"):
            expected = joined(
                [native[n][group].to_dataset().expand_dims(member=[n]) for n in (2, 1)], "member"
            )
            assert isinstance(found[group]["t"].variable._data, virtualds.ManifestArray)
            xr.testing.assert_equal(found[group].to_dataset().load(), expected)
