"""A cached file is not opened again, by the next job or a resumed one."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from days import day
from pools import quick_processes
from programs import run_code
from range_server import faulty_server
from small_archive import halved, write

import virtualds
from virtualds.combine import file_cache
from virtualds.combine.file_cache import list_entries
from virtualds.datasets.lazy import get_virtual_array

FILES = 6


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "archive").mkdir()
    paths = [tmp_path / "archive" / f"{number}.nc" for number in range(FILES)]
    for number, path in enumerate(paths):
        write(path, number)
    return paths


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def open_all(paths: Any, **options: Any) -> xr.Dataset:
    options = {"combine": "nested", "concat_dim": "time", **options}
    return virtualds.open_virtual_mfdataset(paths, **options)


def list_parts(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


def cached(dataset: xr.Dataset) -> int:
    return int(dataset.virtual.report.cached)


def assert_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    xr.testing.assert_identical(found, expected)
    for name, variable in expected.variables.items():
        assert repr(found[name].encoding) == repr(variable.encoding)
        virtual, other = get_virtual_array(variable), get_virtual_array(found.variables[name])
        assert (virtual is None) == (other is None)
        assert virtual is None or virtual.has_same_references(other)


def test_the_cache_returns_files_as_they_were_opened(files: list[Path], cache: Path) -> None:
    expected = open_all(files)
    assert cached(open_all(files, cache=cache)) == 0
    found = open_all(files, cache=cache)
    assert cached(found) == FILES
    assert_same(found, expected)
    xr.testing.assert_identical(found.virtual.load(), expected.virtual.load())


def test_cached_files_are_not_opened(
    files: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_all(files, cache=cache)
    opened = []
    monkeypatch.setattr(
        "virtualds.datasets.open.reader_of",
        lambda *args: opened.append(args) or pytest.fail("opened"),
    )
    open_all(files, cache=cache)
    assert not opened


def test_a_daily_update_opens_only_new_files(
    files: list[Path], cache: Path, tmp_path: Path
) -> None:
    open_all(files[:-1], cache=cache)
    assert cached(open_all(files, cache=cache)) == FILES - 1


def test_a_file_that_has_changed_is_opened_anew(files: list[Path], cache: Path) -> None:
    open_all(files, cache=cache)
    write(files[2], 40)
    found = open_all(files, cache=cache)
    assert cached(found) == FILES - 1
    assert_same(found, open_all(files))
    assert cached(open_all(files, cache=cache)) == FILES


@pytest.mark.parametrize("damage", ["cut", "emptied", "other bytes", "a byte"])
def test_a_damaged_entry_is_made_anew(damage: str, files: list[Path], cache: Path) -> None:
    open_all(files[:2], cache=cache)
    expected = open_all(files, cache=cache)
    entry, _ = list_parts(cache)
    data = entry.read_bytes()
    lost = sum(len(listed.sources) for listed in list_entries(data))
    damaged = {
        "cut": data[:-1],
        "emptied": b"",
        "other bytes": b"something else",
        "a byte": data[:99] + bytes([data[99] ^ 1]) + data[100:],
    }
    entry.write_bytes(damaged[damage])
    found = open_all(files, cache=cache)
    assert (lost in (2, 4), cached(found)) == (True, FILES - lost)
    assert_same(found, expected)
    assert entry.read_bytes() == data


OTHERWISE: dict[str, dict[str, Any]] = {
    "variables": {"drop_variables": ["s"]},
    "loaded ones": {"loadable_variables": ["v"]},
    "decoding": {"decode_cf": False},
    "a parser": {"parser": "hdf5"},
    "kept variables": {"on_error": "keep"},
    "rules": {"allow": "/"},
}


@pytest.mark.parametrize("which", OTHERWISE)
def test_files_opened_with_other_options_have_other_entries(
    which: str, files: list[Path], cache: Path
) -> None:
    open_all(files, cache=cache)
    found = open_all(files, cache=cache, **OTHERWISE[which])
    assert cached(found) == 0
    assert_same(found, open_all(files, **OTHERWISE[which]))
    with virtualds.set_options(small_variable=0):
        assert cached(open_all(files, cache=cache)) == 0


def test_workers_cache_by_the_settings_of_the_process_that_began(
    files: list[Path], cache: Path
) -> None:
    with quick_processes(1) as pool:
        # it has started, with settings of its own
        pool.submit(os.getpid).result()
        with virtualds.set_options(small_variable=0):
            open_all(files, cache=cache, parallel=pool)
            assert cached(open_all(files, cache=cache)) == FILES
    assert cached(open_all(files, cache=cache)) == 0


def test_the_cache_never_keeps_results_of_preprocessing(files: list[Path], cache: Path) -> None:
    found = open_all(files, cache=cache, preprocess=halved)
    assert (found.sizes["x"], cached(found)) == (2, 0)
    again = open_all(files, cache=cache)
    assert (again.sizes["x"], cached(again)) == (4, FILES)


def test_cached_files_decode_by_themselves_if_the_first_of_their_part_has_changed(
    tmp_path: Path, cache: Path
) -> None:
    files = [tmp_path / f"{n}.nc" for n in range(6)]
    for number, path in enumerate(files):
        steps = 1 + number % 3
        day(number, steps).to_netcdf(path, encoding={"v": {"chunksizes": (steps, 4)}})
    open_all(files, cache=cache)
    day(9, 3).assign_attrs(title="written anew").to_netcdf(files[0])
    for given in (files[1:], [*files[4:], *files[1:3]]):
        seen: list[xr.Dataset] = []
        found = open_all(given, cache=cache, preprocess=lambda ds, seen=seen: seen.append(ds) or ds)
        assert cached(found) == len(given)
        for path, one in zip(given, seen, strict=True):
            assert_same(one, virtualds.open_virtual_dataset(path))
        assert_same(open_all(given, cache=cache), open_all(given))


def changed_in_place(ds: Any) -> Any:
    """Change all of a dataset that can be changed where it lies."""
    ds["height"].values[...] += 1
    for owner in (ds, *ds.variables.values()):
        for value in owner.attrs.values():
            if isinstance(value, np.ndarray):
                value += 1
    ds.encoding["unlimited_dims"].add("more")
    return ds


@pytest.mark.parametrize("engine", ["netcdf4", "scipy"])
def test_what_is_changed_in_place_does_not_reach_other_files_or_builds(
    engine: Any, tmp_path: Path
) -> None:
    files = [tmp_path / f"{n}.nc" for n in range(5)]
    for number, path in enumerate(files):
        made = day(number).assign_attrs(levels=[1.0, 2.0])
        made["v"].attrs["limits"] = [0.0, 9.0]
        made.to_netcdf(path, engine=engine, unlimited_dims=["time"])
    for count in (1, 5):
        expected = open_all(files[:count])
        for cache in (None, tmp_path / f"cache{count}"):
            # the values that were changed are not those that the cache keeps or gives next
            for _ in range(3):
                found = open_all(files[:count], cache=cache, preprocess=changed_in_place)
                np.testing.assert_array_equal(found["height"], 3.0)
                np.testing.assert_array_equal(found.attrs["levels"], [2.0, 3.0])
                np.testing.assert_array_equal(found["v"].attrs["limits"], [1.0, 10.0])
            changed_in_place(open_all(files[:count], cache=cache))
            assert_same(open_all(files[:count], cache=cache), expected)


def test_trees_are_cached_as_they_were_before_they_were_changed_in_place(
    files: list[Path], cache: Path
) -> None:
    def preprocess(tree: xr.DataTree) -> xr.DataTree:
        seen.append(tree.copy())
        del tree["v"]
        return tree

    for known in (0, FILES):
        seen: list[xr.DataTree] = []
        found = virtualds.open_virtual_mfdatatree(
            files, concat_dim="time", cache=cache, preprocess=preprocess
        )
        assert found.virtual.report.cached == known
        assert [get_virtual_array(tree["v"].variable) is None for tree in seen] == [False] * FILES


def test_trees_are_kept_apart_from_datasets(files: list[Path], cache: Path) -> None:
    open_all(files, cache=cache)
    for expected in (0, FILES):
        tree = virtualds.open_virtual_mfdatatree(files, concat_dim="time", cache=cache)
        assert tree.virtual.report.cached == expected
    xr.testing.assert_identical(tree, virtualds.open_virtual_mfdatatree(files, concat_dim="time"))


def test_folders_are_opened_each_time_since_they_may_change_inside(
    files: list[Path], cache: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store.zarr"
    xr.load_dataset(files[0]).to_zarr(store, zarr_format=2)
    for _ in range(2):
        assert cached(open_all([store], cache=cache)) == 0


def test_a_part_of_many_structures_is_read_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"{number}.nc" for number in range(8)]
    for number, path in enumerate(paths):
        day(number).rename(v=f"v{number}").to_netcdf(path)
    expected = open_all(paths, cache=cache)
    calls: list[str] = []
    for name in ("list_entries", "load_entry"):
        work = getattr(file_cache, name)
        count = partial(lambda name, work, *given: calls.append(name) or work(*given), name, work)
        monkeypatch.setattr(file_cache, name, count)
    found = open_all(paths, cache=cache)
    assert cached(found) == len(paths)
    assert_same(found, expected)
    assert len(list_parts(cache)) == calls.count("list_entries") == 1
    assert calls.count("load_entry") == len(paths)


def test_predicates_cannot_be_compared(files: list[Path], cache: Path) -> None:
    with pytest.raises(ValueError, match="loadable_variables is a function"):
        open_all(files, cache=cache, loadable_variables=lambda name, _: name == "v")


def test_files_that_fail_are_tried_again(files: list[Path], cache: Path) -> None:
    good = files[3].read_bytes()
    files[3].write_bytes(b"not yet")
    assert len(open_all(files, cache=cache, on_error="collect").virtual.report.left_out) == 1
    files[3].write_bytes(good)
    found = open_all(files, cache=cache, on_error="collect")
    assert (cached(found), found.virtual.report.opened) == (FILES - 1, 1)


def test_a_cache_that_cannot_be_written_is_an_error_not_a_bad_file(
    files: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "taken").write_bytes(b"a file, no folder")
    with pytest.raises(OSError, match="taken"):
        open_all(files, cache=tmp_path / "taken", on_error="collect")


def test_many_processes_may_use_a_cache(files: list[Path], cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: open_all(files, cache=cache), range(8)))
    for dataset in found:
        assert_same(dataset, found[0])
    assert len(list_parts(cache)) == 1


@pytest.mark.parametrize("etag", ['"a"', None])
def test_a_remote_file_costs_one_look_where_its_server_tells_versions(
    etag: str | None, files: list[Path], cache: Path
) -> None:
    with faulty_server(files[0].parent) as server:
        server.etag = etag
        urls = [f"{server.url}/{path.name}" for path in files]
        expected = open_all(urls, cache=cache)
        before = len(server.requests)
        found = open_all(urls, cache=cache)
        assert_same(found, expected)
        if etag is not None:
            assert cached(found) == FILES
            assert len(server.requests) - before == FILES
            server.etag = '"b"'
        assert cached(open_all(urls, cache=cache)) == 0


SCRIPT = """
import os, signal, sys
import virtualds

def progress(step):
    if step.done >= 16 and sys.argv[3] != "0":
        os.kill(os.getpid(), int(sys.argv[3]))
    if step.report:
        print(step.report.cached, step.report.opened)

virtualds.open_virtual_mfdataset(
    sys.argv[1], combine="nested", concat_dim="time", cache=sys.argv[2], progress=progress,
    preprocess=lambda dataset: dataset,
)
"""


@pytest.mark.full
@pytest.mark.skipif(os.name == "nt", reason="kills as POSIX does")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_job_resumes_where_it_stopped(
    how: signal.Signals, tmp_path: Path, cache: Path
) -> None:
    """Files that are read together are in the cache before the next are read."""
    paths = [tmp_path / f"{number:02}.nc" for number in range(40)]
    for number, path in enumerate(paths):
        write(path, number)
    killed = run_code(SCRIPT, tmp_path / "*.nc", cache, int(how))
    assert killed.returncode == -how
    again = run_code(SCRIPT, tmp_path / "*.nc", cache, 0)
    assert again.stdout.split() == ["16", "24"]
