"""The demo does what it reports, and names missing packages."""

import json
import sys
from pathlib import Path

import pytest
import xarray as xr
from click.testing import CliRunner

from virtualds_cli import demo
from virtualds_cli.program import main


def test_the_demo_reports_true_numbers(tmp_path: Path) -> None:
    said: list[str] = []
    picture = demo.run_demo(tmp_path, print_line=said.append)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "refs.json").read_text())["version"] == 1
    assert any("identical" in line for line in said)
    # and the command runs it again in its folder
    again = CliRunner().invoke(main, ["demo", "--folder", str(tmp_path)])
    assert again.exit_code == 0, again.output
    assert "identical" in again.output and f"The picture: {picture}\n" in again.output


def test_archive_is_awkward(tmp_path: Path) -> None:
    paths = demo.write_archive(tmp_path)
    variables = []
    for path in paths:
        with xr.open_dataset(path, engine="netcdf4") as ds:
            variables.append(ds["t2m"].variable)
    assert {v.sizes["time"] for v in variables} == {28, 30, 31}
    assert {v.encoding["complevel"] for v in variables} == {4, 5}
    assert {v.encoding["scale_factor"] for v in variables} == {0.01}


@pytest.mark.parametrize("package", ["netCDF4", "matplotlib.figure"])
def test_a_missing_package_is_named_with_what_installs_it(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"pip install matplotlib netCDF4$"):
        if package == "netCDF4":
            demo.write_archive(tmp_path)
        else:
            demo.draw_maps(xr.Dataset(), tmp_path / "picture.png")
