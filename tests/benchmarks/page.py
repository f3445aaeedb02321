"""Write results to the performance page: page.py RESULTS.json docs/explanation/performance.md.

Tables go between their marks on the page; plots go beside it, as SVG.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]

NAMES = {
    "virtualds": "virtualds",
    "two processes": "two processes",
    "limit": "limit",
    "hidefix": "hidefix",
    "netcdf4": "netCDF4",
    "h5netcdf": "h5netcdf",
    "h5py": "h5py",
    "kerchunk": "kerchunk",
    "virtualizarr": "VirtualiZarr",
    "icechunk": "Icechunk",
}
"""What readers are called, in the order of the columns."""


class Section(NamedTuple):
    """A table and a plot: its title, and what its works are called."""

    title: str
    works: Mapping[str, str]


SECTIONS = {
    "local": Section(
        "Local files",
        {
            "full": "384 MiB in chunks of 1 MiB, shuffle and zlib",
            "cold": "the same, from disk",
            "packed": "192 MiB of short integers, packed, likewise",
            "slice": "one step of it (4 chunks)",
            "point": "one point at all 96 steps",
            "raw": "384 MiB in chunks of 1 MiB, not compressed",
            "tiny": "96 MiB in chunks of 4 KiB, not compressed",
            "walk": "24 steps of one row of chunks, one by one",
        },
    ),
    "http": Section(
        "A web server, 20 ms away",
        {
            "http-chunks": "100 chunks in 100 files",
            "http-runs": "400 chunks, four neighbours in each of 100 files",
            "http-scan": "scan a netCDF4 file",
            "http-scan-100": "scan 100 netCDF4 files and join them",
        },
    ),
    "references": Section(
        "References",
        {
            "index": "index of one file of 1,000,000 chunks",
            "scan-500": "scan 500 small netCDF4 files and join them",
            "concat": "join 1,000 arrays of 10,000 references",
            "cluster": "mean of 384 MiB on two dask workers",
        },
    ),
}
"""What stands on the page, by the marks between which it does."""


def table(section: Section, results: Results) -> str:
    """Return a Markdown table: seconds of virtualds, and how many times as long others take."""
    works = {name: text for name, text in section.works.items() if name in results}
    readers = [r for r in NAMES if any(r in results[work] for work in works)]
    head = "".join(f" {NAMES[reader]} |" for reader in readers)
    rows = [f"| |{head}", f"|---|{'---:|' * len(readers)}"]
    for work, text in works.items():
        rows.append(f"| {text} |" + "".join(f" {_cell(results[work], r)} |" for r in readers))
    return "\n".join(rows)


def _cell(found: Mapping[str, Mapping[str, Any]], reader: str) -> str:
    if reader not in found:
        return "–"
    seconds = found[reader]["seconds"]
    if reader == "virtualds":
        return f"{_three_digits(seconds * 1000)} ms"
    return f"{_three_digits(seconds / found['virtualds']['seconds'])} ×"


def _three_digits(number: float) -> str:
    digits = 2 - math.floor(math.log10(number))
    return f"{number:.{max(digits, 0)}f}" if digits > 0 else f"{number:,.0f}"


def files_table(results: Results) -> str:
    """Return the table of files that were given to be read whole."""
    works = {name: name.partition(" ")[2] for name in results if name.startswith("file ")}
    return table(Section("", works), results)


def plot(section: Section, results: Results, path: Path) -> None:
    """Draw how many times as long as virtualds the others take."""
    import matplotlib as mpl

    mpl.use("svg")
    # the same picture for the same results
    mpl.rcParams["svg.hashsalt"] = section.title
    import matplotlib.pyplot as plt

    works = [work for work in section.works if work in results]
    others = [r for r in NAMES if r != "virtualds" and any(r in results[w] for w in works)]
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.75 * len(works)), layout="constrained")
    height = 0.8 / max(len(others), 1)
    for number, reader in enumerate(others):
        places = [i + number * height for i, w in enumerate(works) if reader in results[w]]
        ratios = [_ratio(results[work], reader) for work in works if reader in results[work]]
        axes.barh(places, ratios, height * 0.9, label=NAMES[reader])
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("time, virtualds = 1")
    axes.set_yticks([i + 0.4 - height / 2 for i in range(len(works))])
    axes.set_yticklabels([section.works[work] for work in works])
    axes.invert_yaxis()
    axes.set_title(section.title)
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _ratio(found: Mapping[str, Mapping[str, Any]], reader: str) -> float:
    return float(found[reader]["seconds"] / found["virtualds"]["seconds"])


COMPARED = "measured by tests/benchmarks/compare.py"


def put(page: str, name: str, text: str, source: str = COMPARED) -> str:
    """Return a page with a text between the marks of a name, which say what its source is."""
    begin, end = f"<!-- {name}: {source} -->", f"<!-- {name} ends -->"
    before, found, rest = page.partition(begin)
    if not found:
        raise ValueError(f"the page has no mark {begin!r}; put it where the table belongs")
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, and write tables and plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("page", type=Path)
    chosen = parser.parse_args(arguments)
    results = json.loads(chosen.results.read_text())
    text = chosen.page.read_text()
    for name, section in SECTIONS.items():
        text = put(text, name, table(section, results))
        plot(section, results, chosen.page.with_name(f"{chosen.page.stem}-{name}.svg"))
    chosen.page.write_text(put(text, "files", files_table(results)))


if __name__ == "__main__":
    main()
