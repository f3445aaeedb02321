"""DMR++ sidecars as OPeNDAP's ``build_dmrpp`` makes them, from what h5py and netCDF4 say of a file.

Nothing here is of virtualds: h5py tells where chunks lie, netCDF4 what is called how.
"""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import h5py
import netCDF4
import numpy as np

DAP = "http://xml.opendap.org/ns/DAP/4.0#"
DMRPP = "http://xml.opendap.org/dap/dmrpp/1.0.0#"
PADDINGS = {0: "null_term", 1: "null_pad", 2: "space_pad"}
LONG = 300
"""Bytes of a string from which on it is compressed."""
NAMES = {
    **{"i1": "Int8", "u1": "UInt8", "i2": "Int16", "u2": "UInt16", "i4": "Int32", "u4": "UInt32"},
    **{"i8": "Int64", "u8": "UInt64", "f4": "Float32", "f8": "Float64", "S1": "String"},
}
FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32"}
"""Names of the filters that ``build_dmrpp`` knows; it refuses files with others."""


def write_sidecar(path: Path, **attributes: str) -> Path:
    """Write the sidecar of a netCDF4 file beside it; ``attributes`` are those of its root."""
    found = Path(f"{path}.dmrpp")
    found.write_text(describe(path, **attributes), encoding="utf-8")
    return found


def describe(path: Path, **attributes: str) -> str:
    """The text of the sidecar of a netCDF4 file."""
    told = {"dmrpp:href": "OPeNDAP_DMRpp_DATA_ACCESS_URL", **attributes}
    listed = "".join(f" {name}={quoteattr(value)}" for name, value in told.items())
    with netCDF4.Dataset(path) as file, h5py.File(path) as stored:
        # netCDF4 decodes neither scales nor fill values
        inner = "\n".join(_group(file, stored))
    return document(inner, f" name={quoteattr(path.name)}{listed}")


