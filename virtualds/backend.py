"""The xarray backend: ``engine="virtual"`` for datasets, trees and groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import xarray as xr
from xarray.backends import BackendEntrypoint

from virtualds.errors import VirtualdsError, public
from virtualds.importing import importing
from virtualds.options import FILE_RETRIES, SETTLE, check_arguments, find_arguments
from virtualds.source_file import local_path, normalise_url, scheme_of

if TYPE_CHECKING:
    from virtualds.combine.batch_job import Parallel
    from virtualds.combine.file_coordinates import Source
    from virtualds.datasets.location import Location
    from virtualds.datasets.open_options import Loadable
    from virtualds.progress import ProgressOption
    from virtualds.stores.access_rules import Allow

REFERENCE_SUFFIXES = (".refs.json", ".virtual.json", ".refs.parquet", ".refs.parq", ".refs.zarr")
"""Suffixes of reference sets, local and remote."""

DECODE_ARGUMENTS = (
    *("mask_and_scale", "decode_times", "concat_characters", "decode_coords"),
    *("use_cftime", "decode_timedelta"),
)
"""Arguments of xarray's decoding."""

ONE_FILE_ARGUMENTS = (
    *("filename_or_obj", "drop_variables", "group", "storage_options", "parser"),
    *("parser_options", "on_error", "allow", "snapshot", *DECODE_ARGUMENTS),
)
"""Arguments that apply to one file; all others are for many files."""


