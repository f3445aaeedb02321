"""VirtualiZarr reads the same references from DMR++ sidecars, where it reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases import CASES
from sidecars import write_sidecar

import virtualds

parsers = pytest.importorskip("virtualizarr.parsers", reason="it is the other side")
registry = pytest.importorskip("obspec_utils.registry", reason="VirtualiZarr reads through it")
stores = pytest.importorskip("obstore.store", reason="VirtualiZarr reads through it")

pytestmark = pytest.mark.filterwarnings("ignore")

ALIKE = ["contiguous", "padded_chunks", "unlimited", "partly_written", "cf_conventions"]


@pytest.mark.parametrize("name", ALIKE)
def test_both_find_the_same_chunks_in_a_sidecar(name: str, tmp_path: Path) -> None:
    CASES[name].write(tmp_path / "a.nc")
    sidecar = write_sidecar(tmp_path / "a.nc")
    local = registry.ObjectStoreRegistry({"file://": stores.LocalStore()})
    theirs = parsers.DMRPPParser()(f"file://{sidecar}", local)._group.arrays
    ours = virtualds.open_virtual_dataset(sidecar, loadable_variables=[], decode_cf=False)
    ours.virtual.to_manifest(tmp_path / "refs.json", inline_threshold=0)
    refs = json.loads((tmp_path / "refs.json").read_text())["refs"]
    compared = 0
    for variable, array in theirs.items():
        assert ours[variable].shape == array.shape
        # it has no chunk for a variable without axes
        for key, entry in array.manifest.dict().items():
            assert refs[f"{variable}/{key}"][1:] == [entry["offset"], entry["length"]]
            compared += 1
        if array.shape:
            places = {key: ref for key, ref in refs.items() if isinstance(ref, list)}
            ours_too = {key for key in places if key.rpartition("/")[0] == variable}
            assert len(ours_too) == len(array.manifest.dict())
    assert compared
