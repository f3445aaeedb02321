"""Archives that plain xarray combines: one function writes the files of one kind of archive.

A new archive is one function. Whatever `xr.concat`, `xr.combine_by_coords` and the like make of the
natively opened files is what they have to make of the virtually opened ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import xarray as xr
from cases import numbers

Combine = Callable[[Sequence[xr.Dataset]], xr.Dataset]
Writer = Callable[[Path], None]


@dataclass(frozen=True)
class Kind:
    """A kind of archive, and how xarray combines it.

    Parameters
    ----------
    write : callable
        Writes the files into a folder; their names in order are the order of the datasets.
    combine : callable
        What is done to the list of datasets.
    engine : str
        xarray's engine for the files.
    reads : bool
        Whether combining has to read values, as xarray does too.
    """

    write: Writer
    combine: Combine
    engine: str = "netcdf4"
    reads: bool = False


KINDS: dict[str, Kind] = {}


def along(dim: str, **options: Any) -> Combine:
    """`xr.concat` along a dimension, with nothing but the defaults it will have."""
    return lambda parts: xr.concat(list(parts), dim, **{**DEFAULTS, **options})


DEFAULTS: dict[str, Any] = {
    "data_vars": "minimal",
    "coords": "minimal",
    "compat": "equals",
    "join": "exact",
    "combine_attrs": "override",
}
"""xarray's coming defaults, but for ``compat``: two fields that differ are an error."""


def kind(combine: Combine, **how: Any) -> Callable[[Writer], Writer]:
    def enter(write: Writer) -> Writer:
        KINDS[write.__name__] = Kind(write, combine, **how)
        return write

    return enter


def make(path: Path, number: int, lengths: Mapping[str, int | None], **variables: Any) -> None:
    """Write file ``number`` of an archive: variables as (dims, values, options of netCDF4)."""
    with netCDF4.Dataset(path / f"{number:03}.nc", "w") as file:
        for name, size in lengths.items():
            file.createDimension(name, size)
        for name, (dims, values, options) in variables.items():
            _write(file, name, dims, np.asarray(values), dict(options))


def _write(
    file: netCDF4.Dataset, name: str, dims: Any, values: Any, options: dict[str, Any]
) -> None:
    attributes = options.pop("attributes", {})
    dims = (dims,) if isinstance(dims, str) else tuple(dims)
    variable = file.createVariable(name, options.pop("dtype", values.dtype), dims, **options)
    variable.set_auto_maskandscale(False)
    variable.setncatts(attributes)
    variable[:] = values


def zipped(*chunks: int, level: int = 4, **more: Any) -> dict[str, Any]:
    return {"zlib": True, "complevel": level, "chunksizes": chunks, **more}


def days(start: int, count: int, **options: Any) -> tuple[str, Any, dict[str, Any]]:
    """A coordinate ``time`` that counts days."""
    values = np.arange(start, start + count, dtype="f8")
    return "time", values, {"attributes": {"units": "days since 2000-01-01"}, **options}


# ---------------------------------------------------------------------- chunk lengths that differ


@kind(along("time"))
def years_of_365_and_366_days(path: Path) -> None:
    begin = 0
    for number, length in enumerate((366, 365, 365, 365, 366)):
        values = numbers(length, 2, 3, seed=number)
        t = (("time", "y", "x"), values, zipped(61, 2, 3))
        make(path, number, {"time": length, "y": 2, "x": 3}, t=t, time=days(begin, length))
        begin += length


@kind(along("time"))
def months_of_28_to_31_days(path: Path) -> None:
    begin = 0
    for number, length in enumerate((31, 28, 31, 30, 31, 30)):
        sizes = {"time": None, "x": 5}
        t = (("time", "x"), numbers(length, 5, seed=number), zipped(length, 5))
        ten = (("time", "x"), numbers(length, 5, seed=number + 50), zipped(10, 2))
        make(path, number, sizes, t=t, ten=ten, time=days(begin, length))
        begin += length


@kind(along("time"))
def unlimited_chunks_longer_than_their_file(path: Path) -> None:
    for number in range(3):
        t = (("time", "x"), numbers(30, 4, seed=number), zipped(1024, 4))
        make(path, number, {"time": None, "x": 4}, t=t, time=days(30 * number, 30))


