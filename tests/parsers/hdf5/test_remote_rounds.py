"""HDF5 files on a server that answers late: requests, rounds of requests, and bytes.

A round is what is asked of a file at a time: its beginning, or some ranges together.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from counting_server import CountingHandler, counting_server

import virtualds
from virtualds.errors import FormatError
from virtualds.parsers.hdf5.file_structure import Blueprint
from virtualds.parsers.hdf5.group_reader import read_groups
from virtualds.parsers.hdf5.objects import HDF5Files
from virtualds.parsers.hdf5.structure.file_bytes import ByteNotes
from virtualds.source_file import SourceFile
from virtualds.stores.block_cache import FIRST_PAGES, NEAR_PAGES, PAGE_SIZE
from virtualds.stores.fsspec import FsspecStore

SERVER = Path(__file__).parents[2] / "benchmarks" / "latency_server.py"
DELAY_MS = 30
APART = FIRST_PAGES * PAGE_SIZE
NESTED: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}


class SlowServer:
    """A server of a folder, and what was asked of it."""

    def __init__(self, host: str, folder: Path) -> None:
        self.host, self.folder, self.url = host, folder, f"{host}/{folder.name}"

    def count(self, open_: Callable[[], xr.Dataset]) -> tuple[xr.Dataset, dict[str, int]]:
        """Open something, and return it with what it took; rounds are those of the file with most.

        The server cannot tell rounds apart but by time, so the store that asks counts them.
        """
        asked: list[str] = []
        read_head, get_ranges = FsspecStore.read_head, FsspecStore.get_ranges

        def read_head_noted(store: FsspecStore, url: str, *how: Any) -> Any:
            asked.append(url)
            return read_head(store, url, *how)

        def get_ranges_noted(store: FsspecStore, file: SourceFile, ranges: Any) -> Any:
            asked.append(file.url)
            return get_ranges(store, file, ranges)

        self._ask()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FsspecStore, "read_head", read_head_noted)
            patch.setattr(FsspecStore, "get_ranges", get_ranges_noted)
            found = open_()
        return found, self._ask() | {"rounds": max(Counter(asked).values())}

    def _ask(self) -> dict[str, int]:
        with urlopen(f"{self.host}/counts") as answer:
            counts: dict[str, int] = json.load(answer)
        return counts


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The url of a server, and its folder."""
    folder = tmp_path_factory.mktemp("served")
    command = [sys.executable, str(SERVER), str(folder), str(DELAY_MS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}", folder
        process.kill()


@pytest.fixture
def server(served: tuple[str, Path], tmp_path: Path) -> SlowServer:
    host, folder = served
    (folder / tmp_path.name).mkdir()
    return SlowServer(host, folder / tmp_path.name)


def scan(path: Any) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path, loadable_variables=[])


def collect_references(ds: xr.Dataset) -> dict[Any, Any]:
    """What is known of every variable, and where its bytes lie."""
    found = {}
    for name, variable in ds.variables.items():
        data = variable._data
        lies: Any = variable.to_numpy().tobytes()
        if isinstance(data, virtualds.ManifestArray):
            parts = [fragment.manifest.loaded() for fragment in data.fragments]
            lies = [(m.offset.tolist(), m.length.tolist()) for m in parts]
        found[name] = variable.dims, variable.shape, variable.dtype, str(variable.attrs), lies
    return found


def check_same(remote: xr.Dataset, local: xr.Dataset) -> None:
    assert collect_references(remote) == collect_references(local)
    assert str(remote.attrs) == str(local.attrs)
    assert dict(remote.sizes) == dict(local.sizes)


def count_levels(path: Path) -> int:
    """How many addresses lead to the last block of metadata, one after the other."""
    notes, source = ByteNotes(), SourceFile(f"file://{path}", path.stat().st_size)
    with HDF5Files(source, notes) as files:
        read_groups(files, frozenset(), "", below=False)
    return len(Blueprint(notes, 8, 8)._levels)


