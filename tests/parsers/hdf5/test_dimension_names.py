"""Axes without scales have the names that the file itself has for them: HDF-EOS5 and GPM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

import virtualds

Fields = Mapping[str, tuple[str, ...]]


def describe_fields(group: str, fields: Fields) -> Iterable[str]:
    """The lines of ODL about some fields."""
    yield f"GROUP={group}"
    for number, (name, dims) in enumerate(fields.items(), 1):
        listed = ",".join(f'"{dim}"' for dim in dims)
        yield f"OBJECT={group}_{number}"
        yield f'{group}Name="{name}"'
        yield "DataType=H5T_NATIVE_FLOAT"
        yield f"DimList=({listed})"
        yield f"MaxdimList=({listed})"
        yield f"END_OBJECT={group}_{number}"
    yield f"END_GROUP={group}"


def describe_structure(
    kind: str, name: str, sizes: Mapping[str, int], data: Fields, geolocation: Fields
) -> str:
    """Structural metadata as HDF-EOS5 writes them, of one structure."""
    title = {"SWATH": "Swath", "GRID": "Grid", "ZA": "Za"}[kind]
    lines = [f"GROUP={title}Structure", f"GROUP={kind}_1", f'{title}Name="{name}"']
    if kind == "GRID":
        lines += [f"{dim}={sizes[dim]}" for dim in ("XDim", "YDim")]
    lines.append("GROUP=Dimension")
    for number, (dim, size) in enumerate(sizes.items(), 1):
        lines += [f"OBJECT=Dimension_{number}", f'DimensionName="{dim}"', f"Size={size}"]
        lines.append(f"END_OBJECT=Dimension_{number}")
    lines.append("END_GROUP=Dimension")
    lines += describe_fields("GeoField", geolocation)
    lines += describe_fields("DataField", data)
    lines += [f"END_GROUP={kind}_1", f"END_GROUP={title}Structure", "END", ""]
    return "\n\t".join(lines)


SIZES = {"nTimes": 6, "nXtrack": 4, "nWavel": 3}
DATA: Fields = {
    "ColumnAmountO3": ("nTimes", "nXtrack"),
    "Radiance": ("nTimes", "nXtrack", "nWavel"),
}
GEOLOCATION: Fields = {"Latitude": ("nTimes", "nXtrack"), "Time": ("nTimes",)}


def write_eos(
    path: Path,
    kind: str = "SWATH",
    name: str = "OMI Column Amount O3",
    sizes: Mapping[str, int] = SIZES,
    data: Fields = DATA,
    geolocation: Fields = GEOLOCATION,
    *,
    described: str | None = None,
    cut: int = 0,
    texts: Any = None,
) -> Path:
    """A file laid out as those of OMI and MLS; the metadata may be cut into several parts."""
    text = described or describe_structure(kind, name, sizes, data, geolocation)
    step = cut or len(text)
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        information = file.create_group("HDFEOS INFORMATION")
        information.attrs["HDFEOSVersion"] = np.bytes_("HDFEOS_5.1.15")
        for part, begin in enumerate(range(0, len(text), step)):
            value = text[begin : begin + step]
            held = np.bytes_(value) if texts is None else value
            kept = texts or f"S{max(32000, step)}"
            information.create_dataset(f"StructMetadata.{part}", (), kept, data=held)
        top = file.create_group(f"HDFEOS/{kind}S/{name}")
        for folder, fields in (("Data Fields", data), ("Geolocation Fields", geolocation)):
            below = top.create_group(folder)
            for field, dims in fields.items():
                shape = tuple(sizes[dim] for dim in dims)
                below.create_dataset(field, data=random.random(shape, "f4"), compression="gzip")
    return path


def open_fields(path: Path, kind: str = "SWATH", folder: str = "Data Fields") -> xr.Dataset:
    with h5py.File(path) as file:
        [name] = file[f"HDFEOS/{kind}S"]
    return virtualds.open_virtual_dataset(path, group=f"HDFEOS/{kind}S/{name}/{folder}")


def dims_of(dataset: xr.Dataset) -> dict[Any, tuple[Any, ...]]:
    return {name: variable.dims for name, variable in dataset.variables.items()}


@pytest.mark.parametrize("cut", [0, 97])
@pytest.mark.parametrize("texts", [None, h5py.string_dtype()])
def test_fields_of_a_swath_have_the_dimensions_of_the_metadata(
    tmp_path: Path, cut: int, texts: Any
) -> None:
    path = write_eos(tmp_path / "omi.he5", cut=cut, texts=texts)
    found = open_fields(path)
    assert dims_of(found) == DATA
    assert dims_of(open_fields(path, folder="Geolocation Fields")) == GEOLOCATION
    with h5py.File(path) as file:
        for name, dataset in file["HDFEOS/SWATHS/OMI Column Amount O3/Data Fields"].items():
            np.testing.assert_array_equal(found[name], dataset[()])


@pytest.mark.parametrize("kind", ["GRID", "ZA"])
def test_fields_of_grids_and_zonal_averages_are_named(tmp_path: Path, kind: str) -> None:
    fields: Fields = {"O3": ("YDim", "XDim"), "Profile": ("nLayers", "YDim", "XDim")}
    sizes = {"XDim": 8, "YDim": 5, "nLayers": 3}
    path = write_eos(tmp_path / "grid.he5", kind, "OMI", sizes, fields, {})
    assert dims_of(open_fields(path, kind)) == fields


def test_a_tree_and_a_group_alone_have_the_same_names(tmp_path: Path) -> None:
    path = write_eos(tmp_path / "omi.he5")
    tree = virtualds.open_virtual_datatree(path)
    folder = tree["HDFEOS/SWATHS/OMI Column Amount O3"]
    assert dims_of(folder["Data Fields"].to_dataset()) == DATA
    assert dims_of(folder["Geolocation Fields"].to_dataset()) == GEOLOCATION


def test_swaths_join_along_the_dimension_that_the_file_names(tmp_path: Path) -> None:
    files = [
        write_eos(tmp_path / f"{n}.he5", sizes=SIZES | {"nTimes": lines})
        for n, lines in enumerate((6, 4, 5, 4))
    ]
    group = "HDFEOS/SWATHS/OMI Column Amount O3/Data Fields"
    joined = virtualds.open_virtual_mfdataset(
        files, combine="nested", concat_dim="nTimes", group=group
    )
    assert joined.sizes["nTimes"] == 19
    parts = [virtualds.open_virtual_dataset(file, group=group).load() for file in files]
    xr.testing.assert_equal(joined.load(), xr.concat(parts, "nTimes"))


def name_natively(path: Path, group: str) -> dict[Any, tuple[Any, ...]]:
    return dims_of(xr.open_dataset(path, engine="netcdf4", group=group))


def test_what_disagrees_keeps_the_names_of_netcdf(tmp_path: Path) -> None:
    group = "HDFEOS/SWATHS/OMI Column Amount O3/Data Fields"
    name = "OMI Column Amount O3"
    wrong = describe_structure("SWATH", name, SIZES | {"nXtrack": 5}, DATA, GEOLOCATION)
    swapped = {**DATA, "ColumnAmountO3": ("nXtrack", "nTimes")}
    cases = {
        "another size": (wrong, set(DATA)),
        "another order": (
            describe_structure("SWATH", name, SIZES, swapped, GEOLOCATION),
            {"ColumnAmountO3"},
        ),
        "another rank": (
            describe_structure("SWATH", name, SIZES, {**DATA, "Radiance": ("nTimes",)}, {}),
            {"Radiance"},
        ),
        "another swath": (describe_structure("SWATH", "other", SIZES, DATA, {}), set(DATA)),
        "a name twice": (
            describe_structure("SWATH", name, SIZES, {"Radiance": ("nTimes",) * 3}, {}),
            set(DATA),
        ),
        "two fields of one name": (
            describe_structure("SWATH", name, SIZES, DATA, {"Radiance": ("nTimes",)}),
            {"Radiance"},
        ),
        "no text": ("GROUP=SwathStructure\nGROUP=SWATH_1\nEND_GROUP=", set(DATA)),
        "no end": (wrong[:50], set(DATA)),
    }
    for what, (described, unnamed) in cases.items():
        path = write_eos(tmp_path / f"{what}.he5", described=described)
        native, found = name_natively(path, group), dims_of(open_fields(path))
        for field, dims in DATA.items():
            assert found[field] == (native[field] if field in unnamed else dims), what


@pytest.mark.parametrize("way", ["auto", "library"])
def test_damaged_or_deep_metadata_name_nothing_and_stop_nothing(tmp_path: Path, way: Any) -> None:
    deep = "GROUP=GRID_1\nGROUP=SWATH_1\n" * 20_000
    path = write_eos(tmp_path / "deep.he5", described=deep)
    with virtualds.set_options(hdf5=way):
        assert all("phony" in dim for dims in dims_of(open_fields(path)).values() for dim in dims)
        good = write_eos(tmp_path / "good.he5")
        assert dims_of(open_fields(good)) == DATA
        text = b"GROUP=SwathStructure"
        good.write_bytes(good.read_bytes().replace(text, bytes(len(text))))
        assert all("phony" in dim for dims in dims_of(open_fields(good)).values() for dim in dims)
        with h5py.File(good, "a") as file:
            del file["HDFEOS INFORMATION/StructMetadata.0"]
            file["HDFEOS INFORMATION/StructMetadata.0"] = h5py.SoftLink("/nowhere")
        assert all("phony" in dim for dims in dims_of(open_fields(good)).values() for dim in dims)


def test_a_dimension_without_a_limit_has_the_length_of_its_fields(tmp_path: Path) -> None:
    described = describe_structure("SWATH", "HIRDLS", SIZES | {"nTimes": -1}, DATA, GEOLOCATION)
    path = write_eos(tmp_path / "mls.he5", name="HIRDLS", described=described)
    assert dims_of(open_fields(path)) == DATA


# ---------------------------------------------------------------------- GPM


def write_gpm(path: Path, fields: Mapping[str, tuple[tuple[int, ...], str | None]]) -> Path:
    """A file of GPM: datasets by path, with the names of their axes in an attribute."""
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name, (shape, dims) in fields.items():
            dataset = file.create_dataset(name, data=random.random(shape, "f4"), chunks=shape)
            if dims is not None:
                dataset.attrs["DimensionNames"] = np.bytes_(dims)
    return path


def test_a_grid_of_gpm_has_the_dimensions_of_its_attributes(tmp_path: Path) -> None:
    path = write_gpm(
        tmp_path / "imerg.HDF5",
        {
            "Grid/precipitation": ((1, 6, 4), "time,lon,lat"),
            "Grid/lon": ((6,), "lon"),
            "Grid/lat": ((4,), "lat"),
            "Grid/time": ((1,), "time"),
            "Grid/lat_bnds": ((4, 2), "lat, latv"),
        },
    )
    found = virtualds.open_virtual_dataset(path, group="Grid")
    assert found["precipitation"].dims == ("time", "lon", "lat")
    assert found["lat_bnds"].dims == ("lat", "latv")
    assert set(found.indexes) == {"time", "lon", "lat"}
    assert found["precipitation"].attrs["DimensionNames"] == "time,lon,lat"
    opened = xr.open_dataset(path, engine="virtual", group="Grid")
    assert opened["precipitation"].dims == ("time", "lon", "lat")
    files = [path, *(path.with_name(f"{n}.HDF5") for n in range(3))]
    for copy in files[1:]:
        copy.write_bytes(path.read_bytes())
    many = virtualds.open_virtual_mfdataset(
        files, combine="nested", concat_dim="time", group="Grid", overlap="keep"
    )
    assert many["precipitation"].shape == (4, 6, 4)


def test_variables_of_a_group_agree_on_their_dimensions(tmp_path: Path) -> None:
    path = write_gpm(
        tmp_path / "dpr.HDF5",
        {
            "FS/Latitude": ((7, 5), "nscan,nray"),
            "FS/SLV/rate": ((7, 5, 3), "nscan,nray,nbin"),
            "FS/SLV/unnamed": ((7, 5), None),
            # of another length below, where groups share their dimensions
            "FS/height": ((7, 5, 4), "nscan,nray,nbin"),
            # a name for two lengths, and one of another variable
            "HS/one": ((7, 3), "nscan,nfreq"),
            "HS/two": ((7, 2), "nscan,nfreq"),
            "HS/four": ((4,), "flag"),
            "HS/flag": ((7, 2), "nscan,ncode"),
        },
    )
    tree = virtualds.open_virtual_datatree(path)
    for group in ("FS", "FS/SLV", "HS"):
        native = name_natively(path, group)
        alone = virtualds.open_virtual_dataset(path, group=group)
        assert dims_of(tree[group].to_dataset(inherit=False)) == dims_of(alone)
        for name, dims in dims_of(alone).items():
            kept = {
                "rate": ("nscan", "nray", native[name][-1]),
                "height": ("nscan", "nray", native[name][-1]),
                "unnamed": native[name],
                "one": ("nscan", native[name][-1]),
                "two": ("nscan", native[name][-1]),
                "four": native[name],
                "flag": ("nscan", "ncode"),
                "Latitude": ("nscan", "nray"),
            }
            assert dims == kept[str(name)]


def test_scales_name_axes_before_attributes(tmp_path: Path) -> None:
    path = tmp_path / "scales.HDF5"
    with h5py.File(path, "w") as file:
        file.create_dataset("lat", data=np.arange(3.0)).make_scale("lat")
        field = file.create_dataset("field", data=np.zeros((3, 2)))
        field.dims[0].attach_scale(file["lat"])
        field.attrs["DimensionNames"] = np.bytes_("nlat,nlon")
        grows = file.create_dataset("grows", (2, 5), "f4", maxshape=(None, 5), chunks=(1, 5))
        grows.attrs["DimensionNames"] = "ntime,nother"
        file.create_dataset("odd", data=np.zeros(4)).attrs["DimensionNames"] = 7
        file.create_dataset("bad", data=np.zeros(9)).attrs["DimensionNames"] = "phony_dim_1"
    found = virtualds.open_virtual_dataset(path)
    assert found["field"].dims == ("lat", "nlon")
    assert found["grows"].dims == ("ntime", "nother")
    assert found.encoding["unlimited_dims"] >= {"ntime"}
    # the names that netCDF counts, for which a name is also invented where the file has one
    assert (found["bad"].dims, found["odd"].dims) == (("phony_dim_1",), ("phony_dim_5",))
