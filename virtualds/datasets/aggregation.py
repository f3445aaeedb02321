"""Aggregation variables: arrays of a file whose parts, the fragments, lie in other files.

CF conventions 1.13, section 2.8 "Aggregation Variables"; what the file says of them is read by
`virtualds.datasets.aggregation_plan`. Fragments are referenced where they lie. If one is packed or
has other units, its chunks are converted as they are read (section 2.8.3, "Fragment
Interpretation"), so that the array has the units and the dtype of the aggregation variable, as in
cf-python.
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
from virtualds.arrays.concatenate import assemble
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
from virtualds.chunks.axes import ChunkAxis
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.cf import PACKING_ATTRIBUTES, Decoding, Packing, are_date_units
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.datasets.aggregation_plan import (
    NETCDF_FILLS,
    AggregationFile,
    AggregationPlan,
    Array,
    FragmentPlace,
    Index,
    Name,
)
from virtualds.datasets.units import UNCHANGED, Conversion, UnitsError, convert_units
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
"""How many files are open at a time."""
SCALING = ("scale_factor", "add_offset", "_Unsigned")
"""Attributes that make other numbers of stored ones."""

OpenGroup = Callable[[SourceFile, bool, frozenset[str]], ManifestGroup]
"""Opens a file; further arguments are whether the groups below its root are read, and which files
refer to it."""
FindTogether = Callable[[SourceFile], ReadTogether | None]
"""Returns how files like one are read together, or None if they are not."""


def find_aggregations(group: ManifestGroup, *, left_out: bool = False) -> list[Name]:
    """Return the aggregation variables of a group and of those below it, as path and name.

    With ``left_out``, also those that were left out.
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
    """Return a group, as it was read from a file, with whole arrays as aggregation variables.

    ``path`` is that of the group in the file, and ``opener`` opens the files of fragments. A
    variable that cannot be put together is among the problems of its group.

    Raises
    ------
    AccessError
        A fragment lies where the file may not refer to.
    """
    base = _join_paths(path)
    plans = dict[Name, AggregationPlan]()
    problems = dict[Name, VirtualdsError]()
    made = dict[Name, ManifestVariable]()
    for where, name in find_aggregations(group):
        with _collecting(problems, (where, name)):
            plans[where, name] = file.plan(_join_paths(base, where), name)
    assembler = FragmentAssembler(file, opener)
    targets = {key: assembler.find_type(plan) for key, plan in plans.items()}
    runs = assembler.collect_runs(plans, targets, problems)
    for key, plan in plans.items():
        if key not in problems:
            with _collecting(problems, key):
                made[key] = assembler.build(plan, targets[key], runs[key])
    used = set[Name]()
    for where, name in find_aggregations(group, left_out=True):
        used |= file.find_described(_join_paths(base, where), name)
    if not base:
        group = replace(group, attributes=file.restore_conventions(group.attributes, used))
    return _replace_variables(group, base, "", made, problems, used)


def _join_paths(*paths: str) -> str:
    """Return the path of a group, from the root of a file, without slashes around it."""
    return "/".join(part for path in paths for part in path.split("/") if part)


@contextmanager
def _collecting(problems: dict[Name, VirtualdsError], key: Name) -> Iterator[None]:
    """Add the error of a block to the problems, unless access is denied."""
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
    made: Mapping[Name, ManifestVariable],
    problems: Mapping[Name, VirtualdsError],
    used: set[Name],
) -> ManifestGroup:
    """Return a group with arrays in place of scalars, and without what describes them."""
    inside = _join_paths(base, path)
    found = dict[str, ManifestVariable]()
    failed = dict(group.problems)
    for name, variable in group.variables.items():
        if (error := problems.get((path, name))) is not None:
            failed[name] = error
            unread = ManifestArray.unreadable((), variable.data.dtype, f"{error}")
            found[name] = replace(variable, dims=(), data=unread)
        elif (inside, name) not in used:
            found[name] = made.get((path, name), variable)
    groups = {}
    for name, child in group.groups.items():
        below = _join_paths(path, name)
        groups[name] = _replace_variables(child, base, below, made, problems, used)
    return replace(group, variables=found, problems=failed, groups=groups)


# ---------------------------------------------------------------------- files of fragments


class OpenedFile(NamedTuple):
    """An opened file: for each group, the files of its structure, and its place among them."""

    groups: Mapping[str, SameStructureFiles]
    place: int


