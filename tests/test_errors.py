"""Errors show what happened and where, then what to do, then the details."""

import pickle

import pytest

from virtualds.errors import (
    FormatError,
    ReadError,
    UnsupportedError,
    format_details,
    make_unsupported_error,
)


def test_what_to_do_has_a_line_of_its_own() -> None:
    error = FormatError("a.nc: it ends too early (cut; short); fetch it again; or leave it out")
    assert str(error).split("\n") == [
        "a.nc: it ends too early (cut; short)",
        "fetch it again; or leave it out",
    ]


def test_within_another_text_an_error_keeps_to_one_line() -> None:
    error = FormatError("a.nc: it is empty; fetch it again")
    assert f"left out: {error}" == "left out: a.nc: it is empty; fetch it again"
    assert f"left out: {error!s}".count("\n") == 1


def test_an_error_without_a_remedy_stays_as_it_is() -> None:
    assert str(ReadError("a.nc: gone")) == "a.nc: gone"
    assert str(ReadError()) == ""


def test_a_place_comes_first_and_only_once() -> None:
    error = UnsupportedError("its type is odd; leave it out")
    error.locate("variable 't'", "file:///a.nc")
    error.locate("variable 't'")
    error.locate("group /g")
    assert f"{error}" == "group /g: variable 't' of file:///a.nc: its type is odd; leave it out"


def test_the_file_of_a_place_is_named_once() -> None:
    error = FormatError("file:///a.nc: its header is odd")
    error.locate("variable 't'", "file:///a.nc")
    assert str(error) == "variable 't' of file:///a.nc: its header is odd"


def test_a_name_that_another_begins_with_is_a_place_of_its_own() -> None:
    error = FormatError("group /ab: odd")
    error.locate("group /a")
    assert str(error) == "group /a: group /ab: odd"


def test_no_place_shows_a_secret() -> None:
    error = FormatError("odd")
    error.locate("variable 't'", "https://example.org/a.nc?token=abc")
    assert "abc" not in repr(error)
    error = FormatError("odd")
    error.locate_file("https://example.org/a.nc?token=abc")
    error.locate_file("https://example.org/a.nc?token=abc")
    assert str(error) == "https://example.org/a.nc?token=...: odd"


def test_details_stand_below_and_the_rest_is_counted() -> None:
    text = str(make_unsupported_error("a.json", "it", [f"v{n}: odd" for n in range(47)], "do this"))
    head, remedy, *details = text.split("\n")
    assert head == "a.json: it cannot hold 47 properties of this dataset"
    assert remedy == "do this"
    assert details[0] == "  v0: odd"
    assert details[-1] == "  ... and 37 more"
    assert len(details) == 11
    assert format_details("all", ["one"]) == "all\n  one"


@pytest.mark.parametrize("how", [pickle.HIGHEST_PROTOCOL, 0])
def test_a_process_gives_an_error_back_as_it_was(how: int) -> None:
    error = FormatError("odd; mend it")
    error.locate("variable 't'")
    assert str(pickle.loads(pickle.dumps(error, how))) == str(error)
