"""Codecs of the registry zarr-extensions decode as their specifications lay down."""

from __future__ import annotations

import json
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
from products import looped
from registered_codecs import CHAINS, REGISTERED, Case, case, cast, packed, scaled
from registered_images import ENDLESS, IMAGES, TURNED_IMAGES
from zarr_stores import BIG, LITTLE, named, sharded, v3

import virtualds
from virtualds.errors import FormatError, ReadError, UnsupportedError
from virtualds.formats.zarr import parse_chunk_keys
from virtualds.stores.local import LocalStore

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    # numcodecs warns of what does not fit into a float
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]
NOT_IN_ZARR_V2 = {
    # missing chunks are encoded in kerchunk's sets, unless they are zero or ``_FillValue``
    "scaled int16": "would have to be encoded, which cannot be done with virtualds_",
    # Zarr v2 has axes in their order, or in the opposite one
    **dict.fromkeys(TURNED_IMAGES, "its stored axes are permuted"),
}
CASES = REGISTERED | IMAGES
EVERY = pytest.mark.parametrize("name", CASES)


def opened(path: Path, **how: Any) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path, loadable_variables=[], decode_cf=False, **how)


def same_bytes(found: Any, expected: Any) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.ascontiguousarray(found).tobytes() == expected.tobytes()


@pytest.mark.sampled(3)
@EVERY
def test_stored_values_are_decoded_bit_for_bit(tmp_path: Path, name: str) -> None:
    one = CASES[name]
    found = opened(one.write(tmp_path / "s"))
    same_bytes(found.a.values, one.expected)
    same_bytes(found.a.isel(x=slice(1, None)).values, one.expected[..., 1:])


@pytest.mark.sampled(3)
@pytest.mark.full
@EVERY
@looped("suffix", [".virtual.zarr", ".json", ".parquet"])
def test_references_to_a_store_read_like_the_store(tmp_path: Path, name: str, suffix: str) -> None:
    one = CASES[name]
    if (reason := NOT_IN_ZARR_V2.get(name)) and suffix != ".virtual.zarr":
        with pytest.raises(UnsupportedError, match=reason):
            written(one, tmp_path, suffix)
        return
    refs = written(one, tmp_path, suffix)
    same_bytes(opened(refs).a.values, one.expected)
    same_bytes(xr.open_dataset(refs, engine="virtual", decode_cf=False).a.values, one.expected)


def written(one: Case, path: Path, suffix: str) -> Path:
    opened(one.write(path / "s")).virtual.to_manifest(path / f"refs{suffix}")
    return path / f"refs{suffix}"


@pytest.mark.full
@looped("name", CASES)
def test_a_set_names_the_codecs_that_the_store_names(tmp_path: Path, name: str) -> None:
    one = CASES[name]
    refs = written(one, tmp_path, ".virtual.zarr")
    chain = json.loads((refs / "a/zarr.json").read_text())["codecs"]
    # they are moved to the front, and the usual name of rounding has its prefix
    names = {"bitround": "numcodecs.bitround"}
    said = sorted(names.get(entry["name"], entry["name"]) for entry in one.store.array["codecs"])
    assert sorted(entry["name"] for entry in chain) == said


@pytest.mark.full
@looped("name", CASES)
def test_pipelines_survive_pickles(tmp_path: Path, name: str) -> None:
    found = opened(CASES[name].write(tmp_path / "s"))
    again = pickle.loads(pickle.dumps(found))
    assert again.a.variable._data.pipelines == found.a.variable._data.pipelines
    same_bytes(again.a.values, CASES[name].expected)


@pytest.mark.parametrize("name", ["tenths", "tenths, big-endian", "cast and packed"])
def test_differently_stored_parts_are_one_array(tmp_path: Path, name: str) -> None:
    """Two pipelines in one array, each with the byte order that its numbers have."""
    one = CHAINS[name]
    plain = case(one.values, one.values.astype(one.values.dtype.newbyteorder(">")), BIG)
    both = [opened(c.write(tmp_path / str(n))) for n, c in enumerate((one, plain))]
    joined = xr.concat(both, dim="z" if "z" in both[0].dims else "y")
    joined.virtual.to_manifest(tmp_path / "refs.virtual.zarr")
    expected = np.concatenate([one.expected, plain.expected])
    same_bytes(joined.a.values, expected)
    same_bytes(opened(tmp_path / "refs.virtual.zarr").a.values, expected)


