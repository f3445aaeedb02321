"""Errors of opening and writing, with the url and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from virtualds.errors import AccessError, FormatError, ReadError, VirtualdsError, without_secrets
from virtualds.stores.store import RequestError, StoreError

REMEDIES = {
    errno.ENOSPC: "make room on the disk, or write elsewhere",
    errno.EDQUOT: "make room in your quota, or write elsewhere",
    errno.EROFS: "the disk takes no writes; write elsewhere",
    errno.ENOENT: "make the folder that it is to lie in",
    errno.ENOTDIR: "something above it is no folder; write elsewhere",
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
        remedy = f"{url}: permission denied; ask for read access to it"
        raise AccessError(told or remedy) from error
    except FileNotFoundError as error:
        said = without_secrets(str(error))
        cause = error if said == str(error) else None
        if error.errno is not None or url not in said:
            said = f"{url}: there is no such file or group ({said}); check the path"
        elif cause is not None:
            raise
        raise FileNotFoundError(said) from cause
    except RequestError as error:
        raise ReadError(str(error) if url in str(error) else f"{url}: {error}") from error
    except (StoreError, IsADirectoryError) as error:
        raise FormatError(
            f"{url}: cannot be opened ({error}); name a file, or a url that fsspec knows"
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
        reason = error.strerror or str(error)
        raise AccessError(
            f"{url}: may not be written ({reason}); ask for write access, or write elsewhere"
        ) from error
    except StoreError as error:
        raise ReadError(f"{url}: the store refuses the write ({error})") from error
    except OSError as error:
        if error.errno is None:
            raise
        remedy = REMEDIES.get(error.errno, "see to it, or write elsewhere")
        told = f"{url}: cannot be written ({error.strerror}); {remedy}"
        raise type(error)(error.errno, told) from error
