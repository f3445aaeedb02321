"""Files of the same structure, whose variables are joined or compared for all files at once.

Their parser read them together, or they were read one by one. Files that do not fit are left to
xarray.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.parser import AlikeFiles, ListedFiles, Parser, ReadAlike, concatenate_alike
from virtualds.chunks.columns import Ints
from virtualds.codecs.cf import PACKING_ATTRIBUTES
from virtualds.combine.file_batch import FileBatch, are_same, iterate_rows
from virtualds.datasets.decoding import (
    DecodingPlan,
    MisfitError,
    VariableDecoding,
    all_decode_alike,
    are_date_units,
    encoding_of,
)
from virtualds.datasets.location import Location, reader_of
from virtualds.datasets.open import make_dataset_or_tree
from virtualds.datasets.open_options import OpenOptions
from virtualds.datasets.registry import PARSERS
from virtualds.datasets.structure import SYSTEM_ATTRIBUTES
from virtualds.datasets.to_dataset import find_decoding_plan
from virtualds.errors import VirtualdsError, locating
from virtualds.formats.undecodable import DECODING_ERRORS
from virtualds.options import get_options
from virtualds.reading.fetch import chunk_cache
from virtualds.source_file import StorageOptions
from virtualds.stores.access_rules import AccessPolicy
from virtualds.urls import normalise_url

Array = npt.NDArray[Any]

DECODING_ATTRIBUTES = frozenset(
    {
        *PACKING_ATTRIBUTES,
        *("units", "calendar", "_Encoding", "char_dim_name", "_ARRAY_DIMENSIONS"),
        *("coordinates", "bounds", "climatology", "grid_mapping", "ancillary_variables"),
        *("cell_measures", "formula_terms", "geometry", "node_coordinates", "node_count"),
        *("part_node_count", "interior_ring", "dimensions", "axis", "standard_name"),
        *SYSTEM_ATTRIBUTES,
    }
)
"""Attributes that may determine how xarray decodes a variable, besides its values (CF conventions
1.12, appendix A), and some that may do so in the future. Units of dates are handled separately."""
PLAIN_SEPARATOR = "::"
"""Separates the parts of urls of files in archives, and of chained fsspec urls."""


TakesFirst = Callable[[VariableDecoding], bool]
"""Returns whether a variable is taken from the first file only."""


class NeedsFullCombineError(Exception):
    """Joining the files as they are stored might give another result than xarray."""


@dataclass(frozen=True)
class JoinableFiles:
    """Files of the same structure, and how they decode.

    ``urls`` are as the user gave them, ``numbers`` are the positions among all files, and ``plan``
    is how the first of them decodes. ``indexes`` and ``below`` are as in a `FileBatch`. Methods
    raise `NeedsFullCombineError` if joining a variable might change the result.
    """

    alike: AlikeFiles
    urls: Sequence[Any]
    numbers: Sequence[int]
    plan: DecodingPlan
    opening: OpenOptions
    options: StorageOptions | None = None
    indexes: tuple[Any, ...] | None = None
    below: Mapping[str, JoinableFiles] | None = None
    _loaded: dict[str, Sequence[Array]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, files: Sequence[FileBatch]) -> JoinableFiles:
        """Create it from files that were opened one by one."""
        first, below = files[0], None
        alike = ListedFiles([file.group for file in files], range(len(files)))
        urls = [url for file in files for url in file.urls]
        numbers = [number for file in files for number in file.numbers]
        if first.below is not None:
            below = {
                path: cls.of([(file.below or {})[path] for file in files]) for path in first.below
            }
        return cls(
            *(alike, urls, numbers, first.plan, first.opening),
            indexes=first.indexes,
            below=below,
        )

    def walk(self) -> Iterator[JoinableFiles]:
        """Yield the files, and the groups below them."""
        yield self
        yield from (self.below or {}).values()

    def take(self, places: Ints) -> JoinableFiles:
        """Return some of the files, in the given order; the new first one may need decoding."""
        order = places.tolist()
        alike, plan = self.alike.take(places), self.plan
        urls = [self.urls[n] for n in order]
        if order[0] and self.indexes is None:
            plan = find_plan(urls[0], alike.group, self.opening, self.options)
        loaded: dict[str, Sequence[Array]] = {
            name: [some[n] for n in order] for name, some in self._loaded.items()
        }
        numbers, below = [self.numbers[n] for n in order], None
        if self.below is not None:
            below = {path: files.take(places) for path, files in self.below.items()}
        return replace(
            self,
            alike=alike,
            urls=urls,
            numbers=numbers,
            plan=plan,
            below=below,
            _loaded=loaded,
        )

    def collect(self, dim: str | None, counts_once: TakesFirst | None = None) -> FileBatch:
        """Return the files as one batch.

        Variables are joined along ``dim``, if it is given; all other dimensions must have the same
        length in all files. ``counts_once`` selects the loaded variables that are taken from the
        first file only.
        """
        group, given = self.alike.group, dim
        if dim not in self.lengths:
            dim = None
        variables, stacked = dict(group.variables), dict[str, Any]()
        same, is_whole = set[str](), True
        for name, part in self.plan.parts.items():
            stored = group.variables[name]
            data: Any = stored.data
            if dim is not None and dim in stored.dims:
                if part.is_loaded:
                    data = concatenate_alike(self.load(name, dim), stored.dims.index(dim))
                else:
                    data = self.join(name, dim)
                    self._check_dates(name, data, dim)
            elif not part.is_loaded:
                if isinstance(data, ManifestArray):
                    stacked[name] = self.alike.stack(name)
                    self._check_dates(name, stacked[name], None)
            elif counts_once is not None and counts_once(part):
                is_whole = False
                known = self.alike.get_values(name)
                first = group.variables[name].data
                data = self._read(name, first) if known is None else np.array(known[0])
            else:
                rows = self._iterate(name)
                data = next(rows).copy()
                if are_same(chain([data], rows)):
                    same.add(name)
                else:
                    stacked[name] = np.stack([*self._iterate(name)])
            encoding = encoding_of(stored) if part.is_loaded else stored.encoding
            variables[name] = replace(stored, data=data, encoding=encoding)
        lengths, below = self.lengths.get(dim or "", np.zeros(0, np.int64)), None
        if self.below is not None:
            below = {path: files.collect(given, counts_once) for path, files in self.below.items()}
            is_whole = is_whole and all(batch.is_whole for batch in below.values())
        return FileBatch(
            tuple(self.urls),
            replace(group, variables=variables),
            self.plan,
            self.opening,
            tuple(self.numbers),
            dim,
            tuple(lengths.tolist()),
            self.alike.attributes,
            self.alike.encodings,
            stacked,
            frozenset(same),
            is_whole,
            indexes=self.indexes,
            below=below,
        )

    @property
    def lengths(self) -> Mapping[str, Ints]:
        """The length of each dimension in each file; -1 where a file lacks it."""
        lengths, variables = self.alike.lengths, self.alike.group.variables.values()
        return {dim: lengths[dim] for variable in variables for dim in variable.dims}

    def list_parts(self, name: str) -> list[VariableDecoding]:
        """Return how a variable decodes in each file."""
        return self.plan.list_parts(name, self.alike.attributes, len(self.urls))

    def _check_dates(self, name: str, array: Any, dim: str | None) -> None:
        """Raise an error if a virtual variable decodes to other dates than in the first file.

        ``array`` has all files along ``dim``, or without it along a new first axis.
        """
        part = self.plan.parts[name]
        if not part.depends_on_values:
            return
        lengths = np.ones(len(self.urls), np.int64) if dim is None else self.lengths[dim]
        along = 0 if dim is None else part.stored[0].index(dim)
        if not isinstance(array, ManifestArray) or not (array.size and lengths.all()):
            raise NeedsFullCombineError(f"{name!r} has dates that are not known")
        stops = np.cumsum(lengths)
        rows = np.stack([stops - lengths, stops - 1], axis=1)
        points = [np.broadcast_to([0, length - 1], rows.shape) for length in array.shape]
        points[along] = rows
        try:
            ends = array.read_points(tuple(points))
            for own, values in zip(self.list_parts(name), ends, strict=True):
                own.check_ends(values)
        except (VirtualdsError, MisfitError, *DECODING_ERRORS) as error:
            # decoding the files one by one shows which of them fails, and why
            raise NeedsFullCombineError(f"{name!r} has dates that are not known") from error

    def find_plans_of_other_lengths(self, dim: str | None) -> Iterator[DecodingPlan]:
        """Yield how the shortest and longest file decode: what is loaded depends on lengths."""
        lengths = self.lengths.get(dim or "", np.zeros(1, np.int64))
        for place in {int(lengths.argmin()), int(lengths.argmax())}:
            if lengths[place] != lengths[0] and self.indexes is None:
                group = self.alike.take(np.array([place])).group
                yield find_plan(self.urls[place], group, self.opening, self.options)

    def join(self, name: str, dim: str) -> Array | ManifestArray:
        """Return a variable of all files, joined along a dimension in its stored form."""
        if not isinstance(self.alike.group.variables[name].data, ManifestArray | np.ndarray):
            raise NeedsFullCombineError(f"{name!r} is read when it is needed")
        return self.alike.join(name, dim)

    def load(self, name: str, dim: str) -> Sequence[Array]:
        """Return the stored values of a loaded variable with the dimension, one array per file."""
        if name not in self._loaded and (values := self.alike.get_values(name)) is not None:
            self._loaded[name] = values
        if name not in self._loaded:
            axis = self.plan.parts[name].stored[0].index(dim)
            whole = self._read(name, self.alike.join(name, dim))
            ends = accumulate(self.lengths[dim].tolist(), initial=0)
            before = (slice(None),) * axis
            self._loaded[name] = [whole[(*before, slice(*cut))] for cut in pairwise(ends)]
        return self._loaded[name]

    def are_same(self, name: str) -> bool:
        """Return whether a variable has the same stored values in all files."""
        return are_same(self._iterate(name))

    def differs(self, name: str) -> bool:
        """Return whether the decoded values of a variable may differ between files."""
        return not (all_decode_alike(self.list_parts(name)) and self.are_same(name))

    def is_too_large(self, name: str) -> bool:
        """Return whether a virtual variable has too many values to be compared."""
        data = self.alike.group.variables[name].data
        nbytes = math.prod(data.shape) * data.dtype.itemsize
        return nbytes > get_options().small_variable or data.dtype.hasobject

    def _iterate(self, name: str) -> Iterator[Array]:
        """Yield the values of a variable, file by file."""
        part, data = self.plan.parts[name], self.alike.group.variables[name].data
        if part.is_index:
            yield from self.load(name, part.stored[0][0])
            return
        if (values := self.alike.get_values(name)) is not None:
            yield from map(np.asarray, values)
            return
        if not isinstance(data, ManifestArray):
            raise NeedsFullCombineError(f"{name!r} is read when it is needed")
        yield from iterate_rows(part, self.alike.group.variables[name], self.alike.stack(name))

    def _read(self, name: str, array: Any) -> Array:
        part = self.plan.parts[name]
        with locating(f"variable {part.name!r}"):
            stored = self.alike.group.variables[name]
            dims = stored.dims if array.ndim == len(stored.dims) else ("", *stored.dims)
            return part.load_values(replace(stored, dims=dims, data=array))


def collect_files(files: JoinableFiles) -> list[FileBatch]:
    """Return files of the same structure as batches that suit any way of combining them.

    Raises `NeedsFullCombineError` if they have to be opened one by one.
    """
    every, dim = list(files.walk()), guess_dimension(files)
    for group in every:
        loaded = [part.is_loaded for part in group.plan.parts.values()]
        for plan in group.find_plans_of_other_lengths(dim):
            if [part.is_loaded for part in plan.parts.values()] != loaded:
                raise NeedsFullCombineError("files of other lengths have other variables loaded")
    others = [sizes for group in every for name, sizes in group.lengths.items() if name != dim]
    if not any((sizes != sizes[0]).any() for sizes in others):
        return [files.collect(dim)]
    rows = np.unique(np.stack(others, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    return [files.take(np.flatnonzero(rows == row)).collect(dim) for row in range(rows.max() + 1)]


def guess_dimension(files: JoinableFiles) -> str | None:
    """Return the dimension whose length or coordinate differs between files, or None."""
    for part in files.walk():
        lengths, group = part.lengths, part.alike.group
        if varying := [dim for dim, sizes in lengths.items() if (sizes != sizes[0]).any()]:
            unlimited = group.encoding.get("unlimited_dims", ())
            return max(varying, key=lambda dim: dim in unlimited)
        indexes = {name: p.stored[0][0] for name, p in part.plan.parts.items() if p.is_index}
        if differing := next((dim for name, dim in indexes.items() if part.differs(name)), None):
            return differing
    return None


def find_plan(
    url: Any, group: ManifestGroup, opening: OpenOptions, options: StorageOptions | None
) -> DecodingPlan:
    """Return how a group decodes.

    Raises `NeedsFullCombineError` if groups of this structure have to be decoded one by one.
    """
    plan = find_decoding_plan(group, opening)
    if plan is None:
        make_dataset_or_tree(Location.of(url, options), group, replace(opening, below=False))
        plan = find_decoding_plan(group, opening)
    if plan is None:
        raise NeedsFullCombineError("every file has to be decoded by itself")
    return plan


# ---------------------------------------------------------------------- read by their parser


@dataclass(frozen=True)
class AlikeOpener:
    """Opens files of the same structure together, if their parser can."""

    opening: OpenOptions
    options: StorageOptions | None = None

    @contextmanager
    def open_alike(
        self, items: Sequence[tuple[int, Any]], compares_all: bool
    ) -> Iterator[Sequence[AlikeFiles]]:
        """Yield the files of each structure, open until the end of the block.

        With ``compares_all``, files of the same structure agree in all attributes, not only in
        those that determine how xarray decodes a variable.
        """
        files = [file for _, file in items]
        if len(files) < 2 or not all(isinstance(file, str | os.PathLike) for file in files):
            yield ()
            return
        urls = [normalise_url(file) for file in files]
        first = Location.of(files[0], self.options)
        # the first file shows which parser all need, and often how they decode
        with first.hold_scan():
            plain = not any(PLAIN_SEPARATOR in url for url in urls)
            plain = plain and self.opening.snapshot is None and not self.opening.parser_options
            read: ReadAlike | None = None
            if plain and (self.opening.parser is not None or _may_be_read_together(first.url)):
                parser, _ = reader_of(first, self.opening.parser)
                read = parser.read_alike if isinstance(parser, Parser) else None
            if read is None:
                yield ()
                return
            AccessPolicy.of(self.opening.allow)
            chunk_cache().open()
            opening = self.opening

            def heeds(name: str, value: Any) -> bool:
                is_column = name == "units" and opening.decode_cf and are_date_units(value)
                return not is_column and (compares_all or name in DECODING_ATTRIBUTES)

            wanted = opening.group, opening.skip, heeds, opening.below
            with read(urls, self.options, *wanted) as found:
                yield [alike for alike in found if len(alike.numbers) > 1]

    def make_joinable(self, alike: AlikeFiles, items: Sequence[tuple[int, Any]]) -> JoinableFiles:
        """Return files of the same structure in a form that can be joined.

        Raises `NeedsFullCombineError` if they have to be decoded one by one.
        """
        numbers, files = zip(*(items[n] for n in alike.numbers), strict=True)
        found = dict[str, JoinableFiles]()
        for path, one in {"": alike, **alike.below}.items():
            if not all(isinstance(v.data, ManifestArray) for v in one.group.variables.values()):
                raise NeedsFullCombineError("some variables are read when they are needed")
            plan = find_plan(files[0], one.group, self.opening, self.options)
            found[path] = JoinableFiles(one, files, numbers, plan, self.opening, self.options)
        first = found.pop("")
        return replace(first, below=found) if self.opening.below else first


def _may_be_read_together(url: str) -> bool:
    """Return whether a file may be read together with others, judging by its name alone."""
    name, is_known = url.partition("?")[0].lower(), False
    for parser in PARSERS:
        if name.endswith(parser.suffixes):
            is_known = True
            if parser.read_alike is not None:
                return True
    return not is_known
