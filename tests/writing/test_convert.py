"""A set reads the same in every format, and is converted without reading its data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from archives import KINDS, Archives
from cases import CASES
from daily_files import append, days, native, opened, virtual, written
from products import few_quick, looped
from transforms import assert_identical

import virtualds
from virtualds.arrays.array import ManifestArray
from virtualds.datasets.conversion import group_from_dataset
from virtualds.datasets.location import FORMATS

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

SUFFIXES = {
    form.name: form.suffixes[0]
    for form in FORMATS
    if form.library is None or find_spec(form.library)
}
PAIRS = [*permutations(SUFFIXES, 2), *((name, name) for name in SUFFIXES)]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return Archives(tmp_path_factory.mktemp("archives"))


def references(path: Path) -> Iterator[tuple[str, Any]]:
    """Every chunk that some file holds: variable, place, url, offset and length."""
    for name, variable in virtualds.open_virtual_dataset(path, loadable_variables=[]).items():
        data = variable.variable._data
        if not isinstance(data, ManifestArray):
            continue
        for fragment in data.fragments:
            manifest = fragment.manifest.loaded()
            for place in np.argwhere(manifest.file >= 0).tolist():
                row = manifest.lookup(tuple(place))
                begin = [
                    f + a.slabs().edges[i]
                    for f, a, i in zip(fragment.start, fragment.axes, place, strict=True)
                ]
                yield (
                    str(name),
                    (tuple(begin), manifest.files[row.file][:4], row.offset, row.length),
                )


@pytest.mark.product
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_converting_keeps_values_and_references(source: str, target: str, tmp_path: Path) -> None:
    files = [written(tmp_path, f"{n}", days(4 * n)) for n in range(3)]
    first, second = tmp_path / f"a{SUFFIXES[source]}", tmp_path / f"b{SUFFIXES[target]}"
    for path in files:
        append(path, first)
    virtualds.convert(first, second)
    expected = sorted(references(first))
    assert expected
    assert sorted(references(second)) == expected
    remove(first)
    assert_identical(opened(second), native(files))
    with pytest.raises(FileExistsError):
        virtualds.convert(second, second, mode="w-")


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", few_quick(CASES, list(CASES)[::5]))
def test_every_case_survives_all_formats_in_turn(name: str, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "case.nc"
    case.write(path)
    vds = virtualds.open_virtual_dataset(path, group=case.group)
    try:
        vds.virtual.to_manifest(tmp_path / "a.json")
    except virtualds.UnsupportedError:
        vds = vds.virtual.load()
        vds.virtual.to_manifest(tmp_path / "a.json", mode="w")
    last = tmp_path / "a.json"
    for number, suffix in enumerate((".zarr", ".parquet", ".zarr", ".json")):
        following = tmp_path / f"{number}{suffix}"
        virtualds.convert(last, following)
        last = following
    assert_identical(opened(last), opened(tmp_path / "a.json"))
    remove(tmp_path / "0.zarr")
    assert_identical(virtualds.open_virtual_dataset(last).virtual.load(), opened(last).load())


@looped("name", KINDS, quick=len(KINDS) // 3)
def test_references_that_a_format_cannot_hold_are_refused(
    name: str, archives: Archives, tmp_path: Path
) -> None:
    parts = [virtualds.open_virtual_dataset(path) for path in archives.files(name)]
    KINDS[name].combine(parts).virtual.to_manifest(tmp_path / "a.zarr")
    target = tmp_path / "b.json"
    try:
        virtualds.convert(tmp_path / "a.zarr", target)
    except virtualds.UnsupportedError as error:
        assert "kerchunk-json cannot hold" in str(error)
        assert not target.exists()
    else:
        assert_identical(opened(target), archives.native(name))


@pytest.mark.product
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_converting_keeps_groups(source: str, target: str, tmp_path: Path) -> None:
    paths = [written(tmp_path, f"{n}", days(4 * n)) for n in range(3)]
    top, middle, leaf = (group_from_dataset(virtual(path)) for path in paths)
    tree = replace(top, groups={"a": replace(middle, groups={"b": leaf})})
    first, second = tmp_path / f"a{SUFFIXES[source]}", tmp_path / f"b{SUFFIXES[target]}"
    [form] = [form for form in FORMATS if form.name == source]
    form.write(tree, first.as_uri())
    virtualds.convert(first, second)
    for group, path in zip(("", "a", "a/b"), paths, strict=True):
        found = xr.open_dataset(second, engine="virtual", group=group)
        assert_identical(found, native([path]))
    more = written(tmp_path, "more", days(4))
    append(more, second)
    assert_identical(opened(second), native([paths[0], more]))
    assert_identical(xr.open_dataset(second, engine="virtual", group="a/b"), native([paths[2]]))


@pytest.mark.parametrize("form", SUFFIXES)
def test_a_format_is_known_by_its_content(form: str, tmp_path: Path) -> None:
    files = [written(tmp_path, f"{n}", days(4 * n)) for n in range(2)]
    target = tmp_path / "nameless"
    virtual(files[0]).virtual.to_manifest(target, format=form)
    append(files[1], target)
    assert_identical(opened(target), native(files))


@pytest.mark.parametrize("target", SUFFIXES.values())
def test_a_file_is_converted_without_being_opened_as_a_dataset(target: str, tmp_path: Path) -> None:
    path = written(tmp_path, "a", days(0))
    virtualds.convert(path, tmp_path / f"refs{target}")
    assert_identical(opened(tmp_path / f"refs{target}"), native([path]))


def test_unknown_files_are_not_converted(tmp_path: Path) -> None:
    (tmp_path / "text.nc").write_text("nothing")
    for source in ("text.nc", "nothing.json", "nothing"):
        with pytest.raises((virtualds.FormatError, FileNotFoundError)):
            virtualds.convert(tmp_path / source, tmp_path / "refs.json", mode="w")
    assert not (tmp_path / "refs.json").exists()


def test_wrong_arguments_of_convert_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    virtual(written(tmp_path, "a", days(0))).virtual.to_manifest(path)
    with pytest.raises(ValueError, match="mode='a'"):
        virtualds.convert(path, tmp_path / "refs.json", mode="a")
    with pytest.raises(TypeError, match="kerchunk-json has no option 'record_size'"):
        virtualds.convert(path, tmp_path / "refs.json", record_size=3, mode="w")
    with pytest.raises(ValueError, match="its name has no suffix of a format"):
        virtualds.convert(path, tmp_path / "refs")
