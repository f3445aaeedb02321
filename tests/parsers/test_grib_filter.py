"""GRIB messages that a user chooses: what cfgrib makes of them with the same ``filter_by_keys``."""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from grib_messages import SMALL, message

import virtualds
from virtualds import UnsupportedError
from virtualds.checks import describe
from virtualds_cli.program import main

pytestmark = [
    # the oracle's own
    pytest.mark.filterwarnings("ignore::FutureWarning:cfgrib.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:cfgrib.*"),
]

RAIN = {**SMALL, "shortName": "tp", "stepType": "accum"}
FIELDS: list[dict[str, Any]] = [
    *({**RAIN, "stepRange": steps} for steps in ("0-6", "3-6")),
    {**SMALL, "shortName": "2t", "step": 6},
    {**SMALL, "shortName": "10u", "step": 6},
    *(
        {**SMALL, "sample": "regular_ll_pl_grib2", "shortName": name, "level": level, "step": 6}
        for name in ("t", "u")
        for level in (500, 850)
    ),
]

FILTERS: dict[str, dict[str, Any]] = {
    "an interval": {"stepRange": "0-6"},
    "another interval": {"stepRange": "3-6"},
    "a type of level and a level": {"typeOfLevel": "heightAboveGround", "level": 2},
    "a name": {"shortName": "u"},
    "a level": {"typeOfLevel": "isobaricInhPa", "level": 850},
    "a number that the parser does not list": {"parameterCategory": 0, "discipline": 0, "level": 2},
    "a text that the parser does not list": {"startStep": 3},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("grib") / "a.grib2"
    made = [
        message(keys.get("sample", "regular_ll_sfc_grib2"), n, **_without_sample(keys))
        for n, keys in enumerate(FIELDS)
    ]
    found.write_bytes(b"".join(made))
    return found


def _without_sample(keys: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if name != "sample"}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("through", ["open_virtual_dataset", "engine"])
def test_a_filter_chooses_what_it_chooses_in_cfgrib(name: str, through: str, path: Path) -> None:
    how = {"indexpath": "", "errors": "raise", "filter_by_keys": FILTERS[name]}
    with xr.open_dataset(path, engine="cfgrib", backend_kwargs=how, decode_timedelta=True) as given:
        expected = given.load()
    options: dict[str, Any] = {"parser_options": {"filter_by_keys": FILTERS[name]}}
    if through == "engine":
        found = xr.open_dataset(path, engine="virtual", decode_timedelta=True, **options)
    else:
        found = virtualds.open_virtual_dataset(path, **options)
    assert expected.sizes == found.sizes
    xr.testing.assert_equal(found.load(), expected)


def test_a_filter_holds_for_each_file_and_each_group(path: Path, tmp_path: Path) -> None:
    later = tmp_path / "b.grib2"
    keys = [{**k, "dataDate": 20300101} for k in FIELDS]
    made = [
        message(k.get("sample", "regular_ll_sfc_grib2"), n, **_without_sample(k))
        for n, k in enumerate(keys)
    ]
    later.write_bytes(b"".join(made))
    options: Any = {"parser_options": {"filter_by_keys": {"stepRange": "0-6"}}}
    both = virtualds.open_virtual_mfdataset(
        [path, later], combine="nested", concat_dim="time", **options
    )
    assert dict(both.sizes) == {"time": 2, "latitude": 7, "longitude": 12}
    options = {"parser_options": {"filter_by_keys": {"stepRange": ["3-6", "6"]}}}
    tree = virtualds.open_virtual_datatree(path, **options)
    assert {str(n) for n in tree.children} == {
        *("surface", "heightAboveGround_2", "heightAboveGround_10", "isobaricInhPa"),
    }
    assert set(xr.open_datatree(path, engine="virtual", **options).children) == set(tree.children)


# ---------------------------------------------------------------------- every way to read a file

Through = Callable[[Path, Path, Any], Any]


def run(*words: str | Path, rain: Any) -> str:
    """Run the program; return what it prints."""
    given = ["--parser-options", f"filter_by_keys={json.dumps(rain['filter_by_keys'])}"]
    done = CliRunner().invoke(main, [*map(str, words), *given])
    assert done.exit_code == 0, done.output
    return done.stdout


def open_set(url: Path) -> xr.Dataset:
    return xr.open_dataset(url, engine="virtual")


THROUGH: dict[str, Through] = {
    "a set that is converted": lambda path, to, rain: (
        virtualds.convert(path, to, parser_options=rain),
        open_set(to),
    )[-1],
    "a set that follows its files": lambda path, to, rain: (
        virtualds.sync([path], to, concat_dim="time", settle=0, parser_options=rain),
        open_set(to).isel(time=0),
    )[-1],
    "zarr-python": lambda path, to, rain: xr.open_zarr(
        virtualds.zarr_store(path, parser_options=rain), consolidated=False
    ),
    "a description": lambda path, to, rain: describe(path, parser_options=rain).tree.to_dataset(),
    "many files": lambda path, to, rain: virtualds.open_virtual_mfdataset(
        [path], parser_options=rain
    ),
    "many files of a cache": lambda path, to, rain: [
        virtualds.open_virtual_mfdataset([path], parser_options=chosen, cache=to)
        for chosen in ({"filter_by_keys": {"stepRange": "3-6"}}, rain)
    ][-1],
    "scan": lambda path, to, rain: (run("scan", path, "-o", to, rain=rain), open_set(to))[-1],
    "convert": lambda path, to, rain: (run("convert", path, to, rain=rain), open_set(to))[-1],
}


@pytest.mark.parametrize("name", THROUGH)
def test_a_filter_holds_wherever_a_file_is_read(name: str, path: Path, tmp_path: Path) -> None:
    rain = {"filter_by_keys": {"stepRange": "0-6"}}
    expected = virtualds.open_virtual_dataset(path, parser_options=rain)
    found = THROUGH[name](path, tmp_path / "a.zarr", rain)
    assert set(found.data_vars) == {"tp"}
    np.testing.assert_array_equal(found.tp.values, expected.tp.values)


def test_a_filter_holds_in_what_is_told_of_files(path: Path) -> None:
    rain = {"filter_by_keys": {"stepRange": "0-6"}}
    found = virtualds.diagnose([path], parser_options=rain)
    assert len(found.eras) == 1 and not found.blocks
    assert "tp" in run("info", path, rain=rain)
    assert not json.loads(run("diagnose", path, "--json", rain=rain))["blocks"]
    assert run("verify", path, rain=rain).startswith("verified against fingerprint: ok")


def test_chunks_that_only_a_filter_shows_are_not_said_to_differ(path: Path) -> None:
    found = {
        steps: virtualds.open_virtual_dataset(
            path, parser_options={"filter_by_keys": {"stepRange": steps, "typeOfLevel": kind}}
        ).virtual.verify(against="native")
        for steps, kind in (("0-6", "surface"), ("6", "isobaricInhPa"))
    }
    assert found["6"].ok
    [problem] = found["0-6"].problems
    assert problem.kind == "not compared" and "'stepRange': ('0-6', '3-6')" in str(problem)


def test_every_public_function_that_takes_a_parser_takes_its_options() -> None:
    functions = [getattr(virtualds, name) for name in virtualds.__all__]
    taken = [
        {"parser", "parser_options"} & signature(f).parameters.keys()
        for f in (*functions, describe)
        if callable(f) and not isinstance(f, type)
    ]
    assert [names for names in taken if len(names) == 1] == []
    assert sum(map(bool, taken)) >= 7


def test_an_error_says_which_filter_chooses_one_of_ambiguous_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.grib2"
    same = [message("regular_ll_sfc_grib2", n, **RAIN, stepRange="0-6") for n in range(2)]
    path.write_bytes(b"".join(same))
    with pytest.raises(UnsupportedError, match=r"'filter_by_keys': {'offset': 0}"):
        virtualds.open_virtual_dataset(path)
    for number, offset in enumerate((0, len(same[0]))):
        options: Any = {"parser_options": {"filter_by_keys": {"offset": offset}}}
        found = virtualds.open_virtual_dataset(path, **options)
        one = tmp_path / f"{number}.grib2"
        one.write_bytes(same[number])
        np.testing.assert_array_equal(found.tp, virtualds.open_virtual_dataset(one).tp)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a value that is not there": ({"shortName": "q"}, ValueError, "those that are left have 10u,"),
    "a key that is not there": ({"nothing": 1}, ValueError, "no message has this key"),
    "values that are not there together": (
        {"shortName": "t", "level": 2}, ValueError, "left have 500, 850",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_filter_that_chooses_nothing_says_what_there_is(name: str, path: Path) -> None:
    wanted, error, text = WRONG[name]
    with pytest.raises(error, match=text):
        virtualds.open_virtual_dataset(path, parser_options={"filter_by_keys": wanted})


def test_options_that_a_format_does_not_have_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="did you mean 'filter_by_keys'"):
        virtualds.open_virtual_dataset(path, parser_options={"filter_by_key": {}})
    with pytest.raises(TypeError, match="no option 'levels'; it has filter_by_keys"):
        virtualds.open_virtual_dataset(path, parser_options={"levels": 5})
    with pytest.raises(TypeError, match="give a dict"):
        virtualds.open_virtual_dataset(path, parser_options={"filter_by_keys": "t"})
    with pytest.raises(TypeError, match="parser_options"):
        virtualds.open_virtual_dataset(path, parser_options="filter_by_keys")  # type: ignore[arg-type]
    plain = tmp_path / "a.nc"
    xr.Dataset({"t": ("x", np.arange(3))}).to_netcdf(plain)
    given: Any = {"parser_options": {"filter_by_keys": {"shortName": "t"}}}
    with pytest.raises(TypeError, match="hdf5 has no option 'filter_by_keys'"):
        virtualds.open_virtual_dataset(plain, **given)
    many = [plain] * 20
    with pytest.raises(TypeError, match="hdf5 has no option 'filter_by_keys'"):
        virtualds.open_virtual_mfdataset(many, combine="nested", concat_dim="x", **given)
