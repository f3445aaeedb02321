"""A diagnosis is true: differences combine, cost or block as it says."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from archives import KINDS, Archives, days, make, numbers, zipped
from range_server import range_server
from transforms import assert_identical
from virtual_arrays import no_reads

import virtualds
from virtualds.checks.diagnose.facts import FactRuns
from virtualds.checks.diagnose.report import fold_differences
from virtualds.checks.diagnose.trials import (
    EXPLANATIONS,
    FORMAT_CHECKS,
    KIND,
    NAME,
    RENAMED,
    TOGETHER,
)
from virtualds.datasets.location import FORMATS
from virtualds.datasets.structure import Fact, describe_worst_difference, find_dataset_facts

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    # the archives here differ on purpose
    pytest.mark.filterwarnings("ignore::virtualds.CombineWarning"),
]

OPTIONS: dict[str, Any] = {
    "data_vars": "minimal",
    "coords": "minimal",
    "compat": "equals",
    "join": "outer",
    "combine_attrs": "override",
}
"""The defaults of `open_virtual_mfdataset`, for what xarray does natively."""
HELD = [
    name for name in FORMAT_CHECKS if name != "icechunk" or importlib.util.find_spec("icechunk")
]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return Archives(tmp_path_factory.mktemp("archives"))


def way(found: virtualds.Diagnosis) -> dict[str, Any]:
    """How the files were combined to find that out, but in the order given, as xarray does."""
    if len(found.joined) > 1:
        return {"combine": "by_coords"}
    return {"combine": "nested", "concat_dim": found.joined[0], "sort": False}


def native(files: list[Path], found: virtualds.Diagnosis, engine: str = "netcdf4") -> xr.Dataset:
    parts = [xr.load_dataset(path, engine=engine) for path in files]
    if len(found.joined) > 1:
        return xr.combine_by_coords(parts, **OPTIONS)
    return xr.combine_nested(parts, concat_dim=list(found.joined), **OPTIONS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_archive_combines_as_diagnosed(name: str, archives: Archives) -> None:
    files = archives.files(name)
    found = virtualds.diagnose(files)
    assert not found.blocks
    assert sum(era.files for era in found.eras) == len(files)
    combined = virtualds.open_virtual_mfdataset(files, **way(found))
    assert_identical(combined, native(files, found, KINDS[name].engine))


# ---------------------------------------------------------------------- one difference each


@dataclass(frozen=True)
class Case:
    """Two files that differ in one thing, and what is to be said of it.

    ``first`` and ``second`` are variables as `archives.make` takes them, besides a time axis.
    """

    subject: str
    aspect: str
    verdict: str
    first: dict[str, Any]
    second: dict[str, Any]
    sizes: tuple[dict[str, int], dict[str, int]] = ({}, {})
    starts: tuple[int, int] = (0, 4)


def t(
    dtype: str = "f4", *chunks: int, dims: tuple[str, ...] = ("time", "x"), **options: Any
) -> Any:
    """A field of 4 times and 6 points."""
    lengths = {"time": 4, "x": 6, "y": 1, "z": 2}
    shape = tuple(lengths[d] for d in dims)
    counted = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    return dims, counted, {**(zipped(*chunks) if chunks else {}), **options}


def has(**attributes: Any) -> dict[str, Any]:
    return {"attributes": attributes}


def at(*values: float) -> Any:
    return "x", np.array(values), {}


SCALED = (t("i2", **has(scale_factor=0.1)), t("i2", **has(scale_factor=0.01)))
GRID, SHIFTED = at(0, 1, 2, 3, 4, 5), at(3, 4, 5, 6, 7, 8)

CASES: dict[str, Case] = {
    "compression level is no difference": Case(
        "", "", "", {"t": t("f4", 2, 6, complevel=1)}, {"t": t("f4", 2, 6, complevel=9)}
    ),
    "a variable that one lacks": Case("u", "presence", "costs", {"t": t(), "u": t()}, {"t": t()}),
    "a loaded variable that one lacks": Case(
        "height", "presence", "combines", {"t": t(), "height": ((), 2.0, {})}, {"t": t()}
    ),
    "a coordinate along time that one lacks": Case(
        "lag",
        "presence",
        "blocks",
        {"t": t(**has(coordinates="lag")), "lag": ("time", np.arange(4.0), {})},
        {"t": t()},
    ),
    "a dimension of another size": Case(
        "x",
        "size",
        "blocks",
        {"t": t()},
        {"t": (("time", "x"), numbers(4, 5), {})},
        sizes=({}, {"x": 5}),
    ),
    "a dimension more": Case(
        "t",
        "dimensions",
        "costs",
        {"t": t(), "u": t(dims=("time", "x", "z"))},
        {"t": t(dims=("time", "x", "z")), "u": t(dims=("time", "x", "z"))},
    ),
    "dimensions in another order": Case(
        "t", "dimensions", "costs", {"t": t()}, {"t": t(dims=("x", "time"))}
    ),
    "floats of other widths": Case("t", "data type", "costs", {"t": t("f4")}, {"t": t("f8")}),
    "numbers and dates": Case(
        "t",
        "data type",
        "blocks",
        {"t": t("f8")},
        {"t": t("i4", **has(units="days since 2000-01-01"))},
    ),
    "numbers and text": Case(
        "t",
        "data type",
        "costs",
        {"t": t("f8")},
        {"t": (("time", "x"), np.full((4, 6), "a", object), {"dtype": str})},
    ),
    "a coordinate here, a variable there": Case(
        "u",
        "role",
        "blocks",
        {"t": t(**has(coordinates="u")), "u": t()},
        {"t": t(), "u": t()},
    ),
    "a grid that moved": Case(
        "x", "values", "costs", {"t": t(), "x": GRID}, {"t": t(), "x": SHIFTED}
    ),
    "a grid of another size": Case(
        "x",
        "values",
        "costs",
        {"t": t(), "x": GRID},
        {"t": (("time", "x"), numbers(4, 3), {}), "x": at(0, 1, 2)},
        sizes=({}, {"x": 3}),
    ),
    "a scalar of another value": Case(
        "height", "values", "blocks", {"height": ((), 2.0, {})}, {"height": ((), 10.0, {})}
    ),
    "a reference system": Case(
        "crs",
        "coordinate reference system",
        "blocks",
        {"t": t(**has(grid_mapping="crs")), "crs": ((), 0.0, has(crs_wkt='LOCAL_CS["a"]'))},
        {"t": t(**has(grid_mapping="crs")), "crs": ((), 0.0, has(crs_wkt='LOCAL_CS["b"]'))},
    ),
    "byte order": Case(
        "t", "stored type", "costs", {"t": t("<f4", endian="little")}, {"t": t(">f4", endian="big")}
    ),
    "codecs": Case("t", "codecs", "costs", {"t": t("f4", 2, 6)}, {"t": t(chunksizes=(2, 6))}),
    "packing": Case("t", "scale and offset", "costs", {"t": SCALED[0]}, {"t": SCALED[1]}),
    "fill values": Case(
        "t", "fill value", "costs", {"t": t(fill_value=-1.0)}, {"t": t(fill_value=-2.0)}
    ),
    "units of times": Case(
        "seen",
        "units",
        "costs",
        {"seen": t("i4", **has(units="days since 2000-01-01"))},
        {"seen": t("i4", **has(units="hours since 2000-01-03"))},
    ),
    "units of loaded times": Case(
        "start",
        "units",
        "combines",
        {"t": t(), "start": ((), 24.0, has(units="hours since 2000-01-01"))},
        {"t": t(), "start": ((), 1.0, has(units="days since 2000-01-01"))},
    ),
    "units of values": Case(
        "t", "units", "costs", {"t": t(**has(units="K"))}, {"t": t(**has(units="degC"))}
    ),
    "calendars": Case(
        "lag",
        "calendar",
        "costs",
        {"t": t(), "lag": ("time", np.arange(4.0), has(units="days since 2000-01-01"))},
        {
            "t": t(),
            "lag": (
                "time",
                np.arange(4.0),
                has(units="days since 2000-01-01", calendar="noleap"),
            ),
        },
    ),
    "chunks along another axis": Case(
        "t", "chunks along x", "costs", {"t": t("f4", 2, 6)}, {"t": t("f4", 2, 3)}
    ),
    "chunks along the joined axis": Case(
        "t", "chunks along time", "costs", {"t": t("f4", 2, 6)}, {"t": t("f4", 4, 6)}
    ),
    "an attribute": Case(
        "t", "attribute long_name", "combines", {"t": t(**has(long_name="a"))}, {"t": t()}
    ),
    "files that overlap": Case("time", "overlap", "blocks", {"t": t()}, {"t": t()}, starts=(0, 2)),
}


class Written:
    """The two files of every case, each written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self, name: str) -> list[Path]:
        folder = self.folder / name.replace(" ", "_")
        if not folder.exists():
            folder.mkdir()
            case = CASES[name]
            parts = zip((case.first, case.second), case.sizes, case.starts, strict=True)
            for number, (variables, sizes, start) in enumerate(parts):
                lengths = {"time": 4, "x": 6, "y": 1, "z": 2, **sizes}
                make(folder, number, lengths, **variables, time=days(start, 4))
        return sorted(folder.glob("*.nc"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("cases"))


def row_of(case: Case, found: virtualds.Diagnosis) -> virtualds.Difference:
    rows = [d for d in found.differences if (d.variable, d.aspect) == (case.subject, case.aspect)]
    assert len(rows) == 1, found
    return rows[0]


@pytest.mark.parametrize("name", CASES)
def test_a_difference_does_what_the_diagnosis_says(name: str, written: Written) -> None:
    case, files = CASES[name], written.files(name)
    found = virtualds.diagnose(files)
    assert found.joined == ("time",)
    if not case.subject:
        assert not found.differences
    else:
        row = row_of(case, found)
        assert row.verdict == case.verdict, found
        assert row.first_file == str(files[1])
    if found.blocks:
        assert case.verdict == "blocks", found
        with pytest.raises((ValueError, TypeError)):
            virtualds.open_virtual_mfdataset(files, **way(found))
    else:
        combined = virtualds.open_virtual_mfdataset(files, **way(found))
        assert_identical(combined, native(files, found))


COSTING = [name for name, case in CASES.items() if case.verdict == "costs"]


@pytest.mark.parametrize("name", COSTING)
def test_formats_refuse_or_hold_as_diagnosed(name: str, written: Written, tmp_path: Path) -> None:
    case, files = CASES[name], written.files(name)
    found = virtualds.diagnose(files)
    row = row_of(case, found)
    combined = virtualds.open_virtual_mfdataset(files, **way(found))
    about = [case.subject] if case.subject in combined.data_vars else ["t"]
    for form in HELD:
        target = tmp_path / form
        if form in row.refused:
            with pytest.raises(virtualds.UnsupportedError):
                combined[about].virtual.to_manifest(target, format=form)
        elif form in found.formats:
            combined.virtual.to_manifest(target, format=form, mode="w")
    if "fragments" in row.how:
        assert max(len(a.fragments) for a in combined.virtual.arrays.values()) > 1
    if "memory" in row.how:
        assert case.subject not in combined.virtual.arrays
    priced = any(meaning.price and meaning.price in row.how for meaning in EXPLANATIONS.values())
    assert row.refused or "fragments" in row.how or "memory" in row.how or priced


def test_every_aspect_has_a_case() -> None:
    aspects = {case.aspect for case in CASES.values()}
    without = [a for a in EXPLANATIONS if not any(c.startswith(a) for c in aspects)]
    # units of times are an aspect of units, and grids one of values; files out of order, gaps,
    # causes, and errors that no difference explains have tests of their own
    assert set(without) == {
        "units of time",
        "values of a grid",
        "order",
        "gap",
        RENAMED,
        NAME,
        KIND,
        TOGETHER,
    }


def test_files_out_of_order_are_put_in_order_by_coordinates(tmp_path: Path) -> None:
    for number, start in enumerate((0, 8, 4)):
        make(tmp_path, number, {"time": 4, "x": 6}, t=t(), time=days(start, 4))
    files = sorted(tmp_path.glob("*.nc"))
    nested: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
    for sort, verdict in ((True, "combines"), (False, "costs")):
        (row,) = virtualds.diagnose(files, sort=sort).differences
        assert (row.aspect, row.verdict, row.first_file) == ("order", verdict, str(files[2]))
        combined = virtualds.open_virtual_mfdataset(files, sort=sort, **nested)
        assert combined.indexes["time"].is_monotonic_increasing == sort
        assert ("not monotonic" in row.how) != sort


def overlapping_files(folder: Path, *places: list[int]) -> list[Path]:
    """Files with these days."""
    for number, place in enumerate(places):
        name, _, how = days(0, 2)
        time = (name, np.asarray(place, "f8"), how)
        make(folder, number, {"time": 2, "x": 6}, t=(("time", "x"), numbers(2, 6), {}), time=time)
    return sorted(folder.glob("*.nc"))


def test_overlaps_are_reported_with_their_treatment(tmp_path: Path) -> None:
    files = overlapping_files(tmp_path, [0, 1], [1, 2])
    for overlap, verdict in (("error", "blocks"), ("first", "combines"), ("keep", "costs")):
        (row,) = virtualds.diagnose(files, overlap=overlap).differences
        assert (row.aspect, row.verdict) == ("overlap", verdict)
        assert ("duplicate coordinate values" in row.how) == (overlap == "keep")


def test_files_that_overlap_after_others_that_only_interleave_are_found(tmp_path: Path) -> None:
    files = overlapping_files(tmp_path, [0, 30], [3, 5], [5, 7], [31, 32])
    with pytest.raises(virtualds.CombineError, match="overlap along 'time'"):
        virtualds.open_virtual_mfdataset(files, combine="nested", concat_dim="time")
    assert virtualds.diagnose(files).blocks


def test_a_third_file_that_does_not_combine_is_reported(tmp_path: Path) -> None:
    for number, seed in enumerate((0, 0, 1, 0)):
        mask = (("x",), numbers(6, seed=seed), {})
        make(tmp_path, number, {"time": 4, "x": 6}, t=t(), mask=mask, time=days(4 * number, 4))
    assert virtualds.diagnose(sorted(tmp_path.glob("*.nc"))).blocks


@pytest.mark.parametrize("option", ["to", "attrs_file"])
def test_nothing_is_written_by_a_diagnosis(option: str, tmp_path: Path) -> None:
    files = overlapping_files(tmp_path, [0, 1], [2, 3])
    target = tmp_path / "set.zarr"
    with pytest.raises(TypeError, match=option):
        virtualds.diagnose(files, **{option: target})
    assert not target.exists()


def test_an_error_that_no_difference_explains_is_reported(tmp_path: Path) -> None:
    for number in range(3):
        mask = (("x",), numbers(6, seed=number), {})
        make(tmp_path, number, {"time": 4, "x": 6}, t=t(), mask=mask, time=days(4 * number, 4))
    found = virtualds.diagnose(sorted(tmp_path.glob("*.nc")))
    # the values of virtual fields are no part of the structure: combining compares them
    assert found.blocks
    assert all("mask" in row.how for row in found.of("blocks"))
    eased = virtualds.diagnose(sorted(tmp_path.glob("*.nc")), compat="override")
    assert not eased.differences


# ---------------------------------------------------------------------- eras


def years(folder: Path, *variants: dict[str, Any], sizes: tuple[int, ...] = ()) -> list[Path]:
    """Files of days that follow each other, one for every variant of ``t``."""
    begin = 0
    for number, variant in enumerate(variants):
        size = sizes[number] if sizes else 4
        values = numbers(size, 6, seed=number, dtype=variant.get("kind", "f4"))
        options = {k: v for k, v in variant.items() if k != "kind"}
        make(
            folder,
            number,
            {"time": size, "x": 6},
            t=(("time", "x"), values, options),
            time=days(begin, size),
        )
        begin += size
    return sorted(folder.glob("*.nc"))


def test_eras_are_files_of_one_structure_with_their_span(tmp_path: Path) -> None:
    old, new = {"kind": "f4"}, {"kind": "f8"}
    files = years(tmp_path, old, old, new, new, new)
    found = virtualds.diagnose(files)
    assert [(e.files, e.first_file, e.last_file, e.start, e.stop) for e in found.eras] == [
        (2, str(files[0]), str(files[1]), "2000-01-01", "2000-01-08"),
        (3, str(files[2]), str(files[4]), "2000-01-09", "2000-01-20"),
    ]
    (row,) = found.differences
    assert (row.before, row.after, row.first_file, row.files) == (
        "float32",
        "float64",
        str(files[2]),
        3,
    )


def test_eras_that_come_back_are_one(tmp_path: Path) -> None:
    old, new = {"kind": "f4"}, {"kind": "f8"}
    found = virtualds.diagnose(years(tmp_path, old, new, old, new))
    assert [era.files for era in found.eras] == [2, 2]
    assert len(found.differences) == 1


def test_facts_that_change_with_every_file_make_no_eras(tmp_path: Path) -> None:
    files = years(tmp_path, *({"attributes": {"history": f"made as number {n}"}} for n in range(6)))
    found = virtualds.diagnose(files)
    (era,), (row,) = found.eras, found.differences
    assert (era.files, row.aspect, row.files) == (6, "attribute history", 5)
    assert "4 others" in row.after


def test_months_of_other_lengths_are_one_era(tmp_path: Path) -> None:
    lengths = (31, 28, 31, 30)
    variants = ({"chunksizes": (n, 6), "zlib": True} for n in lengths)
    found = virtualds.diagnose(years(tmp_path, *variants, sizes=lengths))
    assert [era.files for era in found.eras] == [4]
    assert {row.aspect for row in found.differences} == {"chunks along time"}
    assert found.formats == ("zarr-v3", "cfa")


def test_months_of_uncompressed_chunks_go_into_every_format(tmp_path: Path) -> None:
    lengths = (31, 28, 31, 30)
    variants = ({"chunksizes": (n, 6)} for n in lengths)
    found = virtualds.diagnose(years(tmp_path, *variants, sizes=lengths))
    assert set(found.formats) == {form.name for form in FORMATS}


LENGTHS = (31, 28, 31, 30, 31, 30)
PIECES = {
    "one chunk a month": lambda n: n,
    "two halves": lambda n: -(-n // 2),
    "five days": lambda n: 5,
    "longer than any month": lambda n: 31,
}


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize("later", PIECES)
@pytest.mark.parametrize("first", PIECES)
def test_lengths_of_months_make_no_eras_if_other_facts_change(
    first: str, later: str, tmp_path: Path
) -> None:
    cuts = [PIECES[first]] * 3 + [PIECES[later]] * 3
    kinds = ["f4"] * 2 + ["f8"] * 4
    files = years(
        tmp_path,
        *(
            {"chunksizes": (min(cut(n), n), 6), "kind": kind}
            for cut, n, kind in zip(cuts, LENGTHS, kinds, strict=True)
        ),
        sizes=LENGTHS,
    )
    found = [era.files for era in virtualds.diagnose(files).eras]
    if "longer than any month" in (first, later):
        # netCDF makes no chunk longer than its dimension, so that these are whole months
        first, later = (
            w.replace("longer than any month", "one chunk a month") for w in (first, later)
        )
    assert found == ([2, 4] if first == later else [2, 1, 3])


# ---------------------------------------------------------------------- gaps


def months_of(folder: Path, months: list[str], calendar: str | None = None) -> list[Path]:
    """A file of days for each month."""
    for month in months:
        days_there = xr.date_range(
            month,
            periods=28,
            freq="D",
            use_cftime=calendar is not None,
            **({"calendar": calendar} if calendar else {}),
        )
        part = xr.Dataset({"t": ("time", np.arange(28.0))}, {"time": days_there})
        part.to_netcdf(folder / f"{month}.nc", encoding={"t": {"zlib": True}})
    return [folder / f"{month}.nc" for month in months]


def only(values: list[str]) -> xr.Dataset:
    return xr.Dataset(
        {"t": ("time", np.arange(float(len(values))))}, {"time": np.array(values, "M8[ns]")}
    )


GAPS: dict[str, tuple[list[list[str]], tuple[str, str] | None]] = {
    "days, all there": ([["2001-01-01", "2001-01-02"], ["2001-01-03", "2001-01-04"]], None),
    "days, some missing": (
        [["2001-01-01", "2001-01-02", "2001-01-03"], ["2001-01-07", "2001-01-08"]],
        ("2001-01-03", "2001-01-07"),
    ),
    "months, all there": ([["2001-01-01"], ["2001-02-01"], ["2001-03-01"], ["2001-04-01"]], None),
    "months, one missing": (
        [["2001-01-01"], ["2001-02-01"], ["2001-03-01"], ["2001-05-01"]],
        ("2001-03-01", "2001-05-01"),
    ),
    "years, one missing": (
        [["2000-01-01"], ["2001-01-01"], ["2002-01-01"], ["2004-01-01"]],
        ("2002-01-01", "2004-01-01"),
    ),
    "within a file": (
        [["2001-01-01", "2001-01-02", "2001-01-05", "2001-01-06"], ["2001-01-07", "2001-01-08"]],
        ("2001-01-02", "2001-01-05"),
    ),
    "no regular axis": ([["2001-01-01", "2001-01-02"], ["2001-01-05"], ["2001-01-20"]], None),
    "hardly any files": ([["2001-01-01"], ["2001-03-01"]], None),
}


@pytest.mark.parametrize("name", GAPS)
def test_gaps_of_a_regular_axis_are_reported(name: str, tmp_path: Path) -> None:
    parts, gap = GAPS[name]
    files = [tmp_path / f"{n}.nc" for n in range(len(parts))]
    for path, values in zip(files, parts, strict=True):
        only(values).to_netcdf(path, encoding={"t": {"zlib": True}})
    found = virtualds.diagnose(files)
    rows = [row for row in found.differences if row.aspect == "gap"]
    assert not found.blocks
    assert [row.verdict for row in rows] == ["costs"] * (gap is not None)
    built = virtualds.open_virtual_mfdataset(files, combine="nested", concat_dim="time")
    verified = built.virtual.verify()
    assert verified.ok
    assert verified.gaps == (
        () if gap is None else (f"'time' has nothing between {gap[0]} and {gap[1]}",)
    )
    assert ("gaps" in str(verified)) == (gap is not None)
    assert verified.to_dict()["gaps"] == list(verified.gaps)
    if gap and name != "within a file":
        (row,) = rows
        assert (row.variable, row.before, row.after, row.files) == ("time", *gap, 1)
        assert "look for the missing files" in row.remedy


def test_gaps_are_reported_for_other_calendars_and_not_for_samples(tmp_path: Path) -> None:
    files = months_of(tmp_path, ["2001-02-01", "2001-03-01", "2001-05-01"], "noleap")
    (row,) = [r for r in virtualds.diagnose(files).differences if r.aspect == "gap"]
    assert (row.first_file, row.files) == (str(files[2]), 1)
    some = virtualds.diagnose(
        months_of(tmp_path, [f"2001-{m:02}-01" for m in range(1, 13)]), sample=1
    )
    assert some.examined < some.files
    assert "gap" not in {r.aspect for r in some.differences}


@pytest.mark.parametrize("calendars", [("noleap", "360_day"), ("noleap", "standard")], ids=str)
def test_an_archive_of_two_calendars_has_no_gaps(
    calendars: tuple[str, str], tmp_path: Path
) -> None:
    """Dates of two calendars have no order."""
    files = []
    for number, calendar in enumerate((*calendars, calendars[0]), 1):
        files += months_of(tmp_path, [f"2001-{number:02}-01"], calendar)
    aspects = {row.aspect for row in virtualds.diagnose(files).differences}
    assert "calendar" in aspects
    assert "gap" not in aspects


def test_a_file_that_cannot_be_opened_leaves_no_gap(tmp_path: Path) -> None:
    files = [tmp_path / f"{day}.nc" for day in range(1, 7)]
    for day, path in enumerate(files, 1):
        only([f"2001-01-{day:02}"]).to_netcdf(path)
    files[3].write_text("not found")
    assert "gap" not in {row.aspect for row in virtualds.diagnose(files).differences}
    files[3].unlink()
    found = virtualds.diagnose([path for path in files if path.exists()])
    assert "gap" in {row.aspect for row in found.differences}


def test_a_static_field_that_differs_has_a_remedy(tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.nc" for n in range(4)]
    for n, path in enumerate(files):
        part = only([f"2001-01-{n + 1:02}"]).assign(mask=(("y", "x"), np.full((3, 4), n == 3)))
        part.to_netcdf(path)
    found = virtualds.diagnose(files)
    (row,) = found.of("blocks")
    assert "'mask'" in row.how
    assert 'data_vars="different" keeps the values of every file' in row.remedy
    assert "drop_variables" in row.remedy and "override" not in str(found)
    space: dict[str, Any] = {"virtualds": virtualds, "files": files}
    exec(row.code, space)
    assert space["vds"]["mask"].values[:, 0, 0].tolist() == [False, False, False, True]


def test_files_that_cannot_be_opened_are_an_era_of_their_own(tmp_path: Path) -> None:
    files = years(tmp_path, {}, {}, {})
    files[1].write_bytes(files[1].read_bytes()[:600])
    (tmp_path / "003.nc").write_text("not found")
    (tmp_path / "004.nc").write_text("not found either")
    found = virtualds.diagnose([*sorted(tmp_path.glob("*.nc")), tmp_path / "005.nc"])
    opened, *others = found.eras
    assert opened.files == 2 and opened.reason is None
    assert sum(era.files for era in others) == 4
    assert {era.reason.partition(":")[0] for era in others if era.reason} <= {
        "FormatError",
        "FileNotFoundError",
        "ReadError",
    }
    assert found.blocks
    rows = found.of("blocks")
    assert {row.aspect for row in rows} == {"opening"}
    assert str(tmp_path / "005.nc") in {row.first_file for row in rows}


def test_an_archive_without_a_readable_file_is_diagnosed_too(tmp_path: Path) -> None:
    (tmp_path / "a.nc").write_text("nothing")
    found = virtualds.diagnose(tmp_path / "a.nc")
    assert found.blocks and found.joined == () and found.formats == ()
    assert "cannot be opened" in str(found)


def test_a_file_that_is_given_twice_counts_twice(tmp_path: Path) -> None:
    found = virtualds.diagnose([tmp_path / "none.nc", tmp_path / "none.nc"])
    assert [era.files for era in found.eras] == [2]


def test_an_error_of_the_users_function_names_the_file(tmp_path: Path) -> None:
    files = years(tmp_path, {}, {}, {})

    def refusing(ds: xr.Dataset) -> xr.Dataset:
        if ds.encoding["source"] == str(files[1]):
            raise KeyError("no such thing")
        return ds

    found = virtualds.diagnose(files, preprocess=refusing)
    assert [era.files for era in found.eras] == [2, 1]
    assert "no such thing" in str(found.eras[1].reason)


@pytest.mark.parametrize("on_error", ["skip", "collect", "raise"])
def test_files_that_the_build_leaves_out_do_not_block(on_error: Any, tmp_path: Path) -> None:
    files = years(tmp_path, {}, {}, {})
    files[1].write_text("nothing")
    how: dict[str, Any] = {"concat_dim": "time", "on_error": on_error}
    found = virtualds.diagnose(files, **how)
    (row,) = found.differences
    left_out = on_error != "raise"
    assert (row.aspect, row.verdict) == ("opening", "costs" if left_out else "blocks")
    assert ("on_error leaves out" in row.how) == left_out
    assert virtualds.diagnose(files[1], **how).blocks
    # what somebody's function raises is no fault of a file, and no build leaves it out
    assert virtualds.diagnose(files, preprocess=lambda ds: ds["none"], **how).blocks


def test_a_sample_is_spread_evenly_and_has_both_ends(tmp_path: Path) -> None:
    files = years(tmp_path, *({} for _ in range(11)))
    found = virtualds.diagnose(files, sample=3)
    assert (found.files, found.examined) == (11, 5)
    assert (found.eras[0].first_file, found.eras[0].last_file) == (str(files[0]), str(files[10]))
    assert "5 of them examined" in str(found)
    assert virtualds.diagnose(files, sample=100).examined == 11


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample": 0}, "at least 1"),
        ({"concat_dims": "time"}, "did you mean 'concat_dim'"),
        ({"combine": "by_coords", "concat_dim": "time"}, "is for combine='nested'"),
        ({"coordinates": {"time": "2001"}}, "gives no values"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
    ],
)
def test_a_wrong_call_is_refused(change: Any, message: str, archive_files: list[Path]) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        virtualds.diagnose(archive_files, **change)
    with pytest.raises(FileNotFoundError):
        virtualds.diagnose("/nowhere/*.nc")


# ---------------------------------------------------------------------- what is joined


GUESSES = {
    "months_of_28_to_31_days": (("time",), "unlimited"),
    "years_of_365_and_366_days": (("time",), "coordinate differs"),
    "a_month_that_is_missing": (("level",), "coordinate differs"),
    "tiles_of_100_in_blocks_of_32": (("y", "x"), "unlimited"),
    "a_mosaic_in_three_dimensions": (("z", "y", "x"), "unlimited"),
    "tiles_of_which_one_is_missing": (("y", "x"), "unlimited"),
    "packing_that_differs": (("time",), "first dimension"),
    "a_short_chunk_between_long_ones": (("time",), "unlimited"),
}


@pytest.mark.parametrize("name", GUESSES)
def test_the_joined_dimension_is_found_and_reported(name: str, archives: Archives) -> None:
    dims, reason = GUESSES[name]
    found = virtualds.diagnose(archives.files(name))
    assert sorted(found.joined) == sorted(dims)
    assert reason in found.reason
    assert reason in str(found)


def test_time_is_joined_along_rather_than_text(tmp_path: Path) -> None:
    for number in range(3):
        dataset = xr.Dataset(
            {"t": (("run", "time"), numbers(1, 2, seed=number))},
            {
                "run": [f"run {number}"],
                "time": np.array(["2001-01-01", "2001-01-02"], "M8[ns]")
                + np.timedelta64(2 * number, "D"),
            },
        )
        dataset.to_netcdf(tmp_path / f"{number}.nc")
    files = sorted(tmp_path.glob("*.nc"))
    found = virtualds.diagnose(
        files, preprocess=lambda ds: ds.assign_coords(run=ds["run"].astype(object))
    )
    assert found.joined == ("time",)


def test_a_dimension_that_is_given_is_taken(archives: Archives) -> None:
    files = archives.files("side_by_side_along_a_new_axis")
    found = virtualds.diagnose(files, concat_dim="member", data_vars="all", join="override")
    assert (found.joined, found.reason) == (("member",), "as given")
    combined = virtualds.open_virtual_mfdataset(
        files, combine="nested", concat_dim="member", data_vars="all", join="override"
    )
    assert not found.blocks and combined.sizes["member"] == 3


# ---------------------------------------------------------------------- as it is built


def parts_without_time(folder: Path) -> list[Path]:
    """Files of one day each, of two members, which only their names and attributes tell."""
    for member in (1, 2):
        for day in (1, 2, 3):
            field = xr.DataArray(np.full((2, 3), 10 * member + day, "f4"), dims=("y", "x"))
            attrs = {"day": f"2001-01-{day:02}", "member": member}
            name = f"t_2001-01-{day:02}_r{member}.nc"
            xr.Dataset({"t": field}, attrs=attrs).to_netcdf(folder / name)
    return sorted(folder.glob("*.nc"))


DAY = virtualds.FromName(r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)")
MEMBER = virtualds.FromName(r"_r(\d+)", int)
BUILDS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "a new dimension from names": (
        "r1",
        {"combine": "nested", "concat_dim": "time", "coordinates": {"time": DAY}},
        ("time",),
    ),
    "from an attribute, by coordinates": (
        "r1",
        {"coordinates": {"time": virtualds.FromAttribute("day", format="%Y-%m-%d")}},
        ("time",),
    ),
    "from a function, and another one along it": (
        "r1",
        {
            "combine": "nested",
            "concat_dim": "day",
            "coordinates": {"day": lambda url, ds: int(ds.attrs["day"][-2:]), "name": MEMBER},
        },
        ("day",),
    ),
    "a grid of files": (
        "r",
        {
            "combine": "nested",
            "concat_dim": ["member", "time"],
            "coordinates": {"member": MEMBER, "time": DAY},
        },
        ("member", "time"),
    ),
}


@pytest.mark.parametrize("name", BUILDS)
def test_a_diagnosis_takes_the_options_of_a_build(name: str, tmp_path: Path) -> None:
    which, how, dims = BUILDS[name]
    files = [path for path in parts_without_time(tmp_path) if which in path.stem]
    found = virtualds.diagnose(files, **how)
    assert (found.joined, found.blocks) == (dims, False)
    assert all(era.reason is None for era in found.eras)
    combined = virtualds.open_virtual_mfdataset(files, **how)
    assert dict(combined["t"].sizes) == {**dict.fromkeys(dims, 3), "y": 2, "x": 3} | (
        {"member": 2} if "member" in dims else {}
    )
    if dims == ("time",):
        assert (found.eras[0].start, found.eras[0].stop) == ("2001-01-01", "2001-01-03")


def test_a_name_without_a_value_is_reported_with_its_file(tmp_path: Path) -> None:
    files = [path for path in parts_without_time(tmp_path) if "r1" in path.stem]
    files.append(files[0].rename(tmp_path / "t_2001.nc"))
    found = virtualds.diagnose(files[1:], concat_dim="time", coordinates={"time": DAY})
    assert found.blocks and found.eras[-1].first_file == str(files[-1])
    assert "is not found in 't_2001.nc'" in str(found.eras[-1].reason)
    with pytest.raises(virtualds.CombineError, match=r"is not found in 't_2001\.nc'"):
        virtualds.open_virtual_mfdataset(
            files[1:], combine="nested", concat_dim="time", coordinates={"time": DAY}
        )


def test_names_that_tell_the_same_time_overlap(tmp_path: Path) -> None:
    files = parts_without_time(tmp_path)
    (row,) = virtualds.diagnose(files, concat_dim="time", coordinates={"time": DAY}).of("blocks")
    assert (row.aspect, row.files) == ("overlap", 3)


@pytest.mark.parametrize("parallel", [None, 2])
def test_progress_counts_the_examined_files(parallel: int | None, tmp_path: Path) -> None:
    files = years(tmp_path, *({} for _ in range(11)))
    files[5].write_text("nothing")
    told: list[virtualds.Progress] = []
    found = virtualds.diagnose(files, sample=9, progress=told.append, parallel=parallel)
    done = [p.done for p in told]
    # files that are read together are counted together
    assert done == [*sorted(set(done)), 11]
    assert {p.total for p in told} == {11}
    report = told[-1].report
    assert report is not None and [lost.url for lost in report.left_out] == [str(files[5])]
    assert [era.first_file for era in found.eras] == [str(files[0]), str(files[5])]
    assert found == virtualds.diagnose(files)


def test_a_build_takes_from_the_cache_what_a_diagnosis_opened(tmp_path: Path) -> None:
    files = years(tmp_path, {}, {}, {})
    options = {"cache": tmp_path / "cache", "drop_variables": ["x"]}
    virtualds.diagnose(files, **options)
    built = virtualds.open_virtual_mfdataset(files, **options)
    assert built.virtual.report.cached == 3


# ---------------------------------------------------------------------- forms


@pytest.fixture
def found(tmp_path: Path) -> virtualds.Diagnosis:
    names = ({"attributes": {"note": "<b>&amp;"}}, {"kind": "f8"}, {"kind": "f8"})
    files = years(tmp_path, *names)
    files[2].write_text("nothing")
    return virtualds.diagnose(files)


def test_text_names_eras_and_differences_the_worst_first(
    found: virtualds.Diagnosis, tmp_path: Path
) -> None:
    text = str(found)
    titles = ("These files do not combine", "They combine, at a cost", "Differences that cost")
    assert sorted(map(text.index, titles)) == [text.index(title) for title in titles]
    for row in found.differences:
        assert row.aspect in text and row.how in text
    assert repr(found) == text
    assert max(map(len, text.replace(str(tmp_path), "").splitlines())) < 400


def test_html_escapes_what_files_say(found: virtualds.Diagnosis) -> None:
    page = found._repr_html_()
    assert "<b>&" not in page and "&lt;b&gt;&amp;amp;" in page
    cards = fold_differences(found.of("blocks") + found.of("costs"))
    assert page.count('class="vds-card"') == len(cards)


def test_machines_get_all_rows(found: virtualds.Diagnosis) -> None:
    frame = found.to_dataframe()
    assert list(frame["verdict"]) == [row.verdict for row in found.differences]
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["blocks"] is True and plain["joined"] == ["time"]
    assert [row["how"] for row in plain["differences"]] == [d.how for d in found.differences]
    assert [era["files"] for era in plain["eras"]] == [1, 1, 1]


# ---------------------------------------------------------------------- cost


def test_a_fact_that_never_changes_takes_one_entry(archive_files: list[Path]) -> None:
    facts = [find_dataset_facts(virtualds.open_virtual_dataset(path)) for path in archive_files]
    runs_of_facts = FactRuns.of(([number], facts[number // 500]) for number in range(1000))
    assert {fact for fact, runs in runs_of_facts.runs.items() if len(runs) > 1} == {
        Fact("time", "values"),
    }
    assert sum(map(len, runs_of_facts.runs.values())) == len(runs_of_facts.runs) + 1
    assert runs_of_facts.number_eras([Fact("time", "values")]).tolist() == [0] * 500 + [1] * 500


def test_structure_is_found_without_reading_values(archive_files: list[Path]) -> None:
    dataset = virtualds.open_virtual_dataset(archive_files[0])
    with no_reads():
        facts = find_dataset_facts(dataset)
    assert facts[Fact("t", "codecs")] == "shuffle, zlib"
    assert facts[Fact("t", "chunks along time")] == "1"
    assert facts[Fact("t", "units")] == "K"


def test_far_files_are_diagnosed_like_near_ones(archive_files: list[Path]) -> None:
    with range_server(archive_files[0].parent) as (url, _):
        far = virtualds.diagnose([f"{url}/{path.name}" for path in archive_files])
    near = virtualds.diagnose(archive_files)
    assert (
        far.to_dataframe()
        .drop(columns="first_file")
        .equals(near.to_dataframe().drop(columns="first_file"))
    )
    assert [(e.files, e.start, e.stop) for e in far.eras] == [
        (e.files, e.start, e.stop) for e in near.eras
    ]


# ---------------------------------------------------------------------- errors in combining


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a dimension of another size", "size of 'x' is 5, not 6"),
        ("numbers and dates", "data type of 't' is datetime64[ns], not float64"),
        ("a coordinate here, a variable there", "role of 'u' is data variable, not coordinate"),
        ("a scalar of another value", "values of 'height' is 10.0, not 2.0"),
        ("a coordinate along time that one lacks", "'lag' is not there"),
    ],
)
@pytest.mark.parametrize("combine", ["nested", "by_coords"])
def test_errors_in_combining_name_the_file_that_differs(
    name: str, told: str, combine: str, written: Written
) -> None:
    files = written.files(name)
    dim = {"concat_dim": "time"} if combine == "nested" else {}
    with pytest.raises((ValueError, TypeError)) as raised:
        virtualds.open_virtual_mfdataset(files, combine=combine, **dim)
    assert f"{files[1]} is the first file that differs from {files[0]}" in notes(raised.value)
    assert told in notes(raised.value)


def test_errors_in_combining_trees_name_the_group(tmp_path: Path) -> None:
    for number, size in enumerate((3, 4)):
        tree = xr.DataTree.from_dict({"/a": xr.Dataset({"t": (("time", "x"), np.ones((2, size)))})})
        tree.to_netcdf(tmp_path / f"{number}.nc")
    with pytest.raises(ValueError) as raised:
        virtualds.open_virtual_mfdatatree(str(tmp_path / "*.nc"), concat_dim="time")
    assert "size of 'a/x' is 4, not 3" in notes(raised.value)


def test_files_that_do_not_differ_have_no_first_difference(archives: Archives) -> None:
    for name in ("units_of_time_that_differ", "codecs_that_differ", "satellites_of_cf"):
        files = archives.files(name)
        opened = [virtualds.open_virtual_dataset(path) for path in files]
        assert describe_worst_difference(files, opened, ["time"]) is None
