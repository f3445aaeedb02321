"""Every interleaving of the requests of actors, which run the code that ships.

An *actor* is a function that calls a store: a writer or a reader. It is a deterministic function of
the answers that it gets, so what it does after some answers is found once, by running its code with
these answers, and remembered in a tree: each node is the request that follows the answers which
lead to it, or the end of the actor. The search of interleavings walks these trees, and runs code
only where no run has been yet. So a schedule costs microseconds.

Two states of the search with the same store, the same nodes of all actors, the same requests on
their way, the same clock and the same faults left have the same future: each schedule is counted,
and each state is searched once. States are compared whole, not by a hash. Nothing else is left out.

A schedule has a number: its place among all schedules of its scenario, in the order of the search.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextvars import Context
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

SUSPENDED = 200
"""Runs that wait for an answer; further ones are ended, and done again when needed."""


class Request(NamedTuple):
    """What an actor asks: a verb, what it is asked of, and what else it says."""

    verb: str
    name: str = ""
    detail: Hashable = None

    def __str__(self) -> str:
        return f"{self.verb} {self.name}".strip()


class Failed(NamedTuple):
    """An answer that is an error: its class, its words, and its number in the system."""

    kind: type[BaseException]
    words: str = ""
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.kind.__name__}: {self.words}"


class End(NamedTuple):
    """How an actor ended: with a value, or with an error."""

    value: Any = None
    error: BaseException | None = None


class _Abandoned(BaseException):
    """Ends a run that nobody will continue."""


class Node:
    """What an actor does after some answers."""

    __slots__ = ("after", "answer", "children", "depth", "end", "number", "request", "running")

    def __init__(self, after: Node | None, answer: Any, number: int) -> None:
        self.after, self.answer, self.number = after, answer, number
        self.request: Request | None = None
        self.end: End | None = None
        self.running: _Run | None = None
        self.children: dict[Any, Node] = {}
        self.depth: int = after.depth + 1 if after else 0

    def list_answers(self) -> list[Any]:
        """Return the answers that lead here."""
        found, node = [], self
        while node.after is not None:
            found.append(node.answer)
            node = node.after
        return found[::-1]


_CURRENT = threading.local()


def ask(verb: str, name: str = "", detail: Hashable = None) -> Any:
    """Send a request, and return its answer: called by what stands for the store."""
    answer = _CURRENT.ask(Request(verb, name, detail))
    if isinstance(answer, Failed):
        if answer.number is not None:
            raise OSError(answer.number, os.strerror(answer.number), answer.words)
        raise answer.kind(answer.words or verb)
    return answer


def get_notes() -> dict[str, Any]:
    """Return what this run of this actor has noted."""
    found: dict[str, Any] = _CURRENT.notes
    return found


def count_up(kind: str) -> int:
    """Return the next number of a kind, of this run of this actor."""
    number: int = get_notes().get(kind, 0)
    get_notes()[kind] = number + 1
    return number


def remember(name: str, version: Any) -> None:
    """Remember what this actor looked at last, and what it saw: a sleeper looks again."""
    _CURRENT.looked = name, version


def sleep_until_news() -> None:
    """Sleep until the clock, or what the actor looked at last, has changed.

    In between, an actor that polls would find what it found before, and go on as it did before.
    """
    name, version = _CURRENT.looked
    ask("sleep", name, (ask("clock"), version))


def name_actor() -> str:
    """Return the name of the actor that runs, an empty text outside of actors."""
    return getattr(_CURRENT, "name", "")


class _Run:
    """A run of the code of an actor, in a thread of its own that waits for answers."""

    def __init__(self, name: str, work: Callable[[], Any], answers: list[Any]) -> None:
        self._answers = iter(answers)
        self._name, self._work = name, work
        self._mine, self._theirs = threading.Lock(), threading.Lock()
        self._mine.acquire()
        self._theirs.acquire()
        self._given: Any = None
        self.asked: list[Request] = []
        self.request: Request | None = None
        self.end: End | None = None
        threading.Thread(target=Context().run, args=(self._run,), daemon=True).start()
        self._theirs.acquire()

    def _run(self) -> None:
        _CURRENT.ask, _CURRENT.notes, _CURRENT.name = self._ask, {}, self._name
        _CURRENT.looked = "", None
        try:
            end = End(self._work())
        except _Abandoned:
            end = End()
        except BaseException as error:  # noqa: BLE001
            end = End(None, error)
        self.request, self.end = None, end
        self._theirs.release()

    def _ask(self, request: Request) -> Any:
        self.asked.append(request)
        for answer in self._answers:
            return answer
        if self._given is _Abandoned:
            raise _Abandoned
        self.request = request
        self._theirs.release()
        self._mine.acquire()
        if self._given is _Abandoned:
            raise _Abandoned
        return self._given

    def give(self, answer: Any) -> None:
        """Let the code go on with an answer, until its next request or its end."""
        self._given = answer
        self._mine.release()
        self._theirs.acquire()

    def abandon(self) -> None:
        """End the run; its code may ask in vain while it ends."""
        if self.end is None:
            self.give(_Abandoned)


class Actor:
    """A piece of code that sends requests, and the tree of what it does."""

    suspended: ClassVar[OrderedDict[Node, None]] = OrderedDict()

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name, self._work = name, work
        self._numbers = itertools.count()
        self.runs = 0
        self.begin = Node(None, None, next(self._numbers))
        self._start(self.begin)

    def advance(self, node: Node, answer: Any) -> Node:
        """Return what follows an answer."""
        key = answer
        found = node.children.get(key)
        if found is None:
            found = node.children[key] = Node(node, answer, next(self._numbers))
            run, node.running = node.running, None
            self.suspended.pop(node, None)
            if run is None:
                self._start(found)
            else:
                run.give(answer)
                self._settle(found, run)
        return found

    def _start(self, node: Node) -> None:
        """Run the code from its beginning up to a node."""
        self.runs += 1
        run = _Run(self.name, self._work, node.list_answers())
        asked, above = [], node.after
        while above is not None:
            asked.append(above.request)
            above = above.after
        if run.asked[: len(asked)] != asked[::-1]:
            run.abandon()
            raise AssertionError(
                f"{self.name} does not do the same again: {run.asked} after {asked[::-1]}"
            )
        self._settle(node, run)

    def _settle(self, node: Node, run: _Run) -> None:
        node.request, node.end = run.request, run.end
        if run.end is None:
            node.running = run
            self.suspended[node] = None
            if len(self.suspended) > SUSPENDED:
                oldest, _ = self.suspended.popitem(last=False)
                oldest.running, old = None, oldest.running
                assert old is not None
                old.abandon()


def end_all_runs() -> None:
    """End the runs that wait."""
    while Actor.suspended:
        node, _ = Actor.suspended.popitem()
        if node.running is not None:
            node.running, run = None, node.running
            run.abandon()


# ---------------------------------------------------------------------- the search


class World:
    """What actors ask. Its states are immutable values, which tell of everything."""

    lost: Failed
    """What a sender is told whose answer does not come."""

    free: frozenset[str] = frozenset()
    """Verbs that are no requests of a store: they are answered at once."""

    def answer(self, state: Any, actor: str, request: Request) -> tuple[Any, Any] | None:
        """Return the answer to a request, and the state after it; None if it has to wait."""
        raise NotImplementedError

    def changes(self, request: Request) -> bool:
        """Say whether a request may change the state."""
        raise NotImplementedError

    def is_sent(self, request: Request) -> bool:
        """Say whether a request goes a way on which it, or its answer, may be lost."""
        return True

    def after_crash(self, state: Any, actor: str) -> Any:
        """Return the state after the death of an actor."""
        return state

    def tick(self, state: Any) -> Any:
        """Return the state after time has passed."""
        raise NotImplementedError


class Place:
    """A state of the world, with what is known of it; a search has one object for equal states."""

    __slots__ = ("answers", "answers_to", "found", "state")

    def __init__(self, state: Any) -> None:
        self.state = state
        self.answers: dict[tuple[str, Request], tuple[Any, Place] | None] = {}
        self.answers_to: dict[Node, tuple[Any, Place] | None] = {}
        """The same, by what asks: to hash a request takes longer than the rest of a step."""
        self.found: dict[str, Any] = {}
        """What a check has found out about it."""


class State(NamedTuple):
    """A state of the search."""

    place: Place
    nodes: tuple[Node | None, ...]
    """Of each actor; None of one that is dead."""
    late: tuple[tuple[int, Request], ...]
    """Requests on their way, and who sent them, in an order of their own."""
    faults: int
    """How many may come."""
    ticks: int
    seen: Any = None
    """What the property to check remembers."""


Words = tuple[Any, ...]
"""What happens, as parts of a text: of a million of them few are told."""
Move = tuple[Words, int | None, State]
"""What happens, to which actor, and the state after it, not judged yet."""


def tell(words: Words) -> str:
    """Return what happens as one text."""
    return "".join(map(str, words))


class Check(Protocol):
    """Judges schedules, and raises a `Violation`."""

    def begin(self, search: Search, state: State) -> State:
        """Return the first state, with what is to be remembered."""

    def judge_step(self, search: Search, before: State, after: State, number: int | None) -> State:
        """Return the state after a step, with what is to be remembered."""

    def judge_end(self, search: Search, state: State) -> None:
        """Judge the end of a schedule."""


class Violation(Exception):
    """A schedule breaks the protocol."""

    def __init__(self, invariant: str, words: str) -> None:
        super().__init__(f"{invariant}: {words}")
        self.invariant = invariant
        self.number = 0
        self.trace: list[str] = []


class Found(NamedTuple):
    """What a search went through."""

    schedules: int
    states: int
    steps: int
    """Of the longest schedule."""
    runs: int
    """Of the code of actors."""
    violation: Violation | None


FAULTS = ("crash", "failed", "lost", "late", "crash late", "repeated", "repeated late")
"""What may go wrong with a request that changes the store; the first two also with others."""


@dataclass
class Search:
    """All schedules of some actors in a world.

    Parameters
    ----------
    world : World
    actors : list of Actor
    start : object
        The first state of the world.
    check : Check
        Judges steps and ends.
    faults, ticks : int
        How often something goes wrong, and time passes, in a schedule at most.
    kinds : tuple of str
        Which faults there are.
    faulty : tuple of int
        Numbers of the actors whose requests may go wrong.
    """

    world: World
    actors: list[Actor]
    start: Any
    check: Check
    faults: int = 1
    ticks: int = 0
    kinds: tuple[str, ...] = FAULTS
    faulty: tuple[int, ...] | None = None
    most_states: int = 3_000_000

    def __post_init__(self) -> None:
        self._places: dict[Any, Place] = {}
        self._counts: dict[State, tuple[int, int]] = {}
        self._names = [actor.name for actor in self.actors]

    def run(self) -> Found:
        """Search all schedules; stop at the first that breaks the protocol."""
        self._begin_counting()
        first = self._first()
        violation, schedules, steps = None, 0, 0
        # states are kept, a million of them: to look for garbage takes a sixth of the time
        gc.disable()
        try:
            schedules, steps = self._count(first)
        except Violation as found:
            violation = found
            found.trace.reverse()
            found.number = sum(self._before)
            schedules = found.number + 1
        finally:
            gc.enable()
        runs = sum(actor.runs for actor in self.actors)
        return Found(schedules, len(self._counts), steps, runs, violation)

    def replay(self, number: int) -> list[str]:
        """Return what happens in a schedule, in words."""
        state, trace, left = self._first(), list[str](), number
        while True:
            for words, after in self._list_steps(state, goes_on=True):
                below = 1 if isinstance(after, Violation) else self._count_to_violation(after)
                if left >= below:
                    left -= below
                    continue
                trace.append(tell(words))
                if isinstance(after, Violation):
                    return [*trace, str(after)]
                state = after
                break
            else:
                try:
                    self.check.judge_end(self, state)
                except Violation as found:
                    trace.append(str(found))
                return trace

    # ------------------------------------------------------------------ states

    def place(self, state: Any) -> Place:
        """Return the object for a state of the world."""
        if (found := self._places.get(state)) is None:
            found = self._places[state] = Place(state)
        return found

    def answer(self, place: Place, actor: str, request: Request) -> tuple[Any, Place] | None:
        """Return the answer to a request, and the place after it; None if it has to wait."""
        key = actor, request
        if key not in place.answers:
            found = self.world.answer(place.state, actor, request)
            place.answers[key] = None if found is None else (found[0], self.place(found[1]))
        return place.answers[key]

    def answer_to(self, place: Place, number: int, node: Node) -> tuple[Any, Place] | None:
        """Return the answer to what an actor asks, and the place after it; None if it waits."""
        if node not in place.answers_to:
            assert node.request is not None
            name = self.actors[number].name
            place.answers_to[node] = self.answer(place, name, node.request)
        return place.answers_to[node]

    def settle(self, place: Place, actor: Actor, node: Node) -> tuple[Place, Node]:
        """Answer what is no request of a store."""
        while node.request is not None and node.request.verb in self.world.free:
            found = self.answer(place, actor.name, node.request)
            assert found is not None
            answer, place = found
            node = actor.advance(node, answer)
        return place, node

    def _first(self) -> State:
        place, nodes = self.place(self.start), []
        for actor in self.actors:
            place, node = self.settle(place, actor, actor.begin)
            nodes.append(node)
        state = State(place, tuple(nodes), (), self.faults, self.ticks)
        return self.check.begin(self, state)

    # ------------------------------------------------------------------ counting

    def _begin_counting(self) -> None:
        self._counts, self._before = {}, [0]
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))

    def _count_to_violation(self, state: State) -> int:
        """Return the number of schedules from a state on, up to the first that breaks a rule."""
        self._before = [0]
        try:
            return (self._counts.get(state) or self._count(state))[0]
        except Violation:
            return sum(self._before) + 1

    def _count(self, state: State) -> tuple[int, int]:
        """Count the schedules from a state on, and the steps of the longest, for the first time."""
        if len(self._counts) > self.most_states:
            raise AssertionError(f"more than {self.most_states} states")
        total = deepest = 0
        self._before.append(0)
        for words, after in self._list_steps(state):
            try:
                count, steps = self._counts.get(after) or self._count(after)
            except Violation as found:
                found.trace.append(tell(words))
                raise
            total += count
            self._before[-1] = total
            if steps >= deepest:
                deepest = steps + 1
        if not total:
            self.check.judge_end(self, state)
            total = 1
        self._before.pop()
        self._counts[state] = total, deepest
        return total, deepest

    # ------------------------------------------------------------------ steps

    def _list_steps(self, state: State, *, goes_on: bool = False) -> Iterator[tuple[Words, Any]]:
        """Yield what may happen next, in words, and the state after it, or what it breaks."""
        for words, number, after in self._list_moves(state):
            try:
                judged = self.check.judge_step(self, state, after, number)
            except Violation as found:
                if not goes_on:
                    found.trace.append(tell(words))
                    raise
                yield words, found
            else:
                yield words, judged

    def _list_moves(self, state: State) -> Iterator[Move]:
        names, place = self._names, state.place
        waiting = [
            (number, node, self.answer_to(place, number, node))
            for number, node in enumerate(state.nodes)
            if node is not None and node.request is not None
        ]
        for number, node, found in waiting:
            if found is not None:
                yield self._move(state, number, (names[number], ": ", node.request), *found)
        for late, (number, request) in enumerate(state.late):
            found = self.answer(place, names[number], request)
            then = place if found is None else found[1]
            rest = state.late[:late] + state.late[late + 1 :]
            words = ("now comes what ", names[number], " sent: ", request)
            yield words, number, state._replace(place=then, late=rest)
        if state.ticks and waiting:
            then = self.place(self.world.tick(place.state))
            yield ("time passes",), None, state._replace(place=then, ticks=state.ticks - 1)
        if state.faults:
            for number, node, found in waiting:
                if self.faulty is None or number in self.faulty:
                    assert node.request is not None
                    yield from self._list_faults(state, number, node.request, found)

    def _list_faults(
        self, state: State, number: int, request: Request, found: tuple[Any, Place] | None
    ) -> Iterator[Move]:
        name, world, kinds = self._names[number], self.world, self.kinds
        place, nodes, late, faults, ticks, seen = state
        state = State(place, nodes, late, faults - 1, ticks, seen)
        others = (*nodes[:number], None, *nodes[number + 1 :])
        crashed = self.place(world.after_crash(place.state, name))
        if "crash" in kinds:
            dead = State(crashed, others, late, faults - 1, ticks, seen)
            yield (name, " is killed before: ", request), number, dead
        if found is None or not world.is_sent(request):
            return
        answer, then = world.lost, found[1]
        if "failed" in kinds:
            yield self._move(state, number, (name, " fails at: ", request), answer, place)
        if not world.changes(request):
            return
        late = tuple(sorted((*late, (number, request)), key=repr)) if late else ((number, request),)
        if "lost" in kinds:
            words: Words = (name, " gets no answer, but done is: ", request)
            yield self._move(state, number, words, answer, then)
        if "late" in kinds:
            words = (name, " gets no answer, and on its way is: ", request)
            yield self._move(state._replace(late=late), number, words, answer, place)
        if "crash late" in kinds:
            words = (name, " is killed, and on its way is: ", request)
            yield words, number, State(crashed, others, late, faults - 1, ticks, seen)
        if "repeated" in kinds and then is not place:
            words = (name, " gets no answer, and will repeat, though done is: ", request)
            yield words, number, state._replace(place=then)
        if "repeated late" in kinds:
            words = (name, " gets no answer, and will repeat, while on its way is: ", request)
            yield words, number, state._replace(late=late)

    def _move(self, state: State, number: int, words: Words, answer: Any, place: Place) -> Move:
        """Return the move of one actor that gets an answer."""
        actor, before = self.actors[number], state.nodes[number]
        assert before is not None
        node = before.children.get(answer) or actor.advance(before, answer)
        if node.request is not None and node.request.verb in self.world.free:
            place, node = self.settle(place, actor, node)
        nodes = (*state.nodes[:number], node, *state.nodes[number + 1 :])
        if isinstance(answer, Failed):
            words = (*words, " -> ", answer.kind.__name__)
        # `_replace` takes as long as all the rest of a step
        after = State(place, nodes, state.late, state.faults, state.ticks, state.seen)
        return words, number, after