def document(inner: str, attributes: str = "") -> str:
    """A sidecar around elements."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<Dataset xmlns="{DAP}" xmlns:dmrpp="{DMRPP}" dapVersion="4.0" dmrVersion="1.0"'
        f"{attributes}>\n{inner}\n</Dataset>\n"
    )


def _group(group: Any, stored: h5py.Group) -> Iterator[str]:
    for name, kind in group.enumtypes.items():
        yield f'<Enumeration name={quoteattr(name)} basetype="{NAMES[kind.dtype.str[1:]]}">'
        for member, value in kind.enum_dict.items():
            yield f'<EnumConst name={quoteattr(member)} value="{value}"/>'
        yield "</Enumeration>"
    for name, dim in group.dimensions.items():
        if not name.startswith("phony_dim_"):
            yield f'<Dimension name={quoteattr(name)} size="{len(dim)}"/>'
    for name, variable in group.variables.items():
        dataset = stored.get(f"_nc4_non_coord_{name}", stored.get(name))
        texts = variable.dtype is str
        kind, named = "String" if texts else NAMES.get(variable.dtype.str[1:], "Structure"), ""
        if isinstance(variable.datatype, netCDF4.EnumType):
            kind, named = "Enum", f" enum={quoteattr(variable.datatype.name)}"
        yield f"<{kind} name={quoteattr(name)}{named}>"
        for member, (dtype, _) in (dataset.dtype.fields or {}).items():
            yield f"<{NAMES[dtype.str[1:]]} name={quoteattr(member)}/>"
        yield from (_dim(dim, n) for dim, n in zip(variable.get_dims(), dataset.shape, strict=True))
        yield from _attributes(variable)
        varying = texts and dataset.dtype.kind == "O"
        yield from _texts(variable) if varying else _storage(dataset)
        yield f"</{kind}>"
    yield from _attributes(group)
    for name, child in group.groups.items():
        yield f"<Group name={quoteattr(name)}>"
        yield from _group(child, stored[name])
        yield "</Group>"


def _dim(dim: Any, size: int) -> str:
    if dim.name.startswith("phony_dim_"):
        return f'<Dim size="{size}"/>'
    path = f"{dim.group().path.rstrip('/')}/{dim.name}"
    return f"<Dim name={quoteattr(path)}/>"


def _attributes(owner: Any) -> Iterator[str]:
    for name in owner.ncattrs():
        value = owner.getncattr(name)
        values = value if isinstance(value, list) else np.atleast_1d(value)
        texts = isinstance(values, list) or values.dtype.kind in "USO"
        kind = "String" if texts else NAMES[values.dtype.str[1:]]
        digits = {"Float32": ".10g", "Float64": ".17g"}.get(kind, "")
        yield f'<Attribute name={quoteattr(name)} type="{kind}">'
        yield from (f"<Value>{escape(format(one, digits))}</Value>" for one in values)
        yield "</Attribute>"


def _storage(dataset: h5py.Dataset) -> Iterator[str]:
    plist = dataset.id.get_create_plist()
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"{dataset.name}: build_dmrpp refuses values that lie in other files")
    if plist.get_layout() == h5py.h5d.COMPACT:
        data = np.asarray(dataset[()]).astype(dataset.dtype.newbyteorder("<")).tobytes()
        yield f"<dmrpp:compact>{base64.b64encode(data).decode()}</dmrpp:compact>"
        return
    if dataset.dtype.kind == "S":
        size = dataset.dtype.itemsize
        pad = PADDINGS[dataset.id.get_type().get_strpad()]
        yield f'<dmrpp:FixedLengthStringArray string_length="{size}" pad="{pad}"/>'
    filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    names = [FILTERS.get(number, name.decode()) for number, _, _, name in filters]
    levels = [str(values[0]) for number, _, values, _ in filters if number == 1]
    told = {
        "compressionType": " ".join(names),
        "deflateLevel": " ".join(levels),
        "fillValue": _fill(dataset),
        "byteOrder": "BE" if dataset.dtype.newbyteorder(">") == dataset.dtype else "LE",
    }
    if dataset.dtype.fields:
        _, *offsets = (offset for _, offset in dataset.dtype.fields.values())
        told["structOffset"] = " ".join(map(str, [*offsets, dataset.dtype.itemsize]))
    yield "<dmrpp:chunks{}>".format("".join(f" {k}={quoteattr(v)}" for k, v in told.items() if v))
    yield from _chunks(dataset)
    yield "</dmrpp:chunks>"


def _fill(dataset: h5py.Dataset) -> str:
    """The fill value as a C++ stream prints it, to six digits."""
    fill = dataset.fillvalue
    if dataset.dtype.kind == "f":
        return f"{float(fill):.6g}"
    if dataset.dtype.fields:
        return " ".join(str(int(one)) for one in fill)
    return fill.decode("latin-1").strip("\0") if isinstance(fill, bytes) else str(int(fill))


def _texts(variable: Any) -> Iterator[str]:
    values = [str(one) for one in np.atleast_1d(variable[...]).ravel()]
    if not variable.ndim:
        yield f"<dmrpp:compact>{base64.b64encode(values[0].encode()).decode()}</dmrpp:compact>"
        return
    yield "<dmrpp:vlsa>"
    for value, equal in itertools.groupby(values):
        count = len(list(equal))
        repeated = f' c="{count}"' if count > 1 else ""
        if len(value.encode()) > LONG:
            packed = base64.b64encode(zlib.compress(value.encode())).decode()
            yield f'<v s="{len(value.encode())}"{repeated}>{packed}</v>'
        else:
            yield f"<v{repeated}>{escape(value)}</v>"
    yield "</dmrpp:vlsa>"


def _chunks(dataset: h5py.Dataset) -> Iterator[str]:
    if dataset.chunks is None:
        if (offset := dataset.id.get_offset()) is not None:
            yield f'<dmrpp:chunk offset="{offset}" nBytes="{dataset.id.get_storage_size()}"/>'
        return
    yield f"<dmrpp:chunkDimensionSizes>{' '.join(map(str, dataset.chunks))}"
    yield "</dmrpp:chunkDimensionSizes>"
    for number in range(dataset.id.get_num_chunks()):
        chunk = dataset.id.get_chunk_info(number)
        mask = f' fm="{chunk.filter_mask}"' if chunk.filter_mask else ""
        place = ",".join(map(str, chunk.chunk_offset))
        yield (
            f'<dmrpp:chunk offset="{chunk.byte_offset}" nBytes="{chunk.size}" '
            f'chunkPositionInArray="[{place}]"{mask}/>'
        )