@kind(along("time"))
def a_short_chunk_between_long_ones(path: Path) -> None:
    for number, (length, chunk) in enumerate(((8, 4), (5, 4), (1, 1), (3, 7), (0, 4), (4, 4))):
        t = (("time", "x"), numbers(length, 3, seed=number), {"chunksizes": (chunk, 3)})
        make(path, number, {"time": None, "x": 3}, t=t)


@kind(along("time"))
def contiguous_next_to_chunked(path: Path) -> None:
    for number, options in enumerate(({"contiguous": True}, zipped(3, 2), {"contiguous": True})):
        t = (("time", "x"), numbers(7, 4, seed=number), options)
        make(path, number, {"time": 7, "x": 4}, t=t, time=days(7 * number, 7))


# ---------------------------------------------------------------------- chunk shapes that differ


@kind(along("time"))
def eras_of_other_spatial_chunks(path: Path) -> None:
    for number, chunks in enumerate(((1, 6, 8), (1, 6, 8), (2, 3, 3), (1, 5, 8), (2, 6, 8))):
        t = (("time", "y", "x"), numbers(4, 6, 8, seed=number), zipped(*chunks))
        make(path, number, {"time": 4, "y": 6, "x": 8}, t=t, time=days(4 * number, 4))


def tiles(path: Path, counts: Sequence[int], side: int, block: int) -> None:
    """Tiles whose blocks do not divide them, so that every edge is padded."""
    names = "zyx"[-len(counts) :]
    for number, place in enumerate(product(*map(range, counts))):
        shape = (side,) * len(counts)
        values = numbers(*shape, seed=number, dtype="i2")
        field_ = (tuple(names), values, zipped(*(block for _ in counts)))
        coords = {
            n: (n, np.arange(p * side, (p + 1) * side, dtype="f8"), {})
            for n, p in zip(names, place, strict=True)
        }
        make(path, number, dict.fromkeys(names, None), v=field_, **coords)


def mosaic(*names: str, shape: Sequence[int]) -> Combine:
    """`xr.combine_nested` along several axes, in the order of the names."""

    def nested(parts: Sequence[xr.Dataset]) -> xr.Dataset:
        # the files lie in the order of the axes of the tiles
        order = ["zyx"[-len(shape) :].index(n) for n in names]
        numbers_ = np.arange(len(parts)).reshape(shape).transpose(order)
        return xr.combine_nested(_picked(parts, numbers_.tolist()), list(names), **DEFAULTS)

    return nested


def _picked(parts: Sequence[xr.Dataset], numbers_: Any) -> Any:
    return [_picked(parts, n) if isinstance(n, list) else parts[n] for n in numbers_]


@kind(mosaic("y", "x", shape=(2, 2)))
def tiles_of_100_in_blocks_of_32(path: Path) -> None:
    tiles(path, (2, 2), 100, 32)


@kind(mosaic("x", "y", shape=(2, 3)))
def tiles_joined_along_x_first(path: Path) -> None:
    tiles(path, (2, 3), 7, 4)


@kind(mosaic("x", "z", "y", shape=(2, 2, 2)))
def a_mosaic_in_three_dimensions(path: Path) -> None:
    tiles(path, (2, 2, 2), 5, 3)


@kind(lambda parts: xr.combine_by_coords(list(parts), **DEFAULTS))
def tiles_in_the_order_of_their_coordinates(path: Path) -> None:
    tiles(path, (2, 2), 7, 4)


@kind(lambda parts: xr.combine_by_coords(list(parts[::-1]), **{**DEFAULTS, "join": "outer"}))
def tiles_of_which_one_is_missing(path: Path) -> None:
    tiles(path, (2, 2), 7, 4)
    (path / "002.nc").unlink()


# ---------------------------------------------------------------------- codecs that differ


@kind(along("time"))
def codecs_that_differ(path: Path) -> None:
    chunked = {"chunksizes": (2, 400)}
    for number, options in enumerate(
        (
            zipped(2, 400, level=4),
            zipped(2, 400, level=5),
            zipped(2, 400, shuffle=False),
            {"compression": "zstd", **chunked},
            {"compression": "zstd", "shuffle": False, **chunked},
            {"compression": "bzip2", **chunked},
            {"compression": "blosc_lz4", **chunked},
            {"fletcher32": True, **chunked},
            zipped(2, 400, fletcher32=True),
            chunked,
            {"contiguous": True},
        )
    ):
        # filters that find nothing to compress leave chunks as they are
        t = (("time", "x"), np.round(numbers(4, 800, seed=number)), options)
        make(path, number, {"time": 4, "x": 800}, t=t, time=days(4 * number, 4))


