"""Nights of an archive of Sentinel-5P: granules with groups, behind a login, by url.

Names, groups, types and attributes are those of the product (S5P-KNMI-L2-0021-MA), with fewer
scanlines and pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from earthdata_server import Earthdata, earthdata_server
from nights import assert_same_bits, date

import virtualds
from virtualds.stores import requests

pytest.importorskip("aiohttp")

LENGTHS = (41, 42, 32, 33)
"""Scanlines of granules: those of the instrument have 4172, 4173, 3245 or 3246."""
PIXELS = 9
ORBIT = virtualds.FromName(r"_(\d{5})_\d\d_\d{6}_", int)
FIRST = 32211


def write_granule(path: Path, orbit: int, scanlines: int, seed: int) -> Path:
    """Write the groups of a granule."""
    rng = np.random.default_rng(seed)
    with netCDF4.Dataset(path, "w") as file:
        file.setncatts({"Conventions": "CF-1.7", "orbit": np.int32(orbit), "sensor": "TROPOMI"})
        file.createGroup("METADATA").createGroup("QA_STATISTICS").number_of_groundpixels = np.int32(
            scanlines * PIXELS
        )
        product = file.createGroup("PRODUCT")
        sizes = {"scanline": scanlines, "ground_pixel": PIXELS, "corner": 4, "time": 1}
        for name, size in sizes.items():
            product.createDimension(name, size)
            axis = product.createVariable(name, "i4", (name,))
            axis[:] = np.arange(size)
        seconds = 441_849_600 + 86_400 * ((orbit - FIRST) // 14)
        product["time"].units = "seconds since 2010-01-01 00:00:00"
        product["time"][:] = seconds
        swath = ("time", "scanline", "ground_pixel")
        support = product.createGroup("SUPPORT_DATA").createGroup("GEOLOCATIONS")
        put(
            product,
            "delta_time",
            "i4",
            swath[:2],
            np.arange(scanlines)[None] * 840,
            units=f"milliseconds since 2024-01-{1 + (orbit - FIRST) // 14:02} 00:00:00",
        )
        values = rng.integers(0, 101, (1, scanlines, PIXELS))
        put(
            product,
            "qa_value",
            "u1",
            swath,
            values,
            scale_factor=np.float32(0.01),
            add_offset=np.float32(0),
        )
        for group, name in (
            (product, "latitude"),
            (product, "longitude"),
            (product, "nitrogendioxide_tropospheric_column"),
            (support, "solar_zenith_angle"),
        ):
            values = rng.normal(0, 40, (1, scanlines, PIXELS)).astype("f4")
            more = {} if "itude" in name else {"coordinates": "longitude latitude"}
            put(group, name, "f4", swath, values, **more)
    return date(path)


def put(
    group: Any, name: str, dtype: str, dims: tuple[str, ...], values: Any, **attributes: Any
) -> None:
    fill = {"u1": 255, "i4": -2147483647, "f4": 9.96921e36}[dtype]
    made = group.createVariable(
        name, dtype, dims, zlib=True, shuffle=True, fill_value=fill, chunksizes=values.shape
    )
    made.set_auto_maskandscale(False)
    made.setncatts(attributes)
    made[:] = values


@dataclass
class Swaths:
    """The granules of the archive, those who serve them, and the set that follows them."""

    folder: Path
    service: Earthdata
    written: int = 0

    def publish(self, number: int, scanlines: int, processed: str = "20240401T163233") -> Path:
        self.written += 1
        orbit = FIRST + number
        hour = f"202401{1 + number // 14:02}T{100 * (number % 14):06}"
        name = f"S5P_OFFL_L2__NO2____{hour}_{hour}_{orbit}_03_020600_{processed}.nc"
        return write_granule(self.folder / name, orbit, scanlines, self.written)

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.nc"))

    def sync(self, **more: Any) -> tuple[virtualds.SyncReport, int]:
        """One night with a token; give the requests to the host that stores the granules, too."""
        self.service.asked.clear()
        urls = [f"{self.service.archive}/{path.name}" for path in self.files]
        how: Any = {
            "concat_dim": "orbit",
            "coordinates": {"orbit": ORBIT},
            "preprocess": drop_time,
            "coords": "all",
            "group": "PRODUCT",
            "on_removed": "drop",
            "on_error": "collect",
            "settle": 0,
            "storage_options": TOKEN,
            **more,
        }
        done = virtualds.sync(urls, self.folder / "no2.zarr", **how)
        return done, len(self.service.asked.get("storage", ()))

    def check(self, *without: Path) -> list[int]:
        """The set is what netCDF4 makes of the granules; give their orbits."""
        parts = []
        for path in sorted(set(self.files) - set(without)):
            granule = drop_time(xr.load_dataset(path, group="PRODUCT", engine="netcdf4"))
            parts.append(granule.assign_coords(orbit=int(path.name.split("_")[-4])))
        expected = xr.concat(parts, "orbit", **STACKED)
        with xr.open_dataset(
            self.folder / "no2.zarr", engine="virtual", storage_options=TOKEN
        ) as found:
            assert_same_bits(found.load(), expected)
        orbits: list[int] = expected["orbit"].values.tolist()
        return orbits


STACKED: Any = {"coords": "all", "data_vars": "all", "join": "outer"}
TOKEN = {"headers": {"Authorization": "Bearer right"}}


def drop_time(ds: xr.Dataset) -> xr.Dataset:
    """The day of a granule is no dimension: all have one."""
    return ds.isel(time=0)


@pytest.fixture
def swaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Swaths]:
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.002)
    with earthdata_server(tmp_path) as service:
        yield Swaths(tmp_path, service)


def test_granules_of_one_length_over_nights(swaths: Swaths) -> None:
    for number in range(3):
        swaths.publish(number, LENGTHS[0])
    done, _ = swaths.sync()
    assert len(done.added) == 3
    assert swaths.check() == [FIRST, FIRST + 1, FIRST + 2]
    # whether a granule has changed takes HEAD, which a url signed for GET refuses, and GET
    done, asked = swaths.sync()
    assert (done.is_written, done.unchanged, asked) == (False, 3, 6)
    # a day later there is another granule, and one that broke off
    swaths.publish(15, LENGTHS[0])
    broken = swaths.publish(16, LENGTHS[0])
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    done, _ = swaths.sync()
    assert (len(done.added), len(done.failed), done.unchanged) == (1, 1, 3)
    assert broken.name in done.failed[0].url
    assert swaths.check(broken) == [*range(FIRST, FIRST + 3), FIRST + 15]
    broken.write_bytes(whole)
    done, _ = swaths.sync()
    assert [url.rpartition("/")[2] for url in done.added] == [broken.name]
    assert swaths.check() == [*range(FIRST, FIRST + 3), FIRST + 15, FIRST + 16]
    # a granule is processed again, under another name
    old = swaths.files[1]
    old.unlink()
    swaths.publish(1, LENGTHS[0], processed="20240901T120000")
    done, _ = swaths.sync()
    assert (len(done.added), len(done.dropped), done.unchanged) == (1, 1, 4)
    swaths.check()
    assert not swaths.sync()[0].is_written


def test_granules_of_four_lengths_are_padded(swaths: Swaths) -> None:
    # the longest comes last, so that the set grows by a scanline in the second night
    for number, length in enumerate((LENGTHS[2], LENGTHS[0])):
        swaths.publish(number, length)
    assert len(swaths.sync(pad="scanline")[0].added) == 2
    swaths.check()
    for number, length in enumerate(LENGTHS, 14):
        swaths.publish(number, length)
    assert len(swaths.sync(pad="scanline")[0].added) == 4
    swaths.check()
    # the longest goes
    longest = next(path for path in swaths.files if f"_{FIRST + 15}_" in path.name)
    longest.unlink()
    assert len(swaths.sync(pad="scanline")[0].dropped) == 1
    assert not swaths.sync(pad="scanline")[0].is_written


def test_a_token_that_has_expired_changes_nothing(swaths: Swaths) -> None:
    swaths.publish(0, LENGTHS[0])
    swaths.sync()
    swaths.publish(1, LENGTHS[0])
    # on_removed="drop" is given, and the granules are there
    swaths.service.token = "another"
    with pytest.raises(PermissionError, match=r"S5P_.*the server refuses access.*Authorization"):
        swaths.sync()
    swaths.service.token = "right"
    assert swaths.check(swaths.files[1]) == [FIRST]
    assert len(swaths.sync()[0].added) == 1
    assert swaths.check() == [FIRST, FIRST + 1]
