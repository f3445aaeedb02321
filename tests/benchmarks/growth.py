"""Write the tables and pictures of growth to the performance page, from recorded numbers.

    python tests/benchmarks/growth.py tests/benchmarks/growth.json docs/explanation/performance.md

The numbers are those that `real_million`, `many_objects`, `billion` and `million_peers` keep with
``--record``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from billion import STEPS as REFERENCES
from many_objects import STEPS as OBJECTS
from million_peers import LIBRARIES
from page import put
from real_million import STEPS as FILES

Numbers = Mapping[str, Mapping[str, Any]]
"""The numbers of a step, by the number of files or references."""

SOURCE = "by tests/benchmarks/growth.py"
DRAWN = ("build", "sync, nothing new", "diagnose", "verify", "open", "one slice")


def make_table(steps: Iterable[str], results: Mapping[str, Numbers], what: str) -> str:
    """Return the table of the steps for the largest number of files or references of each."""
    lines = [f"| step | {what} | seconds | processor | read | memory |", "|---|" + "---:|" * 5]
    for step in steps:
        if not (by_count := results.get(step)):
            continue
        count = max(by_count, key=int)
        found = by_count[count]
        lines.append(
            f"| {step} | {int(count):,} | {format_number(found['seconds'])} s "
            f"| {format_number(found['processor'])} s | {format_number(found['read'] / 1e9)} GB "
            f"| {format_number(found['memory'] / 1e9)} GB |"
        )
    return "\n".join(lines)


def make_growth_table(steps: Iterable[str], results: Mapping[str, Numbers]) -> str:
    """Return the table of processor seconds by the number of files, and how they grow."""
    counts = sorted({int(count) for step in steps for count in results.get(step, {})})
    head = "".join(f" {count:,} |" for count in counts)
    lines = [f"| files |{head} exponent |", "|---|" + "---:|" * (len(counts) + 1)]
    for step in steps:
        if step not in results:
            continue
        found = {int(n): numbers["processor"] for n, numbers in results.get(step, {}).items()}
        cells = "".join(f" {format_number(found[n])} s |" if n in found else " |" for n in counts)
        exponent = f"{find_exponent(found):.2f}" if len(found) > 1 else ""
        lines.append(f"| {step} |{cells} {exponent} |")
    return "\n".join(lines)


def find_exponent(found: Mapping[int, float]) -> float:
    """Return the slope between the two largest numbers of files, both on logarithmic scales."""
    *_, before, last = sorted(found)
    return math.log(found[last] / found[before]) / math.log(last / before)


def format_number(number: float) -> str:
    """Return a number with two digits, or all digits before the point."""
    if number < 0.0001:
        return "0"
    return f"{number:,.{max(1 - math.floor(math.log10(number)), 0)}f}"


def draw(results: Mapping[str, Numbers], peers: Mapping[str, Numbers], path: Path) -> None:
    """Draw processor seconds by the number of files, of steps and of other libraries."""
    import matplotlib as mpl

    mpl.use("svg")
    # the same picture for the same results
    mpl.rcParams["svg.hashsalt"] = "growth"
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9, 4), layout="constrained", sharex=True, sharey=True
    )
    for axes, names, found, title in (
        (left, DRAWN, results, "virtualds"),
        (right, LIBRARIES, peers, "combine, and write references"),
    ):
        for name in names:
            points = sorted((int(n), some["processor"]) for n, some in found.get(name, {}).items())
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel="files", title=title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    left.set_ylabel("seconds of processor")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw_references(grown: Numbers, path: Path) -> None:
    """Draw bytes on disk and in memory by the number of references."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
    counts = sorted(map(int, grown))
    for key, label in (("disk", "on disk, with all snapshots"), ("memory", "memory at the peak")):
        nbytes = [grown[str(count)][key] for count in counts]
        axes.plot(counts, nbytes, marker="o", label=label)
    axes.plot(counts, [6 * count for count in counts], "--", label="6 bytes a reference")
    axes.set(xscale="log", yscale="log", xlabel="references", ylabel="bytes")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("page", type=Path)
    given = parser.parse_args()
    results = json.loads(given.results.read_text())
    page = given.page.read_text()
    texts = {
        "million": make_table(FILES, results["files"], "files"),
        "growth": make_growth_table(FILES, results["files"]),
        "billion": make_table(REFERENCES, results["billion"], "references"),
        "peers": make_growth_table(LIBRARIES, results["peers"]),
    }
    if results["objects"]:
        texts["objects"] = make_table(OBJECTS, results["objects"], "files")
    for name, text in texts.items():
        page = put(page, name, text, SOURCE)
    given.page.write_text(page)
    folder, stem = given.page.parent, given.page.stem
    draw(results["files"], results["peers"], folder / f"{stem}-growth.svg")
    draw_references(results["grown"]["appends"], folder / f"{stem}-bytes.svg")


if __name__ == "__main__":
    main()
