"""The accessor of trees: ``tree.virtual``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd
import xarray as xr

from virtualds.accessors.dataset import VirtualDatasetAccessor
from virtualds.chunks.manifest import OF_DATASETS, FamiliarNames
from virtualds.datasets.keywords import make_strict, select_fields
from virtualds.errors import locating
from virtualds.importing import importing

if TYPE_CHECKING:
    from virtualds.accessors.display import Contents
    from virtualds.arrays.array import ManifestArray
    from virtualds.checks.verify.report import Verification
    from virtualds.combine.report import BuildReport
    from virtualds.progress import ProgressOption
    from virtualds.stores.access_rules import Allow

OnDataset = Callable[[VirtualDatasetAccessor], xr.Dataset]
"""A function that changes the dataset of one group."""


@xr.register_datatree_accessor("virtual")  # type: ignore[no-untyped-call]
class VirtualDataTreeAccessor(FamiliarNames):
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

    _FAMILIAR = OF_DATASETS

    def __init__(self, tree: xr.DataTree) -> None:
        self._tree = tree
        self.report: BuildReport | None = None

    def __repr__(self) -> str:
        with importing:
            from virtualds.accessors.display import format_groups

        return format_groups("tree.virtual", self._contents)

    def _repr_html_(self) -> str:
        with importing:
            from virtualds.accessors.display import show_tree

        return show_tree(self._contents, self.report)

    @property
    def _contents(self) -> dict[str, Contents]:
        with importing:
            from virtualds.accessors.display import Contents

        return {f"/{path.lstrip('./')}": Contents.of(node._dataset) for path, node in self._nodes}

    @property
    def _nodes(self) -> Iterator[tuple[str, VirtualDatasetAccessor]]:
        """Every group, with the accessor of its own variables."""
        for path, node in self._tree.subtree_with_keys:
            # a variable inherited from outside of this tree would be lost
            dataset = node.to_dataset(inherit=node is self._tree)
            yield path, VirtualDatasetAccessor(dataset)

    @property
    def _arrays(self) -> list[ManifestArray]:
        return [array for _, node in self._nodes for array in node.arrays.values()]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the references of all groups take.

        Examples
        --------
        >>> from virtualds import open_virtual_datatree
        >>> open_virtual_datatree("2001.nc").virtual.nbytes < 1000
        True
        """
        return sum(array.nbytes_virtual for array in self._arrays)

    @property
    def nchunks(self) -> int:
        """Number of chunks of all virtual arrays in all groups, including missing chunks.

        Examples
        --------
        >>> from virtualds import open_virtual_datatree
        >>> open_virtual_datatree("2001.nc").virtual.nchunks
        12
        """
        return sum(array.nchunks for array in self._arrays)

    @property
    def sources(self) -> pd.DataFrame:
        """The source files of all groups, as a table like that of a dataset.

        Examples
        --------
        >>> from virtualds import open_virtual_datatree
        >>> open_virtual_datatree("2001.nc").virtual.sources["chunks"].tolist()
        [12]
        """
        with importing:
            from virtualds.arrays.sources import build_source_table

        return build_source_table(self._arrays)

    def rename_paths(self, change: Mapping[str, str] | Callable[[str], str]) -> xr.DataTree:
        """Return the tree with other urls in its references.

        Parameters
        ----------
        change : dict or callable
            Old prefix of urls to new prefix, or a function of a url.

        Raises
        ------
        ValueError
            No url of any group begins with one of the prefixes.

        Examples
        --------
        >>> from virtualds import open_virtual_datatree
        >>> tree = open_virtual_datatree("2001.nc")
        >>> moved = tree.virtual.rename_paths(lambda url: "s3://bucket/2001.nc")
        >>> moved.virtual.sources["url"][0]
        's3://bucket/2001.nc'
        """
        with importing:
            from virtualds.arrays.sources import make_prefix_changer

        renamed = change if callable(change) else make_prefix_changer(change, self._arrays)
        return self._map(lambda node: node.rename_paths(renamed))

    def load(self) -> xr.DataTree:
        """Return the tree with all values in memory, of any size.

        Raises
        ------
        ReadError
            Bytes cannot be read, have changed, or do not decode.

        Examples
        --------
        >>> from virtualds import open_virtual_datatree
        >>> open_virtual_datatree("2001.nc").virtual.load().virtual.nchunks
        0
        """
        return self._map(lambda node: node.load())

    def to_lazy(self, chunks: Any = None) -> xr.DataTree:
        """Return the tree with xarray's own lazy arrays, or dask arrays.

        Parameters
        ----------
        chunks : as in `xarray.open_datatree`, optional
            As for ``ds.virtual.to_lazy``; each group uses the entries of a mapping for its
            dimensions.

        Examples
        --------
        >>> from virtualds import open_virtual_datatree
        >>> tree = open_virtual_datatree("2001.nc")
        >>> tree.virtual.to_lazy(chunks={"time": 6})["t"].chunksizes["time"]
        (6, 6)
        """
        return self._map(lambda node: node.to_lazy(chunks))

    def _map(self, change: OnDataset) -> xr.DataTree:
        found = {}
        for path, node in self._nodes:
            with locating(f"group {path}"):
                found[path] = change(node)
        return xr.DataTree.from_dict(found, name=self._tree.name)

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
            from virtualds.datasets.from_dataset import group_from_tree
            from virtualds.datasets.location import Location
            from virtualds.datasets.write import Destination, WriteOptions, make_dict
            from virtualds.datasets.write_modes import write_tree

        options = select_fields(WriteOptions, given)
        if url is None:
            whole = partial(group_from_tree, self._tree, write_inherited_coords)
            return make_dict(whole, options, storage_options, type(self).to_manifest)
        location = Location.of(url, storage_options)
        destination = Destination.of(location, options, type(self).to_manifest)
        write_tree(self._tree, write_inherited_coords, destination)
        return None

    def cost(self, format: str, **choices: Any) -> pd.DataFrame:
        """Return what ``on_unsupported="rewrite"`` would rewrite, and why; nothing is written.

        Parameters are those of ``ds.virtual.cost``; paths name the variables.

        Examples
        --------
        >>> from virtualds import open_virtual_datatree
        >>> open_virtual_datatree("2001.nc").virtual.cost("icechunk")["bytes"].tolist()
        [0]
        """
        with importing:
            from virtualds.datasets.from_dataset import group_from_tree
            from virtualds.datasets.rewrite.run import estimate_cost

        return estimate_cost(group_from_tree(self._tree), format, **choices)

    @make_strict("tree.virtual.materialize()")
    def materialize(
        self,
        url: str | os.PathLike[str],
        *,
        layout: str = "content",
        mode: str = "w-",
        storage_options: Mapping[str, Any] | None = None,
        checksums: bool = True,
        progress: ProgressOption = None,
    ) -> xr.DataTree:
        """Copy the bytes that all groups refer to, unchanged, and open the copy.

        Parameters and errors are those of ``ds.virtual.materialize``.

        Examples
        --------
        >>> from virtualds import open_virtual_datatree
        >>> own = open_virtual_datatree("2001.nc").virtual.materialize("own.zarr")
        >>> "own.zarr" in own.virtual.sources["url"][0]
        True
        """
        with importing:
            from virtualds.datasets.from_dataset import group_from_tree
            from virtualds.datasets.location import Location
            from virtualds.datasets.materialize import materialize
            from virtualds.datasets.open import open_virtual_datatree

        location = Location.of_url(url, storage_options)
        group = group_from_tree(self._tree)
        materialize(
            group, location, layout=layout, mode=mode, checksums=checksums, progress=progress
        )
        return open_virtual_datatree(location.url, storage_options=storage_options)

    @make_strict("tree.virtual.verify()")
    def verify(
        self,
        sample: float | None = 100,
        against: str = "fingerprint",
        *,
        seed: int = 0,
        progress: ProgressOption = None,
    ) -> Verification:
        """Check that the sources of all groups are unchanged; each file is checked once.

        Parameters and errors are those of ``ds.virtual.verify``; paths name the variables.

        Examples
        --------
        >>> from virtualds import open_virtual_datatree
        >>> open_virtual_datatree("2001.nc").virtual.verify(against="native").ok
        True
        """
        with importing:
            from virtualds.checks.verify import verify_arrays

        arrays: dict[str, ManifestArray] = {}
        loaded, unread = 0, list[str]()
        gaps: dict[str, None] = {}
        for path, node in self._nodes:
            prefix = "" if path in ("", ".", "/") else f"{path.strip('/')}/"
            arrays |= {f"{prefix}{name}": array for name, array in node.arrays.items()}
            others = node.not_virtual
            loaded += others["loaded"]
            unread += [f"{prefix}{name}" for name in others["unread"]]
            # groups share coordinates
            gaps |= dict.fromkeys(node.gaps)
        return verify_arrays(
            arrays,
            loaded=loaded,
            unread=unread,
            gaps=gaps,
            sample=sample,
            against=against,
            seed=seed,
            progress=progress,
        )
