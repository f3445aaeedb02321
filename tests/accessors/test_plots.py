"""Pictures by matplotlib show what the references say."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cftime
import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from products import looped
from programs import run_code

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

import virtualds
from virtualds import ManifestArray
from virtualds.accessors.plots import EMPTY as WITHOUT_CHUNKS
from virtualds.accessors.plots import MAX_LINES, add_legend_below, get_colour
from virtualds.codecs.cf import Packing, TimePacking
from virtualds.codecs.hdf import Shuffle
from virtualds.codecs.zlib import Zlib

DAY = np.timedelta64(1, "D")
ZLIB = ({"id": "zlib", "level": 1},)


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def files_along(paths: list[str], each: int = 1, **more: Any) -> ManifestArray:
    """An array of one axis, a chunk of ``each`` elements in every file."""
    return ManifestArray.from_arrays(
        shape=(len(paths) * each,),
        chunks=(each,),
        dtype="f4",
        path=np.array(paths),
        offsets=8,
        lengths=4 * each,
        **more,
    )


def on_days(array: ManifestArray, days: Any) -> xr.Dataset:
    """A dataset of an array along dates, which count from 1970."""
    dates = np.datetime64("1970-01-01", "ns") + np.asarray(days) * DAY
    return xr.Dataset({"t": ("time", array)}, {"time": dates})


def rectangles(ax: Axes, gid: str | None) -> list[tuple[float, ...]]:
    """Left, right, bottom and top of the rectangles of a kind, bands of no kind."""
    found = [c for c in ax.collections if isinstance(c, PolyCollection) and c.get_gid() == gid]
    boxes = [path.get_extents() for c in found for path in c.get_paths()]
    return [(b.x0, b.x1, b.y0, b.y1) for b in boxes]


def legend(ax: Axes) -> list[str]:
    shown = ax.get_legend()
    return [text.get_text() for text in shown.get_texts()] if shown else []


def names(ax: Axes) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


def title(ax: Axes) -> str:
    return ax.get_title()


# ---------------------------------------------------------------------- coverage


def test_each_file_is_a_row_from_its_first_to_its_last_date() -> None:
    ax = on_days(
        files_along(["/d/a.nc", "/d/b.nc", "/d/c.nc"], 10), range(30)
    ).virtual.plot.coverage()
    assert [row[:2] for row in rectangles(ax, "files")] == [(0, 10), (10, 20), (20, 30)]
    assert [(low + high) / 2 for *_, low, high in rectangles(ax, "files")] == [0, 1, 2]
    assert (names(ax), title(ax)) == (["a.nc", "b.nc", "c.nc"], "3 files along time: no gap")
    assert (ax.get_xlim(), ax.get_ylim(), legend(ax)) == ((0, 30), (2.5, -0.5), [])
    assert ax.get_ylabel() == "d/"


def test_missing_dates_are_a_band_and_no_file_crosses_it() -> None:
    days = [*range(5), *range(9, 14)]
    ax = on_days(files_along(["/a.nc", "/b.nc"], 5), days).virtual.plot.coverage()
    assert rectangles(ax, None) == [(5, 9, 0, 1)]
    assert legend(ax) == ["1 gap in the dates, 1970-01-06 to 1970-01-10"]
    # a gap within a file cuts its row in two
    ax = on_days(
        files_along(["/a.nc", "/b.nc"], 5), [0, 1, 2, 6, 7, *range(8, 13)]
    ).virtual.plot.coverage()
    assert [row[:2] for row in rectangles(ax, "files")] == [(0, 3), (6, 8), (8, 13)]
    assert title(ax) == "2 files along time: 1 gap"


def test_positions_without_a_file_are_a_hatched_band() -> None:
    ax = on_days(files_along(["", "/a.nc", "", "", "/b.nc", ""]), range(6)).virtual.plot.coverage()
    assert [row[:2] for row in rectangles(ax, None)] == [(0, 1), (2, 4), (5, 6)]
    assert all(c.get_hatch() for c in ax.collections if c.get_gid() is None)
    assert title(ax) == "2 files along time: 3 gaps"
    assert legend(ax) == ["3 gaps without file: fill value"]


def test_dates_that_two_files_have_are_a_band_over_both() -> None:
    days = [*range(6), *range(3, 9)]
    ax = on_days(files_along(["/a.nc", "/b.nc"], 6), days).virtual.plot.coverage()
    assert [row[:2] for row in rectangles(ax, "files")] == [(0, 6), (3, 9)]
    assert rectangles(ax, None) == [(3, 6, 0, 1)]
    assert legend(ax) == ["1 overlap, 1970-01-04 to 1970-01-07"]
    assert title(ax) == "2 files along time: 1 overlap"


def test_files_in_another_order_than_their_dates_do_not_overlap() -> None:
    days = [*range(5, 10), *range(5)]
    ax = on_days(files_along(["/b.nc", "/a.nc"], 5), days).virtual.plot.coverage()
    assert [row[:2] for row in rectangles(ax, "files")] == [(5, 10), (0, 5)]
    assert title(ax) == "2 files along time: no gap"


AXES: dict[str, tuple[Any, list[tuple[float, float]], str]] = {
    "numbers": ([1.0, 2.0, 4.0], [(1, 2), (2, 4), (4, 5.5)], "x (m)"),
    "falling numbers": ([3.0, 2.0, 1.0], [(2, 3), (1, 2), (0, 1)], "x (m)"),
    "lead times": (
        np.array([0, 6, 12]) * np.timedelta64(1, "h"),
        [(0, 6), (6, 12), (12, 18)],
        "x (hours)",
    ),
    "text": (["p", "q", "r"], [(0, 1), (1, 2), (2, 3)], "position along x"),
    "no order": ([3.0, 1.0, np.nan], [(0, 1), (1, 2), (2, 3)], "position along x"),
    "another calendar": (
        [cftime.Datetime360Day(1970, 2, 30 - n) for n in (2, 1, 0)],
        [(57, 58), (58, 59), (59, 60)],
        "x",
    ),
}


@looped("kind", AXES)
def test_an_axis_has_the_values_of_its_coordinate_or_positions(kind: str) -> None:
    values, expected, label = AXES[kind]
    ds = xr.Dataset({"t": ("x", files_along(["/a.nc", "/b.nc", "/c.nc"]))})
    # only numbers are in units: other values show theirs
    ds = ds.assign_coords(x=("x", values, {"units": "m"}))
    ax = ds.virtual.plot.coverage("x")
    assert [row[:2] for row in rectangles(ax, "files")] == expected
    assert ax.get_xlabel() == label
    ax.figure.canvas.draw()
    bare = ds.drop_vars("x").virtual.plot.coverage("x")
    assert [row[:2] for row in rectangles(bare, "files")] == [(0, 1), (1, 2), (2, 3)]
    assert bare.get_xlabel() == "position along x"


def test_ticks_of_another_calendar_are_its_dates() -> None:
    dates = xr.date_range("2001-02-01", periods=30, calendar="360_day", use_cftime=True)
    ds = xr.Dataset({"t": ("time", files_along(["/a.nc"], 30))}, {"time": dates})
    ax = ds.virtual.plot.coverage()
    ax.figure.canvas.draw()
    shown = [label.get_text() for label in ax.get_xticklabels()]
    assert "2001-02-30" in shown or "2001-02-26" in shown, shown


def test_a_variable_may_be_chosen_and_variables_are_seen_together() -> None:
    ds = on_days(files_along(["/a.nc", "/b.nc"], 2), range(4))
    ds["u"] = ("time", files_along(["", "/u.nc"], 2))
    assert names(ds.virtual.plot.coverage()) == ["a.nc", "b.nc", "u.nc"]
    ax = ds.virtual.plot.coverage(variable="u")
    assert (names(ax), title(ax)) == (["u.nc"], "1 file along time: 1 gap")


def test_chunks_that_the_set_holds_are_a_row_of_their_own(tmp_path: Path) -> None:
    ds = xr.Dataset({"t": ("x", ManifestArray.from_values(np.arange(3.0)))})
    assert names(ds.virtual.plot.coverage("x")) == ["(in the set)"]


def test_ten_thousand_files_take_about_a_second_and_few_names(tmp_path: Path) -> None:
    array = files_along([f"/d/{n:05}.nc" for n in range(10_000)])
    ds = on_days(array, range(10_000)).assign(u=("time", array), v=("time", array))
    ds.virtual.plot.sizes()  # imports matplotlib
    begin = time.process_time()
    ax = ds.virtual.plot.coverage()
    ax.figure.savefig(tmp_path / "big.png")
    assert time.process_time() - begin < 3
    assert len(rectangles(ax, "files")) == 10_000
    assert (names(ax)[0], names(ax)[-1], len(names(ax))) == ("00000.nc", "09999.nc", 10)


def test_long_names_are_shown_by_what_tells_them_apart() -> None:
    paths = [f"/data/a_long_name_of_an_experiment_{n:02}.nc" for n in (1, 2, 12)]
    ax = xr.Dataset({"t": ("x", files_along(paths))}).virtual.plot.coverage("x")
    assert names(ax) == ["…01.nc", "…02.nc", "…12.nc"]
    assert ax.get_ylabel().endswith("experiment_")
    ax = xr.Dataset({"t": ("x", files_along(paths[:1]))}).virtual.plot.coverage("x")
    assert names(ax) == ["a_long_name_of_an_experiment_01.nc"]
    sizes = xr.Dataset({"a" * 30 + "b" * 30: ("x", files_along(paths))}).virtual.plot.sizes()
    assert names(sizes) == ["a" * 18 + "…" + "b" * 19]


def test_hostile_names_are_shown_as_they_are(tmp_path: Path) -> None:
    odd = r"_$\frac{<b>$"
    ds = xr.Dataset({odd: (f"{odd}x", files_along([f"/{odd}.nc", "", f"/{odd}/b\n.nc"]))})
    for ax in (ds.virtual.plot.coverage(f"{odd}x"), ds.virtual.plot.chunks(odd)):
        assert odd in title(ax) and odd in ax.get_xlabel()
        ax.figure.savefig(tmp_path / "odd.png")
    assert names(ds.virtual.plot.sizes()) == [odd]


def test_secrets_of_urls_are_not_drawn() -> None:
    ds = xr.Dataset({"t": ("x", files_along(["https://h/a.nc?token=hunter2"]))})
    ax = ds.virtual.plot.coverage("x")
    assert "hunter2" not in f"{names(ax)}{ax.get_ylabel()}{title(ax)}"


def test_opened_sets_look_the_same(archive_files: list[Path], tmp_path: Path) -> None:
    vds = virtualds.open_virtual_mfdataset(archive_files, combine="nested", concat_dim="time")
    vds.virtual.to_manifest(tmp_path / "refs.zarr")
    again = xr.open_dataset(tmp_path / "refs.zarr", engine="virtual", chunks={})
    for plots in (vds.virtual.plot, again.virtual.plot):
        ax = plots.coverage()
        assert len(rectangles(ax, "files")) == 2 and names(ax) == ["2001.nc", "2002.nc"]
        assert title(plots.chunks("t")) == "t: 24 chunks of (1, 6, 8)"
    assert title(vds.virtual.plot.sizes()) == title(again.virtual.plot.sizes())


def test_the_legend_has_one_entry_for_each_kind_of_band_and_covers_nothing() -> None:
    days = [n * 100 + day for n in range(60) for day in range(10)]
    paths = [f"/d/{n}.nc" if n % 20 else "" for n in range(60)]
    ax = on_days(files_along(paths, 10), days).virtual.plot.coverage()
    assert legend(ax) == ["3 gaps without file: fill value", "59 gaps in the dates"]
    ax.figure.canvas.draw()
    shown: Any = ax.get_legend()
    frame = shown.get_window_extent()
    assert frame.y1 < ax.xaxis.get_tightbbox(ax.figure.canvas.get_renderer()).y0
    assert frame.y0 > 0


@pytest.mark.parametrize(
    ("url", "label"), [("/a.nc", ""), ("s3://bucket/a.nc", "bucket/"), ("/x/y z/a.nc", "y z/")]
)
def test_the_label_is_the_last_folder(url: str, label: str) -> None:
    ax = xr.Dataset({"t": ("x", files_along([url]))}).virtual.plot.coverage("x")
    assert ax.get_ylabel() == label


def test_spans_of_all_lengths_have_a_few_dates_and_no_warning() -> None:
    for hours in (1, 2, 7, 30, 72, 100, 700, 3000, 9000, 20_000, 35_000, 45_000, 10**6, 10**7):
        times = np.datetime64("1999-12-20", "s") + np.arange(4) * np.timedelta64(hours * 900, "s")
        ds = xr.Dataset({"t": ("time", files_along(["/a.nc"], 4))}, {"time": times})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ax = ds.virtual.plot.coverage()
            ax.figure.canvas.draw()
        low, high = ax.get_xlim()
        assert 1 <= sum(low <= tick <= high for tick in ax.get_xticks()) <= 8, hours
        plt.close(ax.figure)


# ---------------------------------------------------------------------- chunks


def two_encodings() -> xr.Dataset:
    """``t(time, lat, lon)`` of two encodings and chunk shapes; a chunk of the first is missing."""
    paths = np.full((4, 2, 1), "/a.nc", object)
    paths[1, 1] = ""
    first = ManifestArray.from_arrays(
        shape=(4, 6, 8), chunks=(1, 3, 8), dtype="i2", path=paths.astype(str), offsets=8,
        lengths=30, codecs=ZLIB,
    )  # fmt: skip
    second = ManifestArray.from_arrays(
        shape=(6, 6, 8), chunks=(3, 6, 8), dtype="i2", path="/b.nc", offsets=8, lengths=288
    )
    parts = [xr.Dataset({"t": (("time", "lat", "lon"), array)}) for array in (first, second)]
    return xr.concat(parts, dim="time")


def test_chunks_are_coloured_by_encoding_and_gaps_are_ground() -> None:
    ax = two_encodings().virtual.plot.chunks("t")
    first, second = rectangles(ax, "int16, zlib"), rectangles(ax, "int16, uncompressed")
    assert sorted(first) == [(0, 1, 0, 6), (1, 2, 0, 3), (2, 4, 0, 6)]
    assert second == [(4, 10, 0, 6)]
    assert legend(ax) == ["int16, zlib", "int16, uncompressed", "no chunk: fill value"]
    assert ax.patch.get_hatch() and ax.get_xlim() == (0, 10)
    assert title(ax) == "t: 10 chunks of (1 to 3, 3 to 6, 8), 1 missing"
    shown = [c for c in ax.collections if isinstance(c, PolyCollection)]
    # no colour alone tells them apart
    assert len({c.get_hatch() for c in shown}) == len(shown)


def test_borders_of_chunks_are_lines_within_their_fragment() -> None:
    ax = two_encodings().virtual.plot.chunks("t")
    lines = {
        tuple(map(tuple, line.tolist()))
        for c in ax.collections
        if c.get_gid() == "borders"
        for line in c.get_segments()
    }
    upright = {(a, b) for a, b in lines if a[0] == b[0]}
    assert {a[0] for a, _ in upright} == {1, 2, 3, 4, 7}
    assert lines - upright == {((0, 3), (4, 3))}


def test_borders_that_would_cover_everything_are_not_drawn() -> None:
    for chunks, drawn in ((MAX_LINES - 1, MAX_LINES - 2), (MAX_LINES, 0)):
        ds = xr.Dataset({"t": ("x", files_along(["/a.nc"] * chunks))})
        found = [c for c in ds.virtual.plot.chunks("t").collections if c.get_gid() == "borders"]
        assert sum(len(c.get_segments()) for c in found) == drawn


def test_other_dimensions_may_be_shown_and_holes_behind_them_are_seen() -> None:
    ax = two_encodings().virtual.plot.chunks("t", x="lon", y="lat")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("position along lon", "position along lat")
    assert rectangles(ax, "holes") == [(0, 8, 3, 6)]
    assert "some chunks missing" in legend(ax)


def in_scales(scales: list[float], each: int) -> ManifestArray:
    """An array of a file for each scale; files are packed by it."""
    parts = []
    for number, scale in enumerate(scales):
        stored = np.dtype("i2")
        array = replace(
            files_along([f"/{number}.nc"], each), dtype=np.dtype("f8"), fill_value=np.nan
        )
        packing = Packing.from_attributes(stored, {"scale_factor": scale}, np.dtype("f8"))
        pipeline = replace(array.pipelines[0], dtype=stored, packing=packing)
        parts.append(replace(array, pipelines=(pipeline,)))
    return np.concatenate(parts)


def test_encodings_that_differ_in_scale_have_colours_and_names_of_their_own() -> None:
    ds = on_days(in_scales([0.01, 0.01, 0.02], 5), range(15))
    ax = ds.virtual.plot.chunks("t")
    assert legend(ax) == ["int16 × 0.01, uncompressed", "int16 × 0.02, uncompressed"]
    assert [row[:2] for row in rectangles(ax, legend(ax)[1])] == [(10, 15)]


def test_many_encodings_share_the_last_colour_and_one_name() -> None:
    ds = xr.Dataset({"t": ("x", in_scales([n + 0.5 for n in range(30)], 2))})
    ax = ds.virtual.plot.chunks("t")
    assert len(legend(ax)) == 6 and legend(ax)[-1] == "25 more encodings"
    last = rectangles(ax, "25 more encodings")
    assert (min(last)[0], max(last)[1]) == (10, 60)


def test_gaps_in_the_dates_stay_empty() -> None:
    days = [*range(5), *range(105, 110), *range(205, 210)]
    plots = on_days(in_scales([0.01, 0.01, 0.02], 5), days).virtual.plot
    ax = plots.chunks("t")
    first, second, empty = legend(ax)
    assert [row[:2] for row in rectangles(ax, first)] == [(0, 5), (105, 110)]
    assert [row[:2] for row in rectangles(ax, second)] == [(205, 210)]
    assert [row[:2] for row in rectangles(ax, "empty")] == [(5, 105), (110, 205)]
    assert empty == "2 gaps in the dates along time"
    # the same extents as those of files
    files = [row[:2] for row in rectangles(plots.coverage(), "files")]
    assert files == [(0, 5), (105, 110), (205, 210)]


def test_cells_of_irregular_dates_and_of_numbers_touch() -> None:
    for days in ([0, 1, 4, 11], np.array([0.0, 1, 4, 11])):
        ds = on_days(files_along(["/a.nc", "/b.nc"], 2), range(4))
        times = ds.time.values[0] + np.array(days) * DAY if isinstance(days, list) else days
        ax = ds.assign_coords(time=times).virtual.plot.chunks("t")
        assert [row[:2] for row in rectangles(ax, "float32, uncompressed")] == [(0, 14)]
        assert legend(ax) == ["float32, uncompressed"]


def test_a_long_name_takes_two_lines_of_the_legend() -> None:
    array = files_along(["/a.nc"])
    dates = {"units": "milliseconds since 1970-01-01T00:00:00.000000 +00:00"}
    packing = TimePacking.from_attributes(dates, np.dtype("M8[ns]"))
    pipeline = replace(array.pipelines[0], packing=packing, codecs=(Shuffle(4), Zlib(1)))
    array = replace(array, pipelines=(pipeline,), dtype=np.dtype("M8[ns]"))
    (words,) = legend(xr.Dataset({"t": ("x", array)}).virtual.plot.chunks("t"))
    assert words.count("\n") == 1 and words.replace("\n", " ") == str(pipeline)
    _, ax = plt.subplots()
    add_legend_below(ax, [Patch(label=f"{words} {words}")])
    (cut,) = legend(ax)
    assert cut.count("\n") == 1 and cut.endswith(" …")


def test_an_array_of_one_axis_is_a_line() -> None:
    ds = on_days(files_along(["/a.nc", "", "/c.nc"], 4), range(12))
    ax = ds.virtual.plot.chunks("t")
    assert [row[:2] for row in rectangles(ax, "float32, uncompressed")] == [(0, 4), (8, 12)]
    assert (names(ax), title(ax)) == ([], "t: 3 chunks of (4), 1 missing")
    assert ax.get_ylim() == (1, 0)


def test_a_huge_grid_is_drawn_in_cells_of_many_chunks() -> None:
    paths = np.full((3000, 40), "/a.nc", object)
    paths[1500:1530] = ""
    paths[7, 7] = ""
    array = ManifestArray.from_arrays(
        shape=(3000, 40), chunks=(1, 1), dtype="f4", path=paths.astype(str), offsets=8, lengths=4
    )
    ax = xr.Dataset({"t": (("y", "x"), array)}).virtual.plot.chunks("t")
    # six chunks to a cell
    (hole,) = rectangles(ax, "holes")
    assert hole == (6, 12, 7, 8)
    drawn = rectangles(ax, "float32, uncompressed")
    assert not any(left < 1530 and right > 1500 for left, right, *_ in drawn)
    assert sum((right - left) * (top - low) for left, right, low, top in drawn) == (3000 - 30) * 40
    assert title(ax) == "t: 120,000 chunks of (1, 1), 1,201 missing"


# ---------------------------------------------------------------------- sizes


def test_bars_are_as_long_as_stored_and_decoded_bytes() -> None:
    ds = two_encodings()
    ds["u"] = ("x", files_along(["/a.nc", ""], 50))
    ax = ds.virtual.plot.sizes()
    stored = {name: row[1] for name, row in zip(names(ax), rectangles(ax, "stored"), strict=True)}
    decoded = {name: row[1] for name, row in zip(names(ax), rectangles(ax, "decoded"), strict=True)}
    assert stored == {"t": 7 * 30 + 2 * 288, "u": 200}
    assert decoded == {"t": 912, "u": 200}
    assert [note.get_text() for note in ax.texts] == [
        "786 bytes of 912 bytes, ratio 1.2",
        "200 bytes of 200 bytes, ratio 1.0",
    ]
    assert title(ax) == "2 virtual variables: 986 bytes of 1.1 kB, ratio 1.1"
    assert legend(ax) == ["stored", "decoded"]


def test_bars_tell_the_ratio_of_the_page_where_chunks_are_missing() -> None:
    ds = two_encodings()
    assert title(ds.virtual.plot.sizes()).endswith("786 bytes of 912 bytes, ratio 1.2")
    assert "786 bytes, 1.2× smaller" in ds.virtual._repr_html_()


def test_many_small_variables_share_bars() -> None:
    ds = xr.Dataset({f"v{n}": (f"x{n}", files_along(["/a.nc"], n + 1)) for n in range(100)})
    ax = ds.virtual.plot.sizes()
    assert names(ax)[0] == "v99" and names(ax)[-1] == "77 others"
    assert len(rectangles(ax, "stored")) == 24
    assert sum(row[1] for row in rectangles(ax, "stored")) == sum(4 * (n + 1) for n in range(100))


# ---------------------------------------------------------------------- axes and errors


def test_pictures_are_drawn_on_given_axes_and_else_on_a_new_figure() -> None:
    plots = on_days(files_along(["/a.nc"], 3), range(3)).virtual.plot
    figure, axes = plt.subplots(3)
    drawn = [plots.coverage(ax=axes[0]), plots.chunks("t", ax=axes[1]), plots.sizes(ax=axes[2])]
    assert drawn == list(axes) and plt.get_fignums() == [figure.number]
    assert plots.coverage().figure is not figure


def test_a_title_that_axes_have_stays_and_one_that_they_get_replaces_ours() -> None:
    plots = on_days(files_along(["/a.nc"], 3), range(3)).virtual.plot
    for loc in ("left", "center"):
        _, axes = plt.subplots()
        axes.set_title("mine", loc=loc)
        plots.coverage(ax=axes)
        titles = {axes.get_title(loc=one) for one in ("left", "center", "right")}
        assert titles == {"mine", ""}
    ax = plots.chunks("t")
    ax.set_title("mine")
    assert [ax.get_title(loc=one) for one in ("left", "center", "right")] == ["", "mine", ""]


def test_the_plots_say_what_they_draw() -> None:
    plots = on_days(files_along(["/a.nc"], 3), range(3)).virtual.plot
    shown = [name for name in dir(plots) if not name.startswith("_")]
    assert shown == ["chunks", "coverage", "sizes"]
    assert all(f"{name}(" in repr(plots) for name in shown)


def test_dark_axes_have_dark_shades_and_light_lines() -> None:
    with plt.style.context("dark_background"):
        ax = on_days(files_along(["/a.nc", ""], 3), range(6)).virtual.plot.coverage()
    bars, bands = ([c for c in ax.collections if c.get_gid() == gid] for gid in ("files", None))
    assert mpl.colors.to_hex(bars[0].get_facecolor()[0]) == "#2389c9"
    assert mpl.colors.to_hex(bands[0].get_edgecolor()[0]) == "#ffffff"


def test_gaps_are_hatched_in_the_colour_of_the_frame() -> None:
    """Also on axes of no style of matplotlib."""
    _, axes = plt.subplots()
    axes.spines["left"].set_edgecolor("#123456")
    on_days(files_along(["/a.nc", ""], 3), range(6)).virtual.plot.coverage(ax=axes)
    hatched = [c for c in axes.collections if c.get_hatch()]
    assert hatched
    assert {mpl.colors.to_hex(c.get_edgecolor()[0]) for c in hatched} == {"#123456"}


WRONG: dict[str, tuple[Any, str]] = {
    "dimension": (
        lambda plots: plots.coverage("tme"),
        "has the dimension 'tme'; they have 'time'; did you mean 'time'",
    ),
    "variable of coverage": (
        lambda plots: plots.coverage(variable="x"),
        "'x' is not a virtual variable: the dataset has no such",
    ),
    "variable": (
        lambda plots: plots.chunks("tt"),
        "'tt' is not a virtual variable.*give one of 't'",
    ),
    "loaded variable": (
        lambda plots: plots.chunks("time"),
        "its values are loaded or computed",
    ),
    "one dimension twice": (lambda plots: plots.chunks("t", x="time", y="time"), "both 'time'"),
    "axis": (lambda plots: plots.chunks("t", x="lat"), "'t' has no dimension 'lat'; it has 'time'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_name_that_is_not_there_is_an_error_that_lists_those_that_are(what: str) -> None:
    call, message = WRONG[what]
    plots = on_days(files_along(["/a.nc"], 3), range(3)).virtual.plot
    with pytest.raises(ValueError, match=message):
        call(plots)
    assert not plt.get_fignums()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_dataset_without_virtual_variables_has_no_pictures(chunked: bool) -> None:
    ds = xr.Dataset({"t": ("x", np.zeros(3))})
    plots = (ds.chunk() if chunked else ds).virtual.plot
    for draw in (lambda: plots.coverage("x"), lambda: plots.chunks("t"), plots.sizes):
        with pytest.raises(ValueError, match="no virtual variable, only values in memory"):
            draw()


EMPTY: dict[str, tuple[Any, str, str]] = {
    "only fill": (ManifestArray.full((5,), 0, "f4"), "0 files along x: 1 gap", "0 chunks of (0)"),
    "only missing chunks": (
        files_along(["", ""]), "0 files along x: 1 gap", "2 chunks of (1), 2 missing",
    ),
    "no element": (files_along(["/a.nc"])[:0], "0 files along x: no gap", "0 chunks of (0)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", EMPTY)
def test_arrays_without_a_chunk_are_drawn_as_nothing(kind: str) -> None:
    array, covered, cut = EMPTY[kind]
    plots = xr.Dataset({"t": ("x", array)}).virtual.plot
    assert (title(plots.coverage("x")), title(plots.chunks("t"))) == (covered, f"t: {cut}")
    assert rectangles(plots.sizes(), "stored") == [(0, 0, -0.22, 0.22)]
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()


def test_one_value_is_one_box() -> None:
    array = ManifestArray.from_arrays(
        shape=(), chunks=(), dtype="f4", path="/a.nc", offsets=8, lengths=4
    )
    ax = xr.Dataset({"t": ((), array)}).virtual.plot.chunks("t")
    assert rectangles(ax, "float32, uncompressed") == [(0, 1, 0, 1)]
    assert title(ax) == "t: 1 chunk of ()"


def test_without_matplotlib_the_error_names_the_package() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None
import numpy as np, xarray as xr, virtualds
array = virtualds.ManifestArray.from_arrays(
    shape=(2,), chunks=(2,), dtype="f4", path="/a.nc", offsets=8, lengths=8)
plots = xr.Dataset({"t": ("x", array)}).virtual.plot
for draw in (lambda: plots.coverage("x"), lambda: plots.chunks("t"), plots.sizes):
    try:
        draw()
    except virtualds.UnsupportedError as error:
        print(error)
"""
    out = run_code(code, check=True)
    lines = out.stdout.splitlines()
    assert len(lines) == 6
    assert all("matplotlib" in line for line in lines[::2])
    assert all(line == "pip install matplotlib" for line in lines[1::2])


def test_a_legend_is_below_its_axes() -> None:
    figure, ax = plt.subplots()
    add_legend_below(ax, [Patch(label="chunks")])
    figure.canvas.draw()
    assert ax.get_legend().get_window_extent().y1 < ax.get_window_extent().y0
    plt.close(figure)


def test_plots_are_as_high_as_what_they_show() -> None:
    def height(ax: Axes) -> float:
        return float(ax.figure.get_figheight())

    line = on_days(files_along(list("abcdefgh")), range(8))
    plane = xr.Dataset({"t": (("y", "time"), line["t"].variable.data[np.newaxis])})
    assert height(line.virtual.plot.chunks("t")) < height(plane.virtual.plot.chunks("t"))
    assert 3 < height(line.virtual.plot.coverage()) < 4


def test_what_is_empty_has_the_colour_of_the_axes() -> None:
    _, ax = plt.subplots()
    ax.set_facecolor("#123456")
    assert get_colour(ax, WITHOUT_CHUNKS) == "#123456"
