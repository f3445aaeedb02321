"""Aggregation files that we write have the values of the dataset, or are refused by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from cfa_files import write_part
from products import looped
from range_server import range_server

import virtualds
from virtualds import ManifestArray, ReadError, UnsupportedError
from virtualds.datasets import aggregation
from virtualds.datasets.aggregation import writing
from virtualds.datasets.conversion import group_from_dataset

Make = Callable[[], Any]
DAYS = {"units": "days since 2000-01-01"}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def part(number: int, start: int = 0, count: int = 2, **attributes: Any) -> xr.Dataset:
    values = np.random.default_rng(number).integers(0, 999, (count, 4)) / 8
    return xr.Dataset(
        {"t": (("time", "x"), values, attributes)},
        {"time": ("time", np.arange(count) + start, DAYS), "x": np.arange(4.0)},
    )


def write(ds: xr.Dataset, path: str, encoding: Any = None, **how: Any) -> None:
    ds.to_netcdf(path, engine="netcdf4", encoding=encoding or {}, **how)


def write_months(*lengths: int, encoding: Any = None, **attributes: Any) -> list[str]:
    """Write files of some lengths along time, which follow each other."""
    start, names = 0, []
    for number, length in enumerate(lengths):
        names.append(f"{number}.nc")
        write(part(number, start, length, **attributes), names[-1], encoding)
        start += length
    return names


def join(names: Any = None, dims: Any = "time", **how: Any) -> xr.Dataset:
    if names is None:
        names = sorted(str(path) for path in Path().glob("[0-9].nc"))
    return virtualds.open_virtual_mfdataset(names, combine="nested", concat_dim=dims, **how)


def months(*lengths: int, **how: Any) -> xr.Dataset:
    return join(write_months(*(lengths or (2, 3, 1)), **how))


def compare(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Compare values, dtypes and attributes; texts may be of another dtype."""
    assert set(found.variables) == set(expected.variables)
    assert found.attrs.keys() == expected.attrs.keys()
    for name, variable in expected.variables.items():
        other = found.variables[name]
        assert other.dims == variable.dims, name
        assert other.attrs.keys() == variable.attrs.keys(), name
        values, others = np.asarray(variable.values), np.asarray(other.values)
        textual = {values.dtype.kind, others.dtype.kind} <= set("OUS")
        assert textual or values.dtype == others.dtype, name
        np.testing.assert_array_equal(others, values, err_msg=str(name))


def check_written(ds: xr.Dataset, path: str = "agg.nc", **how: Any) -> None:
    """Write a dataset, and compare it with what both ways of opening, and netCDF, find."""
    ds.virtual.to_manifest(path, format="cfa", **how)
    compare(xr.open_dataset(path, engine="virtual"), ds)
    compare(virtualds.open_virtual_dataset(path), ds)
    with netCDF4.Dataset(path) as file:
        for variable in file.variables.values():
            variable[...]


# ---------------------------------------------------------------------- what is written


def packed(number: int) -> dict[str, Any]:
    return {"dtype": "i2", "scale_factor": 0.125 * (number + 1), "_FillValue": -99 - number}


def packed_alike() -> xr.Dataset:
    return months(encoding={"t": packed(0)})


def packed_differently() -> xr.Dataset:
    for number in range(3):
        ds = part(number, 2 * number)
        ds["t"][0, 0] = np.nan
        write(ds, f"{number}.nc", {"t": packed(number)})
    return join()


def unsigned() -> xr.Dataset:
    packing = {"_Unsigned": "true", "scale_factor": np.float32(0.5), "_FillValue": np.int8(-1)}
    for number in range(2):
        values = np.array([[-1, 2, -3], [4, 5, -100 + number]], "i1")
        write_part(f"{number}.nc", values, ("time", "x"), packing)
    return join()


def masked_integers() -> xr.Dataset:
    for number in range(2):
        values = np.arange(6, dtype="i4").reshape(2, 3)
        write_part(f"{number}.nc", values, ("time", "x"), {"_FillValue": np.int32(3)})
    return join()


