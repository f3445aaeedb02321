"""Writers and readers of sets in simulated stores."""

from __future__ import annotations

import datetime as dates
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from protocol.explorer import (
    FAULTS,
    Actor,
    Found,
    Search,
    ask,
    count_up,
    end_all_runs,
    name_actor,
    sleep_until_news,
)
from protocol.invariants import Check
from protocol.sets import (
    ABSENT,
    Numbers,
    add_number,
    find_format,
    make_group,
    read_history,
    read_numbers,
)
from protocol.simulated_disk import FOLDER, Disk, DiskWorld, simulated_disk
from protocol.simulated_store import SCHEME, WAYS, Objects, to_seconds

import virtualds
from virtualds.arrays.group import ManifestGroup
from virtualds.combine.batch_job import abandon_on_error
from virtualds.errors import ConflictError, ReadError
from virtualds.formats import Expiry, change_set
from virtualds.importing import LazyFunction
from virtualds.stores import STORES
from virtualds.stores.store import StoreError

NAMES = {"kerchunk-json": "set.json", "kerchunk-parquet": "set.parquet", "zarr-v3": "set.zarr"}
"""Formats, and the names of sets."""

ETAGS, GENERATIONS, MEMORY, NOTHING = WAYS
ON_DISK = "locks of files"


def place_set(form: str, way: str) -> str:
    """Return the url of the set of a scenario."""
    folder = FOLDER if way == ON_DISK else f"{SCHEME}://bucket"
    return f"{folder}/{NAMES[form]}"


class _Clock(dates.datetime):
    """The simulated clock."""

    @classmethod
    def now(cls, tz: Any = None) -> dates.datetime:
        return dates.datetime.fromtimestamp(_read_clock(), tz)


def _read_clock() -> float:
    return to_seconds(ask("clock"))


def _make_time() -> ModuleType:
    """Return the module ``time`` with the clock of the explorer."""
    found = ModuleType("time")
    simulated = {"monotonic": _read_clock, "sleep": lambda seconds: sleep_until_news()}
    found.__dict__.update(vars(time) | simulated)
    return found


def _make_token(length: int = 16) -> str:
    letters = f"{name_actor()}{count_up('token')}".encode().hex()
    return letters.rjust(2 * length, "0")[-2 * length :]


@contextmanager
def simulation(way: str) -> Iterator[None]:
    """Put the clock, random names and the store under the control of an explorer."""
    for name in NAMES:
        # what is imported later would have the real clock
        form = find_format(name)
        for late in (form.read, form.write, form.read_version):
            if isinstance(late, LazyFunction):
                import_module(late.location.partition(":")[0])
    disk = simulated_disk() if way == ON_DISK else nullcontext()
    with disk, pytest.MonkeyPatch.context() as patch:
        if way != ON_DISK:
            patch.setitem(STORES, SCHEME, WAYS[way][1])
        patch.setattr(secrets, "token_hex", _make_token)
        patch.setattr(random, "uniform", lambda low, high: high)
        clock = _make_time()
        # of the product alone: other threads, such as that of fsspec, go on with the real clock
        for name, module in list(sys.modules.items()):
            if name.startswith("virtualds."):
                if getattr(module, "datetime", None) is dates.datetime:
                    patch.setattr(module, "datetime", _Clock)
                if getattr(module, "time", None) is time:
                    patch.setattr(module, "time", clock)
        with virtualds.set_options(only_writer=way == NOTHING):
            try:
                yield
            finally:
                end_all_runs()


Work = Callable[[], Any]


@dataclass(frozen=True)
class Writer:
    """A writer: what it does, and what it does to a set; None if a set holds the same after it."""

    work: Work
    change: Callable[[Any], Any] | None
    is_repeatable: bool = False
    """Whether its commit is one unconditional request, which may be done again when it is late."""


def appends(form: str, url: str, number: int) -> Writer:
    """Return a writer that appends a number to a set."""
    return Writer(
        lambda: change_set(find_format(form), url, add_number(number)),
        lambda old: (*old, number),
    )


def retries(form: str, url: str, number: int) -> Writer:
    """Return a writer that appends a number to a set, and again if another was faster."""

    def work() -> None:
        try:
            change_set(find_format(form), url, add_number(number))
        except ConflictError:
            change_set(find_format(form), url, add_number(number))

    return Writer(work, lambda old: (*old, number))


