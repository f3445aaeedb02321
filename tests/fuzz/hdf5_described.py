"""What is read of HDF5 files, described so that equal descriptions are equal in every detail.

A description has an item for every group (names in order, unlimited dimensions), variable
(dimensions and shape; type, encoding, and references or values), attribute and problem.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from fuzz.outcomes import Failure, Finding, Outcome, Values, failure_of

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.columns import COLUMNS, compact

PROBLEM = " (problem)"
"""What the names of items end with that are errors."""
MAX_ROWS = 2**20
"""Chunks up to which columns are described row by row, however they are held."""


def item(*facts: Any) -> Values:
    """Return a description of facts: a digest, and their beginning for people."""
    text = repr(tuple(map(token, facts)))
    return Values(
        (), "fact", hashlib.sha1(text.encode("utf-8", "replace")).hexdigest(), text[:1500]
    )


def token(value: Any) -> Any:
    """Return what shows the type of a value and every bit of it."""
    if isinstance(value, np.ndarray | np.void) and value.dtype.names:
        # bytes between fields mean nothing
        fields = {name: token(value[name]) for name in value.dtype.names}
        return type(value).__name__, token(value.dtype), value.shape, fields
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return "array", str(value.dtype), value.shape, [token(v) for v in value.ravel()]
        return "array", token(value.dtype), value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return "scalar", token(value.dtype), value.tobytes()
    if isinstance(value, np.dtype):
        return "type", value.str if value.names is None else repr(value), repr(value.metadata)
    if isinstance(value, ManifestArray):
        return _array(value)
    if isinstance(value, dict):
        return {name: token(v) for name, v in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return type(value).__name__, [token(v) for v in value]
    return type(value).__name__, repr(value)


def _array(array: ManifestArray) -> Any:
    """Return what stands for references, chunk by chunk, whichever manifest and axes hold them."""
    facts: list[Any] = [array.shape, token(array.dtype), token(np.asarray(array.fill_value))]
    pipelines = np.array([*map(repr, array.pipelines), ""], object)[:-1]
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        files = np.array([*map(repr, manifest.files), "inline", "missing"], object)
        columns = {name: _column(getattr(manifest, name)) for name in COLUMNS}
        columns["file"] = files[columns["file"]]
        columns["pipeline"] = pipelines[columns["pipeline"]]
        facts += [fragment.start, *map(_axis, fragment.axes), manifest.shape, manifest.inline]
        facts += [(name, np.ravel(column).tolist()) for name, column in columns.items()]
    return facts


def _column(column: Any) -> Any:
    return np.asarray(column) if column.size <= MAX_ROWS else compact(column)


def _axis(axis: Any) -> Any:
    return token(tuple(axis.slabs())) if axis.nchunks <= MAX_ROWS else repr(axis)


# ---------------------------------------------------------------------- groups and datasets


def describe_group(group: ManifestGroup, path: str = "") -> Iterator[tuple[str, Values | Failure]]:
    """Yield the items of a group and of all below it."""
    yield f"{path}/", item(list(group.variables), list(group.groups), group.encoding)
    yield from _attributes(f"{path}/:", group.attributes)
    for name, variable in group.variables.items():
        where = f"{path}/{name}"
        data = variable.data
        yield where, item(variable.dims, data.shape)
        yield f"{where}=", item(data.dtype, variable.encoding, data)
        yield from _attributes(f"{where}:", variable.attributes)
    for name, error in group.problems.items():
        yield f"{path}/{name}{PROBLEM}", failure_of(error, True)
    for name, child in group.groups.items():
        yield from describe_group(child, f"{path}/{name}")


def _attributes(where: str, found: Any) -> Iterator[tuple[str, Values]]:
    yield where, item(list(found))
    for name, value in found.items():
        yield f"{where}{name}", item(value)


def describe_dataset(dataset: Any) -> Iterator[tuple[str, Values | Failure]]:
    """Yield the items of a dataset of virtual and loaded variables."""
    coordinates = sorted(map(str, dataset.coords))
    yield "/", item(list(dataset.variables), coordinates, dict(dataset.sizes), dataset.encoding)
    yield from _attributes("/:", dataset.attrs)
    for name, variable in dataset.variables.items():
        data = variable._data
        data = data if isinstance(data, ManifestArray) else variable.values
        yield f"/{name}", item(variable.dims, variable.shape)
        yield f"/{name}=", item(variable.dtype, variable.encoding, data)
        yield from _attributes(f"/{name}:", variable.attrs)


# ---------------------------------------------------------------------- comparing


def differences(ours: Outcome, library: Outcome) -> dict[str, Finding]:
    """Return by item where ours says other than the library, and neither names an error.

    Where one of them refuses what the other reads, they differ in what they demand of bytes that
    nobody needs: `demands` lists that.
    """
    found: dict[str, Finding] = {}
    if ours.error is not None or library.error is not None:
        return found
    mine, theirs = ours.found, library.found
    excused = _excused({n for n in (*mine, *theirs) if n.endswith(PROBLEM)}, mine, theirs)
    for name in dict.fromkeys((*mine, *theirs)):
        if mine.get(name) == theirs.get(name) or name.endswith(PROBLEM) or excused(name):
            continue
        what = "difference"
        if name not in mine or name not in theirs:
            what = "dropped" if name not in mine else "invented"
        found[name] = Finding(what, _kind(name), _both(name, mine.get(name), theirs.get(name)))
    return found


def _excused(problems: set[str], mine: Any, theirs: Any) -> Callable[[str], bool]:
    """Return whether an item may differ since one side could not read it or one of its names."""
    exact, below = set(), []
    for problem in problems:
        name = problem.removesuffix(PROBLEM)
        exact |= {name, f"{name}="}
        if problem not in mine or problem not in theirs:
            owner = name.rpartition(":")[0] + ":" if ":" in name else ""
            exact |= {owner, name.rpartition("/")[0] + "/"}
            below += [] if owner else [f"{name}/", f"{name}:"]
    return lambda name: name in exact or name.startswith(tuple(below))


def demands(ours: Outcome, library: Outcome) -> list[str]:
    """Return in short what only one side refuses."""
    sides = (("library", library, ours), ("ours", ours, library))
    said = []
    for side, one, other in sides:
        if one.error is not None and other.error is None:
            said.append(
                f"only {side} refuses the file: {one.error.type}: {one.error.message[:120]}"
            )
        if one.error is None and other.error is None:
            said += [
                f"only {side} has a problem: {f.type}: {f.message[:120]}"
                for name, f in one.found.items()
                if isinstance(f, Failure) and name not in other.found
            ]
    return said


def judge_structure(ours: Outcome, library: Outcome, sound: bool) -> list[Finding]:
    """Return the findings of a case."""
    compared = strict_differences if sound else differences
    return list(compared(ours, library).values())


def strict_differences(ours: Outcome, library: Outcome) -> dict[str, Finding]:
    """Return every difference: of a sound file both sides say the same, errors included."""
    found = differences(ours, library)
    both = {n: (_type(ours, n), _type(library, n)) for n in (*ours.found, *library.found, "")}
    for name, (mine, theirs) in both.items():
        if mine != theirs:
            found[name] = Finding("problem", f"{mine} {theirs}", f"{name}: {mine}, {theirs}")
    return found


def _type(outcome: Outcome, name: str) -> str:
    error = outcome.found.get(name) if name else outcome.error
    return error.type if isinstance(error, Failure) else ""


def _both(name: str, mine: Any, theirs: Any) -> str:
    return f"{name}\nours:    {mine and mine.shown}\nlibrary: {theirs and theirs.shown}"


def _kind(name: str) -> str:
    """Return which kind of item a name is of: findings of one kind have perhaps one cause."""
    if name.endswith(("/", "=")):
        return "names" if name.endswith("/") else "data"
    return "attribute" if ":" in name else "dimensions"