# ---------------------------------------------------------------------- dtypes that differ


def _dtypes(*names: str) -> Writer:
    def write(path: Path) -> None:
        for number, name in enumerate(names):
            values = numbers(3, 4, seed=number, dtype=name)
            t = (("time", "x"), values, {"endian": "big" if name[0] == ">" else "little"})
            make(path, number, {"time": 3, "x": 4}, t=t, time=days(3 * number, 3))

    return write


for _names in (
    ("<f4", "<f8"),
    ("<f8", "<f4"),
    ("<i2", "<i4"),
    (">i4", "<i4", ">i2"),
    ("<f8", ">f8"),
    ("<u1", "<i1", "<u2"),
    ("<i8", "<u8"),
    ("<i4", "<f4"),
    ("<i8", "<f4"),
):
    KINDS["dtypes_" + "_".join(_names).replace("<", "le_").replace(">", "be_")] = Kind(
        _dtypes(*_names), along("time")
    )


@kind(along("time"))
def numbers_next_to_booleans(path: Path) -> None:
    for number, dtype in enumerate(("bool", None)):
        values = np.array([[1, 0], [1, 1]], "i1")
        t = (("time", "x"), values, {"attributes": {"dtype": dtype} if dtype else {}})
        make(path, number, {"time": 2, "x": 2}, t=t)


@kind(along("time"), engine="h5netcdf")
def fixed_strings_of_different_lengths(path: Path) -> None:
    for number, length in enumerate((3, 5)):
        with h5py.File(path / f"{number}.nc", "w") as file:
            file.attrs["_NCProperties"] = "version=2"
            values = np.array([b"ab", b"abc"], f"S{length}")
            file["name"] = values
            file["time"] = np.arange(2.0) + 2 * number
            file["time"].make_scale("time")
            file["name"].dims[0].attach_scale(file["time"])


# ---------------------------------------------------------------------- packing that differs


@kind(along("time"))
def packing_that_differs(path: Path) -> None:
    rows: list[tuple[str, dict[str, Any]]] = [
        ("i2", {"scale_factor": 0.1, "add_offset": 270.0, "_FillValue": np.int16(-1)}),
        ("i2", {"scale_factor": 0.01, "add_offset": 280.0, "_FillValue": np.int16(-2)}),
        ("i2", {"scale_factor": np.float32(0.3), "missing_value": np.int16(5)}),
        ("i2", {"add_offset": 1.5}),
        ("i1", {"_Unsigned": "true", "_FillValue": np.int8(-1), "scale_factor": 0.5}),
        ("i4", {"scale_factor": np.float32(2.0)}),
        ("f4", {"_FillValue": np.float32(-999.0)}),
        ("f8", {"missing_value": -1.0}),
        ("f4", {}),
    ]
    for number, (dtype, attributes) in enumerate(rows):
        values = numbers(3, 40, seed=number, dtype=dtype)
        values[0, :3] = attributes.get("_FillValue", attributes.get("missing_value", 0))
        fill = attributes.pop("_FillValue", None)
        options = {"attributes": attributes, "fill_value": fill, **zipped(1, 20)}
        make(path, number, {"time": 3, "x": 40}, t=(("time", "x"), values, options))


@kind(along("time"))
def integers_next_to_packed_ones(path: Path) -> None:
    for number, attributes in enumerate(({}, {"scale_factor": 0.5}, {})):
        values = numbers(2, 3, seed=number, dtype="i2")
        make(
            path,
            number,
            {"time": 2, "x": 3},
            t=(("time", "x"), values, {"attributes": attributes}),
        )


@kind(along("time"))
def unsigned_bytes_next_to_signed_ones(path: Path) -> None:
    for number, attributes in enumerate(({"_Unsigned": "true"}, {}, {"_Unsigned": "false"})):
        dtype = "u1" if number == 2 else "i1"
        values = numbers(2, 30, seed=number, dtype=dtype)
        t = (("time", "x"), values, {"attributes": attributes})
        make(path, number, {"time": 2, "x": 30}, t=t)


