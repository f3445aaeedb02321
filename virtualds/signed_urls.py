"""Urls that let in whoever has them are no part of a reference set, which is given away."""

from __future__ import annotations

from collections.abc import Iterator

from virtualds.errors import UnsupportedError, without_secrets
from virtualds.group import ManifestGroup
from virtualds.manifest import SourceFile


def demand_unsigned(group: ManifestGroup, target: str) -> None:
    """Refuse references to urls with a signature or a token in their query.

    Raises
    ------
    UnsupportedError
        There are some; the message leaves the secret out.
    """
    found = next(
        (file.url for file in _files(group) if without_secrets(file.url) != file.url), None
    )
    if found is not None:
        raise UnsupportedError(
            f"{target}: {without_secrets(found)} has a signature or token in its query, which "
            f"everybody could use who reads the set; open the source by its plain url with "
            f"storage_options, rename_paths to plain urls, or pass keep_query=True to write it "
            f"all the same"
        )


def _files(group: ManifestGroup) -> Iterator[SourceFile]:
    """Yield the files that a group and all below it refer to, lists of sets included."""
    for _, part in group.walk():
        for variable in part.variables.values():
            for fragment in getattr(variable.data, "fragments", ()):
                yield from fragment.manifest.listed
