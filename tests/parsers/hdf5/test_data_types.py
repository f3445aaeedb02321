"""The types of HDF5, read from the bytes of their messages, are those that h5py reads."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import h5py
import hypothesis.strategies as st
import numpy as np
import pytest
from effort import times
from h5py import h5t
from hdf5_messages import (
    array,
    bitfield,
    complex_of,
    compound,
    decode,
    enum,
    floating,
    head,
    integer,
    old_compound,
    opaque,
    sequence,
    size_of,
    text,
    type_message,
    varying_text,
)
from hypothesis import given, settings
from products import looped

from virtualds import UnsupportedError
from virtualds.parsers.hdf5.data_types import (
    TEXT_DTYPE,
    StoredType,
    check_type,
    encode_type,
    find_dtype,
    get_type_name,
    parse_stored_type,
)
from virtualds.parsers.hdf5.structure.element_types import parse_type_message
from virtualds.parsers.hdf5.structure.file_bytes import ByteNotes, fix
from virtualds.parsers.hdf5.structure.messages import MessageError, TypeClass, UnknownFormError

BIG = 9
"""The bits of a signed integer that begins with its most significant byte."""
F4, F8 = floating(4, 8, 23), floating(8, 11, 52)
F4_BIG = floating(4, 8, 23, form=0x21)
BOOL = enum(integer(1), FALSE=0, TRUE=1)
X87 = floating(16, 15, 64, form=0, precision=80)
COLORS = enum(integer(2), red=1, green=-2, blue=300)

STANDARD = {
    **{f"STD_{s}{n}{o}": True for s in "IUB" for n in (8, 16, 32, 64) for o in ("LE", "BE")},
    **{f"IEEE_F{n}{o}": True for n in (16, 32, 64) for o in ("LE", "BE")},
    **{f"NATIVE_{k}{n}": True for k in ("INT", "UINT", "B") for n in (8, 16, 32, 64)},
    **{f"COMPLEX_IEEE_F{n}{o}": True for n in (32, 64) for o in ("LE", "BE")},
    "LDOUBLE_LE": True,
    "LDOUBLE_BE": True,
    "NATIVE_LDOUBLE_COMPLEX": True,
    "C_S1": True,
    "FORTRAN_S1": False,
    "PYTHON_OBJECT": True,
    "STD_REF_OBJ": False,
}
"""Types of HDF5 by h5py's names: whether numpy reads what is stored."""

PLAIN = {
    "padding bits": integer(4, bits=8 | 0b110),
    "opaque": opaque(3),
    "tagged": opaque(5, b"image/png"),
    "datetime": opaque(8, b"NUMPY:<M8[ns]"),
    "timedelta": opaque(8, b"NUMPY:>m8[D]"),
    "tagged text": opaque(8, b"NUMPY:<U2"),
    "tagged booleans": opaque(1, b"NUMPY:|b1"),
    "null-padded text": text(7, 1),
    "null-padded UTF-8": text(7, 1, 1),
    "one byte of text": text(1, 0),
    "one byte of UTF-8": text(1, 0, 1),
    "enum": COLORS,
    "big enum": enum(integer(4, bits=BIG), a=-1, b=2**31 - 1),
    "unsigned enum": enum(integer(2, bits=0), a=0, b=65535),
    "enum in UTF-8": enum(integer(1), größe=1),
    "boolean": BOOL,
    "array": array(integer(2), 3),
    "array of axes": array(F4_BIG, 2, 3, 1),
    "array of arrays": array(array(integer(1), 4), 2),
    "array of enums": array(COLORS, 2),
    "array of text": array(text(3, 1), 2),
    "array of compounds": array(compound(3, ("a", 0, integer(1)), ("b", 1, integer(2))), 2),
    "compound": compound(12, ("x", 0, integer(4)), ("y", 4, F8)),
    "compound with gaps": compound(32, ("x", 8, integer(4)), ("y", 24, F4_BIG)),
    "compound out of order": compound(8, ("x", 4, integer(4)), ("y", 0, F4)),
    "compound of booleans": compound(2, ("a", 0, BOOL), ("b", 1, BOOL)),
    "compound of enums": compound(3, ("a", 0, COLORS), ("b", 2, BOOL)),
    "compound of text": compound(9, ("a", 0, text(4, 1, 1)), ("b", 4, text(5, 1))),
    "compound of arrays": compound(9, ("a", 0, array(integer(2), 2, 2)), ("b", 8, integer(1))),
    "compound of dates": compound(8, ("t", 0, opaque(8, b"NUMPY:<M8[s]"))),
    "compound of compounds": compound(9, ("a", 1, compound(8, ("b", 0, F8))), ("c", 0, integer(1))),
    "compound in UTF-8": compound(1, ("größe", 0, integer(1))),
    "compound of many bytes": compound(70000, ("x", 66000, integer(4))),
    "old compound": old_compound(4, ("member", 0, integer(4), ())),
    "old compound with axes": old_compound(28, ("a", 4, integer(2), (3, 4))),
    "complex": compound(8, ("r", 0, F4), ("i", 4, F4)),
    "big complex": compound(8, ("r", 0, F4_BIG), ("i", 4, F4_BIG)),
    "long complex": compound(32, ("r", 0, X87), ("i", 16, X87)),
    "half complex": compound(4, *((n, k, floating(2, 5, 10)) for n, k in (("r", 0), ("i", 2)))),
    "named otherwise": compound(8, ("i", 0, F4), ("r", 4, F4)),
    "complex in a compound": compound(9, ("a", 0, integer(1)), ("z", 1, complex_of(F4))),
    "array of complex": array(complex_of(F8), 2),
    "a name of eight bytes": old_compound(1, ("abcdefgh", 0, integer(1), ())),
    "version 3": floating(4, 8, 23, version=3),
    "version 4": floating(4, 8, 23, version=4),
    "version 5": floating(8, 11, 52, version=5),
}
"""Types whose stored bytes are values of their dtype."""

