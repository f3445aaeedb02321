"""GRIB files: what cfgrib reads of them is what is read through references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cfgrib
import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from grib_messages import CASES, ONE_ROW, SMALL, join_fields, message, split_sections
from products import few_quick, looped, named_case
from programs import run_code
from transforms import TRANSFORMS, assert_identical

import virtualds
from virtualds import FormatError, UnsupportedError
from virtualds.codecs.codec import CodecError
from virtualds.codecs.grib import GribMessage
from virtualds.parsers.grib import detect

pytestmark = [
    # the oracle's own
    pytest.mark.filterwarnings("ignore::FutureWarning:cfgrib.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:cfgrib.*"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("grib")


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.grib"
    return path if path.exists() else CASES[name].write(path)


def native(path: Path) -> xr.Dataset:
    """What cfgrib makes of a file."""
    how = {"indexpath": "", "errors": "raise"}
    with xr.open_dataset(path, engine="cfgrib", backend_kwargs=how, decode_timedelta=True) as found:
        return found.load()


def assert_same_attributes(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert type(ours[name]) is type(value), name
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


@looped("name", CASES, quick=len(CASES) // 3)
def test_values_and_coordinates_are_those_of_cfgrib(name: str, folder: Path) -> None:
    path = written(folder, name)
    expected, found = native(path), virtualds.open_virtual_dataset(path)
    assert set(found.data_vars) == set(expected.data_vars)
    assert set(found.coords) == set(expected.coords)
    for variable in expected.data_vars:
        assert found[variable].dtype == np.float32
        ours = found[variable]
        theirs = expected[variable].transpose(*ours.dims)
        np.testing.assert_array_equal(ours.values, theirs.values)
        assert_same_attributes(ours.attrs, theirs.attrs)
    for coordinate in expected.coords:
        ours = found[coordinate]
        theirs = expected[coordinate].transpose(*ours.dims)
        assert ours.dtype == theirs.dtype
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours.values, theirs.values, atol=1e-9)
        else:
            np.testing.assert_array_equal(ours.values, theirs.values)
        assert_same_attributes(ours.attrs, theirs.attrs)
    assert_same_attributes(found.attrs, {n: v for n, v in expected.attrs.items() if n != "history"})


# What is opened, the file or a set of a format, takes turns: all pairs with cases and with changes.
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_transforming_and_opening_commute(name: str, folder: Path) -> None:
    path = written(folder, name)
    ours = virtualds.open_virtual_dataset(path)
    opened = [("", ours)]
    for suffix in (".json", ".parquet", ".zarr"):
        ours.virtual.to_manifest(path.with_suffix(suffix))
        opened.append((suffix, xr.open_dataset(path.with_suffix(suffix), engine="virtual")))
    theirs = native(path)
    values = {n: v.copy(data=theirs[n].transpose(*v.dims).values) for n, v in ours.items()}
    for number, (name_of_change, change) in enumerate(TRANSFORMS.items(), [*CASES].index(name)):
        suffix, dataset = opened[number % len(opened)]
        with named_case((name_of_change, suffix)):
            assert_identical(change(dataset), change(ours.assign(values)))


def test_kinds_of_messages_are_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    height = {"typeOfLevel": "heightAboveGround"}
    made = [
        message("regular_ll_pl_grib2", 1, level=500, shortName="t", **SMALL),
        message("regular_ll_pl_grib2", 2, level=850, shortName="t", **SMALL),
        message("regular_ll_sfc_grib2", 3, shortName="2t", **SMALL),
        message("regular_ll_sfc_grib2", 4, shortName="10u", **SMALL),
        message("regular_ll_sfc_grib2", 5, shortName="sp", **SMALL),
    ]
    path.write_bytes(b"".join(made))
    groups = {
        "isobaricInhPa": {"t"}, "heightAboveGround_2": {"t2m"}, "heightAboveGround_10": {"u10"},
        "surface": {"sp"},
    }  # fmt: skip
    with pytest.raises(UnsupportedError, match="heightAboveGround_10") as raised:
        virtualds.open_virtual_dataset(path)
    assert "group=" in str(raised.value)
    tree = virtualds.open_virtual_datatree(path)
    assert {name: set(part.data_vars) for name, part in tree.children.items()} == groups
    for group, names in groups.items():
        ds = virtualds.open_virtual_dataset(path, group=group)
        assert set(ds) == names
    np.testing.assert_array_equal(
        virtualds.open_virtual_dataset(path, group="heightAboveGround_2").t2m,
        xr.open_dataset(
            path, engine="cfgrib",
            backend_kwargs={"indexpath": "", "filter_by_keys": {**height, "level": 2}},
            decode_timedelta=True,
        ).t2m,
    )  # fmt: skip
    with pytest.raises(FileNotFoundError):
        virtualds.open_virtual_dataset(path, group="none")


def test_messages_of_one_place_are_ambiguous_and_say_which_key_differs(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    how = {**SMALL, "shortName": "tp", "stepType": "accum"}
    made = [
        message("regular_ll_sfc_grib2", n, **how, stepRange=steps)
        for n, steps in enumerate(("0-6", "3-6"))
    ]
    path.write_bytes(b"".join(made))
    with pytest.raises(UnsupportedError, match=r"stepRange.*'0-6', '3-6'"):
        virtualds.open_virtual_dataset(path)


def test_members_of_an_ensemble_are_an_axis(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    ensemble = {"productDefinitionTemplateNumber": 1, "numberOfForecastsInEnsemble": 3}
    made = [
        message("regular_ll_pl_grib2", n, **SMALL, **ensemble, perturbationNumber=n)
        for n in range(3)
    ]
    path.write_bytes(b"".join(made))
    ds, expected = virtualds.open_virtual_dataset(path), native(path)
    assert ds.t.dims == ("number", "latitude", "longitude")
    np.testing.assert_array_equal(ds.number, [0, 1, 2])
    np.testing.assert_array_equal(ds.t, expected.t)


def test_steps_are_read_in_their_unit(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    made = [
        message("regular_ll_pl_grib2", n, **SMALL, stepUnits="m", endStep=15 * n) for n in range(3)
    ]
    path.write_bytes(b"".join(made))
    found = virtualds.open_virtual_dataset(path).step.values.astype("timedelta64[m]").astype(int)
    np.testing.assert_array_equal(found, [0, 15, 30])


@pytest.mark.parametrize("name", ["levels and steps", "levels and steps of edition 1"])
def test_damage_is_an_error_and_never_other_values(name: str, tmp_path: Path) -> None:
    data = CASES[name].write(tmp_path / "whole.grib").read_bytes()
    path = tmp_path / "damaged.grib"
    length = len(data) // 9
    for size in (*range(8, length, 31), length + 3, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError):
            virtualds.open_virtual_dataset(path)
    path.write_bytes(data[:length] + b"\1" * 70_000 + data[length:])
    with pytest.raises(FormatError, match="no message begins"):
        virtualds.open_virtual_dataset(path)


def test_a_message_whose_end_is_damaged_is_named(tmp_path: Path) -> None:
    path = CASES["levels"].write(tmp_path / "a.grib")
    data = path.read_bytes()
    ds = virtualds.open_virtual_dataset(path)
    with path.open("r+b") as file:
        file.seek(len(data) - 4)
        file.write(b"8888")
    ds = virtualds.open_virtual_dataset(path)
    with pytest.raises(virtualds.ReadError, match="7777"):
        ds.t.values  # noqa: B018


def wind(level: int, **keys: Any) -> list[bytes]:
    """The two components of a wind, as messages."""
    parts = enumerate(("u", "v", "w"))
    return [
        message("regular_ll_pl_grib2", level + n, **SMALL, level=level, shortName=name, **keys)
        for n, name in parts
    ]


@pytest.mark.parametrize("repeated", [(4, 5, 6, 7), (3, 4, 5, 6, 7)])
def test_fields_of_one_message_are_chunks_of_their_own(
    repeated: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "a.grib2"
    path.write_bytes(b"".join(join_fields(wind(level), repeated) for level in (500, 850)))
    ds, expected = virtualds.open_virtual_dataset(path), native(path)
    assert set(ds) == {"u", "v", "w"}
    for name in ds:
        np.testing.assert_array_equal(ds[name].values, expected[name].values)
    ds.virtual.to_manifest(tmp_path / "a.zarr")
    with xr.open_dataset(tmp_path / "a.zarr", engine="virtual") as again:
        np.testing.assert_array_equal(again.v.values, expected.v.values)


def test_fields_of_one_message_may_be_of_one_variable(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    levels = [
        message("regular_ll_pl_grib2", n, **SMALL, level=level)
        for n, level in enumerate((1000, 850, 500))
    ]
    path.write_bytes(join_fields(levels))
    np.testing.assert_array_equal(
        virtualds.open_virtual_dataset(path).t.values, native(path).t.values
    )


def test_a_field_may_have_the_bitmap_of_an_earlier_one(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain.grib2", tmp_path / "a.grib2"
    u, v, _ = (
        message("regular_ll_pl_grib2", n, True, **SMALL, shortName=name)
        for n, name in enumerate(("u", "v", "w"))
    )
    plain.write_bytes(u + v)
    joined = join_fields([u, v])
    at = joined.rindex(split_sections(v)[6])
    path.write_bytes(shorten(joined, at, split_sections(v)[6]))
    found, expected = virtualds.open_virtual_dataset(path), native(plain)
    assert np.isnan(expected.v).any()
    np.testing.assert_array_equal(found.u.values, expected.u.values)
    np.testing.assert_array_equal(found.v.values, expected.v.values)


def shorten(joined: bytes, at: int, bitmap: bytes) -> bytes:
    """A message with a reference to an earlier bitmap in place of one (code 254)."""
    body = joined[:at] + bytes([0, 0, 0, 6, 6, 254]) + joined[at + len(bitmap) :]
    return body[:8] + len(body).to_bytes(8, "big") + body[16:]


@pytest.mark.parametrize("packing", ["grid_complex", "grid_complex_spatial_differencing"])
def test_fields_of_one_value_may_have_no_groups(packing: str, tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    one = message("regular_ll_pl_grib2", **SMALL, packingType=packing, constant=7.0)
    sections = split_sections(one)
    # octets 32 to 35 of section 5: number of groups
    sections[5] = sections[5][:31] + bytes(4) + sections[5][35:]
    sections[7] = bytes([0, 0, 0, 5, 7])
    body = b"".join(sections[n] for n in sorted(sections)) + b"7777"
    path.write_bytes(one[:8] + (16 + len(body)).to_bytes(8, "big") + body)
    found = virtualds.open_virtual_dataset(path)
    np.testing.assert_array_equal(found.t, native(path).t)
    assert (found.t == 7).all()


def test_a_codec_of_a_field_that_is_not_there_is_refused() -> None:
    one = message("regular_ll_pl_grib2", **SMALL)
    with pytest.raises(CodecError, match="1 fields, not 3"):
        GribMessage(2).decode(one, None)


BULLETIN = b"0002033600\1\r\r\n885\r\r\nYLXI40 EGRR 190600\r\r\n"


def test_headings_of_bulletins_and_padding_are_read_past(tmp_path: Path) -> None:
    levels = [message("regular_ll_pl_grib2", n, **SMALL, level=n) for n in (500, 850)]
    path, plain = tmp_path / "a.grib2", tmp_path / "plain.grib2"
    plain.write_bytes(b"".join(levels))
    end = b"\r\r\n\3" + b"\0" * 200_000
    path.write_bytes(b"".join(BULLETIN + one + end for one in levels))
    found, expected = virtualds.open_virtual_dataset(path), native(plain)
    np.testing.assert_array_equal(found.t.values, expected.t.values)


def test_archives_of_grib_files_are_not_taken_for_grib() -> None:
    one = message("regular_ll_pl_grib2", **SMALL)
    assert detect(BULLETIN + one)
    assert not detect(b"PK\3\4" + b"\0" * 26 + one)
    assert not detect(b"a.grib2".ljust(257, b"\0") + b"ustar".ljust(255, b"\0") + one)
    assert not detect(b"the word GRIB in a text" * 9)


DAMAGES: dict[str, Any] = {
    "its sections": lambda one: one[:16] + b"\xff" + one[17:],
    "its date": lambda one: one[:30] + b"\x0d" + one[31:],
    "its beginning": lambda one: b"\1" * len(one),
    "half of it": lambda one: one[: len(one) // 2],
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_messages_are_left_out_if_on_error_says_so(name: str, tmp_path: Path) -> None:
    levels = [message("regular_ll_pl_grib2", n, **SMALL, level=n) for n in (300, 500, 850)]
    path, sound = tmp_path / "a.grib2", tmp_path / "sound.grib2"
    sound.write_bytes(levels[0] + levels[2])
    filler = b"\1" * 70_000 if name == "its beginning" else b""
    path.write_bytes(levels[0] + DAMAGES[name](levels[1]) + filler + levels[2])
    with pytest.raises(FormatError, match=f"byte.* {len(levels[0])}"):
        virtualds.open_virtual_dataset(path)
    with pytest.warns(UserWarning, match=f"{len(levels[0])}"):
        found = virtualds.open_virtual_dataset(path, on_error="skip")
    np.testing.assert_array_equal(found.t.values, native(sound).t.values)
    with pytest.warns(UserWarning, match=f"{len(levels[0])}"):
        assert set(virtualds.open_virtual_datatree(path, on_error="skip").data_vars) == {"t"}


def test_parameters_of_other_times_are_datasets_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    made = [
        message("regular_ll_sfc_grib2", n, **SMALL, shortName=name, step=step)
        for n, (name, step) in enumerate([("sp", 0), ("sp", 6), ("orog", 0), ("lsm", 0)])
    ]
    path.write_bytes(b"".join(made))
    how = {"indexpath": "", "errors": "raise"}
    theirs = cfgrib.open_datasets(path, backend_kwargs=how, decode_timedelta=True)
    tree = virtualds.open_virtual_datatree(path)
    assert set(tree.children) == {"surface_2_steps", "surface_step_0"}
    assert {frozenset(node.data_vars) for node in tree.children.values()} == {
        frozenset(ds.data_vars) for ds in theirs
    }
    assert tree["surface_2_steps"].sp.dims == ("step", "latitude", "longitude")
    assert tree["surface_step_0"].orog.dims == ("latitude", "longitude")


def test_parameters_without_a_name_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    numbers = [{"parameterCategory": 1, "parameterNumber": n} for n in (200, 201)]
    one, two = (message("regular_ll_sfc_grib2", n, **SMALL, **k) for n, k in enumerate(numbers))
    path.write_bytes(one)
    assert set(virtualds.open_virtual_dataset(path)) == {"unknown"} == set(native(path))
    path.write_bytes(one + two)
    assert set(virtualds.open_virtual_dataset(path)) == {"unknown_0_1_200", "unknown_0_1_201"}


def test_rows_that_run_backwards_are_turned(tmp_path: Path) -> None:
    path = CASES["one message"].write(tmp_path / "a.grib2")
    straight = virtualds.open_virtual_dataset(path).t.values
    data = bytearray(path.read_bytes())
    # octet 72 of template 3.0: scanning mode, flag table 3.4
    grid = data.index(split_sections(bytes(data))[3])
    data[grid + 71] |= 0x10
    path.write_bytes(data)
    found = virtualds.open_virtual_dataset(path).t
    np.testing.assert_array_equal(found.values[1::2], straight[1::2, ::-1])
    np.testing.assert_array_equal(found.values, native(path).t.values)


def test_without_eccodes_the_package_is_named(folder: Path, monkeypatch: Any) -> None:
    path = written(folder, "levels")
    monkeypatch.setitem(__import__("sys").modules, "eccodes", None)
    with pytest.raises(UnsupportedError, match=r"pip install eccodes$"):
        virtualds.open_virtual_dataset(path)


def test_an_inventory_lets_headers_be_fetched_together(tmp_path: Path) -> None:
    big = {
        "Ni": 720, "Nj": 361, "latitudeOfFirstGridPointInDegrees": 90.0,
        "latitudeOfLastGridPointInDegrees": -90.0, "longitudeOfFirstGridPointInDegrees": 0.0,
        "longitudeOfLastGridPointInDegrees": 359.5, "iDirectionIncrementInDegrees": 0.5,
        "jDirectionIncrementInDegrees": 0.5,
    }  # fmt: skip
    levels = [1000, 850, 700, 500, 300, 200]
    made = [message("regular_ll_pl_grib2", n, level=n_, **big) for n, n_ in enumerate(levels)]
    (tmp_path / "plain.grib2").write_bytes(b"".join(made))
    (tmp_path / "listed.grib2").write_bytes(b"".join(made))
    offsets = np.cumsum([0, *(len(m) for m in made[:-1])])
    lines = [
        f"{n}:{at}:d=2020010100:TMP:{levels[n - 1]} mb:anl:" for n, at in enumerate(offsets, 1)
    ]
    (tmp_path / "listed.grib2.idx").write_text("\n".join(lines) + "\n")
    (tmp_path / "wrong.grib2").write_bytes(b"".join(made))
    (tmp_path / "wrong.grib2.idx").write_text("1:77:nonsense\n2:x:y\n999999999\n")
    with counting_server(tmp_path) as (url, counts):
        sent, opened = {}, {}
        for name in ("plain", "listed"):
            before = counts.sent
            opened[name] = virtualds.open_virtual_dataset(f"{url}/{name}.grib2")
            sent[name] = counts.sent - before
        assert counts.of("listed.grib2") <= counts.of("plain.grib2") == len(levels)
        assert sent["listed"] < sent["plain"] < sum(map(len, made)) // 2
        wrong = virtualds.open_virtual_dataset(f"{url}/wrong.grib2")
        here = virtualds.open_virtual_dataset(tmp_path / "plain.grib2")
        for ds in (*opened.values(), wrong):
            np.testing.assert_array_equal(ds.t[2], here.t[2])


FRAGILE = ["one message", "edition 1", "missing values"] + [
    f"packed by grid_{how}" for how in ("jpeg", "ieee", "complex_spatial_differencing")
]


@pytest.mark.parametrize("name", few_quick(FRAGILE, FRAGILE[:1]))
def test_damaged_messages_neither_end_the_process_nor_have_another_size(
    name: str, tmp_path: Path
) -> None:
    path = CASES[name].write(tmp_path / "a.grib")
    # in a process of its own: what ecCodes does to memory is not to be found out here
    code = f"""
