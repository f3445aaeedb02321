"""The first cases of the fuzzing program: every kind of file is damaged, read, and judged.

Long runs are for ``make fuzz``; see ``tests/fuzz/README.md``. Some kinds at a time are tried in a
process of their own, since the program forks, and this one has threads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import others_soaked, times
from fuzz.hdf5_described import describe_group, judge_structure
from fuzz.hdf5_files import write
from fuzz.hdf5_readers import read_group
from fuzz.hdf5_seeds import PER_FILE
from fuzz.kinds import NEEDED
from fuzz.outcomes import Outcome, differing, outcome
from fuzz.readers import NATIVES, find_wrong
from fuzz.seeds import SEEDS
from programs import run_module

from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.datasets.location import READERS

CASES = times(4)
"""Cases of each kind of file."""
FILES = [kind for kind in SEEDS if kind not in NEEDED]
"""The kinds of files that can be made everywhere."""
KINDS_OF = {
    "zarr": {"zarr-v2", "zarr-v3"}, "zarr-v3": {"sets", "sync"}, "fits": {"fits", "fits-tables"}
}  # fmt: skip
"""Kinds of files of a parser or format, where they are not called like it."""
CODECS = "codec-zlib,codec-delta,codec-imagecodecs_szip,codec-virtualds_scaleoffset"
"""Some codecs; their chunks are made together."""
TOGETHER = [*(",".join(FILES[n::2]) for n in range(2)), CODECS]
"""What one process tries: starting it takes longer than trying a kind."""


FULL = pytest.mark.full
REPLAYED = ["kerchunk-json:17", "hdf4:1307"]


def fuzz(*arguments: str) -> str:
    """Return what the program prints."""
    done = run_module("fuzz", *arguments, timeout=500)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return done.stdout


def findings(folder: Path) -> list[Any]:
    path = folder / "findings.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [finding for finding in map(json.loads, lines) if finding["again"]]


# A process takes 3 s to start, and a kind as long to make its files and to read them undamaged.
@pytest.mark.full
@pytest.mark.parametrize("kinds", TOGETHER)
def test_the_first_damaged_files_are_read_or_refused(kinds: str, tmp_path: Path) -> None:
    table = fuzz("--kinds", kinds, "--cases", f"{CASES}", "--state", str(tmp_path))
    for kind in kinds.split(","):
        [row] = [line for line in table.splitlines() if line.startswith(f"{kind}  ")]
        assert row.split()[1] == f"{CASES}"
    assert not findings(tmp_path)


# Up to 10 s: each file is read in two processes, and alike ones as thirty together.
@pytest.mark.parametrize(
    ("kinds", "files", "step"),
    [
        pytest.param("hdf5-structure", times(15), PER_FILE, id="sound"),
        pytest.param("hdf5-structure", times(60), 7, marks=pytest.mark.full, id="damaged"),
        pytest.param(
            "hdf5-alike", times(4), PER_FILE, marks=pytest.mark.full, id="sound and alike"
        ),
        pytest.param("hdf5-alike", times(12), 7, marks=pytest.mark.full, id="damaged and alike"),
    ],
)
def test_files_made_at_random_give_the_values_of_the_library_or_none(
    kinds: str, files: int, step: int, tmp_path: Path
) -> None:
    """With the step of a file all are sound; of numbers with another step few are."""
    args = ("--step", f"{step}", "--cases", f"{files}")
    table = fuzz("--kinds", kinds, *args, "--state", str(tmp_path))
    assert table.splitlines()[-1].split()[:2] == [kinds, f"{files}"]
    assert not findings(tmp_path)


def test_a_number_gives_one_structure_and_variants_of_it(tmp_path: Path) -> None:
    """Files that are alike differ in values and places, and not in what is there."""
    made = []
    for variant in range(2):
        write(tmp_path / f"{variant}.nc", 1, variant)
        made.append(dict(describe_group(read_group(str(tmp_path / f"{variant}.nc")))))
    first, second = made
    assert first.keys() == second.keys()
    assert {name for name in first if first[name] != second[name]}


def test_differences_are_found() -> None:
    """What must not be told apart is equal, and everything else differs."""
    one = ManifestGroup({"v": ManifestVariable(("x",), np.arange(3), {"a": np.int16(1)})})
    other = ManifestGroup({"v": ManifestVariable(("x",), np.arange(3), {"a": np.int32(1)})})
    described = [Outcome(None, dict(describe_group(group))) for group in (one, one, other)]
    assert not judge_structure(described[0], described[1], True)
    [found] = judge_structure(described[0], described[2], False)
    assert (found.what, found.sign) == ("difference", "attribute")


def test_arrays_whose_name_another_one_has_are_not_compared() -> None:
    """Damage of a name makes two of one; the native reader is asked by number, and has both."""
    ours = outcome(lambda _: [("a", lambda: 1), ("a_2", lambda: 2)], "", lambda _: True)
    native = outcome(lambda _: [("a", lambda: 1), ("a", lambda: 2)], "", lambda _: True)
    assert not differing(ours, native, None)


def test_cubes_without_their_damaged_messages_are_not_compared() -> None:
    ours = outcome(lambda _: [("t", lambda: np.nan)], "", lambda _: True)
    native = outcome(lambda _: [("t", lambda: 280.0)], "", lambda _: True)
    assert differing(ours, native, None)
    warned = "a.grib: could not be read\n  message at byte 431: its sections do not add up"
    assert not differing(ours._replace(warned=warned), native, None)


def test_what_a_sync_loses_or_makes_wrong_is_found() -> None:
    before, new = {"v": (b"a", b"b")}, {"v": (b"c",)}
    right = {"v": (b"a", b"b", b"c")}
    assert not find_wrong(before, right, right, new)
    # rows that were damaged before stay as they are, or are read again
    assert not find_wrong({"v": (b"a", b"x")}, {"v": (b"a", b"x", b"c")}, right, new)
    assert not find_wrong({}, {}, right, new)
    for after in ((b"a", b"b"), (b"a", b"c"), (b"a", b"b", b"x"), (b"a", b"b", b"b"), ()):
        assert find_wrong(before, {"v": after}, right, new)
    assert "cannot now" in find_wrong(before, {}, right, new)


@pytest.mark.full
def test_real_files_are_compared(archive_files: list[Path]) -> None:
    printed = fuzz("--corpus", str(archive_files[0].parent))
    assert len([line for line in printed.splitlines() if line.startswith("same, ")]) == 2


@pytest.mark.full
@pytest.mark.parametrize("case", others_soaked(REPLAYED, REPLAYED[:1]))
def test_a_case_is_the_same_whenever_it_is_tried(case: str, tmp_path: Path) -> None:
    printed = [fuzz("--replay", case, "--keep", str(tmp_path / f"{n}")) for n in range(2)]
    first, second = (text.splitlines()[1] for text in printed)
    assert "files" in first
    assert first == second
    [folder] = (tmp_path / "0").iterdir()
    assert folder.name == case.replace(":", "-")
    for path in folder.rglob("*.*"):
        again = tmp_path / "1" / path.relative_to(tmp_path / "0")
        assert path.is_dir() or path.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("reader", [reader.name for reader in READERS])
def test_files_of_every_parser_and_format_are_damaged(reader: str) -> None:
    kinds = KINDS_OF.get(reader, {reader})
    assert kinds <= SEEDS.keys(), f"{reader!r} has no files; add them to SEEDS of fuzz/seeds.py"
    assert kinds <= NATIVES.keys(), f"nobody else reads {reader!r}; see NATIVES of fuzz/readers.py"


@pytest.mark.full
def test_every_codec_has_a_stream_that_it_decodes() -> None:
    from fuzz.codec_seeds import all_seeds, wanted

    from virtualds.codecs import codec_from_zarr_v2

    seeds = all_seeds()
    assert wanted() <= seeds.keys()
    for name, (*_, seed) in seeds.items():
        codec = codec_from_zarr_v2(json.loads(seed.files["codec.json"]))
        size = json.loads(seed.files["size.txt"])
        found = codec.decode(seed.files["chunk"], size)
        assert size is None or memoryview(found).nbytes == size, name


def test_every_codec_is_a_kind() -> None:
    from fuzz.codec_seeds import wanted

    listed = set(fuzz("--list").split())
    assert {f"codec-{name}" for name in wanted()} <= listed
    assert set(FILES) <= listed
