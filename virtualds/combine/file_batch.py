"""Batches of files as they were read, which are joined as they are stored.

A batch may be a single file. A batch of several has the references and values of all of them as
columns, and the start of each file in them, so that files can be taken out again, and sorted.

Before that they are `JoinableFiles`: files of the same structure, which their parser read together,
or which were read one by one. Files that do not fit are left to xarray.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, find_dim_sizes
from virtualds.arrays.parser import (
    ListedFiles,
    PerFile,
    SameStructureFiles,
    concatenate_keeping_byte_order,
    is_same_value,
    select_for_file,
)
from virtualds.chunks.columns import Ints
from virtualds.chunks.tables import RecordCache
from virtualds.datasets.decoding import (
    DecodingPlan,
    MisfitError,
    VariableDecoding,
    all_decode_alike,
    build_index,
    decode_together,
    encoding_of,
)
from virtualds.datasets.lazy import get_virtual_array, is_lazy
from virtualds.datasets.location import Location
from virtualds.datasets.open import make_dataset_or_tree, open_group
from virtualds.datasets.open_options import OpenOptions, fetch_coordinates
from virtualds.datasets.to_dataset import find_decoding_plan
from virtualds.errors import VirtualdsError, locating, without_secrets
from virtualds.formats.undecodable import DECODING_ERRORS
from virtualds.options import get_options
from virtualds.source_file import StorageOptions

Array = npt.NDArray[Any]

_PLANS: RecordCache[DecodingPlan] = RecordCache(64)
"""Plans of datasets by structure: datasets of the same structure share one, which is pickled once.
"""
COMPARED_BYTES = 2**24
"""How many bytes of values are compared at a time."""
NO_PLAN = DecodingPlan({}, frozenset(), frozenset())
"""The plan of files that decode without one, and of a batch whose plan is not known yet."""
UNPICKLABLE = (pickle.PicklingError, TypeError, AttributeError)
"""Errors of pickling attributes from other libraries."""


@dataclass(frozen=True, eq=False)
class FileBatch:
    """Files as they were read, and how they decode.

    ``urls`` are the files in the order in which they are joined, and ``numbers`` their positions
    among all files. ``group`` combines them: variables along ``dim`` have the elements of all
    files, in ``lengths`` the number of each, and everything else is that of the first file. The
    stored values of loaded variables are in memory.

    What else differs between the files is in ``attributes`` and ``encodings``, as in
    `SameStructureFiles`, and in ``stacked``: variables without the dimension that are virtual, or
    whose values differ, of all files along a new first axis. ``same`` are variables without the
    dimension whose values are equal in all files.

    ``is_whole`` is true if each file can be taken out as it was read, and false if some variables
    were loaded from the first file only. ``is_cut`` is true for a file taken out of a batch, for
    which ``plan`` may be wrong. ``indexes`` are the names of the indexes of datasets, which are
    already decoded. ``below`` are the groups below ``group`` in the same files, by path, if these
    are read as trees. ``decoded`` is the dataset or tree of a file that xarray had to decode
    without a plan.
    """

    urls: tuple[Any, ...]
    group: ManifestGroup
    plan: DecodingPlan
    opening: OpenOptions
    numbers: tuple[int, ...] = (0,)
    dim: str | None = None
    lengths: tuple[int, ...] = ()
    attributes: PerFile = field(default_factory=dict)
    encodings: PerFile = field(default_factory=dict)
    stacked: Mapping[str, ManifestArray | Array] = field(default_factory=dict)
    same: frozenset[str] = frozenset()
    is_whole: bool = True
    is_cut: bool = False
    indexes: tuple[Hashable, ...] | None = None
    below: Mapping[str, FileBatch] | None = None
    decoded: Any = None

    def __len__(self) -> int:
        return len(self.urls)

    @property
    def nchunks(self) -> int:
        """The number of chunks of virtual variables, in all files."""
        if self.decoded is not None:
            return int(self.decoded.virtual.nchunks)
        return sum(
            array.nchunks
            for _, batch in self.walk()
            for name, variable in batch.group.variables.items()
            if isinstance(array := batch.stacked.get(name, variable.data), ManifestArray)
        )

    def walk(self) -> Iterator[tuple[str, FileBatch]]:
        """Yield this batch, then those of the groups below, with their paths, parents first."""
        yield "", self
        yield from (self.below or {}).items()

    def map_groups(self, change: Callable[[FileBatch, str], FileBatch]) -> FileBatch:
        """Apply a function to the batch and path of each group, and return the new batch."""
        own = change(self, "")
        if self.below is None:
            return own
        return replace(own, below={path: change(one, path) for path, one in self.below.items()})

    def to_group(self) -> ManifestGroup:
        """Return the group, including the groups below it."""
        if self.below is None:
            return self.group
        nested = dict[str, dict[str, ManifestGroup]]()
        for path, batch in reversed([*self.walk()]):
            above, _, name = path.rpartition("/")
            own = dict(reversed([*nested.pop(path, {}).items()]))
            nested.setdefault(above if path else "/", {})[name] = replace(batch.group, groups=own)
        return nested["/"][""]

    def get_lengths(self, dim: str) -> tuple[int, ...]:
        """Return the lengths of the files along a dimension, -1 if they lack it."""
        if self.dim == dim:
            return self.lengths
        return (find_dim_sizes(self.group).get(dim, -1),) * len(self)

    def list_values(self, name: str) -> Sequence[Array]:
        """Return the stored values of a loaded variable, one array per file."""
        found, stacked = self.group.variables[name], self.stacked.get(name)
        values: Any = found.data
        if self.dim in found.dims:
            return np.split(values, self._ends[:-1], found.dims.index(self.dim))
        if isinstance(stacked, np.ndarray):
            return [stacked[place, ...] for place in range(len(self))]
        return [values] * len(self)

    @cached_property
    def _ends(self) -> list[int]:
        """The end of each file along the dimension."""
        return list(accumulate(self.lengths))

    def list_parts(self, name: str) -> list[VariableDecoding]:
        """Return how a variable decodes in each file."""
        return self.plan.list_parts(name, self.attributes, len(self))

    def has_same(self, name: str) -> bool:
        """Return whether a variable without the dimension has the same values in all files."""
        stacked = self.stacked.get(name)
        if len(self) == 1 or name in self.same or not isinstance(stacked, ManifestArray):
            return len(self) == 1 or name in self.same
        return are_same(iterate_rows(self.plan.parts[name], self.group.variables[name], stacked))

    def cut(self, place: int, known: int = 0) -> FileBatch:
        """Return one of the files as a batch; the plan was made for the file at ``known``."""
        return self if len(self) == 1 else self.map_groups(lambda one, _: one._cut(place, known))

    def _cut(self, place: int, known: int) -> FileBatch:
        own = slice(place, place + 1)
        variables = {name: self.cut_variable(name, place) for name in self.group.variables}
        group = replace(
            self.group,
            variables=variables,
            attributes=select_for_file("", self.attributes, place, self.group.attributes),
            encoding=select_for_file("", self.encodings, place, self.group.encoding),
        )
        plan = None
        with suppress(MisfitError):
            plan = self.plan.with_units_of(group)
        return replace(
            self,
            urls=self.urls[own],
            numbers=self.numbers[own],
            group=group,
            plan=plan or self.plan,
            lengths=self.lengths[own],
            attributes={},
            encodings={},
            stacked={},
            same=frozenset(),
            is_cut=plan is None or not self._decode_alike(place, known),
        )

    def _decode_alike(self, one: int, other: int) -> bool:
        """Return whether two files certainly decode by the same plan."""
        if one == other:
            return True
        columns = (*self.attributes.items(), *self.encodings.items())
        dates = {(part.dated, "units") for part in self.plan.parts.values()}
        heeded = [v for of, v in columns if of[0] and of[1] != "source" and of not in dates]
        return (
            not self._has_gaps
            and (not self.lengths or self.lengths[one] == self.lengths[other])
            and all(is_same_value(values[one], values[other]) for values in heeded)
        )

    @cached_property
    def _has_gaps(self) -> bool:
        data = (variable.data for variable in self.group.variables.values())
        arrays = (*data, *self.stacked.values())
        return any(one.has_gaps for one in arrays if isinstance(one, ManifestArray))

    def cut_variable(self, name: str, place: int) -> ManifestVariable:
        """Return a variable of one of the files."""
        found = self.group.variables[name]
        data: Any = found.data
        if self.dim in found.dims:
            along = slice(self._ends[place] - self.lengths[place], self._ends[place])
            data = data[tuple(along if dim == self.dim else slice(None) for dim in found.dims)]
        elif name in self.stacked:
            stacked: Any = self.stacked[name][place, ...]
            virtual = isinstance(stacked, ManifestArray)
            data = replace(stacked, name=data.name) if virtual else stacked
        if isinstance(data, np.ndarray):
            # copies, since changing the values of one file must not change those of others
            data = data.copy()
        return replace(
            found,
            data=data,
            attributes=select_for_file(name, self.attributes, place, found.attributes),
            encoding=select_for_file(name, self.encodings, place, found.encoding),
        )

    def list_files(self) -> Iterator[FileBatch]:
        """Yield each file as a batch."""
        return map(self.cut, range(len(self)))

    def check_decoding(self) -> None:
        """Raise an error if a file may not decode; decoding them one by one shows which."""
        for batch in (self.below or {}).values():
            batch.check_decoding()
        if not self.is_aligned:
            raise MisfitError
        for name, part in self.plan.parts.items():
            if part.is_loaded:
                parts, values = self.list_parts(name), self.list_values(name)
                if self.dim in part.stored[0]:
                    decode_together(parts, values, self.dim)
                    continue
                decoded = set[int]()
                for own, one in zip(parts, values, strict=True):
                    if name not in self.same or id(own) not in decoded:
                        own.decode_values(one)
                    decoded.add(id(own))

    @property
    def is_aligned(self) -> bool:
        """Whether each file certainly forms a tree.

        In a tree, groups share the dimensions of the groups above, and inherit their coordinates.
        """
        for path, batch in (self.below or {}).items():
            for above, other in self.walk():
                if path != above and (not above or path.startswith(f"{above}/")):
                    sizes = find_dim_sizes(other.group)
                    shared = sizes.keys() & find_dim_sizes(batch.group).keys()
                    if not all(batch._agrees(other, dim) for dim in shared):
                        return False
        return True

    def _agrees(self, other: FileBatch, dim: str) -> bool:
        """Return whether a dimension certainly agrees with that of a group above."""
        name, above = self.plan.find_index(dim), other.plan.find_index(dim)
        if self.get_lengths(dim) != other.get_lengths(dim) or name is None or above is None:
            return name is None and self.get_lengths(dim) == other.get_lengths(dim)
        is_joined = len(self) == 1 or self.dim == other.dim == dim
        if not is_joined and not (name in self.same and above in other.same):
            return False
        values: list[Any] = [self.group.variables[name].data, other.group.variables[above].data]
        parts = zip(self.list_parts(name), other.list_parts(above), strict=True)
        return are_same(values) and all(one.decodes_like(two) for one, two in parts)

    def to_dataset(self) -> Any:
        """Return the dataset or tree of all files together."""
        if self.decoded is not None:
            return self.decoded
        if self.indexes is not None:
            return self._assemble(self.indexes)
        plan = self.plan if self.below is None else None
        if self.is_cut and self.below is None:
            # files of another length have another encoding
            plan = find_decoding_plan(self.group, self.opening)
        location = Location.of(self.urls[0])
        return make_dataset_or_tree(location, self.to_group(), self.opening, plan)

    def _assemble(self, names: Iterable[Hashable]) -> xr.Dataset:
        """Return the dataset of variables that are already decoded."""
        group = self.group
        variables: dict[Hashable, xr.Variable] = {
            name: xr.Variable(v.dims, v.data, v.attributes, v.encoding)
            for name, v in group.variables.items()
        }
        indexes: dict[Hashable, xr.Index] = {}
        for name in names:
            variables[name], indexes[name] = build_index(name, variables[name])
        data = [name for name in variables if name not in self.plan.coordinates]
        found = xr.Coordinates(variables, indexes).to_dataset().reset_coords(data)
        found.attrs, found.encoding = dict(group.attributes), dict(group.encoding)
        return found


# ---------------------------------------------------------------------- comparing files


def are_same(values: Iterable[Array]) -> bool:
    """Return whether all arrays have the same bytes."""
    raw: Any = None
    for one in values:
        found: Any = one.tolist() if one.dtype.hasobject else one.tobytes()
        raw = found if raw is None else raw
        if found != raw:
            return False
    return True


def iterate_rows(
    part: VariableDecoding, stored: ManifestVariable, stacked: ManifestArray
) -> Iterator[Array]:
    """Yield the stored values of a variable in each file, given all files along a new first axis.

    If all files refer to the same chunks, they are read once.
    """
    step = max(COMPARED_BYTES // max(stacked.nbytes // max(len(stacked), 1), 1), 1)
    count = 1 if _is_repeated(stacked) else len(stacked)
    for start in range(0, count, step):
        rows = replace(
            stored, dims=("", *stored.dims), data=stacked[start : min(start + step, count)]
        )
        with locating(f"variable {part.name!r}"):
            values = part.load_values(rows)
        yield from (values[place, ...] for place in range(len(values)))


def _is_repeated(array: ManifestArray) -> bool:
    """Return whether all elements along the first axis refer to the same chunks."""
    if len(array.fragments) != 1 or array.has_gaps:
        return False
    [fragment] = array.fragments
    manifest = fragment.manifest.loaded()
    columns = (manifest.file, manifest.offset, manifest.length, manifest.pipeline)
    return fragment.axes[0].chunk == 1 and all(column.strides[0] == 0 for column in columns)


# ---------------------------------------------------------------------- opening one file


def open_stored(
    url: Any, opening: OpenOptions, storage_options: Mapping[str, Any] | None = None
) -> FileBatch:
    """Read a file; errors are those of `virtualds.open_virtual_dataset`."""
    location = Location.of(url, storage_options)
    with location.cache_scan():
        return make_batch(url, location, open_group(location, opening), opening)


def make_batch(
    url: Any, location: Location, group: ManifestGroup, opening: OpenOptions
) -> FileBatch:
    """Return a file that was read as a batch, with its loaded values in memory."""
    groups = dict(group.walk()) if opening.below else {"": group}
    if (plans := _find_plans(groups, opening)) is None:
        decoded = make_dataset_or_tree(location, group, opening)
        if (plans := _find_plans(groups, opening)) is None:
            return FileBatch((url,), group, NO_PLAN, opening, decoded=decoded)
    found = dict[str, FileBatch]()
    try:
        fetch_coordinates(location.url, [*groups.values()], opening)
        for path, part in groups.items():
            own, plan = replace(part, groups={}) if opening.below else part, plans[path]
            found[path] = FileBatch((url,), plan.load(own), plan, opening)
    except VirtualdsError as error:
        error.add_note(without_secrets(f"file {location.url}"))
        raise
    first = found.pop("")
    return replace(first, below=found) if opening.below else first


def _find_plans(
    groups: Mapping[str, ManifestGroup], opening: OpenOptions
) -> dict[str, DecodingPlan] | None:
    """Return how groups decode, or None unless groups of the same structures have been decoded."""
    found = {path: find_decoding_plan(group, opening) for path, group in groups.items()}
    plans = {path: plan for path, plan in found.items() if plan is not None}
    return plans if len(plans) == len(found) else None


# ---------------------------------------------------------------------- datasets as batches


class DecodedPart(VariableDecoding):
    """A variable that is already decoded, as in a dataset."""

    def unpack(self, stored: ManifestVariable) -> ManifestArray:
        """Return the array unchanged; it stays virtual."""
        array: Any = stored.data
        return array  # type: ignore[no-any-return]

    def decode_values(self, values: Array) -> Array:
        """Return the values unchanged."""
        return values


def as_batch(url: Any, opened: Any) -> FileBatch | None:
    """Return an opened file as a batch that can be joined, or None if that is impossible.

    Variables of a dataset must be virtual or in memory, and its indexes coordinates of dimensions.
    """
    if isinstance(opened, FileBatch) or not isinstance(opened, xr.Dataset):
        return opened if isinstance(opened, FileBatch) else None
    plain = {n for n, index in opened.xindexes.items() if type(index) is xr.indexes.PandasIndex}
    if plain != {n for n, v in opened.variables.items() if v.dims == (n,)}:
        return None
    variables = {
        str(name): ManifestVariable(v.dims, data, v.attrs, v.encoding)  # type: ignore[arg-type]
        for name, v in opened.variables.items()
        if isinstance(name, str) and (data := _data(v)) is not None
    }
    if len(variables) < len(opened.variables) or plain != set(opened.xindexes):
        return None
    plan = _make_plan(opened, variables)
    if plan is None:
        return None
    group = ManifestGroup(variables, opened.attrs, encoding=opened.encoding)
    opening = OpenOptions(decode_cf=False)
    return FileBatch((url,), group, plan, opening, indexes=tuple(opened.xindexes))


def _data(variable: xr.Variable) -> ManifestArray | Array | None:
    """Return virtual data or values in memory, or None for data of other kinds."""
    if (virtual := get_virtual_array(variable)) is not None:
        return virtual
    if is_lazy(variable) or variable.chunks is not None:
        return None
    data = variable.values if isinstance(variable, xr.IndexVariable) else variable.data
    return data if isinstance(data, np.ndarray) and data.dtype == variable.dtype else None


def _make_plan(dataset: xr.Dataset, variables: dict[str, ManifestVariable]) -> DecodingPlan | None:
    """Return a plan that changes nothing, or None if the structure cannot be pickled."""
    described = [
        (name, v.dims, v.data.dtype, isinstance(v.data, np.ndarray), dict(v.attributes))
        for name, v in variables.items()
    ]
    try:
        key = pickle.dumps((described, list(dataset.coords), list(dataset.xindexes)), 5)
    except UNPICKLABLE:
        return None

    def make() -> DecodingPlan:
        parts = {
            name: DecodedPart(
                name=name,
                stored=(v.dims, v.data.dtype),
                decoded=(v.dims, v.data.dtype),
                attributes=v.attributes,
                encoding={},
                declared={},
                inherited={},
                is_loaded=isinstance(v.data, np.ndarray),
                packing=None,
                decodes=False,
            )
            for name, v in variables.items()
        }
        return DecodingPlan(parts, frozenset(dataset.coords), frozenset())

    return _PLANS.get(key, make)


# ---------------------------------------------------------------------- alike files

TakesFirst = Callable[[VariableDecoding], bool]
"""Returns whether a variable is taken from the first file only."""


class NeedsFullCombineError(Exception):
    """Joining the files as they are stored might give a different result from xarray."""


@dataclass(frozen=True)
class JoinableFiles:
    """Files of the same structure, and how they decode.

    ``urls`` are as the user gave them, ``numbers`` are the positions among all files, and ``plan``
    is how the first of them decodes. ``indexes`` and ``below`` are as in a `FileBatch`. Methods
    raise `NeedsFullCombineError` if joining a variable might change the result.
    """

    alike: SameStructureFiles
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
                    data = concatenate_keeping_byte_order(
                        self.load(name, dim), stored.dims.index(dim)
                    )
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
        """Raise an error if a virtual variable decodes to different dates than in the first file.

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
