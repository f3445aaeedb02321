"""``virtualds sync``: keep a reference set up to date with its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, Any

import click

from virtualds_cli.building import make_keywords
from virtualds_cli.command import command
from virtualds_cli.inputs import files, list_files
from virtualds_cli.names import Name
from virtualds_cli.options import CHOICES, MANY_FILES, given, select_given
from virtualds_cli.output import exit_by, report
from virtualds_cli.parameter_types import Url

OPENED = tuple(name for name in MANY_FILES if name not in ("concat_dim", "decode_cf"))
LOST = ("failed", "damaged")
"""What a report lists of files that are not, or not wholly, in the set."""
WRITING = ("format", "target_options", *CHOICES)


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
            "Also drop files that were deleted",
            "virtualds sync 'data/*.nc' refs.zarr --concat-dim time --on-removed drop",
        ),
    ),
)
@files
@click.argument("target", metavar="SET", type=Url())
@click.option(
    "--concat-dim",
    required=True,
    type=Name("dimension"),
    help="Dimension along which files follow each other.",
)
@click.option(
    "--on-removed",
    type=click.Choice(["error", "keep", "drop"]),
    help="What to do about files of SET that are not listed: stop (error), keep their references "
    "(keep), or remove what comes from them (drop). [default: error]",
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
@given(*OPENED, *WRITING)
def sync(
    urls: Sequence[str],
    target: str,
    files_from: IO[str] | None,
    concat_dim: str,
    **options: Any,
) -> None:
    """Make a reference set hold what its files hold now.

    URLS name all files of SET: quote a pattern to let the program list them. Only new and changed
    files are opened. SET is created if there is none. Readers see all changes of a run at once; if
    nothing has changed, nothing is written.
    """
    import virtualds

    paths: Any
    if not urls and files_from is None:
        raise click.UsageError(
            f"{target} is taken for SET, and no files are given; name all files of the set before "
            f"it, as in: virtualds sync 'data/*.nc' {target} --concat-dim {concat_dim}; or give a "
            f"list of them with --files-from"
        )
    if len(urls) == 1 and files_from is None:
        # the library lists a pattern together with sizes and times
        [paths] = urls
    else:
        paths = list_files(urls, files_from, options["storage_options"])
    own = select_given(options, ("on_removed", "settle", "conflict", *WRITING))
    done = virtualds.sync(
        paths, target, concat_dim=concat_dim, **own, **make_keywords(options, OPENED)
    )
    lost = {name: [part._asdict() for part in getattr(done, name)] for name in LOST}
    report(asdict(done) | lost, str(done))
    exit_by(not any(lost.values()))
