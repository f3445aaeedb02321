"""The history of a set is a log: an append costs what it adds, however many came before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from effort import others_soaked, times

import virtualds
from virtualds import ManifestArray
from virtualds.formats.zarr_manifests import snapshots, write_snapshot
from virtualds.formats.zarr_manifests.join_parts import MAX_INLINE, TABLES_PER_TIER
from virtualds.stores.local import LocalStore

NIGHTS = times(20)
"""Nights whose costs are compared with those of as many later ones."""
SIDE = 12
"""Elements per axis of a field."""


def field(day: int) -> np.ndarray[Any, Any]:
    return np.full((1, SIDE, SIDE), day, "<i4")


def write_day(folder: Path, day: int) -> xr.Dataset:
    """One day of four variables in a file of its own, as a virtual dataset."""
    path = folder / f"{day:05}.bin"
    path.write_bytes(field(day).tobytes())
    names = ("time", "y", "x")
    arrays = {
        name: (names, ManifestArray.from_arrays(
            shape=(1, SIDE, SIDE), chunks=(1, SIDE, SIDE), dtype="<i4", path=str(path),
            offsets=0, lengths=4 * SIDE**2,
        ))
        for name in "abcd"
    }  # fmt: skip
    return xr.Dataset(arrays, {"time": [day], "y": np.arange(SIDE) / 2})


class Nightly:
    """A set to which a day is added every night."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.target = folder, folder / "refs.zarr"
        self.days = 0

    def append(self, nights: int) -> None:
        for day in range(self.days, self.days + nights):
            there = {"append_dim": "time"} if day else {"relative_paths": True}
            write_day(self.folder, day).virtual.to_manifest(self.target, **there)
        self.days += nights

    def measure(self) -> tuple[int, int]:
        """The files of the set, and their bytes."""
        files = [path for path in self.target.rglob("*") if path.is_file()]
        return len(files), sum(path.stat().st_size for path in files)

    def check(self, opened: xr.Dataset, days: int | None = None) -> None:
        """Compare values at both ends and between, and all times."""
        days = self.days if days is None else days
        assert opened["time"].values.tolist() == list(range(days))
        for day in {0, days // 3, days - 2, days - 1} & set(range(days)):
            for name in "ad":
                np.testing.assert_array_equal(opened[name][day].values, field(day)[0])


@pytest.fixture
def nightly(tmp_path: Path) -> Nightly:
    return Nightly(tmp_path)


@pytest.fixture
def most_listed(monkeypatch: pytest.MonkeyPatch) -> int:
    """Earlier snapshots that the root lists itself: fewer, so that fewer nights have a file."""
    monkeypatch.setattr(snapshots, "MAX_LISTED", 8)
    return 8


def opened(target: Any, **how: Any) -> xr.Dataset:
    return xr.open_dataset(target, engine="virtual", **how)


def test_the_last_appends_cost_what_the_first_did(
    nightly: Nightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, int]] = []
    for name in ("write_file", "write_version"):
        method = getattr(LocalStore, name)

        def counted(self: Any, url: str, data: bytes, *args: Any, method: Any = method) -> Any:
            written.append((url, len(data)))
            return method(self, url, data, *args)

        monkeypatch.setattr(LocalStore, name, counted)
    costs = []
    for _ in range(4):
        written.clear()
        nightly.append(NIGHTS)
        costs.append((len(written), sum(size for _, size in written)))
    nightly.check(opened(nightly.target))
    _, (second, second_bytes), _, (last, last_bytes) = costs
    assert last <= 1.1 * second
    # each tier of tables adds the same to the metadata
    assert last_bytes <= 1.5 * second_bytes
    files, nbytes = nightly.measure()
    assert files <= 4 * nightly.days
    assert nbytes <= 6_000 * nightly.days
    assert (nightly.target / "zarr.json").stat().st_size < 40_000


