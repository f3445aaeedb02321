"""A build says how many files have which schema, and how the others differ."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner

import virtualds
from virtualds.combine.report import FileSchema, make_schema_section
from virtualds.pictures import format_text
from virtualds_cli.program import main

PACKED = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}


def write(path: Path, number: int, *, packed: bool = False, without: str | None = None) -> Path:
    times = np.arange(2) + 2 * number
    ds = xr.Dataset(
        {
            "t": (("time", "lat"), np.full((2, 3), number, "f8")),
            "u": (("time", "lat"), np.ones((2, 3), "f4")),
        },
        # every file counts from a day of its own: that is no schema of its own
        {"time": ("time", times, {"units": "days since 2000-01-01"}), "lat": np.arange(3.0)},
    )
    ds["time"] = ("time", times - number, {"units": f"days since 2000-01-{1 + number:02}"})
    how = {"t": PACKED if packed else {}}
    if without is not None:
        ds, how = ds.drop_vars(without), {}
    ds.to_netcdf(path, engine="netcdf4", encoding=how)
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Twelve files: the last four are packed, and one of these lacks a variable."""
    return [
        write(tmp_path / f"{n:02}.nc", n, packed=n >= 8, without="u" if n == 10 else None)
        for n in range(12)
    ]


def schemas(files: Any, **how: Any) -> tuple[FileSchema, ...]:
    options = {"combine": "nested", "concat_dim": "time", **how}
    report = virtualds.open_virtual_mfdataset(files, **options).virtual.report
    assert report is not None
    return report.schemas


@pytest.mark.parametrize("how", [{}, {"parallel": 2}, {"cache": "cache"}], ids=str)
def test_files_are_counted_by_schema_and_differences_are_said(
    how: dict[str, Any], files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2 if "cache" in how else 1):
        usual, packed, lacking = schemas(files, **how)
        assert usual == FileSchema(8, str(files[0]))
        assert (packed.files, packed.first) == (3, str(files[8]))
        assert packed.differences == (
            "t is stored as int16, not float64",
            "scale and offset of t: scale_factor=0.5 (float64), not none",
            "fill value of t: _FillValue=-1 (int16), not _FillValue=nan (float64)",
        )
        assert (lacking.files, lacking.first, lacking.differences) == (
            *(1, str(files[10])),
            ("lacks u",),
        )


def test_files_that_are_alike_have_one_schema_and_no_line(files: list[Path]) -> None:
    found = schemas(files[:8])
    assert found == (FileSchema(8, str(files[0])),)
    assert format_text([make_schema_section(found)]) == ""


def test_what_preprocess_returns_has_a_schema(files: list[Path]) -> None:
    def preprocess(ds: xr.Dataset) -> xr.Dataset:
        return ds.drop_vars("t") if float(ds["time"].dt.day[0]) == 9 else ds

    usual, other = schemas(files[:8], preprocess=preprocess)
    assert (usual.files, other.files, other.differences) == (7, 1, ("lacks t",))


def test_a_schema_that_is_not_that_of_the_first_file_may_be_that_of_most(files: list[Path]) -> None:
    usual, other = schemas([files[0], files[8], files[9], files[11]])
    assert (usual.files, usual.first, other.first) == (3, str(files[8]), str(files[0]))
    assert other.differences[0] == "t is stored as float64, not int16"


def test_variables_that_differ_alike_are_named_together_and_long_lists_are_cut() -> None:
    many = [FileSchema(40 - n, f"{n}.nc", ("lacks t",) if n else ()) for n in range(30)]
    head, *_, last = format_text([make_schema_section(many)]).splitlines()
    assert head == "Schemas (30)" and last == "  ... and 10 more"


def test_report_log_page_and_command_line_show_schemas(
    files: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "virtualds"):
        ds = virtualds.open_virtual_mfdataset(files, combine="nested", concat_dim="time")
    line = f"  1      {files[10]}  lacks u"
    assert line in str(ds.virtual.report)
    assert any(line in record.getMessage() for record in caplog.records)
    page = ds.virtual.report._repr_html_()
    assert "lacks u" in page
    assert "the schema of most files" in page
    alike = virtualds.open_virtual_mfdataset(files[:8], combine="nested", concat_dim="time")
    assert "one, of all files" in alike.virtual.report._repr_html_()
    given = ["scan", *map(str, files), "--concat-dim", "time", "-o", str(tmp_path / "refs.zarr")]
    assert "lacks u" not in CliRunner().invoke(main, given).stdout
    told = CliRunner().invoke(main, [*given, "--mode", "w", "-v"])
    assert "Schemas (3)" in told.stdout and line in told.stdout


def test_nothing_is_counted_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / f"{n:02}.nc", n) for n in range(20)]
    batches = []

    from virtualds.combine import report

    real = report.SchemaCounter.add

    def add(self: Any, numbers: Any, opened: Any) -> None:
        batches.append(numbers)
        real(self, numbers, opened)

    monkeypatch.setattr(report.SchemaCounter, "add", add)
    schemas(paths)
    assert len(batches) < 10


def test_groups_of_trees_belong_to_the_schema(tmp_path: Path) -> None:
    paths = []
    for number in range(6):
        kind = "f4" if number == 4 else "f8"
        child = xr.Dataset({"v": ("time", np.zeros(2, kind))}, {"time": np.arange(2) + 2 * number})
        tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"n": 1}), "/a": child})
        paths.append(tmp_path / f"{number}.nc")
        tree.to_netcdf(paths[-1], engine="netcdf4")
    found = virtualds.open_virtual_mfdatatree(paths, concat_dim="time").virtual.report
    assert found is not None
    usual, other = found.schemas
    assert (usual.files, other.first) == (5, str(paths[4]))
    assert other.differences[0] == "a/v is float32, not float64"
