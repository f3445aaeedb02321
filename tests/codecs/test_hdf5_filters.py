"""HDF5 filters decode to the bytes that HDF5 itself reads, whoever implements the filter."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import imagecodecs.numcodecs as theirs
import numpy as np
import pytest
from effort import times
from filtered_chunks import FILTERS, SHAPES, WHOLE, Filter, codecs_of, raw_chunks, store
from hypothesis import given, settings
from hypothesis import strategies as st
from products import looped

import virtualds
from virtualds import UnsupportedError
from virtualds.codecs import (
    codec_from_hdf5,
    codec_from_zarr_v2,
    codec_from_zarr_v3,
    list_codec_names,
)
from virtualds.codecs.codec import Codec, CodecError
from virtualds.codecs.hdf import ROWS_PER_BATCH, unpack_bits

KINDS = ("smooth", "noise", "constant", "filled")


def values(kind: str, shape: tuple[int, ...], dtype: str, fill: Any) -> Any:
    rng = np.random.default_rng(len(kind))
    size = int(np.prod(shape))
    real = np.dtype(dtype).kind == "f"
    if kind == "constant":
        found = np.full(size, 42)
    elif kind == "noise" and not real:
        native = np.dtype(dtype).newbyteorder("=")
        found = np.frombuffer(rng.bytes(size * native.itemsize), native)
    else:
        found = np.cumsum(rng.integers(0, 3, size)) % 90
        found = found + rng.normal(size=size) * (1e4 if kind == "noise" else 1) if real else found
    if kind == "filled":
        found = np.where(rng.random(size) < 0.3, 0 if fill is None else fill, found)
    return found.reshape(shape).astype(dtype)


def decoded(codecs: list[Codec], raw: bytes, mask: int, nbytes: int) -> bytes:
    used = [codec for i, codec in enumerate(codecs) if not mask >> i & 1]
    sizes: list[int | None] = [nbytes]
    for codec in used[:-1]:
        sizes.append(None if sizes[-1] is None else codec.encoded_size(sizes[-1]))
    data: Any = raw
    for codec, size in reversed(list(zip(used, sizes, strict=False))):
        data = codec.decode(data, size)
    return bytes(data)


def check(dataset: h5py.Dataset) -> int:
    """Compare every chunk; return how many were not stored as they are."""
    codecs = codecs_of(dataset)
    nbytes = dataset.dtype.itemsize * int(np.prod(dataset.chunks))
    encoded = 0
    for box, mask, raw in raw_chunks(dataset):
        flat = np.frombuffer(decoded(codecs, raw, mask, nbytes), dataset.dtype)
        found = flat.reshape(dataset.chunks)[tuple(slice(b.stop - b.start) for b in box)]
        assert found.tobytes() == dataset[box].tobytes()
        encoded += not mask
    return encoded


CASES = [
    pytest.param(chosen, dtype, id=f"{name}-{dtype}")
    for name, chosen in FILTERS.items()
    for dtype in chosen.dtypes
]


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize(("chosen", "dtype"), CASES)
def test_chunks_decode_to_what_hdf5_reads(chosen: Filter, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        for name in chosen.shapes:
            shape, chunks = SHAPES[name]
            for kind in KINDS:
                data = values(kind, shape, dtype, chosen.fill)
                store(file, f"{name} {kind}", chosen, data, chunks)
    with h5py.File(path) as file:
        assert sum(check(dataset) for dataset in file.values())


@pytest.mark.parametrize(
    "name", [n for n, f in FILTERS.items() if f.number > 32000 and n[-2:] != " 8"]
)
def test_large_chunks_of_many_blocks(name: str, tmp_path: Path) -> None:
    chosen = FILTERS[name]
    with h5py.File(tmp_path / "file.h5", "w") as file:
        data = np.arange(700 * 501).reshape(1, 700, 501) // 7 % 30_000
        store(file, "v", chosen, data.astype(chosen.dtypes[-1]), (1, 601, 401))
    with h5py.File(tmp_path / "file.h5") as file:
        assert check(file["v"])


def test_every_filter_is_tested() -> None:
    elsewhere = {1, 2, 3, 4, 5}
    assert {chosen.number for chosen in FILTERS.values()} | elsewhere == set(
        list_codec_names("hdf5")
    )


# ---------------------------------------------------------------------- nbit


def integer_type(dtype: str, precision: int, offset: int) -> Any:
    kind = h5py.h5t.py_create(np.dtype(dtype)).copy()
    kind.set_precision(precision)
    kind.set_offset(offset)
    return kind


def small_float(order: int) -> Any:
    """A float of 20 bits within 4 bytes: the example of `H5Pset_nbit`."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(26, 20, 6, 7, 13)
    kind.set_offset(7)
    kind.set_precision(20)
    kind.set_size(4)
    kind.set_ebias(31)
    kind.set_order(order)
    return kind


