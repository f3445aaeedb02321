"""Files of one content in forms of HDF5 that virtualds knows, and in one that it leaves to HDF5."""

from pathlib import Path

import h5py
import numpy as np

VARIABLES = tuple(f"v{number}" for number in range(10))
"""More than the eight that a group names in its header."""
UNKNOWN = "a fractal heap with filters"
"""What virtualds does not know of the files that `write_unknown` makes."""


def write_known(path: Path, number: int, libver: str = "earliest") -> None:
    """Write two steps of some variables."""
    with h5py.File(path, "w", libver=libver) as file:
        _fill(file, number)


def write_unknown(path: Path, number: int) -> None:
    """Write the same with compressed names, which h5py offers for no group, but HDF5 does."""
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    h5py.h5i.inc_ref(creation)
    h5py.h5p.PropDCID(creation.id).set_deflate(4)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    opened = h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, creation, access)
    with h5py.File(opened) as file:
        _fill(file, number)


def _fill(file: h5py.File, number: int) -> None:
    for name in ("time", *VARIABLES):
        file.create_dataset(name, data=2.0 * number + np.arange(2), maxshape=(None,), chunks=(2,))
    file["time"].make_scale("time")
    for name in VARIABLES:
        file[name].dims[0].attach_scale(file["time"])
