"""Writing what has changed as one change of the set, also while other writers change it."""

from __future__ import annotations

from dataclasses import replace

from virtualds.arrays.group import ManifestGroup
from virtualds.datasets.write import Destination
from virtualds.formats.zarr.write_plan import suggest_instead
from virtualds.stores.listing import FileColumns
from virtualds.syncing.apply import Update, Updated
from virtualds.syncing.files import Changes
from virtualds.syncing.report import SyncReport

ZARR_V3 = "sync a zarr-v3 set in place of this one (a target that ends in .zarr), or "
"""What to do about files that only this format can hold."""


def commit(
    destination: Destination, update: Update, changes: Changes, known: FileColumns | None
) -> SyncReport:
    """Make the changes, and return the report.

    Parameters
    ----------
    destination : Destination
        The set.
    update : Update
    changes : Changes
    known : FileColumns or None
        The files that the set had when they were compared; None if there was no set.

    Raises
    ------
    ConflictError
        Another writer was faster.
    """
    # files are opened before the set is locked or read again, so that writers seldom meet
    opened = [update.opener.open(urls) for urls in (changes.new, changes.changed)]
    done, came = changes, Updated(ManifestGroup())
    before = FileColumns.of(()) if known is None else known

    def change(group: ManifestGroup) -> ManifestGroup:
        nonlocal done, came
        done = changes.still_needed(before, update.tabulate(group))
        came = update.apply(group, done)
        update.opener.demand_loaded(came.group)
        return came.group

    def begin() -> ManifestGroup:
        nonlocal done, came
        done, came = changes, update.begin(changes)
        update.opener.demand_loaded(came.group)
        return came.group

    is_needed = any(one is not None for one in opened) or (update.drops and changes.removed)
    if is_needed:
        # a set that was removed meanwhile would come back with the new files alone
        with suggest_instead(_suggest(known is None, update.drops and changes.removed), ZARR_V3):
            destination.change(change, begin if known is None else None)
    report = _report(destination, update, done, came)
    return replace(report, exists=known is not None or bool(is_needed))


def _suggest(is_new: bool, drops: object) -> str:
    """Return what else to do about files that the format of the set cannot hold."""
    files = "leave the files that differ out of the pattern"
    if is_new:
        return f"{files}, or these variables out (drop_variables=)"
    if drops:
        return f"{files}, or keep what the set has of files that are gone (on_removed='keep')"
    return files


def _report(destination: Destination, update: Update, done: Changes, came: Updated) -> SyncReport:
    failed = update.opener.failed
    silent = len([url for url in done.new if url not in failed]) - len(came.added)
    return SyncReport(
        target=destination.location.url,
        added=came.added,
        replaced=tuple(url for url in done.changed if url not in failed),
        dropped=done.removed if update.drops else (),
        kept=() if update.drops else done.removed,
        waiting=done.waiting,
        repeated=done.repeated,
        failed=tuple(failed.values()),
        damaged=update.opener.damaged,
        unchanged=done.unchanged + silent,
    )
