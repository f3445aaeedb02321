"""What every format lets a writer do to references on the way: cut chunks, and hold small ones.

``subchunk`` and ``inline_threshold`` change the group that a format is given, so that no format
knows of them. Tables of references that the target set has, and that are read on demand, stay as
they are. Of small sets, which are read as a whole, the chunks are cut and held as the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.subchunks import can_be_cut, cut_chunks
from virtualds.chunks.columns import INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.datasets.keywords import format_suggestion
from virtualds.errors import UnsupportedError, locating
from virtualds.formats.admission import IsKnown
from virtualds.reading.stored_chunks import StoredChunks, replace_chunks


def hold_small_chunks(manifest: ChunkManifest, name: str, most: int) -> ChunkManifest:
    """Return a manifest that holds its chunks of at most ``most`` bytes; ``name`` is for errors.

    Chunks are read as in any read: near ones by one request, many files at a time, and checked
    against their checksums. Equal ranges are read once.
    """
    chunks = StoredChunks(manifest, name)
    is_small = (chunks.file >= 0) & (chunks.length <= most)
    if not is_small.any():
        return manifest
    rows, new, which = chunks.read_distinct(is_small, lambda data: data)
    old = chunks.manifest
    numbers = len(old.inline) + which
    inline = (*old.inline, *new)
    return replace_chunks(old, rows, old.files, inline, file=INLINE, offset=numbers).pruned()


# ---------------------------------------------------------------------- what a user asks for

Subchunk = Mapping[str, int | Mapping[str, int]]
ChangeArray = Callable[[str, ManifestVariable, ManifestArray], ManifestArray]
"""Takes the path of a variable, the variable and its array; returns another array."""


@dataclass(frozen=True)
class ReferenceChanges:
    """How chunks are cut, and which are held in the set, as for ``ds.virtual.to_manifest``.

    A `TypeError` or `ValueError` is raised for what is no mapping or number.
    """

    subchunk: Any = None
    inline_threshold: Any = None

    def __post_init__(self) -> None:
        most = self.inline_threshold
        if most is not None and not (_is_integer(most) and most >= 0):
            raise ValueError(f"inline_threshold={most!r}: give a number of bytes, at least 0")
        if self.subchunk is not None:
            _check_subchunk(self.subchunk)

    def apply(self, group: ManifestGroup, is_known: IsKnown) -> ManifestGroup:
        """Return a group with its chunks cut and held; those of known tables stay.

        Raises
        ------
        UnsupportedError
            Chunks cannot be cut so.
        ReadError
            A chunk that is to be held cannot be read.
        ValueError
            No variable has a dimension to cut.
        """
        if self.subchunk:
            cutter = _Cutter(self.subchunk, is_known)
            group = _change_arrays(group, cutter.cut)
            cutter.demand_done(group)
        if self.inline_threshold:
            most = int(self.inline_threshold)
            group = _change_arrays(group, lambda path, _, array: _hold(array, path, most, is_known))
        return group


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_subchunk(given: Any) -> None:
    wanted = "give a dict of dimensions, or of variables, such as {'time': 1}"
    if not isinstance(given, Mapping):
        raise TypeError(f"subchunk {given!r}: {wanted}")
    for name, length in given.items():
        if isinstance(length, Mapping):
            if any(isinstance(inner, Mapping) for inner in length.values()):
                raise TypeError(f"subchunk {given!r}: {wanted}")
            _check_subchunk(length)
        elif not _is_integer(length) or length < 1:
            raise ValueError(f"subchunk {name}={length!r}: give a number of elements, at least 1")


def _change_arrays(group: ManifestGroup, change: ChangeArray) -> ManifestGroup:
    """Return a group, and those below it, with other virtual arrays."""

    def changed(path: str, variable: ManifestVariable) -> ManifestVariable:
        if not isinstance(variable.data, ManifestArray):
            return variable
        with locating(f"variable {path!r}"):
            array = change(path, variable, variable.data)
        return variable if array is variable.data else replace(variable, data=array)

    return group.map_variables(changed)


# ---------------------------------------------------------------------- cutting


@dataclass
class _Cutter:
    """Cuts the arrays that a user names by dimension or variable, and notes what it saw."""

    subchunk: Subchunk
    is_known: IsKnown
    is_done: bool = False

    def cut(self, path: str, variable: ManifestVariable, array: ManifestArray) -> ManifestArray:
        """Return an array with its chunks cut, itself if it is compressed."""
        named = self._find_named(path)
        wanted = self.subchunk if named is None else named
        lengths = {
            axis: int(wanted[dim])  # type: ignore[arg-type]  # checked at the beginning
            for axis, dim in enumerate(variable.dims)
            if dim in wanted and not isinstance(wanted[dim], Mapping)
        }
        if not lengths:
            return array
        known = [f for f in array.fragments if _is_inside(f.manifest, self.is_known)]
        # a set that grows was cut when it was written
        self.is_done |= bool(known) or _has_chunks_of(array, lengths)
        if named is None and not can_be_cut(array):
            return array
        new = [f for f in array.fragments if not any(f is one for one in known)]
        found = cut_chunks(replace(array, fragments=tuple(new)), lengths, variable.dims)
        self.is_done |= found.nchunks != sum(f.manifest.size for f in new)
        return replace(array, fragments=(*known, *found.fragments))

    def _find_named(self, path: str) -> Mapping[str, int] | None:
        """Return the lengths of a variable that the user names."""
        for name in (path, path.rpartition("/")[2]):
            if isinstance(found := self.subchunk.get(name), Mapping):
                return found
        return None

    def demand_done(self, group: ManifestGroup) -> None:
        """Refuse a wish that has changed nothing: no such names, or compressed chunks."""
        names = {name for _, part in group.walk() for name in part.variables}
        names |= {dim for _, variable in group.walk_variables() for dim in variable.dims}
        for name in self.subchunk:
            if name.rpartition("/")[2] not in names:
                raise ValueError(
                    f"subchunk {name!r}: there is no such dimension or variable"
                    f"{format_suggestion(name, names)}"
                )
        if not self.is_done:
            raise UnsupportedError(
                f"subchunk {dict(self.subchunk)!r}: no variable has uncompressed chunks that are "
                f"longer, and parts of compressed chunks are not ranges of bytes; leave it out"
            )


def _has_chunks_of(array: ManifestArray, lengths: Mapping[int, int]) -> bool:
    """Say whether no chunk of an array is longer."""
    return all(
        max(f.axes[axis].stored_lengths(), default=0) <= length
        for f in array.fragments
        for axis, length in lengths.items()
    )


def _is_inside(manifest: ChunkManifest, is_known: IsKnown) -> bool:
    """Say whether references lie in the target set."""
    return manifest.table is not None and is_known(manifest.table)


# ---------------------------------------------------------------------- holding


def _hold(array: ManifestArray, path: str, most: int, is_known: IsKnown) -> ManifestArray:
    """Return an array with its small chunks in memory."""
    fragments = []
    for fragment in array.fragments:
        manifest = fragment.manifest
        if not _is_inside(manifest, is_known):
            manifest = hold_small_chunks(manifest, path, most)
        fragments.append(
            fragment if manifest is fragment.manifest else replace(fragment, manifest=manifest)
        )
    changed = any(a is not b for a, b in zip(fragments, array.fragments, strict=True))
    return replace(array, fragments=tuple(fragments)) if changed else array
