"""Catalogues that we write are opened by intake-esm and pystac, and lead to the same values."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from range_server import range_server

import virtualds

# they speak of their own affairs
pytestmark = pytest.mark.filterwarnings("ignore")

SETS = ["refs.json", "refs.parquet", "refs.zarr"]
SETS += ["refs.icechunk"] * bool(find_spec("icechunk"))
OURS = {"engine": "virtual"}


@pytest.fixture
def intake() -> Any:
    """The package intake, with the catalogues of intake-esm."""
    pytest.importorskip("intake_esm", reason="it opens the catalogues")
    return pytest.importorskip("intake", reason="it opens the catalogues")


@pytest.fixture
def pystac() -> Any:
    """The package pystac."""
    return pytest.importorskip("pystac", reason="it opens the collections")


@pytest.fixture
def folder(tmp_path: Path, archive_files: list[Path]) -> Path:
    """A folder with two files, and a set in each format with another year in ``/M1/tas``."""
    for path in archive_files:
        shutil.copy2(path, tmp_path)
    for name in SETS:
        for year, group in (("2001", None), ("2002", "/M1/tas")):
            found = virtualds.open_virtual_dataset(tmp_path / f"{year}.nc")
            found.virtual.to_manifest(tmp_path / name, group=group)
    return tmp_path


def native(path: Path) -> xr.Dataset:
    with xr.open_dataset(path) as found:
        return found.load()


def open_all(catalogue: Any, **how: Any) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield the keys of a catalogue of intake-esm, and what it opens."""
    yield from catalogue.to_dataset_dict(progressbar=False, **how).items()


def assert_same_values(found: xr.Dataset, expected: xr.Dataset) -> None:
    # a catalogue adds attributes of its own
    xr.testing.assert_equal(found.drop_attrs().load(), expected.drop_attrs())


# ---------------------------------------------------------------------- intake-esm


def test_intake_opens_every_group_of_every_format(folder: Path, intake: Any) -> None:
    virtualds.catalog(folder).to_esm(folder / "catalogue" / "sets.json")
    found = intake.open_esm_datastore(str(folder / "catalogue" / "sets.json"))
    assert len(found) == 2 * len(SETS)
    years = {"/": native(folder / "2001.nc"), "/M1/tas": native(folder / "2002.nc")}
    opened = dict(open_all(found, xarray_open_kwargs=OURS))
    assert set(opened) == {f"{name}.{group}" for name in SETS for group in years}
    for key, dataset in opened.items():
        assert_same_values(dataset, years["/M1/tas" if key.endswith("tas") else "/"])


def test_intake_opens_kerchunk_json_without_virtualds(folder: Path, intake: Any) -> None:
    virtualds.catalog(folder / "refs.json").to_esm(folder / "sets.json")
    found = intake.open_esm_datastore(str(folder / "sets.json")).search(group="/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtualds.VirtualBackendEntrypoint, "open_dataset", None)
        [(_, dataset)] = open_all(found)
        dataset.load()
    assert_same_values(dataset, native(folder / "2001.nc"))


def test_intake_searches_names_and_variables_and_joins_times(folder: Path, intake: Any) -> None:
    for model in ("M1", "M2"):
        (folder / model).mkdir()
        for year in (2001, 2002):
            shutil.copy2(folder / f"{year}.nc", folder / model / f"t_{year}.nc")
    virtualds.catalog(f"{folder}/{{model}}/t_*.nc").to_esm(folder / "files.json")
    found = intake.open_esm_datastore(str(folder / "files.json"))
    assert sorted(found.keys()) == ["M1./", "M2./"]
    assert found.esmcat.has_multiple_variable_assets
    assert len(found.search(variables="nothing")) == 0
    [(key, dataset)] = open_all(found.search(model="M2", variables="t"), xarray_open_kwargs=OURS)
    assert key == "M2./"
    expected = xr.concat([native(folder / f"{year}.nc") for year in (2001, 2002)], "time")
    assert_same_values(dataset, expected)


def test_intake_searches_the_names_of_groups(folder: Path, intake: Any) -> None:
    for model in ("M1", "M2"):
        for year in (2001, 2002):
            (folder / "archive" / model).mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / f"{year}.nc", folder / "archive" / model / f"t_{year}.nc")
    virtualds.sync(
        f"{folder}/archive/{{model}}/{{variable}}_*.nc",
        folder / "tree.zarr",
        concat_dim="time",
        tree="/{model}/{variable}",
        settle=0,
    )
    found = virtualds.catalog(folder / "tree.zarr", tree="/{model}/{variable}")
    found.to_esm(folder / "tree.json")
    catalogue = intake.open_esm_datastore(str(folder / "tree.json"))
    [(key, dataset)] = open_all(catalogue.search(model="M2"), xarray_open_kwargs=OURS)
    assert key == "M2.t./M2/t"
    expected = xr.concat([native(folder / f"{year}.nc") for year in (2001, 2002)], "time")
    assert_same_values(dataset, expected)


