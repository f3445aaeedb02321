"""How many files of a build have which schema, and why schemas differ.

A schema is what files say apart from their places, sizes and values: names, dimensions, types, and
what decides how values are decoded. It is known of every batch of files; nothing is opened for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import xarray as xr

from virtualds.arrays.array import ManifestArray
from virtualds.codecs.encoding_words import FILLS, SCALING, format_attributes, format_codecs
from virtualds.combine.file_batch import FileBatch
from virtualds.datasets.structure import CALENDAR, CODECS, DIMENSIONS, DTYPE, ROLE, STORED, UNITS
from virtualds.errors import without_secrets
from virtualds.quantities import format_count, name_some

MOST_SCHEMAS = 10
"""Most schemas that a text shows; of the others it gives the number."""
MOST_DIFFERENCES = 4
"""Most differences of a schema that a text shows."""
MOST_NAMES = 3
"""Most variables that one difference names."""
SCALE, FILL = "scale and offset", "fill value"
WORDS = {
    DTYPE: "{names} {is} {now}, not {usual}",
    STORED: "{names} {is} stored as {now}, not {usual}",
    DIMENSIONS: "{names} {has} dimensions ({now}), not ({usual})",
    ROLE: "{names} {is} a {now}, not a {usual}",
}
"""How a difference is said, by aspect; others are said by their name."""

Facts = Mapping[tuple[str, str], str]
"""A text for each variable and aspect of it."""


class FileSchema(NamedTuple):
    """Files of one schema: how many they are, the first, and how they differ from most files."""

    files: int
    first: str
    differences: tuple[str, ...] = ()

    def __str__(self) -> str:
        which = f", the first is {self.first}" if self.files > 1 else f", {self.first}"
        said = "; ".join(self.differences[:MOST_DIFFERENCES])
        left = len(self.differences) - MOST_DIFFERENCES
        more = f"; and {format_count(left, 'other difference')}" if left > 0 else ""
        return f"{format_count(self.files, 'file')}{which}{f': {said}{more}' if said else ''}"


def describe_schemas(schemas: Sequence[FileSchema]) -> list[str]:
    """Return a line for each of the first schemas; none if all files are alike.

    Examples
    --------
    >>> few = FileSchema(1, "file:///data/3.nc", ("lacks lat",))
    >>> describe_schemas([FileSchema(2, "file:///data/1.nc"), few])[2]
    '  1 file, file:///data/3.nc: lacks lat'
    """
    if len(schemas) < 2:
        return []
    lines = [f"{format_count(len(schemas), 'schema')}:"]
    lines += [f"  {schema}" for schema in schemas[:MOST_SCHEMAS]]
    left = schemas[MOST_SCHEMAS:]
    files = format_count(sum(schema.files for schema in left), "file")
    return [*lines, f"  ... and {len(left):,} more, of {files}"] if left else lines


class SchemaCounter:
    """Counts the files of each schema, batch by batch."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[int, int, Facts]] = {}
        """By schema: how many files, the number of the first of them, and the facts."""
        self._plans: dict[Hashable, tuple[Any, Hashable, Facts]] = {}

    def add(self, numbers: Sequence[int], opened: Any) -> None:
        """Count what was opened: a batch of files, or the dataset of one."""
        facts: Facts
        if isinstance(opened, FileBatch):
            parts = {_name_path(path): part for path, part in opened.walk()}
            codecs = {path: _list_codecs(part, path) for path, part in parts.items()}
            key = tuple((path, id(part.plan)) for path, part in parts.items()), str(codecs)
            if key not in self._plans:
                told: dict[tuple[str, str], str] = {}
                for path, part in parts.items():
                    told |= dict(_list_facts(part, path)) | codecs[path]
                # the plans are kept, so that no other ones get their numbers
                plans = [part.plan for part in parts.values()]
                self._plans[key] = plans, frozenset(told.items()), told
            _, schema, facts = self._plans[key]
        elif isinstance(opened, xr.Dataset):
            facts = dict(_list_facts_of_dataset(opened))
            schema = frozenset(facts.items())
        else:
            return
        count, first, _ = self._found.get(schema, (0, min(numbers), facts))
        self._found[schema] = count + len(numbers), min(first, *numbers), facts

    def finish(self, files: Sequence[Any]) -> tuple[FileSchema, ...]:
        """Return the schemas, that of most files first; ``files`` has the names of all files."""
        ordered = sorted(self._found.values(), key=lambda found: (-found[0], found[1]))
        return tuple(
            FileSchema(
                count,
                without_secrets(str(files[first])),
                tuple(_list_differences(facts, ordered[0][2])),
            )
            for count, first, facts in ordered
        )


