"""The line of code that a difference needs, for users to copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from virtualds.checks.diagnose.explanations import (
    EXPLANATIONS,
    GAP,
    OPENING,
    ORDER,
    OVERLAP,
    TOGETHER,
)
from virtualds.checks.diagnose.findings import Difference
from virtualds.datasets.keywords import names_of
from virtualds.datasets.structure import CALENDAR, DIMENSIONS, PRESENCE, ROLE, VALUES
from virtualds.errors import without_secrets

REPEATED = (
    *("combine", "concat_dim", "data_vars", "coords", "compat", "join", "combine_attrs"),
    *("sort", "overlap", "group", "drop_variables", "decode_cf", "on_error"),
)
"""Arguments of the diagnosis that the line of code repeats: short ones, and never a secret."""

Arguments = Mapping[str, Any]


def write_remedy(row: Difference, given: Arguments, is_dimension: bool) -> str:
    """Return a line of code that does something about a difference, "" if there is none.

    Parameters
    ----------
    row : Difference
    given : mapping
        The arguments of `open_virtual_mfdataset` with which the files were tried.
    is_dimension : bool
        Whether the variable is the coordinate of a dimension.
    """
    if row.verdict == "combines":
        return ""
    if row.aspect == GAP:
        return "print(vds.virtual.gaps)"
    if row.aspect == TOGETHER and row.remedy == EXPLANATIONS[TOGETHER].remedy:
        return f"virtualds.open_virtual_dataset({_show(without_secrets(row.first_file))})"
    if (find := _ARGUMENTS.get(row.aspect)) is not None:
        return _write_call(given, find(row, is_dimension))
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
    return f"vds = virtualds.open_virtual_mfdataset({', '.join(['files', *named])})"


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


def _transpose(row: Difference, is_dimension: bool) -> Arguments:
    dims = row.before.split(", ")
    if sorted(dims) != sorted(row.after.split(", ")):
        return {}
    order = f"ds[{_show(row.variable)}].transpose({', '.join(map(_show, dims))})"
    return {"preprocess": Code(f"lambda ds: ds.assign({{{_show(row.variable)}: {order}}})")}


def _change_role(row: Difference, is_dimension: bool) -> Arguments:
    method = "set_coords" if row.before == "coordinate" else "reset_coords"
    return {"preprocess": Code(f"lambda ds: ds.{method}({_show(row.variable)})")}


def _convert_calendar(row: Difference, is_dimension: bool) -> Arguments:
    call = f"ds.convert_calendar({_show(row.before)}, dim={_show(row.variable)})"
    return {"preprocess": Code(f"lambda ds: {call}")} if is_dimension else {}


_ARGUMENTS: dict[str, Callable[[Difference, bool], Arguments]] = {
    OPENING: lambda row, is_dimension: {"on_error": "collect"},
    PRESENCE: lambda row, is_dimension: {"drop_variables": [row.variable]},
    VALUES: lambda row, is_dimension: {"join" if is_dimension else "compat": "override"},
    TOGETHER: lambda row, is_dimension: {"compat": "override"},
    ROLE: _change_role,
    DIMENSIONS: _transpose,
    CALENDAR: _convert_calendar,
    OVERLAP: lambda row, is_dimension: {"overlap": "last"},
    ORDER: lambda row, is_dimension: {"sort": True},
}
"""What to change in the call of `open_virtual_mfdataset`, by aspect."""
