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


# ---------------------------------------------------------------------- what virtualds writes


def open_parts(paths: Any = "[0-9].nc", dims: Any = "time", **how: Any) -> xr.Dataset:
    return virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim=dims, **how)


def to_cfa(ds: Any, **how: Any) -> None:
    ds.virtual.to_manifest("agg.nc", format="cfa", **how)


def ours(*attributes: dict[str, Any], relative_paths: bool = False, **parts: Any) -> Make:
    """We write the aggregation file of parts of two steps each."""

    def make() -> None:
        write_parts(*attributes, **parts)
        to_cfa(open_parts(), relative_paths=relative_paths)

    return make


STORED = {"stored": np.arange(24).reshape(6, 4), "dtype": "i2"}
HALF = {"scale_factor": 0.5, "add_offset": 5.0, "units": "K", "_FillValue": np.int16(3)}


def ours_cut_twice() -> None:
    """Fragments differ in size along two dimensions."""
    names = [[f"{n}{k}.nc" for k in range(2)] for n in range(2)]
    for n, rows in enumerate((slice(0, 4), slice(4, 6))):
        for k, columns in enumerate((slice(0, 1), slice(1, 4))):
            write_part(names[n][k], WHOLE[rows, columns], ("time", "x"), {"units": "K"})
    to_cfa(open_parts(names, ["time", "x"]))


def ours_of_converted_units() -> None:
    """Fragments in other units stay what they are."""
    write_parts({"units": "K"}, {"units": "degC"}, {"units": "mK"})
    aggregate()
    to_cfa(virtualds.open_virtual_dataset("agg.nc"), mode="w")


def ours_of_what_cf_python_could_write() -> None:
    write_parts(zlib=True)
    aggregate()
    to_cfa(virtualds.open_virtual_dataset("agg.nc"), mode="w")


def ours_of_constants() -> None:
    ds = xr.Dataset({"t": (("time", "x"), virtualds.ManifestArray.full((6, 4), 7.5, "f8"))})
    ds["n"] = ("x", virtualds.ManifestArray.full((4,), 3, "i2"))
    ds["gone"] = ("x", virtualds.ManifestArray.full((4,), np.nan, "f4"))
    to_cfa(ds)


def ours_of_coordinates() -> None:
    """Coordinates stay references."""
    write_parts(bounds=True)
    for n in range(1, 3):
        Path(f"{n}.nc").unlink()
    to_cfa(virtualds.open_virtual_dataset("0.nc", loadable_variables=[]))


def ours_of_groups() -> None:
    write_parts()
    to_cfa(xr.DataTree.from_dict({"/": open_parts(), "/below": open_parts().rename(t="u")}))


def ours_unlimited() -> None:
    for n in range(3):
        part = xr.Dataset({"t": (("time", "x"), WHOLE[2 * n : 2 * n + 2], {"units": "K"})})
        part.to_netcdf(f"{n}.nc", engine="netcdf4", unlimited_dims=["time"])
    to_cfa(open_parts())


def ours_with_texts() -> None:
    for n in range(3):
        part = xr.Dataset({"t": (("time", "x"), WHOLE[2 * n : 2 * n + 2], {"units": "K"})})
        part = part.assign_coords(
            label=("x", np.array(["a", "bcd", "", "ef g"], object)),
            sign=("x", np.array(["ab", "c", "d", "efg"], "S3")),
        )
        part.to_netcdf(f"{n}.nc", engine="netcdf4")
    to_cfa(open_parts())


def ours_with_scalars() -> None:
    for n in range(3):
        part = xr.Dataset({"t": (("time", "x"), WHOLE[2 * n : 2 * n + 2], {"units": "K"})})
        part = part.assign_coords(height=((), 2.0, {"units": "m"}))
        part.to_netcdf(f"{n}.nc", engine="netcdf4")
    to_cfa(open_parts())


def ours_appended() -> None:
    write_parts()
    to_cfa(virtualds.open_virtual_dataset("0.nc"))
    for n in (1, 2):
        to_cfa(virtualds.open_virtual_dataset(f"{n}.nc"), append_dim="time")


