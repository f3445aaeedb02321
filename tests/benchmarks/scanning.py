"""Compare what scanning costs: python scanning.py FOLDER [WORK ...]; the README tells more.

Every measurement is a process of its own. Readers take turns, and the least of their processor
seconds counts, since other programs use the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from compare import is_installed, record
from scan_jobs import WORKS, Case, list_cases

Result = dict[str, Any]
"""Least seconds, greatest peak memory in MB, and the check with facts of the first measurement."""

OURS = ("floor", "virtualds scan", "two processes", "dask", "traced", "native", "shares")
"""Readers that need nothing but what the tests need."""
COMPARED = ("chunks", "offsets", "lengths", "value", "last")
"""Facts that readers of a case agree about."""
ENOUGH = 10_000
"""References that tell how memory grows with them."""
PATIENCE = 20
"""Seconds that a reader may take in all before its turn is left out."""


# ---------------------------------------------------------------------- one measurement


def measure_here(case: Case, reader: str) -> Result:
    """Prepare, and measure once, in this process and those that it starts."""
    job = case.prepare(reader)
    before = memory("VmRSS")
    # sets the peak back to what is used now (proc(5))
    Path("/proc/self/clear_refs").write_text("5")
    others = seconds_of_others()
    begin, worked = time.perf_counter(), time.process_time()
    check = job()
    processor = time.process_time() - worked
    seconds = time.perf_counter() - begin
    processor += seconds_of_others() - others
    peak = memory("VmHWM")
    facts = check()
    if facts.get("chunks", 0) >= ENOUGH:
        facts["grown_bytes"] = round((peak - before) * 2**20 / facts["chunks"])
    workers = max((memory("VmHWM", pid) for pid in descendants()), default=0)
    return {"processor": processor, "seconds": seconds, "peak_mb": peak, "facts": facts} | (
        {"worker_mb": workers} if workers else {}
    )


def memory(what: str, pid: int | str = "self") -> float:
    """Return memory of a process in MB: ``VmRSS`` now, ``VmHWM`` at its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    known = dict(line.split(":", 1) for line in lines)
    return int(known[what].split()[0]) / 1024 if what in known else 0.0


def descendants(pid: int | str = "self") -> Iterator[int]:
    """Yield the processes that this one started, and those that they did; no web server."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            if b"latency_server" not in Path(f"/proc/{child}/cmdline").read_bytes():
                yield child
                yield from descendants(child)


def seconds_of_others() -> float:
    """Return the processor seconds of the processes below this one, ended ones too."""
    times = os.times()
    total = times.children_user + times.children_system
    for child in descendants():
        # the name, which may hold anything, ends with a bracket
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


# ---------------------------------------------------------------------- readers in turn


def measure(command: list[str]) -> Result:
    """Measure once, in a new process."""
    program = [sys.executable, __file__, *command]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildProcessError((done.stderr.strip().splitlines() or ["it was killed"])[-1])
    found: Result = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compare(case: Case, run: Callable[[str], Result], runs: int) -> dict[str, Result]:
    """Measure all readers of a case in turn."""
    found: dict[str, list[Result]] = {
        reader: [] for reader in case.readers if reader in OURS or is_installed(reader)
    }
    for _ in range(runs):
        for reader, measured in tuple(found.items()):
            took = sum(m["seconds"] for m in measured)
            if measured and took + took / len(measured) > PATIENCE:
                continue
            try:
                measured.append(run(reader))
            except ChildProcessError as error:
                print(f"  {reader:16} cannot: {error!s:.100}")
                del found[reader]
    results = {reader: _least(measured) for reader, measured in found.items()}
    _check_agreement(results)
    return results


def _least(measured: list[Result]) -> Result:
    found = {name: min(m[name] for m in measured) for name in ("processor", "seconds")}
    found |= {
        name: max(m[name] for m in measured)
        for name in ("peak_mb", "worker_mb")
        if name in measured[0]
    }
    return found | {"facts": measured[0]["facts"], "check": _checked(measured[0])}


def _checked(result: Result) -> dict[str, Any]:
    return {name: result["facts"][name] for name in COMPARED if name in result["facts"]}


def _check_agreement(results: Mapping[str, Result]) -> None:
    """Mark readers that found something else than the first."""
    first = next(iter(results.values()))["check"] if results else {}
    for result in results.values():
        # decoders differ in precision; places of chunks are exact
        if not all(
            math.isclose(value, first[name], rel_tol=1e-6 if name == "last" else 0)
            for name, value in result["check"].items()
        ):
            result["facts"]["DIFFERS"] = True


def show(title: str, case: Case, results: Mapping[str, Result]) -> None:
    """Print a case as rows of the table."""
    first = next(iter(results.values()))["processor"]
    for reader, result in results.items():
        facts = {k: v for k, v in result["facts"].items() if k not in COMPARED}
        if "worker_mb" in result:
            facts["worker_mb"] = round(result["worker_mb"])
        told = ", ".join(f"{name} {value}" for name, value in facts.items())
        each = result["processor"] / case.count * (1e3 if case.unit == "file" else 1e6)
        unit = "ms" if case.unit == "file" else "us"
        print(
            f"| {title} | {reader} | {result['processor']:.3f} | {result['seconds']:.3f} | "
            f"{result['processor'] / first:.3f} | {each:.3f} {unit} | {result['peak_mb']:.0f} | "
            f"{told} |",
            flush=True,
        )


HEAD = """\
| work | reader | processor s | wall s | of the first | each | peak MB | |
|---|---|---:|---:|---:|---:|---:|---|"""


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", nargs="*", default=list(WORKS), help=", ".join(WORKS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--reader", action="append", help="measure only this one; repeatable")
    parser.add_argument("--files", type=int, help="another number of files for `linear`")
    parser.add_argument("--record", type=Path, help="JSON file to write results to")
    parser.add_argument("--measure", nargs=2, metavar=("CASE", "READER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    if chosen.measure:
        warnings.filterwarnings("ignore")
        name, reader = chosen.measure
        case = list_cases(chosen.work[0], folder, chosen.files)[name]
        print(json.dumps(measure_here(case, reader)))
        return
    print(HEAD)
    for work in chosen.work:
        for name, case in list_cases(work, folder, chosen.files).items():
            of = [] if chosen.files is None else ["--files", str(chosen.files)]
            command = [str(folder), work, *of, "--measure", name]
            if chosen.reader:
                case = case._replace(readers=[r for r in case.readers if r in chosen.reader])
            results = compare(case, lambda reader, c=command: measure([*c, reader]), chosen.runs)
            title = f"{work}: {name}" if name else work
            show(title, case, results)
            if chosen.record:
                record(chosen.record, title, results)


if __name__ == "__main__":
    main()
