"""Many cases of many kinds, one after the other: what was found is kept in a folder.

A campaign can be broken off and goes on where it stood: ``progress.json`` holds how many cases of
each kind were tried and how long that took, ``findings.jsonl`` what was found.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path

from fuzz.hdf5_described import demands
from fuzz.hdf5_readers import DESCRIPTION, VALUES, different_values
from fuzz.kinds import Kind, Maker, kind
from fuzz.outcomes import Finding, Outcome, Values, by_last_part, differing, lenient, untyped
from fuzz.workers import MODULES, Answer, Worker

from virtualds.importing import import_pyproj

IMPORTING = 120
"""Seconds that reading a sound file may take, with all imports, on a busy machine."""
WRITTEN = 5
"""Findings of one cause that are written down, and their files kept."""
THREADED = ("icechunk", "obstore")
"""Packages that only workers import, and what imports them: threads do not survive a fork."""


@dataclass
class Progress:
    """How far the cases of a kind have come."""

    cases: int = 0
    seconds: float = 0.0
    equal: int = 0
    refused: int = 0
    lenient: dict[str, int] = field(default_factory=dict)
    findings: dict[str, int] = field(default_factory=dict)
    signs: dict[str, int] = field(default_factory=dict)
    natives_died: int = 0
    alone: int = 0


@dataclass(frozen=True)
class Case:
    """One case, read by all: for looking at."""

    seed: str
    print: str
    ours: Answer
    natives: list[Answer]
    findings: list[Finding]


class Fuzzer:
    """Tries the cases of one kind.

    Parameters
    ----------
    kind : Kind
    folder : path
        Where files of cases and logs of workers lie.
    seconds, megabytes
        What reading may take.
    """

    def __init__(
        self, kind: Kind, folder: Path, seconds: float = 10, megabytes: int = 1024
    ) -> None:
        self.kind, self._folder = kind, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._maker = Worker(Maker(kind, folder.parent), folder / "maker.log", 300, 4096)
        self._ours = Worker(kind.ours, folder / "ours.log", seconds, megabytes)
        self._native = Worker(kind.native, folder / "native.log", seconds, 2 * megabytes)
        self._known: dict[str, set[str]] = {}
        self._written = 0

    def close(self) -> None:
        """End all processes."""
        for worker in (self._maker, self._ours, self._native):
            worker.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def sound(self) -> dict[str, Finding]:
        """Read the seeds as they are; return what is wrong with them."""
        wrong: dict[str, Finding] = {}
        number, seconds = -1, self._ours.seconds
        # what is imported only now is not counted
        self._ours.seconds = self._native.seconds = IMPORTING
        while (made := self._make(number)) is not None:
            folder, entry, name, *_ = made
            found = self._ours.ask((folder, entry, 0))
            theirs = [self._native.ask((folder, entry, self.kind.name, n)) for n in self._range()]
            if self.kind.moves and not found.end:
                found = found._replace(value=by_last_part(found.value))
            self._known[name] = _alike(found, theirs)
            # what is compressed in an archive is refused as a whole
            error = None if found.end else found.value.error
            if found.end or (error is not None and error.type != "UnsupportedError"):
                wrong[name] = Finding(found.end or "refused", "sound", str(found.value)[:3000])
            shutil.rmtree(folder)
            number -= 1
        self._import_what_was_needed()
        self._ours.seconds = self._native.seconds = seconds
        return wrong

    def _import_what_was_needed(self) -> None:
        """Import here what the workers have imported, so that new ones need not."""
        for worker in (self._ours, self._native):
            answer = worker.ask(MODULES)
            names = [] if answer.end else answer.value
            if "eccodes" in names and "pyproj" in names:
                # in this order alone they do not end the process
                import_pyproj()
            for name in names:
                if any(package in name for package in THREADED):
                    continue
                with suppress(ImportError):
                    import_module(name)
            worker.stop()

    def case(self, number: int) -> Case:
        """Try a case."""
        made = self._make(number)
        assert made is not None
        folder, entry, seed, print_, sound = made
        way = number % self.kind.ways
        self._ours.begin((folder, entry, way))
        if self.kind.judge is not None:
            # both at once, since most of a case is reading
            self._native.begin((folder, entry, self.kind.name, DESCRIPTION))
        answer = self._ours.finish()
        natives: list[Answer] = []
        if answer.end:
            what = "memory" if answer.end == "memory" else answer.end.split()[0]
            findings = [Finding(what, _last_place(answer), f"{answer.end}\n{answer.value}")]
        else:
            findings = untyped(answer.value)
        if self.kind.judge is not None:
            natives = [self._native.finish()]
            if not answer.end and not natives[0].end:
                both = answer.value, natives[0].value
                findings += self.kind.judge(*both, sound)
                findings += self._different_values(folder, entry) if sound else []
        elif not answer.end and way in self.kind.compared:
            whole = way in self.kind.whole
            compared, natives = self._compared(folder, entry, seed, whole, answer.value)
            findings += compared
        shutil.rmtree(folder, ignore_errors=True)
        return Case(seed, print_, answer, natives, findings)

    def copy_files(self, number: int, folder: Path) -> tuple[Path, str]:
        """Copy the files of a case into a folder of a folder; return it, and which one is opened.

        Not all libraries write the same bytes twice, so another run may not make these files again.
        """
        made = self._make(number)
        assert made is not None
        source, entry, *_ = made
        target = folder / f"{self.kind.name}-{number}"
        shutil.copytree(source, target, dirs_exist_ok=True)
        shutil.rmtree(source)
        return target, entry

    def _different_values(self, folder: str, entry: str) -> list[Finding]:
        """Compare the values of a sound file with those that the native library reads."""
        ours = self._ours.ask((folder, entry, VALUES))
        native = self._native.ask((folder, entry, self.kind.name, VALUES))
        return [] if ours.end or native.end else different_values(ours.value, native.value)

    def _compared(
        self, folder: str, entry: str, seed: str, whole: bool, ours: Outcome
    ) -> tuple[list[Finding], list[Answer]]:
        """Ask native readers until one agrees with every array."""
        found: dict[str, Finding] | None = None
        natives = []
        if self.kind.moves:
            ours = by_last_part(ours)
        known = self._known.get(seed, set())
        if not whole:
            known = {name for name in known if "/" not in name}
        for number in self._range():
            if not any(isinstance(v, Values) for v in ours.found.values()):
                break
            answer = self._native.ask((folder, entry, self.kind.name, number))
            natives.append(answer)
            if answer.end and answer.end != "memory":
                continue
            now = differing(ours, answer.value, known)
            # what one reader says and another does not know stands
            silent = {n for n in found or {} if not _has(answer.value, n)}
            found = (
                now
                if found is None
                else {n: f for n, f in found.items() if n in now or n in silent}
            )
            if not found:
                break
        return list((found or {}).values()), natives

    def _make(self, number: int) -> tuple[str, str, str, str, bool] | None:
        # a new folder each time: what is kept by url is not that of another case
        self._written += 1
        folder = str(self._folder / f"case{self._written}")
        answer = self._maker.ask((folder, number))
        if answer.end:
            raise RuntimeError(
                f"{self.kind.name} {number}: the maker: {answer.end}\n{answer.value}"
            )
        made = answer.value
        if made["seed"] is None:
            return None
        return folder, made["entry"], made["seed"], made["print"], made["sound"]

    def _range(self) -> range:
        return range(self.kind.natives)


def _without_paths(text: str) -> str:
    return re.sub(r"/\S+|\d+", "~", text)


def _has(outcome: Outcome, name: str) -> bool:
    return isinstance(outcome.found.get(name), Values)


def _alike(ours: Answer, natives: list[Answer]) -> set[str]:
    """Return which arrays of a sound file all readers that know them read alike."""
    if ours.end:
        return set()
    names = {n for n, v in ours.value.found.items() if isinstance(v, Values)}
    heard: set[str] = set()
    for answer in natives:
        if not answer.end:
            heard |= {n for n in names if _has(answer.value, n)}
            names -= set(differing(ours.value, answer.value, None))
    return names & heard


def _last_place(answer: Answer) -> str:
    """Return the innermost line of ours in the stacks that a killed worker left."""
    text = answer.value if isinstance(answer.value, str) else ""
    lines = [line for line in text.splitlines() if "/virtualds/" in line and "File" in line]
    return f"{answer.end} {lines[0].rpartition('/virtualds/')[2] if lines else text[-100:]}"


# ---------------------------------------------------------------------- campaigns


class Campaign:
    """Cases of many kinds, with what is known of them in a folder.

    Parameters
    ----------
    state : path
        The folder.
    work : path
        Where the files of cases lie.
    first, step : int
        The number of the first case, and how far it is from case to case.
    """

    def __init__(self, state: Path, work: Path, first: int = 0, step: int = 1) -> None:
        self._state, self._work = state, work
        self._first, self._step = first, step
        state.mkdir(parents=True, exist_ok=True)
        path = state / "progress.json"
        said = json.loads(path.read_text()) if path.exists() else {}
        self.progress = {name: Progress(**how) for name, how in said.items()}

    def run(self, name: str, seconds: float, cases: int | None = None) -> None:
        """Try cases of a kind until they have taken so long, or there are so many, in all."""
        progress = self.progress.setdefault(name, Progress())
        if progress.seconds >= seconds or (cases is not None and progress.cases >= cases):
            return
        fuzzer = Fuzzer(kind(name), self._work / name)
        try:
            for seed, finding in fuzzer.sound().items():
                self._note(name, progress, -1, seed, "", finding, True)
            told = began = time.monotonic()
            before = progress.seconds
            while progress.seconds < seconds and (cases is None or progress.cases < cases):
                self._try(name, fuzzer, progress)
                progress.cases += 1
                now = time.monotonic()
                progress.seconds = before + now - began
                if now - told > 20:
                    told = now
                    self._keep()
        finally:
            fuzzer.close()
            self._keep()

    def _try(self, name: str, fuzzer: Fuzzer, progress: Progress) -> None:
        case = fuzzer.case(self._number(progress))
        known = fuzzer._known.get(case.seed) or set()
        if not case.ours.end and case.ours.value.error is not None:
            progress.refused += 1
        elif not case.findings:
            progress.equal += 1
        progress.natives_died += sum(bool(answer.end) for answer in case.natives)
        for answer in case.natives:
            if not answer.end and not case.ours.end:
                listed = demands if fuzzer.kind.judge else partial(lenient, known=known)
                for said in map(_without_paths, listed(case.ours.value, answer.value)):
                    progress.lenient[said] = progress.lenient.get(said, 0) + 1
        if case.findings:
            self._look_again(name, fuzzer, progress, case)

    def _number(self, progress: Progress) -> int:
        return self._first + self._step * progress.cases

    def _look_again(self, name: str, fuzzer: Fuzzer, progress: Progress, case: Case) -> None:
        """Note findings; those that are written down are tried again by new workers."""
        new = [f for f in case.findings if progress.signs.get(f"{f.what} {f.sign}", 0) < WRITTEN]
        again = set()
        if new:
            fuzzer._ours.stop()
            fuzzer._native.stop()
            again = {(f.what, f.sign) for f in fuzzer.case(self._number(progress)).findings}
            fuzzer.copy_files(self._number(progress), self._state / "files")
        for f in case.findings:
            stands = f not in new or (f.what, f.sign) in again
            self._note(name, progress, self._number(progress), case.seed, case.print, f, stands)

    def _note(
        self,
        name: str,
        progress: Progress,
        number: int,
        seed: str,
        print_: str,
        f: Finding,
        stands: bool,
    ) -> None:
        key = f"{f.what} {f.sign}"
        first = key not in progress.signs
        if stands:
            progress.signs[key] = progress.signs.get(key, 0) + 1
            progress.findings[f.what] = progress.findings.get(f.what, 0) + 1
        else:
            progress.alone += 1
        if progress.signs.get(key, 0) > WRITTEN:
            return
        said = {"kind": name, "case": number, "seed": seed, "print": print_, "again": stands}
        with (self._state / "findings.jsonl").open("a") as out:
            out.write(
                json.dumps({**said, "what": f.what, "sign": f.sign, "detail": f.detail}) + "\n"
            )
        if first:
            lost = "" if stands else " (not repeated by new workers)"
            head = f.detail.strip().splitlines()[0][:200] if f.detail.strip() else ""
            print(f"{name}:{number} [{seed}] {f.what}{lost}: {f.sign}\n    {head}", flush=True)

    def _keep(self) -> None:
        said = {name: asdict(progress) for name, progress in self.progress.items()}
        part = self._state / "progress.part"
        part.write_text(json.dumps(said, indent=1))
        part.replace(self._state / "progress.json")

    def summary(self) -> str:
        """Return what became of all kinds, as a table."""
        rows = [
            ("kind", "cases", "seconds", "read", "refused", "findings", "causes", "native died")
        ]
        for name, p in self.progress.items():
            counts = ", ".join(f"{n} {what}" for what, n in sorted(p.findings.items())) or "none"
            died = str(p.natives_died)
            rows.append(
                (
                    name,
                    f"{p.cases}",
                    f"{p.seconds:.0f}",
                    f"{p.equal}",
                    f"{p.refused}",
                    counts,
                    f"{len(p.signs)}",
                    died,
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(c.ljust(n) for c, n in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)

    def lenience(self) -> str:
        """Return what native readers say where they refuse what we read, most often said first."""
        lines = []
        for name, p in self.progress.items():
            for said, count in Counter(p.lenient).most_common(12):
                lines.append(f"{name}  {count}  {said}")
        return "\n".join(lines)


def replay(name: str, number: int, work: Path, keep: Path | None = None) -> Case:
    """Try one case again, in new processes, and leave its files in a folder if asked to."""
    fuzzer = Fuzzer(kind(name), work / name)
    try:
        fuzzer.sound()
        if keep is not None:
            folder, entry = fuzzer.copy_files(number, keep)
            print(f"files are in {folder}; the reader opens {entry}")
        return fuzzer.case(number)
    finally:
        fuzzer.close()
