"""The text and HTML views of a virtual array, made from its references without reading."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from virtualds.codecs.pipeline import CodecPipeline
from virtualds.errors import without_secrets
from virtualds.source_file import SourceFile


def format_summary(array: Any) -> str:
    """Return the numbers of chunks, files and fragments of a virtual array as text."""
    files, chunks = len(_list_sources(array)), array.nchunks
    parts = f" in {len(array.fragments)} fragments" if len(array.fragments) > 1 else ""
    of = f" of {files} file{'s' * (files != 1)}" if files else ""
    return f"{chunks:,} chunk{'s' * (chunks != 1)}{of}{parts}"


def format_table(array: Any) -> str:
    """Return an HTML table that describes a virtual array."""
    rows = {
        "Shape": array.shape,
        "Data type": array.dtype,
        "Values": f"{array.nbytes:,} bytes, in files",
        "Chunks": format_summary(array),
        "References": f"{array.nbytes_virtual:,} bytes, in memory",
        "Decoding": "; ".join(describe_pipeline(p) for p in array.pipelines[:3]) or "none",
        "First file": next((without_secrets(f.url) for f in _list_sources(array)), "none"),
    }
    cells = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>virtual array</caption>{cells}</table>"


def _list_sources(array: Any) -> Sequence[SourceFile]:
    """Return the files of an array; none where that would read a reference set."""
    if any(f.manifest.is_in_set for f in array.fragments):
        return ()
    found: Sequence[SourceFile] = array.sources
    return found


def describe_pipeline(pipeline: CodecPipeline) -> str:
    """Return how chunks decode, in words."""
    names = [c.zarr_v2_id for c in pipeline.codecs] or ["uncompressed"]
    return f"{pipeline.dtype} {', '.join(names)}" + (", CF packing" if pipeline.packing else "")
