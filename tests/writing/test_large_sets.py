"""Changes of sets of many tables read the tables that list a file, and find all its chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import virtualds
from virtualds import ManifestArray
from virtualds.datasets.source_positions import find_positions, find_ranges
from virtualds.formats.zarr_manifests.set_files import SetFiles

STEPS, COLUMNS, LENGTH = 100, 60, 8
"""Steps and chunks along ``x`` of one append, too many for JSON, and the bytes of a chunk."""


def make_steps(folder: Path, first: int) -> xr.Dataset:
    """Return the dataset of some files of one step each, of two variables."""
    files = [folder / f"{number:04d}.nc" for number in range(first, first + STEPS)]
    size = 2 * COLUMNS * LENGTH
    for file in files:
        file.write_bytes(bytes(size))
    urls = np.array([file.as_uri() for file in files])
    offsets = np.broadcast_to(np.arange(COLUMNS) * LENGTH, (STEPS, COLUMNS))

    def make_array(begin: int) -> ManifestArray:
        return ManifestArray.from_arrays(
            shape=(STEPS, COLUMNS * 2),
            chunks=(1, 2),
            dtype="f4",
            path=np.broadcast_to(urls[:, np.newaxis], offsets.shape),
            offsets=offsets + begin,
            lengths=LENGTH,
        )

    dims = ("time", "x")
    arrays = {"u": (dims, make_array(0)), "v": (dims, make_array(COLUMNS * LENGTH))}
    return xr.Dataset(arrays, coords={"time": ("time", np.arange(first, first + STEPS))})


def test_dropping_a_file_reads_the_tables_that_list_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "refs.zarr"
    appended: list[set[str]] = []
    for first in range(0, 3 * STEPS, STEPS):
        before = {*list_tables(target)}
        make_steps(tmp_path, first).virtual.to_manifest(target, append_dim="time")
        appended.append({*list_tables(target)} - before)
    assert all(len(tables) == 2 for tables in appended)
    # a region makes one table of tiles of each variable, instead of one fragment after the other
    replaced = make_steps(tmp_path, 0).isel(time=slice(0, 90))
    replaced.virtual.to_manifest(target, region="auto", on_duplicate="replace")
    read = note_reads(monkeypatch)
    gone = tmp_path / f"{3 * STEPS - 1:04d}.nc"
    virtualds.drop_sources(target, [gone])
    tables = {path.rpartition("/")[0] for path in read if "manifest" in path}
    # the chunks of a region say where they are, so these are read, too
    assert appended[2] <= tables and not tables & (appended[0] | appended[1])
    monkeypatch.undo()
    left = virtualds.open_virtual_dataset(target)
    assert left.sizes["time"] == 3 * STEPS - 1
    assert (left["v"].isel(time=-1).values == 0).all()


def write_layers(folder: Path) -> xr.Dataset:
    """Return the dataset of a set whose variables have layers."""
    target = folder / "layers.zarr"
    for first in range(0, 3 * STEPS, STEPS):
        make_steps(folder, first).virtual.to_manifest(target, append_dim="time")
    replaced = make_steps(folder, 0).isel(time=slice(0, 90))
    replaced.virtual.to_manifest(target, region="auto", on_duplicate="replace")
    return virtualds.open_virtual_dataset(target)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_layers_are_found_along_the_axes_of_the_dataset(tmp_path: Path, axis: int) -> None:
    """A set stores them along its own axes."""
    whole = write_layers(tmp_path).expand_dims("run", axis=axis)
    target = tmp_path / "refs.zarr"
    whole.virtual.to_manifest(target)
    whole.virtual.to_manifest(target, append_dim="time", mode="replace-source")
    assert virtualds.open_virtual_dataset(target).sizes == whole.sizes
    last = (tmp_path / f"{3 * STEPS - 1:04d}.nc").as_uri()
    positions = find_positions(whole, "time", {last})
    assert np.flatnonzero(positions).tolist() == [3 * STEPS - 1]
    found = find_ranges(whole.transpose(), "time", {last})
    assert found == {last: [(3 * STEPS - 1, 3 * STEPS)]}


def test_an_append_to_layers_reads_no_table_of_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set notes the first and the last path of each record of a large table of files."""
    monkeypatch.setattr("virtualds.formats.zarr_manifests.parquet_table.MIN_LARGE_TABLE", 10)
    write_layers(tmp_path)
    read = note_reads(monkeypatch)
    make_steps(tmp_path, 3 * STEPS).virtual.to_manifest(tmp_path / "layers.zarr", append_dim="time")
    assert not [path for path in read if "/sources/" in path]


def list_tables(target: Path) -> list[str]:
    """Return the folders of tables of references, relative to the set."""
    return [path.relative_to(target).as_posix() for path in target.glob("*/manifest.*")]


def note_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every read of a file of a set adds its path."""
    read, read_file = list[str](), SetFiles.read

    def read_and_note(self: SetFiles, path: str) -> bytes:
        read.append(path)
        return read_file(self, path)

    monkeypatch.setattr(SetFiles, "read", read_and_note)
    return read
