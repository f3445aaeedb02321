"""Convert data types, fill values and strings between Zarr and numpy.

Zarr storage specification version 2, "Data type encoding" and "Fill value encoding". Zarr core
specification version 3.0, "Data types"; zarr-extensions registers further types and the form of
their fill values. In version 3, a data type has no byte order, which is an option of the codec
``bytes``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.bounds import check_element, check_nesting
from virtualds.errors import FormatError, UnsupportedError, make_damage_error
from virtualds.json_values import NON_FINITE, encode_float, encode_int

NUMPY_CODES = {
    "bool": "?",
    **{f"{kind}int{8 * n}": f"{kind or 'i'}{n}" for kind in ("", "u") for n in (1, 2, 4, 8)},
    **{f"float{8 * n}": f"f{n}" for n in (2, 4, 8)},
    **{f"complex{8 * n}": f"c{n}" for n in (8, 16)},
}
"""Data types without a configuration, and their numpy codes."""
ALIASES = {"complex_float32": "c8", "complex_float64": "c16"}
"""Other registered names of such types."""
BYTES_PER_CHARACTER = {"S": 1, "U": 4, "V": 1}
FIXED_LENGTH = {"S": "null_terminated_bytes", "U": "fixed_length_utf32", "V": "raw_bytes"}
"""Data types with a length in bytes, by numpy's kind."""
TIMES = {"M": "numpy.datetime64", "m": "numpy.timedelta64"}
RECORDS = ("struct", "structured")
"""The registered name of compound types, and its former name."""
MAX_TIME_FACTOR = 2**31 - 1
"""The largest multiple of a unit that numpy supports for times."""

_CODES = {np.dtype(code).char: name for name, code in NUMPY_CODES.items()}
_KINDS = {name: kind for table in (FIXED_LENGTH, TIMES) for kind, name in table.items()}


# ---------------------------------------------------------------------- data types


def data_type_to_v3(dtype: np.dtype[Any]) -> Any | None:
    """Return the Zarr v3 representation of a dtype, or None if it has none.

    There is none for long doubles, objects, compound types with padding or with arrays as members,
    and types of length 0.

    Examples
    --------
    >>> data_type_to_v3(np.dtype(">f4"))
    'float32'
    >>> data_type_to_v3(np.dtype("M8[10us]"))["configuration"]
    {'unit': 'us', 'scale_factor': 10}
    """
    if not dtype.itemsize or dtype.subdtype is not None:
        return None
    if dtype.names is not None:
        return _record_to_v3(dtype)
    if dtype.kind in TIMES:
        unit, factor = np.datetime_data(dtype)
        return _describe_named(TIMES[dtype.kind], unit=unit, scale_factor=factor)
    if dtype.kind in FIXED_LENGTH:
        return _describe_named(FIXED_LENGTH[dtype.kind], length_bytes=dtype.itemsize)
    # numpy has several type characters for integers of the same size
    return _CODES.get(np.dtype(dtype.str).char) if dtype.kind in "biufc" else None


def _record_to_v3(dtype: np.dtype[Any]) -> Any | None:
    """Return the representation of a compound type, or None if it has padding."""
    fields: list[dict[str, Any]] = []
    end = 0
    members: Mapping[str, Any] = dtype.fields or {}
    for name in dtype.names or ():
        member, offset, *title = members[name]
        data_type = data_type_to_v3(member)
        if data_type is None or offset != end or title or not name:
            return None
        fields.append({"name": name, "data_type": data_type})
        end += member.itemsize
    return _describe_named("struct", fields=fields) if end == dtype.itemsize else None


def _describe_named(name: str, **configuration: Any) -> dict[str, Any]:
    """Return a data type with a configuration as JSON."""
    return {"name": name, "configuration": configuration}


def data_type_from_v3(value: Any) -> np.dtype[Any]:
    """Return the dtype of a Zarr v3 representation, in native byte order.

    Examples
    --------
    >>> data_type_from_v3("r24"), data_type_from_v3("int16")
    (dtype('V3'), dtype('int16'))
    """
    name, configuration = parse_extension(value, "data_type")
    try:
        dtype = _data_type_from_v3(name, configuration)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise make_damage_error(
            f"data_type {value!r}: its configuration is invalid ({error})", "metadata"
        ) from error
    if dtype is not None:
        check_nesting(dtype, f"data_type {name!r}")
        check_element(dtype.itemsize, f"data_type {name!r}")
        return dtype
    if name in SERIALISERS:
        raise UnsupportedError(
            f"data_type {name!r}: its elements have no fixed length; open the data with zarr-python"
        )
    raise UnsupportedError(
        f"data_type {name!r}: it is not one of {sorted([*NUMPY_CODES, *_KINDS, *RECORDS])}; open "
        f"the data with zarr-python"
    )


