"""Aggregation files have the values that cf-python reads, whoever wrote them.

cf-python is the reference: 3.21 for CF-1.13, and 3.16 for CFA-0.6.2. Each runs once, over the files
of all cases.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from cfa_files import AggregationWriter, grid_of, write_part
from peers import peer_python

import virtualds

pytestmark = pytest.mark.timeout(600)

SCRIPT = Path(__file__).with_name("cf_python_side.py")
Array = np.ndarray[Any, Any]
Make = Callable[[], None]
WHOLE = np.random.default_rng(1).integers(0, 1000, (6, 4)) / 8
TIMES = {"standard_name": "time", "calendar": "standard"}


def write_parts(
    *attributes: dict[str, Any],
    stored: Any = None,
    dtype: str = "f8",
    form: str = "NETCDF4",
    bounds: bool = False,
    **storage: Any,
) -> None:
    """Write ``0.nc`` to ``2.nc`` of two steps each."""
    for n in range(3):
        given = attributes[n % len(attributes)] if attributes else {"units": "K"}
        days = np.arange(2.0)
        own = {"units": f"days since 2000-01-{1 + 2 * n:02}", "axis": "T", **TIMES}
        more: dict[str, Any] = {
            "x": (("x",), np.arange(4.0), {"units": "degrees_east", "standard_name": "longitude"})
        }
        if bounds:
            own["bounds"] = "time_bnds"
            more["time_bnds"] = (("time", "two"), np.stack([days, days + 1], 1), {})
        more["time"] = (("time",), days, own)
        values = (WHOLE if stored is None else stored)[2 * n : 2 * n + 2]
        named = {"standard_name": "air_temperature", **given}
        write_part(
            f"{n}.nc",
            values.astype(dtype),
            ("time", "x"),
            named,
            form=form,
            more=more,
            **storage,
        )


URIS = grid_of("0.nc", "1.nc", "2.nc", shape=(3, 1))
LENGTHS = [[2, 2, 2], [4]]


def aggregate(uris: Any = URIS, names: Any = "t", form: str = "NETCDF4", **attributes: Any) -> None:
    """Write ``agg.nc`` with the array of all parts."""
    with AggregationWriter("agg.nc", form) as file:
        file.add_dims(time=6, x=4)
        file.aggregate("t", "time x", LENGTHS, uris, names, **{"units": "K", **attributes})


def plain() -> None:
    write_parts(chunksizes=(1, 4), zlib=True)
    aggregate()


def classic() -> None:
    write_parts(form="NETCDF3_CLASSIC")
    aggregate(form="NETCDF3_CLASSIC")


def absolute() -> None:
    write_parts()
    aggregate(grid_of(*(f"file://{Path.cwd()}/{n}.nc" for n in range(3)), shape=(3, 1)))


def named_one_by_one() -> None:
    write_parts()
    aggregate(names=grid_of("t", "t", "t", shape=(3, 1)))


def packed() -> None:
    stored = np.arange(24).reshape(6, 4)
    packing = [{"scale_factor": 0.1 * n, "add_offset": 5.0 * n, "units": "K"} for n in (1, 2, 3)]
    packing[1]["_FillValue"] = np.int16(9)
    write_parts(*packing, stored=stored, dtype="i2")
    aggregate()


def other_units() -> None:
    write_parts({"units": "K"}, {"units": "degC"}, {"units": "mK"})
    aggregate()


def packed_in_other_units() -> None:
    stored = np.arange(24).reshape(6, 4)
    packing = {"scale_factor": 0.5, "add_offset": 5.0, "units": "degC"}
    write_parts({"_FillValue": np.int16(3), **packing}, packing, stored=stored, dtype="i2")
    aggregate()


def velocity() -> None:
    write_parts({"units": "km h-1"}, {"units": "m/s"}, {"units": "knot"})
    aggregate(units="m s-1")


def rain() -> None:
    write_parts({"units": "mm"}, {"units": "m"}, {"units": "cm"})
    aggregate(units="mm")


def gaps() -> None:
    stored = WHOLE.copy()
    stored[::2, 1] = -9.0
    write_parts({"_FillValue": -9.0, "units": "K"}, stored=stored)
    aggregate(_FillValue=-9.0)


def other_gaps() -> None:
    stored = WHOLE.copy()
    stored[::2, 1], stored[1::2, 2] = -9.0, -8.0
    marks = [{"_FillValue": v, "units": "K"} for v in (-9.0, -8.0, -8.0)]
    write_parts(*marks, stored=stored)
    aggregate()


def shorter() -> None:
    write_parts(dtype="f4")
    aggregate()


def integers() -> None:
    write_parts(dtype="i2")
    aggregate(dtype="i4")


def integers_of_floats() -> None:
    write_parts(dtype="i4")
    aggregate(dtype="f4")


def cut_twice() -> None:
    uris = np.empty((2, 2), object)
    for n, rows in enumerate((slice(0, 4), slice(4, 6))):
        for k, columns in enumerate((slice(0, 1), slice(1, 4))):
            uris[n, k] = f"{n}{k}.nc"
            write_part(uris[n, k], WHOLE[rows, columns], ("time", "x"), {"units": "K"})
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=6, x=4)
        file.aggregate("t", "time x", [[4, 2], [1, 3]], uris, units="K")


def constants() -> None:
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=6, x=4)
        values = np.array([[1.5], [2.5], [-3.0]])
        file.aggregate("t", "time x", LENGTHS, values=values, units="K")
        file.aggregate("n", "time x", LENGTHS, values=values.astype("i4"), dtype="i4")


def dates() -> None:
    write_parts()
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=6)
        file.aggregate(
            "t", "time", [[2, 2, 2]], URIS[:, 0], "time", units="days since 2000-01-01", **TIMES
        )


def dates_in_hours() -> None:
    write_parts()
    with AggregationWriter("agg.nc") as file:
        file.add_dims(time=6)
        units = "hours since 1999-12-31 06:00"
        file.aggregate("t", "time", [[2, 2, 2]], URIS[:, 0], "time", units=units, **TIMES)


def scalar() -> None:
    write_part("0.nc", 7.5, (), {"units": "degC"})
    with AggregationWriter("agg.nc") as file:
        file.aggregate("t", "", [], "0.nc", units="K")


def written(**options: Any) -> Make:
    """cf-python writes the aggregation file of fields that it aggregates itself."""

    def make() -> None:
        write_parts(zlib=True, chunksizes=(1, 4), bounds=True)
        Path("write.json").write_text(json.dumps({"cfa": "field", **options}))

    return make


def written_packed() -> None:
    stored = np.arange(24).reshape(6, 4)
    write_parts({"scale_factor": 0.1, "units": "K"}, stored=stored, dtype="i2")
    Path("write.json").write_text(json.dumps({"cfa": "field"}))


NEW: dict[str, Make] = {
    made.__name__: made
    for made in (
        *(plain, classic, absolute, named_one_by_one, packed, other_units, packed_in_other_units),
        *(velocity, rain, gaps, other_gaps, shorter, integers, integers_of_floats),
        *(cut_twice, constants, dates, dates_in_hours, scalar, written_packed),
    )
} | {
    "written": written(),
    "written_relative": written(cfa={"constructs": "field", "uri": "relative"}),
    "written_coordinates": written(
        cfa={"constructs": ["field", "dimension_coordinate"], "strict": False}
    ),
    "written_classic": written(fmt="NETCDF3_CLASSIC"),
}
"""Files of CF-1.13, most of them written by us, some by cf-python."""
BLANKS = "a folder with blanks"
"""A case that cf-python writes, and cannot read again."""


def write_old(
    uris: Any,
    addresses: Any,
    *,
    form: Any = "nc",
    lengths: Any = None,
    steps: int = 6,
    **attributes: Any,
) -> None:
    with AggregationWriter("agg.nc") as file:
        file.file.Conventions = "CF-1.10 CFA-0.6.2"
        file.add_dims(time=steps, x=4)
        rows = [[2, 2, 2], [4, -1, -1]] if lengths is None else lengths
        file.add("cfa_location", np.ma.masked_less(np.array(rows, "i4"), 0))
        file.add("cfa_file", uris, **attributes)
        file.add("cfa_format", form)
        file.add("cfa_address", addresses)
        scalar = file.add("t", np.zeros(()), dims=(), units="K", standard_name="air_temperature")
        scalar.aggregated_dimensions = "time x"
        scalar.aggregated_data = (
            "location: cfa_location file: cfa_file format: cfa_format address: cfa_address"
        )


def old_absolute() -> Array:
    return grid_of(*(f"file://{Path.cwd()}/{n}.nc" for n in range(3)), shape=(3, 1))


def old_plain() -> None:
    write_parts()
    write_old(old_absolute(), "t")


def old_substitutions() -> None:
    write_parts()
    base = f"${{base}}: file://{Path.cwd()}/"
    write_old(
        grid_of("${base}0.nc", "${base}1.nc", "${base}2.nc", shape=(3, 1)), "t", substitutions=base
    )


def old_packed() -> None:
    stored = np.arange(24).reshape(6, 4)
    write_parts({"scale_factor": 0.1, "units": "degC"}, {"units": "K"}, stored=stored, dtype="i2")
    write_old(old_absolute(), "t")


def old_versions() -> None:
    write_parts()
    found = old_absolute()[..., None]
    gone = np.char.replace(found.astype(str), ".nc", "-gone.nc").astype(object)
    both = np.concatenate([gone, found], -1)
    write_old(both, np.full((3, 1, 2), "t", object))


def old_lacking() -> None:
    """cf-python 3.21 fails for fragments with fewer dimensions than the array."""
    for n in range(3):
        write_part(f"{n}.nc", WHOLE[n], ("x",), {"units": "K"})
    write_old(old_absolute(), "t", lengths=[[1, 1, 1], [4, -1, -1]], steps=3)


def old_written(**options: Any) -> Make:
    def make() -> None:
        write_parts(zlib=True, bounds=True)
        Path("write.json").write_text(json.dumps({"cfa": True, **options}))

    return make


def old_written_base() -> None:
    write_parts()
    options = {"substitutions": {"${base}": f"file://{Path.cwd()}/"}}
    Path("write.json").write_text(json.dumps({"cfa": options}))


def old_written_in_other_units() -> None:
    write_parts({"units": "K"}, {"units": "degC"}, {"units": "K"})
    Path("write.json").write_text(json.dumps({"cfa": True}))


OLD: dict[str, Make] = {
    made.__name__: made
    for made in (
        *(old_plain, old_substitutions, old_packed, old_versions, old_lacking),
        *(old_written_base, old_written_in_other_units),
    )
} | {
    "old_written": old_written(),
    "old_written_relative": old_written(cfa={"absolute_paths": False}),
    "old_written_coordinates": old_written(
        cfa={"constructs": ["field", "dimension_coordinate"], "strict": False}
    ),
    "old_written_classic": old_written(fmt="NETCDF3_CLASSIC"),
}
"""Files of CFA-0.6.2."""


def run_cases(variable: str, folder: Path, cases: dict[str, Make]) -> Path:
    """Write the files of all cases, and let cf-python do its part."""
    python = peer_python(variable)
    with pytest.MonkeyPatch.context() as patch:
        for name, make in cases.items():
            (folder / name).mkdir()
            patch.chdir(folder / name)
            make()
    subprocess.run([python, SCRIPT, folder], check=True, capture_output=True, timeout=500)
    return folder


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases("CF_PYTHON", tmp_path_factory.mktemp("new"), {**NEW, BLANKS: written()})


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases("CF_PYTHON_3_16", tmp_path_factory.mktemp("old"), OLD)


def compare(folder: Path) -> None:
    """Compare all variables that cf-python finds in a file with what both ways of opening find."""
    assert not (folder / "cf.txt").exists(), (folder / "cf.txt").read_text()
    expected = dict(np.load(folder / "cf.npz"))
    assert "t" in expected
    path = folder / "agg.nc"
    lazy = xr.open_dataset(path, engine="virtual", decode_times=False)
    virtual = virtualds.open_virtual_dataset(path, decode_cf=False)
    if "coordinates" in folder.name:
        # bounds have no units of their own, and cf-python takes them for those of the first file
        expected.pop("time_bnds")
        whole = xr.open_mfdataset(str(folder / "[0-9].nc"), combine="nested", concat_dim="time")
        found = xr.open_dataset(path, engine="virtual")["time_bnds"]
        np.testing.assert_array_equal(found.values, whole["time_bnds"].values)
    for name, values in expected.items():
        assert lazy[name].shape == values.shape, name
        np.testing.assert_allclose(lazy[name].values, values, rtol=2e-15, err_msg=name)
        if not np.isnan(values).any():
            np.testing.assert_allclose(virtual[name].values, values, rtol=2e-15, err_msg=name)
    dated = virtualds.open_virtual_dataset(path)
    np.testing.assert_array_equal(dated["t"].values, xr.open_dataset(path, engine="virtual")["t"])


@pytest.mark.parametrize("case", NEW)
def test_values_of_cf_1_13_are_those_of_cf_python(case: str, new: Path) -> None:
    compare(new / case)


@pytest.mark.parametrize("case", OLD)
def test_values_of_cfa_0_6_are_those_of_cf_python(case: str, old: Path) -> None:
    compare(old / case)


@pytest.mark.parametrize("case", ["written_relative", "written_coordinates", BLANKS])
def test_what_cf_python_writes_is_what_open_mfdataset_reads(case: str, new: Path) -> None:
    folder = new / case
    expected = xr.open_mfdataset(str(folder / "[0-9].nc"), combine="nested", concat_dim="time")
    found = virtualds.open_virtual_dataset(folder / "agg.nc")
    np.testing.assert_array_equal(found["t"].values, expected["t"].values)
    np.testing.assert_array_equal(found["time"].values, expected["time"].values)
    assert found["t"].attrs == expected["t"].attrs
    urls = {source.url for source in found["t"].variable._data.sources}
    assert urls == {f"file://{folder}/{n}.nc" for n in range(3)}