def native(file: h5py.File, name: str, kind: Any, data: Any, nbit: bool = False) -> h5py.Dataset:
    """A dataset of any HDF5 type, which the high-level interface cannot make."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((7,))
    if nbit:
        plist.set_filter(h5py.h5z.FILTER_NBIT, h5py.h5z.FLAG_MANDATORY)
    space = h5py.h5s.create_simple(data.shape)
    dataset = h5py.h5d.create(file.id, name.encode(), kind, space, plist)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, data)
    file.flush()
    return file[name]


def check_nbit(file: h5py.File, kind: Any, data: Any) -> None:
    """HDF5 reads the decoded chunks, stored without the filter, as it reads the encoded ones."""
    name = f"{len(file)}"
    packed = native(file, name, kind, data, nbit=True)
    plain = native(file, name + " plain", kind, np.zeros_like(data))
    unused = ~np.uint64((1 << kind.get_precision()) - 1 << kind.get_offset())
    for box, mask, raw in raw_chunks(packed):
        assert mask == 0
        found = decoded(codecs_of(packed), raw, mask, 7 * kind.get_size())
        order = "<>"[kind.get_order()]
        assert not np.any(np.frombuffer(found, f"{order}u{kind.get_size()}") & unused)
        plain.id.write_direct_chunk((box[0].start,), found)
    assert packed[()].tobytes() == plain[()].tobytes()


@pytest.mark.parametrize("dtype", WHOLE)
def test_nbit_gives_integers_of_any_precision_and_offset(dtype: str) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    signed = np.dtype(dtype).kind == "i"
    rng = np.random.default_rng(0)
    file = h5py.File("nowhere", "w", driver="core", backing_store=False)
    # HDF5 makes no types of which half the bits are unused, but among bytes
    for precision in {*range(bits // 2 + 1, bits, bits // 8), bits - 1, bits}:
        for offset in {0, 1, 3, bits - precision}:
            if precision + offset <= bits:
                top = 2 ** (precision - signed)
                plain = np.dtype(dtype).newbyteorder("=")
                data = rng.integers(-top if signed else 0, top - 1, 37, plain, endpoint=True)
                check_nbit(file, integer_type(dtype, precision, offset), data)


@pytest.mark.parametrize("order", [h5py.h5t.ORDER_LE, h5py.h5t.ORDER_BE])
def test_nbit_gives_floats(order: int) -> None:
    data = np.linspace(-9, 9, 37, dtype="f4")
    file = h5py.File("nowhere", "w", driver="core", backing_store=False)
    check_nbit(file, small_float(order), data)
    check_nbit(file, h5py.h5t.IEEE_F64LE, data.astype("f8"))


def test_nbit_leaves_what_it_does_not_know_as_it_is(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.h5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((7,))
        plist.set_filter(h5py.h5z.FILTER_NBIT, h5py.h5z.FLAG_MANDATORY)
        kind = h5py.enum_dtype({"a": 1, "b": 2}, "<i2")
        dataset = file.create_dataset("v", data=np.array([1, 2] * 9, kind), dcpl=plist)
        (codec,) = codecs_of(dataset)
        assert codec.decode(b"ab" * 7, 14) == b"ab" * 7
        with pytest.raises(CodecError, match="13 bytes, not 14"):
            codec.decode(bytes(13), 14)


COMPOUND = np.dtype([("a", "i2"), ("b", "f4")])


@pytest.mark.parametrize("dtype", [COMPOUND, np.dtype(("i2", (3,)))], ids=["compound", "array"])
def test_nbit_of_compounds_and_arrays_is_refused_by_name(dtype: Any, tmp_path: Path) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((7,))
    plist.set_filter(h5py.h5z.FILTER_NBIT, h5py.h5z.FLAG_MANDATORY)
    with h5py.File(tmp_path / "file.h5", "w") as file:
        kind = h5py.h5t.py_create(dtype)
        if dtype is COMPOUND:
            kind = h5py.h5t.create(h5py.h5t.COMPOUND, 8)
            kind.insert(b"a", 0, integer_type("<i2", 12, 0))
            kind.insert(b"b", 4, h5py.h5t.IEEE_F32LE)
        else:
            kind = h5py.h5t.array_create(integer_type("<i2", 12, 0), (3,))
        space = h5py.h5s.create_simple((14,))
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"v", kind, space, plist))
        with pytest.raises(UnsupportedError, match=r"nbit.*compounds or arrays"):
            codecs_of(dataset)


# ---------------------------------------------------------------------- streams of bits


def packed(numbers: list[int], bits: int) -> bytes:
    text = "".join(f"{n:0{bits}b}" for n in numbers)
    whole = text.ljust(-(-len(text) // 8) * 8, "0")
    return bytes(int(whole[i : i + 8], 2) for i in range(0, len(whole), 8))


@given(st.data(), st.integers(1, 64), st.integers(1, 50))
def test_bits_are_unpacked_as_they_were_packed(data: st.DataObject, bits: int, count: int) -> None:
    numbers = data.draw(
        st.lists(st.integers(0, 2**bits - 1), min_size=count, max_size=count), label="numbers"
    )
    itemsize = next(n for n in (1, 2, 4, 8) if 8 * n >= bits)
    stream = packed(numbers, bits)
    assert unpack_bits(stream, count, bits, itemsize).tolist() == numbers
    assert unpack_bits(stream + b"more", count, bits, itemsize).tolist() == numbers
    with pytest.raises(ValueError, match=f"are too few for {count} numbers of {bits} bits"):
        unpack_bits(stream[:-1], count, bits, itemsize)


def test_numbers_of_no_bits_are_zero() -> None:
    assert unpack_bits(b"", 9, 0, 2).tolist() == [0] * 9


def test_more_rows_than_are_unpacked_at_a_time() -> None:
    numbers = np.random.default_rng(0).integers(0, 2**12, 8 * ROWS_PER_BATCH + 13)
    found = unpack_bits(packed(numbers.tolist(), 12), numbers.size, 12, 4)
    assert np.array_equal(found, numbers)


# ---------------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def encoded_chunks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One encoded chunk per filter and kind of type, with its codec."""
    path = tmp_path_factory.mktemp("damage") / "file.h5"
    found = {}
    with h5py.File(path, "w") as file:
        for name, chosen in FILTERS.items():
            dtype = chosen.dtypes[-1]
            data = (np.arange(1536) // 12 % 90).reshape(512, 3).astype(dtype)
            store(file, name, Filter(chosen.number, chosen.how), data, (512, 3))
            codec = codecs_of(file[name])[-1]
            _, mask, raw = next(raw_chunks(file[name]))
            assert mask == 0
            found[name] = codec, raw, len(codec.decode(raw, None))
        numbers = np.arange(7, dtype="i4") * 1000
        dataset = native(file, "nbit", integer_type(">i4", 20, 3), numbers, True)
        _, _, raw = next(raw_chunks(dataset))
        return {**found, "nbit": (codecs_of(dataset)[0], raw, 28)}


ALIKE = ("6 bits", "7 bits", "8 bits", "1 bits", "2 bits", "3 bits", "4 bits", " 0", " 2", " 8")
"""Ends of the names of filters that damage meets as it meets others."""
NAMES = pytest.mark.parametrize("name", [n for n in [*FILTERS, "nbit"] if not n.endswith(ALIKE)])


@NAMES
def test_the_configuration_survives(name: str, encoded_chunks: dict[str, Any]) -> None:
    codec, raw, nbytes = encoded_chunks[name]
    config = json.loads(json.dumps(codec.to_zarr_v2()))
    assert codec_from_zarr_v2(config) == codec
    entry = json.loads(json.dumps(codec.to_zarr_v3(4)))
    assert codec_from_zarr_v3(entry["name"], entry["configuration"], np.dtype("i4")) == codec
    assert config["id"].startswith("virtualds_") == entry["name"].startswith("virtualds.")
    assert bytes(codec_from_zarr_v2(config).decode(raw, nbytes)) == bytes(codec.decode(raw, nbytes))


@looped("name", FILTERS)
def test_the_names_of_imagecodecs_mean_what_imagecodecs_means(
    name: str, encoded_chunks: dict[str, Any]
) -> None:
    codec, raw, nbytes = encoded_chunks[name]
    config = codec.to_zarr_v2()
    known = {c.codec_id: c for c in vars(theirs).values() if hasattr(c, "codec_id")}
    if (identity := config.pop("id")) in known:
        found = known[identity].from_config(config).decode(raw)
        assert bytes(found) == bytes(codec.decode(raw, nbytes))


@NAMES
def test_another_length_than_expected_is_refused(name: str, encoded_chunks: dict[str, Any]) -> None:
    codec, raw, nbytes = encoded_chunks[name]
    for wrong in (1, nbytes - 1, nbytes + 1, 2 * nbytes):
        if codec.encoded_size(nbytes) is None:
            with pytest.raises(CodecError):
                codec.decode(raw, wrong)


@pytest.mark.full
@NAMES
@looped("keep", [0, 1, 3, 4, 8, 11, 12, 16, 20, 25, 40, -40, -9, -4, -2])
def test_a_truncated_chunk_does_not_decode(
    name: str, keep: int, encoded_chunks: dict[str, Any]
) -> None:
    codec, raw, nbytes = encoded_chunks[name]
    open_end = {"zfp precision", "zfp accuracy", "zfp reversible", "zfp expert"}
    if len(raw[:keep]) == len(raw) or (name in open_end and not 0 <= keep <= 12):
        return  # blocks of such streams end where their values do: HDF5 does not notice either
    with pytest.raises(CodecError):
        codec.decode(raw[:keep], nbytes)


@NAMES
@settings(max_examples=times(13))
@given(st.data())
def test_damage_keeps_the_length_or_is_noticed(
    name: str, encoded_chunks: dict[str, Any], data: st.DataObject
) -> None:
    codec, raw, nbytes = encoded_chunks[name]
    there = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(there) - 1) | st.integers(0, min(60, len(there) - 1)))
        there[place] = data.draw(st.integers(0, 255))
    known = data.draw(st.sampled_from([nbytes, None]))
    try:
        found = codec.decode(bytes(there), known)
    except CodecError:
        return
    assert len(found) == nbytes or known is None


