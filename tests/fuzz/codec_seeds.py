"""Chunks for every codec: what virtualds itself gives to it when it reads sound files.

Arrays of many files are read chunk by chunk, and whatever goes into a codec
is a seed of it; `wanted` says which codecs there are. Few that no file here needs have streams.
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import imagecodecs
import numpy as np
import registered_codecs
import registered_images
from cases import CASES
from fuzz.mutations import Seed
from fuzz.seeds import fits, grib, hdf4, tiff, zarr_of

import virtualds
from virtualds import ManifestArray
from virtualds.codecs import CODECS
from virtualds.codecs.numcodecs import NUMCODECS_IDS, Numcodecs
from virtualds.errors import VirtualdsError


def _make_zip_member() -> bytes:
    """Return a deflated member of a zip archive: what lies before its list of members."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("v.npy", np.arange(70.0).tobytes())
    return held.getvalue().partition(b"PK\1\2")[0]


# ITU-T T.6, 2.2: horizontal mode, 4 white, 12 black; seven rows without a change; two ends
FAX = int(("001" + "1011" + "0000111" + "11" * 7 + "000000000001" * 2).ljust(56, "0"), 2)
STREAMS: dict[str, tuple[dict[str, Any], Callable[[], bytes], int]] = {
    "zfpy": ({}, lambda: imagecodecs.zfp_encode(np.arange(70.0)), 560),
    "imagecodecs_bitorder": ({}, lambda: bytes(range(70)), 70),
    "virtualds_fax4": ({"width": 16, "compression": 4, "options": 0}, lambda: FAX.to_bytes(7), 128),
    "virtualds_zip_member": ({"skip": 0}, _make_zip_member, 560),
}
"""Codecs that the files below do not have: parameters, stream, and how many bytes it becomes."""
MOST = 6
"""Seeds of one codec."""
LONGEST = 40_000
"""Bytes of a chunk."""


def wanted() -> set[str]:
    """Return the ids of all codecs that have to have seeds."""
    return {codec.zarr_v2_id for codec in CODECS if codec is not Numcodecs} | set(NUMCODECS_IDS)


def all_seeds() -> dict[str, list[Seed]]:
    """Return the seeds of every codec, by its id."""
    found: dict[str, dict[str, Seed]] = {}
    for name, (parameters, encode, size) in STREAMS.items():
        config = json.dumps({"id": name, **parameters})
        found[name] = {config: _seed(config, encode(), size)}
    for array in _arrays():
        for codec, chunk, size in _steps(array):
            config = codec.to_zarr_v2()
            text = json.dumps(config)
            seeds = found.setdefault(config["id"], {})
            if len(seeds) < MOST and len(chunk) <= LONGEST and text not in seeds:
                seeds[text] = _seed(text, bytes(chunk), size)
    return {name: list(seeds.values()) for name, seeds in sorted(found.items())}


def _seed(config: str, chunk: bytes, size: int | None) -> Seed:
    files = {"codec.json": config.encode(), "chunk": chunk, "size.txt": json.dumps(size).encode()}
    return Seed(config, files, "chunk", ("size.txt",))


def _arrays() -> Iterator[ManifestArray]:
    """Yield the arrays of all sorts of files."""
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, entry in enumerate(_entries(Path(folder))):
            try:
                tree = virtualds.open_virtual_datatree(
                    entry, decode_cf=False, loadable_variables=[], on_error="skip"
                )
            except VirtualdsError as error:
                raise RuntimeError(f"seed {number} {entry}") from error
            for node in tree.subtree:
                for variable in node.to_dataset(inherit=False).variables.values():
                    data = getattr(variable, "_data", None)
                    if isinstance(data, ManifestArray):
                        yield data


def _entries(folder: Path) -> Iterator[str]:
    """Write files, and yield what is to be opened."""
    hdf5 = ("filters_of_plugins", "filters_of_netcdf", "scaleoffset", "nbit")
    for name in (*hdf5, "chunked_and_filtered"):
        path = folder / f"{name}.nc"
        CASES[name].write(path)
        yield str(path)
    registered = {**registered_codecs.REGISTERED, **registered_images.IMAGES}
    for number, one in enumerate(registered.values()):
        yield str(one.write(folder / f"registered{number}"))
    for make in (zarr_of(2), zarr_of(3), tiff, grib, fits, hdf4):
        for number, seed in enumerate(make()):
            root = folder / f"{make.__qualname__}{number}{id(make)}"
            for name, data in seed.files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            yield str(root / seed.entry)


def _steps(array: ManifestArray) -> Iterator[tuple[Any, Any, int | None]]:
    """Yield every codec of the first chunks, with what goes into it and how long that becomes."""
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        for place in islice(np.ndindex(*manifest.shape), 2):
            row = manifest.lookup(place)
            if row.file < 0:
                continue
            pipeline = array.pipelines[0]
            path = manifest.files[row.file].url.removeprefix("file://")
            if "::" in path:
                continue
            with open(path, "rb") as file:
                file.seek(row.offset)
                data: Any = file.read(row.length)
            axes = zip(fragment.axes, place, strict=True)
            sizes = [int(axis.slabs(i, i + 1).encoded[0]) for axis, i in axes]
            nbytes = pipeline.dtype.itemsize
            for length in pipeline.stored_shape(sizes):
                nbytes *= int(length)
            lengths = pipeline.encoded_sizes(nbytes)
            for codec, size in reversed(list(zip(pipeline.codecs, lengths, strict=False))):
                yield codec, data, size
                data = codec.decode(data, size)
