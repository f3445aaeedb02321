"""The variables of a set for the page: descriptions, values, and the origin of each value."""

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
from virtualds.source_file import host_of
from virtualds_server.labels import format_value

MAX_TEXT_LENGTH = 2000
"""Maximum number of characters that the page shows of an attribute."""
MAX_VARIABLES = 5000
"""Maximum number of variables that the page lists."""
PLACEHOLDER_FOLDER = "file:///"
"""The folder that is shown for all files if the page must not show their folders."""
MAX_CACHED_CHUNK_BYTES, MAX_CACHED_CHUNKS = 2**22, 16
LARGE_CHUNK_BYTES, MAX_CHUNK_BYTES = 2**27, 2**29
"""Decoded sizes in bytes above which chunks are read one at a time, and not at all."""


class ChunkTooLargeError(OSError):
    """A chunk is too large for the page to read."""


class VariableNotFoundError(KeyError):
    """There is no such variable."""


@dataclass(frozen=True, eq=False)
class Archive:
    """A tree of virtual arrays, and the same tree with lazy arrays.

    Parameters
    ----------
    virtual : xarray.DataTree
        The tree of virtual arrays.
    shows_paths : bool
        Whether the page shows the folders and hosts of files. Otherwise it shows only paths
        below the folder that all files share.
    """

    virtual: xr.DataTree
    shows_paths: bool = False
    _cache: dict[tuple[str, str], Any] = field(default_factory=dict, repr=False)
    _chunk_cache: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)
    _chunk_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _large_chunk_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def open(cls, source: Any, options: Mapping[str, Any], shows_paths: bool) -> Archive:
        """Open a url with the options of `virtualds.zarr_store`, or take a dataset or tree."""
        if isinstance(source, xr.Dataset):
            tree = xr.DataTree(source)
        elif isinstance(source, xr.DataTree):
            tree = source
        else:
            tree = virtualds.open_virtual_datatree(source, **options)
        return cls(tree, shows_paths)

    @cached_property
    def lazy(self) -> xr.DataTree:
        """The tree with lazy arrays."""
        tree: xr.DataTree = self.virtual.virtual.to_lazy()
        return tree

    def get_variable(self, path: str) -> xr.DataArray:
        """Return a lazy variable with its coordinates.

        Raises
        ------
        VariableNotFoundError
            There is no such variable.
        """
        group, name = self._locate(path)
        array: xr.DataArray = self._get_cached(
            "lazy", path, lambda: self.lazy[group].to_dataset()[name]
        )
        return array

    def get_array(self, path: str) -> virtualds.ManifestArray | None:
        """Return the virtual array of a variable, or None if its values are in memory."""
        group, name = self._locate(path)
        array: virtualds.ManifestArray | None = self._get_cached(
            "virtual", path, lambda: self.virtual[group].to_dataset().virtual.arrays.get(name)
        )
        return array

    def _get_cached(self, kind: str, path: str, make: Callable[[], Any]) -> Any:
        """Return an object of a variable, which the first call makes and caches."""
        if (kind, path) not in self._cache:
            self._cache[kind, path] = make()
        return self._cache[kind, path]

    @cached_property
    def _names_by_path(self) -> dict[str, tuple[str, str]]:
        """The group and the name of each variable, by its path."""
        return {
            f"{node.path.rstrip('/')}/{name}": (node.path, str(name))
            for node in self.virtual.subtree
            for name in node.variables
        }

    def _locate(self, path: str) -> tuple[str, str]:
        """Return the group and the name of a variable."""
        if path not in self._names_by_path:
            raise VariableNotFoundError(path)
        return self._names_by_path[path]

    # ------------------------------------------------------------------ contents

    def describe(self) -> dict[str, Any]:
        """Return the groups, their variables, and the path of the variable to show first."""
        groups: list[dict[str, Any]] = []
        remaining, total = MAX_VARIABLES, 0
        for node in self.virtual.subtree:
            dataset = node.to_dataset(inherit=False)
            names = sorted(
                dataset.variables,
                key=lambda name: (name in dataset.coords, dataset.variables[name].ndim < 2),
            )
            listed = [
                self._describe_variable(node.path, str(name), dataset) for name in names[:remaining]
            ]
            remaining, total = remaining - len(listed), total + len(names)
            attrs = describe_attributes(dataset.attrs)
            groups.append({"path": node.path, "attrs": attrs, "variables": listed})
        variables = [variable for group in groups for variable in group["variables"]]
        candidates = [v for v in variables if v["drawn"] and not v["coordinate"]] or variables
        # prefer large variables of several dimensions
        first = max(candidates, key=lambda v: (len(v["dims"]) > 1, prod(v["shape"])), default=None)
        return {
            "groups": groups,
            "more": total - len(variables),
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
            "drawn": can_be_drawn(variable.dtype) and variable.size > 0,
        }

    def describe_variable(self, path: str) -> dict[str, Any]:
        """Return attributes, chunks and files of a variable, partly as HTML."""
        group, name = self._locate(path)
        dataset = self.virtual[group].to_dataset()
        subset = dataset[[name]]
        if not self.shows_paths and name in subset.virtual.arrays:
            paths = self._shorten_urls(path)
            subset = subset.virtual.rename_paths(
                lambda url: PLACEHOLDER_FOLDER + paths.get(url, "")
            )
        arrays = subset.virtual.arrays
        return {
            "attrs": describe_attributes(dataset.variables[name].attrs),
            "group": describe_attributes(dataset.attrs),
            "strips": [str(strip) for strip in draw_strips(subset, arrays)] if arrays else [],
            "chunks": str(subset.virtual._repr_html_()) if arrays else "",
        }

    # ------------------------------------------------------------------ values

    @contextmanager
    def reserve_memory(self, nbytes: float) -> Iterator[None]:
        """Limit the memory of decoded chunks: decode only one large chunk at a time.

        Raises
        ------
        ChunkTooLargeError
            The chunk has more than `MAX_CHUNK_BYTES`.
        """
        if nbytes > MAX_CHUNK_BYTES:
            raise ChunkTooLargeError(
                f"a chunk of {nbytes / 2**20:,.0f} MiB is more than the page reads; "
                f"read it in Python"
            )
        if nbytes <= LARGE_CHUNK_BYTES:
            yield
            return
        with self._large_chunk_lock:
            yield

    def read_value(self, path: str, index: Mapping[str, int]) -> Any:
        """Return one element. Its chunk is cached if it is small."""
        variable = self.get_variable(path).variable
        box = self._find_chunk(path, index)
        if box is None or (nbytes := box.size * variable.dtype.itemsize) > MAX_CACHED_CHUNK_BYTES:
            with self.reserve_memory(0 if box is None else nbytes):
                return variable.isel({dim: index[str(dim)] for dim in variable.dims}).values[()]
        key = (path, *box.start)
        with self._chunk_lock:
            chunk = self._chunk_cache.get(key)
        if chunk is None:
            ends = zip(box.start, box.stop, strict=True)
            slices = {dim: slice(*pair) for dim, pair in zip(variable.dims, ends, strict=True)}
            chunk = variable.isel(slices).values
            with self._chunk_lock:
                self._chunk_cache[key] = chunk
                while len(self._chunk_cache) > MAX_CACHED_CHUNKS:
                    self._chunk_cache.pop(next(iter(self._chunk_cache)))
        starts = zip(variable.dims, box.start, strict=True)
        return chunk[tuple(index[str(dim)] - start for dim, start in starts)]

    def read_coordinate(self, path: str, name: str, index: Mapping[str, int]) -> Any:
        """Return the value of a coordinate of a variable at one index."""
        coordinate = self.get_variable(path).coords[name].variable
        coordinate_index = {str(dim): index[str(dim)] for dim in coordinate.dims}
        # inherited coordinates also have a path in the group
        return self.read_value(f"{path.rpartition('/')[0]}/{name}", coordinate_index)

    def _find_chunk(self, path: str, index: Mapping[str, int]) -> ChunkBox | None:
        """Return the chunk that contains an element, or None if there is none."""
        array = self.get_array(path)
        if array is None:
            return None
        position = tuple(index[str(dim)] for dim in self.get_variable(path).dims)
        for fragment in array.fragments:
            bounds = zip(fragment.start, position, fragment.stop, strict=True)
            if not all(low <= i < high for low, i, high in bounds):
                continue
            offsets = zip(position, fragment.start, strict=True)
            chunk = tuple(
                int(axis.locate(np.array([i - low]))[0])
                for axis, (i, low) in zip(fragment.axes, offsets, strict=True)
            )
            edges = [
                (axis.edges_at(np.array([n, n + 1])) + low).tolist()
                for axis, low, n in zip(fragment.axes, fragment.start, chunk, strict=True)
            ]
            starts, stops = tuple(a for a, _ in edges), tuple(b for _, b in edges)
            return ChunkBox(fragment.manifest, chunk, starts, stops)
        return None

    def find_origin(self, path: str, index: Mapping[str, int]) -> dict[str, Any]:
        """Return the file, chunk, byte range and encoding of an element.

        Examples
        --------
        >>> archive = Archive.open("2001.nc", {}, shows_paths=False)
        >>> origin = archive.find_origin("/t", {"time": 3, "lat": 0, "lon": 0})
        >>> origin["file"], origin["chunk"], origin["chunk_shape"]
        ('2001.nc', [3, 0, 0], [1, 6, 8])
        """
        array = self.get_array(path)
        if array is None:
            return {"file": None, "reason": "its values were loaded when the set was opened"}
        box = self._find_chunk(path, index)
        if box is None:
            return {
                "file": None,
                "reason": "no file has this element; it reads as the fill value",
            }
        position = [index[str(dim)] for dim in self.get_variable(path).dims]
        # np.ravel_multi_index does not accept an empty index
        shape = box.manifest.shape
        chunk_id = int(np.ravel_multi_index(box.chunk, shape)) if shape else 0
        manifest = box.manifest.at(np.array([chunk_id]))
        reference = manifest.lookup((0,))
        origin: dict[str, Any] = {
            "chunk": [*box.chunk],
            "chunk_shape": [b - a for a, b in zip(box.start, box.stop, strict=True)],
            "position": [i - a for i, a in zip(position, box.start, strict=True)],
        }
        if reference.file >= 0:
            url = without_secrets(manifest.files[reference.file].url)
            return origin | {
                "file": url if self.shows_paths else format_source_name(url),
                "offset": reference.offset,
                "length": reference.length,
                "encoding": str(array.pipelines[reference.pipeline]),
            }
        if reference.file == INLINE:
            return origin | {"file": None, "reason": "its bytes are in the set"}
        return origin | {
            "file": None,
            "reason": "the chunk is missing; it reads as the fill value",
        }

    # ------------------------------------------------------------------ names of files

    def _shorten_urls(self, path: str) -> dict[str, str]:
        """Return the path of each file of a variable below the folder that all files share."""
        array = self.get_array(path)
        sources = array.listed_sources if array is not None else ()
        file_urls = {file.url: find_file_url(file.url) for file in sources if file.url}
        hosts = dict.fromkeys(map(host_of, file_urls.values()))
        paths: dict[str, str] = {}
        for number, host in enumerate(hosts, 1):
            parts = {
                url: file_url.split("/")
                for url, file_url in file_urls.items()
                if host_of(file_url) == host
            }
            levels = zip(*(names[:-1] for names in parts.values()), strict=False)
            shared = len(list(takewhile(lambda level: len({*level}) == 1, levels)))
            # files of two hosts may have the same path
            prefix = f"{number}/" if len(hosts) > 1 else ""
            paths |= {url: prefix + "/".join(names[shared:]) for url, names in parts.items()}
        return paths


