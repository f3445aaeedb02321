"""A lazy manifest gives what its table holds, pipelines and checksums among it, when asked."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from dask.base import tokenize
from products import looped

from virtualds import ChunkAxis, ChunkManifest, CodecPipeline, Fragment, ManifestArray, SourceFile
from virtualds.arrays.concatenate import concatenate
from virtualds.chunks.columns import COLUMNS, MISSING, Ints, ReferenceTable
from virtualds.source_file import CHECKSUM_FLAG

SHAPE = (6, 4)


@dataclass
class Held(ReferenceTable):
    """References in memory, and a note of which were asked for."""

    rows: ChunkManifest
    has_pipelines: bool = True
    asked: list[int] = field(default_factory=list, compare=False)

    def load(self, ids: Ints) -> ChunkManifest:
        self.asked += ids.ravel().tolist()
        return self.rows.at(ids) if ids.size else ChunkManifest.missing(ids.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.rows.has_same_references(other.rows)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("held", *self.rows.__dask_tokenize__())


def table(pipelines: bool = True) -> Held:
    count = np.arange(24)
    rows = ChunkManifest.build(
        (24,),
        files=[SourceFile("file:///a"), SourceFile("file:///b")],
        file=count % 2,
        offset=count * 10,
        length=count + 1,
        pipeline=count // 8 if pipelines else 0,
        checksum=np.where(count % 3, CHECKSUM_FLAG + count, 0),
    )
    return Held(rows, pipelines)


VIEWS: dict[str, Callable[[ChunkManifest], ChunkManifest]] = {
    "whole": lambda m: m,
    "renumbered": lambda m: m.with_pipelines([5, 3, 4]),
    "renumbered alike": lambda m: m.with_pipelines([0, 1, 2]),
    "renumbered twice": lambda m: m.with_pipelines([1, 2, 0]).with_pipelines([4, 9, 0]),
    "renumbered and back": lambda m: m.with_pipelines([1, 2, 0]).with_pipelines([2, 0, 1]),
    "to one": lambda m: m.with_pipelines([7, 7, 7]),
    "cut": lambda m: m.with_pipelines([5, 3, 4]).take(0, slice(1, 5, 2)),
    "cut, then renumbered": lambda m: m.take(1, slice(None, None, -1)).with_pipelines([5, 3, 4]),
    "transposed": lambda m: m.with_pipelines([5, 3, 4]).transpose((1, 0)),
    "reshaped": lambda m: m.with_pipelines([5, 3, 4]).take(0, slice(2, 3)).reshape((4, 1)),
    "repeated": lambda m: m.with_pipelines([5, 3, 4]).take(0, slice(2, 3)).broadcast_to((3, 4)),
    "taken": lambda m: m.with_pipelines([5, 3, 4]).take(0, np.array([3, -1, 0])),
    "all missing": lambda m: m.with_pipelines([5, 3, 4]).take(1, np.array([-1, -1])),
    "some": lambda m: m.with_pipelines([5, 3, 4]).at(np.array([[23, 0], [7, 7]])),
    "joined": lambda m: ChunkManifest.concatenate([m.with_pipelines([5, 3, 4]), m], 1),
    "moved": lambda m: m.with_pipelines([5, 3, 4]).with_files(lambda f: f._replace(url="s3://a/b")),
    "pickled": lambda m: pickle.loads(pickle.dumps(m.with_pipelines([5, 3, 4]))),
}


@looped("view", VIEWS)
@looped("pipelines", [True, False])
def test_a_view_is_that_of_the_columns(view: str, pipelines: bool) -> None:
    lazy = ChunkManifest.from_table(table(pipelines), SHAPE)
    ours, theirs = VIEWS[view](lazy), VIEWS[view](lazy.loaded())
    real = theirs.file != MISSING
    assert ((ours.file != MISSING) == real).all()
    assert (ours.pipeline == theirs.pipeline).all()
    for name in ("offset", "length", "checksum"):
        assert (getattr(ours, name)[real] == getattr(theirs, name)[real]).all()
        assert getattr(ours, name).dtype == COLUMNS[name]
    assert ours.has_same_references(theirs) or not real.all()
    assert ours.lookup((0, 0)).checksum == theirs.lookup((0, 0)).checksum
    used = set(np.unique(theirs.pipeline).tolist())
    assert used <= set(ours.used_pipelines(10).tolist())


STAY_LAZY = ("renumbered", "renumbered twice", "to one", "cut", "transposed", "repeated")


@pytest.mark.parametrize("view", STAY_LAZY)
def test_a_view_loads_nothing(view: str) -> None:
    for held in (table(), table(pipelines=False)):
        found = VIEWS[view](ChunkManifest.from_table(held, SHAPE))
        assert (found.is_loaded, found.used_pipelines(10).size > 0, held.asked) == (False, True, [])


def array_of(held: Held, chunk: int, pipelines: tuple[CodecPipeline, ...]) -> ManifestArray:
    axes = (ChunkAxis.regular(6, 1), ChunkAxis.regular(4 * chunk, chunk))
    fragment = Fragment((0, 0), axes, ChunkManifest.from_table(held, SHAPE))
    array = ManifestArray.from_fragment(fragment, pipelines[0])
    return replace(array, pipelines=pipelines)


def kinds(*names: str) -> tuple[CodecPipeline, ...]:
    return tuple(CodecPipeline(np.dtype(name), layout=(0, 1)) for name in names)


def test_arrays_with_pipelines_are_joined_and_cut_without_loading() -> None:
    """Chunks of another length along the other axis leave two fragments."""
    one, two = table(), table()
    joined = concatenate(
        [
            array_of(one, 10, kinds("<f4", ">f4", "<f8")),
            array_of(two, 20, kinds("<f8", "<i4", ">f4"))[:, :40],
        ]
    )
    assert len(joined.fragments) == 2
    assert len(joined.pipelines) == 4
    cut = joined[7:, 5:].transpose(1, 0)
    assert (one.asked, two.asked) == ([], [])
    assert {p.dtype.str for p in cut.pipelines} == {"<f8", "<i4", ">f4"}
    [fragment] = cut.fragments
    meant = [cut.pipelines[n].dtype.str for n in fragment.manifest.pipeline[0].tolist()]
    assert meant == ["<f8"] + ["<i4"] * 2 + [">f4"] * 2
    assert one.asked == []


def test_renumbering_is_seen_by_tokens_and_comparisons() -> None:
    lazy = ChunkManifest.from_table(table(), SHAPE)
    other = lazy.with_pipelines([1, 0, 2])
    assert tokenize(lazy) != tokenize(other)
    assert tokenize(other) == tokenize(pickle.loads(pickle.dumps(other)))
    assert not lazy.has_same_references(other)
    assert lazy.has_same_references(other.with_pipelines([1, 0, 2]))
