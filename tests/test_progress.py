"""Progress: every long job reports it, and one place draws it."""

import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from conftest import write_year

import virtualds
from virtualds import ManifestArray, Progress
from virtualds.datasets.conversion import group_from_dataset
from virtualds.progress import count_array_chunks, count_progress, count_written_references
from virtualds.writing import prepare_write

Job = Callable[[Path, Any], object]


def opened(folder: Path) -> Any:
    return virtualds.open_virtual_dataset(folder / "2001.nc", loadable_variables=[]).virtual


def joined(folder: Path, progress: Any) -> Any:
    files = sorted(folder.glob("*.nc"))
    how = {"combine": "nested", "concat_dim": "time"}
    return virtualds.open_virtual_mfdataset(files, **how, progress=progress)


def converted(folder: Path, progress: Any) -> None:
    opened(folder).to_manifest(folder / "old.json", progress=False)
    virtualds.convert(folder / "old.json", folder / "new.zarr", progress=progress)


def appended(folder: Path, progress: Any, name: str) -> None:
    opened(folder).to_manifest(folder / name, progress=False)
    later = virtualds.open_virtual_dataset(folder / "2002.nc", loadable_variables=["time"])
    later.virtual.to_manifest(folder / name, append_dim="time", progress=progress)


JOBS: dict[str, tuple[Job, dict[str, tuple[int, str]]]] = {
    "build": (joined, {"opening": (2, "file")}),
    "diagnose": (
        lambda folder, how: virtualds.diagnose(sorted(folder.glob("*.nc")), progress=how),
        {"opening": (2, "file")},
    ),
    "sync": (
        lambda folder, how: virtualds.sync(
            str(folder / "*.nc"), folder / "new.zarr", concat_dim="time", settle=0, progress=how
        ),
        {"opening": (2, "file"), "writing": (24, "reference")},
    ),
    **{
        f"to_manifest {suffix}": (
            lambda folder, how, suffix=suffix: opened(folder).to_manifest(
                folder / f"new{suffix}", progress=how
            ),
            # 12 months of a field, and three coordinates
            {"writing": (15, "reference")},
        )
        for suffix in (".json", ".parquet", ".zarr")
    },
    **{
        f"append to {suffix}": (
            lambda folder, how, suffix=suffix: appended(folder, how, f"new{suffix}"),
            # 24 months of a field; to append, coordinates are read and become values
            {"writing": (24, "reference")},
        )
        for suffix in (".json", ".parquet", ".zarr")
    },
    "convert": (converted, {"writing": (15, "reference")}),
    "materialize": (
        lambda folder, how: opened(folder).materialize(folder / "own.zarr", progress=how),
        {"copying": (-1, "B")},
    ),
    "materialize as plain Zarr": (
        lambda folder, how: opened(folder).materialize(
            folder / "own.zarr", layout="chunks", progress=how
        ),
        {"copying": (-1, "B")},
    ),
    "verify": (
        lambda folder, how: opened(folder).verify(against="native", progress=how),
        {"checking": (1, "file"), "comparing": (15, "chunk")},
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for year in (2001, 2002):
        write_year(tmp_path / f"{year}.nc", year)
    return tmp_path


@pytest.mark.parametrize("name", JOBS)
def test_a_job_counts_to_its_end(name: str, folder: Path) -> None:
    job, expected = JOBS[name]
    told: list[Progress] = []
    job(folder, told.append)
    for step, (total, unit) in expected.items():
        mine = [now for now in told if now.job == step]
        assert {now.unit for now in mine} == {unit}
        assert [now.done for now in mine] == sorted(now.done for now in mine)
        assert mine[-1].done == mine[-1].total
        assert total in (-1, mine[-1].total)
    assert {now.job for now in told} == set(expected)


@pytest.mark.parametrize("name", JOBS)
def test_no_job_draws_where_nobody_watches(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    JOBS[name][0](folder, None)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", JOBS)
def test_a_bar_shows_what_is_done_the_time_and_the_rate(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, expected = JOBS[name]
    job(folder, True)
    drawn = capsys.readouterr().err
    for step, (_, unit) in expected.items():
        shown = "B" if unit == "B" else f" {unit}s"
        # copying: 100%|████| 2.5k/2.5k [00:00<00:00, 1.4MB/s]
        assert re.search(rf"{step}: 100%.*\[\d\d:\d\d<\d\d:\d\d, .*{shown}/s", drawn)


@pytest.mark.parametrize("option", ["--progress", "--no-progress"])
def test_the_command_line_draws_on_a_terminal_if_asked(option: str, folder: Path) -> None:
    opened(folder).to_manifest(folder / "old.json")
    command = ["convert", "old.json", "new.zarr", option]
    main, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 100))
    with open(main, "rb", buffering=0) as terminal, open(end, "wb") as stderr:
        arguments = [sys.executable, "-m", "virtualds_cli", *command]
        subprocess.run(
            arguments, cwd=folder, stderr=stderr, stdout=subprocess.DEVNULL, check=True, timeout=120
        )
        stderr.write(b"end")
        stderr.flush()
        drawn = b""
        while not drawn.endswith(b"end"):
            drawn += terminal.read(1024)
    assert (b"writing: 100%" in drawn) == (option == "--progress")


SETS: dict[str, dict[str, Any]] = {
    ".json": {},
    ".parquet": {"record_size": 7},
    ".zarr": {"manifest": "parquet"},
    "2.zarr": {"manifest": "json"},
}


@pytest.fixture
def arrays() -> xr.Dataset:
    """Arrays of 20 chunks of a file, of which all, one half, and one are there."""
    found = {}
    for number, step in enumerate((1, 2, 20)):
        there = np.arange(20) % step == 0
        array = ManifestArray.from_arrays(
            shape=(20,),
            chunks=(1,),
            dtype="f8",
            path=np.where(there, "/data/a.bin", ""),
            offsets=8 * np.arange(20),
            lengths=np.full(20, 8),
        )
        found[f"v{number}"] = ("x", array)
    return xr.Dataset(found)


@pytest.mark.parametrize("suffix", SETS)
def test_writing_counts_array_by_array_with_their_gaps(
    suffix: str, arrays: xr.Dataset, tmp_path: Path
) -> None:
    destination = prepare_write(tmp_path / f"set{suffix}", **SETS[suffix])
    told: list[Progress] = []
    # more than there is, so that it would show if any format counted too much
    with count_written_references(told.append, 1000):
        destination.format.write(
            group_from_dataset(arrays),
            destination.location.target,
            replace=False,
            **destination.options.format_choices,
        )
    *counted, end = [now.done for now in told]
    assert counted == sorted(set(counted))
    assert {20, 40} < set(counted)
    assert counted[-1] == 60
    assert end == 1000


def test_a_chunk_of_two_tables_counts_once() -> None:
    told: list[Progress] = []
    with count_written_references(told.append, 10), count_array_chunks(10) as advance:
        advance(8)
        advance(8)
    assert [now.done for now in told] == [8, 10]


def test_what_is_done_never_passes_what_there_is_to_do() -> None:
    told: list[Progress] = []
    with count_progress(told.append, "copying", 10, "B") as advance:
        advance(8)
        advance(8)
    assert [now.done for now in told] == [8, 10]
    assert told[-1].remaining == 0.0


def test_a_job_that_fails_does_not_say_that_it_is_done() -> None:
    told: list[Progress] = []
    with (
        pytest.raises(OSError, match="full"),
        count_progress(told.append, "copying", 10, "B") as advance,
    ):
        advance(4)
        raise OSError("the disk is full")
    assert [now.done for now in told] == [4]
