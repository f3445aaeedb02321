"""HDF5 files of one structure are read together, and are what they are one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
from memory import peak

import virtualds
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.parser import SameStructureFiles
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.parsers.hdf5.alike_files import read_together
from virtualds.source_file import normalise_url

FILES = 6
Write = Callable[[Path, int], None]


def write_h5py(libver: str, **how: Any) -> Write:
    def write(path: Path, number: int) -> None:
        length = 3 + number % 4
        with h5py.File(path, "w", libver=libver) as file:
            file["x"] = np.arange(5.0)
            file["x"].make_scale("x")
            file.create_dataset("time", (length,), "f8", chunks=(2,), maxshape=(None,))
            file["time"][:] = 10 * number + np.arange(length)
            file["time"].make_scale("time")
            # moves all that follows
            file["time"].attrs["title"] = "y" * 40 if number else "z" * 40
            values = np.arange(length * 5.0).reshape(length, 5) + number
            file.create_dataset("v", data=values, chunks=(2, 3), maxshape=(None, 5), **how)
            for axis, name in enumerate(("time", "x")):
                file["v"].dims[axis].attach_scale(file[name])
            file["v"].attrs["note"] = "word " * (number + 1)
            file.attrs["number"] = number

    return write


def write_netcdf(path: Path, number: int) -> None:
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 5)
        file.setncattr_string("history", "run " * (number + 1))
        time = file.createVariable("time", "f8", ("time",))
        time.units = "days since 2000-01-01"
        v = file.createVariable("v", "i2", ("time", "x"), zlib=True, chunksizes=(2, 5))
        for count in range(12):
            v.setncattr(f"a{count}", float(number))
        length = 2 + number
        time[:], v[:] = 10 * number + np.arange(length), number


CASES: dict[str, Write] = {
    "the oldest form": write_h5py("earliest"),
    "the newest form": write_h5py("latest"),
    "compressed": write_h5py("v110", compression="gzip"),
    "netCDF, attributes in dense storage": write_netcdf,
}


def write_files(folder: Path, write: Write) -> list[Path]:
    paths = [folder / f"{number}.nc" for number in range(FILES)]
    for number, path in enumerate(paths):
        write(path, number)
    return paths


@contextmanager
def reading(
    paths: Sequence[Path], heeded: Any = ("units",)
) -> Iterator[Sequence[SameStructureFiles]]:
    urls = [normalise_url(path) for path in paths]
    with read_together(urls, None, None, (), lambda name, _: name in heeded) as found:
        yield found


def read(paths: Sequence[Path], heeded: Any = ("units",)) -> list[list[int]]:
    """The numbers of the files of each structure."""
    with reading(paths, heeded) as found:
        return [list(files.numbers) for files in found]


def is_same(found: ManifestArray, wanted: Any) -> bool:
    return (found.shape, found.dtype, found.pipelines, found.read().tobytes()) == (
        wanted.shape,
        wanted.dtype,
        wanted.pipelines,
        wanted.read().tobytes(),
    )


@pytest.mark.parametrize("case", CASES)
def test_alike_files_are_what_they_are_one_by_one(case: str, tmp_path: Path) -> None:
    paths = write_files(tmp_path, CASES[case])
    groups = [open_group(Location.of(path)) for path in paths]
    with reading(paths) as [files]:
        assert list(files.numbers) == list(range(FILES))
        check_files(files, groups)


@pytest.mark.parametrize("case", CASES)
def test_files_are_taken_in_any_order(case: str, tmp_path: Path) -> None:
    """The first of them gives the attributes."""
    paths = write_files(tmp_path, CASES[case])
    groups = [open_group(Location.of(path)) for path in paths]
    order = [3, 1, 4, 0]
    with reading(paths) as [files]:
        taken = files.take(np.array(order))
        assert list(taken.numbers) == order
        check_files(taken, [groups[n] for n in order])


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("filters", [{}, {"compression": "gzip"}])
def test_chunks_may_be_as_long_as_their_file(
    libver: str, filters: dict[str, Any], tmp_path: Path
) -> None:
    """Months have 28 to 31 days, and many are written as one chunk."""
    lengths = [31, 28, 31, 30, 31, 29]
    paths = [tmp_path / f"{number}.nc" for number in range(len(lengths))]
    for length, path in zip(lengths, paths, strict=True):
        with h5py.File(path, "w", libver=libver) as file:
            for name, values in {"time": np.arange(length), "x": np.arange(3)}.items():
                file.create_dataset(name, data=values).make_scale(name)
            values = np.random.default_rng(length).normal(size=(length, 3))
            for name, chunk in {"whole": length, "half": -(-length // 2)}.items():
                made = file.create_dataset(name, data=values, chunks=(chunk, 3), **filters)
                for axis, dim in enumerate(("time", "x")):
                    made.dims[axis].attach_scale(file[dim])
    groups = [open_group(Location.of(path)) for path in paths]
    with reading(paths) as [files]:
        assert list(files.numbers) == list(range(len(lengths)))
        check_files(files, groups)


def test_chunks_that_differ_along_another_axis_lie_in_several_fragments(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.nc" for number in range(6)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            for name, values in {"time": np.arange(2), "x": np.arange(4)}.items():
                file.create_dataset(name, data=values).make_scale(name)
            values = np.full((2, 4), float(number))
            made = file.create_dataset("v", data=values, chunks=(1, 4 if number < 3 else 2))
            for axis, dim in enumerate(("time", "x")):
                made.dims[axis].attach_scale(file[dim])
    groups = [open_group(Location.of(path)) for path in paths]
    with reading(paths) as [files]:
        check_files(files, groups)
        assert len(files.join("v", "time").fragments) == 2


def check_group(found: ManifestGroup, wanted: ManifestGroup) -> None:
    assert repr(dict(found.attributes)) == repr(dict(wanted.attributes))
    assert list(found.variables) == list(wanted.variables)
    for name, variable in wanted.variables.items():
        other = found.variables[name]
        assert (other.dims, repr(other.encoding)) == (variable.dims, repr(variable.encoding)), name
        assert repr(dict(other.attributes)) == repr(dict(variable.attributes)), name
        assert is_same(other.data, variable.data), name  # type: ignore[arg-type]


def check_files(files: SameStructureFiles, groups: Sequence[Any]) -> None:
    """The files give what their groups give that were read one by one."""
    for number, group in enumerate(groups):
        check_group(files.take(np.array([number])).group, group)
    for name, variable in groups[0].variables.items():
        arrays: list[Any] = [group.variables[name].data for group in groups]
        if "time" in variable.dims:
            axis = variable.dims.index("time")
            assert is_same(files.join(name, "time"), np.concatenate(arrays, axis=axis))
        else:
            assert is_same(files.stack(name), np.stack(arrays))
        values = files.get_values(name)
        for one, array in zip(values or (), arrays, strict=False):
            np.testing.assert_array_equal(one, array.read())


def test_attributes_that_are_heeded_are_equal_within_a_run(tmp_path: Path) -> None:
    paths = write_files(tmp_path, write_netcdf)
    assert read(paths, heeded=("a1", "a2", "a3", "units")) == []
    assert read(paths, heeded={"a3"}) == []
    assert len(read(paths, heeded={"units"})) == 1


@pytest.mark.parametrize("kind", [str, np.bytes_, float])
def test_files_that_agree_have_their_own_attributes_after_others(kind: Any, tmp_path: Path) -> None:
    for value in ("1234", "5678"):
        folder = tmp_path / value
        folder.mkdir()
        for number in range(3):
            with h5py.File(folder / f"{number}.h5", "w") as file:
                file.create_dataset("x", data=3.0 * number + np.arange(3)).make_scale("x")
                file.attrs["title"] = file["x"].attrs["note"] = kind(value)
        files = sorted(folder.glob("*.h5"))
        whole = virtualds.open_virtual_mfdataset(files, combine="nested", concat_dim="x")
        alone = virtualds.open_virtual_dataset(files[0])
        assert whole.attrs == alone.attrs == {"title": alone.attrs["title"]}
        assert whole["x"].attrs == alone["x"].attrs
        assert float(whole.attrs["title"]) == float(value)


def test_dates_of_an_archive_count_from_their_own_day_after_others(tmp_path: Path) -> None:
    for year in (2000, 2001):
        files = [tmp_path / f"{year}-{number}.h5" for number in range(3)]
        for number, path in enumerate(files):
            with h5py.File(path, "w") as file:
                file.create_dataset("time", data=3.0 * number + np.arange(3)).make_scale("time")
                file["time"].attrs["units"] = f"days since {year}-01-01"
        whole = virtualds.open_virtual_mfdataset(files, combine="nested", concat_dim="time")
        days = np.datetime64(f"{year}-01-01", "ns") + np.arange(9) * np.timedelta64(1, "D")
        np.testing.assert_array_equal(whole["time"], days)


def set_byte(path: Path, place: int, value: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] = value
    path.write_bytes(raw)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "it is cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "it has a few bytes": lambda path: path.write_bytes(path.read_bytes()[:18]),
    "it is empty": lambda path: path.write_bytes(b""),
    "its superblock is of another version": lambda path: set_byte(path, 8, 9),
    "a type is another": lambda path: path.write_bytes(
        path.read_bytes().replace(b"\x11\x20\x3f\0\x08\0\0\0", b"\x11\x21\x3f\0\x08\0\0\0", 1)
    ),
    "the heap is damaged": lambda path: path.write_bytes(
        path.read_bytes().replace(b"GCOL", b"GCOX")
    ),
    "a node of the index is damaged": lambda path: path.write_bytes(
        path.read_bytes().replace(b"TREE\1", b"TREX\1")
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_left_out_and_the_others_are(damage: str, tmp_path: Path) -> None:
    paths = write_files(tmp_path, CASES["the oldest form"])
    DAMAGE[damage](paths[2])
    assert read(paths) == [[0, 1, 3, 4, 5]]


def test_a_string_that_the_heap_has_not_whole_is_an_error(tmp_path: Path) -> None:
    paths = write_files(tmp_path, write_netcdf)
    raw, text = paths[4].read_bytes(), b"run " * 5
    place = raw.index(text) - 8
    assert raw[place] == len(text)
    paths[4].write_bytes(raw[:place] + b"\4" + raw[place + 1 :])
    assert read(paths) == [[0, 1, 2, 3, 5]]
    with pytest.raises(virtualds.FormatError, match="global heap"):
        virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim="time")


def test_an_attribute_longer_than_its_message_takes_no_memory(tmp_path: Path) -> None:
    paths = write_files(tmp_path, CASES["the oldest form"])
    for path in paths:
        raw, name = bytearray(path.read_bytes()), b"number\0\0"
        place = raw.index(name) + 8
        # the bytes of an element of its type
        raw[place + 4 : place + 8] = (2**31 - 2).to_bytes(4, "little")
        path.write_bytes(raw)
    assert peak(lambda: read(paths)) < 2**24


def test_a_large_grid_without_chunks_is_read_alone(tmp_path: Path) -> None:
    def write(path: Path, number: int) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("x", (2**30,), "i1", chunks=(1,), maxshape=(None,))
            file["x"].make_scale("x")

    assert read(write_files(tmp_path, write)) == []
