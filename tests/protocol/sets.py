"""Tiny reference sets for the checker: what a set holds is a list of numbers.

Every number is a reference, and a value in memory: a set in which they differ is a mixture of two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import INLINE, MISSING
from virtualds.chunks.manifest import ChunkManifest
from virtualds.datasets.location import FORMATS
from virtualds.errors import FormatError
from virtualds.formats import Format, ReadOptions
from virtualds.source_file import SourceFile
from virtualds.stores import find_store

Numbers = tuple[int, ...]
"""What a set holds."""
ABSENT = "no set"
"""What a reader finds where there is none."""

SOURCE = "s3://bucket/numbers.bin"


def find_format(name: str) -> Format:
    """Return a format by its name."""
    return next(form for form in FORMATS if form.name == name)


def make_group(numbers: Numbers) -> ManifestGroup:
    """Return the group that holds numbers."""
    array = _refer(numbers)
    values = np.array(numbers, "<i4")
    return ManifestGroup(
        {"r": ManifestVariable(("t",), array), "v": ManifestVariable(("t",), values)}
    )


def _refer(numbers: Numbers) -> ManifestArray:
    offsets = np.array(numbers) * 4
    return ManifestArray.from_arrays(
        shape=offsets.shape, chunks=(1,), dtype="<i4", path=SOURCE, offsets=offsets, lengths=4
    )


def add_number(number: int) -> Callable[[ManifestGroup], ManifestGroup]:
    """Return the change that appends a number."""

    def change(group: ManifestGroup) -> ManifestGroup:
        old = group.variables["r"], group.variables["v"]
        before = np.frombuffer(b"".join(_read_chunks(old[1].data)), "<i4")[: old[1].data.shape[0]]
        array = np.concatenate([old[0].data, _refer((number,))])
        values = np.array([*before, number], "<i4")
        return ManifestGroup(
            {"r": ManifestVariable(("t",), array), "v": ManifestVariable(("t",), values)},
            group.attributes,
        )

    return change


def read_numbers(form: Format, url: str, snapshot: str | None = None) -> Numbers | str:
    """Return what a set holds, `ABSENT` if there is none.

    Raises
    ------
    FormatError
        It is a mixture of two sets.
    """
    try:
        group = form.read(SourceFile(url), ReadOptions(snapshot=snapshot))
    except FileNotFoundError:
        return ABSENT
    references, values = group.variables["r"].data, group.variables["v"].data
    manifests = _list_manifests(references)
    found = tuple(n // 4 for manifest in manifests for n in manifest.offset.ravel().tolist())
    gaps = any((manifest.file == MISSING).any() for manifest in manifests)
    if len(found) != references.shape[0] or gaps:
        raise FormatError(f"{url}: {references.shape[0]} elements, and references to {found}")
    held = np.frombuffer(b"".join(_read_chunks(values)), "<i4")[: values.shape[0]]
    if tuple(held.tolist()) != found:
        raise FormatError(f"{url}: a mixture, of references to {found} and of values {held}")
    return found


def read_history(form: Format, url: str) -> None:
    """Read all snapshots of a set, if it has any."""
    if form.history is not None:
        try:
            known = form.history(url, None)
        except FileNotFoundError:
            return
        for name, _ in known:
            read_numbers(form, url, name)


def _list_manifests(array: Any) -> list[ChunkManifest]:
    """Return the manifests of the parts of an array, in order."""
    parts = sorted(array.fragments, key=lambda fragment: fragment.start)
    return [fragment.manifest.loaded() for fragment in parts]


def _read_chunks(array: Any) -> list[bytes]:
    """Return the bytes of the chunks of an array of values."""
    found = []
    for manifest in _list_manifests(array):
        columns = (manifest.file, manifest.offset, manifest.length)
        for file, offset, length in zip(
            *(column.ravel().tolist() for column in columns), strict=True
        ):
            if file == INLINE:
                found.append(manifest.inline[offset])
            else:
                source = manifest.files[file]
                read = find_store(source.url).get_ranges(source, [(offset, length)])
                found.append(bytes(read[0]))
    return found
