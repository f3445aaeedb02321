"""Nights of an archive of Sentinel-2 scenes, as cloud optimised GeoTIFF in two zones of UTM.

Names and folders are those of https://registry.opendata.aws/sentinel-2-l2a-cogs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import xarray as xr
from nights import assert_same_bits, date, opened_below

import virtualds
from virtualds.importing import import_pyproj

pyproj = import_pyproj()

SQUARES = {
    "32TQR": (32632, 699_960.0, 5_100_000.0),
    "32TPR": (32632, 600_000.0, 5_100_000.0),
    "33TUL": (32633, 300_000.0, 5_100_000.0),
}
"""Code of the reference system, and the upper left corner, of squares of the military grid."""
BANDS = {"B02": (10, "u2"), "B04": (10, "u2"), "SCL": (20, "u1")}
"""Metres of a pixel, and its type."""
WIDTH = 960
"""Metres of a scene; those of the satellite are 109,800 wide."""
SCENES = (
    "sentinel-s2-l2a-cogs/{zone:d}/{latitude}/{square}/{year}/{month}"
    "/{platform}_{tile}_{time:%Y%m%d}_{sequence}_L2A/{band}.tif"
)


@dataclass
class Scenes:
    """The files of the archive, and the set that follows them."""

    folder: Path
    passes: int = 0

    def publish(self, tile: str, day: str, platform: str = "S2A", sequence: int = 0) -> list[Path]:
        """Write all bands of a scene."""
        zone, latitude, square = int(tile[:2]), tile[2], tile[3:]
        year, month = int(day[:4]), int(day[4:6])
        name = f"{platform}_{tile}_{day}_{sequence}_L2A"
        place = f"sentinel-s2-l2a-cogs/{zone}/{latitude}/{square}/{year}/{month}/{name}"
        (self.folder / place).mkdir(parents=True)
        self.passes += 1
        return [self.write(self.folder / place / f"{band}.tif", tile, band) for band in BANDS]

    def write(self, path: Path, tile: str, band: str) -> Path:
        """Write a band as GDAL writes it: tiles, compressed, with a reference system."""
        (code, x, y), (metres, dtype) = SQUARES[tile], BANDS[band]
        size = WIDTH // metres
        rng = np.random.default_rng(self.passes)
        values = rng.integers(1, 12 if dtype == "u1" else 9000, (size, size)).astype(dtype)
        values[: size // 3, : size // 4] = 0
        keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, code)
        tags = [
            (33550, "d", 3, (float(metres), float(metres), 0.0), True),
            (33922, "d", 6, (0.0, 0.0, 0.0, x, y, 0.0), True),
            (34735, "H", len(keys), keys, True),
            (42113, "s", 2, "0", True),
        ]
        tifffile.imwrite(
            path, values, tile=(32, 32), compression="zlib", predictor=2, extratags=tags,
            metadata=None, photometric="minisblack",
        )  # fmt: skip
        return date(path)

    def sync(self, **how: Any) -> virtualds.SyncReport:
        """One night; no scene is opened that has not changed."""
        given = {
            "tree": "/{zone}/{tile}/{band}",
            "concat_dim": "time",
            "newest": "sequence",
            "settle": 0,
            "on_removed": "drop",
        } | how
        with opened_below(self.folder / "sentinel-s2-l2a-cogs") as opened:
            done = virtualds.sync(f"{self.folder}/{SCENES}", self.folder / "scenes.zarr", **given)
        failed = [lost.url for lost in done.failed]
        assert {path.as_uri() for path in opened} == {*done.added, *done.replaced, *failed}
        return done

    def check(self) -> dict[str, int]:
        """The set is what tifffile and PROJ make of the newest files; give the times of groups."""
        groups: dict[str, dict[str, Path]] = {}
        for path in sorted(self.folder.glob("sentinel-s2-l2a-cogs/*/*/*/*/*/*/*.tif")):
            _, tile, day, *_ = path.parent.name.split("_")
            groups.setdefault(f"/{tile[:2]}/{tile}/{path.stem}", {})[day] = path
        with xr.open_datatree(self.folder / "scenes.zarr", engine="virtual") as tree:
            found = {node.path: node.to_dataset().load() for node in tree.leaves}
        assert found.keys() == groups.keys()
        for group, scenes in groups.items():
            assert_same_bits(found[group], read_natively(group, scenes), attributes=False)
            system = pyproj.CRS(found[group]["spatial_ref"].attrs["crs_wkt"])
            assert system == pyproj.CRS.from_epsg(SQUARES[group.split("/")[2]][0])
        return {group: len(scenes) for group, scenes in groups.items() if "B02" in group}


def read_natively(group: str, scenes: dict[str, Path]) -> xr.Dataset:
    """What other readers make of the scenes of a square and band; no data is missing."""
    _, left, upper = SQUARES[group.split("/")[2]]
    values = np.stack([tifffile.imread(scenes[day]) for day in sorted(scenes)]).astype("f4")
    values[values == 0] = np.nan
    with tifffile.TiffFile(next(iter(scenes.values()))) as file:
        metres, *_ = file.pages.first.tags["ModelPixelScaleTag"].value
    middle = (np.arange(values.shape[-1]) + 0.5) * metres
    days = np.array([f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in sorted(scenes)], "M8[ns]")
    return xr.Dataset(
        {"band_data": (("time", "y", "x"), values)},
        {"time": days, "y": upper - middle, "x": left + middle, "spatial_ref": 0},
    )


def test_scenes_come_late_are_processed_again_and_are_withdrawn(tmp_path: Path) -> None:
    scenes = Scenes(tmp_path)
    for tile in ("32TPR", "32TQR"):
        scenes.publish(tile, "20240601")
        scenes.publish(tile, "20240611")
    assert len(scenes.sync().added) == 4 * len(BANDS)
    assert scenes.check() == {"/32/32TPR/B02": 2, "/32/32TQR/B02": 2}
    assert not scenes.sync().is_written
    # another zone, and a scene between those that are there
    scenes.publish("33TUL", "20240603", "S2B")
    late = scenes.publish("32TQR", "20240606", "S2B")
    assert len(scenes.sync().added) == 2 * len(BANDS)
    assert scenes.check() == {"/32/32TPR/B02": 2, "/32/32TQR/B02": 3, "/33/33TUL/B02": 1}
    # a scene is processed again, and another one is withdrawn
    again = scenes.publish("32TPR", "20240601", sequence=1)
    for path in late:
        path.unlink()
    done = scenes.sync()
    assert sorted(done.added) == sorted(path.as_uri() for path in again)
    assert len(done.dropped) == 2 * len(BANDS)
    assert scenes.check() == {"/32/32TPR/B02": 2, "/32/32TQR/B02": 2, "/33/33TUL/B02": 1}


@pytest.mark.parametrize("first", [True, False], ids=["first night", "later"])
def test_two_zones_in_one_group_are_refused_by_name(tmp_path: Path, first: bool) -> None:
    scenes = Scenes(tmp_path)
    scenes.publish("32TQR", "20240601")
    if not first:
        scenes.sync(tree="/{band}")
    other = scenes.publish("33TUL", "20240603")
    with pytest.raises(virtualds.CombineError) as error:
        scenes.sync(tree="/{band}")
    for text in ("UTM zone 32N", "UTM zone 33N", other[0].parent.name):
        assert text in str(error.value)


def test_a_scene_that_broke_off_waits_for_the_rest(tmp_path: Path) -> None:
    scenes = Scenes(tmp_path)
    scenes.publish("32TQR", "20240601")
    scenes.sync()
    path, *_ = scenes.publish("32TQR", "20240606")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    done = scenes.sync(on_error="collect")
    assert (len(done.added), [lost.url for lost in done.failed]) == (2, [path.as_uri()])
    assert not scenes.sync(on_error="collect").is_written
    path.write_bytes(whole)
    date(path)
    assert scenes.sync(on_error="collect").added == (path.as_uri(),)
    assert scenes.check() == {"/32/32TQR/B02": 2}
