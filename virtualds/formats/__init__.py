"""The interface of reference formats, their results, and variables that cannot be read.

A reader adds a variable that it cannot read to the problems of the group. xarray decodes the
variables of a group together, and fails if it cannot decode one of them; such variables are found
here and added to the problems as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, name_axes
from virtualds.bounds import MAX_AXES
from virtualds.chunks.axes import MAX_AXIS_LENGTH
from virtualds.chunks.columns import ReferenceTable
from virtualds.errors import (
    FormatError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
    format_details,
    make_damage_error,
    public,
    warn_user,
    without_secrets,
)
from virtualds.json_values import is_shape
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import DEFAULT_POLICY, AccessPolicy
from virtualds.stores.fence import explain_vanished_files
from virtualds.stores.store import ListedFile

if TYPE_CHECKING:
    import pandas as pd


GRACE = timedelta(days=1)
"""The age up to which files of no snapshot are kept, since a writer may still commit them."""


@dataclass(frozen=True)
class Expiry:
    """The snapshots of a set to remove: those that are ``older_than`` an age, except the newest.

    The newest ``keep`` snapshots, at least 1, are never removed. Files that belong to no snapshot
    are removed if they are older than ``grace``. A ``dry_run`` only lists what would be removed.
    """

    keep: int
    older_than: timedelta | None = None
    grace: timedelta = GRACE
    dry_run: bool = False


@public
@dataclass(frozen=True)
class Removal:
    """The snapshots and files that were removed from a set, or would be removed.

    Parameters
    ----------
    snapshots : list of str
        Ids of snapshots, the oldest first.
    files : list of str
        Urls of files.
    nbytes : int
        The total size of the files in bytes.

    Examples
    --------
    >>> Removal(["20260101T000000000000-00000000"], [], 0)
    Removal of 1 snapshot and 0 files of 0 bytes
    """

    snapshots: list[str]
    files: list[str]
    nbytes: int

    @classmethod
    def of(cls, snapshots: list[str], listed: Sequence[ListedFile]) -> Removal:
        """Return the removal of files that a store has listed."""
        files = [entry.file for entry in listed]
        return cls(snapshots, [f.url for f in files], sum(f.size or 0 for f in files))

    def __repr__(self) -> str:
        plural = "" if len(self.snapshots) == 1 else "s"
        return (
            f"Removal of {len(self.snapshots)} snapshot{plural} and {len(self.files)} files of "
            f"{self.nbytes} bytes"
        )


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a group of a reference set.

    Parameters
    ----------
    group : str, optional
        Path of a group; the root group by default.
    skip : set of str
        Names of variables to leave out.
    allow : AccessPolicy
        The policy that says where the files of the set may be.
    snapshot : str, optional
        An earlier snapshot, for formats that have snapshots; by default the newest. Its name
        depends on the format.
    """

    group: str | None = None
    skip: frozenset[str] = frozenset()
    allow: AccessPolicy = DEFAULT_POLICY
    snapshot: str | None = None


READ_ALL = ReadOptions()
"""The options for reading all of the newest snapshot."""


class SetVersion(Protocol):
    """A version of a set that a writer has read and wants to change.

    Each format has its own class, with the data by which the next version can refer to unchanged
    parts: a parsed document, names and tokens of files.
    """

    @property
    def group(self) -> ManifestGroup:
        """The whole set; in a changed group, unchanged parts are the same objects or rows."""

    def is_current(self) -> bool:
        """Return whether the set still has this version."""


class Parts(NamedTuple):
    """The functions with which several processes write one set together.

    One process begins, all write, and one commits. ``begin`` takes the url, access options and
    whether to replace a set, and returns the location of the parts, which can be pickled.
    ``write`` takes arrays and the location, and returns arrays that refer to tables written there.
    ``commit`` takes a group of such arrays and the location, and creates the set; ``abandon`` takes
    the location, and removes its files. ``holds`` takes a table of references and the location, and
    returns whether the table is in that set.
    """

    begin: Callable[..., Any]
    write: Callable[[Mapping[Any, ManifestArray], Any], dict[Any, ManifestArray]]
    commit: Callable[..., None]
    abandon: Callable[[Any], None]
    holds: Callable[[ReferenceTable, Any], bool]


