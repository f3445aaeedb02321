"""Write groups of values in memory as a netCDF-4 file.

NetCDF User's Guide, appendix "File Format Specifications", section "The NetCDF-4 Format": a
netCDF-4 file is an HDF5 file, whose dimensions are dimension scales.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from itertools import count
from math import prod
from typing import Any

import numpy as np

from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.errors import UnsupportedError, locating

BARE_DIMENSION = "This is a netCDF dimension but not a netCDF variable.%10d"
"""The name of the scale of a dimension that has no coordinate variable."""
NON_COORDINATE = "_nc4_non_coord_"
"""The prefix of the stored name of a variable that has the name of a dimension of others."""
MAX_CHUNK_LENGTH = 1024
"""The maximum length of chunks of variables along unlimited dimensions."""
Sizes = Mapping[str, int]

_INVALID_NAME = re.compile(r"^[^A-Za-z0-9_\u0080-\U0010ffff]|[\x00-\x1f/\x7f]|\s$")
"""Matches invalid names (NetCDF User's Guide, "Permitted Characters in NetCDF Names")."""


def encode_netcdf4(group: ManifestGroup, dims: Mapping[str, Sizes]) -> bytes:
    """Return the bytes of a netCDF-4 file with a group and its subgroups, all in memory.

    Parameters
    ----------
    group : ManifestGroup
    dims : dict
        Sizes of further dimensions, besides those of the variables, by path of the group.

    Raises
    ------
    UnsupportedError
        netCDF cannot store a name, a type or an attribute.
    """
    import h5py

    # HDF5 also needs distinct names for files in memory that are open at the same time
    name = f"{secrets.token_hex(8)}.nc"
    with h5py.File(name, "w", driver="core", backing_store=False, track_order=True) as f:
        _write_group(f, group, "", dims, {}, count())
        f.flush()
        image: bytes = f.id.get_file_image()
    return image


def _write_group(
    target: Any,
    group: ManifestGroup,
    path: str,
    dims: Mapping[str, Sizes],
    inherited: Mapping[str, Any],
    numbers: count[int],
) -> None:
    """Write a group and its subgroups; ``inherited`` are the dimension scales of groups above."""
    unlimited = set(group.encoding.get("unlimited_dims", ()))
    sizes = dict(dims.get(path, {}))
    for variable in group.variables.values():
        sizes |= dict(zip(variable.dims, variable.data.shape, strict=True))
    # netCDF-C takes a dimension of size 0 as unlimited
    unlimited_dims = unlimited | {dim for dim, size in sizes.items() if not size}
    scales, datasets = dict(inherited), dict[str, Any]()
    for dim, size in sizes.items():
        check_name(dim, "dimension")
        if dim in scales and scales[dim].shape[0] == size:
            continue
        coordinate = group.variables.get(dim)
        if coordinate is not None and coordinate.dims == (dim,):
            with locating(f"variable {dim!r}"):
                scales[dim] = datasets[dim] = _create_dataset(
                    target, dim, coordinate, unlimited_dims
                )
            scales[dim].make_scale(dim)
        else:
            options = (
                {"maxshape": (None,), "chunks": (MAX_CHUNK_LENGTH,)}
                if dim in unlimited_dims
                else {}
            )
            scales[dim] = target.create_dataset(dim, (size,), ">f4", **options)
            scales[dim].make_scale(BARE_DIMENSION % size)
        scales[dim].attrs.create("_Netcdf4Dimid", next(numbers), dtype="i4")
    for name, variable in group.variables.items():
        with locating(f"variable {name!r}"):
            check_name(name, "variable")
            if name not in datasets:
                stored = f"{NON_COORDINATE}{name}" if name in scales else name
                datasets[name] = _create_dataset(target, stored, variable, unlimited_dims)
                for axis, dim in enumerate(variable.dims):
                    datasets[name].dims[axis].attach_scale(scales[dim])
            _write_attributes(datasets[name], variable.attributes, variable.data.dtype)
    _write_attributes(target, group.attributes)
    for name, subgroup in group.groups.items():
        check_name(name, "group")
        child = target.create_group(name, track_order=True)
        _write_group(child, subgroup, f"{path}/{name}".strip("/"), dims, scales, numbers)


def check_name(name: str, kind: str) -> None:
    """Raise an error for a name that a variable, dimension or group of netCDF cannot have."""
    if not name or _INVALID_NAME.search(name):
        raise UnsupportedError(
            f"the {kind} {name!r}: netCDF has no such names (they begin with a letter, digit or "
            f"underscore, and have no slash and no blank at the end); rename it"
        )


def _create_dataset(
    target: Any, name: str, variable: ManifestVariable, unlimited_dims: set[str]
) -> Any:
    """Create an HDF5 dataset with the values of a variable, and return it."""
    from h5py import string_dtype

    values: Any = variable.data
    kind = values.dtype
    if kind.kind == "O":
        if not all(isinstance(value, str) for value in values.ravel()):
            types = sorted({type(value).__name__ for value in values.ravel()})
            raise UnsupportedError(
                f"its values are objects ({', '.join(types)}), which netCDF does not have; convert "
                f"them to numbers or texts, or leave it out (ds.drop_vars)"
            )
        kind = string_dtype()
    elif not (is_number(kind) or kind == np.dtype("S1")):
        raise UnsupportedError(
            f"its values are {kind}, which netCDF does not have; convert them, or leave it out "
            f"(ds.drop_vars)"
        )
    options = {}
    if not unlimited_dims.isdisjoint(variable.dims):
        shape = tuple(None if dim in unlimited_dims else n for dim, n in zip(
            variable.dims, values.shape, strict=True))  # fmt: skip
        chunks = tuple(max(min(n, MAX_CHUNK_LENGTH), 1) for n in values.shape)
        if prod(chunks) * kind.itemsize > MAX_CHUNK_LENGTH**2:
            chunks = (1,) * (len(chunks) - 1) + chunks[-1:]
        options = {"maxshape": shape, "chunks": chunks}
    dataset = target.create_dataset(name, values.shape, kind, track_order=True, **options)
    if values.size:
        dataset[...] = values
    return dataset


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is a numeric type of netCDF: integers, and floats of 4 or 8 bytes."""
    return dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize in (4, 8))


def _write_attributes(
    target: Any, attributes: Mapping[str, Any], dtype: np.dtype[Any] | None = None
) -> None:
    """Write attributes as netCDF does: strings as characters, numbers as vectors."""
    for name, value in attributes.items():
        try:
            if name == "_FillValue" and dtype is not None and dtype.kind != "O":
                # the fill value must have the type of the variable
                value = np.asarray(value).astype(dtype)
            _write_attribute(target, name, value)
        except (TypeError, ValueError, OSError, RuntimeError) as error:
            raise UnsupportedError(
                f"the attribute {name!r} is {value!r:.80}, which netCDF cannot store ({error}); "
                f"change it, or delete it from attrs"
            ) from error


def _write_attribute(target: Any, name: str, value: Any) -> None:
    """Write an attribute with the type that the netCDF library would use."""
    from h5py import Empty, string_dtype

    if isinstance(value, str) and "\0" not in value:
        text = value.encode()
        # netCDF stores an empty string as an attribute without elements
        data = np.array(text, f"S{len(text)}") if text else Empty("S1")
        kind = string_dtype("ascii" if value.isascii() else "utf-8", len(text)) if text else None
        target.attrs.create(name, data, dtype=kind)
        return
    values = np.atleast_1d(np.asarray(value))
    if values.dtype.kind in "UO" and all(isinstance(item, str) for item in values.ravel().tolist()):
        target.attrs.create(name, values.astype(object), dtype=string_dtype())
    elif is_number(values.dtype) or values.dtype.kind == "S":
        if values.ndim > 1:
            raise ValueError("it has several dimensions")
        target.attrs.create(name, values)
    else:
        raise TypeError(f"it is {values.dtype}")
