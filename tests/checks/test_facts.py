"""Facts of batches are those that each file has alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from products import looped

import virtualds
from virtualds.checks.diagnose import facts
from virtualds.checks.diagnose.facts import FactRuns, find_batch_facts
from virtualds.checks.diagnose.report import CoordinateSpan, find_disordered, find_spans
from virtualds.combine.batch_job import BatchJob, BuildOptions
from virtualds.combine.file_batch import FileBatch
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.structure import PRESENCE, SIZE, UNITS, Fact, find_dataset_facts

LONG = "a long text " * 20


def write_random(folder: Path, seed: int) -> list[Path]:
    """Files along time that differ in what batches hold as columns, and in more than that."""
    rng = np.random.default_rng(seed)
    begin, paths = 0, []
    for number in range(12):
        length, whole = int(rng.integers(1, 5)), bool(rng.integers(2))
        era = bool(rng.integers(2))
        paths.append(folder / f"{number}.nc")
        with h5py.File(paths[-1], "w") as file:
            since = f"hours since 2000-01-{1 + int(rng.integers(3)) * (seed % 2):02d}"
            coordinates: dict[str, Any] = {
                "time": begin + np.arange(float(length)),
                "lat": np.linspace(0, 1 + era, 4, dtype="f4"),
                "lon": np.arange(6),
            }
            for name, values in coordinates.items():
                file.create_dataset(name, data=values).make_scale(name)
            file["time"].attrs["units"] = since
            for name, axes in (("t", 3), ("p", 3), ("zone", 1)):
                dims = list(coordinates)[:axes]
                shape = [len(coordinates[dim]) for dim in dims]
                values = rng.integers(0, 100, shape).astype("f8" if name == "p" and era else "f4")
                chunks = [length if whole else 1, 1 + number % 3, 6][:axes]
                stored = file.create_dataset(name, data=values, chunks=tuple(chunks), shuffle=True)
                for axis, dim in enumerate(dims):
                    stored.dims[axis].attach_scale(file[dim])
                stored.attrs["comment"] = f"{LONG}{rng.integers(3)}"
                stored.attrs["version"] = rng.integers(3)
            mask = file.create_dataset("mask", data=np.full((4, 6), 1 + era), chunks=(2, 2 + era))
            mask.dims[0].attach_scale(file["lat"])
            mask.dims[1].attach_scale(file["lon"])
            for name, value in (("run", number), ("cycle", int(era)), ("level", 1)):
                file[name] = float(value)
            file["run"].attrs["units"] = "days since 2001-01-01"
            file.attrs["history"] = f"written {number}"
            file.attrs["note"] = np.arange(3.0) + rng.integers(3)
        begin += length
    return paths


@pytest.mark.parametrize("seed", range(6))
def test_files_of_a_batch_have_the_facts_that_they_have_alone(seed: int, tmp_path: Path) -> None:
    files = write_random(tmp_path, seed)
    opening = OpenOptions()
    job = replace(BatchJob.of(opening, BuildOptions()), stops=False)
    items = list(enumerate(files))
    outcomes = job(items)
    batches = [outcome.opened for outcome in outcomes if isinstance(outcome.opened, FileBatch)]

    assert max(map(len, batches)) > 2
    for batch in (batch for batch in batches if len(batch) > 1):
        found = find_batch_facts(batch)
        for place, url in enumerate(batch.urls):
            alone = virtualds.open_virtual_dataset(url)
            texts = {
                fact: column if isinstance(column, str) else column[place]
                for fact, column in found.facts.items()
            }
            # in their order, too, which is that of the report
            there = [(fact, text) for fact, text in texts.items() if text is not None]
            assert there == list(find_dataset_facts(alone).items())
            spans = {name: some[place] for name, some in found.spans.items()}
            assert spans == find_spans(alone)


def test_files_that_do_not_fit_together_are_examined_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_random(tmp_path, 0)
    job = replace(BatchJob.of(OpenOptions(), BuildOptions()), stops=False)
    outcome = max(job(list(enumerate(files))), key=lambda one: len(one.numbers))
    assert len(outcome.numbers) > 2
    monkeypatch.setattr(facts, "_is_uniform", lambda batch: False)
    found = list(facts._examine(outcome, files))
    assert [one.numbers for one in found] == [(number,) for number in outcome.numbers]
    assert all(isinstance(one.opened, facts.FileFacts) for one in found)


def test_facts_last_through_files_that_say_nothing_of_them() -> None:
    there, units = Fact("t", PRESENCE), Fact("t", UNITS)
    size, title = Fact("x", SIZE), Fact("", "attribute title")
    runs = FactRuns.of(
        [
            # places in any order, as batches come
            ([3, 0], {title: ["b", "a"], size: "3"}),
            ([1], {there: "there", units: "K"}),
            ([5, 4], {size: ["4", None], there: "there", units: [None, "m"]}),
            ([2], {title: "a"}),
        ]
    )
    assert runs.runs == {
        title: [(0, "a"), (1, None), (2, "a"), (3, "b"), (4, None)],
        size: [(0, "3"), (5, "4")],
        there: [(0, None), (1, "there"), (2, None), (4, "there")],
        units: [(0, "K"), (4, "m"), (5, None)],
    }
    assert list(runs.runs) == [title, size, there, units]
    assert runs.count_texts(units) == {"K": 1, "m": 1, None: 1}


@looped(
    "starts, pairs",
    [((1, 2, 3), []), ((3, 2, 1), []), ((1, 3, 2, 4), [(1, 2)]), ((4, 2, 3, 1), [(1, 2)])],
)
def test_a_file_is_out_of_order_if_most_others_go_the_other_way(
    starts: tuple[int, ...], pairs: list[tuple[int, int]]
) -> None:
    placed = [(number, CoordinateSpan(start, start)) for number, start in enumerate(starts)]
    assert list(find_disordered(placed)) == pairs
