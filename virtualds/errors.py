"""The error classes, the warnings, and the parts that messages are made of.

::

    VirtualdsError
    ├── UnsupportedError(NotImplementedError)  the source or the target cannot express it
    ├── CombineError(ValueError)               these arrays do not belong together
    ├── FormatError(ValueError)                no valid source or reference file
    ├── ReadError(OSError)                     bytes missing, changed or undecodable
    ├── AccessError(PermissionError)           a reference points where it may not
    └── ConflictError(RuntimeError)            another writer came first
    CombineWarning(UserWarning)                these files combine, but they differ
    CopyWarning(UserWarning)                   values are loaded, and a set would copy them
    AccessWarning(UserWarning)                 whoever opens this set will get an AccessError

Every message is written as *where: what happened; what to do*, and shown in two lines: what
happened and where, then what to do. Lists of details follow below. Callers that know the file or
the variable prepend it with ``locate``, or add it below with ``add_note``. A message is one
sentence at the place where it is raised, and its layout is read from it (`lay_out`): fields for
what to do were tried at the 503 places that say it, and made them hundreds of lines longer.

Public classes are named by the package (`public`). Numbers and names are formatted in the same way
on pages and in messages (`format_bytes`, `format_count`, `name_some`).
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Named = TypeVar("Named", bound=type)


def public(kind: Named) -> Named:
    """Make the package the module of a class in pickles, reprs and messages.

    Examples
    --------
    >>> @public
    ... class Grid: ...
    >>> Grid
    <class 'virtualds.Grid'>
    """
    kind.__module__ = "virtualds"
    return kind


# ---------------------------------------------------------------------- quantities

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
"""Powers of a thousand, as xarray formats numbers of bytes."""


def format_bytes(count: float) -> str:
    """Format a number of bytes with its unit.

    Examples
    --------
    >>> format_bytes(1), format_bytes(999), format_bytes(263_512), format_bytes(999_999)
    ('1 byte', '999 bytes', '263.5 kB', '1.0 MB')
    """
    if count < 1000:
        return "1 byte" if count == 1 else f"{count:,.0f} bytes"
    value, power = float(count), 0
    # what rounds to a thousand gets the next unit
    while round(value, 1) >= 1000 and power < len(UNITS) - 1:
        value, power = value / 1000, power + 1
    return f"{value:,.1f} {UNITS[power]}"


def format_count(count: int, thing: str) -> str:
    """Format a number with its noun.

    Examples
    --------
    >>> format_count(1, "file"), format_count(12000, "file")
    ('1 file', '12,000 files')
    """
    return f"{count:,} {thing}{'s' * (count != 1)}"


def name_some(names: Iterable[str], most: int, rest: str = "more") -> str:
    """Format the first names, and the number of the others.

    Examples
    --------
    >>> name_some(["t", "u"], 2), name_some(["t", "u", "v", "w"], 2)
    ('t, u', 't, u and 2 more')
    """
    known = list(names)
    left = len(known) - most
    return ", ".join(known[:most]) + (f" and {left:,} {rest}" if left > 0 else "")


# ---------------------------------------------------------------------- errors

SIGNATURES = re.compile(
    r"(?i)([?&;](?:[a-z0-9_.-]*(?:signature|token|secret|credential|password)"
    r"|awsaccesskeyid|(?:api|access|subscription)[_-]?key|sig|auth|jwt)=)[^&#\s'\"<>)\]]+"
)
"""Query parameters that grant access; the group is the name, the rest the value."""

PASSWORDS = re.compile(r"(://[^/?#\s:@'\"]*:)[^/?#\s@'\"]+(?=@)")
"""Passwords before the host of a url (RFC 3986, section 3.2.1); the group is what comes before."""


def without_secrets(text: str) -> str:
    """Return a string with the signatures, tokens and passwords of its urls left out.

    Examples
    --------
    >>> without_secrets("https://example.org/a.nc?token=abc&n=1: it is gone")
    'https://example.org/a.nc?token=...&n=1: it is gone'
    >>> without_secrets("ftp://me:hunter2@example.org/a.nc")
    'ftp://me:...@example.org/a.nc'
    """
    return PASSWORDS.sub(r"\1...", SIGNATURES.sub(r"\1...", text))


OPENING, CLOSING = "([{", ")]}"
QUOTED = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")(?!\w)""")
"""Names and values as formatted by ``repr``."""
MAX_DETAILS = 10
"""Maximum number of lines of details in a message."""


def lay_out(text: str) -> str:
    """Return a message with the remedy on a line of its own, before the details.

    The remedy follows the first semicolon of the message. Those in names of files, in quotes and in
    brackets do not count: brackets may quote other messages.

    Examples
    --------
    >>> print(lay_out("data/a; b.nc: 'x; y' ends too early (cut; short); fetch the file again"))
    data/a; b.nc: 'x; y' ends too early (cut; short)
    fetch the file again
    """
    line, *details = text.split("\n", 1)
    end = _find_semicolon(line)
    return "\n".join([line if end is None else f"{line[:end]}\n{line[end + 2 :]}", *details])


def _find_semicolon(line: str) -> int | None:
    where, colon, _ = line.partition(": ")
    begin = len(where) if colon and "/" in where else 0
    plain = QUOTED.sub(lambda quoted: "'" * len(quoted[0]), line)
    depth = 0
    for index in range(begin, len(line)):
        depth += (plain[index] in OPENING) - (plain[index] in CLOSING)
        if depth <= 0 and plain.startswith("; ", index):
            return index
    return None


