"""Draw the pictures of the page for the docs: an archive of an imaginary planet in Chromium.

``make screenshots`` runs it. The archive has 500 days in one file each, of two packings, with some
days missing, and is made in a temporary folder.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

import virtualds

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests"))

LATITUDES, LONGITUDES = 180, 360
DAYS = [*range(310), *range(330, 500)]
"""Twenty days are missing."""
DEPTHS = (0, 10, 50, 100)

Floats = np.ndarray[Any, np.dtype[np.float64]]


def make_noise(seed: int, slope: float) -> np.ndarray[Any, Any]:
    """Return the spectrum of a field that is periodic, and the smoother the steeper its slope."""
    random = np.random.default_rng(seed)
    shape = (LATITUDES, LONGITUDES // 2 + 1)
    ky = np.fft.fftfreq(LATITUDES)[:, np.newaxis] * LATITUDES
    kx = np.arange(shape[1])[np.newaxis]
    length = np.hypot(kx, 1.6 * ky)
    length[0, 0] = np.inf
    found: np.ndarray[Any, Any] = length**-slope * np.exp(2j * np.pi * random.random(shape))
    return found


def draw_field(spectrum: np.ndarray[Any, Any]) -> Floats:
    field = np.fft.irfft2(spectrum, s=(LATITUDES, LONGITUDES))
    found: Floats = field / field.std()
    return found


class Planet:
    """Continents, and a temperature whose eddies drift to the west."""

    def __init__(self) -> None:
        self.lat = np.linspace(-89.5, 89.5, LATITUDES)
        self.is_land = draw_field(make_noise(8, 2.1)) > 0.55
        self.eddies = [make_noise(seed, slope) for seed, slope in ((1, 2.0), (2, 1.6))]

    def make_day(self, day: int) -> Floats:
        """Return the temperatures of all depths in degrees Celsius."""
        season = 10 * np.sin(2 * np.pi * day / 365)
        zonal = 30 * np.cos(np.deg2rad(self.lat - season * 0.8)) ** 2 - 1.8
        kx = np.arange(LONGITUDES // 2 + 1)
        drift = np.exp(2j * np.pi * kx * day * 0.4 / LONGITUDES)
        turn = np.exp(1j * day / 40 * np.linspace(-1, 1, LATITUDES))[:, np.newaxis]
        first, second = self.eddies
        noise = 2 * draw_field(first * drift) + 1.3 * draw_field(second * drift * turn)
        surface = np.maximum(zonal[:, np.newaxis] + noise, -1.8)
        depths = [4 + (surface - 4) * np.exp(-depth / 80) for depth in DEPTHS]
        return np.where(self.is_land, np.nan, np.stack(depths))


def write_day(path: Path, planet: Planet, day: int) -> None:
    with netCDF4.Dataset(path, "w") as file:
        file.title = "An imaginary planet, day by day"
        for name, size in {"time": None, "depth": len(DEPTHS), "lat": LATITUDES, "lon": LONGITUDES}.items():  # fmt: skip  # noqa: E501
            file.createDimension(name, size)
        coordinates: dict[str, tuple[Any, dict[str, str]]] = {
            "time": ([day], {"units": "days since 2001-01-01"}),
            "depth": (DEPTHS, {"units": "m", "positive": "down"}),
            "lat": (planet.lat, {"units": "degrees_north", "long_name": "latitude"}),
            "lon": (
                np.arange(LONGITUDES) - 179.5,
                {"units": "degrees_east", "long_name": "longitude"},
            ),
        }
        for name, (values, attrs) in coordinates.items():
            variable = file.createVariable(name, "f8", (name,))
            variable.setncatts(attrs)
            variable[:] = values
        values = planet.make_day(day)
        shapes = {"temperature": (1, 1, 90, 180), "heat": (1, 1, 180, 360)}
        units = {"temperature": "degC", "heat": "MJ m-3"}
        titles = {"temperature": "Sea water temperature", "heat": "Heat content above 0 °C"}
        for name, chunks in shapes.items():
            made = file.createVariable(
                name,
                "i2",
                ("time", "depth", "lat", "lon"),
                zlib=True,
                complevel=1,
                shuffle=True,
                chunksizes=chunks,
                fill_value=-32768,
            )
            # the packing changed after a year
            made.setncatts({"scale_factor": 0.002 if day < 365 else 0.005, "units": units[name]})
            made.long_name = titles[name]
            shown = values if name == "temperature" else 1.025 * np.maximum(values, 0) * 4
            made[:] = np.ma.masked_array(np.nan_to_num(shown), np.isnan(shown))[np.newaxis]


def make_archive(folder: Path) -> Path:
    planet = Planet()
    paths = [folder / f"day{day:03d}.nc" for day in DAYS]
    for path, day in zip(paths, DAYS, strict=True):
        write_day(path, planet, day)
    opened = virtualds.open_virtual_mfdataset(
        list(map(str, paths)), combine="nested", concat_dim="time"
    )
    opened.virtual.to_manifest(folder / "planet.zarr")
    return folder / "planet.zarr"


def take_picture(browser: Any, url: str, name: str, width: int, height: int, **how: Any) -> None:
    """Open the page, click on a value, and keep what is seen."""
    clicks, opens = how.pop("clicks"), how.pop("opens", False)
    context = browser.new_context(viewport={"width": width, "height": height}, **how)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("body[data-ready]")
    box = page.locator("#frame").bounding_box()
    page.mouse.click(box["x"] + clicks[0] * box["width"], box["y"] + clicks[1] * box["height"])
    page.wait_for_selector("#series-line path.values")
    page.wait_for_selector("#origin dl")
    if opens:
        page.locator("#structure > summary").click()
        page.wait_for_selector("#chunks svg")
    page.mouse.move(box["x"] + box["width"] + 30, box["y"] + 5)
    page.wait_for_timeout(1500)
    page.screenshot(path=DOCS / name, type="jpeg", quality=82)
    context.close()


def main() -> None:
    """Make the archive, and the pictures of it."""
    from browser import browsing
    from serving import serving

    with tempfile.TemporaryDirectory() as made:
        target = make_archive(Path(made))
        with serving(target) as url, browsing() as browser:
            first = f"{url}#variable=/temperature&at.time=120&at.depth=0"
            take_picture(browser, first, "page-light.jpg", 1280, 1000, clicks=(0.55, 0.42))
            part = f"{first}&part.lat=60:140&part.lon=150:310&map=fire"
            dark = {"color_scheme": "dark", "clicks": (0.3, 0.35)}
            take_picture(browser, part, "page-dark.jpg", 1280, 1000, **dark)
            phone = {"clicks": (0.5, 0.4), "device_scale_factor": 2}
            take_picture(browser, first, "page-phone.jpg", 390, 844, **phone)


if __name__ == "__main__":
    main()