def write_far(file: Any, name: str, nbytes: int = APART) -> None:
    """Data that keep what is written before and after them apart."""
    file.create_dataset(name, data=np.arange(nbytes // 4, dtype="f4"))


def write_scattered(path: Path, count: int) -> None:
    """Headers all over the file, between the data."""
    with h5py.File(path, "w") as file:
        for number in range(count):
            write_far(file, f"v{number:02}")
            file[f"v{number:02}"].attrs["number"] = number


def write_dense(path: Path, count: int) -> None:
    """Datasets made late, whose attributes and indexes of chunks lie far from their headers."""
    with h5py.File(path, "w", libver="latest") as file:
        write_far(file, "first")
        for number in range(count):
            late = file.create_dataset(
                f"v{number:02}", (100, 10), "i2", chunks=(1, 10), maxshape=(None, 10)
            )
            write_far(file, f"between{number:02}")
            for order in range(20):
                late.attrs[f"a{order:02}"] = f"{number} {order}" * 20
            write_far(file, f"after{number:02}")
            late[:] = np.arange(1000).reshape(100, 10)


def write_strings(path: Path, count: int) -> None:
    """Attributes in many collections of the global heap."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", APART // 4)
        for number in range(count):
            variable = file.createVariable(f"v{number:02}", "f4", ("x",))
            variable.setncattr_string("long", f"{number}" * 3000)
            variable[:] = number


# ---------------------------------------------------------------------- one file


def test_a_small_file_takes_one_request(server: SlowServer) -> None:
    path = server.folder / "small.nc"
    write_strings(path, 0)
    with netCDF4.Dataset(path, "a") as file:
        file.createVariable("x", "i4", ("x",), zlib=True)[:] = 5
        file.createGroup("below").createVariable("y", "i4", ("x",), fill_value=3)
    for group in (None, "below"):
        url = f"{server.url}/small.nc"
        found, counts = server.count(
            lambda g=group, u=url: virtualds.open_virtual_dataset(u, group=g)
        )
        assert counts["requests"] == 1
        check_same(found, virtualds.open_virtual_dataset(path, group=group))
        _, counts = server.count(
            lambda g=group, u=url: xr.open_dataset(u, engine="virtual", group=g)
        )
        assert counts["requests"] == 1


@pytest.mark.parametrize("write", [write_scattered, write_dense, write_strings])
def test_rounds_are_as_many_as_levels_of_addresses(
    write: Callable[[Path, int], None], server: SlowServer
) -> None:
    rounds = []
    for count in (12, 30):
        path = server.folder / f"{count}.nc"
        write(path, count)
        found, counts = server.count(lambda n=path.name: scan(f"{server.url}/{n}"))
        check_same(found, scan(path))
        rounds.append(counts["rounds"])
        assert counts["rounds"] <= count_levels(path)
        # a piece for each object, and what is fetched behind and between them
        pieces = count * (3 + NEAR_PAGES) * 4
        assert counts["bytes"] < (counts["rounds"] * 2 * FIRST_PAGES + pieces) * PAGE_SIZE
    assert 1 < rounds[1] <= rounds[0] + 1, rounds


@pytest.mark.full
def test_groups_of_a_tree_are_read_together(server: SlowServer) -> None:
    path = server.folder / "tree.h5"
    rounds = []
    for count in (12, 30):
        with h5py.File(path, "w") as file:
            for number in range(count):
                group = file.create_group(f"g{number}")
                write_far(group, "v")
                write_far(group.create_group("below"), "w")
        url = f"{server.url}/tree.h5"
        tree, counts = server.count(
            lambda u=url: virtualds.open_virtual_datatree(u, loadable_variables=[])
        )
        local = virtualds.open_virtual_datatree(path, loadable_variables=[])
        for node in local.subtree:
            check_same(tree[node.path].to_dataset(), node.to_dataset())
        rounds.append(counts["rounds"])
    assert 1 < rounds[1] <= rounds[0] + 1, rounds


@pytest.mark.full
def test_trees_of_chunks_are_read_together(server: SlowServer) -> None:
    rounds = []
    for count in (4, 12):
        path = server.folder / f"{count}.h5"
        with h5py.File(path, "w", libver="earliest") as file:
            found = [
                file.create_dataset(f"v{number:02}", (100, 10), "i2", chunks=(1, 10))
                for number in range(count)
            ]
            for number, dataset in enumerate(found):
                write_far(file, f"between{number:02}")
                dataset[:] = number
        remote, counts = server.count(lambda n=path.name: scan(f"{server.url}/{n}"))
        check_same(remote, scan(path))
        rounds.append(counts["rounds"])
    assert 1 < rounds[1] <= rounds[0] + 1, rounds


def test_the_library_reads_a_remote_file_alike(server: SlowServer) -> None:
    path = server.folder / "dense.h5"
    write_dense(path, 2)
    with virtualds.set_options(hdf5="library"):
        check_same(scan(f"{server.url}/dense.h5"), scan(path))


# ---------------------------------------------------------------------- many files


def write_step(path: Path, number: int, *, far: bool) -> None:
    """A file of a series; ``far`` puts a variable behind the data."""
    with h5py.File(path, "w") as file:
        time = file.create_dataset("time", data=[float(number)])
        time.make_scale("time")
        file.create_dataset("x", data=np.arange(10.0)).make_scale("x")
        names = ("t", "u") if far else ("t",)
        for name in names:
            data = file.create_dataset(name, data=np.full((1, 10), number, "f4"), chunks=(1, 10))
            data.attrs["units"] = "K"
            data.dims[0].attach_scale(time)
            data.dims[1].attach_scale(file["x"])
            if far:
                write_far(file, f"far_{name}")


def join(paths: Any, **options: Any) -> xr.Dataset:
    return virtualds.open_virtual_mfdataset(
        list(paths), **NESTED, data_vars="minimal", compat="override", coords="minimal", **options
    )


@pytest.mark.full
@pytest.mark.parametrize("far", [False, True])
def test_a_hundred_files_of_one_structure_overlap(far: bool, server: SlowServer) -> None:
    paths = [server.folder / f"{number:03}.nc" for number in range(100)]
    for number, path in enumerate(paths):
        write_step(path, number, far=far)
    urls = [f"{server.url}/{path.name}" for path in paths]
    found, counts = server.count(lambda: join(urls))
    check_same(found, join(paths))
    assert found.sizes["time"] == 100
    assert counts["at_once"] > 8
    if far:
        assert counts["rounds"] <= count_levels(paths[0])
    else:
        assert (counts["requests"], counts["rounds"]) == (100, 1)


def test_requests_under_way_are_as_many_as_is_allowed(server: SlowServer) -> None:
    paths = [server.folder / f"{number:03}.nc" for number in range(30)]
    for number, path in enumerate(paths):
        write_step(path, number, far=False)
    with virtualds.set_options(max_requests=5):
        _, counts = server.count(lambda: join(f"{server.url}/{path.name}" for path in paths))
    assert counts["at_once"] == 5


def test_files_that_differ_are_not_fetched_twice(server: SlowServer) -> None:
    paths = [server.folder / f"{number:03}.nc" for number in range(30)]
    for number, path in enumerate(paths):
        write_step(path, number, far=False)
        with h5py.File(path, "a") as file:
            file["t"].attrs[f"a{number}"] = 1
    urls = [f"{server.url}/{path.name}" for path in paths]
    found, counts = server.count(lambda: join(urls))
    check_same(found, join(paths))
    # the first three, which show that the files differ
    assert counts["requests"] <= len(paths) + 3


@pytest.mark.full
def test_files_that_differ_overlap_too(server: SlowServer) -> None:
    paths = [server.folder / f"{number:03}.nc" for number in range(50)]
    for number, path in enumerate(paths):
        write_step(path, number, far=True)
        with h5py.File(path, "a") as file:
            file["t"].attrs["history"] = "x" * (number + 1)
            file["t"].attrs[f"a{number}"] = 1
    urls = [f"{server.url}/{path.name}" for path in paths]
    found, counts = server.count(lambda: join(urls))
    check_same(found, join(paths))
    assert counts["at_once"] > 8


# ---------------------------------------------------------------------- what goes wrong


class Dying(CountingHandler):
    """Has of one file nothing but its beginning."""

    def send_head(self) -> Any:
        if self.path.endswith("007.nc") and not self.headers["Range"].startswith("bytes=0-"):
            return self.send_error(404)
        return super().send_head()


def test_a_file_that_dies_between_rounds_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number:03}.nc" for number in range(10)]
    for number, path in enumerate(paths):
        write_step(path, number, far=True)
    with counting_server(tmp_path, Dying) as (url, _):
        with pytest.raises((FormatError, FileNotFoundError), match=r"007\.nc"):
            scan(f"{url}/007.nc")
        with pytest.raises((FormatError, FileNotFoundError), match=r"007\.nc"):
            join(f"{url}/{path.name}" for path in paths)
