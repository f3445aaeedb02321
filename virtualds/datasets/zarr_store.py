"""Serve a file, a reference set or a dataset as a store of zarr-python, an optional package."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import xarray as xr

from virtualds.datasets.conversion import group_from_dataset, group_from_tree
from virtualds.datasets.decoding import make_independent_of_left_out
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions
from virtualds.errors import UnsupportedError
from virtualds.formats.zarr_export import ZarrForm
from virtualds.options import check_arguments, select_fields
from virtualds.stores.access_rules import Allow

if TYPE_CHECKING:
    from virtualds.datasets.zarr_adapter import VirtualStore


@check_arguments()
def zarr_store(
    url: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    allow: Allow = None,
    group: str | None = None,
    snapshot: str | None = None,
    drop_variables: str | Iterable[str] | None = None,
    parser: str | None = None,
    parser_options: Mapping[str, Any] | None = None,
    on_error: str = "raise",
    decode: bool = False,
    readers: str = "zarr-python",
    zarr_format: int = 3,
) -> VirtualStore:
    """Show a source file, a reference set or a dataset as a read-only store for zarr-python 3.

    Arrays that plain Zarr can describe are passed through: the metadata describes how to decode
    them, the chunks are the bytes of the sources, and reading a chunk is one request. All other
    arrays (several encodings, hidden elements, codecs or chunk grids that the installed zarr-python
    does not know) are decoded here and served as uncompressed chunks. The store can be pickled, for
    dask and its workers.

    Parameters
    ----------
    url : str or path, or an object
        Anything that `open_virtual_dataset` can open. Or a dataset or tree, which need not have
        been written; it takes only ``group`` and ``drop_variables`` of the arguments on opening.
    storage_options : dict, optional
        Access options, for fsspec.
    allow : str, path, or iterable of them, optional
        Folders in which every file that a reference set refers to must lie.
    group : str, optional
        Path of the group that becomes the root; groups below it become Zarr groups.
    snapshot : str, optional
        Id of an earlier snapshot, if the format has snapshots; by default the newest.
    drop_variables : str or iterable of str, optional
        Variables to leave out.
    parser, parser_options
        Name and options of the format, as in `open_virtual_dataset`.
    on_error : {"raise", "skip", "keep"}
        What to do with variables that cannot be read, as in `open_virtual_dataset`.
    decode : bool, default False
        Whether to decode all arrays. Their chunks are then on regular grids, and need no codec
        except that of ``readers``.
    readers : {"zarr-python", "any"}
        The readers of the store: the installed zarr-python, or any reader of Zarr. For any reader,
        arrays are decoded if their chunks are not on a regular grid, or if GDAL, tensorstore,
        zarrita or zarr-python does not support one of their codecs; decoded chunks are compressed
        by zstd.
    zarr_format : {3, 2}
        Zarr version of the metadata and keys.

    Returns
    -------
    zarr.abc.store.Store
        For `xarray.open_zarr`, `zarr.open_group` and `zarr.open_array`.

    Raises
    ------
    UnsupportedError
        zarr-python 3 is not installed. The store also raises it for the metadata of an array that
        Zarr cannot represent, and names the array.
    FileNotFoundError, AccessError, FormatError
        As `open_virtual_dataset`.
    ValueError
        ``readers`` or ``zarr_format`` is unknown.

    Examples
    --------
    >>> import zarr
    >>> zarr.open_group(zarr_store("2001.nc"), mode="r")["t"].shape
    (12, 6, 8)
    """
    opening = select_fields(OpenOptions, locals() | {"below": True})
    form = ZarrForm(zarr_format, decode, readers)
    try:
        adapter = import_module("virtualds.datasets.zarr_adapter")
    except ImportError as error:
        raise UnsupportedError(
            f"zarr_store: zarr-python 3 is required ({error}); pip install --upgrade zarr"
        ) from error
    if isinstance(url, xr.Dataset | xr.DataTree):
        return _serve_dataset(adapter, url, opening, storage_options, form)
    location = Location.of(url, storage_options)
    origin = adapter.StoreOrigin(location.url, location.options, opening, form)
    store: VirtualStore = adapter.VirtualStore(
        make_independent_of_left_out(open_group(location, opening)), origin
    )
    return store


def _serve_dataset(
    adapter: Any,
    dataset: xr.Dataset | xr.DataTree,
    opening: OpenOptions,
    storage_options: Mapping[str, Any] | None,
    form: ZarrForm,
) -> VirtualStore:
    """Return a store of a dataset or tree as it would be written."""
    if opening != OpenOptions(opening.group, opening.drop_variables, below=True) or storage_options:
        raise ValueError(
            f"zarr_store of a {type(dataset).__name__}: it is open already, so of the other "
            f"arguments only group=, drop_variables=, decode=, readers= and zarr_format= have a "
            f"meaning"
        )
    if isinstance(dataset, xr.Dataset):
        group = group_from_dataset(dataset.drop_vars(opening.skip, errors="ignore"))
    else:
        skip = partial(xr.Dataset.drop_vars, names=opening.skip, errors="ignore")
        group = group_from_tree(dataset.map_over_datasets(skip) if opening.skip else dataset)
    # stores of datasets have no url, and are never equal
    name = f"<{type(dataset).__name__} {secrets.token_hex(6)}>"
    origin = adapter.StoreOrigin(name, None, opening, form)
    store: VirtualStore = adapter.VirtualStore(group.group(opening.group), origin)
    return store
