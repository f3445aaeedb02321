"""Commands that create and extend sets: ``scan``, ``append``, ``sync`` and ``convert``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from virtualds_cli.command import command, is_verbose
from virtualds_cli.options import (
    FORMAT_OPTIONS,
    MFDATASET_OPTIONS,
    READ_OPTIONS,
    add_file_arguments,
    add_options,
    list_paths,
    merge_mappings,
    select_options,
    to_python_arguments,
)
from virtualds_cli.output import exit_unless, print_report
from virtualds_cli.parameter_types import AccessType, NameType, UrlType, WindowType

if TYPE_CHECKING:
    import xarray as xr

    from virtualds.combine.report import BuildReport
    from virtualds.writing.write_modes import AddedCounts

NOTHING_ADDED = "nothing; all data are in the set already"
DASK_OPTION = click.option(
    "--dask", metavar="SCHEDULER", help="Address of a dask scheduler; its workers open the files."
)


TREE_OPTION = click.option(
    "--tree",
    metavar="PATH",
    help="Write a group for each path made of names of the pattern, such as '/{model}/{variable}'.",
)


def open_files(
    files: str | Sequence[str],
    dask: str | None,
    options: Mapping[str, Any],
    tree: str | None = None,
    **kwargs: Any,
) -> Any:
    """Open files as one dataset, or with ``tree`` as a tree with a group for each path."""
    import virtualds

    arguments = to_python_arguments(options, MFDATASET_OPTIONS) | kwargs
    open_many: Any = virtualds.open_virtual_mfdataset
    if tree is not None:
        open_many = virtualds.open_virtual_mfdatatree
        arguments = {"concat_dim": None, **arguments, "tree": tree}
    if dask is None:
        return open_many(files, **arguments)
    if "parallel" in arguments:
        raise click.UsageError("--parallel and --dask exclude each other; give one of them")
    with _connect_to_dask(dask) as client:
        return open_many(files, parallel=client, **arguments)


@contextmanager
def _connect_to_dask(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError(
            "--dask: distributed is not installed; pip install distributed"
        ) from error
    with Client(address) as client:  # type: ignore[no-untyped-call]
        yield client


def print_write_report(
    target: str,
    format_name: str,
    dataset: xr.Dataset | xr.DataTree,
    seconds: float,
    added: AddedCounts | None = None,
    sizes: Mapping[Any, int] | None = None,
) -> None:
    """Print which files were opened, and what was written to the set.

    ``added`` counts what an append has added. ``sizes`` are the sizes of the set if they differ
    from those of the dataset. With ``-v``, or if a file is left out or damaged, the report also
    shows how files were read and how they differ.
    """
    from virtualds.errors import format_count

    build: BuildReport = dataset.virtual.report
    is_written = added is None or added.positions > 0
    dims = dict(dataset.sizes if sizes is None else sizes)
    references = dataset.virtual.nchunks if added is None else added.references
    names = list(map(str, dataset.data_vars))
    if hasattr(dataset, "subtree"):
        names = [f"{node.path}/{name}" for node in dataset.subtree for name in node.data_vars]
    document = {
        **build.to_dict(),
        "target": target,
        "format": format_name,
        "dims": dims,
        "variables": names,
        "written": is_written,
        "references": references,
        **({} if added is None else {"added": added.positions}),
        "seconds": seconds,
    }
    parts = ((build.cached, "from the cache"), (len(build.left_out), "left out"))
    notes = ", ".join(f"{count:,} {label}" for count, label in parts if count)
    files = format_count(build.files, "file") + (f" ({notes})" if notes else "")
    set_rows: dict[str, Any] = {
        "variables": ", ".join(names),
        "dimensions": ", ".join(f"{name} {size:,}" for name, size in dims.items()),
        "references": f"{references:,}",
        "seconds": f"{seconds:.1f}",
    }
    added_text = None
    if added is not None:
        added_text = format_count(added.positions, "position") if is_written else NOTHING_ADDED
    rows = {
        "written" if is_written else "unchanged": f"{target}, {format_name}",
        "added": added_text,
        "files": files,
        **(set_rows if is_written else {}),
    }
    shows_files = is_verbose() or build.left_out or build.damaged
    print_report(document, rows, *([build] if shows_files else []))


# ---------------------------------------------------------------------- scan

WRITE_OPTIONS = ("format", "mode", "conflict", *FORMAT_OPTIONS)
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
@add_file_arguments
@click.option("-o", "--output", required=True, type=UrlType(), help="Reference set to write.")
@TREE_OPTION
@add_options(*MFDATASET_OPTIONS, *WRITE_OPTIONS, "target_options")
@DASK_OPTION
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
    from virtualds.writing import prepare_write

    start = time.perf_counter()
    arguments = select_options(options, WRITE_OPTIONS)
    target_options = options["target_options"]
    format_name = prepare_write(output, storage_options=target_options, **arguments).format.name
    paths = list_paths(urls, files_from, options["storage_options"])
    is_plain_write = format_name == "zarr-v3" and not arguments.keys() - {"mode"}
    if dask is not None and tree is None and is_plain_write:
        # the workers write their references, so that no process holds all of them
        dataset = open_files(
            paths, dask, options, to=output, target_options=target_options, **arguments
        )
    else:
        dataset = open_files(paths, dask, options, tree)
        dataset.virtual.to_manifest(
            output, storage_options=target_options, progress=options["progress"], **arguments
        )
    print_write_report(output, format_name, dataset, time.perf_counter() - start)


# ---------------------------------------------------------------------- append

APPEND_OPEN_OPTIONS = tuple(
    name for name in MFDATASET_OPTIONS if name not in ("combine", "concat_dim")
)
APPEND_WRITE_OPTIONS = (
    *("format", "position", "on_duplicate", "new_variables", "missing_variables", "conflict"),
    *FORMAT_OPTIONS,
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
@click.argument("target", metavar="SET", type=UrlType())
@add_file_arguments
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
@add_options(*APPEND_OPEN_OPTIONS, *APPEND_WRITE_OPTIONS, "target_options")
@DASK_OPTION
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
    from virtualds.writing import prepare_write
    from virtualds.writing.write_modes import write_dataset

    start = time.perf_counter()
    arguments = select_options(options, (*APPEND_WRITE_OPTIONS, "pad", "allow"))
    arguments |= {"mode": mode, "append_dim": dim, "progress": options["progress"]}
    destination = prepare_write(target, storage_options=options["target_options"], **arguments)
    paths = list_paths(urls, files_from, options["storage_options"])
    dataset = open_files(paths, dask, {**options, "concat_dim": [dim]})
    counts = write_dataset(dataset, destination)
    added = counts if mode == "a" else None
    seconds = time.perf_counter() - start
    print_write_report(target, destination.format.name, dataset, seconds, added, counts.sizes)


# ---------------------------------------------------------------------- sync

SYNC_OPEN_OPTIONS = tuple(
    name for name in MFDATASET_OPTIONS if name not in ("concat_dim", "decode_cf")
)
SYNC_WRITE_OPTIONS = ("format", "target_options", *FORMAT_OPTIONS)


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
@add_file_arguments
@click.argument("target", metavar="SET", type=UrlType())
@click.option(
    "--concat-dim",
    required=True,
    multiple=True,
    type=NameType("dimension"),
    help="Dimension along which files follow each other; several, outermost first, make a grid.",
)
@TREE_OPTION
@click.option(
    "--on-removed",
    type=click.Choice(["error", "keep", "drop"]),
    help="What to do about files of SET that are not listed: stop (error), keep their references "
    "(keep), or remove what comes from them (drop). [default: error]",
)
@click.option(
    "--keep",
    multiple=True,
    callback=merge_mappings,
    type=WindowType(),
    help="How much of SET to keep along a dimension: time=48 positions, or time=P2D or time=36h "
    "before its last value. Older data are dropped, and older files left out. Repeat the option "
    "for several dimensions.",
)
@click.option(
    "--fill-value",
    multiple=True,
    callback=merge_mappings,
    type=AccessType(),
    metavar="NAME=VALUE",
    help="Value that means missing, for a variable that has none and that --pad lengthens. Repeat "
    "the option for several variables.",
)
@click.option(
    "--settle",
    type=click.FloatRange(0),
    help="Leave new and changed files alone if they were modified less than this many seconds ago, "
    "since they may be incomplete. [default: 60.0]",
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
@add_options(*SYNC_OPEN_OPTIONS, *SYNC_WRITE_OPTIONS)
def sync(
    urls: Sequence[str],
    target: str,
    files_from: IO[str] | None,
    concat_dim: tuple[str, ...],
    dry_run: bool,
    tree: str | None,
    **options: Any,
) -> None:
    """Bring a reference set up to date with its files.

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
    arguments: dict[str, Any] = {} if tree is None else {"tree": tree}
    arguments |= select_options(
        options, ("on_removed", "keep", "fill_value", "settle", "conflict", *SYNC_WRITE_OPTIONS)
    )
    result = virtualds.sync(
        paths,
        target,
        concat_dim=list(concat_dim),
        dry_run=dry_run,
        **arguments,
        **to_python_arguments(options, SYNC_OPEN_OPTIONS),
    )
    print_report(result.to_dict(), result)
    exit_unless(not result.failed and not result.damaged)


