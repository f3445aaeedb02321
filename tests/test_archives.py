"""Archives: whatever xarray combines natively, it combines virtually, to the same bits."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import xarray as xr
from archives import KINDS, Archives
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


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_combining_and_opening_commute(name: str, transform: str, archives: Archives) -> None:
    kind, change = KINDS[name], TRANSFORMS[transform]
    combined = kind.combine(parts(archives, name))
    assert_identical(change(combined), change(archives.native(name)))


@pytest.mark.parametrize("name", KINDS)
def test_combining_reads_no_byte_and_stays_virtual(name: str, archives: Archives) -> None:
    opened = parts(archives, name)
    with nullcontext() if KINDS[name].reads else no_reads():
        combined = KINDS[name].combine(opened)
    for variable in combined.data_vars:
        was = [ds[variable].variable for ds in opened if variable in ds]
        if any(_is_virtual(v) for v in was):
            assert _is_virtual(combined[variable].variable), variable


def _is_virtual(variable: Any) -> bool:
    return isinstance(variable._data, virtualds.ManifestArray)
