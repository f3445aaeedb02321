"""What bringing a set up to date has done, file by file."""

from __future__ import annotations

from dataclasses import dataclass

from virtualds.combine.report import SHOWN_FILES, LeftOut, describe_left_out, show_url
from virtualds.errors import public, without_secrets
from virtualds.options import SETTLE

MEANINGS = {
    "added": "added",
    "replaced": "changed, and replaced",
    "dropped": "no longer there, and dropped",
    "kept": "no longer there, and kept",
    "repeated": "a second name of another file, and left out",
}
"""What happened to files, by the name of the attribute that lists them one by one."""


@public
@dataclass(frozen=True)
class SyncReport:
    """What `virtualds.sync` has done.

    Parameters
    ----------
    target : str
        The set.
    added, replaced, dropped : tuple of str
        Urls of files that came into the set, were opened again, or left the set.
    kept : tuple of str
        Urls of files of the set that are not listed, and whose references the set keeps.
    waiting : tuple of str
        Urls of new or changed files that may still be written, and are left for the next run.
    repeated : tuple of str
        Urls of new files that are, by a link, a file that is listed with another name, and are left
        out. With ``preprocess`` or ``coordinates`` there are none, since names may give values.
    failed : tuple of LeftOut
        Files that could not be opened, with the reasons. The set keeps what it had of them.
    damaged : tuple of LeftOut
        Damaged parts, such as messages, that were left out of added or replaced files.
    unchanged : int
        Number of files that the set has as they are.
    settle : float
        Seconds for which a file must not have changed, or it waits.
    exists : bool
        Whether there is a set now; there is none if no file could be taken into a new one.
    seconds : float
        Time of the whole run.

    Examples
    --------
    >>> print(SyncReport("file:///refs.zarr", added=("file:///2003.nc",), unchanged=2))
    file:///refs.zarr: 1 added, 2 unchanged
      added: file:///2003.nc
    """

    target: str
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    failed: tuple[LeftOut, ...] = ()
    unchanged: int = 0
    settle: float = SETTLE
    exists: bool = True
    seconds: float = 0.0
    damaged: tuple[LeftOut, ...] = ()
    repeated: tuple[str, ...] = ()

    @property
    def is_written(self) -> bool:
        """Whether the set has changed."""
        return bool(self.added or self.replaced or self.dropped)

    def __str__(self) -> str:
        counts = {
            name: len(getattr(self, name)) for name in (*MEANINGS, "waiting", "failed", "damaged")
        }
        counts["unchanged"] = self.unchanged
        counted = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        none = "" if self.exists else "; no set was written"
        lines = [f"{without_secrets(self.target)}: {counted or 'nothing to do'}{none}"]
        for name, meaning in MEANINGS.items():
            urls = getattr(self, name)
            lines += [f"  {meaning}: {show_url(url)}" for url in urls[:SHOWN_FILES]]
            more = len(urls) - SHOWN_FILES
            lines += [f"  {meaning}: {more:,} more"] if more > 0 else []
        if count := len(self.waiting):
            files, they, them = ("file", "it is", "it")
            if count > 1:
                files, they, them = ("files", "they are", "them")
            lines.append(
                f"  {count:,} {files} changed less than {self.settle:g} s ago; {they} left for the "
                f"next run (settle={self.settle:g}; --settle 0 takes {them} now)"
            )
        return "\n".join([*lines, *describe_left_out([*self.failed, *self.damaged])])

    def __repr__(self) -> str:
        return f"<SyncReport {self}>"
