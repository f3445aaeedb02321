"""What a store says of what cannot be opened or written, told with the url and what to do."""

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
"""What to do, by what the system says."""


@contextmanager
def explain_open_errors(url: str) -> Iterator[None]:
    """Tell what a store says of a file that does not open, with its url and what to do."""
    url = without_secrets(url)
    try:
        yield
    except PermissionError as error:
        if isinstance(error, AccessError):
            raise
        # of a store it is told what it refuses, and what to do
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
            f"{url}: it cannot be opened ({error}); name a file, or a url that fsspec knows"
        ) from error


@contextmanager
def explain_write_errors(url: Any) -> Iterator[None]:
    """Tell of a set that cannot be written what is in the way, by its own name.

    What was in the way of one of its files, or of a temporary one, is in the way of the set.
    """
    try:
        yield
    except (VirtualdsError, FileExistsError):
        raise
    except PermissionError as error:
        reason = error.strerror or str(error)
        raise AccessError(
            f"{url}: it may not be written ({reason}); ask for write access, or write elsewhere"
        ) from error
    except StoreError as error:
        raise ReadError(f"{url}: the store does not take it ({error})") from error
    except OSError as error:
        if error.errno is None:
            raise
        remedy = REMEDIES.get(error.errno, "see to it, or write elsewhere")
        told = f"{url}: it cannot be written ({error.strerror}); {remedy}"
        raise type(error)(error.errno, told) from error
