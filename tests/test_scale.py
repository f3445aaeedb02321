"""Sets of millions of references cost only what a read needs, in files, bytes and memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from large_sets import METADATA, STEPS, archive, contents, counted

import virtualds
from virtualds.formats.zarr_manifests.set_files import MAX_CACHED_FILES, SetFiles
from virtualds.source_file import SourceFile

FILES = 30
SUFFIXES = {"zarr-v3": ".zarr", "kerchunk-parquet": ".parquet"}
MARKERS = {"zarr-v3": "zarr.json", "kerchunk-parquet": ".zmetadata"}


# ---------------------------------------------------------------------- counting


@contextmanager
def peak_of(bound: int) -> Iterator[None]:
    """Demand that Python and numpy never hold more bytes within the block than a bound."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < bound


# ---------------------------------------------------------------------- the sets


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sets of three million references, one of each format; do not write to them."""
    folder = tmp_path_factory.mktemp("sets")
    whole = archive(range(FILES))
    assert whole.virtual.nchunks == 3_000_000
    found = {name: folder / f"refs{suffix}" for name, suffix in SUFFIXES.items()}
    for target in found.values():
        whole.virtual.to_manifest(target)
    return found


@pytest.fixture(params=SUFFIXES)
def name(request: pytest.FixtureRequest) -> str:
    """The name of a format."""
    return str(request.param)


THREADS = """
import os, sys, threading, virtualds, pyarrow.parquet, xarray as xr
def foreign():
    return len(os.listdir("/proc/self/task")) - threading.active_count()
before = foreign()
step = virtualds.open_virtual_dataset(sys.argv[1]).isel(time=slice(7, 250))
assert step.v.data.manifest.loaded().length.all()
sys.exit(foreign() - before)
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="it counts what Linux lists")
def test_no_thread_of_a_library_holds_what_was_read(name: str, written: dict[str, Path]) -> None:
    # one that lets go of it when Python has ended brings the process down, once in a hundred
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # threads that hold nothing
    code = [sys.executable, "-c", THREADS, str(written[name])]
    assert subprocess.run(code, check=False, env=environment).returncode == 0


@pytest.fixture
def target(name: str, written: dict[str, Path], tmp_path: Path) -> Path:
    """A large set of one's own, of every format."""
    return Path(shutil.copytree(written[name], tmp_path / written[name].name))


def record_of(target: Path) -> int:
    """Return the bytes of the largest record of a set."""
    return max(size for size, _ in contents(target).values())


# ---------------------------------------------------------------------- what is asked of them

OPENERS: dict[str, Callable[[Path], xr.Dataset]] = {
    "virtual": virtualds.open_virtual_dataset,
    "lazy": lambda target: xr.open_dataset(target, engine="virtual"),
}


@pytest.mark.parametrize("opener", OPENERS)
def test_opening_reads_one_small_file(opener: str, name: str, target: Path) -> None:
    open_it = OPENERS[opener]
    open_it(target)  # imports take memory, once
    with counted(target) as traffic, peak_of(2**20):
        assert open_it(target)["v"].sizes["time"] == FILES * STEPS
    # once to see what it is, once to read it
    assert set(traffic.read) == {MARKERS[name]}
    assert traffic.read.total() <= 2
    assert traffic.nbytes_read < 2 * METADATA
    assert not traffic.written


def test_one_reference_is_one_record_of_references_and_one_of_sources(
    name: str, target: Path
) -> None:
    field = virtualds.open_virtual_dataset(target)["v"]
    one = {"time": slice(1550, 1551), "y": slice(50, 51), "x": slice(500, 501)}
    with counted(target) as traffic, peak_of(2**24):
        manifest = field.isel(one).variable.data.manifest.loaded()
    [file] = manifest.files
    expected = archive(range(FILES))["v"].isel(one).variable.data.manifest
    assert file.url == expected.files[expected.file.item()].url
    assert manifest.offset.item() == expected.offset.item()
    assert manifest.length.item() == expected.length.item()
    folders = Counter(path.split("/")[0] for path in traffic.read)
    assert folders == ({"v": 1, "__virtualds__": 1} if name == "zarr-v3" else {"v": 1})
    assert traffic.read.total() == len(traffic.read)
    assert traffic.nbytes_read <= record_of(target) + METADATA


