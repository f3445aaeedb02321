"""DMR++ sidecars: XML with the positions of the chunks of an HDF5, netCDF4 or HDF4 file.

OPeNDAP, "DAP4 Specification, Volume 1", section 4 (Dataset Metadata Response), and "DMR++"
(docs.opendap.org/index.php/DMR++). Only the sidecar is read, not the file that it describes.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable, describe_left_out
from virtualds.arrays.parser import Parser
from virtualds.bounds import check_axes
from virtualds.chunks.axes import MAX_AXIS_LENGTH
from virtualds.errors import FormatError, UnsupportedError, VirtualdsError, warn_user
from virtualds.parsers.dmrpp.document import (
    DAP,
    DMRPP,
    REMEDY,
    SUFFIX,
    DescribedFiles,
    Storage,
    is_byte_order_unknown,
    is_dap,
    is_described,
    name_of_element,
    parse_number,
    parse_sidecar,
    read_values,
)
from virtualds.parsers.hdf5 import PARSER as HDF5
from virtualds.parsers.hdf5.data_types import TEXT_DTYPE
from virtualds.parsers.hdf5.netcdf_rules import RESERVED
from virtualds.source_file import SourceFile
from virtualds.urls import path_or_url

TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        **{"Byte": "u1", "Char": "u1", "UInt8": "u1", "Int8": "i1", "Int16": "i2"},
        **{"UInt16": "u2", "Int32": "i4", "UInt32": "u4", "Int64": "i8", "UInt64": "u8"},
        **{"Float32": "f4", "Float64": "f8"},
    }.items()
} | {"String": TEXT_DTYPE, "Url": TEXT_DTYPE}
"""Types of DAP4 (section 3.4) that have an equivalent in numpy."""
STRUCTURED = {*TYPES, "Enum", "Opaque", "Structure", "Sequence"}
"""Elements that describe a member of a structure."""
NO_VARIABLES = {f"{DAP}{n}" for n in ("Dimension", "Group", "Attribute", "Enumeration", "EnumDef")}
"""Elements of a group other than variables."""
OWN_CONTAINER = "build_dmrpp_metadata"
"""The container with attributes of the program that wrote the sidecar, not of the file."""
GLOBAL_CONTAINERS = ("HDF5_GLOBAL", "NC_GLOBAL")
"""Containers in which older servers put the attributes of the file."""


def detect(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a sidecar, even one without addresses."""
    is_xml = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<"
    return is_xml and (is_described(head) or is_dap(head))


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read a sidecar with all its groups; variables that it does not describe are `problems`.

    Parameters
    ----------
    source : SourceFile
        The sidecar.
    group : str, optional
        Path of the group; the root group by default.
    skip : iterable of str
        Names of variables to leave out.

    Raises
    ------
    FormatError
        It is not valid XML, or does not conform to DAP4.
    FileNotFoundError
        There is no such group.
    UnsupportedError
        It is too long.
    """
    root = parse_sidecar(source)
    reader = _SidecarReader(source, root, frozenset(skip))
    contents = reader.read_group(root, "").group(group)
    if reader.without_order:
        warn_user(
            f"{path_or_url(source.url)}: the sidecar does not say in which byte order its numbers "
            f"are ({', '.join(reader.without_order[:3])}); they are read as little-endian, as its "
            f"server reads them. Compare some values with the file, or make the sidecar again with "
            f"a newer build_dmrpp"
        )
    return contents


# ---------------------------------------------------------------------- groups and variables


class _SidecarReader:
    """Reads the groups of a sidecar, parents first."""

    def __init__(self, source: SourceFile, root: Element, skip: frozenset[str]) -> None:
        self._source = source
        self._skip = skip
        self._files = DescribedFiles(source, root)
        self._sizes: dict[str, int] = {}
        self._enumerations: dict[str, Element] = {}
        self.without_order: list[str] = []
        self._dimensions = 0
        self._shown = path_or_url(source.url)

    def read_group(self, element: Element, path: str) -> ManifestGroup:
        """Read a group and all groups below it; ``path`` is empty or ends without a slash."""
        own_sizes = self._read_sizes(element, path)
        for child in element.iterfind(f"{DAP}Enumeration"):
            self._enumerations[f"{path}/{name_of_element(child)}"] = child
        problems: dict[str, VirtualdsError] = {}
        variables: dict[str, ManifestVariable] = {}
        left_out: dict[str, ManifestVariable] = {}
        sizes: dict[str, int] = {}
        for child in element:
            name = name_of_element(child)
            if child.tag in NO_VARIABLES or not child.tag.startswith(DAP):
                continue
            if name in self._skip:
                with suppress(VirtualdsError):
                    left_out[name] = self._describe_left_out(child, path, own_sizes)
                continue
            try:
                dims, shape = self._read_dims(child, path, own_sizes)
                self._check_agreement(name, variables, sizes, dict(zip(dims, shape, strict=True)))
            except VirtualdsError as error:
                self._note(problems, name, path, error)
                continue
            sizes |= zip(dims, shape, strict=True)
            variables[name] = self._read_variable(child, path, dims, shape, problems)
        attributes = self._read_attributes(element, "", path, problems)
        groups: dict[str, ManifestGroup] = {}
        for child in element.iterfind(f"{DAP}Group"):
            name = name_of_element(child)
            if name in groups or name in ("", ".", "..") or "/" in name:
                raise FormatError(
                    f"{self._source.url}: a group in {path or '/'!r} has the name {name!r}, which "
                    f"is taken or no name of a group; the sidecar is damaged, fetch it again"
                )
            groups[name] = self.read_group(child, f"{path}/{name}")
        return ManifestGroup(variables, attributes, groups, {}, problems, left_out=left_out)

    def _describe_left_out(
        self, element: Element, path: str, sizes: dict[str, int]
    ) -> ManifestVariable:
        dims, _ = self._read_dims(element, path, sizes)
        attributes = self._read_attributes(element, name_of_element(element), path, {})
        return describe_left_out(dims, self._find_type(element, path)[0], attributes)

    def _note(
        self, problems: dict[str, VirtualdsError], name: str, path: str, error: VirtualdsError
    ) -> None:
        error.locate(f"variable {f'{path}/{name}'.lstrip('/')!r}", self._source.url)
        problems[name] = error

    def _read_sizes(self, element: Element, path: str) -> dict[str, int]:
        """Record the dimensions of a group, and return them."""
        sizes = {}
        for child in element.iterfind(f"{DAP}Dimension"):
            try:
                size = parse_number(child.get("size", ""), f"dimension {name_of_element(child)!r}")
            except VirtualdsError as error:
                error.locate_file(self._source.url)
                raise
            self._sizes[f"{path}/{name_of_element(child)}"] = sizes[name_of_element(child)] = size
        self._dimensions += len(sizes)
        return sizes

    def _read_dims(
        self, variable: Element, path: str, sizes: dict[str, int]
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return names and lengths of the axes of a variable."""
        names: list[str] = []
        shape: list[int] = []
        for dim in variable.iterfind(f"{DAP}Dim"):
            name = self._find_dimension(name_of_element(dim), path)
            shape.append(self._find_length(dim, path))
            if name is None:
                names.append(self._name_axis(shape[-1], sizes, names))
            else:
                names.append(name.rpartition("/")[2])
        if len(set(names)) != len(names) and len(names) != len({*zip(names, shape, strict=True)}):
            raise UnsupportedError(f"it has the dimensions {names}, one of them twice; {REMEDY}")
        check_axes(len(shape), "it")
        if max(shape, default=0) >= MAX_AXIS_LENGTH:
            raise FormatError(
                f"an axis of {max(shape)} elements is longer than any; the sidecar is damaged, "
                f"fetch it again"
            )
        return tuple(names), tuple(shape)

    def _find_length(self, dim: Element, path: str) -> int:
        name = self._find_dimension(name_of_element(dim), path)
        size = dim.get("size", "")
        return parse_number(size, "a dimension") if name is None else self._sizes[name]

    def _find_dimension(self, name: str, path: str) -> str | None:
        """Return the path of a dimension, or None for one without a name."""
        return _find_declared(self._sizes, name, path, "dimension") if name else None

    def _name_axis(self, size: int, sizes: dict[str, int], used_names: list[str]) -> str:
        """Return netCDF's name for an axis without a dimension (``nc4_rec_match_dimscales``)."""
        for name, length in sizes.items():
            # the netCDF library treats dimensions of length 0 as unlimited
            if length == size > 0 and name not in used_names:
                return name
        name = f"phony_dim_{self._dimensions}"
        self._dimensions += 1
        sizes[name] = size
        return name

    def _check_agreement(
        self,
        name: str,
        variables: dict[str, ManifestVariable],
        sizes: dict[str, int],
        dim_sizes: dict[str, int],
    ) -> None:
        if not name or name in variables:
            raise FormatError(
                f"a variable is named {name!r} twice or not at all; the sidecar is damaged, fetch "
                f"it again"
            )
        if odd := [dim for dim, size in dim_sizes.items() if sizes.get(dim, size) != size]:
            raise UnsupportedError(
                f"dimension {odd[0]!r} has {dim_sizes[odd[0]]} elements, where other variables of "
                f"the group have {sizes[odd[0]]} (one of another group has this name); {REMEDY}"
            )

    def _read_variable(
        self,
        element: Element,
        path: str,
        dims: tuple[str, ...],
        shape: tuple[int, ...],
        problems: dict[str, VirtualdsError],
    ) -> ManifestVariable:
        name = name_of_element(element)
        attributes = self._read_attributes(element, name, path, problems)
        encoding: dict[str, Any] = {}
        try:
            dtype, decoded_dtype = self._find_type(element, path)
            stored = Storage(element, dtype, shape, attributes.get("_FillValue"), self._files.find)
            data, encoding = read_values(stored)
        except VirtualdsError as error:
            self._note(problems, name, path, error)
            return ManifestVariable(
                dims, ManifestArray.unreadable(shape, "V1", f"{error}"), attributes
            )
        if dtype.kind == "S" and isinstance(fill := attributes.get("_FillValue"), str):
            attributes["_FillValue"] = np.bytes_(fill.encode())
        if "least_significant_digit" in attributes:
            encoding["least_significant_digit"] = attributes.pop("least_significant_digit")
        if encoding.get("chunksizes"):
            cut = dict(zip(dims, encoding["chunksizes"], strict=True))
            encoding["preferred_chunks"] = cut
        if is_byte_order_unknown(element, dtype):
            self.without_order.append(f"{path}/{name}".lstrip("/"))
        encoding |= {"dtype": decoded_dtype, "source": self._shown, "original_shape": shape}
        return ManifestVariable(dims, data, attributes, encoding)

    def _find_type(self, variable: Element, path: str) -> tuple[np.dtype[Any], Any]:
        """Return the dtype of a variable, and the ``dtype`` for its xarray encoding."""
        kind = variable.tag.removeprefix(DAP)
        if kind == "Structure":
            dtype = self._build_structure(variable, path)
            return dtype, dtype
        if kind != "Enum":
            dtype = _find_dtype(variable)
            return dtype, str if dtype.hasobject else dtype
        declared = _find_declared(self._enumerations, variable.get("enum", ""), path, "enumeration")
        enumeration = self._enumerations[declared]
        dtype = TYPES.get(enumeration.get("basetype", ""), TEXT_DTYPE)
        if dtype.kind not in "iu":
            raise FormatError(f"its enumeration is not one of integers; {REMEDY}")
        try:
            members = {
                name_of_element(constant): int(np.array(int(constant.get("value", "")), dtype))
                for constant in enumeration.iterfind(f"{DAP}EnumConst")
            }
        except (OverflowError, ValueError) as error:
            raise FormatError(
                f"its enumeration has a value that is no number of its type ({error}); the "
                f"sidecar is damaged, fetch it again"
            ) from error
        of_enum = {"enum": members, "enum_name": name_of_element(enumeration)}
        return dtype, np.dtype(dtype, metadata=of_enum)

    def _build_structure(self, variable: Element, path: str) -> np.dtype[Any]:
        """Return the compound dtype of structures, with the offsets and the size in the sidecar."""
        chunks = variable.find(f"{DMRPP}chunks")
        listed = "" if chunks is None else chunks.get("structOffset", "")
        numbers = [parse_number(word, "structOffset") for word in listed.split()]
        members = [member for member in variable if member.tag.removeprefix(DAP) in STRUCTURED]
        formats = []
        for member in members:
            lengths = tuple(self._find_length(n, path) for n in member.iterfind(f"{DAP}Dim"))
            dtype = _find_dtype(member)
            if dtype.hasobject:
                raise UnsupportedError(
                    f"strings are members of its structures, and the sidecar does not say how they "
                    f"are stored; {REMEDY}"
                )
            formats.append(np.dtype((dtype, lengths)))
        offsets = [0, *numbers]
        if not members or len(numbers) != len(members):
            raise UnsupportedError(
                f"the sidecar does not say where the {len(members)} members of its structures lie "
                f"({listed!r}); {REMEDY}"
            )
        ends = [at + member.itemsize for at, member in zip(offsets, formats, strict=False)]
        if any(end > after for end, after in zip(ends, numbers, strict=True)):
            raise FormatError(
                f"the members of its structures overlap ({listed}); the sidecar is damaged, fetch "
                f"it again"
            )
        names = [name_of_element(member) for member in members]
        return np.dtype(
            {"names": names, "formats": formats, "offsets": offsets[:-1], "itemsize": offsets[-1]}
        )

    def _read_attributes(
        self, owner: Element, variable: str, path: str, problems: dict[str, VirtualdsError]
    ) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for name, element in _iterate_attributes(owner, "" if variable else OWN_CONTAINER):
            try:
                attributes[name] = _read_attribute(element)
            except VirtualdsError as error:
                # as in CDL: "variable:attribute", and ":attribute" of the group
                self._note(problems, f"{variable}:{name}", path, error)
        return attributes


