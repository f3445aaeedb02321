"""What a dataset of virtual arrays can do beyond any other: ``ds.virtual``."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from functools import reduce
from typing import Any

import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.sources import build_source_table, make_prefix_changer, move_sources
from virtualds.checks.verify import verify_arrays
from virtualds.checks.verify.report import Verification
from virtualds.combine.progress import BuildReport
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.keywords import make_strict
from virtualds.datasets.lazy import is_unread
from virtualds.datasets.location import Location
from virtualds.datasets.materialize import materialize
from virtualds.datasets.open import open_virtual_dataset
from virtualds.datasets.references_behind import find_virtual, replace_variables
from virtualds.datasets.structure import describe_gaps
from virtualds.datasets.to_lazy import to_lazy_copy
from virtualds.datasets.write import Destination, write_dataset
from virtualds.datasets.write_options import WriteOptions
from virtualds.errors import VirtualdsError
from virtualds.stores.access_rules import Allow


@xr.register_dataset_accessor("virtual")  # type: ignore[no-untyped-call]
class VirtualDatasetAccessor:
    """What a dataset of virtual arrays can do beyond any other: ``ds.virtual``.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> array = ManifestArray.from_arrays(
    ...     shape=(2, 4), chunks=(1, 4), dtype="f4", path="s3://bucket/a.nc",
    ...     offsets=[[1000], [1016]], lengths=16,
    ... )
    >>> ds = xr.Dataset({"t": (("time", "x"), array)})
    >>> ds.virtual.nchunks
    2
    """

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset
        self.report: BuildReport | None = None

    @property
    def arrays(self) -> dict[Hashable, ManifestArray]:
        """The virtual arrays, by name of their variables.

        Lazy variables of ``xr.open_dataset(url, engine="virtual")`` are among them, with and
        without dask, as long as their values have only been selected, permuted or joined.

        Examples
        --------
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.arrays
        {'t': <ManifestArray (12, 6, 8) float64: 12 chunks of 1 file>}
        """
        found = {name: find_virtual(v) for name, v in self._dataset.variables.items()}
        return {name: array for name, array in found.items() if array is not None}

    @property
    def nbytes(self) -> int:
        """Bytes that the references take in memory.

        Examples
        --------
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.nbytes < ds["t"].nbytes
        True
        """
        return sum(array.nbytes_virtual for array in self.arrays.values())

    @property
    def nchunks(self) -> int:
        """Number of chunks of all virtual arrays, missing ones too.

        Examples
        --------
        >>> open_virtual_dataset("2001.nc").virtual.nchunks
        12
        """
        return sum(array.nchunks for array in self.arrays.values())

    @property
    def sources(self) -> pd.DataFrame:
        """The source files, a row each, with url, chunks, size in bytes and modification time.

        Examples
        --------
        >>> open_virtual_dataset("2001.nc").virtual.sources["chunks"].tolist()
        [12]
        """
        return build_source_table(self.arrays.values())

    def rename_paths(self, change: Mapping[str, str] | Callable[[str], str]) -> xr.Dataset:
        """Return the dataset with its references pointing at other places.

        Parameters
        ----------
        change : dict or callable
            Old to new prefixes of urls, or a function of a url.

        Raises
        ------
        ValueError
            No url begins with any of the prefixes.

        Examples
        --------
        >>> ds = open_virtual_dataset("2001.nc")
        >>> folder = ds.virtual.sources["url"][0].removesuffix("/2001.nc")
        >>> moved = ds.virtual.rename_paths({folder: "s3://bucket/data"})
        >>> moved.virtual.sources["url"][0]
        's3://bucket/data/2001.nc'
        """
        renamed = change if callable(change) else make_prefix_changer(change, self.arrays.values())
        return self._map(lambda array: move_sources(array, renamed))

    def load(self) -> xr.Dataset:
        """Return the dataset with all values in memory, whatever their size.

        Raises
        ------
        ReadError
            Bytes cannot be had, have changed, or do not decode.

        Examples
        --------
        >>> loaded = open_virtual_dataset("2001.nc").virtual.load()
        >>> loaded.virtual.nchunks, loaded["t"].shape
        (0, (12, 6, 8))
        """
        loaded = self._map(lambda array: array.read())
        # xarray has an index of every dimension coordinate in memory
        without = loaded.coords.keys() - loaded.xindexes.keys()
        bare = [name for name in loaded.dims if name in without and loaded[name].dims == (name,)]
        return reduce(lambda ds, name: ds.set_xindex([name]), bare, loaded)

    def to_lazy(self, chunks: Any = None) -> xr.Dataset:
        """Return the dataset with xarray's own lazy arrays, or dask arrays.

        Parameters
        ----------
        chunks : as in `xarray.open_dataset`, optional
            ``{}`` makes dask arrays with the chunks of the files, ``"auto"`` of as many whole ones
            as make blocks of the size that dask is set to (``array.chunk-size``). Both keep to
            chunks that differ in length.

        Examples
        --------
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.to_lazy(chunks={"time": 6}).chunks["time"]
        (6, 6)
        """
        return to_lazy_copy(self._dataset, self.arrays, chunks)

    def _map(self, change: Callable[[ManifestArray], Any]) -> xr.Dataset:
        variables = {}
        for name, array in self.arrays.items():
            try:
                variables[name] = self._dataset.variables[name].copy(data=change(array))
            except VirtualdsError as error:
                error.add_note(f"variable {name!r}")
                raise
        return replace_variables(self._dataset, variables)

    def to_manifest(
        self,
        url: Any,
        *,
        format: str | None = None,
        mode: str | None = None,
        append_dim: str | None = None,
        position: str = "end",
        on_duplicate: str = "raise",
        conflict: str = "raise",
        allow: Allow = None,
        storage_options: Mapping[str, Any] | None = None,
        **choices: Any,
    ) -> None:
        """Write the references of the dataset; loaded variables go along.

        Lazy variables of ``xr.open_dataset(url, engine="virtual")``, with and without dask, are
        written as references, as long as their values have only been selected, permuted or joined.
        Values that are computed lazily are refused. Other lazy variables are read and written as
        values, up to ``load_limit`` of `virtualds.set_options`.

        Parameters
        ----------
        url : str or path, or an object of Icechunk
            Where to. The suffix chooses the format: ``.json``, or compressed ``.json.gz`` and
            ``.json.zst``, is kerchunk-json; ``.parquet`` or ``.parq``, a folder, is
            kerchunk-parquet; ``.zarr``, a folder, is zarr-v3; ``.icechunk`` is icechunk. Or a
            ``Repository``, ``Session`` or ``IcechunkStore`` of Icechunk.
        format : str, optional
            Name of the format, where the suffix does not say it.
        mode : {"w-", "w", "a", "replace-source"}, optional
            ``"w-"`` creates a set, ``"w"`` creates or replaces one, ``"a"`` appends, and
            ``"replace-source"`` puts the dataset in place of what came from its sources before.
            By default ``"a"`` where ``append_dim`` is given, else ``"w-"``. Readers see the old set
            or the new one, whatever happens.
        append_dim : str, optional
            Dimension to append along, as in `xarray.Dataset.to_zarr`; a set that does not exist is
            created. For ``"replace-source"``, the one along which sources follow each other.
        position : {"end", "start", "coordinate"}
            Where to append: ``"coordinate"`` puts every part where its coordinate belongs.
        on_duplicate : {"raise", "skip"}
            What to do about positions that are in the set already: values of the coordinate, or
            where there is none, the same elements of the same files.
        conflict : {"raise", "retry"}
            What to do if another writer changes the set meanwhile: raise `ConflictError`, or make
            the change again to what the other has written.
        allow : str, path, or iterable of them, optional
            Where the files that a set that grows refers to already may lie, as in
            `open_virtual_dataset`: a remote set may refer to local files only if you say so.
        storage_options : dict, optional
            Access options of the target, for fsspec.
        **choices
            What the format lets one choose. Any: ``keep_query=True`` writes urls that have a
            password, or a signature or token in their query, which is refused otherwise.
            kerchunk-json: ``templates=True`` writes every folder
            that sources lie in once, as a url template. kerchunk-parquet: ``record_size=`` is how
            many references a record holds. zarr-v3: ``manifest=`` is the form of manifests
            (``"inline"``, ``"json"`` or ``"parquet"``; by default by their size), and
            ``relative_paths=True`` writes paths of sources relative to the set. icechunk:
            ``message=`` and ``branch=`` of the commit, and ``rectilinear=True`` allows chunks that
            differ in length.

        Raises
        ------
        TypeError
            The format has no such choice.
        UnsupportedError
            The format, or the store, cannot hold the dataset; nothing has been written.
        CombineError
            The dataset does not go on with the set, or is in it already.
        ConflictError
            Another writer was faster; nothing has changed.
        FileExistsError
            The target exists and ``mode`` is ``"w-"``, or it is no reference set.
        ValueError
            No such format, mode or dimension.

        Examples
        --------
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.to_manifest("refs.json")
        >>> xr.open_dataset("refs.json", engine="virtual").identical(ds)
        True
        """
        options = WriteOptions(
            format, mode, append_dim, position, on_duplicate, conflict, allow, choices
        )
        location = Location.of(url, storage_options)
        write_dataset(self._dataset, Destination.of(location, options, type(self).to_manifest))

    @make_strict("ds.virtual.materialize()")
    def materialize(
        self,
        url: str | os.PathLike[str],
        *,
        layout: str = "content",
        mode: str = "w-",
        storage_options: Mapping[str, Any] | None = None,
        checksums: bool = True,
    ) -> xr.Dataset:
        """Copy the bytes that the dataset refers to, as they are, and return the copy opened.

        Nothing is decoded or compressed again. Sources are checked as they are when values are
        read; bytes of which the references hold a checksum are verified.

        Parameters
        ----------
        url : str or path
            The folder that the copy is to be.
        layout : {"content", "chunks"}
            ``"content"`` makes a reference set that holds its chunks itself, each under its hash
            and once: whatever a virtual dataset may be. Chunks that an interrupted copy has left,
            or that a set that is replaced holds, are not written again. ``"chunks"`` makes a new
            plain Zarr v3 store that every reader of Zarr reads, of arrays that plain Zarr can
            describe.
        mode : {"w-", "w"}
            ``"w-"`` creates the copy; ``"w"`` also adds a new snapshot to a set that is there.
        storage_options : dict, optional
            Access options of the target, for fsspec.
        checksums : bool, default True
            Whether the references of a set hold the CRC-32 of every chunk, which is verified when
            it is read. A plain store has no place for them.

        Raises
        ------
        UnsupportedError
            The layout cannot hold the dataset; nothing has been written.
        FileExistsError
            The target exists and ``mode`` is ``"w-"``, or it is no reference set.
        ReadError
            Bytes cannot be had, have changed, or are not those of which there is a checksum.
        ValueError
            No such layout or mode.

        Examples
        --------
        >>> ds = open_virtual_dataset("2001.nc")
        >>> own = ds.virtual.materialize("own.zarr")
        >>> "own.zarr" in own.virtual.sources["url"][0]
        True
        """
        location = Location.of_url(url, storage_options)
        group = group_from_dataset(self._dataset)
        materialize(group, location, layout=layout, mode=mode, checksums=checksums)
        return open_virtual_dataset(location.url, storage_options=storage_options)

    @make_strict("ds.virtual.verify()")
    def verify(
        self, sample: float | None = 100, against: str = "fingerprint", *, seed: int = 0
    ) -> Verification:
        """Look whether the sources are still what they were, and chunks what native readers read.

        Parameters
        ----------
        sample : int, float or None, default 100
            For ``"native"``: how many chunks are decoded and compared, or which part of all of them
            (a float up to 1.0), or None for all. They are spread evenly over variables and files.
        against : {"fingerprint", "range", "native"}
            ``"fingerprint"`` asks for every source file once: is it there, with the size, time and
            etag that were noted? ``"range"`` looks, besides, whether all references lie within the
            files as they are now. ``"native"`` decodes, besides, chunks of the sample, and compares
            them bit for bit with what the library of the format reads at that place of that file,
            as it is stored and as it is decoded.
        seed : int, default 0
            Of the generator that draws the sample.

        Returns
        -------
        Verification
            True in its ``ok`` if all of this was looked at and nothing found; else with a row for
            every problem, among which is that there was nothing to compare. A bad file is no error.

        Raises
        ------
        ValueError
            ``sample`` or ``against`` are none that there are.

        Examples
        --------
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.verify(against="native").ok
        True
        """
        arrays = {str(name): array for name, array in self.arrays.items()}
        others, gaps = self.not_virtual, self.gaps
        return verify_arrays(arrays, **others, gaps=gaps, sample=sample, against=against, seed=seed)

    @property
    def not_virtual(self) -> dict[str, Any]:
        """How many other variables are loaded, and the names of those that are not.

        Examples
        --------
        >>> open_virtual_dataset("2001.nc").virtual.not_virtual
        {'loaded': 3, 'unread': []}
        """
        arrays = self.arrays
        others = {n: v for n, v in self._dataset.variables.items() if n not in arrays}
        unread = [str(n) for n, v in others.items() if is_unread(v) or v.chunks is not None]
        return {"loaded": len(others) - len(unread), "unread": unread}

    @property
    def gaps(self) -> list[str]:
        """Where coordinates of times, regular but for that, lack some.

        Examples
        --------
        >>> vds = open_virtual_dataset("2001.nc")
        >>> vds.virtual.gaps, vds.isel(time=[0, 1, 2, 6]).virtual.gaps
        ([], ["'time' has nothing between 2001-03-01 and 2001-07-01"])
        """
        return describe_gaps(self._dataset.indexes)
