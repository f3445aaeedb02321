"""What the names of a pattern match becomes coordinates, groups, and choices of the newest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner

import virtualds
from virtualds_cli.program import main

MODELS, MEMBERS, VARIABLES, YEARS = ("M1", "M2"), ("r1i1", "r2i1"), ("pr", "tas"), (1990, 1991)
PATTERN = "{model}/historical/{member}/{variable}/{version}/*_{years}.nc"


def write_cmip(root: Path, *versions: str) -> None:
    """An archive laid out as CMIP6 is; each version has values of its own."""
    for n, version in enumerate(versions):
        for model in MODELS:
            for m, member in enumerate(MEMBERS):
                for variable in VARIABLES:
                    for year in YEARS:
                        time = pd.date_range(f"{year}-01-01", periods=12, freq="MS")
                        values = np.arange(36.0).reshape(12, 3) + 100 * m + 1000 * n + year
                        folder = root / model / "historical" / member / variable / version
                        folder.mkdir(parents=True, exist_ok=True)
                        name = f"{variable}_Amon_{model}_{member}_{year}01-{year}12.nc"
                        xr.Dataset(
                            {variable: (("time", "lat"), values)},
                            {"time": time, "lat": [1.0, 2.0, 3.0]},
                        ).to_netcdf(folder / name)


def open_natively(root: Path, model: str, variable: str, version: str) -> xr.Dataset:
    """What xarray makes of the files that count."""
    members = [
        xr.open_mfdataset(str(root / model / "historical" / member / variable / version / "*.nc"))
        for member in MEMBERS
    ]
    dim = pd.Index(MEMBERS, name="member")
    return xr.concat(members, dim, data_vars="all", coords="minimal", compat="override").load()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cmip")
    write_cmip(root, "v9", "v10")
    return root


def test_a_name_becomes_the_coordinate_of_a_joined_dimension(archive: Path) -> None:
    pattern = f"{archive}/M1/historical/{{member}}/tas/v9/*.nc"
    found = virtualds.open_virtual_mfdataset(
        pattern, combine="nested", concat_dim=["member", "time"]
    )
    wanted = open_natively(archive, "M1", "tas", "v9")
    xr.testing.assert_identical(found.virtual.load(), wanted)


def test_the_newest_is_chosen_by_natural_order(archive: Path) -> None:
    pattern = f"{archive}/M1/historical/{{member}}/tas/{{version}}/*_{{years}}.nc"
    found = virtualds.open_virtual_mfdataset(
        pattern, combine="nested", concat_dim=["member", "time"], newest="version"
    )
    wanted = open_natively(archive, "M1", "tas", "v10")
    xr.testing.assert_identical(found.virtual.load(), wanted)
    # of the others nothing is opened
    assert found.virtual.report.files == len(MEMBERS) * len(YEARS)


def test_files_that_differ_in_more_than_the_version_are_all_used(archive: Path) -> None:
    pattern = f"{archive}/M1/historical/{{member}}/tas/{{version}}/*.nc"
    found = virtualds.open_virtual_mfdataset(
        pattern, combine="nested", concat_dim=["member", "time"], newest="version"
    )
    xr.testing.assert_identical(found.virtual.load(), open_natively(archive, "M1", "tas", "v10"))


@pytest.mark.parametrize(
    ("form", "older", "newer"),
    [
        ("%d%m%Y", "31012000", "01022000"),
        ("d", "-10", "-2"),
        ("%d-%b-%y", "05-Jan-20", "01-Feb-20"),
    ],
)
def test_the_newest_date_or_number_is_chosen(
    tmp_path: Path, form: str, older: str, newer: str
) -> None:
    for value, version in enumerate([older, newer]):
        folder = tmp_path / version
        folder.mkdir()
        xr.Dataset({"t": ("time", [float(value)])}, {"time": [0]}).to_netcdf(folder / "a.nc")
    found = virtualds.open_virtual_mfdataset(
        f"{tmp_path}/{{version:{form}}}/*.nc", combine="nested", concat_dim="time", newest="version"
    )
    assert found["t"].values.tolist() == [1.0]


def test_names_become_groups_of_a_tree(archive: Path) -> None:
    found = virtualds.open_virtual_mfdatatree(
        f"{archive}/{PATTERN}",
        concat_dim=["member", "time"],
        newest="version",
        tree="/{model}/{variable}",
    )
    assert {node.path for node in found.leaves} == {f"/{m}/{v}" for m in MODELS for v in VARIABLES}
    for model in MODELS:
        for variable in VARIABLES:
            wanted = open_natively(archive, model, variable, "v10")
            got = found[f"/{model}/{variable}"].to_dataset().virtual.load()
            xr.testing.assert_identical(got, wanted)


def test_a_date_in_the_names_becomes_a_time(tmp_path: Path) -> None:
    for day in ("20010201", "20010131"):
        xr.Dataset({"t": ("x", [float(day)])}).to_netcdf(tmp_path / f"sst_{day}.nc")
    found = virtualds.open_virtual_mfdataset(
        f"{tmp_path}/sst_{{time:%Y%m%d}}.nc", combine="nested", concat_dim="time"
    )
    assert found["time"].dt.strftime("%Y%m%d").values.tolist() == ["20010131", "20010201"]
    assert found["t"].values[:, 0].tolist() == [20010131.0, 20010201.0]


def test_a_coordinate_of_the_files_counts_more_than_a_name(tmp_path: Path) -> None:
    for year in (2002, 2001):
        time = pd.date_range(f"{year}-03-01", periods=2)
        xr.Dataset({"t": ("time", [1.0, 2.0])}, {"time": time}).to_netcdf(tmp_path / f"{year}.nc")
    found = virtualds.open_virtual_mfdataset(
        f"{tmp_path}/{{time:%Y}}.nc", combine="nested", concat_dim="time"
    )
    days = ["2001-03-01", "2001-03-02", "2002-03-01", "2002-03-02"]
    assert found["time"].dt.strftime("%Y-%m-%d").values.tolist() == days


def test_what_differs_in_a_grid_with_gaps_can_be_kept_for_each_row(tmp_path: Path) -> None:
    for number, (member, year) in enumerate([("r1", 2001), ("r1", 2002), ("r2", 2001)]):
        stored = {"t": ("time", [1.0]), "b": (("time", "nv"), [[float(number)] * 2])}
        time = {"time": ("time", [year], {"bounds": "b"})}
        xr.Dataset(stored, time).to_netcdf(tmp_path / f"{member}_{year}.nc")

    def combine(**how: str) -> xr.Dataset:
        dims = ["member", "time"]
        return virtualds.open_virtual_mfdataset(
            f"{tmp_path}/{{member}}_*.nc", combine="nested", concat_dim=dims, **how
        )

    with pytest.raises(virtualds.CombineError, match="to keep both, pass data_vars='all'"):
        combine()
    both = combine(data_vars="all").virtual.load()["b"]
    assert np.nan_to_num(both[..., 0], nan=-1).tolist() == [[0.0, 1.0], [2.0, -1.0]]
    assert combine(compat="override").virtual.load()["b"][:, 0].values.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("dims", [(), ("time",)])
def test_so_does_one_that_is_a_scalar_or_is_not_loaded(
    tmp_path: Path, dims: tuple[str, ...]
) -> None:
    for year in (2002, 2001):
        values = np.full([1] * len(dims), f"{year}-03-15", "datetime64[ns]")
        stored = xr.Dataset({"t": (dims, values.astype(float))}, {"time": (dims, values)})
        stored.to_netcdf(tmp_path / f"{year}.nc")
    found = virtualds.open_virtual_mfdataset(
        f"{tmp_path}/{{time:%Y}}.nc", combine="nested", concat_dim="time", loadable_variables=[]
    )
    days = found.virtual.load()["time"].dt.strftime("%Y-%m-%d").values.tolist()
    assert days == ["2001-03-15", "2002-03-15"]


def test_groups_of_a_tree_keep_a_coordinate_of_their_own(tmp_path: Path) -> None:
    for year in (2002, 2001):
        time = pd.to_datetime([f"{year}-03-15"])
        group = xr.Dataset({"t": ("time", [1.0])}, {"time": time})
        xr.DataTree.from_dict({"/v": group}).to_netcdf(tmp_path / f"{year}.nc")
    found = virtualds.open_virtual_mfdatatree(f"{tmp_path}/{{time:%Y}}.nc", concat_dim="time")
    days = found["/v"]["time"].dt.strftime("%Y-%m-%d").values.tolist()
    assert days == ["2001-03-15", "2002-03-15"]


def test_a_file_named_with_braces_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "{a}.nc"
    xr.Dataset({"t": ("time", [1.0])}, {"time": [0]}).to_netcdf(path)
    assert virtualds.open_virtual_mfdataset(str(path))["t"].values.tolist() == [1.0]


def test_a_name_that_the_pattern_lacks_is_an_error(archive: Path) -> None:
    with pytest.raises(ValueError, match=r"newest: the pattern has no \{revision\}, but \{model\}"):
        virtualds.open_virtual_mfdataset(f"{archive}/{PATTERN}", newest="revision")
    with pytest.raises(ValueError, match=r"tree='/\{who\}': the pattern has no \{who\}"):
        virtualds.open_virtual_mfdatatree(f"{archive}/{PATTERN}", concat_dim="time", tree="/{who}")


def test_a_tree_of_files_has_one_report_and_the_attributes_of_its_files(archive: Path) -> None:
    seen: list[int] = []
    first = next((archive / "M1").rglob("tas_*_r2i1_199001*.nc"))
    found = virtualds.open_virtual_mfdatatree(
        f"{archive}/{PATTERN}",
        concat_dim=["member", "time"],
        newest="version",
        tree="/all/{model}/{variable}",
        attrs_file=next((archive / "M1/historical/r2i1/tas/v10").glob("*_199001*.nc")),
        progress=lambda progress: seen.append(progress.total),
    )
    count = len(MODELS) * len(MEMBERS) * len(VARIABLES) * len(YEARS)
    assert set(seen) == {count}
    assert found.virtual.report.files == found.virtual.report.opened == count
    assert first.exists()
    with pytest.raises(ValueError, match="is not one of"):
        virtualds.open_virtual_mfdatatree(
            f"{archive}/{PATTERN}",
            concat_dim=["member", "time"],
            tree="/{model}/{variable}",
            newest="version",
            attrs_file=first.with_name("other.nc"),
        )


def test_a_group_of_a_tree_that_cannot_be_opened_is_left_out(archive: Path, tmp_path: Path) -> None:
    write_cmip(tmp_path, "v1")
    for path in (tmp_path / "M2").rglob("pr_*.nc"):
        path.write_bytes(b"broken")
    found = virtualds.open_virtual_mfdatatree(
        f"{tmp_path}/{PATTERN}",
        concat_dim=["member", "time"],
        tree="/{model}/{variable}",
        on_error="collect",
    )
    assert {node.path for node in found.leaves} == {"/M1/pr", "/M1/tas", "/M2/tas"}
    assert len(found.virtual.report.left_out) == len(MEMBERS) * len(YEARS)
    with pytest.raises(virtualds.FormatError, match="M2"):
        virtualds.open_virtual_mfdatatree(
            f"{tmp_path}/{PATTERN}", concat_dim=["member", "time"], tree="/{model}/{variable}"
        )


@pytest.mark.parametrize("parallel", [None, 2])
def test_many_files_of_a_group_are_joined_as_they_are_stored(
    tmp_path: Path, parallel: int | None
) -> None:
    for name in ("a", "b"):
        for year in range(2000, 2008):
            time = pd.date_range(f"{year}-01-01", periods=2)
            data = np.arange(6.0).reshape(2, 3) + year
            stored = xr.Dataset({name: (("time", "x"), data)}, {"time": time})
            stored.to_netcdf(tmp_path / f"{year}_{name}.nc")
    found = virtualds.open_virtual_mfdatatree(
        f"{tmp_path}/*_{{name}}.nc", concat_dim="time", tree="{name}", parallel=parallel
    )
    for name in ("a", "b"):
        wanted = xr.open_mfdataset(f"{tmp_path}/*_{name}.nc").load()
        xr.testing.assert_identical(found[name].to_dataset().virtual.load(), wanted)


@pytest.mark.parametrize("years", [1, 2])
def test_groups_of_few_files_are_joined_one_by_one(tmp_path: Path, years: int) -> None:
    for name in ("a", "b", "c"):
        for year in range(2000, 2000 + years):
            stored = xr.Dataset({name: ("time", [1.0 * year])}, {"time": [year]})
            stored.to_netcdf(tmp_path / f"{year}_{name}.nc")
    found = virtualds.open_virtual_mfdatatree(
        f"{tmp_path}/*_{{name}}.nc", concat_dim="time", tree="/{name}"
    )
    assert [node.path for node in found.leaves] == ["/a", "/b", "/c"]
    for name in ("a", "b", "c"):
        wanted = xr.open_mfdataset(f"{tmp_path}/*_{name}.nc").load()
        xr.testing.assert_identical(found[name].to_dataset().virtual.load(), wanted)


def test_groups_of_files_lie_below_the_path_also_at_the_root(tmp_path: Path) -> None:
    for name in ("a", "b"):
        below = xr.Dataset({"t": ("time", [1.0])}, {"time": [0]})
        xr.DataTree.from_dict({"/v": below, "/v/w": below}).to_netcdf(tmp_path / f"{name}.nc")
    found = virtualds.open_virtual_mfdatatree(f"{tmp_path}/{{x}}.nc", concat_dim="x", tree="/")
    assert [node.path for node in found.subtree] == ["/", "/v", "/v/w"]
    assert found["/v/w"].sizes["x"] == 2


def test_a_path_of_groups_has_no_wildcards(archive: Path) -> None:
    for tree in ("/{model}/*", "/{model}/{a,b}"):
        with pytest.raises(ValueError, match="a group path consists of names in braces"):
            virtualds.open_virtual_mfdatatree(f"{archive}/{PATTERN}", concat_dim="time", tree=tree)


def test_files_that_do_not_combine_name_what_varies_in_their_paths(archive: Path) -> None:
    pattern = f"{archive}/{{model}}/historical/*/tas/{{version}}/*.nc"
    with pytest.raises(virtualds.CombineError) as caught:
        virtualds.open_virtual_mfdataset(pattern, combine="nested", concat_dim="time")
    [note] = [note for note in caught.value.__notes__ if "vary" in note]
    assert "{model} is M1, M2; {version} is v10, v9" in note
    assert "newest='version'" in note


def test_a_diagnosis_reads_the_names_too(archive: Path) -> None:
    found = virtualds.diagnose(
        f"{archive}/M1/historical/{{member}}/tas/{{version}}/*_{{years}}.nc",
        combine="nested",
        concat_dim=["member", "time"],
        newest="version",
    )
    assert (found.files, found.joined, found.blocks) == (4, ("member", "time"), False)


def test_xarray_opens_the_newest_files_of_a_pattern(archive: Path) -> None:
    pattern = f"{archive}/M1/historical/{{member}}/tas/{{version}}/*_{{years}}.nc"
    found = xr.open_dataset(
        pattern, engine="virtual", concat_dim=["member", "time"], newest="version"
    )
    xr.testing.assert_identical(found.load(), open_natively(archive, "M1", "tas", "v10"))


def test_the_command_line_takes_names(archive: Path, tmp_path: Path) -> None:
    pattern, target = f"{archive}/{PATTERN}", tmp_path / "refs.zarr"
    dims = ["--concat-dim", "member", "--concat-dim", "time", "--newest", "version"]
    done = CliRunner().invoke(
        main, ["scan", pattern, "-o", str(target), "--tree", "/{model}/{variable}", *dims, "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["variables"] == [
        f"/{m}/{v}/{v}" for m in MODELS for v in VARIABLES
    ]
    with xr.open_datatree(target, engine="virtual") as tree:
        got = tree["/M2/tas"].to_dataset().load()
    xr.testing.assert_identical(got, open_natively(archive, "M2", "tas", "v10"))
    one = f"{archive}/M1/historical/{{member}}/tas/{{version}}/*_{{years}}.nc"
    found = CliRunner().invoke(main, ["diagnose", one, *dims, "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.output)["files"] == 4