OpenedFiles = dict[SourceFile, OpenedFile | VirtualdsError]
"""Files, or the errors of those that cannot be opened."""


class FragmentOpener:
    """Opens the files of fragments, those of one structure together."""

    def __init__(self, open_group: OpenGroup, find_together: FindTogether) -> None:
        self._open_group, self._find_together = open_group, find_together

    @contextmanager
    def open_files(
        self, files: Sequence[SourceFile], deep: bool, above: frozenset[str] = frozenset()
    ) -> Iterator[OpenedFiles]:
        """Yield opened files, or the error of each that cannot be opened.

        With ``deep``, groups below the root are read as well; ``above`` are the files that refer to
        them.
        """
        with ExitStack() as closing:
            opened = self._open_together(files, deep, closing)
            rest = [file for file in files if file not in opened]
            open_alone = partial(self._open_alone, deep=deep, above=above)
            found = fetch_many(rest, lambda file: file.url, open_alone)
            yield opened | dict(zip(rest, found, strict=True))

    def _open_together(
        self, files: Sequence[SourceFile], deep: bool, closing: ExitStack
    ) -> OpenedFiles:
        """Open those of some files that have the structure of others."""
        if len(files) < 2 or any("::" in file.url for file in files):
            return {}
        try:
            read_together = self._find_together(files[0])
            if read_together is None:
                return {}
            urls = [file.url for file in files]
            together = read_together(urls, files[0].options, None, (), _must_be_equal, deep)
            batches = closing.enter_context(together)
        except (VirtualdsError, OSError):
            # opening them one by one shows which of them fails, and why
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
        try:
            group = self._open_group(file, deep, above)
        except VirtualdsError as error:
            return error
        except OSError as error:
            found = ReadError(
                f"the file {without_secrets(file.url)} of a fragment cannot be opened: {error}; "
                f"restore it, or leave the variable out with drop_variables"
            )
            found.__cause__ = error
            return found
        return OpenedFile({path: ListedFiles([one], [0]) for path, one in group.walk()}, 0)


