"""Opening many files as one dataset, as ``scan`` and ``append`` do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from virtualds_cli.options import MANY_FILES, select_given
from virtualds_cli.output import report
from virtualds_cli.verbose import is_verbose

if TYPE_CHECKING:
    import xarray as xr

    from virtualds.combine.report import BuildReport
    from virtualds.writing.write_modes import Added

NOTHING = "nothing; all data are in the set already"
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


def report_written(
    target: str, form: str, dataset: xr.Dataset, seconds: float, added: Added | None = None
) -> None:
    """Report what was opened and written; ``added`` is what an append added to the set.

    How files were read, and how they differ, is shown by ``-v``, or if something is left out.
    """
    from virtualds.errors import format_count

    opening: BuildReport = dataset.virtual.report
    written = added is None or added.positions > 0
    dims: Mapping[Any, int] = dict(dataset.sizes) if added is None else added.sizes
    references = dataset.virtual.nchunks if added is None else added.references
    document = {
        **opening.to_dict(),
        "target": target,
        "format": form,
        "dims": dims,
        "variables": [str(name) for name in dataset.data_vars],
        "written": written,
        "references": references,
        **({} if added is None else {"added": added.positions}),
        "seconds": seconds,
    }
    parts = ((opening.cached, "from the cache"), (len(opening.left_out), "left out"))
    notes = ", ".join(f"{count:,} {what}" for count, what in parts if count)
    files = format_count(opening.files, "file") + (f" ({notes})" if notes else "")
    of_set: dict[str, Any] = {
        "variables": ", ".join(map(str, dataset.data_vars)),
        "dimensions": ", ".join(f"{name} {size:,}" for name, size in dims.items()),
        "references": f"{references:,}",
        "seconds": f"{seconds:.1f}",
    }
    grown = None
    if added is not None:
        grown = format_count(added.positions, "position") if written else NOTHING
    rows = {
        "written" if written else "unchanged": f"{target}, {form}",
        "added": grown,
        "files": files,
        **(of_set if written else {}),
    }
    is_told = is_verbose() or opening.left_out or opening.damaged
    report(document, rows, *([opening] if is_told else []))
