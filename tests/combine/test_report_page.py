"""The report of a build, as a notebook shows it."""

from pathlib import Path

import xarray as xr
from days import CASES, write
from markup import Tags, parse, text_of

import virtualds
from virtualds import BuildReport
from virtualds.combine.report import FilesRead, LibraryReason
from virtualds.combine.workers import LeftOut
from virtualds.pictures import SHOWN_ROWS

HOSTILE = "<script>alert('&')</script>"


def strip_of(report: BuildReport) -> list[tuple[str, float]]:
    """The fills and the widths of the strip."""
    svg = "{http://www.w3.org/2000/svg}"
    strips = [
        s
        for s in parse(report._repr_html_()).iter(f"{svg}svg")
        if "vds-strip" in s.get("class", "")
    ]
    return [
        (rect.get("fill", ""), float(rect.get("width", "")))
        for strip in strips
        for rect in strip.findall(f"{svg}rect")
    ]  # fmt: skip


def test_the_strip_has_a_stretch_for_each_outcome() -> None:
    lost = tuple(LeftOut(f"file:///{n}.nc", "FormatError", "it is truncated") for n in range(10))
    drawn = strip_of(BuildReport(100, opened=60, cached=30, left_out=lost))
    assert [width for _, width in drawn] == [360, 180, 60]
    assert [next(n for n in ("green", "next", "vermilion") if n in fill) for fill, _ in drawn] == [
        "green", "next", "vermilion",
    ]  # fmt: skip
    # what went wrong is told by its texture too
    assert drawn[2][0].startswith("url(#")
    assert len(strip_of(BuildReport(3, opened=3))) == 1
    assert strip_of(BuildReport(0)) == []


def test_the_page_tells_what_happened() -> None:
    reason = LibraryReason("a superblock of version 9", 2, "file:///9.nc")
    lost = LeftOut("https://user:hunter2@host/a.nc?sig=hunter2", "ReadError", HOSTILE)
    read = FilesRead(together=95, alone=2, library=2, reasons=(reason,))
    page = BuildReport(100, 99, 0, (lost,), 4000, 2.0, read)._repr_html_()
    told = text_of(page)
    for words in (
        "100 files",
        "99 opened",
        "1 left out",
        "Chunks 4,000",
        "Time 2.0 s, 50 files per second",
        "95 together, 2 alone, 2 through the HDF5 library",
        f"ReadError {HOSTILE}",
        "2 a superblock of version 9 file:///9.nc",
    ):
        assert words in told, told
    assert "hunter2" not in page and "script" not in Tags(page).tags


def test_a_report_of_thousands_of_bad_files_stays_short() -> None:
    lost = tuple(LeftOut(f"file:///{n}.nc", "FormatError", "it is truncated") for n in range(5000))
    report = BuildReport(5000, left_out=lost)
    assert repr(report) == "<BuildReport 5000 files: 0 opened, 0 from the cache, 5000 left out>"
    assert len(str(report).splitlines()) < 30
    page = report._repr_html_()
    assert page.count("file:///") == SHOWN_ROWS and "and 4,980 more" in page


def test_the_report_of_a_dataset_is_shown_with_it(tmp_path: Path) -> None:
    write(tmp_path, next(iter(CASES.values())))
    (tmp_path / "zzz.nc").write_bytes(b"nothing")
    vds = virtualds.open_virtual_mfdataset(f"{tmp_path}/*.nc", on_error="collect")
    told = text_of(vds.virtual._repr_html_())
    assert "Build" in told and "1 left out" in told and "zzz.nc" in told


def test_a_dataset_shows_no_secret_of_its_report(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    xr.Dataset({"t": ("x", [1.0, 2.0])}).to_netcdf(path)
    ds = virtualds.open_virtual_dataset(path, loadable_variables=[])
    lost = LeftOut("https://h/b.nc?token=hunter2", "OSError", "it is gone")
    ds.virtual.report = BuildReport(2, opened=1, left_out=(lost,))
    shown = ds.virtual._repr_html_()
    assert "hunter2" not in shown and "https://h/b.nc?token=..." in shown