def test_every_night_stays_a_snapshot(nightly: Nightly, most_listed: int) -> None:
    # so many that two files of snapshots become one
    nightly.append(2 * most_listed + 3)
    listed = virtualds.snapshots(nightly.target)["snapshot"].to_list()
    assert len(listed) == nightly.days
    root = json.loads((nightly.target / "zarr.json").read_bytes())
    history = root["attributes"]["virtualds"]["history"]
    # the files have become one, which the root names with the number of its snapshots
    assert [entry[1] for entry in history if len(entry) == 3] == [2 * most_listed]
    assert len(history) < most_listed < len(listed)
    for night in (0, 1, most_listed - 1, most_listed, 2 * most_listed, nightly.days - 1):
        nightly.check(opened(nightly.target, snapshot=listed[night]), night + 1)


def test_old_nights_go_and_what_others_need_stays(nightly: Nightly, most_listed: int) -> None:
    nightly.append(most_listed + 30)
    before = virtualds.snapshots(nightly.target)["snapshot"].to_list()
    kept = most_listed + 10
    removed = virtualds.expire_snapshots(nightly.target, keep=kept)
    assert removed.snapshots == before[:-kept]
    assert virtualds.snapshots(nightly.target)["snapshot"].to_list() == before[-kept:]
    for night in (0, 5, kept - 1):
        snapshot = before[-kept:][night]
        nightly.check(opened(nightly.target, snapshot=snapshot), nightly.days - kept + night + 1)
    virtualds.expire_snapshots(nightly.target, keep=1)
    nightly.check(opened(nightly.target))
    nightly.append(2)
    nightly.check(opened(nightly.target))
    assert len(virtualds.snapshots(nightly.target)) == 3


def test_tables_that_only_older_snapshots_need_stay(nightly: Nightly) -> None:
    """The newest needs none, and the one that wrote them goes."""
    days = xr.concat([write_day(nightly.folder, day) for day in range(20)], "time")
    days.virtual.to_manifest(nightly.target, relative_paths=True, manifest="parquet")
    nightly.days = 20
    nightly.append(1)
    write_day(nightly.folder, 0).virtual.to_manifest(nightly.target, mode="w")
    kept = virtualds.snapshots(nightly.target)["snapshot"].to_list()[1]
    assert len(virtualds.expire_snapshots(nightly.target, keep=2).snapshots) == 1
    nightly.check(opened(nightly.target, snapshot=kept))


def test_a_set_that_was_begun_with_many_days_grows_beside_them(tmp_path: Path) -> None:
    days = [write_day(tmp_path, day) for day in range(700)]
    target = tmp_path / "refs.zarr"
    xr.concat(days[:-3], "time", data_vars="minimal").virtual.to_manifest(target)
    before = {path for path in target.rglob("*") if path.is_file()}
    for day in days[-3:]:
        day.virtual.to_manifest(target, append_dim="time")
    assert opened(target)["time"].values.tolist() == list(range(700))
    assert [int(opened(target)["b"][day, 0, 0]) for day in (0, 696, 697, 699)] == [0, 696, 697, 699]
    # what was there stays: the values of the first days are written once
    [values] = (path for path in before if path.match("time/c/0"))
    new = [p for p in target.rglob("time/values.*/c/*") if p not in before]
    assert new and all(path.stat().st_size < values.stat().st_size / 4 for path in new)


@pytest.mark.parametrize("form", ["inline", "json", "parquet"])
def test_a_change_of_attributes_names_the_manifests_that_are_there(
    form: str, tmp_path: Path
) -> None:
    target = tmp_path / "refs.zarr"
    days = xr.concat([write_day(tmp_path, day) for day in range(12)], "time", data_vars="minimal")
    days.virtual.to_manifest(target, manifest=form)
    before = {path for path in target.rglob("*") if path.is_file()}
    virtualds.edit(target, attributes={"a:units": "K"}, rename={"b": "again"})
    new = {path.name for path in target.rglob("*") if path.is_file() and path not in before}
    assert new == {"zarr.json", "zarr.json.gz"}
    found = opened(target)
    assert found["a"].units == "K"
    assert found["again"][:, 0, 0].values.tolist() == found["a"][:, 0, 0].values.tolist()
    assert found["a"][:, 0, 0].values.tolist() == list(range(12))