def creates(form: str, url: str, number: int) -> Writer:
    """Return a writer that creates a set of one number."""
    return Writer(
        lambda: find_format(form).write(make_group((number,)), url, replace=False),
        lambda old: (number,) if old == ABSENT else None,
    )


def replaces(form: str, url: str, number: int) -> Writer:
    """Return a writer that creates a set of one number, or replaces it."""
    return Writer(
        lambda: find_format(form).write(make_group((number,)), url, replace=True),
        lambda old: (number,),
        form == "kerchunk-json",
    )


def expires(form: str, url: str, number: int) -> Writer:
    """Return a writer that removes all snapshots but the newest."""
    expire = find_format(form).expire
    assert expire is not None
    return Writer(lambda: expire(url, None, Expiry(1)), None)


def builds(form: str, url: str, number: int) -> Writer:
    """Return a writer that writes a set of one number in parts, as many processes do."""
    parts = find_format(form).parts
    assert parts is not None

    def work() -> None:
        place = parts.begin(url, None, replace=True)
        target = SimpleNamespace(destination=SimpleNamespace(place=place, parts=parts))
        with abandon_on_error(target):
            group = make_group((number,))
            written = parts.write({"r": group.variables["r"].data}, place)
            variable = replace(group.variables["r"], data=written["r"])
            parts.commit(ManifestGroup({**group.variables, "r": variable}), place, replace=True)

    return Writer(work, lambda old: (number,))


def adds(form: str, url: str, number: int) -> Writer:
    """Return a writer that appends a number to a set, or creates the set."""

    def work() -> None:
        try:
            change_set(find_format(form), url, add_number(number))
        except FileNotFoundError:
            find_format(form).write(make_group((number,)), url, replace=False)

    return Writer(work, lambda old: (number,) if old == ABSENT else (*old, number))


def prepare_search(
    form: str,
    way: str,
    writers: list[Writer],
    *,
    readers: int = 1,
    before: Numbers = (0,),
    after: Writer | None = None,
    gone: tuple[type[BaseException], ...] = (),
    refusals: tuple[type[BaseException], ...] = (ConflictError,),
    **how: Any,
) -> Search:
    """Return the search of all schedules of writers and readers of a set."""
    world, first = (DiskWorld(), Disk()) if way == ON_DISK else (WAYS[way][0], Objects())
    url = place_set(form, way)
    read = partial(read_numbers, find_format(form), url)
    actors = [Actor("ABC"[n], writer.work) for n, writer in enumerate(writers)]
    actors += [Actor(f"reader {n + 1}", read) for n in range(readers)]
    last = after or adds(form, url, 9)
    check = Check(
        {n: writer.change for n, writer in enumerate(writers)},
        Actor("observer", read),
        Actor("historian", partial(read_history, find_format(form), url)),
        Actor("Z", last.work),
        last.change,
        gone,
        refusals,
        frozenset(n for n, writer in enumerate(writers) if writer.is_repeatable),
    )
    search = Search(world, actors, first, check, **how)
    for place, number in enumerate(before):
        make = appends if place else creates
        original = Actor(f"O{place}", make(form, url, number).work)
        node, first = check.run_alone(search, original, search.place(search.start))
        assert node.end is not None and node.end.error is None, node.end
        search.start = first.state
    return search


# ---------------------------------------------------------------------- the table

KINDS = {
    ETAGS: FAULTS,
    GENERATIONS: FAULTS,
    # the memory is that of the process, and answers at once
    MEMORY: ("crash",),
    # the disk may be full
    ON_DISK: ("crash", "failed"),
    # nothing keeps out a request that takes effect when its sender has gone on
    NOTHING: ("crash", "failed", "lost", "repeated"),
}
"""What may go wrong where."""


class Act(NamedTuple):
    """What writers do, what a set holds before, and what one may be told that was too late."""

    makers: tuple[Callable[[str, str, int], Writer], ...]
    before: Numbers = ()
    refusals: tuple[type[BaseException], ...] = ()


