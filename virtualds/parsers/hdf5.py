"""HDF5 and netCDF4 files, through h5py.

This is the walk over a group. What netCDF makes of HDF5's structure is `virtualds.hdf5_structure`,
how the values of a dataset are stored is `virtualds.hdf5_storage`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.group import Data, ManifestGroup, ManifestVariable
from virtualds.hdf5_storage import read_strings, stored_type, virtual_array
from virtualds.hdf5_structure import Dataset, Dimensions, attributes_of, members
from virtualds.manifest import SourceFile
from virtualds.stores import store_for
from virtualds.urls import local_path, scheme_of

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""Format signature, at byte 0, 512, 1024, 2048 ... (HDF5 file format, II.A)."""
NOT_A_COORDINATE = "_nc4_non_coord_"
"""Prefix that netCDF-C gives a variable named like a dimension that it is not the scale of."""


def detect(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` is HDF5."""
    places = itertools.takewhile(lambda n: n < len(head), (0, *(512 << k for k in range(16))))
    return any(head[n : n + 8] == SIGNATURE for n in places)


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the structure of one group of a file.

    Parameters
    ----------
    source : SourceFile
        The file with its fingerprint.
    group : str, optional
        Path of the group; the root group by default.
    skip : iterable of str
        Names of variables to leave out.

    Raises
    ------
    FormatError
        The file is damaged or truncated.
    FileNotFoundError
        There is no such group.
    UnsupportedError
        A variable holds what byte ranges cannot express.
    """
    import h5py

    if group is not None and not isinstance(group, str):
        raise ValueError(f"group must be a string or None, got {group!r}")
    local = scheme_of(source.url) == "file"
    target: Any = (
        local_path(source.url) if local else store_for(source.url).open(source.url, source.options)
    )
    try:
        with h5py.File(target, "r", locking="best-effort" if local else None) as file:
            return _Reader(file, source, frozenset(skip)).read(group)
    except (OSError, RuntimeError) as error:
        if isinstance(error, FileNotFoundError | PermissionError | VirtualdsError):
            raise
        raise FormatError(
            f"{source.url}: HDF5 cannot read it ({error}); the file is damaged or truncated, "
            f"fetch it again"
        ) from error
    finally:
        if not local:
            target.close()


class _Reader:
    """The walk over one group, with what its datasets share."""

    def __init__(self, file: Any, source: SourceFile, skip: frozenset[str]) -> None:
        self.file = file
        self.source = source
        self.skip = skip

    def read(self, path: str | None) -> ManifestGroup:
        group = self._descend(path)
        datasets, children, links = members(group)
        for link in links:
            if link not in self.skip:
                raise UnsupportedError(
                    f"{self.source.url}: {link!r} is a soft or external link, which is not "
                    f"followed; leave it out with drop_variables, and open what it points to"
                )
        dims = Dimensions(datasets.values(), self._scales_above(group))
        variables = {}
        for name, names in dims.of.items():
            shown = name.removeprefix(NOT_A_COORDINATE)
            if shown in self.skip:
                continue
            try:
                variables[shown] = self._variable(datasets[name], names, dims.lengths)
            except VirtualdsError as error:
                error.add_note(f"variable {shown!r} of {self.source.url}")
                raise
        return ManifestGroup(
            variables,
            attributes_of(group),
            dict.fromkeys(children, ManifestGroup()),
            {"unlimited_dims": dims.unlimited_here},
        )

    def _descend(self, path: str | None) -> Any:
        import h5py

        found = self.file
        for part in (path or "").strip("/").split("/"):
            if part:
                found = found.get(part)
                if not isinstance(found, h5py.Group):
                    raise FileNotFoundError(
                        f"{self.source.url}: there is no group {path!r}; look at its groups with "
                        f"h5py or ncdump -h"
                    )
        return found

    def _scales_above(self, group: Any) -> list[Dataset]:
        """Return the dimension scales of the groups above a group, outermost first."""
        found: list[Dataset] = []
        while group.name != "/":
            group = group.parent
            found = [d for d in members(group)[0].values() if d.is_scale] + found
        return found

    def _variable(
        self, dataset: Dataset, dims: tuple[str, ...], lengths: Mapping[str, int]
    ) -> ManifestVariable:
        attributes = attributes_of(dataset)
        shape = tuple(lengths.get(dim, n) for dim, n in zip(dims, dataset.shape, strict=True))
        stored = stored_type(dataset)
        encoding: dict[str, Any] = {"dtype": stored.declared}
        data: Data
        if stored.dtype is None:
            data = read_strings(dataset, shape)
        else:
            data = virtual_array(dataset, stored.dtype, dims, self.source, encoding)
            if shape != data.shape:
                data = replace(data, shape=shape, fill_value=data.pipelines[0].fill_value)
        if stored.dtype is not None and stored.dtype.kind == "S" and "_FillValue" in attributes:
            fill = attributes["_FillValue"]
            attributes["_FillValue"] = np.bytes_(fill.encode() if isinstance(fill, str) else fill)
        if "least_significant_digit" in attributes:
            encoding["least_significant_digit"] = attributes.pop("least_significant_digit")
        encoding |= {"source": self._name_of_source(), "original_shape": shape}
        return ManifestVariable(dims, data, attributes, encoding)

    def _name_of_source(self) -> str:
        url = self.source.url
        return local_path(url) if scheme_of(url) == "file" else url
