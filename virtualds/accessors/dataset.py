"""The accessor of datasets: ``ds.virtual``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import pandas as pd
import xarray as xr

from virtualds.accessors.dataset_writer import DatasetWriter
from virtualds.chunks.manifest import OF_DATASETS, FamiliarNames
from virtualds.datasets.keywords import make_strict
from virtualds.errors import locating
from virtualds.importing import importing

if TYPE_CHECKING:
    from virtualds.accessors.plots import DatasetPlots
    from virtualds.arrays.array import ManifestArray
    from virtualds.checks.verify.report import Verification
    from virtualds.combine.report import BuildReport
    from virtualds.progress import ProgressOption


@xr.register_dataset_accessor("virtual")  # type: ignore[no-untyped-call]
class VirtualDatasetAccessor(DatasetWriter, FamiliarNames):
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

    _FAMILIAR = OF_DATASETS

    def __init__(self, dataset: xr.Dataset) -> None:
        super().__init__(dataset)
        self.report: BuildReport | None = None

    def __repr__(self) -> str:
        with importing:
            from virtualds.accessors.display import Contents, format_lines

        return format_lines("ds.virtual", Contents.of(self._dataset))

    def _repr_html_(self) -> str:
        with importing:
            from virtualds.accessors.display import Contents, show_dataset

        return show_dataset(Contents.of(self._dataset), self.report)

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

        found = {name: find_virtual(v) for name, v in self._dataset.variables.items()}
        return {name: array for name, array in found.items() if array is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the references take.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
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
        >>> from virtualds import open_virtual_dataset
        >>> open_virtual_dataset("2001.nc").virtual.nchunks
        12
        """
        return sum(array.nchunks for array in self.arrays.values())

    @property
    def sources(self) -> pd.DataFrame:
        """The source files as a table: url, number of chunks, size in bytes, modification time.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> open_virtual_dataset("2001.nc").virtual.sources["chunks"].tolist()
        [12]
        """
        with importing:
            from virtualds.arrays.sources import build_source_table

        return build_source_table(self.arrays.values())

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

        return DatasetPlots(self._dataset, self.arrays)

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
        >>> from virtualds import open_virtual_dataset
        >>> ds = open_virtual_dataset("2001.nc")
        >>> folder = ds.virtual.sources["url"][0].removesuffix("/2001.nc")
        >>> moved = ds.virtual.rename_paths({folder: "s3://bucket/data"})
        >>> moved.virtual.sources["url"][0]
        's3://bucket/data/2001.nc'
        """
        with importing:
            from virtualds.arrays.sources import make_prefix_changer, move_sources

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
        >>> from virtualds import open_virtual_dataset
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
        >>> from virtualds import open_virtual_dataset
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.to_lazy(chunks={"time": 6}).chunks["time"]
        (6, 6)
        """
        with importing:
            from virtualds.datasets.reference_changes import to_lazy_copy

        return to_lazy_copy(self._dataset, self.arrays, chunks)

    def _map(self, change: Callable[[ManifestArray], Any]) -> xr.Dataset:
        with importing:
            from virtualds.datasets.reference_changes import replace_variables

        variables = {}
        for name, array in self.arrays.items():
            with locating(f"variable {name!r}"):
                variables[name] = self._dataset.variables[name].copy(data=change(array))
        return replace_variables(self._dataset, variables)

    @make_strict("ds.virtual.verify()")
    def verify(
        self,
        sample: float | None = 100,
        against: str = "fingerprint",
        *,
        seed: int = 0,
        progress: ProgressOption = None,
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
        progress : bool or callable, optional
            Whether to show a progress bar; by default on a terminal and in notebooks, after one
            second. Or a function of `Progress`.

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
        >>> from virtualds import open_virtual_dataset
        >>> ds = open_virtual_dataset("2001.nc")
        >>> ds.virtual.verify(against="native").ok
        True
        """
        with importing:
            from virtualds.checks.verify import verify_arrays

        arrays = {str(name): array for name, array in self.arrays.items()}
        others, gaps = self.not_virtual, self.gaps
        return verify_arrays(
            arrays,
            **others,
            gaps=gaps,
            sample=sample,
            against=against,
            seed=seed,
            progress=progress,
        )

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
        others = {n: v for n, v in self._dataset.variables.items() if n not in arrays}
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

        return describe_gaps(self._dataset.indexes)
