"""The line of code that a difference needs, for users to copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from virtualds.checks.diagnose.explanations import (
    EXPLANATIONS,
    GAP,
    KIND,
    OPENING,
    ORDER,
    OVERLAP,
    RENAMED,
    TOGETHER,
)
from virtualds.checks.diagnose.findings import Difference
from virtualds.datasets.keywords import names_of
from virtualds.datasets.renamed import write_rename
from virtualds.datasets.structure import (
    CALENDAR,
    DIMENSIONS,
    PRESENCE,
    ROLE,
    SIZE,
    SYSTEM,
    VALUES,
)
from virtualds.errors import without_secrets

REPEATED = (
    *("combine", "concat_dim", "data_vars", "coords", "compat", "join", "combine_attrs"),
    *("sort", "overlap", "group", "drop_variables", "decode_cf", "on_error"),
)
"""Arguments of the diagnosis that the line of code repeats: short ones, and never a secret."""

FILES = "files"
"""The files of a call, which code may choose from."""
Arguments = Mapping[str, Any]


def write_remedy(row: Difference, given: Arguments, sizes: Sequence[str]) -> str:
    """Return a line of code that does something about a difference, "" if there is none.

    Parameters
    ----------
    row : Difference
    given : mapping
        The arguments of `open_virtual_mfdataset` with which the files were tried.
    sizes : sequence of str
        If the variable is the coordinate of a dimension: how long it is before and after.
    """
    if row.verdict == "combines":
        return ""
    if row.aspect == GAP:
        return "print(vds.virtual.gaps)"
    if row.aspect == TOGETHER and row.remedy == EXPLANATIONS[TOGETHER].remedy:
        return f"virtualds.open_virtual_dataset({_show(without_secrets(row.first_file))})"
    if (find := _ARGUMENTS.get(row.aspect)) is not None:
        return _write_call(given, find(row, sizes))
    if row.refused and "zarr-v3" not in row.refused:
        return 'vds.virtual.to_manifest("refs.zarr")'
    return ""


def _write_call(given: Arguments, changed: Arguments) -> str:
    """Return a call as code, "" if nothing is to be changed, or a function of the user would be."""
    if not changed or changed.keys() & {"preprocess"} & given.keys():
        return ""
    arguments = {**given, **changed}
    if "drop_variables" in changed:
        before = names_of("drop_variables", given.get("drop_variables"))
        arguments["drop_variables"] = [*before, *changed["drop_variables"]]
    named = [
        f"{name}={_show(value)}"
        for name, value in arguments.items()
        if name in (*REPEATED, "preprocess") and value is not None
    ]
    files = arguments.get(FILES, FILES)
    return f"vds = virtualds.open_virtual_mfdataset({', '.join([files, *named])})"


def _show(value: Any) -> str:
    """Return a value as code; JSON and Python quote texts alike, but for single quotes."""
    if isinstance(value, Code) or not isinstance(value, str | list | tuple):
        return value if isinstance(value, Code) else repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return f"[{', '.join(map(_show, value))}]"


class Code(str):
    """A text that is code."""

    __slots__ = ()


def _rename(row: Difference, sizes: Sequence[str]) -> Arguments:
    pairs = zip(row.after.split(", "), row.before.split(", "), strict=True)
    return {"preprocess": Code(write_rename(dict(pairs)))}


def _take_first_kind(row: Difference, sizes: Sequence[str]) -> Arguments:
    name = _show(row.before.split(", ")[0])
    return {FILES: f"[f for f in files if {name} in virtualds.open_virtual_dataset(f)]"}


def _choose_values(row: Difference, sizes: Sequence[str]) -> Arguments:
    """Take the values of the first file where that is possible, else only files of its grid."""
    if len(set(sizes)) < 2:
        return {"join" if sizes else "compat": "override"}
    return _take_first_size(row, sizes)


def _take_first_size(row: Difference, sizes: Sequence[str]) -> Arguments:
    size = f"virtualds.open_virtual_dataset(f).sizes[{_show(row.variable)}]"
    return {FILES: f"[f for f in files if {size} == {sizes[0]}]"}


def _take_first_system(row: Difference, sizes: Sequence[str]) -> Arguments:
    """Take the files of the first system, by its name or by a number that differs."""
    attributes = f"virtualds.open_virtual_dataset(f)[{_show(row.variable)}].attrs"
    words = row.before.split(", ")
    name, is_number, value = next((w for w in words if w not in row.after), "").partition("=")
    title = name.partition(" (")[2].removesuffix(")") or name
    if not title or title in row.after:
        test = f"{_show(value)} == str({attributes}.get({_show(name)}))" if is_number else ""
    else:
        test = f"{_show(title)} in str({attributes})"
    return {FILES: f"[f for f in files if {test}]"} if test else {}


def _transpose(row: Difference, sizes: Sequence[str]) -> Arguments:
    dims = row.before.split(", ")
    if sorted(dims) != sorted(row.after.split(", ")):
        return {}
    order = f"ds[{_show(row.variable)}].transpose({', '.join(map(_show, dims))})"
    return {"preprocess": Code(f"lambda ds: ds.assign({{{_show(row.variable)}: {order}}})")}


def _change_role(row: Difference, sizes: Sequence[str]) -> Arguments:
    method = "set_coords" if row.before == "coordinate" else "reset_coords"
    return {"preprocess": Code(f"lambda ds: ds.{method}({_show(row.variable)})")}


def _convert_calendar(row: Difference, sizes: Sequence[str]) -> Arguments:
    call = f"ds.convert_calendar({_show(row.before)}, dim={_show(row.variable)})"
    return {"preprocess": Code(f"lambda ds: {call}")} if sizes else {}


_ARGUMENTS: dict[str, Callable[[Difference, Sequence[str]], Arguments]] = {
    OPENING: lambda row, sizes: {"on_error": "collect"},
    PRESENCE: lambda row, sizes: {"drop_variables": [row.variable]},
    SIZE: _take_first_size,
    VALUES: _choose_values,
    RENAMED: _rename,
    KIND: _take_first_kind,
    TOGETHER: lambda row, sizes: {"compat": "override"},
    SYSTEM: _take_first_system,
    ROLE: _change_role,
    DIMENSIONS: _transpose,
    CALENDAR: _convert_calendar,
    OVERLAP: lambda row, sizes: {"overlap": "last"},
    ORDER: lambda row, sizes: {"sort": True},
}
"""What to change in the call of `open_virtual_mfdataset`, by aspect."""
