"""Convert units of measure by a factor and an offset.

CF conventions 1.13, section 3.1, and the UDUNITS-2 database: units are products of powers of named
units with SI prefixes. Factors are exact fractions, so that equal units convert by exactly 1. Units
of dates also convert their reference dates, by the calendar (CF, section 4.4). Temperature
differences, which the attribute ``units_metadata`` marks, convert without an offset (CF, section
3.1.2).
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
    """Raised for units that are unknown or do not convert; the message is the reason."""


class LinearUnit(NamedTuple):
    """A unit: ``factor * x + offset`` in the product of base units given by ``exponents``."""

    factor: Fraction
    offset: Fraction
    exponents: Exponents


class Conversion(NamedTuple):
    """The conversion of numbers to another unit: ``factor * x + offset``."""

    factor: Fraction
    offset: Fraction

    @property
    def is_identity(self) -> bool:
        """Whether numbers stay unchanged."""
        return self == UNCHANGED


UNCHANGED = Conversion(Fraction(1), Fraction(0))

PREFIXES = {
    **{"y": -24, "z": -21, "a": -18, "f": -15, "p": -12, "n": -9, "u": -6, "µ": -6, "m": -3},
    **{"c": -2, "d": -1, "da": 1, "h": 2, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18},
    **{"nano": -9, "micro": -6, "milli": -3, "centi": -2, "deci": -1, "hecto": 2, "kilo": 3},
    **{"mega": 6, "giga": 9, "tera": 12},
}
"""Powers of ten of the SI prefixes."""

_DIMENSIONLESS: Exponents = ()
_PRESSURE, _ENERGY = (("kg", 1), ("m", -1), ("s", -2)), (("kg", 1), ("m", 2), ("s", -2))
_POWER = (("kg", 1), ("m", 2), ("s", -3))
_PREFIXABLE_UNITS: Mapping[str, tuple[str | int, Exponents]] = {
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
    "rad radian radians sr steradian": (1, _DIMENSIONLESS),
}
_OTHER_UNITS: Mapping[str, tuple[str | int, Exponents]] = {
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
    "degrees_east degree_E degrees_E degreeE degreesE arc_degree": (
        str(Fraction(pi) / 180),
        _DIMENSIONLESS,
    ),
    "% percent": ("1/100", _DIMENSIONLESS),
    "ppm": ("1/1000000", _DIMENSIONLESS),
    "ppb": ("1/1000000000", _DIMENSIONLESS),
}
_UNITS: Mapping[str, tuple[Fraction, Exponents]] = {
    name: (Fraction(size), exponents)
    for names, (size, exponents) in {**_PREFIXABLE_UNITS, **_OTHER_UNITS}.items()
    for name in names.split()
}
_PREFIXABLE_NAMES = frozenset(" ".join(_PREFIXABLE_UNITS).split())
_TEMPERATURE_SCALES: Mapping[str, tuple[str, str]] = {
    "degC deg_C degreeC degreesC degree_C degrees_C celsius Celsius degree_celsius "
    "degrees_celsius degree_Celsius degrees_Celsius °C": ("1", "273.15"),
    "degF deg_F degreeF degreesF degree_F degrees_F fahrenheit Fahrenheit °F": (
        "5/9",
        "459.67",
    ),
}
"""Temperature scales with an offset: the factor, and the temperature of their zero in the unit."""
_TEMPERATURES: Mapping[str, tuple[Fraction, Fraction]] = {
    name: (Fraction(factor), Fraction(zero))
    for names, (factor, zero) in _TEMPERATURE_SCALES.items()
    for name in names.split()
}

FACTOR = re.compile(r"\s*(?:([./*·]|per\b)\s*)?([^\W\d_%][^\W\d]*|%|[\d.]+(?:[eE][+-]?\d{1,2})?)"
                   r"(?:(?:\^|\*\*)?([+-]?\d+))?")  # fmt: skip
"""A factor of a unit: the operator before it, a name or number, and an exponent."""
TEMPERATURE_METADATA = re.compile(r"\btemperature:\s*(\S+)")
DATE_UNIT = re.compile(r"(\w+)\s+since\s")


def convert_units(
    given: Any,
    target: Any,
    calendar: Any = None,
    target_calendar: Any = None,
    metadata: tuple[Any, Any] = (None, None),
) -> Conversion:
    """Return the conversion of numbers from units ``given`` to units ``target``.

    ``calendar`` and ``target_calendar`` are their calendars, and ``metadata`` their attributes
    ``units_metadata``; without them, temperatures are on a scale. Raises `UnitsError` for units
    that do not convert, and for different units that are unknown.

    Examples
    --------
    >>> convert_units("degC", "K")
    Conversion(factor=Fraction(1, 1), offset=Fraction(5463, 20))
    >>> convert_units("hPa", "Pa").factor, convert_units("km h-1", "m s-1").factor
    (Fraction(100, 1), Fraction(5, 18))
    >>> convert_units("days since 2001-01-01", "hours since 2000-01-01")
    Conversion(factor=Fraction(24, 1), offset=Fraction(8784, 1))
    """
    given, target = str(given).strip(), str(target).strip()
    if are_date_units(given) and are_date_units(target):
        return _convert_dates(
            given, target, _normalise_calendar(calendar), _normalise_calendar(target_calendar)
        )
    if given == target:
        return UNCHANGED
    source, destination = parse_unit(given), parse_unit(target)
    if source.exponents != destination.exponents:
        raise UnitsError(f"{given!r} does not convert to {target!r}")
    factor = source.factor / destination.factor
    offset = (source.offset - destination.offset) / destination.factor
    if not offset:
        return Conversion(factor, offset)
    matches = [TEMPERATURE_METADATA.search(str(text or "")) for text in metadata]
    kinds = [match[1] if match else "on_scale" for match in matches]
    if kinds == ["difference", "difference"]:
        return Conversion(factor, Fraction(0))
    if kinds != ["on_scale", "on_scale"]:
        raise UnitsError(
            f"{given!r} does not convert to {target!r}, as their units_metadata are "
            f"{metadata[0]!r} and {metadata[1]!r}"
        )
    return Conversion(factor, offset)


def _normalise_calendar(calendar: Any) -> str:
    """Return the CF name of a calendar, which is the same for all synonyms."""
    name = str(calendar or "standard").lower()
    names = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
    return names.get(name, name)


@lru_cache(4096)
def _convert_dates(source: str, target: str, calendar: str, target_calendar: str) -> Conversion:
    """Return the conversion of dates between units, reference dates and calendars."""
    if calendar != target_calendar and not {calendar, target_calendar} <= set(CALENDARS):
        raise UnitsError(
            f"dates of the calendar {calendar!r} do not convert to {target_calendar!r}"
        )
    if source == target and calendar == target_calendar:
        return UNCHANGED
    units = [
        parse_unit(match[1] if (match := DATE_UNIT.match(text)) else text)
        for text in (source, target)
    ]
    if any(unit.exponents != (("s", 1),) for unit in units):
        raise UnitsError(f"{source!r} does not convert to {target!r}")
    reference = xr.Variable((), np.float64(0), {"units": source, "calendar": calendar})
    seconds = f"seconds {target[target.index('since') :]}"
    try:
        date = xr.conventions.decode_cf_variable("time", reference).compute()
        date.encoding = {"units": seconds, "calendar": target_calendar, "dtype": np.dtype("f8")}
        count = xr.conventions.encode_cf_variable(date).values.item()
    except (*LIBRARY_ERRORS, ValueError, OverflowError) as error:
        raise UnitsError(f"{source!r} does not convert to {target!r}") from error
    factor, target_factor = (unit.factor for unit in units)
    return Conversion(factor / target_factor, Fraction(count) / target_factor)


@lru_cache(4096)
def parse_unit(text: str) -> LinearUnit:
    """Return the unit of a text; raises `UnitsError` if it is unknown.

    Examples
    --------
    >>> parse_unit("kg m-2 s-1").exponents, parse_unit("hPa").factor
    ((('kg', 1), ('m', -2), ('s', -1)), Fraction(100, 1))
    """
    if text in _TEMPERATURES:
        factor, zero = _TEMPERATURES[text]
        return LinearUnit(factor, factor * zero, (("K", 1),))
    factor, exponents, position = Fraction(1), dict[str, int](), 0
    while position < len(text.rstrip()):
        match = FACTOR.match(text, position)
        if match is None or len(text) > 200:
            raise UnitsError(f"the units {text!r:.200} are unknown")
        position = match.end()
        power = int(match[3] or 1) * (-1 if match[1] in ("/", "per") else 1)
        if abs(power) > 99:
            raise UnitsError(f"the units {text!r:.200} are unknown")
        size, names = _parse_name(match[2], text)
        factor *= size**power
        for name, count in names:
            exponents[name] = exponents.get(name, 0) + count * power
    nonzero = tuple(sorted((name, count) for name, count in exponents.items() if count))
    return LinearUnit(factor, Fraction(0), nonzero)


def _parse_name(name: str, text: str) -> tuple[Fraction, Exponents]:
    """Return the factor and exponents of a number or of a name, which may have a prefix."""
    if name in _UNITS:
        return _UNITS[name]
    try:
        if name[0].isdigit() and Fraction(name) > 0:
            return Fraction(name), _DIMENSIONLESS
    except ValueError:
        pass
    for prefix, power in PREFIXES.items():
        rest = name.removeprefix(prefix)
        if rest != name and rest in _PREFIXABLE_NAMES:
            size, exponents = _UNITS[rest]
            return size * Fraction(10) ** power, exponents
    raise UnitsError(f"the units {text!r} are unknown")
