"""What other libraries read of source files: those of the formats themselves, through no code here.

A native reader gives a region of a variable, as it is stored and as it is decoded. Which readers
there are for which format is a table; those are asked in its order, until one knows the variable.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xarray as xr

from virtualds.manifest import SourceFile
from virtualds.stores.fsspec_ranges import located
from virtualds.urls import local_path, scheme_of
from virtualds.verification.places import Place, Region

Array = npt.NDArray[Any]


class CannotError(Exception):
    """A reader cannot tell the values that are asked for; it says why."""


class NativeFile(Protocol):
    """A file that a native reader has opened."""

    def read(self, place: Place, region: Region, decoded: bool) -> Array | None:
        """Return a region of a variable, None if this reader does not know it in this form.

        Raises
        ------
        CannotError
            It has no such variable, or not of this shape.
        """


Open = Callable[[SourceFile, ExitStack], NativeFile]


@dataclass(frozen=True)
class Native:
    """A native reader.

    Parameters
    ----------
    package : str
        The library, as it is installed.
    open : callable
        Takes a file, and what closes it.
    remote : bool
        Whether it reads files that are not on this machine.
    """

    package: str
    open: Open
    remote: bool = False

    @property
    def name(self) -> str | None:
        """The library with its version, None if it is not installed."""
        try:
            return f"{self.package} {version(self.package)}"
        except PackageNotFoundError:
            return None


# ---------------------------------------------------------------------- through xarray


@dataclass
class _Through:
    """A file as an engine of xarray opens it, group by group.

    ``target`` makes what the engine opens; a file object is read by one dataset.
    """

    engine: str
    target: Callable[[], Any]
    closing: ExitStack
    options: Mapping[str, Any]
    opened: dict[tuple[str, bool], xr.Dataset] = field(default_factory=dict)

    def read(self, place: Place, region: Region, decoded: bool) -> Array | None:
        dataset = self._dataset(place.group, decoded)
        if place.variable not in dataset.variables:
            raise CannotError(f"it knows no variable {place.variable!r}")
        variable = dataset.variables[place.variable]
        if variable.shape != place.array.shape:
            raise CannotError(f"there the variable has shape {variable.shape}")
        return np.asarray(variable[region].values)

    def _dataset(self, group: str, decoded: bool) -> xr.Dataset:
        if (group, decoded) not in self.opened:
            how = {"decode_cf": decoded, "cache": False, "group": group or None, **self.options}
            found = xr.open_dataset(self.target(), engine=self.engine, **how)
            self.opened[group, decoded] = self.closing.enter_context(found)
        return self.opened[group, decoded]


def _engine(name: str, **options: Any) -> Open:
    """Return what opens a file with an engine of xarray."""

    def opened(source: SourceFile, closing: ExitStack) -> NativeFile:
        return _Through(name, lambda: _target(source, closing), closing, options)

    return opened


def _target(source: SourceFile, closing: ExitStack) -> Any:
    """Return the path of a local file, or a file object of fsspec's."""
    if scheme_of(source.url) == "file":
        return local_path(source.url)
    filesystem, path = located(source.url, source.options)
    # those of archives close their files when nobody holds them any more
    closing.callback(id, filesystem)
    return closing.enter_context(filesystem.open(path, "rb"))


def _zarr(source: SourceFile, closing: ExitStack) -> NativeFile:
    if scheme_of(source.url) == "file":
        return _Through("zarr", lambda: local_path(source.url), closing, {})
    options = {"storage_options": dict(source.options)} if source.options else {}
    return _Through("zarr", lambda: source.url, closing, options)


@dataclass
class _Messages:
    """The datasets that cfgrib makes of the messages of a file."""

    datasets: list[xr.Dataset]

    def read(self, place: Place, region: Region, decoded: bool) -> Array | None:
        # the packing of a message is a matter of its codec
        shape = place.array.shape
        found = [
            dataset.variables[place.variable]
            for dataset in self.datasets
            if place.variable in dataset.variables
            and dataset.variables[place.variable].shape == shape
        ]
        if len(found) != 1:
            raise CannotError(
                f"it makes {len(found)} variables {place.variable!r} of shape {shape} of the file"
            )
        return np.asarray(found[0][region].values)


def _cfgrib(source: SourceFile, closing: ExitStack) -> NativeFile:
    import cfgrib  # type: ignore[import-untyped]

    path = local_path(source.url)
    opened = cfgrib.open_datasets(path, backend_kwargs={"indexpath": "", "errors": "raise"})
    return _Messages([closing.enter_context(dataset) for dataset in opened])


def _netcdf4(source: SourceFile, closing: ExitStack) -> NativeFile:
    """Open a file with the netCDF library, unless it would crash the process."""
    import h5py

    halves: list[str] = []

    def look(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset) and found.dtype == np.float16:
            halves.append(name)

    with h5py.File(local_path(source.url)) as file:
        file.visititems(look)
    if halves:
        raise CannotError(f"it does not survive numbers of half precision ({halves[0]})")
    return _engine("netcdf4")(source, closing)


