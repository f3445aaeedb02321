"""Diagnosing an archive: in what its files differ, and whether they combine all the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import numpy as np
import xarray as xr

from virtualds.api import open_virtual_dataset
from virtualds.building.files import Files, Paths
from virtualds.combine import open_virtual_mfdataset
from virtualds.diagnosis.findings import differences_of, eras_of, formats_for
from virtualds.diagnosis.joining import Joining, guessed
from virtualds.diagnosis.report import Diagnosis as Diagnosis
from virtualds.diagnosis.report import Difference as Difference
from virtualds.diagnosis.report import Era as Era
from virtualds.diagnosis.survey import surveyed
from virtualds.diagnosis.verdicts import Trial

NOT_TRIED = {"paths", "kwargs", "combine", "attrs_file", "to", "target_options"}
"""What tells nothing of two files: a trial must never write a set."""
OPTIONS = frozenset(signature(open_virtual_mfdataset).parameters) - NOT_TRIED
OPENING = OPTIONS & set(signature(open_virtual_dataset).parameters)
"""Those that are about single files."""
OF_XARRAY = {"fill_value"}


def diagnose(
    urls: Paths,
    *,
    sample: int | None = None,
    concat_dim: str | None = None,
    preprocess: Callable[[xr.Dataset], xr.Dataset] | None = None,
    **options: Any,
) -> Diagnosis:
    """Find out in what the files of an archive differ, and whether they combine all the same.

    Only their structure is read, and what opening a file loads: coordinates and scalars. Files of
    the same structure are an era. Of every difference, the two files between which it lies are
    combined by `open_virtual_mfdataset`, which tells whether it combines, costs something, or
    blocks. Fields without the joined dimension are read and compared only there.

    Parameters
    ----------
    urls : str, or sequence of str or paths
        A glob pattern, or the files, in order.
    sample : int, optional
        How many files to look at, evenly spread, besides the first and the last; None is all.
    concat_dim : str, optional
        The dimension to join along. By default the unlimited one, or the one whose coordinate or
        size differs; the report says which it is, and why. Tiles have several.
    preprocess : callable, optional
        Applied to the dataset of every file.
    **options
        As in `open_virtual_mfdataset`: ``group``, ``storage_options``, ``join``, ``compat`` and so
        on; but not ``to`` and ``attrs_file``.

    Returns
    -------
    Diagnosis
        It shows itself as text, and as HTML in notebooks. Files that cannot be opened are an era of
        their own.

    Raises
    ------
    FileNotFoundError
        No file matches.
    TypeError
        An option is none of `open_virtual_mfdataset`.
    ValueError
        ``sample`` is less than 1.

    Examples
    --------
    >>> found = diagnose("20*.nc")
    >>> len(found.eras), found.joined, found.blocks
    (1, ('time',), False)
    """
    if unknown := options.keys() - OPTIONS - OF_XARRAY:
        raise TypeError(
            f"diagnose: {sorted(unknown)} are no options of open_virtual_mfdataset; there are "
            f"{sorted(OPTIONS)}"
        )
    files = Files.of(urls, options.get("storage_options")).flat
    chosen = _sampled(files, sample)
    opening = {name: value for name, value in options.items() if name in OPENING}
    survey = surveyed(chosen, opening, preprocess)
    if concat_dim is None:
        joining = guessed(survey.courses, survey.spans, survey.always_unlimited)
    else:
        joining = Joining((concat_dim,), "as given")
    trial = Trial(joining.dims, options, preprocess)
    differences = differences_of(survey, trial)
    return Diagnosis(
        files=len(files),
        examined=len(chosen),
        joined=joining.dims,
        reason=joining.reason,
        formats=formats_for(survey, differences, trial),
        eras=eras_of(survey, joining.dims),
        differences=differences,
    )


def _sampled(files: Sequence[Any], sample: int | None) -> Sequence[Any]:
    """Return some files, evenly spread, and the first and the last."""
    if sample is None:
        return files
    if sample < 1:
        raise ValueError(f"sample {sample}: it is a number of files, at least 1, or None for all")
    numbers = np.unique(np.linspace(0, len(files) - 1, sample + 2).round().astype(int))
    return [files[n] for n in numbers]
