"""A small file that says it is huge is refused before memory is taken for it."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import virtualds
from virtualds import ReadError, UnsupportedError, VirtualdsError

MOST = 2**26
"""Bytes that a refusal may take."""
OPTIONS: dict[str, Any] = {"dtype": "<f8", "fill_value": 0.0, "compressor": None, "filters": None}


def kerchunk(folder: Path, name: str = "v", *, keys: int = 1, **array: Any) -> Path:
    metadata = {"zarr_format": 2, "order": "C", **OPTIONS, **array}
    (folder / "a.bin").write_bytes(bytes(64))
    refs = {
        ".zgroup": {"zarr_format": 2},
        f"{name}/.zarray": metadata,
        f"{name}/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]},
        **{f"{name}/{n}": ["a.bin", 0, 8] for n in range(keys)},
    }
    path = folder / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": refs}))
    return path


def hdf5(folder: Path) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        made = file.create_dataset("v", shape=(2 * 10**8,), dtype="i1", chunks=(1,))
        made[5] = 1
    return folder / "a.h5"


def zarr_store(folder: Path) -> Path:
    array = zarr.open_group(folder / "a.zarr", mode="w", zarr_format=2).create_array(
        "v", shape=(2 * 10**8,), chunks=(1,), dtype="i1"
    )
    array[5] = 1
    return folder / "a.zarr"


SPARSE: dict[str, Callable[[Path], Path]] = {
    "kerchunk JSON": lambda folder: kerchunk(folder, shape=[10**8], chunks=[1]),
    "many more": lambda folder: kerchunk(folder, shape=[2**31], chunks=[1]),
    "HDF5": hdf5,
    "zarr": zarr_store,
}


def peak(work: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", SPARSE)
def test_a_grid_far_larger_than_its_references_is_refused(kind: str, tmp_path: Path) -> None:
    path = SPARSE[kind](tmp_path)

    def refused() -> None:
        with pytest.raises(VirtualdsError, match="references"):
            virtualds.open_virtual_dataset(path)

    assert peak(refused) < MOST


def test_a_grid_without_any_reference_takes_no_memory(tmp_path: Path) -> None:
    path = kerchunk(tmp_path, shape=[10**9], chunks=[1], keys=0)
    assert peak(lambda: virtualds.open_virtual_dataset(path)) < MOST


def test_a_grid_that_is_full_enough_is_opened(tmp_path: Path) -> None:
    path = kerchunk(tmp_path, shape=[10**6], chunks=[1])
    assert virtualds.open_virtual_dataset(path)["v"].sizes == {"x": 10**6}


def test_a_lazy_manifest_is_refused_when_it_becomes_columns(tmp_path: Path) -> None:
    """As long as its references stay where they are, it is opened, and read in parts."""
    array = {"zarr_format": 2, "order": "C", "shape": [10**9], "chunks": [1], **OPTIONS}
    metadata = {".zgroup": {"zarr_format": 2}, "v/.zarray": array}
    metadata["v/.zattrs"] = {"_ARRAY_DIMENSIONS": ["x"]}
    folder = tmp_path / "refs.parquet"
    (folder / "v").mkdir(parents=True)
    document = {"metadata": metadata, "record_size": 2**20}
    (folder / ".zmetadata").write_text(json.dumps(document))
    (tmp_path / "a.bin").write_bytes(np.full(1, 7.0).tobytes())
    table = pa.table({"path": [str(tmp_path / "a.bin")], "offset": [0], "size": [8]})
    pq.write_table(table, folder / "v" / "refs.0.parq")
    opened = virtualds.open_virtual_dataset(folder)
    assert np.isnan(opened["v"][1:3].to_numpy()).all()
    assert opened["v"][0] == 7

    def refused() -> None:
        with pytest.raises(UnsupportedError, match="references"):
            opened["v"].variable._data.fragments[0].manifest.loaded()

    assert peak(refused) < 2**29


def test_a_coordinate_of_nothing_is_not_loaded(tmp_path: Path) -> None:
    path = kerchunk(tmp_path, "x", shape=[2**33], chunks=[2**33], keys=0)

    def refused() -> None:
        with pytest.raises(UnsupportedError, match="coordinate has"):
            virtualds.open_virtual_dataset(path)

    assert peak(refused) < MOST


@pytest.mark.parametrize("dtype", ["|S2147483647", "|V2000000000", "<U500000000"])
def test_a_huge_element_is_refused(dtype: str, tmp_path: Path) -> None:
    path = kerchunk(tmp_path, shape=[4], chunks=[1], dtype=dtype, fill_value=None)

    def refused() -> None:
        with pytest.raises(VirtualdsError, match="elements of"):
            virtualds.open_virtual_dataset(path)

    assert peak(refused) < MOST


def test_a_part_of_a_huge_chunk_is_refused(tmp_path: Path) -> None:
    huge = {"shape": [10**11 // 8], "chunks": [10**11 // 8]}
    path = kerchunk(tmp_path, **huge, compressor={"id": "zlib"})
    opened = virtualds.open_virtual_dataset(path)

    def refused() -> None:
        with pytest.raises(UnsupportedError, match="100000000000 bytes once decoded"):
            opened["v"][:3].to_numpy()

    assert peak(refused) < MOST


def test_a_part_of_a_huge_chunk_without_codecs_is_read(tmp_path: Path) -> None:
    size = 2**33
    path = kerchunk(tmp_path, shape=[size // 8], chunks=[size // 8], keys=0)
    with (tmp_path / "a.bin").open("r+b") as file:
        file.truncate(size)
    document = json.loads(path.read_text())
    document["refs"]["v/0"] = ["a.bin", 0, size]
    path.write_text(json.dumps(document))
    opened = virtualds.open_virtual_dataset(path)
    assert peak(lambda: opened["v"][:3].to_numpy()) < MOST
    with virtualds.set_options(load_limit=8):
        # the fill value is 0, as all of the file
        assert np.isnan(opened["v"][:1].to_numpy()).all()


def test_a_chunk_without_codecs_that_is_too_short_is_corrupt(tmp_path: Path) -> None:
    path = kerchunk(tmp_path, shape=[10**11 // 8], chunks=[10**11 // 8])
    opened = virtualds.open_virtual_dataset(path)

    def refused() -> None:
        with pytest.raises(ReadError):
            opened["v"][:3].to_numpy()

    assert peak(refused) < MOST
