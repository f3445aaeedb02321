"""Indexes of GRIB files: datasets made of them are those of the files, which nobody reads."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from grib_messages import SMALL, join_fields, message, write_ecmwf_index, write_wgrib2_index
from s3_server import requests_to

import virtualds
from virtualds import FormatError, UnsupportedError

LEVELS, WIND = (500, 850), ("u", "v")
# table 4.6: a control, and a member
CONTROL, MEMBER = 1, 3


def write(path: Path, date: int, hour: int, step: int, member: int | None = None) -> Path:
    """A file of a forecast: temperature, wind with two fields in a message, two sums of rain."""
    keys: dict[str, Any] = {**SMALL, "dataDate": date, "dataTime": 100 * hour}
    of_points, of_intervals = {}, {}
    if member is not None:
        of_points, of_intervals = ({"productDefinitionTemplateNumber": n} for n in (1, 11))
        keys |= {"perturbationNumber": member}
        keys |= {"typeOfEnsembleForecast": MEMBER if member else CONTROL}
    sample = "regular_ll_pl_grib2"
    air: dict[str, Any] = {**of_points, **keys, "step": step}
    seed = date + hour + 7 * step
    made = [message(sample, seed + n, **air, shortName="t", level=n) for n in LEVELS]
    winds = [
        message(sample, seed - n, **air, shortName=name, level=500) for n, name in enumerate(WIND)
    ]
    made.insert(1, join_fields(winds) if member is None else winds[0])
    rain: dict[str, Any] = {**of_intervals, **keys, "shortName": "tp", "stepType": "accum"}
    for start in (0, step - 3) if step else ():
        made.append(message("regular_ll_sfc_grib2", start, **rain, stepRange=f"{start}-{step}"))
    path.write_bytes(b"".join(made))
    return path


INDEXES: dict[str, Callable[[Path], Path]] = {
    "wgrib2": write_wgrib2_index,
    "ECMWF": write_ecmwf_index,
}
RAIN: dict[str, Any] = {"filter_by_keys": {"stepRange": ["0-6", "0-9", "0-12", "0-24", "0-120"]}}
AIR: dict[str, Any] = {"filter_by_keys": {"typeOfLevel": "isobaricInhPa", "shortName": "t"}}
FORECASTS = {
    "hours": (20240102, 12, 9),
    "half a day": (20240229, 18, 12),
    "a day": (20231231, 6, 24),
    "many days": (20240101, 0, 120),
}


@pytest.fixture
def template(tmp_path: Path) -> Path:
    found = write(tmp_path / "template.grib2", 20240101, 0, 6)
    write_wgrib2_index(found)
    return found


def assert_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Compare datasets: where values lie, how they are encoded, and the values."""
    assert found.virtual.sources.equals(expected.virtual.sources)
    for name, variable in expected.variables.items():
        assert found.variables[name].encoding == variable.encoding
    xr.testing.assert_identical(found.load(), expected.load())


