"""Files as they were read, of which datasets can be made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.decoding_cache import DecodingPlan
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import Location
from virtualds.datasets.open import dataset_of, open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.to_dataset import find_decoding_plan
from virtualds.errors import ReadError, VirtualdsError, without_secrets
from virtualds.options import get_options


@dataclass(frozen=True, eq=False)
class StoredFile:
    """A file as it was read, and how it decodes.

    Parameters
    ----------
    url : str or path
    group : ManifestGroup
    outline : Outline
    values : mapping of str to numpy.ndarray
        What the dataset has in memory, as stored.
    opening : OpenOptions
        How it was opened.
    apart : mapping of str to sequence of numpy.ndarray
        Of several files that were joined: the values of each, of those variables that were put
        together of all.
    """

    url: Any
    group: ManifestGroup
    outline: DecodingPlan
    values: Mapping[str, npt.NDArray[Any]]
    opening: OpenOptions
    apart: Mapping[str, Sequence[npt.NDArray[Any]]] = field(default_factory=dict)

    @property
    def nchunks(self) -> int:
        """Chunks of what stays virtual."""
        found = (v.data for name, v in self.group.variables.items() if name not in self.values)
        return sum(data.nchunks for data in found if isinstance(data, ManifestArray))

    def values_by_file(self, name: str) -> Sequence[npt.NDArray[Any]]:
        """Return the values of a variable in memory, as stored, of each of the files."""
        return self.apart.get(name) or [self.values[name]]

    def fingerprints(self, dim: str) -> set[tuple[Any, ...]]:
        """Return url and fingerprint of every file that holds chunks of what has a dimension."""
        return _fingerprints([(v.dims, v.data) for v in self.group.variables.values()], dim)

    def stored_values(self, name: str) -> npt.NDArray[Any] | None:
        """Return a variable as stored, if it is in memory or small; None is any other.

        Raises
        ------
        ReadError
            Bytes cannot be had, have changed, or do not decode.
        """
        if name in self.values:
            return self.values[name]
        variable = self.group.variables[name]
        data = variable.data
        if not isinstance(data, ManifestArray) or data.nbytes > get_options().small_variable:
            return None
        return variable.read()

    def cut(self, dim: str, place: int, start: int, stop: int) -> StoredFile:
        """Return one of several files that were joined along a dimension."""
        variables = {
            name: replace(v, data=v.data[_along(v.dims, dim, start, stop)])  # type: ignore[index]
            if dim in v.dims
            else v
            for name, v in self.group.variables.items()
        }
        values = {**self.values, **{name: some[place] for name, some in self.apart.items()}}
        group = replace(self.group, variables=variables)
        return replace(self, group=group, values=values, apart={})

    def dataset(self) -> xr.Dataset:
        """Return the dataset of the file.

        Raises
        ------
        VirtualdsError
            Values cannot be had.
        """
        return dataset_of(Location.of(self.url), self.group, self.opening)


@dataclass(frozen=True, eq=False)
class ConcatenatedFiles:
    """Neighbouring files that are alike, joined as they are stored.

    Parameters
    ----------
    joined : StoredFile
        All of them, as if they were one.
    dim : str
        The dimension along which they are joined.
    urls : tuple of str or path
        Of the files, in their order.
    lengths : tuple of int
        Of the files along the dimension.
    open : callable
        Opens one of them again.
    """

    joined: StoredFile
    dim: str
    urls: tuple[Any, ...]
    lengths: tuple[int, ...]
    open: Callable[[Any], Any]

    def file(self, place: int) -> StoredFile:
        """Return a file; what has not the dimension, and is described, as in the first one."""
        start = sum(self.lengths[:place])
        return self.joined.cut(self.dim, place, start, start + self.lengths[place])


class FileInConcat(NamedTuple):
    """A file that went into a stretch, at some place in it."""

    stretch: ConcatenatedFiles
    place: int

    def dataset(self) -> xr.Dataset:
        """Open the file again, and return its dataset.

        Raises
        ------
        VirtualdsError
            It cannot be opened any more, is not what went into the stretch, or values cannot be
            had.
        """
        stretch, url = self.stretch, self.stretch.urls[self.place]
        opened = stretch.open(url)
        if get_options().check_sources:
            known = stretch.joined.fingerprints(stretch.dim)
            if not _fingerprints_of(opened, stretch.dim) <= known:
                raise ReadError(
                    f"{Location.of(url).url}: it was modified after it was scanned; open the files "
                    f"again (virtualds.set_options(check_sources=False) opens them all the same)"
                )
        found: xr.Dataset = decode_opened(opened)
        return found


def decode_opened(opened: Any) -> Any:
    """Return the dataset of a file that was opened, or whatever else it was opened as.

    Raises
    ------
    VirtualdsError
        Values cannot be had.
    """
    return opened.dataset() if isinstance(opened, StoredFile | FileInConcat) else opened


def sample(file: StoredFile | FileInConcat) -> xr.Dataset:
    """Return the dataset of a file, without opening it again if it went into a stretch.

    It then has what joining looks at; see `ConcatenatedFiles.file`.

    Raises
    ------
    VirtualdsError
        Values cannot be had.
    """
    stored = file.stretch.file(file.place) if isinstance(file, FileInConcat) else file
    return stored.dataset()


def concat_stored(files: Iterable[StoredFile | FileInConcat], dim: str) -> Iterator[StoredFile]:
    """Yield files that are by themselves, and each stretch as if it were one.

    Raises
    ------
    ValueError
        A stretch has another dimension, or is not there from end to end.
    """
    rest = iter(files)
    for file in rest:
        if isinstance(file, StoredFile):
            yield file
            continue
        stretch = file.stretch
        members = [FileInConcat(stretch, place) for place in range(len(stretch.urls))]
        if stretch.dim != dim or [file, *islice(rest, len(members) - 1)] != members:
            raise ValueError(f"files that were joined along {stretch.dim!r} are to be so otherwise")
        yield stretch.joined


def _fingerprints_of(opened: Any, dim: str) -> set[tuple[Any, ...]]:
    if isinstance(opened, StoredFile):
        return opened.fingerprints(dim)
    return _fingerprints([(v.dims, get_virtual_array(v)) for v in opened.variables.values()], dim)


def _fingerprints(variables: Iterable[tuple[Any, Any]], dim: str) -> set[tuple[Any, ...]]:
    """Return url and fingerprint of every file that holds chunks of what has a dimension."""
    arrays = (data for dims, data in variables if dim in dims and isinstance(data, ManifestArray))
    return {(f.url, *f.fingerprint) for array in arrays for f in array.listed_sources}


def _along(dims: Sequence[str], dim: str, start: int, stop: int) -> tuple[slice, ...]:
    return tuple(slice(start, stop) if other == dim else slice(None) for other in dims)


def open_stored(
    url: Any, opening: OpenOptions, storage_options: Mapping[str, Any] | None = None
) -> xr.Dataset | StoredFile:
    """Read a local file; return its dataset where nothing is known of how it decodes.

    Errors are those of `virtualds.open_virtual_dataset`.
    """
    location = Location.of(url, storage_options)
    group = open_group(location, opening)
    outline = find_decoding_plan(group, opening)
    if outline is None:
        dataset = dataset_of(location, group, opening)
        outline = find_decoding_plan(group, opening)
        if outline is None:
            return dataset
    try:
        values = outline.values(group)
    except VirtualdsError as error:
        error.add_note(without_secrets(f"file {location.url}"))
        raise
    return StoredFile(url, group, outline, values, opening)
