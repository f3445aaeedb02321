"""Parser of DMR++ sidecars: XML with the locations of the chunks of an HDF5, netCDF4 or HDF4 file.

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
from virtualds.errors import (
    FormatError,
    UnsupportedError,
    VirtualdsError,
    warn_user,
)
from virtualds.parsers.dmrpp.document import (
    DAP,
    DMRPP,
    REMEDY,
    SUFFIX,
    DescribedFiles,
    StoredVariable,
    get_name,
    is_byte_order_unknown,
    is_dap,
    is_dmrpp,
    make_sidecar_error,
    parse_number,
    parse_sidecar,
    read_values,
)
from virtualds.parsers.hdf5 import PARSER as HDF5
from virtualds.parsers.hdf5.data_types import TEXT_DTYPE
from virtualds.parsers.hdf5.netcdf_rules import RESERVED_ATTRIBUTES
from virtualds.source_file import SourceFile, path_or_url

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        **{"Byte": "u1", "Char": "u1", "UInt8": "u1", "Int8": "i1", "Int16": "i2"},
        **{"UInt16": "u2", "Int32": "i4", "UInt32": "u4", "Int64": "i8", "UInt64": "u8"},
        **{"Float32": "f4", "Float64": "f8"},
    }.items()
} | {"String": TEXT_DTYPE, "Url": TEXT_DTYPE}
"""Types of DAP4 (section 3.4) that have an equivalent in numpy."""
MEMBER_ELEMENTS = {*DTYPES, "Enum", "Opaque", "Structure", "Sequence"}
"""Names of the elements for the members of a structure."""
OTHER_ELEMENTS = {
    f"{DAP}{n}" for n in ("Dimension", "Group", "Attribute", "Enumeration", "EnumDef")
}
"""Tags of the elements of a group that are not variables."""
SERVER_CONTAINER = "build_dmrpp_metadata"
"""Container with attributes of the program that wrote the sidecar, not of the file."""
GLOBAL_CONTAINERS = ("HDF5_GLOBAL", "NC_GLOBAL")
"""Containers of older servers with the attributes of the file."""


def detect(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a sidecar, possibly without locations."""
    is_xml = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<"
    return is_xml and (is_dmrpp(head) or is_dap(head))


