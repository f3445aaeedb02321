"""The accessor of trees: ``tree.virtual``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import xarray as xr

from virtualds.accessors.dataset import VirtualAccessor, VirtualDatasetAccessor
from virtualds.errors import locating
from virtualds.importing import importing

if TYPE_CHECKING:
    from virtualds.arrays.group import ManifestGroup
    from virtualds.stores.access_rules import Allow


@xr.register_datatree_accessor("virtual")  # type: ignore[no-untyped-call]
class VirtualDataTreeAccessor(VirtualAccessor[xr.DataTree]):
    """Methods and properties for a tree of virtual arrays: ``tree.virtual``.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from virtualds import ManifestArray
    >>> array = ManifestArray.from_arrays(
    ...     shape=(2, 4), chunks=(1, 4), dtype="f4", path="s3://bucket/a.nc",
    ...     offsets=[[1000], [1016]], lengths=16,
    ... )
    >>> ds = xr.Dataset({"t": (("time", "x"), array)})
    >>> xr.DataTree.from_dict({"/": ds, "/a/b": ds}).virtual.nchunks
    4
    """

    _label = "tree.virtual"

    @property
    def _nodes(self) -> Iterator[tuple[str, VirtualDatasetAccessor]]:
        for path, node in self._opened.subtree_with_keys:
            # a variable inherited from outside of this tree would be lost
            dataset = node.to_dataset(inherit=node is self._opened)
            yield "" if path == "." else f"{path}/", VirtualDatasetAccessor(dataset)

    def _change_groups(self, change: Callable[[VirtualDatasetAccessor], xr.Dataset]) -> xr.DataTree:
        found = {}
        for prefix, node in self._nodes:
            path = prefix[:-1] or "."
            with locating(f"group {path}"):
                found[path] = change(node)
        return xr.DataTree.from_dict(found, name=self._opened.name)

    def _to_group(self, inherited: bool = False) -> ManifestGroup:
        with importing:
            from virtualds.datasets.from_dataset import group_from_tree

        return group_from_tree(self._opened, inherited)

    def to_manifest(
        self,
        url: Any,
        *,
        format: str | None = None,
        mode: str | None = None,
        append_dim: str | None = None,
        position: str = "end",
        on_duplicate: str = "raise",
        write_inherited_coords: bool = False,
        conflict: str = "raise",
        allow: Allow = None,
        group: str | None = None,
        new_variables: str = "error",
        missing_variables: str = "error",
        storage_options: Mapping[str, Any] | None = None,
        **choices: Any,
    ) -> dict[str, Any] | None:
        """Write the references of all groups as one set, and the values of loaded variables.

        Parameters
        ----------
        url, format, position, on_duplicate, conflict, allow, group, new_variables, \
        missing_variables, storage_options, **choices
            As for ``ds.virtual.to_manifest``, for each group of the tree.
        mode : {"w-", "w", "a", "r+"}, optional
            As for ``ds.virtual.to_manifest``: ``"a"`` adds groups, and variables of groups.
        append_dim : str, optional
            Dimension to append along in every group that has it. All groups are extended in one
            step. The other groups must equal those of the set.
        write_inherited_coords : bool, default False
            Whether to write coordinates that a group inherits into that group, too, as in
            `xarray.DataTree.to_zarr`. A group that is opened alone has them then.

        Raises
        ------
        TypeError
            The format has no such option.
        UnsupportedError
            The format, or the store, cannot hold the tree; nothing has been written.
        CombineError
            A group does not fit that of the set, or the set already has it.
        ConflictError
            Another writer was faster; the set is unchanged.
        FileExistsError
            The target exists and ``mode`` is ``"w-"``, or the target is not a reference set.
        ValueError
            The format or mode is unknown.

        Examples
        --------
        >>> from virtualds import open_virtual_datatree
        >>> tree = open_virtual_datatree("2001.nc")
        >>> tree.virtual.to_manifest("refs.zarr")
        >>> xr.open_datatree("refs.zarr", engine="virtual").identical(tree)
        True
        """
        given = dict(locals())
        with importing:
            from virtualds.datasets.write_modes import write_tree

        inherited = write_inherited_coords
        write = partial(write_tree, self._opened, inherited)
        return self._write(given, partial(self._to_group, inherited), write)
