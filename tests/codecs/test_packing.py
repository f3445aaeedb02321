"""Unpacked values are, bit for bit, those that xarray decodes from the same attributes."""

import warnings
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from virtualds.arrays.group import ManifestVariable
from virtualds.codecs.cf import Packing, TimePacking, _find_linear_units
from virtualds.codecs.codec import CodecError
from virtualds.datasets.conversion import _find_packing as packing_of

INTEGERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
FLOATS = ("f4", "f8")


def samples(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Small, large, negative and special numbers of a dtype."""
    if dtype.kind == "f":
        numbers = [0, -0.0, 1, -1, 0.1, 9.96921e36, 1e20, -99, np.nan, np.inf, -np.inf, 1e-40]
        return np.array(numbers, dtype)
    info = np.iinfo(dtype)
    rng = np.random.default_rng(7)
    drawn = rng.integers(info.min, info.max, 50, dtype, endpoint=True)
    edge = [info.min, info.min + 1, 0, 1, 99, info.max // 2, info.max - 1, info.max]
    return np.concatenate([np.array(edge, dtype), drawn])


def fills(dtype: np.dtype[Any]) -> dict[str, dict[str, Any]]:
    """Ways to say which numbers mean no value."""
    low = dtype.type(np.iinfo(dtype).min if dtype.kind in "iu" else -99)
    high = dtype.type(np.iinfo(dtype).max if dtype.kind in "iu" else 1e20)
    found = {
        "none": {},
        "fill": {"_FillValue": high},
        "fill in an array": {"_FillValue": np.array([high])},
        "missing": {"missing_value": low},
        "the same twice": {"_FillValue": high, "missing_value": high},
        "both": {"_FillValue": high, "missing_value": low},
        "several missing": {"missing_value": np.array([low, high, 1], dtype)},
        "fill and several missing": {
            "_FillValue": low,
            "missing_value": np.array([high, 1], dtype),
        },
    }
    if dtype.kind == "f":
        found |= {
            "nan": {"_FillValue": dtype.type(np.nan)},
            "nan and number": {"_FillValue": dtype.type(np.nan), "missing_value": low},
            "wider than stored": {"_FillValue": np.float64(1e20), "missing_value": -99},
        }
    else:
        half = dtype.type(np.iinfo(dtype).max // 2)
        found |= {"python number": {"_FillValue": int(high)}, "half": {"_FillValue": half}}
    return found


SCALES: dict[str, dict[str, Any]] = {
    "none": {},
    "f4": {"scale_factor": np.float32(0.01)},
    "f8": {"scale_factor": np.float64(0.01)},
    "f8 and f8": {"scale_factor": np.float64(0.1), "add_offset": np.float64(273.15)},
    "f4 and f4": {"scale_factor": np.float32(0.1), "add_offset": np.float32(273.15)},
    "f4 and f8": {"scale_factor": np.float32(0.1), "add_offset": np.float64(273.15)},
    "offset f4": {"add_offset": np.float32(0.5)},
    "offset f8": {"add_offset": np.float64(0.5)},
    "integers": {"scale_factor": np.int16(10), "add_offset": np.int32(3)},
    "integer offset": {"add_offset": np.int16(3)},
    "arrays of one": {"scale_factor": np.array([0.1]), "add_offset": np.array([5], "f4")},
    "python numbers": {"scale_factor": 0.1, "add_offset": 2},
    "one and zero": {"scale_factor": 1.0, "add_offset": 0.0},
}
UNSIGNED: dict[str, dict[str, Any]] = {
    "none": {},
    "true": {"_Unsigned": "true"},
    "false": {"_Unsigned": "false"},
}

DTYPES = [np.dtype(dtype) for dtype in (*INTEGERS, *FLOATS)]


def facts_of(dtype: np.dtype[Any]) -> Iterator[dict[str, Any]]:
    """Fill values, with each way to say that integers have a sign."""
    for fill, sign in product(fills(dtype).values(), UNSIGNED.values()):
        if not (sign and dtype.kind == "f"):
            yield fill | sign


def decoded_by_xarray(
    stored: np.ndarray[Any, Any], attributes: dict[str, Any]
) -> tuple[xr.Variable, xr.Variable] | None:
    """What opening gives (lazily) and what loading gives, or None if xarray cannot."""
    variable = xr.Variable(("x",), stored, dict(attributes))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = xr.conventions.decode_cf_variable("v", variable)
            return found, found.copy().load()
        except (ValueError, TypeError, OverflowError, KeyError):
            return None


def check_equal_bytes(
    stored: np.ndarray[Any, Any], attributes: dict[str, Any], like: np.ndarray[Any, Any]
) -> None:
    """Demand that ``stored`` unpacks to what xarray decodes ``like`` to."""
    if (found := decoded_by_xarray(like, attributes)) is None:
        return
    lazy, expected = found
    packing = packing_of(ManifestVariable(("x",), stored, attributes), stored.dtype, lazy)
    with np.errstate(all="ignore"):
        actual = stored.astype(lazy.dtype) if packing is None else packing.decode(stored)
    assert actual.dtype == expected.dtype, attributes
    assert actual.tobytes() == expected.values.tobytes(), attributes
    if packing is not None:
        assert packing == packing_of(
            ManifestVariable(("x",), stored, attributes), stored.dtype, lazy
        )
        assert isinstance(hash(packing), int)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_are_those_of_xarray(dtype: np.dtype[Any]) -> None:
    stored = samples(dtype)
    for facts, scale in product(facts_of(dtype), SCALES.values()):
        check_equal_bytes(stored, facts | scale, stored)


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_of_the_other_order_are_decoded_as_xarray_decodes_them(
    dtype: np.dtype[Any],
) -> None:
    swapped = samples(dtype).astype(dtype.newbyteorder(">"))
    for facts, scale in product(facts_of(dtype), (SCALES["none"], SCALES["f8 and f8"])):
        check_equal_bytes(swapped, facts | scale, swapped)


def test_most_of_the_table_is_opened_by_xarray() -> None:
    """The oracle would be worth nothing if it refused."""
    opened = [
        decoded_by_xarray(samples(np.dtype(dtype)), fill | SCALES["f8"]) is not None
        for dtype in (*INTEGERS, *FLOATS)
        for fill in fills(np.dtype(dtype)).values()
    ]
    assert sum(opened) > 0.9 * len(opened)


def test_booleans_are_what_xarray_says_they_are() -> None:
    stored = np.array([0, 1, 1], "i1")
    check_equal_bytes(stored, {"dtype": "bool"}, stored)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_both_parts_of_missing_complex_numbers_are_nan(dtype: str) -> None:
    stored = np.array([1, 2 + 1j, 0, 3, -0.0, complex(np.nan, 1)], dtype)
    three = np.dtype(dtype).type(3)
    for fill in ({"_FillValue": stored[2]}, {"_FillValue": stored[2], "missing_value": three}):
        check_equal_bytes(stored, fill, stored)


# ---------------------------------------------------------------------- how it is applied


@given(hnp.arrays(np.int16, hnp.array_shapes(min_dims=0, max_dims=3, max_side=5)), st.booleans())
def test_decoding_in_place_is_decoding(stored: Any, transposed: bool) -> None:
    packing = Packing(
        np.dtype("f4"), fills=(np.int16(0),), scale_factor=np.float64(0.1), add_offset=20.0
    )
    stored = stored.T if transposed else stored
    out = np.empty((*stored.shape, 2), "f4")[..., 0]
    packing.decode_into(out, stored)
    assert out.tobytes() == packing.decode(stored).tobytes()


def test_the_spelling_of_a_packing_does_not_count() -> None:
    stored, values = np.dtype("i2"), np.dtype("f4")
    one = {"_FillValue": np.int16(-1), "scale_factor": np.float32(2)}
    other = {"missing_value": np.array([-1], "i2"), "scale_factor": np.float32(2)}
    assert Packing.from_attributes(stored, one, values) == Packing.from_attributes(
        stored, other, values
    )


def test_a_dtype_without_nan_cannot_hold_fill_values() -> None:
    with pytest.raises(ValueError, match="no NaN"):
        Packing(np.dtype("i4"), fills=(np.int32(7),))


@pytest.mark.parametrize("name", ["scale_factor", "add_offset"])
@pytest.mark.parametrize("number", [10**30, -(10**30), 2**63])
def test_integers_are_not_packed_by_numbers_beyond_their_type(name: str, number: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is outside the range of int64"):
        Packing(np.dtype("i8"), **{name: number})
    Packing(np.dtype("f8"), **{name: number})


# ---------------------------------------------------------------------- time


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<i8", ">i8", "<i4", "<f4"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (2**18 + 5,)])
def test_dates_that_overwrite_their_numbers_are_the_same(dtype: str, shape: Any) -> None:
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    packing = TimePacking(np.dtype("M8[ns]"), "minutes since 1990-01-01 06:00:00", "standard")
    expected = packing.decode_linearly(numbers)
    for stored in (numbers.copy(), np.repeat(numbers[..., None], 2, axis=-1)[..., 0]):
        found = packing.decode_linearly(stored, in_place=True)
        assert (found is None) == (expected is None)
        if found is not None:
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
            assert np.shares_memory(found, stored) == (
                stored.dtype.itemsize == 8 and stored.flags.c_contiguous
            )


@pytest.mark.parametrize("place", [0, 2**18 - 1, 2**18, 2**18 + 4])
def test_a_fraction_anywhere_is_found(place: int) -> None:
    stored = np.arange(2**18 + 5.0)
    packing = TimePacking(np.dtype("M8[s]"), "seconds since 1990-01-01", "standard")
    assert packing.decode_linearly(stored) is not None
    stored[place] += 0.5
    assert packing.decode_linearly(stored) is None


TIMES: dict[str, tuple[np.ndarray[Any, Any], dict[str, Any]]] = {
    "days": (np.arange(0, 4000, 7, dtype="i4"), {"units": "days since 1979-01-01"}),
    "hours": (np.arange(0, 10**6, 999), {"units": "hours since 1900-01-01 00:00:0.0"}),
    "short": (np.arange(-5, 5, dtype="i2"), {"units": "minutes since 2001-02-03T04:05:06"}),
    "big-endian": (np.arange(9, dtype=">i4"), {"units": "days since 2000-01-01"}),
    "floats": (np.linspace(0, 99, 1001), {"units": "days since 2000-01-01"}),
    "whole floats": (np.arange(50.0), {"units": "days since 2000-01-01"}),
    "f4": (np.arange(0, 5, 0.25, dtype="f4"), {"units": "hours since 2000-01-01"}),
    "thirds": (np.arange(90) / 3, {"units": "seconds since 2000-01-01"}),
    "standard": (np.arange(9), {"units": "days since 2000-01-01", "calendar": "standard"}),
    "far": (np.arange(9), {"units": "days since 1000-01-01", "calendar": "proleptic_gregorian"}),
    "zone": (np.arange(9), {"units": "hours since 2000-01-01 00:00:00 +02:00"}),
    "filled": (
        np.array([0, 1, -999, 3], "i4"),
        {"units": "days since 2000-01-01", "_FillValue": np.int32(-999)},
    ),
    "filled floats": (
        np.array([0, np.nan, 1e20, 3.5]),
        {"units": "days since 2000-01-01", "_FillValue": 1e20},
    ),
    "all filled": (
        np.full(4, -999, "i8"),
        {"units": "days since 2000-01-01", "missing_value": np.int64(-999)},
    ),
    "packed": (
        np.arange(9, dtype="i2"),
        {"units": "days since 2000-01-01", "scale_factor": 0.5, "add_offset": 1.0},
    ),
    "timedelta": (np.arange(9, dtype="i4"), {"units": "hours"}),
    "timedelta floats": (np.linspace(0, 9, 91), {"units": "days"}),
    "timedelta filled": (
        np.array([1, 2, -1], "i4"),
        {"units": "seconds", "_FillValue": np.int32(-1)},
    ),
}


@pytest.mark.parametrize("case", TIMES)
def test_dates_decoded_in_pieces_are_those_of_xarray(case: str) -> None:
    stored, attributes = TIMES[case]
    unit = "s" if case == "far" else None
    expected = xr.conventions.decode_cf_variable(
        "time",
        xr.Variable(("x",), stored, dict(attributes)),
        decode_times=xr.coders.CFDatetimeCoder(time_unit=unit) if unit else True,
        decode_timedelta=True,
    )
    assert expected.dtype.kind in "Mm"
    packing = packing_of(ManifestVariable(("x",), stored, attributes), stored.dtype, expected)
    assert isinstance(packing, TimePacking)
    for pieces in (1, 3, stored.size):
        found = np.concatenate([packing.decode(p) for p in np.array_split(stored, pieces)])
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.values.tobytes()


def test_dates_may_be_decoded_one_by_one_and_in_any_shape() -> None:
    packing = TimePacking.from_attributes(
        {"units": "days since 2000-01-01"}, np.dtype("datetime64[ns]")
    )
    expected = np.array(["2000-01-02", "2000-01-03"], "M8[ns]")
    assert packing.decode(np.array(1)) == expected[0]
    assert packing.decode(np.array([[1], [2]])).tolist() == expected.reshape(2, 1).tolist()
    assert packing.decode(np.zeros((0, 3), "i4")).shape == (0, 3)
    out = np.empty((2, 2), "M8[ns]")
    packing.decode_into(out[:, 0], np.array([1, 2]))
    assert out[:, 0].tolist() == expected.tolist()


@pytest.mark.parametrize("stored", [[1e300], [10**17]], ids=str)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_numbers_that_are_no_dates_are_damage(stored: list[float]) -> None:
    packing = TimePacking.from_attributes(
        {"units": "days since 2000-01-01"}, np.dtype("datetime64[ns]")
    )
    with pytest.raises(CodecError):
        packing.decode(np.array(stored))


def test_packings_with_the_same_fills_are_equal_however_they_are_spelled() -> None:
    def packing(**attributes: Any) -> Packing | None:
        return Packing.from_attributes(np.dtype("i2"), attributes, np.dtype("f4"))

    one, two = np.int16(-1), np.int16(7)
    assert packing(_FillValue=one, missing_value=one) == packing(_FillValue=one)
    assert packing(_FillValue=one, missing_value=two) == packing(_FillValue=two, missing_value=one)


COUNTS = {
    # units and their reference, the highest numbers
    "days since 1850-01-01 12:00:00": 120_000,
    "hours since 1970-01-01": 2_000_000,
    "seconds since 2001-01-01T00:00:00+02:00": 6_000_000_000,
    "milliseconds since 2000-02-29 06:30:15.5": 6 * 10**12,
    "days since 0001-01-01": 800_000,
    "days since 1582-10-01": 200_000,
}


@pytest.mark.parametrize("calendar", ["", "proleptic_gregorian", "noleap", "360_day"])
def test_numbers_that_count_units_decode_as_by_xarray(calendar: str) -> None:
    quick, random = 0, np.random.default_rng(0)
    for (units, most), unit, kind in product(
        COUNTS.items(), ("s", "ns"), ("i4", "i8", ">f8", "f4")
    ):
        attributes = {"units": units, **({"calendar": calendar} if calendar else {})}
        if kind == ">f8":
            attributes["_FillValue"] = np.nan
        packing = TimePacking.from_attributes(attributes, np.dtype(f"M8[{unit}]"))
        top = min(most, 2**31 - 1) if kind == "i4" else most
        whole = random.integers(-top // 2, top, 6).astype(kind)
        parts = [whole, whole[:0], np.sort(whole)[:1].reshape(1, 1)]
        parts += [whole + np.dtype(kind).type(0.5), whole * np.nan] if "f" in kind else []
        for stored in parts:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = outcome(packing.decode_by_xarray, stored)
                found = outcome(packing.decode, stored)
            assert type(found) is type(expected), (attributes, stored)
            if isinstance(expected, np.ndarray):
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                assert (found.view("i8") == expected.view("i8")).all(), (attributes, stored)
        count = _find_linear_units(packing.units, packing.calendar, packing.dtype.str)
        quick += count is not None and count.is_exact_for(whole)
    assert quick if calendar in ("", "proleptic_gregorian") else not quick


def outcome(decode: Callable[[Any], Any], stored: Any) -> Any:
    try:
        return decode(stored)
    except CodecError as error:
        return error


def test_times_of_many_chunks_are_decoded_without_xarray(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = TimePacking.from_attributes({"units": "days since 1990-01-01"}, np.dtype("M8[ns]"))
    packing.decode(np.array([1, 2]))
    monkeypatch.setattr(TimePacking, "decode_by_xarray", lambda *_: pytest.fail("by xarray"))
    assert (
        packing.decode(np.array([[0], [365]])).tolist()
        == np.array([["1990-01-01"], ["1991-01-01"]], "M8[ns]").tolist()
    )
