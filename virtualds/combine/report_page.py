"""What a notebook shows of the report of a build."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from virtualds.errors import without_secrets
from virtualds.pictures.html import Markup, element, facts, join, section, table
from virtualds.pictures.palette import MISSING, NEXT, OK, Shade
from virtualds.pictures.svg import Span, key, strip
from virtualds.quantities import format_count


def describe_build(report: Any) -> Markup:
    """Return a strip of files by outcome, the numbers, and tables of files with problems."""
    outcomes: tuple[tuple[Shade, str, int], ...] = (
        (OK, "opened", report.opened),
        (NEXT, "from the cache", report.cached),
        (MISSING, "left out", len(report.left_out)),
    )
    met = [outcome for outcome in outcomes if outcome[2]]
    title = format_count(report.files, "file")
    read = report.read
    rows = facts(
        {
            "Chunks": f"{report.references:,}",
            "Time": _format_time(report.files, report.seconds),
            "HDF5 files read": read.summary if read else None,
            "Schemas": _count_schemas(report.schemas),
        }
    )
    return element(
        "div",
        element("div", element("b", title), class_="vds-title"),
        _draw_outcomes(met, report.files),
        key([(shade, f"{count:,} {name}") for shade, name, count in met]),
        rows,
        _list_schemas(report.schemas),
        _list_left_out("Left out", report.left_out),
        _list_left_out("Damaged parts, left out", report.damaged),
        _list_reasons(read.reasons),
    )


def _draw_outcomes(met: Sequence[tuple[Shade, str, int]], total: int) -> Markup | None:
    if not met:
        return None
    stops = accumulate(count for *_, count in met)
    spans = [
        Span(stop - count, stop, shade, f"{count:,} {name}")
        for (shade, name, count), stop in zip(met, stops, strict=True)
    ]
    return strip(spans, total, title=", ".join(f"{count:,} {name}" for _, name, count in met))


def _format_time(files: int, seconds: float) -> str | None:
    if not seconds:
        return None
    return f"{seconds:,.1f} s, {files / seconds:,.0f} files per second"


def _list_left_out(title: str, left_out: Sequence[Any]) -> Markup | None:
    if not left_out:
        return None
    rows = [(without_secrets(f.url), f.error, without_secrets(f.message)) for f in left_out[:20]]
    shown = table(("file", "error", "what happened"), rows, total=len(left_out))
    return section(title, shown, note=f"{len(left_out):,}", is_open=True)


def _count_schemas(schemas: Sequence[Any]) -> str | None:
    if len(schemas) == 1:
        return "one, of all files"
    return f"{len(schemas):,}" if schemas else None


def _list_schemas(schemas: Sequence[Any]) -> Markup | None:
    """Return a table of the schemas, if files differ."""
    if len(schemas) < 2:
        return None
    usual = "the schema of most files"
    rows = [(f"{s.files:,}", s.first, "; ".join(s.differences) or usual) for s in schemas[:20]]
    shown = table(
        ("files", "the first of them", "how they differ"), rows, total=len(schemas), numbers=(0,)
    )
    return section("Schemas", shown, note=f"{len(schemas):,}", is_open=True)


def _list_reasons(reasons: Sequence[Any]) -> Markup | None:
    if not reasons:
        return None
    rows = [(f"{r.files:,}", r.reason, without_secrets(r.example)) for r in reasons]
    shown = table(("files", "why", "the first of them"), rows, numbers=(0,))
    return section("Read through the HDF5 library, which takes longer", join(shown))