import random
from virtualds.codecs.grib import GribMessage
from virtualds.codecs.codec import CodecError
data = open({str(path)!r}, "rb").read()
data = data[:int.from_bytes(data[8:16] if data[7] == 2 else data[4:7], "big")]
size = len(GribMessage().decode(data, None))
random.seed(5)
refused = 0
for at in list(range(4, min(240, len(data)))) + random.choices(range(100, len(data)), k=100):
    damaged = bytearray(data)
    damaged[at] ^= random.choice((1, 128, 255))
    try:
        assert len(GribMessage().decode(bytes(damaged), size)) == size
    except CodecError:
        refused += 1
assert refused > 10, refused
"""
    done = run_code(code)
    assert done.returncode == 0, done.stderr[-2000:]


DAMAGED: dict[str, tuple[str, dict[int, int], str]] = {
    # bytes of the first section of a message, which begins at byte 8
    "no month": ("edition 1", {8 + 13: 13}, "not a time"),
    "no day": ("edition 1", {8 + 14: 32}, "not a time"),
    "a day that the month has not": ("edition 1", {8 + 13: 2, 8 + 14: 31}, "its date is"),
    "no unit of time": ("edition 1", {8 + 17: 193}, "not a time"),
    "a section beyond the end": ("edition 1", {8 + 1: 255}, "section 1 has"),
    "a grid that is not there": ("edition 1", {8 + 7: 0x40}, "0 points"),
    "a day that edition 2 has not": ("one message", {16 + 14: 2, 16 + 15: 31}, "its date is"),
    "no unit of time in edition 2": ("one message", {126: 254}, "in unit 254"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_impossible_times_and_sections_are_damage(name: str, tmp_path: Path) -> None:
    case, changes, cause = DAMAGED[name]
    path = CASES[case].write(tmp_path / "a.grib")
    data = bytearray(path.read_bytes())
    for place, value in changes.items():
        data[place] = value
    path.write_bytes(data)
    with pytest.raises(FormatError, match=cause):
        virtualds.open_virtual_dataset(path)


def test_a_message_without_a_time_is_not_given_that_of_others(tmp_path: Path) -> None:
    messages = [message("regular_ll_pl_grib2", **SMALL, step=step) for step in (0, 6)]
    without_year = messages[1][:28] + bytes(2) + messages[1][30:]
    (tmp_path / "a.grib").write_bytes(messages[0] + without_year)
    with pytest.raises(UnsupportedError, match=f"at byte {len(messages[0])} has no time, and"):
        virtualds.open_virtual_dataset(tmp_path / "a.grib")


@pytest.mark.parametrize("grid", ["regular_ll", "rotated_ll"])
def test_one_row_needs_no_distance_to_another(grid: str, tmp_path: Path) -> None:
    """For such a grid, ecCodes alone ends the process."""
    found = []
    for is_given in (0, 1):
        keys = {**ONE_ROW, "ijDirectionIncrementGiven": is_given}
        one = message(f"{grid}_pl_grib2", **keys)
        (tmp_path / "a.grib").write_bytes(one)
        found.append(virtualds.open_virtual_dataset(tmp_path / "a.grib").load())
    assert found[0]["latitude"].size in (1, 12)
    xr.testing.assert_equal(*found)


@pytest.mark.parametrize(
    ("sample", "place", "value"),
    [
        # octets of section 3: rows, points of the first row, rows from a pole to the equator
        ("reduced_ll_sfc_grib2", 34, 250),
        ("reduced_ll_sfc_grib2", 72, 2**31 - 1),
        ("reduced_gg_pl_32_grib2", 34, 32),
        ("reduced_gg_pl_32_grib2", 67, 31),
    ],
)
def test_rows_that_do_not_make_a_reduced_grid_are_damage(
    sample: str, place: int, value: int, tmp_path: Path
) -> None:
    """For them, ecCodes alone reads and writes memory that is not its own, or shows zeros."""
    one = message(sample, constant=280.0)
    at = one.index(split_sections(one)[3]) + place
    (tmp_path / "a.grib").write_bytes(one[:at] + value.to_bytes(4, "big") + one[at + 4 :])
    with pytest.raises(FormatError, match=r"its grid has \d+ points in \d+ rows"):
        virtualds.open_virtual_dataset(tmp_path / "a.grib")


def test_pyproj_works_after_a_grib_file_was_opened(folder: Path) -> None:
    code = (
        "import sys, virtualds; virtualds.open_virtual_dataset(sys.argv[1]).load();"
        "import pyproj; print(pyproj.CRS.from_epsg(32633).to_epsg())"
    )
    done = run_code(code, written(folder, next(iter(CASES))))
    assert (done.returncode, done.stdout) == (0, "32633\n"), done.stderr
