"""Options of a build: the workers that open files, the retries, and the treatment of failures."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from virtualds.datasets.keywords import check_choice
from virtualds.datasets.registry import format_of_object
from virtualds.options import FILE_RETRIES
from virtualds.progress import ProgressOption
from virtualds.source_file import StorageOptions
from virtualds.stores.listing import find_matching
from virtualds.urls import normalise_url, scheme_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import distributed


Parallel: TypeAlias = "int | Executor | Literal['dask'] | distributed.Client | None"

ON_ERROR = {"raise": "raise", "skip": "raise", "collect": "raise", "keep": "keep"}
"""How failing variables of a file are treated, by how the build treats failing files.

If a variable of a file cannot be read, the build leaves out the whole file. Otherwise the gap in
the joined variable would look like missing values.
"""


@dataclass(frozen=True)
class BuildOptions:
    """How many files are opened.

    Parameters
    ----------
    parallel, on_error, retries, progress, cache
        As in `virtualds.open_virtual_mfdataset`.

    Raises
    ------
    ValueError
        ``on_error`` is none that there is, or ``retries`` is negative.
    """

    parallel: Parallel = None
    on_error: str = "raise"
    retries: int = FILE_RETRIES
    progress: ProgressOption = None
    cache: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ON_ERROR)
        if not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError(f"retries={self.retries!r}: give a number, at least 0")

    @property
    def on_variable_error(self) -> str:
        """What is done about variables of a file that cannot be read."""
        return ON_ERROR[self.on_error]

    @property
    def stops(self) -> bool:
        """Whether the first file that cannot be opened ends the build."""
        return self.on_error in ("raise", "keep")


Paths = str | os.PathLike[str] | Sequence[Any]
FilePositions = tuple[tuple[int, Any], ...]
"""Positions in a list, each with the positions below it."""


@dataclass(frozen=True)
class Files:
    """Files in order, with their nesting.

    Parameters
    ----------
    nested : list
        Files, or lists of them.
    options : StorageOptions, optional
        Access options of all of them.

    Raises
    ------
    FileNotFoundError
        No files are given.

    Examples
    --------
    >>> files = Files([["a.nc", "b.nc"], ["c.nc"]])
    >>> files.flat, files.nest({0: 1.0, 2: 3.0})
    (('a.nc', 'b.nc', 'c.nc'), [[1.0], [3.0]])
    """

    nested: list[Any]
    options: StorageOptions | None = None

    def __post_init__(self) -> None:
        if not self.flat:
            raise FileNotFoundError(
                f"files={self.nested!r}: the list of files is empty; give paths, urls, or a pattern"
            )

    @classmethod
    def of(cls, paths: Paths, storage_options: Mapping[str, Any] | None = None) -> Files:
        """Return the sorted files of a pattern, or the given files, which are not patterns.

        Raises
        ------
        FileNotFoundError
            No file matches.
        """
        options = StorageOptions.of(storage_options)
        if isinstance(paths, str):
            return cls(find_matching([paths], storage_options), options)
        if not isinstance(paths, Iterable | os.PathLike):
            raise TypeError(
                f"a pattern, or a list of paths or urls, is expected, got {type(paths).__name__}"
            )
        files = cls([paths] if isinstance(paths, os.PathLike) else list(paths), options)
        for file in files.flat:
            if not isinstance(file, str | os.PathLike) and format_of_object(file) is None:
                raise TypeError(
                    f"a path or url is expected, got {type(file).__name__}; open objects with "
                    f"open_virtual_dataset, and combine the datasets with xr.concat"
                )
        return files

    @cached_property
    def flat(self) -> tuple[Any, ...]:
        """All files, in order."""
        return tuple(_flatten(self.nested))

    @cached_property
    def are_remote(self) -> bool:
        """Whether any file is not on this machine."""
        return any(
            isinstance(file, str | os.PathLike) and scheme_of(os.fspath(file)) != "file"
            for file in self.flat
        )

    def nest(self, found: Mapping[int, Any]) -> list[Any]:
        """Return what was found for the files, by number, nested like the files.

        Files without a result are left out, and so are lists without any.
        """
        numbers = iter(range(len(self.flat)))
        return _nest_files(self.nested, numbers, found)

    def stay_in_place(self, found: Container[int]) -> bool:
        """Say whether files in nested lists keep their places if only the found ones are left.

        They do if whole rows are left out; otherwise other files would move up.
        """
        return _is_grid(_find_positions(self.nested, iter(range(len(self.flat))), found))

    def find_file(self, file: str | os.PathLike[str], of: str) -> int:
        """Return the number of a file that the argument ``of`` names.

        Raises
        ------
        ValueError
            The file is not among them.
        """
        urls = [normalise_url(other) for other in self.flat]
        if (url := normalise_url(file)) not in urls:
            raise ValueError(
                f"{of} {url}: it is not one of the {len(urls)} files; give one of them"
            )
        return urls.index(url)


def _flatten(files: Iterable[Any]) -> Iterator[Any]:
    for item in files:
        if isinstance(item, list | tuple):
            yield from _flatten(item)
        else:
            yield item


def _find_positions(
    files: Iterable[Any], numbers: Iterator[int], found: Container[int]
) -> FilePositions:
    """Return the positions of found files in lists, with the positions below."""
    places: list[tuple[int, Any]] = []
    for place, item in enumerate(files):
        if isinstance(item, list | tuple):
            if below := _find_positions(item, numbers, found):
                places.append((place, below))
        elif next(numbers) in found:
            places.append((place, ()))
    return tuple(places)


def _is_grid(places: FilePositions) -> bool:
    return len({below for _, below in places}) <= 1 and all(_is_grid(b) for _, b in places)


def _nest_files(
    files: Iterable[Any], numbers: Iterator[int], found: Mapping[int, Any]
) -> list[Any]:
    shaped = []
    for item in files:
        if isinstance(item, list | tuple):
            if below := _nest_files(item, numbers, found):
                shaped.append(below)
        elif (number := next(numbers)) in found:
            shaped.append(found[number])
    return shaped
