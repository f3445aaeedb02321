"""Evenly spaced chunks are computed, and are what columns of the same numbers are."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from dask.base import tokenize
from products import looped

from virtualds import ChunkAxis, ChunkManifest, CodecPipeline, Fragment, ManifestArray, SourceFile
from virtualds.arrays.concatenate import concatenate
from virtualds.chunks.columns import MISSING, Reference
from virtualds.chunks.tables import StridedReferences
from virtualds.errors import FormatError

FILE = SourceFile("file:///a.nc", size=10_000)
OTHER = SourceFile("file:///b.nc", size=20_000)


def even(file: SourceFile = FILE, shape: tuple[int, ...] = (24, 1)) -> ChunkManifest:
    return ChunkManifest.from_table(
        StridedReferences(file, first=96, step=20, length=12, count=24), shape
    )


def columns(file: SourceFile = FILE, shape: tuple[int, ...] = (24, 1)) -> ChunkManifest:
    offset = np.reshape(96 + 20 * np.arange(24), shape)
    return ChunkManifest.build(shape, files=[file], offset=offset, length=12)


STAY: dict[str, Callable[[ChunkManifest], ChunkManifest]] = {
    "whole": lambda m: m,
    "cut": lambda m: m.take(0, slice(3, 20)),
    "cut twice": lambda m: m.take(0, slice(3, 20)).take(0, slice(2, None, 3)),
    "backwards": lambda m: m.take(0, slice(None, None, -1)),
    "transposed": lambda m: m.take(0, slice(3, 20)).transpose((1, 0)),
    "reshaped": lambda m: m.take(0, slice(3, 20)).reshape((1, 17, 1)),
    "repeated": lambda m: m.take(0, slice(3, 4)).broadcast_to((5, 1)),
    "renumbered": lambda m: m.with_pipelines([3]),
    "renamed": lambda m: m.with_files(lambda f: f._replace(url="s3://a/b")),
    "in an archive": lambda m: m.take(0, slice(3, 9)).relocate([(OTHER, 512)]),
    "pickled": lambda m: pickle.loads(pickle.dumps(m.take(0, slice(3, 9)))),
    "pruned": lambda m: m.prune(),
}
LOADED: dict[str, Callable[[ChunkManifest], ChunkManifest]] = {
    "taken": lambda m: m.take(0, np.array([5, 23, 3])),
    "some": lambda m: m.at(np.array([[23, 0], [7, 7]])),
    "joined": lambda m: ChunkManifest.concatenate([m, columns(OTHER), m], 0),
}
VIEWS = STAY | LOADED


@looped("view", VIEWS)
def test_every_view_is_that_of_the_columns(view: str) -> None:
    ours, theirs = VIEWS[view](even()), VIEWS[view](columns())
    assert ours.has_same_references(theirs)
    assert theirs.has_same_references(ours.loaded())
    assert ours.files == theirs.files
    assert ours.sources == theirs.sources
    first = (0,) * len(theirs.shape)
    assert ours.lookup(first) == theirs.lookup(first)


@looped("view", STAY)
def test_a_view_holds_no_columns(view: str) -> None:
    found = STAY[view](even())
    assert not found.is_loaded
    assert found.nbytes == 32
    assert tokenize(found) == tokenize(pickle.loads(pickle.dumps(found)))
    assert view in ("whole", "pruned") or tokenize(found) != tokenize(even())


def test_a_missing_chunk_stays_missing_in_a_selection() -> None:
    taken = even().take(0, np.array([5, -1, 3]))
    assert taken.file.ravel().tolist() == [0, MISSING, 0]
    assert taken.offset[2, 0] == 96 + 3 * 20


def test_a_row_is_looked_up_from_either_end() -> None:
    grid = even(shape=(4, 6))
    assert grid.lookup((3, 5)) == grid.lookup((-1, -1)) == Reference(0, 96 + 23 * 20, 12, 0, 0)
    with pytest.raises(IndexError):
        grid.lookup((4, 0))


@pytest.mark.parametrize(
    ("first", "length"), [(9_529, 12), (-1, 12), (96, 0)], ids=["behind", "in front", "empty"]
)
def test_references_outside_of_the_file_are_refused(first: int, length: int) -> None:
    with pytest.raises(FormatError, match="cannot be a chunk"):
        StridedReferences(FILE, first=first, step=20, length=length, count=24)


def array(manifest: ChunkManifest) -> ManifestArray:
    axes = (ChunkAxis.regular(24, 1), ChunkAxis.regular(3, 3))
    return ManifestArray.from_fragment(
        Fragment((0, 0), axes, manifest), CodecPipeline(np.dtype(">f4"), layout=(0, 1))
    )


def test_arrays_are_joined_to_one_fragment() -> None:
    """Unlike those of reference sets, which stay there."""
    joined = concatenate([array(even()), array(columns(OTHER)), array(even())])
    [fragment] = joined.fragments
    assert fragment.manifest.is_loaded
    assert fragment.manifest.has_same_references(
        ChunkManifest.concatenate([columns(), columns(OTHER), columns()], 0)
    )

    class Stored(StridedReferences):
        is_in_set = True

    lazy = ChunkManifest.from_table(Stored(FILE, first=96, step=20, length=12, count=24), (24, 1))
    assert len(concatenate([array(lazy), array(lazy)]).fragments) == 2
