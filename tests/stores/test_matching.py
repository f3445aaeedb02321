"""Patterns stand for files, on disk and in stores, and never for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
import xarray as xr

import virtualds
from virtualds.stores.listing import find_matching_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files of awkward names."""
    for name in ("b.nc", "a.nc", "c[1].nc", "c1.nc", "deep/er/d.nc", "e?.nc", ".hidden.nc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


PATTERNS = {
    "?.nc": ["a.nc", "b.nc"],
    "[ab].nc": ["a.nc", "b.nc"],
    "**/d.nc": ["deep/er/d.nc"],
    # what there is under that very name is meant itself
    "c[1].nc": ["c[1].nc"],
    "e?.nc": ["e?.nc"],
    # and what is no pattern need not be there
    "missing.nc": ["missing.nc"],
    "https://host/a.nc?version=1&x=[2]": ["https://host/a.nc?version=1&x=[2]"],
    "zip://*.nc::a.zip": ["zip://*.nc::a.zip"],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_stands_for_the_files_of_that_name_in_order(pattern: str, folder: Path) -> None:
    assert find_matching_files([pattern]) == PATTERNS[pattern]


def test_patterns_are_kept_in_the_order_in_which_they_are_given(folder: Path) -> None:
    assert find_matching_files(["b*.nc", "missing.nc", "a*.nc"]) == ["b.nc", "missing.nc", "a.nc"]


def test_urls_with_a_scheme_are_patterns_too(folder: Path) -> None:
    assert find_matching_files([f"file://{folder}/?.nc"]) == [f"{folder}/a.nc", f"{folder}/b.nc"]


def test_a_pattern_without_files_is_an_error(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\*\.nc: no file matches"):
        find_matching_files(["a.nc", "none*.nc"])


def test_many_files_are_opened_by_a_pattern_of_a_store(tmp_path: Path) -> None:
    year = xr.Dataset({"t": ("time", [1.0, 2.0])}, {"time": [0, 1]})
    year.to_netcdf(tmp_path / "a[1].nc")
    data = (tmp_path / "a[1].nc").read_bytes()
    fsspec.filesystem("memory").pipe({"/matching/a.nc": data, "/matching/b.txt": b""})
    for pattern in ("memory://matching/*.nc", str(tmp_path / "a[1].nc")):
        found = virtualds.open_virtual_mfdataset(pattern)
        xr.testing.assert_identical(found.virtual.load(), year)
    assert virtualds.diagnose("memory://matching/*.nc").files == 1


def test_patterns_of_a_bucket(s3_bucket: str, s3_server: dict[str, Any]) -> None:
    filesystem = fsspec.filesystem("s3", **s3_server)
    for name in ("2002.nc", "2001.nc", "deep/2003.nc", "other.txt"):
        filesystem.pipe_file(f"{s3_bucket}/{name}", b"")
    found = find_matching_files([f"{s3_bucket}/20*.nc"], s3_server)
    assert found == [f"{s3_bucket}/2001.nc", f"{s3_bucket}/2002.nc"]
    assert find_matching_files([f"{s3_bucket}/**/2003.nc"], s3_server) == [
        f"{s3_bucket}/deep/2003.nc"
    ]
    with pytest.raises(FileNotFoundError, match="no file matches"):
        find_matching_files([f"{s3_bucket}/none*.nc"], s3_server)
