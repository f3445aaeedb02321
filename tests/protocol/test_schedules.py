"""Two writers and a reader of one set: every interleaving of their requests keeps the protocol.

``docs/explanation/protocol.md`` is the specification, and names the invariants. To see one schedule
in words, with ``tests`` on the path of Python::

    python -m protocol.replay "zarr-v3, conditions on etags, two append, one fault" 123456
"""

from __future__ import annotations

import re
from functools import partial
from math import factorial
from pathlib import Path

import pytest
from protocol.breaks import BREAKS, Break
from protocol.explorer import Actor, Found, Search, State, ask, end_all_runs
from protocol.invariants import INVARIANTS
from protocol.scenarios import ETAGS, SCENARIOS, Scenario
from protocol.simulated_store import Objects, ObjectWorld

SOAKED = {"append or create", "build and create", "append again", "create"}
"""Acts whose longest searches run in a soak: what they do is also done by shorter ones."""


def marks_of(one: Scenario) -> list[pytest.MarkDecorator]:
    """Return the suites of a search: how a store keeps writers apart is not up to the format."""
    if not one.is_long:
        return []
    is_soaked = one.way != ETAGS or one.act in SOAKED
    return [pytest.mark.soak if is_soaked else pytest.mark.full]


CASES = [pytest.param(one, id=one.name, marks=marks_of(one)) for one in SCENARIOS]


def tell(found: Found) -> str:
    """Return the schedule that breaks the protocol, in words."""
    if found.violation is None:
        return f"none of {found.schedules} schedules breaks the protocol"
    number, trace = found.violation.number, found.violation.trace
    return "\n".join([f"schedule {number}:", *trace, str(found.violation)])


# All schedules of a set that is more than one file are some seconds, up to 20.
@pytest.mark.parametrize("scenario", CASES)
def test_no_schedule_breaks_the_protocol(scenario: Scenario) -> None:
    found = scenario.search()
    assert found.violation is None, tell(found)
    assert found.schedules > 1


@pytest.mark.parametrize("broken", BREAKS, ids=lambda one: one.name)
def test_a_break_of_the_protocol_is_found(broken: Break) -> None:
    found = broken.scenario.search(broken.apply)
    assert found.violation is not None, tell(found)
    assert found.violation.invariant in broken.broken, tell(found)


def test_what_is_broken_is_whole_without_the_break() -> None:
    searched = {(one.form, one.way, one.act) for one in SCENARIOS}
    assert searched >= {(one.scenario.form, one.scenario.way, one.scenario.act) for one in BREAKS}


def test_the_specification_names_every_invariant() -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "protocol.md"
    named = re.findall(r"^\d+\. \*\*(.+?)\.\*\*", page.read_text(), re.MULTILINE)
    assert [name[0].lower() + name[1:] for name in named] == list(INVARIANTS)
    assert {name for one in BREAKS for name in one.broken} == set(INVARIANTS)


def test_a_schedule_is_found_again_by_its_number() -> None:
    [broken] = [one for one in BREAKS if one.name == "a lost answer is taken for a refusal"]
    found = broken.scenario.search(broken.apply)
    assert found.violation is not None
    told = broken.scenario.replay(found.violation.number, broken.apply)
    assert told == [*found.violation.trace, str(found.violation)]


def test_every_number_is_another_schedule() -> None:
    scenario = Scenario("kerchunk-json", ETAGS, "append", faults=1)
    count = scenario.search().schedules
    with scenario.prepared() as search:
        told = {tuple(search.replay(number)) for number in range(count)}
    assert len(told) == count


def test_each_state_is_searched_once_and_every_schedule_is_counted() -> None:
    with Scenario("kerchunk-json", ETAGS, "append", faults=1).prepared() as search:

        def count(state: State) -> int:
            return sum(count(after) for _, after in search._list_steps(state)) or 1

        assert search.run().schedules == count(search._first())


class Anything:
    """A check that allows everything."""

    def begin(self, search: Search, state: State) -> State:
        return state

    def judge_step(self, search: Search, before: State, after: State, number: int | None) -> State:
        return after

    def judge_end(self, search: Search, state: State) -> None:
        pass


def test_schedules_are_all_interleavings() -> None:
    def write(*names: str) -> None:
        for name in names:
            ask("PUT", name, b"")

    actors = [Actor(names, partial(write, *names)) for names in ("ab", "cd", "e")]
    found = Search(ObjectWorld(), actors, Objects(), Anything(), faults=0).run()
    end_all_runs()
    assert found.schedules == factorial(5) // (factorial(2) * factorial(2) * factorial(1))
    # how much each has done
    assert found.states == 3 * 3 * 2
