"""Groups of a set by their paths: find them, put others in their place, keep trees whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from virtualds.arrays.alike_files import list_sizes
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.errors import CombineError, VirtualdsError

EMPTY = ManifestGroup()


def normalise_path(path: str | None) -> str:
    """Return the path of a group without superfluous slashes; that of the root is ``""``.

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
def naming_group(path: str) -> Iterator[None]:
    """Name a group below the root in errors of the block."""
    try:
        yield
    except (VirtualdsError, ValueError) as error:
        if path:
            name_place = error.locate if isinstance(error, VirtualdsError) else error.add_note
            name_place(f"group /{path}")
        raise


def find_group(root: ManifestGroup, path: str) -> ManifestGroup | None:
    """Return the group at a path, None if there is none."""
    found: ManifestGroup | None = root
    for name in filter(None, path.split("/")):
        found = found.groups.get(name) if found is not None else None
    return found


def put_group(root: ManifestGroup, path: str, group: ManifestGroup) -> ManifestGroup:
    """Return a set with a group at a path, in place of what was there.

    A `CombineError` is raised if a variable has the name of the group, or of a group above it.
    """
    if not path:
        return _demand_distinct_names(group, path)
    name, _, rest = path.partition("/")
    below = put_group(root.groups.get(name, EMPTY), rest, group)
    return _demand_distinct_names(replace(root, groups={**root.groups, name: below}), path)


def add_group(root: ManifestGroup, path: str, group: ManifestGroup) -> ManifestGroup:
    """Return a set with a group added at a path where there are at most groups for other groups."""
    for below, part in group.walk(path):
        there = find_group(root, below)
        if there is None or part.variables or part.attributes:
            root = put_variables(root, below, part)
    return root


def put_variables(root: ManifestGroup, path: str, group: ManifestGroup) -> ManifestGroup:
    """Return a set with a group at a path; groups below that path stay as they are."""
    there = find_group(root, path)
    return put_group(root, path, replace(group, groups=there.groups if there else {}))


def _demand_distinct_names(group: ManifestGroup, path: str) -> ManifestGroup:
    if both := sorted(group.variables.keys() & group.groups.keys()):
        raise CombineError(
            f"{both[0]!r} would be a variable and a group (writing group /{path}); choose another "
            f"name for one of them"
        )
    return group


# ---------------------------------------------------------------------- coordinates of groups above


def list_inherited(
    root: ManifestGroup, path: str, names: Iterable[str]
) -> dict[str, ManifestVariable]:
    """Return the dimension coordinates that a group has from the groups above it, by name."""
    found: dict[str, ManifestVariable] = {}
    wanted = set(names)
    parts = path.split("/") if path else []
    for depth in range(len(parts)):
        above = find_group(root, "/".join(parts[:depth])) or EMPTY
        # the nearest group counts
        found |= {n: v for n, v in above.variables.items() if v.dims == (n,) and n in wanted}
    here = find_group(root, path) or EMPTY
    return {name: variable for name, variable in found.items() if name not in here.variables}


def demand_aligned(before: ManifestGroup, after: ManifestGroup) -> ManifestGroup:
    """Refuse to change the length of a dimension in one group alone, if groups share it."""
    known = {misfit[:2] for misfit in _find_misfits(before)}
    for path, dim, size, above in _find_misfits(after):
        if find_group(before, path) is not None and (path, dim) not in known:
            raise CombineError(
                f"group /{path} would have {size} elements along {dim!r}, and the coordinate "
                f"that it has from a group above it {above}; write these groups together, as a "
                f"tree (tree.virtual.to_manifest)"
            )
    return after


def _find_misfits(root: ManifestGroup) -> Iterator[tuple[str, str, int, int]]:
    """Yield group, dimension and both lengths where a group does not fit what it inherits."""
    for path, group in root.walk():
        sizes = list_sizes(group)
        for dim, variable in list_inherited(root, path, sizes).items():
            if (above := variable.data.shape[0]) != sizes[dim]:
                yield path, dim, sizes[dim], above


def join_coordinates(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """Return the attributes of a group that also names the coordinates of another.

    CF names coordinates that belong to no variable in an attribute of the group, as xarray does.
    """
    names = [str(attributes.get("coordinates", "")).split() for attributes in (old, new)]
    joined = " ".join(dict.fromkeys([*names[0], *names[1]]))
    return {**old, "coordinates": joined} if names[1] else dict(old)
