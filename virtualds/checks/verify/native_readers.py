"""Opening files with native readers: the libraries that the parser of a format names.

A native reader gives a region of a variable, as stored and as decoded, independently of this
library.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from virtualds.arrays.parser import (
    Array,
    CannotError,
    NativeReader,
    NativeRegion,
    Parser,
    ReadNative,
)
from virtualds.datasets.registry import PARSER_ERRORS
from virtualds.source_file import SourceFile
from virtualds.stores import find_store
from virtualds.stores.filesystems import find_filesystem
from virtualds.urls import HELD, local_path, scheme_of


def open_native(
    native: NativeReader, parser: Parser, source: SourceFile, closing: ExitStack
) -> ReadNative:
    """Open a source file with a native reader of its format.

    Raises
    ------
    CannotError
        The file would crash the library.
    """
    is_local, options = scheme_of(source.url) == "file", dict(native.options)
    target: Callable[[], Any] = partial(_path_or_file, source, closing)
    if parser.markers:
        # a folder is opened by its path
        target = partial(local_path if is_local else str, source.url)
        if source.options and not is_local:
            options["storage_options"] = dict(source.options)
    if native.check is not None:
        native.check(target())
    if native.open is not None:
        return native.open(target, closing)
    return _ThroughXarray(str(native.engine), target, closing, options).read


def _path_or_file(source: SourceFile, closing: ExitStack) -> Any:
    """Return the path of a local file, or a new file object of fsspec."""
    if scheme_of(source.url) == "file":
        return local_path(source.url)
    if scheme_of(source.url) == HELD:
        return io.BytesIO(find_store(source.url).read_all(source.url, source.options))
    filesystem, path = find_filesystem(source.url, source.options)
    # file objects of archives close their files when they are garbage collected
    closing.callback(id, filesystem)
    return closing.enter_context(filesystem.open(path, "rb"))


SMALL = 2**18
"""Bytes of a variable that is read whole where several of its chunks are wanted."""


@dataclass
class _ThroughXarray:
    """A file that an engine of xarray opens, group by group.

    ``target`` makes the argument of the engine; one dataset reads one file object. Libraries take
    milliseconds for each read, so ``whole`` has the small variables of which a second region was
    wanted: their values, or None where only regions can be read, as beside a damaged chunk.
    """

    engine: str
    target: Callable[[], Any]
    closing: ExitStack
    options: Mapping[str, Any]
    opened: dict[tuple[str, bool], xr.Dataset] = field(default_factory=dict)
    asked: set[tuple[str, str, bool]] = field(default_factory=set)
    whole: dict[tuple[str, str, bool], Array | None] = field(default_factory=dict)

    def read(self, wanted: NativeRegion) -> Array:
        dataset = self._open_dataset(wanted.group, wanted.decoded)
        if wanted.variable not in dataset.variables:
            raise CannotError(f"it has no variable {wanted.variable!r}")
        variable = dataset.variables[wanted.variable]
        if variable.shape != wanted.shape:
            raise CannotError(f"it reads the variable with shape {variable.shape}")
        key = wanted.group, wanted.variable, wanted.decoded
        if key in self.asked and variable.nbytes <= SMALL and key not in self.whole:
            self.whole[key] = _read_whole(variable)
        self.asked.add(key)
        if (known := self.whole.get(key)) is not None:
            return np.asarray(known[wanted.region])
        return np.asarray(variable[wanted.region].values)

    def _open_dataset(self, group: str, decoded: bool) -> xr.Dataset:
        if (group, decoded) not in self.opened:
            how = {"decode_cf": decoded, "cache": False, "group": group or None, **self.options}
            found = xr.open_dataset(self.target(), engine=self.engine, **how)
            self.opened[group, decoded] = self.closing.enter_context(found)
        return self.opened[group, decoded]


def _read_whole(variable: xr.Variable) -> Array | None:
    """Return all values of a variable, None if some cannot be read."""
    try:
        return np.asarray(variable.values)
    except PARSER_ERRORS:
        return None
