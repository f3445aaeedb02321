"""The command line does what the library does, and reports it as text and JSON."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner, Result
from daily_files import content
from programs import run_module
from transforms import assert_identical
from unknown_form import UNKNOWN, write_known, write_unknown

import virtualds
import virtualds_server
from virtualds.accessors.virtual import VirtualDatasetAccessor, VirtualDataTreeAccessor
from virtualds.checks import describe
from virtualds.datasets.location import FORMATS
from virtualds.syncing import OPEN_ARGUMENTS
from virtualds.writing import COMMON_CHOICES
from virtualds_cli import options
from virtualds_cli.commands.check import DIAGNOSE_OPTIONS
from virtualds_cli.demo import run_demo
from virtualds_cli.program import COMMANDS, EXIT_CODES, main

PROGRAM = [sys.executable, "-m", "virtualds_cli"]
NAMES = [command.name for command in COMMANDS]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, archive_files: list[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own that holds ``2001.nc`` and ``2002.nc``."""
    for path in archive_files:
        shutil.copy2(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, **more: Any) -> Result:
    """Run the program in this process."""
    return CliRunner().invoke(main, arguments, **more)


def done(*arguments: str, **more: Any) -> Result:
    """Run the program, which ends well."""
    result = run(*arguments, **more)
    assert result.exit_code == 0, result.output
    return result


def said(*arguments: str) -> Any:
    """Return the document that a command prints."""
    return json.loads(done(*arguments, "--json").stdout)


def opened(url: str) -> xr.Dataset:
    return xr.open_dataset(url, engine="virtual")


def native(pattern: str = "20*.nc") -> xr.Dataset:
    """Return what xarray reads of files by itself, and close them."""
    with xr.open_mfdataset(pattern, data_vars="minimal") as found:
        return found.load()


# ---------------------------------------------------------------------- the same names as in Python

Signature = Callable[..., Any]
SIGNATURES: dict[str, tuple[Signature, ...]] = {
    "scan": (
        virtualds.open_virtual_mfdataset,
        virtualds.open_virtual_mfdatatree,
        VirtualDatasetAccessor.to_manifest,
    ),
    "append": (virtualds.open_virtual_mfdataset, VirtualDatasetAccessor.to_manifest),
    "sync": (virtualds.sync,),
    "info": (describe,),
    "catalog": (virtualds.catalog, virtualds.Catalog.to_esm, virtualds.Catalog.to_stac),
    "verify": (virtualds.open_virtual_datatree, VirtualDataTreeAccessor.verify),
    "diagnose": (virtualds.diagnose,),
    "convert": (virtualds.convert,),
    "drop-sources": (virtualds.drop_sources,),
    "edit": (virtualds.edit,),
    "snapshots": (virtualds.snapshots,),
    "expire-snapshots": (virtualds.expire_snapshots,),
    "compact": (virtualds.compact,),
    "clean-up": (virtualds.clean_up,),
    "rename-paths": (virtualds.rename_paths,),
    "serve": (
        virtualds_server.create_app,
        virtualds_server.Limits,
        virtualds.open_virtual_mfdataset,
        virtualds.open_virtual_mfdatatree,
    ),
    "view": (
        virtualds_server.create_app,
        virtualds.open_virtual_mfdataset,
        virtualds.open_virtual_mfdatatree,
    ),
    "demo": (run_demo,),
    "completion": (),
}
"""What a command calls, with what it is given."""

OTHER_NAMES: dict[str, dict[str, set[str]]] = {
    "scan": {"urls": {"paths"}, "output": {"url", "to"}, "dask": {"parallel"}},
    "append": {"urls": {"paths"}, "target": {"url"}, "dask": {"parallel"}}
    # the dimension that files are joined along is the one along which the set grows
    | {"dim": {"concat_dim", "append_dim"}},
    "sync": {"urls": {"paths"}},
    "catalog": {"urls": {"paths"}, "esm": {"url"}, "stac": {"folder"}},
    "drop-sources": {"urls": {"sources"}, "target": {"url"}},
    "rename-paths": {"old": {"change"}, "new": {"change"}},
    "edit": {"target": {"url"}},
    "serve": {"urls": {"paths", "url"}},
    "view": {"urls": {"paths", "url"}},
}
"""Options that are called otherwise than the keywords that they are handed to."""

