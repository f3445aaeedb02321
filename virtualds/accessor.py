"""The accessor of datasets: ``ds.virtual``."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from functools import partial, reduce
from typing import Any

import pandas as pd
import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.sources import build_source_table, make_prefix_changer, move_sources
from virtualds.checks.verify import verify_arrays
from virtualds.checks.verify.report import Verification
from virtualds.chunks.familiar_names import OF_DATASETS, FamiliarNames
from virtualds.combine.progress import BuildReport
from virtualds.datasets.from_dataset import group_from_dataset
from virtualds.datasets.keywords import make_strict
from virtualds.datasets.lazy import is_unread
from virtualds.datasets.location import Location
from virtualds.datasets.materialize import materialize
from virtualds.datasets.open import open_virtual_dataset
from virtualds.datasets.references_behind import find_virtual, replace_variables
from virtualds.datasets.structure import describe_gaps
from virtualds.datasets.to_dict import make_dict
from virtualds.datasets.to_lazy import to_lazy_copy
from virtualds.datasets.write import Destination, write_dataset
from virtualds.datasets.write_options import WriteOptions
from virtualds.errors import VirtualdsError
from virtualds.stores.access_rules import Allow


@xr.register_dataset_accessor("virtual")  # type: ignore[no-untyped-call]
class VirtualDatasetAccessor(FamiliarNames):
    """Methods and properties for a dataset of virtual arrays: ``ds.virtual``.

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

    _FAMILIAR = OF_DATASETS

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset
        self.report: BuildReport | None = None

    @property
    def arrays(self) -> dict[Hashable, ManifestArray]:
        """The virtual arrays, by variable name.

        This includes lazy variables of ``xr.open_dataset(url, engine="virtual")``, with and without
        dask, if their values were only selected, transposed or concatenated.

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
        """Bytes of memory that the references take.

        Examples
        --------
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.nbytes < ds["t"].nbytes
        True
        """
        return sum(array.nbytes_virtual for array in self.arrays.values())

    @property
    def nchunks(self) -> int:
        """Number of chunks of all virtual arrays, including missing chunks.

        Examples
        --------
        >>> open_virtual_dataset("2001.nc").virtual.nchunks
        12
        """
        return sum(array.nchunks for array in self.arrays.values())

    @property
    def sources(self) -> pd.DataFrame:
        """The source files as a table: url, number of chunks, size in bytes, modification time.

        Examples
        --------
        >>> open_virtual_dataset("2001.nc").virtual.sources["chunks"].tolist()
        [12]
        """
        return build_source_table(self.arrays.values())

    def rename_paths(self, change: Mapping[str, str] | Callable[[str], str]) -> xr.Dataset:
        """Return the dataset with other urls in its references.

        Parameters
        ----------
        change : dict or callable
            Old prefix of urls to new prefix, or a function of a url.

        Raises
        ------
        ValueError
            No url begins with one of the prefixes.

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
        """Return the dataset with all values in memory, of any size.

        Raises
        ------
        ReadError
            Bytes cannot be read, have changed, or do not decode.

        Examples
        --------
        >>> loaded = open_virtual_dataset("2001.nc").virtual.load()
        >>> loaded.virtual.nchunks, loaded["t"].shape
        (0, (12, 6, 8))
        """
        loaded = self._map(lambda array: array.read())
        # xarray holds the indexes of dimension coordinates in memory
        without = loaded.coords.keys() - loaded.xindexes.keys()
        bare = [name for name in loaded.dims if name in without and loaded[name].dims == (name,)]
        return reduce(lambda ds, name: ds.set_xindex([name]), bare, loaded)

    def to_lazy(self, chunks: Any = None) -> xr.Dataset:
        """Return the dataset with xarray's own lazy arrays, or dask arrays.

        Parameters
        ----------
        chunks : as in `xarray.open_dataset`, optional
            ``{}`` makes dask arrays with the chunks of the files. ``"auto"`` joins whole chunks
            into blocks of about dask's ``array.chunk-size``. Both follow chunks of different
            lengths.

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
        mode : {"w-", "w", "a", "replace-source"}, optional
            ``"w-"`` creates a set, ``"w"`` creates or replaces one, ``"a"`` appends, and
            ``"replace-source"`` replaces the data of the sources that the set already has. The
            default is ``"a"`` with ``append_dim``, else ``"w-"``. Readers always see either the old
            set or the new one.
        append_dim : str, optional
            Dimension to append along, as in `xarray.Dataset.to_zarr`; the set is created if it does
            not exist. For ``"replace-source"``, the dimension along which the sources are
            concatenated.
        position : {"end", "start", "coordinate"}
            Where to append: ``"coordinate"`` inserts each part at the position of its coordinate.
        on_duplicate : {"raise", "skip"}
            What to do with positions that the set already has: equal coordinate values, or without
            a coordinate, the same elements of the same files.
        conflict : {"raise", "retry"}
            What to do if another writer changes the set at the same time: raise `ConflictError`, or
            repeat the change on the new state of the set.
        allow : str, path, or iterable of them, optional
            Folders in which all files that a growing set refers to must lie, as in
            `open_virtual_dataset`. A remote set may refer to local files only if they are allowed
            here.
        storage_options : dict, optional
            Access options of the target, for fsspec.
        **choices
            Options of the format. All: ``keep_query=True`` also writes urls with a password,
            signature or token, which are refused otherwise, and ``subchunk={"time": 1}`` cuts
            uncompressed chunks. All but icechunk: ``inline_threshold=`` is the number of bytes up
            to which a chunk is read and held in the set, and ``relative_paths=True`` writes source
            paths relative to the set. kerchunk-json: ``templates=True`` writes each source folder
            once, ``zarr_format=3`` the metadata of Zarr v3. kerchunk-parquet: ``record_size=`` is
            the number of references per record. zarr-v3: ``manifest=`` is the form of manifests
            (``"inline"``, ``"json"``, ``"parquet"``; by default their size decides). icechunk:
            ``message=`` and ``branch=`` of the commit, ``rectilinear=True`` allows chunks of
            different lengths.

        Raises
        ------
        TypeError
            The format has no such option.
        UnsupportedError
            The format, or the store, cannot hold the dataset; nothing has been written.
        CombineError
            The dataset does not continue the set, or the set already has it.
        ConflictError
            Another writer was faster; the set is unchanged.
        FileExistsError
            The target exists and ``mode`` is ``"w-"``, or the target is not a reference set.
        ValueError
            The format, mode or dimension is unknown.

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
        if url is None:
            whole = partial(group_from_dataset, self._dataset)
            return make_dict(whole, options, storage_options, type(self).to_manifest)
        location = Location.of(url, storage_options)
        write_dataset(self._dataset, Destination.of(location, options, type(self).to_manifest))
        return None

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
        """Copy the bytes that the dataset refers to, unchanged, and open the copy.

        Nothing is decoded or compressed again. Sources are checked as in any read; bytes with a
        checksum in the references are verified.

        Parameters
        ----------
        url : str or path
            The folder of the copy.
        layout : {"content", "chunks"}
            ``"content"`` makes a reference set that holds its chunks, each stored once under its
            hash. It can hold any virtual dataset. Chunks that an interrupted copy, or the replaced
            set, already stored are not written again. ``"chunks"`` makes a new plain Zarr v3 store
            that every Zarr reader reads; it holds arrays that plain Zarr can describe.
        mode : {"w-", "w"}
            ``"w-"`` creates the copy; ``"w"`` may also add a new snapshot to an existing set.
        storage_options : dict, optional
            Access options of the target, for fsspec.
        checksums : bool, default True
            Whether the set stores the CRC-32 of every chunk, which readers verify. A plain store
            has no place for checksums.

        Raises
        ------
        UnsupportedError
            The layout cannot hold the dataset; nothing has been written.
        FileExistsError
            The target exists and ``mode`` is ``"w-"``, or the target is not a reference set.
        ReadError
            Bytes cannot be read, have changed, or do not match their checksum.
        ValueError
            The layout or mode is unknown.

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
        """Check that sources are unchanged, and that chunks equal what native readers read.

        Parameters
        ----------
        sample : int, float or None, default 100
            For ``"native"``: number of chunks to compare, or a fraction of all chunks (a float up
            to 1.0), or None for all. The sample is spread evenly over variables and files.
        against : {"fingerprint", "range", "native"}
            ``"fingerprint"`` checks every source file once: does it exist, with the recorded size,
            time and etag? ``"range"`` also checks that all references lie within the present files.
            ``"native"`` also decodes a sample of chunks, and compares them bit for bit with what
            the native library of the format reads at the same place, both as stored and as decoded.
        seed : int, default 0
            Random seed of the sample.

        Returns
        -------
        Verification
            Its ``ok`` is True if everything was checked and nothing is wrong; else it has a row for
            each problem. No chunk to compare is a problem, too. A bad file raises no error.

        Raises
        ------
        ValueError
            ``sample`` or ``against`` has an unknown value.

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
        """Number of other variables with loaded values, and names of those without.

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
        """Gaps in coordinates of otherwise regular times.

        Examples
        --------
        >>> vds = open_virtual_dataset("2001.nc")
        >>> vds.virtual.gaps, vds.isel(time=[0, 1, 2, 6]).virtual.gaps
        ([], ["'time' has nothing between 2001-03-01 and 2001-07-01"])
        """
        return describe_gaps(self._dataset.indexes)
