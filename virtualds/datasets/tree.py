"""From groups to xarray trees, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import xarray as xr

from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.open_options import OPEN_DEFAULTS, OpenOptions
from virtualds.datasets.to_dataset import to_lazy_dataset, to_virtual_dataset
from virtualds.errors import CombineError, UnsupportedError, VirtualdsError
from virtualds.formats.undecodable import decode_group

MakeDataset = Callable[[ManifestGroup], xr.Dataset]
"""A function that returns a group as a dataset, without the groups below."""

# ---------------------------------------------------------------------- group -> tree


def to_lazy_datasets(
    group: ManifestGroup, on_error: str = "raise", **decoders: Any
) -> dict[str, xr.Dataset]:
    """Return a group and all groups below it as lazy datasets, by path.

    The group itself has the path ``""``. ``decoders`` are those of `to_lazy_dataset`; ``on_error``
    says what to do with variables that cannot be decoded.
    """
    return dict(_make_datasets(group, lambda part: to_lazy_dataset(part, **decoders), on_error))


def to_virtual_tree(group: ManifestGroup, opening: OpenOptions = OPEN_DEFAULTS) -> xr.DataTree:
    """Return a group and all below it as a tree of datasets of virtual arrays.

    Parameters and errors are those of `to_virtual_dataset`; of variables that cannot be decoded
    ``opening.on_error`` decides.

    Raises
    ------
    CombineError
        A group does not share the dimensions of the groups above it.
    """

    def make(part: ManifestGroup) -> xr.Dataset:
        return to_virtual_dataset(part, opening)

    return to_tree(dict(_make_datasets(group, make, opening.on_error)))


def _make_datasets(
    group: ManifestGroup, make: MakeDataset, on_error: str
) -> Iterator[tuple[str, xr.Dataset]]:
    for path, part in group.walk():
        try:
            yield path, decode_group(part, on_error, make, f"group /{path}")
        except VirtualdsError as error:
            error.locate(f"group /{path}")
            raise


def to_tree(datasets: Mapping[str, xr.Dataset]) -> xr.DataTree:
    """Make a tree of datasets by path; the root has the path ``""``.

    Raises
    ------
    CombineError
        A group does not share the dimensions of the groups above it.
    UnsupportedError
        The name of a variable has a slash.
    """
    for path, dataset in datasets.items():
        if odd := [name for name in dataset.variables if "/" in str(name)]:
            raise UnsupportedError(
                f"group /{path}: the variable {odd[0]!r} has a slash in its name, which xarray "
                f"takes for a path within a tree; leave the variable out with drop_variables, or "
                f"open the group alone with virtualds.open_virtual_dataset"
            )
    try:
        return xr.DataTree.from_dict({f"/{path}": dataset for path, dataset in datasets.items()})
    except ValueError as error:
        what, _, details = f"{error}".partition(":\n")
        found = CombineError(
            f"{what}: a tree of xarray has one coordinate and length of a dimension for a group "
            f"and all below it; open one group with "
            f"virtualds.open_virtual_dataset(url, group=...), or all apart with "
            f"xr.open_groups(url, engine='virtual')"
        )
        found.add_note(details)
        raise found from error


# ---------------------------------------------------------------------- tree -> group


def group_from_tree(tree: xr.DataTree, inherited: bool = False, path: str = "") -> ManifestGroup:
    """Return a tree as a group of groups as they will be stored.

    Parameters
    ----------
    tree : xarray.DataTree
    inherited : bool
        Whether every group also stores the coordinates that it inherits. The first group always
        does, if it is part of a larger tree.
    path : str
        Path of the tree, for errors.

    Raises
    ------
    UnsupportedError
        A variable cannot be encoded without changing its values.
    """
    try:
        group = group_from_dataset(tree.to_dataset(inherit=inherited or not path))
    except VirtualdsError as error:
        error.locate(f"group {path or '/'}")
        raise
    below = {
        name: group_from_tree(child, inherited, f"{path}/{name}")
        for name, child in tree.children.items()
    }
    return replace(group, groups=below)
