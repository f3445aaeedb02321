"""Real HDF5 files: each is read by our own reader and by the library, and both are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fuzz.hdf5_described import demands, strict_differences
from fuzz.hdf5_readers import read_file
from fuzz.outcomes import Finding
from fuzz.workers import Answer, Worker

from virtualds.parsers.hdf5 import detect

SECONDS, MEGABYTES = 120, 8192
"""What reading one file may take."""
HEAD = 2**17
"""Bytes in which the signature is searched: it may stand behind a user block."""
SHOWN = 3
"""Findings of a file that are shown."""


def compare_corpus(folder: Path, work: Path) -> bool:
    """Read every HDF5 file below a folder by both, print a line for each; say if all agree."""
    ours = Worker(read_file, work / "ours.log", SECONDS, MEGABYTES)
    library = Worker(read_file, work / "library.log", SECONDS, MEGABYTES)
    outcomes: Counter[str] = Counter()
    try:
        for path in _find_files(folder):
            ours.begin(("auto", str(path)))
            library.begin(("library", str(path)))
            what, lines = _judge(ours.finish(), library.finish())
            outcomes[what] += 1
            print(f"{what}  {path.relative_to(folder)}", *lines, sep="\n    ", flush=True)
    finally:
        ours.stop()
        library.stop()
    print("\n" + "\n".join(f"{count:6}  {what}" for what, count in outcomes.most_common()))
    return not any(what.isupper() for what in outcomes)


def _find_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.resolve().rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if detect(file.read(HEAD)):
                    yield path


def _judge(ours: Answer, library: Answer) -> tuple[str, list[str]]:
    """Return what became of a file, in capitals if it must not be, and what to say of it."""
    if ours.end:
        return f"{ours.end.upper()} (library: {library.end or 'read'})", []
    found, who = ours.value
    if library.end:
        return f"only ours reads it, the library ends by {library.end}", []
    theirs = library.value[0]
    findings = list(strict_differences(found, theirs).values())
    if found.error is not None and not found.error.typed:
        findings.append(Finding("untyped", "", f"{found.error.type}: {found.error.message}"))
    if findings:
        lines = [f"{f.what} {f.detail[:600]}" for f in findings[:SHOWN]]
        return "DIFFERENT", [*lines, *demands(found, theirs)[:SHOWN]]
    if found.error is not None:
        return f"refused by both: {found.error.type}", [found.error.message[:200]]
    return f"same, {who}", []