class ChunkBox(NamedTuple):
    """A chunk: its manifest, its index in the manifest, and its bounds in the array."""

    manifest: virtualds.ChunkManifest
    chunk: tuple[int, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(b - a for a, b in zip(self.start, self.stop, strict=True))


def format_source_name(url: str) -> str:
    """Return the name of a file without its folder, or the key of a chunk with its store.

    Examples
    --------
    >>> paths = ("a/2001.nc", "x.zarr/t/c/0/1", "a.b/day5")
    >>> [format_source_name(f"s3://secret/{path}") for path in paths]
    ['2001.nc', 'x.zarr/t/c/0/1', 'day5']
    """
    parts = find_file_url(url).rstrip("/").split("/")[3:]
    stores = [n for n, part in enumerate(parts) if part.endswith(".zarr")]
    return "/".join(parts[stores[-1] if stores else -1 :])


def find_file_url(url: str) -> str:
    """Return the url of a file, or of the archive of a member, without its query.

    Examples
    --------
    >>> find_file_url("zip://a.nc::https://example.org/b.zip?key=1")
    'https://example.org/b.zip'
    """
    return url.rpartition("::")[2].partition("?")[0]


def can_be_drawn(dtype: np.dtype[Any]) -> bool:
    """Return whether values of a data type can be drawn.

    Examples
    --------
    >>> [can_be_drawn(np.dtype(name)) for name in ("f4", "?", "M8[s]", "S3", "c8")]
    [True, True, True, False, False]
    """
    return dtype.kind in "biufmM"


def describe_attributes(attrs: Mapping[Any, Any]) -> list[tuple[str, str]]:
    """Return the names and values of attributes as text, shortened if they are too long."""
    return [(format_text(name), format_text(value)) for name, value in attrs.items()]


def format_text(value: Any) -> str:
    """Return a value as text without secrets, shortened if it is too long.

    Examples
    --------
    >>> format_text(np.float32([0.1, 2]))
    '0.1, 2.0'
    """
    if isinstance(value, np.ndarray | list | tuple):
        value = ", ".join(map(format_value, np.asarray(value).ravel()[:MAX_TEXT_LENGTH]))
    elif isinstance(value, np.generic):
        value = format_value(value)
    text = without_secrets(str(value))
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]} …"