def two_dims() -> xr.Dataset:
    names = [[f"{j}{i}.nc" for i in range(3)] for j in range(2)]
    for j, (y, height) in enumerate(((0, 3), (3, 2))):
        for i, (x, width) in enumerate(((0, 4), (4, 1), (5, 2))):
            values = np.arange(height * width).reshape(height, width) + 10.0 * i + j
            coords = {"y": np.arange(height) + float(y), "x": np.arange(width) + float(x)}
            write(xr.Dataset({"z": (("y", "x"), values)}, coords), names[j][i])
    return join(names, ["y", "x"])


def with_hole(dtype: str = "f8", **encoding: Any) -> xr.Dataset:
    for number, (t, x) in enumerate(((0, 0), (2, 0), (0, 4))):
        values = np.arange(8).reshape(2, 4).astype(dtype)
        coords = {"t": np.arange(2.0) + t, "x": np.arange(4.0) + x}
        write(xr.Dataset({"z": (("t", "x"), values)}, coords), f"{number}.nc", {"z": encoding})
    parts = [virtualds.open_virtual_dataset(f"{number}.nc") for number in range(3)]
    return xr.combine_by_coords(parts, join="outer", data_vars="all", compat="no_conflicts")


def bare_with_hole() -> xr.Dataset:
    return with_hole(_FillValue=None)


def integers_with_hole() -> xr.Dataset:
    return with_hole("i2", _FillValue=np.int16(-9))


def new_axis() -> xr.Dataset:
    for number in range(3):
        write_part(f"{number}.nc", np.arange(8.0).reshape(2, 4) + number, ("y", "x"))
    return join()


def new_last_axis() -> xr.Dataset:
    """The variable has other names of dimensions, and all of one length."""
    for number in range(4):
        write_part(f"{number}.nc", np.arange(16.0).reshape(4, 4) + number, ("y", "x"))
    parts = [virtualds.open_virtual_dataset(f"{number}.nc")["t"] for number in range(4)]
    parts = [one.rename(y="lat", x="lon").expand_dims("k", axis=2) for one in parts]
    return xr.concat(parts, "k").to_dataset()


def out_of_order() -> xr.Dataset:
    ds = months()
    pieces = [(2, 5), (0, 2), (5, 6)]
    return xr.concat([ds.isel(time=slice(*one)) for one in pieces], "time")


def repeated() -> xr.Dataset:
    ds = months()
    return xr.concat([ds, ds], "time")


def broadcast() -> xr.Dataset:
    ds = months().isel(time=slice(0, 2)).drop_vars(["time", "x"])
    return xr.concat([ds["t"].expand_dims(k=[n]) for n in range(3)], "k").to_dataset()


def bands() -> xr.Dataset:
    """Several variables of one file are one array."""
    values = dict(zip("abc", np.arange(18.0).reshape(3, 2, 3), strict=True))
    write(xr.Dataset({name: (("y", "x"), one) for name, one in values.items()}), "0.nc")
    ds = virtualds.open_virtual_dataset("0.nc")
    return xr.concat([ds[name].rename("bands") for name in "abc"], "band").to_dataset()


def renamed() -> xr.Dataset:
    return months().rename(t="air", x="lon", time="when")


def odd_names() -> xr.Dataset:
    for number in range(2):
        with netCDF4.Dataset(f"{number} ä b%20#?.nc", "w") as file:
            file.createDimension("time", 2)
            file.createDimension("tëst", 3)
            values = np.arange(6.0).reshape(2, 3) + number
            file.createVariable("ärger-t+2 m.x", "f4", ("time", "tëst"))[:] = values
    return join([f"{number} ä b%20#?.nc" for number in range(2)])


def named_like_our_own() -> xr.Dataset:
    for number in range(2):
        ds = part(number, 2 * number).rename(t="fragment_map", x="f_time")
        write(ds.assign(fragment_uris=("time", [1, 2])), f"{number}.nc")
    return join()


