"""Aggregation variables of the CF conventions are whole arrays, whose chunks are in other files.

The oracles are numpy, and `xarray.open_mfdataset` of the fragments; `tests/interop/test_cfa.py`
compares with cf-python.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from cfa_files import AggregationWriter, grid_of, write_part
from range_server import range_server

import virtualds
from virtualds import AccessError, FormatError, ReadError, UnsupportedError, VirtualdsError

Array = np.ndarray[Any, Any]
NAMED = "uris: t_uris identifiers: t_identifiers"
FORMS = ("NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF4_CLASSIC")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_values(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 1000, shape) / 8


def write_months(count: int = 3, form: str = "NETCDF4", **storage: Any) -> Array:
    """Write ``0.nc`` and so on, of which each has a few steps, and return all values."""
    whole = make_values(4 * count, 5)
    for n in range(count):
        time = {
            "time": (("time",), np.arange(4.0), {"units": f"days since 2000-01-{1 + 4 * n:02}"})
        }
        write_part(
            f"{n}.nc",
            whole[4 * n : 4 * n + 4],
            ("time", "x"),
            {"units": "K"},
            form=form,
            more=time,
            **storage,
        )
    return whole


def write_aggregation(count: int = 3, form: str = "NETCDF4", path: str = "agg.nc") -> None:
    uris = grid_of(*(f"{n}.nc" for n in range(count)))
    with AggregationWriter(path, form) as file:
        file.add_dims(time=4 * count, x=5)
        file.aggregate(
            "t", "time x", [[4] * count, [5]], uris[:, None], units="K", long_name="temp"
        )
        file.aggregate("time", "time", [[4] * count], uris, units="days since 2000-01-01")
        file.add("x", np.arange(5.0), dims=("x",))


def open_all(path: Any = "agg.nc", **options: Any) -> list[xr.Dataset]:
    """Open a file lazily and virtually."""
    return [
        xr.open_dataset(path, engine="virtual", **options),
        virtualds.open_virtual_dataset(path, **options),
    ]


def refuse(kind: type[Exception], *words: str, path: Any = "agg.nc", **options: Any) -> None:
    """Both ways of opening raise the same error, which says all words."""
    for opened in (
        lambda: xr.open_dataset(path, engine="virtual", **options),
        lambda: virtualds.open_virtual_dataset(path, **options),
    ):
        with pytest.raises(kind) as caught:
            opened()
        for word in words:
            assert word in str(caught.value)


# ---------------------------------------------------------------------- what is whole


@pytest.mark.parametrize("form", FORMS)
def test_whole_arrays_are_those_of_open_mfdataset(form: str) -> None:
    write_months(form=form)
    write_aggregation(form=form)
    expected = xr.open_mfdataset("[0-9].nc", combine="nested", concat_dim="time")
    for found in open_all():
        assert list(found.variables) == ["t", "time", "x"] or set(found.variables) == {
            *("t", "time", "x")
        }
        assert found["t"].dims == ("time", "x")
        np.testing.assert_array_equal(found["t"].values, expected["t"].values)
        np.testing.assert_array_equal(found["time"].values, expected["time"].values)
        assert found["t"].attrs == {"units": "K", "long_name": "temp"}
        assert found["time"].dtype == expected["time"].dtype


def test_chunks_are_referenced_in_the_files_of_the_fragments(folder: Path) -> None:
    write_months(chunksizes=(2, 5), zlib=True)
    write_aggregation()
    array = virtualds.open_virtual_dataset("agg.nc")["t"].variable._data
    assert [source.url for source in array.sources] == [f"file://{folder}/{n}.nc" for n in range(3)]
    assert array.nchunks == 6 and len(array.fragments) == 1


def test_files_of_one_structure_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from virtualds.datasets import aggregation

    whole = write_months(6)
    write_aggregation(6)
    alone = list[str]()
    open_alone = aggregation.FragmentOpener._open_alone

    def count(self: Any, file: Any, **how: Any) -> Any:
        alone.append(file.url)
        return open_alone(self, file, **how)

    monkeypatch.setattr(aggregation.FragmentOpener, "_open_alone", count)
    np.testing.assert_array_equal(xr.open_dataset("agg.nc", engine="virtual")["t"].values, whole)
    assert alone == []


def test_a_file_may_occur_several_times() -> None:
    parts = [np.arange(6.0).reshape(2, 3) + 10 * n for n in range(2)]
    for n, values in enumerate(parts):
        write_part(f"{n}.nc", values, ("time", "x"))
    order = [0, 1, 0, 1, 1]
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=10, x=3)
        uris = grid_of(*(f"{n}.nc" for n in order), shape=(5, 1))
        file.aggregate("t", "time x", [[2] * 5, [3]], uris)
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, np.concatenate([parts[n] for n in order]))


def test_few_files_are_open_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from virtualds.datasets import aggregation

    monkeypatch.setattr(aggregation, "FILES_AT_ONCE", 2)
    most = 0
    join = aggregation.FragmentAssembler._join_run

    def count(self: Any, *given: Any) -> Any:
        nonlocal most
        most = max(most, len(self._opened))
        return join(self, *given)

    monkeypatch.setattr(aggregation.FragmentAssembler, "_join_run", count)
    whole = write_months(5)
    write_aggregation(5)
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, whole)
    assert most == 2
    assert len(found["t"].variable._data.fragments) == 1


def test_fragments_may_cut_several_dimensions() -> None:
    whole = make_values(2, 7, 9)
    cuts = [[0, 2], [0, 3, 4, 7], [0, 5, 9]]
    uris = np.empty((1, 3, 2), object)
    for n in range(3):
        for k in range(2):
            part = whole[:, cuts[1][n] : cuts[1][n + 1], cuts[2][k] : cuts[2][k + 1]]
            uris[0, n, k] = f"{n}{k}.nc"
            write_part(f"{n}{k}.nc", part, ("z", "y", "x"), chunksizes=(1, 1, 2))
    with AggregationWriter("agg.nc") as file:
        file.add_dims(z=2, y=7, x=9)
        file.aggregate("t", "z y x", [[2], [3, 1, 3], [5, 4]], uris)
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, whole)
        np.testing.assert_array_equal(found["t"][1, 2:6, 3:8].values, whole[1, 2:6, 3:8])


@pytest.mark.parametrize("alike", [False, True])
def test_a_fragment_may_lack_dimensions_of_length_one(alike: bool) -> None:
    whole = make_values(3, 1, 5)
    for n in range(3):
        storage = {} if alike else {"zlib": n == 1}
        write_part(f"{n}.nc", whole[n, 0], ("x",), **storage)
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=3, z=1, x=5)
        uris = grid_of("0.nc", "1.nc", "2.nc", shape=(3, 1, 1))
        file.aggregate("t", "time z x", [[1, 1, 1], [1], [5]], uris)
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, whole)


def test_a_scalar_is_one_fragment() -> None:
    write_part("0.nc", 7.5, ())
    with AggregationWriter("agg.nc") as file:
        file.aggregate("t", "", [], "0.nc")
    for found in open_all():
        assert found["t"].dims == () and found["t"].item() == 7.5


def test_missing_fragments_are_missing_values() -> None:
    whole = write_months()
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=12, x=5)
        uris = np.ma.array([["0.nc"], [""], ["2.nc"]], object, mask=[[0], [1], [0]])
        file.aggregate("t", "time x", [[4, 4, 4], [5]], uris, units="K")
        file.aggregate("u", "time x", [[4, 4, 4], [5]], uris, "t", dtype="f4", _FillValue=-9.0)
    whole[4:8] = np.nan
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, whole)
        np.testing.assert_array_equal(found["u"].values, whole.astype("f4"))


def test_missing_fragments_of_integers_are_missing_values() -> None:
    write_part("0.nc", np.arange(3, dtype="i2"), ("x",))
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=5)
        uris = np.ma.array(["0.nc", ""], object, mask=[0, 1])
        file.aggregate("t", "x", [[3, 2]], uris, dtype="i2")
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, [0, 1, 2, np.nan, np.nan])


def test_unique_values_are_constants() -> None:
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=5, x=2)
        values = np.ma.masked_less([[1.5], [-1.0]], 0)
        file.aggregate("t", "time x", [[3, 2], [2]], values=values)
        file.aggregate("n", "time x", [[3, 2], [2]], values=np.array([[7], [9]], "i4"), dtype="i4")
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values[:3], np.full((3, 2), 1.5))
        assert np.isnan(found["t"].values[3:]).all()
        np.testing.assert_array_equal(
            found["n"].values, np.repeat([7, 9], [3, 2])[:, None] * [1, 1]
        )
        assert found["n"].dtype == "i4"


def test_unique_values_of_one_byte_have_no_default_mark() -> None:
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=3)
        for name, values in (("t", np.array([-127, 5], "i1")), ("u", np.array([-32767, 5], "i2"))):
            file.aggregate(name, "x", [[2, 1]], values=values, dtype=values.dtype)
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, [-127, -127, 5])
        np.testing.assert_array_equal(found["u"].values, [np.nan, np.nan, 5])


@pytest.mark.parametrize("dtype", ["i1", "u1"])
def test_missing_fragments_of_one_byte_need_a_mark(dtype: str) -> None:
    stored = np.array([np.iinfo(dtype).max, 129 if dtype == "u1" else -127], dtype)
    write_part("0.nc", stored, ("x",))
    uris = np.ma.array(["0.nc", ""], object, mask=[0, 1])
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=4)
        file.aggregate("t", "x", [[2, 2]], uris, dtype=dtype)
    refuse(UnsupportedError, "agg.nc", "'t'", "fragments are missing", "give the variable a _Fill")
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=4)
        file.aggregate("t", "x", [[2, 2]], uris, dtype=dtype, _FillValue=np.array(7, dtype))
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, [*stored, np.nan, np.nan])


def test_unique_values_may_be_texts() -> None:
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=3)
        file.aggregate("t", "time", [[2, 1]], values=grid_of("run a", "run b"), dtype=str)
    for found in open_all():
        assert found["t"].values.tolist() == ["run a", "run a", "run b"]


@pytest.mark.parametrize("form", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_texts_are_put_together(form: str) -> None:
    names = np.array([["a", "b"], ["c", "d"]])
    for n in range(2):
        write_part(f"{n}.nc", names[n].astype("S1"), ("station",), form=form)
    with AggregationWriter("agg.nc", form) as file:
        file.add_dims(station=4)
        file.aggregate("t", "station", [[2, 2]], grid_of("0.nc", "1.nc"), dtype="S1")
    for found in open_all():
        assert found["t"].values.astype(str).ravel().tolist() in (["a", "b", "c", "d"], ["abcd"])


def test_texts_of_variable_length_are_put_together() -> None:
    write_part("0.nc", np.array(["north", "east"], object), ("station",))
    write_part("1.nc", np.array(["south"], object), ("station",))
    with AggregationWriter("agg.nc") as file:
        file.add_dims(station=3)
        file.aggregate("t", "station", [[2, 1]], grid_of("0.nc", "1.nc"), dtype=str)
    for found in open_all():
        assert found["t"].values.tolist() == ["north", "east", "south"]


# ---------------------------------------------------------------------- what is converted


def test_packed_fragments_are_unpacked_each_by_its_own_attributes() -> None:
    raw = np.array([[1, -1, 3], [4, 5, -2]], "i2")
    packing = (
        {"scale_factor": 0.5, "add_offset": 1.0, "_FillValue": np.int16(-1)},
        {"scale_factor": 0.25, "_FillValue": np.int16(-2)},
    )
    for n in range(2):
        write_part(f"{n}.nc", raw[n : n + 1], ("time", "x"), {"units": "K", **packing[n]})
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=2, x=3)
        file.aggregate(
            "t", "time x", [[1, 1], [3]], grid_of("0.nc", "1.nc", shape=(2, 1)), units="K"
        )
    expected = xr.open_mfdataset("[01].nc", combine="nested", concat_dim="time")["t"].values
    assert np.isnan(expected).sum() == 2
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, expected)
        assert found["t"].dtype == "f8"


def test_units_of_fragments_become_those_of_the_variable() -> None:
    whole = make_values(6, 2)
    units = ("K", "degC", "mK")
    stored = (whole[:2], whole[2:4] - 273.15, whole[4:] * 1000)
    for n in range(3):
        write_part(f"{n}.nc", stored[n], ("time", "x"), {"units": units[n]})
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=6, x=2)
        uris = grid_of("0.nc", "1.nc", "2.nc", shape=(3, 1))
        file.aggregate("t", "time x", [[2, 2, 2], [2]], uris, units="K")
    expected = np.concatenate([stored[0], stored[1] + 273.15, stored[2] * float(1 / 1000)])
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, expected)
        assert found["t"].attrs["units"] == "K"


def write_kilometres(uris: Any, **attributes: Any) -> None:
    write_part("0.nc", np.array([1, 2], "i2"), ("x",), {"units": "km"})
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=2 * len(uris))
        lengths = [[2] * len(uris)]
        file.aggregate("t", "x", lengths, uris, **{"dtype": "i4", "units": "m", **attributes})


@pytest.mark.parametrize("mark", [None, -9])
def test_converted_integers_cannot_be_missing(mark: int | None) -> None:
    own = {} if mark is None else {"_FillValue": np.int32(mark)}
    uris = np.ma.array(["0.nc", ""], object, mask=[0, 1])
    write_kilometres(uris, **own)
    refuse(UnsupportedError, "agg.nc", "'t'", "fragments are missing", "floating dtype")
    write_kilometres(uris, dtype="f8")
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, [1000, 2000, np.nan, np.nan])


def test_converted_integers_never_overflow() -> None:
    write_part("0.nc", np.array([1, 3_000_000], "i4"), ("x",), {"units": "km"})
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=2)
        file.aggregate("t", "x", [[2]], grid_of("0.nc"), dtype="i4", units="m")
    refuse(UnsupportedError, "agg.nc", "'t'", "too large once they are converted")


@pytest.mark.parametrize("name", ["_FillValue", "missing_value"])
def test_a_mark_that_converted_integers_may_be_is_refused(name: str) -> None:
    write_kilometres(grid_of("0.nc"), **{name: np.int32(2000)})
    refuse(UnsupportedError, "agg.nc", "'t'", "may hold 2000", "floating dtype")
    # no 16-bit number of kilometres is this many metres
    for mark in (2001, 32768000, -2147483647):
        write_kilometres(grid_of("0.nc"), **{name: np.int32(mark)})
        for found in open_all():
            np.testing.assert_array_equal(found["t"].values, [1000, 2000])


def test_marks_of_integers_are_refused_through_aggregations_of_aggregations() -> None:
    write_kilometres(grid_of("0.nc"))
    for name, mark in (("two.nc", 2000), ("three.nc", 2001)):
        with AggregationWriter(name) as file:
            file.add_dims(x=2)
            own = {"units": "m", "_FillValue": np.int32(mark)}
            file.aggregate("t", "x", [[2]], grid_of("agg.nc"), dtype="i4", **own)
    refuse(UnsupportedError, "two.nc", "'t'", "may hold 2000", path="two.nc")
    for found in open_all("three.nc"):
        np.testing.assert_array_equal(found["t"].values, [1000, 2000])


@pytest.mark.parametrize(("dtype", "own"), [("i4", {}), ("f8", {"scale_factor": 10.0})])
def test_what_is_unpacked_is_not_converted_again(dtype: str, own: dict[str, Any]) -> None:
    write_part("0.nc", np.array([1, 2], "i2"), ("x",), {"scale_factor": 0.5})
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=2)
        file.aggregate("t", "x", [[2]], grid_of("0.nc"))
    for name, kind, given in (("two.nc", dtype, own), ("three.nc", "f4", {})):
        with AggregationWriter(name) as file:
            file.add_dims(x=2)
            file.aggregate("t", "x", [[2]], grid_of("agg.nc"), dtype=kind, **given)
    refuse(UnsupportedError, "two.nc", "'t'", "refer to its own fragments", path="two.nc")
    for found in open_all("three.nc"):
        assert found["t"].dtype == "f4"
        np.testing.assert_array_equal(found["t"].values, [0.5, 1.0])


def test_dates_of_missing_fragments_are_missing() -> None:
    days = {"units": "days since 2000-01-02"}
    write_part("0.nc", np.array([0, 1]), ("time",), days, name="date")
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=4)
        uris = np.ma.array(["0.nc", ""], object, mask=[0, 1])
        units = "days since 2000-01-01"
        file.aggregate("date", "time", [[2, 2]], uris, dtype="i8", units=units)
    expected = np.array(["2000-01-02", "2000-01-03", "NaT", "NaT"], "M8[ns]")
    for found in open_all():
        np.testing.assert_array_equal(found["date"].values.astype("M8[ns]"), expected)


@pytest.mark.parametrize("count", [1, 3])
def test_differences_of_temperatures_have_no_offset(count: int) -> None:
    difference = {"units_metadata": "temperature: difference"}
    for n in range(count):
        write_part(f"{n}.nc", [n + 1.5], ("x",), {"units": "degC", **difference})
    uris = grid_of(*(f"{n}.nc" for n in range(count)))
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=count)
        file.aggregate("t", "x", [[1] * count], uris, units="K", **difference)
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, np.arange(count) + 1.5)
    # of files alike but for this attribute, each is looked at
    write_part(f"{count - 1}.nc", [1.5], ("x",), {"units": "degC"})
    refuse(UnsupportedError, "agg.nc", "'t'", f"{count - 1}.nc", "units_metadata", "correct them")


def test_packing_and_units_convert_together() -> None:
    raw = np.array([10, 20, -1], "i2")
    packing = {"scale_factor": 0.5, "_FillValue": np.int16(-1), "units": "degC"}
    write_part("0.nc", raw, ("x",), packing)
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=3)
        file.aggregate("t", "x", [[3]], grid_of("0.nc"), units="K", _FillValue=1e20)
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, [278.15, 283.15, np.nan])


def test_missing_values_of_the_variable_are_missing_in_converted_fragments() -> None:
    write_part("0.nc", [1.0, -99.0, 3.0], ("x",), {"_FillValue": 3.0})
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=3)
        file.aggregate("t", "x", [[3]], grid_of("0.nc"), _FillValue=-99.0)
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, [1.0, np.nan, np.nan])


def test_the_marks_of_missing_values_of_fragments_are_taken_over() -> None:
    for n in range(2):
        write_part(f"{n}.nc", np.array([n, -1], "i2"), ("x",), {"_FillValue": np.int16(-1)})
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=4)
        file.aggregate("t", "x", [[2, 2]], grid_of("0.nc", "1.nc"), dtype="i2")
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, [0, np.nan, 1, np.nan])


def test_a_mark_of_missing_values_of_one_fragment_is_a_value_in_another() -> None:
    write_part("0.nc", [1.0, -1.0], ("x",), {"_FillValue": -1.0})
    write_part("1.nc", [2.0, -1.0], ("x",))
    for dtype in ("f8", "f4"):
        with AggregationWriter("agg.nc") as file:
            file.add_dims(x=4)
            file.aggregate("t", "x", [[2, 2]], grid_of("0.nc", "1.nc"), dtype=dtype)
        for found in open_all():
            np.testing.assert_array_equal(found["t"].values, [1, np.nan, 2, -1])
    for n, given in enumerate(({"_FillValue": np.int16(-1)}, {})):
        write_part(f"{n}.nc", np.array([n, -1], "i2"), ("x",), given)
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=4)
        file.aggregate("t", "x", [[2, 2]], grid_of("0.nc", "1.nc"), dtype="i2")
    refuse(UnsupportedError, "too large for the integers")


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
def test_shorter_numbers_become_longer_ones(dtype: str) -> None:
    write_part("0.nc", np.array([1, 2], "i2"), ("x",))
    write_part("1.nc", np.array([3], "i1"), ("x",))
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=3)
        file.aggregate("t", "x", [[2, 1]], grid_of("0.nc", "1.nc"), dtype=dtype)
    for found in open_all():
        assert found["t"].dtype == dtype
        np.testing.assert_array_equal(found["t"].values, [1, 2, 3])


def test_a_packed_variable_of_plain_fragments_is_unpacked_by_xarray() -> None:
    write_part("0.nc", np.array([1, 2], "i2"), ("x",))
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=2)
        file.aggregate("t", "x", [[2]], grid_of("0.nc"), dtype="i2", scale_factor=0.5)
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, [0.5, 1.0])


@pytest.mark.parametrize("kind", ["f8", "i8"])
@pytest.mark.parametrize("calendar", ["standard", "360_day"])
def test_dates_begin_where_each_fragment_says(kind: str, calendar: str) -> None:
    dates = {"calendar": calendar}
    for n in range(2):
        days = np.arange(3).astype(kind)
        more = {"time_bnds": (("time", "two"), np.stack([days, days + 1], 1), {})}
        own = {"units": f"days since 2000-0{n + 1}-01", "bounds": "time_bnds", **dates}
        write_part(f"{n}.nc", days, ("time",), own, name="time", more=more)
    uris = grid_of("0.nc", "1.nc")
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=6, two=2)
        units = "days since 2000-01-01"
        own = {"units": units, "bounds": "time_bnds", **dates}
        file.aggregate("time", "time", [[3, 3]], uris, dtype=kind, **own)
        file.aggregate("time_bnds", "time two", [[3, 3], [2]], uris[:, None], dtype=kind)
    first = 31 if calendar == "standard" else 30
    days = np.array([0, 1, 2, first, first + 1, first + 2])
    plain = xr.open_dataset("agg.nc", engine="virtual", decode_times=False)
    np.testing.assert_array_equal(plain["time"].values, days)
    np.testing.assert_array_equal(plain["time_bnds"].values, np.stack([days, days + 1], 1))
    for found in open_all():
        number = [(date - found["time"].values[0]) / np.timedelta64(1, "D") for date in
                  found["time"].values] if calendar == "standard" else [
            (date - found["time"].values[0]).days for date in found["time"].values
        ]  # fmt: skip
        assert number == days.tolist()


# ---------------------------------------------------------------------- where fragments are


def test_relative_uris_begin_at_the_folder_of_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_months(1)
    (folder / "sets").mkdir()
    with AggregationWriter("sets/agg.nc") as file:
        file.add_dims(time=4, x=5)
        file.aggregate("t", "time x", [[4], [5]], grid_of("../0.nc", shape=(1, 1)))
        file.aggregate(
            "u", "time x", [[4], [5]], grid_of(f"file://{folder}/0.nc", shape=(1, 1)), "t"
        )
    monkeypatch.chdir("/")
    for found in open_all(folder / "sets" / "agg.nc"):
        np.testing.assert_array_equal(found["t"].values, whole)
        np.testing.assert_array_equal(found["u"].values, whole)


def test_names_of_files_may_be_escaped_or_not(folder: Path) -> None:
    whole = write_months(2)
    Path("0.nc").rename("of 50%.nc")
    Path("1.nc").rename("%20.nc")
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=8, x=5)
        uris = grid_of("of%2050%25.nc", "%20.nc", shape=(2, 1))
        file.aggregate("t", "time x", [[4, 4], [5]], uris)
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, whole)


def test_a_fragment_that_is_not_allowed_is_refused(folder: Path) -> None:
    write_months(1)
    (folder / "sets").mkdir()
    with AggregationWriter("sets/agg.nc") as file:
        file.add_dims(time=4, x=5)
        file.aggregate("t", "time x", [[4], [5]], grid_of("../0.nc", shape=(1, 1)))
    refuse(AccessError, "0.nc", path="sets/agg.nc", allow=folder / "sets")
    refuse(AccessError, "0.nc", path="sets/agg.nc", allow=folder / "sets", on_error="skip")
    open_all("sets/agg.nc", allow=folder)


def test_a_remote_file_may_not_refer_to_local_ones(folder: Path) -> None:
    import fsspec

    write_months(1)
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=4, x=5)
        file.aggregate("t", "time x", [[4], [5]], grid_of(f"file://{folder}/0.nc", shape=(1, 1)))
    with fsspec.open("memory://cfa/agg.nc", "wb") as target:
        target.write((folder / "agg.nc").read_bytes())
    # what is in the memory of this process is trusted like a local file
    open_all("memory://cfa/agg.nc")
    refuse(AccessError, "0.nc", path="memory://cfa/agg.nc", allow="memory://cfa")


def test_remote_fragments_are_read_through_their_store(folder: Path) -> None:
    import fsspec

    whole = write_months(2)
    write_aggregation(2)
    for name in ("0.nc", "1.nc", "agg.nc"):
        with fsspec.open(f"memory://remote/{name}", "wb") as target:
            target.write((folder / name).read_bytes())
    for found in open_all("memory://remote/agg.nc"):
        np.testing.assert_array_equal(found["t"].values, whole)


def test_fragments_on_a_server_are_read_by_ranges(folder: Path) -> None:
    whole = write_months(6)
    write_aggregation(6)
    local = grid_of(f"file://{folder}/0.nc", shape=(1, 1))
    with AggregationWriter("local.nc") as file:
        file.add_dims(time=4, x=5)
        file.aggregate("t", "time x", [[4], [5]], local)
    with range_server(folder) as (host, requests):
        for found in open_all(f"{host}/agg.nc"):
            np.testing.assert_array_equal(found["t"].values, whole)
        asked = len(requests)
        virtualds.open_virtual_dataset(f"{host}/agg.nc", loadable_variables=[])
        # each file is small enough for one request
        assert len(requests) - asked <= 16
        refuse(AccessError, "local file", path=f"{host}/local.nc")


def test_variables_may_be_in_groups_and_their_descriptions_elsewhere() -> None:
    write_months(2)
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=8, x=5)
        uris = grid_of("0.nc", "1.nc", shape=(2, 1))
        file.aggregate("t", "time x", [[4, 4], [5]], uris, group="model/daily")
        file.aggregate("u", "time x", [[4, 4], [5]], uris, "t", group="model", inside="notes")
    expected = xr.open_mfdataset("[01].nc", combine="nested", concat_dim="time")["t"].values
    for tree in (
        xr.open_datatree("agg.nc", engine="virtual"),
        virtualds.open_virtual_datatree("agg.nc"),
    ):
        np.testing.assert_array_equal(tree["model/daily/t"].values, expected)
        np.testing.assert_array_equal(tree["model/u"].values, expected)
        assert not tree["notes"].variables and list(tree["model"].data_vars) == ["u"]
    for found in open_all(group="model"):
        np.testing.assert_array_equal(found["u"].values, expected)


def test_a_fragment_may_be_in_a_group() -> None:
    with netCDF4.Dataset("0.nc", "w") as file:
        group = file.createGroup("model/daily")
        group.createDimension("x", 3)
        group.createVariable("t", "f8", ("x",))[:] = [1, 2, 3]
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=3)
        file.aggregate("t", "x", [[3]], grid_of("0.nc"), "/model/daily/t")
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, [1, 2, 3])


def write_halves() -> Array:
    """Write four months, and an aggregation file of each two of them; return all values."""
    whole = write_months(4)
    for n in range(2):
        with AggregationWriter(f"half{n}.nc") as file:
            file.add_dims(time=8, x=5)
            uris = grid_of(f"{2 * n}.nc", f"{2 * n + 1}.nc", shape=(2, 1))
            file.aggregate("t", "time x", [[4, 4], [5]], uris, units="K")
    return whole


def test_a_fragment_may_be_an_aggregation_variable() -> None:
    whole = write_halves()
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=16, x=5)
        uris = grid_of("half0.nc", "half1.nc", shape=(2, 1))
        file.aggregate("t", "time x", [[8, 8], [5]], uris, units="K")
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, whole)


def test_identifiers_may_differ_between_fragments() -> None:
    for n, name in enumerate(("a", "b")):
        write_part(f"{n}.nc", [float(n)], ("x",), name=name)
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=2)
        file.aggregate("t", "x", [[1, 1]], grid_of("0.nc", "1.nc"), grid_of("a", "b"))
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, [0, 1])


def test_other_features_stay_variables_of_the_file() -> None:
    whole = write_months(2)
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=8, x=5)
        uris = grid_of("0.nc", "1.nc", shape=(2, 1))
        file.add("ids", grid_of("a", "b", shape=(2, 1)))
        file.aggregate("t", "time x", [[4, 4], [5]], uris, extra="tracking_id: ids")
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, whole)
        assert found["ids"].values.ravel().tolist() == ["a", "b"]


# ---------------------------------------------------------------------- CFA 0.6.2


def write_old(
    uris: Any, addresses: Any, *, form: Any = "nc", own: Any = None, **attributes: Any
) -> None:
    """Write the file of two fragments of three elements, as CFA 0.6.2 says.

    ``own`` are the dtype and the attributes of the aggregation variable.
    """
    own = {"dtype": "f8", **(own or {})}
    with AggregationWriter("agg.nc") as file:
        file.file.Conventions = "CF-1.10 CFA-0.6.2"
        file.add_dims(x=6)
        file.add("cfa_location", np.array([[3, 3]], "i4"))
        file.add("cfa_file", uris, **attributes)
        file.add("cfa_format", form)
        file.add("cfa_address", addresses)
        file.add("inner", np.arange(3.0) + 10, dims=(file.add_dims(y=3) or "y",))
        scalar = file.add("t", np.zeros(()), dims=(), **own)
        scalar.aggregated_dimensions = "x"
        scalar.aggregated_data = (
            "location: cfa_location file: cfa_file format: cfa_format address: cfa_address"
        )


def write_two() -> None:
    write_part("0.nc", np.arange(3.0), ("x",))
    write_part("1.nc", np.arange(3.0) + 3, ("x",))


def test_files_of_the_convention_before_are_read() -> None:
    write_two()
    write_old(grid_of("0.nc", "1.nc"), grid_of("t", "t"))
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, np.arange(6.0))


def test_names_of_files_have_substitutions(folder: Path) -> None:
    write_two()
    change = f"${{base}}: {folder}/ ${{end}}: .nc"
    write_old(grid_of("${base}0${end}", "1${end}"), "t", substitutions=change)
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, np.arange(6.0))


def test_the_first_version_of_a_fragment_that_exists_is_read() -> None:
    write_two()
    uris = np.ma.array([["gone.nc", "0.nc"], ["1.nc", ""]], object, mask=[[0, 0], [0, 1]])
    write_old(uris, np.ma.array([["t", "t"], ["t", ""]], object, mask=[[0, 0], [0, 1]]))
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, np.arange(6.0))


def test_fragments_may_be_in_the_file_itself_or_missing() -> None:
    uris = np.ma.array(["", ""], object, mask=[1, 1])
    write_old(uris, np.ma.array(["inner", ""], object, mask=[0, 1]))
    for found in open_all():
        np.testing.assert_array_equal(found["t"].values, [10, 11, 12, np.nan, np.nan, np.nan])


def write_constant(address: str, part: dict[str, Any], own: dict[str, Any]) -> None:
    """Write a fragment in a file, and one that is a constant."""
    write_part("0.nc", np.array([1, 2, 3], "i2"), ("x",), part)
    uris = np.ma.array(["0.nc", ""], object, mask=[0, 1])
    write_old(uris, grid_of("t", address), form=grid_of("nc", "full"), own=own)


def test_fragments_may_be_constants() -> None:
    for part, factor in (({}, 1), ({"scale_factor": 0.5}, 0.5)):
        write_constant("7.25", part, {})
        for found in open_all():
            expected = [factor, 2 * factor, 3 * factor, 7.25, 7.25, 7.25]
            np.testing.assert_array_equal(found["t"].values, expected)


@pytest.mark.parametrize("name", ["_FillValue", "missing_value"])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_constants_may_be_missing_values(dtype: str, name: str) -> None:
    own = {"dtype": dtype, name: np.dtype(dtype).type(-99.9)}
    for part, factor in (({}, 1), ({"scale_factor": 0.5}, 0.5)):
        write_constant("-99.9", part, own)
        for found in open_all():
            expected = [factor, 2 * factor, 3 * factor, *[np.nan] * 3]
            np.testing.assert_array_equal(found["t"].values, expected)


@pytest.mark.parametrize("address", ["7.5", "300", "many"])
def test_constants_that_are_no_integers_are_refused(address: str) -> None:
    write_part("0.nc", np.array([1, 2, 3], "i1"), ("x",))
    uris = np.ma.array(["0.nc", ""], object, mask=[0, 1])
    write_old(uris, grid_of("t", address), form=grid_of("nc", "full"), own={"dtype": "i1"})
    refuse(FormatError, "agg.nc", "'t'", f"fragment (1,) has the value '{address}', not int8")


def test_constants_of_converted_integers_cannot_be_missing() -> None:
    own = {"dtype": "i4", "units": "m", "_FillValue": np.int32(-99)}
    for text, given in (("-99", "km"), ("-99", "m"), ("-98", "km")):
        write_constant(text, {"units": given}, own)
        if (text, given) == ("-99", "km"):
            refuse(UnsupportedError, "agg.nc", "'t'", "fragment (1,) is missing", "floating dtype")
            continue
        scale = 1000 if given == "km" else 1
        last = np.nan if text == "-99" else -98
        for found in open_all():
            np.testing.assert_array_equal(
                found["t"].values, [scale, 2 * scale, 3 * scale, *[last] * 3]
            )


# ---------------------------------------------------------------------- what is refused


def write_one(
    lengths: Any = ([2, 1],), uris: Any = ("0.nc", "1.nc"), size: int = 3, **options: Any
) -> None:
    write_part("0.nc", [1.0, 2.0], ("x",), options.pop("part", {"units": "K"}))
    write_part("1.nc", [3.0], ("x",), {"units": "K"})
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=size)
        file.add("x", np.arange(float(size)), dims=("x",))
        given = {"dtype": "f8", "units": "K", **options}
        file.aggregate("t", "x", lengths, grid_of(*uris), **given)


def change_attribute(**attributes: Any) -> None:
    with netCDF4.Dataset("agg.nc", "a") as file:
        file["t"].setncatts(attributes)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"lengths": ([2, 2],)}, FormatError, ("adds up to 4", "'x'", "3 elements")),
        ({"lengths": ([1, 2],)}, FormatError, ("shape (2,)", "map says (1,)")),
        ({"lengths": ([2, 1, 0],)}, FormatError, ("not lengths",)),
        ({"lengths": ([3],)}, FormatError, ("uris has the shape (2,)", "(1,) fragments")),
        ({"uris": ("0.nc", "gone.nc")}, ReadError, ("gone.nc", "restore it")),
        ({"part": {"units": "m"}}, UnsupportedError, ("'m' does not convert to 'K'", "0.nc")),
        ({"part": {"units": "snow"}}, UnsupportedError, ("'snow' are unknown",)),
        ({"dtype": "i2"}, UnsupportedError, ("float64 cannot be converted to int16",)),
        ({"dtype": str}, FormatError, ("fragment (0,) holds float64", "strings")),
        ({"identifiers": "nothing"}, FormatError, ("no fragment 'nothing'", "0.nc")),
        ({"uris": ("0.nc", "agg.nc")}, FormatError, ("an aggregation variable of the same file",)),
    ],
    ids=lambda value: None if isinstance(value, type | tuple) else "-".join(value),
)
def test_what_contradicts_itself_is_refused(
    options: dict[str, Any], kind: type[VirtualdsError], words: tuple[str, ...]
) -> None:
    write_one(**options)
    refuse(kind, "'t'", "agg.nc", *words)


@pytest.mark.parametrize(
    ("attributes", "kind", "word"),
    [
        ({"aggregated_data": "map: t_map uris: t_uris"}, UnsupportedError, "features"),
        ({"aggregated_data": "map t_map"}, FormatError, "feature: variable"),
        ({"aggregated_data": ""}, FormatError, "feature: variable"),
        ({"aggregated_data": f"map: gone {NAMED}"}, FormatError, "gone"),
        ({"aggregated_data": f"map: t {NAMED}"}, FormatError, "itself"),
        ({"aggregated_data": f"map: t_uris {NAMED}"}, FormatError, "integers"),
        ({"aggregated_data": f"map: t_map map: t_map {NAMED}"}, FormatError, "feature: variable"),
        (
            {"aggregated_data": f"map: t_map unique_values: t_map {NAMED}"},
            UnsupportedError,
            "features",
        ),
        ({"aggregated_dimensions": "x x"}, FormatError, "twice"),
        ({"aggregated_dimensions": "x y"}, FormatError, "2 dimensions"),
    ],
)
def test_descriptions_that_are_not_understood_are_refused(
    attributes: dict[str, str], kind: type[VirtualdsError], word: str
) -> None:
    write_one()
    change_attribute(**attributes)
    refuse(kind, word)


@pytest.mark.parametrize("name", ["aggregated_dimensions", "aggregated_data"])
def test_half_a_description_is_refused(name: str) -> None:
    write_one()
    with netCDF4.Dataset("agg.nc", "a") as file:
        file["t"].delncattr(name)
    refuse(FormatError, "'t'", name)


def test_a_variable_may_have_the_dimensions_of_the_array_but_no_others() -> None:
    write_one()
    for dims in (("x",), ("y",)):
        with netCDF4.Dataset("agg.nc", "a") as file:
            given = {name: file["t"].getncattr(name) for name in file["t"].ncattrs()}
            file.renameVariable("t", f"old_{dims[0]}")
            for name in ("aggregated_dimensions", "aggregated_data"):
                file[f"old_{dims[0]}"].delncattr(name)
            if "y" not in file.dimensions:
                file.createDimension("y", 3)
            file.createVariable("t", "f8", dims).setncatts(given)
        if dims == ("x",):
            for found in open_all():
                np.testing.assert_array_equal(found["t"].values, [1, 2, 3])
    refuse(FormatError, "must be a scalar")


def test_a_circle_of_files_is_refused() -> None:
    for n in range(2):
        with AggregationWriter(f"{n}.nc") as file:
            file.add_dims(x=3)
            file.aggregate("t", "x", [[3]], grid_of(f"{1 - n}.nc"))
    refuse(FormatError, "break the cycle", path="0.nc")


def test_huge_arrays_take_no_memory_and_lengths_are_checked() -> None:
    with AggregationWriter("agg.nc") as file:
        file.aggregate("t", "a b c", [[2**30]] * 3, values=np.ones((1, 1, 1)))
    refuse(FormatError, "larger than arrays may be")
    write_one(lengths=([2**30, 2**30],), size=3)
    refuse(FormatError, "adds up to")
    with AggregationWriter("agg.nc") as file:
        file.aggregate("t", "a b c", [[2**19]] * 3, values=np.ones((1, 1, 1)))
    for found in open_all():
        assert found["t"].shape == (2**19,) * 3 and found["t"][5, 2**18, 0].item() == 1


@pytest.mark.parametrize("stored", ["i4", "u2", "S1"])
def test_integers_are_not_cut(stored: str) -> None:
    write_part("0.nc", np.array([1, 2], stored), ("x",))
    with AggregationWriter("agg.nc") as file:
        file.add_dims(x=2)
        file.aggregate("t", "x", [[2]], grid_of("0.nc"), dtype="i2")
    refuse(UnsupportedError, "cannot be converted to int16")


def test_a_packed_variable_is_not_taken_for_a_plain_one() -> None:
    write_one(part={"units": "K", "_FillValue": 2.0}, scale_factor=0.5, _FillValue=-9.0)
    refuse(UnsupportedError, "is packed")


def test_too_many_fragments_are_refused_before_memory_is_taken() -> None:
    with AggregationWriter("agg.nc") as file:
        file.aggregate("t", "x", [[1]], values=np.ones(1))
        file.add_dims(many=10**8)
        file.file.createVariable("values", "i1", ("many",), chunksizes=(10**4,), zlib=True)
        file.file["t"].aggregated_data = "map: t_map unique_values: values"
    refuse(UnsupportedError, "more than 2,097,152 fragments")


def test_both_packed_is_refused() -> None:
    write_one(part={"units": "K", "scale_factor": 2.0}, scale_factor=0.5)
    refuse(UnsupportedError, "is packed")


def test_a_variable_that_cannot_be_read_is_skipped_or_kept() -> None:
    write_one(uris=("0.nc", "gone.nc"))
    with pytest.warns(UserWarning, match=r"gone\.nc"):
        found = virtualds.open_virtual_dataset("agg.nc", on_error="skip")
    assert set(found.variables) == {"x"}
    with pytest.warns(UserWarning, match=r"gone\.nc"):
        found = xr.open_dataset("agg.nc", engine="virtual", on_error="keep")
    with pytest.raises(VirtualdsError, match=r"gone\.nc"):
        found["t"].load()


@pytest.mark.parametrize("form", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_what_describes_a_variable_is_left_out_with_it(form: str) -> None:
    write_months(2, form)
    write_aggregation(2, form)
    for found in open_all(drop_variables=["t"]):
        assert set(found.variables) == {"time", "x"}
    for found in open_all(drop_variables=["t", "time"]):
        assert set(found.variables) == {"x"}
    for found in open_all(drop_variables=["t_map"]):
        assert set(found.variables) == {"t", "time", "x"}


def test_what_describes_a_variable_is_skipped_with_it() -> None:
    write_one(lengths=([2, 2],))
    with pytest.warns(UserWarning, match="adds up to 4"):
        found = virtualds.open_virtual_dataset("agg.nc", on_error="skip")
    assert set(found.variables) == {"x"}


# ---------------------------------------------------------------------- what follows from it


def test_dask_chunks_are_those_of_the_fragments() -> None:
    whole = write_months(3)
    write_aggregation(3)
    found = xr.open_dataset("agg.nc", engine="virtual", chunks={})
    assert found["t"].chunks == ((4, 4, 4), (5,))
    np.testing.assert_array_equal(found["t"].values, whole)


def test_sets_refer_to_the_fragments() -> None:
    whole = write_months(3)
    write_aggregation(3)
    virtualds.open_virtual_dataset("agg.nc").virtual.to_manifest("refs.zarr")
    with xr.open_dataset("refs.zarr", engine="virtual") as found:
        np.testing.assert_array_equal(found["t"].values, whole)
    Path("agg.nc").unlink()
    assert virtualds.open_virtual_dataset("refs.zarr").virtual.verify().ok


def test_packed_fragments_are_written_to_sets() -> None:
    test_packed_fragments_are_unpacked_each_by_its_own_attributes()
    expected = xr.open_dataset("agg.nc", engine="virtual")["t"].values
    virtualds.open_virtual_dataset("agg.nc").virtual.to_manifest("refs.zarr")
    found = xr.open_dataset("refs.zarr", engine="virtual")
    np.testing.assert_array_equal(found["t"].values, expected)


def test_many_aggregation_files_are_joined() -> None:
    whole = write_halves()
    found = virtualds.open_virtual_mfdataset("half*.nc", combine="nested", concat_dim="time")
    np.testing.assert_array_equal(found["t"].values, whole)
    assert found["t"].variable._data.nchunks == 4


def test_a_zarr_store_has_the_whole_arrays() -> None:
    import zarr

    whole = write_months(2)
    write_aggregation(2)
    store = virtualds.zarr_store("agg.nc")
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["t"][...], whole)


def test_verify_reads_the_fragments() -> None:
    write_months(2)
    write_aggregation(2)
    found = virtualds.open_virtual_dataset("agg.nc").virtual.verify(against="native")
    assert found.ok and found.sampled == 2, str(found)


def test_diagnose_sees_the_whole_arrays() -> None:
    write_months(2)
    write_aggregation(2)
    write_aggregation(2, path="other.nc")
    assert "have the same structure" in str(virtualds.diagnose(["agg.nc", "other.nc"]))
    write_part("2.nc", make_values(8, 5), ("time", "x"), chunksizes=(2, 5), zlib=True)
    with AggregationWriter("other.nc") as file:
        file.add_dims(time=8, x=5)
        file.aggregate("t", "time x", [[8], [5]], grid_of("2.nc", shape=(1, 1)), units="K")
    assert "zlib" in str(virtualds.diagnose(["agg.nc", "other.nc"]))