@dataclass(frozen=True)
class Format:
    """A reference format, with functions that read and commit sets.

    Every change of a set is a function from group to group, written once above the formats:
    `change_set` reads a version (``read_version``), calls the function, and commits the new group
    onto that version (``write`` with ``base``). The format compares the group with that version,
    and writes only the differences.

    Parameters
    ----------
    name : str
    suffixes : tuple of str
        Suffixes of file names that select the format for writing.
    detect : callable
        Takes the first bytes of a file, and returns whether it is of this format.
    read : callable
        Takes the file of a set and `ReadOptions`. Returns a group, as lazy as possible.
    write : callable
        Takes a group, the url of a set and its access options, and by keyword ``replace``, ``base``
        and choices. Commits the group: all of it, or nothing. Without ``base``, it creates a set,
        or replaces an existing set if ``replace`` is true; otherwise it raises `FileExistsError`.
        With ``base``, a result of ``read_version``, it creates the next version of that set: it
        writes the new parts of the group, and refers to parts that are already in the set. If the
        set no longer has that version, it raises `ConflictError` and changes nothing. Choices
        default to those of ``base``.
    read_version : callable
        Takes the url of a set, its access options, and where its files may be. Returns its newest
        `SetVersion`, as the base of a change; raises `FileNotFoundError` if there is no set.
    compact : callable, optional
        Takes a version, and returns the choices with which ``write`` stores the same references in
        fewer files, or None if there is nothing to join.
    markers : tuple of str
        For a format whose sets are folders: files that mark a folder as a set. ``detect`` takes the
        whole file.
    first_written : tuple of str
        For such a format: folders in a set that a writer may create before it writes a marker.
    choices : tuple of str
        Keyword arguments of ``write`` besides those of every format.
    version_choices : tuple of str
        The choices that ``read_version`` also takes, to select the version.
    parts : Parts, optional
        For a format that several processes can write together.
    history : callable, optional
        For a format with snapshots: takes url and access options, and returns the ids and times of
        all snapshots, the newest last.
    expire : callable, optional
        For such a format: takes url, access options and an `Expiry`, and returns a `Removal`.
    library : str, optional
        The optional dependency that reads and writes the format, if any.
    read_object : callable, optional
        Takes an object of that library, `ReadOptions`, and the access options of files. Returns a
        group.
    to_dict : callable, optional
        For a format that is one JSON document: takes a group and the choices, and returns the
        document.
    holds : callable, optional
        Returns whether a new set would overwrite something; by default, whether there is a set at
        the url.
    has_rewritten_chunks : bool
        Whether a set may refer to rewritten chunks, which are in no source file.
    is_set : callable, optional
        For a format whose sets are files that a parser reads: takes the parser that recognises a
        file, and the file, and returns whether it is a set. ``detect`` is false then.
    obstacles : callable, optional
        For a format that cannot store every array: takes a virtual variable and the choices, and
        returns the reasons why it cannot store the variable.
    """

    name: str
    suffixes: tuple[str, ...]
    detect: Callable[[bytes], bool]
    read: Callable[..., ManifestGroup]
    write: Callable[..., None]
    read_version: Callable[..., SetVersion]
    compact: Callable[[Any], dict[str, Any] | None] | None = None
    markers: tuple[str, ...] = ()
    first_written: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    version_choices: tuple[str, ...] = ()
    history: Callable[[str, StorageOptions | None], list[tuple[str, str]]] | None = None
    expire: Callable[[str, StorageOptions | None, Expiry], Removal] | None = None
    parts: Parts | None = None
    library: str | None = None
    read_object: Callable[..., ManifestGroup] | None = None
    holds: Callable[..., bool] | None = None
    to_dict: Callable[..., dict[str, Any]] | None = None
    obstacles: Callable[..., list[str]] | None = None
    has_rewritten_chunks: bool = True
    is_set: Callable[..., bool] | None = None

    @property
    def has_staging_folder(self) -> bool:
        """Whether the format can move the chunks in a folder, given by its url, into a set."""
        return "staging_folder" in self.version_choices

    def list_snapshots(self, url: str, options: StorageOptions | None) -> pd.DataFrame:
        """Return a table with one row per snapshot of a set; empty if the format has none."""
        import pandas as pd

        rows = [] if self.history is None else self.history(url, options)
        table = pd.DataFrame(rows, columns=["snapshot", "time"])
        return table.assign(time=pd.to_datetime(table["time"]).dt.tz_localize(None))

    def expire_snapshots(self, url: str, options: StorageOptions | None, expiry: Expiry) -> Removal:
        """Remove snapshots and files that belong to none, and return what was removed."""
        return Removal([], [], 0) if self.expire is None else self.expire(url, options, expiry)


