"""Assemble the arrays of aggregation variables from fragments in other files.

CF conventions 1.13, section 2.8 "Aggregation Variables". `virtualds.datasets.aggregation.plan`
reads the attributes that describe them. Arrays reference the chunks of fragments in their files. If
a fragment is packed or has other units, its chunks are converted when they are read (section 2.8.3,
"Fragment Interpretation"), so that the array has the units and the dtype of the aggregation
variable, as in cf-python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.concatenate import assemble, convert_gaps_to_chunks
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.parser import (
    AGGREGATED_DATA,
    AGGREGATED_DIMENSIONS,
    ListedFiles,
    ReadTogether,
    SameStructureFiles,
    is_aggregation,
    select_for_file,
)
from virtualds.bounds import check_values
from virtualds.codecs.cf import PACKING_ATTRIBUTES, Decoding, Packing, are_date_units
from virtualds.codecs.pipeline import SCALE_ATTRIBUTES
from virtualds.datasets.aggregation.plan import (
    NETCDF_FILLS,
    AggregationFile,
    AggregationPlan,
    Array,
    FragmentPlace,
    Index,
    Name,
)
from virtualds.datasets.aggregation.units import UNCHANGED, Conversion, UnitsError, convert_units
from virtualds.errors import (
    AccessError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
    without_secrets,
)
from virtualds.reading.threads import fetch_many
from virtualds.source_file import SourceFile

FILES_AT_ONCE = 256
"""Maximum number of files that are open at a time."""

OpenGroup = Callable[[SourceFile, bool, frozenset[str]], ManifestGroup]
"""Opens a file. The other arguments say whether to read groups below the root, and which files
refer to it."""
FindReadTogether = Callable[[SourceFile], ReadTogether | None]
"""Returns the function that reads files like this one together, or None if there is none."""


def find_aggregations(group: ManifestGroup, *, left_out: bool = False) -> list[Name]:
    """Return the path and name of each aggregation variable of a group and its subgroups.

    With ``left_out``, include variables that were left out.
    """
    return [
        (path, name)
        for path, part in group.walk()
        for name, variable in [
            *part.variables.items(),
            *(part.left_out.items() if left_out else ()),
        ]
        if is_aggregation(variable.attributes)
    ]


def build_aggregations(
    group: ManifestGroup,
    file: AggregationFile,
    path: str,
    opener: FragmentOpener,
) -> ManifestGroup:
    """Return a group in which each aggregation variable has its assembled array.

    ``path`` is the path of the group in the file, and ``opener`` opens fragment files. A variable
    that cannot be assembled becomes a problem of its group.

    Raises
    ------
    AccessError
        The access policy forbids the location of a fragment.
    """
    base = _join_paths(path)
    plans = dict[Name, AggregationPlan]()
    problems = dict[Name, VirtualdsError]()
    assembled = dict[Name, ManifestVariable]()
    for below, name in find_aggregations(group):
        with _collect_error(problems, (below, name)):
            plans[below, name] = file.plan(_join_paths(base, below), name)
    assembler = FragmentAssembler(file, opener)
    targets = {key: assembler.find_type(plan) for key, plan in plans.items()}
    runs = assembler.collect_runs(plans, targets, problems)
    for key, plan in plans.items():
        if key not in problems:
            with _collect_error(problems, key):
                assembled[key] = assembler.build(plan, targets[key], runs[key])
    fragment_arrays = set[Name]()
    for below, name in find_aggregations(group, left_out=True):
        fragment_arrays |= file.find_fragment_array_variables(_join_paths(base, below), name)
    if not base:
        group = replace(
            group, attributes=file.restore_conventions(group.attributes, fragment_arrays)
        )
    return _replace_variables(group, base, "", assembled, problems, fragment_arrays)


def _join_paths(*paths: str) -> str:
    """Join paths of groups into one, without leading, trailing and double slashes."""
    return "/".join(part for path in paths for part in path.split("/") if part)


@contextmanager
def _collect_error(problems: dict[Name, VirtualdsError], key: Name) -> Iterator[None]:
    """Add an error that a block raises to the problems, unless access is denied."""
    try:
        yield
    except AccessError:
        raise
    except VirtualdsError as error:
        problems[key] = error


def _replace_variables(
    group: ManifestGroup,
    base: str,
    path: str,
    assembled: Mapping[Name, ManifestVariable],
    errors: Mapping[Name, VirtualdsError],
    fragment_arrays: set[Name],
) -> ManifestGroup:
    """Return a group with assembled variables, and without fragment array variables."""
    group_path = _join_paths(base, path)
    variables = dict[str, ManifestVariable]()
    problems = dict(group.problems)
    for name, variable in group.variables.items():
        if (error := errors.get((path, name))) is not None:
            problems[name] = error
            unread = ManifestArray.unreadable((), variable.data.dtype, f"{error}")
            variables[name] = replace(variable, dims=(), data=unread)
        elif (group_path, name) not in fragment_arrays:
            variables[name] = assembled.get((path, name), variable)
    groups = {}
    for name, child in group.groups.items():
        child_path = _join_paths(path, name)
        groups[name] = _replace_variables(
            child, base, child_path, assembled, errors, fragment_arrays
        )
    return replace(group, variables=variables, problems=problems, groups=groups)


# ---------------------------------------------------------------------- files of fragments


class OpenedFile(NamedTuple):
    """An opened file: for each group, the files of the same structure, and its place among them."""

    groups: Mapping[str, SameStructureFiles]
    place: int


OpenedFiles = dict[SourceFile, OpenedFile | VirtualdsError]
"""Opened files, or the error of each that cannot be opened."""


class FragmentOpener:
    """Opens fragment files, those of one structure together."""

    def __init__(self, open_group: OpenGroup, find_read_together: FindReadTogether) -> None:
        self._open_group, self._find_read_together = open_group, find_read_together

    @contextmanager
    def open_files(
        self, files: Sequence[SourceFile], deep: bool, above: frozenset[str] = frozenset()
    ) -> Iterator[OpenedFiles]:
        """Yield opened files, or the error of each that cannot be opened.

        With ``deep``, read groups below the root as well. ``above`` are the urls of files that
        refer to these files.
        """
        with ExitStack() as closing:
            opened = self._open_together(files, deep, closing)
            rest = [file for file in files if file not in opened]
            open_alone = partial(self._open_alone, deep=deep, above=above)
            results = fetch_many(rest, lambda file: file.url, open_alone)
            yield opened | dict(zip(rest, results, strict=True))

    def _open_together(
        self, files: Sequence[SourceFile], deep: bool, closing: ExitStack
    ) -> OpenedFiles:
        """Open the files that have the same structure as others."""
        if len(files) < 2 or any("::" in file.url for file in files):
            return {}
        try:
            read_together = self._find_read_together(files[0])
            if read_together is None:
                return {}
            urls = [file.url for file in files]
            together = read_together(urls, files[0].options, None, (), _must_be_equal, deep)
            batches = closing.enter_context(together)
        except (VirtualdsError, OSError):
            # opening files one by one shows which one fails, and why
            return {}
        opened: OpenedFiles = {}
        for batch in batches:
            groups: dict[str, SameStructureFiles] = {"": batch, **batch.below}
            for place, number in enumerate(batch.numbers):
                opened[files[number]] = OpenedFile(groups, place)
        return opened

    def _open_alone(
        self, file: SourceFile, deep: bool, above: frozenset[str]
    ) -> OpenedFile | VirtualdsError:
        """Open one file, or return why it cannot be opened."""
        try:
            group = self._open_group(file, deep, above)
        except VirtualdsError as error:
            return error
        except OSError as error:
            read_error = ReadError(
                f"the file {without_secrets(file.url)} of a fragment cannot be opened: {error}; "
                f"restore it, or leave the variable out with drop_variables"
            )
            read_error.__cause__ = error
            return read_error
        return OpenedFile({path: ListedFiles([part], [0]) for path, part in group.walk()}, 0)


class FragmentAssembler:
    """Assembles the arrays of an aggregation file."""

    def __init__(self, file: AggregationFile, opener: FragmentOpener) -> None:
        self.file, self._opener = file, opener
        self._opened: OpenedFiles = {}

    def collect_runs(
        self,
        plans: Mapping[Name, AggregationPlan],
        targets: Mapping[Name, AggregatedType],
        problems: dict[Name, VirtualdsError],
    ) -> dict[Name, list[FragmentRun]]:
        """Return the joined fragments of each variable, and add errors to ``problems``.

        Only a block of files is open at a time, and all fragments in it are collected at once.
        """
        runs: dict[Name, list[FragmentRun]] = {key: [] for key in plans}
        for deep, files, fragments in _iterate_blocks(plans):
            with self._opener.open_files(files, deep, self.file.above) as self._opened:
                for key, places in fragments.items():
                    if key not in problems:
                        with _collect_error(problems, key):
                            runs[key] += self._iterate_runs(plans[key], targets[key], places)
        self._opened = {}
        return runs

    def _get_opened(self, plan: AggregationPlan, fragment: FragmentPlace) -> OpenedFile:
        """Return the opened file of a fragment, or raise the error of opening it."""
        if fragment.is_here:
            groups = {path: ListedFiles([part], [0]) for path, part in self.file.groups.items()}
            return OpenedFile(groups, 0)
        opened = self._opened[fragment.file]
        if isinstance(opened, AccessError):
            raise opened
        if isinstance(opened, VirtualdsError):
            raise type(opened)(f"{self.file.describe(plan)}: {opened}") from opened
        return opened

    # ------------------------------------------------------------------ building

    def find_type(self, plan: AggregationPlan) -> AggregatedType:
        """Return the dtype, attributes and units to which fragments of a variable are converted."""
        attributes = {
            n: v
            for n, v in plan.variable.attributes.items()
            if n not in (AGGREGATED_DATA, AGGREGATED_DIMENSIONS)
        }
        siblings = self.file.groups[plan.path].variables
        coordinate = (
            None if "units" in attributes else _find_coordinate_of_bounds(siblings, plan.name)
        )
        units = attributes if coordinate is None else siblings[coordinate].attributes
        return AggregatedType(plan.variable.data.dtype.newbyteorder("="), attributes, units)

    def build(
        self, plan: AggregationPlan, target: AggregatedType, runs: Sequence[FragmentRun]
    ) -> ManifestVariable:
        """Return a variable with its assembled array."""
        attributes, units = dict(target.attributes), target.units
        encoding = {n: v for n, v in plan.variable.encoding.items() if n in ("dtype", "source")} | {
            "original_shape": plan.shape
        }
        if target.dtype.kind in "SUO" and target.dtype != np.dtype("S1"):
            data = self._build_strings(plan, runs)
            return ManifestVariable(plan.dims, data, attributes, encoding)
        fills = {
            name: v for name, v in attributes.items() if name in ("_FillValue", "missing_value")
        }
        if not fills and (fill_value := self._adopt_fill(plan, target, runs)) is not None:
            fills = {"_FillValue": fill_value}
            target = replace(target, attributes={**target.attributes, **fills})
            attributes |= fills
        converts = any(run.needs_conversion(target) for run in runs)
        if converts and target.cannot_mark_missing and plan.has_gaps:
            raise self._make_missing_integers_error(plan, target, "fragments are missing")
        parts = list[tuple[Index, ManifestArray]]()
        starts = plan.compute_starts()
        for run in runs:
            array = self._convert(plan, run, target) if converts else run.array
            parts.append((tuple(s[n] for s, n in zip(starts, run.at, strict=True)), array))
        fill = _find_fill(target, converts)
        parts += self._build_constants(plan, target, starts, converts)
        shape, axes = plan.shape, range(len(plan.shape))
        whole = assemble(shape, target.dtype, fill, parts, axes, plan.name)
        if converts and are_date_units(units.get("units")):
            # xarray decodes dates from stored numbers
            check_values(whole.nbytes, f"variable {plan.name!r}")
            return ManifestVariable(plan.dims, whole.read(), attributes, encoding)
        if converts:
            # each chunk is unpacked when it is read
            attributes = {n: v for n, v in attributes.items() if n not in PACKING_ATTRIBUTES}
        return ManifestVariable(plan.dims, whole, attributes, encoding)

    def _iterate_runs(
        self, plan: AggregationPlan, target: AggregatedType, fragments: Sequence[FragmentPlace]
    ) -> Iterator[FragmentRun]:
        """Yield runs of neighbouring fragments, joined along the axis with the most fragments."""
        grid = plan.grid
        main = max(range(len(grid)), key=lambda axis: grid[axis], default=0)
        ordered = sorted(
            fragments,
            key=lambda f: (f.at[:main], f.at[main + 1 :], f.at[main : main + 1]),
        )
        run: list[FoundFragment] = []
        for fragment in ordered:
            found = self._find_fragment(plan, fragment, target)
            # a run takes each file once
            is_same_file = any(other.place == found.place for other in run)
            if run and (is_same_file or not run[-1].can_precede(found, main)):
                yield self._join_run(plan, run, main)
                run = []
            run.append(found)
        if run:
            yield self._join_run(plan, run, main)

    def _find_fragment(
        self, plan: AggregationPlan, fragment: FragmentPlace, target: AggregatedType
    ) -> FoundFragment:
        """Return the variable of a fragment, after checks of its shape and units."""
        opened = self._get_opened(plan, fragment)
        path, _, name = fragment.path.strip("/").rpartition("/")
        shown = f"fragment {fragment.path!r} of {without_secrets(fragment.file.url)}"
        group = opened.groups.get(path)
        if group is None or name not in group.group.variables:
            raise self.file.make_error(
                plan, f"there is no {shown}; restore it, or use drop_variables"
            )
        first = group.group.variables[name]
        if (problem := group.group.problems.get(name)) is not None:
            raise problem
        if is_aggregation(first.attributes):
            raise self.file.make_error(
                plan, f"{shown} is an aggregation variable of the same file; use its fragments"
            )
        sizes = dict(zip(first.dims, first.data.shape, strict=True))
        shape = tuple(
            int(group.lengths[dim][opened.place]) if dim in group.lengths else sizes[dim]
            for dim in first.dims
        )
        attributes = select_for_file(name, group.attributes, opened.place, first.attributes)
        expected = plan.shape_of(fragment.at)
        axes = match_axes(shape, first.dims, expected, plan.dims)
        if axes is None:
            raise self.file.make_error(
                plan,
                f"{shown} has the shape {shape}, and its map says {expected}; write it again",
            )
        conversion = UNCHANGED
        units = attributes
        coordinate = _find_coordinate_of_bounds(group.group.variables, name)
        if "units" not in attributes and coordinate is not None:
            shared = group.group.variables[coordinate].attributes
            units = select_for_file(coordinate, group.attributes, opened.place, shared)
        if "units" in units and "units" in target.units:
            calendars = units.get("calendar"), target.units.get("calendar")
            metadata = units.get("units_metadata"), target.units.get("units_metadata")
            try:
                conversion = convert_units(
                    units["units"], target.units["units"], *calendars, metadata
                )
            except UnitsError as error:
                raise self.file.make_unsupported_error(
                    plan,
                    f"{shown} has other units: {error}; correct them, or leave the variable out "
                    f"with drop_variables",
                ) from error
        packing = {n: v for n, v in attributes.items() if n in PACKING_ATTRIBUTES}
        return FoundFragment(fragment, group, name, opened.place, shape, axes, packing, conversion)

    def _join_run(
        self, plan: AggregationPlan, run: Sequence[FoundFragment], main: int
    ) -> FragmentRun:
        """Return neighbouring fragments as one array with all axes of the variable."""
        first = run[0]
        variable = first.group.group.variables[first.name]
        data: Any = variable.data
        stacked = False
        if len(first.group.numbers) > 1:
            files = first.group.take(np.array([found.place for found in run]))
            along = first.axes[main] if first.axes else None
            if stacked := bool(first.axes) and along is None:
                data = files.stack(first.name)
                order = [n + 1 for n in range(len(first.shape))]
                before = sum(a is not None for a in first.axes[:main])
                data = np.transpose(data, (*order[:before], 0, *order[before:]))
            elif along is not None:
                data = files.join(first.name, variable.dims[along])
            else:
                data = files.stack(first.name)[0]
        elif not isinstance(data, ManifestArray):
            data = variable.read()
        for axis, source in enumerate(first.axes):
            if source is None and not (stacked and axis == main):
                data = np.expand_dims(data, axis)
        expected = list(plan.shape_of(run[0].fragment.at))
        if expected:
            expected[main] = sum(plan.lengths[main][f.fragment.at[main]] for f in run)
        if data.shape != tuple(expected):
            raise self.file.make_error(
                plan, f"its fragments have the shape {data.shape}, not {expected}"
            )
        if isinstance(data, np.ndarray) and not data.dtype.hasobject:
            data = ManifestArray.from_values(data)
        return FragmentRun(first.fragment.at, data, first.packing, first.conversion)

    def _build_strings(self, plan: AggregationPlan, runs: Sequence[FragmentRun]) -> Array:
        """Return the values of a string variable."""
        check_values(8 * prod(plan.shape), f"variable {plan.name!r}")
        whole = np.full(plan.shape, "", object)
        starts = plan.compute_starts()
        for run in runs:
            start = [s[n] for s, n in zip(starts, run.at, strict=True)]
            values = run.array if isinstance(run.array, np.ndarray) else run.array.read()
            if values.dtype.kind not in "SUO":
                raise self.file.make_error(
                    plan, f"fragment {run.at} holds {values.dtype}, and the variable strings"
                )
            box = tuple(slice(b, b + n) for b, n in zip(start, values.shape, strict=True))
            whole[box] = values
        for index, value in plan.values.items():
            start = [s[n] for s, n in zip(starts, index, strict=True)]
            shape = plan.shape_of(index)
            whole[tuple(slice(b, b + n) for b, n in zip(start, shape, strict=True))] = value
        return whole

    def _adopt_fill(
        self, plan: AggregationPlan, target: AggregatedType, runs: Sequence[FragmentRun]
    ) -> Any:
        """Return a fill value for a variable without one, or None if it needs none."""
        if target.dtype.kind not in "iufc":
            return None
        unscaled = [run.packing for run in runs if not run.is_scaled]
        fills = {repr(p.get("_FillValue")): p.get("_FillValue") for p in unscaled}
        # the number may be a valid value in scaled or unmarked fragments
        if len(fills) == 1 and len(unscaled) == len(runs) and None not in fills.values():
            [fill] = fills.values()
            if target.dtype.type(fill) == fill or target.dtype.kind in "fc":
                return np.asarray(fill).astype(target.dtype).ravel()[0]
        if plan.has_gaps and target.dtype.kind in "iu":
            if target.dtype.itemsize == 1:
                raise self.file.make_unsupported_error(
                    plan,
                    f"fragments are missing, and {target.dtype} has no default fill value, since "
                    f"all 256 numbers may be values; give the variable a _FillValue, or leave it "
                    f"out with drop_variables",
                )
            return target.dtype.type(NETCDF_FILLS[target.dtype.str[1:]])
        return None

    def _convert(
        self, plan: AggregationPlan, run: FragmentRun, target: AggregatedType
    ) -> ManifestArray:
        """Return an array whose chunks are converted to the units and dtype of the variable."""
        array: ManifestArray = run.array
        dtypes = {p.dtype for p in array.pipelines}
        if any(p.packing is not None for p in run.array.pipelines):
            # chunks have one packing, so values that are unpacked already cannot be converted again
            casting = "same_kind" if target.dtype.kind in "fc" else "safe"
            fits = is_castable(array.dtype, target.dtype, casting) and not target.is_packed
            if run.is_scaled or not fits:
                raise self.file.make_unsupported_error(
                    plan,
                    f"fragment {run.at} is put together from others and has another dtype, other "
                    f"units or another packing; refer to its own fragments",
                )
            self._check_fills_unused(plan, run, target, array)
            return array
        packings = {}
        for stored in dtypes:
            try:
                attributes = run.make_packing_attributes(target, stored)
                packing = Packing.from_attributes(stored, attributes, target.dtype)
                packings[stored] = packing or Packing(target.dtype)
            except (ValueError, OverflowError, TypeError) as error:
                raise self.file.make_unsupported_error(
                    plan,
                    f"fragment {run.at} of {stored} cannot be converted to {target.dtype}: "
                    f"{error}; leave the variable out with drop_variables",
                ) from error
        pipelines = tuple(replace(p, packing=packings[p.dtype]) for p in array.pipelines)
        array = replace(array, dtype=target.dtype, pipelines=pipelines)
        self._check_fills_unused(plan, run, target, array)
        return array

    def _check_fills_unused(
        self, plan: AggregationPlan, run: FragmentRun, target: AggregatedType, array: ManifestArray
    ) -> None:
        """Raise an error if converted integers may equal a fill value of the variable."""
        if target.cannot_mark_missing:
            for fill in list_fills(target.attributes):
                if any(_can_unpack_to(fill, p.packing, p.dtype) for p in array.pipelines):
                    raise self._make_missing_integers_error(
                        plan,
                        target,
                        f"fragment {run.at} may hold {fill}, which marks missing values",
                    )

    def _make_missing_integers_error(
        self, plan: AggregationPlan, target: AggregatedType, reason: str
    ) -> UnsupportedError:
        """Return the error for converted integers that may be missing."""
        return self.file.make_unsupported_error(
            plan,
            f"{reason}, and converted {target.dtype} cannot be missing; write the variable with a "
            f"floating dtype, or its fragments with its units and dtype, or leave it out with "
            f"drop_variables",
        )

    def _build_constants(
        self,
        plan: AggregationPlan,
        target: AggregatedType,
        starts: Sequence[Sequence[int]],
        converts: bool,
    ) -> Iterator[tuple[Index, ManifestArray]]:
        """Yield, for each fragment of one value, its start and an array without stored chunks."""
        for index, value in plan.values.items():
            shape = plan.shape_of(index)
            try:
                stored = np.asarray(value).astype(target.dtype)
                # CFA 0.6.2 may store numbers as strings, which astype parses exactly
                exact = isinstance(value, str) or stored.dtype.kind in "fc"
                if not exact and stored != value:
                    raise ValueError(f"{value!r} is out of its range")
            except (ValueError, OverflowError, TypeError) as error:
                raise self.file.make_error(
                    plan,
                    f"fragment {index} has the value {value!r}, not {target.dtype}: {error}",
                ) from error
            fills = list_fills(target.attributes)
            if converts and any(_is_equal_as(target.dtype, stored, fill) for fill in fills):
                if target.cannot_mark_missing:
                    raise self._make_missing_integers_error(
                        plan, target, f"fragment {index} is missing"
                    )
                if target.dtype.kind in "fc":
                    stored = np.asarray(np.nan, target.dtype)
            array = convert_gaps_to_chunks(ManifestArray.full(shape, stored, target.dtype))
            if converts:
                [pipeline] = array.pipelines
                packed = replace(pipeline, packing=Packing(target.dtype))
                array = replace(array, pipelines=(packed,))
            yield tuple(s[n] for s, n in zip(starts, index, strict=True)), array


# ---------------------------------------------------------------------- fragments


@dataclass(frozen=True)
class AggregatedType:
    """The dtype and attributes of an aggregation variable, to which fragments are converted.

    ``units`` are the attributes with its units and calendar, for bounds those of their coordinate.
    """

    dtype: np.dtype[Any]
    attributes: Mapping[str, Any]
    units: Mapping[str, Any]

    @property
    def is_packed(self) -> bool:
        """Whether the attributes of the variable scale stored numbers."""
        return not self.attributes.keys().isdisjoint(SCALE_ATTRIBUTES)

    @property
    def cannot_mark_missing(self) -> bool:
        """Whether converted values have no way to mark missing elements.

        Floats use NaN, and dates are loaded and keep their fill value.
        """
        return self.dtype.kind in "iu" and not are_date_units(self.units.get("units"))


@dataclass(frozen=True, eq=False)
class FoundFragment:
    """The variable of a fragment, in one of several files that were read together.

    ``axes`` has, for each axis of the aggregation variable, the axis of the fragment, or None.
    """

    fragment: FragmentPlace
    group: SameStructureFiles
    name: str
    place: int
    shape: tuple[int, ...]
    axes: tuple[int | None, ...]
    packing: Mapping[str, Any]
    conversion: Conversion

    def can_precede(self, other: FoundFragment, main: int) -> bool:
        """Return whether another fragment can be joined to this one along an axis."""
        index, next_index = self.fragment.at, other.fragment.at
        if self.group is not other.group or self.name != other.name or self.axes != other.axes:
            return False
        if (
            not index
            or index[main] + 1 != next_index[main]
            or _drop_item(index, main) != _drop_item(next_index, main)
        ):
            return False
        axis = self.axes[main]
        shapes = [s if axis is None else _drop_item(s, axis) for s in (self.shape, other.shape)]
        return shapes[0] == shapes[1] and self.conversion == other.conversion


class FragmentRun(NamedTuple):
    """Neighbouring fragments as one array; ``at`` is the index of the first."""

    at: Index
    array: Any
    packing: Mapping[str, Any]
    conversion: Conversion

    @property
    def is_scaled(self) -> bool:
        """Whether stored numbers differ from values."""
        return (
            not self.packing.keys().isdisjoint(SCALE_ATTRIBUTES) or not self.conversion.is_identity
        )

    def needs_conversion(self, target: AggregatedType) -> bool:
        """Return whether chunks must be converted to the values and fill values of a target."""
        if self.is_scaled or any(p.packing is not None for p in self.array.pipelines):
            return True
        # integers must stay exact, but floats may lose precision
        casting: Any = "same_kind" if target.dtype.kind in "fc" else "safe"
        if not is_castable(self.array.dtype, target.dtype, casting):
            return True
        target_fills = list_fills(target.attributes)
        own_fills = [f for f in list_fills(self.packing) if f == f]
        return any(
            not any(_is_equal_as(target.dtype, f, k) for k in target_fills) for f in own_fills
        )

    def make_packing_attributes(
        self, target: AggregatedType, stored: np.dtype[Any]
    ) -> dict[str, Any]:
        """Return the packing attributes that convert chunks of dtype ``stored``."""
        names = ("scale_factor", "add_offset")
        if target.is_packed:
            raise ValueError(
                "the aggregation variable is packed, and the fragment is packed differently"
            )
        if not is_castable(stored, target.dtype, "same_kind"):
            raise ValueError("they are different kinds of values")
        attributes = dict(self.packing)
        factor, offset = self.conversion
        if not self.conversion.is_identity:
            scale = attributes.get("scale_factor", 1)
            shift = attributes.get("add_offset", 0)
            is_integer = target.dtype.kind in "iu"
            if is_integer and (factor.denominator != 1 or offset.denominator != 1):
                raise ValueError("units convert by a fraction, which integers cannot hold")
            conversion = (
                (int if is_integer else float)(factor),
                (int if is_integer else float)(offset),
            )
            scale, shift = scale * conversion[0], shift * conversion[0] + conversion[1]
            attributes = {n: v for n, v in attributes.items() if n not in names}
            attributes |= dict(zip(names, (scale, shift), strict=True))
            if attributes["scale_factor"] == 1:
                del attributes["scale_factor"]
            if attributes["add_offset"] == 0:
                del attributes["add_offset"]
        if target.dtype.kind in "iu" and (
            list_fills(attributes)
            or stored.kind not in "iu"
            or not np.can_cast(stored, target.dtype)
        ):
            raise ValueError(
                "it has fractions, gaps, or numbers that are too large for the integers"
            )
        if target.dtype.kind in "iu" and any(
            isinstance(attributes.get(name), float | np.floating) for name in names
        ):
            raise ValueError("it is scaled by a fraction")
        if target.cannot_mark_missing:
            scale, shift = (
                int(attributes.get(name, default))
                for name, default in zip(names, (1, 0), strict=True)
            )
            stored_limits, limits = np.iinfo(stored), np.iinfo(target.dtype)
            ends = [end * scale + shift for end in (int(stored_limits.min), int(stored_limits.max))]
            if min(ends) < limits.min or max(ends) > limits.max:
                raise ValueError("it may have numbers that are too large once they are converted")
        target_fills = [f for f in list_fills(target.attributes) if f == f]
        if target_fills and target.dtype.kind in "fc":
            stored_fills = [
                raw for f in target_fills for raw in _unscale(f, attributes, stored, target.dtype)
            ]
            own_fills = list(np.ravel(attributes.get("missing_value", [])))
            if stored_fills:
                attributes["missing_value"] = np.array([*own_fills, *stored_fills])
        return attributes


def is_castable(stored: np.dtype[Any], target: np.dtype[Any], casting: Any) -> bool:
    """Return whether a dtype may be cast to another; strings are never truncated."""
    source, native = stored.newbyteorder("="), target.newbyteorder("=")
    return source == native or (
        {source.kind, native.kind} <= set("iufc") and np.can_cast(source, native, casting)
    )


def _unscale(
    value: Any, packing: Mapping[str, Any], stored: np.dtype[Any], dtype: np.dtype[Any]
) -> Iterator[Any]:
    """Yield the stored number that is unpacked to a fill value, if there is one."""
    scaling = {n: v for n, v in packing.items() if n not in ("_FillValue", "missing_value")}
    scale, shift = (float(np.ravel(packing.get(n, d))[0])
                    for n, d in (("scale_factor", 1), ("add_offset", 0)))  # fmt: skip
    raw = (float(value) - shift) / scale if scale else np.nan
    if stored.kind in "iu":
        limits = np.iinfo(stored)
        if not np.isfinite(raw) or not limits.min <= round(raw) <= limits.max:
            return
        raw = round(raw)
    with np.errstate(over="ignore"):
        stored_value = np.array([raw]).astype(stored)
        packed = Packing.from_attributes(stored, scaling, dtype)
        unpacked = packed.decode(stored_value) if packed else stored_value.astype(dtype)
        if unpacked[0] == np.asarray(value).astype(dtype):
            yield stored_value[0]


def _can_unpack_to(value: Any, packing: Decoding | None, stored: np.dtype[Any]) -> bool:
    """Return whether some stored integer is unpacked to a number."""
    if not isinstance(value, np.integer | np.floating) or not np.isfinite(value):
        return False
    if value != int(value):
        return False
    kind, scale, shift = stored, 1, 0
    if isinstance(packing, Packing):
        kind = packing.integer or stored
        scale = 1 if packing.scale_factor is None else int(packing.scale_factor)
        shift = 0 if packing.add_offset is None else int(packing.add_offset)
    if not scale:
        return int(value) == shift
    raw, rest = divmod(int(value) - shift, scale)
    limits = np.iinfo(kind)
    return not rest and limits.min <= raw <= limits.max


def list_fills(attributes: Mapping[str, Any]) -> list[Any]:
    """Return the fill values in attributes."""
    return [v for n in ("_FillValue", "missing_value") for v in np.ravel(attributes.get(n, []))]


def _is_equal_as(dtype: np.dtype[Any], left: Any, right: Any) -> bool:
    """Return whether numbers are equal, floats after a cast to ``dtype``."""
    if dtype.kind in "fc":
        return bool(np.asarray(left).astype(dtype) == np.asarray(right).astype(dtype))
    return bool(left == right)


def _find_fill(target: AggregatedType, converts: bool) -> Any:
    """Return the value of missing fragments."""
    if converts and target.dtype.kind in "fc":
        return target.dtype.type(np.nan)
    fills = list_fills(target.attributes)
    if fills:
        return np.asarray(fills[0]).astype(target.dtype)[()]
    if target.dtype.kind in "fc":
        return target.dtype.type(np.nan)
    return np.zeros((), target.dtype)[()]


Block = tuple[bool, list[SourceFile], dict[Name, list[FragmentPlace]]]
"""Whether to read groups below the root, files, and the fragments in them by variable."""


def _iterate_blocks(plans: Mapping[Name, AggregationPlan]) -> Iterator[Block]:
    """Yield the fragments of all variables, in blocks of at most `FILES_AT_ONCE` files."""
    own_file: Block = (False, [], {})
    deep = dict[SourceFile, bool]()
    for key, plan in plans.items():
        for fragment in plan.files:
            if fragment.is_here:
                own_file[2].setdefault(key, []).append(fragment)
            else:
                inside = "/" in fragment.path.strip("/")
                deep[fragment.file] = deep.get(fragment.file, False) or inside
    yield own_file
    files_alike: dict[Any, list[SourceFile]] = {}
    for file, inside in deep.items():
        files_alike.setdefault((file.options, inside), []).append(file)
    blocks: list[Block] = [
        (inside, files[begin : begin + FILES_AT_ONCE], {})
        for (_, inside), files in files_alike.items()
        for begin in range(0, len(files), FILES_AT_ONCE)
    ]
    block_of_file = {file: block for block in blocks for file in block[1]}
    for key, plan in plans.items():
        for fragment in plan.files:
            if not fragment.is_here:
                block_of_file[fragment.file][2].setdefault(key, []).append(fragment)
    yield from blocks


def match_axes(
    shape: Sequence[int], dims: Sequence[str], expected: Sequence[int], names: Sequence[str]
) -> tuple[int | None, ...] | None:
    """Return the axis of a fragment for each axis of the array, or None if they do not fit.

    A fragment may lack axes of length 1 (CF 2.8.3).

    Examples
    --------
    >>> match_axes((4, 5), ("y", "x"), (1, 4, 5), ("time", "lat", "lon"))
    (None, 0, 1)
    >>> match_axes((4,), ("y",), (5,), ("y",)) is None
    True
    """
    if len(shape) == len(expected):
        return tuple(range(len(shape))) if tuple(shape) == tuple(expected) else None
    for by_name in (True, False):
        axes, axis = list[int | None](), 0
        for size, name in zip(expected, names, strict=True):
            fits = axis < len(shape) and shape[axis] == size and (not by_name or dims[axis] == name)
            if not fits and size != 1:
                break
            axes.append(axis if fits else None)
            axis += fits
        if len(axes) == len(expected) and axis == len(shape):
            return tuple(axes)
    return None


def _must_be_equal(name: str, value: Any) -> bool:
    """Return whether files must have equal values of an attribute to be read together."""
    if name == "units":
        return not are_date_units(value)
    return name in (*PACKING_ATTRIBUTES, "units_metadata", "calendar", "bounds")


def _find_coordinate_of_bounds(variables: Mapping[str, ManifestVariable], name: str) -> str | None:
    """Return the coordinate from which bounds take their units (CF 7.1), or None."""
    return next((n for n, v in variables.items() if v.attributes.get("bounds") == name), None)


def _drop_item(values: Sequence[int], index: int) -> tuple[int, ...]:
    """Return values without the item at an index."""
    return (*values[:index], *values[index + 1 :])
