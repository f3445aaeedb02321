"""Files that their parser reads together give the dataset that files opened one by one give."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from alike_reference import ReadEach, reading_together
from builds import assert_same, assert_same_set
from counting_server import Counts, counting_server
from days import CASES, FILES, FilesOf, day, timed
from gauge import Gauge
from products import looped, named_case

import virtualds
from virtualds.chunks.tables import RecordCache
from virtualds.combine import Build, batch_job
from virtualds.combine.concat_stored import Concatenator
from virtualds.combine.report import FilesRead
from virtualds.datasets import conversion
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import PARSERS
from virtualds.parsers.hdf5.alike_files import read_together
from virtualds.parsers.netcdf3 import PARSER as NETCDF3

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

HDF5: Any = PARSERS[0]
WAYS: dict[str, dict[str, Any]] = {
    "nested": {"combine": "nested", "concat_dim": "time"},
    "by_coords": {"combine": "by_coords"},
}


@pytest.fixture
def each() -> Iterator[ReadEach]:
    with reading_together(HDF5) as each:
        yield each


def one_by_one(paths: Any, **options: Any) -> xr.Dataset:
    """What comes of the files without reading any together."""
    with reading_together(HDF5):
        object.__setattr__(HDF5, "read_together", None)
        return virtualds.open_virtual_mfdataset(paths, **options)


def check_same(paths: Any, **options: Any) -> None:
    """Both ways give the same dataset and report, or the same error."""
    results: list[Any] = []
    for build in (one_by_one, virtualds.open_virtual_mfdataset):
        try:
            results.append(build(paths, **options))
        except (ValueError, TypeError, OSError, virtualds.VirtualdsError) as error:
            results.append(error)
    expected, found = results
    assert type(found) is type(expected), (found, expected)
    if not isinstance(expected, xr.Dataset):
        assert str(found) == str(expected)
        assert getattr(found, "__notes__", []) == getattr(expected, "__notes__", [])
        return
    assert_same(found, expected)
    reports = [replace(d.virtual.report, seconds=0, read=FilesRead()) for d in results]
    assert reports[0] == reports[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
@looped("way", WAYS, quick=1)
def test_every_case_is_as_if_opened_one_by_one(
    case: str, way: str, files_of: FilesOf, each: ReadEach
) -> None:
    check_same(files_of(case), **WAYS[way])
    assert each.asked


OPTIONS: dict[str, dict[str, Any]] = {
    "no comparison": {"compat": "override"},
    "no conflicts": {"compat": "no_conflicts"},
    "identical": {"compat": "identical"},
    "first axis": {"join": "override"},
    "inner": {"join": "inner"},
    "exact": {"join": "exact"},
    "no attributes": {"combine_attrs": "drop"},
    "equal attributes": {"combine_attrs": "identical"},
    "attributes without conflicts": {"combine_attrs": "no_conflicts"},
    "common attributes": {"combine_attrs": "drop_conflicts"},
    "as given": {"sort": False},
    "overlaps kept": {"overlap": "keep"},
    "first of overlaps": {"overlap": "first"},
    "last of overlaps": {"overlap": "last"},
    "all variables": {"data_vars": "all"},
    "all coordinates": {"coords": "all"},
    "all loaded": {"loadable_variables": "*"},
    "none loaded": {"loadable_variables": []},
    "chosen": {"loadable_variables": lambda name, variable: name == "time"},
    "not decoded": {"decode_cf": False},
    "without an axis": {"drop_variables": "x"},
    "without some": {"drop_variables": ["mask", "height"]},
    "collected": {"on_error": "collect"},
    "kept": {"on_error": "keep"},
    "prepared": {"preprocess": lambda ds: ds.assign_attrs(n=1)},
    "threads": {"parallel": ThreadPoolExecutor(2)},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", ["days", "descriptions of the day", "a scalar that differs"])
@pytest.mark.parametrize("options", OPTIONS)
@looped("way", WAYS, quick=1)
def test_every_option_is_as_if_opened_one_by_one(
    options: str, case: str, way: str, files_of: FilesOf, each: ReadEach
) -> None:
    check_same(files_of(case), **WAYS[way], **OPTIONS[options])


@pytest.mark.parametrize("way", WAYS)
def test_files_out_of_order_have_the_values_of_the_first_in_order(
    way: str, files_of: FilesOf, each: ReadEach
) -> None:
    paths = files_of("a scalar that differs")
    options = {**WAYS[way], "data_vars": "minimal", "coords": "minimal", "compat": "override"}
    with xr.open_mfdataset(paths, engine="netcdf4", **options) as native:
        for given in (paths[::-1], [*paths[2:], *paths[:2]]):
            for more in ({}, {"preprocess": lambda ds: ds}):
                found = virtualds.open_virtual_mfdataset(given, **options, **more)
                xr.testing.assert_equal(found.virtual.to_lazy().load(), native.load())
            # no file is opened again
            assert len(each.asked) == 2
            each.asked.clear()


READ_TOGETHER = {
    "days",
    "months of different lengths",
    "whole hours",
    "descriptions of the day",
    "fractions of a day",
    "durations",
    "packed",
    "flags",
    "units that differ",
    "bounds that count from their own day",
    "halves of days, and seconds, of their own",
    "another calendar of their own years",
    "dates in other words",
}


@pytest.mark.parametrize("case", sorted(READ_TOGETHER))
def test_alike_files_are_read_and_joined_without_opening_each(
    case: str, files_of: FilesOf, each: ReadEach, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*args: Any) -> Any:
        raise AssertionError("a file was opened by itself")

    monkeypatch.setattr(batch_job, "open_group", opened)
    # a plan of other files may not fit the dates of these, which are then opened again
    monkeypatch.setattr(conversion, "DECODING_PLANS", RecordCache(64))
    found = virtualds.open_virtual_mfdataset(files_of(case), **WAYS["nested"], overlap="keep")
    assert each.found == [list(range(FILES))]
    assert found.virtual.report.opened == FILES


def test_values_are_read_once_for_all_files(files_of: FilesOf, each: ReadEach) -> None:
    """One call of the reader for each loaded variable, and those of the two samples."""
    reads = []
    before = virtualds.ManifestArray.read

    def counted(self: Any, key: Any = None) -> Any:
        reads.append(self.name)
        return before(self, key)

    virtualds.open_virtual_mfdataset(files_of("days"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtualds.ManifestArray, "read", counted)
        virtualds.open_virtual_mfdataset(files_of("days"))
    assert max(reads.count(name) for name in set(reads)) <= 4 < FILES


@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", range(FILES))
@pytest.mark.parametrize("other", ["units that differ", "a variable as a coordinate", "nothing"])
def test_a_different_file_among_alike_ones(
    other: str, place: int, files_of: FilesOf, each: ReadEach, tmp_path: Path
) -> None:
    paths = list(files_of("days"))
    if other == "nothing":
        paths[place] = tmp_path / f"{place}.nc"
        paths[place].write_bytes(b"nothing of the kind")
    else:
        paths[place] = files_of(other)[3 if "coordinate" in other else place]
    for way in WAYS.values():
        check_same(paths, **way)
        check_same(paths, **way, on_error="collect")
    assert list(range(FILES)) not in each.found


@pytest.mark.parametrize("lengths", [(3, 5, 4), (1, 1, 7), (6, 6, 6)])
def test_lengths_need_not_fill_chunks(
    lengths: tuple[int, ...], each: ReadEach, tmp_path: Path
) -> None:
    paths, begin = [], 0
    for number, length in enumerate(lengths * 4):
        made = timed(0, [0.0, 1.0]).isel(time=[0] * length)
        made["time"] = ("time", begin + np.arange(length), {"units": "days since 2000-01-01"})
        begin += length
        paths.append(tmp_path / f"{number:02}.nc")
        encoding = {"v": {"chunksizes": (2, 3)}}
        made.to_netcdf(paths[-1], encoding=encoding, unlimited_dims=["time"])
    for way in WAYS.values():
        check_same(paths, **way)
    assert each.found[0] == list(range(len(paths)))


def test_many_files_are_read_in_batches(
    each: ReadEach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_job, "MAX_FILES_TOGETHER", 4)
    paths = [tmp_path / f"{number:02}.nc" for number in range(11)]
    for number, path in enumerate(paths):
        day(number).to_netcdf(path)
    check_same(paths)
    assert list(map(len, each.asked)) == [4, 4, 3]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_files(count: int, files_of: FilesOf, each: ReadEach) -> None:
    for way in WAYS.values():
        check_same(files_of("days")[:count], **way)


def test_netcdf3_files_can_be_read_together_too(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.nc" for number in range(FILES)]
    for number, path in enumerate(paths):
        day(number).to_netcdf(path, format="NETCDF3_64BIT")
    expected = virtualds.open_virtual_mfdataset(paths)
    with reading_together(NETCDF3) as each:
        found = virtualds.open_virtual_mfdataset(paths)
    assert_same(found, expected)
    assert each.found == [list(range(FILES))]


def test_a_file_of_a_run_is_opened_again_for_its_dataset(files_of: FilesOf, each: ReadEach) -> None:
    paths = files_of("descriptions of the day")
    found = virtualds.open_virtual_mfdataset(paths, attrs_file=paths[3])
    assert found.attrs["history"] == "made on day 3"


@pytest.mark.parametrize("way", WAYS)
def test_a_set_is_written_of_files_that_are_read_together(
    way: str, files_of: FilesOf, each: ReadEach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_job, "MIN_TABLE_REFERENCES", 2)
    for case in ("days", "months of different lengths", "units that differ"):
        options = {**WAYS[way], "mode": "w"}
        expected = one_by_one(files_of(case), to=tmp_path / "one.zarr", **options)
        found = virtualds.open_virtual_mfdataset(
            files_of(case), to=tmp_path / "other.zarr", **options
        )
        assert_same_set(found, expected)
    assert list(range(FILES)) in each.found


def test_dask_workers_read_files_together(each: ReadEach, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    paths = [tmp_path / f"{number:02}.nc" for number in range(32)]
    for number, path in enumerate(paths):
        day(number, steps=2 + number % 2).to_netcdf(path)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = virtualds.open_virtual_mfdataset(paths, parallel=client)
    assert_same(found, one_by_one(paths))
    # pieces are smaller towards the end, so that all workers end together
    assert sorted(map(len, each.found), reverse=True)[:4] == [8, 6, 4, 3]


@pytest.mark.parametrize("cached", [False, True])
def test_what_is_loaded_goes_by_the_length_of_each_file(cached: bool, tmp_path: Path) -> None:
    lengths, paths, begin = (1, 2, 30, 2), [], 0
    for number, length in enumerate(lengths):
        times = begin + np.arange(float(length))
        ds = xr.Dataset(
            {"v": ("time", times)}, {"time": times, "aux": ("time", times), "x": [1.0, 2.0]}
        )
        begin += length
        paths.append(tmp_path / f"{number}.nc")
        ds.to_netcdf(paths[-1], engine="netcdf4")
    seen: list[bool] = []

    def look(ds: xr.Dataset) -> xr.Dataset:
        seen.append(get_virtual_array(ds["aux"].variable) is not None)
        return ds

    options: dict[str, Any] = {"cache": tmp_path / "cache"} if cached else {}
    with virtualds.set_options(small_variable=100):
        alone = [virtualds.open_virtual_dataset(path)["aux"].variable for path in paths]
        for _ in range(2):
            seen.clear()
            virtualds.open_virtual_mfdataset(paths, preprocess=look, **WAYS["nested"], **options)
            assert seen == [get_virtual_array(variable) is not None for variable in alone]
    assert set(seen) == {False, True}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files with groups, whose variables have dimensions of the groups above, and of their own."""
    folder = tmp_path_factory.mktemp("trees")
    paths = [folder / f"{number}.nc" for number in range(FILES)]
    for number, path in enumerate(paths):
        own = day(number).drop_vars("x_bnds").rename(time="step", v="w")
        groups = {
            "/": day(number),
            "/a": day(number, steps=2)[["v"]].drop_vars("time"),
            "/a/b": own,
        }
        if number == 3:
            groups["/a/more"] = xr.Dataset(attrs={"n": 3})
        xr.DataTree.from_dict(groups).to_netcdf(path, engine="netcdf4")
    return paths


