"""Some processes append to one set: what was acknowledged is there, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import others_soaked, times
from other_s3_servers import bucket_at, seaweedfs_server
from racing_writers import SETS, Outcome, Race, Writer, kill_in_the_middle, run, running_writers

from virtualds.source_file import StorageOptions

pytestmark = pytest.mark.full

WRITERS = 3
ROUNDS = times(3)
"""Appends of each writer; `racing_writers` takes more by hand."""
NUMBERS = set(range(WRITERS * ROUNDS))


@pytest.fixture(scope="module")
def writers() -> Iterator[list[Writer]]:
    with running_writers(WRITERS) as started:
        yield started


def each_is_there_once(outcome: Outcome) -> None:
    assert set(outcome.acknowledged) == NUMBERS, outcome.said
    assert sorted(outcome.left) == sorted(NUMBERS)


@pytest.mark.parametrize("name", SETS)
def test_all_that_is_acknowledged_is_there_once(
    name: str, writers: list[Writer], s3_server: dict[str, Any], s3_bucket: str
) -> None:
    outcome = run(writers, Race(s3_bucket, name, StorageOptions(s3_server)), ROUNDS)
    each_is_there_once(outcome)
    assert outcome.failures == []


# A server takes some seconds to end and to start, so one format is tried: the store is the same.
@pytest.mark.parametrize("name", others_soaked(SETS, [*SETS][-1:]))
def test_a_server_killed_in_the_middle_loses_nothing(
    name: str, writers: list[Writer], tmp_path: Path
) -> None:
    with seaweedfs_server(tmp_path) as server:
        race = Race(bucket_at(server.options), name, StorageOptions(server.options))
        each_is_there_once(run(writers, race, ROUNDS, kill_in_the_middle(server, len(NUMBERS))))