# ---------------------------------------------------------------------- through their own libraries


@dataclass
class _Stored:
    """The datasets of an HDF5 file, as they are stored."""

    file: Any

    def read(self, place: Place, region: Region, decoded: bool) -> Array | None:
        if decoded:
            return None
        found = self.file[f"{place.group}/{place.variable}"]
        return np.asarray(_of_shape(found, place)[region])


def _h5py(source: SourceFile, closing: ExitStack) -> NativeFile:
    import h5py

    return _Stored(closing.enter_context(h5py.File(_target(source, closing))))


@dataclass
class _Pages:
    """The images of a TIFF file, each read as a whole."""

    tiff: Any
    images: dict[str, Array] = field(default_factory=dict)

    def read(self, place: Place, region: Region, decoded: bool) -> Array | None:
        if decoded:
            return None
        if place.group not in self.images:
            parts = [p for p in place.group.split("/") if p]
            named = bool(parts) and parts[0].startswith("series_")
            series = int(parts.pop(0).removeprefix("series_")) if named else 0
            level = int(parts[0]) if parts else 0
            self.images = {place.group: self.tiff.series[series].levels[level].asarray()}
        return np.asarray(_of_shape(self.images[place.group], place)[region])


def _tifffile(source: SourceFile, closing: ExitStack) -> NativeFile:
    import tifffile

    return _Pages(closing.enter_context(tifffile.TiffFile(_target(source, closing))))


@dataclass
class _Images:
    """The images of a FITS file, as they are stored and as they are scaled."""

    stored: Any
    scaled: Any

    def read(self, place: Place, region: Region, decoded: bool) -> Array | None:
        # integers without sign are stored as others; they are what is scaled
        unsigned = bool(place.pipeline.codecs)
        for unit in self.scaled if decoded or unsigned else self.stored:
            where = unit.fileinfo()
            if where["datLoc"] <= place.offset < where["datLoc"] + where["datSpan"]:
                found = unit.section[region] if region else unit.data
                return np.asarray(found)
        raise CannotError("it knows no image there")


def _astropy(source: SourceFile, closing: ExitStack) -> NativeFile:
    from astropy.io import fits  # type: ignore[import-untyped]

    stored, scaled = (
        closing.enter_context(
            fits.open(_target(source, closing), memmap=False, do_not_scale_image_data=raw)
        )
        for raw in (True, False)
    )
    return _Images(stored, scaled)


@dataclass
class _Arrays:
    """Named arrays; None names the only one."""

    arrays: Callable[[str], Any]

    def read(self, place: Place, region: Region, decoded: bool) -> Array | None:
        if decoded:
            return None
        path = f"{place.group}/{place.variable}" if place.group else place.variable
        return np.asarray(_of_shape(self.arrays(path), place)[region])


def _npy(source: SourceFile, closing: ExitStack) -> NativeFile:
    array = np.load(local_path(source.url), mmap_mode="r")
    return _Arrays(lambda name: array)


def _npz(source: SourceFile, closing: ExitStack) -> NativeFile:
    # numpy leaves a file open that it opened, if it is no sound archive
    file = closing.enter_context(io.FileIO(local_path(source.url)))
    arrays = closing.enter_context(np.load(file))
    return _Arrays(lambda name: arrays[name])


def _safetensors(source: SourceFile, closing: ExitStack) -> NativeFile:
    from safetensors import safe_open

    file = closing.enter_context(safe_open(local_path(source.url), "np"))
    return _Arrays(file.get_tensor)


def _of_shape(array: Any, place: Place) -> Any:
    if array.shape != place.array.shape:
        raise CannotError(f"there the variable has shape {array.shape}")
    return array


NATIVES: dict[str, tuple[Native, ...]] = {
    "hdf5": (
        Native("h5netcdf", _engine("h5netcdf", phony_dims="sort"), remote=True),
        Native("netCDF4", _netcdf4),
        Native("h5py", _h5py, remote=True),
    ),
    "netcdf3": (
        Native("netCDF4", _engine("netcdf4")),
        Native("scipy", _engine("scipy"), remote=True),
    ),
    "zarr": (Native("zarr", _zarr, remote=True),),
    "grib": (Native("cfgrib", _cfgrib),),
    "tiff": (Native("tifffile", _tifffile, remote=True),),
    "fits": (Native("astropy", _astropy, remote=True),),
    "npy": (Native("numpy", _npy),),
    "npz": (Native("numpy", _npz),),
    "safetensors": (Native("safetensors", _safetensors),),
}
"""Native readers by the name of the parser, the one of the format's own library first."""
