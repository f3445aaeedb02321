"""What Zarr v3 says of an array is what the model says of it, and zarr-python agrees."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs
from hypothesis import given
from hypothesis import strategies as st
from products import looped
from virtual_arrays import exactly
from zarr.core.metadata.v3 import ArrayV3Metadata

from virtualds import (
    ChunkAxis,
    ChunkManifest,
    CodecPipeline,
    FormatError,
    Fragment,
    ManifestArray,
    UnsupportedError,
)
from virtualds.chunks.columns import MISSING
from virtualds.chunks.fragment import find_origin
from virtualds.codecs import CODECS, codec_from_zarr_v2, codec_from_zarr_v3
from virtualds.codecs.blosc import Blosc2Frame
from virtualds.codecs.cf import Packing
from virtualds.codecs.codec import PRIVATE_PREFIX
from virtualds.codecs.hdf import Szip
from virtualds.codecs.pipeline import FixedAxis
from virtualds.formats.zarr.codecs import codecs_to_v3, pipeline_from_v3
from virtualds.formats.zarr.data_types import (
    data_type_from_v3,
    data_type_to_v3,
    fill_value_from_v3,
    fill_value_to_v3,
)
from virtualds.formats.zarr.v3_arrays import axes_from_v3, check_zarr_v3, grid_to_v3
from virtualds.source_file import SourceFile

JSON = dict[str, Any]
KNOWS_STRUCT = hasattr(zarr.dtype, "Struct")
"""Whether this zarr-python knows compound types by their registered name."""
RECTILINEAR = "array.rectilinear_chunks"
"""The setting of zarr-python that allows such grids, where it knows them."""
pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

NUMBERS = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
OTHERS = ("S3", "S1", "U4", "V3", "V8", "M8[ns]", "M8[10us]", "M8[D]", "m8[s]", "m8[7h]")
UNITLESS = [np.dtype("M8"), np.dtype("m8")]
"""zarr-python neither turns their byte order nor reads fill values of them that are numbers."""
RECORD = [("a", "i4"), ("b", "f8"), ("c", "S3")]
RECORDS = (RECORD, [("a", "u1"), ("b", RECORD)], [("a", "u1")], [("a", "S2"), ("t", "M8[s]")])
DTYPES = [np.dtype(kind) for kind in (*NUMBERS, *OTHERS)]
COMPOUND = [np.dtype(kind) for kind in RECORDS]


def named(name: str, **configuration: Any) -> JSON:
    return {"name": name, "configuration": configuration}


def values_of(dtype: Any, shape: Sequence[int] = (5, 7)) -> Any:
    """Any values of a dtype: of floats also NaN, of bytes also zeros at the end."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(dtype.itemsize)
    count = int(np.prod(shape))
    if dtype.kind == "U":
        return np.array([f"é{n}" for n in range(count)], dtype).reshape(shape)
    raw = rng.integers(0, 2 if dtype.kind == "b" else 256, count * dtype.itemsize, "u1")
    return raw.view(dtype).reshape(shape)


# ---------------------------------------------------------------------- data types


@looped("dtype", [*DTYPES, *UNITLESS, *COMPOUND])
def test_a_data_type_comes_back_in_native_order(dtype: np.dtype[Any]) -> None:
    for order in "<>":
        spelled = json.loads(json.dumps(data_type_to_v3(dtype.newbyteorder(order))))
        assert data_type_from_v3(spelled) == dtype
        assert data_type_from_v3(spelled).newbyteorder("=") == data_type_from_v3(spelled)


@looped("dtype", [*DTYPES, *UNITLESS])
def test_data_types_are_spelled_as_zarr_python_spells_them(dtype: np.dtype[Any]) -> None:
    theirs = zarr.dtype.parse_dtype(dtype, zarr_format=3).to_json(zarr_format=3)
    assert data_type_to_v3(dtype) == theirs


@looped(
    "dtype",
    [
        "g",
        "G",
        "O",
        "S0",
        "V0",
        "(2,)i4",
        [("a", "i4", (2,))],
        [("a", "O")],
        np.dtype([("a", "u1"), ("b", "i4")], align=True),
        np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]}),
        np.dtype([(("title", "a"), "i4")]),
        np.dtypes.StringDType(),
    ],
)
def test_other_types_have_no_spelling(dtype: Any) -> None:
    assert data_type_to_v3(np.dtype(dtype)) is None


SPELLED = {
    "object": ({"name": "int32"}, "i4"),
    "empty configuration": (named("float64"), "f8"),
    "raw bits": ("r24", "V3"),
    "complex": ("complex_float32", "c8"),
    "pairs": (
        named("structured", fields=[["a", "int8"], ["b", "r16"]]),
        [("a", "i1"), ("b", "V2")],
    ),
    "micro": (named("numpy.datetime64", unit="\u03bcs", scale_factor=1), "M8[us]"),
}


@pytest.mark.parametrize("name", SPELLED)
def test_other_spellings_are_read(name: str) -> None:
    spelled, dtype = SPELLED[name]
    assert data_type_from_v3(spelled) == np.dtype(dtype)


NO_DATA_TYPES = {
    "number": (3, FormatError, "neither a name"),
    "configuration": ({"name": "int8", "configuration": 3}, FormatError, "neither a name"),
    "bits": ("r12", FormatError, "12 in units of 8"),
    "no bits": ("r0", UnsupportedError, "'r0'"),
    "half a letter": (named("fixed_length_utf32", length_bytes=6), FormatError, "6 in units of 4"),
    "no length": (named("null_terminated_bytes"), FormatError, "length_bytes"),
    "unit": (named("numpy.datetime64", unit="xx", scale_factor=1), FormatError, "xx"),
    "unit of no text": (named("numpy.datetime64", unit=3, scale_factor=1), FormatError, "replace"),
    "factor": (named("numpy.datetime64", unit="s", scale_factor=0), FormatError, "factor 0"),
    "no fields": (named("struct", fields=[]), FormatError, "fields"),
    "field": (named("struct", fields=[["a"]]), FormatError, "unpack"),
    "twice": (named("struct", fields=[["a", "int8"], ["a", "int8"]]), FormatError, "a"),
    "string": ("string", UnsupportedError, "no fixed length"),
    "bytes": ("bytes", UnsupportedError, "no fixed length"),
    "in a field": (named("struct", fields=[["a", "string"]]), UnsupportedError, "'string'"),
    "unknown": ("bfloat16", UnsupportedError, "'bfloat16'"),
}


