"""Whatever happens to files, in any order: a set holds what its files hold."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from daily_files import days, opened, written
from effort import times
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import virtualds

NUMBERS = st.integers(0, 5)


class Archive(RuleBasedStateMachine):
    """A folder of files, a set that is kept up to date, and datasets in memory to compare with."""

    target = ""
    lengths = (4,)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.there: dict[int, xr.Dataset] = {}
        self.held: dict[int, xr.Dataset] = {}
        self.clock = 1_000_000_000

    @initialize(number=NUMBERS)
    def begin(self, number: int) -> None:
        self.write(number, 0)
        self.sync()

    @rule(number=NUMBERS, seed=st.integers(0, 99))
    def write(self, number: int, seed: int) -> None:
        """Write a new file, or another version of one."""
        made = days(10 * number, self.lengths[seed % len(self.lengths)], seed)
        path = written(self.folder, f"{number}", made)
        self.clock += 1
        os.utime(path, (self.clock,) * 2)
        self.there[number] = xr.load_dataset(path, engine="netcdf4")

    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        if number in self.there and len(self.there) > 1:
            (self.folder / f"{number}.nc").unlink()
            del self.there[number]

    @rule(data=st.data())
    def fail(self, data: Any) -> None:
        """A step of the caller fails for one of the files: nothing changes."""

        def failing(dataset: xr.Dataset) -> xr.Dataset:
            raise ValueError("this file fails")

        if self.held != self.there:
            try:
                self.sync(preprocess=failing, on_removed="keep")
            except ValueError as error:
                assert "this file fails" in str(error)

    @rule(on_removed=st.sampled_from(["keep", "drop"]))
    def bring_up_to_date(self, on_removed: str) -> None:
        done = self.sync(on_removed=on_removed)
        gone = {} if on_removed == "drop" else self.held
        self.held = {**gone, **self.there}
        assert self.sync(on_removed="keep").is_written is False
        assert done.unchanged + len(done.added) + len(done.replaced) == len(self.there)

    def sync(self, **how: Any) -> virtualds.SyncReport:
        if not self.held:
            self.held = dict(self.there)
        return virtualds.sync(
            f"{self.folder}/*.nc", self.folder / self.target, concat_dim="time", **how
        )

    @invariant()
    def the_set_holds_what_was_there(self) -> None:
        if not self.held:
            return
        along = ["t", "n"]
        expected = xr.concat([self.held[n][along] for n in sorted(self.held)], "time")
        found = opened(self.folder / self.target)
        assert np.array_equal(found.time, expected.time)
        # those that are kept, and no longer there, cannot be read
        ours = [n for n in self.held if n in self.there and self.held[n] is self.there[n]]
        for number in ours:
            part = self.held[number]
            xr.testing.assert_equal(found[along].sel(time=part.time).load(), part[along])

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


def machine(name: str, target: str, lengths: tuple[int, ...]) -> Any:
    made = type(name, (Archive,), {"target": target, "lengths": lengths})
    made.TestCase.settings = settings(max_examples=times(4), stateful_step_count=12, deadline=None)
    return pytest.mark.full(made.TestCase)


TestKerchunkJson = machine("KerchunkJson", "refs.json", (4,))
TestKerchunkParquet = machine("KerchunkParquet", "refs.parquet", (4,))
TestZarr = machine("Zarr", "refs.zarr", (3, 4, 7))
