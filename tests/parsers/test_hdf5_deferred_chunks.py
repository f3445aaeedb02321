"""Files opened with engine="virtual" ask a large index for the chunks that are read."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from products import looped

import virtualds
from virtualds import FormatError, ManifestArray, ReadError
from virtualds.datasets.lazy import find_layers, find_virtual

SHAPE = (500, 200)
Limits = tuple[int | None, ...]
KINDS: dict[str, tuple[str, Limits]] = {
    "a version 1 B-tree": ("earliest", (None, 200)),
    "a fixed array": ("latest", SHAPE),
    "an extensible array": ("latest", (None, 200)),
    "an extensible array along the second axis": ("latest", (500, None)),
    "a version 2 B-tree": ("latest", (None, None)),
}
VALUES = np.arange(np.prod(SHAPE), dtype="i4").reshape(SHAPE)
SOME = slice(None, None, 7), slice(2, None, 3)
"""More chunks than are looked up one by one, and few to read."""
WORTH = VALUES.size // 2000
"""So many points of a local file are looked up until the whole index is read."""


def write(path: Path, libver: str, limits: Limits, **options: Any) -> Path:
    """Write 100,000 chunks; some are missing."""
    with h5py.File(path, "w", libver=libver) as file:
        made = file.create_dataset(
            "v", SHAPE, "i4", chunks=(1, 1), maxshape=limits, fillvalue=-1, **options
        )
        for place in np.ndindex(SHAPE):
            if place[1] != 13:
                made.id.write_direct_chunk(place, VALUES[place].tobytes(), int(bool(options)))
    return path


@pytest.fixture(scope="module", params=KINDS)
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("large") / "large.h5", *KINDS[request.param])


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tree") / "tree.h5", *KINDS["a version 1 B-tree"])


def expected() -> Any:
    values = VALUES.copy()
    values[:, 13] = -1
    return values


def open_lazily(path: Path | str) -> xr.Dataset:
    return xr.open_dataset(path, engine="virtual")


def array_of(dataset: xr.Dataset) -> ManifestArray:
    layers = find_layers(dataset["v"].variable)
    assert layers is not None
    return layers.array


def held_by(array: ManifestArray) -> Any:
    manifest = array.manifest
    assert manifest.is_in_source
    return manifest.table._cache.manifest  # type: ignore[attr-defined]


SELECTIONS: dict[str, Any] = {
    "a point": (417, 99),
    "a missing chunk": (3, 13),
    "a row": (0, slice(None)),
    "a column": (slice(None), -1),
    "a box": (slice(490, 500), slice(10, 20)),
    "steps": (slice(None, None, 97), slice(3, None, 50)),
    "backwards": (slice(20, 10, -1), 5),
    "positions": ([499, 0, 0, 77], [1, 199]),
    "nothing": (slice(5, 5), 0),
}


@looped("name", SELECTIONS)
def test_a_selection_has_the_values_that_hdf5_reads(large: Path, name: str) -> None:
    key = SELECTIONS[name]
    dataset = open_lazily(large)
    np.testing.assert_array_equal(
        dataset["v"][key].values, xr.DataArray(expected(), dims=dataset["v"].dims)[key].values
    )


def test_single_points_have_the_values_that_hdf5_reads(large: Path) -> None:
    generator = np.random.default_rng(0)
    rows, columns = (xr.DataArray(generator.integers(0, n, 20), dims="p") for n in SHAPE)
    dataset = open_lazily(large)
    found = dataset["v"].isel(dict(zip(dataset["v"].dims, (rows, columns), strict=True)))
    np.testing.assert_array_equal(found.values, expected()[rows.values, columns.values])


def test_the_index_is_read_once_when_that_costs_less(large: Path) -> None:
    array = array_of(open_lazily(large))
    for row in range(WORTH):
        assert held_by(array) is None
        assert array.read((row, 20)) == VALUES[row, 20]
    held = held_by(array)
    assert held is not None
    np.testing.assert_array_equal(array.read(SOME), expected()[SOME])
    assert held_by(array) is held


def test_the_index_is_read_at_once_for_most_chunks(tree: Path) -> None:
    array = array_of(open_lazily(tree))
    np.testing.assert_array_equal(array.read((slice(0, 490), slice(None))), expected()[:490])
    held = held_by(array)
    np.testing.assert_array_equal(array.read(SOME), expected()[SOME])
    assert held is not None and held_by(array) is held


def test_references_are_those_of_a_virtual_dataset(large: Path) -> None:
    behind, opened = find_virtual(open_lazily(large)["v"].variable), virtualds.open_virtual_dataset
    array = opened(large)["v"].data
    assert isinstance(behind, ManifestArray) and behind.manifest.is_loaded
    assert behind.has_same_references(array)


def test_a_written_set_is_that_of_a_virtual_dataset(tree: Path, tmp_path: Path) -> None:
    written = []
    for name, dataset in {
        "lazy": open_lazily(tree), "whole": virtualds.open_virtual_dataset(tree)
    }.items():  # fmt: skip
        dataset.virtual.to_manifest(tmp_path / f"{name}.json")
        written.append((tmp_path / f"{name}.json").read_bytes())
    assert written[0] == written[1]


def test_an_array_is_pickled_without_its_index(large: Path) -> None:
    array = array_of(open_lazily(large))
    for row in range(WORTH):
        array.read((row, 20))
    assert held_by(array) is not None
    pickled = pickle.dumps(array)
    assert len(pickled) < 5000
    copied = pickle.loads(pickled)
    assert held_by(copied) is None
    assert copied.read((417, 99)) == VALUES[417, 99]


def test_dask_reads_through_the_index(tree: Path) -> None:
    chunked = xr.open_dataset(tree, engine="virtual", chunks={})["v"][:20, :20].chunk(10)
    np.testing.assert_array_equal(chunked.compute(scheduler="threads"), expected()[:20, :20])


def test_threads_read_the_index_once(tree: Path) -> None:
    array = array_of(open_lazily(tree))
    start = threading.Barrier(8)

    def read(number: int) -> tuple[Any, int]:
        start.wait()
        return array.read((slice(None), number)), id(held_by(array))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, range(8)))
    for number, (column, _) in enumerate(found):
        np.testing.assert_array_equal(column, expected()[:, number])
    array.read(SOME)
    assert len({id(held_by(array)), *(held for _, held in found if held != id(None))}) == 1


# ---------------------------------------------------------------------- what is read

Pread = Callable[[int, int, int], bytes]


@pytest.fixture
def preads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes of every read of a local file."""
    counted: list[int] = []
    real: Pread = os.pread

    def pread(handle: int, length: int, offset: int) -> bytes:
        counted.append(length)
        return real(handle, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    yield counted


INDEX_BYTES = 100_000 * 8
"""Bytes that the addresses of all chunks take at least."""


def test_a_point_takes_little_of_a_local_file(large: Path, preads: list[int]) -> None:
    assert int(open_lazily(large)["v"][417, 99]) == VALUES[417, 99]
    assert sum(preads) < INDEX_BYTES // 10 and len(preads) < 12


def test_a_point_takes_few_requests(large: Path) -> None:
    with counting_server(large.parent) as (url, counts):
        dataset = open_lazily(f"{url}/{large.name}")
        opened, sent = len(counts.requests), counts.sent
        assert opened <= 3 and sent < INDEX_BYTES
        assert int(dataset["v"][417, 99]) == VALUES[417, 99]
        assert len(counts.requests) - opened <= 5
        assert counts.sent - sent < INDEX_BYTES // 20


# ---------------------------------------------------------------------- damage, changes


def find_nodes(data: bytes) -> list[int]:
    """Return where the leaves of the tree begin."""
    places, begin = [], data.find(b"TREE\x01\0")
    while begin >= 0:
        places.append(begin)
        begin = data.find(b"TREE\x01\0", begin + 1)
    return places


def test_damage_is_an_error_where_it_is_met(tree: Path, tmp_path: Path) -> None:
    data = bytearray(tree.read_bytes())
    leaves = find_nodes(bytes(data))
    # the position in the first key of the last leaf
    data[leaves[-1] + 24 + 8] ^= 0xFF
    path = tmp_path / "damaged.h5"
    path.write_bytes(data)
    dataset = open_lazily(path)
    assert int(dataset["v"][0, 0]) == 0
    with pytest.raises(
        FormatError, match=r"(?s)damaged\.h5: its metadata are damaged.*fetch"
    ) as error:
        dataset["v"][499, 199].load()
    assert "variable 'v': " in str(error.value)
    # whoever needs all references learns of it on opening
    with pytest.raises(FormatError, match="its metadata are damaged"):
        virtualds.open_virtual_dataset(path)


def test_a_key_that_hides_a_chunk_is_damage(tree: Path, tmp_path: Path) -> None:
    data = bytearray(tree.read_bytes())
    # the second key of a node above leaves: length, mask, and the position along both axes
    begin = data.find(b"TREE\x01\x01") + 24 + 40 + 8
    row, column = np.frombuffer(bytes(data[begin : begin + 16]), "<i8").tolist()
    data[begin + 8 : begin + 16] = (column + 1).to_bytes(8, "little")
    path = tmp_path / "hidden.h5"
    path.write_bytes(data)
    dataset = open_lazily(path)
    with pytest.raises(FormatError, match="its metadata are damaged"):
        dataset["v"][row, column].load()


def test_a_file_that_has_changed_is_not_read(tree: Path, tmp_path: Path) -> None:
    path = tmp_path / "changed.h5"
    path.write_bytes(tree.read_bytes())
    dataset = open_lazily(path)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(
        ReadError, match=r"(?s)changed\.h5: the index of chunks cannot be read.*again"
    ):
        dataset["v"][1, 1].load()


def test_an_error_names_the_chunk_that_does_not_decode(tmp_path: Path) -> None:
    path = tmp_path / "chunks.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("v", data=VALUES[:60, :60], chunks=(1, 1), compression="gzip")
        made.id.write_direct_chunk((20, 30), b"no stream of deflate")
    dataset = open_lazily(path)
    with pytest.raises(ReadError, match="do not decode") as error:
        dataset["v"][19:22, 29:33].load()
    assert any("chunk (20, 30)" in note for note in error.value.__notes__)


# ---------------------------------------------------------------------- filters


def test_chunks_may_have_skipped_filters(tmp_path: Path) -> None:
    """A chunk says which filters were skipped, and the array does not know before it is asked."""
    path = tmp_path / "masks.h5"
    values = np.arange(60 * 60 * 4, dtype="<i4").reshape(60 * 2, 60 * 2)
    with h5py.File(path, "w") as file:
        made = file.create_dataset(
            "v", data=values, chunks=(2, 2), compression="gzip", shuffle=True, maxshape=(None, None)
        )
        for place, mask in {(0, 0): 3, (2, 2): 3, (118, 118): 3}.items():
            box = tuple(slice(p, p + 2) for p in place)
            made.id.write_direct_chunk(place, (-values[box]).tobytes(), mask)
            values[box] *= -1
    dataset = open_lazily(path)
    array = array_of(dataset)
    assert array.manifest.is_in_source
    np.testing.assert_array_equal(dataset["v"][2:5, 2:5].values, values[2:5, 2:5])
    np.testing.assert_array_equal(dataset["v"][:].values, values)
    whole = virtualds.open_virtual_dataset(path)["v"].data
    behind = find_virtual(open_lazily(path)["v"].variable)
    assert isinstance(behind, ManifestArray) and behind.has_same_references(whole)


def test_small_indexes_are_read_on_opening(tmp_path: Path) -> None:
    path = tmp_path / "small.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=VALUES[:30, :30], chunks=(1, 1))
    array = array_of(open_lazily(path))
    assert array.manifest.is_loaded


def test_files_that_are_joined_are_read_whole(tree: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied.h5"
    copied.write_bytes(tree.read_bytes())
    dataset = virtualds.open_virtual_mfdataset(
        [tree, copied], concat_dim="phony_dim_0", combine="nested"
    )
    assert all(fragment.manifest.is_loaded for fragment in dataset["v"].data.fragments)
