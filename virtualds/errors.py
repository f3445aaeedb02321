"""Error classes, warnings, and functions that format messages.

::

    VirtualdsError
    ├── UnsupportedError(NotImplementedError)  the source or the target cannot express it
    ├── CombineError(ValueError)               these arrays do not belong together
    ├── FormatError(ValueError)                not a valid source or reference file
    ├── ReadError(OSError)                     bytes missing, changed or undecodable
    ├── AccessError(PermissionError)           a reference points where it may not
    └── ConflictError(RuntimeError)            another writer came first
    CombineWarning(UserWarning)                these files combine, but they differ
    CopyWarning(UserWarning)                   values are loaded, and a set would copy them
    AccessWarning(UserWarning)                 whoever opens this set will get an AccessError

Every message has the form *where: what happened; what to do*. Terminals show the remedy on a second
line, and details below. Callers that know the file or the variable prepend it with ``locate``, or
add a line with ``add_note``. The message is a single string, which `format_message` splits at the
semicolon: with a separate argument for the remedy, the ``raise`` statements would take hundreds of
lines more.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Class = TypeVar("Class", bound=type)


def public(cls: Class) -> Class:
    """Show a class in pickles, reprs and messages as a member of the package ``virtualds``.

    Examples
    --------
    >>> @public
    ... class Grid: ...
    >>> Grid
    <class 'virtualds.Grid'>
    """
    cls.__module__ = "virtualds"
    return cls


# ---------------------------------------------------------------------- quantities

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
"""Units by powers of 1000, as in xarray."""


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
    # a value that is rounded to 1000.0 gets the next unit
    while round(value, 1) >= 1000 and power < len(UNITS) - 1:
        value, power = value / 1000, power + 1
    return f"{value:,.1f} {UNITS[power]}"


def format_count(count: int, noun: str) -> str:
    """Format a number with its noun.

    Examples
    --------
    >>> format_count(1, "file"), format_count(12000, "file")
    ('1 file', '12,000 files')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_names(names: Iterable[str], max_count: int, rest: str = "more") -> str:
    """Format at most ``max_count`` names, and the number of the others.

    Examples
    --------
    >>> format_names(["t", "u"], 2), format_names(["t", "u", "v", "w"], 2)
    ('t, u', 't, u and 2 more')
    """
    names = list(names)
    omitted = len(names) - max_count
    suffix = f" and {omitted:,} {rest}" if omitted > 0 else ""
    return ", ".join(names[:max_count]) + suffix


# ---------------------------------------------------------------------- errors

SIGNATURES = re.compile(
    r"(?i)([?&;](?:[a-z0-9_.-]*(?:signature|token|secret|credential|password)"
    r"|awsaccesskeyid|(?:api|access|subscription)[_-]?key|sig|auth|jwt)=)[^&#\s'\"<>)\]]+"
)
"""Query parameters that grant access; the group holds the name without the value."""

PASSWORDS = re.compile(r"(://[^/?#\s:@'\"]*:)[^/?#\s@'\"]+(?=@)")
"""Passwords before the host of a url (RFC 3986, section 3.2.1); the group precedes the password."""


def without_secrets(text: str) -> str:
    """Replace the signatures, tokens and passwords of urls in a text by ``...``.

    Examples
    --------
    >>> without_secrets("https://example.org/a.nc?token=abc&n=1: it is gone")
    'https://example.org/a.nc?token=...&n=1: it is gone'
    >>> without_secrets("ftp://me:hunter2@example.org/a.nc")
    'ftp://me:...@example.org/a.nc'
    """
    return PASSWORDS.sub(r"\1...", SIGNATURES.sub(r"\1...", text))


OPENING_BRACKETS, CLOSING_BRACKETS = "([{", ")]}"
QUOTED = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")(?!\w)""")
"""Names and values as formatted by ``repr``."""
MAX_DETAILS = 10
"""Maximum number of lines of details in a message."""


def format_message(text: str) -> str:
    """Return a message with the remedy on a line of its own, before the details.

    The remedy follows the first semicolon that is not in a file name, in quotes or in brackets,
    which may contain another message.

    Examples
    --------
    >>> print(format_message("data/a; b.nc: 'x; y' ends too early (cut; short); fetch it again"))
    data/a; b.nc: 'x; y' ends too early (cut; short)
    fetch it again
    """
    line, *details = text.split("\n", 1)
    end = _find_semicolon(line)
    return "\n".join([line if end is None else f"{line[:end]}\n{line[end + 2 :]}", *details])