@looped("name", NO_DATA_TYPES)
def test_impossible_data_types_are_refused(name: str) -> None:
    spelled, error, words = NO_DATA_TYPES[name]
    with pytest.raises(error, match=words):
        data_type_from_v3(spelled)


# ---------------------------------------------------------------------- fill values


def bits(pattern: int, dtype: str) -> Any:
    return np.array([pattern], f"u{np.dtype(dtype).itemsize}").view(dtype)[0]


FILLS: list[tuple[str, Any, Any]] = [
    ("?", True, True),
    ("i1", -128, -128),
    ("u8", 2**64 - 1, 2**64 - 1),
    ("i8", -(2**63), -(2**63)),
    ("f2", 1.5, 1.5),
    ("f4", np.float32(0.1), 0.10000000149011612),
    ("f8", 0.1, 0.1),
    ("f8", -0.0, -0.0),
    ("f4", np.nan, "NaN"),
    ("f2", np.inf, "Infinity"),
    ("f8", -np.inf, "-Infinity"),
    ("f4", bits(0x7FC00001, "f4"), "0x7fc00001"),
    ("f4", bits(0xFFC00000, "f4"), "0xffc00000"),
    ("f4", bits(0x7F800001, "f4"), "0x7f800001"),
    ("f2", bits(0x7E01, "f2"), "0x7e01"),
    ("f8", bits(0x7FF8000000000123, "f8"), "0x7ff8000000000123"),
    ("c8", 1 - 2j, [1.0, -2.0]),
    ("c16", complex(np.nan, np.inf), ["NaN", "Infinity"]),
    ("c8", np.array([0x7FC00001, 0], "u4").view("c8")[0], ["0x7fc00001", 0.0]),
    ("S3", b"ab", "YWI="),
    ("S3", b"", ""),
    ("U3", "é", "é"),
    ("V3", np.void(b"a\0\0"), "YQAA"),
    ("M8[s]", "NaT", "NaT"),
    ("M8[ns]", 5, 5),
    ("m8[D]", -1, -1),
    ("M8", "NaT", "NaT"),
]


@looped("kind, value, spelled", FILLS)
def test_a_fill_value_is_spelled_and_read_bit_for_bit(kind: str, value: Any, spelled: Any) -> None:
    exact = value if isinstance(value, np.generic) else np.asarray(value).astype(kind)[()]
    for order in "<>":
        dtype = np.dtype(kind).newbyteorder(order)  # type: ignore[arg-type]
        found = fill_value_to_v3(exact, dtype)
        assert json.dumps(found) == json.dumps(spelled)
        back = fill_value_from_v3(json.loads(json.dumps(found)), dtype)
        exactly(np.asarray(back, kind), np.asarray(exact, kind))
        assert isinstance(back, np.generic)


def test_a_compound_fill_value_names_its_members() -> None:
    dtype = np.dtype([("a", ">i4"), ("b", [("c", "f4"), ("d", "S3")])])
    value = np.array((7, (np.nan, b"x")), dtype)[()]
    spelled = {"a": 7, "b": {"c": "NaN", "d": "eA=="}}
    assert fill_value_to_v3(value, dtype) == spelled
    native = dtype.newbyteorder("=")
    exactly(fill_value_from_v3(spelled, dtype), value.astype(native))
    # as it was written before the type was registered
    exactly(fill_value_from_v3("BwAAAAAAwH94AAA=", dtype), value.astype(native))


READ: list[tuple[str, Any, Any]] = [
    ("?", 1, True),
    ("i4", 3.0, 3),
    ("f4", 3, 3.0),
    ("f4", "0x7fc00000", np.nan),
    ("f4", "0x3F800000", 1.0),
    ("f4", 1e300, np.inf),
    ("c8", ["0x3f800000", "-Infinity"], complex(1, -np.inf)),
    ("V3", [1, 2, 255], np.void(b"\1\2\xff")),
    ("S3", [97, 98], b"ab"),
    ("M8[s]", -(2**63), "NaT"),
]


@looped("kind, spelled, value", READ)
def test_other_spellings_of_fill_values_are_read(kind: str, spelled: Any, value: Any) -> None:
    found = np.asarray(fill_value_from_v3(spelled, np.dtype(kind)), kind)
    exactly(found, np.asarray(value).astype(kind))


WRONG_FILLS: list[tuple[Any, Any]] = [
    ("?", "true"),
    ("?", 2),
    ("i1", 128),
    ("u1", -1),
    ("i4", 1.5),
    ("i4", "1"),
    ("i4", None),
    ("i4", float("inf")),
    ("f4", "nan"),
    ("f4", "0x7fc0"),
    ("f4", "0x7fc0000g"),
    ("f4", None),
    ("f4", [1.0]),
    ("c8", 1.0),
    ("c8", [1.0]),
    ("c8", [1.0, "x"]),
    ("S3", "not base64"),
    ("S3", "YWJjZA=="),
    ("S3", [300]),
    ("V3", "YWI="),
    ("U2", "abc"),
    ("U2", 3),
    ("M8[s]", "1970"),
    ("M8[s]", 2**63),
    (RECORD, {"a": 1}),
    (RECORD, {"a": 1, "b": 2, "c": "", "d": 3}),
    (RECORD, [1, 2, ""]),
    (RECORD, "AAAA"),
]


