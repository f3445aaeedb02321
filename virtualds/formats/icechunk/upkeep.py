"""Keep an Icechunk repository in order, as far as its library can."""

from __future__ import annotations

from virtualds.formats.icechunk.locations import find_storage
from virtualds.formats.icechunk.references import import_adapter
from virtualds.formats.icechunk.target import MAIN
from virtualds.formats.icechunk.writers import exclude_other_writers
from virtualds.source_file import StorageOptions


def rewrite_manifests(url: str, options: StorageOptions | None = None) -> bool:
    """Have Icechunk write the manifests of the branch ``main`` anew, as its configuration says.

    Raises
    ------
    FileNotFoundError
        There is no repository.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    root = url.rstrip("/")
    place = find_storage(root, options)
    with exclude_other_writers(place, root, options):
        repository = import_adapter().open_repository(place, root)
        import_adapter().rewrite_manifests(repository, MAIN, root)
    return True
