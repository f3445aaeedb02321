"""Choosing the variables that a virtual dataset loads immediately."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.bounds import demand_values
from virtualds.codecs.cf_time import may_be_finer
from virtualds.datasets.keywords import format_suggestion, names_of
from virtualds.datasets.lazy import get_virtual_array
from virtualds.errors import VirtualdsError
from virtualds.formats.undecodable import UndecodableError, blame_variable
from virtualds.options import get_options

PATTERN = frozenset("*?[")
"""Characters that make a name a pattern."""

Loadable = None | str | Iterable[str] | Callable[[str, xr.Variable], bool]
"""Variables to load: names or glob patterns, a predicate, or None for the default."""


class OptionalNames(tuple[str, ...]):
    """Names and patterns of variables to load, of which files need not have any."""

    # it prints as a tuple, so that a cache keeps what it holds of the same names
    __slots__ = ()


def count_bytes_in_files(array: ManifestArray) -> int:
    """Return how many bytes of files an array takes, as far as sizes are known."""
    total = 0
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        total += sum(map(len, manifest.inline))
        for number in np.unique(manifest.file[manifest.file >= 0]):
            wanted = int(manifest.length[manifest.file == number].sum())
            size = manifest.files[number].size
            total += wanted if size is None else min(wanted, size)
    return total


def read_ahead(group: ManifestGroup) -> ManifestGroup:
    """Read variables that are always loaded once: decoding dates would read them again.

    Raises
    ------
    UndecodableError
        A variable is too large to load.
    """
    read: dict[str, ManifestVariable] = {}
    problems: dict[str, VirtualdsError] = {}
    for name, array in find_loaded_first(group).items():
        try:
            with blame_variable(name):
                demand_values(array.nbytes, f"variable {name!r}")
                read[name] = replace(group.variables[name], data=array.read())
        except UndecodableError as error:
            problems |= error.problems
    if problems:
        raise UndecodableError(problems)
    return replace(group, variables={**group.variables, **read})


def find_loaded_first(group: ManifestGroup) -> dict[str, ManifestArray]:
    """Return arrays that are loaded by default, of any type and size."""
    return {
        name: v.data
        for name, v in group.variables.items()
        if isinstance(v.data, ManifestArray)
        and v.dims in ((), (name,))
        and name not in group.problems
    }


def make_chooser(
    loadable: Loadable, coordinates: set[Hashable]
) -> Callable[[str, xr.Variable], bool]:
    """Return a function that decides whether a variable is loaded.

    The default depends on the structure only, so it is the same for every file of an archive.
    """
    if loadable is None:
        limit = get_options().small_variable
        return lambda name, v: (
            v.dims == (name,) or not v.dims or (name in coordinates and v.nbytes <= limit)
        )
    if callable(loadable):
        return loadable
    patterns = [loadable] if isinstance(loadable, str) else list(loadable)
    return lambda name, v: any(fnmatchcase(name, pattern) for pattern in patterns)


def demand_variables(
    loadable: Loadable, known: Iterable[Hashable], dropped: Collection[str], where: str
) -> None:
    """Refuse names of variables to load that are not among those that there are.

    Patterns and predicates may match none; ``dropped`` and optional names need no variable either.

    Raises
    ------
    ValueError
        The message names all variables that there are.
    """
    if loadable is None or callable(loadable) or isinstance(loadable, OptionalNames):
        return
    there = sorted(map(str, known))
    for name in names_of("loadable_variables", loadable):
        if name not in (*there, *dropped) and not is_pattern(name):
            raise ValueError(
                f"loadable_variables {name!r}: there is no such variable in {where}, but "
                f"{', '.join(there) or 'none'}{format_suggestion(name, there)}"
            )


def is_pattern(name: str) -> bool:
    """Say whether a name stands for all variables that match it."""
    return not PATTERN.isdisjoint(name)


def make_optional(loadable: Loadable) -> Loadable:
    """Return names that files need not have.

    Examples
    --------
    >>> make_optional(["t2m", "lat*"])
    ('t2m', 'lat*')
    """
    if loadable is None or callable(loadable):
        return loadable
    return OptionalNames(names_of("loadable_variables", loadable))


def needs_loading(stored: ManifestVariable, decoded: xr.Variable) -> bool:
    """Say whether a variable cannot stay virtual, and is small enough to load."""
    if not isinstance(stored.data, ManifestArray):
        return False
    return decodes_as_a_whole(stored, decoded) and decoded.nbytes <= get_options().load_limit


def decodes_as_a_whole(stored: ManifestVariable, decoded: xr.Variable) -> bool:
    """Say whether xarray needs all values of a variable to decode it.

    Characters become strings, and dates objects; a duration may need a finer unit than its
    attribute ``dtype`` says, and booleans cannot hold missing values.
    """
    if decoded.dims != stored.dims or decoded.dtype.kind == "O":
        return True
    if decoded.dtype.kind == "m" and may_be_finer(stored.attributes, stored.data.dtype):
        return True
    numeric = {"_FillValue", "missing_value", "scale_factor", "add_offset"}
    used = stored.attributes.keys() - decoded.attrs.keys()
    return decoded.dtype.kind == "b" and not numeric.isdisjoint(used)


def is_in_memory(variable: xr.Variable) -> bool:
    """Say whether the values of a variable are in memory."""
    return get_virtual_array(variable) is None
