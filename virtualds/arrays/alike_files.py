"""Files of one structure, which a parser reads together as columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.projection import Ints
from virtualds.source_file import SourceFile, StorageOptions


class AlikeFiles(Protocol):
    """Neighbouring files that have the variables of one group, with other values.

    They differ in the values of variables, in where chunks lie, and in how long dimensions are. The
    attributes that decoding heeds are equal in all of them.
    """

    @property
    def group(self) -> ManifestGroup:
        """The group as the first of the files has it; its variables are `ManifestArray`."""

    @property
    def sources(self) -> Sequence[SourceFile]:
        """The files, in order."""

    @property
    def lengths(self) -> Mapping[str, Ints]:
        """How long each dimension is in each file."""

    def join(self, name: str, dim: str) -> ManifestArray:
        """Return a variable of all files, one after the other along a dimension.

        All its other dimensions must have one length in all files.
        """

    def get_values(self, name: str) -> Sequence[npt.NDArray[Any]] | None:
        """Return the stored values of a variable in each file, None if they must be read."""

    def stack(self, name: str) -> ManifestArray:
        """Return a variable of all files along a new first axis; it has one shape in all files."""


class AlikeRun(NamedTuple):
    """Files of one structure, and the number of the first among those that were asked for."""

    first: int
    files: AlikeFiles


class ReadAlike(Protocol):
    """Reads files together where they have one structure."""

    def __call__(
        self,
        urls: Sequence[str],
        options: StorageOptions | None,
        group: str | None,
        skip: Iterable[str],
        heeded: Collection[str] | None,
    ) -> Sequence[AlikeRun]:
        """Return runs of neighbouring alike files; the files in none have to be read one by one.

        Attributes named in ``heeded`` are equal within a run, all attributes if it is None. No
        error is raised for a file: one that cannot be read is in no run.
        """