def _data_type_from_v3(name: str, configuration: Mapping[str, Any]) -> np.dtype[Any] | None:
    """Return the dtype of a name and configuration, or None for an unknown name."""
    if name in NUMPY_CODES or name in ALIASES:
        return np.dtype(NUMPY_CODES.get(name) or ALIASES[name])
    if bits := re.fullmatch(r"r([1-9]\d*)", name):
        return np.dtype(("V", _count_units(int(bits[1]), 8)))
    if name in RECORDS:
        # the fields are objects or, formerly, pairs
        pairs = [
            (f["name"], f["data_type"]) if isinstance(f, Mapping) else tuple(f)
            for f in configuration["fields"]
        ]
        if not pairs or not all(isinstance(name, str) and name for name, _ in pairs):
            raise ValueError(f"fields {configuration['fields']!r}")
        return np.dtype([(name, data_type_from_v3(kind)) for name, kind in pairs])
    kind = _KINDS.get(name)
    if kind in TIMES:
        # Unicode has two characters for mu, and numpy accepts only "u"
        unit = configuration["unit"].replace("\u03bc", "u").replace("\u00b5", "u")
        factor = configuration["scale_factor"]
        if type(factor) is not int or not 0 < factor <= MAX_TIME_FACTOR:
            raise ValueError(f"scale factor {factor!r}")
        return np.dtype(kind if unit == "generic" else f"{kind}8[{factor}{unit}]")
    if kind is not None:
        length = _count_units(configuration["length_bytes"], BYTES_PER_CHARACTER[kind])
        return np.dtype((kind, length))
    return None


def _count_units(length: Any, unit: int) -> int:
    """Return a length in units, or raise an error if it is not a multiple."""
    if type(length) is not int or length < 1 or length % unit:
        raise ValueError(f"a length of {length!r} in units of {unit}")
    return length // unit


def parse_extension(value: Any, context: str) -> tuple[str, Mapping[str, Any]]:
    """Return the name and configuration of a Zarr v3 extension, which may be a bare name."""
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping):
        name, configuration = value.get("name"), value.get("configuration", {})
        if isinstance(name, str) and isinstance(configuration, Mapping):
            return name, configuration
    raise make_damage_error(
        f"{context} {value!r}: it is neither a name nor an object with a name and a configuration",
        "metadata",
    )


# ---------------------------------------------------------------------- fill values


def fill_value_to_v3(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the Zarr v3 representation of a fill value.

    A NaN with an unusual bit pattern becomes hexadecimal digits.

    Examples
    --------
    >>> fill_value_to_v3(np.nan, np.dtype("f4")), fill_value_to_v3("NaT", np.dtype("M8[s]"))
    ('NaN', 'NaT')
    """
    native = dtype.newbyteorder("=")
    scalar = np.asarray(value).astype(native)
    if native.names is not None:
        return {name: fill_value_to_v3(scalar[name], native[name]) for name in native.names}
    match native.kind:
        case "f":
            return _float_to_v3(scalar)
        case "c":
            # numpy's .real would change the bits of some NaNs
            parts = scalar.reshape(1).view(f"f{scalar.dtype.itemsize // 2}")
            return [_float_to_v3(np.asarray(part)) for part in parts]
        case "M" | "m":
            return "NaT" if np.isnat(scalar) else scalar.reshape(1).view("i8")[0].item()
        case "S" | "V":
            # numpy drops trailing zero bytes
            text = scalar.item() if native.kind == "S" else scalar.tobytes()
            return base64.standard_b64encode(text).decode()
    return scalar.item()


def _float_to_v3(scalar: Any) -> Any:
    """Return the representation of a float, which is exact for all NaNs."""
    if np.isfinite(scalar):
        return scalar.item()
    for name, usual in NON_FINITE.items():
        if scalar.tobytes() == np.asarray(usual, scalar.dtype).tobytes():
            return name
    return f"0x{scalar.astype(scalar.dtype.newbyteorder('>')).tobytes().hex()}"


def fill_value_from_v3(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value from its Zarr v3 representation, as a scalar of the dtype.

    Examples
    --------
    >>> fill_value_from_v3("0x7fc00000", np.dtype("f4")), fill_value_from_v3(7, np.dtype(">i2"))
    (np.float32(nan), np.int16(7))
    """
    native = dtype.newbyteorder("=")
    try:
        return np.frombuffer(_bytes_from_v3(value, native), native)[0]
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError) as error:
        raise make_damage_error(
            f"fill_value {value!r}: it is not of type {dtype} ({error})", "metadata"
        ) from error


