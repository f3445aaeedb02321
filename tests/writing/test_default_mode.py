"""Every way of writing replaces an existing set only on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from click.testing import CliRunner
from products import looped

import virtualds
from virtualds_cli.program import main


def dataset(path: Path, target: Path, **how: Any) -> None:
    virtualds.open_virtual_dataset(path).virtual.to_manifest(target, **how)


def tree(path: Path, target: Path, **how: Any) -> None:
    virtualds.open_virtual_datatree(path).virtual.to_manifest(target, **how)


def copy(path: Path, target: Path, **how: Any) -> None:
    virtualds.open_virtual_dataset(path).virtual.materialize(target, **how)


def copy_of_tree(path: Path, target: Path, **how: Any) -> None:
    virtualds.open_virtual_datatree(path).virtual.materialize(target, **how)


def build(path: Path, target: Path, **how: Any) -> None:
    files = [str(path)]
    virtualds.open_virtual_mfdataset(files, combine="nested", concat_dim="time", to=target, **how)


def program(command: str, *option: str) -> Callable[..., None]:
    def written(path: Path, target: Path, mode: str | None = None) -> None:
        given = [command, str(path), *option, str(target), *(["--mode", mode] if mode else [])]
        found = CliRunner().invoke(main, given)
        if found.exit_code:
            # as the program ends, with the message alone
            assert isinstance(found.exception, SystemExit)
            raise FileExistsError(found.output)

    return written


WAYS: dict[str, tuple[Callable[..., None], str]] = {
    "kerchunk JSON": (dataset, "refs.json"),
    "kerchunk Parquet": (dataset, "refs.parquet"),
    "zarr-v3": (dataset, "refs.zarr"),
    "tree": (tree, "refs.zarr"),
    "convert to JSON": (virtualds.convert, "refs.json"),
    "convert to zarr-v3": (virtualds.convert, "refs.zarr"),
    "materialize": (copy, "copy.zarr"),
    "materialize a tree": (copy_of_tree, "copy.zarr"),
    "to=": (build, "refs.zarr"),
    "virtualds scan": (program("scan", "-o"), "refs.json"),
    "virtualds convert": (program("convert"), "refs.zarr"),
}


def content(path: Path) -> dict[str, bytes]:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {str(file): file.read_bytes() for file in files if file.is_file()}


@looped("way", WAYS)
def test_a_set_is_created_and_replaced_only_on_request(
    way: str, archive_files: list[Path], tmp_path: Path
) -> None:
    write, name = WAYS[way]
    target = tmp_path / name
    write(archive_files[0], target)
    before = content(target)
    with pytest.raises(FileExistsError, match=r"(?s)exists already.*(mode='w'|--mode w)"):
        write(archive_files[1], target)
    assert content(target) == before
    write(archive_files[1], target, mode="w")
    with xr.open_dataset(archive_files[1]) as expected:
        found = xr.open_dataset(target, engine="virtual")
        xr.testing.assert_equal(found.load(), expected.load())


@pytest.mark.parametrize("command", ["scan", "convert"])
def test_the_program_says_what_it_does_by_default(command: str) -> None:
    told = " ".join(CliRunner().invoke(main, [command, "--help"]).output.split())
    assert "Create the target (w-), or create or replace it (w). [default: w-]" in told
