"""Unknown arguments are refused before any file is opened, with a suggestion."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from products import looped
from programs import run_module

import virtualds
import virtualds.accessors.virtual
from virtualds.options import get_options

NONE = "/no/such/file.nc"
"""Whoever opened it would say that there is none."""
NESTED: dict[str, Any] = {"combine": "nested", "concat_dim": "time"}
Call = Callable[[], Any]


def virtual(folder: Path) -> xr.Dataset:
    path = folder / "a.nc"
    if not path.exists():
        part = xr.Dataset({"t": (("time", "x"), np.ones((2, 3)))}, {"time": [1.0, 2.0]})
        part.to_netcdf(path)
    return virtualds.open_virtual_dataset(path)


KEYWORDS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "open_virtual_dataset": (
        "open_virtual_dataset() has no argument 'goup'; did you mean 'group'?",
        lambda _: virtualds.open_virtual_dataset(NONE, goup="a"),
    ),
    "open_virtual_datatree": (
        "open_virtual_datatree() has no argument 'parsre'; did you mean 'parser'?",
        lambda _: virtualds.open_virtual_datatree(NONE, parsre="hdf5"),
    ),
    "chunks": (
        "open_virtual_mfdataset() has no argument 'chunkss'; arrays stay virtual; chunks= is for",
        lambda _: virtualds.open_virtual_mfdataset([NONE], chunkss={}),
    ),
    "open_virtual_mfdataset": (
        "open_virtual_mfdataset() has no argument 'concat_dm'; did you mean 'concat_dim'?",
        lambda _: virtualds.open_virtual_mfdataset([NONE], concat_dm="time"),
    ),
    "open_virtual_mfdatatree": (
        "open_virtual_mfdatatree() has no argument 'combine_attr'; did you mean 'combine_attrs'?",
        lambda _: virtualds.open_virtual_mfdatatree([NONE], concat_dim="x", combine_attr="drop"),
    ),
    "diagnose": (
        "diagnose() has no argument 'concat_dm'; did you mean 'concat_dim'?",
        lambda _: virtualds.diagnose([NONE], concat_dm="time"),
    ),
    "diagnose, of what it does not try": (
        "diagnose() has no argument 'to'",
        lambda _: virtualds.diagnose([NONE], to="refs.zarr"),
    ),
    "open_dataset": (
        "xr.open_dataset(engine='virtual') has no argument 'chunkss'; did you mean 'chunks'?",
        lambda _: xr.open_dataset(NONE, engine="virtual", chunkss={}),
    ),
    "open_datatree": (
        "xr.open_datatree(engine='virtual') has no argument 'grup'; did you mean 'group'?",
        lambda _: xr.open_datatree(NONE, engine="virtual", grup="a"),
    ),
    "open_groups": (
        "xr.open_groups(engine='virtual') has no argument 'alow'; did you mean 'allow'?",
        lambda _: xr.open_groups(NONE, engine="virtual", alow="."),
    ),
    "to_manifest": (
        "zarr-v3 has no option 'append_dm'; did you mean 'append_dim'?",
        lambda folder: virtual(folder).virtual.to_manifest(folder / "a.zarr", append_dm="time"),
    ),
    "convert": (
        "zarr-v3 has no option 'modee'; did you mean 'mode'?",
        lambda folder: virtualds.convert(NONE, folder / "a.zarr", modee="w"),
    ),
    "an option of another format": (
        "kerchunk-json has no option 'record_size'; it has templates, relative_paths, "
        "zarr_format, subchunk, inline_threshold, keep_query, on_unsupported, main_encoding, "
        "rewrite_limit, progress",
        lambda folder: virtualds.convert(NONE, folder / "a.json", record_size=3),
    ),
    "verify": (
        "ds.virtual.verify() has no argument 'agianst'; did you mean 'against'?",
        lambda folder: virtual(folder).virtual.verify(agianst="native"),
    ),
    "materialize": (
        "ds.virtual.materialize() has no argument 'layot'; did you mean 'layout'?",
        lambda folder: virtual(folder).virtual.materialize(folder / "b.zarr", layot="chunks"),
    ),
    "drop_sources": (
        "drop_sources() has no argument 'dimm'; did you mean 'dim'?",
        lambda _: virtualds.drop_sources(NONE, "a.nc", dimm="time"),
    ),
    "edit": (
        "edit() has no argument 'renam'; did you mean 'rename'?",
        lambda _: virtualds.edit(NONE, renam={}),
    ),
    "snapshots": (
        "snapshots() has no argument 'storage_option'; did you mean 'storage_options'?",
        lambda _: virtualds.snapshots(NONE, storage_option={}),
    ),
    "expire_snapshots": (
        "expire_snapshots() has no argument 'keeep'; did you mean 'keep'?",
        lambda _: virtualds.expire_snapshots(NONE, keeep=1),
    ),
    "open_flat": (
        "open_flat() has no argument 'shap'; did you mean 'shape'?",
        lambda _: virtualds.open_flat(NONE, shap=(2,)),
    ),
    "zarr_store": (
        "zarr_store() has no argument 'decoded'; did you mean 'decode'?",
        lambda _: virtualds.zarr_store(NONE, decoded=True),
    ),
}


@looped("name", KEYWORDS)
def test_an_unknown_keyword_is_refused_before_files_are_opened(name: str, tmp_path: Path) -> None:
    message, call = KEYWORDS[name]
    with pytest.raises(TypeError) as caught:
        call(tmp_path)
    assert str(caught.value).startswith(message)
    assert not getattr(caught.value, "__notes__", [])


VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "join": ({**NESTED, "join": "outr"}, "join='outr': give one of .* did you mean 'outer'"),
    "compat": ({**NESTED, "compat": "equal"}, "compat='equal': give one of .* mean 'equals'"),
    "data_vars": ({**NESTED, "data_vars": "minmal"}, "data_vars='minmal': .* mean 'minimal'"),
    "coords": ({**NESTED, "coords": "different "}, "coords='different ': .* mean 'different'"),
    "combine_attrs": ({**NESTED, "combine_attrs": "keep"}, "combine_attrs='keep': give one of"),
    "combine": ({"combine": "nestd"}, "combine='nestd': give one of .* did you mean 'nested'"),
    "overlap": ({**NESTED, "overlap": "frist"}, "overlap='frist': .* did you mean 'first'"),
    "on_error": ({**NESTED, "on_error": "rase"}, "on_error='rase': .* did you mean 'raise'"),
    "retries": ({**NESTED, "retries": -1}, "retries=-1: give a number, at least 0"),
    "parallel": ({**NESTED, "parallel": "dsk"}, "parallel='dsk': give a number"),
    "concat_dim": ({"combine": "nested", "concat_dim": 5}, "concat_dim=5: give the name of a dim"),
    "by coordinates": ({"concat_dim": "time"}, "is for combine='nested': pass that too"),
}


@looped("call", ["build", "diagnose"])
@looped("name", VALUES)
def test_an_impossible_value_is_refused_before_files_are_opened(name: str, call: str) -> None:
    options, message = VALUES[name]
    if call == "diagnose":
        options = {"combine": "by_coords", **options} if name == "by coordinates" else options
    run = virtualds.diagnose if call == "diagnose" else virtualds.open_virtual_mfdataset
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        run([NONE, NONE], **options)
    assert not getattr(caught.value, "__notes__", [])


def test_the_command_line_says_what_was_meant() -> None:
    for given, meant in (
        (("scan", NONE, "--concat-dm", "time", "-o", "a.zarr"), "--concat-dim"),
        (("diagnose", NONE, "--jon", "outer"), "--join"),
    ):
        said = run_module("virtualds_cli", *given)
        assert said.returncode == 2
        assert meant in said.stderr
        assert "no such file" not in said.stderr


@pytest.mark.parametrize("parallel", [None, 2])
def test_a_traceback_of_combining_shows_the_stack_of_xarray_once(
    parallel: int | None, tmp_path: Path
) -> None:
    for n in range(4):
        part = xr.Dataset(
            {"t": (("time", "x"), np.ones((2, 3 + (n == 3))))}, {"time": [n, n + 0.5]}
        )
        part.to_netcdf(tmp_path / f"{n}.nc")
    for to in (None, tmp_path / "all.zarr"):
        with pytest.raises(ValueError, match="'x'") as caught:
            virtualds.open_virtual_mfdataset(
                sorted(tmp_path.glob("*.nc")), parallel=parallel, to=to, **NESTED
            )
        told = "".join(traceback.format_exception(caught.value))
        assert told.count("Traceback") == 1
        assert "NeedsFullCombineError" not in told


# ---------------------------------------------------------------------- wrong types


def archive(folder: Path) -> list[Path]:
    for n in range(3):
        part = xr.Dataset({"t": (("time", "x"), np.ones((2, 3)) * n)}, {"time": [n, n + 0.5]})
        part.to_netcdf(folder / f"{n}.nc")
    return sorted(folder.glob("*.nc"))


PATHS: dict[str, tuple[Any, str]] = {
    "None": (None, "NoneType"),
    "a number": (5, "int"),
    "a dataset": (xr.Dataset(), "Dataset"),
}
OPENERS: dict[str, Callable[[Any, Path], Any]] = {
    "open_virtual_dataset": lambda url, _: virtualds.open_virtual_dataset(url),
    "open_virtual_datatree": lambda url, _: virtualds.open_virtual_datatree(url),
    "open_virtual_mfdataset": lambda url, _: virtualds.open_virtual_mfdataset([url], **NESTED),
    "open_virtual_mfdatatree": lambda url, _: virtualds.open_virtual_mfdatatree(
        [url], concat_dim="time"
    ),
    "diagnose": lambda url, _: virtualds.diagnose([url]),
    "open_dataset": lambda url, _: xr.open_dataset(url, engine="virtual"),
    "convert": lambda url, folder: virtualds.convert(url, folder / "a.zarr"),
    "convert, to": lambda url, folder: virtualds.convert(folder / "0.nc", url),
    "to_manifest": lambda url, folder: virtual(folder).virtual.to_manifest(url),
    "materialize": lambda url, folder: virtual(folder).virtual.materialize(url),
    "snapshots": lambda url, _: virtualds.snapshots(url),
    "drop_sources": lambda url, _: virtualds.drop_sources(url, "a.nc"),
    "edit": lambda url, _: virtualds.edit(url, rename={"a": "b"}),
    "zarr_store": lambda url, _: virtualds.zarr_store(url),
    "open_flat": lambda url, _: virtualds.open_flat(url, shape=(2,), dtype="f4"),
}


ANSWERED = {("to_manifest", "None"), ("zarr_store", "a dataset")}
"""Calls that mean something: a dict of references, and a dataset that was never written."""


@looped("opener, wrong", [(a, b) for a in OPENERS for b in PATHS if (a, b) not in ANSWERED])
def test_an_argument_that_is_no_path_is_refused_by_type(
    opener: str, wrong: str, tmp_path: Path
) -> None:
    archive(tmp_path)
    given, kind = PATHS[wrong]
    with pytest.raises(TypeError, match=f"path.* got {kind}"):
        OPENERS[opener](given, tmp_path)


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "drop_variables": ({"drop_variables": 5}, "drop_variables=5: give a name, or a list"),
    "loadable_variables": ({"loadable_variables": 5}, "loadable_variables=5: give a name"),
    "storage_options": ({"storage_options": "anon"}, "storage_options: got str; give a dict"),
    "preprocess": ({"preprocess": 5}, "preprocess 5: give a function"),
    "preprocess that returns nothing": (
        {"preprocess": lambda _: None},
        "preprocess: .* returned a NoneType, but must return a Dataset",
    ),
    "preprocess that returns an array": (
        {"preprocess": lambda ds: ds["t"]},
        "preprocess: .* returned a DataArray, but must return a Dataset",
    ),
    "coordinates": ({"coordinates": ["time"]}, "coordinates .*: give a dict"),
    "retries": ({"retries": "x"}, "retries='x': give a number"),
    "join": ({"join": None}, "join=None: give one of 'outer'"),
    "compat": ({"compat": None}, "compat=None: give one of 'equals'"),
}


@looped("name", OPTIONS)
def test_an_option_of_a_wrong_type_is_named(name: str, tmp_path: Path) -> None:
    options, message = OPTIONS[name]
    with pytest.raises((TypeError, ValueError), match=message):
        virtualds.open_virtual_mfdataset(archive(tmp_path), **NESTED, **options)


def joined(folder: Path, **wrong: Any) -> Any:
    return virtualds.open_virtual_mfdataset(archive(folder), **NESTED, **wrong)


def written(folder: Path, **wrong: Any) -> Any:
    return virtual(folder).virtual.to_manifest(folder / "refs.zarr", **wrong)


def verified(folder: Path, **wrong: Any) -> Any:
    return virtual(folder).virtual.verify(**wrong)


def copied(folder: Path, **wrong: Any) -> Any:
    return virtual(folder).virtual.materialize(folder / "copy.zarr", **wrong)


def of_file(function: Callable[..., Any], *target: str) -> Callable[..., Any]:
    def called(folder: Path, **wrong: Any) -> Any:
        virtual(folder)
        return function(folder / "a.nc", *(folder / name for name in target), **wrong)

    return called


WRONG: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "open_virtual_dataset": (
        of_file(virtualds.open_virtual_dataset),
        {
            **dict.fromkeys(("group", "drop_variables", "loadable_variables", "parser"), 5),
            **dict.fromkeys(("storage_options", "on_error", "allow", "snapshot"), 5),
            "decode_cf": "no",
        },
    ),
    "open_virtual_mfdataset": (
        joined,
        {
            **dict.fromkeys(("preprocess", "data_vars", "coords", "compat", "join", "to"), 5),
            **dict.fromkeys(("attrs_file", "coordinates", "overlap", "cache", "allow"), 5),
            **dict.fromkeys(("combine_attrs", "mode", "target_options", "progress"), 5),
            **dict.fromkeys(("decode_cf", "sort", "retries", "keep_query"), "x"),
        },
    ),
    "to_manifest": (
        written,
        {
            **dict.fromkeys(("format", "mode", "append_dim", "position", "on_duplicate"), 5),
            **dict.fromkeys(("conflict", "allow", "storage_options", "manifest"), 5),
            **dict.fromkeys(("relative_paths", "keep_query"), "x"),
        },
    ),
    "verify": (verified, dict.fromkeys(("against", "sample", "seed"), "x")),
    "convert": (
        of_file(virtualds.convert, "other.zarr"),
        {
            **dict.fromkeys(("format", "mode", "drop_variables", "allow", "manifest"), 5),
            **dict.fromkeys(("storage_options", "target_options"), 5),
            "keep_query": "x",
        },
    ),
    "materialize": (copied, {"layout": 5, "mode": 5, "storage_options": 5, "checksums": "x"}),
    "zarr_store": (
        of_file(virtualds.zarr_store),
        {
            **dict.fromkeys(("group", "drop_variables", "parser", "storage_options"), 5),
            **dict.fromkeys(("on_error", "allow", "snapshot"), 5),
            **{"decode": "yes", "readers": "gdal", "zarr_format": 4},
        },
    ),
    "set_options": (
        lambda _, **wrong: virtualds.set_options(**wrong),
        {
            **dict.fromkeys(("load_limit", "small_variable", "chunk_cache", "retries"), "x"),
            **dict.fromkeys(("request_timeout", "least_rate", "max_requests"), None),
            **dict.fromkeys(("check_sources", "only_writer"), "x"),
            "hdf5": "h5py",
        },
    ),
}
OTHERWISE_NAMED = {"to": "path", "attrs_file": "path"}
"""What messages call arguments that are told of as what they are."""


@looped(
    "call, keyword", [(call, keyword) for call, (_, wrong) in WRONG.items() for keyword in wrong]
)
def test_a_wrong_value_is_reported_with_its_keyword(
    call: str, keyword: str, tmp_path: Path
) -> None:
    function, wrong = WRONG[call]
    told = OTHERWISE_NAMED.get(keyword, keyword)
    with pytest.raises((TypeError, ValueError), match=told) as caught:
        function(tmp_path, **{keyword: wrong[keyword]})
    assert "object" not in str(caught.value) and "instances" not in str(caught.value)


@pytest.mark.parametrize("given", ["h5py", "Auto", "", None, 5, True, b"auto"])
def test_the_reader_of_hdf5_is_one_of_two(given: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="set_options: hdf5"):
        virtualds.set_options(hdf5=given)
    assert get_options().hdf5 == "auto"


@pytest.mark.parametrize("given", [5, "a", None, [("a", "b")]])
def test_prefixes_of_paths_are_a_dict(given: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"rename_paths .*: give a dict"):
        virtual(tmp_path).virtual.rename_paths(given)


def test_names_that_no_variable_has_are_none(tmp_path: Path) -> None:
    virtual(tmp_path)
    how: Any = {"drop_variables": ["a"], "loadable_variables": ["a", "b*"]}
    found = virtualds.open_virtual_dataset(tmp_path / "a.nc", **how)
    assert set(found.variables) == {"t", "time"}
    assert set(found.virtual.arrays) == {"t", "time"}


def test_an_error_says_that_files_without_a_dimension_are_merged(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="conflicting values") as caught:
        virtualds.open_virtual_mfdataset(archive(tmp_path), combine="nested")
    assert "concat_dim is not given, so the files are merged" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("given", [[], [[]], ()])
def test_an_empty_list_is_refused(given: Any) -> None:
    with pytest.raises(FileNotFoundError, match="list of files is empty"):
        virtualds.open_virtual_mfdataset(given, **NESTED)


def test_a_set_does_not_begin_along_a_dimension_that_the_dataset_lacks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"append_dim 'tme': .* did you mean 'time'"):
        virtual(tmp_path).virtual.to_manifest(tmp_path / "new.zarr", append_dim="tme")
    assert not (tmp_path / "new.zarr").exists()


def test_a_sample_is_a_number_of_files(tmp_path: Path) -> None:
    for wrong in (0, 1.5, "x", True):
        with pytest.raises(ValueError, match=r"sample .* give a number of files"):
            virtualds.diagnose(archive(tmp_path), sample=wrong)  # type: ignore[arg-type]


def test_a_method_that_is_called_without_its_object_says_which_argument_it_lacks() -> None:
    method: Any = virtualds.accessors.virtual.VirtualDatasetAccessor.verify
    with pytest.raises(TypeError, match=r"^verify\(\) has no argument 'bad'"):
        method(bad=1)
