"""Who writes a remote set that nobody may open is told, once."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner

import virtualds
from virtualds_cli.program import main


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = []
    for number in range(3):
        found.append(tmp_path / f"{number}.nc")
        values = np.arange(4.0).reshape(1, 4) + number
        both = {"t": (("time", "x"), values), "u": (("time", "x"), -values)}
        xr.Dataset(both, {"time": [number]}).to_netcdf(found[-1])
    return found


@pytest.fixture
def place(s3_bucket: str, s3_server: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"{s3_bucket}/{uuid4().hex}", s3_server


def write(files: list[Path], url: str, options: dict[str, Any]) -> None:
    vds = virtualds.open_virtual_dataset(files[0])
    vds.virtual.to_manifest(url, storage_options=options)


def convert(files: list[Path], url: str, options: dict[str, Any]) -> None:
    local = files[0].with_suffix(".json")
    virtualds.open_virtual_dataset(files[0]).virtual.to_manifest(local)
    virtualds.convert(local, url, target_options=options)


def build(files: list[Path], url: str, options: dict[str, Any]) -> None:
    # the result is opened from the set
    choices: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
    virtualds.open_virtual_mfdataset(
        files, to=url, target_options=options, allow=files[0].parent, **choices
    )


WRITERS: dict[str, tuple[Callable[..., None], str]] = {
    "to_manifest, zarr-v3": (write, ".zarr"),
    "to_manifest, kerchunk JSON": (write, ".json"),
    "to_manifest, kerchunk Parquet": (write, ".parquet"),
    "convert": (convert, ".zarr"),
    "to=": (build, ".zarr"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_writers_of_sets_that_nobody_may_open_are_told_once(
    writer: str, files: list[Path], place: tuple[str, dict[str, Any]]
) -> None:
    (call, suffix), (url, options) = WRITERS[writer], place
    with pytest.warns(virtualds.AccessWarning) as told:
        call(files, url + suffix, options)
    [warning] = told
    assert warning.filename == __file__
    text = str(warning.message)
    assert text.startswith(url + suffix)
    assert str(files[0]) in text
    assert "rename_paths" in text
    count = len(files) if call is build else 1
    assert f"refers to {count} file{'s' * (count > 1)} of this machine" in text
    # it is true
    with pytest.raises(virtualds.AccessError):
        found = virtualds.open_virtual_dataset(url + suffix, storage_options=options)
        found["t"].values  # noqa: B018
    again = virtualds.open_virtual_dataset(
        url + suffix, storage_options=options, allow=files[0].parent
    )
    np.testing.assert_array_equal(again["t"].isel(time=0), np.arange(4.0))


def test_an_append_of_local_files_is_told_and_silenced_by_allow(
    files: list[Path], place: tuple[str, dict[str, Any]]
) -> None:
    url, options = f"{place[0]}.zarr", place[1]
    allow = files[0].parent
    with pytest.warns(virtualds.AccessWarning):
        write(files, url, options)
    first, second = (virtualds.open_virtual_dataset(file) for file in files[1:])
    with pytest.raises(virtualds.AccessError):
        first.virtual.to_manifest(url, append_dim="time", storage_options=options)
    first.virtual.to_manifest(url, append_dim="time", storage_options=options, allow=allow)
    second.virtual.to_manifest(url, append_dim="time", storage_options=options, allow=allow)
    found = virtualds.open_virtual_dataset(url, storage_options=options, allow=allow)
    assert found.sizes["time"] == 3


def test_no_warning_for_what_readers_may_open(
    files: list[Path], place: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    url, options = place
    vds = virtualds.open_virtual_dataset(files[0])
    moved = vds.virtual.rename_paths({str(tmp_path): "s3://bucket/data"})
    # warnings are errors in these tests
    moved.virtual.to_manifest(f"{url}.zarr", storage_options=options)
    vds.virtual.to_manifest(tmp_path / "local.zarr", relative_paths=True)
    vds.virtual.to_manifest("memory://set.json")
    vds.load().virtual.to_manifest(f"{url}-loaded.zarr", storage_options=options)


def test_users_silence_the_warning(files: list[Path], place: tuple[str, dict[str, Any]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", virtualds.AccessWarning)
        write(files, f"{place[0]}.zarr", place[1])


def test_the_command_line_tells_in_a_line_on_stderr(
    files: list[Path], place: tuple[str, dict[str, Any]]
) -> None:
    (url, options), runner = place, CliRunner()
    with warnings.catch_warnings():
        warnings.simplefilter("default", virtualds.AccessWarning)
        done = runner.invoke(
            main,
            ["scan", str(files[0]), "-o", f"{url}.zarr", "--target-options", json.dumps(options)],
        )
    assert done.exit_code == 0, done.output
    [line] = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert str(files[0]) in line
    assert "warning" not in done.stdout
