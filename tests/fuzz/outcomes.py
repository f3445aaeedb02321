"""What a reader makes of files, in a form that travels between processes, and how two compare.

Whatever a reader raises is caught here: which errors there are is what one wants to know.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

LARGE = 2**25
"""Bytes from which on only a corner of an array is read."""
MOST = 60
"""Arrays of a file that are read."""
LEFT_OUT = "\n  message at byte "
"""What a warning says of damaged messages of GRIB; where they belong, arrays have no values."""


class Values(NamedTuple):
    """An array, or its corner."""

    shape: tuple[int, ...]
    dtype: str
    digest: str
    shown: str


class Failure(NamedTuple):
    """An error; ``place`` is where in our code it came from, ``typed`` whether it may be raised."""

    type: str
    message: str
    place: str
    typed: bool
    stack: str = ""


SEVERAL = Failure("LookupError", "several arrays have this name", "", True)
"""What is found under a name that is not that of one array."""


class Outcome(NamedTuple):
    """What became of opening files: an error, or arrays and errors by name, and the warnings."""

    error: Failure | None
    found: dict[str, Values | Failure]
    warned: str = ""


Reader = Callable[[str], Iterable[tuple[str, Callable[[], Any]]]]
"""Opens files and yields what reads each array."""


def outcome(reader: Reader, entry: str, typed: Callable[[BaseException], bool]) -> Outcome:
    """Return what a reader makes of files."""
    found: dict[str, Values | Failure] = {}
    try:
        for name, read in reader(entry):
            if len(found) >= MOST:
                break
            if name in found:
                # damage gave it the name of another, and nobody can tell which one is meant
                found[name] = SEVERAL
                continue
            try:
                found[name] = values_of(read())
            except Exception as error:  # noqa: BLE001
                found[name] = failure_of(error, typed(error))
    except Exception as error:  # noqa: BLE001
        return Outcome(failure_of(error, typed(error)), found)
    return Outcome(None, found)


def corner(shape: tuple[int, ...], itemsize: int) -> tuple[slice, ...]:
    """Return a key for all of an array, or for a corner of a large one."""
    total = itemsize
    for length in shape:
        total *= int(length)
    return (slice(None),) * len(shape) if total <= LARGE else (slice(3),) * len(shape)


def values_of(array: Any) -> Values:
    """Describe an array so that equal descriptions are equal bits, in any byte order."""
    found = np.asarray(array)
    if found.dtype.kind == "U":
        # numpy cannot show code points that there are not
        found = found.reshape(-1).view(np.dtype("u4").newbyteorder(found.dtype.byteorder))
    shown = np.array2string(found.reshape(-1)[:6], max_line_width=200)[:200]
    if found.dtype.hasobject:
        data = repr(found.tolist()).encode("utf-8", "replace")
        return Values(found.shape, "object", hashlib.sha1(data).hexdigest(), shown)
    found = np.asarray(found.astype(found.dtype.newbyteorder("="), copy=False), order="C")
    digest = hashlib.sha1(found.tobytes()).hexdigest()
    return Values(np.shape(array), found.dtype.str, digest, shown)


def failure_of(error: BaseException, typed: bool) -> Failure:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/virtualds/" in f.filename]
    places = [f"{f.filename.rpartition('/virtualds/')[2]}:{f.name}" for f in frames[-2:]]
    stack = "".join(traceback.format_exception(error))[-5000:] if not typed else ""
    message = str(error)[:400]
    return Failure(type(error).__name__, message, " > ".join(places), typed, stack)


# ---------------------------------------------------------------------- comparing


class Finding(NamedTuple):
    """Something that must not be; equal ``sign`` is probably an equal cause."""

    what: str
    sign: str
    detail: str


def untyped(ours: Outcome) -> list[Finding]:
    """Return errors that have no place in the tree of types."""
    named = [("", ours.error), *ours.found.items()]
    wrong = [(n, f) for n, f in named if isinstance(f, Failure) and not f.typed]
    return [
        Finding(
            "memory"
            if failure.type == "MemoryError" or "MemoryError" in failure.type
            else "untyped",
            f"{failure.type} {failure.place}",
            f"{name or '(opening)'}: {failure.type}: {failure.message}\n{failure.stack}",
        )
        for name, failure in wrong
    ]


def differing(ours: Outcome, native: Outcome, known: set[str] | None) -> dict[str, Finding]:
    """Return by name where both give values and they differ, and what we left out.

    Parameters
    ----------
    known : set of str, optional
        Names that both read alike in the sound files; others are not compared.
    """
    found: dict[str, Finding] = {}
    if LEFT_OUT in ours.warned:
        return found
    for name, theirs in native.found.items():
        if not isinstance(theirs, Values) or (known is not None and name not in known):
            continue
        mine = ours.found.get(name)
        if mine is None and isinstance(ours.found.get(f"{name.rpartition('/')[0]}/rows"), Failure):
            # the columns of a table of FITS are refused together if nobody can tell where they lie
            continue
        if mine is None and ours.error is None and f"  {name}: " not in ours.warned:
            found[name] = Finding("dropped", "dropped", f"{name}: we have only {list(ours.found)}")
        elif isinstance(mine, Values) and not same(mine, theirs):
            found[name] = Finding(
                "difference", _kind_of_difference(mine, theirs), f"{name}: {mine}\nnative: {theirs}"
            )
    return found


def by_last_part(outcome: Outcome) -> Outcome:
    """Return arrays by the last part of their names; those that share one are not compared."""
    last = [name.rpartition("/")[2] for name in outcome.found]
    found = {
        n: v if last.count(n) == 1 else SEVERAL
        for n, v in zip(last, outcome.found.values(), strict=True)
    }
    return outcome._replace(found=found)


def lenient(ours: Outcome, native: Outcome, known: set[str]) -> list[str]:
    """Return, in short, what the native reader says of arrays that we read."""
    read = [n for n, v in ours.found.items() if isinstance(v, Values)]
    if native.error is not None:
        return [f"opening: {native.error.type}: {native.error.message[:90]}"] if read else []
    refused = [native.found.get(name) for name in read if name in known]
    return [
        f"reading: {f.type}: {f.message[:90]}" if isinstance(f, Failure) else "not there"
        for f in refused
        if not isinstance(f, Values)
    ]


def same(mine: Values, theirs: Values) -> bool:
    """Whether arrays are equal, whatever kind of number holds the bits of booleans and bytes."""
    if mine.digest != theirs.digest or mine.shape != theirs.shape:
        return False
    return mine.dtype == theirs.dtype or {mine.dtype[1:], theirs.dtype[1:]} <= {"b1", "i1", "u1"}


def _kind_of_difference(mine: Values, theirs: Values) -> str:
    if mine.shape != theirs.shape:
        return "shape"
    return "type" if mine.digest == theirs.digest or mine.dtype != theirs.dtype else "values"
