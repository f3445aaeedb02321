"""Three days of a forecast model: 24 runs of 48 hours, some of them late, incomplete or broken.

Names are those of NOAA's HRRR in its buckets; a file is a lead time of a run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import eccodes
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from grib_messages import SMALL, message
from nights import date, opened_below

import virtualds

RUNS = pd.date_range("2024-01-01", periods=24, freq="3h")
LEADS = range(0, 48, 6)
HALF = len(LEADS) // 2
NIGHT = 2
"""Runs from one night to the next: six hours."""
WINDOW = "P2D"
PATTERN = "hrrr.*/conus/hrrr.t*z.wrfsfcf*.grib2"


@cache
def sample() -> bytes:
    """A message of the temperature at two metres; others are patched copies of it."""
    keys = {"shortName": "2t", "typeOfLevel": "heightAboveGround", "level": 2, "dataDate": 20240101}
    return message("regular_ll_sfc_grib2", 1, **{**SMALL, **keys, "dataTime": 0, "step": 3})


def make_message(run: pd.Timestamp, lead: int, number: int) -> bytes:
    """Return a message of another run and lead time, with values that no other has."""
    made = bytearray(sample())
    at = 16
    while made[at : at + 4] != b"7777":
        section = made[at + 4]
        if section == 1:  # octets 13 to 17: the reference time
            when = (run.year, run.month, run.day, run.hour)
            made[at + 12 : at + 17] = struct.pack(">HBBB", *when)
        elif section == 4:  # octets 19 to 22: the forecast time
            made[at + 18 : at + 22] = struct.pack(">I", lead)
        elif section == 5:  # octets 12 to 15: the smallest value
            made[at + 11 : at + 15] = struct.pack(">f", 250 + number / 16)
        at += int.from_bytes(made[at : at + 4], "big")
    return bytes(made)


@dataclass
class Model:
    """The files of the model, and the set that follows them."""

    folder: Path
    written: int = 0
    natively: dict[Any, tuple[pd.Timestamp, int, Any]] = field(default_factory=dict)

    def publish(self, run: int, leads: Iterable[int] = LEADS) -> list[Path]:
        paths = []
        for lead in leads:
            self.written += 1
            path = self.path(run, lead)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(make_message(RUNS[run], lead, self.written))
            paths.append(date(path))
        return paths

    def path(self, run: int, lead: int) -> Path:
        name = f"hrrr.{RUNS[run]:%Y%m%d}/conus/hrrr.t{RUNS[run]:%H}z.wrfsfcf{lead:02}.grib2"
        return self.folder / "noaa-hrrr" / name

    def clean(self, now: pd.Timestamp) -> None:
        """Remove what is 60 hours old, as servers do that keep nothing longer."""
        for run, begun in enumerate(RUNS):
            for lead in LEADS if begun <= now - pd.Timedelta("60h") else ():
                self.path(run, lead).unlink(missing_ok=True)

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "noaa-hrrr").rglob("*.grib2"))

    def sync(self, **how: Any) -> virtualds.SyncReport:
        return virtualds.sync(
            f"{self.folder}/noaa-hrrr/{PATTERN}",
            self.folder / "hrrr.zarr",
            concat_dim=["time", "step"],
            keep={"time": WINDOW},
            on_error="collect",
            settle=0,
            **how,
        )

    def check(self, *without: Path) -> xr.Dataset:
        """The set is what ecCodes reads; where there is no file, all is missing."""
        loaded = [self.load(path) for path in self.files if path not in without]
        begin = max(run for run, *_ in loaded) - pd.Timedelta(WINDOW)
        loaded = [one for one in loaded if one[0] > begin]
        runs = sorted({run for run, *_ in loaded})
        leads = sorted({lead for _, lead, _ in loaded})
        expected = np.full((len(runs), len(leads), 7, 12), np.nan, "f4")
        for run, lead, values in loaded:
            expected[runs.index(run), leads.index(lead)] = values
        with xr.open_dataset(self.folder / "hrrr.zarr", engine="virtual") as ds:
            found = ds.load()
        assert found["time"].values.tolist() == [run.value for run in runs]
        assert found["step"].values.tolist() == [lead * 3_600_000_000_000 for lead in leads]
        assert found["t2m"].dims == ("time", "step", "latitude", "longitude")
        assert found["t2m"].values.tobytes() == expected.tobytes()
        # of a cell without a file nobody says when it is valid
        there = ~np.isnan(expected[:, :, 0, 0])
        valid = (found["time"] + found["step"]).values
        assert (found["valid_time"].values[there] == valid[there]).all()
        return found

    def load(self, path: Path) -> tuple[pd.Timestamp, int, Any]:
        key = path, path.stat().st_mtime_ns
        if key not in self.natively:
            handle = eccodes.codes_new_from_message(path.read_bytes())
            day, hour, lead = (
                eccodes.codes_get(handle, name) for name in ("dataDate", "hour", "step")
            )
            values = eccodes.codes_get_values(handle).reshape(7, 12).astype("f4")
            eccodes.codes_release(handle)
            self.natively[key] = pd.Timestamp(f"{day}T{hour:02}"), lead, values
        return self.natively[key]


# some seconds of processor time: 187 files are opened, and a window is read every night
@pytest.mark.full
def test_a_window_of_two_days_follows_three_days_of_runs(tmp_path: Path) -> None:
    model = Model(tmp_path)
    late: list[tuple[int, Iterable[int]]] = []
    opened_in_all = 0
    for night in range(len(RUNS) // NIGHT):
        first, second = NIGHT * night, NIGHT * night + 1
        for run, leads in late:
            model.publish(run, leads)
        # of the second run the later half comes a night later; a lead time never comes
        model.publish(first, [lead for lead in LEADS if (first, lead) != (4, 12)])
        late = [(second, LEADS[HALF:])]
        if second == 11:
            # a run comes as a whole a night later
            late = [(second, LEADS)]
        else:
            model.publish(second, LEADS[:HALF])
        broken = model.path(first, 30)
        if night == 3:
            whole = broken.read_bytes()
            broken.write_bytes(whole[:-50])
            late.append((first, [30]))
        model.clean(RUNS[first])
        with opened_below(tmp_path / "noaa-hrrr") as opened:
            done = model.sync()
        touched = {*done.added, *(lost.url for lost in done.failed)}
        assert {path.as_uri() for path in opened} == touched
        assert [lost.url for lost in done.failed] == [broken.as_uri()] * (night == 3)
        opened_in_all += len(opened)
        found = model.check(*([broken] if night == 3 else []))
        assert found.sizes["time"] <= 16
    # each file once, and the broken one twice; half of the last run, and a lead time, do not come
    assert opened_in_all == len(RUNS) * len(LEADS) - HALF - 1 + 1
    # files that left the window are known as such, as long as the server has them: five runs, of
    # which one lacks a lead time
    quiet = model.sync()
    assert (quiet.is_written, len(quiet.outside)) == (False, 5 * len(LEADS) - 1)


def test_four_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    model = Model(tmp_path)
    model.publish(0, LEADS)
    model.sync()
    model.publish(1, LEADS)
    model.publish(2, LEADS[:5])
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(model.sync) for _ in range(4)]
        model.publish(3, LEADS[:3])
        assert sum(job.result().is_written for job in jobs) >= 1
    model.sync()
    model.check()


def test_indexes_stand_for_files_that_are_not_opened(tmp_path: Path) -> None:
    model = Model(tmp_path)
    for run in range(3):
        add_indexes(model.publish(run, LEADS))
    # a first step is an analysis
    templates = [model.path(0, lead) for lead in LEADS[1::-1]]
    how = {
        "concat_dim": ["time", "step"],
        "parser_options": {"template": [str(path) for path in templates]},
        "on_removed": "drop",
        "settle": 0,
    }
    pattern = f"{tmp_path}/noaa-hrrr/{PATTERN}.idx"
    assert len(virtualds.sync(pattern, tmp_path / "hrrr.zarr", **how).added) == 3 * len(LEADS)
    model.check()
    assert not virtualds.sync(pattern, tmp_path / "hrrr.zarr", **how).is_written
    new = model.publish(3, LEADS[:4])
    add_indexes(new)
    with opened_below(tmp_path / "noaa-hrrr") as opened:
        done = virtualds.sync(pattern, tmp_path / "hrrr.zarr", **how)
    assert len(done.added) == 4
    # of the files themselves at most the templates, which this process may have in memory
    assert opened.keys() - {*templates} == {Path(f"{path}.idx") for path in new}
    model.check()


def add_indexes(paths: list[Path]) -> None:
    """Write the index of files of one message, as wgrib2 does."""
    for path in paths:
        day, hour, lead = path.parts[-3][-8:], path.name[6:8], int(path.stem[-2:])
        step = f"{lead} hour fcst" if lead else "anl"
        line = f"1:0:d={day}{hour}:TMP:2 m above ground:{step}:\n"
        Path(f"{path}.idx").write_text(line)
        date(Path(f"{path}.idx"))
