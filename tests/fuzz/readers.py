"""Who reads the files of a case: virtualds, and the libraries of the formats themselves."""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr
from fuzz.outcomes import LARGE, Failure, Outcome, Reader, corner, failure_of, outcome, values_of
from fuzz.seeds import SYNCED

import virtualds
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.codec import CodecError
from virtualds.errors import VirtualdsError
from virtualds.formats import MALFORMED_ERRORS

Found = Iterable[tuple[str, Any]]

# ---------------------------------------------------------------------- virtualds


def is_typed(error: BaseException) -> bool:
    """Whether the documentation says that this may be raised."""
    return isinstance(error, VirtualdsError) or type(error) is FileNotFoundError


def _options(entry: str) -> dict[str, Any]:
    """What an index of GRIB needs to be opened."""
    is_index = entry.endswith((".idx", ".index"))
    template = {"template": str(Path(entry).with_name("template.grib2"))}
    return {"on_error": "keep"} | ({"parser_options": template} if is_index else {})


def stored(entry: str) -> Found:
    """Read every array of all groups as it is stored, through references."""
    tree = virtualds.open_virtual_datatree(
        entry, decode_cf=False, loadable_variables=[], **_options(entry)
    )
    for node in tree.subtree:
        dataset = node.to_dataset(inherit=False)
        for name, variable in dataset.variables.items():
            yield f"{node.path.strip('/')}/{name}".lstrip("/"), _reading(variable)


def decoded(entry: str) -> Found:
    """Read every variable of the root as xarray shows it."""
    dataset = virtualds.open_virtual_dataset(entry, **_options(entry))
    for name, variable in dataset.variables.items():
        yield str(name), _reading(variable)


def by_engine(entry: str) -> Found:
    """Read every variable through xarray's door."""
    dataset = xr.open_dataset(entry, engine="virtual", decode_cf=False, **_options(entry))
    for name, variable in dataset.variables.items():
        yield str(name), _reading(variable)


def _reading(variable: Any) -> Any:
    return lambda: _part(variable)


def _part(variable: Any) -> Any:
    return variable[corner(variable.shape, variable.dtype.itemsize or 1)].values


WAYS: tuple[Reader, ...] = (stored, stored, stored, decoded, by_engine)
"""Doors to virtualds, by the number of a case."""
STORED = (0, 1, 2, 4)
"""Those that show what is stored, which is compared."""
WHOLE = (0, 1, 2)
"""Those that show all groups."""


def ours(job: tuple[str, str, int]) -> Outcome:
    """Read files through virtualds, by one of its doors."""
    folder, entry, way = job
    with _in(folder), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = outcome(WAYS[way], entry, is_typed)
    return found._replace(warned="\n".join(str(one.message) for one in warned))


