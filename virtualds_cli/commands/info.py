"""``virtualds info``: show the contents of a reference set."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from virtualds_cli.command import command
from virtualds_cli.html_page import HTML, write_page
from virtualds_cli.options import READING, given, select_given
from virtualds_cli.output import format_facts, report, to_records
from virtualds_cli.parameter_types import Url

if TYPE_CHECKING:
    import xarray as xr

    from virtualds.checks.describe import Description


@command(
    "info",
    examples=(
        ("Show the variables and sources of a set", "virtualds info refs.parquet"),
        ("Count the references", "virtualds info refs.zarr --json | jq .references"),
        ("Show a source file", "virtualds info data/2001.nc"),
        ("Make a web page of it, with pictures", "virtualds info refs.zarr --html set.html"),
    ),
)
@click.argument("url", metavar="SET", type=Url())
@given("group", "loadable_variables", "snapshot", *READING)
@HTML
def info(url: str, html: Path | None, **options: Any) -> None:
    """Show the contents of a reference set.

    The command prints the dataset of SET, or of a source file, as xarray shows it, its sources and
    its snapshots. It does not read references, so large sets take no longer. It reads the values
    of coordinates, unless you give --loadable-variables ''. With --html it also reads references,
    up to two million, to draw where the chunks lie.
    """
    from virtualds.importing import importing

    with importing:
        from virtualds.checks.describe import describe

    found = describe(url, **select_given(options, options))
    write_page(html, partial(_make_page, found))
    report(_document(found), _content(found.tree), "", format_facts(_facts(found)))


def _content(tree: xr.DataTree) -> str:
    """Return what xarray prints; a tree without groups is printed as a dataset."""
    return repr(tree if tree.children else tree.to_dataset())


def _make_page(found: Description) -> str:
    """Return a page of what notebooks show: facts, pictures of the chunks, and the dataset."""
    from virtualds.accessors.coverage_strip import draw_strips
    from virtualds.checks.describe import load_references
    from virtualds.errors import without_secrets
    from virtualds.pictures.html import Markup, facts, page, section

    tree = load_references(found)
    shown = tree if tree.children else tree.to_dataset()
    parts = (node.to_dataset(inherit=True) for node in tree.subtree)
    strips = [strip for part in parts for strip in draw_strips(part, part.virtual.arrays)]
    drawn = page(
        found.url,
        facts(_facts(found)),
        *strips,
        Markup(shown.virtual._repr_html_()),
        section("As xarray shows it", Markup(shown._repr_html_())),
    )
    return without_secrets(drawn)


def _facts(found: Description) -> dict[str, str]:
    from virtualds.quantities import format_bytes, format_count

    rows = {"url": found.url, "format": found.format, "references": f"{found.references:,}"}
    if found.sources is None:
        rows["sources"] = "not listed by the set"
    else:
        files, nbytes, first = found.sources
        rows["sources"] = format_count(files, "file") + (
            "" if nbytes is None else f", {format_bytes(nbytes)}"
        )
        rows |= {"first source": first} if first else {}
    if found.snapshots is not None and len(found.snapshots):
        newest = found.snapshots.iloc[-1]
        count = format_count(len(found.snapshots), "snapshot")
        rows["snapshots"] = f"{count}, the newest is {newest['snapshot']} of {newest['time']} UTC"
    return rows


def _document(found: Description) -> Mapping[str, Any]:
    return {
        "url": found.url,
        "format": found.format,
        "groups": {
            node.path: node.to_dataset(inherit=False).to_dict(data=False)
            for node in found.tree.subtree
        },
        "references": found.references,
        "sources": found.sources
        and dict(zip(("count", "bytes", "first"), found.sources, strict=True)),
        "snapshots": None if found.snapshots is None else to_records(found.snapshots),
    }
