"""What becomes of a difference when files are combined, in words: a table of all kinds."""

from __future__ import annotations

from typing import NamedTuple

from virtualds.structure import (
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
    UNITS,
    VALUES,
    Fact,
)

OVERLAP, ORDER, TOGETHER, OPENING = "overlap", "order", "together", "opening"
GAP = "gap"
TIME_UNITS = "units of time"
Pair = tuple[str, str]


class Change(NamedTuple):
    """A difference that is still to be judged.

    ``pair`` are the files to try it with, ``is_time`` tells whether it is about a variable that
    counts time, ``virtual`` whether one whose values stay in the files. ``among`` are
    all files that it is about, where two do not tell.
    """

    fact: Fact
    before: str
    after: str
    pair: Pair
    files: int
    is_time: bool = False
    virtual: bool = False
    among: tuple[str, ...] = ()


class Meaning(NamedTuple):
    """What becomes of a difference, in words.

    ``price`` is what it costs in any case; ``remedy`` is for what costs or blocks. What is
    ``harmless`` does not keep files from combining, and is not tried.
    """

    how: str
    remedy: str = ""
    price: str = ""
    harmless: bool = False


SPLIT = "open the eras apart"
MEANINGS: dict[str, Meaning] = {
    PRESENCE: Meaning(
        "where it is not there, there are fill values (combine='nested'; 'by_coords' takes files "
        "of other variables for another dataset)",
        "leave it out with drop_variables, or add it in preprocess",
    ),
    SIZE: Meaning(
        "aligned by its coordinate",
        "select the common part in preprocess, or " + SPLIT,
    ),
    DIMENSIONS: Meaning(
        "broadcast, and brought into the order of the first file",
        "bring it into one form in preprocess (transpose, squeeze, rename)",
    ),
    DTYPE: Meaning("promoted as xarray promotes", "convert it in preprocess, or " + SPLIT),
    ROLE: Meaning("", "preprocess with ds.set_coords or ds.reset_coords"),
    VALUES: Meaning(
        "that of the first file is taken",
        "compat='override' takes that of the first file, join='override' the coordinate; or leave "
        "it out with drop_variables",
    ),
    STORED: Meaning("each file is read in its own type"),
    CODECS: Meaning("each chunk decodes by the codecs of its own file"),
    SCALE: Meaning("each file keeps its own"),
    FILL: Meaning("each file keeps its own"),
    TIME_UNITS: Meaning("each file is decoded by its own"),
    UNITS: Meaning(
        "the units of the first file are kept",
        "convert it in preprocess, if the values are of other units",
        price="no value is converted",
    ),
    CALENDAR: Meaning(
        "dates of two calendars next to each other",
        "preprocess with ds.convert_calendar, or " + SPLIT,
        price="they have no common order: such a coordinate neither sorts nor selects",
    ),
    CHUNKS: Meaning("each file keeps the lengths of its chunks"),
    ATTRIBUTE: Meaning("that of the first file is kept", harmless=True),
    OVERLAP: Meaning(
        "overlap='first' or 'last' takes what lies in both from one of them",
        "pass overlap='first' or 'last', or leave one of them out",
    ),
    ORDER: Meaning(
        "sort=True puts files in the order of their coordinate",
        "leave out sort=False, or give the files in order",
    ),
    GAP: Meaning(
        "nothing is put there",
        "look for the missing files, or fill the axis after opening (ds.asfreq, ds.reindex)",
        price="times are missing in an axis that is regular but for that",
        harmless=True,
    ),
    TOGETHER: Meaning("", "open the files one by one to find out what is wrong"),
}
"""What becomes of a difference, by its aspect."""


def meaning_of(change: Change) -> Meaning:
    """Return what becomes of a difference, in words."""
    aspect = change.fact.aspect
    if aspect == UNITS and change.is_time:
        return MEANINGS[TIME_UNITS]
    for several in (CHUNKS, ATTRIBUTE):
        if aspect.startswith(several):
            return MEANINGS[several]
    return MEANINGS[aspect]
