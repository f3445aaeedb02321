"""What a file of an archive costs, by how the files differ: ``python columns.py [--files 1000]``.

Every row is a ratio to files that are alike and in order, measured in the same run, in processor
seconds. Each case is measured three times and the least counts, since other work may be running.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

JOINED: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
REPEATS = 3


def write_file(
    path: Path, begin: int, length: int, *, variables: int, gzip: int, whole: bool
) -> None:
    """Write a file of a few variables along time; ``whole``: chunks are as long as the file."""
    field = np.random.default_rng(begin).normal(280, 20, (length, 4, 6)).astype("f4")
    places = {
        "time": begin + np.arange(float(length)),
        "lat": np.arange(4.0),
        "lon": np.arange(6.0),
    }
    with h5py.File(path, "w") as file:
        for name, values in places.items():
            file.create_dataset(name, data=values).make_scale(name)
        file["time"].attrs["units"] = "hours since 2000-01-01"
        chunks = (length if whole else 1, 4, 6)
        for number in range(variables):
            dataset = file.create_dataset(
                f"v{number}", data=field, chunks=chunks, compression="gzip", compression_opts=gzip
            )
            for axis, name in enumerate(places):
                dataset.dims[axis].attach_scale(file[name])


def make_archive(
    folder: Path, files: int, *, months: bool = False, eras: bool = False, variables: int = 4
) -> list[Path]:
    """Write an archive, and return its files in order."""
    folder.mkdir()
    paths, begin = [], 0
    for number in range(files):
        length = MONTHS[number % 12] if months else 2
        gzip = 1 + 4 * (eras and number >= files // 2)
        paths.append(folder / f"{number:06d}.nc")
        write_file(paths[-1], begin, length, variables=variables, gzip=gzip, whole=months)
        begin += length
    return paths


def make_dated(folder: Path, files: int, *, bounds: bool) -> list[Path]:
    """Write files as xarray does by default: each counts its dates from its own first one."""
    folder.mkdir()
    paths = [folder / f"{number:06d}.nc" for number in range(files)]
    days = np.datetime64("2000-01-01", "ns") + np.arange(2 * files + 1).astype("m8[D]")
    for number, path in enumerate(paths):
        field = ("time", "lat", "lon"), np.zeros((2, 4, 6), "f4")
        begin = 2 * number
        places = {"time": days[begin : begin + 2], "lat": np.arange(4.0), "lon": np.arange(6.0)}
        dataset = xr.Dataset({f"v{v}": field for v in range(4)}, places)
        if bounds:
            ends = np.stack([days[begin : begin + 2], days[begin + 1 : begin + 3]], axis=1)
            dataset["time_bnds"] = ("time", "nv"), ends
            dataset["time"].attrs["bounds"] = "time_bnds"
            dataset["time"].encoding["units"] = f"days since {str(days[begin])[:10]}"
        dataset.to_netcdf(path, engine="h5netcdf", unlimited_dims=["time"])
    return paths


def make_groups(folder: Path, files: int) -> list[Path]:
    """Write files with a group below a group, all with the same dimensions."""
    paths = make_archive(folder, files)
    for path in paths:
        with h5py.File(path, "a") as file:
            for group in ("a", "a/b"):
                made = file.create_dataset(f"{group}/w", data=np.zeros((2, 4, 6)), chunks=(1, 4, 6))
                for axis, name in enumerate(("time", "lat", "lon")):
                    made.dims[axis].attach_scale(file[name])
    return paths


def measure(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the least processor and wall seconds of some runs."""
    found = []
    for _ in range(REPEATS):
        begun = time.process_time(), time.perf_counter()
        work()
        found.append((time.process_time() - begun[0], time.perf_counter() - begun[1]))
    return min(cpu for cpu, _ in found), min(wall for _, wall in found)


def once(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of a single run."""
    begun = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - begun[0], time.perf_counter() - begun[1]


def swap(paths: Sequence[Path]) -> list[Path]:
    """Return the files with two of them swapped, as sorting ``1.nc, 10.nc, 2.nc`` by name does."""
    middle = len(paths) // 2
    return [*paths[:middle], paths[middle + 1], paths[middle], *paths[middle + 2 :]]


def list_rows(files: int, folder: Path) -> list[tuple[str, int, tuple[float, float]]]:
    """Return the name, the files and the seconds of each case."""
    import dask.array  # noqa: F401  imports are not measured here

    import virtualds

    def build(paths: Sequence[Path], **options: Any) -> Callable[[], Any]:
        return lambda: virtualds.open_virtual_mfdataset(paths, **{**JOINED, **options})

    alike = make_archive(folder / "alike", files)
    build(alike[:20])()
    rows = [("alike, in order", files, measure(build(alike)))]
    rows.append(("two of them swapped", files, measure(build(swap(alike)))))
    rows.append(
        ("by coordinates", files, measure(build(swap(alike), combine="by_coords", concat_dim=None)))
    )
    rows.append(("in reverse", files, measure(build(alike[::-1]))))
    months = make_archive(folder / "months", files, months=True)
    rows.append(("months, chunks as long as the file", files, measure(build(months))))
    eras = make_archive(folder / "eras", files, eras=True)
    rows.append(("two eras", files, measure(build(eras))))
    rows.append(("two eras, mixed", files, measure(build([*eras[::2], *eras[1::2]]))))
    for name, bounds in (("units of each file", False), ("units and bounds of each file", True)):
        rows.append((name, files, measure(build(make_dated(folder / name, files, bounds=bounds)))))
    grouped = make_groups(folder / "groups", files)
    rows.append(("a group of each file", files, measure(build(grouped, group="a/b"))))
    trees = measure(lambda: virtualds.open_virtual_mfdatatree(grouped, concat_dim="time"))
    rows.append(("trees of three groups", files, trees))
    many = make_archive(folder / "many", files // 4, variables=40)
    cpu, wall = measure(build(many))
    rows.append(("40 variables, for 4 of them", files // 4, (cpu / 10, wall / 10)))
    rows.append(("preprocess=", files, once(build(alike, preprocess=lambda ds: ds))))
    rows.append(("cache=, first run", files, once(build(alike, cache=folder / "cache"))))
    rows.append(("cache=, resumed", files, once(build(alike, cache=folder / "cache"))))
    rows.append(("to=", files, measure(build(alike, to=folder / "set.zarr", mode="w"))))
    rows.append(("diagnose", files, measure(lambda: virtualds.diagnose(alike, concat_dim="time"))))
    classic = [folder / f"{number:06d}.nc3" for number in range(files)]
    for number, path in enumerate(classic):
        field = ("time", "lat", "lon"), np.zeros((2, 4, 6), "f4")
        xr.Dataset(
            {f"v{v}": field for v in range(4)},
            {"time": 2.0 * number + np.arange(2), "lat": np.arange(4.0), "lon": np.arange(6.0)},
        ).to_netcdf(path, engine="scipy", unlimited_dims=["time"])
    rows.append(("classic netCDF", files, measure(build(classic))))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    files = parser.parse_args().files
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = list_rows(files, folder)
    finally:
        shutil.rmtree(folder)
    _, count, (least, _) = rows[0]
    least /= count
    print(f"{'':36} {'files':>7} {'ms a file':>10} {'wall':>7} {'ratio':>7}")
    for name, count, (cpu, wall) in rows:
        each = cpu / count
        print(
            f"{name:36} {count:7,} {1e3 * each:10.3f} {1e3 * wall / count:7.3f} {each / least:7.1f}"
        )


if __name__ == "__main__":
    main()