def _name_path(path: str) -> str:
    """Return what stands before the names of variables of a group."""
    return f"{path.strip('/')}/" if path.strip("/") else ""


def _list_facts(batch: FileBatch, path: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield what a decoding plan says of its variables."""
    for stored, part in batch.plan.parts.items():
        name = f"{path}{stored if part.name is None else part.name}"
        attributes = {**part.attributes, **part.encoding, **part.declared}
        role = "coordinate" if part.name in batch.plan.coordinates else "data variable"
        yield (name, ROLE), role
        yield (name, DIMENSIONS), ", ".join(map(str, part.decoded[0]))
        yield (name, DTYPE), str(part.decoded[1])
        yield (name, STORED), str(part.stored[1].newbyteorder("="))
        yield (name, SCALE), format_attributes(attributes, SCALING)
        yield (name, FILL), format_attributes(attributes, FILLS)
        yield from _list_units(name, attributes)


def _list_facts_of_dataset(dataset: xr.Dataset) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the same facts of a dataset, whose variables are decoded."""
    for variable_name, variable in dataset.variables.items():
        name = str(variable_name)
        role = "coordinate" if variable_name in dataset.coords else "data variable"
        yield (name, ROLE), role
        yield (name, DIMENSIONS), ", ".join(map(str, variable.dims))
        yield (name, DTYPE), str(variable.dtype)
        yield from _list_units(name, variable.attrs)


def _list_units(name: str, attributes: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield units and calendar; the date that times count from says nothing of a schema."""
    if "calendar" in attributes:
        yield (name, CALENDAR), str(attributes["calendar"])
    if "units" in attributes and " since " not in str(attributes["units"]):
        yield (name, UNITS), str(attributes["units"])


def _list_codecs(batch: FileBatch, path: str) -> dict[tuple[str, str], str]:
    data = {f"{path}{name}": v.data for name, v in batch.group.variables.items()}
    arrays = {name: array for name, array in data.items() if isinstance(array, ManifestArray)}
    codecs = {name: [p.codecs for p in array.pipelines] for name, array in arrays.items()}
    return {
        (name, CODECS): "; ".join(dict.fromkeys(map(format_codecs, some)))
        for name, some in codecs.items()
    }


def _list_differences(facts: Facts, usual: Facts) -> Iterator[str]:
    """Yield in words how files differ from most files: variables that differ alike together."""
    here, there = ({name: None for name, _ in some} for some in (facts, usual))
    if lacking := [name for name in there if name not in here]:
        yield f"lacks {name_some(lacking, MOST_NAMES)}"
    if added := [name for name in here if name not in there]:
        yield f"also has {name_some(added, MOST_NAMES)}"
    alike: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (name, aspect), was in {**dict.fromkeys(facts, "none"), **usual}.items():
        now = facts.get((name, aspect), "none")
        # what is decoded otherwise is mostly stored otherwise, too
        is_told = aspect == STORED and facts.get((name, DTYPE)) != usual.get((name, DTYPE))
        if name in here and name in there and now != was and not is_told:
            alike[aspect, now, was].append(name)
    for (aspect, now, was), names in alike.items():
        said = WORDS.get(aspect, f"{aspect} of {{names}}: {{now}}, not {{usual}}")
        single = len(names) == 1
        yield said.format(
            names=name_some(names, MOST_NAMES),
            now=now,
            usual=was,
            **{"is": "is" if single else "are", "has": "has" if single else "have"},
        )
