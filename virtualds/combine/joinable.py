"""Files that decode alike, as what joins them sees them: opened one by one, or read together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from virtualds.arrays.alike_files import AlikeFiles
from virtualds.arrays.array import ManifestArray
from virtualds.chunks.projection import Ints
from virtualds.combine.stored_file import StoredFile
from virtualds.datasets.decoding import (
    VariableDecoding,
    all_decode_alike,
    name_variable_in_errors,
)
from virtualds.datasets.decoding_cache import DecodingPlan
from virtualds.datasets.open_options import OpenOptions
from virtualds.options import get_options

Array = npt.NDArray[Any]

COMPARED_BYTES = 2**24
"""Bytes of values that are compared at a time."""


class NeedsFullCombineError(Exception):
    """Joining the files as they are stored might change the result."""


class JoinableFiles(Protocol):
    """Neighbouring files with the same variables, of which each is joined or compared at once.

    Methods raise `NeedsFullCombineError` where joining a variable might change the result.
    """

    @property
    def first(self) -> StoredFile:
        """The first file; whether it has its values is known to `load_first`."""

    @property
    def lengths(self) -> Mapping[str, Ints]:
        """How long each dimension is in each file; -1 for none."""

    def join(self, name: str, dim: str) -> Array | ManifestArray:
        """Return a variable of all files, joined along a dimension as it is stored."""

    def load(self, name: str, dim: str) -> Sequence[Array]:
        """Return the stored values of a loaded variable with the dimension, for each file."""

    def load_first(self, name: str) -> Array:
        """Return the stored values of a loaded variable in the first file."""

    def check_same(self, name: str) -> None:
        """Refuse a variable that differs between files."""


@dataclass(frozen=True)
class OpenedFiles:
    """Files that were opened one by one.

    Parameters
    ----------
    files : sequence of StoredFile
        At least one, with the same variables.
    """

    files: Sequence[StoredFile]

    @property
    def first(self) -> StoredFile:
        """The first file."""
        return self.files[0]

    @cached_property
    def lengths(self) -> Mapping[str, Ints]:
        """How long each dimension is in each file; -1 for none."""
        sizes = [_list_sizes(file) for file in self.files]
        dims = dict.fromkeys(dim for found in sizes for dim in found)
        return {d: np.array([found.get(d, -1) for found in sizes], np.int64) for d in dims}

    def join(self, name: str, dim: str) -> Array | ManifestArray:
        """Return a variable of all files, joined along a dimension as it is stored."""
        parts = self._list_parts(name)
        data: list[Any] = [file.group.variables[name].data for file in self.files]
        if not all_decode_alike(parts):
            raise NeedsFullCombineError(f"{name!r} means something else")
        if not all(isinstance(d, ManifestArray | np.ndarray) for d in data):
            raise NeedsFullCombineError(f"{name!r} is read when it is needed")
        joined: Array | ManifestArray = np.concatenate(data, axis=parts[0].stored[0].index(dim))
        return joined

    def load(self, name: str, dim: str) -> Sequence[Array]:
        """Return the stored values of a loaded variable, for each file."""
        return [file.values[name] for file in self.files]

    def load_first(self, name: str) -> Array:
        """Return the stored values of a loaded variable in the first file."""
        return self.first.values[name]

    def check_same(self, name: str) -> None:
        """Refuse a variable that differs between files."""
        if not all_decode_alike(self._list_parts(name)):
            raise NeedsFullCombineError(f"{name!r} means something else")
        values = self.first.get_stored_values(name)
        if values is None or values.dtype.hasobject:
            raise NeedsFullCombineError(f"{name!r} takes more to compare")
        raw = values.tobytes()
        for file in self.files[1:]:
            if (other := file.get_stored_values(name)) is None or other.tobytes() != raw:
                raise NeedsFullCombineError(f"{name!r} differs")

    def _list_parts(self, name: str) -> list[VariableDecoding]:
        return [file.outline.parts[name] for file in self.files]


@dataclass(frozen=True)
class FilesReadTogether:
    """Files that a parser read together.

    Parameters
    ----------
    alike : AlikeFiles
    url : str or path
        The first of them, as the user gave it.
    outline : DecodingPlan
        How the first of them decodes.
    opening : OpenOptions
    """

    alike: AlikeFiles
    url: Any
    outline: DecodingPlan
    opening: OpenOptions
    _loaded: dict[str, Sequence[Array]] = field(default_factory=dict, repr=False)
    _firsts: dict[str, Array] = field(default_factory=dict, repr=False)

    @property
    def first(self) -> StoredFile:
        """The first file, without values."""
        return StoredFile(self.url, self.alike.group, self.outline, {}, self.opening)

    @cached_property
    def lengths(self) -> Mapping[str, Ints]:
        """How long each dimension is in each file."""
        lengths, variables = self.alike.lengths, self.alike.group.variables.values()
        return {dim: lengths[dim] for variable in variables for dim in variable.dims}

    def join(self, name: str, dim: str) -> ManifestArray:
        """Return a variable of all files, joined along a dimension as it is stored."""
        return self.alike.join(name, dim)

    def load(self, name: str, dim: str) -> Sequence[Array]:
        """Return the stored values of a loaded variable with the dimension, for each file."""
        if name not in self._loaded and (values := self.alike.get_values(name)) is not None:
            self._loaded[name] = values
        if name not in self._loaded:
            axis = self.outline.parts[name].stored[0].index(dim)
            whole = self._read(name, self.alike.join(name, dim))
            ends = accumulate(self.lengths[dim].tolist(), initial=0)
            before = (slice(None),) * axis
            self._loaded[name] = [whole[(*before, slice(*cut))] for cut in pairwise(ends)]
        return self._loaded[name]

    def load_first(self, name: str) -> Array:
        """Return the stored values of a loaded variable in the first file."""
        if name in self._loaded:
            return self._loaded[name][0]
        if name not in self._firsts:
            known, data = self.alike.get_values(name), self.alike.group.variables[name].data
            self._firsts[name] = self._read(name, data) if known is None else known[0]
        return self._firsts[name]

    def check_same(self, name: str) -> None:
        """Refuse a variable that differs between files."""
        part, data = self.outline.parts[name], self.alike.group.variables[name].data
        nbytes = math.prod(data.shape) * data.dtype.itemsize
        too_large = nbytes > get_options().small_variable and not part.is_loaded
        if too_large or data.dtype.hasobject:
            raise NeedsFullCombineError(f"{name!r} takes more to compare")
        raw = None
        for values in self._iterate(name, part, nbytes):
            found = values.tobytes()
            raw = found if raw is None else raw
            if found != raw:
                raise NeedsFullCombineError(f"{name!r} differs")

    def _iterate(self, name: str, part: VariableDecoding, nbytes: int) -> Iterator[Array]:
        """Yield the values of a variable in each file."""
        if part.is_index:
            yield from self.load(name, part.stored[0][0])
            return
        if (values := self.alike.get_values(name)) is not None:
            self._firsts[name] = values[0]
            yield from values
            return
        stacked = self.alike.stack(name)
        if _is_repeated(stacked):
            yield self.load_first(name) if part.is_loaded else self._read(name, stacked[:1])[0]
            return
        step = max(COMPARED_BYTES // max(nbytes, 1), 1)
        for start in range(0, stacked.shape[0], step):
            rows = self._read(name, stacked[start : start + step])
            if not start and part.is_loaded:
                self._firsts[name] = rows[0].copy()
            yield from rows

    def _read(self, name: str, array: Any) -> Array:
        part = self.outline.parts[name]
        with name_variable_in_errors(part):
            stored = self.alike.group.variables[name]
            dims = stored.dims if array.ndim == len(stored.dims) else ("", *stored.dims)
            return part.load_values(replace(stored, dims=dims, data=array))


def _is_repeated(array: ManifestArray) -> bool:
    """Say whether all elements along the first axis refer to the same chunks."""
    if len(array.fragments) != 1 or array.has_gaps:
        return False
    [fragment] = array.fragments
    manifest = fragment.manifest.loaded()
    columns = (manifest.file, manifest.offset, manifest.length, manifest.pipeline)
    return fragment.axes[0].chunk == 1 and all(column.strides[0] == 0 for column in columns)


def _list_sizes(file: StoredFile) -> dict[str, int]:
    variables = file.group.variables.values()
    return {d: n for v in variables for d, n in zip(v.dims, v.data.shape, strict=True)}
