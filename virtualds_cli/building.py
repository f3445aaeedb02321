"""Opening many files as one dataset, as ``scan`` and ``append`` do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from virtualds_cli.options import MANY_FILES, select_given
from virtualds_cli.output import format_facts
from virtualds_cli.verbose import is_verbose

if TYPE_CHECKING:
    import xarray as xr

    from virtualds.combine.report import BuildReport
    from virtualds.writing.write_modes import Added

DASK = click.option(
    "--dask", metavar="SCHEDULER", help="Address of a dask scheduler; its workers open the files."
)


def open_files(
    files: Sequence[str], dask: str | None, options: Mapping[str, Any], **more: Any
) -> xr.Dataset:
    """Open files as one dataset."""
    import virtualds

    chosen = make_keywords(options, MANY_FILES) | more
    if dask is None:
        return virtualds.open_virtual_mfdataset(files, **chosen)
    if "parallel" in chosen:
        raise click.UsageError("--parallel and --dask exclude each other; give one of them")
    with _client(dask) as client:
        return virtualds.open_virtual_mfdataset(files, parallel=client, **chosen)


def make_keywords(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the given options as keywords of Python."""
    chosen = select_given(options, names)
    if dims := chosen.get("concat_dim"):
        chosen["concat_dim"] = dims[0] if len(dims) == 1 else dims
        chosen.setdefault("combine", "nested")
    if "coordinates" in chosen:
        chosen["coordinates"] = _make_coordinates(chosen["coordinates"])
    return chosen


def _make_coordinates(given: Mapping[str, tuple[str | None, str, str]]) -> dict[str, Any]:
    """Return the sources of coordinates as keywords of Python."""
    import virtualds

    types: dict[str | None, Any] = {"int": int, "float": float}
    return {
        name: virtualds.FromName(text, types.get(form, form))
        if sign == "="
        else virtualds.FromAttribute(text, format=types.get(form, form))
        for name, (form, sign, text) in given.items()
    }


@contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError(
            "--dask: distributed is not installed; pip install distributed"
        ) from error
    with Client(address) as client:  # type: ignore[no-untyped-call]
        yield client


def summarise(
    target: str, form: str, dataset: xr.Dataset, seconds: float, added: Added | None = None
) -> dict[str, Any]:
    """Summarise the opened and written dataset as JSON; ``added`` is what an append added."""
    report = dataset.virtual.report
    return {
        "target": target,
        "format": form,
        "dims": dict(dataset.sizes),
        "variables": [str(name) for name in dataset.data_vars],
        "written": added is None or added.positions > 0,
        "references": dataset.virtual.nchunks if added is None else added.references,
        **({} if added is None else {"added": added.positions}),
        "files": report.files,
        "opened": report.opened,
        "cached": report.cached,
        "left_out": [lost._asdict() for lost in report.left_out],
        "damaged": [lost._asdict() for lost in report.damaged],
        "read": {
            **asdict(report.read),
            "reasons": [reason._asdict() for reason in report.read.reasons],
        },
        "schemas": [schema._asdict() for schema in report.schemas],
        "seconds": seconds,
    }


MOST_NAMES = 3
"""Files that were left out, of which a summary gives the names."""


def name_files(left_out: Sequence[Mapping[str, str]]) -> str:
    """Return the first files that were left out, with their errors, and how many more."""
    from virtualds.errors import name_some, without_secrets

    named = (f"{without_secrets(lost['url'])} ({lost['error']})" for lost in left_out)
    return name_some(named, MOST_NAMES)


def format_summary(document: Mapping[str, Any], opening: BuildReport) -> str:
    """Format a summary as text; ``-v`` adds how files were read, and how they differ."""
    from virtualds.errors import format_count

    files, lines = format_count(document["files"], "file"), opening.schema_lines
    parts = ((document["cached"], "from the cache"), (len(document["left_out"]), "left out"))
    notes = ", ".join(f"{count:,} {what}" for count, what in parts if count)
    dims = ", ".join(f"{name} {size:,}" for name, size in document["dims"].items())
    opened = {"files": f"{files} ({notes})" if notes else files}
    opened |= {"left out": name_files(lost)} if (lost := document["left_out"]) else {}
    opened |= {"damaged parts": name_files(lost)} if (lost := document["damaged"]) else {}
    if is_verbose():
        opened |= {"read": str(opening.read)}
        opened |= {"files differ": "\n".join(lines)} if lines else {}
    where = f"{document['target']}, {document['format']}"
    if not document["written"]:
        unchanged = {"unchanged": where, "added": "nothing; all data are in the set already"}
        return format_facts({**unchanged, **opened})
    added = {"added": format_count(document["added"], "position")} if "added" in document else {}
    return format_facts(
        {
            "written": where,
            **added,
            **opened,
            "variables": ", ".join(document["variables"]),
            "dimensions": dims,
            "references": f"{document['references']:,}",
            "seconds": f"{document['seconds']:.1f}",
        }
    )
