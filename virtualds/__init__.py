"""Open archives of scientific files as one xarray dataset, without copying data.

>>> import virtualds
>>> vds = virtualds.open_virtual_mfdataset("data/*.nc")  # doctest: +SKIP
>>> vds.virtual.to_manifest("refs.json")  # doctest: +SKIP

Importing the package registers the accessors ``ds.virtual`` and ``tree.virtual``. Public names and
modules such as ``virtualds.stores`` are imported at their first use (PEP 562). The imports under
``TYPE_CHECKING`` are for editors and type checkers.
"""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from virtualds.accessors import virtual as _virtual
from virtualds.importing import importing as _importing

if TYPE_CHECKING:
    __version__: str
    # isort: off
    from virtualds.arrays.array import ManifestArray as ManifestArray
    from virtualds.arrays.group import (
        ManifestGroup as ManifestGroup,
        ManifestVariable as ManifestVariable,
    )
    from virtualds.arrays.parser import Parser as Parser
    from virtualds.backend import VirtualBackendEntrypoint as VirtualBackendEntrypoint
    from virtualds.checks.catalog import Catalog as Catalog, catalog as catalog
    from virtualds.checks.catalog.entries import CatalogEntry as CatalogEntry
    from virtualds.checks.diagnose import diagnose as diagnose
    from virtualds.checks.diagnose.report import Diagnosis as Diagnosis
    from virtualds.checks.diagnose.report import Difference as Difference
    from virtualds.checks.diagnose.report import Era as Era
    from virtualds.checks.verify.report import Verification as Verification
    from virtualds.chunks.axes import ChunkAxis as ChunkAxis
    from virtualds.chunks.fragment import Fragment as Fragment
    from virtualds.chunks.manifest import ChunkManifest as ChunkManifest
    from virtualds.codecs.pipeline import CodecPipeline as CodecPipeline
    from virtualds.combine import (
        open_virtual_mfdataset as open_virtual_mfdataset,
        open_virtual_mfdatatree as open_virtual_mfdatatree,
    )
    from virtualds.combine.file_coordinates import (
        FromAttribute as FromAttribute,
        FromName as FromName,
    )
    from virtualds.combine.report import BuildReport as BuildReport
    from virtualds.writing.materialize import convert as convert
    from virtualds.writing.edit import (
        clean_up as clean_up,
        compact as compact,
        drop_sources as drop_sources,
        edit as edit,
        expire_snapshots as expire_snapshots,
        rename_paths as rename_paths,
        snapshots as snapshots,
    )
    from virtualds.writing.set_change import SetChange as SetChange
    from virtualds.datasets.open import (
        open_virtual_dataset as open_virtual_dataset,
        open_virtual_datatree as open_virtual_datatree,
    )
    from virtualds.datasets.open import open_flat as open_flat
    from virtualds.writing.write_modes import template as template
    from virtualds.datasets.zarr_store import zarr_store as zarr_store
    from virtualds.errors import (
        AccessError as AccessError,
        AccessWarning as AccessWarning,
        CombineError as CombineError,
        CombineWarning as CombineWarning,
        ConflictError as ConflictError,
        CopyWarning as CopyWarning,
        FormatError as FormatError,
        ReadError as ReadError,
        UnsupportedError as UnsupportedError,
        VirtualdsError as VirtualdsError,
    )
    from virtualds.formats import Removal as Removal
    from virtualds.options import set_options as set_options
    from virtualds.progress import Progress as Progress
    from virtualds.source_file import SourceFile as SourceFile
    from virtualds.stores.scan_cache import open_source as open_source
    from virtualds.syncing import sync as sync
    from virtualds.syncing import SyncReport as SyncReport

_MODULES = {
    "AccessError": "errors",
    "AccessWarning": "errors",
    "BuildReport": "combine.report",
    "Catalog": "checks.catalog",
    "CatalogEntry": "checks.catalog.entries",
    "ChunkAxis": "chunks.axes",
    "ChunkManifest": "chunks.manifest",
    "CodecPipeline": "codecs.pipeline",
    "CombineError": "errors",
    "CombineWarning": "errors",
    "ConflictError": "errors",
    "CopyWarning": "errors",
    "Diagnosis": "checks.diagnose.report",
    "Difference": "checks.diagnose.report",
    "Era": "checks.diagnose.report",
    "FormatError": "errors",
    "Fragment": "chunks.fragment",
    "FromAttribute": "combine.file_coordinates",
    "FromName": "combine.file_coordinates",
    "ManifestArray": "arrays.array",
    "ManifestGroup": "arrays.group",
    "ManifestVariable": "arrays.group",
    "Parser": "arrays.parser",
    "Progress": "progress",
    "ReadError": "errors",
    "Removal": "formats",
    "SetChange": "writing.set_change",
    "SourceFile": "source_file",
    "SyncReport": "syncing",
    "UnsupportedError": "errors",
    "Verification": "checks.verify.report",
    "VirtualBackendEntrypoint": "backend",
    "VirtualdsError": "errors",
    "catalog": "checks.catalog",
    "clean_up": "writing.edit",
    "compact": "writing.edit",
    "convert": "writing.materialize",
    "diagnose": "checks.diagnose",
    "drop_sources": "writing.edit",
    "edit": "writing.edit",
    "expire_snapshots": "writing.edit",
    "open_flat": "datasets.open",
    "open_source": "stores.scan_cache",
    "open_virtual_dataset": "datasets.open",
    "open_virtual_datatree": "datasets.open",
    "open_virtual_mfdataset": "combine",
    "open_virtual_mfdatatree": "combine",
    "rename_paths": "writing.edit",
    "set_options": "options",
    "snapshots": "writing.edit",
    "sync": "syncing",
    "template": "writing.write_modes",
    "zarr_store": "datasets.zarr_store",
}
"""The module of each public name."""

__all__ = list(_MODULES)

# imported to register the accessors, and to let ``ds.load()`` load virtual arrays
del _virtual

if not TYPE_CHECKING:  # otherwise a type checker would assume that every name exists

    def __getattr__(name: str) -> Any:
        """Return a public object, a module of this package, or the version."""
        with _importing:
            value = globals()[name] = _import_name(name)
        return value


def _import_name(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    if name == "__version__":
        return version(__name__)
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, whether they are imported yet or not."""
    return [*__all__, *{"__version__", *(name for name in globals() if name.startswith("__"))}]
