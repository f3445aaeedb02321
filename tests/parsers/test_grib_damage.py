"""Damaged messages in some of many files: an error, or left out and reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from effort import times
from grib_messages import SMALL, message
from products import looped

import virtualds
from virtualds import FormatError
from virtualds.combine.workers import LeftOut
from virtualds_cli.program import main


def flip(one: bytes, place: int) -> bytes:
    return one[:place] + bytes([one[place] ^ 0xFF]) + one[place + 1 :]


SPOILED: dict[str, Callable[[bytes, int, int], bytes]] = {
    "the file is cut off": lambda data, start, end: data[: start + (end - start) // 2],
    "bytes in the middle are missing": lambda data, start, end: (
        data[: start + 60] + data[start + 90 :]
    ),
    "the length of a section": lambda data, start, end: flip(data, start + 18),
    "the length of the message": lambda data, start, end: flip(data, start + 14),
}
"""Bytes of a file, spoiled between the start and the end of a message."""

Many = Callable[[list[Path], Path, str], tuple[xr.Dataset, Any]]


def follow(paths: list[Path], target: Path, on_error: str) -> tuple[xr.Dataset, Any]:
    done = virtualds.sync(paths, target, concat_dim="time", settle=0, on_error=on_error)
    return xr.open_dataset(target, engine="virtual"), done.damaged


def open_trees(paths: list[Path], target: Path, on_error: str) -> tuple[xr.Dataset, Any]:
    tree = virtualds.open_virtual_mfdatatree(paths, concat_dim="time", on_error=on_error)
    return tree.to_dataset(), tree.virtual.report.damaged


def open_many(paths: list[Path], target: Path, on_error: str, **more: Any) -> Any:
    found = virtualds.open_virtual_mfdataset(
        paths, combine="nested", concat_dim="time", on_error=on_error, **more
    )
    return found, found.virtual.report.damaged


def scan(paths: list[Path], target: Path, on_error: str) -> tuple[xr.Dataset, Any]:
    words = ["scan", *paths, "-o", target, "--concat-dim", "time", "--on-error", on_error, "--json"]
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == 0, done.output
    lost = [LeftOut(**part) for part in json.loads(done.stdout)["damaged"]]
    return xr.open_dataset(target, engine="virtual"), lost


MANY: dict[str, Many] = {
    "datasets": open_many,
    "datasets of processes": lambda paths, to, on_error: open_many(paths, to, on_error, parallel=2),
    "datasets of a cache": lambda paths, to, on_error: [
        open_many(paths, to, on_error, cache=to) for _ in range(2)
    ][-1],
    "trees": open_trees,
    "sync": follow,
    "scan": scan,
}


TURNS = [
    (name, through)
    for number, through in enumerate(MANY)
    for name in [*SPOILED][number % 4 : number % 4 + times(1)]
]
"""Each way with one of the spoiled files in turn: who finds the damage is the parser alone."""


@pytest.mark.filterwarnings("ignore:1 damaged part left out of files")
@pytest.mark.filterwarnings("ignore::virtualds.CombineWarning")
# Some ways start processes: 10 s.
@looped("name, through", TURNS, quick=len(TURNS) // 3)
def test_of_many_files_damaged_messages_are_left_out_and_reported(
    name: str, through: str, tmp_path: Path
) -> None:
    paths, length = [], 0
    for day in (1, 2, 3):
        keys = {**SMALL, "dataDate": 20200100 + day}
        levels = [message("regular_ll_pl_grib2", n, **keys, level=n) for n in (300, 500, 850)]
        paths.append(tmp_path / f"{day}.grib2")
        paths[-1].write_bytes(b"".join(levels))
        length = len(levels[0])
    expected = virtualds.open_virtual_mfdataset(paths, combine="nested", concat_dim="time")
    values = expected.t.values.copy()
    spoiled = SPOILED[name](paths[1].read_bytes(), 2 * length, 3 * length)
    # the damaged message is the last of its file, with the lowest level
    paths[1].write_bytes(spoiled)
    values[1, expected.get_index("isobaricInhPa").get_loc(850)] = np.nan
    with pytest.raises(FormatError, match=f"2.grib2: GRIB message at byte {2 * length}"):
        open_many(paths, tmp_path / "a.zarr", "raise")
    for on_error in ("skip", "collect"):
        found, damaged = MANY[through](paths, tmp_path / f"{on_error}.zarr", on_error)
        # xarray sorts levels that it unites
        at = found.t.sel(isobaricInhPa=expected.isobaricInhPa)
        np.testing.assert_array_equal(at.transpose(*expected.t.dims).values, values)
        [lost] = damaged
        assert lost.url.endswith("2.grib2") and lost.error == "FormatError"
        assert f"message at byte {2 * length}" in lost.message


def test_damaged_messages_are_warned_of_once_and_shown_in_the_report(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.grib2" for n in range(3)]
    for n, path in enumerate(paths):
        keys = {**SMALL, "dataDate": 20200101 + n, "level": 500}
        one, two = (
            message("regular_ll_pl_grib2", n, **keys, shortName=name) for name in ("t", "u")
        )
        path.write_bytes(one + (two[:-9] if n else b""))
    paths.append(tmp_path / "nothing.grib2")
    paths[-1].write_bytes(one[:-9])
    with pytest.warns(UserWarning) as told:
        found = virtualds.open_virtual_mfdataset(
            paths, combine="nested", concat_dim="time", on_error="skip"
        )
    said = [str(one.message) for one in told]
    assert [text.partition(":")[0] for text in said] == [
        "1 of 4 files could not be opened, and are left out",
        "2 damaged parts left out of files that were opened",
    ]
    report = found.virtual.report
    assert report.summary == ("4 files: 3 opened, 0 from the cache, 1 left out, 2 damaged parts")
    assert "1.grib2  FormatError  " in str(report) and "Damaged parts" in report._repr_html_()
