"""Opening HDF5 files, and finding the files that they refer to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from virtualds.errors import AccessError, FormatError, VirtualdsError
from virtualds.manifest import SourceFile
from virtualds.stores import store_for
from virtualds.urls import join_url, local_path, normalise_url, scheme_of


@contextmanager
def opened(source: SourceFile) -> Iterator[Any]:
    """Open a file with h5py; what HDF5 complains of within the block becomes `FormatError`."""
    import h5py

    local = scheme_of(source.url) == "file"
    target: Any = (
        local_path(source.url) if local else store_for(source.url).open(source.url, source.options)
    )
    try:
        with (
            damage_of(source),
            h5py.File(target, "r", locking="best-effort" if local else None) as file,
        ):
            yield file
    finally:
        if not local:
            target.close()


@contextmanager
def damage_of(source: SourceFile) -> Iterator[None]:
    """Turn what HDF5 complains of within the block into `FormatError`."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if isinstance(error, FileNotFoundError | PermissionError | VirtualdsError):
            raise
        raise FormatError(
            f"{source.url}: HDF5 cannot read it ({error}); the file is damaged or truncated, "
            f"fetch it again"
        ) from error


class HDF5Files:
    """A file, and the others that are needed to read it, each opened once.

    Parameters
    ----------
    source : SourceFile
    """

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self._stack = ExitStack()
        self._open: dict[SourceFile, Any] = {}

    def __enter__(self) -> HDF5Files:
        self._stack.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    def open(self, source: SourceFile) -> Any:
        """Return a file opened with h5py, until the end of the block."""
        if source not in self._open:
            self._open[source] = self._stack.enter_context(opened(source))
        return self._open[source]


def find(name: str, beside: SourceFile, cwd_first: bool = False) -> SourceFile:
    """Return the file that another one refers to by ``name``.

    Relative names are looked for beside the file that holds them and in the working directory, in
    the order in which HDF5 does so (HDF5 reference manual, `H5Pset_virtual_prefix`,
    `H5Pset_elink_prefix`, `H5Pset_efile_prefix`).

    Raises
    ------
    AccessError
        A remote file refers to a local one.
    FormatError
        There is no such file.
    """
    local = scheme_of(beside.url) == "file"
    if not local and (os.path.isabs(name) or "://" in name):
        raise AccessError(
            f"{beside.url}: it refers to {name!r}, which a remote file may not; copy the files to "
            f"local disk if you trust them"
        )
    places = [join_url(beside.url, name)] if not os.path.isabs(name) else []
    places += [normalise_url(name)] if local else []
    for place in reversed(places) if cwd_first else places:
        try:
            return store_for(place).describe(place, beside.options)
        except FileNotFoundError:
            continue
        except PermissionError as error:
            raise AccessError(
                f"{place}: {beside.url} refers to it, and it may not be read ({error}); ask for "
                f"read access to it"
            ) from error
    raise FormatError(
        f"{beside.url}: it refers to {name!r}, which is neither beside it nor in the working "
        f"directory; put it there, or leave the variable out with drop_variables"
    )