def with_scalars() -> xr.Dataset:
    for number in range(2):
        crs = xr.Variable((), np.int32(4), {"grid_mapping_name": "latitude_longitude"})
        write(part(number, 2 * number).assign(crs=crs, height=2.5), f"{number}.nc")
    return join()


def with_virtual_scalars() -> xr.Dataset:
    with_scalars()
    return virtualds.open_virtual_dataset("0.nc", loadable_variables=[])


def with_texts() -> xr.Dataset:
    for number in range(2):
        ds = part(number, 2 * number)
        ds["name"] = ("time", np.array(["ab", "ü"], object))
        ds["one"] = ("x", np.array(list("abcd"), "S1"))
        ds["three"] = ("x", np.array(["abc", "d", "", "ef"], "S3"))
        write(ds, f"{number}.nc")
    return join()


def with_dates() -> xr.Dataset:
    """Files count from days of their own."""
    for number in range(2):
        days = np.array(["2000-01-01", "2000-01-02"], "M8[ns]") + np.timedelta64(2 * number, "D")
        ds = xr.Dataset({"t": ("time", np.arange(2.0)), "when": ("time", days)}, {"time": days})
        ds["edges"] = (("time", "two"), np.stack([days, days], 1))
        ds["time"].attrs["bounds"] = "edges"
        units = {"units": f"days since 2000-01-0{1 + number}"}
        write(ds, f"{number}.nc", {"time": units, "when": units})
    return join()


def with_virtual_dates() -> xr.Dataset:
    write_months(2, 3)
    return join(loadable_variables=[])


def with_durations() -> xr.Dataset:
    write_months(2)
    ds = virtualds.open_virtual_dataset("0.nc")
    return ds.assign(long=("x", np.array([1, 2, 3, 4], "m8[h]").astype("m8[ns]")))


def unlimited() -> xr.Dataset:
    for number in range(3):
        write(part(number, 2 * number), f"{number}.nc", unlimited_dims=["time"])
    return join()


def with_nothing_in_it() -> xr.Dataset:
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((0, 3))), "u": ("x", np.arange(3.0))})
    write(ds, "0.nc", unlimited_dims=["time"])
    return virtualds.open_virtual_dataset("0.nc")


def with_an_empty_file() -> xr.Dataset:
    for number, length in enumerate((2, 0, 3)):
        write(part(number, 2 * number, length), f"{number}.nc", unlimited_dims=["time"])
    return join()


def of_one_step() -> xr.Dataset:
    for number in range(3):
        write(part(number, number, 1).isel(x=slice(0, 1)), f"{number}.nc")
    return join()


def of_a_group() -> xr.Dataset:
    for number in range(2):
        write(part(number, 2 * number), f"{number}.nc", group="model/run")
    return join(group="model/run")


def classic() -> xr.Dataset:
    for number in range(2):
        form, dims = "NETCDF3_64BIT", ["time"] if number else []
        write(part(number, 2 * number), f"{number}.nc", format=form, unlimited_dims=dims)
    return join()


def classic_and_new() -> xr.Dataset:
    write(part(0), "0.nc", format="NETCDF3_CLASSIC")
    write(part(1, 2), "1.nc", {"t": {"zlib": True}})
    return join()


def with_unwritten_chunks() -> xr.Dataset:
    for number in range(2):
        with netCDF4.Dataset(f"{number}.nc", "w") as file:
            file.createDimension("time", 4)
            file.createDimension("x", 3)
            how: Any = {"dimensions": ("time", "x"), "chunksizes": (1, 3)}
            file.createVariable("t", "f4", fill_value=-5.0, **how)[1] = 1 + number
            file.createVariable("nothing", "f4", fill_value=-5.0, **how)
            file.createVariable("plain", "f4", **how)[2] = 3
    return join()


def with_constants() -> xr.Dataset:
    ds = months()
    for name, value, dtype in (
        ("c", 7.5, "f8"),
        ("n", np.nan, "f4"),
        ("i", 7, "i2"),
        ("z", 0, "u1"),
    ):
        ds[name] = (("time", "x"), ManifestArray.full((6, 4), value, dtype))
    return ds


