"""Archives of scientific files as one dataset, without copying a byte.

>>> import virtualds
>>> vds = virtualds.open_virtual_mfdataset("data/*.nc")  # doctest: +SKIP
>>> vds.virtual.to_manifest("refs.json")  # doctest: +SKIP
"""

from virtualds.accessor import VirtualDatasetAccessor as _accessor
from virtualds.api import open_virtual_dataset
from virtualds.array import ManifestArray
from virtualds.combine import open_virtual_mfdataset
from virtualds.comparison import Comparison as _comparison
from virtualds.errors import (
    AccessError,
    CombineError,
    ConflictError,
    FormatError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
)
from virtualds.fragment import CodecPipeline, Fragment
from virtualds.grid import ChunkAxis
from virtualds.group import ManifestGroup, ManifestVariable
from virtualds.headers import open_source
from virtualds.indexing import getitem as _getitem
from virtualds.manifest import ChunkManifest, SourceFile
from virtualds.numpy_functions import implements as _implements
from virtualds.options import set_options
from virtualds.parsers import Parser
from virtualds.writing import convert, drop_sources, expire_snapshots, snapshots
from virtualds.zarr_python import zarr_store

# importing these registers ``ds.virtual`` and what numpy's functions do with virtual arrays
del _accessor, _comparison, _getitem, _implements

__all__ = [
    "AccessError",
    "ChunkAxis",
    "ChunkManifest",
    "CodecPipeline",
    "CombineError",
    "ConflictError",
    "FormatError",
    "Fragment",
    "ManifestArray",
    "ManifestGroup",
    "ManifestVariable",
    "Parser",
    "ReadError",
    "SourceFile",
    "UnsupportedError",
    "VirtualdsError",
    "convert",
    "drop_sources",
    "expire_snapshots",
    "open_source",
    "open_virtual_dataset",
    "open_virtual_mfdataset",
    "set_options",
    "snapshots",
    "zarr_store",
]