@public
class VirtualBackendEntrypoint(BackendEntrypoint):
    """The xarray engine ``"virtual"``, for reference sets and source files of all known formats.

    Examples
    --------
    >>> import xarray as xr
    >>> ds = xr.open_dataset("refs.json", engine="virtual")  # doctest: +SKIP
    """

    supports_groups: ClassVar[bool] = True
    description: ClassVar[str] = (
        "Reference sets, and files such as HDF5 and GRIB, through virtualds"
    )

    @check_arguments("xr.open_dataset(engine='virtual')", more=find_arguments(xr.open_dataset))
    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        parser: str | None = None,
        parser_options: Mapping[str, Any] | None = None,
        on_error: str = "raise",
        allow: Allow = None,
        snapshot: str | None = None,
        concat_dim: Any = None,
        combine: str | None = None,
        preprocess: Callable[[xr.Dataset], xr.Dataset] | None = None,
        parallel: Parallel = None,
        data_vars: Any = "minimal",
        coords: Any = "minimal",
        compat: str = "equals",
        join: Any = "outer",
        combine_attrs: Any = "override",
        attrs_file: str | os.PathLike[str] | None = None,
        coordinates: Mapping[str, Source] | None = None,
        newest: str | None = None,
        sort: bool = True,
        overlap: str = "error",
        pad: str | Iterable[str] | None = None,
        loadable_variables: Loadable = None,
        retries: int = FILE_RETRIES,
        progress: ProgressOption = None,
        references: Any = None,
        settle: float = SETTLE,
        target_options: Mapping[str, Any] | None = None,
    ) -> xr.Dataset:
        """Open a reference set or source file lazily, or many source files as one dataset.

        Parameters
        ----------
        filename_or_obj : str or path, or list of them, or an object
            A path, a url or an object, as in `virtualds.open_virtual_dataset`; or many files, as a
            pattern or a list.
        mask_and_scale, decode_times, concat_characters, decode_coords, drop_variables
            As in `xarray.open_dataset`.
        use_cftime, decode_timedelta
            As in `xarray.open_dataset`.
        group : str, optional
            Path of the group to open.
        storage_options : dict, optional
            Access options for fsspec.
        parser : str, optional
            Name of the format. By default the first bytes of the file decide.
        parser_options : dict, optional
            Options of the format, as in `virtualds.open_virtual_dataset`.
        on_error : {"raise", "skip", "keep"}
            What to do with variables that cannot be read, as in `virtualds.open_virtual_dataset`.
        allow : str, path, or iterable of them, optional
            Folders that must contain the files of a set, as in `virtualds.open_virtual_dataset`.
        snapshot : str, optional
            Id of an earlier snapshot of a set, from `virtualds.snapshots`.
        concat_dim, combine, preprocess, parallel, data_vars, coords, compat, join, combine_attrs
            For many files, as in `virtualds.open_virtual_mfdataset`. With ``concat_dim``,
            ``combine`` is ``"nested"`` by default.
        attrs_file, coordinates, newest, sort, overlap, pad, loadable_variables, retries, progress
            For many files, as in `virtualds.open_virtual_mfdataset`.
        references : str or path, optional
            A reference set of these files, which is created or updated as by `virtualds.sync`, so
            that only new and changed files are opened. The set keeps references to files that no
            longer exist.
        settle, target_options
            With ``references``, as in `virtualds.sync`.

        Raises
        ------
        FileNotFoundError, AccessError, FormatError, UnsupportedError
            As `virtualds.open_virtual_dataset`.
        TypeError
            An argument for many files is passed with a single file.
        """
        arguments = dict(locals())
        with importing:
            from virtualds.datasets.conversion import to_lazy_dataset
            from virtualds.datasets.open import open_group
            from virtualds.datasets.open_options import OpenOptions, fetch_coordinates
            from virtualds.formats import decode_group

        decode_arguments = {name: arguments[name] for name in DECODE_ARGUMENTS}
        if _is_for_many_files(
            filename_or_obj, {name: arguments[name] for name in self.MANY_FILES_DEFAULTS}
        ):
            with importing:
                from virtualds.syncing import combine_files, update_references

            if references is None:
                return to_lazy_dataset(
                    combine_files(filename_or_obj, arguments), **decode_arguments
                )
            update_references(filename_or_obj, arguments)
            filename_or_obj, storage_options = references, target_options or storage_options
            # these apply to source files, not to the set
            group, parser, parser_options = None, None, None
            on_error = "keep" if on_error == "keep" else "raise"
        location = _make_location(filename_or_obj, storage_options)
        open_options = OpenOptions(
            *(group, drop_variables, parser, on_error, allow, snapshot),
            defers=True,
            parser_options=parser_options,
        )
        with location.cache_scan():
            manifest_group = open_group(location, open_options)
            fetch_coordinates(location.url, [manifest_group], open_options)
            dataset = decode_group(
                manifest_group,
                on_error,
                lambda part: to_lazy_dataset(part, **decode_arguments),
                location.given,
            )
            _load_coordinates(location.url, [dataset])
        return dataset

    MANY_FILES_DEFAULTS: ClassVar[Mapping[str, Any]] = {
        name: default
        for name, default in find_arguments(open_dataset).items()
        if name not in ONE_FILE_ARGUMENTS
    }
    """Arguments that apply only to many files, with their defaults."""

    @check_arguments("xr.open_datatree(engine='virtual')", more=ONE_FILE_ARGUMENTS)
    def open_datatree(self, filename_or_obj: Any, **options: Any) -> xr.DataTree:
        """Open a reference set or source file lazily, with all groups below ``group``.

        Parameters and errors are those of `open_groups_as_dict`.

        Raises
        ------
        CombineError
            A group does not share the dimensions of the groups above it.
        """
        with importing:
            from virtualds.datasets.conversion import to_tree

        datasets = self._open_datasets(filename_or_obj, **options)
        try:
            return to_tree(datasets)
        except VirtualdsError as error:
            location = _make_location(filename_or_obj, options.get("storage_options"))
            error.locate_file(location.url)
            raise

    @check_arguments("xr.open_groups(engine='virtual')", more=ONE_FILE_ARGUMENTS)
    def open_groups_as_dict(self, filename_or_obj: Any, **options: Any) -> dict[str, xr.Dataset]:
        """Return the lazy dataset of each group by path, for `xarray.open_groups`.

        Parameters and errors are those of `open_dataset`. As with other engines, paths begin with
        ``"/"``, or with ``group=`` are relative to that group, which is ``"."``.
        """
        datasets = self._open_datasets(filename_or_obj, **options)
        if (options.get("group") or "").strip("/"):
            return {path or ".": dataset for path, dataset in datasets.items()}
        return {f"/{path}": dataset for path, dataset in datasets.items()}

    def _open_datasets(
        self,
        filename_or_obj: Any,
        *,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, xr.Dataset]:
        """Return a group and all groups below it as lazy datasets, by path."""
        with importing:
            from virtualds.datasets.conversion import to_lazy_datasets
            from virtualds.datasets.open import open_group
            from virtualds.datasets.open_options import OpenOptions, fetch_coordinates

        location = _make_location(filename_or_obj, storage_options)
        decode_arguments = {name: options.pop(name) for name in DECODE_ARGUMENTS if name in options}
        open_options = OpenOptions(**options, below=True, defers=True)
        with location.cache_scan():
            root = open_group(location, open_options)
            fetch_coordinates(location.url, [group for _, group in root.walk()], open_options)
            datasets = to_lazy_datasets(root, open_options.on_error, **decode_arguments)
            _load_coordinates(location.url, datasets.values())
        return datasets

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether a name, or the content of a local folder, is that of a reference set.

        The guess is quick, because xarray asks several engines: it sends no request, opens no file
        and imports modules only for a folder.
        """
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        name = os.fspath(filename_or_obj)
        if name.endswith(REFERENCE_SUFFIXES):
            return True
        url = normalise_url(name)
        if scheme_of(url) != "file" or not os.path.isdir(local_path(url)):
            return False
        with importing:
            from virtualds.datasets.location import is_set_folder

        return is_set_folder(url)


def _is_for_many_files(files: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether to open many files; ``arguments`` are those that apply to many files only.

    Raises
    ------
    TypeError
        There is one file and an argument for many.
    """
    are_many = isinstance(files, list | tuple) or _is_pattern(files)
    if are_many or arguments["concat_dim"] is not None or arguments["references"] is not None:
        return True
    for name, default in VirtualBackendEntrypoint.MANY_FILES_DEFAULTS.items():
        value = arguments[name]
        if value is not default and value != default:
            raise TypeError(
                f"{name}={value!r} is for many files; name them by a pattern or a list, or give "
                f"concat_dim="
            )
    return False


def _is_pattern(name: Any) -> bool:
    """Return whether a name is a pattern and cannot be the name of one object in a store."""
    with importing:
        from virtualds.stores.listing import is_pattern

    if not isinstance(name, str) or not is_pattern(name):
        return False
    # keys in object stores may contain brackets
    return "*" in name or scheme_of(name) == "file"


def _load_coordinates(url: str, datasets: Iterable[xr.Dataset]) -> None:
    """Load the coordinates of xarray's indexes of a remote file while its bytes are cached."""
    if scheme_of(url) == "file":
        return
    for dataset in datasets:
        for name, variable in dataset.variables.items():
            if variable.dims == (name,):
                variable.load()


def _make_location(filename_or_obj: Any, options: Mapping[str, Any] | None) -> Location:
    with importing:
        from virtualds.datasets.location import Location

    try:
        return Location.of(filename_or_obj, options)
    except TypeError as error:
        raise TypeError(f"engine='virtual': {error}") from error
