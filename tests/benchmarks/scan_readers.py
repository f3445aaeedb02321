"""Readers that find the chunks of HDF5 files: ours, the least that h5py needs, and peers.

A reader returns, when the clock has stopped, where the chunks are: offsets and lengths of every
variable, in the order of its chunks, file after file. So all readers can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

Chunks = Mapping[str, tuple[Any, Any]]
"""Offsets and lengths of chunks, by variable."""
Check = dict[str, Any]
Job = Callable[[], Callable[[], Check]]
"""Does the work, and returns what makes the check, for which no clock runs."""
JOINED: dict[str, Any] = {
    "combine": "nested",
    "concat_dim": "time",
    "data_vars": "minimal",
    "coords": "minimal",
    "compat": "override",
    "join": "override",
}


class Scan(NamedTuple):
    """Files, the variables of each whose chunks are compared, and whether the files are joined.

    ``also`` are variables that are looked at, too, since other readers do.
    """

    paths: Sequence[Path]
    names: Callable[[int], Sequence[str]]
    is_joined: bool = True
    also: Sequence[str] = ()


def check_chunks(found: Chunks) -> Check:
    """Return what tells chunks apart from others: their order, too."""
    total = {"chunks": 0, "offsets": 0, "lengths": 0}
    for offsets, lengths in found.values():
        weights = np.arange(len(offsets)) % 8191 + 1
        total["chunks"] += len(offsets)
        total["offsets"] += int((np.asarray(offsets, "i8") * weights).sum())
        total["lengths"] += int((np.asarray(lengths, "i8") * weights).sum())
    return total


def check_listed(rows: Mapping[str, Iterable[Sequence[Any]]]) -> Check:
    """Check chunks of which each file gave an offset in the array, a place and a length."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, files in rows.items():
        ordered = [row for file in files for row in sorted(file)]
        found[name] = (np.array([r[1] for r in ordered]), np.array([r[2] for r in ordered]))
    return check_chunks(found)


# ---------------------------------------------------------------------- the least


def floor(scan: Scan) -> Job:
    """Open, look at the attributes, list the chunks."""
    import h5py

    def look() -> Callable[[], Check]:
        listed: dict[str, list[list[Any]]] = {}
        for number, path in enumerate(scan.paths):
            names = scan.names(number)
            with h5py.File(path) as file:
                for name in chain(names, scan.also):
                    dataset = file[name]
                    dict(dataset.attrs)
                    if dataset.chunks:
                        rows: list[Any] = []
                        dataset.id.chunk_iter(rows.append)
                        if name in names:
                            listed.setdefault(name, []).append(rows)
        return lambda: check_listed(_without_masks(listed))

    return look


