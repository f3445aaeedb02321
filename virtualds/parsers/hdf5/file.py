"""Opening HDF5 files, and finding the files that they refer to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from errno import EMFILE, ENFILE
from typing import Any

from virtualds.errors import AccessError, FormatError, UnsupportedError, VirtualdsError
from virtualds.parsers.hdf5.structure.file_bytes import FileBytes, Notes
from virtualds.parsers.hdf5.structure.object_header import read_extension
from virtualds.source_file import SourceFile
from virtualds.stores.block_cache import FetchError
from virtualds.stores.scan_cache import describe_file, open_remote
from virtualds.urls import join_url, local_path, normalise_url, scheme_of

PREFIXES = ("HDF5_VDS_PREFIX", "HDF5_EXTFILE_PREFIX", "HDF5_EXT_PREFIX")
"""Variables of the environment that change where HDF5 looks for files."""
HDF5_ERRORS = (OSError, RuntimeError, ValueError, OverflowError)
"""Errors that h5py raises for damaged files."""
OWN_ERRORS = (FileNotFoundError, PermissionError, VirtualdsError, FetchError)
"""Errors among them that already say what is wrong."""


@contextmanager
def open_hdf5(source: SourceFile) -> Iterator[Any]:
    """Open a file with h5py; errors of HDF5 within the block become `FormatError`."""
    import h5py

    local = scheme_of(source.url) == "file"
    target: Any = local_path(source.url) if local else open_remote(source)
    try:
        with (
            describe_damage(source),
            h5py.File(target, "r", locking="best-effort" if local else None) as file,
        ):
            yield file
    finally:
        if not local:
            target.close()


class describe_damage:
    """Turn errors of HDF5 within the block into `FormatError`."""

    # a class, since generators cost several times as much, and each variable enters many blocks
    def __init__(self, source: SourceFile) -> None:
        self.source = source

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, HDF5_ERRORS) and (found := explain_damage(self.source, error)):
            raise found from found.__cause__


def explain_damage(source: SourceFile, error: BaseException) -> FormatError | None:
    """Return the error that an error of HDF5 means; None if it says itself what is wrong."""
    if isinstance(error, OWN_ERRORS) or getattr(error, "errno", None) in (EMFILE, ENFILE):
        return None
    found = FormatError(
        f"{source.url}: HDF5 cannot read it ({error}); the file is damaged or truncated, fetch it "
        f"again"
    )
    # an error of the system may pass, so that opening is tried again; HDF5's own say no more
    found.__cause__ = error if getattr(error, "errno", None) else None
    return found


class HDF5Files:
    """A file, and the others that are needed to read it, each opened once.

    Parameters
    ----------
    source : SourceFile
    notes : Notes, optional
        Where is noted what the bytes of the file mean.
    defers : bool
        Whether large indexes of chunks are not read; chunks are looked up when they are read.
    """

    def __init__(
        self, source: SourceFile, notes: Notes | None = None, defers: bool = False
    ) -> None:
        self.source = source
        self.defers = defers
        self._notes = notes
        self._stack = ExitStack()
        self._open: dict[SourceFile, Any] = {}
        self._bytes: dict[SourceFile, FileBytes] = {}

    def __enter__(self) -> HDF5Files:
        self._stack.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    def open(self, source: SourceFile) -> Any:
        """Return a file opened with h5py, until the end of the block."""
        if source not in self._open:
            self._open[source] = self._stack.enter_context(open_hdf5(source))
        return self._open[source]

    @property
    def is_alone(self) -> bool:
        """Whether nothing but the bytes of the file itself were read."""
        return not self._open and self._bytes.keys() == {self.source}

    def get_bytes(self, source: SourceFile) -> FileBytes:
        """Return the bytes of a file that is open, until it is closed."""
        if source not in self._bytes:
            found = FileBytes(source, self._notes if source == self.source else None)
            self._stack.callback(found.close)
            read_extension(found)
            self._bytes[source] = found
        return self._bytes[source]

    @contextmanager
    def lend(self, source: SourceFile) -> Iterator[Any]:
        """Open a file for the block alone: the system may not allow all files open at once."""
        if source in self._open:
            yield self._open[source]
            return
        with open_hdf5(source) as file:
            self._open[source] = file
            try:
                yield file
            finally:
                del self._open[source]
                if source in self._bytes:
                    self._bytes.pop(source).close()


ListCandidates = Callable[[str, SourceFile], list[str]]
"""Takes a name and the file that holds it, and returns the urls where the named file may lie."""


def list_beside(name: str, holder: SourceFile) -> list[str]:
    """Return the urls beside the holder, and beside the target if the holder is a link."""
    if scheme_of(holder.url) != "file":
        return [join_url(holder.url, name)]
    folder, real = (os.path.dirname(p(local_path(holder.url))) for p in (str, os.path.realpath))
    return [normalise_url(os.path.join(place, name)) for place in dict.fromkeys((folder, real))]


def list_absolute(name: str, holder: SourceFile) -> list[str]:
    """Return the url of an absolute name; none for a relative one."""
    return [normalise_url(name)] if os.path.isabs(name) else []


def list_in_working_directory(name: str, holder: SourceFile) -> list[str]:
    """Return the url in the working directory; none if the holder is remote."""
    return [normalise_url(name)] if scheme_of(holder.url) == "file" else []


def find_referenced_file(
    name: str,
    holder: SourceFile,
    places: Sequence[ListCandidates] = (list_beside, list_in_working_directory),
) -> SourceFile:
    """Return the file that another one refers to by ``name``.

    HDF5 looks beside the file that holds the name and then in the working directory (HDF5
    reference manual, `H5Pset_virtual_prefix`, `H5Pset_elink_prefix`), for raw data in the working
    directory alone (`H5Pset_efile_prefix`).

    Raises
    ------
    AccessError
        A remote file refers to a local one, or any file to a url.
    FormatError
        There is no such file.
    UnsupportedError
        The environment tells HDF5 to look elsewhere.
    """
    if set_ := [variable for variable in PREFIXES if os.environ.get(variable)]:
        raise UnsupportedError(
            f"{holder.url}: it refers to {name!r}, and {set_[0]} tells HDF5 to look elsewhere; "
            f"unset it"
        )
    if "://" in name or (scheme_of(holder.url) != "file" and os.path.isabs(name)):
        raise AccessError(
            f"{holder.url}: it refers to {name!r}, which a file may not do (a url, or from a "
            f"server to a local disk); copy the files beside each other if you trust them"
        )
    for place in dict.fromkeys(url for look in places for url in look(name, holder)):
        try:
            return describe_file(place, holder.options)
        except FileNotFoundError:
            continue
        except PermissionError as error:
            raise AccessError(
                f"{place}: {holder.url} refers to it, and it may not be read ({error}); ask for "
                f"read access to it"
            ) from error
    where = " and ".join(look.__name__.removeprefix("list_").replace("_", " ") for look in places)
    raise FormatError(
        f"{holder.url}: it refers to {name!r}, which is not there (looked {where}); put it "
        f"beside the file, or leave the variable out with drop_variables"
    )