@looped("kind, spelled", WRONG_FILLS)
def test_impossible_fill_values_are_refused(kind: Any, spelled: Any) -> None:
    with pytest.raises(FormatError, match="fill_value"):
        fill_value_from_v3(spelled, np.dtype(kind))


@looped("kind, value, spelled", FILLS)
def test_zarr_python_reads_fill_values_as_they_are_meant(
    kind: str, value: Any, spelled: Any
) -> None:
    theirs = zarr.dtype.parse_dtype(np.dtype(kind), zarr_format=3)
    found = np.asarray(theirs.from_json_scalar(spelled, zarr_format=3)).astype(kind)
    exact = np.asarray(value).astype(kind)
    if exact.dtype.kind in "fc":
        # Python's floats do not hold every NaN
        np.testing.assert_array_equal(found, exact)
    else:
        exactly(found, exact)


# ---------------------------------------------------------------------- reading zarr-python's


def written(folder: Path, values: Any, **how: Any) -> JSON:
    """Let zarr-python write values, and return the metadata."""
    how.setdefault("chunks", tuple(max(n - 2, 1) for n in values.shape))
    how.setdefault("compressors", None)
    array = zarr.create_array(
        zarr.storage.LocalStore(folder), shape=values.shape, dtype=values.dtype, **how
    )
    array[...] = values
    metadata: JSON = json.loads((folder / "zarr.json").read_text())
    return metadata


def referenced(folder: Path, metadata: Mapping[str, Any]) -> ManifestArray:
    """Refer to the chunk files of a Zarr array."""
    check_zarr_v3(metadata)
    axes = axes_from_v3(metadata["shape"], metadata["chunk_grid"])
    grid = tuple(axis.nchunks for axis in axes)
    files, file, length = [], np.full(grid, MISSING), np.zeros(grid, np.int64)
    for where in np.ndindex(grid):
        path = folder.joinpath("c", *map(str, where))
        if path.is_file():
            file[where], length[where] = len(files), path.stat().st_size
            files.append(SourceFile(f"file://{path}", path.stat().st_size))
    manifest = ChunkManifest.build(grid, files=files, file=file, length=length)
    fragment = Fragment((0,) * len(axes), axes, manifest)
    return ManifestArray.from_fragment(fragment, pipeline_from_v3(metadata))


def same_values(found: Any, expected: Any) -> None:
    """Demand the same bytes once both are in native order."""
    found, expected = np.asarray(found), np.asarray(expected)
    native = found.dtype.newbyteorder("=")
    exactly(found.astype(native), expected.astype(native))


BIG = zarr.codecs.BytesCodec(endian="big")
LITTLE = zarr.codecs.BytesCodec(endian="little")


@looped("dtype", DTYPES)
@looped("endian", ["little", "big"], quick=1)
@looped("order", [(0, 1), (1, 0)])
def test_every_data_type_of_zarr_python_is_read(
    dtype: np.dtype[Any], endian: Any, order: tuple[int, ...], tmp_path: Path
) -> None:
    values = values_of(dtype)
    filters = [zarr.codecs.TransposeCodec(order=order)] if order != (0, 1) else None
    serializer = zarr.codecs.BytesCodec(endian=endian)
    metadata = written(tmp_path, values, filters=filters, serializer=serializer)
    array = referenced(tmp_path, metadata)
    same_values(array.read(), values)
    assert array.pipelines[0].layout == order
    assert data_type_to_v3(array.dtype) == metadata["data_type"]
    chain = codecs_to_v3(array.pipelines[0], 2)
    assert json.loads(json.dumps(chain)) == metadata["codecs"]


@pytest.mark.parametrize("dtype", COMPOUND, ids=str)
def test_compound_types_of_zarr_python_are_read(dtype: np.dtype[Any], tmp_path: Path) -> None:
    values = values_of(dtype)
    metadata = written(tmp_path, values)
    array = referenced(tmp_path, metadata)
    same_values(array.read(), values)


def test_axes_are_permuted_twice(tmp_path: Path) -> None:
    values = values_of("i4", (3, 4, 5))
    filters = [zarr.codecs.TransposeCodec(order=o) for o in ((1, 2, 0), (0, 2, 1))]
    metadata = written(tmp_path, values, filters=filters)
    array = referenced(tmp_path, metadata)
    same_values(array.read(), values)
    assert codecs_to_v3(array.pipelines[0], 3)[0] == named("transpose", order=[1, 0, 2])  # type: ignore[index]


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_arrays_of_any_shape_are_read(shape: tuple[int, ...], tmp_path: Path) -> None:
    values = values_of("f4", shape)
    same_values(referenced(tmp_path, written(tmp_path, values)).read(), values)


@looped("kind, value, spelled", FILLS)
def test_missing_chunks_are_full_of_the_fill_value(
    kind: str, value: Any, spelled: Any, tmp_path: Path
) -> None:
    exact = np.asarray(value).astype(kind)[()]
    values = np.full((5,), exact, kind)
    how = {"config": {"write_empty_chunks": False}, "fill_value": exact, "chunks": (2,)}
    metadata = written(tmp_path, values, **how)
    array = referenced(tmp_path, metadata | {"fill_value": spelled})
    same_values(array.pipelines[0].fill_value, values[0])
    if array.manifest.file.max() == MISSING:
        same_values(array.read(), values)


