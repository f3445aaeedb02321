"""Opening the files of an archive one after the other, and keeping what they say of themselves."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xarray as xr

from virtualds.api import open_virtual_dataset
from virtualds.building.opening import FAULTS
from virtualds.diagnosis.courses import Courses
from virtualds.diagnosis.joining import Placed, Span, spans
from virtualds.diagnosis.verdicts import told
from virtualds.in_turn import in_turn
from virtualds.options import get_options
from virtualds.structure import Facts, structure
from virtualds.urls import scheme_of

THREADS = 32
AT_ONCE = 256
"""Remote files that are on their way, or wait to be looked at."""


class Examined(NamedTuple):
    """What a file says of itself."""

    facts: Facts
    spans: Mapping[str, Span]
    unlimited: frozenset[str]


@dataclass
class Survey:
    """What the files of an archive say, as little of it as tells them apart.

    Parameters
    ----------
    files : list of str
        Those that could be opened, in order.
    courses : Courses
        Their facts.
    spans : dict of str to list
        By coordinate: the numbers of the files that have it, and where they lie along it.
    unlimited : Counter
        In how many files each dimension is unlimited.
    unreadable : dict of str to str
        The files that could not be opened, and why.
    """

    files: list[str] = field(default_factory=list)
    courses: Courses = field(default_factory=Courses)
    spans: dict[str, list[Placed]] = field(default_factory=dict)
    unlimited: Counter[str] = field(default_factory=Counter)
    unreadable: dict[str, str] = field(default_factory=dict)

    def add(self, file: str, found: Examined | str) -> None:
        """Add the next file, or why it cannot be opened."""
        if isinstance(found, str):
            self.unreadable[file] = found
            return
        for name, span in found.spans.items():
            self.spans.setdefault(name, []).append((len(self.files), span))
        self.courses.add(found.facts)
        self.unlimited.update(found.unlimited)
        self.files.append(file)

    @property
    def always_unlimited(self) -> list[str]:
        """The dimensions that are unlimited in all files."""
        return [dim for dim, count in self.unlimited.items() if count == len(self.files)]


def surveyed(
    files: Sequence[Any],
    opening: Mapping[str, Any],
    preprocess: Callable[[xr.Dataset], xr.Dataset] | None,
) -> Survey:
    """Open files, and look at each.

    Parameters
    ----------
    files : sequence of str or paths
    opening : dict
        Options of `open_virtual_dataset`.
    preprocess : callable, optional
        Applied to the dataset of every file, one at a time.
    """
    survey = Survey()

    def examined(dataset: xr.Dataset | str) -> Examined | str:
        return dataset if isinstance(dataset, str) else _examined(dataset, preprocess)

    for file, dataset in zip(files, _opened(files, opening), strict=True):
        survey.add(os.fspath(file), examined(dataset))
    return survey


def _opened(files: Sequence[Any], opening: Mapping[str, Any]) -> Iterator[xr.Dataset | str]:
    """Yield files opened, in order, remote ones in threads, or why they cannot be opened."""

    def opened(file: Any) -> xr.Dataset | str:
        try:
            return open_virtual_dataset(file, **opening)
        except FAULTS as error:
            return told(error)

    if all(scheme_of(os.fspath(file)) == "file" for file in files):
        yield from map(opened, files)
        return
    threads = min(get_options().max_requests, THREADS)
    with ThreadPoolExecutor(threads, thread_name_prefix="virtualds-diagnose") as pool:
        for _, future in in_turn(pool, opened, files, ahead=AT_ONCE):
            yield future.result()


def _examined(
    dataset: xr.Dataset, preprocess: Callable[[xr.Dataset], xr.Dataset] | None
) -> Examined | str:
    unlimited = frozenset(map(str, dataset.encoding.get("unlimited_dims", ())))
    try:
        prepared = preprocess(dataset) if preprocess else dataset
        return Examined(structure(prepared), spans(prepared), unlimited & set(prepared.dims))
    except FAULTS as error:
        return told(error)