class FragmentAssembler:
    """Puts the arrays of an aggregation file together."""

    def __init__(self, file: AggregationFile, opener: FragmentOpener) -> None:
        self.file, self._opener = file, opener
        self._opened: OpenedFiles = {}

    def collect_runs(
        self,
        plans: Mapping[Name, AggregationPlan],
        targets: Mapping[Name, AggregatedType],
        problems: dict[Name, VirtualdsError],
    ) -> dict[Name, list[FragmentRun]]:
        """Return the fragments of variables, of neighbouring files joined; add errors to problems.

        Some files at a time are open, and all their fragments are taken from them.
        """
        runs: dict[Name, list[FragmentRun]] = {key: [] for key in plans}
        for deep, files, fragments in _iterate_blocks(plans):
            with self._opener.open_files(files, deep, self.file.above) as self._opened:
                for key, some in fragments.items():
                    if key not in problems:
                        with _collecting(problems, key):
                            runs[key] += self._iterate_runs(plans[key], targets[key], some)
        self._opened = {}
        return runs

    def _get_opened(self, plan: AggregationPlan, fragment: FragmentPlace) -> OpenedFile:
        if fragment.is_here:
            groups = {path: ListedFiles([one], [0]) for path, one in self.file.groups.items()}
            return OpenedFile(groups, 0)
        found = self._opened[fragment.file]
        if isinstance(found, AccessError):
            raise found
        if isinstance(found, VirtualdsError):
            raise type(found)(f"{self.file.describe(plan)}: {found}") from found
        return found

    # ------------------------------------------------------------------ building

    def find_type(self, plan: AggregationPlan) -> AggregatedType:
        """Return what the fragments of a variable become."""
        attributes = {
            n: v
            for n, v in plan.variable.attributes.items()
            if n not in (AGGREGATED_DATA, AGGREGATED_DIMENSIONS)
        }
        siblings = self.file.groups[plan.path].variables
        lender = None if "units" in attributes else _find_lender(siblings, plan.name)
        units = attributes if lender is None else siblings[lender].attributes
        return AggregatedType(plan.variable.data.dtype.newbyteorder("="), attributes, units)

    def build(
        self, plan: AggregationPlan, target: AggregatedType, runs: Sequence[FragmentRun]
    ) -> ManifestVariable:
        """Return a variable with its whole array."""
        attributes, units = dict(target.attributes), target.units
        encoding = {n: v for n, v in plan.variable.encoding.items() if n in ("dtype", "source")} | {
            "original_shape": plan.shape
        }
        if target.dtype.kind in "SUO" and target.dtype != np.dtype("S1"):
            data = self._build_texts(plan, runs)
            return ManifestVariable(plan.dims, data, attributes, encoding)
        fills = {
            name: v for name, v in attributes.items() if name in ("_FillValue", "missing_value")
        }
        if not fills and (found := self._adopt_fill(plan, target, runs)) is not None:
            fills = {"_FillValue": found}
            target = replace(target, attributes={**target.attributes, **fills})
            attributes |= fills
        changed = any(run.needs_conversion(target) for run in runs)
        if changed and target.marks_vanish and plan.has_gaps:
            raise self._refuse_gaps(plan, target, "fragments are missing")
        parts = list[tuple[Index, ManifestArray]]()
        starts = plan.starts()
        for run in runs:
            array = self._convert(plan, run, target) if changed else run.array
            parts.append((tuple(s[n] for s, n in zip(starts, run.at, strict=True)), array))
        fill = _find_fill(target, changed)
        parts += self._build_constants(plan, target, starts, changed)
        shape, axes = plan.shape, range(len(plan.shape))
        whole = assemble(shape, target.dtype, fill, parts, axes, plan.name)
        if changed and are_date_units(units.get("units")):
            # xarray decodes dates from the numbers that are stored
            check_values(whole.nbytes, f"variable {plan.name!r}")
            return ManifestVariable(plan.dims, whole.read(), attributes, encoding)
        if changed:
            # chunks are unpacked as each is read
            attributes = {n: v for n, v in attributes.items() if n not in PACKING_ATTRIBUTES}
        return ManifestVariable(plan.dims, whole, attributes, encoding)

    def _iterate_runs(
        self, plan: AggregationPlan, target: AggregatedType, fragments: Sequence[FragmentPlace]
    ) -> Iterator[FragmentRun]:
        """Yield neighbouring fragments that are read together, joined along one axis."""
        grid = plan.grid
        main = max(range(len(grid)), key=lambda axis: grid[axis], default=0)
        ordered = sorted(
            fragments,
            key=lambda f: (f.at[:main], f.at[main + 1 :], f.at[main : main + 1]),
        )
        held: list[FoundFragment] = []
        for fragment in ordered:
            found = self._look_up(plan, fragment, target)
            # files of one structure are taken once
            again = any(one.place == found.place for one in held)
            if held and (again or not held[-1].can_precede(found, main)):
                yield self._join(plan, held, main)
                held = []
            held.append(found)
        if held:
            yield self._join(plan, held, main)

    def _look_up(
        self, plan: AggregationPlan, fragment: FragmentPlace, target: AggregatedType
    ) -> FoundFragment:
        """Return the variable of a fragment, after checking that it fits."""
        opened = self._get_opened(plan, fragment)
        path, _, name = fragment.path.strip("/").rpartition("/")
        shown = f"fragment {fragment.path!r} of {without_secrets(fragment.file.url)}"
        group = opened.groups.get(path)
        if group is None or name not in group.group.variables:
            raise self.file.error(plan, f"there is no {shown}; restore it, or use drop_variables")
        first = group.group.variables[name]
        if (problem := group.group.problems.get(name)) is not None:
            raise problem
        if is_aggregation(first.attributes):
            raise self.file.error(
                plan, f"{shown} is put together in the same file; use its fragments"
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
            raise self.file.error(
                plan,
                f"{shown} has the shape {shape}, and its map says {expected}; write it anew",
            )
        conversion = UNCHANGED
        units = attributes
        lender = _find_lender(group.group.variables, name)
        if "units" not in attributes and lender is not None:
            lent = group.group.variables[lender].attributes
            units = select_for_file(lender, group.attributes, opened.place, lent)
        if "units" in units and "units" in target.units:
            calendars = units.get("calendar"), target.units.get("calendar")
            metadata = units.get("units_metadata"), target.units.get("units_metadata")
            try:
                conversion = convert_units(
                    units["units"], target.units["units"], *calendars, metadata
                )
            except UnitsError as error:
                raise self.file.refuse(
                    plan,
                    f"{shown} has other units: {error}; correct them, or leave the variable out "
                    f"with drop_variables",
                ) from error
        packing = {n: v for n, v in attributes.items() if n in PACKING_ATTRIBUTES}
        return FoundFragment(fragment, group, name, opened.place, shape, axes, packing, conversion)

    def _join(self, plan: AggregationPlan, held: Sequence[FoundFragment], main: int) -> FragmentRun:
        """Return neighbouring fragments as one array with the axes of the whole."""
        first = held[0]
        variable = first.group.group.variables[first.name]
        data: Any = variable.data
        stacked = False
        if len(first.group.numbers) > 1:
            some = first.group.take(np.array([found.place for found in held]))
            along = first.axes[main] if first.axes else None
            if stacked := bool(first.axes) and along is None:
                data = some.stack(first.name)
                order = [n + 1 for n in range(len(first.shape))]
                before = sum(a is not None for a in first.axes[:main])
                data = np.transpose(data, (*order[:before], 0, *order[before:]))
            elif along is not None:
                data = some.join(first.name, variable.dims[along])
            else:
                data = some.stack(first.name)[0]
        elif not isinstance(data, ManifestArray):
            data = variable.read()
        for axis, source in enumerate(first.axes):
            if source is None and not (stacked and axis == main):
                data = np.expand_dims(data, axis)
        expected = list(plan.shape_of(held[0].place_of.at))
        if expected:
            expected[main] = sum(plan.lengths[main][f.place_of.at[main]] for f in held)
        if data.shape != tuple(expected):
            raise self.file.error(
                plan, f"its fragments have the shape {data.shape}, not {expected}"
            )
        if isinstance(data, np.ndarray) and not data.dtype.hasobject:
            data = ManifestArray.from_values(data)
        return FragmentRun(first.place_of.at, data, first.packing, first.conversion)

    def _build_texts(self, plan: AggregationPlan, runs: Sequence[FragmentRun]) -> Array:
        """Return the values of a variable of texts."""
        check_values(8 * prod(plan.shape), f"variable {plan.name!r}")
        whole = np.full(plan.shape, "", object)
        starts = plan.starts()
        for run in runs:
            begin = [s[n] for s, n in zip(starts, run.at, strict=True)]
            values = run.array if isinstance(run.array, np.ndarray) else run.array.read()
            if values.dtype.kind not in "SUO":
                raise self.file.error(
                    plan, f"fragment {run.at} holds {values.dtype}, and the variable texts"
                )
            box = tuple(slice(b, b + n) for b, n in zip(begin, values.shape, strict=True))
            whole[box] = values
        for index, value in plan.values.items():
            begin = [s[n] for s, n in zip(starts, index, strict=True)]
            shape = plan.shape_of(index)
            whole[tuple(slice(b, b + n) for b, n in zip(begin, shape, strict=True))] = value
        return whole

    def _adopt_fill(
        self, plan: AggregationPlan, target: AggregatedType, runs: Sequence[FragmentRun]
    ) -> Any:
        """Return what marks missing values if the variable does not say, or None if none are."""
        if target.dtype.kind not in "iufc":
            return None
        plain = [run.packing for run in runs if not run.is_scaled]
        marks = {repr(p.get("_FillValue")): p.get("_FillValue") for p in plain}
        # elsewhere the number may be a value
        if len(marks) == 1 and len(plain) == len(runs) and None not in marks.values():
            [mark] = marks.values()
            if target.dtype.type(mark) == mark or target.dtype.kind in "fc":
                return np.asarray(mark).astype(target.dtype).ravel()[0]
        if plan.has_gaps and target.dtype.kind in "iu":
            if target.dtype.itemsize == 1:
                raise self.file.refuse(
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
        """Return fragments whose chunks are converted to the units and dtype of the variable."""
        array: ManifestArray = run.array
        kinds = {p.dtype for p in array.pipelines}
        if any(p.packing is not None for p in run.array.pipelines):
            # they are unpacked to this dtype already, and nothing is applied after that
            casting = "same_kind" if target.dtype.kind in "fc" else "safe"
            fits = can_become(array.dtype, target.dtype, casting) and not target.is_packed
            if run.is_scaled or not fits:
                raise self.file.refuse(
                    plan,
                    f"fragment {run.at} is put together from others and has another dtype, other "
                    f"units or another packing; refer to its own fragments",
                )
            self._check_marks(plan, run, target, array)
            return array
        packings = {}
        for stored in kinds:
            try:
                attributes = run.describe_conversion(target, stored)
                found = Packing.from_attributes(stored, attributes, target.dtype)
                packings[stored] = found or Packing(target.dtype)
            except (ValueError, OverflowError, TypeError) as error:
                raise self.file.refuse(
                    plan,
                    f"fragment {run.at} of {stored} does not become {target.dtype}: {error}; "
                    f"leave the variable out with drop_variables",
                ) from error
        pipelines = tuple(replace(p, packing=packings[p.dtype]) for p in array.pipelines)
        array = replace(array, dtype=target.dtype, pipelines=pipelines)
        self._check_marks(plan, run, target, array)
        return array

    def _check_marks(
        self, plan: AggregationPlan, run: FragmentRun, target: AggregatedType, array: ManifestArray
    ) -> None:
        """Raise an error if converted integers may be what marks missing values."""
        if target.marks_vanish:
            for fill in list_fills(target.attributes):
                if any(_may_yield(fill, p.packing, p.dtype) for p in array.pipelines):
                    raise self._refuse_gaps(
                        plan, target, f"fragment {run.at} may hold {fill}, which marks missing ones"
                    )

    def _refuse_gaps(
        self, plan: AggregationPlan, target: AggregatedType, why: str
    ) -> UnsupportedError:
        """Return the error for integers that are converted, and may be missing."""
        return self.file.refuse(
            plan,
            f"{why}, and converted {target.dtype} cannot be missing; write the variable with a "
            f"floating dtype, or its fragments with its units and dtype, or leave it out with "
            f"drop_variables",
        )

    def _build_constants(
        self,
        plan: AggregationPlan,
        target: AggregatedType,
        starts: Sequence[Sequence[int]],
        changed: bool,
    ) -> Iterator[tuple[Index, ManifestArray]]:
        """Yield fragments of one value, which take no bytes."""
        for index, value in plan.values.items():
            shape = plan.shape_of(index)
            try:
                stored = np.asarray(value).astype(target.dtype)
                # numbers that are texts, as CFA 0.6.2 may have them, are parsed and never cut
                exact = isinstance(value, str) or stored.dtype.kind in "fc"
                if not exact and stored != value:
                    raise ValueError(f"{value!r} is out of its range")
            except (ValueError, OverflowError, TypeError) as error:
                raise self.file.error(
                    plan, f"fragment {index} has the value {value!r}, no {target.dtype}: {error}"
                ) from error
            fills = list_fills(target.attributes)
            if changed and any(_equal_in(target.dtype, stored, fill) for fill in fills):
                if target.marks_vanish:
                    raise self._refuse_gaps(plan, target, f"fragment {index} is missing")
                if target.dtype.kind in "fc":
                    stored = np.asarray(np.nan, target.dtype)
            pipeline = CodecPipeline(
                target.dtype, fill=stored.tobytes(), layout=tuple(range(len(shape)))
            )
            if changed:
                pipeline = replace(pipeline, packing=Packing(target.dtype))
            manifest = ChunkManifest.build((1,) * len(shape), file=MISSING)
            axes = tuple(ChunkAxis.regular(n, n) for n in shape)
            array = ManifestArray.from_fragment(Fragment.whole(axes, manifest), pipeline)
            yield tuple(s[n] for s, n in zip(starts, index, strict=True)), array


# ---------------------------------------------------------------------- fragments


@dataclass(frozen=True)
class AggregatedType:
    """What all fragments become: the dtype and the attributes of the aggregation variable.

    ``units`` are the attributes with its units and calendar, which bounds have from another one.
    """

    dtype: np.dtype[Any]
    attributes: Mapping[str, Any]
    units: Mapping[str, Any]

    @property
    def is_packed(self) -> bool:
        """Whether its own attributes unpack stored numbers."""
        return not self.attributes.keys().isdisjoint(SCALING)

    @property
    def marks_vanish(self) -> bool:
        """Whether converted numbers have nothing that marks missing values.

        Floats become NaN, and dates are loaded with their attributes.
        """
        return self.dtype.kind in "iu" and not are_date_units(self.units.get("units"))


@dataclass(frozen=True, eq=False)
class FoundFragment:
    """The variable of a fragment, in one of several files that were read together.

    ``axes`` are those of the variable for each axis of the whole, None where it lacks one.
    """

    place_of: FragmentPlace
    group: SameStructureFiles
    name: str
    place: int
    shape: tuple[int, ...]
    axes: tuple[int | None, ...]
    packing: Mapping[str, Any]
    conversion: Conversion

    def can_precede(self, other: FoundFragment, main: int) -> bool:
        """Return whether another fragment follows, and can be joined to this one."""
        one, two = self.place_of.at, other.place_of.at
        if self.group is not other.group or self.name != other.name or self.axes != other.axes:
            return False
        if not one or one[main] + 1 != two[main] or _drop(one, main) != _drop(two, main):
            return False
        along = self.axes[main]
        shapes = [s if along is None else _drop(s, along) for s in (self.shape, other.shape)]
        return shapes[0] == shapes[1] and self.conversion == other.conversion


class FragmentRun(NamedTuple):
    """Neighbouring fragments as one array, beginning with the fragment at ``index``."""

    at: Index
    array: Any
    packing: Mapping[str, Any]
    conversion: Conversion

    @property
    def is_scaled(self) -> bool:
        """Whether stored numbers are not the values."""
        return not self.packing.keys().isdisjoint(SCALING) or not self.conversion.is_identity

    def needs_conversion(self, target: AggregatedType) -> bool:
        """Return whether values differ from the stored numbers, or marks of missing values do."""
        if self.is_scaled or any(p.packing is not None for p in self.array.pipelines):
            return True
        # integers are never cut, but floats may become shorter ones
        casting: Any = "same_kind" if target.dtype.kind in "fc" else "safe"
        if not can_become(self.array.dtype, target.dtype, casting):
            return True
        known = list_fills(target.attributes)
        own = [f for f in list_fills(self.packing) if f == f]
        return any(not any(_equal_in(target.dtype, f, k) for k in known) for f in own)

    def describe_conversion(self, target: AggregatedType, stored: np.dtype[Any]) -> dict[str, Any]:
        """Return the packing attributes that convert chunks of numbers ``stored``."""
        names = ("scale_factor", "add_offset")
        if target.is_packed:
            raise ValueError("the aggregation variable is packed, and the fragment is another way")
        if not can_become(stored, target.dtype, "same_kind"):
            raise ValueError("they are different kinds of values")
        found = dict(self.packing)
        factor, offset = self.conversion
        if not self.conversion.is_identity:
            scale = found.get("scale_factor", 1)
            shift = found.get("add_offset", 0)
            whole = target.dtype.kind in "iu"
            if whole and (factor.denominator != 1 or offset.denominator != 1):
                raise ValueError("units convert by a fraction, and integers have none")
            made = (int if whole else float)(factor), (int if whole else float)(offset)
            scale, shift = scale * made[0], shift * made[0] + made[1]
            found = {n: v for n, v in found.items() if n not in names}
            found |= dict(zip(names, (scale, shift), strict=True))
            if found["scale_factor"] == 1:
                del found["scale_factor"]
            if found["add_offset"] == 0:
                del found["add_offset"]
        if target.dtype.kind in "iu" and (
            list_fills(found) or stored.kind not in "iu" or not np.can_cast(stored, target.dtype)
        ):
            raise ValueError("integers cannot hold what it has: fractions, gaps, or larger numbers")
        if target.dtype.kind in "iu" and any(
            isinstance(found.get(name), float | np.floating) for name in names
        ):
            raise ValueError("it is scaled by a fraction")
        if target.marks_vanish:
            scale, shift = (
                int(found.get(name, default)) for name, default in zip(names, (1, 0), strict=True)
            )
            kept, limits = np.iinfo(stored), np.iinfo(target.dtype)
            ends = [end * scale + shift for end in (int(kept.min), int(kept.max))]
            if min(ends) < limits.min or max(ends) > limits.max:
                raise ValueError("it may have numbers that are too large once they are converted")
        extra = [f for f in list_fills(target.attributes) if f == f]
        if extra and target.dtype.kind in "fc":
            raws = [raw for f in extra for raw in _unscale(f, found, stored, target.dtype)]
            own = list(np.ravel(found.get("missing_value", [])))
            if raws:
                found["missing_value"] = np.array([*own, *raws])
        return found


def can_become(stored: np.dtype[Any], wanted: np.dtype[Any], casting: Any) -> bool:
    """Return whether numbers, or characters, may be cast; texts are never cut."""
    one, other = stored.newbyteorder("="), wanted.newbyteorder("=")
    return one == other or (
        {one.kind, other.kind} <= set("iufc") and np.can_cast(one, other, casting)
    )


def _unscale(
    value: Any, packing: Mapping[str, Any], stored: np.dtype[Any], dtype: np.dtype[Any]
) -> Iterator[Any]:
    """Yield the stored number, if there is one, that becomes a value that means "missing"."""
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
        one = np.array([raw]).astype(stored)
        found = Packing.from_attributes(stored, scaling, dtype)
        got = found.decode(one) if found else one.astype(dtype)
        if got[0] == np.asarray(value).astype(dtype):
            yield one[0]


def _may_yield(value: Any, packing: Decoding | None, stored: np.dtype[Any]) -> bool:
    """Return whether a number is what some stored integer becomes."""
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
    """Return the numbers that attributes say mean "no value"."""
    return [v for n in ("_FillValue", "missing_value") for v in np.ravel(attributes.get(n, []))]


def _equal_in(dtype: np.dtype[Any], one: Any, other: Any) -> bool:
    if dtype.kind in "fc":
        return bool(np.asarray(one).astype(dtype) == np.asarray(other).astype(dtype))
    return bool(one == other)


def _find_fill(target: AggregatedType, changed: bool) -> Any:
    """Return the value of fragments that are missing."""
    if changed and target.dtype.kind in "fc":
        return target.dtype.type(np.nan)
    fills = list_fills(target.attributes)
    if fills:
        return np.asarray(fills[0]).astype(target.dtype)[()]
    if target.dtype.kind in "fc":
        return target.dtype.type(np.nan)
    return np.zeros((), target.dtype)[()]


Block = tuple[bool, list[SourceFile], dict[Name, list[FragmentPlace]]]
"""Whether groups are read, some files, and the fragments in them, by variable."""


def _iterate_blocks(plans: Mapping[Name, AggregationPlan]) -> Iterator[Block]:
    """Yield the fragments of all variables, those of some files at a time."""
    here: Block = (False, [], {})
    deep = dict[SourceFile, bool]()
    for key, plan in plans.items():
        for fragment in plan.files:
            if fragment.is_here:
                here[2].setdefault(key, []).append(fragment)
            else:
                inside = "/" in fragment.path.strip("/")
                deep[fragment.file] = deep.get(fragment.file, False) or inside
    yield here
    alike: dict[Any, list[SourceFile]] = {}
    for file, inside in deep.items():
        alike.setdefault((file.options, inside), []).append(file)
    blocks: list[Block] = [
        (inside, files[begin : begin + FILES_AT_ONCE], {})
        for (_, inside), files in alike.items()
        for begin in range(0, len(files), FILES_AT_ONCE)
    ]
    of_file = {file: block for block in blocks for file in block[1]}
    for key, plan in plans.items():
        for fragment in plan.files:
            if not fragment.is_here:
                of_file[fragment.file][2].setdefault(key, []).append(fragment)
    yield from blocks


def match_axes(
    shape: Sequence[int], dims: Sequence[str], expected: Sequence[int], names: Sequence[str]
) -> tuple[int | None, ...] | None:
    """Return the axis of a fragment for each axis of the whole, or None if they do not fit.

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
        found, at = list[int | None](), 0
        for size, name in zip(expected, names, strict=True):
            fits = at < len(shape) and shape[at] == size and (not by_name or dims[at] == name)
            if not fits and size != 1:
                break
            found.append(at if fits else None)
            at += fits
        if len(found) == len(expected) and at == len(shape):
            return tuple(found)
    return None


def _must_be_equal(name: str, value: Any) -> bool:
    """Return whether files are read together only if they agree in an attribute."""
    if name == "units":
        return not are_date_units(value)
    return name in (*PACKING_ATTRIBUTES, "units_metadata", "calendar", "bounds")


def _find_lender(variables: Mapping[str, ManifestVariable], name: str) -> str | None:
    """Return the coordinate whose units its bounds have, too (CF 7.1), or None."""
    return next((n for n, v in variables.items() if v.attributes.get("bounds") == name), None)


def _drop(values: Sequence[int], place: int) -> tuple[int, ...]:
    return (*values[:place], *values[place + 1 :])
