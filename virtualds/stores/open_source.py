"""Source files as Python's binary files, local or remote.

Fetched bytes of a remote file are held until the file is scanned, so that headers in many small
pieces cost few requests.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from virtualds.errors import FormatError, VirtualdsError
from virtualds.source_file import SourceFile
from virtualds.stores.block_cache import PAGE, FetchError
from virtualds.stores.scan_cache import open_remote
from virtualds.urls import local_path, scheme_of


def open_source(source: SourceFile) -> BinaryIO:
    r"""Open a source file, local or remote, for reading, as `open` in mode ``"rb"`` does.

    Parameters
    ----------
    source : SourceFile
        As a parser is given it.

    Returns
    -------
    binary file
        To be closed, or used in a ``with`` statement.

    Raises
    ------
    OSError
        The file does not exist, may not be read, or has changed since it was described.
    UnsupportedError
        A server sends no parts of it.

    Examples
    --------
    >>> with open_source(SourceFile("file:///data/2001.nc")) as file:  # doctest: +SKIP
    ...     file.read(4)
    b'\x89HDF'
    """
    if scheme_of(source.url) == "file":
        return open(local_path(source.url), "rb")
    return cast("BinaryIO", io.BufferedReader(open_remote(source), PAGE))


@contextmanager
def describe_damage(
    source: SourceFile, what: str, complaints: tuple[type[Exception], ...]
) -> Iterator[None]:
    """Turn what a library complains of within the block into `FormatError`, and name the file.

    Parameters
    ----------
    source : SourceFile
    what : str
        The format, for the message.
    complaints : tuple of exception types
        What the library raises about damaged files.
    """
    try:
        yield
    except VirtualdsError as error:
        error.locate_file(source.url)
        raise
    except (FetchError, FileNotFoundError, PermissionError):
        raise
    except complaints as error:
        raise FormatError(
            f"{source.url}: it is not a sound {what} file ({type(error).__name__}: {error}); the "
            f"file is damaged or truncated, fetch it again"
        ) from error
