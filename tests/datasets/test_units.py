"""Units convert as UDUNITS-2 converts them, exactly, and never by a guess."""

from __future__ import annotations

from fractions import Fraction

import pytest

from virtualds.datasets.aggregation.units import UNCHANGED, UnitsError, convert_units

ONE = Fraction(1)
CONVERSIONS = [
    ("K", "degC", 1, "-273.15"),
    ("degF", "degC", "5/9", "-160/9"),
    ("celsius", "K", 1, "273.15"),
    ("hPa", "Pa", 100, 0),
    ("mbar", "hPa", 1, 0),
    ("km h-1", "m s-1", "5/18", 0),
    ("kg m-2 s-1", "g m-2 s-1", 1000, 0),
    ("m/s", "m s^-1", 1, 0),
    ("W m**-2", "W.m-2", 1, 0),
    ("g kg-1", "1", "1/1000", 0),
    ("%", "1", "1/100", 0),
    ("1e-3", "1", "1/1000", 0),
    ("degrees_north", "degree", 1, 0),
    ("mm/day", "m s-1", "1/86400000", 0),
    ("days since 2001-01-01", "days since 2000-01-01", 1, 366),
    ("hours since 2000-01-02", "days since 2000-01-01 12:00", "1/24", "1/2"),
]


@pytest.mark.parametrize(("given", "wanted", "factor", "offset"), CONVERSIONS)
def test_units_convert_exactly(
    given: str, wanted: str, factor: int | str, offset: int | str
) -> None:
    assert convert_units(given, wanted) == (Fraction(factor), Fraction(offset))
    back = convert_units(wanted, given)
    assert back.factor == ONE / Fraction(factor)
    assert back.offset == -Fraction(offset) / Fraction(factor)


def test_dates_convert_in_their_calendar() -> None:
    units = "days since 2001-03-01", "days since 2001-01-01"
    assert convert_units(*units, "360_day", "360_day").offset == 60
    assert convert_units(*units, "365_day", "noleap").offset == 59
    assert convert_units(*units, "standard", "gregorian").offset == 59


DIFFERENCE, ON_SCALE, UNKNOWN = (
    f"temperature: {kind}" for kind in ("difference", "on_scale", "unknown")
)


@pytest.mark.parametrize(
    ("given", "wanted", "factor"),
    [("degC", "K", 1), ("degF", "degC", "5/9"), ("mK", "K", "1/1000")],
)
def test_differences_of_temperatures_convert_by_a_factor(
    given: str, wanted: str, factor: int | str
) -> None:
    found = convert_units(given, wanted, metadata=(DIFFERENCE, DIFFERENCE))
    assert found == (Fraction(factor), 0)


@pytest.mark.parametrize(
    "metadata", [(ON_SCALE, ON_SCALE), (ON_SCALE, None), (None, None), ("leap_seconds: utc", None)]
)
def test_temperatures_on_a_scale_have_an_offset(metadata: tuple[str | None, str | None]) -> None:
    assert convert_units("degC", "K", metadata=metadata).offset == Fraction("273.15")


@pytest.mark.parametrize("one", [DIFFERENCE, ON_SCALE, None, UNKNOWN])
@pytest.mark.parametrize("other", [DIFFERENCE, UNKNOWN, "temperature: odd"])
def test_temperatures_that_may_differ_do_not_convert(one: str | None, other: str) -> None:
    for metadata in ((one, other), (other, one)):
        if metadata != (DIFFERENCE, DIFFERENCE):
            with pytest.raises(UnitsError, match="units_metadata"):
                convert_units("degC", "K", metadata=metadata)
        # these need no offset
        assert convert_units("mK", "K", metadata=metadata).offset == 0
        assert convert_units("degC", "celsius", metadata=metadata) == UNCHANGED


def test_equal_units_stay_though_nobody_knows_them() -> None:
    assert convert_units("psu", "psu") is UNCHANGED
    assert convert_units("months since 2000-01-01", "months since 2000-01-01") is UNCHANGED


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        *(("m", "K"), ("psu", "1"), ("", "K"), ("kg m-2", "mm"), ("m^1000", "m")),
        *(("days since 2000-01-01", "days"), ("K", "days since 2000-01-01")),
        *(("months since 2000-01-01", "days since 2000-01-01"), ("1e999999999", "1")),
        *(("days since never", "days since 2000-01-01"), ("m" * 300, "m"), ("0 m", "m")),
    ],
)
def test_other_units_do_not_convert(given: str, wanted: str) -> None:
    with pytest.raises(UnitsError):
        convert_units(given, wanted)


def test_calendars_do_not_convert() -> None:
    units = "days since 2001-03-01"
    with pytest.raises(UnitsError, match="calendar"):
        convert_units(units, units, "360_day", "standard")
