"""Break the code in many small ways, and count which breaks its tests find.

Each break is made in a copy of the package, which the tests import in place of the package. First
run the tests that name what is broken, then those of its package, then those of the packages that
import the broken module. A break that all of them pass has survived.

``make mutants MUTANTS='codecs stores'`` runs it. It takes about a minute for a break that is found,
and some ten for one that is not; a run that is interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mutation.breaks import Break, list_breaks

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "virtualds"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
"""Breaks that change nothing that anybody can see, a line each with the reason."""
LONGEST = 1800
"""Seconds after which the tests of a break are taken to wait for ever, so that it is found."""
Stage = list[str]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("packages", nargs="*", help="names of packages; by default all")
    parser.add_argument("--mutants", type=int, default=50, help="breaks of each package")
    parser.add_argument("--seed", type=int, default=0, help="decides which breaks are made")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest")
    parser.add_argument("--state", type=Path, default=Path("mutation-state"), help="results")
    parser.add_argument("--list", action="store_true", help="only list the breaks")
    return parser.parse_args()


def list_packages() -> list[str]:
    """Return the names of the packages below the package."""
    return sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def choose_breaks(package: str, count: int, seed: int) -> list[Break]:
    """Return breaks of a package, each line of code as likely as any other."""
    modules = sorted((PACKAGE / package).rglob("*.py"))
    found = [made for module in modules for made in list_breaks(PACKAGE, module)]
    by_line: dict[tuple[str, int], list[Break]] = {}
    for made in found:
        by_line.setdefault((made.module, made.line), []).append(made)
    chance = random.Random(f"{seed} {package}")
    lines = chance.sample(sorted(by_line), min(count, len(by_line)))
    return [chance.choice(by_line[line]) for line in lines]


def list_stages(made: Break) -> Iterator[Stage]:
    """Yield the tests to run, the nearest first; each stage leaves out those before it."""
    module = made.module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package = made.module.split("/")[0]
    own = list((TESTS / package).rglob("test_*.py"))
    words = [rf"virtualds\.{re.escape(module)}\b"]
    if made.function:
        words.append(rf"\b{re.escape(made.function.split('.')[-1])}\b")
    named = re.compile("|".join(words))
    everything = [*own, *TESTS.glob("test_*.py")]
    first = [str(path) for path in everything if named.search(path.read_text())]
    if first:
        yield first
    second = [str(path) for path in own if str(path) not in first]
    if second:
        yield second
    importing = re.compile(rf"from virtualds\.{re.escape(module)} import|import {module}\b")
    users = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        if importing.search(path.read_text())
    }
    beside = [str(TESTS / name) for name in sorted(users - {package}) if (TESTS / name).is_dir()]
    if beside:
        yield beside


def copy_with(made: Break, folder: Path) -> None:
    """Put a copy of the package with a break into a folder; all other files are links."""
    copy = folder / "virtualds"
    shutil.copytree(PACKAGE, copy, copy_function=os.link)
    broken = copy / made.module
    text = broken.read_text()
    broken.unlink()
    broken.write_text(made.apply(text))


def run_tests(folder: Path, stage: Stage, workers: int) -> tuple[bool, str]:
    """Return whether tests pass with the package in a folder, and the last line they print."""
    # -P: the package beside the tests would come before the copy
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        str(workers),
        "-m",
        "not full or alike",
    ]
    command += ["-p", "no:cacheprovider", "--tb=no", *stage]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    try:
        done = subprocess.run(
            command, cwd=TESTS.parent, env=env, capture_output=True, text=True, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return False, f"no end after {LONGEST} s"
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]]
    failed = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), lines[-1])
    # 5: no test was chosen
    return done.returncode in (0, 5), failed


def judge(made: Break, workers: int) -> dict[str, object]:
    """Return what the tests say of a break."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="virtualds-mutant-") as name:
        copy_with(made, Path(name))
        found = ""
        for stage in list_stages(made):
            passes, line = run_tests(Path(name), stage, workers)
            if not passes:
                found = line
                break
    seconds = round(time.monotonic() - began)
    return {"break": str(made), "found by": found, "seconds": seconds}


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


def main() -> int:
    options = parse_arguments()
    unknown = sorted(set(options.packages) - set(list_packages()))
    if unknown:
        print(f"no such packages: {', '.join(unknown)}; there are {', '.join(list_packages())}")
        return 2
    options.state.mkdir(exist_ok=True)
    equivalent = read_equivalent()
    is_good = True
    for package in options.packages or list_packages():
        breaks = choose_breaks(package, options.mutants, options.seed)
        if options.list:
            print("\n".join(map(str, breaks)))
            continue
        state = options.state / f"{package}-{options.seed}.jsonl"
        lines = state.read_text().splitlines() if state.exists() else []
        known = {row["break"]: row for row in map(json.loads, lines)}
        for made in breaks:
            if str(made) not in known:
                row = judge(made, options.workers)
                known[str(made)] = row
                with state.open("a") as file:
                    print(json.dumps(row), file=file)
                print(f"{'found' if row['found by'] else 'SURVIVED'} ({row['seconds']} s)  {made}")
        counted = [m for m in breaks if drop_line_number(str(m)) not in equivalent]
        survived = [made for made in counted if not known[str(made)]["found by"]]
        killed = len(counted) - len(survived)
        print(f"{package}: {killed} of {len(counted)} breaks found", flush=True)
        for made in survived:
            print(f"  survived: {made}")
        is_good &= 10 * killed >= 9 * len(counted)
    return not is_good


if __name__ == "__main__":
    sys.exit(main())
