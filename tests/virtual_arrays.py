"""Virtual arrays made from values, and stores that watch what is read of them."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from virtualds import ChunkAxis, ChunkManifest, CodecPipeline, Fragment, ManifestArray
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.codec import Codec
from virtualds.source_file import SourceFile, compute_checksum
from virtualds.stores import STORES
from virtualds.stores.local import LocalStore
from virtualds.stores.store import Range

PLAIN: tuple[dict[str, Any], ...] = ()
ZLIB = ({"id": "zlib", "level": 1},)
SHUFFLED = ({"id": "shuffle", "elementsize": 0}, {"id": "zlib", "level": 1})
"""A zero element size stands for that of the dtype."""

_numbers = itertools.count()


def codecs_for(configs: Sequence[dict[str, Any]], dtype: np.dtype[Any]) -> tuple[Codec, ...]:
    """The codecs of configurations, element sizes filled in."""
    sized = [
        config | {"elementsize": dtype.itemsize} if config.get("elementsize") == 0 else config
        for config in configs
    ]
    return tuple(map(codec_from_zarr_v2, sized))


def encode(data: bytes, codecs: Sequence[Codec]) -> bytes:
    """What numcodecs makes of bytes."""
    for codec in codecs:
        data = bytes(numcodecs.get_codec(codec.to_zarr_v2()).encode(data))
    return data


def virtual(
    values: np.ndarray[Any, Any],
    folder: Path,
    *,
    chunks: Sequence[int] | None = None,
    codecs: Sequence[dict[str, Any]] = PLAIN,
    inline: Sequence[int] = (),
    missing: Sequence[int] = (),
    reverse_layout: bool = False,
    padding: Any = 77,
    name: str = "v",
    checksums: bool = False,
) -> ManifestArray:
    """Write values in chunks to a new file of ``folder`` and refer to them.

    Edge chunks are padded with ``padding``. ``inline`` and ``missing`` are flat chunk numbers; the
    caller sets missing chunks to zero in the values that it expects.
    """
    values = np.asarray(values)
    chunks = tuple(max(n, 1) for n in values.shape) if chunks is None else tuple(chunks)
    axes = tuple(ChunkAxis.regular(n, c) for n, c in zip(values.shape, chunks, strict=True))
    grid = tuple(axis.nchunks for axis in axes)
    used = codecs_for(codecs, values.dtype)
    file, offset, length, checksum = (np.zeros(grid, np.int64) for _ in range(4))
    held: list[bytes] = []
    path = folder / f"{next(_numbers)}.bin"
    with path.open("wb") as out:
        out.write(b"header")
        for number, where in enumerate(np.ndindex(grid)):
            box = tuple(slice(i * c, (i + 1) * c) for i, c in zip(where, chunks, strict=True))
            chunk = np.full(chunks, padding, values.dtype)
            part = values[box]
            chunk[tuple(slice(0, n) for n in part.shape)] = part
            data = encode((chunk.T if reverse_layout else chunk).tobytes(), used)
            length[where] = len(data)
            if checksums:
                checksum[where] = compute_checksum(data)
            if number in missing:
                file[where] = MISSING
            elif number in inline:
                file[where], offset[where] = INLINE, len(held)
                held.append(data)
            else:
                offset[where] = out.tell()
                out.write(data)
    source = LocalStore().describe(f"file://{path}", None)
    manifest = ChunkManifest.build(
        grid,
        files=[source],
        file=file,
        offset=offset,
        length=length,
        checksum=checksum,
        inline=held,
    )
    order = tuple(range(values.ndim))
    pipeline = CodecPipeline(
        values.dtype, codecs=used, layout=order[::-1] if reverse_layout else order
    )
    return ManifestArray.from_fragment(
        Fragment((0,) * values.ndim, axes, manifest), pipeline, name=name
    )


def path_of(array: ManifestArray, number: int = 0) -> Path:
    """The file that a virtual array lies in."""
    return Path(array.sources[number].url.removeprefix("file://"))


# ---------------------------------------------------------------------- watching


class CountingStore(LocalStore):
    """Local files, and a note of every range that was read of them, and of what it was read into.

    That is noted of arrays only: others are memory that a thread keeps.
    """

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.targets: list[np.ndarray[Any, Any]] = []

    @property
    def nbytes(self) -> int:
        return sum(length for _, length in self.ranges)

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        self.ranges += ranges
        return super().get_ranges(file, ranges)

    def read_into(self, file: SourceFile, ranges: Sequence[Range], targets: Sequence[Any]) -> None:
        self.ranges += ranges
        self.targets += [target for target in targets if isinstance(target, np.ndarray)]
        super().read_into(file, ranges, targets)


class ForbiddenStore(LocalStore):
    """Local files that nobody may read."""

    def get_ranges(self, file: SourceFile, ranges: Sequence[Range]) -> Sequence[bytes]:
        raise AssertionError(f"{file.url} was read")

    def read_into(self, file: SourceFile, ranges: Sequence[Range], targets: Sequence[Any]) -> None:
        raise AssertionError(f"{file.url} was read")


@contextmanager
def counted_reads() -> Iterator[CountingStore]:
    """Note what is read within the block."""
    store, before = CountingStore(), STORES["file"]
    STORES["file"] = store
    try:
        yield store
    finally:
        STORES["file"] = before


@contextmanager
def no_reads() -> Iterator[None]:
    """Fail if a byte is read within the block."""
    before = STORES["file"]
    STORES["file"] = ForbiddenStore()
    try:
        yield
    finally:
        STORES["file"] = before


# ---------------------------------------------------------------------- drawing


def exactly(actual: Any, expected: Any) -> None:
    """Demand the same dtype, shape and bytes."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype.char in "gG":
        # some of the bytes of a long double mean nothing
        np.testing.assert_array_equal(actual, expected)
    else:
        assert actual.tobytes() == expected.tobytes()


