"""What becomes of sound files: the same damage for the same number, whoever asks.

`mutate` takes a seed and a source of random numbers. Most of it knows nothing of formats: it flips
bits, sets fields that look like lengths and offsets, cuts and repeats. JSON is mutated as JSON,
Parquet as rows of a table, and checksums can be made right again, so that damage gets further.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from numcodecs.jenkins import jenkins_lookup3

Files = dict[str, bytes]
"""The files of a case, by their paths in its folder."""


@dataclass(frozen=True)
class Seed:
    """Sound files, and what of them is opened.

    Parameters
    ----------
    name : str
    files : dict
        Of some of which damage is made.
    entry : str
        The path in the folder that is opened.
    steady : tuple of str
        Files that stay as they are.
    places : dict, optional
        By the name of a file, the places of its metadata; its other bytes are seldom damaged.
    """

    name: str
    files: Files
    entry: str
    steady: tuple[str, ...] = ()
    places: dict[str, Sequence[int]] = field(default_factory=dict)


NUMBERS = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 10**6, 2**24)
NUMBERS += (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
ODDITIES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 255, 2**31, -(2**31) - 1, 2**53 + 1, 2**63, 2**64, 10**30,
    0.5, -0.0, 1e308, float("nan"), float("inf"), "", " ", "0", "-1", "a", "NaN", "\0", "ü\ud800",
    "..", "../..", "/", "a/b", "x" * 5000, "<f4", ">i8", "|S0", "|O", "<M8[ns]", "<V9", "{{u}}",
    [], [0], [1, 1], [-1], [2**62], [[]], {}, {"id": "zlib"}, {"name": "bytes"}, [None], "MQ==",
)  # fmt: skip
DIGITS = re.compile(rb"\d+")


Way = Callable[[bytearray, Random, bytes], None]

# ---------------------------------------------------------------------- bytes


def mutate_bytes(data: bytes, rng: Random, other: bytes = b"") -> bytes:
    """Damage bytes in one to three places."""
    return _damaged(bytearray(data), rng, other, WAYS)


def mutate_metadata(data: bytes, rng: Random, other: bytes, places: Sequence[int]) -> bytes:
    """Damage bytes in one to three of some places, most of the time; few move what follows."""
    return _damaged(_WithPlaces(data, places), rng, other, WAYS_OF_METADATA)


def _damaged(out: bytearray, rng: Random, other: bytes, ways: Sequence[Way]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not out:
            return b""
        rng.choice(ways)(out, rng, other)
    return bytes(out)


class _WithPlaces(bytearray):
    """Bytes of which some are worth damaging."""

    def __init__(self, data: bytes, places: Sequence[int]) -> None:
        super().__init__(data)
        self.places = places


def _place(out: bytearray, rng: Random) -> int:
    """Return a place, more often one where headers and trailers are, or one worth damaging."""
    if isinstance(out, _WithPlaces) and len(out.places) and rng.random() < 0.9:
        return min(int(rng.choice(out.places)) + rng.choice((0, 0, 0, 1, -1)), len(out) - 1)
    near = rng.choice((64, 512, 4096, len(out), len(out)))
    place = rng.randrange(min(near, len(out)))
    return len(out) - 1 - place if rng.random() < 0.2 else place


def _stretch(out: bytearray, rng: Random) -> slice:
    start = _place(out, rng)
    return slice(start, start + rng.choice((1, 2, 4, 8, 16, 80, 512, rng.randrange(1, 3000))))


def _flip(out: bytearray, rng: Random, other: bytes) -> None:
    out[_place(out, rng)] ^= 1 << rng.randrange(8)


def _set(out: bytearray, rng: Random, other: bytes) -> None:
    place = _place(out, rng)
    out[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, 0x20, 0x30, 0x39, rng.randrange(256)))


def _field(out: bytearray, rng: Random, other: bytes) -> None:
    """Set a number of some width, at best one that looks like a length, a count or an offset."""
    width, order = rng.choice((1, 2, 4, 4, 8, 8)), rng.choice(("little", "little", "big"))
    place = _place(out, rng)
    for _ in range(8):
        aligned = place - place % min(width, rng.choice((1, 2, 4, 8)))
        found = int.from_bytes(out[aligned : aligned + width], order)
        if 0 < found <= 4 * len(out):
            place = aligned
            break
        place = _place(out, rng)
    found = int.from_bytes(out[place : place + width], order)
    size = len(out)
    value = rng.choice(
        (rng.choice(NUMBERS), found + 1, found - 1, found * 2, found // 2, -found, found ^ 0x80,
         size, size - 1, size + 1, size - place, place, found + rng.choice(NUMBERS))
    )  # fmt: skip
    out[place : place + width] = (value % 2 ** (8 * width)).to_bytes(width, order)


def _text(out: bytearray, rng: Random, other: bytes) -> None:
    """Set a number that is written in digits, within the columns it has or not."""
    start = _place(out, rng)
    found = list(DIGITS.finditer(bytes(out[start : start + 400])))
    if not found:
        return _set(out, rng, other)
    digits = rng.choice(found)
    number = int(digits[0]) if len(digits[0]) < 20 else 0
    value = rng.choice((rng.choice(NUMBERS), number + 1, number - 1, number * 2, 0, number * 1000))
    text = str(value).encode()
    if rng.random() < 0.7:
        width = len(digits[0])
        text = text[:width].rjust(width, rng.choice((b"0", b" ")))
    out[start + digits.start() : start + digits.end()] = text
    return None


def _cut(out: bytearray, rng: Random, other: bytes) -> None:
    del out[_place(out, rng) :]


def _remove(out: bytearray, rng: Random, other: bytes) -> None:
    del out[_stretch(out, rng)]


def _repeat(out: bytearray, rng: Random, other: bytes) -> None:
    stretch = _stretch(out, rng)
    place = stretch.stop if rng.random() < 0.5 else _place(out, rng)
    out[place:place] = out[stretch]


def _copy(out: bytearray, rng: Random, other: bytes) -> None:
    """Write a stretch over another place, of this file or of another one."""
    source = bytearray(other) if other and rng.random() < 0.5 else out
    found, place = source[_stretch(source, rng)], _place(out, rng)
    out[place : place + len(found)] = found


def _fill(out: bytearray, rng: Random, other: bytes) -> None:
    stretch = _stretch(out, rng)
    out[stretch] = bytes([rng.choice((0, 0, 255, 32))]) * len(out[stretch])


def _lengthen(out: bytearray, rng: Random, other: bytes) -> None:
    out += rng.choice((bytes(rng.randrange(1, 600)), rng.randbytes(rng.randrange(1, 600))))


def _same_place(out: bytearray, rng: Random, other: bytes) -> None:
    """Write what stands at the same place of another file: of one that is alike, its values."""
    start = _place(out, rng)
    found = other[start : start + rng.choice((1, 4, 8, 16, 64))]
    out[start : start + len(found)] = found


WAYS: tuple[Way, ...] = (
    *(_flip, _flip, _set, _set, _field, _field, _field, _field, _text, _text),
    *(_cut, _remove, _repeat, _copy, _copy, _fill, _lengthen),
)
WAYS_OF_METADATA: tuple[Way, ...] = (
    *(_flip, _flip, _flip, _set, _set, _set, _field, _field, _field, _field),
    *(_copy, _copy, _fill, _fill, _same_place, _same_place, _cut),
)


# ---------------------------------------------------------------------- JSON


def mutate_json(document: Any, rng: Random) -> Any:
    """Damage a document in one to three places; JSON in its strings is damaged as JSON."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holder = {"": document}
        places = list(_places(holder))
        at, key = rng.choice(places)
        _change(at, key, rng, places)
        document = holder.get("", {})
    return document


