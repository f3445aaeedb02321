"""Signed urls are not given away with a reference set."""

import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner, Result
from range_server import RangeHandler, running

import virtualds
from virtualds import FormatError, UnsupportedError
from virtualds.combine import batch_job as target_module
from virtualds_cli.program import main

pytest.importorskip("aiohttp")
VALUES = np.arange(5000, dtype="i4")
TARGETS = ["refs.json", "refs.parquet", "refs.zarr"]


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[str]:
    """The url of a file, as somebody may have got it who may not see others."""
    folder = tmp_path / "served"
    folder.mkdir()
    xr.Dataset({"v": ("x", VALUES)}).to_netcdf(folder / "a.nc", engine="netcdf4")

    def handler(*given: object) -> object:
        return RangeHandler(*given, directory=str(folder))  # type: ignore[arg-type]

    with running(handler, ranges=[]) as server:
        yield f"{server.url}/a.nc?X-Amz-Signature=hunter2&X-Amz-Expires=60"


@pytest.mark.parametrize("target", TARGETS)
def test_a_signed_url_is_not_written_unless_asked(target: str, signed: str, tmp_path: Path) -> None:
    opened = virtualds.open_virtual_dataset(signed)
    with pytest.raises(UnsupportedError, match="keep_query=True") as caught:
        opened.virtual.to_manifest(tmp_path / target, mode="w")
    assert "hunter2" not in str(caught.value)
    assert not (tmp_path / target).exists()
    opened.virtual.to_manifest(tmp_path / target, mode="w", keep_query=True)
    again = virtualds.open_virtual_dataset(tmp_path / target)
    np.testing.assert_array_equal(again["v"].to_numpy(), VALUES)


def test_a_set_with_signed_urls_is_not_converted_unless_asked(signed: str, tmp_path: Path) -> None:
    opened = virtualds.open_virtual_dataset(signed)
    opened.virtual.to_manifest(tmp_path / "refs.parquet", mode="w", keep_query=True)
    source, target = tmp_path / "refs.parquet", tmp_path / "refs.json"
    with pytest.raises(UnsupportedError, match="keep_query=True"):
        virtualds.convert(source, target)
    virtualds.convert(source, target, keep_query=True)