@pytest.mark.parametrize("group", [None, "a", "/a/b/", "a/more"])
def test_groups_are_read_together_as_they_are_one_by_one(
    group: str | None, trees: list[Path], each: ReadEach
) -> None:
    dim = "step" if group == "/a/b/" else "time"
    check_same(trees, combine="nested", concat_dim=dim, group=group)
    object.__setattr__(HDF5, "read_together", read_together)
    check_same(trees, combine="nested", concat_dim=dim, group=group)
    if group != "a/more":
        found = virtualds.open_virtual_mfdataset(
            trees, combine="nested", concat_dim=dim, group=group
        )
        # one file has a group more, so that it has another structure
        assert found.virtual.report.read.together == FILES - 1


@pytest.mark.parametrize("group", [None, "a"])
def test_a_dimension_is_as_long_as_the_longest_of_its_variables_in_any_group(
    group: str | None, tmp_path: Path
) -> None:
    netcdf = pytest.importorskip("netCDF4")
    paths = [tmp_path / f"{number}.nc" for number in range(FILES)]
    for number, path in enumerate(paths):
        with netcdf.Dataset(path, "w") as file:
            file.createDimension("time", None)
            file.createDimension("x", 3)
            file.createVariable("time", "f8", ("time",))[:] = [2 * number, 2 * number + 1]
            inner = file.createGroup("a")
            for owner, length in ((file, 2), (inner, 2 + (number == 3) - (number == 4))):
                owner.createVariable("v", "f4", ("time", "x"))[:length] = 10 * number + length
    options: dict[str, Any] = {"combine": "nested", "concat_dim": "time", "group": group}
    check_same(paths, **options)
    found = virtualds.open_virtual_mfdataset(paths, **options)
    assert found.virtual.report.read.together == FILES - 2
    with xr.open_mfdataset(paths, engine="netcdf4", **options) as native:
        xr.testing.assert_equal(found.virtual.to_lazy().load(), native.load())


