"""What can go wrong, as a tree of types.

::

    VirtualdsError
    ├── UnsupportedError(NotImplementedError)  the source or the target cannot express it
    ├── CombineError(ValueError)               these arrays do not belong together
    ├── FormatError(ValueError)                not, or not a sound, source or reference file
    ├── ReadError(OSError)                     bytes missing, changed or undecodable
    ├── AccessError(PermissionError)           a reference points where it may not
    └── ConflictError(RuntimeError)            another writer was faster

Every message reads *where: what was found; what to do*. Whoever knows the file or the variable
adds it with ``add_note`` on the way up.
"""

import re

SIGNATURES = re.compile(
    r"(?i)([?&;](?:[a-z0-9_.-]*(?:signature|token|secret|credential|password)"
    r"|awsaccesskeyid|(?:api|access|subscription)[_-]?key|sig|auth|jwt)=)[^&#\s'\"<>)\]]+"
)
"""Parts of a query that let whoever has them in, and what belongs to them."""
PASSWORDS = re.compile(r"(://[^/?#\s:@'\"]*:)[^/?#\s@'\"]+(?=@)")
"""Passwords before the host of a url (RFC 3986, section 3.2.1), and what comes before them."""


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


class VirtualdsError(Exception):
    """The root of all errors that virtualds raises itself; none shows a secret of a url."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_secrets(a) if isinstance(a, str) else a for a in args))

    def add_note(self, note: str, /) -> None:
        """Add a line that says where."""
        super().add_note(without_secrets(note))


class UnsupportedError(VirtualdsError, NotImplementedError):
    """The source holds, or the target would have to hold, something it cannot express."""


class CombineError(VirtualdsError, ValueError):
    """Arrays that do not belong together were asked to become one."""


class FormatError(VirtualdsError, ValueError):
    """A file is not in a known format, or it is damaged."""


class ReadError(VirtualdsError, OSError):
    """Referenced bytes cannot be had, have changed, or do not decode."""


class AccessError(VirtualdsError, PermissionError):
    """A reference points to a place that this set of references may not read."""


class ConflictError(VirtualdsError, RuntimeError):
    """Another writer was faster: what was to be replaced is no longer what was read."""


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
"""What somebody else's code may raise about damaged bytes, beside what well-kept code does."""


def cannot_hold(url: str, form: str, problems: list[str], remedy: str) -> UnsupportedError:
    """Return an error that names everything that does not fit; nothing has been written."""
    listed = "\n".join(f"  {problem}" for problem in problems)
    return UnsupportedError(
        f"{url}: {form} cannot hold {len(problems)} properties of this dataset:\n{listed}\n{remedy}"
    )


def exists_already(url: str, remedy: str = "remove anything else") -> FileExistsError:
    """Return the error that says that a set is not created where something is, and the ways on."""
    return FileExistsError(
        f"{without_secrets(url)}: exists already; to replace a reference set, pass mode='w' "
        f"(--mode w); to append to it, pass append_dim= (virtualds append); or {remedy}"
    )
