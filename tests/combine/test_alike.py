"""Files joined as stored equal their datasets joined by xarray, or are left to xarray."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from archives import DEFAULTS, JOINED, KINDS, Archives
from builds import assert_same
from days import ALIKE, CASES, FILES, UNLIKE, FilesOf, Make, at, day, timed, write
from hypothesis import given
from hypothesis import strategies as st

import virtualds
from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.parser import ListedFiles
from virtualds.combine import batch_job, concat_stored, file_batch
from virtualds.combine.batch_job import BatchJob, open_stored
from virtualds.combine.concat_stored import Concatenator
from virtualds.combine.file_batch import FileBatch, NeedsFullCombineError
from virtualds.combine.xarray_combine import Combination
from virtualds.datasets.conversion import make_dataset_or_tree
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OPEN_DEFAULTS

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

WAYS = {
    "nested": {"combine": "nested", "concat_dim": "time"},
    "by_coords": {"combine": "by_coords", "concat_dim": None},
}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return Archives(tmp_path_factory.mktemp("archives"))


def as_stored(paths: Sequence[Path], needs_order: bool, **options: Any) -> xr.Dataset:
    """What files are joined to as they are stored, in one go, and in pieces first.

    Raises
    ------
    NeedsFullCombineError
        They are not.
    """
    way = {name: options.pop(name) for name in ("combine", "concat_dim")}
    files = [open_numbered(number, path) for number, path in enumerate(paths)]
    if not all(isinstance(file, FileBatch) for file in files):
        raise NeedsFullCombineError("one of them is a dataset")
    alike = Concatenator(Combination(**way, options=DEFAULTS | options), needs_order)
    found = alike.join(files)  # type: ignore[arg-type]
    for size in (2, 3, len(files)):
        assert_same(alike.join(in_pieces(alike, paths, size)), found)
    return found


def open_numbered(number: int, path: Path) -> Any:
    """A file by itself, with its number if it can be joined."""
    found = open_stored(path, OPEN_DEFAULTS)
    return replace(found, numbers=(number,)) if isinstance(found, FileBatch) else found


def in_pieces(alike: Concatenator, paths: Sequence[Path], size: int) -> list[Any]:
    """What comes of files that another process opens, so many at a time."""
    job = BatchJob(partial(open_stored, opening=OPEN_DEFAULTS), concatenator=alike)
    items = list(enumerate(paths))
    pieces = [job(items[start : start + size]) for start in range(0, len(items), size)]
    return [outcome.opened for piece in pieces for outcome in pickle.loads(pickle.dumps(piece))]


def as_datasets(paths: Sequence[Path], **options: Any) -> xr.Dataset:
    """What xarray joins the datasets of files to."""
    way = {name: options.pop(name) for name in ("combine", "concat_dim")}
    datasets = [virtualds.open_virtual_dataset(path) for path in paths]
    combined: xr.Dataset = Combination(**way, options=DEFAULTS | options)(datasets)
    return combined


# Every archive in every way: 4 s.
@pytest.mark.full
def test_archives_are_joined_as_xarray_joins_them(archives: Archives) -> None:
    joined = set()
    for name in KINDS:
        paths = archives.files(name)
        for way in WAYS.values():
            try:
                found = as_stored(paths, needs_order=way["combine"] == "by_coords", **way)
            except NeedsFullCombineError:
                continue
            joined.add(name)
            assert_same(found, as_datasets(paths, **way))
    assert joined == JOINED


# ---------------------------------------------------------------------- one difference at a time


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", ALIKE)
def test_files_that_are_alike_are_joined_as_stored(case: str, way: str, tmp_path: Path) -> None:
    paths = write(tmp_path, ALIKE[case])
    falls = case.startswith("falling")
    if way == "by_coords" and case.startswith("no coordinate"):
        with pytest.raises(NeedsFullCombineError):
            as_stored(paths, needs_order=True, **WAYS[way])
        return
    assert_same(
        as_stored(paths, needs_order=not falls, **WAYS[way]), as_datasets(paths, **WAYS[way])
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", UNLIKE)
def test_xarray_combines_files_that_are_not_alike(case: str, way: str, tmp_path: Path) -> None:
    with pytest.raises(NeedsFullCombineError):
        as_stored(write(tmp_path, UNLIKE[case]), needs_order=False, **WAYS[way])


OPTIONS: dict[str, tuple[dict[str, Any], Make]] = {
    "a scalar that counts once": ({"compat": "override"}, UNLIKE["a scalar that differs"]),
    "a mask that counts once": ({"compat": "override"}, UNLIKE["a mask that differs"]),
    "an axis that counts once": ({"join": "override"}, UNLIKE["other elements of x"]),
    "an outer join of what is equal": ({"join": "outer"}, day),
    "no attributes": ({"combine_attrs": "drop"}, ALIKE["descriptions of the day"]),
    "attributes without conflicts": ({"combine_attrs": "no_conflicts"}, day),
    "identical attributes": ({"combine_attrs": "identical"}, day),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", OPTIONS)
def test_options_mean_what_they_mean_to_xarray(case: str, way: str, tmp_path: Path) -> None:
    options, make = OPTIONS[case]
    paths = write(tmp_path, make)
    if way == "by_coords" and "axis" in case:
        # they lie side by side along two dimensions
        with pytest.raises(NeedsFullCombineError):
            as_stored(paths, needs_order=True, **WAYS[way], **options)
        return
    found = as_stored(paths, needs_order=True, **WAYS[way], **options)
    assert_same(found, as_datasets(paths, **WAYS[way], **options))


REFUSED: dict[str, tuple[dict[str, Any], Make]] = {
    "attributes that conflict": (
        {"combine_attrs": "no_conflicts"},
        ALIKE["descriptions of the day"],
    ),
    "units that conflict": (
        {"combine_attrs": "identical"},
        lambda n: day(n, w=("time", [1.0, 2.0], {"units": "mK"[n // 4]})),
    ),
    "all variables are to grow": ({"data_vars": "all"}, day),
    "all coordinates are to grow": ({"coords": "all"}, day),
    "what is the same in all is kept": ({"join": "inner"}, day),
    "a function decides": ({"combine_attrs": lambda attributes, context: {}}, day),
}


@pytest.mark.parametrize("case", REFUSED)
def test_xarray_combines_files_under_options_that_need_all_files(case: str, tmp_path: Path) -> None:
    options, make = REFUSED[case]
    with pytest.raises(NeedsFullCombineError):
        as_stored(write(tmp_path, make), needs_order=True, **WAYS["nested"], **options)


SEVERAL = {"dates that are missing", "dates with a fill value"}
"""Cases that decode in several ways."""


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", ALIKE)
def test_files_that_are_opened_together_come_as_one(case: str, way: str, tmp_path: Path) -> None:
    paths = write(tmp_path, ALIKE[case])
    alike = Concatenator(Combination(**WAYS[way], options=DEFAULTS), needs_order=False)  # type: ignore[arg-type]
    come = in_pieces(alike, paths, FILES)
    unordered = way == "by_coords" and case.startswith("no coordinate")
    if unordered:
        assert list(map(len, come)) == [1] * FILES
    elif case not in SEVERAL:
        assert list(map(len, come)) == [FILES]
    assert sorted(number for batch in come for number in batch.numbers) == list(range(FILES))
    for batch in come:
        for place, path in enumerate(batch.urls):
            found = batch.cut(place).to_dataset()
            expected = virtualds.open_virtual_dataset(path)
            assert_same(found, expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1, 2, 3, FILES])
def test_files_out_of_order_are_put_in_order_by_their_columns(
    size: int, way: str, tmp_path: Path
) -> None:
    """The first in order gives the attributes, whichever was opened first."""
    days = [3, 0, 4, 1, 6, 2, 5][:FILES]
    paths = write(tmp_path, lambda n: day(days[n]).assign_attrs(number=days[n]))
    alike = Concatenator(Combination(**WAYS[way], options=DEFAULTS), needs_order=True)  # type: ignore[arg-type]
    ordered = [path for _, path in sorted(zip(days, paths, strict=False))]
    found = alike.join(in_pieces(alike, paths, size))
    assert_same(found, as_datasets(ordered, **WAYS[way]))
    assert found.attrs["number"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_no_file_is_opened_again_to_be_put_in_order(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write(tmp_path, lambda n: day((n * 3) % FILES))
    expected = virtualds.open_virtual_mfdataset(paths, preprocess=lambda ds: ds, **WAYS[way])
    opened = []

    def counted(location: Location, *rest: Any) -> Any:
        opened.append(location.given)
        return open_group(location, *rest)

    monkeypatch.setattr(batch_job, "open_group", counted)
    with virtualds.set_options(hdf5="library"):
        found = virtualds.open_virtual_mfdataset(paths, **WAYS[way])
    assert_same(found, expected)
    assert sorted(opened) == sorted(map(str, paths))


def write_classic(path: Path, dataset: xr.Dataset) -> None:
    dataset.to_netcdf(path, format="NETCDF3_64BIT")


def write_big_endian(path: Path, dataset: xr.Dataset) -> None:
    encoding = {"time": {"dtype": ">f8"}, "v": {"dtype": ">f4"}}
    dataset.to_netcdf(path, engine="netcdf4", encoding=encoding)


@pytest.mark.parametrize("write_one", [write_classic, write_big_endian])
def test_files_in_the_other_byte_order_are_cut_out_as_they_are(
    write_one: Callable[[Path, xr.Dataset], None], tmp_path: Path
) -> None:
    paths = [tmp_path / f"{number}.nc" for number in range(FILES)]
    for number, path in enumerate(paths):
        write_one(path, day(number))
    alike = Concatenator(Combination(**WAYS["nested"], options=DEFAULTS), needs_order=True)  # type: ignore[arg-type]
    [batch] = in_pieces(alike, paths, FILES)
    for file, path in zip(batch.list_files(), paths, strict=True):
        xr.testing.assert_identical(file.to_dataset(), virtualds.open_virtual_dataset(path))
    # values that several files have are taken once, so that files are cut
    twice = [paths[0], *paths]
    found = virtualds.open_virtual_mfdataset(twice, **WAYS["nested"], overlap="last")
    xr.testing.assert_identical(found, virtualds.open_virtual_mfdataset(paths, **WAYS["nested"]))


def test_attributes_differ_by_their_bits(tmp_path: Path) -> None:
    """Texts of numbers and of long arrays leave out some of them."""
    one, other = np.zeros(1500), np.zeros(1500)
    other[700] = 1.0
    notes = {"long": [one, other], "close": [np.float64(1.0), np.float64(1.0 + 1e-15)]}
    for name, values in notes.items():
        groups = [ManifestGroup(attributes={name: value}) for value in values]
        files = ListedFiles(groups, range(2))
        assert list(files.attributes) == [("", name)]
        assert ListedFiles([groups[0]] * 2, range(2)).attributes == {}


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_single_times_that_fall_are_ordered_whatever_their_calendar(
    calendar: str, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{number}.nc" for number in range(4)]
    for number, path in enumerate(paths):
        attributes = {"units": "days since 2000-01-01", "calendar": calendar}
        time = ("time", [9.0 - number], attributes)
        made = xr.Dataset({"v": ("time", [number])}, {"time": time}, {"number": number})
        made.to_netcdf(path)
    for way in WAYS.values():
        found, expected = (
            virtualds.open_virtual_mfdataset(paths, **way, **more)
            for more in ({}, {"preprocess": lambda ds: ds})
        )
        assert_same(found, expected)


FALLING: dict[str, tuple[list[float], int]] = {
    "files that fall": ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0], 2),
    "files that fall, in rising order": ([4.0, 3.0, 6.0, 5.0, 8.0, 7.0], 2),
    "single elements that fall": ([8.0, 7.0, 6.0], 1),
    "single elements in no order": ([8.0, 6.0, 7.0], 1),
}


def test_the_first_two_of_files_that_fall_are_not_ordered_by_themselves(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.nc" for number in range(3)]
    for times, path in zip(([0.0], [1.0], [-2.0, -3.0]), paths, strict=True):
        time = ("time", times, {"units": "days since 2000-01-01"})
        xr.Dataset({}, {"time": time}, {"first": times[0]}).to_netcdf(path)
    found, expected = (
        virtualds.open_virtual_mfdataset(paths, **more)
        for more in ({}, {"preprocess": lambda ds: ds})
    )
    assert_same(found, expected)
    assert found.attrs["first"] == 1.0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", FALLING)
def test_falling_coordinates_are_ordered_as_their_datasets_are(
    case: str, way: str, tmp_path: Path
) -> None:
    times, steps = FALLING[case]
    parts = [times[n : n + steps] for n in range(0, len(times), steps)]
    paths = [tmp_path / f"{number}.nc" for number in range(len(parts))]
    for part, path in zip(parts, paths, strict=True):
        timed(0, [0.0, 1.0]).isel(time=[0] * steps).assign_coords(
            time=("time", part, {"units": "days since 2000-01-01"})
        ).to_netcdf(path)
    found, expected = (
        virtualds.open_virtual_mfdataset(paths, **WAYS[way], **more)
        for more in ({}, {"preprocess": lambda ds: ds})
    )
    assert_same(found, expected)


MANY: dict[str, Make] = {
    "alike": lambda n: day(n).assign_attrs(number=n),
    "longer strings late": lambda n: day(n).assign_coords(
        name=("time", np.array(["a" * (n // 20 + 1), "b"], "S"))
    ),
    "times that overlap": lambda n: timed(n, [n % 9, 20 + n]),
}


@pytest.mark.full
@pytest.mark.usefixtures("_processes_take_part")
@pytest.mark.parametrize("make", MANY.values(), ids=MANY)
def test_processes_join_files_that_are_alike(make: Make, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number:02d}.nc" for number in range(24)]
    for number, path in enumerate(paths):
        make(number).to_netcdf(path)
    one, two = (
        virtualds.open_virtual_mfdataset(paths, **WAYS["nested"], overlap="keep", parallel=number)
        for number in (1, 2)
    )
    assert_same(two, one)
    assert two.virtual.report.references == one.virtual.report.references
    named = {"attrs_file": paths[9], "overlap": "keep", "parallel": 2}
    found = virtualds.open_virtual_mfdataset(paths, **WAYS["nested"], **named)
    assert found.attrs == make(9).attrs


def test_of_files_that_are_alike_two_become_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write(tmp_path, day)
    expected = virtualds.open_virtual_mfdataset(paths, preprocess=lambda ds: ds)
    made = []

    def counted(location: Location, *rest: Any) -> xr.Dataset:
        made.append(location.given)
        return make_dataset_or_tree(location, *rest)

    monkeypatch.setattr(file_batch, "make_dataset_or_tree", counted)
    virtualds.open_virtual_mfdataset(paths)
    del made[:]
    found = virtualds.open_virtual_mfdataset(paths)
    assert_same(found, expected)
    assert found.virtual.report.references == expected.virtual.report.references > 0
    assert made == [str(path) for path in paths[:2]]


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("combine", WAYS)
def test_files_out_of_order_or_overlapping_are_arranged_first(
    combine: str, parallel: int, tmp_path: Path
) -> None:
    steps = {0: 4.0, 1: 0.0, 2: 2.0, 3: 1.0, 4: 6.0}
    paths = write(tmp_path, lambda n: timed(n, [steps[n], steps[n] + 1.0]))
    options = {**WAYS[combine], "parallel": parallel, "overlap": "first"}
    found = virtualds.open_virtual_mfdataset(paths, **options)
    expected = virtualds.open_virtual_mfdataset(
        paths, preprocess=lambda ds: ds, **WAYS[combine], overlap="first"
    )
    assert_same(found, expected)
    with pytest.raises(virtualds.CombineError, match="overlap along 'time'"):
        virtualds.open_virtual_mfdataset(paths, **WAYS[combine], parallel=parallel)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("empty", [0, 3])
def test_xarray_combines_files_without_elements(way: str, empty: int, tmp_path: Path) -> None:
    """They go behind all others, and by_coords refuses them: the first is not that of the list."""
    paths = write(tmp_path, lambda n: day(n, steps=2 * (n != empty)).assign_attrs(number=n))
    with pytest.raises(NeedsFullCombineError):
        as_stored(paths, needs_order=True, **WAYS[way])
    if way == "by_coords":
        with pytest.raises(ValueError, match="size zero"):
            virtualds.open_virtual_mfdataset(paths)
        return
    found = virtualds.open_virtual_mfdataset(paths, **WAYS[way])
    assert_same(
        found, virtualds.open_virtual_mfdataset(paths, preprocess=lambda ds: ds, **WAYS[way])
    )
    assert found.attrs["number"] == (1 if empty == 0 else 0)


def test_references_are_counted_of_datasets_where_these_are_joined(tmp_path: Path) -> None:
    """Dates that no other type holds are loaded, and those of the files before them are not."""
    paths = write(tmp_path, lambda n: day(n, seen=at([n, 1e6 if n > 1 else 1.0])))
    one, other = (
        virtualds.open_virtual_mfdataset(paths, **WAYS["nested"], **more)
        for more in ({}, {"preprocess": lambda ds: ds})
    )
    assert_same(one, other)
    assert one.virtual.report.references == other.virtual.report.references


def test_errors_of_decoding_name_the_file(tmp_path: Path) -> None:
    paths = write(
        tmp_path, lambda n: timed(n, [n, n + 1], units=f"days since {'never' * (n == 3)}2000")
    )
    with pytest.raises(ValueError, match="unable to decode") as caught:
        virtualds.open_virtual_mfdataset(paths)
    assert "3.nc: " in str(caught.value)


def test_the_first_error_in_the_order_of_the_files_is_raised(tmp_path: Path) -> None:
    """One that shows only when dates are decoded, before one of a file that does not open."""
    paths = write(tmp_path, lambda n: day(n, seen=at([n, 1e6 if n == 1 else 1.0])))
    paths[3].write_bytes(b"nothing of the kind")
    with pytest.raises(virtualds.UnsupportedError, match="load it with") as caught:
        virtualds.open_virtual_mfdataset(paths, loadable_variables=["time"], **WAYS["nested"])
    assert "1.nc: " in str(caught.value)


# ---------------------------------------------------------------------- any of them together

DRAWN: dict[str, Any] = {
    "compat": ["equals", "override"],
    "combine_attrs": ["override", "drop", "no_conflicts", "identical", "drop_conflicts"],
    "join": ["outer", "exact", "override", "inner"],
    "loadable_variables": [None, "*", ["time", "x"], []],
    "drop_variables": [None, "x", ["mask", "height"]],
    "decode_cf": [True, False],
    "sort": [True, False],
    "overlap": ["error", "first", "last", "keep"],
}
TOLD = {name: st.sampled_from(values) for name, values in DRAWN.items()}


@pytest.mark.full
@given(
    usual=st.sampled_from(list(CASES)),
    other=st.sampled_from(list(CASES)),
    place=st.integers(0, FILES),
    order=st.permutations(range(FILES)) | st.just(list(range(FILES))),
    way=st.sampled_from(list(WAYS)),
    options=st.fixed_dictionaries({}, optional=TOLD),
)
def test_files_that_may_differ_in_kind_are_joined_like_their_datasets(
    files_of: FilesOf,
    usual: str,
    other: str,
    place: int,
    order: list[int],
    way: str,
    options: dict[str, Any],
) -> None:
    paths = [(files_of(other) if n == place else files_of(usual))[n] for n in order]

    def built(**more: Any) -> Any:
        try:
            return virtualds.open_virtual_mfdataset(paths, **WAYS[way], **options, **more)
        except (ValueError, TypeError, virtualds.VirtualdsError, virtualds.CombineWarning) as error:
            return error

    found, expected = built(), built(preprocess=lambda ds: ds)
    assert type(found) is type(expected)
    if isinstance(expected, xr.Dataset):
        assert_same(found, expected)
        assert found.virtual.report.references == expected.virtual.report.references
    else:
        assert str(found) == str(expected)


def test_files_that_all_differ_are_not_compared_in_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def packed(number: int) -> xr.Dataset:
        return day(number, p=("time", np.array([1, 2], "i2"), {"scale_factor": 1.0 + number}))

    files = [open_numbered(n, path) for n, path in enumerate(write(tmp_path, packed))]
    alike = Concatenator(Combination(**WAYS["nested"], options=DEFAULTS), needs_order=True)  # type: ignore[arg-type]

    def compared(*args: Any) -> bool:
        raise AssertionError("two files were compared")

    monkeypatch.setattr(concat_stored, "have_same_attributes", compared)
    assert [batch.numbers for batch in alike.join_by_structure(files)] == [
        (n,) for n in range(FILES)
    ]