# Each append is a commit to disk: 5 s for ninety.
@pytest.mark.full
@pytest.mark.parametrize("nights", others_soaked([90, 520], [90]))
def test_a_long_history_opens_in_one_request(nights: int, nightly: Nightly) -> None:
    nightly.append(nights)
    with counting_server(nightly.folder) as (url, counts):
        found = opened(f"{url}/refs.zarr")
        assert found["time"].values.tolist() == list(range(nights))
        gets = [one for one in counts.requests if one[0] == "GET"]
        assert len(gets) <= (1 if nights < 500 else 3)
    files, nbytes = nightly.measure()
    assert files <= 12_000 / 3_650 * nights
    assert nbytes <= 30_000_000 / 3_650 * nights


def test_a_snapshot_merges_some_references_and_the_next_one_more(
    nightly: Nightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits until the tables of all variables are merged; values are the same."""

    def append(days: int) -> list[int]:
        """Append days in one snapshot, and return the number of tables of each variable."""
        new = [write_day(nightly.folder, nightly.days + day) for day in range(days)]
        first = {"relative_paths": True, "manifest": "parquet"}
        there = {"append_dim": "time"} if nightly.days else first
        xr.concat(new, "time").virtual.to_manifest(nightly.target, **there)
        nightly.days += days
        nodes = json.loads((nightly.target / "zarr.json").read_bytes())["consolidated_metadata"]
        transformers = [nodes["metadata"][name]["storage_transformers"][0] for name in "abcd"]
        return [len(one["configuration"]["parts"]) for one in transformers]

    days = MAX_INLINE + 1
    monkeypatch.setattr(write_snapshot, "MAX_MERGED_ROWS", TABLES_PER_TIER * days + 1)
    for count in range(1, TABLES_PER_TIER):
        assert append(days) == [count] * 4
    # the first two variables have more references together
    assert append(days) == [1, 1, TABLES_PER_TIER, TABLES_PER_TIER]
    nightly.check(opened(nightly.target))
    monkeypatch.undo()
    # then it is the turn of the others
    assert append(days) == [2, 2, 1, 1]
    nightly.check(opened(nightly.target))


@pytest.mark.full
def test_compact_joins_what_is_small(nightly: Nightly) -> None:
    nightly.append(40)
    assert virtualds.compact(nightly.target)
    nightly.check(opened(nightly.target))
    assert not virtualds.compact(nightly.target)


def test_a_large_table_is_not_written_again_by_compact(tmp_path: Path) -> None:
    expected: list[int] = []

    def numbers(begin: int, count: int) -> xr.Dataset:
        path = tmp_path / f"{begin}.bin"
        path.write_bytes(np.arange(begin, begin + count, dtype="<i4").tobytes())
        # in an order that Parquet cannot tell in a few bytes
        places = np.random.default_rng(0).permutation(count)
        array = ManifestArray.from_arrays(
            shape=(count,), chunks=(1,), dtype="<i4", path=str(path),
            offsets=4 * places, lengths=4,
        )  # fmt: skip
        expected.extend((begin + places).tolist())
        return xr.Dataset({"v": ("time", array)})

    target, large, small = tmp_path / "refs.zarr", 450_000, (40, 30, 20)
    numbers(0, large).virtual.to_manifest(target)
    begin = large
    for count in small:
        numbers(begin, count).virtual.to_manifest(target, append_dim="time")
        begin += count
    before = set(target.rglob("*.parquet"))
    assert virtualds.compact(target)
    written = sum(p.stat().st_size for p in target.rglob("*.parquet") if p not in before)
    assert 0 < written < sum(path.stat().st_size for path in before) / 10
    found = opened(target)["v"]
    places = [0, large - 1, large, large + 45, large + 89]
    assert found[places].values.tolist() == [expected[place] for place in places]
    assert not virtualds.compact(target)
