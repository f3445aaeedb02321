"""Files as they were read, from which datasets are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.coordinates import fetch_coordinates
from virtualds.datasets.decoding_cache import DecodingPlan
from virtualds.datasets.lazy import get_virtual_array
from virtualds.datasets.location import Location
from virtualds.datasets.open import dataset_of, open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.to_dataset import KnownDecoding, find_decoding_plan
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
        The stored values of loaded variables.
    opening : OpenOptions
        How it was opened.
    apart : mapping of str to sequence of numpy.ndarray
        For joined files: the values of each file, for variables that were concatenated.
    """

    url: Any
    group: ManifestGroup
    outline: DecodingPlan
    values: Mapping[str, npt.NDArray[Any]]
    opening: OpenOptions
    apart: Mapping[str, Sequence[npt.NDArray[Any]]] = field(default_factory=dict)

    @property
    def nchunks(self) -> int:
        """Number of chunks of virtual variables."""
        found = (v.data for name, v in self.group.variables.items() if name not in self.values)
        return sum(data.nchunks for data in found if isinstance(data, ManifestArray))

    def load_values_by_file(self, name: str) -> Sequence[npt.NDArray[Any]]:
        """Return the stored values of a loaded variable, for each of the files."""
        return self.apart.get(name) or [self.values[name]]

    def collect_fingerprints(self, dim: str) -> set[tuple[Any, ...]]:
        """Return url and fingerprint of every file with chunks of variables along a dimension."""
        return _fingerprints([(v.dims, v.data) for v in self.group.variables.values()], dim)

    def get_stored_values(self, name: str) -> npt.NDArray[Any] | None:
        """Return the stored values of a variable if they are loaded or small, else None.

        Raises
        ------
        ReadError
            Bytes cannot be read, have changed, or do not decode.
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

    def to_dataset(self) -> xr.Dataset:
        """Return the dataset of the file.

        Raises
        ------
        VirtualdsError
            Values cannot be read.
        """
        known = KnownDecoding(self.outline, self.values)
        return dataset_of(Location.of(self.url), self.group, self.opening, known)


@dataclass(frozen=True, eq=False)
class ConcatenatedFiles:
    """Neighbouring alike files, joined as they are stored.

    Parameters
    ----------
    joined : StoredFile
        All files as one file.
    dim : str
        The dimension along which they are joined.
    urls : tuple of str or path
        The files, in order.
    lengths : tuple of int
        Lengths of the files along the dimension.
    open : callable
        Opens one of them again.
    """

    joined: StoredFile
    dim: str
    urls: tuple[Any, ...]
    lengths: tuple[int, ...]
    open: Callable[[Any], Any]

    @property
    def references(self) -> int:
        """Number of chunks of virtual variables, in all files."""
        joined = self.joined
        alike = {n: v for n, v in joined.group.variables.items() if self.dim not in v.dims}
        in_each = replace(joined, group=replace(joined.group, variables=alike)).nchunks
        return joined.nchunks + (len(self.urls) - 1) * in_each

    def get_file(self, place: int) -> StoredFile:
        """Return one file; what lacks the dimension, and attributes, are those of the first."""
        start = sum(self.lengths[:place])
        file = self.joined.cut(self.dim, place, start, start + self.lengths[place])
        return replace(file, url=self.urls[place])


class FileInConcat(NamedTuple):
    """A file in a stretch, and its place."""

    stretch: ConcatenatedFiles
    place: int

    def to_dataset(self) -> xr.Dataset:
        """Open the file again, and return its dataset.

        Raises
        ------
        VirtualdsError
            The file cannot be opened any more, has changed since it was joined, or values cannot be
            read.
        """
        stretch, url = self.stretch, self.stretch.urls[self.place]
        opened = stretch.open(url)
        if get_options().check_sources:
            known = stretch.joined.collect_fingerprints(stretch.dim)
            if not _fingerprints_of(opened, stretch.dim) <= known:
                raise ReadError(
                    f"{Location.of(url).url}: it was modified after it was scanned; open the files "
                    f"again"
                )
        found: xr.Dataset = decode_opened(opened)
        return found


def decode_opened(opened: Any) -> Any:
    """Return the dataset of an opened file, or other opened objects unchanged.

    Raises
    ------
    VirtualdsError
        Values cannot be read.
    """
    return opened.to_dataset() if isinstance(opened, StoredFile | FileInConcat) else opened


def sample(file: StoredFile | FileInConcat) -> xr.Dataset:
    """Return the dataset of a file; a file in a stretch is not opened again.

    The dataset then has what joining compares; see `ConcatenatedFiles.get_file`.

    Raises
    ------
    VirtualdsError
        Values cannot be read.
    """
    stored = file.stretch.get_file(file.place) if isinstance(file, FileInConcat) else file
    return stored.to_dataset()


def concat_stored(files: Iterable[StoredFile | FileInConcat], dim: str) -> Iterator[StoredFile]:
    """Yield single files, and each stretch as one file.

    Raises
    ------
    ValueError
        A stretch has another dimension, or is incomplete.
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
        return opened.collect_fingerprints(dim)
    return _fingerprints([(v.dims, get_virtual_array(v)) for v in opened.variables.values()], dim)


def _fingerprints(variables: Iterable[tuple[Any, Any]], dim: str) -> set[tuple[Any, ...]]:
    """Return url and fingerprint of every file with chunks of variables along a dimension."""
    arrays = (data for dims, data in variables if dim in dims and isinstance(data, ManifestArray))
    return {(f.url, *f.fingerprint) for array in arrays for f in array.listed_sources}


def _along(dims: Sequence[str], dim: str, start: int, stop: int) -> tuple[slice, ...]:
    return tuple(slice(start, stop) if other == dim else slice(None) for other in dims)


def open_stored(
    url: Any, opening: OpenOptions, storage_options: Mapping[str, Any] | None = None
) -> xr.Dataset | StoredFile:
    """Read a file; return its dataset if no plan for decoding it is known.

    Errors are those of `virtualds.open_virtual_dataset`.
    """
    location = Location.of(url, storage_options)
    with location.hold_scan():
        group = open_group(location, opening)
        outline = find_decoding_plan(group, opening)
        if outline is None:
            dataset = dataset_of(location, group, opening)
            outline = find_decoding_plan(group, opening)
            if outline is None:
                return dataset
        try:
            fetch_coordinates(location.url, [group], opening)
            values = outline.load_values(group)
        except VirtualdsError as error:
            error.add_note(without_secrets(f"file {location.url}"))
            raise
    return StoredFile(url, group, outline, values, opening)
