"""Who reads what: each cell of the table on the page of comparison is tried.

The page is what is expected, so that it cannot say what is not true. "yes": the values are those of
the files, bit for bit. "no": the reader raises an error. Two files are alike, so that every format
holds them; a third differs from them in the length of its chunks and in its compression.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reading_side
import xarray as xr
from markup import table_between
from packaging.version import Version
from peers import peer
from reading_side import READERS
from repositories import own_repository
from serving import serving_apart

import virtualds

peer("zarr")
peer("kerchunk")
# the others speak of their own affairs
pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).parents[2] / "docs/explanation/comparison.md"
LIBRARIES = {"VirtualiZarr": "virtualizarr", "GDAL": "rasterio", "tensorstore": "tensorstore"}
"""Readers that are not there in every environment."""

COLUMNS = {
    "`.zarr` set": ["virtualds.zarr", "different.zarr"],
    "kerchunk JSON": ["virtualds.json", "virtualizarr.json", "kerchunk.json"],
    "kerchunk Parquet": ["virtualds.parquet", "virtualizarr.parquet", "kerchunk.parquet"],
    "Icechunk": ["virtualds.icechunk", "virtualizarr.icechunk"],
    "`virtualds serve`": ["virtualds.served", "different.served"],
}
"""The sets of a column, by who wrote them and how; all are read alike."""

OURS = r"virtualds\.(manifest|fragments)|chunk_key_encoding"
REASONS = {
    ("xarray", "`.zarr` set"): OURS,
    ("zarr-python", "`.zarr` set"): OURS,
    ("VirtualiZarr", "`.zarr` set"): OURS,
    ("VirtualiZarr", "`virtualds serve`"): "405 Method Not Allowed",
    ("GDAL", "`.zarr` set"): "storage_transformers are not supported",
    ("GDAL", "kerchunk Parquet"): "Read failed",
    ("GDAL", "Icechunk"): "No such file",
    ("tensorstore", "`.zarr` set"): OURS,
    ("tensorstore", "kerchunk JSON"): "does not exist",
    ("tensorstore", "kerchunk Parquet"): "does not exist",
    ("tensorstore", "Icechunk"): "does not exist",
}
"""What is said where nothing is read: it is a refusal, and no mistake of this test."""


TABLE = table_between(PAGE, "readers")
"""The cells of the page, by reader and column."""


def write_files(folder: Path) -> Any:
    """Write two files that are alike and one that is not, and return the values of all."""
    values = np.random.default_rng(0).normal(280, 10, (11, 6, 5)).astype("f4")
    for number, (start, stop, chunk) in enumerate([(0, 4, 2), (4, 8, 2), (8, 11, 3)]):
        axes = {"time": np.arange(start, stop), "y": np.arange(6), "x": np.arange(5)}
        part = xr.Dataset({"t": (("time", "y", "x"), values[start:stop])}, axes)
        part["time"].attrs["units"] = "days since 2001-01-01"
        stored = {"t": {"zlib": chunk == 2, "chunksizes": (chunk, 6, 5)}}
        part.to_netcdf(folder / f"{number}.nc", engine="netcdf4", encoding=stored)
    return values


def write_with_virtualds(folder: Path) -> None:
    files = [folder / f"{number}.nc" for number in range(3)]
    how: Any = {"combine": "nested", "concat_dim": "time"}
    virtualds.open_virtual_mfdataset(files, **how).virtual.to_manifest(folder / "different.zarr")
    vds = virtualds.open_virtual_mfdataset(files[:2], **how)
    for suffix in ("zarr", "json", "parquet"):
        vds.virtual.to_manifest(folder / f"virtualds.{suffix}")
    if has("icechunk"):
        vds.virtual.to_manifest(folder / "virtualds.icechunk")


def write_with_kerchunk(folder: Path) -> None:
    from kerchunk.combine import MultiZarrToZarr
    from kerchunk.df import refs_to_dataframe
    from kerchunk.hdf import SingleHdf5ToZarr

    files = [SingleHdf5ToZarr(str(folder / f"{n}.nc")).translate() for n in range(2)]
    how = {"concat_dims": ["time"], "identical_dims": ["y", "x"]}
    whole = MultiZarrToZarr(files, **how).translate()
    (folder / "kerchunk.json").write_text(json.dumps(whole))
    refs_to_dataframe(whole, str(folder / "kerchunk.parquet"))


def write_with_virtualizarr(folder: Path) -> None:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_mfdataset
    from virtualizarr.parsers import HDFParser

    vds = open_virtual_mfdataset(
        [f"file://{folder}/{number}.nc" for number in range(2)],
        registry=ObjectStoreRegistry({"file://": LocalStore()}),
        parser=HDFParser(),
        combine="nested",
        concat_dim="time",
        loadable_variables=["time", "y", "x"],
    )
    vds.vz.to_kerchunk(str(folder / "virtualizarr.json"), format="json")
    vds.vz.to_kerchunk(str(folder / "virtualizarr.parquet"), format="parquet")
    if has("icechunk"):
        session = own_repository(folder / "virtualizarr.icechunk", folder).writable_session("main")
        vds.vz.to_icechunk(session.store)
        session.commit("both files")


def has(library: str) -> bool:
    """Whether a library is there."""
    try:
        peer(library)
    except pytest.skip.Exception:
        return False
    return True


class Sets:
    """Sets of the same files in all formats, and what the readers make of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.values = folder, write_files(folder)
        write_with_virtualds(folder)
        write_with_kerchunk(folder)
        if has("virtualizarr"):
            write_with_virtualizarr(folder)
        names = [name for column in COLUMNS.values() for name in column]
        self.places = {name: str(folder / name) for name in names if (folder / name).exists()}

    @contextmanager
    def served(self) -> Iterator[Sets]:
        """Serve both `.zarr` sets, and note where all sets are."""
        with ExitStack() as stack:
            for name in ("virtualds", "different"):
                url = stack.enter_context(serving_apart(self.folder / f"{name}.zarr"))
                self.places[f"{name}.served"] = f"{url}zarr"
            (self.folder / "sets.json").write_text(json.dumps(self.places))
            yield self

    @cache  # noqa: B019
    def read_all(self, reader: str) -> Path:
        """Let a reader read all sets; return the folder with what it found."""
        command = [sys.executable, "-P", reading_side.__file__, reader, str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return self.folder / reader


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sets]:
    with Sets(tmp_path_factory.mktemp("sets")).served() as found:
        yield found


