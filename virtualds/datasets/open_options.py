"""Options for opening a file or a set, and the choice of the variables to load."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.bounds import check_values, is_below_load_limit
from virtualds.chunks.manifest import gather_references
from virtualds.codecs.cf import may_be_finer
from virtualds.errors import VirtualdsError
from virtualds.formats import ON_ERROR, UndecodableError, name_variable_in_errors
from virtualds.options import check_choice, format_suggestion, get_options, to_names
from virtualds.source_file import SourceFile, scheme_of
from virtualds.stores.access_rules import Allow
from virtualds.stores.scan_cache import are_cached, cache_ranges, prefetch_ranges
from virtualds.stores.store import Range, explain_open_errors

# ---------------------------------------------------------------------- loaded variables


PATTERN_CHARACTERS = frozenset("*?[")
"""Characters that make a name a pattern."""

Loadable = None | str | Iterable[str] | Callable[[str, xr.Variable], bool]
"""Variables to load: names or glob patterns, a predicate, or None for the default."""


class OptionalNames(tuple[str, ...]):
    """Names and patterns of variables to load, which need not match any variable."""

    # prints as a tuple, so that caches treat both as the same names
    __slots__ = ()


def count_bytes_in_files(array: ManifestArray) -> int:
    """Return the number of bytes of the chunks of an array, at most the known sizes of files."""
    total = 0
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        total += sum(map(len, manifest.inline))
        for number in np.unique(manifest.file[manifest.file >= 0]):
            referenced = int(manifest.length[manifest.file == number].sum())
            size = manifest.files[number].size
            total += referenced if size is None else min(referenced, size)
    return total


def load_default_variables(group: ManifestGroup) -> ManifestGroup:
    """Load the variables loaded by default, so that decoding dates does not read them again."""
    read: dict[str, ManifestVariable] = {}
    problems: dict[str, VirtualdsError] = {}
    for name, array in find_default_loaded(group).items():
        try:
            with name_variable_in_errors(name):
                check_values(array.nbytes, f"variable {name!r}")
                read[name] = replace(group.variables[name], data=array.read())
        except UndecodableError as error:
            problems |= error.problems
    if problems:
        raise UndecodableError(problems)
    return replace(group, variables={**group.variables, **read})


def find_default_loaded(group: ManifestGroup) -> dict[str, ManifestArray]:
    """Return the arrays that are loaded by default, whatever their type and size."""
    return {
        name: v.data
        for name, v in group.variables.items()
        if isinstance(v.data, ManifestArray)
        and v.dims in ((), (name,))
        and name not in group.problems
    }


def make_load_predicate(
    loadable: Loadable, coordinates: set[Hashable]
) -> Callable[[str, xr.Variable], bool]:
    """Return a predicate that decides whether a variable is loaded.

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


def check_variables(
    loadable: Loadable, known: Iterable[Hashable], dropped: Collection[str], where: str
) -> None:
    """Raise an error for names of variables to load that do not exist.

    Patterns and predicates may match none, and ``dropped`` and optional names need not exist
    either.
    """
    if loadable is None or callable(loadable) or isinstance(loadable, OptionalNames):
        return
    existing = sorted(map(str, known))
    for name in to_names("loadable_variables", loadable):
        if name not in (*existing, *dropped) and PATTERN_CHARACTERS.isdisjoint(name):
            raise ValueError(
                f"loadable_variables {name!r}: there is no such variable in {where}; "
                f"existing: {', '.join(existing) or 'none'}{format_suggestion(name, existing)}"
            )


def make_optional(loadable: Loadable) -> Loadable:
    """Return the variables to load as optional names, which files need not have.

    Examples
    --------
    >>> make_optional(["t2m", "lat*"])
    ('t2m', 'lat*')
    """
    if loadable is None or callable(loadable):
        return loadable
    return OptionalNames(to_names("loadable_variables", loadable))