N = pytest.importorskip("zarr.codecs.numcodecs")
CHAINS: dict[str, list[Any]] = {
    "gzip": [zarr.codecs.GzipCodec(level=3)],
    "zstd": [zarr.codecs.ZstdCodec(level=3)],
    "zstd with checksum": [zarr.codecs.ZstdCodec(level=3, checksum=True)],
    "crc32c": [zarr.codecs.Crc32cCodec()],
    "gzip and crc32c": [zarr.codecs.GzipCodec(level=1), zarr.codecs.Crc32cCodec()],
    **{
        f"blosc {cname} {shuffle}": [zarr.codecs.BloscCodec(cname=cname, shuffle=shuffle)]
        for cname in ("lz4", "lz4hc", "blosclz", "zlib", "zstd")
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
    },
    "numcodecs.zlib": [N.Zlib(level=2)],
    "numcodecs.gzip": [N.GZip(level=2)],
    "numcodecs.zstd": [N.Zstd(level=2)],
    "numcodecs.blosc": [N.Blosc(cname="zstd", clevel=3, shuffle=1)],
    "numcodecs.bz2": [N.BZ2(level=2)],
    "numcodecs.lz4": [N.LZ4(acceleration=2)],
    "numcodecs.lzma": [N.LZMA(preset=1)],
    "numcodecs.fletcher32": [N.Fletcher32()],
    "numcodecs.crc32c": [N.CRC32C()],
    "numcodecs.shuffle": [N.Shuffle(), N.Zlib(level=1)],
    "numcodecs.shuffle 2": [N.Shuffle(elementsize=2), N.Zlib(level=1)],
}
REGISTERED = {"numcodecs.gzip": "gzip", "numcodecs.zstd": "zstd", "numcodecs.blosc": "blosc"}


@looped("name", CHAINS)
@looped("kind", ["f8", "u1"], quick=1)
def test_every_codec_of_zarr_python_is_read(name: str, kind: str, tmp_path: Path) -> None:
    values = np.sort(values_of(kind).view("u1"), axis=None).view(kind).reshape(5, 7)
    metadata = written(tmp_path, values, chunks=(2, 4), compressors=CHAINS[name])
    array = referenced(tmp_path, metadata)
    same_values(array.read(), values)
    chain = codecs_to_v3(array.pipelines[0], 2)
    assert chain is not None
    expected = metadata["codecs"]
    if not {entry["name"] for entry in expected} & {*REGISTERED, "numcodecs.crc32c"}:
        assert chain == expected
    again = pipeline_from_v3(metadata | {"codecs": json.loads(json.dumps(chain))})
    assert again == array.pipelines[0]


FILTERS: dict[str, tuple[str, list[Any]]] = {
    "delta": ("i4", [N.Delta(dtype="<i4")]),
    "delta to fewer bytes": ("i4", [N.Delta(dtype="<i4", astype="<i2")]),
    "fixedscaleoffset": ("f8", [N.FixedScaleOffset(scale=4, offset=1, dtype="<f8", astype="<i2")]),
    "to single bytes": ("f8", [N.FixedScaleOffset(scale=4, offset=1, dtype="<f8", astype="|u1")]),
    "both": (
        "f8",
        [
            N.FixedScaleOffset(scale=4, offset=1, dtype="<f8", astype="<i4"),
            N.Delta(dtype="<i4", astype="<i2"),
        ],
    ),
    "quantize": ("f8", [N.Quantize(digits=3, dtype="<f8")]),
    "bitround": ("f4", [N.BitRound(keepbits=7)]),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_arrays_are_read(name: str, tmp_path: Path) -> None:
    kind, filters = FILTERS[name]
    values = (4 + np.arange(35, dtype=kind) / (1 if kind == "i4" else 4)).reshape(5, 7).astype(kind)
    metadata = written(tmp_path, values, filters=filters)
    array = referenced(tmp_path, metadata)
    same_values(array.read(), zarr.open_array(tmp_path, mode="r")[...])
    chain = json.loads(json.dumps(codecs_to_v3(array.pipelines[0], 2)))
    assert [entry["name"] for entry in chain] == [entry["name"] for entry in metadata["codecs"]]
    assert pipeline_from_v3(metadata | {"codecs": chain}) == array.pipelines[0]


def test_a_filter_works_on_values_whatever_their_byte_order() -> None:
    values = np.arange(0, 60, 3, dtype="i4")
    for endian, order in (("little", "<"), ("big", ">")):
        stored = np.diff(values, prepend=0).astype(f"{order}i2").tobytes()
        chain = [named("numcodecs.delta", dtype="<i4", astype="<i2"), named("bytes", endian=endian)]
        pipeline = pipeline_from_v3(metadata_of(data_type="int32", codecs=chain))
        assert pipeline.dtype == np.dtype(f"{order}i4")
        decoded = pipeline.codecs[0].decode(stored, values.nbytes)
        same_values(np.frombuffer(decoded, pipeline.dtype), values)
        assert codecs_to_v3(pipeline, 1) == chain


# ---------------------------------------------------------------------- what is written


def metadata_of(**changed: Any) -> JSON:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [20],
        "data_type": "int32",
        "chunk_grid": named("regular", chunk_shape=[20]),
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [named("bytes", endian="little")],
    } | changed


def their_values(metadata: JSON, chunks: Mapping[str, bytes]) -> Any:
    """What zarr-python reads of metadata and the bytes of chunks."""
    ArrayV3Metadata.from_dict(json.loads(json.dumps(metadata)))
    store = zarr.storage.MemoryStore()
    as_buffer = zarr.core.buffer.cpu.Buffer.from_bytes
    for key, data in {"zarr.json": json.dumps(metadata).encode(), **chunks}.items():
        asyncio.run(store.set(key, as_buffer(data)))
    return zarr.open_array(store, mode="r", zarr_format=3)[...]


