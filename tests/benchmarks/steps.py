"""Measure the steps of a benchmark, each in a process of its own: time, bytes read, memory."""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

Work = Callable[[], Any]


class Own(NamedTuple):
    """What a step returns that measures only a part of itself: that part."""

    work: Work


def measure(work: Work) -> tuple[Any, dict[str, float]]:
    """Return what some work returns, and what it took."""
    gc.collect()
    begun = take_stock()
    found = work()
    if isinstance(found, Own):
        return measure(found.work)
    after = take_stock()
    return found, {name: value - begun[name] for name, value in after.items()}


def take_stock() -> dict[str, float]:
    """Return seconds, processor seconds and bytes of this process and of those that it started."""
    mine, others = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    lines = Path("/proc/self/io").read_text().split()
    return {
        "seconds": time.perf_counter(),
        "processor": sum(one.ru_utime + one.ru_stime for one in (mine, others)),
        "read": float(lines[lines.index("rchar:") + 1]),
        "calls": float(lines[lines.index("syscr:") + 1]),
        "from disk": float(lines[lines.index("read_bytes:") + 1]),
    }


def find_peak() -> int:
    """Return the peak memory, in bytes, of this process or the largest that it has started."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(who).ru_maxrss for who in kinds) * 1024


def run_here(work: Work) -> None:
    """Do a step in this process, and print what it took, as JSON."""
    result, taken = measure(work)
    print(json.dumps({**taken, "memory": find_peak(), "result": result}))


def add_arguments(parser: argparse.ArgumentParser, steps: Collection[str]) -> None:
    """Add the arguments of all programs that measure steps."""
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary one")
    parser.add_argument("--record", type=Path, help="a JSON file to add the numbers to")
    parser.add_argument("--only", action="append", default=[], choices=steps, help="these steps")
    parser.add_argument("--step", choices=steps, help=argparse.SUPPRESS)


def run_apart(
    name: str, arguments: Sequence[object], prepare: Callable[[], object] | None = None
) -> Any:
    """Return what a step of this program took in a process of its own, or None if it failed."""
    done = subprocess.run(
        [sys.executable, sys.argv[0], "--step", name, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=prepare,
    )
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


def run_steps(
    steps: Iterable[str],
    arguments: Sequence[object],
    kind: str,
    count: int,
    path: Path | None,
) -> Iterator[tuple[str, Any]]:
    """Run, print and record steps, and yield the name of each with what it took."""
    print_head()
    for name in steps:
        found = run_apart(name, arguments)
        print_row(name, found)
        record(path, kind, name, count, found)
        yield name, found


COLUMNS = ("seconds", "processor", "read MB", "disk MB", "peak MB")


def print_head() -> None:
    """Print the head of the table of steps."""
    print(" " * 26 + "".join(f"{name:>10}" for name in COLUMNS), flush=True)


def print_row(name: str, found: Any) -> None:
    """Print what a step took."""
    if found is None:
        print(f"{name:26}   failed", flush=True)
        return
    keys = ("read", "from disk", "memory")
    numbers = (found["seconds"], found["processor"], *(found[key] / 1e6 for key in keys))
    row = "".join(f"{number:10.3f}" for number in numbers)
    print(f"{name:26}{row}   {found['result']}", flush=True)


def record(path: Path | None, kind: str, name: str, count: int, found: Any) -> None:
    """Keep the numbers of a step of a benchmark in a JSON file, in place of older ones."""
    if path is None or found is None:
        return
    known = json.loads(path.read_text()) if path.exists() else {}
    numbers = {key: round(value, 4) for key, value in found.items() if key != "result"}
    known.setdefault(kind, {}).setdefault(name, {})[str(count)] = numbers
    path.write_text(json.dumps(known, indent=1) + "\n")


def later(work: Callable[..., Any], *arguments: Any) -> Own:
    """Return a part of a step that is measured, without what came before."""
    return Own(partial(work, *arguments))
