"""What netCDF makes of the structure of an HDF5 file: dimensions, attributes, order.

A netCDF4 file is an HDF5 file with conventions: dimensions are dimension scales (HDF5 Dimension
Scale Specification 1.0; netCDF-C documentation, "NetCDF-4 File Format"), and some attributes serve
only them. Names come in the order of creation, as the netCDF library gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from virtualds.errors import FormatError, UnsupportedError

RESERVED = frozenset(
    {
        "CLASS",
        "NAME",
        "REFERENCE_LIST",
        "DIMENSION_LIST",
        "_Netcdf4Dimid",
        "_Netcdf4Coordinates",
        "_nc3_strict",
        "_NCProperties",
    }
)
"""Attributes that serve dimension scales and the netCDF library, not the user."""
DIMENSION_ONLY = b"This is a netCDF dimension but not a netCDF variable"
"""Start of the NAME of a scale that stands for a dimension without a variable."""
UNLIMITED = 2**64 - 1
"""The greatest length of an axis that may grow (H5S_UNLIMITED)."""


class Dataset:
    """A dataset with what the walk asks it more than once."""

    __slots__ = ("address", "attrs", "id", "is_scale", "name", "shape")

    def __init__(self, name: str, found: Any) -> None:
        import h5py

        self.name = name
        self.id = found
        # a dataset without dataspace (H5S_NULL) has no shape; it holds nothing
        self.shape: tuple[int, ...] = found.shape or ()
        self.is_scale: bool = h5py.h5ds.is_scale(found)
        self.address: int = h5py.h5o.get_info(found).addr
        self.attrs = h5py.AttributeManager(self)

    @property
    def is_bare(self) -> bool:
        """Whether it is a scale that stands for a dimension without a variable."""
        import h5py

        return self.is_scale and h5py.h5ds.get_scale_name(self.id).startswith(DIMENSION_ONLY)

    @property
    def is_unlimited(self) -> bool:
        """Whether its first axis may grow."""
        return self.grows[:1] == (True,)

    @property
    def grows(self) -> tuple[bool, ...]:
        """Whether each axis may grow."""
        return tuple(n == UNLIMITED for n in self.id.get_space().get_simple_extent_dims(True))


def members(group: Any) -> tuple[dict[str, Dataset], list[str], list[str]]:
    """Return the datasets of a group, and the names of its groups and of its soft links.

    All are in the order of creation.
    """
    import h5py

    datasets, children, links = {}, [], []
    for raw in _in_order(lambda order, add: group.id.links.iterate(add, idx_type=order)):
        name = raw.decode("utf-8", "surrogateescape")
        if group.id.links.get_info(raw).type != h5py.h5l.TYPE_HARD:
            links.append(name)
            continue
        found = h5py.h5o.open(group.id, raw)
        if isinstance(found, h5py.h5d.DatasetID):
            datasets[name] = Dataset(name, found)
        elif isinstance(found, h5py.h5g.GroupID):
            children.append(name)
    return datasets, children, links


def _append(names: list[bytes], name: bytes, *rest: Any) -> None:
    names.append(name)


def _in_order(iterate: Callable[[int, Callable[..., None]], None]) -> list[bytes]:
    """Return names in the order of creation where the file kept it, else in alphabetical order."""
    import h5py

    for order in (h5py.h5.INDEX_CRT_ORDER, h5py.h5.INDEX_NAME):
        names: list[bytes] = []
        try:
            iterate(order, partial(_append, names))
        except RuntimeError:
            continue
        return names
    raise FormatError("HDF5 cannot list a group; the file is damaged")


Names = list[tuple[Dataset, tuple[str | None, ...]]]


class Dimensions:
    """The dimensions of a group, as the netCDF library names them.

    Axes with a scale have its name. The others are the first dimension of the group that has their
    length, and may grow or not as they may, but never one twice in one variable; where there is
    none, it is invented: ``phony_dim_0``, ``phony_dim_1`` and so on (netCDF-C,
    ``nc4_rec_match_dimscales``).
    """

    def __init__(self, datasets: Iterable[Dataset], above: Iterable[Dataset]) -> None:
        here = [d for d in datasets if d.is_scale]
        self._scales = {d.address: d for d in [*above, *here]}
        self._by_id = {
            int(d.attrs["_Netcdf4Dimid"]): d.name
            for d in self._scales.values()
            if "_Netcdf4Dimid" in d.attrs
        }
        named = [(d, self._look_up(d)) for d in datasets]
        self.lengths = self._unlimited_lengths(named)
        self._elsewhere = len(self._scales) - len(here)
        self._here = [
            (d.name, self.lengths.get(d.name, prod(d.shape[:1])), d.is_unlimited) for d in here
        ]
        self.of = {d.name: self._complete(d, dims) for d, dims in named if not d.is_bare}
        self.unlimited_here = {name for name, _, grows in self._here if grows}

    def _unlimited_lengths(self, named: Names) -> dict[str, int]:
        """Return the length of every unlimited dimension: the longest variable along it."""
        lengths = {d.name: 0 for d in self._scales.values() if d.is_unlimited}
        for dataset, dims in named:
            for dim, n in zip(dims, dataset.shape, strict=True):
                if dim in lengths:
                    lengths[dim] = max(n, lengths[dim])
        return lengths

    def _look_up(self, dataset: Dataset) -> tuple[str | None, ...]:
        rank = len(dataset.shape)
        if dataset.is_scale:
            if rank > 1 and "_Netcdf4Coordinates" in dataset.attrs:
                return tuple(self._by_id.get(int(i)) for i in dataset.attrs["_Netcdf4Coordinates"])
            return (dataset.name, *([None] * (rank - 1)))[:rank]
        return tuple(self._attached(dataset, axis) for axis in range(rank))

    def _attached(self, dataset: Dataset, axis: int) -> str | None:
        """Return the name of the first scale of an axis."""
        import h5py

        found: list[Any] = []
        if h5py.h5ds.get_num_scales(dataset.id, axis):
            h5py.h5ds.iterate(dataset.id, axis, found.append)
        if not found:
            return None
        address = h5py.h5o.get_info(found[0]).addr
        if address in self._scales:
            return self._scales[address].name
        return str(h5py.Dataset(found[0]).name).rpartition("/")[2]

    def _complete(self, dataset: Dataset, names: tuple[str | None, ...]) -> tuple[str, ...]:
        """Name the axes that have no scale."""
        taken = [name for name in names if name is not None]
        if len(taken) == len(names):
            return tuple(taken)
        complete = []
        for name, size, grows in zip(names, dataset.shape, dataset.grows, strict=True):
            if name is None:
                name = self._fitting(size, grows, taken)
                taken.append(name)
            complete.append(name)
        return tuple(complete)

    def _fitting(self, size: int, grows: bool, taken: list[str]) -> str:
        """Return a dimension for an axis without scale, inventing one if none fits."""
        for name, length, may_grow in self._here:
            if (length, may_grow) == (size, grows) and name not in taken:
                return name
        name = f"phony_dim_{self._elsewhere + len(self._here)}"
        # to the netCDF library, length 0 means unlimited
        self._here.append((name, size, grows or not size))
        return name


def attributes_of(owner: Any) -> dict[str, Any]:
    """Return the attributes of a group or dataset that are the user's."""
    return {
        name: _attribute(owner, name) for name in _attribute_names(owner) if name not in RESERVED
    }


