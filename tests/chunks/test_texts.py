"""Manifests, fragments, axes and pipelines are a line of text, whatever their size."""

from typing import Any

import numpy as np
import pytest
from memory import peak

from virtualds import (
    ChunkAxis,
    ChunkManifest,
    CodecPipeline,
    Fragment,
    ManifestArray,
    ManifestGroup,
    ManifestVariable,
    SourceFile,
)
from virtualds.chunks.axes import make_regular_axes
from virtualds.chunks.columns import ReferenceTable
from virtualds.chunks.tables import SparseReferences, StridedReferences
from virtualds.codecs.cf import Packing, TimePacking
from virtualds.codecs.codec import Unreadable
from virtualds.codecs.hdf import Shuffle
from virtualds.codecs.pipeline import name_pipelines
from virtualds.codecs.zlib import Zlib
from virtualds.parsers.hdf5.storage import IndexedChunks

FILE = SourceFile("s3://bucket/a.nc", size=2**50)
GRID = (10**6, 1000)
MANIFEST = ChunkManifest.build(GRID, files=[FILE], offset=10, length=8)


class ForbiddenTable(ReferenceTable):
    """A table of a set, which must not be read."""

    def load(self, ids: Any) -> ChunkManifest:
        raise AssertionError("rows were asked for")


class ForbiddenIndex(ReferenceTable):
    """The index of a file, which must not be read."""

    repr_suffix = IndexedChunks.repr_suffix


ONE = ChunkManifest.build((1,), files=[FILE], offset=96, length=8)

