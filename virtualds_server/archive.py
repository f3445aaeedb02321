"""What the page tells about what is served: its variables, and where each value comes from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from math import prod
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import virtualds
from virtualds.accessors.display import draw_strips
from virtualds.chunks.columns import INLINE
from virtualds.errors import without_secrets
from virtualds.urls import host_of
from virtualds_server.labels import format_value

MAX_TEXT = 2000
"""Characters of an attribute that the page shows."""
MAX_VARIABLES = 5000
"""Variables that the page lists."""
HIDDEN_FOLDER = "file:///"
"""The folder of all files for readers who may not know it."""
KEPT_CHUNK, KEPT_CHUNKS = 2**22, 16
"""Bytes of a decoded chunk that is kept for the next values, and how many are."""
LARGE_CHUNK, MAX_CHUNK = 2**27, 2**29
"""Bytes of a decoded chunk of which only one is read at a time, and of which none is."""


class TooLargeError(OSError):
    """A chunk is larger than what the page reads."""


class NoSuchVariableError(KeyError):
    """What is served has no such variable."""


@dataclass(frozen=True, eq=False)
class Archive:
    """The tree of virtual arrays, which has the references, and that tree with lazy arrays.

    Parameters
    ----------
    virtual : xarray.DataTree
        The tree of virtual arrays.
    shows_paths : bool
        Whether the page names the folders and hosts of files; otherwise only what follows the
        folder that all files share.
    """

    virtual: xr.DataTree
    shows_paths: bool = False
    _kept: dict[tuple[str, str], Any] = field(default_factory=dict, repr=False)
    _chunks: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)
    _chunk_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _large: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def open(cls, opened: Any, opening: Mapping[str, Any], shows_paths: bool) -> Archive:
        """Open what `virtualds.zarr_store` takes."""
        if isinstance(opened, xr.Dataset):
            tree = xr.DataTree(opened)
        elif isinstance(opened, xr.DataTree):
            tree = opened
        else:
            tree = virtualds.open_virtual_datatree(opened, **opening)
        return cls(tree, shows_paths)

    @cached_property
    def lazy(self) -> xr.DataTree:
        """The tree with lazy arrays."""
        found: xr.DataTree = self.virtual.virtual.to_lazy()
        return found

    def find(self, path: str) -> xr.DataArray:
        """Return a variable to be read, with its coordinates.

        Raises
        ------
        NoSuchVariableError
            There is no such variable.
        """
        group, name = self._locate(path)
        found: xr.DataArray = self._keep(
            "lazy", path, lambda: self._dataset(group, self.lazy)[name]
        )
        return found

    def find_array(self, path: str) -> virtualds.ManifestArray | None:
        """Return the virtual array of a variable, or None if its values are in memory."""
        group, name = self._locate(path)
        found: virtualds.ManifestArray | None = self._keep(
            "array", path, lambda: self._dataset(group).virtual.arrays.get(name)
        )
        return found

    def _keep(self, kind: str, path: str, make: Callable[[], Any]) -> Any:
        """Return what was made for a variable before."""
        if (kind, path) not in self._kept:
            self._kept[kind, path] = make()
        return self._kept[kind, path]

    @cached_property
    def _places(self) -> dict[str, tuple[str, str]]:
        """The group and the name of each variable, by its path."""
        return {
            f"{node.path.rstrip('/')}/{name}": (node.path, str(name))
            for node in self.virtual.subtree
            for name in node.variables
        }

    def _locate(self, path: str) -> tuple[str, str]:
        """Return the group and the name of a variable, or raise an error if there is none."""
        if path not in self._places:
            raise NoSuchVariableError(path)
        return self._places[path]

    def _dataset(self, group: str, tree: xr.DataTree | None = None) -> xr.Dataset:
        found: xr.Dataset = (self.virtual if tree is None else tree)[group].to_dataset()
        return found

    # ------------------------------------------------------------------ contents

    def describe(self) -> dict[str, Any]:
        """Return the groups and their variables, and the variable to show first."""
        groups: list[dict[str, Any]] = []
        left, total = MAX_VARIABLES, 0
        for node in self.virtual.subtree:
            dataset = node.to_dataset(inherit=False)
            names = sorted(
                dataset.variables,
                key=lambda name: (name in dataset.coords, dataset.variables[name].ndim < 2),
            )
            shown = [self._describe_variable(node.path, str(n), dataset) for n in names[:left]]
            left, total = left - len(shown), total + len(names)
            groups.append(
                {"path": node.path, "attrs": describe_attributes(dataset.attrs), "variables": shown}
            )
        everything = [one for group in groups for one in group["variables"]]
        drawn = [one for one in everything if one["drawn"] and not one["coordinate"]] or everything
        first = max(drawn, key=_rank, default=None)
        return {
            "groups": groups,
            "more": total - len(everything),
            "first": first["path"] if first else None,
        }

    def _describe_variable(self, group: str, name: str, dataset: xr.Dataset) -> dict[str, Any]:
        variable = dataset.variables[name]
        attrs = variable.attrs
        title = next((attrs[k] for k in ("long_name", "standard_name") if attrs.get(k)), "")
        units = attrs.get("units", variable.encoding.get("units", ""))
        return {
            "path": f"{group.rstrip('/')}/{name}",
            "name": name,
            "title": format_text(title),
            "units": format_text(units) if variable.dtype.kind not in "mM" else "",
            "dims": [str(dim) for dim in variable.dims],
            "shape": list(variable.shape),
            "dtype": str(variable.dtype),
            "coordinate": name in dataset.coords,
            "drawn": is_drawn(variable.dtype) and variable.size > 0,
        }

    def describe_variable(self, path: str) -> dict[str, Any]:
        """Return attributes, chunks and files of a variable, partly as HTML."""
        group, name = self._locate(path)
        dataset = self._dataset(group)
        alone = dataset[[name]]
        array = alone.virtual.arrays.get(name)
        if array is not None and not self.shows_paths:
            names = self._name_files(path)
            alone = alone.virtual.rename_paths(lambda url: HIDDEN_FOLDER + names.get(url, ""))
        own = alone.virtual.arrays
        return {
            "attrs": describe_attributes(dataset.variables[name].attrs),
            "group": describe_attributes(dataset.attrs),
            "strips": [str(strip) for strip in draw_strips(alone, own)] if own else [],
            "chunks": str(alone.virtual._repr_html_()) if own else "",
        }

    # ------------------------------------------------------------------ values

    @contextmanager
    def reserve(self, nbytes: float) -> Iterator[None]:
        """Let at most one request at a time decode chunks of more than `LARGE_CHUNK` bytes.

        Raises
        ------
        TooLargeError
            The chunk is larger than what a server may hold.
        """
        if nbytes > MAX_CHUNK:
            raise TooLargeError(
                f"a chunk of {nbytes / 2**20:,.0f} MiB is more than the page reads; "
                f"read it in Python"
            )
        if nbytes <= LARGE_CHUNK:
            yield
            return
        with self._large:
            yield

    def read_value(self, path: str, index: Mapping[str, int]) -> Any:
        """Return one element. Its chunk is cached if it is small."""
        variable = self.find(path).variable
        box = self._find_chunk(path, index)
        if box is None or (nbytes := box.size * variable.dtype.itemsize) > KEPT_CHUNK:
            with self.reserve(0 if box is None else nbytes):
                return variable.isel({dim: index[str(dim)] for dim in variable.dims}).values[()]
        key = (path, *box.start)
        with self._chunk_lock:
            chunk = self._chunks.get(key)
        if chunk is None:
            ends = zip(box.start, box.stop, strict=True)
            slices = {dim: slice(*two) for dim, two in zip(variable.dims, ends, strict=True)}
            chunk = variable.isel(slices).values
            with self._chunk_lock:
                self._chunks[key] = chunk
                while len(self._chunks) > KEPT_CHUNKS:
                    self._chunks.pop(next(iter(self._chunks)))
        return chunk[
            tuple(index[str(d)] - a for d, a in zip(variable.dims, box.start, strict=True))
        ]

    def read_coordinate(self, path: str, name: str, index: Mapping[str, int]) -> Any:
        """Return the element of a coordinate that belongs to an element of a variable."""
        coordinate = self.find(path).coords[name].variable
        own = {str(dim): index[str(dim)] for dim in coordinate.dims}
        # a group has the coordinates that it inherits, too
        return self.read_value(f"{path.rpartition('/')[0]}/{name}", own)

    def _find_chunk(self, path: str, index: Mapping[str, int]) -> ChunkBox | None:
        """Return the chunk of an element, or None if no chunk has it."""
        array = self.find_array(path)
        if array is None:
            return None
        place = tuple(index[str(dim)] for dim in self.find(path).dims)
        for fragment in array.fragments:
            bounds = zip(fragment.start, place, fragment.stop, strict=True)
            if not all(low <= i < high for low, i, high in bounds):
                continue
            pairs = list(zip(fragment.axes, fragment.start, place, strict=True))
            chunk = tuple(int(axis.locate(np.array([i - low]))[0]) for axis, low, i in pairs)
            edges = [
                (axis.edges_at(np.array([n, n + 1])) + low).tolist()
                for (axis, low, _), n in zip(pairs, chunk, strict=True)
            ]
            return ChunkBox(
                fragment.manifest, chunk, tuple(a for a, _ in edges), tuple(b for _, b in edges)
            )
        return None

    def find_origin(self, path: str, index: Mapping[str, int]) -> dict[str, Any]:
        """Return where an element comes from: its file, chunk, bytes and encoding.

        Examples
        --------
        >>> archive = Archive.open("2001.nc", {}, shows_paths=False)
        >>> found = archive.find_origin("/t", {"time": 3, "lat": 0, "lon": 0})
        >>> found["file"], found["chunk"], found["chunk_shape"]
        ('2001.nc', [3, 0, 0], [1, 6, 8])
        """
        array = self.find_array(path)
        if array is None:
            return {"file": None, "reason": "its values were loaded when the set was opened"}
        box = self._find_chunk(path, index)
        if box is None:
            return {"file": None, "reason": "no file has this element; it is read as fill value"}
        place = [index[str(dim)] for dim in self.find(path).dims]
        found = box.manifest.at(np.array([_flatten(box.chunk, box.manifest.shape)]))
        reference = found.lookup((0,))
        said: dict[str, Any] = {
            "chunk": [*box.chunk],
            "chunk_shape": [b - a for a, b in zip(box.start, box.stop, strict=True)],
            "position": [i - a for i, a in zip(place, box.start, strict=True)],
        }
        if reference.file >= 0:
            url = without_secrets(found.files[reference.file].url)
            return said | {
                "file": url if self.shows_paths else format_source_name(url),
                "offset": reference.offset,
                "length": reference.length,
                "encoding": str(array.pipelines[reference.pipeline]),
            }
        if reference.file == INLINE:
            return said | {"file": None, "reason": "its bytes are in the set"}
        return said | {"file": None, "reason": "the chunk is missing; it is read as fill value"}

    # ------------------------------------------------------------------ names of files

    def _name_files(self, path: str) -> dict[str, str]:
        """Return the name of each file of a variable below the folder that all share."""
        array = self.find_array(path)
        listed = array.listed_sources if array is not None else ()
        urls = {file.url: find_file_url(file.url) for file in listed if file.url}
        hosts = dict.fromkeys(map(host_of, urls.values()))
        names: dict[str, str] = {}
        for number, host in enumerate(hosts, 1):
            parts = {url: of.split("/") for url, of in urls.items() if host_of(of) == host}
            columns = zip(*(folder[:-1] for folder in parts.values()), strict=False)
            shared = len(list(takewhile(lambda column: len({*column}) == 1, columns)))
            # files of several hosts may have the same names
            before = f"{number}/" if len(hosts) > 1 else ""
            names |= {url: before + "/".join(own[shared:]) for url, own in parts.items()}
        return names


class ChunkBox(NamedTuple):
    """A chunk: its manifest, its index there, and where it begins and ends in the array."""

    manifest: virtualds.ChunkManifest
    chunk: tuple[int, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of its elements."""
        return prod(b - a for a, b in zip(self.start, self.stop, strict=True))