def _find_semicolon(line: str) -> int | None:
    """Return the index of the semicolon before the remedy, or None if there is no remedy."""
    location, colon, _ = line.partition(": ")
    start = len(location) if colon and "/" in location else 0
    unquoted = QUOTED.sub(lambda quoted: "'" * len(quoted[0]), line)
    depth = 0
    for index in range(start, len(line)):
        depth += (unquoted[index] in OPENING_BRACKETS) - (unquoted[index] in CLOSING_BRACKETS)
        if depth <= 0 and unquoted.startswith("; ", index):
            return index
    return None


def format_details(text: str, details: Iterable[str], max_count: int = MAX_DETAILS) -> str:
    """Return a message with at most ``max_count`` details below, and the number of the others.

    Examples
    --------
    >>> print(format_details("3 files differ", ["a.nc", "b.nc", "c.nc"], max_count=1))
    3 files differ
      a.nc
      ... and 2 more
    """
    lines = list(details)
    omitted = len(lines) - max_count
    if omitted > 0:
        lines = [*lines[:max_count], f"... and {omitted} more"]
    return "\n  ".join([text, *lines])


@public
class VirtualdsError(Exception):
    """The base class of the errors of virtualds. Messages do not show secrets of urls.

    ``str(error)``, for terminals, has the remedy on a second line. ``f"{error}"``, for use within
    another message, is one line.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_secrets(a) if isinstance(a, str) else a for a in args))

    def __str__(self) -> str:
        return format_message(super().__str__())

    def __format__(self, spec: str, /) -> str:
        return format(super().__str__(), spec)

    def locate(self, location: str, url: str = "") -> None:
        """Prepend the location and the file of the error, unless the message names the location.

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
        """Prepend the url of the file, unless the message contains it.

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
        """Add a note without secrets."""
        super().add_note(without_secrets(note))


@contextmanager
def locating(location: str, url: str = "") -> Iterator[None]:
    """Add the location and the file to errors that are raised in the block; see `locate`."""
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
    """Another writer has changed the object since it was read."""


@public
class CombineWarning(UserWarning):
    """Combining repeats values along a dimension that some files lack, or merges two grids.

    xarray does both without a warning.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("ignore", CombineWarning)
    """


@public
class CopyWarning(UserWarning):
    """Many values were loaded, which writing a set would copy.

    Values are loaded by indexing or casting a virtual array, and by writing a dataset whose values
    another engine of xarray or dask provides.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("ignore", CopyWarning)
    """


LIBRARY_PACKAGES = ("virtualds", "xarray")
"""Packages that are not the user's code, so that warnings should not point to them."""


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the line of the user's code."""
    level, frame = 2, sys._getframe(1).f_back
    while (
        frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in LIBRARY_PACKAGES
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(without_secrets(text), category, stacklevel=level + 1)


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
"""Errors that other libraries may raise for damaged bytes."""


LOAD_OR_LEAVE_OUT = (
    "load these variables before writing (ds.virtual.load()), or leave them out (ds.drop_vars)"
)
"""The remedy for variables that a format cannot store."""


def make_unsupported_error(
    url: str, format_name: str, problems: list[str], remedy: str
) -> UnsupportedError:
    """Return an error that lists the properties of a dataset that a format cannot store.

    ``remedy`` is used if a problem has none.
    """
    parts = [format_message(problem).partition("\n") for problem in problems]
    remedies = dict.fromkeys(remedy for _, _, remedy in parts)
    if "" not in remedies and len(remedies) > 1:
        remedy = "each line says what to do"
    elif "" not in remedies:
        [remedy] = remedies
        problems = [problem for problem, _, _ in parts]
    count = f"{len(problems)} properties" if len(problems) > 1 else "a property"
    message = f"{url}: {format_name} cannot hold {count} of this dataset; {remedy}"
    return UnsupportedError(format_details(message, problems))


def make_damage_error(problem: str, kind: str = "file") -> FormatError:
    """Return the error for a damaged ``kind``; ``problem`` names the contradiction and the place.

    Files and sidecars come from elsewhere, sets are written by their users, metadata may be either.
    """
    verb = {"set": "write", "metadata": "fetch or write"}.get(kind, "fetch")
    return FormatError(f"{problem}; the {kind} is damaged, {verb} it again")


def make_exists_error(url: str, remedy: str = "remove it, if it is not a set") -> FileExistsError:
    """Return the error for a new set at a url that already exists."""
    message = (
        f"{without_secrets(url)}: exists already; to replace a reference set, pass mode='w'; "
        f"to append to it, pass append_dim= (virtualds append); or {remedy}"
    )
    return FileExistsError(format_message(message))
