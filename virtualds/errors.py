"""The error classes.

::

    VirtualdsError
    ├── UnsupportedError(NotImplementedError)  the source or the target cannot express it
    ├── CombineError(ValueError)               these arrays do not belong together
    ├── FormatError(ValueError)                not, or not a sound, source or reference file
    ├── ReadError(OSError)                     bytes missing, changed or undecodable
    ├── AccessError(PermissionError)           a reference points where it may not
    └── ConflictError(RuntimeError)            another writer was faster

Every message reads *where: what was found; what to do*. Callers that know the file or the
variable add it with ``add_note``.
"""

import re

from virtualds.public import public

SIGNATURES = re.compile(
    r"(?i)([?&;](?:[a-z0-9_.-]*(?:signature|token|secret|credential|password)"
    r"|awsaccesskeyid|(?:api|access|subscription)[_-]?key|sig|auth|jwt)=)[^&#\s'\"<>)\]]+"
)
"""Query parameters that grant access; the group is the name, the rest the value."""

PASSWORDS = re.compile(r"(://[^/?#\s:@'\"]*:)[^/?#\s@'\"]+(?=@)")
"""Passwords before the host of a url (RFC 3986, section 3.2.1); the group is what comes before."""


def without_secrets(text: str) -> str:
    """Return a text with the signatures, tokens and passwords of its urls left out.

    Examples
    --------
    >>> without_secrets("https://example.org/a.nc?token=abc&n=1: it is gone")
    'https://example.org/a.nc?token=...&n=1: it is gone'
    >>> without_secrets("ftp://me:hunter2@example.org/a.nc")
    'ftp://me:...@example.org/a.nc'
    """
    return PASSWORDS.sub(r"\1...", SIGNATURES.sub(r"\1...", text))


@public
class VirtualdsError(Exception):
    """The base class of the errors of virtualds; messages show no secrets of urls."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_secrets(a) if isinstance(a, str) else a for a in args))

    def add_note(self, note: str, /) -> None:
        """Add a line that says where the error happened."""
        super().add_note(without_secrets(note))


@public
class UnsupportedError(VirtualdsError, NotImplementedError):
    """The source holds something that virtualds cannot read, or that the target cannot hold."""


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
class ConflictError(VirtualdsError, RuntimeError):
    """Another writer was faster: the object has changed since it was read."""


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
"""Errors that other libraries raise for damaged bytes without meaning to."""


def cannot_hold(url: str, form: str, problems: list[str], remedy: str) -> UnsupportedError:
    """Return the error that lists the properties that a format cannot hold."""
    listed = "\n".join(f"  {problem}" for problem in problems)
    return UnsupportedError(
        f"{url}: {form} cannot hold {len(problems)} properties of this dataset:\n{listed}\n{remedy}"
    )


def exists_already(url: str, remedy: str = "remove anything else") -> FileExistsError:
    """Return the error for a new set whose url exists already; it says what to do."""
    return FileExistsError(
        f"{without_secrets(url)}: exists already; to replace a reference set, pass mode='w' "
        f"(--mode w); to append to it, pass append_dim= (virtualds append); or {remedy}"
    )
