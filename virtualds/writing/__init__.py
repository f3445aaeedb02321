"""Create, replace and change reference sets; other modules here compute each kind of change.

`WriteOptions` checks that options are consistent. `Destination.of` chooses the format and checks
its options. `Destination.create` and `Destination.change` reject groups that a set may not contain,
write atomically, and resolve conflicts with other writers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from virtualds.arrays.array import ManifestArray, map_manifests
from virtualds.arrays.group import ManifestGroup, ManifestVariable, find_dim_sizes
from virtualds.arrays.subchunks import can_be_split, split_chunks
from virtualds.chunks.columns import INLINE
from virtualds.chunks.manifest import ChunkManifest
from virtualds.datasets.location import (
    CHANGES,
    FORMATS,
    SUBCHUNK,
    ZARR_V3,
    Location,
    find_existing_format,
    format_for,
)
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import (
    LOAD_OR_LEAVE_OUT,
    CombineError,
    ConflictError,
    UnsupportedError,
    VirtualdsError,
    locating,
    make_exists_error,
    make_unsupported_error,
)
from virtualds.formats import ON_ERROR, Format, Parts, change_set
from virtualds.formats.referenced_files import (
    KEEP_QUERY,
    IsKnown,
    check_admissible,
    iterate_first_files,
    iterate_new_files,
    knows_no_table,
    make_known_check,
    warn_of_unreadable,
)
from virtualds.formats.zarr import MARKER, TURN
from virtualds.options import (
    check_choice,
    check_types,
    find_arguments,
    format_suggestion,
    get_options,
    select_fields,
    to_names,
)
from virtualds.progress import INFO, count_written_references, is_logged, log
from virtualds.reading import StoredChunks, replace_chunks
from virtualds.stores import find_store
from virtualds.stores.access_rules import AccessPolicy, Allow, is_trusted
from virtualds.stores.fence import Turn
from virtualds.stores.store import explain_write_errors
from virtualds.writing.rewrite import RewriteOptions, RewriteTarget, bind_obstacles
from virtualds.writing.rewrite_plan import Obstacles, build_cost_table, plan_rewriting

Result = TypeVar("Result")

ATTEMPTS = 30
"""Maximum number of attempts to make a change if other writers are faster."""


PAUSE = 0.05
"""The average pause in seconds after the first attempt, doubled after each attempt."""


@contextmanager
def explain_missing_set(location: Location) -> Iterator[None]:
    """Replace the error for a set that does not exist by one with the remedy."""
    try:
        yield
    except FileNotFoundError as error:
        # an error of the operating system has no further details
        detail = f" ({error})" if error.errno is None and f"{error}" else ""
        raise FileNotFoundError(
            f"{location.target}: there is no reference set{detail}; check the path, or write one "
            f"with ds.virtual.to_manifest"
        ) from None


def find_turn(location: Location) -> Turn | None:
    """Return the turn of a zarr-v3 set, or None for other sets or with ``only_writer``."""
    if get_options().only_writer or not isinstance(location.target, str):
        return None
    root = location.url.rstrip("/")
    with suppress(FileNotFoundError, NotADirectoryError):
        marker, _ = find_store(root).read_with_version(f"{root}/{MARKER}", location.options)
        if ZARR_V3.detect(marker):
            return Turn(root, TURN, location.options)
    return None


def retry_on_conflict(
    attempt: Callable[[int], Result], conflict: str, location: Location | None = None
) -> Result:
    """Call ``attempt``, and again after a conflict if ``conflict`` is "retry".

    ``attempt`` takes the number of earlier attempts. If ``conflict`` is "retry", the first attempt
    waits for the turn of the set at ``location``, if it has one.
    """
    check_choice("conflict", conflict, ("raise", "retry"))
    if conflict == "raise":
        return attempt(0)
    number, pause = 0, PAUSE
    turn: Turn | None = None
    try:
        # a writer without the turn can still commit
        with suppress(OSError, VirtualdsError):
            turn = None if location is None else find_turn(location)
            if turn is not None:
                turn.take()
        while True:
            try:
                return attempt(number)
            except ConflictError:
                number += 1
                if number == ATTEMPTS:
                    raise
            # a random pause, since the same writer could otherwise lose again
            time.sleep(random.uniform(0, 2 * pause))
            pause = min(2 * pause, 5.0)
    finally:
        if turn is not None:
            with suppress(OSError, VirtualdsError):
                turn.end()


# ---------------------------------------------------------------------- groups of a set

EMPTY = ManifestGroup()


def normalise_path(path: str | None) -> str:
    """Return the path of a group without leading, trailing and double slashes; "" for the root.

    >>> normalise_path("/a//b/"), normalise_path("/"), normalise_path(None)
    ('a/b', '', '')
    """
    if path is not None and not isinstance(path, str):
        raise ValueError(f"group {path!r}: give a path such as '/a/b', or None for the root")
    parts = [part for part in (path or "").split("/") if part]
    if odd := [part for part in parts if part in (".", "..")]:
        raise ValueError(f"group {path!r}: {odd[0]!r} is not a name of a group")
    return "/".join(parts)


@contextmanager
def name_group_in_errors(path: str) -> Iterator[None]:
    """Add the path of a group, unless it is the root, to errors of the block."""
    try:
        yield
    except (VirtualdsError, ValueError) as error:
        if path:
            name_place = error.locate if isinstance(error, VirtualdsError) else error.add_note
            name_place(f"group /{path}")
        raise


def find_group(root: ManifestGroup, path: str) -> ManifestGroup | None:
    """Return the group at a path, or None if there is none."""
    group: ManifestGroup | None = root
    for name in filter(None, path.split("/")):
        group = None if group is None else group.groups.get(name)
    return group


def put_group(root: ManifestGroup, path: str, group: ManifestGroup) -> ManifestGroup:
    """Return a set with the group at a path replaced.

    Raises `CombineError` if a variable has the name of the group, or of a group above it.
    """
    if path:
        name, _, child_path = path.partition("/")
        child = put_group(root.groups.get(name, EMPTY), child_path, group)
        group = replace(root, groups={**root.groups, name: child})
    if both := sorted(group.variables.keys() & group.groups.keys()):
        raise CombineError(
            f"{both[0]!r} would be a variable and a group (writing group /{path}); choose another "
            f"name for one of them"
        )
    return group


def add_group(root: ManifestGroup, path: str, group: ManifestGroup) -> ManifestGroup:
    """Return a set with a group and its subgroups added at a path.

    Callers check that no existing group with variables would be replaced by one with variables or
    attributes.
    """
    for subpath, part in group.walk(path):
        existing = find_group(root, subpath)
        if existing is None or part.variables or part.attributes:
            root = put_variables(root, subpath, part)
    return root


def put_variables(root: ManifestGroup, path: str, group: ManifestGroup) -> ManifestGroup:
    """Return a set with the group at a path replaced, but with the existing subgroups."""
    existing = find_group(root, path)
    return put_group(root, path, replace(group, groups=existing.groups if existing else {}))


# ---------------------------------------------------------------------- inherited coordinates


def list_inherited(
    root: ManifestGroup, path: str, names: Iterable[str]
) -> dict[str, ManifestVariable]:
    """Return dimension coordinates that a group inherits from groups above it, by name."""
    inherited: dict[str, ManifestVariable] = {}
    missing = set(names)
    parts = path.split("/") if path else []
    for depth in range(len(parts)):
        parent = find_group(root, "/".join(parts[:depth])) or EMPTY
        # the nearest group takes precedence
        inherited |= {n: v for n, v in parent.variables.items() if v.dims == (n,) and n in missing}
    group = find_group(root, path) or EMPTY
    return {name: variable for name, variable in inherited.items() if name not in group.variables}


def check_aligned(before: ManifestGroup, after: ManifestGroup) -> ManifestGroup:
    """Return the changed set, or raise an error if a group contradicts an inherited dimension."""
    earlier_misfits = {misfit[:2] for misfit in _find_mismatches(before)}
    for path, dim, size, inherited_size in _find_mismatches(after):
        if find_group(before, path) is not None and (path, dim) not in earlier_misfits:
            raise CombineError(
                f"group /{path} would have {size} elements along {dim!r}, and the coordinate "
                f"that it inherits from a group above it has {inherited_size}; write these groups "
                f"together, as a tree (tree.virtual.to_manifest)"
            )
    return after


def _find_mismatches(root: ManifestGroup) -> Iterator[tuple[str, str, int, int]]:
    """Yield group, dimension and both lengths of dimensions that disagree with inherited ones."""
    for path, group in root.walk():
        sizes = find_dim_sizes(group)
        for dim, variable in list_inherited(root, path, sizes).items():
            if (inherited_size := variable.data.shape[0]) != sizes[dim]:
                yield path, dim, sizes[dim], inherited_size


# ---------------------------------------------------------------------- options

MODES = ("w-", "w", "a", "r+", "replace-source")
CREATING = ("w-", "w")
NEW_VARIABLES = ("error", "fill", "drop")
MISSING_VARIABLES = ("error", "fill")
REWRITE_OPTIONS = tuple(option.name for option in fields(RewriteOptions))
COMMON_CHOICES = (KEEP_QUERY, *REWRITE_OPTIONS)
"""Names of options that all formats have."""


@dataclass(frozen=True)
class WriteOptions:
    """Options of ``ds.virtual.to_manifest``.

    ``choices`` are options of the format, and those of all formats: ``keep_query``, and the fields
    of `RewriteOptions` and `ReferenceChanges`. Raises `ValueError` for options that are unknown or
    exclude each other.
    """

    format: str | None = None
    mode: str | None = None
    append_dim: str | None = None
    position: str = "end"
    on_duplicate: str = "raise"
    conflict: str = "raise"
    allow: Allow = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    new_variables: str = "error"
    missing_variables: str = "error"
    pad: Any = ()
    region: Any = None

    def __post_init__(self) -> None:
        if self.mode is None:
            default = "w-" if self.append_dim is None else "a"
            object.__setattr__(self, "mode", default if self.region is None else "r+")
        object.__setattr__(self, "pad", to_names("pad", self.pad))
        self._check_mode()
        check_choice("new_variables", self.new_variables, NEW_VARIABLES)
        check_choice("missing_variables", self.missing_variables, MISSING_VARIABLES)
        check_choice("conflict", self.conflict, ("raise", "retry"))
        AccessPolicy.from_argument(self.allow)
        normalise_path(self.group)
        _ = self.rewriting

    def _check_mode(self) -> None:
        """Raise an error for an unknown mode, or for options that the mode does not have."""
        mode, dim = self.mode, self.append_dim
        if mode not in MODES:
            raise ValueError(
                f"mode={mode!r}: give one of 'w-' (create), 'w' (create or replace), 'a' (add "
                f"variables, or append along append_dim), 'r+' (fill a region, or replace "
                f"variables), or 'replace-source'"
            )
        if self.region is not None and (mode != "r+" or dim is not None):
            raise ValueError(
                f"mode={mode!r} with region={self.region!r} and append_dim={dim!r}: only mode "
                f"'r+' fills a region of a set, and without append_dim"
            )
        if dim is not None and mode not in ("a", "replace-source"):
            raise ValueError(
                f"mode={mode!r} with append_dim={dim!r}: append_dim is for mode 'a' or "
                f"'replace-source'; leave it out to create a set"
            )
        names = ["position", "new_variables", "missing_variables"]
        if self.region is not None or (mode == "a" and dim is None):
            check_choice("on_duplicate", self.on_duplicate, ("raise", "skip", "replace"))
        else:
            names.append("on_duplicate")
        if mode != "replace-source":
            names.append("pad")
        values = {name: getattr(self, name) for name in names}
        others = [f"{n}={v!r}" for n, v in values.items() if v != getattr(WriteOptions, n)]
        if others and not self.is_append:
            raise ValueError(
                f"mode={mode!r} with {', '.join(others)}: these are for appending; name the "
                f"dimension with append_dim, or leave them out"
            )

    @property
    def is_append(self) -> bool:
        """Whether the data are appended along a dimension."""
        return self.mode == "a" and self.append_dim is not None

    @property
    def path(self) -> str:
        """The path of the group to write; ``""`` for the root."""
        return normalise_path(self.group)

    @property
    def creates_set(self) -> bool:
        """Whether the data become the whole content of the set."""
        return self.mode in CREATING and not self.path

    @property
    def replaces_set(self) -> bool:
        """Whether the data may replace an existing set."""
        return self.mode == "w" and not self.path

    @property
    def rewriting(self) -> RewriteOptions:
        """The options for chunks that the format cannot store."""
        return select_fields(RewriteOptions, self.choices)

    @property
    def keep_query(self) -> bool:
        """Whether urls with secrets may be written."""
        return bool(self.choices.get(KEEP_QUERY, False))

    @property
    def changes(self) -> ReferenceChanges:
        """The options for splitting chunks and storing them inline."""
        return select_fields(ReferenceChanges, self.choices)

    @property
    def format_choices(self) -> dict[str, Any]:
        """The options that are specific to the format."""
        shared = (*COMMON_CHOICES, *CHANGES)
        return {name: value for name, value in self.choices.items() if name not in shared}

    def check_choices(self, target: Format, call: Callable[..., Any] | None) -> None:
        """Raise an error for options that a format lacks; ``call`` is the public function."""
        known = [*target.choices, *COMMON_CHOICES]
        others = find_arguments(WriteOptions if call is None else call)
        listed = ", ".join(known)
        for name in sorted(self.choices.keys() - set(known)):
            remedy = format_suggestion(name, {*known, *others} - {name})
            if name in {option.name for option in fields(self)}:
                remedy = "; ds.virtual.to_manifest has it, and this call does not"
            raise TypeError(f"{target.name} has no option {name!r}{remedy or f'; it has {listed}'}")
        check_types(self.choices)
        if self.rewriting.rewrites:
            _check_rewritable(target)
        _ = self.changes


def _check_rewritable(target: Format) -> None:
    """Raise an error for a format whose sets cannot refer to rewritten chunks."""
    if not target.has_rewritten_chunks:
        raise UnsupportedError(
            f"on_unsupported='rewrite': {target.name} refers to whole variables of source files, "
            f"and rewritten chunks are in none; leave it out, or choose another format"
        )


# ---------------------------------------------------------------------- destination

MakeGroup = Callable[[], ManifestGroup]
"""Returns the group of a new set."""
ChangeGroup = Callable[[ManifestGroup], ManifestGroup]
"""Takes the current group of a set, and returns the new group."""


class CommitResult(NamedTuple):
    """The previous group of a set, None if the set is new, and the group that was written."""

    before: ManifestGroup | None
    after: ManifestGroup


@dataclass(frozen=True)
class Destination:
    """The location, the format and the options of a set to write.

    ``place`` is the location of parts that workers write, see `virtualds.formats.Parts`. In a
    ``dry_run``, a change is computed and checked, but not written.
    """

    location: Location
    format: Format
    options: WriteOptions
    place: Any = None
    dry_run: bool = False

    @classmethod
    def of(
        cls, location: Location, options: WriteOptions, call: Callable[..., Any] | None = None
    ) -> Destination:
        """Return a destination with its format, after a check of the options for ``call``."""
        target = format_for(location, options.format)
        options.check_choices(target, call)
        return cls(location, target, options)

    def check_not_existing(self) -> Destination:
        """Return the destination, or raise an error if the set must not exist but does."""
        if self.options.mode != "w-" or not self.options.creates_set:
            return self
        where, access = self.location.target, self.location.options
        if self.format.holds is None:
            exists = find_existing_format(self.location) is not None
        else:
            names = ("branch", "create_branch")
            branch = {k: v for k, v in self.options.format_choices.items() if k in names}
            exists = self.format.holds(where, access, **branch)
        if exists:
            raise make_exists_error(where)
        return self

    @property
    def rewrite_target(self) -> RewriteTarget:
        """The target of rewritten chunks."""
        options = self.options
        return RewriteTarget(self.location, self.format, options.rewriting, options.format_choices)

    @property
    def parts(self) -> Parts:
        """The functions for writing a set by several processes; an error if there are none."""
        if self.format.parts is None:
            capable = ", ".join(other.name for other in FORMATS if other.parts is not None)
            raise UnsupportedError(
                f"{self.location.target}: to= lets many processes write one set, which "
                f"{self.format.name} does not allow; {capable} does, and virtualds.convert "
                f"converts it to {self.format.name}, or leave out to= and write the dataset with "
                f"ds.virtual.to_manifest"
            )
        return self.format.parts

    def begin_parts(self) -> Destination:
        """Prepare writing by several processes, and return the destination with its place."""
        where, replaces = self.location.target, self.options.mode == "w"
        parts = self.parts
        with explain_write_errors(where):
            return replace(self, place=parts.begin(where, self.location.options, replace=replaces))

    def create(self, make_group: MakeGroup) -> CommitResult:
        """Write a new set with the group that ``make_group`` returns: all of it, or nothing."""
        return self._write(lambda _: self._create(make_group))

    def change(self, change: ChangeGroup, make_group: MakeGroup | None = None) -> CommitResult:
        """Change a set, or create it with the group of ``make_group`` if there is none."""
        if self.dry_run:
            return self._try_change(change, make_group)
        return self._write(partial(self._change, change, make_group))

    def _write(self, write: Callable[[int], CommitResult]) -> CommitResult:
        """Call ``write``, repeat it after conflicts if asked to, and log the time.

        ``write`` takes the number of earlier attempts.
        """
        started = time.perf_counter()
        has_turn = self.format is ZARR_V3 and self.options.mode not in CREATING
        location = self.location if has_turn else None
        written = retry_on_conflict(write, self.options.conflict, location)
        if is_logged(INFO):
            seconds = time.perf_counter() - started
            log(INFO, f"{self.location.url}: {self.format.name}, written, {seconds:.3f} s")
        return written

    def _create(self, make_group: MakeGroup) -> CommitResult:
        """Make one attempt to write a new set."""
        if self.rewrite_target.is_needed or self.options.changes.inline_threshold:
            # check this before chunks are read
            self.check_not_existing()
        # workers have already checked the parts that they have written
        is_known: IsKnown = (
            knows_no_table
            if self.place is None
            else lambda table: self.parts.holds(table, self.place)
        )
        group = self.options.changes.apply(make_group(), is_known)
        group = self._prepare_for_format(group, is_known)
        where, replaces = self.location.target, self.options.replaces_set
        # outside of this block, sources are read, whose errors are not about the set
        with explain_write_errors(where):
            if self.place is not None:
                self.parts.commit(group, self.place, replace=replaces)
            else:
                write: Callable[..., None] = self.format.write
                chosen = self.options.format_choices | self.rewrite_target.writer_arguments
                with self._count_writing(group):
                    write(group, where, self.location.options, replace=replaces, **chosen)
                self.rewrite_target.clear(group)
        return CommitResult(None, group)

    def _change(
        self, change: ChangeGroup, make_group: MakeGroup | None, attempts: int
    ) -> CommitResult:
        """Make one attempt to change or create a set, after ``attempts`` earlier ones."""
        results: list[CommitResult] = []
        progress = ExitStack()

        def prepare(before: ManifestGroup) -> ManifestGroup:
            results[:] = [CommitResult(before, self._prepare_change(before, change))]
            if results[0].after is not before:
                # the number of references to write is only known now
                progress.enter_context(self._count_writing(results[0].after))
            return results[0].after

        where, policy = self.location.target, AccessPolicy.from_argument(self.options.allow)
        try:
            with explain_write_errors(where), explain_missing_set(self.location), progress:
                chosen = self.options.format_choices | self.rewrite_target.writer_arguments
                if attempts and self.format is ZARR_V3:
                    # merging tables takes long, so this attempt would lose again
                    chosen |= {"merges": False}
                access = self.location.options
                change_set(self.format, where, prepare, access, policy, **chosen)
        except FileNotFoundError:
            if make_group is None:
                raise
        else:
            self.rewrite_target.clear(results[0].after)
            return results[0]
        try:
            return self._create(make_group)
        except FileExistsError as error:
            if find_existing_format(self.location) is not self.format:
                raise
            raise ConflictError(
                f"{self.location.target}: another writer has just created it; append again, as "
                f"conflict='retry' does"
            ) from error

    def _try_change(self, change: ChangeGroup, make_group: MakeGroup | None) -> CommitResult:
        """Return the result of a change that is checked, but not written."""
        opening = OpenOptions(
            parser=self.format.name,
            allow=self.options.allow,
            snapshot=self.options.format_choices.get("branch"),
        )
        try:
            before = open_group(self.location, opening)
        except FileNotFoundError:
            if make_group is None:
                raise
            return CommitResult(None, self._prepare_for_format(make_group(), knows_no_table))
        after = self._prepare_change(before, change)
        self._check_storable(before, after)
        return CommitResult(before, after)

    def _check_storable(self, before: ManifestGroup, after: ManifestGroup) -> None:
        """Raise the error of the writer for changed variables that the format cannot store."""
        obstacles = bind_obstacles(self.format, self.options.format_choices)
        before_variables = dict(before.walk_variables())
        problems = [
            f"{path}: {reason}"
            for path, variable in after.walk_variables()
            if isinstance(variable.data, ManifestArray)
            and variable is not before_variables.get(path)
            # existing variables may have been written with other options
            if path not in before_variables or not _list_reasons(before_variables[path], obstacles)
            for reason in obstacles(variable)
        ]
        if problems:
            name = self.format.name
            raise make_unsupported_error(self.location.url, name, problems, LOAD_OR_LEAVE_OUT)

    def _prepare_change(self, before: ManifestGroup, change: ChangeGroup) -> ManifestGroup:
        """Return the changed group of a set, prepared for the format."""
        if problems := before.all_problems():
            # unreadable parts of the set would be lost
            ON_ERROR["raise"](before, problems)
        if (after := change(before)) is before:
            return before
        is_known = make_known_check(before)
        after = self.options.changes.apply(after, is_known)
        return self._prepare_for_format(after, is_known)

    def _count_writing(self, group: ManifestGroup) -> AbstractContextManager[None]:
        """Return a context that reports the progress of writing references."""
        total = sum(array.nchunks for array in group.list_arrays())
        return count_written_references(self.options.rewriting.progress, total)

    def _prepare_for_format(self, group: ManifestGroup, is_known: IsKnown) -> ManifestGroup:
        """Return a group prepared for the format, after a check that a set may contain it."""
        target, keep_query = str(self.location.target), self.options.keep_query
        check_admissible(group, target, keep_query=keep_query, is_known=is_known)
        group = self.rewrite_target.apply(group)
        # the location of an Icechunk object is unknown
        if isinstance(self.location.target, str) and not is_trusted(target):
            new_files = (
                iterate_new_files(group, is_known)
                if self.place is None
                else iterate_first_files(group)
            )
            warn_of_unreadable(new_files, target, AccessPolicy.from_argument(self.options.allow))
        return group


def _list_reasons(variable: ManifestVariable, obstacles: Obstacles) -> list[str]:
    """Return the reasons why a format cannot store a variable."""
    return obstacles(variable) if isinstance(variable.data, ManifestArray) else []


def prepare_write(
    url: Any, *, storage_options: Mapping[str, Any] | None = None, **arguments: Any
) -> Destination:
    """Check arguments of ``ds.virtual.to_manifest`` before a long scan; return the destination.

    Examples
    --------
    >>> prepare_write("refs.parquet").format.name
    'kerchunk-parquet'
    """
    names = {option.name for option in fields(WriteOptions)}
    choices = {name: value for name, value in arguments.items() if name not in names}
    options = select_fields(WriteOptions, arguments | {"choices": choices})
    return Destination.of(Location.of(url, storage_options), options).check_not_existing()


# ---------------------------------------------------------------------- sets as dicts

DICT_TARGET = "a dict of references"
"""Name of the target in error messages."""


def make_dict(
    make_group: Callable[[], ManifestGroup],
    options: WriteOptions,
    storage_options: Mapping[str, Any] | None,
    call: Callable[..., Any],
) -> dict[str, Any]:
    """Return a group as a dict of references in the format of ``options``."""
    forms = {format_.name: format_ for format_ in FORMATS if format_.to_dict is not None}
    format_ = forms.get(options.format or next(iter(forms)))
    if format_ is None or format_.to_dict is None:
        raise UnsupportedError(
            f"url None with format {options.format!r}: only format="
            f"{' or '.join(map(repr, forms))} writes one document, which a dict can hold; name a "
            f"file or folder"
        )
    options.check_choices(format_, call)
    if options.rewriting.rewrites:
        raise UnsupportedError(
            "on_unsupported='rewrite' with url None: rewritten chunks lie in files beside a set, "
            "and a dict is in no folder; name a file"
        )
    given = {
        "mode": options.mode != "w-",
        "conflict": options.conflict != "raise",
        "allow": options.allow is not None,
        "storage_options": bool(storage_options),
    }
    if options_given := [name for name, is_given in given.items() if is_given]:
        raise ValueError(
            f"{', '.join(options_given)} with url None: a dict is always new and nothing is "
            f"written; leave out mode, append_dim, region, conflict, allow and storage_options, or "
            f"name a file"
        )
    root = add_group(EMPTY, options.path, make_group())
    group = options.changes.apply(root, knows_no_table)
    check_admissible(group, DICT_TARGET, keep_query=options.keep_query)
    return format_.to_dict(group, **options.format_choices)


# ---------------------------------------------------------------------- changes of references
# ``subchunk`` and ``inline_threshold`` change the group before a format writes it. Reference tables
# of the target set are not changed. In small sets, whose references are in memory, existing chunks
# are split and stored inline like new chunks.

Subchunk = Mapping[str, int | Mapping[str, int]]
ChangeArray = Callable[[str, ManifestVariable, ManifestArray], ManifestArray]
"""Takes the path of a variable, the variable and its array, and returns the new array."""


@dataclass(frozen=True)
class ReferenceChanges:
    """Options for splitting chunks and storing them inline, as in ``ds.virtual.to_manifest``.

    Raises `TypeError` or `ValueError` for invalid values.
    """

    subchunk: Any = None
    inline_threshold: Any = None

    def __post_init__(self) -> None:
        threshold = self.inline_threshold
        if threshold is not None and not (_is_integer(threshold) and threshold >= 0):
            raise ValueError(f"inline_threshold={threshold!r}: give a number of bytes, at least 0")
        if self.subchunk is not None:
            _check_subchunk(self.subchunk)

    def apply(self, group: ManifestGroup, is_known: IsKnown) -> ManifestGroup:
        """Return a group with chunks split and stored inline, except in tables of the target set.

        Raises `UnsupportedError` for chunks that cannot be split, and `ReadError` for chunks that
        cannot be read.
        """
        if self.subchunk:
            splitter = _ChunkSplitter(self.subchunk, is_known)
            group = _change_arrays(group, splitter.split)
            splitter.check_effect(group)
        if self.inline_threshold:
            limit = int(self.inline_threshold)
            group = _change_arrays(
                group, lambda path, _, array: _inline_small_chunks(array, path, limit, is_known)
            )
        return group


def _is_integer(value: Any) -> bool:
    """Return whether a value is an integer, but not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_subchunk(lengths: Any) -> None:
    """Raise an error for an invalid value of ``subchunk``."""
    remedy = "give a dict of dimensions, or of variables, such as {'time': 1}"
    if not isinstance(lengths, Mapping):
        raise TypeError(f"subchunk {lengths!r}: {remedy}")
    for name, length in lengths.items():
        if isinstance(length, Mapping):
            if any(isinstance(inner, Mapping) for inner in length.values()):
                raise TypeError(f"subchunk {lengths!r}: {remedy}")
            _check_subchunk(length)
        elif not _is_integer(length) or length < 1:
            raise ValueError(f"subchunk {name}={length!r}: give a number of elements, at least 1")


