"""The accessors ``ds.virtual`` and ``tree.virtual``, and their base class."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import pandas as pd
import xarray as xr

from virtualds.chunks.manifest import DATASET_NAME_HINTS, ForeignNameHints
from virtualds.errors import locating
from virtualds.importing import importing
from virtualds.options import check_arguments, select_fields

if TYPE_CHECKING:
    from virtualds.accessors.display import Contents
    from virtualds.accessors.plots import DatasetPlots
    from virtualds.arrays.array import ManifestArray
    from virtualds.arrays.group import ManifestGroup
    from virtualds.checks.verify.report import Verification
    from virtualds.combine.report import BuildReport
    from virtualds.progress import ProgressOption
    from virtualds.stores.access_rules import Allow
    from virtualds.writing import Destination
    from virtualds.writing.write_modes import Region


DatasetOrTree = TypeVar("DatasetOrTree", xr.Dataset, xr.DataTree)


class VirtualAccessor(ForeignNameHints, Generic[DatasetOrTree]):
    """Methods and properties that datasets and trees share."""

    _NAME_HINTS = DATASET_NAME_HINTS
    _label: ClassVar[str]
    """The accessor in error messages, such as ``ds.virtual``."""

    def __init__(self, obj: DatasetOrTree) -> None:
        self._obj: DatasetOrTree = obj
        self.report: BuildReport | None = None

    def __repr__(self) -> str:
        with importing:
            from virtualds.accessors.display import format_contents

        return format_contents(self._label, self._contents, isinstance(self._obj, xr.DataTree))

    def _repr_html_(self) -> str:
        with importing:
            from virtualds.accessors.display import format_contents_html

        return format_contents_html(self._contents, isinstance(self._obj, xr.DataTree), self.report)

    @property
    def _contents(self) -> dict[str, Contents]:
        """The contents of each group by path."""
        with importing:
            from virtualds.accessors.display import Contents

        return {f"/{path[:-1]}": Contents.of(node._obj) for path, node in self._nodes}

    @property
    def _nodes(self) -> Iterator[tuple[str, VirtualDatasetAccessor]]:
        """Yield the accessor of each group, with the prefix of its variable names."""
        raise NotImplementedError

    def _map_groups(
        self, function: Callable[[VirtualDatasetAccessor], xr.Dataset]
    ) -> DatasetOrTree:
        """Return a dataset or tree of the results of ``function`` for each group."""
        raise NotImplementedError

    def _to_group(self) -> ManifestGroup:
        """Return the dataset or tree as the group to write."""
        raise NotImplementedError

    @property
    def _arrays(self) -> list[ManifestArray]:
        return [array for _, node in self._nodes for array in node.arrays.values()]

    @property
    def nbytes(self) -> int:
        """Bytes of the references in memory.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset, open_virtual_datatree
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.nbytes < ds["t"].nbytes
        True
        >>> open_virtual_datatree("2001.nc").virtual.nbytes < 1000
        True
        """
        return sum(array.nbytes_virtual for array in self._arrays)

    @property
    def nchunks(self) -> int:
        """Number of chunks of all virtual arrays, including missing chunks.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset, open_virtual_datatree
        >>> open_virtual_dataset("2001.nc").virtual.nchunks
        12
        >>> open_virtual_datatree("2001.nc").virtual.nchunks
        12
        """
        return sum(array.nchunks for array in self._arrays)

    @property
    def sources(self) -> pd.DataFrame:
        """The source files as a table: url, number of chunks, size in bytes, modification time.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset, open_virtual_datatree
        >>> open_virtual_dataset("2001.nc").virtual.sources["chunks"].tolist()
        [12]
        >>> open_virtual_datatree("2001.nc").virtual.sources["chunks"].tolist()
        [12]
        """
        with importing:
            from virtualds.arrays.sources import build_source_table

        return build_source_table(self._arrays)

    def rename_paths(self, change: Mapping[str, str] | Callable[[str], str]) -> DatasetOrTree:
        """Return the dataset or tree with changed urls in its references.

        Parameters
        ----------
        change : dict or callable
            New prefixes of urls by old prefixes, or a function that returns the new url of a url.

        Raises
        ------
        ValueError
            A prefix matches no url.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ds = open_virtual_dataset("2001.nc")
        >>> folder = ds.virtual.sources["url"][0].removesuffix("/2001.nc")
        >>> moved = ds.virtual.rename_paths({folder: "s3://bucket/data"})
        >>> moved.virtual.sources["url"][0]
        's3://bucket/data/2001.nc'
        >>> from virtualds import open_virtual_datatree
        >>> tree = open_virtual_datatree("2001.nc")
        >>> moved = tree.virtual.rename_paths(lambda url: "s3://bucket/2001.nc")
        >>> moved.virtual.sources["url"][0]
        's3://bucket/2001.nc'
        """
        with importing:
            from virtualds.arrays.sources import make_prefix_changer, move_sources

        rename = change if callable(change) else make_prefix_changer(change, self._arrays)
        return self._map_groups(
            lambda node: node._map_arrays(lambda array: move_sources(array, rename))
        )

    def load(self) -> DatasetOrTree:
        """Return the dataset or tree with all values in memory; their size is not limited.

        Raises
        ------
        ReadError
            Bytes cannot be read, have changed, or cannot be decoded.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> loaded = open_virtual_dataset("2001.nc").virtual.load()
        >>> loaded.virtual.nchunks, loaded["t"].shape
        (0, (12, 6, 8))
        >>> from virtualds import open_virtual_datatree
        >>> open_virtual_datatree("2001.nc").virtual.load().virtual.nchunks
        0
        """
        return self._map_groups(lambda node: node._load_arrays())

    def to_lazy(self, chunks: Any = None) -> DatasetOrTree:
        """Return the dataset or tree with xarray's lazy arrays, or with dask arrays.

        Parameters
        ----------
        chunks : as in `xarray.open_dataset` and `xarray.open_datatree`, optional
            ``{}`` creates dask arrays with the chunks of the files. ``"auto"`` joins whole chunks
            into blocks of about dask's ``array.chunk-size``. Both support chunks of different
            lengths. Each group of a tree uses those entries of a mapping that are its dimensions.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.to_lazy(chunks={"time": 6}).chunks["time"]
        (6, 6)
        >>> from virtualds import open_virtual_datatree
        >>> tree = open_virtual_datatree("2001.nc")
        >>> tree.virtual.to_lazy(chunks={"time": 6})["t"].chunksizes["time"]
        (6, 6)
        """
        with importing:
            from virtualds.datasets.lazy import to_lazy_copy

        return self._map_groups(lambda node: to_lazy_copy(node._obj, node.arrays, chunks))

    def _write(
        self,
        arguments: Mapping[str, Any],
        make_group: Callable[[], ManifestGroup],
        write: Callable[[Destination], object],
    ) -> dict[str, Any] | None:
        """Write with the arguments of ``to_manifest``, or return a dict if the url is None."""
        with importing:
            from virtualds.datasets.location import Location
            from virtualds.writing import Destination, WriteOptions, make_dict

        url, storage_options = arguments["url"], arguments["storage_options"]
        method: Any = type(self).to_manifest  # type: ignore[attr-defined]
        options = select_fields(WriteOptions, arguments)
        if url is None:
            return make_dict(make_group, options, storage_options, method)
        write(Destination.of(Location.of(url, storage_options), options, method))
        return None

    def cost(self, format: str, **choices: Any) -> pd.DataFrame:
        """Return a table of the chunks that ``on_unsupported="rewrite"`` would rewrite.

        Variables of a tree are named by their paths.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> open_virtual_dataset("2001.nc").virtual.cost("icechunk")["bytes"].tolist()
        [0]
        >>> from virtualds import open_virtual_datatree
        >>> open_virtual_datatree("2001.nc").virtual.cost("icechunk")["bytes"].tolist()
        [0]
        """
        with importing:
            from virtualds.writing import estimate_cost

        return estimate_cost(self._to_group(), format, **choices)

    @check_arguments("{0._label}.materialize()")
    def materialize(
        self,
        url: str | os.PathLike[str],
        *,
        layout: str = "content",
        mode: str = "w-",
        storage_options: Mapping[str, Any] | None = None,
        checksums: bool = True,
        progress: ProgressOption = None,
    ) -> DatasetOrTree:
        """Copy the referenced bytes unchanged, and open the copy.

        Chunks are not decoded. Sources are checked as in any read; bytes with a checksum in the
        references are verified.

        Parameters
        ----------
        url : str or path
            The folder of the copy.
        layout : {"content", "chunks"}
            ``"content"`` creates a reference set that contains its chunks, each stored once under
            its hash. It can store any virtual dataset. Chunks that an interrupted copy or the
            replaced set has stored already are not written again. ``"chunks"`` creates a new
            plain Zarr v3 store for any Zarr reader, if plain Zarr can represent all arrays.
        mode : {"w-", "w"}
            ``"w-"`` creates the copy; ``"w"`` may also add a new snapshot to an existing set.
        storage_options : dict, optional
            Access options of the target for fsspec.
        checksums : bool, default True
            Whether the set stores the CRC-32 of each chunk, which readers verify. A plain store
            cannot store checksums.
        progress : bool or callable, optional
            Whether to show a progress bar, or a function that gets the `Progress`. By default a
            bar appears on terminals and in notebooks after one second.

        Raises
        ------
        UnsupportedError
            The layout cannot store the dataset; nothing has been written.
        FileExistsError
            The target exists and ``mode`` is ``"w-"``, or the target is not a reference set.
        ReadError
            Bytes cannot be read, have changed, or do not match their checksum.
        ValueError
            The layout or mode is unknown.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ds = open_virtual_dataset("2001.nc")
        >>> copy = ds.virtual.materialize("copy.zarr")
        >>> "copy.zarr" in copy.virtual.sources["url"][0]
        True
        >>> from virtualds import open_virtual_datatree
        >>> tree = open_virtual_datatree("2001.nc").virtual.materialize("tree.zarr")
        >>> tree.virtual.nchunks
        12
        """
        with importing:
            from virtualds.datasets.location import Location
            from virtualds.datasets.open import open_virtual_dataset, open_virtual_datatree
            from virtualds.writing.materialize import materialize

        location = Location.of_url(url, storage_options)
        group = self._to_group()
        materialize(
            group, location, layout=layout, mode=mode, checksums=checksums, progress=progress
        )
        is_tree = isinstance(self._obj, xr.DataTree)
        open_copy: Any = open_virtual_datatree if is_tree else open_virtual_dataset
        copy: DatasetOrTree = open_copy(location.url, storage_options=storage_options)
        return copy

    @check_arguments("{0._label}.verify()")
    def verify(
        self,
        sample: float | None = 100,
        against: str = "fingerprint",
        *,
        seed: int = 0,
        progress: ProgressOption = None,
    ) -> Verification:
        """Check that sources are unchanged, and that chunks are equal to those of native readers.

        Each file is checked once. Variables of a tree are named by their paths.

        Parameters
        ----------
        sample : int, float or None, default 100
            For ``"native"``: the number of chunks to compare, a fraction of all chunks (a float up
            to 1.0), or None for all. The sample is spread evenly over variables and files.
        against : {"fingerprint", "range", "native"}
            ``"fingerprint"`` checks that each source file exists and has the recorded size, time
            and etag. ``"range"`` also checks that all references are within the current files.
            ``"native"`` also compares a sample of chunks bit for bit with the native library of
            the format, both as stored and as decoded by CF.
        seed : int, default 0
            Random seed of the sample.
        progress : bool or callable, optional
            Whether to show a progress bar, or a function that gets the `Progress`. By default a
            bar appears on terminals and in notebooks after one second.

        Returns
        -------
        Verification
            ``ok`` is True if everything was checked and has no problem. Otherwise there is a row
            for each problem, also if no chunk can be compared. Problems do not raise errors.

        Raises
        ------
        ValueError
            ``sample`` or ``against`` has an unknown value.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.verify(against="native").ok
        True
        >>> from virtualds import open_virtual_datatree
        >>> open_virtual_datatree("2001.nc").virtual.verify(against="native").ok
        True
        """
        with importing:
            from virtualds.checks.verify import verify_arrays

        arrays: dict[str, ManifestArray] = {}
        loaded, unread = 0, list[str]()
        gaps: dict[str, None] = {}
        for prefix, node in self._nodes:
            arrays |= {f"{prefix}{name}": array for name, array in node.arrays.items()}
            others = node.not_virtual
            loaded += others["loaded"]
            unread += [f"{prefix}{name}" for name in others["unread"]]
            # groups may share coordinates
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


@xr.register_dataset_accessor("virtual")  # type: ignore[no-untyped-call]
class VirtualDatasetAccessor(VirtualAccessor[xr.Dataset]):
    """Methods and properties for a dataset of virtual arrays: ``ds.virtual``.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from virtualds import ManifestArray
    >>> array = ManifestArray.from_arrays(
    ...     shape=(2, 4), chunks=(1, 4), dtype="f4", path="s3://bucket/a.nc",
    ...     offsets=[[1000], [1016]], lengths=16,
    ... )
    >>> ds = xr.Dataset({"t": (("time", "x"), array)})
    >>> ds.virtual.nchunks
    2
    """

    _label = "ds.virtual"

    @property
    def _nodes(self) -> Iterator[tuple[str, VirtualDatasetAccessor]]:
        yield "", self

    def _map_groups(self, function: Callable[[VirtualDatasetAccessor], xr.Dataset]) -> xr.Dataset:
        return function(self)

    def _to_group(self) -> ManifestGroup:
        with importing:
            from virtualds.datasets.conversion import group_from_dataset

        return group_from_dataset(self._obj)

    def _map_arrays(self, function: Callable[[ManifestArray], Any]) -> xr.Dataset:
        with importing:
            from virtualds.datasets.lazy import replace_variables

        variables = {}
        for name, array in self.arrays.items():
            with locating(f"variable {name!r}"):
                variables[name] = self._obj.variables[name].copy(data=function(array))
        return replace_variables(self._obj, variables)

    def _load_arrays(self) -> xr.Dataset:
        loaded = self._map_arrays(lambda array: array.read())
        # xarray indexes dimension coordinates that are in memory
        unindexed = loaded.coords.keys() - loaded.xindexes.keys()
        for name in loaded.dims:
            if name in unindexed and loaded[name].dims == (name,):
                loaded = loaded.set_xindex([name])
        return loaded

    @property
    def arrays(self) -> dict[Hashable, ManifestArray]:
        """The virtual arrays by variable name.

        They include lazy variables of ``xr.open_dataset(url, engine="virtual")``, with and without
        dask, if these were only indexed, transposed or concatenated.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.arrays
        {'t': <ManifestArray (12, 6, 8) float64: 12 chunks of 1 file>}
        """
        with importing:
            from virtualds.datasets.lazy import find_virtual

        candidates = {name: find_virtual(v) for name, v in self._obj.variables.items()}
        return {name: array for name, array in candidates.items() if array is not None}

    @property
    def plot(self) -> DatasetPlots:
        """Plots: ``plot.coverage()``, ``plot.chunks(variable)`` and ``plot.sizes()``.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ax = open_virtual_dataset("2001.nc").virtual.plot.coverage("time")
        >>> ax.get_title()
        '1 file along time: no gap'
        """
        with importing:
            from virtualds.accessors.plots import DatasetPlots

        return DatasetPlots(self._obj, self.arrays)

    @property
    def not_virtual(self) -> dict[str, Any]:
        """The number of other variables in memory, and the names of other lazy variables.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> open_virtual_dataset("2001.nc").virtual.not_virtual
        {'loaded': 3, 'unread': []}
        """
        with importing:
            from virtualds.datasets.lazy import is_lazy

        arrays = self.arrays
        others = {n: v for n, v in self._obj.variables.items() if n not in arrays}
        unread = [str(n) for n, v in others.items() if is_lazy(v) or v.chunks is not None]
        return {"loaded": len(others) - len(unread), "unread": unread}

    @property
    def gaps(self) -> list[str]:
        """Descriptions of gaps in otherwise regular time coordinates.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> vds = open_virtual_dataset("2001.nc")
        >>> vds.virtual.gaps, vds.isel(time=[0, 1, 2, 6]).virtual.gaps
        ([], ["'time' has nothing between 2001-03-01 and 2001-07-01"])
        """
        with importing:
            from virtualds.datasets.structure import describe_gaps

        return describe_gaps(self._obj.indexes)

    def to_manifest(
        self,
        url: Any,
        *,
        format: str | None = None,
        mode: str | None = None,
        append_dim: str | None = None,
        region: Region | None = None,
        position: str = "end",
        on_duplicate: str = "raise",
        conflict: str = "raise",
        allow: Allow = None,
        group: str | None = None,
        new_variables: str = "error",
        missing_variables: str = "error",
        pad: str | Iterable[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **choices: Any,
    ) -> dict[str, Any] | None:
        """Write the references of the dataset, and the values of loaded variables.

        Lazy variables of ``xr.open_dataset(url, engine="virtual")``, with and without dask, are
        written as references if they were only indexed, transposed or concatenated. Variables that
        were computed from them raise an error. Other lazy variables are loaded and written as
        values, up to ``load_limit`` of `virtualds.set_options`.

        Parameters
        ----------
        url : str or path, or an object of Icechunk
            The target. Its suffix chooses the format: ``.json``, or compressed ``.json.gz`` and
            ``.json.zst``, is kerchunk-json; ``.parquet`` or ``.parq``, a folder, is
            kerchunk-parquet; ``.zarr``, a folder, is zarr-v3; ``.icechunk`` is icechunk; ``.nca``,
            a netCDF file, is cfa. It may also be a ``Repository``, ``Session`` or
            ``IcechunkStore`` of Icechunk. None writes nothing, and returns kerchunk-json as a dict.
        format : str, optional
            Name of the format. By default the suffix decides.
        mode : {"w-", "w", "a", "r+", "replace-source"}, optional
            ``"w-"`` creates a set, ``"w"`` creates or replaces one. ``"a"`` appends along
            ``append_dim``, or without it adds variables. ``"r+"`` fills a region, or without it
            replaces variables by others of the same shape. ``"replace-source"`` replaces the data
            of sources in the set. The default is ``"a"`` with ``append_dim``, ``"r+"`` with
            ``region``, otherwise ``"w-"``. Readers see either the old or the new set.
        append_dim : str, optional
            Dimension to append along, as in `xarray.Dataset.to_zarr`; the set is created if it does
            not exist. For ``"replace-source"``, the dimension along which the sources are
            concatenated.
        position : {"end", "start", "coordinate"}
            Where to append. ``"coordinate"`` inserts data at the position of their coordinate.
        region : mapping of dimension to slice or "auto", or "auto"; optional
            The region of an existing set to fill, as in `xarray.Dataset.to_zarr`. ``"auto"`` finds
            it by the values of the coordinates. Each variable must have a dimension of the region.
            A region must consist of whole compressed chunks.
        on_duplicate : {"raise", "skip", "replace"}
            What to do with duplicates. When appending (``"raise"`` or ``"skip"``): positions with
            equal coordinate values, or without a coordinate with the same elements of the same
            files. When adding variables: variables of the same name, except equal coordinates. In
            a region: chunks that have references already.
        conflict : {"raise", "retry"}
            What to do if another writer changes the set at the same time: raise `ConflictError`, or
            apply the change to the new state of the set. With ``"retry"``, writers of a zarr-v3 set
            also wait for each other.
        allow : str, path, or iterable of them, optional
            Folders that must contain all files to which a changed set refers, as in
            `open_virtual_dataset`. A remote set may refer to local files only if they are allowed
            here.
        group : str, optional
            Path of the group to write, such as ``"/a/b"``; by default the root. ``mode`` applies to
            this group: ``"w-"`` adds it to a set, ``"w"`` adds or replaces it.
        new_variables : {"error", "fill", "drop"}
            What an append does with variables that the set lacks: raise `CombineError`, add them
            with missing values in the existing part, or drop them.
        missing_variables : {"error", "fill"}
            What an append does with variables that the dataset lacks: raise `CombineError`, or
            append missing values.
        pad : str, or iterable of str, optional
            Other dimensions along which an append pads the set or the dataset to the longer of
            the two, as in `open_virtual_mfdataset`.
        storage_options : dict, optional
            Access options of the target for fsspec.
        **choices
            Options of the format.

            - All formats: ``keep_query=True`` also writes urls with a password, signature or token,
              which are otherwise an error.
            - All but cfa: ``subchunk={"time": 1}`` splits uncompressed chunks.
              ``on_unsupported="rewrite"`` re-encodes chunks that the format cannot store:
              ``main_encoding=`` is a dict of ``chunks``, ``codecs`` and ``dtype`` by variable,
              ``rewrite_limit=`` the maximum number of bytes to rewrite, and ``progress=`` a bool
              or a function that gets the `Progress`.
            - All but icechunk and cfa: ``inline_threshold=`` is the number of bytes up to which a
              chunk is read and stored in the set.
            - All but icechunk: ``relative_paths=True`` writes the paths of sources relative to the
              set.
            - kerchunk-json: ``templates=True`` writes each source folder once. ``zarr_format=3``
              writes metadata of Zarr v3.
            - kerchunk-parquet: ``record_size=`` is the number of references per record.
            - zarr-v3: ``manifest=`` is the format of manifests (``"inline"``, ``"json"`` or
              ``"parquet"``; by default their size decides).
            - icechunk: ``message=``, ``metadata=`` (a dict) and ``branch=`` of the commit.
              ``create_branch=True`` creates the branch from ``main``. ``config=``, an
              ``icechunk.RepositoryConfig``, is saved in the repository. ``rectilinear=True`` allows
              chunks of different lengths.

        Raises
        ------
        TypeError
            The format has no such option.
        UnsupportedError
            The format or the store cannot store the dataset; nothing has been written.
        CombineError
            The dataset does not fit the set, or the set has it already.
        ConflictError
            Another writer has changed the set; nothing has been written.
        FileExistsError
            The target or group exists and ``mode`` is ``"w-"``, or the target is not a reference
            set.
        ValueError
            The format, mode or dimension is unknown.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.to_manifest("refs.json")
        >>> xr.open_dataset("refs.json", engine="virtual").identical(ds)
        True
        """
        arguments = dict(locals())
        with importing:
            from virtualds.writing.write_modes import write_dataset

        return self._write(arguments, self._to_group, partial(write_dataset, self._obj))


# ---------------------------------------------------------------------- tree


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
        for path, node in self._obj.subtree_with_keys:
            # the root of a subtree keeps the coordinates that it inherits from its parents
            dataset = node.to_dataset(inherit=node is self._obj)
            yield "" if path == "." else f"{path}/", VirtualDatasetAccessor(dataset)

    def _map_groups(self, function: Callable[[VirtualDatasetAccessor], xr.Dataset]) -> xr.DataTree:
        datasets = {}
        for prefix, node in self._nodes:
            path = prefix[:-1] or "."
            with locating(f"group {path}"):
                datasets[path] = function(node)
        return xr.DataTree.from_dict(datasets, name=self._obj.name)

    def _to_group(self, inherited: bool = False) -> ManifestGroup:
        with importing:
            from virtualds.datasets.conversion import group_from_tree

        return group_from_tree(self._obj, inherited)

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
        pad: str | Iterable[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **choices: Any,
    ) -> dict[str, Any] | None:
        """Write the references of all groups as one set, and the values of loaded variables.

        Parameters
        ----------
        url, format, position, on_duplicate, conflict, allow, group, new_variables, \
        missing_variables, pad, storage_options, **choices
            As for ``ds.virtual.to_manifest``, for each group of the tree.
        mode : {"w-", "w", "a", "r+"}, optional
            As for ``ds.virtual.to_manifest``: ``"a"`` adds groups, and variables of groups.
        append_dim : str, optional
            Dimension to append along in all groups that have it, at once. The other groups must be
            equal to those of the set.
        write_inherited_coords : bool, default False
            Whether to write inherited coordinates into each group, as in
            `xarray.DataTree.to_zarr`, so that a group that is opened on its own has them.

        Raises
        ------
        TypeError
            The format has no such option.
        UnsupportedError
            The format or the store cannot store the tree; nothing has been written.
        CombineError
            A group does not fit that of the set, or the set has it already.
        ConflictError
            Another writer has changed the set; nothing has been written.
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
        arguments = dict(locals())
        with importing:
            from virtualds.writing.write_modes import write_tree

        write = partial(write_tree, self._obj, write_inherited_coords)
        return self._write(arguments, partial(self._to_group, write_inherited_coords), write)
