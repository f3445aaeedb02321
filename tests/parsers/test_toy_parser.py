"""A new source format is one file and one line: all that a set can do, a file of it can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_parser
import xarray as xr

import virtualds
from virtualds.arrays.parser import NativeReader, ReadNative, make_stored_reader
from virtualds.datasets.location import FORMATS, PLUGIN_GROUP, load_plugins
from virtualds.formats import Format

LINE = "toy = toy_parser:parser"
HOLDING = [form for form in FORMATS if form.name != "cfa"]
"""The formats that refer to any file; aggregation files name variables of netCDF files."""
VALUES = np.linspace(-1, 1, 12, dtype="<f4").reshape(4, 3)


@pytest.fixture(autouse=True)
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The parser is brought by a package, whose entry point is one line."""
    folder = tmp_path / "site" / "toy_parser-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-parser\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{PLUGIN_GROUP}]\n{LINE}\n")
    monkeypatch.syspath_prepend(folder.parent)
    load_plugins.cache_clear()
    yield
    load_plugins.cache_clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.toy"
    path.write_bytes(b"TOY1" + (3).to_bytes(4, "little") + VALUES.tobytes())
    return path


def expected() -> xr.Dataset:
    return xr.Dataset({"t": (("y", "x"), VALUES, {"units": "K"})})


def opened(path: Path) -> xr.Dataset:
    return virtualds.open_virtual_dataset(path, loadable_variables=[])


def test_a_file_is_scanned_by_its_bytes_and_by_the_name_of_the_parser(file: Path) -> None:
    assert opened(file).virtual.nchunks == 4
    xr.testing.assert_identical(xr.load_dataset(file, engine="virtual"), expected())
    named = xr.load_dataset(file, engine="virtual", parser="toy")
    xr.testing.assert_identical(named, expected())


@pytest.mark.parametrize("form", HOLDING, ids=lambda form: form.name)
def test_a_file_is_written_in_every_format_read_and_verified(
    form: Format, file: Path, tmp_path: Path
) -> None:
    if form.library is not None:
        pytest.importorskip(form.library)
    target = tmp_path / f"refs{form.suffixes[0]}"
    opened(file).virtual.to_manifest(target)
    xr.testing.assert_identical(xr.load_dataset(target, engine="virtual"), expected())
    again = opened(target)
    assert again.virtual.nchunks == 4
    found = again.virtual.verify(None, "native")
    assert found.ok, found
    assert [name.split()[0] for name in found.compared] == ["numpy"]
    assert sum(found.compared.values()) == found.references == 4


@pytest.mark.parametrize("form", HOLDING, ids=lambda form: form.name)
def test_a_file_is_converted_to_every_format(form: Format, file: Path, tmp_path: Path) -> None:
    if form.library is not None:
        pytest.importorskip(form.library)
    target = tmp_path / f"refs{form.suffixes[0]}"
    virtualds.convert(file, target)
    xr.testing.assert_identical(xr.load_dataset(target, engine="virtual"), expected())


def test_an_aggregation_file_does_not_refer_to_it(file: Path, tmp_path: Path) -> None:
    with pytest.raises(virtualds.UnsupportedError, match="not a chunk of a netCDF variable"):
        virtualds.convert(file, tmp_path / "refs.nca")
    assert not (tmp_path / "refs.nca").exists()


def test_a_parser_that_scans_wrongly_is_found_out_by_its_native_reader(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_other(target: Any, closing: ExitStack) -> ReadNative:
        return make_stored_reader(lambda wanted: VALUES + 1)

    other = NativeReader("numpy", open_other)
    monkeypatch.setattr(toy_parser, "parser", replace(toy_parser.parser, natives=(other,)))
    found = opened(file).virtual.verify(None, "native")
    assert not found.ok
    assert found.counts == {"differs": 4}, found


def test_a_parser_without_native_reader_is_not_compared(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy_parser, "parser", replace(toy_parser.parser, natives=()))
    found = opened(file).virtual.verify(None, "native")
    assert found.counts == {"not compared": 4}, found
    assert "toy files have no known native reader" in found.problems[0].message


def test_of_two_parsers_of_one_name_the_first_is_taken(tmp_path: Path, file: Path) -> None:
    [points] = tmp_path.glob("site/*/entry_points.txt")
    points.write_text(f"[{PLUGIN_GROUP}]\n{LINE}\nagain = toy_parser:parser\n")
    with pytest.warns(UserWarning, match="there is a parser 'toy' already"):
        found = load_plugins()
    assert found == (toy_parser.parser,)
