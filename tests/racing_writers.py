"""Processes that append to one set at the same time, and what was acknowledged to them.

By hand, with many rounds and on every server that keeps conditions::

    python tests/racing_writers.py 8 50 [moto] [seaweedfs] [killed]
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr
from other_s3_servers import SeaweedFS, bucket_at, seaweedfs_server
from s3_server import s3_server

from virtualds import ManifestArray, ReadError, VirtualdsError
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store

SETS = ("refs.json", "refs.parquet", "refs.zarr")

MOST = 10_000
"""Numbers that writers may append."""
PATIENCE = 120.0
"""Seconds after which a server that was killed must have come back."""


@dataclass(frozen=True)
class Race:
    """A set of references to numbers, which lie beside it."""

    folder: str
    name: str
    options: StorageOptions

    @property
    def url(self) -> str:
        return f"{self.folder}/{self.name}"

    @property
    def numbers(self) -> str:
        return f"{self.folder}/numbers.bin"

    def prepare(self) -> None:
        data = np.arange(MOST, dtype="<i4").tobytes()
        find_store(self.numbers).write_file(self.numbers, data, self.options)

    def refer(self, number: int) -> xr.Dataset:
        """Return a dataset of one reference, to one number, which is also its coordinate."""
        array = ManifestArray.from_arrays(
            shape=(1,), chunks=(1,), dtype="<i4", path=self.numbers, offsets=[4 * number], lengths=4
        )
        return xr.Dataset({"v": ("time", array)}, {"time": [number]})

    def append(self, number: int) -> int:
        """Append a number, to a server that may be killed; return how often it failed."""
        failures, end = 0, time.monotonic() + PATIENCE
        while True:
            try:
                # whether a server wrote the number before it was killed is unknown
                self.refer(number).virtual.to_manifest(
                    self.url,
                    append_dim="time",
                    conflict="retry",
                    on_duplicate="skip",
                    storage_options=self.options,
                )
                return failures
            except (ReadError, FileExistsError):
                # a server that is starting may say of a set that it is not there, and that it is
                failures += 1
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def read(self) -> list[int]:
        """Return all numbers, in their order in the set."""
        with xr.open_dataset(self.url, engine="virtual", storage_options=self.options) as opened:
            return [int(number) for number in opened["v"].values]


# ---------------------------------------------------------------------- a writer

WRITER = """
import pickle, sys
import racing_writers

print("ready", flush=True)
while job := pickle.load(sys.stdin.buffer):
    racing_writers.write(*job)
"""


def write(race: Race, numbers: Sequence[int]) -> None:
    """Append numbers one after the other; say of each when it was acknowledged."""
    for number in numbers:
        try:
            print(number, race.append(number), flush=True)
        except (VirtualdsError, OSError) as error:
            print("failed", number, repr(error), flush=True)
    print("done", flush=True)


Writer = subprocess.Popen[bytes]


@contextmanager
def running_writers(count: int) -> Iterator[list[Writer]]:
    """Run processes that take one job after the other, since a process takes long to start."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    # -P: what is tested may be a copy of the package, not the one that lies here
    command, env = [sys.executable, "-P", "-c", WRITER], {**os.environ, "PYTHONPATH": paths}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as stack:
        started = [stack.enter_context(subprocess.Popen(command, env=env, **pipes))
                   for _ in range(count)]  # fmt: skip
        assert [listen(writer) for writer in started] == ["ready"] * count
        yield started
        for writer in started:
            tell(writer, None)


def tell(writer: Writer, job: tuple[Race, Sequence[int]] | None) -> None:
    assert writer.stdin is not None
    writer.stdin.write(pickle.dumps(job))
    writer.stdin.flush()


def listen(writer: Writer) -> str:
    assert writer.stdout is not None
    return writer.stdout.readline().decode().strip()


# ---------------------------------------------------------------------- a race


@dataclass(frozen=True)
class Outcome:
    """What writers said, a line for each number, and what they left."""

    said: list[str]
    left: list[int]
    seconds: float

    @property
    def acknowledged(self) -> list[int]:
        return [int(line.split()[0]) for line in self.said if not line.startswith("failed")]

    @property
    def failures(self) -> list[str]:
        """What was said of numbers that were not there at the first attempt."""
        return [line for line in self.said if not line.endswith(" 0")]

    @property
    def lost(self) -> set[int]:
        return set(self.acknowledged) - set(self.left)

    def __str__(self) -> str:
        return (
            f"{len(self.acknowledged)} acknowledged, {len(self.lost)} lost, "
            f"{len(self.repeated)} twice, {len(self.failures)} at a second attempt, "
            f"{self.seconds:.0f} s"
        )

    @property
    def repeated(self) -> list[int]:
        return [number for number, times in Counter(self.left).items() if times > 1]


def run(
    writers: Sequence[Writer],
    race: Race,
    rounds: int,
    meanwhile: Callable[[list[str]], None] = lambda said: None,
) -> Outcome:
    """Let each writer append so many numbers; ``meanwhile`` gets what is said so far."""
    race.prepare()
    begun, said = time.monotonic(), list[str]()
    for number, writer in enumerate(writers):
        tell(writer, (race, range(number * rounds, (number + 1) * rounds)))

    def hear(writer: Writer) -> None:
        while (line := listen(writer)) not in ("done", ""):
            said.append(line)

    with ThreadPoolExecutor(len(writers)) as pool:
        heard = [pool.submit(hear, writer) for writer in writers]
        meanwhile(said)
        for future in heard:
            future.result()
    return Outcome(said, race.read(), time.monotonic() - begun)


def kill_in_the_middle(server: SeaweedFS, all_of_them: int, times: int = 1) -> Callable[..., None]:
    """Kill a server each time that a part of the numbers was acknowledged, and start it again."""

    def meanwhile(said: list[str]) -> None:
        for time_ in range(1, times + 1):
            while len(said) < all_of_them * time_ // (times + 1):
                time.sleep(0.01)
            server.kill()
            server.start()

    return meanwhile


def main() -> None:
    """Print what became of races, on the servers that are named, or on all."""
    count, rounds = int(sys.argv[1]), int(sys.argv[2])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        writers = stack.enter_context(running_writers(count))
        seaweedfs = stack.enter_context(seaweedfs_server(folder))
        servers = {"moto": stack.enter_context(s3_server()), "seaweedfs": seaweedfs.options}
        killing = kill_in_the_middle(seaweedfs, count * rounds, 3)
        for server in sys.argv[3:] or (*servers, "killed"):
            options = servers.get(server, seaweedfs.options)
            for name in SETS:
                race = Race(bucket_at(options), name, StorageOptions(options))
                done = run(writers, race, rounds, *([killing] if server == "killed" else []))
                print(f"{server:10} {name:13} {done}", *done.failures[:3], flush=True)


if __name__ == "__main__":
    # the writers know this module by its name
    from racing_writers import main as start

    start()
