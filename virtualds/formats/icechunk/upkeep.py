"""Keep an Icechunk repository in order, as far as its library can."""

from __future__ import annotations

from virtualds.arrays.group import ManifestGroup
from virtualds.arrays.sources import move_group
from virtualds.formats.icechunk.locations import find_storage
from virtualds.formats.icechunk.references import import_adapter
from virtualds.formats.icechunk.target import MAIN
from virtualds.formats.icechunk.write import update
from virtualds.formats.icechunk.writers import exclude_other_writers
from virtualds.formats.upkeep import CheckMoved, MoveFile
from virtualds.source_file import SourceFile, StorageOptions


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


def move_sources(
    url: str, options: StorageOptions | None, move: MoveFile, check: CheckMoved
) -> None:
    """Commit references to moved files to the branch ``main``: Icechunk has one for each chunk.

    Raises
    ------
    FileNotFoundError
        There is no repository.
    ConflictError
        Another writer was faster; nothing has changed.
    """
    moved: dict[SourceFile, None] = {}

    def follow(file: SourceFile) -> SourceFile:
        found = move(file)
        if found.url != file.url:
            moved[found] = None
        return found

    def change(group: ManifestGroup) -> ManifestGroup:
        after = move_group(group, follow)
        check(list(moved))
        return after

    update(url, change, options, message="Sources moved by virtualds")
