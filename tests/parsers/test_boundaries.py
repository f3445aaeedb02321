"""Headers that end, and parts that begin, exactly where blocks do: of formats, and of reading."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import eccodes
import netCDF4
import numpy as np
import pytest
import tifffile
import xarray as xr
from counting_server import counting_server
from products import few_quick, looped

import virtualds
from virtualds import FormatError
from virtualds.datasets.location import HEAD_BYTES
from virtualds.stores.archive import READ_AHEAD, Index, read_tar_index, read_zip_index
from virtualds.stores.block_cache import FIRST_PAGES, PAGE_SIZE

EDGES = (HEAD_BYTES, PAGE_SIZE, FIRST_PAGES * PAGE_SIZE)
"""What is read first of a local file, blocks of a remote one, and what is read first of it."""
IMAGE = np.arange(35, dtype="u2").reshape(5, 7)
edges = pytest.mark.parametrize("edge", EDGES)


def assert_same(folder: Path, values: dict[str, tuple[str, np.ndarray]]) -> None:
    """Files of a folder have these values in a variable each, locally and on a server."""
    with counting_server(folder) as (url, _):
        for name, (variable, expected) in values.items():
            for place in (folder, url):
                found = virtualds.open_virtual_dataset(f"{place}/{name}")[variable]
                np.testing.assert_array_equal(found.values, expected, err_msg=f"{place}/{name}")


@edges
def test_a_directory_of_tiff_may_lie_across_a_block_or_end_the_file(
    edge: int, tmp_path: Path
) -> None:
    file = io.BytesIO()
    tifffile.imwrite(file, IMAGE, byteorder="<")
    data = file.getvalue()
    [begin] = struct.unpack_from("<I", data, 4)
    [count] = struct.unpack_from("<H", data, begin)
    # TIFF 6.0, section 2: a count, entries of 12 bytes, and where the next directory is
    directory = data[begin : begin + 2 + 12 * count + 4]
    values = {}
    inside = (0, 1, 2, 3, 14, len(directory) - 4, len(directory) - 1)
    for place in (edge + 1, *(edge - n for n in (*inside, len(directory), len(directory) + 1))):
        moved = bytearray(data.ljust(place, b"\0"))
        struct.pack_into("<I", moved, 4, place)
        name = f"{place}.tif"
        (tmp_path / name).write_bytes(bytes(moved) + directory)
        values[name] = "band_data", IMAGE
    assert_same(tmp_path, values)


@edges
def test_a_classic_header_may_end_where_reading_stops(edge: int, tmp_path: Path) -> None:
    numbers = np.arange(5, dtype="f4")
    values = {}
    for padding in range(edge - 160, edge - 80, 4):
        name = f"{padding}.nc"
        with netCDF4.Dataset(tmp_path / name, "w", format="NETCDF3_CLASSIC") as file:
            file.createDimension("x", 5)
            file.note = "n" * padding
            file.createVariable("u", "f4", ("x",))[:] = numbers
        values[name] = "u", numbers
    assert_same(tmp_path, values)


@pytest.mark.parametrize("form", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"])
def test_classic_names_and_attributes_of_every_length_are_read(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    for length in (1, 2, 3, 4, 5, 7, 8, 9, 255, 256):
        for count in (0, 1, 3, 4, 5, 8):
            with netCDF4.Dataset(path, "w", format=form) as file:
                file.createDimension("x" * length, 5)
                file.createDimension("t" * length, None)
                dims = ("t" * length, "x" * length)
                made = file.createVariable("v" * length, "i2", dims)
                made[:] = np.arange(15).reshape(3, 5)
                file.createVariable("w" * length, "i1", dims[:1])[:] = np.arange(3)
                made.setncattr("s" * length, "s" * count)
                if count:
                    made.setncattr("a" * length, np.arange(count, dtype="i1"))
                    file.setncattr("b" * length, np.arange(count, dtype="i2"))
            with xr.open_dataset(path, engine="netcdf4") as expected:
                found = virtualds.open_virtual_dataset(path).virtual.load()
                xr.testing.assert_identical(found, expected.load())


@edges
def test_arrays_of_numpy_may_end_where_reading_stops(edge: int, tmp_path: Path) -> None:
    values: dict[str, tuple[str, np.ndarray]] = {}
    for more in range(-3, 4):
        array = np.arange(edge - 128 + more).astype("u1")
        np.save(tmp_path / f"{more}.npy", array)
        np.savez(tmp_path / f"{more}.npz", first=array, second=IMAGE)
        values |= {f"{more}.npy": ("array", array), f"{more}.npz": ("second", IMAGE)}
    assert_same(tmp_path, values)


@pytest.mark.parametrize("edition", few_quick([1, 2], [2]))
def test_messages_of_grib_may_begin_where_blocks_do(edition: int, tmp_path: Path) -> None:
    handle = eccodes.codes_grib_new_from_samples(f"regular_ll_sfc_grib{edition}")
    first = eccodes.codes_get_message(handle)
    eccodes.codes_set(handle, "dataDate", 20200102)
    second = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    (tmp_path / "plain.grib").write_bytes(first + second)
    plain = virtualds.open_virtual_dataset(tmp_path / "plain.grib")
    [variable] = plain.data_vars
    expected = plain[variable].values
    assert len(expected) == 2
    values = {"plain.grib": (variable, expected)}
    for edge in (HEAD_BYTES, PAGE_SIZE):
        # between the messages, and behind them
        for place in (*range(edge - 17, edge + 2, 3), edge - 4, edge - len(second)):
            (tmp_path / f"{place}.grib").write_bytes(first.ljust(place, b"\0") + second)
            (tmp_path / f"{place}_behind.grib").write_bytes((first + second).ljust(place, b"\0"))
            values |= {f"{place}{end}.grib": (variable, expected) for end in ("", "_behind")}
    assert_same(tmp_path, values)


# ---------------------------------------------------------------------- archives


def members_of_tar(form: int) -> Iterator[dict[str, bytes]]:
    """Names and sizes around those at which headers, blocks and records of tar are full."""
    for length in (1, 99, 100, 101, 155, 156, 255, 256, 511, 512, 513, 1024):
        name = "/".join(["d" * 50] * (length // 51) + ["f" * (length % 51 or 1)])
        if form == tarfile.USTAR_FORMAT and length > 156:
            continue
        for size in (
            0,
            1,
            511,
            512,
            513,
            10240 - 1536,
            10240 - 512,
            10240,
            READ_AHEAD - 512,
            READ_AHEAD,
        ):
            yield {name: b"x" * size}
            yield {name: b"x" * size, "last": b"abc"}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_of_tar_are_found_at_every_boundary(form: int) -> None:
    for members in members_of_tar(form):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as archive:
            for name, content in members.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        assert_indexed(read_tar_index, file.getvalue(), members)


def assert_indexed(read_index: object, data: bytes, members: dict[str, bytes]) -> None:
    index: Index = read_index(  # type: ignore[operator]
        lambda ranges: [data[start : start + length] for start, length in ranges],
        len(data),
        "here",
    )
    found = {
        name: data[member.offset : member.offset + member.length]
        for name, member in index.items()
        if member.offset is not None
    }
    assert found == members


@looped("comment", [0, 1, 65512, 65513, 65514, 65535])
@looped("count", [0, 1, 100, 900])
def test_members_of_zip_are_found_whatever_follows_them(comment: int, count: int) -> None:
    members = {f"{n:05}" + "n" * (n % 50): b"x" * (n % 300) for n in range(count)}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = b"c" * comment
        for name, content in members.items():
            archive.writestr(name, content)
    assert_indexed(read_zip_index, file.getvalue(), members)


def test_an_archive_without_members_says_so(tmp_path: Path) -> None:
    zipfile.ZipFile(tmp_path / "a.zip", "w").close()
    tarfile.open(tmp_path / "a.tar", "w").close()
    with pytest.raises(FormatError, match="the archive is empty"):
        virtualds.open_virtual_dataset(tmp_path / "a.zip")
