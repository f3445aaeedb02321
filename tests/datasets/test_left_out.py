"""Variables that are left out still decide how xarray decodes the others.

xarray joins characters along an axis that no other variable of the file has, and decodes the bounds
of dates by the units of the dates. Its own engines look at all variables before they drop some.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from sidecars import write_sidecar

import virtualds

KINDS = ("NETCDF3_CLASSIC", "NETCDF4", "dmrpp", "zarr2", "zarr3")
SUFFIXES = (".zarr", ".json", ".parquet")
DROPPED: tuple[list[str], ...] = (["t", "time"], ["q", "strlen"])
NESTED: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}


def describe(first: int = 0, with_scale: bool = True) -> dict[str, Any]:
    """Dimensions, values and attributes of every variable of a file."""
    units = f"days since 2000-01-{1 + first % 3:02}"
    dates = {"units": units, "calendar": "noleap", "bounds": "time_bounds"}
    lines = np.frombuffer(b"abcdefghijklmnop", "S1")
    made: dict[str, Any] = {
        "time": (("time",), 10 * first + np.arange(2.0), dates),
        "time_bounds": (("time", "two"), 10 * first + np.arange(4.0).reshape(2, 2), {}),
        "flag": (("time", "station", "four"), np.resize(lines[first:], (2, 3, 4)), {}),
        "name": (("station", "strlen"), lines[:6].reshape(3, 2), {}),
        "letter": (("station",), lines[:3], {}),
        "t": (("four",), np.arange(4, dtype="f4"), {}),
        "q": (("station",), np.arange(3, dtype="f4"), {}),
        "dropped_text": (("time", "four"), np.resize(lines, (2, 4)), {}),
    }
    if with_scale:
        made["strlen"] = (("strlen",), np.arange(2, dtype="i4"), {})
    return made


def write(path: Path, kind: str, first: int = 0, **how: Any) -> Path:
    """Write a file, or a Zarr store."""
    variables = describe(first, **how)
    if kind.startswith("zarr"):
        version = int(kind[-1])
        root = zarr.open_group(path, mode="w", zarr_format=version)  # type: ignore[arg-type]
        for name, (dims, values, attributes) in variables.items():
            named: dict[str, Any] = {"dimension_names": dims} if version == 3 else {}
            old = {"_ARRAY_DIMENSIONS": list(dims)} if version == 2 else {}
            array = root.create_array(
                name, shape=values.shape, dtype=values.dtype, attributes=attributes | old,
                fill_value=None if version == 2 else np.zeros((), values.dtype)[()], **named,
            )  # fmt: skip
            array[:] = values
        return path
    with netCDF4.Dataset(path, "w", format="NETCDF4" if kind == "dmrpp" else kind) as file:
        for name, (dims, values, attributes) in variables.items():
            for dim, size in zip(dims, values.shape, strict=True):
                if dim not in file.dimensions:
                    file.createDimension(dim, size)
            variable = file.createVariable(name, values.dtype, dims)
            variable.set_auto_mask(False)
            variable[:] = values
            variable.setncatts(attributes)
    return write_sidecar(path) if kind == "dmrpp" else path


def load_native(path: Path, **how: Any) -> xr.Dataset:
    """What xarray's own engines read."""
    engine: dict[str, Any] = {"engine": "zarr", "consolidated": False} if path.is_dir() else {}
    name = str(path).removesuffix(".dmrpp")
    return xr.open_dataset(name, **engine, **how).load()


