"""A strip shows which files cover a dimension, as `plot.coverage` does."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import xarray as xr

from virtualds import ManifestArray
from virtualds.accessors.display import MAX_FILES, _list_legend_entries, draw_strips
from virtualds.pictures.html import SERIES

DAY = np.timedelta64(1, "D")


def files_along(paths: list[str], days: Any) -> xr.Dataset:
    """``t(time, x)`` with a chunk in each file, on days since 1970."""
    each = len(days) // len(paths)
    array = ManifestArray.from_arrays(
        shape=(len(days), 2),
        chunks=(each, 2),
        dtype="f4",
        path=np.array(paths).reshape(-1, 1),
        offsets=8,
        lengths=8 * each,
    )
    dates = np.datetime64("1970-01-01", "ns") + np.asarray(days) * DAY
    return xr.Dataset({"t": (("time", "x"), array)}, {"time": dates})


def strips(ds: xr.Dataset) -> list[ET.Element]:
    return [ET.fromstring(shown) for shown in draw_strips(ds, ds.virtual.arrays)]


def spans(shown: ET.Element) -> list[tuple[float, float, str]]:
    """Left and right of the rectangles of the strip, as parts of it, and their shades."""
    strip = next(e for e in shown.iter() if e.get("class") == "vds-strip")
    width, found = float(strip.get("width", 0)), []
    for box in strip.findall("{*}rect"):
        left, across = (float(box.get(name, 0)) / width for name in ("x", "width"))
        shade = re.search(r"vds-([a-z]+)", box.get("fill", ""))
        found.append((round(left, 2), round(left + across, 2), shade[1] if shade else ""))
    return found


def words(shown: ET.Element) -> str:
    return " ".join("".join(shown.itertext()).split())


def test_files_alternate_and_gaps_are_hatched_without_a_file_below() -> None:
    [shown] = strips(files_along(["/a.nc", "", "/c.nc"], [*range(6), *range(8, 11)]))
    # positions 3 to 5 have no file, days 6 and 7 are missing: eleven days
    assert spans(shown) == [
        (0, 0.27, "blue"),
        (0.73, 1, "next"),
        (0.27, 0.55, "gap"),
        (0.55, 0.73, "gap"),
    ]
    assert words(shown).startswith("2 files along time")
    assert words(shown).endswith("files, in two alternating shades2 gaps")


def test_overlaps_lie_on_top() -> None:
    [shown] = strips(files_along(["/a.nc", "/b.nc"], [*range(6), *range(4, 10)]))
    assert spans(shown)[-1] == (0.4, 0.6, "vermilion")
    assert "overlap: 1970-01-05 to 1970-01-07" in words(shown)


def test_ten_thousand_files_are_a_few_rectangles() -> None:
    days = np.arange(10_000)
    days[5_000:] += 10_000
    [shown] = strips(files_along([f"/{n}.nc" for n in range(10_000)], days))
    assert spans(shown) == [(0, 0.25, "blue"), (0.75, 1, "blue"), (0.25, 0.75, "gap")]
    assert "gap: 1983-09-10 to 2011-01-26" in words(shown)


def test_one_file_more_than_a_strip_distinguishes_makes_one_rectangle() -> None:
    for count, said in ((MAX_FILES, "files, in two alternating shades"), (MAX_FILES + 1, "files")):
        [shown] = strips(files_along([f"/{n}.nc" for n in range(count)], range(count)))
        assert len(spans(shown)) == (count if count == MAX_FILES else 1)
        assert words(shown).endswith(said)


def test_only_dimensions_along_which_files_follow_each_other_are_drawn() -> None:
    assert strips(files_along(["/a.nc"], range(4))) == []
    assert strips(xr.Dataset({"t": ("x", np.zeros(3))})) == []
    two = files_along(["/a.nc", "/b.nc"], range(4))
    assert len(strips(two)) == 1 and len(strips(two.isel(time=slice(2)))) == 0


def test_secrets_of_urls_are_left_out() -> None:
    urls = [f"https://h/{name}.nc?token=hunter2" for name in "ab"]
    ds = files_along(urls, range(4))
    [shown] = draw_strips(ds, ds.virtual.arrays)
    assert "hunter2" not in shown and "https://h/a.nc?token=..." in shown


def test_hostile_names_are_text() -> None:
    odd = "<script>&"
    ds = files_along([f"/{odd}a", f"/{odd}b"], range(4)).rename(time=odd)
    [shown] = strips(ds)
    assert odd in words(shown) and not [e for e in shown.iter() if e.tag.endswith("script")]


def test_a_strip_begins_with_its_first_day() -> None:
    """Whenever that is, and a day without a file is as wide."""
    days = np.array([*range(1000), *range(1001, 2001)])
    shown = [strips(files_along(["/a.nc", "/b.nc"], days + first)) for first in (0, 20_000)]
    early, late = ([spans(strip) for strip in found] for found in shown)
    assert early == late and (0.5, 0.5, "gap") in early[0]


def test_the_legend_shows_the_first_shade_of_files() -> None:
    coverage: Any = SimpleNamespace(urls=["a.nc"])
    cells: Any = SimpleNamespace(doubled=[])
    assert _list_legend_entries(coverage, [], cells) == [
        (SERIES[0], "files, in two alternating shades")
    ]