CONVERTED = {
    "twelve bits": integer(2, 4, 12),
    "low bits": integer(4, 0, 31),
    "bitfield of few bits": bitfield(2, 0, 12),
    "bitfield with padding bits": bitfield(2, bits=0b10),
    "bfloat16": floating(2, 8, 7),
    "float8 E4M3": floating(1, 4, 3),
    "float8 E5M2": floating(1, 5, 2),
    "another bias": floating(4, 8, 23, bias=126),
    "too great a bias": floating(4, 8, 23, bias=128),
    "half with another bias": floating(2, 5, 10, bias=14),
    "three bytes": floating(3, 8, 15),
    "five bytes": floating(5, 8, 31),
    "ten bytes": floating(10, 15, 64, form=0),
    "wide": floating(16, 11, 52, precision=64),
    "first bit set": floating(4, 8, 23, form=0x10),
    "first bit stored": floating(4, 8, 23, form=0),
    "padding bits in a float": floating(8, 8, 23, form=0x28, precision=32),
    "null-terminated text": text(7, 0),
    "space-padded text": text(7, 2),
    "space-padded byte": text(1, 2),
    "text of another padding": text(7, 3),
    "text of varying length": varying_text(),
    "UTF-8 of varying length": varying_text(1, 1),
    "text in an array": array(varying_text(1), 2),
    "sequence": sequence(integer(4)),
    "sequence of sequences": sequence(sequence(F8)),
    "sequence of text": sequence(varying_text(1)),
    "sequence of compounds": sequence(compound(8, ("a", 0, integer(4)), ("b", 4, F4))),
    "sequence of arrays": sequence(array(integer(1, bits=BIG), 2)),
    "sequence of enums": sequence(COLORS),
    "sequence of strings": sequence(text(3, 1)),
    "array of sequences": array(sequence(integer(4)), 3),
    "enum of few bits": enum(integer(2, 4, 8), a=0x0FF0, b=0x7F5),
    "booleans of four bytes": compound(
        8, ("a", 0, enum(integer(4), FALSE=0, TRUE=1)), ("b", 4, F4)
    ),
    "compound of converted text": compound(7, ("a", 0, text(4, 0)), ("b", 4, text(3, 2))),
    "compound of bfloat16": compound(8, ("b", 4, F4), ("a", 0, floating(2, 8, 7))),
    "compound of few bits": compound(8, ("a", 0, integer(4, 2, 20)), ("b", 4, F4)),
    "array of few bits": array(integer(4, 2, 20), 2),
    "wide complex": compound(12, ("r", 0, F4), ("i", 8, F4)),
    "complex the other way round": compound(8, ("r", 4, F4), ("i", 0, F4)),
    "complex of odd parts": complex_of(floating(4, 8, 22, precision=31)),
    "text in a compound": compound(24, ("a", 0, varying_text()), ("b", 16, F8)),
    "text in the middle": compound(
        40, ("z", 30, integer(2)), ("b", 8, varying_text(1)), ("a", 0, F8), ("s", 24, text(2, 1))
    ),
    "sequence in a compound": compound(20, ("a", 4, sequence(F4)), ("b", 0, integer(4))),
    "text deep in a compound": compound(
        80,
        ("last", 72, integer(4)),
        ("array", 8, array(varying_text(), 2)),
        ("inner", 40, compound(24, ("n", 20, integer(4)), ("t", 0, varying_text(1)))),
        ("plain", 64, compound(4, ("n", 2, integer(2)), ("m", 0, integer(2)))),
    ),
    "sequence of compounds of text": sequence(
        compound(24, ("b", 16, F8), ("a", 0, varying_text()))
    ),
}
"""Types that only h5py can read."""

