"""Files that netCDF-C (through netCDF4-python) and h5netcdf make at random."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import h5netcdf
import netCDF4
import numpy as np

KINDS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "f4", "f4", "f4", "f8", "f8", "S1")
DIMS = ("time", "lat", "lon", "level")


def _text(values: Any) -> str:
    return "a word " * int(values.integers(0, 5))


def _lengths(rng: Random, alike: bool) -> dict[str, int | None]:
    """Return dimensions: the first is unlimited most of the time, and others at times."""
    found: dict[str, int | None] = {"time": None if rng.random() < 0.8 else 4}
    found |= {name: rng.choice((1, 2, 3, 5)) for name in DIMS[1:]}
    if rng.random() < 0.15 and not alike:
        found["level"] = None
    return found


def _values(values: Any, kind: str, shape: tuple[int, ...]) -> Any:
    if kind == "S1":
        return values.choice(list("abc "), shape).astype("S1")
    return np.round(values.normal(size=shape) * 50).astype(kind)


# ---------------------------------------------------------------------- netCDF-C


def write_netcdf4(path: Path, rng: Random, values: Any, alike: bool) -> None:
    """Write a file through netCDF-C: groups, strings, own types, filters, dense attributes."""
    form = rng.choice(("NETCDF4", "NETCDF4", "NETCDF4_CLASSIC"))
    with netCDF4.Dataset(path, "w", format=form) as file:
        if rng.random() < 0.1:
            file.set_fill_off()
        lengths = _lengths(rng, alike)
        for name, length in lengths.items():
            file.createDimension(name, length)
        grown = {name: int(values.integers(1, 6)) for name in lengths}
        groups = [file]
        if form == "NETCDF4":
            for number in range(rng.choice((0, 0, 1, 3))):
                groups.append(rng.choice(groups).createGroup(f"group{number}"))
        for group in groups:
            _write_netcdf4_group(group, form, grown, rng, values)


def _write_netcdf4_group(
    group: Any, form: str, grown: dict[str, int], rng: Random, values: Any
) -> None:
    _set_attributes(group, rng.choice((0, 2, 6, 15)), form, rng, values)
    if rng.random() < 0.6:
        for name in DIMS:
            if rng.random() < 0.6:
                _write_netcdf4_variable(group, name, (name,), form, grown, rng, values)
    for number in range(rng.choice((1, 2, 4))):
        dims = tuple(sorted(rng.sample(DIMS, k=rng.choice((0, 1, 2, 3))), key=DIMS.index))
        _write_netcdf4_variable(group, f"v{number}", dims, form, grown, rng, values)
    if form == "NETCDF4" and rng.random() < 0.3:
        _write_own_types(group, rng, values)


def _write_netcdf4_variable(
    group: Any,
    name: str,
    dims: tuple[str, ...],
    form: str,
    grown: dict[str, int],
    rng: Random,
    values: Any,
) -> None:
    classic = form == "NETCDF4_CLASSIC"
    kind: Any = rng.choice(("i1", "i2", "i4", "f4", "f8", "S1") if classic else KINDS)
    if not classic and rng.random() < 0.15:
        kind = str
    how: dict[str, Any] = {}
    if dims and kind is not str:
        how = {"zlib": rng.random() < 0.5, "shuffle": rng.random() < 0.6}
        how["fletcher32"] = rng.random() < 0.2
        how["complevel"] = rng.choice((1, 4))
        if rng.random() < 0.2 and kind not in ("S1",):
            how["endian"] = "big"
    if dims and rng.random() < 0.4:
        chosen = tuple(rng.choice((1, 2, 3)) for _ in dims)
        sizes = [None if d.isunlimited() else len(d) for d in map(_dims_of(group).get, dims)]
        how["chunksizes"] = tuple(min(c, n or c) for c, n in zip(chosen, sizes, strict=True))
    fill = rng.choice((None, None, False, 7))
    if kind not in (str, "S1") and fill is not None:
        how["fill_value"] = fill
    variable = group.createVariable(name, kind, dims, **how)
    _set_attributes(variable, rng.choice((0, 1, 4, 12)), form, rng, values)
    shape = tuple(
        grown[d] if _dims_of(group)[d].isunlimited() else len(_dims_of(group)[d]) for d in dims
    )
    if rng.random() < 0.1:
        return
    if kind is str:
        words = np.empty(shape, object)
        for place in np.ndindex(shape):
            words[place] = _text(values)
        variable[...] = words if shape else str(words[()])
    else:
        variable.set_auto_maskandscale(False)
        variable[tuple(slice(0, n) for n in shape)] = _values(values, kind, shape)


def _dims_of(group: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while group is not None:
        found = {**group.dimensions, **found}
        group = group.parent
    return found


def _set_attributes(owner: Any, count: int, form: str, rng: Random, values: Any) -> None:
    for number in range(count):
        way = rng.choice(("text", "number", "numbers", "strings", "string", "empty"))
        name = f"attribute_{number}"
        if way == "number":
            owner.setncattr(name, np.float32(values.normal()))
        elif way == "numbers":
            owner.setncattr(name, values.integers(0, 99, rng.choice((1, 3, 50))).astype("i4"))
        elif way == "strings" and form == "NETCDF4":
            owner.setncattr_string(name, ["a", _text(values), "ü"])
        elif way == "string" and form == "NETCDF4":
            owner.setncattr_string(name, _text(values))
        elif way == "empty":
            owner.setncattr(name, "")
        else:
            # of one length: it is a part of the type
            owner.setncattr(name, "".join(values.choice(list("abcdef"), rng.choice((1, 9, 40)))))


def _write_own_types(group: Any, rng: Random, values: Any) -> None:
    dims = ("lat",)
    size = len(_dims_of(group)["lat"])
    way = rng.choice(("enum", "vlen", "compound"))
    if way == "enum":
        kind = group.createEnumType(np.uint8, "enum_t", {"a": 0, "b": 3, "c": 255})
        group.createVariable("own", kind, dims, fill_value=255)[:] = values.choice([0, 3], size)
    elif way == "vlen":
        lists = np.empty(size, object)
        for number in range(size):
            lists[number] = values.integers(0, 9, int(values.integers(1, 4))).astype("i4")
        group.createVariable("own", group.createVLType(np.int32, "vlen_t"), dims)[:] = lists
    else:
        record = np.dtype([("n", "i4"), ("x", "f8"), ("pair", "f4", (2,))], align=True)
        kind = group.createCompoundType(record, "compound_t")
        made = np.zeros(size, record)
        made["n"] = values.integers(0, 99, size)
        group.createVariable("own", kind, dims)[:] = made


# ---------------------------------------------------------------------- h5netcdf


def write_h5netcdf(path: Path, rng: Random, values: Any, alike: bool) -> None:
    """Write a file through h5netcdf, in any version of the file format."""
    libver = rng.choice(("earliest", "v108", "v110", "latest"))
    with h5netcdf.File(path, "w", libver=libver) as file:
        lengths = _lengths(rng, alike)
        file.dimensions = lengths
        groups = [file, *(file.create_group(f"group{n}") for n in range(rng.choice((0, 0, 2))))]
        for name, length in lengths.items():
            if length is None:
                file.resize_dimension(name, int(values.integers(1, 6)))
        for group in groups:
            _write_h5netcdf_group(group, file, rng, values)


def _write_h5netcdf_group(group: Any, file: Any, rng: Random, values: Any) -> None:
    for number in range(rng.choice((0, 3, 12))):
        group.attrs[f"attribute {number}"] = rng.choice((number, "text", np.arange(number + 1.0)))
    chosen = [(n, (n,)) for n in DIMS if rng.random() < 0.4]
    for number in range(rng.choice((1, 3, 5))):
        dims = tuple(sorted(rng.sample(DIMS, k=rng.choice((0, 1, 2, 3))), key=DIMS.index))
        chosen.append((f"v{number}", dims))
    for name, dims in chosen:
        kind = rng.choice(KINDS[:-1])
        how: dict[str, Any] = {"fillvalue": rng.choice((None, 3))}
        if dims and rng.random() < 0.5:
            how |= {"compression": "gzip", "shuffle": rng.random() < 0.5}
        variable = group.create_variable(name, dims, kind, **how)
        variable.attrs["units"] = "K"
        shape = tuple(file.dimensions[d].size for d in dims)
        variable[...] = _values(values, kind, shape)