def test_the_page_says_what_is_tried_and_nothing_else() -> None:
    assert list(TABLE) == list(READERS)
    for reader, cells in TABLE.items():
        assert list(cells) == list(COLUMNS)
        refused = {column for column in COLUMNS if (reader, column) in REASONS}
        assert {column for column, cell in cells.items() if cell == "no"} == refused
        assert set(cells.values()) <= {"yes", "no"}


OLD = Version(version("zarr")) < Version("3.4.1")
"""This zarr-python opens no group of Zarr v3 with a key that need not be understood."""


# Each reader imports its libraries in a process of its own, and several write: all take 25 s.
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("reader", READERS)
def test_every_cell_of_the_page(reader: str, column: str, request: pytest.FixtureRequest) -> None:
    peer(LIBRARIES.get(reader, "zarr"))
    # made only where there is a reader
    sets = request.getfixturevalue("sets")
    names = [name for name in COLUMNS[column] if name in sets.places]
    if not names:
        pytest.skip(f"nobody can write {column} here")
    found = sets.read_all(reader)
    for name in names:
        if (
            OLD
            and name == "virtualds.icechunk"
            and reader in ("xarray", "zarr-python", "VirtualiZarr")
        ):
            said = (found / f"{name}.txt").read_text()
            assert "unexpected keyword argument 'virtualds'" in said
        elif TABLE[reader][column] == "yes":
            error = found / f"{name}.txt"
            assert not error.exists(), error.read_text()
            values = np.load(found / f"{name}.npy")
            expected = sets.values if name.startswith("different") else sets.values[:8]
            np.testing.assert_array_equal(values, expected, name, strict=True)
        else:
            assert not (found / f"{name}.npy").exists(), name
            assert re.search(REASONS[reader, column], (found / f"{name}.txt").read_text())