REFUSED = {
    "three bytes": integer(3),
    "sixteen bytes": integer(16),
    "bitfield of three bytes": bitfield(3),
    "quadruple precision": floating(16, 15, 112),
    "time": head(2, 4) + b"\x20\0",
    "region": head(7, 12, 1),
    "text of unknown characters": text(4, 1, 2),
    "varying text of unknown characters": varying_text(2),
    "tag of nothing": opaque(4, b"NUMPY:"),
    "tag of no type": opaque(4, b"NUMPY:magic"),
    "tag of no ASCII": opaque(4, b"NUMPY:\xff"),
    "tag of no bytes": opaque(1, b"NUMPY:V0"),
    "half complex numbers": complex_of(floating(2, 5, 10)),
    "references in a compound": compound(8, ("a", 0, head(7, 8))),
    "sequence of references": sequence(head(7, 8)),
    "sequence of time": sequence(head(2, 4) + b"\x20\0"),
    "big sequence": sequence(integer(4, bits=BIG)),
    "sequence of a big compound": sequence(compound(5, ("a", 0, F4_BIG), ("b", 4, integer(1)))),
    "sequence of big enums": sequence(enum(integer(2, bits=BIG), a=1)),
    "sequence of big complex": sequence(complex_of(F4_BIG)),
    "array of big sequences": array(sequence(F4_BIG), 2),
    "compound of time": compound(4, ("t", 0, head(2, 4) + b"\x20\0")),
    "enum of three bytes in a compound": compound(3, ("e", 0, enum(integer(3), a=1))),
    "no UTF-8": compound(1, (b"\xff", 0, integer(1))),
    "a member that does not fit": compound(2, ("a", 0, floating(2, 8, 7))),
}
"""Types that h5py has no value for, or reads wrongly."""

LIBVERS = ("earliest", "v108", "v110", "latest")
IN_FILE = {
    **{name: encode_type(getattr(h5t, name)) for name in STANDARD},
    **PLAIN,
    **{f"converted: {name}": message for name, message in CONVERTED.items()},
}


def by_h5py(kind: Any, name: str = "enum") -> tuple[Any, Any, tuple[int, ...]]:
    """Return the dtype, the declared dtype and the inner shape, as h5py sees a type."""
    of_class = kind.get_class()
    if of_class == h5t.ENUM:
        members = {
            kind.get_member_name(i).decode(): kind.get_member_value(i)
            for i in range(kind.get_nmembers())
        }
        dtype = kind.get_super().dtype
        return dtype, np.dtype(dtype, metadata={"enum": members, "enum_name": name}), ()
    if of_class == h5t.ARRAY:
        dtype, declared, shape = by_h5py(kind.get_super())
        return dtype, declared, kind.get_array_dims() + shape
    if of_class == h5t.REFERENCE or (of_class == h5t.STRING and kind.is_variable_str()):
        return TEXT_DTYPE, str, ()
    dtype = kind.dtype
    if dtype.names is None:
        return np.dtype(dtype.str), np.dtype(dtype.str), ()
    return dtype, dtype.newbyteorder("="), ()


