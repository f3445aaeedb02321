"""What native readers find in netCDF classic files, in Zarr stores, and in files of numpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from found import Found, in_native_order

import virtualds


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


HDF4_TYPES = {3: "S", 4: "S", 5: "f4", 6: "f8", 20: "i1", 21: "u1", 22: "i2", 23: "u2"}
HDF4_TYPES |= {24: "i4", 25: "u4"}
"""Types of numbers by their codes in pyhdf, whose attributes are numbers and lists of Python."""


def read_hdf4(path: Path) -> Iterator[Found]:
    """Yield every data set of an HDF4 file that has values, as pyhdf reads them."""
    from pyhdf.SD import SD

    file = SD(str(path))
    tree = virtualds.open_virtual_datatree(path, parser="hdf4", decode_cf=False)
    groups = {str(name): node.path.strip("/") for node in tree.subtree for name in node.variables}
    for number in range(file.info()[0]):
        dataset = file.select(number)
        if dataset.iscoordvar() and dataset.checkempty():
            continue
        # an offset means another thing in CF, and is shown under another name
        moved = {"scale_factor", "add_offset"} if dataset.attributes().get("add_offset") else set()
        attributes = {
            name: value.replace("\0", "")
            if isinstance(value, str)
            else np.array(value, HDF4_TYPES[code])[()]
            for name, (value, _, code, _) in dataset.attributes(full=1).items()
            if name not in moved
        }
        name = dataset.info()[0]
        yield Found(groups.get(name, ""), name, np.asarray(dataset.get()), attributes)
