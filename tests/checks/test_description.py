"""A set is described without reading its references."""

from __future__ import annotations

from pathlib import Path

import pytest
import xarray as xr
from large_sets import METADATA, archive, counted

import virtualds
from virtualds import checks
from virtualds.checks import describe

FILES, STEPS = 12, 2
"""Of a set of 24,000 references."""
TARGETS = {
    "refs.parquet": {"record_size": 1000},
    "refs.zarr": {"manifest": "parquet"},
}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A set whose references lie in records."""
    found = tmp_path / request.param
    one = archive(range(FILES), STEPS)["v"]
    coordinate = {"x": range(one.sizes["x"])}
    whole = xr.Dataset({"v": one, "w": one}, coordinate)
    whole.virtual.to_manifest(found, **TARGETS[request.param])
    return found


def test_references_are_counted_and_not_read(target: Path) -> None:
    with counted(target) as traffic:
        found = describe(target)
    assert found.references == 2 * FILES * STEPS * 1000 + 1
    assert found.sources is not None
    assert found.sources.number == FILES
    assert found.sources.nbytes is None  # nobody has seen these files
    assert found.sources.first == "s3://bucket/some/long/prefix/product_000000.nc"
    assert not any(path.startswith(("v/refs", "w/refs")) for path in traffic.read)
    records = {path for path in traffic.read if "__virtualds__" in path}
    assert len(records) <= 1  # the table of sources
    assert traffic.nbytes_read < 4 * METADATA


def test_files_that_are_known_in_two_ways_are_counted_once(tmp_path: Path) -> None:
    one = archive(range(FILES), STEPS)["v"]
    for name in ("refs.parquet", "refs.zarr"):
        small = one.isel(time=slice(0, 1), y=slice(0, 10), x=slice(0, 10)).rename(
            time="t1", y="y1", x="x1"
        )
        target = tmp_path / name
        xr.Dataset({"v": one, "small": small}).virtual.to_manifest(target)
        found = describe(target).sources
        assert found is not None
        assert found.number == FILES


def test_sizes_are_added_up_where_they_are_known(archive_files: list[Path], tmp_path: Path) -> None:
    vds = virtualds.open_virtual_mfdataset(archive_files, combine="nested", concat_dim="time")
    nbytes = sum(path.stat().st_size for path in archive_files)
    for name, choices in (("a.json", {}), ("a.zarr", {"manifest": "parquet"}), ("a.parquet", {})):
        vds.virtual.to_manifest(tmp_path / name, **choices)
        found = describe(tmp_path / name)
        assert found.sources == (2, nbytes, archive_files[0].as_uri())
        assert (found.snapshots is not None) == (name == "a.zarr")


def test_small_sets_of_other_tools_are_searched_for_sources(
    archive_files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "refs.parquet"
    virtualds.open_virtual_dataset(archive_files[0]).virtual.to_manifest(target)
    marker = target / ".zmetadata"
    text = marker.read_text()
    marker.write_text(text.replace('"virtualds"', '"somebody else"'))
    assert describe(target).sources == (1, None, archive_files[0].as_uri())
    monkeypatch.setattr(checks, "MAX_REFERENCES", 1)
    assert describe(target).sources is None