@NAMES
@settings(max_examples=times(13))
@given(st.binary(max_size=80), st.sampled_from([0, 1, 8, 64, 3072, None]))
def test_noise_raises_nothing_but_codec_errors(
    name: str, encoded_chunks: dict[str, Any], noise: bytes, nbytes: int | None
) -> None:
    try:
        found = encoded_chunks[name][0].decode(noise, nbytes)
    except CodecError:
        return
    assert nbytes in (None, len(found))


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">i8"])
@pytest.mark.parametrize("how", ["zfp reversible", "zfp rate 8"])
def test_zfp_of_a_big_endian_machine_is_what_hdf5_reads(
    how: str, dtype: str, tmp_path: Path
) -> None:
    """Its files differ from others in the byte order of the words of the header."""
    path, data = tmp_path / "a.h5", np.arange(600).reshape(20, 30).astype(dtype)
    with h5py.File(path, "w") as file:
        store(file, "v", FILTERS[how], data, (8, 30))
        _, _, values, _ = file["v"].id.get_create_plist().get_filter(0)
        header = np.array(values[1:], "<u4")
    raw = path.read_bytes()
    assert raw.count(header.tobytes()) == 1
    path.write_bytes(raw.replace(header.tobytes(), header.byteswap().tobytes()))
    with h5py.File(path) as file:
        expected = file["v"][:]
    assert not np.array_equal(expected, data)
    refs = tmp_path / "refs.json"
    virtualds.open_virtual_dataset(path).virtual.to_manifest(refs)
    for entry in (path, refs):
        np.testing.assert_array_equal(virtualds.open_virtual_dataset(entry)["v"], expected)