def test_casts_of_types_without_an_order_keep_the_one_of_what_is_stored(tmp_path: Path) -> None:
    one = REGISTERED["cast from float32 to bytes in either order"]
    little = case(
        one.values, one.values.astype("<f4"), named("cast_value", data_type="float32"), LITTLE
    )
    both = [opened(c.write(tmp_path / str(n))) for n, c in enumerate((one, little))]
    xr.concat(both, dim="x").virtual.to_manifest(tmp_path / "refs.virtual.zarr")
    expected = np.concatenate([one.expected, little.expected])
    same_bytes(opened(tmp_path / "refs.virtual.zarr").a.values, expected)


def test_chunks_in_shards_are_filtered(tmp_path: Path) -> None:
    """A shard of one chunk: its bytes, then offset and length of these, and no checksum."""
    one = CHAINS["tenths"]
    index = np.array([0, len(one.chunk)], "<u8").tobytes()
    inner = sharded(*one.store.array["codecs"], chunk=one.values.shape, index=[LITTLE])
    store = v3(one.values.dtype.name, 7, inner, shape=(6, 4), chunks=(3, 4))
    shard = Case(store, one.chunk + index, one.values)
    same_bytes(opened(shard.write(tmp_path / "s")).a.values, one.expected)


# ---------------------------------------------------------------------- other readers


@pytest.mark.sampled(3)
@EVERY
def test_names_of_numcodecs_are_only_said_where_it_decodes_the_same(
    tmp_path: Path, name: str
) -> None:
    one = CASES[name]
    codecs = opened(one.write(tmp_path / "s")).a.variable._data.pipelines[0].codecs
    configs = [codec.to_zarr_v2() for codec in codecs]
    if any(config["id"].startswith("virtualds_") for config in configs):
        for config in (c for c in configs if c["id"].startswith("virtualds_")):
            with pytest.raises(ValueError, match="codec not available"):
                numcodecs.get_codec(dict(config))
        return
    data: Any = one.chunk
    with np.errstate(all="ignore"):
        for config in reversed(configs):
            data = numcodecs.get_codec(dict(config)).decode(data)
    ours: Any = one.chunk
    for codec in reversed(codecs):
        ours = codec.decode(ours, None)
    assert np.asarray(data).tobytes() == bytes(ours)


# ---------------------------------------------------------------------- damage

WRONG_STORED: dict[str, tuple[Case, str]] = {
    "a rest": (scaled("<i4", 0, 2, (2, 4)), "not a multiple of the scale 2"),
    "too many": (scaled("|i1", 100, 1, (0, 1)), "beyond the limits of int8"),
    "too few": (scaled("<i2", -5, 1, (0, 0)), "beyond the limits of int16"),
    "out of range": (cast(np.zeros(2, "u1"), np.zeros(2, "i2")), "out of range"),
    "no number": (cast(np.zeros(2, "u1"), np.zeros(2, "f4")), "NaN"),
    "an overflow": (cast(np.zeros(2, "f2"), np.zeros(2, "f8")), "out of range"),
    "a count": (packed([True] * 9, padding_encoding="first_byte"), "do not hold"),
}
STORED = {
    "a rest": np.array([2, 3], "<i4").tobytes(),
    "too many": np.array([0, 28], "i1").tobytes(),
    "too few": np.array([0, -32764], "<i2").tobytes(),
    "out of range": np.array([0, 256], "<i2").tobytes(),
    "no number": np.array([0, np.nan], "<f4").tobytes(),
    "an overflow": np.array([0, 65520], "<f8").tobytes(),
    "a count": b"\x06\xff\x01",
}


@pytest.mark.parametrize("name", WRONG_STORED)
def test_impossible_encoded_values_are_an_error(tmp_path: Path, name: str) -> None:
    one, words = WRONG_STORED[name]
    path = one.write(tmp_path / "s")
    next((path / "a/c").iterdir()).write_bytes(STORED[name])
    with pytest.raises(ReadError, match=words) as caught:
        opened(path).a.values  # noqa: B018
    assert "a/c/0" in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize("change", [-1, 1], ids=["a byte less", "a byte more"])
@looped("name", CASES)
def test_chunks_of_another_length_are_an_error(tmp_path: Path, name: str, change: int) -> None:
    path = CASES[name].write(tmp_path / "s")
    file = next(f for f in (path / "a/c").rglob("*") if f.is_file())
    file.write_bytes(file.read_bytes()[:change] if change < 0 else file.read_bytes() + b"\0")
    if name in ENDLESS:
        with suppress(ReadError):
            same_bytes(opened(path).a.values, CASES[name].expected)
        return
    # nothing at all is no chunk
    with pytest.raises((ReadError, FormatError)):
        opened(path).a.values  # noqa: B018