def _change_arrays(group: ManifestGroup, change: ChangeArray) -> ManifestGroup:
    """Return a group with a function applied to the virtual arrays of it and its subgroups."""

    def change_variable(path: str, variable: ManifestVariable) -> ManifestVariable:
        if not isinstance(variable.data, ManifestArray):
            return variable
        with locating(f"variable {path!r}"):
            array = change(path, variable, variable.data)
        return variable if array is variable.data else replace(variable, data=array)

    return group.map_variables(change_variable)


# ---------------------------------------------------------------------- splitting chunks


@dataclass
class _ChunkSplitter:
    """Splits chunks as the option ``subchunk`` says."""

    subchunk: Subchunk
    is_known: IsKnown
    has_effect: bool = False

    def split(self, path: str, variable: ManifestVariable, array: ManifestArray) -> ManifestArray:
        """Return an array with split chunks; compressed arrays stay unchanged."""
        names = (path, path.rpartition("/")[2])
        choices = (self.subchunk[name] for name in names if name in self.subchunk)
        lengths_of_variable = next(
            (choice for choice in choices if isinstance(choice, Mapping)), None
        )
        lengths_by_dim = self.subchunk if lengths_of_variable is None else lengths_of_variable
        lengths = {
            axis: int(lengths_by_dim[dim])  # type: ignore[arg-type]  # checked at the beginning
            for axis, dim in enumerate(variable.dims)
            if dim in lengths_by_dim and not isinstance(lengths_by_dim[dim], Mapping)
        }
        if not lengths:
            return array
        existing = [f for f in array.fragments if _is_in_target(f.manifest, self.is_known)]
        # chunks of the set were split when they were written
        self.has_effect |= bool(existing) or all(
            max(f.axes[axis].stored_lengths(), default=0) <= length
            for f in array.fragments
            for axis, length in lengths.items()
        )
        if lengths_of_variable is None and not can_be_split(array):
            return array
        new_fragments = [f for f in array.fragments if not any(f is other for other in existing)]
        split = split_chunks(replace(array, fragments=tuple(new_fragments)), lengths, variable.dims)
        self.has_effect |= split.nchunks != sum(f.manifest.size for f in new_fragments)
        return replace(array, fragments=(*existing, *split.fragments))

    def check_effect(self, group: ManifestGroup) -> None:
        """Raise an error if ``subchunk`` has no effect: unknown names, or compressed chunks."""
        names = {name for _, part in group.walk() for name in part.variables}
        names |= {dim for _, variable in group.walk_variables() for dim in variable.dims}
        for name in self.subchunk:
            if name.rpartition("/")[2] not in names:
                raise ValueError(
                    f"subchunk {name!r}: there is no such dimension or variable"
                    f"{format_suggestion(name, names)}"
                )
        if not self.has_effect:
            raise UnsupportedError(
                f"subchunk {dict(self.subchunk)!r}: no variable has uncompressed chunks that are "
                f"longer, and parts of compressed chunks are not ranges of bytes; leave it out"
            )


