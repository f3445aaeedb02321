"""Aggregation files of the CF conventions, and the files of their fragments, by netCDF4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

Array = np.ndarray[Any, Any]


def write_part(
    path: str | Path,
    values: Any,
    dims: Sequence[str],
    attributes: Mapping[str, Any] | None = None,
    *,
    name: str = "t",
    dtype: str | None = None,
    form: str = "NETCDF4",
    more: Mapping[str, tuple[Sequence[str], Any, Mapping[str, Any]]] | None = None,
    **storage: Any,
) -> None:
    """Write a file of one variable with the given stored values, and of others in ``more``."""
    stored = {name: (dims, np.asarray(values, dtype), dict(attributes or {})), **(more or {})}
    with netCDF4.Dataset(path, "w", format=form) as file:
        for label, (axes, data, given) in stored.items():
            data, given = np.asarray(data), dict(given)
            for axis, size in zip(axes, data.shape, strict=True):
                if axis not in file.dimensions:
                    file.createDimension(axis, size)
            fill = given.pop("_FillValue", None)
            kind = str if data.dtype.kind in "OU" else data.dtype
            held = storage if label == name else {}
            variable = file.createVariable(label, kind, axes, fill_value=fill, **held)
            variable.set_auto_maskandscale(False)
            variable.setncatts(given)
            variable[...] = data


class AggregationWriter:
    """Writes one aggregation file; ``group`` is where its variables are."""

    def __init__(self, path: str | Path, form: str = "NETCDF4") -> None:
        self.file = netCDF4.Dataset(path, "w", format=form)
        self.form = form
        self.file.Conventions = "CF-1.13"

    def __enter__(self) -> AggregationWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def add_dims(self, **sizes: int) -> None:
        for name, size in sizes.items():
            if name not in self.file.dimensions:
                self.file.createDimension(name, size)

    def add(
        self,
        name: str,
        values: Any,
        *,
        dims: Sequence[str] | None = None,
        group: str = "",
        dtype: Any = None,
        **attributes: Any,
    ) -> Any:
        """Add a variable, with dimensions of its own unless ``dims`` are given."""
        data = np.ma.asarray(values)
        if data.dtype.kind in "UO" and self.form != "NETCDF4":
            texts = [str(one or "").encode() for one in np.ma.filled(data, "").ravel()]
            width = max(map(len, texts))
            chars = np.array(texts, f"S{width}").reshape(data.shape)
            data = np.ma.asarray(netCDF4.stringtochar(chars))
        if dims is None:
            dims = [f"{name.strip('/').replace('/', '_')}_{n}" for n in range(data.ndim)]
            self.add_dims(**dict(zip(dims, data.shape, strict=True)))
        place = self.file.createGroup(group) if group else self.file
        kind = dtype or (str if data.dtype.kind in "UO" else data.dtype)
        fill = attributes.pop("_FillValue", None)
        variable = place.createVariable(name, kind, dims, fill_value=fill)
        variable.setncatts(attributes)
        if kind is str:
            filled = np.ma.filled(data.astype(object), "")
            if data.ndim:
                variable[...] = filled.astype(object)
            else:
                variable[...] = str(filled)
        elif data.size:
            variable[...] = data
        return variable

    def aggregate(
        self,
        name: str,
        dims: str,
        lengths: Sequence[Sequence[int]],
        uris: Any = None,
        identifiers: Any = None,
        *,
        values: Any = None,
        dtype: Any = "f8",
        group: str = "",
        inside: str = "",
        extra: str = "",
        **attributes: Any,
    ) -> None:
        """Add an aggregation variable of CF 1.13 and what describes it."""
        width = max((len(row) for row in lengths), default=1)
        rows = [[*row, *[-1] * (width - len(row))] for row in lengths]
        table = np.ma.masked_less(np.array(rows, "i4"), 0) if lengths else np.int32(1)
        held = {"map": table}
        if values is None:
            held |= {
                "uris": np.ma.asarray(uris),
                "identifiers": name if identifiers is None else identifiers,
            }
        else:
            held["unique_values"] = values
        for feature, data in held.items():
            self.add(f"{name}_{feature}", data, group=inside or group)
        prefix = f"/{inside}/" if inside else ""
        named = " ".join(f"{feature}: {prefix}{name}_{feature}" for feature in held)
        scalar = self.add(name, np.zeros((), dtype), dims=(), group=group, **attributes)
        scalar.aggregated_dimensions = dims
        scalar.aggregated_data = f"{named} {extra}".strip()


def grid_of(*texts: str, shape: Sequence[int] | None = None) -> Array:
    """Return texts as an array of objects."""
    found = np.array(texts, object)
    return found.reshape(shape) if shape is not None else found