def change_set(
    format_: Format,
    url: str,
    change: Callable[[ManifestGroup], ManifestGroup],
    options: StorageOptions | None = None,
    allow: AccessPolicy = DEFAULT_POLICY,
    **choices: Any,
) -> None:
    """Change a set; raise `ConflictError` if another writer was faster.

    ``change`` takes the whole set and returns the new one; if it returns the same object, nothing
    is written. ``allow`` says where the files of the set may be. Choices of the format that are not
    given remain as before.
    """
    version_choices = {name: choices[name] for name in format_.version_choices if name in choices}
    base = format_.read_version(url, options, allow, **version_choices)
    # the set is read on demand, so another writer may remove files that are still needed
    with explain_vanished_files(base.is_current, url):
        after = change(base.group)
    if after is not base.group:
        format_.write(after, url, options, base=base, **choices)


def is_never_recognised(head: bytes) -> bool:
    """Return False, for formats whose sets ``is_set`` recognises, not their first bytes."""
    return False


def replaces_by(mode: str) -> bool:
    """Return whether a write mode replaces an existing set."""
    if mode not in ("w-", "w"):
        raise ValueError(f"mode={mode!r}: give 'w-' (create) or 'w' (create or replace)")
    return mode == "w"


# ---------------------------------------------------------------------- unreadable variables

