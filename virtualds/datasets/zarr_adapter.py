"""Adapt virtual arrays to a zarr-python store; the only module here that imports zarr.

The coroutines that zarr-python calls run blocking work in threads.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import zarr
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.storage import MemoryStore, StorePath

from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.open_options import OPEN_DEFAULTS, OpenOptions
from virtualds.errors import UnsupportedError
from virtualds.formats.zarr_export import PLAIN, WHOLE_CHUNK, DecodedArray, ZarrForm, ZarrView
from virtualds.source_file import StorageOptions

if TYPE_CHECKING:
    from zarr.core.buffer import Buffer, BufferPrototype

KEYS_PER_STEP = 4096
"""The number of keys that one step in a thread lists."""
READ_ONLY = "does not support writing; write references with ds.virtual.to_manifest"
UNSUPPORTED_METADATA_ERRORS = (ValueError, TypeError, KeyError, NotImplementedError, ImportError)
"""Errors that zarr-python and its codecs raise for metadata that they do not support."""


class StoreOrigin(NamedTuple):
    """The origin of the content of a store; stores of the same origin are equal."""

    url: str
    options: StorageOptions | None = None
    opening: OpenOptions = OPEN_DEFAULTS
    form: ZarrForm = PLAIN


class VirtualStore(Store):
    """A read-only store of zarr-python that shows a group of virtual arrays."""

    def __init__(self, view: ManifestGroup | ZarrView, origin: StoreOrigin) -> None:
        super().__init__(read_only=True)
        if isinstance(view, ManifestGroup):
            objection = None if origin.form.is_common else find_objection
            view = ZarrView.of(view, objection, origin.form)
        self._view = view
        self._origin = origin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VirtualStore) and self._origin == other._origin

    def __hash__(self) -> int:
        return hash((type(self), self._origin))

    def __str__(self) -> str:
        return self._origin.url

    def __repr__(self) -> str:
        return f"<VirtualStore {self._origin.url}: {len(self._view.arrays)} arrays>"

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        from dask.base import normalize_token

        return ("virtualds", *normalize_token((self._origin, *self._view.token)))

    def with_read_only(self, read_only: bool = False) -> VirtualStore:
        """Return a new store with the same content; raises an error unless ``read_only``."""
        if not read_only:
            raise UnsupportedError(f"{self}: this store {READ_ONLY}")
        return VirtualStore(self._view, self._origin)

    @property
    def decoded(self) -> tuple[str, ...]:
        """Paths of the arrays whose chunks the store decodes."""
        return tuple(
            path for path, array in self._view.arrays.items() if isinstance(array, DecodedArray)
        )

    @property
    def count(self) -> int:
        """The number of arrays."""
        return len(self._view.arrays)

    @property
    def problems(self) -> dict[str, UnsupportedError]:
        """The errors of arrays that Zarr cannot represent, by path."""
        arrays = self._view.arrays.items()
        return {path: array for path, array in arrays if isinstance(array, UnsupportedError)}

    # ------------------------------------------------------------------ reading

    def read(self, key: str, byte_slice: slice = WHOLE_CHUNK) -> bytes | None:
        """Return the bytes of a key, or a slice of them: the synchronous form of `get`."""
        return self._view.get(key, byte_slice)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the bytes of a key, or a range of them; None if there is no such key.

        Raises `ReadError` for a chunk that cannot be read, and `UnsupportedError` for the metadata
        of an array that Zarr cannot represent.
        """
        data = await asyncio.to_thread(self.read, key, _to_slice(byte_range))
        return None if data is None else prototype.buffer.from_bytes(data)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Return the bytes of several keys, or ranges of them."""
        return await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges))

    async def exists(self, key: str) -> bool:
        """Return whether a key exists."""
        return await asyncio.to_thread(self._view.exists, key)

    async def getsize(self, key: str) -> int:
        """Return the number of bytes of a key, without fetching unchanged chunks.

        Raises `FileNotFoundError` if there is no such key.
        """
        size = await asyncio.to_thread(self._view.get_size, key)
        if size is None:
            raise FileNotFoundError(key)
        return size

    # ------------------------------------------------------------------ listing

    @property
    def supports_listing(self) -> bool:
        """Whether keys can be listed: True."""
        return True

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys; missing chunks have none."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield all keys that begin with a prefix."""
        async for key in _iterate_in_threads(self._view.iterate_keys(prefix)):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names directly below a path."""
        async for name in _iterate_in_threads(self._view.iterate_names(prefix)):
            yield name

    # ------------------------------------------------------------------ refusal of writes

    @property
    def supports_writes(self) -> bool:
        """Whether the store can be written to: False."""
        return False

    @property
    def supports_deletes(self) -> bool:
        """Whether keys can be deleted: False."""
        return False

    @property
    def supports_partial_writes(self) -> Literal[False]:
        """Whether parts of values can be written: False."""
        return False

    async def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        """Raise the error of zarr-python's own stores."""
        raise ValueError(f"{self}: store was opened in read-only mode and {READ_ONLY}")

    set = set_if_not_exists = set_partial_values = delete = delete_dir = clear = _refuse


def find_objection(metadata: Mapping[str, Any]) -> str | None:
    """Return the reason why this zarr-python cannot read an array, or None if it can."""
    try:
        with warnings.catch_warnings():
            # opening the array will raise the same error
            warnings.simplefilter("ignore")
            zarr.AsyncArray.from_dict(StorePath(MemoryStore()), dict(metadata))
    except UNSUPPORTED_METADATA_ERRORS as error:
        return f"zarr-python {zarr.__version__} cannot read it ({error}); read it with virtualds"
    return None


def _to_slice(request: ByteRequest | None) -> slice:
    """Return the slice of bytes that a request asks for."""
    if request is None:
        return slice(None)
    if isinstance(request, RangeByteRequest):
        return slice(request.start, request.end)
    if isinstance(request, OffsetByteRequest):
        return slice(request.offset, None)
    if isinstance(request, SuffixByteRequest):
        return slice(-request.suffix, None) if request.suffix else slice(0, 0)
    raise TypeError(
        f"byte_range={request!r}: give a RangeByteRequest(start, end), OffsetByteRequest(offset) "
        f"or SuffixByteRequest(suffix) of zarr.abc.store, or None for all bytes"
    )


async def _iterate_in_threads(names: Iterator[str]) -> AsyncIterator[str]:
    """Yield from an iterator that runs in a thread, since it may read references."""
    while batch := await asyncio.to_thread(lambda: list(islice(names, KEYS_PER_STEP))):
        for name in batch:
            yield name
