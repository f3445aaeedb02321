"""Scanning many local files of a few chunks each, and joining them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

FILES, VARIABLES = 500, 8
JOINED = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "override"}


def write_files(folder: Path) -> None:
    """Write the files: eight variables of one time step in four chunks each, and coordinates."""
    folder.mkdir()
    field = np.random.default_rng(3).normal(280, 20, (1, 180, 360)).astype("f4").round(1)
    options = {"chunks": (1, 90, 180), "compression": "gzip", "shuffle": True}
    for number in range(FILES):
        with h5py.File(folder / f"f{number:04d}.nc", "w") as file:
            places = {"time": [float(number)], "lat": np.arange(180.0), "lon": np.arange(360.0)}
            for name, values in places.items():
                file.create_dataset(name, data=values).make_scale(name)
            file["time"].attrs["units"] = "hours since 2000-01-01"
            for v in range(VARIABLES):
                dataset = file.create_dataset(f"v{v}", data=field + v, **options)
                for axis, name in enumerate(places):
                    dataset.dims[axis].attach_scale(file[name])


def scanning(reader: str, folder: Path) -> Callable[[], int]:
    """Return a job that finds the chunks of all files; ``h5py`` does nothing but look at them."""
    paths = sorted(folder.glob("*.nc"))
    return {"virtualds": _scan, "two processes": _scan_on_two, "h5py": _look}[reader](paths)


def _scan(paths: list[Path], parallel: int | None = None) -> Callable[[], int]:
    # xarray imports it with the first variable of a process, and imports are not measured here
    import dask.array  # noqa: F401

    import virtualds

    def scan() -> int:
        dataset = virtualds.open_virtual_mfdataset(
            paths, combine="nested", concat_dim="time", parallel=parallel, **JOINED
        )
        return sum(dataset[f"v{v}"].data.nchunks for v in range(VARIABLES))

    return scan


def _scan_on_two(paths: list[Path]) -> Callable[[], int]:
    """Return a job of two processes; the second, too, has imported what it needs."""
    scan = _scan(paths, parallel=2)
    scan()
    return scan


def _look(paths: list[Path]) -> Callable[[], int]:
    def look() -> int:
        rows: list[h5py.h5d.StoreInfo] = []
        for path in paths:
            with h5py.File(path) as file:
                file["time"][...]
                for v in range(VARIABLES):
                    dict(file[f"v{v}"].attrs)
                    file[f"v{v}"].id.chunk_iter(rows.append)
        return len(rows)

    return look
