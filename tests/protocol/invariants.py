"""What every schedule of writers and readers of one set has to keep.

The names of the invariants are those of ``docs/explanation/protocol.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from protocol.explorer import Actor, Node, Place, Search, State, Violation

from virtualds.errors import ConflictError

INVARIANTS = (
    "a set is always whole",
    "a set changes by commits alone",
    "nothing committed is lost",
    "what is acknowledged is there",
    "what is refused is not there",
    "a reader sees a set that there was while it read",
    "what failed writers leave harms nobody",
    "a conflict has another writer",
    "an error has a reason",
)
"""Names of the invariants, as in the specification."""
WHOLE, STEP, LOST, TOLD, NOT_TOLD, OLD_OR_NEW, HARMLESS, FALSE_CONFLICT, REASON = INVARIANTS

LONG = 400
"""Requests that a writer alone may need, with what it waits for."""


class Seen(NamedTuple):
    """What the check remembers of a schedule."""

    now: Any
    """What the set holds."""
    since: tuple[Any, ...]
    """Of each actor: for a reader that has begun, what the set has held since."""
    done: frozenset[int] = frozenset()
    """Writers whose change was committed."""
    hit: frozenset[int] = frozenset()
    """Actors that something happened to."""
    wrote: frozenset[int] = frozenset()
    """Actors that have changed the store."""


Change = Callable[[Any], Any]


@dataclass
class Check:
    """Judges steps and ends of the schedules of writers and readers of one set.

    Parameters
    ----------
    changes : dict of int to callable
        By the number of a writer: takes what the set holds, and returns what it holds after the
        commit; None where this writer must not commit, or commits nothing.
    observer : Actor
        Reads the set.
    historian : Actor
        Reads all snapshots of the set.
    after : Actor
        A writer that comes after all others.
    last : callable
        Its change.
    gone : tuple of error classes
        What a reader may be told if a set is replaced while it reads.
    refusals : tuple of error classes
        What a writer is told that was too late.
    repeatable : set of int
        Writers whose commit may take effect more than once.
    """

    changes: dict[int, Change | None]
    observer: Actor
    historian: Actor
    after: Actor
    last: Change
    gone: tuple[type[BaseException], ...] = ()
    refusals: tuple[type[BaseException], ...] = (ConflictError,)
    repeatable: frozenset[int] = frozenset()

    def begin(self, search: Search, state: State) -> State:
        """Return the first state, with what is to be remembered."""
        now = self.observe(search, state.place)
        return state._replace(seen=Seen(now, (None,) * len(state.nodes)))

    def observe(self, search: Search, place: Place) -> Any:
        """Return what a set holds, as a reader finds it between two steps."""
        if "set" not in place.found:
            node, _ = self.run_alone(search, self.observer, place)
            assert node.end is not None
            if node.end.error is not None:
                raise Violation(WHOLE, f"a reader gets {node.end.error!r}")
            place.found["set"] = node.end.value
        return place.found["set"]

    def run_alone(self, search: Search, actor: Actor, place: Place) -> tuple[Node, Place]:
        """Run an actor to its end, while nobody else does anything."""
        place, node = search.settle(place, actor, actor.begin)
        for _ in range(LONG):
            if node.request is None:
                return node, place
            found = search.answer(place, actor.name, node.request)
            if found is None:
                place = search.place(search.world.tick(place.state))
                continue
            answer, place = found
            place, node = search.settle(place, actor, actor.advance(node, answer))
        raise Violation(HARMLESS, f"{actor.name} does not end: {node.request}")

    def judge_step(self, search: Search, before: State, after: State, number: int | None) -> State:
        """Return the state after a step, with what is to be remembered."""
        seen: Seen = before.seen
        if after.faults < before.faults and number is not None and number not in seen.hit:
            seen = seen._replace(hit=seen.hit | {number})
        if number is not None and after.place is not before.place:
            seen = self._judge_change(search, seen, after.place, number)
        if number is not None and number not in self.changes:
            seen = self._judge_reader(search, before, after, number, seen)
        if seen is not after.seen:
            after = State(after.place, after.nodes, after.late, after.faults, after.ticks, seen)
        if number in self.changes and _has_ended(before, after, number):
            self._judge_writer(after.nodes[number], seen, number, search.actors[number].name)
        return after

    def _judge_change(self, search: Search, seen: Seen, place: Place, number: int) -> Seen:
        now = self.observe(search, place)
        if number not in seen.wrote:
            seen = seen._replace(wrote=seen.wrote | {number})
        if now == seen.now:
            return seen
        change = None if number in seen.done - self.repeatable else self.changes.get(number)
        wanted = seen.now if change is None else change(seen.now)
        if now != wanted:
            gone = set(seen.now if wanted is None else wanted) - set(now)
            name = search.actors[number].name
            raise Violation(LOST if gone else STEP, f"{name} turns {seen.now} into {now}")
        since = tuple(s if s is None else (*s, now) for s in seen.since)
        return seen._replace(now=now, since=since, done=seen.done | {number})

    def _judge_reader(
        self, search: Search, before: State, after: State, number: int, seen: Seen
    ) -> Seen:
        since = seen.since[number]
        if since is None and before.nodes[number] is not after.nodes[number]:
            since = (seen.now,)
        if _has_ended(before, after, number):
            node = after.nodes[number]
            assert node is not None and node.end is not None
            error, value = node.end.error, node.end.value
            name = search.actors[number].name
            if error is not None and number not in seen.hit:
                changed = len(set(since)) > 1 or len(seen.wrote) > 0
                if not (isinstance(error, self.gone) and changed):
                    raise Violation(OLD_OR_NEW, f"{name} is told {error!r}")
            elif error is None and value not in since:
                raise Violation(OLD_OR_NEW, f"{name} sees {value}; there were {since}")
            since = None
        if since is seen.since[number]:
            return seen
        places = (*seen.since[:number], since, *seen.since[number + 1 :])
        return seen._replace(since=places)

    def _judge_writer(self, node: Node | None, seen: Seen, number: int, name: str) -> None:
        """Judge what a writer is told in the end."""
        assert node is not None and node.end is not None
        error = node.end.error
        if error is None:
            change = self.changes[number]
            if change is not None and number not in seen.done and change(seen.now) is not None:
                raise Violation(TOLD, f"{name} is told that all is well; there is {seen.now}")
        elif isinstance(error, self.refusals):
            if number in seen.done:
                raise Violation(NOT_TOLD, f"{name} is told {error!r}; there is {seen.now}")
            if not seen.wrote - {number}:
                raise Violation(FALSE_CONFLICT, f"{name} is told {error!r}; nobody else wrote")
        elif number not in seen.hit:
            raise Violation(REASON, f"{name} is told {error!r}")

    def judge_end(self, search: Search, state: State) -> None:
        """Judge the end of a schedule."""
        seen: Seen = state.seen
        for number, node in enumerate(state.nodes):
            if number in self.changes and node is not None and node.end is not None:
                self._judge_writer(node, seen, number, search.actors[number].name)
        if "later" not in state.place.found:
            then, _ = self.run_alone(search, self.historian, state.place)
            assert then.end is not None
            if then.end.error is not None:
                raise Violation(WHOLE, f"a reader of all snapshots gets {then.end.error!r}")
            then, place = self.run_alone(search, self.after, state.place)
            assert then.end is not None
            if then.end.error is not None:
                raise Violation(HARMLESS, f"a later writer gets {then.end.error!r}")
            state.place.found["later"] = self.observe(search, place)
        if (now := state.place.found["later"]) != self.last(seen.now):
            raise Violation(HARMLESS, f"a later writer turns {seen.now} into {now}")


def _has_ended(before: State, after: State, number: int) -> bool:
    old, new = before.nodes[number], after.nodes[number]
    return old is not new and new is not None and new.end is not None
