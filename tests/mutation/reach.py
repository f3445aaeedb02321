"""Which tests execute which lines of the package: measured once, kept in the state folder.

The tests of a folder are measured together: what each executes is in a file of coverage.py, a
context for each test, and beside it stand the seconds of each. A test file that changes is measured
again. Lines of a module that has changed since are no longer known; its tests still are those that
execute any of its lines.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mutation.breaks import Break
from mutation.forked import copy_project, run_pytest, temporary_folder

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "virtualds"
LINE, SCOPE, MODULE, BESIDE = range(4)
"""How near a test is to a break: it executes its line, its function or class, or its module, or it
is of its package."""
AHEAD = 4
"""So many tests of a file in the package's own folder come before the second of another file."""


class Measuring:
    """A plugin of pytest: the lines that each test executes, its seconds, and whether it passes."""

    def __init__(self, package: Path, data: Path) -> None:
        import coverage

        self.seconds: dict[str, float] = {}
        self.others: set[str] = set()
        self._coverage = coverage.Coverage(
            data_file=str(data), source=[str(package)], config_file=False, messages=False
        )
        self._coverage.erase()
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._coverage.switch_context(item.nodeid)
        began = _count_processor_seconds()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = _count_processor_seconds() - began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.others.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()


def _count_processor_seconds() -> float:
    """Return those of this process and of others that it waited for."""
    return sum(os.times()[:4])


def list_unmeasured(state: Path) -> dict[str, list[Path]]:
    """Return the test files of each folder of tests that are not measured as they are."""
    known = {item for found in read_measured(state).values() for item in found["files"].items()}
    parts: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        parent = path.relative_to(TESTS).parent
        is_known = known.issuperset(_digest([path], TESTS).items())
        if parent.parts[:1] not in [("benchmarks",), ("data",)] and not is_known:
            parts["-".join(parent.parts) or "beside"].append(path)
    return dict(parts)


def read_measured(state: Path) -> dict[Path, dict[str, Any]]:
    """Return what was measured: of each file of coverage.py what stands beside it."""
    found = sorted(state.glob("*.measured"), key=lambda path: path.stat().st_mtime)
    return {path.with_suffix(".coverage"): json.loads(path.read_text()) for path in found}


def measure(part: str, files: list[Path], state: Path) -> None:
    """Run tests in a copy of the project, and note what each executes."""
    number = len(list(state.glob(f"{part}-*.measured")))
    data = state / f"{part}-{number}.coverage"
    known = {
        "files": _digest(files, TESTS),
        "modules": _digest(sorted(PACKAGE.rglob("*.py")), PACKAGE),
    }
    told = data.with_suffix(".measured")

    def note(plugin: Measuring) -> None:
        passed = {n: round(s, 3) for n, s in plugin.seconds.items() if n not in plugin.others}
        known["tests"], known["others"] = passed, sorted(plugin.others)
        told.write_text(json.dumps(known, indent=0))

    with temporary_folder() as folder:
        copy_project(folder)
        names = [str(path.relative_to(TESTS.parent)) for path in files]
        run_pytest(
            folder,
            ["-m", "not full", "--continue-on-collection-errors", *names],
            make_plugin=lambda: Measuring(folder / "virtualds", data),
            finish=note,
            limit=7200,
        )
        if not told.exists():
            printed = (folder / "printed").read_text()[-2000:]
            raise RuntimeError(f"the tests of {part} were not measured: {printed}")


def _digest(paths: list[Path], folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha1(path.read_bytes()).hexdigest()
        for path in paths
    }


class Reach:
    """What was measured, as answers to: which tests may find this break?

    Parameters
    ----------
    state : Path
        The folder that holds what was measured.
    """

    def __init__(self, state: Path) -> None:
        self._lines = functools.lru_cache(maxsize=40)(self._read_lines)
        self._measured = read_measured(state)
        self.seconds: dict[str, float] = {}
        for known in self._measured.values():
            files = [TESTS / name for name in known["files"] if (TESTS / name).exists()]
            same = _digest(files, TESTS).items() & known["files"].items()
            names = {f"tests/{name}" for name, _ in same}
            tests = known["tests"].items()
            known["tests"] = {t: s for t, s in tests if t.partition("::")[0] in names}
            self.seconds |= known["tests"]

    def _read_lines(self, data: Path, module: str) -> dict[int, set[str]]:
        """Return which tests executed each line of a module."""
        from coverage import CoverageData

        lines = CoverageData(basename=str(data))
        lines.read()
        names = [name for name in lines.measured_files() if name.endswith(f"/virtualds/{module}")]
        found = lines.contexts_by_lineno(names[0]) if names else {}
        return {line: set(tests) for line, tests in found.items()}

    def is_run(self, module: str) -> bool:
        """Return whether any test imports a module: some need what is not installed here."""
        return any(self._lines(data, module) for data in self._measured)

    def order_tests(self, made: Break) -> list[str]:
        """Return the tests that may find a break, those first that are likely to find it soon.

        The nearest are first, of these one of each file, then the next of each, the quickest first.
        """
        near = dict(self._measure_distances(made))
        own = f"tests/{made.module.split('/')[0]}/"
        places: Counter[tuple[int, str]] = Counter()
        keys = {}
        for test in sorted(near, key=lambda test: (self.seconds[test], test)):
            file = test.partition("::")[0]
            turn = places[near[test], file] // (AHEAD if file.startswith(own) else 1)
            places[near[test], file] += 1
            keys[test] = (near[test], turn, not file.startswith(own), self.seconds[test])
        return sorted(keys, key=keys.__getitem__)

    def _measure_distances(self, made: Break) -> Iterator[tuple[str, int]]:
        """Yield tests and how near they are, the nearest last."""
        own = f"tests/{made.module.split('/')[0]}/"
        yield from ((test, BESIDE) for test in self.seconds if test.startswith(own))
        digest = _digest([PACKAGE / made.module], PACKAGE)[made.module]
        for data, known in self._measured.items():
            lines = self._lines(data, made.module)
            first, last = made.scope
            stages = [(MODULE, set(lines))]
            # any test of the module may find what lies in no function
            if last and known["modules"].get(made.module) == digest:
                stages += [(SCOPE, set(range(first + 1, last + 1))), (LINE, {made.line})]
            for distance, wanted in stages:
                for line in wanted & set(lines):
                    yield from ((t, distance) for t in lines[line] if t in known["tests"])
