"""Filled templates: others read what we write, Icechunk's commits hold no cell twice or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from forecasts import CELLS, Forecasts, fill
from peers import peer

import virtualds
from virtualds import CombineError, ManifestArray

icechunk = peer("icechunk")
pytestmark = pytest.mark.filterwarnings("ignore")

LOCAL = icechunk.credentials.LocalFileSystemAccess


@pytest.fixture(scope="module")
def forecasts(tmp_path_factory: pytest.TempPathFactory) -> Forecasts:
    found = Forecasts(tmp_path_factory.mktemp("forecasts"))
    for cell in CELLS:
        found.path(cell)
    return found


def by_icechunk(path: Path) -> xr.Dataset:
    storage = icechunk.local_filesystem_storage(str(path))
    config = icechunk.Repository.fetch_config(storage)
    # a template refers to no files yet
    known = dict.fromkeys(config.virtual_chunk_containers or {}, LOCAL) if config else {}
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=known)
    store = repository.readonly_session(branch="main").store
    return xr.open_zarr(store, consolidated=False, chunks=None)


def by_zarr_python(path: Path) -> xr.Dataset:
    options = {"fo": str(path), "remote_protocol": "file", "asynchronous": True}
    filesystem = fsspec.filesystem("reference", **options)
    from zarr.storage import FsspecStore

    return xr.open_zarr(FsspecStore(filesystem, path=""), consolidated=False, chunks=None)


def by_kerchunk(path: Path) -> xr.Dataset:
    return xr.open_dataset(str(path), engine="kerchunk")


def by_virtualds(path: Path) -> xr.Dataset:
    return xr.open_dataset(path, engine="virtual")


READERS: list[tuple[str, Callable[[Path], xr.Dataset]]] = [
    ("refs.icechunk", by_icechunk),
    ("refs.icechunk", by_virtualds),
    ("refs.json", by_zarr_python),
    ("refs.json", by_kerchunk),
    ("refs.parquet", by_zarr_python),
    ("refs.parquet", by_kerchunk),
]


@pytest.mark.parametrize(("name", "read"), READERS)
def test_others_read_filled_templates(
    name: str, read: Callable[[Path], xr.Dataset], forecasts: Forecasts, tmp_path: Path
) -> None:
    order = random.Random(7).sample(CELLS, 8)
    forecasts.template().virtual.to_manifest(tmp_path / name)
    xr.testing.assert_equal(read(tmp_path / name).load(), forecasts.expected([]))
    for cell in order:
        fill(tmp_path / name, forecasts.virtual(cell))
    xr.testing.assert_equal(read(tmp_path / name).load(), forecasts.expected(order))


def test_icechunk_refuses_leaves_and_replaces_cells(forecasts: Forecasts, tmp_path: Path) -> None:
    refs = tmp_path / "refs.icechunk"
    forecasts.template().virtual.to_manifest(refs)
    fill(refs, forecasts.virtual(CELLS[0]))
    with pytest.raises(CombineError, match="2 chunks of the region"):
        fill(refs, forecasts.virtual(CELLS[0]))
    fill(refs, forecasts.virtual(CELLS[0]), on_duplicate="skip")
    xr.testing.assert_equal(by_icechunk(refs).load(), forecasts.expected(CELLS[:1]))
    other = forecasts.virtual(CELLS[1]).drop_vars(["init", "lead", "member"])
    place = {"init": slice(0, 1), "lead": slice(0, 2), "member": slice(0, 1)}
    other.virtual.to_manifest(refs, region=place, on_duplicate="replace")
    found = by_icechunk(refs).isel(place)["t2m"]
    np.testing.assert_array_equal(found, forecasts.of(CELLS[1])["t2m"])


def test_many_writers_of_icechunk_lose_no_cell(forecasts: Forecasts, tmp_path: Path) -> None:
    refs = tmp_path / "refs.icechunk"
    forecasts.template().virtual.to_manifest(refs)

    def fill_all(cells: list[Any]) -> None:
        for cell in cells:
            fill(refs, forecasts.virtual(cell), conflict="retry")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(fill_all, [CELLS[number::3] for number in range(3)]))
    xr.testing.assert_equal(by_icechunk(refs).load(), forecasts.expected(CELLS))


def huge(path: Path, shape: tuple[int, ...]) -> xr.Dataset:
    """Numbers of which each is a chunk."""
    path.write_bytes(np.arange(100, dtype="<f4").tobytes())
    array = ManifestArray.from_arrays(
        shape=shape, chunks=(1, 1, 1), dtype="<f4", path=path.as_uri(),
        offsets=np.arange(100).reshape(shape) * 4, lengths=4,
    )  # fmt: skip
    return xr.Dataset({"v": (("init", "lead", "member"), array)}, {"init": [500]})


@pytest.mark.parametrize(("name", "read"), [READERS[0], READERS[2], READERS[4]])
def test_others_read_few_references_on_a_huge_grid(
    name: str, read: Callable[[Path], xr.Dataset], tmp_path: Path
) -> None:
    one = huge(tmp_path / "numbers.bin", (1, 10, 10))
    sizes = {"lead": 1000, "member": 1000}
    virtualds.template(one, {"init": np.arange(1000)}, sizes=sizes).virtual.to_manifest(
        tmp_path / name
    )
    region = {"init": "auto", "lead": slice(5, 15), "member": slice(990, 1000)}
    one.virtual.to_manifest(tmp_path / name, region=region)
    found = read(tmp_path / name)["v"]
    assert found.shape == (1000, 1000, 1000)
    assert found[500, 5:15, 990:].values.ravel().tolist() == list(range(100))
    assert np.isnan(found[499:501, 0:3, 0:2].values).all()