WRITTEN_LAYOUTS = [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)]


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("dtype", [*DTYPES, *COMPOUND], ids=str)
@looped("order", "<>")
@looped("layout", WRITTEN_LAYOUTS)
def test_zarr_python_reads_the_same_of_what_is_written(
    dtype: np.dtype[Any], order: Any, layout: tuple[int, ...]
) -> None:
    if dtype.names and not KNOWS_STRUCT:
        pytest.skip("this zarr-python knows no 'struct'")
    stored = dtype.newbyteorder(order)
    values = values_of(dtype, (2, 3, 4)).astype(stored)
    pipeline = CodecPipeline(stored, fill=values[:1, 0, 0].tobytes(), layout=layout)
    metadata = metadata_of(
        shape=[2, 3, 4],
        data_type=data_type_to_v3(stored),
        chunk_grid=named("regular", chunk_shape=[2, 3, 4]),
        fill_value=fill_value_to_v3(pipeline.fill_value, stored),
        codecs=codecs_to_v3(pipeline, 3),
    )
    same_values(their_values(metadata, {"c/0/0/0": values.transpose(layout).tobytes()}), values)
    if pipeline.dtype.kind not in "fcV":
        assert pipeline_from_v3(json.loads(json.dumps(metadata))) == pipeline


@pytest.mark.parametrize("layout", [(0, 2), (2, 0), (2,), ()])
def test_axes_that_are_not_stored_have_one_element(layout: tuple[int, ...]) -> None:
    shape = tuple(n if axis in layout else 1 for axis, n in enumerate((3, 4, 5)))
    values = values_of("i2", shape)
    chain = codecs_to_v3(CodecPipeline(np.dtype("<i2"), layout=layout), 3)
    again = pipeline_from_v3(metadata_of(shape=shape, codecs=chain))
    squeezed = values.transpose(*layout, *(a for a in range(3) if a not in layout))
    assert values.transpose(again.layout).tobytes() == squeezed.tobytes()


NO_CHAIN: dict[str, CodecPipeline] = {
    "packing": CodecPipeline(
        np.dtype("i2"), layout=(0,), packing=Packing(np.dtype("f8"), scale_factor=np.float64(2))
    ),
    "long double": CodecPipeline(np.dtype("g"), layout=(0,)),
    "hidden axis": CodecPipeline(np.dtype("i2"), layout=(FixedAxis(3, 1), 0)),
    "axis stored twice": CodecPipeline(np.dtype("i2"), layout=(0, 0)),
    "mixed order": CodecPipeline(np.dtype([("a", "<i4"), ("b", ">i4")]), layout=(0,)),
    "aligned": CodecPipeline(np.dtype([("a", "u1"), ("b", "<i4")], align=True), layout=(0,)),
    "filter after compression": CodecPipeline(
        np.dtype("<i4"),
        tuple(map(codec_from_zarr_v2, ({"id": "zlib"}, {"id": "delta", "dtype": "<i4"}))),
        layout=(0,),
    ),
    "filter of another order": CodecPipeline(
        np.dtype("<i4"), (codec_from_zarr_v2({"id": "delta", "dtype": ">i4"}),), layout=(0,)
    ),
}


@pytest.mark.parametrize("name", NO_CHAIN)
def test_some_pipelines_have_no_chain(name: str) -> None:
    assert codecs_to_v3(NO_CHAIN[name], 1) is None


def test_filters_and_a_permutation_have_no_chain_together() -> None:
    delta = codec_from_zarr_v2({"id": "delta", "dtype": "<i4"})
    assert codecs_to_v3(CodecPipeline(np.dtype("<i4"), (delta,), layout=(0, 1)), 2) is not None
    assert codecs_to_v3(CodecPipeline(np.dtype("<i4"), (delta,), layout=(1, 0)), 2) is None


def test_arrays_that_cannot_be_read_cannot_be_written() -> None:
    array = ManifestArray.unreadable((3,), "f4", "for a reason")
    with pytest.raises(UnsupportedError, match="for a reason"):
        codecs_to_v3(array.pipelines[0], 1)


NAMES = {
    "virtualds.blosc2_frame": Blosc2Frame(),
    "imagecodecs_szip": Szip(141, 8, 16, 64),
    "numcodecs.zlib": codec_from_zarr_v2({"id": "zlib"}),
    "numcodecs.imagecodecs_jpegls": codec_from_zarr_v2({"id": "imagecodecs_jpegls"}),
    "blosc": codec_from_zarr_v2({"id": "blosc", "shuffle": -1}),
    "zstd": codec_from_zarr_v2({"id": "zstd"}),
    "crc32c": codec_from_zarr_v2({"id": "crc32c"}),
    "numcodecs.crc32c": codec_from_zarr_v2({"id": "crc32c", "location": "start"}),
}


@pytest.mark.parametrize("name", NAMES)
def test_codecs_have_names_in_zarr_v3(name: str) -> None:
    entry = json.loads(json.dumps(NAMES[name].to_zarr_v3(2)))
    assert entry["name"] == name
    assert codec_from_zarr_v3(name, entry.get("configuration", {}), np.dtype("i2")) == NAMES[name]


def test_no_codec_that_only_virtualds_knows_has_a_name_of_others() -> None:
    for codec in CODECS:
        assert not (codec.zarr_v2_id.startswith(PRIVATE_PREFIX) and codec.zarr_v3_name)