@pytest.mark.parametrize("least", [1, 4096])
def test_a_build_into_a_set_writes_no_signed_url(
    least: int, signed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a worker that relieves itself of its references, nor the commit."""
    monkeypatch.setattr(target_module, "MIN_TABLE_REFERENCES", least)
    target = tmp_path / "refs.zarr"
    with pytest.raises(UnsupportedError, match="keep_query=True") as caught:
        virtualds.open_virtual_mfdataset([signed], combine="nested", concat_dim="x", to=target)
    assert "hunter2" not in str(caught.value)
    assert not target.exists()
    kept = virtualds.open_virtual_mfdataset(
        [signed], combine="nested", concat_dim="x", to=target, keep_query=True
    )
    np.testing.assert_array_equal(kept["v"].to_numpy(), VALUES)


def test_an_append_checks_only_new_urls(signed: str, tmp_path: Path) -> None:
    """What lies in a set was judged, or asked for, when it was written there."""
    target, served = tmp_path / "refs.zarr", tmp_path / "served"
    opened = virtualds.open_virtual_dataset(signed)
    opened.virtual.to_manifest(target, keep_query=True, manifest="parquet")
    for name in ("b.nc", "c.nc"):
        shutil.copy(served / "a.nc", served / name)
    virtualds.open_virtual_dataset(served / "b.nc").virtual.to_manifest(target, append_dim="x")
    other = virtualds.open_virtual_dataset(signed.replace("a.nc", "c.nc"))
    with pytest.raises(UnsupportedError, match="keep_query=True"):
        other.virtual.to_manifest(target, append_dim="x")
    again = virtualds.open_virtual_dataset(target)
    np.testing.assert_array_equal(again["v"].to_numpy(), np.tile(VALUES, 2))


@pytest.mark.parametrize("layout", ["content", "chunks"])
def test_a_copy_holds_no_signature(layout: str, signed: str, tmp_path: Path) -> None:
    target = tmp_path / "own.zarr"
    virtualds.open_virtual_dataset(signed).virtual.materialize(target, layout=layout)
    files = [path for path in target.rglob("*") if path.is_file()]
    assert files
    assert not any(b"hunter2" in path.read_bytes() for path in files)


def test_the_command_line_writes_signed_urls_if_asked(signed: str, tmp_path: Path) -> None:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(main, [*map(str, arguments)])

    refs, copy = tmp_path / "refs.json", tmp_path / "copy.parquet"
    for command in (
        ["scan", signed, "-o", refs],
        ["append", tmp_path / "begun.json", signed, "--dim", "x"],
        ["convert", refs, copy],
    ):
        refused = run(*command)
        assert refused.exit_code and "--keep-query" in refused.output, refused.output
        assert "hunter2" not in refused.output
        asked = run(*command, "--keep-query")
        assert not asked.exit_code, asked.output
    np.testing.assert_array_equal(virtualds.open_virtual_dataset(copy)["v"].to_numpy(), VALUES)


def test_signatures_are_not_in_what_objects_show(signed: str) -> None:
    opened = virtualds.open_virtual_dataset(signed)
    manifest = opened["v"].variable._data
    assert "hunter2" not in repr(opened) + repr(manifest) + opened._repr_html_()


def test_reports_show_no_signature(signed: str, tmp_path: Path) -> None:
    gone = signed.replace("a.nc", "gone.nc")
    how = {"combine": "nested", "concat_dim": "x"}
    with pytest.warns(UserWarning, match="could not be opened") as warned:
        opened = virtualds.open_virtual_mfdataset([signed, gone], on_error="skip", **how)
    report, found = opened.virtual.report, virtualds.diagnose([signed, gone])
    (tmp_path / "served/a.nc").unlink()
    verified = opened.virtual.verify()
    assert not verified.ok
    shown = [str(report), repr(report), repr(found), found._repr_html_()]
    shown += [str(verified), verified._repr_html_(), *(str(w.message) for w in warned)]
    assert not any("hunter2" in text for text in shown), shown


FAILING: dict[str, Callable[[str], object]] = {
    "no such file": lambda url: virtualds.open_virtual_dataset(url.replace("a.nc", "gone.nc")),
    "no such group": lambda url: virtualds.open_virtual_dataset(url, group="none"),
    "no such file of xarray": lambda url: xr.open_dataset(
        url.replace("a.nc", "gone.nc"), engine="virtual"
    ),
    "one of many is missing": lambda url: virtualds.open_virtual_mfdataset(
        [url, url.replace("a.nc", "gone.nc")], combine="nested", concat_dim="x"
    ),
    "they do not combine": lambda url: virtualds.open_virtual_mfdataset(
        [url, url], combine="nested", concat_dim="x", preprocess=_of_many_shapes
    ),
}


def _of_many_shapes(ds: xr.Dataset) -> xr.Dataset:
    return ds.expand_dims("x2").assign_coords(y=("x2", np.random.default_rng().random(1)))


@pytest.mark.parametrize("which", FAILING)
def test_errors_show_no_signature(which: str, signed: str) -> None:
    with pytest.raises(Exception, match=r"\w") as caught:
        FAILING[which](signed)
    shown = "".join(traceback.format_exception(caught.value, limit=0))
    assert "hunter2" not in shown, shown


OPENERS: dict[str, Callable[..., object]] = {
    "as virtual arrays": virtualds.open_virtual_dataset,
    "by xarray": lambda url, **how: xr.open_dataset(url, engine="virtual", **how),
}


@pytest.mark.parametrize("opener", OPENERS)
def test_errors_of_undecodable_variables_show_no_signature(
    opener: str, signed: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "served/a.nc", "a") as file:
        file["v"].attrs["units"] = "days since nonsense"
    with pytest.warns(UserWarning, match=r"a\.nc\?.*: could not be read") as warned:
        OPENERS[opener](signed, on_error="skip")
    with pytest.raises(FormatError, match="'v'") as caught:
        OPENERS[opener](signed)
    shown = [*traceback.format_exception(caught.value, limit=0), *(str(w.message) for w in warned)]
    assert not any("hunter2" in text for text in shown), shown


def test_a_password_of_a_url_is_not_written_unless_asked(signed: str, tmp_path: Path) -> None:
    plain = signed.partition("?")[0].replace("http://", "http://me:hunter2@")
    opened = virtualds.open_virtual_dataset(plain)
    with pytest.raises(UnsupportedError, match="keep_query=True") as caught:
        opened.virtual.to_manifest(tmp_path / "refs.json")
    assert "hunter2" not in str(caught.value) + repr(opened.virtual.arrays)
    opened.virtual.to_manifest(tmp_path / "refs.json", keep_query=True)
