"""HDF5 and netCDF4 files, through h5py.

This module walks one group, or all groups below one (`groups`). `netcdf_rules` applies the
conventions of netCDF. The values of a dataset become references to its chunks (`storage`) or to the
sources of a virtual dataset (`virtual_datasets`); h5py reads all other values (`h5py_values`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import hold_gaps_as_chunks
from virtualds.arrays.group import Data, ManifestGroup, ManifestVariable
from virtualds.arrays.parser import (
    CannotError,
    NativeReader,
    NativeRegion,
    Parser,
    ReadNative,
    stored_values,
)
from virtualds.codecs.codec import NO_FILTERS
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError
from virtualds.options import get_options
from virtualds.parsers.hdf5 import library, members
from virtualds.parsers.hdf5.attributes import read_attribute, select_user_names
from virtualds.parsers.hdf5.dimensions import Dimensions
from virtualds.parsers.hdf5.file import HDF5Files, Structure, describe_damage
from virtualds.parsers.hdf5.groups import (
    MOST_GROUPS,
    FileGroups,
    HDF5Group,
    PathParts,
    read_groups_below,
)
from virtualds.parsers.hdf5.h5py_values import load_or_defer
from virtualds.parsers.hdf5.netcdf_rules import find_fill_beyond, list_attribute_names
from virtualds.parsers.hdf5.objects import Dataset, HDF5Location
from virtualds.parsers.hdf5.storage import build_stored_array, fill_of
from virtualds.parsers.hdf5.virtual_datasets import (
    build_mapped_array,
    list_needed_files,
)
from virtualds.source_file import SourceFile
from virtualds.stores.scan_cache import read_remote
from virtualds.urls import local_path, scheme_of

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""Format signature, at byte 0, 512, 1024, 2048 ... (HDF5 file format, II.A)."""
NOT_A_COORDINATE = "_nc4_non_coord_"
"""Prefix that netCDF-C gives a variable with the name of a dimension whose scale it is not."""


