"""What to do about each kind of problem that a verification finds: a table."""

from __future__ import annotations

from typing import NamedTuple

from virtualds.checks.verify.findings import NOT_COMPARED


class Remedy(NamedTuple):
    """What to do about a kind of problem, and code that does it.

    In the code ``{urls}`` are the files, ``set_url`` is the set, and ``found`` is the report.
    """

    words: str
    code: str = ""


TAKE_OUT = "virtualds.drop_sources(set_url, {urls})"
SCAN_AGAIN = """for url in {urls}:
    again = virtualds.open_virtual_dataset(url)
    again.virtual.to_manifest(set_url, mode="replace-source")"""
CHANGED_FILE = Remedy(
    "if the change was meant, scan the file again (virtualds sync does that for all); else "
    "restore it",
    SCAN_AGAIN,
)
OTHER_TIME = Remedy(
    "if it was copied without its time, copy it with cp -p or rsync -t; if the change was meant, "
    "scan the file again (virtualds sync does that for all); else restore it",
    SCAN_AGAIN,
)
REMEDIES: dict[str, Remedy] = {
    "missing": Remedy(
        "restore the file; name its new folder (virtualds rename-paths); or take it out of the set "
        "(virtualds drop-sources; or virtualds sync --on-removed drop, for all that are gone)",
        TAKE_OUT,
    ),
    "unreachable": Remedy("check permissions, credentials and network, then verify again"),
    "size": CHANGED_FILE,
    "etag": CHANGED_FILE,
    "modified": OTHER_TIME,
    "range": Remedy("fetch the file again, or scan it again", SCAN_AGAIN),
    "references": Remedy("restore the set from a copy, or open an older snapshot of it"),
    "undecodable": Remedy("fetch the file again; or take it out of the set", TAKE_OUT),
    "differs": Remedy("scan the file again, and report the difference", SCAN_AGAIN),
    NOT_COMPARED: Remedy("the reason says what is needed"),
}