def ours_synced() -> None:
    write_parts()
    Path("2.nc").rename("later.nc")
    for _ in range(2):
        virtualds.sync("[0-9].nc", "agg.nc", concat_dim="time", format="cfa", settle=0)
        if Path("later.nc").exists():
            Path("later.nc").rename("2.nc")


def ours_renamed() -> None:
    """Variables and dimensions have other names than in the files."""
    write_parts()
    ds = open_parts().rename(t="air", x="lon", time="when")
    to_cfa(ds.assign(t=ds["air"].rename(lon="other", when="second")).drop_vars("air"))


def ours_of_one_file_and_many() -> None:
    """Variables have different fragments, and some come from one file."""
    write_parts()
    write_part("grid.nc", np.arange(4.0), ("x",), {"units": "m"}, name="height")
    to_cfa(open_parts().merge(virtualds.open_virtual_dataset("grid.nc")))


def ours_of_names_in_files() -> None:
    """The variable has another name in each file."""
    for n in range(3):
        write_part(f"{n}.nc", WHOLE[2 * n : 2 * n + 2], ("time", "x"), {"units": "K"}, name=f"v{n}")
    parts = [virtualds.open_virtual_dataset(f"{n}.nc")[f"v{n}"] for n in range(3)]
    to_cfa(xr.concat([part.rename("t") for part in parts], "time").to_dataset())


def ours_of_files_with_groups() -> None:
    for n in range(3):
        part = xr.Dataset({"t": (("time", "x"), WHOLE[2 * n : 2 * n + 2], {"units": "K"})})
        part.to_netcdf(f"{n}.nc", engine="netcdf4", group="model/run")
    to_cfa(open_parts(group="model/run"))


def ours_with_features_of_cf() -> None:
    """A grid mapping, an ancillary variable, a cell measure and cell methods."""
    write_parts()
    for n in range(3):
        grid = {"grid_mapping_name": "latitude_longitude"}
        with xr.open_dataset(f"{n}.nc", decode_times=False) as held:
            part = held.load()
        part["crs"] = ((), np.int32(0), grid)
        part["area"] = (("x",), np.arange(4.0), {"standard_name": "cell_area", "units": "m2"})
        part["count"] = part["t"].astype("i4").assign_attrs(units="1")
        part["t"].attrs |= {
            "grid_mapping": "crs",
            "cell_measures": "area: area",
            "cell_methods": "time: mean",
            "ancillary_variables": "count",
        }
        part.to_netcdf(f"{n}.nc", engine="netcdf4")
    to_cfa(open_parts())


OURS: dict[str, Make] = {
    made.__name__: made
    for made in (
        *(ours_cut_twice, ours_of_converted_units, ours_of_what_cf_python_could_write),
        *(ours_of_constants, ours_of_coordinates),
        *(ours_of_groups, ours_unlimited, ours_with_texts, ours_with_scalars, ours_appended),
        *(ours_synced, ours_renamed, ours_of_one_file_and_many, ours_of_names_in_files),
        *(ours_of_files_with_groups, ours_with_features_of_cf),
    )
} | {
    "ours": ours(),
    "ours_compressed": ours(zlib=True, chunksizes=(1, 3)),
    "ours_relative": ours(relative_paths=True),
    "ours_classic": ours(form="NETCDF3_CLASSIC"),
    "ours_with_bounds": ours(bounds=True),
    "ours_packed": ours(HALF, **STORED),
    "ours_packed_differently": ours(HALF, {"scale_factor": 0.25, "units": "K"}, **STORED),
    "ours_masked": ours({"_FillValue": -9.0, "units": "K"}, stored=np.where(WHOLE > 60, -9, WHOLE)),
    "ours_masked_integers": ours({"_FillValue": np.int16(7), "units": "K"}, **STORED),
    "ours_short": ours(dtype="f4"),
    "ours_big_endian": ours(dtype=">f4", endian="big"),
    "ours_in_bytes": ours(stored=np.arange(24).reshape(6, 4), dtype="i1"),
}
"""Files that we write."""


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
    cases = {**NEW, **OURS, BLANKS: written()}
    return run_cases("CF_PYTHON", tmp_path_factory.mktemp("new"), cases)


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
        group, _, short = name.rpartition("/")
        shown, stored = lazy.get(short), virtual.get(short)
        if group:
            below = {"group": group}
            shown = xr.open_dataset(path, engine="virtual", decode_times=False, **below)[short]
            stored = virtualds.open_virtual_dataset(path, decode_cf=False, **below)[short]
        if not shown.dims:
            # cf-python gives scalar coordinates an axis
            values = values.reshape(())
        assert shown.shape == values.shape, name
        if values.dtype.kind == "U":
            np.testing.assert_array_equal(shown.values.astype("U"), values, err_msg=name)
            continue
        np.testing.assert_allclose(shown.values, values, rtol=2e-15, err_msg=name)
        if not np.isnan(values).any():
            np.testing.assert_allclose(stored.values, values, rtol=2e-15, err_msg=name)
    dated = virtualds.open_virtual_dataset(path)
    np.testing.assert_array_equal(dated["t"].values, xr.open_dataset(path, engine="virtual")["t"])