# ---------------------------------------------------------------------- convert

SOURCE_OPTIONS = ("drop_variables", *READ_OPTIONS)
"""Options for opening the source."""
CONVERT_OPTIONS = ("format", "mode", *SOURCE_OPTIONS, "target_options", "progress", *FORMAT_OPTIONS)
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
@click.argument("source", type=UrlType())
@click.argument("target", type=UrlType())
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
@add_options(*CONVERT_OPTIONS)
def convert(source: str, target: str, dry_run: bool, **options: Any) -> None:
    """Convert a set or a source file to another format.

    The command converts all groups of SOURCE and reads no chunk data, except small chunks with
    --inline-threshold. If the target format cannot hold a variable, the error names the variable,
    and nothing is written. With --on-unsupported rewrite, chunks that the format cannot hold are
    encoded again; an interrupted command continues where it stopped when it is started again.
    """
    import virtualds
    from virtualds.writing import prepare_write

    start = time.perf_counter()
    arguments = select_options(options, ("on_error", *CONVERT_OPTIONS))
    write_arguments = select_options(options, ("format", "mode", *FORMAT_OPTIONS))
    if dry_run:
        # the target may exist, since nothing is written
        write_arguments["mode"] = "w"
    access = options["target_options"]
    target_format = prepare_write(target, storage_options=access, **write_arguments).format
    if dry_run:
        names = ("on_error", *SOURCE_OPTIONS, "main_encoding", *target_format.choices)
        print_rewrite_estimate(source, target, target_format.name, select_options(options, names))
        return
    virtualds.convert(source, target, **arguments)
    seconds = time.perf_counter() - start
    print_report(
        {"source": source, "target": target, "format": target_format.name, "seconds": seconds},
        {target: f"{target_format.name}, {seconds:.1f} s"},
    )


def print_rewrite_estimate(
    source: str, target: str, format_name: str, arguments: Mapping[str, Any]
) -> None:
    """Print which chunks of each variable would be rewritten."""
    from virtualds.json_values import to_records
    from virtualds.writing.materialize import estimate_conversion

    estimate = estimate_conversion(source, format_name, **arguments)
    total = int(estimate["bytes"].sum())
    document = {"source": source, "target": target, "format": format_name, "bytes": total}
    print_report(
        document | {"variables": to_records(estimate)},
        *estimate._iterate_blocks(),
        {target: f"{format_name}; nothing has been written"},
    )
