"""Compares rewritten chunks with the chunks that they were made of.

A format that cannot hold a variable has files of rewritten chunks beside the set, and beside those
files the references of the variable as it was (`virtualds.datasets.rewrite.run`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.checks.verify.sampled_chunks import SampledChunk, read_stored_numbers
from virtualds.datasets.rewrite.run import Original, find_original, read_rows
from virtualds.source_file import SourceFile

Array = npt.NDArray[Any]

OF_REPOSITORY = "it is a chunk of an Icechunk repository, and no other file holds it"
"""Why a chunk that the repository holds itself is not compared."""


def is_of_repository(file: SourceFile) -> bool:
    """Say whether a file is a chunk of an Icechunk repository (specification, "File layout")."""
    return re.search(r"/chunks/[0-9A-HJKMNP-TV-Z]{20}$", file.url) is not None


@dataclass(frozen=True)
class RewrittenFile:
    """A file of rewritten chunks.

    Parameters
    ----------
    original : Original
        The variable that they were made of.
    cells : dict of int to int
        The number of the cell of each chunk, by its offset; -1 is a chunk of one value.
    """

    original: Original
    cells: dict[int, int]

    @classmethod
    def of(cls, file: SourceFile) -> RewrittenFile | None:
        """Return the chunks of a file, None if it is no such file."""
        if file.size is None or (original := find_original(file)) is None:
            return None
        if (rows := read_rows(file)) is None:
            return None
        cells, lengths = zip(*rows, strict=True)
        begins = np.cumsum(lengths) - np.array(lengths)
        return cls(original, dict(zip(begins.tolist(), cells, strict=True)))

    def pair(self, chunk: SampledChunk) -> tuple[Array, Array]:
        """Return the values of a chunk, and those of the original at the same place.

        Raises
        ------
        ReadError
            The original cannot be read.
        """
        if chunk.offset not in self.cells:
            return np.empty(1), np.empty(0)
        stored = read_stored_numbers(chunk, chunk).reshape(-1)
        cell = self.cells[chunk.offset]
        if cell < 0:
            return stored, np.full_like(stored, stored[0])
        packing = chunk.pipeline.packing
        if self.original.is_decoded and packing is not None:
            stored = packing.decode(stored.astype(stored.dtype.newbyteorder("=")))
        return self.original.show(stored, cell), self.original.read(cell)


def pair_rewritten(
    file: SourceFile, chunks: Sequence[SampledChunk]
) -> list[tuple[SampledChunk, Array, Array]] | None:
    """Return rewritten chunks with the values of both sides; None for other files."""
    found = RewrittenFile.of(file)
    if found is None:
        return None
    return [(chunk, *found.pair(chunk)) for chunk in chunks]
