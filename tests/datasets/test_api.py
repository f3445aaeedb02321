"""Opening one file and many: names, combinations and errors."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec
import pytest
import xarray as xr
from cases import CASES, Archive
from pools import quick_processes
from products import few_quick, looped

import virtualds
from virtualds import AccessError, FormatError, ManifestArray, UnsupportedError
from virtualds import open_virtual_dataset as open_one
from virtualds import open_virtual_mfdataset as open_many

# ---------------------------------------------------------------------- one file

NAMES: dict[str, Callable[[Path], Any]] = {
    "a path": lambda p: p,
    "a string": str,
    "a url": lambda p: f"file://{p}",
    "a local url": lambda p: f"local://{p}",
    "relative": lambda p: os.path.relpath(p),
    "with dots": lambda p: f"{p.parent}/../{p.parent.name}/{p.name}",
}


@pytest.mark.parametrize("which", NAMES)
def test_a_file_has_many_names(which: str, archive_files: list[Path]) -> None:
    ds = open_one(NAMES[which](archive_files[0]), loadable_variables=[])
    assert ds["t"].data.sources[0].url == f"file://{archive_files[0]}"
    expected = xr.load_dataset(archive_files[0])
    xr.testing.assert_identical(open_one(NAMES[which](archive_files[0])).virtual.load(), expected)


@pytest.mark.parametrize("name", ["a:b.nc", "a#b.nc", "a b.nc", "a%20b.nc", "ü[1].nc", "a?b*.nc"])
def test_names_are_taken_to_the_letter(name: str, tmp_path: Path) -> None:
    CASES["contiguous"].write(tmp_path / "plain.nc")
    (tmp_path / "plain.nc").rename(tmp_path / name)
    ds = open_one(tmp_path / name, loadable_variables=[])
    ds.virtual.to_manifest(tmp_path / f"{name}.json")
    again = xr.open_dataset(tmp_path / f"{name}.json", engine="virtual")
    xr.testing.assert_identical(again.load(), ds.virtual.load())


@pytest.mark.parametrize("name", [None, 3, [b"bytes.nc"], ["a.nc"]])
def test_objects_that_are_no_names_are_refused(name: Any) -> None:
    with pytest.raises(TypeError):
        open_one(name)


def test_the_source_is_noted(archive_files: list[Path]) -> None:
    assert open_one(archive_files[0]).encoding["source"] == str(archive_files[0])


def test_a_home_folder_is_found(archive_files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(archive_files[0].parent))
    assert "t" in open_one("~/2001.nc")


def test_a_reference_set_is_opened_like_a_source(archive_files: list[Path], tmp_path: Path) -> None:
    ds = open_one(archive_files[0], loadable_variables=[])
    ds.virtual.to_manifest(tmp_path / "refs.json")
    again = open_one(tmp_path / "refs.json", loadable_variables=[])
    assert isinstance(again["t"].data, ManifestArray)
    assert again["t"].data.has_same_references(ds["t"].data)
    again.virtual.to_manifest(tmp_path / "again.json")
    xr.testing.assert_identical(
        xr.open_dataset(tmp_path / "again.json", engine="virtual").load(),
        xr.load_dataset(archive_files[0]),
    )


def test_groups_are_opened_by_path(archive: Archive) -> None:
    path = archive.path("groups_root")
    assert set(open_one(path, group="a/b").variables) == {"w"}
    with pytest.raises(FileNotFoundError, match="'c'"):
        open_one(path, group="c")


def test_access_options_go_to_the_store(archive: Archive) -> None:
    fsspec.filesystem("memory").pipe("/api/a.nc", archive.path("contiguous").read_bytes())
    ds = open_one(
        "memory://api/a.nc", loadable_variables=[], storage_options={"asynchronous": False}
    )
    assert ds["v"].data.sources[0].options == {"asynchronous": False}
    xr.testing.assert_identical(ds.virtual.load(), archive.native("contiguous"))


@pytest.mark.parametrize("url", ["memory://api/missing.nc", "/not/there.nc", "file:///not/there"])
def test_a_missing_file_is_not_found(url: str) -> None:
    with pytest.raises(FileNotFoundError, match=url.rpartition("/")[2]):
        open_one(url)


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(FormatError, match="nonsense"):
        open_one("nonsense://bucket/a.nc")


def test_errors_name_file_and_variable(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["bad"] = h5py.SoftLink("nowhere")
    with pytest.raises(FormatError) as caught:
        open_one(tmp_path / "a.h5")
    assert "variable 'bad' of" in str(caught.value) and "a.h5" in str(caught.value)


def test_errors_are_of_one_tree_and_of_python_s_own() -> None:
    for error, builtin in {
        UnsupportedError: NotImplementedError,
        virtualds.CombineError: ValueError,
        FormatError: ValueError,
        virtualds.ReadError: OSError,
        AccessError: PermissionError,
    }.items():
        assert issubclass(error, builtin)
        assert issubclass(error, virtualds.VirtualdsError)


# ---------------------------------------------------------------------- many files


def years(paths: list[Path]) -> xr.Dataset:
    """Both years, as xarray joins them."""
    parts = [xr.load_dataset(path) for path in paths]
    return xr.concat(
        parts, dim="time", data_vars="minimal", coords="minimal", compat="override", join="exact"
    )


MANY: dict[str, Callable[[list[Path]], tuple[Any, dict[str, Any]]]] = {
    "by_coords": lambda p: (p, {}),
    "by_coords in any order": lambda p: (p[::-1], {}),
    "nested": lambda p: (p, {"combine": "nested", "concat_dim": "time"}),
    "nested lists": lambda p: (
        [[p[0]], [p[1]]], {"combine": "nested", "concat_dim": ["time", None]},
    ),
    "a list of one dimension": lambda p: (p, {"combine": "nested", "concat_dim": ["time"]}),
    "a tuple of strings": lambda p: (tuple(map(str, p)), {}),
    "a glob": lambda p: (f"{p[0].parent}/*.nc", {}),
    "a glob that descends": lambda p: (f"{p[0].parent}/**/200[12].nc", {}),
    "a url glob": lambda p: (f"file://{p[0].parent}/200?.nc", {}),
    "everything virtual": lambda p: (
        p, {"combine": "nested", "concat_dim": "time", "loadable_variables": []},
    ),
    "compared": lambda p: (p, {"compat": "equals", "join": "exact"}),
}  # fmt: skip


@looped("which", MANY)
def test_many_files_are_one_dataset(which: str, archive_files: list[Path]) -> None:
    paths, options = MANY[which](archive_files)
    found = open_many(paths, **options)
    expected = years(archive_files)
    loaded = found.virtual.load()
    if options.get("loadable_variables") == []:
        loaded = loaded.assign_coords({n: loaded[n].variable for n in ("time", "lat", "lon")})
    xr.testing.assert_identical(loaded, expected)


def test_files_of_different_variables_merge(tmp_path: Path) -> None:
    parts = [
        xr.Dataset({name: ("x", [n, 2.0])}, {"x": [1, 2]}, {"of": name, name: n})
        for n, name in enumerate("abc")
    ]
    paths = [tmp_path / f"{name}.nc" for name in "abc"]
    for part, path in zip(parts, paths, strict=True):
        part.to_netcdf(path)
    for given in (None, [None]):
        found = open_many(paths, combine="nested", concat_dim=given)
        assert all(isinstance(found[name].data, ManifestArray) for name in "abc")
        with xr.open_mfdataset(
            paths, combine="nested", concat_dim=given, compat="equals", join="outer"
        ) as native:
            xr.testing.assert_identical(found.virtual.load(), native.load())


@pytest.mark.parametrize("kind", [str, Path])
def test_attributes_are_those_of_the_file_that_is_named(tmp_path: Path, kind: Any) -> None:
    paths = [str(tmp_path / f"{n}.nc") for n in range(3)]
    for n, path in enumerate(paths):
        xr.Dataset({"v": ("x", [1.0])}, {"x": [n]}, {"of": n, f"only {n}": 1}).to_netcdf(path)
    for given in (None, paths[2]):
        found = open_many(paths, attrs_file=given and kind(given))
        with xr.open_mfdataset(paths, attrs_file=given) as native:
            assert found.attrs == native.attrs


def test_many_files_are_joined_virtually(archive_files: list[Path]) -> None:
    with virtualds.set_options(small_variable=0, load_limit=0):
        ds = open_many(archive_files)
    assert isinstance(ds["t"].data, ManifestArray)
    assert ds["t"].data.shape == (24, 6, 8)
    assert len(ds["t"].data.fragments) == 1


def test_one_file_is_many_files_too(archive_files: list[Path]) -> None:
    expected = xr.load_dataset(archive_files[0])
    for given in (archive_files[0], str(archive_files[0]), archive_files[:1]):
        xr.testing.assert_identical(open_many(given).virtual.load(), expected)


def label(dataset: xr.Dataset, name: str = "run") -> xr.Dataset:
    """Add a dimension; stands at the top of the module so that processes find it."""
    return dataset[["t"]].drop_vars("time").expand_dims(name)


EXECUTORS: dict[str, Callable[[], Any]] = {
    "none": lambda: nullcontext(None),
    "threads": lambda: ThreadPoolExecutor(2),
    "processes": lambda: quick_processes(2),
}


@pytest.mark.parametrize("which", few_quick(EXECUTORS, ("none", "threads")))
def test_files_are_opened_by_any_executor(which: str, archive_files: list[Path]) -> None:
    executor: Executor | None
    with EXECUTORS[which]() as executor:
        found = open_many(archive_files, parallel=executor)
    xr.testing.assert_identical(found.virtual.load(), years(archive_files))


def test_every_dataset_is_preprocessed(archive_files: list[Path]) -> None:
    found = open_many(
        archive_files,
        combine="nested",
        concat_dim="member",
        preprocess=functools.partial(label, name="member"),
    )
    expected = xr.concat(
        [label(xr.load_dataset(path), "member") for path in archive_files],
        dim="member", data_vars="minimal", coords="minimal", compat="override", join="outer",
        combine_attrs="override",
    )  # fmt: skip
    xr.testing.assert_identical(found.virtual.load(), expected)


@pytest.mark.parametrize("which", EXECUTORS)
def test_a_file_that_fails_is_named(which: str, archive_files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "broken.nc").write_bytes(b"no netCDF at all")
    with EXECUTORS[which]() as executor, pytest.raises(FormatError, match=r"broken\.nc"):
        open_many([archive_files[0], tmp_path / "broken.nc"], parallel=executor)


def test_files_that_do_not_fit_are_named(archive_files: list[Path], tmp_path: Path) -> None:
    xr.Dataset({"t": ("time", [1.0])}, {"time": [7.0]}).to_netcdf(tmp_path / "odd.nc")
    with pytest.raises((ValueError, TypeError)) as caught:
        open_many([archive_files[0], tmp_path / "odd.nc"], combine="nested", concat_dim="time")
    text = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "2001.nc" in text
    assert "odd.nc" in text


WRONG: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "no file": ([], {}, FileNotFoundError, "list of files is empty"),
    "a glob of nothing": ("/not/there/*.nc", {}, FileNotFoundError, "no file matches"),
    "a missing file": (["/not/there.nc"], {}, FileNotFoundError, "there.nc"),
    "attributes of another file": (None, {"attrs_file": "odd.nc"}, ValueError, "not one of the 2"),
    "by_coords with dimension": (None, {"concat_dim": "time"}, ValueError, "nested"),
    "an unknown combine": (None, {"combine": "auto"}, ValueError, "give one of"),
}


@pytest.mark.parametrize("which", WRONG)
def test_wrong_arguments_are_named(which: str, archive_files: list[Path]) -> None:
    paths, options, error, message = WRONG[which]
    with pytest.raises(error, match=message):
        open_many(archive_files if paths is None else paths, **options)


PACKINGS: tuple[dict[str, Any], ...] = (
    {"scale_factor": 0.1, "_FillValue": -1},
    {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1},
    {"_FillValue": -9, "dtype": "i4"},
)


def test_files_of_different_packing_are_decoded_each_by_its_own(tmp_path: Path) -> None:
    paths = []
    for number, packing in enumerate(PACKINGS):
        paths.append(tmp_path / f"{number}.nc")
        ds = xr.Dataset({"v": ("x", [1.0, 2.0, 3.0])})
        ds.to_netcdf(paths[-1], encoding={"v": {"dtype": "i2"} | packing})
    found = open_many(paths, combine="nested", concat_dim="x", loadable_variables=[])
    assert len(found["v"].data.pipelines) == 3
    expected = xr.concat([xr.load_dataset(p) for p in paths], dim="x", data_vars="all")
    xr.testing.assert_identical(found.virtual.load(), expected)
    with pytest.raises(UnsupportedError, match=r"change.*1\.nc, unlike .*0\.nc"):
        found.virtual.to_manifest(tmp_path / "refs.json")


def test_a_pattern_given_to_a_call_for_one_file_is_answered_with_the_call_for_many(
    tmp_path: Path,
) -> None:
    xr.Dataset({"t": ("x", [1.0])}).to_netcdf(tmp_path / "a[1].nc")
    assert virtualds.open_virtual_dataset(tmp_path / "a[1].nc")["t"].item() == 1
    for call in (
        virtualds.open_virtual_dataset,
        virtualds.open_virtual_datatree,
        virtualds.zarr_store,
    ):
        for pattern in (f"{tmp_path}/*.nc", f"{tmp_path}/b?.nc", "memory://nowhere/*.nc"):
            with pytest.raises(FileNotFoundError, match=r"call virtualds\.open_virtual_mfdataset"):
                call(pattern)
    with pytest.raises(FileNotFoundError, match="check the path"):
        virtualds.open_virtual_dataset(tmp_path / "b.nc")