def tree(number: int, **groups: xr.Dataset) -> dict[str, xr.Dataset]:
    fields = day(number)[["v", "mask"]].drop_vars("time")
    return {"/": day(number), "/a": fields, "/a/b": fields[["v"]], **groups}


def own(number: int) -> xr.Dataset:
    return day(number).rename(time="step", v="w")


FOREST: dict[str, Callable[[int], dict[str, xr.Dataset]]] = {
    "groups that inherit": tree,
    "a group without the dimension": lambda n: tree(n, fixed=day(0)[["mask"]]),
    "a group with a dimension of its own": lambda n: tree(n, own=day(0)[["v"]].rename(time="step")),
    "a coordinate of one group": lambda n: {"/": xr.Dataset(), "/a": day(n), "/a/b": day(n)[["v"]]},
    "coordinates in two groups": lambda n: {"/": xr.Dataset(), "/a": day(n), "/c": day(n)},
    "coordinates that differ": lambda n: {"/": xr.Dataset(), "/a": day(n), "/c": day(n + (n == 3))},
    "a coordinate again below": lambda n: tree(n, c=day(n)),
    "another coordinate below in one": lambda n: tree(n, c=day(n + (n == 3))),
    "another length below in one": lambda n: tree(
        n, c=day(n, steps=2 + (n == 3))[["v"]].drop_vars("time")
    ),
    "a group more in one": lambda n: tree(n, **({"c": day(n)[["v"]]} if n == 3 else {})),
    "months": lambda n: {"/": day(n, 2 + n % 3), "/a": day(n, 2 + n % 3)[["v"]].drop_vars("time")},
    "a mask that differs below": lambda n: tree(n, c=day(n, mask=("x", np.arange(4) * (n // 4)))),
    "dates of each file": lambda n: {
        "/": timed(n, [0, 1], units=f"days since 2000-01-{2 * n + 1:02}"),
        "/a": day(n)[["v"]].drop_vars("time"),
    },
}
READ_AS_ONE = {
    "groups that inherit",
    "a group without the dimension",
    "a group with a dimension of its own",
    "a coordinate of one group",
    "a coordinate again below",
    "months",
    "dates of each file",
}


@pytest.mark.parametrize("kind", FOREST)
def test_trees_are_joined_as_xarray_joins_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"{number}.nc" for number in range(FILES)]
    for number, path in enumerate(paths):
        made = {path.lstrip("/") or "/": ds for path, ds in FOREST[kind](number).items()}
        xr.Dataset().to_netcdf(path, engine="netcdf4")
        for group, dataset in made.items():
            dataset.to_netcdf(path, mode="a", group=group, engine="netcdf4")
    options: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "equals"}
    options |= {"join": "outer", "combine_attrs": "override"}

    def build(order: int) -> xr.DataTree:
        return virtualds.open_virtual_mfdatatree(paths[::order], concat_dim="time").load()

    def combine(order: int) -> xr.DataTree:
        trees = [xr.open_datatree(path, engine="netcdf4") for path in paths[::order]]
        return xr.combine_nested(trees, concat_dim="time", **options).load()

    def result(make: Callable[[int], xr.DataTree], order: int) -> Any:
        try:
            return make(order)
        except (ValueError, virtualds.VirtualdsError) as error:
            return error

    expected = result(combine, 1)
    for order in (1, -1):
        # where groups do not agree about it, files stay in the order in which they are given
        if order < 0 and kind == "coordinates that differ":
            expected = result(combine, order)
        with named_case({"order": order}):
            found = result(build, order)
            assert isinstance(found, xr.DataTree) == isinstance(expected, xr.DataTree), found
            if isinstance(found, xr.DataTree):
                xr.testing.assert_identical(found, expected)
                assert found.groups == expected.groups
    if kind in READ_AS_ONE:

        def opened(*args: Any) -> Any:
            raise AssertionError("a file was opened by itself")

        monkeypatch.setattr(batch_job, "open_group", opened)
        monkeypatch.setattr(Build, "combine", opened)
        for order in (1, -1):
            with named_case({"order": order}):
                xr.testing.assert_identical(build(order), expected)


def test_trees_of_several_structures_stay_as_given_where_they_fall(tmp_path: Path) -> None:
    """Files of one element each that fall are kept so, also where batches mix their order."""
    paths = [tmp_path / f"{number:02}.nc" for number in range(16)]
    for number, path in enumerate(paths):
        field = xr.Dataset(
            {"b": ("time", [number], {"long_name": "ab"[number % 2]})}, {"time": [100.0 - number]}
        )
        xr.DataTree.from_dict({"/g": field}).to_netcdf(path, engine="netcdf4")
    for options in ({}, {"hdf5": "library"}):
        with virtualds.set_options(**options), ThreadPoolExecutor(1) as pool:
            for parallel in (None, pool):
                found = virtualds.open_virtual_mfdatatree(
                    paths, concat_dim="time", parallel=parallel, combine_attrs="drop"
                )
                np.testing.assert_array_equal(found["/g"]["b"].values, np.arange(16))


def test_bounds_have_the_dates_of_the_variable_that_counts_them(tmp_path: Path) -> None:
    """Another variable may name the same bounds."""
    paths = [tmp_path / f"{number}.nc" for number in range(FILES)]
    for number, path in enumerate(paths):
        made = {
            "lead": ("time", [1.0, 2.0], {"units": "m", "bounds": "time_bnds"}),
            "height": ("time", [1.0, 2.0], {"bounds": "time_bnds"}),
            "time_bnds": (("time", "nv"), np.array([[0, 1], [1, 2]])),
        }
        units = f"days since 2001-01-{2 * number + 1:02}"
        time = ("time", [0, 1], {"units": units, "bounds": "time_bnds"})
        xr.Dataset(made, {"time": time}).to_netcdf(path, engine="netcdf4")
    with xr.open_mfdataset(paths, engine="netcdf4") as native:
        found = virtualds.open_virtual_mfdataset(paths)
        xr.testing.assert_identical(found.load(), native.load())
    for path in paths:
        with xr.open_dataset(path) as one:
            xr.testing.assert_identical(virtualds.open_virtual_dataset(path).load(), one.load())


@pytest.mark.parametrize("way", WAYS)
def test_alike_files_are_joined_before_all_are_there(
    way: str, files_of: FilesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[Any] = []
    join = Concatenator.join_files

    def join_noted(self: Concatenator, files: Any) -> Any:
        joined.append(join(self, files))
        return joined[-1]

    monkeypatch.setattr(Concatenator, "join_files", join_noted)
    virtualds.open_virtual_mfdataset(files_of("days"), **WAYS[way])
    assert joined


# ---------------------------------------------------------------------- far away


@pytest.fixture(scope="module")
def forty_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forty")
    for number in range(40):
        day(number, steps=1).to_netcdf(folder / f"{number:02d}.nc", engine="netcdf4")
    return folder


@pytest.fixture
def far_days(
    forty_days: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[list[str], Counts]]:
    """Urls of forty files, of which ten are read together, and what their server was asked for."""
    # two such pieces may be in memory
    monkeypatch.setattr(batch_job, "MAX_FILES_TOGETHER", 20)
    shutil.copytree(forty_days, tmp_path, dirs_exist_ok=True)
    with counting_server(tmp_path) as (url, counts):
        yield [f"{url}/{number:02d}.nc" for number in range(40)], counts


def test_the_next_files_are_fetched_while_those_before_are_joined(
    far_days: tuple[list[str], Counts], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls, counts = far_days
    was_asked, sort, asked = threading.Condition(), batch_job.BatchJob._finish_batches, list[bool]()

    def notify(path: str) -> None:
        with was_asked:
            was_asked.notify_all()

    def sort_later(job: Any, outcomes: Any) -> Any:
        """Join files once those after them are asked for, but for the first, which may fail."""
        following = f"{10 * len(asked) + 10}.nc"
        with was_asked:
            wait = 60 if 0 < len(asked) < 3 else 0
            asked.append(was_asked.wait_for(lambda: counts.of(following) > 0, wait))
        return sort(job, outcomes)

    counts.meanwhile = notify
    monkeypatch.setattr(batch_job.BatchJob, "_finish_batches", sort_later)
    found = virtualds.open_virtual_mfdataset(urls, **WAYS["nested"])
    assert found.sizes["time"] == 40
    assert asked == [False, True, True, False]


@pytest.mark.parametrize("alone", [(), (12, 13, 25)], ids=["all alike", "some unlike"])
def test_files_fetched_ahead_count_as_requests(
    far_days: tuple[list[str], Counts], tmp_path: Path, alone: tuple[int, ...]
) -> None:
    urls, counts = far_days
    for number in alone:
        made = day(number, steps=1).assign_attrs(note="a longer header")
        made.to_netcdf(tmp_path / f"{number:02d}.nc", engine="netcdf4")
    gauge = Gauge()

    def watch(path: str) -> None:
        with gauge.inside():
            time.sleep(0.02)

    counts.meanwhile = watch
    with virtualds.set_options(max_requests=3):
        virtualds.open_virtual_mfdataset(urls, **WAYS["nested"])
    assert gauge.most == 3


@pytest.mark.full
def test_nothing_is_fetched_after_an_error(
    far_days: tuple[list[str], Counts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of forty files, the second ten have an error when twenty more are asked for."""
    urls, counts = far_days
    counts.meanwhile = lambda path: time.sleep(0.05)
    sort, calls = batch_job.BatchJob._finish_batches, list[int]()

    def fail_later(job: Any, outcomes: Any) -> Any:
        calls.append(len(outcomes))
        if len(calls) == 2:
            raise virtualds.FormatError("damaged")
        return sort(job, outcomes)

    monkeypatch.setattr(batch_job.BatchJob, "_finish_batches", fail_later)
    with (
        virtualds.set_options(max_requests=2),
        pytest.raises(virtualds.FormatError, match="damaged"),
    ):
        virtualds.open_virtual_mfdataset(urls, **WAYS["nested"])
    # requests that were sent are answered
    time.sleep(0.2)
    before = len(counts.requests)
    time.sleep(0.5)
    assert len(counts.requests) == before < 36


def test_of_files_after_one_that_fails_few_are_fetched(
    far_days: tuple[list[str], Counts], tmp_path: Path
) -> None:
    urls, counts = far_days
    (tmp_path / "03.nc").write_bytes(b"no file of any kind")
    with pytest.raises(virtualds.FormatError, match=r"03\.nc"):
        virtualds.open_virtual_mfdataset(urls, **WAYS["nested"])
    assert not any(counts.of(f"{number}.nc") for number in range(10, 40))
