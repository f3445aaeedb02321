"""``subchunk`` and ``inline_threshold``: chunks are cut and held on the way into a set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from transforms import assert_identical

import virtualds
from virtualds import ConflictError, ReadError, UnsupportedError
from virtualds.chunks.columns import INLINE

FORMATS = ("json", "parquet", "zarr")


def write_days(path: Path, first: int, count: int) -> None:
    """``a(time, y, x)``, uncompressed in one piece, ``z``, compressed, and ``time`` of days."""
    values = np.random.default_rng(first).normal(size=(count, 3, 4)).astype("f4")
    with netCDF4.Dataset(path, "w") as file:
        for name, size in (("time", count), ("y", 3), ("x", 4)):
            file.createDimension(name, size)
        file.createVariable("a", "f4", ("time", "y", "x"), contiguous=True)[:] = values
        file.createVariable("z", "f4", ("time", "y", "x"), zlib=True, chunksizes=(1, 3, 4))[:] = 2
        time = file.createVariable("time", "i4", ("time",))
        time.units = "days since 2001-01-01"
        time[:] = np.arange(first, first + count)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = []
    for number, (first, count) in enumerate(((0, 31), (31, 28), (59, 31))):
        paths.append(tmp_path / f"{number}.nc")
        write_days(paths[-1], first, count)
    return paths


def native(files: list[Path]) -> xr.Dataset:
    parts = [xr.load_dataset(path) for path in files]
    return xr.concat(parts, "time", data_vars="minimal")


def virtual(files: list[Path]) -> xr.Dataset:
    parts = [virtualds.open_virtual_dataset(path) for path in files]
    return xr.concat(parts, "time", data_vars="minimal", coords="minimal")


def reopened(target: Path, **options: Any) -> xr.Dataset:
    return virtualds.open_virtual_dataset(target, loadable_variables=[], **options)


# ---------------------------------------------------------------------- subchunk


@pytest.mark.parametrize("form", FORMATS)
def test_months_in_one_piece_go_out_as_chunks_of_a_day(
    form: str, files: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / f"refs.{form}"
    vds = virtual(files)
    vds.virtual.to_manifest(target, subchunk={"time": 1})
    assert_identical(xr.open_dataset(target, engine="virtual"), native(files))
    found = reopened(target)
    assert found["a"].data.nchunks == 90
    assert found["a"].encoding["chunksizes"] == (1, 3, 4)
    assert found["z"].data.nchunks == 90


@pytest.mark.parametrize("form", FORMATS)
def test_a_set_of_cut_chunks_grows_by_cut_chunks(
    form: str, files: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / f"refs.{form}"
    for path in files:
        vds = virtualds.open_virtual_dataset(path)
        vds.virtual.to_manifest(target, append_dim="time", subchunk={"time": 1})
    assert_identical(xr.open_dataset(target, engine="virtual"), native(files))
    assert reopened(target)["a"].data.nchunks == 90


def test_one_variable_is_cut_by_its_name(files: list[Path], tmp_path: Path) -> None:
    vds = virtualds.open_virtual_dataset(files[0], loadable_variables=[])
    vds.virtual.to_manifest(tmp_path / "refs.zarr", subchunk={"a": {"time": 10}})
    found = reopened(tmp_path / "refs.zarr")
    assert {name: found[name].data.nchunks for name in ("a", "z", "time")} == {
        "a": 4, "z": 31, "time": 1,
    }  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"(?s)compressed"):
        vds.virtual.to_manifest(tmp_path / "other.zarr", subchunk={"z": {"time": 1, "y": 1}})


def test_groups_are_cut_and_files_are_converted(files: list[Path], tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/": xr.Dataset(), "/g": virtual(files[:1])})
    tree.virtual.to_manifest(tmp_path / "tree.json", subchunk={"time": 1})
    found = virtualds.open_virtual_datatree(tmp_path / "tree.json")
    assert found["g/a"].data.nchunks == 31
    virtualds.convert(files[0], tmp_path / "refs.parquet", subchunk={"time": 1}, inline_threshold=0)
    assert reopened(tmp_path / "refs.parquet")["a"].data.nchunks == 31
    # from one set to the next
    virtualds.convert(
        tmp_path / "refs.parquet", tmp_path / "refs.json", subchunk={"time": 1, "y": 1}
    )
    assert reopened(tmp_path / "refs.json")["a"].data.nchunks == 93
    assert_identical(xr.open_dataset(tmp_path / "refs.json", engine="virtual"), native(files[:1]))


@pytest.mark.parametrize(
    ("subchunk", "error", "match"),
    [
        ({"tme": 1}, ValueError, "did you mean 'time'"),
        ({"time": 0}, ValueError, "at least 1"),
        ({"time": True}, ValueError, "at least 1"),
        ({"a": {"time": {}}}, TypeError, "give a dict"),
        (1, TypeError, "give a dict"),
        ({"y": 1}, UnsupportedError, "cut 'time' into pieces of 1"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused_before_anything_is_written(
    subchunk: Any, error: type[Exception], match: str, files: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(error, match=match):
        virtual(files).virtual.to_manifest(tmp_path / "refs.json", subchunk=subchunk)
    assert not (tmp_path / "refs.json").exists()


def test_a_wish_that_changes_nothing_is_refused(files: list[Path], tmp_path: Path) -> None:
    vds = virtual(files).drop_vars("a")
    vds.virtual.to_manifest(tmp_path / "refs.json", subchunk={"time": 1})
    with pytest.raises(UnsupportedError, match="no variable has uncompressed chunks"):
        vds.virtual.to_manifest(tmp_path / "refs.json", mode="w", subchunk={"time": 1, "y": 1})


# ---------------------------------------------------------------------- inline_threshold


def held(target: Path, name: str) -> int:
    """How many chunks of a variable are in the set."""
    fragments = reopened(target)[name].data.fragments
    return sum(int((f.manifest.loaded().file == INLINE).sum()) for f in fragments)


@pytest.mark.parametrize("form", FORMATS)
def test_small_chunks_are_held_in_the_set(form: str, files: list[Path], tmp_path: Path) -> None:
    target = tmp_path / f"refs.{form}"
    vds = virtual(files)
    most = int(vds["z"].data.manifest.length.max())
    vds.virtual.to_manifest(target, subchunk={"a": {"time": 1}}, inline_threshold=most)
    assert held(target, "z") == 90
    assert held(target, "a") == 90 * (most >= 3 * 4 * 4)
    expected = native(files)
    shutil.rmtree(tmp_path / "gone", ignore_errors=True)
    (tmp_path / "gone").mkdir()
    for path in files:
        path.rename(tmp_path / "gone" / path.name)
    np.testing.assert_array_equal(
        xr.open_dataset(target, engine="virtual")["z"].values, expected["z"].values
    )


def test_the_threshold_counts_bytes_chunk_by_chunk(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(60)))
    array = virtualds.ManifestArray.from_arrays(
        shape=(4,), chunks=(1,), dtype="V20", path=str(tmp_path / "a.bin"),
        offsets=[0, 10, 20, 30], lengths=[20, 20, 20, 20],
    )  # fmt: skip
    ds = xr.Dataset({"v": ("x", array)})
    for most, count in ((0, 0), (19, 0), (20, 4), (10**9, 4)):
        ds.virtual.to_manifest(tmp_path / "refs.json", mode="w", inline_threshold=most)
        assert held(tmp_path / "refs.json", "v") == count


@pytest.mark.parametrize("form", FORMATS)
def test_a_set_that_grows_holds_its_small_chunks(
    form: str, files: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / f"refs.{form}"
    for path in files:
        vds = virtualds.open_virtual_dataset(path).drop_vars("a")
        vds.virtual.to_manifest(target, append_dim="time", inline_threshold=1000)
    assert held(target, "z") == 90
    found = xr.open_dataset(target, engine="virtual")
    assert_identical(found, native(files).drop_vars("a"))


def test_near_chunks_of_a_remote_file_are_one_request(files: list[Path], tmp_path: Path) -> None:
    with counting_server(tmp_path) as (host, counts):
        vds = virtualds.open_virtual_dataset(f"{host}/0.nc").drop_vars("a")
        before = len(counts.requests)
        refs = vds.virtual.to_manifest(None, inline_threshold=1000)
        assert len(counts.requests) - before <= 2
    assert not [value for value in refs["refs"].values() if isinstance(value, list)]
    assert_identical(virtualds.open_virtual_dataset(refs), native(files[:1]).drop_vars("a"))


def test_equal_ranges_are_read_and_held_once(files: list[Path], tmp_path: Path) -> None:
    one = virtualds.open_virtual_dataset(files[0])["z"].isel(time=[0])
    many = xr.Dataset({"z": xr.concat([one] * 5, "n")})
    many.virtual.to_manifest(tmp_path / "refs.zarr", inline_threshold=1000)
    [fragment] = reopened(tmp_path / "refs.zarr")["z"].data.fragments
    assert len(set(fragment.manifest.loaded().inline)) == 1
    assert held(tmp_path / "refs.zarr", "z") == 5


@pytest.mark.parametrize("form", FORMATS)
def test_a_chunk_that_cannot_be_read_is_an_error_and_nothing_is_written(
    form: str, files: list[Path], tmp_path: Path
) -> None:
    vds = virtual(files)
    files[1].write_bytes(files[1].read_bytes()[:1000])
    target = tmp_path / f"refs.{form}"
    with pytest.raises(ReadError, match=r"1\.nc") as caught:
        vds.virtual.to_manifest(target, subchunk={"time": 1}, inline_threshold=1000)
    assert "variable 'a': " in str(caught.value)
    assert not target.exists()


def test_a_chunk_with_a_wrong_checksum_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(8))
    array = virtualds.ManifestArray.from_arrays(
        shape=(2,), chunks=(1,), dtype="i4", path=str(tmp_path / "a.bin"), offsets=[0, 4],
        lengths=4, checksums=[0x2144DF1C, 1],
    )  # fmt: skip
    ds = xr.Dataset({"v": ("x", array)})
    with pytest.raises(ReadError, match="CRC-32") as caught:
        ds.virtual.to_manifest(tmp_path / "refs.zarr", inline_threshold=4)
    assert "chunk (1,)" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("most", [-1, 1.5, "10", True])
def test_a_threshold_is_a_number_of_bytes(most: Any, files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give a number of bytes"):
        virtual(files).virtual.to_manifest(tmp_path / "refs.json", inline_threshold=most)


def test_kerchunk_sets_hold_inline_chunks_as_kerchunk_does(
    files: list[Path], tmp_path: Path
) -> None:
    vds = virtualds.open_virtual_dataset(files[0]).drop_vars("a")
    vds.virtual.to_manifest(tmp_path / "refs.json", inline_threshold=1000)
    refs = json.loads((tmp_path / "refs.json").read_text())["refs"]
    assert refs["z/0.0.0"].startswith("base64:")


def test_a_rival_is_noticed_though_chunks_are_read_for_the_set(
    files: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "refs.json"
    first, second = (virtualds.open_virtual_dataset(p).drop_vars("a") for p in files[:2])
    first.virtual.to_manifest(target, append_dim="time")
    stale = target.read_bytes()
    second.virtual.to_manifest(target, append_dim="time", inline_threshold=1000)
    assert target.read_bytes() != stale
    with pytest.raises((ConflictError, virtualds.CombineError)):
        second.virtual.to_manifest(target, append_dim="time", inline_threshold=1000)
