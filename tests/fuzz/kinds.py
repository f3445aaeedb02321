"""The kinds of files: who makes them, who reads them, and how a case is judged."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from fuzz import hdf5_readers, readers
from fuzz.codec_seeds import all_seeds, wanted
from fuzz.hdf5_described import judge_structure
from fuzz.hdf5_seeds import VARIANTS, Series
from fuzz.mutations import Files, Seed, fingerprint, mutate, mutate_one
from fuzz.outcomes import Finding, Outcome
from fuzz.seeds import SEEDS

CODEC = "codec-"
"""What the names of kinds begin with whose files are one chunk of a codec."""
Judge = Callable[[Outcome, Outcome, bool], list[Finding]]
NEEDED = {"icechunk": "icechunk"}
"""Packages without which there are no seeds of a kind."""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Parameters
    ----------
    name : str
    seeds : callable
        Makes the sound files.
    ours, native : callable
        Do a job of reading in a process.
    natives : int
        How many native readers there are.
    ways : int
        How many doors of ours there are, taken in turn.
    compared, whole : tuple of int
        Those whose values are compared with natives', and those that show all groups.
    moves : bool
        Whether the native reader has arrays in other groups, and leaves some out: damage moves
        messages of GRIB between cubes.
    judge : callable, optional
        Takes what both read, and whether the files are sound; returns the findings. Without it,
        values are compared that both read alike in the sound file.
    """

    name: str
    seeds: Callable[[], list[Seed] | Series]
    ours: Callable[[Any], Any]
    native: Callable[[Any], Any]
    natives: int
    ways: int
    compared: tuple[int, ...]
    whole: tuple[int, ...]
    moves: bool = False
    judge: Judge | None = None


def file_kind(name: str) -> Kind:
    natives = len(readers.NATIVES[name])
    doors = (len(readers.WAYS), readers.STORED, readers.WHOLE)
    ours = readers.synced if name == "sync" else readers.ours
    return Kind(name, SEEDS[name], ours, readers.native, natives, *doors, name == "grib")


def codec_kind(name: str) -> Kind:
    codec = name.removeprefix(CODEC)
    return Kind(
        name,
        lambda: all_seeds()[codec],
        readers.our_codec,
        readers.native_codec,
        1,
        3,
        (0, 1, 2),
        (0, 1, 2),
    )


STRUCTURES: dict[str, tuple[int, Any, Any]] = {
    "hdf5-structure": (1, hdf5_readers.ours, hdf5_readers.library),
    "hdf5-alike": (VARIANTS, hdf5_readers.ours_alike, hdf5_readers.library_alike),
}
"""Kinds of HDF5 files made at random: how many are read together, and by whom."""


def structure_kind(name: str) -> Kind:
    variants, ours, library = STRUCTURES[name]
    series = partial(Series, variants)
    return Kind(name, series, ours, library, 1, 1, (), (), judge=judge_structure)


def kind(name: str) -> Kind:
    """Return a kind by its name."""
    if name in STRUCTURES:
        return structure_kind(name)
    return codec_kind(name) if name.startswith(CODEC) else file_kind(name)


def names() -> list[str]:
    """Return all kinds that can be made here, the most important first."""
    files = [n for n in SEEDS if n not in NEEDED or find_spec(NEEDED[n]) is not None]
    return [*files, *STRUCTURES] + [CODEC + codec for codec in sorted(wanted())]


def matching(patterns: list[str]) -> list[str]:
    """Return the kinds that patterns name: whole names, or ``codecs`` and ``files``."""
    chosen = []
    for name in names():
        group = "codecs" if name.startswith(CODEC) else "files"
        if {name, group, "all"} & set(patterns):
            chosen.append(name)
    return chosen


# ---------------------------------------------------------------------- making cases


class Maker:
    """Makes the files of cases; it lives in a process of its own, since it imports everything."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._seeds: list[Seed] | Series | None = None

    @property
    def seeds(self) -> list[Seed] | Series:
        if self._seeds is None:
            self._seeds = self._made()
        return self._seeds

    def _made(self) -> list[Seed] | Series:
        """Return the seeds; those of the codecs are made together, and kept in a folder."""
        name = self._kind.name
        if not name.startswith(CODEC):
            return self._kind.seeds()
        kept = self._folder / "codecs.pickle"
        if not kept.exists():
            kept.write_bytes(pickle.dumps(all_seeds()))
        seeds: list[Seed] = pickle.loads(kept.read_bytes())[name.removeprefix(CODEC)]
        return seeds

    def __call__(self, job: tuple[str, int]) -> dict[str, Any]:
        """Write the files of a case; numbers below zero are the sound seeds themselves."""
        folder, number = job
        made = self._of_series(number) if isinstance(self.seeds, Series) else self._of_list(number)
        if made is None:
            return {"seed": None}
        seed, files = made
        shutil.rmtree(folder, ignore_errors=True)
        for name, data in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        sound = files is seed.files
        return {
            "seed": seed.name, "entry": seed.entry, "print": fingerprint(files), "sound": sound
        }  # fmt: skip

    def _of_list(self, number: int) -> tuple[Seed, Files] | None:
        assert isinstance(self.seeds, list)
        if number < 0:
            seed = self.seeds[-number - 1] if -number <= len(self.seeds) else None
            return seed and (seed, seed.files)
        rng = Random(f"{self._kind.name} {number}")
        seed = rng.choice(self.seeds)
        return seed, mutate(seed, rng, self.seeds)

    def _of_series(self, number: int) -> tuple[Seed, Files] | None:
        assert isinstance(self.seeds, Series)
        if number < -1:
            return None
        seed, sound = self.seeds.of_case(max(number, 0))
        rng = Random(f"{self._kind.name} {number}")
        return seed, seed.files if sound else mutate_one(seed, rng)