def _attribute_names(owner: Any) -> list[str]:
    """Return the names of all attributes, in the order of creation where the file kept it."""
    import h5py

    names = _in_order(lambda order, add: h5py.h5a.iterate(owner.id, add, index_type=order))
    return [name.decode("utf-8", "surrogateescape") for name in names]


def _attribute(owner: Any, name: str) -> Any:
    """Return one attribute the way netCDF4-python returns it.

    Strings are str, several of them a list; one number is a scalar, several are an array.
    """
    import h5py

    try:
        value = owner.attrs[name]
    except (OSError, TypeError) as error:
        raise UnsupportedError(
            f"attribute {name!r}: its type cannot be read ({error}); leave the variable out with "
            f"drop_variables"
        ) from error
    if isinstance(value, h5py.Empty):
        return "" if value.dtype.kind in "SUO" else np.empty(0, value.dtype)
    if isinstance(value, str | bytes):
        return _text(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "SO":
        texts = [_text(item) for item in value.ravel().tolist()]
        if not all(isinstance(text, str) for text in texts):
            raise UnsupportedError(
                f"attribute {name!r}: arrays of varying length have no equal in xarray; leave the "
                f"variable out with drop_variables"
            )
        return texts[0] if len(texts) == 1 else texts
    if isinstance(value, np.ndarray) and value.size == 1:
        return value.ravel()[0]
    return value.astype(value.dtype.newbyteorder("=")) if isinstance(value, np.ndarray) else value


def _text(value: Any) -> Any:
    """Return a string, what is no UTF-8 in it replaced as the netCDF library does."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").replace("\0", "")
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return raw.decode("utf-8", "replace").replace("\0", "")
    return value