def detect(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` is HDF5."""
    places = itertools.takewhile(lambda n: n < len(head), (0, *(512 << k for k in range(16))))
    return any(head[n : n + 8] == SIGNATURE for n in places)


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read the structure of one group of a file; unreadable variables are among its `problems`.

    Child groups are empty.

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
    """
    return _walk_file(source, group, skip, _read_one_group)


def read_tree(
    source: SourceFile, group: str | None = None, skip: Iterable[str] = ()
) -> ManifestGroup:
    """Read the structure of a group and of all groups below it, opening the file once.

    Parameters and errors are those of `read`.
    """
    return _walk_file(source, group, skip, _read_whole_tree)


Walk = Callable[[HDF5Files, frozenset[str], str], ManifestGroup]


def _walk_file(
    source: SourceFile, group: str | None, skip: Iterable[str], walk: Walk
) -> ManifestGroup:
    if group is not None and not isinstance(group, str):
        raise ValueError(f"group must be a string or None, got {group!r}")
    skipped = frozenset(skip)

    def attempt(structure: Structure) -> ManifestGroup:
        with HDF5Files(source, structure) as files:
            return walk(files, skipped, group or "")

    if get_options().hdf5 == "auto":
        with suppress(VirtualdsError):
            found = attempt(members)
            if not any(part.problems for _, part in found.walk()):
                return found
    is_local = scheme_of(source.url) == "file"
    return attempt(library) if is_local else read_remote(source, lambda: attempt(library))


def _read_one_group(files: HDF5Files, skip: frozenset[str], path: str) -> ManifestGroup:
    """Read the group at a path."""
    root, here, where, scales = _find_group(files, path)
    group = HDF5Group(where, here, files.structure.list_members(here, skip), scales)
    below = dict.fromkeys(group.found.groups, ManifestGroup())
    return _GroupReader(files, skip, where).read(group, FileGroups(root, files), below)


def _read_whole_tree(files: HDF5Files, skip: frozenset[str], path: str) -> ManifestGroup:
    """Read the group at a path with all groups below it."""
    root, here, where, scales = _find_group(files, path)
    listed = list(islice(read_groups_below(here, files, where, scales, skip), MOST_GROUPS + 1))
    if len(listed) > MOST_GROUPS:
        raise FormatError(
            f"{files.source.url}: it has more than {MOST_GROUPS:,} groups, with those that links "
            f"repeat; open one with group="
        )
    together = FileGroups(root, files, None if where else listed)
    done: dict[PathParts, ManifestGroup] = {}
    for group in listed:
        below = {name: done.pop((*group.where, name)) for name in group.found.groups}
        done[group.where] = _GroupReader(files, skip, group.where).read(group, together, below)
    return done[where]


def _find_group(
    files: HDF5Files, path: str
) -> tuple[HDF5Location, HDF5Location, PathParts, tuple[Dataset, ...]]:
    """Return the root, the group at a path, its path, and the scales of the groups above it."""
    structure = files.structure
    root = structure.open_root(files, files.source)
    *above, here = structure.descend_to(root, path)
    scales = (d for g in above for d in structure.list_members(g).scales)
    return root, here, tuple(filter(None, path.split("/"))), tuple(scales)


class _GroupReader:
    """Reads one group: its variables, attributes and problems."""

    def __init__(self, files: HDF5Files, skip: frozenset[str], where: PathParts) -> None:
        self.files = files
        self.skip = skip
        self.where = where
        url = files.source.url
        self.source_name = local_path(url) if scheme_of(url) == "file" else url
        self.problems: dict[str, VirtualdsError] = {}

    def read(
        self, group: HDF5Group, together: FileGroups, below: Mapping[str, ManifestGroup]
    ) -> ManifestGroup:
        """Read a group; ``below`` holds its child groups."""
        found = group.found
        for name in found.broken.keys() - self.skip:
            self._note(name, found.broken[name])
        dims = self._read_dimensions(group, together)
        return ManifestGroup(
            self._read_variables(found.datasets, dims),
            self._read_attributes("", group.place),
            below,
            {"unlimited_dims": dims.unlimited_here},
            self.problems,
        )

    def _read_dimensions(self, group: HDF5Group, together: FileGroups) -> Dimensions:
        axes = together.name_axes(group)
        if not group.where and not group.found.groups:
            return Dimensions(axes, lambda: len(axes.scales), {})
        lengths = together.find_lengths(group.where, axes) if axes.grow else {}
        return Dimensions(axes, partial(together.count_dimensions_before, group.where), lengths)

    def _read_variables(
        self, datasets: Mapping[str, Dataset], dims: Dimensions
    ) -> dict[str, ManifestVariable]:
        variables = {}
        # the scale decides how long a dimension is
        scales = [d for d in datasets.values() if d.is_scale and d.shape]
        sizes = {d.name: dims.lengths.get(d.name, d.shape[0]) for d in scales}
        for name, names in dims.of.items():
            shown, dataset = name.removeprefix(NOT_A_COORDINATE), datasets[name]
            if shown in self.skip:
                continue
            lengths = zip(names, dataset.shape, strict=True)
            shape = tuple(dims.lengths.get(dim, n) for dim, n in lengths)
            own = dict(zip(names, shape, strict=True))
            if odd := [dim for dim, n in own.items() if sizes.get(dim, n) != n]:
                self._note(shown, _contradiction_error(odd[0], own[odd[0]], sizes[odd[0]]))
                continue
            sizes |= own
            variables[shown] = self._read_variable(shown, dataset, names, shape)
        return variables

    def _note(self, name: str, error: VirtualdsError) -> None:
        path = "/".join((*self.where, name))
        error.add_note(f"variable {path!r} of {self.files.source.url}")
        self.problems[name] = error

    def _read_attributes(self, variable: str, owner: Any) -> dict[str, Any]:
        """Return the user's attributes of a group or dataset."""
        found = {}
        for name in select_user_names(list_attribute_names(owner)):
            try:
                with describe_damage(self.files.source):
                    found[name] = read_attribute(owner, name)
            except VirtualdsError as error:
                # as in CDL: "variable:attribute", and ":attribute" of the group
                self._note(f"{variable}:{name}", error)
        return found

    def _read_variable(
        self, name: str, dataset: Dataset, dims: tuple[str, ...], shape: tuple[int, ...]
    ) -> ManifestVariable:
        attributes = self._read_attributes(name, dataset)
        encoding: dict[str, Any] = {}
        try:
            with describe_damage(dataset.source):
                data = self._read_data(dataset, dims, shape, encoding)
        except VirtualdsError as error:
            self._note(name, error)
            data = ManifestArray.unreadable(shape, f"V{dataset.type.size}", str(error))
            return ManifestVariable(dims, data, attributes)
        if data.dtype.kind == "S" and "_FillValue" in attributes:
            fill = attributes["_FillValue"]
            attributes["_FillValue"] = np.bytes_(fill.encode() if isinstance(fill, str) else fill)
        if "least_significant_digit" in attributes:
            encoding["least_significant_digit"] = attributes.pop("least_significant_digit")
        encoding |= {"source": self.source_name, "original_shape": shape}
        return ManifestVariable(dims, data, attributes, encoding)

    def _read_data(
        self,
        dataset: Dataset,
        dims: tuple[str, ...],
        shape: tuple[int, ...],
        encoding: dict[str, Any],
    ) -> Data:
        """Return the values of a dataset, as references where possible."""
        if dataset.facts.space.shape is None:
            raise UnsupportedError(
                "it has a null dataspace, so there are no values; leave the variable out with "
                "drop_variables"
            )
        stored = dataset.stored
        encoding["dtype"] = stored.declared
        if dataset.is_virtual:
            encoding |= NO_FILTERS | {"contiguous": True, "chunksizes": None}
            array = build_mapped_array(dataset, stored, self.files)
        else:
            array = build_stored_array(dataset, stored, dims, encoding)
        if array is None:
            needs = list_needed_files(dataset, self.files)
            return load_or_defer(dataset, stored, shape, needs, self.files)
        if shape == array.shape:
            return array
        fill = find_fill_beyond(fill_of(dataset, stored.dtype), stored.dtype)
        # its own gaps have another fill value than the part past its end
        array = hold_gaps_as_chunks(array) if array.has_gaps else array
        return replace(array, shape=shape, fill_value=fill)


def _contradiction_error(dim: str, size: int, known: int) -> FormatError:
    return FormatError(
        f"it has {size} elements along {dim!r}, where other variables have {known}; the file "
        f"contradicts itself, leave one of them out with drop_variables"
    )


# ---------------------------------------------------------------------- native readers


def _refuse_half_precision(path: str) -> None:
    """Refuse a file that makes the netCDF library crash the process."""
    import h5py

    halves: list[str] = []

    def look(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset) and found.dtype == np.float16:
            halves.append(name)

    with h5py.File(path) as file:
        file.visititems(look)
    if halves:
        raise CannotError(f"it does not survive numbers of half precision ({halves[0]})")


def _open_h5py(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    import h5py

    file = closing.enter_context(h5py.File(target()))

    def dataset_of(wanted: NativeRegion) -> Any:
        return file[f"{wanted.group}/{wanted.variable}"]

    return stored_values(dataset_of)


PARSER = Parser(
    "hdf5",
    (".nc", ".nc4", ".h5", ".hdf5", ".he5", ".cdf"),
    detect,
    read,
    read_tree,
    natives=(
        NativeReader("h5netcdf", engine="h5netcdf", options={"phony_dims": "sort"}, remote=True),
        NativeReader("netCDF4", engine="netcdf4", check=_refuse_half_precision),
        NativeReader("h5py", _open_h5py, remote=True),
    ),
)