def _find_declared(declared: Collection[str], name: str, path: str, what: str) -> str:
    """Return the path of a declaration in a group or a group above it (DAP4, section 3.3)."""
    above = path
    while not name.startswith("/") and f"{above}/{name}" not in declared and above:
        above = above.rpartition("/")[0]
    full_name = name if name.startswith("/") else f"{above}/{name}"
    if full_name not in declared:
        raise FormatError(
            f"its {what} {name!r} is not declared; the sidecar is damaged, fetch it again"
        )
    return full_name


def _find_dtype(variable: Element) -> np.dtype[Any]:
    """Return the type of the values of a variable, in the byte order of this machine."""
    kind = variable.tag.removeprefix(DAP)
    if kind not in TYPES:
        raise UnsupportedError(f"its values are of the type {kind} of DAP4; {REMEDY}")
    fixed = variable.find(f"{DMRPP}FixedLengthStringArray")
    if fixed is None:
        return TYPES[kind]
    length = parse_number(fixed.get("string_length", ""), "string_length")
    if not 0 < length < 2**31:
        raise FormatError(f"its strings have {length} bytes; the sidecar is damaged")
    return np.dtype(f"S{length}")


# ---------------------------------------------------------------------- attributes


def _iterate_attributes(owner: Element, left_out: str) -> Iterator[tuple[str, Element]]:
    """Yield the attributes of a group or variable; names of attributes in containers have dots."""
    for element in owner.iterfind(f"{DAP}Attribute"):
        name = name_of_element(element)
        if element.get("type") != "Container":
            if name not in RESERVED:
                yield name, element
        elif name != left_out:
            prefix = "" if left_out and name in GLOBAL_CONTAINERS else f"{name}."
            for inner, nested in _iterate_attributes(element, ""):
                yield f"{prefix}{inner}", nested


def _read_attribute(element: Element) -> Any:
    """Return the value of an attribute: a string, a list of strings, a number, or an array."""
    kind = element.get("type", "")
    texts = [v.get("value", v.text or "") for v in element.iterfind(f"{DAP}Value")]
    if kind == "OtherXML":
        return "".join(ET.tostring(child, "unicode") for child in element)
    if kind not in TYPES:
        raise UnsupportedError(f"the attribute has the type {kind!r}; {REMEDY}")
    if TYPES[kind].hasobject:
        return texts[0] if len(texts) == 1 else texts or ""
    try:
        convert = float if TYPES[kind].kind == "f" else int
        values = np.array([convert(text) for text in texts], TYPES[kind])
    except (OverflowError, ValueError) as error:
        raise FormatError(
            f"the attribute is no {kind} ({error}); the sidecar is damaged, fetch it again"
        ) from error
    return values[0] if values.size == 1 else values


# verification uses the native readers of the source files
PARSER = Parser("dmrpp", (SUFFIX,), detect, read, natives=HDF5.natives)
