"""``loadable_variables`` names variables that there are; a name without one is an error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import virtualds
from virtualds.checks import describe

NOPE: dict[str, Any] = {"loadable_variables": ["time", "nope"]}
MANY: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}


@pytest.fixture(scope="module", params=[1, 12], ids=["one file", "many files"])
def months(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    archive_files: list[Path],
) -> list[Path]:
    """Files of months, as many as are joined as datasets or as they are stored."""
    folder = tmp_path_factory.mktemp("months")
    found = []
    for number in range(request.param):
        with xr.open_dataset(archive_files[0]) as year:
            found.append(folder / f"{number:02d}.nc")
            year.isel(time=[number]).to_netcdf(found[-1])
    return found


@pytest.fixture
def files(months: list[Path], tmp_path: Path) -> list[Path]:
    return [Path(shutil.copy(path, tmp_path)) for path in months]


OPENERS: dict[str, Callable[..., Any]] = {
    "open_virtual_dataset": lambda files, **how: virtualds.open_virtual_dataset(files[0], **how),
    "open_virtual_datatree": lambda files, **how: virtualds.open_virtual_datatree(files[0], **how),
    "open_virtual_mfdataset": lambda files, **how: virtualds.open_virtual_mfdataset(
        files, **MANY, **how
    ),
    "with a cache": lambda files, **how: virtualds.open_virtual_mfdataset(
        files, cache=files[0].parent / "cache", **MANY, **how
    ),
    "to": lambda files, **how: virtualds.open_virtual_mfdataset(
        files, to=files[0].parent / "refs.zarr", **MANY, **how
    ),
    "open_virtual_mfdatatree": lambda files, **how: virtualds.open_virtual_mfdatatree(
        files, concat_dim="time", **how
    ),
    "the engine": lambda files, **how: xr.open_dataset(files, engine="virtual", **MANY, **how),
    "sync": lambda files, **how: virtualds.sync(
        files, files[0].parent / "refs.zarr", concat_dim="time", settle=0, **how
    ),
    "describe": lambda files, **how: describe(str(files[0]), **how),
}


@pytest.mark.parametrize("which", OPENERS)
def test_a_name_without_a_variable_is_refused_with_those_that_there_are(
    which: str, files: list[Path]
) -> None:
    message = (
        "loadable_variables 'nope': there is no such variable in .*; existing: lat, lon, t, time"
    )
    with pytest.raises(ValueError, match=message):
        OPENERS[which](files, **NOPE)
    assert not (files[0].parent / "refs.zarr").exists()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("which", OPENERS)
@pytest.mark.parametrize(
    "loadable", [["time", "t"], "n*", ["time", "[n]ope"], lambda name, _: name == "nope"]
)
def test_names_of_variables_and_patterns_are_taken(
    which: str, loadable: Any, files: list[Path]
) -> None:
    if not (which == "with a cache" and callable(loadable)):  # which no cache can tell apart
        OPENERS[which](files, loadable_variables=loadable)


def test_a_similar_name_is_suggested(archive_files: list[Path]) -> None:
    with pytest.raises(ValueError, match="did you mean 'time'"):
        virtualds.open_virtual_dataset(archive_files[0], loadable_variables="tme")


def test_a_variable_may_lie_in_a_single_group_or_file(
    tmp_path: Path, archive_files: list[Path]
) -> None:
    one, other = archive_files
    with xr.open_dataset(one) as year:
        year["mask"] = year["t"].isel(time=0, drop=True)
        xr.DataTree.from_dict({"/a": year}).to_netcdf(tmp_path / "tree.nc")
        year.to_netcdf(tmp_path / "mask.nc")
    how = {"loadable_variables": ["mask"]}
    tree = virtualds.open_virtual_datatree(tmp_path / "tree.nc", **how)
    assert tree["a/mask"].variable._in_memory
    found = virtualds.open_virtual_mfdataset([tmp_path / "mask.nc", other], **MANY, **how)
    assert found["mask"].variable._in_memory


def test_what_is_left_out_may_be_named(tmp_path: Path, archive_files: list[Path]) -> None:
    how: dict[str, Any] = {"loadable_variables": ["t"], "drop_variables": ["t", "never there"]}
    for which in ("open_virtual_dataset", "open_virtual_mfdataset", "open_virtual_datatree"):
        assert "t" not in OPENERS[which](archive_files, **how)
    (tmp_path / "broken.nc").write_bytes(b"\x89HDF\r\n\x1a\n")
    files = [*archive_files, tmp_path / "broken.nc"]
    found = OPENERS["open_virtual_mfdataset"](files, **NOPE, on_error="collect")
    assert len(found.virtual.report.left_out) == 1
    with pytest.raises(ValueError, match=r"; existing: lat, lon, t, time$"):
        virtualds.open_virtual_dataset(archive_files[0], drop_variables="gone", **NOPE)


@pytest.mark.parametrize("name", ["mask", "_mask", "m"])
def test_sync_may_name_what_only_the_set_has(
    name: str, tmp_path: Path, archive_files: list[Path]
) -> None:
    one, other = archive_files
    with xr.open_dataset(one) as year:
        year[name] = year["t"].isel(time=0, drop=True)
        year.to_netcdf(tmp_path / "1.nc")
    set_, how = tmp_path / "refs.zarr", {"concat_dim": "time", "settle": 0}
    virtualds.sync([tmp_path / "1.nc"], set_, loadable_variables=[name], **how)
    files = [tmp_path / "1.nc", other]
    with pytest.raises(ValueError, match=rf"'nope': .*{name}"):
        virtualds.sync(files, set_, **NOPE, **how)
    assert virtualds.sync(files, set_, loadable_variables=[name], **how).added
