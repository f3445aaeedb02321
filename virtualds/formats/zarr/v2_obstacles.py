"""Why Zarr v2, and so kerchunk, cannot describe an array."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from virtualds.arrays.array import ManifestArray
from virtualds.chunks.alignment import find_regular_chunks
from virtualds.chunks.columns import INLINE
from virtualds.chunks.fragment import Fragment
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.formats.zarr.v2_types import can_be_spelled


def unsupported_reasons(array: ManifestArray, dims: Sequence[Hashable] = ()) -> list[str]:
    """Return why Zarr v2 metadata cannot describe an array; empty if they can.

    Reasons name the axes by ``dims``, if given.
    """
    found = []
    if len(array.pipelines) > 1:
        found.append(_describe_pipelines(array))
    for pipeline in array.pipelines:
        if pipeline.packing is not None:
            found.append(_describe_packing(array))
        elif pipeline.dtype.char in "gG":
            found.append(f"its type {pipeline.dtype} has another form on every machine")
        elif not can_be_spelled(pipeline.dtype):
            found.append(f"its compound type {pipeline.dtype} has bytes between its members")
        elif memory_order(pipeline, array.ndim) is None:
            found.append(
                f"its stored axes are permuted or partly selected (layout {pipeline.layout})"
            )
        elif pipeline.dtype.newbyteorder("=") != array.dtype.newbyteorder("="):
            found.append(f"its values are converted from {pipeline.dtype} to {array.dtype}")
    if not found and find_common_grid(array) is None:
        found.append(describe_grids(array, dims))
    return list(dict.fromkeys(found))


def build_fill_pipeline(array: ManifestArray) -> CodecPipeline:
    """Return the pipeline of an array without fragments, which reads as its fill value."""
    fill = np.asarray(array.fill_value, array.dtype).tobytes()
    return CodecPipeline(array.dtype, fill=fill, layout=tuple(range(array.ndim)))


def memory_order(pipeline: CodecPipeline, ndim: int) -> str | None:
    """Return the memory order of a layout, "C" or "F", or None if it is neither."""
    shown = [entry for entry in pipeline.layout if isinstance(entry, int)]
    if len(shown) != len(pipeline.layout):
        return None
    if shown == sorted(shown):
        return "C"
    return "F" if shown == list(range(ndim))[::-1] else None


def find_common_grid(array: ManifestArray) -> tuple[int, ...] | None:
    """Return the chunk shape if all fragments lie on one regular grid, else None."""
    return find_regular_chunks(array.shape, array.fragments) if array.gaps_read_as_missing else None


def _describe_packing(array: ManifestArray) -> str:
    """Say why attributes cannot express the packing of an array."""
    if len({p.packing for p in array.pipelines}) > 1:
        return "its CF packing differs between files"
    if array.has_gaps:
        return f"its gaps are {array.fill_value!r}, for which its CF packing has no number"
    return f"its values were converted to {array.dtype} after they were unpacked"


def _describe_pipelines(array: ManifestArray) -> str:
    first = {
        number: _find_first_file(array, number) for number in range(min(2, len(array.pipelines)))
    }
    a, b = array.pipelines[:2]
    names = _list_differing(a, b)
    verb = "change" if len(names) > 1 or names[0].endswith("s") else "changes"
    return (
        f"its chunks use {len(array.pipelines)} encodings "
        f"({', '.join(names)} {verb} at {first[1]}, unlike {first[0]})"
    )


def _list_differing(a: CodecPipeline, b: CodecPipeline) -> list[str]:
    """Return the parts in which two pipelines differ; of CF packing, the attributes."""
    parts = ("dtype", "codecs", "fill", "layout")
    found = [name for name in parts if getattr(a, name) != getattr(b, name)]
    if a.packing == b.packing:
        return found
    ours, theirs = ({} if p.packing is None else p.packing.attributes for p in (a, b))
    names = [n for n in {**ours, **theirs} if repr(ours.get(n)) != repr(theirs.get(n))]
    return found + (names or ["CF packing"])


def _find_first_file(array: ManifestArray, pipeline: int) -> str:
    """Return the file of the first chunk that uses a pipeline."""
    is_inline = False
    for fragment in array.fragments:
        manifest = fragment.manifest.loaded()
        found = manifest.file[manifest.pipeline == pipeline]
        if (in_files := found[found >= 0]).size:
            return manifest.files[int(in_files[0])].url
        is_inline |= bool((found == INLINE).any())
    return "an inline chunk" if is_inline else "a missing chunk"


def describe_grids(array: ManifestArray, dims: Sequence[Hashable] = ()) -> str:
    """Say why the chunks of an array form no regular grid."""
    for axis in range(array.ndim):
        for fragment in array.fragments:
            if fragment.axes[axis].chunk is None:
                slabs = fragment.axes[axis].slabs()
                lengths = ", ".join(map(str, slabs.encoded[:8].tolist()))
                odd = int(np.argmax(slabs.encoded != slabs.encoded[0])) or 1
                first, other = (_find_file_of_slab(fragment, axis, i) for i in (0, odd))
                along = repr(dims[axis]) if dims else f"axis {axis}"
                return (
                    f"chunk lengths along {along} vary ({lengths}, ...; {first} and {other} "
                    f"differ first)"
                )
    files = [_find_file_of_slab(f, 0, 0) for f in array.fragments[:2] if array.ndim]
    where = f" ({' and '.join(files)} differ first)" if len(files) == 2 else ""
    return (
        f"its {len(array.fragments)} fragments do not lie on one regular chunk grid without gaps"
        f"{where}"
    )


def _find_file_of_slab(fragment: Fragment, axis: int, slab: int) -> str:
    """Return the first file with chunks of one slab."""
    manifest = fragment.manifest.take(axis, slice(slab, slab + 1)).loaded()
    found = manifest.file[manifest.file >= 0]
    return manifest.files[int(found[0])].url if found.size else "missing chunks"
