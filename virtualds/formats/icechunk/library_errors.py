"""Errors of the library Icechunk as errors of this package; imported by its adapter alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import icechunk

from virtualds.errors import AccessError, ConflictError, FormatError, ReadError


@contextmanager
def describe_errors(url: str) -> Iterator[None]:
    """Turn errors of Icechunk into ours, with the url."""
    try:
        yield
    except icechunk.RepositoryNotFoundError as error:
        raise FileNotFoundError(f"{url}: there is no Icechunk repository") from error
    except icechunk.NotFoundError as error:
        raise FileNotFoundError(f"{url}: {_first_line_of(error)}") from error
    except icechunk.ConflictError as error:
        raise ConflictError(
            f"{url}: another writer has committed meanwhile; write again to what is there now"
        ) from error
    except icechunk.AlreadyExistsError as error:
        raise FileExistsError(f"{url}: {_first_line_of(error)}") from error
    except icechunk.ReadOnlyError as error:
        raise AccessError(f"{url}: {_first_line_of(error)}; pass a writable session") from error
    except icechunk.StorageError as error:
        raise ReadError(
            f"{url}: {_first_line_of(error)}; check the path and the options"
        ) from error
    except icechunk.IcechunkError as error:
        raise FormatError(
            f"{url}: Icechunk {icechunk.__version__} says: {_first_line_of(error)}"
        ) from error


def _first_line_of(error: BaseException) -> str:
    return next(iter(str(error.args[0] if error.args else error).strip().splitlines()), "")
