"""Variables that xarray cannot decode: which these are, and what becomes of the others.

xarray decodes the variables of a group together, and one whose attributes or values cannot be
decoded ends that. Here such variables become problems of the group, about which ``on_error``
decides as about all others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from virtualds.array import ManifestArray
from virtualds.errors import FormatError, VirtualdsError
from virtualds.group import ManifestGroup

COMPLAINTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What xarray and cftime raise about attributes and values that mean nothing."""

Made = TypeVar("Made")


class UndecodableError(FormatError):
    """Variables of a group cannot be decoded; ``problems`` says which, and why."""

    def __init__(self, message: str, problems: Mapping[str, VirtualdsError] | None = None) -> None:
        super().__init__(message)
        self.problems = dict(problems or {})


@contextmanager
def complaints_about(
    group: ManifestGroup, decode: Callable[[ManifestGroup], object]
) -> Iterator[None]:
    """Tell which variables those are that something is complained of within the block.

    Parameters
    ----------
    group : ManifestGroup
        All that is decoded there.
    decode : callable
        Decodes a group: each variable is tried alone.

    Raises
    ------
    UndecodableError
        In place of what xarray raises.
    """
    try:
        yield
    except (VirtualdsError, OSError):
        raise
    except COMPLAINTS as error:
        problems = _problems(group, decode)
        if not problems:
            raise FormatError(
                f"its variables cannot be decoded together ({_told(error)}); open it with "
                f"decode_cf=False"
            ) from error
        raise _refusal(problems) from error


@contextmanager
def complaints_about_one(name: str) -> Iterator[None]:
    """Tell which variable it is that something is complained of within the block.

    Raises
    ------
    UndecodableError
        In place of what xarray raises.
    """
    try:
        yield
    except (VirtualdsError, OSError):
        raise
    except COMPLAINTS as error:
        raise _refusal({name: _problem(f"variable {name!r}", error)}) from error


def decoded(
    group: ManifestGroup, on_error: str, make: Callable[[ManifestGroup], Made], where: str
) -> Made:
    """Return what is made of a group, or of what of it can be decoded.

    Parameters
    ----------
    group : ManifestGroup
    on_error : {"raise", "skip", "keep"}
        Variables that cannot be decoded are raised, left out with a warning, or kept with a
        warning as variables that say why when their values are asked for.
    make : callable
        Raises `UndecodableError`.
    where : str
        What to call the file.
    """
    while True:
        try:
            return make(group)
        except UndecodableError as error:
            if on_error == "raise":
                raise
            listed = "\n".join(f"  {name}: {problem}" for name, problem in error.problems.items())
            warnings.warn(f"{where}: could not be decoded\n{listed}", stacklevel=5)
            # every turn takes a variable out
            group = _without(group, error.problems, keep=on_error == "keep")


def _without(
    group: ManifestGroup, problems: Mapping[str, VirtualdsError], keep: bool
) -> ManifestGroup:
    variables = dict(group.variables)
    for name in problems.keys() & variables.keys():
        stored = variables.pop(name)
        if keep:
            reason = str(problems[name])
            data = ManifestArray.unreadable(stored.data.shape, stored.data.dtype, reason)
            variables[name] = replace(stored, data=data)
    ordered = {name: variables[name] for name in group.variables if name in variables}
    refused = {**group.problems, **{n: p for n, p in problems.items() if n in ordered}}
    return replace(group, variables=ordered, problems=refused)


def _problems(
    group: ManifestGroup, decode: Callable[[ManifestGroup], object]
) -> dict[str, VirtualdsError]:
    """Return what is wrong with each variable by itself."""
    found: dict[str, VirtualdsError] = {}
    for name, variable in group.variables.items():
        if name in group.problems:
            continue
        try:
            decode(ManifestGroup({name: variable}))
        except (VirtualdsError, OSError):
            continue
        except COMPLAINTS as error:
            found[name] = _problem(f"variable {name!r}", error)
    return found


def _problem(what: str, error: Exception) -> FormatError:
    problem = FormatError(
        f"{what} cannot be decoded ({_told(error)}); open the file with decode_cf=False, or leave "
        f"it out with drop_variables or on_error='skip'"
    )
    problem.__cause__ = error
    return problem


def _refusal(problems: Mapping[str, VirtualdsError]) -> UndecodableError:
    first, *others = problems.values()
    error = UndecodableError(str(first), problems)
    for other in others:
        error.add_note(f"and also: {other}")
    return error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
