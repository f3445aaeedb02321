"""What writes datasets: ``ds.virtual.to_manifest`` and ``ds.virtual.materialize``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd
import xarray as xr

from virtualds.datasets.keywords import make_strict, select_fields
from virtualds.importing import importing

if TYPE_CHECKING:
    from virtualds.datasets.regions import Region
    from virtualds.progress import ProgressOption
    from virtualds.stores.access_rules import Allow


class DatasetWriter:
    """Methods of ``ds.virtual`` that write."""

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

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
            from virtualds.datasets.from_dataset import group_from_dataset
            from virtualds.datasets.location import Location
            from virtualds.datasets.write import Destination, WriteOptions, make_dict
            from virtualds.datasets.write_modes import write_dataset

        options = select_fields(WriteOptions, given)
        if url is None:
            whole = partial(group_from_dataset, self._dataset)
            return make_dict(whole, options, storage_options, type(self).to_manifest)
        location = Location.of(url, storage_options)
        write_dataset(self._dataset, Destination.of(location, options, type(self).to_manifest))
        return None

    def cost(self, format: str, **choices: Any) -> pd.DataFrame:
        """Return what ``on_unsupported="rewrite"`` would rewrite, and why; nothing is written.

        Examples
        --------
        >>> from virtualds import open_virtual_dataset
        >>> open_virtual_dataset("2001.nc").virtual.cost("icechunk")["bytes"].tolist()
        [0]
        """
        with importing:
            from virtualds.datasets.from_dataset import group_from_dataset
            from virtualds.datasets.rewrite.run import estimate_cost

        return estimate_cost(group_from_dataset(self._dataset), format, **choices)

    @make_strict("ds.virtual.materialize()")
    def materialize(
        self,
        url: str | os.PathLike[str],
        *,
        layout: str = "content",
        mode: str = "w-",
        storage_options: Mapping[str, Any] | None = None,
        checksums: bool = True,
        progress: ProgressOption = None,
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
        """
        with importing:
            from virtualds.datasets.from_dataset import group_from_dataset
            from virtualds.datasets.location import Location
            from virtualds.datasets.materialize import materialize
            from virtualds.datasets.open import open_virtual_dataset

        location = Location.of_url(url, storage_options)
        group = group_from_dataset(self._dataset)
        materialize(
            group, location, layout=layout, mode=mode, checksums=checksums, progress=progress
        )
        return open_virtual_dataset(location.url, storage_options=storage_options)
