"""What xarray's users call to get values: it loads virtual arrays, or says what to call."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from cases import Archive
from range_server import faulty_server

import virtualds
from virtualds import ManifestArray, ReadError, UnsupportedError, accessors


@pytest.fixture(scope="module")
def path(archive: Archive) -> Path:
    return archive.path("larger_than_small")


@pytest.fixture
def vds(path: Path) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path)


@pytest.fixture
def tree(path: Path) -> xr.DataTree:
    return virtualds.open_virtual_datatree(path)


@pytest.fixture
def native(archive: Archive) -> xr.Dataset:
    return archive.native("larger_than_small").load()


class Meeting(threading.Barrier):
    """Where requests wait for the event loop, with a word that they have come."""

    def __init__(self, asked: threading.Event, go_on: threading.Event) -> None:
        super().__init__(1)
        self.asked, self.go_on = asked, go_on

    def wait(self, timeout: float | None = None) -> int:
        self.asked.set()
        assert self.go_on.wait(60)
        return 0


def kinds(ds: xr.Dataset | xr.DataTree) -> set[type]:
    """The types of the arrays of all data variables."""
    return {type(v.variable._data) for v in ds.data_vars.values()}


LOADS: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "load": lambda ds: ds.load(),
    "compute": lambda ds: ds.compute(),
    "as_numpy": lambda ds: ds.as_numpy(),
    "of arrays": lambda ds: xr.Dataset({n: v.load() for n, v in ds.items()}, attrs=ds.attrs),
    "compute of arrays": lambda ds: xr.Dataset(
        {n: v.compute() for n, v in ds.items()}, attrs=ds.attrs
    ),
    "chunk": lambda ds: ds.chunk(time=5).compute(),
    "with dask beside it": lambda ds: ds.assign(p=ds["p"].chunk()).load(),
    "of a part": lambda ds: ds.isel(time=slice(3, 9)).load(),
    "after a concatenation": lambda ds: xr.concat([ds, ds], "time").load().isel(time=slice(12)),
    "from another process": lambda ds: pickle.loads(pickle.dumps(ds)).load(),
    "a copy": lambda ds: ds.copy(deep=True).load(),
}


@pytest.mark.parametrize("which", LOADS)
def test_what_loads_in_xarray_loads_virtual_arrays(
    which: str, vds: xr.Dataset, native: xr.Dataset
) -> None:
    loaded = LOADS[which](vds)
    assert kinds(loaded) == {np.ndarray}
    same_part = native.sel(time=loaded["time"])
    xr.testing.assert_identical(loaded, same_part)


def test_load_works_in_place_and_compute_on_a_copy(vds: xr.Dataset) -> None:
    assert kinds(vds.compute()) == {np.ndarray}
    assert kinds(vds) == {ManifestArray}
    assert vds.load() is vds
    assert kinds(vds) == {np.ndarray}


def test_trees_load_in_all_groups(tmp_path: Path, native: xr.Dataset) -> None:
    xr.DataTree.from_dict({"/": native, "/a/b": native * 2}).to_netcdf(tmp_path / "tree.nc")
    for load in (xr.DataTree.load, xr.DataTree.compute):
        tree = virtualds.open_virtual_datatree(tmp_path / "tree.nc", loadable_variables=[])
        loaded = load(tree)
        assert all(kinds(node) <= {np.ndarray} for node in loaded.subtree)
        np.testing.assert_array_equal(loaded["a/b/v"].values, native["v"].values * 2)


@pytest.mark.skipif(not hasattr(xr.Dataset, "load_async"), reason="an xarray without load_async")
def test_loading_may_be_awaited(vds: xr.Dataset, native: xr.Dataset) -> None:
    xr.testing.assert_identical(asyncio.run(vds.load_async()), native)
    assert kinds(vds) == {np.ndarray}


@pytest.mark.skipif(not hasattr(xr.Dataset, "load_async"), reason="an xarray without load_async")
def test_the_event_loop_goes_on_while_bytes_are_read(path: Path) -> None:
    with faulty_server(path.parent) as server:
        vds = virtualds.open_virtual_dataset(f"{server.url}/{path.name}")
        # each request waits until the event loop has come to it, or fails in the end
        asked, go_on = threading.Event(), threading.Event()
        server.together = Meeting(asked, go_on)

        async def load() -> None:
            loading = asyncio.create_task(vds.load_async())
            while not asked.is_set():
                await asyncio.sleep(0.001)
            assert not loading.done()
            go_on.set()
            await loading

        asyncio.run(load())
    assert kinds(vds) == {np.ndarray}


LOADING: dict[str, Callable[[xr.Dataset], xr.Dataset | xr.DataTree]] = {
    "a dataset": lambda ds: ds,
    "a tree": lambda ds: xr.DataTree.from_dict({"/a/b": ds}),
}


@pytest.mark.parametrize("which", LOADING)
def test_an_error_leaves_everything_as_it_was_and_names_the_variable(
    which: str, vds: xr.Dataset, tmp_path: Path
) -> None:
    (tmp_path / "gone.bin").write_bytes(bytes(80))
    lost = ManifestArray.from_arrays(
        shape=(10,), chunks=(10,), dtype="f8", path=f"{tmp_path}/gone.bin", offsets=0, lengths=80
    )
    loaded = LOADING[which](vds.assign(lost=("n", lost)))
    (tmp_path / "gone.bin").unlink()
    with pytest.raises(ReadError) as caught:
        loaded.load()
    group = "group /a/b: " if which == "a tree" else ""
    assert str(caught.value).startswith(f"{group}variable 'lost': file://{tmp_path}/gone.bin")
    nodes = loaded.subtree if isinstance(loaded, xr.DataTree) else [loaded]
    assert set().union(*map(kinds, nodes)) == {ManifestArray}


def test_a_reload_of_the_module_changes_no_method_again() -> None:
    before = [getattr(kind, name, None) for kind, name in accessors.METHODS]
    importlib.reload(accessors)
    assert [getattr(kind, name, None) for kind, name in accessors.METHODS] == before


STAYS: dict[str, Callable[[xr.Dataset], Any]] = {
    "persist": lambda ds: ds.persist(),
    "copy": lambda ds: ds.copy(deep=True),
    "pickle": lambda ds: pickle.loads(pickle.dumps(ds)),
    "dask.compute": lambda ds: dask.compute(ds)[0],
    # xarray calls this while it combines, where references are enough
    "a variable": lambda ds: ds.assign(v=ds.variables["v"].load()),
    "comparing": lambda ds: xr.concat(
        [ds, ds.isel(time=[0])], "time", data_vars="different", compat="equals", join="outer"
    ),
}


@pytest.mark.parametrize("which", STAYS)
def test_what_does_not_load_stays_virtual(which: str, vds: xr.Dataset) -> None:
    assert kinds(STAYS[which](vds)) == {ManifestArray}


WRITES: dict[str, Callable[[Any, Path], Any]] = {
    "to_netcdf": lambda ds, path: ds.to_netcdf(path),
    "to_zarr": lambda ds, path: ds.to_zarr(path),
}


@pytest.mark.parametrize("which", WRITES)
@pytest.mark.parametrize("kind", ["vds", "tree"])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_xarray_writes_the_same_files_of_virtual_arrays_as_of_others(
    which: str, kind: str, tmp_path: Path, path: Path, request: pytest.FixtureRequest
) -> None:
    with xr.open_dataset(path) as others:
        WRITES[which](others, tmp_path / "native")
    WRITES[which](request.getfixturevalue(kind), tmp_path / "virtual")
    engine = {"to_netcdf": "netcdf4", "to_zarr": "zarr"}[which]
    with (
        xr.open_dataset(tmp_path / "native", engine=engine) as expected,
        xr.open_dataset(tmp_path / "virtual", engine=engine) as found,
    ):
        xr.testing.assert_identical(found.load(), expected.load())


LIMITED: dict[str, Callable[[xr.Dataset, Path], Any]] = {
    "load": lambda ds, path: ds.load(),
    "compute": lambda ds, path: ds.compute(),
    "load of an array": lambda ds, path: ds["v"].load(),
    "load of a tree": lambda ds, path: xr.DataTree(ds).load(),
    "values": lambda ds, path: ds["v"].values,
    "to_netcdf": lambda ds, path: ds.to_netcdf(path),
}


@pytest.mark.parametrize("which", LIMITED)
def test_more_than_the_limit_is_refused_and_a_second_line_says_what_to_call(
    which: str, vds: xr.Dataset, tmp_path: Path
) -> None:
    with virtualds.set_options(load_limit=100), pytest.raises(UnsupportedError) as caught:
        LIMITED[which](vds, tmp_path / "copy.nc")
    happened, remedy = str(caught.value).split("\n")
    assert "more than the limit of 100" in happened
    assert "ds.virtual.load() to load it all the same" in remedy
    assert kinds(vds) == {ManifestArray}


def test_ordinary_datasets_load_as_ever(archive: Archive) -> None:
    ds = xr.open_dataset(archive.path("larger_than_small"))
    with virtualds.set_options(load_limit=0):
        assert kinds(ds.load()) == {np.ndarray}
    ds.close()


def test_load_keeps_its_name_and_its_help() -> None:
    for kind in (xr.Dataset, xr.DataTree):
        assert kind.load.__qualname__ == f"{kind.__name__}.load"
        assert "dask" in str(kind.load.__doc__)