ACTS = {
    "append": Act((appends, appends), (0,)),
    "append again": Act((retries, retries), (0,)),
    "create": Act((creates, creates), (), (FileExistsError,)),
    "append or create": Act((adds, adds), (), (FileExistsError,)),
    "replace": Act((replaces, replaces)),
    "expire and append": Act((expires, appends), (0, 5)),
    "build and append": Act((builds, appends), (0,)),
    "build and create": Act((builds, creates), (), (FileExistsError,)),
}
"""What the writers do."""
OF_ZARR = {"expire and append", "build and append", "build and create"}
"""What no other format has."""

Breaking = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Scenario:
    """Writers and readers of a set, and what may happen to them.

    Parameters
    ----------
    form, way : str
        The format, and how the store keeps writers apart.
    act : str
        What each writer does.
    faults, ticks : int
        As in `Search`.
    kinds : tuple of str, optional
        As in `Search`; by default all that may happen in such a store.
    is_long : bool
        Whether a search takes more than some seconds.
    """

    form: str
    way: str
    act: str
    faults: int = 1
    ticks: int = 0
    kinds: tuple[str, ...] | None = None
    is_long: bool = False

    @property
    def name(self) -> str:
        many = {0: "", 1: ", one fault", 2: ", two faults"}[self.faults]
        who = "one" if self.way == NOTHING else "two"
        return f"{self.form}, {self.way}, {who} {self.act}{many}"

    @property
    def gone(self) -> tuple[type[BaseException], ...]:
        """What a reader may be told of a set that it opened before."""
        if self.act == "expire and append":
            return (StoreError,)
        # the new folder of a set has another mark
        return (ReadError,) if (self.way, self.act) == (ON_DISK, "replace") else ()

    @contextmanager
    def prepared(self, broken: Breaking | None = None) -> Iterator[Search]:
        """Provide the search, in a simulation."""
        makers, before, refusals = ACTS[self.act]
        url = place_set(self.form, self.way)
        count = 1 if self.way == NOTHING else 2
        is_alike = makers[0] is makers[1]
        with simulation(self.way), pytest.MonkeyPatch.context() as patch:
            if broken is not None:
                broken(patch)
            yield prepare_search(
                self.form,
                self.way,
                [makers[number](self.form, url, number + 1) for number in range(count)],
                before=before,
                refusals=(ConflictError, *refusals),
                gone=self.gone,
                faults=self.faults,
                ticks=self.ticks,
                kinds=KINDS[self.way] if self.kinds is None else self.kinds,
                # writers that do the same: what may happen to one may happen to the other
                faulty=(0, count) if is_alike and self.faults < 2 else None,
            )

    def search(self, broken: Breaking | None = None) -> Found:
        """Search all schedules, of the code as it is or with a break."""
        with self.prepared(broken) as search:
            return search.run()

    def replay(self, number: int, broken: Breaking | None = None) -> list[str]:
        """Return what happens in a schedule, in words."""
        with self.prepared(broken) as search:
            return search.replay(number)


def _list_scenarios() -> Iterator[Scenario]:
    for form, way, act in product(NAMES, KINDS, ACTS):
        if act in OF_ZARR and form != "zarr-v3":
            continue
        if form == "kerchunk-json" or way == NOTHING:
            yield Scenario(form, way, act, faults=1 if way == ON_DISK else 2)
        elif form == "zarr-v3" and way != ON_DISK:
            is_quick = way == MEMORY or (way == ETAGS and act in ("append", "create"))
            # the longest search: see below
            faults = 0 if act == "build and create" and way != ETAGS else 1
            yield Scenario(form, way, act, faults=faults, is_long=not is_quick)
        elif way == ON_DISK:
            # every call of the system is a choice: of the larger changes there are too many
            if (form, act) == ("zarr-v3", "append") or (form, act) in FOLDERS_ON_DISK:
                yield Scenario(form, way, act, is_long=form == "zarr-v3")
        elif act != "replace":
            # that object stores refuse; only fences make writers wait
            is_again = act == "append again"
            if way == ETAGS or not is_again:
                yield Scenario(form, way, act, faults=0, ticks=1, is_long=way != ETAGS or is_again)
            # how a store keeps writers apart is not up to the format: kerchunk-json tries all ways
            if way == ETAGS and not is_again:
                yield Scenario(form, way, act, faults=1, ticks=1, is_long=True)


FOLDERS_ON_DISK = {("kerchunk-parquet", "create"), ("kerchunk-parquet", "replace")}
"""Changes that write a folder beside, and exchange it."""
SCENARIOS = list(_list_scenarios())
"""All that is searched."""
