"""Open archives of scientific files as one xarray dataset, without copying data.

>>> import virtualds
>>> vds = virtualds.open_virtual_mfdataset("data/*.nc")  # doctest: +SKIP
>>> vds.virtual.to_manifest("refs.json")  # doctest: +SKIP
"""

from virtualds.accessors.dataset import VirtualDatasetAccessor as _accessor
from virtualds.accessors.tree import VirtualDataTreeAccessor as _tree_accessor
from virtualds.arrays.array import ManifestArray
from virtualds.arrays.comparison import Comparison as _comparison
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.arrays.indexing import getitem as _getitem
from virtualds.arrays.numpy_functions import implements as _implements
from virtualds.arrays.parser import Parser
from virtualds.checks.diagnose import diagnose
from virtualds.checks.diagnose.findings import Difference, Era
from virtualds.checks.diagnose.report import Diagnosis
from virtualds.checks.verify.report import Verification
from virtualds.chunks.axis import ChunkAxis
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.combine import open_virtual_mfdataset, open_virtual_mfdatatree
from virtualds.combine.file_coordinates import FromAttribute, FromName
from virtualds.combine.progress import BuildReport, Progress
from virtualds.datasets.convert import convert
from virtualds.datasets.drop_sources import drop_sources
from virtualds.datasets.edit import edit
from virtualds.datasets.open import open_virtual_dataset, open_virtual_datatree
from virtualds.datasets.open_flat import open_flat
from virtualds.datasets.snapshots import expire_snapshots, snapshots
from virtualds.datasets.template import template
from virtualds.datasets.upgrade import upgrade
from virtualds.datasets.upkeep import clean_up, compact, rename_paths
from virtualds.datasets.zarr_store import zarr_store
from virtualds.errors import (
    AccessError,
    CombineError,
    ConflictError,
    FormatError,
    ReadError,
    UnsupportedError,
    VirtualdsError,
)
from virtualds.formats.upkeep import Removal
from virtualds.options import set_options
from virtualds.source_file import SourceFile
from virtualds.stores.open_source import open_source
from virtualds.syncing import sync
from virtualds.syncing.report import SyncReport

# importing these registers ``ds.virtual``, ``tree.virtual`` and the numpy functions of virtual
# arrays
del _accessor, _comparison, _getitem, _implements, _tree_accessor

__all__ = [
    "AccessError",
    "BuildReport",
    "ChunkAxis",
    "ChunkManifest",
    "CodecPipeline",
    "CombineError",
    "ConflictError",
    "Diagnosis",
    "Difference",
    "Era",
    "FormatError",
    "Fragment",
    "FromAttribute",
    "FromName",
    "ManifestArray",
    "ManifestGroup",
    "ManifestVariable",
    "Parser",
    "Progress",
    "ReadError",
    "Removal",
    "SourceFile",
    "SyncReport",
    "UnsupportedError",
    "Verification",
    "VirtualdsError",
    "clean_up",
    "compact",
    "convert",
    "diagnose",
    "drop_sources",
    "edit",
    "expire_snapshots",
    "open_flat",
    "open_source",
    "open_virtual_dataset",
    "open_virtual_datatree",
    "open_virtual_mfdataset",
    "open_virtual_mfdatatree",
    "rename_paths",
    "set_options",
    "snapshots",
    "sync",
    "template",
    "upgrade",
    "zarr_store",
]

# pickles, reprs and error messages name public classes by the package
for _public in __all__:
    if isinstance(_class := globals()[_public], type):
        _class.__module__ = __name__
del _public, _class