@looped(
    "number, values, match",
    [
        (5, (), "nbit"),
        (5, (8, 0, 7, 1, 4, 0, 30, 3), "30 bits above 3 do not fit into 32"),
        (5, (8, 0, 7, 1, 4, 2, 12, 0), "nbit"),
        (6, (), "scaleoffset"),
        (6, (1, 2, 9, 1, 4, 0, 0, *[0] * 13), "scaleoffset"),
        (6, (2, 33, 9, 0, 4, 0, 0, *[0] * 13), "scaleoffset"),
        (6, (2, 0, 9, 0, 3, 0, 0, *[0] * 13), "scaleoffset"),
        (32018, (2, 3, 25, 30, 16, 3), "FCIDECOMP"),
        (32008, (0, 4, 2, 0, 7), "compressor 7"),
        (32008, (0, 4, 2, 12, 0), "multiples of 8"),
        (32013, (), "zfp"),
        (32013, (1, 2, 3, 4), "zfp"),
        (32001, (2, 2, 4, 800, 5, 1, 3), "snappy"),
        (32001, (2, 2, 4, 800, 5, 1, 9), "compressor 9"),
        (32017, (), r"32017 \(SZ\)"),
        (32024, (), r"32024 \(SZ3\)"),
        (32028, (), r"32028 \(SPERR\)"),
        (12345, (), "12345: virtualds has no decoder"),
    ],
)
def test_filters_that_cannot_be_decoded_are_refused_by_name(
    number: int, values: tuple[int, ...], match: str
) -> None:
    with pytest.raises(UnsupportedError, match=match):
        codec_from_hdf5(number, values, 4)


