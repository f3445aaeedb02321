"""Which fields of a GRIB file make one dataset: those that cfgrib's ``open_datasets`` joins.

Fields of one parameter that differ in nothing that an attribute tells make a variable. Variables of
one type of level make a dataset if they have the same grid, times, steps, levels and members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from virtualds.parsers.grib.messages import PARAMETER_NUMBERS, GribField
from virtualds.parsers.grib.names import OF_DATASETS, OF_PARAMETERS, name_level, name_variable

AXES: dict[str, Callable[[GribField], Any]] = {
    "number": lambda m: m.keys.get("number"),
    "time": lambda m: m.time,
    "step": lambda m: m.step,
    "level": lambda m: m.keys.get("level"),
    "directionNumber": lambda m: m.keys.get("directionNumber"),
    "frequencyNumber": lambda m: m.keys.get("frequencyNumber"),
}
"""Axes before those of the grid: how to find a field's place on each, None if it has none."""
FROM_GROUND_UP = ("isobaricInhPa", "isobaricInPa")
"""Types of level whose values decrease along their axis."""


@dataclass(frozen=True)
class Parameter:
    """The fields of one variable.

    Parameters
    ----------
    name : str
    fields : list of GribField
    axes : dict
        The values on each axis that the fields have.
    lacking : list of str
        Those of the axes on which some of the fields have no place.
    """

    name: str
    fields: list[GribField]
    axes: dict[str, list[Any]]
    lacking: list[str]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What all parameters of a dataset have in common, besides their axes."""
        keys = self.fields[0].keys
        return tuple(str(keys.get(n)) for n in ("typeOfLevel", "md5GridSection", *OF_DATASETS))


Kind = list[Parameter]
"""Parameters that make one dataset."""


def group_kinds(found: Sequence[GribField]) -> dict[str, Kind]:
    """Return the parameters of each dataset, by the name of its group."""
    kinds: dict[tuple[Any, ...], list[Kind]] = {}
    for parameter in _find_parameters(found):
        rivals = kinds.setdefault(parameter.kind, [])
        for kind in rivals:
            if all(_can_join(other, parameter) for other in kind):
                kind.append(parameter)
                break
        else:
            rivals.append([parameter])
    every = [kind for rivals in kinds.values() for kind in rivals]
    return dict(zip(_name_kinds(every), every, strict=True))


def _find_parameters(found: Sequence[GribField]) -> Iterator[Parameter]:
    """Yield parameters by the numbers of what they measure."""
    names = (*OF_PARAMETERS, *OF_DATASETS, "md5GridSection")
    fields: dict[tuple[Any, ...], list[GribField]] = {}
    for field in found:
        told = tuple(field.keys.get(n) for n in names)
        fields.setdefault((*told, _number_unknown(field)), []).append(field)
    several = len({numbers for *_, numbers in fields if numbers}) > 1
    for (*_, numbers), same in sorted(fields.items(), key=_rank):
        name = name_variable(same[0].keys)
        name = f"{name}_{numbers}" if numbers and several else name
        yield Parameter(name, same, *_list_axes(same))


def _rank(item: tuple[tuple[Any, ...], list[GribField]]) -> int:
    return int(item[1][0].keys.get("paramId", 0))


def _number_unknown(field: GribField) -> str:
    """Return the numbers of a parameter that ecCodes has no name for; empty for others."""
    if field.keys.get("paramId", 0):
        return ""
    return "_".join(str(field.keys[n]) for n in PARAMETER_NUMBERS if n in field.keys)


def _list_axes(fields: Sequence[GribField]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the values of fields on the axes that they have, and which axes some of them lack."""
    found = {name: {tell(m) for m in fields} for name, tell in AXES.items()}
    axes = {name: sorted(values - {None}) for name, values in found.items() if values != {None}}
    if name_level(fields[0].keys) in FROM_GROUND_UP and "level" in axes:
        axes["level"].reverse()
    return axes, [name for name in axes if None in found[name]]


def _can_join(other: Parameter, parameter: Parameter) -> bool:
    """Say whether two parameters may be in one dataset."""
    shared = other.axes.keys() & parameter.axes.keys()
    alike = all(other.axes[axis] == parameter.axes[axis] for axis in shared)
    return alike and other.name != parameter.name


# ---------------------------------------------------------------------- names of groups


def _tell_levels(kind: Kind) -> str:
    levels = next((p.axes["level"] for p in kind if "level" in p.axes), [])
    return f"{levels[0]:g}" if len(levels) == 1 else f"{len(levels)}_levels"


def _tell_key(name: str) -> Callable[[Kind], str]:
    """Return a function that tells a key of a kind, if all its fields have the same."""

    def tell(kind: Kind) -> str:
        values = {str(parameter.fields[0].keys.get(name, "")) for parameter in kind}
        return values.pop() if len(values) == 1 else ""

    return tell


def _tell_steps(kind: Kind) -> str:
    steps = next((p.axes["step"] for p in kind if "step" in p.axes), [])
    return f"step_{steps[0]:g}" if len(steps) == 1 else f"{len(steps)}_steps"


def _tell_parameters(kind: Kind) -> str:
    return kind[0].name if len(kind) == 1 else ""


TELLING: tuple[Callable[[Kind], str], ...] = (
    *(_tell_levels, _tell_key("stepType"), _tell_key("dataType"), _tell_steps),
    _tell_parameters,
)
"""What tells kinds of one type of level apart, in the order in which names of groups tell it."""


def _name_kinds(kinds: Sequence[Kind]) -> list[str]:
    """Name kinds by type of level, and by as much else as tells them apart."""
    named = [str(kind[0].fields[0].keys.get("typeOfLevel", "unknown")) for kind in kinds]
    for tell in TELLING:
        counts = Counter(named)
        told = [tell(kind) for kind in kinds]
        differ = {
            n for n in counts if len({t for m, t in zip(named, told, strict=True) if m == n}) > 1
        }
        named = [
            f"{name}_{t}" if name in differ and t else name
            for name, t in zip(named, told, strict=True)
        ]
    counts = Counter(named)
    return [f"{n}_{named[:i].count(n)}" if counts[n] > 1 else n for i, n in enumerate(named)]