def _is_in_target(manifest: ChunkManifest, is_known: IsKnown) -> bool:
    """Return whether a manifest is a view of a table of the target set."""
    return manifest.table is not None and is_known(manifest.table)


# ---------------------------------------------------------------------- inline chunks


def _inline_small_chunks(
    array: ManifestArray, path: str, limit: int, is_known: IsKnown
) -> ManifestArray:
    """Return an array with chunks of at most ``limit`` bytes as inline chunks.

    Equal ranges are read once, and checksums are verified.
    """

    def read_small(manifest: ChunkManifest) -> ChunkManifest:
        if _is_in_target(manifest, is_known):
            return manifest
        chunks = StoredChunks(manifest, path)
        is_small = (chunks.file >= 0) & (chunks.length <= limit)
        if not is_small.any():
            return manifest
        rows, new, inverse = chunks.read_distinct(is_small, lambda data: data)
        old, inline = chunks.manifest, (*chunks.manifest.inline, *new)
        columns = {"file": INLINE, "offset": len(old.inline) + inverse}
        return replace_chunks(old, rows, old.files, inline, **columns).prune()

    return map_manifests(array, read_small)


# ---------------------------------------------------------------------- costs


def estimate_cost(
    group: ManifestGroup,
    format: str,
    main_encoding: Mapping[str, Any] | None = None,
    **choices: Any,
) -> pd.DataFrame:
    """Return the cost table of ``on_unsupported="rewrite"``; see ``ds.virtual.cost``."""
    format_ = format_for(Location(""), format)
    if unknown := sorted(choices.keys() - set(format_.choices)):
        option_list = ", ".join(["main_encoding", *format_.choices])
        raise TypeError(
            f"cost: {format_.name} has no option {unknown[0]!r}; give one of {option_list}"
        )
    _check_rewritable(format_)
    # chunks are split before they are rewritten; inline chunks do not change the cost
    group = ReferenceChanges(choices.get(SUBCHUNK)).apply(group, knows_no_table)
    obstacles = bind_obstacles(format_, choices)
    plans = plan_rewriting(group, obstacles, main_encoding or {}, format_.name)
    return build_cost_table(group, plans)
