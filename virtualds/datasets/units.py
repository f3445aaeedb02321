"""Units of measure that convert into each other by a factor and a summand.

CF conventions 1.13, section 3.1, and the UDUNITS-2 database: units are products of powers of named
units with SI prefixes. Numbers are exact fractions, so that equal units convert by exactly 1.
Units since a reference date are compared by the calendar (CF, section 4.4). Differences of
temperatures convert without a summand, if the attribute ``units_metadata`` says that they are such
(CF, section 3.1.2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import pi
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from virtualds.codecs.cf import CALENDARS, are_date_units
from virtualds.errors import LIBRARY_ERRORS

Exponents = tuple[tuple[str, int], ...]


class UnitsError(ValueError):
    """Units that are unknown, or do not convert; the message is the reason."""


class LinearUnit(NamedTuple):
    """A unit: ``factor * x + offset`` in base units, which ``exponents`` names."""

    factor: Fraction
    offset: Fraction
    exponents: Exponents


class Conversion(NamedTuple):
    """How numbers in one unit become numbers in another: ``factor * x + offset``."""

    factor: Fraction
    offset: Fraction

    @property
    def is_identity(self) -> bool:
        """Whether numbers stay as they are."""
        return self == UNCHANGED


UNCHANGED = Conversion(Fraction(1), Fraction(0))

PREFIXES = {
    **{"y": -24, "z": -21, "a": -18, "f": -15, "p": -12, "n": -9, "u": -6, "µ": -6, "m": -3},
    **{"c": -2, "d": -1, "da": 1, "h": 2, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18},
    **{"nano": -9, "micro": -6, "milli": -3, "centi": -2, "deci": -1, "hecto": 2, "kilo": 3},
    **{"mega": 6, "giga": 9, "tera": 12},
}
"""Powers of ten of the SI prefixes."""

_ONE: Exponents = ()
_PRESSURE, _ENERGY = (("kg", 1), ("m", -1), ("s", -2)), (("kg", 1), ("m", 2), ("s", -2))
_POWER = (("kg", 1), ("m", 2), ("s", -3))
_BASE: Mapping[str, tuple[str | int, Exponents]] = {
    "m metre meter metres meters": (1, (("m", 1),)),
    "g gram grams": ("1/1000", (("kg", 1),)),
    "s sec second seconds secs": (1, (("s", 1),)),
    "K kelvin Kelvin degK deg_K degree_K degrees_K": (1, (("K", 1),)),
    "A ampere amperes": (1, (("A", 1),)),
    "mol mole moles": (1, (("mol", 1),)),
    "cd candela": (1, (("cd", 1),)),
    "N newton newtons": (1, (("kg", 1), ("m", 1), ("s", -2))),
    "Pa pascal pascals": (1, _PRESSURE),
    "bar bars": (100_000, _PRESSURE),
    "J joule joules": (1, _ENERGY),
    "W watt watts": (1, _POWER),
    "Hz hertz": (1, (("s", -1),)),
    "V volt volts": (1, (("A", -1), ("kg", 1), ("m", 2), ("s", -3))),
    "l L litre liter litres liters": ("1/1000", (("m", 3),)),
    "rad radian radians sr steradian": (1, _ONE),
}
_FIXED: Mapping[str, tuple[str | int, Exponents]] = {
    "min minute minutes": (60, (("s", 1),)),
    "h hr hour hours hrs": (3600, (("s", 1),)),
    "d day days": (86400, (("s", 1),)),
    "mb millibar millibars": (100, _PRESSURE),
    "atm atmosphere": (101_325, _PRESSURE),
    "t tonne tonnes": (1000, (("kg", 1),)),
    "ft foot feet": ("0.3048", (("m", 1),)),
    "mile miles": ("1609.344", (("m", 1),)),
    "nautical_mile nmile": (1852, (("m", 1),)),
    "kt kts knot knots": ("1852/3600", (("m", 1), ("s", -1))),
    "degree degrees degree_north degrees_north degree_N degrees_N degreeN degreesN degree_east "
    "degrees_east degree_E degrees_E degreeE degreesE arc_degree": (str(Fraction(pi) / 180), _ONE),
    "% percent": ("1/100", _ONE),
    "ppm": ("1/1000000", _ONE),
    "ppb": ("1/1000000000", _ONE),
}
TEMPERATURES: Mapping[str, tuple[str, str]] = {
    "degC deg_C degreeC degreesC degree_C degrees_C celsius Celsius degree_celsius "
    "degrees_celsius degree_Celsius degrees_Celsius °C": ("1", "273.15"),
    "degF deg_F degreeF degreesF degree_F degrees_F fahrenheit Fahrenheit °F": (
        "5/9",
        "459.67",
    ),
}
"""Temperatures that do not begin at absolute zero: the factor, and where they begin, in units."""

PARTS = re.compile(r"\s*(?:([./*·]|per\b)\s*)?([^\W\d_%][^\W\d]*|%|[\d.]+(?:[eE][+-]?\d{1,2})?)"
                   r"(?:(?:\^|\*\*)?([+-]?\d+))?")  # fmt: skip
"""A factor of a unit: the operator before it, a name or number, and an exponent."""
TEMPERATURE = re.compile(r"\btemperature:\s*(\S+)")
TIME_WORD = re.compile(r"(\w+)\s+since\s")


def convert_units(
    given: Any,
    wanted: Any,
    calendar: Any = None,
    other: Any = None,
    metadata: tuple[Any, Any] = (None, None),
) -> Conversion:
    """Return how numbers in units ``given`` become numbers in units ``wanted``.

    ``calendar`` and ``other`` are the calendars of both, and ``metadata`` their attributes
    ``units_metadata``: without them, temperatures are on a scale. Raises `UnitsError` for units
    that do not convert, and for those that are unknown and not equal.

    Examples
    --------
    >>> convert_units("degC", "K")
    Conversion(factor=Fraction(1, 1), offset=Fraction(5463, 20))
    >>> convert_units("hPa", "Pa").factor, convert_units("km h-1", "m s-1").factor
    (Fraction(100, 1), Fraction(5, 18))
    >>> convert_units("days since 2001-01-01", "hours since 2000-01-01")
    Conversion(factor=Fraction(24, 1), offset=Fraction(8784, 1))
    """
    given, wanted = str(given).strip(), str(wanted).strip()
    if are_date_units(given) and are_date_units(wanted):
        return _convert_dates(given, wanted, _name_calendar(calendar), _name_calendar(other))
    if given == wanted:
        return UNCHANGED
    one, two = parse_unit(given), parse_unit(wanted)
    if one.exponents != two.exponents:
        raise UnitsError(f"{given!r} does not convert to {wanted!r}")
    factor, offset = one.factor / two.factor, (one.offset - two.offset) / two.factor
    if not offset:
        return Conversion(factor, offset)
    kinds = [_name_temperature(text) for text in metadata]
    if kinds == ["difference", "difference"]:
        return Conversion(factor, Fraction(0))
    if kinds != ["on_scale", "on_scale"]:
        raise UnitsError(
            f"{given!r} does not convert to {wanted!r}, as their units_metadata are "
            f"{metadata[0]!r} and {metadata[1]!r}"
        )
    return Conversion(factor, offset)


def _name_temperature(metadata: Any) -> str:
    """Return what the attribute ``units_metadata`` says of a temperature."""
    found = TEMPERATURE.search(str(metadata or ""))
    return found[1] if found else "on_scale"


def _name_calendar(calendar: Any) -> str:
    name = str(calendar or "standard").lower()
    names = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
    return names.get(name, name)


@lru_cache(4096)
def _convert_dates(given: str, wanted: str, calendar: str, other: str) -> Conversion:
    if calendar != other and not {calendar, other} <= set(CALENDARS):
        raise UnitsError(f"dates of the calendar {calendar!r} do not convert to {other!r}")
    if given == wanted and calendar == other:
        return UNCHANGED
    units = [parse_unit(_name_unit(text)) for text in (given, wanted)]
    if any(unit.exponents != (("s", 1),) for unit in units):
        raise UnitsError(f"{given!r} does not convert to {wanted!r}")
    begin = xr.Variable((), np.float64(0), {"units": given, "calendar": calendar})
    seconds = f"seconds {wanted[wanted.index('since') :]}"
    try:
        date = xr.conventions.decode_cf_variable("time", begin).compute()
        date.encoding = {"units": seconds, "calendar": other, "dtype": np.dtype("f8")}
        count = xr.conventions.encode_cf_variable(date).values.item()
    except (*LIBRARY_ERRORS, ValueError, OverflowError) as error:
        raise UnitsError(f"{given!r} does not convert to {wanted!r}") from error
    one, two = (unit.factor for unit in units)
    return Conversion(one / two, Fraction(count) / two)


def _name_unit(units: str) -> str:
    found = TIME_WORD.match(units)
    return found[1] if found else units


@lru_cache(4096)
def parse_unit(text: str) -> LinearUnit:
    """Return a unit; raises `UnitsError` if it is unknown.

    Examples
    --------
    >>> parse_unit("kg m-2 s-1").exponents, parse_unit("hPa").factor
    ((('kg', 1), ('m', -2), ('s', -1)), Fraction(100, 1))
    """
    if text in _find_offsets():
        factor, begin = _find_offsets()[text]
        return LinearUnit(factor, factor * begin, (("K", 1),))
    factor, exponents, at = Fraction(1), dict[str, int](), 0
    while at < len(text.rstrip()):
        found = PARTS.match(text, at)
        if found is None or len(text) > 200:
            raise UnitsError(f"the units {text!r:.200} are unknown")
        at = found.end()
        power = int(found[3] or 1) * (-1 if found[1] in ("/", "per") else 1)
        if abs(power) > 99:
            raise UnitsError(f"the units {text!r:.200} are unknown")
        size, names = _parse_name(found[2], text)
        factor *= size**power
        for name, count in names:
            exponents[name] = exponents.get(name, 0) + count * power
    kept = tuple(sorted((name, count) for name, count in exponents.items() if count))
    return LinearUnit(factor, Fraction(0), kept)


def _parse_name(name: str, text: str) -> tuple[Fraction, Exponents]:
    names = _find_names()
    if name in names:
        return names[name]
    try:
        if name[0].isdigit() and Fraction(name) > 0:
            return Fraction(name), _ONE
    except ValueError:
        pass
    for prefix, power in PREFIXES.items():
        rest = name.removeprefix(prefix)
        if rest != name and rest in _find_prefixed():
            size, exponents = names[rest]
            return size * Fraction(10) ** power, exponents
    raise UnitsError(f"the units {text!r} are unknown")


@lru_cache(1)
def _find_names() -> dict[str, tuple[Fraction, Exponents]]:
    tables = {**_BASE, **_FIXED}
    return {n: (Fraction(size), e) for names, (size, e) in tables.items() for n in names.split()}


@lru_cache(1)
def _find_prefixed() -> frozenset[str]:
    return frozenset(name for names in _BASE for name in names.split())


@lru_cache(1)
def _find_offsets() -> dict[str, tuple[Fraction, Fraction]]:
    return {
        name: (Fraction(factor), Fraction(begin))
        for names, (factor, begin) in TEMPERATURES.items()
        for name in names.split()
    }
