"""Structural metadata of HDF-EOS: the grids and swaths of a file, with their dimensions.

HDF-EOS stores them as text, ``StructMetadata.0``, continued in ``StructMetadata.1`` and so on: in
HDF4 as attributes, in HDF5 as datasets of the group ``HDFEOS INFORMATION``. The text is in ODL, the
Object Description Language ("HDF-EOS5 Data Model, File Format and Library", NASA ESDS-RFC-008).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

METADATA = re.compile(r"StructMetadata\.(\d+)")
"""Matches the names of the parts of the text."""
STRUCTURE = re.compile(r"(GRID|SWATH|ZA)_\d+")
"""Matches the labels of structures; points are tables, without dimensions."""
MAX_DEPTH = 32
"""Maximum nesting of blocks; HDF-EOS needs four levels."""


@dataclass(frozen=True)
class OdlBlock:
    """A group or an object of ODL, with its values as text, without quotes."""

    label: str = ""
    values: dict[str, str] = field(default_factory=dict)
    parts: list[OdlBlock] = field(default_factory=list)

    def walk(
        self, *, is_leaf: Callable[[OdlBlock], bool] = lambda block: False
    ) -> Iterator[OdlBlock]:
        """Yield all nested blocks, without descending into those for which ``is_leaf`` is true."""
        queue = deque([self])
        while queue:
            for part in queue.popleft().parts:
                yield part
                if not is_leaf(part):
                    queue.append(part)


@dataclass(frozen=True)
class Structure:
    """A grid, a swath, or a zonal average.

    ``values`` belong to the structure itself, ``sizes`` are the lengths of its dimensions, and
    ``fields`` the dimensions of each field, outermost first. If a data field and a geolocation
    field have the same name, ``fields`` has the dimensions of both.
    """

    kind: str
    name: str
    values: dict[str, str]
    sizes: dict[str, int]
    fields: dict[str, set[tuple[str, ...]]]

    @classmethod
    def from_block(cls, block: OdlBlock) -> Structure:
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
            field_names = [value for key, value in part.values.items() if key.endswith("FieldName")]
            if field_names and "DimList" in part.values:
                dims = tuple(re.findall(r'"([^"]*)"', part.values["DimList"]))
                fields.setdefault(field_names[0], set()).add(dims)
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
    blocks = _parse(text).walk(is_leaf=_is_structure)
    return [Structure.from_block(block) for block in blocks if _is_structure(block)]


def _is_structure(block: OdlBlock) -> bool:
    return STRUCTURE.fullmatch(block.label) is not None


def _parse(text: str) -> OdlBlock:
    """Parse a text, up to the first block that is nested too deeply; return the root block."""
    open_blocks = [OdlBlock()]
    lines = iter(text.splitlines())
    for line in lines:
        name, _, value = (part.strip() for part in line.partition("="))
        # a list may continue on the next lines
        while value.startswith("(") and ")" not in value and (more := next(lines, None)):
            value += more.strip()
        if len(open_blocks) > MAX_DEPTH:
            break
        if name in ("GROUP", "OBJECT"):
            block = OdlBlock(value)
            open_blocks[-1].parts.append(block)
            open_blocks.append(block)
        elif name in ("END_GROUP", "END_OBJECT"):
            labels = [block.label for block in open_blocks]
            if value in labels[1:]:
                del open_blocks[len(labels) - 1 - labels[::-1].index(value) :]
        elif name:
            open_blocks[-1].values[name] = value if value.startswith("(") else value.strip('"')
    return open_blocks[0]
