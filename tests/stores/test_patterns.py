"""A pattern matches the paths that it describes, and its names say what they matched."""

from __future__ import annotations

import fnmatch
from datetime import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from virtualds import CombineError
from virtualds.stores.listing import PathPattern

CMIP = "/a/{source_id}/{member_id}/{variable_id}/{version}/{variable_id}_*_{time_range}.nc"
MATCHES = {
    (CMIP, "/a/M1/r1/tas/v2/tas_Amon_M1_185001-189912.nc"): {
        "source_id": "M1",
        "member_id": "r1",
        "variable_id": "tas",
        "version": "v2",
        "time_range": "185001-189912",
    },
    # a name that stands twice is one text
    (CMIP, "/a/M1/r1/tas/v2/pr_Amon_M1_185001-189912.nc"): None,
    # a name does not reach over a slash, nor match nothing
    ("/a/{x}.nc", "/a/b/c.nc"): None,
    ("/a/{x}.nc", "/a/.nc"): None,
    ("s3://b/{run:%Y%m%d%H}/f{lead:d}.grib2", "s3://b/2001020312/f006.grib2"): {
        "run": "2001020312",
        "lead": "006",
    },
    ("s3://b/{run:%Y%m%d%H}/*", "s3://b/20010203/f006"): None,
    ("/a/{x:d}.nc", "/a/x.nc"): None,
    ("/a/{b,cc}/*.nc", "/a/cc/1.nc"): {},
    ("/a/{b,cc}/*.nc", "/a/c/1.nc"): None,
    ("/a/{b?,c*}.nc", "/a/bb.nc"): {},
    ("/a/{{x}}/{y}.nc", "/a/{x}/1.nc"): {"y": "1"},
    ("/a/**/{y}.nc", "/a/1.nc"): {"y": "1"},
    ("/a/**/{y}.nc", "/a/b/c/1.nc"): {"y": "1"},
    ("/a/{y}/**", "/a/b/c/1.nc"): {"y": "b"},
    ("https://host/{x}.nc", "https://host/r%201.nc"): {"x": "r 1"},
    ("/a/{x}.nc", "/a/r%201.nc"): {"x": "r%201"},
    ("https://host/{x}.nc?v=[1]", "https://host/a.nc?v=[1]"): {"x": "a"},
}


@pytest.mark.parametrize(("pattern", "path"), MATCHES)
def test_names_say_what_they_match(pattern: str, path: str) -> None:
    assert PathPattern.from_url(pattern).match(path) == MATCHES[pattern, path]


@example("a[.*]b", "a.b")
@given(st.text("ab*?[]!-.", max_size=8), st.text("ab-.", min_size=1, max_size=6))
def test_wildcards_are_those_of_a_shell(pattern: str, name: str) -> None:
    found = PathPattern(pattern).compile_part(pattern).match(name) is not None
    assert found == fnmatch.fnmatchcase(name, pattern)


def test_a_form_makes_numbers_and_dates_of_text() -> None:
    pattern = PathPattern("{run:%Y%m%d}/{lead:d}/{member}")
    assert pattern.read("run", "20010203") == datetime(2001, 2, 3)
    assert pattern.read("lead", "006") == 6
    assert pattern.read("member", "r1") == "r1"
    with pytest.raises(CombineError, match=r"\{run:%Y%m%d\} does not fit '20010231'"):
        pattern.read("run", "20010231")
    with pytest.raises(ValueError, match=r"\{x:f\} has an unknown form"):
        PathPattern("{x:f}.nc")


def test_an_error_says_which_part_does_not_match() -> None:
    pattern = PathPattern("/a/{model}/{version:d}/{model}.nc")
    with pytest.raises(CombineError, match=r"/a/M1/v2/M1.nc: 'v2' does not match '\{version:d\}'"):
        pattern.find_facts("/a/M1/v2/M1.nc")
    with pytest.raises(CombineError, match=r"\{model\} is 'M1' in one part and 'M2' in another"):
        pattern.find_facts("/a/M1/2/M2.nc")