def with_odd_attributes() -> xr.Dataset:
    ds = months()
    ds["t"].attrs |= {"a": 1, "b": 2.5, "c": [1, 2], "e": "", "f": "ü", "g": ["x", "y"]}
    ds["t"].attrs |= {"h": np.float32(2), "i": np.array([1, 2], "i8"), "j": np.array([1, 2], "i1")}
    ds.attrs |= {"history": "x" * 100_000, "empty": "", "Conventions": "CF-1.8, ACDD-1.3"}
    return ds


def of_variables_of_other_files() -> xr.Dataset:
    write_months(2, 3)
    write(xr.Dataset({"height": ("x", np.arange(4.0))}), "grid.nc")
    return join().merge(virtualds.open_virtual_dataset("grid.nc"))


def without_units() -> xr.Dataset:
    ds = months(units="K")
    del ds["t"].attrs["units"]
    return ds


def of_hdf5_without_dimensions() -> xr.Dataset:
    for number in range(2):
        with h5py.File(f"{number}.nc", "w") as file:
            file["t"] = np.arange(6.0).reshape(2, 3) + number
    ds = join(dims="phony_dim_0")
    assert ds["t"].shape == (4, 3)
    return ds


def of_an_aggregation() -> xr.Dataset:
    months().virtual.to_manifest("first.nca")
    return virtualds.open_virtual_dataset("first.nca")


def of_a_set() -> xr.Dataset:
    packed_differently().virtual.to_manifest("refs.zarr")
    return virtualds.open_virtual_dataset("refs.zarr")


def of_inline_chunks() -> xr.Dataset:
    months().virtual.to_manifest("refs.zarr", inline_threshold=1000)
    return virtualds.open_virtual_dataset("refs.zarr")


WRITTEN: tuple[Make, ...] = (
    *(months, packed_alike, packed_differently, unsigned, masked_integers, two_dims, with_hole),
    *(bare_with_hole, integers_with_hole, new_axis, new_last_axis, out_of_order, repeated),
    *(
        broadcast,
        bands,
        renamed,
        odd_names,
        named_like_our_own,
        with_scalars,
        with_texts,
        with_virtual_scalars,
    ),
    *(with_dates, with_virtual_dates, with_durations, unlimited, with_nothing_in_it),
    *(with_an_empty_file, of_one_step, of_a_group, classic, classic_and_new, with_constants),
    *(with_unwritten_chunks, with_odd_attributes, of_variables_of_other_files, without_units),
    *(of_hdf5_without_dimensions, of_an_aggregation, of_a_set, of_inline_chunks),
)