@pytest.mark.parametrize("case", NEW)
def test_values_of_cf_1_13_are_those_of_cf_python(case: str, new: Path) -> None:
    compare(new / case)


@pytest.mark.parametrize("case", OURS)
def test_cf_python_reads_what_we_write(case: str, new: Path) -> None:
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


@pytest.mark.parametrize("case", ["ours_with_features_of_cf", "ours_with_bounds", "written"])
def test_cf_python_finds_the_attributes_of_variables(case: str, new: Path) -> None:
    found = json.loads((new / case / "cf.json").read_text())
    shown = xr.open_dataset(new / case / "agg.nc", engine="virtual", decode_cf=False)
    kept = ("standard_name", "long_name", "units", "calendar", "axis")
    for name, attributes in found.items():
        expected = {n: str(v) for n, v in shown[name].attrs.items() if n in kept}
        assert {n: v for n, v in attributes.items() if n in kept} == expected, name
    assert "t" in found and found["t"]["Conventions"] == "CF-1.13"


def test_what_an_aggregation_of_cf_python_becomes_is_read_by_it_in_the_same_way(new: Path) -> None:
    ours, theirs = (np.load(new / case / "cf.npz") for case in ("ours_with_bounds", "written"))
    assert set(ours) == set(theirs)
    np.testing.assert_array_equal(ours["t"], theirs["t"])


FOREIGN = ["written", "written_relative", "written_coordinates", "written_packed"]


@pytest.mark.parametrize("case", FOREIGN)
def test_a_set_of_cf_python_grows(
    case: str, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """We append to what cf-python has written, and keep what it refers to."""
    monkeypatch.chdir(tmp_path)
    for file in (new / case).glob("*.nc"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    before = xr.load_dataset("agg.nc", engine="virtual", decode_times=False)
    with xr.open_dataset("0.nc", decode_cf=False, engine="netcdf4") as held:
        later = held.load()
    later["time"] = later["time"] + 20
    later.to_netcdf("7.nc", engine="netcdf4")
    part = virtualds.open_virtual_dataset("7.nc")
    part.virtual.to_manifest("agg.nc", append_dim="time")
    after = xr.load_dataset("agg.nc", engine="virtual", decode_times=False)
    assert after.sizes["time"] == 8
    np.testing.assert_array_equal(after["t"][:6], before["t"])
    np.testing.assert_allclose(after["t"][6:], xr.load_dataset("7.nc")["t"], rtol=1e-7)


def test_sync_keeps_a_set_of_cf_python_up_to_date(
    new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (new / "written_relative").glob("*.nc"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with xr.open_dataset("0.nc", decode_cf=False, engine="netcdf4") as held:
        later = held.load()
    later["time"] = later["time"] + 20
    later.to_netcdf("7.nc", engine="netcdf4")
    report = virtualds.sync("[0-9].nc", "agg.nc", concat_dim="time", settle=0)
    assert ([Path(url).name for url in report.added], report.unchanged) == (["7.nc"], 3)
    expected = xr.open_mfdataset("[0-9].nc", combine="nested", concat_dim="time", engine="netcdf4")
    found = xr.open_dataset("agg.nc", engine="virtual")
    np.testing.assert_array_equal(found["t"], expected["t"])
    np.testing.assert_array_equal(found["time"], expected["time"])