def format_details(text: str, details: Iterable[str], most: int = MAX_DETAILS) -> str:
    """Return a message with its first details in lines below, and the number of the others.

    Examples
    --------
    >>> print(format_details("3 files differ", ["a.nc", "b.nc", "c.nc"], most=1))
    3 files differ
      a.nc
      ... and 2 more
    """
    lines = list(details)
    left = len(lines) - most
    shown = [*lines[:most], f"... and {left} more"] if left > 0 else lines
    return "\n  ".join([text, *shown])


@public
class VirtualdsError(Exception):
    """The base class of the errors of virtualds; messages show no secrets of urls.

    ``str(error)`` is what a terminal shows: the remedy has a line of its own. Within another text,
    as in ``f"{error}"``, the message keeps to one line.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_secrets(a) if isinstance(a, str) else a for a in args))

    def __str__(self) -> str:
        return lay_out(super().__str__())

    def __format__(self, spec: str, /) -> str:
        return format(super().__str__(), spec)

    def locate(self, location: str, url: str = "") -> None:
        """Prepend the location of the error, and its file, to a message that does not name it.

        Examples
        --------
        >>> error = FormatError("a.nc: its chunks overlap")
        >>> error.locate("variable 't'", "a.nc")
        >>> print(error)
        variable 't' of a.nc: its chunks overlap
        """
        text, location, url = f"{self}", without_secrets(location), without_secrets(url)
        if not re.search(rf"{re.escape(location)}(?![\w/])", text):
            where = f"{location} of {url}" if url else location
            self.args = (f"{where}: {text.removeprefix(f'{url}: ')}", *self.args[1:])

    def locate_file(self, url: str) -> None:
        """Prepend the file to a message that does not name it.

        Examples
        --------
        >>> error = FormatError("its header is odd")
        >>> error.locate_file("file:///a.nc")
        >>> print(error)
        file:///a.nc: its header is odd
        """
        if without_secrets(url) not in f"{self}":
            self.locate(url)

    def add_note(self, note: str, /) -> None:
        """Add a line about where the error happened."""
        super().add_note(without_secrets(note))


@contextmanager
def locating(location: str, url: str = "") -> Iterator[None]:
    """Prepend the location of errors in the block, and its file, to messages without it."""
    try:
        yield
    except VirtualdsError as error:
        error.locate(location, url)
        raise


@public
class UnsupportedError(VirtualdsError, NotImplementedError):
    """The source contains something that virtualds cannot read, or that the target cannot store."""


@public
class CombineError(VirtualdsError, ValueError):
    """The arrays do not belong together and cannot be combined."""


@public
class FormatError(VirtualdsError, ValueError):
    """A file is not in a known format, or it is damaged."""


@public
class ReadError(VirtualdsError, OSError):
    """Referenced bytes are missing, have changed, or do not decode."""


@public
class AccessError(VirtualdsError, PermissionError):
    """A reference points to a url that its reference set may not read."""


@public
class AccessWarning(UserWarning):
    """A remote set will refer to files that its readers may not be allowed to read."""


@public
class ConflictError(VirtualdsError, RuntimeError):
    """Another writer came first: the object has changed since it was read."""


@public
class CombineWarning(UserWarning):
    """Files combine, but values are repeated along a dimension that only some files have.

    Or the coordinates of two grids are merged. xarray does both without a warning.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("ignore", CombineWarning)
    """


@public
class CopyWarning(UserWarning):
    """Many virtual or lazy values are loaded, and would be copied to a set.

    An index or a cast of a virtual array loads them, or the writer of a dataset that another engine
    of xarray reads when it is needed, or that dask computes.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("ignore", CopyWarning)
    """


OWN_PACKAGES = ("virtualds", "xarray")
"""Packages whose lines warnings do not point to, since they are not the user's code."""


def warn_user(text: str, kind: type[Warning] = UserWarning) -> None:
    """Warn, and point to the line that called this package."""
    level, frame = 2, sys._getframe(1).f_back
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in OWN_PACKAGES:
        level, frame = level + 1, frame.f_back
    warnings.warn(without_secrets(text), kind, stacklevel=level + 1)


LIBRARY_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    TypeError,
)
"""Errors that other libraries raise unintentionally for damaged bytes."""


LOAD_OR_LEAVE_OUT = (
    "load these variables before writing (ds.virtual.load()), or leave them out (ds.drop_vars)"
)
"""The remedy for a dataset with variables that a format cannot store."""


def make_unsupported_error(
    url: str, format_name: str, problems: list[str], remedy: str
) -> UnsupportedError:
    """Return the error that lists the properties that a format cannot store.

    ``remedy`` is for encodings; other properties state a remedy of their own.
    """
    parts = [lay_out(problem).partition("\n") for problem in problems]
    own = dict.fromkeys(todo for _, _, todo in parts)
    if "" not in own:
        remedy = "each line says what to do" if len(own) > 1 else next(iter(own))
        problems = problems if len(own) > 1 else [what for what, _, _ in parts]
    count = f"{len(problems)} properties" if len(problems) > 1 else "a property"
    message = f"{url}: {format_name} cannot hold {count} of this dataset; {remedy}"
    return UnsupportedError(format_details(message, problems))


def make_exists_error(url: str, remedy: str = "remove it, if it is no set") -> FileExistsError:
    """Return the error for a new set whose url exists already; it says what to do."""
    message = (
        f"{without_secrets(url)}: exists already; to replace a reference set, pass mode='w'; "
        f"to append to it, pass append_dim= (virtualds append); or {remedy}"
    )
    return FileExistsError(lay_out(message))
