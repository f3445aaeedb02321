"""The first cases of the fuzzing program: every kind of file is damaged, read, and judged.

Long runs are for ``make fuzz``; see ``tests/fuzz/README.md``. Some kinds at a time are tried in a
process of their own, since the program forks, and this one has threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fuzz.kinds import NEEDED
from fuzz.readers import NATIVES
from fuzz.seeds import SEEDS
from products import few_quick

from virtualds.datasets.location import READERS

TESTS = Path(__file__).parent
CASES = 15
"""Cases of each kind of file."""
FILES = [kind for kind in SEEDS if kind not in NEEDED]
"""The kinds of files that can be made everywhere."""
KINDS_OF = {"zarr": {"zarr-v2", "zarr-v3"}, "zarr-v3": {"sets"}}
"""Kinds of files of a parser or format, where they are not called like it."""
CODECS = "codec-zlib,codec-delta,codec-imagecodecs_szip,codec-virtualds_scaleoffset"
"""Some codecs; their chunks are made together."""
TOGETHER = [",".join(FILES[n::8]) for n in range(8)] + [CODECS]
"""What one process tries: starting it takes longer than trying a kind."""


def fuzz(*arguments: str) -> str:
    """Return what the program prints."""
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *arguments],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return done.stdout


def findings(folder: Path) -> list[Any]:
    path = folder / "findings.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [finding for finding in map(json.loads, lines) if finding["again"]]


@pytest.mark.parametrize("kinds", few_quick(TOGETHER, TOGETHER[:1]))
def test_the_first_damaged_files_are_read_or_refused(kinds: str, tmp_path: Path) -> None:
    table = fuzz("--kinds", kinds, "--cases", f"{CASES}", "--state", str(tmp_path))
    for kind in kinds.split(","):
        [row] = [line for line in table.splitlines() if line.startswith(f"{kind}  ")]
        assert row.split()[1] == f"{CASES}"
    assert not findings(tmp_path)


@pytest.mark.full
def test_a_case_is_the_same_whenever_it_is_tried() -> None:
    first, second = (fuzz("--replay", "kerchunk-json:17").splitlines()[0] for _ in range(2))
    assert "files" in first
    assert first == second


@pytest.mark.parametrize("reader", [reader.name for reader in READERS])
def test_files_of_every_parser_and_format_are_damaged(reader: str) -> None:
    kinds = KINDS_OF.get(reader, {reader})
    assert kinds <= SEEDS.keys(), f"{reader!r} has no files; add them to SEEDS of fuzz/seeds.py"
    assert kinds <= NATIVES.keys(), f"nobody else reads {reader!r}; see NATIVES of fuzz/readers.py"


def test_every_codec_is_a_kind() -> None:
    from virtualds.codecs import CODECS as known

    listed = set(fuzz("--list").split())
    assert {f"codec-{codec.zarr_v2_id}" for codec in known} <= listed
    assert set(FILES) <= listed
