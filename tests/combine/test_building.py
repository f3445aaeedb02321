"""Many files become one dataset: workers, failures and progress."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import distributed
import h5py
import pytest
import xarray as xr
from effort import others_soaked
from pools import quick_context, quick_processes
from programs import run_code
from range_server import Fault, faulty_server
from small_archive import halved, refusing, write

import virtualds
from virtualds import AccessError, BuildReport, FormatError, Progress
from virtualds.combine import workers
from virtualds.datasets.lazy import get_virtual_array
from virtualds.stores.requests import MAX_WAIT

pytestmark = pytest.mark.usefixtures("_processes_take_part")

FILES = 12


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Twelve files; do not write to them."""
    folder = tmp_path_factory.mktemp("files")
    paths = [folder / f"{number:02}.nc" for number in range(FILES)]
    for number, path in enumerate(paths):
        write(path, number)
    return paths


def open_all(paths: Any, **options: Any) -> xr.Dataset:
    options = {"combine": "nested", "concat_dim": "time", **options}
    return virtualds.open_virtual_mfdataset(paths, **options)


def assert_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    """In references, values, attributes and encoding."""
    xr.testing.assert_identical(found, expected)
    assert found.encoding == expected.encoding
    for name, variable in expected.variables.items():
        assert repr(found[name].encoding) == repr(variable.encoding)
        virtual, other = get_virtual_array(variable), get_virtual_array(found.variables[name])
        assert (virtual is None) == (other is None)
        assert virtual is None or virtual.has_same_references(other)


def named(paths: list[Path], bad: dict[int, Callable[[Path], object]], folder: Path) -> list[Path]:
    """Return the files with some of them replaced by bad ones."""
    found = list(paths)
    for number, spoil in bad.items():
        found[number] = folder / f"bad{number}.nc"
        spoil(found[number])
    return found


def garbage(path: Path) -> None:
    path.write_bytes(b"no netCDF at all")


def absent(path: Path) -> None:
    pass


def one_variable_unreadable(path: Path) -> None:
    write(path, 5)
    with h5py.File(path, "a") as file:
        # a filter that no library knows
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk((1, 4))
        dcpl.set_filter(310, h5py.h5z.FLAG_OPTIONAL, (1,))
        space = h5py.h5s.create_simple((2, 4))
        h5py.h5d.create(file.id, b"rare", h5py.h5t.IEEE_F64LE, space, dcpl)


# ---------------------------------------------------------------------- who opens them

WAYS: dict[str, Callable[[distributed.Client], AbstractContextManager[Any]]] = {
    "a number of processes": lambda _: nullcontext(2),
    "one": lambda _: nullcontext(1),
    "threads of the user": lambda _: ThreadPoolExecutor(2),
    "processes of the user": lambda _: quick_processes(2),
    "a client of dask": nullcontext,
    "the current client of dask": lambda _: nullcontext("dask"),
}
TRIED = {*WAYS} - {"one", "the current client of dask"}


@pytest.mark.parametrize("way", others_soaked(WAYS, TRIED))
def test_all_workers_give_the_same_result(
    way: str, files: list[Path], cluster: distributed.Client, tmp_path: Path
) -> None:
    bad = named(files, {3: garbage, 7: absent}, tmp_path)
    with WAYS[way](cluster) as parallel:
        assert_same(open_all(files, parallel=parallel), open_all(files))
        found = open_all(files, parallel=parallel, preprocess=halved)
        assert_same(found, open_all(files, preprocess=halved))
        with pytest.raises(FormatError, match=r"bad3\.nc"):
            open_all(bad, parallel=parallel)
        with pytest.raises(KeyError, match=r"nothing at 8\.0") as caught:
            open_all(files, parallel=parallel, preprocess=partial(refusing, first=8.0))
        assert f"file {files[4]}" in caught.value.__notes__
        left = open_all(bad, parallel=parallel, on_error="collect")
        report = left.virtual.report
        assert (report.opened, [Path(lost.url) for lost in report.left_out]) == (
            FILES - 2,
            [bad[3], bad[7]],
        )
        assert_same(left, open_all([*files[:3], *files[4:7], *files[8:]]))


