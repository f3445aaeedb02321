"""Handle variables that cannot be read or decoded, as ``on_error`` requires.

A reader adds a variable that it cannot read to the problems of the group. xarray decodes the
variables of a group together, and fails if it cannot decode one of them; such variables are found
here and added to the problems as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, name_axes
from virtualds.bounds import MAX_AXES
from virtualds.chunks.axes import MAX_AXIS_LENGTH
from virtualds.errors import (
    FormatError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
    format_details,
    warn_user,
    without_secrets,
)
from virtualds.json_values import is_shape

DECODING_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of xarray and cftime for invalid attributes and values."""

Made = TypeVar("Made")
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
    """Return a variable of a set, or after an error an unreadable one, and add it to ``problems``.

    ``path`` and ``root`` name the variable and the set in errors. ``shape`` and ``names`` of the
    axes are from metadata, which may be invalid.
    """
    try:
        return read()
    except (VirtualdsError, *MALFORMED_ERRORS) as error:
        problem = error if isinstance(error, VirtualdsError) else malformed_error(root, error)
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
    """Add the name of a variable to errors in the block."""
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
    group: ManifestGroup, decode: Callable[[ManifestGroup], Made]
) -> Made:
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
    decode: Callable[[ManifestGroup], Made],
    location: str = "it",
) -> Made:
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
        # every iteration removes at least one variable
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


def unreachable_error(url: str, error: OSError) -> ReadError:
    """Return the error for a referenced file that cannot be read."""
    return ReadError(f"{url}: it is referred to, but cannot be read ({error}); restore the file")


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
        raise malformed_error(url, error) from error


def malformed_error(url: str, error: Exception) -> FormatError:
    """Return the error for a set that does not follow its specification."""
    return FormatError(
        f"{url}: its metadata or references are not of the form that the specification "
        f"lays down ({type(error).__name__}: {error}); the set is damaged, write it again"
    )