# each writes files, and reads them in three ways
@looped("make", WRITTEN, quick=5)
def test_what_is_written_has_the_values_of_the_dataset(make: Make, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    check_written(make())


def test_uris_may_be_relative_to_the_file(tmp_path: Path) -> None:
    Path("sets").mkdir()
    odd_names().virtual.to_manifest("sets/agg.nca", relative_paths=True)
    with netCDF4.Dataset("sets/agg.nca") as file:
        uri = file["fragment_uris"][0, 0]
    assert uri == "../0%20%C3%A4%20b%2520%23%3F.nc"
    shutil.move(tmp_path, f"{tmp_path}-moved")
    found = xr.open_dataset(f"{tmp_path}-moved/sets/agg.nca", engine="virtual")
    assert found["ärger-t+2 m.x"][3, 2] == 6


def test_variables_are_as_in_the_standard() -> None:
    months(2, 3).virtual.to_manifest("agg.nca")
    with netCDF4.Dataset("agg.nca") as file:
        t = file["t"]
        assert (t.dimensions, t.aggregated_dimensions) == ((), "time x")
        words = t.aggregated_data.split()
        names = dict(zip(words[::2], words[1::2], strict=True))
        assert list(names) == ["map:", "uris:", "identifiers:"]
        lengths = file[names["map:"]][:]
        assert lengths.tolist() == [[2, 3], [4, None]]
        uris = [f"file://{Path(name).absolute()}" for name in ("0.nc", "1.nc")]
        assert file[names["uris:"]][:, 0].tolist() == uris
        assert file[names["identifiers:"]][...] == "t"
        assert file.Conventions == "CF-1.13"
        assert file["time"][:].tolist() == [0, 1, 2, 3, 4]


def test_variables_of_the_same_fragments_share_what_describes_them() -> None:
    for number in range(2):
        ds = part(number, 2 * number)
        write(ds.assign(u=ds["t"] + 1), f"{number}.nc")
    join().virtual.to_manifest("agg.nca")
    with netCDF4.Dataset("agg.nca") as file:
        described = [file[name].aggregated_data.split() for name in "tu"]
    assert described[0][:4] == described[1][:4] and described[0][5] != described[1][5]


def test_trees_have_groups(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset({"h": ("y", np.arange(3.0))}, attrs={"title": "r"}),
            "/a": part(0),
            "/a/b c": xr.Dataset({"q": (("y", "z"), np.arange(6.0).reshape(3, 2))}),
        }
    )
    tree.to_netcdf("0.nc", engine="netcdf4")
    vdt = virtualds.open_virtual_datatree("0.nc")
    vdt.virtual.to_manifest("agg.nca")
    for found in (
        xr.open_datatree("agg.nca", engine="virtual"),
        virtualds.open_virtual_datatree("agg.nca"),
    ):
        xr.testing.assert_identical(found.load(), xr.open_datatree("0.nc", engine="netcdf4").load())
    virtualds.open_virtual_dataset("0.nc", group="a").virtual.to_manifest("agg.nca", group="c/d")
    np.testing.assert_array_equal(
        xr.open_dataset("agg.nca/c/d", engine="virtual")["t"], part(0)["t"]
    )


def test_sets_and_files_may_be_in_memory() -> None:
    names = write_months(2, 3)
    for name in names:
        with fsspec.open(f"memory://cfa/{name}", "wb") as file:
            file.write(Path(name).read_bytes())
    ds = join([f"memory://cfa/{name}" for name in names])
    for relative in (False, True):
        target = f"memory://cfa/{relative}.nca"
        ds.virtual.to_manifest(target, relative_paths=relative)
        compare(xr.open_dataset(target, engine="virtual"), ds)


def test_fragments_may_be_on_a_server(tmp_path: Path) -> None:
    names = write_months(2, 3, encoding={"t": {"zlib": True}})
    with range_server(tmp_path) as (url, _):
        check_written(join([f"{url}/{name}" for name in names]))
        with netCDF4.Dataset("agg.nc") as file:
            assert file["fragment_uris"][1, 0] == f"{url}/1.nc"


# ---------------------------------------------------------------------- what is refused


def part_along_time() -> xr.Dataset:
    return months().isel(time=slice(1, 4))


def part_along_x() -> xr.Dataset:
    return months(encoding={"t": {"chunksizes": (1, 2)}}).isel(x=slice(0, 2))


def flipped() -> xr.Dataset:
    return months().isel(x=slice(None, None, -1))


def transposed() -> xr.Dataset:
    write_part("0.nc", np.arange(16.0).reshape(4, 4), ("y", "x"))
    return virtualds.open_virtual_dataset("0.nc").transpose("x", "y")


def mosaic() -> xr.Dataset:
    for number, height in enumerate((2, 2, 4)):
        write_part(f"{number}.nc", np.zeros((height, 2)), ("y", "x"))
    one, two, high = (virtualds.open_virtual_dataset(f"{number}.nc") for number in range(3))
    return xr.concat([xr.concat([one, two], "y"), high], "x")


def other_units() -> xr.Dataset:
    ds = months(units="K")
    ds["t"].attrs["units"] = "degC"
    return ds


def no_units() -> xr.Dataset:
    ds = months(units="K")
    ds["t"].attrs["units"] = "parsnip"
    return ds


