"""A build takes no more steps and memory than its files need."""

import gc
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

import virtualds
from virtualds import combine
from virtualds.arrays.group import ReadMethod
from virtualds.codecs import cf
from virtualds.combine import file_batch, workers
from virtualds.combine.file_batch import FileBatch
from virtualds.combine.workers import EnumeratedFiles, FileCount, add_counts
from virtualds.datasets import conversion
from virtualds.formats.zarr.v3_arrays import encode_chunk

LENGTHS = (3, 2, 4, 3, 1, 2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Files of different lengths, with two variables on the same dimensions."""
    folder = tmp_path_factory.mktemp("ragged")
    paths, begin = [str(folder / f"{n}.nc") for n in range(len(LENGTHS))], 0
    for path, length in zip(paths, LENGTHS, strict=True):
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("time", length)
            time = file.createVariable("time", "f8", ("time",))
            time.units = "minutes since 2001-01-01"
            time[:] = np.arange(begin, begin + length)
            for name in ("t", "u"):
                variable = file.createVariable(name, "f4", ("time",), chunksizes=(length,))
                variable[:] = np.arange(begin, begin + length)
        begin += length
    return paths


def build(files: list[str]) -> Any:
    return virtualds.open_virtual_mfdataset(files, combine="nested", concat_dim="time")


def test_files_in_order_are_decoded_without_a_view_of_each(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = xr.open_mfdataset(files, combine="nested", concat_dim="time")
    monkeypatch.delattr(FileBatch, "list_values")
    assert build(files).indexes["time"].equals(expected.indexes["time"])


def test_files_in_another_order_are_decoded_in_theirs(files: list[str]) -> None:
    given = files[::-1]
    found = virtualds.open_virtual_mfdataset(given, combine="by_coords")
    assert found.indexes["time"].equals(build(files).indexes["time"])


def test_variables_that_are_cut_alike_share_their_axis(files: list[str]) -> None:
    found = build(files)
    (t,), (u,) = (found[name].data.fragments for name in "tu")
    assert t.axes[0].lengths.tolist() == list(LENGTHS)
    assert t.axes[0] is u.axes[0]


def test_variables_of_the_same_shapes_share_the_list_of_them(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    init = FileBatch.__init__

    def note(self: FileBatch, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(FileBatch, "__init__", note)
    build(files)
    together = next(batch for batch in made if len(batch) == len(files))
    shapes = [together.encodings[name, "original_shape"] for name in "tu"]
    assert shapes[0] is shapes[1]
    assert shapes[0] == [(length,) for length in LENGTHS]
    chunks = [together.encodings[name, "preferred_chunks"] for name in "tu"]
    assert chunks[0] is chunks[1]
    assert chunks[0] == [{"time": length} for length in LENGTHS]


def test_numbers_that_follow_each_other_are_a_range() -> None:
    assert file_batch._shorten([3, 4, 5]) == range(3, 6)
    assert file_batch._shorten([3, 5]) == (3, 5)
    assert file_batch._shorten([4, 3]) == (4, 3)


def test_pairs_of_a_number_and_a_file_are_made_when_they_are_needed() -> None:
    pairs = EnumeratedFiles(["a", "b", "c"])
    assert (len(pairs), pairs[1], pairs[-1]) == (3, (1, "b"), (2, "c"))
    assert pairs[1:] == [(1, "b"), (2, "c")] == list(pairs)[1:]
    with pytest.raises(IndexError):
        pairs[3]


def test_counts_are_added_to_those_that_are_there() -> None:
    """There may be a reason for each file, so nothing is copied."""
    total = {ReadMethod("alone"): FileCount(2, 5)}
    add_counts({ReadMethod("alone"): FileCount(1, 3), ReadMethod("b"): FileCount(1, 9)}, total)
    assert total == {ReadMethod("alone"): FileCount(3, 3), ReadMethod("b"): FileCount(1, 9)}
    opened = workers.OpenOutcome((0,), "a", ways={ReadMethod("alone"): FileCount(1, 0)})
    joined = workers.join_outcomes([opened, opened], "ab")
    assert joined.ways == {ReadMethod("alone"): FileCount(2, 0)}


def test_written_dates_are_compared_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dates = np.datetime64("2000-01-01", "ns") + np.arange(9) * np.timedelta64(60, "s")
    units = {"units": "minutes since 1999-12-31", "dtype": np.dtype("f8")}
    dataset = xr.Dataset(coords={"time": ("time", dates, {}, units)})
    monkeypatch.delattr(conversion, "_iterate_decodings")
    monkeypatch.setattr(cf, "DATES_AT_ONCE", 4)
    dataset.virtual.to_manifest(tmp_path / "refs.zarr")
    with xr.open_dataset(tmp_path / "refs.zarr", engine="virtual") as found:
        assert (found["time"].values == dates).all()


def test_what_is_not_a_date_is_not_read_to_compare_dates(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unread:
        dtype, shape, ndim, size = np.dtype("f8"), (3,), 1, 3

        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("it was read")

    monkeypatch.setattr(conversion, "_iterate_decodings", lambda *args: iter([]))
    variable = xr.Variable("x", Unread(), fastpath=True)
    stored = xr.Variable("x", np.zeros(3), {"units": "days since 2000-01-01"})
    assert not conversion._decodes_to("v", stored, variable)


@pytest.mark.parametrize(
    ("encoding", "attempts"),
    [
        ({}, [{}]),
        ({"units": "days since 2000-01-01"}, [{"units": "days since 2000-01-01"}, {}]),
        (
            {"units": "days since 2000-01-01", "dtype": np.dtype("i4")},
            [
                {"units": "days since 2000-01-01", "dtype": np.dtype("i4")},
                {"units": "days since 2000-01-01"},
                {},
            ],
        ),
    ],
)
def test_no_encoding_is_tried_twice(encoding: Any, attempts: Any) -> None:
    variable = xr.Variable("x", np.zeros(1), {}, encoding)
    assert list(conversion._iterate_encodings(variable)) == attempts


def test_a_whole_chunk_is_compressed_where_it_lies() -> None:
    values = np.arange(12.0).reshape(3, 4)
    assert np.shares_memory(np.frombuffer(encode_chunk(values, (3, 4))), values)
    assert bytes(encode_chunk(values[:2], (3, 4))) == np.vstack([values[:2], np.zeros(4)]).tobytes()


@pytest.mark.full
def test_no_file_is_in_memory_any_more_when_their_set_is_written(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = list[int]()

    def count_batches() -> None:
        counts.append(sum(isinstance(found, FileBatch) for found in gc.get_objects()))

    # to return freed memory to the system is of use only once it is free
    monkeypatch.setattr(combine, "_return_freed_memory", count_batches)
    gc.collect()
    virtualds.open_virtual_mfdataset(
        files, combine="nested", concat_dim="time", to=tmp_path / "refs.zarr"
    )
    assert counts == [0, 0]
