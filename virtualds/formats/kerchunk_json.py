"""kerchunk references in JSON: read versions 0 and 1, write version 1.

kerchunk documentation, "References specification". A reference set is a Zarr v2 hierarchy as one
JSON object: keys of the store to text, ``base64:`` text, JSON values, ``[url]`` or
``[url, offset, length]``.

What JSON cannot say of netCDF data (the types of numbers in attributes, fingerprints of source
files) is written under a top-level key of its own, `EXTRA`, which other readers pass over.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import recfunctions

from virtualds.array import ManifestArray, same_scalar
from virtualds.codec import NO_FILTERS
from virtualds.errors import (
    AccessError,
    FormatError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
)
from virtualds.fragment import CodecPipeline
from virtualds.group import ManifestGroup, ManifestVariable
from virtualds.json_attributes import from_json, to_json
from virtualds.manifest import INLINE, MISSING, ChunkManifest, SourceFile, StorageOptions
from virtualds.stores import store_for
from virtualds.urls import join_url, normalise_url, scheme_of
from virtualds.zarr_metadata import (
    ZarrArray,
    array_from_zarr_v2,
    check_zarr_v2,
    chunk_grid,
    dtype_from_zarr_v2,
    dtype_to_zarr_v2,
    fill_from_zarr_v2,
    fill_to_attribute,
    fill_to_zarr_v2,
    obstacles,
    storage_encoding,
    to_zarr_v2,
)

EXTRA = "virtualds"
DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute of a Zarr v2 array that xarray reads its dimensions from."""
MOST_INLINE = 2**20
"""Bytes that missing chunks of one array may take when they have to be written out."""
COMPACT_JSON: dict[str, Any] = {"separators": (",", ":"), "allow_nan": False}


def detect(head: bytes) -> bool:
    """Say whether a file that begins with ``head`` may be a reference set in JSON."""
    text = head.lstrip()
    return text.startswith(b"{") and (
        b'"refs"' in text or b'".zgroup"' in text or b"/.zarray" in text or b'"version"' in text
    )


# ---------------------------------------------------------------------- reading


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read a reference set.

    Parameters
    ----------
    source : SourceFile
        The JSON file.
    group : str, optional
        Path of a group; the root group by default.
    skip : iterable of str
        Names of variables to leave out.

    Raises
    ------
    FormatError
        It is no JSON, or no reference set.
    UnsupportedError
        It uses a codec that is not known, ``gen``, or templates with arguments.
    AccessError
        A remote set refers to local files.
    """
    raw = store_for(source.url).read_all(source.url, source.options)
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise FormatError(
            f"{source.url}: it is no JSON ({error}); a reference set was expected"
        ) from error
    try:
        refs, extra = _unfold(document, source.url)
        return _Reader(source, refs, extra, frozenset(skip)).tree(group)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, VirtualdsError):
            raise
        raise FormatError(
            f"{source.url}: its metadata or references are not of the form that the specification "
            f"lays down ({type(error).__name__}: {error}); the set is damaged, write it anew"
        ) from error


def _unfold(document: Any, url: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the references of a document of either version, templates put in."""
    if not isinstance(document, dict):
        raise FormatError(
            f"{url}: a reference set is a JSON object, found {type(document).__name__}"
        )
    if "version" not in document:
        return document, {}
    if document["version"] not in (0, 1) or not isinstance(document.get("refs"), dict):
        raise FormatError(
            f"{url}: version {document['version']!r} with keys {sorted(document)}; versions 0 and "
            f"1 with 'refs' are known"
        )
    if document.get("gen"):
        raise UnsupportedError(f"{url}: 'gen' is not read yet; expand it with fsspec first")
    templates = document.get("templates") or {}
    refs = document["refs"]
    if templates:
        refs = {key: _fill_in(value, templates, url) for key, value in refs.items()}
    return refs, document.get(EXTRA) or {}


