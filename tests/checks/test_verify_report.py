"""A report says what was checked and found, as text, HTML and JSON."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from products import looped

import virtualds
from virtualds import Verification
from virtualds.checks.verify.chunks import find_difference
from virtualds.checks.verify.report import KINDS, SHOWN_PROBLEMS, Problem

BAD = Problem("file:///<b>a&b</b>.nc", "t", (1, 2), "differs", "1 of 2 elements differ")
GONE = Problem("s3://bucket/b.nc", "", None, "missing", "there is no such file")
UNSEEN = Problem("s3://bucket/c.nc", "t", (0,), "not compared", "nobody reads it")


def test_a_verification_is_ok_only_if_everything_was_checked() -> None:
    assert Verification("native", compared={"h5netcdf 1": 3}).ok
    assert not Verification("native", problems=(BAD,)).ok
    assert Verification("range").ok and not Verification("native").ok
    unseen = Verification("native", files=3, problems=(UNSEEN,))
    assert (unseen.ok, unseen.bad_files) == (False, 0)


def test_the_text_names_what_was_found_the_gravest_first() -> None:
    text = str(Verification("native", files=3, problems=(UNSEEN, BAD, GONE)))
    assert text.splitlines()[0] == (
        "verified against native: 1 missing, 1 with other values, 1 not compared, "
        "nothing was compared"
    )
    for problem in (BAD, GONE, UNSEEN):
        assert problem.url in text and problem.message in text
    assert repr(Verification("native")) == str(Verification("native"))


def test_long_lists_are_cut_in_text_and_whole_in_tables() -> None:
    many = tuple(GONE._replace(url=f"s3://bucket/{n}.nc") for n in range(SHOWN_PROBLEMS + 5))
    found = Verification("fingerprint", files=len(many), problems=many)
    assert "and 5 more" in str(found) and "and 5 more" in found._repr_html_()
    assert len(found.to_dataframe()) == len(found.to_dict()["problems"]) == SHOWN_PROBLEMS + 5


def test_html_shows_names_as_text() -> None:
    page = Verification("native", problems=(BAD,))._repr_html_()
    assert "&lt;b&gt;a&amp;b&lt;/b&gt;" in page
    assert "<b>a&" not in page


def test_the_dict_is_what_json_can_hold() -> None:
    found = Verification("native", 2, compared={"h5netcdf 1": 3}, problems=(BAD, GONE))
    again = json.loads(json.dumps(found.to_dict()))
    assert again == found.to_dict()
    assert again["problems"][0]["chunk"] == [1, 2]
    assert (again["ok"], again["bad_files"]) == (False, 2)


def test_the_table_has_a_row_for_every_problem() -> None:
    table = Verification("native", problems=(BAD, GONE)).to_dataframe()
    assert list(table.columns) == ["url", "variable", "chunk", "kind", "message"]
    assert table["kind"].tolist() == ["differs", "missing"]
    assert Verification("native").to_dataframe().empty


def test_a_problem_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kinds of problems"):
        Verification("native", problems=(BAD._replace(kind="odd"),))
    assert set(KINDS) >= {"missing", "size", "modified", "etag", "range", "not compared"}


IN_MEMORY = "no chunk was compared: 0 lie in files, 0 are missing, 0 inline, and 4 variables are in"


def test_nothing_to_compare_is_reported_and_not_called_ok(
    archive_files: list[Path],
) -> None:
    dataset = virtualds.open_virtual_dataset(archive_files[0], loadable_variables=["*"])
    found = dataset.virtual.verify(against="native")
    assert not found.ok and found.bad_files == 0
    (problem,) = found.problems
    assert problem.kind == "not compared" and IN_MEMORY in problem.message
    for text in (str(found), found._repr_html_()):
        assert "nothing was compared" in text and IN_MEMORY in text
    document = found.to_dict()
    assert (document["ok"], document["compared"]) == (False, {})
    assert document["counts"] == {"not compared": 1}
    # what is asked for is looked at
    assert dataset.virtual.verify(against="range").ok
    again = virtualds.open_virtual_dataset(archive_files[0], loadable_variables=[])
    assert again.virtual.verify(against="native").ok


@pytest.mark.parametrize(
    "wrong", [{"against": "nothing"}, {"sample": 0}, {"sample": 2.0, "against": "native"}]
)
def test_a_wrong_argument_raises(wrong: dict[str, Any], archive_files: list[Path]) -> None:
    dataset = virtualds.open_virtual_dataset(archive_files[0])
    with pytest.raises(ValueError, match=r"against='nothing'|verify: "):
        dataset.virtual.verify(**wrong)


@pytest.mark.parametrize("chunks", [None, {}])
def test_lazy_variables_are_verified(chunks: Any, archive_files: list[Path]) -> None:
    dataset = xr.open_dataset(archive_files[0], engine="virtual", chunks=chunks)
    found = dataset.virtual.verify(None, "native")
    assert found.ok, found
    assert found.sampled == 12


@pytest.mark.parametrize("chunks", [None, {}])
def test_variables_that_are_not_virtual_are_not_called_ok(
    chunks: Any, archive_files: list[Path]
) -> None:
    dataset = xr.open_dataset(archive_files[0], chunks=chunks)
    found = dataset.virtual.verify()
    assert not found.ok
    assert "t" in {p.variable for p in found.problems if p.kind == "not compared"}
    assert dataset.load().virtual.verify().ok


def test_a_tree_is_verified_as_a_whole(archive_files: list[Path]) -> None:
    one, two = map(virtualds.open_virtual_dataset, archive_files)
    bare = two.drop_vars(["lat", "lon", "time"]).rename(time="z", lat="u")
    tree = xr.DataTree.from_dict({"/": one, "/a/b": one, "/c": bare.isel(u=slice(2, 3))})
    found = tree.virtual.verify(None, "native")
    assert found.ok, found
    assert (found.files, found.references, found.sampled) == (2, 36, 36)
    broken = xr.open_dataset(archive_files[0])
    other = xr.DataTree.from_dict({"/a": broken})
    assert "a/t" in {p.variable for p in other.virtual.verify().problems}


DIFFERENCES: dict[str, tuple[Any, Any, str]] = {
    "equal": ([1, 2], [1, 2], ""),
    "values": ([1, 2], [1, 3], "1 of 2 elements differ, the first at (1,): 2 here, 3 there"),
    "shape": ([1, 2], [[1, 2]], "shape (2,) here, (1, 2) there"),
    "dtype": ([1, 2], [1.0, 2.0], "dtype int64 here, float64 there"),
    "zeros": ([0.0], [-0.0], "1 of 1 elements differ, the first at (0,): 0.0 here, -0.0 there"),
    "NaN": ([np.nan], [np.nan], ""),
    "byte order": (np.array([1], "<i4"), np.array([1], ">i4"), ""),
    "nothing": (np.zeros((0, 3)), np.zeros((0, 3)), ""),
    "a scalar": (np.float32(1), np.float32(1), ""),
    "scalars": (1.0, 2.0, "1 of 1 elements differ, the first at (): 1.0 here, 2.0 there"),
    "text": (["a", "b"], ["a", "b"], ""),
    "dates": (np.array(["NaT"], "M8[ns]"), np.array(["NaT"], "M8[ns]"), ""),
}  # fmt: skip


@looped("name", DIFFERENCES)
def test_differences_in_any_bit_are_found(name: str) -> None:
    ours, theirs, text = DIFFERENCES[name]
    assert find_difference(np.asarray(ours), np.asarray(theirs)) == text


def test_bits_between_the_fields_of_records_are_no_values() -> None:
    kind = np.dtype({"names": ["a", "b"], "formats": ["u1", "f4"], "offsets": [0, 4]})
    one, two = (np.frombuffer(bytes([1, fill, fill, fill, 0, 0, 0, 0]), kind) for fill in (0, 9))
    assert find_difference(one, two) == ""
    other = one.copy()
    other["b"] = 1
    assert "1 of 1 elements differ" in find_difference(one, other)


def test_the_text_says_what_to_do_about_each_kind(
    archive_files: list[Path], tmp_path: Path
) -> None:
    gone, other = (shutil.copy2(path, tmp_path) for path in archive_files)
    ds = virtualds.open_virtual_mfdataset([gone, other])
    os.unlink(gone)
    os.utime(other, (1, 1))
    text = str(ds.virtual.verify())
    missing, modified = text[text.index("missing (1)") :].split("modified (1)")
    assert "  do: restore the file" in missing
    assert "virtualds sync --on-removed drop" in missing and "virtualds drop-sources" in missing
    assert "cp -p or rsync -t" in modified and "virtualds sync" in modified