POSITIONS = [("zarr-v3", "end"), ("zarr-v3", "start"), ("kerchunk-parquet", "end")]
"""Where a format grows without writing anew what it has."""


@pytest.mark.parametrize(("name", "position"), POSITIONS)
def test_growing_costs_what_is_new(name: str, position: str, target: Path) -> None:
    record, before = record_of(target), contents(target)
    for count in (1, 2, 3):
        more = archive(range(100 + count, 101 + count), steps=1)
        assert more.virtual.nchunks == 1000
        with counted(target) as traffic, peak_of(2**24):
            more.virtual.to_manifest(target, append_dim="time", position=position)
        # the record that the last addition began is filled further
        assert traffic.nbytes_written < record + METADATA
        assert traffic.nbytes_read < record + 4 * METADATA
        now = contents(target)
        assert {p for p in before if now.get(p) != before[p]} <= {MARKERS[name], "v/zarr.json"}
    grown = virtualds.open_virtual_dataset(target)["v"]
    assert grown.sizes["time"] == FILES * STEPS + 3
    added = slice(None, 3) if position == "start" else slice(-3, None)
    fragments = grown.isel(time=added).variable.data.fragments
    urls = [f.url for fragment in fragments for f in fragment.manifest.loaded().files]
    assert sorted(int(url[-9:-3]) for url in urls) == [101, 102, 103]


def test_additions_are_not_larger_than_their_references(
    written: dict[str, Path], tmp_path: Path
) -> None:
    target = Path(shutil.copytree(written["zarr-v3"], tmp_path / "refs.zarr"))
    alone = tmp_path / "alone.zarr"
    more = archive(range(100, 101), steps=1)
    more.virtual.to_manifest(alone, manifest="parquet")
    with counted(target) as traffic:
        more.virtual.to_manifest(target, append_dim="time")
    assert traffic.nbytes_written < sum(size for size, _ in contents(alone).values()) + METADATA


@pytest.mark.full
def test_variables_of_one_archive_read_the_table_of_their_files_once(tmp_path: Path) -> None:
    files, variables = 5000, 8
    urls = np.array([f"s3://bucket/product_{n:06d}.nc" for n in range(files)], dtype=object)
    one = virtualds.ManifestArray.from_arrays(
        shape=(files,), chunks=(1,), dtype="f4", path=urls, offsets=0, lengths=4
    )
    whole = xr.Dataset({f"v{number}": (("time",), one) for number in range(variables)})
    whole.virtual.to_manifest(tmp_path / "refs.zarr")
    vds = virtualds.open_virtual_dataset(tmp_path / "refs.zarr")
    with counted(tmp_path / "refs.zarr") as traffic:
        tables = [variable.data.manifest.loaded().files for variable in vds.variables.values()]
    assert all(table is tables[0] for table in tables)
    assert max(traffic.read.values()) == 1


def test_dropping_a_file_reads_only_what_may_be_of_it(
    written: dict[str, Path], tmp_path: Path
) -> None:
    target = Path(shutil.copytree(written["zarr-v3"], tmp_path / "refs.zarr"))
    for number in (100, 101):
        archive(range(number, number + 1)).virtual.to_manifest(target, append_dim="time")
    gone = "s3://bucket/some/long/prefix/product_000101.nc"
    with counted(target) as traffic:
        virtualds.drop_sources(target, gone, dim="time")
    assert virtualds.open_virtual_dataset(target).sizes["time"] == (FILES + 1) * STEPS
    # the table of the file has one record, that of the others has many
    assert traffic.nbytes_read < 4 * record_of(target) + METADATA


def test_a_set_caches_files_by_their_number(tmp_path: Path) -> None:
    """However many arrays and records refer to them, as when appends merge tables."""
    files = SetFiles(f"file://{tmp_path}", None)
    tables = [(SourceFile(f"s3://bucket/{n}"),) * 2000 for n in range(100)]
    many = (SourceFile("s3://bucket/many"),) * (MAX_CACHED_FILES + 1)

    def read_again() -> tuple[SourceFile, ...]:
        raise AssertionError("these are in the cache")

    for number, table in enumerate(tables):
        assert files.get_cached_files(number, lambda table=table: table) is table
    for number, table in enumerate(tables):
        assert files.get_cached_files(number, read_again) is table
    assert files.get_cached_files("many", lambda: many) is many
    assert files.get_cached_files("many", read_again) is many
    assert files.get_cached_files(0, lambda: ()) == ()