def _without_masks(listed: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    return {
        name: [[(r.chunk_offset, r.byte_offset, r.size) for r in rows] for rows in files]
        for name, files in listed.items()
    }


def pyfive(scan: Scan) -> Job:
    """Do the same with pyfive."""
    import pyfive

    def look() -> Callable[[], Check]:
        listed: dict[str, list[list[Any]]] = {}
        for number, path in enumerate(scan.paths):
            names = scan.names(number)
            with pyfive.File(path) as file:
                for name in chain(names, scan.also):
                    dataset = file[name]
                    dict(dataset.attrs)
                    if name in names:
                        listed.setdefault(name, []).append(list(dataset.id.index.values()))
        return lambda: check_listed(_without_masks(listed))

    return look


# ---------------------------------------------------------------------- virtualds


def virtualds(scan: Scan, **how: Any) -> Job:
    """Open all files as one dataset, or each by itself."""
    import dask.array  # noqa: F401

    import virtualds

    names = [scan.names(number) for number in range(len(scan.paths))]

    def open_joined() -> Callable[[], Check]:
        whole = virtualds.open_virtual_mfdataset(scan.paths, **JOINED, **how)
        found = {name: columns_of(whole[name].data) for name in names[0]}
        return lambda: check_chunks(found)

    def open_each() -> Callable[[], Check]:
        found = {}
        for number, path in enumerate(scan.paths):
            dataset = virtualds.open_virtual_dataset(path, **how)
            found.update({(number, n): columns_of(dataset[n].data) for n in names[number]})
        return lambda: check_chunks(found)

    return open_joined if scan.is_joined else open_each


def virtualds_groups(scan: Scan) -> Job:
    """Read the structure of each file, of which no dataset is made."""
    from virtualds.datasets.location import Location
    from virtualds.datasets.open import open_group

    def scan_each() -> Callable[[], Check]:
        found = {}
        for number, path in enumerate(scan.paths):
            variables = open_group(Location.of(path)).variables
            for name in scan.names(number):
                found[number, name] = columns_of(variables[name].data)
        return lambda: check_chunks(found)

    return scan_each


def columns_of(array: Any) -> tuple[Any, Any]:
    """Return offsets and lengths of all chunks of one of our arrays, which are read if need be."""
    manifests = [fragment.manifest.loaded() for fragment in array.fragments]
    offsets = [manifest.offset.ravel() for manifest in manifests]
    lengths = [manifest.length.ravel() for manifest in manifests]
    if len(manifests) == 1:
        return offsets[0], lengths[0]
    return np.concatenate(offsets), np.concatenate(lengths)


# ---------------------------------------------------------------------- peers


def virtualizarr(scan: Scan) -> Job:
    """Open all files with VirtualiZarr, as one dataset or each by itself."""
    import virtualizarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    how: dict[str, Any] = {"parser": HDFParser()}
    how["registry"] = ObjectStoreRegistry({"file://": LocalStore()})
    urls = [f"file://{path}" for path in scan.paths]
    names = [scan.names(number) for number in range(len(urls))]

    def open_joined() -> Callable[[], Check]:
        more = {**JOINED, "loadable_variables": ["time"]}
        whole = virtualizarr.open_virtual_mfdataset(urls, **how, **more)
        return lambda: check_chunks({name: _columns_of_peer(whole[name]) for name in names[0]})

    def open_each() -> Callable[[], Check]:
        datasets = [
            virtualizarr.open_virtual_dataset(url, **how, loadable_variables=[]) for url in urls
        ]
        return lambda: check_chunks(
            {
                (number, name): _columns_of_peer(dataset[name])
                for number, dataset in enumerate(datasets)
                for name in names[number]
            }
        )

    return open_joined if scan.is_joined else open_each


def _columns_of_peer(variable: xr.DataArray) -> tuple[Any, Any]:
    manifest = variable.data.manifest
    return manifest._offsets.ravel(), manifest._lengths.ravel()


def kerchunk(scan: Scan) -> Job:
    """Translate all files with kerchunk, and combine what came of it if files are joined."""
    from kerchunk.combine import MultiZarrToZarr
    from kerchunk.hdf import SingleHdf5ToZarr

    def translate() -> Callable[[], Check]:
        refs = [SingleHdf5ToZarr(str(p), inline_threshold=0).translate() for p in scan.paths]
        if scan.is_joined:
            dims: dict[str, Any] = {"concat_dims": ["time"], "identical_dims": ["lat", "lon"]}
            refs = [MultiZarrToZarr(refs, **dims).translate()]
        return lambda: check_listed(
            {
                f"{number}/{name}": [_references(found["refs"], name)]
                for number, found in enumerate(refs)
                for name in scan.names(number)
            }
        )

    return translate


def _references(refs: Mapping[str, Any], name: str) -> list[tuple[Any, ...]]:
    begin = f"{name}/"
    places = ((key.removeprefix(begin), ref) for key, ref in refs.items() if key.startswith(begin))
    return [
        (tuple(map(int, place.split("."))), *ref[1:])
        for place, ref in places
        if not place.startswith(".")
    ]


READERS: Mapping[str, Callable[[Scan], Job]] = {
    "floor": floor,
    "virtualds": virtualds,
    "virtualds scan": virtualds_groups,
    "pyfive": pyfive,
    "virtualizarr": virtualizarr,
    "kerchunk": kerchunk,
}
