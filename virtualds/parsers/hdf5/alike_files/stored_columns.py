"""Where the elements of one variable lie in many alike files, and the array of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import concatenate
from virtualds.bounds import CHUNKS_PER_REFERENCE
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.fragment import ChunkAxis, Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import Ints, compute_strides
from virtualds.source_file import SourceFile

MOST_MISSING = 10**4
"""Chunks of a file that may all be missing."""


@dataclass(frozen=True, eq=False)
class StoredColumns:
    """The chunks of one variable in many files.

    Parameters
    ----------
    chunks : int array, shape (files, axes)
        Elements of a chunk along each axis.
    shape : int array, shape (files, axes)
    owner : int array, shape (rows,)
        The number of the file of each chunk, in ascending order.
    place : int array, shape (axes, rows)
        Where each chunk begins in its file, in elements.
    address, length : int array, shape (rows,)
        Where its bytes lie.
    inline : tuple of bytes
        The elements themselves, of each file, where they lie in the metadata.
    """

    chunks: Ints
    shape: Ints
    owner: Ints
    place: Ints
    address: Ints
    length: Ints
    inline: tuple[bytes, ...] = ()

    def have_small_grids(self) -> npt.NDArray[np.bool_]:
        """Say which files may have a table of all chunks, with those that were never written."""
        # as floats, whose product does not overflow
        chunks = np.ceil(self.shape / self.chunks).prod(axis=1)
        references = np.bincount(self.owner, minlength=len(self.shape))
        small: npt.NDArray[np.bool_]
        small = chunks <= np.maximum(MOST_MISSING, CHUNKS_PER_REFERENCE * references)
        return small

    def take(self, places: Ints) -> StoredColumns:
        """Return the chunks of some files, in another order."""
        if len(places) == len(self.shape) and (places == np.arange(len(places))).all():
            return self
        rank = np.full(len(self.shape), -1)
        rank[places] = np.arange(len(places))
        owner = rank[self.owner]
        rows = np.flatnonzero(owner >= 0)
        rows = rows[np.argsort(owner[rows], kind="stable")]
        return StoredColumns(
            self.chunks[places],
            self.shape[places],
            owner[rows],
            self.place[:, rows],
            self.address[rows],
            self.length[rows],
            tuple(self.inline[n] for n in places.tolist()) if self.inline else (),
        )

    def get_values(
        self, heads: npt.NDArray[np.uint8], dtype: np.dtype[Any]
    ) -> list[npt.NDArray[Any]] | None:
        """Return the values in each file, if they lie in its first bytes without a codec.

        Parameters
        ----------
        heads : uint8 array, shape (files, bytes)
            The first bytes of each file.
        dtype : numpy dtype
            Of the stored values.

        Returns
        -------
        list of numpy.ndarray or None
            None if any has to be read: it lies elsewhere, or in several chunks.
        """
        count, rank = self.shape.shape
        alone = len(self.owner) == count and bool((self.owner == np.arange(count)).all())
        whole = rank == 1 or bool((self.shape == self.chunks).all())
        if self.inline or not alone or not whole:
            return None
        nbytes = self.shape.prod(axis=1) * dtype.itemsize
        if (self.address + nbytes > heads.shape[1]).any() or (nbytes > self.length).any():
            return None
        places = zip(
            heads, self.address.tolist(), nbytes.tolist(), self.shape.tolist(), strict=True
        )
        return [head[at : at + n].view(dtype).reshape(shape) for head, at, n, shape in places]

    def stack(self, sources: Sequence[SourceFile], first: ManifestArray) -> ManifestArray:
        """Return the variable of all files along a new first axis."""
        stacked = replace(
            self,
            chunks=np.insert(self.chunks, 0, 1, axis=1),
            shape=np.insert(self.shape, 0, 1, axis=1),
            place=np.insert(self.place, 0, 0, axis=0),
        )
        return stacked.join(sources, 0, first.insert_axis(0))

    def join(self, sources: Sequence[SourceFile], axis: int, first: ManifestArray) -> ManifestArray:
        """Return the variable of all files, one after the other along an axis.

        Parameters
        ----------
        sources : sequence of SourceFile
        axis : int
        first : ManifestArray
            The variable of the first file.
        """
        others = np.delete(self.chunks, axis, axis=1)
        cuts = np.flatnonzero((others[1:] != others[:-1]).any(axis=1)) + 1
        if not cuts.size:
            return self._join_alike(sources, axis, first)
        parts = []
        for start, stop in pairwise([0, *cuts.tolist(), len(self.shape)]):
            some = self.take(np.arange(start, stop))
            parts.append(some._join_alike(sources[start:stop], axis, first))
        return concatenate(parts, axis)

    def _join_alike(
        self, sources: Sequence[SourceFile], axis: int, first: ManifestArray
    ) -> ManifestArray:
        """Join files whose chunks have one length along all other axes."""
        lengths, chunk = self.shape[:, axis], self.chunks[:, axis]
        counts = -(-lengths // chunk)
        starts = np.cumsum(counts) - counts
        axes = [self._cut(other) for other in range(self.shape.shape[1])]
        axes[axis] = _cut_in_turn(lengths, chunk, counts)
        grid = tuple(one.nchunks for one in axes)
        flat = np.zeros(len(self.owner), np.int64)
        for other, stride in enumerate(compute_strides(grid)):
            at = self.place[other] // self.chunks[self.owner, other]
            flat += (at + starts[self.owner] if other == axis else at) * stride
        manifest = self._build_manifest(sources, grid, flat)
        fragment = Fragment.whole(tuple(axes), manifest)
        return ManifestArray.of_fragment(fragment, first.pipelines[0], first.name)

    def _cut(self, axis: int) -> ChunkAxis:
        """Return how an axis is cut that has one length in all files."""
        return ChunkAxis.regular(int(self.shape[0, axis]), int(self.chunks[0, axis]))

    def _build_manifest(
        self, sources: Sequence[SourceFile], grid: tuple[int, ...], flat: Ints
    ) -> ChunkManifest:
        is_whole = len(flat) == prod(grid) and bool((flat == np.arange(len(flat))).all())

        def spread(values: Ints, rest: int) -> Ints:
            if is_whole:
                return values.reshape(grid)
            column = np.full(prod(grid), rest, np.int64)
            column[flat] = values
            return column.reshape(grid)

        if self.inline:
            held = np.full_like(self.owner, INLINE)
            return ChunkManifest.build(
                grid,
                file=spread(held, MISSING),
                offset=spread(self.owner, 0),
                length=spread(self.length, 0),
                inline=self.inline,
            )
        return ChunkManifest.build(
            grid,
            files=sources,
            file=spread(self.owner, MISSING),
            offset=spread(self.address, 0),
            length=spread(self.length, 0),
        )


def _cut_in_turn(lengths: Ints, chunk: Ints, counts: Ints) -> ChunkAxis:
    """Return an axis along which files follow each other, each with chunks of its own."""
    encoded = np.repeat(chunk, counts)
    shown = encoded.copy()
    some = counts > 0
    last = np.cumsum(counts)[some] - 1
    shown[last] = (lengths - chunk * (counts - 1))[some]
    return ChunkAxis.from_slabs(shown, encoded)
