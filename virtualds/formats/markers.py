"""Files and folders by which a folder is known as a reference set, or as a Zarr store."""

from virtualds.formats.zarr.document import MARKER

ZARR_JSON = MARKER
"""The file that makes a folder a Zarr v3 store, and a set of the format zarr-v3."""
ZMETADATA, ZGROUP, ZARRAY = ".zmetadata", ".zgroup", ".zarray"
"""Those that make it a Zarr v2 store; the first makes it a set of the format kerchunk-parquet."""
STORE_MARKERS = (ZARR_JSON, ZMETADATA, ZGROUP, ZARRAY)
"""Files that make a folder a Zarr store, in the order of search."""
ICECHUNK_MARKERS = ("repo", "refs/branch.main/ref.json")
"""Files that make a folder a repository of Icechunk, of version 2 and of version 1."""
ICECHUNK_FOLDERS = ("snapshots", "transactions", "chunks", "manifests")
"""The folders of a repository (Icechunk specification, "File layout")."""
