"""Renames and drops variables of a stored group, and changes attributes, without reading values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.codecs.cf_packing import PACKING_ATTRIBUTES
from virtualds.datasets.changed_groups import find_group, naming_group, put_group, sizes_of
from virtualds.datasets.decoding import settle_left_out
from virtualds.datasets.keywords import format_suggestion

NAMING_ATTRIBUTES = (
    "coordinates",
    "bounds",
    "climatology",
    "grid_mapping",
    "ancillary_variables",
    "cell_measures",
    "formula_terms",
)
"""Attributes that name variables (CF conventions 1.11, appendix A)."""

TIME_UNITS = (
    *("days", "hours", "minutes", "seconds"),
    *("milliseconds", "microseconds", "nanoseconds"),
)
"""Units that make xarray decode numbers as durations."""

Attributes = Mapping[str, Any]
Words = Callable[[str], str | None]
"""Takes the name of a variable; returns what it is called now, None if it is gone."""


def drop_variables(group: ManifestGroup, names: Iterable[str]) -> ManifestGroup:
    """Return a group without some variables.

    Raises
    ------
    ValueError
        There is no such variable.
    """
    gone = set(names)
    for name in sorted(gone - group.variables.keys()):
        raise _unknown_error("drop_variables", name, group.variables)
    found = settle_left_out(group.leave_out(gone))
    return _change_words(found, lambda name: None if name in gone else name, ("coordinates",))


def drop_groups(root: ManifestGroup, paths: Iterable[str]) -> ManifestGroup:
    """Return a set without some groups and those below them.

    Raises
    ------
    ValueError
        There is no such group.
    """
    for path in paths:
        above, _, name = path.rpartition("/")
        holder = find_group(root, above)
        if not name or holder is None or name not in holder.groups:
            raise _unknown_error("drop_groups", path, [p for p, _ in root.walk() if p])
        kept = {n: child for n, child in holder.groups.items() if n != name}
        root = put_group(root, above, replace(holder, groups=kept))
    return root


def rename(group: ManifestGroup, names: Mapping[str, str]) -> ManifestGroup:
    """Return a group whose variables and dimensions have other names.

    A dimension is renamed in the groups below, too, which share it. Attributes that name variables
    get the new names.

    Raises
    ------
    ValueError
        There is no such name, or a new name is taken.
    """
    dims = sizes_of(group)
    for name in sorted(names.keys() - group.variables.keys() - dims.keys()):
        raise _unknown_error("rename", name, {**group.variables, **dims})
    found = _rename_here(group, names)
    shared = {old: new for old, new in names.items() if old in dims}
    return _rename_below(found, shared) if shared else found


def change_attributes(group: ManifestGroup, changes: Attributes) -> ManifestGroup:
    """Return a group with other attributes; a value of None removes one.

    Parameters
    ----------
    group : ManifestGroup
    changes : mapping
        Values by ``"name"``, of the group, or ``"variable:name"``.

    Raises
    ------
    ValueError
        There is no such variable, or the attribute says how stored numbers are decoded.
    """
    found, variables = dict(group.attributes), dict(group.variables)
    for key, value in changes.items():
        of, _, name = key.rpartition(":")
        if not of:
            _set(found, name, value)
            continue
        if of not in variables:
            raise _unknown_error("attributes", of, variables)
        _demand_undecoded(key, name, value, variables[of])
        attributes = dict(variables[of].attributes)
        _set(attributes, name, value)
        variables[of] = replace(variables[of], attributes=attributes)
    return replace(group, attributes=found, variables=variables)


def _set(attributes: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        attributes.pop(name, None)
    else:
        attributes[name] = value


def _demand_undecoded(key: str, name: str, value: Any, variable: ManifestVariable) -> None:
    """Refuse to change what stored numbers mean: readers would get other values."""
    units = [str(text) for text in (value, variable.attributes.get("units"))]
    is_time = any(" since " in text or text in TIME_UNITS for text in units)
    if name in PACKING_ATTRIBUTES or (is_time and name in ("units", "calendar")):
        raise ValueError(
            f"attributes {key!r}: it says how the stored numbers are decoded, and another value "
            f"would change them; write the variable anew (mode='r+')"
        )


def _unknown_error(argument: str, name: str, known: Iterable[str]) -> ValueError:
    known = sorted(known)
    return ValueError(
        f"{argument} {name!r}: the set has no such name, but {', '.join(known) or 'none'}"
        f"{format_suggestion(name, known)}"
    )


# ---------------------------------------------------------------------- names


def _rename_here(group: ManifestGroup, names: Mapping[str, str]) -> ManifestGroup:
    for what, known in (("variable", group.variables), ("dimension", sizes_of(group))):
        counts = Counter(names.get(name, name) for name in known)
        if taken := [name for name, count in counts.items() if count > 1]:
            raise ValueError(
                f"rename: two {what}s would be called {taken[0]!r}; choose other names"
            )
    variables = {
        names.get(name, name): replace(v, dims=tuple(names.get(dim, dim) for dim in v.dims))
        for name, v in group.variables.items()
    }
    dims = {dim for v in variables.values() for dim in v.dims}
    if scalars := [name for name, v in variables.items() if name in dims and not v.dims]:
        raise ValueError(
            f"rename: {scalars[0]!r} would be a scalar and a dimension, which xarray cannot hold; "
            f"choose another name"
        )
    unlimited = {names.get(dim, dim) for dim in group.encoding.get("unlimited_dims", ())}
    encoding = {**group.encoding, "unlimited_dims": unlimited}
    found = replace(group, variables=variables, encoding=encoding)
    return _change_words(found, lambda name: names.get(name, name), NAMING_ATTRIBUTES)


def _rename_below(group: ManifestGroup, dims: Mapping[str, str]) -> ManifestGroup:
    """Return a group in which the groups below have other names of dimensions."""
    below = {}
    for name, child in group.groups.items():
        with naming_group(name):
            below[name] = _rename_below(_rename_here(child, dims), dims)
    return replace(group, groups=below)


def _change_words(
    group: ManifestGroup, change: Words, attributes: Collection[str]
) -> ManifestGroup:
    """Return a group whose attributes name variables by other names."""
    variables = {
        name: replace(v, attributes=_change_naming(v.attributes, change, attributes))
        for name, v in group.variables.items()
    }
    found = _change_naming(group.attributes, change, ("coordinates",))
    return replace(group, variables=variables, attributes=found)


def _change_naming(given: Attributes, change: Words, names: Collection[str]) -> dict[str, Any]:
    found = dict(given)
    for name in names:
        text = found.get(name)
        if not isinstance(text, str):
            continue
        words = [_change_word(word, change, name) for word in text.split()]
        if words == text.split():
            continue
        found[name] = " ".join(word for word in words if word is not None)
        if not found[name]:
            del found[name]
    return found


def _change_word(word: str, change: Words, attribute: str) -> str | None:
    """Return a word of an attribute; a word with a colon is a key, and of mappings a name."""
    if not word.endswith(":"):
        return change(word)
    return f"{change(word[:-1])}:" if attribute == "grid_mapping" else word
