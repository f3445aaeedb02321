"""A path that leads into a set names a group of it, as in a Zarr store."""

from __future__ import annotations

from pathlib import Path

import pytest
import xarray as xr
from counting_server import counting_server
from transforms import assert_identical

import virtualds
from virtualds.checks import describe

SETS = ("refs.json", "refs.parquet", "refs.zarr")


@pytest.fixture
def folder(tmp_path: Path, archive_files: list[Path]) -> Path:
    """A folder with a set in each format, with another year in its group ``/M1/tas``."""
    for name in SETS:
        for year, group in zip(archive_files, (None, "/M1/tas"), strict=True):
            found = virtualds.open_virtual_dataset(year)
            found.virtual.to_manifest(tmp_path / name, group=group)
    return tmp_path


@pytest.mark.parametrize("name", SETS)
@pytest.mark.every
def test_a_path_into_a_set_opens_a_group(
    folder: Path, name: str, archive_files: list[Path]
) -> None:
    with xr.open_dataset(archive_files[1]) as native:
        expected = native.load()
    path = folder / name / "M1" / "tas"
    assert_identical(xr.open_dataset(path, engine="virtual"), expected)
    assert_identical(virtualds.open_virtual_dataset(path).load(), expected)
    assert_identical(
        virtualds.open_virtual_dataset(folder / name / "M1", group="tas").load(), expected
    )
    tree = virtualds.open_virtual_datatree(folder / name / "M1")
    assert list(tree.children) == ["tas"]
    assert describe(path).format in ("kerchunk-json", "kerchunk-parquet", "zarr-v3")


@pytest.mark.parametrize("name", SETS)
@pytest.mark.every
def test_a_path_to_no_group_says_which_there_are(folder: Path, name: str) -> None:
    with pytest.raises(
        FileNotFoundError, match=rf"{name}: .*there is no 'ta'; give one of \['tas'\]"
    ):
        virtualds.open_virtual_dataset(folder / name / "M1" / "ta")


def test_a_path_into_plain_zarr_is_opened_as_before(tmp_path: Path) -> None:
    plain = xr.Dataset({"a": ("x", [1.0, 2.0])})
    plain.to_zarr(tmp_path / "plain.zarr", group="below", zarr_format=3, consolidated=False)
    assert_identical(
        virtualds.open_virtual_dataset(tmp_path / "plain.zarr" / "below").load(), plain
    )


def test_a_file_in_a_folder_with_the_name_of_a_set_is_a_file(
    tmp_path: Path, archive_files: list[Path]
) -> None:
    folder = tmp_path / "year.zarr"
    folder.mkdir()
    (folder / "2001.nc").write_bytes(archive_files[0].read_bytes())
    assert virtualds.open_virtual_dataset(folder / "2001.nc").sizes["time"] == 12


def test_other_paths_take_no_further_requests(tmp_path: Path, archive_files: list[Path]) -> None:
    (tmp_path / "2001.nc").write_bytes(archive_files[0].read_bytes())
    with counting_server(tmp_path) as (url, counts):
        virtualds.open_virtual_dataset(f"{url}/2001.nc")
    assert len(counts.requests) == 1