def assert_same(target: Any, wanted: xr.Dataset, how: str = "", **options: Any) -> None:
    """Compare what both ways to open give with what xarray's own engine does."""
    for found in (
        virtualds.open_virtual_dataset(target, **options).virtual.load(),
        xr.open_dataset(target, engine="virtual", **options).load(),
    ):
        try:
            xr.testing.assert_identical(found, wanted)
        except AssertionError as error:
            raise AssertionError(f"{how} {options}: {error}") from None
        assert {n: v.dtype for n, v in found.items()} == {n: v.dtype for n, v in wanted.items()}


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_out_decides_how_the_rest_decodes_as_in_xarray(
    kind: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.nc", kind)
    for names in (["t"], ["time"], *DROPPED):
        for decodes in (True, False):
            how: dict[str, Any] = {"drop_variables": names, "decode_cf": decodes}
            assert_same(source, load_native(source, **how), **how)
            with virtualds.set_options(hdf5="library"):
                assert_same(source, load_native(source, **how), **how)
    all_but = [name for name in describe() if name not in ("flag", "time_bounds")]
    wanted = load_native(source, drop_variables=all_but)
    assert wanted["flag"].dims == ("time", "station", "four")
    assert wanted["time_bounds"].dtype.kind in "MO"
    assert_same(source, wanted, drop_variables=all_but)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_sets_decode_by_what_is_left_out_of_them(suffix: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.nc", "NETCDF4")
    for names in DROPPED:
        wanted = load_native(source, drop_variables=names)
        whole, converted, part, edited = (
            tmp_path / f"{'_'.join(names)}_{way}{suffix}" for way in ("whole", "all", "part", "few")
        )
        virtualds.open_virtual_dataset(source).virtual.to_manifest(whole)
        virtualds.convert(source, converted)
        virtualds.convert(source, edited)
        virtualds.edit(edited, drop_variables=names)
        virtualds.convert(source, part, drop_variables=names)
        for target in (whole, converted):
            assert_same(target, wanted, target.name, drop_variables=names)
        for target in (part, edited):
            assert_same(target, wanted, target.name)
        served = virtualds.zarr_store(source, drop_variables=names)
        xr.testing.assert_identical(xr.open_zarr(served, consolidated=False).load(), wanted)


@pytest.mark.parametrize("kind", ["NETCDF3_CLASSIC", "NETCDF4"])
def test_joined_files_decode_by_what_is_left_out_of_each(kind: str, tmp_path: Path) -> None:
    """The units of the dates that are left out differ from file to file."""
    files = [write(tmp_path / f"{n}.nc", kind, n, with_scale=False) for n in range(9)]
    for names in (["time", "t"], ["t"]):
        how: dict[str, Any] = {**NESTED, "drop_variables": names, "join": "outer"}
        wanted = xr.open_mfdataset(
            files, data_vars="minimal", coords="minimal", compat="equals", **how
        ).load()
        for _ in range(2):
            found = virtualds.open_virtual_mfdataset(files, cache=tmp_path / "cache", **how)
            xr.testing.assert_identical(found.virtual.load(), wanted)
        found = virtualds.open_virtual_mfdataset(files, **how)
        again = pickle.loads(pickle.dumps(found))
        xr.testing.assert_identical(again.virtual.load(), wanted)


@pytest.mark.filterwarnings("ignore:The data type")
def test_a_variable_that_cannot_be_read_decides_how_the_rest_decodes(tmp_path: Path) -> None:
    """A codec that no library here has hides the values of ``t``, and nothing else of it."""
    source = write(tmp_path / "a.zarr", "zarr3")
    wanted = load_native(source, drop_variables="t")
    path = source / "t" / "zarr.json"
    path.write_text(path.read_text().replace('"zstd"', '"unheard-of"'))
    assert wanted["flag"].dims == ("time", "station", "four")
    for on_error in ("skip", "keep"):
        with pytest.warns(UserWarning, match="unheard-of"):
            found = virtualds.open_virtual_dataset(source, on_error=on_error)
        shown = found.drop_vars("t", errors="ignore").virtual.load()
        xr.testing.assert_identical(shown, wanted)


def test_a_set_takes_a_variable_with_characters_that_it_has(tmp_path: Path) -> None:
    """Those of the set are compared as they decode beside all its variables."""
    for name in "qr":
        with netCDF4.Dataset(tmp_path / f"{name}.nc", "w") as file:
            file.createDimension("station", 3)
            made = file.createVariable(name, "f4", ("station",))
            made[:] = 1
            made.coordinates = "letter"
            file.createVariable("letter", "S1", ("station",))[:] = np.array(list("abc"), "S1")
    first, second = (xr.load_dataset(tmp_path / f"{name}.nc") for name in "qr")
    wanted = first.assign(r=second["r"])
    for suffix in SUFFIXES:
        target = tmp_path / f"refs{suffix}"
        for name in "qr":
            ds = virtualds.open_virtual_dataset(tmp_path / f"{name}.nc")
            ds.virtual.to_manifest(target, mode="a")
        assert_same(target, wanted)
