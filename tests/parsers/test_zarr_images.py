"""Chunks that are one stream each are read in the shape and type of the array, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from products import looped
from registered_codecs import Case
from registered_images import (
    COLOURS,
    DRAWN,
    FRAMES,
    FULL,
    GREY,
    IMAGES,
    JPEGS,
    LINES,
    REALS,
    SAMPLES,
    SHOWN,
    TINTED,
    TURNED,
    WRITTEN,
    YCBCR,
    drawn,
    jpeg,
    jpegxl,
    numbers,
)
from zarr_stores import LITTLE, named, sharded, v3

import virtualds
from virtualds.codecs import codec_from_zarr_v2, codec_from_zarr_v3
from virtualds.codecs.codec import CodecError
from virtualds.errors import FormatError, ReadError, UnsupportedError


def opened(path: Path) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path, loadable_variables=[], decode_cf=False)


def chain_of(path: Path) -> Any:
    return json.loads((path / "a/zarr.json").read_text())["codecs"]


def test_colours_are_those_that_were_compressed() -> None:
    for name in ("ycbcr", "full", "rgb"):
        assert abs(SHOWN[name].astype(int) - COLOURS).mean() < 10
    assert abs(SHOWN["grey"].astype(int) - GREY).max() < 8
    assert abs(IMAGES["jpegxl, with loss"].values.astype(int) - COLOURS).mean() < 10


def test_the_stream_of_a_permuted_image_has_lines_for_samples() -> None:
    """Whoever displays it would have lines for samples."""
    assert imagecodecs.jpegxl_decode(bytes(TURNED)).shape == (6, SAMPLES, LINES)


# ---------------------------------------------------------------------- arrays of other axes

SOME = ["jpeg, ycbcr", "jpegxl, uint16", "jpegxl, frames", "zfp, float64", "zfp, expert"]


@looped("name", SOME)
@looped("suffix", [".virtual.zarr", ".json"])
def test_an_axis_more_is_no_axis_of_the_stream(tmp_path: Path, name: str, suffix: str) -> None:
    one = IMAGES[name]
    refs = tmp_path / f"refs{suffix}"
    opened(one.write(tmp_path / "s")).expand_dims("t").virtual.to_manifest(refs)
    np.testing.assert_array_equal(opened(refs).a.values, one.expected[None])
    if suffix == ".virtual.zarr":
        assert chain_of(refs)[0] == named("reshape", shape=list(one.values.shape))


@pytest.mark.parametrize("name", SOME)
def test_permuted_axes_are_permuted_for_the_stream(tmp_path: Path, name: str) -> None:
    one = IMAGES[name]
    refs = tmp_path / "refs.virtual.zarr"
    found = opened(one.write(tmp_path / "s"))
    found.transpose().virtual.to_manifest(refs)
    np.testing.assert_array_equal(opened(refs).a.values, one.expected.T)
    assert [entry["name"] for entry in chain_of(refs)] == ["transpose", name.partition(",")[0]]


@pytest.mark.parametrize("name", SOME)
def test_parts_of_chunks_are_written_with_the_shape_of_whole_ones(
    tmp_path: Path, name: str
) -> None:
    one = IMAGES[name]
    refs = tmp_path / "refs.virtual.zarr"
    found = opened(one.write(tmp_path / "s"))
    part = found.isel({found.a.dims[0]: slice(0, one.values.shape[0] - 1)})
    xr.concat([part, found], dim=found.a.dims[0]).virtual.to_manifest(refs)
    expected = np.concatenate([one.values[:-1], one.expected])
    np.testing.assert_array_equal(opened(refs).a.values, expected)


@pytest.mark.parametrize("name", SOME)
def test_chunks_in_shards_have_their_own_shape(tmp_path: Path, name: str) -> None:
    one = IMAGES[name]
    index = np.array([0, len(one.chunk)], "<u8").tobytes()
    inner = sharded(*one.store.array["codecs"], chunk=one.values.shape, index=[LITTLE])
    shape = one.expected.shape
    store = v3(one.values.dtype.name, 0, inner, shape=shape, chunks=one.values.shape)
    shard = Case(store, one.chunk + index, one.values)
    np.testing.assert_array_equal(opened(shard.write(tmp_path / "s")).a.values, one.expected)


@pytest.mark.parametrize("name", SOME)
def test_chunks_of_several_shapes_are_refused_by_name(tmp_path: Path, name: str) -> None:
    one = IMAGES[name]
    lengths = [
        [n, m - n] if m > n else [m]
        for n, m in zip(one.values.shape, one.expected.shape, strict=True)
    ]
    grid = named("rectilinear", kind="inline", chunk_shapes=lengths)
    path = one.write(tmp_path / "s", chunk_grid=grid)
    with pytest.raises(UnsupportedError, match=f"{name.partition(',')[0]}.*regular grid"):
        opened(path)


@pytest.mark.parametrize("name", SOME)
def test_zarr_python_gets_images_decoded_from_the_zarr_store(tmp_path: Path, name: str) -> None:
    one = IMAGES[name]
    store = virtualds.zarr_store(one.write(tmp_path / "s"))
    assert store.decoded == ("a",)
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["a"][...], one.expected)


# ---------------------------------------------------------------------- damage

OTHER_STREAMS: dict[str, tuple[Case, bytes, str]] = {
    "jpeg of another shape": (jpeg(JPEGS["grey"], SHOWN["grey"].T), JPEGS["grey"], "34, 21"),
    "jpeg of more colours": (jpeg(b"", SHOWN["grey"]), JPEGS["ycbcr"], "21, 34, 1"),
    "jpeg of fewer colours": (jpeg(b"", SHOWN["ycbcr"], **YCBCR), JPEGS["grey"], "21, 34, 3"),
    "jpeg without its end": (jpeg(b"", SHOWN["grey"]), JPEGS["grey"][:-30], "no end"),
    "no jpeg": (jpeg(b"", SHOWN["grey"]), b"no image at all", "no frame header"),
    "jpegxl of another shape": (jpegxl(b"", DRAWN[0].T), drawn(DRAWN[0]), "21, 34"),
    "jpegxl of wider numbers": (jpegxl(b"", GREY), drawn(DRAWN[0]), "16 bits"),
    "jpegxl of floats": (jpegxl(b"", DRAWN[0]), drawn(REALS[1].astype("f2")), "an exponent"),
    "jpegxl of narrower floats": (jpegxl(b"", REALS[1]), drawn(REALS[1].astype("f2")), "16 bits"),
    "jpegxl of integers": (jpegxl(b"", REALS[1].astype("f2")), drawn(DRAWN[0]), "0 of them"),
    "jpegxl of more channels": (jpegxl(b"", GREY), drawn(TINTED.astype("u1")), "34, 3"),
    "jpegxl of fewer frames": (jpegxl(b"", DRAWN), drawn(DRAWN[:5]), "5, 21, 34"),
    "jpegxl of no frames": (jpegxl(b"", DRAWN), drawn(DRAWN[0]), "one frame"),
    "jpegxl of channels for frames": (
        jpegxl(b"", FRAMES[:3]), drawn(FRAMES[:3], planar=True), "2 channels"),
    "jpegxl cut off": (jpegxl(b"", DRAWN[0]), drawn(DRAWN[0])[:-9], "jpegxl"),
    "jpegxl without its headers": (jpegxl(b"", GREY), drawn(GREY)[:3], "are truncated"),
    "jpegxl without an image": (
        jpegxl(b"", GREY), drawn(GREY, usecontainer=True)[:40], "contain no image"),
    "no jpegxl": (jpegxl(b"", GREY), JPEGS["grey"], "contain no image"),
    "zfp cut off": (IMAGES["zfp, float64"], IMAGES["zfp, float64"].chunk[:-9], "before the last"),
    "zfp of another rate": (
        IMAGES["zfp, fixed rate"], IMAGES["zfp, fixed rate"].chunk[:-1], "54 blocks of 101 bits"),
    "zfp of a higher rate": (
        IMAGES["zfp, fixed rate"], IMAGES["zfp, fixed rate"].chunk * 2, "54 blocks of 101 bits"),
    "hardly a zfp": (IMAGES["zfp, float64"], b"\0", "blocks of 1 bits"),
    "jpeg without data": (jpeg(b"", SHOWN["grey"]), JPEGS["grey"][:200] + b"\xff\xd9", "jpeg"),
}  # fmt: skip


@looped("name", OTHER_STREAMS)
def test_streams_that_are_not_the_chunk_are_an_error(tmp_path: Path, name: str) -> None:
    one, stream, words = OTHER_STREAMS[name]
    path = Case(one.store, stream, one.values).write(tmp_path / "s")
    with pytest.raises(ReadError, match=words) as caught:
        opened(path).a.values  # noqa: B018
    assert "a/c/0" in str(caught.value)


def ycbcr(**how: Any) -> Any:
    return named("jpeg", quality=90, encoded_color_space="ycbcr", **how)


def zfp_in(mode: str, **how: Any) -> Any:
    return named("zfp", mode=mode, **how)


SHAPES_REFUSED: dict[str, tuple[str, tuple[int, ...], Any, str]] = {
    "jpeg of wide numbers": ("uint16", (3, 4), named("jpeg", quality=90), "not uint8"),
    "jpeg of a line": ("uint8", (7,), named("jpeg", quality=90), "not images"),
    "jpeg of two components": ("uint8", (3, 4, 2), ycbcr(), "not images"),
    "jpeg of four axes": ("uint8", (2, 3, 4, 3), ycbcr(), "not images"),
    "jpeg too wide": ("uint8", (2, 65536), named("jpeg", quality=90), "longer than 65535"),
    "jpeg of colours in no space": ("uint8", (3, 4, 3), named("jpeg", quality=90), "neither"),
    "jpeg of colours in another space": (
        "uint8", (3, 4, 3), named("jpeg", quality=90, encoded_color_space="xyb"), "'xyb'"),
    "jpeg of grey in a space": ("uint8", (3, 4), ycbcr(), "grey"),
    "jpeg of grey in factors of three": (
        "uint8", (3, 4), named("jpeg", quality=90, subsampling=FULL), "grey"),
    "jpeg of two factors": ("uint8", (3, 4, 3), ycbcr(subsampling=[[2, 2], [1, 1]]), "subsampl"),
    "jpeg of coarse grey": (
        "uint8", (3, 4, 3), ycbcr(subsampling=[[1, 1], [2, 2], [1, 1]]), "subsampl"),
    "jpeg of nothing": ("uint8", (3, 4, 3), ycbcr(subsampling=[0, 1, 1]), "'jpeg'"),
    "jpeg of coarse rgb": (
        "uint8",
        (3, 4, 3),
        named("jpeg", encoded_color_space="rgb", subsampling=[[2, 1], [1, 1], [1, 1]]),
        "of rgb"),
    "jpeg of no quality": ("uint8", (3, 4), named("jpeg", quality=101), "101"),
    "jpeg of another key": ("uint8", (3, 4), named("jpeg", level=3), "'level'"),
    "jpegxl of wide integers": ("uint32", (3, 4), named("jpegxl", **WRITTEN), "<u4"),
    "jpegxl of signed integers": ("int16", (3, 4), named("jpegxl", **WRITTEN), "<i2"),
    "jpegxl of a line": ("uint8", (7,), named("jpegxl", **WRITTEN), "not images"),
    "jpegxl of one channel": ("uint8", (3, 4, 1), named("jpegxl", **WRITTEN), "not images"),
    "jpegxl of one frame": ("uint8", (1, 3, 5), named("jpegxl", **WRITTEN), "not images"),
    "jpegxl of one frame of colours": (
        "uint8", (1, 3, 4, 3), named("jpegxl", **WRITTEN), "not images"),
    "jpegxl of five channels": ("uint8", (2, 3, 4, 5), named("jpegxl", **WRITTEN), "not images"),
    "jpegxl of another key": ("uint8", (3, 4), named("jpegxl", index=3), "'index'"),
    "zfp in no mode": ("float32", (3, 4), named("zfp"), "mode"),
    "zfp in an unknown mode": ("float32", (3, 4), zfp_in("lossless"), "lossless"),
    "zfp without its parameter": ("float32", (3, 4), zfp_in("fixed_rate"), "'rate'"),
    "zfp with a header": ("float32", (3, 4), zfp_in("reversible", write_header=True), "header"),
    "zfp at no rate": ("int32", (3, 4), zfp_in("fixed_rate", rate=0), "0 to 0 bits"),
    "zfp at a negative rate": ("int32", (3, 4), zfp_in("fixed_rate", rate=-1), "-1"),
    "zfp at the rate of a word": ("int32", (3, 4), zfp_in("fixed_rate", rate="8"), "'8'"),
    "zfp of negative accuracy": (
        "float32", (3, 4), zfp_in("fixed_accuracy", tolerance=-0.1), "-0.1"),
    "zfp of accurate integers": (
        "int32", (3, 4), zfp_in("fixed_accuracy", tolerance=0.1), "no fixed accuracy"),
    "zfp of negative precision": (
        "float32", (3, 4), zfp_in("fixed_precision", precision=-1), "-1 planes"),
    "zfp of half a bit plane": (
        "float32", (3, 4), zfp_in("fixed_precision", precision=2.5), "integers"),
    "zfp of more bits than the most": (
        "float32",
        (3, 4),
        zfp_in("expert", minbits=9, maxbits=8, maxprec=64, minexp=0),
        "9 to 8 bits"),
    "zfp of five axes": ("float32", (1, 2, 3, 4, 5), zfp_in("reversible"), "4 axes"),
    "jpeg in another number of pixels": (
        "uint8", (3, 4), [named("reshape", shape=[5, 2]), named("jpeg")], "'reshape'"),
    "reshape of axes in another order": (
        "uint8", (3, 4), [named("reshape", shape=[[1], [0]]), named("jpeg")], "'reshape'"),
    "reshape of axes that lie elsewhere": (
        "uint8", (2, 6), [named("reshape", shape=[6, [0]]), named("jpeg")], "'reshape'"),
    "reshape of an unknown axis": (
        "uint8", (3, 4), [named("reshape", shape=[[0], [2]]), named("jpeg")], "'reshape'"),
    "reshape to nothing": (
        "uint8", (3, 4), [named("reshape", shape=[0, -1]), named("jpeg")], "'reshape'"),
    "reshape to what is left twice": (
        "uint8", (3, 4), [named("reshape", shape=[-1, -1]), named("jpeg")], "'reshape'"),
    "reshape without a shape": ("uint8", (3, 4), [named("reshape"), named("jpeg")], "'reshape'"),
}  # fmt: skip


@looped("name", SHAPES_REFUSED)
def test_chunks_that_are_no_such_streams_are_refused(tmp_path: Path, name: str) -> None:
    kind, chunk, codecs, words = SHAPES_REFUSED[name]
    chain = codecs if isinstance(codecs, list) else [codecs]
    names = ["vutsr"[axis] for axis in range(len(chunk))]
    store = v3(kind, 0, *chain, shape=chunk, chunks=chunk, dimension_names=names)
    path = Case(store, b"", np.zeros(chunk, kind)).write(tmp_path / "s")
    with pytest.raises(FormatError, match=words) as caught:
        opened(path)
    assert "the metadata is damaged" in str(caught.value)


NOT_LAID_DOWN: dict[str, tuple[str, tuple[int, ...], str]] = {
    "unsigned": ("uint32", (3, 4), "how it becomes a type of zfp"),
    "unsigned and long": ("uint64", (3, 4), "how it becomes a type of zfp"),
    "complex": ("complex64", (3, 4), "how it becomes a type of zfp"),
    "long axes": ("float32", (1, 1, 1, 4097), "more than 4096 elements"),
}


@pytest.mark.parametrize("name", NOT_LAID_DOWN)
def test_arrays_that_zfp_does_not_know_are_refused_by_name(tmp_path: Path, name: str) -> None:
    kind, chunk, words = NOT_LAID_DOWN[name]
    fill: Any = [0, 0] if kind == "complex64" else 0
    store = v3(kind, fill, zfp_in("reversible"), shape=chunk, chunks=chunk)
    path = Case(store, b"", np.zeros(chunk, kind)).write(tmp_path / "s")
    with pytest.raises(UnsupportedError, match=words) as caught:
        opened(path)
    assert "'zfp'" in str(caught.value)


OF_ZFP = np.arange(6, dtype="f4").reshape(2, 3) * 1.5
STREAMS_OF_ZFP = {
    "reversible": ("091689990410c924", {}),
    "fixed_rate": ("052d71510a69840900120000000000000000000000000000", {"rate": 10}),
    "fixed_precision": ("052d71510a69840900120000000000000000000000000000", {"precision": 20}),
    "fixed_accuracy": ("052d71510a69840900120000000000000000000000000000", {"tolerance": 0.01}),
}
"""What zfp 1.0.1 wrote of them without a header, and it reads again without loss."""


@pytest.mark.parametrize("mode", STREAMS_OF_ZFP)
def test_streams_of_zfp_itself_are_read(mode: str) -> None:
    stream, how = STREAMS_OF_ZFP[mode]
    codec = codec_from_zarr_v3("zfp", {"mode": mode, **how}, OF_ZFP.dtype, OF_ZFP.shape)
    for nbytes in (24, None):
        assert bytes(codec.decode(bytes.fromhex(stream), nbytes)) == OF_ZFP.tobytes()
    with pytest.raises(CodecError, match="24 bytes, not 28"):
        codec.decode(bytes.fromhex(stream), 28)


def test_zfp_of_an_array_without_axes_is_that_of_one_number() -> None:
    stream, _ = numbers(np.array([-7.25]))
    codec = codec_from_zarr_v3("zfp", {"mode": "reversible"}, np.dtype("f8"), ())
    assert bytes(codec.decode(stream, 8)) == np.float64(-7.25).tobytes()


def test_pipelines_differ_only_where_decoding_does() -> None:
    def codec(name: str, **config: Any) -> Any:
        return codec_from_zarr_v3(name, config, np.dtype("u1"), (3, 4))

    assert codec("jpeg", quality=10) == codec("jpeg", quality=90)
    assert codec("jpegxl", effort=1) == codec("jpegxl", effort=9)
    assert codec("zfp", mode="fixed_rate", rate=8) != codec("zfp", mode="fixed_rate", rate=9)


def test_axes_are_not_permuted_once_they_are_others(tmp_path: Path) -> None:
    chain = [named("reshape", shape=[4, 3]), named("transpose", order=[1, 0]), LITTLE]
    store = v3("uint8", 0, *chain, shape=(3, 4), chunks=(3, 4))
    path = Case(store, b"", np.zeros((3, 4), "u1")).write(tmp_path / "s")
    with pytest.raises(UnsupportedError, match="'transpose' after 'reshape'"):
        opened(path)


RESHAPED: dict[str, tuple[Any, ...]] = {
    "axes joined": ([[0, 1], [2]],),
    "what is left": ([2, -1],),
    "numbers": ([6, 20],),
    "filters behind": ([120], named("scale_offset", offset=0, scale=1)),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_reshaped_chunks_of_plain_bytes_are_those_of_the_array(tmp_path: Path, name: str) -> None:
    shape, *behind = RESHAPED[name]
    values = np.arange(120, dtype="i2").reshape(4, 5, 6)
    store = v3(
        "int16",
        0,
        named("reshape", shape=shape),
        *behind,
        LITTLE,
        shape=(8, 5, 6),
        chunks=(4, 5, 6),
    )
    one = Case(store, values.tobytes(), values)
    np.testing.assert_array_equal(opened(one.write(tmp_path / "s")).a.values, one.expected)


def test_configurations_in_zarr_v2_are_checked_alike() -> None:
    config = {"id": "virtualds_jpeg", "shape": [3, 4, 2], "dtype": "|u1", "configuration": {}}
    with pytest.raises(ValueError, match="not images"):
        codec_from_zarr_v2(config)


DAMAGED = [*SOME[:3], "jpegxl, uint16 of 12 bits", "zfp, float32", "zfp, fixed rate"]


@pytest.mark.parametrize("name", DAMAGED)
@given(st.data())
def test_damaged_streams_keep_the_length(name: str, data: st.DataObject) -> None:
    one = IMAGES[name]
    [entry] = one.store.array["codecs"]
    codec = codec_from_zarr_v3(
        entry["name"], entry["configuration"], one.values.dtype, one.values.shape
    )
    damaged = bytearray(one.chunk)
    for _ in range(data.draw(st.integers(1, 3))):
        # headers are where most is to be damaged
        last = data.draw(st.sampled_from([40, len(damaged) - 1]))
        damaged[data.draw(st.integers(0, last))] = data.draw(st.integers(0, 255))
    try:
        found = codec.decode(bytes(damaged), one.values.nbytes)
    except CodecError:
        return
    assert len(found) == one.values.nbytes