DAMAGED: dict[str, tuple[str, Any, str]] = {
    "another key": ("int32", named("scale_offset", offset=1, scale=2, astype="int8"), "astype"),
    "a scale of zero": ("int32", named("scale_offset", offset=1, scale=0), "scale of 0"),
    "a fraction": ("int32", named("scale_offset", offset=0.5, scale=2), "not an integer"),
    "an offset too large": ("int8", named("scale_offset", offset=128, scale=1), "128"),
    "a word": ("float32", named("scale_offset", offset="many", scale=1), "NaN, Infinity"),
    "no number of JSON": ("float32", named("scale_offset", scale=np.inf), "not a JSON number"),
    "an offset of true": ("int32", named("scale_offset", offset=True), "not a JSON number"),
    "scaled booleans": ("bool", named("scale_offset", offset=0, scale=1), "neither integer"),
    "scaled complex numbers": ("complex64", named("scale_offset"), "neither integer"),
    "no type": ("int32", named("cast_value"), "data_type"),
    "an unknown way to round": (
        "int32", named("cast_value", data_type="float32", rounding="up"), "'up'"),
    "an unknown limit": (
        "int32", named("cast_value", data_type="int8", out_of_range="saturate"), "'saturate'"),
    "floats that wrap": (
        "int32", named("cast_value", data_type="float32", out_of_range="wrap"), "do not wrap"),
    "another key of a cast": ("int32", named("cast_value", data_type="int8", range="x"), "'range'"),
    "cast booleans": ("bool", named("cast_value", data_type="int8"), "neither integer"),
    "a map of nothing": (
        "int32", named("cast_value", data_type="int8", scalar_map=[1]), "scalar_map"),
    "a map in no direction": (
        "int32", named("cast_value", data_type="int8", scalar_map={"up": []}), "scalar_map"),
    "a map of another type": (
        "int32",
        named("cast_value", data_type="int8", scalar_map={"decode": [[128, 0]]}),
        "128"),
    "a map of no pairs": (
        "int32", named("cast_value", data_type="int8", scalar_map={"decode": [1]}), "cast_value"),
    "bits in the wrong order": ("int32", named("packbits", first_bit=5, last_bit=4), "5 to 4"),
    "too many bits": ("int32", named("packbits", last_bit=32), "0 to 32"),
    "two bits of a boolean": ("bool", named("packbits", last_bit=1), "0 to 1"),
    "negative bits": ("int32", named("packbits", first_bit=-1), "-1"),
    "half a bit": ("int32", named("packbits", first_bit=0.5), "0.5"),
    "an unknown padding": ("bool", named("packbits", padding_encoding="start_byte"), "start_byte"),
    "another key of bits": ("bool", named("packbits", start_bit=1), "'start_bit'"),
    "no bits to keep": ("float32", named("bitround"), "keepbits"),
}  # fmt: skip


@looped("name", DAMAGED)
def test_configurations_that_make_no_sense_are_refused(tmp_path: Path, name: str) -> None:
    kind, codec, words = DAMAGED[name]
    chain = [codec] if codec["name"] == "packbits" else [codec, LITTLE]
    fill: Any = [0, 0] if kind == "complex64" else 0
    path = packed([True]).write(tmp_path / "s", data_type=kind, codecs=chain, fill_value=fill)
    with pytest.raises(FormatError, match=words) as caught:
        opened(path)
    assert repr(codec["name"]) in str(caught.value)
    assert "variable 'a' of" in str(caught.value)


