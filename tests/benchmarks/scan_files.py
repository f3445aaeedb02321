"""The files that `scanning` scans; each folder is made once."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import many
import numpy as np
import remote

FIELDS = tuple(f"v{number}" for number in range(8))
"""Variables of the files that h5py writes, beside their coordinates."""
INDEXES = ("btree1", "fixed", "extensible", "btree2", "implicit")
"""Chunk indexes (HDF5 File Format Specification 3.0, sections III.A and VII)."""
CHUNKS = 1_000_000
FEW = 100
"""Chunks, and files, of what a reader meets before the clock starts."""
POINT = (77, 55, 66)
ROWS, COLUMNS = 36, 72
LENGTHS = range(1, 40)
"""Bytes of filtered chunks, which nobody decodes here."""


# ---------------------------------------------------------------------- one file, many chunks


def write_index(path: Path, kind: str, filtered: bool, count: int) -> None:
    """Write a file of one dataset with an index of some kind."""
    side = int(count**0.5)
    grid = (side, side) if kind == "btree2" else (count,)
    chunk = (4,) * len(grid)
    shape = tuple(4 * n for n in grid)
    most = {"btree2": (None, None), "extensible": (None,)}.get(kind, shape)
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_chunk(chunk)
    if filtered:
        created.set_deflate(1)
    if kind == "implicit":
        created.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    space = h5py.h5s.create_simple(shape, tuple(n or h5py.h5s.UNLIMITED for n in most))
    with h5py.File(path, "w", libver="earliest" if kind == "btree1" else "latest") as file:
        made = h5py.h5d.create(file.id, b"v0", h5py.h5t.NATIVE_INT8, space, dcpl=created)
        if kind != "implicit":
            _fill_chunks(made, grid, 4 ** len(grid), filtered)


def _fill_chunks(made: Any, grid: tuple[int, ...], nbytes: int, filtered: bool) -> None:
    values = bytes(range(max(nbytes, max(LENGTHS))))
    lengths = np.random.default_rng(0).choice(LENGTHS, np.prod(grid)).tolist()
    for length, place in zip(lengths, np.ndindex(grid), strict=True):
        offset = tuple(4 * n for n in place)
        made.write_direct_chunk(offset, values[: length if filtered else nbytes])


def write_lazy(path: Path, libver: str, steps: int) -> None:
    """Write a file of a hundred chunks a step, the time unlimited."""
    with h5py.File(path, "w", libver=libver) as file:
        options: dict[str, Any] = {"chunks": (1, 10, 10), "maxshape": (None, 100, 100)}
        values = np.arange(steps * 10_000, dtype="f4").reshape(steps, 100, 100)
        field = file.create_dataset("v0", data=values, compression="gzip", **options)
        _attach(file, {"time": np.arange(steps), "y": np.arange(100), "x": np.arange(100)}, [field])


def _attach(file: h5py.File, places: dict[str, Any], fields: list[Any]) -> None:
    for name, values in places.items():
        file.create_dataset(name, data=np.asarray(values, "f8")).make_scale(name)
    for field in fields:
        for axis, name in enumerate(places):
            field.dims[axis].attach_scale(file[name])


# ---------------------------------------------------------------------- many files


def write_small(path: Path, number: int) -> None:
    """Write a file of eight variables in four chunks each, like those of `many` but small."""
    rng = np.random.default_rng(number)
    field = rng.normal(280, 20, (1, ROWS, COLUMNS)).astype("f4").round(1)
    options = {"chunks": (1, ROWS // 2, COLUMNS // 2), "compression": "gzip", "shuffle": True}
    with h5py.File(path, "w") as file:
        places = {"time": [number], "lat": np.arange(ROWS), "lon": np.arange(COLUMNS)}
        fields = [file.create_dataset(name, data=field, **options) for name in FIELDS]
        _attach(file, places, fields)
        file["time"].attrs["units"] = "hours since 2000-01-01"


def to_names(number: int) -> tuple[str, ...]:
    """Return the variables of one of the files that differ."""
    return tuple(f"field_{'x' * (number % 19)}{number}_{axis}" for axis in range(len(FIELDS)))


def write_different(path: Path, number: int) -> None:
    """Write a file whose names, lengths of attributes and chunks are those of no other file."""
    field = np.random.default_rng(number).normal(280, 20, (1, ROWS, COLUMNS)).astype("f4").round(1)
    chunks = (1, ROWS // 2 + number % 7, COLUMNS // 2 + number % 11)
    with h5py.File(path, "w") as file:
        places = {"time": [number], "lat": np.arange(ROWS), "lon": np.arange(COLUMNS)}
        fields = []
        for place, name in enumerate(to_names(number)):
            made = file.create_dataset(name, data=field, chunks=chunks, compression="gzip")
            made.attrs["units"] = "K" * (1 + number % 23)
            made.attrs["long_name"] = f"variable {place} " + "y" * (number % 37)
            fields.append(made)
        _attach(file, places, fields)
        file["time"].attrs["units"] = "hours since 2000-01-01"


def write_month(path: Path, number: int) -> None:
    """Write a month as netCDF4-python does: dense attributes, strings, an unlimited time."""
    import netCDF4

    first, after = (datetime.date(1990 + n // 12, n % 12 + 1, 1) for n in (number, number + 1))
    days = (after - first).days
    begin = (first - datetime.date(1990, 1, 1)).days
    places = {"time": begin + np.arange(days) + 0.5, "lat": np.linspace(-88, 88, 45)}
    places["lon"] = np.arange(90) * 4.0
    rng = np.random.default_rng(number)
    with netCDF4.Dataset(path, "w") as file:
        file.setncatts({"Conventions": "CF-1.8", "history": f"{first} made by run {number:04d}"})
        file.setncattr_string("comment", f"a string of varying length {number:04d}")
        file.setncattr_string("authors", ["anna", "bo", "charlotte"])
        for name, values in places.items():
            file.createDimension(name, None if name == "time" else len(values))
            file.createVariable(name, "f8" if name == "time" else "f4", (name,))[:] = values
        file["time"].setncatts({"units": "days since 1990-01-01", "calendar": "standard"})
        for name in FIELDS[:4]:
            how: dict[str, Any] = {"zlib": True, "shuffle": True, "chunksizes": (1, 45, 90)}
            field = file.createVariable(name, "f4", tuple(places), fill_value=1e20, **how)
            field.setncatts({"units": "K", "long_name": name, "cell_methods": "time: mean"})
            field.setncattr_string("note", "a string of varying length")
            # more than eight attributes are stored densely
            field.setncatts({f"extra{n}": f"value {n}" for n in range(6 * (name == "v0"))})
            field[:] = rng.normal(280, 5, (days, 45, 90)).round()


# ---------------------------------------------------------------------- other formats


def write_classic(path: Path, number: int) -> None:
    """Write a netCDF file of a classic format, with the variables of `write_small`."""
    import netCDF4

    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        places = {"time": [number], "lat": np.arange(ROWS), "lon": np.arange(COLUMNS)}
        for name, values in places.items():
            file.createDimension(name, None if name == "time" else len(values))
            file.createVariable(name, "f8", (name,))[:] = values
        file["time"].units = "hours since 2000-01-01"
        for name in FIELDS:
            field = file.createVariable(name, "f4", tuple(places))
            field.setncatts({"units": "K", "long_name": name, "cell_methods": "time: mean"})
            field[:] = np.random.default_rng(number).normal(280, 9, (1, ROWS, COLUMNS))


def write_grib(path: Path, number: int) -> None:
    """Write ten messages of one day: two parameters at five levels."""
    import eccodes

    day = int((np.datetime64("2000-01-01") + number).astype(str).replace("-", ""))
    with path.open("wb") as file:
        for name in ("t", "u"):
            for level in (1000, 850, 700, 500, 300):
                handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
                keys = {"shortName": name, "level": level, "dataDate": day}
                for key, value in keys.items():
                    eccodes.codes_set(handle, key, value)
                count = eccodes.codes_get_size(handle, "values")
                values = np.random.default_rng([number, level]).normal(280, 9, count)
                eccodes.codes_set_values(handle, values)
                file.write(eccodes.codes_get_message(handle))
                eccodes.codes_release(handle)


def write_fits(path: Path, number: int) -> None:
    """Write an image with sixty cards."""
    from astropy.io import fits

    image = fits.PrimaryHDU(np.full((ROWS, COLUMNS), number, "f4"))
    for card in range(60):
        image.header[f"KEY{card}"] = (card * 1.5 if card % 2 else f"text {card}", "a comment")
    image.header["MJD-OBS"] = 59000.0 + number
    image.writeto(path)


def write_tiff(path: Path, number: int) -> None:
    """Write an image of sixteen tiles, with the tags of a GeoTIFF."""
    import tifffile

    keys = (1, 1, 0, 2, 1024, 0, 1, 2, 2048, 0, 1, 4326)
    tags = [(33550, 12, 3, (0.1, 0.1, 0.0), True), (34735, 3, len(keys), keys, True)]
    tags.append((33922, 12, 6, (0.0, 0.0, 0.0, 5.0, 50.0, 0.0), True))
    values = np.random.default_rng(number).integers(0, 255, (64, 64), "u1")
    how: dict[str, Any] = {"tile": (16, 16), "compression": "deflate", "extratags": tags}
    tifffile.imwrite(path, values, software=False, metadata=None, **how)


HEADERS = {
    "netcdf3": ("nc", write_classic),
    "grib": ("grib2", write_grib),
    "fits": ("fits", write_fits),
    "tiff": ("tif", write_tiff),
}
"""Formats with a header of their own: how a file ends, and what writes one."""


# ---------------------------------------------------------------------- what is needed


def check_files(
    folder: Path, count: int, write: Callable[[Path, int], None], suffix: str = "nc"
) -> list[Path]:
    """Return some files of a folder, and write those that are not there."""
    paths = [folder / f"f{number:06d}.{suffix}" for number in range(count)]
    return [check_file(path, partial(write, number=number)) for number, path in enumerate(paths)]


def check_file(path: Path, write: Callable[[Path], None]) -> Path:
    """Return a file, and write it if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        write(unfinished)
        unfinished.rename(path)
    return path