def with_process(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.assign(process=("time", [os.getpid()] * dataset.sizes["time"]))


def test_settings_go_along_to_processes(files: list[Path]) -> None:
    with virtualds.set_options(small_variable=0):
        found = open_all(files, parallel=2, preprocess=with_process)
        assert len(set(found["process"].values.tolist())) == 2
        assert_same(found.drop_vars("process"), open_all(files))


def test_this_process_opens_files_while_others_start(files: list[Path]) -> None:
    found = set(open_all(files, parallel=2, preprocess=with_process)["process"].values.tolist())
    assert os.getpid() in found
    assert len(found) == 2


def test_files_do_not_wait_for_processes(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_IMPORTED", threading.Event())
    monkeypatch.setattr(workers, "_start_fork_server", lambda: None)
    found = open_all(files, parallel=2, preprocess=with_process)
    assert set(found["process"].values.tolist()) == {os.getpid()}


def test_errors_name_the_first_failing_file_in_order(tmp_path: Path) -> None:
    paths = [tmp_path / "a.nc", tmp_path / "b.nc"]
    for path, times in zip(paths, [(0.0, 1.0), (1.0, 2.0)], strict=True):
        xr.Dataset({"v": ("time", [1.0, 2.0])}, {"time": list(times)}).to_netcdf(path)
    is_one_done = threading.Event()

    def second_first(dataset: xr.Dataset) -> xr.Dataset:
        if dataset.encoding["source"].endswith("a.nc"):
            assert is_one_done.wait(300)
        return dataset

    def told(progress: Progress) -> None:
        if progress.done:
            is_one_done.set()

    with (
        ThreadPoolExecutor(2) as pool,
        pytest.raises(virtualds.CombineError, match=r"the first from \S*a\.nc and \S*b\.nc"),
    ):
        virtualds.open_virtual_mfdataset(
            paths, parallel=pool, preprocess=second_first, progress=told
        )


IMPORTED = """
from virtualds.combine import workers
with workers.start_processes(1) as (pool, can_start):
    assert workers._IMPORTED.wait(300) and can_start()
    print(pool.submit(eval, "sorted(__import__('sys').modules)").result())
"""


@pytest.mark.full
@pytest.mark.skipif(workers.METHOD != "forkserver", reason="nothing is forked from a server")
def test_processes_start_with_what_they_need_imported() -> None:
    said = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=300
    )
    assert not said.returncode, said.stderr
    assert all(repr(name) in said.stdout for name in workers.PRELOADED)


def test_a_daemon_cannot_start_processes_and_the_error_says_so(files: list[Path]) -> None:
    options = {"combine": "nested", "concat_dim": "time", "parallel": 2}
    with (
        quick_context().Pool(1) as pool,
        pytest.raises(RuntimeError, match=r"is a daemon.*parallel=1"),
    ):
        pool.apply(virtualds.open_virtual_mfdataset, (files,), options)


def test_trees_are_opened_by_processes_too(files: list[Path]) -> None:
    opened = partial(virtualds.open_virtual_mfdatatree, files, concat_dim="time")
    found = opened(parallel=2)
    xr.testing.assert_identical(found, opened())
    assert found.virtual.report.opened == FILES


NO_WAYS: dict[str, tuple[Any, str]] = {
    "none": (0, "at least one"),
    "a word": ("threads", "give a number of workers"),
    "a truth": (True, "give a number of workers"),
}


@pytest.mark.parametrize("which", NO_WAYS)
def test_other_ways_are_refused(which: str, files: list[Path]) -> None:
    parallel, message = NO_WAYS[which]
    with pytest.raises(ValueError, match=message):
        open_all(files, parallel=parallel)


def test_without_a_client_dask_says_how_to_make_one(files: list[Path]) -> None:
    code = (
        "import virtualds, sys\n"
        "try: virtualds.open_virtual_mfdataset(sys.argv[1:], parallel='dask')\n"
        "except ValueError as error: print(error)"
    )
    said = run_code(code, files[0], check=True)
    assert "client = Client()" in said.stdout


# ---------------------------------------------------------------------- faults


def test_files_that_fail_are_left_out_with_one_warning(files: list[Path], tmp_path: Path) -> None:
    bad = named(files, {0: garbage, 5: absent}, tmp_path)
    with pytest.warns(UserWarning, match="2 of 12 files could not be opened") as caught:
        found = open_all(bad, on_error="skip")
    assert len(caught) == 1
    assert "bad0.nc: FormatError" in str(caught[0].message)
    assert Path(caught[0].filename) == Path(__file__)
    assert_same(found, open_all([*files[1:5], *files[6:]]))


def test_a_warning_names_the_first_of_many(files: list[Path], tmp_path: Path) -> None:
    bad = [tmp_path / f"{number}.nc" for number in range(14)]
    with pytest.warns(UserWarning, match="and 4 more"):
        open_all([*bad, files[0]], on_error="skip")


@pytest.mark.parametrize("on_error", ["skip", "collect"])
def test_a_file_with_an_unreadable_variable_is_left_out_as_a_whole(
    on_error: str, files: list[Path], tmp_path: Path
) -> None:
    bad = named(files, {5: one_variable_unreadable}, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = open_all(bad, on_error=on_error)
    assert_same(found, open_all([*files[:5], *files[6:]]))
    (lost,) = found.virtual.report.left_out
    assert (Path(lost.url), lost.error) == (bad[5], "UnsupportedError")
    assert "rare" in lost.message


def test_if_every_file_fails_the_first_error_is_raised(tmp_path: Path) -> None:
    bad = [tmp_path / "a.nc", tmp_path / "b.nc"]
    with pytest.raises(FileNotFoundError, match=r"a\.nc") as caught:
        open_all(bad, on_error="collect")
    assert "none of 2 files could be opened" in caught.value.__notes__[-1]


def test_attributes_of_a_file_that_is_left_out_are_an_error(
    files: list[Path], tmp_path: Path
) -> None:
    bad = named(files, {2: garbage}, tmp_path)
    with pytest.raises(ValueError, match=r"bad2\.nc: this file is left out"):
        open_all(bad, on_error="collect", attrs_file=bad[2])


def test_an_unknown_way_with_errors_is_refused(files: list[Path]) -> None:
    with pytest.raises(ValueError, match="'collect'"):
        open_all(files, on_error="ignore")


def odd(path: Path) -> None:
    """Write a file whose scalar, which all files share, is another."""
    xr.Dataset({"v": ("time", [1.0]), "s": 2.5}, {"time": [700.0]}).to_netcdf(path)


@pytest.mark.parametrize("number", [1, 2, 6, 11])
def test_the_first_file_that_does_not_combine_is_named(
    number: int, files: list[Path], tmp_path: Path
) -> None:
    bad = named(files, {number: odd}, tmp_path)
    with pytest.raises((ValueError, TypeError)) as caught:
        open_all(bad)
    told = "\n".join(caught.value.__notes__)
    assert f"bad{number}.nc is the first file that does not combine" in told
    with pytest.raises((ValueError, TypeError)) as caught:
        open_all(bad, on_error="collect")
    assert f"bad{number}.nc is the first" in "\n".join(caught.value.__notes__)


def test_a_report_adds_up_and_pickles() -> None:
    with pytest.raises(ValueError, match="count each once"):
        BuildReport(3, opened=1)
    report = BuildReport(2, opened=1, cached=1)
    assert pickle.loads(pickle.dumps(report)) == report


# ---------------------------------------------------------------------- what may pass


@pytest.fixture
def few_requests() -> Iterator[None]:
    """Requests are not repeated: whether files are is what is looked at."""
    with virtualds.set_options(retries=0):
        yield


@pytest.mark.usefixtures("few_requests")
def test_a_file_is_opened_again_after_a_temporary_failure(files: list[Path]) -> None:
    with faulty_server(files[0].parent) as server:
        url = f"{server.url}/{files[0].name}"
        server.always = Fault("status", 503)
        with pytest.raises((OSError, FormatError), match="503"):
            open_all([url], retries=0)
        failing, server.always = list(server.requests), None
        for retries, opens in ((0, False), (1, True)):
            # as many failures as one attempt meets
            server.faults.extend([Fault("status", 503)] * len(failing))
            with nullcontext() if opens else pytest.raises((OSError, FormatError), match="503"):
                assert open_all([url], retries=retries).sizes["time"] == 2
        server.faults.clear()
        before = len(server.requests)
        with pytest.raises(FileNotFoundError):
            open_all([f"{server.url}/none.nc"], retries=5)
        assert len([r for r in server.requests[before:] if "none.nc " in f"{r[1]} "]) < 4


@pytest.mark.usefixtures("few_requests")
def test_a_server_that_refuses_is_not_asked_again(files: list[Path]) -> None:
    with faulty_server(files[0].parent) as server:
        server.always = Fault("status", 403)
        with pytest.raises(AccessError):
            open_all([f"{server.url}/00.nc"], retries=0)
        once = len(server.requests)
        with pytest.raises(AccessError):
            open_all([f"{server.url}/00.nc"], retries=5)
        assert len(server.requests) == 2 * once


def test_a_negative_number_of_retries_is_refused(files: list[Path]) -> None:
    assert MAX_WAIT > 0
    with pytest.raises(ValueError, match="at least 0"):
        open_all(files, retries=-1)


# ---------------------------------------------------------------------- progress


@pytest.mark.parametrize("parallel", [None, 2, "dask"])
def test_a_callback_receives_the_progress(
    parallel: Any, files: list[Path], cluster: distributed.Client, tmp_path: Path
) -> None:
    told: list[Progress] = []
    bad = named(files, {3: garbage}, tmp_path)
    found = open_all(bad, parallel=parallel, on_error="collect", progress=told.append)
    done = [step.done for step in told]
    # files that are read together are done together
    assert done == sorted(done)
    assert 0 < done[0] < done[-2] == done[-1] == FILES
    assert {step.total for step in told} == {FILES}
    assert all(a.references <= b.references for a, b in pairwise(told))
    assert (told[-1].failed, told[-1].references) == (1, 2 * (FILES - 1))
    assert all(step.report is None for step in told[:-1])
    assert told[-1].report == found.virtual.report


def test_a_bar_is_shown_on_request_and_not_without_a_terminal(
    files: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    open_all(files)
    open_all(files, progress=False)
    assert capsys.readouterr().err == ""
    open_all(files, progress=True)
    said = capsys.readouterr().err
    assert "12/12" in said
    assert "24 references" in said


# ---------------------------------------------------------------------- interrupts

SCRIPT = """
import os, sys, time
from pathlib import Path
import virtualds
from virtualds.combine import workers

def slow(dataset):
    # says that it began, then takes longer than anybody waits
    Path(sys.argv[1], f"{os.getpid()}.pid").touch()
    time.sleep(600)

if __name__ == "__main__":
    # this process, too, would never be done with its first file
    workers._IMPORTED.set()
    parallel = None if sys.argv[2] == "None" else int(sys.argv[2])
    virtualds.open_virtual_mfdataset(
        sys.argv[3], combine="nested", concat_dim="time", parallel=parallel, preprocess=slow
    )
"""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition: Callable[[], object]) -> None:
    """Wait for other processes, of which nobody tells."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("parallel", [None, 2])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_job_leaves_no_process(
    how: signal.Signals, parallel: int | None, files: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [
        *(sys.executable, str(tmp_path / "script.py"), str(tmp_path), str(parallel)),
        str(files[0].parent / "*.nc"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as script, ExitStack() as end:
        # whatever fails, nobody waits for it
        end.callback(script.kill)
        until(lambda: len(list(tmp_path.glob("*.pid"))) >= (parallel or 1))
        workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
        script.send_signal(how)
        assert script.wait(300) == -how
        until(lambda: not any(map(is_alive, workers)))
        said = script.stderr.read() if script.stderr else ""
    assert ("KeyboardInterrupt" in said) == (how == signal.SIGINT)


def test_an_interrupt_of_the_terminal_is_left_to_the_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled: list[Any] = []
    monkeypatch.setattr(workers.signal, "signal", lambda *given: handled.append(given))
    monkeypatch.setattr(workers.threading, "Thread", Mock())
    workers._watch_parent(Mock())
    assert handled == [(workers.signal.SIGINT, workers.signal.SIG_IGN)]