def everything(dtype: Any) -> Any:
    """Return all of a dtype: what numpy compares leaves the metadata out."""
    if not isinstance(dtype, np.dtype):
        return dtype
    known = {key: everything(value) for key, value in (dtype.metadata or {}).items()}
    inner = everything(dtype.subdtype[0]) if dtype.subdtype else None
    members = [
        (name, everything(dtype.fields[name][0]), dtype.fields[name][1])  # type: ignore[index]
        for name in dtype.names or ()
    ]
    return dtype.str, dtype.itemsize, known, inner, dtype.shape, members


def agrees(found: StoredType, expected: tuple[Any, Any, tuple[int, ...]]) -> bool:
    told = everything(found.dtype), everything(found.declared), found.shape
    return told == (everything(expected[0]), everything(expected[1]), expected[2])


@pytest.fixture(scope="module", params=LIBVERS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a dataset of each type, and one of each type committed."""
    path = tmp_path_factory.mktemp("types") / f"{request.param}.h5"
    scalar = h5py.h5s.create(h5py.h5s.SCALAR)
    with h5py.File(path, "w", libver=request.param) as file:
        types, plain, named = map(file.create_group, ("types", "plain", "named"))
        for number, message in enumerate(IN_FILE.values()):
            if request.param != "latest" and TypeClass.COMPLEX in classes_of(message):
                # older libraries know no complex numbers, so h5py cannot write them
                continue
            kind, name = decode(message), str(number).encode()
            h5py.h5d.create(plain.id, name, kind, scalar)
            kind.commit(types.id, name)
            h5py.h5d.create(named.id, name, h5t.open(types.id, name), scalar)
    return path


def classes_of(message: bytes) -> set[TypeClass]:
    def walk(kind: Any) -> set[TypeClass]:
        return {kind.kind}.union(*(walk(part) for _, part in kind.parts))

    return walk(parse_type_message(message))


@pytest.mark.parametrize("group", ["plain", "named"])
def test_types_in_files_are_those_that_h5py_reads(files: Path, group: str) -> None:
    compared = 0
    for number, name in enumerate(IN_FILE):
        path = f"{group}/{number}"
        with h5py.File(files) as file:
            if path not in file:
                continue
            kind = file[path].id.get_type()
            expected = by_h5py(kind, str(number) if group == "named" else "enum")
            by_kind = parse_stored_type(encode_type(kind), get_type_name(kind))
        found = parse_stored_type(
            type_message(files, path), str(number) if group == "named" else None
        )
        plain = STANDARD.get(name, name in PLAIN)
        assert agrees(found, expected), (name, found, expected)
        assert found.in_chunks is plain, name
        assert agrees(by_kind, expected) and by_kind.in_chunks is plain, name
        compared += 1
    assert compared > 120


@looped("message", REFUSED.values())
def test_types_without_values_are_refused(message: bytes) -> None:
    with pytest.raises(UnsupportedError, match=r"its type .* cannot be read \(.+\)\nleave the var"):
        parse_stored_type(message)
    with pytest.raises(UnsupportedError, match="cannot be read"):
        parse_stored_type(encode_type(decode(message)))


UNLIKE_H5PY = {
    "members that share bytes in numpy": compound(
        8, ("a", 0, floating(2, 8, 7)), ("b", 2, integer(2)), ("c", 4, integer(4))
    ),
    "a tag of another size": opaque(4, b"NUMPY:<M8[ns]"),
    "a tag of objects": opaque(8, b"NUMPY:O"),
    "a tag of members": opaque(8, b"NUMPY:i4,f4"),
    "a tag of an array": opaque(8, b"NUMPY:(2,)i4"),
    "floats of the VAX": floating(4, 8, 23, form=0x61, version=3),
    "names without UTF-8": head(8, 1, 1, 3) + integer(1) + b"\xff\0\1",
    "an enum of three bytes": enum(integer(3), a=1),
    "quadruple complex": complex_of(floating(16, 15, 112)),
}
"""Types that h5py gives wrong values of, or raises errors of its own for."""


@pytest.mark.parametrize("message", UNLIKE_H5PY.values(), ids=UNLIKE_H5PY)
def test_types_that_h5py_would_misread_are_refused(message: bytes) -> None:
    with pytest.raises(UnsupportedError, match="cannot be read"):
        parse_stored_type(message)
    with pytest.raises(UnsupportedError, match="cannot be read"):
        parse_stored_type(encode_type(decode(message)))


def test_an_enum_may_have_no_members() -> None:
    message = enum(integer(1))
    assert agrees(parse_stored_type(message), by_h5py(decode(message)))


def test_members_of_an_enum_keep_numbers_that_h5py_clips() -> None:
    found = parse_stored_type(enum(integer(8, bits=0), most=2**64 - 1, one=1))
    assert found.declared.metadata["enum"] == {"most": 2**64 - 1, "one": 1}


DAMAGED = {
    "two members of one name": compound(2, ("a", 0, integer(1)), ("a", 1, integer(1))),
    "nothing": b"",
    "half a head": integer(4)[:6],
    "no bytes": integer(0, precision=1),
    "no precision": head(0, 4) + b"\0\0\0\0",
    "bits past the end": integer(4, 8, 32),
    "no exponent": floating(4, 0, 23, bias=1),
    "no fraction": floating(4, 8, 0, bias=1),
    "a tag that is not padded": head(5, 4, 3) + b"abc",
    "a tag past the end": opaque(4, b"x")[:-1],
    "an unknown sort of sequence": sequence(integer(1), 2),
    "a compound of nothing": head(6, 4, 0, 3),
    "members that share bytes": compound(6, ("a", 0, integer(4)), ("b", 2, integer(4))),
    "a member past the end": compound(4, ("a", 2, integer(4))),
    "a name without end": head(6, 4, 1, 3) + b"name",
    "too many axes of a member": old_compound(4, ("a", 0, integer(4), (1, 1, 1, 1, 1))),
    "an axis of no length": old_compound(4, ("a", 0, integer(4), (0,))),
    "an array of another size": array(integer(2), 3)[:4] + b"\7\0\0\0" + array(integer(2), 3)[8:],
    "an array without axes": head(10, 4, version=3) + b"\0" + integer(4),
    "an array of too many axes": array(integer(1), *[1] * 33),
    "an enum of another size": head(8, 4, 0, 3) + integer(2),
    "an enum without its values": enum(integer(4), a=1)[:-1],
    "types without end": b"".join([head(9, 16)] * 100) + integer(4),
}

UNKNOWN = {
    "version 0": floating(4, 8, 23, version=0),
    "version 6": floating(4, 8, 23, version=6),
    "class 12": head(12, 4),
    "more bytes than padding": integer(4) + bytes(7) + b"\1",
    "complex numbers of two types": complex_of(F4, bits=0),
    "complex numbers in polar form": complex_of(F4, bits=3),
    "complex integers": complex_of(integer(4)),
    "an enum of floats": enum(F4, a=1),
}


@looped("message", DAMAGED.values())
def test_damaged_types_are_refused(message: bytes) -> None:
    with pytest.raises(MessageError):
        parse_stored_type(message)


@pytest.mark.parametrize("message", UNKNOWN.values(), ids=UNKNOWN)
def test_types_of_unknown_forms_are_declined(message: bytes) -> None:
    with pytest.raises(UnknownFormError):
        parse_stored_type(message)


@looped("message", IN_FILE.values())
def test_types_that_are_cut_short_are_refused_and_padding_is_not(message: bytes) -> None:
    known = parse_type_message(message)
    assert known.length == len(message)
    # old writers of compounds left 4 zeros for each member, or 200 behind many
    for padding in (7, 12, 200):
        assert parse_type_message(message + bytes(padding)) == known
    for stop in range(len(message)):
        with pytest.raises(MessageError):
            parse_type_message(message[:stop])


def test_axes_of_a_member_in_version_1_are_those_of_an_array() -> None:
    [(_, old)] = parse_type_message(old_compound(8, ("a", 0, integer(4), (2,)))).parts
    [(_, new)] = parse_type_message(compound(8, ("a", 0, array(integer(4), 2)))).parts
    assert old._replace(length=new.length) == new


# ---------------------------------------------------------------------- types of types

NUMBERS = st.sampled_from(
    [
        *(integer(n, bits=bits) for n in (1, 2, 4, 8) for bits in (0, 1, 8, BIG)),
        *(bitfield(n, bits=bits) for n in (1, 2, 4, 8) for bits in (0, 1)),
        *(floating(n, e, m, form=f) for n, e, m in ((2, 5, 10), (4, 8, 23)) for f in (0x20, 0x21)),
        integer(2, 3, 9),
        floating(2, 8, 7),
        text(3, 1),
        text(3, 0, 1),
        text(1, 0),
        opaque(2),
        opaque(8, b"NUMPY:<M8[s]"),
        BOOL,
        COLORS,
        enum(integer(4), FALSE=0, TRUE=1),
        complex_of(F4),
        varying_text(),
        varying_text(1),
    ]
)


@st.composite
def compounds(draw: Any, parts: st.SearchStrategy[bytes]) -> bytes:
    members, place = [], 0
    for number, part in enumerate(draw(st.lists(parts, min_size=1, max_size=4))):
        # h5py may hold an element in more bytes than the file
        place += draw(st.integers(0, 3))
        members.append((draw(st.sampled_from("abr")) + str(number), place, part))
        place += 2 * size_of(part)
    return compound(place + draw(st.integers(0, 3)), *draw(st.permutations(members)))


TYPES = st.recursive(
    NUMBERS,
    lambda parts: st.one_of(
        compounds(parts),
        st.builds(
            lambda p, dims: array(p, *dims),
            parts,
            st.lists(st.integers(1, 3), min_size=1, max_size=2),
        ),
        st.builds(sequence, parts),
    ),
    max_leaves=6,
)


@settings(max_examples=times(100), deadline=None)
@given(TYPES)
def test_types_of_types_are_those_that_h5py_reads(message: bytes) -> None:
    kind = decode(message)
    with h5py.File.in_memory() as file:
        name, scalar = b"v", h5py.h5s.create(h5py.h5s.SCALAR)
        stored = h5py.h5d.create(file.id, name, kind, scalar).get_type()
        try:
            check_type(parse_type_message(encode_type(stored)))
        except UnsupportedError:
            with pytest.raises(UnsupportedError):
                parse_stored_type(message)
            return
        expected = by_h5py(stored)
    assert agrees(parse_stored_type(message), expected)
    assert everything(find_dtype(parse_type_message(message))) == everything(stored.dtype)


@settings(max_examples=times(66), deadline=None)
@given(TYPES, st.randoms(use_true_random=False))
def test_stored_bytes_are_the_values_that_h5py_reads(message: bytes, random: Any) -> None:
    try:
        found = parse_stored_type(message)
    except UnsupportedError:
        return
    # h5py has no way to read bitfields
    if not found.in_chunks or TypeClass.BITFIELD in classes_of(message):
        return
    raw = random.randbytes(2 * size_of(message))
    expected = np.frombuffer(raw, found.dtype).reshape(2, *found.shape)
    with h5py.File.in_memory() as file:
        space = h5py.h5s.create_simple((2,))
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((2,))
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"v", decode(message), space, plist))
        dataset.id.write_direct_chunk((0,), raw)
        values = np.asarray(dataset[...])
    assert values.shape == expected.shape
    assert same(values, expected)


def same(values: Any, expected: Any) -> bool:
    """Say whether two arrays are equal, gaps in their elements left out."""
    if expected.dtype.names:
        return all(same(values[name], expected[name]) for name in expected.dtype.names)
    if values.dtype.kind == "b":
        # HDF5 knows no other numbers than 0 and 1
        return True
    return bool(values.astype(expected.dtype).tobytes() == expected.tobytes())


# ---------------------------------------------------------------------- speed


def test_a_type_that_is_known_is_not_parsed_again() -> None:
    message = PLAIN["compound of compounds"]
    found = parse_stored_type(message)
    assert parse_stored_type(bytes(bytearray(message))) is found
    assert parse_type_message(bytes(bytearray(message))) is parse_type_message(message)


@pytest.mark.full
def test_nothing_of_a_file_is_kept_with_its_types() -> None:
    notes = ByteNotes()
    message = notes.add(fix(0), PLAIN["compound"] + bytes(3))
    assert parse_stored_type(bytes(message)) == parse_stored_type(PLAIN["compound"])
    with pytest.raises(TypeError, match="unhashable"):
        parse_stored_type(message)
    gone = weakref.ref(notes)
    del notes, message
    gc.collect()
    assert gone() is None
