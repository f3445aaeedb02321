"""The structural metadata of HDF-EOS: which grids and swaths a file has, with their dimensions.

HDF-EOS notes them as a text, ``StructMetadata.0``, continued in ``StructMetadata.1`` and so on: in
HDF4 as attributes, in HDF5 as datasets of the group ``HDFEOS INFORMATION``. The text is in ODL, the
Object Description Language ("HDF-EOS5 Data Model, File Format and Library", NASA ESDS-RFC-008).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

METADATA = re.compile(r"StructMetadata\.(\d+)")
"""The names of the parts of the text."""
STRUCTURE = re.compile(r"(GRID|SWATH|ZA)_\d+")
"""The labels of structures; points are tables, without dimensions."""
MAX_DEPTH = 32
"""The maximum nesting of blocks; HDF-EOS needs four levels."""


@dataclass(frozen=True)
class OdlBlock:
    """A group or an object of ODL, with its values as text, without quotes."""

    label: str = ""
    values: dict[str, str] = field(default_factory=dict)
    parts: list[OdlBlock] = field(default_factory=list)

    def walk(
        self, *, is_whole: Callable[[OdlBlock], bool] = lambda block: False
    ) -> Iterator[OdlBlock]:
        """Yield all nested blocks, without descending into those for which ``is_whole`` is true."""
        queue = deque([self])
        while queue:
            for part in queue.popleft().parts:
                yield part
                if not is_whole(part):
                    queue.append(part)


@dataclass(frozen=True)
class Structure:
    """A grid, a swath, or a zonal average.

    ``values`` belong to the structure itself, ``sizes`` are the lengths of its dimensions, and
    ``fields`` the dimensions of each field, outermost first: of a data field and a geolocation
    field with the same name, the dimensions of both.
    """

    kind: str
    name: str
    values: dict[str, str]
    sizes: dict[str, int]
    fields: dict[str, set[tuple[str, ...]]]

    @classmethod
    def of(cls, block: OdlBlock) -> Structure:
        """Build the structure that a block describes."""
        kind = block.label.rpartition("_")[0]
        names = ("GridName", "SwathName", "ZaName")
        name = next((block.values[n] for n in names if n in block.values), "")
        # a grid always has these two dimensions, which the metadata do not list as objects
        dim_sizes = {dim: block.values.get(dim, "") for dim in ("XDim", "YDim")}
        fields: dict[str, set[tuple[str, ...]]] = {}
        for part in block.walk():
            if "DimensionName" in part.values:
                dim_sizes[part.values["DimensionName"]] = part.values.get("Size", "")
            named = [value for key, value in part.values.items() if key.endswith("FieldName")]
            if named and "DimList" in part.values:
                dims = tuple(re.findall(r'"([^"]*)"', part.values["DimList"]))
                fields.setdefault(named[0], set()).add(dims)
        sizes = {dim: int(size) for dim, size in dim_sizes.items() if size.isdecimal()}
        return cls(kind, name, block.values, sizes, fields)


def join_metadata(parts: Iterable[tuple[str, str]]) -> str:
    """Join the named parts of a text, in the order of the numbers in their names.

    >>> join_metadata([("StructMetadata.10", "c"), ("StructMetadata.9", "b"), ("Other", "a")])
    'bc'
    """
    matches = [(METADATA.fullmatch(name), text) for name, text in parts]
    return "".join(text for _, text in sorted((int(m[1]), text) for m, text in matches if m))


def read_structures(text: str) -> list[Structure]:
    """Return the structures in an ODL text, ignoring lines that are not ODL.

    >>> [grid] = read_structures('''
    ... GROUP=GridStructure
    ...     GROUP=GRID_1
    ...         GridName="ColumnAmountO3"
    ...         XDim=360
    ...         YDim=180
    ...         GROUP=DataField
    ...             OBJECT=DataField_1
    ...                 DataFieldName="O3"
    ...                 DimList=("YDim","XDim")
    ...             END_OBJECT=DataField_1
    ...         END_GROUP=DataField
    ...     END_GROUP=GRID_1
    ... END_GROUP=GridStructure
    ... END''')
    >>> grid.name, grid.sizes, grid.fields
    ('ColumnAmountO3', {'XDim': 360, 'YDim': 180}, {'O3': {('YDim', 'XDim')}})
    """
    blocks = _parse(text).walk(is_whole=_is_structure)
    return [Structure.of(block) for block in blocks if _is_structure(block)]


def _is_structure(block: OdlBlock) -> bool:
    return STRUCTURE.fullmatch(block.label) is not None


def _parse(text: str) -> OdlBlock:
    """Return the root block of a text, parsed up to the first block that is nested too deep."""
    opened = [OdlBlock()]
    lines = iter(text.splitlines())
    for line in lines:
        name, _, value = (part.strip() for part in line.partition("="))
        # a list may continue on the next lines
        while value.startswith("(") and ")" not in value and (more := next(lines, None)):
            value += more.strip()
        if len(opened) > MAX_DEPTH:
            break
        if name in ("GROUP", "OBJECT"):
            block = OdlBlock(value)
            opened[-1].parts.append(block)
            opened.append(block)
        elif name in ("END_GROUP", "END_OBJECT"):
            labels = [block.label for block in opened]
            if value in labels[1:]:
                del opened[len(labels) - 1 - labels[::-1].index(value) :]
        elif name:
            opened[-1].values[name] = value if value.startswith("(") else value.strip('"')
    return opened[0]