def needs_all_values(stored: ManifestVariable, decoded: xr.Variable) -> bool:
    """Return whether xarray needs all values of a variable to decode it.

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


# ---------------------------------------------------------------------- options


@dataclass(frozen=True)
class OpenOptions:
    """Options for opening a file or a set: how to read it, and which parts.

    These are the arguments of `virtualds.open_virtual_dataset`. Iterables become tuples, since they
    are iterated for every file. With ``below``, the groups below are opened as well, as a tree.
    With ``omits_damaged``, damaged parts of a file are left out and listed by its group, for any
    ``on_error``. With ``defers``, references may be looked up in source files when values are read.
    Raises `ValueError` for an unknown ``on_error``, and `TypeError` for invalid names.
    """

    group: str | None = None
    drop_variables: str | Iterable[str] | None = None
    parser: str | None = None
    on_error: str = "raise"
    allow: Allow = None
    snapshot: str | None = None
    loadable_variables: Loadable = None
    decode_cf: bool = True
    below: bool = False
    omits_damaged: bool = False
    defers: bool = False
    parser_options: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ON_ERROR)
        for name in ("drop_variables", "loadable_variables", "allow"):
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, str | tuple):
                object.__setattr__(self, name, tuple(value))
        to_names("drop_variables", self.drop_variables)
        object.__setattr__(self, "parser_options", dict(self.parser_options or {}))
        if not callable(self.loadable_variables):
            to_names("loadable_variables", self.loadable_variables)

    @property
    def skip(self) -> tuple[str, ...]:
        """The names of the variables that are left out."""
        return to_names("drop_variables", self.drop_variables)


OPEN_DEFAULTS = OpenOptions()
"""The default options."""


# ---------------------------------------------------------------------- coordinates
# Fetching the coordinates that opening a remote file or set needs, all at once.
#
# Opening reads them one after the other, some of them more than once. What is fetched here is
# cached until the file or set is open (`virtualds.stores.scan_cache`).


MAX_PREFETCH_BYTES = 2**26
"""The total size of values that are fetched in advance; the rest is read when it is needed."""


class Prefetch(NamedTuple):
    """A part of an array that opening will read, and the size of its values in bytes."""

    array: ManifestArray
    nbytes: int
    key: tuple[Any, ...] | None = None


def fetch_coordinates(url: str, groups: Iterable[ManifestGroup], opening: OpenOptions) -> None:
    """Fetch everything that opening will read from groups of a remote file or set, in few rounds.

    Errors are raised later, when the values are read.
    """
    if opening.loadable_variables is not None or scheme_of(url) == "file":
        return
    prefetches = [prefetch for group in groups for prefetch in _iterate_prefetches(group, opening)]
    ranges: dict[SourceFile, list[Range]] = {}
    others: list[Prefetch] = []
    for prefetch in prefetches:
        manifests = [fragment.manifest for fragment in prefetch.array.fragments]
        # all chunks may be in the one file that is being opened
        if all(
            not m.is_in_set and [file.url for file in m.listed_files] == [url] for m in manifests
        ):
            for manifest in manifests if prefetch.key is None else ():
                _, references = gather_references(manifest)
                in_files = references.file >= 0
                rows = zip(
                    references.offset[in_files].tolist(),
                    references.length[in_files].tolist(),
                    strict=True,
                )
                ranges.setdefault(manifest.listed_files[0], []).extend(rows)
        elif any(
            manifest.is_in_set or not are_cached(manifest.listed_files) for manifest in manifests
        ):
            others.append(prefetch)
    with explain_open_errors(url):
        prefetch_ranges(ranges)
    # chunks in other files, and ends of arrays, are read here, so that their bytes are cached
    sizes = accumulate(prefetch.nbytes for prefetch in others)
    affordable = [
        prefetch
        for prefetch, so_far in zip(others, sizes, strict=True)
        if so_far <= MAX_PREFETCH_BYTES
    ]
    if affordable:
        with ThreadPoolExecutor(min(len(affordable), get_options().max_requests)) as pool:
            for done in [
                pool.submit(copy_context().run, _read_prefetch, prefetch) for prefetch in affordable
            ]:
                done.result()


def _iterate_prefetches(group: ManifestGroup, opening: OpenOptions) -> Iterator[Prefetch]:
    """Yield what opening reads: dimension coordinates, scalars, and both ends of other times."""
    loaded = find_default_loaded(group)
    for name, variable in group.variables.items():
        array = variable.data
        if not isinstance(array, ManifestArray) or name in group.problems:
            continue
        # scalars are loaded into virtual datasets, but read on access in lazy ones
        if name in loaded and not (opening.defers and not array.ndim):
            if is_below_load_limit(array.nbytes):
                yield Prefetch(array, array.nbytes)
        elif array.size and "since" in str(variable.attributes.get("units", "")):
            for end in (slice(0, 1), slice(-1, None)):
                yield Prefetch(array, array.dtype.itemsize, (end,) * array.ndim)


def _read_prefetch(prefetch: Prefetch) -> None:
    """Read an array, or a part of it, into the cache; suppress errors."""
    # reading it again raises the error with its context
    with suppress(VirtualdsError):
        for fragment in prefetch.array.fragments if prefetch.key is None else ():
            _, references = gather_references(fragment.manifest)
            cache_ranges(references.files)
        prefetch.array.read(prefetch.key)