def _places(value: Any) -> Any:
    """Yield every container and key below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _change(at: Any, key: Any, rng: Random, places: list[Any]) -> None:
    found = deepcopy(at[key])
    way = rng.randrange(10)
    if isinstance(found, str) and found[:1] in "{[" and found and rng.random() < 0.9:
        at[key] = _within(found, rng)
    elif way == 0 and key != "":
        del at[key]
    elif way == 1 and isinstance(at, list):
        at.insert(key, found)
    elif way == 1 and key != "":
        at[_text_of(str(key), rng)] = found if rng.random() < 0.5 else at.pop(key)
    elif way == 2:
        other, place = rng.choice(places)
        at[key] = json.loads(json.dumps(other[place])) if place != "" else None
    elif isinstance(found, bool) or found is None or way == 3:
        at[key] = deepcopy(rng.choice(ODDITIES))
    elif isinstance(found, int | float):
        at[key] = deepcopy(_number(found, rng))
    elif isinstance(found, str):
        at[key] = _text_of(found, rng)
    elif isinstance(found, list) and found and way < 7:
        at[key] = rng.choice((found[:-1], [*found, found[-1]], found[::-1], found * 2, found * 20))
    else:
        at[key] = deepcopy(rng.choice(ODDITIES))


def _within(text: str, rng: Random) -> str:
    try:
        inner = json.loads(text)
    except ValueError:
        return _text_of(text, rng)
    return json.dumps(mutate_json(inner, rng))


def _number(found: Any, rng: Random) -> Any:
    ways = (found + 1, found - 1, found * 2, -found, float(found), str(found), found * 1000)
    ways = (*ways, rng.choice(NUMBERS), -rng.choice(NUMBERS), rng.choice(ODDITIES))
    return rng.choice(ways)


def _text_of(found: str, rng: Random) -> str:
    data = mutate_bytes(found.encode("utf-8", "surrogatepass"), rng)
    return data.decode("utf-8", "replace")


# ---------------------------------------------------------------------- files


def mutate_one(seed: Seed, rng: Random) -> Files:
    """Return the files of a seed, one of them damaged in its metadata."""
    name, other = rng.choice(sorted(seed.places)), rng.choice(sorted(seed.places))
    data = seed.files[name]
    out = mutate_metadata(data, rng, seed.files[other], seed.places[name])
    return {**seed.files, name: repaired(data, out) if rng.random() < 0.8 else out}


def mutate(seed: Seed, rng: Random, others: list[Seed]) -> Files:
    """Return the files of a seed, one or two of them damaged, missing or exchanged."""
    files = dict(seed.files)
    names = sorted(set(files) - set(seed.steady))
    for _ in range(rng.choice((1, 1, 1, 2))):
        name = rng.choice(names)
        if name not in files:
            continue
        if len(names) > 1 and rng.random() < 0.04:
            del files[name]
        elif len(names) > 1 and rng.random() < 0.04:
            files[name] = seed.files[rng.choice(names)]
        else:
            other = rng.choice(others)
            files[name] = mutate_file(name, files[name], rng, other.files[max(other.files)])
    return files


def mutate_file(name: str, data: bytes, rng: Random, other: bytes) -> bytes:
    """Damage a file in the form that it has, most of the time."""
    if rng.random() < 0.8:
        for is_so, mutated in FORMS:
            if is_so(name, data):
                try:
                    return mutated(data, rng)
                except UNREADABLE:
                    # it was damaged before
                    break
    out = mutate_bytes(data, rng, other)
    return repaired(data, out) if rng.random() < 0.8 else out


UNREADABLE = (
    EOFError,
    RecursionError,
    OSError,
    ValueError,
    zlib.error,
    zstandard.ZstdError,
    pa.ArrowException,
)


def _json_file(data: bytes, rng: Random) -> bytes:
    return json.dumps(mutate_json(json.loads(data), rng)).encode("utf-8", "replace")


def _gzip_file(data: bytes, rng: Random) -> bytes:
    return gzip.compress(_json_file(gzip.decompress(data), rng), 1, mtime=0)


def _zstd_file(data: bytes, rng: Random) -> bytes:
    inner = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return zstandard.ZstdCompressor().compress(_json_file(inner, rng))


def _safetensors(data: bytes, rng: Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = _json_file(data[8 : 8 + size], rng)
    header += b" " * (-len(header) % 8) if rng.random() < 0.8 else b""
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _parquet(data: bytes, rng: Random) -> bytes:
    """Change values of a table that its types can hold."""
    table = pq.read_table(io.BytesIO(data))
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(columns))
        column = columns[name]
        if not column:
            continue
        row = rng.randrange(len(column))
        kind = table.schema.field(name).type
        if rng.random() < 0.1:
            column[row] = None
        elif pa.types.is_integer(kind):
            found = column[row] or 0
            column[row] = rng.choice((*NUMBERS, -1, -2, found + 1, found - 1, found * 2, -found))
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column[row] = _text_of(column[row] or "a", rng)
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            column[row] = mutate_bytes(column[row] or b"a", rng)
        else:
            column[row] = None
    if rng.random() < 0.1:
        short = rng.randrange(1 + min(map(len, columns.values())))
        columns = {name: column[:short] for name, column in columns.items()}
    if rng.random() < 0.05:
        del columns[rng.choice(sorted(columns))]
    fields = [table.schema.field(name) for name in columns]
    try:
        schema = pa.schema(fields, table.schema.metadata)
        changed = pa.table(columns, schema=schema)
        out = io.BytesIO()
        pq.write_table(changed, out)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return mutate_bytes(data, rng)
    return out.getvalue()


def _is_json(name: str, data: bytes) -> bool:
    if data.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


FORMS: tuple[tuple[Callable[[str, bytes], bool], Callable[[bytes, Random], bytes]], ...] = (
    (_is_json, _json_file),
    (lambda name, data: ".json" in name and data[:2] == b"\x1f\x8b", _gzip_file),
    (lambda name, data: ".json" in name and data[:4] == b"\x28\xb5\x2f\xfd", _zstd_file),
    (lambda name, data: name.endswith(".safetensors"), _safetensors),
    (lambda name, data: data[:4] == b"PAR1", _parquet),
)
"""Forms of files that are damaged as what they are, and how."""


# ---------------------------------------------------------------------- checksums

HDF5_BLOCKS = re.compile(
    rb"\x89HDF\r\n\x1a\n[\x02\x03]|OHDR|OCHK|BTHD|BTIN|BTLF|FRHP|FHDB|FHIB|FSHD|FSSE|SMTB|SMLI"
    rb"|FAHD|FADB|EAHD|EAIB|EASB|EADB"
)
"""What begins with a signature and ends with a checksum (HDF5 file format, version 3)."""
LONGEST = 5000


def repaired(before: bytes, after: bytes) -> bytes:
    """Return bytes whose checksums are right where they were so before, and stand as they stood."""
    out = bytearray(after)
    for start, size, of in checked(before):
        if start + size + 4 <= len(out):
            out[start + size : start + size + 4] = of(bytes(out[start : start + size]))
    for start, stop, at in heap_blocks(before):
        if stop <= len(out):
            out[at : at + 4] = bytes(4)
            out[at : at + 4] = _jenkins(bytes(out[start:stop]))
    for start in tar_headers(before):
        block = out[start : start + 512]
        if len(block) == 512:
            out[start + 148 : start + 156] = _tar_sum(block)
    return bytes(out)


Stretch = tuple[int, int, Callable[[bytes], bytes]]


@cache
def checked(data: bytes) -> tuple[Stretch, ...]:
    """Return where checksums stand right behind what they are of."""
    if data[:4] == b"\x89HDF" or b"\x89HDF\r\n" in data[:2048]:
        return tuple(_hdf5_blocks(data))
    return _crc32c_tail(data)


def _hdf5_blocks(data: bytes) -> Any:
    for found in HDF5_BLOCKS.finditer(data):
        start = found.start()
        for size in range(4, min(LONGEST, len(data) - start - 4)):
            stated = data[start + size : start + size + 4]
            if stated != bytes(4) and _jenkins(data[start : start + size]) == stated:
                yield start, size, _jenkins
                break


@cache
def heap_blocks(data: bytes) -> tuple[tuple[int, int, int], ...]:
    """Return where direct blocks of fractal heaps begin and end, and where their checksums stand.

    The sum is near the beginning, and is taken as zero in itself (HDF5 file format, III.G).
    """
    return tuple(
        found
        for start in (one.start() for one in re.finditer(rb"FHDB", data))
        if (found := _heap_block(data, start)) is not None
    )


def _heap_block(data: bytes, start: int) -> tuple[int, int, int] | None:
    # signature, version, an address of 4 or 8 bytes, an offset of 1 to 8
    for at in range(start + 10, start + 22):
        for stop in (start + (256 << k) for k in range(9)):
            block = data[start:at] + bytes(4) + data[at + 4 : stop]
            if len(block) == stop - start and _jenkins(block) == data[at : at + 4]:
                return start, stop, at
    return None


def _jenkins(data: bytes) -> bytes:
    return int(jenkins_lookup3(data)).to_bytes(4, "little")


def _crc32c_tail(data: bytes) -> tuple[Stretch, ...]:
    """Return what is before the CRC-32C at the end, as it stands behind indices of shards."""
    from google_crc32c import value

    def of(text: bytes) -> bytes:
        return int(value(text)).to_bytes(4, "little")

    for size in range(16, min(len(data) - 3, 2000), 16):
        start = len(data) - 4 - size
        if of(data[start:-4]) == data[-4:]:
            return ((start, size, of),)
    return ()


@cache
def tar_headers(data: bytes) -> tuple[int, ...]:
    """Return where headers of a tar archive stand."""
    if data[257:262] != b"ustar":
        return ()
    starts = range(0, len(data) - 511, 512)
    return tuple(n for n in starts if data[n + 148 : n + 156] == _tar_sum(data[n : n + 512]))


def _tar_sum(block: bytes | bytearray) -> bytes:
    return b"%06o\0 " % sum(block[:148] + b" " * 8 + block[156:])


def fingerprint(files: Files) -> str:
    """Return a short name of the bytes of files, by which runs are compared."""
    total = 0
    for name in sorted(files):
        total = zlib.crc32(files[name], zlib.crc32(name.encode(), total))
    return f"{total:08x}"