UNITS = ("days since 2000-01-01", "hours since 2000-01-03", "seconds since 1970-01-01 06:00")


@kind(along("time"))
def units_of_time_that_differ(path: Path) -> None:
    for number, units in enumerate(UNITS):
        per_day = {"d": 1, "h": 24, "s": 86400}[units[0]]
        time = np.arange(4.0) * per_day + number * 0.5
        seen = np.arange(20, dtype="i4").reshape(4, 5) * per_day + number
        unit = {"attributes": {"units": units}}
        make(
            path,
            number,
            {"time": 4, "x": 5},
            time=("time", time, unit),
            seen=(("time", "x"), seen, {**unit, **zipped(2, 5)}),
            started=(("time", "x"), seen.astype("f8"), unit),
        )


@kind(along("time"))
def calendars_of_the_model_kind(path: Path) -> None:
    for number, units in enumerate(("days since 2000-01-01", "days since 2001-01-01")):
        unit = {"attributes": {"units": units, "calendar": "noleap"}}
        make(
            path,
            number,
            {"time": 3, "x": 2},
            time=("time", np.arange(3.0) + number, unit),
            seen=(("time", "x"), np.arange(6.0).reshape(3, 2), unit),
            t=(("time", "x"), numbers(3, 2, seed=number), zipped(2, 2)),
        )


@kind(along("time"))
def durations_whose_units_differ(path: Path) -> None:
    for number, unit in enumerate(("days", "hours", "seconds")):
        attributes = {"units": unit, "dtype": "timedelta64[ns]"}
        values = np.arange(6).reshape(2, 3) + number
        lag = (("time", "x"), values, {"attributes": attributes})
        make(path, number, {"time": 2, "x": 3}, lag=lag)


# ---------------------------------------------------------------------- gaps


@kind(along("time"))
def a_variable_that_some_files_lack(path: Path) -> None:
    for number in range(4):
        shape = (3, 5)
        both = {
            "t": (("time", "x"), numbers(*shape, seed=number), zipped(2, 3)),
            "n": (("time", "x"), numbers(*shape, seed=number, dtype="i2"), zipped(2, 3)),
            "seen": (
                ("time", "x"),
                np.arange(15).reshape(shape),
                {"attributes": {"units": UNITS[0]}},
            ),
        }
        kept = {
            k: v for k, v in both.items() if number not in {"t": (0,), "n": (1, 2)}.get(k, (3,))
        }
        always = (("time",), np.arange(3.0), {})
        make(path, number, {"time": 3, "x": 5}, always=always, **kept)


def outer(dim: str, **more: Any) -> Combine:
    return along(dim, join="outer", **more)


@kind(outer("level"))
def a_month_that_is_missing(path: Path) -> None:
    for number, begins in enumerate(((0, 31, 59), (0, 59))):
        time = np.concatenate([np.arange(b, b + 28) for b in begins]).astype("f8")
        size = time.size
        field_ = (("level", "time", "x"), numbers(1, size, 3, seed=number), zipped(1, 10, 2))
        packed = {"attributes": {"scale_factor": 0.5}, "fill_value": -9, **zipped(1, 11, 3)}
        i = (("level", "time", "x"), numbers(1, size, 3, dtype="i2"), packed)
        level = ("level", np.array([number], "f8"), {})
        axis = ("time", time, {"attributes": {"units": UNITS[0]}})
        sizes = {"level": 1, "time": size, "x": 3}
        make(path, number, sizes, t=field_, i=i, level=level, time=axis)


@kind(outer("time", fill_value={"t": -5.0, "n": 7}))
def gaps_with_a_fill_value_of_the_user(path: Path) -> None:
    for number in range(2):
        t = (("time", "x"), numbers(2, 4, seed=number), zipped(1, 3))
        n = (("time", "x"), numbers(2, 4, seed=number, dtype="i4"), {})
        x = ("x", np.arange(4.0) + 3 * number, {})
        make(path, number, {"time": 2, "x": 4}, t=t, n=n, x=x, time=days(2 * number, 2))


