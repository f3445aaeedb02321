"""``xr.open_dataset`` takes a pattern or a list, with or without a set that it keeps up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from counting_server import counting_server
from daily_files import days, native, written

import virtualds
from virtualds.backend import VirtualBackendEntrypoint
from virtualds.options import find_arguments
from virtualds.syncing import FILE_ARGUMENTS


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return [written(tmp_path / "data", f"{number}", days(4 * number)) for number in range(3)]


def lazy(files: Any, **how: Any) -> xr.Dataset:
    return xr.open_dataset(files, engine="virtual", **how)


WAYS: dict[str, Any] = {
    "a pattern": lambda paths: "data/*.nc",
    "a pattern of brackets": lambda paths: "data/[0-9].nc",
    "a list of paths": lambda paths: paths,
    "a list of names": lambda paths: [str(path) for path in paths],
    "a tuple": tuple,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dim", [{"concat_dim": "time"}, {}])
def test_many_files_are_opened_as_one_dataset(
    way: str, dim: dict[str, str], files: list[Path]
) -> None:
    given = WAYS[way](files)
    found = lazy(given, chunks={}, **dim)
    assert found["t"].chunks[0] == (2,) * 6
    xr.testing.assert_identical(found.load(), native(files))
    xr.testing.assert_identical(lazy(given, **dim).load(), native(files))


def test_decoders_are_those_of_xarray(files: list[Path]) -> None:
    for decoders in (
        {"decode_times": False},
        {"mask_and_scale": False},
        {"decode_cf": False},
        {"drop_variables": "n"},
        {"decode_times": xr.coders.CFDatetimeCoder(use_cftime=True)},
    ):
        how: Any = {"engine": "netcdf4", "data_vars": "minimal", "compat": "equals"}
        with xr.open_mfdataset(files, join="outer", **how, **decoders) as found:
            expected = found.load()
        xr.testing.assert_identical(lazy("data/*.nc", **decoders).load(), expected)


def test_pages_of_a_server_are_patterns_too(files: list[Path]) -> None:
    with counting_server(files[0].parent) as (url, _):
        found = lazy(f"{url}/*.nc", concat_dim="time", chunks={}).load()
    xr.testing.assert_identical(found, native(files))


def test_one_file_is_opened_as_before(files: list[Path]) -> None:
    odd = files[0].rename(files[0].with_name("a[1].nc"))
    xr.testing.assert_identical(lazy(odd).load(), native([odd]))
    xr.testing.assert_identical(lazy(str(odd)).load(), native([odd]))
    with pytest.raises(TypeError, match="overlap='first' is for many files"):
        lazy(odd, overlap="first")
    with pytest.raises(TypeError, match="did you mean 'concat_dim'"):
        lazy(odd, concat_dm="time")
    with pytest.raises(TypeError, match="concat_dim"):
        xr.open_datatree(odd, engine="virtual", concat_dim="time")


def test_each_argument_is_of_one_file_or_of_many() -> None:
    many = VirtualBackendEntrypoint.MANY_FILES_DEFAULTS.keys()
    one = find_arguments(virtualds.open_virtual_dataset).keys() | find_arguments(xr.open_dataset)
    # of one file all values are lazy, so that there is nothing to choose
    assert many & one == {"loadable_variables"}
    assert many - FILE_ARGUMENTS == {"references", "settle", "target_options"}
    combining = find_arguments(virtualds.open_virtual_mfdataset).keys()
    assert many <= combining | find_arguments(virtualds.sync).keys() | {"references"}


def test_nothing_is_no_dataset(files: list[Path]) -> None:
    for nothing in ("data/none*.nc", []):
        with pytest.raises(FileNotFoundError):
            lazy(nothing, concat_dim="time")


# ---------------------------------------------------------------------- references=


def test_a_set_is_made_kept_up_to_date_and_opened(files: list[Path]) -> None:
    how: Any = {"concat_dim": "time", "references": "refs.zarr", "settle": 0}
    late = files.pop(1).rename("late.nc")
    xr.testing.assert_identical(lazy("data/*.nc", **how).load(), native(files))
    xr.testing.assert_identical(lazy("refs.zarr").load(), native(files))
    files.insert(1, late.rename("data/1.nc"))
    written(Path("data"), "0", days(0, seed=9))
    found = lazy("data/*.nc", chunks={"time": 6}, **how)
    assert found["t"].chunks[0] == (6, 6)
    xr.testing.assert_identical(found.load(), native(files))
    assert lazy("data/*.nc", decode_times=False, **how).time.dtype == "int64"
    assert len(virtualds.snapshots("refs.zarr")) == 2


def test_opening_never_drops_anything(files: list[Path]) -> None:
    how: Any = {"concat_dim": "time", "references": "refs.json", "settle": 0}
    lazy("data/*.nc", **how)
    files[1].unlink()
    written(Path("data"), "3", days(12))
    assert lazy("data/*.nc", **how).sizes["time"] == 16
    for path in Path("data").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match="no file matches"):
        lazy("data/*.nc", **how)
    assert lazy("refs.json").sizes["time"] == 16


def test_a_set_that_cannot_be_made_yet_is_an_error_that_says_why(files: list[Path]) -> None:
    with pytest.raises(FileNotFoundError, match="3 files were modified less than 60 seconds ago"):
        lazy("data/*.nc", concat_dim="time", references="refs.zarr")
    with pytest.raises(TypeError, match="name the dimension"):
        lazy("data/*.nc", references="refs.zarr")


def test_a_set_whose_only_file_changed_a_moment_ago_is_opened_as_it_is(files: list[Path]) -> None:
    how: Any = {"concat_dim": "time", "references": "refs.zarr"}
    before = lazy("data/0.nc", settle=0, concat_dim="time", references="refs.zarr")
    written(Path("data"), "0", days(0, seed=9))
    again = lazy(["data/0.nc"], decode_times=False, **how)
    assert again.sizes == before.sizes
