"""One flipped byte in a member of a zip archive is an error wherever its checksum can tell."""

from __future__ import annotations

import os
import zipfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from products import looped

import virtualds
from virtualds.arrays.sources import MAX_VERIFIED_BYTES
from virtualds.errors import ReadError, VirtualdsError
from virtualds.source_file import compute_checksum, compute_tail_checksum

NUMBERS = np.random.default_rng(5).normal(size=(40, 50)).astype("f4")


def flipped(path: Path, place: int, bit: int = 1) -> Path:
    """Flip a bit of a file, and leave its time as it was."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return path


def written(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def read(path: Path) -> np.ndarray:
    return virtualds.open_virtual_dataset(path).v.values


def zipped(path: Path, folder: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, str(file.relative_to(folder)))
    return path


@looped("head", [0, 1, 128, 5000])
@looped("rest", [0, 1, 7, 4096, 100_001])
def test_the_checksum_of_a_rest_follows_from_that_of_all(head: int, rest: int) -> None:
    data = np.random.default_rng(head).bytes(head + rest)
    assert compute_tail_checksum(data[:head], compute_checksum(data), rest) == compute_checksum(
        data[head:]
    )


@pytest.mark.parametrize("order", ["C", "F"])
def test_every_flipped_byte_of_an_array_in_npz_is_an_error(order: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", v=np.asarray(NUMBERS[:3, :4], order=order), w=NUMBERS)
    sound = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        length = archive.getinfo("v.npy").file_size
    begin = sound.index(b"\x93NUMPY")
    for place in range(begin, begin + length):
        path.write_bytes(sound)
        flipped(path, place)
        with pytest.raises(VirtualdsError):
            read(path)
    path.write_bytes(sound)
    flipped(path, begin)
    found = virtualds.open_virtual_dataset(path, drop_variables="v")
    np.testing.assert_array_equal(found.w, NUMBERS)


def test_arrays_without_values_are_checked_too(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", v=NUMBERS[:0])
    assert read(path).shape == (0, 50)
    flipped(path, path.read_bytes().index(b"(0, 50)") + 4)
    with pytest.raises(VirtualdsError, match="CRC-32"):
        read(path)


def test_a_part_of_a_small_array_in_npz_is_checked_too(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", v=NUMBERS)
    flipped(path, path.read_bytes().index(NUMBERS.tobytes()) + 1000)
    ds = virtualds.open_virtual_dataset(path)
    with pytest.raises(ReadError, match="CRC-32"):
        np.asarray(ds.v[0, 0])


def test_a_part_of_a_large_array_in_npz_is_read_alone(tmp_path: Path) -> None:
    written(
        tmp_path / "a.npz",
        v=np.zeros(MAX_VERIFIED_BYTES + 1, "u1"),
        w=np.zeros(MAX_VERIFIED_BYTES, "u1"),
    )
    with counting_server(tmp_path) as (url, counts):
        ds = virtualds.open_virtual_dataset(f"{url}/a.npz")
        before = counts.sent
        np.asarray(ds.v[MAX_VERIFIED_BYTES // 2])
        assert counts.sent - before < 2**20
        np.asarray(ds.w[MAX_VERIFIED_BYTES // 2])
        assert counts.sent - before >= MAX_VERIFIED_BYTES


def test_a_part_of_a_large_chunk_in_a_zipped_zarr_store_is_read_alone(tmp_path: Path) -> None:
    """Without codecs, a checksum would have all of it read."""
    ds = xr.Dataset({"v": ("x", np.arange(MAX_VERIFIED_BYTES // 4 + 1, dtype="f4"))})
    encoding: Any = {"v": {"chunks": ds.v.shape, "compressors": None}}
    ds.to_zarr(tmp_path / "s", zarr_format=3, encoding=encoding, consolidated=False)
    zipped(tmp_path / "s.zip", tmp_path / "s")
    with counting_server(tmp_path) as (url, counts):
        found = virtualds.open_virtual_dataset(f"{url}/s.zip")
        before = counts.sent
        assert np.asarray(found.v[1000]) == 1000
        assert counts.sent - before < 2**20


@pytest.mark.parametrize("codecs", [True, False])
@pytest.mark.parametrize("version", [2, 3])
def test_flipped_bytes_of_a_zipped_zarr_store_are_errors(
    version: int, codecs: bool, tmp_path: Path
) -> None:
    plain = {"compressors": None}
    encoding: Any = {"v": {"chunks": (20, 50), **({} if codecs else plain)}}
    ds = xr.Dataset({"v": (("y", "x"), NUMBERS)})
    ds.to_zarr(tmp_path / "s", zarr_format=version, encoding=encoding, consolidated=False)
    path = zipped(tmp_path / "s.zip", tmp_path / "s")
    sound = path.read_bytes()
    np.testing.assert_array_equal(virtualds.open_virtual_dataset(path).v, NUMBERS)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    for member in members:
        begin = member.header_offset + 30 + len(member.filename)
        for place in range(begin, begin + member.file_size, 1 + member.file_size // 3):
            path.write_bytes(sound)
            flipped(path, place)
            with pytest.raises((VirtualdsError, OSError), match="CRC-32"):
                read(path)


def test_checksums_of_members_are_kept_in_sets_and_in_copies(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", v=NUMBERS)
    ds = virtualds.open_virtual_dataset(path)
    ds.virtual.to_manifest(tmp_path / "refs.zarr")
    ds.virtual.materialize(tmp_path / "own.zarr")
    flipped(path, path.read_bytes().index(NUMBERS.tobytes()) + 8)
    with pytest.raises(ReadError, match="CRC-32"):
        read(tmp_path / "refs.zarr")
    with pytest.raises(ReadError, match="CRC-32"):
        virtualds.open_virtual_dataset(path).virtual.materialize(tmp_path / "damaged.zarr")
    np.testing.assert_array_equal(virtualds.open_virtual_dataset(tmp_path / "own.zarr").v, NUMBERS)


# ---------------------------------------------------------------------- deflated members


def test_every_flipped_byte_of_a_deflated_array_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, v=NUMBERS[:3, :4], w=NUMBERS)
    sound = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        begin = sound.index(b"v.npy") + 5 + 20
        length = archive.getinfo("v.npy").compress_size
    harmless = 0
    for place, bit in product(range(begin, begin + length), (1, 32)):
        path.write_bytes(sound)
        flipped(path, place, bit)
        try:
            np.testing.assert_array_equal(read(path), NUMBERS[:3, :4])
            harmless += 1
        except VirtualdsError:
            pass
    # bits behind the last symbol mean nothing
    assert harmless <= 2


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".zarr"])
def test_references_of_every_format_check_deflated_members(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, v=NUMBERS)
    virtualds.open_virtual_dataset(path).virtual.to_manifest(tmp_path / f"refs{suffix}")
    # the checksum in the header of the member (APPNOTE, 4.3.7)
    flipped(path, 14)
    with (
        xr.open_dataset(tmp_path / f"refs{suffix}", engine="virtual") as found,
        pytest.raises(ReadError, match="CRC-32"),
    ):
        found.v.load()


def test_verify_inflates_deflated_members(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, v=NUMBERS, w=np.zeros(3 * 2**20))
    ds = virtualds.open_virtual_dataset(path)
    assert ds.virtual.verify(against="native").ok
    flipped(path, 3000)
    found = ds.virtual.verify(against="native")
    assert "member 'v.npy'" in str(found)
    assert "member 'w.npy'" not in str(found)


# ---------------------------------------------------------------------- verify


def test_verify_checks_members_of_which_parts_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    xr.Dataset({"v": (("y", "x"), NUMBERS)}).to_netcdf(folder / "a.nc", engine="netcdf4")
    path = zipped(tmp_path / "a.zip", folder)
    ds = virtualds.open_virtual_dataset(path)
    assert ds.virtual.verify(against="native").ok
    flipped(path, path.read_bytes().index(NUMBERS.tobytes()) + 40)
    found = ds.virtual.verify(against="native")
    assert found.counts["undecodable"] == 1
    assert "member 'a.nc'" in str(found)


def test_verify_leaves_members_alone_that_are_not_read(tmp_path: Path) -> None:
    """No reference leads into members that are packed by other methods than deflate."""
    ds = xr.Dataset({"v": (("y", "x"), NUMBERS)})
    ds.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "a.nc", "a.nc")
        archive.writestr("read me.txt", "text " * 1000, zipfile.ZIP_BZIP2)
    found = virtualds.open_virtual_dataset(f"zip://a.nc::{tmp_path / 'a.zip'}")
    assert "undecodable" not in found.virtual.verify(against="native").counts


def test_verify_checks_arrays_that_are_too_large_to_be_read_whole(tmp_path: Path) -> None:
    large = np.arange(MAX_VERIFIED_BYTES // 4 + 1, dtype="f4")
    path = written(tmp_path / "a.npz", v=large, w=NUMBERS)
    ds = virtualds.open_virtual_dataset(path)
    assert ds.virtual.verify(against="native").ok
    flipped(path, path.read_bytes().index(large[1000:3000].tobytes()))
    found = ds.virtual.verify(against="native")
    # numpy refuses the member
    assert found.counts == {"undecodable": 1, "not compared": 1}
    assert "member 'v.npy'" in str(found)
    assert ds.virtual.verify(against="range").ok


def test_verify_checks_every_member_on_a_server_whatever_the_sample(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", **{f"v{number}": NUMBERS + number for number in range(20)})
    with counting_server(tmp_path) as (url, _):
        ds = virtualds.open_virtual_dataset(f"{url}/a.npz")
        flipped(path, path.read_bytes().index((NUMBERS + 7).tobytes()))
        found = ds.virtual.verify(sample=1, against="native")
        assert any("member 'v7.npy'" in problem.message for problem in found.problems)


def test_a_damaged_list_of_members_is_a_problem_and_no_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", v=NUMBERS)
    ds = virtualds.open_virtual_dataset(path)
    flipped(path, path.read_bytes().rindex(b"PK\1\2"))
    found = ds.virtual.verify(against="native")
    assert not found.ok
    assert "unreachable" in found.counts