class _in:
    """A folder to be in: what is named relative to it is found by every reader."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        os.chdir(self._folder)

    def __exit__(self, *_: object) -> None:
        os.chdir("/")


# ---------------------------------------------------------------------- sync


def synced(job: tuple[str, str, int]) -> Outcome:
    """Sync a set with its files, one of them new to it; say what was lost, or is not right.

    Before and after, the set is read. A row along time of the synced set is one that the set had
    before, or one of the files; the new ones are all there, and none that it had is lost. A sync
    that fails leaves the set as it was.
    """
    folder, entry, way = job
    with _in(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # a set that has lost the file it begins with is none any more
        typed = (FileExistsError, FileNotFoundError, VirtualdsError)
        return outcome(lambda path: _sync(path, way), entry, lambda error: isinstance(error, typed))


def _sync(entry: str, way: int) -> Found:
    sources = sorted(str(path) for path in Path().glob("*.nc"))
    for number, path in enumerate(sources):
        # in some cases a file of the set has changed
        is_changed = way > 2 and number == 1
        os.utime(path, (SYNCED + is_changed,) * 2)
    parts = [xr.load_dataset(path, decode_cf=False) for path in sources]
    right = xr.concat(parts, "time", data_vars="minimal", coords="minimal", compat="override")
    before = _read_set(entry)
    try:
        on_removed = ("error", "keep")[way % 2]
        virtualds.sync(sources, entry, concat_dim="time", settle=0, on_removed=on_removed)
    except (VirtualdsError, FileExistsError, FileNotFoundError) as error:
        if _read_set(entry) != before:
            raise SystemError("a sync that failed has changed the set") from error
        raise
    after = _read_set(entry)
    wrong = find_wrong(before, after, _list_rows(right), _list_rows(parts[-1]))
    if wrong:
        raise SystemError(wrong)
    yield from ()


Rows = dict[str, tuple[bytes, ...]]
"""By variable the bytes of its rows along time, or of all its values."""


def _read_set(entry: str) -> Rows:
    """Return what can be read of a set."""
    try:
        found = virtualds.open_virtual_dataset(entry, decode_cf=False, on_error="keep")
    except (VirtualdsError, FileNotFoundError):
        return {}
    return _list_rows(found)


def _list_rows(dataset: xr.Dataset) -> Rows:
    rows: Rows = {}
    for name, variable in dataset.variables.items():
        if variable.size * (variable.dtype.itemsize or 1) > LARGE:
            continue
        with suppress(VirtualdsError):
            values = np.asarray(variable.values)
            values = values.astype(values.dtype.newbyteorder("="))
            along = values if variable.dims[:1] == ("time",) else [values]
            rows[str(name)] = tuple(np.asarray(row).tobytes() for row in along)
    return rows


def find_wrong(before: Rows, after: Rows, right: Rows, new: Rows) -> str:
    """Say what is wrong with a set after a sync, "" if nothing is."""
    for name, rows in before.items():
        if name not in right:
            continue
        if name not in after:
            return f"{name}: it could be read before the sync, and cannot now"
        if set(after[name]) - set(rows) - set(right[name]):
            return f"{name}: rows are neither those from before nor those of files"
        if len(after[name]) < len(rows):
            return f"{name}: {len(rows)} rows before, {len(after[name])} after"
        if (set(rows) & set(right[name])) - set(after[name]):
            return f"{name}: rows that were right are not there"
        if set(new[name]) - set(after[name]) - set(rows):
            return f"{name}: rows of the new file are not there"
    return ""


# ---------------------------------------------------------------------- natives


def native(job: tuple[str, str, str, int]) -> Outcome:
    """Read files by one of the libraries of their format."""
    folder, entry, kind, number = job
    with _in(folder), warnings.catch_warnings(), ExitStack() as closing:
        warnings.simplefilter("ignore")
        reader = NATIVES[kind][number]
        return outcome(lambda path: reader(path, closing), entry, lambda error: True)


def by_h5py(entry: str, closing: ExitStack) -> Found:
    file = closing.enter_context(h5py.File(entry))
    names: list[str] = []
    file.visititems(lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) else None)
    for name in names:
        dataset = file[name]
        yield name, lambda dataset=dataset: dataset[corner(dataset.shape, dataset.dtype.itemsize)]


def _xarray(engine: str, **options: Any) -> Any:
    def read(entry: str, closing: ExitStack) -> Found:
        groups = xr.open_groups(entry, engine=engine, decode_cf=False, **options)
        for path, dataset in groups.items():
            closing.enter_context(dataset)
            for name, variable in dataset.variables.items():
                yield f"{path.strip('/')}/{name}".lstrip("/"), _reading(variable)

    return read


def _flat_xarray(engine: str) -> Any:
    def read(entry: str, closing: ExitStack) -> Found:
        dataset = closing.enter_context(xr.open_dataset(entry, engine=engine, decode_cf=False))
        for name, variable in dataset.variables.items():
            yield str(name), _reading(variable)

    return read


def by_tifffile(entry: str, closing: ExitStack) -> Found:
    import tifffile

    tiff = closing.enter_context(tifffile.TiffFile(entry))
    several = len(tiff.series) > 1
    for number, series in enumerate(tiff.series):
        for level, image in enumerate(series.levels):
            group = [f"series_{number}"] * several + [str(level)] * (len(series.levels) > 1)
            if np.prod([int(n) for n in image.shape]) <= 2**25:
                yield "/".join([*group, "band_data"]), image.asarray


def by_pages(entry: str, closing: ExitStack) -> Found:
    """Read every page where its own tags say: tifffile takes those of ImageJ for one block."""
    import tifffile

    tiff = closing.enter_context(tifffile.TiffFile(entry))
    if len(tiff.series) == 1:
        [series] = tiff.series
        yield (
            "band_data",
            lambda: np.stack([page.asarray() for page in series.pages]).reshape(series.shape),
        )


UNSIGNED = {(8, -128), (16, 2**15), (32, 2**31), (64, 2**63)}
"""BITPIX and BZERO of integers without a sign, and of bytes with one."""


def by_astropy(entry: str, closing: ExitStack) -> Found:
    from astropy.io import fits

    units = closing.enter_context(fits.open(entry, memmap=False, do_not_scale_image_data=True))
    scaled = closing.enter_context(fits.open(entry, memmap=False))
    for number, unit in enumerate(units):
        if unit.is_image and unit.header.get("NAXIS", 0):
            how = unit.header.get("BITPIX"), unit.header.get("BZERO", 0)
            scale = unit.header.get("BSCALE", 1)
            # a card without "= " has a text, and no value
            unsigned = (isinstance(scale, str) or scale == 1) and how in UNSIGNED
            one = scaled[number] if unsigned else unit
            yield unit.name or f"HDU{number}", lambda one=one: one.data


SHIFTED = {("I", 2**15), ("J", 2**31), ("K", 2**63)}
"""Letters and TZERO of columns of integers without a sign."""


def by_astropy_tables(entry: str, closing: ExitStack) -> Found:
    """Read every column as it is stored, all elements of one of varying length behind each other.

    Scaled columns are left out, but for unsigned integers: astropy shows no stored numbers.
    """
    from astropy.io import fits

    units = closing.enter_context(fits.open(entry, memmap=False))
    for number, unit in enumerate(units):
        if not isinstance(unit, fits.BinTableHDU | fits.TableHDU):
            continue
        for column in unit.columns:
            shifted = (column.format.lstrip("0123456789")[:1], column.bzero) in SHIFTED
            if (shifted or column.bzero in ("", None, 0)) and column.bscale in ("", None, 1):
                name = f"{unit.name or f'HDU{number}'}/{column.name}"
                yield name, lambda unit=unit, name=column.name: _column(unit.data[name])


def _column(values: Any) -> Any:
    if values.dtype.hasobject:
        return np.concatenate(list(values))
    values = np.asarray(values)
    if values.dtype.kind != "U":
        return values
    # characters behind a zero are undefined (section 7.3.3.1), and astropy shows them
    ended = [text.partition("\0")[0].rstrip() for text in values.flat]
    return np.array(ended, values.dtype).reshape(values.shape)


def by_pyhdf(entry: str, closing: ExitStack) -> Found:
    from pyhdf.SD import SD

    file = SD(entry)
    closing.callback(file.end)
    for number in range(file.info()[0]):
        dataset = file.select(number)
        yield dataset.info()[0], lambda dataset=dataset: _corner(dataset.get())


def _corner(values: Any) -> Any:
    return values[corner(values.shape, values.dtype.itemsize)]


def by_cfgrib(entry: str, closing: ExitStack) -> Found:
    import cfgrib

    opened = cfgrib.open_datasets(entry, backend_kwargs={"indexpath": "", "errors": "raise"})
    names = [str(name) for dataset in opened for name in dataset.data_vars]
    for dataset in opened:
        for name, variable in dataset.data_vars.items():
            if names.count(str(name)) == 1:
                yield str(name), _reading(variable.variable)


def by_numpy(entry: str, closing: ExitStack) -> Found:
    array = np.load(entry, mmap_mode="r")
    yield "array", lambda: array[corner(array.shape, array.dtype.itemsize)]


def by_numpy_archive(entry: str, closing: ExitStack) -> Found:
    file = closing.enter_context(np.load(entry))
    for name in file.files:
        yield name, lambda name=name: file[name]


def by_safetensors(entry: str, closing: ExitStack) -> Found:
    from safetensors import safe_open

    file = closing.enter_context(safe_open(entry, "np"))
    for name in file.keys():  # noqa: SIM118
        yield name, lambda name=name: file.get_tensor(name)


def by_zarr(entry: str, closing: ExitStack) -> Found:
    import zarr

    yield from _arrays_of(zarr.open_group(entry, mode="r"))


def _arrays_of(group: Any) -> Found:
    import zarr

    for name, one in group.members(max_depth=None):
        if isinstance(one, zarr.Array):
            yield name, lambda one=one: one[corner(one.shape, one.dtype.itemsize or 1)]


def by_fsspec(entry: str, closing: ExitStack) -> Found:
    """Read references as fsspec has them, by zarr-python."""
    import zarr

    options = {"fo": entry, "remote_protocol": "file", "skip_instance_cache": True}
    if os.path.isdir(entry):
        options["lazy"] = True
    group = zarr.open_group("reference://", storage_options=options, mode="r", zarr_format=2)
    for name, read in _arrays_of(group):
        yield name, _with_tables(Path(entry, name), read)


def _with_tables(folder: Path, read: Any) -> Any:
    """Read an array and its tables: fsspec takes one that it cannot read for one that is empty."""
    import pandas as pd

    def read_both() -> Any:
        for path in folder.glob("refs.*.parq"):
            pd.read_parquet(path, engine="fastparquet")
        return read()

    return read_both


def by_own_specification(entry: str, closing: ExitStack) -> Found:
    """Read a set of ours by the reader that was written from its specification."""
    from independent_reader import Set

    found = Set(Path(entry))
    for name, node in found.nodes.items():
        if node["node_type"] == "array":
            yield name, lambda name=name: found.read(name)


def by_icechunk(entry: str, closing: ExitStack) -> Found:
    import icechunk
    import zarr

    storage = icechunk.local_filesystem_storage(entry)
    config = icechunk.Repository.fetch_config(storage)
    access = icechunk.credentials.LocalFileSystemAccess
    known = dict.fromkeys((config and config.virtual_chunk_containers) or {}, access)
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=known)
    store = repository.readonly_session(branch="main").store
    yield from _arrays_of(zarr.open_group(store, mode="r"))


def _within(reader: Any) -> Any:
    """Read the only member of an archive that stands behind its url."""

    def read(entry: str, closing: ExitStack) -> Found:
        member, _, archive = entry.partition("::")
        folder = closing.enter_context(tempfile.TemporaryDirectory())
        name = member.partition("://")[2]
        target = Path(folder) / "member"
        if member.startswith("zip"):
            with zipfile.ZipFile(archive) as opened:
                target.write_bytes(opened.read(name))
        else:
            with tarfile.open(archive) as opened_:
                inner = opened_.extractfile(name)
                assert inner is not None
                target.write_bytes(inner.read())
        yield from reader(str(target), closing)

    return read


NATIVES: dict[str, tuple[Any, ...]] = {
    "hdf5": (_xarray("h5netcdf", phony_dims="sort"), by_h5py, _xarray("netcdf4")),
    "netcdf3": (_flat_xarray("netcdf4"), _flat_xarray("scipy")),
    # other readers of netCDF see scalars
    "cfa": (),
    "grib": (by_cfgrib,),
    # nobody else reads indexes alone
    "grib-index": (),
    "tiff": (by_tifffile, by_pages),
    "fits": (by_astropy,),
    "fits-tables": (by_astropy_tables,),
    # what is damaged in a sidecar is not in the file that others read
    "dmrpp": (),
    "hdf4": (by_pyhdf,),
    "npy": (by_numpy,),
    "npz": (by_numpy_archive,),
    "safetensors": (by_safetensors,),
    "zarr-v2": (by_zarr,),
    "zarr-v3": (by_zarr,),
    "zip": (_within(_flat_xarray("netcdf4")), _within(_flat_xarray("scipy"))),
    "tar": (_within(_flat_xarray("netcdf4")), _within(_flat_xarray("scipy"))),
    "kerchunk-json": (by_fsspec,),
    "kerchunk-parquet": (by_fsspec,),
    "sets": (by_own_specification,),
    # what is right is known there: see `synced`
    "sync": (),
    "icechunk": (by_icechunk,),
}
"""Native readers by the kind of file, the one that is asked first in front."""


# ---------------------------------------------------------------------- codecs


def our_codec(job: tuple[str, str, int]) -> Outcome:
    """Build a codec and decode a chunk, with its length known, not known, and into memory."""
    folder, _, way = job
    try:
        config, chunk, size = _chunk(folder)
        codec = codec_from_zarr_v2(config)
    except (VirtualdsError, *MALFORMED_ERRORS, OSError) as error:
        # those who build codecs of metadata tell all of these as one of ours
        return Outcome(failure_of(error, True), {})
    try:
        if way == 2 and codec.fills_output and size is not None:
            out = np.full(size + 64, 171, np.uint8)
            codec.decode_into(chunk, out[32:-32])
            if (out[:32] != 171).any() or (out[-32:] != 171).any():
                raise SystemError("memory that was not its own was written")
            found = out[32:-32].tobytes()
        else:
            found = bytes(codec.decode(chunk, None if way == 1 else size))
    except Exception as error:  # noqa: BLE001
        typed = isinstance(error, CodecError | VirtualdsError)
        return Outcome(None, {"chunk": failure_of(error, typed)})
    if codec.encoded_size(1) is None and way != 1 and size is not None and len(found) != size:
        wrong = SystemError(f"{len(found)} bytes where {size} belong")
        return Outcome(None, {"chunk": failure_of(wrong, False)})
    return Outcome(None, {"chunk": values_of(np.frombuffer(found, np.uint8))})


def native_codec(job: tuple[str, str, str, int]) -> Outcome:
    """Decode a chunk by numcodecs, if it knows the codec."""
    import imagecodecs.numcodecs
    import numcodecs

    imagecodecs.numcodecs.register_codecs(verbose=False)
    try:
        config, chunk, size = _chunk(job[0])
        found = bytes(numcodecs.get_codec(config).decode(chunk))
        if config["id"] == "imagecodecs_packints" and job[2] != 1 and size is not None:
            # what lies behind the rows of a TIFF file is padding
            found = found[:size]
        return Outcome(None, {"chunk": values_of(np.frombuffer(found, np.uint8))})
    except Exception as error:  # noqa: BLE001
        return Outcome(Failure(type(error).__name__, str(error)[:200], "", True), {})


def _chunk(folder: str) -> tuple[dict[str, Any], bytes, int | None]:
    config = json.loads(Path(folder, "codec.json").read_bytes())
    if not isinstance(config, dict):
        raise TypeError("metadata of codecs are objects")
    nbytes = json.loads(Path(folder, "size.txt").read_bytes())
    chunk = Path(folder, "chunk").read_bytes()
    return config, chunk, nbytes