def check_folder(folder: Path, write: Callable[[Path], None]) -> list[Path]:
    """Return the files of a folder that one function writes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        write(folder)
    return sorted(folder.glob("*.nc"))


def index_file(folder: Path, kind: str, filtered: bool, count: int = CHUNKS) -> Path:
    """Return the file of an index."""
    name = f"{kind}-{'filtered' if filtered else 'plain'}-{count}.h5"
    write = partial(write_index, kind=kind, filtered=filtered, count=count)
    return check_file(folder / "indexes" / name, write)


def lazy_file(folder: Path, libver: str, steps: int = 1000) -> Path:
    """Return the file of which one point is read."""
    path = folder / "lazy" / f"{libver}-{steps}.nc"
    return check_file(path, partial(write_lazy, libver=libver, steps=steps))


def alike_files(folder: Path, writer: str) -> list[Path]:
    """Return the alike files of h5py, or of netCDF4-python."""
    if writer == "h5py":
        return check_folder(folder / "many", many.write_files)
    return check_files(folder / "months", 300, write_month)


def different_files(folder: Path) -> list[Path]:
    """Return the files that all differ."""
    return check_files(folder / "different", 500, write_different)


def small_files(folder: Path, count: int) -> list[Path]:
    """Return so many small files."""
    return check_files(folder / "small", count, write_small)


def warm_files(folder: Path) -> list[Path]:
    """Return a few files that have another structure than all others."""
    return check_files(folder / "warm", 8, _write_warm)


def _write_warm(path: Path, number: int) -> None:
    write_small(path, number)
    with h5py.File(path, "a") as file:
        file.attrs["title"] = "read before the clock starts"


def header_files(folder: Path, form: str) -> list[Path]:
    """Return alike files of another format."""
    suffix, write = HEADERS[form]
    return check_files(folder / form, 200, write, suffix)


def remote_files(folder: Path) -> list[Path]:
    """Return the files that lie behind a web server."""
    return check_folder(folder / "remote", remote.write_files)
