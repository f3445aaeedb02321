"""Building in stretches: the worker that opens alike files also joins them as they are stored.

Files that their parser reads together are opened so, others one by one. A batch of files becomes
one array for each variable, not one for each file. If a set is written, the same worker writes the
references of the joined files, and sends back where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.read_way import TOGETHER
from virtualds.combine.concat_stored import Concatenator
from virtualds.combine.decoded_file import as_stored
from virtualds.combine.joinable import NeedsFullCombineError
from virtualds.combine.open_file import MOST, NumberedFile, OpenJob, Outcome
from virtualds.combine.read_together import AlikeOpener
from virtualds.combine.stored_file import ConcatenatedFiles, FileInConcat, StoredFile
from virtualds.combine.write_target import BuildTarget
from virtualds.datasets.lazy import get_virtual_array

SMALLEST = 8
"""Fewest files that are opened and written together: small parts make many small files in the set.
"""


@dataclass(frozen=True)
class StretchJob:
    """Opens files by another job, and joins neighbours.

    Parameters
    ----------
    job : OpenJob
    alike : Concatenator, optional
        How to join files as they are stored, if they are.
    target : BuildTarget, optional
        Where references are written.
    datasets : bool
        Whether datasets of files are joined, too.
    dims : tuple
        The dimensions that all files are joined along; none if coordinates decide.
    together : AlikeOpener, optional
        Opens files of one structure together.
    """

    job: OpenJob[Any]
    alike: Concatenator | None
    target: BuildTarget | None = None
    datasets: bool = False
    dims: tuple[Any, ...] = ()
    together: AlikeOpener | None = None

    def __call__(self, items: Sequence[NumberedFile]) -> list[Outcome[Any]]:
        """Open neighbouring files, and join them if they are alike."""
        self.job.take_settings()
        found, rest = self.open_together(items)
        return [*found, *self._join(self.job.open_each(rest), rest)]

    def open_together(
        self, items: Sequence[NumberedFile]
    ) -> tuple[list[Outcome[Any]], Sequence[NumberedFile]]:
        """Open those of some neighbouring files that can be read together; return the others."""
        found = list[Outcome[Any]]()
        if self.together is None or self.alike is None or len(items) < 2:
            return found, items
        files = [file for _, file in items]
        for first, stretch in self.together.open_runs(files, self.alike, self.job.open_again):
            found += self._list_outcomes(items[first][0], stretch)
        done = {outcome.number for outcome in found}
        return found, [item for item in items if item[0] not in done]

    def _list_outcomes(self, first: int, stretch: ConcatenatedFiles) -> Iterator[Outcome[Any]]:
        """Yield the outcomes of files that were joined, of which the first has this number."""
        references, more = divmod(stretch.references, len(stretch.urls))
        for place, file in enumerate(self._list_members(stretch)):
            count_here = references + (place < more)
            yield Outcome(first + place, file, references=count_here, way=TOGETHER)

    def _list_members(self, stretch: ConcatenatedFiles) -> list[Any]:
        """Return the files that were joined, whose references lie in the set if there are many."""
        [joined] = self._relieve([stretch.joined])
        relieved = replace(stretch, joined=joined)
        return [FileInConcat(relieved, place) for place in range(len(stretch.urls))]

    @property
    def smallest(self) -> int:
        """The smallest useful number of files for another worker."""
        return SMALLEST if self.target else self.job.smallest

    @property
    def largest(self) -> int:
        """The largest number of files for another worker at a time."""
        return MOST if self.target or self.together else self.job.largest

    def open_file(self, item: NumberedFile) -> Outcome[Any]:
        """Open a file."""
        return self.job.open_file(item)

    def prepare(self, item: NumberedFile, outcome: Outcome[Any]) -> Outcome[Any]:
        """Prepare an opened file."""
        return self.job.prepare(item, outcome)

    def gather(
        self, outcomes: Iterator[Outcome[Any]], items: Sequence[NumberedFile]
    ) -> Iterator[Outcome[Any]]:
        """Join files that come one by one, but only to release their references."""
        return outcomes if self.target is None else self._join(outcomes, items)

    def _join(
        self, outcomes: Iterable[Outcome[Any]], items: Sequence[NumberedFile]
    ) -> Iterator[Outcome[Any]]:
        files = dict(items)
        for batch in self._split_batches(outcomes):
            yield from self._join_batch(batch, files)

    def _split_batches(self, outcomes: Iterable[Outcome[Any]]) -> Iterator[list[Outcome[Any]]]:
        """Yield outcomes in batches that fit in the memory of a worker."""
        batch, references = list[Outcome[Any]](), 0
        enough = self.target.enough if self.target else math.inf
        for outcome in outcomes:
            if batch and outcome.number != batch[-1].number + 1:
                # those between were opened together
                yield batch
                batch, references = [], 0
            batch.append(outcome)
            references += outcome.references
            # an error is reported at once
            is_last = self.job.stops and outcome.error is not None
            if is_last or references >= enough or len(batch) == MOST:
                yield batch
                batch, references = [], 0
        if batch:
            yield batch

    def _join_batch(
        self, batch: list[Outcome[Any]], files: Mapping[int, Any]
    ) -> Iterable[Outcome[Any]]:
        """Return the outcomes of a batch: members of one stretch, or single files."""
        opened = [outcome for outcome in batch if outcome.found is not None]
        try:
            stretch = self._join_stretch(opened, files)
        except NeedsFullCombineError:
            found = self._relieve([outcome.found for outcome in opened])
        else:
            found = self._list_members(stretch)
        rest = iter(found)
        return [o if o.found is None else replace(o, found=next(rest)) for o in batch]

    def _join_stretch(
        self, opened: Sequence[Outcome[Any]], files: Mapping[int, Any]
    ) -> ConcatenatedFiles:
        """Return files joined to one.

        Raises
        ------
        NeedsFullCombineError
            Joining might change the result.
        """
        stored = [self._to_stored(files[o.number], o.found) for o in opened]
        if self.alike is None or not all(isinstance(file, StoredFile) for file in stored):
            raise NeedsFullCombineError("some of them are datasets")
        return self.alike.join_stretch(stored, self.job.open_again)

    def _to_stored(self, file: Any, found: Any) -> Any:
        return as_stored(file, found) if self.datasets else found

    def _relieve(self, files: Sequence[Any]) -> list[Any]:
        """Return files, or datasets, whose references lie in the set if there are many.

        Variables without any of the dimensions are equal in all files: only one is kept.
        """
        if self.target is None:
            return list(files)
        arrays = {
            (n, name): array
            for n, file in enumerate(files)
            for name, array in self._find_growing(file).items()
        }
        written: list[dict[Any, ManifestArray]] = [{} for _ in files]
        for (n, name), array in self.target.write_arrays(arrays).items():
            written[n][name] = array
        return [_with(f, mine) if mine else f for f, mine in zip(files, written, strict=True)]

    def _find_growing(self, file: Any) -> dict[Hashable, ManifestArray]:
        """Return the virtual arrays of a file that are joined to those of other files."""
        arrays = _arrays(file)
        joined = {dim for dims, _ in arrays.values() for dim in dims}.intersection(self.dims)
        return {n: a for n, (dims, a) in arrays.items() if not joined or joined & set(dims)}


def _arrays(file: Any) -> dict[Hashable, tuple[tuple[Hashable, ...], ManifestArray]]:
    """Return the virtual arrays of an opened file, with their dimensions."""
    if isinstance(file, StoredFile):
        group, held = file.group.variables, file.values
        found: Any = {n: (v.dims, v.data) for n, v in group.items() if n not in held}
    else:
        found = {n: (v.dims, get_virtual_array(v)) for n, v in file.variables.items()}
    return {n: found[n] for n in found if isinstance(found[n][1], ManifestArray)}


def _with(file: Any, arrays: Mapping[Any, ManifestArray]) -> Any:
    """Return an opened file with other arrays."""
    if isinstance(file, StoredFile):
        variables = dict(file.group.variables)
        for name, array in arrays.items():
            variables[name] = replace(variables[name], data=array)
        return replace(file, group=replace(file.group, variables=variables))
    found = file.copy()
    for name, array in arrays.items():
        found.variables[name].data = array
    return found
