"""Break the code in many small ways, and count which breaks its tests find.

The first run measures which of the quick tests execute which lines of the package (about 15
minutes). Each break is then made in a copy of the project, where the tests run that reach it: those
of its line first, then those of its function, of its module and of its package, until they have
taken as long as the budget. A break that all of them pass has survived.

``make mutants MUTANTS='codecs stores'`` runs it. A run that is interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from mutation.breaks import Break, list_breaks
from mutation.forked import (
    TOO_LONG,
    copy_project,
    import_libraries,
    run_pytest,
    temporary_folder,
)
from mutation.reach import PACKAGE, Reach, list_unmeasured, measure

EQUIVALENT = Path(__file__).with_name("equivalent.txt")
"""Breaks that change nothing that anybody can see, a line each with the reason."""
BATCHES = (8, 32)
"""So many tests run first, so many next; then the rest, with cases that `make test` leaves out."""
CASES = 4
"""So many times as long as the measured cases of a test all of them take, roughly."""
PER_FILE = 0.3
"""Seconds that importing a test file takes."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("packages", nargs="*", help="names of packages; by default all")
    parser.add_argument("--mutants", type=int, default=50, help="breaks of each package")
    parser.add_argument("--seed", type=int, default=0, help="decides which breaks are made")
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests for a break")
    parser.add_argument("--workers", type=int, default=2, help="breaks that are tried at a time")
    parser.add_argument("--state", type=Path, default=Path("mutation-state"), help="results")
    parser.add_argument("--again", action="store_true", help="try those again that survived")
    parser.add_argument("--list", action="store_true", help="only list the breaks")
    return parser.parse_args()


def list_packages() -> list[str]:
    """Return the names of the packages below the package."""
    return sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def choose_breaks(
    package: str, count: int, seed: int, left_out: Collection[str] = ()
) -> list[Break]:
    """Return breaks of a package, each line of code as likely as any other.

    More of them begin with the same ones, and so they do when other lines change. Modules that are
    left out have none.
    """
    by_line: dict[tuple[str, int], list[Break]] = {}
    for module in sorted((PACKAGE / package).rglob("*.py")):
        for made in list_breaks(PACKAGE, module):
            if made.module not in left_out:
                by_line.setdefault((made.module, made.line), []).append(made)
    lines = sorted(by_line.values(), key=lambda line: _draw(seed, *line))
    return [min(line, key=lambda made: _draw(seed, made)) for line in lines[:count]]


def _draw(seed: int, *breaks: Break) -> bytes:
    """Return what is as good as chance, and the same for the same breaks on another line."""
    words = [str(seed), *(drop_line_number(str(made)) for made in breaks)]
    return hashlib.sha1("\n".join(words).encode()).digest()


def break_project(folder: Path, made: Break) -> None:
    """Make a folder a copy of the project with a break."""
    copy_project(folder)
    broken = folder / "virtualds" / made.module
    for compiled in broken.parent.glob(f"__pycache__/{broken.stem}.*.pyc"):
        compiled.unlink()
    broken.write_text(made.apply(broken.read_text()))


class FirstFailure:
    """A plugin of pytest: the first test that fails, or file that cannot be imported."""

    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.name = self.name or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.name = self.name or f"import of {report.nodeid}"


def run_tests(folder: Path, tests: list[str], limit: float) -> str:
    """Return what fails first of some tests in a copy of the project: empty if all pass."""
    told = folder / "failed"
    told.unlink(missing_ok=True)
    status = run_pytest(
        folder,
        ["-x", "-m", "not full or alike", *tests],
        make_plugin=FirstFailure,
        finish=lambda plugin: told.write_text(plugin.name),
        limit=limit,
    )
    # 5: no test was chosen
    if status in (0, 5):
        return ""
    name = told.read_text() if told.exists() else ""
    if status == TOO_LONG:
        return f"no end in {limit:.0f} s"
    return name or f"pytest ends with {status}"


class Judge:
    """Tries breaks against the tests that reach them.

    Parameters
    ----------
    state : Path
        The folder that holds which tests reach what.
    budget : float
        Seconds that the tests of a break may take, as measured.
    folder : Path
        Copies of the project are made there.
    """

    def __init__(self, state: Path, budget: float, folder: Path) -> None:
        self._reach = Reach(state)
        self._broken, self._whole = folder / "broken", folder / "whole"
        self._budget = budget
        self._seconds = Counter(self._reach.seconds)
        for test, seconds in self._reach.seconds.items():
            if test != _name_test(test):
                self._seconds[_name_test(test)] += CASES * seconds
        self._false: set[str] = set()
        self._true: set[str] = set()

    def try_break(self, made: Break) -> dict[str, object]:
        """Return what the tests say of a break."""
        began = time.monotonic()
        found, count = "", 0
        break_project(self._broken, made)
        for batch in self._cut(self._reach.order_tests(made)):
            count += len(batch)
            found = self._find(batch)
            if found:
                break
        seconds = round(time.monotonic() - began, 1)
        return {"break": str(made), "found by": found, "tests": count, "seconds": seconds}

    def _cut(self, tests: list[str]) -> Iterator[list[str]]:
        """Yield tests in a few batches: as many as the budget has room for, then all cases."""
        taken, start = self._fit(tests), 0
        for size in BATCHES:
            if taken[start : start + size]:
                yield taken[start : start + size]
            start += size
        named = [(place, test, _name_test(test)) for place, test in enumerate(taken)]
        rest = [name for place, test, name in named if place >= start or test != name]
        if rest:
            yield self._fit(list(dict.fromkeys(rest)))

    def _fit(self, tests: list[str]) -> list[str]:
        """Return the first of some tests, as many as the budget has room for."""
        files: set[str] = set()
        spent = 0.0
        for count, test in enumerate(tests):
            file = test.partition("::")[0]
            spent += self._seconds[test] + PER_FILE * (file not in files)
            files.add(file)
            if count and spent > self._budget:
                return tests[:count]
        return tests

    def _find(self, batch: list[str]) -> str:
        """Return what of a batch fails with a break and passes without it."""
        while batch := [test for test in batch if test not in self._false]:
            found = run_tests(self._broken, batch, self._limit(batch))
            test = found if found in batch else _name_test(found)
            failing = [test] if test in batch else batch
            if not found or self._true.issuperset(failing):
                return found
            copy_project(self._whole)
            is_true = not run_tests(self._whole, failing, self._limit(failing))
            if is_true:
                self._true.update(failing)
                return found
            if failing == batch:
                break
            self._false.update(failing)
        return ""

    def _limit(self, tests: list[str]) -> float:
        return 60 + 10 * sum(self._seconds[test] for test in tests)


