"""Errors of opening and writing, with the url and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from virtualds.errors import AccessError, FormatError, ReadError, VirtualdsError, without_secrets
from virtualds.stores.store import RequestError, StoreError
from virtualds.urls import local_path

REMEDIES = {
    errno.ENOSPC: "make room on the disk, or write elsewhere",
    errno.EDQUOT: "make room in your quota, or write elsewhere",
    errno.EROFS: "write elsewhere",
    errno.ENOENT: "make its folder first",
    errno.ENOTDIR: "a part of its path is a file, not a folder; write elsewhere",
}
"""What to do, by error number of the system."""


@contextmanager
def explain_open_errors(url: str) -> Iterator[None]:
    """Raise the errors of a file that does not open with its url and what to do."""
    url = without_secrets(url)
    try:
        yield
    except PermissionError as error:
        if isinstance(error, AccessError):
            raise
        # errors of stores name the url and the remedy already
        told = str(error) if error.errno is None and url in str(error) else None
        raise AccessError(
            told or f"{url}: permission denied; ask for read access to it"
        ) from error.__cause__
    except FileNotFoundError as error:
        said = without_secrets(str(error))
        if error.errno is None and url in said:
            if said == str(error):
                raise
            raise FileNotFoundError(said) from None
        # the system says no more than that
        told = "file" if error.errno is not None else f"file or group ({said})"
        raise FileNotFoundError(f"{url}: there is no such {told}; check the path") from None
    except RequestError as error:
        told = str(error) if url in str(error) else f"{url}: {error}"
        # whether it may pass is seen by the cause
        raise ReadError(told) from error.__cause__ or error
    except (StoreError, IsADirectoryError) as error:
        if isinstance(error, IsADirectoryError):
            raise FormatError(
                f"{url}: this folder is neither a reference set nor a Zarr store; to open files in "
                f"it, give a pattern to virtualds.open_virtual_mfdataset"
            ) from None
        if isinstance(error.__cause__, ImportError):
            raise ReadError(f"{url}: {error}") from None
        raise FormatError(
            f"{url}: cannot be opened ({error}); give a path, or a url of a scheme that fsspec "
            f"knows"
        ) from error


@contextmanager
def explain_write_errors(url: Any) -> Iterator[None]:
    """Raise the errors of writing a set with the url of the set and what to do.

    The errors may name a file of the set, or a temporary one.
    """
    try:
        yield
    except (VirtualdsError, FileExistsError):
        raise
    except PermissionError as error:
        if error.errno is None and (told := str(error)).startswith(str(url)):
            # errors of stores name the url and the remedy already
            raise AccessError(told) from error.__cause__
        reason = error.strerror or str(error)
        raise AccessError(
            f"{url}: no permission to write ({reason}); ask for write access, or write elsewhere"
        ) from error
    except StoreError as error:
        raise ReadError(f"{url}: the store refuses the write ({error})") from error
    except OSError as error:
        if error.errno is None:
            raise
        remedy = REMEDIES.get(error.errno, "solve that, or write elsewhere")
        if error.errno == errno.ENOENT and os.path.isdir(os.path.dirname(local_path(str(url)))):
            remedy = "another process may have removed a file of it meanwhile; try again"
        told = f"{url}: cannot be written ({error.strerror}); {remedy}"
        raise type(error)(error.errno, told) from error
