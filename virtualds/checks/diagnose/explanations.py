"""What each kind of difference does when files are combined, and its remedy: a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from virtualds.combine.xarray_combine import KEEPING as OF_BUILDS
from virtualds.combine.xarray_combine import write_options
from virtualds.datasets.reference_systems import SYSTEM_ATTRIBUTES
from virtualds.datasets.structure import (
    ATTRIBUTE,
    CALENDAR,
    CHUNKS,
    CODECS,
    DIMENSIONS,
    DTYPE,
    FILL,
    PRESENCE,
    ROLE,
    SCALE,
    SIZE,
    STORED,
    SYSTEM,
    UNITS,
    VALUES,
    Fact,
)

OVERLAP, ORDER, TOGETHER, OPENING = "overlap", "order", "together", "opening"
GAP = "gap"
RENAMED, NAME, KIND = "name of the dimension", "name of the variable", "data variables"
"""Causes of other differences, which a report names in their place."""
TIME_UNITS, GRID = "units of time", "values of a grid"
Pair = tuple[str, str]


class FoundChange(NamedTuple):
    """A difference without a verdict.

    ``pair`` holds the two files to try, ``is_time`` says whether the variable counts time,
    ``virtual`` whether its values stay in the files, and ``is_dimension`` whether it is the
    coordinate of a dimension. ``among`` lists all files with the difference, where two files do not
    show it. ``renames`` are names of dimensions, and what they are called in the first file.
    """

    fact: Fact
    before: str
    after: str
    pair: Pair
    files: int
    is_time: bool = False
    virtual: bool = False
    among: tuple[str, ...] = ()
    is_dimension: bool = False
    renames: Mapping[str, str] = {}

    @property
    def names(self) -> set[str]:
        """The variables and dimensions that the difference is about."""
        if self.fact.aspect in (RENAMED, NAME):
            return {*self.before.split(", "), *self.after.split(", ")}
        return {self.fact.subject}


class ChangeMeaning(NamedTuple):
    """What a difference does when files are combined, in words.

    ``price`` is what it always costs; ``remedy`` helps if it costs or blocks. A ``harmless``
    difference never keeps files from combining, so it is not tried. A ``leading`` one is a mistake
    of the files rather than a matter of formats: it is named first, with its own remedy alone.
    """

    how: str
    remedy: str = ""
    price: str = ""
    harmless: bool = False
    leading: bool = False


SPLIT = "open the eras separately"
LEAVE_OUT = "leave out the variable with drop_variables"
KEEPING: dict[str, Mapping[str, str]] = {
    f"{write_options(options)} keeps the values of every file; or {LEAVE_OUT}": options
    for options in OF_BUILDS
}
"""What to do about values that differ, and the options that do it, the simplest first."""
WRITE_ZARR = "write zarr-v3, which holds it"
EXPLANATIONS: dict[str, ChangeMeaning] = {
    PRESENCE: ChangeMeaning(
        "filled with fill values where it is missing (combine='nested'; 'by_coords' treats files "
        "with other variables as another dataset)",
        f"{LEAVE_OUT}, or add it in preprocess",
    ),
    SIZE: ChangeMeaning(
        "aligned by its coordinate",
        "select the common part in preprocess, or " + SPLIT,
        leading=True,
    ),
    DIMENSIONS: ChangeMeaning(
        "broadcast, and transposed to the order of the first file",
        "make the dimensions equal in preprocess (transpose, squeeze, rename)",
    ),
    DTYPE: ChangeMeaning("promoted as xarray promotes", SPLIT),
    ROLE: ChangeMeaning("", "preprocess with ds.set_coords or ds.reset_coords"),
    VALUES: ChangeMeaning(
        "the values of the first file are used",
        f"{LEAVE_OUT}, rename it in preprocess, or {SPLIT}",
    ),
    GRID: ChangeMeaning(
        "the coordinate of the first file is used",
        "leave out the files of the other grid, or open them apart",
        leading=True,
    ),
    RENAMED: ChangeMeaning(
        "variables get both dimensions",
        "rename it in preprocess",
        price="their values are repeated along the one that a file lacks",
        leading=True,
    ),
    NAME: ChangeMeaning(
        "both variables are there",
        "rename it in preprocess, if it is the same variable",
        price="each is filled where files have the other",
        leading=True,
    ),
    KIND: ChangeMeaning(
        "each variable is filled where files lack it",
        "leave out the files of the other kind, or open them apart",
        price="the files have no data variable in common",
        leading=True,
    ),
    SYSTEM: ChangeMeaning(
        "the system of the first file is kept",
        "open the files of each system apart, or reproject the files to one system first",
        leading=True,
    ),
    STORED: ChangeMeaning("each file is read with its own type"),
    CODECS: ChangeMeaning("each chunk is decoded with the codecs of its file"),
    SCALE: ChangeMeaning("each file keeps its own scale and offset"),
    FILL: ChangeMeaning("each file keeps its own fill value"),
    TIME_UNITS: ChangeMeaning("each file is decoded with its own units"),
    UNITS: ChangeMeaning(
        "the units of the first file are kept",
        "convert it in preprocess, if the values have other units",
        price="values are not converted",
    ),
    CALENDAR: ChangeMeaning(
        "dates of two calendars in one coordinate",
        f"{SPLIT}, or preprocess with ds.convert_calendar, if every day exists in both",
        price="they have no common order: the coordinate cannot be sorted or selected from",
    ),
    CHUNKS: ChangeMeaning("each file keeps its chunk lengths"),
    ATTRIBUTE: ChangeMeaning("the attribute of the first file is kept", harmless=True),
    OVERLAP: ChangeMeaning(
        "overlap='first' or 'last' takes common values from one of the files",
        "pass overlap='first' or 'last', or leave out one of the files",
    ),
    ORDER: ChangeMeaning(
        "sort=True orders the files by their coordinate",
        "remove sort=False, or give the files in order",
    ),
    GAP: ChangeMeaning(
        "the gap is not filled",
        "look for the missing files, or fill the axis after opening (ds.asfreq, ds.reindex)",
        price="times are missing in an otherwise regular axis",
        harmless=True,
    ),
    TOGETHER: ChangeMeaning("", "open the files one by one to find the cause"),
}
"""What a difference does when files are combined, by aspect."""


def explain_change(change: FoundChange) -> ChangeMeaning:
    """Return what a change does when files are combined, in words."""
    aspect = change.fact.aspect
    if aspect == UNITS and change.is_time:
        return EXPLANATIONS[TIME_UNITS]
    if aspect == VALUES and change.is_dimension:
        return EXPLANATIONS[GRID]
    if aspect.startswith(ATTRIBUTE) and aspect.removeprefix(ATTRIBUTE) in SYSTEM_ATTRIBUTES:
        # a trial finds out whether the attributes are another system, or the same in other words
        return EXPLANATIONS[ATTRIBUTE]._replace(harmless=False, remedy=EXPLANATIONS[SYSTEM].remedy)
    for several in (CHUNKS, ATTRIBUTE):
        if aspect.startswith(several):
            return EXPLANATIONS[several]
    return EXPLANATIONS[aspect]