PLAIN = named("bytes", endian="little")
CHAINS_REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "none": ([], FormatError, "exactly one"),
    "two": (["bytes", "bytes"], FormatError, "exactly one"),
    "no bytes": ([named("gzip", level=1)], FormatError, "exactly one"),
    "compression first": ([named("gzip", level=1), PLAIN], FormatError, "codecs"),
    "filter last": ([PLAIN, named("numcodecs.delta", dtype="<i4")], FormatError, "codecs"),
    "sharding": (
        [named("sharding_indexed", chunk_shape=[1])],
        UnsupportedError,
        "'sharding_indexed'",
    ),
    "strings": ([{"name": "vlen-utf8"}], UnsupportedError, "'vlen-utf8'"),
    "unknown": ([PLAIN, named("gdeflate")], UnsupportedError, "'gdeflate'"),
    "unknown serialiser": ([named("zarrs.whatever")], UnsupportedError, "'zarrs.whatever'"),
    "unknown filter": ([named("optional"), PLAIN], UnsupportedError, "'optional'"),
    "two that make bytes": ([named("numcodecs.pcodec"), PLAIN], FormatError, "exactly one"),
    "numbers behind bytes": ([PLAIN, named("numcodecs.zfpy")], FormatError, "exactly one"),
    "no order": ([named("bytes")], FormatError, "endian None"),
    "odd order": ([named("bytes", endian="middle")], FormatError, "endian 'middle'"),
    "permutation": ([named("transpose", order=[1]), PLAIN], FormatError, r"order \[1\]"),
    "no permutation": ([named("transpose"), PLAIN], FormatError, "order None"),
    "level": ([PLAIN, named("gzip", level="x")], FormatError, "'gzip'"),
    "shuffle": ([PLAIN, named("blosc", shuffle=1)], FormatError, "'blosc'"),
    "dtype": ([named("numcodecs.delta", dtype="xx"), PLAIN], FormatError, "'xx'"),
    "other dtype": ([named("numcodecs.delta", dtype="<i8"), PLAIN], UnsupportedError, "int32"),
    "number": ([3], FormatError, "codec 3"),
}


@looped("name", CHAINS_REFUSED)
def test_chains_that_cannot_be_decoded_are_refused(name: str) -> None:
    chain, error, words = CHAINS_REFUSED[name]
    with pytest.raises(error, match=words):
        pipeline_from_v3(metadata_of(codecs=chain))


@pytest.mark.parametrize("name", ["numcodecs.pcodec", "numcodecs.zfpy"])
def test_chunks_of_numbers_are_not_permuted(name: str) -> None:
    turned = [named("transpose", order=[1, 0]), named(name)]
    with pytest.raises(UnsupportedError, match="permuted"):
        pipeline_from_v3(metadata_of(shape=[2, 3], codecs=turned))
    straight = pipeline_from_v3(metadata_of(shape=[2, 3], codecs=[named(name)]))
    assert codecs_to_v3(straight, 2) == [named(name)]
    codecs = straight.codecs
    assert codecs_to_v3(CodecPipeline(np.dtype("<i4"), codecs, layout=(1, 0)), 2) is None
    assert codecs_to_v3(CodecPipeline(np.dtype(">i4"), codecs, layout=(0, 1)), 2) is None
    assert codecs_to_v3(CodecPipeline(np.dtype("<i4"), codecs * 2, layout=(0, 1)), 2) is None


def test_old_spellings_of_codecs_are_read() -> None:
    plain = pipeline_from_v3(metadata_of())
    assert pipeline_from_v3(metadata_of(codecs=[named("endian", endian="little")])) == plain
    single = metadata_of(data_type="int8", codecs=["bytes", "crc32c"])
    assert [codec.zarr_v2_id for codec in pipeline_from_v3(single).codecs] == ["crc32c"]
    record = named("structured", fields=[["a", "int16"]])
    old = metadata_of(data_type=record, fill_value="AAA=", codecs=[{"name": "bytes"}])
    assert pipeline_from_v3(old).dtype == np.dtype([("a", "<i2")])
    letter = [named("transpose", order="F"), named("bytes", endian="big")]
    assert pipeline_from_v3(metadata_of(shape=[2, 3], codecs=letter)).layout == (1, 0)


# ---------------------------------------------------------------------- grids


def array_of(
    shape: Sequence[int], *boxes: tuple[Sequence[int], Sequence[ChunkAxis]], fill: Any = 0
) -> ManifestArray:
    """A virtual array of fragments at a start, cut by axes, all of whose chunks are missing."""
    fragments = tuple(
        Fragment(tuple(start), tuple(axes), ChunkManifest.missing(tuple(a.nchunks for a in axes)))
        for start, axes in boxes
    )
    pipeline = CodecPipeline(np.dtype("i4"), layout=tuple(range(len(shape))))
    return ManifestArray(tuple(shape), np.dtype("i4"), np.int32(fill), (pipeline,), fragments)


def whole(*lengths: int, last: int | None = None) -> ChunkAxis:
    """An axis of chunks that show all that they store, but for the last one."""
    stored = [*lengths[:-1], lengths[-1] if last is None else last]
    return ChunkAxis.from_slabs(lengths, stored)


def regular(*chunks: int) -> JSON:
    return named("regular", chunk_shape=list(chunks))


def rectilinear(*shapes: Any) -> JSON:
    return named("rectilinear", kind="inline", chunk_shapes=list(shapes))


R = ChunkAxis.regular
GRIDS: dict[str, tuple[ManifestArray, JSON]] = {
    "scalar": (array_of((), ((), ())), regular()),
    "regular": (array_of((7,), ((0,), (R(7, 3),))), regular(3)),
    "longer than the array": (array_of((7,), ((0,), (R(7, 9),))), regular(9)),
    "exactly one": (array_of((7,), ((0,), (whole(7),))), regular(7)),
    "no fragment": (array_of((7, 0)), regular(7, 1)),
    "no elements": (array_of((0, 5), ((0, 0), (R(0, 2), whole(2, 3)))), regular(1, 5)),
    "side by side": (array_of((7,), ((0,), (R(3, 3),)), ((3,), (R(4, 3),))), regular(3)),
    "a gap": (array_of((9,), ((0,), (R(3, 3),)), ((6,), (R(3, 3),))), regular(3)),
    "a short last chunk": (array_of((8,), ((0,), (whole(3, 3, 2),))), rectilinear([[3, 2], 2])),
    "months": (
        array_of((90, 4), ((0, 0), (whole(31, 28, 31), R(4, 3)))),
        rectilinear([31, 28, 31], [[3, 2]]),
    ),
    "a long last chunk": (
        array_of((7,), ((0,), (whole(2, 4, 1, last=9),))),
        rectilinear([2, 4, 9]),
    ),
    "two fragments": (
        array_of((5, 6), ((0, 0), (R(5, 5), whole(2, 1))), ((0, 3), (R(5, 5), whole(3)))),
        rectilinear([5], [2, 1, 3]),
    ),
    "tiles": (
        array_of((5, 6), ((0, 0), (R(2, 2), R(4, 4))), ((2, 4), (R(3, 3), R(2, 2)))),
        rectilinear([2, 3], [4, 2]),
    ),
    "an irregular gap": (
        array_of((20,), ((3,), (whole(3, 4),)), ((18,), (whole(1, 1),))),
        rectilinear([[3, 2], [4, 3], [1, 2]]),
    ),
    "a gap at the end": (
        array_of((20,), ((0,), (whole(3, 4),))),
        rectilinear([3, [4, 4], 1]),
    ),
}


