"""Commands that make and grow sets: ``scan``, ``append``, ``sync`` and ``convert``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from virtualds_cli.command import command, is_verbose
from virtualds_cli.options import (
    CHOICES,
    MANY_FILES,
    READING,
    files,
    given,
    list_paths,
    make_keywords,
    merge,
    select_given,
)
from virtualds_cli.output import exit_by, report
from virtualds_cli.parameter_types import AccessType, NameType, Url, WindowType

if TYPE_CHECKING:
    import xarray as xr

    from virtualds.combine.report import BuildReport
    from virtualds.writing.write_modes import AddedCounts

NOTHING = "nothing; all data are in the set already"
DASK = click.option(
    "--dask", metavar="SCHEDULER", help="Address of a dask scheduler; its workers open the files."
)


TREE = click.option(
    "--tree",
    metavar="PATH",
    help="Write a group for each path made of names of the pattern, such as '/{model}/{variable}'.",
)


def open_files(
    files: str | Sequence[str],
    dask: str | None,
    options: Mapping[str, Any],
    tree: str | None = None,
    **more: Any,
) -> Any:
    """Open files as one dataset, or as a tree with a group for each path."""
    import virtualds

    chosen = make_keywords(options, MANY_FILES) | more
    open_many: Any = virtualds.open_virtual_mfdataset
    if tree is not None:
        open_many = virtualds.open_virtual_mfdatatree
        chosen = {"concat_dim": None, **chosen, "tree": tree}
    if dask is None:
        return open_many(files, **chosen)
    if "parallel" in chosen:
        raise click.UsageError("--parallel and --dask exclude each other; give one of them")
    with _client(dask) as client:
        return open_many(files, parallel=client, **chosen)


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
    target: str,
    format_name: str,
    dataset: xr.Dataset | xr.DataTree,
    seconds: float,
    added: AddedCounts | None = None,
    sizes: Mapping[Any, int] | None = None,
) -> None:
    """Report what was opened and written.

    ``added`` is what an append added to the set, and ``sizes`` are the sizes of the set, if these
    differ from the sizes of the dataset. How files were read, and how they differ, is shown by
    ``-v``, or if something is left out.
    """
    from virtualds.errors import format_count

    opening: BuildReport = dataset.virtual.report
    written = added is None or added.positions > 0
    dims = dict(dataset.sizes if sizes is None else sizes)
    references = dataset.virtual.nchunks if added is None else added.references
    names = list(map(str, dataset.data_vars))
    if hasattr(dataset, "subtree"):
        names = [f"{node.path}/{name}" for node in dataset.subtree for name in node.data_vars]
    document = {
        **opening.to_dict(),
        "target": target,
        "format": format_name,
        "dims": dims,
        "variables": names,
        "written": written,
        "references": references,
        **({} if added is None else {"added": added.positions}),
        "seconds": seconds,
    }
    parts = ((opening.cached, "from the cache"), (len(opening.left_out), "left out"))
    notes = ", ".join(f"{count:,} {what}" for count, what in parts if count)
    files = format_count(opening.files, "file") + (f" ({notes})" if notes else "")
    of_set: dict[str, Any] = {
        "variables": ", ".join(names),
        "dimensions": ", ".join(f"{name} {size:,}" for name, size in dims.items()),
        "references": f"{references:,}",
        "seconds": f"{seconds:.1f}",
    }
    grown = None
    if added is not None:
        grown = format_count(added.positions, "position") if written else NOTHING
    rows = {
        "written" if written else "unchanged": f"{target}, {format_name}",
        "added": grown,
        "files": files,
        **(of_set if written else {}),
    }
    shows_files = is_verbose() or opening.left_out or opening.damaged
    report(document, rows, *([opening] if shows_files else []))


# ---------------------------------------------------------------------- scan

WRITING = ("format", "mode", "conflict", *CHOICES)
"""The options of ``ds.virtual.to_manifest``."""


@command(
    "scan",
    examples=(
        (
            "Concatenate the files of a year along time",
            "virtualds scan 'data/2001-*.nc' --concat-dim time -o refs.parquet",
        ),
        (
            "Read the urls from a list, and order the files by their coordinates",
            "find data -name '*.nc' | virtualds scan -f - -o refs.zarr",
        ),
        (
            "Take the date from the file names",
            r"virtualds scan 'sst_*.nc' --concat-dim time --coordinates 'time:%Y%m%d=_(\d{8})' "
            "-o sst.zarr",
        ),
        (
            "Use the newest version of each file, and write a group for each variable",
            "virtualds scan 'cmip/{var}/{v}/*.nc' --newest v --concat-dim time --tree '{var}' "
            "-o cmip.zarr",
        ),
        (
            "Scan files in a public bucket",
            "virtualds scan 's3://bucket/*.nc' --storage-options anon=true -o refs.json",
        ),
    ),
)
@files
@click.option("-o", "--output", required=True, type=Url(), help="Reference set to write.")
@TREE
@given(*MANY_FILES, *WRITING, "target_options")
@DASK
def scan(
    urls: Sequence[str],
    files_from: IO[str] | None,
    output: str,
    tree: str | None,
    dask: str | None,
    **options: Any,
) -> None:
    """Combine files into a reference set.

    The set stores where each chunk of the combined dataset lies in the files. URLS are paths, urls
    or patterns. Quote a pattern to let the program expand it, also in object stores.

    The suffix of the target chooses the format: .json, .parquet, .zarr, .icechunk or .nca. The
    target is checked before any file is opened, and is written completely or not at all.
    """
    from virtualds.writing.write import prepare_write

    begun = time.perf_counter()
    writing = select_given(options, WRITING)
    access = options["target_options"]
    format_name = prepare_write(output, storage_options=access, **writing).format.name
    found = list_paths(urls, files_from, options["storage_options"])
    if (
        tree is None
        and dask is not None
        and format_name == "zarr-v3"
        and not writing.keys() - {"mode"}
    ):
        # the workers write their references, so that no process holds all of them
        dataset = open_files(found, dask, options, to=output, target_options=access, **writing)
    else:
        dataset = open_files(found, dask, options, tree)
        shown = options["progress"]
        dataset.virtual.to_manifest(output, storage_options=access, progress=shown, **writing)
    report_written(output, format_name, dataset, time.perf_counter() - begun)


# ---------------------------------------------------------------------- append

TO_APPEND = tuple(name for name in MANY_FILES if name not in ("combine", "concat_dim"))
APPENDING = (
    *("format", "position", "on_duplicate", "new_variables", "missing_variables", "conflict"),
    *CHOICES,
)
"""The options of ``ds.virtual.to_manifest``."""


@command(
    "append",
    examples=(
        (
            "Add new files, and skip files that are already in the set",
            "virtualds append refs.zarr new/*.nc --dim time --on-duplicate skip",
        ),
        (
            "Insert late files at their position in time",
            "virtualds append refs.zarr late/*.nc --dim time --position coordinate",
        ),
        (
            "Replace files that were processed again",
            "virtualds append refs.zarr data/2001-07.nc --dim time --mode replace-source",
        ),
    ),
)
@click.argument("target", metavar="SET", type=Url())
@files
@click.option(
    "--dim",
    required=True,
    type=NameType("dimension"),
    help="Dimension to append and concatenate along.",
)
@click.option(
    "--mode",
    type=click.Choice(["a", "replace-source"]),
    default="a",
    help="Append the files (a), or replace sources by them (replace-source). [default: a]",
)
@given(*TO_APPEND, *APPENDING, "target_options")
@DASK
def append(
    target: str,
    urls: Sequence[str],
    files_from: IO[str] | None,
    dim: str,
    mode: str,
    dask: str | None,
    **options: Any,
) -> None:
    """Add files to a reference set.

    The files of SET are not scanned again. If SET does not exist, it is created.
    """
    from virtualds.writing.write import prepare_write
    from virtualds.writing.write_modes import write_dataset

    begun = time.perf_counter()
    writing = select_given(options, (*APPENDING, "pad")) | {"mode": mode, "append_dim": dim}
    if options["allow"] is not None:
        writing["allow"] = options["allow"]
    writing["progress"] = options["progress"]
    destination = prepare_write(target, storage_options=options["target_options"], **writing)
    found = list_paths(urls, files_from, options["storage_options"])
    dataset = open_files(found, dask, {**options, "concat_dim": [dim]})
    added = write_dataset(dataset, destination)
    grown = added if mode == "a" else None
    seconds = time.perf_counter() - begun
    report_written(target, destination.format.name, dataset, seconds, grown, added.sizes)


# ---------------------------------------------------------------------- sync

TO_SYNC = tuple(name for name in MANY_FILES if name not in ("concat_dim", "decode_cf"))
SYNCING = ("format", "target_options", *CHOICES)


@command(
    "sync",
    examples=(
        (
            "Create the set, or add new files and replace changed ones",
            "virtualds sync 'data/*.nc' refs.zarr --concat-dim time",
        ),
        (
            "Every night, from a bucket; broken files are reported",
            "virtualds sync 's3://bucket/*.nc' refs.zarr --concat-dim time --on-error collect",
        ),
        (
            "Keep a grid of members and times",
            "virtualds sync 'runs/{member}/*.nc' refs.zarr --concat-dim member --concat-dim time",
        ),
        (
            "Show what a run would do",
            "virtualds sync 'data/*.nc' refs.zarr --concat-dim time --dry-run",
        ),
        (
            "Also drop files that were deleted",
            "virtualds sync 'data/*.nc' refs.zarr --concat-dim time --on-removed drop",
        ),
        (
            "Keep the last two days",
            "virtualds sync 'data/*.nc' refs.zarr --concat-dim time --keep time=P2D",
        ),
    ),
)
@files
@click.argument("target", metavar="SET", type=Url())
@click.option(
    "--concat-dim",
    required=True,
    multiple=True,
    type=NameType("dimension"),
    help="Dimension along which files follow each other; several, outermost first, make a grid.",
)
@TREE
@click.option(
    "--on-removed",
    type=click.Choice(["error", "keep", "drop"]),
    help="What to do about files of SET that are not listed: stop (error), keep their references "
    "(keep), or remove what comes from them (drop). [default: error]",
)
@click.option(
    "--keep",
    multiple=True,
    callback=merge,
    type=WindowType(),
    help="How much of SET to keep along a dimension: time=48 positions, or time=P2D or time=36h "
    "before its last value. Older data are dropped, and older files left out. Repeat the option "
    "for several dimensions.",
)
@click.option(
    "--fill-value",
    multiple=True,
    callback=merge,
    type=AccessType(),
    metavar="NAME=VALUE",
    help="Value that means missing, for a variable that has none and that --pad lengthens. Repeat "
    "the option for several variables.",
)
@click.option(
    "--settle",
    type=click.FloatRange(0),
    help="Leave new and changed files alone that were modified less than so many seconds ago; "
    "they may still be written. [default: 60.0]",
)
@click.option(
    "--conflict",
    type=click.Choice(["raise", "retry"]),
    help="What to do if another writer changes the set at the same time: stop, or compare again "
    "and go on. [default: retry]",
)
@click.option(
    "--dry-run", is_flag=True, help="Write nothing; report what would come, go and change."
)
@given(*TO_SYNC, *SYNCING)
def sync(
    urls: Sequence[str],
    target: str,
    files_from: IO[str] | None,
    concat_dim: tuple[str, ...],
    dry_run: bool,
    tree: str | None,
    **options: Any,
) -> None:
    """Make a reference set hold what its files hold now.

    URLS name all files of SET: quote a pattern to let the program list them. Only new and changed
    files are opened. SET is created if there is none. Readers see all changes of a run at once; if
    nothing has changed, nothing is written.
    """
    import virtualds

    if not urls and files_from is None:
        raise click.UsageError(
            f"{target} is taken for SET, and no files are given; name all files of the set before "
            f"it, as in: virtualds sync 'data/*.nc' {target} --concat-dim {concat_dim[0]}; or give "
            f"a list of them with --files-from"
        )
    paths = list_paths(urls, files_from, options["storage_options"])
    own: dict[str, Any] = {} if tree is None else {"tree": tree}
    own |= select_given(
        options, ("on_removed", "keep", "fill_value", "settle", "conflict", *SYNCING)
    )
    done = virtualds.sync(
        paths,
        target,
        concat_dim=list(concat_dim),
        dry_run=dry_run,
        **own,
        **make_keywords(options, TO_SYNC),
    )
    report(done.to_dict(), done)
    exit_by(not done.failed and not done.damaged)


# ---------------------------------------------------------------------- convert

SOURCE = ("drop_variables", *READING)
"""Options for opening the source."""
CONVERTING = ("format", "mode", *SOURCE, "target_options", "progress", *CHOICES)
"""The options of `virtualds.convert`."""


@command(
    "convert",
    examples=(
        ("Convert kerchunk JSON to Zarr v3", "virtualds convert refs.json refs.zarr"),
        ("Convert all groups of one file", "virtualds convert granule.h5 granule.parquet"),
        (
            "Cut uncompressed chunks, and hold small ones in the set",
            "virtualds convert refs.json days.json --subchunk time=1 --inline-threshold 500",
        ),
        (
            "Show which chunks kerchunk cannot hold as they are",
            "virtualds convert refs.zarr refs.json --dry-run",
        ),
    ),
)
@click.argument("source", type=Url())
@click.argument("target", type=Url())
@click.option(
    "--dry-run",
    is_flag=True,
    help="Write nothing; show per variable which chunks would be rewritten, and why.",
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    help="What to do about a variable that cannot be read: stop, or leave it out with a warning. "
    "[default: raise]",
)
@given(*CONVERTING)
def convert(source: str, target: str, dry_run: bool, **options: Any) -> None:
    """Convert a set or a source file to another format.

    The command converts all groups of SOURCE and reads no chunk data, except small chunks with
    --inline-threshold. If the target format cannot hold a variable, the error names the variable,
    and nothing is written. With --on-unsupported rewrite, chunks that the format cannot hold are
    encoded anew; an interrupted command, started again, goes on where it stopped.
    """
    import virtualds
    from virtualds.writing.write import prepare_write

    begun = time.perf_counter()
    chosen = select_given(options, ("on_error", *CONVERTING))
    checked = {name: chosen[name] for name in ("format", "mode", *CHOICES) if name in chosen}
    if dry_run:
        checked |= {"mode": "w"}
    format_name = prepare_write(target, storage_options=options["target_options"], **checked).format
    if dry_run:
        of_format = ("main_encoding", *format_name.choices)
        show_cost(source, target, format_name.name, chosen, of_format)
        return
    virtualds.convert(source, target, **chosen)
    seconds = time.perf_counter() - begun
    report(
        {"source": source, "target": target, "format": format_name.name, "seconds": seconds},
        {target: f"{format_name.name}, {seconds:.1f} s"},
    )


def show_cost(
    source: str, target: str, format_name: str, chosen: Mapping[str, Any], of_format: Iterable[str]
) -> None:
    """Print what would be rewritten, with the options of a format that are given."""
    from virtualds.json_values import to_records
    from virtualds.writing.materialize import estimate_conversion

    found = estimate_conversion(
        source, format_name, **select_given(chosen, ("on_error", *SOURCE, *of_format))
    )
    total = int(found["bytes"].sum())
    document = {"source": source, "target": target, "format": format_name, "bytes": total}
    report(
        document | {"variables": to_records(found)},
        *found._iterate_blocks(),
        {target: f"{format_name}; nothing has been written"},
    )
