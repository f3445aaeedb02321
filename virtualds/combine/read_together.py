"""Reading files of one structure together, where their parser can.

A file that its parser does not read with others, or that does not fit to its neighbours, is left to
be opened by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualds.arrays.alike_files import AlikeFiles, ReadAlike
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.parser import Parser
from virtualds.arrays.read_way import TOGETHER
from virtualds.codecs.cf_packing import PACKING_ATTRIBUTES
from virtualds.combine.concat_stored import Concatenator
from virtualds.combine.joinable import FilesReadTogether, NeedsFullCombineError
from virtualds.combine.open_file import OPEN_ERRORS
from virtualds.combine.stored_file import ConcatenatedFiles
from virtualds.datasets.decoding_cache import DecodingPlan
from virtualds.datasets.location import Location, reader_of
from virtualds.datasets.open import dataset_of
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.reference_systems import SYSTEM_ATTRIBUTES
from virtualds.datasets.to_dataset import find_decoding_plan
from virtualds.log import INFO, tell, tells
from virtualds.reading.chunk_cache import chunk_cache
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import AccessPolicy
from virtualds.urls import normalise_url

HEEDED_ATTRIBUTES = frozenset(
    {
        *PACKING_ATTRIBUTES,
        *("units", "calendar", "_Encoding", "char_dim_name", "_ARRAY_DIMENSIONS"),
        *("coordinates", "bounds", "climatology", "grid_mapping", "ancillary_variables"),
        *("cell_measures", "formula_terms", "geometry", "node_coordinates", "node_count"),
        *("part_node_count", "interior_ring", "dimensions", "axis", "standard_name"),
        *SYSTEM_ATTRIBUTES,
    }
)
"""Attributes that may decide what xarray makes of a variable, besides its values (CF conventions
1.12, appendix A), and some that may come to decide it."""

PLAIN_SEPARATOR = "::"
"""What urls of files in archives, and chains of fsspec, have in them."""


@dataclass(frozen=True)
class AlikeOpener:
    """Opens files of one structure together.

    Parameters
    ----------
    opening : OpenOptions
    options : StorageOptions, optional
        Access options of the files.
    """

    opening: OpenOptions
    options: StorageOptions | None = None

    def open_runs(
        self, files: Sequence[Any], alike: Concatenator, opener: Callable[[Any], Any]
    ) -> list[tuple[int, ConcatenatedFiles]]:
        """Return runs of neighbouring files that were read and joined together.

        Parameters
        ----------
        files : sequence of str or path
        alike : Concatenator
            How they are joined.
        opener : callable
            Opens one of them by itself.

        Returns
        -------
        list of (int, ConcatenatedFiles)
            With the number of the first file of each run.
        """
        if not all(isinstance(file, str | os.PathLike) for file in files):
            return []
        first = Location.of(files[0], self.options)
        # it shows which parser they need, and often how they decode
        begun = time.perf_counter()
        with first.hold_scan():
            runs = list(self._join_runs(first, files, alike, opener))
        if tells(INFO):
            seconds = time.perf_counter() - begun
            for number, run in runs:
                more = f"{files[number]} and {len(run.lengths) - 1:,} files after it"
                tell(INFO, f"{more}: {TOGETHER}, {seconds:.3f} s")
        return runs

    def _join_runs(
        self,
        first: Location,
        files: Sequence[Any],
        alike: Concatenator,
        opener: Callable[[Any], Any],
    ) -> Iterator[tuple[int, ConcatenatedFiles]]:
        heeded = None if alike.heeds_attributes else HEEDED_ATTRIBUTES
        try:
            runs = self._find_runs(first, files, heeded)
        except OPEN_ERRORS:
            # opening the files one by one tells which of them has which error
            return
        for start, together in runs:
            count = len(together.sources)
            if count < 2:
                continue
            try:
                yield start, self._join(together, files[start : start + count], alike, opener)
            except (*OPEN_ERRORS, NeedsFullCombineError):
                continue

    def _find_runs(
        self, first: Location, files: Sequence[Any], heeded: Collection[str] | None
    ) -> Sequence[tuple[int, AlikeFiles]]:
        """Return what the parser of the first file reads together."""
        urls = [normalise_url(file) for file in files]
        plain = not any(PLAIN_SEPARATOR in url for url in urls)
        if not plain or (read := self._find_reader(first)) is None:
            return ()
        AccessPolicy.of(self.opening.allow)
        chunk_cache().open()
        return read(urls, self.options, self.opening.group, self.opening.skip, heeded)

    def _find_reader(self, first: Location) -> ReadAlike | None:
        if self.opening.snapshot is not None or self.opening.parser_options:
            return None
        parser, _ = reader_of(first, self.opening.parser)
        return parser.read_alike if isinstance(parser, Parser) else None

    def _join(
        self,
        together: AlikeFiles,
        urls: Sequence[Any],
        alike: Concatenator,
        opener: Callable[[Any], Any],
    ) -> ConcatenatedFiles:
        """Return files of one structure as one file.

        Raises
        ------
        NeedsFullCombineError
            Joining might change the result.
        """
        if not all(isinstance(v.data, ManifestArray) for v in together.group.variables.values()):
            raise NeedsFullCombineError("some variables are read when they are needed")
        outline = self._find_plan(urls[0], together.group)
        files = FilesReadTogether(together, urls[0], outline, self.opening)
        stretch = alike.join_neighbours(files, urls, opener)
        # whether a variable is loaded depends on how long it is
        lengths = np.array(stretch.lengths)
        for place in {int(lengths.argmin()), int(lengths.argmax())}:
            if lengths[place] != lengths[0]:
                other = self._find_plan(urls[place], stretch.get_file(place).group)
                alike.check_plans(outline, other)
        return stretch

    def _find_plan(self, url: Any, group: ManifestGroup) -> DecodingPlan:
        """Return how a group decodes.

        Raises
        ------
        NeedsFullCombineError
            Every group like it has to be decoded by itself.
        """
        outline = find_decoding_plan(group, self.opening)
        if outline is None:
            dataset_of(Location.of(url, self.options), group, self.opening)
            outline = find_decoding_plan(group, self.opening)
        if outline is None:
            raise NeedsFullCombineError("every file has to be decoded by itself")
        return outline
