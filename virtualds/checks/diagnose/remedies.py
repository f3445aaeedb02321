"""What to do about what differs, and the line of code that does it, for users to copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from virtualds.checks.diagnose.findings import Difference
from virtualds.checks.diagnose.trials import (
    EXPLANATIONS,
    GAP,
    KEEPING,
    KIND,
    NAME,
    OPENING,
    ORDER,
    OVERLAP,
    RENAMED,
    TOGETHER,
)
from virtualds.datasets.keywords import names_of
from virtualds.datasets.structure import (
    CALENDAR,
    DIMENSIONS,
    PRESENCE,
    ROLE,
    SIZE,
    SYSTEM,
    VALUES,
    write_rename,
)
from virtualds.errors import without_secrets

REPEATED = (
    *("combine", "concat_dim", "data_vars", "coords", "compat", "join", "combine_attrs"),
    *("sort", "overlap", "group", "drop_variables", "decode_cf", "on_error"),
)
"""Arguments of the diagnosis that the line of code repeats: short ones, and never a secret."""
OF_ONE_FILE = ("group", "decode_cf")
"""Those of them that opening one file needs, too."""
MOST_LOST = 20
"""Files that cannot be opened which a line of code names at most."""

Arguments = Mapping[str, Any]


class Usual(NamedTuple):
    """What the first file has where another one differs.

    ``size`` is the length of the dimension that the variable is the coordinate of, and ``resized``
    says whether the other file has another length. ``attribute`` is the name of an attribute that
    says how its coordinate reference system differs, and ``values`` its values as text.
    """

    text: str
    size: str | None = None
    resized: bool = False
    attribute: str | None = None
    values: Sequence[str] = ()


@dataclass(frozen=True)
class Mend:
    """What to change in the call of `open_virtual_mfdataset`.

    Parameters
    ----------
    arguments : mapping
        Arguments, with their values.
    drops : tuple of str
        Variables to leave out.
    steps : tuple of str
        Expressions that make a dataset of the dataset ``ds`` of a file.
    choice : str
        A condition on the dataset ``ds`` of a file that is to be combined.
    """

    arguments: Arguments = field(default_factory=dict)
    drops: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    choice: str = ""


NOTHING = Mend()


def is_fault(row: Difference) -> bool:
    """Say whether a difference has to be mended before others can be."""
    return row.verdict == "blocks" or (row.verdict == "costs" and row.leads)


def find_mend(row: Difference, usual: Usual) -> Mend:
    """Return what does something about a difference."""
    if row.verdict == "combines":
        return NOTHING
    if (options := KEEPING.get(row.remedy)) is not None:
        return Mend(options)
    find = _take_first_system if usual.attribute is not None else _MENDS.get(row.aspect)
    return NOTHING if find is None else find(row, usual)


def write_remedy(
    row: Difference,
    mend: Mend,
    needed: Sequence[Mend],
    given: Arguments,
    first: str,
    lost: Sequence[str],
) -> str:
    """Return a line of code that does something about a difference, "" if there is none.

    Parameters
    ----------
    row : Difference
    mend : Mend
        What does something about it.
    needed : sequence of Mend
        What has to be changed for the line to work, the mend among it.
    given : mapping
        The arguments of `open_virtual_mfdataset` with which the files were tried; the function of
        the user has the name that it has in the code.
    first : str
        The first file that can be opened.
    lost : sequence of str
        Files that cannot be opened.
    """
    if row.verdict == "combines":
        return ""
    if row.aspect == GAP:
        return "print(vds.virtual.gaps)"
    if mend != NOTHING:
        return _write_call(needed, given, first, lost)
    if row.aspect == TOGETHER and row.remedy == EXPLANATIONS[TOGETHER].remedy:
        return f"virtualds.open_virtual_dataset({_show(without_secrets(row.first_file))})"
    if row.refused and "zarr-v3" not in row.refused:
        return 'vds.virtual.to_manifest("refs.zarr")'
    return ""


def _write_call(mends: Sequence[Mend], given: Arguments, first: str, lost: Sequence[str]) -> str:
    """Return a call as code, "" if it would be long, or show a secret."""
    arguments = dict(given)
    for mend in mends:
        arguments |= mend.arguments
    if drops := [name for mend in mends for name in mend.drops]:
        before = names_of("drop_variables", given.get("drop_variables"))
        arguments["drop_variables"] = list(dict.fromkeys([*before, *drops]))
    steps = list(dict.fromkeys(step for mend in mends for step in mend.steps))
    function = _write_function(steps, given.get("preprocess"))
    choices = list(dict.fromkeys(mend.choice for mend in mends if mend.choice))
    named_files = [*lost, *([first] if any("{first}" in choice for choice in choices) else [])]
    hides = any(without_secrets(file) != file for file in named_files)
    if choices and (hides or len(lost) > MOST_LOST):
        return ""
    named = [
        f"{name}={_show(value)}"
        for name, value in arguments.items()
        if name in REPEATED and value is not None
    ]
    begun = ""
    if choices and steps:
        begun, function = f"mend = {function}; ", "mend"
    named += [f"preprocess={function}"] if function else []
    files = _write_choice(choices, function, given, first, lost) if choices else "files"
    begun = f"import numpy as np; {begun}" if "np." in files else begun
    return f"{begun}vds = virtualds.open_virtual_mfdataset({', '.join([files, *named])})"


def _write_function(steps: Sequence[str], own: str | None) -> str:
    """Return a function that takes steps one after the other, as code; ``own`` is the user's."""
    if not steps:
        return own or ""
    first, rest = (f"{own}(ds)", steps) if own else (steps[0], steps[1:])
    piped = (f".pipe(lambda ds: {step})" for step in rest)
    return f"lambda ds: {first}{''.join(piped)}"


