"""The location of a file or set, and its reader, are found once, where the user names it."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import virtualds
from virtualds.checks import describe
from virtualds.datasets import location as locations
from virtualds.datasets.location import Location

VALUES = np.arange(12.0).reshape(3, 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a file, an archive that holds it alone, and sets of it."""
    monkeypatch.chdir(tmp_path)
    xr.Dataset({"v": (("y", "x"), VALUES)}).to_netcdf("a.nc")
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.write("a.nc")
    for name in ("a.json", "a.zarr", "a.set"):
        form = {"a.set": "zarr-v3"}.get(name)
        virtualds.open_virtual_dataset("a.nc").virtual.to_manifest(name, format=form)
    return tmp_path


def test_a_location_is_absolute_and_knows_what_was_given(folder: Path) -> None:
    location = Location.of("a.nc", {"anon": True})
    assert location.url == f"file://{folder}/a.nc"
    assert (location.given, location.target, location.format) == ("a.nc", location.url, None)
    assert location.options == {"anon": True}
    assert Location.of(Path("a.nc")) == Location.of_url("a.nc")


def test_a_location_shows_no_secrets() -> None:
    location = Location.of("https://user:word@host/a.nc", {"key": "hidden"})
    assert "word" not in repr(location)
    assert "hidden" not in repr(location)


@pytest.mark.parametrize("wrong", [3, None, [b"a.nc"], ["a.nc"]])
def test_objects_that_are_no_paths_or_urls_are_refused(wrong: Any) -> None:
    for of in (Location.of, Location.of_url):
        with pytest.raises(TypeError, match="a path or url is expected, got"):
            of(wrong)


def test_a_dataset_keeps_the_name_that_was_given(folder: Path) -> None:
    for name in ("a.nc", "a.json", str(folder / "a.nc")):
        assert virtualds.open_virtual_dataset(name).encoding["source"] == name
        assert virtualds.open_virtual_datatree(name).encoding["source"] == name


DOORS: dict[str, Callable[[str], Any]] = {
    "open_virtual_dataset": virtualds.open_virtual_dataset,
    "open_virtual_datatree": virtualds.open_virtual_datatree,
    "engine": lambda name: xr.open_dataset(name, engine="virtual"),
    "describe": describe,
    "convert": lambda name: virtualds.convert(name, "out.json", mode="w"),
    "zarr_store": virtualds.zarr_store,
}


@pytest.mark.parametrize("name", ["a.nc", "a.zip", "a.json", "a.zarr"])
@pytest.mark.parametrize("door", DOORS)
def test_the_reader_of_a_file_or_set_is_chosen_once(
    door: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counted(monkeypatch)
    DOORS[door](name)
    assert asked == [f"file://{folder}/{name}"]


def test_of_a_verified_file_what_reads_it_is_asked_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = virtualds.open_virtual_dataset("a.nc", loadable_variables=[])
    asked = counted(monkeypatch)
    assert dataset.virtual.verify(None, "native").ok
    assert asked == [f"file://{folder}/a.nc"]


def test_of_a_set_without_a_suffix_what_is_there_is_asked_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = counted(monkeypatch)
    assert len(virtualds.snapshots("a.set")) == 1
    virtualds.expire_snapshots("a.set")
    assert asked == 2 * [f"file://{folder}/a.set"]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the urls of which it is asked from now on what reads them, archives as a whole."""
    asked: list[str] = []
    detect = locations.detect_reader

    def counting(url: str, options: Any) -> Any:
        if "::" not in url:
            asked.append(url)
        return detect(url, options)

    monkeypatch.setattr(locations, "detect_reader", counting)
    return asked


def test_the_only_file_of_an_archive_is_described_and_converted(folder: Path) -> None:
    assert describe("a.zip").format == "hdf5"
    virtualds.convert("a.zip", "a.refs.json")
    np.testing.assert_array_equal(xr.load_dataset("a.refs.json", engine="virtual").v, VALUES)
    # a set in an archive counts as remote, so what it may refer to is named
    with zipfile.ZipFile("set.zip", "w") as archive:
        archive.write("a.json")
    virtualds.convert("set.zip", "b.refs.json", allow=folder)
    np.testing.assert_array_equal(xr.load_dataset("b.refs.json", engine="virtual").v, VALUES)
