"""The text and HTML views of virtual arrays, made from references without reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from virtualds.arrays.chunk_picture import draw_chunks
from virtualds.arrays.survey import Survey, count_files, find_used_files, survey
from virtualds.codecs.encoding_words import name_pipelines
from virtualds.errors import without_secrets
from virtualds.pictures.html import Markup, cell, element, section, table
from virtualds.quantities import format_bytes, format_count

if TYPE_CHECKING:
    from virtualds.arrays.array import ManifestArray

SHOWN_FILES = 10
"""Most files that an array names."""
SHOWN_ENCODINGS = 3
"""Most encodings of several arrays that are named."""


def format_summary(array: ManifestArray) -> str:
    """Return the numbers of chunks, files and fragments of a virtual array as text."""
    files, chunks = count_files([array]), array.nchunks
    parts = f" in {len(array.fragments)} fragments" if len(array.fragments) > 1 else ""
    of = f" of {format_count(files, 'file')}" if files else ""
    return f"{format_count(chunks, 'chunk')}{of}{parts}"


def format_page(array: ManifestArray) -> str:
    """Return what a notebook shows for a virtual array."""
    found = survey(array)
    return cell(describe_arrays([array], found), list_files([array], SHOWN_FILES))


def describe_arrays(
    arrays: Sequence[ManifestArray], found: Survey, dims: Sequence[str] | None = None
) -> Markup:
    """Return a table beside a picture of arrays that are cut into chunks alike.

    Parameters
    ----------
    arrays : sequence of ManifestArray
    found : Survey
        The numbers of all of them.
    dims : sequence of str, optional
        Names of their axes.
    """
    return element(
        "div", _describe_in_table(arrays, found), draw_chunks(arrays[0], dims), class_="vds-side"
    )


def _describe_in_table(arrays: Sequence[ManifestArray], found: Survey) -> Markup:
    """Return what users of dask know: bytes and shapes of arrays and of chunks."""
    array, count = arrays[0], found.chunks - found.missing - found.unread
    shape = list_chunk_lengths(array)
    rows: list[tuple[str, object, object]] = [
        ("Shape", _format_shape(array.shape), f"({', '.join(shape)}{',' * (len(shape) == 1)})"),
        ("Values", format_bytes(sum(a.nbytes for a in arrays)), _share(found.decoded, count)),
        ("Stored", format_stored(found), _share(found.stored, count)),
    ]
    head = element("tr", element("td"), element("th", "Array"), element("th", "Chunk"))
    pairs = (
        element("tr", element("th", name, scope="row"), element("td", whole), element("td", part))
        for name, whole, part in rows
    )
    wide = {
        "Chunks": _format_chunks(arrays, found),
        "Data type": ", ".join(dict.fromkeys(str(a.dtype) for a in arrays)),
        "Encoding": _format_encodings(arrays),
        "References": f"{format_bytes(sum(a.nbytes_virtual for a in arrays))} of memory",
    }
    lines = (
        element("tr", element("th", name, scope="row"), element("td", value, colspan=2))
        for name, value in wide.items()
    )
    return element("table", element("tbody", head, *pairs, *lines), class_="vds-facts")


def _format_shape(shape: Sequence[int]) -> str:
    return str(tuple(shape))


def list_chunk_lengths(array: ManifestArray) -> list[str]:
    """Return the length of chunks along every axis, or the least and the greatest length."""
    found = []
    for axis in range(array.ndim):
        cuts = {f.axes[axis] for f in array.fragments}
        lengths = {n for cut in cuts for n in (cut.stored_lengths() if cut.size else ())}
        low, high = min(lengths, default=0), max(lengths, default=0)
        # a shorter chunk at the end of a regular axis is no other kind of chunk
        regular = {cut.chunk for cut in cuts}
        found.append(f"{high}" if low == high or regular == {high} else f"{low} to {high}")
    return found


def _share(nbytes: int, chunks: int) -> str:
    """Return the mean number of bytes of a chunk."""
    return format_bytes(round(nbytes / chunks)) if nbytes and chunks else ""


def format_stored(found: Survey) -> str:
    """Return the bytes of chunks, and how many times smaller they are than their values."""
    if not found.stored:
        return "not known" if found.unread else "nothing"
    if found.unread:
        return f"at least {format_bytes(found.stored)}"
    return f"{format_bytes(found.stored)}{_format_ratio(found)}"


def _format_ratio(found: Survey) -> str:
    if found.ratio is None or found.ratio < 1.05:
        return ""
    return f", {found.ratio:,.{0 if found.ratio >= 100 else 1}f}× smaller"


def _format_chunks(arrays: Sequence[ManifestArray], found: Survey) -> str:
    files = count_files(arrays)
    parts = [f"{found.chunks:,}{f' in {files:,} file' if files else ''}{'s' * (files > 1)}"]
    parts += [f"{found.missing:,} missing"] if found.missing else []
    parts += [f"{found.unread:,} with references not loaded"] if found.unread else []
    cut = len(arrays[0].fragments)
    parts += [f"{cut:,} grids"] if cut > 1 else []
    return "; ".join(parts)


def _format_encodings(arrays: Sequence[ManifestArray]) -> str:
    """Return the encoding of arrays of one each, or how many encodings an array has."""
    pipelines = list(dict.fromkeys(p for array in arrays for p in array.pipelines))
    if len(arrays[0].pipelines) > 1:
        return f"{len(arrays[0].pipelines):,} encodings"
    names = list(dict.fromkeys(name_pipelines(pipelines)))
    more = [f"{len(names) - SHOWN_ENCODINGS:,} more"] if len(names) > SHOWN_ENCODINGS else []
    return "; ".join([*names[:SHOWN_ENCODINGS], *more]) or "no chunks"


def list_files(arrays: Sequence[ManifestArray], most: int) -> Markup | None:
    """Return a closed section with a table of the first files; None if no file is known."""
    used = find_used_files(arrays, most)
    if not used.total:
        return None
    rows = [
        (
            without_secrets(file.url),
            f"{count:,}",
            "" if file.size is None else format_bytes(file.size),
        )
        for file, count in used.first
    ]
    shown = table(("url", "chunks", "size"), rows, most=most, total=used.total, numbers=(1, 2))
    # sets that are not loaded have files of their own
    lazy = any(f.manifest.is_in_set for array in arrays for f in array.fragments)
    return section("Files", shown, note=f"{'at least ' * lazy}{used.total:,}")
