"""Options of the process, changed with `set_options`, and checks of the arguments of functions.

Names, types and values of arguments are checked, and errors suggest corrections.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from os import PathLike
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from virtualds.errors import public

MIB = 2**20

FILE_RETRIES = 2
"""Default of ``retries``: how often opening a file is repeated."""
SETTLE = 60.0
"""Default of ``settle``: seconds after which a file without changes is considered complete."""


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def find_usable_memory() -> int:
    """Return the bytes of memory that this process may use, on its machine or in its container."""
    return min([_find_installed_memory(), *find_memory_limits()])


def _find_installed_memory() -> int:
    """Return the memory of this machine in bytes, or 4 GiB if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 4096 * MIB


def find_memory_limits(root: str = "/") -> Iterator[int]:
    """Yield the memory limits of the Linux control groups of this process and of their parents.

    In a container, the path of a group may be that on the host, while its limit is at the root of
    the mount. Sources: cgroups(7); "Memory Interface Files" of cgroup version 2; the memory
    controller of version 1.
    """
    mount = Path(root, "sys/fs/cgroup")
    for line in _read_text(Path(root, "proc/self/cgroup")).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            folder, file_name = mount, "memory.max"
        elif "memory" in controllers.split(","):
            folder, file_name = mount / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for ancestor in (group, *group.parents):
            limit = _read_text(folder / ancestor / file_name).strip()
            # "max" means no limit, and the root of a machine has no such file
            if limit.isdecimal():
                yield int(limit)