def test_intake_reads_the_table_as_csv(folder: Path, intake: Any) -> None:
    virtualds.catalog(folder).to_esm(folder / "sets.json", csv=True)
    found = intake.open_esm_datastore(
        str(folder / "sets.json"), columns_with_iterables=["variables"]
    )
    assert [list(names) for names in found.df["variables"]] == [["t"]] * 2 * len(SETS)
    [(_, dataset)] = open_all(
        found.search(name="refs.zarr", group="/M1/tas"), xarray_open_kwargs=OURS
    )
    assert_same_values(dataset, native(folder / "2002.nc"))


def test_intake_opens_sets_and_files_of_a_server(folder: Path, intake: Any) -> None:
    served = folder / "served"
    served.mkdir()
    for year in (2001, 2002):
        shutil.copy2(folder / f"{year}.nc", served)
    with range_server(served) as (url, _):
        for name in SETS[:3]:
            remote = virtualds.open_virtual_dataset(f"{url}/2001.nc")
            remote.virtual.to_manifest(served / name, group="/below")
            remote.virtual.to_manifest(served / name, mode="a")
        places = [f"{url}/{name}" for name in (*SETS[:3], "2001.nc")]
        virtualds.catalog(places).to_esm(folder / "remote.json")
        found = intake.open_esm_datastore(str(folder / "remote.json"))
        opened = dict(open_all(found, xarray_open_kwargs=OURS))
        assert len(opened) == 7
        for dataset in opened.values():
            assert_same_values(dataset, native(folder / "2001.nc"))


# ---------------------------------------------------------------------- the page

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "catalogues.md"
BLOCK = re.compile(r"^```python(?: \w+)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_shows_what_runs(
    folder: Path, intake: Any, pystac: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    code = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert sum("import intake" in block or "import pystac" in block for block in code) == 2
    exec(compile("\n".join(code), str(PAGE), "exec"), {"__name__": "__main__"})


# ---------------------------------------------------------------------- STAC


def test_pystac_reads_a_collection_whose_items_open(folder: Path, pystac: Any) -> None:
    virtualds.catalog(folder).to_stac(folder / "stac", license="CC-BY-4.0")
    collection = pystac.Collection.from_file(str(folder / "stac" / "collection.json"))
    items = list(collection.get_items())
    assert len(items) == 2 * len(SETS)
    for item in items:
        assert item.get_parent() is collection
        assert item.get_root() is collection
        asset = item.assets["data"]
        year = 2002 if "M1" in item.id else 2001
        assert item.common_metadata.start_datetime.year == year
        dataset = xr.open_dataset(asset.href, **asset.extra_fields["xarray:open_kwargs"])
        xr.testing.assert_identical(dataset.load(), native(folder / f"{year}.nc"))
        cube = item.ext.cube
        assert set(cube.dimensions) == set(dataset.sizes)
        assert cube.dimensions["time"].dim_type == "temporal"
        assert cube.dimensions["lat"].extent == [-75, 75]
        assert cube.variables["t"].dimensions == ["time", "lat", "lon"]
    [interval] = collection.extent.temporal.intervals
    assert [moment.year for moment in interval] == [2001, 2002]


def test_the_documents_fit_the_schemas_of_stac(folder: Path, pystac: Any) -> None:
    validation = pytest.importorskip("pystac.validation", reason="it has the schemas")
    pytest.importorskip("jsonschema", reason="pystac validates with it")
    virtualds.catalog(folder).to_stac(folder / "stac")
    validator = validation.JsonSchemaSTACValidator()
    kinds = {"Feature": pystac.STACObjectType.ITEM, "Collection": pystac.STACObjectType.COLLECTION}
    paths = sorted((folder / "stac").rglob("*.json"))
    assert len(paths) == 2 * len(SETS) + 1
    for path in paths:
        document = json.loads(path.read_text())
        # without the extensions, whose schemas are on the web
        kind = kinds[document["type"]]
        validator.validate_core(document, kind, document["stac_version"])
        with pytest.raises(pystac.STACValidationError):
            validator.validate_core({**document, "id": 7}, kind, document["stac_version"])
