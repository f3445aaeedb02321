"""Diagnoses and verifications as HTML: eras and files on a line, a card for what to mend."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import cftime
import numpy as np
import pytest
import xarray as xr
from products import looped
from virtual_arrays import virtual

import virtualds
from virtualds import Diagnosis, Difference, Era, Verification
from virtualds.checks.diagnose.differences import (
    NO_FIX,
    ExpectedProperties,
    _write_file_list,
    find_fix,
    write_remedy,
)
from virtualds.checks.diagnose.report import CoordinateSpan, EraFile, EraStretch, arrange_eras
from virtualds.checks.diagnose.trials import SIDE_BY_SIDE
from virtualds.checks.verify.report import KINDS, NOT_COMPARED, Problem, list_runs

HOSTILE = "<script>alert('&\"')</script>"
DAY = np.timedelta64(1, "D")


def parsed(markup: str) -> ET.Element:
    """The elements of a fragment, which is XML, too."""
    return ET.fromstring(markup.replace("<!doctype html>", ""))


def by_class(page: ET.Element, name: str) -> list[ET.Element]:
    return [found for found in page.iter() if name in found.get("class", "").split()]


def words(found: ET.Element) -> str:
    return " ".join("".join(found.itertext()).split())


def list_codes(found: Verification) -> list[str]:
    """The code on the page, as it is copied."""
    shown = by_class(parsed(found._repr_html_()), "vds-code")
    return ["".join(code.itertext()) for code in shown]


def spans(strip: ET.Element) -> list[tuple[float, float, str]]:
    """Where the rectangles of a strip lie, as parts of it, and their shades."""
    width = float(strip.get("width", "0"))
    found = []
    for box in strip.findall("{*}rect"):
        shade = re.search(r"vds-([a-z]+)", box.get("fill", ""))
        start = float(box.get("x", "0")) / width
        stop = start + float(box.get("width", "0")) / width
        found.append((round(start, 3), round(stop, 3), shade[1] if shade else ""))
    return found


def write(path: Path, days: Any, **changes: Any) -> None:
    """A file of ``t(time, x)`` on some days of 2001."""
    time = np.datetime64("2001-01-01", "ns") + np.asarray(days) * DAY
    data = np.arange(len(days) * 4.0).reshape(-1, 4)
    ds = xr.Dataset({"t": (("time", "x"), data)}, {"time": time, "x": np.arange(4.0)})
    storage = changes.pop("storage", {"chunksizes": (1, 4)})
    changed = changes.get("change", lambda ds: ds)(ds)
    units = {"units": "days since 2001-01-01"}
    encoding = {"t": storage, "time": units}
    changed.to_netcdf(path, encoding={n: e for n, e in encoding.items() if n in changed})


# ---------------------------------------------------------------------- the line of eras


def at(era: int, start: int, stop: int) -> EraFile:
    dates = (np.datetime64(day, "D").astype("M8[ns]") for day in (start, stop))
    return EraFile(f"{start}.nc", era, True, CoordinateSpan(*dates, (86400.0, 86400.0)))


def line(files: list[EraFile]) -> list[tuple[int, int, float, float]]:
    return [
        (s.era, s.files, round(s.low, 3), round(s.high, 3))
        for s in arrange_eras(files, is_time=True)
    ]


LINES: dict[str, tuple[list[EraFile], list[tuple[int, int, float, float]]]] = {
    "eras that follow each other": (
        [at(0, 0, 9), at(0, 10, 19), at(1, 20, 29), at(1, 30, 39)],
        [(0, 2, 0, 0.5), (1, 2, 0.5, 1)],
    ),
    "an era that comes back": (
        [at(0, 0, 9), at(1, 10, 19), at(0, 20, 29), at(0, 30, 39)],
        [(0, 1, 0, 0.25), (0, 2, 0.5, 1), (1, 1, 0.25, 0.5)],
    ),
    "files in another order than their dates": (
        [at(1, 20, 39), at(0, 0, 19)],
        [(0, 1, 0, 0.5), (1, 1, 0.5, 1)],
    ),
    "eras side by side": (
        [at(0, 0, 9), at(1, 0, 9), at(0, 10, 19), at(1, 10, 19)],
        [(0, 2, 0, 1), (1, 2, 0, 1)],
    ),
    "missing days": (
        [at(0, 0, 9), at(0, 10, 19), at(0, 30, 39)],
        [(0, 2, 0, 0.5), (0, 1, 0.75, 1)],
    ),
    "a file between others that cannot be opened": (
        [at(0, 0, 9), at(0, 10, 19), EraFile("bad.nc", 1, False), at(0, 30, 39)],
        [(0, 2, 0, 0.5), (0, 1, 0.75, 1), (1, 1, 0.5, 0.75)],
    ),
    "bad files at both ends": (
        [EraFile("a.nc", 1, False), at(0, 0, 9), EraFile("b.nc", 1, False)],
        [(0, 1, 0, 1), (1, 1, 0, 0), (1, 1, 1, 1)],
    ),
    "no coordinate": (
        [EraFile("a.nc", 0), EraFile("b.nc", 2, False), EraFile("c.nc", 1), EraFile("d.nc", 1)],
        [(0, 1, 0, 0.25), (1, 2, 0.5, 1), (2, 1, 0.25, 0.5)],
    ),
    "names that cannot be placed": (
        [EraFile(n, 0, True, CoordinateSpan(n, n)) for n in "ab"],
        [(0, 2, 0, 1)],
    ),
    "two calendars": (
        [
            EraFile("a", 0, True, CoordinateSpan(*[cftime.Datetime360Day(2001, 2, 30)] * 2)),
            EraFile("b", 1, True, CoordinateSpan(*[cftime.DatetimeNoLeap(2001, 3, 1)] * 2)),
        ],
        [(0, 1, 0, 0.5), (1, 1, 0.5, 1)],
    ),
    "one file": ([at(0, 5, 5)], [(0, 1, 0, 1)]),
    "none": ([], []),
}


@looped("name", LINES)
def test_eras_lie_where_their_files_lie(name: str) -> None:
    files, expected = LINES[name]
    assert line(files) == expected


def test_eras_are_drawn_on_a_line_of_time_with_gaps_hatched(tmp_path: Path) -> None:
    for n, chunk in enumerate([1, 1, 5, 5]):
        first = n * 10 + 10 * (n == 3)
        storage = {"chunksizes": (chunk, 4)}
        write(tmp_path / f"{n}.nc", range(first, first + 10), storage=storage)
    found = virtualds.diagnose(str(tmp_path / "*.nc"))
    page = parsed(found._repr_html_())
    [drawn] = by_class(page, "vds-strip")
    assert spans(drawn) == [
        (0.6, 0.8, "gap"),
        (0, 0.4, "blue"),
        (0.4, 0.6, "orange"),
        (0.8, 1, "orange"),
    ]
    assert {words(e) for e in drawn.iter() if e.tag.endswith("title")} >= {
        "era 1: 2 files, 2001-01-01 to 2001-01-20"
    }
    [key] = by_class(page, "vds-key")
    assert words(key).startswith("era 1: 2 files, 2001-01-01 to 2001-01-20")
    assert words(key).endswith("no file: 1 gap")
    assert "2001-02-19" in words(page)


def test_eras_side_by_side_have_a_line_each() -> None:
    eras = tuple(Era(2, f"{name}1.nc", f"{name}2.nc", "1", "2") for name in "ab")
    lines = tuple(EraStretch(n, 2, "1", "2", 0.0, 1.0) for n in (0, 1))
    found = Diagnosis(4, 4, ("x",), "as given", (), eras, (), lines)
    assert len(by_class(parsed(found._repr_html_()), "vds-strip")) == 2


def test_thousands_of_stretches_are_drawn_in_few_rectangles() -> None:
    count = 20_000
    places = [(n % 2, n / count, (n + 1) / count) for n in range(count)]
    stretches = tuple(EraStretch(era, 1, "a", "b", low, high) for era, low, high in places)
    eras = tuple(Era(count // 2, "a", "b", "a", "b") for _ in range(2))
    found = Diagnosis(count, count, ("x",), "as given", (), eras, (), stretches)
    page = found._repr_html_()
    assert len(page) < 500_000
    assert {shade for *_, shade in spans(by_class(parsed(page), "vds-strip")[0])} == {
        "blue",
        "orange",
    }


def test_a_bad_file_among_thousands_is_seen_and_later_eras_share_a_shade() -> None:
    count = 9_000
    files = [at(n // 1000, n, n) for n in range(count)]
    files[4_500] = EraFile("bad.nc", 9, False)
    eras = [Era(1000 - (n == 4), f"{n}.nc", "b.nc") for n in range(9)]
    eras.append(Era(1, "bad.nc", "bad.nc", reason="FormatError: no file"))
    drawn = arrange_eras(files, is_time=True)
    found = Diagnosis(count, count, ("t",), "as given", (), tuple(eras), (), drawn)
    page = parsed(found._repr_html_())
    assert "cannot be opened: 1 file, bad.nc" in words(by_class(page, "vds-key")[0])
    *_, last = spans(by_class(page, "vds-strip")[0])
    assert last[2] == "vermilion" and last[0] == 0.5 and last[1] - last[0] >= 0.003
    assert "era 7 to 9: 3,000 files" in words(by_class(page, "vds-key")[0])


def test_a_line_holds_its_stretches() -> None:
    with pytest.raises(ValueError, match="not a part of 0 to 1"):
        EraStretch(0, 1, "a", "b", 0.5, 1.2)


# ---------------------------------------------------------------------- cards


def difference(verdict: Any, **more: Any) -> Difference:
    values = {"variable": "t", "aspect": "codecs", "before": "a", "after": "b"}
    return Difference(
        **{**values, "first_file": "2.nc", "files": 1, "how": "so", **more}, verdict=verdict
    )


def diagnosis(*rows: Difference) -> Diagnosis:
    return Diagnosis(2, 2, ("time",), "as given", ("zarr-v3",), (Era(2, "1.nc", "2.nc"),), rows)


def test_what_blocks_or_costs_has_a_card_with_its_remedy_and_a_line_to_copy() -> None:
    rows = [
        difference("blocks", remedy="mend it", code='mend("2.nc")'),
        difference("costs", aspect="units", remedy="convert it"),
        difference("combines", aspect="fill value"),
    ]
    page = parsed(diagnosis(*rows)._repr_html_())
    cards = [words(card) for card in by_class(page, "vds-card")]
    assert cards[0] == '✗ t: codecsfrom 2.nc (1 file)a -> bsoDo: mend itmend("2.nc")'
    assert [words(code) for code in by_class(page, "vds-code")] == ['mend("2.nc")']
    assert len(cards) == 2 and cards[1].startswith("! t: units")
    assert "Differences that cost nothing1" in words(page)


@pytest.mark.parametrize(
    ("verdict", "sign", "shade"),
    [("blocks", "✗", "vermilion"), ("costs", "!", "orange"), ("combines", "✓", "green")],
)
def test_the_verdict_comes_first_with_a_sign_and_a_shade(
    verdict: Any, sign: str, shade: str
) -> None:
    page = diagnosis(difference(verdict))._repr_html_()
    [title] = by_class(parsed(page), "vds-title")
    assert words(title).startswith(f"{sign} 2 files")
    assert f"border-left:4px solid var(--vds-{shade}," in page


@pytest.mark.parametrize(("remedy", "cards"), [("", 20), ("mend it", 1)])
def test_long_lists_of_cards_are_cut(remedy: str, cards: int) -> None:
    rows = [difference("costs", before=str(n), remedy=remedy) for n in range(50)]
    page = parsed(diagnosis(*rows)._repr_html_())
    assert len(by_class(page, "vds-card")) == cards
    for shown in (words(page), str(diagnosis(*rows))):
        assert shown.count("... and 30 more; to_dataframe() has all") == 1


def test_names_and_values_are_shown_as_text(tmp_path: Path) -> None:
    era = Era(1, HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    names = ("variable", "aspect", "before", "after", "first_file", "how", "remedy", "code")
    rows = [difference(v, **dict.fromkeys(names, HOSTILE)) for v in ("blocks", "combines")]
    stretch = EraStretch(0, 1, HOSTILE, HOSTILE, 0.0, 1.0)
    found = Diagnosis(1, 1, (HOSTILE,), HOSTILE, (HOSTILE,), (era,), tuple(rows), (stretch,))
    problems = [Problem(HOSTILE, HOSTILE, (1,), kind, HOSTILE) for kind in KINDS]
    checked = Verification("native", 1, problems=tuple(problems), gaps=(HOSTILE,))
    for report in (found, checked):
        for page in (report._repr_html_(), report.to_html()):
            assert not [e for e in parsed(page).iter() if e.tag == "script"]
            assert HOSTILE not in page and HOSTILE in "".join(parsed(page).itertext())


def test_pages_stand_alone_and_hold_no_secrets() -> None:
    secret = "https://h/a.nc?token=hunter2"
    found = Diagnosis(1, 1, (), "none", (), (Era(1, secret, secret, reason=secret),), ())
    checked = Verification("range", problems=(Problem(secret, "", None, "missing", secret),))
    for report in (found, checked):
        page = report.to_html()
        assert page.startswith("<!doctype html>") and "hunter2" not in page + report._repr_html_()
        assert not re.search(r"<(link|img|script|iframe)\b|@import|url\(http", page)


# ---------------------------------------------------------------------- lines of code that run

JOINED = {"concat_dim": "time"}
REMEDIES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    # what differs, the change of the second file, the arguments of the diagnosis
    "order of dimensions": ("dimensions", lambda ds: ds.transpose("x", "time"), JOINED),
    "other coordinate": ("values", lambda ds: ds.assign_coords(x=ds["x"] + 0.5), JOINED),
    "overlap": ("overlap", lambda ds: ds.assign_coords(time=ds["time"] - 3 * DAY), JOINED),
    "role": ("role", lambda ds: ds.assign(x2=("x", np.zeros(4))), JOINED),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_a_line_of_code_does_what_the_remedy_says(name: str, tmp_path: Path) -> None:
    aspect, change, how = REMEDIES[name]
    first = {"change": lambda ds: ds.assign_coords(x2=("x", np.zeros(4)))} if name == "role" else {}
    write(tmp_path / "1.nc", range(5), **first)
    write(tmp_path / "2.nc", range(5, 10), change=change)
    files = sorted(map(str, tmp_path.glob("*.nc")))
    found = virtualds.diagnose(files, **how)
    rows = [row for row in found.differences if row.aspect == aspect and row.verdict != "combines"]
    assert rows, found
    space: dict[str, Any] = {"virtualds": virtualds, "files": files}
    for row in rows:
        assert row.code, row
        exec(row.code, space)
    # files of another grid are left out
    assert space["vds"].sizes["time"] == {"overlap": 7, "values": 5}.get(aspect, 10)


GIVEN = {
    "concat_dim": "time",
    "drop_variables": "v",
    "group": "g",
    "storage_options": {"key": "hunter2"},
}
KEEPING_COORDINATES = next(iter(SIDE_BY_SIDE))
LINES_OF_CODE: dict[str, tuple[dict[str, str], ExpectedProperties, str]] = {
    "drop": (
        {"aspect": "presence"},
        ExpectedProperties("there"),
        '"time", drop_variables=["v", "t"]',
    ),
    "coordinate": (
        {"aspect": "values"},
        ExpectedProperties("a", "4"),
        '("t" not in (ds := virtualds.open_virtual_dataset(f, group="g")) or ds["t"].equals('
        'virtualds.open_virtual_dataset("1.nc", group="g").get("t")))',
    ),
    "field": (
        {"aspect": "values", "remedy": KEEPING_COORDINATES},
        ExpectedProperties("a"),
        'drop_variables="v", group="g", coords="different"',
    ),
    "order": ({"aspect": "order"}, ExpectedProperties("a", "4"), "sort=True"),
    "calendar": (
        {"aspect": "calendar", "after": "noleap"},
        ExpectedProperties("standard", "4"),
        'lambda ds: ds.convert_calendar("standard", dim="t") if "t" in ds.dims else ds',
    ),
    "data variable": (
        {"aspect": "role"},
        ExpectedProperties("data variable"),
        'lambda ds: ds.reset_coords([n for n in ["t"] if n in ds.coords])',
    ),
    "name": (
        {"aspect": "presence", "variable": 'a"b'},
        ExpectedProperties("there"),
        r'["v", "a\"b"]',
    ),
}


@pytest.mark.parametrize("name", LINES_OF_CODE)
def test_a_line_repeats_what_was_given_but_no_secret(name: str) -> None:
    given, usual, expected = LINES_OF_CODE[name]
    row = difference("blocks", **given)
    mend = find_fix(row, usual)
    code = write_remedy(row, mend, [mend], GIVEN, "1.nc", [])
    assert "vds = virtualds.open_virtual_mfdataset(" in code and 'concat_dim="time"' in code
    assert expected in code and "hunter2" not in code
    compile(code, "line", "exec")
    fine = difference("combines", **given)
    assert write_remedy(fine, find_fix(fine, usual), [mend], GIVEN, "1.nc", []) == ""


def test_no_line_has_the_secrets_of_files_that_it_would_name() -> None:
    row = difference("blocks", aspect="values")
    mend = find_fix(row, ExpectedProperties("a", "4"))
    secret = "https://example.org/1.nc?token=hunter2"
    for first, lost in ((secret, []), ("1.nc", [secret])):
        assert write_remedy(row, mend, [mend], GIVEN, first, lost) == ""


def test_a_calendar_that_lacks_days_is_never_converted_to() -> None:
    row = difference("costs", aspect="calendar", after="standard")
    assert find_fix(row, ExpectedProperties("noleap", "4")) == NO_FIX


def test_a_file_that_cannot_be_opened_is_left_out_by_the_line(tmp_path: Path) -> None:
    for n in range(3):
        write(tmp_path / f"{n}.nc", range(n * 5, n * 5 + 5))
    (tmp_path / "1.nc").write_bytes(b"nothing")
    files = sorted(map(str, tmp_path.glob("*.nc")))
    [row] = virtualds.diagnose(files).of("blocks")
    space: dict[str, Any] = {"virtualds": virtualds, "files": files}
    exec(row.code, space)
    assert space["vds"].sizes["time"] == 10


def test_a_difference_that_a_format_cannot_hold_names_one_that_can(tmp_path: Path) -> None:
    for n, chunk in enumerate((2, 3)):
        write(
            tmp_path / f"{n}.nc",
            range(n * 5, n * 5 + 5),
            storage={"zlib": True, "chunksizes": (chunk, 4)},
        )
    found = virtualds.diagnose(str(tmp_path / "*.nc"))
    refused = [row for row in found.of("costs") if row.refused]
    assert refused and all("zarr-v3" not in row.refused for row in refused)
    assert {row.code for row in refused} == {'vds.virtual.to_manifest("refs.zarr")'}
    assert all(row.remedy.startswith("write zarr-v3") for row in refused)


def test_a_line_of_code_goes_on_from_the_function_of_the_user(tmp_path: Path) -> None:
    write(tmp_path / "1.nc", range(5))
    write(tmp_path / "2.nc", range(3, 8), change=lambda ds: ds.transpose("x", "time"))
    found = virtualds.diagnose(str(tmp_path / "*.nc"), preprocess=lambda ds: ds)
    codes = {row.aspect: row.code for row in found.differences}
    assert "preprocess=lambda ds: preprocess(ds).pipe(lambda ds: ds.assign(" in codes["dimensions"]
    assert 'overlap="last", preprocess=preprocess)' in codes["overlap"]
    files = sorted(map(str, tmp_path.glob("*.nc")))
    space: dict[str, Any] = {"virtualds": virtualds, "files": files, "preprocess": lambda ds: ds}
    exec(codes["dimensions"], space)
    assert space["vds"].sizes["time"] == 8


# ---------------------------------------------------------------------- the strip of files


def test_a_verification_draws_all_files_in_order(tmp_path: Path) -> None:
    for n in range(10):
        write(tmp_path / f"{n}.nc", range(n * 2, n * 2 + 2))
    vds = virtualds.open_virtual_mfdataset(str(tmp_path / "*.nc"), combine="by_coords")
    assert spans(by_class(parsed(vds.virtual.verify()._repr_html_()), "vds-strip")[0]) == [
        (0, 1, "green")
    ]
    (tmp_path / "2.nc").unlink()
    (tmp_path / "3.nc").unlink()
    with open(tmp_path / "7.nc", "ab") as file:
        file.write(b"more")
    found = vds.virtual.verify()
    assert [(run.kind, run.files) for run in found.runs] == [
        ("", 2), ("missing", 2), ("", 3), ("size", 1), ("", 2),
    ]  # fmt: skip
    page = parsed(found._repr_html_())
    [drawn] = by_class(page, "vds-strip")
    assert spans(drawn) == [(0, 1, "green"), (0.2, 0.4, "vermilion"), (0.7, 0.8, "orange")]
    assert words(by_class(page, "vds-key")[0]) == "✓ 7 ok! 1 changed✗ 2 missing"
    assert words(by_class(page, "vds-title")[0]).startswith("✗ verified against fingerprint")


def test_the_lines_of_a_verification_mend_the_set(tmp_path: Path) -> None:
    for n in range(5):
        write(tmp_path / f"{n}.nc", range(n * 2, n * 2 + 2))
    refs = str(tmp_path / "refs.zarr")
    virtualds.open_virtual_mfdataset(
        str(tmp_path / "*.nc"), combine="by_coords"
    ).virtual.to_manifest(refs)
    (tmp_path / "1.nc").unlink()
    for n in (2, 3):
        times = [2 * n, 2 * n + 1]
        write(tmp_path / f"{n}.nc", times, storage={"zlib": True, "chunksizes": (2, 4)})
    found = virtualds.open_virtual_dataset(refs).virtual.verify()
    codes = list_codes(found)
    assert len(codes) == 2
    for code in codes:
        exec(code, {"virtualds": virtualds, "set_url": refs})
    again = virtualds.open_virtual_dataset(refs)
    assert again.virtual.verify().ok and again.sizes["time"] == 8


@looped("kind", KINDS)
def test_a_remedy_names_every_file(kind: str) -> None:
    bad = [Problem(f"{n}.nc", "", None, kind, "so it is") for n in range(3)]
    codes = list_codes(Verification("fingerprint", 3, problems=tuple(bad)))
    assert len(codes) == (kind not in ("unreachable", "references", NOT_COMPARED))
    for code in codes:
        compile(code, "remedy", "exec")
        assert '["0.nc", "1.nc", "2.nc"]' in code


def test_a_bad_file_of_a_million_is_seen() -> None:
    gone = Problem("5.nc", "", None, "missing", "gone")
    runs = list_runs((f"{n}.nc" for n in range(1_000_000)), [gone])
    assert [run.files for run in runs] == [5, 1, 999_994]
    found = Verification("fingerprint", 1_000_000, problems=(gone,), runs=runs)
    [drawn] = by_class(parsed(found._repr_html_()), "vds-strip")
    ground, bad = spans(drawn)
    assert ground[2] == "green" and bad[2] == "vermilion" and bad[1] - bad[0] >= 0.005


def test_many_missing_files_are_taken_out_by_one_line() -> None:
    gone = [Problem(f"{n}.nc", "", None, "missing", "gone") for n in range(50)]
    page = parsed(Verification("fingerprint", 50, problems=tuple(gone))._repr_html_())
    [code] = map(words, by_class(page, "vds-code"))
    assert code == (
        "virtualds.drop_sources(set_url, "
        'found.to_dataframe().query("kind == \'missing\'")["url"].unique())'
    )


@looped("kind", KINDS)
def test_every_kind_of_problem_has_a_card(kind: str) -> None:
    problem = Problem("a.nc", "", None, kind, "so it is")
    page = parsed(
        Verification(
            "fingerprint", 1, problems=(problem,), runs=list_runs(["a.nc"], [problem])
        )._repr_html_()
    )
    [card] = by_class(page, "vds-card")
    assert (
        KINDS[kind].meaning in words(card) and "so it is" in words(card) and "Do: " in words(card)
    )
    assert len(spans(by_class(page, "vds-strip")[0])) == 2


def test_what_combines_needs_no_mend() -> None:
    assert find_fix(difference("combines", aspect="order"), ExpectedProperties("a", "4")) == NO_FIX


def test_a_file_is_opened_once_in_a_condition() -> None:
    once = _write_file_list(["{ds}.x == 1"], "", {}, "1.nc", [])
    twice = _write_file_list(["{ds}.x == 1", "{ds}.y == 2"], "", {}, "1.nc", [])
    opened = "virtualds.open_virtual_dataset(f)"
    assert once == f"[f for f in files if {opened}.x == 1]"
    assert twice == f"[f for f in files if (ds := {opened}).x == 1 and ds.y == 2]"


def test_a_report_says_how_many_files_are_unchanged(tmp_path: Path) -> None:
    array = virtual(np.arange(3), tmp_path)
    found = xr.Dataset({"v": ("x", array)}).virtual.verify()
    assert "1, 1 unchanged since the scan" in str(found)
