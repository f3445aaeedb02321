"""The accessor of datasets: ``ds.virtual``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import xarray as xr

from virtualds.accessors.accessor import VirtualAccessor
from virtualds.errors import locating
from virtualds.importing import importing

if TYPE_CHECKING:
    from virtualds.accessors.plots import DatasetPlots
    from virtualds.arrays.array import ManifestArray
    from virtualds.arrays.group import ManifestGroup
    from virtualds.datasets.write_modes import Region
    from virtualds.stores.access_rules import Allow


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

    def __repr__(self) -> str:
        with importing:
            from virtualds.accessors.display import Contents, format_lines

        return format_lines(self._label, Contents.of(self._opened))

    def _repr_html_(self) -> str:
        with importing:
            from virtualds.accessors.display import Contents, show_dataset

        return show_dataset(Contents.of(self._opened), self.report)

    @property
    def _nodes(self) -> Iterator[tuple[str, VirtualDatasetAccessor]]:
        yield "", self

    def _change_groups(self, change: Callable[[VirtualDatasetAccessor], xr.Dataset]) -> xr.Dataset:
        return change(self)

    def _to_group(self) -> ManifestGroup:
        with importing:
            from virtualds.datasets.from_dataset import group_from_dataset

        return group_from_dataset(self._opened)

    def _map_arrays(self, change: Callable[[ManifestArray], Any]) -> xr.Dataset:
        with importing:
            from virtualds.datasets.reference_changes import replace_variables

        variables = {}
        for name, array in self.arrays.items():
            with locating(f"variable {name!r}"):
                variables[name] = self._opened.variables[name].copy(data=change(array))
        return replace_variables(self._opened, variables)

    def _load_arrays(self) -> xr.Dataset:
        loaded = self._map_arrays(lambda array: array.read())
        # xarray holds the indexes of dimension coordinates in memory
        without = loaded.coords.keys() - loaded.xindexes.keys()
        bare = [name for name in loaded.dims if name in without and loaded[name].dims == (name,)]
        return reduce(lambda ds, name: ds.set_xindex([name]), bare, loaded)

    @property
    def arrays(self) -> dict[Hashable, ManifestArray]:
        """The virtual arrays, by variable name.

        This includes lazy variables of ``xr.open_dataset(url, engine="virtual")``, with and without
        dask, if their values were only selected, transposed or concatenated.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.arrays
        {'t': <ManifestArray (12, 6, 8) float64: 12 chunks of 1 file>}
        """
        with importing:
            from virtualds.datasets.reference_changes import find_virtual

        found = {name: find_virtual(v) for name, v in self._opened.variables.items()}
        return {name: array for name, array in found.items() if array is not None}

    @property
    def plot(self) -> DatasetPlots:
        """Pictures by matplotlib: ``plot.coverage()``, ``plot.chunks(variable)``, ``plot.sizes()``.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> ax = open_virtual_dataset("2001.nc").virtual.plot.coverage("time")
        >>> ax.get_title()
        '1 file along time: no gap'
        """
        with importing:
            from virtualds.accessors.plots import DatasetPlots

        return DatasetPlots(self._opened, self.arrays)

    @property
    def not_virtual(self) -> dict[str, Any]:
        """Number of other variables with loaded values, and names of those without.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> open_virtual_dataset("2001.nc").virtual.not_virtual
        {'loaded': 3, 'unread': []}
        """
        with importing:
            from virtualds.datasets.lazy import is_unread

        arrays = self.arrays
        others = {n: v for n, v in self._opened.variables.items() if n not in arrays}
        unread = [str(n) for n, v in others.items() if is_unread(v) or v.chunks is not None]
        return {"loaded": len(others) - len(unread), "unread": unread}

    @property
    def gaps(self) -> list[str]:
        """Gaps in coordinates of otherwise regular times.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> vds = open_virtual_dataset("2001.nc")
        >>> vds.virtual.gaps, vds.isel(time=[0, 1, 2, 6]).virtual.gaps
        ([], ["'time' has nothing between 2001-03-01 and 2001-07-01"])
        """
        with importing:
            from virtualds.datasets.structure import describe_gaps

        return describe_gaps(self._opened.indexes)

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
        storage_options: Mapping[str, Any] | None = None,
        **choices: Any,
    ) -> dict[str, Any] | None:
        """Write the references of the dataset, and the values of loaded variables.

        Lazy variables of ``xr.open_dataset(url, engine="virtual")``, with and without dask, are
        written as references if their values were only selected, transposed or concatenated. Lazily
        computed values are refused. Other lazy variables are read and written as values, up to
        ``load_limit`` of `virtualds.set_options`.

        Parameters
        ----------
        url : str or path, or an object of Icechunk
            Where to write. The suffix chooses the format: ``.json``, or compressed ``.json.gz`` and
            ``.json.zst``, is kerchunk-json; ``.parquet`` or ``.parq``, a folder, is
            kerchunk-parquet; ``.zarr``, a folder, is zarr-v3; ``.icechunk`` is icechunk. Or a
            ``Repository``, ``Session`` or ``IcechunkStore`` of Icechunk. None writes nothing, and
            returns kerchunk-json as a dict.
        format : str, optional
            Name of the format, if the suffix does not give it.
        mode : {"w-", "w", "a", "r+", "replace-source"}, optional
            ``"w-"`` creates a set, ``"w"`` creates or replaces one. ``"a"`` appends along
            ``append_dim``, or without it adds variables. ``"r+"`` fills a region, or without it
            replaces variables by others of the same shape, ``"replace-source"`` the data of sources
            that the set already has. The default is ``"a"`` with ``append_dim``, ``"r+"`` with
            ``region``, else ``"w-"``. Readers see the old set or the new one.
        append_dim : str, optional
            Dimension to append along, as in `xarray.Dataset.to_zarr`; the set is created if it does
            not exist. For ``"replace-source"``, the dimension along which the sources are
            concatenated.
        position : {"end", "start", "coordinate"}
            Where to append: ``"coordinate"`` inserts each part at the position of its coordinate.
        region : mapping of dimension to slice or "auto", or "auto"; optional
            The region of an existing set to fill, as in `xarray.Dataset.to_zarr`. ``"auto"`` is
            where the set has the values of the coordinates. Every variable has a dimension of the
            region. The edges of a region are edges of compressed chunks.
        on_duplicate : {"raise", "skip", "replace"}
            What to do with what the set already has. When appending, ``"raise"`` or ``"skip"``
            positions: equal coordinate values, or without a coordinate, the same elements of the
            same files. When adding variables, those of the same name; equal coordinates are shared.
            In a region, chunks that have references already.
        conflict : {"raise", "retry"}
            What to do if another writer changes the set at the same time: raise `ConflictError`, or
            repeat the change on the new state of the set.
        allow : str, path, or iterable of them, optional
            Folders in which all files that a growing set refers to must lie, as in
            `open_virtual_dataset`. A remote set may refer to local files only if they are allowed
            here.
        group : str, optional
            Path of the group to write, such as ``"/a/b"``; by default the root. ``mode`` says what
            happens to this group: ``"w-"`` adds it to a set, ``"w"`` adds or replaces it.
        new_variables : {"error", "fill", "drop"}
            What an append does with variables that the set lacks: raise `CombineError`, add them
            with missing values where the set has data already, or leave them out.
        missing_variables : {"error", "fill"}
            What an append does with variables that the dataset lacks: raise `CombineError`, or add
            missing values to them.
        storage_options : dict, optional
            Access options of the target, for fsspec.
        **choices
            Options of the format.

            - All formats: ``keep_query=True`` also writes urls with a password, signature or token,
              which are refused otherwise. ``subchunk={"time": 1}`` cuts uncompressed chunks.
            - To rewrite chunks, in all formats: ``on_unsupported="rewrite"`` encodes chunks anew
              that the format cannot hold. ``main_encoding=`` says how: a dict of ``chunks``,
              ``codecs`` and ``dtype`` by variable. ``rewrite_limit=`` is the most bytes to rewrite.
              ``progress=`` is a bool, or a function of `Progress`.
            - All but icechunk: ``inline_threshold=`` is the number of bytes up to which a chunk is
              read and held in the set. ``relative_paths=True`` writes the paths of sources relative
              to the set.
            - kerchunk-json: ``templates=True`` writes each source folder once. ``zarr_format=3``
              writes the metadata of Zarr v3.
            - kerchunk-parquet: ``record_size=`` is the number of references per record.
            - zarr-v3: ``manifest=`` is the form of manifests (``"inline"``, ``"json"``,
              ``"parquet"``; by default their size decides).
            - icechunk: ``message=``, ``metadata=`` (a dict) and ``branch=`` of the commit.
              ``create_branch=True`` begins a new branch where ``main`` is. ``config=``, an
              ``icechunk.RepositoryConfig``, is saved in the repository. ``rectilinear=True`` allows
              chunks of different lengths.

        Raises
        ------
        TypeError
            The format has no such option.
        UnsupportedError
            The format, or the store, cannot hold the dataset; nothing has been written.
        CombineError
            The dataset does not fit the set, or the set already has it.
        ConflictError
            Another writer was faster; the set is unchanged.
        FileExistsError
            Target or group exist and ``mode`` is ``"w-"``, or the target is not a reference set.
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
        given = dict(locals())
        with importing:
            from virtualds.datasets.write_modes import write_dataset

        return self._write(given, self._to_group, partial(write_dataset, self._opened))
