"""The parsers: one file per source format, and here the table that knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import virtualds.parsers.hdf5 as hdf5
import virtualds.parsers.netcdf3 as netcdf3
import virtualds.parsers.numpy_files as numpy_files
import virtualds.parsers.safetensors as safetensors
import virtualds.parsers.zarr as zarr
from virtualds.group import ManifestGroup
from virtualds.manifest import SourceFile


class ReadSource(Protocol):
    """Reads the structure of one group of a source file."""

    def __call__(
        self, source: SourceFile, group: str | None = None, skip: Iterable[str] = ()
    ) -> ManifestGroup: ...


@dataclass(frozen=True)
class Parser:
    """A source format.

    Parameters
    ----------
    name : str
    suffixes : tuple of str
        Usual ends of file names, for guesses that may not look into the file.
    detect : callable
        Takes the first bytes of a file, or a marker, and says whether it is of this format.
    read : callable
        Takes a `SourceFile`, a group path and names to skip; returns a `ManifestGroup`.
    read_tree : callable
        The same with all groups below that one, of which ``read`` need not know more than names;
        by default `read`, as for formats without groups.
    markers : tuple of str
        For a format that is a folder: the files any of which makes it one.
    """

    name: str
    suffixes: tuple[str, ...]
    detect: Callable[[bytes], bool]
    read: ReadSource
    read_tree: ReadSource | None = None
    markers: tuple[str, ...] = ()


PARSERS: tuple[Parser, ...] = (
    Parser(
        "hdf5",
        (".nc", ".nc4", ".h5", ".hdf5", ".he5", ".cdf"),
        hdf5.detect,
        hdf5.read,
        hdf5.read_tree,
    ),
    Parser("netcdf3", (".nc3",), netcdf3.detect, netcdf3.read),
    Parser("npy", (".npy",), numpy_files.detect, numpy_files.read),
    Parser("npz", (".npz",), numpy_files.detect_archive, numpy_files.read_archive),
    Parser("safetensors", (".safetensors",), safetensors.detect, safetensors.read),
    # no suffix: what is called so may as well be a reference set
    Parser("zarr", (), zarr.detect, zarr.read, markers=zarr.MARKERS),
)
