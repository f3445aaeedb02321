"""The kinds of files: who makes them, who reads them, and how a case is judged."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from fuzz import readers
from fuzz.codec_seeds import all_seeds, wanted
from fuzz.mutations import Seed, fingerprint, mutate
from fuzz.seeds import SEEDS

CODEC = "codec-"
"""What the names of kinds begin with whose files are one chunk of a codec."""
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
    """

    name: str
    seeds: Callable[[], list[Seed]]
    ours: Callable[[Any], Any]
    native: Callable[[Any], Any]
    natives: int
    ways: int
    compared: tuple[int, ...]
    whole: tuple[int, ...]
    moves: bool = False


def file_kind(name: str) -> Kind:
    natives = len(readers.NATIVES[name])
    doors = (len(readers.WAYS), readers.STORED, readers.WHOLE)
    return Kind(name, SEEDS[name], readers.ours, readers.native, natives, *doors, name == "grib")


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


def kind(name: str) -> Kind:
    """Return a kind by its name."""
    return codec_kind(name) if name.startswith(CODEC) else file_kind(name)


def names() -> list[str]:
    """Return all kinds that can be made here, the most important first."""
    files = [n for n in SEEDS if n not in NEEDED or find_spec(NEEDED[n]) is not None]
    return files + [CODEC + codec for codec in sorted(wanted())]


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
        self._seeds: list[Seed] | None = None

    @property
    def seeds(self) -> list[Seed]:
        if self._seeds is None:
            self._seeds = self._made()
        return self._seeds

    def _made(self) -> list[Seed]:
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
        if number < 0:
            if -number > len(self.seeds):
                return {"seed": None}
            seed = self.seeds[-number - 1]
            files = seed.files
        else:
            rng = Random(f"{self._kind.name} {number}")
            seed = rng.choice(self.seeds)
            files = mutate(seed, rng, self.seeds)
        shutil.rmtree(folder, ignore_errors=True)
        for name, data in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return {"seed": seed.name, "entry": seed.entry, "print": fingerprint(files)}
