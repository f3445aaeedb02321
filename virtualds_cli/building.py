"""Opening many files as one dataset, as ``scan`` and ``append`` do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from virtualds_cli.options import MANY_FILES, said
from virtualds_cli.output import facts, number

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import RenderableType

    from virtualds.datasets.write import Added

DASK = click.option(
    "--dask", metavar="SCHEDULER", help="Address of a dask scheduler; its workers open the files."
)


def opened(
    files: Sequence[str], dask: str | None, options: Mapping[str, Any], **more: Any
) -> xr.Dataset:
    """Return files as one dataset, opened as the options say."""
    import virtualds

    chosen = keywords(options, MANY_FILES) | more
    if dask is None:
        return virtualds.open_virtual_mfdataset(files, **chosen)
    if "parallel" in chosen:
        raise click.UsageError("--parallel and --dask exclude each other; give one of them")
    with _client(dask) as client:
        return virtualds.open_virtual_mfdataset(files, parallel=client, **chosen)


def keywords(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return what was given of some options, as Python has it."""
    chosen = said(options, names)
    if dims := chosen.get("concat_dim"):
        chosen["concat_dim"] = dims[0] if len(dims) == 1 else dims
        chosen.setdefault("combine", "nested")
    if "coordinates" in chosen:
        chosen["coordinates"] = _origins(chosen["coordinates"])
    return chosen


def _origins(said: Mapping[str, tuple[str | None, str, str]]) -> dict[str, Any]:
    """Return where coordinates come from, as Python has it."""
    import virtualds

    types: dict[str | None, Any] = {"int": int, "float": float}
    return {
        name: virtualds.FromName(text, types.get(form, form))
        if sign == "="
        else virtualds.FromAttribute(text, format=types.get(form, form))
        for name, (form, sign, text) in said.items()
    }


@contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError(
            "--dask: distributed is not installed; install virtualds[distributed]"
        ) from error
    with Client(address) as client:  # type: ignore[no-untyped-call]
        yield client


def summary(
    target: str, form: str, dataset: xr.Dataset, seconds: float, added: Added | None = None
) -> dict[str, Any]:
    """Return what was opened and written, for machines; ``added`` is what a set lacked of it."""
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
        "seconds": seconds,
    }


def in_words(document: Mapping[str, Any]) -> RenderableType:
    """Return a summary for people."""
    files = number(document["files"], "file")
    parts = ((document["cached"], "from the cache"), (len(document["left_out"]), "left out"))
    notes = ", ".join(f"{count:,} {what}" for count, what in parts if count)
    dims = ", ".join(f"{name} {size:,}" for name, size in document["dims"].items())
    where = f"{document['target']}, {document['format']}"
    if not document["written"]:
        said = {"unchanged": where, "added": "nothing; all data are in the set already"}
        return facts({**said, "files": f"{files} ({notes})" if notes else files})
    added = {"added": number(document["added"], "position")} if "added" in document else {}
    return facts(
        {
            "written": where,
            **added,
            "files": f"{files} ({notes})" if notes else files,
            "variables": ", ".join(document["variables"]),
            "dimensions": dims,
            "references": f"{document['references']:,}",
            "seconds": f"{document['seconds']:.1f}",
        }
    )