TEXTS = [
    (MANIFEST, "<ChunkManifest (1000000, 1000): 1,000,000,000 chunks of 1 file>"),
    (ChunkManifest.missing((1,)), "<ChunkManifest (1,): 1 chunk>"),
    (
        ChunkManifest.from_table(SparseReferences(np.array([7]), ONE), GRID),
        "<ChunkManifest (1000000, 1000): 1,000,000,000 chunks of 1 file, most chunks missing>",
    ),
    (
        ChunkManifest.from_table(StridedReferences(FILE, 96, 24, 8, 10**9), GRID),
        "<ChunkManifest (1000000, 1000): 1,000,000,000 chunks of 1 file>",
    ),
    (
        ChunkManifest.from_table(ForbiddenTable(), (3, 4)),
        "<ChunkManifest (3, 4): 12 chunks, whose references lie in a reference set>",
    ),
    (
        ChunkManifest.from_table(ForbiddenIndex(), (3, 4)),
        "<ChunkManifest (3, 4): 12 chunks, looked up in the index of their file>",
    ),
    (
        Fragment((5, 0), make_regular_axes((10**7, 10**4), (10, 10)), MANIFEST),
        "<Fragment (5, 0) to (10000005, 10000): <ChunkManifest (1000000, 1000): "
        "1,000,000,000 chunks of 1 file>>",
    ),
    (ChunkAxis.regular(10**10, 1), "RegularAxis(size=10000000000, step=1, inset=0, last=1)"),
    (
        ChunkAxis.from_slabs([31, 28, 31], [31, 28, 31]),
        "<IrregularAxis of 90: 3 chunks of 28 to 31>",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("shown", "expected"), TEXTS, ids=[text[:30] for _, text in TEXTS])
def test_the_text_is_one_line_that_costs_nothing(shown: object, expected: str) -> None:
    assert repr(shown) == expected
    assert peak(lambda: repr(shown)) < 100_000


def test_a_pipeline_says_in_a_few_words_how_chunks_are_encoded() -> None:
    packing = Packing(np.dtype("f8"), scale_factor=np.float64(0.1), add_offset=np.float32(273.15))
    codecs = (Shuffle(2), Zlib(4))
    assert str(CodecPipeline(np.dtype("<i2"), codecs, packing=packing)) == (
        "int16 × 0.1 + 273.15, shuffle, zlib"
    )
    dates = TimePacking.from_attributes({"units": "days since 2001-01-01"}, np.dtype("M8[ns]"))
    assert str(CodecPipeline(np.dtype("<i4"), packing=dates)) == (
        "int32 days since 2001-01-01, uncompressed"
    )
    filled = Packing(np.dtype("f4"), fills=(np.float32(9),))
    assert str(CodecPipeline(np.dtype("f4"), packing=filled)) == "float32, uncompressed"
    wide = np.dtype([(f"member{n}", "f4") for n in range(500)])
    assert str(CodecPipeline(wide)) == "500 members, uncompressed"


def packed(**attributes: Any) -> CodecPipeline:
    """A pipeline of packed numbers."""
    stored, values = np.dtype("i2"), np.dtype("f8")
    return CodecPipeline(stored, packing=Packing.from_attributes(stored, attributes, values))


NAMES: dict[str, tuple[list[CodecPipeline], list[str]]] = {
    "scale": (
        [packed(scale_factor=0.01), packed(scale_factor=0.02), packed(scale_factor=0.01)],
        ["int16 × 0.01, uncompressed", "int16 × 0.02, uncompressed", "int16 × 0.01, uncompressed"],
    ),
    "type of the scale": (
        [packed(scale_factor=np.float32(0.1)), packed(scale_factor=0.1)],
        [
            "int16 × 0.1, uncompressed, scale_factor=0.10000000149011612 (float32)",
            "int16 × 0.1, uncompressed, scale_factor=0.1 (float64)",
        ],
    ),
    "digits of the scale": (
        [packed(scale_factor=0.1), packed(scale_factor=0.10000001)],
        [
            "int16 × 0.1, uncompressed, scale_factor=0.1 (float64)",
            "int16 × 0.1, uncompressed, scale_factor=0.10000001 (float64)",
        ],
    ),
    "fill value": (
        [packed(_FillValue=np.int16(-999)), packed(_FillValue=np.int16(-1))],
        [
            "int16, uncompressed, _FillValue=-999 (int16)",
            "int16, uncompressed, _FillValue=-1 (int16)",
        ],
    ),
    "layout": (
        [CodecPipeline(np.dtype("f4"), layout=order) for order in ((0, 1), (1, 0))],
        [
            "float32, uncompressed, axes stored as 0, 1",
            "float32, uncompressed, axes stored as 1, 0",
        ],
    ),
    "codec": (
        [CodecPipeline(np.dtype("f4"), (Unreadable(why),)) for why in ("one", "two")],
        [
            "float32, unreadable, unreadable(reason=one)",
            "float32, unreadable, unreadable(reason=two)",
        ],
    ),
    "what has no words": (
        [
            CodecPipeline(np.dtype("f4"), packing=Packing(np.dtype("f4"), fills=(np.float32(n),)))
            for n in (1, 2)
        ],
        ["float32, uncompressed (1)", "float32, uncompressed (2)"],
    ),
}


@pytest.mark.parametrize("what", NAMES)
def test_pipelines_have_one_name_only_if_they_decode_alike(what: str) -> None:
    pipelines, expected = NAMES[what]
    assert name_pipelines(pipelines) == expected


def test_what_a_pipeline_decides_is_in_its_repr() -> None:
    # rewriting and dask tell pipelines apart by it
    ours, theirs = (CodecPipeline(np.dtype("f4"), fill=fill) for fill in (None, b"abcd"))
    assert str(ours) == str(theirs) and repr(ours) != repr(theirs)


def test_a_group_names_its_first_members_and_counts_the_rest() -> None:
    value = ManifestVariable(("x",), np.zeros(3))
    assert repr(value) == "<ManifestVariable (x): (3,) float64, in memory>"
    group = ManifestGroup({f"v{n}": value for n in range(500)}, groups={"g": ManifestGroup()})
    assert repr(group) == (
        "<ManifestGroup of 500 variables, 1 group: v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, ...>"
    )
    assert repr(ManifestGroup()) == "<ManifestGroup of nothing>"
    array = ManifestArray.full((2, 3), 0, "i4")
    assert repr(ManifestVariable(("y", "x"), array)) == (
        "<ManifestVariable (y, x): <ManifestArray (2, 3) int32: 0 chunks>>"
    )