@kind(lambda parts: xr.combine_by_coords(list(parts), **{**DEFAULTS, "join": "outer"}))
def sparse_tiles_at_any_offset(path: Path) -> None:
    for number, (y, x) in enumerate(((0, 0), (5, 13), (12, 6))):
        v = (("y", "x"), numbers(5, 7, seed=number), zipped(2, 3))
        coords = {
            "y": ("y", np.arange(y, y + 5, dtype="f8"), {}),
            "x": ("x", np.arange(x, x + 7, dtype="f8"), {}),
        }
        make(path, number, {"y": 5, "x": 7}, v=v, **coords)


# ---------------------------------------------------------------------- satellites of CF


def _satellites(path: Path, number: int) -> None:
    bounds = np.stack([np.arange(3.0), np.arange(1.0, 4.0)], 1) + 3 * number
    grid = {"grid_mapping_name": "rotated_latitude_longitude"}
    time = np.arange(3.0) + 3 * number
    t_attributes = {"grid_mapping": "rotated_pole", "coordinates": "lat height"}
    make(
        path,
        number,
        {"time": None, "y": 4, "x": 5, "bnds": 2, "corner": 4},
        t=(("time", "y", "x"), numbers(3, 4, 5, seed=number), {"attributes": t_attributes}),
        time=("time", time, {"attributes": {"units": UNITS[0], "bounds": "time_bnds"}}),
        time_bnds=(("time", "bnds"), bounds, {}),
        rotated_pole=((), np.int32(0), {"attributes": grid}),
        height=((), 2.0, {"attributes": {"units": "m"}}),
        lat=(("y", "x"), numbers(4, 5, seed=99, dtype="f8"), {}),
        lat_bnds=(("y", "x", "corner"), numbers(4, 5, 4, seed=98, dtype="f8"), zipped(2, 5, 4)),
        mask=(("y", "x"), numbers(4, 5, seed=97), zipped(2, 5)),
    )


@kind(along("time"), reads=True)
def satellites_of_cf(path: Path) -> None:
    for number in range(3):
        _satellites(path, number)


# ---------------------------------------------------------------------- crops and views


def cropped(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    cuts = [slice(1, None), slice(3, 7), slice(None, -2)]
    shown = [p.isel(time=c, x=slice(1, 6)) for p, c in zip(parts, cuts, strict=True)]
    return xr.concat(shown, "time", **DEFAULTS).isel(time=slice(2, -1), x=slice(1, None))


def turned(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    shown = [p.transpose("x", "time").isel(x=slice(2, 5)) for p in parts]
    return xr.concat(shown, "time", **DEFAULTS).transpose().isel(time=slice(3, -3))


def _runs(path: Path) -> None:
    for number in range(3):
        t = (("time", "x"), numbers(8, 7, seed=number), zipped(3, 4))
        raw = (("time", "x"), numbers(8, 7, seed=number + 9, dtype="i2"), {"contiguous": True})
        make(path, number, {"time": 8, "x": 7}, t=t, raw=raw, time=days(8 * number, 8))


KINDS["crops_that_are_joined_and_cropped"] = Kind(_runs, cropped)
KINDS["views_that_are_turned_and_joined"] = Kind(_runs, turned)
KINDS["side_by_side_along_a_new_axis"] = Kind(
    _runs, along("member", data_vars="all", join="override")
)


class Archives:
    """The archives of a folder, each written once; do not write to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._native: dict[str, xr.Dataset] = {}

    def files(self, name: str) -> list[Path]:
        path = self.folder / name
        if not path.exists():
            path.mkdir()
            KINDS[name].write(path)
        return sorted(path.glob("*.nc"))

    def native(self, name: str) -> xr.Dataset:
        """What xarray makes of the archive, in memory."""
        if name not in self._native:
            kind = KINDS[name]
            parts = [xr.load_dataset(p, engine=kind.engine) for p in self.files(name)]
            self._native[name] = kind.combine(parts)
        return self._native[name]


JOINED = {
    "a_short_chunk_between_long_ones",
    "codecs_that_differ",
    "contiguous_next_to_chunked",
    "crops_that_are_joined_and_cropped",
    "durations_whose_units_differ",
    "eras_of_other_spatial_chunks",
    "months_of_28_to_31_days",
    "satellites_of_cf",
    "side_by_side_along_a_new_axis",
    "units_of_time_that_differ",
    "unlimited_chunks_longer_than_their_file",
    "views_that_are_turned_and_joined",
    "years_of_365_and_366_days",
}
"""Archives of three files and more, alike along time alone: they are joined as stored."""