REFUSED: dict[str, tuple[str, list[Any], str]] = {
    "types that numpy lacks": (
        "float32", [named("cast_value", data_type="bfloat16"), LITTLE], "bfloat16"),
    "bits behind bytes": ("int32", [LITTLE, named("packbits")], "exactly one"),
    "a cast behind bytes": (
        "int32", [LITTLE, named("cast_value", data_type="int8")], "exactly one"),
    "no bytes": ("int32", [named("cast_value", data_type="int8")], "exactly one"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_chains_that_are_not_decoded_are_refused(tmp_path: Path, name: str) -> None:
    kind, chain, words = REFUSED[name]
    path = packed([True]).write(tmp_path / "s", data_type=kind, codecs=chain, fill_value=0)
    with pytest.raises((FormatError, UnsupportedError), match=words):
        opened(path)


# ---------------------------------------------------------------------- keys of chunks

V2_KEYS = {"name": "v2", "configuration": {"separator": "."}}
SUFFIXED = named("suffix", suffix=".p", base_encoding=V2_KEYS)
KEYS: dict[str, tuple[Any, dict[tuple[int, ...], str]]] = {
    "suffix": (
        named("suffix", suffix=".tiff", base_encoding={"name": "default"}),
        {(1, 12): "c/1/12.tiff"},
    ),
    "suffix, as the registry's example has it": (
        {"name": "suffix", "configuration": {"suffix": ".s", "base-encoding": {"name": "v2"}}},
        {(1, 12): "1.12.s"},
    ),
    "prefix": (named("prefix", prefix="x/", base_encoding="v2"), {(1, 12): "x/1.12"}),
    "prefix and suffix": (
        named("prefix", prefix="im-", base_encoding=SUFFIXED),
        {(1, 12): "im-1.12.p"},
    ),
    "fanout": (
        named("fanout", max_children=101),
        {(123, 0): "d0/1/23/d1/0/c", (1234, 5): "d0/12/34/d1/5/c", (9, 67890): "d0/9/d1/6/78/90/c"},
    ),
    "fanout by itself": ("fanout", {(999, 1000): "d0/999/d1/1/0/c"}),
}
"""Encodings, and keys that the registry gives or that its rules make."""


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_those_of_the_registry_and_are_read_back(name: str) -> None:
    encoding, keys = KEYS[name]
    made = parse_chunk_keys({"chunk_key_encoding": encoding})
    assert parse_chunk_keys({"chunk_key_encoding": made.to_json()}) == made
    for place, key in keys.items():
        assert made(place) == key
        assert made.parse_key(key, 2) == place
        # neither another number of axes nor another spelling of it
        assert made.parse_key(key, 3) is None
        assert made.parse_key(key.replace("1", "01"), 2) is None
        assert made.parse_key(f"y{key}", 2) is None
    assert made.parse_key(made(()), 0) == ()


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("listed", [True, False])
def test_stores_of_such_keys_are_opened(
    tmp_path: Path, name: str, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that are called otherwise are none of the array."""
    encoding, _ = KEYS[name]
    one = packed([True, False, True])
    path = one.write(tmp_path / "s", chunk_key_encoding=encoding)
    shutil.rmtree(path / "a/c")
    chunk = path / "a" / parse_chunk_keys({"chunk_key_encoding": encoding})((0,))
    chunk.parent.mkdir(parents=True, exist_ok=True)
    chunk.write_bytes(one.chunk)
    (chunk.parent / "other").write_bytes(b"")
    if not listed:
        group = {"zarr_format": 3, "node_type": "group"}
        node = json.loads((path / "a/zarr.json").read_text())
        group["consolidated_metadata"] = {"metadata": {"a": node}}
        (path / "zarr.json").write_text(json.dumps(group))
        monkeypatch.setattr(LocalStore, "list_files", no_listing)
    found = opened(path)
    same_bytes(found.a.values, one.expected)
    monkeypatch.undo()
    found.virtual.to_manifest(tmp_path / "refs.virtual.zarr")
    same_bytes(opened(tmp_path / "refs.virtual.zarr").a.values, one.expected)


def no_listing(self: Any, *args: Any) -> Any:
    raise PermissionError("no listing here")


WRONG_KEYS: dict[str, tuple[Any, type[Exception], str]] = {
    "a prefix that leads out": (
        named("prefix", prefix="../x/", base_encoding="v2"), FormatError, "leads elsewhere"),
    "a prefix from the root": (
        named("prefix", prefix="/x/", base_encoding="v2"), FormatError, "leads elsewhere"),
    "no suffix": (named("suffix", base_encoding="v2"), FormatError, "suffix None"),
    "no base": (named("suffix", suffix=".x"), FormatError, "no base_encoding"),
    "an unknown base": (
        named("suffix", suffix=".x", base_encoding="hashed"), UnsupportedError, "'hashed'"),
    "too few children": (named("fanout", max_children=3), FormatError, "max_children 3"),
    "templates": (named("template", template="{0}"), UnsupportedError, "'template'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_KEYS)
def test_keys_that_make_no_sense_are_refused(tmp_path: Path, name: str) -> None:
    encoding, error, words = WRONG_KEYS[name]
    path = packed([True]).write(tmp_path / "s", chunk_key_encoding=encoding)
    with pytest.raises(error, match=words) as caught:
        opened(path)
    assert "variable 'a' of" in str(caught.value)
