"""Whether what references promise still holds: files, ranges, and values beside a native reader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from virtualds.checks.verify.archive_members import damaged_members
from virtualds.checks.verify.compare_chunks import Comparison, compare
from virtualds.checks.verify.report import NOT_COMPARED, Problem, Verification
from virtualds.checks.verify.sampled_chunks import checked_sample, sampled
from virtualds.checks.verify.sources import Arrays, States, Survey, beyond, states_of, survey
from virtualds.datasets.keywords import check_choice
from virtualds.source_file import SourceFile

__all__ = ["Problem", "Verification", "verified"]

AGAINST = ("fingerprint", "range", "native")
"""What references are verified against; each looks at what those before it look at, too."""
UNREAD = (
    "it is no virtual array: its values are read by xarray or dask; open the set with "
    "open_virtual_dataset to verify it"
)


def verified(
    arrays: Arrays,
    *,
    loaded: int,
    unread: Iterable[str],
    gaps: Iterable[str] = (),
    sample: Any,
    against: str,
    seed: int,
) -> Verification:
    """Look whether the references of arrays hold.

    Parameters
    ----------
    arrays : dict of str to ManifestArray
    loaded : int
        Variables beside these whose values are in memory.
    unread : iterable of str
        Variables beside these that read their values by other ways, of which nothing is known.
    gaps : iterable of str
        Where coordinates lack times.
    sample, against, seed
        As `ds.virtual.verify` has them.

    Raises
    ------
    ValueError
        ``sample`` or ``against`` are none that there are.
    """
    check_choice("against", against, AGAINST)
    sample = checked_sample(sample)
    known = survey(arrays)
    states = states_of(known.ends)
    ranges = [] if against == "fingerprint" else _out_of_range(arrays, known, states)
    compared = Comparison()
    if against == "native":
        members = damaged_members(states.archives)
        compared = compare(sampled(arrays, sample, seed), states.sound)
        compared.problems += members
    strange = [Problem("", name, None, NOT_COMPARED, UNREAD) for name in unread]
    found = Verification(
        against=against,
        files=states.places,
        fingerprinted=states.fingerprinted,
        references=known.references,
        missing=known.missing,
        inline=known.inline,
        loaded=loaded,
        sampled=compared.sampled,
        compared=dict(compared.equal),
        gaps=tuple(gaps),
        problems=(*known.problems, *states.problems, *ranges, *compared.problems, *strange),
    )
    # where something is wrong, that is why
    return found if found.ok or found.problems else replace(found, problems=(_nothing(found),))


def _nothing(found: Verification) -> Problem:
    """Return why no chunk was compared."""
    text = (
        f"no chunk was compared: {found.references:,} lie in files, {found.missing:,} are missing, "
        f"{found.inline:,} inline, and {found.loaded:,} variables are in memory; "
    )
    if found.references:
        remedy = "take a larger sample"
    elif found.loaded:
        remedy = "open it with loadable_variables=[] to compare what of it lies in files"
    else:
        remedy = "against='range' looks at all that there is"
    return Problem("", "", None, NOT_COMPARED, text + remedy)


def _out_of_range(arrays: Arrays, known: Survey, states: States) -> list[Problem]:
    """Return the references that reach past the end of their files as they are now."""
    sizes: dict[SourceFile, int] = {
        file: size
        for file, end in known.ends.items()
        if (size := states.sizes.get(file)) is not None and end > size
    }
    return list(beyond(arrays, sizes)) if sizes else []