def _fill_in(value: Any, templates: Mapping[str, str], url: str) -> Any:
    """Put plain templates into the url of a reference."""
    if not isinstance(value, list) or "{{" not in value[0]:
        return value
    target = value[0]
    for name, text in templates.items():
        target = target.replace("{{" + name + "}}", text)
    if "{{" in target or "{{" in "".join(templates.values()):
        raise UnsupportedError(f"{url}: the template {value[0]!r} takes arguments; not read yet")
    return [target, *value[1:]]


class _Reader:
    """The references of one document, sorted by array."""

    def __init__(
        self,
        source: SourceFile,
        refs: Mapping[str, Any],
        extra: Mapping[str, Any],
        skip: frozenset[str],
    ) -> None:
        self.source = source
        self.extra = extra
        self.skip = skip
        self.metadata: dict[str, Any] = {}
        self.chunks: dict[str, list[tuple[str, Any]]] = {}
        self.files: dict[str, SourceFile] = {}
        for key, value in refs.items():
            leaf = key.rpartition("/")[2]
            if leaf.startswith(".z"):
                self.metadata[key] = _parsed(key, value, source.url)
            else:
                folder, _, name = key.rpartition("/")
                self.chunks.setdefault(folder, []).append((name, value))
        consolidated = self.metadata.pop(".zmetadata", {})
        self.metadata = consolidated.get("metadata", {}) | self.metadata
        if not self.metadata:
            raise FormatError(f"{source.url}: no Zarr metadata among its keys; no reference set")
        self._move_nested_chunks()

    def _move_nested_chunks(self) -> None:
        """Bring chunks under keys with slashes ("dimension_separator") to their array."""
        arrays = {key.removesuffix("/.zarray") for key in self.metadata if key.endswith("/.zarray")}
        for folder in [f for f in self.chunks if f not in arrays]:
            owner = folder
            while owner and owner not in arrays:
                owner = owner.rpartition("/")[0]
            rest = folder[len(owner) + 1 :].replace("/", ".")
            moved = [(f"{rest}.{name}", value) for name, value in self.chunks.pop(folder)]
            if owner:
                self.chunks.setdefault(owner, []).extend(moved)

    def tree(self, path: str | None) -> ManifestGroup:
        """Return the group at a path with everything below it."""
        root = self._group("")
        return root.group(path)

    def _group(self, path: str) -> ManifestGroup:
        prefix = f"{path}/" if path else ""
        arrays: list[str] = []
        children: dict[str, None] = {}
        for key in self.metadata:
            name, slash, rest = key.removeprefix(prefix).partition("/")
            if not key.startswith(prefix) or not slash:
                continue
            if rest == ".zarray":
                arrays.append(name)
            elif (
                rest not in (".zattrs", ".zgroup") or f"{prefix}{name}/.zarray" not in self.metadata
            ):
                children[name] = None
        variables = {}
        for name in arrays:
            if name in self.skip:
                continue
            try:
                variables[name] = self._variable(prefix + name)
            except VirtualdsError as error:
                error.add_note(f"variable {prefix}{name} of {self.source.url}")
                raise
        extra = self._extra("groups", path)
        groups = {name: self._group(prefix + name) for name in children if name not in arrays}
        encoding = {"unlimited_dims": set(extra.get("unlimited_dims", ()))}
        try:
            return ManifestGroup(variables, self._attributes(path, extra), groups, encoding)
        except FormatError as error:
            error.add_note(f"group /{path} of {self.source.url}")
            raise

    def _extra(self, kind: str, path: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.extra.get(kind, {}).get(path, {})
        return found

    def _attributes(self, path: str, extra: Mapping[str, Any]) -> dict[str, Any]:
        found = self.metadata.get(f"{path}/.zattrs" if path else ".zattrs", {})
        types = extra.get("attributes", {})
        return {name: from_json(value, types.get(name)) for name, value in found.items()}

    def _variable(self, path: str) -> ManifestVariable:
        metadata = self.metadata[f"{path}/.zarray"]
        check_zarr_v2(metadata)
        extra = self._extra("arrays", path)
        attributes = self._attributes(path, extra)
        dims = attributes.pop(DIMENSIONS, None)
        if dims is None:
            dims = [f"dim_{n}" for n in metadata["shape"]]
        dims = tuple(dims)
        if len(dims) != len(metadata["shape"]):
            raise FormatError(f"dimensions {dims} for an array of shape {metadata['shape']}")
        dtype = np.dtype(str(metadata["dtype"])) if metadata["dtype"] == "|O" else None
        if dtype is not None:
            values = self._objects(path, metadata)
            encoding = {"dtype": str, "original_shape": values.shape}
            return ManifestVariable(dims, values, attributes, encoding)
        array = array_from_zarr_v2(metadata, self._manifest(path, metadata))
        fill = fill_from_zarr_v2(metadata.get("fill_value"), array.dtype)
        if fill is not None:
            # as xarray reads Zarr v2: its fill value is the netCDF attribute, whatever that says
            attributes["_FillValue"] = fill
        encoding = self._encoding(array, dims, extra)
        return ManifestVariable(dims, array, attributes, encoding)

    def _encoding(
        self, array: ManifestArray, dims: tuple[str, ...], extra: Mapping[str, Any]
    ) -> dict[str, Any]:
        found = storage_encoding(array, dims)
        found |= extra.get("encoding", {})
        if found["contiguous"]:
            found["chunksizes"] = None
            found.pop("preferred_chunks", None)
        found["dtype"] = array.dtype
        if "enum" in extra:
            found["dtype"] = np.dtype(array.dtype, metadata=dict(extra["enum"]))
        if "least_significant_digit" in extra:
            found["least_significant_digit"] = extra["least_significant_digit"]
        return found | {"source": self.source.url, "original_shape": array.shape}

    def _manifest(self, path: str, metadata: Mapping[str, Any]) -> ChunkManifest:
        grid = chunk_grid(metadata)
        rows = self.chunks.get(path, [])
        if not rows:
            return ChunkManifest.missing(grid)
        flat = _flat_ids([name for name, _ in rows], grid, path)
        inline: list[bytes] = []
        table: dict[str, int] = {}
        file, offset, length = [], [], []
        for name, value in rows:
            if isinstance(value, list):
                if len(value) not in (1, 3) or not isinstance(value[0], str):
                    raise FormatError(
                        f"{path}/{name}: {value} is neither [url] nor [url, offset, length]"
                    )
                url, begin, size = value if len(value) == 3 else (*value, 0, self._size(value[0]))
                file.append(table.setdefault(url, len(table)))
            else:
                inline.append(_bytes(value))
                begin, size = len(inline) - 1, len(inline[-1])
                file.append(INLINE)
            offset.append(begin)
            length.append(size)
        columns = {"file": (file, MISSING), "offset": (offset, 0), "length": (length, 0)}
        return ChunkManifest.build(
            grid,
            files=[self._file(url) for url in table],
            inline=inline,
            **{name: _spread(values, flat, grid, rest) for name, (values, rest) in columns.items()},
        )

    def _size(self, url: str) -> int | None:
        """Return the length of a file that is a chunk as a whole."""
        file = self._file(url)
        if file.size is not None:
            return file.size
        try:
            return store_for(file.url).describe(file.url, file.options).size
        except OSError as error:
            raise _unreachable(file.url, error) from error

    def _file(self, url: str) -> SourceFile:
        """Return the file that a url of the set means, with the fingerprint noted for it."""
        if url not in self.files:
            absolute = _resolve(url, self.source.url)
            noted = self.extra.get("files", {}).get(url)
            options = _options_for(absolute, self.source)
            if noted is not None:
                size, mtime, etag = noted
                self.files[url] = SourceFile(absolute, size, mtime, etag, options)
            else:
                self.files[url] = SourceFile(absolute, options=options)
        return self.files[url]

    def _objects(self, path: str, metadata: Mapping[str, Any]) -> npt.NDArray[Any]:
        """Decode strings of varying length (filter ``vlen-utf8``), which are held inline."""
        import numcodecs

        filters = metadata.get("filters") or []
        if [f.get("id") for f in filters] != ["vlen-utf8"]:
            raise UnsupportedError(f"objects encoded with {filters}; only vlen-utf8 is read")
        kind = np.dtype("O", metadata={"element_type": str})
        values = np.full(metadata["shape"], "", kind)
        chunks = metadata["chunks"]
        compressor = metadata.get("compressor")
        for name, value in self.chunks.get(path, []):
            data = _bytes(value) if isinstance(value, str) else self._fetch(value)
            if compressor is not None:
                data = numcodecs.get_codec(compressor).decode(data)
            block = numcodecs.VLenUTF8().decode(data).reshape(chunks)
            place = [int(i) * c for i, c in zip(name.split("."), chunks, strict=False)]
            box = tuple(
                slice(p, min(p + c, n))
                for p, c, n in zip(place, chunks, values.shape, strict=False)
            )
            values[box] = block[tuple(slice(0, b.stop - b.start) for b in box)]
        return values

    def _fetch(self, value: list[Any]) -> bytes:
        file = self._file(value[0])
        try:
            if len(value) == 1:
                return store_for(file.url).read_all(file.url, file.options)
            return store_for(file.url).get_ranges(file, [(value[1], value[2])])[0]
        except OSError as error:
            raise _unreachable(file.url, error) from error


def _unreachable(url: str, error: OSError) -> ReadError:
    return ReadError(f"{url}: it is referred to, but cannot be read ({error}); restore the file")


def _parsed(key: str, value: Any, url: str) -> Any:
    """Return metadata, which stand as text or as JSON."""
    try:
        return json.loads(_bytes(value)) if isinstance(value, str) else value
    except ValueError as error:
        raise FormatError(f"{url}: key {key!r} holds no JSON ({error})") from error


def _bytes(value: Any) -> bytes:
    """Return an inline value as bytes."""
    if not isinstance(value, str):
        return json.dumps(value).encode()
    if not value.startswith("base64:"):
        return value.encode()
    try:
        return base64.b64decode(value[len("base64:") :], validate=True)
    except ValueError as error:
        raise FormatError(f"inline value {value[:20]!r}: it is no base64 ({error})") from error


def _flat_ids(names: list[str], grid: tuple[int, ...], path: str) -> npt.NDArray[np.int64]:
    """Return the flat C-order number of every chunk key."""
    rank = max(len(grid) - 1, 0)
    # VirtualiZarr calls the only chunk of a scalar ""
    if odd := [n for n in names if n.count(".") != rank or (not grid and n not in ("0", ""))]:
        raise FormatError(f"{path}: chunk key {odd[0]!r} is no index of a grid {grid}")
    if not grid:
        return np.zeros(len(names), np.int64)
    try:
        numbers = np.array(".".join(names).split("."), dtype=np.int64).reshape(-1, len(grid))
    except ValueError as error:
        raise FormatError(f"{path}: a chunk key is no index of a grid {grid} ({error})") from error
    if len(numbers) != len(names) or (numbers >= np.array(grid)).any() or (numbers < 0).any():
        raise FormatError(f"{path}: a chunk key lies outside the grid {grid}")
    flat = np.asarray(np.ravel_multi_index(tuple(numbers.T), grid), np.int64)
    seen = np.zeros(prod(grid), bool)
    seen[flat] = True
    if np.count_nonzero(seen) != flat.size:
        raise FormatError(f"{path}: two keys stand for one chunk")
    return flat


def _spread(
    values: list[int], flat: npt.NDArray[np.int64], grid: tuple[int, ...], rest: int
) -> npt.NDArray[np.int64]:
    column = np.full(prod(grid), rest, np.int64)
    given = np.asarray(values)
    if given.dtype.kind != "i":
        odd = next(v for v in values if type(v) is not int or abs(v) >= 2**63)
        raise FormatError(f"offset or length {odd!r}: it is no integer of 64 bits")
    column[flat] = given
    return column.reshape(grid)


def _resolve(url: str, base: str) -> str:
    """Return a url of the set as an absolute one, refusing local files behind a remote set."""
    relative = scheme_of(url) == "file" and "://" not in url and not url.startswith("/")
    absolute = join_url(base, url) if relative else normalise_url(url)
    if _is_local(absolute) and scheme_of(base) != "file":
        raise AccessError(
            f"{base}: it refers to the local file {absolute}, which a remote set may not; copy the "
            f"set to local disk if you trust it"
        )
    return absolute


def _is_local(url: str) -> bool:
    """Say whether a url leads to local files, behind a chain of fsspec's filesystems too."""
    *outer, last = url.split("::")
    return scheme_of(last) == "file" or any(scheme_of(f"{part}://") == "file" for part in outer)


def _options_for(url: str, source: SourceFile) -> StorageOptions | None:
    """Pass access options on to remote files, but never to a host that the user did not name."""
    if source.options is None or scheme_of(url) == "file":
        return None
    host = url.split("/", 3)[:3]
    local = scheme_of(source.url) == "file"
    return source.options if local or host == source.url.split("/", 3)[:3] else None


# ---------------------------------------------------------------------- writing


def write(
    group: ManifestGroup, url: str, options: StorageOptions | None = None, *, replace: bool = True
) -> None:
    """Write a reference set: all of it, or nothing.

    Parameters
    ----------
    group : ManifestGroup
    url : str
        Of the JSON file.
    options : StorageOptions, optional
        Access options of the target.
    replace : bool
        Whether an existing file may be replaced.

    Raises
    ------
    UnsupportedError
        Variables that Zarr v2 metadata cannot describe; all of them are named.
    FileExistsError
        The file exists and may not be replaced.
    """
    _refuse(group, url)
    writer = _Writer()
    for path, part in group.walk():
        writer.add_group(path, part)
    store_for(url).write_all(url, writer.document().encode(), options, replace=replace)


def _refuse(group: ManifestGroup, url: str) -> None:
    """Refuse before anything is written, naming every variable that does not fit."""
    problems = [
        f"  {f'{path}/{name}' if path else name}: {reason}"
        for path, part in group.walk()
        for name, variable in part.variables.items()
        if isinstance(variable.data, ManifestArray)
        for reason in obstacles(variable.data)
    ]
    if problems:
        raise UnsupportedError(
            f"{url}: kerchunk-json cannot hold {len(problems)} properties of this dataset:\n"
            + "\n".join(problems)
            + "\nload these variables before writing (ds.virtual.load()), leave them out "
            "(ds.drop_vars), or write the files that differ to sets of their own"
        )


class _Writer:
    """Collects the keys of a reference set; chunk references as ready JSON text."""

    def __init__(self) -> None:
        self.refs: dict[str, Any] = {}
        self.chunks: list[str] = []
        self.files: dict[str, list[Any]] = {}
        self.extra: dict[str, dict[str, Any]] = {"groups": {}, "arrays": {}}

    def add_group(self, path: str, group: ManifestGroup) -> None:
        prefix = f"{path}/" if path else ""
        self.refs[f"{prefix}.zgroup"] = {"zarr_format": 2}
        attributes, types = to_json(group.attributes)
        self.refs[f"{prefix}.zattrs"] = attributes
        extra: dict[str, Any] = {"attributes": types} if types else {}
        if unlimited := sorted(group.encoding.get("unlimited_dims", ())):
            extra["unlimited_dims"] = unlimited
        if extra:
            self.extra["groups"][path] = extra
        for name, variable in group.variables.items():
            try:
                self._add_variable(prefix + name, variable)
            except UnsupportedError as error:
                error.add_note(f"variable {prefix}{name}")
                raise

    def _add_variable(self, path: str, variable: ManifestVariable) -> None:
        attributes = dict(variable.attributes)
        if isinstance(variable.data, ManifestArray):
            metadata = self._add_array(path, variable.data, attributes)
        else:
            metadata = self._add_values(path, variable.read())
        fill = attributes.get("_FillValue")
        dtype = dtype_from_zarr_v2(metadata["dtype"])
        settled = fill is not None and metadata["fill_value"] is None and _is_exact(fill, dtype)
        if settled:
            metadata["fill_value"] = fill_to_zarr_v2(fill, dtype)
            # xarray takes the fill value of Zarr v2 for it; who turns v2 into v3 looks here
            attributes["_FillValue"] = fill_to_attribute(fill, dtype)
        plain, types = to_json(attributes)
        if settled:
            types.pop("_FillValue", None)
        self.refs[f"{path}/.zarray"] = metadata
        self.refs[f"{path}/.zattrs"] = plain | {DIMENSIONS: list(variable.dims)}
        extra = _declared(variable) | ({"attributes": types} if types else {})
        if extra:
            self.extra["arrays"][path] = extra

    def _add_array(
        self, path: str, array: ManifestArray, attributes: Mapping[str, Any]
    ) -> dict[str, Any]:
        found = to_zarr_v2(array)
        manifest = found.manifest
        self.chunks += self._references(path, manifest)
        for chunk_id in np.argwhere(manifest.file == INLINE):
            data = manifest.inline[int(manifest.offset[tuple(chunk_id)])]
            self.refs[f"{path}/{_key(chunk_id)}"] = _base64(data)
        # an attribute of another dtype stays an attribute: it fills nothing
        known = attributes.get("_FillValue")
        known = known if _is_exact(known, found.pipeline.dtype) else None
        if not _reads_as(found.pipeline.fill_value, known):
            self._write_out_missing(path, found)
        return found.metadata

    def _write_out_missing(self, path: str, array: ZarrArray) -> None:
        """Hold missing chunks inline where readers of Zarr v2 would fill them with another value.

        They take ``fill_value`` for the attribute ``_FillValue``; the fill value of HDF5 is none.
        """
        missing = np.argwhere(array.manifest.file == MISSING)
        if not missing.size and array.manifest.shape:
            return
        chunk = np.full(array.metadata["chunks"], array.pipeline.fill_value, array.pipeline.dtype)
        data = _encoded(chunk.tobytes(), array.pipeline)
        if len(missing) * len(data) > MOST_INLINE:
            raise UnsupportedError(
                f"{len(missing)} chunks are missing and read as {array.pipeline.fill_value}, which "
                f"is not its _FillValue; kerchunk-json has no place for such a fill value"
            )
        for chunk_id in missing:
            self.refs[f"{path}/{_key(chunk_id)}"] = _base64(data)

    def _references(self, path: str, manifest: ChunkManifest) -> Iterator[str]:
        """Yield every reference into a file as a JSON member."""
        heads = [f"[{json.dumps(self._note(file))}," for file in manifest.files]
        prefix = json.dumps(path)[:-1] + "/"
        keys = map(".".join, product(*(map(str, range(n)) for n in manifest.shape)))
        columns = (manifest.file, manifest.offset, manifest.length)
        rows = zip(keys, *(c.ravel().tolist() for c in columns), strict=True)
        return (
            f'{prefix}{key or "0"}":{heads[file]}{offset},{length}]'
            for key, file, offset, length in rows
            if file >= 0
        )

    def _note(self, file: SourceFile) -> str:
        """Note the fingerprint of a file, and return how it is called in the set."""
        found = [file.size, file.mtime, file.etag]
        if self.files.setdefault(file.url, found) != found:
            raise UnsupportedError(
                f"{file.url}: it was scanned twice and had changed in between (size, time, etag "
                f"{self.files[file.url]} and {found}); scan it again"
            )
        return file.url

    def _add_values(self, path: str, values: npt.NDArray[Any]) -> dict[str, Any]:
        """Hold values inline, as one chunk."""
        if values.dtype.names:
            values = _without_gaps(values)
        metadata: dict[str, Any] = {
            "zarr_format": 2,
            "shape": list(values.shape),
            "chunks": [max(n, 1) for n in values.shape],
            "dtype": dtype_to_zarr_v2(values.dtype),
            "compressor": None,
            "filters": None,
            "fill_value": None,
            "order": "C",
            "dimension_separator": ".",
        }
        data = values.tobytes()
        if values.dtype.kind in "OUT":
            metadata |= {"dtype": "|O", "filters": [{"id": "vlen-utf8"}]}
            data = _encode_strings(values)
        if values.size:
            self.refs[f"{path}/{_key([0] * values.ndim)}"] = _base64(data)
        return metadata

    def document(self) -> str:
        """Return the whole set as strict JSON."""
        members = [
            f"{json.dumps(key)}:{json.dumps(_as_text(value), **COMPACT_JSON)}"
            for key, value in self.refs.items()
        ]
        extra = {"files": self.files} | {name: part for name, part in self.extra.items() if part}
        body = ",\n".join(members + self.chunks)
        noted = json.dumps(extra, **COMPACT_JSON)
        return f'{{"version":1,"refs":{{\n{body}\n}},"{EXTRA}":{noted}}}\n'


def _as_text(value: Any) -> str:
    """Return metadata as the JSON text that older readers expect inside the JSON."""
    return value if isinstance(value, str) else json.dumps(value, **COMPACT_JSON)


def _key(chunk_id: Iterable[Any]) -> str:
    return ".".join(str(int(i)) for i in chunk_id) or "0"


def _encoded(data: bytes, pipeline: CodecPipeline) -> bytes:
    """Encode the bytes of one chunk."""
    import numcodecs

    for codec in pipeline.codecs:
        data = bytes(numcodecs.get_codec(codec.to_zarr_v2()).encode(data))
    return data


def _base64(data: bytes) -> str:
    return "base64:" + base64.b64encode(data).decode()


def _without_gaps(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values of a compound type without bytes between its members."""
    if values.dtype.hasobject:
        raise UnsupportedError(
            f"its members {values.dtype} hold strings or arrays of varying length, for which "
            f"kerchunk-json has no form; leave the variable out with ds.drop_vars"
        )
    return recfunctions.repack_fields(values, recurse=True)


def _encode_strings(values: npt.NDArray[Any]) -> bytes:
    import numcodecs

    texts = values.astype(object)
    if bad := [t for t in texts.ravel().tolist() if not isinstance(t, str)]:
        raise UnsupportedError(
            f"it holds {bad[0]!r} among its strings; only strings can be written"
        )
    return bytes(numcodecs.VLenUTF8().encode(texts.ravel()))


def _declared(variable: ManifestVariable) -> dict[str, Any]:
    """Return what of an encoding cannot be derived from the metadata."""
    found: dict[str, Any] = {}
    encoding = variable.encoding
    if NO_FILTERS.keys() <= encoding.keys() and not variable.data.dtype.hasobject:
        found = _storage(variable)
    enum = getattr(encoding.get("dtype"), "metadata", None)
    if enum and "enum" in enum:
        members = {name: int(value) for name, value in enum["enum"].items()}
        found["enum"] = {"enum": members, "enum_name": enum.get("enum_name")}
    if "least_significant_digit" in encoding:
        found["least_significant_digit"] = int(encoding["least_significant_digit"])
    return found


def _storage(variable: ManifestVariable) -> dict[str, Any]:
    """Return how the source stores values, where the references do not show it."""
    encoding, data = variable.encoding, variable.data
    if not isinstance(data, ManifestArray):
        data = ManifestArray.from_values(np.empty(data.shape, data.dtype))
    # HDF5 skips a filter that does not make a chunk smaller, so that no chunk may show it
    derived = storage_encoding(data, variable.dims)
    names = (*NO_FILTERS, "contiguous") if data.nchunks <= 1 else NO_FILTERS
    differing = {n: encoding[n] for n in names if encoding.get(n) != derived[n]}
    return {"encoding": differing} if differing else {}


def _is_exact(fill: Any, dtype: np.dtype[Any]) -> bool:
    """Say whether a fill value has the dtype of its array, so that nothing is lost."""
    return np.ndim(fill) == 0 and np.asarray(fill).dtype == dtype.newbyteorder("=")


def _reads_as(fill: Any, attribute: Any) -> bool:
    """Say whether missing chunks read alike for a reader that knows only the attribute."""
    if attribute is None:
        return bool(fill == np.zeros((), np.asarray(fill).dtype))
    return same_scalar(fill, attribute)
