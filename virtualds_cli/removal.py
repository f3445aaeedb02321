"""The report of what a command removed from a set, or would remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from virtualds_cli.output import format_facts, report

if TYPE_CHECKING:
    import virtualds


def report_removal(removal: virtualds.Removal, url: str, dry_run: bool) -> None:
    """Print snapshots, files and bytes; of a dry run, every name."""
    from virtualds.quantities import format_bytes, format_count

    counts = (
        f"{format_count(len(removal.snapshots), 'snapshot')}, "
        f"{format_count(len(removal.files), 'file')}, {format_bytes(removal.nbytes)}"
    )
    rows = {url: f"{counts} {'would be deleted' if dry_run else 'deleted'}"}
    if dry_run:
        rows |= dict.fromkeys(removal.snapshots, "snapshot") | dict.fromkeys(removal.files, "file")
    document = {
        "expired": removal.snapshots,
        "files": removal.files,
        "bytes": removal.nbytes,
        "dry_run": dry_run,
    }
    report(document, format_facts(rows))
