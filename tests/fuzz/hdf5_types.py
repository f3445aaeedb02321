"""Types of HDF5, and values of them, for files that are made at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import h5py
import numpy as np
from h5py import h5t

Values = np.random.Generator
TEXT = "abcdefghijklmnopqrstuvwxyz 0123456789"


@dataclass(frozen=True)
class Kind:
    """A type as it is stored, and the type in memory whose values are written."""

    name: str
    stored: Any
    memory: np.dtype[Any]

    @property
    def in_heap(self) -> bool:
        """Whether values lie in the global heap, so that filters and fills are restricted."""
        return self.memory.hasobject

    @property
    def is_number(self) -> bool:
        return self.memory.kind in "iuf" and self.memory.fields is None


Make = Callable[[Random], np.dtype[Any]]


def _integer(rng: Random) -> np.dtype[Any]:
    return np.dtype(rng.choice("<>") + rng.choice(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")))


def _float(rng: Random) -> np.dtype[Any]:
    return np.dtype(rng.choice("<<>") + rng.choice(("f2", "f4", "f4", "f8", "f8")))


def _enum(rng: Random) -> np.dtype[Any]:
    step = rng.choice((1, 1, 3))
    names = {f"{rng.choice(TEXT[:26])}{n}": n * step for n in range(5)}
    return h5py.enum_dtype(names, basetype=rng.choice(("i1", "u1", "i2", "<i4", ">i4")))


def _compound(rng: Random) -> np.dtype[Any]:
    makes: list[Make] = [_integer, _float, _fixed, _array, _float]
    if rng.random() < 0.2:
        makes.append(_compound)
    fields = [(f"field {n}" if n % 2 else f"f{n}", rng.choice(makes)(rng)) for n in range(1, 4)]
    return np.dtype(fields, align=rng.random() < 0.5)


def _compound_of_text(rng: Random) -> np.dtype[Any]:
    return np.dtype([("n", "<i4"), ("text", h5py.string_dtype()), ("pair", "f4", (2,))])


def _fixed(rng: Random) -> np.dtype[Any]:
    return np.dtype(f"S{rng.choice((1, 3, 8, 40))}")


def _fixed_utf8(rng: Random) -> np.dtype[Any]:
    return h5py.string_dtype("utf-8", rng.choice((2, 9, 16)))


def _text(rng: Random) -> np.dtype[Any]:
    return h5py.string_dtype(rng.choice(("utf-8", "ascii")))


def _array(rng: Random) -> np.dtype[Any]:
    return np.dtype((rng.choice(("<i2", ">f4", "u1")), rng.choice(((2,), (2, 3)))))


def _lists(rng: Random) -> np.dtype[Any]:
    return h5py.vlen_dtype(np.dtype(rng.choice(("<i4", "<f8", "u1"))))


TYPES: dict[str, tuple[int, Make]] = {
    "integer": (5, _integer),
    "float": (7, _float),
    "text": (3, _text),
    "fixed": (3, _fixed),
    "fixed utf8": (1, _fixed_utf8),
    "enum": (1, _enum),
    "boolean": (1, lambda rng: np.dtype(bool)),
    "complex": (1, lambda rng: np.dtype(rng.choice(("<c8", ">c16")))),
    "compound": (2, _compound),
    "compound of text": (1, _compound_of_text),
    "array": (1, _array),
    "lists": (1, _lists),
    "opaque": (1, lambda rng: np.dtype(f"V{rng.choice((1, 5))}")),
    "reference": (1, lambda rng: h5py.ref_dtype),
    "region": (1, lambda rng: h5py.regionref_dtype),
}
"""Types that h5py makes of those of numpy: how often, and how."""


def _padded(rng: Random) -> tuple[Any, str]:
    kind = h5t.C_S1.copy()
    kind.set_size(rng.choice((4, 10)))
    kind.set_strpad(rng.choice((h5t.STR_SPACEPAD, h5t.STR_NULLTERM, h5t.STR_NULLPAD)))
    kind.set_cset(rng.choice((h5t.CSET_ASCII, h5t.CSET_UTF8)))
    return kind, f"S{kind.get_size()}"


def _odd_integer(rng: Random) -> tuple[Any, str]:
    kind = rng.choice((h5t.STD_I32LE, h5t.STD_I16BE, h5t.STD_U32LE)).copy()
    kind.set_precision(rng.choice((5, 10, 12)))
    kind.set_offset(rng.choice((0, 3)))
    return kind, "<i4"


def _odd_float(rng: Random) -> tuple[Any, str]:
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(26, 20, 6, 0, 20)
    kind.set_ebias(31)
    return kind, "<f4"


def _bits(rng: Random) -> tuple[Any, str]:
    kind, size = rng.choice(((h5t.STD_B8LE, 1), (h5t.STD_B16BE, 2), (h5t.STD_B32LE, 4)))
    return kind.copy(), f"bits{size}"


def _tagged(rng: Random) -> tuple[Any, str]:
    kind = h5t.create(h5t.OPAQUE, 6)
    kind.set_tag(b"a tag")
    return kind, "V6"


LOW_LEVEL: dict[str, tuple[int, Callable[[Random], tuple[Any, str]]]] = {
    "padded": (1, _padded),
    "odd integer": (1, _odd_integer),
    "odd float": (1, _odd_float),
    "bits": (1, _bits),
    "tagged": (1, _tagged),
}
"""Types that numpy lacks: how often, and how."""


def choose(rng: Random, only: tuple[str, ...] = ()) -> Kind:
    """Return a type, of those named if any are."""
    weights = {name: weight for name, (weight, _) in (TYPES | LOW_LEVEL).items()}
    names = only or tuple(weights)
    [name] = rng.choices(names, [weights[n] for n in names])
    if name in TYPES:
        memory = TYPES[name][1](rng)
        return Kind(name, h5t.py_create(memory, logical=True), memory)
    stored, code = LOW_LEVEL[name][1](rng)
    memory = np.dtype(code.replace("bits", "u"))
    return Kind(name, stored, memory)


def memory_type(kind: Kind) -> Any:
    """Return the type of HDF5 that values in memory have."""
    if kind.name == "bits":
        return {1: h5t.NATIVE_B8, 2: h5t.NATIVE_B16, 4: h5t.NATIVE_B32}[kind.memory.itemsize]
    return kind.stored if kind.name in ("tagged", "padded") else h5t.py_create(kind.memory)


# ---------------------------------------------------------------------- values


def values(rng: Values, kind: np.dtype[Any], shape: tuple[int, ...], targets: Any) -> Any:
    """Return values of a type; ``targets`` are an h5py group and dataset to refer to."""
    if kind.subdtype is not None:
        base, inner = kind.subdtype
        return values(rng, base, (*shape, *inner), targets)
    if kind.fields is not None and kind.names:
        found = np.zeros(shape, kind)
        for name in kind.names:
            found[name] = values(rng, kind[name], shape, targets)
        return found
    if kind.hasobject:
        return _objects(rng, kind, shape, targets)
    return _plain(rng, kind, shape)


def _plain(rng: Values, kind: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    if enum := h5py.check_enum_dtype(kind):
        return rng.choice(sorted(enum.values()), shape).astype(kind)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind == "f":
        return np.round(rng.normal(size=shape) * 100, 1).astype(kind)
    if kind.kind == "c":
        return (rng.normal(size=shape) + 1j).astype(kind)
    if kind.kind in "iu":
        return rng.integers(0, 100, shape).astype(kind)
    found = np.empty(shape, kind)
    for place in np.ndindex(shape):
        size = kind.itemsize if kind.kind == "V" else int(rng.integers(0, kind.itemsize + 1))
        data = _word(rng, size).encode()
        found[place] = np.void(data) if kind.kind == "V" else data
    return found


def _objects(rng: Values, kind: np.dtype[Any], shape: tuple[int, ...], targets: Any) -> Any:
    found = np.empty(shape, kind)
    inner = h5py.check_vlen_dtype(kind)
    reference = h5py.check_ref_dtype(kind)
    text = h5py.check_string_dtype(kind)
    for place in np.ndindex(shape):
        if text is not None:
            found[place] = _word(rng, int(rng.integers(0, 30)))
            if text.encoding == "utf-8" and rng.random() < 0.1:
                found[place] += "ü"
        elif reference is h5py.RegionReference:
            found[place] = targets[1].regionref[...]
        elif reference is h5py.Reference:
            found[place] = targets[int(rng.integers(2))].ref
        else:
            found[place] = values(rng, inner, (int(rng.integers(0, 4)),), targets)
    return found


def _word(rng: Values, size: int) -> str:
    return "".join(TEXT[n] for n in rng.integers(0, len(TEXT), size))
