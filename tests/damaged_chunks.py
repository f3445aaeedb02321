"""Decode damaged chunks behind which no memory may be read: a program, since it may be killed.

``python damaged_chunks.py CHUNKS [MISSING ...]``: the file holds chunks as JSON, and the packages
named behind it cannot be imported. It prints as JSON what became of every chunk; a decoder that
reads or writes where it must not ends the process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import json
import mmap
import random
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

MUTATIONS = 200
"""Damaged chunks that are made of every sound one."""
ROOM = 2**23
"""Bytes that lie before the page that nobody may touch."""
UNKNOWN = 10
"""Of this many damaged chunks one is decoded as if its length were not known."""
MEMORY = 2**32
"""Bytes of addresses that the process may have: a damaged length may ask for more."""


class Guarded:
    """Memory that ends where a page begins that kills who touches it."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, ROOM + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(address + ROOM)
        no_access = 0
        if libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), no_access):
            raise OSError(ctypes.get_errno(), "mprotect")

    def last(self, size: int) -> memoryview:
        return memoryview(self._map)[ROOM - size : ROOM]

    def holding(self, data: bytes) -> memoryview:
        view = self.last(len(data))
        view[:] = data
        return view.toreadonly()


def damaged(raw: bytes, rng: random.Random) -> Iterator[bytes]:
    """Flip, cut and lengthen; where a header may be more often than elsewhere."""
    for size in {*range(min(len(raw), 40)), *(len(raw) - n for n in range(1, 20))}:
        if 0 <= size < len(raw):
            yield raw[:size]
    for extra in (1, 4, 8, 100):
        yield raw + rng.randbytes(extra)
        yield raw + bytes(extra)
    for _ in range(MUTATIONS):
        there = bytearray(raw)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(rng.choice([len(there), min(len(there), 64)]))
            there[place] = rng.choice([rng.randrange(256), 0, 255, there[place] ^ 1])
        yield bytes(there[: rng.choice([len(there), len(there), rng.randrange(len(there) + 1)])])


def outcome(codec: Any, data: memoryview, nbytes: int | None, encoded: int) -> Any:
    """An error, the length of what was decoded where it is wrong, or its hash."""
    try:
        found = codec.decode(data, nbytes)
    except CodecError:
        return "CodecError"
    keeps_length = codec.encoded_size(1) is not None and len(data) != encoded
    if nbytes is not None and len(found) != nbytes and not keeps_length:
        return f"{len(found)} bytes where {nbytes} belong"
    return hashlib.sha256(found).hexdigest()


def outcome_put(codec: Any, data: memoryview, room: memoryview) -> Any:
    """An error, or the hash of what was decoded into memory that is there."""
    try:
        codec.decode_into(data, np.frombuffer(room, np.uint8))
    except CodecError:
        return "CodecError"
    return hashlib.sha256(room).hexdigest()


def checked(chunk: dict[str, Any], guarded: Guarded, target: Guarded) -> dict[str, Any]:
    """Decode a chunk and what damage makes of it."""
    codec, raw = codec_from_zarr_v2(chunk["config"]), bytes.fromhex(chunk["raw"])
    nbytes = chunk["nbytes"]
    sound = outcome(codec, guarded.holding(raw), nbytes, len(raw))
    counts: Counter[str] = Counter()
    rng = random.Random(len(raw))
    lengths = [nbytes, None]
    for i, data in enumerate(islice(damaged(raw, rng), 0, None, chunk["step"])):
        found = outcome(codec, guarded.holding(data), lengths[i % UNKNOWN == 1], len(raw))
        if found not in ("CodecError", sound):
            found = found if "where" in found else "undetected"
        counts["sound" if found == sound else found] += 1
        if codec.fills_output:
            put = outcome_put(codec, guarded.holding(data), target.last(nbytes))
            is_known = put in ("CodecError", sound)
            counts["sound" if put == sound else put if is_known else "undetected"] += 1
    return {"sound": sound, "counts": counts}


def unshuffled(guarded: Guarded, target: Guarded) -> None:
    """Unshuffle right before the page that nobody may touch, into what ends there."""
    for size in (2, 3, 4, 8, 16):
        for count in (1, 3, 8, 17, 1000, 40_001):
            data = random.Random(count).randbytes(size * count)
            out = np.frombuffer(target.last(len(data)), np.uint8)
            Shuffle(size).decode_into(guarded.holding(data), out)


if __name__ == "__main__":
    faulthandler.enable()
    for name in sys.argv[2:]:
        sys.modules[name] = None  # type: ignore[assignment]
    import numpy as np

    from virtualds.codecs import codec_from_zarr_v2
    from virtualds.codecs.codec import CodecError
    from virtualds.codecs.hdf import Shuffle

    memory, target = Guarded(), Guarded()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    unshuffled(memory, target)
    chunks = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({name: checked(chunk, memory, target) for name, chunk in chunks.items()}))
