"""What h5py finds in HDF5 and netCDF4 files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from found import Found, in_native_order

HIDDEN = {
    *("CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST"),
    *("_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties"),
}
"""Attributes of dimension scales and of the netCDF library, which no netCDF reader shows."""
MAX_OBJECTS = 100
"""Groups and datasets of one file that are compared."""
LARGEST = 2**28
"""Bytes of a dataset that is read; some files declare a million times more than they hold."""
OF_DIMENSION = "_nc4_non_coord_"
"""How the netCDF library marks a variable that has the name of a dimension, and is not its own."""
NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


def read_hdf5(path: Path) -> Iterator[Found]:
    """Yield every group and dataset of a file; what h5py itself cannot read is left out."""
    # plugins of filters, where they are installed
    import hdf5plugin  # noqa: F401

    with h5py.File(path) as file:
        objects: dict[str, Any] = {"/": file}

        def note(name: str, found: Any) -> bool | None:
            objects[f"/{name}"] = found
            return len(objects) >= MAX_OBJECTS or None

        file.visititems(note)
        for name, found in objects.items():
            group, _, last = name.rpartition("/")
            if isinstance(found, h5py.Group):
                yield Found(name.strip("/"), "", attributes=read_attributes(found))
            elif isinstance(found, h5py.Dataset) and not is_dimension(found):
                if found.shape is None or found.nbytes > LARGEST or is_shorter(found):
                    continue
                try:
                    values = read_values(found)
                except (OSError, TypeError, ValueError):
                    continue
                last = last.removeprefix(OF_DIMENSION)
                yield Found(group.strip("/"), last, values, read_attributes(found))


def read_beside(path: Path) -> Iterator[Found]:
    """Yield what h5py finds in the file that a sidecar lies beside."""
    yield from read_hdf5(path.with_suffix(""))


def is_dimension(dataset: h5py.Dataset) -> bool:
    """Say whether a dataset only holds the length of a dimension of netCDF."""
    name = dataset.attrs.get("NAME") if "CLASS" in dataset.attrs else None
    return isinstance(name, bytes) and name.startswith(NO_VARIABLE)


def is_shorter(dataset: h5py.Dataset) -> bool:
    """Say whether netCDF fills a dataset up to the longest one of an unlimited dimension."""
    return any(
        n == 0 and most is None for n, most in zip(dataset.shape, dataset.maxshape, strict=True)
    )


def has_regions(dtype: np.dtype[Any]) -> bool:
    """Say whether values refer to regions; reading some of them ends the process later."""
    if dtype.names:
        return any(has_regions(dtype[name]) for name in dtype.names)
    kind = h5py.check_vlen_dtype(dtype.base)
    if isinstance(kind, np.dtype):
        return has_regions(kind)
    return h5py.check_ref_dtype(dtype.base) is h5py.RegionReference


def read_values(dataset: h5py.Dataset) -> Any:
    """Return all values: strings as str, references as paths."""
    kind = h5py.check_string_dtype(dataset.dtype)
    if kind is not None and kind.length is None:
        return dataset.asstr(errors="replace")[()]
    if has_regions(dataset.dtype):
        raise TypeError("regions are no values")
    values = name_objects(dataset, in_native_order(dataset[...]))
    if values.dtype == object:
        values = np.vectorize(to_text, otypes=[object])(values) if values.size else values
    # netCDF readers have the numbers of enumerations, so of booleans too
    return values.view("i1") if values.dtype == bool else values


def read_attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes as netCDF4-python has them; what h5py cannot read is left out."""
    found = {}
    for name in set(owner.attrs) - HIDDEN:
        try:
            if has_regions(owner.attrs.get_id(name).dtype):
                continue
            value = owner.attrs[name]
        except (OSError, TypeError, ValueError, KeyError):
            continue
        if isinstance(value, h5py.Empty):
            found[name] = "" if value.dtype.kind in "SUO" else np.empty(0, value.dtype)
            continue
        value = name_objects(owner, np.asarray(value))
        if value.dtype.kind in "SO":
            value = np.vectorize(to_text, otypes=[object])(value) if value.size else value
            is_text = all(isinstance(one, str) for one in value.flat)
            more = value.ravel().tolist() if is_text else value
            found[name] = value.ravel()[0] if value.size == 1 else more
        else:
            found[name] = value.ravel()[0] if value.size == 1 else in_native_order(value)
    return found


def name_objects(owner: Any, values: Any) -> Any:
    """Return references to objects as their paths, "" where they point to none."""
    if values.dtype != object or not any(isinstance(v, h5py.Reference) for v in values.flat):
        return values
    names = [h5py.h5r.get_name(v, owner.id) if v else None for v in values.flat]
    texts = np.empty(values.shape, object)
    texts.flat = [(name or b"").decode("utf-8", "replace") for name in names]
    return texts


def to_text(value: Any) -> Any:
    """Return bytes and str as netCDF4-python does: invalid UTF-8 replaced, without zeros."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    return value.decode("utf-8", "replace").replace("\0", "") if isinstance(value, bytes) else value