@pytest.mark.parametrize("chosen", [RAIN, AIR], ids=["rain", "air"])
@pytest.mark.parametrize("name", FORECASTS)
def test_an_index_gives_the_dataset_of_its_file(
    name: str, chosen: dict[str, Any], template: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.grib2", *FORECASTS[name])
    options = {"template": template, **chosen}
    found = virtualds.open_virtual_dataset(write_wgrib2_index(path), parser_options=options)
    assert_same(found, virtualds.open_virtual_dataset(path, parser_options=chosen))


@pytest.mark.parametrize("kind", INDEXES)
def test_members_are_told_by_the_index(kind: str, tmp_path: Path) -> None:
    template = write(tmp_path / "template.grib2", 20240101, 0, 6, 1)
    path = write(tmp_path / "a.grib2", 20240102, 0, 9, 17)
    INDEXES[kind](template)
    index = INDEXES[kind](path)
    for chosen in (RAIN, AIR):
        options = {"template": template, **chosen}
        found = virtualds.open_virtual_dataset(index, parser_options=options)
        assert found.number == 17
        assert_same(found, virtualds.open_virtual_dataset(path, parser_options=chosen))


def test_groups_and_fields_of_one_message_are_those_of_the_file(
    template: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.grib2", *FORECASTS["hours"])
    options: Any = {"parser_options": {"template": template}, "on_error": "skip"}
    with pytest.warns(UserWarning, match="stepRange"):
        found = virtualds.open_virtual_datatree(write_wgrib2_index(path), **options)
    with pytest.warns(UserWarning, match="stepRange"):
        expected = virtualds.open_virtual_datatree(path, on_error="skip")
    assert found.groups == expected.groups
    for group in expected.groups[1:]:
        assert_same(found[group].to_dataset(), expected[group].to_dataset())
    both = found.to_dict()
    assert {"u", "v"} <= {str(name) for dataset in both.values() for name in dataset.data_vars}


def test_messages_of_ecmwf_may_lie_in_another_order(tmp_path: Path) -> None:
    template = write(tmp_path / "template.grib2", 20240101, 0, 6, 1)
    write_ecmwf_index(template)
    path = write(tmp_path / "a.grib2", 20240102, 0, 9, 2)
    first = int.from_bytes(path.read_bytes()[8:16], "big")
    path.write_bytes(path.read_bytes()[first:] + path.read_bytes()[:first])
    index = write_ecmwf_index(path)
    found = virtualds.open_virtual_dataset(index, parser_options={"template": template, **AIR})
    assert_same(found, virtualds.open_virtual_dataset(path, parser_options=AIR))


def test_the_file_of_an_index_is_not_read(template: Path, tmp_path: Path) -> None:
    for step in (9, 12):
        write_wgrib2_index(write(tmp_path / f"f{step}.grib2", 20240102, 0, step))
    with counting_server(tmp_path) as (url, counts):
        for step in (9, 12):
            options = {"template": f"{url}/template.grib2", **AIR}
            virtualds.open_virtual_dataset(f"{url}/f{step}.grib2.idx", parser_options=options)
        for name in ("f9", "f12"):
            of_file = [method for method, path, _ in counts.requests if path == f"/{name}.grib2"]
            assert of_file == ["HEAD"]
        read = [path for method, path, _ in counts.requests if method == "GET"]
        assert read.count("/template.grib2.idx") <= 2
        sent = counts.sent
        virtualds.open_virtual_dataset(f"{url}/f9.grib2.idx", parser_options=options)
        # the template is known by now
        assert counts.sent - sent <= 2 * (tmp_path / "f9.grib2.idx").stat().st_size


def test_indexes_of_a_forecast_are_one_cube(template: Path, tmp_path: Path) -> None:
    runs, steps = [0, 6, 12], [6, 9]
    paths = [
        write(tmp_path / f"t{run:02}.f{step}.grib2", 20240102, run, step)
        for run in runs
        for step in steps
    ]
    indexes = [write_wgrib2_index(path) for path in paths]
    how: Any = {"combine": "nested", "concat_dim": ["time", "step"]}
    options = {"template": template, **AIR}
    found = virtualds.open_virtual_mfdataset(indexes[::-1], **how, parser_options=options)
    assert dict(found.sizes) == {
        "time": 3, "step": 2, "isobaricInhPa": 2, "latitude": 7, "longitude": 12,
    }  # fmt: skip
    assert found.valid_time.dims == ("time", "step")
    expected = virtualds.open_virtual_mfdataset(paths[::-1], **how, parser_options=AIR)
    assert_same(found, expected)
    with xr.open_dataset(paths[3], engine="virtual", parser_options=AIR) as one:
        np.testing.assert_array_equal(found.t.isel(time=1, step=1), one.t)


def test_a_cell_of_a_cube_without_a_file_reads_as_missing(tmp_path: Path) -> None:
    template = write(tmp_path / "template.grib2", 20240101, 0, 6, 1)
    write_wgrib2_index(template)
    cells = [(member, run, step) for member in (1, 2) for run in (0, 6) for step in (6, 9)]
    indexes = [
        write_wgrib2_index(write(tmp_path / f"{m}.{r}.{s}.grib2", 20240102, r, s, m))
        for m, r, s in cells
    ]
    indexes[3].with_suffix("").unlink()
    with pytest.warns(UserWarning, match="1 of 8 files could not be opened"):
        cube = virtualds.open_virtual_mfdataset(
            indexes, combine="nested", concat_dim=["number", "time", "step"], on_error="skip",
            parser_options={"template": template, **AIR},
        )  # fmt: skip
    assert cube.t.dims[:3] == ("number", "time", "step")
    missing = cube.t.isnull().all(["isobaricInhPa", "latitude", "longitude"])
    np.testing.assert_array_equal(np.argwhere(missing.values), [[0, 1, 1]])
    assert cube.t.isnull().sum() == cube.t[0, 0, 0].size


RUNS, STEPS = (0, 6, 12), (0, 6, 9)
Forecasts = dict[tuple[int, int], tuple[bytes, bytes]]
"""The bytes of files and of their indexes, by run and step."""


@dataclass(frozen=True)
class Bucket:
    """A day of forecasts in a bucket, each file with its index."""

    url: str
    options: dict[str, Any]

    @classmethod
    def fill(cls, forecasts: Forecasts, url: str, options: dict[str, Any]) -> Bucket:
        found = cls(url, options)
        for (run, step), (data, index) in forecasts.items():
            found.filesystem.pipe(found.name(run, step), data)
            found.filesystem.pipe(f"{found.name(run, step)}.idx", index)
        return found

    @cached_property
    def filesystem(self) -> Any:
        return fsspec.filesystem("s3", **self.options, skip_instance_cache=True)

    def name(self, run: int, step: int) -> str:
        return f"{self.url}/gfs.20240102/{run:02}/atmos/gfs.t{run:02}z.pgrb2.f{step:03}"

    def open_cube(self, **more: Any) -> xr.Dataset:
        return virtualds.open_virtual_mfdataset(
            f"{self.url}/gfs.*/*/atmos/gfs.t??z.pgrb2.f???.idx",
            combine="nested",
            concat_dim=["time", "step"],
            storage_options=self.options,
            parser_options={"template": [self.name(0, 6), self.name(0, 0)], **AIR},
            **more,
        )


@pytest.fixture(scope="module")
def forecasts(tmp_path_factory: pytest.TempPathFactory) -> Forecasts:
    folder, found = tmp_path_factory.mktemp("forecasts"), Forecasts()
    for run, step in itertools.product(RUNS, STEPS):
        path = write(folder / f"{run}.{step}.grib2", 20240102, run, step)
        found[run, step] = path.read_bytes(), write_wgrib2_index(path).read_bytes()
    return found


@pytest.fixture
def bucket(forecasts: Forecasts, s3_bucket: str, s3_server: dict[str, Any]) -> Bucket:
    return Bucket.fill(forecasts, s3_bucket, s3_server)


def test_a_pattern_of_a_bucket_is_a_cube_whose_files_nobody_reads(bucket: Bucket) -> None:
    before = len(requests_to(bucket.options))
    cube = bucket.open_cube()
    asked = requests_to(bucket.options)[before:]
    assert dict(cube.sizes) == {
        "time": 3, "step": 3, "isobaricInhPa": 2, "latitude": 7, "longitude": 12,
    }  # fmt: skip
    files = [request for request in asked if re.search(r"GET .*\.f\d{3}$", request)]
    # the templates are read; beside that each cell costs an index and the size of its file
    assert {file[-4:] for file in files} == {"f006", "f000"} and all("t00z" in f for f in files)
    cells = len(RUNS) * len(STEPS)
    heads = [request[-4:] for request in asked if request.startswith("HEAD")]
    assert len([name for name in heads if name != ".idx"]) <= cells + 6
    assert len([request for request in asked if request.endswith(".idx")]) <= cells + 4
    one = virtualds.open_virtual_dataset(
        bucket.name(12, 9), storage_options=bucket.options, parser_options=AIR
    )
    np.testing.assert_array_equal(cube.t.isel(time=2, step=2), one.t)


def test_an_index_that_does_not_fit_into_a_cube_is_named_or_left_out(bucket: Bucket) -> None:
    text = bucket.filesystem.cat(f"{bucket.name(6, 9)}.idx")
    bucket.filesystem.pipe(f"{bucket.name(6, 9)}.idx", text.replace(b"TMP:850", b"HGT:850"))
    bucket.filesystem.rm(bucket.name(12, 6))
    with pytest.raises(UnsupportedError, match=r"t06z.pgrb2.f009.idx: .*\n.*\n.*HGT:850 mb"):
        bucket.open_cube()
    cube = bucket.open_cube(on_error="collect")
    lost = {left.url[-17:]: left.error for left in cube.virtual.report.left_out}
    assert lost == {
        "6z.pgrb2.f009.idx": "UnsupportedError",
        "2z.pgrb2.f006.idx": "FileNotFoundError",
    }
    missing = cube.t.isnull().all(["isobaricInhPa", "latitude", "longitude"])
    np.testing.assert_array_equal(np.argwhere(missing.values), [[1, 2], [2, 1]])


def test_a_template_that_is_not_there_is_named(bucket: Bucket) -> None:
    bucket.filesystem.rm(bucket.name(0, 6))
    with pytest.raises(FileNotFoundError, match=r"idx: its template s3://.*f006 is not there"):
        bucket.open_cube()


def test_each_index_takes_the_template_that_has_its_messages(
    template: Path, tmp_path: Path
) -> None:
    start = write(tmp_path / "start.grib2", 20240101, 0, 0)
    write_wgrib2_index(start)
    path = write(tmp_path / "a.grib2", 20240105, 6, 0)
    index = write_wgrib2_index(path)
    with pytest.raises(UnsupportedError, match="only in the template: APCP:surface:from-to acc"):
        virtualds.open_virtual_dataset(index, parser_options={"template": template, **AIR})
    options = {"template": [template, start], **AIR}
    found = virtualds.open_virtual_dataset(index, parser_options=options)
    assert_same(found, virtualds.open_virtual_dataset(path, parser_options=AIR))


Change = Callable[[Path], object]


def change_text(old: str, new: str) -> Change:
    """A function that changes a text in an index."""

    def change(index: Path) -> None:
        text = index.read_text()
        assert old in text
        index.write_text(text.replace(old, new))

    return change


def cut_file(index: Path) -> None:
    file = index.with_suffix("")
    file.write_bytes(file.read_bytes()[:900])


WRONG: dict[str, tuple[Change, type[Exception], str]] = {
    "another parameter": (change_text("TMP:850 mb", "HGT:850 mb"), UnsupportedError, "HGT:850 mb"),
    "another level": (change_text("850 mb", "851 mb"), UnsupportedError, "only here: TMP:851 mb"),
    "another kind of step": (change_text("hour acc", "hour max"), UnsupportedError, "from-to max"),
    "an unknown unit of steps": (change_text("9 hour", "9 month"), UnsupportedError, "9 month"),
    "a message that is not there": (
        lambda index: index.write_text("\n".join(index.read_text().splitlines()[:-1])),
        UnsupportedError, "its 5 messages are not the 6 of the template",
    ),
    "a shorter file": (cut_file, FormatError, "does not fit into its file"),
    "no index": (change_text("2.1:", "2.1:x"), FormatError, "line 2, .*not one of an index"),
    "a month that is not there": (change_text("d=202401", "d=202413"), FormatError, "line 1"),
    "no file": (lambda index: index.with_suffix("").unlink(), FileNotFoundError, "a.grib2"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_an_index_that_is_not_like_the_template_is_refused(
    name: str, template: Path, tmp_path: Path
) -> None:
    change, error, text = WRONG[name]
    index = write_wgrib2_index(write(tmp_path / "a.grib2", *FORECASTS["hours"]))
    change(index)
    with pytest.raises(error, match=text):
        virtualds.open_virtual_dataset(index, parser_options={"template": template, **AIR})


def test_a_template_whose_index_is_not_its_own_is_refused(template: Path, tmp_path: Path) -> None:
    index = write_wgrib2_index(write(tmp_path / "a.grib2", *FORECASTS["hours"]))
    options = {"parser_options": {"template": template, **AIR}}
    own = tmp_path / "template.grib2.idx"
    text = own.read_text()
    for changed, error, why in (
        (text.replace("6 hour", "7 hour"), UnsupportedError, "the index says time, step"),
        ("\n".join(text.splitlines()[:-1]), FormatError, "it is not a template"),
    ):
        own.write_text(changed)
        # another file, so that what was read of the first one says nothing
        again = shutil.copy(template, tmp_path / f"{error.__name__}.grib2")
        shutil.copy(own, f"{again}.idx")
        options["parser_options"]["template"] = again
        with pytest.raises(error, match=why):
            virtualds.open_virtual_dataset(index, **options)


def test_what_an_index_cannot_tell_is_asked_for(template: Path, tmp_path: Path) -> None:
    index = write_wgrib2_index(write(tmp_path / "a.grib2", *FORECASTS["hours"]))
    with pytest.raises(UnsupportedError, match=r"parser_options=\{'template'"):
        virtualds.open_virtual_dataset(index)
    options: dict[str, Any] = {"template": template, "filter_by_keys": {"startStep": 3}}
    with pytest.raises(UnsupportedError, match="does not say 'startStep'"):
        virtualds.open_virtual_dataset(index, parser_options=options)
    other = index.rename(tmp_path / "a.inventory")
    with pytest.raises(UnsupportedError, match="rename the index"):
        virtualds.open_virtual_dataset(other, parser_options={"template": template})


def test_lengths_in_an_index_are_checked(tmp_path: Path) -> None:
    template = write(tmp_path / "template.grib2", 20240101, 0, 6, 1)
    write_ecmwf_index(template)
    index = write_ecmwf_index(write(tmp_path / "a.grib2", 20240102, 0, 9, 2))
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    lines[1]["_length"] += 1
    index.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(FormatError, match="does not fit"):
        virtualds.open_virtual_dataset(index, parser_options={"template": template, **AIR})
