"""The report says how many files were read in which way, and why the HDF5 library was needed."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest
import xarray as xr
from effort import others_soaked
from range_server import range_server
from unknown_form import UNKNOWN, write_known, write_unknown

import virtualds
from virtualds.arrays.group import ALONE, LIBRARY, ReadMethod
from virtualds.combine.report import FilesRead, LibraryReason
from virtualds.combine.workers import FileCount, add_counts

pytestmark = pytest.mark.usefixtures("_processes_take_part")

FILES, OTHER, STRANGE = 26, 20, 21
"""How many files there are, and the numbers of one of another form, and of one of an unknown form.
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    paths = [folder / f"{number:02}.h5" for number in range(FILES)]
    for number, path in enumerate(paths):
        if number == STRANGE:
            write_unknown(path, number)
        else:
            write_known(path, number, "latest" if number == OTHER else "earliest")
    return paths


def open_all(paths: Any, **options: Any) -> xr.Dataset:
    options = {"combine": "nested", "concat_dim": "time", **options}
    return virtualds.open_virtual_mfdataset(paths, **options)


def read(found: xr.Dataset) -> FilesRead:
    assert found.virtual.report is not None
    return found.virtual.report.read


def test_every_way_is_counted_and_the_unknown_form_is_named(files: list[Path]) -> None:
    found = open_all(files)
    [reason] = read(found).reasons
    assert read(found) == FilesRead(FILES - 2, 1, 1, (reason,))
    assert UNKNOWN in reason.reason
    assert (reason.files, reason.example) == (1, str(files[STRANGE]))
    line = f"  HDF5 files read  {FILES - 2} together, 1 alone, 1 through the HDF5 library"
    assert line in str(found.virtual.report).splitlines()
    np.testing.assert_array_equal(found["v3"], np.arange(2.0 * FILES))


WHO = ["thread", "threads", "server", "processes", "dask"]
PAIRS = [("threads", True), ("server", False), ("processes", True), ("dask", False)]


@pytest.mark.parametrize(("which", "to"), others_soaked(product(WHO, [False, True]), PAIRS))
def test_all_workers_tell(
    which: str, to: bool, files: list[Path], cluster: distributed.Client, tmp_path: Path
) -> None:
    options = {"to": tmp_path / "set.zarr"} if to else {}
    with range_server(files[0].parent) as (url, _), ThreadPoolExecutor(3) as pool:
        ways = {"thread": 1, "threads": pool, "server": 3, "processes": 2, "dask": cluster}
        paths = [f"{url}/{path.name}" for path in files] if which == "server" else files
        found = read(open_all(paths, parallel=ways[which], **options))
    assert found.together + found.alone == FILES - 1
    assert found.library == 1
    [reason] = found.reasons
    assert UNKNOWN in reason.reason
    assert reason.example == str(paths[STRANGE])


def test_processes_and_clusters_read_files_together_too(
    files: list[Path], cluster: distributed.Client, tmp_path: Path
) -> None:
    for parallel in (2, cluster):
        found = read(open_all(files[:OTHER], parallel=parallel, to=tmp_path / "set.zarr", mode="w"))
        assert found.together >= OTHER // 2


def test_files_that_are_prepared_one_by_one_are_read_together(files: list[Path]) -> None:
    assert read(open_all(files, preprocess=lambda dataset: dataset)) == read(open_all(files))


def test_trees_tell_too(files: list[Path]) -> None:
    tree = virtualds.open_virtual_mfdatatree(files[OTHER:], concat_dim="time")
    assert tree.virtual.report is not None
    found = tree.virtual.report.read
    assert (found.together, found.alone, found.library) == (4, 1, 1)


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_setting_is_a_reason(parallel: int, files: list[Path]) -> None:
    with virtualds.set_options(hdf5="library"):
        found = read(open_all(files, parallel=parallel))
    setting = LibraryReason("set_options(hdf5='library')", FILES, str(files[0]))
    assert found == FilesRead(library=FILES, reasons=(setting,))


def test_a_variable_without_references_is_named(files: list[Path], tmp_path: Path) -> None:
    import h5py

    odd = shutil.copy(files[0], tmp_path / "odd.h5")
    with h5py.File(odd, "a") as file:
        file.create_dataset("places", (2,), dtype=h5py.regionref_dtype)
    with pytest.warns(UserWarning, match="places"):
        found = open_all([odd, files[1]], on_error="keep")
    [reason] = read(found).reasons
    assert reason.reason.startswith("places: its type reference cannot be read")
    assert "drop_variables" not in reason.reason


def test_files_from_the_cache_and_those_left_out_are_not_counted(
    files: list[Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.h5"
    broken.write_bytes(files[0].read_bytes()[:1000])
    paths = [*files[:3], broken]
    for expected in (FilesRead(together=3), FilesRead()):
        with pytest.warns(UserWarning, match="left out"):
            found = open_all(paths, on_error="skip", cache=tmp_path / "cache")
        assert read(found) == expected


def test_files_of_other_formats_are_not_counted(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.nc" for number in range(3)]
    for number, path in enumerate(paths):
        xr.Dataset({"v": ("time", [number])}).to_netcdf(path, engine="scipy")
    found = open_all(paths)
    assert read(found) == FilesRead()
    assert "HDF5" not in str(found.virtual.report)


def test_the_reasons_of_most_files_come_first_and_ten_are_given() -> None:
    # whichever worker was faster
    methods = [ReadMethod(LIBRARY, f"form {min(n, 20)}") for n in range(30)] + [ALONE]
    ways: dict[ReadMethod, FileCount] = {}
    for n in reversed(range(31)):
        add_counts({methods[n]: FileCount(1, n)}, ways)
    found = FilesRead.of(ways, [f"https://example.org/{n}.nc?token=abc" for n in range(31)])
    assert (found.alone, found.library) == (1, 30)
    assert found.reasons[0] == ("form 20", 10, "https://example.org/20.nc?token=...")
    assert [reason.reason for reason in found.reasons[1:]] == [f"form {n}" for n in range(9)]
    assert str(found).splitlines()[-1] == "  11     other reasons"
    assert pickle.loads(pickle.dumps(found)) == found


def test_reasons_of_more_files_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="more reasons than files"):
        FilesRead(reasons=(LibraryReason("none", 1, "a.nc"),))


def test_files_of_any_name_may_be_read_together(files: list[Path], tmp_path: Path) -> None:
    """Many archives name their files after a satellite, without an ending that tells the format."""
    named = [shutil.copy(path, tmp_path / f"{path.stem}.A2001") for path in files[:4]]
    assert read(open_all(named)) == FilesRead(4, 0, 0, ())


def test_the_log_has_how_files_were_read(
    files: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="virtualds"):
        found = open_all(files[:4])
    assert f"HDF5 files: {read(found)}" in caplog.text