@looped("name", GRIDS)
def test_the_grid_of_fragments_is_written(name: str) -> None:
    array, grid = GRIDS[name]
    assert grid_to_v3(array) == grid
    axes = axes_from_v3(array.shape, json.loads(json.dumps(grid)))
    assert tuple(axis.size for axis in axes) == array.shape
    for fragment in array.fragments:
        origin = find_origin(fragment, axes)
        if fragment.manifest.size:
            lies_at(fragment, origin, axes)


def lies_at(fragment: Fragment, origin: Sequence[int], axes: Sequence[ChunkAxis]) -> None:
    """Demand that the chunks of a fragment are chunks of a grid, from a place on."""
    for start, cut, first, axis in zip(fragment.start, fragment.axes, origin, axes, strict=True):
        ours, theirs = cut.slabs(), axis.slabs(first, first + cut.nchunks)
        np.testing.assert_array_equal(ours.edges + start, theirs.edges)
        np.testing.assert_array_equal(ours.encoded, theirs.encoded)
        np.testing.assert_array_equal(ours.inset, theirs.inset)


NO_GRID: dict[str, ManifestArray] = {
    "hidden elements": array_of((5,), ((0,), (R(5, 3, inset=1),))),
    "padding inside": array_of((7,), ((0,), (ChunkAxis.from_slabs([2, 3, 2], [3, 3, 3]),))),
    "cut in two ways": array_of(
        (4, 6), ((0, 0), (R(2, 2), whole(2, 4))), ((2, 0), (R(2, 2), whole(3, 3)))
    ),
    "stored in two ways": array_of(
        (4, 6), ((0, 0), (R(2, 2), whole(2, 4))), ((2, 0), (R(2, 2), whole(2, 4, last=5)))
    ),
    "a gap of another value": array_of((9,), ((0,), (R(3, 3),)), fill=1),
    "an irregular gap of another value": array_of((9,), ((0,), (whole(1, 3),)), fill=1),
}


@pytest.mark.parametrize("name", NO_GRID)
def test_fragments_on_no_common_grid_have_no_grid(name: str) -> None:
    assert grid_to_v3(NO_GRID[name]) is None


@pytest.mark.skipif(
    zarr.config.get(RECTILINEAR, None) is None, reason="this zarr-python knows only regular grids"
)
@pytest.mark.parametrize("name", [name for name in GRIDS if GRIDS[name][0].size])
def test_zarr_python_cuts_arrays_at_the_same_planes(name: str) -> None:
    array, grid = GRIDS[name]
    values = np.arange(array.size, dtype="i4").reshape(array.shape)
    axes = axes_from_v3(array.shape, grid)
    chunks = {}
    for where in np.ndindex(*(axis.nchunks for axis in axes)):
        columns = [axis.slabs(i, i + 1) for axis, i in zip(axes, where, strict=True)]
        chunk = np.zeros([int(c.encoded[0]) for c in columns], "<i4")
        part = values[tuple(slice(*c.edges.tolist()) for c in columns)]
        chunk[tuple(slice(0, n) for n in part.shape)] = part
        chunks["/".join(["c", *map(str, where)])] = chunk.tobytes()
    with zarr.config.set({RECTILINEAR: True}):
        metadata = metadata_of(shape=list(array.shape), chunk_grid=grid)
        same_values(their_values(metadata, chunks), values)


@st.composite
def meshes(draw: st.DrawFn) -> tuple[list[ChunkAxis], ManifestArray]:
    """Axes, and an array of some boxes that are cut out of them at their planes."""
    axes = []
    for _ in range(draw(st.integers(0, 3))):
        lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
        axes.append(whole(*lengths, last=lengths[-1] + draw(st.integers(0, 2))))
    boxes: list[tuple[list[int], list[ChunkAxis]]] = [([], [])]
    for axis in axes:
        edges = axis.slabs().edges.tolist()
        inner = draw(st.sets(st.sampled_from(edges[1:-1]))) if len(edges) > 2 else set()
        planes = [0, *sorted(inner), edges[-1]]
        parts = [(a, axis.crop(a, b)[0]) for a, b in pairwise(planes)]
        boxes = [([*s, a], [*cut, part]) for s, cut in boxes for a, part in parts]
    kept = [box for box in boxes if draw(st.booleans())] or boxes[:1]
    return axes, array_of([axis.size for axis in axes], *kept)


@given(meshes())
def test_a_grid_comes_back_with_the_planes_of_all_fragments(
    drawn: tuple[list[ChunkAxis], ManifestArray],
) -> None:
    axes, array = drawn
    grid = json.loads(json.dumps(grid_to_v3(array)))
    found = axes_from_v3(array.shape, grid)
    for fragment in array.fragments:
        origin = find_origin(fragment, found)
        lies_at(fragment, origin, found)
    if not array.has_gaps:
        assert list(found) == axes