def format_source_name(url: str) -> str:
    """Return the name of a file without its folder, or of a chunk in its store.

    Examples
    --------
    >>> names = ("a/2001.nc", "x.zarr/t/c/0/1", "a.b/day5")
    >>> [format_source_name(f"s3://secret/{one}") for one in names]
    ['2001.nc', 'x.zarr/t/c/0/1', 'day5']
    """
    parts = find_file_url(url).rstrip("/").split("/")[3:]
    stores = [n for n, part in enumerate(parts) if part.endswith(".zarr")]
    return "/".join(parts[stores[-1] if stores else -1 :])


def find_file_url(url: str) -> str:
    """Return the url of a file, or of the archive that it is a member of, without a query.

    Examples
    --------
    >>> find_file_url("zip://a.nc::https://example.org/b.zip?key=1")
    'https://example.org/b.zip'
    """
    return url.rpartition("::")[2].partition("?")[0]


def _flatten(chunk: tuple[int, ...], shape: tuple[int, ...]) -> int:
    return int(np.ravel_multi_index(chunk, shape)) if shape else 0


def _rank(shown: Mapping[str, Any]) -> tuple[bool, int]:
    """Order variables by how much there is to see."""
    return len(shown["dims"]) > 1, prod(shown["shape"])


def is_drawn(dtype: np.dtype[Any]) -> bool:
    """Return whether values of a data type can be drawn.

    Examples
    --------
    >>> [is_drawn(np.dtype(one)) for one in ("f4", "?", "M8[s]", "S3", "c8")]
    [True, True, True, False, False]
    """
    return dtype.kind in "biufmM"


def describe_attributes(attrs: Mapping[Any, Any]) -> list[tuple[str, str]]:
    """Return names and values of attributes as text, long ones shortened."""
    return [(format_text(name), format_text(value)) for name, value in attrs.items()]


def format_text(value: Any) -> str:
    """Return a value as text without secrets, long ones shortened.

    Examples
    --------
    >>> format_text(np.float32([0.1, 2]))
    '0.1, 2.0'
    """
    if isinstance(value, np.ndarray | list | tuple):
        value = ", ".join(_iterate_texts(value))
    elif isinstance(value, np.generic):
        value = format_value(value)
    text = without_secrets(str(value))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} …"


def _iterate_texts(values: Any) -> Iterator[str]:
    for value in np.asarray(values).ravel()[:MAX_TEXT]:
        yield format_value(value)
