"""Datasets of strings of varying length are read without HDF5, as h5py reads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest

import virtualds
from virtualds import ReadError
from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.parsers.hdf5.group_reader import HDF5Array
from virtualds.parsers.hdf5.objects import HDF5Files

UTF_8, ASCII = h5py.string_dtype(), h5py.string_dtype("ascii")
WORDS = ["first", "", "große Wörter", "x" * 5000, "日本", "e\u0301"]


def write(dtype: Any, data: Any = None, **how: Any) -> Callable[[h5py.File], None]:
    return lambda file: file.create_dataset("v", data=data, dtype=dtype, **how) and None


def write_part(file: h5py.File) -> None:
    made = file.create_dataset("v", (4, 6), UTF_8, chunks=(3, 4), compression="gzip")
    made[1:3, 2:5] = np.array([["a", "b", "c"], ["d", "", "f"]])


def write_filled_part(file: h5py.File) -> None:
    made = file.create_dataset("v", (9,), UTF_8, chunks=(4,), fillvalue="nothing")
    made[5] = "something"


def write_again(file: h5py.File) -> None:
    made = file.create_dataset("v", data=WORDS, dtype=UTF_8)
    made[2:4] = ["shorter", "longer than before " * 300]


def write_padded(pad: int) -> Callable[[h5py.File], None]:
    def make(file: h5py.File) -> None:
        kind = h5py.h5t.py_create(UTF_8, logical=True).copy()
        kind.set_strpad(pad)
        space = h5py.h5s.create_simple((3,))
        h5py.Dataset(h5py.h5d.create(file.id, b"v", kind, space))[:] = ["a ", " b", "c  "]

    return make


def write_compact(file: h5py.File) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    kind, space = h5py.h5t.py_create(UTF_8, logical=True), h5py.h5s.create_simple((6,))
    h5py.Dataset(h5py.h5d.create(file.id, b"v", kind, space, plist))[:] = WORDS


CASES: dict[str, Callable[[h5py.File], None]] = {
    "words": write(UTF_8, WORDS),
    "words in ASCII": write(ASCII, ["a", "", "b c"]),
    "bytes that are no UTF-8": write(UTF_8, [b"\xff\xfe", b"ok\xc3", "ä".encode("latin-1")]),
    "bytes that are no ASCII": write(ASCII, ["ä".encode(), b"\x80abc"]),
    "a scalar": write(UTF_8, "one word"),
    "an empty scalar": write(UTF_8, ""),
    "no elements": write(UTF_8, shape=(0, 3)),
    "never written": write(UTF_8, shape=(3, 2)),
    "never written, in chunks": write(UTF_8, shape=(3, 2), chunks=(2, 2)),
    "never written, with a fill value": write(UTF_8, shape=(3,), fillvalue="größer"),
    "a fill value in some chunks": write_filled_part,
    "some chunks": write_part,
    "compressed": write(UTF_8, [WORDS] * 7, chunks=(3, 4), compression="gzip", shuffle=True),
    "written again": write_again,
    "filled up by NUL": write_padded(h5py.h5t.STR_NULLPAD),
    "filled up by spaces": write_padded(h5py.h5t.STR_SPACEPAD),
    "in the header": write_compact,
    "many": write(UTF_8, [f"word {n} " * (n % 9) for n in range(3000)], chunks=(700,)),
}


def as_h5py(path: Path) -> Any:
    # to fill strings, HDF5 needs to write
    copy = shutil.copy(path, path.with_suffix(".copy"))
    with h5py.File(copy, "r+") as file:
        return np.asarray(file["v"].asstr(errors="replace")[()], object)


@pytest.fixture(params=[0, 2**24], ids=["when asked for", "when scanned"])
def small(request: pytest.FixtureRequest) -> int:
    size: int = request.param
    return size


def scan(path: Path, small: int) -> ManifestGroup:
    with virtualds.set_options(small_variable=small):
        return open_group(Location.of(path))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("name", CASES)
def test_strings_are_those_of_h5py_and_hdf5_is_not_opened(
    name: str, libver: str, small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        CASES[name](file)
    want = as_h5py(tmp_path / "a.h5")

    def fail(*_: Any) -> None:
        raise AssertionError("HDF5 is opened")

    monkeypatch.setattr(HDF5Files, "open", fail)
    group = scan(tmp_path / "a.h5", small)
    assert not group.problems
    found = group.variables["v"]
    assert isinstance(found.data, HDF5Array) == (not small and want.size > 0)
    values = found.read()
    assert values.dtype == object
    assert (values.shape, values.tolist()) == (want.shape, want.tolist())
    assert all(type(one) is str for one in values.flat)


def test_parts_of_strings_that_are_read_later_are_those_of_h5py(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        CASES["compressed"](file)
    want = as_h5py(tmp_path / "a.h5")
    data = scan(tmp_path / "a.h5", 0).variables["v"].data
    assert isinstance(data, HDF5Array)
    keys = (slice(2, 6), 3), (-1, slice(None, None, 2)), (np.array([5, 0, 5]), slice(1, 2)), (0, 0)
    for key in keys:
        np.testing.assert_array_equal(data.read(key), want[key])


def test_strings_past_the_end_of_a_variable_are_empty(small: int, tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("n", None)
        file.createVariable("longer", "i4", ("n",))[:] = np.arange(5)
        file.createVariable("text", str, ("n",))[:2] = np.array(["a", "b"], object)
    with netCDF4.Dataset(tmp_path / "a.nc") as file:
        want = file["text"][:].tolist()
    assert scan(tmp_path / "a.nc", small).variables["text"].read().tolist() == want


def test_strings_that_a_soft_link_leads_to_are_read(small: int, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["below/text"] = np.array(WORDS, UTF_8)
        file["v"] = h5py.SoftLink("/below/text")
    assert scan(tmp_path / "a.h5", small).variables["v"].read().tolist() == WORDS


def test_strings_of_a_file_that_another_one_links_to_are_read(small: int, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["text"] = np.array(WORDS, UTF_8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = h5py.ExternalLink("b.h5", "/text")
    assert scan(tmp_path / "a.h5", small).variables["v"].read().tolist() == WORDS


def test_hdf5_reads_strings_where_it_is_asked_to(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        CASES["some chunks"](file)
    with virtualds.set_options(hdf5="library"):
        found = scan(tmp_path / "a.h5", 2**24).variables["v"].read()
    assert found.tolist() == as_h5py(tmp_path / "a.h5").tolist()


def test_strings_whose_heap_is_damaged_meanwhile_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        CASES["words"](file)
    data = scan(path, 0).variables["v"].data
    assert isinstance(data, HDF5Array)
    path.write_bytes(path.read_bytes().replace(b"GCOL", b"GCOX"))
    with (
        virtualds.set_options(check_sources=False),
        pytest.raises(ReadError, match="no global heap"),
    ):
        data.read((slice(None),))