@pytest.mark.parametrize("package", ["imagecodecs", "blosc2"])
def test_a_missing_package_is_named_with_what_installs_it(
    package: str, encoded_chunks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    numbers = {"imagecodecs": {32000, 32013, 32018}, "blosc2": {32026}}[package]
    for name, chosen in FILTERS.items():
        if chosen.number in numbers:
            codec, raw, nbytes = encoded_chunks[name]
            with pytest.raises(UnsupportedError, match=rf"(?s){package}.*pip install {package}$"):
                codec.decode(raw, nbytes)


@pytest.mark.skipif(
    not h5py.h5z.get_filter_info(h5py.h5z.FILTER_SZIP) & h5py.h5z.FILTER_CONFIG_ENCODE_ENABLED,
    reason="this HDF5 does not write szip",
)
@pytest.mark.parametrize("method", ["nn", "ec"])
@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i4", "<f8"])
@pytest.mark.parametrize(("columns", "block"), [(15, 8), (33, 32), (255, 2), (4097, 32)])
def test_szip_of_rows_that_are_no_whole_blocks_is_what_hdf5_reads(
    columns: int, block: int, dtype: str, method: str, tmp_path: Path
) -> None:
    values = np.random.default_rng(columns).integers(0, 99, (7, columns)).astype(dtype)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        how = {"compression": "szip", "compression_opts": (method, block)}
        file.create_dataset("v", data=values, chunks=(5, columns), **how)
        np.testing.assert_array_equal(file["v"], values)
    np.testing.assert_array_equal(virtualds.open_virtual_dataset(path)["v"], values)