ONLY_IN_PYTHON: dict[str, dict[str, str]] = {
    "scan": {
        "self": "the dataset",
        "preprocess": "a function",
        "snapshot": "of sets, not of source files",
        "append_dim": "append appends",
        "position": "append appends",
        "on_duplicate": "append appends",
        "new_variables": "append appends",
        "missing_variables": "append appends",
        "region": "a program knows which cell it fills",
    },
    "append": {
        "self": "the dataset",
        "preprocess": "a function",
        "snapshot": "of sets, not of source files",
        "combine": "along the dimension of the set",
        "to": "of sets that are written anew",
        "region": "a program knows which cell it fills",
    },
    "verify": {
        "self": "the tree",
        "decode_cf": "what is stored is verified",
        "loadable_variables": "what a set holds itself needs no source",
        "on_error": "what cannot be read is a finding",
    },
    "catalog": {"self": "the catalogue", "id": "the name of the folder"},
    "sync": {"preprocess": "a function"},
    "diagnose": {"preprocess": "a function"},
    "serve": {
        "preprocess": "a function",
        "to": "scan writes sets",
        "mode": "scan writes sets",
        "keep_query": "scan writes sets",
        "target_options": "scan writes sets",
        "token": "of a page for one person, which view opens",
        "limits": "those that a person may want are options",
        "waiting": "a program that serves many may know better",
        "cache_bytes": "a program that serves many may know better",
        "check_every": "a program that serves many may know better",
    },
    "view": {
        "preprocess": "a function",
        "to": "scan writes sets",
        "mode": "scan writes sets",
        "keep_query": "scan writes sets",
        "target_options": "scan writes sets",
        "limits": "one person needs no others",
        "token": "each page has its own",
    },
    "demo": {"print_line": "a function"},
}
"""Keywords that no option stands for, and why."""

ONLY_HERE = {
    "html": "there is to_html(), or what a notebook shows",
    "files_from": "a list of files is a list in Python",
    "target_options": "the storage_options of to_manifest; those of the files have that name",
    "help": "there is help()",
    "host": "an ASGI server has its own address",
    "port": "an ASGI server has its own address",
    "check": "what opens need not be checked",
    "no_browser": "a program opens what it wants",
    "shell": "Python is none",
    "dry_run": "there is ds.virtual.cost",
}
"""Options that no keyword stands for, and why."""

CHOSEN = {
    "choices": {*options.FORMAT_OPTIONS, "progress"},
    "how": OPEN_ARGUMENTS | set(options.FORMAT_OPTIONS),
    "kwargs": set[str](),
    "options": set(DIAGNOSE_OPTIONS),
}
"""What ``**`` of a signature stands for; that of `open_virtual_mfdataset` goes to xarray."""


def keywords(name: str) -> set[str]:
    """The keywords of what a command calls."""
    found = set[str]()
    for function in SIGNATURES[name]:
        for key, parameter in inspect.signature(function).parameters.items():
            found |= CHOSEN[key] if parameter.kind is parameter.VAR_KEYWORD else {key}
    return found


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_options_are_keywords_of_python(command: click.Command) -> None:
    name, other = str(command.name), OTHER_NAMES.get(str(command.name), {})
    given = {param.name for param in command.params if param.expose_value}
    known = keywords(name) | set(other) | set(ONLY_HERE)
    assert given <= known
    stood_for = {keyword for option in given for keyword in other.get(str(option), {option})}
    assert keywords(name) - stood_for == set(ONLY_IN_PYTHON.get(name, {}))


def test_every_entry_of_the_tables_of_options_is_used() -> None:
    assert set(SIGNATURES) == set(NAMES)
    given = {str(p.name): p for command in COMMANDS for p in command.params}
    assert set(ONLY_HERE) - {"help"} <= set(given)
    for name, other in OTHER_NAMES.items():
        assert set().union(*other.values()) <= keywords(name)


def test_all_formats_and_their_choices_are_options() -> None:
    assert tuple(form.name for form in FORMATS) == options.FORMATS
    choices = {choice for form in FORMATS for choice in form.choices}
    # an object of Icechunk has no form on the command line
    assert set(options.FORMAT_OPTIONS) == (choices - {"config"}) | (
        set(COMMON_CHOICES) - {"progress"}
    )
    assert {name for names in options.SECTIONS.values() for name in names} >= set(
        options.FORMAT_OPTIONS
    )


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_defaults_are_those_of_python(command: click.Command) -> None:
    defaults = {
        key: parameter.default
        for function in (virtualds.open_virtual_mfdataset, *SIGNATURES[str(command.name)])
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.default not in (None, parameter.empty)
    }
    shown = {
        str(param.name): found[1]
        for param in command.params
        if isinstance(param, click.Option)
        and (found := re.search(r"\[default: (.*?)\]", param.help or ""))
    }
    shown.pop("mode", None)  # to_manifest has another one for whoever appends
    flags = {"decode-cf": "True", "sort": "True", "1d": str(timedelta(days=1))}
    told = {name: flags.get(text, text) for name, text in shown.items()}
    assert told == {name: str(defaults[name]) for name in told}
    named = {param.name for param in command.params if isinstance(param, click.Option)}
    # a flag that is not given is False, which help need not say
    expected = {name for name, value in defaults.items() if name in named and value is not False}
    assert expected - set(told) <= {"combine", "mode"}