SPELLED_GRIDS: dict[str, tuple[Sequence[int], JSON, list[Any]]] = {
    "scalar": ((), regular(), []),
    "regular": ((7,), regular(3), [R(7, 3)]),
    "no elements": ((0, 0), regular(0, 4), [R(0, 1), R(0, 4)]),
    "every so many": ((7, 4), rectilinear(3, 9), [R(7, 3), R(4, 9)]),
    "runs": ((9,), rectilinear([[2, 3], 3]), [whole(2, 2, 2, 3)]),
    "short": ((8,), rectilinear([3, 3, 2]), [R(8, 3, last=2)]),
    "beyond": ((7,), rectilinear([[4, 2]]), [R(7, 4)]),
    "far beyond": ((7,), rectilinear([1, 4, 4, 4, [9, 9]]), [whole(1, 4, 2, last=4)]),
    "nothing but beyond": ((0,), rectilinear([[4, 2]]), [R(0, 1)]),
    "no chunks": ((0,), rectilinear([]), [R(0, 1)]),
    "very many": ((10**15,), rectilinear([[1, 10**18]]), [R(10**15, 1)]),
    "very many beyond": ((3,), rectilinear([2, [5, 10**18]]), [whole(2, 1, last=5)]),
}


@looped("name", SPELLED_GRIDS)
def test_every_spelling_of_a_grid_is_read(name: str) -> None:
    shape, grid, axes = SPELLED_GRIDS[name]
    assert list(axes_from_v3(shape, grid)) == axes


WRONG_GRIDS: dict[str, tuple[Any, type[Exception], str]] = {
    "nothing": (None, FormatError, "chunk_grid None"),
    "unknown": (named("hexagonal"), UnsupportedError, "'hexagonal'"),
    "kind": (named("rectilinear", kind="file", chunk_shapes=[[7]]), UnsupportedError, "'file'"),
    "no kind": (named("rectilinear", chunk_shapes=[[7]]), UnsupportedError, "kind None"),
    "axes": (regular(3, 3), FormatError, r"shape \[7\]"),
    "no shape": (named("regular"), FormatError, "chunk_shape None"),
    "text": (named("regular", chunk_shape="3"), FormatError, "chunk_shape '3'"),
    "zero": (regular(0), FormatError, "axis 0"),
    "fraction": (regular(2.5), FormatError, "axis 0"),  # type: ignore[arg-type]
    "list": (regular([3, 4]), FormatError, "axis 0"),  # type: ignore[arg-type]
    "too few": (rectilinear([3, 3]), FormatError, "its 7 elements"),
    "none": (rectilinear([]), FormatError, "its 7 elements"),
    "zero length": (rectilinear([0, 7]), FormatError, "axis 0"),
    "zero times": (rectilinear([[7, 0]]), FormatError, "axis 0"),
    "triple": (rectilinear([[7, 1, 1]]), FormatError, "axis 0"),
    "truth": (rectilinear([True, 7]), FormatError, "axis 0"),
    "truth in a run": (rectilinear([[7, True]]), FormatError, "axis 0"),
    "fraction in a run": (rectilinear([[7.0, 1]]), FormatError, "axis 0"),
    "more than a number may be in a run": (rectilinear([[2**70, 1]]), FormatError, "axis 0"),
    "more than a number may be": (rectilinear([2**70]), FormatError, "axis 0"),
    "minus": (rectilinear([7, -1]), FormatError, "axis 0"),
    "text in a run": (rectilinear([[7, "1"]]), FormatError, "axis 0"),
}


@looped("name", WRONG_GRIDS)
def test_grids_that_make_no_sense_are_refused(name: str) -> None:
    grid, error, words = WRONG_GRIDS[name]
    with pytest.raises(error, match=words):
        axes_from_v3((7,), grid)


def test_arrays_of_the_same_listed_chunks_share_an_axis() -> None:
    grid = rectilinear([31, 28, [31, 2]])
    [first], [second] = (axes_from_v3((121,), json.loads(json.dumps(grid))) for _ in range(2))
    assert first is second
    # the name of the grid counts
    with pytest.raises(FormatError):
        axes_from_v3((121,), named("regular", chunk_shape=[[31, 28, [31, 2]]]))


# ---------------------------------------------------------------------- as a whole


def test_sound_metadata_pass() -> None:
    check_zarr_v3(metadata_of())
    more = {"dimension_names": [None], "attributes": {}, "storage_transformers": ["x"]}
    check_zarr_v3(metadata_of(**more, other={"must_understand": False, "x": 1}))


def without(key: str) -> JSON:
    return {name: value for name, value in metadata_of().items() if name != key}


UNSOUND: dict[str, tuple[Any, type[Exception], str]] = {
    "not an object": ([], FormatError, "not an object"),
    "version": (metadata_of(zarr_format=2), FormatError, "zarr_format is 2"),
    "group": (metadata_of(node_type="group"), FormatError, "node_type is 'group'"),
    "fill value": (without("fill_value"), FormatError, "no 'fill_value'"),
    "negative": (metadata_of(shape=[-1]), FormatError, "shape"),
    "fraction": (metadata_of(shape=[1.0]), FormatError, "shape"),
    "number": (metadata_of(shape=3), FormatError, "shape"),
    "names": (metadata_of(dimension_names=["a", "b"]), FormatError, "dimension_names"),
    "numbers": (metadata_of(dimension_names=[3]), FormatError, "dimension_names"),
    "codecs": (metadata_of(codecs="bytes"), FormatError, "codecs"),
    "attributes": (metadata_of(attributes=[]), FormatError, "attributes"),
    "unknown": (metadata_of(other=1), UnsupportedError, "'other'"),
    "must": (metadata_of(other={"must_understand": True}), UnsupportedError, "'other'"),
    "implicitly": (metadata_of(other={}), UnsupportedError, "'other'"),
}


@looped("name", UNSOUND)
def test_impossible_metadata_of_arrays_are_refused(name: str) -> None:
    metadata, error, words = UNSOUND[name]
    with pytest.raises(error, match=words):
        check_zarr_v3(metadata)
