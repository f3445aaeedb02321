"""What is done with each file, from what users say of opening and preparing files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from virtualds.building.cache import FileCache, choices_of, scanned
from virtualds.building.combining import Combination
from virtualds.building.file_coordinates import FileCoordinates, Source
from virtualds.building.opening import Job, Opened, Step
from virtualds.datasets.keywords import check_choice
from virtualds.datasets.open import dataset_of, datatree_of, open_virtual_datatree
from virtualds.source_file import StorageOptions
from virtualds.urls import normalise_url

ON_ERROR = {"raise": "raise", "skip": "raise", "collect": "raise", "keep": "keep"}
"""What is done about files that fail, and then about variables of a file that do.

A file of which a variable cannot be read is left out as a whole: nobody is to take what is missing
of it for missing values.
"""


def on_error_of_variables(on_error: str) -> str:
    """Return what is done about variables of a file, given what is done about files.

    Raises
    ------
    ValueError
        There is no such thing.
    """
    check_choice("on_error", on_error, ON_ERROR)
    return ON_ERROR[on_error]


def job_for(
    opener: Callable[..., Opened],
    choices: Mapping[str, Any],
    *,
    steps: tuple[Step[Opened], ...],
    storage_options: Mapping[str, Any] | None,
    on_error: str,
    retries: int,
    cache: str | os.PathLike[str] | None,
) -> Job[Opened]:
    """Return what is done with each file, whatever is made of them.

    Parameters
    ----------
    opener : callable
        Takes a file and ``choices``, and returns what is in it.
    choices : dict
        All that decides what that is; files that are kept in a cache are kept by it.
    steps : tuple of callables
        What is then done with what was opened.
    storage_options, on_error, retries, cache
        As `open_virtual_mfdataset` has them.

    Raises
    ------
    ValueError
        ``on_error`` or ``retries`` are none that there are, or nobody can tell what was kept.
    """
    decided = {name: _again(value) for name, value in choices.items()}
    decided["on_error"] = on_error_of_variables(on_error)
    open_file: Any = opener
    kept = None
    if cache is not None:
        key = choices_of(opener=opener.__name__, **decided)
        is_tree = opener is open_virtual_datatree
        make: Any = datatree_of if is_tree else dataset_of
        options = StorageOptions.of(storage_options)
        how = tuple(decided[name] for name in ("loadable_variables", "decode_cf", "on_error"))
        kept = FileCache(normalise_url(cache), key, make, how, options)
        open_file = partial(scanned, make=make, below=is_tree)
    return Job(
        partial(open_file, storage_options=storage_options, **decided),
        steps,
        retries,
        kept,
        stops=on_error in ("raise", "keep"),
    )


def steps_for(
    coordinates: Mapping[str, Source] | None,
    combination: Combination,
    preprocess: Callable[[Opened], Opened] | None,
) -> tuple[Step[Opened], ...]:
    """Return how what was opened is prepared for a combination."""
    if coordinates is not None and not isinstance(coordinates, Mapping):
        raise TypeError(
            f"coordinates: a dict of what gives their values, by name; got {coordinates!r}"
        )
    if preprocess is not None and not callable(preprocess):
        raise TypeError(f"preprocess: a function of what was opened, got {preprocess!r}")
    steps: list[Step[Opened]] = []
    if coordinates:
        named = tuple(dim for dim in combination.dims if isinstance(dim, str))
        steps.append(FileCoordinates(coordinates, named if combination.dims else None))
    if preprocess is not None:
        steps.append(partial(_preprocessed, preprocess))
    return tuple(steps)


def _again(value: Any) -> Any:
    """Return what can be gone through once for every file."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _preprocessed(preprocess: Callable[[Opened], Opened], file: Any, found: Opened) -> Opened:
    prepared = preprocess(found)
    if not isinstance(prepared, type(found)):
        raise TypeError(
            f"preprocess: it returns a {type(found).__name__}, but {preprocess!r} returned "
            f"{type(prepared).__name__}"
        )
    return prepared