# ---------------------------------------------------------------------- help and completion


def test_help_lists_each_command_and_exit_code() -> None:
    output = done("--help").output
    assert re.findall(r"^  ([a-z-]+)  +[A-Z]", output, re.MULTILINE)[-len(NAMES) :] == NAMES
    assert all(f"{code} " in output for code in EXIT_CODES)


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_says_what_it_does_and_shows_examples(name: str) -> None:
    output = done(name, "--help").output
    head, _, examples = output.partition("\nExamples:\n")
    assert head.startswith(f"Usage: main {name}")
    assert f"$ virtualds {name}" in examples
    assert max(map(len, output.splitlines())) <= 100


def test_examples_in_help_are_lines_that_the_program_understands() -> None:
    Path("list.txt").touch()
    for command in COMMANDS:
        for _, line in command.examples:
            [ours] = [part for part in line.split(" | ") if part.split()[0] == "virtualds"]
            name, *rest = [word.strip("'") for word in ours.split()[1:]]
            with main.commands[name].make_context(name, rest):
                pass
        assert command.examples[0][1].split("virtualds ")[1].split()[0] == command.name


def test_help_and_completion_wait_for_no_library() -> None:
    code = """
import sys
from virtualds_cli.program import main
for arguments in (["--help"], ["--version"], *([name, "--help"] for name in main.commands)):
    main(arguments, standalone_mode=False)
from click.shell_completion import BashComplete
complete = BashComplete(main, {}, "virtualds", "V").get_completions
print([item.value for item in complete(["scan"], "--comp")])
print(*sys.modules)
"""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    ).stdout.splitlines()
    assert out[-2] == "['--compat']"
    assert not {"virtualds", "xarray", "numpy", "pandas", "rich", "tqdm"} & set(out[-1].split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("virtualds sc", "plain,scan"),
        ("virtualds scan --storage-o", "plain,--storage-options"),
        ("virtualds scan --format kerchunk-p", "plain,kerchunk-parquet"),
        # what is a file is looked for by the shell
        ("virtualds info re", "file,re"),
    ],
)
def test_shells_complete(words: str, expected: str) -> None:
    asked = {"_VIRTUALDS_COMPLETE": "bash_complete", "COMP_WORDS": words}
    position = {"COMP_CWORD": str(len(words.split()) - 1)}
    out = subprocess.run(
        PROGRAM,
        env={**os.environ, **asked, **position},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert out.stdout.split() == [expected]


# ---------------------------------------------------------------------- what commands do


@pytest.mark.parametrize("target", ["refs.json", "refs.parquet", "refs.zarr"])
def test_scan_writes_what_python_writes(target: str) -> None:
    document = said("scan", "20*.nc", "--concat-dim", "time", "-o", target)
    assert_identical(opened(target), native())
    assert document["files"] == document["opened"] == 2
    assert document["dims"]["time"] == 24
    assert (document["variables"], document["references"]) == (["t"], 24)


def test_scan_finds_the_order_of_files_by_their_coordinates() -> None:
    done("scan", "2002.nc", "2001.nc", "-o", "refs.json")
    assert_identical(opened("refs.json"), native())


def test_scan_prints_a_report() -> None:
    output = done("scan", "20*.nc", "-o", "refs.json").stdout
    assert "refs.json, kerchunk-json" in output
    assert "2 files" in output


def test_scan_says_how_files_were_read() -> None:
    write_known(Path("0.h5"), 0)
    write_unknown(Path("1.h5"), 1)
    given = ("--concat-dim", "time", "-o", "refs.json", "--mode", "w")
    reason = {"files": 1, "example": "1.h5"}
    document = said("scan", "?.h5", *given)["read"]
    reason["reason"] = document["reasons"][0]["reason"]
    assert UNKNOWN in reason["reason"]
    assert document == {"together": 0, "alone": 1, "library": 1, "reasons": [reason]}
    assert "read" not in done("scan", "?.h5", *given).stdout
    output = done("scan", "?.h5", *given, "-v").stdout
    assert re.search(r"read +0 together, 1 alone, 1 through the HDF5 library\n", output)
    assert re.search(rf"\n +1 +{UNKNOWN}.* {reason['example']}\n", output)


def test_append_says_how_files_were_read() -> None:
    done("scan", "2001.nc", "-o", "refs.parquet")
    output = done("append", "refs.parquet", "2002.nc", "--dim", "time", "-v").stdout
    assert re.search(r"read +0 together, 1 alone, 0 through", output)


def test_options_of_scan_reach_the_library() -> None:
    given = ("--drop-variables", "lat", "--loadable-variables", "", "--no-decode-cf")
    given += ("--combine", "nested", "--concat-dim", "time")
    done("scan", "2001.nc", "-o", "x.parquet", "--record-size", "5", *given)
    vds = virtualds.open_virtual_dataset("x.parquet", decode_cf=False, loadable_variables=[])
    assert set(vds.variables) == {"t", "time", "lon"}
    assert vds["t"].dtype == "int16"
    assert json.loads(Path("x.parquet/.zmetadata").read_text())["record_size"] == 5


def test_chunks_are_cut_and_held_on_the_way() -> None:
    xr.load_dataset("2001.nc").to_netcdf("plain.nc", encoding={"t": {"zlib": False}})
    done("convert", "plain.nc", "cut.json", "--subchunk", "t:time=1", "--zarr-format", "3")
    refs = json.loads(Path("cut.json").read_text())["refs"]
    assert {"t/zarr.json", "t/c/11/0/0"} <= refs.keys()
    done("convert", "plain.nc", "held.json", "--subchunk", "time=2", "--inline-threshold", "10000")
    held = json.loads(Path("held.json").read_text())["refs"]
    assert held["t/5.0.0"].startswith("base64:")
    done("scan", "plain.nc", "-o", "beside.parquet", "--relative-paths", "--inline-threshold", "0")
    for name in ("cut.json", "held.json", "beside.parquet"):
        xr.testing.assert_equal(
            xr.open_dataset(name, engine="virtual").load(), xr.load_dataset("plain.nc")
        )
    for wrong in ("time", "time=0", "a:b:time=1", "time=x"):
        assert "neither DIM=N" in run("convert", "plain.nc", "x.json", "--subchunk", wrong).output


def test_coordinates_come_from_names_and_attributes() -> None:
    for run_number, day in ((7, "20010203"), (12, "20010204")):
        part = xr.Dataset({"t": ("x", [1.0, run_number])}, attrs={"start": day})
        part.to_netcdf(f"sst_r{run_number:02}_{day}.nc")
    by_name = {"run:int": "=_r(\\d+)_", "time:%Y%m%d": "=_(\\d{8})", "text": "=(_r[01])"}
    by_attribute = {"time:%Y%m%d": "@start", "whole:int": "@start"}
    expected: dict[str, list[Any]] = {
        "run": [7, 12],
        "time": [np.datetime64("2001-02-03"), np.datetime64("2001-02-04")],
        "text": ["_r0", "_r1"],
        "whole": [20010203, 20010204],
    }
    for origins in (by_name, by_attribute):
        for name, origin in origins.items():
            dim = name.partition(":")[0]
            given = ("--concat-dim", dim, "--coordinates", f"{name}{origin}")
            done("scan", "sst_*.nc", "-o", "refs.zarr", "--mode", "w", *given)
            assert list(opened("refs.zarr")[dim].values) == expected[dim]


def test_overlapping_files_have_a_policy() -> None:
    xr.load_dataset("2002.nc").isel(time=slice(6)).to_netcdf("2002-a.nc")
    given = ("scan", "2002*.nc", "--concat-dim", "time", "-o", "refs.zarr")
    assert run(*given).exit_code == 1
    done(*given, "--overlap", "first")
    np.testing.assert_array_equal(opened("refs.zarr")["t"], xr.load_dataset("2002.nc")["t"])


def test_a_target_is_judged_before_files_are_opened() -> None:
    done("scan", "2001.nc", "-o", "there.json")
    for target, more in (
        ("refs.what", ()),
        ("refs.json", ("--record-size", "5")),
        ("there.json", ()),
    ):
        result = run("scan", "no such file.nc", "-o", target, *more)
        assert result.exit_code == 1
        assert "no such file" not in result.stderr


@pytest.mark.filterwarnings("default")
def test_files_that_are_left_out_are_in_the_report() -> None:
    Path("2003.nc").write_bytes(b"\x89HDF\r\n\x1a\n of no use")
    given = ("scan", "20*.nc", "--concat-dim", "time", "-o", "refs.json")
    assert run(*given).exit_code == 1
    assert not Path("refs.json").exists()
    document = said(*given, "--on-error", "collect")
    [lost] = document["left_out"]
    assert lost["url"].endswith("2003.nc")
    for number in range(4, 7):
        Path(f"200{number}.nc").write_bytes(b"\x89HDF\r\n\x1a\n of no use")
    shown = done(*given, "--on-error", "collect", "--mode", "w").stdout
    assert "6 files (4 left out)" in shown
    assert "Left out (4)" in shown
    assert re.search(r"2006\.nc +FormatError +file:.*2006\.nc: ", shown)
    assert_identical(opened("refs.json"), native("200[12].nc"))
    result = done(*given, "--on-error", "skip", "--mode", "w")
    assert result.stderr.startswith("warning: 4 of 6 files")
    assert ".py:" not in result.stderr


def test_a_set_grows() -> None:
    done("append", "refs.zarr", "2002.nc", "--dim", "time")
    more = ("append", "more.zarr", "--dim", "time")
    assert [said(*more, f"{year}.nc")["dims"]["time"] for year in (2001, 2002)] == [12, 24]
    given = ("append", "refs.zarr", "20*.nc", "--dim", "time", "--position", "coordinate")
    assert run(*given).exit_code == 1
    grown = said(*given, "--on-duplicate", "skip")
    assert (grown["written"], grown["files"]) == (True, 2)
    # of 24 months 12 were there; months of the values are a chunk each
    assert (grown["added"], grown["references"]) == (12, 12)
    assert_identical(opened("refs.zarr"), native())
    assert len(said("snapshots", "refs.zarr")["snapshots"]) == 2
    done("drop-sources", "refs.zarr", "2001.nc")
    assert_identical(opened("refs.zarr"), xr.load_dataset("2002.nc"))
    assert len(said("expire-snapshots", "refs.zarr", "--keep", "1")["expired"]) == 2
    assert len(done("snapshots", "refs.zarr").stdout.splitlines()) == 2


def test_sets_are_edited() -> None:
    done("scan", "2001.nc", "-o", "refs.zarr")
    changes = ("--rename", "t=u", "--rename", "lat=y", "--attributes", "u:units=K")
    said_so = said("edit", "refs.zarr", *changes, "--attributes", "version=2")
    assert said_so["renamed"] == {"t": "u", "lat": "y"}
    found = opened("refs.zarr")
    assert found["u"].dims == ("time", "y", "lon")
    assert (found["u"].units, found.attrs["version"]) == ("K", 2)
    done("edit", "refs.zarr", "--attributes", "version=null", "--drop-variables", "u")
    assert "version" not in opened("refs.zarr").attrs and "u" not in opened("refs.zarr")


def test_a_catalogue_is_printed_and_written(folder: Path) -> None:
    document = said("catalog", "{year}.nc", "--esm", "files.json", "--csv", "--stac", "stac")
    assert [entry["names"]["year"] for entry in document["entries"]] == ["2001", "2002"]
    found = virtualds.catalog("{year}.nc")
    assert document == json.loads(json.dumps(found.to_dict()))
    found.to_esm("python/files.json", csv=True)
    found.to_stac("python/stac")
    for name in ("files.json", "files.csv", "stac/collection.json", "stac/2001-nc/2001-nc.json"):
        assert (folder / name).read_text() == (folder / "python" / name).read_text()
    assert "time 12 lat 6 lon 8" in done("catalog", "2001.nc", "2002.nc").stdout
    for option in ("--csv", "--license=MIT", "--description=x"):
        assert "give that, too" in run("catalog", "2001.nc", option).stderr


DRY_RUNS = {
    "drop-sources": ("2001.nc",),
    "edit": ("--drop-variables", "t"),
    "compact": (),
    "rename-paths": ("2001.nc", "s3://bucket/2001.nc", "--sample", "0"),
    "expire-snapshots": (),
    "clean-up": (),
}
"""What is given to each command that deletes or rewrites parts of a set, besides the set."""


@pytest.mark.parametrize("name", DRY_RUNS)
@pytest.mark.every
def test_a_dry_run_changes_no_byte(name: str, folder: Path) -> None:
    target, choices = "refs.zarr", {}
    if name == "compact":
        target, choices = "refs.parquet", {"record_size": 1}
    for year in ("2001.nc", "2002.nc"):
        found = virtualds.open_virtual_dataset(year)
        found.virtual.to_manifest(target, append_dim="time", **choices)
        choices = {}
    before = content(folder / target)
    given = (name, target, *DRY_RUNS[name])
    planned = said(*given, "--dry-run")
    assert re.search("would be|a dry run", done(*given, "--dry-run").stdout)
    assert content(folder / target) == before
    made = said(*given)
    assert (planned.pop("dry_run"), made.pop("dry_run")) == (True, False)
    assert made == planned
    # there is nothing to clean up
    assert (content(folder / target) == before) is (name == "clean-up")


def test_files_with_other_variables_are_appended() -> None:
    done("scan", "2001.nc", "-o", "refs.zarr")
    with xr.open_dataset("2002.nc") as year:
        year.assign(more=year["t"]).to_netcdf("more.nc")
    done("append", "refs.zarr", "more.nc", "--dim", "time", "--new-variables", "fill")
    found = opened("refs.zarr")["more"]
    assert found[:12].isnull().all() and found[12:].notnull().all()


def test_an_append_of_known_files_says_that_nothing_was_written() -> None:
    given = ("append", "refs.zarr", "20*.nc", "--dim", "time", "--on-duplicate", "skip")
    first = said(*given)
    assert (first["written"], first["added"]) == (True, 24)
    again = said(*given)
    assert (again["written"], again["added"], again["references"]) == (False, 0, 0)
    told = done(*given).stdout
    assert "unchanged" in told and "in the set already" in told
    assert "written" not in told and "references" not in told
    assert len(said("snapshots", "refs.zarr")["snapshots"]) == 1


def test_a_source_is_replaced() -> None:
    done("scan", "20*.nc", "-o", "refs.zarr")
    changed = xr.load_dataset("2001.nc")
    changed["t"] = changed["t"] + 10
    changed["t"].encoding = {"dtype": "f8"}
    changed.to_netcdf("2001.nc")
    replaced = said("append", "refs.zarr", "2001.nc", "--dim", "time", "--mode", "replace-source")
    assert replaced["written"] and replaced["dims"]["time"] == 24
    assert_identical(opened("refs.zarr").isel(time=slice(12)), xr.load_dataset("2001.nc"))


def test_convert() -> None:
    done("scan", "20*.nc", "-o", "refs.json")
    assert said("convert", "refs.json", "refs.zarr")["format"] == "zarr-v3"
    assert_identical(opened("refs.zarr"), native())
    assert run("convert", "refs.json", "refs.zarr", "--mode", "w-").exit_code == 1


def test_verify_reports_missing_files() -> None:
    done("scan", "20*.nc", "-o", "refs.zarr")
    assert said("verify", "refs.zarr", "--against", "native", "--sample", "all")["ok"]
    Path("2002.nc").unlink()
    result = run("verify", "refs.zarr", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["counts"] == {"missing": 1}
    result = run("verify", "refs.zarr")
    assert result.exit_code == 1
    assert result.stdout.startswith("verified against fingerprint: 1 missing")
    assert "there is no such file or set" in run("verify", "nothing.zarr").stderr


def test_verify_is_not_ok_if_nothing_was_compared() -> None:
    xr.Dataset({"t": ("x", np.arange(4.0))}).to_netcdf("small.nc")
    virtualds.open_virtual_dataset("small.nc", loadable_variables=["t"]).virtual.to_manifest(
        "small.json"
    )
    result = run("verify", "small.json", "--against", "native")
    assert result.exit_code == 1
    assert "nothing was compared" in result.stdout.splitlines()[0]
    assert run("verify", "small.json").exit_code == 0


def test_diagnose_shows_what_does_not_combine() -> None:
    document = said("diagnose", "20*.nc")
    assert (document["files"], len(document["eras"]), document["blocks"]) == (2, 1, False)
    xr.load_dataset("2001.nc").isel(lat=slice(2)).drop_vars("lat").to_netcdf("2003.nc")
    result = run("diagnose", "20*.nc", "--concat-dim", "time", "--json")
    assert (result.exit_code, json.loads(result.stdout)["blocks"]) == (1, True)
    assert "2003.nc" in run("diagnose", "20*.nc", "--concat-dim", "time").stdout


def test_diagnose_takes_what_scan_takes() -> None:
    for name in ("2001", "2002"):
        year = xr.load_dataset(f"{name}.nc").isel(time=0).drop_vars("time")
        year.to_netcdf(f"only_{name}.nc")
    how = ("only_*.nc", "--concat-dim", "time", "--coordinates", r"time:%Y=_(\d{4})")
    document = said("diagnose", *how)
    assert (document["joined"], document["blocks"]) == (["time"], False)
    assert [era["start"] for era in document["eras"]] == ["2001-01-01"]
    assert said("scan", *how, "-o", "refs.json")["dims"]["time"] == 2


# ---------------------------------------------------------------------- info


def test_info_shows_what_xarray_prints() -> None:
    done("scan", "20*.nc", "-o", "refs.parquet")
    output = done("info", "refs.parquet").stdout
    vds = virtualds.open_virtual_dataset("refs.parquet")
    assert output.startswith(repr(vds))
    assert re.search(r"^sources +2 files, ", output, re.MULTILINE)
    assert re.search(r"^first source +file:///.*/2001.nc$", output, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("info", "refs.zarr"), "1 virtual variable, 24 chunks of 2 files"),
        (("verify", "refs.zarr"), "verified against fingerprint: ok"),
        (("diagnose", "20*.nc"), "2 files"),
    ],
)
def test_a_report_is_written_as_a_web_page_too(arguments: tuple[str, ...], shown: str) -> None:
    done("scan", "20*.nc", "-o", "refs.zarr")
    plain = done(*arguments).stdout
    result = done(*arguments, "--html", "report.html")
    assert (result.stdout, result.stderr) == (plain, "written: report.html\n")
    page = Path("report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and shown in page and "<svg" in page
    result = run(*arguments, "--html", "none/report.html")
    assert result.exit_code == 2 and "give a file in a folder that exists" in result.stderr


@pytest.mark.parametrize("arguments", [("info", "refs.zarr"), ("verify", "refs.zarr")])
def test_a_page_that_cannot_be_written_is_one_error(arguments: tuple[str, ...]) -> None:
    done("scan", "20*.nc", "-o", "refs.zarr")
    result = run(*arguments, "--json", "--html", "/proc/report.html")
    assert result.exit_code == 1
    assert "/proc/report.html" in json.loads(result.stdout)["error"]["message"]


def test_a_page_of_a_diagnosis_that_cannot_be_written_is_one_error() -> None:
    result = run("diagnose", "20*.nc", "--json", "--html", "/proc/report.html")
    assert result.exit_code == 1
    assert "/proc/report.html" in json.loads(result.stdout)["error"]["message"]


def test_info_for_machines() -> None:
    done("scan", "20*.nc", "-o", "refs.zarr")
    document = said("info", "refs.zarr")
    nbytes = sum(Path(f"{year}.nc").stat().st_size for year in (2001, 2002))
    sources = {"count": 2, "bytes": nbytes, "first": (Path.cwd() / "2001.nc").as_uri()}
    assert document["format"] == "zarr-v3"
    assert document["sources"] == sources
    assert document["groups"]["/"]["data_vars"]["t"]["shape"] == [24, 6, 8]
    [snapshot] = document["snapshots"]
    assert said("info", "refs.zarr", "--snapshot", snapshot["snapshot"]) == document


def test_info_of_a_file_with_groups() -> None:
    xr.DataTree.from_dict({"/a/b": xr.load_dataset("2001.nc")}).to_netcdf("tree.nc")
    document = said("info", "tree.nc")
    assert set(document["groups"]) == {"/", "/a", "/a/b"}
    assert document["snapshots"] is None
    assert "Group: /a/b" in done("info", "tree.nc").stdout.replace("│", "").replace("└──", "")


def test_attributes_that_json_has_no_number_for_are_named() -> None:
    xr.Dataset(attrs={"high": float("inf"), "none": float("nan")}).to_netcdf("odd.nc")
    assert said("info", "odd.nc")["groups"]["/"]["attrs"] == {"high": "Infinity", "none": "NaN"}


# ---------------------------------------------------------------------- how it ends


def test_an_error_is_a_message_with_its_notes() -> None:
    xr.Dataset({"t": ("x", [1, 2])}, {"y": 5}).to_netcdf("a.nc")
    xr.Dataset({"t": ("x", [1, 2])}, {"y": 6}).to_netcdf("b.nc")
    result = run("scan", "a.nc", "b.nc", "--concat-dim", "x", "-o", "refs.json")
    assert (result.exit_code, result.stdout) == (1, "")
    first, *notes = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert any("b.nc" in note for note in notes)
    assert "Traceback" not in result.stderr
    assert "Traceback" in run("info", "missing.nc", "--debug").stderr


def test_an_error_is_a_document_for_machines() -> None:
    result = run("info", "missing.nc", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)["error"]
    assert found["type"] == "FileNotFoundError"
    assert found["message"].replace("; ", "\n") in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("what",),
        ("scan", "2001.nc"),
        ("scan", "-o", "refs.json"),
        ("scan", "2001.nc", "-o", "refs.json", "--format", "what"),
        ("scan", "2001.nc", "-o", "refs.json", "--storage-options", "what"),
        ("scan", "2001.nc", "-o", "refs.json", "--storage-options", "{what"),
        ("scan", "2001.nc", "-o", "refs.json", "--parallel", "2", "--dask", "tcp://127.0.0.1:1"),
        ("expire-snapshots", "refs.zarr", "--older-than", "soon"),
    ],
    ids=" ".join,
)
def test_impossible_arguments_are_usage_errors(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")


def test_access_options_are_json_or_pairs() -> None:
    given = ['{"a": 1, "b": {"c": null}}', "anon=true", "a=5", "key=some=thing"]
    arguments = [word for one in given for word in ("--storage-options", one)]
    context = main.commands["info"].make_context("info", ["x.nc", *arguments])
    expected = {"a": 5, "b": {"c": None}, "anon": True, "key": "some=thing"}
    assert context.params["storage_options"] == expected


def program(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    """Start the real program."""
    pipe = subprocess.PIPE
    given: dict[str, Any] = {"stdout": pipe, "stderr": pipe, "stdin": pipe, "text": True, **more}
    return subprocess.Popen([*PROGRAM, *arguments], **given)


def test_a_list_comes_from_standard_input() -> None:
    # a name that is a pattern stands for itself in a list
    Path("2002.nc").rename("200[2].nc")
    process = program("scan", "-f", "-", "-o", "refs.json", "--json")
    stdout, stderr = process.communicate("2001.nc\n\n200[2].nc\n", timeout=300)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["files"] == 2
    assert_identical(opened("refs.json"), native())


def test_an_error_ends_the_program_with_1_and_says_nothing_on_standard_output() -> None:
    ended = run_module("virtualds_cli", "info", "missing.nc")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: ")


@pytest.mark.full
def test_a_closed_pipe_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    process = program("info", "2001.nc", stdout=write)
    os.close(write)
    _, stderr = process.communicate(timeout=300)
    assert (process.returncode, stderr) == (141, "")


def test_the_program_can_be_interrupted() -> None:
    process = program("scan", "-f", "-", "-o", "refs.json")
    assert process.stdin is not None
    # more than fits into a pipe: once it is written the program reads its list
    process.stdin.write("x\n" * 2**19)
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert (process.returncode, stdout, stderr.strip()) == (130, "", "interrupted")
    assert not Path("refs.json").exists()


# ---------------------------------------------------------------------- sync


def test_a_set_is_kept_up_to_date(folder: Path) -> None:
    line = ("sync", "*.nc", "refs.zarr", "--concat-dim", "time", "--settle", "0")
    late = Path("2001.nc").rename("late")
    assert "1 added" in done(*line).output
    late.rename("2001.nc")
    assert said(*line)["added"] == [f"file://{folder}/2001.nc"]
    assert done(*line).output == f"file://{folder}/refs.zarr: 2 unchanged\n"
    assert_identical(opened("refs.zarr").load(), native())
    # the shell may expand the pattern, and a list may name the files
    named = ("sync", "2001.nc", "2002.nc", "refs.zarr", "--concat-dim", "time")
    assert said(*named)["unchanged"] == 2
    Path("list.txt").write_text("2001.nc\n2002.nc\n")
    assert said("sync", "-f", "list.txt", "refs.zarr", "--concat-dim", "time")["unchanged"] == 2
    Path("2001.nc").unlink()
    refused = run(*line)
    assert refused.exit_code == 1
    assert "not listed any more" in refused.stderr
    assert "pass --on-removed keep to keep their references" in refused.stderr
    assert said(*line, "--on-removed", "drop")["dropped"] == [f"file://{folder}/2001.nc"]


def test_a_sync_with_files_that_fail_ends_with_an_error_code() -> None:
    Path("2003.nc").write_bytes(b"\x89HDF\r\n\x1a\n")
    line = ("sync", "*.nc", "refs.zarr", "--concat-dim", "time", "--settle", "0")
    result = run(*line, "--on-error", "collect", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, len(document["added"]), len(document["failed"])) == (1, 2, 1)
    assert document["failed"][0]["url"].endswith("2003.nc")


def test_names_that_are_not_utf_8_are_printed_escaped() -> None:
    os.rename("2002.nc", os.fsencode("2002") + b"\xff.nc")
    line = ("sync", "*.nc", "refs.zarr", "--concat-dim", "time", "--settle", "0")
    assert r"2002\udcff.nc" in run(*line, "--on-error", "collect").stdout
    [lost] = json.loads(run(*line, "--on-error", "collect", "--json").stdout)["failed"]
    assert lost["url"].endswith("2002\udcff.nc")


# ---------------------------------------------------------------------- on a cluster


def test_a_cluster_opens_the_files(dask_workers: Any) -> None:
    files = sorted(map(str, Path.cwd().glob("20*.nc")))
    how = ("--concat-dim", "time", "--dask", dask_workers.scheduler_address)
    for target in ("refs.json", "refs.zarr"):
        given = ("scan", *files, "-o", target, *how)
        assert said(*given)["references"] == 24
        assert_identical(opened(target), native())