DECODING_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of xarray and cftime for invalid attributes and values."""

Decoded = TypeVar("Decoded")
Problems = Mapping[str, VirtualdsError]


# ---------------------------------------------------------------------- on_error


def _raise(group: ManifestGroup, problems: Problems) -> ManifestGroup:
    """Raise the first problem, with notes on the others."""
    first, *others = problems.values()
    if others:
        first.add_note(format_details("and also:", (f"{error}" for error in others)))
    raise first


def _skip(group: ManifestGroup, problems: Problems) -> ManifestGroup:
    """Return a group without the variables that have problems."""
    subgroups = {name: _skip(child, problems) for name, child in group.groups.items()}
    return replace(group.leave_out(group.problems), groups=subgroups)


ON_ERROR: dict[str, Callable[[ManifestGroup, Problems], ManifestGroup]] = {
    "raise": _raise,
    "skip": _skip,
    "keep": lambda group, problems: group,
}
"""The functions that handle a group with problems, by ``on_error``."""


def apply_on_error(
    group: ManifestGroup, problems: Problems, on_error: str, location: str
) -> ManifestGroup:
    """Handle the problems of a group as ``on_error`` requires, and return the group.

    Variables with problems raise an error when they are read. ``problems`` are those of the group
    and its subgroups. ``"raise"`` raises the first, with notes on the others; other values of
    ``on_error`` warn once, with a list of all problems.
    """
    handled = ON_ERROR[on_error](group, problems)
    location = without_secrets(location)
    details = (
        f"{name}: " + f"{error}".removeprefix(f"variable {name!r} of {location}: ")
        for name, error in problems.items()
    )
    warn_user(format_details(f"{location}: could not be read", details))
    return handled


# ---------------------------------------------------------------------- variables of sets


def read_variable_or_problem(
    read: Callable[[], ManifestVariable],
    path: str,
    root: str,
    shape: object,
    names: object,
    problems: dict[str, VirtualdsError],
) -> ManifestVariable:
    """Return a variable of a set, or an unreadable one whose error is added to ``problems``.

    ``path`` and ``root`` name the variable and the set in errors. ``shape`` and ``names`` of the
    axes are from metadata, which may be invalid.
    """
    try:
        return read()
    except (VirtualdsError, *MALFORMED_ERRORS) as error:
        problem = error if isinstance(error, VirtualdsError) else make_malformed_error(root, error)
        if problem is not error:
            problem.__cause__ = error
    problem.locate(f"variable {path!r}", root)
    problems[path.rpartition("/")[2]] = problem
    sizes: Sequence[Any] = shape if is_shape(shape) else ()  # type: ignore[assignment]
    if len(sizes) > MAX_AXES or max(sizes, default=0) >= MAX_AXIS_LENGTH:
        sizes = ()
    array = ManifestArray.unreadable(tuple(sizes), "V1", f"{problem}")
    return ManifestVariable(_name_axes(sizes, names), array)


def _name_axes(shape: Sequence[int], names: object) -> tuple[str, ...]:
    """Return the names of axes; those without a valid name get a default."""
    if not isinstance(names, list) or len(names) != len(shape):
        names = [None] * len(shape)
    return name_axes(shape, [name if isinstance(name, str) else None for name in names])


# ---------------------------------------------------------------------- decoding


class UndecodableError(VirtualdsError):
    """Raised if variables of a group cannot be decoded; ``problems`` has the reason for each.

    Users never see it: `decode_group` handles it as ``on_error`` requires.
    """

    def __init__(self, problems: Problems) -> None:
        super().__init__("; ".join(f"{problem}" for problem in problems.values()))
        self.problems = dict(problems)


@contextmanager
def name_variable_in_errors(name: str) -> Iterator[None]:
    """Convert decoding errors in the block to `UndecodableError`, with the name of the variable."""
    try:
        yield
    except UnsupportedError as error:
        error.locate(f"variable {name!r}")
        raise UndecodableError({name: error}) from error
    except (VirtualdsError, OSError):
        raise
    except DECODING_ERRORS as error:
        problem = FormatError(
            f"variable {name!r} cannot be decoded ({_describe_error(error)}); open the file with "
            f"decode_cf=False, or leave it out with drop_variables or on_error='skip'"
        )
        problem.__cause__ = error
        raise UndecodableError({name: problem}) from error


def decode_or_find_undecodable(
    group: ManifestGroup, decode: Callable[[ManifestGroup], Decoded]
) -> Decoded:
    """Decode a group, or raise an error that lists the variables that cannot be decoded.

    After an error, each variable is decoded alone: `UndecodableError` lists those that fail. If
    none fails alone, the error is a `FormatError`.
    """
    try:
        return decode(group)
    except (VirtualdsError, OSError):
        raise
    except DECODING_ERRORS as error:
        if problems := _find_problems(group, decode):
            raise UndecodableError(problems) from error
        raise FormatError(
            f"its variables cannot be decoded together ({_describe_error(error)}); open it with "
            f"decode_cf=False"
        ) from error


def decode_group(
    group: ManifestGroup,
    on_error: str,
    decode: Callable[[ManifestGroup], Decoded],
    location: str = "it",
) -> Decoded:
    """Return the result of ``decode`` for a group, and handle undecodable variables.

    ``decode`` may raise `UndecodableError`. Depending on ``on_error``, the first problem is raised,
    or undecodable variables are left out with a warning, or they are kept with a warning and raise
    the problem when they are read.
    """
    while True:
        try:
            return decode(group)
        except UndecodableError as error:
            problems = error.problems
        # variables with problems raise them when they are read
        variables = dict(group.variables)
        for name in problems.keys() & variables.keys():
            data = variables[name].data
            unreadable = ManifestArray.unreadable(data.shape, data.dtype, str(problems[name]))
            variables[name] = replace(variables[name], data=unreadable)
        group = replace(group, variables=variables, problems={**group.problems, **problems})
        # every iteration removes or replaces at least one variable, so the loop ends
        group = apply_on_error(group, problems, on_error, location)


def _find_problems(
    group: ManifestGroup, decode: Callable[[ManifestGroup], object]
) -> dict[str, VirtualdsError]:
    """Return the error of each variable that cannot be decoded alone."""
    problems: dict[str, VirtualdsError] = {}
    for name in group.variables.keys() - group.problems.keys():
        single_variable = replace(group, groups={}, problems={}).leave_out(
            group.variables.keys() - {name}
        )
        try:
            with name_variable_in_errors(name):
                decode(single_variable)
        except UndecodableError as error:
            problems |= error.problems
        except (VirtualdsError, OSError):
            continue
    return {name: problems[name] for name in group.variables if name in problems}


def _describe_error(error: Exception) -> str:
    """Format an error in one line."""
    return f"{type(error).__name__}: {' '.join(format(error).split())[:300]}"


# ---------------------------------------------------------------------- unreadable sets


def make_unreachable_error(url: str, error: OSError) -> ReadError:
    """Return the error for a referenced file that cannot be read."""
    return ReadError(f"{url}: it is referenced, but cannot be read ({error}); restore the file")


MALFORMED_ERRORS = (
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Errors of code that expects well-formed metadata; numpy parses dtypes as Python code."""


@contextmanager
def explain_malformed(url: str) -> Iterator[None]:
    """Raise a `FormatError` in place of errors of code that expects well-formed metadata."""
    try:
        yield
    except MALFORMED_ERRORS as error:
        if isinstance(error, VirtualdsError):
            raise
        raise make_malformed_error(url, error) from error


def make_malformed_error(url: str, error: Exception) -> FormatError:
    """Return the error for a set that does not follow its specification."""
    return make_damage_error(
        f"{url}: its metadata or references do not follow the specification "
        f"({type(error).__name__}: {error})",
        "set",
    )