def split_chunks() -> xr.Dataset:
    months(2, 8).virtual.to_manifest("refs.zarr", subchunk={"time": 1})
    return virtualds.open_virtual_dataset("refs.zarr")


def some_inline() -> xr.Dataset:
    months(2, 8).virtual.to_manifest("refs.zarr", inline_threshold=100)
    return virtualds.open_virtual_dataset("refs.zarr")


def no_netcdf() -> xr.Dataset:
    np.save("t.npy", np.arange(12.0).reshape(3, 4))
    return virtualds.open_virtual_dataset("t.npy").rename(array="t")


def blanks_in_dims() -> xr.Dataset:
    write_part("0.nc", np.zeros(3), ("my dim",))
    return virtualds.open_virtual_dataset("0.nc")


def odd_attribute() -> xr.Dataset:
    ds = months()
    ds["t"].attrs["o"] = {"a": 1}
    return ds


def complex_numbers() -> xr.Dataset:
    return months().drop_vars("t").assign(t=("x", np.array([1j, 2, 3, 4])))


def half_floats() -> xr.Dataset:
    with h5py.File("0.nc", "w") as file:
        file["t"] = np.arange(4, dtype="f2")
    return virtualds.open_virtual_dataset("0.nc")


def own_file() -> xr.Dataset:
    """A variable is partly in the set that is replaced."""
    months().virtual.to_manifest("agg.nc", format="cfa")
    opened = [
        virtualds.open_virtual_dataset(path, loadable_variables=[], decode_cf=False)
        for path in ("agg.nc", "0.nc")
    ]
    both = xr.Variable.concat([ds["time"].variable for ds in opened], "time")
    return xr.Dataset({"t": both})


REFUSED: dict[Make, str] = {
    part_along_time: r"elements 1 to 2 of 2 along 'time' of 't' of file://.*0\.nc",
    part_along_x: r"elements 0 to 2 of 4 along 'x'",
    flipped: "flipped along",
    transposed: "axes stored as",
    mosaic: r"part from \(0, 2\), 't' of .*2\.nc, lies beside parts of other sizes",
    other_units: "273.15",
    no_units: "'parsnip'",
    split_chunks: "are not a chunk of a netCDF variable",
    some_inline: "others in the set",
    no_netcdf: "are not a chunk of a netCDF variable",
    blanks_in_dims: "'my dim' has blanks",
    odd_attribute: "'o' is {'a': 1}",
    complex_numbers: "complex128",
    half_floats: "float16",
    own_file: "would be replaced",
}