def _bytes_from_v3(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of a fill value as a dtype in native byte order."""
    if dtype.names is not None:
        return _encode_record(value, dtype)
    match dtype.kind:
        case "b":
            if isinstance(value, str) or value not in (False, True):
                raise ValueError("neither true nor false")
            raw = np.asarray(value, dtype).tobytes()
        case "i" | "u":
            raw = encode_int(value, dtype)
        case "f":
            raw = encode_float(value, dtype)
        case "c":
            if not isinstance(value, list | tuple) or len(value) != 2:
                raise ValueError("not a pair of numbers")
            part = np.dtype(f"f{dtype.itemsize // 2}")
            raw = b"".join(encode_float(number, part) for number in value)
        case "M" | "m":
            # NaT is the smallest integer; numpy cannot create NaT of types without a unit
            raw = encode_int(np.iinfo("i8").min if value == "NaT" else value, np.dtype("i8"))
        case "U":
            if not isinstance(value, str) or 4 * len(value) > dtype.itemsize:
                raise ValueError("not a string of that length")
            raw = np.asarray(value, dtype).tobytes()
        case _:
            raw = _encode_raw(value, dtype)
    return raw.ljust(dtype.itemsize, b"\0")


def _encode_record(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of a fill value of a compound type."""
    if isinstance(value, str):
        # the former representation: a little-endian element in base64
        stored = np.frombuffer(_encode_raw(value, dtype), dtype.newbyteorder("<"))
        return stored.astype(dtype).tobytes()
    names = dtype.names or ()
    if value.keys() != set(names):
        raise ValueError(f"its members are {names}")
    return b"".join(_bytes_from_v3(value[name], dtype[name]) for name in names)


def _encode_raw(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of a fill value, from a list (core specification) or base64 (registry)."""
    raw = base64.b64decode(value, validate=True) if isinstance(value, str) else bytes(list(value))
    if len(raw) > dtype.itemsize or (dtype.kind == "V" and len(raw) < dtype.itemsize):
        raise ValueError(f"{len(raw)} bytes")
    return raw


def dtype_from_zarr_v2(value: Any) -> np.dtype[Any]:
    """Return the dtype of a Zarr v2 representation ("Data type encoding")."""
    try:
        dtype: np.dtype[Any] = np.dtype(_to_numpy_descr(value))
    except (SyntaxError, TypeError, ValueError) as error:
        # numpy parses shapes in dtypes as Python code
        raise make_damage_error(
            f"dtype {value!r}: it is not a dtype of numpy", "metadata"
        ) from error
    if not dtype.itemsize:
        raise make_damage_error(f"dtype {value!r}: it has no bytes", "metadata")
    if dtype.names and dtype.hasobject:
        raise make_damage_error(
            f"dtype {value!r}: a field holds Python objects, which files cannot store",
            "metadata",
        )
    check_nesting(dtype, "dtype")
    check_element(dtype.itemsize, f"dtype {value!r}")
    return dtype


def _to_numpy_descr(value: Any) -> Any:
    """Convert a Zarr v2 data type to the form that numpy accepts: fields as tuples."""
    if isinstance(value, str):
        return value
    return [(name, _to_numpy_descr(kind), *map(tuple, shape)) for name, kind, *shape in value]


def dtype_to_zarr_v2(dtype: np.dtype[Any]) -> Any:
    """Return the Zarr v2 representation of a dtype: a string, or a list of fields."""
    if dtype.names is None:
        return dtype.str
    fields = []
    for name in dtype.names:
        base, shape = dtype[name].base, dtype[name].shape
        fields.append([name, dtype_to_zarr_v2(base), *([list(shape)] if shape else [])])
    return fields


def pack_members(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values of a compound type without padding between members."""
    return values.astype(to_packed(values.dtype), copy=False)


def to_packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype without padding between members, also inside members that are arrays.

    `numpy.lib.recfunctions.repack_fields` does not change the latter.

    >>> to_packed(np.dtype([("a", np.dtype("i1,i4", align=True), 2)])).itemsize
    10
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((to_packed(base), shape))
    if dtype.names is None:
        return dtype
    members = [to_packed(dtype[name]) for name in dtype.names]
    return np.dtype({"names": list(dtype.names), "formats": members})


def is_representable_in_zarr_v2(dtype: np.dtype[Any]) -> bool:
    """Return whether Zarr v2 can represent a dtype: without objects and padding between fields."""
    return not dtype.hasobject and dtype_from_zarr_v2(dtype_to_zarr_v2(dtype)) == dtype


def fill_from_zarr_v2(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value from its Zarr v2 representation ("Fill value encoding")."""
    try:
        return _decode_fill(value, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"fill_value {value!r}: it is not of type {dtype} ({error})") from error


def _decode_fill(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value as a scalar, or None for null."""
    if value is None or dtype.kind == "O":
        return None
    if dtype.kind == "U" and value == 0:
        return np.asarray("", dtype)[()]
    if dtype.kind in "SV":
        is_string = isinstance(value, str)
        raw = base64.b64decode(value, validate=True) if is_string else bytes(dtype.itemsize)
        if len(raw) > dtype.itemsize:
            raise ValueError(f"{len(raw)} bytes")
        return np.frombuffer(raw.ljust(dtype.itemsize, b"\0"), dtype)[0]
    if dtype.kind == "c":
        real, imaginary = (_decode_fill(part, np.dtype("f8")) for part in value)
        return np.asarray(complex(real, imaginary), dtype)[()]
    if isinstance(value, str) and dtype.kind == "f":
        value = NON_FINITE.get(value, value)
    return np.asarray(value).astype(dtype)[()]


def fill_to_zarr_v2(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the Zarr v2 representation of a fill value ("Fill value encoding")."""
    scalar = np.asarray(value).astype(dtype)
    if dtype.kind in "SV":
        return base64.standard_b64encode(scalar.tobytes()).decode()
    if dtype.kind == "c":
        return [fill_to_zarr_v2(part, np.dtype("f8")) for part in (scalar.real, scalar.imag)]
    if dtype.kind in "mM":
        return int(scalar.astype("i8"))
    if dtype.kind == "f" and not np.isfinite(scalar):
        return "NaN" if np.isnan(scalar) else "Infinity" if scalar > 0 else "-Infinity"
    return scalar.item()


def fill_to_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the value of the attribute ``_FillValue`` as xarray encodes it in Zarr v3.

    Floats are base64 of eight bytes, little-endian (`xarray.backends.zarr.FillValueCoder`).
    """
    scalar = np.asarray(value).astype(dtype)
    if dtype.kind == "c":
        return [fill_to_attribute(part, np.dtype("f8")) for part in (scalar.real, scalar.imag)]
    if dtype.kind == "f":
        return base64.standard_b64encode(scalar.astype("<f8").tobytes()).decode()
    return fill_to_zarr_v2(value, dtype)


def fill_from_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return the fill value that `fill_to_attribute` has encoded."""
    if dtype.kind == "c":
        real, imaginary = (fill_from_attribute(part, np.dtype("f8")) for part in value)
        return dtype.type(complex(real, imaginary))
    if dtype.kind == "f" and isinstance(value, str):
        raw = np.frombuffer(base64.standard_b64decode(value), "<f8")
        return raw.astype(dtype.newbyteorder("="))[0]
    return fill_from_zarr_v2(value, dtype)


def is_exact(fill: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a fill value is a scalar of the dtype of its array."""
    return np.ndim(fill) == 0 and np.asarray(fill).dtype == dtype.newbyteorder("=")


# ---------------------------------------------------------------------- variable-length strings

TEXT, BYTES = "vlen-utf8", "vlen-bytes"
"""Codecs of variable-length strings (zarr-extensions; also ids of Zarr v2)."""
SERIALISERS = {
    "string": TEXT,
    "variable_length_utf8": TEXT,
    "bytes": BYTES,
    "variable_length_bytes": BYTES,
}
"""The codecs that serialise variable-length data types of Zarr v3."""
DTYPES = {TEXT: np.dtype("O", metadata={"element_type": str}), BYTES: np.dtype("O")}
"""Dtypes of the values; xarray recognises strings by the metadata of the dtype."""


def to_string_objects(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return strings as objects.

    Raises
    ------
    UnsupportedError
        An element is not a string.
    """
    strings = values.astype(object)
    if invalid := [t for t in strings.ravel().tolist() if not isinstance(t, str)]:
        raise UnsupportedError(
            f"it holds {invalid[0]!r} where only strings can be written; fill in what is missing "
            f"(fillna), convert bytes with astype('S') and the rest with astype(str), or leave the "
            f"variable out with ds.drop_vars"
        )
    return strings


def encode_strings(strings: npt.NDArray[Any]) -> bytes:
    """Encode strings as a chunk in C order."""
    import numcodecs

    return bytes(numcodecs.VLenUTF8().encode(strings.ravel()))


def decode_strings(data: bytes, serialiser: str = TEXT) -> npt.NDArray[Any]:
    """Decode the strings of a chunk, or with `BYTES` its byte strings, as a 1-D array.

    Raises
    ------
    ValueError, RuntimeError
        The bytes are damaged.
    """
    import numcodecs

    return np.asarray(numcodecs.get_codec({"id": serialiser}).decode(data), object)
