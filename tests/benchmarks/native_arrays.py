"""What native readers find in netCDF classic files, in Zarr stores, and in files of numpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from found import Found, in_native_order


def read_netcdf3(path: Path) -> Iterator[Found]:
    """Yield the variables of a netCDF classic file as netCDF4-python reads them."""
    import netCDF4

    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        file.set_auto_chartostring(False)
        yield Found("", "", attributes=read_attributes(file))
        for name, variable in file.variables.items():
            values = in_native_order(np.asarray(variable[...]))
            yield Found("", name, values, read_attributes(variable))


def read_attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes of a file or variable of netCDF4-python."""
    return {name: owner.getncattr(name) for name in owner.ncattrs()}


def read_npy(path: Path) -> Iterator[Found]:
    """Yield the array of a file of numpy."""
    yield Found("", "array", in_native_order(np.load(path)))


def read_npz(path: Path) -> Iterator[Found]:
    """Yield the arrays of an archive of numpy."""
    with np.load(path) as file:
        for name in file.files:
            yield Found("", name, in_native_order(file[name]))


def read_hdf4(path: Path) -> Iterator[Found]:
    """Yield every data set of an HDF4 file that has values, as pyhdf reads them."""
    from pyhdf.SD import SD

    file = SD(str(path))
    for number in range(file.info()[0]):
        dataset = file.select(number)
        if dataset.iscoordvar() and dataset.checkempty():
            continue
        found = dict(dataset.attributes())
        if found.get("add_offset"):
            # an offset means another thing in CF, and is shown under another name
            found = {
                name: v for name, v in found.items() if name not in ("scale_factor", "add_offset")
            }
        texts = {name: v.replace("\0", "") for name, v in found.items() if isinstance(v, str)}
        yield Found("", dataset.info()[0], np.asarray(dataset.get()), found | texts)