def _read_text(path: Path) -> str:
    """Return the content of a file, or "" if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


@dataclass(frozen=True)
class Options:
    """The settings and their defaults, which `set_options` documents."""

    load_limit: int = 1024 * MIB
    small_variable: int = 16 * 1024
    check_sources: bool = True
    only_writer: bool = False
    chunk_cache: int = min(1024 * MIB, find_usable_memory() // 8)
    max_requests: int = 64
    retries: int = 5
    request_timeout: float = 600.0
    least_rate: float = 1024.0
    hdf5: str = "auto"

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), field.default)
        limits = (self.load_limit, self.small_variable, self.chunk_cache, self.retries)
        if not all(limit >= 0 for limit in limits):
            raise ValueError(f"set_options: limits are numbers of at least 0, got {self}")
        if self.max_requests < 1:
            raise ValueError(f"set_options: max_requests is at least 1, got {self.max_requests}")
        if not (self.request_timeout > 0 and self.least_rate > 0):
            raise ValueError(
                f"set_options: request_timeout and least_rate are above 0, got {self}; "
                f"request_timeout=float('inf') sets no bound"
            )
        if self.hdf5 not in HDF5_READERS:
            raise ValueError(f"set_options: hdf5 is one of {list(HDF5_READERS)}, got {self.hdf5!r}")


HDF5_READERS = ("auto", "library")
"""Ways to read HDF5 files: by virtualds if possible, or always by the HDF5 library."""
COUNTS = ("max_requests", "retries")
"""Settings that must be integers; bytes and seconds may be floats."""


def _check_type(name: str, value: object, default: object) -> None:
    """Raise an error for a setting whose type differs from the type of the default."""
    if isinstance(default, bool):
        is_valid, expected = isinstance(value, bool), "True or False"
    elif isinstance(default, str):
        is_valid, expected = isinstance(value, str), "a string"
    else:
        number_type, expected = (Integral, "an integer") if name in COUNTS else (Real, "a number")
        is_valid = isinstance(value, number_type) and not isinstance(value, bool)
    if not is_valid:
        raise TypeError(f"set_options: {name} {value!r}: give {expected}, by default {default!r}")


_current = Options()


def get_options() -> Options:
    """Return the current settings."""
    return _current


@public
class set_options:
    """Change settings, permanently or within a ``with`` block.

    Parameters
    ----------
    load_limit : int, default 1 GiB
        Maximum number of decoded bytes that ``ds.load()``, ``.values``, arithmetic or a reduction
        of a virtual array, or a selection of variable-length strings, loads without an error.
        ``ds.virtual.load()`` has no limit.
    small_variable : int, default 16 KiB
        Coordinates of at most this many decoded bytes are loaded when a file is opened.
    check_sources : bool, default True
        On each read, compare the size and modification time of a local source file with those of
        its scan, and raise `ReadError` if they differ. For a remote file, compare the size and
        etag that the response contains.
    only_writer : bool, default False
        Write reference sets to stores without conditional writes (SFTP and others), and to servers
        that ignore them. Changes by other writers are then overwritten without an error, so set it
        only if no other process changes the sets.
    chunk_cache : int, default 1 GiB, or an eighth of the memory if that is less
        Size in bytes of the cache of decoded chunks (least recently used ones are dropped); 0
        disables it. Chunks that were needed in part are cached if those of the selection take at
        most half of it, and chunks that were needed whole if the whole variable fits. The memory
        is that of the machine, or the limit of the container or job.
    max_requests : int, default 64
        How many requests are sent to one host at a time.
    retries : int, default 5
        How often a request is repeated after a transient failure (a timeout, a broken connection,
        status 429 or 5xx), with a longer wait each time.
    request_timeout : float, default 600
        Seconds that a request may take for a response of any length.
    least_rate : float, default 1024
        Bytes per second: a request may take one more second for each of this many bytes that it has
        received. A slower response is a timeout.
    hdf5 : {"auto", "library"}, default "auto"
        How the structure of HDF5 files is read. With "auto", virtualds reads it, and h5py reads
        files that virtualds does not support; with "library", h5py reads all files. Both return the
        same dataset. ``ds.virtual.report.read`` counts the files by way of reading.

    Raises
    ------
    TypeError
        A setting has the wrong type.
    ValueError
        A name is unknown, a limit is invalid, or a string is not one of the choices.

    Examples
    --------
    >>> import virtualds
    >>> with virtualds.set_options(load_limit=10 * 2**30):
    ...     pass
    """

    def __init__(self, **settings: Any) -> None:
        global _current
        names = {field.name for field in fields(Options)}
        if unknown := settings.keys() - names:
            raise ValueError(
                f"set_options: no setting is named {', '.join(map(repr, sorted(unknown)))}; "
                f"give one of {', '.join(sorted(names))}"
            )
        self._previous = _current
        _current = replace(_current, **settings)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _current
        _current = self._previous


# ---------------------------------------------------------------------- arguments

Given = ParamSpec("Given")
Result = TypeVar("Result")
Fields = TypeVar("Fields")

SIMILARITY = 0.7
"""The similarity, from 0 to 1, above which one name counts as a misspelling of another."""
FOREIGN_ARGUMENTS = {
    "backend": "the bytes of a file show its format; to name it, pass parser=",
    "chunks": "arrays stay virtual; chunks= is for xr.open_dataset(..., engine='virtual')",
    "decode_times": "pass decode_cf=False to decode nothing at all",
    "engine": "the bytes of a file show its format; to name it, pass parser=",
    "filetype": "the bytes of a file show its format; to name it, pass parser=",
    "indexes": "dimension coordinates get indexes, and with loadable_variables=[] none do",
    "errors": "pass on_error= to say what to do about files that cannot be opened",
    "reader_options": "pass the access options for fsspec as storage_options=",
    "registry": "stores are found by the url, with access options in storage_options=",
    "mask_and_scale": "pass decode_cf=False to decode nothing at all",
}
"""Arguments of similar functions of xarray and VirtualiZarr, and what to use instead."""

FLAG = ((bool, np.bool_), "True or False")
TEXT = ((str, type(None)), "a string, or None")
NAMES = ((str, Iterable), "a word, or a list of names")
OPTIONS = ((Mapping, type(None)), "a dict of access options for fsspec, or None")
PATH = ((str, PathLike, type(None)), "a path or url, or None")
ARGUMENT_TYPES: dict[str, tuple[Any, str]] = {
    "cache": PATH,
    "checksums": FLAG,
    "coords": NAMES,
    "create_branch": FLAG,
    "data_vars": NAMES,
    "decode": FLAG,
    "decode_cf": FLAG,
    "dry_run": FLAG,
    "keep_query": FLAG,
    "metadata": ((Mapping, type(None)), "a dict, or None"),
    "rectilinear": FLAG,
    "parser_options": ((Mapping, type(None)), "a dict of options of the parser, or None"),
    "progress": ((bool, np.bool_, Callable, type(None)), "True, False, None, or a function"),
    "relative_paths": FLAG,
    "seed": ((Integral,), "an integer"),
    "snapshot": TEXT,
    "sort": FLAG,
    "target_options": OPTIONS,
    "templates": FLAG,
}
"""The types of arguments that nothing else checks, by name; they are the same in all functions."""


def guess_name(name: object, known: Iterable[object]) -> str | None:
    """Return the known name most similar to ``name``, or None if none is similar.

    >>> guess_name("concat_dm", ["concat_dim", "combine"])
    'concat_dim'
    """
    matches = get_close_matches(str(name), list(map(str, known)), 1, SIMILARITY)
    return matches[0] if matches else None


def format_suggestion(name: object, known: Iterable[object]) -> str:
    """Return a suggestion to append to an error message, or "" if no name is similar."""
    other = guess_name(name, known)
    return f"; did you mean {other!r}?" if other else ""


def check_keywords(call: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise an error for keywords that a function, written as users call it, does not have."""
    known = sorted(known)
    for name in names:
        if name not in known:
            other = guess_name(name, [*known, *FOREIGN_ARGUMENTS])
            remedy = f"it has {', '.join(known)}" if other is None else FOREIGN_ARGUMENTS.get(other)
            if other in known:
                remedy = f"did you mean {other!r}?"
            raise TypeError(f"{call} has no argument {name!r}; {remedy}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise an error if the value of an argument is not one of its choices.

    >>> check_choice("join", "outr", ["inner", "outer"])
    Traceback (most recent call last):
    ValueError: join='outr': give one of 'inner', 'outer'; did you mean 'outer'?
    """
    choices = list(choices)
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        suggestion = format_suggestion(value, choices)
        raise ValueError(f"{name}={value!r}: give one of {listed}{suggestion}")


def to_names(argument: str, names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return one or several names as a tuple, empty for None.

    >>> to_names("drop_variables", "t"), to_names("drop_variables", ["t", "u"])
    (('t',), ('t', 'u'))
    """
    if names is None or isinstance(names, str):
        return () if names is None else (names,)
    if not isinstance(names, Iterable):
        raise TypeError(f"{argument}={names!r}: give a name, or a list of names")
    return tuple(names)


def check_types(arguments: Mapping[str, Any]) -> None:
    """Raise an error for arguments whose types differ from `ARGUMENT_TYPES`.

    >>> check_types({"decode_cf": "no"})
    Traceback (most recent call last):
    TypeError: decode_cf='no': give True or False
    """
    for name in arguments.keys() & ARGUMENT_TYPES.keys():
        types, expected = ARGUMENT_TYPES[name]
        if not isinstance(arguments[name], types):
            raise TypeError(f"{name}={arguments[name]!r}: give {expected}")


def select_fields(kind: type[Fields], arguments: Mapping[str, Any]) -> Fields:
    """Return an instance of a dataclass of options, from those arguments that are its fields."""
    dataclass: Any = kind
    chosen = {
        option.name: arguments[option.name]
        for option in fields(dataclass)
        if option.name in arguments
    }
    return kind(**chosen)


def find_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a function that may be given by name, with their defaults."""
    parameters = signature(function).parameters.values()
    unnamed = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return {p.name: p.default for p in parameters if p.kind not in unnamed and p.name != "self"}


def check_arguments(
    call: str | None = None, more: Iterable[str] = ()
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Create a decorator that checks the keywords and types of arguments, and suggests corrections.

    Python suggests names only from version 3.13 on, and never for functions with ``**kwargs``.
    ``call`` is the function as users call it, by default its name, where ``{0}`` stands for the
    first argument. ``more`` are keywords that it accepts besides those of its signature.
    """

    def decorator(function: Callable[Given, Result]) -> Callable[Given, Result]:
        known = {*find_arguments(function), *more}
        name = call or f"{function.__name__}()"

        @wraps(function)
        def wrapper(*given: Given.args, **named: Given.kwargs) -> Result:
            if not named.keys() <= known:
                call_text = name.format(*given) if given else f"{function.__name__}()"
                check_keywords(call_text, named, known)
            check_types(named)
            return function(*given, **named)

        return wrapper

    return decorator
