"""Parser of HDF5 and netCDF4 files.

Metadata is parsed from bytes; if that fails, the HDF5 library reads it
(`objects.HDF5Files`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from virtualds.arrays.group import ALONE, LIBRARY, ManifestGroup, ReadMethod
from virtualds.arrays.parser import (
    NativeReader,
    NativeReadError,
    NativeRegion,
    Parser,
    ReadNative,
    make_stored_reader,
)
from virtualds.errors import UnsupportedError, VirtualdsError, without_secrets
from virtualds.options import get_options
from virtualds.parsers.hdf5.alike_files import read_together
from virtualds.parsers.hdf5.group_reader import read_groups
from virtualds.parsers.hdf5.objects import HDF5Files
from virtualds.parsers.hdf5.structure.file_bytes import SIGNATURE, DeclinedError
from virtualds.source_file import SourceFile
from virtualds.stores.scan_cache import ensure_scan


def detect(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is HDF5."""
    offsets = itertools.takewhile(lambda n: n < len(head), (0, *(512 << k for k in range(16))))
    return any(head[n : n + 8] == SIGNATURE for n in offsets)


def read(
    source: SourceFile,
    group: str | None = None,
    skip: Iterable[str] = (),
    *,
    below: bool = False,
    defers: bool = False,
) -> ManifestGroup:
    """Read the structure of one group of a file; unreadable variables are in `problems`.

    Raises `FormatError` if the file is damaged or truncated; `UnsupportedError` if neither
    virtualds nor h5py can read its metadata; and `FileNotFoundError` if there is no such group.

    Parameters
    ----------
    below : bool
        Whether to read its subgroups; otherwise they are empty.
    defers : bool
        Whether to read large chunk indexes only when values are read.
    """
    if group is not None and not isinstance(group, str):
        raise ValueError(f"group must be a string or None, got {group!r}")
    skipped = frozenset(skip)

    def attempt(by_library: bool) -> ManifestGroup:
        with HDF5Files(source, defers=defers, by_library=by_library) as files:
            return read_groups(files, skipped, group or "", below=below).group

    with ensure_scan(source):
        reason = "set_options(hdf5='library')"
        if get_options().hdf5 == "auto":
            try:
                result = attempt(by_library=False)
            except VirtualdsError as error:
                reason = _describe(error, source)
            else:
                problems = result.all_problems()
                if not problems:
                    return replace(result, way=ALONE)
                name, problem = next(iter(problems.items()))
                reason = f"{name}: {_describe(problem, source)}"
        try:
            return replace(attempt(by_library=True), way=ReadMethod(LIBRARY, reason))
        except DeclinedError as error:
            # the HDF5 library, the last reader, does not support it either
            raise UnsupportedError(f"{error}") from error


def _describe(error: VirtualdsError, source: SourceFile) -> str:
    """Return the reason of an error without the file name, so that equal reasons are grouped."""
    reason = f"{error}".partition("; ")[0]
    return reason.rpartition(f"{without_secrets(source.url)}: ")[2]


# ---------------------------------------------------------------------- native readers


def _check_half_precision(path: str) -> None:
    """Raise an error for a file with half-precision floats, on which netCDF-C crashes."""
    import h5py

    names: list[str] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype == np.float16:
            names.append(name)

    with h5py.File(path) as file:
        file.visititems(visit)
    if names:
        raise NativeReadError(f"it does not survive numbers of half precision ({names[0]})")


def _open_h5py(target: Callable[[], Any], closing: ExitStack) -> ReadNative:
    import h5py

    file = closing.enter_context(h5py.File(target()))

    def get_dataset(request: NativeRegion) -> Any:
        return file[f"{request.group}/{request.variable}"]

    return make_stored_reader(get_dataset)


PARSER = Parser(
    "hdf5",
    (".nc", ".nc4", ".h5", ".hdf5", ".he5", ".cdf"),
    detect,
    read,
    read_together=read_together,
    takes=("below", "defers"),
    natives=(
        NativeReader("h5netcdf", engine="h5netcdf", options={"phony_dims": "sort"}, remote=True),
        NativeReader("netCDF4", engine="netcdf4", check=_check_half_precision),
        NativeReader("h5py", _open_h5py, remote=True),
    ),
)
