"""What ``ds.virtual`` and ``tree.virtual`` have in common: a dataset is a tree of one group."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import pandas as pd
import xarray as xr

from virtualds.chunks.manifest import OF_DATASETS, FamiliarNames
from virtualds.datasets.keywords import make_strict, select_fields
from virtualds.importing import importing

if TYPE_CHECKING:
    from virtualds.accessors.dataset import VirtualDatasetAccessor
    from virtualds.arrays.array import ManifestArray
    from virtualds.arrays.group import ManifestGroup
    from virtualds.checks.verify.report import Verification
    from virtualds.combine.report import BuildReport
    from virtualds.datasets.write import Destination
    from virtualds.progress import ProgressOption

Opened = TypeVar("Opened", xr.Dataset, xr.DataTree)


class VirtualAccessor(FamiliarNames, Generic[Opened]):
    """Methods and properties for virtual arrays, of all groups that there are."""

    _FAMILIAR = OF_DATASETS
    _label: ClassVar[str]
    """What a user types before the name of a method."""

    def __init__(self, opened: Opened) -> None:
        self._opened: Opened = opened
        self.report: BuildReport | None = None

    @property
    def _nodes(self) -> Iterator[tuple[str, VirtualDatasetAccessor]]:
        """Every group, by what stands before the names of its variables; none for the root."""
        raise NotImplementedError

    def _change_groups(self, change: Callable[[VirtualDatasetAccessor], xr.Dataset]) -> Opened:
        """Return what was opened with the dataset of each group changed."""
        raise NotImplementedError

    def _to_group(self) -> ManifestGroup:
        """Return what was opened as it will be stored."""
        raise NotImplementedError

    @property
    def _arrays(self) -> list[ManifestArray]:
        return [array for _, node in self._nodes for array in node.arrays.values()]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the references take.

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
        >>> opened = open_virtual_dataset("2001.nc"), open_virtual_datatree("2001.nc")
        >>> [one.virtual.nchunks for one in opened]
        [12, 12]
        """
        return sum(array.nchunks for array in self._arrays)

    @property
    def sources(self) -> pd.DataFrame:
        """The source files as a table: url, number of chunks, size in bytes, modification time.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset, open_virtual_datatree
        >>> opened = open_virtual_dataset("2001.nc"), open_virtual_datatree("2001.nc")
        >>> [one.virtual.sources["chunks"].tolist() for one in opened]
        [[12], [12]]
        """
        with importing:
            from virtualds.arrays.sources import build_source_table

        return build_source_table(self._arrays)

    def rename_paths(self, change: Mapping[str, str] | Callable[[str], str]) -> Opened:
        """Return the dataset or tree with other urls in its references.

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
        >>> from virtualds import open_virtual_datatree
        >>> tree = open_virtual_datatree("2001.nc")
        >>> moved = tree.virtual.rename_paths(lambda url: "s3://bucket/2001.nc")
        >>> moved.virtual.sources["url"][0]
        's3://bucket/2001.nc'
        """
        with importing:
            from virtualds.arrays.sources import make_prefix_changer, move_sources

        renamed = change if callable(change) else make_prefix_changer(change, self._arrays)
        return self._change_groups(
            lambda node: node._map_arrays(lambda array: move_sources(array, renamed))
        )

    def load(self) -> Opened:
        """Return the dataset or tree with all values in memory, of any size.

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
        >>> from virtualds import open_virtual_datatree
        >>> open_virtual_datatree("2001.nc").virtual.load().virtual.nchunks
        0
        """
        return self._change_groups(lambda node: node._load_arrays())

    def to_lazy(self, chunks: Any = None) -> Opened:
        """Return the dataset or tree with xarray's own lazy arrays, or dask arrays.

        Parameters
        ----------
        chunks : as in `xarray.open_dataset`, optional
            ``{}`` makes dask arrays with the chunks of the files. ``"auto"`` joins whole chunks
            into blocks of about dask's ``array.chunk-size``. Both follow chunks of different
            lengths. Each group of a tree uses the entries of a mapping for its dimensions.

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
            from virtualds.datasets.reference_changes import to_lazy_copy

        return self._change_groups(lambda node: to_lazy_copy(node._opened, node.arrays, chunks))

    def _write(
        self,
        given: Mapping[str, Any],
        whole: Callable[[], ManifestGroup],
        write: Callable[[Destination], object],
    ) -> dict[str, Any] | None:
        """Write to the place that the arguments of ``to_manifest`` name; return a dict for none."""
        with importing:
            from virtualds.datasets.location import Location
            from virtualds.datasets.write import Destination, WriteOptions, make_dict

        url, access = given["url"], given["storage_options"]
        call: Any = type(self).to_manifest  # type: ignore[attr-defined]
        options = select_fields(WriteOptions, given)
        if url is None:
            return make_dict(whole, options, access, call)
        write(Destination.of(Location.of(url, access), options, call))
        return None

    def cost(self, format: str, **choices: Any) -> pd.DataFrame:
        """Return what ``on_unsupported="rewrite"`` would rewrite, and why; nothing is written.

        In a tree, paths name the variables.

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
            from virtualds.datasets.rewrite.run import estimate_cost

        return estimate_cost(self._to_group(), format, **choices)

    @make_strict("{0._label}.materialize()")
    def materialize(
        self,
        url: str | os.PathLike[str],
        *,
        layout: str = "content",
        mode: str = "w-",
        storage_options: Mapping[str, Any] | None = None,
        checksums: bool = True,
        progress: ProgressOption = None,
    ) -> Opened:
        """Copy the bytes that the references name, unchanged, and open the copy.

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
        progress : bool or callable, optional
            Whether to show a progress bar; by default on a terminal and in notebooks, after one
            second. Or a function of `Progress`.

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
        >>> from virtualds import open_virtual_dataset
        >>> ds = open_virtual_dataset("2001.nc")
        >>> own = ds.virtual.materialize("own.zarr")
        >>> "own.zarr" in own.virtual.sources["url"][0]
        True
        >>> from virtualds import open_virtual_datatree
        >>> tree = open_virtual_datatree("2001.nc").virtual.materialize("tree.zarr")
        >>> tree.virtual.nchunks
        12
        """
        with importing:
            from virtualds.datasets.location import Location
            from virtualds.datasets.materialize import materialize
            from virtualds.datasets.open import open_virtual_dataset, open_virtual_datatree

        location = Location.of_url(url, storage_options)
        group = self._to_group()
        materialize(
            group, location, layout=layout, mode=mode, checksums=checksums, progress=progress
        )
        is_tree = isinstance(self._opened, xr.DataTree)
        reopen: Any = open_virtual_datatree if is_tree else open_virtual_dataset
        copy: Opened = reopen(location.url, storage_options=storage_options)
        return copy

    @make_strict("{0._label}.verify()")
    def verify(
        self,
        sample: float | None = 100,
        against: str = "fingerprint",
        *,
        seed: int = 0,
        progress: ProgressOption = None,
    ) -> Verification:
        """Check that sources are unchanged, and that chunks equal what native readers read.

        Each file is checked once. In a tree, paths name the variables.

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
