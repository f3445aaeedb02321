"""Check the names, types and values of arguments, and suggest corrections in errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from numbers import Integral
from os import PathLike
from typing import Any, ParamSpec, TypeVar

import numpy as np

Given = ParamSpec("Given")
Result = TypeVar("Result")
Options = TypeVar("Options")

SIMILARITY = 0.7
"""The similarity, from 0 to 1, above which one name counts as a misspelling of another."""
FOREIGN_ARGUMENTS = {
    "backend": "the bytes of a file show its format; to name it, pass parser=",
    "chunks": "arrays stay virtual; chunks= is for xr.open_dataset(..., engine='virtual')",
    "decode_times": "pass decode_cf=False to decode nothing at all",
    "engine": "the bytes of a file show its format; to name it, pass parser=",
    "filetype": "the bytes of a file show its format; to name it, pass parser=",
    "indexes": "dimension coordinates get indexes, and with loadable_variables=[] none does",
    "errors": "pass on_error= to say what to do about files that cannot be opened",
    "reader_options": "pass the access options for fsspec as storage_options=",
    "registry": "stores are found by the url, with access options in storage_options=",
    "mask_and_scale": "pass decode_cf=False to decode nothing at all",
}
"""Arguments of similar xarray functions, and what to use instead."""

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
"""The types of arguments by name, the same in all functions, where nothing else checks them."""


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


def select_fields(kind: type[Options], arguments: Mapping[str, Any]) -> Options:
    """Create a dataclass of options from the given arguments that are among its fields."""
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
