"""Say in words what happens in one schedule: ``python -m protocol.replay SCENARIO NUMBER``."""

from __future__ import annotations

import sys

from protocol.breaks import BREAKS
from protocol.scenarios import SCENARIOS


def main(name: str, number: str) -> None:
    """Print a schedule, of a scenario or of that of a break."""
    scenarios = {one.name: (one, None) for one in SCENARIOS}
    scenarios |= {one.name: (one.scenario, one.apply) for one in BREAKS}
    if name not in scenarios:
        raise SystemExit("\n".join(["there is no such scenario; there are:", *scenarios]))
    scenario, broken = scenarios[name]
    print("\n".join(scenario.replay(int(number), broken)))


if __name__ == "__main__":
    main(*sys.argv[1:])