@st.composite
def slices(draw: st.DrawFn, size: int, steps: Sequence[int] = (1, 1, 2, 3, -1, -2, 7)) -> slice:
    """Any slice that numpy takes, its ends inside and outside of the axis."""
    end = st.none() | st.integers(-size - 2, size + 2)
    return slice(draw(end), draw(end), draw(st.sampled_from((None, *steps))))


@st.composite
def positions(draw: st.DrawFn, size: int) -> Any:
    """Positions along an axis: repeated, negative, in any order, or a mask."""
    if draw(st.booleans()):
        return draw(hnp.arrays(bool, size))
    if not size:
        return np.zeros(0, np.int64)
    kind = draw(st.sampled_from(("i8", "i4", "i2")))
    return draw(hnp.arrays(kind, st.integers(0, 6), elements=st.integers(-size, size - 1)))


@st.composite
def stored_arrays(
    draw: st.DrawFn, folder: Path, max_dims: int = 3, dtypes: Sequence[str] = ("<i2", ">f4", "u1")
) -> tuple[np.ndarray[Any, Any], ManifestArray]:
    """Values, and a virtual array of them stored in some way."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=max_dims, max_side=7))
    chunks = tuple(draw(st.integers(1, n + 2)) for n in shape)
    kind = draw(st.sampled_from(dtypes))
    values = np.arange(1, np.prod(shape, dtype=int) + 1).astype(kind).reshape(shape)
    grid = tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))
    some = st.sets(st.integers(0, max(int(np.prod(grid)) - 1, 0)), max_size=3)
    inline, missing = draw(some), draw(some)
    for number, where in enumerate(np.ndindex(grid)):
        if number in missing:
            values[tuple(slice(i * c, i * c + c) for i, c in zip(where, chunks, strict=True))] = 0
    array = virtual(
        values,
        folder,
        chunks=chunks,
        codecs=draw(st.sampled_from((PLAIN, ZLIB, SHUFFLED))),
        inline=sorted(inline),
        missing=sorted(missing),
        reverse_layout=draw(st.booleans()),
        checksums=draw(st.booleans()),
    )
    return values, array
