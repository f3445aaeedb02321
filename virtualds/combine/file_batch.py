"""Represent opened files of the same structure before CF decoding.

A `FileBatch` of several files has their joined references and values, and the length of each file,
so that single files can be extracted again. `JoinableFiles` are files that can be joined into a
batch, whether their parser read them together or one by one. Other files are combined by xarray.
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
    SameStructureFiles,
    ValuesPerFile,
    concatenate_keeping_byte_order,
    is_same_value,
    select_for_file,
)
from virtualds.chunks.columns import Ints
from virtualds.chunks.tables import RecordCache
from virtualds.datasets.conversion import find_decoding_plan, make_dataset_or_tree
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
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import VirtualdsError, locating
from virtualds.formats import DECODING_ERRORS
from virtualds.options import get_options
from virtualds.source_file import StorageOptions

Array = npt.NDArray[Any]

_PLANS: RecordCache[DecodingPlan] = RecordCache(64)
"""Plans of datasets by structure, so that datasets of the same structure share a plan."""
COMPARED_BYTES = 2**24
"""Number of bytes of values that are compared at a time."""
NO_PLAN = DecodingPlan({}, frozenset(), frozenset())
"""The plan of files that are decoded without one, or whose plan is not known yet."""
UNPICKLABLE = (pickle.PicklingError, TypeError, AttributeError)
"""Errors of pickling attributes from other libraries."""


@dataclass(frozen=True, eq=False)
class FileBatch:
    """Opened files of the same structure, with their decoding plan.

    ``urls`` are the files in the order in which they are joined, and ``numbers`` their indexes
    among all files. ``group`` is the joined group: variables with the dimension ``dim`` have the
    elements of all files, with ``lengths`` per file, and all other variables are those of the first
    file. The stored values of loaded variables are in memory.

    Other differences between files are in ``attributes`` and ``encodings``, as in
    `SameStructureFiles`, and in ``stacked``: variables without the dimension that are virtual or
    differ, stacked along a new first axis. ``same`` are the names of variables without the
    dimension that are equal in all files.

    ``is_whole`` is false if some variables were only loaded from the first file, so that the other
    files cannot be extracted. ``needs_plan`` is true for an extracted file that ``plan`` may not
    decode. ``indexes`` are the names of the indexes of decoded datasets, otherwise None. ``below``
    are the batches of the groups below ``group``, by path, if files are opened as trees.
    ``decoded`` is the dataset or tree of a file that cannot be decoded by a plan.
    """

    urls: tuple[Any, ...]
    group: ManifestGroup
    plan: DecodingPlan
    opening: OpenOptions
    numbers: Sequence[int] = (0,)
    dim: str | None = None
    lengths: tuple[int, ...] = ()
    attributes: ValuesPerFile = field(default_factory=dict)
    encodings: ValuesPerFile = field(default_factory=dict)
    stacked: Mapping[str, ManifestArray | Array] = field(default_factory=dict)
    same: frozenset[str] = frozenset()
    is_whole: bool = True
    needs_plan: bool = False
    indexes: tuple[Hashable, ...] | None = None
    below: Mapping[str, FileBatch] | None = None
    decoded: Any = None

    def __len__(self) -> int:
        return len(self.urls)

    @property
    def nchunks(self) -> int:
        """The number of chunks of the virtual variables of all files."""
        if self.decoded is not None:
            return int(self.decoded.virtual.nchunks)
        return sum(
            array.nchunks
            for _, batch in self.walk()
            for name, variable in batch.group.variables.items()
            if isinstance(array := batch.stacked.get(name, variable.data), ManifestArray)
        )

    def walk(self) -> Iterator[tuple[str, FileBatch]]:
        """Yield paths and batches: this group, then all groups below it, parents first."""
        yield "", self
        yield from (self.below or {}).items()

    def map_groups(self, change: Callable[[FileBatch, str], FileBatch]) -> FileBatch:
        """Apply a function to the batch and path of each group, and return the resulting batch."""
        root = change(self, "")
        if self.below is None:
            return root
        return replace(
            root, below={path: change(group, path) for path, group in self.below.items()}
        )

    def to_group(self) -> ManifestGroup:
        """Return the group with its nested subgroups."""
        if self.below is None:
            return self.group
        groups_by_parent = dict[str, dict[str, ManifestGroup]]()
        for path, batch in reversed([*self.walk()]):
            parent_path, _, name = path.rpartition("/")
            subgroups = dict(reversed([*groups_by_parent.pop(path, {}).items()]))
            groups_by_parent.setdefault(parent_path if path else "/", {})[name] = replace(
                batch.group, groups=subgroups
            )
        return groups_by_parent["/"][""]

    def get_lengths(self, dim: str) -> tuple[int, ...]:
        """Return the length of each file along a dimension; -1 if the files lack it."""
        if self.dim == dim:
            return self.lengths
        return (find_dim_sizes(self.group).get(dim, -1),) * len(self)

    def list_values(self, name: str) -> Sequence[Array]:
        """Return the stored values of a loaded variable, as one array per file."""
        variable, stacked = self.group.variables[name], self.stacked.get(name)
        values: Any = variable.data
        if self.dim in variable.dims:
            return np.split(values, self._ends[:-1], variable.dims.index(self.dim))
        if isinstance(stacked, np.ndarray):
            return [stacked[file_index, ...] for file_index in range(len(self))]
        return [values] * len(self)

    @cached_property
    def _ends(self) -> list[int]:
        """The end of each file along the joined dimension."""
        return list(accumulate(self.lengths))

    def list_parts(self, name: str) -> list[VariableDecoding]:
        """Return the decoding of a variable in each file."""
        return self.plan.list_parts(name, self.attributes, len(self))

    def has_same(self, name: str) -> bool:
        """Return whether a variable without the joined dimension is equal in all files."""
        stacked = self.stacked.get(name)
        if len(self) == 1 or name in self.same or not isinstance(stacked, ManifestArray):
            return len(self) == 1 or name in self.same
        return are_same(
            iterate_file_values(self.plan.parts[name], self.group.variables[name], stacked)
        )

    def cut(self, file_index: int, plan_index: int = 0) -> FileBatch:
        """Extract the file at an index; ``plan_index`` is that of the file that has the plan."""
        if len(self) == 1:
            return self
        return self.map_groups(lambda group, _: group._cut(file_index, plan_index))

    def _cut(self, file_index: int, plan_index: int) -> FileBatch:
        """Extract the file at an index from the batch of one group."""
        selection = slice(file_index, file_index + 1)
        variables = {name: self.cut_variable(name, file_index) for name in self.group.variables}
        group = replace(
            self.group,
            variables=variables,
            attributes=select_for_file("", self.attributes, file_index, self.group.attributes),
            encoding=select_for_file("", self.encodings, file_index, self.group.encoding),
        )
        plan = None
        with suppress(MisfitError):
            plan = self.plan.with_units_of(group)
        return replace(
            self,
            urls=self.urls[selection],
            numbers=self.numbers[selection],
            group=group,
            plan=plan or self.plan,
            lengths=self.lengths[selection],
            attributes={},
            encodings={},
            stacked={},
            same=frozenset(),
            needs_plan=plan is None or not self._decode_alike(file_index, plan_index),
        )

    def _decode_alike(self, first: int, second: int) -> bool:
        """Return whether the same plan certainly decodes two files of the batch."""
        if first == second:
            return True
        columns = (*self.attributes.items(), *self.encodings.items())
        dates = {(part.dated_by, "units") for part in self.plan.parts.values()}
        relevant = [
            values for key, values in columns if key[0] and key[1] != "source" and key not in dates
        ]
        return (
            not self._has_gaps
            and (not self.lengths or self.lengths[first] == self.lengths[second])
            and all(is_same_value(values[first], values[second]) for values in relevant)
        )

    @cached_property
    def _has_gaps(self) -> bool:
        """Whether any virtual array has gaps."""
        data = (variable.data for variable in self.group.variables.values())
        arrays = (*data, *self.stacked.values())
        return any(array.has_gaps for array in arrays if isinstance(array, ManifestArray))

    def cut_variable(self, name: str, file_index: int) -> ManifestVariable:
        """Extract a variable of the file at an index."""
        variable = self.group.variables[name]
        data: Any = variable.data
        if self.dim in variable.dims:
            extent = slice(
                self._ends[file_index] - self.lengths[file_index], self._ends[file_index]
            )
            data = data[tuple(extent if dim == self.dim else slice(None) for dim in variable.dims)]
        elif name in self.stacked:
            stacked: Any = self.stacked[name][file_index, ...]
            is_virtual = isinstance(stacked, ManifestArray)
            data = replace(stacked, name=data.name) if is_virtual else stacked
        if isinstance(data, np.ndarray):
            # copy, so that changing the values of a file does not change those of others
            data = data.copy()
        return replace(
            variable,
            data=data,
            attributes=select_for_file(name, self.attributes, file_index, variable.attributes),
            encoding=select_for_file(name, self.encodings, file_index, variable.encoding),
        )

    def list_files(self) -> Iterator[FileBatch]:
        """Yield each file as a batch."""
        return map(self.cut, range(len(self)))

    def check_decoding(self) -> None:
        """Raise `MisfitError` if a file may not be decoded like the others."""
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
                checked = set[int]()
                for file_part, file_values in zip(parts, values, strict=True):
                    if name not in self.same or id(file_part) not in checked:
                        file_part.decode_values(file_values)
                    checked.add(id(file_part))

    @property
    def is_aligned(self) -> bool:
        """Whether the groups of each file certainly form a valid `xarray.DataTree`.

        In a tree, dimensions and coordinates of groups must agree with those of parent groups.
        """
        for path, batch in (self.below or {}).items():
            for parent_path, parent in self.walk():
                if path != parent_path and (not parent_path or path.startswith(f"{parent_path}/")):
                    sizes = find_dim_sizes(parent.group)
                    shared = sizes.keys() & find_dim_sizes(batch.group).keys()
                    if not all(batch._agrees(parent, dim) for dim in shared):
                        return False
        return True

    def _agrees(self, parent: FileBatch, dim: str) -> bool:
        """Return whether a dimension certainly agrees with that of a parent group."""
        name, parent_name = self.plan.find_index(dim), parent.plan.find_index(dim)
        if self.get_lengths(dim) != parent.get_lengths(dim) or name is None or parent_name is None:
            return name is None and self.get_lengths(dim) == parent.get_lengths(dim)
        is_joined = len(self) == 1 or self.dim == parent.dim == dim
        if not is_joined and not (name in self.same and parent_name in parent.same):
            return False
        values: list[Any] = [
            self.group.variables[name].data,
            parent.group.variables[parent_name].data,
        ]
        parts = zip(self.list_parts(name), parent.list_parts(parent_name), strict=True)
        return are_same(values) and all(own.decodes_like(inherited) for own, inherited in parts)

    def to_dataset(self) -> Any:
        """Decode the joined group, and return a dataset or tree."""
        if self.decoded is not None:
            return self.decoded
        if self.indexes is not None:
            return self._assemble(self.indexes)
        plan = self.plan if self.below is None else None
        if self.needs_plan and self.below is None:
            # a plan also has encodings that depend on the length of a file
            plan = find_decoding_plan(self.group, self.opening)
        location = Location.of(self.urls[0])
        return make_dataset_or_tree(location, self.to_group(), self.opening, plan)

    def _assemble(self, names: Iterable[Hashable]) -> xr.Dataset:
        """Return a dataset of variables that are already decoded."""
        group = self.group
        variables: dict[Hashable, xr.Variable] = {
            name: xr.Variable(v.dims, v.data, v.attributes, v.encoding)
            for name, v in group.variables.items()
        }
        indexes: dict[Hashable, xr.Index] = {}
        for name in names:
            variables[name], indexes[name] = build_index(name, variables[name])
        data = [name for name in variables if name not in self.plan.coordinates]
        dataset = xr.Coordinates(variables, indexes).to_dataset().reset_coords(data)
        dataset.attrs, dataset.encoding = dict(group.attributes), dict(group.encoding)
        return dataset


# ---------------------------------------------------------------------- comparisons of files


def are_same(values: Iterable[Array]) -> bool:
    """Return whether all arrays are bit-identical."""
    first: Any = None
    for array in values:
        raw: Any = array.tolist() if array.dtype.hasobject else array.tobytes()
        first = raw if first is None else first
        if raw != first:
            return False
    return True


def iterate_file_values(
    part: VariableDecoding, variable: ManifestVariable, stacked: ManifestArray
) -> Iterator[Array]:
    """Yield the stored values of a variable in each file, from the stacked array of all files.

    If all files refer to the same chunks, the values are only read and yielded once.
    """
    step = max(COMPARED_BYTES // max(stacked.nbytes // max(len(stacked), 1), 1), 1)
    count = 1 if _is_repeated(stacked) else len(stacked)
    for start in range(0, count, step):
        rows = replace(
            variable, dims=("", *variable.dims), data=stacked[start : min(start + step, count)]
        )
        with locating(f"variable {part.name!r}"):
            values = part.load_values(rows)
        yield from (values[row, ...] for row in range(len(values)))


def _is_repeated(array: ManifestArray) -> bool:
    """Return whether all indexes along the first axis refer to the same chunks."""
    if len(array.fragments) != 1 or array.has_gaps:
        return False
    [fragment] = array.fragments
    manifest = fragment.manifest.loaded()
    columns = (manifest.file, manifest.offset, manifest.length, manifest.pipeline)
    return fragment.axes[0].chunk == 1 and all(column.strides[0] == 0 for column in columns)


# ---------------------------------------------------------------------- datasets as batches


class IdentityDecoding(VariableDecoding):
    """The decoding of a variable that is already decoded, which changes nothing."""

    def unpack(self, stored: ManifestVariable) -> ManifestArray:
        """Return the array unchanged."""
        array: Any = stored.data
        return array  # type: ignore[no-any-return]

    def decode_values(self, values: Array, in_place: bool = False) -> Array:
        """Return the values unchanged."""
        return values


def as_batch(url: Any, opened: Any) -> FileBatch | None:
    """Convert an opened file to a batch; return None if xarray has to combine it.

    Variables of a dataset must be virtual or in memory, and indexes must be those of dimension
    coordinates.
    """
    if isinstance(opened, FileBatch) or not isinstance(opened, xr.Dataset):
        return opened if isinstance(opened, FileBatch) else None
    pandas_indexes = {
        n for n, index in opened.xindexes.items() if type(index) is xr.indexes.PandasIndex
    }
    if pandas_indexes != {n for n, v in opened.variables.items() if v.dims == (n,)}:
        return None
    variables = {
        str(name): ManifestVariable(v.dims, data, v.attrs, v.encoding)  # type: ignore[arg-type]
        for name, v in opened.variables.items()
        if isinstance(name, str) and (data := _get_data(v)) is not None
    }
    if len(variables) < len(opened.variables) or pandas_indexes != set(opened.xindexes):
        return None
    plan = _make_plan(opened, variables)
    if plan is None:
        return None
    group = ManifestGroup(variables, opened.attrs, encoding=opened.encoding)
    opening = OpenOptions(decode_cf=False)
    return FileBatch((url,), group, plan, opening, indexes=tuple(opened.xindexes))


def _get_data(variable: xr.Variable) -> ManifestArray | Array | None:
    """Return the virtual array or the values in memory of a variable, or None for lazy data."""
    if (virtual := get_virtual_array(variable)) is not None:
        return virtual
    if is_lazy(variable) or variable.chunks is not None:
        return None
    data = variable.values if isinstance(variable, xr.IndexVariable) else variable.data
    return data if isinstance(data, np.ndarray) and data.dtype == variable.dtype else None


def _make_plan(dataset: xr.Dataset, variables: dict[str, ManifestVariable]) -> DecodingPlan | None:
    """Return a plan that leaves variables unchanged, or None if the structure cannot be pickled."""
    description = [
        (name, v.dims, v.data.dtype, isinstance(v.data, np.ndarray), dict(v.attributes))
        for name, v in variables.items()
    ]
    try:
        key = pickle.dumps((description, list(dataset.coords), list(dataset.xindexes)), 5)
    except UNPICKLABLE:
        return None

    def make() -> DecodingPlan:
        parts = {
            name: IdentityDecoding(
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


# ---------------------------------------------------------------------- joinable files

IsTakenFromFirst = Callable[[VariableDecoding], bool]
"""Returns whether a variable is taken from the first file only."""


class NeedsFullCombineError(Exception):
    """Raised if joining stored files might give a different result than xarray."""


@dataclass(frozen=True)
class JoinableFiles:
    """Files of the same structure that can be joined, with their decoding plan.

    ``stored`` are the files before decoding, ``urls`` are as the user gave them, ``numbers`` are
    their indexes among all files, and ``plan`` is the decoding plan of the first file. ``indexes``
    and ``below`` are as in a `FileBatch`. Methods raise `NeedsFullCombineError` if joining a
    variable might change the result.
    """

    stored: SameStructureFiles
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
        """Return the joinable files of batches of single files."""
        first, subgroups = files[0], None
        stored = ListedFiles([file.group for file in files], range(len(files)))
        urls = [url for file in files for url in file.urls]
        numbers = [number for file in files for number in file.numbers]
        if first.below is not None:
            subgroups = {
                path: cls.of([(file.below or {})[path] for file in files]) for path in first.below
            }
        return cls(
            *(stored, urls, numbers, first.plan, first.opening),
            indexes=first.indexes,
            below=subgroups,
        )

    def walk(self) -> Iterator[JoinableFiles]:
        """Yield the files of this group, then those of the groups below it."""
        yield self
        yield from (self.below or {}).values()

    def take(self, file_indexes: Ints) -> JoinableFiles:
        """Select files in an order; the plan becomes that of the new first file."""
        order = file_indexes.tolist()
        stored, plan = self.stored.take(file_indexes), self.plan
        urls = [self.urls[n] for n in order]
        if order[0] and self.indexes is None:
            plan = find_plan(urls[0], stored.group, self.opening, self.options)
        loaded: dict[str, Sequence[Array]] = {
            name: [values[n] for n in order] for name, values in self._loaded.items()
        }
        numbers, subgroups = [self.numbers[n] for n in order], None
        if self.below is not None:
            subgroups = {path: files.take(file_indexes) for path, files in self.below.items()}
        return replace(
            self,
            stored=stored,
            urls=urls,
            numbers=numbers,
            plan=plan,
            below=subgroups,
            _loaded=loaded,
        )

    def collect(
        self, dim: str | None, is_taken_from_first: IsTakenFromFirst | None = None
    ) -> FileBatch:
        """Join the files into one batch.

        Variables are joined along ``dim``, if given; all other dimensions must have the same length
        in all files. ``is_taken_from_first`` selects loaded variables that are taken from the first
        file only.
        """
        group, requested_dim = self.stored.group, dim
        if dim not in self.lengths:
            dim = None
        variables, stacked = dict(group.variables), dict[str, Any]()
        same, is_whole = set[str](), True
        for name, part in self.plan.parts.items():
            variable = group.variables[name]
            data: Any = variable.data
            if dim is not None and dim in variable.dims:
                if part.is_loaded:
                    data = concatenate_keeping_byte_order(
                        self.load(name, dim), variable.dims.index(dim)
                    )
                else:
                    data = self.join(name, dim)
                    self._check_dates(name, data, dim)
            elif not part.is_loaded:
                if isinstance(data, ManifestArray):
                    stacked[name] = self.stored.stack(name)
                    self._check_dates(name, stacked[name], None)
            elif is_taken_from_first is not None and is_taken_from_first(part):
                is_whole = False
                values = self.stored.get_values(name)
                first = group.variables[name].data
                data = self._read(name, first) if values is None else np.array(values[0])
            else:
                file_values = self._iterate(name)
                data = next(file_values).copy()
                if are_same(chain([data], file_values)):
                    same.add(name)
                else:
                    stacked[name] = np.stack([*self._iterate(name)])
            encoding = encoding_of(variable) if part.is_loaded else variable.encoding
            variables[name] = replace(variable, data=data, encoding=encoding)
        lengths, subgroups = self.lengths.get(dim or "", np.zeros(0, np.int64)), None
        if self.below is not None:
            subgroups = {
                path: files.collect(requested_dim, is_taken_from_first)
                for path, files in self.below.items()
            }
            is_whole = is_whole and all(batch.is_whole for batch in subgroups.values())
        return FileBatch(
            tuple(self.urls),
            replace(group, variables=variables),
            self.plan,
            self.opening,
            _shorten(self.numbers),
            dim,
            tuple(lengths.tolist()),
            self.stored.attributes,
            self.stored.encodings,
            stacked,
            frozenset(same),
            is_whole,
            indexes=self.indexes,
            below=subgroups,
        )

    @property
    def lengths(self) -> Mapping[str, Ints]:
        """The length of each dimension of variables in each file; -1 where a file lacks it."""
        lengths, variables = self.stored.lengths, self.stored.group.variables.values()
        return {dim: lengths[dim] for variable in variables for dim in variable.dims}

    def list_parts(self, name: str) -> list[VariableDecoding]:
        """Return the decoding of a variable in each file."""
        return self.plan.list_parts(name, self.stored.attributes, len(self.urls))

    def _check_dates(self, name: str, array: Any, dim: str | None) -> None:
        """Raise an error if virtual times of any file may need another dtype than the first file.

        ``array`` is joined along ``dim``, or, if that is None, stacked along a new first axis.
        """
        part = self.plan.parts[name]
        if not part.depends_on_values:
            return
        lengths = np.ones(len(self.urls), np.int64) if dim is None else self.lengths[dim]
        axis = 0 if dim is None else part.stored[0].index(dim)
        if not isinstance(array, ManifestArray) or not (array.size and lengths.all()):
            raise NeedsFullCombineError(f"{name!r} has dates that are not known")
        stops = np.cumsum(lengths)
        ends_along = np.stack([stops - lengths, stops - 1], axis=1)
        points = [np.broadcast_to([0, length - 1], ends_along.shape) for length in array.shape]
        points[axis] = ends_along
        try:
            ends = array.read_points(tuple(points))
            for file_part, values in zip(self.list_parts(name), ends, strict=True):
                file_part.check_ends(values)
        except (VirtualdsError, MisfitError, *DECODING_ERRORS) as error:
            # decoding the files one by one finds the file with the error
            raise NeedsFullCombineError(f"{name!r} has dates that are not known") from error

    def find_plans_of_other_lengths(self, dim: str | None) -> Iterator[DecodingPlan]:
        """Yield the plans of the shortest and the longest file, which may load other variables."""
        lengths = self.lengths.get(dim or "", np.zeros(1, np.int64))
        for file_index in {int(lengths.argmin()), int(lengths.argmax())}:
            if lengths[file_index] != lengths[0] and self.indexes is None:
                group = self.stored.take(np.array([file_index])).group
                yield find_plan(self.urls[file_index], group, self.opening, self.options)

    def join(self, name: str, dim: str) -> Array | ManifestArray:
        """Return the stored variable of all files, joined along a dimension."""
        if not isinstance(self.stored.group.variables[name].data, ManifestArray | np.ndarray):
            raise NeedsFullCombineError(f"{name!r} is read when it is needed")
        return self.stored.join(name, dim)

    def load(self, name: str, dim: str) -> Sequence[Array]:
        """Return the stored values of a loaded variable along ``dim``, as one array per file."""
        if name not in self._loaded and (values := self.stored.get_values(name)) is not None:
            self._loaded[name] = values
        if name not in self._loaded:
            axis = self.plan.parts[name].stored[0].index(dim)
            joined = self._read(name, self.stored.join(name, dim))
            ends = accumulate(self.lengths[dim].tolist(), initial=0)
            before = (slice(None),) * axis
            self._loaded[name] = [joined[(*before, slice(*bounds))] for bounds in pairwise(ends)]
        return self._loaded[name]

    def are_same(self, name: str) -> bool:
        """Return whether a variable has the same stored values in all files."""
        return are_same(self._iterate(name))

    def differs(self, name: str) -> bool:
        """Return whether the decoded values of a variable may differ between files."""
        return not (all_decode_alike(self.list_parts(name)) and self.are_same(name))

    def is_too_large(self, name: str) -> bool:
        """Return whether a virtual variable has too many values to compare, or objects."""
        data = self.stored.group.variables[name].data
        nbytes = math.prod(data.shape) * data.dtype.itemsize
        return nbytes > get_options().small_variable or data.dtype.hasobject

    def _iterate(self, name: str) -> Iterator[Array]:
        """Yield the stored values of a variable, file by file."""
        part, data = self.plan.parts[name], self.stored.group.variables[name].data
        if part.is_index:
            yield from self.load(name, part.stored[0][0])
            return
        if (values := self.stored.get_values(name)) is not None:
            yield from map(np.asarray, values)
            return
        if not isinstance(data, ManifestArray):
            raise NeedsFullCombineError(f"{name!r} is read when it is needed")
        yield from iterate_file_values(
            part, self.stored.group.variables[name], self.stored.stack(name)
        )

    def _read(self, name: str, array: Any) -> Array:
        """Load the stored values of a variable of one file, or of stacked or joined files."""
        part = self.plan.parts[name]
        with locating(f"variable {part.name!r}"):
            stored = self.stored.group.variables[name]
            dims = stored.dims if array.ndim == len(stored.dims) else ("", *stored.dims)
            return part.load_values(replace(stored, dims=dims, data=array))


def collect_files(files: JoinableFiles) -> list[FileBatch]:
    """Join files of the same structure into batches that suit any later combination.

    Raises `NeedsFullCombineError` if they have to be opened one by one.
    """
    groups, dim = list(files.walk()), guess_dimension(files)
    for group in groups:
        loaded = [part.is_loaded for part in group.plan.parts.values()]
        for plan in group.find_plans_of_other_lengths(dim):
            if [part.is_loaded for part in plan.parts.values()] != loaded:
                raise NeedsFullCombineError("files of other lengths have other variables loaded")
    others = [sizes for group in groups for name, sizes in group.lengths.items() if name != dim]
    if not any((sizes != sizes[0]).any() for sizes in others):
        return [files.collect(dim)]
    size_group = np.unique(np.stack(others, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    return [
        files.take(np.flatnonzero(size_group == row)).collect(dim)
        for row in range(size_group.max() + 1)
    ]


def _shorten(numbers: Sequence[int]) -> Sequence[int]:
    """Return consecutive numbers as a range, to save memory, and others as a tuple."""
    consecutive = range(numbers[0], numbers[0] + len(numbers))
    return consecutive if list(consecutive) == list(numbers) else tuple(numbers)


def guess_dimension(files: JoinableFiles) -> str | None:
    """Return the dimension whose length or coordinate differs between files, or None."""
    for part in files.walk():
        lengths, group = part.lengths, part.stored.group
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
    """Return the decoding plan of a group.

    Raises `NeedsFullCombineError` if groups of this structure have to be decoded one by one.
    """
    plan = find_decoding_plan(group, opening)
    if plan is None:
        make_dataset_or_tree(Location.of(url, options), group, replace(opening, below=False))
        plan = find_decoding_plan(group, opening)
    if plan is None:
        raise NeedsFullCombineError("every file has to be decoded by itself")
    return plan