def _name_test(case: str) -> str:
    """Return the name of a test without that of its case."""
    return case.partition("[")[0]


@functools.cache
def _make_judge(state: Path, budget: float, folder: Path) -> Judge:
    return Judge(state, budget, folder / str(os.getpid()))


def try_break(made: Break, state: Path, budget: float, folder: Path) -> dict[str, object]:
    """Return what the tests say of a break; a process reads once what was measured."""
    return _make_judge(state, budget, folder).try_break(made)


def read_equivalent() -> set[str]:
    """Return the breaks that change nothing, without their line numbers."""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    return {line.split("  # ")[0].strip() for line in lines if line and not line.startswith("#")}


def drop_line_number(text: str) -> str:
    """Return a break in words without the number of its line, which changes.

    Examples
    --------
    >>> drop_line_number("codecs/zlib.py:12 Zlib.decode: 1 -> 2")
    'codecs/zlib.py Zlib.decode: 1 -> 2'
    """
    return re.sub(r"\.py:\d+", ".py", text, count=1)


def measure_all(state: Path, workers: int) -> None:
    """Measure the tests that are not known yet."""
    missing = list_unmeasured(state)
    if not missing:
        return
    print(f"measuring what tests execute, folders: {len(missing)}", flush=True)
    import_libraries()
    with _start_pool(workers) as pool:
        for done in [pool.submit(measure, *part, state) for part in missing.items()]:
            done.result()


def _start_pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"))


def main() -> int:
    options = parse_arguments()
    packages = options.packages or list_packages()
    unknown = sorted(set(packages) - set(list_packages()))
    if unknown:
        print(f"no such packages: {', '.join(unknown)}; there are {', '.join(list_packages())}")
        return 2
    state = options.state.absolute()
    state.mkdir(exist_ok=True)
    measure_all(state, options.workers)
    reach = Reach(state)
    modules = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    left_out = {module for module in modules if not reach.is_run(module)}
    breaks = {
        package: choose_breaks(package, options.mutants, options.seed, left_out)
        for package in packages
    }
    if options.list:
        print("\n".join(str(made) for chosen in breaks.values() for made in chosen))
        return 0
    results = state / f"results-{options.seed}.jsonl"
    known = read_results(results)
    todo = [
        made
        for chosen in breaks.values()
        for made in sorted(chosen)
        if str(made) not in known or (options.again and not known[str(made)]["found by"])
    ]
    import_libraries()
    with (
        temporary_folder() as folder,
        _start_pool(options.workers) as pool,
        results.open("a") as file,
    ):
        judge = functools.partial(try_break, state=state, budget=options.budget, folder=folder)
        for row in pool.map(judge, todo):
            print(json.dumps(row), file=file, flush=True)
            known[str(row["break"])] = row
            how = "found" if row["found by"] else "SURVIVED"
            print(f"{how} ({row['seconds']} s)  {row['break']}", flush=True)
    return not report(breaks, known, left_out)


def read_results(results: Path) -> dict[str, dict[str, object]]:
    """Return the last result of each break that was tried."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {row["break"]: row for row in map(json.loads, lines)}


def report(
    breaks: dict[str, list[Break]], known: dict[str, dict[str, object]], left_out: set[str]
) -> bool:
    """Print how many breaks of each package were found, and return whether these are enough."""
    equivalent = read_equivalent()
    is_good = True
    for package, chosen in breaks.items():
        counted = [made for made in chosen if drop_line_number(str(made)) not in equivalent]
        survived = [made for made in counted if not known[str(made)]["found by"]]
        killed = len(counted) - len(survived)
        print(f"{package}: {killed} of {len(counted)} breaks found", flush=True)
        for made in survived:
            print(f"  survived: {made}")
        for module in sorted(left_out):
            if module.startswith(f"{package}/"):
                print(f"  no test runs {module} here")
        is_good &= 10 * killed >= 9 * len(counted)
    return is_good


if __name__ == "__main__":
    sys.exit(main())
