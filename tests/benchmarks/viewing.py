"""Look at a set of many files in Chromium: how long a person waits, and what the server works.

The server runs in a process of its own and has opened the set. Needs chromium and playwright.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

import virtualds

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.serving import read_seconds, running
from browser import browsing


def make_archive(folder: Path, days: int) -> None:
    """Write a file for each day, all from one template, and a set of them."""
    random = np.random.default_rng(0)
    template = folder / "template.nc"
    marked = 1.2345678e300
    with netCDF4.Dataset(template, "w") as file:
        for name, size in (("time", None), ("lat", 24), ("lon", 48)):
            file.createDimension(name, size)
        time_of_day = file.createVariable("time", "f8", ("time",), chunksizes=(1,))
        time_of_day.units = "days since 1990-01-01"
        time_of_day[:] = [marked]
        for name, (units, low, high) in {
            "lat": ("degrees_north", -80, 80),
            "lon": ("degrees_east", 0, 350),
        }.items():
            made = file.createVariable(name, "f8", (name,))
            made.units = units
            made[:] = np.linspace(low, high, len(file.dimensions[name]))
        for name in "abcd":
            made = file.createVariable(name, "f4", ("time", "lat", "lon"), zlib=True, complevel=1)
            made[:] = random.normal(280, 1, (1, 24, 48)).round(2)
    data = template.read_bytes()
    mark = np.float64(marked).tobytes()
    assert data.count(mark) == 1
    paths = [folder / f"day{day:06d}.nc" for day in range(days)]
    for day, path in enumerate(paths):
        path.write_bytes(data.replace(mark, np.float64(day).tobytes()))
    opened = virtualds.open_virtual_mfdataset(
        list(map(str, paths)), combine="nested", concat_dim="time"
    )
    opened.virtual.to_manifest(folder / "refs.zarr")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=5, help="of which the median is printed")
    chosen = parser.parse_args()
    command = ("-m", "virtualds_cli", "serve", "refs.zarr", "--port", "{port}")
    with tempfile.TemporaryDirectory() as made:
        make_archive(Path(made), chosen.files)
        with running(command, Path(made)) as (pid, port), browsing() as browser:
            found: dict[str, list[tuple[float, float]]] = {}

            def measure(name: str, work: Callable[[], object]) -> None:
                before, begun = read_seconds(pid), time.perf_counter()
                work()
                waited = time.perf_counter() - begun
                found.setdefault(name, []).append((read_seconds(pid) - before, waited))

            for turn in range(chosen.times):
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                measure(
                    "first picture",
                    partial(_open, page, f"http://127.0.0.1:{port}/#at.time={10 * turn}"),
                )
                measure("next picture", partial(_step, page, 10 * turn + 1))
                measure("series", partial(_click, page, turn))
                page.close()
    print(f"{chosen.files:,} files   processor seconds of the server   seconds of waiting")
    for name, pairs in found.items():
        worked, waited = (float(np.median(column)) for column in zip(*pairs, strict=True))
        print(f"{name:20}{worked:12.2f}{waited:12.2f}")


def _open(page: Any, url: str) -> None:
    page.goto(url)
    page.wait_for_selector("#picture img")


def _step(page: Any, index: int) -> None:
    page.locator("button[aria-label='Forward along time']").click()
    page.wait_for_function(
        "part => document.querySelector('#picture img').src.includes(part)",
        arg=f"at.time={index}&",
    )


def _click(page: Any, turn: int) -> None:
    """Click on a value that was not asked for before, until its series is whole."""
    box = page.locator("#frame").bounding_box()
    page.mouse.click(box["x"] + box["width"] * (0.2 + 0.1 * turn), box["y"] + box["height"] * 0.4)
    page.wait_for_function(
        "() => document.getElementById('series-note').textContent.startsWith('every 5th')"
    )


if __name__ == "__main__":
    main()
