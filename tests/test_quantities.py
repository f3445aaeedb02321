"""Numbers in words: every number has few digits and the unit that fits it."""

import pytest

from virtualds.errors import format_bytes, format_count


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_999, "1.0 MB"),
        (2**20, "1.0 MB"),
        (10**18, "1.0 EB"),
        (2**80, "1.2 YB"),
        (10**28, "10,000.0 YB"),
    ],
)
def test_bytes_have_a_unit_that_leaves_at_most_three_digits_before_the_point(
    count: int, shown: str
) -> None:
    assert format_bytes(count) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, "0 files"), (1, "1 file"), (2000, "2,000 files")])
def test_a_noun_agrees_with_its_number(count: int, shown: str) -> None:
    assert format_count(count, "file") == shown