@looped("make", REFUSED)
def test_what_is_no_aggregation_is_refused_by_name(make: Make, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    ds = make()
    before = Path("agg.nc").read_bytes() if Path("agg.nc").exists() else None
    with pytest.raises(UnsupportedError, match=f"(?s){REFUSED[make]}") as caught:
        ds.virtual.to_manifest("agg.nc", format="cfa", mode="w")
    assert "t: " in f"{caught.value}" or "'t'" in f"{caught.value}" or "dim" in f"{caught.value}"
    assert (Path("agg.nc").read_bytes() if Path("agg.nc").exists() else None) == before


def test_a_set_is_replaced_by_itself_and_data_never_are() -> None:
    ds = months()
    for _ in range(2):
        ds.virtual.to_manifest("agg.nc", format="cfa", mode="w")
        ds = virtualds.open_virtual_dataset("agg.nc")
    compare(xr.open_dataset("agg.nc", engine="virtual"), ds)
    before = Path("0.nc").read_bytes()
    with pytest.raises(FileExistsError, match=r"(?s)data of its own.*choose another name"):
        ds.virtual.to_manifest("0.nc", format="cfa", mode="w")
    assert Path("0.nc").read_bytes() == before


def test_chunks_cannot_be_rewritten_for_it() -> None:
    ds = months()
    for call in (
        lambda: ds.virtual.to_manifest("agg.nca", on_unsupported="rewrite"),
        lambda: ds.virtual.cost("cfa"),
    ):
        with pytest.raises(UnsupportedError, match="whole variables of source files"):
            call()


def test_a_file_that_changed_or_is_gone_is_no_fragment() -> None:
    ds = months()
    write(part(9, 2, 3, long_name="n" * 90), "1.nc")
    with pytest.raises(
        ReadError, match=r"(?s)1\.nc has changed since it was scanned.*scan it again"
    ):
        ds.virtual.to_manifest("agg.nca")
    Path("1.nc").unlink()
    with pytest.raises(ReadError, match=r"(?s)1\.nc of a fragment cannot be opened"):
        ds.virtual.to_manifest("agg.nca")
    assert not Path("agg.nca").exists()


def test_a_proposal_that_is_wrong_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found is read again, so an error of ours is no wrong file."""
    ds = months(2, 2)
    make = writing.make_uri

    def swap(url: str, *given: Any) -> str:
        return make(url.replace("0.nc", "1.nc"), *given)

    monkeypatch.setattr(writing, "make_uri", swap)
    with pytest.raises(UnsupportedError, match="t: its chunks would differ"):
        ds.virtual.to_manifest("agg.nca")
    assert not Path("agg.nca").exists()


# ---------------------------------------------------------------------- changes


@pytest.fixture
def grown() -> str:
    """A set of four files, of which three were appended."""
    write_months(2, 2, 2, 2)
    virtualds.open_virtual_dataset("0.nc").virtual.to_manifest("agg.nca", relative_paths=True)
    for number in (1, 2, 3):
        one = virtualds.open_virtual_dataset(f"{number}.nc")
        one.virtual.to_manifest("agg.nca", append_dim="time")
    return "agg.nca"


def list_uris(path: str) -> list[str]:
    with netCDF4.Dataset(path) as file:
        return list(file["fragment_uris"][:, 0])


def test_appended_files_are_fragments(grown: str) -> None:
    compare(xr.open_dataset(grown, engine="virtual"), join())
    assert list_uris(grown) == [f"./{number}.nc" for number in range(4)]
    before = Path(grown).read_bytes()
    with pytest.raises(virtualds.CombineError, match="in the set already"):
        virtualds.open_virtual_dataset("2.nc").virtual.to_manifest(grown, append_dim="time")
    assert Path(grown).read_bytes() == before


def test_names_change_and_sources_go(grown: str) -> None:
    virtualds.edit(grown, rename={"t": "air"})
    virtualds.drop_sources(grown, ["1.nc"])
    compare(
        xr.open_dataset(grown, engine="virtual"), join(["0.nc", "2.nc", "3.nc"]).rename(t="air")
    )
    assert list_uris(grown) == ["./0.nc", "./2.nc", "./3.nc"]


def test_paths_change(grown: str) -> None:
    Path("else").mkdir()
    expected = join().virtual.load()
    for number in range(4):
        shutil.move(f"{number}.nc", f"else/{number}.nc")
    with pytest.raises(ReadError, match="of a fragment cannot be opened"):
        virtualds.rename_paths(grown, {os.getcwd(): f"{os.getcwd()}/else"})
    for number in range(4):
        shutil.copy(f"else/{number}.nc", f"{number}.nc")
    assert virtualds.rename_paths(grown, {os.getcwd(): f"{os.getcwd()}/else"}) == 4
    compare(xr.open_dataset(grown, engine="virtual"), expected)
    assert list_uris(grown)[0] == "./else/0.nc"


def test_a_region_is_replaced(grown: str) -> None:
    write(part(7, 2), "other.nc")
    other = virtualds.open_virtual_dataset("other.nc").drop_vars("x")
    other.virtual.to_manifest(grown, region={"time": slice(2, 4)}, on_duplicate="replace")
    found = xr.open_dataset(grown, engine="virtual")
    np.testing.assert_array_equal(found["t"][2:4], part(7)["t"])
    assert list_uris(grown) == ["./0.nc", "./other.nc", "./2.nc", "./3.nc"]


def test_sync_adds_what_is_new() -> None:
    write_months(2, 2, 2)
    Path("2.nc").rename("later.nc")
    how: Any = {"concat_dim": "time", "settle": 0}
    assert len(virtualds.sync("[0-9].nc", "agg.nca", **how).added) == 2
    Path("later.nc").rename("2.nc")
    report = virtualds.sync("[0-9].nc", "agg.nca", **how)
    assert (len(report.added), report.unchanged) == (1, 2)
    assert not virtualds.sync("[0-9].nc", "agg.nca", **how).is_written
    compare(xr.open_dataset("agg.nca", engine="virtual"), join())


def test_a_pattern_may_match_the_set_itself() -> None:
    how: Any = {"concat_dim": "time", "settle": 0, "format": "cfa"}
    for number in range(2):
        write(part(number, 2 * number), f"{number}.nc")
        report = virtualds.sync("*.nc", "archive.nc", **how)
        assert [Path(url).name for url in report.added] == [f"{number}.nc"]
    compare(xr.open_dataset("archive.nc", engine="virtual"), join())


def test_what_sync_cannot_read_is_an_error_with_a_remedy() -> None:
    write_months(2, 2)
    how: Any = {"concat_dim": "time", "settle": 0}
    virtualds.sync("[0-9].nc", "agg.nca", **how)
    Path("1.nc").unlink()
    with pytest.raises(ReadError, match=r"(?s)1\.nc of a fragment cannot be opened.*restore it"):
        virtualds.sync("[0-9].nc", "agg.nca", **how)


def test_sets_convert_to_it_and_from_it() -> None:
    ds = months()
    ds.virtual.to_manifest("refs.zarr")
    virtualds.convert("refs.zarr", "agg.nca")
    virtualds.convert("agg.nca", "again.json")
    Path("agg.nca").unlink()
    compare(xr.open_dataset("again.json", engine="virtual"), ds)


def test_only_aggregation_files_are_sets() -> None:
    write_months(2, 2)
    one = virtualds.open_virtual_dataset("1.nc")
    before = Path("0.nc").read_bytes()
    with pytest.raises(virtualds.FormatError, match="no aggregation variable"):
        one.virtual.to_manifest("0.nc", format="cfa", append_dim="time")
    with pytest.raises(FileExistsError):
        one.virtual.to_manifest("0.nc", format="cfa")
    assert Path("0.nc").read_bytes() == before


def test_the_format_of_a_file_is_known_by_what_is_in_it(grown: str) -> None:
    Path(grown).rename("set.nc")
    one = virtualds.open_virtual_dataset("3.nc")
    with pytest.raises(virtualds.CombineError, match="in the set already"):
        one.virtual.to_manifest("set.nc", append_dim="time")
    [entry] = virtualds.catalog("set.nc").entries
    assert entry.format == "cfa" and entry.files == 4
    assert virtualds.open_virtual_dataset("set.nc").virtual.verify().ok


def test_fragments_are_where_they_may_be(grown: str) -> None:
    for how in ({}, {"parser": "cfa"}):
        compare(virtualds.open_virtual_dataset(grown, allow=[os.getcwd()], **how), join())
        with pytest.raises(virtualds.AccessError, match=r"0\.nc"):
            virtualds.open_virtual_dataset(grown, allow=["/nowhere"], **how)


def test_diagnose_says_that_it_fits() -> None:
    names = write_months(2, 3)
    assert "cfa" in virtualds.diagnose(names).formats


def test_each_file_is_opened_twice_together_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to find its variables, and once to read what will be written."""
    opened = list[int]()
    open_together = aggregation.FragmentOpener._open_together

    def count(self: Any, files: Any, *given: Any) -> Any:
        found = open_together(self, files, *given)
        opened.append(len(found))
        return found

    group = group_from_dataset(months(2, 2, 2))
    monkeypatch.setattr(aggregation.FragmentOpener, "_open_together", count)
    writing.encode(group, f"file://{os.getcwd()}/agg.nca")
    assert [number for number in opened if number] == [3, 3]
