"""Opening flat binary files, which do not describe themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.contiguous import (
    build_flat_array,
    build_flat_variable,
    keep_bytes_apart,
    number_axes,
)
from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.sources import resolve_archive_members
from virtualds.datasets.keywords import make_strict
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.to_dataset import to_virtual_dataset
from virtualds.errors import FormatError
from virtualds.formats.undecodable import decode_group
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import find_store
from virtualds.stores.store import explain_open_errors
from virtualds.urls import normalise_url


@make_strict()
def open_flat(
    url: str | os.PathLike[str],
    *,
    dtype: npt.DTypeLike,
    shape: int | Sequence[int],
    offset: int = 0,
    order: str = "C",
    dims: str | Sequence[str] | None = None,
    name: str = "array",
    storage_options: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Open a flat binary file as a dataset of one virtual array.

    Only the size of the file is read. Several files are combined like any datasets, with
    `xarray.concat` or `xarray.merge`.

    Parameters
    ----------
    url : str or path
        A path, or a url with scheme.
    dtype : dtype
        Dtype of the stored values, including byte order: ``">f4"``.
    shape : int or sequence of int
        Elements per axis. One of them may be -1 and follows from the file size.
    offset : int, default 0
        Where the values begin, in bytes. Bytes after the last value are ignored.
    order : {"C", "F"}
        Whether the last axis varies fastest, or the first (Fortran).
    dims : str or sequence of str, optional
        Names of the axes, ``dim_0`` and so on by default.
    name : str, default "array"
        Name of the variable.
    storage_options : dict, optional
        Access options, for fsspec.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    FileNotFoundError
        There is no such file.
    AccessError
        The file must not be read.
    FormatError
        The file is too short, or has no whole number of elements for the -1.
    UnsupportedError
        The dtype is of Python objects.
    ValueError
        The order is neither ``"C"`` nor ``"F"``, or shape and dims do not fit each other.

    Examples
    --------
    >>> import numpy as np
    >>> np.arange(12, dtype=">i2").reshape(3, 4).tofile("levels.bin")
    >>> ds = open_flat("levels.bin", dtype=">i2", shape=(-1, 4), dims=("y", "x"), name="level")
    >>> ds.level.sel(y=2).values.tolist()
    [8, 9, 10, 11]
    """
    kind, wanted = np.dtype(dtype), (shape,) if isinstance(shape, int) else tuple(map(int, shape))
    axes = (
        number_axes("", len(wanted)) if dims is None else (dims,) if isinstance(dims, str) else dims
    )
    _check(wanted, tuple(axes), offset, order)
    absolute = normalise_url(url)
    with explain_open_errors(absolute):
        options = StorageOptions.of(storage_options)
        source = find_store(absolute).describe(absolute, options)
        try:
            data = build_flat_array(
                source, offset, kind, _settle_shape(wanted, kind, offset, source), order=order
            )
        except FormatError as error:
            raise FormatError(f"{absolute}: {error}") from error
        variable = build_flat_variable(data, tuple(axes), source)
        group = ManifestGroup({name: variable}, left_out=keep_bytes_apart([variable]))
        group = resolve_archive_members(group)
        if (problem := group.problems.get(name)) is not None:
            raise problem
    opening = OpenOptions(loadable_variables=[])
    dataset = decode_group(group, "raise", lambda part: to_virtual_dataset(part, opening))
    dataset.encoding["source"] = os.fspath(url)
    return dataset


def _check(shape: tuple[int, ...], dims: tuple[str, ...], offset: int, order: str) -> None:
    if order not in ("C", "F"):
        raise ValueError(f"order={order!r}: give 'C' or 'F'")
    if len(dims) != len(shape) or len(set(dims)) < len(dims):
        raise ValueError(f"dims {dims} for the shape {shape}; give every axis a name of its own")
    if offset < 0 or any(n < -1 for n in shape) or shape.count(-1) > 1:
        raise ValueError(
            f"shape {shape} at offset {offset}: lengths are at least 0, one of them may be -1"
        )


def _settle_shape(
    shape: tuple[int, ...], dtype: np.dtype[Any], offset: int, source: SourceFile
) -> tuple[int, ...]:
    """Return a shape in which the file size replaces the -1."""
    if -1 not in shape:
        return shape
    row = dtype.itemsize * prod(n for n in shape if n != -1)
    left = (source.size or 0) - offset
    if source.size is None or not row or left < 0 or left % row:
        raise FormatError(
            f"the file has {source.size} bytes, {left} behind byte {offset}, which is not a whole "
            f"number of {row} for the -1 of {shape}; check dtype, shape and offset"
        )
    return tuple(left // row if n == -1 else n for n in shape)