def read(source: SourceFile, group: str | None = None, skip: Iterable[str] = ()) -> ManifestGroup:
    """Read all groups of a sidecar; variables that it does not describe are in `problems`.

    Raises `FormatError` if the sidecar is not valid XML, or does not conform to DAP4;
    `FileNotFoundError` if there is no such group; and `UnsupportedError` if the sidecar is too
    long.
    """
    root = parse_sidecar(source)
    reader = _SidecarReader(source, root, frozenset(skip))
    contents = reader.read_group(root, "").group(group)
    if reader.variables_without_order:
        warn_user(
            f"{path_or_url(source.url)}: the sidecar does not say in which byte order its numbers "
            f"are ({', '.join(reader.variables_without_order[:3])}); they are read as "
            "little-endian, as its server reads them. Compare some values with the file, or make "
            "the sidecar again with a newer build_dmrpp"
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
        self.variables_without_order: list[str] = []
        self._dimension_count = 0
        self._display_name = path_or_url(source.url)

    def read_group(self, element: Element, path: str) -> ManifestGroup:
        """Return a group with all subgroups; ``path`` is like ``/a/b``, or empty for the root."""
        group_sizes = self._read_sizes(element, path)
        for child in element.iterfind(f"{DAP}Enumeration"):
            self._enumerations[f"{path}/{get_name(child)}"] = child
        problems: dict[str, VirtualdsError] = {}
        variables: dict[str, ManifestVariable] = {}
        left_out: dict[str, ManifestVariable] = {}
        sizes: dict[str, int] = {}
        for child in element:
            name = get_name(child)
            if child.tag in OTHER_ELEMENTS or not child.tag.startswith(DAP):
                continue
            if name in self._skip:
                with suppress(VirtualdsError):
                    left_out[name] = self._describe_left_out(child, path, group_sizes)
                continue
            try:
                dims, shape = self._read_dims(child, path, group_sizes)
                self._check_name_and_sizes(
                    name, variables, sizes, dict(zip(dims, shape, strict=True))
                )
            except VirtualdsError as error:
                self._record_problem(problems, name, path, error)
                continue
            sizes |= zip(dims, shape, strict=True)
            variables[name] = self._read_variable(child, path, dims, shape, problems)
        attributes = self._read_attributes(element, "", path, problems)
        groups: dict[str, ManifestGroup] = {}
        for child in element.iterfind(f"{DAP}Group"):
            name = get_name(child)
            if name in groups or name in ("", ".", "..") or "/" in name:
                raise make_sidecar_error(
                    f"{self._source.url}: a group in {path or '/'!r} has the name "
                    f"{name!r}, which is taken, or not a valid name"
                )
            groups[name] = self.read_group(child, f"{path}/{name}")
        return ManifestGroup(variables, attributes, groups, {}, problems, left_out=left_out)

    def _describe_left_out(
        self, element: Element, path: str, sizes: dict[str, int]
    ) -> ManifestVariable:
        dims, _ = self._read_dims(element, path, sizes)
        attributes = self._read_attributes(element, get_name(element), path, {})
        return describe_left_out(dims, self._find_type(element, path)[0], attributes)

    def _record_problem(
        self, problems: dict[str, VirtualdsError], name: str, path: str, error: VirtualdsError
    ) -> None:
        error.locate(f"variable {f'{path}/{name}'.lstrip('/')!r}", self._source.url)
        problems[name] = error

    def _read_sizes(self, element: Element, path: str) -> dict[str, int]:
        """Register the dimensions of a group; return their sizes by name."""
        sizes = {}
        for child in element.iterfind(f"{DAP}Dimension"):
            try:
                size = parse_number(child.get("size", ""), f"dimension {get_name(child)!r}")
            except VirtualdsError as error:
                error.locate_file(self._source.url)
                raise
            self._sizes[f"{path}/{get_name(child)}"] = sizes[get_name(child)] = size
        self._dimension_count += len(sizes)
        return sizes

    def _read_dims(
        self, variable: Element, path: str, sizes: dict[str, int]
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names and lengths of the axes of a variable."""
        names: list[str] = []
        shape: list[int] = []
        for dim in variable.iterfind(f"{DAP}Dim"):
            name = self._find_dimension(get_name(dim), path)
            shape.append(self._find_length(dim, path))
            if name is None:
                names.append(self._name_axis(shape[-1], sizes, names))
            else:
                names.append(name.rpartition("/")[2])
        if len(set(names)) != len(names) and len(names) != len({*zip(names, shape, strict=True)}):
            raise UnsupportedError(f"it has the dimensions {names}, one of them twice; {REMEDY}")
        check_axes(len(shape), "it")
        if max(shape, default=0) >= MAX_AXIS_LENGTH:
            raise make_sidecar_error(f"an axis of {max(shape)} elements is too long")
        return tuple(names), tuple(shape)

    def _find_length(self, dim: Element, path: str) -> int:
        name = self._find_dimension(get_name(dim), path)
        size = dim.get("size", "")
        return parse_number(size, "a dimension") if name is None else self._sizes[name]

    def _find_dimension(self, name: str, path: str) -> str | None:
        """Return the path of a dimension, or None if it has no name."""
        return _resolve_declaration(self._sizes, name, path, "dimension") if name else None

    def _name_axis(self, size: int, sizes: dict[str, int], used_names: list[str]) -> str:
        """Return the name of an axis without dimension as in netCDF-C (nc4_rec_match_dimscales)."""
        for name, length in sizes.items():
            # netCDF-C treats dimensions of length 0 as unlimited
            if length == size > 0 and name not in used_names:
                return name
        name = f"phony_dim_{self._dimension_count}"
        self._dimension_count += 1
        sizes[name] = size
        return name

    def _check_name_and_sizes(
        self,
        name: str,
        variables: dict[str, ManifestVariable],
        sizes: dict[str, int],
        dim_sizes: dict[str, int],
    ) -> None:
        if not name or name in variables:
            raise make_sidecar_error(f"a variable has the name {name!r}, which is taken or empty")
        if conflicts := [dim for dim, size in dim_sizes.items() if sizes.get(dim, size) != size]:
            raise UnsupportedError(
                f"dimension {conflicts[0]!r} has {dim_sizes[conflicts[0]]} elements, where other "
                f"variables of the group have {sizes[conflicts[0]]} (one of another group has this "
                f"name); {REMEDY}"
            )

    def _read_variable(
        self,
        element: Element,
        path: str,
        dims: tuple[str, ...],
        shape: tuple[int, ...],
        problems: dict[str, VirtualdsError],
    ) -> ManifestVariable:
        name = get_name(element)
        attributes = self._read_attributes(element, name, path, problems)
        encoding: dict[str, Any] = {}
        try:
            dtype, decoded_dtype = self._find_type(element, path)
            stored = StoredVariable(
                element, dtype, shape, attributes.get("_FillValue"), self._files.find
            )
            data, encoding = read_values(stored)
        except VirtualdsError as error:
            self._record_problem(problems, name, path, error)
            return ManifestVariable(
                dims, ManifestArray.unreadable(shape, "V1", f"{error}"), attributes
            )
        if dtype.kind == "S" and isinstance(fill := attributes.get("_FillValue"), str):
            attributes["_FillValue"] = np.bytes_(fill.encode())
        if "least_significant_digit" in attributes:
            encoding["least_significant_digit"] = attributes.pop("least_significant_digit")
        if encoding.get("chunksizes"):
            preferred_chunks = dict(zip(dims, encoding["chunksizes"], strict=True))
            encoding["preferred_chunks"] = preferred_chunks
        if is_byte_order_unknown(element, dtype):
            self.variables_without_order.append(f"{path}/{name}".lstrip("/"))
        encoding |= {"dtype": decoded_dtype, "source": self._display_name, "original_shape": shape}
        return ManifestVariable(dims, data, attributes, encoding)

    def _find_type(self, variable: Element, path: str) -> tuple[np.dtype[Any], Any]:
        """Return the stored dtype of a variable, and the dtype in its xarray encoding."""
        type_name = variable.tag.removeprefix(DAP)
        if type_name == "Structure":
            dtype = self._build_structure(variable, path)
            return dtype, dtype
        if type_name != "Enum":
            dtype = _find_dtype(variable)
            return dtype, str if dtype.hasobject else dtype
        declared = _resolve_declaration(
            self._enumerations, variable.get("enum", ""), path, "enumeration"
        )
        enumeration = self._enumerations[declared]
        dtype = DTYPES.get(enumeration.get("basetype", ""), TEXT_DTYPE)
        if dtype.kind not in "iu":
            raise FormatError(f"its enumeration is not one of integers; {REMEDY}")
        try:
            members = {
                get_name(constant): int(np.array(int(constant.get("value", "")), dtype))
                for constant in enumeration.iterfind(f"{DAP}EnumConst")
            }
        except (OverflowError, ValueError) as error:
            raise make_sidecar_error(
                f"its enumeration has a value that is not a number of its type ({error})"
            ) from error
        metadata = {"enum": members, "enum_name": get_name(enumeration)}
        return dtype, np.dtype(dtype, metadata=metadata)

    def _build_structure(self, variable: Element, path: str) -> np.dtype[Any]:
        """Return the compound dtype of structures, with the offsets and itemsize in the sidecar."""
        chunks = variable.find(f"{DMRPP}chunks")
        listed = "" if chunks is None else chunks.get("structOffset", "")
        numbers = [parse_number(word, "structOffset") for word in listed.split()]
        members = [member for member in variable if member.tag.removeprefix(DAP) in MEMBER_ELEMENTS]
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
        ends = [start + member.itemsize for start, member in zip(offsets, formats, strict=False)]
        if any(end > start for end, start in zip(ends, numbers, strict=True)):
            raise make_sidecar_error(f"the members of its structures overlap ({listed})")
        names = [get_name(member) for member in members]
        return np.dtype(
            {"names": names, "formats": formats, "offsets": offsets[:-1], "itemsize": offsets[-1]}
        )

    def _read_attributes(
        self, owner: Element, variable: str, path: str, problems: dict[str, VirtualdsError]
    ) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for name, element in _iterate_attributes(owner, "" if variable else SERVER_CONTAINER):
            try:
                attributes[name] = _read_attribute(element)
            except VirtualdsError as error:
                # as in CDL: "variable:attribute", and ":attribute" of the group
                self._record_problem(problems, f"{variable}:{name}", path, error)
        return attributes


def _resolve_declaration(declared: Collection[str], name: str, path: str, kind: str) -> str:
    """Return the path of a declaration in a group or one of its parents (DAP4, section 3.3)."""
    parent = path
    while not name.startswith("/") and f"{parent}/{name}" not in declared and parent:
        parent = parent.rpartition("/")[0]
    full_name = name if name.startswith("/") else f"{parent}/{name}"
    if full_name not in declared:
        raise make_sidecar_error(f"its {kind} {name!r} is not declared")
    return full_name


def _find_dtype(variable: Element) -> np.dtype[Any]:
    """Return the dtype of a variable, in native byte order."""
    type_name = variable.tag.removeprefix(DAP)
    if type_name not in DTYPES:
        raise UnsupportedError(f"its values are of the type {type_name} of DAP4; {REMEDY}")
    fixed = variable.find(f"{DMRPP}FixedLengthStringArray")
    if fixed is None:
        return DTYPES[type_name]
    length = parse_number(fixed.get("string_length", ""), "string_length")
    if not 0 < length < 2**31:
        raise FormatError(f"its strings have {length} bytes; the sidecar is damaged")
    return np.dtype(f"S{length}")


# ---------------------------------------------------------------------- attributes


def _iterate_attributes(owner: Element, skipped_container: str) -> Iterator[tuple[str, Element]]:
    """Yield the attributes of a group or variable; names in containers contain dots."""
    for element in owner.iterfind(f"{DAP}Attribute"):
        name = get_name(element)
        if element.get("type") != "Container":
            if name not in RESERVED_ATTRIBUTES:
                yield name, element
        elif name != skipped_container:
            prefix = "" if skipped_container and name in GLOBAL_CONTAINERS else f"{name}."
            for inner, nested in _iterate_attributes(element, ""):
                yield f"{prefix}{inner}", nested


def _read_attribute(element: Element) -> Any:
    """Return the value of an attribute: a string, a list of strings, a number, or an array."""
    type_name = element.get("type", "")
    texts = [v.get("value", v.text or "") for v in element.iterfind(f"{DAP}Value")]
    if type_name == "OtherXML":
        return "".join(ET.tostring(child, "unicode") for child in element)
    if type_name not in DTYPES:
        raise UnsupportedError(f"the attribute has the type {type_name!r}; {REMEDY}")
    if DTYPES[type_name].hasobject:
        return texts[0] if len(texts) == 1 else texts or ""
    try:
        convert = float if DTYPES[type_name].kind == "f" else int
        values = np.array([convert(text) for text in texts], DTYPES[type_name])
    except (OverflowError, ValueError) as error:
        raise make_sidecar_error(f"the attribute is not of type {type_name} ({error})") from error
    return values[0] if values.size == 1 else values


# verification uses the native readers of the source files
PARSER = Parser("dmrpp", (SUFFIX,), detect, read, natives=HDF5.natives)