def _write_choice(
    choices: Sequence[str], function: str, given: Arguments, first: str, lost: Sequence[str]
) -> str:
    """Return the files that fulfil conditions, as code."""
    of_file = [f"{n}={_show(given[n])}" for n in OF_ONE_FILE if given.get(n) is not None]

    def write_opening(file: str) -> str:
        opened = f"virtualds.open_virtual_dataset({', '.join([file, *of_file])})"
        return f"{function}({opened})" if function else opened

    text = " and ".join(choices).replace("{first}", write_opening(_show(first)))
    opened = write_opening("f")
    is_once = text.count("{ds}") == 1
    text = text.replace("{ds}", opened if is_once else f"(ds := {opened})", 1).replace("{ds}", "ds")
    conditions = [f"str(f) not in {_show(list(lost))}"] if lost else []
    return f"[f for f in files if {' and '.join([*conditions, text])}]"


def _show(value: Any) -> str:
    """Return a value as code; JSON and Python quote texts alike, but for single quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, list | tuple):
        return repr(value)
    return f"[{', '.join(map(_show, value))}]"


def _rename(row: Difference, usual: Usual) -> Mend:
    pairs = zip(row.after.split(", "), row.before.split(", "), strict=True)
    return Mend(steps=(write_rename(dict(pairs)).removeprefix("lambda ds: "),))


def _rename_variable(row: Difference, usual: Usual) -> Mend:
    before, after = _show(row.before), _show(row.after)
    return Mend(steps=(f"ds.rename({{{after}: {before}}} if {after} in ds else {{}})",))


def _take_first_kind(row: Difference, usual: Usual) -> Mend:
    return Mend(choice=f"{_show(row.before.split(', ')[0])} in {{ds}}")


def _take_first_grid(row: Difference, usual: Usual) -> Mend:
    """Take the files of the grid of the first file, or without the coordinate.

    Where no dimension has the values, the variable is left out.
    """
    if usual.size is None:
        return Mend(drops=(row.variable,))
    if usual.resized:
        return _take_first_size(row, usual)
    name = _show(row.variable)
    return Mend(choice=f"({name} not in {{ds}} or {{ds}}[{name}].equals({{first}}.get({name})))")


def _take_first_size(row: Difference, usual: Usual) -> Mend:
    return Mend(choice=f"{{ds}}.sizes.get({_show(row.variable)}, {usual.size}) == {usual.size}")


def _take_first_system(row: Difference, usual: Usual) -> Mend:
    """Take the files of the first system, by its name or by a number that differs."""
    attributes = f'getattr({{ds}}.get({_show(row.variable)}), "attrs", {{}})'
    if usual.attribute is not None:
        found = f"{attributes}.get({_show(usual.attribute)})"
        if any("..." in value for value in usual.values):
            # a report does not hold long texts
            known = f"{{first}}[{_show(row.variable)}].attrs.get({_show(usual.attribute)})"
            return Mend(choice=f"{found} in (None, {known})")
        # of a number, of several, and of text
        return Mend(choice=f"str(np.array({found}).tolist()) in {_show(['None', *usual.values])}")
    title = usual.text.partition(" (")[2].removesuffix(")") or usual.text
    if row.aspect != SYSTEM or "=" in title or title in row.after:
        return NOTHING
    return Mend(choice=f"{_show(title)} in str({attributes} or {_show(title)})")


def _transpose(row: Difference, usual: Usual) -> Mend:
    dims = usual.text.split(", ")
    if dims == ["none"] or sorted(dims) != sorted(row.after.split(", ")):
        return NOTHING
    listed = ", ".join(map(_show, dims))
    fits = f"n in ds and set(ds[n].dims) == {{{listed}}}"
    found = f"{{n: ds[n].transpose({listed}) for n in [{_show(row.variable)}] if {fits}}}"
    return Mend(steps=(f"ds.assign({found})",))


def _change_role(row: Difference, usual: Usual) -> Mend:
    is_coordinate = usual.text == "coordinate"
    method, members = ("set_coords", "ds") if is_coordinate else ("reset_coords", "ds.coords")
    return Mend(steps=(f"ds.{method}([n for n in [{_show(row.variable)}] if n in {members}])",))


NO_LEAP_DAYS = ("noleap", "365_day")
LEAP_DAYS = ("standard", "gregorian", "proleptic_gregorian")


def _convert_calendar(row: Difference, usual: Usual) -> Mend:
    """Convert to a calendar that has all days of the other one; else days would be left out."""
    if usual.size is None or usual.text not in LEAP_DAYS or row.after not in NO_LEAP_DAYS:
        return NOTHING
    name = _show(row.variable)
    call = f"ds.convert_calendar({_show(usual.text)}, dim={name}) if {name} in ds.dims else ds"
    return Mend(steps=(call,))


_MENDS: dict[str, Callable[[Difference, Usual], Mend]] = {
    OPENING: lambda row, usual: Mend({"on_error": "collect"}),
    PRESENCE: lambda row, usual: Mend(drops=(row.variable,)),
    SIZE: _take_first_size,
    VALUES: _take_first_grid,
    RENAMED: _rename,
    NAME: _rename_variable,
    KIND: _take_first_kind,
    SYSTEM: _take_first_system,
    ROLE: _change_role,
    DIMENSIONS: _transpose,
    CALENDAR: _convert_calendar,
    OVERLAP: lambda row, usual: Mend({"overlap": "last"}),
    ORDER: lambda row, usual: Mend({"sort": True}),
    TOGETHER: lambda row, usual: Mend(drops=(row.variable,)) if row.variable else NOTHING,
}
"""What to change in the call of `open_virtual_mfdataset`, by aspect."""
