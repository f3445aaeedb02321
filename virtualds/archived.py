"""References into files in archives, as references into the archives themselves.

Whoever reads them needs to know nothing of archives: a member that is stored as it is, is a range.
"""

from __future__ import annotations

from dataclasses import replace
from operator import is_

import numpy as np
import numpy.typing as npt

from virtualds.array import ManifestArray
from virtualds.chunks.fragment import Fragment
from virtualds.chunks.lazy_manifest import LazyManifest
from virtualds.chunks.manifest import ChunkManifest
from virtualds.chunks.projection import compact
from virtualds.group import ManifestGroup, ManifestVariable
from virtualds.stores import checksums_in_archives, is_in_archive, outside_archives

READ_WHOLE = 2**23
"""Bytes of an uncompressed chunk up to which it is read whole to be checked: a far request's."""


def in_plain_files(group: ManifestGroup) -> ManifestGroup:
    """Return a group of which no reference leads into a file in an archive.

    Raises
    ------
    StoreError
        An archive cannot be read, or has changed.
    """
    variables = {name: _variable(v) for name, v in group.variables.items()}
    groups = {name: in_plain_files(child) for name, child in group.groups.items()}
    before = [*group.variables.values(), *group.groups.values()]
    if all(map(is_, before, [*variables.values(), *groups.values()])):
        return group
    return replace(group, variables=variables, groups=groups)


def _variable(variable: ManifestVariable) -> ManifestVariable:
    data = variable.data
    if not isinstance(data, ManifestArray):
        return variable
    codecs = all(pipeline.codecs for pipeline in data.pipelines)
    fragments = tuple(_fragment(fragment, codecs) for fragment in data.fragments)
    if all(new is old for new, old in zip(fragments, data.fragments, strict=True)):
        return variable
    return replace(variable, data=replace(data, fragments=fragments))


def _fragment(fragment: Fragment, codecs: bool) -> Fragment:
    manifest = fragment.manifest
    if manifest.is_in_set or not any(map(is_in_archive, manifest.files)):
        return fragment
    moved = manifest.relocated(outside_archives(manifest.files))
    if not isinstance(manifest, LazyManifest):
        moved = moved.checked(_checksums(manifest, codecs))
    return replace(fragment, manifest=moved)


def _checksums(manifest: ChunkManifest, codecs: bool) -> npt.NDArray[np.uint64]:
    """Return the checksums of chunks that are all of a file in an archive, 0 for others.

    A chunk that has one is read whole. So is any with codecs; without them, only small ones are.
    """
    # the codes of what lies in no file count from the end
    known = np.array([*checksums_in_archives(manifest.files), 0, 0], np.uint64)
    sizes = np.array([*(file.size or 0 for file in manifest.files), 0, 0], np.int64)
    file, offset, length = (compact(getattr(manifest, n)) for n in ("file", "offset", "length"))
    whole = (offset == 0) & (length == sizes[file]) & (codecs | (length <= READ_WHOLE))
    return np.where(whole, known[file], np.uint64(0))
