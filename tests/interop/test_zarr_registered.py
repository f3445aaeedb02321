"""Of the registered codecs that zarr-python has, we read what it reads, bit for bit.

It has no ``packbits``, and reads no big-endian numbers that are cast.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
import zarr.codecs
from products import looped
from registered_codecs import REGISTERED, SCALED, case, scaled
from zarr_stores import LITTLE, named

import virtualds
from virtualds.errors import ReadError

pytest.importorskip("zarr.codecs.scale_offset", reason="zarr-python has it from 3.4 on")
pytest.importorskip("cast_value_rs", reason="zarr-python casts with it")
pytestmark = pytest.mark.filterwarnings("ignore")

Scaled: Any = getattr(zarr.codecs, "ScaleOffset", None)
Cast: Any = getattr(zarr.codecs, "CastValue", None)
FLOATS, INTEGERS = ("f2", "f4", "f8"), ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


def opened(path: Path) -> Any:
    return virtualds.open_virtual_dataset(path, loadable_variables=[], decode_cf=False).a


def compared(path: Path) -> Any:
    """Demand that the array of a store reads alike here and there, also through references."""
    expected = zarr.open_array(path / "a", mode="r")[...]
    found = opened(path)
    for one in (found, written(found, path.parent / "refs.virtual.zarr")):
        assert one.dtype == expected.dtype
        assert one.values.tobytes() == expected.tobytes()
    return expected


def written(found: Any, refs: Path) -> Any:
    found.to_dataset().virtual.to_manifest(refs)
    return opened(refs)


def store(path: Path, values: Any, filters: list[Any], **how: Any) -> None:
    """Let zarr-python write an array; its last chunk stays missing."""
    zarr.create_group(path, zarr_format=3)
    length = max(len(values) // 4, 1)
    array = zarr.create_array(
        path / "a",
        shape=(len(values) + 2 * length,),
        chunks=(length,),
        dtype=values.dtype,
        filters=filters,
        **{"compressors": None, "dimension_names": ["x"], **how},
    )
    array[: len(values)] = values


def samples(dtype: str) -> Any:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        some = np.random.default_rng(0).normal(0, 100, 200).astype(kind)
        special = [0.0, -0.0, np.nan, np.inf, -np.inf, np.finfo(kind).max, np.finfo(kind).tiny]
        return np.concatenate([some, np.array(special, kind)])
    return np.random.default_rng(0).integers(0, 100, 200).astype(kind)


@pytest.mark.parametrize("dtype", FLOATS)
@looped("offset, scale", [(5, 0.1), (-273.15, 100), (0, 1), (0.1, -3)])
@looped("endian", ["little", "big"])
def test_scaled_floats(tmp_path: Path, dtype: str, offset: Any, scale: Any, endian: Any) -> None:
    serializer = zarr.codecs.BytesCodec(endian=endian)
    filters = [Scaled(offset=offset, scale=scale)]
    store(tmp_path / "s", samples(dtype), filters, serializer=serializer, fill_value=1.5)
    compared(tmp_path / "s")


@pytest.mark.parametrize("dtype", INTEGERS)
@looped("offset, scale", [(0, 1), (3, 1), (100, 1), (0, -1), (-28, 1)])
def test_scaled_integers(tmp_path: Path, dtype: str, offset: int, scale: int) -> None:
    if dtype.startswith("u") and (offset < 0 or scale < 0):
        offset, scale = -offset % 7, -scale % 5 or 1
    values = samples(dtype) % 28 + (max(offset, 0) if scale > 0 else 0)
    values = values.astype(dtype)
    store(tmp_path / "s", values, [Scaled(offset=offset, scale=scale)], fill_value=int(values[0]))
    np.testing.assert_array_equal(compared(tmp_path / "s")[: len(values)], values)


@pytest.mark.parametrize("shown", [*INTEGERS, *FLOATS])
@looped("stored", [*INTEGERS, *FLOATS])
def test_casts_between_all_types(tmp_path: Path, shown: str, stored: str) -> None:
    values = np.arange(100).astype(shown)
    name = np.dtype(stored).name
    # by itself it says no order for arrays of bytes, whatever these are cast to
    serializer = zarr.codecs.BytesCodec(endian="little")
    store(tmp_path / "s", values, [Cast(data_type=name)], fill_value=3, serializer=serializer)
    np.testing.assert_array_equal(compared(tmp_path / "s")[:100], values)


ROUNDINGS = (
    *("nearest-even", "nearest-away"),
    *("towards-zero", "towards-positive", "towards-negative"),
)
LOSSY: dict[str, tuple[str, str]] = {
    "floats as integers": ("i4", "f8"),
    "wide floats as narrow ones": ("f4", "f8"),
    "wide floats as halves": ("f2", "f8"),
    "wide integers as floats": ("f8", "i8"),
    "wide integers as narrow floats": ("f4", "u8"),
    "integers as halves": ("f2", "i4"),
}


def numbers_of(dtype: str) -> Any:
    rng = np.random.default_rng(1)
    if dtype[0] == "f":
        return np.concatenate([rng.normal(0, 100, 300), np.arange(-50, 50) / 2]).astype(dtype)
    info = np.iinfo(dtype)
    wide = rng.integers(info.min, info.max, 300, dtype, endpoint=True)
    some = np.concatenate([wide, np.arange(100, dtype=dtype) + np.array(2**15, dtype)])
    return some % 65000 if dtype == "i4" else some


@pytest.mark.parametrize("name", LOSSY)
@looped("rounding", ROUNDINGS)
def test_casts_round_values_as_the_codec_says(tmp_path: Path, name: str, rounding: str) -> None:
    shown, stored = LOSSY[name]
    numbers = numbers_of(stored)
    filter_ = named("cast_value", data_type=np.dtype(stored).name, rounding=rounding)
    case(np.zeros(len(numbers), shown), numbers, filter_, LITTLE).write(tmp_path / "s")
    compared(tmp_path / "s")


@pytest.mark.parametrize("shown", ["i1", "u1", "i2", "u4", "f2"])
@looped("stored", ["i4", "u8", "i8"])
@looped("limit", ["clamp", "wrap"])
def test_limits_in_decoding(tmp_path: Path, shown: str, stored: str, limit: str) -> None:
    info = np.iinfo(stored)
    numbers = np.array([info.min, info.max, 0, 127, 128, 255, 256, 65535, 65536], stored)
    filter_ = named("cast_value", data_type=np.dtype(stored).name, out_of_range=limit)
    case(np.zeros(len(numbers), shown), numbers, filter_, LITTLE).write(tmp_path / "s")
    if shown == "f2" and limit == "wrap":
        with pytest.raises(ValueError, match="out of range"):
            zarr.open_array(tmp_path / "s/a", mode="r")[...]
        with pytest.raises(ReadError, match="out of range"):
            opened(tmp_path / "s").values  # noqa: B018
        return
    compared(tmp_path / "s")


def test_values_that_stand_for_others(tmp_path: Path) -> None:
    mapped = {"encode": [("NaN", -1), ("Infinity", 99)], "decode": [(-1, "NaN"), (99, "Infinity")]}
    values = np.array([np.nan, 1, np.inf, 7, np.nan, 2, 3, 4], "f4")
    store(tmp_path / "s", values, [Cast(data_type="int16", scalar_map=mapped)], fill_value=np.nan)
    np.testing.assert_array_equal(compared(tmp_path / "s")[:8], values)


TENTHS = (Scaled and Scaled(offset=-5, scale=10), Cast and Cast(data_type="int16"))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("how", [{}, {"compressors": "auto"}, {"shards": (100,)}], ids=str)
def test_scale_offset_and_cast_are_decoded_together(tmp_path: Path, dtype: str, how: Any) -> None:
    """What packing is to netCDF."""
    values = (np.arange(200) / 10 - 5).astype(dtype)
    store(tmp_path / "s", values, list(TENTHS), fill_value=0, **how)
    compared(tmp_path / "s")


@pytest.mark.parametrize("places", [(0, 1, 2), (1, 0, 2), (1, 2, 0)], ids=str)
def test_scale_offset_cast_and_a_permutation_are_decoded_together(
    tmp_path: Path, places: tuple[int, ...]
) -> None:
    chain = [*TENTHS, zarr.codecs.TransposeCodec(order=(2, 0, 1))]
    values = (np.arange(60).reshape(3, 4, 5) / 10).astype("f4")
    zarr.create_group(tmp_path / "s", zarr_format=3)
    array = zarr.create_array(
        tmp_path / "s/a",
        shape=values.shape,
        chunks=(2, 3, 4),
        dtype="f4",
        filters=[chain[i] for i in np.argsort(places)],
        dimension_names=["z", "y", "x"],
    )
    array[...] = values
    compared(tmp_path / "s")


UNFILLED = ("scaled uint8", "scaled uint64")
"""zarr-python encodes the fill value whenever it opens an array, and these have no room for it."""
THEIRS = sorted(
    name
    for name, one in REGISTERED.items()
    if not name.startswith(("packed", "rounded bits", "cast and packed"))
    and name not in UNFILLED
    and not (name.startswith(("cast", "tenths")) and '"big"' in json.dumps(one.store.array))
)


@looped("name", THEIRS)
def test_zarr_python_reads_what_is_worked_out_by_hand(tmp_path: Path, name: str) -> None:
    expected = compared(REGISTERED[name].write(tmp_path / "s"))
    assert expected.tobytes() == REGISTERED[name].expected.tobytes()


@pytest.mark.parametrize("name", ["scaled float32", "scaled int16", "cast from int16", "tenths"])
def test_icechunk_holds_registered_codecs(tmp_path: Path, name: str) -> None:
    pytest.importorskip("icechunk")
    one = REGISTERED[name]
    vds = virtualds.open_virtual_dataset(one.write(tmp_path / "s"), loadable_variables=[])
    vds.virtual.to_manifest(tmp_path / "repo", format="icechunk")
    found = xr.open_dataset(tmp_path / "repo", engine="virtual", decode_cf=False)
    assert found.a.values.tobytes() == one.expected.tobytes()


@pytest.mark.parametrize("name", sorted(set(SCALED) - {"scaled int16"}))
def test_kerchunk_sets_read_the_same_through_fsspec(tmp_path: Path, name: str) -> None:
    """Floats have a filter in Zarr v2 that decodes them alike; integers have no reader but us."""
    one = REGISTERED[name]
    vds = virtualds.open_virtual_dataset(one.write(tmp_path / "s"), loadable_variables=[])
    vds.virtual.to_manifest(tmp_path / "refs.json")
    if np.dtype(one.values.dtype).kind == "f":
        found = through_fsspec(tmp_path / "refs.json").astype(one.values.dtype)
        assert found.tobytes() == one.expected.tobytes()
        return
    with pytest.raises(Exception, match="virtualds_scaled_values"):
        through_fsspec(tmp_path / "refs.json")


def through_fsspec(refs: Path) -> Any:
    how: Any = {"storage_options": {"fo": str(refs)}, "consolidated": False}
    with xr.open_dataset(
        "reference://", engine="zarr", backend_kwargs=how, decode_cf=False
    ) as found:
        return found.a.values


def test_sums_that_wrap_are_refused_here_and_pass_there(tmp_path: Path) -> None:
    """zarr-python widens to int64, in which the largest numbers wrap around unseen."""
    one = scaled("<i8", 2**62, 1, (0, 0))
    path = one.write(tmp_path / "s")
    (path / "a/c/0").write_bytes(np.array([0, 2**62], "<i8").tobytes())
    assert zarr.open_array(path / "a", mode="r")[1] == -(2**63)
    with pytest.raises(ReadError, match="beyond the limits of int64"):
        opened(path).values  # noqa: B018
