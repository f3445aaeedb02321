"""Arrays of fragments: their properties, and the operations that keep them virtual.

Cropping, permuting and repeating axes change numbers of chunks only, and read nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Self

import numpy as np

from virtualds.arrays.fill import fills_with, is_same_scalar
from virtualds.chunks.alignment import find_whole_blocks
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import UnsupportedError
from virtualds.source_file import SourceFile


@dataclass(frozen=True, eq=False, repr=False)
class FragmentedArray:
    """The part of `virtualds.ManifestArray` that reads no values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill_value: Any
    pipelines: tuple[CodecPipeline, ...]
    fragments: tuple[Fragment, ...]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for fragment in self.fragments:
            if fragment.shape == self.shape and not any(fragment.start):
                continue
            inside = len(fragment.start) == len(self.shape) and all(
                a >= 0 and b <= n
                for a, b, n in zip(fragment.start, fragment.stop, self.shape, strict=True)
            )
            if not inside:
                raise ValueError(
                    f"ManifestArray: a fragment from {fragment.start} to {fragment.stop} does not "
                    f"lie inside {self.shape}; crop it, or give the array a shape that holds it"
                )
        for pipeline in self.pipelines:
            shown = [entry for entry in pipeline.layout if isinstance(entry, int)]
            if len(set(shown)) < len(shown) or not set(shown) <= set(range(self.ndim)):
                raise ValueError(
                    f"ManifestArray: chunks are stored with the axes {shown}, which are not "
                    f"different axes of an array of {self.ndim}; correct the layout of the pipeline"
                )

    # ------------------------------------------------------------------ describing

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def label(self) -> str:
        """The name and shape of the array, for errors."""
        return f"{self.name or 'virtual array'} {self.shape}"

    @property
    def nbytes(self) -> int:
        """Bytes of the values, once read."""
        return self.size * self.dtype.itemsize

    @property
    def nbytes_virtual(self) -> int:
        """Bytes that the references take in memory."""
        axes = sum(axis.nbytes for f in self.fragments for axis in f.axes)
        return axes + sum(f.manifest.nbytes for f in self.fragments)

    @property
    def nchunks(self) -> int:
        """Number of chunks of all grids, missing ones too."""
        return sum(f.manifest.size for f in self.fragments)

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Lengths, per axis, of the smallest blocks of dask that hold whole chunks."""
        return find_whole_blocks(self.shape, self.fragments, self.dtype.itemsize)

    @property
    def manifest(self) -> ChunkManifest:
        """The manifest of the only fragment.

        Raises
        ------
        UnsupportedError
            The array has none or several; look at `fragments`.
        """
        if len(self.fragments) != 1:
            raise UnsupportedError(
                f"ManifestArray.manifest: the array has {len(self.fragments)} fragments, each with "
                f"a manifest of its own; use .fragments"
            )
        return self.fragments[0].manifest

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """The distinct files that chunks lie in."""
        return tuple(dict.fromkeys(file for f in self.fragments for file in f.manifest.sources))

    @property
    def listed_sources(self) -> tuple[SourceFile, ...]:
        """The distinct files that chunks lie in, and other files that reference sets list.

        For arrays in reference sets, they are known without reading all references.
        """
        return tuple(dict.fromkeys(file for f in self.fragments for file in f.manifest.listed))

    @property
    def has_gaps(self) -> bool:
        """Whether some elements lie in no fragment."""
        return sum(prod(f.shape) for f in self.fragments) < self.size

    @property
    def gaps_read_as_missing(self) -> bool:
        """Whether elements that lie in no fragment have the value of a missing chunk."""
        return not self.has_gaps or all(fills_with(p, self.fill_value) for p in self.pipelines)

    def same_references(self, other: FragmentedArray) -> bool:
        """Say whether both refer to the same bytes, and so have the same values."""
        return self is other or (
            self.shape == other.shape
            and self.dtype == other.dtype
            and self.pipelines == other.pipelines
            and len(self.fragments) == len(other.fragments)
            and (not self.has_gaps or is_same_scalar(self.fill_value, other.fill_value))
            and all(
                a.start == b.start and a.axes == b.axes and a.manifest.same(b.manifest)
                for a, b in zip(self.fragments, other.fragments, strict=True)
            )
        )

    # ------------------------------------------------------------------ staying virtual

    def crop(self, axis: int, start: int, stop: int) -> Self:
        """Return the elements ``start`` to ``stop`` along one axis."""
        if (start, stop) == (0, self.shape[axis]):
            return self
        stop = max(start, stop)
        kept = (f.crop(axis, start, stop) for f in self.fragments)
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return replace(
            self, shape=shape, fragments=tuple(f for f in kept if f is not None)
        ).pruned()

    def transpose(self, *axes: Any) -> Self:
        """Permute the axes; without argument, reverse them."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        order = tuple(range(self.ndim))[::-1] if order is None else order
        order = tuple(int(np.arange(self.ndim)[i]) for i in order)
        if sorted(order) != list(range(self.ndim)):
            raise ValueError(
                f"transpose {self.label}: {order} is not a permutation of its axes; name each of "
                f"the {self.ndim} once"
            )
        return replace(
            self,
            shape=tuple(self.shape[i] for i in order),
            pipelines=tuple(p.transpose(order) for p in self.pipelines),
            fragments=tuple(f.transpose(order) for f in self.fragments),
        )

    @property
    def T(self) -> Self:
        """The array with its axes reversed."""
        return self.transpose()

    def insert_axis(self, axis: int) -> Self:
        """Insert an axis of one element."""
        return replace(
            self,
            shape=(*self.shape[:axis], 1, *self.shape[axis:]),
            pipelines=tuple(p.insert_axis(axis) for p in self.pipelines),
            fragments=tuple(f.insert_axis(axis) for f in self.fragments),
        )

    def drop_axis(self, axis: int) -> Self:
        """Remove an axis of one element."""
        table: dict[CodecPipeline, int] = {}
        fragments = []
        for fragment in self.fragments:
            _, encoded, inset = (int(c[0]) for c in fragment.axes[axis].slabs())
            numbers = [
                table.setdefault(p.drop_axis(axis, encoded, inset), len(table))
                for p in self.pipelines
            ]
            dropped = fragment.drop_axis(axis)
            fragments.append(replace(dropped, manifest=dropped.manifest.with_pipelines(numbers)))
        shape = (*self.shape[:axis], *self.shape[axis + 1 :])
        return replace(self, shape=shape, pipelines=tuple(table), fragments=tuple(fragments))

    def repeat(self, axis: int, count: int) -> Self:
        """Show an axis of one element ``count`` times."""
        shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        shown = tuple(f.repeat(axis, count) for f in self.fragments) if count else ()
        return replace(self, shape=shape, fragments=shown)

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """Repeat the array along new leading axes and axes of one element."""
        if len(shape) < self.ndim:
            raise self._no_broadcast(shape)
        result = self
        for _ in range(len(shape) - self.ndim):
            result = result.insert_axis(0)
        for axis, (old, new) in enumerate(zip(result.shape, shape, strict=True)):
            if old == 1 and new != 1:
                result = result.repeat(axis, new)
            elif old != new:
                raise self._no_broadcast(shape)
        return result

    def _no_broadcast(self, shape: Sequence[int]) -> ValueError:
        return ValueError(
            f"broadcast_to {self.label}: it does not broadcast to {tuple(shape)}; only axes of one "
            f"element are repeated, and new ones come first"
        )

    def keep(self, axis: int, runs: Sequence[tuple[int, int]]) -> Self:
        """Keep some stretches of an axis; the rest becomes fill."""
        kept = []
        for start, stop in runs:
            parts = (f.crop(axis, start, stop) for f in self.fragments)
            kept += [f.shift(axis, start) for f in parts if f is not None]
        return replace(self, fragments=tuple(kept)).pruned()

    def pruned(self) -> Self:
        """Return the array without files and pipelines that no chunk of it needs."""
        fragments = [replace(f, manifest=f.manifest.pruned()) for f in self.fragments]
        if len(self.pipelines) < 2 and fragments:
            return replace(self, fragments=tuple(fragments))
        found = [f.manifest.used_pipelines(len(self.pipelines)) for f in fragments]
        used = np.unique(np.concatenate(found)).tolist() if found else []
        numbers = [used.index(i) if i in used else 0 for i in range(len(self.pipelines))]
        kept = [replace(f, manifest=f.manifest.with_pipelines(numbers)) for f in fragments]
        pipelines = tuple(self.pipelines[i] for i in used)
        return replace(self, pipelines=pipelines, fragments=tuple(kept))
