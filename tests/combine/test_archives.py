"""Archives that xarray combines natively combine virtually, to the same bits."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from archives import KINDS, Archives
from products import looped
from transforms import TRANSFORMS, assert_identical
from virtual_arrays import no_reads

import virtualds

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return Archives(tmp_path_factory.mktemp("archives"))


def parts(archives: Archives, name: str) -> list[xr.Dataset]:
    return [virtualds.open_virtual_dataset(p) for p in archives.files(name)]


@cache
def combined(archives: Archives, name: str) -> xr.Dataset:
    return KINDS[name].combine(parts(archives, name))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KINDS)
@looped("transform", TRANSFORMS, quick=3)
def test_combining_and_opening_commute(name: str, transform: str, archives: Archives) -> None:
    change = TRANSFORMS[transform]
    # a copy, since loading is done in place
    found = combined(archives, name).copy()
    assert_identical(change(found), change(archives.native(name)))


@looped("name", KINDS, quick=len(KINDS) // 3)
def test_combining_reads_no_byte_and_stays_virtual(name: str, archives: Archives) -> None:
    opened = parts(archives, name)
    with nullcontext() if KINDS[name].reads else no_reads():
        found = KINDS[name].combine(opened)
    for variable in found.data_vars:
        was = [ds[variable].variable for ds in opened if variable in ds]
        if any(_is_virtual(v) for v in was):
            assert _is_virtual(found[variable].variable), variable


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KINDS)
@looped("form", ["inline", "json", "parquet"], quick=1)
def test_zarr_v3_holds_every_archive(
    name: str, form: str, archives: Archives, tmp_path: Path
) -> None:
    combined(archives, name).virtual.to_manifest(tmp_path / "refs.zarr", manifest=form)
    expected = archives.native(name)
    assert_identical(xr.open_dataset(tmp_path / "refs.zarr", engine="virtual"), expected)
    assert_identical(virtualds.open_virtual_dataset(tmp_path / "refs.zarr"), expected)


def _is_virtual(variable: Any) -> bool:
    return isinstance(variable._data, virtualds.ManifestArray)


@pytest.mark.full
def test_twenty_thousand_ragged_files_are_one_fragment() -> None:
    months = [
        virtualds.ManifestArray.from_arrays(
            shape=(length, 4, 5),
            chunks=(length, 4, 5),
            dtype="f4",
            path=f"s3://bucket/{length}.nc",
            offsets=1000 + length,
            lengths=length * 80,
        )
        for length in (28, 29, 30, 31)
    ]
    joined = np.concatenate(months * 5_000)
    assert joined.shape == (118 * 5_000, 4, 5)
    (fragment,) = joined.fragments
    assert fragment.manifest.size == 20_000
    # a reference is 20 bytes, a slab of an irregular axis two or three integers
    assert joined.nbytes_virtual <= 20_000 * (20 + 24)
    assert joined[118 * 2_345 + 27 : 118 * 2_345 + 29].nchunks == 2


@pytest.mark.parametrize("coming", [True, False], ids=["coming defaults", "defaults of today"])
def test_plain_concat_keeps_satellites_without_multiplying_them(
    coming: bool, archives: Archives
) -> None:
    opened = parts(archives, "satellites_of_cf")
    native = [xr.load_dataset(path) for path in archives.files("satellites_of_cf")]
    with xr.set_options(use_new_combine_kwarg_defaults=coming), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        expected = xr.concat(native, "time")
        with no_reads():
            joined = xr.concat(opened, "time")
    assert_identical(joined, expected)
    mask = joined["mask"].variable.data
    assert mask.shape == ((4, 5) if coming else (9, 4, 5))
    assert mask.nbytes_virtual <= opened[0]["mask"].variable.data.nbytes_virtual * 3 + 1000


def test_the_same_field_is_compared_without_reading(archives: Archives) -> None:
    path = archives.files("satellites_of_cf")[0]
    first, again = (virtualds.open_virtual_dataset(path) for _ in range(2))
    with no_reads():
        merged = xr.merge([first, again], compat="equals", join="exact")
        assert first.identical(again)
    assert_identical(merged, xr.load_dataset(path))


def test_a_level_of_compression_is_no_difference(archives: Archives) -> None:
    levels = [part["t"].variable.data for part in parts(archives, "codecs_that_differ")]
    assert len(np.concatenate(levels[:2]).pipelines) == 1
    assert len(np.concatenate(levels[:3]).pipelines) == 2
    # twice there are two files that decode alike: zstd, and nothing at all, chunked or not
    assert len(np.concatenate(levels).pipelines) == len(levels) - 3
