"""Archives whose files are stored in different ways, and what native readers make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

import virtualds

ZLIB = {"zlib": True, "shuffle": True, "complevel": 4, "chunksizes": (4, 5, 7)}
PACKED = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 270.0, "_FillValue": -999}


@dataclass(frozen=True)
class Mixed:
    """An archive of files along time.

    Parameters
    ----------
    files : tuple of dict
        How each file stores ``t``: its encoding, and ``days``, ``engine`` and ``kind``.
    rewritten : int
        Chunks that kerchunk and Icechunk need anew, of all files.
    select : callable
        What is done to the joined dataset.
    """

    files: tuple[Mapping[str, Any], ...]
    rewritten: int
    select: Callable[[xr.Dataset], xr.Dataset] = field(default=lambda ds: ds)

    def write(self, folder: Path) -> list[Path]:
        """Write the files, and return their paths."""
        begin, paths = 0, []
        for number, how in enumerate(self.files):
            storage = dict(how)
            days, engine = storage.pop("days", 8), storage.pop("engine", "netcdf4")
            rng = np.random.default_rng(number)
            values = 270 + 30 * rng.random((days, 5, 7))
            kind = storage.pop("kind", "f4")
            data = values.astype(kind)
            if "scale_factor" in storage:
                data[0, 0, 0] = np.nan
            path = folder / f"{number}.nc"
            ds = xr.Dataset({"t": (("time", "y", "x"), data)})
            ds["time"] = "time", np.arange(begin, begin + days)
            ds.to_netcdf(path, engine=engine, encoding={"t": storage})
            begin += days
            paths.append(path)
        return paths

    def virtual(self, paths: list[Path]) -> xr.Dataset:
        """What is written to sets."""
        parts = [virtualds.open_virtual_dataset(path) for path in paths]
        return self.select(xr.concat(parts, "time"))

    def native(self, paths: list[Path]) -> xr.Dataset:
        """What native readers make of the files."""
        return self.select(xr.concat([xr.load_dataset(path) for path in paths], "time"))


MIXED = {
    "codec_changes": Mixed((ZLIB, ZLIB | {"shuffle": False}, ZLIB), 2),
    "uncompressed_among_compressed": Mixed((ZLIB, ZLIB, {"chunksizes": (4, 5, 7)}), 2),
    "packing_changes": Mixed((ZLIB | PACKED, ZLIB | PACKED | {"scale_factor": 0.02}), 4),
    "fill_changes": Mixed((ZLIB | PACKED, ZLIB | PACKED, ZLIB | PACKED | {"_FillValue": -7}), 2),
    "packed_type_changes": Mixed((ZLIB | PACKED | {"dtype": "i4"}, ZLIB | PACKED), 2),
    "packed_among_plain": Mixed((ZLIB | {"kind": "f8"}, ZLIB | {"kind": "f8"}, ZLIB | PACKED), 2),
    "type_changes": Mixed((ZLIB | {"kind": "f8"}, ZLIB), 2),
    "chunk_length_changes": Mixed((ZLIB, ZLIB, ZLIB | {"chunksizes": (3, 5, 7), "days": 7}), 2),
    "chunk_shape_changes": Mixed((ZLIB, ZLIB | {"chunksizes": (4, 5, 3)}), 2),
    "chunks_do_not_fill_files": Mixed((ZLIB | {"days": 10}, ZLIB | {"days": 10}), 3),
    "big_endian": Mixed((ZLIB, {"engine": "scipy"}), 2),
    "a_hole_in_time": Mixed((ZLIB, ZLIB), 3, lambda ds: ds.reindex(time=np.r_[0:8, 100:103, 8:16])),
    "crop_of_compressed_chunks": Mixed((ZLIB, ZLIB), 4, lambda ds: ds.isel(time=slice(2, None))),
    "one_element_of_compressed_chunks": Mixed((ZLIB, ZLIB), 4, lambda ds: ds.isel(x=3)),
}
"""Archives that kerchunk and Icechunk cannot hold without rewriting, by name."""

MONTHS = tuple({"days": n} for n in (31, 28, 31, 30))
CUT = {
    "months": Mixed(MONTHS, 0),
    "a_slice_of_a_month": Mixed(MONTHS, 0, lambda ds: ds.isel(time=slice(5, 100))),
    "rows_of_months": Mixed(MONTHS, 0, lambda ds: ds.isel(y=slice(1, 4))),
    "columns_of_months": Mixed(MONTHS, 0, lambda ds: ds.isel(x=slice(2, 5))),
    "one_column": Mixed(MONTHS, 0, lambda ds: ds.isel(x=3)),
    "one_row": Mixed(MONTHS, 0, lambda ds: ds.isel(y=3)),
    "permuted_months": Mixed(MONTHS, 0, lambda ds: ds.transpose("x", "time", "y")),
    "months_of_netcdf3": Mixed(tuple(m | {"engine": "scipy"} for m in MONTHS), 0),
    "months_with_a_hole": Mixed(
        MONTHS[:2], 0, lambda ds: ds.isel(time=slice(0, 59)).reindex(time=np.arange(90))
    ),
}
"""Archives of uncompressed chunks, which have a regular grid once they are cut."""


def write_lzf(folder: Path) -> list[Path]:
    """Files whose codec has no encoder in numcodecs, with chunks of two lengths."""
    paths = []
    for number, length in enumerate((4, 3)):
        paths.append(folder / f"{number}.h5")
        with h5py.File(paths[-1], "w") as file:
            values = np.arange(8 * 35, dtype="f4").reshape(8, 5, 7) + number
            file.create_dataset("t", data=values, chunks=(length, 5, 7), compression="lzf")
    return paths
